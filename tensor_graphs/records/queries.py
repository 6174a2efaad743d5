"""queries: questions of people about the measurements; every answer is rows of evidence, never a bare choice.

The rule by which an implementation is eligible is in measurements.py, with the queries of the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.orm import aliased

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.database import Database, environment_key, text_hash, untrusted
from tensor_graphs.records.errors import CorruptDatabase, MissingRecord
from tensor_graphs.records.logs import decompress_log, reason_of
from tensor_graphs.records.measurements import (
    AGREE,
    COMPARED,
    Counting,
    Group,
    KnownTime,
    counting,
    environment_row,
    implementations_where,
    measured_in,
    verdicts,
)
from tensor_graphs.records.measurements import constants as constants
from tensor_graphs.records.measurements import latest_traces as latest_traces
from tensor_graphs.records.measurements import trace_conditions as trace_conditions
from tensor_graphs.records.rows import SourceRecord, TraceKind, WorkloadRecord
from tensor_graphs.records.schema import (
    BenchmarkTrace,
    EnvironmentRow,
    GraphRow,
    Implementation,
    ImplementationSource,
    ProfileQueue,
    RecipeSearch,
    Workload,
)


@dataclass(frozen=True)
class FullTrace:
    """One trace with everything it refers to; times in ms. max_relative_error is the error of this trace; worst_relative_error is
    the largest of all judged traces of the same implementation on the same workload in the same environment (None in a history).
    description: what a path runs, or a kernel assumes. computed_by: the backends of its environment, like "c+numpy"."""

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
    description: str | None
    computed_by: str
    worst_relative_error: float | None = None


@dataclass(frozen=True)
class Failure:
    """A trace that did not pass. reason: the line of its log that explains it (`reason_of`). newest: no later trace exists of the
    same implementation on the same workload in the same environment."""

    trace: FullTrace
    reason: str
    newest: bool


@dataclass(frozen=True)
class Verification:
    """Everything on file about the correctness of one implementation on one workload in one environment. statuses: number of traces
    by status. newest: status of the newest trace, None without traces."""

    statuses: Mapping[str, int]
    newest: str | None
    worst_relative_error: float | None
    refuted: bool

    def within(self, tolerance: float) -> bool:
        """Return whether it has passed, and its worst error on file is at most `tolerance`."""
        error = self.worst_relative_error
        passed = self.statuses.get("PASSED", 0) > 0 and self.newest in COMPARED and not self.refuted
        return passed and error is not None and error <= tolerance


@dataclass(frozen=True)
class RecipeRow:
    """A recipe (a graph that means the same) on file. graph_key: of the part that it computes. recipe_key, recipe_json: of the
    equivalent graph. sources: by path. trusted: all sources are trusted and unchanged since they were stored."""

    name: str
    graph_key: str
    recipe_key: str
    recipe_json: str
    numeric_class: str | None
    sources: Mapping[str, str]
    trusted: bool


@dataclass(frozen=True)
class Coverage:
    """Measured share of the requests for one canonical graph in one environment; counts are pairs (implementation, workload)."""

    graph_key: str
    graph_name: str
    measured: int
    passed: int
    waiting: int

    @property
    def fraction(self) -> float:
        """Measured pairs over measured and waiting pairs; 1 when none is waiting."""
        pairs = self.measured + self.waiting
        return self.measured / pairs if pairs else 1.0


def best_implementation(database: Database, graph_key: str, workload: WorkloadRecord | str, environment: Environment | str,
                        tolerance: float, *, kind: TraceKind = "cold", verifier: str | None = None) -> tuple[FullTrace, ...]:
    """Return every eligible implementation of a canonical graph on one workload in this environment, the fastest first.

    Empty when nothing measured in this environment is within `tolerance`; the caller then estimates, reports that, and enqueues.
    """
    of_graph = sa.and_(Workload.key == _workload_key(workload), Workload.canonical_graph_id == _graph_id(graph_key))
    at = BenchmarkTrace.workload_id == sa.select(Workload.id).where(of_graph).scalar_subquery()
    with database.reading() as connection:
        return _eligible(connection, (measured_in(environment), at), tolerance, kind, verifier)


def fastest(
    database: Database, environment: Environment | str, tolerance: float, *, kind: TraceKind = "cold"
) -> tuple[FullTrace, ...]:
    """Return the fastest eligible implementation in an environment for each canonical graph and workload, one row each."""
    with database.reading() as connection:
        rows = _eligible(connection, (measured_in(environment),), tolerance, kind, None)
    first: dict[str, FullTrace] = {}
    for row in rows:
        first.setdefault(row.workload_key, row)
    return tuple(first.values())


def best_per_machine(
    database: Database, tolerance: float, *, graph_key: str | None = None, kind: TraceKind = "cold"
) -> tuple[FullTrace, ...]:
    """Return the fastest eligible implementation per canonical graph, workload and machine, of any backend, sorted by graph name
    and workload. Times from one machine are compared, though each backend has an environment of its own. graph_key: rows of this
    graph only."""
    rows: Iterable[FullTrace]
    if graph_key is None:
        rows = (row for key, _ in environments(database) for row in fastest(database, key, tolerance, kind=kind))
    else:
        rows = leaderboard(database, graph_key, tolerance=tolerance, kind=kind)
    return fastest_per_machine(database, rows)


def fastest_per_machine(database: Database, rows: Iterable[FullTrace]) -> tuple[FullTrace, ...]:
    """Return the fastest of the rows for each workload, machine and kind, sorted by graph name and key."""
    machines = {key: environment.machine for key, environment in environments(database)}
    best: dict[tuple[str, str, str], FullTrace] = {}
    for row in rows:
        at = row.workload_key, machines[row.environment_key], row.kind
        other = best.setdefault(at, row)
        if (row.median_ms or 0.0) < (other.median_ms or 0.0):
            best[at] = row
    return tuple(sorted(best.values(), key=lambda row: (row.graph_name, row.graph_key)))


def leaderboard(database: Database, graph_key: str, *, environment: Environment | str | None = None, tolerance: float = math.inf,
                hardware_name: str | None = None, backend: str | None = None, kind: TraceKind = "cold",
                verifier: str | None = None) -> tuple[FullTrace, ...]:
    """Return the eligible implementations of a graph in an environment (None: in all), sorted by workload, then by time. Each row
    names the environment where it was measured.

    hardware_name: only environments whose hardware contains this text, case ignored ("rtx 4090"). backend: only this backend.
    """
    trace, row = BenchmarkTrace, EnvironmentRow
    places = sa.select(row.id)  # named even when it is all of them: ix_benchmark_traces_here begins with the environment
    if environment is not None:
        places = places.where(row.key == environment_key(environment))
    if hardware_name is not None:
        places = places.where(row.hardware_name.icontains(hardware_name, autoescape=True))
    workloads = sa.select(Workload.id).where(Workload.canonical_graph_id == _graph_id(graph_key))
    conditions = [trace.environment_id.in_(places), trace.workload_id.in_(workloads)]
    if backend is not None:
        conditions.append(trace.implementation_id.in_(implementations_where(Implementation.backend == backend)))
    with database.reading() as connection:
        return _eligible(connection, tuple(conditions), tolerance, kind, verifier)


def ways(database: Database, graph_key: str, *, axes: Mapping[str, int] | None = None, environment: Environment | str | None = None,
         tolerance: float = math.inf, verifier: str | None = None) -> tuple[FullTrace, ...]:
    """Return the alternatives (kernels, definition) for computing a graph that are eligible at `tolerance`, sorted by workload:
    first runs of entire paths (kind in_graph: one kernel, or the definition in steps, as `description` has it), then kernels timed
    alone (kind cold), each by time. Times of the two kinds are not compared, as the time of a path includes the cost of calls.

    axes: this workload only, by canonical names ({"d0": 4096}).
    """
    runs, alone = (leaderboard(database, graph_key, environment=environment, tolerance=tolerance, kind=kind, verifier=verifier)
                   for kind in ("in_graph", "cold"))
    rows = [row for row in (*runs, *alone) if row.kind == "cold" or row.implementation_type == "GRAPH_RECIPE"]
    rows = [row for row in rows if axes is None or dict(row.axes) == dict(axes)]
    return tuple(sorted(rows, key=lambda row: (sorted(row.axes.items()), row.workload_key, row.kind == "cold",
                                               row.median_ms or 0.0)))


def history(database: Database, kernel: str, *, environment: Environment | str | None = None, since: datetime | None = None,
            limit: int = 1000) -> tuple[FullTrace, ...]:
    """Return every trace of a kernel (failures too), the newest first, on all its workloads, in one environment or (None) in all.

    kernel: its name, for all identities that its code has had, or one source hash. since: no older traces.
    """
    trace = BenchmarkTrace
    with database.reading() as connection:
        newest: list[tuple[Any, int]] = []
        # One short range of an index each: all in one query would sort every trace that the kernel ever had.
        for identity in connection.execute(_named_or_hashed(kernel)).scalars().all():
            select = sa.select(trace.timestamp, trace.id).where(trace.implementation_id == identity)
            if environment is not None:
                select = select.where(measured_in(environment))
            if since is not None:
                select = select.where(trace.timestamp >= since)
            select = select.order_by(trace.timestamp.desc(), trace.id.desc()).limit(limit)
            newest.extend((row[0], row[1]) for row in connection.execute(select))
        ids = [trace_id for _, trace_id in sorted(newest, reverse=True)[:limit]]
        rows = _rows(connection, ids, {})
    return tuple(_present(database, rows, ids))


def standings(database: Database, *trace_ids: int, verifier: str | None = None) -> dict[int, str]:
    """Return for each of these traces with a time: "counts", "agrees", or why it does not count among times of the same code,
    workload, environment, kind and verifier; "" for one without a time. verifier: the current one; rows of others do not count."""
    trace, code = BenchmarkTrace, Implementation.source_hash
    result: dict[int, str] = dict.fromkeys(trace_ids, "")
    groups: dict[tuple[Any, ...], list[tuple[float, int]]] = {}
    select = sa.select(trace.environment_id, trace.workload_id, code, trace.kind, trace.verifier, trace.median_ms, trace.id)
    select = select.join(Implementation, Implementation.id == trace.implementation_id)
    timed = select.where(trace.status == "PASSED", trace.median_ms.is_not(None)).order_by(trace.timestamp, trace.id)
    with database.reading() as connection:
        for start in range(0, len(trace_ids), 500):
            wanted = sa.select(trace.workload_id, trace.environment_id).where(trace.id.in_(trace_ids[start : start + 500]))
            same = sa.tuple_(trace.workload_id, trace.environment_id).in_(wanted)
            for row in connection.execute(timed.where(same)):
                groups.setdefault(tuple(row[:5]), []).append((row[5] or 0.0, row[6]))
    for group, times in groups.items():
        chosen = counting(times)
        for median, trace_id in times:
            if trace_id in result:
                current = verifier in (None, group[-1])
                result[trace_id] = _standing(median, trace_id, chosen) if current else "of an outdated verifier"
    return result


def _standing(median: float, trace_id: int, chosen: Counting) -> str:
    if trace_id == chosen.trace_id:
        return "counts"
    if median <= AGREE * chosen.lowest:
        return "agrees"
    return f"disturbed, {median / chosen.lowest if chosen.lowest else math.inf:.3g} × the lowest"


def failures(database: Database, *, environment: Environment | str | None = None, kernel: str | None = None,
             workload: WorkloadRecord | str | None = None, limit: int = 100) -> tuple[Failure, ...]:
    """Return the traces that did not pass, the newest first, each with the line of its log that explains it.

    kernel: only this name or source hash. workload: only this workload.
    """
    trace = BenchmarkTrace
    later = aliased(BenchmarkTrace)
    followed = sa.exists().where(
        later.environment_id == trace.environment_id,
        later.workload_id == trace.workload_id,
        later.implementation_id == trace.implementation_id,
        sa.or_(later.timestamp > trace.timestamp, sa.and_(later.timestamp == trace.timestamp, later.id > trace.id)),
    )
    # the index's own words, not a parameter, so that SQLite knows that the index of failures applies
    select = sa.select(trace.id, trace.full_log, followed).where(sa.text("benchmark_traces.status <> 'PASSED'"))
    if environment is not None:
        select = select.where(measured_in(environment))
    if kernel is not None:
        select = select.where(trace.implementation_id.in_(_named_or_hashed(kernel)))
    if workload is not None:
        at = sa.select(Workload.id).where(Workload.key == _workload_key(workload)).scalar_subquery()
        select = select.where(trace.workload_id == at)
    with database.reading() as connection:
        failed = connection.execute(select.order_by(trace.timestamp.desc(), trace.id.desc()).limit(limit)).all()
        rows = _rows(connection, [row[0] for row in failed], {})
    present = _present(database, rows, (row[0] for row in failed))
    return tuple(Failure(evidence, reason_of(decompress_log(log)), not superseded)
                 for evidence, (_, log, superseded) in zip(present, failed, strict=True))


def evidence(database: Database, *trace_ids: int) -> tuple[FullTrace, ...]:
    """Return the rows of these traces with all they refer to, in the order given. Raises MissingRecord for an unknown id."""
    trace = BenchmarkTrace
    groups = sa.select(trace.workload_id, trace.environment_id).where(trace.id.in_(trace_ids))
    same = sa.tuple_(trace.workload_id, trace.environment_id).in_(groups)
    with database.reading() as connection:
        rows = _rows(connection, trace_ids, verdicts(connection, (same,), None, None, trusted_only=False))
    for trace_id in trace_ids:
        if trace_id not in rows:
            raise _no_trace(database, trace_id)
    return tuple(rows[trace_id] for trace_id in trace_ids)


def trace_count(database: Database) -> int:
    """Return the number of traces."""
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(BenchmarkTrace)).scalar_one())


def all_traces(database: Database) -> Iterator[tuple[FullTrace, tuple[float, ...]]]:
    """Yield every trace with its time samples [ms], the oldest first."""
    trace = BenchmarkTrace
    last = 0
    while True:
        with database.reading() as connection:
            after = sa.select(trace.id, trace.samples_ms).where(trace.id > last).order_by(trace.id).limit(500)
            batch = connection.execute(after).all()
            rows = _rows(connection, [number for number, _ in batch], {})
        if not batch:
            return
        yield from ((rows[number], tuple(samples)) for number, samples in batch)
        last = batch[-1][0]


def verified(database: Database, source_hash: str, workload: WorkloadRecord | str, environment: Environment | str, *,
             verifier: str | None = None) -> Verification:
    """Return how often and with what outcome this implementation was compared with the oracle on this workload and environment."""
    trace = BenchmarkTrace
    at = sa.select(Workload.id).where(Workload.key == _workload_key(workload)).scalar_subquery()
    of = implementations_where(Implementation.source_hash == source_hash)
    conditions = (measured_in(environment), trace.workload_id == at, trace.implementation_id.in_(of))
    count = sa.select(trace.status, sa.func.count()).where(*conditions).group_by(trace.status)
    if verifier is not None:
        count = count.where(trace.verifier == verifier)
    with database.reading() as connection:
        times = verdicts(connection, conditions, None, verifier, trusted_only=False)
        statuses = {str(row[0]): int(row[1]) for row in connection.execute(count)}
    verdict = next(iter(times.values()), None)
    if verdict is None:
        return Verification(statuses, None, None, refuted=False)
    return Verification(statuses, verdict.status, verdict.worst_relative_error, verdict.refuted)


def coverage(database: Database, environment: Environment | str) -> tuple[Coverage, ...]:
    """Return the coverage of each canonical graph, the least covered first: pairs measured, passed, and waiting in the queue."""
    here = environment_row(environment)

    def pairs(table: Any, *conditions: Any) -> Any:
        distinct = (sa.select(table.implementation_id, table.workload_id)
                    .where(table.environment_id == here, *conditions)
                    .distinct()
                    .subquery())
        graph = Workload.canonical_graph_id
        return (sa.select(graph.label("graph"), sa.func.count().label("pairs"))
                .join_from(distinct, Workload, Workload.id == distinct.c.workload_id)
                .group_by(graph)
                .subquery())

    unmeasured = ~sa.exists().where(BenchmarkTrace.implementation_id == ProfileQueue.implementation_id,
                                    BenchmarkTrace.workload_id == ProfileQueue.workload_id,
                                    BenchmarkTrace.environment_id == ProfileQueue.environment_id)
    measured, passed = pairs(BenchmarkTrace), pairs(BenchmarkTrace, BenchmarkTrace.status == "PASSED")
    waiting = pairs(ProfileQueue, unmeasured)
    counts = [sa.func.coalesce(counted.c.pairs, 0) for counted in (measured, passed, waiting)]
    select = sa.select(GraphRow.structural_key, GraphRow.human_name, *counts)
    for counted in (measured, passed, waiting):
        select = select.outerjoin(counted, counted.c.graph == GraphRow.id)
    with database.reading() as connection:
        rows = [Coverage(*row) for row in connection.execute(select.where(counts[0] + counts[2] > 0))]
    return tuple(sorted(rows, key=lambda row: (row.fraction, row.graph_key)))


def environments(database: Database) -> tuple[tuple[str, Environment], ...]:
    """Return (key, environment) of every environment on file, sorted by hardware name."""
    row = EnvironmentRow
    select = sa.select(row.key, row.hardware_name, row.memory_bytes, row.platform, row.backend, row.libs, row.hardware)
    with database.reading() as connection:
        rows = connection.execute(select.order_by(row.hardware_name, row.backend, row.id)).all()
    return tuple((key, Environment(name, memory, platform, backend, tuple(libs.items()), tuple(hardware.items())))
                 for key, name, memory, platform, backend, libs, hardware in rows)


def graphs_like(database: Database, what: str | None = None) -> tuple[tuple[str, str], ...]:
    """Return (structural key, name) of the canonical graphs of this name, or, if there are none, of those whose key begins with
    `what` (None: of all), sorted by name and key."""
    row = GraphRow
    select = sa.select(row.structural_key, row.human_name).order_by(row.human_name, row.structural_key)
    with database.reading() as connection:
        rows = connection.execute(select if what is None else select.where(row.human_name == what)).all()
        if not rows and what:
            rows = connection.execute(select.where(row.structural_key.startswith(what, autoescape=True))).all()
    return tuple((key, name) for key, name in rows)


def kernels_like(database: Database, what: str) -> tuple[str, ...]:
    """Return the signatures of the implementations whose name, source hash or signature is `what`."""
    row = Implementation
    select = sa.select(row.signature).where(sa.or_(row.name == what, row.source_hash == what, row.signature == what))
    with database.reading() as connection:
        return tuple(connection.execute(select.order_by(row.id)).scalars())


def kernel_names(database: Database) -> dict[str, str]:
    """Return the name of every kernel on file, by source hash."""
    select = sa.select(Implementation.source_hash, Implementation.name).where(Implementation.type == "KERNEL")
    with database.reading() as connection:
        return {row.source_hash: row.name for row in connection.execute(select)}


@dataclass(frozen=True)
class SearchedRow:
    """A schedule that a search has timed. source: of its kernel. graph: JSON of the canonical graph. baseline_ms: time of the
    schedule that the rules make. score: ratio of this schedule's time to that one, measured in pairs."""

    source: str
    graph_key: str
    graph: str
    workload_key: str
    axes: Mapping[str, int]
    score: float
    baseline_ms: float


