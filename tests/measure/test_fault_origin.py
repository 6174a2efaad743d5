"""What the judge's own code raises is no verdict on a kernel: nothing is filed of it, and the log says how to report it."""

from __future__ import annotations

import logging
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.costs.database_keys import VERIFIER, environment_of, verdict_key
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure.comparison_pipeline import compare
from tensor_graphs.measure.isolation.fault_origin import PACKAGE, JudgeFault, is_judges, judges_own, real_file
from tensor_graphs.measure.isolation.process_state import StateError, StateGuard
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.isolation.worker_process import JudgeError
from tensor_graphs.measure.judge import Judge, JudgeTask, Verdict
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.measure.queue.next_measurements import Question, answer
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tests.measure.wrong_kernels import BY_NAME, NODES

RELU = signature_of(NODES["relu"])
SIZES = {"n": 20}
HONEST = BY_NAME["trial.right_in_place"].kernel

def called(file: str, body: str) -> Callable[[Any], Any]:
    """A function of this file: its only line, of `inner`."""
    names: dict[str, Any] = {}
    exec(compile(f"def call(inner):\n    {body}\n", file, "exec"), names)
    function: Callable[[Any], Any] = names["call"]
    return function


def raised(files: Sequence[str], error: BaseException) -> BaseException:
    """An exception whose frames, the innermost last, are of these files."""
    call = partial(called(files[-1], "raise inner"), error)
    for file in reversed(files[:-1]):
        call = partial(called(file, "return inner()"), call)
    try:
        call()
    except BaseException as e:
        assert e.__traceback__ is not None
        return e.with_traceback(e.__traceback__.tb_next)            # without this file's own
    raise AssertionError


WORKER, INPUTS, EXECUTOR, KERNEL = (str(Path(PACKAGE, *parts)) for parts in (
    ("profiling", "distrust", "worker.py"), ("profiling", "measure", "inputs.py"), ("runtime", "executor.py"),
    ("kernels", "numpy", "activations.py")))
MINE, LIBRARY = "/home/me/mine.py", real_file(str(Path(sysconfig.get_path("purelib"), "numpy", "core.py")))


@pytest.mark.parametrize(("files", "error", "ours"), [
    ([WORKER, INPUTS], AssertionError(), True), ([WORKER, INPUTS], ValueError(), True),
    ([WORKER, INPUTS, LIBRARY], MemoryError(), True),
    ([WORKER, EXECUTOR, KERNEL], ValueError(), False), ([WORKER, EXECUTOR, KERNEL], AssertionError(), False),
    ([WORKER, EXECUTOR], TypeError(), False), ([WORKER, EXECUTOR], AssertionError(), True),
    ([WORKER, EXECUTOR, MINE], ValueError(), False), ([WORKER, EXECUTOR, MINE], AssertionError(), False),
    ([WORKER, EXECUTOR, MINE, INPUTS], AssertionError(), False), ([WORKER, "<stdin>"], ValueError(), False),
    ([WORKER, INPUTS], SystemExit(), False), ([WORKER, EXECUTOR, LIBRARY], AssertionError(), False),
], ids=str)
def test_an_exception_is_the_judges_where_no_frame_is_a_candidates(files: list[str], error: BaseException, ours: bool) -> None:
    assert is_judges(raised(files, error)) is ours


def test_a_kernel_that_is_installed_beside_libraries_is_known_by_its_file() -> None:
    error = raised([WORKER, LIBRARY], ValueError())
    assert is_judges(error) and not is_judges(error, {LIBRARY})


def test_what_rooms_of_kernels_do_for_the_judge_alone_is_marked() -> None:
    with pytest.raises(JudgeFault, match="ValueError: of the plain path") as caught, judges_own():
        raise raised([WORKER, EXECUTOR, KERNEL], ValueError("of the plain path"))
    assert is_judges(caught.value)


def test_a_kernel_that_leaves_its_process_changed_is_to_blame_for_what_fails_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    error, guard = raised([WORKER, INPUTS], ValueError("no room")), StateGuard().unchanged("n=3")
    guard.__enter__()
    monkeypatch.setattr("tensor_graphs.measure.isolation.process_state._umask", lambda: 0o777)
    with pytest.raises(StateError, match="umask was"):              # in no `with`: it would add a frame of this file
        guard.__exit__(type(error), error, error.__traceback__)


class Faulty(Judge):
    """A judge that asks its workers for a point which their own code cannot draw, of one kernel: the op has no such rows."""

    def _candidates(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int]) -> list[Point]:
        points = super()._candidates(kernel, signature, typical)
        return [points[0], replace(points[0], rows=("[0]=512", 3))] if kernel is HONEST else points

    def _with_value(self, signature: Signature, points: Sequence[Point]) -> list[Point]:
        return [p for p in points if p.rows is not None or self._stored_answer(signature, p) is not None]


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Judge]:
    with open_database(tmp_path / "bench.db") as database, Faulty(database) as judge:
        yield judge


