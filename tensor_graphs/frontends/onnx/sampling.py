"""sampling: rows that read between the elements of a tensor: Resize, Upsample, GridSample."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.call import OnnxNode, row
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, i64
from tensor_graphs.language.node import Node


def _resize(n: OnnxNode, axes: list[int], scales: list[float], sizes: list[Dim]) -> Node:
    """Return operand 0 with these axes resized: by scales, or to sizes."""
    x, mode, policy = n.x(), n.get("mode", "nearest"), n.get("keep_aspect_ratio_policy", "stretch")
    mode, where = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode), n.get("coordinate_transformation_mode", "half_pixel")
    n.ignore("extrapolation_value", 1)                   # read of tf_crop_and_resize only
    parts = any(s % 1 and _scaled(n.static_size(x.shape[axis]), s) % 1 for axis, s in zip(axes, scales, strict=False))
    if where == "tf_crop_and_resize" or (where == "align_corners" and parts):
        return _resize_at(n, x, axes, scales, sizes, mode)
    if sizes and policy != "stretch":
        factors = [Fraction(n.static_size(size), n.static_size(x.shape[axis])) for size, axis in zip(sizes, axes, strict=True)]
        one = (min if policy == "not_larger" else max)(factors)
        if any((one * x.shape[axis]) % 1 >= Fraction(1, 2) for axis in axes):
            n.refuse(f"Resize by {one} ({policy}) to sizes that are rounded up", "the sizes themselves")
        scales = [float(one)] * len(axes)
    first = min(axes, default=x.rank)
    by, to = dict(zip(axes, scales or sizes, strict=True)), x.shape
    numbers: Any = tuple(by.get(i, 1.0 if scales else to[i]) for i in range(first, x.rank))
    while numbers and (numbers[0] == (1.0 if scales else to[x.rank - len(numbers)])):
        numbers = numbers[1:]                            # leading axes that stay
    wide = x if mode == "nearest" or x.dtype.is_float else x.cast(f32)
    out = wide if not numbers else c.resize(
        wide, **{"scale" if scales else "size": numbers}, mode=mode, rounding=n.get("nearest_mode", "round_prefer_floor"),
        coordinates=where, antialias=bool(n.get("antialias", 0)),
        cubic=n.get("cubic_coeff_a", -0.75), exclude_outside=bool(n.get("exclude_outside", 0)))
    return out if wide is x else c.clip(c.round(out), float(x.dtype.min), float(x.dtype.max)).cast(x.dtype)


def _scaled(size: int, scale: float) -> float:
    """Return size · scale in f32, in which 5 · 2.6 is 13."""
    return float(np.float32(size) * np.float32(scale))


def _resize_at(n: OnnxNode, x: Node, axes: list[int], scales: list[float], sizes: list[Dim], mode: str) -> Node:
    """Return x with axes resized at coordinates that c.resize does not have: of a region, or up to a fraction of an element."""
    region, beyond = n.get("coordinate_transformation_mode") == "tf_crop_and_resize", n.get("extrapolation_value", 0.0)
    if mode == "nearest" or n.get("cubic_coeff_a", -0.75) != -0.75 or n.get("antialias") or n.get("exclude_outside") or not (
            x.dtype.is_float):
        n.refuse("Resize at the coordinates of tf_crop_and_resize, or align_corners by scales, other than plainly linear or cubic")
    roi = [float(v) for v in n.known(1).ravel()] if region else []
    for k, axis in enumerate(axes):
        if not region and scales[k] == 1:
            continue
        size, (low, high) = n.static_size(x.shape[axis]), (roi[k], roi[len(axes) + k]) if region else (0.0, 1.0)
        count = n.static_size(sizes[k]) if sizes else math.floor(_scaled(size, scales[k] * (high - low)))
        last = count - 1 if region else size * scales[k] - 1
        place = (low * (size - 1) if last > 0 or not region else (low + high) / 2 * (size - 1)) + np.arange(count) * (
            (high - low) * (size - 1) / last if last > 0 else 0.0)
        line = tuple(-1 if i == axis else 1 for i in range(x.rank))
        parts = [atomic.gather(x, c.clip(i, 0.0, size - 1.0).cast(i64), axis) * w.reshape(line)
                 for i, w in _tap_weights(mode, leaves.constant(place, x.dtype))]
        x = functools.reduce(c.add, parts)
        if region:
            x = c.where(leaves.constant((place < 0) | (place > size - 1)).reshape(line), beyond, x)
    return x


@row("Resize", since=11)
def _resize_11(n: OnnxNode) -> Node:
    scales = [float(v) for v in n.known(2).ravel()] if n.has(2) else []
    return _resize(n, n.places(n.get("axes") or range(n.x().rank), n.x().rank), scales, n.dims(3) if n.has(3) else [])


@row("Resize", "Upsample", since=9)
def _resize_10(n: OnnxNode) -> Node:
    n.attributes = {**n.attributes, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(n, list(range(n.x().rank)), [float(v) for v in n.known(1)], [])


# ---- grids -----------------------------------------------------------------------------------------------------------


def _reflected(x: Node, low: float, high: float) -> Node:
    span = high - low
    if span <= 0:
        return 0.0 * x
    away = c.abs(x - low)
    extra, turns = c.mod(away, span), atomic.floor(away / span)
    return c.where(c.equals(c.mod(turns, 2.0), 0), extra + low, high - extra)


def _cubic(x: Any, a: float) -> Any:
    """Return the cubic convolution kernel (Keys 1981) with parameter a at distances x ≥ 0: up to 1, and up to 2."""
    return ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _tap_weights(mode: str, place: Node) -> list[tuple[Node, Node]]:
    """Return (index, weight) of the elements of an axis that an interpolation reads for each place."""
    if mode == "nearest":
        return [(c.round(place), c.ones(place.shape, place.dtype))]
    base = atomic.floor(place)
    t = place - base
    if mode == "linear":
        return [(base, 1 - t), (base + 1, t)]
    out = []
    for k in range(-1, 3):
        near, far = _cubic(c.abs(t - float(k)), -0.75)
        out.append((base + float(k), near if k in (0, 1) else far))
    return out


def _within(outside: str, place: Node, size: int, corners: bool) -> Node:
    """Return coordinates moved into the axis: to its border, or reflected there; "zeros" leaves them."""
    if outside == "zeros":
        return place
    if outside == "reflection":
        place = _reflected(place, *((0.0, size - 1.0) if corners else (-0.5, size - 0.5)))
    return c.clip(place, 0.0, size - 1.0)


@row("GridSample", since=16)
def _grid_sample(n: OnnxNode) -> Node:
    x, grid, corners = n.x(), n.x(1), bool(n.get("align_corners", 0))
    mode, outside = n.get("mode", "linear"), n.get("padding_mode", "zeros")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    rank, sizes, spots = x.rank - 2, [n.static_size(s) for s in x.shape[2:]], grid.shape[:-1]
    per_axis = []
    for axis, size in enumerate(sizes):
        place = grid[(..., rank - 1 - axis)] + 1
        place = place * ((size - 1) / 2) if corners else (place * float(size) - 1) / 2
        if mode == "cubic":
            per_axis.append([(_within(outside, i, size, corners), w) for i, w in _tap_weights(mode, place)])
        else:
            per_axis.append(_tap_weights(mode, _within(outside, place, size, corners)))
    rows, total = x.permute(0, *range(2, x.rank), 1), None
    for taps in itertools.product(*per_axis):            # what is out of range reads 0
        index = c.stack(atomic.iota(spots, 0, i64), *(i.cast(i64) for i, _ in taps), axis=-1)
        weight = functools.reduce(c.mul, [w for _, w in taps])
        part = c.gather_nd(rows, index) * weight.reshape(*spots, 1).cast(x.dtype)
        total = part if total is None else total + part
    assert total is not None
    return total.permute(0, rank + 1, *range(1, rank + 1))
