"""import_export: exports the database, or a data set in it, to a file, and imports such files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import options
from tensor_graphs.errors import TensorGraphsError

if TYPE_CHECKING:
    from tensor_graphs.records import ImplementationRecord
    from tensor_graphs.records.database import Database

FORMATS = ("own", "flashinfer-trace")


def _format(value: str) -> str:
    if value not in FORMATS:
        raise options.UsageError(f"--format: {value!r} is no format\n  fix: {' or '.join(FORMATS)}")
    return value


Format = Annotated[
    str, typer.Option("--format", callback=_format, help="own: one file with every table; flashinfer-trace: a folder of JSON."),
]


def export(
    target: Annotated[Path, typer.Argument(help="FILE.jsonl.gz, FILE.sqlite, or (flashinfer-trace) a folder.")],
    format: Format = "own",
    force: Annotated[bool, typer.Option("--force", help="Replace what is there (but never the database itself).")] = False,
    dataset: Annotated[str | None, typer.Option(help="Only this one of the imported data sets.")] = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Write every table to one file, or the imported data sets to a folder. A file is whole, or not there."""
    if dataset is not None and format == "own":
        raise options.UsageError("--dataset: a file of our own form has everything\n  fix: --format flashinfer-trace")
    store = options.database(db, create=False)
    report: Any
    if format == "own":
        from tensor_graphs.records.portable import export_file

        with options.progress("exporting", json) as show:
            report = export_file(store, target, lambda done, total: show(done, total, "rows"), replace=force)
    else:
        from tensor_graphs.frontends.flashinfer import export_dataset

        with options.status(f"writing {target}", json):
            report = export_dataset(store, target, dataset=dataset, replace=force)
    _tell(report, json)


def import_(
    source: Annotated[Path, typer.Argument(help="A file that `tg db export` wrote, or (flashinfer-trace) a folder.")],
    format: Format = "own",
    sound_only: Annotated[
        bool, typer.Option("--sound-only", help="Leave out rows that say what cannot be, instead of refusing the file.")
    ] = False,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Add what a file or a data set has and the database has not; all of a file or nothing. Its code is not trusted."""
    report: Any
    if sound_only and format != "own":
        raise options.UsageError("--sound-only: of a data set, records that no table takes are kept whole\n  fix: leave it out")
    if format == "own":
        from tensor_graphs.costs.stored_graph_check import why_no_graph
        from tensor_graphs.records.portable import import_file

        taken = partial(import_file, file=source, reads=why_no_graph, sound_only=sound_only)
        if not source.is_file():  # checked before a database is made
            what = "is a folder\n  fix: name a file, or say --format flashinfer-trace" if source.is_dir() else (
                "is not there\n  fix: a file that tg db export FILE wrote")
            raise options.NotPossible(f"{source} {what}")
        with options.progress("importing", json) as show:
            store = _receiving(db, taken)
            report = taken(store, on_step=lambda done, total: show(done, total, "rows"), installed=_installed)
    else:
        from tensor_graphs.frontends.flashinfer import import_dataset

        if not source.is_dir():
            raise options.NotPossible(f"{source} is no folder\n  fix: name the folder of the data set")
        with options.status(f"reading {source}", json):
            report = import_dataset(source, _receiving(db, lambda trial: import_dataset(source, trial)))
    _tell(report, json)


def _receiving(db: str | None, read: Callable[[Database], object]) -> Database:
    """Return the database to import into. A new one is made only after `read` could read everything into one in memory.

    So a refused file leaves no empty database. Removing an empty one later could take it from a process that has opened it since.
    """
    from tensor_graphs.records import NoDatabase, open_database

    try:
        return options.database(db, create=False)
    except NoDatabase:
        with open_database(":memory:") as trial:
            read(trial)
        return options.database(db)


def _installed(name: str) -> ImplementationRecord | None:
    """Return the installed kernel of this name, or None; its backend is loaded only when needed."""
    from tensor_graphs.costs.database_keys import implementation_of
    from tensor_graphs.kernels.registry import kernel_named

    try:
        return implementation_of(kernel_named(name))
    except TensorGraphsError:  # there is none, or its backend cannot be loaded here
        return None


def _tell(report: Any, json: bool) -> None:
    if json:
        options.print_json(report.to_json())
    else:
        print("\n".join(report.lines()))
