"""queries: the questions that are asked of the measurements; every answer is evidence rows, never a bare choice.

What makes an implementation eligible on a workload in an environment, in one place (`KnownTime.usable`):
- a PASSED trace with a time and an error is there;
- the worst error ever judged there is `<= tolerance` (so NaN and "never judged" fail). An INCORRECT_NUMERICAL trace
  counts with its error if that error explains the verdict (it is above the tolerance it was judged at, so a looser one
  may still be met), else as infinite;
- no trace there refutes it (wrong shape, wrong dtype, mutated input): such code must change, and its source hash too;
- its newest trace there is neither a crash, a time-out, nor an implausible time;
- none of its sources is untrusted.
The time is the newest PASSED trace's of the kind asked for. Naming the current verifier leaves out
the rows of outdated ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.orm import aliased

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.database import Database, decompress_log, environment_key, untrusted
from tensor_graphs.records.errors import MissingRecord
from tensor_graphs.records.rows import REFUTING, DeviceConstant, SourceRecord, TraceKind, WorkloadRecord
from tensor_graphs.records.schema import (
    BenchmarkTrace,
    CanonicalGraph,
    DeviceConstantRow,
    EnvironmentRow,
    Implementation,
    ImplementationSource,
    ProfileQueue,
    Workload,
)

_Group = tuple[int, str, str]  # environment row, source hash, workload key
_COMPARED = ("PASSED", "INCORRECT_NUMERICAL")  # the candidate ran to its end and its output was compared


@dataclass(frozen=True)
class Evidence:
    """One trace with everything it refers to. `worst_relative_error` is over all judged traces of the same
    implementation on the same workload in the same environment, max_relative_error is this trace's own; times in ms."""

    trace_id: int
    graph_key: str
    graph_name: str
    implementation_type: str
    implementation_name: str
    backend: str
    source_hash: str
    signature: str
    recipe_key: str | None
    numeric_class: str | None
    workload_key: str
    axes: Mapping[str, int]
    environment_key: str
    hardware_name: str
    kind: str
    status: str
    median_ms: float | None
    spread: float | None
    sample_count: int
    max_relative_error: float | None
    p999_relative_error: float | None
    norm_error: float | None
    max_absolute_error: float | None
    tolerance: float | None
    baseline: str
    baseline_ms: float | None
    speedup_factor: float | None
    seed: int | None
    timer: str
    verifier: str
    timestamp: datetime
    worst_relative_error: float | None = None


class KnownTime(NamedTuple):  # a dataclass takes five times as long to make, and thousands are made at start
    """What all traces of one implementation on one workload in one environment say together.

    status: of the newest trace of any kind.  passed: a PASSED trace with an error is there.  refuted: see this module's
    text.
    worst_relative_error: the largest judged error; None if nothing was ever compared.
    median_ms, spread, speedup_factor: of the newest PASSED trace of the kind asked for (None: never timed that way).
    trace_id: that trace, or the newest one; `evidence` gives all of it, its age too.
    """

    source_hash: str
    workload_key: str
    status: str
    passed: bool
    refuted: bool
    worst_relative_error: float | None
    median_ms: float | None
    spread: float | None
    speedup_factor: float | None
    trace_id: int

    def usable(self, tolerance: float) -> bool:
        """May this be chosen at `tolerance`? The same rule as `best_implementation`; NaN on either side says no."""
        error = self.worst_relative_error
        judged = error is not None and error <= tolerance
        return judged and self.median_ms is not None and self.passed and not self.refuted and self.status in _COMPARED


@dataclass(frozen=True)
class Verification:
    """All that is known about one implementation's correctness on one workload in one environment. statuses: traces per
    status;
    newest: the newest trace's status, None if there is no trace at all."""

    statuses: Mapping[str, int]
    newest: str | None
    worst_relative_error: float | None
    refuted: bool

    def within(self, tolerance: float) -> bool:
        """Has it passed, and is the worst error ever seen at most `tolerance`?"""
        error = self.worst_relative_error
        passed = self.statuses.get("PASSED", 0) > 0 and self.newest in _COMPARED and not self.refuted
        return passed and error is not None and error <= tolerance


