"""error_measure: how far a result is from the reference, as one number per element with the same meaning for every op.

Positions and signs of non-finite values must match. (Where the reference is beyond the output dtype's range, the result may be
infinite, or NaN where the dtype has no infinity; in 8-bit dtypes it must be, one step beyond the largest number.) Then the error
is, per row of the error axis, |out − ref| / max(|ref|, rms(row), floor), where the floor is the dtype's smallest normal number and
0/0 is 0. In dtypes with the exponents of f32, all numbers up to the smallest normal one are equal, as processors may flush them to
0. Integers and booleans must be equal. A result passes if `error <= tolerance`, so that NaN fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tensor_graphs.language.dtypes import DType, f32

Array = npt.NDArray[Any]

BLOCK_ELEMENTS = 1 << 17
"""Rows are compared in blocks of about this many elements (1 MB in float64), so that the comparison of logits of 600 × 262144 needs
little more memory than they do. A single row is never split."""

_HUGE = 2.0**1000
_SHRINK = 2.0**-64
_SQUARED = 2.0**400
"""numbers below this, and above its reciprocal, can be squared without overflow or underflow"""

_MUCH_LARGER = 2.0**40
"""factor of the smallest normal number: if a row's norm is at least that product, a flushed number is no measurable error"""


ROUNDINGS = 8
"""a difference of up to this many running errors is explained by rounding. Roundings have random signs, so a difference of one
running error is rare, and of two very rare; the rest is for kernels that round in more places than the definition does"""

NEIGHBOURS = 64
"""least number of values whose root mean square replaces an unknown running error"""

LONG_SUM = 32.0
"""number of roundings in f32 or wider that replaces an unknown running error: that of a sum of some 2000 terms"""


@lru_cache(maxsize=8)
def unit_roundoff(dtype: DType) -> float:
    """Return half the gap between 1 and the next larger value: the largest relative change by one rounding."""
    return dtype.epsilon / 2


@dataclass(frozen=True)
class Worst:
    """An element: its index, its value in the result, and the value of the reference."""

    index: tuple[int, ...]
    found: float
    expected: float

    def __str__(self) -> str:
        return f"{self.found:.8g} instead of {self.expected:.8g} at {list(self.index)}"


@dataclass(frozen=True)
class ErrorReport:
    """Errors of a result. max_relative_error: the largest one. p999: the 99.9th percentile of the relative errors. norm_error: ‖out
    − ref‖ / ‖ref‖, where ‖ref‖ is at least the floor, and includes the sizes used for differences that rounding explains.

    mismatch: None, or a difference that no number describes (shape, NaN positions, integers), with its first index; the three
    relative numbers are then infinite. worst: the element with the largest relative error.
    """

    max_relative_error: float
    p999: float
    norm_error: float
    max_absolute_error: float
    mismatch: str | None = None
    worst: Worst | None = field(default=None, compare=False)

    def within(self, tolerance: float) -> bool:
        return self.mismatch is None and self.max_relative_error <= tolerance


