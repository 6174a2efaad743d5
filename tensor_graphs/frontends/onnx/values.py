"""values: a tensor of an ONNX graph while it is imported: a node, or an array that is known already.

Shapes are part of nodes here, and ONNX computes them with tensors. So integers that follow from shapes and constants are arrays of
ints or of dims (numpy arrays of objects), which FOLD computes; and a node that depends on constants alone is evaluated where its
value is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.errors import NotSupported, ValueNeeded
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, i64, parse_dtype
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.interpreter import interpret

MOST_KNOWN = 1 << 20
"""largest number of elements of a tensor that is computed when the graph is built"""


class OnnxValue:
    """A tensor: `node()` returns it as a node, and `array` is its value where that is an array already (objects: dims); or a
    sequence of the tensors `items`, which is no node."""

    def __init__(self, dtype: DType, node: Node | None = None, array: np.ndarray | None = None,
                 items: list[OnnxValue] | None = None) -> None:
        self.dtype, self.array, self._node, self.items = dtype, array, node, items

    @staticmethod
    def of(x: Node | OnnxValue | np.ndarray) -> OnnxValue:
        """Return a node or a known array of a dtype of ours as an OnnxValue; an OnnxValue itself."""
        if isinstance(x, np.ndarray):
            return OnnxValue(i64 if x.dtype == object else parse_dtype(x.dtype), array=x)
        return x if isinstance(x, OnnxValue) else OnnxValue(x.dtype, x)

    def node(self) -> Node:
        if self.items is not None:
            raise NotSupported("a sequence where a tensor is needed")
        if self._node is None:
            self._node = constant(self.array, self.dtype)
        return self._node

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(self.array.shape) if self.array is not None else self.node().shape


def constant(array: Any, dtype: DType) -> Node:
    """Return a known array as a node; dims in it become expressions that are evaluated at run time."""
    if array.dtype != object:
        return leaves.constant(array, dtype)
    flat = [atomic.reshape(leaves.constant(x, dtype), (1,)) for x in array.ravel()]
    return atomic.reshape(c.concat(*flat) if len(flat) > 1 else flat[0], array.shape)


def dims_array(sizes: Any) -> np.ndarray:
    """Return sizes as an array: of i64 if they are all ints, else of objects."""
    sizes = list(sizes)
    if all(isinstance(s, int) for s in sizes):
        return np.array(sizes, np.int64)
    out = np.empty(len(sizes), object)
    out[:] = sizes
    return out


def known_array(value: OnnxValue, weights: Mapping[str, np.ndarray], what: str) -> np.ndarray:
    """Return the value of a tensor, computed from constants and weights. what: how an error names it.

    Raises ValueNeeded where it depends on inputs, NotSupported where it depends on dims or is very large.
    """
    if value.array is None:
        nodes = walk([value.node()])
        inputs = tuple(sorted(n.attrs["name"] for n in nodes if n.op is leaves.INPUT))
        if inputs:
            raise ValueNeeded(f"{what} must be known when the graph is built, and depends on the input {', '.join(inputs)}",
                              inputs=inputs)
        graph = Graph({"out": value.node()}, {})
        if graph.dims:
            raise NotSupported(f"{what} must be known when the graph is built, and depends on the dim {', '.join(graph.dims)}",
                               fix="fix the size: tg.from_onnx(file, dims={" + f"{next(iter(graph.dims))!r}: 1" + "})")
        if any(math.prod(t.shape) > MOST_KNOWN for n in nodes for t in n.types):
            raise NotSupported(f"{what} must be known when the graph is built, and follows from more than {MOST_KNOWN} elements",
                               fix="store it as a constant")
        value.array = interpret(graph, {}, {n: weights[n] for n in graph.parameters}, mode="as_written").outputs["out"]
    return value.array


# ---- arithmetic of sizes ---------------------------------------------------------------------------------------------


def _truncated(x: Dim, y: Dim) -> Dim:
    if isinstance(x, int) and isinstance(y, int):
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    if d.bounds(x)[0] < 0 or d.bounds(y)[0] < 0:
        raise ValueError("the sign of a size is not known")
    return x // y


def _equal(x: Dim, y: Dim) -> bool:
    low, high = d.bounds(x - y)
    if x != y and low <= 0 <= high:
        raise ValueError("it depends on a dim")
    return bool(x == y)


def _less(x: Dim, y: Dim) -> bool:
    low, high = d.bounds(x - y)
    if low < 0 <= high:
        raise ValueError("it depends on a dim")
    return high < 0


COMPARES: dict[str, Callable[..., Any]] = {
    "Equal": _equal, "Less": _less, "Greater": lambda x, y: _less(y, x), "LessOrEqual": lambda x, y: not _less(y, x),
    "GreaterOrEqual": lambda x, y: not _less(x, y), "Not": lambda x: not x, "And": lambda x, y: x and y, "Or": lambda x, y: x or y,
}

ELEMENTS: dict[str, Callable[..., Any]] = COMPARES | {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": _truncated, "Neg": lambda x: -x,
    "Max": lambda *xs: d.dim_max(*xs) if len(xs) > 1 else xs[0], "Min": lambda *xs: d.dim_min(*xs) if len(xs) > 1 else xs[0],
    "Where": lambda condition, x, y: x if condition else y,
}
"""op -> its value of known integers and dims; ValueError where it depends on a dim. COMPARES: those whose values are of bool"""


def elementwise(op: str, *arrays: np.ndarray) -> np.ndarray:
    """Return an op of ELEMENTS on the elements of arrays, which broadcast, as an array of objects."""
    return np.asarray(np.frompyfunc(ELEMENTS[op], len(arrays), 1)(*(a.astype(object) for a in arrays)), object)


def narrowed(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return an array of objects in `dtype` if there is no dim in it (integers wrap), else itself."""
    if any(isinstance(x, d.Expr) for x in array.ravel()):
        return array
    if not dtype.is_integer:
        return array.astype(dtype.numpy)
    flat = [(int(x) - int(dtype.min)) % (1 << dtype.bits) + int(dtype.min) for x in array.ravel()]
    return np.array(flat, dtype.numpy).reshape(array.shape)
