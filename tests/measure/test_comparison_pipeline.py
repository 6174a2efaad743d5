"""Kernels that are compared together: threads that ask the oracle beside workers, what they ask when, and that verdicts hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure import comparison_pipeline
from tensor_graphs.measure import judge as judging
from tensor_graphs.measure.comparison_pipeline import compare
from tensor_graphs.measure.isolation.worker_process import JudgeError
from tensor_graphs.measure.judge import Judge, JudgeTask
from tensor_graphs.measure.points import inputs
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.measure.points.size_classes import smaller
from tensor_graphs.records.database import Database

N = tg.dim("n", 1, 64)
SOFTMAX = signature_of(tg.softmax(tg.input("x", (N, 24), tg.f32)))


class _Elsewhere:
    """Says of itself that it is not the host."""

    is_host = False


def _not_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (judging, comparison_pipeline):
        monkeypatch.setattr(module, "device_of", lambda backend: _Elsewhere())


@pytest.fixture
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "refuse_replaced", lambda: None)
    monkeypatch.setattr(judging, "AT_ONCE", 2000)


class Noting(Judge):
    """Notes in which jobs points are shown, and which thread asks about a point."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.jobs, self.asked_by = list[list[Point]](), list[tuple[Point, str]]()
        self.began = threading.Event()

    def _run_job(self, kernel: Kernel, signature: Signature, points: Sequence[Point], *more: Any) -> Any:
        self.began.set()
        self.jobs.append(list(points))
        return super()._run_job(kernel, signature, points, *more)

    def _oracle_outputs(self, signature: Signature, point: Point) -> Any:
        self.asked_by.append((point, threading.current_thread().name))
        return super()._oracle_outputs(signature, point)


def test_what_is_compared_comes_before_what_the_oracle_is_asked_ahead() -> None:
    done, go = [], threading.Event()
    with comparison_pipeline._TaskThreads() as beside:
        beside.submit(lambda: go.wait(30.0) and None, 1)
        later = [beside.submit(lambda n=n: done.append(f"ahead {n}"), 1) for n in range(2)]  # type: ignore[misc]
        beside.submit(lambda: done.append("compared"), 0)
        assert later[1].cancel()
        go.set()
    assert done == ["compared", "ahead 0"]


def test_two_threads_beside_do_two_things_at_once_and_both_end() -> None:
    together = threading.Barrier(2)
    with comparison_pipeline._TaskThreads(2) as beside:
        both = [beside.submit(lambda: together.wait(30.0) and None, 1) for _ in range(2)]
    assert [each.exception() for each in both] == [None, None] and not any(t.is_alive() for t in beside._threads)


