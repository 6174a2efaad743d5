"""resizing: the last axes of a tensor resampled to other sizes: nearest, linear and cubic, with several ways to place elements.

Along each axis, element d of the result lies at the coordinate (a · d + b) / c of x, of whole numbers, and is a weighted sum of the
elements near it. Indices come from integer divisions, so that none depends on a rounding, and weights from their remainders.
Where axes are lengthened by whole factors, `resize` makes an `upsample` (upsampling.py).
Sources: cubic weights, Keys 1981; the names of coordinates and roundings are those of ONNX's Resize.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import cast

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import dim_fill, fill, need, same_dim, show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import polynomial, wide
from tensor_graphs.language.composites.upsampling import upsample
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import i32, i64
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = ["resize"]

Line = tuple[Dim, Dim, Dim]
"""(a, b, c): element d of the result lies at (a · d + b) / c, where element i of x is at i"""


def _half_pixel(old: Dim, new: Dim, p: Dim, q: Dim) -> Line:
    return 2 * q, q - p, 2 * p


COORDINATES: dict[str, Callable[[Dim, Dim, Dim, Dim], Line]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": lambda old, new, p, q: (2 * q, old * p - new * q + q - p, 2 * p),
    "pytorch_half_pixel": lambda old, new, p, q: (0, 0, 1) if new == 1 else _half_pixel(old, new, p, q),
    "align_corners": lambda old, new, p, q: (old - 1, 0, d.dim_max(new - 1, 1)),
    "asymmetric": lambda old, new, p, q: (q, 0, p),
}
"""name -> the line of coordinates, from the sizes of x and of the result, and the scale p / q"""

ROUNDINGS: dict[str, Callable[[Node, Node], Node]] = {
    "floor": lambda n, c: n // c, "ceil": lambda n, c: -(-n // c),
    "round_prefer_floor": lambda n, c: -((c - n * 2) // (c * 2)), "round_prefer_ceil": lambda n, c: (n * 2 + c) // (c * 2),
}
"""name -> the element of x that mode "nearest" takes at n / c"""

FINEST = 1_000_000
"""the largest denominator of a scale: one that is no such fraction is replaced by the nearest"""


def _triangle(t: Node, cubic: float) -> Node:
    return arithmetic.maximum(1.0 - t, 0.0)


def _keys(t: Node, cubic: float) -> Node:
    """Return Keys' cubic convolution kernel with the coefficient `cubic` at the distance t ≥ 0; it is 0 from 2 on."""
    near = polynomial(t, (1.0, 0.0, -(cubic + 3), cubic + 2))
    far = polynomial(arithmetic.minimum(t, 2.0), (-4 * cubic, 8 * cubic, -5 * cubic, cubic))
    return arithmetic.where(t < 1.0, near, far)


KERNELS: dict[str, tuple[int, Callable[[Node, float], Node]]] = {"linear": (1, _triangle), "cubic": (2, _keys)}
"""mode -> (the distance from which on its kernel is 0, the kernel)"""
MODES = ("nearest", *KERNELS)


def _numerators(line: Line, count: Dim) -> tuple[Node, Node]:
    """Return a · d + b for d = 0 … count − 1, and c, both of this shape, as i32 where that holds them."""
    a, b, c = line
    if isinstance(a, int) and isinstance(b, int) and isinstance(c, int):
        common = math.gcd(a, b, c)
        a, b, c = a // common, b // common, c // common
    ends = [d.bounds(a)[1] * d.bounds(count)[1], *map(abs, d.bounds(b)), d.bounds(c)[1]]
    dtype = i32 if 4 * sum(ends) < 1 << 31 else i64
    places = atomic.iota((count,), 0, dtype) * dim_fill(a, (count,), dtype) + dim_fill(b, (count,), dtype)
    return places, dim_fill(c, (count,), dtype)


