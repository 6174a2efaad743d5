"""claims: workers take requests from the profile queue, one at a time, each on a lease; what dies leaves its request to others.

`Database.enqueue` files requests: the compiler does that, and takes none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records import schema
from tensor_graphs.records.database import Database, untrusted
from tensor_graphs.records.errors import DatabaseError
from tensor_graphs.records.known import environment_row
from tensor_graphs.records.rows import ImplementationRecord, QueueItem, SourceRecord, TraceRecord, WorkloadRecord

log = logging.getLogger(__name__)

LEASE_SECONDS = 300.0  # how long the requests of a machine that is gone wait for another one; `renewing` for what takes longer
MAX_ATTEMPTS = 5  # a request whose workers died this often is left for a person: stats().abandoned counts them
NOBODY = {"claimed_by": None, "claimed_at": None, "lease_until": None}


def claim_next(database: Database, worker: str, environment: Environment | str, *, lease_seconds: float = LEASE_SECONDS,
               max_attempts: int = MAX_ATTEMPTS) -> QueueItem | None:
    """Lease the most urgent request of this environment to `worker`, or None when nothing is left to claim.

    A request is free when nobody holds it or its lease has run out; one whose worker died waits until the others are done.
    Untrusted implementations are never handed out.
    """
    queue = schema.ProfileQueue
    now = datetime.now(UTC)
    until = now + timedelta(seconds=lease_seconds)
    select = sa.select(queue.id).where(*_free(environment, now, max_attempts))
    select = select.order_by(queue.attempts, queue.priority.desc(), queue.id).limit(1)
    if not database.is_sqlite:
        select = select.with_for_update(skip_locked=True)
    with database.writing() as connection:
        row = connection.execute(select).scalar()
        if row is None:
            return None
        claim = sa.update(queue).where(queue.id == row)
        connection.execute(
            claim.values(claimed_by=worker, claimed_at=now, lease_until=until, attempts=queue.attempts + 1)
        )
        return _queue_item(connection, row)


def renew(database: Database, item: QueueItem, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Prolong a claim from now on; False when it has gone to another worker meanwhile."""
    return _on_claim(database, item, lease_until=datetime.now(UTC) + timedelta(seconds=lease_seconds))


@contextlib.contextmanager
def renewing(database: Database, lease_seconds: float = LEASE_SECONDS) -> Iterator[list[QueueItem]]:
    """Context manager: a list of claims, which a thread prolongs for as long as they are in it."""
    items: list[QueueItem] = []
    done = threading.Event()

    def prolong() -> None:
        while not done.wait(lease_seconds / 3):
            for item in tuple(items):
                try:
                    renew(database, item, lease_seconds)
                except DatabaseError as error:                      # busy, say: there are two more attempts before it runs out
                    log.info("the claim on request %d is not renewed: %s", item.id, error)

    thread = threading.Thread(target=prolong, name="claims", daemon=True)
    thread.start()
    try:
        yield items
    finally:
        done.set()
        thread.join()


def complete(database: Database, item: QueueItem, traces: Sequence[TraceRecord] = ()) -> bool:
    """Store what was measured and take the request off the queue, in one transaction.

    The traces are stored in any case; False when the lease had run out and another worker holds the request now.
    """
    with database.writing() as connection:
        database.add_traces_in(connection, traces)
        return bool(connection.execute(sa.delete(schema.ProfileQueue).where(_held(item))).rowcount)


def release(database: Database, item: QueueItem, error: str = "") -> bool:
    """Put a claimed request back unmeasured; False when another worker holds it now.

    error: what went wrong, if anything did; only then does the claim count as an attempt.
    """
    attempts = schema.ProfileQueue.attempts - (0 if error else 1)
    return _on_claim(database, item, **NOBODY, attempts=attempts, last_error=error)


def release_worker(database: Database, worker: str) -> int:
    """Put back everything a worker holds, for one known to be dead; without it the leases run out by themselves."""
    queue = schema.ProfileQueue
    with database.writing() as connection:
        change = sa.update(queue).where(queue.claimed_by == worker).values(**NOBODY, last_error="worker died")
        return connection.execute(change).rowcount


def waiting(database: Database, environment: Environment | str) -> tuple[int, float]:
    """(how many requests of this environment may be claimed, the sum of their priorities)."""
    queue = schema.ProfileQueue
    found = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(queue.priority), 0.0))
    found = found.where(*_free(environment, datetime.now(UTC), MAX_ATTEMPTS))
    with database.reading() as connection:
        count, worth = connection.execute(found).one()
    return int(count), float(worth)


def claimants(database: Database) -> list[str]:
    """The names of all who hold requests now, sorted."""
    queue = schema.ProfileQueue
    select = sa.select(queue.claimed_by).where(queue.claimed_by.is_not(None)).distinct().order_by(queue.claimed_by)
    with database.reading() as connection:
        return [str(name) for name in connection.execute(select).scalars()]


def _on_claim(database: Database, item: QueueItem, **values: Any) -> bool:
    with database.writing() as connection:
        return bool(connection.execute(sa.update(schema.ProfileQueue).where(_held(item)).values(**values)).rowcount)


def _free(environment: Environment | str, now: datetime, max_attempts: int) -> tuple[Any, ...]:
    """The conditions under which a request of this environment may be claimed."""
    queue = schema.ProfileQueue
    unheld = sa.or_(queue.lease_until.is_(None), queue.lease_until < now)
    return (queue.environment_id == environment_row(environment), unheld, queue.attempts < max_attempts,
            ~untrusted(queue.implementation_id))


def _queue_item(connection: Connection, row: int) -> QueueItem:
    """A request, with what it asks for."""
    def stored(model: type[schema.Base], number: int) -> dict[str, Any]:
        table = model.__table__
        return dict(connection.execute(sa.select(table).where(table.c.id == number)).one()._mapping)

    def graph_key(number: int | None) -> str | None:
        return None if number is None else stored(schema.GraphRow, number)["structural_key"]

    asked = stored(schema.ProfileQueue, row)
    implementation = stored(schema.Implementation, asked["implementation_id"])
    workload = stored(schema.Workload, asked["workload_id"])
    source = schema.ImplementationSource
    sources = connection.execute(
        sa.select(source.path, source.content, source.trusted, source.language, source.origin)
        .where(source.implementation_id == asked["implementation_id"])
        .order_by(source.path)
    )
    return QueueItem(
        id=row,
        implementation=ImplementationRecord(
            graph_key=graph_key(implementation["canonical_graph_id"]),
            recipe_key=graph_key(implementation["recipe_graph_id"]),
            sources=tuple(SourceRecord(*each) for each in sources),
            **_some(implementation, "type", "name", "backend", "source_hash", "numeric_class", "requirements", "verbatim"),
        ),
        workload=WorkloadRecord(graph_key(workload["canonical_graph_id"]) or "", workload["axes_json"],
                                tuple(workload["input_descriptors"])),
        environment=Environment(**_some(stored(schema.EnvironmentRow, asked["environment_id"]), "hardware_name", "memory_bytes",
                                        "platform", "backend", "libs", "hardware")),
        **_some(asked, "priority", "reason", "attempts", "claimed_by", "claimed_at", "lease_until"),
    )


def _some(row: Mapping[str, Any], *columns: str) -> dict[str, Any]:
    return {column: row[column] for column in columns}


def _held(item: QueueItem) -> Any:
    """The claim `item` stands for: same worker, same moment; a claim that was lost and won again is another one."""
    queue = schema.ProfileQueue
    return sa.and_(queue.id == item.id, queue.claimed_by == item.claimed_by, queue.claimed_at == item.claimed_at)
