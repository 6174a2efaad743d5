"""upkeep: damage is found, space is given back, and what is counted is what is there."""

from __future__ import annotations

import sqlite3

from tensor_graphs.records import ProfileRequest, SourceRecord, upkeep, work_queue


def test_check_finds_a_dangling_reference_and_a_changed_source(database, make) -> None:
    database.add_trace(make.trace(make.kernel(sources=(SourceRecord("k.c", "int x;", trusted=True),))))
    assert upkeep.check(database).ok
    raw = sqlite3.connect(database.location)
    raw.execute("UPDATE implementation_sources SET content = 'int y;'")
    raw.execute("UPDATE benchmark_traces SET sample_count = 7")
    raw.execute("DELETE FROM workloads")  # foreign keys are off in a connection that did not ask for them
    raw.commit()
    raw.close()
    report = upkeep.check(database)
    assert not report.ok
    text = "\n".join(report.problems)
    assert "benchmark_traces points to a row of workloads that is not there" in text
    assert "7 samples were announced, 3 are there" in text
    assert "its text is not the text that was stored" in text


def test_vacuum_gives_space_back_and_keeps_the_rows(database, make) -> None:
    database.add_traces(make.trace(log=str(list(range(20_000)))) for _ in range(30))
    raw = sqlite3.connect(database.location)
    raw.execute("UPDATE benchmark_traces SET full_log = NULL")
    raw.commit()
    raw.close()
    assert upkeep.vacuum(database) > 100_000
    assert upkeep.stats(database).rows["benchmark_traces"] == 30
    assert upkeep.check(database).ok


def test_stats_count_rows_statuses_and_the_queue(database, make) -> None:
    database.add_traces([make.trace(), make.trace(status="TIMEOUT")])
    database.enqueue(*(ProfileRequest(make.kernel(), make.workload(batch), make.here) for batch in range(3)))
    assert work_queue.claim_next(database, "w", make.here) is not None
    stats = upkeep.stats(database)
    assert stats.traces_by_status == {"PASSED": 1, "TIMEOUT": 1}
    assert (stats.waiting, stats.claimed, stats.abandoned) == (2, 1, 0)
    assert stats.file_bytes > 0 and stats.oldest <= stats.newest


# -- the queue ---------------------------------------------------------------------------------------------------------
