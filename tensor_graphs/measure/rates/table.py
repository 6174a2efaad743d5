"""table: measures what this device's memory and arithmetic deliver, and what a call costs; calibration.py stores it.

Constants, all of them maxima of a few short runs, as nothing makes a machine faster than it is:

| name | unit | what |
|---|---|---|
| `read_bandwidth` | byte/s | reading memory that no cache holds |
| `read_bandwidth[N B]` | byte/s | reading the same N bytes again and again: N says which cache holds them |
| `copy_bandwidth`, `copy_bandwidth[N B]` | byte/s | copying: bytes read and bytes written both count, and both lie within the N |
| `flops_f32`, `flops_f64` | flop/s | this backend's linear on square matrices |
| `flops_bf16_weights` | flop/s | the same with f32 activations and bf16 weights |
| `call_overhead` | s | one more call of a kernel in a plan, on one number |
| `run_overhead` | s | one run of a plan of one call on one number, operands looked up and checked |
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tensor_graphs.costs.measured_rates import READ, RUN
from tensor_graphs.kernels.c.library import Step
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import backend_module, by_op, copy_kernels, lacking, load_backend, native_library, why_missing
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import add
from tensor_graphs.language.composites import linear, softmax
from tensor_graphs.language.dtypes import DType, bf16, f32, f64
from tensor_graphs.language.graph import graph
from tensor_graphs.language.node import Node
from tensor_graphs.measure.points.single_op_plans import plan_along, single_kernel_plan
from tensor_graphs.measure.timing.settle_threads import settle
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind

COPY = "copy_bandwidth"
CALL = "call_overhead"

STREAM_BYTES = 256 << 20
"""bytes that are streamed: several times the last-level cache of the machines known to us"""

WORKING_SETS = tuple(16 << 10 << 2 * k for k in range(8))
"""bytes: 16 KiB (the first-level cache) to 256 MiB (memory)"""

FLOPS: Mapping[str, tuple[DType, DType]] = {"flops_f32": (f32, f32), "flops_f64": (f64, f64), "flops_bf16_weights": (f32, bf16)}
"""name of the constant -> dtypes of activations and weights"""

LINEAR_SIZE = 768
"""rows, inputs and outputs of the linear op whose speed counts as that of the device's arithmetic: 0.9 Gflop"""

CHAIN, REPEATS = 64, 4
"""calls of the plan that is compared with a plan of one call; runs of each measurement, the first of which does not count"""

LEAST_BYTES, LEAST_RUNS = 8 << 20, 20
"""lower bounds to which short measurements are prolonged: bytes read from a small working set, runs of a plan"""

LONGEST, DISTURBED = 0.1, 0.3
"""seconds after which a measurement is not repeated, so that a slow or busy machine takes only seconds too; the same limit where
another process took a processor during each run"""


def sized(name: str, nbytes: int) -> str:
    """Return the name of a bandwidth at a working set of this many bytes."""
    return f"{name}[{nbytes} B]"


def working_set(name: str) -> tuple[str, int] | None:
    """Return (name, bytes) such that `sized` returns this name; None for a name without a size."""
    base, bracket, rest = name.partition("[")
    return (base, int(rest.removesuffix(" B]"))) if bracket else None


@dataclass(frozen=True)
class Speed:
    """One measured constant."""

    value: float
    unit: str


# ---- memory ----


def memory_names() -> tuple[str, ...]:
    return (READ, COPY, *(sized(name, n) for name in (READ, COPY) for n in WORKING_SETS))


