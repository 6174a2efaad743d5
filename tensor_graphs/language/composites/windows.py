"""windows: the elements in a window that moves over the last axes of a tensor, and pooling: the maximum or the mean of each window.

`windows` copies each element once for every window that contains it. Convolution (convolution.py) is a matrix product with the
result, pooling a reduction of it. The definition is a pad and one gather for each axis, whose index is stride · position + dilation
· offset. Axes are [lead…, offset in the window…, position of the window…], so that neighbours in memory stay neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill, need, show
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import wide
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim, format_dim, product
from tensor_graphs.language.dtypes import f32, i32
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = [
    "avg_pool", "avg_pool1d", "avg_pool2d", "max_pool", "max_pool1d", "max_pool2d", "max_pool_indices", "windows"
]

Attributes = Mapping[str, Any]
Roles = Mapping[str, np.ndarray]
Gradients = dict[str, Node | None]
PerAxis = int | Sequence[int]
"""One number for all axes, or one for each axis"""
Padding = int | Sequence[int | tuple[int, int]]
"""Padding: one number for all axes, or for each axis one number or a pair (before, behind)"""


class Geometry(NamedTuple):
    """Geometry of windows over some axes: each field has a value per axis, for padding (before, behind)."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    def places(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the number of window positions along each axis of `shape`."""
        return tuple((s + low + high - step * (k - 1) - 1) // by + 1 for s, k, by, (low, high), step
                     in zip(shape, self.size, self.stride, self.padding, self.dilation, strict=True))

    def check(self, op: str, x: Node) -> Geometry:
        """Return the geometry itself. Raises ShapeError where windows are longer than the padded axis at every size."""
        first = x.rank - len(self.size)
        for axis, (k, (low, high), step) in enumerate(zip(self.size, self.padding, self.dilation, strict=True), first):
            length, covers = x.shape[axis] + low + high, step * (k - 1) + 1
            if dim_ge(length, covers) is False:
                raise ShapeError(f"{op} of {show(x)}: a window covers {covers} elements of axis {axis}, which has "
                                 f"{format_dim(length)} with its padding", fix="a smaller window or dilation, or more padding")
        return self

    @property
    def attributes(self) -> dict[str, Any]:
        return self._asdict()


def per_axis(op: str, name: str, value: Any, count: int, least: int) -> tuple[int, ...]:
    """Return an attribute as `count` ints: an int is repeated. Raises AttributeValueError for other values, and below `least`."""
    sizes = (value,) * count if not isinstance(value, (tuple, list)) else tuple(value)
    if len(sizes) != count or not all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) and v >= least for v in sizes):
        raise AttributeValueError(f"{op}: {name} is {value!r}", fix=f"an int ≥ {least}, or {count} of them: one for each axis")
    return tuple(int(v) for v in sizes)


def geometry(op: str, size: Sequence[int], stride: PerAxis, padding: Padding, dilation: PerAxis) -> Geometry:
    """Return a Geometry with values for each axis. Raises AttributeValueError for invalid values."""
    count = len(size)
    pairs = (padding,) * count if not isinstance(padding, (tuple, list)) else tuple(padding)
    if len(pairs) != count:
        raise AttributeValueError(f"{op}: padding is {padding!r}",
                                  fix=f"an int, or for each of {count} axes an int or a pair (before, behind)")
    both = tuple(per_axis(op, "padding", p, 2, 0) for p in pairs)
    return Geometry(per_axis(op, "the size of a window", tuple(size), count, 1), per_axis(op, "stride", stride, count, 1),
                    cast(Any, both), per_axis(op, "dilation", dilation, count, 1))


def padded(x: np.ndarray, padding: Sequence[tuple[int, int]], value: Any) -> np.ndarray:
    """Return x with `value` padded around its last axes; x itself if the padding is 0."""
    if not any(map(any, padding)):
        return x
    before = x.ndim - len(padding)
    out = np.full((*x.shape[:before], *(s + low + high for s, (low, high) in zip(x.shape[before:], padding, strict=True))),
                  value, x.dtype)
    inside: Any = (..., *(slice(low, low + s) for s, (low, _) in zip(x.shape[before:], padding, strict=True)))
    out[inside] = x
    return out


