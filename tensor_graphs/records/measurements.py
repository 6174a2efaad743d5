"""measurements: times, verdicts and constants of an environment, read by the compiler before it chooses kernels.

An implementation is eligible on a workload in an environment (`KnownTime.usable`) if
- it has a PASSED trace with a time and an error;
- the worst error ever judged is `<= tolerance` (so NaN and "never judged" fail). An INCORRECT_NUMERICAL trace counts with its
error if that is above the tolerance of the verdict (a looser tolerance may still be met), else as infinite;
- no trace refutes it (wrong shape, wrong dtype, mutated input): such code must change, and its source hash too;
- its newest trace is neither a crash, a time-out, nor an implausible time;
- none of its sources is untrusted.
Its time is chosen by `counting` from the PASSED traces of the requested kind. With the current verifier as an argument, rows of
outdated verifiers are left out. Queries for people are in queries.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.orm import aliased

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records.database import Database, environment_key
from tensor_graphs.records.logs import decompress_log, reason_of
from tensor_graphs.records.rows import REFUTING, DeviceConstant, TraceKind
from tensor_graphs.records.schema import (
    BenchmarkTrace,
    DamagedValue,
    DeviceConstantRow,
    EnvironmentRow,
    GraphRow,
    Implementation,
    Workload,
)

Group = tuple[int, str, str]  # environment row, source hash, workload key
_NUMBERS = frozenset((float, int, type(None)))
COMPARED = ("PASSED", "INCORRECT_NUMERICAL")  # the candidate ran to its end and its output was compared

AGREE = 1.25
"""Factor up to which times of one kernel agree with the lowest of them; a longer time counts as disturbed."""

NEARBY = 64
"""Number of neighbouring rows read: a profile stores no more within the time that matters (`in_busy_times`)."""


class KnownTime(NamedTuple):  # a dataclass takes five times as long to make, and thousands are made at start
    """Summary of all traces of one implementation on one workload in one environment.

    status: of the newest trace of any kind. passed: there is a PASSED trace with an error. refuted: see the module docstring.
    worst_relative_error: the largest judged error; None if nothing was ever compared. median_ms: of the PASSED trace of the
    requested kind that counts (`counting`), None without such traces. trace_id: that trace, or the newest one; `evidence` returns
    all of it: spread, speed-up, age. times, agreeing: number of PASSED traces of that kind, and of those that agree with the
    lowest. failures: number of traces since the last that passed.
    """

    source_hash: str
    workload_key: str
    status: str
    passed: bool
    refuted: bool
    worst_relative_error: float | None
    median_ms: float | None
    trace_id: int
    times: int
    agreeing: int
    failures: int

    @property
    def only_timed(self) -> bool:
        """True where nothing was compared: it ran as part of a graph, which gives a time but no verdict."""
        return self.status == "PASSED" and self.worst_relative_error is None and not (self.passed or self.refuted)

    def usable(self, tolerance: float) -> bool:
        """Return whether this may be chosen at `tolerance`, by the rule of the module docstring; False for NaN on either side."""
        error = self.worst_relative_error
        judged = error is not None and error <= tolerance
        return judged and self.median_ms is not None and self.passed and not self.refuted and self.status in COMPARED


class Counting(NamedTuple):
    """The one of several times of a kernel, on one workload in one environment, that counts. agreeing: number of times that agree
    with the lowest."""

    median_ms: float
    trace_id: int
    lowest: float
    agreeing: int


def counting(times: Sequence[tuple[float, int]]) -> Counting:
    """Return the median one of the times that agree with the lowest (of two the lower; of equal ones the newest). times: at least
    one (median [ms], trace id), the oldest first.

    Disturbances slow a kernel down and never speed it up, so a time from a quiet moment replaces slower ones, in any order and
    however many. The lowest itself would reward luck. Times that are too good are rejected by the judge before it stores them (it
    measures again what is ten times below the best on file, and refuses what the device cannot do). The view `leaderboard` has the
    same rule in SQL.

    >>> counting([(8.7, 1), (0.31, 2), (0.3, 3), (0.32, 4)])
    Counting(median_ms=0.31, trace_id=2, lowest=0.3, agreeing=3)
    """
    ordered = sorted((median, -place) for place, (median, _) in enumerate(times))
    lowest = ordered[0][0]
    agreeing = [pair for pair in ordered if pair[0] <= AGREE * lowest]
    middle = agreeing[(len(agreeing) - 1) // 2][0]
    place = next(-place for median, place in agreeing if median == middle)
    return Counting(middle, times[place][1], lowest, len(agreeing))


def latest_traces(
    database: Database, environment: Environment | str, kind: TraceKind = "cold", *, verifier: str | None = None
) -> dict[tuple[str, str], KnownTime]:
    """Return everything measured in one environment, one summary per (source hash, workload key).

    Implementations that failed are included, with `usable() == False`, so that nobody requests them again. Untrusted ones are not.
    """
    with database.reading() as connection:
        times = list(_known(connection, (measured_in(environment),), kind, verifier))
    return {(known_time.source_hash, known_time.workload_key): known_time for _, known_time in times}


def times_at(
    database: Database, workload_key: str, kind: TraceKind, *, verifier: str | None = None
) -> tuple[tuple[str, KnownTime], ...]:
    """Return (environment key, summary) of every implementation measured on a workload, in any environment."""
    at = BenchmarkTrace.workload_id == sa.select(Workload.id).where(Workload.key == workload_key).scalar_subquery()
    with database.reading() as connection:
        times = list(_known(connection, (at,), kind, verifier))
        places = {row[0]: row[1] for row in connection.execute(sa.select(EnvironmentRow.id, EnvironmentRow.key))}
    return tuple((places[place], known_time) for place, known_time in times)


def workloads(database: Database, keys: Iterable[str]) -> dict[str, tuple[str, dict[str, int]]]:
    """Return (JSON of the canonical graph, axes) of each of these workloads that is on file, by key."""
    wanted = sorted(keys)
    select = sa.select(Workload.key, GraphRow.json, Workload.axes_json).join(GraphRow)
    with database.reading() as connection:
        rows = [row for i in range(0, len(wanted), 500)
                for row in connection.execute(select.where(Workload.key.in_(wanted[i : i + 500])))]
    return {key: (text, {name: int(size) for name, size in axes.items()}) for key, text, axes in rows}


def why_failed(database: Database, environment: Environment | str, source_hash: str, workload_key: str) -> str:
    """Return the line of the log that explains the last failure of an implementation on a workload in this environment, or ""."""
    trace = BenchmarkTrace
    at = sa.select(Workload.id).where(Workload.key == workload_key).scalar_subquery()
    # the index's own words, not a parameter, so that SQLite knows that the index of failures applies
    select = sa.select(trace.full_log).where(
        sa.text("benchmark_traces.status <> 'PASSED'"), measured_in(environment), trace.workload_id == at,
        trace.implementation_id.in_(implementations_where(Implementation.source_hash == source_hash)))
    with database.reading() as connection:
        log = connection.execute(select.order_by(trace.timestamp.desc(), trace.id.desc()).limit(1)).scalar()
    return reason_of(decompress_log(log))


def constants(database: Database, environment: Environment | str, device: str = "cpu") -> dict[str, DeviceConstant]:
    """Return the newest measured constants of a device in this environment, by name."""
    row = DeviceConstantRow
    select = (sa.select(row.name, row.value, row.unit, row.device, row.timestamp)
              .join(EnvironmentRow, EnvironmentRow.id == row.environment_id)
              .where(EnvironmentRow.key == environment_key(environment), row.device == device)
              .order_by(row.timestamp, row.id))
    with database.reading() as connection:
        return {constant.name: DeviceConstant(*constant) for constant in connection.execute(select)}


def trace_conditions(database: Database, *trace_ids: int) -> dict[int, dict[str, Any]]:
    """Return the conditions stored with these traces (docs/profiling.md lists their keys), by trace id, without ids that do not
    exist."""
    return {trace_id: dict(conditions) for trace_id, (_, conditions) in circumstances(database, *trace_ids).items()}


def conditions_at(database: Database, workload_key: str, source_hash: str | None, kind: TraceKind, *,
                  verifier: str | None = None) -> list[Mapping[str, Any]]:
    """Return the conditions of every trace of one implementation (None: of all) on one workload, the oldest first."""
    at = BenchmarkTrace.workload_id == sa.select(Workload.id).where(Workload.key == workload_key).scalar_subquery()
    by = BenchmarkTrace.implementation_id.in_(sa.select(Implementation.id).where(Implementation.source_hash == source_hash))
    where = (at, BenchmarkTrace.kind == kind) if source_hash is None else (at, by, BenchmarkTrace.kind == kind)
    select = sa.select(BenchmarkTrace.conditions).where(*where).order_by(BenchmarkTrace.id)
    if verifier is not None:
        select = select.where(BenchmarkTrace.verifier == verifier)
    with database.reading() as connection:
        return [row[0] for row in connection.execute(select)]


def circumstances(database: Database, *trace_ids: int) -> dict[int, tuple[datetime, Mapping[str, Any]]]:
    """Return (time of measurement, conditions) of these traces, by trace id, without ids that do not exist."""
    result: dict[int, tuple[datetime, Mapping[str, Any]]] = {}
    with database.reading() as connection:
        for start in range(0, len(trace_ids), 500):
            wanted = BenchmarkTrace.id.in_(trace_ids[start : start + 500])
            select = sa.select(BenchmarkTrace.id, BenchmarkTrace.timestamp, BenchmarkTrace.conditions).where(wanted)
            result.update((row[0], (row[1], row[2])) for row in connection.execute(select))
    return result


def in_busy_times(database: Database, *trace_ids: int, seconds: float) -> frozenset[int]:
    """Return those of these times that are in doubt: stored within `seconds` of a disturbed row of the same machine, as were all
    rows of the same implementation, workload, environment and kind that agree with them.

    Reads the NEARBY rows before and after each; ids are about in the order of time.
    """
    trace, other = BenchmarkTrace, aliased(BenchmarkTrace)
    when = sa.select(trace.id, trace.timestamp, EnvironmentRow.hardware_name).join(EnvironmentRow)
    disturbed = when.where(sa.or_(trace.conditions["quiet"].as_boolean().is_(False),
                                  trace.conditions["over_reference"]["quiet"].as_boolean().is_(False)))
    same = (trace.implementation_id == other.implementation_id, trace.workload_id == other.workload_id,
            trace.environment_id == other.environment_id, trace.kind == other.kind, trace.verifier == other.verifier)
    agrees = other.median_ms.between(trace.median_ms / AGREE, trace.median_ms * AGREE)
    alike = sa.select(trace.id, other.id).join(other, sa.and_(*same, other.status == "PASSED", agrees))
    with database.reading() as connection:
        def near_disturbed(ids: Iterable[int]) -> set[int]:
            rows = list(_of(connection, when, ids))
            around: dict[str, set[datetime]] = {}
            for first, last in _ranges((row[0] for row in rows), NEARBY):
                for _, moment, machine in connection.execute(disturbed.where(trace.id.between(first, last))):
                    around.setdefault(machine, set()).add(moment)
            return {row for row, own, machine in rows
                    if any(abs((own - moment).total_seconds()) <= seconds for moment in around.get(machine, ()))}

        busy_alone = near_disturbed(trace_ids)
        agreeing: dict[int, set[int]] = {}
        for row, other_row in _of(connection, alike, busy_alone):
            agreeing.setdefault(row, set()).add(other_row)
        busy = busy_alone | near_disturbed(set().union(*agreeing.values()) - busy_alone)
    return frozenset(row for row in busy_alone if agreeing.get(row, set()) <= busy)


def _ranges(ids: Iterable[int], wide: int) -> list[tuple[int, int]]:
    """Return the ranges from `wide` below to `wide` above each id, overlapping ones merged.

    >>> _ranges([20, 3, 5], 2)
    [(1, 7), (18, 22)]
    """
    ranges: list[tuple[int, int]] = []
    for number in sorted(ids):
        first = ranges.pop()[0] if ranges and number - wide <= ranges[-1][1] else number - wide
        ranges.append((first, number + wide))
    return ranges


def _of(connection: Connection, select: Any, trace_ids: Iterable[int]) -> Iterator[Any]:
    """Yield the rows of a query over `benchmark_traces` for these ids."""
    ids = sorted(trace_ids)
    for start in range(0, len(ids), 500):
        yield from connection.execute(select.where(BenchmarkTrace.id.in_(ids[start : start + 500])))


def environment_row(environment: Environment | str) -> Any:
    return sa.select(EnvironmentRow.id).where(EnvironmentRow.key == environment_key(environment)).scalar_subquery()


def measured_in(environment: Environment | str) -> Any:
    return BenchmarkTrace.environment_id == environment_row(environment)


def implementations_where(condition: Any) -> Any:
    return sa.select(Implementation.id).where(condition)


# Only columns of the covering index, in its order, so that SQLite neither sorts nor reads the rows; names are looked up once per
# implementation and workload, as a join would make two strings of 64 characters for every trace.
_MISJUDGED = sa.and_(  # an error that does not explain the verdict counts as infinite
    BenchmarkTrace.status == "INCORRECT_NUMERICAL",
    sa.not_(sa.func.coalesce(BenchmarkTrace.max_relative_error > BenchmarkTrace.tolerance, sa.false())),
)
_JudgedRow = tuple[int, int, int, int, str, float | None, float | None]


@lru_cache(maxsize=8)  # building it takes as long as fetching a hundred rows
def _judged(kind: str | None) -> Any:
    """Return the query for environment, workload, implementation, trace, status, error, and median (None if of another kind)."""
    trace = BenchmarkTrace
    median = trace.median_ms if kind is None else sa.case((trace.kind == kind, trace.median_ms))
    error = sa.case((_MISJUDGED, sa.literal(math.inf)), else_=trace.max_relative_error)
    key = trace.environment_id, trace.workload_id, trace.implementation_id
    select = sa.select(*key, trace.id, trace.status, error, median).where(trace.kind != "search")
    return select.order_by(*key, trace.timestamp, trace.id)


_LISTED = 5000  # row ids in one statement: far below the length that SQLite takes
_UNTRUSTED = {"sqlite": "trusted IS 0", "postgresql": "trusted IS false"}  # as the index of untrusted sources says it


def _known(connection: Connection, conditions: tuple[Any, ...], kind: str | None, verifier: str | None, *,
           trusted_only: bool = True) -> Iterator[tuple[int, KnownTime]]:
    """Yield (environment row, summary) for every implementation, workload and environment that meet the conditions, which may use
    columns of `benchmark_traces` alone."""
    select = _judged(kind).where(*conditions)
    if verifier is not None:
        select = select.where(BenchmarkTrace.verifier == verifier)
    rows: list[_JudgedRow] = _plain(connection.execute(select))
    ids = {row[2] for row in rows}
    workloads: dict[int, str] = dict(_listed(connection, "SELECT id, key FROM workloads WHERE id", {row[1] for row in rows}))
    sources: dict[int, str] = dict(_listed(connection, "SELECT id, source_hash FROM implementations WHERE id", ids))
    if trusted_only:
        query = f"SELECT implementation_id FROM implementation_sources WHERE {_UNTRUSTED[connection.dialect.name]}"
        for (implementation_id,) in _listed(connection, f"{query} AND implementation_id", ids):
            sources.pop(implementation_id, None)
    if len(set(sources.values())) < len(sources):
        # An implementation stored once for one graph and once for many is still one piece of code.
        when = dict(_listed(connection, "SELECT id, timestamp FROM benchmark_traces WHERE id", (row[3] for row in rows)))
        first = {source: row for row, source in reversed(sources.items())}
        rows = [(*row[:2], first[sources[row[2]]], *row[3:]) for row in rows if row[2] in sources]
        rows.sort(key=lambda row: (*row[:3], when[row[3]], row[3]))
    rows.append((0, 0, 0, 0, "", None, None))  # its coming ends the last group
    place, workload, implementation = rows[0][:3]
    worst = median = timed = None
    several: list[tuple[float, int]] = []  # times beside the first one
    passed = refuted = False
    trace, status, failures = 0, "", 0
    # One loop over plain tuples, without a list or a call per group: this is most of what the compiler's start costs.
    for its_place, its_workload, its_implementation, its_trace, its_status, error, its_median in rows:
        if its_implementation != implementation or its_workload != workload or its_place != place:
            source = sources.get(implementation)
            if source is not None:
                key = workloads.get(workload, "")
                if not key:
                    raise DamagedValue(f"trace {trace} of benchmark_traces belongs to a workload that is not there")
                if median.__class__ not in _NUMBERS or worst.__class__ not in _NUMBERS:
                    raise DamagedValue(f"a time or an error of benchmark_traces, about row {trace}, is no number")
                times = agreeing = int(timed is not None)
                if several:
                    assert median is not None and timed is not None
                    times += len(several)
                    median, timed, _, agreeing = counting([(median, timed), *several])
                fields = source, key, status, passed, refuted, worst, median, timed or trace, times, agreeing, failures
                yield place, _new_known(fields)
            place, workload, implementation, failures = its_place, its_workload, its_implementation, 0
            worst = median = timed = None
            passed = refuted = False
            if several:
                several = []
        trace, status = its_trace, its_status
        if status == "PASSED":
            failures = 0
            if its_median is not None:
                if timed is None:
                    timed, median = trace, its_median
                else:
                    several.append((its_median, trace))
            if error is None:
                continue
            passed = True
        elif (failures := failures + 1) and status != "INCORRECT_NUMERICAL":
            refuted = refuted or status in REFUTING
            continue
        if worst is None or (error is not None and error > worst):
            worst = error


_new_known = partial(tuple.__new__, KnownTime)  # a quarter of the time of KnownTime(...), and there are thousands


def verdicts(connection: Connection, conditions: tuple[Any, ...], kind: str | None, verifier: str | None, *,
             trusted_only: bool = True) -> dict[Group, KnownTime]:
    times = _known(connection, conditions, kind, verifier, trusted_only=trusted_only)
    return {(place, known_time.source_hash, known_time.workload_key): known_time for place, known_time in times}


def _plain(result: Any) -> list[Any]:
    """Return the driver's tuples, for columns that need no conversion: SQLAlchemy rows would take 4 ms more per 1000."""
    return list(result.cursor.fetchall())


def _listed(connection: Connection, query: str, ids: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of `query IN (these row ids)`. The ids are written into the query, as parameters take longer and are limited
    in number."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), _LISTED):
        numbers = ",".join(map(str, ordered[start : start + _LISTED]))
        yield from _plain(connection.exec_driver_sql(f"{query} IN ({numbers})"))