@dataclass(frozen=True)
class Coverage:
    """How much of what was asked for is measured, for one canonical graph in one environment (pairs of implementation
    and workload)."""

    graph_key: str
    graph_name: str
    measured: int
    passed: int
    waiting: int

    @property
    def fraction(self) -> float:
        """Measured pairs over known pairs; 1 when nothing is waiting."""
        known = self.measured + self.waiting
        return self.measured / known if known else 1.0


def best_implementation(
    database: Database,
    graph_key: str,
    workload: WorkloadRecord | str,
    environment: Environment | str,
    tolerance: float,
    *,
    kind: TraceKind = "cold",
    verifier: str | None = None,
) -> tuple[Evidence, ...]:
    """Kernel or recipe? Every eligible implementation of a canonical graph on one workload, here, the fastest first.

    Empty when nothing measured in this environment is within `tolerance`; the caller then guesses, says so, and
    enqueues.
    """
    graph = sa.select(CanonicalGraph.id).where(CanonicalGraph.structural_key == graph_key).scalar_subquery()
    conditions = (_here(environment), Workload.key == _workload_key(workload), Workload.canonical_graph_id == graph)
    with database.reading() as connection:
        return _eligible(connection, conditions, tolerance, kind, verifier)


def fastest(
    database: Database, environment: Environment | str, tolerance: float, *, kind: TraceKind = "cold"
) -> tuple[Evidence, ...]:
    """The fastest eligible implementation per canonical graph and workload, here: one row each."""
    with database.reading() as connection:
        rows = _eligible(connection, (_here(environment),), tolerance, kind, None)
    first: dict[str, Evidence] = {}
    for row in rows:
        first.setdefault(row.workload_key, row)
    return tuple(first.values())


def leaderboard(
    database: Database,
    graph_key: str,
    *,
    tolerance: float = math.inf,
    hardware_name: str | None = None,
    backend: str | None = None,
    kind: TraceKind = "cold",
    verifier: str | None = None,
) -> tuple[Evidence, ...]:
    """The eligible implementations of a graph in every environment: by workload, then fastest first. Each row says
    where it was measured.

    hardware_name: only environments whose hardware contains this text, case ignored ("rtx 4090").  backend: only this
    backend's.
    """
    graph = sa.select(CanonicalGraph.id).where(CanonicalGraph.structural_key == graph_key).scalar_subquery()
    conditions = [Workload.canonical_graph_id == graph]
    if hardware_name is not None:
        named = EnvironmentRow.hardware_name.icontains(hardware_name, autoescape=True)
        conditions.append(BenchmarkTrace.environment_id.in_(sa.select(EnvironmentRow.id).where(named)))
    if backend is not None:
        conditions.append(Implementation.backend == backend)
    with database.reading() as connection:
        return _eligible(connection, tuple(conditions), tolerance, kind, verifier)


def history(
    database: Database, source_hash: str, *, environment: Environment | str | None = None, limit: int = 1000
) -> tuple[Evidence, ...]:
    """Every trace of an implementation (failures too), the newest first; all its workloads, here or in all
    environments."""
    conditions = [Implementation.source_hash == source_hash]
    if environment is not None:
        conditions.append(_here(environment))
    newest_first = (
        _EVIDENCE.where(*conditions).order_by(BenchmarkTrace.timestamp.desc(), BenchmarkTrace.id.desc()).limit(limit)
    )
    with database.reading() as connection:
        return _rows(connection, newest_first, _verdicts(connection, tuple(conditions), None, None, trusted_only=False))


def evidence(database: Database, *trace_ids: int) -> tuple[Evidence, ...]:
    """The evidence rows of these traces, in the order given, for whoever explains a choice. Raises MissingRecord."""
    with database.reading() as connection:
        found = _EVIDENCE.where(BenchmarkTrace.id.in_(trace_ids))
        groups = sa.select(BenchmarkTrace.workload_id, BenchmarkTrace.environment_id).where(
            BenchmarkTrace.id.in_(trace_ids)
        )
        same = sa.tuple_(BenchmarkTrace.workload_id, BenchmarkTrace.environment_id).in_(groups)
        known = _verdicts(connection, (same,), None, None, trusted_only=False)
        rows = {row.trace_id: row for row in _rows(connection, found, known)}
    for each in trace_ids:
        if each not in rows:
            raise _no_trace(database, each)
    return tuple(rows[each] for each in trace_ids)


