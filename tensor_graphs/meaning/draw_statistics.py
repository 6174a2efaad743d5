"""draw_statistics: how far one output of one draw is from the reference, by each statistic that an accuracy can limit.

The error of an element is max(0, |y − r| − ½ulp) / max(|r|, rms(row), floor), where ulp is the larger of those of y and r in the
output's dtype. Rounding a value v to y moves it by at most ½ulp(y), so if |v − r| ≤ ε · max(…), the error is at most ε: a narrow
output dtype alone is no error. Rows run along the last axis. The floor, and the equality of numbers that are not finite or that
a processor may flush to 0, are those of error_measure.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language.dtypes import DType
from tensor_graphs.meaning import error_measure
from tensor_graphs.meaning.error_measure import Array, compare_rows, finite_rows, row_norms, unit_roundoff


@dataclass(frozen=True)
class Statistics:
    """Errors of one output in one draw. max, p999: the largest error of an element, and the smallest of the largest 0.1 %, beyond
    the output's own rounding. norm: root mean square over rows of ‖y − r‖ / ‖r‖. kl: mean over rows of KL(softmax(r) ‖ softmax(y)),
    in nats. top1: share of rows in which the largest y is at a largest r. cosine: the smallest cosine between rows of y and r;
    1 for two rows of zeros, 0 if only one is.
    """

    max: float
    p999: float
    norm: float
    kl: float
    top1: float
    cosine: float


EXACT = Statistics(0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
WRONG = Statistics(math.inf, math.inf, math.inf, math.inf, math.nan, math.nan)
"""those of an output of another shape, with other integers, or not finite elsewhere than the reference: within no limit"""


def statistics(out: Any, reference: Any, dtype: DType) -> Statistics:
    """Compare an output with its reference.

    out: an array of `dtype`, or float64. reference: float64 of the same shape for a float dtype, else integers or booleans, which
    must be equal. A scalar is one row of one element. An output without elements is exact; of a reference without a finite element
    nothing is within an accuracy.
    """
    y, r = np.asarray(out), np.asarray(reference)
    if y.shape != r.shape:
        return WRONG
    if dtype.kind != "float" or r.size == 0:
        return EXACT if np.array_equal(y, r) else WRONG
    if not np.isfinite(r).any():
        return WRONG
    width = r.shape[-1] if r.ndim else 1
    y, r = y.reshape(-1, width), r.reshape(-1, width)
    most = math.ceil(r.size / 1000)
    tail: Array = np.empty(0)                                       # the largest 0.1 % of the errors so far
    rows: list[Array] = []
    step = max(1, error_measure.BLOCK_ELEMENTS // width)
    with np.errstate(all="ignore"):
        for start in range(0, len(r), step):
            block = _block(y[start:start + step].astype(np.float64), r[start:start + step].astype(np.float64, copy=False), dtype)
            if block is None:
                return WRONG
            tail = np.concatenate([tail, block[0].reshape(-1)])
            tail = np.partition(tail, tail.size - most)[-most:] if tail.size > most else tail
            rows.append(block[1])
        norms, kls, hits, cosines = np.concatenate(rows, axis=1)
        norm = float(np.sqrt(np.mean(np.square(norms))))
    return Statistics(float(tail.max()), float(tail.min()), norm, float(kls.mean()), float(hits.mean()), float(cosines.min()))


def _block(y: Array, r: Array, dtype: DType) -> tuple[Array, Array] | None:
    """Return the errors of the elements of rows of float64 (`y` is overwritten), and a table with a column per row: ‖y − r‖ / ‖r‖,
    the divergence, 1 for the same largest element, the cosine. Return None where only one of the two is NaN or a given infinity."""
    kl = _divergence(y, r)
    largest = np.take_along_axis(r, y.argmax(axis=-1)[:, None], axis=-1)[:, 0] == r.max(axis=-1)
    a, b, count, unlike = finite_rows(y, r, dtype)
    if unlike is not None:
        return None
    cosine = 1.0 - np.sum(np.square(_unit(a) - _unit(b)), axis=-1) / 2     # exactly 1 for equal rows, and never above
    cosine = np.where(a.any(axis=-1) == b.any(axis=-1), cosine, 0.0)
    half_ulp = _half_ulp(np.maximum(np.abs(a), np.abs(b)), dtype)
    compared = compare_rows(a, b, count, dtype)
    difference, half_ulp = compared.difference, half_ulp * compared.scale
    errors = np.where(difference > half_ulp, compared.relative * (1.0 - half_ulp / difference), 0.0)
    size = np.maximum(compared.norms, dtype.smallest_normal * compared.scale * np.sqrt(count))[:, 0]
    apart = row_norms(difference)[:, 0]
    return errors, np.stack([np.where(apart > 0, apart / size, 0.0), kl, largest, cosine])


def _half_ulp(size: Array, dtype: DType) -> Array:
    """Return half the gap between a number of this size (≥ 0, finite) and the next larger one of `dtype`, beyond its range too."""
    return np.asarray(np.ldexp(unit_roundoff(dtype), np.frexp(np.maximum(size, dtype.smallest_normal))[1] - 1))


def _unit(x: Array) -> Array:
    """Return each row divided by its Euclidean norm; a row of zeros as it is."""
    top = np.abs(x).max(axis=-1, keepdims=True)
    x = x / np.where(top > 0, top, 1.0)
    return np.asarray(x / np.where(top > 0, row_norms(np.abs(x)), 1.0))


def _divergence(y: Array, r: Array) -> Array:
    """Return KL(softmax(r) ‖ softmax(y)) of each row; ∞ where it is undefined. It is log Σ p·exp(d), where p = softmax(r) and
    d = y − r − Σ p·(y − r). Small d go through expm1 and log1p, as the sum is 1 + d²/2."""
    log_p = r - r.max(axis=-1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(axis=-1, keepdims=True))
    p = np.exp(log_p)
    d = np.where(y == r, 0.0, y - r)                                # −∞ in both, a masked logit, is no difference
    d = d - np.sum(p * d, axis=-1, keepdims=True)
    far = log_p + d
    top = far.max(axis=-1, keepdims=True)
    far_kl = top[:, 0] + np.log(np.exp(far - top).sum(axis=-1))
    near_kl = np.log1p(np.sum(p * np.expm1(np.clip(d, -1.0, 1.0)), axis=-1))
    kl = np.where(np.abs(d).max(axis=-1) < 1.0, near_kl, far_kl)
    return np.where(np.isnan(kl), math.inf, np.maximum(kl, 0.0))
