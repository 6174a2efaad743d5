"""embed: embeds many texts with an encoder: several of them are packed, one after another, into each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensor_graphs.frontends.huggingface.load import LoadedModel

if TYPE_CHECKING:
    from tensor_graphs.choice.request import Precision
    from tensor_graphs.records.database import Database
    from tensor_graphs.runtime.compiled_graph import CompiledGraph

Array = np.ndarray[Any, Any]

PACKED = 256
"""tokens of a run, of texts that are not longer: products are fast from there on, and a text looks at the others' tokens in vain"""


class PackedEncoder:
    """An encoder's packed graph, bound. Called with the ids of texts, it returns a vector f32[hidden] for each."""

    def __init__(self, compiled: CompiledGraph) -> None:
        self.compiled = compiled

    def __call__(self, texts: Sequence[Sequence[int]]) -> Array:
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))     # equal lengths fill runs evenly
        rows: dict[int, Array] = {}
        for numbers in packs([len(texts[number]) for number in order]):
            run = [order[number] for number in numbers]
            lengths = [len(texts[number]) for number in run]
            inputs = {"ids": np.concatenate([np.asarray(texts[number], np.int32) for number in run]),
                      "positions": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
                      "sentences": np.repeat(np.arange(len(run), dtype=np.int32), lengths),
                      "firsts": np.cumsum([0, *lengths[:-1]], dtype=np.int32)}
            vectors = np.array(self.compiled.run(inputs)["embedding"], np.float32)
            rows.update(zip(run, vectors, strict=True))
        return np.stack([rows[number] for number in range(len(texts))])


def packs(lengths: Sequence[int], most: int = PACKED) -> Iterator[list[int]]:
    """Yield numbers of consecutive texts that go into one run: `most` tokens at most, or one text.

    >>> list(packs([100, 100, 100, 300, 5]))
    [[0, 1], [2], [3], [4]]
    """
    run: list[int] = []
    for number, length in enumerate(lengths):
        if run and sum(lengths[i] for i in run) + length > most:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def start_encoder(model: LoadedModel, *, backends: Sequence[str] | None = None, database: Database | str | Path | None = None,
                  memory_limit: int | None = None, threads: int | None = None, precision: Precision = None,
                  progress: Callable[[str], None] | None = None) -> PackedEncoder:
    """Compile an encoder for many texts and bind it. precision: words, as in `tg.compile`. Raises as `tg.compile` does."""
    from tensor_graphs.choice.compile import answer
    from tensor_graphs.choice.request import Request
    from tensor_graphs.runtime.compiled_graph import bind

    graph = model.packed_graph(PACKED)
    request = Request(graph, None, backends, database, {"t": PACKED, "s": 16}, memory_limit=memory_limit, reuse_outputs=True,
                      threads=threads, precision=precision)
    return PackedEncoder(bind(answer(request, progress), model.weights))
