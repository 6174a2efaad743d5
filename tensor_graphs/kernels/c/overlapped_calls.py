"""overlapped_calls: a second call of a user-registered C kernel in the middle of a first (interleaved.h), to find shared state.

In: the kernel's library and two calls.  Out: the number of basic blocks that the first call runs, and the outputs where the second
call ran at basic block `at` of the first. Calls of 100 ns on free-running threads would hardly ever overlap."""

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
"""compiler flags: a callback at each basic block, and no unrolling of loops, so that each iteration is a block"""


class _Call(ctypes.Structure):
    """The struct tg_call of interleaved.h: the arguments of one call."""

    _fields_ = [("ptr", ctypes.c_void_p), ("ints", ctypes.c_void_p), ("floats", ctypes.c_void_p)]


@dataclass(frozen=True)
class Arguments:
    """The arguments of a kernel call. arrays: outputs, then operands; None is NULL."""

    arrays: Sequence[np.ndarray | None]
    ints: Sequence[int]
    floats: Sequence[float]

    def call(self) -> _Call:
        """Return the C struct of the arguments; it keeps the tables that it points to alive."""
        pointers = [None if array is None else array.__array_interface__["data"][0] for array in self.arrays]
        tables = ((ctypes.c_void_p * max(1, len(pointers)))(*pointers), (ctypes.c_int64 * library.MAX_INT)(*self.ints),
                  (ctypes.c_double * max(1, len(self.floats)))(*self.floats))
        call = _Call(*(ctypes.addressof(table) for table in tables))
        call.tables = tables
        return call


class Interleaved:
    """A user-registered kernel compiled with callbacks at basic blocks, so that a second call can run inside a first."""

    def __init__(self, image: str) -> None:
        """Compile the kernel of a library. image: path of the library. Raises ToolchainError where the library is not of a kernel
        registered in this process, or the compiler lacks the flag."""
        kernel = image_at(image)
        if kernel is None:
            raise ToolchainError(f"{image} was compiled by nobody in this process")
        wrapper = Text("interleaved.c", f'#define TG_ENTRY {kernel.entry}\n#include "interleaved.h"\n', library.FOLDER)
        self._run = ctypes.CDLL(str(kernel.compiled((wrapper,), FLAGS))).tg_interleaved
        self._run.restype = ctypes.c_int64

    def run(self, first: Arguments, second: Arguments, at: int = -1) -> int:
        """Run the first call, and the second at basic block `at` of the first. Returns the number of blocks of the first call."""
        a, b = first.call(), second.call()
        return int(self._run(ctypes.byref(a), ctypes.byref(b), ctypes.c_int64(at)))