def strided(x: np.ndarray, g: Geometry) -> np.ndarray:
    """Return [lead…, k…, p…] of a padded x as a read-only view; as_strided works on its bits, as it rejects some ml_dtypes."""
    before = x.ndim - len(g.size)
    places = Geometry(g.size, g.stride, ((0, 0),) * len(g.size), g.dilation).places(x.shape[before:])
    steps = x.strides[before:]
    return np.lib.stride_tricks.as_strided(
        x.view(f"u{x.dtype.itemsize}"), (*x.shape[:before], *g.size, *cast(tuple[int, ...], places)),
        (*x.strides[:before], *(s * t for s, t in zip(steps, g.dilation, strict=True)),
         *(s * t for s, t in zip(steps, g.stride, strict=True))), writeable=False).view(x.dtype)


def of_attributes(attrs: Attributes) -> Geometry:
    return Geometry(attrs["size"], attrs["stride"], attrs["padding"], attrs.get("dilation", (1,) * len(attrs["size"])))


# ---- windows ---------------------------------------------------------------------------------------------------------


def _windows_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    g = of_attributes(attrs)
    return np.ascontiguousarray(strided(padded(roles["x"], g.padding, attrs["value"]), g))


def spread(x: Node, axis: int, by: int) -> Node:
    """Return x with by − 1 zeros inserted behind each element along an axis."""
    if by == 1:
        return x
    apart = atomic.reshape(x, (*x.shape[:axis + 1], 1, *x.shape[axis + 1:]))
    zeros: list[tuple[Dim, Dim]] = [(0, 0)] * apart.rank
    zeros[axis + 1] = (0, by - 1)
    return atomic.reshape(atomic.pad(apart, zeros, 0), (*x.shape[:axis], x.shape[axis] * by, *x.shape[axis + 1:]))


@of_one_output
def _windows_gradient(node: Node, g: Node) -> Gradients:
    """Return the gradient: the sum over the windows that contain an element, as one padded copy per offset, axis by axis."""
    x, how, g = node.inputs[0], of_attributes(node.attrs), wide(g) if node.dtype.is_float else g
    count = len(how.size)
    offset = x.rank - count                                         # [lead…, k_i…, done…, p_i…]: one k less each time, and p_i done
    place = offset + count
    for axis, (k, by, (low, _), step) in enumerate(zip(*how, strict=True), offset):
        apart = spread(g, place, by)
        parts = []
        for at in range(k):
            bounds: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in apart.shape]
            bounds[offset] = (at, at + 1, 1)
            one = atomic.slice(apart, bounds)
            zeros: list[tuple[Dim, Dim]] = [(0, 0)] * (one.rank - 1)
            zeros[place - 1] = (at * step, (k - 1 - at) * step)
            parts.append(atomic.pad(atomic.reshape(one, (*one.shape[:offset], *one.shape[offset + 1:])), zeros, 0))
        g = parts[0]
        for part in parts[1:]:
            g = atomic.add(g, part)
        inside: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in g.shape]
        inside[place - 1] = (low, low + x.shape[axis], 1)
        g = atomic.slice(g, inside)
    return {"x": atomic.cast(g, x.dtype)}


@library(name="windows", direct=_windows_direct, gradient=_windows_gradient, facts=OpFacts(closed=True, sought=False))
def _windows(x: Node, *, size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[tuple[int, int], ...],
             dilation: tuple[int, ...], value: float = 0) -> Node:
    """See `windows`."""
    how = Geometry(size, stride, padding, dilation).check("windows", x)
    lead = x.rank - len(size)
    if any(map(any, padding)):
        x = atomic.pad(x, [(0, 0)] * lead + list(padding), value)
    places = Geometry(size, stride, ((0, 0),) * len(size), dilation).places(x.shape[lead:])
    for axis in reversed(range(len(size))):
        pairs = (size[axis], places[axis])
        index = atomic.add(atomic.mul(atomic.iota(pairs, 1, i32), fill(how.stride[axis], pairs, i32)),
                           atomic.mul(atomic.iota(pairs, 0, i32), fill(how.dilation[axis], pairs, i32)))
        x = atomic.gather(x, index, axis=lead + axis)
    count = len(size)
    return atomic.permute(x, (*range(lead), *range(lead, x.rank, 2), *range(lead + 1, x.rank, 2))) if count > 1 else x