def searched(database: Database, environment: Environment | str) -> tuple[SearchedRow, ...]:
    """Return the schedules of trusted sources timed by searches in an environment, sorted by workload, then in the order of the
    search."""
    trace, code, file = BenchmarkTrace, Implementation, ImplementationSource
    select = (sa.select(file.content, GraphRow.structural_key, GraphRow.json, Workload.key, Workload.axes_json, trace.conditions,
                        trace.baseline_ms)
              .join(Workload, Workload.id == trace.workload_id).join(GraphRow, GraphRow.id == Workload.canonical_graph_id)
              .join(code, code.id == trace.implementation_id).join(file, file.implementation_id == code.id)
              .where(measured_in(environment), trace.kind == "search", trace.status == "PASSED", file.trusted,
                     trace.baseline_ms.is_not(None)).order_by(Workload.id, trace.id))
    with database.reading() as connection:
        return tuple(SearchedRow(content, key, graph, workload, {name: int(n) for name, n in axes.items()},
                                 float(conditions["search"]["score"]), float(baseline))
                     for content, key, graph, workload, axes, conditions, baseline in connection.execute(select)
                     if conditions.get("search", {}).get("score"))


def waiting_for_trust(database: Database) -> tuple[tuple[str, str], ...]:
    """Return (signature, name) of the implementations that wait for trust and are never chosen or run, sorted by name."""
    row = Implementation
    select = sa.select(row.signature, row.name).where(untrusted(row.id)).order_by(row.name, row.id)
    with database.reading() as connection:
        return tuple((signature, name) for signature, name in connection.execute(select))


