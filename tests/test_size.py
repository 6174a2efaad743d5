"""The size of the package is held, room by room: [tool.tensor_graphs.size] in pyproject.toml."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import room_sizes
from tests.room_sizes import Room

HELD: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["tool"]["tensor_graphs"]["size"]
rooms = functools.cache(room_sizes.rooms)        # not while tests are collected: each worker would take seconds for it


def test_each_room_has_a_row_and_each_row_a_room() -> None:
    assert HELD["lines"].keys() == rooms().keys()


@pytest.mark.parametrize("name", HELD["lines"])
def test_a_room_has_no_more_lines_than_its_row(name: str) -> None:
    assert rooms()[name].lines <= HELD["lines"][name], f"raise the row of {name} in a commit of its own, with the reason"


@pytest.mark.parametrize("name", HELD["lines"])
def test_lines_are_not_packed(name: str) -> None:
    assert rooms()[name].tokens_per_line <= HELD["tokens_per_line"]


@pytest.mark.parametrize("kind", ["functions", "classes"])
def test_what_is_longer_than_allowed_is_listed_and_only_shrinks(kind: str) -> None:
    most = HELD[f"longest_{kind}"]
    longer = {where: size for room in rooms().values() for where, size in getattr(room, kind).items() if size > most}
    listed = HELD[f"longer_{kind}"]
    assert {where: size for where, size in longer.items() if size > listed.get(where, 0)} == {}, "make it shorter"
    assert {where: size for where, size in listed.items() if longer.get(where, 0) < size} == {}, "lower the row, or take it out"


def test_docstrings_and_comments_are_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_sizes, "PACKAGE", tmp_path)
    text = '"""What it holds,\n\nin three lines."""\n\nX = 1   # why\n"""of X"""\n\n\ndef f():\n    return (X,\n            2)\n'
    (tmp_path / "one.py").write_text(text)
    assert room_sizes.rooms() == {".": Room(1, 11, 4, 14, {"one.py:f": 3}, {})}
