"""concurrent_runs: a kernel is run again and again under load; one in C in two threads at once, as two sessions of a service do.

What two runs share by mistake (a static buffer, a table without a lock) and what a race within a run spoils now and then shows in
no single run. Each thread has operands and outputs of its own, of other values; of the runs of the first thread the outputs are
kept that are farthest from those of a run alone. Whether they are right is for the judge to say: an honest kernel may add in
another order each time.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping

import numpy as np

from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.kernels.c.interleaved import Arguments, Interleaved
from tensor_graphs.kernels.kernel import NativeCall
from tensor_graphs.language.dims import evaluate
from tensor_graphs.measure.isolation.memory_guards import Guarded, bytes_of
from tensor_graphs.measure.timing.clock import now
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.segments.native import NativeList

log = logging.getLogger(__name__)

RUNS, SECONDS = 400, 0.2
"""runs of the first thread, or the time after which no other begins: 400 miss what is wrong 8 times of 300 once in 50,000"""

MEETINGS = 64
"""places in a call of a C kernel at which another one is run"""

SHORT, MOST_CALLS, CALLS_SECONDS = 1e-4, 1024, 1e-3
"""seconds of a run that is mostly Python, how many native calls are in a list of such, and what a list of longer ones takes"""

SWITCH_SECONDS = 1e-5
"""after which another thread may have the interpreter: by default, a kernel of a few microseconds is rarely interrupted"""


def run_beside_itself(plan: Plan, parameters: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray],
                      others: Mapping[str, np.ndarray], out: Mapping[str, Guarded], binding: Mapping[str, int]) -> float:
    """Run a plan on `inputs` while another thread runs it on `others`. Where its kernel is Python, which may keep scratch memory
    for all runs and set what it puts back, the other thread does work of its own. out: the outputs of a run alone on `inputs`,
    then those of the run that is farthest from it. Returns how far that is. Raises what a run raises."""
    compiled, beside = bind(plan, parameters), bind(plan, parameters)
    is_native = compiled.executors[0].one_native_call
    for segment in beside.executors[0].segments:
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
                    beside.run(others, dims=binding, out=fenced)
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
    """Run a C kernel from outside on `inputs`, and in the middle of it on `others`, at each of MEETINGS places. out: outputs, which
    are replaced where those of such a call are farther than `distance` from what the same code computes alone. Nothing is run where
    the compiler has no way to do it."""
    try:
        kernel = Interleaved(call.image)
    except ToolchainError as error:
        log.debug("no call is run in the middle of another: %s", error)
        return
    ints = [int(evaluate(each, binding)) for each in call.ints]

    def arguments(operands: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Arguments:
        given = list(operands.values())
        return Arguments([*outputs.values(), *(None if p is None else given[p] for p in call.pointers)], ints, call.floats)

    arrays = {name: guard.array for name, guard in out.items()}
    first = arguments(inputs, arrays)
    second = arguments(others, _fenced(out))
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
    """Arrays like these outputs, between zones: a kernel that writes there is found at other points, and spoils no heap here."""
    return {name: Guarded(guard.array.shape, guard.array.dtype).array for name, guard in out.items()}


def _calls_at_once(compiled: CompiledGraph, inputs: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray],
                   binding: Mapping[str, int]) -> int:
    """The number of calls in one list: MOST_CALLS where a run is short, else those that take about CALLS_SECONDS."""
    began = now()
    compiled.run(inputs, dims=binding, out=out)
    took = now() - began
    return MOST_CALLS if took < SHORT else max(1, int(CALLS_SECONDS / took))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """0 where all bits are equal, else how far the numbers are apart at most."""
    if np.array_equal(bytes_of(a), bytes_of(b)):
        return 0.0
    with np.errstate(all="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    most = float(np.max(np.where(np.isnan(difference), np.where(np.isnan(a) & np.isnan(b), 0.0, np.inf), difference)))
    return max(most, sys.float_info.min)
