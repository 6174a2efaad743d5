"""A dataset as Parquet: typed columns, in groups of rows. pyarrow, of the test extra, reads what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tensor_graphs.measure import dataset_files
from tensor_graphs.measure.dataset_files import COLUMNS, write
from tests.measure.test_dataset_files import some_rows  # noqa: F401 - a fixture


@pytest.mark.parametrize("group", [2, 5000])
def test_parquet_has_typed_columns_whatever_the_groups(found: list[dict[str, Any]], tmp_path: Path, group: int,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.parquet"
    monkeypatch.setattr(dataset_files, "ROW_GROUP", group)
    assert write(file, found) == 3
    table = parquet.read_table(file).to_pylist()
    for row, line in zip(found, table, strict=True):
        for name, kind in COLUMNS.items():
            held = json.loads(line[name]) if kind == "json" else line[name]
            assert held == (float(row[name]) if kind == "number" and row[name] is not None else row[name]), name
    assert table[0]["max_relative_error"] == float("inf") and table[1]["median_ms"] == 0.0125


def test_a_database_without_rows_has_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "none.parquet"
    assert write(file, []) == 0 and parquet.read_table(file).column_names == list(COLUMNS)
