"""reused_arrays: allocates large arrays in the memory of earlier arrays of their size that are no longer referenced.

A comparison creates large arrays at each point, and first touching memory costs more than using it: ten times as much on virtual
machines that give freed memory back to their host."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

LARGE, KEPT = 4 << 20, 512 << 20
"""bytes from which the memory of an array is reused; most bytes that are kept for reuse"""

_kept: list[np.ndarray] = [np.empty(0, np.uint8)]
_ALONE = sys.getrefcount(_kept[0])
"""reference count of an array that only the list `_kept` references"""
_kept.clear()
_lock = threading.Lock()


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Return an array like numpy.empty. Its memory is reused once neither it nor a view of it is referenced."""
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
    """Return numpy.take of valid indices, in reused memory."""
    shape = (*array.shape[:axis], *numbers.shape, *array.shape[axis + 1:])
    return np.take(array, numbers, axis=axis, out=empty(shape, array.dtype), mode="clip")     # "raise" makes a copy


def clear() -> None:
    """Drop all kept memory: unreferenced arrays are freed, the others are not reused later."""
    with _lock:
        _kept.clear()


def _free(most: int) -> int:
    """Free unreferenced arrays, the oldest first, down to `most` bytes; return the number of bytes still kept."""
    total = sum(raw.nbytes for raw in _kept)
    i = 0
    while total > most and i < len(_kept):
        if sys.getrefcount(_kept[i]) == _ALONE:
            total -= _kept.pop(i).nbytes
        else:
            i += 1
    return total
