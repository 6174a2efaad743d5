"""rows: what a record computes by itself, and what it refuses."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from tensor_graphs.records import GraphRecord, InvalidRecord, WorkloadRecord
from tensor_graphs.records.rows import relative_spread, workload_key


def test_a_workload_key_depends_on_graph_axes_and_inputs_and_not_on_dict_order(make) -> None:
    one = WorkloadRecord("g", {"n": 1, "m": 2}, ({"name": "x", "dtype": "float32"},))
    same = WorkloadRecord("g", {"m": 2, "n": 1}, ({"dtype": "float32", "name": "x"},))
    assert one.key == same.key == workload_key("g", {"n": 1, "m": 2}, [{"name": "x", "dtype": "float32"}])
    assert one.axes_hash == same.axes_hash
    others = [
        WorkloadRecord("h", one.axes, one.inputs),
        WorkloadRecord("g", {"n": 2, "m": 1}, one.inputs),
        WorkloadRecord("g", one.axes),
    ]
    assert len({one.key, *(other.key for other in others)}) == 4


def test_a_signature_tells_type_backend_source_and_graph_apart_and_ignores_the_name(make) -> None:
    base = make.kernel("a", source_hash="h")
    assert base.signature == make.kernel("b", source_hash="h").signature
    different = [
        make.kernel("a", source_hash="i"),
        make.kernel("a", source_hash="h", backend="numpy"),
        make.kernel("a", source_hash="h", graph_key="g"),
        make.kernel("a", source_hash="h", type="GRAPH_RECIPE", recipe_key="g"),
    ]
    assert len({base.signature, *(each.signature for each in different)}) == 5


def test_median_spread_and_speed_up_follow_from_the_samples(make) -> None:
    row = make.trace(samples_ms=(4.0, 1.0, 2.0, 3.0, 5.0), baseline="plain", baseline_ms=6.0)
    assert (row.median_ms, row.spread, row.speedup_factor) == (3.0, pytest.approx(2 / 3), 2.0)
    assert relative_spread([7.0]) == 0.0
    assert relative_spread([0.0, 0.0]) == 0.0


def test_a_nan_error_becomes_infinite_so_that_it_can_never_pass(make) -> None:
    assert make.trace(max_relative_error=math.nan).max_relative_error == math.inf
    assert make.trace(max_absolute_error=math.nan).max_absolute_error == math.inf


def test_a_timestamp_is_now_in_utc_unless_given(make) -> None:
    before = datetime.now(UTC)
    assert before <= make.trace().timestamp <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "GREAT"}, "trace status is 'GREAT'"),
        ({"kind": "warm"}, "trace kind is 'warm'"),
        ({"samples_ms": (1.0, -1.0)}, "negative or not finite"),
        ({"samples_ms": (math.nan,)}, "negative or not finite"),
        ({"samples_ms": (math.inf,)}, "negative or not finite"),
        ({"samples_ms": ()}, "a PASSED cold trace of 'tanh_c' has no time"),
        ({"seed": 2**63}, "does not fit 64 bits"),
        ({"timestamp": datetime(2026, 1, 1)}, "has no time zone"),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused_with_a_fix(make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        make.trace(**changes)
    assert message in str(caught.value)
    assert "\n  fix: " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "SPELL"}, "implementation type is 'SPELL'"),
        ({"type": "GRAPH_RECIPE"}, "is a GRAPH_RECIPE with recipe_key=None"),
        ({"recipe_key": "k"}, "is a KERNEL with recipe_key='k'"),
        ({"source_hash": ""}, "has no source hash"),
        ({"numeric_class": "sloppy"}, "numeric class of tanh_c is 'sloppy'"),
    ],
)
def test_an_implementation_that_contradicts_itself_is_refused(make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRecord, match=message):
        make.kernel(**changes)


def test_a_graph_without_a_structural_key_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="empty structural key"):
        GraphRecord("", "", "")
