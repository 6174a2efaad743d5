"""profile_graph: find the measurements that would settle the choices of a graph, and request them until a budget is spent."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from tensor_graphs.argument_checks import function, names, number, whole
from tensor_graphs.choice.accuracy_inputs import Inputs
from tensor_graphs.choice.compile import answer as answer_request
from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.disturbed_times import Outliers
from tensor_graphs.choice.finalists import MOST_MORE, try_finalists
from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.graph_forms import GraphForm
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.profile_kernels import profile_kernels
from tensor_graphs.choice.profile_paths import Wrong, parts_on, profile_paths, run_in_place
from tensor_graphs.choice.request import Precision, Request
from tensor_graphs.choice.search import asked_sizes, sizes_to_cost
from tensor_graphs.choice.tune_graph import require_strategy, tune_graph
from tensor_graphs.costs.database_keys import VERIFIER, part_implementation, timed_workload, timing_key
from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.costs.roofline import uncertainty, work
from tensor_graphs.errors import close_to, listed
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, device_of, matching
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph, require_graph
from tensor_graphs.language.node import Node, is_step
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.input_descriptors import RANDOM, Descriptor, Given, InputError, check, read_descriptor
from tensor_graphs.measure.queue.next_measurements import Question, answer, may_pass_later, question_key, unanswered, verified
from tensor_graphs.measure.queue.profile_report import Answered, ProfileReport, Rests
from tensor_graphs.measure.queue.requests import settle_queue
from tensor_graphs.measure.queue.time_left import Ahead, Pace, ahead_of, question_seconds
from tensor_graphs.measure.rates.calibration import correct_flops, measure_device, seconds_due
from tensor_graphs.measure.timing.in_graph_steps import NotDeployed, running_signatures
from tensor_graphs.paths.path import Alternative, Cost, NoPathError, Path, Paths, Steps
from tensor_graphs.records.database import Database
from tensor_graphs.tuning.strategies import Strategy

log = logging.getLogger(__name__)

ROUNDS = 6
"""most times that a different path may turn out the cheapest before the search for it ends"""

MANY_RUNS = 20.0
"""approximate cost of measuring a path as a whole, in runs of the path"""

MOST_ASKED = 2
"""most times that one profile measures a kernel alone, and most times that it runs it inside a graph"""

WORTH_ASKING = 0.02
"""share of a path's time: a measurement that may save less is not repeated"""

WARMER = 1.25
"""factor by which a kernel may be faster inside a graph, where caches are warm, than alone; it is run there before another kernel
is chosen"""

PROMISING = 2.0
"""ratio of the chosen kernel's time to another kernel's estimate, beyond which that kernel is measured as if the plan used it"""

CLOSE = 1.5
"""ratio to the time of a part as chosen; an alternative recipe or definition within it is run next to it, both as a whole"""

DRAWS = 8
"""error draws of the plan that is chosen for a tolerance"""

FINAL = 0.25
"""share of the budget reserved for whole paths"""

LEAST_SEARCH, SEARCHING = 2.0, 0.25
"""seconds, and share of the budget, that finding questions may always take; beyond that, as long as was announced"""

Asked = Counter[tuple[str, ...]]
"""counts of measurements in one profile: by `question_key` for a kernel alone, `_step_key` and `_part_key` for runs inside a
graph"""

OnStep = Callable[[int, int, str], None]
"""callback (done, total, what) for a progress bar"""

OnStart = Callable[[Ahead], None]
"""callback with the estimated time that a profile takes in addition to its budget, called before measuring where there is any"""

OnVerdict = Callable[[Answered], None]
"""callback with the verdict on one kernel"""


