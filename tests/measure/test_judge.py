"""The judge and its worker: whatever a kernel does to its process, the verdict is kept and the next kernel gets a fair trial."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.costs.database_keys import VERIFIER, environment_of, timed_workload, verify_workload
from tensor_graphs.costs.roofline import DeviceRates
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.kernel_origin import out_of_reach
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure import judge as judging
from tensor_graphs.measure import oracle_cache
from tensor_graphs.measure.isolation.memory_guards import GUARD, GUARD_BYTES, POISONS, Guarded, digest
from tensor_graphs.measure.isolation.replies import Loaded, Reply, ReportedOutput, Shown
from tensor_graphs.measure.isolation.worker import INSIDE
from tensor_graphs.measure.isolation.worker_process import JOB_SECONDS, JudgeError, WorkerProcess
from tensor_graphs.measure.judge import PLAIN, PROCESS_SECONDS, Judge, JudgeTask
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.measure.queue.next_measurements import Question, answer, unanswered
from tensor_graphs.measure.timing.noise_reference import SHARED
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tests.measure.wrong_kernels import BY_NAME, NODES

RELU = signature_of(NODES["relu"])
SIZES = {"n": 20}


def kernel(name: str) -> Kernel:
    return BY_NAME[f"trial.{name}"].kernel


@pytest.fixture(scope="module")
def judge(shared: Database) -> Iterator[Judge]:
    with Judge(shared, timeout=30.0) as made:
        yield made


@pytest.mark.parametrize("name", ["exits_the_process", "breaks_the_process", "raises"])
def test_after_a_crash_the_row_is_there_and_the_next_kernel_is_right(judge: Judge, name: str) -> None:
    verdict = judge.examine(kernel(name), RELU, SIZES)
    row = judge.record(kernel(name), RELU, verdict, None)
    assert row.status == "RUNTIME_ERROR"
    known = queries.verified(judge.database, kernel(name).identity, verify_workload(RELU), environment_of("numpy"))
    assert known.statuses["RUNTIME_ERROR"] >= 1 and not known.within(1.0)
    assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"


def test_the_log_of_a_crash_says_how_it_ended_and_what_it_said(judge: Judge) -> None:
    assert "SIGABRT" in judge.examine(kernel("breaks_the_process"), RELU, SIZES).log
    assert "exit 0" in judge.examine(kernel("exits_the_process"), RELU, SIZES).log
    assert "ValueError: not today" in judge.examine(kernel("raises"), RELU, SIZES).log


def test_the_log_of_a_crash_or_a_hang_says_where_the_kernel_was_run(judge: Judge, shared: Database) -> None:
    assert judge.examine(kernel("dies_of_one_row"), RELU, SIZES).log.startswith("the worker died (exit 7) at n=1")
    assert "died (exit 7) in many calls in a row at n=" in judge.examine(kernel("dies_of_many_calls"), RELU, SIZES).log
    with Judge(shared, timeout=5.0) as brief:
        log = brief.examine(kernel("hangs_on_infinity"), RELU, SIZES).log
        assert re.match(r"no answer within \d s .*at n=\d+ \(NaN and infinities", log), log


def test_the_log_of_a_crash_in_timed_runs_says_so(judge: Judge) -> None:
    timing = judge._timing(JudgeTask(kernel("right_in_place"), RELU, SIZES, SIZES), 0.02, 0.01, False)
    hearing = judging._Dialogue(judge, RELU, (), timing)
    for word in (Loaded(), Shown(())):
        hearing(word, 0.0)
    assert hearing.placed(Reply("TIMEOUT", "no answer within 5 s\nwords")) == "no answer within 5 s in a timed run at n=20\nwords"
    assert hearing.placed(Reply("RUNTIME_ERROR", "ValueError: no at k.py:1, at n=3")) == "ValueError: no at k.py:1, at n=3"


def killing(worker: WorkerProcess, times: int) -> threading.Thread:
    """Kill the worker from outside, `times` times, each a moment after it began a job (a started worker needs 0.3 s at least)."""

    def kill() -> None:
        killed: set[int] = set()
        end = time.monotonic() + 30
        while len(killed) < times and time.monotonic() < end:
            process = worker.pid
            if process is not None and process not in killed and Path(worker.folder.name, "begun").exists():
                os.kill(process, signal.SIGKILL)
                killed.add(process)
                Path(worker.folder.name, "begun").unlink()
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("times", "status"), [(1, "PASSED"), (2, "RUNTIME_ERROR")])
def test_a_worker_killed_from_outside_gets_one_more_try(shared: Database, monkeypatch: pytest.MonkeyPatch, times: int,
                                                        status: str) -> None:
    with Judge(shared, timeout=30.0) as judge:
        monkeypatch.setenv("TRIAL_FOLDER", judge.worker.folder.name)
        thread = killing(judge.worker, times)
        verdict = judge.examine(kernel("says_that_it_began"), RELU, SIZES)
        thread.join()
        assert verdict.status == status, verdict.log
        assert judge.worker.starts == 2
        if status == "RUNTIME_ERROR":
            assert "SIGKILL" in verdict.log
        assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"


def test_a_worker_that_died_between_two_jobs_is_no_kernels_fault(judge: Judge) -> None:
    assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"
    assert judge.worker.pid is not None
    os.kill(judge.worker.pid, signal.SIGKILL)
    assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"


def test_a_hanging_kernel_ends_with_the_children_it_started(shared: Database, tmp_path: Path,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIAL_FOLDER", str(tmp_path))
    with Judge(shared, timeout=2.0) as judge:
        assert judge.examine(kernel("hangs_with_a_child"), RELU, SIZES).status == "TIMEOUT"
    child = int((tmp_path / "child").read_text())
    assert gone(child)


def test_answers_of_the_oracle_beyond_a_number_of_bytes_are_dropped_from_the_oldest_on(judge: Judge,
                                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of signatures or of points is exempt: one signature alone may have fifty points of a large picture."""
    other = signature_of(NODES["softmax"])
    judge._answers.by_signature.clear()
    judge.expected(other, judge.points(kernel("slow"), other, SIZES)[0])
    points = judge.points(kernel("slow"), RELU, SIZES)
    first = judge.expected(RELU, points[0])
    assert first is not None and {RELU, other} == set(judge._answers.by_signature)
    largest = max(array.nbytes for point in points for array in (judge.expected(RELU, point) or {}).values())
    monkeypatch.setattr(oracle_cache, "MOST_IN_USE", 3 * largest)
    for point in points:
        judge.expected(RELU, point)
        judge.rounding(RELU, point)
    cached = judge._answers.of(RELU)
    assert set(judge._answers.by_signature) == {RELU} and 0 < judge._answers._nbytes() <= oracle_cache.MOST_IN_USE
    assert sum(array.nbytes for kept in cached.rounding.values() for array in kept.values()) <= oracle_cache.MOST_IN_USE
    again = judge.expected(RELU, points[0])
    assert again is not None and all(np.array_equal(first[name], again[name], equal_nan=True) for name in first)