def latest_traces(
    database: Database, environment: Environment | str, kind: TraceKind = "cold", *, verifier: str | None = None
) -> dict[tuple[str, str], KnownTime]:
    """Everything measured in one environment, one row per (source hash, workload key), in one query: what the compiler
    loads at start.

    Implementations that failed are there too, with `usable() == False`, so that they are not asked for again. Untrusted
    ones are not.
    """
    with database.reading() as connection:
        known = _verdicts(connection, (_here(environment),), kind, verifier)
    return {(source, workload): verdict for (_, source, workload), verdict in known.items()}


def verified(
    database: Database,
    source_hash: str,
    workload: WorkloadRecord | str,
    environment: Environment | str,
    *,
    verifier: str | None = None,
) -> Verification:
    """Has this implementation been compared with the oracle on this workload here, how often, and with what outcome?"""
    conditions = [
        _here(environment),
        Workload.key == _workload_key(workload),
        Implementation.source_hash == source_hash,
    ]
    trace = BenchmarkTrace
    count = sa.select(trace.status, sa.func.count()).select_from(trace)
    count = count.join(Workload, Workload.id == trace.workload_id).join(
        Implementation, Implementation.id == trace.implementation_id
    )
    if verifier is not None:
        count = count.where(trace.verifier == verifier)
    with database.reading() as connection:
        known = _verdicts(connection, tuple(conditions), None, verifier, trusted_only=False)
        counted = connection.execute(count.where(*conditions).group_by(trace.status))
        statuses = {str(row[0]): int(row[1]) for row in counted}
    verdict = next(iter(known.values()), None)
    if verdict is None:
        return Verification(statuses, None, None, refuted=False)
    return Verification(statuses, verdict.status, verdict.worst_relative_error, verdict.refuted)


def coverage(database: Database, environment: Environment | str) -> tuple[Coverage, ...]:
    """Per canonical graph, the least covered first: pairs measured, pairs passed, pairs still waiting in the queue."""
    here = _environment_id(environment)

    def pairs(table: Any, *conditions: Any) -> Any:
        distinct = (
            sa.select(table.implementation_id, table.workload_id)
            .where(table.environment_id == here, *conditions)
            .distinct()
            .subquery()
        )
        graph = Workload.canonical_graph_id
        return (
            sa.select(graph.label("graph"), sa.func.count().label("pairs"))
            .join_from(distinct, Workload, Workload.id == distinct.c.workload_id)
            .group_by(graph)
            .subquery()
        )

    unmeasured = ~sa.exists().where(
        BenchmarkTrace.implementation_id == ProfileQueue.implementation_id,
        BenchmarkTrace.workload_id == ProfileQueue.workload_id,
        BenchmarkTrace.environment_id == ProfileQueue.environment_id,
    )
    measured, passed = pairs(BenchmarkTrace), pairs(BenchmarkTrace, BenchmarkTrace.status == "PASSED")
    waiting = pairs(ProfileQueue, unmeasured)
    counts = [sa.func.coalesce(each.c.pairs, 0) for each in (measured, passed, waiting)]
    select = sa.select(CanonicalGraph.structural_key, CanonicalGraph.human_name, *counts)
    for each in (measured, passed, waiting):
        select = select.outerjoin(each, each.c.graph == CanonicalGraph.id)
    with database.reading() as connection:
        rows = [Coverage(*row) for row in connection.execute(select.where(counts[0] + counts[2] > 0))]
    return tuple(sorted(rows, key=lambda row: (row.fraction, row.graph_key)))


def constants(database: Database, environment: Environment | str, device: str = "cpu") -> dict[str, DeviceConstant]:
    """The newest measured constants of a device in this environment, by name."""
    row = DeviceConstantRow
    select = (
        sa.select(row.name, row.value, row.unit, row.device, row.timestamp)
        .join(EnvironmentRow, EnvironmentRow.id == row.environment_id)
        .where(EnvironmentRow.key == environment_key(environment), row.device == device)
        .order_by(row.timestamp, row.id)
    )
    with database.reading() as connection:
        return {each.name: DeviceConstant(*each) for each in connection.execute(select)}


