"""portable: export the entire database to one file that can be carried elsewhere, and merge such a file into another database.

Two forms. `.jsonl.gz` (or `.jsonl`): text; one header line with the schema's version and the row counts, one line `[table, row]`
per row, parents first, and an end line, without which the file counts as cut. `.sqlite`: a copy of the database file.

A merge compares natural keys (structural keys, signatures, workload and environment keys), so that a second import of a file adds
nothing; a trace is known when a trace with equal content is stored. Row ids in a file only connect its rows with each other. The
merge is one transaction. Texts, sources and trust that are already stored win over those of the file.

Three values belong to one database and are set again by an import: whether a source is trusted (a new one is not, unless the same
text is installed on this machine), its origin (the file, if the row names none), and who holds a request. All else is copied
unchanged.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import gzip
import json
import os
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.records import schema
from tensor_graphs.records.consistency_check import Reads, Soundness, any_graph
from tensor_graphs.records.database import BESIDE, Database, latest_timestamp, open_database
from tensor_graphs.records.driver_errors import explain
from tensor_graphs.records.errors import ExportError, InvalidRecord, SchemaMismatch
from tensor_graphs.records.rows import ImplementationRecord
from tensor_graphs.records.table_order import TABLES, parents
from tensor_graphs.regular_file import open_regular

FORMAT = "tensor_graphs benchmark database"
VERSION = 1
"""Version of the line format of a text export; the schema's version is stored next to it."""

HEADER = b'{"format":' + json.dumps(FORMAT).encode()
"""Beginning of the first line of a text export."""

TEXT_SUFFIXES = (".jsonl.gz", ".jsonl")
FILE_SUFFIXES = (".sqlite", ".db")
MOST_LINE = 1 << 28
"""Most bytes of one line of text, as a damaged archive may unpack to a line larger than memory."""
CHUNK = 500
"""Number of rows looked up and stored together."""
IMPORT_LOCK = 0x7467_696D_706F  # PostgreSQL: one import at a time; the number only has to be ours

KEYS: dict[str, tuple[str, ...]] = {
    "canonical_graphs": ("structural_key",),
    "definitions": ("name", "canonical_graph_id"),
    "implementations": ("signature",),
    "implementation_sources": ("implementation_id", "path"),
    "environments": ("key",),
    "recipe_searches": ("key",),
    "workloads": ("key",),
    "benchmark_traces": ("environment_id", "workload_id", "implementation_id", "timestamp"),  # and then all of the content
    "device_constants": ("environment_id", "device", "name", "timestamp"),
    "profile_queue": ("implementation_id", "workload_id", "environment_id"),
    "imported_files": ("dataset", "path"),
    "imported_lines": ("file_id", "number"),
}
"""For each table the columns in which two rows are equal if they are the same row."""

OnStep = Callable[[int, int], None]
"""Callback with (number of rows done, number of all rows)."""

Installed = Callable[[str], ImplementationRecord | None]
"""Function that returns the implementation of this name that is installed on this machine, or None."""

Row = dict[str, Any]


@dataclass(frozen=True)
class ExportReport:
    """Result of an export. rows: number of rows by table."""

    file: str
    schema: str
    rows: Mapping[str, int]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "schema": self.schema, "rows": dict(self.rows), "bytes": self.bytes}

    def lines(self) -> list[str]:
        total, traces = sum(self.rows.values()), self.rows["benchmark_traces"]
        return [f"{self.file}: {total} rows, {traces} of them traces, schema {self.schema}, {self.bytes / 1e6:.2f} MB"]