def memory_speeds() -> dict[str, Speed]:
    """Measure the bandwidths of reading and copying, by working set; that of the largest set is also stored without a size."""
    data, speeds = _stream(), dict[str, Speed]()
    settle()
    for name, prepare in ((READ, reading), (COPY, copying)):
        for nbytes in WORKING_SETS:
            times = max(1, LEAST_BYTES // nbytes)
            speeds[sized(name, nbytes)] = Speed(times * nbytes / fastest(prepare(data[:nbytes // 8], times)), "byte/s")
    stream = sized(READ, STREAM_BYTES)
    for _ in range(REPEATS):
        if speeds[stream].value < speeds[sized(COPY, STREAM_BYTES)].value:    # which reads too: something disturbed
            settle()
            speeds[stream] = Speed(max(speeds[stream].value, STREAM_BYTES / fastest(reading(data))), "byte/s")
    return speeds | {name: speeds[sized(name, STREAM_BYTES)] for name in (READ, COPY)}


def reading_speed() -> Speed:
    """Measure the bandwidth of reading memory that is in no cache."""
    return Speed(STREAM_BYTES / fastest(reading(_stream())), "byte/s")


def _stream() -> np.ndarray:
    data = np.zeros(STREAM_BYTES // 8, dtype=np.uint64)
    data[::512] = 1                                                # touch every page: an unwritten one is not in memory at all
    return data


def flops_speed(backend: str) -> Speed:
    """Measure f32 arithmetic. Raises ValueError where the backend has no kernel for it."""
    return Speed(flops(backend, "flops_f32"), "flop/s")


def run_speed(backend: str) -> Speed:
    """Measure the overhead of a plan's run with one call: a copy of one number, where the backend can copy (an addition in C would
    have to be compiled, for a second), or a sum. Raises ValueError where the backend has no kernel for it."""
    if not any(kernel.backend == backend for kernel in copy_kernels((backend,))):
        return Speed(run_seconds(backend, 1), "s")
    copying = graph({"y": leaves.input("x", (1,), f32)})
    return Speed(_seconds_of(bind(plan_along(copying, copying.roots, _no_choice, copy_kernels((backend,)), (backend,)))), "s")


def _no_choice(node: Node) -> NoReturn:
    raise AssertionError(f"{node.op.name} is no copy")


def reading(data: np.ndarray, times: int = 1) -> Callable[[], None]:
    """Return a function that reads the array `times` times: by the native stream kernel, or else a numpy reduction, which takes a
    microsecond to begin and so shows less of the first-level caches."""
    if why_missing("c") is None:
        return _native("tg_read_stream", (np.zeros(16, dtype=np.uint32), data), (data.nbytes,), times)

    def run() -> None:
        for _ in range(times):
            np.bitwise_xor.reduce(data)

    return run


def copying(data: np.ndarray, times: int = 1) -> Callable[[], None]:
    """Return a function that copies one half of the array to the other half, `times` times."""
    half = data.size // 2
    source, to = data[:half], data[half:]
    if why_missing("c") is None:
        call = backend_module("c").copy_call((half,), (1,), (1,), 8)
        return _native(call.symbol, (to, source), call.ints, times)

    def run() -> None:
        for _ in range(times):
            np.copyto(to, source)

    return run


def _native(symbol: str, arrays: Sequence[np.ndarray], ints: Sequence[int], times: int) -> Callable[[], None]:
    """Return a function that calls a native kernel `times` times in a row without returning to Python."""
    library = native_library()
    values = [0, *(int(i) for i in ints)]                           # value 0: the byte offset of every array
    steps = (Step * times)()
    for step in steps:
        step.fn, step.n_ptr, step.n_int = library.address(symbol), len(arrays), len(ints)
        step.ptr_base[:len(arrays)] = range(len(arrays))
        step.ints[:len(ints)] = range(1, len(values))
    return lambda: library.run(steps, [a.ctypes.data for a in arrays], values)


# ---- arithmetic and calls, by backend ----


def backend_names(backend: str) -> tuple[str, ...]:
    """Return the names of the constants that can be measured for a backend: those for which it has a kernel."""
    return (*(name for name in FLOPS if not isinstance(flops_kernel(backend, name), str)),
            *((CALL, RUN) if _small_step(backend) is not None else ()))


def backend_speeds(backend: str) -> dict[str, Speed]:
    """Measure a backend's arithmetic by dtype, and the cost of a call."""
    names = backend_names(backend)
    speeds = {name: Speed(flops(backend, name), "flop/s") for name in names if name in FLOPS}
    if CALL in names:
        settle()                                                   # the threads of the products spin on for a while
        one, many = run_seconds(backend, 1), run_seconds(backend, CHAIN)
        speeds[CALL] = Speed(max(0.0, many - one) / (CHAIN - 1), "s")
        speeds[RUN] = run_speed(backend)
    return speeds


def flops_kernel(backend: str, name: str) -> Kernel | str:
    """Return the kernel with which this constant (a key of FLOPS) is measured, or why there is none."""
    return _kernel(backend, _linear(name, LINEAR_SIZE))


def flops(backend: str, name: str, size: int = LINEAR_SIZE) -> float:
    """Measure the flop/s of this backend's linear on square matrices. Raises ValueError where it has no kernel."""
    node = _linear(name, size)
    kernel = _kernel(backend, node)
    if isinstance(kernel, str):
        raise ValueError(f"{backend} has no {name}: {kernel}")
    x, w = node.inputs
    rng = np.random.Generator(np.random.Philox(key=1))
    values = [rng.standard_normal((size, size), dtype=np.float32).astype(i.dtype.numpy) for i in (x, w)]
    compiled = bind(single_kernel_plan(graph({"y": node}), kernel), {"w": values[1]})
    out = {"y": np.empty((size, size), dtype=node.dtype.numpy)}
    return 2.0 * size ** 3 / fastest(lambda: compiled.run({"x": values[0]}, out=out))


def run_seconds(backend: str, calls: int) -> float:
    """Measure the seconds of a plan of this many calls on one number: additions, or softmax where a backend has none."""
    step = _small_step(backend)
    if step is None:
        raise ValueError(f"{backend} has no {CALL}: {_kernel(backend, _of_one_number(add))}")
    compute, kernel = step
    return _seconds_of(bind(single_kernel_plan(graph({"y": _of_one_number(compute, calls)}), kernel)))


def _seconds_of(compiled: CompiledGraph) -> float:
    """Measure the seconds of one run of a graph with an input x and an output y of one number each."""
    inputs, out = {"x": np.zeros(1, np.float32)}, {"y": np.zeros(1, np.float32)}

    def runs() -> None:
        for _ in range(LEAST_RUNS):
            compiled.run(inputs, out=out)

    return fastest(runs) / LEAST_RUNS


def _linear(name: str, size: int) -> Node:
    activations, weights = FLOPS[name]
    return linear(leaves.input("x", (size, size), activations), leaves.parameter("w", (size, size), weights))


def _small_step(backend: str) -> tuple[Callable[[Node, Node], Node], Kernel] | None:
    """Return a step on one number that a backend has a kernel for, with the kernel: an addition, or a softmax."""
    for step in (add, lambda total, _: softmax(total)):
        kernel = _kernel(backend, _of_one_number(step))
        if not isinstance(kernel, str):
            return step, kernel
    return None


def _of_one_number(step: Callable[[Node, Node], Node], calls: int = 1) -> Node:
    x = total = leaves.input("x", (1,), f32)
    for _ in range(calls):
        total = step(total, x)
    return total


def _kernel(backend: str, node: Node) -> Kernel | str:
    """Return the first kernel of a backend that runs this op, or why none does."""
    taken = takers(backend, node)
    return taken if isinstance(taken, str) else taken[0]


def takers(backend: str, node: Node) -> list[Kernel] | str:
    """Return the kernels of a backend that run this op, or why there is none."""
    spec = signature_of(node).spec
    taken, refused = [], []
    for kernel in by_op(load_backend(backend)).get(spec.op.name, ()):
        reason = lacking(kernel) or kernel.accepts(spec)
        if reason is None:
            taken.append(kernel)
        else:
            refused.append(f"{kernel.name} takes {reason}" if reason.endswith("only") else f"{kernel.name}: {reason}")
    return taken or "; ".join(refused) or f"no kernel for {spec.op.name}"


def fastest(run: Callable[[], object]) -> float:
    """Return the seconds of the fastest of REPEATS − 1 runs; of fewer if they are slow, of more if all were disturbed."""
    run()
    best, runs, undisturbed, started = float("inf"), 0, False, time.perf_counter()
    while True:
        switches, start = _switches(), time.perf_counter()
        run()
        best, runs = min(best, time.perf_counter() - start), runs + 1
        undisturbed = undisturbed or _switches() == switches
        spent = time.perf_counter() - started
        if (runs >= REPEATS - 1 or spent > LONGEST) if undisturbed else spent > DISTURBED:
            return best


def _switches() -> int:
    """Return how often the system has taken a processor from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