def graph_text(database: Database, structural_key: str) -> tuple[str, str]:
    """Return (text in the .tg language, JSON) of a canonical graph. Raises MissingRecord."""
    select = sa.select(GraphRow.text, GraphRow.json).where(GraphRow.structural_key == structural_key)
    with database.reading() as connection:
        graph = connection.execute(select).one_or_none()
    if graph is None:
        raise MissingRecord(f"{database.location} has no canonical graph {structural_key}\n  fix: store it with ensure_graph")
    return graph.text, graph.json


def workload_inputs(database: Database, workload_key: str) -> tuple[Mapping[str, Any], ...]:
    """Return the descriptors of a workload's input values; empty where all are random. Raises MissingRecord."""
    with database.reading() as connection:
        workload = connection.execute(sa.select(Workload.input_descriptors).where(Workload.key == workload_key)).one_or_none()
    if workload is None:
        raise MissingRecord(f"{database.location} has no workload {workload_key}")
    return tuple(workload.input_descriptors)


def sources(database: Database, signature: str) -> tuple[SourceRecord, ...]:
    """Return the sources of one implementation, verbatim, with their trust; empty when none are stored."""
    source = ImplementationSource
    select = (sa.select(source.path, source.content, source.trusted, source.language, source.origin)
              .join(Implementation, Implementation.id == source.implementation_id)
              .where(Implementation.signature == signature)
              .order_by(source.path))
    with database.reading() as connection:
        return tuple(SourceRecord(*row) for row in connection.execute(select))


