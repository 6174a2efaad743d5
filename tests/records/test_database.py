"""database: every write is whole, happens once, and survives the death of any process."""

from __future__ import annotations

import math
import multiprocessing
import sqlite3
import threading
import time
import zlib
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tensor_graphs.records import (
    DefinitionRecord,
    DeviceConstant,
    InvalidRecord,
    MissingRecord,
    ProfileRequest,
    SourceRecord,
    open_database,
    queries,
    schema,
    upkeep,
)
from tensor_graphs.records.logs import LOG_BYTES, compress_log, decompress_log


def test_storing_the_same_thing_twice_stores_it_once(database, make) -> None:
    for again in range(2):
        if again:
            database._forget()  # the second time through the tables, not through the cache of ids
        assert database.ensure_graph(make.graph) == 1
        assert database.ensure_environment(make.here) == 1
        assert database.ensure_workload(make.workload()) == 1
        assert database.ensure_implementation(make.kernel(sources=(SourceRecord("k.c", "int x;"),))) == 1
        definition = DefinitionRecord("tanh_16", make.graph.structural_key, {"n": {"type": "var"}}, tags=("a",))
        assert database.ensure_definition(definition) == 1
    rows = upkeep.stats(database).rows
    assert (rows["environments"], rows["workloads"], rows["implementations"], rows["definitions"]) == (1, 1, 1, 1)
    assert rows["implementation_sources"] == 1


def test_a_trace_comes_back_as_it_was_given(database, make) -> None:
    when = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    given = make.trace(
        samples_ms=(0.1, 0.25, 0.30000000000000004),
        p999_relative_error=9e-8,
        norm_error=1e-8,
        max_absolute_error=2e-7,
        tolerance=1e-5,
        baseline="plain",
        baseline_ms=0.5,
        seed=-(2**63),
        timer="perf_counter",
        verifier="1",
        timestamp=when,
        log="línea 1\nline 2\n",
        conditions={"load": 0.5},
    )
    trace_id = database.add_trace(given)
    (row,) = queries.history(database, given.implementation.source_hash)
    for name in (
        "median_ms", "spread", "max_relative_error", "p999_relative_error", "norm_error", "max_absolute_error",
        "tolerance", "baseline", "baseline_ms", "speedup_factor", "seed", "timer", "verifier", "kind", "status",
        "timestamp",
    ):  # fmt: skip
        assert getattr(row, name) == getattr(given, name), name
    assert row.timestamp.tzinfo is UTC
    assert (row.axes, row.workload_key) == (given.workload.axes, given.workload.key)
    assert (row.environment_key, row.graph_key) == (make.here.key(), make.graph.structural_key)
    assert row.speedup_factor == row.baseline_ms / row.median_ms
    assert queries.samples(database, trace_id) == given.samples_ms
    assert queries.read_log(database, trace_id) == given.log


def test_a_batch_with_one_bad_trace_stores_nothing(database, make) -> None:
    unknown = make.workload()
    object.__setattr__(unknown, "graph_key", "nobody")
    with pytest.raises(MissingRecord, match="refers to the canonical graph nobody") as caught:
        database.add_traces([make.trace(), make.trace(make.kernel("other")), make.trace(workload=unknown)])
    assert "fix: store the graph first (ensure_graph)" in str(caught.value)
    assert upkeep.stats(database).rows["benchmark_traces"] == 0
    assert upkeep.stats(database).rows["implementations"] == 0
    assert database.add_traces([make.trace()]) == (1,)  # no id of the rolled back rows was kept


def test_two_kernels_under_one_source_hash_are_refused_as_one_would_pass_for_the_other(database, make) -> None:
    database.add_trace(make.trace(make.kernel("softmax", source_hash="whole file")))
    with pytest.raises(InvalidRecord, match="'softmax' and 'gelu' have one source hash") as caught:
        database.add_trace(make.trace(make.kernel("gelu", source_hash="whole file")))
    assert "fix: hash the text of the function" in str(caught.value)
    assert upkeep.stats(database).rows["benchmark_traces"] == 1


def test_an_implementation_of_an_unknown_graph_is_refused(database, make) -> None:
    with pytest.raises(MissingRecord, match="implementation 'k' refers to the canonical graph nobody"):
        database.ensure_implementation(make.kernel("k", graph_key="nobody"))


def test_trusting_an_unknown_implementation_is_refused(database) -> None:
    with pytest.raises(MissingRecord, match="has no implementation of the signature 1234"):
        upkeep.trust(database, "1234")


def test_a_long_log_keeps_both_ends_and_says_what_is_missing() -> None:
    text = "first line\n" + "x" * (2 * LOG_BYTES) + "\nlast line"
    kept = decompress_log(compress_log(text))
    assert kept.startswith("first line") and kept.endswith("last line")
    assert "bytes left out" in kept
    assert len(kept) < LOG_BYTES + 100
    assert compress_log("") is None and decompress_log(None) == ""
    assert len(compress_log("same " * 10_000)) < 1000


def test_the_newest_device_constant_counts(database, make) -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    database.add_constants(make.here, [DeviceConstant("read_bandwidth", 54e9, "byte/s", timestamp=late)])
    database.add_constants(make.here, [DeviceConstant("read_bandwidth", 32e9, "byte/s", timestamp=early)])
    database.add_constants(make.here, [DeviceConstant("read_bandwidth", 4e12, "byte/s", device="cuda:0")])
    assert queries.constants(database, make.here)["read_bandwidth"].value == 54e9
    assert queries.constants(database, make.here, "cuda:0")["read_bandwidth"].value == 4e12
    assert queries.constants(database, "another environment") == {}


