"""serving/http: requests that end badly, over real connections to an engine with a model, leave nothing behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.serving.engine import PagedEngine, start_engine
from tensor_graphs.serving.http.app import app
from tensor_graphs.serving.http.door import Door
from tensor_graphs.serving.http.metrics import Metrics
from tensor_graphs.serving.http.served import RequestLimits, Served
from tensor_graphs.serving.http.server import bound
from tests.serving.http.scripted import END, byte_tokenizer, until

sys.path.insert(0, str(Path(__file__).parents[2] / "models"))
from family_cases import DECODERS, POSITIONS

PAGES = 60

CLIENT = """
import socket, sys
body = b'{"prompt": "a", "stream": true}'
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    head = b"POST /v1/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n"
    s.sendall(head % len(body) + body)
    answer = b""
    while b"data:" not in answer:
        answer += s.recv(1000) or sys.exit("the server ended it")
    print("streams", flush=True)
    while s.recv(1000):
        pass
"""


class PacedStep:
    """The engine's step on a model, with a pause."""

    def __init__(self, step: Any) -> None:
        self.compiled, self.session, self.pool, self.lengths = step.compiled, step.session, step.pool, step.lengths
        self._step, self.seconds = step, 0.0

    def run(self, pieces: Any) -> Any:
        time.sleep(self.seconds)
        return self._step.run(pieces)


@pytest.fixture(scope="module")
def running(tmp_path_factory: Any) -> Iterator[tuple[PagedEngine, PacedStep, int]]:
    """An engine of a tiny Llama, its step, and the port of a server over it."""
    folder = tmp_path_factory.mktemp("llama")
    DECODERS[0].write(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": END + 1}))
    model = load_model(folder, dtype="float32", max_positions=POSITIONS, random_seed=0)
    first = start_engine(model, sequences=16, tokens=32, page=4, pages=PAGES)       # as in test_engine.py, which has their verdicts
    first.close()
    step = PacedStep(first._step)
    engine = PagedEngine(step, max_positions=model.max_positions, sequences=16, waiting=6)   # type: ignore[arg-type]
    served = Served("tiny", byte_tokenizer(folder, None), model.max_positions, engine)
    metrics, limits = Metrics(engine), RequestLimits(body=4000)
    server = uvicorn.Server(uvicorn.Config(Door(app(served, limits, metrics), limits, metrics), log_config=None, access_log=False))
    address = bound("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [address]})
    thread.start()
    until(lambda: server.started)
    yield engine, step, address.getsockname()[1]
    server.should_exit = True
    thread.join()
    engine.close()


def send(port: int, body: bytes, read: int | None, cut: bool) -> bytes:
    """Send a request and read so many bytes of the response (None: all); cut: end the connection by a reset."""
    with socket.create_connection(("127.0.0.1", port), 30) as s:
        if cut:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        s.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        data = b""
        while (read is None or len(data) < read) and (piece := s.recv(4096)):
            data += piece
        return data


def one_request(port: int, number: int) -> int:
    """Send a request that is answered, refused, malformed, or left by its client; return the status that was read, or 0."""
    draw = random.Random(number)
    body: dict[str, Any] = {"prompt": "".join(chr(draw.randrange(97, 123)) for _ in range(draw.randrange(1, 30))),
                            "max_tokens": draw.randrange(1, 40), "stream": draw.random() < 0.5, "n": draw.randrange(1, 3)}
    kind = draw.randrange(6)
    if kind == 0:
        body |= draw.choice([{"max_tokens": "x"}, {"n": 0}, {"prompt": []}, {"prompt": [[9**9]]}, {"unknown": 1},
                             {"prompt": "é" * 90}])
    data = json.dumps(body).encode()
    if kind == 1:
        data = draw.choice([data[:-draw.randrange(1, 9)], b"\xff\x00{", b"", b"[" * 3000, data * 40])
    left = kind >= 4
    response = send(port, data, draw.randrange(400) if left else None, left and draw.random() < 0.5)
    return int(response[9:12]) if response[9:12].isdigit() else 0


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(running: tuple[PagedEngine, PacedStep, int], count: int) -> None:
    engine, _, port = running

    def left_over() -> tuple[int, int, int, int]:
        status = engine.status()
        return status.running + status.waiting, status.free_pages, threading.active_count(), len(os.listdir("/proc/self/fd"))

    def answer_all(numbers: range) -> list[int]:
        with ThreadPoolExecutor(12) as clients:
            return list(clients.map(lambda number: one_request(port, number), numbers))
    answer_all(range(20))                                   # threads of the pools are there from now on
    until(lambda: left_over()[0] == 0)
    before, memory = left_over(), resident()
    statuses = answer_all(range(20, 20 + count))
    until(lambda: left_over()[0] == 0 and left_over()[1] == PAGES)
    until(lambda: left_over()[2] <= before[2] + 2 and left_over()[3] <= before[3] + 2)     # threads of choices end soon
    assert {200, 400} <= set(statuses) and max(statuses) < 500, sorted(set(statuses))
    assert sum(engine._pages.references) == 0
    assert resident() - memory <= 20e6


def test_requests_that_end_in_all_ways_leak_no_page_thread_or_file(running: tuple[PagedEngine, PacedStep, int]) -> None:
    soak(running, 40)


@pytest.mark.long
def test_a_thousand_requests_leak_nothing(running: tuple[PagedEngine, PacedStep, int]) -> None:
    soak(running, 1000)


def test_a_client_that_is_killed_is_noticed_within_a_second(running: tuple[PagedEngine, PacedStep, int]) -> None:
    engine, step, port = running
    step.seconds = 0.05
    try:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, str(port)], stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None and client.stdout.readline() == "streams\n"
        assert engine.status().running == 1
        began = time.monotonic()
        client.send_signal(signal.SIGKILL)
        client.wait()
        until(lambda: engine.status().running == 0, 1.0)
        assert time.monotonic() - began <= 1.0 and engine.status().free_pages == PAGES
    finally:
        step.seconds = 0.0
