"""database: all writing to the benchmark database; each write is one transaction.

Opening, locking and durability are in connection.py, reading in measurements.py and queries.py, workers' claims in work_queue.py,
and maintenance in upkeep.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Engine

from tensor_graphs.devices.environment import Environment
from tensor_graphs.phase_times import phase
from tensor_graphs.records import schema
from tensor_graphs.records.connection import connect, no_database, parse_target, prepare_file, stored_revision, without_password
from tensor_graphs.records.errors import CorruptDatabase, InvalidRecord, MissingRecord
from tensor_graphs.records.logs import compress_log
from tensor_graphs.records.rows import (
    DefinitionRecord,
    DeviceConstant,
    GraphRecord,
    ImplementationRecord,
    ProfileRequest,
    SourceRecord,
    TraceRecord,
    WorkloadRecord,
)

log = logging.getLogger(__name__)

BUSY_SECONDS = 60.0
MAX_ATTEMPTS = 5  # a request whose workers died this often is left until somebody asks for it again
LOOKED_UP = 500  # keys in one statement; SQLite takes 999 in its older versions


@phase("database")
def open_database(
    target: str | Path | None = None, *, busy_seconds: float = BUSY_SECONDS, create: bool = True, make_folder: bool = True
) -> Database:
    """Open the benchmark database; create it, or migrate it to this version's schema, when needed.

    target: a path, ":memory:", a URL (sqlite:///…, postgresql+psycopg://…), or None for `default_target()` (TENSOR_GRAPHS_DB, else
    the user's data folder). create=False: open an existing database only, so that a mistyped path creates none. make_folder=False:
    the folder has to exist, for a path that a person typed. Safe when several processes call it simultaneously. Raises
    DatabasePathError, UnsupportedDatabase, CorruptDatabase, SchemaMismatch, DatabaseReadOnly, DatabaseBusy.
    """
    url = parse_target(target)
    if url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:"):
        prepare_file(Path(str(url.database)), create=create, make_folder=make_folder)
    database = Database(connect(url, busy_seconds))
    try:
        if not create and database.revision() is None:  # an empty file, or a server that was never written to
            raise no_database(database.location)
        if database.revision() != schema.REVISION:
            from tensor_graphs.records.migrating import migrate  # a door: a database is new, or of an older version, once

            migrate(database.engine, database.writing, database.location)
    except BaseException:
        database.close()
        raise
    return database


_open: weakref.WeakSet[Database] = weakref.WeakSet()


BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps next to a database."""


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other)  # `resolve` raises for a link to itself


