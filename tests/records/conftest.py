"""Fixtures of the records room: a fresh database, and short builders for the rows the tests do not care about."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tensor_graphs.records
from tensor_graphs.devices.environment import Environment
from tensor_graphs.records import GraphRecord, ImplementationRecord, TraceRecord, WorkloadRecord, open_database
from tensor_graphs.records.database import Database

HERE = Environment("Test CPU", 8 << 30, "linux-x86_64-glibc2.36", "c", (("compiler", "gcc 12"),), (("cores", "2"),))
GRAPH = GraphRecord("tanh-key", "tg 1\ny = tanh(x)\n", '{"op": "tanh"}', "tanh")
TARGET = GraphRecord("decomposed-key", "tg 1\ny = 1 - 2 / (exp(2 * x) + 1)\n", "{}", "tanh, decomposed")


def kernel(name: str = "tanh_c", **changes: Any) -> ImplementationRecord:
    given = {"type": "KERNEL", "name": name, "backend": "c", "source_hash": f"hash of {name}", **changes}
    return ImplementationRecord(**given)


def recipe() -> ImplementationRecord:
    return ImplementationRecord(
        "GRAPH_RECIPE", "decomposed", "c", TARGET.structural_key, GRAPH.structural_key, TARGET.structural_key
    )


def workload(batch: int = 1) -> WorkloadRecord:
    inputs = ({"name": "x", "dtype": "float32", "shape": [batch, 16], "generator": "normal"},)
    return WorkloadRecord(GRAPH.structural_key, {"batch": batch}, inputs)


def trace(implementation: ImplementationRecord | None = None, **changes: Any) -> TraceRecord:
    given = {
        "implementation": implementation or kernel(),
        "workload": workload(),
        "environment": HERE,
        "kind": "cold",
        "status": "PASSED",
        "samples_ms": (1.0, 1.1, 1.2),
        "max_relative_error": 1e-7,
        **changes,
    }
    return TraceRecord(**given)


def as_of_0004(file: Path, revision: str = "0004") -> None:
    """Make a SQLite database what the last tree before the first release would have written, or say an older revision."""
    with contextlib.closing(sqlite3.connect(file)) as raw:
        raw.execute("DROP TABLE recipe_searches")
        raw.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        raw.commit()
        raw.execute("PRAGMA journal_mode = DELETE")


def as_of_0005(file: Path) -> None:
    """Make a SQLite database what the tree before the kind `search` would have written."""
    with contextlib.closing(sqlite3.connect(file)) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_master SET sql = replace(sql, ', ''search'')', ')') WHERE name = 'benchmark_traces'")
        raw.execute("UPDATE alembic_version SET version_num = '0005'")
        raw.commit()
        raw.execute("PRAGMA journal_mode = DELETE")


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    return SimpleNamespace(
        kernel=kernel, recipe=recipe, workload=workload, trace=trace, here=HERE, graph=GRAPH, target=TARGET,
        as_of_0004=as_of_0004, as_of_0005=as_of_0005,
    )


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "benchmarks.db") as opened:
        opened.ensure_graph(GRAPH)
        opened.ensure_graph(TARGET)
        yield opened


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python code in another process that sees the same package; whatever still runs at the end is killed."""
    package = Path(tensor_graphs.records.__file__).parents[2]
    paths = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    running: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()
