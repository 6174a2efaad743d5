"""The queue: what was asked for is measured, once; what cannot be is put back with its reason; nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensor_graphs as tg
from benchmarks.kill_the_profiler import ask, kill_at_random
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.costs.database_keys import environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.costs.stored_graph_check import why_no_graph
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.points.input_descriptors import read_descriptor
from tensor_graphs.measure.queue import requests as queue
from tensor_graphs.measure.queue.requests import drain_queue, reclaim, settle_queue, worker_name
from tensor_graphs.records import DatabaseFull, queries, upkeep, work_queue
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import ProfileRequest

N, M = tg.dim("n", 1, 32), tg.dim("m", 1, 32)
SOFTMAX = signature_of(tg.softmax(tg.input("x", (N, 8), tg.f32)))
DOT = signature_of(tg.dot(tg.input("x", (N, M), tg.f32), tg.input("y", (M, 6), tg.f32)))
FIXED = signature_of(tg.softmax(tg.input("x", (4, 8), tg.f32)))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "bench.db") as made:
        yield made


def request(database: Database, kernel_name: str, signature: Signature, at: dict[str, int], **changes: str) -> ProfileRequest:
    kernel = kernel_named(kernel_name)
    database.ensure_graph(graph_record(signature))
    return ProfileRequest(replace(implementation_of(kernel), **changes), timed_workload(signature, at),  # type: ignore[arg-type]
                          environment_of(kernel.backend), 1.0, "asked for by a test")


def test_what_draining_reports_to_can_be_called(database: Database) -> None:
    with pytest.raises(ArgumentError, match=r"^on_step is 3, which cannot be called\n  fix: a function of how many are done, "):
        drain_queue(database, on_step=3)  # type: ignore[arg-type]


def test_draining_measures_every_request_at_its_sizes_and_empties_the_queue(database: Database) -> None:
    asked = [("numpy.softmax", SOFTMAX, {"n": 7}), ("numpy.softmax", FIXED, {}), ("numpy.dot", DOT, {"n": 3, "m": 11})]
    database.enqueue(*(request(database, *each) for each in asked))
    report = drain_queue(database, backends=("numpy",))
    assert (report.measured, report.failed, report.left) == (3, 0, 0) and report.statuses == {"PASSED": 3}
    rows = queries.latest_traces(database, environment_of("numpy"))
    for name, signature, at in asked:
        assert rows[kernel_named(name).identity, timed_workload(signature, at).key].median_ms is not None
    assert upkeep.stats(database).waiting == 0
    assert drain_queue(database, backends=("numpy",)).measured == 0


def test_a_request_on_a_tensor_of_a_file_is_measured_on_it_and_put_back_when_the_file_is_gone(database: Database,
                                                                                              tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"x": np.ones((4, 8), np.float32)}, file)
    workload = timed_workload(FIXED, {}, (("x0", read_descriptor("x0", f"{file}:x")),))
    asked = replace(request(database, "numpy.softmax", FIXED, {}), workload=workload)
    database.enqueue(asked)
    assert drain_queue(database, backends=("numpy",)).measured == 1
    key = kernel_named("numpy.softmax").identity, workload.key
    assert queries.latest_traces(database, environment_of("numpy"))[key].median_ms is not None
    lost = timed_workload(FIXED, {}, (("x0", read_descriptor("x0", f"{tmp_path / 'gone.safetensors'}:x")),))
    database.enqueue(replace(asked, workload=lost))
    report = drain_queue(database, backends=("numpy",))
    assert (report.measured, report.failed, report.impossible, report.left) == (0, 0, 1, 1)


def test_a_request_that_was_answered_meanwhile_is_not_measured_again(database: Database) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    drain_queue(database, backends=("numpy",))
    traces = upkeep.stats(database).rows["benchmark_traces"]
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    report = drain_queue(database, backends=("numpy",))
    assert (report.answered, report.measured, report.left) == (1, 0, 0)
    assert upkeep.stats(database).rows["benchmark_traces"] == traces


def test_settling_takes_off_what_has_rows_and_leaves_the_rest(database: Database) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    drain_queue(database, backends=("numpy",))
    database.enqueue(*(request(database, "numpy.softmax", SOFTMAX, {"n": n}) for n in (6, 7, 8)))
    assert settle_queue(database, ("numpy",)) == 1
    stats = upkeep.stats(database)
    assert stats.waiting == 2 and stats.claimed == 0 and stats.abandoned == 0


def test_a_request_for_code_that_has_changed_is_dropped_and_one_for_unknown_code_put_back(database: Database) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}, source_hash="0" * 64),
                     request(database, "numpy.softmax", SOFTMAX, {"n": 7}, source_hash="1" * 64, name="somebody.softmax"),
                     request(database, "numpy.softmax", SOFTMAX, {"n": 5}))
    report = drain_queue(database, backends=("numpy",))
    assert (report.obsolete, report.impossible, report.measured, report.left) == (1, 1, 1, 1)


def test_the_budget_ends_the_drain_and_the_rest_stays(database: Database) -> None:
    database.enqueue(*(request(database, "numpy.softmax", SOFTMAX, {"n": n}) for n in (4, 5, 6)))
    report = drain_queue(database, backends=("numpy",), budget=0.0)
    assert report.measured == 0 and report.left == 3


@pytest.mark.parametrize("how", [KeyboardInterrupt, RuntimeError])
def test_whatever_stops_the_drain_gives_the_request_back(database: Database, monkeypatch: pytest.MonkeyPatch,
                                                         how: type[BaseException]) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))

    def stop(*_: object) -> None:
        raise how

    monkeypatch.setattr(queue, "_serve", stop)
    if how is KeyboardInterrupt:
        assert drain_queue(database, backends=("numpy",)).interrupted
    else:
        with pytest.raises(how):
            drain_queue(database, backends=("numpy",))
    stats = upkeep.stats(database)
    assert stats.waiting == 1 and stats.claimed == 0


def test_a_request_that_the_judge_failed_over_is_put_back(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    monkeypatch.setattr(queue, "_serve", lambda *given: JUDGE_ERROR)
    report = drain_queue(database, backends=("numpy",))
    assert (report.impossible, report.failed, report.left) == (1, 0, 1) and upkeep.stats(database).claimed == 0


def test_a_request_that_takes_longer_than_its_lease_stays_with_its_worker(database: Database,
                                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    renewing = work_queue.renewing
    monkeypatch.setattr(work_queue, "renewing", lambda database: renewing(database, 0.03))
    renewals: list[bool] = []
    renew = work_queue.renew

    def count(*given: Any) -> bool:
        renewals.append(renew(*given))
        return renewals[-1]

    def slow(*_: object) -> str:
        while len(renewals) < 5:                                    # a thread of the drain renews its claim
            time.sleep(0.01)
        return "PASSED"

    monkeypatch.setattr(work_queue, "renew", count)
    monkeypatch.setattr(queue, "_serve", slow)
    assert drain_queue(database, backends=("numpy",)).measured == 1
    assert all(renewals) and upkeep.stats(database).waiting == 0


def test_what_another_worker_has_claimed_meanwhile_is_not_filed_twice(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.enqueue(request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    monkeypatch.setattr(work_queue, "renew", lambda *_: False)
    report = drain_queue(database, backends=("numpy",))
    assert (report.answered, report.measured, report.failed) == (1, 0, 0)
    assert not queries.latest_traces(database, environment_of("numpy"))


def test_nothing_is_lost_when_profilers_and_workers_are_killed(tmp_path: Path) -> None:
    """benchmarks/kill_the_profiler.py does the same two hundred times."""
    report = kill_at_random(tmp_path / "bench.db", kills=5, questions=9, seed=3, longest=1.5)
    assert report.wrong == []
    assert sum(report.killed.values()) >= 5 or report.ended_before
    assert report.rows == 18                                        # of each question the verdict, and the time


def test_what_a_dead_process_of_this_machine_claimed_is_free_at_once(tmp_path: Path) -> None:
    with open_database(tmp_path / "bench.db") as database:
        ask(database, 2)
        dead = subprocess.Popen([sys.executable, "-c", "pass"])
        dead.wait()
        mine = worker_name()
        gone = mine.replace(f":{os.getpid()}:", f":{dead.pid}:")
        elsewhere = mine.replace(mine.split(":")[0], "another.machine", 1)
        assert work_queue.claim_next(database, gone, environment_of("numpy")) is not None
        assert work_queue.claim_next(database, elsewhere, environment_of("numpy")) is not None
        assert reclaim(database) == 1
        assert work_queue.claimants(database) == [elsewhere]
        again = work_queue.claim_next(database, mine, environment_of("numpy"))
        assert again is not None and again.attempts == 2
        assert reclaim(database) == 0


def test_a_drain_says_what_is_left_and_what_it_is_worth(database: Database) -> None:
    ask(database, 3)                                                # worth 3, 2 and 1 seconds
    said: list[tuple[int, float]] = []
    drain_queue(database, backends=("numpy",), on_step=lambda done, left, what: said.append((left.requests, left.seconds)))
    assert said == [(2, 3.0), (1, 1.0), (0, 0.0)]


def test_what_is_not_possible_here_costs_no_attempt_however_often_a_worker_tries(database: Database) -> None:
    other = {"source_hash": "1" * 64, "name": "somebody.softmax"}
    database.enqueue(*(request(database, "numpy.softmax", SOFTMAX, {"n": n}, **other) for n in (5, 6, 7)))
    for _ in range(6):
        report = drain_queue(database, backends=("numpy",))
        assert (report.impossible, len(report.reasons), report.left) == (3, 1, 3)
    assert report.reasons[0].startswith("request 1, somebody.softmax on ") and "'somebody.softmax'" in report.reasons[0]
    (left,) = report.queue
    assert (left.waiting, left.abandoned) == (3, 0)


@pytest.mark.parametrize("damage", ["UPDATE canonical_graphs SET text = 'tg 99 nonsense' WHERE human_name = 'dot'",
                                    "UPDATE workloads SET axes_json = '{\"d0\": -4, \"d1\": 2}' WHERE axes_json LIKE '%d1%'"])
def test_a_request_that_does_not_load_is_put_back_with_the_reason_and_the_drain_goes_on(database: Database, damage: str) -> None:
    database.enqueue(replace(request(database, "numpy.dot", DOT, {"n": 3, "m": 11}), priority=9.0),
                     request(database, "numpy.softmax", SOFTMAX, {"n": 7}))
    with database.writing() as connection:
        connection.exec_driver_sql(damage)
    report = drain_queue(database, backends=("numpy",))
    assert (report.measured, report.impossible, report.left) == (1, 1, 1)
    assert report.reasons[0].startswith("request 1, numpy.dot on ")
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT attempts, last_error FROM profile_queue").one()[0] == 0
    assert not upkeep.check(database, reads=why_no_graph).ok


def test_a_drain_that_the_database_ends_says_what_it_has_done(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.enqueue(*(request(database, "numpy.softmax", SOFTMAX, {"n": n}) for n in (5, 6)))
    served = iter(["PASSED"])

    def serve(*_: object) -> str:
        try:
            return next(served)
        except StopIteration:
            raise DatabaseFull("no room\n  fix: free disk space") from None

    monkeypatch.setattr(queue, "_serve", serve)
    with pytest.raises(DatabaseFull, match="^no room\n  fix: free disk space\n  before that: 1 measured, .* the same call goes on"):
        drain_queue(database, backends=("numpy",))


def test_a_drain_says_what_is_left_of_which_environment(database: Database) -> None:
    asked = request(database, "numpy.softmax", SOFTMAX, {"n": 7})
    elsewhere = replace(asked.environment, hardware_name="Another CPU")
    database.enqueue(replace(asked, environment=elsewhere))
    report = drain_queue(database, backends=("numpy",))
    assert report.left == 1 and [(q.environment, q.waiting) for q in report.queue] == [(elsewhere, 1)]
    assert report.here == (environment_of("numpy"),)