class Database:
    """An open benchmark database. Threads may share it; a forked child process gets fresh connections by itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_sqlite = engine.dialect.name == "sqlite"
        self._ids: dict[tuple[str, str], int] = {}
        self._names: dict[str, str] = {}
        self._abandoned: list[object] = []
        self._one_connection = isinstance(engine.pool, sa.pool.StaticPool)
        self.write_lock = threading.RLock()
        _open.add(self)

    @property
    def location(self) -> str:
        """Path of the file, or URL with its password hidden."""
        url = self.engine.url
        return (url.database or ":memory:") if self.is_sqlite else without_password(url.render_as_string())

    def is_in(self, file: Path) -> bool:
        """Return whether `file`, by any path or link, is this database's file, or one that SQLite keeps next to it."""
        if not self.is_sqlite:
            return False
        with self.reading() as connection:  # SQLite knows best which file it has opened
            main = next(str(row[2] or "") for row in connection.exec_driver_sql("PRAGMA database_list") if row[1] == "main")
        return bool(main) and any(_same_file(Path(main + suffix), file) for suffix in ("", *BESIDE))

    def __repr__(self) -> str:
        return f"Database({self.location!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. The object may be used again and then reconnects."""
        self.engine.dispose()

    def _forked(self) -> None:
        """Replace the connections in a forked child. The old ones are kept, as they must be neither used nor closed."""
        self._abandoned.append(self.engine.pool)
        self.write_lock = threading.RLock()  # a thread that does not exist in the child may have held the old one
        self.engine.dispose(close=False)

    # -- transactions ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Context manager: yield a connection in a read transaction, which has one consistent view of the database."""
        with self._transaction(write=False) as connection:
            yield connection

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """Return a context manager with a connection in a write transaction: all of it is stored, or on any error nothing."""
        return self._transaction(write=True)

    @contextlib.contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        # One writer per process: SQLite admits no more anyway, and the next one must not see ids of a transaction that
        # is rolled back.
        with self.write_lock if write or self._one_connection else contextlib.nullcontext():
            try:
                with self.engine.connect() as plain:
                    connection = plain.execution_options(write=True) if write else plain
                    with connection.begin():
                        yield connection
            except BaseException as error:
                if write:
                    self._forget()
                explained = self._meaning(error)
                if explained is None:
                    raise
                raise explained from error

    def _meaning(self, error: BaseException) -> Exception | None:
        """Return the error to raise in place of one inside a transaction; None where that one is clear by itself."""
        if isinstance(error, (exc.DBAPIError, sqlite3.Error)):
            from tensor_graphs.records.driver_errors import explain  # a door: of transactions that fail

            return explain(self.location, error.orig if isinstance(error, exc.DBAPIError) else error, error)
        if isinstance(error, OverflowError) and "SQLite" in str(error):
            return InvalidRecord(f"{self.location} holds numbers of 64 bits, and one beyond them was asked for or given\n"
                                 "  fix: a smaller number")
        if isinstance(error, schema.DamagedValue):
            return self._damaged(self._wrong_value() or str(error))
        if isinstance(error, (AttributeError, LookupError, TypeError, ValueError)) and (wrong := self._wrong_value()):
            return self._damaged(wrong)
        return None

    def _damaged(self, what: str) -> CorruptDatabase:
        return CorruptDatabase(f"{self.location} is damaged: {what}\n"
                               "  fix: `tg db check` looks for more, and with --remove takes such rows out")

    def _wrong_value(self) -> str | None:
        """Return a text about the first value that its column cannot hold, None without one. Called after a failed read."""
        from tensor_graphs.records.unstorable_values import wrong_values  # the same door

        with contextlib.suppress(exc.SQLAlchemyError, sqlite3.Error), self.engine.connect() as connection:
            return next((words for _, _, words in wrong_values(connection)), None)
        return None

    def _forget(self) -> None:
        self._ids.clear()
        self._names.clear()

    # -- schema ------------------------------------------------------------------------------------------------------

    def revision(self) -> str | None:
        """Return the schema revision stored in the database, or None for a database without tables of this package."""
        with self.reading() as connection:
            return stored_revision(connection, self.location)

    # -- what a trace refers to --------------------------------------------------------------------------------------

    def ensure_graph(self, graph: GraphRecord) -> int:
        """Store a canonical graph unless its structural key is stored (then its text stays unchanged); return its row id."""
        with self.writing() as connection:
            return self._graph(connection, graph)

    def ensure_definition(self, definition: DefinitionRecord) -> int:
        """Bind a name to a canonical graph; return the row id. Raises MissingRecord when that graph was never stored."""
        with self.writing() as connection:
            graph_id = self._graph_id(connection, definition.graph_key, f"definition {definition.name!r}")
            model = schema.DefinitionRow
            match = (model.name == definition.name) & (model.canonical_graph_id == graph_id)
            return self._get_or_insert(connection, model, match, canonical_graph_id=graph_id, name=definition.name,
                                       axes=dict(definition.axes), description=definition.description, tags=list(definition.tags),
                                       verbatim=definition.verbatim, created=_now())

    def ensure_implementation(self, implementation: ImplementationRecord) -> int:
        """Store an implementation with its sources unless it is stored; return its row id.

        Raises MissingRecord for an unknown graph, InvalidRecord when the source hash is stored under another name.
        """
        with self.writing() as connection:
            return self._implementation(connection, implementation)

    def ensure_environment(self, environment: Environment) -> int:
        """Store an environment unless it is stored; return its row id."""
        with self.writing() as connection:
            return self._environment(connection, environment)

    def ensure_workload(self, workload: WorkloadRecord) -> int:
        """Store a workload unless it is stored; return its row id. Raises MissingRecord when its graph was never stored."""
        with self.writing() as connection:
            return self._workload(connection, workload)

    def add_recipes(
        self, key: str, places: Sequence[Any], graphs: Iterable[GraphRecord], recipes: Iterable[ImplementationRecord]
    ) -> None:
        """Store the result of a search for recipes (`schema.RecipeSearch`), with the graphs and recipes that it names: all of it,
        or on any error nothing. It replaces the earlier result of this key. These recipes need no trust: sources of an imported one
        are replaced."""
        search, source = schema.RecipeSearch, schema.ImplementationSource
        with self.writing() as connection:
            for graph in graphs:
                self._graph(connection, graph)
            for recipe in recipes:
                row = self._implementation(connection, recipe)
                if connection.execute(sa.select(untrusted(row))).scalar():
                    connection.execute(sa.delete(source).where(source.implementation_id == row))
                    self._sources(connection, row, recipe.sources)
            values = {"found": list(places), "created": _now()}
            insert = self._insert(search).values(key=key, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=["key"], set_=values))

    # -- traces ------------------------------------------------------------------------------------------------------

    def add_trace(self, trace: TraceRecord) -> int:
        """Store one trace, and what it refers to; return its row id. Raises MissingRecord when its graph was never stored."""
        return self.add_traces([trace])[0]

    def add_traces(self, traces: Iterable[TraceRecord]) -> tuple[int, ...]:
        """Store many traces in one transaction, all of them, or on any error none; return their row ids."""
        ready = list(traces)  # before the lock is taken: the iterable may be slow, or use the database itself
        with self.writing() as connection:
            return self.add_traces_in(connection, ready)

    def add_constants(self, environment: Environment, constants: Iterable[DeviceConstant]) -> None:
        """Store measured properties of devices (bandwidth, flop/s, latency); of each name the newest counts."""
        with self.writing() as connection:
            row = self._environment(connection, environment)
            values = [{"environment_id": row, "device": constant.device, "name": constant.name, "value": constant.value,
                       "unit": constant.unit, "timestamp": constant.timestamp or _now()}
                      for constant in constants]
            _require_dated(connection, *(cast(datetime, constant["timestamp"]) for constant in values))
            if values:
                connection.execute(sa.insert(schema.DeviceConstantRow), values)

    # -- the profile queue -------------------------------------------------------------------------------------------

    def enqueue(self, *requests: ProfileRequest) -> int:
        """Request measurements; return how many were new. A repeated request only raises the priority, and revives a request that
        was abandoned."""
        queue = schema.ProfileQueue
        new = 0
        with self.writing() as connection:
            for request in requests:
                values = {"implementation_id": self._implementation(connection, request.implementation),
                          "workload_id": self._workload(connection, request.workload),
                          "environment_id": self._environment(connection, request.environment)}
                insert = self._insert(queue).values(**values, priority=request.priority, reason=request.reason, requested_at=_now(),
                                                    attempts=0, last_error="")
                if connection.execute(insert.on_conflict_do_nothing()).rowcount:
                    new += 1
                    continue
                same = sa.and_(*(getattr(queue, column) == value for column, value in values.items()))
                connection.execute(
                    sa.update(queue).where(same, queue.priority < request.priority).values(priority=request.priority)
                )
                connection.execute(sa.update(queue).where(same, queue.attempts >= MAX_ATTEMPTS).values(attempts=0))
        return new

    # -- inside a transaction ----------------------------------------------------------------------------------------

    def _insert(self, model: type[schema.Base] | sa.Table) -> Any:
        if self.is_sqlite:
            from sqlalchemy.dialects import sqlite as dialect
        else:
            from sqlalchemy.dialects import postgresql as dialect  # type: ignore[no-redef]
        return dialect.insert(model)

    def _get_or_insert(self, connection: Connection, model: Any, match: Any, **values: Any) -> int:
        """Return the row's id, inserting it if it is missing. ON CONFLICT covers the race that PostgreSQL allows."""
        select = sa.select(model.id).where(match)
        row = connection.execute(select).scalar()
        if row is None:
            connection.execute(self._insert(model).values(**values).on_conflict_do_nothing())
            row = connection.execute(select).scalar_one()
        return int(row)

    def _graph(self, connection: Connection, graph: GraphRecord) -> int:
        row_id = self._ids.get(("graph", graph.structural_key))
        if row_id is None:
            model = schema.GraphRow
            row_id = self._get_or_insert(connection, model, model.structural_key == graph.structural_key,
                                        structural_key=graph.structural_key, human_name=graph.human_name, text=graph.text,
                                        json=graph.json, created=_now())
            self._ids["graph", graph.structural_key] = row_id
        return row_id

    def _graph_id(self, connection: Connection, key: str, whose: str) -> int:
        row_id = self._ids.get(("graph", key))
        if row_id is None:
            model = schema.GraphRow
            row_id = connection.execute(sa.select(model.id).where(model.structural_key == key)).scalar()
            if row_id is None:
                raise MissingRecord(f"{whose} refers to the canonical graph {key}, which {self.location} does not know\n"
                                    "  fix: store the graph first (ensure_graph)")
            self._ids["graph", key] = row_id
        return row_id

    def _implementation(self, connection: Connection, record: ImplementationRecord) -> int:
        row_id = self._ids.get(("implementation", record.signature))
        if row_id is None:
            what = f"implementation {record.name!r}"
            graph = None if record.graph_key is None else self._graph_id(connection, record.graph_key, what)
            recipe = None if record.recipe_key is None else self._graph_id(connection, record.recipe_key, what)
            model = schema.Implementation
            match = model.signature == record.signature
            row = connection.execute(sa.select(model.id, model.name, model.description).where(match)).first()
            if row is None:
                row_id = self._get_or_insert(connection, model, match, signature=record.signature, type=record.type,
                                            canonical_graph_id=graph, recipe_graph_id=recipe, name=record.name,
                                            backend=record.backend, source_hash=record.source_hash,
                                            numeric_class=record.numeric_class, requirements=dict(record.requirements),
                                            verbatim=record.verbatim, description=record.description, created=_now())
                self._sources(connection, row_id, record.sources)
                row = connection.execute(sa.select(model.id, model.name, model.description).where(match)).one()
            else:
                self._vouch(connection, int(row.id), record.sources)
                if record.description and not row.description:    # a row from before descriptions were stored
                    connection.execute(sa.update(model).where(match).values(description=record.description))
            row_id = self._ids["implementation", record.signature] = int(row.id)
            self._names[record.signature] = str(row.name)
        if self._names[record.signature] != record.name:
            raise InvalidRecord(
                f"the {record.backend} implementations {self._names[record.signature]!r} and {record.name!r} have one "
                f"source hash, "
                f"{record.source_hash}, so the traces of one would stand for the other\n"
                "  fix: hash the text of the function (or its name along with the file) instead of the file alone"
            )
        return row_id

    def _sources(self, connection: Connection, implementation: int, sources: Sequence[SourceRecord]) -> None:
        for source in sources:
            values = {"implementation_id": implementation, "path": source.path, "content": source.content,
                      "language": source.language, "content_sha256": text_hash(source.content), "origin": source.origin,
                      "trusted": source.trusted}
            connection.execute(self._insert(schema.ImplementationSource).values(**values).on_conflict_do_nothing())

    def _vouch(self, connection: Connection, implementation: int, sources: Sequence[SourceRecord]) -> bool:
        """Trust an implementation if the caller passes trusted sources, which replace imported ones that differ. Return False where
        a source still waits for trust."""
        if not connection.execute(sa.select(untrusted(implementation))).scalar():
            return True
        if not sources or not all(source.trusted for source in sources):
            return False
        model = schema.ImplementationSource
        same = sa.or_(*((model.path == source.path) & (model.content == source.content) for source in sources))
        of_it = model.implementation_id == implementation
        connection.execute(sa.delete(model).where(of_it, ~same))
        connection.execute(sa.update(model).where(of_it).values(trusted=True, origin=""))
        self._sources(connection, implementation, sources)
        return True

    def _environment(self, connection: Connection, record: Environment) -> int:
        key = record.key()
        row_id = self._ids.get(("environment", key))
        if row_id is None:
            model = schema.EnvironmentRow
            row_id = self._get_or_insert(connection, model, model.key == key, key=key, hardware_name=record.hardware_name,
                                        memory_bytes=record.memory_bytes, platform=record.platform, backend=record.backend,
                                        libs=dict(record.libs), hardware=dict(record.hardware), created=_now())
            self._ids["environment", key] = row_id
        return row_id

    def _workload(self, connection: Connection, record: WorkloadRecord) -> int:
        row_id = self._ids.get(("workload", record.key))
        if row_id is None:
            graph = self._graph_id(connection, record.graph_key, f"the workload with axes {dict(record.axes)}")
            model = schema.Workload
            row_id = self._get_or_insert(connection, model, model.key == record.key, key=record.key, canonical_graph_id=graph,
                                        axes_hash=record.axes_hash, axes_json=dict(record.axes),
                                        input_descriptors=[dict(descriptor) for descriptor in record.inputs], created=_now())
            self._ids["workload", record.key] = row_id
        return row_id

    def _recall(self, connection: Connection, workloads: Iterable[WorkloadRecord]) -> None:
        """Look up the ids of many workloads in a few statements, instead of one each."""
        model = schema.Workload
        unknown = list({workload.key for workload in workloads if ("workload", workload.key) not in self._ids})
        for keys in in_batches(unknown):
            select = sa.select(model.key, model.id).where(model.key.in_(keys))
            self._ids.update({("workload", key): row for key, row in connection.execute(select)})

    def add_traces_in(self, connection: Connection, traces: Sequence[TraceRecord]) -> tuple[int, ...]:
        """Add traces inside a write transaction, as `add_traces` does; return their row ids."""
        table = schema.BenchmarkTrace
        _require_dated(connection, *(trace.timestamp for trace in traces if trace.timestamp is not None))
        self._recall(connection, (trace.workload for trace in traces))
        values = [{"implementation_id": self._implementation(connection, trace.implementation),
                   "workload_id": self._workload(connection, trace.workload),
                   "environment_id": self._environment(connection, trace.environment), "samples_ms": list(trace.samples_ms),
                   "sample_count": len(trace.samples_ms), "full_log": compress_log(trace.log), "conditions": dict(trace.conditions),
                   **{column: getattr(trace, column) for column in _SAME}}
                  for trace in traces]
        return self._insert_many(connection, cast(sa.Table, table.__table__), values)

    def _insert_many(self, connection: Connection, table: sa.Table, values: list[dict[str, Any]]) -> tuple[int, ...]:
        """Insert rows inside a write transaction; return their row ids, in order."""
        if not values:
            return ()
        if self.is_sqlite:
            # Nobody else writes now, so the numbers are ours to give; RETURNING takes a statement per row.
            first = connection.execute(sa.select(sa.func.coalesce(sa.func.max(table.c.id), 0) + 1)).scalar_one()
            connection.execute(sa.insert(table), [{"id": first + n, **row} for n, row in enumerate(values)])
            return tuple(range(first, first + len(values)))
        insert = sa.insert(table).returning(table.c.id, sort_by_parameter_order=True)
        return tuple(connection.execute(insert, values).scalars())

