"""What comes from outside to the worker or its supervisor in the middle of a job is no kernel's fault, and nothing stays behind."""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.kernel_origin import origin_of
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.text import print_graph
from tensor_graphs.measure.isolation import process_tree, supervisor, worker_process
from tensor_graphs.measure.isolation.worker import INSIDE
from tensor_graphs.measure.isolation.worker_process import WorkerProcess
from tensor_graphs.measure.points.inputs import Point
from tests.measure.wrong_kernels import BY_NAME, NODES

RELU = signature_of(NODES["relu"])


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcess]:
    with WorkerProcess(30.0) as made:
        monkeypatch.setenv("TRIAL_FOLDER", made.folder.name)
        monkeypatch.setattr(worker_process, "STOPPED_SECONDS", 0.5)
        yield made


def job(name: str, points: int = 4) -> dict[str, Any]:
    """A job that compares nothing: `says_that_it_began` takes 0.15 s a point."""
    kernel: Kernel = BY_NAME[f"trial.{name}"].kernel
    return {"graph": print_graph(RELU.graph), "kernel": kernel.name, "identity": kernel.identity, "origins": [origin_of(kernel)],
            "points": [Point((("n", 5),), seed) for seed in range(points)], "time": None, "threads": None, "argv": []}


def sending(worker: WorkerProcess, what: signal.Signals, *, to_supervisor: bool = False) -> threading.Thread:
    """Send a signal once, as soon as the kernel of a job has begun."""

    def send() -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if worker.pid is not None and Path(worker.folder.name, "begun").exists():
                assert worker.supervisor is not None
                os.kill(worker.supervisor.pid if to_supervisor else worker.pid, what)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("what", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSTOP], ids=lambda s: s.name)
def test_a_worker_that_somebody_ends_or_stops_gets_one_more_try(worker: WorkerProcess, what: signal.Signals) -> None:
    thread = sending(worker, what)
    begun = time.monotonic()
    reply = worker.run(job("says_that_it_began"))
    thread.join()
    assert reply.status == "RAN", reply
    assert worker.starts == 2 and time.monotonic() - begun < 15


def test_a_worker_finds_the_libraries_imported_that_its_supervisor_was_told_of(worker: WorkerProcess) -> None:
    assert worker.run(job("needs_a_library_that_is_there")).status == "RUNTIME_ERROR"
    worker.leave()
    worker.imports = ("wave", "no_such_library")                    # whoever needs the second will be told so
    assert worker.run(job("needs_a_library_that_is_there")).status == "RAN"
    worker.kill()
    assert worker.run(job("needs_a_library_that_is_there")).status == "RAN"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc",
                    reason="musl and macOS hand freed memory back by other rules, which nothing here sets")
def test_a_fresh_worker_keeps_the_memory_of_temporaries(worker: WorkerProcess) -> None:
    reply = worker.run(job("asks_the_system_for_no_page_twice", points=12))
    assert reply.status == "RAN", reply


def test_a_kernel_that_ends_its_process_does_so_twice_and_is_blamed(worker: WorkerProcess) -> None:
    reply = worker.run(job("ends_itself"))
    assert reply.status == "RUNTIME_ERROR" and "SIGTERM" in reply.log and worker.starts == 2


def test_a_kernel_that_stops_its_process_does_so_twice_and_hangs(worker: WorkerProcess) -> None:
    reply = worker.run(job("stops_itself"))
    assert reply.status == "TIMEOUT" and "stopped" in reply.log and worker.starts == 2


def test_a_stopped_supervisor_is_ended_with_all_it_started(worker: WorkerProcess) -> None:
    thread = sending(worker, signal.SIGSTOP, to_supervisor=True)
    begun = time.monotonic()
    assert worker.run(job("right_in_place")).status == "RAN"         # so that there is a supervisor
    token, first = worker._token, worker.supervisor
    reply = worker.run(job("says_that_it_began"))
    thread.join()
    assert reply.status == "RAN" and time.monotonic() - begun < 15
    assert worker.supervisor is not first and process_tree.carrying(INSIDE, token) == []


def test_a_worker_is_waited_for_as_long_as_its_work_may_take_and_no_longer(worker: WorkerProcess, caplog: pytest.LogCaptureFixture,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SILENT_SECONDS", 0.4)
    begun = time.monotonic()
    reply = worker.run(job("spins_deaf_to_signals"), limit=1.0, what="trial.spins on relu")
    assert reply.status == "TIMEOUT" and "within 1 s" in reply.log and time.monotonic() - begun < 10
    (said,) = [r for r in caplog.records if "waiting for trial.spins on relu" in r.getMessage()]
    assert said.levelname == "WARNING"


def test_time_in_which_the_judge_stood_still_itself_does_not_count() -> None:
    mine, theirs = socket.socketpair()
    waiting = os.fork()
    if waiting == 0:
        try:
            worker_process._await(mine, os.getppid(), 0.9)
            os._exit(0)
        finally:
            os._exit(3)
    time.sleep(0.1)
    os.kill(waiting, signal.SIGSTOP)
    time.sleep(1.2)
    theirs.send(b"!")
    os.kill(waiting, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(waiting, 0)[1]) == 0


def test_a_worker_that_is_slow_to_go_is_no_child_of_the_next_ones_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that a GPU's driver holds while a kernel runs there that never ends."""
    made = supervisor.Supervisor.__new__(supervisor.Supervisor)
    made.worker, made.ended, made.dying = 41, None, set()
    there = [41]
    monkeypatch.setattr(process_tree, "children", lambda process=None: there if process is None else [])
    for name, answer in (("end_children", {}), ("reap_all", {}), ("end_descendants", 0), ("works", True), ("end", None)):
        monkeypatch.setattr(process_tree, name, lambda *given, answer=answer: answer)
    made.end()
    made.worker = 42
    there += [42]
    assert made.sweep() == 0
    there += [43]
    assert made.sweep() == 1
    monkeypatch.setattr(process_tree, "reap_all", lambda: {41: 9})
    made.reap()
    assert made.dying == set()
