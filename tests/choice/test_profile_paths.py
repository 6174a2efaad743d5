"""Whole paths are measured where they run: each once, the written-out one among them; a second call goes on with what is left."""

from __future__ import annotations

import math

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.cost_table import CostTable
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.choice.profile_paths import written_out
from tensor_graphs.choice.request import Request
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, register, unregister
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.points.input_descriptors import InputError
from tensor_graphs.measure.queue.profile_report import ProfileReport
from tensor_graphs.paths.path import EXPAND
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row
from tests.choice.trial_kernels import TWO_FACED

SMALL = tg.graph({"y": tg.softmax(tg.add(tg.input("x", (5, 16)), tg.parameter("w", (5, 16))))})


def test_listed_paths_and_the_written_out_one_are_measured_once_and_a_second_call_goes_on(database: Database) -> None:
    said: list[tuple[int, int]] = []

    def ask(paths: int, budget: float) -> ProfileReport:
        return profile_graph(SMALL, database=database, backends=("numpy",), paths=paths, budget=budget,
                             on_step=lambda done, total, what: said.append((done, total)))

    nothing = ask(1, 0.0)
    assert [w.status for w in nothing.walked] == ["LEFT", "LEFT"] and nothing.measured == 0 and "2 paths left" in str(nothing)
    first = ask(1, 60.0)
    assert first.measured == 2 and first.left == 0 and said[0] == (0, 2) and said[-1] == (2, 2)
    whole, written = first.walked
    assert not whole.written_out and written.written_out and whole.share == written.share == 1.0 == first.walked_share
    assert whole.beside == 1.0 and whole.seconds and written.beside
    assert written.seconds == pytest.approx(written.beside * whole.seconds)
    assert "covered: 2 of 2 paths (100%), 100 % of the time of their steps" in str(first)
    again = ask(1, 60.0)
    assert again.measured == 0 and again.already_known == 2 and all(w.known for w in again.walked)
    assert [w.seconds for w in again.walked] == pytest.approx([w.seconds for w in first.walked])
    # a time in place compares nothing: it is the verdict over all sizes that counts
    book = CostTable.of(Request(SMALL, backends=("numpy",), database=database))
    (softmax,) = (n for n in SMALL.nodes if n.op.name == "softmax")
    kernel, s = kernel_named("numpy.softmax"), signature_of(softmax)
    row, cost = book.time(kernel, s, {}), book.cost(kernel, s, {})
    assert row is not None and row.only_timed and book.why_not(kernel, s, {}) is None
    assert cost is not None and cost.in_place and cost.error is not None and math.isfinite(cost.error)


def test_a_path_whose_run_is_wrong_is_told_and_the_others_run(database: Database) -> None:
    """The kernel is right where it is judged: only the run in its place says otherwise, and then it is used no more."""
    (softmax,) = (n for n in SMALL.nodes if n.op.name == "softmax")
    register(TWO_FACED)
    try:
        add_row(database, TWO_FACED, signature_of(softmax), {}, us=0.001)
        report = profile_graph(SMALL, database=database, backends=("numpy",), paths=3, budget=60.0)
    finally:
        unregister(TWO_FACED.name)
    told = {w.status: w.why for w in report.walked}
    assert set(told) == {"RAN", "FAILED"} and "differs from the plain path's" in told["FAILED"]
    assert report.failed == sum(w.status == "FAILED" for w in report.walked) == len(report.walked) - report.measured


def test_what_is_large_inside_is_not_written_out() -> None:
    request = Request(SMALL, backends=("numpy",), database=":memory:")
    book = CostTable.of(request)
    paths = book.paths(SMALL, by_op(all_kernels(("numpy",))), {}, lambda k, s: book.cost(k, s, {}, True))
    out, kept = written_out(paths, lambda s: True), written_out(paths, lambda s: False)
    assert out is not None and kept is not None
    assert EXPAND in out.choices.values() and kept.id == paths.cheapest().id
    assert all(not name.startswith("numpy.softmax") for name in out.choices.values())


def test_real_values_do_not_go_with_paths(database: Database) -> None:
    with pytest.raises(InputError, match="fix: inputs, or paths"):
        profile_graph(SMALL, database=database, paths=2, inputs={"x": "random"})


def test_kernel_and_definition_of_each_backend_stand_beside_each_other_with_their_errors(database: Database) -> None:
    """For this op, at this size, here: which is fastest, a kernel or the definition in steps, and with what error?"""
    n = tg.dim("rows", 1, 64)
    graph = tg.graph(tg.tanh(tg.input("x", (n,))))
    profile_graph(graph, database=database, backends=("numpy", "gen"), at={"rows": 48}, paths=1, budget=60.0)
    found = queries.ways(database, graph.structural_key, axes={"d0": 48})
    by_numpy = "its definition by numpy.add, numpy.div"
    ways = {(row.description or "").split(", numpy.exp")[0]: row for row in found}
    assert {"gen.loops", "numpy.tanh", "its definition by gen.loops", by_numpy} <= set(ways)
    assert [row.median_ms for row in found] == sorted(row.median_ms or 0.0 for row in found)
    assert ways["numpy.tanh"].computed_by == ways[by_numpy].computed_by == "numpy" and ways["gen.loops"].computed_by == "gen"
    for row in found:
        assert row.kind == "in_graph" and row.worst_relative_error is not None and row.worst_relative_error < 1e-6
    with database.reading() as connection:
        view = connection.exec_driver_sql("SELECT description, computed_by, worst_relative_error, median_ms FROM leaderboard "
                                          "WHERE graph_name = 'tanh' AND kind = 'in_graph' ORDER BY median_ms").all()
    assert [tuple(row) for row in view] == [(r.description, r.computed_by, r.worst_relative_error, r.median_ms) for r in found]
    assert queries.ways(database, graph.structural_key, axes={"d0": 47}) == ()
