"""Profiling a graph: within a budget, resumable, never twice; afterwards the plan rests on rows (claim 6)."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensor_graphs as tg
from tensor_graphs.choice import finalists
from tensor_graphs.choice import profile_graph as module
from tensor_graphs.choice.choice_evidence import Choice
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.disturbed_times import Outliers
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.profile_graph import in_place, profile_graph, questions_of
from tensor_graphs.choice.profile_paths import parts_on, run_in_place
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import environment_of
from tensor_graphs.kernels.registry import kernel_named, register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.measure.judge import Judge, JudgeTask, Verdict
from tensor_graphs.measure.points.input_descriptors import InputError
from tensor_graphs.measure.queue import next_measurements, time_left
from tensor_graphs.measure.queue.next_measurements import COMPARING, Question
from tensor_graphs.measure.queue.time_left import Ahead, Pace
from tensor_graphs.measure.rates import calibration
from tensor_graphs.measure.rates.table import Speed
from tensor_graphs.measure.timing import in_graph_steps
from tensor_graphs.paths.path import NoPathError, is_way_on
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records import queries, upkeep, work_queue
from tensor_graphs.records.database import Database, open_database
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import SLEEPY, TWO_FACED
from tests.plans import paths_of

N = tg.dim("n", 1, 24)
SMALL = tg.graph({"y": tg.softmax(tg.linear(tg.input("x", (5, 16), tg.f32), tg.parameter("w", (12, 16), tg.f32)))})


def weight(name: str, out: int, size: int = 16) -> Node:
    return tg.parameter(name, (out, size), tg.f32)


def attention() -> Node:
    """Two heads of attention over n rows of 16 numbers, and what goes around them."""
    x = tg.input("x", (N, 16), tg.f32)
    h = tg.rms_norm(x, tg.parameter("g", (16,), tg.f32))
    q, k, v = (tg.reshape(tg.linear(h, weight(name, 16)), (N, 2, 8)) for name in "qkv")
    a = tg.reshape(tg.attention(q, k, v, scale=0.35, causal=True), (N, 16))
    return x + tg.linear(a, weight("o", 16))


def normalised_products() -> Node:
    """A norm and the product behind it, and one of what that gives, which no loops take together with it."""
    return tg.linear(tg.softmax(tg.linear(tg.rms_norm(tg.input("x", (N, 16), tg.f32)), weight("w", 16))), weight("v", 16))


def transformer() -> Node:
    """Attention and an MLP."""
    x = attention()
    up = tg.gelu(tg.linear(tg.rms_norm(x), weight("up", 32)), approximate="tanh")
    return x + tg.linear(up, weight("down", 16, 32))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short samples, few finalists and few runs of them, constants of the device that cost nothing, and no row in doubt, as many a
    one of a busy machine is: all have tests of their own."""
    monkeypatch.setattr(Outliers, "of", lambda *args: None)
    monkeypatch.setattr(Outliers, "least", lambda *args: None)
    monkeypatch.setattr(finalists, "MOST", 2)
    monkeypatch.setattr(finalists, "ROUNDS", 2)
    monkeypatch.setattr(finalists, "TURNS", 1)
    monkeypatch.setattr(in_graph_steps, "MOST_RUNS", in_graph_steps.LEAST_RUNS)
    monkeypatch.setattr(next_measurements, "PER_KERNEL", 0.01)
    monkeypatch.setattr(calibration, "memory_speeds", lambda: {"read_bandwidth": Speed(2e10, "byte/s")})
    monkeypatch.setattr(calibration, "backend_speeds", lambda backend: {"flops_f32": Speed(5e10, "flop/s")})


