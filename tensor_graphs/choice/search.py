"""search: find the cheapest path of a prepared graph with only right kernels, and return it as a plan.

Steps: signatures of the graph → candidates → the cheapest path → verify every kernel on it that has no verdict → repeat until the
cheapest path has verified kernels only → instructions → memory plan.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensor_graphs import blas_thread_sleep
from tensor_graphs.choice.choice_evidence import Choice, in_words
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.deferred_measure import calibrate, compare_all, foresee, open_judge
from tensor_graphs.choice.disturbed_times import Outliers
from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.graph_forms import GraphForm, following
from tensor_graphs.choice.prepare import PreparedGraph
from tensor_graphs.choice.request import Request
from tensor_graphs.choice.size_samples import Samples, samples_of
from tensor_graphs.costs.database_keys import environment_of, graph_record, implementation_of, timed_workload
from tensor_graphs.costs.roofline import uncertainty
from tensor_graphs.kernels.kernel import Kernel, make_together
from tensor_graphs.kernels.registry import all_kernels, by_op, left_out, matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.anonymous_composite import PartOp, steps_said
from tensor_graphs.language.composites.products import dot, linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.precision import WORDS, Form
from tensor_graphs.paths.lowered import lowered
from tensor_graphs.paths.path import Alternative, NoPathError, Paths, StalePathError
from tensor_graphs.paths.path import Path as GraphPath
from tensor_graphs.paths.plan import Plan, Variant, WholeRun, given_sizes
from tensor_graphs.paths.size_cells import Cell
from tensor_graphs.phase_times import phase
from tensor_graphs.records.errors import CorruptDatabase
from tensor_graphs.records.measurements import KnownTime, trace_conditions
from tensor_graphs.records.rows import ProfileRequest

if TYPE_CHECKING:
    from tensor_graphs.measure.judge import Judge

log = logging.getLogger(__name__)

Progress = Callable[[str], None]

UNBOUNDED = (1 << 31) - 1
"""size of a dim from which on nobody means that all memory for it is there: indices of 32 bits count up to it"""

MOVES = 64 << 20
"""bytes that a graph moves from which on half a second to measure the memory's speed pays: it runs for milliseconds"""


@phase("choose")
def searched(request: Request, prepared: PreparedGraph, progress: Progress | None, decided: GraphForm | None = None) -> Plan:
    """Return the plan of the first form of the graph that has one. decided: the form of a given path. Raises NoPathError and
    PlanError."""
    decided = None if request.words else decided
    if request.accuracy.terms:
        from tensor_graphs.choice.accurate_plan import accurate_plan  # a door: most graphs run as written

        return accurate_plan(request, prepared.graph, decided, lambda form, most: _plan(request, prepared, form, progress, most))
    if decided is not None:
        return _plan(request, prepared, decided, progress)
    errors: list[NoPathError] = []
    for form in forms(prepared.graph, request):
        try:
            return _plan(request, prepared, form, progress)
        except NoPathError as e:
            errors.append(e)
    raise errors[0]                                                 # what the graph's own kernels could do, where that was tried


