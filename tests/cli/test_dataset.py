"""`tg dataset` writes rows and measures them again."""

from __future__ import annotations

import json
from pathlib import Path

import tensor_graphs
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.records.database import open_database
from tests.choice.conftest import add_row
from tests.cli.command import assert_complains, document, tg


def test_what_is_dumped_can_be_replayed(tmp_path: Path) -> None:
    file, db = tmp_path / "all.jsonl", ("--db", tmp_path / "own.db")
    assert_complains(tg("dataset", "dump", file, *db), "own.db")
    with open_database(tmp_path / "own.db") as made:
        softmax = signature_of(tensor_graphs.softmax(tensor_graphs.input("x", (4, 8))))
        add_row(made, kernel_named("numpy.softmax"), softmax, None)
    said = document(tg("dataset", "dump", file, *db, "--json"))
    assert said["rows"] == len(file.read_text().splitlines()) > 0 and said["bytes"] == file.stat().st_size
    assert all(json.loads(line)["status"] == "PASSED" for line in file.read_text().splitlines())
    assert_complains(tg("dataset", "dump", file, *db), "is there already", "fix: --force")
    assert document(tg("dataset", "dump", tmp_path / "all.csv", *db, "--json"))["rows"] == said["rows"]
    assert_complains(tg("dataset", "replay", tmp_path / "all.csv", *db), "is a table", "fix: tg dataset dump FILE.jsonl")
    assert_complains(tg("dataset", "dump", tmp_path / "all.xlsx", *db), "no suffix of a dataset", "FILE.csv, FILE.parquet")
    assert tg("dataset", "replay", file, *db).stdout == "no row of it is the time of a kernel\n"       # verdicts alone
    assert_complains(tg("dataset", "replay", tmp_path / "none", *db), "cannot be read", "fix:")