def test_one_kernel_is_measured_however_little_the_budget_leaves(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = calibration.memory_speeds

    def slow() -> Mapping[str, Speed]:
        time.sleep(0.3)
        return measured()

    monkeypatch.setattr(calibration, "memory_speeds", slow)
    report = profile_graph(SMALL, database=database, backends=("numpy",), budget=0.001)
    assert sum(report.statuses.values()) == 1 and report.left > 0 and 0.3 <= report.device_seconds <= report.seconds
    again = profile_graph(SMALL, database=database, backends=("numpy",), budget=0.001)
    assert sum(again.statuses.values()) == 1


def test_the_budget_is_for_measuring_and_the_search_before_it_is_told_apart(database: Database,
                                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, given = module.prepare, []

    def slow(*args: Any, **more: Any) -> Any:
        time.sleep(0.3)
        return prepare(*args, **more)

    def noted(*args: Any, budget: float, **more: Any) -> Any:
        given.append(budget)
        yield from next_measurements.answer(*args, budget=budget, **more)

    monkeypatch.setattr(module, "prepare", slow)
    monkeypatch.setattr(module, "measure_device", lambda *args, **more: {})      # all was known
    monkeypatch.setattr(module, "answer", noted)
    report = profile_graph(SMALL, database=database, backends=("numpy",), budget=0.2)
    assert given[0] == pytest.approx((1 - module.FINAL) * 0.2), "nothing of it had gone before the first question"
    assert 0.3 <= report.search_seconds < report.seconds and report.device_seconds == 0


def test_a_small_budget_is_shared_by_several_questions(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one gives each kernel as long as ever, and whoever says how long gets that."""
    monkeypatch.setattr(next_measurements, "PER_KERNEL", 0.25)
    seen: list[float] = []

    class Listening(Judge):
        def examine_interleaved(self, asked: Sequence[JudgeTask], *, budget: float = 0.3, until: float = math.inf) -> list[Verdict]:
            seen.append(budget)
            return [Verdict("IMPLAUSIBLE", None, None, None, None, "not measured") for _ in asked]

    node = tg.softmax(tg.input("x", (3, 8), tg.f32))
    asked = [Question(kernel_named("numpy.softmax"), signature_of(node), {}, 1.0)]
    with Listening(database) as judge:
        for budget in (0.1, 2.0, 60.0):
            list(next_measurements.answer(judge, asked, budget=budget))
        list(next_measurements.answer(judge, asked, budget=0.1, per_kernel=4.0))
    assert seen == [next_measurements.LEAST_EACH, 2.0 / next_measurements.SEVERAL, 0.25, 4.0]


def test_no_more_kernels_take_turns_than_there_is_time_for(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    clock = itertools.count()                               # microseconds: what is measured here takes no time
    monkeypatch.setattr(next_measurements, "time", SimpleNamespace(perf_counter=lambda: next(clock) * 1e-6))

    class Listening(Judge):
        def examine_interleaved(self, asked: Sequence[JudgeTask], *, budget: float = 0.3, until: float = math.inf) -> list[Verdict]:
            seen.append((len(asked), until <= end))
            return [Verdict("PASSED", 0.0, 0.0, 0.0, 0.0, "", samples=(1e-3,)) for _ in asked]

    node = tg.softmax(tg.input("x", (3, 8), tg.f32))
    asked = [Question(kernel_named("numpy.softmax"), signature_of(node), {}, 1.0)] * 5
    with Listening(database) as judge:
        for budget in (3.0, 60.0):
            end = budget + 1e-3
            list(next_measurements.answer(judge, asked, budget=budget, per_kernel=1.2))
        list(next_measurements.answer(judge, asked, budget=0.0, per_kernel=1.2, at_least=1))
    assert [count for count, _ in seen] == [2, 2, 1, 5, 1] and all(in_time for _, in_time in seen)


@pytest.mark.parametrize("made", [normalised_products, pytest.param(attention, marks=pytest.mark.long),
                                  pytest.param(transformer, marks=pytest.mark.long)])
def test_after_profiling_the_plan_rests_on_rows(database: Database, starts: list[int], made: Callable[[], Node]) -> None:
    g = tg.graph({"y": made()})
    asked: Any = {"database": database, "backends": ("c", "numpy")}
    report = profile_graph(g, budget=300.0, **asked)
    # at each sample its parts, and of their steps what may be faster than those
    assert report.measured > 10 and report.left == 0 and not report.interrupted
    starts.clear()
    plan = compile_graph(g, **asked)
    assert [v.measured_share for v in plan.variants] == [1.0] * len(plan.variants)
    assert plan.unmeasured == () and starts == []
    again = profile_graph(g, budget=300.0, **asked)
    assert again.measured == again.failed == again.left == again.deployed == 0 < again.already_known
    # the first knew some when it came to ask, of runs in their places
    assert again.already_known <= report.measured + report.already_known
    # … and the chosen paths are known where they run: as a whole, in turns with others, or by each of their steps
    for v in plan.variants:
        rows = [e for e in v.evidence if not is_way_on(e.chosen) and e.calls]
        assert v.whole is not None or all(", in its graph" in e.note for e in rows)
        in_place = {e.trace for e in rows if isinstance(e, Choice) and e.trace and ", in its graph" in e.note}
        assert [e.kind for e in queries.evidence(database, *in_place)] == ["in_graph"] * len(in_place)
    assert report.deployed > 0 and report.paths > 0


def test_a_part_inside_of_another_one_has_a_row_as_a_whole_once_it_was_run_in_its_place(database: Database) -> None:
    """Nothing of numpy computes the norm and its three products at once, so the products are reached in its definition."""
    graph, at = prepare(tg.graph({"y": attention()}), recipes=database, backends=("numpy", "gen")).graph, {"n": 24}
    paths = paths_of(graph, ("numpy",))
    path = paths.cheapest()
    (part,) = {s: None for s, _, _ in parts_on(paths, path)}
    assert part not in [s for s, _ in paths.top]
    several = [paths.reworded(path, {part: way}) for way in paths.alternatives(part) if way.kernel is None]
    assert len(several) == 2 and None not in several                # its own words and a recipe
    with Judge(database) as judge:
        run_in_place(judge, graph, [(paths, each) for each in several if each], {s.key: s for s in paths.known()}, at, ("numpy",))
    now = CostTable.of(Request(graph, None, ("numpy",), database))
    taken = [row.median_ms for each in several if each for s, way, steps in parts_on(paths, each)
             if (row := now.whole_row(at, s, way, steps)) is not None and row.median_ms is not None]
    assert len(taken) == 2 and min(taken) > 0.0


def test_the_time_of_a_part_that_no_kernel_is_known_to_compute_is_not_stored(database: Database) -> None:
    path = paths_of(SMALL, ("numpy",)).cheapest()
    found = in_graph_steps.Deployed(path, (1e-3,), (1e-3,), {}, {("key", "recipe"): (1e-3,)}, True)
    with Judge(database) as judge:
        in_graph_steps.record_parts(judge, [found], {}, {})
    assert upkeep.stats(database).rows["benchmark_traces"] == 0


def test_what_stays_unknown_in_its_place_is_run_there_twice_and_not_until_the_budget_is_spent(
        database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_known_in_graph", lambda *args: False)
    ran = []

    def counted(*args: Any) -> int:
        ran.append(args)
        return run_in_place(*args)

    monkeypatch.setattr(module, "run_in_place", counted)
    report = profile_graph(SMALL, database=database, budget=300.0, backends=("numpy",))
    assert report.deployed > 0 and report.left == 0 and 2 <= len(ran) <= 20


def test_a_part_that_stays_unknown_as_a_whole_is_run_twice(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, at = prepare(tg.graph({"y": attention()}), recipes=database, backends=("numpy", "gen")).graph, {"n": 24}
    found = paths_of(graph, ("numpy",))
    ran = []

    def known(*args: Any) -> int:
        ran.append(args)
        return 1

    monkeypatch.setattr(module, "run_in_place", known)
    monkeypatch.setattr(module, "_known_in_graph", lambda *args: True)
    monkeypatch.setattr(CostTable, "paths", lambda *args, **more: found)
    monkeypatch.setattr(module, "CLOSE", 10.0)
    with Judge(database) as judge:
        assert in_place(judge, graph, at, Request(graph, None, ("numpy",), database), math.inf, print) == len(ran) == 2


def batch_normalised() -> Node:
    """In numpy by its definition, which computes something of the running mean and variance alone."""
    return tg.batch_norm(tg.input("x", (2, 6, 5, 5), tg.f32), *(tg.parameter(name, (6,), tg.f32) for name in "mvgb"))


def a_weight_that_is_made() -> Node:
    w = tg.softmax(tg.parameter("w", (12, 16), tg.f32))
    return tg.softmax(tg.linear(tg.input("x", (5, 16), tg.f32), w))


@pytest.mark.parametrize("made", [batch_normalised, a_weight_that_is_made])
def test_what_is_computed_when_the_graph_is_bound_is_not_waited_for_in_its_place(
        database: Database, made: Callable[[], Node]) -> None:
    g = tg.graph({"y": made()})
    assert profile_graph(g, database=database, budget=300.0, backends=("numpy",)).deployed > 0
    again = profile_graph(g, database=database, budget=300.0, backends=("numpy",))
    assert again.measured == again.deployed == again.left == 0 < again.already_known


def test_a_kernel_that_was_fast_on_its_own_only_is_not_kept(database: Database) -> None:
    """Its row says it takes no time; in its place in the graph it takes three milliseconds."""
    register(SLEEPY)
    try:
        softmax = tg.softmax(tg.input("x", (64, 16), tg.f32))
        add_row(database, SLEEPY, signature_of(softmax), {}, us=0.001)
        g = tg.graph({"y": tg.tanh(softmax)})
        before = compile_graph(g, database=database, backends=("numpy",))
        assert SLEEPY.name in kernels_of(before)
        assert profile_graph(g, database=database, budget=300.0, backends=("numpy",)).deployed > 0
        after = compile_graph(g, database=database, backends=("numpy",))
        assert SLEEPY.name not in kernels_of(after)
        (sleepy,) = [s for e in after.variants[0].evidence for n, s, _ in e.others if n == SLEEPY.name]
        assert sleepy > 3e-3
    finally:
        unregister(SLEEPY.name)


def test_a_kernel_that_is_right_only_where_it_is_judged_is_found_in_its_place_and_not_kept(database: Database) -> None:
    register(TWO_FACED)
    try:
        softmax = tg.softmax(tg.input("x", (64, 16), tg.f32))
        add_row(database, TWO_FACED, signature_of(softmax), {}, us=0.001)
        g = tg.graph({"y": tg.tanh(softmax)})
        assert TWO_FACED.name in kernels_of(compile_graph(g, database=database, backends=("numpy",)))
        assert profile_graph(g, database=database, budget=300.0, backends=("numpy",)).deployed > 0
        assert TWO_FACED.name not in kernels_of(compile_graph(g, database=database, backends=("numpy",)))
        statuses = {(r.kind, r.status) for r in queries.history(database, TWO_FACED.name)}
        assert ("in_graph", "INCORRECT_NUMERICAL") in statuses and ("in_graph", "PASSED") not in statuses
    finally:
        unregister(TWO_FACED.name)


def test_a_kernel_that_was_compared_and_not_timed_displaces_none_that_was_timed(database: Database) -> None:
    """Its guess is below the row; it takes three milliseconds. What it may save is asked for."""
    register(SLEEPY)
    try:
        softmax = tg.softmax(tg.input("x", (64, 16), tg.f32))
        own = kernel_named("numpy.softmax")
        for each in (own, SLEEPY):
            add_row(database, each, signature_of(softmax))
        add_row(database, own, signature_of(softmax), {}, us=50.0)
        plan = compile_graph(tg.graph({"y": softmax}), database=database, backends=("numpy",))
        assert kernels_of(plan) == {"numpy.softmax"} and plan.unmeasured == ()
        item = work_queue.claim_next(database, "test", environment_of("numpy"))
        assert item is not None and item.implementation.name == SLEEPY.name and "may be faster than numpy.softmax" in item.reason
    finally:
        unregister(SLEEPY.name)


def kernels_of(plan: Plan) -> set[str]:
    return {i.kernel for v in plan.variants for i in v.program.instructions}


def test_profiling_stores_baselines_and_constants(database: Database) -> None:
    profile_graph(SMALL, database=database, budget=100.0, backends=("numpy",))
    rows = queries.latest_traces(database, environment_of("numpy"))
    timed = queries.evidence(database, *(r.trace_id for r in rows.values() if r.median_ms is not None))
    assert timed and all(e.baseline == "plain" and e.speedup_factor is not None and e.tolerance is not None for e in timed)
    assert queries.constants(database, environment_of("numpy"))["read_bandwidth"].value == 2e10


def test_the_first_question_is_the_one_whose_answer_may_save_most_of_the_plan(database: Database) -> None:
    """Share of the plan's time × how uncertain it is; a kernel that cannot become the cheapest is worth nothing."""
    two = tg.graph({"y": tg.softmax(tg.linear(tg.input("x", (64, 512), tg.f32), tg.parameter("w", (512, 512), tg.f32)))})

    def asked() -> list[Question]:
        found = questions_of(two, Request(two, 1e-3, ("c", "numpy"), database))
        return sorted(found, key=lambda q: -q.worth)

    first = asked()[0]
    assert first.kernel.op == "linear"                              # the larger share
    worth = {(q.kernel.name, q.signature.spec.op.name): q.worth for q in asked()}
    assert sum(worth.values()) > 0 and max(worth.values()) < 1      # a share
    for q in asked():
        if q.kernel.op == "linear":
            add_row(database, q.kernel, q.signature)
            add_row(database, q.kernel, q.signature, {}, us=1e-3)    # faster than any guess leaves open
    after = asked()
    assert after[0].kernel.op == "softmax" and all(q.worth == 0 for q in after if q.kernel.op == "linear")


def test_a_budget_of_nothing_measures_nothing_and_the_rest_is_left(database: Database) -> None:
    report = profile_graph(SMALL, database=database, budget=0.0, backends=("numpy",))
    assert report.measured == 0 and report.left > 0
    assert upkeep.stats(database).rows["benchmark_traces"] == 0


def test_an_interrupted_profile_keeps_its_rows_and_goes_on_from_there(database: Database) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    first = profile_graph(SMALL, database=database, budget=100.0, backends=("numpy",), on_step=stop)
    assert first.interrupted and first.measured == 1 and first.left > 0
    rows = queries.latest_traces(database, environment_of("numpy"))
    assert sum(r.median_ms is not None for r in rows.values()) == 1
    seen: list[tuple[int, int, str]] = []
    second = profile_graph(SMALL, database=database, budget=100.0, backends=("numpy",), on_step=lambda *step: seen.append(step))
    assert second.already_known == 1 and second.left == 0 and not second.interrupted
    seen = [step for step in seen if "as a whole" not in step[2]]
    assert second.measured == len(seen) and [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][0] == seen[-1][1] and all("numpy." in what for _, _, what in seen)


def test_profiling_answers_the_requests_that_compiling_left(database: Database) -> None:
    compile_graph(SMALL, database=database, backends=("numpy",))
    assert upkeep.stats(database).waiting > 0
    profile_graph(SMALL, database=database, budget=100.0, backends=("numpy",))
    assert upkeep.stats(database).waiting == 0


def test_a_graph_that_nothing_may_run_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "all_kernels", lambda backends: [])
    with pytest.raises(NoPathError):
        profile_graph(SMALL, database=database, budget=10.0, backends=("numpy",))


SCRIPT = """
import sys
import tensor_graphs as tg
from tensor_graphs.choice import finalists
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.measure.queue import next_measurements
from tensor_graphs.measure.rates import calibration
from tensor_graphs.measure.rates.table import Speed
finalists.MOST, finalists.ROUNDS, finalists.TURNS, next_measurements.PER_KERNEL = 2, 2, 1, 0.01     # as `quick` has it
calibration.memory_speeds = lambda: {"read_bandwidth": Speed(2e10, "byte/s")}
calibration.backend_speeds = lambda backend: {"flops_f32": Speed(5e10, "flop/s")}
if __name__ == "__main__":
    k = int(sys.argv[2])
    g = tg.graph({"y": tg.softmax(tg.linear(tg.input("x", (3, 8), tg.f32), tg.parameter("w", (k, 8), tg.f32)))})
    report = profile_graph(g, database=sys.argv[1], budget=100.0, backends=("numpy",))
    print(report.measured, report.failed, report.left)
"""


def test_two_processes_profile_into_one_database(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    running = [subprocess.Popen([sys.executable, str(tmp_path / "mine.py"), str(tmp_path / "bench.db"), str(k)], env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for k in (5, 6)]
    measured = 0
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found, failed, left = map(int, out.split())
        assert found > 0 and failed == left == 0
        measured += found
    with open_database(tmp_path / "bench.db") as database:
        assert upkeep.check(database).ok
        with database.reading() as connection:                      # each measurement is a row, also one that was made again
            stored = connection.exec_driver_sql("SELECT COUNT(*) FROM benchmark_traces WHERE kind = 'cold'").scalar_one()
        assert stored == measured


# ---- real values of inputs ----


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.safetensors"
    values = np.random.default_rng(2).standard_normal((12, 16)).astype(np.float32)
    save_file({"w": values, "rows": values[:5]}, path)
    return path


def workloads(database: Database) -> set[tuple[str, str]]:
    """(kernel, inputs) of all timed rows that name their inputs."""
    with database.reading() as connection:
        return {(name, said) for name, said in connection.exec_driver_sql(
            "SELECT i.name, w.input_descriptors FROM benchmark_traces t JOIN workloads w ON w.id = t.workload_id "
            "JOIN implementations i ON i.id = t.implementation_id WHERE t.kind = 'cold' AND w.input_descriptors != '[]'")}


def test_ops_that_read_given_values_are_measured_with_them_too_and_the_workload_says_so(database: Database, weights: Path) -> None:
    report = profile_graph(SMALL, database=database, budget=100.0, backends=("numpy",), inputs={"w": f"{weights}:w", "x": "random"})
    assert report.left == report.failed == 0 and report.unused == ()
    ((kernel, said),) = workloads(database)
    assert kernel == "numpy.linear"
    assert json.loads(said) == [{"name": "x1", "type": "safetensors", "path": str(weights), "tensor_key": "w"}]
    again = profile_graph(SMALL, database=database, budget=100.0, backends=("numpy",), inputs={"w": f"{weights}:w"})
    assert again.measured == 0 < again.already_known
    plan = compile_graph(SMALL, database=database, backends=("numpy",))
    assert [v.measured_share for v in plan.variants] == [1.0], "the usual rows are there too"


def test_values_that_no_op_reads_directly_are_named(database: Database, weights: Path) -> None:
    w = tg.parameter("w", (16, 12), tg.f32)
    g = tg.graph({"y": tg.relu(tg.reshape(w, (192,)))})
    transposed = weights.parent / "t.safetensors"
    save_file({"w": np.zeros((16, 12), np.float32)}, transposed)
    report = profile_graph(g, database=database, budget=100.0, backends=("numpy",), inputs={"w": f"{transposed}:w"})
    assert report.unused == ("w",) and workloads(database) == set()


def test_values_that_do_not_fit_are_refused_before_anything_is_measured(database: Database, weights: Path) -> None:
    g = tg.graph({"y": tg.softmax(tg.input("x", (N, 16), tg.f32))})
    for inputs, at, message in (({"x": f"{weights}:rows"}, {"n": 3}, "has the shape .5, 16.[^$]*--at"),
                                ({"z": "random"}, {"n": 3}, "no input or parameter named 'z'\n  fix: it has x")):
        with pytest.raises(InputError, match=message):
            profile_graph(g, database=database, budget=100.0, backends=("numpy",), at=at, largest=at, inputs=inputs)
    assert upkeep.stats(database).rows["benchmark_traces"] == 0
    done = profile_graph(g, database=database, budget=100.0, backends=("numpy",), at={"n": 5}, largest={"n": 5},
                         inputs={"x": f"{weights}:rows"})
    assert done.unused == () and {kernel for kernel, _ in workloads(database)} == {"numpy.softmax"}


# ---- what is asked for comes first ----


@pytest.fixture
def counted_seconds(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """What was answered; a hundredth of a second passes with each, and none otherwise, however slow the machine is."""
    seen: list[Question] = []
    clock = SimpleNamespace(perf_counter=lambda: 0.01 * len(seen), sleep=time.sleep)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(time_left, "time", clock)
    return seen


def counted_answers(database: Database, most: int, seen: list[Question]) -> Any:
    """Stands for `answer`: rows are made up, and the budget is spent after so many questions of a call."""

    def answer(judge: Judge, todo: Sequence[Question], *, budget: float, per_kernel: float | None = None, at_least: int = 0) -> Any:
        for q in todo[:most if budget > 0 else at_least]:
            seen.append(q)
            add_row(database, q.kernel, q.signature)
            add_row(database, q.kernel, q.signature, q.binding, us=50.0)
            yield q, "PASSED"

    return answer


def rows_of_plan(database: Database, graph: tg.Graph, n: int) -> list[bool]:
    plan = compile_graph(graph, database=database, backends=("numpy",), at={"n": n})
    variant = plan.variant({"n": n})
    return [e.measured for e in variant.evidence if not is_way_on(e.chosen) and e.calls]


def test_the_plan_that_is_asked_for_is_measured_before_anything_else_and_whole(
        database: Database, monkeypatch: pytest.MonkeyPatch, counted_seconds: list[Question]) -> None:
    g, seen = tg.graph({"y": transformer()}), counted_seconds
    monkeypatch.setattr(module, "answer", counted_answers(database, 2, seen))
    monkeypatch.setattr(module, "try_finalists", lambda *args, **more: 0)       # they would take the budget of a slow machine
    report = profile_graph(g, database=database, backends=("numpy",), at={"n": 7}, budget=10.0)
    asked = [q for q in seen if q.binding.get("n", 7) == 7]
    assert len(asked) > 4 and seen[:len(asked)] == asked, "beyond what the budget had"
    assert all(rows_of_plan(database, g, 7)) and len(seen) > len(asked), "then comes what other sizes need"
    shares = {r.at["n"]: (r.share, r.asked) for r in report.rests}
    assert shares[7] == (1.0, True) and not any(was_asked for n, (_, was_asked) in shares.items() if n != 7)
    assert report.left > 0 and 0.0 <= report.may_save <= 1.0


def test_the_dearest_of_the_plan_comes_first_and_without_more_time_the_rest_is_left(
        database: Database, monkeypatch: pytest.MonkeyPatch, counted_seconds: list[Question]) -> None:
    g, seen = tg.graph({"y": transformer()}), counted_seconds
    monkeypatch.setattr(module, "answer", counted_answers(database, 1, seen))
    report = profile_graph(g, database=database, backends=("numpy",), at={"n": 7}, budget=1e-9)
    assert len(seen) == 1 and report.left > 0
    here = [b for b in module.sizes_to_cost(g, {"n": 7}) if b["n"] == 7]
    fresh = open_database(":memory:")
    needed = module.needed(prepare(g).graph, here, Request(g, 1e-3, ("numpy",), fresh))
    assert [q.worth for q in needed] == sorted((q.worth for q in needed), reverse=True)
    assert seen[0].kernel is needed[0].kernel and seen[0].signature.key == needed[0].signature.key
    (asked,) = [r for r in report.rests if r.asked]
    assert asked.share < 1.0 and report.may_save > 0.0


def test_the_next_call_begins_with_as_many_questions_as_were_left_and_new_ones_are_said(
        database: Database, monkeypatch: pytest.MonkeyPatch, counted_seconds: list[Question]) -> None:
    g, seen = tg.graph({"y": transformer()}), counted_seconds
    asked: dict[str, Any] = {"database": database, "backends": ("numpy",), "at": {"n": 7}}
    monkeypatch.setattr(module, "answer", counted_answers(database, 3, seen))
    monkeypatch.setattr(module, "try_finalists", lambda *args, **more: 0)       # true times beside those that are made up here
    begun = profile_graph(g, budget=0, **asked)
    stopped = profile_graph(g, budget=1e-9, **asked)
    assert stopped.left == begun.left - stopped.measured + stopped.arisen > 0
    assert profile_graph(g, budget=0, **asked).left == stopped.left
    new = replace(stopped, arisen=3).counts()
    assert f"{stopped.left} left (3 of these new: what was measured makes other kernels worth it) in " in new


def test_where_no_size_is_asked_for_all_plans_are(
        database: Database, monkeypatch: pytest.MonkeyPatch, counted_seconds: list[Question]) -> None:
    g, seen = tg.graph({"y": transformer()}), counted_seconds
    monkeypatch.setattr(module, "answer", counted_answers(database, 1, seen))
    report = profile_graph(g, database=database, backends=("numpy",), budget=5.0)
    assert [(r.share, r.asked) for r in report.rests] == [(1.0, True)] * len(report.rests) and len(report.rests) > 2
    plan = compile_graph(g, database=database, backends=("numpy",))
    assert [v.measured_share for v in plan.variants] == [1.0] * len(plan.variants)


def test_a_plan_that_moves_to_another_kernel_once_it_is_measured_is_followed(database: Database,
                                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel turns out a hundred times as slow as its guess: what is chosen then is measured too."""
    g, seen = tg.graph({"y": tg.softmax(tg.input("x", (64, 256), tg.f32))}), []

    def answer(judge: Judge, todo: Sequence[Question], *, budget: float, per_kernel: float | None = None, at_least: int = 0) -> Any:
        for q in todo[:1]:
            add_row(database, q.kernel, q.signature)
            add_row(database, q.kernel, q.signature, q.binding, us=5e4 if not seen else 40.0)
            seen.append(q)
            yield q, "PASSED"

    monkeypatch.setattr(module, "answer", answer)
    monkeypatch.setattr(module, "in_place", lambda *args, **more: 0)
    monkeypatch.setattr(module, "try_finalists", lambda *args, **more: 0)       # true times beside those that are made up here
    profile_graph(g, database=database, budget=5.0)
    plan = compile_graph(g, database=database)
    assert len(seen) > 1 and plan.variants[0].measured_share == 1.0 and plan.unmeasured == ()
    assert kernels_of(plan) != {seen[0].kernel.name}


def test_what_promises_half_the_time_of_a_slow_kernel_is_asked_about_though_the_budget_is_spent(
        database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel takes ten times its guess, and would be kept, as its rival may be as far off; that is asked about."""
    x, seen = tg.exp(tg.input("x", (64, 256), tg.f32)), []
    g, names = tg.graph({"y": x}), ("numpy", "torch")
    book = CostTable.of(Request(g, 1e-3, names, database))
    estimates = {f"{name}.exp": book.cost(kernel_named(f"{name}.exp"), signature_of(x), {}, True) for name in names}

    def answer(judge: Judge, todo: Sequence[Question], *, budget: float, per_kernel: float | None = None, at_least: int = 0) -> Any:
        for q in todo[:1 if budget > 0 else at_least]:
            estimate = estimates[q.kernel.name]
            assert estimate is not None
            add_row(database, q.kernel, q.signature)
            add_row(database, q.kernel, q.signature, q.binding, us=estimate.seconds * 1e6 * (1.0 if seen else 10.0))
            time.sleep(0.3)
            seen.append(q)
            yield q, "PASSED"

    monkeypatch.setattr(module, "answer", answer)
    monkeypatch.setattr(module, "in_place", lambda *args, **more: 0)
    monkeypatch.setattr(module, "try_finalists", lambda *args, **more: 0)
    profile_graph(g, database=database, budget=0.3, backends=names)
    assert len(seen) == 2 and seen[1].kernel is not seen[0].kernel
    plan = compile_graph(g, database=database, backends=names)
    assert plan.unmeasured == () and kernels_of(plan) == {seen[1].kernel.name}


def test_a_kernel_promises_to_replace_steps_of_a_definition_which_only_another_ones_row_makes_cheaper(database: Database) -> None:
    x = tg.softmax(tg.input("x", (64, 256), tg.f32))
    g, names = tg.graph({"y": x}), ("numpy", "torch")
    request = Request(g, 1e-3, names, database)
    assert module.promising(g, [{}], request) == []
    slow = kernel_named("torch.softmax")
    add_row(database, slow, signature_of(x))
    add_row(database, slow, signature_of(x), {}, us=1e5)
    assert kernels_of(compile_graph(g, database=database, backends=names)).isdisjoint({"torch.softmax", "numpy.softmax"})
    assert [q.kernel.name for q in module.promising(g, [{}], Request(g, 1e-3, names, database))] == ["numpy.softmax"]


def test_the_variable_names_the_database_of_the_python_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_DB", str(tmp_path / "own.db"))
    report = tg.profile(SMALL, budget=0.001, backends=("numpy",))
    tg.compile(SMALL, backends=("numpy",))
    with open_database(tmp_path / "own.db") as found:
        assert upkeep.stats(found).rows["benchmark_traces"] > sum(report.statuses.values()) == 1


# ---- what is announced before it begins ----


def test_what_a_profile_takes_beside_its_budget_is_announced_before_anything_is_measured(database: Database,
                                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    measured = calibration.memory_speeds
    monkeypatch.setattr(calibration, "memory_speeds", lambda: events.append("device") or measured())
    asked: dict[str, Any] = {"database": database, "backends": ("numpy",), "at": {"n": 7}, "on_start": events.append}
    g = tg.graph({"y": transformer()})
    report = profile_graph(g, budget=1.0, **asked)
    said, *rest = events
    assert said == report.ahead and rest == ["device"], "the device comes after the announcement"
    assert said.device >= 2 * calibration.SECONDS and said.never_compared > 4
    assert COMPARING * said.never_compared <= said.comparing and 0.0 < said.beyond <= 2.0
    assert said.total == pytest.approx(1.0 + said.device + said.search + said.beyond)
    assert str(said).startswith(f"takes up to about {round(said.total)} s: 1 s measuring, ")
    assert f"{said.never_compared} kernels were never compared with the oracle" in str(said)
    events.clear()
    profile_graph(SMALL, database=database, budget=50.0, backends=("numpy",))
    profile_graph(SMALL, database=database, budget=50.0, backends=("numpy",), on_start=events.append)
    assert not [each for each in events if isinstance(each, Ahead) and each.never_compared], "all of it is compared by now"


def test_what_comes_ahead_takes_longer_on_a_machine_that_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"device": 1.0, "budget": 5.0, "apart": 4.0, "most": 10.0}
    pace = Pace()
    for worked, slowdown in (2.0, 2.0), (4.0, 1.0), (8.0, 1.0):     # several threads at once are no idle machine's doing
        monkeypatch.setattr(Pace, "seconds", 4.0)
        monkeypatch.setattr(time_left, "_worked", lambda worked=worked: pace._worked + worked)
        found = time_left.ahead_of([], set(), None, pace=pace, **asked)
        search = 4.0 * time_left.SEARCH
        assert (found.device, found.search, found.total) == (slowdown, search, 5.0 + slowdown + search)


def test_finding_out_what_to_measure_ends_when_it_takes_longer_than_was_announced(database: Database,
                                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    questions = module.questions_of
    monkeypatch.setattr(module, "questions_of", lambda *args, **more: looked.append(1) or questions(*args, **more))
    monkeypatch.setattr(module, "LEAST_SEARCH", 0.0)
    monkeypatch.setattr(module, "SEARCHING", 0.0)
    monkeypatch.setattr(module, "ahead_of", lambda *args, **more: Ahead())
    report = profile_graph(SMALL, database=database, budget=50.0, backends=("numpy",))
    assert len(looked) == 1 and report.measured


def test_a_plans_kernel_that_will_not_be_compared_in_time_is_left_and_no_path_is_run_as_a_whole_after_that(
        database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes as long as all that was announced: nothing is begun after the first."""
    g, seen, ran = tg.graph({"y": transformer()}), [], []

    def answer(judge: Judge, todo: Sequence[Question], *, budget: float, per_kernel: float | None = None, at_least: int = 0) -> Any:
        for q in todo[:1 if budget > 0 else at_least]:
            seen.append(q)
            add_row(database, q.kernel, q.signature)
            add_row(database, q.kernel, q.signature, q.binding, us=50.0)
            time.sleep(0.35)
            yield q, "PASSED"

    monkeypatch.setattr(module, "answer", answer)
    monkeypatch.setattr(module, "try_finalists", lambda *args, **more: ran.append(more) or 0)
    report = profile_graph(g, database=database, backends=("numpy",), at={"n": 7}, budget=0.1)
    assert len(seen) == 1 and not ran and report.left > 0
    assert report.ahead.beyond == pytest.approx(0.2) and report.over_seconds >= 0.2
    assert any(line.startswith("beside the budget: ") for line in replace(report, over_seconds=1.0).summary())
