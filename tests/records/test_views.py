"""views: what a person reads in an SQL shell is what the queries answer."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.records import SourceRecord, open_database, queries, upkeep
from tensor_graphs.records.rows import STATUSES


@pytest.fixture(scope="module")
def shared():
    with open_database(":memory:") as opened:
        yield opened


ERRORS = st.sampled_from([None, 0.0, 1e-7, 1e-4, math.inf])
OUTCOMES = st.tuples(
    st.integers(0, 2), st.integers(0, 1), st.booleans(), st.sampled_from(STATUSES), st.sampled_from(["cold", "hot"]),
    ERRORS, st.sampled_from([1e-6, 1e-3, None]), st.floats(0.01, 10),
)  # fmt: skip


@settings(derandomize=True, max_examples=40, deadline=None)
@given(outcomes=st.lists(OUTCOMES, max_size=20))
def test_the_leaderboard_view_has_the_rows_that_the_rule_admits(shared, make, outcomes) -> None:
    here = dataclasses.replace(make.here, platform=f"example {len(queries.environments(shared))}")
    shared.ensure_graph(make.graph)
    shared.add_traces(
        make.trace(
            # one source hash, stored once for any graph and once for this one, is one piece of code
            make.kernel(f"k{number}", graph_key=make.graph.structural_key if bound else None),
            workload=make.workload(batch), environment=here, status=status, kind=kind, max_relative_error=error,
            tolerance=judged, samples_ms=(milliseconds,),
        )
        for number, batch, bound, status, kind, error, judged, milliseconds in outcomes
    )  # fmt: skip
    for tolerance in (0.0, 1e-6, 1e-3):
        expected = {
            (each.source_hash, each.workload_key, each.trace_id, each.worst_relative_error)
            for each in queries.latest_traces(shared, here).values()
            if each.usable(tolerance)
        }
        with shared.reading() as connection:
            found = connection.exec_driver_sql(
                "SELECT source_hash, workload_key, trace_id, worst_relative_error FROM leaderboard"
                " WHERE environment_key = ? AND kind = 'cold' AND worst_relative_error <= ?",
                (here.key(), tolerance),
            ).all()
        assert {tuple(row) for row in found} == expected and len(found) == len(expected)


def test_an_untrusted_implementation_is_not_on_the_leaderboard_until_it_is_trusted(database, make) -> None:
    imported = make.kernel("imported", sources=(SourceRecord("k.cu", "..."),))
    database.add_trace(make.trace(imported))

    def shown() -> list[str]:
        with database.reading() as connection:
            return list(connection.exec_driver_sql("SELECT implementation_name FROM leaderboard").scalars())

    assert shown() == []
    upkeep.trust(database, imported.signature)
    assert shown() == ["imported"]


def test_the_history_view_goes_over_all_identities_of_a_kernel(database, make) -> None:
    database.add_traces([
        make.trace(make.kernel(source_hash="first")),
        make.trace(make.kernel(source_hash="second"), status="TIMEOUT", samples_ms=()),
        make.trace(make.kernel("another")),
    ])  # fmt: skip
    with database.reading() as connection:
        rows = connection.exec_driver_sql(
            "SELECT source_hash, status, graph_name, hardware_name FROM kernel_history"
            " WHERE kernel = 'tanh_c' ORDER BY timestamp DESC, trace_id DESC"
        ).all()
    place = (make.graph.human_name, make.here.hardware_name)
    assert [tuple(row) for row in rows] == [("second", "TIMEOUT", *place), ("first", "PASSED", *place)]


def test_a_question_for_one_graph_reads_no_whole_table(database, make) -> None:
    question = "EXPLAIN QUERY PLAN SELECT * FROM leaderboard WHERE graph_key = ? AND workload_key = ? AND environment_key = ?"
    with database.reading() as connection:
        steps = [row[3] for row in connection.exec_driver_sql(question, ("g", "w", "e"))]
    own = ("SCAN (subquery", "SCAN timed", "SCAN agreeing")  # of the times of one kernel, which a SEARCH has found
    assert not [step for step in steps if step.startswith("SCAN") and not step.startswith(own)], steps
