"""signals: rows of the discrete Fourier transform, and of overlapping blocks."""

from __future__ import annotations

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


def _spectrum(n: OnnxNode, x: Node, length: int, inverse: int, onesided: int) -> Node:
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
    x, length = n.x(), n.scalar(1, 0)
    (axis,) = n.places([n.get("axis", 1) if n.opset < 20 else int(n.scalar(2, -2))], x.rank)
    moved = x.transpose(axis, x.rank - 2)
    return _spectrum(n, moved, int(length), n.get("inverse", 0), n.get("onesided", 0)).transpose(axis, x.rank - 2)


@row("STFT", since=17)
def _stft(n: OnnxNode) -> Node:
    x, step, window = n.x(), int(n.scalar(1)), n.optional(2)
    size = int(n.scalar(3)) if n.has(3) else window.shape[0] if window is not None else n.refuse("STFT without a frame length")
    channels = [c.windows(x[..., k], n.static_size(size), stride=step).transpose() for k in range(n.static_size(x.shape[-1]))]
    frames = c.stack(*channels, axis=-1)
    frames = frames if window is None else frames * window.reshape(-1, 1)
    return _spectrum(n, frames, 0, 0, n.get("onesided", 1))


@row("Col2Im", since=18)
def _col2im(n: OnnxNode) -> Node:
    x, image, block = n.x(), n.ints(1), n.ints(2)
    strides, dilations, pads = n.per_axis(len(image))
    if math.prod(image) > MOST_WEIGHTS or math.prod(block) > MOST_WEIGHTS:
        n.refuse(f"Col2Im of blocks of {block} in {image}")
    grown = [size + sum(pad) for size, pad in zip(image, pads, strict=True)]
    place: Any = np.zeros((1, 1), np.int64)
    for i in range(len(image)):
        places = (grown[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        own = np.arange(block[i])[:, None] * dilations[i] + np.arange(places) * strides[i]
        place = (place[:, None, :, None] * grown[i] + own[None, :, None, :]).reshape(len(place) * block[i], -1)
    channels = x.shape[1] // math.prod(block)
    flat = x.reshape(x.shape[0], channels, place.size)
    base = c.zeros((x.shape[0], channels, math.prod(grown)), x.dtype)
    out = atomic.scatter(base, leaves.constant(place.ravel(), i64), flat, axis=2, mode="add").reshape(*base.shape[:2], *grown)
    return out[(..., *(slice(low, low + size) for (low, _), size in zip(pads, image, strict=True)))]