def recipe_search(database: Database, key: str) -> list[Any] | None:
    """Return the result of a search for recipes, as `Database.add_recipes` stored it; None if there is none for this key."""
    with database.reading() as connection:
        return connection.execute(sa.select(RecipeSearch.found).where(RecipeSearch.key == key)).scalar()


def recipes(database: Database, signatures: Iterable[str]) -> dict[str, RecipeRow]:
    """Return the recipes with these signatures, by signature; signatures of anything else are left out."""
    row, source, target = Implementation, ImplementationSource, aliased(GraphRow)
    columns = (row.name, GraphRow.structural_key, target.structural_key, target.json, row.numeric_class)
    select = sa.select(row.id, row.signature, *columns).join(GraphRow, GraphRow.id == row.canonical_graph_id)
    select = select.join(target, target.id == row.recipe_graph_id)
    texts = sa.select(source.implementation_id, source.path, source.content, source.content_sha256, source.trusted)
    wanted = sorted(set(signatures))
    result: dict[str, RecipeRow] = {}
    with database.reading() as connection:
        for start in range(0, len(wanted), 500):
            rows = connection.execute(select.where(row.signature.in_(wanted[start : start + 500]))).all()
            sources: dict[Any, list[Any]] = {row_here[0]: [] for row_here in rows}
            for row_here in connection.execute(texts.where(source.implementation_id.in_(list(sources)))):
                sources[row_here[0]].append(row_here)
            for number, signature, name, of, recipe, json, numeric_class in rows:
                own_sources = sources[number]
                whole = all(text_hash(content) == stored and trusted for _, _, content, stored, trusted in own_sources)
                result[signature] = RecipeRow(name, of, recipe, json, numeric_class,
                                             {path: content for _, path, content, _, _ in own_sources}, whole and bool(own_sources))
    return result


