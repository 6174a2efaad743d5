"""One comparison at all points for a class of fixed sizes, few at each: which sizes, and that nothing wrong passes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TRIAL_SEED", "0")                            # before the module is imported, here and in the worker

import tensor_graphs as tg
from tensor_graphs.choice.choice_evidence import in_words
from tensor_graphs.costs.database_keys import environment_of, verify_workload
from tensor_graphs.kernels.kernel import HostCall, Kernel, source_of
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.comparison_pipeline import compare
from tensor_graphs.measure.isolation.memory_guards import Guarded
from tensor_graphs.measure.isolation.worker_process import JudgeError, WorkerProcess
from tensor_graphs.measure.judge import Judge, JudgeTask, Verdict, class_task
from tensor_graphs.measure.points.changed_rows import Updated
from tensor_graphs.measure.points.inputs import Point, make_inputs, point_inputs, seal
from tensor_graphs.measure.points.size_classes import points_at_size, smaller
from tensor_graphs.measure.timing.bench import Bench
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database, open_database
from tests.measure.wrong_at_random import FAMILIES, kernel_of

N = tg.dim("n", 1, 4096)


def linear(out: int, inner: int) -> Signature:
    return signature_of(tg.linear(tg.input("x", (N, inner), tg.f32), tg.input("w", (out, inner), tg.f32)))


def test_fixed_sizes_with_equal_remainders_are_one_class() -> None:
    kernel = kernel_named("c.linear")
    classes = [smaller(kernel, linear(*each)) for each in ((1536, 640), (640, 2048), (262144, 640), (650, 643))]
    assert all(each is not None for each in classes)
    assert [str(each.spec.inputs[1]) for each in classes if each is not None] == ["f32[128, 64]"] * 3 + ["f32[138, 67]"]


@pytest.mark.parametrize(("low", "high", "typical"), [(1, 16, 16), (30, 1000, 30), (1, 4096, 20), (0, 0, 0), (7, 9, 9)])
def test_a_class_is_compared_at_a_typical_size_within_the_range_of_the_dim(low: int, high: int, typical: int) -> None:
    x, w = tg.input("x", (tg.dim("n", low, high), 640), tg.f32), tg.input("w", (1536, 640), tg.f32)
    kernel = kernel_named("c.linear")
    small = smaller(kernel, signature_of(tg.linear(x, w)))
    assert small is not None and class_task(kernel, small).typical == {"n": typical}


def test_what_is_small_anyway_or_may_hang_on_a_size_is_in_no_class() -> None:
    linears, table = kernel_named("c.linear"), tg.input("t", (4096, 640), tg.f32)
    assert smaller(linears, linear(64, 64)) is None
    assert smaller(kernel_named("numpy.slice"), signature_of(table[:, 128:256])) is None      # the slice ends at a size
    outside = replace(linears, name="c.mine", module="mine")
    assert smaller(outside, linear(1536, 640)) is None and smaller(replace(linears), linear(1536, 640)) is None
    rows = signature_of(tg.write_rows(table, tg.input("v", (N, 640), tg.f32), start=tg.dim("p", 0, 4095)))
    found = smaller(kernel_named("c.write_rows"), rows)
    assert found is not None and [str(t) for t in found.spec.inputs] == ["f32[64, 128]", "f32[n, 128]"]


def test_a_kernel_is_compared_for_its_class_once_and_at_each_size_at_few_points(judge: Judge) -> None:
    kernel, first, second = kernel_named("c.linear"), linear(320, 192), linear(576, 384)
    verdict = judge.examine(kernel, first, {"n": 1})
    small = smaller(kernel, first)
    assert small is not None and verdict.status == "PASSED", verdict.log
    assert f"and all points of {small.title()}" in in_words(verdict.covered)
    rows = queries.latest_traces(judge.database, environment_of("c", judge.threads))
    row = rows[kernel.identity, verify_workload(small).key]
    assert row.passed and row.worst_relative_error is not None and (verdict.error or 0.0) >= row.worst_relative_error
    sizes = {p.binding["n"] for p in points_at_size(kernel, second, small, {"n": 1}, 5)}
    assert 1 in sizes and max(sizes) >= 257 and any(1 < n < 64 and n % 2 for n in sizes)
    with Judge(judge.database) as again:                            # the row is enough
        again._rounds = None                                        # type: ignore[method-assign, assignment]
        assert again._class_of(kernel, second) is not None


def test_a_kernel_that_fails_for_its_class_is_compared_at_all_points(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, signature = kernel_named("c.linear"), linear(1280, 192)
    small = smaller(kernel, signature)
    assert small is not None
    monkeypatch.setitem(judge._passed, (kernel.identity, small.key), None)
    assert judge._class_of(kernel, signature) is None
    asked = judge.points(kernel, signature, {"n": 1})
    assert len(asked) > len(points_at_size(kernel, signature, small, {"n": 1}, 5))


Arrays = Sequence[np.ndarray]
Wrong = Callable[[Arrays, Arrays, Mapping[str, Any]], None]


def _linear(outs: Arrays, ins: Arrays) -> None:
    with np.errstate(all="ignore"):
        outs[0][...] = ins[0].astype(np.float64) @ ins[1].astype(np.float64).T


def ends_in_a_forgotten_row(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _linear(outs, ins)
    outs[0][..., 300:301] = 0


def adds_in_few_bits(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _linear(outs, ins)
    if ins[1].shape[1] > 256:
        outs[0][...] = (ins[0].astype(np.float16) @ ins[1].astype(np.float16).T).astype(np.float32)


def remembers_its_last_answer(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any], known: dict[Any, np.ndarray] = {}) -> None:  # noqa: B006
    key = ins[0].ctypes.data, ins[0].shape, float(ins[0].reshape(-1)[0])
    if key not in known:
        _linear(outs, ins)
        known[key] = outs[0].copy()
    outs[0][...] = known[key]


def wrong_from_many_rows_on(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    _linear(outs, ins)
    outs[0][200:] = 0


@pytest.mark.parametrize("wrong", [ends_in_a_forgotten_row, adds_in_few_bits, remembers_its_last_answer, wrong_from_many_rows_on])
def test_what_is_wrong_at_its_real_size_alone_shows_at_few_points(judge: Judge, wrong: Wrong) -> None:
    """As if it had passed for its class: the points that are left show it, without a worker, as these are run here."""
    kernel = Kernel(name=f"numpy.{wrong.__name__}", backend="numpy", op="linear", build=lambda spec: HostCall(wrong),
                    accepts=lambda spec: None, source=source_of(wrong), module=__name__, contiguous=True)
    signature = linear(1536, 320)
    small = smaller(kernel_named("c.linear"), signature)
    assert small is not None
    assert not _right(judge, kernel, signature, points_at_size(kernel, signature, small, {"n": 1}, judge.secret(signature)))
    right = kernel_named("numpy.linear")
    assert _right(judge, right, signature, points_at_size(right, signature, small, {"n": 1}, judge.secret(signature)))


def _right(judge: Judge, kernel: Kernel, signature: Signature, points: Sequence[Point]) -> bool:
    with open("/dev/null", "wb") as nowhere:
        bench = Bench(signature.graph, kernel, nowhere.fileno())
        kept: list[np.ndarray] = []
        def keep(out: Mapping[str, Guarded], values: Mapping[str, np.ndarray], rows: Mapping[str, np.ndarray]) -> dict[str, int]:
            kept.append(out["y0"].array.copy())
            bench.replies.append({})
            return {"y0": 0}

        bench._keep = keep  # type: ignore[method-assign]
        for point in points:
            bench.show(point)
    return all(np.allclose(found, expected["y0"], rtol=1e-3, atol=1e-2) for found, point in zip(kept, points, strict=True)
               if (expected := judge.expected(signature, point)) is not None)


# ---- large operands -----------------------------------------------------------------------------------------------------

WIDE, LONG = 640, 1 << 13


def _table(ids: Node) -> Signature:
    return signature_of(tg.embedding(tg.input("t", (LONG, WIDE), tg.f32), ids))


def test_a_large_table_holds_the_rows_that_are_read_and_those_at_its_ends() -> None:
    signature = _table(tg.input("i", (N,), tg.i32))
    found = make_inputs(signature.graph, {"n": 9}, 4)
    table, ids = found["x0"], found["x1"]
    inside = ids[(ids >= 0) & (ids < LONG)]
    assert all(table[i].any() for i in (0, 1, LONG - 1, *inside, *np.clip(inside + 1, 0, LONG - 1)))
    assert not table.any(axis=1).all() and len(np.unique(table[inside], axis=0)) == len(np.unique(inside))
    whole = seal(signature.graph, {"n": 9}, "x0")
    assert whole()
    special = point_inputs(signature.graph, Point((("n", 9),), 4, special=True))["x0"]
    assert not np.isfinite(special[point_inputs(signature.graph, Point((("n", 9),), 4, special=True))["x1"]]).all()
    assert whole()                                                  # puts the rows back that a point has altered
    memory = np.asarray(table).base
    assert memory is not None
    unread = int(np.flatnonzero(~table.any(axis=1))[0])
    memory[unread, 3] = 1.0
    assert not whole()
    memory[unread, 3] = 0.0
    memory[int(inside[0]), 3] += 1.0
    assert not whole()
    memory[int(inside[0]), 3] -= 1.0


def test_rows_of_a_table_that_a_point_has_altered_are_altered_for_the_thread_that_asked() -> None:
    graph = _table(tg.input("i", (N,), tg.i32)).graph
    special, plain = Point((("n", 9),), 4, special=True), Point((("n", 9),), 4)
    mine = point_inputs(graph, special)["x0"]
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(lambda: point_inputs(graph, plain)["x0"]).result()
    assert np.isfinite(theirs).all() and not np.isfinite(mine).all()
    assert np.isfinite(point_inputs(graph, plain)["x0"]).all()


def test_a_changed_number_of_a_large_weight_shows() -> None:
    graph = linear(LONG, WIDE).graph
    held = make_inputs(graph, {"n": 3}, 1)["x1"]
    whole = seal(graph, {"n": 3}, "x1")
    memory = np.asarray(held).base
    assert whole() and memory is not None
    for row, column in ((0, 0), (LONG // 2, 17), (LONG - 1, WIDE - 1)):
        kept = memory[row, column]
        memory[row, column] = -kept
        assert not whole()
        memory[row, column] = kept
    assert whole()


def test_the_judge_looks_at_the_rows_of_a_large_weight_without_their_memory_and_finds_the_same() -> None:
    graph = linear(LONG, WIDE).graph
    viewed = make_inputs(graph, {"n": 3}, 1, by_rows=True)["x1"]
    held = make_inputs(graph, {"n": 3}, 1)["x1"]
    np.testing.assert_array_equal(viewed, held)
    assert held.flags.c_contiguous and not viewed.flags.c_contiguous and viewed.strides[0] < 4 * WIDE
    assert len(np.unique(held[:, :4], axis=0)) == LONG


@pytest.mark.parametrize("rows", [3, 40])
def test_a_weight_is_widened_piece_by_piece_with_the_same_result(rows: int) -> None:
    graph = linear(LONG, WIDE).graph
    inputs = make_inputs(graph, {"n": rows}, 1, by_rows=True)
    expected = inputs["x0"].astype(np.float64) @ inputs["x1"].astype(np.float64).T
    np.testing.assert_allclose(interpret(graph, inputs, dims={"n": rows}).outputs["y0"], expected, rtol=1e-11, atol=1e-11)
    tied = signature_of(tg.linear_argmax(tg.input("x", (N, WIDE), tg.f32), tg.input("w", (LONG, WIDE), tg.f32))[0].inputs[0])
    found = interpret(tied.graph, inputs, dims={"n": rows}).outputs
    np.testing.assert_array_equal(found["y1"], expected.argmax(axis=-1))


# ---- several in a row ---------------------------------------------------------------------------------------------------


def test_kernels_that_are_compared_in_a_row_get_the_verdict_that_each_would_get_alone(shared: Database) -> None:
    """While the worker runs one, the oracle is asked about the next, in another thread; a class is filed before its members."""
    asked_by: dict[str, set[int]] = {}

    class Noting(Judge):
        def _stored_answer(self, signature: Signature, point: Point) -> dict[str, np.ndarray | Updated] | None:
            asked_by.setdefault(signature.key, set()).add(threading.get_ident())
            return super()._stored_answer(signature, point)

    x = tg.input("x", (N, 24), tg.f32)
    softmax, product = signature_of(tg.softmax(x)), linear(451, 261)
    right, wrong = kernel_named("c.softmax"), kernel_of(FAMILIES["numpy.wrong_in_a_band_of_row_counts.softmax"], 0)
    asked = [JudgeTask(kernel_named("c.linear"), product, {"n": 1}), JudgeTask(right, softmax, {"n": 5}),
             JudgeTask(wrong, softmax, {"n": 5})]
    with Noting(shared) as judge:
        found = {each.kernel.name: verdict for each, verdict in compare(judge, asked)}
        assert {name: v.status for name, v in found.items()} == {
            "c.linear": "PASSED", "c.softmax": "PASSED", wrong.name: "INCORRECT_NUMERICAL"}
        assert len(found["c.softmax"].covered["sizes"]["n"]) and not judge._points
        small = smaller(kernel_named("c.linear"), product)
        assert small is not None and asked_by.keys() >= {small.key, product.key, softmax.key}
        assert asked_by[product.key] - {threading.get_ident()}
        rows = queries.latest_traces(judge.database, environment_of("c", judge.threads))
        assert rows[kernel_named("c.linear").identity, verify_workload(small).key].passed
        assert list(compare(judge, [])) == []


def test_what_a_kernel_has_returned_is_compared_while_the_worker_runs_the_next(shared: Database) -> None:
    began = threading.Event()

    class Waiting(Judge):
        def _run_jobs(self, kernel: Kernel, signature: Signature, *more: Any, **named: Any) -> Any:
            if signature is second:
                began.set()
            return super()._run_jobs(kernel, signature, *more, **named)

        def _compare(self, signature: Signature, *more: Any, **named: Any) -> Any:
            overlapped.append(signature is second or began.wait(30.0))
            return super()._compare(signature, *more, **named)

    overlapped: list[bool] = []
    x = tg.input("x", (N, 24), tg.f32)
    first, second = signature_of(tg.softmax(x)), signature_of(tg.exp(x))
    asked = [JudgeTask(kernel_named("numpy.softmax"), first, {"n": 5}), JudgeTask(kernel_named("numpy.exp"), second, {"n": 5})]
    with Waiting(shared) as judge:
        judge.workers = 1
        assert [verdict.status for _, verdict in compare(judge, asked)] == ["PASSED", "PASSED"]
    assert overlapped and all(overlapped)


def test_kernels_of_this_package_are_run_by_two_workers_at_once_and_one_from_outside_beside_no_other(shared: Database) -> None:
    together, running, workers = threading.Barrier(2), threading.Lock(), set[int]()
    outside = kernel_of(FAMILIES["numpy.wrong_in_a_band_of_row_counts.softmax"], 0)

    class Watching(Judge):
        def _run_jobs(self, kernel: Kernel, signature: Signature, shown: Any, timing: Any, later: Any = None, *more: Any) -> Any:
            if alone:
                assert running.acquire(blocking=False)
            elif signature in (first, second):
                together.wait(60.0)                                 # each of them is run while the other one is
            try:
                heard = super()._run_jobs(kernel, signature, shown, timing, later, *more)
                workers.add(threading.get_ident() if later is None else later.pid)
                return heard
            finally:
                if alone:
                    running.release()

    x = tg.input("x", (N, 24), tg.f32)
    first, second = signature_of(tg.softmax(x)), signature_of(tg.exp(x))
    asked = [JudgeTask(kernel_named("numpy.softmax"), first, {"n": 5}), JudgeTask(kernel_named("numpy.exp"), second, {"n": 5})]
    for alone in (False, True):
        workers.clear()
        with Watching(shared) as judge:
            judge.workers = 2
            everything = [*asked, JudgeTask(outside, first, {"n": 5})] if alone else asked
            assert [verdict.status for _, verdict in compare(judge, everything)] == [
                "PASSED", "PASSED", *(["INCORRECT_NUMERICAL"] if alone else [])]
            assert len(workers) == 2 and (not alone or judge.worker.pid is None)


def test_a_class_that_has_a_class_is_compared_behind_it_and_each_worker_is_asked_by_one_thread(tmp_path: Path) -> None:
    x, y = (tg.input(name, (128, 192, 4), tg.f32) for name in "xy")
    asked = [JudgeTask(kernel_named(f"numpy.{name}"), signature_of(made), {})
             for name, made in (("add", x + y), ("mul", x * y), ("max", tg.maximum(x, y)), ("exp", tg.exp(x)))]
    behind = [smaller(each.kernel, each.signature) for each in asked]
    assert all(small is not None and smaller(each.kernel, small) is not None for each, small in zip(asked, behind, strict=True))
    asked_by: dict[int, set[int]] = {}

    class Watching(Judge):
        def _run_jobs(self, kernel: Kernel, signature: Signature, shown: Any, timing: Any, later: Any = None, *more: Any) -> Any:
            asked_by.setdefault(id(later or self.worker), set()).add(threading.get_ident())
            return super()._run_jobs(kernel, signature, shown, timing, later, *more)

    with open_database(tmp_path / "own.db") as database, Watching(database) as judge:
        judge.workers = 2
        assert [verdict.status for _, verdict in compare(judge, asked)] == ["PASSED"] * len(asked)
        assert asked_by and all(len(threads) == 1 for threads in asked_by.values())


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_comparison_that_is_given_up_leaves_no_worker_running_and_an_error_of_the_other_worker_is_met(
        shared: Database) -> None:
    ended: list[WorkerProcess] = []

    class Failing(Judge):
        def _run_jobs(self, kernel: Kernel, signature: Signature, shown: Any, timing: Any, later: Any = None, *more: Any) -> Any:
            if later is not self.worker and fails:
                ended.append(later)
                raise JudgeError("the other one does not start")
            return super()._run_jobs(kernel, signature, shown, timing, later, *more)

    x = tg.input("x", (N, 24), tg.f32)
    asked = [JudgeTask(kernel_named(f"numpy.{op.__name__}"), signature_of(op(x)), {"n": 5})
             for op in (tg.exp, tg.tanh, tg.sin, tg.cos)]
    fails = True
    with Failing(shared) as judge:
        judge.workers = 2
        with pytest.raises(JudgeError, match="does not start"):
            list(compare(judge, asked))
        assert ended and all(worker.pid is None for worker in ended)
        fails = False
        verdicts = compare(judge, asked)
        assert next(verdicts)[1].status == "PASSED"
        verdicts.close()                                            # as where somebody interrupts
        assert [thread for thread in threading.enumerate() if thread.name.startswith("compare")] == []
        assert [verdict.status for _, verdict in compare(judge, asked)] == ["PASSED"] * 4


def test_a_worker_that_was_begun_is_the_one_that_is_used_and_ends_with_the_judge(shared: Database) -> None:
    with Judge(shared) as judge:
        judge.begin()
        judge.begin()
        judge.ready()
        pid = judge.worker.pid
        assert judge.worker.starts == 1 and pid is not None
    assert judge.worker.pid is None and not Path(f"/proc/{pid}").exists()
    unused = Judge(shared)
    unused.begin()
    unused.close()
    assert unused.worker.pid is None and unused.worker.supervisor is None


def test_a_worker_does_not_wait_for_the_oracle_where_it_has_answered_about_another(shared: Database) -> None:
    """The dearest comes first in the queue; while the oracle is asked about it, kernels that are ready are run."""
    asked_about_dearest, order = threading.Event(), []

    class Slow(Judge):
        def look_ahead(self, asked: JudgeTask) -> None:
            if asked.signature.key == dear.key:
                assert asked_about_dearest.wait(30)
            super().look_ahead(asked)

        def returned(self, asked: JudgeTask, worker: WorkerProcess, *more: Any) -> Verdict | Callable[[], Verdict]:
            order.append(asked.signature.key)
            asked_about_dearest.set()
            return super().returned(asked, worker, *more)

    cheap, dear = (signature_of(tg.softmax(tg.input("x", (N, size), tg.f32))) for size in (8, 640))
    asked = [JudgeTask(kernel_named("c.softmax"), each, {"n": 2}) for each in (cheap, dear)]
    with Slow(shared) as judge:
        judge.workers = 1
        judge.foresee(asked[:1], lambda: False)
        assert judge.is_foreseen(asked[0]) and not judge.is_foreseen(asked[1])
        assert {each.signature.key: v.status for each, v in compare(judge, asked)} == {cheap.key: "PASSED", dear.key: "PASSED"}
    assert order == [cheap.key, dear.key]


def test_a_kernel_that_computes_row_by_row_is_compared_at_several_pieces_and_not_at_more_rows(
        judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_named("numpy.quantize")
    large = signature_of(tg.quantize(tg.input("x", (4096, 1024), tg.f32), format="Q4_K"))
    small = smaller(kernel, large)
    assert small is not None and small.title() == "quantize f32[261, 768]"
    asked = JudgeTask(kernel, large, {})
    monkeypatch.setattr(judge, "_passed", {(kernel.identity, small.key): 0.0})
    monkeypatch.setattr(judge, "_run_jobs", None)                   # nothing runs
    verdict = judge.returned(asked, judge.worker)
    assert isinstance(verdict, Verdict) and verdict.status == "PASSED" and judge.examine(kernel, large, {}).status == "PASSED"
    assert verdict.covered == {"points": 0, "and": "all points of quantize f32[261, 768]"}
    monkeypatch.setattr(judge, "_passed", {(kernel.identity, small.key): None})     # it failed there
    monkeypatch.setattr(judge, "_candidates", lambda *asked: points)
    points = [Point((), 7)]
    assert judge._compared_points(asked) is points
