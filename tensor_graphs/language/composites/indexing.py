"""indexing: ops that select or order elements — embedding, concat, stack, flip, split, one_hot, argmax, linear_argmax, topk — and
cumsum, prod.

The definitions use comparisons against iota, so some are quadratic in the axis (topk ranks by counting, cumsum sums a triangle);
`direct` evaluates those with numpy's sort and cumsum.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import dim_fill, fill, need, same_dim, same_dtype, show
from tensor_graphs.language.axis import one_axis, several_axes
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.products import linear, times_rows
from tensor_graphs.language.conditions import Condition, at_least
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import DType, f32, i32
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts, Rows
from tensor_graphs.language.operands import broadcast_to, keep

__all__ = ["argmax", "concat", "cumsum", "embedding", "flip", "linear_argmax", "one_hot", "prod", "split", "stack", "topk"]

_LONGEST_PRODUCT = 1 << 24
"""The largest size of an axis for `prod`, which pads the axis to a power of two for its halving tree."""

Attributes = Mapping[str, Any]
Gradients = dict[str, Any]


# ---- embedding, one_hot ----------------------------------------------------------------------------------------------


def _embedding_direct(roles: Mapping[str, np.ndarray], attrs: Attributes, out_types: Any) -> np.ndarray:
    table, ids = roles["table"], roles["ids"]
    if len(table) == 0:
        return np.zeros((*ids.shape, table.shape[1]))
    inside = (ids >= 0) & (ids < len(table))
    rows = np.take(table, np.where(inside, ids, 0), axis=0)
    return np.asarray(np.where(inside[..., None], rows, 0.0) * attrs["scale"])


@of_one_output
def _embedding_gradient(node: Node, g: Node) -> Gradients:
    table, ids = node.inputs
    if node.attrs["scale"] != 1.0:
        g = arithmetic.mul(g, node.attrs["scale"])
    zeros = fill(0, table.shape, table.dtype)
    return {"table": atomic.scatter(zeros, ids, atomic.cast(g, table.dtype), axis=0, mode="add"), "ids": None}


@library(direct=_embedding_direct, gradient=_embedding_gradient, facts=OpFacts(reads=Rows(0, 1), closed=True))
def embedding(table: Node, ids: Node, *, scale: float = 1.0, dtype: DType = f32) -> Node:
    """scale · table[ids]: rows of table[vocabulary, d] at integers ids[…]; ids out of range give zeros.

    The result is ids' shape with d behind it, in `dtype`. Raises ShapeError, DTypeError.
    """
    need("embedding (table)", table, "float")
    need("embedding (ids)", ids, "int", "uint")
    if table.rank != 2:
        raise ShapeError(f"embedding: the table is {show(table)}", fix="table[vocabulary, d]")
    if dtype.kind != "float":
        raise DTypeError(f"embedding to {dtype.name}", fix="a float dtype")
    rows = atomic.cast(atomic.gather(table, ids, axis=0), dtype)
    return rows if scale == 1.0 else arithmetic.mul(rows, scale)


@library(facts=OpFacts(closed=True, sought=False))
def one_hot(ids: Node, *, size: Dim, dtype: DType = f32) -> Node:
    """ids[…] -> [… , size]: 1 at the id, 0 elsewhere; an id out of range gives zeros.

    ids of integers. Raises DTypeError.
    """
    need("one_hot", ids, "int", "uint")
    if ids.dtype.itemsize < i32.itemsize:                           # or places beyond its largest number would wrap onto ids
        ids = atomic.cast(ids, i32)
    shape = (*ids.shape, size)
    places = atomic.iota(shape, ids.rank, ids.dtype)
    return atomic.cast(arithmetic.equals(places, broadcast_to(atomic.reshape(ids, (*ids.shape, 1)), shape)), dtype)


# ---- concat, stack, flip ---------------------------------------------------------------------------------------------


@of_one_output
def _concat_gradient(node: Node, g: Node) -> Gradients:
    axis = one_axis("concat", node.attrs["axis"], node.inputs[0].rank)
    pieces: list[Node] = []
    start: Dim = 0
    for x in node.inputs:
        bounds: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in x.shape]
        bounds[axis] = (start, start + x.shape[axis], 1)
        pieces.append(atomic.slice(g, bounds))
        start = start + x.shape[axis]
    return {"xs": pieces}


@library(direct=lambda roles, attrs, types: np.concatenate(roles["xs"], axis=attrs["axis"]),
         gradient=_concat_gradient, facts=OpFacts(mentioned=True, closed=True, sought=False))
def concat(*xs: Node, axis: int = 0) -> Node:
    """The tensors one after the other along `axis`; other axes and dtypes are equal. Raises ShapeError, DTypeError.

    Defined by `where`: each padded to the whole length, and chosen where the index is before its end.

    Any dtype. Raises AttributeValueError (axis) too.
    """
    if not xs:
        raise ShapeError("concat of nothing", fix="at least one tensor")
    first = xs[0]
    axis = one_axis("concat", axis, first.rank)
    same_dtype("concat", *xs)
    ends: list[Dim] = []
    total: Dim = 0
    for x in xs:
        if x.rank != first.rank:
            raise ShapeError(f"concat of {show(first)} and {show(x)}: the ranks {first.rank} and {x.rank} differ",
                             fix="concat joins along an axis they have; stack makes a new one")
        for i, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if i != axis and not same_dim(a, b):
                raise ShapeError(f"concat of {show(first)} and {show(x)} along axis {axis}: axis {i} has two sizes, "
                                 f"{format_dim(a)} and {format_dim(b)}", fix="only the joined axis may differ")
        total = total + x.shape[axis]
        ends.append(total)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1:])
    place = atomic.iota(shape, axis, i32)

    def whole(number: int) -> Node:
        start = ends[number] - xs[number].shape[axis]
        padding: list[tuple[Dim, Dim]] = [(0, 0)] * first.rank
        padding[axis] = (start, total - ends[number])
        return atomic.pad(xs[number], padding, 0)

    out = whole(len(xs) - 1)
    for number in range(len(xs) - 2, -1, -1):
        out = atomic.where(atomic.less(place, dim_fill(ends[number], shape)), whole(number), out)
    return out


def stack(*xs: Node, axis: int = 0) -> Node:
    """The tensors, all of one shape, along a new axis: concat of each with an axis of size 1 put in.

    Any dtype. Raises AttributeValueError (axis), ShapeError, DTypeError.
    """
    if not xs:
        raise ShapeError("stack of nothing", fix="at least one tensor")
    for x in xs:
        if not isinstance(x, Node):
            raise DTypeError(f"stack: operand 'xs' is {type(x).__name__}, a tensor is needed",
                             fix="tg.stack(x, y, axis=0): tensors one after another, not in a list")
    axis = one_axis("stack", axis, xs[0].rank + 1)
    atomic.same_shape("stack", *xs)
    return concat(*(atomic.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in xs), axis=axis)


def flip(x: Node, axis: int | Sequence[int] | None = None) -> Node:
    """x with the order along the axes (all by default) reversed: one slice of step −1.

    Any dtype. Raises AttributeValueError (axis).
    """
    turned = several_axes("flip", axis, x.rank)
    return atomic.slice(x, [(s - 1, -1, -1) if i in turned else (0, s, 1) for i, s in enumerate(x.shape)])


def split(x: Node, parts: int | Sequence[Dim], axis: int = 0) -> tuple[Node, ...]:
    """Cut x along `axis` into equal parts (an int: their number, as in numpy.split) or into parts of the given sizes.

    Any dtype. Raises AttributeValueError (axis, parts), ShapeError (the sizes do not add up to the axis).
    """
    axis = one_axis("split", axis, x.rank)
    size = x.shape[axis]
    if isinstance(parts, (int, np.integer)) and not isinstance(parts, bool):
        if parts < 1 or not isinstance(size, int) or size % parts:
            raise AttributeValueError(f"split of {show(x)} into {parts} equal parts: axis {axis} has {format_dim(size)}",
                                      fix="a number that divides the axis, or the sizes: split(x, [a, b])")
        sizes: list[Dim] = [size // int(parts)] * int(parts)
    elif isinstance(parts, Sequence) and parts:
        sizes = list(parts)
    else:
        raise AttributeValueError(f"split: parts is {parts!r}", fix="how many, or their sizes")
    ends: list[Dim] = [0]
    for length in sizes:
        ends.append(ends[-1] + length)
    if not same_dim(ends[-1], size):
        raise ShapeError(f"split of {show(x)}: the sizes add up to {format_dim(ends[-1])}, axis {axis} has {format_dim(size)}",
                         fix="sizes whose sum is that of the axis")
    whole = [(0, s, 1) for s in x.shape]
    return tuple(atomic.slice(x, [*whole[:axis], (start, stop, 1), *whole[axis + 1:]])
                 for start, stop in itertools.pairwise(ends))


# ---- argmax, linear_argmax, topk -------------------------------------------------------------------------------------


MOST_INDEXED = 1 << 31
"""number of elements of an axis up to which indices fit i32"""


def _counted(op: str, x: Node, axis: int) -> list[Condition]:
    """Return the condition that i32 can number the elements of an axis."""
    text = f"its indices are i32, and axis {axis} has {format_dim(x.shape[axis])} elements, of which 2^31 have one"
    return at_least(MOST_INDEXED, x.shape[axis], f"{op} of {show(x)}", text)


def _need_counted(op: str, x: Node, axis: int) -> None:
    """Raise ShapeError where i32 cannot number the elements of an axis at any size."""
    if dim_ge(MOST_INDEXED, x.shape[axis]) is False:
        raise ShapeError(f"{op} of {show(x)}: its indices are i32, and axis {axis} has more than 2^31 elements",
                         fix="reshape the axis into two, and take the best of the best")


def _of_something(node: Node) -> list[Condition]:
    x, axis = node.inputs[0], node.attrs["axis"]
    size = x.shape[axis]
    some = at_least(size, 1, f"argmax of {show(x)}", f"nothing is the largest of no elements, axis {axis} has {format_dim(size)}")
    return some + _counted("argmax", x, axis)


@library(direct=lambda roles, attrs, types: np.asarray(np.argmax(roles["x"], axis=attrs["axis"]), np.int32),
         conditions=_of_something, facts=OpFacts(mentioned=True, closed=True))
def argmax(x: Node, axis: int = -1) -> Node:
    """The index (i32) of the largest element along `axis`, which disappears: the first of equal ones; NaN wins.

    x of floats or integers, of up to 2^31 elements along the axis. Raises AttributeValueError (axis), ShapeError (no elements, or
    more), DTypeError.
    """
    need("argmax", x, "float", "int", "uint")
    axis = one_axis("argmax", axis, x.rank)
    size = x.shape[axis]
    if dim_ge(size, 1) is False:
        raise ShapeError(f"argmax of {show(x)} along axis {axis}: nothing is the largest of no elements")
    _need_counted("argmax", x, axis)
    best = atomic.reduce_max(x, (axis,))
    with_ones = (*x.shape[:axis], 1, *x.shape[axis + 1:])
    winner = arithmetic.equals(x, broadcast_to(atomic.reshape(best, with_ones), x.shape))
    if x.dtype.kind == "float":
        winner = atomic.bit_or(winner, arithmetic.is_nan(x))
    # the first winner is the one with the most places behind it
    behind = arithmetic.sub(dim_fill(size - 1, x.shape), atomic.iota(x.shape, axis, i32))
    most = atomic.reduce_max(atomic.where(winner, behind, fill(-1, x.shape, i32)), (axis,))
    return arithmetic.sub(dim_fill(size - 1, most.shape), most)


def _linear_argmax_direct(roles: Mapping[str, np.ndarray], attrs: Attributes, out_types: Any) -> tuple[np.ndarray, np.ndarray]:
    out = times_rows(roles["x"], roles["weight"])
    index = np.asarray(np.argmax(out, axis=-1))
    return np.take_along_axis(out, index[..., None], axis=-1)[..., 0], index.astype(np.int32)


@library(direct=_linear_argmax_direct, facts=OpFacts(closed=True, piecewise=("weight",)))
def linear_argmax(x: Node, weight: Node) -> tuple[Node, Node]:
    """(value, index i32)[…]: the largest of x[…, k] · weight[m, k]ᵀ over m, and the first row that reaches it; NaN wins.

    What greedy decoding asks of a language model's head: the likeliest token, not all logits; value is in x's dtype.
    weight may have another float dtype, as in `linear`. Raises ShapeError (also for m = 0), DTypeError.
    """
    y = linear(x, weight)
    if dim_ge(weight.shape[0], 1) is False:
        raise ShapeError(f"linear_argmax of the weight {show(weight)}: nothing is the largest of no rows")
    return atomic.reduce_max(y, (y.rank - 1,)), argmax(y)


def _topk_direct(roles: Mapping[str, np.ndarray], attrs: Attributes, out_types: Any) -> tuple[np.ndarray, np.ndarray]:
    x, k = roles["x"], attrs["k"]
    # an ascending stable sort of the reversed axis, read backwards: descending, equal ones by index, NaN first
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1][..., :k]
    return np.take_along_axis(x, order, axis=-1), order.astype(np.int32)


@of_one_output
def _topk_gradient(node: Node, g: Node) -> Gradients:
    x = node.inputs[0]
    chosen = one_hot(leaves.item(node, 1), size=x.shape[-1], dtype=g.dtype)          # [..., k, n]
    spread = atomic.mul(chosen, broadcast_to(atomic.reshape(g, (*g.shape, 1)), chosen.shape))
    return {"x": atomic.sum(spread, (x.rank - 1,))}


def _enough(node: Node) -> list[Condition]:
    x, k = node.inputs[0], node.attrs["k"]
    enough = at_least(x.shape[-1], k, f"topk of {show(x)}", f"{k} are asked for of {format_dim(x.shape[-1])}")
    return enough + _counted("topk", x, x.rank - 1)


def topk(x: Node, axis: int = -1, *, k: int, largest: bool = True) -> tuple[Node, Node]:
    """(values, indices i32) of the k largest elements along `axis`, largest first; or of the k smallest. Equal ones by index.

    NaN counts as larger than every number (as in numpy's sort order). Defined by ranks: how many elements come before.

    x of floats or integers; of the smallest, the axis has a fixed size. Raises AttributeValueError (axis, k), ShapeError,
    DTypeError.
    """
    if x.rank == 0:
        raise ShapeError(f"topk of {show(x)}: a scalar has no axis")
    axis = one_axis("topk", axis, x.rank)
    order = (*(i for i in range(x.rank) if i != axis), axis)
    back = (*range(axis), x.rank - 1, *range(axis, x.rank - 1))
    last = atomic.permute(x, order)
    if not largest:
        # the largest ones of all, from the back: reversed twice, so that equal ones stay in order
        size = x.shape[axis]
        if not isinstance(size, int):
            raise ShapeError(f"topk of the smallest of {show(x)}: axis {axis} has the size {format_dim(size)}",
                             fix="an axis of fixed size")
        if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= size:
            raise AttributeValueError(f"topk: {k!r} of {show(x)}", fix=f"an int from 0 to {size}")
        values, places = _topk(flip(last, -1), k=size)
        bounds: list[tuple[Dim, Dim, int]] = [*((0, s, 1) for s in last.shape[:-1]), (size - 1, size - 1 - k, -1)]
        values, places = (atomic.slice(y, bounds) for y in (values, arithmetic.sub(size - 1, places)))
    else:
        values, places = _topk(last, k=k)
    return atomic.permute(values, back), atomic.permute(places, back)


@library(name="topk", direct=_topk_direct, gradient=_topk_gradient, conditions=_enough, facts=OpFacts(closed=True, sought=False))
def _topk(x: Node, *, k: int) -> tuple[Node, Node]:
    """See `topk`: of the last axis, the largest."""
    need("topk", x, "float", "int", "uint")
    if x.rank == 0:
        raise ShapeError(f"topk of {show(x)}: a scalar has no axis")
    n = x.shape[-1]
    if isinstance(k, bool) or not isinstance(k, int) or k < 0 or dim_ge(n, k) is False:
        raise AttributeValueError(f"topk: {k!r} of {show(x)}", fix=f"an int from 0 to {format_dim(n)}")
    _need_counted("topk", x, x.rank - 1)
    batch = x.shape[:-1]
    rank = len(batch)
    pairs = (*batch, n, n)                                       # [..., i, j]: does j come before i?
    me = broadcast_to(atomic.reshape(x, (*batch, n, 1)), pairs)
    other = broadcast_to(atomic.reshape(x, (*batch, 1, n)), pairs)
    larger, same = atomic.less(me, other), arithmetic.equals(me, other)
    if x.dtype.kind == "float":
        nan_me, nan_other = arithmetic.is_nan(me), arithmetic.is_nan(other)
        larger = atomic.bit_or(larger, atomic.bit_and(nan_other, atomic.logical_not(nan_me)))
        same = atomic.bit_or(same, atomic.bit_and(nan_me, nan_other))
    earlier = atomic.less(atomic.iota(pairs, rank + 1, i32), atomic.iota(pairs, rank, i32))
    before = atomic.bit_or(larger, atomic.bit_and(same, earlier))
    place = atomic.sum(atomic.cast(before, i32), (rank + 1,))     # [..., n]: 0 for the largest
    wanted = (*batch, k, n)
    place = broadcast_to(atomic.reshape(place, (*batch, 1, n)), wanted)
    taken = arithmetic.equals(place, atomic.iota(wanted, rank, i32))
    picked = broadcast_to(atomic.reshape(x, (*batch, 1, n)), wanted)
    values = atomic.sum(atomic.where(taken, picked, fill(0, wanted, x.dtype)), (rank + 1,))
    indices = atomic.sum(atomic.where(taken, atomic.iota(wanted, rank + 1, i32), fill(0, wanted, i32)), (rank + 1,))
    return values, indices


# ---- cumsum, prod ----------------------------------------------------------------------------------------------------


@of_one_output
def _cumsum_gradient(node: Node, g: Node) -> Gradients:
    axis = node.attrs["axis"]
    return {"x": flip(cumsum(flip(g, axis), axis), axis)}


@library(direct=lambda roles, attrs, types: np.cumsum(roles["x"], attrs["axis"], roles["x"].dtype),
         gradient=_cumsum_gradient, facts=OpFacts(running=True, closed=True, sought=False))
def cumsum(x: Node, axis: int = -1) -> Node:
    """out[i] = x[0] + … + x[i] along `axis`; integers wrap. Defined as sums over the triangle j ≤ i.

    x of floats or integers -> its shape and dtype. Raises AttributeValueError (axis), DTypeError.
    """
    need("cumsum", x, "float", "int", "uint")
    axis = one_axis("cumsum", axis, x.rank)
    n = x.shape[axis]
    pairs = (*x.shape[:axis], n, *x.shape[axis:])                 # [..., i, j, ...]
    terms = broadcast_to(atomic.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])), pairs)
    later = atomic.less(atomic.iota(pairs, axis, i32), atomic.iota(pairs, axis + 1, i32))
    return atomic.sum(atomic.where(later, fill(0, pairs, x.dtype), terms), (axis + 1,))


def _prod_direct(roles: Mapping[str, np.ndarray], attrs: Attributes, out_types: Any) -> np.ndarray:
    x, axes = roles["x"], attrs["axes"]
    return np.asarray(np.prod(x, axis=axes, dtype=x.dtype))


@library(name="prod", direct=_prod_direct, facts=OpFacts(closed=True))
def _prod(x: Node, *, axes: tuple[int, ...]) -> Node:
    """See `prod`. The definition is a halving tree: ones are padded up to a power of two, then one half multiplies the other."""
    need("prod", x, "float", "int", "uint")
    for axis in sorted(axes, reverse=True):
        size = x.shape[axis]
        longest = d.bounds(size)[1]
        if longest > _LONGEST_PRODUCT:
            raise ShapeError(f"prod of {show(x)}: axis {axis} may be {longest} long, the most is {_LONGEST_PRODUCT}",
                             fix="a smaller bound of the dim, or two products over a reshaped tensor")
        full = 1 << max(longest - 1, 0).bit_length()
        padding: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
        padding[axis] = (0, full - size)
        x = atomic.pad(x, padding, 1)
        while full > 1:
            full //= 2
            bounds: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in x.shape]
            bounds[axis] = (0, full, 1)
            low = atomic.slice(x, bounds)
            bounds[axis] = (full, 2 * full, 1)
            x = atomic.mul(low, atomic.slice(x, bounds))
        x = atomic.reshape(x, (*x.shape[:axis], *x.shape[axis + 1:]))
    return x


def prod(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """The product over the axes (all by default), in x's dtype; integers wrap.

    x of floats or integers; the axes disappear, or stay with size 1 (keepdims). The product of no numbers is 1. Raises
    AttributeValueError (axis), ShapeError (an axis that may be longer than 2^24), DTypeError.
    """
    axes = several_axes("prod", axis, x.rank)
    return keep(x, _prod(x, axes=axes), axes, keepdims) if axes else x