def windows(x: Node, size: PerAxis, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
            value: float = 0) -> Node:
    """out[…, k…, p…] = x[…, stride · p + dilation · k − padding] over the last len(size) axes of x: what windows see.

    k counts within a window of this size, p its places: as many as fit into the axis with `padding` elements of `value` at both
    ends. stride, padding, dilation: an int, or one for each axis; for padding also pairs (before, behind). "im2col" is a
    reshape of it. x of any dtype -> its dtype. Raises AttributeValueError, ShapeError (a window longer than the axis).
    """
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not 1 <= len(sizes) <= x.rank:
        raise AttributeValueError(f"windows of {show(x)}: the size is {size!r}", fix=f"1 to {x.rank} ints, for the last axes")
    return _windows(x, **geometry("windows", cast(Any, sizes), stride, padding, dilation).attributes, value=value)


# ---- pooling ---------------------------------------------------------------------------------------------------------


def _pooled(op: str, x: Node, size: Any, axes: int, stride: PerAxis | None, padding: Padding, dilation: PerAxis,
            ceil_mode: bool = False) -> Geometry:
    """Return the geometry of a pooling over the last `axes` axes. Raises AttributeValueError, ShapeError."""
    if x.rank < axes:
        raise ShapeError(f"{op} of {show(x)}: {axes} axes are pooled", fix=f"x[…, {', '.join('hwd'[:axes])}]")
    sizes = per_axis(op, "the size of a window", size, axes, 1)
    how = geometry(op, sizes, sizes if stride is None else stride, padding, dilation).check(op, x)
    if any(max(pair) >= step * (k - 1) + 1 for pair, k, step in zip(how.padding, how.size, how.dilation, strict=True)):
        raise AttributeValueError(f"{op}: padding {how.padding} with windows of {how.size}: some would see nothing but padding",
                                  fix="less padding than a window covers")
    return _rounded_up(op, x, how) if ceil_mode else how


