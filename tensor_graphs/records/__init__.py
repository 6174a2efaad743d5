"""records: all measurements: graphs, implementations, environments, workloads, traces and the profile queue.

In: plain frozen rows (rows.py) that other rooms fill; strings and numbers only, never a graph, a kernel or an array.
Out: the same rows, read back by the queries in queries.py (fastest implementation within a tolerance, history, coverage, ...).
May import: errors, devices.environment.  Never: language (a graph comes as text), or anything below in the list of rooms.
Read first: rows.py, schema.py (the tables), database.py (writing), measurements.py (the compiler's queries), queries.py (people's),
work_queue.py, upkeep.py (check, trust, vacuum, stats), consistency_check.py (impossible rows), migrating.py (a new or older file).
Words: trace = one measurement; verdict = summary of all traces of one implementation on one workload in one environment.

SQLAlchemy is imported by the first `open_database`, so importing the row classes costs nothing at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensor_graphs.records.errors import (
    CorruptDatabase,
    DatabaseBusy,
    DatabaseError,
    DatabaseFull,
    DatabasePathError,
    DatabaseReadOnly,
    ExportError,
    InvalidRecord,
    MissingRecord,
    NoDatabase,
    SchemaMismatch,
    UnsupportedDatabase,
)
from tensor_graphs.records.rows import (
    DefinitionRecord,
    DeviceConstant,
    GraphRecord,
    ImplementationRecord,
    ProfileRequest,
    QueueItem,
    SourceRecord,
    TraceRecord,
    WorkloadRecord,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tensor_graphs.records.database import Database

__all__ = [
    "CorruptDatabase", "DatabaseBusy", "DatabaseError", "DatabaseFull", "DatabasePathError", "DatabaseReadOnly",
    "DefinitionRecord", "DeviceConstant", "ExportError", "GraphRecord", "ImplementationRecord", "InvalidRecord", "MissingRecord",
    "NoDatabase", "ProfileRequest", "QueueItem", "SchemaMismatch", "SourceRecord", "TraceRecord", "UnsupportedDatabase",
    "WorkloadRecord", "open_database",
]  # fmt: skip


def open_database(target: str | Path | None = None, **options: Any) -> Database:
    """Open the benchmark database, creating or migrating it when needed: see `records.database.open_database`."""
    from tensor_graphs.records.database import open_database as open_it  # here, as SQLAlchemy takes 0.2 s to import

    return open_it(target, **options)
