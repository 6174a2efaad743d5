"""Rows that a busy machine spoiled are seen, measured again, and give way to better ones, whatever was disturbed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice import profile_paths
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.disturbed_times import Outliers
from tensor_graphs.choice.profile_graph import in_place, profile_graph, questions_of
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import VERIFIER
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, matching, register, unregister
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.queue import next_measurements
from tensor_graphs.measure.queue.next_measurements import Question, question_key, unanswered
from tensor_graphs.measure.rates import calibration
from tensor_graphs.measure.rates.table import Speed
from tensor_graphs.measure.timing.in_graph_steps import Deployed
from tensor_graphs.paths.path import Paths
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.database import Database
from tensor_graphs.views.explain import explain, explain_data
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import EXACT, MOODY, ROUGH, STEADY

SOFTMAX = tg.softmax(tg.input("x", (64, 16), tg.f32))
SIGNATURE = signature_of(SOFTMAX)
GRAPH = tg.graph({"y": SOFTMAX})
OWN = kernel_named("numpy.softmax")
QUIET: Mapping[str, Any] = {"over_reference": {"quiet": True}}
BUSY: Mapping[str, Any] = {"over_reference": {"quiet": False}}
IN_PLACE = {"kind": "in_graph"}
BEGUN, MINUTES = datetime.now(UTC) - timedelta(days=7), itertools.count()


@pytest.fixture(autouse=True)
def rivals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two more kernels of softmax, and constants of the device that cost nothing."""
    monkeypatch.setattr(next_measurements, "PER_KERNEL", 0.01)
    monkeypatch.setattr(calibration, "memory_speeds", lambda: {"read_bandwidth": Speed(2e10, "byte/s")})
    monkeypatch.setattr(calibration, "backend_speeds", lambda backend: {"flops_f32": Speed(5e10, "flop/s")})
    for each in (EXACT, ROUGH):
        register(each)
    yield
    for each in (EXACT, ROUGH):
        unregister(each.name)


@pytest.fixture
def only(database: Database) -> Database:
    """A database in which nothing but OWN, EXACT and ROUGH may compute softmax: its definition leads nowhere."""
    for each in (OWN, EXACT, ROUGH):
        add_row(database, each, SIGNATURE)
    close_definition(database)
    return database


def close_definition(database: Database) -> None:
    table = by_op(all_kernels(("numpy",)))
    (inner, _), *_ = Paths(GRAPH, table, lambda kernel, signature: None).inner(SIGNATURE)
    for kernel in matching(inner.spec, table):
        add_row(database, kernel, inner, status="INCORRECT_SHAPE")


def time_of(database: Database, kernel: Kernel, us: float, **more: Any) -> int:
    """Each row is of a minute of its own, unless `when` is given: what disturbed one is long gone at the next."""
    return add_row(database, kernel, SIGNATURE, {}, us=us, **{"when": BEGUN + next(MINUTES) * timedelta(minutes=1), **more})


def doubts(database: Database, signatures: Sequence[Signature] = (SIGNATURE,),
           points: Sequence[Mapping[str, int]] = ({},)) -> Outliers:
    book = CostTable(database, ("numpy",), 1e-3, None, ESTIMATE_MARGIN).load()
    return Outliers(book, by_op(all_kernels(("numpy",))), signatures, points)


def why(database: Database, kernel: Kernel = EXACT) -> str:
    doubt = doubts(database).of(kernel, SIGNATURE, {})
    return "" if doubt is None else doubt.why


def chosen(plan: Plan) -> set[str]:
    return {i.kernel for v in plan.variants for i in v.program.instructions}


def compiled(database: Database) -> Plan:
    return compile_graph(GRAPH, database=database, backends=("numpy",))


def asked_again(database: Database, asked: Counter[tuple[str, ...]] | None = None, again: bool = False) -> set[str]:
    questions = questions_of(GRAPH, Request(GRAPH, 1e-3, ("numpy",), database), asked=asked,
                         again=again)
    return {q.kernel.name for q in unanswered(database, questions, VERIFIER) if q.again}


# ---- what is in doubt ----


def test_a_row_of_a_busy_moment_is_in_doubt_and_one_of_a_quiet_moment_or_of_none_that_is_told_is_not(only: Database) -> None:
    time_of(only, OWN, 100.0, conditions=QUIET)
    time_of(only, EXACT, 100.0)
    busy = time_of(only, ROUGH, 100.0, conditions=BUSY)
    assert why(only, OWN) == why(only, EXACT) == ""
    assert why(only, ROUGH) == f"trace {busy}: measured while something disturbed"
    time_of(only, ROUGH, 90.0, conditions=QUIET)
    assert why(only, ROUGH) == ""


