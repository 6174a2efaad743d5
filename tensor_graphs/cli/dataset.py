"""dataset: writes measurements as flat rows for research, and measures such rows again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.typer_app import Verbs


def register(app: typer.Typer) -> None:
    dataset = Verbs(no_args_is_help=True, help="Measurements as flat rows: JSON lines, CSV or Parquet.")
    dataset.command()(dump)
    dataset.command()(replay)
    app.add_typer(dataset, name="dataset")


def dump(
    *,
    file: Annotated[Path, typer.Argument(help="FILE.jsonl, a row a line; FILE.csv or FILE.parquet, a row a line of a table.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    common: option_groups.Common,
) -> None:
    """Write every measurement as one flat row: part, kernel, features, times, errors, environment."""
    from tensor_graphs.measure.dataset import rows
    from tensor_graphs.measure.dataset_files import require_suffix, write

    require_suffix(file)
    options.check_new(file, force)
    store = common.store(create=False)
    try:
        with options.progress("writing", common.json) as show:
            count = write(file, rows(store, lambda done, total: show(done, total, "rows")))
    except OSError as e:
        raise options.NotPossible(f"{file} cannot be written: {e.strerror}\n  fix: another file") from None
    if common.json:
        options.print_json({"file": str(file), "rows": count, "bytes": file.stat().st_size})
    else:
        print(f"{file}: {count} rows, {file.stat().st_size / 1e6:.2f} MB")


def replay(
    *,
    file: Annotated[Path, typer.Argument(help="A FILE.jsonl that tg dataset dump wrote, here or elsewhere.")],
    limit: Annotated[int, typer.Option(min=1, max=options.MOST_ROWS, help="Measure at most so many rows again.")] = 20,
    threads: options.Threads = None,
    common: option_groups.Common,
) -> None:
    """Measure the kernels of a dataset's rows again, store what is found, and show it beside the rows. Exit code 1 where a kernel
    that passed does not any more."""
    from tensor_graphs.measure.dataset import Replayed, replay
    from tensor_graphs.measure.judge import Judge

    if file.suffix in (".csv", ".parquet"):
        raise options.NotPossible(f"{file} is a table, and rows are read from JSON lines\n  fix: tg dataset dump FILE.jsonl")
    store, replayed = common.store(), list[Replayed]()
    try:
        with file.open(encoding="utf-8") as lines, Judge(store, threads=threads) as judge:
            for row in replay(judge, lines, limit, threads):
                replayed.append(row)
                if not common.json:
                    print(row, flush=True)
    except OSError as e:
        raise options.NotPossible(f"{file} cannot be read: {e.strerror}\n  fix: a file that tg dataset dump wrote") from None
    except UnicodeDecodeError:
        raise options.NotPossible(f"{file} is not UTF-8 text\n  fix: a FILE.jsonl that tg dataset dump wrote") from None
    if common.json:
        options.print_json([{**dataclasses.asdict(row), "ratio": row.ratio} for row in replayed])
    elif not replayed:
        print("no row of it is the time of a kernel")
    if any(row.before == "PASSED" and row.status not in ("PASSED", "NOT MEASURED") for row in replayed):
        raise typer.Exit(1)
