"""migrating: bring a database that is new, or of an older version of this package, to the current schema."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from tensor_graphs.records import schema
from tensor_graphs.records.connection import stored_revision
from tensor_graphs.records.errors import CorruptDatabase, SchemaMismatch
from tensor_graphs.records.views import create_views

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"
ADVISORY_LOCK = 0x7467_7265_6373  # PostgreSQL: one migration at a time; the number only has to be ours


def migrate(engine: Engine, writing: Callable[[], AbstractContextManager[Connection]], location: str) -> None:
    """Write the newest schema into an empty database, or run the migrations of an older one. writing: begins a write transaction.

    Safe when several processes call it simultaneously. Raises SchemaMismatch, CorruptDatabase, and whatever `writing` raises.
    """
    is_sqlite = engine.dialect.name == "sqlite"
    if is_sqlite:
        with contextlib.closing(engine.raw_connection()) as raw:
            # outside of any transaction, where alone SQLite allows it
            enter_wal(cast(sqlite3.Connection, raw.driver_connection))
    with writing() as connection:
        if not is_sqlite:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))
        revision = stored_revision(connection, location)  # again: another process may have come first
        if revision == schema.REVISION:
            return
        if revision is None:
            create_schema(connection)
        else:
            upgrade(connection, revision, location)
    if revision is not None:
        log.warning("%s: its schema was %s and is %s now; an older tensor_graphs cannot use it any more", location, revision,
                    schema.REVISION)


def enter_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging for good, unless it uses that already. Call it only for a file of this package.

    SQLite does not wait for the lock for this switch, so two processes that create one file must retry.
    """
    if connection.execute("PRAGMA journal_mode").fetchone()[0] in ("wal", "memory"):
        return
    deadline = time.monotonic() + connection.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def create_schema(connection: Connection) -> None:
    """Write the newest schema into an empty database, on a connection that holds the write lock.

    It is created from the models, without Alembic, whose import and migrations take as long as the rest of a first use. A test
    compares it with the result of the migrations.
    """
    schema.Base.metadata.create_all(connection, checkfirst=False)
    create_views(connection)
    connection.exec_driver_sql(
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
    )
    connection.exec_driver_sql(f"INSERT INTO alembic_version (version_num) VALUES ('{schema.REVISION}')")


def upgrade(connection: Connection, revision: str | None, location: str) -> None:
    """Run the migrations on a connection that holds the write lock."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    if revision in schema.UNRELEASED[:-1]:
        raise SchemaMismatch(
            f"{location} has the schema {revision} of a tree before the first release, which is not brought up to date\n"
            "  fix: `tg db export` of that tree to a .jsonl.gz, and `tg db import` of it here; or name another database"
        )
    if revision == schema.UNRELEASED[-1]:
        connection.exec_driver_sql("DELETE FROM alembic_version")
        revision = None
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and not (revision.isdecimal() and len(revision) == len(schema.REVISION)):
        raise CorruptDatabase(f"{location} is damaged: its schema is {revision!r}, and no tensor_graphs has one of that name\n"
                              "  fix: a copy of it, or tg db import of an export into a new database (--db)")
    if revision is not None and revision not in revisions:
        raise SchemaMismatch(
            f"{location} was written by a newer tensor_graphs: its schema is {revision}, this one knows {max(revisions)}\n"
            "  fix: upgrade tensor_graphs, or name another database"
        )
    command.upgrade(config, schema.REVISION)