def _plan(request: Request, prepared: PreparedGraph, decided: GraphForm, progress: Progress | None,
          most: float | None = None) -> Plan:
    """Return the plan of one form of the graph. most: the largest error of a kernel, beyond one rounding of its result; None: as
    the request allows. Raises NoPathError and PlanError."""
    started = time.perf_counter()
    graph, at, path, here = decided.graph, request.at, request.path, request.here
    sizes = _largest(graph, request.largest)
    if path is None and _moves(graph, sizes) > MOVES:
        with phase("calibrate"):
            calibrate(request.store, here, request.threads)
    costs = CostTable.of(request, ESTIMATE_MARGIN)
    costs.tolerance = costs.tolerance if most is None else most
    table = by_op(all_kernels(here))
    samples = samples_of(graph, sizes, at, request.invariant)
    pinned = None if request.pin is None else request.pin.points(graph, given_sizes(graph, at, "at"))
    points = list(samples.points.values()) if pinned is None else [binding for _, binding, _ in pinned]
    with _Chooser(graph, costs, table, request.threads, progress or (lambda text: None), points) as chooser:
        if pinned is not None:
            chosen = [(cell, binding, chooser.given(its_path, binding)) for cell, binding, its_path in pinned]
        else:
            assert path is None or isinstance(path, GraphPath)
            chosen = _chosen(samples, chooser, path)
    variants = [chooser.variant(cell, binding, cell.largest(sizes), replace(its_path, form=decided.words), here)
                for cell, binding, its_path in chosen]
    with phase("database"):
        missing = chooser.queue_misses(file=pinned is None)
    notes = (*request.notes, *_threads_in_the_way(variants))
    plan = Plan(graph, request.accuracy, tuple(variants), sizes, here, notes, request.reuse_outputs, request.memory_limit,
                missing, decided.text + _unstored(decided.words, variants), decided.words, decided.written, prepared.note,
                following(prepared.images, decided.images), request.graph, costs.generation)
    if plan.capacity is not None or (plan.elsewhere and max(sizes.values(), default=0) < UNBOUNDED):    # then each run is checked
        from tensor_graphs.choice.memory_limit import within_limit  # a door: on the host alone there is no limit but a given one

        plan = within_limit(plan)
    log.info("compiled %d nodes into %d variants of %d instructions in %.2f s", len(graph.nodes), len(variants),
             len(variants[0].program.instructions), time.perf_counter() - started)
    return plan


