"""Every trace is a row that stands alone; a row is measured again where its code is here, and says where it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.text import parse_graph
from tensor_graphs.measure.dataset import DatasetError, Replayed, replay, rows
from tensor_graphs.measure.judge import Judge
from tensor_graphs.records import upkeep
from tensor_graphs.records.database import open_database
from tests.choice.conftest import add_row

N = tg.dim("n", 1, 64)
SOFTMAX = signature_of(tg.softmax(tg.input("x", (N, 32))))


def test_rows_stand_alone_and_are_measured_again_where_their_code_is_here(tmp_path: Path) -> None:
    with open_database(tmp_path / "a.db") as database:
        add_row(database, kernel_named("numpy.softmax"), SOFTMAX, {"n": 8}, us=25.0)
        found = [json.loads(json.dumps(row, allow_nan=False)) for row in rows(database)]
        timed = next(row for row in found if row["axes"])
        assert timed["operands"] == timed["outputs"] == [{"dtype": "f32", "shape": [8, 32]}] and timed["axes"] == {"d0": 8}
        assert timed["bytes"] == 2 * 4 * 8 * 32 and timed["flops"] > 8 * 32 and timed["median_ms"] == pytest.approx(0.025)
        assert timed["identity"] == kernel_named("numpy.softmax").identity and timed["where"]["backend"] == "numpy"
        assert parse_graph(timed["graph"]).structural_key == timed["structural_key"] == SOFTMAX.key
        assert len({row["trace"] for row in found}) == len(found) == upkeep.stats(database).rows["benchmark_traces"]
        other = {**timed, "identity": "0" * 64}
        gone = {**timed, "kernel": "numpy.sofmax"}
        lines = [json.dumps(each) for each in (other, gone, timed)]
        with Judge(database) as judge:
            edited, missing, again = replay(judge, iter(["", *lines]), 3)
            assert list(replay(judge, iter(lines[:2]), 1)) == [edited.__class__(**{**vars(edited), "line": 1})]
        assert edited.status == missing.status == "NOT MEASURED" and "another one today" in edited.why and "--import" in missing.why
        assert again.status == "PASSED" and again.here and again.ratio and again.ratio * 0.025 == pytest.approx(again.median_ms)
        assert f"25.0 µs → {(again.median_ms or 0) * 1e3:.1f} µs" in str(again) and again.line == 4
        assert sum(bool(row["axes"]) for row in rows(database)) == 2       # what was found is a row too


def test_a_row_of_a_graph_without_dims_names_no_size() -> None:
    only, sized = (str(Replayed(1, "c.x", "softmax", axes, "PASSED", "PASSED", 1.0)) for axes in ({"fixed": 1}, {"d0": 8}))
    assert "softmax: PASSED" in only and "softmax at d0=8: PASSED" in sized


@pytest.mark.parametrize("line", ["nonsense", "[1]", "{}", json.dumps({"graph": ""})])
def test_a_line_that_is_no_row_is_named(line: str) -> None:
    with open_database(":memory:") as database, Judge(database) as judge, \
            pytest.raises(DatasetError, match="line 2 is no row .*\n  fix: tg dataset dump"):
        list(replay(judge, iter(["", line]), 1))
