"""dataset: measurements as flat rows for research, and rows of that kind measured again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import options
from tensor_graphs.cli.verbs import Verbs


def register(app: typer.Typer) -> None:
    dataset = Verbs(no_args_is_help=True, help="Measurements as flat rows: JSON lines, CSV or Parquet.")
    dataset.command()(dump)
    dataset.command()(replay)
    app.add_typer(dataset, name="dataset")


def dump(
    file: Annotated[Path, typer.Argument(help="FILE.jsonl, a row a line; FILE.csv or FILE.parquet, a row a line of a table.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Write every measurement as one flat row: part, kernel, features, times, errors, environment."""
    from tensor_graphs.measure.dataset import rows
    from tensor_graphs.measure.dataset_files import require_suffix, write

    require_suffix(file)
    options.check_new(file, force)
    store = options.database(db, create=False)
    try:
        with options.progress("writing", json) as show:
            count = write(file, rows(store, lambda done, total: show(done, total, "rows")))
    except OSError as e:
        raise options.NotPossible(f"{file} cannot be written: {e.strerror}\n  fix: another file") from None
    if json:
        options.print_json({"file": str(file), "rows": count, "bytes": file.stat().st_size})
    else:
        print(f"{file}: {count} rows, {file.stat().st_size / 1e6:.2f} MB")


def replay(
    file: Annotated[Path, typer.Argument(help="A FILE.jsonl that tg dataset dump wrote, here or elsewhere.")],
    limit: Annotated[int, typer.Option(min=1, max=options.MOST_ROWS, help="Measure at most so many rows again.")] = 20,
    threads: options.Threads = None,
    imports: options.Imports = None,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Measure the kernels of a dataset's rows again, store what is found, and show it beside the rows. Exit code 1 where a kernel
    that passed does not any more."""
    from tensor_graphs.measure.dataset import Replayed, replay
    from tensor_graphs.measure.judge import Judge

    if file.suffix in (".csv", ".parquet"):
        raise options.NotPossible(f"{file} is a table, and rows are read from JSON lines\n  fix: tg dataset dump FILE.jsonl")
    store, found = options.database(db), list[Replayed]()
    try:
        with file.open(encoding="utf-8") as lines, Judge(store, threads=threads) as judge:
            for each in replay(judge, lines, limit, threads):
                found.append(each)
                if not json:
                    print(each, flush=True)
    except OSError as e:
        raise options.NotPossible(f"{file} cannot be read: {e.strerror}\n  fix: a file that tg dataset dump wrote") from None
    except UnicodeDecodeError:
        raise options.NotPossible(f"{file} is not UTF-8 text\n  fix: a FILE.jsonl that tg dataset dump wrote") from None
    if json:
        options.print_json([{**dataclasses.asdict(each), "ratio": each.ratio} for each in found])
    elif not found:
        print("no row of it is the time of a kernel")
    if any(each.before == "PASSED" and each.status not in ("PASSED", "NOT MEASURED") for each in found):
        raise typer.Exit(1)
