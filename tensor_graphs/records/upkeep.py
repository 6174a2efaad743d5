"""upkeep: the care of a benchmark database: looking for damage, giving space back, counting what is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from tensor_graphs.records import schema
from tensor_graphs.records.claims import MAX_ATTEMPTS
from tensor_graphs.records.connection import stored_revision
from tensor_graphs.records.database import Database, latest_timestamp, text_hash
from tensor_graphs.records.driver_errors import explain
from tensor_graphs.records.errors import CorruptDatabase, MissingRecord
from tensor_graphs.records.views import VIEWS
from tensor_graphs.records.wrong_values import wrong_values


@dataclass(frozen=True)
class CheckReport:
    """What `check` found: nothing in `problems` means that the file, the references and the rows are sound."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class DatabaseStats:
    """Row counts and sizes. `waiting`, `claimed` and `abandoned` (too many attempts) add up to the queue's rows."""

    location: str
    revision: str
    file_bytes: int
    rows: dict[str, int]
    traces_by_status: dict[str, int]
    waiting: int
    claimed: int
    abandoned: int
    oldest: datetime | None
    newest: datetime | None


def check(database: Database, on_step: Callable[[str], None] = lambda what: None) -> CheckReport:
    """Look for damage: the file's structure, the schema, dangling references, then rows that contradict themselves.

    Changes nothing. In a damaged file the rows are not looked at. on_step is told what is looked at next.
    """
    try:
        with database.reading() as connection:
            on_step("the file")
            damage = _file_damage(database, connection) or _schema_damage(connection)
            if damage:
                return CheckReport(tuple(damage))
            on_step("references")
            found = list(_reference_damage(database, connection))
            on_step("rows")
            return CheckReport((*found, *_row_damage(database, connection)))
    except CorruptDatabase as error:
        return CheckReport((f"integrity: {error}",))


def _file_damage(database: Database, connection: Connection) -> list[str]:
    if not database.is_sqlite:
        return []
    found = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
    return [f"integrity: {line}" for line in found if line != "ok"]


def _schema_damage(connection: Connection) -> list[str]:
    revisions = list(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars())
    found = []
    if revisions != [schema.REVISION]:
        found.append(f"schema: its version is {', '.join(revisions) or '(none)'}, and {schema.REVISION} is expected")
    inspector = sa.inspect(connection)
    tables, views = set(inspector.get_table_names()), set(inspector.get_view_names())
    for table in schema.Base.metadata.sorted_tables:
        if table.name not in tables:
            found.append(f"schema: the table {table.name} is missing")
            continue
        have = {each["name"] for each in inspector.get_indexes(table.name)}
        missing = {str(index.name) for index in table.indexes} - have
        found.extend(f"schema: the index {name} is missing" for name in sorted(missing))
    found.extend(f"schema: the view {name} is missing" for name in sorted(VIEWS.keys() - views))
    return found


def _reference_damage(database: Database, connection: Connection) -> Iterator[str]:
    if database.is_sqlite:  # PostgreSQL enforces them on everyone
        for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            yield f"reference: row {row} of {table} points to a row of {parent} that is not there"


def _row_damage(database: Database, connection: Connection) -> Iterator[str]:
    mistyped = list(wrong_values(connection))
    if mistyped:  # and what else is asked of the rows could not be answered
        yield from mistyped
        return
    trace, source = schema.BenchmarkTrace, schema.ImplementationSource
    length = "json_array_length(samples_ms)"
    if database.is_sqlite:
        length = f"CASE WHEN json_valid(samples_ms) THEN {length} ELSE -1 END"
    there = sa.literal_column(length, sa.Integer)
    wrong = sa.select(trace.id, trace.sample_count, there).where(trace.sample_count != there)
    for row, count, samples in connection.execute(wrong):
        found = f"{samples} are there" if samples >= 0 else "no list is there"
        yield f"trace {row}: {count} samples were announced, {found}"
    implementation, workload = schema.Implementation, schema.Workload
    stray = (
        sa.select(trace.id)
        .join(implementation, implementation.id == trace.implementation_id)
        .join(workload, workload.id == trace.workload_id)
        .where(implementation.canonical_graph_id != workload.canonical_graph_id)
    )
    for row in connection.execute(stray).scalars():
        yield f"trace {row}: its workload is of another graph than its implementation"
    texts = sa.select(source.id, source.content, source.content_sha256)
    for row, content, expected in connection.execute(texts):
        if text_hash(content) != expected:
            yield f"source {row}: its text is not the text that was stored"
    for row, stamp in connection.execute(sa.select(trace.id, trace.timestamp).where(trace.timestamp > latest_timestamp())):
        yield f"trace {row}: it is dated in the future, {stamp.isoformat()}, and the newest counts"


