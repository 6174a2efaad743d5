"""browsing: short lists over an entire database, for a page: what is on file, what is suspect, what is new, how searches went.

Each query is one pass over an index, or less, so that a million traces are listed within a second.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.database import Database
from tensor_graphs.records.measurements import AGREE, measured_in
from tensor_graphs.records.queries import FullTrace, evidence
from tensor_graphs.records.schema import BenchmarkTrace, EnvironmentRow, GraphRow, Implementation, Workload

_PLACE = (BenchmarkTrace.environment_id, BenchmarkTrace.workload_id, BenchmarkTrace.implementation_id)
_PASSED = BenchmarkTrace.status == "PASSED"


def trace_totals(database: Database) -> list[dict[str, Any]]:
    """Return for each environment its key, hardware, backend, and how many traces it has by status."""
    counts = (sa.select(BenchmarkTrace.environment_id, BenchmarkTrace.status, sa.func.count().label("traces"))
              .group_by(BenchmarkTrace.environment_id, BenchmarkTrace.status).subquery())
    row = EnvironmentRow
    select = (sa.select(row.key, row.hardware_name, row.backend, counts.c.status, counts.c.traces)
              .join(counts, counts.c.environment_id == row.id).order_by(row.hardware_name, row.backend, row.id, counts.c.status))
    totals: dict[str, dict[str, Any]] = {}
    with database.reading() as connection:
        for key, hardware, backend, status, traces in connection.execute(select):
            place = totals.setdefault(key, {"environment": key, "hardware": hardware, "backend": backend, "statuses": {}})
            place["statuses"][status] = traces
    return list(totals.values())


def timed_kernels(database: Database, *, environment: Environment | str | None = None, text: str = "",
                  limit: int = 200) -> list[dict[str, Any]]:
    """Return what was timed, one row for each kernel, workload and environment: number of cold times, the lowest and the highest
    [ms], the largest error, and failures. text: only kernels or graphs whose name contains it, case ignored. limit: most rows."""
    return _groups(database, environment, text, limit)


def disturbed_kernels(database: Database, *, environment: Environment | str | None = None,
                      limit: int = 200) -> list[dict[str, Any]]:
    """Return rows as `timed_kernels` of those whose cold times disagree by more than AGREE, the largest ratio first: other load may
    have slowed the machine down."""
    return _groups(database, environment, "", limit, disagreeing=True)


def _groups(database: Database, environment: Environment | str | None, text: str, limit: int,
            disagreeing: bool = False) -> list[dict[str, Any]]:
    trace, cold = BenchmarkTrace, sa.and_(_PASSED, BenchmarkTrace.kind == "cold")
    median = sa.case((cold, trace.median_ms))
    lowest, highest = sa.func.min(median), sa.func.max(median)
    select = sa.select(*_PLACE, sa.func.count(median).label("times"), lowest.label("lowest_ms"), highest.label("highest_ms"),
                       sa.func.max(trace.max_relative_error).label("error"),
                       sa.func.sum(sa.case((_PASSED, 0), else_=1)).label("failures"))
    if environment is not None:
        select = select.where(measured_in(environment))
    if text:
        graphs = sa.select(GraphRow.id).where(GraphRow.human_name.icontains(text, autoescape=True))
        select = select.where(sa.or_(
            trace.implementation_id.in_(sa.select(Implementation.id).where(Implementation.name.icontains(text, autoescape=True))),
            trace.workload_id.in_(sa.select(Workload.id).where(Workload.canonical_graph_id.in_(graphs)))))
    select = select.group_by(*_PLACE).having(highest > AGREE * lowest if disagreeing else lowest.is_not(None))
    if disagreeing:
        select = select.order_by((highest / lowest).desc())
    some = select.limit(limit).subquery()
    full = (sa.select(Implementation.name.label("kernel"), GraphRow.human_name.label("graph"), GraphRow.structural_key.label("key"),
                      Workload.axes_json.label("sizes"), EnvironmentRow.key.label("environment"),
                      EnvironmentRow.hardware_name.label("hardware"),
                      Implementation.source_hash.label("code"), some.c.times, some.c.lowest_ms, some.c.highest_ms, some.c.error,
                      some.c.failures)
            .select_from(some).join(Implementation, Implementation.id == some.c.implementation_id)
            .join(Workload, Workload.id == some.c.workload_id).join(GraphRow, GraphRow.id == Workload.canonical_graph_id)
            .join(EnvironmentRow, EnvironmentRow.id == some.c.environment_id))
    with database.reading() as connection:
        return [dict(row) for row in connection.execute(full).mappings()]


def last_trace(database: Database) -> int:
    """Return the id of the newest trace; 0 if there is none."""
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.max(BenchmarkTrace.id))).scalar_one() or 0)


def traces_after(database: Database, trace_id: int, limit: int = 100) -> tuple[FullTrace, ...]:
    """Return the traces that were added after this one, the oldest first, at most `limit`."""
    select = sa.select(BenchmarkTrace.id).where(BenchmarkTrace.id > trace_id).order_by(BenchmarkTrace.id).limit(limit)
    with database.reading() as connection:
        ids = [int(row) for row in connection.execute(select).scalars()]
    return evidence(database, *ids) if ids else ()


def search_trials(database: Database, *, environment: Environment | str | None = None, limit: int = 2000) -> list[dict[str, Any]]:
    """Return the last trials of searches for schedules, the oldest first: kernel, graph, sizes, time, and time of the seed [ms]."""
    trace = BenchmarkTrace
    select = (sa.select(trace.id.label("trace"), Implementation.name.label("kernel"), GraphRow.human_name.label("graph"),
                        Workload.key.label("workload"), Workload.axes_json.label("sizes"), EnvironmentRow.key.label("environment"),
                        trace.median_ms, trace.baseline_ms, trace.speedup_factor)
              .join(Implementation, Implementation.id == trace.implementation_id).join(Workload, Workload.id == trace.workload_id)
              .join(GraphRow, GraphRow.id == Workload.canonical_graph_id)
              .join(EnvironmentRow, EnvironmentRow.id == trace.environment_id).where(trace.kind == "search", _PASSED))
    if environment is not None:
        select = select.where(measured_in(environment))
    with database.reading() as connection:
        rows = [dict(row) for row in connection.execute(select.order_by(trace.id.desc()).limit(limit)).mappings()]
    return rows[::-1]
