"""query: shows what is in the database: its size, the fastest kernels of a graph, a kernel's history, failures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import option_groups, options
from tensor_graphs.cli.db.drain import queue_lines
from tensor_graphs.cli.db.environment_text import place_in_words
from tensor_graphs.errors import TensorGraphsError

if TYPE_CHECKING:
    from tensor_graphs.devices.environment import Environment
    from tensor_graphs.language.graph import Graph
    from tensor_graphs.records.database import Database
    from tensor_graphs.records.queries import Failure, FullTrace

Limit = Annotated[int, typer.Option(min=1, max=options.MOST_ROWS, help="Show at most so many rows.")]


def stats(db: options.DatabaseAt = None, json: options.Json = False) -> None:
    """Path, schema version, size, rows per table, and the profile queue."""
    from tensor_graphs.records import upkeep

    store = options.database(db, create=False)
    report = upkeep.stats(store)
    if json:
        options.print_json(dataclasses.asdict(report))
        return
    print(f"{report.location} · schema {report.revision} · {report.file_bytes / 1e6:.2f} MB")
    for table, count in report.rows.items():
        print(f"  {table:24s} {count}")
    for status, count in report.traces_by_status.items():
        print(f"  traces {status:17s} {count}")
    print(f"  queue: {report.waiting} waiting, {report.claimed} claimed, {report.abandoned} abandoned")
    for line in queue_lines(store, report.queue):
        print(f"    {line}")
    print("  whether every page and row of it is sound: tg db check")  # which reads all of them; counting does not


What = Annotated[
    str | None,
    typer.Argument(metavar="[FILE|OP|KEY]", help="A .tg file (and each op in it), an op, or how a structural key begins."),
]


SizesAsked = Annotated[
    str | None, typer.Option("--at", metavar="SIZES", help="Only at these sizes of the file's dims, like n=4096.")
]


def best(
    *,
    what: What = None,
    tolerance: options.Tolerance = 1e-3,
    every: Annotated[bool, typer.Option("--all", help="Not only the fastest, but all: tg db leaderboard.")] = False,
    at: SizesAsked = None,
    common: option_groups.Common,
) -> None:
    """The fastest within the tolerance, per graph, workload and machine, of whichever backend: of whole runs (a kernel, or the
    definition in steps), and of kernels timed alone."""
    if every:
        leaderboard(what=what, tolerance=tolerance, at=at, common=common)
        return
    from tensor_graphs.records import queries

    store = common.store(create=False)
    if what is None and at is None:
        keys = [key for key, _ in queries.graphs_like(store)]
        rows = [r for key in keys for r in queries.fastest_per_machine(store, queries.ways(store, key, tolerance=tolerance))]
        _show_ranking(store, sorted(rows, key=lambda r: (r.graph_name, r.graph_key)), tolerance, common.json)
        return
    meant = _meant(store, what, common.imports, at)
    rows = [r for key in meant.keys for r in queries.fastest_per_machine(store, _ways(store, meant, key, tolerance))]
    _show_ranking(store, rows, tolerance, common.json, meant)


def leaderboard(*, what: What = None, tolerance: options.Tolerance = 1e-3, at: SizesAsked = None,
                common: option_groups.Common) -> None:
    """All ways within the tolerance per graph and machine, whole runs before kernels timed alone: from the smallest sizes on, the
    fastest first at each."""
    store = common.store(create=False)
    meant = _meant(store, what, common.imports, at)
    rows = [r for key in meant.keys for r in _ways(store, meant, key, tolerance)]
    _show_ranking(store, rows, tolerance, common.json, meant)


def _ways(store: Database, meant: _Meant, key: str, tolerance: float = math.inf) -> tuple[FullTrace, ...]:
    from tensor_graphs.records import queries

    if not meant.at:
        return queries.ways(store, key, tolerance=tolerance)
    return tuple(r for axes in meant.axes_of(key) for r in queries.ways(store, key, axes=axes, tolerance=tolerance))


def _show_ranking(store: Database, rows: Sequence[FullTrace], tolerance: float, json: bool, meant: _Meant | None = None) -> None:
    from tensor_graphs.records import queries

    places = dict(queries.environments(store))
    shapes = _Shapes(store)
    if json:
        options.print_json([
            {**dataclasses.asdict(r), "machine": places[r.environment_key].machine, "shapes": shapes.of(r)} for r in rows
        ])  # fmt: skip
        return
    for r in rows:
        gain = "" if r.speedup_factor is None else f" {r.speedup_factor:6.1f} × plain"
        print(
            f"{(r.median_ms or 0) * 1e3:12.1f} µs{gain}  error {r.worst_relative_error:.1e}  "
            f"{_way(r):20s} {_place(r, places[r.environment_key], shapes.of(r))}"
        )
    if not rows:
        print(_why_nothing(store, tolerance, meant))
    elif meant is not None and (command := meant.measured_by(_timed(store, meant.keys))):
        options.note(f"some ops of {meant.what} were never timed\n  fix: {command}")


def _machines(store: Database) -> dict[str, str]:
    """Return environment key -> the label of its machine, a digest of hardware and platform."""
    from tensor_graphs.records import queries

    return {key: place.machine for key, place in queries.environments(store)}


def _way(r: FullTrace) -> str:
    """Return a kernel's name, with the assumptions it makes; for a run of an entire path, its description."""
    from tensor_graphs.costs.database_keys import ASSUMES

    if r.kind != "in_graph":
        description = r.description or ""
        return f"{r.implementation_name} ({description})" if description.startswith(ASSUMES) else r.implementation_name
    return f"whole run: {r.description or r.implementation_name}"


