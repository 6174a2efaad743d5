"""driver_errors: this package's errors, with a fix, for the errors of a database driver."""

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

_INCOMPLETE = ("{file} lacks what every database of ours has",
               "`tg db check` lists what is missing; tg db import of an export fills a new database (--db)")
# SQLite's error name (its beginning): our error, what happened, what to do.
_MEANING: tuple[tuple[tuple[str, ...], type[DatabaseError], str, str], ...] = (
    (("SQLITE_NOTADB",), CorruptDatabase, "{file} is not a database", "name another file, or move this one away"),
    (("SQLITE_CORRUPT",), CorruptDatabase, "{file} is damaged",
     "save what can be read with `sqlite3 {file} .recover`, then move the file away"),
    (("SQLITE_FULL",), DatabaseFull, "no room for a row in {file}", "free disk space; nothing was half written"),
    (("SQLITE_READONLY",), DatabaseReadOnly, "{file} cannot be written",
     "make the file and its folder writable, or choose another database"),
    (("SQLITE_BUSY", "SQLITE_LOCKED"), DatabaseBusy, "another process kept {file} locked for too long",
     "try again when it has finished"),
    (("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_AUTH"), DatabasePathError, "{file} cannot be opened",
     "choose a file on a local disk that you may write"),
    (("SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG"), InvalidRecord, "{file} refused a row",
     "correct the record; nothing of it was stored"),
    (("SQLITE_ERROR",), CorruptDatabase, *_INCOMPLETE),
    (("",), DatabaseError, "{file} cannot be used", "`tg db check` looks for damage"),
)


# PostgreSQL's codes (their beginnings): the same.
_SERVER: tuple[tuple[tuple[str, ...], type[DatabaseError], str, str], ...] = (
    (("42501", "25006"), DatabaseReadOnly, "{file} cannot be written by this account",
     "an account that may SELECT, INSERT, UPDATE and DELETE; SELECT alone is for questions (tg db best, …) and pins (--plan)"),
    (("42P01", "42703"), CorruptDatabase, *_INCOMPLETE),
    (("53100",), DatabaseFull, "no room for a row in {file}", "free disk space on the server; nothing was half written"),
    (("40", "55P03"), DatabaseBusy, "another process was in the way in {file}", "try again when it has finished"),
    (("23", "22"), InvalidRecord, "{file} refused a row", "correct the record; nothing of it was stored"),
    (("",), DatabaseError, "{file} cannot be used", "check that the server runs, and the URL with its options"),
)


def explain(location: str, cause: BaseException | None, error: Exception) -> DatabaseError:
    """Return this package's error for a driver's error, with the cause and a fix. location: of the database."""
    if isinstance(cause, sqlite3.Error):
        name, meanings = getattr(cause, "sqlite_errorname", None) or "", _MEANING
    else:
        integrity = "23" if isinstance(error, exc.IntegrityError) else ""
        name, meanings = getattr(cause, "sqlstate", None) or integrity, _SERVER
    kind, what, fix = next((kind, what, fix) for beginnings, kind, what, fix in meanings if name.startswith(beginnings))
    return kind(f"{what}: {str(cause or error).strip()}\n  fix: {fix}".replace("{file}", location))
