"""error_measure: how far a result is from the reference, in one number per element that means the same for every op.

Positions and signs of non-finite values must match (a value beyond the output dtype's range may be infinite); then, per row of the
error axis, |out − ref| / max(|ref|, rms(row), floor). Integers and booleans must be equal. A pass is written `error <= tolerance`,
so that NaN fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK_ELEMENTS = 1 << 22
"""rows are compared in blocks of about this many elements, so that logits of 600 × 262144 fit in little memory"""


@dataclass(frozen=True)
class ErrorReport:
    """max_relative_error: the largest; p999: its 99.9th percentile; norm_error: ‖out − ref‖ / ‖ref‖; max_absolute_error.

    mismatch: None, or what differs in a way no number says (shape, NaN positions, integers); max_relative_error is then inf.
    """

    max_relative_error: float
    p999: float
    norm_error: float
    max_absolute_error: float
    mismatch: str | None = None

    def within(self, tolerance: float) -> bool:
        return self.mismatch is None and self.max_relative_error <= tolerance


def measure(out: Any, ref: Any, dtype: DType, axis: int = -1) -> ErrorReport:
    """Compare a result of dtype `dtype` with the oracle's value (float64, or integers). Rows run along `axis`."""
    out, ref = np.asarray(out), np.asarray(ref)
    if out.shape != ref.shape:
        return _failed(f"shape {out.shape} instead of {ref.shape}")
    if dtype.kind != "float":
        different = int(np.count_nonzero(out != ref))
        return ErrorReport(0.0, 0.0, 0.0, 0.0) if different == 0 else _failed(f"{different} of {ref.size} values differ")
    if ref.size == 0:
        return ErrorReport(0.0, 0.0, 0.0, 0.0)
    if ref.ndim == 0:
        out, ref = out.reshape(1), ref.reshape(1)
    out, ref = np.moveaxis(out, axis, -1), np.moveaxis(ref, axis, -1)
    width = ref.shape[-1]
    out, ref = out.reshape(-1, width), ref.reshape(-1, width)
    keep = max(1, int(np.ceil(ref.size * 0.001)))                  # the largest 0.1 % hold the percentile
    tail = np.empty(0)
    squared_error = squared_ref = worst_absolute = 0.0
    scale = _norm_scale(ref)
    step = max(1, BLOCK_ELEMENTS // width)
    for start in range(0, len(ref), step):
        block = _block(out[start:start + step].astype(np.float64), ref[start:start + step].astype(np.float64), dtype)
        if isinstance(block, str):
            return _failed(block)
        relative, difference, finite_ref = block
        tail = np.concatenate([tail, relative.reshape(-1)])
        if tail.size > keep:
            tail = np.partition(tail, tail.size - keep)[-keep:]
        worst_absolute = max(worst_absolute, float(difference.max()))
        squared_error += float(np.sum((difference / scale) ** 2))
        squared_ref += float(np.sum((finite_ref / scale) ** 2))
    norm = np.sqrt(squared_error / squared_ref) if squared_ref > 0 else (0.0 if squared_error == 0 else np.inf)
    return ErrorReport(float(tail.max()), float(tail.min()), float(norm), worst_absolute)


def _failed(why: str) -> ErrorReport:
    return ErrorReport(float("inf"), float("inf"), float("inf"), float("inf"), why)


def _norm_scale(ref: Array) -> float:
    finite = np.abs(ref[np.isfinite(ref)]) if not np.all(np.isfinite(ref)) else np.abs(ref)
    top = float(finite.max()) if finite.size else 0.0
    return top if top > 0 else 1.0


def _block(out: Array, ref: Array, dtype: DType) -> tuple[Array, Array, Array] | str:
    """(relative errors, absolute differences, finite part of ref) of some rows, or what does not match."""
    limits = np.finfo(np.float64) if dtype.itemsize == 8 else None
    largest = float(limits.max) if limits is not None else float(dtype.max)
    floor = float(limits.tiny) if limits is not None else float(dtype.smallest_normal)
    with np.errstate(all="ignore"):
        nan = np.isnan(ref)
        if not np.array_equal(nan, np.isnan(out)):
            many, few = int(np.count_nonzero(np.isnan(out) & ~nan)), int(np.count_nonzero(nan & ~np.isnan(out)))
            return f"NaN at {many} places too many, {few} too few"
        # beyond the range, infinity is the right answer; just above it, the largest number is too
        beyond = np.abs(ref) > largest
        excused = beyond & np.isinf(out) & (np.sign(out) == np.sign(ref))
        infinite = np.isinf(ref) | np.isinf(out)
        wrong = infinite & (out != ref) & ~excused
        if np.any(wrong):
            return f"{int(np.count_nonzero(wrong))} infinite values differ in place or sign"
        finite = ~(nan | infinite)
        if not finite.all():
            out, ref = np.where(finite, out, 0.0), np.where(finite, ref, 0.0)
        difference = np.abs(out - ref)
        top = np.max(np.abs(ref), axis=-1, keepdims=True)
        unit = np.where(top > 0, top, 1.0)                         # squares of 1e200 would overflow
        count = np.maximum(np.count_nonzero(finite, axis=-1, keepdims=True), 1)
        rms = unit * np.sqrt(np.sum((ref / unit) ** 2, axis=-1, keepdims=True) / count)
        below = np.maximum(np.maximum(np.abs(ref), rms), floor)
        return np.where(difference == 0, 0.0, difference / below), difference, ref