def samples(database: Database, trace_id: int) -> tuple[float, ...]:
    """Return all time samples of one trace [ms], in the order of measurement. Raises MissingRecord."""
    return tuple(_of_trace(database, trace_id, BenchmarkTrace.samples_ms))


def read_log(database: Database, trace_id: int) -> str:
    """Return the log of one trace, as text. Raises MissingRecord."""
    return decompress_log(_of_trace(database, trace_id, BenchmarkTrace.full_log))


def _of_trace(database: Database, trace_id: int, column: Any) -> Any:
    with database.reading() as connection:
        row = connection.execute(sa.select(column).where(BenchmarkTrace.id == trace_id)).one_or_none()
    if row is None:
        raise _no_trace(database, trace_id)
    return row[0]


def _no_trace(database: Database, trace_id: int) -> MissingRecord:
    return MissingRecord(
        f"{database.location} has no trace {trace_id}\n  fix: take the trace_id of a row that history or failures gives"
    )


def _graph_id(structural_key: str) -> Any:
    return sa.select(GraphRow.id).where(GraphRow.structural_key == structural_key).scalar_subquery()


def _named_or_hashed(kernel: str) -> Any:
    return implementations_where(sa.or_(Implementation.name == kernel, Implementation.source_hash == kernel))


def _workload_key(workload: WorkloadRecord | str) -> str:
    return workload if isinstance(workload, str) else workload.key


