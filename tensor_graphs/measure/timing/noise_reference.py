"""noise_reference: a fixed piece of work that is timed between a kernel's runs, so that a noisy neighbour shows in both.

It reads the next slice of a buffer that no cache holds, or computes with numbers in the first-level cache. A kernel's time over the
reference's is comparable under different load, though not exactly (threads that wait for each other lose more). So only those runs
count in which the reference took about its best time; if there are few, all runs count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from tensor_graphs.argument_checks import switch

Kind = Literal["read", "arithmetic"]

BUFFER_BYTES, SLICE_BYTES = 64 << 20, 1 << 20
"""bytes of the buffer, as large as the last-level cache of the machines known to us, and of one reading: 0.05 ms, so that hundreds
of runs do not wait long, and work that is hidden between two runs stands out"""

NUMBERS = 2048
PASSES = 16
"""passes over f32 numbers that take up 8 KB, twice: some 30 µs"""

QUIET = 1.25
STILL = 1.15
"""factors on the reference's level up to which a run is quiet, and nearly undisturbed: some neighbours slow down reading by a
fifth, and those that work in the shared cache by a third"""

FEW_QUIET = 8
"""least number of quiet runs for a decision"""

SHARED = "TENSOR_GRAPHS_SHARED_MACHINE"
"""set to 1 where other programs never rest (a machine for tests, a server): then nothing waits for a quiet moment, and rows do not
record whether there was one. An environment variable, as commands and workers inherit it"""


def waits_for_quiet() -> bool:
    """Return whether measurements wait for moments in which nothing else works."""
    return not switch(SHARED, unless_said=False)

LEVEL = 0.1
"""share of the reference's times that are below its level"""


def level_of(times: Sequence[float]) -> float:
    """Return the undisturbed time of the reference, in the unit of its times; infinity for none."""
    return sorted(times)[int(len(times) * LEVEL)] if times else math.inf


class ReferenceStream:
    """Reference work of one kind. native: read through the native library and its threads, as native kernels do. level: lowest
    level of a row of runs so far [s]."""

    def __init__(self, kind: Kind, native: bool) -> None:
        self.kind, self.native = kind, native
        self.level = math.inf
        self.run: Callable[[], None] = self._arithmetic() if kind == "arithmetic" else self._read(native)

    def _read(self, native: bool) -> Callable[[], None]:
        data = np.zeros(BUFFER_BYTES // 8, dtype=np.uint64)
        data[::512] = 1                                             # an untouched page is not in memory at all
        slices = [data[at:at + SLICE_BYTES // 8] for at in range(0, data.size, SLICE_BYTES // 8)]
        turn = 0
        if native:
            from tensor_graphs.kernels.registry import native_library

            library = native_library()
            fold = np.zeros(16, dtype=np.uint32)

            def read(slice_: np.ndarray) -> None:
                library.call("tg_read_stream", [fold.ctypes.data, slice_.ctypes.data], [slice_.nbytes])
        else:
            def read(slice_: np.ndarray) -> None:
                np.bitwise_xor.reduce(slice_)

        def run() -> None:
            nonlocal turn
            read(slices[turn % len(slices)])
            turn += 1

        return run

    def _arithmetic(self) -> Callable[[], None]:
        x = np.linspace(-1.0, 1.0, NUMBERS, dtype=np.float32)
        y = np.empty_like(x)

        def run() -> None:
            y.fill(1.0)
            for _ in range(PASSES):                                 # 1 + x·(1 + x·(…)): nothing grows, nothing is denormal
                np.multiply(y, x, out=y)
                np.add(y, 1.0, out=y)

        return run


@lru_cache(maxsize=3)
def reference_stream(kind: Kind, native: bool) -> ReferenceStream:
    """Return the reference stream of this process, created once: filling its buffer takes 30 ms."""
    return ReferenceStream(kind, native)
