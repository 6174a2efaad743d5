"""db: looking after the database of measurements."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tensor_graphs.cli import options


def register(app: typer.Typer) -> None:
    db = typer.Typer(no_args_is_help=True, help="The database of measurements.")
    db.command("stats")(stats)
    db.command("check")(check)
    db.command("best")(best)
    db.command("vacuum")(vacuum)
    db.command("trust")(trust)
    app.add_typer(db, name="db")


def stats(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """Rows, sizes and the profile queue."""
    store = options.database(db)
    found = store.stats()
    if json:
        options.print_json(dataclasses.asdict(found))
        return
    print(f"{found.location} · schema {found.revision} · {found.file_bytes / 1e6:.2f} MB")
    for table, count in found.rows.items():
        print(f"  {table:24s} {count}")
    for status, count in found.traces_by_status.items():
        print(f"  traces {status:17s} {count}")
    print(f"  queue: {found.waiting} waiting, {found.claimed} claimed, {found.abandoned} abandoned")


def check(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """Is the file sound, and do all rows refer to what exists? Exit code 1 if not."""
    found = options.database(db).check()
    if json:
        options.print_json({"ok": found.ok, "problems": list(found.problems)})
    else:
        print("ok" if found.ok else "\n".join(found.problems))
    if not found.ok:
        raise typer.Exit(1)


def vacuum(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """Give unused space in the file back."""
    saved = options.database(db).vacuum()
    if json:
        options.print_json({"bytes": saved})
    else:
        print(f"{saved} bytes given back")


def best(
    op: Annotated[str | None, typer.Argument(help="Only graphs of this name.")] = None,
    tolerance: options.Tolerance = 1e-3,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """The fastest implementation within the tolerance, per graph, workload and environment."""
    from tensor_graphs.records import queries

    store = options.database(db)
    rows = [
        row
        for _, environment in queries.environments(store)
        for row in queries.fastest(store, environment, tolerance)
        if op is None or row.graph_name == op
    ]
    if json:
        options.print_json([dataclasses.asdict(r) for r in rows])
        return
    for r in rows:
        axes = ", ".join(f"{k}={v}" for k, v in r.axes.items())
        gain = "" if r.speedup_factor is None else f" {r.speedup_factor:6.1f} × plain"
        print(
            f"{(r.median_ms or 0) * 1e3:12.1f} µs{gain}  error {r.worst_relative_error:.1e}  "
            f"{r.implementation_name:20s} {r.graph_name} {r.graph_key[:8]} at {axes}  [{r.hardware_name}]"
        )


def trust(
    signature: Annotated[str, typer.Argument(help="The implementation's signature (see `tg db best --json`).")],
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Let the imported sources of one implementation be compiled and run."""
    count = options.database(db).trust(signature)
    if json:
        options.print_json({"trusted": count})
    else:
        print(f"{count} sources are trusted now")
