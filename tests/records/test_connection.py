"""connection: opening in every state a path can be in, and one readable error for each that cannot work."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import sqlalchemy as sa
from sqlalchemy import event

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.records import (
    CorruptDatabase,
    DatabaseBusy,
    DatabaseError,
    DatabaseFull,
    DatabasePathError,
    DatabaseReadOnly,
    InvalidRecord,
    NoDatabase,
    SchemaMismatch,
    UnsupportedDatabase,
    open_database,
    schema,
    upkeep,
)
from tensor_graphs.records.connection import parse_target, without_password
from tensor_graphs.records.location import default_path


def refusal(kind: type[DatabaseError], target: object, **options: float) -> str:
    """The message with which opening `target` is refused; it must name the target and a fix."""
    with pytest.raises(kind) as caught:
        open_database(target, **options)
    message = str(caught.value)
    assert isinstance(caught.value, TensorGraphsError)
    assert "\n  fix: " in message, message
    return message


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """File permissions do not bind root: act as another user for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_default_is_benchmarks_db_in_the_users_data_folder() -> None:
    assert default_path() == Path(platformdirs.user_data_dir("tensor_graphs")) / "benchmarks.db"
    assert parse_target(None).database == str(default_path())


def test_the_variable_names_the_database_where_no_argument_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_DB", str(tmp_path / "own.db"))
    assert parse_target(None).database == str(tmp_path / "own.db")
    assert parse_target(tmp_path / "other.db").database == str(tmp_path / "other.db")
    monkeypatch.setenv("TENSOR_GRAPHS_DB", "")
    with pytest.raises(DatabasePathError, match="^the name of the database is empty"):
        parse_target(None)


@pytest.mark.parametrize("url", [
    "postgresql://fleet:secret@localhost:abc/m", "postgresql://localhost:1/m?user=fleet&password=secret",
    "postgresql://fleet:se/cret@secret@localhost:1/m", "postgresql://fleet:secret@localhost:1/m?sslpassword=secret",
    "gopher://u:secret@h/m",
])  # fmt: skip
def test_a_password_in_a_url_is_never_shown(url: str) -> None:
    shown = without_password(url)
    with contextlib.suppress(UnsupportedDatabase):
        shown += without_password(parse_target(url).render_as_string())
    with pytest.raises(DatabaseError) as caught:
        open_database(url)
    assert "cret" not in shown + str(caught.value)


def test_an_at_in_a_password_is_said_to_be_written_otherwise() -> None:
    message = refusal(UnsupportedDatabase, "postgresql://fleet:p@ss@localhost/m")
    assert message.startswith("postgresql://fleet:***@localhost/m has an @ too many") and "%40" in message


