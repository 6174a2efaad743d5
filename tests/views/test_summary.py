"""A plan in a few rows: the dearest steps, their shares, and one number for one thing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tensor_graphs as tg
from tensor_graphs.cli.options import print_summary
from tensor_graphs.language.errors import TensorGraphsError
from tensor_graphs.paths.plan import Plan, WholeRun
from tensor_graphs.records.database import Database
from tensor_graphs.views.explain import explain_data
from tensor_graphs.views.summary import summarise
from tests.choice.conftest import add_row


@pytest.fixture
def plan(database: Database) -> Plan:
    n = tg.dim("n", 1, 64)
    x = tg.input("x", (n, 32))
    for i in range(3):
        x = tg.linear(tg.softmax(x), tg.parameter(f"w{i}", (32, 32)))
    return tg.compile(tg.graph(x), backends=("numpy",), database=database, at={"n": 16}, simplify=False)


def test_the_rows_are_the_dearest_steps_and_the_rest_is_one_line(plan: Plan) -> None:
    everything, first = summarise(plan, {"n": 16}, rows=9), summarise(plan, {"n": 16}, rows=1)
    times = [s.seconds for s in everything.steps]
    assert times == sorted(times, reverse=True) and len(times) == 2 and everything.rest == ""
    assert sum(s.share for s in everything.steps) == pytest.approx(1.0)
    assert first.steps == everything.steps[:1] and first.rest.startswith("and 1 more step, called 3 times in a run: ")
    assert all(not s.measured for s in everything.steps) and "100% of that time is estimated" in everything.why


def test_the_times_are_those_that_explain_gives_and_add_up_to_what_is_expected(plan: Plan) -> None:
    (variant,) = explain_data(plan)["variants"]
    steps = {c["kernel"]: c["us_per_call"] * c["calls"] * 1e-6 for c in variant["choices"] if c["kernel"] != "expand"}
    shown = summarise(plan, {"n": 16})
    assert {s.kernel: s.seconds for s in shown.steps} == pytest.approx(steps)
    (v,) = plan.variants
    assert sum(steps.values()) + v.around == pytest.approx(v.predicted) == pytest.approx(variant["predicted_us"] * 1e-6)
    assert sum(steps.values()) == pytest.approx(v.predicted - v.around) and v.path.cost == pytest.approx(2 * sum(steps.values()))


def test_the_calls_of_the_title_are_those_of_the_rows_and_copies_beside_them(database: Database) -> None:
    x = tg.input("x", (8, 16))
    plan = tg.compile(tg.graph({"a": tg.relu(x), "b": x.T}), backends=("numpy",), database=database)
    shown = summarise(plan)
    assert shown.title.endswith(", 1 kernel call and 1 copy") and sum(s.calls for s in shown.steps) == 1
    assert " · 1 kernel call and 1 copy · " in tg.explain(plan) and ", 1 kernel call and 1 copy, " in str(plan)


def test_a_measured_step_and_its_rival_are_named_so(plan: Plan, database: Database) -> None:
    (v,) = plan.variants
    (linear,) = (e for e in v.evidence if e.chosen == "numpy.linear")
    key, *_ = (i.signature for i in v.program.instructions if i.kernel == "numpy.linear")
    add_row(database, v.kernels["numpy.linear"], v.program.signatures[key], {"n": 16}, us=7.0)
    again = tg.compile(plan.graph, backends=("numpy",), database=database, at={"n": 16}, simplify=False)
    step = next(s for s in summarise(again, {"n": 16}).steps if s.kernel == "numpy.linear")
    assert step.measured and step.calls == 3 and step.seconds == pytest.approx(21e-6)
    assert linear.others and step.rival.startswith("definition ") and step.rival.endswith(" (estimate)")
    assert "measured as a whole" in summarise(
        replace(plan, variants=(replace(v, whole=WholeRun(3e-3, 1, 2)),)), {"n": 16}).title


def test_the_table_of_a_pipe_shows_every_column_whole(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summarise(plan, {"n": 16}, rows=1))
    text = capsys.readouterr().out
    for needed in ("step", "kernel", "calls", "share", "basis", "error", "next best", "estimate", "numpy.", "1 more step",
                   "Why this path:"):
        assert needed in text
    assert "…" not in text


def test_a_size_outside_of_its_range_is_refused(plan: Plan) -> None:
    with pytest.raises(TensorGraphsError, match="n"):
        summarise(plan, {"n": 65})
