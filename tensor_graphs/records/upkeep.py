"""upkeep: maintenance of a benchmark database: looking for damage, trusting code, freeing space, counting rows."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection

from tensor_graphs.records import schema
from tensor_graphs.records.connection import stored_revision
from tensor_graphs.records.consistency_check import Reads, Soundness, any_graph
from tensor_graphs.records.database import Database, in_batches, latest_timestamp
from tensor_graphs.records.driver_errors import explain
from tensor_graphs.records.errors import CorruptDatabase, DatabaseReadOnly, MissingRecord
from tensor_graphs.records.table_order import TABLES, parents
from tensor_graphs.records.unstorable_values import wrong_values
from tensor_graphs.records.views import VIEWS
from tensor_graphs.records.work_queue import Queued, queued

UNREAD = ("full_log", "conditions", "verbatim")
"""Columns of traces that `check` does not read, apart from their types, as they fill many pages."""
CHUNK = 1000
"""Number of rows that are read together."""


@dataclass(frozen=True)
class CheckReport:
    """Result of `check`: without `problems`, the file, the references and the rows are sound. readable: the file and its schema are
    sound, and the problems concern single rows."""

    problems: tuple[str, ...]
    readable: bool = True

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class DatabaseStats:
    """Row counts and sizes. `waiting`, `claimed` and `abandoned` (too many attempts) add up to the rows of the queue; `queue` has
    these counts for each environment."""

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
    queue: tuple[Queued, ...]


def check(database: Database, on_step: Callable[[str], None] = lambda what: None, *, reads: Reads = any_graph) -> CheckReport:
    """Look for damage and report it: the file's structure, the schema, dangling references, then impossible rows.

    Nothing is changed. In a damaged file the rows are not checked. on_step receives the name of each step.
    """
    try:
        with database.reading() as connection:
            on_step("the file")
            damage = _file_damage(database, connection) or _schema_damage(connection)
            if damage:
                return CheckReport(tuple(damage), readable=False)
            on_step("references")
            dangling = [words for _, _, words in _dangling(database, connection)]
            on_step("rows")
            wrong = [words for _, _, words in wrong_values(connection)]       # what else is asked of the rows would not be answered
            return CheckReport((*dangling, *(wrong or (words for _, _, words in _unsound(reads, connection)))))
    except CorruptDatabase as error:
        return CheckReport((f"integrity: {error}",), readable=False)


def remove_unsound(database: Database, *, reads: Reads = any_graph) -> dict[str, int]:
    """Remove the rows that `check` reports, and all that refer to them, in one transaction; return the number by table."""
    removed: Counter[str] = Counter()
    with database.writing() as connection:
        for find in (partial(_dangling, database), wrong_values, partial(_unsound, reads)):
            while rows := [(table, row) for table, row, _ in find(connection)]:
                removed.update(_delete(connection, rows))
    database._forget()
    return {table: count for table, count in removed.items() if count}


def _delete(connection: Connection, rows: Iterable[tuple[str, int]]) -> Counter[str]:
    """Delete rows, and those that refer to them; return the number by table."""
    gone: dict[str, set[int]] = {table.name: set() for table in TABLES}
    for name, row in rows:
        gone[name].add(row)
    for table in TABLES:
        for column, parent in parents(table):
            for ids in in_batches(gone[parent]):
                gone[table.name].update(connection.execute(sa.select(table.c.id).where(table.c[column].in_(ids))).scalars())
    for table in reversed(TABLES):
        for ids in in_batches(gone[table.name]):
            connection.execute(sa.delete(table).where(table.c.id.in_(ids)))
    return Counter({name: len(ids) for name, ids in gone.items()})


def _file_damage(database: Database, connection: Connection) -> list[str]:
    if not database.is_sqlite:
        return []
    lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars()
    return [f"integrity: {line}" for line in lines if line != "ok"]


def _schema_damage(connection: Connection) -> list[str]:
    revisions = list(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars())
    problems = []
    if revisions != [schema.REVISION]:
        problems.append(f"schema: its version is {', '.join(revisions) or '(none)'}, and {schema.REVISION} is expected")
    inspector = sa.inspect(connection)
    tables, views = set(inspector.get_table_names()), set(inspector.get_view_names())
    for table in TABLES:
        if table.name not in tables:
            problems.append(f"schema: the table {table.name} is missing")
            continue
        missing = {str(index.name) for index in table.indexes} - {row["name"] for row in inspector.get_indexes(table.name)}
        problems.extend(f"schema: the index {name} is missing" for name in sorted(missing))
    problems.extend(f"schema: the view {name} is missing" for name in sorted(VIEWS.keys() - views))
    return problems


def _dangling(database: Database, connection: Connection) -> Iterator[tuple[str, int, str]]:
    if database.is_sqlite:  # PostgreSQL enforces them on everyone
        for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            yield table, row, f"reference: row {row} of {table} points to a row of {parent} that is not there"


def _unsound(reads: Reads, connection: Connection) -> Iterator[tuple[str, int, str]]:
    sound = Soundness(latest_timestamp(connection), reads)
    for table in TABLES:
        columns = [c for c in table.columns if c.name not in UNREAD]
        for row in connection.execute(sa.select(*columns).order_by(table.c.id).execution_options(yield_per=CHUNK)).mappings():
            if (why := sound.why_not(table.name, {**row})) is not None:
                yield table.name, row["id"], f"row {row['id']} of {table.name}: {why}"


def trust(database: Database, signature: str, trusted: bool = True) -> int:
    """Mark every source of one implementation as trusted (or as untrusted); return their number. Raises MissingRecord."""
    with database.writing() as connection:
        model = schema.Implementation
        row = connection.execute(sa.select(model.id).where(model.signature == signature)).scalar()
        if row is None:
            raise MissingRecord(f"{database.location} has no implementation of the signature {signature}\n"
                                "  fix: queries.waiting_for_trust lists those that wait for trust")
        source = schema.ImplementationSource
        change = sa.update(source).where(source.implementation_id == row).values(trusted=trusted)
        return connection.execute(change).rowcount


def vacuum(database: Database) -> int:
    """Return free pages to the disk and renew the query statistics; return the bytes saved. Raises DatabaseReadOnly where the
    tables belong to another account of the server."""
    _require_owner(database)
    before = _file_bytes(database)
    statements = (("VACUUM", "PRAGMA optimize", "PRAGMA wal_checkpoint(TRUNCATE)") if database.is_sqlite else ("VACUUM ANALYZE",))
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


def _require_owner(database: Database) -> None:
    """Raise DatabaseReadOnly where the tables belong to another account, as VACUUM of PostgreSQL skips these with a warning."""
    if database.is_sqlite:
        return
    names = ", ".join(f"'{table.name}'" for table in TABLES)
    owners = f"SELECT DISTINCT tableowner FROM pg_tables WHERE tablename IN ({names}) AND NOT pg_has_role(tableowner, 'USAGE')"
    with database.reading() as connection:
        others = list(connection.exec_driver_sql(owners).scalars())
    if others:
        raise DatabaseReadOnly(f"{database.location}: its tables belong to {', '.join(others)}, and nobody else may vacuum them\n"
                               "  fix: the URL of that account (PostgreSQL's autovacuum does the same by itself)")


def stats(database: Database) -> DatabaseStats:
    """Return row counts, sizes and the state of the queue."""
    trace = schema.BenchmarkTrace
    with database.reading() as connection:
        rows = {table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in TABLES}
        by_status = connection.execute(sa.select(trace.status, sa.func.count()).group_by(trace.status).order_by(trace.status))
        traces: dict[str, int] = {str(row[0]): int(row[1]) for row in by_status}
        oldest, newest = connection.execute(sa.select(sa.func.min(trace.timestamp), sa.func.max(trace.timestamp))).one()
        revision = stored_revision(connection, database.location)
    queue = queued(database)
    return DatabaseStats(location=database.location, revision=revision or "", file_bytes=_file_bytes(database), rows=rows,
                         traces_by_status=traces, waiting=sum(q.waiting + q.untrusted for q in queue),
                         claimed=sum(q.claimed for q in queue), abandoned=sum(q.abandoned for q in queue), oldest=oldest,
                         newest=newest, queue=queue)


def _file_bytes(database: Database) -> int:
    if not database.is_sqlite:
        with database.reading() as connection:
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
    if not database.engine.url.database:
        return 0
    files = (Path(database.engine.url.database + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