def rows_of(database: Database, signature: Signature = RELU) -> Any:
    return queries.latest_traces(database, environment_of("numpy"), verifier=VERIFIER).get(verdict_key(HONEST, signature))


def test_a_worker_whose_own_code_fails_gives_no_verdict_and_the_next_kernel_gets_one(faulty: Judge,
                                                                                     caplog: pytest.LogCaptureFixture) -> None:
    verdict = faulty.examine(HONEST, RELU, SIZES)
    assert verdict.status == JUDGE_ERROR and verdict.error is None and faulty.worker.pid is None
    with caplog.at_level(logging.ERROR):
        assert faulty.record(HONEST, RELU, verdict, None) is None
    assert rows_of(faulty.database) is None
    first, fix, *lines = caplog.messages[0].splitlines()
    failed = f"the judge itself failed over {HONEST.name} on {RELU.title()}, so nothing is filed of it"
    assert first.startswith(f"{failed}: AssertionError")
    assert fix == "  fix: report it as a fault of tensor_graphs, with these lines and tg --version"
    assert "Traceback (most recent call last):" in lines and any("inputs.py" in line for line in lines)
    assert "output y0 = %0" in lines
    assert faulty.examine(BY_NAME["trial.one_percent_off"].kernel, RELU, SIZES).status == "INCORRECT_NUMERICAL"


@pytest.mark.parametrize("place", ["_compare", "_candidates", "_passed_verdict"])
def test_a_judge_whose_own_code_fails_gives_no_verdict(shared: Database, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("in the judge")

    with Judge(shared) as judge:
        monkeypatch.setattr(judge, place, fail, raising=True)
        verdict = judge.examine(HONEST, RELU, SIZES)
        assert verdict.status == JUDGE_ERROR and "ZeroDivisionError: in the judge" in verdict.log
        softmax = signature_of(tg.softmax(tg.input("x", (tg.dim("n", 1, 64), 32), tg.f32)))
        ((_, told),) = compare(judge, [JudgeTask(kernel_named("numpy.softmax"), softmax, SIZES)])
        assert told.status == JUDGE_ERROR
        monkeypatch.undo()
        assert judge.examine(HONEST, RELU, SIZES).status == "PASSED"


def test_what_a_user_can_mend_is_still_raised(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> Any:
        raise JudgeError("another machine is needed")

    with Judge(shared) as judge, pytest.raises(JudgeError, match="another machine"):
        monkeypatch.setattr(judge, "_compare", fail)
        judge.examine(HONEST, RELU, SIZES)


def test_a_question_that_the_judge_failed_over_has_no_row_and_is_not_timed_unverified(faulty: Judge) -> None:
    asked = [Question(HONEST, RELU, {"n": n}, 1.0) for n in (20, 21)]
    assert [status for _, status in answer(faulty, asked, budget=60.0, per_kernel=0.02)] == [JUDGE_ERROR, JUDGE_ERROR]
    assert rows_of(faulty.database) is None and not queries.latest_traces(faulty.database, environment_of("numpy"), "cold",
                                                                          verifier=VERIFIER)


def test_a_graph_compiles_without_the_kernel_that_the_judge_failed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Judge):
        def returned(self, asked: JudgeTask, *more: Any) -> Any:
            if asked.kernel.name == "numpy.softmax":
                return Verdict(JUDGE_ERROR, None, None, None, None, "the judge itself failed over numpy.softmax: as here")
            return super().returned(asked, *more)

    monkeypatch.setattr("tensor_graphs.choice.search.open_judge", lambda database, threads, rates: Failing(database))
    graph = tg.graph({"y": tg.softmax(tg.input("x", (4, 32), tg.f32))})
    with open_database(tmp_path / "bench.db") as database:
        plan = compile_graph(graph, database=database, backends=("numpy",))
    used = {i.kernel for i in plan.variants[0].program.instructions}
    assert used and "numpy.softmax" not in used


def test_a_composite_of_somebodys_own_has_the_same_rows_in_the_judge_and_in_its_worker(tmp_path: Path) -> None:
    """Its worker has read its definition, in which 512 stands for a row and for a column."""
    @tg.composite
    def scaled(x: Any, w: Any, s: Any) -> Any:
        return tg.linear(x, tg.cast(w, tg.f32) * s)

    x, w, s = tg.input("x", (1, 512), tg.f32), tg.input("w", (512, 512), tg.i8), tg.input("s", (512, 1), tg.f32)
    signature = signature_of(scaled(x, w, s))
    with open_database(tmp_path / "bench.db") as database, Judge(database) as judge:
        verdict = judge.examine(kernel_named("gen.loops"), signature, {})
        assert verdict.status == "PASSED", verdict.log
