"""rearranging: rolled, tiled and repeated axes, axes padded with their own elements, diagonals. Each is views and few gathers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import dim_fill, same_dim, show
from tensor_graphs.language.axis import one_axis, several_axes
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node

__all__ = ["diagonal", "pad_edges", "repeat_interleave", "roll", "tile", "trace"]


def roll(x: Node, shift: Dim | Sequence[Dim], axis: int | Sequence[int] | None = None) -> Node:
    """x with its elements moved by `shift` places along the axes; what leaves at the end comes back at the start (numpy.roll).

    shift: for all axes, or one for each, in their order. Without axes, x is rolled as if it were one axis. Any dtype. Raises
    AttributeValueError (axis, shift).
    """
    axes = several_axes("roll", axis, x.rank)
    order = axes if axis is None or isinstance(axis, (int, np.integer)) else tuple(one_axis("roll", a, x.rank) for a in axis)
    one_for_all = (cast(Dim, shift),) * (1 if axis is None else len(order))
    shifts: tuple[Dim, ...] = tuple(shift) if isinstance(shift, (tuple, list)) else one_for_all
    if len(shifts) != len(one_for_all) or not all(
            isinstance(s, (int, np.integer, d.Expr)) and not isinstance(s, bool) for s in shifts):
        raise AttributeValueError(f"roll: shift is {shift!r}", fix="an int for all axes, or one for each")
    if axis is None:
        return atomic.reshape(_rolled(atomic.reshape(x, (d.product(x.shape),)), shifts[0], 0), x.shape)
    for by, one in zip(shifts, order, strict=True):
        x = _rolled(x, by, one)
    return x


def _rolled(x: Node, shift: Dim, axis: int) -> Node:
    size = x.shape[axis]
    if isinstance(size, int) and isinstance(shift, (int, np.integer)):
        first = -int(shift) % size if size else 0                   # the element that comes first
        if not first:
            return x
        parts = []
        for start, stop in ((first, size), (0, first)):
            inside: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in x.shape]
            inside[axis] = (start, stop, 1)
            parts.append(atomic.slice(x, inside))
        return concat(*parts, axis=axis)
    places = atomic.iota((size,), 0, i32) - dim_fill(shift, (size,))
    return atomic.gather(x, places % dim_fill(size, (size,)), axis)


def _a_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0


def tile(x: Node, repeats: int | Sequence[int]) -> Node:
    """x written `repeats` times one after the other along each of its last axes: numpy.tile, torch's x.repeat.

    More numbers than x has axes make new ones in front. Any dtype. Raises AttributeValueError (repeats).
    """
    counts: tuple[int, ...] = tuple(repeats) if isinstance(repeats, (tuple, list)) else (cast(int, repeats),)
    if not all(map(_a_count, counts)):
        raise AttributeValueError(f"tile of {show(x)}: repeats is {repeats!r}", fix="ints ≥ 0, for the last axes")
    counts = (1,) * (x.rank - len(counts)) + counts
    shape = (1,) * (len(counts) - x.rank) + x.shape
    apart = atomic.reshape(x, tuple(s for size in shape for s in (1, size)))
    wide = atomic.expand(apart, tuple(s for pair in zip(counts, shape, strict=True) for s in pair))
    return atomic.reshape(wide, tuple(n * s for n, s in zip(counts, shape, strict=True)))


def repeat_interleave(x: Node, repeats: int, axis: int) -> Node:
    """x with each element written `repeats` times in a row along `axis`: numpy.repeat, torch.repeat_interleave.

    Any dtype. Raises AttributeValueError (axis, repeats).
    """
    axis = one_axis("repeat_interleave", axis, x.rank)
    if not _a_count(repeats):
        raise AttributeValueError(f"repeat_interleave: repeats is {repeats!r}", fix="an int ≥ 0")
    before, behind = x.shape[:axis + 1], x.shape[axis + 1:]
    apart = atomic.expand(atomic.reshape(x, (*before, 1, *behind)), (*before, repeats, *behind))
    return atomic.reshape(apart, (*before[:-1], before[-1] * repeats, *behind))


def _there_and_back(place: Node, length: Dim, twice: int) -> Node:
    """Return places that go up to `length` and back to 0; twice: 1 if both ends count twice, so that they go up to length − 1."""
    period = dim_fill(d.dim_max(2 * length, 1), place.shape)
    at = place % period
    return arithmetic.minimum(at, period - at - twice)


EDGES: dict[str, Callable[[Node, Dim], Node]] = {
    "edge": lambda place, size: arithmetic.minimum(arithmetic.maximum(place, 0), dim_fill(size - 1, place.shape)),
    "wrap": lambda place, size: place % dim_fill(size, place.shape),
    "reflect": lambda place, size: _there_and_back(place, size - 1, 0),
    "symmetric": lambda place, size: _there_and_back(place, size, 1),
}
"""mode -> the element of an axis of this size that stands at a place, which may be beyond it"""


def pad_edges(x: Node, padding: Sequence[tuple[Dim, Dim]], *, mode: str = "edge") -> Node:
    """x with (before, behind) more of its own elements along each of its last axes: numpy.pad with this mode.

    "edge": the element at the end again (torch's replicate); "wrap": those of the other end (circular); "reflect": mirrored at the
    element of the end; "symmetric": mirrored at an edge. Any amount ≥ 0, of a dim too. Any dtype. Raises AttributeValueError (mode,
    padding), ShapeError (an axis of no elements).
    """
    if mode not in EDGES:
        raise AttributeValueError(f"pad_edges: mode is {mode!r}", fix=" or ".join(map(repr, EDGES)))
    pairs = [tuple(pair) if isinstance(pair, (tuple, list)) else () for pair in padding]
    if len(pairs) > x.rank or not all(len(pair) == 2 and all(_an_amount(n) for n in pair) for pair in pairs):
        raise AttributeValueError(f"pad_edges of {show(x)}: padding is {padding!r}",
                                  fix=f"a pair (before, behind) of ints ≥ 0 for each of up to {x.rank} last axes")
    for axis, (before, behind) in enumerate(pairs, x.rank - len(pairs)):
        size = x.shape[axis]
        if same_dim(before, 0) and same_dim(behind, 0):
            continue
        if dim_ge(size, 1) is not True:
            raise ShapeError(f"pad_edges of {show(x)}: axis {axis} has {format_dim(size)} elements",
                             fix="at least one, at every size in the range of a dim")
        count = before + size + behind
        place = atomic.iota((count,), 0, i32) - dim_fill(before, (count,))
        x = atomic.gather(x, EDGES[mode](place, size), axis)
    return x


def _an_amount(value: object) -> bool:
    return _a_count(value) or (isinstance(value, d.Expr) and dim_ge(value, 0) is True)


def diagonal(x: Node, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """The elements of x at (i, i + offset) of two axes, which disappear, along a new last axis (numpy.diagonal).

    Any dtype. Raises AttributeValueError (axes, offset), ShapeError (an offset beyond the axes).
    """
    one, other = (one_axis("diagonal", a, x.rank, what) for a, what in ((axis1, "axis1"), (axis2, "axis2")))
    if one == other or isinstance(offset, bool) or not isinstance(offset, (int, np.integer)):
        raise AttributeValueError(f"diagonal of {show(x)}: axis1 is {axis1}, axis2 is {axis2}, offset is {offset!r}",
                                  fix="two axes, and an int")
    rows, columns = x.shape[one], x.shape[other]
    first_row, first_column = max(-int(offset), 0), max(int(offset), 0)
    count = d.dim_min(rows - first_row, columns - first_column)
    if dim_ge(count, 0) is not True:
        raise ShapeError(f"diagonal of {show(x)}: there is none at the offset {offset}",
                         fix="an offset within the axes, at all sizes")
    lead = [i for i in range(x.rank) if i not in (one, other)]
    flat = atomic.reshape(atomic.permute(x, (*lead, one, other)), (*(x.shape[i] for i in lead), rows * columns))
    step, start = dim_fill(columns + 1, (count,)), dim_fill(first_row * columns + first_column, (count,))
    return atomic.gather(flat, atomic.iota((count,), 0, i32) * step + start, len(lead))


def trace(x: Node, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Node:
    """The sum of a `diagonal`, in x's dtype (numpy.trace); integers wrap.

    x of floats or integers. Raises AttributeValueError (axes, offset), ShapeError (an offset beyond the axes), DTypeError.
    """
    parts = diagonal(x, offset, axis1, axis2)
    return atomic.sum(parts, (parts.rank - 1,))
