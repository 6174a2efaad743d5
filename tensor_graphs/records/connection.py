"""connection: from a path or URL to a configured engine, with errors that name a fix.

SQLite is the default, in WAL mode, so that readers never wait; foreign keys are enforced; writers take the lock with BEGIN
IMMEDIATE and wait for it. With synchronous=NORMAL, a killed process loses nothing that it has committed, and no half row is ever
seen; a power cut may lose the last transactions, each entirely. A finished measurement leaves the queue in the transaction that
stores its trace. So a measurement lost this way is still in the queue, and one fsync per commit (FULL) would gain nothing.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import Connection, Engine

from tensor_graphs.records.errors import CorruptDatabase, DatabasePathError, NoDatabase, UnsupportedDatabase
from tensor_graphs.records.location import default_target
from tensor_graphs.regular_file import blocking


def parse_target(target: str | Path | None) -> sa.URL:
    """Return the URL for an argument of `open_database`. Raises UnsupportedDatabase for an unsupported URL scheme."""
    if target is None:
        target = default_target()
    text = str(target)
    if not text:                                    # of a variable that the shell does not know: the usual one is not meant
        raise DatabasePathError("the name of the database is empty (--db, TENSOR_GRAPHS_DB)\n"
                                "  fix: a path or a URL, or leave it out for the one in the user's data folder")
    if text == ":memory:":
        return sa.URL.create("sqlite")
    if isinstance(target, Path) or "://" not in text:
        return sa.URL.create("sqlite", database=str(Path(text).expanduser()))
    try:
        url = sa.make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise UnsupportedDatabase(
            f"{without_password(text)!r} is not a database URL\n  fix: use a path, sqlite:///PATH or {_POSTGRES}"
        ) from error
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise UnsupportedDatabase(f"{url.drivername}:// is no database that tensor_graphs can use\n"
                                  f"  fix: use a path, sqlite:///PATH or {_POSTGRES}")
    if url.get_backend_name() == "sqlite" and not url.database:  # SQLAlchemy takes it for a database in memory
        raise UnsupportedDatabase(
            f"{text} names no file\n  fix: sqlite:///PATH (a path from the root has four slashes), or just the path"
        )
    if "@" in (url.host or ""):
        raise UnsupportedDatabase(f"{without_password(text)} has an @ too many\n"
                                  "  fix: in a user's name or a password, write %40 for @, %2F for /, %3A for : and %25 for %")
    if url.drivername == "postgresql":              # SQLAlchemy's default driver is psycopg2, and the extra installs psycopg 3
        url = url.set(drivername="postgresql+psycopg")
    return url


_POSTGRES = "postgresql://USER@HOST/NAME"


def without_password(url: str) -> str:
    """Return a URL with its passwords hidden, whether it can be parsed or not: everything between the user's name and the last @
    may be the password.

    >>> without_password("postgresql://fleet:se/cr@et@host:abc/m?sslpassword=x&user=y")
    'postgresql://fleet:***@host:abc/m?sslpassword=***&user=y'
    """
    return re.sub(r"(?i)([?&][a-z]*password=)[^&]*", r"\1***", re.sub(r"(://[^:@/?]*):.*@", r"\1:***@", url))


def prepare_file(path: Path, *, create: bool = True, make_folder: bool = True) -> None:
    """Create the parent folder and refuse a path that can hold no database, before SQLite reports only "unable to open".

    create=False: nothing is created, and a missing file is refused. make_folder=False: a file in a missing folder is refused.
    """
    if path.is_dir():
        raise DatabasePathError(
            f"{path} is a folder, and the database is a file\n  fix: name a file in it, e.g. {path / 'benchmarks.db'}"
        )
    if path.exists() and not path.is_file():
        raise DatabasePathError(
            f"{path} is a device or a pipe, and the database is a regular file\n  fix: name a file on a local disk"
        )
    if not create:
        if not path.exists():
            raise no_database(str(path))
        return
    if not make_folder and not os.path.lexists(path.parent) and blocking(path.parent) is None:
        raise DatabasePathError(f"the database cannot be {path}: there is no folder {path.parent}\n"
                                f"  fix: mkdir -p {path.parent}, or a path in a folder that is there")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise DatabasePathError(
            f"the database cannot be {path}: {blocking(path.parent)} is no folder\n"
            "  fix: choose another path (--db, TENSOR_GRAPHS_DB, or XDG_DATA_HOME for the usual place)"
        ) from error
    except OSError as error:
        raise DatabasePathError(
            f"the folder of the database, {path.parent}, cannot be made: {error.strerror}\n"
            "  fix: choose a path below a folder you own (--db, TENSOR_GRAPHS_DB, or XDG_DATA_HOME for the usual place)"
        ) from error
    effective = os.access in os.supports_effective_ids
    if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK, effective_ids=effective):
        raise DatabasePathError(
            f"the database {path} cannot be made: its folder is not writable\n"
            "  fix: choose a path below a folder you own (--db, TENSOR_GRAPHS_DB, or XDG_DATA_HOME for the usual place)"
        )


def no_database(location: str) -> NoDatabase:
    """Return the error for a database that does not exist."""
    with suppress(OSError):
        if Path(location).stat().st_size == 0:
            return NoDatabase(f"the file {location} is empty, and no database\n"
                              "  fix: name another one (--db, TENSOR_GRAPHS_DB); tg profile and tg db import make one of it")
    return NoDatabase(f"there is no database {location}\n"
                      "  fix: name the one that you mean (--db, TENSOR_GRAPHS_DB); tg profile and tg db import make a new one")


def _cannot_be_written(file: Path) -> bool:
    """Return whether SQLite has to open the file as immutable: it or its folder, where SQLite creates files, cannot be written, and
    no other process is writing it."""
    alone = not Path(f"{file}-wal").exists()
    return alone and file.is_file() and not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK))


def connect(url: sa.URL, busy_seconds: float) -> Engine:
    """Return an engine whose every connection enforces foreign keys and waits `busy_seconds` for the write lock."""
    try:
        if url.get_backend_name() != "sqlite":
            return sa.create_engine(url, pool_pre_ping=True)
        arguments: dict[str, Any] = {"connect_args": {"timeout": busy_seconds, "check_same_thread": False}}
        if url.database in (None, "", ":memory:"):
            # one connection, or every caller would see another empty database
            arguments["poolclass"] = sa.pool.StaticPool
        elif _cannot_be_written(file := Path(str(url.database))):
            where = f"{file.absolute().as_uri()}?immutable=1"
            arguments["creator"] = lambda: sqlite3.connect(where, uri=True, timeout=busy_seconds, check_same_thread=False)
        engine = sa.create_engine(url, **arguments)
    except (ImportError, exc.NoSuchModuleError) as error:
        raise UnsupportedDatabase(f"the driver of {url.drivername}:// is not installed: {error}\n"
                                  "  fix: install it (for PostgreSQL: pip install 'psycopg[binary]')") from error

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # Python's driver must not begin transactions of its own: "begin" below does
        connection.execute(f"PRAGMA busy_timeout = {int(busy_seconds * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        # A batch of traces touches several hundred pages of a large file's indexes: kept in memory (at most 32 MB), and carried
        # from the log into the file every 16 MB rather than every 4.
        connection.execute("PRAGMA cache_size = -32768")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A deferred transaction that reads, then writes, can fail at once with "database is locked"; an immediate one
        # waits its turn.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write") else "BEGIN")

    return engine


def stored_revision(connection: Connection, location: str) -> str | None:
    """Return the schema revision; None for an empty database. Raises CorruptDatabase for a database of another program."""
    tables = set(sa.inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if tables:
            raise CorruptDatabase(f"{location} is the database of another program (tables {', '.join(sorted(tables)[:4])}, …)\n"
                                  "  fix: name another file")
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
