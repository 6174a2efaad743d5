"""same_math: the error beyond which a result counts as different math, per dtype of the output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensor_graphs.language.composite import LIBRARY, expand_all
from tensor_graphs.language.composites.rounded import unit_of
from tensor_graphs.language.node import Node, TensorType, walk

SAME_MATH = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2, "f8e4m3": 0.25, "f8e5m2": 0.5}
"""error beyond which a result counts as different math in this dtype, whatever tolerance a user allows"""

UNITS = 7.17
"""largest error of a product of rounded operands, in units of the rounding. The largest of a million products of operands rounded
to TF32 was 1.6e-3, of truncated ones 2.1e-3; with 8 bits of fraction it was 5.5e-3, and with the 7 of bf16 1.1e-2"""


def licensed_unit(roots: Sequence[Node]) -> float:
    """Return the largest relative change of a value by an op that only rounds it (`rounded`), over all nodes of a graph and of the
    definitions of its composites; 0 where there is none."""
    nodes = walk(expand_all(roots, lambda node: LIBRARY.get(node.op.name) is node.op))
    return max((unit_of(node.attrs) for node in nodes if node.op.facts.licence), default=0.0)


def same_math_limit(outputs: Iterable[TensorType], unit: float = 0.0) -> float:
    """Return the largest error that counts as the same math for these types; 0 (exact) for integers. unit: `licensed_unit` of the
    graph."""
    limits = {**SAME_MATH, "f32": max(SAME_MATH["f32"], UNITS * unit)}
    return max((limits.get(t.dtype.name, 0.0) for t in outputs), default=0.0)
