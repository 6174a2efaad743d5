"""stored_lines: the lines of one imported file in the database, each with the columns of its row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.frontends.flashinfer.fields import FIELDS, join, look
from tensor_graphs.records.schema import (
    BenchmarkTrace,
    DefinitionRow,
    EnvironmentRow,
    Implementation,
    ImplementationSource,
    ImportedLine,
    Workload,
)

UNREADABLE = "(sources of another shape)"
"""Path of the empty source of a solution whose sources do not fit the table; they are kept in the line's rest."""


@dataclass(frozen=True)
class StoredLine:
    """One line: its number and kind, the current columns of its row, and its original text (None where that was deleted)."""

    id: int
    number: int
    kind: str
    columns: Mapping[str, Any]
    rest: str | None
    verbatim: str | None

    def document(self) -> Any:
        """Return the document that the current columns and the rest describe; not for a blank line."""
        return join(self.columns, json.loads(self.rest or '{"document": null}'), FIELDS[self.kind])


def stored_lines(connection: Connection, file_id: int) -> list[StoredLine]:
    """Return all lines of a file, in order."""
    line = ImportedLine
    columns: dict[int, dict[str, Any]] = {}
    for select in _SELECTS:
        for row in connection.execute(select.where(line.file_id == file_id)).mappings():
            columns[row["line_id"]] = dict(row)
    for line_id, path, content in connection.execute(_SOURCES.where(line.file_id == file_id)):
        columns[line_id].setdefault("sources", []).append({"path": path, "content": content})
    rows = connection.execute(
        sa.select(line.id, line.number, line.kind, line.rest, line.verbatim).where(line.file_id == file_id)
        .order_by(line.number, line.id)
    )
    return [
        StoredLine(row.id, row.number, row.kind, {"sources": [], **columns.get(row.id, {})}, row.rest, row.verbatim)
        for row in rows
    ]


_LINE = (ImportedLine.id.label("line_id"), ImportedLine.definition)
_SOURCES = (
    sa.select(ImportedLine.id, ImplementationSource.path, ImplementationSource.content)
    .join(ImplementationSource, ImplementationSource.implementation_id == ImportedLine.implementation_id)
    .where(ImplementationSource.path != UNREADABLE)
    .order_by(ImplementationSource.id)
)
_SELECTS = (
    sa.select(
        ImportedLine.id.label("line_id"), DefinitionRow.name, DefinitionRow.op_type, DefinitionRow.description, DefinitionRow.tags,
        DefinitionRow.axes, DefinitionRow.inputs, DefinitionRow.outputs, DefinitionRow.constraints, DefinitionRow.reference,
    ).join(DefinitionRow, DefinitionRow.id == ImportedLine.definition_id),
    sa.select(
        *_LINE, Implementation.name, Implementation.author, Implementation.description, Implementation.requirements
    ).join(Implementation, Implementation.id == ImportedLine.implementation_id),
    sa.select(*_LINE, Workload.axes_json, Workload.input_descriptors).join(Workload, Workload.id == ImportedLine.workload_id),
    sa.select(*_LINE, Workload.axes_json, Workload.input_descriptors, Implementation.name.label("implementation_name"),
              EnvironmentRow.hardware_name, EnvironmentRow.libs, BenchmarkTrace.status, BenchmarkTrace.timestamp,
              BenchmarkTrace.full_log, BenchmarkTrace.max_relative_error, BenchmarkTrace.max_absolute_error,
              BenchmarkTrace.median_ms, BenchmarkTrace.baseline_ms, BenchmarkTrace.speedup_factor)
    .join(BenchmarkTrace, BenchmarkTrace.id == ImportedLine.trace_id)
    .join(Workload, Workload.id == BenchmarkTrace.workload_id)
    .join(Implementation, Implementation.id == BenchmarkTrace.implementation_id)
    .join(EnvironmentRow, EnvironmentRow.id == BenchmarkTrace.environment_id),
)  # fmt: skip


def input_files(document: Any) -> Iterator[str]:
    """Yield the safetensors files that a workload or trace names, relative to the data set's folder."""
    inputs = look(document, ("workload", "inputs"))
    for item in inputs.values() if isinstance(inputs, dict) else ():
        if isinstance(item, dict) and item.get("type") == "safetensors" and isinstance(item.get("path"), str):
            yield item["path"]


def missing(folder: Path, names: set[str]) -> list[str]:
    """Return the names, sorted, that are no files in the folder."""
    return sorted(name for name in names if not (is_inside(name) and "\0" not in name and (folder / name).is_file()))


def is_inside(path: str) -> bool:
    """Return True for a relative path that stays in its folder."""
    pure = PurePosixPath(path)
    return not pure.is_absolute() and ".." not in pure.parts