def _rounded_up(op: str, x: Node, how: Geometry) -> Geometry:
    """Return the geometry with more padding behind, so that a last window which reaches beyond the axis counts too.

    As in torch, no window starts behind the last element of x. Raises ShapeError where that depends on a dim.
    """
    pairs = []
    for axis, (k, by, (low, high), step) in enumerate(zip(*how, strict=True), x.rank - len(how.size)):
        size, covers = x.shape[axis], step * (k - 1) + 1
        if isinstance(size, int):
            places = -(-(size + low + high - covers) // by) + 1
            places -= (places - 1) * by >= size + low
            pairs.append((low, max(high, (places - 1) * by + covers - size - low)))
        elif by + high <= covers:                                   # then the last window always starts early enough
            pairs.append((low, high + by - 1))
        else:
            raise ShapeError(f"{op} of {show(x)}: with ceil_mode, the places of windows of {k} by steps of {by} along axis {axis} "
                             f"depend on its size {format_dim(size)}",
                             fix="an axis of fixed size, or a stride that is no longer than a window")
    return how._replace(padding=tuple(pairs))


def lowest(dtype: Any) -> int | float:
    """Return the least value of a dtype: −∞, or the least number where the dtype has no infinity."""
    return -float("inf") if dtype.has_infinity else dtype.min


def _over_window(x: np.ndarray, how: Geometry) -> tuple[int, ...]:
    lead = x.ndim - len(how.size)
    return tuple(range(lead, lead + len(how.size)))


def _max_pool_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x, how = roles["x"], of_attributes(attrs)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    return np.asarray(np.max(strided(padded(x, how.padding, lowest), how), axis=_over_window(x, how)))


@library(name="max_pool", direct=_max_pool_direct, facts=OpFacts(closed=True, sought=False))
def _max_pool(x: Node, *, size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[tuple[int, int], ...],
              dilation: tuple[int, ...]) -> Node:
    """See `max_pool`."""
    need("max_pool", x, "float", "int", "uint")
    lead = x.rank - len(size)
    seen = _windows(x, size=size, stride=stride, padding=padding, dilation=dilation,
                    value=lowest(x.dtype) if any(map(any, padding)) else 0)
    return atomic.reduce_max(seen, tuple(range(lead, lead + len(size))))


def _avg_pool_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x, how = roles["x"], of_attributes(attrs)
    over = _over_window(x, how)
    total = np.sum(strided(padded(x, how.padding, 0), how), axis=over)
    if attrs["count_padding"]:
        return np.asarray(total / np.prod(how.size))
    return np.asarray(total / np.sum(strided(padded(np.ones_like(x), how.padding, 0), how), axis=over))


@library(name="avg_pool", direct=_avg_pool_direct, facts=OpFacts(closed=True, sought=False))
def _avg_pool(x: Node, *, size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[tuple[int, int], ...],
              count_padding: bool) -> Node:
    """See `avg_pool`."""
    need("avg_pool", x, "float")
    lead, elements = x.rank - len(size), int(np.prod(size))
    over = tuple(range(lead, lead + len(size)))
    how = {"size": size, "stride": stride, "padding": padding, "dilation": (1,) * len(size)}
    w = wide(x)
    total = atomic.sum(_windows(w, **how), over)
    if count_padding or not any(map(any, padding)):
        return atomic.cast(arithmetic.mul(total, 1 / elements), x.dtype)
    ones = fill(1, x.shape[lead:], f32)
    inside = atomic.cast(atomic.sum(_windows(ones, **how), tuple(range(len(size)))), w.dtype)
    return atomic.cast(arithmetic.div(total, inside), x.dtype)


def _each(size: PerAxis) -> int:
    return len(size) if isinstance(size, (tuple, list)) else 1


def max_pool(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, dilation: PerAxis = 1,
             ceil_mode: bool = False) -> Node:
    """The largest element of each window over the last len(size) axes; NaN wins; what is padded never does.

    stride (by default the size), padding, dilation: an int, or one for each axis; for padding also pairs (before, behind).
    ceil_mode: also a last window that reaches beyond the padding, if it starts before the end of x (as in torch).
    x of floats or integers -> its dtype. Raises AttributeValueError, ShapeError, DTypeError.
    """
    return _largest("max_pool", x, size, _each(size), stride, padding, dilation, ceil_mode)


def _largest(op: str, x: Node, size: PerAxis, axes: int, stride: PerAxis | None, padding: Padding, dilation: PerAxis,
             ceil_mode: bool) -> Node:
    return _max_pool(x, **_pooled(op, x, size, axes, stride, padding, dilation, ceil_mode).attributes)


def max_pool1d(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, dilation: PerAxis = 1,
               ceil_mode: bool = False) -> Node:
    """x[…, w] -> […, w′]: `max_pool` over one axis.

    x of floats or integers. Raises AttributeValueError, ShapeError, DTypeError.
    """
    return _largest("max_pool1d", x, size, 1, stride, padding, dilation, ceil_mode)


def max_pool2d(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, dilation: PerAxis = 1,
               ceil_mode: bool = False) -> Node:
    """x[…, h, w] -> […, h′, w′]: `max_pool` over two axes; an int counts for both.

    x of floats or integers. Raises AttributeValueError, ShapeError, DTypeError.
    """
    return _largest("max_pool2d", x, size, 2, stride, padding, dilation, ceil_mode)


def max_pool_indices(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, dilation: PerAxis = 1,
                     ceil_mode: bool = False) -> Node:
    """The index (i32) of the element that `max_pool` takes from each window, counted over the last len(size) axes of x together.

    The first of equal ones, in the order of x (NaN equals NaN). x of floats or integers. Raises AttributeValueError, ShapeError,
    DTypeError.
    """
    axes = _each(size)
    how = _pooled("max_pool_indices", x, size, axes, stride, padding, dilation, ceil_mode).attributes
    largest = _max_pool(x, **how)
    lead = x.rank - axes
    inner, over = x.shape[lead:], tuple(range(axes))
    seen = _windows(x, **how, value=0)
    places = atomic.reshape(atomic.iota((product(inner),), 0, i32), inner)
    places = _windows(places, **how, value=-1)                      # −1: a place in the padding
    best = broadcast_to(atomic.reshape(largest, (*x.shape[:lead], *(1,) * axes, *largest.shape[lead:])), seen.shape)
    taken = arithmetic.equals(seen, best)
    if x.dtype.is_float:
        taken = atomic.bit_or(taken, atomic.bit_and(arithmetic.is_nan(seen), arithmetic.is_nan(best)))
    places = broadcast_to(places, seen.shape)
    taken = atomic.bit_and(taken, atomic.less(fill(-1, seen.shape, i32), places))
    most = fill(int(np.iinfo(np.int32).max), seen.shape, i32)
    return arithmetic.reduce_min(atomic.where(taken, places, most), tuple(lead + i for i in over))


def _averaged(op: str, x: Node, size: PerAxis, axes: int, stride: PerAxis | None, padding: Padding, count_padding: bool,
              ceil_mode: bool, dilation: PerAxis = 1) -> Node:
    plain = _pooled(op, x, size, axes, stride, padding, dilation)
    how = _rounded_up(op, x, plain) if ceil_mode else plain
    lead: list[tuple[Dim, Dim]] = [(0, 0)] * (x.rank - axes)
    if any(step != 1 for step in how.dilation):                     # of every other element, …: windows are laid out first
        need(op, x, "float")
        over = tuple(range(x.rank - axes, x.rank))
        total = atomic.sum(_windows(wide(x), **how.attributes), over)
        ones = fill(1, x.shape[x.rank - axes:], total.dtype)
        if count_padding:
            ones, how = atomic.pad(ones, plain.padding, 1), _less_padding(how, plain)
        inside = atomic.sum(_windows(ones, **how.attributes), tuple(range(axes)))
        return atomic.cast(arithmetic.div(total, inside), x.dtype)
    if count_padding and how.padding != plain.padding:              # its zeros count, and what rounding up adds does not
        x = atomic.pad(x, [*lead, *plain.padding], 0)
        how, count_padding = _less_padding(how, plain), False
    return _avg_pool(x, **{k: v for k, v in how.attributes.items() if k != "dilation"}, count_padding=count_padding)


def _less_padding(how: Geometry, less: Geometry) -> Geometry:
    """Return the geometry without the padding that another one has."""
    pairs = zip(how.padding, less.padding, strict=True)
    return how._replace(padding=tuple((low - by_low, high - by_high) for (low, high), (by_low, by_high) in pairs))


def avg_pool(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, count_padding: bool = True,
             ceil_mode: bool = False, dilation: PerAxis = 1) -> Node:
    """The mean of each window over the last len(size) axes, zeros where it is padded.

    count_padding=False: the mean of the elements that are no padding. stride (by default the size), padding, dilation: an int, or
    one for each axis; for padding also pairs (before, behind). ceil_mode: also a last window that reaches beyond the padding, if it
    starts before the end of x; what lies beyond does not count (as in torch). x of a float dtype -> its dtype, summed in f32 at
    least. Raises AttributeValueError, ShapeError, DTypeError.
    """
    return _averaged("avg_pool", x, size, _each(size), stride, padding, count_padding, ceil_mode, dilation)


def avg_pool1d(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, count_padding: bool = True,
               ceil_mode: bool = False) -> Node:
    """x[…, w] -> […, w′]: `avg_pool` over one axis.

    x of floats. Raises AttributeValueError, ShapeError, DTypeError.
    """
    return _averaged("avg_pool1d", x, size, 1, stride, padding, count_padding, ceil_mode)


def avg_pool2d(x: Node, size: PerAxis, *, stride: PerAxis | None = None, padding: Padding = 0, count_padding: bool = True,
               ceil_mode: bool = False) -> Node:
    """x[…, h, w] -> […, h′, w′]: `avg_pool` over two axes; an int counts for both.

    x of floats. Raises AttributeValueError, ShapeError, DTypeError.
    """
    return _averaged("avg_pool2d", x, size, 2, stride, padding, count_padding, ceil_mode)
