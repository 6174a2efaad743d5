"""database: what the page shows of a database of measurements, each view as rows of JSON. A server answers with them; a page in one
file holds those that need no choice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tensor_graphs.records import browsing, queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.errors import MissingRecord
from tensor_graphs.records.queries import FullTrace

MOST_ROWS = 500
"""Most rows of a view."""

STORED = ("totals", "kernels", "disturbed", "failures", "coverage", "searches")
"""views that a page in one file holds"""


class ViewError(Exception):
    """A view that does not exist, or an argument that it cannot use."""


def view(database: Database, name: str, arguments: Mapping[str, str]) -> Any:
    """Return a view. arguments: environment (key), text, kernel (name or source hash) and trace, as far as the view uses them.
    Empty ones count as absent. Raises ViewError."""
    environment = arguments.get("environment") or None
    if name == "totals":
        return {"location": database.location, "last": browsing.last_trace(database),
                "environments": browsing.trace_totals(database)}
    if name == "kernels":
        return browsing.timed_kernels(database, environment=environment, text=arguments.get("text", ""), limit=MOST_ROWS)
    if name == "disturbed":
        return browsing.disturbed_kernels(database, environment=environment)
    if name == "failures":
        failures = queries.failures(database, environment=environment, kernel=arguments.get("kernel") or None)
        return [{**_row(failure.trace), "reason": failure.reason, "newest": failure.newest} for failure in failures]
    if name == "coverage":
        keys = [environment] if environment else [key for key, _ in queries.environments(database)]
        rows = ((key, row) for key in keys for row in queries.coverage(database, key))
        return [{"environment": key, "graph": row.graph_name, "key": row.graph_key, "measured": row.measured, "passed": row.passed,
                 "waiting": row.waiting, "fraction": row.fraction}
                for key, row in sorted(rows, key=lambda pair: -pair[1].waiting)][:MOST_ROWS]
    if name == "searches":
        return browsing.search_trials(database, environment=environment)
    if name == "history":
        return rows_of(queries.history(database, arguments.get("kernel", ""), environment=environment, limit=MOST_ROWS))
    if name == "trace":
        return _trace(database, arguments.get("trace", ""))
    raise ViewError(f"there is no view {name!r:.40}")


def stored(database: Database) -> dict[str, Any]:
    """Return the views that a page in one file holds, by name. Of the database's place they have the name of its file alone."""
    views = {name: view(database, name, {}) for name in STORED}
    views["totals"]["location"] = re.split(r"[/\\]", views["totals"]["location"])[-1]
    return views


def rows_of(traces: Iterable[FullTrace]) -> list[dict[str, Any]]:
    """Return traces as rows."""
    return [_row(trace) for trace in traces]


def _row(trace: FullTrace) -> dict[str, Any]:
    return {"trace": trace.trace_id, "kernel": trace.implementation_name, "graph": trace.graph_name, "key": trace.graph_key,
            "sizes": dict(trace.axes),
            "environment": trace.environment_key, "hardware": trace.hardware_name, "kind": trace.kind, "status": trace.status,
            "median_ms": trace.median_ms, "spread": trace.spread, "error": trace.max_relative_error, "tolerance": trace.tolerance,
            "speedup": trace.speedup_factor, "when": trace.timestamp.isoformat(timespec="seconds")}


def _trace(database: Database, number: str) -> dict[str, Any]:
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise ViewError(f"{number!r:.40} is no number of a trace")
    try:
        (row,) = queries.evidence(database, int(number))
    except MissingRecord as error:
        raise ViewError(str(error).partition("\n")[0]) from None
    standing = queries.standings(database, row.trace_id)[row.trace_id]
    return {**_row(row), "standing": standing, "samples_ms": list(queries.samples(database, row.trace_id)),
            "log": queries.read_log(database, row.trace_id)}