def trust(database: Database, signature: str, trusted: bool = True) -> int:
    """Mark every source of one implementation as trusted (or not again); returns how many. Raises MissingRecord."""
    with database.writing() as connection:
        model = schema.Implementation
        row = connection.execute(sa.select(model.id).where(model.signature == signature)).scalar()
        if row is None:
            raise MissingRecord(
                f"{database.location} has no implementation of the signature {signature}\n"
                "  fix: queries.waiting_for_trust lists those that wait for trust"
            )
        source = schema.ImplementationSource
        change = sa.update(source).where(source.implementation_id == row).values(trusted=trusted)
        return connection.execute(change).rowcount


def vacuum(database: Database) -> int:
    """Give free pages back to the disk and renew the query statistics; returns the bytes saved (0 for
    PostgreSQL)."""
    before = _file_bytes(database)
    statements = (
        ("VACUUM", "PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)") if database.is_sqlite else ("VACUUM ANALYZE",)
    )
    try:
        with database.write_lock, database.engine.connect() as connection:
            raw = connection.execution_options(isolation_level="AUTOCOMMIT") if not database.is_sqlite else connection
            for statement in statements:
                if database.is_sqlite:  # outside any transaction, which only the driver's own connection is
                    raw.connection.driver_connection.execute(statement).fetchall()  # type: ignore[union-attr]
                else:
                    raw.exec_driver_sql(statement)
    except exc.DBAPIError as error:
        raise explain(database.location, error.orig, error) from error
    except sqlite3.Error as error:
        raise explain(database.location, error, error) from error
    return max(0, before - _file_bytes(database))


def stats(database: Database) -> DatabaseStats:
    """Row counts, sizes and the state of the queue."""
    trace, queue = schema.BenchmarkTrace, schema.ProfileQueue
    held = sa.and_(queue.lease_until.is_not(None), queue.lease_until >= datetime.now(UTC))
    abandoned = sa.and_(sa.not_(held), queue.attempts >= MAX_ATTEMPTS)
    with database.reading() as connection:
        rows = {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in schema.Base.metadata.sorted_tables
        }
        by_status = connection.execute(
            sa.select(trace.status, sa.func.count()).group_by(trace.status).order_by(trace.status)
        )
        traces: dict[str, int] = {str(row[0]): int(row[1]) for row in by_status}
        oldest, newest = connection.execute(
            sa.select(sa.func.min(trace.timestamp), sa.func.max(trace.timestamp))
        ).one()
        claimed = connection.execute(
            sa.select(sa.func.count()).select_from(queue).where(queue.claimed_by.is_not(None), held)
        ).scalar_one()
        given_up = connection.execute(sa.select(sa.func.count()).select_from(queue).where(abandoned)).scalar_one()
        revision = stored_revision(connection, database.location)
    return DatabaseStats(location=database.location, revision=revision or "", file_bytes=_file_bytes(database), rows=rows,
                         traces_by_status=traces, waiting=rows["profile_queue"] - claimed - given_up, claimed=claimed,
                         abandoned=given_up, oldest=oldest, newest=newest)


def _file_bytes(database: Database) -> int:
    if not database.is_sqlite or not database.engine.url.database:
        return 0
    files = (Path(database.engine.url.database + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