def measure(out: Any, ref: Any, dtype: DType, axis: int = -1, rounding: Array | None = None,
            roundings: float = ROUNDINGS) -> ErrorReport:
    """Compare a result with the oracle's value.

    out: an array of `dtype`, or float64. ref: float64 for a float dtype, else integers or booleans. Rows run along `axis`.
    rounding: how far rounding may move each value (≥ 0, finite, of the shape of `ref`; running_error.py), if it is known.
    roundings: up to this many times that explains a difference. p999 is the smallest of the largest 0.1 % of the errors.
    """
    out, ref = np.asarray(out), np.asarray(ref)
    if out.shape != ref.shape:
        return _failed(f"the shape is {list(out.shape)} instead of {list(ref.shape)}")
    if ref.size == 0:
        return ErrorReport(0.0, 0.0, 0.0, 0.0)
    if ref.ndim == 0:
        out, ref, rounding = out.reshape(1), ref.reshape(1), None if rounding is None else rounding.reshape(1)
    if dtype.kind != "float":
        return _measure_exactly(out, ref)
    out, ref = np.moveaxis(out, axis, -1), np.moveaxis(ref, axis, -1)
    shape, width = ref.shape, ref.shape[-1]
    moves = None if rounding is None else np.moveaxis(rounding, axis, -1).reshape(-1, width)
    out, ref = out.reshape(-1, width), ref.reshape(-1, width)       # views, when the axis is the last one
    keep = math.ceil(ref.size / 1000)
    tail: Array = np.empty(0)                                       # the largest 0.1 % so far
    threshold = -1.0                                                # what is not above it is not in the tail
    error_norm = ref_norm = worst = 0.0
    norm_scale = 1.0
    largest, row_column = 0.0, (0, 0)
    step = max(1, BLOCK_ELEMENTS // width)
    with np.errstate(all="ignore"):
        for start in range(0, len(ref), step):
            original = out[start:start + step].astype(np.float64), ref[start:start + step].astype(np.float64, copy=False)
            a, b, count, unlike = finite_rows(*original, dtype)
            if unlike is not None:
                place = np.unravel_index(int(np.argmax(unlike)), unlike.shape)
                where = [int(i) for i in np.unravel_index(start + place[0], shape[:-1])]
                where.insert(axis % len(shape), int(place[1]))
                return _failed(f"{original[0][place]!s} instead of {original[1][place]!s} at {where}")
            comparison = compare_rows(a, b, count, dtype, None if moves is None else moves[start:start + step], roundings)
            scale, relative, difference, norms = comparison.scale, comparison.relative, comparison.difference, comparison.norms
            if scale < norm_scale:
                error_norm, ref_norm, norm_scale = error_norm * scale, ref_norm * scale, scale
            worst = max(worst, float(difference.max()) / scale)
            error_norm = math.hypot(error_norm, _norm(difference) * (norm_scale / scale))
            ref_norm = math.hypot(ref_norm, _norm(norms) * (norm_scale / scale))
            top = int(relative.argmax())
            if relative.flat[top] > largest:
                largest, row_column = float(relative.flat[top]), (start + top // width, top % width)
            tail = np.concatenate([tail, _above(relative, threshold, keep - tail.size)])
            if tail.size > keep:
                tail = np.partition(tail, tail.size - keep)[-keep:]
            if tail.size == keep:
                threshold = float(tail.min())
    size = max(ref_norm, dtype.smallest_normal * norm_scale)        # where the reference is 0, as for each element
    norm = error_norm / size if size > 0 else (0.0 if error_norm == 0 else math.inf)
    at = [int(i) for i in np.unravel_index(row_column[0], shape[:-1])]
    at.insert(axis % len(shape), row_column[1])
    element = Worst(tuple(at), float(out[row_column]), float(ref[row_column])) if largest > 0 else None
    return ErrorReport(float(tail.max()), float(tail.min()), norm, worst, worst=element)


def row_errors(out: Array, ref: Array, dtype: DType, rounding: Array | None = None, rows: Array | None = None,
               roundings: float = ROUNDINGS) -> Array:
    """Return the largest relative error of each row, as `measure` computes it for that row alone; infinite for a mismatch.

    out, ref, rounding, roundings: as for `measure`, with two axes. rows: the numbers of the rows to compare (default: all).
    """
    numbers = np.arange(len(ref)) if rows is None else rows
    errors = np.zeros(len(numbers))
    width = ref.shape[-1]
    if ref.size == 0:
        return errors
    step = max(1, BLOCK_ELEMENTS // width)
    with np.errstate(all="ignore"):
        for start in range(0, len(numbers), step):
            block = slice(start, start + step)
            some: Any = block if rows is None else numbers[block]
            if dtype.kind != "float":
                errors[block] = np.where((out[some] != ref[some]).any(axis=-1), math.inf, 0.0)
                continue
            a, b, count, unlike = finite_rows(out[some].astype(np.float64), ref[some].astype(np.float64, copy=False), dtype)
            moves = None if rounding is None else rounding[some]
            huge = np.maximum(np.abs(a).max(axis=-1), np.abs(b).max(axis=-1)) > _HUGE
            worst = np.empty(len(b))
            for part in (huge, ~huge) if huge.any() else (slice(None),):        # the scale of a row depends on no other row
                if len(b[part]):
                    many = count[part] if isinstance(count, np.ndarray) else count
                    of_these = compare_rows(a[part], b[part], many, dtype, None if moves is None else moves[part],
                                            roundings)
                    worst[part] = of_these.relative.max(axis=-1)
            errors[block] = worst if unlike is None else np.where(unlike.any(axis=-1), math.inf, worst)
    return errors


@dataclass(frozen=True, slots=True)
class RowErrors:
    """Rows of finite values, compared: `relative` errors, and `difference` and `norms` (of the reference's rows) times `scale`."""

    scale: float
    relative: Array
    difference: Array
    norms: Array


def finite_rows(a: Array, b: Array, dtype: DType) -> tuple[Array, Array, Any, Array | None]:
    """Return rows of float64, with 0 where either value is not finite; the number of finite values in each row (one number, where
    all are finite); and the mask of `_unlike` values, None if there are none."""
    if not _is_special(a, b, dtype):
        return a, b, b.shape[-1], None
    finite, unlike = np.isfinite(a) & np.isfinite(b), _unlike(a, b, dtype)
    count = np.maximum(np.count_nonzero(finite, axis=-1, keepdims=True), 1)
    return np.where(finite, a, 0.0), np.where(finite, b, 0.0), count, unlike if unlike.any() else None


def compare_rows(a: Array, b: Array, count: Any, dtype: DType, moves: Array | None = None,
                 roundings: float = ROUNDINGS) -> RowErrors:
    """Compare rows of float64, all finite; `a` is overwritten. count: number of values in a row. moves: how far rounding may move
    each value; `roundings` times that explains a difference."""
    size = np.abs(b)
    tops = size.max(axis=-1, keepdims=True)
    most = max(float(tops.max()), float(a.max()), -float(a.min()))
    scale = _SHRINK if most > _HUGE else 1.0
    if scale != 1.0:                                                # neither a difference nor a square may overflow
        a, b, size, tops = a * scale, b * scale, size * scale, tops * scale
    if most < _SQUARED and float(tops.min()) > 1 / _SQUARED:
        norms = np.sqrt(np.einsum("ij,ij->i", size, size)[:, None])
    else:
        norms = row_norms(size)
    tiny = float(norms.min()) < _MUCH_LARGER * dtype.smallest_normal * scale        # elsewhere a flushed number is no difference
    flushed = flushed_alike(a, b, dtype, scale) if tiny else None
    difference = np.abs(np.subtract(a, b, out=a), out=a)
    if flushed is not None:
        difference[flushed] = 0.0
    below = np.maximum(size, np.maximum(norms / np.sqrt(count), dtype.smallest_normal * scale), out=size)
    if moves is not None:
        moved = moves * scale
        sizes = np.where(difference <= roundings * moved, moved / unit_roundoff(dtype), 0.0)
        norms = np.hypot(norms, row_norms(sizes))                   # what cancels to 0 has an error relative to its terms
        np.maximum(below, sizes, out=below)
    relative = np.divide(difference, below, out=below)
    if scale != 1.0:                                                # what was below may be 0 by now
        relative[difference == 0] = 0.0
    return RowErrors(scale, relative, difference, norms)


def flushed_alike(a: Array, b: Array, dtype: DType, scale: float = 1.0) -> Array | None:
    """Return the mask where two arrays of float64, multiplied by `scale`, both hold numbers that a processor may flush to 0 when it
    computes in f32; None if the dtype has other exponents than f32."""
    least = dtype.smallest_normal
    return (np.abs(a) <= least * scale) & (np.abs(b) <= least * scale) if least == f32.smallest_normal else None


def row_norms(size: Array) -> Array:
    """Return the Euclidean norm of each row of values ≥ 0, without overflow."""
    tops = size.max(axis=-1, keepdims=True)
    unit = np.where(tops > 0, tops, 1.0)
    return np.asarray(unit * np.sqrt(np.sum(np.square(size / unit), axis=-1, keepdims=True)))


def _above(relative: Array, threshold: float, wanted: int) -> Array:
    """Return the errors above a threshold. If there are many, `wanted` of the largest suffice; most smaller ones are then left out,
    by an estimate from a sample."""
    if wanted > 0 and relative.size >= max(4 * wanted, 1 << 12):
        sample = np.sort(relative.reshape(-1)[::16])
        estimated = float(sample[-(wanted // 10 + 4)])                # 1.6 times as many as are wanted, about
        if estimated > threshold:
            above = relative[relative > estimated]
            if above.size >= wanted:
                return above
    return relative[relative > threshold]


def neighbours_error(ref: Array, dtype: DType) -> Array:
    """Return a substitute for an output's running error where that is unknown: some roundings of the root mean square over the last
    axes, as many axes as have at least NEIGHBOURS values (or all axes)."""
    if ref.size == 0:
        return np.zeros(ref.shape)
    axes = next((range(i, ref.ndim) for i in reversed(range(ref.ndim)) if math.prod(ref.shape[i:]) >= NEIGHBOURS), range(ref.ndim))
    with np.errstate(all="ignore"):
        size = np.where(np.isfinite(ref), np.abs(ref), 0.0)
        top = np.max(size, axis=tuple(axes), keepdims=True)
        top = np.where(top > 0, top, 1.0)
        rms = top * np.sqrt(np.mean(np.square(size / top), axis=tuple(axes), keepdims=True))
    unit = unit_roundoff(dtype)
    return np.broadcast_to((unit + LONG_SUM * min(unit, unit_roundoff(f32))) * rms, ref.shape)


def _failed(why: str, worst: float = math.inf) -> ErrorReport:
    return ErrorReport(math.inf, math.inf, math.inf, worst, why)


def _measure_exactly(out: Array, ref: Array) -> ErrorReport:
    different = np.asarray(out != ref)
    count = int(np.count_nonzero(different))
    if count == 0:
        return ErrorReport(0.0, 0.0, 0.0, 0.0)
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(different)), different.shape))
    worst = float(np.max(np.abs(out[different].astype(np.float64) - ref[different].astype(np.float64))))
    return _failed(f"{count} of {ref.size} values differ, the first at {list(first)}: {out[first]} instead of {ref[first]}",
                   worst)


@lru_cache(maxsize=8)
def _leaves(dtype: DType) -> float:
    """Return the size beyond which a number is out of range in an 8-bit dtype, whatever was rounded before: one step above the
    largest number. Up to it, the largest number is off by a few roundings only. For wider dtypes, where errors suffice, it is ∞."""
    return float(dtype.max) + dtype.epsilon * 2.0 ** math.floor(math.log2(dtype.max)) if dtype.itemsize == 1 else math.inf


def _is_special(out: Array, ref: Array, dtype: DType) -> bool:
    """Return True if a float is not finite, or beyond the range of a dtype of 8 bits."""
    if not math.isfinite(float(out.sum()) + float(ref.sum())):
        return True
    return dtype.itemsize == 1 and max(float(ref.max()), -float(ref.min())) > _leaves(dtype)


def _unlike(out: Array, ref: Array, dtype: DType) -> Array:
    """Return the mask where only one of the two is NaN or a given infinity, or only ref is out of the range of an 8-bit dtype."""
    numbers = np.isfinite(out) & np.isfinite(ref)
    if dtype.itemsize == 1:
        numbers &= np.abs(ref) <= _leaves(dtype)
    same = numbers | (np.isnan(out) & np.isnan(ref)) | (out == ref)
    gone = np.isinf(out) & (np.signbit(out) == np.signbit(ref)) if dtype.has_infinity else np.isnan(out)
    beyond = (np.abs(ref) > dtype.max) & gone
    return np.asarray(~(same | beyond))


def _norm(x: Array) -> float:
    """Return the Euclidean norm of values ≥ 0, without overflow."""
    top = float(x.max())
    if 1 / _SQUARED < top < _SQUARED:
        return math.sqrt(float(np.einsum("ij,ij->", x, x)))         # a product of BLAS would wake its threads
    return top * math.sqrt(float(np.sum(np.square(x / top)))) if 0 < top < math.inf else top
