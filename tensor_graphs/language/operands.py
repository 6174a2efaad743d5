"""operands: converts what ops are given. Numbers become constants, and tensors of different shapes are broadcast to one shape.

Promotion: none between tensors; a Python number takes the tensor's dtype (a float next to an integer tensor is an error).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.axis import Axes, several_axes
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import DTypeError, ShapeError
from tensor_graphs.language.node import Node

Operand = Any  # a Node, or a Python / numpy scalar, or an expression of dims


def broadcast_shape(op: str, *nodes: Node) -> tuple[Dim, ...]:
    """Return the common shape under numpy's rules: axes are matched from the back, size 1 stretches. Raises ShapeError."""
    rank = max(n.rank for n in nodes)
    out: list[Dim] = []
    for back in range(rank, 0, -1):
        size: Dim = 1
        owner: Node | None = None
        for n in nodes:
            if n.rank < back or n.shape[-back] == 1:
                continue
            if owner is not None and not same_dim(size, n.shape[-back]):
                raise ShapeError(
                    f"{op} of {owner.type} and {n.type}: axis {rank - back} (counted from the front of the result) has two "
                    f"sizes, {d.format_dim(size)} and {d.format_dim(n.shape[-back])}",
                    fix="sizes must be equal, or one of them 1; reshape or slice one operand")
            if owner is None:
                size, owner = n.shape[-back], n
        out.append(size)
    return tuple(out)


def broadcast_to(x: Node, shape: Sequence[Dim]) -> Node:
    """Return x with axes of size 1 put in front and every axis of size 1 repeated up to `shape`."""
    shape = tuple(shape)
    if x.rank > len(shape):
        raise ShapeError(f"broadcast of {x.type} to rank {len(shape)}")
    return atomic.expand(atomic.reshape(x, (1,) * (len(shape) - x.rank) + x.shape), shape)


def is_number(x: object) -> bool:
    return isinstance(x, (bool, int, float, np.number, np.bool_, d.Expr))


def as_node(x: Operand, dtype: DType) -> Node:
    """Return a tensor unchanged; a number as a constant of `dtype`; an array as a constant of its dtype."""
    if isinstance(x, Node):
        return x
    if isinstance(x, (float, np.floating)) and dtype.kind != "float":
        raise DTypeError(f"the number {x!r} beside a tensor of {dtype.name}", fix="cast the tensor to a float dtype first")
    if isinstance(x, (bool, np.bool_)) and dtype.kind != "bool":
        x = int(x)
    if is_number(x):
        if isinstance(x, (int, float, np.number)) and dtype.kind == "float":
            _refuse_infinite(x, dtype)
        return leaves.constant(x, dtype)
    if isinstance(x, np.ndarray):
        return leaves.constant(x)
    raise DTypeError(f"{type(x).__name__} {x!r} is neither a tensor nor a number",
                     fix=leaves.AS_TENSOR if isinstance(x, leaves.State) else "wrap arrays with tg.constant(array)")


_FITS_EVERYWHERE = 448
"""less than the largest number of every float dtype, so that most numbers need no further check"""


def _refuse_infinite(x: Any, dtype: DType) -> None:
    """Raise DTypeError for a finite number that the dtype rounds to infinity, or for one that becomes NaN in a dtype without ±∞."""
    if not (abs(x) <= _FITS_EVERYWHERE or x != x or (abs(x) == math.inf and dtype.has_infinity) or abs(x) <= dtype.max):
        from tensor_graphs.language.overflowing_numbers import refuse_out_of_range  # a door: of numbers beyond the largest

        refuse_out_of_range(x, dtype)


def together(op: str, *xs: Operand) -> list[Node]:
    """Return the operands as nodes of one shape; numbers take the dtype of the first tensor."""
    dtypes = [x.dtype for x in xs if isinstance(x, Node)]
    if not dtypes:
        raise DTypeError(f"{op} of numbers only", fix="make one of them a tensor with tg.constant")
    nodes = [as_node(x, dtypes[0]) for x in xs]
    shape = broadcast_shape(op, *nodes)
    return [broadcast_to(n, shape) for n in nodes]


def keep(x: Node, reduced: Node, axis: Axes, keepdims: bool) -> Node:
    """Return `reduced`, a reduction of x over `axis`; if keepdims, with the removed axes put back with size 1."""
    if not keepdims:
        return reduced
    gone = several_axes("reduce", axis, x.rank)
    return atomic.reshape(reduced, tuple(1 if i in gone else s for i, s in enumerate(x.shape)))
