"""Lists over an entire database: groups, times that disagree, what is new, and trials of searches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensor_graphs.records.browsing import (
    disturbed_kernels,
    last_trace,
    search_trials,
    timed_kernels,
    trace_totals,
    traces_after,
)


def store(database: Any, make: Any) -> Any:
    """Store three times of one kernel, of which one disagrees, a failure, another kernel elsewhere, and a trial of a search."""
    elsewhere = replace(make.here, hardware_name="Other CPU")
    database.add_trace(make.trace())
    database.add_trace(make.trace(samples_ms=(1.1, 1.2, 1.3)))
    database.add_trace(make.trace(samples_ms=(3.0, 3.3, 3.6)))
    database.add_trace(make.trace(status="INCORRECT_NUMERICAL", max_relative_error=0.5, samples_ms=()))
    database.add_trace(make.trace(make.kernel("tanh_%_odd"), environment=elsewhere))
    database.add_trace(make.trace(make.kernel("tanh_new"), kind="search", baseline_ms=2.2, max_relative_error=None))
    return database


def test_groups_have_their_times_their_worst_error_and_their_failures(database, make) -> None:
    rows = timed_kernels(store(database, make))
    assert [(row["kernel"], row["times"], row["lowest_ms"], row["highest_ms"], row["error"], row["failures"]) for row in rows] == [
        ("tanh_c", 3, 1.1, 3.3, 0.5, 1), ("tanh_%_odd", 1, 1.1, 1.1, 1e-7, 0)]
    assert rows[0]["sizes"] == {"batch": 1} and rows[0]["graph"] == "tanh" and rows[1]["hardware"] == "Other CPU"


def test_a_text_is_no_pattern_and_an_environment_leaves_the_others_out(database, make) -> None:
    store(database, make)
    assert [row["kernel"] for row in timed_kernels(database, text="H_%_O")] == ["tanh_%_odd"]
    assert [row["kernel"] for row in timed_kernels(database, environment=make.here)] == ["tanh_c"]
    assert len(timed_kernels(database, limit=1)) == 1 and timed_kernels(database, text="relu") == []


def test_only_kernels_whose_times_disagree_are_disturbed(database, make) -> None:
    assert [row["kernel"] for row in disturbed_kernels(store(database, make))] == ["tanh_c"]


def test_totals_count_statuses_and_new_traces_come_after_the_last_one_seen(database, make) -> None:
    assert last_trace(database) == 0 and traces_after(database, 0) == ()
    store(database, make)
    totals = {row["hardware"]: row["statuses"] for row in trace_totals(database)}
    assert totals == {"Test CPU": {"INCORRECT_NUMERICAL": 1, "PASSED": 4}, "Other CPU": {"PASSED": 1}}
    assert last_trace(database) == 6
    assert [row.trace_id for row in traces_after(database, 2, limit=3)] == [3, 4, 5]


def test_trials_of_a_search_have_their_ratio_to_the_seed(database, make) -> None:
    (trial,) = search_trials(store(database, make))
    assert (trial["kernel"], trial["baseline_ms"], trial["speedup_factor"]) == ("tanh_new", 2.2, 2.0)
