"""native: hands a list of prepared steps to the native runner in one call."""

from __future__ import annotations

import ctypes

import numpy as np

from tensor_graphs.kernels.registry import native_library

_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_RUN_PROFILED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def pointer(array: np.ndarray) -> int:
    """The address of an array's first byte (`__array_interface__` would spell out a structured dtype: 90 µs)."""
    return array.ctypes.data


class NativeRunner:
    """The native library's runner; the interpreter lock is released while it works."""

    def __init__(self) -> None:
        self.library = native_library()
        self._run = _RUN(ctypes.cast(self.library.runner(), ctypes.c_void_p).value or 0)
        self._profiled = _RUN_PROFILED(ctypes.cast(self.library.runner(profiled=True), ctypes.c_void_p).value or 0)

    def address(self, symbol: str) -> int:
        found: int = self.library.address(symbol)
        return found

    def run(self, steps: np.ndarray, bases: np.ndarray, values: np.ndarray, seconds: np.ndarray | None = None) -> None:
        """Run steps (structured array, see executor.STEP); `seconds` (float64 per step) receives their times added on."""
        if seconds is None:
            status = self._run(pointer(steps), len(steps), pointer(bases), pointer(values))
        else:
            status = self._profiled(pointer(steps), len(steps), pointer(bases), pointer(values), pointer(seconds))
        if status:
            raise ValueError(f"step {status - 1} of a native list is malformed")
