"""records/unstorable_values.py: SQLite lets anything into any column; who reads it is told file, table, column and row."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from tensor_graphs.records import open_database, queries, upkeep
from tensor_graphs.records.errors import CorruptDatabase


@pytest.fixture
def file(tmp_path: Path, make: SimpleNamespace) -> Path:
    path = tmp_path / "a.db"
    with open_database(path) as database:
        database.ensure_graph(make.graph)
        database.add_traces([make.trace(), make.trace(status="INCORRECT_NUMERICAL", max_relative_error=2.0)])
    return path


def write(file: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(file) as opened:
        opened.execute("PRAGMA ignore_check_constraints = ON")
        opened.execute(statement, values)
    opened.close()


@pytest.mark.parametrize("column", ["median_ms", "max_relative_error"])
@pytest.mark.parametrize("where", ["", "WHERE id = 1"])
@pytest.mark.parametrize("value", ["fast", b"\xff\x00"])
def test_a_text_where_a_number_belongs_is_named(file: Path, make: SimpleNamespace, column: str, where: str, value: object) -> None:
    write(file, f"UPDATE benchmark_traces SET {column} = ? {where}", value)
    shown = "'fast', stored as text" if value == "fast" else "X'FF00', stored as blob"
    with open_database(file) as database:
        with pytest.raises(CorruptDatabase) as caught:
            queries.latest_traces(database, make.here, "cold")
        said = f"benchmark_traces.{column} of row 1 holds {shown}, and no number"
        assert f"{file} is damaged: {said}\n  fix: `tg db check`" in str(caught.value) and said in upkeep.check(database).problems
        assert upkeep.stats(database).rows["benchmark_traces"] == 2                    # nothing is lost


def test_a_time_and_json_that_are_none_are_named(file: Path, make: SimpleNamespace) -> None:
    write(file, "UPDATE benchmark_traces SET timestamp = 7, conditions = 8 WHERE id = 2")
    with open_database(file) as database:
        damage = upkeep.check(database).problems
    assert "benchmark_traces.timestamp of row 2 holds 7, stored as integer, and no time" in damage
    assert any("benchmark_traces.conditions of row 2" in line and "no JSON" in line for line in damage)


def test_a_sound_database_has_no_wrong_value(file: Path) -> None:
    with open_database(file) as database:
        assert upkeep.check(database).ok


def test_an_error_that_is_not_the_files_stays_what_it_is(file: Path) -> None:
    with open_database(file) as database, pytest.raises(KeyError, match="mine"), database.reading():
        raise KeyError("mine")


def test_a_link_to_itself_is_no_database_and_no_endless_path(file: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with open_database(file) as database:
        assert not database.is_in(tmp_path / "loop") and database.is_in(file)
