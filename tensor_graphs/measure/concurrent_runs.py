"""concurrent_runs: runs a kernel many times under load; a C kernel in two threads simultaneously, as two sessions of a service do.
A single run shows neither what two runs share by mistake (a static buffer, a table without a lock) nor a race within a run. Each
thread has its own operands, with other values, and its own outputs. Of the first thread's runs, the outputs that differ most from
those of an undisturbed run are kept. The judge compares these: a correct kernel may add in another order each time."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping

import numpy as np

from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.kernels.c.overlapped_calls import Arguments, Interleaved
from tensor_graphs.kernels.kernel import NativeCall
from tensor_graphs.language.dims import evaluate
from tensor_graphs.measure.isolation.memory_guards import Guarded, bytes_of
from tensor_graphs.measure.timing.clock import now
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.segments.native import NativeList

log = logging.getLogger(__name__)

RUNS, SECONDS = 400, 0.2
"""runs of the first thread, and seconds after which no other begins: 400 miss a fault of 8 in 300 runs once in 50,000"""

MEETINGS = 64
"""positions within a call of a C kernel at which a second call is run"""

SHORT, MOST_CALLS, CALLS_SECONDS = 1e-4, 1024, 1e-3
"""seconds of a short run, which is mostly Python; native calls in a list of short runs; seconds of a list of longer runs"""

SWITCH_SECONDS = 1e-5
"""interpreter switch interval during these runs: with the default, a kernel of a few microseconds is rarely interrupted"""


def run_under_load(plan: Plan, parameters: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray],
                      others: Mapping[str, np.ndarray], out: Mapping[str, Guarded], binding: Mapping[str, int]) -> float:
    """Run a plan repeatedly on `inputs` while another thread runs it on `others` (or numpy, if the plan is not one native call).
    out: the outputs of an undisturbed run, replaced by those farthest from them. Return that distance. Raises what a run raises."""
    compiled, other = bind(plan, parameters), bind(plan, parameters)
    is_native = compiled.executors[0].one_native_call
    for segment in other.executors[0].segments:
        if isinstance(segment, NativeList):                         # thousands of short calls without the interpreter in between
            segment.steps = np.tile(segment.steps, _calls_at_once(compiled, others, _fenced(out), binding))
    alone = {name: guard.array.copy() for name, guard in out.items()}
    fenced, load = _fenced(out), np.ones(1 << 14)
    farthest, distance = alone, 0.0
    ended, errors = threading.Event(), list[BaseException]()

    def run_others() -> None:
        try:
            while not ended.is_set():
                if is_native:
                    other.run(others, dims=binding, out=fenced)
                else:
                    np.sqrt(load, out=load)
        except BaseException as error:
            errors.append(error)

    thread, interval = threading.Thread(target=run_others), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    thread.start()
    try:
        until = now() + SECONDS
        for _ in range(RUNS):
            for guard in out.values():
                guard.poison()
            compiled.run(inputs, dims=binding, out={name: guard.array for name, guard in out.items()})
            apart = max(_apart(guard.array, alone[name]) for name, guard in out.items())
            if apart > distance:
                farthest, distance = {name: guard.array.copy() for name, guard in out.items()}, apart
            if now() > until:
                break
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
    for name, guard in out.items():
        guard.array[...] = farthest[name]
    return distance


def run_interleaved(call: NativeCall, inputs: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray],
                    out: Mapping[str, Guarded], binding: Mapping[str, int], distance: float) -> None:
    """Run a user-registered C kernel on `inputs`, interrupted at each of MEETINGS positions by a call on `others`, if it compiles.
    out: set to the outputs farthest from those of an undisturbed call, if they are farther than `distance`."""
    try:
        kernel = Interleaved(call.image)
    except ToolchainError as error:
        log.debug("no call is run in the middle of another: %s", error)
        return
    ints = [int(evaluate(expression, binding)) for expression in call.ints]

    def arguments(operands: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Arguments:
        values = list(operands.values())
        return Arguments([*outputs.values(), *(None if p is None else values[p] for p in call.pointers)], ints, call.floats)

    arrays = {name: guard.array for name, guard in out.items()}
    first, second = arguments(inputs, arrays), arguments(others, _fenced(out))
    returned = {name: array.copy() for name, array in arrays.items()}
    count = kernel.run(first, second)
    alone = {name: array.copy() for name, array in arrays.items()}
    farthest, until = returned, now() + SECONDS
    for meeting in range(MEETINGS):
        if now() > until:
            break
        for guard in out.values():
            guard.poison()
        kernel.run(first, second, int((meeting + np.random.default_rng().random()) * count / MEETINGS))
        apart = max(_apart(array, alone[name]) for name, array in arrays.items())
        if apart > distance:
            farthest, distance = {name: array.copy() for name, array in arrays.items()}, apart
    for name, array in arrays.items():
        array[...] = farthest[name]


def _fenced(out: Mapping[str, Guarded]) -> dict[str, np.ndarray]:
    """Return arrays shaped like these outputs, between guard zones, so that out-of-bounds writes damage no heap of this process."""
    return {name: Guarded(guard.array.shape, guard.array.dtype).array for name, guard in out.items()}


def _calls_at_once(compiled: CompiledGraph, inputs: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray],
                   binding: Mapping[str, int]) -> int:
    """Return the number of calls in one native list: MOST_CALLS where a run is short, else as many as take about CALLS_SECONDS."""
    began = now()
    compiled.run(inputs, dims=binding, out=out)
    took = now() - began
    return MOST_CALLS if took < SHORT else max(1, int(CALLS_SECONDS / took))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return 0 where all bits are equal, else the largest absolute difference of two elements."""
    if np.array_equal(bytes_of(a), bytes_of(b)):
        return 0.0
    with np.errstate(all="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    most = float(np.max(np.where(np.isnan(difference), np.where(np.isnan(a) & np.isnan(b), 0.0, np.inf), difference)))
    return max(most, sys.float_info.min)