def _weighted(x: Node, axis: int, count: Dim, line: Line, mode: str, cubic: float, shrink: Fraction, only_inside: bool) -> Node:
    """Return x resampled along an axis to `count` weighted sums. shrink: factor ≥ 1 by which the kernel is longer."""
    reach, kernel = KERNELS[mode]
    span, size = reach * shrink, x.shape[axis]
    taps = math.ceil(2 * span)
    (a, b, c), by = line, span.denominator
    places, divisor = _numerators((a * by, b * by - span.numerator * c, c * by), count)     # where the kernel begins
    grid = (count, taps)
    before = places // divisor
    rest = atomic.cast(places - before * divisor, x.dtype) * atomic.reciprocal(atomic.cast(divisor, x.dtype))
    tap = atomic.iota(grid, 1, before.dtype)
    index = arithmetic.add(atomic.reshape(before + 1, (count, 1)), tap)
    distance = atomic.cast(tap, x.dtype) - broadcast_to(atomic.reshape(rest, (count, 1)), grid) + (1.0 - float(span))
    weights = kernel(arithmetic.abs(distance * float(1 / shrink)), cubic)
    last = dim_fill(size - 1, grid, index.dtype)
    if only_inside:
        inside = atomic.bit_and(index >= 0, index <= last)
        weights = atomic.where(inside, weights, fill(0, grid, x.dtype))
    if only_inside or shrink != 1:
        weights = weights / arithmetic.sum(weights, 1, keepdims=True)
    seen = atomic.gather(x, arithmetic.minimum(arithmetic.maximum(index, 0), last), axis)
    share = broadcast_to(atomic.reshape(weights, (*grid, *(1,) * (x.rank - 1 - axis))), seen.shape)
    return atomic.sum(atomic.mul(seen, share), (axis + 1,))


@library(name="resize", facts=OpFacts(closed=True, sought=False))
def _resize(x: Node, *, size: tuple[Dim, ...], scale: tuple[float, ...], mode: str, coordinates: str, rounding: str,
            antialias: bool, cubic: float, exclude_outside: bool) -> Node:
    """See `resize`: in this op, there is a size for each resized axis; scale: its factors, or () for the ratios of sizes."""
    words = (("mode", mode, MODES), ("coordinates", coordinates, COORDINATES), ("rounding", rounding, ROUNDINGS))
    for name, value, choices in words:
        if value not in choices:
            raise AttributeValueError(f"resize: {name} is {value!r}", fix=f"one of {', '.join(map(repr, choices))}")
    if mode != "nearest":
        need(f"resize ({mode})", x, "float")
    elif antialias:
        raise AttributeValueError("resize: antialias with mode 'nearest'", fix="mode 'linear' or 'cubic'")
    out = x if mode == "nearest" else wide(x)
    for number, axis in enumerate(range(x.rank - len(size), x.rank)):
        old, new = x.shape[axis], size[number]
        if dim_ge(old, 1) is not True or dim_ge(new, 1) is not True:
            raise ShapeError(f"resize of {show(x)}: axis {axis} from {format_dim(old)} to {format_dim(new)} elements",
                             fix="at least one element in each, at every size in the range of a dim")
        p, q = _ratio(scale[number]) if scale else (new, old)
        line = COORDINATES[coordinates](old, new, p, q)
        if line[0] == line[2] and line[1] == 0 and same_dim(old, new):
            continue                                                # every element stays where it is
        if mode == "nearest":
            places, divisor = _numerators(line, new)
            index = ROUNDINGS[rounding](places, divisor)
            out = atomic.gather(out, arithmetic.minimum(arithmetic.maximum(index, 0), dim_fill(old - 1, (new,), index.dtype)), axis)
            continue
        if antialias and not (isinstance(p, int) and isinstance(q, int)):
            raise ShapeError(f"resize of {show(x)} with antialias: axis {axis} from {format_dim(old)} to {format_dim(new)} "
                             "elements", fix="fixed sizes, or scale= instead of size=")
        shrink = max(Fraction(cast(int, q), cast(int, p)), Fraction(1)) if antialias else Fraction(1)
        out = _weighted(out, axis, new, line, mode, cubic, shrink, exclude_outside)
    return atomic.cast(out, x.dtype)


