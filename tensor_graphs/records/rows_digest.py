"""rows_digest: a digest of the measurements in a database: if it is unchanged, decisions based on these rows still hold.

`of_file` opens an SQLite file without SQLAlchemy, whose import takes longer than reading the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensor_graphs.records.database import Database

ASKED = (
    # in the order of an index that has all these columns: 20 ms for 10,000 traces
    """SELECT environment_id, workload_id, implementation_id, timestamp, id, kind, status, verifier, max_relative_error, tolerance,
    median_ms FROM benchmark_traces ORDER BY environment_id, workload_id, implementation_id, timestamp, id""",
    "SELECT implementation_id, id FROM implementation_sources WHERE trusted IS {false} ORDER BY implementation_id, id",
    "SELECT environment_id, device, name, value, timestamp, id FROM device_constants ORDER BY id",
)
"""Queries for the rows on which costs and verdicts are based; not those that a compile adds itself (workloads, requests)."""


def _digest(rows_of: Callable[[str], Iterable[Any]], false: str) -> str:
    digest = hashlib.sha256()
    for question in ASKED:
        digest.update(question.encode())
        for row in rows_of(question.format(false=false)):
            digest.update(repr(tuple(row)).encode())
    return digest.hexdigest()


def generation(database: Database) -> str:
    """Return the digest of an open database."""
    with database.reading() as connection:
        return _digest(connection.exec_driver_sql, "0" if database.is_sqlite else "false")


def of_file(path: Path) -> str | None:
    """Return the digest of the SQLite database in a file; None where there is no such file, or it cannot be read."""
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            return _digest(connection.execute, "0")
    except sqlite3.Error:                                           # `open_database` explains what is wrong with it
        return None
