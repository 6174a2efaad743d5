"""supervisor: the parent of a worker. It forks the worker, reports how it ended, and ends what it left running. Its own parent is a
template (fork_server.py).

The judge is not the candidate's parent: a candidate that kills its parent kills this process, and the judge starts another. It runs
no candidate, and adopts every process whose parent has ended (a subreaper), so that a child in another session is found. When the
control socket closes, the judge has gone, and this process ends the worker and itself.

Commands, one JSON object per message on the control socket: spawn a worker (with the worker's end of a new socket and libraries to
import before; the first worker needs no command), alive (does it live?), sweep (the same, and end and count all that it started),
end (end the worker too)."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import Any

from tensor_graphs.measure.isolation import process_tree

CONTROL_BYTES = 1 << 16
PATIENCE = 1.0
"""seconds between two checks that the parent of this process still lives"""


class Supervisor:
    """Parent of a worker. worker: its process number, 0 without a worker. ended: wait status of the last worker, None while it
    lives. dying: killed processes that have not ended yet (they release GPU memory first)."""

    def __init__(self, control: socket.socket, outputs: int) -> None:
        """outputs: the file to which workers append their kernels' outputs."""
        self.control, self.outputs = control, outputs
        self.parent = os.getppid()
        self.worker = 0
        self.ended: int | None = None
        self.dying: set[int] = set()
        self.wake, self.bell = socket.socketpair()                  # both ends are kept: a closed one would always be readable
        self.bell.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.bell.fileno(), warn_on_full_buffer=False)
        process_tree.prctl(process_tree.PR_SET_CHILD_SUBREAPER, 1)

    def spawn(self, data: socket.socket, names: Sequence[str]) -> None:
        """Fork a worker, with the modules that every job needs and these libraries already imported."""
        import tensor_graphs.measure.isolation.worker as worker

        worker.preload(names)                                       # so that no job's time includes imports
        self.ended = None
        me = os.getpid()
        self.worker = os.fork()
        if self.worker == 0:
            try:
                self._become_worker(data, me)
            finally:
                os._exit(70)
        data.close()
        self.say({"pid": self.worker})

    def _become_worker(self, data: socket.socket, supervisor: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)                # a SIGINT from outside is not the candidate's exception
        os.setsid()                                                 # a candidate that signals its group meets itself alone
        self.wake.close()
        self.bell.close()
        self.control.close()
        if not process_tree.prctl(process_tree.PR_SET_PDEATHSIG, signal.SIGKILL):
            leave_with(supervisor)
        if os.getppid() != supervisor:
            os._exit(1)
        from tensor_graphs.measure.isolation import worker

        worker.serve(data, self.outputs)
        os._exit(0)

    def say(self, value: dict[str, Any]) -> None:
        self.control.send(json.dumps(value).encode())

    def reap(self) -> None:
        if self._take_down(process_tree.reap_all()):
            process_tree.end_children()                             # a child of a dead worker must not answer for it

    def _take_down(self, ended: dict[int, int]) -> bool:
        """Update the state from child -> wait status; return whether the worker is among these children."""
        self.dying -= ended.keys()
        if self.worker not in ended:
            return False
        self.worker, self.ended = 0, ended[self.worker]
        return True

    def sweep(self) -> int:
        """End all processes that the worker started, and adopted orphans; return how many were alive."""
        self.reap()
        left = [p for p in process_tree.children() if p != self.worker and p not in self.dying]
        left += process_tree.children(self.worker) if self.worker else []
        ended = sum(map(process_tree.works, left))
        for process in left:
            ended += process_tree.end_descendants(process)
            process_tree.end(process)
        self.reap()
        return ended

    def end(self) -> None:
        self._take_down(process_tree.end_children())
        self.dying = set(process_tree.children())
        self.worker = 0

    def serve(self) -> None:
        """Execute commands until the judge closes the socket or the parent ends."""
        while True:
            ready, _, _ = select.select([self.control, self.wake], [], [], PATIENCE)
            if self.wake in ready:
                self.wake.recv(CONTROL_BYTES)
                self.reap()
            if self.control in ready:
                text, sockets, _, _ = socket.recv_fds(self.control, CONTROL_BYTES, 1)
                if not text:
                    return
                command = json.loads(text)
                what = command["do"]
                if what == "spawn":
                    self.end()
                    self.spawn(socket.socket(fileno=sockets[0]), command["names"])
                    continue
                left = 0
                if what == "sweep":
                    left = self.sweep()
                elif what == "end":
                    self.end()
                else:
                    self.reap()
                self.say({"alive": self.worker != 0, "status": self.ended, "left": left})
            if os.getppid() != self.parent:
                return


def leave_with(parent: int) -> None:
    """End this process when its parent ends, on systems that cannot do so themselves."""
    import threading
    import time

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run(control: socket.socket, data: socket.socket, outputs: int, names: Sequence[str]) -> None:
    """Run as the supervisor of a judge until the judge goes; never returns. names: libraries to import before the first worker."""
    for end in (control.fileno(), data.fileno(), outputs):
        os.set_inheritable(end, False)
    supervisor = Supervisor(control, outputs)
    try:
        supervisor.spawn(data, names)
        supervisor.serve()
    except (BrokenPipeError, ConnectionResetError):                 # the judge has gone
        pass
    finally:
        process_tree.end_children()
    os._exit(0)                                                     # nothing here needs Python's tidying up, which takes 0.1 s
