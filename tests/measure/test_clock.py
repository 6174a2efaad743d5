"""The watch around the calls of a plan."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.points.single_op_plans import single_kernel_plan
from tensor_graphs.measure.timing import clock
from tensor_graphs.measure.timing.clock import Watched
from tensor_graphs.runtime.compiled_graph import bind
from tests.measure.wrong_kernels import NODES


@pytest.mark.parametrize("name", ["c.softmax", "numpy.softmax"])
def test_a_native_kernel_is_timed_in_c_and_no_clock_of_python_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def now() -> float:
        asked.append(0.0)
        return 0.0

    monkeypatch.setattr(clock, "now", now)
    graph = signature_of(NODES["softmax"]).graph
    watched = Watched(bind(single_kernel_plan(graph, kernel_named(name))))
    out: Sequence[np.ndarray] = [np.zeros((20, 24), np.float32)]
    taken = watched.run({"x0": np.ones((20, 24), np.float32)}, {"y0": out[0]}, {"n": 20})
    assert out[0][0, 0] == pytest.approx(1 / 24)
    assert (taken > 0 and not asked) if name.startswith("c.") else (taken == 0 and asked)


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.001)
    return holds()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="threads are listed in /proc, which only Linux has")
def test_threads_of_this_process_are_counted_while_they_work_and_no_longer() -> None:
    """Opened once, and closed where a thread has ended."""
    numbers: list[int] = []
    ended = threading.Event()

    def work() -> None:
        numbers.append(threading.get_native_id())
        x = np.ones((400, 400))
        while not ended.is_set():
            x = x @ x * 0.0

    thread = threading.Thread(target=work)
    thread.start()
    assert within(20.0, lambda: clock._own_running() >= 2) and str(numbers[0]) in clock._states
    kept = dict(clock._states)
    clock._own_running()
    assert clock._states.items() >= {(t, d) for t, d in kept.items() if os.path.exists(f"/proc/self/task/{t}")}
    ended.set()
    thread.join()
    assert within(20.0, lambda: clock._own_running() > 0 and str(numbers[0]) not in clock._states)     # it ends a while later
    assert not any(Path(f"/proc/self/fd/{d}").resolve().match(f"task/{numbers[0]}/stat") for d in os.listdir("/proc/self/fd"))


def test_looking_for_other_programs_is_as_much_work_where_no_thread_works_as_where_some_do(monkeypatch: pytest.MonkeyPatch,
                                                                                           tmp_path: Path) -> None:
    """Else it is time that a run takes and that no run in which nothing is called explains."""
    counted: list[int] = []
    for running in (1, 3):
        file = tmp_path / "loadavg"
        file.write_text(f"0.10 0.20 0.30 {running}/200 4711\n")
        with file.open("rb") as opened:
            monkeypatch.setattr(clock, "_running", opened.fileno())
            monkeypatch.setattr(clock, "_own_running", lambda running=running: counted.append(running) or running)
            assert clock.others_running() == 0
    assert counted == [1, 3]