def _eligible(
    connection: Connection, conditions: tuple[Any, ...], tolerance: float, kind: str, verifier: str | None
) -> tuple[FullTrace, ...]:
    times = verdicts(connection, conditions, kind, verifier)
    rows = _rows(connection, [known_time.trace_id for known_time in times.values() if known_time.usable(tolerance)], times)
    workloads = {key: number for number, key in enumerate(dict.fromkeys(key for _, _, key in times))}
    return tuple(sorted(rows.values(), key=lambda row: (workloads[row.workload_key], row.median_ms or 0.0, row.signature)))


_target = aliased(GraphRow)
_EVIDENCE = (
    sa.select(BenchmarkTrace.environment_id, Implementation.source_hash.label("code"), Workload.key.label("at"),
              BenchmarkTrace.id, GraphRow.structural_key, GraphRow.human_name, Implementation.type,
              Implementation.name, Implementation.backend, Implementation.source_hash, Implementation.signature,
              _target.structural_key, Implementation.numeric_class, Workload.key, Workload.axes_json, EnvironmentRow.key,
              EnvironmentRow.hardware_name,
              BenchmarkTrace.kind, BenchmarkTrace.status, BenchmarkTrace.median_ms, BenchmarkTrace.spread,
              BenchmarkTrace.sample_count,
              BenchmarkTrace.max_relative_error, BenchmarkTrace.p999_relative_error, BenchmarkTrace.norm_error,
              BenchmarkTrace.max_absolute_error, BenchmarkTrace.tolerance, BenchmarkTrace.baseline, BenchmarkTrace.baseline_ms,
              BenchmarkTrace.speedup_factor, BenchmarkTrace.seed, BenchmarkTrace.timer, BenchmarkTrace.verifier,
              BenchmarkTrace.timestamp, Implementation.description, EnvironmentRow.backend)
    .select_from(BenchmarkTrace)
    .join(EnvironmentRow, EnvironmentRow.id == BenchmarkTrace.environment_id)
    .join(Workload, Workload.id == BenchmarkTrace.workload_id)
    .join(GraphRow, GraphRow.id == Workload.canonical_graph_id)
    .join(Implementation, Implementation.id == BenchmarkTrace.implementation_id)
    .outerjoin(_target, _target.id == Implementation.recipe_graph_id)
)  # fmt: skip


def _present(database: Database, rows: Mapping[int, FullTrace], ids: Iterable[int]) -> Iterator[FullTrace]:
    """Yield the rows of these traces. Raises CorruptDatabase for one whose graph, workload or kernel is missing."""
    for trace_id in ids:
        if trace_id not in rows:
            raise CorruptDatabase(f"{database.location} is damaged: trace {trace_id} belongs to a row that is not there\n"
                                  "  fix: `tg db check` lists what is missing")
        yield rows[trace_id]


def _rows(connection: Connection, trace_ids: Sequence[int], times: Mapping[Group, KnownTime]) -> dict[int, FullTrace]:
    """Return traces by id, with the worst error where `times` has a verdict. Ids that do not exist are left out."""
    rows: dict[int, FullTrace] = {}
    for start in range(0, len(trace_ids), 500):
        select = _EVIDENCE.where(BenchmarkTrace.id.in_(trace_ids[start : start + 500]))
        for place, code, workload, *columns in connection.execute(select):
            verdict = times.get((place, code, workload))
            row = FullTrace(*(*columns, None if verdict is None else verdict.worst_relative_error))
            rows[row.trace_id] = row
    return rows
