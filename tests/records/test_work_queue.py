"""claims: each request is measured once, whoever dies, and none is handed to two workers at a time."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import pytest
import sqlalchemy as sa

from tensor_graphs.records import ProfileRequest, SourceRecord, queries, schema, upkeep, work_queue
from tensor_graphs.records.errors import DatabaseBusy
from tensor_graphs.records.work_queue import MAX_ATTEMPTS


def test_a_request_is_queued_once_and_the_higher_priority_goes_first(database, make) -> None:
    low, high = (ProfileRequest(make.kernel(), make.workload(batch), make.here, priority=batch) for batch in (1, 2))
    assert database.enqueue(low, high, low) == 2
    assert database.enqueue(ProfileRequest(make.kernel(), make.workload(1), make.here, priority=9, reason="now")) == 0
    assert work_queue.claim_next(database, "w", make.here).workload == make.workload(1)
    assert work_queue.claim_next(database, "w", make.here.key()).workload == make.workload(2)
    assert work_queue.claim_next(database, "w", make.here) is None


def test_a_claimed_item_brings_everything_that_is_needed_to_measure_it(database, make) -> None:
    source = SourceRecord("k.c", "int x;", trusted=True, language="c", origin="ours")
    wanted = make.kernel(requirements={"arch": ["avx512"]}, sources=(source,), numeric_class="bitwise", verbatim="{}")
    database.enqueue(ProfileRequest(wanted, make.workload(4), make.here, 2.5, "missed by the compiler"))
    database.enqueue(ProfileRequest(make.recipe(), make.workload(4), make.here))
    item = work_queue.claim_next(database, "w", make.here)
    assert (item.implementation, item.workload, item.environment) == (wanted, make.workload(4), make.here)
    assert (item.priority, item.reason, item.attempts, item.claimed_by) == (2.5, "missed by the compiler", 1, "w")
    assert item.environment.key() == make.here.key()
    assert work_queue.claim_next(database, "w", make.here).implementation == make.recipe()


def test_draining_the_queue_makes_it_empty_and_leaves_the_traces(database, make) -> None:
    database.enqueue(*(ProfileRequest(make.kernel(), make.workload(batch), make.here) for batch in range(4)))
    while (item := work_queue.claim_next(database, "w", make.here)) is not None:
        assert work_queue.complete(database, item, [make.trace(item.implementation, workload=item.workload)])
    stats = upkeep.stats(database)
    assert (stats.rows["profile_queue"], stats.rows["benchmark_traces"]) == (0, 4)


def test_a_request_for_another_environment_is_not_handed_out(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    assert work_queue.claim_next(database, "w", "another environment") is None


def test_a_renewed_lease_keeps_others_away(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    slow = work_queue.claim_next(database, "slow", make.here, lease_seconds=-1)
    assert work_queue.renew(database, slow)
    assert work_queue.claim_next(database, "other", make.here) is None
    assert work_queue.complete(database, slow)


def _lease_until(database) -> datetime:
    with database.reading() as connection:
        return connection.execute(sa.select(schema.ProfileQueue.lease_until)).scalar_one()


def test_a_thread_renews_claims_for_as_long_as_they_are_listed(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    slow = work_queue.claim_next(database, "slow", make.here)
    first = _lease_until(database)
    with work_queue.renewing(database, lease_seconds=0.03) as held:
        held.append(slow)
        seen = {first}
        while len(seen) < 4:                                        # the first renewal shortens the lease of five minutes
            seen.add(_lease_until(database))
        held.remove(slow)
        assert work_queue.complete(database, slow)
    assert not [thread for thread in threading.enumerate() if thread.name == "claims"]


def test_what_fails_once_is_renewed_the_next_time(database, make, monkeypatch) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    slow = work_queue.claim_next(database, "slow", make.here)
    renew, failures = work_queue.renew, []

    def busy(*given: object) -> bool:
        if len(failures) < 2:
            failures.append("busy")
            raise DatabaseBusy("the database is busy")
        return renew(*given)

    monkeypatch.setattr(work_queue, "renew", busy)
    first = _lease_until(database)
    with work_queue.renewing(database, lease_seconds=0.03) as held:
        held.append(slow)
        while _lease_until(database) == first:
            pass
    assert len(failures) == 2


def test_a_lease_runs_out_and_the_late_worker_cannot_take_the_request_away(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    late = work_queue.claim_next(database, "late", make.here, lease_seconds=-1)
    quick = work_queue.claim_next(database, "quick", make.here)
    assert quick.id == late.id
    assert not work_queue.renew(database, late)
    assert not work_queue.release(database, late)
    assert not work_queue.complete(database, late, [make.trace()])  # its trace is kept, the request stays with the other worker
    stats = upkeep.stats(database)
    assert (stats.rows["benchmark_traces"], stats.claimed) == (1, 1)
    assert work_queue.complete(database, quick)


def test_an_expired_lease_is_claimed_by_the_next_worker(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    # a lease that is long enough for a slow machine to look once
    assert work_queue.claim_next(database, "dead", make.here, lease_seconds=2.0) is not None
    assert work_queue.claim_next(database, "next", make.here) is None
    time.sleep(2.1)
    item = work_queue.claim_next(database, "next", make.here)
    assert (item.claimed_by, item.attempts) == ("next", 2)


def test_a_request_that_keeps_killing_its_workers_is_set_aside(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    for _ in range(MAX_ATTEMPTS):
        assert work_queue.claim_next(database, "victim", make.here, lease_seconds=-1) is not None
    assert work_queue.claim_next(database, "victim", make.here) is None
    assert upkeep.stats(database).abandoned == 1
    assert work_queue.claim_next(database, "brave", make.here, max_attempts=100) is not None


def test_a_worker_that_stops_in_peace_uses_up_no_attempt(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    for _ in range(MAX_ATTEMPTS + 2):
        assert work_queue.release(database, work_queue.claim_next(database, "budget is up", make.here))
    assert work_queue.claim_next(database, "w", make.here).attempts == 1
    assert work_queue.release_worker(database, "w") == 1
    failed = work_queue.claim_next(database, "w", make.here)
    assert work_queue.release(database, failed, "the judge failed", attempt=True)
    assert work_queue.claim_next(database, "w", make.here).attempts == 3


def test_an_untrusted_source_is_never_handed_out_nor_counted_as_waiting(database, make) -> None:
    imported = make.kernel("imported", sources=(SourceRecord("k.c", "system(0);", origin="downloaded"),))
    database.enqueue(ProfileRequest(imported, make.workload(), make.here))
    assert work_queue.claim_next(database, "w", make.here) is None and work_queue.waiting(database, make.here) == (0, 0.0)
    assert upkeep.trust(database, imported.signature) == 1
    assert work_queue.waiting(database, make.here)[0] == 1
    item = work_queue.claim_next(database, "w", make.here)
    assert item.implementation.name == "imported"
    assert queries.sources(database, imported.signature)[0].trusted


# -- several threads and processes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["asked for again", "revived"])
def test_an_abandoned_request_is_named_and_comes_back_when_it_is_asked_for(database, make, way: str) -> None:
    request = ProfileRequest(make.kernel(), make.workload(), make.here)
    database.enqueue(request)
    for _ in range(work_queue.MAX_ATTEMPTS):
        item = work_queue.claim_next(database, "w", make.here)
        work_queue.release(database, item, "the worker ran out of memory", attempt=True)
    assert work_queue.claim_next(database, "w", make.here) is None
    (left,) = work_queue.queued(database)
    assert (left.environment, left.abandoned, left.waiting) == (make.here, 1, 0)
    assert work_queue.abandoned(database) == ["tanh_c on tanh at batch=1: the worker ran out of memory"]
    assert database.enqueue(request) == 0 if way == "asked for again" else work_queue.revive(database) == 1
    assert work_queue.claim_next(database, "w", make.here) is not None


def test_a_lease_of_a_worker_whose_clock_is_wrong_holds_nothing(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    assert work_queue.claim_next(database, "ahead", make.here, lease_seconds=3e9) is not None
    assert work_queue.queued(database)[0].waiting == 1
    assert work_queue.claim_next(database, "w", make.here) is not None


def test_why_a_request_was_put_back_is_kept_and_costs_no_attempt(database, make) -> None:
    database.enqueue(ProfileRequest(make.kernel(), make.workload(), make.here))
    for _ in range(work_queue.MAX_ATTEMPTS + 1):
        assert work_queue.release(database, work_queue.claim_next(database, "w", make.here), "no such kernel here")
    assert work_queue.claim_next(database, "w", make.here).attempts == 1
    assert work_queue.claim_next(database, "w", make.here, but=[make.kernel().signature]) is None
