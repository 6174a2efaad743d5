"""On a GPU: schedules are compared with the rules' kernel before they are timed, and a winner is judged like any kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.codegen import backend_cuda, cuda_schedule, tuned_kernel
from tensor_graphs.codegen.cuda_schedule import NestNumber
from tensor_graphs.codegen.schedule_actions import Schedule
from tensor_graphs.devices.device import DeviceLost
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.graph import graph
from tensor_graphs.records.database import open_database
from tensor_graphs.tuning.generators import DEVICE
from tensor_graphs.tuning.space import BAD, Measured
from tensor_graphs.tuning.timing import Paired


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    registry.made.clear()


def softmax() -> Signature:
    return signature_of(tg.softmax(tg.input("x", (512, 1000), tg.bf16)))


def two_rows(space: Measured) -> Schedule:
    return space.changed(space.seed, NestNumber(64, 0, "threads"))


@pytest.mark.gpu
def test_schedules_are_compared_and_timed_in_pairs() -> None:
    space = Measured(softmax(), {}, 60.0, generator=DEVICE)
    other = two_rows(space)
    scores = space.scores([space.seed, other, other])
    assert other != space.seed and scores[0] == 1.0 and 0.1 < scores[1] == scores[2] < 10.0
    pairs = space.bench.pairs(space.run_seed, space.run_seed, 21)
    assert 0.9 < pairs.ratio < 1.1 and all(1e-7 < s < 1e-3 for s in pairs.own)


@pytest.mark.gpu
def test_a_schedule_that_computes_something_else_gets_no_score() -> None:
    exp = DEVICE.task(signature_of(tg.exp(tg.input("x", (512, 1000), tg.bf16))).spec)
    rules = DEVICE.seed(DEVICE.task(softmax().spec))

    def wrong(task: Any, schedule: Schedule) -> Any:
        return DEVICE.program(task, schedule) if schedule == rules else DEVICE.program(exp, ())

    space = Measured(softmax(), {}, 60.0, generator=replace(DEVICE, program=wrong))
    assert space.scores([two_rows(space)]) == [BAD]
    assert "off the rules' schedule" in space.looked[two_rows(space)].why


@pytest.mark.gpu
def test_the_winner_on_a_gpu_is_judged_stored_and_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def winner(space: Measured) -> tuple[Schedule, Paired]:
        space.deadline = float("inf")
        return two_rows(space), Paired((0.5,) * 9, (1.0,) * 9)

    monkeypatch.setattr(Measured, "winner", winner)
    monkeypatch.setattr("tensor_graphs.tuning.tune.JUDGED", 0.1)
    g = graph({"y": tg.softmax(tg.input("x", (512, 1000), tg.bf16))})
    with open_database(tmp_path / "rows.db") as database:
        report = profile_graph(g, budget=2.0, tune=2.0, database=database, backends=("gencuda", "numpy"))
        (part,) = report.tuned
        assert part.status == "PASSED" and part.kernel.startswith("gencuda.tuned_"), report
        assert "threads 64 (nest 0)" in part.actions
        registry.made.clear()
        plan = tg.compile(g, database=database, backends=("gencuda", "numpy"))
        out = tg.bind(plan, {}).run({"x": np.zeros((512, 1000), tg.bf16.numpy)})["y"]
        assert np.allclose(np.asarray(out, np.float32), 1e-3, rtol=1e-2)


class _Lost:
    """A bench of a device that the second schedule takes down."""

    def __init__(self, *_: object) -> None:
        self.ints, self.operands, self.loaded = dict[str, int](), list[np.ndarray](), 0

    def load(self, call: object) -> int:
        self.loaded += 1
        if self.loaded > 1:
            raise DeviceLost("the context is lost")
        return self.loaded

    def compare(self, run: int) -> None:
        """Find nothing wrong."""

    def pairs(self, run: int, seed: int, rounds: int) -> Paired:
        return Paired((1.0,), (1.0,))


def test_a_schedule_that_takes_a_device_down_is_noted_before_the_search_ends() -> None:
    space = Measured(softmax(), {}, 60.0, generator=replace(DEVICE, bench=_Lost, compiled=lambda calls: [None for _ in calls]))
    with pytest.raises(DeviceLost):
        space.scores([two_rows(space)])
    assert "the device was lost" in space.looked[two_rows(space)].why


def test_a_kernel_of_a_schedule_on_a_gpu_is_made_anew_of_its_text() -> None:
    s = softmax()
    task = cuda_schedule.task_of(s.spec)
    schedule = cuda_schedule.changed(task, cuda_schedule.seed(task), NestNumber(64, 0, "threads"))
    kernel = tuned_kernel.tuned(s, schedule, "gencuda.loops")
    again = tuned_kernel.kernel_from(kernel.source)
    assert kernel.name.startswith("gencuda.tuned_") and again.identity == kernel.identity
    assert again.accepts(s.spec) is None and tuned_kernel.schedule_of(again) == schedule
    other = signature_of(tg.softmax(tg.input("x", (512, 1001), tg.bf16)))
    assert again.accepts(other.spec) == "it was tuned for another softmax"
    call = again.build(s.spec)
    assert call.text != backend_cuda.build(s.spec).text                     # type: ignore[union-attr]
    assert "threads 64 (nest 0)" in tuned_kernel.differs(again, s.spec)
    assert " * threads 64 (nest 0)" in tuned_kernel.text_of(again, s.spec)
