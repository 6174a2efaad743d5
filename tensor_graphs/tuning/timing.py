"""timing: time schedules of one signature in this process, interleaved with the seed.

Code from the package's own generator is trusted: candidates run in this process and its thread pool, and are compared with the
seed's outputs before timing. The judge compares the winner with the oracle in a separate process before it is chosen (tune.py).
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensor_graphs.codegen import compiled_libraries
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.measure.points.inputs import make_inputs

COLD_BYTES, MOST_SETS = 32 << 20, 8
"""bytes of distinct operands through which runs rotate, and the most sets of them: a run's operands have left the nearest cache"""

LEAST_SECONDS = 2e-4
"""least duration of a sample; shorter runs are repeated"""

HALF_LIMIT, NARROW_LIMIT, WIDE_LIMIT = 2e-2, 1e-4, 1e-10
"""largest deviation of a schedule's outputs from the seed's, by dtype width, relative to the largest output: sums change order"""

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True)
class Paired:
    """Samples [s] of a schedule and of the seed, each pair consecutive."""

    own: tuple[float, ...]
    seed: tuple[float, ...]

    @staticmethod
    def joined(several: Sequence[Paired]) -> Paired:
        """Return the pairs of several objects as one."""
        return Paired(tuple(s for paired in several for s in paired.own), tuple(s for paired in several for s in paired.seed))

    @property
    def ratio(self) -> float:
        """Ratio of the schedule's time to the seed's: the median over pairs, which a slow moment affects little."""
        return float(np.median(np.asarray(self.own) / np.asarray(self.seed)))

    @property
    def wins(self) -> float:
        """Share of pairs in which the schedule was faster."""
        return float(np.mean(np.asarray(self.own) < np.asarray(self.seed)))


class WrongOutputs(Exception):
    """Error: a schedule's results differ from the seed's."""


class ScheduleBench:
    """Operands of a signature at given sizes, on which programs are called and timed."""

    def __init__(self, signature: Signature, binding: Mapping[str, int]) -> None:
        self.native = library.load()
        self.ints = {name: int(binding[name]) for name in signature.dim_names}
        inputs = [np.ascontiguousarray(x) for x in make_inputs(signature.graph, self.ints, 1).values()]
        shapes = [tuple(int(d.evaluate(s, binding)) for s in t.shape) for t in signature.spec.outputs]
        self.dtypes = [t.dtype.numpy for t in signature.spec.outputs]
        nbytes = sum(x.nbytes for x in inputs) + sum(math.prod(s) * t.itemsize for s, t in zip(shapes, self.dtypes, strict=True))
        count = min(MOST_SETS, max(2, COLD_BYTES // max(nbytes, 1)))
        self.sets = [([np.empty(s, t) for s, t in zip(shapes, self.dtypes, strict=True)], [x.copy() for x in inputs])
                     for _ in range(count)]
        self.pointers = [(ctypes.c_void_p * (len(outs) + len(ins)))(*(x.ctypes.data for x in (*outs, *ins)))
                         for outs, ins in self.sets]
        self.operands, self.expected = inputs, list[np.ndarray]()
        self.turn = 0

    def load(self, program: StageProgram) -> Callable[[], None]:
        """Return a function that calls a compiled program, on the next set of operands each time."""
        code = compiled_libraries.code_of(program)
        function = _CALL(self.native.address(code.symbol, str(code.path)))
        ints = (ctypes.c_int64 * max(1, len(program.dims)))(*(self.ints[str(s)] for s in program.dims))
        floats = (ctypes.c_double * 1)()

        def run() -> None:
            self.turn += 1
            function(self.pointers[self.turn % len(self.pointers)], ints, floats)

        return run

    def compare(self, run: Callable[[], None]) -> None:
        """Raise WrongOutputs where a call's results differ from those of the first call compared."""
        outs = self.sets[(self.turn + 1) % len(self.sets)][0]
        for out in outs:
            out.reshape(-1).view(np.uint8)[:] = 0xA5                  # a number alone has no bytes to view
        run()
        if not self.expected:
            self.expected = [out.copy() for out in outs]
            return
        for out, ref in zip(outs, self.expected, strict=True):
            if (off := why_off(out, ref)) is not None:
                raise WrongOutputs(off)

    def pairs(self, run: Callable[[], None], seed: Callable[[], None], rounds: int) -> Paired:
        """Return interleaved samples of both functions; the order within pairs alternates."""
        repeats = self.repeats(seed)
        own, its = list[float](), list[float]()
        for i in range(rounds):
            for which, into in ((run, own), (seed, its)) if i % 2 else ((seed, its), (run, own)):
                which()
                begun = time.perf_counter()
                for _ in range(repeats):
                    which()
                into.append((time.perf_counter() - begun) / repeats)
        return Paired(tuple(own), tuple(its))

    def repeats(self, run: Callable[[], None]) -> int:
        """Return the number of runs in a sample."""
        run()
        begun = time.perf_counter()
        run()
        return max(1, math.ceil(LEAST_SECONDS / max(time.perf_counter() - begun, 1e-7)))


def why_off(out: np.ndarray, ref: np.ndarray) -> str | None:
    """Return how an output deviates from the seed's; None where it is as close as another order of sums."""
    if out.tobytes() == ref.tobytes():
        return None
    if out.dtype.kind in "iub":                                     # sums of integers are exact in any order
        return "it is off the rules' schedule in integers"
    limit = WIDE_LIMIT if out.dtype.itemsize == 8 else NARROW_LIMIT if out.dtype.itemsize == 4 else HALF_LIMIT
    own, its = out.astype(np.float64), ref.astype(np.float64)
    scale = float(np.max(np.abs(its), initial=0.0, where=np.isfinite(its)))
    if np.allclose(own, its, rtol=limit, atol=limit * scale, equal_nan=True):
        return None
    return f"it is off the rules' schedule by {np.nanmax(np.abs(own - its)):.2g}"


def compiled(programs: Sequence[StageProgram]) -> list[str | None]:
    """Compile programs together; return for each None, or why it cannot be compiled."""
    return compiled_libraries.compiled(programs)