def test_a_row_far_from_the_same_kernel_at_other_sizes_is_in_doubt(database: Database) -> None:
    n = tg.dim("n", 1, 64)
    signature = signature_of(tg.softmax(tg.input("x", (n, 4096), tg.f32)))
    for rows, us in ((4, 400.0), (16, 1600.0), (64, 6400.0)):
        add_row(database, OWN, signature, {"n": rows}, us=us * (8 if rows == 16 else 1))
    points = [{"n": rows} for rows in (4, 16, 64)]
    doubtful_times = doubts(database, [signature], points)
    answers = [doubtful_times.of(OWN, signature, at) for at in points]
    assert answers[0] is answers[2] is None and answers[1] is not None and "× what its times at other sizes" in answers[1].why
    add_row(database, OWN, signature, {"n": 16}, us=1600.0 * 8)
    assert doubts(database, [signature], points).of(OWN, signature, {"n": 16}) is None, "a second row says the same"


def test_a_row_much_farther_above_its_roofline_than_a_rival_is_in_doubt(only: Database) -> None:
    time_of(only, OWN, 300.0)
    slow = time_of(only, EXACT, 8700.0)
    time_of(only, ROUGH, 800.0)
    assert why(only, OWN) == why(only, ROUGH) == "" and f"trace {slow}: 29 × as far above" in why(only, EXACT)


def test_a_time_in_its_place_far_above_the_time_alone_is_in_doubt_until_a_second_one_agrees(only: Database) -> None:
    alone = time_of(only, EXACT, 300.0)
    time_of(only, EXACT, 2700.0, **IN_PLACE)
    assert f"9 × what it takes alone (trace {alone})" in why(only)
    time_of(only, EXACT, 2600.0, **IN_PLACE)
    assert why(only) == ""


@pytest.mark.usefixtures("waiting")
def test_a_row_beside_a_slow_reference_stream_is_in_doubt(only: Database) -> None:
    for kernel, reference in ((OWN, 0.05), (EXACT, 0.12)):
        time_of(only, kernel, 300.0, conditions={**QUIET, "reference": {"kind": "read", "median": reference}})
    doubtful_times = doubts(only)
    rows = [doubtful_times.costs.timed(kernel, SIGNATURE, {}) for kernel in (OWN, EXACT)]
    doubtful_times.look_at(row[0] for row in rows if row is not None)
    doubt = doubtful_times.of(EXACT, SIGNATURE, {})
    assert doubtful_times.of(OWN, SIGNATURE, {}) is None and doubt is not None and "2.4 × what it takes at best" in doubt.why


def test_an_old_row_is_in_doubt(only: Database) -> None:
    time_of(only, EXACT, 100.0, when=datetime.now(UTC) - timedelta(days=40))
    assert "older than 30 days" in why(only)


def test_a_row_of_a_time_in_which_others_were_disturbed_is_in_doubt_until_one_of_another_time_agrees(only: Database) -> None:
    """Its own runs seemed quiet: what shows a neighbour works on one core."""
    begun = datetime.now(UTC) - timedelta(hours=3)
    time_of(only, OWN, 100.0, conditions=QUIET, when=begun)
    assert why(only, OWN) == ""
    time_of(only, ROUGH, 100.0, conditions=BUSY, when=begun + timedelta(seconds=10))
    time_of(only, EXACT, 100.0, when=begun + timedelta(seconds=20), **IN_PLACE, conditions={"quiet": True})
    time_of(only, EXACT, 100.0, conditions=QUIET, when=begun + timedelta(seconds=40))
    for kernel in (OWN, EXACT):
        assert "measured within 15 s of a row that something disturbed" in why(only, kernel)
    time_of(only, OWN, 101.0, conditions=QUIET, when=begun + timedelta(seconds=22))
    assert why(only, OWN) != "", "that was the same time"
    time_of(only, OWN, 110.0, conditions=QUIET, when=begun + timedelta(hours=1))
    assert why(only, OWN) == ""
    time_of(only, EXACT, 60.0, conditions={"quiet": True}, when=begun + timedelta(hours=1), **IN_PLACE)
    assert why(only, EXACT) == "", "and a better time counts instead"


# ---- what is asked again ----