def _moves(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Return the least bytes that a run reads or writes at its largest sizes."""
    leaves = (*graph.inputs.values(), *graph.parameters.values(), *graph.outputs.values())
    return sum(n * int(d.evaluate(t.nbytes(), sizes)) for t, n in Counter(node.type for node in leaves).items())


def _unstored(words: Form, variants: Sequence[Variant]) -> str:
    """Return text on narrower dtypes of values between ops in which no run stores a value, as generated kernels round only what
    they store; "" if there are none."""
    stored = {operand.dtype for v in variants for step in v.program.instructions for operand in step.outs}
    widest = max((dtype.itemsize for dtype in stored if dtype.is_float), default=0)
    between = dict.fromkeys(word for site, word in words.items() if site.partition(":")[0] == "between" and word in WORDS)
    lacking = [word for word in between if WORDS[word] not in stored and WORDS[word].itemsize < widest]
    return f" (no kernel stores {' or '.join(lacking)}: these values stay wider inside of kernels)" if lacking else ""


def _threads_in_the_way(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Return a note where numpy's threads keep spinning after its matrix products while native kernels run."""
    used = [{(k.backend, k.op) for k in v.kernels.values()} for v in variants]
    mixed = any(any(b == "c" for b, _ in u) and {("numpy", op.name) for op in (linear, dot)} & u for u in used)
    if not (blas_thread_sleep.LATE and mixed):
        return ()
    note = ("numpy was imported before tensor_graphs, so its threads spin behind each product and slow down the native kernels "
            f"that follow; import tensor_graphs first, or set {blas_thread_sleep.VARIABLE}={blas_thread_sleep.TICKS}")
    return (note,)


def sizes_to_cost(graph: Graph, at: Mapping[str, int] | None = None,
                 largest: Mapping[str, int] | None = None) -> list[dict[str, int]]:
    """Return the sizes at which `compile_graph` determines costs (size_samples.py)."""
    return list(samples_of(graph, _largest(graph, largest), at).points.values())


def asked_sizes(graph: Graph, at: Mapping[str, int] | None = None,
                 largest: Mapping[str, int] | None = None) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Return `sizes_to_cost` as two lists: those with the given sizes of the table's dims (all where none are given), and the
    rest."""
    samples = samples_of(graph, _largest(graph, largest), at)
    asked = [p for i, p in samples.points.items() if i in samples.asked]
    rest = [p for i, p in samples.points.items() if i not in samples.asked]
    return (asked, rest) if asked else (rest, [])


def _largest(graph: Graph, largest: Mapping[str, int] | None) -> dict[str, int]:
    return {n: d.bounds(s)[1] for n, s in graph.dims.items()} | given_sizes(graph, largest, "largest")


def _chosen(samples: Samples, chooser: _Chooser, path: GraphPath | None) -> list[tuple[Cell, dict[str, int], GraphPath]]:
    """Return for each cell of the box: the cell, the sizes at which its path was costed, and the path. Sizes that a caller named
    within the cell are preferred; a cell without a sample takes the closest sizes with this path."""
    if path is None:
        paths = chooser.cheapest(samples.points)
    else:
        paths = {i: chooser.given(path, sizes) for i, sizes in samples.points.items()}
    keys = {i: tuple(sorted(one.choices.items())) for i, one in paths.items()}
    distinct = {keys[i]: one for i, one in paths.items()}
    ways, numbers = list(distinct.values()), {key: n for n, key in enumerate(distinct)}
    winners = {i: numbers[key] for i, key in keys.items()}
    index = {tuple(sizes[n] for n in samples.box.dims): i for i, sizes in samples.points.items()}

    def cost(way: int, sizes: tuple[int, ...]) -> float:
        i = index[sizes]
        return chooser.seconds(paths[i] if winners[i] == way else ways[way], samples.points[i])

    chosen, cells = [], [(samples.box, 0)]
    if len(ways) > 1:
        from tensor_graphs.choice.size_map import Between, cells_of  # a door: most graphs have one way at all sizes

        cells = cells_of(samples.box, samples.axes, winners, Between(samples.axes, cost, samples.points))
    for cell, way in cells:
        own = [i for i, sizes in samples.points.items() if winners[i] == way]
        at = min(own, key=lambda i: (cell.distance(samples.points[i]), i not in samples.asked))
        chosen.append((cell, samples.points[at], paths[at]))
    return chosen


Question = tuple[Kernel, Signature, dict[str, int]]
"""a kernel, a signature, and sizes at which it is used: a comparison to be made"""


@dataclass(frozen=True)
class _Planned:
    """The cheapest path at some sizes (None: there is none yet), and the kernels that have to be compared first."""

    binding: Mapping[str, int]
    paths: Paths
    path: GraphPath | None
    pending: Sequence[tuple[Kernel, Signature]]

    def questions(self) -> list[Question]:
        return [(kernel, signature, {n: int(self.binding[n]) for n in signature.dim_names}) for kernel, signature in self.pending]


def _key(binding: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(binding.items()))


class _Chooser:
    """Estimates costs, verifies and lowers for one graph; starts a judge only when a kernel has no verdict."""

    def __init__(self, graph: Graph, costs: CostTable, table: Mapping[str, list[Kernel]], threads: int | None,
                 progress: Progress, points: Sequence[Mapping[str, int]]) -> None:
        self.graph, self.costs, self.table, self.points = graph, costs, table, points
        self.threads, self.progress = threads, progress
        self.judge: Judge | None = None
        self.misses: dict[tuple[str, str], ProfileRequest] = {}
        self.rivals: dict[tuple[str, str], ProfileRequest] = {}
        self.signatures: dict[str, Signature] = {}
        self.unmeasured: dict[str, Signature] = {}
        self.compared: set[tuple[str, str]] = set()
        self.costed: dict[tuple[tuple[str, int], ...], Paths] = {}
        """sizes -> the paths object from which the cheapest path was chosen there"""

    def __enter__(self) -> _Chooser:
        return self

    @phase("verify")
    def __exit__(self, *_: object) -> None:
        if self.judge is not None:
            self.judge.close()
            self.judge = None

    def paths(self, binding: Mapping[str, int], optimistic: bool) -> Paths:
        return self.costs.paths(self.graph, self.table, binding, optimistic=optimistic)

    def cheapest(self, points: Mapping[tuple[int, ...], Mapping[str, int]]) -> dict[tuple[int, ...], GraphPath]:
        """Return for each of the given sizes the cheapest path on which every kernel has a verdict; verify kernels as needed.

        All missing verdicts are obtained together: with a few kernels at a time, most workers would idle until the slowest ends."""
        paths: dict[tuple[int, ...], GraphPath] = {}
        while left := points.keys() - paths.keys():
            planned = {i: self._planned(binding) for i, binding in points.items() if i in left}
            if not self._built([plan for plan in planned.values() if plan.path is not None]):
                continue                                            # costs have changed
            for i, plan in planned.items():
                if plan.path is not None and not plan.pending:
                    paths[i] = plan.path
                    self.costed[_key(plan.binding)] = plan.paths
            self._compare([question for plan in planned.values() for question in plan.questions()])
        return {i: paths[i] for i in points}                        # as they were asked, however many rounds each took

    def _planned(self, binding: Mapping[str, int]) -> _Planned:
        """Return the cheapest path at these sizes with its kernels that lack a verdict. Where there is no path, return the kernels
        that must be compared first. Raises NoPathError where there are none either."""
        paths = self.paths(binding, optimistic=True)
        try:
            path = paths.cheapest()
        except NoPathError as e:
            # what can still be used must be known too, or the advice would only reach as far as the next refusal
            unverified = self._unverified(paths)
            if not unverified:
                from tensor_graphs.choice.refusals import with_reasons  # a door: most graphs have a path

                raise with_reasons(e, paths, self.costs, self.table, binding) from None
            return _Planned(binding, paths, None, unverified)
        path = self.costs.best_measured(self.graph, paths, path, binding)
        return _Planned(binding, paths, path, self._pending(paths, path))

    def seconds(self, path: GraphPath, binding: Mapping[str, int]) -> float:
        """Return the time at these sizes of a path chosen at others, measured as a whole if it was run; inf where it cannot be
        used."""
        paths = self.costed[_key(binding)]
        costed = paths.still(path)
        if costed is None:
            return math.inf
        ran = self._whole(path, binding)
        return costed.cost if ran is None else ran.seconds + paths.charge(costed)

    def given(self, path: GraphPath, binding: Mapping[str, int]) -> GraphPath:
        """Verify a path given by the caller, and return it with its cost at these sizes. Raises NoPathError where it cannot be
        used."""
        paths = self.paths(binding, optimistic=True)
        try:
            self._compare(_Planned(binding, paths, path, self._pending(paths, path)).questions())
            paths = self.paths(binding, optimistic=False)
            return paths.costed(path)
        except StalePathError as e:
            from tensor_graphs.choice.requested_path import explained  # the same door: the path was given

            signature = next((s for s in paths.known() if s.key == e.key), None)
            raise explained(e, signature, self.costs.backends, self.table, self.costs, binding) from None

    def _built(self, planned: Sequence[_Planned]) -> bool:
        """Return `_build`; while compilers run, start a worker and have the oracle compute what pending comparisons need."""
        questions = [question for plan in planned for question in plan.questions()]
        if not questions:
            return self._build(planned)
        with ThreadPoolExecutor(1) as pool:
            built = pool.submit(self._build, planned)
            judge = self._open()
            judge.begin()
            foresee(judge, questions, built.done)
            with phase("compile C"):
                return built.result()

    def _build(self, planned: Sequence[_Planned]) -> bool:
        """Compile the code of paths' kernels together. Return False where some cannot be compiled, so that costs have changed."""
        wanted = {(a.kernel.identity, key): (a.kernel, self._signature(plan.paths, key))
                  for plan in planned if plan.path is not None for key, a in plan.paths.kernels(plan.path).items()
                  if a.kernel is not None and a.kernel.together is not None}
        whys = make_together([(kernel, signature.spec) for kernel, signature in wanted.values()])
        for (kernel, signature), why in zip(wanted.values(), whys, strict=True):
            if why is not None:
                log.warning("%s is left out for %s: %s", kernel.name, signature.title(), why)
                self.costs.left_out[kernel.identity, signature.key] = f"it cannot be built: {why}"
        return not any(whys)

    def _pending(self, paths: Paths, path: GraphPath) -> list[tuple[Kernel, Signature]]:
        """Return the kernels of a path that have no verdict."""
        return [(a.kernel, signature) for key, a in paths.kernels(path).items()
                if a.kernel is not None and self.costs.verdict(a.kernel, signature := self._signature(paths, key)) is None]

    def _unverified(self, paths: Paths) -> list[tuple[Kernel, Signature]]:
        """Return the kernels without a verdict on the cheapest ways to compute those ops that can be computed, including ops inside
        parts that cannot."""
        pending: dict[str, tuple[Kernel, Signature]] = {}
        stack = [s for s, _ in paths.top]
        seen: set[str] = set()
        while stack:
            s = stack.pop()
            way = paths.best(s)[1]
            if s.key in seen or (way is None and not isinstance(s.spec.op, PartOp)):
                continue
            seen.add(s.key)
            if way is None:
                stack.extend(i for i, _ in paths.within(s))
            elif way.kernel is None:
                stack.extend(i for i, _ in paths.inner(s, way))
            elif self.costs.verdict(way.kernel, s) is None:
                pending[s.key] = way.kernel, s
        return list(pending.values())

    @phase("verify")
    def _open(self) -> Judge:
        if self.judge is None:
            self.judge = open_judge(self.costs.database, self.threads, self.costs.device)
        return self.judge

    @phase("verify")
    def _compare(self, questions: Sequence[Question]) -> bool:
        """Compare kernels with the oracle, each once; return whether there were any."""
        pending: dict[tuple[str, str], Question] = {}
        for kernel, signature, at in questions:
            pending.setdefault((kernel.identity, signature.key), (kernel, signature, at))
        if not pending:
            return False
        self.costs.left_out |= compare_all(self._open(), list(pending.values()), self.progress)
        self.costs.load()
        again = next((question for asked, question in pending.items() if asked in self.compared), None)
        if again is not None:                                       # or this would go on for ever
            file, (kernel, signature, _) = self.costs.database.location, again
            raise CorruptDatabase(f"{file}: what was just filed of {kernel.name} on {signature.title()} is not found there\n"
                                  "  fix: another database (--db): rows of this one were changed from outside")
        self.compared |= pending.keys()
        return True

    def _signature(self, paths: Paths, key: str) -> Signature:
        if key not in self.signatures:
            for s in paths.known():
                self.signatures[s.key] = s
        return self.signatures[key]

    def variant(self, cell: Cell, binding: Mapping[str, int], largest: Mapping[str, int], path: GraphPath,
                backends: Sequence[str]) -> Variant:
        """Lower a path and lay out its memory."""
        paths = self.paths(binding, optimistic=False)
        chosen = paths.kernels(path)

        def kernel_of(key: str) -> Kernel:
            kernel = chosen[key].kernel
            assert kernel is not None
            return kernel

        lowering = lowered(self.graph, path, kernel_of, backends, largest)
        evidence = []
        everything = self.paths(binding, optimistic=True)            # what else there is, verified or not

        rows: dict[str, KnownTime] = {}
        for key, a in chosen.items():
            if a.kernel is not None and a.cost.measured:
                timed = self.costs.timed(a.kernel, self._signature(paths, key), binding)
                assert timed is not None
                rows[key] = timed[0]
            elif a.kernel is None and a.cost.measured:             # a part, as a whole
                steps = paths.steps(self._signature(paths, key), a, lambda i: chosen.get(i.key))
                whole = self.costs.whole_row(binding, self._signature(paths, key), a, steps or ())
                rows |= {} if whole is None else {key: whole}
        outliers = Outliers(self.costs, self.table, [self._signature(paths, key) for key in chosen], self.points)
        outliers.look_at(rows.values())
        verdicts = {key: self.costs.verdict(a.kernel, self._signature(paths, key)) for key, a in chosen.items()
                    if a.kernel is not None}
        compared = trace_conditions(self.costs.database, *(v.trace_id for v in verdicts.values() if v is not None))
        for key, a in chosen.items():
            signature = self._signature(paths, key)
            cost, seconds = everything.seconds(signature, a) - a.charge, everything.expected(signature, a)
            measured = a.cost.measured and a.kernel is not None
            ranked = sorted((everything.seconds(signature, o), i, o) for i, o in enumerate(everything.alternatives(signature)))
            others = [(o.name, everything.expected(signature, o), o.cost.measured) for its, _, o in ranked
                      if o.name != a.name and its < math.inf]
            refused = tuple((k.name, why) for k in matching(signature.spec, self.table)
                            if (why := self.costs.refusal(k, signature, binding)) not in (None, "unverified"))
            refused += tuple((k.name, why) for k, why in left_out(signature.spec, self.table))
            verdict = verdicts.get(key)
            covered = {} if verdict is None else compared.get(verdict.trace_id, {}).get("covered", {})
            row = rows.get(key)
            doubt = None if a.kernel is None or row is None else outliers.of(a.kernel, signature, binding)
            evidence.append(Choice(signature.title(), key, a.name, path.calls.get(key, 0), seconds, measured, a.cost.error,
                                   _said(a), tuple(others), refused, 1.0 if measured else a.cost.margin,
                                   steps_said(signature.spec.op) if isinstance(signature.spec.op, PartOp) else "",
                                   None if row is None else row.trace_id, None if row is None else outliers.when(row),
                                   None if verdict is None else verdict.trace_id, 0 if row is None else row.times,
                                   0 if row is None else row.agreeing, "" if doubt is None else doubt.why,
                                   in_words(covered) if covered else "", a.recipe.derivation if a.recipe is not None else ""))
            calls = path.calls.get(key, 1)
            if a.kernel is not None and not measured and calls:     # what is computed when bound may take its time
                self._ask(self.misses, a.kernel, signature, binding, cost * calls * uncertainty(a.kernel.backend),
                          f"chosen by an estimate for {signature.title()}")
            elif a.kernel is not None and calls:                    # an estimate replaces no row: it has to be measured first
                for o in everything.alternatives(signature):
                    if o.kernel is not None and not o.cost.measured:
                        saved = cost - self.costs.roofline(o.kernel.backend, signature, binding, o.kernel)
                        if saved > 0:
                            self._ask(self.rivals, o.kernel, signature, binding, saved * calls * uncertainty(o.kernel.backend),
                                      f"may be faster than {a.name} for {signature.title()}")
        return Variant(cell, self.costs.as_run(self.graph, path, binding), lowering.program, lowering.layout, lowering.kernels,
                       tuple(evidence), dict(binding), self.costs.device.run_seconds, self._whole(path, binding))

    def _whole(self, path: GraphPath, binding: Mapping[str, int]) -> WholeRun | None:
        tried = self.costs.tried(self.graph, binding)
        return next((WholeRun(run.took, run.row.trace_id, len(tried)) for run in tried if run.path.id == path.id), None)

    def _ask(self, asked: dict[tuple[str, str], ProfileRequest], kernel: Kernel, signature: Signature, binding: Mapping[str, int],
             priority: float, reason: str) -> None:
        workload = timed_workload(signature, binding)
        asked[kernel.identity, workload.key] = ProfileRequest(
            implementation_of(kernel), workload, environment_of(kernel.backend, self.threads), priority=priority, reason=reason)
        self.unmeasured[signature.key] = signature

    def queue_misses(self, *, file: bool) -> tuple[str, ...]:
        """Put the kernels chosen by an estimate, and those that may be faster than a measured one, in the profile queue. Return the
        reasons for the former. file: False for a pin, which no measurement changes."""
        if file and self.unmeasured:
            for signature in self.unmeasured.values():
                self.costs.database.ensure_graph(graph_record(signature))
            self.costs.database.enqueue(*{**self.rivals, **self.misses}.values())
        return tuple(r.reason for r in self.misses.values())


def _said(a: Alternative) -> str:
    if a.kernel is not None:
        return a.cost.note
    return "runs its definition" if a.recipe is None else f"runs what {', '.join(a.recipe.rules)} make of it"
