"""exporting: writes the imported files from the database, each line in its original text unless its row has changed."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tensor_graphs.frontends.flashinfer.documents import parse, same, write
from tensor_graphs.frontends.flashinfer.report import DatasetExport
from tensor_graphs.frontends.flashinfer.stored_lines import StoredLine, input_files, is_inside, missing, stored_lines
from tensor_graphs.records.database import Database
from tensor_graphs.records.errors import DatabaseError
from tensor_graphs.records.schema import ImportedFile

log = logging.getLogger(__name__)


class DatasetConflict(DatabaseError):
    """A data set that does not exist, or whose files cannot be written into one folder."""


def export_dataset(
    database: Database, folder: str | os.PathLike[str], *, dataset: str | None = None, replace: bool = False
) -> DatasetExport:
    """Write all imported files into `folder` (created if it does not exist).

    dataset: the data set to write; all by default. replace: files of equal path may be replaced. A line whose row was changed is
    written from its row, in the style of its original text; a line whose row was deleted is left out. Raises DatasetConflict for a
    data set that does not exist, for two with different files of one path, and for files that exist already (nothing is written
    then); OSError where the folder cannot be written.
    """
    target = Path(folder)
    report = DatasetExport(str(target))
    inputs: set[str] = set()
    with database.reading() as connection:  # one view of the database for all files
        select = sa.select(ImportedFile.id, ImportedFile.dataset, ImportedFile.path, ImportedFile.sha256)
        if dataset is not None:
            select = select.where(ImportedFile.dataset == dataset)
        files = connection.execute(select.order_by(ImportedFile.path, ImportedFile.dataset)).all()
        if dataset is not None and not files:
            datasets = connection.execute(sa.select(ImportedFile.dataset).distinct().order_by(ImportedFile.dataset)).scalars()
            raise DatasetConflict(
                f"{database.location} has no data set {dataset!r}\n  fix: name one of: {', '.join(datasets) or '(none)'}"
            )
        owner: dict[str, Any] = {}
        for file in files:
            first = owner.setdefault(file.path, file)
            if first.sha256 != file.sha256:
                raise DatasetConflict(
                    f"the data sets {first.dataset!r} and {file.dataset!r} have two different files {file.path}\n"
                    f"  fix: export them one by one, e.g. --dataset {first.dataset} (in Python dataset={first.dataset!r})"
                )
            if not is_inside(file.path):
                raise DatasetConflict(f"{file.path} is outside of the folder\n  fix: correct that row of imported_files")
        there = [path for path in owner if os.path.lexists(target / path)]
        own = [path for path in there if database.is_in(target / path)]
        if own or (there and not replace):
            raise DatasetConflict(
                f"{target / own[0]} is the database itself\n  fix: name another folder"
                if own
                else f"{target} has {len(there)} of these files already, like {there[0]}\n"
                "  fix: name another folder, or replace them (--force; in Python replace=True)"
            )
        for file in owner.values():
            text = _file_text(file.path, stored_lines(connection, file.id), report, inputs)
            _replace(target / file.path, text.encode())
            report.files.append(file.path)
    report.inputs = missing(target, inputs)
    log.info("%s: %d files exported, %d lines changed", target, len(report.files), len(report.changed))
    return report


def _file_text(path: str, lines: list[StoredLine], report: DatasetExport, inputs: set[str]) -> str:
    parts: list[str] = []
    for line in lines:
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")  # a last line without a newline is now followed by another
        parts.append(_line_text(path, line, report, inputs))
    return "".join(parts)


def _line_text(path: str, line: StoredLine, report: DatasetExport, inputs: set[str]) -> str:
    if line.kind == "blank":
        report.from_text += 1
        return line.verbatim or ""
    document = line.document()
    inputs.update(input_files(document))
    if line.verbatim is not None and same(parse(line.verbatim), document):
        report.from_text += 1
        return line.verbatim
    if line.verbatim is None:
        report.from_columns += 1
    else:
        report.changed.append(f"{path}:{line.number}")
    return write(document, whole=path.endswith(".json"), like=line.verbatim)


def _replace(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    fresh.write_bytes(data)
    fresh.replace(path)