@pytest.mark.parametrize("conditions", [BUSY, {}], ids=["busy", "far from its rivals"])
def test_a_spoiled_row_of_the_best_kernel_is_asked_again_and_a_better_one_heals_the_choice(only: Database, conditions: Any) -> None:
    time_of(only, OWN, 720.0, conditions=QUIET)
    time_of(only, ROUGH, 800.0, conditions=QUIET)
    time_of(only, EXACT, 8700.0, conditions=conditions)
    assert chosen(compiled(only)) == {OWN.name} and asked_again(only) == {EXACT.name}
    time_of(only, EXACT, 300.0, conditions=QUIET)
    assert chosen(compiled(only)) == {EXACT.name} and asked_again(only) == set()
    time_of(only, EXACT, 8700.0, conditions=BUSY)                   # and a later one spoils nothing
    assert chosen(compiled(only)) == {EXACT.name} and asked_again(only) == set()


def test_a_spoiled_row_of_what_is_chosen_is_asked_again_too_and_the_plan_says_so(only: Database) -> None:
    time_of(only, OWN, 720.0, conditions=BUSY)
    time_of(only, EXACT, 900.0, conditions=QUIET)
    plan = compiled(only)
    assert chosen(plan) == {OWN.name} and asked_again(only) == {OWN.name}
    assert "suspect: trace" in explain(plan) and "measured while something disturbed; tg profile measures it again" in explain(plan)
    (choice,) = explain_data(plan)["variants"][0]["choices"]
    assert choice["suspect"] and (choice["rows"], choice["rows_agreeing"]) == (1, 1)
    time_of(only, OWN, 700.0, conditions=QUIET)
    plan = compiled(only)
    assert "suspect" not in explain(plan) and "(of 2 rows 2 agree)" in explain(plan)


def test_what_could_not_change_the_choice_is_not_asked_again(only: Database) -> None:
    """Its row is of a busy moment, but even its roofline is above what the best one takes."""
    time_of(only, OWN, 0.5, conditions=QUIET)
    time_of(only, EXACT, 900.0, conditions=BUSY)
    assert asked_again(only) == set()


def test_kernels_whose_intervals_meet_are_asked_again_until_enough_rows_agree(only: Database) -> None:
    def wide(us: float) -> Mapping[str, Any]:
        return {**QUIET, "cold": {"low": us * 0.85e-3, "high": us * 1.15e-3}}

    time_of(only, OWN, 100.0, conditions=wide(100.0))
    time_of(only, EXACT, 105.0, conditions=wide(105.0))
    time_of(only, ROUGH, 190.0, conditions=wide(190.0))
    assert asked_again(only) == {OWN.name, EXACT.name}
    for kernel, us in ((OWN, 101.0), (OWN, 102.0), (EXACT, 105.0), (EXACT, 106.0)):
        time_of(only, kernel, us, conditions=wide(us))
    assert asked_again(only) == set()


def test_one_profile_asks_so_often_and_no_more_and_all_once_when_told_to(only: Database) -> None:
    time_of(only, OWN, 100.0, conditions=QUIET)
    time_of(only, EXACT, 900.0, conditions=BUSY)
    time_of(only, ROUGH, 100.0, conditions=QUIET)
    key = question_key(Question(EXACT, SIGNATURE, {}, 0.0))
    assert asked_again(only, Counter({key: 1})) == {EXACT.name} and asked_again(only, Counter({key: 2})) == set()
    assert asked_again(only, again=True) == {OWN.name, EXACT.name, ROUGH.name}
    assert asked_again(only, Counter({key: 2}), again=True) == {OWN.name, ROUGH.name}


def test_what_has_passed_and_then_failed_as_on_a_busy_machine_is_asked_by_every_profile_until_it_passes(only: Database) -> None:
    for kernel in (OWN, EXACT, ROUGH):
        time_of(only, kernel, 1.0 if kernel is EXACT else 100.0, conditions=QUIET)
    for _ in range(3):
        time_of(only, EXACT, 1.0, status="IMPLAUSIBLE")
        assert asked_again(only) == {EXACT.name} and chosen(compiled(only)) != {EXACT.name}
    key = question_key(Question(EXACT, SIGNATURE, {}, 0.0))
    assert asked_again(only, Counter({key: 2})) == set(), "but not by one profile for ever"
    time_of(only, EXACT, 1.0, conditions=QUIET)
    assert chosen(compiled(only)) == {EXACT.name} and asked_again(only) == set()


