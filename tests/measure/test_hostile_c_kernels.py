"""No C kernel of a user's harms the process that judges it, and none that is hostile ends as PASSED."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.judge import Judge
from tests.measure.hostile_c_kernels import HOSTILE_C, Row

RELU = signature_of(tg.relu(tg.input("x", (tg.dim("n", 1, 96), 24))))
SIZES = {"n": 20}


@pytest.mark.parametrize("row", HOSTILE_C, ids=lambda row: row.kernel.name)
def test_each_ends_in_its_own_process_as_a_row(brief_judge: Judge, row: Row) -> None:
    brief_judge.worker.timeout = row.timeout
    verdict = brief_judge.examine(row.kernel, RELU, SIZES, time_at=SIZES, budget=0.02)
    stored = brief_judge.record(row.kernel, RELU, verdict, SIZES)
    assert stored.status in row.statuses, verdict.log
    assert row.said in verdict.log and (verdict.log or stored.status == "PASSED")


def test_only_the_control_may_pass() -> None:
    assert len(HOSTILE_C) >= 16
    assert [r.kernel.name for r in HOSTILE_C if "PASSED" in r.statuses] == ["c.honest"]
