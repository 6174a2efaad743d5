"""overlapped_calls: a user's C kernel, compiled so that a second call can begin in the middle of a first (interleaved.h).

In: the kernel's library and two calls.  Out: the number of basic blocks of the first call, and with `at` its results if the second
call runs between two of them. Threads that run at once meet inside a call of 100 ns hardly ever."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensor_graphs.devices.c_code import Text, ToolchainError
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.c.c_kernel import image_at

log = logging.getLogger(__name__)

FLAGS = ("-fsanitize-coverage=trace-pc", "-O1")
"""a call at each basic block; loops are left as they are written, so that there are as many blocks as iterations"""


class _Call(ctypes.Structure):
    """struct tg_call of interleaved.h."""

    _fields_ = [("ptr", ctypes.c_void_p), ("ints", ctypes.c_void_p), ("floats", ctypes.c_void_p)]


@dataclass(frozen=True)
class Arguments:
    """Arguments of a kernel: arrays, outputs first (None: NULL), sizes and scalars."""

    arrays: Sequence[np.ndarray | None]
    ints: Sequence[int]
    floats: Sequence[float]

    def call(self) -> _Call:
        """The call's tables; they live as long as it does."""
        pointers = [None if array is None else array.__array_interface__["data"][0] for array in self.arrays]
        tables = ((ctypes.c_void_p * max(1, len(pointers)))(*pointers), (ctypes.c_int64 * library.MAX_INT)(*self.ints),
                  (ctypes.c_double * max(1, len(self.floats)))(*self.floats))
        call = _Call(*(ctypes.addressof(table) for table in tables))
        call.tables = tables
        return call


class Interleaved:
    """The kernel of a library, to be called with another call in its middle."""

    def __init__(self, image: str) -> None:
        """image: the kernel's library. Raises ToolchainError where it is of no kernel from outside, or the compiler has no such
        flag."""
        kernel = image_at(image)
        if kernel is None:
            raise ToolchainError(f"{image} was compiled by nobody in this process")
        wrapper = Text("interleaved.c", f'#define TG_ENTRY {kernel.entry}\n#include "interleaved.h"\n', library.FOLDER)
        self._run = ctypes.CDLL(str(kernel.compiled((wrapper,), FLAGS))).tg_interleaved
        self._run.restype = ctypes.c_int64

    def run(self, first: Arguments, second: Arguments, at: int = -1) -> int:
        """Run the first call, and the second one where the first is at this block; returns the number of blocks of the first."""
        a, b = first.call(), second.call()
        return int(self._run(ctypes.byref(a), ctypes.byref(b), ctypes.c_int64(at)))
