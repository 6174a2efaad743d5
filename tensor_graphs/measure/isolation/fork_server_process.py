"""fork_server_process: the judge's handles of template processes (fork_server.py) and of the supervisors that are forked from them.

Importing what a worker needs takes 0.3 s of processor time, and seconds with the libraries of some backends; a fork takes 0.01 s.
So a judging process starts one template, with its first worker, for all its judges. It starts another if what a process inherits
has changed, or the package's source."""

from __future__ import annotations

import atexit
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tensor_graphs.measure.isolation import process_tree
from tensor_graphs.measure.isolation.worker import INSIDE
from tensor_graphs.records.location import VARIABLE as DATABASE

DATA_VARIABLE = "XDG_DATA_HOME"
"""variable for the folder of the default database: a worker gets an empty folder there, and no variable that names a database"""

START_SECONDS, ANSWER_SECONDS = 60.0, 10.0
"""seconds for a template to finish its imports, and for its later answers; it has no other work"""

MOST = 2
"""most templates kept, not counting those with a live supervisor; each holds 50 MB and its imported libraries"""

PACKAGE = str(Path(__file__).parents[2])


class Gone(OSError):
    """Template that does not answer."""


def token() -> str:
    """Return a random value that marks a process and its children; of constant length (`process_tree.relabel`)."""
    return secrets.token_hex(16)


class TemplateProcess:
    """Template process that was started."""

    def __init__(self, environment: Mapping[str, str], names: Sequence[str], printed: int) -> None:
        """names: libraries that it imports; printed: file for its output before the first fork."""
        self.owner, self.forks = os.getpid(), 0                     # supervisors that live
        self._lock = threading.Lock()
        self._heard = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            # -P: the current folder hides no module of PYTHONPATH; -O: assertions are left out there where they are here
            flags = ["-P", *["-O"] * sys.flags.optimize]
            command = [sys.executable, *flags, "-m", "tensor_graphs.measure.isolation.fork_server", str(theirs.fileno()), *names]
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True,
                env={**environment, INSIDE: token()}, pass_fds=[theirs.fileno()])

    def ask(self, request: Mapping[str, object], ends: Sequence[int] = ()) -> dict[str, int | None]:
        """Return the template's answer to a request. Raises Gone; TimeoutError when it does not start in time."""
        with self._lock:
            self._socket.settimeout(ANSWER_SECONDS if self._heard else START_SECONDS)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(ends))
                answer = self._socket.recv(1 << 16)
            except TimeoutError:
                self.end()
                if not self._heard:
                    raise
                raise Gone("the template does not answer") from None
            except OSError as e:
                raise Gone(str(e)) from e
            if not answer:
                raise Gone("the template has ended")
            self._heard = True
            values: dict[str, int | None] = json.loads(answer)
            return values

    def end(self) -> None:
        """End the template, and with it the processes forked from it. May be called twice."""
        self._socket.close()
        process_tree.let_end(self.process)


@dataclass
class Forked:
    """Supervisor, a child of the template. returncode: None while it lives; minus the signal that ended it (default: SIGKILL)."""

    template: TemplateProcess
    pid: int
    returncode: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        """Return the current `returncode`; 0 in a process forked from the judge's."""
        if self.returncode is None and self.template.owner != os.getpid():
            self.returncode = 0
        if self.returncode is None:
            try:
                status = self.template.ask({"do": "ended", "pid": self.pid})["status"]
            except OSError:                                         # it ends when its parent has; how, nobody will know
                if process_tree.works(self.pid):
                    return None
                status = signal.SIGKILL
            if status is not None:
                self.returncode = os.waitstatus_to_exitcode(status)
                self.template.forks -= 1
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """Wait until the supervisor has ended. Raises subprocess.TimeoutExpired."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("supervisor", timeout)
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        """Kill the supervisor. Its process number cannot be reused before the template has waited for it."""
        if self.poll() is None:
            process_tree.end(self.pid)


_templates: dict[object, TemplateProcess] = {}
"""what was inherited (`_inherited`) -> template, the last used one last"""

_guard = threading.Lock()


def shared_environment() -> dict[str, str]:
    """Return the environment common to all workers; with it they find the packages that this process finds."""
    variables = {name: value for name, value in os.environ.items() if name not in (DATABASE, DATA_VARIABLE, INSIDE)}
    return {**variables, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


def begin() -> None:
    """Start a template in advance if none is running. Errors surface in the first `fork`."""
    if INSIDE in os.environ:
        return
    with _guard:
        if not _templates:
            environment = shared_environment()
            with open(os.devnull, "wb") as printed, suppress(OSError):
                _templates[_inherited(environment, ())] = TemplateProcess(environment, (), printed.fileno())


def fork(environment: Mapping[str, str], own: Mapping[str, str], names: Sequence[str], ends: Sequence[int]) -> Forked:
    """Return a new supervisor with this environment and the variables `own`, in this process's current folder. names: libraries
    that it has imported. ends: its control socket, its worker's socket, the file of outputs, the file for printed text. Raises
    OSError (also TimeoutError) when no template starts."""
    try:
        folder: str | None = os.getcwd()
    except OSError:                                                 # it was removed
        folder = None
    request = {"do": "fork", "own": dict(own), "folder": folder, "names": list(names)}
    key = _inherited(environment, names)
    with _guard:
        for last in (False, True):
            template = _templates.pop(key, None)
            if template is None:
                template = TemplateProcess(environment, names, ends[-1])
                last = True
            try:
                pid = template.ask(request, ends)["pid"]
            except OSError:
                template.end()
                if last:
                    raise
                continue
            assert pid is not None
            template.forks += 1
            _templates[key] = template
            idle = [inherited for inherited, other in _templates.items() if other.forks == 0]     # the least recently used first
            for unused in idle[:max(0, len(_templates) - MOST)]:
                _templates.pop(unused).end()
            return Forked(template, pid)
    raise AssertionError


def _inherited(environment: Mapping[str, str], names: Sequence[str]) -> object:
    """Return all that a template inherits from this process, and the source files' times: if any differs, it is not reused."""
    cores = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    limits = tuple(resource.getrlimit(getattr(resource, name)) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))
    sources = tuple(sorted((file.path, file.stat().st_mtime_ns) for file in _files(PACKAGE)))
    return tuple(sorted(environment.items())), tuple(names), cores, limits, os.getpriority(os.PRIO_PROCESS, 0), sources


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the Python files of the package."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                yield entry
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)


@atexit.register
def _end_all() -> None:
    for template in _templates.values():                            # without the lock, which a thread may hold for ever
        template.end()


def _forget() -> None:
    """Drop the templates in a process forked from the judging process: they belong to the parent."""
    global _guard
    _templates.clear()
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_forget)