def test_threads_that_store_the_same_things_agree_on_the_rows(database, make) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(5):
                database.add_trace(make.trace(make.kernel(f"k{step}"), workload=make.workload(step)))
                queries.latest_traces(database, make.here)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    rows = upkeep.stats(database).rows
    assert (rows["benchmark_traces"], rows["implementations"], rows["workloads"]) == (20, 5, 5)


def _child(database, trace, answer) -> None:
    answer.put(database.add_trace(trace))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_writes_through_connections_of_its_own(database, make) -> None:
    database.add_trace(make.trace())
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    child = context.Process(target=_child, args=(database, make.trace(), answer))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answer.get() == 2
    assert database.add_trace(make.trace()) == 3
    assert upkeep.check(database).ok


FIRST_USE = """
import sys, time
from tensor_graphs.records import GraphRecord, database
print("ready", flush=True)
while time.time() < float(sys.argv[2]):
    time.sleep(0.001)
with database.open_database(sys.argv[1]) as opened:
    print(opened.ensure_graph(GraphRecord("same", "", "")), opened.revision())
"""


@pytest.mark.processes
def test_four_processes_that_use_a_new_file_first_do_not_race(tmp_path, start) -> None:
    path, moment = tmp_path / "new" / "b.db", time.time() + 2
    processes = [start(FIRST_USE, path, moment) for _ in range(4)]
    for process in processes:
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        assert out.split() == ["ready", "1", schema.REVISION]
    with open_database(path) as opened:
        assert upkeep.check(opened).ok
        assert upkeep.stats(opened).rows["canonical_graphs"] == 1


WORKER = """
import sys, time
from sqlalchemy import event
from tensor_graphs.records import TraceRecord, open_database, upkeep, work_queue
path, name, environment, stall_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
database, done, completing = open_database(path), 0, False

@event.listens_for(database.engine, "connect")
def small_cache(connection, _):
    connection.execute("PRAGMA cache_size = 2")  # so that an unfinished transaction is already in the file

@event.listens_for(database.engine, "commit")
def stall(connection):
    if completing and done == stall_at:
        print("mid-write", flush=True)
        time.sleep(600)

database.close()  # reconnect, with the small cache
while upkeep.stats(database).rows["profile_queue"]:
    item = work_queue.claim_next(database, name, environment, lease_seconds=2)
    if item is None:
        time.sleep(0.05)
        continue
    log = f"{name} " + " ".join(str(hash((name, i))) for i in range(1500))
    traces = [
        TraceRecord(item.implementation, item.workload, item.environment, kind, "PASSED",
                    tuple(float(i) for i in range(500)), max_relative_error=1e-7, log=log)
        for kind in ("cold", "hot")
    ]
    completing = True
    work_queue.complete(database, item, traces)
    completing = False
    done += 1
    print("stored", item.workload.key, flush=True)
"""


@pytest.mark.processes
def test_a_worker_killed_in_the_middle_of_a_write_costs_nothing(database, make, start) -> None:
    """Two processes drain one queue; one is killed between its INSERTs and its COMMIT, with the write lock held."""
    asked = [make.workload(batch) for batch in range(40)]
    database.enqueue(*(ProfileRequest(make.kernel(), each, make.here) for each in asked))
    victim = start(WORKER, database.location, "victim", make.here.key(), 3)
    survivor = start(WORKER, database.location, "survivor", make.here.key(), -1)
    told = []
    for line in victim.stdout:
        told.append(line.strip())
        if told[-1] == "mid-write":
            break
    assert told[-1:] == ["mid-write"], victim.stderr.read()
    time.sleep(0.2)  # the survivor now waits for the lock
    assert survivor.poll() is None
    held = [item for item in _queue(database) if item[1] == "victim"]
    assert len(held) == 1
    victim.kill()
    out, error = survivor.communicate(timeout=60)
    assert survivor.returncode == 0, error

    assert upkeep.check(database).problems == ()
    known = {each.workload_key: each for each in queries.history(database, make.kernel().source_hash)}
    assert set(known) == {each.key for each in asked}
    raw = sqlite3.connect(database.location)
    rows = raw.execute("SELECT workload_id, kind, samples_ms, full_log FROM benchmark_traces").fetchall()
    raw.close()
    assert len(rows) == 2 * len(asked)  # each pair of traces exactly once: nothing lost, nothing half, nothing twice
    assert len({(work, kind) for work, kind, *_ in rows}) == len(rows)
    writers = [zlib.decompress(log).split()[0].decode() for *_, log in rows]
    assert writers.count("victim") == 2 * 3  # what it had committed before it died is there
    told_by_both = {line.split()[1] for line in [*told, *out.splitlines()] if line.startswith("stored")}
    assert told_by_both == {each.key for each in asked}
    assert upkeep.stats(database).rows["profile_queue"] == 0  # the claim of the dead came back and was measured


def _queue(database) -> list[tuple[int, str]]:
    with database.reading() as connection:
        return [tuple(row) for row in connection.exec_driver_sql("SELECT id, claimed_by FROM profile_queue")]


def test_infinite_errors_survive_the_round_trip(database, make) -> None:
    database.add_trace(make.trace(status="INCORRECT_NUMERICAL", max_relative_error=math.nan, tolerance=1e-5))
    (row,) = queries.history(database, make.kernel().source_hash)
    assert row.max_relative_error == math.inf
