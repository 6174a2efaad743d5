"""fewer_rows: builds an op on fewer rows along an axis of fixed size; the oracle computes a few rows, of which all others are
copies.

    softmax f32[2048, 1024]   →   softmax f32[32, 1024]      rows along "[0]=2048"

A generated kernel runs at its full sizes, and all rows that it returns are compared. The expected rows are copies of a few, if the
op's rows are independent of each other and of their position. This is tested: the few alone must give rows of the full answer."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import between
from tensor_graphs.language.composite import CompositeOp, Definition, defined
from tensor_graphs.language.defined_ops import is_library
from tensor_graphs.language.dims import is_static
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply
from tensor_graphs.measure.isolation import reused_arrays

log = logging.getLogger(__name__)

LEAST_ROWS, LEAST_ELEMENTS, WORTH = 24, 1 << 15, 4
"""least number of distinct rows; least numbers in those of the largest operand; least ratio of all rows to distinct ones"""

_NAME = re.compile(r"\[(-?\d+)\]=(\d+)")


def row_name(axis: int, size: int) -> str:
    """Return the name of rows along an axis of this size; the axis counts from the left, or, if negative, from the right."""
    return f"[{axis}]={size}"


def is_fixed(name: str) -> bool:
    """Return whether a name is that of rows along a fixed axis, not along a dim."""
    return _NAME.fullmatch(name) is not None


def _axis_and_size(name: str) -> tuple[int, int]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2])


def size_of(name: str) -> int:
    return _axis_and_size(name)[1]


def axis_of(shape: Sequence[Any], name: str) -> int | None:
    """Return the axis of a shape along which rows of this name run; None where there is none."""
    (axis, size), rank = _axis_and_size(name), len(shape)
    return axis % rank if -rank <= axis < rank and isinstance(shape[axis], int) and shape[axis] == size else None


@dataclass(frozen=True)
class Fewer:
    """Op on fewer rows. inputs, outputs: the axis of each along which its rows run; None for an input without such rows."""

    graph: Graph
    inputs: Mapping[str, int | None]
    outputs: Mapping[str, int]


@lru_cache(maxsize=64)
def fewer(graph: Graph, name: str, count: int) -> Fewer | None:
    """Return a graph of one op on `count` rows; None where the op refuses these sizes, or an output has no such rows. The judge and
    its worker get equal graphs."""
    (node,) = [n for n in graph.nodes if n.op.kind in ("atomic", "composite")]
    axes = {operand: axis_of(x.shape, name) for operand, x in graph.inputs.items()}
    operands = {x: leaves.input(operand, _resized(x.shape, axes[operand], count), x.dtype) for operand, x in graph.inputs.items()}
    try:
        inputs = [operands[i] for i in node.inputs]
        if isinstance(node.op, CompositeOp) and not is_library(node.op):    # another process may have its definition alone
            nodes: Sequence[Node] = _steps(defined(node), inputs, size_of(name), count)
        else:
            again = apply(node.op, inputs, node.attrs)
            nodes = [leaves.item(again, k) for k in range(len(graph.outputs))]
        smaller = make_graph(dict(zip(graph.outputs, nodes, strict=True)))
    except (TensorGraphsError, KeyError, ValueError) as e:
        log.debug("no %d rows along %s of %s: %s", count, name, node.op.name, e)
        return None
    outputs = {o: _changed_axis(old.shape, smaller.outputs[o].shape, size_of(name), count) for o, old in graph.outputs.items()}
    rows = {o: axis for o, axis in outputs.items() if axis is not None}
    same = smaller.inputs.keys() == graph.inputs.keys() and all(smaller.outputs[o].dtype == graph.outputs[o].dtype for o in outputs)
    return Fewer(smaller, axes, rows) if same and any(axis is not None for axis in axes.values()) and rows == outputs else None


def _steps(definition: Definition, inputs: Sequence[Node], size: int, count: int) -> list[Node]:
    """Return the outputs of a definition's steps on other operands. Shapes in steps get `count` in place of `size`: if that
    replaces another size by chance, the rows come out wrong, which the caller tests."""
    results = dict(zip(definition.arguments, inputs, strict=True))
    for node in between(definition.outputs, definition.arguments):
        attrs = {key: tuple(count if s == size else s for s in value) if key == "shape" else value
                 for key, value in node.attrs.items()}
        results[node] = apply(node.op, [results[i] for i in node.inputs], attrs) if node.inputs or "shape" in attrs else node
    return [results[output] for output in definition.outputs]


def _resized(shape: Sequence[Any], axis: int | None, count: int) -> tuple[Any, ...]:
    return tuple(count if i == axis else s for i, s in enumerate(shape))


def _changed_axis(old: Sequence[Any], new: Sequence[Any], size: int, count: int) -> int | None:
    """Return the only axis whose size changed, if it changed from `size` to `count`; else None."""
    changed = [i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    if len(old) != len(new) or len(changed) != 1:
        return None
    return changed[0] if (old[changed[0]], new[changed[0]]) == (size, count) else None


def candidates(graph: Graph) -> list[tuple[str, int]]:
    """Return (name, number of distinct rows) for fixed axes of the largest operand with enough rows, the longest first."""
    shapes = [tuple(s for s in x.shape if isinstance(s, int)) for x in graph.inputs.values() if all(map(is_static, x.shape))]
    largest = max(shapes, key=math.prod, default=())
    names = []
    for axis, size in sorted(enumerate(largest), key=lambda axis_size: -axis_size[1]):
        count = max(LEAST_ROWS, -(-LEAST_ELEMENTS * size // max(1, math.prod(largest))))
        if size >= WORTH * count:
            names += [(row_name(axis, size), count), (row_name(axis - len(largest), size), count)]
    return names


def taken(arrays: Mapping[str, np.ndarray], axes: Mapping[str, int | None], numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays restricted to rows with these numbers; arrays without such rows are returned unchanged."""
    return {name: array if (axis := axes[name]) is None else reused_arrays.take(array, numbers, axis)
            for name, array in arrays.items()}


def same_rows(rows: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> bool:
    """Return whether the oracle's results for some rows alone equal its results for these rows among all."""
    return all(np.allclose(rows[name].astype(np.float64), array.astype(np.float64), rtol=1e-9, atol=1e-12, equal_nan=True)
               for name, array in expected.items())
