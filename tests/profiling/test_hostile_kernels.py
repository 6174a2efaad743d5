"""No kernel that attacks what measures it ends as PASSED."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.profiling import judge as judging
from tensor_graphs.profiling.judge import Judge, environment_of, verify_workload
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tests.profiling import hostile_kernels  # noqa: F401  (fills the table)
from tests.profiling.wrong_kernels import BY_NAME, HOSTILE, NODES, NOTHING, Candidate


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """One that measures again, where it doubts, in blocks of 0.05 s only."""
    folder = tmp_path_factory.mktemp("hostile")
    with open_database(folder / "bench.db") as database, Judge(database) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "AGAIN", (0.05,))
        yield made


@pytest.mark.parametrize("candidate", HOSTILE, ids=lambda c: c.name)
def test_a_hostile_kernel_does_not_pass(judge: Judge, candidate: Candidate) -> None:
    signature = signature_of(NODES[candidate.node])
    sizes = dict.fromkeys(signature.dim_names, 20)
    judge.worker.timeout = candidate.timeout
    verdict = judge.examine(candidate.kernel, signature, sizes, time_at=sizes, budget=0.02)
    row = judge.record(candidate.kernel, signature, verdict, sizes)
    assert row.status in candidate.status.split("|"), verdict.log
    assert verdict.log and "no kernel is named" not in verdict.log
    known = queries.verified(judge.database, candidate.kernel.identity, verify_workload(signature), environment_of("numpy"))
    assert not known.within(1.0)


def test_there_are_forty_hostile_kernels_and_none_may_pass() -> None:
    assert len({c.name for c in HOSTILE}) == len(HOSTILE) >= 40
    assert not any("PASSED" in c.status for c in HOSTILE)


def test_the_judge_is_well_after_all_of_them(judge: Judge) -> None:
    signature = signature_of(NODES["relu"])
    judge.worker.timeout = 30.0
    honest = BY_NAME["trial.right_in_place"].kernel
    assert judge.examine(honest, signature, {"n": 20}, time_at={"n": 20}, budget=0.02).status == "PASSED"


@pytest.mark.parametrize("name", sorted(set(NODES) - {"big linear"}))
def test_a_kernel_that_does_nothing_passes_for_no_op(judge: Judge, name: str) -> None:
    """The control: were this to pass, nothing here would mean anything."""
    signature = signature_of(NODES[name])
    candidate = next(c for c in NOTHING if c.node == name)
    sizes = dict.fromkeys(signature.dim_names, 20)
    assert judge.examine(candidate.kernel, signature, sizes, time_at=sizes, budget=0.02).status == "INCORRECT_NUMERICAL"


def test_a_worker_finds_no_database_by_its_environment(judge: Judge, shared: Database, tmp_path: Path) -> None:
    environment = judge.worker._scrubbed()
    assert "TENSOR_GRAPHS_DB" not in environment
    assert Path(environment["XDG_DATA_HOME"]).is_relative_to(judge.worker.folder.name)
