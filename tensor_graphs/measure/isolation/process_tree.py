"""process_tree: who descends from whom, who works, and ending them all. Reads /proc; elsewhere than on Linux nobody is found."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
"""a second, in the unit of times in /proc"""

ROUNDS = 200
"""of looking again for processes that were born meanwhile"""

GOING_SECONDS = 3.0
"""the time that killed processes are given to have gone: what they hold of a GPU goes first"""


def prctl(option: int, value: int) -> bool:
    """Set a property of this process; False where there is no such thing."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0


def parents() -> dict[int, int]:
    """Process -> its parent, of all that are alive (zombies are not)."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "stat").read_text()
        except OSError:
            continue
        state, parent = text[text.rindex(")") + 2:].split(" ", 2)[:2]    # a name may hold anything, brackets too
        if state not in "ZX":
            found[int(entry.name)] = int(parent)
    return found


def children(process: int | None = None) -> list[int]:
    """Of a process (this one), of all its threads; those that ended and were not waited for are among them."""
    process = os.getpid() if process is None else process
    try:
        threads = Path(f"/proc/{process}/task").iterdir()
        return [int(each) for thread in threads for each in (thread / "children").read_text().split()]
    except OSError:                                                 # a kernel without these files, or a process that has gone
        return [child for child, parent in parents().items() if parent == process]


def works(process: int) -> bool:
    """Whether a process is there and has not ended (a zombie has)."""
    return _state(process) not in "ZX"


def stopped(process: int) -> bool:
    """Whether somebody has stopped a process (SIGSTOP, SIGTSTP); one in the hands of a debugger is not."""
    return _state(process) == "T"


def worked(process: int) -> float:
    """Seconds for which all threads of a process have worked (to 10 ms); 0 for one that is not there."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return 0.0
    user, system = text[text.rindex(")") + 2:].split()[11:13]          # proc(5): utime and stime, in ticks
    return (int(user) + int(system)) / TICKS


def scheduled(thread: str) -> tuple[float, float] | None:
    """Seconds for which a thread (PID: the first of a process; PID/task/TID; "thread-self") has worked, and could have worked and
    another program had its processor; None where the system does not say. What it has worked is exact while it sleeps."""
    try:
        worked, waited, _ = Path(f"/proc/{thread}/schedstat").read_text().split()         # ns, ns, and how often
        return int(worked) * 1e-9, int(waited) * 1e-9
    except (OSError, ValueError):
        return None


def others_waited(process: int) -> float:
    """Seconds for which the threads of a process that are there, but for its first, have waited as `scheduled` says."""
    try:
        threads = os.listdir(f"/proc/{process}/task")
    except OSError:
        return 0.0
    found = [scheduled(f"{process}/task/{thread}") for thread in threads if thread != str(process)]
    return sum(each[1] for each in found if each is not None)


def machine_worked() -> float:
    """Seconds for which this machine's processors have worked, or were taken away by the host of a virtual one; 0 where the system
    does not say."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = (int(each) for each in first[1:9])
    return (user + nice + system + interrupts + soft + stolen) / TICKS


def _state(process: int) -> str:
    """The letter that the system has for it; X for one that is not there."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return "X"
    return text[text.rindex(")") + 2]


def descendants(process: int) -> list[int]:
    """Children of a process, their children, and so on, whatever session or group they put themselves into."""
    of: dict[int, list[int]] = {}
    for child, parent in parents().items():
        of.setdefault(parent, []).append(child)
    found, todo = [], [process]
    while todo:
        children = of.get(todo.pop(), [])
        found += children
        todo += children
    return found


def carrying(variable: str, value: str) -> list[int]:
    """Processes that were started with this environment variable (a fork keeps it, and so does whom it starts unless it is told not
    to); this process is not among them."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def relabel(variable: str, value: str) -> None:
    """Set an environment variable of this process where others read it, too (`carrying`), if it was started with one as long."""
    if sys.platform.startswith("linux") and variable in os.environ:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        at, new = getenv(variable.encode()), value.encode()
        if at and len(ctypes.string_at(at)) == len(new):
            ctypes.memmove(at, new, len(new))
    os.environ[variable] = value


def end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):                   # it has ended, and its number may be somebody else's
        pass


def end_descendants(process: int) -> int:
    """Kill them until none is left, and say how many there were."""
    ended: set[int] = set()
    for _ in range(ROUNDS):
        found = descendants(process)
        for each in found:
            end(each)
        ended.update(found)
        if not found:
            break
        time.sleep(0.001)
    return len(ended)


def end_children() -> dict[int, int]:
    """Kill whatever descends from this process, and wait for it; process -> how it ended, of its children.

    For a subreaper: whose parent is killed becomes its child, so that nobody is missed.
    """
    ended: dict[int, int] = {}
    begun = time.monotonic()
    while True:
        ended |= reap_all()
        passed = time.monotonic() - begun
        if not (left := children()) or passed > GOING_SECONDS:
            return ended
        for each in {*left, *descendants(os.getpid())}:
            end(each)
        time.sleep(0.001 if passed < 0.2 else 0.02)


def reap_all() -> dict[int, int]:
    """Wait for every child that has ended: process -> how (waitpid's status)."""
    found: dict[int, int] = {}
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if process == 0:
            return found
        found[process] = status
