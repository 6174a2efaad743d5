"""step: runs one step of many sequences: pieces of the scheduler become inputs of a paged decoder's graph, logits come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.language.dims import bounds
from tensor_graphs.models.transformer import Pool
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.serving.scheduler import Portion, TokenSequence

Array = np.ndarray[Any, Any]

LANES = 16
"""rows in multiples of which kernels of products compute all rows alike: a multiple of the lanes of every vector register"""

WIDTH = 8
"""pages of a row of the table, in multiples of which tables grow, so that few shapes occur"""


class BatchStep:
    """A bound graph of a paged decoder with its pool. invariant: tokens and logits are padded to multiples of LANES, so that the
    bits of a row do not depend on the other rows. lengths: as in `Facts`. Raises FrontendError where bits depend on other rows."""

    def __init__(self, compiled: CompiledGraph, pool: Pool, *, invariant: bool = False,
                 lengths: tuple[int, int | None] | None = None) -> None:
        self.compiled, self.pool, self.rows, self.lengths = compiled, pool, LANES if invariant else 1, lengths
        self.session = compiled.session()
        self._widest = bounds(compiled.graph.dims["w"])[1]
        if invariant:
            self._check()

    def run(self, pieces: Sequence[Portion]) -> Array:
        """Compute the pieces and return logits[m, vocabulary], a row for each piece that is its sequence's last."""
        page, count = self.pool.page, sum(piece.count for piece in pieces)
        width = min(self._widest, -(-max(len(piece.sequence.pages) for piece in pieces) // WIDTH) * WIDTH)
        t = -(-count // self.rows) * self.rows
        ids, positions, slots = np.zeros(t, np.int32), np.full(t, -1, np.int32), np.full(t, -1, np.int32)
        ends, table, asked, end = np.ones(t, np.int32), np.full((t, width), -1, np.int32), [], 0
        for piece in pieces:
            start, end = end, end + piece.count
            pages = np.asarray(piece.sequence.pages, np.int32)
            at = np.arange(piece.start, piece.start + piece.count, dtype=np.int32)
            ids[start:end] = piece.sequence.tokens[piece.start:piece.start + piece.count]
            positions[start:end], slots[start:end] = at, pages[at // page] * page + at % page
            table[start:end, :len(pages)] = pages
            if self.lengths is not None:
                ends[start:end] = piece.sequence.ends(piece.start, piece.start + piece.count)
            if piece.last:
                asked.append(end - 1)
        m = max(1, -(-len(asked) // self.rows)) * self.rows
        inputs = {"ids": ids, "positions": positions, "slots": slots, "pages": table,
                  "asked": np.asarray(asked + [0] * (m - len(asked)), np.int32)}
        if self.lengths is not None:
            inputs["ends"] = ends
        logits: Array = self.compiled.run(inputs, session=self.session)["logits"]
        return logits[:len(asked)]

    def _check(self) -> None:
        """Raise FrontendError if the bits of a sequence depend on the sequences that share its steps, on the portions in which it
        comes, or on its pages."""
        draw, page, count = np.random.default_rng(0), self.pool.page, min(4, self.pool.pages)
        own = min(4, self.pool.pages // count, self._widest)
        length = min(own * page, self.pool.tokens // 2)
        vocabulary = bounds(self.compiled.graph.outputs["logits"].shape[1])[1]
        texts = [draw.integers(0, vocabulary, max(2, length - i % 3)) for i in range(count)]
        sequences = [TokenSequence(text.tolist(), self.lengths) for text in texts]

        def in_steps(parts: list[Portion]) -> dict[TokenSequence, bytes]:
            """Run portions in steps that are as full as they may be; return the bits of each sequence's logits."""
            bits, left = dict[TokenSequence, bytes](), list(parts)
            while left:
                step = [left.pop(0)]
                while left and sum(portion.count for portion in step) + left[0].count <= self.pool.tokens:
                    step.append(left.pop(0))
                last = [portion.sequence for portion in step if portion.last]
                bits |= {sequence: row.tobytes() for sequence, row in zip(last, self.run(step), strict=True)}
            return bits

        def placed() -> None:
            pages = draw.permutation(self.pool.pages)
            for number, sequence in enumerate(sequences):
                sequence.pages = pages[number * own:(number + 1) * own].tolist()

        placed()
        alone = {s: bits for s in sequences for bits in in_steps([Portion(s, 0, len(s.tokens))]).values()}
        for _ in range(3):
            placed()
            cuts = {s: int(draw.integers(1, len(s.tokens))) for s in sequences}
            first, second = ([sequences[i] for i in draw.permutation(count)] for _ in range(2))
            together = in_steps([*(Portion(s, 0, cuts[s]) for s in first),
                                 *(Portion(s, cuts[s], len(s.tokens) - cuts[s]) for s in second)])
            if together != alone:
                raise FrontendError("the kernels of this model compute a row differently in different batches",
                                    fix="invariant=False, or other --backends")
