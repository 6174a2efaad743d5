"""worker_process: the judge's handle of its worker: starts it when needed, ends it with all its children when a job takes too long.

Judge, supervisor and worker are three processes. The judge starts the supervisor, which forks the worker; judge and worker share a
socket. If the supervisor or the worker dies, the judge ends what is left and starts again."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import select
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.measure.isolation import fork_server_process, process_tree
from tensor_graphs.measure.isolation.fork_server_process import DATA_VARIABLE
from tensor_graphs.measure.isolation.replies import Mark, Next, ProtocolError, Reply, clean, parse
from tensor_graphs.measure.isolation.signed_frames import KEY_BYTES, Channel, Forged
from tensor_graphs.measure.isolation.worker import INSIDE

log = logging.getLogger(__name__)

JOB_SECONDS = 120.0
"""seconds after which a worker that has not answered is killed"""

START_SECONDS, CONTROL_SECONDS = 60.0, 10.0
"""seconds for a worker to start, and for a supervisor to answer; the supervisor has no other work"""

LOOK_SECONDS, STOPPED_SECONDS = 0.25, 2.0
"""interval of checks whether an awaited process is stopped (SIGSTOP), and seconds for which a stopped process is still awaited"""

LAST_BYTES = 4000
"""last bytes of a worker's printed text that a message shows"""