def _why_nothing(store: Database, tolerance: float, meant: _Meant | None) -> str:
    """Return why no row is within the tolerance: only times with larger errors are in the database, or no times."""
    from tensor_graphs.records import queries

    meant = meant or _Meant("any graph here", [key for key, _ in queries.graphs_like(store)])
    timed = [r for key in meant.keys for r in _ways(store, meant, key) if r.worst_relative_error is not None]
    if timed:
        nearest = min(timed, key=lambda r: r.worst_relative_error or 0.0)
        error = nearest.worst_relative_error or 0.0
        return (f"nothing measured is within the tolerance {tolerance:g}\n"
                f"  fix: --tolerance {_above(error)}; the most accurate that was timed is {nearest.implementation_name}, "
                f"error {error:.1e}")  # fmt: skip
    command = meant.measured_by(set())
    if meant.at:
        timed_at = [", ".join(f"{n}={r.axes[f'd{i}']}" for i, n in enumerate(names) if f"d{i}" in r.axes)
                for key in meant.keys for r in queries.ways(store, key) for names in meant.dims[key]]
        sizes = sorted(set(filter(None, timed_at)))
        elsewhere = f"; at {'; '.join(sizes[:6])}{'; …' if len(sizes) > 6 else ''} it was" if sizes else ""
        return f"{meant.what} was not timed at {meant.at}{elsewhere}\n  fix: tg profile {meant.what} --at {meant.at}"
    return (f"no kernel for {meant.what} was timed: those that are known were only compared "
            f"with the oracle, or failed\n  fix: {command or 'tg profile FILE.tg'} (tg db failures lists what failed)")


def _timed(store: Database, keys: Sequence[str]) -> set[str]:
    """Return the keys that have a timed row, whatever its error."""
    from tensor_graphs.records import queries

    return {key for key in keys if queries.ways(store, key)}


def _above(error: float) -> str:
    """Return a short number that is not less than `error`."""
    short = f"{error:.1e}"
    return short if float(short) >= error else f"{error * 1.1:.1e}"


