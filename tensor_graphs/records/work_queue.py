"""work_queue: workers take requests from the profile queue, one at a time, each on a lease; if one dies, others get its request.

`Database.enqueue` adds requests: the compiler does that, and takes none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records import schema
from tensor_graphs.records.database import MAX_ATTEMPTS, Database, untrusted
from tensor_graphs.records.errors import DatabaseError
from tensor_graphs.records.measurements import environment_row
from tensor_graphs.records.rows import ImplementationRecord, QueueItem, SourceRecord, TraceRecord, WorkloadRecord, at_sizes

log = logging.getLogger(__name__)

LEASE_SECONDS = 300.0  # how long the requests of a machine that is gone wait for another one; `renewing` for what takes longer
LONGEST = timedelta(days=1)  # a lease that ends later is of a worker whose clock is wrong: nobody holds it
NOBODY = {"claimed_by": None, "claimed_at": None, "lease_until": None}


def claim_next(database: Database, worker: str, environment: Environment | str, *, lease_seconds: float = LEASE_SECONDS,
               max_attempts: int = MAX_ATTEMPTS, but: Collection[str] = ()) -> QueueItem | None:
    """Lease the most urgent request of this environment to `worker` and return it, or None when nothing is left to claim.

    A request is free when nobody holds it or its lease has run out; one whose worker died comes after all others. Untrusted
    implementations are never handed out, nor those whose signatures are in `but`.
    """
    queue = schema.ProfileQueue
    now = datetime.now(UTC)
    until = now + timedelta(seconds=lease_seconds)
    select = sa.select(queue.id).where(*_free(environment, now, max_attempts))
    if but:
        select = select.where(~_of(but))
    select = select.order_by(queue.attempts, queue.priority.desc(), queue.id).limit(1)
    if not database.is_sqlite:
        select = select.with_for_update(skip_locked=True)
    with database.writing() as connection:
        row = connection.execute(select).scalar()
        if row is None:
            return None
        claim = sa.update(queue).where(queue.id == row)
        connection.execute(claim.values(claimed_by=worker, claimed_at=now, lease_until=until, attempts=queue.attempts + 1))
        return _queue_item(connection, row)


def renew(database: Database, item: QueueItem, lease_seconds: float = LEASE_SECONDS) -> bool:
    """Renew a lease for `lease_seconds` from now; return False if another worker has the request meanwhile."""
    return _on_claim(database, item, lease_until=datetime.now(UTC) + timedelta(seconds=lease_seconds))


@contextlib.contextmanager
def renewing(database: Database, lease_seconds: float = LEASE_SECONDS) -> Iterator[list[QueueItem]]:
    """Context manager: yield a list; a thread renews the leases of the claims that are in it, until the context ends."""
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
    """Store the traces and remove the request from the queue, in one transaction.

    The traces are stored in any case. Return False when the lease had run out and another worker holds the request now.
    """
    with database.writing() as connection:
        database.add_traces_in(connection, traces)
        return bool(connection.execute(sa.delete(schema.ProfileQueue).where(_held(item))).rowcount)


def release(database: Database, item: QueueItem, error: str = "", *, attempt: bool = False) -> bool:
    """Return a claimed request to the queue unmeasured; False when another worker holds it now.

    error: why it was not measured. attempt: it was begun, so the claim counts as one that its worker did not survive; without it
    another worker may try what this one cannot do.
    """
    attempts = schema.ProfileQueue.attempts - (0 if attempt else 1)
    return _on_claim(database, item, **NOBODY, attempts=attempts, last_error=error)


def release_worker(database: Database, worker: str) -> int:
    """Put all requests of a dead worker back into the queue now, before its leases run out; return their number."""
    queue = schema.ProfileQueue
    with database.writing() as connection:
        change = sa.update(queue).where(queue.claimed_by == worker).values(**NOBODY, last_error="worker died")
        return connection.execute(change).rowcount


def revive(database: Database) -> int:
    """Reset the attempts of abandoned requests, so that workers claim them again; return their number."""
    queue = schema.ProfileQueue
    with database.writing() as connection:
        change = sa.update(queue).where(_unheld(datetime.now(UTC)), queue.attempts >= MAX_ATTEMPTS).values(attempts=0)
        return connection.execute(change).rowcount


@dataclass(frozen=True)
class Queued:
    """Counts of the requests of one environment. waiting: may be claimed. claimed: held by a worker. abandoned: their workers died
    too often. untrusted: their sources wait for trust."""

    environment: Environment
    waiting: int
    claimed: int
    abandoned: int
    untrusted: int


def queued(database: Database) -> tuple[Queued, ...]:
    """Return the counts of requests for each environment."""
    queue, place = schema.ProfileQueue, schema.EnvironmentRow
    unheld, again = _unheld(datetime.now(UTC)), queue.attempts >= MAX_ATTEMPTS
    unsafe = untrusted(queue.implementation_id)
    kinds = (sa.and_(unheld, ~again, ~unsafe), ~unheld, sa.and_(unheld, again), sa.and_(unheld, ~again, unsafe))
    counts = [sa.func.sum(sa.case((kind, 1), else_=0)) for kind in kinds]
    with database.reading() as connection:
        rows = connection.execute(sa.select(queue.environment_id, *counts).group_by(queue.environment_id)).all()
        stored = sa.select(place.__table__).where(place.id.in_([row[0] for row in rows]))
        places = {place_row["id"]: _environment({**place_row}) for place_row in connection.execute(stored).mappings()}
    return tuple(Queued(places[row[0]], *(int(count) for count in row[1:])) for row in rows)


def abandoned(database: Database, most: int = 5) -> list[str]:
    """Return a text for each of the first `most` abandoned requests: what it requests and its last error."""
    queue, graph = schema.ProfileQueue, schema.GraphRow
    select = (sa.select(schema.Implementation.name, graph.human_name, schema.Workload.axes_json, queue.last_error)
              .join(schema.Implementation, schema.Implementation.id == queue.implementation_id)
              .join(schema.Workload, schema.Workload.id == queue.workload_id)
              .join(graph, graph.id == schema.Workload.canonical_graph_id)
              .where(_unheld(datetime.now(UTC)), queue.attempts >= MAX_ATTEMPTS))
    with database.reading() as connection:
        rows = connection.execute(select.order_by(queue.id).limit(most)).all()
    return [f"{name} on {what}{at_sizes(axes)}: {error or 'worker died'}" for name, what, axes, error in rows]


def waiting(database: Database, environment: Environment | str, of: Collection[str] = ()) -> tuple[int, float]:
    """Return (number of requests of this environment that may be claimed, sum of their priorities). of: only these signatures."""
    queue = schema.ProfileQueue
    select = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(queue.priority), 0.0))
    select = select.where(*_free(environment, datetime.now(UTC), MAX_ATTEMPTS), *([_of(of)] if of else []))
    with database.reading() as connection:
        count, worth = connection.execute(select).one()
    return int(count), float(worth)


def claimants(database: Database) -> list[str]:
    """Return the names of all workers that hold requests now, sorted."""
    queue = schema.ProfileQueue
    select = sa.select(queue.claimed_by).where(queue.claimed_by.is_not(None)).distinct().order_by(queue.claimed_by)
    with database.reading() as connection:
        return [str(name) for name in connection.execute(select).scalars()]


def _on_claim(database: Database, item: QueueItem, **values: Any) -> bool:
    with database.writing() as connection:
        return bool(connection.execute(sa.update(schema.ProfileQueue).where(_held(item)).values(**values)).rowcount)


def _free(environment: Environment | str, now: datetime, max_attempts: int) -> tuple[Any, ...]:
    """Return the conditions under which a request of this environment may be claimed."""
    queue = schema.ProfileQueue
    return (queue.environment_id == environment_row(environment), _unheld(now), queue.attempts < max_attempts,
            ~untrusted(queue.implementation_id))


def _unheld(now: datetime) -> Any:
    """Return the condition that nobody holds a request."""
    until = schema.ProfileQueue.lease_until
    return sa.or_(until.is_(None), until < now, until > now + LONGEST)


def _of(signatures: Collection[str]) -> Any:
    """Return the condition that a request is for one of these implementations."""
    model = schema.Implementation
    return schema.ProfileQueue.implementation_id.in_(sa.select(model.id).where(model.signature.in_(signatures)))


def _queue_item(connection: Connection, row: int) -> QueueItem:
    """Return a request, with its implementation, workload and environment."""
    def stored(model: type[schema.Base], number: int) -> dict[str, Any]:
        table = model.__table__
        return dict(connection.execute(sa.select(table).where(table.c.id == number)).one()._mapping)

    def graph_key(number: int | None) -> str | None:
        return None if number is None else stored(schema.GraphRow, number)["structural_key"]

    asked = stored(schema.ProfileQueue, row)
    implementation = stored(schema.Implementation, asked["implementation_id"])
    workload = stored(schema.Workload, asked["workload_id"])
    source = schema.ImplementationSource
    sources = connection.execute(sa.select(source.path, source.content, source.trusted, source.language, source.origin)
                                 .where(source.implementation_id == asked["implementation_id"])
                                 .order_by(source.path))
    return QueueItem(
        id=row,
        implementation=ImplementationRecord(
            graph_key=graph_key(implementation["canonical_graph_id"]),
            recipe_key=graph_key(implementation["recipe_graph_id"]),
            sources=tuple(SourceRecord(*source_row) for source_row in sources),
            **_some(implementation, "type", "name", "backend", "source_hash", "numeric_class", "requirements", "verbatim"),
        ),
        workload=WorkloadRecord(graph_key(workload["canonical_graph_id"]) or "", workload["axes_json"],
                                tuple(workload["input_descriptors"])),
        environment=_environment(stored(schema.EnvironmentRow, asked["environment_id"])),
        **_some(asked, "priority", "reason", "attempts", "claimed_by", "claimed_at", "lease_until"),
    )


def _environment(row: Mapping[str, Any]) -> Environment:
    return Environment(**_some(row, "hardware_name", "memory_bytes", "platform", "backend", "libs", "hardware"))


def _some(row: Mapping[str, Any], *columns: str) -> dict[str, Any]:
    return {column: row[column] for column in columns}


def _held(item: QueueItem) -> Any:
    """Return the condition that `item` still has its claim: same worker, same time. A claim lost and won again is another one."""
    queue = schema.ProfileQueue
    return sa.and_(queue.id == item.id, queue.claimed_by == item.claimed_by, queue.claimed_at == item.claimed_at)
