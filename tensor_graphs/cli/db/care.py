"""care: is the database sound, is it compact, and whose code may run."""

from __future__ import annotations

from typing import Annotated

import typer

from tensor_graphs import errors
from tensor_graphs.cli import options


def check(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """Is the file sound, is its schema ours, and do all rows refer to what exists? Exit code 1 if not."""
    from tensor_graphs.records import upkeep

    store = options.database(db, create=False)
    with options.status("checking", json) as update:
        found = upkeep.check(store, lambda what: update(f"checking {what}"))
    if json:
        options.print_json({"ok": found.ok, "problems": list(found.problems)})
    else:
        print("ok" if found.ok else "\n".join(found.problems))
    if not found.ok:
        raise typer.Exit(1)


def vacuum(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """Give unused space in the file back, and renew the statistics that queries are planned with."""
    from tensor_graphs.records import upkeep

    store = options.database(db, create=False)
    with options.status("vacuuming", json):
        saved = upkeep.vacuum(store)
    if json:
        options.print_json({"bytes": saved})
    else:
        print(f"{saved} bytes given back")


def trust(
    implementation: Annotated[
        str, typer.Argument(help="An implementation's signature (`tg db import` prints it), or its name.")
    ],
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Let the imported sources of an implementation be compiled and run."""
    from tensor_graphs.records import queries, upkeep

    store = options.database(db, create=False)
    found = queries.kernels_like(store, implementation)
    if not found:
        waiting = errors.listed(dict.fromkeys(name for _, name in queries.waiting_for_trust(store)))
        fix = f"tg db trust NAME, one of those that wait: {waiting}" if waiting else "nothing here waits for trust"
        raise options.NotPossible(f"{store.location} has no implementation named or signed {implementation!r}\n  fix: {fix}")
    count = sum(upkeep.trust(store, signature) for signature in found)
    if json:
        options.print_json({"trusted": count})
    else:
        print(f"{count} sources are trusted now")
