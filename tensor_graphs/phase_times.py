"""phase_times: the time that a command spends in each kind of work, marked by `with phase("verify"):`. `tg --verbose` prints it.

Phases nest: the time of an inner phase is not counted in the outer one, so the rows add up to the total. Time in no phase has a row
too. Only the thread that first enters a phase is followed; work of other threads shows in its processor time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

IMPORT, ELSE = "import", "anything else"


@dataclass
class Spent:
    """Time in all phases of one name, without the phases nested in them. wall: seconds by the clock. worked: processor seconds of
    this process's threads and of its children that have ended. times: how often a phase of that name was entered."""

    wall: float = 0.0
    worked: float = 0.0
    times: int = 0


class Phases:
    """The phases of a process. began: seconds that the process had run when this object is created; the total includes them."""

    def __init__(self, began: float = 0.0) -> None:
        self._begin(began)

    def _begin(self, began: float = 0.0) -> None:
        self.spent: dict[str, Spent] = {}
        self._open: list[Spent] = []
        self._thread: int | None = None
        self._began = time.perf_counter() - began
        self._last = self._began, 0.0

    def _attribute(self) -> None:
        """Add the time since the last call to the innermost phase, or to ELSE."""
        now = time.perf_counter(), _worked()
        spent = self._open[-1] if self._open else self.spent.setdefault(ELSE, Spent())
        spent.wall += now[0] - self._last[0]
        spent.worked += now[1] - self._last[1]
        self._last = now

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Return a context manager that adds the time inside to the phase `name`."""
        if self._thread is None:
            self._thread = threading.get_ident()
        if self._thread != threading.get_ident():
            yield
            return
        self._attribute()
        spent = self.spent.setdefault(name, Spent())
        spent.times += 1
        self._open.append(spent)
        try:
            yield
        finally:
            self._attribute()
            self._open.pop()

    def until_here(self, name: str) -> None:
        """Add all time that was in no phase so far to the phase `name`: the imports before the first line of a command."""
        self._attribute()
        before = self.spent.pop(ELSE, Spent())
        mine = self.spent.setdefault(name, Spent())
        mine.wall, mine.worked, mine.times = mine.wall + before.wall, mine.worked + before.worked, mine.times + 1

    def so_far(self) -> dict[str, Spent]:
        """Return phase name -> time spent until now, in the order in which phases were entered; time in no phase comes last."""
        self._attribute()
        spent = dict(self.spent)
        rest = spent.pop(ELSE, Spent())
        return {**spent, ELSE: rest}

    @property
    def total(self) -> float:
        """Seconds since the process began."""
        return time.perf_counter() - self._began

    def table(self) -> str:
        """Return a table for people, one line per phase."""
        phases, whole = self.so_far(), self.total
        width = max(map(len, phases))
        lines = [f"{'phase':{width}s}  {'seconds':>8s}  {'share':>5s}  {'processor':>9s}"]
        lines += [f"{name:{width}s}  {s.wall:8.3f}  {s.wall / whole:5.1%}  {s.worked:9.3f}" for name, s in phases.items()]
        return "\n".join([*lines, f"{'all':{width}s}  {whole:8.3f}"])

    def to_json(self) -> dict[str, dict[str, float]]:
        """Return phase name -> milliseconds by the clock, and of processors."""
        return {name: {"ms": round(s.wall * 1e3, 3), "processor_ms": round(s.worked * 1e3, 3)} for name, s in self.so_far().items()}


def _worked() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _age() -> float:
    """Return the seconds since this process was started (to a hundredth); 0 where the system does not report it."""
    try:
        with open("/proc/self/stat", "rb") as file:
            started = int(file.read().rpartition(b")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


OURS = Phases(_age())
"""The phases of this process, from its start on."""

phase = OURS.phase
os.register_at_fork(after_in_child=OURS._begin)
