"""No kernel that attacks what measures it ends as PASSED."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.costs.database_keys import environment_of, verify_workload
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.meaning import error_measure
from tensor_graphs.meaning.error_measure import ErrorReport
from tensor_graphs.measure import judge as judging
from tensor_graphs.measure.isolation.worker_process import JudgeError
from tensor_graphs.measure.judge import Judge, Verdict
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tests.measure import hostile_kernels  # noqa: F401  (fills the table)
from tests.measure.sampled_kernels import sampled
from tests.measure.wrong_kernels import BY_NAME, HOSTILE, NODES, NOTHING, Candidate


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize("candidate", sampled(HOSTILE))
def test_a_hostile_kernel_does_not_pass(brief_judge: Judge, candidate: Candidate) -> None:
    signature = signature_of(NODES[candidate.node])
    sizes = dict.fromkeys(signature.dim_names, 20)
    brief_judge.worker.timeout = candidate.timeout
    verdict = brief_judge.examine(candidate.kernel, signature, sizes, time_at=sizes, budget=0.02)
    row = brief_judge.record(candidate.kernel, signature, verdict, sizes)
    assert row.status in candidate.status.split("|"), verdict.log
    assert verdict.log and "no kernel is named" not in verdict.log
    known = queries.verified(brief_judge.database, candidate.kernel.identity, verify_workload(signature), environment_of("numpy"))
    assert not known.within(1.0)


@pytest.fixture
def loaded() -> Iterator[None]:
    """A program for each processor that never rests."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for each in programs:
        each.kill()
        each.wait()


@pytest.mark.usefixtures("waiting", "loaded")
@pytest.mark.parametrize("name", ["slows_the_clock_by_half",
                                  pytest.param("slows_the_clock_to_a_quarter", marks=pytest.mark.long)])
def test_a_slowed_clock_shows_beside_other_programs(brief_judge: Judge, name: str) -> None:
    """A run that waits for its processor takes as long by such a clock as it has worked."""
    signature, candidate = signature_of(NODES["relu"]), next(c for c in HOSTILE if c.name == name)
    brief_judge.worker.timeout = 60.0
    verdict = brief_judge.examine(candidate.kernel, signature, {"n": 20}, time_at={"n": 20}, budget=0.02)
    assert verdict.status == "IMPLAUSIBLE" and "seen from outside" in verdict.log, verdict.log


def test_there_are_forty_hostile_kernels_and_none_may_pass() -> None:
    assert len({c.name for c in HOSTILE}) == len(HOSTILE) >= 40
    assert not any("PASSED" in c.status for c in HOSTILE)


def _agrees(*arguments: object, **more: object) -> ErrorReport:
    return ErrorReport(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["judge.measure", "judge.Judge._compare", "judge.SAME_MATH", "judge.settled_rows",
                                  "judge.VERIFIER", "judge.Judge.examine_interleaved", "points.inputs.generator",
                                  "points.extremes.SIZES"])
def test_a_judge_in_whose_process_a_kernels_module_replaced_something_gives_no_verdict(brief_judge: Judge, name: str) -> None:
    """A module may do it when it is imported."""
    signature, candidate = signature_of(NODES["relu"]), BY_NAME["trial.all_zeros"].kernel
    verdict = Verdict("PASSED", 0.0, 0.0, 0.0, 0.0, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"tensor_graphs.measure.{name}", _agrees)
        if not name.endswith("examine_interleaved"):
            with pytest.raises(JudgeError, match=f"{name} was replaced"):
                brief_judge.examine(candidate, signature, {"n": 20})
        with pytest.raises(JudgeError, match="fix: start Python again"):
            brief_judge.record(candidate, signature, verdict, None)
    judging.refuse_replaced()


@pytest.mark.parametrize("name", [
    "costs.roofline.work", "measure.judge.work", "kernels.kernel_origin.origin_of",
    "measure.isolation.reused_arrays.take", "records.database.Database.add_traces", "language.composites.convolution.conv2d"])
