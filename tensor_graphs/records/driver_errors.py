"""driver_errors: what an error of a database's driver means to the person who hits it."""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc

from tensor_graphs.records.errors import (
    CorruptDatabase,
    DatabaseBusy,
    DatabaseError,
    DatabaseFull,
    DatabasePathError,
    DatabaseReadOnly,
    InvalidRecord,
)

# SQLite's error name (its beginning): our error, what happened, what to do.
_MEANING: tuple[tuple[tuple[str, ...], type[DatabaseError], str, str], ...] = (
    (("SQLITE_NOTADB",), CorruptDatabase, "{file} is not a database", "name another file, or move this one away"),
    (
        ("SQLITE_CORRUPT",),
        CorruptDatabase,
        "{file} is damaged",
        "save what can be read with `sqlite3 {file} .recover`, then move the file away",
    ),
    (("SQLITE_FULL",), DatabaseFull, "no room for a row in {file}", "free disk space; nothing was half written"),
    (
        ("SQLITE_READONLY",),
        DatabaseReadOnly,
        "{file} cannot be written",
        "make the file and its folder writable, or choose another database",
    ),
    (
        ("SQLITE_BUSY", "SQLITE_LOCKED"),
        DatabaseBusy,
        "another process kept {file} locked for too long",
        "try again when it has finished",
    ),
    (
        ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_AUTH"),
        DatabasePathError,
        "{file} cannot be opened",
        "choose a file on a local disk that you may write",
    ),
    (
        ("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG"),
        InvalidRecord,
        "{file} refused a row",
        "correct the record; nothing of it was stored",
    ),
)


def explain(location: str, cause: BaseException | None, error: Exception) -> DatabaseError:
    """What a driver's error means to the person who hits it."""
    if isinstance(cause, sqlite3.Error):
        name = getattr(cause, "sqlite_errorname", None) or ""
        for beginnings, kind, what, fix in _MEANING:
            if name.startswith(beginnings):
                return kind(f"{what}: {cause}\n  fix: {fix}".replace("{file}", location))
        return DatabaseError(f"{location}: {cause} ({name or type(cause).__name__})")
    if isinstance(error, exc.IntegrityError):
        return InvalidRecord(
            f"{location} refused a row: {cause}\n  fix: correct the record; nothing of it was stored"
        )
    if isinstance(error, exc.OperationalError):
        return DatabaseError(
            f"{location} cannot be used: {cause}\n  fix: check that the server runs and that the URL is right"
        )
    return DatabaseError(f"{location}: {cause or error}")
