"""maintain: checks and compacts the database, and decides whose code may run."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from tensor_graphs import errors
from tensor_graphs.cli import options


def check(
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete the reported rows and all that refer to them; a damaged file is not repaired.")
    ] = False,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Check the database: the file, its schema, the references between rows, and values that no row can have. Exit code 1 if
    something is wrong."""
    from tensor_graphs.costs.stored_graph_check import why_no_graph
    from tensor_graphs.records import upkeep

    store = options.database(db, create=False)
    with options.status("checking", json) as update:
        report = upkeep.check(store, lambda what: update(f"checking {what}"), reads=why_no_graph)
        removed = upkeep.remove_unsound(store, reads=why_no_graph) if remove and not report.ok and report.readable else {}
    if json:
        options.print_json({"ok": report.ok, "problems": list(report.problems), "removed": removed})
    else:
        print("ok" if report.ok else "\n".join(report.problems))
        for table, count in removed.items():
            print(f"removed: {errors.counted(count, 'row')} of {table}")
        if not report.ok and not removed:
            print("  fix: tg db check --remove takes these rows out, and all that refer to them" if report.readable else
                  "  fix: a copy of the database, or tg db import of an export into a new one (--db)")
    if not report.ok and not removed:
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
        str, typer.Argument(help="An implementation's signature (`tg db import` prints it), its name, or a word of that.")
    ],
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Let the imported sources of an implementation be compiled and run."""
    from tensor_graphs.records import queries, upkeep

    store = options.database(db, create=False)
    waits = queries.waiting_for_trust(store)
    signatures = queries.kernels_like(store, implementation) or [s for s, name in waits if implementation in name.split()[::2]]
    if len(meant := {name for s, name in waits if s in signatures}) > 1:
        raise options.NotPossible(f"{implementation!r} may be each of {errors.listed(map(shlex.quote, meant))}\n"
                                  "  fix: tg db trust NAME, one of these")
    if not signatures:
        waiting = errors.listed({shlex.quote(name) for _, name in waits})
        fix = f"tg db trust NAME, one of those that wait: {waiting}" if waiting else "nothing here waits for trust"
        raise options.NotPossible(f"{store.location} has no implementation named or signed {implementation!r}\n  fix: {fix}")
    count = sum(upkeep.trust(store, signature) for signature in signatures)
    if json:
        options.print_json({"trusted": count})
    else:
        print(f"{count} sources are trusted now")
