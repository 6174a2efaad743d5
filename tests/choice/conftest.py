"""Fixtures that tests of the compiler share: a database, rows made up for a test, and a count of started workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.costs.database_keys import (
    VERIFIER,
    environment_of,
    graph_record,
    implementation_of,
    timed_workload,
    verify_workload,
)
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.measure.isolation import worker_process
from tensor_graphs.records.database import Database, open_database
from tensor_graphs.records.rows import Status, TraceKind, TraceRecord

AddRow = Callable[..., int]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "bench.db") as made:
        yield made


@pytest.fixture
def starts(every_verdict_is_new: None) -> Iterator[list[int]]:
    """Grows by one with every worker that is started."""
    seen: list[int] = []

    class Counting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == worker_process.STARTED:
                seen.append(len(seen))

    counting, before = Counting(logging.DEBUG), worker_process.log.level
    worker_process.log.addHandler(counting)
    worker_process.log.setLevel(logging.DEBUG)
    yield seen
    worker_process.log.setLevel(before)
    worker_process.log.removeHandler(counting)


def add_row(database: Database, kernel: Kernel, signature: Signature, at: Mapping[str, int] | None = None, *, us: float = 1.0,
            error: float = 1e-7, status: Status = "PASSED", when: datetime | None = None, threads: int | None = None,
            kind: TraceKind = "cold", conditions: Mapping[str, Any] | None = None, log: str = "") -> int:
    """Store a row as the judge would: a verdict (no sizes), or a time [µs] at these sizes; returns its id."""
    database.ensure_graph(graph_record(signature))
    passed = status == "PASSED"
    return database.add_trace(TraceRecord(
        implementation_of(kernel), verify_workload(signature) if at is None else timed_workload(signature, at),
        environment_of(kernel.backend, threads), "verify" if at is None else kind, status,
        samples_ms=() if at is None or not passed else (us * 1e-3,) * 5, max_relative_error=error if passed else None,
        tolerance=1e-4, verifier=VERIFIER, timestamp=when, conditions=conditions or {}, log=log))
