"""process_tree: finds descendants of processes and their processor time through /proc, and ends them; finds none without it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""clock ticks per second, the unit of times in /proc"""

ROUNDS, GOING_SECONDS = 200, 3.0
"""rounds of searching for newly started descendants; seconds for killed processes to end, as they first release a GPU's memory"""


def prctl(option: int, value: int) -> bool:
    """Set a property of this process; return False where the system has no prctl or refuses."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0


def parents() -> dict[int, int]:
    """Return process -> its parent, for all live processes (not zombies)."""
    fields = {int(entry.name): stat(entry.name) for entry in Path("/proc").glob("[0-9]*")}
    return {process: int(values[1]) for process, values in fields.items() if values and values[0] not in "ZX"}


def stat(process: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat (proc(5)) from the state on; [] for a process that does not exist."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2:].split()                      # a name may hold anything, brackets too


def children(process: int | None = None) -> list[int]:
    """Return the children of a process (default: this one), of all its threads, including ended ones that were not waited for."""
    process = os.getpid() if process is None else process
    try:
        threads = Path(f"/proc/{process}/task").iterdir()
        return [int(number) for thread in threads for number in (thread / "children").read_text().split()]
    except OSError:                                                 # a kernel without these files, or a process that has gone
        return [child for child, parent in parents().items() if parent == process]


def works(process: int) -> bool:
    """Return whether a process exists and has not ended (a zombie has)."""
    return stat(process)[:1] not in ([], ["Z"], ["X"])


def stopped(process: int) -> bool:
    """Return whether a process is stopped by a signal (SIGSTOP, SIGTSTP); False for a process traced by a debugger."""
    return stat(process)[:1] == ["T"]


def worked(process: int) -> float:
    """Return the processor seconds of all threads of a process (to 10 ms); 0 for a process that does not exist."""
    return sum(map(int, stat(process)[11:13])) / TICKS              # utime and stime


def scheduled(thread: str) -> tuple[float, float] | None:
    """Return the seconds for which a thread (PID: the first of a process; PID/task/TID; "thread-self") has run, and for which it
    waited for a processor; None where unknown. The first number is exact only while the thread sleeps."""
    try:
        worked, waited, _ = Path(f"/proc/{thread}/schedstat").read_text().split()         # ns, ns, and how often
        return int(worked) * 1e-9, int(waited) * 1e-9
    except (OSError, ValueError):
        return None


def others_waited(process: int) -> float:
    """Return the seconds for which the threads of a process, except its first, have waited for a processor."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return 0.0
    schedules = [scheduled(f"{process}/task/{thread}") for thread in threads if thread != str(process)]
    return sum(times[1] for times in schedules if times is not None)


def machine_worked() -> float:
    """Return the seconds for which this machine's processors were busy or taken by a virtual machine's host; 0 where unknown."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = (int(ticks) for ticks in first[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS


def descendants(process: int) -> list[int]:
    """Return the children of a process, their children, and so on, in any session or group."""
    of: dict[int, list[int]] = {}
    for child, parent in parents().items():
        of.setdefault(parent, []).append(child)
    below, todo = [], [process]
    while todo:
        children = of.get(todo.pop(), [])
        below += children
        todo += children
    return below


def carrying(variable: str, value: str) -> list[int]:
    """Return the other processes that were started with this environment variable (forks and children inherit it)."""
    wanted = f"{variable}={value}".encode()
    carriers = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                carriers.append(int(entry.name))
        except OSError:
            continue
    return carriers


def relabel(variable: str, value: str) -> None:
    """Set an environment variable of this process; also where other processes read it (`carrying`), if the old value is as long."""
    if sys.platform.startswith("linux") and variable in os.environ:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        at, new = getenv(variable.encode()), value.encode()
        if at and len(ctypes.string_at(at)) == len(new):
            ctypes.memmove(at, new, len(new))
    os.environ[variable] = value


def end(process: int) -> None:
    with suppress(ProcessLookupError, PermissionError):             # it has ended, and its number may be somebody else's
        os.kill(process, signal.SIGKILL)


class Child(Protocol):
    """Handle of a child process, as subprocess.Popen has it."""

    pid: int

    def kill(self) -> None: ...
    def wait(self, timeout: float = ...) -> int: ...


def let_end(child: Child) -> None:
    """Wait until a child whose socket was closed has ended; kill it if it does not react."""
    if stopped(child.pid):                                          # a stopped process does not notice that its socket has closed
        child.kill()
    try:
        child.wait(2.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def end_descendants(process: int) -> int:
    """Kill the descendants of a process until none is left; return how many there were."""
    ended: set[int] = set()
    for _ in range(ROUNDS):
        below = descendants(process)
        for child in below:
            end(child)
        ended.update(below)
        if not below:
            break
        time.sleep(0.001)
    return len(ended)


def end_children() -> dict[int, int]:
    """Kill all descendants of this process and wait for them; return child -> its wait status. For a subreaper: a process whose
    parent is killed becomes its child, so that none is missed."""
    ended: dict[int, int] = {}
    begun = time.monotonic()
    while True:
        ended |= reap_all()
        passed = time.monotonic() - begun
        if not (left := children()) or passed > GOING_SECONDS:
            return ended
        for child in {*left, *descendants(os.getpid())}:
            end(child)
        time.sleep(0.001 if passed < 0.2 else 0.02)


def reap_all() -> dict[int, int]:
    """Wait for all children that have ended; return process -> status from waitpid."""
    statuses: dict[int, int] = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if process == 0:
            return statuses
        statuses[process] = status
