"""db: maintenance of the database of measurements: `tg db VERB`, with one file per group of verbs.

In: a database, by path or URL.  Out: tables for people, or one JSON document.
May import: everything, like the rest of the command line.
Read first: query.py (its contents), maintain.py (checks), import_export.py (import and export), retry.py (measure again),
replaying.py (rerun a failure), drain.py (measure what was requested).
"""

from __future__ import annotations

import typer

from tensor_graphs.cli.db import drain, import_export, maintain, query, replaying, retry
from tensor_graphs.cli.typer_app import Verbs


def register(app: typer.Typer) -> None:
    db = Verbs(no_args_is_help=True, help="The database of measurements.")
    for verb in (
        query.stats, query.best, query.leaderboard, query.history, query.failures, maintain.check, maintain.vacuum,
        maintain.trust, retry.retry, replaying.replay, drain.drain,
    ):  # fmt: skip
        db.command()(verb)
    db.command("export")(import_export.export)
    db.command("import")(import_export.import_)
    app.add_typer(db, name="db")
