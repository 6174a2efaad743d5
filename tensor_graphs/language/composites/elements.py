"""elements: single elements of a tensor read or written by their indices, where `gather` and `scatter` take whole slices.

All of these gather from, or scatter into, the tensor with its indexed axes as one: an element has one place in it. Indices count
from 0, and what is out of range (negative too) reads 0 and is not written, as by `gather` and `scatter`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import dim_fill, fill, need, same_dim, same_dtype, show
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, i32, i64
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node

__all__ = ["gather_nd", "put_along_axis", "scatter_nd", "take_along_axis"]


def _places(indices: Sequence[Node], sizes: Sequence[Dim]) -> Node:
    """Return the place of each element in C order, from its index along each axis of these sizes; −1 where one is out of range."""
    dtype = i32 if d.bounds(d.product(tuple(sizes)))[1] < 1 << 31 else i64
    shape = indices[0].shape
    place, inside = fill(0, shape, dtype), fill(True, shape, bool_)
    for index, size in zip(indices, sizes, strict=True):
        index = atomic.cast(index, i32) if index.dtype.itemsize < 4 else index
        below = arithmetic.less(index, dim_fill(size, shape, index.dtype))
        inside = atomic.bit_and(inside, atomic.bit_and(below, arithmetic.greater_equal(index, 0)))
        place = atomic.add(atomic.mul(place, dim_fill(size, shape, dtype)), atomic.cast(index, dtype))
    return atomic.where(inside, place, fill(-1, shape, dtype))


def _written(op: str, base: Node, places: Node, updates: Node, mode: str) -> Node:
    """Return `base` with updates at places of its first axis. Raises AttributeValueError for a mode of another name."""
    if mode not in ("set", "add", "max", "min"):
        raise AttributeValueError(f"{op}: mode is {mode!r}", fix="'set', 'add', 'max' or 'min'")
    if mode != "min":
        return atomic.scatter(base, places, updates, mode=mode)
    need(f"{op} (min)", base, "float", "int", "uint")
    turn = arithmetic.neg if base.dtype.is_float else atomic.logical_not
    return turn(atomic.scatter(turn(base), places, turn(updates), mode="max"))


def _along(op: str, x: Node, index: Node, axis: int) -> Node:
    """Return the places in x's elements for an index along an axis. Raises ShapeError, DTypeError."""
    need(f"{op} (index)", index, "int", "uint")
    if index.rank != x.rank or any(dim_ge(size, n) is not True for i, (size, n) in enumerate(zip(x.shape, index.shape, strict=True))
                                   if i != axis):
        raise ShapeError(f"{op} of {show(x)} at {show(index)} along axis {axis}",
                         fix="an index of the same rank, no longer along the other axes")
    return _places([index if i == axis else atomic.iota(index.shape, i, i32) for i in range(x.rank)], x.shape)


def take_along_axis(x: Node, index: Node, axis: int = -1) -> Node:
    """out[…, i, …] = x[…, index[…, i, …], …]: single elements along `axis`, an index for each (torch.gather).

    x of any dtype; index of integers and of x's rank, no longer than x along other axes -> the index's shape. An index out of range
    (negative too) reads 0. Raises AttributeValueError (axis), ShapeError, DTypeError.
    """
    axis = one_axis("take_along_axis", axis, x.rank)
    places = _along("take_along_axis", x, index, axis)
    return atomic.gather(atomic.reshape(x, (d.product(x.shape),)), places)


def put_along_axis(base: Node, index: Node, updates: Node, axis: int = -1, *, mode: str = "set") -> Node:
    """`base` with updates[…, i, …] at […, index[…, i, …], …] along `axis` (numpy's; torch.scatter_reduce, ScatterElements).

    mode: "set" (no place twice), "add", "max" or "min" with what is there. index of integers and of base's rank, no longer than
    base along other axes; updates of the index's shape and base's dtype. An index out of range (negative too) is dropped. Raises
    AttributeValueError (axis, mode), ShapeError, DTypeError.
    """
    axis = one_axis("put_along_axis", axis, base.rank)
    same_dtype("put_along_axis", base, updates)
    atomic.same_shape("put_along_axis (index and updates)", index, updates)
    places = _along("put_along_axis", base, index, axis)
    flat = atomic.reshape(base, (d.product(base.shape),))
    return atomic.reshape(_written("put_along_axis", flat, places, updates, mode), base.shape)


def _rows(op: str, x: Node, index: Node) -> tuple[Node, tuple[Dim, ...]]:
    """Return the places of the rows that index[…, r] names by their first r indices, and the shape of a row."""
    need(f"{op} (index)", index, "int", "uint")
    count = index.shape[-1] if index.rank else None
    if not isinstance(count, int) or not 1 <= count <= x.rank:
        raise ShapeError(f"{op} of {show(x)} at {show(index)}",
                         fix=f"index[…, r] with r from 1 to {x.rank}: an index for each of the first r axes")
    lead = index.shape[:-1]
    parts = []
    for i in range(count):
        bounds: list[tuple[Dim, Dim, int]] = [*((0, s, 1) for s in lead), (i, i + 1, 1)]
        parts.append(atomic.reshape(atomic.slice(index, bounds), lead))
    return _places(parts, x.shape[:count]), x.shape[count:]


def gather_nd(x: Node, index: Node) -> Node:
    """out[i…, …] = x[index[i…, 0], …, index[i…, r − 1], …]: x at r indices for its first r axes (x[a, b] of numpy; GatherND).

    x of any dtype; index[i…, r] of integers -> [i…, …]. Out of range (negative too) reads 0. Raises ShapeError, DTypeError.
    """
    places, row = _rows("gather_nd", x, index)
    count = index.shape[-1]
    assert isinstance(count, int)
    return atomic.gather(atomic.reshape(x, (d.product(x.shape[:count]), *row)), places)


def scatter_nd(base: Node, index: Node, updates: Node, *, mode: str = "set") -> Node:
    """`base` with updates[i…, …] at base[index[i…, 0], …, index[i…, r − 1], …] (base[a, b] = … of numpy; ScatterND).

    mode: "set" (no place twice), "add", "max" or "min" with what is there. index[i…, r] of integers; updates of base's dtype. What
    is out of range (negative too) is dropped. Raises AttributeValueError (mode), ShapeError, DTypeError.
    """
    same_dtype("scatter_nd", base, updates)
    places, row = _rows("scatter_nd", base, index)
    wanted = (*places.shape, *row)
    if updates.rank != len(wanted) or not all(map(same_dim, updates.shape, wanted)):
        raise ShapeError(f"scatter_nd into {show(base)} at {show(index)}: the updates are {show(updates)}",
                         fix=f"the shape [{', '.join(map(d.format_dim, wanted))}]")
    count = index.shape[-1]
    assert isinstance(count, int)
    rows = atomic.reshape(base, (d.product(base.shape[:count]), *row))
    return atomic.reshape(_written("scatter_nd", rows, places, updates, mode), base.shape)