_SAME = ("kind", "status", "median_ms", "spread", "max_relative_error", "p999_relative_error", "norm_error",
         "max_absolute_error", "tolerance", "baseline", "baseline_ms", "speedup_factor", "seed", "timer", "verifier",
         "timestamp", "verbatim")


def untrusted(implementation_id: Any) -> Any:
    """Return the SQL condition that the implementation with this id has a source that is not trusted yet."""
    source = schema.ImplementationSource
    return sa.exists().where(source.implementation_id == implementation_id, source.trusted.is_(False))


def environment_key(environment: Environment | str) -> str:
    """Return the key of an environment, which is given as an Environment or as its key."""
    return environment if isinstance(environment, str) else environment.key()


def text_hash(text: str) -> str:
    """Return the hash of a source's text, as in the column `content_sha256`."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()  # half a pair in a damaged file is a text too


def in_batches(items: Collection[Any]) -> Iterator[list[Any]]:
    """Yield the items in lists of as many as one statement takes."""
    left = iter(items)
    while batch := list(islice(left, LOOKED_UP)):
        yield batch


def latest_timestamp(connection: Connection | None = None) -> datetime:
    """Return the latest valid date of a measurement: now plus a day, for wrong clocks. As the newest row counts, one dated in the
    future would count for ever. connection: if to a server, its clock is read."""
    now = _now()
    if connection is not None and connection.dialect.name != "sqlite":
        now = connection.execute(sa.select(sa.func.now())).scalar_one()
    return now + timedelta(days=1)


def _require_dated(connection: Connection, *timestamps: datetime) -> None:
    """Raise InvalidRecord for a timestamp later than `latest_timestamp`: this machine's clock is ahead of the server's."""
    latest = latest_timestamp(connection)
    if (ahead := max(timestamps, default=latest)) > latest:
        raise InvalidRecord(f"a measurement is dated {ahead.isoformat(timespec='seconds')}, and the latest that can be here is "
                            f"{latest.isoformat(timespec='seconds')}; it was not stored\n  fix: set the clock of this machine")


def _now() -> datetime:
    return datetime.now(UTC)


def _after_fork() -> None:
    for database in list(_open):
        database._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
