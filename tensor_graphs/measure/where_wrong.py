"""where_wrong: describes the positions of wrong elements in an output, as rows, columns, ranges, or every eighth element."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tensor_graphs.language.dtypes import DType
from tensor_graphs.meaning.error_measure import flushed_alike
from tensor_graphs.measure.points.inputs import Point

MOST_PERIOD, MOST_SIZES = 64, 6
"""longest pattern along an axis, such as the width of a vector or a tile; sizes at which a kernel was right in one message"""


def wrong_elements(out: np.ndarray, ref: np.ndarray, dtype: DType, limit: float) -> np.ndarray:
    """Return a mask of where `out` and `ref` differ by more than `limit` times the larger of |element| and its row's RMS."""
    if dtype.kind != "float":
        return np.asarray(out != ref)
    with np.errstate(all="ignore"):
        a, b = out.astype(np.float64), np.where(np.abs(ref) > dtype.max, np.sign(ref) * np.inf, ref)
        sizes = np.where(np.isfinite(b), np.abs(b), 0.0)
        top = np.maximum(sizes.max(axis=-1, keepdims=True, initial=0.0), dtype.smallest_normal) if sizes.ndim else sizes
        scale = np.maximum(sizes, top * np.sqrt(np.mean(np.square(sizes / top), axis=-1, keepdims=True))) if sizes.ndim else sizes
        near = np.abs(a - b) <= limit * np.maximum(scale, dtype.smallest_normal)
        flushed = flushed_alike(a, b, dtype)
        near = near if flushed is None else near | flushed
    return np.asarray(~(near | (a == b) | (np.isnan(a) & np.isnan(b))))


UNWRITTEN = ("not written, or added to: what lay there before the run is still there (a kernel fills the arrays it is given: "
             "outs[0][...] = …)")
"""message for elements that are `unwritten`"""


def unwritten(out: np.ndarray, wrong: np.ndarray) -> bool:
    """Return whether all wrong elements consist of one repeated byte, as outputs do before a run (memory_guards.py). No computed
    number of several bytes does, except 0 and the integer -1."""
    values = np.unique(np.ascontiguousarray(out)[wrong].view(np.uint8)) if out.itemsize > 1 else np.empty(0)
    return len(values) == 1 and values[0] != 0 and not (out.dtype.kind in "iu" and values[0] == 0xFF)


def other_sizes(right: Iterable[Point], wrong: Point) -> str:
    """Return the sizes of the points in `right` whose sizes differ from those of `wrong`, formatted as "n=8; n=16"."""
    sizes = dict.fromkeys(p.sizes for p in right if p.sizes != wrong.sizes)
    shown = [", ".join(f"{n}={size}" for n, size in dims) for dims in list(sizes)[:MOST_SIZES]]
    return "; ".join([*shown, *(["…"] if len(sizes) > MOST_SIZES else [])])


def in_words(wrong: np.ndarray, picked: np.ndarray | None = None) -> str:
    """Describe where a mask is True, axis by axis; "" where nowhere. picked: mask of the rows (along the last axis) that count."""
    if picked is not None and wrong.ndim:
        wrong = wrong & picked.reshape(*wrong.shape[:-1], 1)
    count = int(wrong.sum())
    if count == 0:
        return ""
    if count == wrong.size:
        return f"all {count} elements are wrong" if count > 1 else "its only element is wrong"
    places = []
    for axis, size in enumerate(wrong.shape):
        at = np.asarray(wrong.any(axis=tuple(i for i in range(wrong.ndim) if i != axis)))
        if not at.all():
            places.append(f"{_axis(axis, wrong.ndim, int(at.sum()))} {_numbers(at)} of {size}")
    where = f" ({'; '.join(places)})" if places else " (in every row and column)" if wrong.ndim > 1 else ""
    return f"{count} of {wrong.size} elements are wrong{where}"


def _axis(axis: int, rank: int, count: int) -> str:
    if rank > 2 and axis < rank - 1:
        return f"axis {axis} at"
    name = "element" if rank == 1 else "column" if axis == rank - 1 else "row"
    return name if count == 1 else f"{name}s"


def _numbers(at: np.ndarray) -> str:
    """Describe the positions of True in a vector that is not True throughout."""
    numbers, size = np.flatnonzero(at), len(at)
    first, last = int(numbers[0]), int(numbers[-1])
    if len(numbers) == 1:
        return str(first)
    if last - first + 1 == len(numbers):
        return f"from {first} on" if last == size - 1 else f"{first}–{last}"
    return _pattern(numbers, size) or f"{', '.join(map(str, numbers[:8]))}{', …' if len(numbers) > 8 else ''}"


def _pattern(numbers: np.ndarray, size: int) -> str:
    """Describe numbers that are all those with one remainder modulo a small period, or all but those; "" if they are neither."""
    every = np.arange(size)
    for period in range(2, min(MOST_PERIOD, size // 2) + 1):
        rests = np.unique(numbers % period)
        if np.array_equal(numbers, every[np.isin(every % period, rests)]):
            if len(rests) == 1:
                return _multiples(period, int(rests[0]))
            if len(rests) == period - 1:
                (missing,) = set(range(period)) - set(map(int, rests))
                return f"other than {_multiples(period, missing)}"
    return ""


def _multiples(period: int, rest: int) -> str:
    return f"{period} · i" if rest == 0 else f"{period} · i + {rest}"
