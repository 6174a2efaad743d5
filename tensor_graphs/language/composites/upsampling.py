"""upsampling: lengthens the last axes of a tensor by whole factors: elements are repeated, or interpolated linearly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import dim_fill, fill, need, show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import wide
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = ["upsample"]

MODES = ("nearest", "linear")


def on_lines(x: np.ndarray, axis: int, by: int) -> np.ndarray:
    """Return x with one axis longer by the factor `by`, interpolated as mode "linear" defines; in x's dtype."""
    if x.shape[axis] == 0:
        return x
    at = np.maximum((np.arange(by * x.shape[axis]) + 0.5) / by - 0.5, 0)
    low = np.floor(at).astype(np.int64)
    share = (at - low).astype(x.dtype).reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return np.asarray(np.take(x, low, axis) * (1 - share)
                      + np.take(x, np.minimum(low + 1, x.shape[axis] - 1), axis) * share)


def _upsample_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    x, scale = roles["x"], attrs["scale"]
    for axis, by in enumerate(scale, x.ndim - len(scale)):
        x = np.repeat(x, by, axis) if attrs["mode"] == "nearest" else on_lines(x, axis, by)
    return x


@library(name="upsample", direct=_upsample_direct, facts=OpFacts(closed=True, sought=False))
def _upsample(x: Node, *, scale: tuple[int, ...], mode: str) -> Node:
    """See `upsample`."""
    if mode not in MODES:
        raise AttributeValueError(f"upsample: mode is {mode!r}", fix=" or ".join(map(repr, MODES)))
    lead, out = x.rank - len(scale), x
    if mode == "nearest":
        apart = tuple(s for pair in zip(x.shape[lead:], scale, strict=True) for s in pair)
        sizes = tuple(s * by for s, by in zip(x.shape[lead:], scale, strict=True))
        ones = tuple(s for size in x.shape[lead:] for s in (size, 1))
        out = atomic.reshape(x, (*x.shape[:lead], *ones))
        return atomic.reshape(atomic.expand(out, (*x.shape[:lead], *apart)), (*x.shape[:lead], *sizes))
    need("upsample (linear)", x, "float")
    out = wide(x)
    for axis, by in enumerate(scale, lead):
        size = (out.shape[axis] * by,)
        # the place (j + ½) / by − ½ in units of 1 / (2 · by): whole numbers, so nothing is rounded
        place = arithmetic.maximum(atomic.iota(size, 0, i32) * 2 + (1 - by), 0)
        low = place // (2 * by)
        high = arithmetic.minimum(low + 1, dim_fill(out.shape[axis] - 1, size))
        share = atomic.cast(place % (2 * by), out.dtype) * (1 / (2 * by))
        made_shape = (*out.shape[:axis], *size, *out.shape[axis + 1:])
        share = broadcast_to(atomic.reshape(share, (*size, *(1,) * (out.rank - 1 - axis))), made_shape)
        out = atomic.gather(out, low, axis) * (fill(1, made_shape, out.dtype) - share) + atomic.gather(out, high, axis) * share
    return atomic.cast(out, x.dtype)


def upsample(x: Node, scale: int | Sequence[int], *, mode: str = "nearest") -> Node:
    """x with its last len(scale) axes (an int: one) longer by these factors: [n, c, h, w] by (2, 2) -> [n, c, 2 · h, 2 · w].

    mode "nearest": each element repeated, any dtype. "linear": on the line between the two next centres, at the ends the last
    element (torch's align_corners=False; over two axes "bilinear"); floats, computed in f32 at least. Raises
    AttributeValueError, DTypeError.
    """
    by = tuple(scale) if isinstance(scale, (tuple, list)) else (scale,)
    if not 1 <= len(by) <= x.rank or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 1 for s in by):
        raise AttributeValueError(f"upsample of {show(x)}: scale is {scale!r}",
                                  fix=f"an int ≥ 1 for the last axis, or a tuple of up to {x.rank} of them for the last ones")
    return _upsample(x, scale=by, mode=mode)
