"""sampling: rows that read between the elements of a tensor: Resize, Upsample, GridSample.

Along each axis of fixed size, Resize is a sum of a few gathers ("taps"), whose indices and weights are computed at import.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.call import OnnxNode, row
from tensor_graphs.frontends.onnx.errors import NotSupported
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, i64
from tensor_graphs.language.node import Node

MOST_SIZE, MOST_TAPS = 1 << 20, 256
"""elements of an axis after Resize; elements of which each is a sum"""

NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5), "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor, "ceil": np.ceil}
"""nearest_mode -> coordinates rounded to whole ones"""


def _places(mode: str, size: int, out: int, scale: float, roi: tuple[float, float], dtype: Any) -> np.ndarray:
    """Return the coordinate in an axis of `size` elements of each of the `out` new ones, computed in `dtype`."""
    j = np.arange(out, dtype=dtype)
    exact = scale == out / size                          # multiplied before it is divided, so that halves are halves
    def unscaled(x: np.ndarray) -> np.ndarray:
        return x * size / out if exact else x / scale

    if mode == "half_pixel":
        return unscaled(j + 0.5) - 0.5
    if mode == "half_pixel_symmetric":
        return size / 2 * (0.0 if exact else 1 - out / (scale * size)) + unscaled(j + 0.5) - 0.5
    if mode == "pytorch_half_pixel":
        return unscaled(j + 0.5) - 0.5 if out > 1 else np.zeros(1)
    if mode == "asymmetric":
        return unscaled(j)
    if mode == "align_corners":
        last = scale * size - 1                          # of a fractional number of elements, before it is rounded down
        return j * (size - 1) / last if last > 0 else np.zeros(out)
    if mode == "tf_crop_and_resize":
        low, high = roi
        return low * (size - 1) + j * (high - low) * (size - 1) / (out - 1) if out > 1 else 0.5 * (low + high) * (size - 1) + 0 * j
    raise NotSupported(f"the coordinate_transformation_mode {mode} of Resize")


def _cubic(x: Any, a: float) -> Any:
    """The cubic convolution kernel (Keys 1981) with parameter a, at distances x ≥ 0."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return near, far