@pytest.mark.parametrize("status", ["TIMEOUT", "IMPLAUSIBLE"])
@pytest.mark.parametrize("where", [None, {}], ids=["when compared", "when timed"])
def test_what_never_passed_and_failed_as_on_a_busy_machine_is_asked_once_more(database: Database, status: Any, where: Any) -> None:
    only = database
    close_definition(only)
    for kernel in (OWN, ROUGH):
        add_row(only, kernel, SIGNATURE)
        time_of(only, kernel, 100.0)
    if where is not None:
        add_row(only, EXACT, SIGNATURE)
    add_row(only, EXACT, SIGNATURE, where, status=status)
    if where is None:
        time_of(only, EXACT, 1.0, status=status)
    assert asked_again(only) == {EXACT.name}
    add_row(only, EXACT, SIGNATURE, where, status=status)
    assert asked_again(only) == set()
    add_row(only, EXACT, SIGNATURE, where, us=1.0)
    if where is None:
        time_of(only, EXACT, 1.0)
    assert chosen(compiled(only)) == {EXACT.name}


# ---- in its place ----


def test_a_spoiled_time_in_its_place_is_measured_there_again_and_heals(only: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both alone and in place: the kernel takes 300 µs, and a profile next to a neighbour measured 8.7 ms."""
    truth = {OWN.name: 720.0, EXACT.name: 300.0, ROUGH.name: 900.0}
    for kernel in (OWN, EXACT, ROUGH):
        spoiled = kernel is EXACT
        for more in ({"conditions": BUSY if spoiled else QUIET}, {**IN_PLACE, "conditions": {"quiet": not spoiled}}):
            time_of(only, kernel, 8700.0 if spoiled else truth[kernel.name], **more)
    assert chosen(compiled(only)) == {OWN.name}
    runs: list[set[str]] = []

    def measured(judge: Judge, graph: Any, paths: Sequence[Any], *more: Any) -> list[Deployed]:
        runs.append({name for path in paths for name in path.choices.values()})
        return [Deployed(path, (1e-3,), (1e-3,), {(key, name): (truth[name] * 1e-6,) * 4 for key, name in path.choices.items()},
                         {}, True) for path in paths]

    monkeypatch.setattr(profile_paths, "measure_deployed", measured)
    asked: Counter[tuple[str, ...]] = Counter()
    with Judge(only) as judge:
        steps = in_place(judge, GRAPH, {}, Request(GRAPH, 1e-3, ("numpy",), only), float("inf"), lambda what: None, asked)
    assert steps >= 2 and {OWN.name, EXACT.name} <= runs[0], "in turns with what it competes with"
    assert chosen(compiled(only)) == {EXACT.name} and "suspect" not in explain(compiled(only))
    with Judge(only) as judge:
        request = Request(GRAPH, 1e-3, ("numpy",), only)
        assert in_place(judge, GRAPH, {}, request, float("inf"), lambda what: None) == 0, "nothing is in doubt any more"


# ---- from end to end ----


def test_a_second_profile_heals_what_a_first_one_beside_a_neighbour_spoiled(database: Database, tmp_path: Path,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel takes 2 ms; the other 8 ms as long as the neighbour is there, and hardly anything without it."""
    neighbour = tmp_path / "neighbour"
    neighbour.touch()
    monkeypatch.setenv("TRIAL_NEIGHBOUR", str(neighbour))
    for each in (OWN, EXACT, ROUGH):
        add_row(database, each, SIGNATURE, status="INCORRECT_SHAPE")
    close_definition(database)
    store = database.add_trace

    def spoiled(trace: Any) -> int:
        details = trace.conditions
        if neighbour.exists() and "over_reference" in details:
            details = {**details, "over_reference": {**details["over_reference"], "quiet": False}}
        elif neighbour.exists() and "quiet" in details:
            details = {**details, "quiet": False}
        return store(replace(trace, conditions=details))

    monkeypatch.setattr(database, "add_trace", spoiled)
    for each in (STEADY, MOODY):
        register(each)
    try:
        profile_graph(GRAPH, database=database, budget=60.0, backends=("numpy",))
        assert chosen(compiled(database)) == {STEADY.name}
        neighbour.unlink()
        report = profile_graph(GRAPH, database=database, budget=60.0, backends=("numpy",))
        assert chosen(compiled(database)) == {MOODY.name} and report.again + report.deployed > 0
    finally:
        for each in (STEADY, MOODY):
            unregister(each.name)