def test_a_database_where_nothing_may_be_written_is_read(tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "archived.db"
    with open_database(file) as database:
        database.ensure_graph(make.graph)
    monkeypatch.setattr(os, "access", lambda *given, **more: False)
    with open_database(file, create=False) as archived:
        assert upkeep.stats(archived).rows["canonical_graphs"] == 1
        assert not (tmp_path / "archived.db-shm").exists()
        with pytest.raises(DatabaseReadOnly, match="archived.db cannot be written: .*\n  fix: "):
            archived.ensure_graph(make.target)


def test_a_missing_table_and_a_schema_of_no_name_are_told_with_a_fix(tmp_path: Path) -> None:
    open_database(tmp_path / "a.db").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as raw:
        raw.execute("DROP TABLE profile_queue")
        raw.commit()
    with open_database(tmp_path / "a.db") as database, pytest.raises(CorruptDatabase, match="no such table: profile_queue\n  fix:"):
        upkeep.stats(database)
    for name in ("xyz", ""):
        with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as raw:
            raw.execute("UPDATE alembic_version SET version_num = ?", (name,))
            raw.commit()
        with pytest.raises(CorruptDatabase, match=f"its schema is '{name}', and no tensor_graphs has one"):
            open_database(tmp_path / "a.db")


def test_missing_folders_are_made_and_a_second_opening_finds_the_rows(tmp_path: Path, make) -> None:
    path = tmp_path / "some" / "where" / "b.db"
    with open_database(path) as first:
        first.ensure_graph(make.graph)
    with open_database(f"sqlite:///{path}") as second:
        assert upkeep.stats(second).rows["canonical_graphs"] == 1


@pytest.mark.processes
def test_a_path_that_a_person_typed_makes_no_folders(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "x.db"
    for target in (missing, f"sqlite:///{missing}"):
        assert f"there is no folder {missing.parent}" in refusal(DatabasePathError, target, make_folder=False)
    assert not missing.parent.exists()
    with pytest.raises(DatabasePathError, match=r"fix: mkdir -p"):
        tg.compile(tg.graph(tg.exp(tg.input("x", (3,)))), database=str(missing))


def test_a_database_in_memory_is_one_database_for_all_its_users(make) -> None:
    with open_database(":memory:") as database:
        database.ensure_graph(make.graph)
        assert database.add_trace(make.trace()) == 1
        assert upkeep.stats(database).rows["benchmark_traces"] == 1
        assert upkeep.check(database).ok


def test_a_path_below_a_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    message = refusal(DatabasePathError, tmp_path / "notes.txt" / "deeper" / "b.db")
    assert f"{tmp_path / 'notes.txt'} is no folder" in message
    assert f"{tmp_path / 'notes.txt'} is no folder" in refusal(DatabasePathError, tmp_path / "notes.txt" / "b.db")
    assert "/dev/null is no folder" in refusal(DatabasePathError, Path("/dev/null/deeper/b.db"))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path} is a folder" in refusal(DatabasePathError, tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o555)
    with ordinary_user():
        assert "is not writable" in refusal(DatabasePathError, closed / "b.db")
        assert f"{closed / 'new'}, cannot be made: Permission denied" in refusal(
            DatabasePathError, closed / "new" / "b.db"
        )


def test_a_read_only_file_can_be_read_and_says_so_when_written(open_folder: Path, make) -> None:
    path = open_folder / "b.db"
    with open_database(path) as database:
        database.ensure_graph(make.graph)
    path.chmod(0o444)
    open_folder.chmod(0o777)
    with ordinary_user(), open_database(path) as database:
        assert upkeep.stats(database).rows["canonical_graphs"] == 1
        with pytest.raises(DatabaseReadOnly, match="cannot be written") as caught:
            database.ensure_graph(make.target)
        assert "fix: make the file and its folder writable" in str(caught.value)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    path.write_text("this is my diary, please keep it " * 100)
    before = path.read_bytes()
    assert f"{path} is not a database: file is not a database" in refusal(CorruptDatabase, path)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE photos (id INTEGER)")
    other.close()
    before = path.read_bytes()
    assert "is the database of another program (tables photos, …)" in refusal(CorruptDatabase, path)
    assert path.read_bytes() == before


def test_a_damaged_file_is_reported_as_damaged(tmp_path: Path, make) -> None:
    path = tmp_path / "b.db"
    with open_database(path) as database:
        database.ensure_graph(make.graph)
        database.add_traces(make.trace(log=os.urandom(3000).hex()) for _ in range(50))
        upkeep.vacuum(database)
        assert upkeep.check(database).ok
    sound = path.read_bytes()

    def damage(first: int) -> None:
        data = bytearray(sound)
        for place in range(first, len(data) - 4 * 4096, 4096):  # vacuum has put the text of the views last
            data[place : place + 2048] = os.urandom(2048)
        path.write_bytes(data)

    damage(len(sound) // 2 // 4096 * 4096)  # rows in the second half: the file opens, and the check finds it
    with open_database(path) as database:
        report = upkeep.check(database)
        assert not report.ok and report.problems[0].startswith("integrity: ")
    damage(2 * 4096)  # all but the header: not even the list of tables can be read
    message = refusal(CorruptDatabase, path)
    assert f"{path} is damaged" in message and ".recover" in message


def test_a_newer_schema_is_refused_and_names_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "b.db"
    open_database(path).close()
    raw = sqlite3.connect(path)
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    message = refusal(SchemaMismatch, path)
    assert f"its schema is 9999, this one knows {schema.REVISION}" in message
    assert "fix: upgrade tensor_graphs" in message


def test_a_full_disk_loses_the_new_row_and_no_other(database, make) -> None:
    database.add_trace(make.trace())
    used: list[int] = []

    @event.listens_for(database.engine, "begin")
    def no_more_room(connection: object) -> None:
        used.append(connection.exec_driver_sql("PRAGMA page_count").scalar())  # type: ignore[attr-defined]
        connection.exec_driver_sql(f"PRAGMA max_page_count = {used[0]}")  # type: ignore[attr-defined]

    with pytest.raises(DatabaseFull, match="no room for a row") as caught:
        database.add_traces(make.trace(log=os.urandom(100_000).hex()) for _ in range(3))
    assert "fix: free disk space" in str(caught.value)
    event.remove(database.engine, "begin", no_more_room)
    assert upkeep.stats(database).rows["benchmark_traces"] == 1
    assert upkeep.check(database).ok


def test_a_lock_held_for_too_long_is_reported_as_busy(tmp_path: Path, make) -> None:
    path = tmp_path / "b.db"
    with open_database(path, busy_seconds=0.1) as database:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseBusy, match="locked for too long"):
            database.ensure_graph(make.graph)
        other.execute("ROLLBACK")
        other.close()
        assert database.ensure_graph(make.graph) == 1


@pytest.mark.parametrize("url", ["mysql://someone@host/db", "http://example.org/b.db", "oracle://x"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    message = refusal(UnsupportedDatabase, url)
    assert url.split(":")[0] in message
    assert "sqlite:///PATH or postgresql" in message


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite://"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    assert f"{url} names no file" in refusal(UnsupportedDatabase, url)


def test_what_is_not_there_is_not_made_for_a_question(tmp_path: Path, make) -> None:
    file = tmp_path / "folder" / "own.db"
    for target in (file, str(file), f"sqlite:///{file}", ":memory:"):
        assert "there is no database" in refusal(NoDatabase, target, create=False)
    assert not list(tmp_path.iterdir())
    with open_database(file) as made:
        made.ensure_graph(make.graph)
    with open_database(file, create=False) as found:
        assert upkeep.stats(found).rows["canonical_graphs"] == 1


def test_text_that_only_looks_like_a_url_is_refused() -> None:
    assert "is not a database URL" in refusal(UnsupportedDatabase, "://")


def test_a_url_without_a_driver_means_the_driver_that_the_extra_installs() -> None:
    assert parse_target("postgresql://someone@host/db").drivername == "postgresql+psycopg"
    assert parse_target("postgresql+pg8000://someone@host/db").drivername == "postgresql+pg8000"


def test_a_missing_postgresql_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    assert "pip install 'psycopg[binary]'" in refusal(UnsupportedDatabase, "postgresql+psycopg2://someone@host/db")


@pytest.mark.parametrize(("text", "kind"), [
    ("[1]", schema.JsonObject()), ("{}", schema.JsonList()), ("{", schema.JsonObject()), ("[" * 5000, schema.JsonList()),
    ("yesterday", schema.UtcDateTime())])
def test_a_value_that_its_column_cannot_hold_is_damage(tmp_path: Path, text: str, kind: Any) -> None:
    """SQLite takes anything; a reader of such a row was told by a traceback."""
    with open_database(tmp_path / "a.db") as database:
        with pytest.raises(CorruptDatabase, match=r"a\.db is damaged: a value cannot be read: '"), database.reading() as connection:
            connection.execute(sa.select(sa.literal_column(f"'{text}'", kind))).all()
        with pytest.raises(InvalidRecord, match="numbers of 64 bits"), database.reading() as connection:
            connection.execute(sa.select(sa.bindparam("x", 2 ** 64))).all()