def _taps(mode: str, places: np.ndarray, size: int, scale: float, a: float, antialias: bool, exclude: bool,
          rounding: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (index[taps, out], weight[taps, out]) of an interpolation along an axis."""
    if mode == "nearest":
        index = NEAREST[rounding](places)[None]
        return np.clip(index, 0, size - 1).astype(np.int64), np.ones_like(index)
    squeeze = min(scale, 1.0) if antialias else 1.0
    reach = math.ceil((2 if mode == "cubic" else 1) / squeeze)
    if 2 * reach > MOST_TAPS:
        raise NotSupported(f"Resize from {2 * reach} elements for each new one")
    index = np.floor(places) + np.arange(1 - reach, reach + 1)[:, None]
    away = np.abs(index - places) * squeeze
    if mode == "cubic":
        near, far = _cubic(away, a)
        weight = np.where(away <= 1, near, np.where(away < 2, far, 0.0))
    else:
        weight = np.maximum(1 - away, 0.0)
    if exclude:
        weight = np.where((index >= 0) & (index < size), weight, 0.0)
    if exclude or antialias:
        weight = weight / weight.sum(0)
    used = np.abs(weight).max(1) > 0
    return np.clip(index, 0, size - 1).astype(np.int64)[used], weight[used]


def _resize(n: OnnxNode, x: Node, axes: list[int], scales: list[float] | None, sizes: list[Dim] | None, roi: list[float]) -> Node:
    mode, where = n.get("mode", "nearest"), n.get("coordinate_transformation_mode", "half_pixel")
    a, antialias, exclude = n.get("cubic_coeff_a", -0.75), bool(n.get("antialias", 0)), bool(n.get("exclude_outside", 0))
    rounding, beyond, policy = n.get("nearest_mode", "round_prefer_floor"), n.get("extrapolation_value", 0.0), n.get(
        "keep_aspect_ratio_policy", "stretch")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    whole = scales is not None and all(s >= 1 and float(s).is_integer() for s in scales)
    between = mode == "linear" and where == "half_pixel" and x.dtype.is_float and not exclude
    repeated = mode == "nearest" and (where, rounding) in (
        ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"))
    if whole and (between or repeated):                  # along dims too
        by = dict(zip(axes, scales or (), strict=True))
        first = min((axis for axis, s in by.items() if s != 1), default=None)
        return x if first is None else c.upsample(x, tuple(int(by.get(i, 1)) for i in range(first, x.rank)), mode=mode)
    if sizes is not None:                                # a size that stays is no change, along a dim too
        factors = [1.0 if out == x.shape[axis] else n.whole(out) / n.whole(x.shape[axis])
                   for out, axis in zip(sizes, axes, strict=True)]
        if policy != "stretch":
            one = (min if policy == "not_larger" else max)(factors)
            factors = [one] * len(axes)
            sizes = [math.floor(one * n.whole(x.shape[axis]) + 0.5) for axis in axes]
        scales = factors
    assert scales is not None
    wide = x if mode == "nearest" else x.cast(f32) if x.dtype.itemsize < 4 or not x.dtype.is_float else x
    outside: Any = None
    for k, axis in enumerate(axes):
        if scales[k] == 1 and where != "tf_crop_and_resize":
            continue
        size = n.whole(x.shape[axis])
        share = roi[len(axes) + k] - roi[k] if where == "tf_crop_and_resize" else 1.0
        out = int(np.floor(np.float32(size) * np.float32(scales[k] * share))) if (    # 5 · 2.6 is 13 in f32, not in f64
            sizes is None) else n.whole(sizes[k])
        ends = (roi[k], roi[len(axes) + k]) if roi else (0.0, 1.0)
        if not 0 < out <= MOST_SIZE:
            n.refuse(f"Resize of an axis from {size} to {out} elements")
        # scales are f32, and where a coordinate is rounded to a whole one, 6.5 / 2.6 must be 2.5, not a little more
        places = _places(where, size, out, scales[k], ends, np.float32 if mode == "nearest" else np.float64)
        index, weight = _taps(mode, places, size, scales[k], a, antialias, exclude, rounding)
        total: Any = None
        for i, w in zip(index, weight, strict=True):
            part = atomic.gather(wide, leaves.constant(i, i64), axis)
            if mode != "nearest":
                part = part * leaves.constant(w.astype(np.float64), wide.dtype).reshape(
                    tuple(-1 if q == axis else 1 for q in range(x.rank)))
            total = part if total is None else total + part
        wide = total
        if where == "tf_crop_and_resize":
            off = ((places < 0) | (places > size - 1)).reshape(tuple(-1 if q == axis else 1 for q in range(x.rank)))
            outside = off if outside is None else outside | off
    if outside is not None:
        wide = c.where(leaves.constant(outside), leaves.constant(beyond, wide.dtype), wide)
    if wide.dtype is not x.dtype and not x.dtype.is_float:
        wide = c.clip(c.round(wide), float(x.dtype.min), float(x.dtype.max))
    return wide.cast(x.dtype)


@row("Resize", since=11)
def _resize_11(n: OnnxNode) -> Node:
    x = n.x()
    axes = n.places(n.get("axes") or range(x.rank), x.rank)
    operands = [None if not n.has(i) else n.known(i) for i in (1, 2, 3)]
    roi, scales, sizes = (None if v is None or not v.size else [e.item() if hasattr(e, "item") else e for e in v.ravel()]
                          for v in operands)
    return _resize(n, x, axes, scales, sizes, roi or [0.0] * len(axes) + [1.0] * len(axes))


@row("Resize", "Upsample", since=9)
def _resize_10(n: OnnxNode) -> Node:
    n.attributes = {**n.attributes, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(n, n.x(), list(range(n.x().rank)), [float(v) for v in n.known(1)], None, [])


# ---- grids -----------------------------------------------------------------------------------------------------------


def _reflected(x: Node, low: float, high: float) -> Node:
    span = high - low
    if span <= 0:
        return 0.0 * x
    away = c.abs(x - low)
    extra, turns = c.mod(away, span), atomic.floor(away / span)
    return c.where(c.equals(c.mod(turns, 2.0), 0), extra + low, high - extra)


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


@row("GridSample", since=16)
def _grid_sample(n: OnnxNode) -> Node:
    x, grid = n.x(), n.x(1)
    mode, outside, corners = n.get("mode", "linear"), n.get("padding_mode", "zeros"), n.get("align_corners", 0)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    rank, batch, sizes = x.rank - 2, x.shape[0], [n.whole(s) for s in x.shape[2:]]
    spots = grid.shape[:-1]
    per_axis = []
    for axis, size in enumerate(sizes):
        u = grid[(..., rank - 1 - axis)]
        place = (u + 1) * ((size - 1) / 2) if corners else ((u + 1) * float(size) - 1) / 2
        ends = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if mode != "cubic":
            place = _within(outside, place, size, ends)
        per_axis.append([(_within(outside, i, size, ends) if mode == "cubic" else i, w) for i, w in _tap_weights(mode, place)])
    rows = x.permute(0, *range(2, x.rank), 1).reshape(batch * math.prod(sizes), x.shape[1])
    total: Any = None
    for taps in itertools.product(*per_axis):
        index: Any = atomic.iota(spots, 0, i64)
        inside, weight = None, None
        for (i, w), size in zip(taps, sizes, strict=True):
            fits = (i >= 0) & (i <= size - 1.0)
            index = index * size + c.clip(i, 0.0, size - 1.0).cast(i64)
            inside, weight = (fits, w) if inside is None else (inside & fits, weight * w)
        part = atomic.gather(rows, index, 0) * c.where(inside, weight, 0.0).reshape(*spots, 1).cast(x.dtype)
        total = part if total is None else total + part
    return total.permute(0, rank + 1, *range(1, rank + 1))


def _within(outside: str, place: Node, size: int, ends: tuple[float, float]) -> Node:
    """Return coordinates moved into the axis: to its border, or reflected there; "zeros" leaves them."""
    if outside == "border":
        return c.clip(place, 0.0, size - 1.0)
    if outside == "reflection":
        return c.clip(_reflected(place, *ends), 0.0, size - 1.0)
    return place