def test_the_watch_covers_all_that_the_judge_imports(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(f"tensor_graphs.{name}", _agrees)
    with pytest.raises(JudgeError, match=f"tensor_graphs.{name} .*replaced"):
        judging.refuse_replaced()


def test_every_module_that_the_judge_imports_from_is_watched() -> None:
    tree = ast.parse(Path(judging.__file__).read_text(encoding="utf-8"))
    imported = {each.module for each in tree.body
                if isinstance(each, ast.ImportFrom) and str(each.module).startswith("tensor_graphs.")}
    functions = {name for name in imported if any(callable(value) and getattr(value, "__module__", "") == name
                                                  for value in vars(judging).values())}
    assert len(functions) > 20 and functions <= judging._WATCH._modules.keys()


def test_a_tolerance_that_is_raised_where_it_lies_and_other_code_of_a_function_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judging.SAME_MATH, "f32", 1e9)
    with pytest.raises(JudgeError, match=r"same_math.SAME_MATH.f32, .* were replaced"):
        judging.refuse_replaced()
    monkeypatch.undo()
    monkeypatch.setattr(error_measure.measure, "__code__", _agrees.__code__)
    monkeypatch.setattr(np, "sum", np.prod)
    with pytest.raises(JudgeError, match=r"numpy\.sum, tensor_graphs.*measure were replaced"):
        judging.refuse_replaced()


IMPORTED = """
import tensor_graphs.meaning.error_measure as theirs
measure = theirs.measure
theirs.measure = lambda out, ref, *more, **named: measure(ref, ref, *more, **named)
from tensor_graphs.measure.judge import refuse_replaced
refuse_replaced()
"""


def test_what_was_replaced_before_the_judge_was_imported_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(IMPORTED)
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "JudgeError" in found.stderr and "error_measure.measure" in found.stderr, found.stderr


def test_the_watch_of_the_judge_compares_few_enough_names_for_each_verdict() -> None:
    """A comparison takes some 60 ns."""
    watch = judging._WATCH
    assert len(watch._entries) + len(watch._functions) < 18_000


def test_the_judge_is_well_after_all_of_them(brief_judge: Judge) -> None:
    signature = signature_of(NODES["relu"])
    brief_judge.worker.timeout = 30.0
    honest = BY_NAME["trial.right_in_place"].kernel
    assert brief_judge.examine(honest, signature, {"n": 20}, time_at={"n": 20}, budget=0.02).status == "PASSED"


@pytest.mark.parametrize("name", sorted(set(NODES) - {"big linear"}))
def test_a_kernel_that_does_nothing_passes_for_no_op(brief_judge: Judge, name: str) -> None:
    """The control: were this to pass, nothing here would mean anything."""
    signature = signature_of(NODES[name])
    candidate = next(c for c in NOTHING if c.node == name)
    sizes = dict.fromkeys(signature.dim_names, 20)
    assert brief_judge.examine(candidate.kernel, signature, sizes, time_at=sizes, budget=0.02).status == "INCORRECT_NUMERICAL"


def test_a_worker_finds_no_database_by_its_environment(brief_judge: Judge, shared: Database, tmp_path: Path) -> None:
    environment = brief_judge.worker._scrubbed()
    assert "TENSOR_GRAPHS_DB" not in environment
    assert Path(environment["XDG_DATA_HOME"]).is_relative_to(brief_judge.worker.folder.name)


def test_a_kernel_that_edits_others_condemns_none_of_them(brief_judge: Judge) -> None:
    """Also where its edits are not noticed, as of kernels that its process came to know with it: the next one runs in another."""
    culprit = next(c for c in HOSTILE if c.name == "edits_other_kernels").kernel
    relu, softmax = (signature_of(NODES[name]) for name in ("relu", "softmax"))
    verdict = brief_judge.examine(culprit, relu, {"n": 20})
    assert verdict.status == "RUNTIME_ERROR" and "the kernel replaced the kernel numpy.softmax.build" in verdict.log
    assert brief_judge.examine(kernel_named("numpy.softmax"), softmax, {"n": 20}).status == "PASSED"


def test_a_kernel_from_outside_shares_its_process_with_no_other(brief_judge: Judge) -> None:
    one, other = (BY_NAME[f"trial.{name}"].kernel for name in ("right_in_place", "prints_much"))
    relu, starts = signature_of(NODES["relu"]), []
    for kernel, signature in ((one, relu), (one, relu), (other, relu), (other, relu)):
        assert brief_judge.examine(kernel, signature, {"n": 20}).status == "PASSED"
        starts.append(brief_judge.worker.pid)
    assert starts[0] == starts[1] != starts[2] == starts[3]
