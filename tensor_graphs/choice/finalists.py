"""finalists: run the few paths that may be the fastest as a whole, interleaved; the choice rests on these times.

Sums of kernel costs give an order of paths, not the time of a graph. They lack what one kernel leaves in the caches for the next,
how threads of two runtimes follow each other, and the overhead of calls.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from statistics import median

from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.deferred_measure import compare_all
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import VERIFIER
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.kernels.kernel import Kernel, NotLowered
from tensor_graphs.kernels.registry import all_kernels, by_op, whole_kernels
from tensor_graphs.language import dims as d
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.timing.in_graph_steps import (
    Deployed,
    NotDeployed,
    measure_whole,
    record_whole,
    record_wrong_at_once,
    refute,
)
from tensor_graphs.paths.path import NoPathError, Path, Paths

log = logging.getLogger(__name__)

MOST = 10
"""most paths of a graph that one profile runs as a whole"""

LOOKED_AT = 10 * MOST
"""cheapest paths from which some are selected to run"""

CLOSE, SHORT = 1.6, 2e-5
"""limit on the cost of paths to run: this factor times the cheapest path's cost, plus these seconds. Measurements are seldom off by
more, and they lack what calls of a few microseconds cost inside a graph (awake threads, operands in the caches)"""

NOTICED = 0.03
"""share of the cheapest path's cost below which a kernel is not exchanged for its next best alternative"""

LEFT = 4
"""most paths that are run again"""

FEW_ROUNDS, ROUNDS = 3, 7
"""rounds of each path at first, and of each path that is run again"""

TURNS, UNSURE = 4, 1.15
"""most repetitions, each with newly bound paths (memory placement makes a short path 10 % slower or faster), and the ratio to the
fastest path beyond which a path is not repeated"""

KEPT = 0.7
"""share of a repeated path's runs that count; the slower ones are attributed to other load"""

COMPARING = 0.3
"""share of the remaining time for comparing kernels without a verdict with the oracle"""

MOST_MORE = 10.0
"""most seconds by which one plan's needs may exceed the budget: sums of measurements and estimates alone say little, and one of
three kernels may be all that is missing; but kernels on millions of numbers take this long each, and a path may have ten"""

EACH = 0.2
"""approximate seconds to run a path as a whole, besides its runs: binding it, letting threads sleep, emptying the caches"""

RUNS = 30
"""approximate runs of a path"""


def at_once(graph: Graph, binding: Mapping[str, int], backends: Sequence[str]) -> list[Kernel]:
    """Return the kernels that run all steps of a graph in one call at these sizes."""
    kernels = []
    for kernel in whole_kernels(backends):
        assert kernel.whole is not None
        try:
            takes = kernel.whole(graph)
        except NotLowered as e:
            log.debug("%s: %s", kernel.name, e)
            continue
        if all(d.evaluate(one, binding) == 1 for one in takes.ones):
            kernels.append(kernel)
    return kernels


