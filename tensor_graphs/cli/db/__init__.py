"""db: looking after the database of measurements: `tg db VERB`, one family of verbs a file.

In: a database, by path or URL.  Out: tables for people, or one JSON document.
May import: everything, like the rest of the command line.
Read first: questions.py (what is known), care.py (is it sound), carrying.py (in and out), retrying.py (measure again), replaying.py
(run again where it was wrong), draining.py (measure what was asked for).
"""

from __future__ import annotations

import typer

from tensor_graphs.cli.db import care, carrying, draining, questions, replaying, retrying
from tensor_graphs.cli.verbs import Verbs


def register(app: typer.Typer) -> None:
    db = Verbs(no_args_is_help=True, help="The database of measurements.")
    for verb in (
        questions.stats, questions.best, questions.leaderboard, questions.history, questions.failures, care.check, care.vacuum,
        care.trust, retrying.retry, replaying.replay, draining.drain,
    ):  # fmt: skip
        db.command()(verb)
    db.command("export")(carrying.export)
    db.command("import")(carrying.import_)
    app.add_typer(db, name="db")
