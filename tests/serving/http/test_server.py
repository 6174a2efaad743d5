"""serving/http/server.py: sockets, and how a server ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tensor_graphs.serving.http.server import AddressError, bound

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
from tensor_graphs.serving.http import door, server
from tensor_graphs.serving.http.served import RequestLimits
from tests.serving.http.scripted import ScriptedEngine, served

server.GRACE, door.PATIENCE = 0.3, 0.5
engine, address = ScriptedEngine("abc"), server.bound("127.0.0.1", 0)
engine.gate.clear()                             # no answer ends by itself
server.serve(served(engine, Path(sys.argv[1])), RequestLimits(body=1000), address,
             lambda: print(address.getsockname()[1], flush=True))
print("closed", engine.closed, flush=True)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server whose answers never end, that waits 0.5 s for clients and 0.3 s for answers after a signal; its URL."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)},
                               text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    process.kill()
    process.wait()


def test_answers_that_do_not_end_are_cut_and_the_server_ends_well(running: tuple[subprocess.Popen[str], str]) -> None:
    process, url = running
    body = {"messages": [{"role": "user", "content": "x"}]}
    with httpx.stream("POST", url + "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = response.iter_lines()
        assert "assistant" in next(lines)
        process.send_signal(signal.SIGTERM)
        last = [line for line in lines if line][-1]
    assert '"message": "the server stops"' in last and '"code": "unavailable"' in last
    assert process.wait(10) == 0 and process.stdout is not None and process.stdout.read() == "closed 1\n"


def test_a_client_that_sends_its_body_too_slowly_gets_408(running: tuple[subprocess.Popen[str], str]) -> None:
    _, url = running
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{")
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_sends_too_much_reads_413(running: tuple[subprocess.Popen[str], str]) -> None:
    _, url = running
    for size in (1001, 5_000_000):
        assert httpx.post(url + "/v1/completions", content=b" " * size).status_code == 413


def test_an_address_that_nobody_has_is_an_error() -> None:
    for host, port in (("no.such.host.invalid", 0), ("192.0.2.1", 0), ("x" * 70, 0)):
        with pytest.raises(AddressError, match="--port 0 takes a free one"):
            bound(host, port)