def test_a_small_comparison_is_not_waited_for_as_long_as_a_large_one(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small work: seconds, not JOB_SECONDS. What takes the oracle a second, or was given a time: as long as ever."""
    with Judge(shared) as judge:
        points = judge.points(kernel("slow"), RELU, SIZES)
        small = judge.limit(RELU, points, None)
        assert small is not None and judging.LEAST_WAIT < small < JOB_SECONDS / 2
        judge._answers.of(RELU).took[points[0].values] = 1.0
        assert judge.limit(RELU, points, None) == JOB_SECONDS
        monkeypatch.setattr(judging, "LEAST_WAIT", 0.5)
        monkeypatch.setattr(judging, "SLOWER", 1.0)
        judge._answers.by_signature.clear()
        begun = time.monotonic()
        verdict = judge.examine(kernel("spins_deaf_to_signals"), RELU, SIZES)
        assert verdict.status == "TIMEOUT" and "no answer within" in verdict.log and time.monotonic() - begun < 20
    with Judge(shared, timeout=30.0) as judge:
        assert judge.limit(RELU, points, None) is None


def gone(process: int) -> bool:
    """Does this process end within five seconds (or is it a mere entry that nobody has asked about)?"""
    for _ in range(250):
        try:
            if "\nState:\tZ" in Path(f"/proc/{process}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def test_a_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text("import time\nfrom tensor_graphs.measure.isolation.worker_process import WorkerProcess\n"
                      "w = WorkerProcess()\n"
                      "print(w._start(), flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(worker)


def test_ctrl_c_in_the_middle_of_a_job_leaves_no_worker_behind(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with Judge(shared, timeout=30.0) as judge:
        assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"
        process, supervisor = judge.worker.pid, judge.worker.supervisor
        assert process is not None and supervisor is not None

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(judge.worker, "_converse", interrupted)
            with pytest.raises(KeyboardInterrupt):
                judge.examine(kernel("slow"), RELU, SIZES)
        assert supervisor.poll() is not None and gone(process)
        assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"


def test_a_kernel_of_a_session_that_is_not_registered_is_refused_and_not_blamed(judge: Judge,
                                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    lost = replace(kernel("right_in_place"), module="__main__")
    monkeypatch.setitem(sys.modules, "__main__", type(sys)("__main__"))
    assert "put it into a file" in str(out_of_reach(lost))
    with pytest.raises(JudgeError, match="interactive session"):
        judge.examine(lost, RELU, SIZES)
    assert unanswered(judge.database, [Question(lost, RELU, SIZES, 1.0)], VERIFIER) == []


def test_a_kernel_with_another_source_in_the_worker_is_refused(judge: Judge) -> None:
    with pytest.raises(KernelError, match="another kernel in the worker"):
        judge.examine(replace(kernel("right_in_place"), source="edited since"), RELU, SIZES)


def test_a_worker_starts_no_worker(shared: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INSIDE, "1")
    with Judge(shared) as judge, pytest.raises(JudgeError, match="a worker may not start another: put that under"):
        judge.examine(kernel("right_in_place"), RELU, SIZES)


def test_an_impossible_time_is_implausible(shared: Database) -> None:
    snail = DeviceRates(bandwidth=1e3, flops=1e3)                   # a device on which no kernel can be as fast as this one
    with Judge(shared, rates=snail) as judge:
        verdict = judge.examine(kernel("right_in_place"), RELU, SIZES, time_at=SIZES, budget=0.02)
        assert verdict.status == "IMPLAUSIBLE" and "at least" in verdict.log
    with Judge(shared) as judge:
        assert judge.examine(kernel("right_in_place"), RELU, SIZES, time_at=SIZES, budget=0.02).status == "PASSED"


def test_a_time_is_stored_beside_the_plain_path_of_the_same_run(judge: Judge) -> None:
    softmax = signature_of(NODES["softmax"])
    for name in ("c.softmax", "numpy.softmax"):
        found = kernel_named(name)
        asked = [Question(found, softmax, SIZES, 1.0)]
        assert [s for _, s in answer(judge, asked, budget=60.0, per_kernel=0.05)] == ["PASSED"]
        rows = queries.latest_traces(judge.database, environment_of(found.backend))
        row = rows[found.identity, timed_workload(softmax, SIZES).key]
        (full,) = queries.evidence(judge.database, row.trace_id)
        assert full.baseline == PLAIN and full.baseline_ms is not None and full.baseline_ms > 0
        assert full.speedup_factor == pytest.approx(full.baseline_ms / full.median_ms)
        assert full.tolerance == 1e-4 and full.sample_count >= 5 and full.verifier == VERIFIER


def test_a_long_measurement_is_spread_over_fresh_processes(judge: Judge) -> None:
    def processes(budget: float) -> tuple[int, int]:
        before = judge.worker.starts
        verdict = judge.examine(kernel("right_in_place"), RELU, SIZES, time_at=SIZES, budget=budget, verify=False)
        assert verdict.status == "PASSED" and verdict.plain
        return verdict.timing["wall"]["processes"], judge.worker.starts - before

    judge.ready()
    assert processes(PROCESS_SECONDS) == (1, 0)
    assert processes(3 * PROCESS_SECONDS) == (3, 3)


@pytest.mark.parametrize("rates", [DeviceRates(1e6, 1e15), DeviceRates(1e15, 1e6)], ids=["slow memory", "slow arithmetic"])
def test_what_a_time_is_divided_by_hangs_on_the_work_alone(shared: Database, rates: DeviceRates,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "IMPLAUSIBLE_FACTOR", float("inf"))
    rows = tg.input("x", (512, 256), tg.f32)
    nodes = {"read": tg.softmax(rows), "arithmetic": tg.linear(rows, tg.input("w", (512, 256), tg.f32))}
    with Judge(shared, rates=rates) as judge:
        for kind, node in nodes.items():
            found = kernel_named(f"numpy.{node.op.name}")
            signature = signature_of(node)
            assert judge._timing(JudgeTask(found, signature, {}, {}), 0.02, 0.01, baseline=False).reference == kind
            for _ in range(3):                                      # on a busy machine honest times are IMPLAUSIBLE for a moment
                verdict = judge.examine(found, signature, {}, time_at={}, budget=0.02, verify=False)
                if verdict.status != "IMPLAUSIBLE":
                    break
            assert verdict.status == "PASSED" and verdict.timing["reference"]["kind"] == kind


@pytest.mark.usefixtures("waiting")
def test_workers_that_find_no_quiet_are_made_up_for_as_often_again(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "found_quiet", lambda workers: len(workers) - 1)
    one_more = judge.examine(kernel("right_in_place"), RELU, SIZES, time_at=SIZES, budget=2 * PROCESS_SECONDS, verify=False)
    monkeypatch.setattr(judging, "found_quiet", lambda workers: 0)
    never = judge.examine(kernel("right_in_place"), RELU, SIZES, time_at=SIZES, budget=2 * PROCESS_SECONDS, verify=False)
    assert [v.timing["wall"]["processes"] for v in (one_more, never)] == [3, 4]
    monkeypatch.setenv(SHARED, "1")
    shared = judge.examine(kernel("right_in_place"), RELU, SIZES, time_at=SIZES, budget=2 * PROCESS_SECONDS, verify=False)
    assert shared.timing["wall"]["processes"] == 2


def test_kernels_that_are_measured_in_turns_get_a_verdict_each(judge: Judge) -> None:
    asked = [JudgeTask(kernel(name), RELU, SIZES, SIZES) for name in ("right_in_place", "raises", "one_percent_off")]
    asked.append(JudgeTask(kernel("right_in_place"), RELU, SIZES))
    found = judge.examine_interleaved(asked, budget=2 * PROCESS_SECONDS)
    assert [v.status for v in found] == ["PASSED", "RUNTIME_ERROR", "INCORRECT_NUMERICAL", "PASSED"]
    assert found[0].timing["wall"]["processes"] == 2 and not found[3].timing


def test_when_the_time_is_over_every_kernel_has_been_measured_once_and_no_further_part_is_begun(judge: Judge) -> None:
    asked = [JudgeTask(kernel("right_in_place"), RELU, SIZES, SIZES, verify) for verify in (True, False)]
    found = judge.examine_interleaved(asked, budget=3 * PROCESS_SECONDS, until=time.perf_counter())
    assert [v.status for v in found] == ["PASSED", "PASSED"]
    assert [v.timing["wall"]["processes"] for v in found] == [1, 1] and all(v.plain for v in found)


def test_rows_of_one_number_of_threads_are_not_those_of_another() -> None:
    assert environment_of("c").key() != environment_of("c", 1).key() != environment_of("c", 2).key()


@pytest.mark.parametrize("big", [1.0, 2.5e8])
def test_no_kernel_is_judged_at_no_point_at_all(judge: Judge, monkeypatch: pytest.MonkeyPatch, big: float) -> None:
    """An op that is large at every size, or has but one, is compared nevertheless: on two values at the least."""
    monkeypatch.setattr("tensor_graphs.measure.judge.BIG_TRAFFIC", big)
    one_size = tg.linear(tg.input("x", (3, 5), tg.f32), tg.input("w", (4, 5), tg.f32))
    for node in (one_size, tg.iota((7,), dtype=tg.f32), NODES["dot"]):
        signature = signature_of(node)
        points = judge.points(kernel("slow"), signature, dict.fromkeys(signature.dim_names, 20))
        assert len({p.seed for p in points}) >= 2
        assert any(p.like is not None for p in points) and all(judge.expected(signature, p) is not None for p in points)


def test_two_dims_never_have_the_same_sizes_throughout(judge: Judge) -> None:
    signature = signature_of(NODES["dot"])
    sizes = [p.binding for p in judge.points(kernel("slow"), signature, {"n": 20, "m": 20})]
    assert any(s["n"] < s["m"] for s in sizes) and any(s["n"] > s["m"] for s in sizes)
    assert {1, 2} <= {s["n"] for s in sizes} and max(s["n"] for s in sizes) == 96


def test_a_signature_with_its_dims_in_other_places_gets_answers_of_its_own(judge: Judge) -> None:
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    x, y = tg.input("x", (n, 8), tg.f32), tg.input("y", (m, 8), tg.f32)
    verdicts = [judge.examine(kernel_named("numpy.linear"), signature_of(product), {"n": 20, "m": 7})
                for product in (tg.linear(x, y), tg.linear(y, x))]
    assert [v.status for v in verdicts] == ["PASSED"] * 2, verdicts[-1].log


def test_sizes_that_do_not_go_together_are_left_out(judge: Judge) -> None:
    n, m = tg.dim("n", 1, 40), tg.dim("m", 1, 40)
    signature: Signature = signature_of(tg.pad(tg.input("x", (n,), tg.f32), ((0, m - n),)))    # has a value for m ≥ n only
    points = judge.points(kernel("slow"), signature, {"n": 5, "m": 9})
    assert points and all(p.binding["m"] >= p.binding["n"] for p in points)


def test_other_values_keep_the_ends_and_the_integers(judge: Judge) -> None:
    points = judge.points(kernel("slow"), RELU, SIZES)
    other = next(p for p in points if p.like is not None)
    first = next(p for p in points if p.seed == other.like and p.form == "apart")
    a, b = (point_inputs(RELU.graph, p)["x0"].reshape(-1) for p in (first, other))
    assert a[0] == b[0] and a[-1] == b[-1] and np.mean(a != b) > 0.5


def test_guards_show_a_write_on_either_side() -> None:
    for offset, where in ((-1, "before"), (0, "behind")):
        g = Guarded((3, 5), np.dtype(np.float32))
        g.poison()
        assert g.overrun() == "" and set(g.bytes) <= {*POISONS}
        (g.before if offset else g.after)[offset] = GUARD ^ 1
        assert where in g.overrun()
        assert len(g.before) == len(g.after) == GUARD_BYTES


def test_the_digest_of_large_operands_sees_one_changed_bit() -> None:
    a = np.zeros((1 << 20) + 3, dtype=np.float64)
    before = digest({"a": a})
    for at in (0, 12345, len(a) - 1):
        a[at] = 5e-324
        assert digest({"a": a}) != before
        a[at] = 0.0
    assert digest({"a": a}) == before


def test_the_supervisor_sleeps_while_its_worker_has_work(judge: Judge) -> None:
    assert judge.examine(kernel("right_in_place"), RELU, SIZES).status == "PASSED"
    assert judge.worker.supervisor is not None
    clock = Path(f"/proc/{judge.worker.supervisor.pid}/stat")

    def worked() -> float:
        fields = clock.read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = worked()
    time.sleep(0.5)
    assert worked() - before <= 0.1


def test_the_compiler_of_our_own_library_is_no_process_of_a_kernel(tmp_path: Path) -> None:
    """A worker that loads a backend on an empty cache has its libraries compiled by a thread meanwhile."""
    file = tmp_path / "silu.tg"
    file.write_text("tg 1\ninput x f32[8, 64]\noutput out = silu(x)\n")
    slow = tmp_path / "cc"                                          # it takes long, and little of the processor
    slow.write_text('#!/bin/sh\ncase "$*" in *" -o "*) sleep 1;; esac\nexec cc "$@" -O0\n')
    slow.chmod(0o755)
    empty = {name: str(tmp_path / name) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")} | {"CC": str(slow)}
    done = subprocess.run([str(Path(sys.executable).parent / "tg"), "explain", str(file), "--backends", "c,gen,numpy"],
                          env={**os.environ, **empty}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "refused" not in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("wrong", "compared"), [(None, 1), (1, 2), (2, 2)])
def test_outputs_that_come_again_bit_by_bit_are_not_compared_again(judge: Judge, monkeypatch: pytest.MonkeyPatch, wrong: int | None,
                                                                  compared: int) -> None:
    signature, calls, point = signature_of(NODES["relu"]), [], Point((("n", 5),), 7)
    compare = judging.Judge._compare
    monkeypatch.setattr(judging.Judge, "_compare", lambda *given, **more: (calls.append(1), compare(*given, **more))[1])
    right = judge.expected(signature, point)
    assert right is not None
    (name, expected), *_ = right.items()
    hearing = judging._Dialogue(judge, signature, [point] * 3, None, judge.worker)
    outputs = np.stack([expected.astype(np.float32)] * 3)
    if wrong is not None:
        outputs[wrong].flat[-1] += 1
    hearing._kept, hearing._shown = outputs.reshape(-1).view(np.uint8), (ReportedOutput({name: expected.shape}, (), False),) * 3
    verdict = hearing.compared()
    assert (verdict is None) == (wrong is None) and len(calls) == compared
    assert verdict is None or verdict.status == "INCORRECT_NUMERICAL"


def test_points_with_large_outputs_are_several_jobs_and_what_needs_the_same_addresses_stays_with_its_point() -> None:
    big = 100 << 20
    signature = signature_of(tg.relu(tg.input("x", (tg.dim("n", 1, big // 4),), tg.f32)))
    many, few = (("n", big // 4),), (("n", 8),)
    (name,) = signature.dim_names
    a, b, c = (Point(((name, n),), seed) for (_, n), seed in ((many[0], 1), (few[0], 2), (many[0], 3)))
    other = replace(a, seed=9, like=1)
    points = [a, a, a, other, b, c, b, c]
    jobs = judging._jobs(signature, points)
    assert [p for job in jobs for p in job] == points and jobs == [[a, a, a, other], [b, c, b, c]]
    assert judging._jobs(signature, [b] * 50) == [[b] * 50] and judging._jobs(signature, []) == [[]]


def test_errors_and_points_of_all_jobs_of_a_question_are_in_its_verdict(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tg.exp(tg.input("x", (tg.dim("n", 1, 64), 8), tg.f32))
    kernel, signature = kernel_named("numpy.exp"), signature_of(node)
    monkeypatch.setattr(judging, "refuse_replaced", lambda: None)
    whole = judge.examine(kernel, signature, {"n": 16})
    monkeypatch.setattr(judging, "AT_ONCE", 600)
    heard = []
    at = judging.Judge._run_job
    monkeypatch.setattr(judging.Judge, "_run_job", lambda *given: heard.append(at(*given)) or heard[-1])
    apart = judge.examine(kernel, signature, {"n": 16})
    assert len(heard) > 3 and apart.status == whole.status == "PASSED"
    assert (apart.error, apart.covered) == (whole.error, whole.covered)
