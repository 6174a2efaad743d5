"""clock: provides a clock that a candidate cannot set, and times every call of a plan.

The functions bound by this module are builtins taken before any candidate is imported: replacing `time.perf_counter` later does not
affect them. A candidate that rewrites machine code can still slow this clock down; then its claims no longer add up to the time
that the judge measures outside (timed_batch.py)."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.measure.timing.device_memory import ZONE_BYTES, DeviceLab

if TYPE_CHECKING:
    from tensor_graphs.runtime.compiled_graph import CompiledGraph

now = time.perf_counter
"""seconds on CLOCK_MONOTONIC"""

busy_seconds = time.process_time
"""processor seconds of all threads of this process"""

sleep = time.sleep

_usage, _SELF = resource.getrusage, resource.RUSAGE_SELF


def switches() -> int:
    """Return how often a thread of this process has been preempted by another so far."""
    return _usage(_SELF).ru_nivcsw


_open, _read, _close = os.open, os.read, os.close


def waited() -> float:
    """Return the seconds for which this thread has waited for a processor so far (proc(5), schedstat); 0 where unknown. The file is
    opened each time (4 µs), as a candidate can replace the file behind a stored descriptor."""
    try:
        schedule = _open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return int(_read(schedule, 100).split()[1]) * 1e-9
    finally:
        _close(schedule)


try:
    _running = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
except OSError:                                                     # no Linux
    _running = -1


def others_running() -> int:
    """Return how many threads of other programs run or wait for a processor now; 0 where unknown.

    proc(5): the fourth field of /proc/loadavg begins with the number of runnable threads. Those of this process are subtracted
    (after a matrix product threads spin for a while). Both are read up to three times while a difference remains, as threads may
    have gone to sleep in between. They are read even if this is the only thread, as the time around a run comes from runs of
    nothing (timed_batch.py): reading them only after runs of two-threaded kernels made honest kernels IMPLAUSIBLE."""
    others = 0
    for _ in range(3 if _running >= 0 else 0):
        running = int(os.pread(_running, 100, 0).split()[3].split(b"/")[0])
        others = max(0, running - _own_running())
        if not others:
            break
    return others


_states: dict[str, int] = {}
"""thread -> its open stat file: opening and closing it each time takes four times as long as reading it"""


def _own_running() -> int:
    count, tasks = 0, os.listdir("/proc/self/task")
    for task in tasks:
        try:
            if task not in _states:
                _states[task] = os.open(f"/proc/self/task/{task}/stat", os.O_RDONLY | os.O_CLOEXEC)
            count += os.pread(_states[task], 100, 0).rpartition(b") ")[2][:1] == b"R"
        except OSError:                                             # it has ended meanwhile, or its number is another thread's now
            _forget(task)
    if len(_states) > len(tasks):
        for task in _states.keys() - tasks:
            _forget(task)
    return count


def _forget(task: str) -> None:
    descriptor = _states.pop(task, -1)
    if descriptor >= 0:
        with suppress(OSError):
            os.close(descriptor)


TIMER = "CLOCK_MONOTONIC, watched by the judge"

WALKS = 9
"""runs without calls by which the cost of the walk over a plan's instructions is measured"""


class Watched:
    """Compiled graph whose calls are timed one by one: native calls by the native runner, others by a wrapper around each. It uses
    exactly the given memory: unlike with `CompiledGraph.run`, an output may be in an input's memory."""

    def __init__(self, compiled: CompiledGraph) -> None:
        from tensor_graphs.runtime.run_frame import Frame

        self.executor = compiled.executors[0]
        self.dims = compiled.dims
        self.frame = Frame(self.executor)
        self._taken: list[float] = []
        self._native = np.array(self.executor.watch(now, self._taken), dtype=np.int64)
        self._seconds = np.zeros(len(self.executor.program.instructions))
        self.lab = DeviceLab(self.executor)

    def run(self, inputs: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray], binding: Mapping[str, int], *,
            shift: int = 0, shown: bool = False) -> float:
        """Run once; return the seconds of its calls, without the walk over the instructions between them. shift: bytes by which
        memory on other devices is moved off its alignment. shown: nothing is timed, so that all their memory can be poisoned."""
        executor = self.executor
        bases = {base: memory_of(inputs[n]) for n, base in executor.input_bases.items()}
        bases |= {base: memory_of(out[n]) for n, base in executor.output_bases.items()}
        self._taken.clear()
        self._seconds.fill(0.0)
        sizes = tuple(binding[n] for n in self.dims)
        if self.lab.devices:
            self.frame.spread(ZONE_BYTES, shift)
            executor.ready(self.frame, sizes, bases)
            self.lab.poison(self.frame, shown)
        executor.run(self.frame, sizes, bases, seconds=self._seconds)
        return sum(self._taken) + float(self._seconds[self._native].sum())

    def let_go(self) -> None:
        """Release the references to inputs and outputs."""
        self.frame.let_go((*self.executor.input_bases.values(), *self.executor.output_bases.values()))

    def walk(self, inputs: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray], binding: Mapping[str, int]) -> float:
        """Return the seconds of a run without its calls."""
        undo = self.executor.silence()
        try:
            taken = []
            for _ in range(WALKS):
                start = now()
                self.run(inputs, out, binding)
                taken.append(now() - start)
        finally:
            undo()
        return sorted(taken)[WALKS // 2]
