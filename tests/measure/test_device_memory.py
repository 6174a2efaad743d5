"""Kernels of another device are judged and timed as those of the host: what they do in its memory shows, copies do not count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.costs.measured_rates import known_links
from tensor_graphs.kernels.registry import register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.single_op_plans import as_stored, single_kernel_plan, views_graph
from tensor_graphs.measure.rates.calibration import measure_device
from tensor_graphs.measure.timing.clock import Watched
from tensor_graphs.records.database import open_database
from tensor_graphs.runtime.compiled_graph import bind
from tests.fake.device import Fake

X = tg.input("x", (tg.dim("n", 1, 96), 24))


@pytest.fixture(autouse=True)
def fake() -> Iterator[Fake]:
    from tests.fake import backend

    yield backend.make_known()
    backend.forget()


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(open_database(tmp_path_factory.mktemp("judge") / "bench.db"), timeout=60.0) as made:
        yield made


@pytest.mark.parametrize(("name", "status", "says"), [
    ("honest", "PASSED", ""),
    ("far", "PASSED", ""),
    ("writes_only_once", "INCORRECT_NUMERICAL", "not written, or added to: what lay there before"),
    ("changes_its_operand", "MUTATED_INPUT", ""),
    ("writes_behind_its_output", "INCORRECT_SHAPE", "the memory of fake, between its buffers"),
])
def test_what_a_kernel_does_in_the_memory_of_its_device_shows(judge: Judge, name: str, status: str, says: str) -> None:
    from tests.fake.wrong_kernels import KERNELS

    register(KERNELS[name])
    try:
        signature = signature_of(tg.relu(X))
        verdict = judge.examine(KERNELS[name], signature, {"n": 20}, time_at={"n": 20} if status == "PASSED" else None, budget=0.02)
    finally:
        unregister(f"fake.{name}")
    assert verdict.status == status and says in verdict.log, verdict.log
    assert status != "PASSED" or len(verdict.samples) >= 5


@pytest.mark.parametrize("name", ["honest_of_two", "contiguous"])
def test_operands_that_are_made_contiguous_here_or_there_share_memory_and_are_not_changed(judge: Judge, name: str) -> None:
    from tests.fake.wrong_kernels import KERNELS

    register(KERNELS[name])
    try:
        verdict = judge.examine(KERNELS[name], signature_of(X * tg.tanh(X)), {"n": 20})
    finally:
        unregister(f"fake.{name}")
    assert verdict.status == "PASSED", verdict.log


@pytest.mark.parametrize("form", ["views", "repeated", "strided", "turned"])
def test_a_copy_of_a_view_that_is_changed_shows(form: Any, fake: Fake) -> None:
    from tests.fake.wrong_kernels import KERNELS

    for name, changed in (("contiguous_and_wrong", True), ("honest", False)):
        graph = tg.graph(tg.relu(tg.input("x", (4, 16))))
        watched = Watched(bind(single_kernel_plan(views_graph(graph, form), KERNELS[name])))
        x = as_stored(graph, {"x": np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)}, form)
        watched.run(x, {"out": np.empty((4, 16), np.float32)}, {})
        assert watched.lab.mutated(watched.frame) is changed, name


def test_the_time_of_a_call_is_without_the_copies_to_and_from_its_device(fake: Fake) -> None:
    from tests.fake.wrong_kernels import KERNELS

    plan = single_kernel_plan(tg.graph(tg.relu(X)), KERNELS["honest"])
    watched = Watched(bind(plan))
    fake.latency = 0.02
    x, y = np.ones((20, 24), np.float32), np.empty((20, 24), np.float32)
    name = next(iter(plan.graph.outputs))
    assert watched.run({"x": x}, {name: y}, {"n": 20}) < 0.02 and watched.walk({"x": x}, {name: y}, {"n": 20}) > 0.04
    fake.latency = 0.0
    watched.run({"x": x}, {name: y}, {"n": 20})
    assert (y == 1).all()


def test_a_link_is_measured_each_way_and_kept(fake: Fake, tmp_path: Path) -> None:
    database = open_database(tmp_path / "bench.db")
    fake.latency, fake.bandwidth = 2e-3, 1e9
    found = measure_device(database, ("fake",))["fake"]
    assert measure_device(database, ("fake",)) == {}
    for pair in (("cpu", "fake"), ("fake", "cpu")):
        link = known_links(database, fake, ("fake",))[pair]
        assert 2e-3 <= link.latency < 0.02 and 2e8 < link.bandwidth < 1.1e9
    assert set(found) == {"upload_latency", "upload_bandwidth", "download_latency", "download_bandwidth"}


def test_of_a_plan_that_never_ran_nothing_is_outside(fake: Fake) -> None:
    from tests.fake.wrong_kernels import KERNELS

    graph = tg.graph(tg.relu(tg.input("x", (4, 16))))
    watched = Watched(bind(single_kernel_plan(graph, KERNELS["honest"])))
    assert watched.executor.layout.intervals and watched.lab.outside(watched.frame) == []