def questions_of(graph: Graph, request: Request, *, given: Given = (), asked: Asked | None = None,
                 again: bool = False) -> list[Question]:
    """Return questions about every kernel that could run a signature of the graph, at the sizes the compiler costs it at.

    A question's worth is the share of the path's time that the kernel would save if it were as fast as its estimate allows. For a
    kernel that the path has chosen, that is its share of the time × the uncertainty of its estimate. It is 0 where the kernel
    cannot become cheaper than the chosen one.

    The signatures are those of the graph's nodes, and those inside the definitions that the cheapest path expands. New rows change
    the cheapest path, so a later call may return more. A signature that reads an input with given values gets another question with
    those values, as another workload. Raises NoPathError when no kernel may be used.

    A measured kernel is asked about again if its row is in doubt, or a rival is too close, and that could change the choice
    (`_doubtful`); so is one that failed as kernels do on a busy machine (`may_pass_later`). asked: counts so far in this profile.
    again: ask everything again, once."""
    asked = Counter() if asked is None else asked
    costs = CostTable.of(request)
    table = by_op(all_kernels(request.here))
    out: list[Question] = []
    points = sizes_to_cost(graph, request.at, request.largest)
    for binding in points:
        paths = costs.paths(graph, table, binding, optimistic=True)
        path = paths.cheapest()
        reached = {s.key: s for s in paths.known()}
        for key, calls in path.calls.items():
            s = reached[key]
            sizes, best = {n: int(binding[n]) for n in s.dim_names}, paths.best(s)[0]
            for kernel in matching(s.spec, table):
                if not calls and kernel.name != path.choices[key]:
                    continue                                        # computed once, when the graph is bound: one will do
                cost, why = costs.cost(kernel, s, binding, True), "asked for" if again else ""
                if cost is None and _may_pass_later(costs, kernel, s, binding):
                    cost, why = costs.estimate(kernel, s, binding), "it did not pass, as on a busy machine"
                if cost is not None:
                    least = cost.seconds if cost.measured else cost.seconds * (1.0 - uncertainty(kernel.backend))
                    share = max(0.0, best - least) * calls / max(path.cost, 1e-9)      # every range of sizes counts alike
                    rows = costs.verdict(kernel, s), costs.time(kernel, s, binding)
                    known_good = not again and all(row is None or row.passed for row in rows)
                    out.append(_unless_asked(Question(kernel, s, sizes, share, again=why), asked, MOST_ASKED if known_good else 1))
        out += _doubtful(costs, paths, path, _outliers(costs, paths, table, points), binding, asked)
        for s, operands in readers(graph, given, binding):          # whether the path runs them whole or by their definitions
            sizes = {n: int(binding[n]) for n in s.dim_names}
            for kernel in matching(s.spec, table):
                cost = costs.cost(kernel, s, binding, True)
                if cost is not None:
                    share = cost.seconds * path.calls.get(s.key, 0) / max(path.cost, 1e-9)
                    out.append(_unless_asked(Question(kernel, s, sizes, share, operands, "asked for" if again else ""), asked, 1))
    return out


Ways = list[tuple[Signature, Alternative]]
"""pairs of a signature that a path reaches and the alternative that computes it"""


def _plans(graph: Graph, points: Iterable[Mapping[str, int]],
           costs: CostTable) -> Iterator[tuple[Mapping[str, int], Paths, Path, Ways]]:
    """Yield for each of these sizes the path that `compile_graph` would use at these costs. Raises NoPathError."""
    table = by_op(all_kernels(costs.backends))
    for binding in points:
        paths = costs.paths(graph, table, binding, optimistic=True)
        path = costs.best_measured(graph, paths, paths.cheapest(), binding)
        signatures = {s.key: s for s in paths.known()}
        yield binding, paths, path, [(signatures[key], way) for key, way in paths.kernels(path).items()]


def needed(graph: Graph, points: Sequence[Mapping[str, int]], request: Request) -> list[Question]:
    """Return questions about the kernels that `compile_graph` would use at these sizes without a measured time, the most expensive
    first.

    A question's worth is the kernel's share of its path's time. Raises NoPathError."""
    out: list[Question] = []
    for binding, _, path, ways in _plans(graph, points, CostTable.of(request, ESTIMATE_MARGIN)):
        for s, way in ways:
            if way.kernel is not None and not way.cost.measured and path.calls[s.key]:
                share = way.cost.seconds * path.calls[s.key] / max(path.cost, 1e-9)
                out.append(Question(way.kernel, s, {n: int(binding[n]) for n in s.dim_names}, share))
    return sorted(out, key=lambda q: -q.worth)


def promising(graph: Graph, points: Sequence[Mapping[str, int]], request: Request) -> list[Question]:
    """Return questions about kernels never timed whose estimates are far lower than what `compile_graph` would use in their place
    at these sizes (a measured kernel or the steps of a definition): below 1 / PROMISING of its time. Those that may save most come
    first. A plan prefers measured kernels, as estimates of rivals rise where one was too low. But a slow kernel of one backend says
    little about kernels of another.

    A question's worth is the share of its path's time that may be saved. Raises NoPathError."""
    costs, table = CostTable.of(request, ESTIMATE_MARGIN), by_op(all_kernels(request.here))
    plain = replace(costs, margin=1.0)
    out: list[Question] = []
    for binding, paths, path, ways in _plans(graph, points, costs):
        for s, way in ways:
            chosen_seconds, calls = paths.seconds(s, way), path.calls[s.key]
            if not calls or (way.kernel is not None and not way.cost.measured):
                continue
            for kernel in matching(s.spec, table):
                cost = plain.cost(kernel, s, binding, True)
                if cost is not None and not cost.measured and cost.seconds * PROMISING < chosen_seconds:
                    saved = (chosen_seconds - cost.seconds) * calls / max(path.cost, 1e-9)
                    if saved > WORTH_ASKING:
                        out.append(Question(kernel, s, {n: int(binding[n]) for n in s.dim_names}, saved))
    return sorted(out, key=lambda q: -q.worth)


