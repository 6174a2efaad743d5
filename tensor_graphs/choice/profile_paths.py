"""profile_paths: measure many paths as a whole, in the order of the list, and the path that runs most definitions.

`profile_graph` runs the few paths that may be the fastest (finalists.py). Here each path is run as a whole; its time and the times
of its steps inside it are stored. A kernel without a verdict is compared with the oracle first.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.search import asked_sizes
from tensor_graphs.costs.database_keys import VERIFIER, part_environment, part_implementation
from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import walk
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.queue.profile_report import LEFT, ProfileReport, Walked
from tensor_graphs.measure.timing.in_graph_steps import (
    NotDeployed,
    PartRow,
    measure_deployed,
    measure_whole,
    record_deployed,
    record_parts,
    record_whole,
    refute,
)
from tensor_graphs.paths.path import EXPAND, Alternative, Path, Paths, Steps

TOGETHER = 3
"""paths that run interleaved, in addition to the first path of the list"""

MOST_WRITTEN = 64 << 20
"""bytes of a value inside a definition from which on the definition is not run: the products of a head of 262,144 rows reach it"""

ROUNDS, SECONDS = 4, 3.0
"""rounds of each path for the time of its whole run, and seconds after which no round begins"""

RAN, REFUSED, FAILED = "RAN", "REFUSED", "FAILED"


class Wrong(NotDeployed):
    """Error: a run inside a path was wrong, and the kernel to blame is recorded as wrong."""


def run_in_place(judge: Judge, graph: Graph, several: Sequence[tuple[Paths, Path]], signatures: Mapping[str, Signature],
                 binding: Mapping[str, int], backends: Sequence[str]) -> int:
    """Run paths of one graph interleaved, store the times of their steps and parts inside it, and return how many steps were
    stored.

    Raises NotDeployed where the paths cannot be run, and Wrong."""
    kernels = kernels_of(several)
    at = {n: int(s) for n, s in binding.items()}
    try:
        runs = measure_deployed(judge, graph, [path for _, path in several], kernels, at, backends)
    except NotDeployed as e:
        if e.path is not None and refute(judge, e.path, str(e), kernels, signatures, at, VERIFIER):
            raise Wrong(str(e), e.path) from e
        raise
    steps = record_deployed(judge, runs, kernels, signatures, at, VERIFIER)
    rows = {(path.id, s.key, way.name): PartRow(s, way.target(s), part_implementation(s, way.target(s), its),
                                                part_environment(its, judge.threads))
            for of, path in several for s, way, its in parts_on(of, path)}
    record_parts(judge, runs, rows, at)
    return steps


def kernels_of(several: Sequence[tuple[Paths, Path]]) -> dict[str, Kernel]:
    """Return all kernels that these paths run, by name."""
    return {a.name: a.kernel for of, path in several for a in of.kernels(path).values() if a.kernel is not None}


def parts_on(paths: Paths, path: Path) -> list[tuple[Signature, Alternative, Steps]]:
    """Return the parts of a path that have recipes and no kernel, each with its chosen alternative and the kernels of its steps."""
    chosen = paths.kernels(path)
    parts = []
    for s in paths.known():                                         # parts inside of others, too
        if isinstance(s.spec.op, PartOp) and s.spec.op.recipes and s.key in chosen and chosen[s.key].kernel is None:
            steps = paths.steps(s, chosen[s.key], lambda i: chosen.get(i.key))
            if steps:
                parts.append((s, chosen[s.key], steps))
    return parts


def profile_paths(request: Request, count: int, *, budget: float = 60.0, timeout: float | None = None, again: bool = False,
                  on_step: Callable[[int, int, str], None] | None = None) -> ProfileReport:
    """Measure the first `count` paths of a graph as a whole, and the one that runs most definitions, at the sizes in `at` (by
    default at all sizes that it is costed at). Of a graph of one op, also measure each kernel, and each backend's run of the
    definition. `ProfileReport.walked` has the times.

    A path already measured on this machine is not measured again, unless `again`. At least one path is measured; those for which
    the budget [s] does not suffice are left to the next call. Interrupting it keeps what was measured. Raises NoPathError."""
    started = time.perf_counter()
    store, here, threads = request.store, request.here, request.threads
    graph = next(forms(prepare(request.graph, recipes=store, backends=here).graph, request)).graph
    points = [p for p in asked_sizes(graph, request.at, request.largest)[0] if all_hold(conditions_of(graph.roots), p)]
    costs, table = CostTable.of(request, ESTIMATE_MARGIN), by_op(all_kernels(here))
    report = ProfileReport()
    walks = [_PathWalk(graph, costs, table, binding, count, request, again) for binding in points]
    total = sum(len(w.open) for w in walks)
    report.already_known = sum(len(w.walked) for w in walks)
    done = 0
    try:
        if total and budget > 0:
            with Judge(store, timeout=timeout, threads=threads, rates=known_rates(store, here, threads)) as judge:
                judge.ready()
                report.search_seconds = time.perf_counter() - started
                end = time.perf_counter() + budget
                for w in walks:
                    while w.open and (time.perf_counter() < end or not done):
                        if on_step is not None:
                            on_step(done, total, f"path {w.open[0].id} of {len(w.listed)}")
                        before = len(w.open)
                        report.deployed += w.some(judge)
                        done += before - len(w.open)
    except KeyboardInterrupt:
        report.interrupted = True
    if on_step is not None:
        on_step(done, total, "")
    costs.load()
    for w in walks:
        report.walked += w.results()
    report.measured = sum(w.status == RAN and not w.known for w in report.walked)
    report.failed = sum(w.status in (FAILED, REFUSED) for w in report.walked)
    report.left = sum(w.status == LEFT for w in report.walked)
    report.seconds = time.perf_counter() - started
    return report


class _PathWalk:
    """Paths of one graph at one binding. open: the paths still to be measured, in order."""

    def __init__(self, graph: Graph, costs: CostTable, table: Mapping[str, list[Kernel]], binding: Mapping[str, int], count: int,
                 request: Request, again: bool) -> None:
        self.graph, self.costs, self.binding, self.backends = graph, costs, binding, request.here
        self.paths = costs.paths(graph, table, binding, optimistic=True)
        self.listed = list(itertools.islice(self.paths, count))
        if not self.listed:
            self.paths.cheapest()                                   # which says why there is none
        listed = {p.id for p in self.listed}
        self.listed += [p for p in self._of_each_backend() if p.id not in listed]
        written = written_out(self.paths, self._small)
        if written is not None and all(written.id != p.id for p in self.listed):
            self.listed.append(written)
        self.written = None if written is None else written.id
        self.signatures = {s.key: s for s in self.paths.known()}
        self.walked: dict[str, Walked] = {}
        times = {} if again else {tried.path.id: tried.took for tried in costs.tried(graph, binding)}
        for p in self.listed:
            if p.id in times:
                self._say(p, RAN, times[p.id], on_file=True)
        self.open = [p for p in self.listed if p.id not in self.walked]

    def _of_each_backend(self) -> list[Path]:
        """Return, for a graph of one op and each backend alone, a path for each of its kernels and one for its definition."""
        by_id: dict[str, Path] = {}
        for backend in self.backends if len(self.paths.top) == 1 else ():
            paths = self.costs.paths(self.graph, by_op(all_kernels((backend,))), self.binding, optimistic=True)
            ((s, _),) = paths.top
            for way in paths.alternatives(s):
                named = way.name == EXPAND and paths.seconds(s, way) < math.inf and self._small(s)
                if (way.kernel is not None or named) and (path := paths.reworded(paths.cheapest(), {s: way})) is not None:
                    by_id[path.id] = path
        return list(by_id.values())

    def _small(self, s: Signature) -> bool:
        """Return whether all values inside a composite's definition are small at these sizes."""
        assert isinstance(s.spec.op, CompositeOp)
        inside = [n for n in walk(s.spec.op.define(s.spec.inputs, s.spec.attrs).outputs) if n.inputs and not n.op.facts.view]
        return all(int(d.evaluate(t.nbytes(), self.binding)) <= MOST_WRITTEN for n in inside for t in n.types)

    def _say(self, path: Path, status: str, seconds: float | None = None, ratio: float | None = None, why: str = "",
             on_file: bool = False) -> None:
        self.walked[path.id] = Walked(path.id, dict(self.binding), path.seconds, status, seconds, ratio, why, on_file,
                                      path.id == self.written)

    def some(self, judge: Judge) -> int:
        """Measure the next few paths, interleaved with the first of the list. Return how many steps were stored."""
        group, self.open = self.open[:TOGETHER], self.open[TOGETHER:]
        group = [p for p in group if self._usable(judge, p)]
        first = self.listed[0]
        ran = first.id in self.walked and self.walked[first.id].status == RAN
        if group and group[0] is not first and ran and self._usable(judge, first):
            group = [first, *group]
        return self._run(judge, group) if group else 0

    def _usable(self, judge: Judge, path: Path) -> bool:
        """Return whether a path's kernels are right and within the tolerance; those without a verdict are compared first."""
        ways = [(a.kernel, self.signatures[key]) for key, a in self.paths.kernels(path).items() if a.kernel is not None]
        pending = [(kernel, s) for kernel, s in ways if self.costs.verdict(kernel, s) is None]
        for kernel, s in pending:
            at = {n: int(self.binding[n]) for n in s.dim_names}
            judge.record(kernel, s, judge.examine(kernel, s, at), None)
        if pending:
            self.costs.load()
        for kernel, s in ways:
            why = self.costs.refusal(kernel, s, self.binding)
            if why is not None:
                self._say(path, REFUSED, why=f"{kernel.name} on {s.title()}: {why}")
                return False
        return True

    def _run(self, judge: Judge, group: Sequence[Path]) -> int:
        try:
            several = [(self.paths, p) for p in group]
            steps = run_in_place(judge, self.graph, several, self.signatures, self.binding, self.backends)
            kernels = kernels_of(several)
            at = {n: int(s) for n, s in self.binding.items()}
            runs = measure_whole(judge, self.graph, group, kernels, at, self.backends, ROUNDS, SECONDS)
            record_whole(judge, self.graph, runs, kernels, at, self.backends)
        except NotDeployed as e:
            if len(group) > 1:                                      # one of them may be to blame: each alone
                return sum(self._run(judge, [p]) for p in group)
            self._say(group[0], FAILED, why=str(e))
            return 0
        wholes = [median(run.whole) for run in runs]
        for run, whole in zip(runs, wholes, strict=True):
            if run.path.id not in self.walked or self.walked[run.path.id].status != RAN:
                self._say(run.path, RAN, whole, whole / wholes[0] if group[0] is self.listed[0] else None)
        return steps

    def results(self) -> list[Walked]:
        """Return each path's result in list order, with the share of its time that was measured inside the graph."""
        for p in self.listed:
            if p.id not in self.walked:
                self._say(p, LEFT)
        results = []
        for p in self.listed:
            total = placed = 0.0
            for key, a in self.paths.kernels(p).items():
                if a.kernel is None or not p.calls[key]:
                    continue
                timed = self.costs.timed(a.kernel, self.signatures[key], self.binding)
                seconds = p.calls[key] * (a.seconds if timed is None or timed[0].median_ms is None else timed[0].median_ms * 1e-3)
                total += seconds
                placed += seconds if timed is not None and timed[1] else 0.0
            results.append(replace(self.walked[p.id], share=placed / total if total else 1.0, steps=total))
        return results


def written_out(paths: Paths, may: Callable[[Signature], bool]) -> Path | None:
    """Return the path that runs each composite by its definition, at all depths, where `may` allows that and kernels exist for the
    steps; elsewhere the cheapest alternative. None where there is no such path. Raises NoPathError."""
    picks: dict[Signature, Alternative] = {}
    done: set[Signature] = set()
    todo = [s for s, _ in paths.top]
    while todo:
        s = todo.pop()
        way = None if s in done else next((a for a in paths.alternatives(s) if a.name == EXPAND), None)
        done.add(s)
        if way is not None and may(s) and paths.seconds(s, way) < math.inf:
            picks[s] = way
            todo += [i for i, _ in paths.inner(s, way)]
    return paths.reworded(paths.cheapest(), picks)