def resize(x: Node, size: Dim | Sequence[Dim] = (), *, scale: float | Sequence[float] = (), mode: str = "nearest",
           coordinates: str | None = None, rounding: str = "floor", antialias: bool = False, cubic: float = -0.75,
           exclude_outside: bool = False) -> Node:
    """x resampled to `size`, or by the factors `scale` to ⌊s · scale⌋ elements, along its last axes: one for each number.

    mode "nearest" takes one element, of any dtype. "linear" and "cubic" (Keys' kernel with the coefficient `cubic`) are sums of 2
    and 4 weighted elements along each axis, those of the end beyond it (exclude_outside: none, and the others weigh more); floats,
    computed in f32 at least. antialias: where an axis becomes shorter, the kernel becomes longer by that factor.

    coordinates: where element d of the result lies in x.

    - "half_pixel": (d + ½) / scale − ½, the default unless nearest; "pytorch_half_pixel": the same, 0 for a single element;
      "half_pixel_symmetric": the same, around the middle of x where scale · s is no whole number
    - "asymmetric": d / scale, the default of nearest
    - "align_corners": d · (s − 1) / (size − 1), 0 for a single element

    rounding, of nearest: "floor", "ceil", or to the nearest whole number, of ½ down or up: "round_prefer_floor",
    "round_prefer_ceil".

    torch's interpolate "nearest" is the default, "nearest-exact" half_pixel with round_prefer_ceil; "bilinear" and "bicubic" are
    "linear" and "cubic", with align_corners or half_pixel; antialias=True there is exclude_outside=True too, with cubic=-0.5.
    A scale counts as the nearest fraction with a denominator of up to a million. Sizes may be dims; with antialias only if a scale
    is passed. Raises AttributeValueError, ShapeError, DTypeError.
    """
    by_scale = not _absent(scale)
    if by_scale != _absent(size):
        raise AttributeValueError(f"resize of {show(x)}: size is {size!r} and scale is {scale!r}", fix="one of them")
    values = scale if by_scale else size
    numbers = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not 1 <= len(numbers) <= x.rank or not all(
            _positive(v) and (by_scale or isinstance(v, (int, np.integer, d.Expr))) for v in numbers):
        what, kind = ("scale", "a number") if by_scale else ("size", "an int or a dim")
        raise AttributeValueError(f"resize of {show(x)}: {what} is {values!r}",
                                  fix=f"{kind} above 0 for the last axis, or up to {x.rank} of them for the last ones")
    if coordinates is None:
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
    old = x.shape[x.rank - len(numbers):]
    sizes = tuple(_scaled(s, v) for s, v in zip(old, numbers, strict=True)) if by_scale else numbers
    factors = _whole_factors(old, sizes, numbers if by_scale else None)
    if factors and mode in MODES and _repeats(mode, coordinates, rounding) and not antialias and not exclude_outside:
        return upsample(x, factors, mode=mode) if any(by != 1 for by in factors) else x
    return _resize(
        x, size=sizes, scale=tuple(map(float, numbers)) if by_scale else (), mode=mode, coordinates=coordinates,
        rounding=rounding, antialias=antialias, cubic=float(cubic), exclude_outside=exclude_outside)


def _absent(value: object) -> bool:
    return isinstance(value, (tuple, list)) and not value


def _positive(value: object) -> bool:
    if isinstance(value, d.Expr):
        return True                                                 # the op requires that it is at least 1
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return number and 0 < float(cast(float, value)) < math.inf


def _ratio(scale: float) -> tuple[int, int]:
    return Fraction(float(scale)).limit_denominator(FINEST).as_integer_ratio()


def _scaled(size: Dim, scale: float) -> Dim:
    p, q = _ratio(scale)
    return size * p // q


def _whole_factors(old: Sequence[Dim], sizes: Sequence[Dim], scale: Sequence[float] | None) -> tuple[int, ...]:
    """Return the factors by which axes become longer, or () unless all of them are whole."""
    if scale is not None:
        return tuple(map(int, scale)) if all(float(by).is_integer() for by in scale) else ()
    pairs = list(zip(old, sizes, strict=True))
    if not all(isinstance(s, int) and s and isinstance(new, int) and new % s == 0 for s, new in pairs):
        return ()
    return tuple(cast(int, new) // cast(int, s) for s, new in pairs)


def _repeats(mode: str, coordinates: str, rounding: str) -> bool:
    """Return True if `upsample` by whole factors computes the same."""
    centred = coordinates in ("half_pixel", "half_pixel_symmetric")
    if mode == "nearest":
        return (coordinates, rounding) == ("asymmetric", "floor") or (centred and rounding.startswith("round_"))
    return mode == "linear" and centred
