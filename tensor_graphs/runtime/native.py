"""native: hands a list of prepared steps to the native runner in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np

from tensor_graphs.kernels.registry import native_library
from tensor_graphs.runtime.address import address

_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_RUN_PROFILED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class NativeRunner:
    """The native library's runner; the interpreter lock is released while it works."""

    def __init__(self) -> None:
        self.library = native_library()
        self._run = _RUN(ctypes.cast(self.library.runner(), ctypes.c_void_p).value or 0)
        self._profiled = _RUN_PROFILED(ctypes.cast(self.library.runner(profiled=True), ctypes.c_void_p).value or 0)

    def address(self, symbol: str, image: str = "") -> int:
        found: int = self.library.address(symbol, image)
        return found

    def call(self, steps: np.ndarray, bases: np.ndarray, values: np.ndarray) -> Callable[[], int]:
        """`run` with these tables, whose contents may change and whose memory may not; it gives what `check` looks at."""
        words = ctypes.c_void_p(address(steps)), ctypes.c_int64(len(steps)), *(ctypes.c_void_p(address(a)) for a in (bases, values))
        return partial(self._run, *words)

    def run(self, steps: np.ndarray, bases: np.ndarray, values: np.ndarray, seconds: np.ndarray | None = None) -> None:
        """Run steps (structured array, see executor.STEP); `seconds` (float64 per step) receives their times added on."""
        if seconds is None:
            status = self._run(address(steps), len(steps), address(bases), address(values))
        else:
            status = self._profiled(address(steps), len(steps), address(bases), address(values), address(seconds))
        check(status)


def check(status: int) -> None:
    """Raise ValueError where the runner met a malformed step."""
    if status:
        raise ValueError(f"step {status - 1} of a native list is malformed")
