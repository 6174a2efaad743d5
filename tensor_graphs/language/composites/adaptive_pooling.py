"""adaptive_pooling: pooling to a given size: each axis is cut into as many intervals as the result has elements.

Interval i of an axis of n elements and o results is ⌊i · n / o⌋ … ⌈(i + 1) · n / o⌉ − 1, as in torch: intervals overlap by an
element where o does not divide n. Where it does, pooling is a reduction of a reshaped tensor; else elements are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill, need, show
from tensor_graphs.language.composites import arithmetic, normalisation
from tensor_graphs.language.composites.elementary import wide
from tensor_graphs.language.composites.windows import lowest
from tensor_graphs.language.dim_proofs import exact_div
from tensor_graphs.language.dims import format_dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

__all__ = ["adaptive_avg_pool", "adaptive_max_pool"]


def adaptive_avg_pool(x: Node, size: int | Sequence[int | None] | None) -> Node:
    """The mean of each interval, with `size` of them along each of the last len(size) axes of x (an int: the last one).

    None leaves an axis as it is; (1, 1) is the mean of all. The result has x's other axes and its dtype, summed in f32 at least.
    x of a float dtype. Raises AttributeValueError (size), ShapeError (of a dim into intervals of several lengths), DTypeError.
    """
    need("adaptive_avg_pool", x, "float")
    sizes, w = _sizes("adaptive_avg_pool", x, size), wide(x)
    for axis, count in enumerate(sizes, x.rank - len(sizes)):
        if count is None:
            continue
        even = _evenly(w, axis, count)
        if even is not None:
            w = normalisation.mean(even, axis + 1)
            continue
        seen, inside = _intervals("adaptive_avg_pool", w, axis, count)
        total = atomic.sum(atomic.where(inside, seen, fill(0, seen.shape, seen.dtype)), (axis + 1,))
        w = arithmetic.div(total, atomic.sum(atomic.cast(inside, w.dtype), (axis + 1,)))
    return atomic.cast(w, x.dtype)


def adaptive_max_pool(x: Node, size: int | Sequence[int | None] | None) -> Node:
    """The largest element of each interval, with `size` of them along each of the last len(size) axes of x (an int: the last one).

    None leaves an axis as it is; NaN wins. x of floats or integers -> its dtype. Raises AttributeValueError (size), ShapeError
    (of a dim into intervals of several lengths), DTypeError.
    """
    need("adaptive_max_pool", x, "float", "int", "uint")
    sizes = _sizes("adaptive_max_pool", x, size)
    for axis, count in enumerate(sizes, x.rank - len(sizes)):
        if count is None:
            continue
        even = _evenly(x, axis, count)
        if even is None:
            seen, inside = _intervals("adaptive_max_pool", x, axis, count)
            even = atomic.where(inside, seen, fill(lowest(x.dtype), seen.shape, x.dtype))
        x = atomic.reduce_max(even, (axis + 1,))
    return x


def _sizes(op: str, x: Node, size: int | Sequence[int | None] | None) -> tuple[int | None, ...]:
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    valid = all(s is None or (isinstance(s, (int, np.integer)) and not isinstance(s, bool) and s >= 1) for s in sizes)
    if not 1 <= len(sizes) <= x.rank or not valid:
        raise AttributeValueError(f"{op} of {show(x)}: the size is {size!r}",
                                  fix=f"an int ≥ 1 or None for the last axis, or up to {x.rank} of them for the last ones")
    return tuple(None if s is None else int(s) for s in sizes)


def _evenly(x: Node, axis: int, count: int) -> Node | None:
    """Return x with the axis cut into `count` rows of equal length, or None unless it is a multiple."""
    per = exact_div(x.shape[axis], count)
    return None if per is None else atomic.reshape(x, (*x.shape[:axis], count, per, *x.shape[axis + 1:]))


def _intervals(op: str, x: Node, axis: int, count: int) -> tuple[Node, Node]:
    """Return [.., interval, element, ..] of x along an axis, and where an element belongs to its interval, of the same shape."""
    size = x.shape[axis]
    if not isinstance(size, int) or size == 0:
        raise ShapeError(f"{op} of {show(x)}: axis {axis} has {format_dim(size)} elements, for {count} intervals",
                         fix="an axis of fixed size, or one that is a multiple of the result's")
    starts = np.arange(count) * size // count
    ends = -(-(np.arange(count) + 1) * size // count)
    at = starts[:, None] + np.arange(int((ends - starts).max()))
    seen = atomic.gather(x, constant(np.minimum(at, size - 1).astype(np.int32), i32), axis)
    inside = constant(at < ends[:, None])
    inside = atomic.reshape(inside, (*at.shape, *(1,) * (x.rank - 1 - axis)))
    return seen, broadcast_to(inside, seen.shape)