SILENT_SECONDS = 15.0
"""seconds without a message after which (and after half of a kernel's limit) a warning names the awaited job"""

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""signals by which people and systems end a process; a process ended by them need not have failed itself"""

DIED = "the worker died"
CRASHED = f"{DIED} (killed by SIGSEGV)"
"""prefix of the log of a kernel that accessed unmapped memory"""

OnMark = Callable[[Mark, float], dict[str, Any] | None]
"""function of (message in the middle of a job, its arrival on time.perf_counter's clock) that returns the answer, if any"""

STARTED = "a worker is started"


class JudgeError(TensorGraphsError):
    """Condition under which nothing can be judged: a worker does not start, or was started from within a worker."""


class Stopped(Exception):
    """Awaited process that was stopped and is not resumed."""


class WorkerProcess:
    """Worker that is started when needed, killed with its children when a job takes too long, and started again."""

    def __init__(self, timeout: float = JOB_SECONDS) -> None:
        self.timeout = timeout
        self.supervisor: fork_server_process.Forked | None = None
        self.pid: int | None = None
        """process number of the worker; None without a worker"""
        self.imports: Sequence[str] = ()
        """libraries that the next worker has imported; the supervisor imports them once for all its workers"""
        self.guests: frozenset[str] = frozenset()
        """identities of the user-registered kernels that have run in the worker"""
        self.folder = _folder()
        self.starts = 0
        self._outputs, self._outputs_end = _nameless_file()
        self._said, self._said_end = _nameless_file()
        self._control: socket.socket | None = None
        self._channel: Channel | None = None
        self._environment: dict[str, str] = {}
        self._token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- beginning ----

    def ready(self) -> None:
        """Start a worker if none is running. Raises JudgeError."""
        if self.pid is None or not self._ask("alive")["alive"]:
            self._start()

    def _start(self) -> int:
        """Start a worker, and a supervisor if needed; return its process number. If it ends before it is ready, try once more."""
        if INSIDE in os.environ:
            raise JudgeError("the file that defines the kernel compiles or profiles while it is imported, and a worker may not "
                             "start another: put that under `if __name__ == \"__main__\":`")
        environment = self._scrubbed()
        self.starts += 1
        log.debug(STARTED)
        for last in (False, True):
            late = False
            try:
                if self._begin(environment):
                    assert self.pid is not None
                    return self.pid
            except TimeoutError:
                late = True
            except (Stopped, Forged, ProtocolError, OSError, ValueError, KeyError):
                pass                                                # it has not begun: the error below shows its last output
            text = self._last_words()
            self.kill()
            if late or last:
                raise JudgeError(f"the profiling worker did not start{f' within {START_SECONDS:.0f} s' if late else ''}: "
                                 f"{text or 'it said nothing'}")
            log.warning("the worker ended before it was ready; starting another")
        raise AssertionError

    def _begin(self, environment: dict[str, str]) -> bool:
        """Start a worker; return whether it is ready. Raises TimeoutError, and errors of a broken connection."""
        key = secrets.token_bytes(KEY_BYTES)
        mine, theirs = socket.socketpair()
        try:
            if self.supervisor is None or environment != self._environment or not self._respawn(theirs):
                self.kill()
                self._start_supervisor(environment, theirs)
        finally:
            theirs.close()
        self._channel = Channel(mine, key, judge=True)
        mine.sendall(key)
        self.pid = int(self._receive_answer(START_SECONDS)["pid"])           # after importing `names`
        left = START_SECONDS - self._await_word(START_SECONDS, "the worker to start")
        ready = self._channel.receive(time.monotonic() + max(left, 1.0))
        return ready is not None and parse(ready) == Reply("READY")

    def _scrubbed(self) -> dict[str, str]:
        """Return the environment of a worker, which finds the packages that this process finds, and no database."""
        nowhere = Path(self.folder.name, "data")
        try:
            nowhere.mkdir(exist_ok=True)
        except OSError:                                             # an earlier candidate has removed or replaced the folder
            self.folder = _folder()
            nowhere = Path(self.folder.name, "data")
            nowhere.mkdir()
        return {**fork_server_process.shared_environment(), DATA_VARIABLE: str(nowhere)}

    def _start_supervisor(self, environment: dict[str, str], theirs: socket.socket) -> None:
        self._environment, self._token = environment, fork_server_process.token()
        mine, control = socket.socketpair()
        own = {INSIDE: self._token, DATA_VARIABLE: environment[DATA_VARIABLE]}
        shared = {name: value for name, value in environment.items() if name not in own}
        with control:                                               # what is printed goes to a file: a full pipe would block
            ends = (control.fileno(), theirs.fileno(), self._outputs_end, self._said_end)
            self.supervisor = fork_server_process.fork(shared, own, self.imports, ends)
        self._control = mine

    def _respawn(self, theirs: socket.socket) -> bool:
        """Request another worker from the supervisor; return False if the request cannot be sent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        assert self._control is not None
        try:
            socket.send_fds(self._control, [json.dumps({"do": "spawn", "names": self.imports}).encode()], [theirs.fileno()])
        except OSError:
            return False
        return True

    # ---- working ----

    def run(self, job: dict[str, Any], on_mark: OnMark | None = None, limit: float | None = None,
            what: str = "a kernel", on_start: Callable[[], None] | None = None) -> Reply:
        """Run a job and return the reply; a dead or stuck worker or an invalid message yields a reply too (RUNTIME_ERROR, TIMEOUT).

        The job is tried once more where it had not begun, and where its worker or supervisor was ended or stopped from outside
        (SIGKILL, as by a system short of memory, SIGTERM, SIGINT, SIGHUP, SIGSTOP). A kernel that does this to itself does it
        again.

        limit: seconds between two messages of the worker once it has imported the kernel (default: as for the entire job). what:
        name of the job in warnings. on_start: called whenever the job begins. The job's `guests` are the identities of its
        user-registered kernels: the worker runs only these afterwards, as they may change code that other kernels use."""
        tries = 0
        guests = frozenset(job.get("guests", ()))
        if not self.guests <= guests:
            self.leave()
        while True:
            tries += 1
            self.ready()
            self.guests |= guests
            begun = stood = False
            try:
                assert self._channel is not None
                if self._channel.has_more():
                    raise Forged("the worker spoke unasked, after a job was done")
                os.ftruncate(self._outputs, 0)
                if on_start is not None:
                    on_start()
                self._channel.send(job)
                begun = True
                reply = self._converse(on_mark, self.timeout if limit is None else limit, what)
            except (BrokenPipeError, ConnectionResetError):
                reply = None
            except ProtocolError as e:
                reply = Reply("RUNTIME_ERROR", f"what the worker said does not go together: {e}", spoiled=True)
            except Forged as e:
                if not begun:                                       # by a thread that an earlier job has left
                    log.warning("%s; starting another", e)
                    self.leave()
                    continue
                reply = Reply("RUNTIME_ERROR", str(e), spoiled=True)
            except TimeoutError as e:
                if not begun:                                       # the worker is blocked by something that an earlier job left
                    self.leave()
                    continue
                reply = Reply("TIMEOUT", str(e), spoiled=True)
            except Stopped:
                stood = True
                reply = Reply("TIMEOUT", "the worker was stopped (SIGSTOP), and nobody let it go on", spoiled=True)
            except BaseException:                                   # Ctrl-C: a later job must not read this job's answer
                self.kill()
                raise
            if reply is None:
                self._await_end()
            state = self._ask("sweep")                              # an answer counts while the worker that was asked is alive
            if reply is not None and reply.status == "RAN" and state["left"]:
                reply = Reply("RUNTIME_ERROR", spoiled=True,
                              log=f"{state['left']} processes that the kernel started were there after it had returned")
            if reply is not None and state["alive"] and not reply.spoiled:
                return reply
            text = self._last_words()
            self.leave()
            status = state["status"]
            unseen = not state["alive"] and status is None          # its supervisor has gone: nobody knows what it left behind
            outside = stood or unseen or _from_outside(status)
            if reply is not None and not stood and (state["alive"] or (unseen and reply.status != "RAN")):
                return replace(reply, log=f"{reply.log}\n{text}".strip()) if reply.status == "TIMEOUT" else reply
            if tries < 2 and (not begun or outside):
                log.warning("the worker was %s; trying once more",
                            "stopped" if stood else "ended from outside" if begun else "dead before the job began")
                continue
            if stood and reply is not None:
                return reply
            return Reply("RUNTIME_ERROR", f"{DIED} ({_how(status)})\n{text}".strip())

    def _converse(self, on_mark: OnMark | None, limit: float, what: str) -> Reply | None:
        """Return the worker's reply; earlier messages are passed to `on_mark`. Raises TimeoutError, Stopped and ProtocolError."""
        assert self._channel is not None
        left = word = self.timeout                                  # the first message may take as long as imports do
        while True:
            most = min(left, word)
            if most <= 0:                                           # also of a worker that never stops talking
                raise TimeoutError(f"no end within {self.timeout:.0f} s")
            waited = self._await_word(most, what)
            received = time.perf_counter()
            values = self._channel.receive(time.monotonic() + max(1.0, most - waited))
            if values is None:
                return None
            mark = parse(values)
            if isinstance(mark, Reply):
                return mark
            answer = on_mark(mark, received) if on_mark is not None else None
            if answer is not None:
                self._channel.send(answer)
            passed = waited + time.perf_counter() - received
            left, word = left - passed, word - passed if isinstance(mark, Next) else limit    # the limit: of all points together

    def _await_word(self, seconds: float, what: str) -> float:
        """Wait until the worker has sent something or closed its socket; return the seconds. Raises TimeoutError and Stopped."""
        assert self._channel is not None and self.pid is not None

        def say(so_far: float) -> None:
            log.warning("waiting for %s: nothing was heard for %.0f s; it counts as hanging after %.0f s", what, so_far, seconds)

        return _await(self._channel.socket, self.pid, seconds, say)

    def _ask(self, what: str) -> dict[str, Any]:
        """Send a command to the supervisor (supervisor.py lists them); return {"alive": whether the worker lives, "status": its
        wait status, "left": number of processes that it left running}."""
        gone = {"alive": False, "status": None, "left": 0}
        if self._control is None or self.supervisor is None:
            return gone
        try:
            self._control.send(json.dumps({"do": what}).encode())
            return self._receive_answer()
        except (Stopped, OSError, ValueError, RecursionError):      # a late answer must not be taken for that to the next command
            self.kill()
            return gone

    def _await_end(self) -> None:
        """Give a worker whose socket has closed a second to end."""
        end = time.monotonic() + 1.0
        while self._ask("alive")["alive"] and time.monotonic() < end:
            time.sleep(0.01)

    def _receive_answer(self, within: float = CONTROL_SECONDS) -> dict[str, Any]:
        """Return the supervisor's answer. Raises Stopped, OSError or ValueError when there is none."""
        assert self._control is not None and self.supervisor is not None
        _await(self._control, self.supervisor.pid, within)
        self._control.settimeout(1.0)
        answer = json.loads(self._control.recv(1 << 16))
        if not isinstance(answer, dict):
            raise ValueError("a supervisor says objects")
        return answer

    def outputs(self) -> BinaryIO:
        """Return the file of the last job's outputs, opened at its start. No other process can replace the file."""
        os.lseek(self._outputs, 0, os.SEEK_SET)
        return os.fdopen(os.dup(self._outputs), "rb")

    def _last_words(self) -> str:
        """Return the end of what the worker printed since the previous worker was ended."""
        size = os.fstat(self._said).st_size
        return clean(os.pread(self._said, LAST_BYTES, max(0, size - LAST_BYTES)).decode(errors="replace")).strip()

    # ---- ending ----

    def leave(self) -> None:
        """End the worker and all that it started; the next job gets another worker. The supervisor is kept if it still answers."""
        self.pid, self.guests = None, frozenset()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._control is not None:
            try:
                self._control.send(b'{"do": "end"}')
                self._receive_answer()
                os.ftruncate(self._said, 0)
                return
            except (Stopped, OSError, ValueError):
                pass                                                # it does not end by itself, so it is ended
        self.kill()

    def kill(self) -> None:
        """End the worker, all that it started, and the supervisor."""
        supervisor, self.supervisor, self.pid, self.guests = self.supervisor, None, None, frozenset()
        for end in (self._control, self._channel):
            if end is not None:
                end.close()                                         # the supervisor then ends what there is, and itself
        self._control = self._channel = None
        if supervisor is None:
            return
        process_tree.let_end(supervisor)
        if supervisor.returncode != 0:                              # the supervisor was killed, so it has not ended its children
            for _ in range(process_tree.ROUNDS):
                left = process_tree.carrying(INSIDE, self._token)
                for process in left:
                    process_tree.end_descendants(process)
                    process_tree.end(process)
                if not left:
                    break
                time.sleep(0.005)

    def close(self) -> None:
        """End the worker and the supervisor and remove their files. May be called twice."""
        self.kill()
        self.folder.cleanup()
        for end in (self._outputs, self._outputs_end, self._said, self._said_end):
            if end >= 0:
                os.close(end)
        self._outputs = self._outputs_end = self._said = self._said_end = -1


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder for the worker; files in it that cannot be removed later are left."""
    return tempfile.TemporaryDirectory(prefix="tensor_graphs-", ignore_cleanup_errors=True)


def _nameless_file() -> tuple[int, int]:
    """Return two descriptors of a nameless file, which nobody can replace: for this process to read, and for a worker to append."""
    adding, name = tempfile.mkstemp(prefix="tensor_graphs-")
    try:
        mine = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        fcntl.fcntl(adding, fcntl.F_SETFL, fcntl.fcntl(adding, fcntl.F_GETFL) | os.O_APPEND)
    finally:
        os.unlink(name)
    return mine, adding


def _await(sock: socket.socket, process: int, seconds: float, say: Callable[[float], None] | None = None) -> float:
    """Wait until a process has sent something; return the seconds, without pauses of this process (Ctrl-Z and fg). say: called once
    when it takes long. Raises TimeoutError after `seconds`, and Stopped when the process was stopped."""
    waited = stopped = 0.0
    warned = False
    while True:
        begin = time.monotonic()
        if select.select([sock], [], [], min(LOOK_SECONDS, max(0.0, seconds - waited)))[0]:
            return waited
        passed = min(time.monotonic() - begin, 2 * LOOK_SECONDS)
        waited += passed
        stopped = stopped + passed if process_tree.stopped(process) else 0.0
        if stopped >= STOPPED_SECONDS:
            raise Stopped
        if waited >= seconds:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        if say is not None and waited >= max(SILENT_SECONDS, seconds / 2) and not warned:
            warned = True
            say(waited)


def _from_outside(status: int | None) -> bool:
    return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) in FROM_OUTSIDE


def _how(status: int | None) -> str:
    if status is None:
        return "and its supervisor with it"
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit {os.waitstatus_to_exitcode(status)}"
