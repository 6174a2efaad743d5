"""signals: rows of the discrete Fourier transform, of overlapping blocks, and of regions of an image."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tensor_graphs.frontends.onnx.call import OnnxNode, row
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language.dtypes import i64
from tensor_graphs.language.node import Node

MOST_WEIGHTS = 1 << 22
"""elements of a constant that is computed for one node"""


def _spectrum(n: OnnxNode, x: Node, length: int | None, inverse: bool, onesided: bool) -> Node:
    """Return the transform of x[…, n, 1 or 2] along the axis before the last, by a product with the matrix of cosines and sines."""
    size, parts = x.shape[-2], x.shape[-1]
    if not isinstance(size, int) or parts not in (1, 2):
        n.refuse(f"{n.op} along a dim, or of {x.type}, whose last axis is neither 1 nor 2 long")
    count = length or (2 * (size - 1) if inverse and onesided else size)
    used = min(size, count // 2 + 1 if inverse and onesided else count)
    if used * count > MOST_WEIGHTS:
        n.refuse(f"{n.op} of length {count}, which takes a matrix of {used} by {count}")
    bins = count // 2 + 1 if onesided and not inverse else count
    turns = np.outer(np.arange(used), np.arange(bins)) % count * (2 * math.pi / count)
    scale = 1 / count if inverse else 1.0
    weight = np.full((used, 1), scale)
    if inverse and onesided:                             # each bin stands for its conjugate too, but the first and the middle one
        weight[1:(count + 1) // 2] *= 2
    cos, sin = (leaves.constant(np.asarray(v * weight, np.float64), x.dtype) for v in (np.cos(turns), np.sin(turns)))
    x = atomic.slice(x, [(0, used if i == x.rank - 2 else s, 1) for i, s in enumerate(x.shape)])
    real, imaginary = x[..., 0], x[..., 1] if parts == 2 else None
    sign = -1.0 if inverse else 1.0
    re, im = c.dot(real, cos), c.dot(real, sin) * -sign
    if imaginary is not None:
        re, im = re + c.dot(imaginary, sin) * sign, im + c.dot(imaginary, cos)
    return c.stack(re, axis=-1) if inverse and onesided else c.stack(re, im, axis=-1)


@row("DFT", since=17)
def _dft(n: OnnxNode) -> Node:
    x, length = n.x(), n.scalar(1)
    (axis,) = n.places([n.get("axis", 1) if n.opset < 20 else int(n.scalar(2, -2))], x.rank)
    moved = x.transpose(axis, x.rank - 2)
    out = _spectrum(n, moved, None if length is None else int(length), bool(n.get("inverse", 0)), bool(n.get("onesided", 0)))
    return out.transpose(axis, x.rank - 2)


@row("STFT", since=17)
def _stft(n: OnnxNode) -> Node:
    x, step, window = n.x(), int(n.scalar(1)), n.optional(2)
    size = int(n.scalar(3)) if n.has(3) else window.shape[0] if window is not None else n.refuse("STFT without a frame length")
    channels = [c.windows(x[..., k], n.static_size(size), stride=step).transpose() for k in range(n.static_size(x.shape[-1]))]
    frames = c.stack(*channels, axis=-1)
    frames = frames if window is None else frames * window.reshape(-1, 1)
    return _spectrum(n, frames, None, False, bool(n.get("onesided", 1)))


@row("Col2Im", since=18)
def _col2im(n: OnnxNode) -> Node:
    x, image, block = n.x(), n.ints(1), n.ints(2)
    count = len(image)
    dilations, strides, pads = n.get("dilations") or [1] * count, n.get("strides") or [1] * count, n.get("pads") or [0] * 2 * count
    if math.prod(image) > MOST_WEIGHTS or math.prod(block) > MOST_WEIGHTS:
        n.refuse(f"Col2Im of blocks of {block} in {image}")
    grown = [s + pads[i] + pads[count + i] for i, s in enumerate(image)]
    place: Any = np.zeros((1, 1), np.int64)
    for i in range(count):
        places = (grown[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        own = np.arange(block[i])[:, None] * dilations[i] + np.arange(places) * strides[i]
        place = (place[:, None, :, None] * grown[i] + own[None, :, None, :]).reshape(len(place) * block[i], -1)
    channels = x.shape[1] // math.prod(block)
    flat = x.reshape(x.shape[0], channels, place.size)
    base = c.zeros((x.shape[0], channels, math.prod(grown)), x.dtype)
    out = atomic.scatter(base, leaves.constant(place.ravel(), i64), flat, axis=2, mode="add").reshape(*base.shape[:2], *grown)
    inner = [(low, low + s, 1) for low, s in zip(pads, image, strict=False)]
    return atomic.slice(out, [(0, out.shape[0], 1), (0, out.shape[1], 1), *inner])


@row("RoiAlign", since=10)
def _roi_align(n: OnnxNode) -> Node:
    """Return means, or maxima, of samples between four elements each, on a fixed grid in every bin of every region."""
    x, rois, batch = n.x(), n.x(1), n.x(2).cast(i64)
    height, width, ratio = n.get("output_height", 1), n.get("output_width", 1), n.get("sampling_ratio", 0)
    newer, mode = n.opset >= 16, n.get("mode", "avg")
    half = n.get("coordinate_transformation_mode", "half_pixel" if newer else "output_half_pixel") == "half_pixel"
    if mode == "max" and not newer:
        n.refuse("RoiAlign of maxima before opset 16, of which implementations differ")
    if not 0 < ratio * height * width <= MOST_WEIGHTS:
        n.refuse("RoiAlign with sampling_ratio=0, a grid that depends on the regions", "a fixed sampling_ratio")
    corners = rois * n.get("spatial_scale", 1.0) - (0.5 if half else 0.0)
    shape, sides = (rois.shape[0], height * ratio, width * ratio), []
    for axis, count, size in ((1, height, x.shape[2]), (0, width, x.shape[3])):
        low, extent = corners[:, axis:axis + 1], corners[:, axis + 2:axis + 3] - corners[:, axis:axis + 1]
        steps = (np.arange(count * ratio) + 0.5) / (count * ratio)
        place = low + (extent if half else c.maximum(extent, 1.0)) * leaves.constant(steps, x.dtype)
        last, line = n.static_size(size) - 1.0, (-1, shape[1], 1) if axis else (-1, 1, shape[2])
        inside = (place >= -1.0) & (place <= last + 1)
        place = c.clip(place, 0.0, last)
        base = c.minimum(atomic.floor(place), max(last - 1, 0.0))
        taps = [(base, 1 - (place - base)), (c.minimum(base + 1, last), place - base)]
        sides.append([(atomic.expand(i.cast(i64).reshape(line), shape), c.where(inside, w, 0.0).reshape(line)) for i, w in taps])
    rows, images = x.permute(0, 2, 3, 1), atomic.expand(batch.reshape(-1, 1, 1), shape)
    parts = [c.gather_nd(rows, c.stack(images, i, j, axis=-1)) * (v * w).reshape(*shape, 1)
             for i, v in sides[0] for j, w in sides[1]]
    total = functools.reduce(c.maximum if mode == "max" else c.add, parts)
    bins = total.reshape(rois.shape[0], height, ratio, width, ratio, x.shape[1])
    return (bins.max((2, 4)) if mode == "max" else c.mean(bins, (2, 4))).permute(0, 3, 1, 2)
