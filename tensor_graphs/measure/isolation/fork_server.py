"""fork_server: the process from which supervisors are forked. It imports once what every worker needs, runs no candidate, and holds
no data of a judge. Candidates descend from it only through a supervisor.

Requests from the judge's process, one JSON object per message on its socket: fork (attached are a supervisor's control socket, its
worker's socket, the file of outputs and the file for printed text), and ended (return a supervisor's wait status, or null). It ends
when the judge's process ends, or after a minute without a supervisor and a request."""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from typing import Any

from tensor_graphs.measure.isolation import process_tree, supervisor, worker

REQUEST_BYTES = 1 << 16
ENDS = 4
"""number of file descriptors attached to a request for a supervisor"""

IDLE_SECONDS = 60.0
"""seconds without a request and a supervisor, after which the template ends to free its memory"""


def become_supervisor(asked: dict[str, Any], ends: list[int]) -> None:
    """Serve a judge as its supervisor, in its own session, folder and files; returns when the judge has gone."""
    os.setsid()
    control, data, outputs, printed = ends
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.close(printed)
    if asked["folder"] is not None:
        os.chdir(asked["folder"])
    for name, value in asked["own"].items():
        process_tree.relabel(name, value)
    supervisor.run(socket.socket(fileno=control), socket.socket(fileno=data), outputs, asked["names"])


def serve(requests: socket.socket) -> None:
    """Serve requests until the judge goes, or has been idle for IDLE_SECONDS."""
    parent, used = os.getppid(), time.monotonic()
    alive: set[int] = set()
    while os.getppid() == parent:
        if not select.select([requests], [], [], supervisor.PATIENCE)[0]:
            if not alive and time.monotonic() - used > IDLE_SECONDS:
                return
            continue
        text, ends, _, _ = socket.recv_fds(requests, REQUEST_BYTES, ENDS)
        if not text:
            return
        asked, used = json.loads(text), time.monotonic()
        if asked["do"] == "fork":
            child = os.fork()
            if child == 0:
                try:
                    requests.close()
                    become_supervisor(asked, ends)
                finally:
                    os._exit(70)
            for end in ends:
                os.close(end)
            alive.add(child)
            answer: dict[str, Any] = {"pid": child}
        else:
            ended, status = os.waitpid(asked["pid"], os.WNOHANG)
            alive.discard(ended)
            answer = {"status": status if ended else None}
        requests.send(json.dumps(answer).encode())


if __name__ == "__main__":
    worker.preload(sys.argv[2:])
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except (BrokenPipeError, ConnectionResetError):                 # the judge has gone
        pass
    os._exit(0)                                                     # nothing here needs Python's tidying up, which takes 0.1 s
