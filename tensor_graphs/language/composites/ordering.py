"""ordering: sorted axes, running products, maxima and log-sum-exps, and the places of numbers among sorted ones.

A running value of n elements takes log2 n steps: each combines every element with the one 1, 2, 4, … places before it (Hillis and
Steele 1986). Sorting ranks by counting, as `topk` does, and is stable; NaN is larger than every number, as to numpy's sort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import need, same_dim, same_dtype, show
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import logaddexp, wide
from tensor_graphs.language.composites.indexing import flip, topk
from tensor_graphs.language.composites.windows import lowest
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

__all__ = ["argsort", "cummax", "cummin", "cumprod", "logcumsumexp", "searchsorted", "sort"]


# ---- running values --------------------------------------------------------------------------------------------------


def _running(parts: Sequence[Node], neutral: Sequence[float], axis: int,
             combine: Callable[[Sequence[Node], Sequence[Node]], Sequence[Node]]) -> Sequence[Node]:
    """Return the parts combined with all before them along an axis. combine(earlier, later); neutral: what is before the first."""
    size, step = parts[0].shape[axis], 1
    around: list[tuple[Dim, Dim]] = [(0, 0)] * parts[0].rank
    inside: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in parts[0].shape]
    while step < d.bounds(size)[1]:
        around[axis] = (step, 0)
        earlier = [atomic.slice(atomic.pad(part, around, value), inside) for part, value in zip(parts, neutral, strict=True)]
        parts, step = combine(earlier, parts), 2 * step
    return parts


def cumprod(x: Node, axis: int = -1) -> Node:
    """out[i] = x[0] · … · x[i] along `axis`; integers wrap.

    x of floats or integers -> its shape and dtype. Raises AttributeValueError (axis), DTypeError.
    """
    need("cumprod", x, "float", "int", "uint")
    axis = one_axis("cumprod", axis, x.rank)
    w = wide(x) if x.dtype.is_float else x
    (result,) = _running([w], [1], axis, lambda before, now: [atomic.mul(before[0], now[0])])
    return atomic.cast(result, x.dtype)


def logcumsumexp(x: Node, axis: int = -1) -> Node:
    """out[i] = log(e^x[0] + … + e^x[i]) along `axis`, which overflows nowhere.

    x of a float dtype -> its shape and dtype. Raises AttributeValueError (axis), DTypeError.
    """
    need("logcumsumexp", x, "float")
    axis = one_axis("logcumsumexp", axis, x.rank)
    (result,) = _running([wide(x)], [-float("inf")], axis, lambda before, now: [logaddexp(before[0], now[0])])
    return atomic.cast(result, x.dtype)


def cummax(x: Node, axis: int = -1) -> tuple[Node, Node]:
    """(the largest of x[0] … x[i], its index i32) along `axis`: the last of equal ones, as in torch; NaN wins.

    x of floats or integers -> its shape twice. Raises AttributeValueError (axis), DTypeError.
    """
    need("cummax", x, "float", "int", "uint")
    return _extreme(x, one_axis("cummax", axis, x.rank))


def cummin(x: Node, axis: int = -1) -> tuple[Node, Node]:
    """(the smallest of x[0] … x[i], its index i32) along `axis`: the last of equal ones, as in torch; NaN wins.

    x of floats or integers -> its shape twice. Raises AttributeValueError (axis), DTypeError.
    """
    need("cummin", x, "float", "int", "uint")
    turn = arithmetic.neg if x.dtype.is_float else atomic.logical_not
    values, places = _extreme(turn(x), one_axis("cummin", axis, x.rank))
    return turn(values), places


def _extreme(x: Node, axis: int) -> tuple[Node, Node]:
    def combine(before: Sequence[Node], now: Sequence[Node]) -> Sequence[Node]:
        later = arithmetic.less_equal(before[0], now[0])
        if x.dtype.is_float:
            later = atomic.bit_or(later, arithmetic.is_nan(now[0]))
        return [atomic.where(later, b, a) for a, b in zip(before, now, strict=True)]

    values, places = _running([x, atomic.iota(x.shape, axis, i32)], [lowest(x.dtype), 0], axis, combine)
    return values, places


# ---- sorting ---------------------------------------------------------------------------------------------------------


def sort(x: Node, axis: int = -1, *, descending: bool = False) -> tuple[Node, Node]:
    """(values, indices i32): x with its elements along `axis` in order, and where they were. Equal ones keep their order.

    NaN is last (first if descending). x of floats or integers; the axis has a fixed size, and time grows with its square where no
    kernel sorts. Raises AttributeValueError (axis), ShapeError (a dim), DTypeError.
    """
    axis = one_axis("sort", axis, x.rank)
    need("sort", x, "float", "int", "uint")
    size = x.shape[axis]
    if not isinstance(size, int):
        raise ShapeError(f"sort of {show(x)}: axis {axis} has the size {format_dim(size)}", fix="an axis of fixed size")
    if descending:
        return topk(x, axis, k=size)
    values, places = topk(flip(x, axis), axis, k=size)          # reversed twice, so that equal ones keep their order
    return flip(values, axis), flip(arithmetic.sub(size - 1, places), axis)


def argsort(x: Node, axis: int = -1, *, descending: bool = False) -> Node:
    """The indices (i32) that `sort` returns.

    x of floats or integers, with a fixed size along `axis`. Raises AttributeValueError (axis), ShapeError (a dim), DTypeError.
    """
    return sort(x, one_axis("argsort", axis, x.rank), descending=descending)[1]


def searchsorted(boundaries: Node, values: Node, *, right: bool = False) -> Node:
    """The number (i32) of boundaries below each value, or not above it (right): where it fits in without breaking their order.

    boundaries[s], or [b…, s] with rows of their own, in ascending order; values[…], or [b…, n]: of floats or integers, one dtype.
    The result has the shape of the values. As numpy.searchsorted, torch.bucketize and torch.searchsorted: NaN is last. Raises
    ShapeError, DTypeError.
    """
    need("searchsorted", boundaries, "float", "int", "uint")
    same_dtype("searchsorted", boundaries, values)
    rows = boundaries.shape[:-1]
    if boundaries.rank == 0 or (boundaries.rank > 1 and (values.rank != boundaries.rank or not all(
            map(same_dim, rows, values.shape[:-1])))):
        raise ShapeError(f"searchsorted of {show(values)} among {show(boundaries)}: there are no boundaries for each row",
                         fix="boundaries[s] for any values, or boundaries[b, s] for values[b, n]")
    count = boundaries.shape[-1]
    pairs = (*values.shape, count)
    ones = (*rows, 1) if boundaries.rank > 1 else (1,) * values.rank
    bounds = broadcast_to(atomic.reshape(boundaries, (*ones, count)), pairs)
    each_value = broadcast_to(atomic.reshape(values, (*values.shape, 1)), pairs)
    below = arithmetic.less_equal(bounds, each_value) if right else atomic.less(bounds, each_value)
    if values.dtype.is_float:
        last = arithmetic.is_nan(each_value)
        below = atomic.bit_or(below, last if right else atomic.bit_and(last, atomic.logical_not(arithmetic.is_nan(bounds))))
    return atomic.sum(atomic.cast(below, i32), (values.rank,))
