"""text: a decoder's graph as one that learns the next token of a text, and the text as rows."""

from __future__ import annotations

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, whole
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.dtypes import f32, i32
from tensor_graphs.language.graph import Graph, graph, replace_dims
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.training.losses import cross_entropy


def next_token(decoder: Graph) -> Graph:
    """Return the graph of a decoder's loss on one row: inputs `ids` and `target` (the ids after them), i32[n]; output `loss`.

    decoder: the graph of a loaded model, with logits. The cache is empty before the row, and all logits count.
    Raises ArgumentError.
    """
    if "logits" not in decoder.outputs or not {"n", "m", "p"} <= decoder.dims.keys():
        raise ArgumentError("this is no decoder with logits\n  fix: the graph of tg.load_model(folder)")
    n = decoder.dims["n"]
    (logits,) = replace_dims([decoder.outputs["logits"]], {"m": n, "p": 0})

    def empty(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return atomic.fill(0, node.shape, node.dtype) if node.op is leaves.STATE else None

    (logits,) = rebuild([logits], empty)
    return graph({"loss": cross_entropy(atomic.cast(logits, f32), leaves.input("target", (n,), i32))})


def windows(ids: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Return a text's ids as rows of `length` (`ids`), and the id after each of them (`target`). Raises ArgumentError."""
    whole("length", length, 1, len(ids) - 1, f"at most one less than the {len(ids)} tokens of the text")
    count = (len(ids) - 1) // length
    return {"ids": ids[:count * length].reshape(count, length), "target": ids[1:count * length + 1].reshape(count, length)}