def rests_on(graph: Graph, asked: Sequence[Mapping[str, int]], others: Sequence[Mapping[str, int]],
             request: Request) -> tuple[Rests, ...]:
    """Return the share of the plans' time at these sizes that rests on measurements now. Raises NoPathError."""
    plans = _plans(graph, (*asked, *others), CostTable.of(request, ESTIMATE_MARGIN))
    return tuple(Rests(dict(binding), path.measured_share, binding in asked) for binding, _, path, _ in plans)


def _reached(graph: Graph, points: Sequence[Mapping[str, int]], request: Request) -> dict[str, float]:
    """Return, for each backend of the host, the most flop/s measured for an f32 matrix product in the plans for these sizes. Raises
    NoPathError."""
    out: dict[str, float] = {}
    for binding, _, _, ways in _plans(graph, points, CostTable.of(request, ESTIMATE_MARGIN)):
        for s, way in ways:
            facts = s.spec.op.facts
            if (way.kernel is not None and way.cost.measured and device_of(way.kernel.backend).is_host and facts.product
                    and not facts.closed and {t.dtype for t in s.spec.inputs if t.dtype.is_float} == {f32}):
                speed = work(s, tuple((n, int(binding[n])) for n in s.dim_names))[1] / way.cost.seconds
                out[way.kernel.backend] = max(out.get(way.kernel.backend, 0.0), speed)
    return out


def _may_save(left: Sequence[Question], points: Sequence[Mapping[str, int]]) -> float:
    """Return the most that these questions may save at one of these sizes, as a share of the path's time; one question counts per
    signature."""
    saved = []
    for point in points:
        most: dict[str, float] = {}
        for q in left:
            if not q.again and all(point[n] == size for n, size in q.binding.items()):
                most[q.signature.key] = max(most.get(q.signature.key, 0.0), q.worth)
        saved.append(min(1.0, sum(most.values())))
    return max(saved, default=0.0)


def _unless_asked(q: Question, asked: Asked, most: int) -> Question:
    """Return the question, without a repetition if this profile has asked it `most` times already."""
    return replace(q, again="") if asked[question_key(q)] >= most else q