def environments(database: Database) -> tuple[tuple[str, Environment], ...]:
    """Every environment that was ever measured, as (key, environment), by hardware name."""
    row = EnvironmentRow
    select = sa.select(row.key, row.hardware_name, row.memory_bytes, row.platform, row.backend, row.libs, row.hardware)
    with database.reading() as connection:
        found = connection.execute(select.order_by(row.hardware_name, row.backend, row.id)).all()
    return tuple(
        (key, Environment(name, memory, platform, backend, tuple(libs.items()), tuple(hardware.items())))
        for key, name, memory, platform, backend, libs, hardware in found
    )


def graph_text(database: Database, structural_key: str) -> tuple[str, str]:
    """(the .tg text, the JSON) of a canonical graph. Raises MissingRecord."""
    select = sa.select(CanonicalGraph.text, CanonicalGraph.json).where(CanonicalGraph.structural_key == structural_key)
    with database.reading() as connection:
        found = connection.execute(select).one_or_none()
    if found is None:
        raise MissingRecord(
            f"{database.location} has no canonical graph {structural_key}\n    fix: store it with ensure_graph"
        )
    return found.text, found.json


def sources(database: Database, signature: str) -> tuple[SourceRecord, ...]:
    """The sources of one implementation, verbatim, with their trust; empty when none were stored."""
    source = ImplementationSource
    select = (
        sa.select(source.path, source.content, source.trusted, source.language, source.origin)
        .join(Implementation, Implementation.id == source.implementation_id)
        .where(Implementation.signature == signature)
        .order_by(source.path)
    )
    with database.reading() as connection:
        return tuple(SourceRecord(*row) for row in connection.execute(select))


def samples(database: Database, trace_id: int) -> tuple[float, ...]:
    """All time samples of one trace [ms], in the order they were taken. Raises MissingRecord."""
    return tuple(_of_trace(database, trace_id, BenchmarkTrace.samples_ms))


def read_log(database: Database, trace_id: int) -> str:
    """The log of one trace, as text. Raises MissingRecord."""
    return decompress_log(_of_trace(database, trace_id, BenchmarkTrace.full_log))


def _of_trace(database: Database, trace_id: int, column: Any) -> Any:
    with database.reading() as connection:
        row = connection.execute(sa.select(column).where(BenchmarkTrace.id == trace_id)).one_or_none()
    if row is None:
        raise _no_trace(database, trace_id)
    return row[0]


def _no_trace(database: Database, trace_id: int) -> MissingRecord:
    return MissingRecord(f"{database.location} has no trace {trace_id}\n    fix: take trace_id from an evidence row")


def _environment_id(environment: Environment | str) -> Any:
    return sa.select(EnvironmentRow.id).where(EnvironmentRow.key == environment_key(environment)).scalar_subquery()


def _here(environment: Environment | str) -> Any:
    return BenchmarkTrace.environment_id == _environment_id(environment)


def _workload_key(workload: WorkloadRecord | str) -> str:
    return workload if isinstance(workload, str) else workload.key


# Only columns of the covering index, in its order, so that SQLite neither sorts nor reads the rows.
_JUDGED = (
    sa.select(
        BenchmarkTrace.environment_id, BenchmarkTrace.id, BenchmarkTrace.kind, BenchmarkTrace.status,
        BenchmarkTrace.max_relative_error,
        BenchmarkTrace.tolerance, BenchmarkTrace.median_ms, BenchmarkTrace.spread, BenchmarkTrace.speedup_factor,
        Implementation.source_hash, Workload.key,
    )
    .join(Implementation, Implementation.id == BenchmarkTrace.implementation_id)
    .join(Workload, Workload.id == BenchmarkTrace.workload_id)
    .order_by(
        BenchmarkTrace.environment_id, BenchmarkTrace.workload_id, BenchmarkTrace.implementation_id,
        BenchmarkTrace.timestamp,
        BenchmarkTrace.id,
    )
)  # fmt: skip