@dataclasses.dataclass(frozen=True)
class _Meant:
    """The graphs that the user asks about. keys: structural keys that are in the database. unless_timed: an op's key -> the options
    of tg profile that measure it, for ops of the file that some installed kernel computes. imports: further options of that
    command. at: the sizes asked about, "" for all. sizes: `at` by the file's dims. dims: key -> the file's names for the canonical
    dims, one sequence for each position in the file."""

    what: str
    keys: Sequence[str]
    unless_timed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    imports: Sequence[str] = ()
    at: str = ""
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, Collection[Sequence[str]]] = dataclasses.field(default_factory=dict)

    def axes_of(self, key: str) -> list[dict[str, int]]:
        """Return the axes of a graph's workloads at the requested sizes."""
        from tensor_graphs.costs.database_keys import FIXED

        return [{f"d{i}": self.sizes[n] for i, n in enumerate(names)} or {FIXED: 1}
                for names in self.dims[key] if self.sizes.keys() >= set(names)]

    def measured_by(self, timed: Collection[str]) -> str:
        """Return the command that measures the keys that are not in `timed`; "" if there are none."""
        done = {words for key, words in self.unless_timed.items() if key in timed}      # a part has a key for each wording
        wanted = dict.fromkeys(words for words in self.unless_timed.values() if words not in done)
        return " ".join(["tg profile", self.what, *wanted, *self.imports]) if wanted else ""


class _Shapes:
    """The types of a row's operands at its sizes, such as f32[16, 256]."""

    def __init__(self, store: Database) -> None:
        self.store = store
        self.graphs: dict[str, Graph | None] = {}

    def of(self, row: FullTrace) -> list[str]:
        """Return one type per operand, with sizes if the row has them; [] for a graph that cannot be read in this process."""
        from tensor_graphs.kernels.one_op_signature import signature_of_graph

        graph = self._graph(row.graph_key)
        if graph is None:
            return []
        sizes: dict[str, int] | None
        try:  # axes are numbered
            sizes = signature_of_graph(graph).binding(row.axes) if graph.dims else {}
        except (KeyError, ValueError):  # several ops, or a row about all sizes
            sizes = dict(row.axes) if graph.dims.keys() <= row.axes.keys() else None
        return [str(node.type if sizes is None else node.type.at(sizes)) for node in graph.inputs.values()]

    def _graph(self, key: str) -> Graph | None:
        from tensor_graphs.language.text import parse_graph
        from tensor_graphs.records import queries

        if key not in self.graphs:
            text, _ = queries.graph_text(self.store, key)
            try:
                self.graphs[key] = parse_graph(text)
            except TensorGraphsError:
                self.graphs[key] = None
        return self.graphs[key]


