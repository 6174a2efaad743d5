"""native: the segment of native steps, which the native runner executes in one call without Python in between."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from tensor_graphs.devices.array_address import address
from tensor_graphs.kernels.kernel import NativeCall
from tensor_graphs.kernels.registry import native_library
from tensor_graphs.paths.lower import Instruction, Operand
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.segment import Clock, Segment

STEP = np.dtype([("fn", "<u8"), ("n_ptr", "<i4"), ("n_int", "<i4"), ("n_float", "<i4"), ("_pad", "<i4"),
                 ("ptr_base", "<i4", 16), ("ptr_offset", "<i4", 16), ("ints", "<i4", 32), ("floats", "<f8", 8)])
"""numpy dtype that mirrors struct tg_step in kernels/c/tg.h"""

_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
_RUN_AT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_RUN_PROFILED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class NativeRunner:
    """The runner of the native library; the interpreter lock is released while it works."""

    def __init__(self) -> None:
        self.library = native_library()
        self._run, self._run_at, self._profiled = (
            kind(ctypes.cast(self.library.runner(name), ctypes.c_void_p).value or 0)
            for kind, name in ((_RUN, "tg_run"), (_RUN_AT, "tg_run_at"), (_RUN_PROFILED, "tg_run_profiled")))

    def address(self, symbol: str, image: str = "") -> int:
        return int(self.library.address(symbol, image))

    def call(self, steps: np.ndarray, bases: np.ndarray, values: np.ndarray) -> Callable[[], int]:
        """Return `run` bound to these tables, whose contents may change, but not their memory. Its result is for `check`."""
        return partial(self._run_at, (ctypes.c_int64 * 4)(address(steps), len(steps), address(bases), address(values)))

    def run(self, steps: np.ndarray, bases: np.ndarray, values: np.ndarray, seconds: np.ndarray | None = None) -> None:
        """Run steps (array of STEP). seconds: float64 per step, to which the step's time is added."""
        if seconds is None:
            status = self._run(address(steps), len(steps), address(bases), address(values))
        else:
            status = self._profiled(address(steps), len(steps), address(bases), address(values), address(seconds))
        check(status)


_runner = cache(NativeRunner)


def check(status: int) -> None:
    """Raise ValueError where the runner met a malformed step."""
    if status:
        raise ValueError(f"step {status - 1} of a native list is malformed")


class NativeList(Segment):
    """A segment of native calls, kept as an array of STEP."""

    native = True

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables) -> None:
        super().__init__(indices, instructions, lookup)
        self._runner = _runner()
        self.steps = np.zeros(len(instructions), dtype=STEP)
        for step, ins in zip(self.steps, instructions, strict=True):
            call = ins.call
            assert isinstance(call, NativeCall)
            operands: list[Operand | None] = [*ins.outs, *(None if p is None else ins.ins[p] for p in call.pointers)]
            if len(operands) > 16 or len(call.ints) > 32 or len(call.floats) > 8:
                raise ValueError(f"{ins.kernel} has more arguments than a step holds")
            step["fn"] = self._runner.address(call.symbol, call.image)
            step["n_ptr"], step["n_int"], step["n_float"] = len(operands), len(call.ints), len(call.floats)
            for i, o in enumerate(operands):
                step["ptr_base"][i] = 0 if o is None else lookup.base(o)
                step["ptr_offset"][i] = lookup.pointer(o)
            for i, value in enumerate(call.ints):
                step["ints"][i] = lookup.expr(value)
            for i, number in enumerate(call.floats):
                step["floats"][i] = number

    def prepare(self) -> None:
        self.steps["ptr_offset"] += self.lookup.n_exprs                # pointers come behind the expressions

    def run(self, frame: Frame) -> None:
        self._runner.run(self.steps, frame.bases, frame.values)

    def time(self, frame: Frame, seconds: Any) -> None:
        part = np.zeros(len(self.steps))
        self._runner.run(self.steps, frame.bases, frame.values, part)
        seconds[self.indices] += part

    def one(self, frame: Frame, k: int) -> None:
        self._runner.run(self.steps[k:k + 1], frame.bases, frame.values)

    def silence(self) -> Callable[[], None]:
        functions = self.steps["fn"]
        saved = functions.copy()
        functions[:] = self._runner.address("tg_noop")
        return partial(np.copyto, functions, saved)

    def watch(self, clock: Clock, taken: list[float]) -> Sequence[int]:
        return self.indices

    def native_call(self, frame: Frame) -> Callable[[], int] | None:
        return self._runner.call(self.steps, frame.bases, frame.values)