def _may_pass_later(costs: CostTable, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> bool:
    rows = costs.verdict(kernel, signature), costs.time(kernel, signature, binding)
    failed = [row for row in rows if row is not None and row.status != "PASSED"]
    return bool(failed) and all(map(may_pass_later, failed))


def _doubtful(costs: CostTable, paths: Paths, path: Path, outliers: Outliers, binding: Mapping[str, int],
              asked: Asked) -> list[Question]:
    """Return questions that time kernels alone again. These are the kernels whose rows allow another path to be faster than the
    cheapest, as far as they are on the fastest such path; and the kernels they compete with, where their intervals overlap.

    A kernel that was timed inside a graph is left to `in_place`, as that time counts."""
    def at_best(kernel: Kernel, signature: Signature) -> Cost | None:
        cost, left = costs.cost(kernel, signature, binding, True), asked[timing_key(kernel, signature, binding)] < MOST_ASKED
        timed = costs.timed(kernel, signature, binding)
        if cost is None or timed is None or timed[1] or not left:
            return cost
        if path.choices.get(signature.key) == kernel.name and outliers.of(kernel, signature, binding) is None:
            return cost                                            # others might be faster than it, it need not be
        return replace(cost, seconds=min(cost.seconds, outliers.least(kernel, signature, binding) or cost.seconds))

    optimistic = Paths(paths.graph, paths.table, at_best, copied=paths.copied, whole=paths.whole)
    best = optimistic.cheapest()
    if best.cost > path.cost * (1.0 - WORTH_ASKING):
        return []
    out: dict[tuple[str, str], Question] = {}
    signatures = {s.key: s for s in (*paths.known(), *optimistic.known())}
    for key, way in optimistic.kernels(best).items():
        s, usual = signatures[key], paths.best(signatures[key])[1]
        cost = None if way.kernel is None else costs.cost(way.kernel, s, binding, True)
        if way.kernel is None or cost is None or way.cost.seconds >= cost.seconds:
            continue
        saved = (cost.seconds - way.cost.seconds) * best.calls[key] / max(path.cost, 1e-9)
        doubt = outliers.of(way.kernel, s, binding)
        for kernel in {way.kernel.name: way.kernel, **({usual.name: usual.kernel} if usual and not doubt else {})}.values():
            timed = None if kernel is None else costs.timed(kernel, s, binding)
            if kernel is not None and timed is not None and not timed[1] and asked[timing_key(kernel, s, binding)] < MOST_ASKED:
                why = "its interval meets a rival's" if doubt is None else doubt.why
                q = Question(kernel, s, {n: int(binding[n]) for n in s.dim_names}, saved, again=why)
                out[question_key(q)] = q
    return list(out.values())


def _outliers(costs: CostTable, paths: Paths, table: Mapping[str, list[Kernel]], points: Sequence[Mapping[str, int]]) -> Outliers:
    outliers = Outliers(costs, table, paths.known(), points)
    times = (costs.timed(kernel, s, binding) for s in paths.known() for kernel in matching(s.spec, table) for binding in points)
    outliers.look_at(timed[0] for timed in times if timed is not None)
    return outliers


def readers(graph: Graph, descriptors: Given, binding: Mapping[str, int]) -> list[tuple[Signature, Given]]:
    """Return the ops that read an input with given values that fit at these sizes, each once, with the descriptors of those
    operands."""
    out: list[tuple[Signature, Given]] = []
    leaves = {graph.inputs.get(name, graph.parameters.get(name)): (name, descriptor) for name, descriptor in descriptors}
    fitting = {leaf: descriptor for leaf, (name, descriptor) in leaves.items()
               if leaf is not None and _fits(name, descriptor, leaf, binding) is None}
    for node in graph.nodes:
        if is_step(node) and (read := [(i, x) for i, x in enumerate(node.inputs) if x in fitting]):
            s = signature_of(node)
            names = list(s.graph.inputs)
            entry = s, tuple((names[i], fitting[x]) for i, x in read)
            if entry not in out:
                out.append(entry)
    return out


def _fits(name: str, descriptor: Descriptor, leaf: Node, binding: Mapping[str, int]) -> InputError | None:
    try:
        check(name, descriptor, leaf.type.at(binding))
    except InputError as e:
        return e
    return None


def given_inputs(graph: Graph, inputs: Mapping[str, str | Mapping[str, Any] | Descriptor], bindings: Sequence[Mapping[str, int]],
                 ) -> Given:
    """Return the descriptors of inputs and parameters whose values are not random; each fits at one binding at least.

    Raises InputError for an unknown input, a meaningless description, or values that fit nowhere."""
    out = []
    for name, text in sorted(inputs.items(), key=str):
        leaf = graph.inputs.get(name, graph.parameters.get(name))
        if leaf is None:
            existing = [*graph.inputs, *graph.parameters]
            near = close_to(name, existing)
            raise InputError(f"the graph has no input or parameter named {name!r}\n  fix: "
                             + (f"did you mean {' or '.join(near)}?" if near else f"it has {listed(existing)}"))
        descriptor = read_descriptor(name, text)
        if descriptor != RANDOM:
            problems = [_fits(name, descriptor, leaf, b) for b in bindings]
            if all(problems):
                raise next(p for p in problems if p is not None)
            out.append((name, descriptor))
    return tuple(out)


def in_place(judge: Judge, graph: Graph, binding: Mapping[str, int], request: Request, end: float,
             say: Callable[[str], None], asked: Asked | None = None, again: bool = False) -> int:
    """Run the cheapest path at these sizes as a whole, next to the best by estimates, until the cheapest one has times inside a
    graph. Also run the path that would be the cheapest if doubtful measurements, and kernels timed only alone, were as fast as they
    may be.

    end: of the budget, on the clock of time.perf_counter. asked: counts so far in this profile. again: run each path even if it has
    times. Return how many steps were measured."""
    if not all_hold(conditions_of(graph.roots), binding):           # x[5] of two rows: no run at these sizes
        return 0
    asked = Counter() if asked is None else asked
    table = by_op(all_kernels(request.here))
    measured = 0
    estimated: Path | None = None
    for _ in range(ROUNDS):
        costs = CostTable.of(request, ESTIMATE_MARGIN)
        paths = costs.paths(graph, table, binding)
        path = paths.cheapest()
        outliers = _outliers(costs, paths, table, [binding])
        optimistic = costs.paths(graph, table, binding, partial(_in_place_at_best, costs, outliers, asked, binding))
        best = optimistic.cheapest()
        signatures = {s.key: s for s in (*paths.known(), *optimistic.known())}

        def unknown(paths: Paths, path: Path, costs: CostTable = costs, outliers: Outliers = outliers,
                    signatures: Mapping[str, Signature] = signatures) -> bool:
            steps = {key for key, a in paths.kernels(path).items() if a.kernel is not None
                     and _open_in_place(costs, outliers, asked, a.kernel, signatures[key], binding, again)}
            return _runs_any(graph, path, steps, _open_parts(costs, paths, path, binding, asked))

        several = {path.id: (paths, path)} if unknown(paths, path) else {}
        if best.cost < path.cost * (1.0 - WORTH_ASKING) and unknown(optimistic, best):
            several = {path.id: (paths, path), best.id: (optimistic, best)}     # interleaved, so that they can be compared
        rival = _reworded(paths, path)
        if rival is not None and (several or _runs_any(graph, rival, set(), _open_parts(costs, paths, rival, binding, asked))):
            several = {**several, path.id: (paths, path), rival.id: (paths, rival)}
        if not several or path.cost * MANY_RUNS > end - time.perf_counter():
            break
        if estimated is None:                                         # so that what is chosen later was compared with it in one run
            plain = costs.paths(graph, table, binding, partial(_estimate, costs, binding))
            estimated = plain.cheapest()
            several.setdefault(estimated.id, (plain, estimated))
            signatures |= {s.key: s for s in plain.known()}
        ways = [(key, way) for of, one in several.values() for key, way in of.kernels(one).items()]
        asked.update({_step_key(way.kernel, signatures[key], binding) for key, way in ways if way.kernel})
        asked.update({_part_key(part, binding) for of, one in several.values() for part in parts_on(of, one)})
        say(f"{len(several)} path{'s' if len(several) > 1 else ''} as a whole")
        try:
            measured += run_in_place(judge, graph, list(several.values()), signatures, binding, request.here)
        except NotDeployed as e:
            log.warning("the path %s could not be measured as a whole: %s", path.id, e)
            if not isinstance(e, Wrong):
                break
            estimated = None                                          # other paths are the cheapest now
    return measured


def _runs_any(graph: Graph, path: Path, steps: Set[str], parts: Set[tuple[str, str]]) -> bool:
    """Return whether a run of the path computes a signature in `steps`, or a step inside one of `parts` (signature key, way)."""
    if not steps and not parts:
        return False
    running, places = running_signatures(graph, path)
    return bool(steps & running or parts & places)


def _open_parts(costs: CostTable, paths: Paths, path: Path, binding: Mapping[str, int], asked: Asked) -> set[tuple[str, str]]:
    """Return (key, alternative) for the path's parts that were never measured as a whole in their chosen alternative, where another
    one is close."""
    close = set(_rivals(paths, path))
    return {(s.key, way.name) for s, way, steps in parts_on(paths, path)
            if s in close and asked[_part_key((s, way, steps), binding)] < MOST_ASKED
            and costs.whole_row(binding, s, way, steps) is None}


def _rivals(paths: Paths, path: Path) -> dict[Signature, Alternative]:
    """Return for each part of the path with recipes its cheapest other recipe or definition, if it is CLOSE to the chosen one."""
    rivals = {}
    for s, way, _ in parts_on(paths, path):
        others = [(paths.seconds(s, a), a) for a in paths.alternatives(s) if a.kernel is None and a.name != way.name]
        seconds, other = min(others, key=lambda pair: pair[0])
        if seconds <= CLOSE * paths.seconds(s, way):
            rivals[s] = other
    return rivals


def _reworded(paths: Paths, path: Path) -> Path | None:
    """Return the path with those rivals in place of the chosen ones, to be run next to it; None where there are none."""
    rivals = _rivals(paths, path)
    return paths.reworded(path, rivals) if rivals else None


def _part_key(part: tuple[Signature, Alternative, Steps], binding: Mapping[str, int]) -> tuple[str, ...]:
    s, way, steps = part
    return part_implementation(s, way.target(s), steps).source_hash, timed_workload(s, binding).key, "in place"


def _step_key(kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> tuple[str, ...]:
    return (*timing_key(kernel, signature, binding), "in place")


def _open_in_place(costs: CostTable, outliers: Outliers, asked: Asked, kernel: Kernel, signature: Signature,
                   binding: Mapping[str, int], again: bool) -> bool:
    """Return whether a kernel is still to be run inside a graph: it never was, its row there is in doubt, or `again` requests
    it."""
    ran = asked[_step_key(kernel, signature, binding)]
    if not _known_in_graph(costs, kernel, signature, binding):
        return ran < MOST_ASKED
    return (again and not ran) or (ran < MOST_ASKED and outliers.of(kernel, signature, binding) is not None)


def _in_place_at_best(costs: CostTable, outliers: Outliers, asked: Asked, binding: Mapping[str, int], kernel: Kernel,
                      signature: Signature) -> Cost | None:
    """Return the least cost that a kernel may have inside a graph, given what is open about its measurements."""
    cost = costs.cost(kernel, signature, binding)
    if cost is None or not cost.measured or asked[_step_key(kernel, signature, binding)] >= MOST_ASKED:
        return cost
    if not _known_in_graph(costs, kernel, signature, binding):
        return replace(cost, seconds=cost.seconds / WARMER)
    doubt = outliers.of(kernel, signature, binding)
    return cost if doubt is None else replace(cost, seconds=min(cost.seconds, doubt.least))


def _known_in_graph(costs: CostTable, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> bool:
    timed = costs.timed(kernel, signature, binding)
    return timed is not None and timed[1]


def _estimate(costs: CostTable, binding: Mapping[str, int], kernel: Kernel, signature: Signature) -> Cost | None:
    """Return the estimated cost of a kernel that may be used, as if nothing had been timed."""
    return None if costs.why_not(kernel, signature, binding) is not None else costs.estimate(kernel, signature, binding)


def profile_graph(graph: Graph, *, budget: float = 60.0, per_kernel: float | None = None, backends: Sequence[str] | None = None,
                  database: Database | str | FilePath | None = None, tolerance: float | None = None,
                  at: Mapping[str, int] | None = None, largest: Mapping[str, int] | None = None, threads: int | None = None,
                  timeout: float | None = None, on_step: OnStep | None = None,
                  inputs: Mapping[str, str | Mapping[str, Any] | Descriptor] | None = None, again: bool = False,
                  kernels: Sequence[str] = (), ops: Sequence[str] = (), paths: int = 0,
                  on_verdict: OnVerdict | None = None, tune: float = 0.0, strategy: str | Strategy | None = None,
                  precision: Precision = None, on_start: OnStart | None = None, assuming: str | Sequence[str] = (),
                  weights: Mapping[str, Any] | None = None, accuracy_inputs: Inputs = None) -> ProfileReport:
    """Measure what the compiler needs to know about a graph, until the budget [s] is spent or nothing is left.

    The budget is for measuring kernels and paths. Other work (preparing the graph, finding the question worth most, the device's
    own constants, starting a worker) is reported in addition. With any budget above 0 at least one question is answered. What was
    begun when the budget is spent is finished in short: each kernel that is interleaved with others is measured in one process at
    least, and in no further one.

    The kernels that the plan would use at the sizes in `at` (by default at all sizes at which the graph is costed) are measured
    first, the most expensive before the others. They may exceed the budget by the time expected for comparing and timing them, by
    twice the budget and MOST_MORE seconds at most. `ProfileReport.ahead` has that time; it is passed to on_start before anything is
    measured, unless it is 0. After that nothing more is begun. Once something was measured, kernels with estimates below half of
    what the plan uses come before the plan's kernels. Kernels that plans for other sizes use follow, then all others by what they
    may save. `ProfileReport.rests` reports how far the plans rest on rows then, and `may_save` what another call may save.

    kernels, ops: measure just the kernels of these names, and those of these ops, at the signatures at which they occur; each
    verdict is passed to on_verdict as soon as it is known (profile_kernels.py). They cannot be combined with `inputs`. paths:
    measure this many of the listed paths as a whole, and the one that runs most definitions (profile_paths.py). tune: extra seconds
    for searching schedules of generated kernels, where the path's time exceeds most what the machine allows (tune_graph.py).
    strategy: a name in tuning.strategies (default: descent), or a function of (space, rng).

    Rounds: what the cheapest path could use is measured, which may make another path the cheapest, until the cheapest one rests on
    rows only. Then the cheapest path is run as a whole, and the times of its steps inside it count before those of kernels alone;
    this repeats until nothing is cheaper. In the last quarter of the budget, the paths that may be the fastest are run as a whole,
    interleaved, and these times decide (finalists.py). Interrupting it (Ctrl-C) keeps every row measured so far; the next call
    continues from there.

    A kernel with a row is measured again if its time is suspect (disturbed_times.py) and that could change the choice; the better
    time then counts instead of one that a busy machine spoiled (`measurements.counting`). again: measure everything again.

    per_kernel: seconds of timed runs for each kernel (default: 0.25, less with a small budget), from 0.6 on over several processes.
    tolerance, precision, assuming, weights: as in `compile_graph`; accuracy_inputs: its `inputs`. timeout: seconds after which a
    kernel counts as hanging. Raises NoPathError when nothing may be used from the start, ArgumentError.

    inputs: where values of inputs and parameters come from: "random" (the default for all), a number,
    "model.safetensors:norm.weight", or FlashInfer-Trace's {"type": "safetensors", "path": …, "tensor_key": …}. Ops that read these
    directly are measured with them too, and their traces' workloads record it; a kernel that is wrong on them is not used. Raises
    InputError when values do not fit."""
    request = Request(require_graph(graph, "profile"), tolerance, backends, database, at, largest, threads=threads,
                      precision=precision, assuming=assuming, weights=weights, inputs=accuracy_inputs)
    budget = number("the budget", budget, "seconds, 0 or more", infinite=True)
    tune = number("tune", tune, "seconds, 0 or more")
    for name, value in (("per_kernel", per_kernel), ("timeout", timeout)):
        if value is not None:
            number(name, value, "seconds, 0.001 or more, or leave it out", 0.001)
    function("on_step", on_step, "how much is done, how much there is, and what comes next")
    function("on_start", on_start, "what the profile takes beside its budget")
    function("on_verdict", on_verdict, "each verdict")
    kernels = names("kernels", kernels, "names of kernels, as [\"numpy.softmax\"]")
    ops = names("ops", ops, "names of ops, as [\"softmax\"]")
    paths = whole("paths", paths)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InputError(f"inputs is {inputs!r}\n  fix: by name, {{\"x\": \"random\"}}")
    if kernels or ops:
        if inputs:
            raise InputError("values of inputs are for whole graphs, and single kernels are measured on random ones\n"
                             "  fix: inputs, or kernels and ops")
        return profile_kernels(request, kernels, ops, budget=budget, per_kernel=per_kernel, timeout=timeout, again=again,
                               on_step=on_step, on_verdict=on_verdict)
    if paths:
        if inputs:
            raise InputError("whole paths are measured on random values\n  fix: inputs, or paths")
        return profile_paths(request, paths, budget=budget, timeout=timeout, again=again, on_step=on_step)
    strategy = require_strategy(strategy)
    pace = Pace()
    store, here = request.store, request.here
    graph = prepare(request.graph, recipes=store, backends=request.here).graph      # what is measured is what compile_graph runs
    report = ProfileReport()
    spent = Stopwatch()
    descriptors = given_inputs(graph, inputs or {}, sizes_to_cost(graph, at, largest))
    seen: set[tuple[str, str]] = set()
    begun_with: set[tuple[str, str]] | None = None
    used: set[Descriptor] = set()
    counted: Asked = Counter()
    done, total, ended = 0, 0, False
    promised = False                                                # whether what promises to be faster was asked about
    apart = (1.0 - FINAL) * budget
    opening = looked = 0.0                                          # seconds that looking for questions took: last, and so far

    def say(what: str) -> None:
        if on_step is not None:
            on_step(done, done, what)

    def ask(judge: Judge, todo: Sequence[Question], must: Set[tuple[str, str]], at_least: int,
            repeated: Set[tuple[str, str]] = frozenset()) -> None:
        nonlocal done
        with spent:
            for q, status in _answers(judge, todo, must, apart - spent.seconds, report.ahead.beyond, per_kernel, at_least):
                done += 1
                counted[question_key(q)] += 1
                report.again += question_key(q) in repeated
                report.left = max(0, report.left - 1)
                report.statuses[status] = report.statuses.get(status, 0) + 1
                report.measured += status == "PASSED"
                report.failed += status != "PASSED"
                if on_step is not None:
                    on_step(done, max(total, done), f"{q.kernel.name} {q.signature.title()}")

    def run_whole(judge: Judge, graph: Graph) -> int:
        """Run the finalists, then time the kernels of the fastest path that were never timed alone. Return how many paths ran."""
        left = budget - spent.seconds
        most = left + report.ahead.beyond
        if min(budget, most) <= 0:
            return 0
        with spent:
            seconds = min(most, max(left, FINAL * budget))
            end = time.perf_counter() + seconds
            bindings = itertools.takewhile(lambda _: time.perf_counter() < end + most - seconds,
                                           itertools.chain(*asked_sizes(graph, at, largest)))
            ran = sum(try_finalists(judge, graph, binding, request, end, say, again, more=most - seconds) for binding in bindings)
        report.paths += ran
        if ran:
            plan = unanswered(store, needed(graph, points[0], request), VERIFIER, threads)
            ask(judge, plan, {question_key(q) for q in plan}, 0)
        return ran

    def look_ahead() -> Ahead:
        """Return the expected time of comparing and timing the plan, and of measuring the device. Raises NoPathError."""
        first = unanswered(store, needed(form.graph, points[0], request), VERIFIER, threads) if budget > 0 else []
        compared = verified(store, {q.kernel.backend for q in first}, threads)
        return ahead_of(first, compared, per_kernel, device=seconds_due(store, here, threads=threads),
                        pace=pace, budget=budget, apart=apart, most=min(MOST_MORE, 2.0 * budget))

    def searched() -> float:
        return pace.seconds - report.device_seconds - spent.seconds

    def may_search() -> bool:
        """Return whether finding questions once more stays within the announced time, or takes little of the budget."""
        return looked + opening <= max(LEAST_SEARCH, SEARCHING * budget, report.ahead.search)

    def open_now() -> tuple[list[Question], list[Question], list[Question], list[Question], dict[tuple[str, str], Question]]:
        """Return five items: all questions; unanswered ones about kernels that may replace a part of the plan at the requested
        sizes; those about that plan; both of these, or else those about the plans at other sizes; and all unanswered ones by key.
        Raises NoPathError."""
        nonlocal opening, looked
        began = time.perf_counter()
        every = questions_of(form.graph, request, given=descriptors, asked=counted, again=again)
        groups = [] if again else list(filter(None, points))
        tiers = (unanswered(store, needed(form.graph, group, request), VERIFIER, threads) for group in groups)
        rivals = unanswered(store, promising(form.graph, points[0], request), VERIFIER, threads) if done and not again else []
        rivals = [q for q in rivals if not counted[question_key(q)]]            # one that cannot be built has no row
        first = next(tiers, [])
        plan = [*rivals, *first] or next(tiers, [])
        due = {question_key(q): q for q in (*plan, *unanswered(store, every, VERIFIER, threads))}
        opening = time.perf_counter() - began
        looked += opening
        return every, rivals, first, plan, due

    try:
        tried = _forms(graph, request)                                                      # what is measured is what would be run
        form = next(tried)
        points = asked_sizes(form.graph, at, largest)
        reached: Mapping[str, float] = {}
        with contextlib.suppress(NoPathError):                      # then another form may have one, below
            reached = _reached(form.graph, points[0], request)
            report.ahead = look_ahead()
            looked = pace.seconds
            if on_start is not None and str(report.ahead):
                on_start(report.ahead)
        begun = time.perf_counter()
        if [*measure_device(store, here, threads=threads), *correct_flops(store, reached, threads)]:
            report.device_seconds = time.perf_counter() - begun
        with Judge(store, timeout=timeout, threads=threads, rates=known_rates(store, here, threads)) as judge:
            while not seen or may_search():
                try:
                    asked, rivals, first, plan, due = open_now()
                except NoPathError:
                    other = next(tried, None)
                    if other is not None:
                        form = other
                        continue
                    if not seen:
                        raise
                    break                                           # what was measured leaves nothing to use: no question is left
                used |= {descriptor for q in asked for _, descriptor in q.given}
                report.unused = tuple(name for name, descriptor in descriptors if descriptor not in used)
                left, must = list(due.values()), {question_key(q) for q in (*rivals, *first)}
                todo = plan or left
                begun_with = set(due) if begun_with is None else begun_with
                new = {question_key(q) for q in asked} - seen
                seen |= new
                report.already_known += len(new - due.keys())
                report.left = len(left)
                total = done + len(left)
                if todo and budget > 0:
                    judge.ready()
                before = done
                repeated = {question_key(q) for q in left if q.again}
                at_least = 1 if budget > 0 and (not done or (rivals and not promised)) else 0
                promised = promised or bool(rivals)
                ask(judge, todo, must, at_least, repeated)
                if done - before < len(todo):
                    report.may_save = _may_save([q for q in left if not counted[question_key(q)]], points[0])
                    break
                if not todo:                                        # times in place may make another path the cheapest: ask again
                    with spent:
                        end = time.perf_counter() + apart - spent.seconds
                        steps = sum(in_place(judge, form.graph, binding, request, end, say, counted, again)
                                    for binding in sizes_to_cost(form.graph, at, largest))
                    report.deployed += steps
                    ended = not steps
                    if ended and (not run_whole(judge, form.graph) or again or spent.seconds >= budget):
                        break                                       # whole paths, too, may make another one the cheapest
            if not ended:
                run_whole(judge, form.graph)
            if tune > 0:
                report.tuned += tune_graph(judge, form.graph, points[0], request, tune, strategy, say)
        _end(request, budget)
        with contextlib.suppress(NoPathError):
            report.rests = rests_on(form.graph, *points, request)
            if report.left and done and may_search():               # what the next call begins with: rows change what is asked
                *_, due = open_now()
                report.left, report.arisen = len(due), len(due.keys() - (begun_with or set()))
                report.may_save = _may_save([q for q in due.values() if not counted[question_key(q)]], points[0])
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds, report.search_seconds = pace.seconds, searched()
    report.over_seconds = max(0.0, spent.seconds - budget)
    return report


def _forms(graph: Graph, request: Request) -> Iterator[GraphForm]:
    """Yield the forms whose kernels are measured: with a tolerance first the one that is chosen now."""
    if request.accuracy.terms:
        with contextlib.suppress(NoPathError):
            plan = answer_request(request)
            yield GraphForm(plan.graph, plan.words, plan.precision, plan.written)
    yield from forms(graph, request)


def _end(request: Request, budget: float) -> None:
    """Take what is answered out of the queue, and measure the error of the chosen plan on DRAWS draws: with more of them, the bound
    is closer to the measured error."""
    settle_queue(request.store, request.here, request.threads)
    if request.accuracy.terms and budget > 0:
        from tensor_graphs.choice.measured_accuracy import measured_accuracy  # a door: most graphs run as written

        with contextlib.suppress(NoPathError):
            measured_accuracy(request).draws_of(answer_request(request), DRAWS, budget)


def _answers(judge: Judge, todo: Sequence[Question], must: Set[tuple[str, str]], budget: float, more: float,
             per_kernel: float | None, at_least: int) -> Iterator[tuple[Question, str]]:
    """Yield the results of `answer`. When the budget is spent, questions with keys in `must` are still answered in short runs for
    up to `more` seconds, each if it is expected to end by then."""
    end = time.perf_counter() + budget + more
    answered = set()
    for q, status in answer(judge, todo, budget=budget, per_kernel=per_kernel, at_least=at_least):
        answered.add(question_key(q))
        yield q, status
    compared = verified(judge.database, {q.kernel.backend for q in todo}, judge.threads)
    for q in todo:
        expected = sum(question_seconds(q, compared, per_kernel))
        if question_key(q) in must - answered and time.perf_counter() + expected < end:
            yield from answer(judge, [q], budget=0.0, per_kernel=per_kernel, at_least=1)


class Stopwatch:
    """Total time inside its `with` blocks that have ended."""

    def __init__(self) -> None:
        self.seconds = self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begun


if not TYPE_CHECKING:                                                # a checker of types reads the signature as it stands there
    profile_graph = worded(profile_graph, "profile")