def history(
    kernel: Annotated[str, typer.Argument(help="A kernel's name, or the source hash of one of its identities.")],
    limit: Limit = 50,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """Every trace of a kernel, failures too, the newest first, and which time counts: over its identities and workloads."""
    from tensor_graphs.costs.database_keys import VERIFIER
    from tensor_graphs.records import queries

    store = options.database(db, create=False)
    rows = queries.history(store, kernel, limit=limit)
    if not rows and not queries.kernels_like(store, kernel):
        raise _unknown_kernel(store, kernel)
    conditions = queries.trace_conditions(store, *(r.trace_id for r in rows))
    standing = queries.standings(store, *(r.trace_id for r in rows), verifier=VERIFIER)
    if json:
        machines = _machines(store)
        options.print_json([
            {**dataclasses.asdict(r), "machine": machines[r.environment_key], "standing": standing[r.trace_id],
             "conditions": conditions[r.trace_id]} for r in rows
        ])  # fmt: skip
        return
    for r in rows:
        time = "" if r.median_ms is None else f"{r.median_ms * 1e3:.1f} µs"
        error = "" if r.max_relative_error is None else f"error {r.max_relative_error:.1e}"
        print(
            f"{r.trace_id:8d}  {r.timestamp:%Y-%m-%d %H:%M:%S}  {r.source_hash[:8]}  {r.kind:8s} {r.status:19s} {time:>12s}  "
            f"{_over_reference(conditions[r.trace_id]):24s} {error:13s} {_place(r)}"
            + (f"  ({standing[r.trace_id]})" if standing[r.trace_id] else "")
        )
    if len(rows) == limit:
        print(f"(the newest {limit}; --limit shows more)")


def failures(
    kernel: Annotated[str | None, typer.Argument(help="Only of this kernel: its name, or a source hash.")] = None,
    limit: Limit = 50,
    db: options.DatabaseAt = None,
    json: options.Json = False,
) -> None:
    """The traces that did not pass, the newest first, each with the line of its log that says why."""
    from tensor_graphs.records import queries

    store = options.database(db, create=False)
    if kernel is not None and not queries.kernels_like(store, kernel):
        raise _unknown_kernel(store, kernel)
    failed = queries.failures(store, kernel=kernel, limit=limit)
    if json:
        machines = _machines(store)
        options.print_json([
            {**dataclasses.asdict(f.trace), "machine": machines[f.trace.environment_key], "reason": f.reason, "newest": f.newest}
            for f in failed
        ])  # fmt: skip
        return
    for i, f in enumerate(failed):
        t, later = f.trace, "" if f.newest else "  (measured again since)"
        if i and _of_one_run(failed[i - 1], f):
            continue
        twin = failed[i + 1] if _of_one_run(f, *failed[i + 1 : i + 2]) else None
        both = "" if twin is None else f"  (trace {twin.trace.trace_id} says so for all sizes)"
        place = f"{_place(t)}{both}{later}"
        print(f"{t.trace_id:8d}  {t.timestamp:%Y-%m-%d %H:%M:%S}  {t.status:19s} {t.implementation_name:20s} {place}")
        print(f"          {f.reason or '(no log)'}")
    if len(failed) == limit:
        print(f"(the newest {limit}; --limit shows more)")
    elif not failed:
        print("nothing failed")


def _of_one_run(timed: Failure, compared: Failure | None = None) -> bool:
    """Return True if two consecutive failures come from one measurement: one at its sizes, and one about all sizes."""
    if compared is None or (timed.trace.kind, compared.trace.kind) != ("cold", "verify"):
        return False
    a, b = timed.trace, compared.trace
    return (a.source_hash, a.graph_key, a.status, timed.reason) == (b.source_hash, b.graph_key, b.status, compared.reason)


def _over_reference(conditions: Mapping[str, Any]) -> str:
    """Return the time relative to the reference stream's, which makes different days comparable; "" if it was not measured, or (in
    an imported row) not in this form."""
    match conditions:
        case {"over_reference": {"median": float(times), "quiet": quiet}, "reference": {"kind": str(kind)}}:
            return f"{times:.4g} × {kind}{', busy' if quiet is False else ''}"
        case {"quiet": False}:
            return "busy"
    return ""


def _place(r: FullTrace, environment: Environment | None = None, shapes: Sequence[str] = ()) -> str:
    from tensor_graphs.records.rows import at_sizes

    where = r.hardware_name if environment is None else place_in_words(environment)
    what = " ".join([r.graph_name, *shapes, r.graph_key[:8]])
    return f"{what}{at_sizes(r.axes)}  [{where}]"


def _meant(store: Database, what: str | None, imports: Sequence[str] | None, at: str | None = None) -> _Meant:
    """Return the graphs that the user names. Raises NotPossible if the database has none of them."""
    from tensor_graphs.records import queries

    if at is not None:
        if what is None or not (what.endswith(".tg") or Path(what).is_file()):
            raise options.UsageError("--at names dims of a file\n  fix: tg db best FILE.tg --at n=4096")
        graph = options.read_graph(what)
        sizes = options.sizes(at, graph)
        if missing_sizes := [n for n in graph.dim_order if n not in sizes]:
            raise options.UsageError(f"--at says no size of {', '.join(missing_sizes)}\n  fix: --at {at},{missing_sizes[0]}=1")
        stored = {key for key, _ in queries.graphs_like(store)}
        called = {key: names for key, names in _dims_in_file(what).items() if key in stored}
        return _Meant(what, list(called), at=at, sizes=sizes, dims=called)
    if what is None:
        return _Meant("any graph here", [key for key, _ in queries.graphs_like(store)])
    if what.endswith(".tg") or Path(what).is_file():
        keys, unless_timed = _in_file(what, bool(imports))
        filed = [key for key in keys if queries.graphs_like(store, key)]
        meant = _Meant(what, filed, unless_timed, [f"--import {file}" for file in imports or ()])
        missing = f"neither {what} nor any op in it was ever measured\n  fix: tg profile {what}"
    else:
        meant = _Meant(repr(what), [key for key, _ in queries.graphs_like(store, what)])
        fix = f"tg db history {what}: that is a kernel" if queries.kernels_like(store, what) else "tg db best lists them"
        missing = f"{store.location} has no graph that is named {what!r} or whose key begins so\n  fix: {fix}"
    if not meant.keys:
        raise options.NotPossible(missing)
    return meant


def _dims_in_file(what: str) -> dict[str, dict[tuple[str, ...], None]]:
    """Return key -> the file's names for canonical dims: of the entire graph, as written and as compiled, and of each op in it. An
    op that occurs at several dims has several tuples of names."""
    from tensor_graphs.choice.path_listing import signatures_of
    from tensor_graphs.kernels.signature import signature_of

    dims_of: dict[str, dict[tuple[str, ...], None]] = {}
    graphs = dict.fromkeys(_forms_of(what))
    for graph in graphs:
        dims_of.setdefault(graph.structural_key, {})[tuple(graph.dim_order)] = None
    for graph in graphs:
        ops = (signature_of(node) for node in graph.nodes if node.op.kind in ("atomic", "composite"))
        for s in (*ops, *signatures_of(graph)):
            dims_of.setdefault(s.key, {})[s.dim_names] = None
    return dims_of


def _forms_of(what: str) -> list[Graph]:
    """Return a file's graph as written, prepared, and with float32 between ops where that is wider."""
    from tensor_graphs.choice.precision_forms import FOR_ACCURACY, formed
    from tensor_graphs.choice.prepare import prepare
    from tensor_graphs.kernels.registry import DEFAULT_BACKENDS
    from tensor_graphs.meaning.precision import parse_form

    written = options.read_graph(what)
    prepared = prepare(written).graph
    wider = formed(prepared, parse_form("f32"), FOR_ACCURACY, DEFAULT_BACKENDS).graph
    return [written, prepared, *([wider] if wider is not prepared else [])]


def _in_file(what: str, imported: bool) -> tuple[list[str], dict[str, str]]:
    """Return the keys under which the database has a file's graph: of the graph, its ops, the ops that are compiled instead (parts,
    recognised ops, wider values) and ops inside of definitions. Also return key -> the option of tg profile that measures
    the op: with a numpy kernel, as numpy has one for each op and needs no compilation, unless kernels were imported."""
    from tensor_graphs.choice.path_listing import signatures_of
    from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, all_kernels, by_op, matching
    from tensor_graphs.kernels.signature import signature_of
    from tensor_graphs.language.anonymous_composite import PartOp

    written, prepared, *others = _forms_of(what)
    keys = [written.structural_key, *(s.key for g in dict.fromkeys((written, prepared, *others)) for s in signatures_of(g))]
    table = by_op(all_kernels(DEFAULT_BACKENDS if imported else ("numpy",)))
    top = {signature_of(node).key for node in prepared.nodes if node.op.kind in ("atomic", "composite")}
    unless_timed = {}
    for s in signatures_of(prepared):                               # a part may stand in a recipe of another one
        part = isinstance(s.spec.op, PartOp)
        if (part or s.key in top) and (kernels := matching(s.spec, table)):
            unless_timed[s.key] = f"--kernel {kernels[0].name}" if part else f"--op {s.spec.op.name}"
    return list(dict.fromkeys(keys)), unless_timed


def _unknown_kernel(store: Database, kernel: str) -> options.NotPossible:
    return options.NotPossible(
        f"{store.location} knows no kernel named {kernel!r}, nor a source hash like it\n  fix: tg db best lists kernels"
    )