def finalists(paths: Paths, seconds: float = math.inf, whole: Sequence[Kernel] = ()) -> list[Path]:
    """Return the paths worth a run, as many as fit into `seconds`: the cheapest; variants of it with one of the kernels `whole` for
    all steps, with original definitions instead of recipes, and with the next best alternative for each costly step; then the next
    cheapest paths. Raises NoPathError."""
    first = paths.cheapest()
    most = int(min(MOST, seconds / (EACH + RUNS * first.cost)))
    selected = {first.id: first}
    limit = CLOSE * first.cost + SHORT

    def add(path: Path | None, margin: float = 1.0) -> None:
        if path is not None and path.cost <= limit * (1.0 if path.measured else margin) and len(selected) < most:
            selected.setdefault(path.id, path)

    if all(paths.device_of(way) != HOST.name for way in paths.kernels(first).values() if way.kernel is not None):
        for kernel in whole:
            add(first.at_once(kernel))
    signatures = {s.key: s for s in paths.known()}
    chosen = {signatures[key]: way for key, way in paths.kernels(first).items()}
    plain = {s: next(a for a in paths.alternatives(s) if a.kernel is None and a.recipe is None)
             for s, way in chosen.items() if way.recipe is not None}
    if plain:
        add(paths.reworded(first, plain), ESTIMATE_MARGIN)             # of other words the kernels may never have been timed
    share = {s: paths.seconds(s, way) * first.calls.get(s.key, 0) for s, way in chosen.items()}
    swaps = []
    for s in (s for s in chosen if share[s] >= NOTICED * first.cost):
        others = [(paths.seconds(s, a), a) for a in paths.alternatives(s) if a.name != chosen[s].name]
        seconds, other = min(others, key=itemgetter(0), default=(math.inf, chosen[s]))
        if seconds < math.inf:
            swaps.append(paths.reworded(first, {s: other}))
    for path in sorted(filter(None, swaps), key=lambda p: p.cost)[:most // 2]:
        add(path, ESTIMATE_MARGIN)
    for path in itertools.islice(paths, LOOKED_AT):
        if len(selected) >= most or path.small:                        # small swaps come last
            break
        add(path)
    return list(selected.values())


def try_finalists(judge: Judge, graph: Graph, binding: Mapping[str, int], request: Request, end: float, say: Callable[[str], None],
                  again: bool = False, without: Sequence[str] = (), more: float = MOST_MORE) -> int:
    """Run the finalists of a graph at these sizes as a whole and store their times; the fastest are run more often. Return how many
    ran.

    end: of the budget, on the clock of time.perf_counter; more: seconds by which comparing kernels with the oracle first may move
    it. again: run even if all were run before. without: names of all-steps kernels to leave out."""
    if not all_hold(conditions_of(graph.roots), binding):           # x[5] of two rows: no run at these sizes
        return 0
    costs = CostTable.of(request, ESTIMATE_MARGIN)
    try:
        began = time.perf_counter()
        paths = _compared(judge, graph, binding, request, costs, end, say, more)
        end += min(more, time.perf_counter() - began)               # or few paths would be run where much was to be compared
        whole = [k for k in at_once(graph, binding, request.here) if k.name not in without]
        several = finalists(paths, end - time.perf_counter(), whole)
    except NoPathError:
        return 0
    tried = {run.path.id for run in costs.tried(graph, binding)}
    if len(several) < 2 or (not again and tried >= {p.id for p in several}):
        return 0
    by_id = {p.id: p for p in several}
    for run in costs.tried(graph, binding)[:1]:                    # the best so far takes part, so that times of one run compare
        if run.path.id not in by_id and (costed := paths.still(run.path)) is not None:
            several.append(costed)
    kernels = {a.name: a.kernel for p in several for a in paths.kernels(p).values() if a.kernel is not None}
    at = {n: int(s) for n, s in binding.items()}
    signatures = {s.key: s for s in paths.known()}
    measure = partial(measure_whole, judge, graph, kernels=kernels, binding=at, backends=request.here)
    left = max(0.0, end - time.perf_counter())
    say(f"{len(several)} paths as a whole")
    try:
        results: list[Deployed] = measure(several, rounds=FEW_ROUNDS, seconds=0.4 * left)
        for turn in range(TURNS):
            best = _still_open(results, math.inf if turn == 0 else UNSURE)
            left = max(0.0, end - time.perf_counter())
            if turn and (len(best) < 2 or left < EACH * len(best)):
                break
            say(f"{len(best)} paths as a whole, again")
            results = both(results, measure([run.path for run in best], rounds=ROUNDS, seconds=left))
    except NotDeployed as e:
        if e.path is not None and e.path.all_steps:
            record_wrong_at_once(judge, graph, e.path, str(e), kernels, at)
            log.warning("%s is wrong here: %s", e.path.all_steps, e)
            return try_finalists(judge, graph, binding, request, end, say, again, (*without, e.path.all_steps), more)
        log.warning("%d paths could not be run as a whole, so the choice rests on the costs of their steps: %s", len(several), e)
        if e.path is not None:
            refute(judge, e.path, str(e), kernels, signatures, at, VERIFIER)
        return 0
    record_whole(judge, graph, results, kernels, at, request.here)
    return len(results)


def _still_open(results: Sequence[Deployed], unsure: float) -> list[Deployed]:
    """Return the results below `unsure` times the fastest path's time, the fastest first, LEFT at most."""
    ordered = sorted(results, key=lambda result: median(result.whole))
    return [result for result in ordered if median(result.whole) <= unsure * median(ordered[0].whole)][:LEFT]


def both(results: Sequence[Deployed], more: Sequence[Deployed]) -> list[Deployed]:
    """Merge the times of paths with those of paths run again. Of the latter only the faster runs count: else paths not run again
    would seem fastest if the machine became slower. The host's part around a device's time is replaced by the least of all."""
    least = min((result.around for result in (*results, *more) if result.around is not None), default=0.0)
    results, more = ([_with(least, result) for result in some] for some in (results, more))
    again = {result.path.id: result.whole for result in more}
    out = []
    for result in results:
        runs = sorted((*result.whole, *again.get(result.path.id, ())))
        count = max(len(again[result.path.id]), int(KEPT * len(runs))) if result.path.id in again else len(runs)
        out.append(replace(result, whole=tuple(runs[:count])))
    return out


def _with(around: float, result: Deployed) -> Deployed:
    """Return a result with the host's part of its times replaced by `around`, where a device timed the rest."""
    if result.around is None:
        return result
    whole = tuple(spent - result.around + around for spent in result.whole)
    return replace(result, whole=whole, sums=whole, around=around)


def _compared(judge: Judge, graph: Graph, binding: Mapping[str, int], request: Request, costs: CostTable, end: float,
              say: Callable[[str], None], more: float) -> Paths:
    """Return the paths of a graph whose kernels may all be used. With a short budget, kernels of promising paths may lack a
    verdict: those of the cheapest path are compared with the oracle first, then those of other finalists while time is left. Paths
    with other such kernels are excluded. Raises NoPathError."""
    table = by_op(all_kernels(request.here))
    hopeful = costs.paths(graph, table, binding, optimistic=True)
    until = time.perf_counter() + COMPARING * (end - time.perf_counter())
    several = finalists(hopeful, end - time.perf_counter()) or [hopeful.cheapest()]
    signatures = {s.key: s for s in hopeful.known()}
    compared = set[tuple[str, str]]()
    for i, path in enumerate(several):
        pending = {(a.kernel.identity, key): (a.kernel, signatures[key], {n: int(binding[n]) for n in signatures[key].dim_names})
                   for key, a in hopeful.kernels(path).items()
                   if a.kernel is not None and costs.verdict(a.kernel, signatures[key]) is None}
        pending = {key: question for key, question in pending.items() if key not in compared}
        if i and time.perf_counter() >= until:
            break
        compare_all(judge, list(pending.values()), say, until if i else end + more)
        compared |= set(pending)
    if compared:
        costs.load()
    return costs.paths(graph, table, binding)
