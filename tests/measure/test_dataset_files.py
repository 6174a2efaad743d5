"""A dataset's rows are the same in JSON lines, in CSV and in Parquet."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.measure.dataset import DatasetError, rows
from tensor_graphs.measure.dataset_files import COLUMNS, write
from tensor_graphs.records.database import open_database
from tests.choice.conftest import add_row


@pytest.fixture(name="found")
def some_rows(tmp_path: Path) -> list[dict[str, Any]]:
    softmax, kernel = signature_of(tg.softmax(tg.input("x", (tg.dim("n", 1, 64), 8)))), kernel_named("numpy.softmax")
    with open_database(tmp_path / "own.db") as database:
        add_row(database, kernel, softmax, error=float("inf"), log='a "log", of two\nlines')
        add_row(database, kernel, softmax, {"n": 16}, us=12.5)
        add_row(database, kernel, softmax, {"n": 16}, status="TIMEOUT")
        return [json.loads(json.dumps(row)) for row in rows(database)]


def test_each_field_of_a_row_is_a_column(found: list[dict[str, Any]]) -> None:
    assert all(list(row) == list(COLUMNS) for row in found) and len(found) == 3


def test_csv_has_every_row_with_what_is_nested_as_json(found: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    assert write(file, found) == 3
    with file.open(encoding="utf-8", newline="") as lines:
        table = list(csv.DictReader(lines))
    for row, line in zip(found, table, strict=True):
        for name, kind in COLUMNS.items():
            if kind in ("json", "numbers"):
                assert json.loads(line[name]) == row[name], name
            else:
                assert line[name] == ("" if row[name] is None else str(row[name])), name


def test_a_database_without_rows_is_a_file_without_rows(tmp_path: Path) -> None:
    assert write(tmp_path / "none.jsonl", []) == write(tmp_path / "none.csv", []) == 0
    assert (tmp_path / "none.csv").read_text().split(",")[:2] == ["format", "trace"]


def test_another_suffix_and_a_missing_library_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rows.xlsx", "rows", "rows.json"):
        with pytest.raises(DatasetError, match=rf"'{name}' has no suffix(.|\n)*fix: one of FILE.jsonl, FILE.csv, FILE.parquet"):
            write(tmp_path / name, [])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DatasetError, match=r"pyarrow is not installed\n  fix: pip install 'tensor_graphs\[parquet\]', or FILE.csv"):
        write(tmp_path / "rows.parquet", [])
    assert not list(tmp_path.glob("rows*"))