@dataclass(frozen=True)
class ImportReport:
    """Result of an import. new, known: number of rows by table that were added, and that were stored already. untrusted: signature
    and name of each new implementation whose sources wait for `trust`; installed: of each that needs no trust, as it is installed
    on this machine. left_out: for each row left out, a text with the reason."""

    file: str
    schema: str
    new: Mapping[str, int]
    known: Mapping[str, int]
    untrusted: tuple[tuple[str, str], ...]
    installed: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        def named(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
            return [{"signature": signature, "name": name} for signature, name in pairs]

        return {"file": self.file, "schema": self.schema, "new": dict(self.new), "known": dict(self.known),
                "untrusted": named(self.untrusted), "installed": named(self.installed), "left_out": list(self.left_out)}

    def lines(self) -> list[str]:
        lines = [f"{self.file} (schema {self.schema})"]
        for table in self.new:
            if self.new[table] or self.known[table]:
                lines.append(f"  {table:24s} {self.new[table]} new, {self.known[table]} known already")
        if self.installed:
            lines.append(f"  {len(self.installed)} implementations are installed here, and are used")
        if self.untrusted:
            lines.append(f"  {len(self.untrusted)} implementations came with sources that are not trusted, and are not used until")
            lines.extend(f"    tg db trust {signature}   # {name}" for signature, name in self.untrusted[:5])
            if len(self.untrusted) > 5:
                lines.append(f"    … {len(self.untrusted) - 5} more (--json lists them)")
        if self.left_out:
            lines.append(f"  {len(self.left_out)} rows were left out (--json lists them), the first since")
            lines.extend(f"    {line}" for line in self.left_out[:5])
        return lines


# ---- out -------------------------------------------------------------------------------------------------------------


def export_file(
    database: Database, file: Path, on_step: OnStep = lambda done, total: None, *, replace: bool = False
) -> ExportReport:
    """Write every table to a file, in the form that its suffix names. The file appears when it is complete, or not at all.

    replace: an existing file may be replaced, but never the database itself. Raises ExportError for an existing file, another
    suffix, or a path that cannot be written.
    """
    text = file.name.endswith(TEXT_SUFFIXES)
    if not text and file.suffix not in FILE_SUFFIXES:
        raise ExportError(f"{file}: the suffix says no form of export\n  fix: name it *.jsonl.gz or *.sqlite")
    _check_target(database, file, replace)
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        counts = _write_text(database, partial, file.name, on_step) if text else _write_copy(database, partial, file, on_step)
        size = partial.stat().st_size
        _check_target(database, file, replace)  # again: writing takes a while
        os.replace(partial, file)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "free space there, or choose a file on another disk" if full else "choose a file in a folder that you may write"
        raise ExportError(f"{file} cannot be written: {error.strerror or error}\n  fix: {fix}") from error
    finally:
        with contextlib.suppress(OSError):                          # of a read-only file system even for a file that is not there
            partial.unlink(missing_ok=True)
    return ExportReport(str(file), schema.REVISION, counts, size)


def _check_target(database: Database, file: Path, replace: bool) -> None:
    """Raise ExportError where writing the file would destroy something, or its folder is missing."""
    if not file.parent.is_dir():
        raise ExportError(f"{file} cannot be written: there is no folder {file.parent}\n"
                          "  fix: make it first, or name a file in a folder that is there")
    if database.is_in(file):
        raise ExportError(f"{file} is the database itself\n  fix: name another file")
    if os.path.lexists(file) and not replace:
        raise ExportError(f"{file} is there already\n  fix: name another file, or replace it (--force; in Python replace=True)")
    leftover = next((other for suffix in BESIDE if (other := Path(f"{file}{suffix}")).exists()), None)
    if leftover is not None:  # SQLite would play it into whatever file of that name it finds
        raise ExportError(f"{leftover} says that {file} is a database in use, or one whose last program was killed\n"
                          "  fix: name another file, or end that program and remove both")


def _counts(connection: Connection) -> dict[str, int]:
    return {table.name: int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()) for table in TABLES}


def _write_text(database: Database, file: Path, name: str, on_step: OnStep) -> dict[str, int]:
    with contextlib.ExitStack() as stack:
        opened: Any = stack.enter_context(file.open("wb"))
        if name.endswith(".gz"):
            opened = stack.enter_context(gzip.GzipFile(name[:-3], "wb", 6, opened))
        connection = stack.enter_context(database.reading())
        counts = _counts(connection)
        total = sum(counts.values())
        header = {"format": FORMAT, "version": VERSION, "schema": schema.REVISION, "written": _now(), "rows": counts}
        opened.write(_line(header))
        done = 0
        for table in TABLES:
            for row in _rows_of(connection, table):
                written = {column.name: _text(row[column.name]) for column in table.columns if row[column.name] is not None}
                opened.write(_line([table.name, written]))
                done += 1
                if done % CHUNK == 0:
                    on_step(done, total)
        opened.write(_line({"end": total}))
        on_step(total, total)
    return counts