def test_verdicts_that_two_threads_find_are_those_of_one(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the same signature among them, and two that read a table, of which each altered rows."""
    monkeypatch.setattr(judging, "refuse_replaced", lambda: None)
    _not_on_the_host(monkeypatch)
    n = tg.dim("n", 1, 64)
    x, table, ids = tg.input("x", (n, 24), tg.f32), tg.input("t", (40_000, 128), tg.f32), tg.input("i", (n,), tg.i32)
    made = {"exp": tg.exp(x), "softmax": tg.softmax(x), "add": x + tg.input("y", (n, 24), tg.f32), "gather": tg.gather(table, ids),
            "embedding": tg.embedding(table, ids), "tanh": tg.tanh(x)}
    asked = [JudgeTask(kernel_named(f"numpy.{name}"), signature_of(node), {"n": 5}) for name, node in made.items()]
    asked.append(JudgeTask(kernel_named("c.softmax"), signature_of(made["softmax"]), {"n": 5}))
    found: dict[int, dict[str, tuple[Any, ...]]] = {}
    threads = set[int]()

    class Watching(Judge):
        def _oracle_outputs(self, signature: Signature, point: Point) -> Any:
            threads.add(threading.get_ident())
            return super()._oracle_outputs(signature, point)

    for count in (1, 2):
        threads.clear()
        with Watching(shared) as judge:
            judge.workers, judge.elsewhere, judge.side_threads = 2, 2, count
            judge._secrets = {each.signature.key: 12_345 for each in asked}
            found[count] = {each.kernel.name: (v.status, v.error, v.norm_error, v.covered) for each, v in compare(judge, asked)}
        assert len(threads) == count
    assert found[1] == found[2] and len(found[1]) == len(asked)
    assert {status for status, *_ in found[1].values()} == {"PASSED"}


@pytest.mark.parametrize(("on_host", "count"), [(True, 1), (False, 2)])
def test_kernels_of_the_host_leave_its_processors_to_one_thread_beside(
        on_host: bool, count: int, shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    if not on_host:
        _not_on_the_host(monkeypatch)
    with Judge(shared) as judge:
        judge.side_threads = 2
        made = comparison_pipeline._Comparison(judge, [JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})])
        assert len(made._tasks._threads) == count


@pytest.mark.parametrize(("cores", "count"), [(2, 1), (7, 1), (8, 2), (64, 2)])
def test_there_are_two_threads_where_there_are_processors_for_them(
        cores: int, count: int, shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "usable_cores", lambda: cores)
    with Judge(shared) as judge:
        assert judge.side_threads == count


def test_a_worker_begins_before_the_oracle_was_asked_about_the_points_of_its_later_jobs(shared: Database, small_jobs: None) -> None:
    waited = list[bool]()

    class Waiting(Noting):
        def _oracle_outputs(self, signature: Signature, point: Point) -> Any:
            if point.extreme is not None and not waited:            # these come behind all sizes
                waited.append(self.began.wait(30.0))
            return super()._oracle_outputs(signature, point)

    with Waiting(shared) as judge:
        ((_, verdict),) = compare(judge, [JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})])
        assert verdict.status == "PASSED" and waited == [True]
        shown = [point for job in judge.jobs for point in job]
        assert shown == judge.points(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})
        assert not judge._later and not judge._points


@pytest.mark.parametrize("foreseen", [False, True])
def test_what_later_jobs_need_is_asked_beside_the_worker(foreseen: bool, shared: Database, small_jobs: None) -> None:
    class Patient(Noting):
        def ask_the_rest(self, asked: JudgeTask, enough: Callable[[], bool]) -> None:
            super().ask_the_rest(asked, enough)
            self.rest.set()

        def _run_job(self, *given: Any) -> Any:
            if len(self.jobs) == 1:                                 # the first one has ended
                assert self.rest.wait(30.0)
            return super()._run_job(*given)

        rest = threading.Event()

    asked = [JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})]
    with Patient(shared) as judge:
        if foreseen:
            looked = iter([False, True])
            judge.foresee(asked, lambda: next(looked, True))        # enough behind the first job's
            assert judge.is_foreseen(asked[0]) and judge._later
            judge.asked_by.clear()
            judge.rest.clear()
        assert [verdict.status for _, verdict in compare(judge, asked)] == ["PASSED"]
        assert len(judge.asked_by) > 20 and {name for _, name in judge.asked_by} == {"beside"}


@pytest.mark.parametrize("left_out", ["some of each", "all of the last"])
def test_points_at_which_an_op_has_no_value_are_left_out_of_each_job(left_out: str, shared: Database, small_jobs: None) -> None:
    kernel = kernel_named("numpy.softmax")
    with Judge(shared) as judge:
        judge._secrets[SOFTMAX.key] = 12_345
        last = {point.seed for point in judging._jobs(SOFTMAX, judge.points(kernel, SOFTMAX, {"n": 5}))[-1]}

    def is_left_out(point: Point) -> bool:
        return point.seed in last if left_out == "all of the last" else point.special or point.extreme is not None

    class Choosy(Noting):
        def _oracle_outputs(self, signature: Signature, point: Point) -> Any:
            if is_left_out(point):
                raise ValueError("no value")
            return super()._oracle_outputs(signature, point)

    asked = JudgeTask(kernel, SOFTMAX, {"n": 5})
    with Choosy(shared) as judge:
        judge._secrets[SOFTMAX.key] = 12_345
        ((_, compared),) = compare(judge, [asked])
        examined = judge.examine(kernel, SOFTMAX, {"n": 5})
        assert (compared.status, compared.covered) == ("PASSED", examined.covered) and examined.status == "PASSED"
        assert len(judge.jobs) > 4 and all(judge.jobs)
        assert not any(map(is_left_out, (point for job in judge.jobs for point in job)))


def test_where_no_point_is_left_there_is_no_verdict(shared: Database, small_jobs: None) -> None:
    class Blind(Noting):
        def _with_value(self, signature: Signature, points: Sequence[Point]) -> list[Point]:
            return []

    with Blind(shared) as judge:
        with pytest.raises(JudgeError, match=r"softmax .* has a value at none of the points"):
            judge.examine(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})
        assert not judge.jobs


def test_while_compilers_run_the_oracle_is_asked_about_all_of_a_question(shared: Database, small_jobs: None) -> None:
    asked = [JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})]
    with Noting(shared) as judge:
        judge.foresee(asked, lambda: False)
        assert len(judge.asked_by) > 20 and not judge._later and judge.is_foreseen(asked[0])
        judge.asked_by.clear()
        assert [verdict.status for _, verdict in compare(judge, asked)] == ["PASSED"] and not judge.asked_by


def test_nothing_more_is_asked_about_a_kernel_that_was_refused(shared: Database, small_jobs: None) -> None:
    class Refusing(Noting):
        def ask_the_rest(self, asked: JudgeTask, enough: Callable[[], bool]) -> None:
            while not enough():                                     # until there is a verdict
                threading.Event().wait(0.01)
            super().ask_the_rest(asked, enough)

        def _compare(self, *given: Any, **named: Any) -> Any:
            return judging._failure("INCORRECT_NUMERICAL", "refused")

    with Refusing(shared) as judge:
        ((_, verdict),) = compare(judge, [JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})])
        assert verdict.log == "refused" and len(judge.jobs) == 1 and len(judge.asked_by) < 12


def test_of_members_of_a_class_the_first_job_alone_is_asked_ahead(shared: Database, small_jobs: None) -> None:
    member = signature_of(tg.linear(tg.input("x", (N, 640), tg.f32), tg.input("w", (2048, 640), tg.f32)))
    asked = JudgeTask(kernel_named("c.linear"), member, {"n": 5})
    small = smaller(asked.kernel, member)
    assert small is not None
    with Noting(shared) as judge:
        judge._passed[asked.kernel.identity, small.key] = 0.0
        judge.look_ahead(asked)
        jobs = judging._jobs(member, judge._points[judging._question(asked)])
        assert len(jobs) > 2 and {point for point, _ in judge.asked_by} == {point.values for point in jobs[0]}


def test_sizes_that_do_not_go_together_are_shown_to_no_kernel(shared: Database) -> None:
    """pad has a value where m ≥ n only; all of it is one job."""
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    signature, kernel = signature_of(tg.pad(tg.input("x", (n,), tg.f32), ((0, m - n),))), kernel_named("numpy.pad")
    with Judge(shared) as judge:
        ((_, compared),) = compare(judge, [JudgeTask(kernel, signature, {"n": 5, "m": 9})])
        examined = judge.examine(kernel, signature, {"n": 5, "m": 9})
    assert (compared.status, compared.log, examined.status, examined.log) == ("PASSED", "", "PASSED", "")


def test_the_oracle_is_asked_once_about_a_point_that_two_kernels_share(
        shared: Database, small_jobs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    _not_on_the_host(monkeypatch)
    asked = [JudgeTask(kernel_named(f"{backend}.softmax"), SOFTMAX, {"n": 5}) for backend in ("numpy", "c")]
    with Noting(shared) as judge:
        judge.workers, judge.elsewhere, judge.side_threads = 2, 2, 2
        assert [verdict.status for _, verdict in compare(judge, asked)] == ["PASSED"] * 2
        points = [point for point, _ in judge.asked_by]
        assert len(points) == len(set(points)) > 20


def test_one_thread_at_a_time_asks_about_what_takes_much_memory(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "refuse_replaced", lambda: None)
    _not_on_the_host(monkeypatch)
    monkeypatch.setattr(judging, "MUCH", 1)
    running, most = threading.Semaphore(1), list[bool]()

    class Alone(Judge):
        def _held(self, work: Callable[..., Any], *given: Any) -> Any:
            most.append(running.acquire(blocking=False))
            try:
                return work(*given)
            finally:
                if most[-1]:
                    running.release()

        def _oracle_outputs(self, signature: Signature, point: Point) -> Any:
            return self._held(super()._oracle_outputs, signature, point)

    x = tg.input("x", (N, 24), tg.f32)
    asked = [JudgeTask(kernel_named(f"numpy.{op.__name__}"), signature_of(op(x)), {"n": 5}) for op in (tg.exp, tg.tanh, tg.softmax)]
    with Alone(shared) as judge:
        judge.workers, judge.elsewhere, judge.side_threads = 2, 2, 2
        assert {verdict.status for _, verdict in compare(judge, asked)} == {"PASSED"}
    assert len(most) > 60 and all(most)


def test_where_a_comparison_is_given_up_nobody_asks_on_and_no_worker_runs_on(shared: Database, small_jobs: None) -> None:
    class Stopped(Noting):
        def ask_the_rest(self, asked: JudgeTask, enough: Callable[[], bool]) -> None:
            assert self.began.wait(30.0)
            super().ask_the_rest(asked, lambda: bool(self.wait_for_the_end(enough)))

        def wait_for_the_end(self, enough: Callable[[], bool]) -> bool:
            while not enough():                                     # nothing else ends it
                threading.Event().wait(0.01)
            return True

        def _run_job(self, *given: Any) -> Any:
            heard = super()._run_job(*given)
            if self.interrupts:
                raise KeyboardInterrupt("interrupted")
            return heard

        interrupts = True

    with Stopped(shared) as judge:
        judge.workers = 1
        with pytest.raises(KeyboardInterrupt, match="interrupted"):
            list(compare(judge, [JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5})]))
        assert len(judge.jobs) == 1 and len(judge.asked_by) < 12
        judge.interrupts = False
        with pytest.raises(JudgeError, match=r"numpy\.softmax on softmax .* was given up"):
            judge.returned(JudgeTask(kernel_named("numpy.softmax"), SOFTMAX, {"n": 5}), judge.worker, lambda: True)


def test_that_the_tables_of_threads_are_made_elsewhere_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_kept_tables", lambda thread: None)
    with pytest.raises(JudgeError, match="inputs._kept_tables was replaced"):
        judging.refuse_replaced()


def test_another_worker_ends_behind_the_job_that_it_was_at(shared: Database, small_jobs: None) -> None:
    at_job, stopped = threading.Event(), threading.Event()

    class Others(Noting):
        def _run_job(self, kernel: Kernel, signature: Signature, points: Any, timing: Any, later: Any, *more: Any) -> Any:
            if later is self.worker:
                assert at_job.wait(30.0)
                raise KeyboardInterrupt("interrupted")
            at_job.set()
            assert stopped.wait(30.0)
            return super()._run_job(kernel, signature, points, timing, later, *more)

    asked = [JudgeTask(kernel_named(f"numpy.{op.__name__}"), signature_of(op(tg.input("x", (N, 24), tg.f32))), {"n": 5})
             for op in (tg.exp, tg.softmax)]
    with Others(shared) as judge, pytest.MonkeyPatch.context() as patch:
        stop = comparison_pipeline._Comparison._stop
        patch.setattr(comparison_pipeline._Comparison, "_stop", lambda made: (stop(made), stopped.set()))
        judge.workers = 2
        with pytest.raises(KeyboardInterrupt, match="interrupted"):
            list(compare(judge, asked))
        assert len(judge.jobs) == 1
