"""db: looking after the database of measurements: `tg db VERB`, one family of verbs a file.

In: a database, by path or URL.  Out: tables for people, or one JSON document.
May import: everything, like the rest of the command line.
Read first: query.py (what is known), maintain.py (is it sound), import_export.py (in and out), retry.py (measure again),
replaying.py (run again where it was wrong), drain.py (measure what was asked for).
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