def _write_copy(database: Database, file: Path, named: Path, on_step: OnStep) -> dict[str, int]:
    """Write a database file and return its row counts. named: the final name of the file, for errors."""
    if not database.is_sqlite:
        with open_database(file) as copy, database.reading() as connection:
            counts = _counts(connection)
            rows = ((table.name, row) for table in TABLES for row in _rows_of(connection, table))
            with copy.writing() as target:
                _Merge(copy, target, str(file)).take(rows, sum(counts.values()), on_step)
            with contextlib.closing(copy.engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA journal_mode = DELETE")
        return counts
    try:
        with database.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute("VACUUM INTO ?", (str(file),))
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as written:
            counts = {table.name: int(written.execute(f"SELECT COUNT(*) FROM {table.name}").fetchone()[0]) for table in TABLES}
    except sqlite3.Error as error:
        # one statement reads the one file and writes the other, and SQLite does not say which it means: a new file is not damaged
        damaged = (getattr(error, "sqlite_errorname", None) or "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
        raise explain(database.location if damaged else str(named), error, error) from error
    on_step(sum(counts.values()), sum(counts.values()))
    return counts


def _rows_of(connection: Connection, table: sa.Table) -> Iterator[Row]:
    result = connection.execution_options(yield_per=2 * CHUNK).execute(sa.select(table).order_by(table.c.id))
    for row in result.mappings():
        yield dict(row)


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _text(value: Any) -> Any:
    """Convert a column's value to JSON: times to ISO 8601, bytes to base64, infinities to strings."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return str(value)
    return value


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---- in --------------------------------------------------------------------------------------------------------------


def import_file(database: Database, file: Path, on_step: OnStep = lambda done, total: None, *,
                installed: Installed = lambda name: None, reads: Reads = any_graph, sound_only: bool = False) -> ImportReport:
    """Merge an export (either form, detected by content) into a database: all of it, or on any error nothing.

    installed: see `Installed`; code that is installed on this machine needs no trust. reads: see `sound.Reads`. sound_only: leave
    out impossible rows, and rows that refer to them, instead of refusing the file.

    Raises ExportError for a file that is no complete export or has an impossible row, SchemaMismatch for one of a newer
    tensor_graphs, InvalidRecord when it contradicts a stored row.
    """
    rule = _Rule(installed, reads, sound_only)
    try:
        with open_regular(file) as opened:
            beginning = opened.read(16)
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}\n  fix: name a file that `tg db export` wrote") from error
    if beginning == b"SQLite format 3\0":
        return _import_copy(database, file, on_step, rule)
    with contextlib.ExitStack() as stack:
        lines: Any = stack.enter_context(open_regular(file))
        if beginning[:2] == b"\x1f\x8b":
            lines = stack.enter_context(gzip.GzipFile(fileobj=lines))
        reader = _TextReader(file, lines)
        return _merge(database, file, reader.schema, reader.rows(), reader.total, on_step, rule)


@dataclass(frozen=True)
class _Rule:
    """Options of an import, as in `import_file`."""

    installed: Installed
    reads: Reads
    sound_only: bool


def _merge(database: Database, file: Path, revision: str, rows: Iterable[tuple[str, Row]], total: int, on_step: OnStep,
           rule: _Rule) -> ImportReport:
    try:
        with database.writing() as connection:
            if not database.is_sqlite:                              # or two imports of one file would both store its traces
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(IMPORT_LOCK)))
            merge = _Merge(database, connection, file.name, rule)
            merge.take(rows, total, on_step)
    except InvalidRecord as error:
        if not isinstance(error.__cause__, sa.exc.IntegrityError):
            raise
        raise InvalidRecord(f"{file} has a row that its table refuses: {error.__cause__.orig}; nothing of it was stored\n"
                            "  fix: export it again") from error
    database._forget()
    own = _vouch(database, merge, rule.installed)
    new = {table.name: merge.new[table.name] for table in TABLES}
    known_rows = {table.name: merge.known[table.name] for table in TABLES}
    waiting = [identity for row, identity in merge.untrusted.items() if row not in own]
    return ImportReport(str(file), revision, new, known_rows, tuple(waiting), tuple(merge.untrusted[row] for row in own),
                        tuple(merge.left_out))


def _vouch(database: Database, merge: _Merge, installed: Installed) -> list[int]:
    """Replace imported sources by those of the implementation of the same signature installed on this machine, if any; return the
    ids of these. This runs after the merge's transaction: finding what is installed may compile a backend, and would block other
    writers."""
    own_records = {row: installed(name) for row, (_, name) in merge.untrusted.items()}
    with database.writing() as connection:
        return [row for row, own in own_records.items() if own is not None and own.signature == merge.untrusted[row][0]
                and database._vouch(connection, row, own.sources)]


def _import_copy(database: Database, file: Path, on_step: OnStep, rule: _Rule) -> ImportReport:
    if database.is_in(file):
        raise ExportError(f"{file} is the database itself\n  fix: import the export of another one")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as raw:
            revision = raw.execute("SELECT version_num FROM alembic_version").fetchone()[0]
            with tempfile.TemporaryDirectory() as folder:
                readable = file
                if revision < schema.REVISION:  # the file stays as it is; a copy is brought up to date
                    readable = Path(folder) / "copy.db"
                    with contextlib.closing(sqlite3.connect(readable)) as copy:
                        raw.backup(copy)
                raw.close()
                with open_database(readable) as source, source.reading() as connection:
                    rows = ((table.name, row) for table in TABLES for row in _rows_of(connection, table))
                    return _merge(database, file, revision, rows, sum(_counts(connection).values()), on_step, rule)
    except sqlite3.OperationalError as error:
        if "alembic_version" in str(error):
            raise ExportError(f"{file} is the database of another program\n  fix: name a file that `tg db export` wrote") from error
        raise explain(str(file), error, error) from error
    except sqlite3.Error as error:
        raise explain(str(file), error, error) from error


class _TextReader:
    """Reader of the rows of a text export, checked line by line. The constructor reads the header."""

    def __init__(self, file: Path, lines: IO[bytes]) -> None:
        self._file, self._number, self._lines = file, 0, lines
        header = self._next()
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ExportError(f"{file} is no export of a database: its first line does not say {FORMAT!r}\n"
                              "  fix: name a file that `tg db export` wrote")  # fmt: skip
        self.schema = str(header.get("schema"))
        if self.schema > schema.REVISION or header.get("version") != VERSION:
            raise SchemaMismatch(
                f"{file} was written by a newer tensor_graphs: its schema is {self.schema} (form {header.get('version')}), "
                f"this one knows {schema.REVISION} (form {VERSION})\n  fix: upgrade tensor_graphs, or export with the older one"
            )
        rows = header.get("rows")
        self.total = sum(rows.values()) if isinstance(rows, dict) else 0

    def _read(self) -> bytes:
        self._number += 1
        try:
            return self._lines.readline(MOST_LINE)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._wrong("is where it is cut or damaged") from error

    def _next(self) -> Any:
        line = self._read()
        if not line.endswith(b"\n"):
            raise self._wrong("is where it is cut", line)
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._wrong("is no JSON", line) from error

    def _wrong(self, what: str, line: bytes = HEADER) -> ExportError:
        if self._number == 1 and not (line and HEADER.startswith(line[:len(HEADER)])):
            return ExportError(f"{self._file} is {'no export of a database' if line else 'empty, and no export of a database'}\n"
                               "  fix: name a file that `tg db export` wrote")
        return ExportError(f"{self._file} line {self._number} {what}; nothing of it was stored\n  fix: export it again")

    def rows(self) -> Iterator[tuple[str, Row]]:
        count = 0
        while True:
            value = self._next()
            if isinstance(value, dict) and "end" in value:
                if value["end"] != count:
                    raise self._wrong(f"says that there are {value['end']} rows, and there are {count}")
                if self._read():  # this also compares the checksum at the end of a compressed file
                    raise self._wrong("stands behind the end")
                return
            if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)
                    and value[0] in _READERS):
                raise self._wrong("is no row of a table that this version knows")
            count += 1
            yield value[0], self._row(value[0], value[1])

    def _row(self, table: str, written: Row) -> Row:
        readers = _READERS[table]
        unknown = written.keys() - readers.keys()
        if unknown:
            raise self._wrong(f"has a column that {table} does not have, {min(unknown)!r}")
        row: Row = {}
        for name, (nullable, read) in readers.items():
            value = written.get(name)
            if value is not None:
                try:
                    value = read(value)
                except (TypeError, ValueError) as error:  # binascii.Error is one of them
                    raise self._wrong(f"has a {name} that is none: {str(value)[:40]!r}") from error
            elif not nullable:
                raise self._wrong(f"has no {name}, which every row of {table} has")
            row[name] = value
        return row


def _reader(kind: sa.types.TypeEngine[Any]) -> Callable[[Any], Any]:
    """Return the inverse of `_text` for a column type; it raises TypeError or ValueError for a value of another type."""
    if isinstance(kind, schema.UtcDateTime):
        return lambda value: datetime.fromisoformat(value).astimezone(UTC)
    if isinstance(kind, sa.LargeBinary):
        return lambda value: base64.b64decode(value, validate=True)
    if isinstance(kind, sa.Float):
        return float
    if isinstance(kind, sa.JSON):
        return lambda value: value
    wanted: type = str
    if isinstance(kind, schema.JsonObject):
        wanted = kind.kind
    elif isinstance(kind, (sa.Boolean, sa.Integer)):
        wanted = bool if isinstance(kind, sa.Boolean) else int

    def same(value: Any) -> Any:
        if type(value) is not wanted:
            raise TypeError(value)
        return value

    return same


_READERS = {table.name: {c.name: (bool(c.nullable), _reader(c.type)) for c in table.columns} for table in TABLES}


@dataclass
class _Merge:
    """A merge of rows into a database. rule: options of an import; None for an unchanged copy of a database."""

    database: Database
    connection: Connection
    origin: str
    rule: _Rule | None = None
    new: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    untrusted: dict[int, tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids: dict[str, dict[int, int]] = {table.name: {} for table in TABLES}
        self._added: dict[str, set[int]] = {"implementations": set(), "imported_files": set()}
        self._names: dict[int, tuple[str, str]] = {}
        self._matched: set[int] = set()
        self._without: dict[str, set[int]] = {table.name: set() for table in TABLES}
        self._sound = None if self.rule is None else Soundness(latest_timestamp(self.connection), self.rule.reads)
        trace = schema.BenchmarkTrace
        self._last_trace = int(self.connection.execute(sa.select(sa.func.coalesce(sa.func.max(trace.id), 0))).scalar_one())

    def take(self, rows: Iterable[tuple[str, Row]], total: int, on_step: OnStep) -> None:
        tables = {table.name: table for table in TABLES}
        done = 0
        for name, together in groupby(rows, key=lambda entry: entry[0]):
            while chunk := [row for _, row in islice(together, CHUNK)]:
                self._take(tables[name], chunk)
                done += len(chunk)
                on_step(done, total)

    def _take(self, table: sa.Table, rows: list[Row]) -> None:
        ids = self._ids[table.name]
        here = self._traces_here if table.name == "benchmark_traces" else self._rows_here
        rows = [row for row in rows if self._is_sound(table, row)]
        wanted = [(row.pop("id"), row) for row in rows if self._adapt(table, row)]
        self.known[table.name] += len(rows) - len(wanted)
        existing = here(table, [row for _, row in wanted])
        fresh = [(old, row) for (old, row), there in zip(wanted, existing, strict=True) if there is None]
        ids.update((old, there) for (old, _), there in zip(wanted, existing, strict=True) if there is not None)
        self.known[table.name] += len(wanted) - len(fresh)
        self.new[table.name] += len(fresh)
        if not fresh:
            return
        added = self._insert(table, [row for _, row in fresh])
        ids.update(zip((old for old, _ in fresh), added, strict=True))
        if table.name in self._added:
            self._added[table.name].update(added)
        if table.name == "implementations":
            self._names.update((i, (row["signature"], row["name"])) for i, (_, row) in zip(added, fresh, strict=True))
        if table.name == "implementation_sources" and self.rule is not None:
            for _, row in fresh:
                self.untrusted[row["implementation_id"]] = self._names[row["implementation_id"]]

    def _insert(self, table: sa.Table, rows: list[Row]) -> Sequence[int]:
        """Insert rows and return their ids; for a row that another process has just stored, return the id of that row."""
        if self.database.is_sqlite or not any(isinstance(c, sa.UniqueConstraint) for c in table.constraints):
            return self.database._insert_many(self.connection, table, rows)
        self.connection.execute(self.database._insert(table).on_conflict_do_nothing(), rows)
        return [row for row in self._rows_here(table, rows) if row is not None]

    def _is_sound(self, table: sa.Table, row: Row) -> bool:
        """Return whether a row is sound; False if it is left out (sound_only). Raises ExportError for it otherwise."""
        if self._sound is None or self.rule is None:
            return True
        why = self._sound.why_not(table.name, row)
        if why is None:
            without = (f"it refers to row {row[name]} of {parent}, which is left out" for name, parent in parents(table)
                       if row[name] in self._without[parent])
            if (why := next(without, None)) is None:
                return True
        named = f"row {row['id']} of {table.name}: {why}"
        if not self.rule.sound_only:
            raise ExportError(f"{self.origin}: {named}; nothing of it was stored\n"
                              "  fix: export it again; --sound-only leaves such rows out")
        self._without[table.name].add(row["id"])
        self.left_out.append(named)
        return False

    def _adapt(self, table: sa.Table, row: Row) -> bool:
        """Set a row's ids, trust and origin to this database's. Return False to leave it out, as its parent is stored already."""
        for name, parent in parents(table):
            old = row[name]
            if old is not None:
                new = self._ids[parent].get(old)
                if new is None:
                    raise ExportError(
                        f"{self.origin}: row {row['id']} of {table.name} refers to row {old} of {parent}, which the file does "
                        "not have before it; nothing of it was stored\n  fix: export it again"
                    )
                row[name] = new
        if table.name == "implementation_sources":
            if row["implementation_id"] not in self._added["implementations"]:
                return False
            if self.rule is not None:
                row["trusted"] = False
                if not row["origin"]:
                    row["origin"] = f"imported from {self.origin}"
        if table.name == "imported_lines":
            return row["file_id"] in self._added["imported_files"]
        if table.name == "profile_queue":
            row.update(claimed_by=None, claimed_at=None, lease_until=None, attempts=0)
        return True

    def _rows_here(self, table: sa.Table, rows: list[Row]) -> list[int | None]:
        """Return for each row the id of the stored row with the same natural key, or None."""
        names = KEYS[table.name]
        also = [table.c.name] if table.name == "implementations" else []
        keys = [tuple(row[name] for name in names) for row in rows]
        if not keys:
            return []
        by_key: dict[tuple[Any, ...], Any] = {}
        select = sa.select(table.c.id, *also, *(table.c[name] for name in names))
        for row_here in self.connection.execute(select.where(_among(table, keys))):
            by_key[tuple(row_here[1 + len(also) :])] = row_here
        for row, key in zip(rows, keys, strict=True):
            if also and key in by_key and by_key[key][1] != row["name"]:
                raise InvalidRecord(
                    f"{self.origin}: the implementation {row['name']!r} is {by_key[key][1]!r} here: one source hash, "
                    f"{row['source_hash']}, two names\n  fix: find out which name is right before you merge; nothing was stored"
                )
        return [by_key[key][0] if key in by_key else None for key in keys]

    def _traces_here(self, table: sa.Table, rows: list[Row]) -> list[int | None]:
        """Return for each trace the id of a stored one with equal content, or None; each stored trace is matched once."""
        names = KEYS[table.name]
        keys = [tuple(row[name] for name in names) for row in rows]
        if not keys or not self._last_trace:
            return [None] * len(rows)
        select = sa.select(table).where(_among(table, keys), table.c.id <= self._last_trace)
        here: dict[tuple[Any, ...], list[Row]] = {}
        for stored in self.connection.execute(select.order_by(table.c.id)).mappings():
            here.setdefault(tuple(stored[name] for name in names), []).append(dict(stored))
        same: list[int | None] = []
        for row, key in zip(rows, keys, strict=True):
            unmatched = (other for other in here.get(key, ()) if other["id"] not in self._matched)
            match = next((other["id"] for other in unmatched if other == {"id": other["id"], **row}), None)
            if match is not None:
                self._matched.add(match)
            same.append(match)
        return same


def _among(table: sa.Table, keys: list[tuple[Any, ...]]) -> Any:
    column, *more = (table.c[name] for name in KEYS[table.name])
    return sa.tuple_(column, *more).in_(keys) if more else column.in_([key[0] for key in keys])
