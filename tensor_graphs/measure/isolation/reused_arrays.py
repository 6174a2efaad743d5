"""reused_arrays: reuses the memory of large arrays that nobody holds any more for the next ones of their size.

A comparison makes large arrays at each point, and first touching memory costs more than using it: on virtual machines that give
freed memory back to their host, ten times as much."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

LARGE, KEPT = 4 << 20, 512 << 20
"""bytes of an array from which its memory is reused; bytes that are kept, at most"""

_kept: list[np.ndarray] = [np.empty(0, np.uint8)]
_ALONE = sys.getrefcount(_kept[0])
"""reference count of an array that only the list holds"""
_kept.clear()
_lock = threading.Lock()


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return an array like numpy.empty. Who holds the array or a view of it has the memory; an address alone does not."""
    shape, dtype = tuple(map(int, shape)), np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < LARGE:
        return np.empty(shape, dtype)
    with _lock:
        for i in range(len(_kept)):
            if _kept[i].nbytes == nbytes and sys.getrefcount(_kept[i]) == _ALONE:
                return _kept[i].view(dtype).reshape(shape)
        raw = np.empty(nbytes, np.uint8)
        if _free(KEPT - nbytes) + nbytes <= KEPT:
            _kept.append(raw)
        return raw.view(dtype).reshape(shape)


def take(array: np.ndarray, numbers: np.ndarray, axis: int) -> np.ndarray:
    """Return numpy.take, of numbers that are all there."""
    shape = (*array.shape[:axis], *numbers.shape, *array.shape[axis + 1:])
    return np.take(array, numbers, axis=axis, out=empty(shape, array.dtype), mode="clip")     # "raise" makes a copy


def clear() -> None:
    """Free what nobody holds, and keep nothing of what somebody does."""
    with _lock:
        _kept.clear()


def _free(most: int) -> int:
    """Free what nobody holds, the oldest first, down to `most` bytes; return how many are still kept."""
    total = sum(raw.nbytes for raw in _kept)
    i = 0
    while total > most and i < len(_kept):
        if sys.getrefcount(_kept[i]) == _ALONE:
            total -= _kept.pop(i).nbytes
        else:
            i += 1
    return total