def _verdicts(
    connection: Connection,
    conditions: tuple[Any, ...],
    kind: str | None,
    verifier: str | None,
    *,
    trusted_only: bool = True,
) -> dict[_Group, KnownTime]:
    """What is known of every implementation on every workload in every environment that meets the conditions."""
    select = _JUDGED.where(*conditions)
    if verifier is not None:
        select = select.where(BenchmarkTrace.verifier == verifier)
    if trusted_only:
        select = select.where(~untrusted(Implementation.id))
    # By source hash, not row id: an implementation stored once for one graph and once for many is still one piece of
    # code.
    groups: dict[_Group, list[Any]] = {}
    for place, trace, of_kind, status, error, tolerance, median, spread, speedup, source, key in connection.execute(
        select
    ).all():
        asked = kind is None or kind == of_kind
        groups.setdefault((place, source, key), []).append(
            (trace, asked, status, error, tolerance, median, spread, speedup)
        )
    return {group: _verdict(group[1], group[2], rows) for group, rows in groups.items()}


def _verdict(source_hash: str, workload_key: str, rows: list[Any]) -> KnownTime:
    """Sum up the traces of one group, the oldest first."""
    worst, passed, refuted, timed = None, False, False, None
    for row in rows:
        _, asked, status, error, tolerance, median, _, _ = row
        if status == "PASSED":
            if asked and median is not None:
                timed = row
            if error is None:
                continue
            passed = True
        elif status == "INCORRECT_NUMERICAL":
            explained = error is not None and tolerance is not None and error > tolerance
            error = error if explained else math.inf
        else:
            refuted = refuted or status in REFUTING
            continue
        worst = error if worst is None else max(worst, error)
    newest = rows[-1]
    median, spread, speedup = timed[5:] if timed else (None, None, None)
    trace_id = (timed or newest)[0]
    return KnownTime(source_hash, workload_key, newest[2], passed, refuted, worst, median, spread, speedup, trace_id)


def _eligible(
    connection: Connection, conditions: tuple[Any, ...], tolerance: float, kind: str, verifier: str | None
) -> tuple[Evidence, ...]:
    known = _verdicts(connection, conditions, kind, verifier)
    usable = [each.trace_id for each in known.values() if each.usable(tolerance)]
    fastest_first = _EVIDENCE.where(BenchmarkTrace.id.in_(usable))
    fastest_first = fastest_first.order_by(
        BenchmarkTrace.workload_id, BenchmarkTrace.median_ms, Implementation.signature
    )
    return _rows(connection, fastest_first, known)


_target = aliased(CanonicalGraph)
_EVIDENCE = (
    sa.select(
        BenchmarkTrace.environment_id, BenchmarkTrace.id, CanonicalGraph.structural_key, CanonicalGraph.human_name,
        Implementation.type,
        Implementation.name, Implementation.backend, Implementation.source_hash, Implementation.signature,
        _target.structural_key,
        Implementation.numeric_class, Workload.key, Workload.axes_json, EnvironmentRow.key,
        EnvironmentRow.hardware_name,
        BenchmarkTrace.kind, BenchmarkTrace.status, BenchmarkTrace.median_ms, BenchmarkTrace.spread,
        BenchmarkTrace.sample_count,
        BenchmarkTrace.max_relative_error, BenchmarkTrace.p999_relative_error, BenchmarkTrace.norm_error,
        BenchmarkTrace.max_absolute_error, BenchmarkTrace.tolerance, BenchmarkTrace.baseline,
        BenchmarkTrace.baseline_ms,
        BenchmarkTrace.speedup_factor, BenchmarkTrace.seed, BenchmarkTrace.timer, BenchmarkTrace.verifier,
        BenchmarkTrace.timestamp,
    )
    .select_from(BenchmarkTrace)
    .join(EnvironmentRow, EnvironmentRow.id == BenchmarkTrace.environment_id)
    .join(Workload, Workload.id == BenchmarkTrace.workload_id)
    .join(CanonicalGraph, CanonicalGraph.id == Workload.canonical_graph_id)
    .join(Implementation, Implementation.id == BenchmarkTrace.implementation_id)
    .outerjoin(_target, _target.id == Implementation.recipe_graph_id)
)  # fmt: skip


def _rows(connection: Connection, select: Any, known: Mapping[_Group, KnownTime]) -> tuple[Evidence, ...]:
    rows = []
    for place, *columns in connection.execute(select):
        row = Evidence(*columns)
        verdict = known.get((place, row.source_hash, row.workload_key))
        rows.append(row if verdict is None else replace(row, worst_relative_error=verdict.worst_relative_error))
    return tuple(rows)
