"""warm_command: a process that has imported what `tg` imports; it forks a process of its own for each command that a test runs.

Importing takes a verb 1 s of CPU time, more than most of them take otherwise, and the tests run hundreds. Where a test is about
what happens before or during the imports, command.py starts a new process instead.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

LARGEST = 1 << 20
"""bytes of a request"""


class Warm:
    """A started process of this module."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-m", __name__, str(theirs.fileno())], env=dict(environment),
                                            stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def run(self, arguments: list[str], environment: Mapping[str, str], streams: tuple[int, int, int], timeout: float) -> int:
        """The exit code of `tg` with these arguments in the current folder, or minus the number of the signal that ended it.

        streams: files for its standard input, output and error. Raises subprocess.TimeoutExpired when it had to be killed.
        """
        asked = json.dumps({"arguments": arguments, "environment": dict(environment), "folder": os.getcwd()}).encode()
        socket.send_fds(self.socket, [asked], list(streams))
        started = int(self.socket.recv(64))
        self.socket.settimeout(timeout)
        try:
            return os.waitstatus_to_exitcode(int(self.socket.recv(64)))
        except TimeoutError:
            os.kill(started, signal.SIGKILL)
            self.socket.settimeout(None)
            self.socket.recv(64)
            raise subprocess.TimeoutExpired(["tg", *arguments], timeout) from None
        finally:
            self.socket.settimeout(None)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


def serve(sock: socket.socket) -> None:
    """Fork at each request; returns in the child, whose arguments, environment, folder and streams are those of the request."""
    while True:
        text, given, _, _ = socket.recv_fds(sock, LARGEST, 3)
        if not text:
            os._exit(0)
        child = os.fork()
        if child == 0:
            asked = json.loads(text)
            sock.close()
            for descriptor, number in zip(given, (0, 1, 2), strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(asked["folder"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            sys.argv[:] = ["tg", *asked["arguments"]]
            return
        for descriptor in given:
            os.close(descriptor)
        sock.send(str(child).encode())
        sock.send(str(os.waitpid(child, 0)[1]).encode())


if __name__ == "__main__":
    import typer._adapters  # noqa: F401

    import tensor_graphs.choice.compile
    import tensor_graphs.choice.search
    import tensor_graphs.frontends.huggingface.load
    import tensor_graphs.proof.equality
    import tensor_graphs.rewrites.recipes
    import tensor_graphs.rewrites.rules
    import tensor_graphs.serving.generate
    import tensor_graphs.views.explain  # noqa: F401
    from tensor_graphs.cli.main import command, main
    from tensor_graphs.kernels.registry import load_backend
    from tensor_graphs.language.composite import LIBRARY
    from tensor_graphs.rewrites.composites import templates_of
    from tensor_graphs.rewrites.passes.recognise import forms_of

    command()
    for op in LIBRARY.values():
        forms_of(op)
        templates_of(op)
    assert all(kernel.identity for kernel in load_backend("numpy"))
    gc.freeze()     # else each child's collections write to, and so copy, every page that holds an object: 0.4 s of CPU time each
    serve(socket.socket(fileno=int(sys.argv[1])))
    main()
