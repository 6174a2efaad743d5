"""sampling: rows that read between the elements of a tensor: Resize, Upsample, GridSample, RoiAlign."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.call import OnnxNode, along, row
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

MOST_SAMPLES = 1 << 22
"""samples of a region"""

MODES = {"bilinear": "linear", "bicubic": "cubic"}

Taps = list[tuple[Node, Node]]
"""(index, weight) of the elements of an axis that are read for each place"""


def _resize(n: OnnxNode, axes: list[int], scales: list[float], sizes: list[Dim]) -> Node:
    """Return operand 0 with these axes resized: by scales, or to sizes."""
    x, mode, policy = n.x(), n.get("mode", "nearest"), n.get("keep_aspect_ratio_policy", "stretch")
    mode, where = MODES.get(mode, mode), n.get("coordinate_transformation_mode", "half_pixel")
    parts = any(s % 1 and _scaled(n.static_size(x.shape[axis]), s) % 1 for axis, s in zip(axes, scales, strict=False))
    if where == "tf_crop_and_resize" or (where == "align_corners" and parts):
        return _resize_at(n, x, axes, scales, sizes, mode)
    if sizes and policy != "stretch":
        factors = [Fraction(n.static_size(size), n.static_size(x.shape[axis])) for size, axis in zip(sizes, axes, strict=True)]
        one = (min if policy == "not_larger" else max)(factors)
        if any((one * x.shape[axis]) % 1 >= Fraction(1, 2) for axis in axes):
            n.refuse(f"Resize by {one} ({policy}) to sizes that are rounded up", "the sizes themselves")
        scales = [float(one)] * len(axes)
    by = dict(zip(axes, scales or sizes, strict=True))
    numbers: Any = [by.get(i, 1.0 if scales else size) for i, size in enumerate(x.shape)]
    while numbers and numbers[0] == (1.0 if scales else x.shape[-len(numbers)]):
        numbers = numbers[1:]                            # leading axes that stay
    wide = x if mode == "nearest" or x.dtype.is_float else x.cast(f32)
    out = wide if not numbers else c.resize(
        wide, **{"scale" if scales else "size": tuple(numbers)}, mode=mode, rounding=n.get("nearest_mode", "round_prefer_floor"),
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
        parts = [atomic.gather(x, c.clip(i, 0.0, size - 1.0).cast(i64), axis) * along(w, axis, x.rank)
                 for i, w in _taps(mode, leaves.constant(place, x.dtype))]
        x = functools.reduce(c.add, parts)
        if region:
            x = c.where(along(leaves.constant((place < 0) | (place > size - 1)), axis, x.rank), beyond, x)
    return x


@row("Resize", since=11, ignored=("extrapolation_value", 1))        # read of tf_crop_and_resize only
def _resize_11(n: OnnxNode) -> Node:
    scales = [float(v) for v in n.known(2).ravel()] if n.has(2) else []
    return _resize(n, n.places(n.get("axes") or range(n.x().rank), n.x().rank), scales, n.dims(3) if n.has(3) else [])


@row("Resize", "Upsample", since=9)
def _resize_10(n: OnnxNode) -> Node:
    n.attributes = {**n.attributes, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(n, list(range(n.x().rank)), [float(v) for v in n.known(1)], [])


# ---- grids and regions -----------------------------------------------------------------------------------------------


def _taps(mode: str, place: Node) -> Taps:
    """Return the taps of an interpolation: the nearest element, two, or four by the kernel of Keys (1981) with a = −0.75."""
    if mode == "nearest":
        return [(c.round(place), c.ones(place.shape, place.dtype))]
    base, a = atomic.floor(place), -0.75
    t = place - base
    if mode == "linear":
        return [(base, 1 - t), (base + 1, t)]
    out = []
    for k in range(-1, 3):
        x = c.abs(t - float(k))
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        out.append((base + float(k), near if k in (0, 1) else far))
    return out


def _samples(x: Node, image: Node, taps: Sequence[Taps]) -> list[Node]:
    """Return one tensor [*image's shape, channels] for each combination of taps of x's axes, times their weights. image: the places
    on x's first axis. What is out of range reads 0."""
    rows, out = x.permute(0, *range(2, x.rank), 1), []
    for chosen in itertools.product(*taps):
        index = c.stack(image, *(broadcast_to(i.cast(i64), image.shape) for i, _ in chosen), axis=-1)
        weight = functools.reduce(c.mul, [w for _, w in chosen])
        out.append(c.gather_nd(rows, index) * weight.reshape(*image.shape, 1).cast(x.dtype))
    return out


def _within(outside: str, place: Node, size: int, corners: bool) -> Node:
    """Return coordinates moved into the axis: to its border, or reflected there; "zeros" leaves them."""
    low, span = (0.0, size - 1.0) if corners else (-0.5, float(size))
    if outside == "reflection" and span > 0:
        away = c.abs(place - low)
        extra, turns = c.mod(away, span), atomic.floor(away / span)
        place = c.where(c.equals(c.mod(turns, 2.0), 0), extra + low, low + span - extra)
    return place if outside == "zeros" else c.clip(place, 0.0, size - 1.0)


@row("GridSample", since=16)
def _grid_sample(n: OnnxNode) -> Node:
    x, grid, corners = n.x(), n.x(1), bool(n.get("align_corners", 0))
    mode, outside, rank, taps = n.get("mode", "linear"), n.get("padding_mode", "zeros"), n.x().rank - 2, []
    mode = MODES.get(mode, mode)
    for axis, size in enumerate(n.static_size(s) for s in x.shape[2:]):
        place = grid[(..., rank - 1 - axis)] + 1
        place = place * ((size - 1) / 2) if corners else (place * float(size) - 1) / 2
        taps.append([(_within(outside, i, size, corners), w) for i, w in _taps(mode, place)] if mode == "cubic" else
                    _taps(mode, _within(outside, place, size, corners)))
    total = functools.reduce(c.add, _samples(x, atomic.iota(grid.shape[:-1], 0, i64), taps))
    return total.permute(0, rank + 1, *range(1, rank + 1))


@row("RoiAlign", since=10)
def _roi_align(n: OnnxNode) -> Node:
    """Return means, or maxima, of samples between four elements each, on a fixed grid in every bin of every region."""
    x, rois, batch = n.x(), n.x(1), n.indices(n.x(2), n.x().shape[0], back=False).cast(i64)
    height, width, ratio = n.get("output_height", 1), n.get("output_width", 1), n.get("sampling_ratio", 0)
    newer, mode = n.opset >= 16, n.get("mode", "avg")
    half = n.get("coordinate_transformation_mode", "half_pixel" if newer else "output_half_pixel") == "half_pixel"
    if mode == "max" and not newer:
        n.refuse("RoiAlign of maxima before opset 16, of which implementations differ")
    if not 0 < ratio * height * width <= MOST_SAMPLES:
        n.refuse("RoiAlign with sampling_ratio=0, a grid that depends on the regions", "a fixed sampling_ratio")
    corners, taps = rois * n.get("spatial_scale", 1.0) - (0.5 if half else 0.0), []
    for axis, count, size in ((1, height, x.shape[2]), (0, width, x.shape[3])):
        low, extent = corners[:, axis:axis + 1], corners[:, axis + 2:axis + 3] - corners[:, axis:axis + 1]
        steps = (np.arange(count * ratio) + 0.5) / (count * ratio)
        place = low + (extent if half else c.maximum(extent, 1.0)) * leaves.constant(steps, x.dtype)
        place = place.reshape((-1, count * ratio, 1) if axis else (-1, 1, count * ratio))
        last = n.static_size(size) - 1.0
        inside, place = (place >= -1.0) & (place <= last + 1), c.clip(place, 0.0, last)
        base = c.minimum(atomic.floor(place), max(last - 1, 0.0))
        taps.append([(i, c.where(inside, w, 0.0)) for i, w in (
            (base, 1 - (place - base)), (c.minimum(base + 1, last), place - base))])
    image = atomic.expand(batch.reshape(-1, 1, 1), (rois.shape[0], height * ratio, width * ratio))
    total = functools.reduce(c.maximum if mode == "max" else c.add, _samples(x, image, taps))
    bins = total.reshape(rois.shape[0], height, ratio, width, ratio, x.shape[1])
    return (bins.max((2, 4)) if mode == "max" else c.mean(bins, (2, 4))).permute(0, 3, 1, 2)
