"""importing: reads the files of a data set into the database, in one transaction.

All files are read and checked before anything is stored, so one run reports all faults. A file whose bytes have not changed since
an earlier import is skipped. In a file that has changed, a line with unchanged text keeps its row, even if that row was edited, and
all other lines are new. After a file is stored, every new line is reassembled from its row and compared with the text that was
read. A line that would not be reproduced exactly is stored as JSON instead ("kept whole").
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from tensor_graphs.devices.environment import Environment
from tensor_graphs.frontends.flashinfer.documents import Line, Problem, canonical, malformed, read_lines, same
from tensor_graphs.frontends.flashinfer.fields import ABSENT, FIELDS, NAME_LENGTH, look, name, split, timestamp
from tensor_graphs.frontends.flashinfer.reference_graph import reference_graph
from tensor_graphs.frontends.flashinfer.report import DatasetImport
from tensor_graphs.frontends.flashinfer.stored_lines import UNREADABLE, input_files, missing, stored_lines
from tensor_graphs.frontends.torch.functions import OpaqueReference
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.records.database import Database, latest_timestamp
from tensor_graphs.records.errors import DatabaseError
from tensor_graphs.records.rows import STATUSES, GraphRecord, ImplementationRecord, WorkloadRecord, digest
from tensor_graphs.records.schema import (
    LINE_ROWS,
    BenchmarkTrace,
    DefinitionRow,
    GraphRow,
    Implementation,
    ImplementationSource,
    ImportedFile,
    ImportedLine,
)

log = logging.getLogger(__name__)

FOLDERS = (("definitions", ".json"), ("solutions", ".json"), ("workloads", ".jsonl"), ("traces", ".jsonl"))
"""(folder, suffix) in the order in which they are read: a trace refers to records of the three other folders."""
ORIGIN = "flashinfer-trace"
JUDGE = "flashinfer-bench"  # the program that timed and compared; also the backend of the environment, unlike any built-in one


class NoDataset(DatabaseError):
    """The folder holds no FlashInfer-Trace data set."""


def import_dataset(folder: str | os.PathLike[str], database: Database, *, dataset: str | None = None) -> DatasetImport:
    """Read a data set into the database; nothing in it is run, and its sources are marked as untrusted.

    dataset: the name under which its files are kept; by default the folder's. Raises NoDataset, MalformedFile (listing the faults,
    as far as they fit a screen), and the database's errors; nothing of the data set is stored then.
    """
    root = Path(folder).resolve()
    documents = [(path, suffix == ".json") for room, suffix in FOLDERS for path in sorted((root / room).rglob(f"*{suffix}"))
                 if path.is_file() and not _is_hidden(path, root)]
    if not documents:
        raise NoDataset(
            f"{root} holds no definitions/**/*.json, solutions/**/*.json, workloads/**/*.jsonl or traces/**/*.jsonl\n"
            "  fix: name the folder that holds these folders"
        )
    # The files are read twice, as all documents may not fit in memory; a file that changes in between is refused below.
    problems = [problem for path, whole in documents for problem in _content(path, root, whole=whole)[2]]
    if problems:
        raise malformed(problems, str(root))
    report = DatasetImport(dataset or root.name[:NAME_LENGTH], str(root))
    reader = _Import(database, report)
    with database.writing() as connection:
        for path, whole in documents:
            data, lines, problems = _content(path, root, whole=whole)
            if problems:
                raise malformed(problems, str(root))
            reader.file(connection, path.relative_to(root).as_posix(), data, lines)
    read = {path for path, _ in documents}
    report.left_out = sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*")
        if path.is_file() and path not in read and not _is_hidden(path, root) and path.suffix != ".safetensors")
    report.missing_inputs = missing(root, reader.input_files)
    log.info("%s: %s", root, "; ".join(report.lines()[1:3]))
    return report


def _content(path: Path, root: Path, *, whole: bool) -> tuple[bytes, list[Line], list[Problem]]:
    """Return (bytes of a file, its records, the faults in it)."""
    inside = path.relative_to(root).as_posix()
    try:
        data = path.read_bytes()
    except OSError as error:
        return b"", [], [Problem(inside, error.strerror or str(error), "make the file readable")]
    return data, *read_lines(data, inside, whole=whole)


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


@dataclass(frozen=True)
class _Read:
    """A line that was read, with the kind of its record, or the reason why it is kept whole."""

    line: Line
    kind: str
    reason: str = ""
    graph: GraphRecord | None = None


def _kind(document: Any, room: str) -> tuple[str, str]:
    """Return (kind of a document, "") by its content, or ("whole", reason why it is kept whole). room: folder of its file."""
    if not isinstance(document, dict):
        return "whole", "it is no JSON object"
    if room in ("definitions", "solutions"):
        needed = {"definitions": {"name": str, "axes": dict}, "solutions": {"name": str, "definition": str, "spec": dict}}[room]
        wrong = [key for key, kind in needed.items() if not (isinstance(document.get(key), kind) and document[key])]
        return ("whole", f"it has no {', '.join(wrong)}") if wrong else (room[:-1], "")
    if not isinstance(document.get("definition"), str):
        return "whole", "it names no definition"
    if not (isinstance(look(document, ("workload", "axes")), dict) and isinstance(look(document, ("workload", "inputs")), dict)):
        return "whole", "its workload has no axes or no inputs"
    solution, evaluation = document.get("solution"), document.get("evaluation")
    if solution is None and evaluation is None:
        return "workload", ""
    if not isinstance(solution, str) or not isinstance(evaluation, dict):
        return "whole", "it has a solution and no evaluation, or the other way round"
    status = evaluation.get("status")
    if not (isinstance(status, str) and status in STATUSES):
        return "whole", f"its status is {status!r}"
    return ("whole", "it is dated in the future") if timestamp(evaluation.get("timestamp")) > latest_timestamp() else ("trace", "")


class _Import:
    """State of one run of `import_dataset`: rows found so far, and the report."""

    def __init__(self, database: Database, report: DatasetImport) -> None:
        self.database = database
        self.report = report
        self.input_files: set[str] = set()
        self.graphs: dict[str, str] = {}  # structural keys by the name of the definition
        self.solutions: dict[tuple[str, str], int] = {}  # implementations by definition and name

    # -- files -------------------------------------------------------------------------------------------------------

    def file(self, connection: Connection, path: str, data: bytes, lines: list[Line]) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        file = ImportedFile
        stored = sa.select(file.id, file.sha256).where(file.dataset == self.report.dataset, file.path == path)
        for line in lines:
            self.input_files.update(input_files(line.document))
        row = connection.execute(stored).one_or_none()
        if row is not None and row.sha256 == sha256:
            self.report.files_known.append(path)
            return
        values = {"sha256": sha256, "size_bytes": len(data), "imported_at": datetime.now(UTC)}
        if row is None:
            insert = sa.insert(file).values(dataset=self.report.dataset, path=path, **values).returning(file.id)
            file_id = connection.execute(insert).scalar_one()
        else:
            file_id = row.id
            connection.execute(sa.update(file).where(file.id == file_id).values(**values))
        self.lines(connection, file_id, path, [self.look_at(line, path.partition("/")[0]) for line in lines])
        (self.report.files_new if row is None else self.report.files_changed).append(path)

    def look_at(self, line: Line, room: str) -> _Read:
        if line.blank:
            return _Read(line, "blank")
        kind, reason = _kind(line.document, room)
        if kind != "definition":
            return _Read(line, kind, reason)
        graph, opaque = definition_graph(line.document)
        if opaque is None:
            self.report.understood.append(line.document["name"])
        else:
            self.report.opaque[line.document["name"]] = opaque
        return _Read(line, kind, graph=graph)

    def lines(self, connection: Connection, file_id: int, path: str, read: list[_Read]) -> None:
        """Store the lines of a file, in order; lines that were stored before with equal text keep their rows."""
        model = ImportedLine
        there: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        old = sa.select(model.id, model.number, model.verbatim).where(model.file_id == file_id, model.verbatim.is_not(None))
        for line_id, number, verbatim in connection.execute(old.order_by(model.number.desc(), model.id.desc())):
            there[verbatim or ""].append((line_id, number))  # the first one last, so that pop() keeps duplicates in order
        unchanged: set[int] = set()
        moved: list[dict[str, int]] = []
        fresh: list[_Read] = []
        for item in read:
            if there[item.line.text]:
                line_id, number = there[item.line.text].pop()
                unchanged.add(line_id)
                if number != item.line.number:
                    moved.append({"line": line_id, "to": item.line.number})
                self.report.records_known[item.kind] += 1
            else:
                fresh.append(item)
        gone = set(connection.execute(sa.select(model.id).where(model.file_id == file_id)).scalars()) - unchanged
        table = cast(sa.Table, model.__table__)
        if gone:
            remove = sa.delete(table).where(table.c.id == sa.bindparam("line"))
            connection.execute(remove, [{"line": item} for item in sorted(gone)])
        if moved:
            move = sa.update(table).where(table.c.id == sa.bindparam("line")).values(number=sa.bindparam("to"))
            connection.execute(move, moved)
        values = [self.line(connection, item, file_id, path) for item in fresh]
        traces = [item for item in values if item["kind"] == "trace"]
        if traces:
            insert = sa.insert(BenchmarkTrace).returning(BenchmarkTrace.id, sort_by_parameter_order=True)
            new = connection.execute(insert, [item["trace_id"] for item in traces]).scalars()
            for line, row in zip(traces, new, strict=True):
                line["trace_id"] = row
        if values:
            connection.execute(sa.insert(model), values)
        self.check(connection, file_id, path, {item.line.number: item for item in fresh})

    def line(self, connection: Connection, item: _Read, file_id: int, path: str) -> dict[str, Any]:
        """Return the column values of one new line, after its record's row was found or stored. A trace's row is left to the
        caller: the values of that row take the place of its id."""
        values: dict[str, Any] = {
            "file_id": file_id, "number": item.line.number, "kind": item.kind, "definition": None, "rest": None,
            "verbatim": item.line.text, **dict.fromkeys(LINE_ROWS.values()),
        }  # fmt: skip
        if item.kind == "blank":
            return values
        columns, rest = split(item.line.document, FIELDS[item.kind])
        values["rest"] = json.dumps(rest)
        if item.kind == "whole":
            self.keep_whole(path, item.line.number, item.reason)
            return values
        self.report.records[item.kind] += 1
        values["definition"] = columns["name"] if item.kind == "definition" else columns["definition"]
        store: dict[str, Callable[..., Any]] = {
            "definition": self.definition, "solution": self.solution, "workload": self.workload, "trace": self.trace,
        }  # fmt: skip
        values[LINE_ROWS[item.kind]] = store[item.kind](connection, item, columns, path)
        return values

    def keep_whole(self, path: str, number: int, reason: str) -> None:
        self.report.records["whole"] += 1
        self.report.kept_whole[f"{path}:{number}"] = reason

    def check(self, connection: Connection, file_id: int, path: str, fresh: dict[int, _Read]) -> None:
        """Keep whole each new line that its row does not reproduce (the row is another record's, or was changed)."""
        for stored in stored_lines(connection, file_id):
            item = fresh.get(stored.number)
            if item is None or stored.kind == "blank" or same(stored.document(), item.line.document):
                continue
            trace = connection.execute(sa.select(ImportedLine.trace_id).where(ImportedLine.id == stored.id)).scalar_one()
            rest = json.dumps({"document": item.line.document})
            whole = {"kind": "whole", "rest": rest, **dict.fromkeys(LINE_ROWS.values())}
            connection.execute(sa.update(ImportedLine).where(ImportedLine.id == stored.id).values(**whole))
            if trace is not None:
                connection.execute(sa.delete(BenchmarkTrace).where(BenchmarkTrace.id == trace))
            self.report.records[stored.kind] -= 1
            self.keep_whole(path, stored.number, f"the {stored.kind} it refers to says something else in the database")

    # -- records -----------------------------------------------------------------------------------------------------

    def definition(self, connection: Connection, item: _Read, columns: dict[str, Any], path: str) -> int:
        assert item.graph is not None  # look_at gives every definition one
        graph = self.database._graph(connection, item.graph)
        self.graphs[columns["name"]] = item.graph.structural_key
        model = DefinitionRow
        row = connection.execute(
            sa.select(model.id, model.reference).where(model.name == columns["name"], model.canonical_graph_id == graph)
        ).one_or_none()
        if row is None:
            values = {**columns, "canonical_graph_id": graph, "created": datetime.now(UTC)}
            return int(connection.execute(sa.insert(model).values(**values).returning(model.id)).scalar_one())
        if row.reference is not None and not _is_used(connection, ImportedLine.definition_id == row.id):
            connection.execute(sa.update(model).where(model.id == row.id).values(**columns))  # no line refers to it any more
        return int(row.id)

    def solution(self, connection: Connection, item: _Read, columns: dict[str, Any], path: str) -> int:
        model = Implementation
        record = self.implementation(columns, self.graph(connection, columns["definition"]))
        values = {
            "name": columns["name"], "author": columns["author"], "description": columns["description"],
            "requirements": columns["requirements"],
        }  # fmt: skip
        row = connection.execute(sa.select(model.id).where(model.signature == record.signature)).scalar()
        if row is None:
            row = self.found_at_last(connection, record) or self.database._implementation(connection, record)
            self.sources(connection, row, columns, path)
        if not _is_used(connection, ImportedLine.implementation_id == row):
            connection.execute(sa.update(model).where(model.id == row).values(**values))
        self.solutions[columns["definition"], columns["name"]] = row
        return row

    def found_at_last(self, connection: Connection, record: ImplementationRecord) -> int | None:
        """Return the row stored for this solution's traces while the data set lacked the solution, now updated to it; or None."""
        lacking = _lacking_solution(record.graph_key or "", record.name)
        row = connection.execute(sa.select(Implementation.id).where(Implementation.signature == lacking.signature)).scalar()
        if row is not None:
            values = {"signature": record.signature, "source_hash": record.source_hash, "backend": record.backend}
            connection.execute(sa.update(Implementation).where(Implementation.id == row).values(**values))
            connection.execute(sa.delete(ImplementationSource).where(ImplementationSource.implementation_id == row))
            self.database._forget()
        return row

    def implementation(self, columns: dict[str, Any], graph_key: str) -> ImplementationRecord:
        code = [columns["name"], columns["definition"], columns["requirements"], columns["sources"]]
        language = columns["requirements"].get("language")
        return ImplementationRecord(
            "KERNEL", columns["name"], language[:64] if isinstance(language, str) and language else "unknown",
            digest([ORIGIN, *code]), graph_key,
        )  # fmt: skip

    def sources(self, connection: Connection, row: int, columns: dict[str, Any], path: str) -> None:
        language = columns["requirements"].get("language")
        values = [
            {
                "implementation_id": row, "path": source["path"], "content": source["content"],
                "content_sha256": hashlib.sha256(source["content"].encode()).hexdigest(),
                "language": language[:32] if isinstance(language, str) else "",
                "origin": f"{ORIGIN}: {self.report.dataset}/{path}", "trusted": False,
            }
            for source in columns["sources"] or [{"path": UNREADABLE, "content": ""}]
        ]
        connection.execute(sa.insert(ImplementationSource), values)

    def workload(self, connection: Connection, item: _Read, columns: dict[str, Any], path: str) -> int:
        graph = self.graph(connection, columns["definition"])
        inputs = tuple(columns["input_descriptors"])
        return self.database._workload(connection, WorkloadRecord(graph, columns["axes_json"], inputs))

    def trace(self, connection: Connection, item: _Read, columns: dict[str, Any], path: str) -> dict[str, Any]:
        performed = columns["median_ms"] is not None
        libs = tuple(columns["libs"].items())
        return {
            "implementation_id": self.solved_by(connection, columns["definition"], columns["implementation_name"]),
            "workload_id": self.workload(connection, item, columns, path),
            "environment_id": self.database._environment(
                connection, Environment(columns["hardware_name"], 0, "unknown", JUDGE, libs)
            ),
            "kind": "cold" if performed or columns["status"] != "PASSED" else "verify",
            "samples_ms": [],
            "sample_count": 0,
            "baseline": "reference" if columns["baseline_ms"] is not None else "",
            "timer": JUDGE,
            "verifier": JUDGE,
            "conditions": {"imported": ORIGIN},
            **{column: columns[column] for column in _TRACE_COLUMNS},
        }

    # -- what records refer to ---------------------------------------------------------------------------------------

    def graph(self, connection: Connection, definition: str) -> str:
        """Return the structural key of a definition's graph: of this data set's definition, else of another data set's of that
        name, else of an empty graph that has only the name."""
        if definition not in self.graphs:
            ours = (
                sa.select(GraphRow.structural_key).join(DefinitionRow, DefinitionRow.canonical_graph_id == GraphRow.id)
                .outerjoin(ImportedLine, ImportedLine.definition_id == DefinitionRow.id)
                .outerjoin(ImportedFile, ImportedFile.id == ImportedLine.file_id)
                .where(DefinitionRow.name == definition)
                .order_by(sa.case((ImportedFile.dataset == self.report.dataset, 0), else_=1), DefinitionRow.id.desc())
                .limit(1)
            )
            key = connection.execute(ours).scalar()
            if key is None:
                key = digest([ORIGIN, "definition", definition])
                self.database._graph(connection, GraphRecord(key, "", "", definition))
                self.report.unknown_definitions.append(definition)
            self.graphs[definition] = key
        return self.graphs[definition]

    def solved_by(self, connection: Connection, definition: str, solution: str) -> int:
        """Return the row of the implementation of that name: this data set's, else another's, else a placeholder."""
        if (definition, solution) not in self.solutions:
            line = ImportedLine
            select = (
                sa.select(Implementation.id).join(line, line.implementation_id == Implementation.id)
                .join(ImportedFile, ImportedFile.id == line.file_id)
                .where(line.definition == definition, Implementation.name == solution)
                .order_by(sa.case((ImportedFile.dataset == self.report.dataset, 0), else_=1), Implementation.id.desc())
                .limit(1)
            )
            row = connection.execute(select).scalar()
            if row is None:
                row = self.database._implementation(connection, _lacking_solution(self.graph(connection, definition), solution))
                there = sa.select(sa.func.count()).where(ImplementationSource.implementation_id == row)
                if not connection.execute(there).scalar():  # without a source it would count as trusted
                    empty = {"path": LACKING, "content": "", "content_sha256": hashlib.sha256(b"").hexdigest(), "language": ""}
                    connection.execute(
                        sa.insert(ImplementationSource).values(implementation_id=row, origin=ORIGIN, trusted=False, **empty)
                    )
                self.report.unknown_solutions.append(f"{definition}: {solution}")
            self.solutions[definition, solution] = row
        return self.solutions[definition, solution]


LACKING = "(not in the data set)"
_TRACE_COLUMNS = (
    "status", "timestamp", "full_log", "max_relative_error", "max_absolute_error", "median_ms", "baseline_ms",
    "speedup_factor",
)  # fmt: skip


def _lacking_solution(graph_key: str, solution: str) -> ImplementationRecord:
    return ImplementationRecord("KERNEL", solution, "unknown", digest([ORIGIN, "lacking", graph_key, solution]), graph_key)


def _is_used(connection: Connection, condition: sa.ColumnElement[bool]) -> bool:
    """Return True if a line refers to this row. The lines of the file being read are deleted before."""
    return connection.execute(sa.select(ImportedLine.id).where(condition).limit(1)).scalar() is not None


def definition_graph(document: dict[str, Any]) -> tuple[GraphRecord, str | None]:
    """Return (canonical graph of a definition, the reason why its reference is opaque or None).

    An opaque graph has neither text nor JSON; its key is a hash of the axes, the inputs and outputs, and the reference.
    """
    label = name(document.get("name"))
    try:
        parts = [look(document, (key,)) for key in ("reference", "axes", "inputs", "outputs")]
        if not isinstance(parts[0], str):
            raise OpaqueReference("it has no reference")
        graph = reference_graph(*parts)
        return GraphRecord(graph.structural_key, print_graph(graph), graph_to_json(graph), label), None
    except OpaqueReference as error:
        keys = {key: document[key] for key in ("reference", "axes", "inputs", "outputs") if look(document, (key,)) is not ABSENT}
        key = hashlib.sha256(canonical([ORIGIN, "opaque", keys]).encode()).hexdigest()
        return GraphRecord(key, "", "", label), str(error)
