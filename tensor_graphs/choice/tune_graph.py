"""tune_graph: decide for which parts of a graph to search schedules, and how long: calls × the time above the roofline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.request import Request
from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.kernels.registry import all_kernels, by_op, matching
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.queue.profile_report import TunedPart
from tensor_graphs.paths.lower import PlanError
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.tuning.generators import GENERATORS
from tensor_graphs.tuning.strategies import STRATEGIES, Strategy, StrategyError, known, register
from tensor_graphs.tuning.tune import tune

LEAST_LEFT = 0.1
"""least share of a kernel's time that counts as possible gain: rates were measured at other times and may be too low"""

log = logging.getLogger(__name__)

LEAST_SECONDS = 2.0
"""least seconds of a search: a compiler run takes a tenth of a second, and a site has some four actions"""

CLOSE = 1.5
"""ratio to the chosen kernel's cost up to which the loops with the rules' schedule are worth a search"""


@dataclass(frozen=True)
class Worth:
    """A signature at some sizes, the most seconds of a run that a better schedule might save there, and the kernel with the rules'
    schedule."""

    signature: Signature
    binding: Mapping[str, int]
    seconds: float
    seed_kernel: str


def worth_tuning(graph: Graph, points: Sequence[Mapping[str, int]], request: Request) -> list[Worth]:
    """Return the signatures that generated kernels compute, or might, on the cheapest paths, by gain. Raises NoPathError."""
    costs = CostTable.of(request, ESTIMATE_MARGIN)
    table = by_op(all_kernels(request.here))
    parts: dict[tuple[str, tuple[tuple[str, int], ...]], Worth] = {}
    for point in points:
        paths = costs.paths(graph, table, point, optimistic=True)
        path = paths.cheapest()
        signatures = {s.key: s for s in paths.known()}
        for key, way in paths.kernels(path).items():
            s, calls = signatures[key], path.calls[key]
            seeds = {k: its for k in matching(s.spec, table) if k.name in GENERATORS
                     and (its := costs.cost(k, s, point, True)) is not None}
            loops = min(seeds, key=lambda k: seeds[k].seconds, default=None)
            if loops is None or not calls or seeds[loops].seconds > CLOSE * way.cost.seconds:
                continue
            binding = {n: int(point[n]) for n in s.dim_names}
            left = max(LEAST_LEFT * way.cost.seconds, way.cost.seconds - costs.roofline(loops.backend, s, binding, loops)) * calls
            asked = key, tuple(sorted(binding.items()))
            if asked not in parts or parts[asked].seconds < left:
                parts[asked] = Worth(s, binding, left, loops.name)
    return sorted(parts.values(), key=lambda part: -part.seconds)


def tune_graph(judge: Judge, graph: Graph, points: Sequence[Mapping[str, int]], request: Request, seconds: float,
               strategy: str, say: Callable[[str], None]) -> list[TunedPart]:
    """Search schedules for this many seconds, shared in proportion to what each part may save; time that a part leaves goes to
    later parts. Judging the winners takes extra time. Raises StrategyError where a strategy of the caller raises."""
    try:
        parts = worth_tuning(graph, points, request)
    except NoPathError:
        return []
    tuned: list[TunedPart] = []
    parts = parts[:max(1, int(seconds / LEAST_SECONDS))]
    left = seconds
    for i, part in enumerate(parts):
        share = left * part.seconds / sum(p.seconds for p in parts[i:])
        say(f"schedules of {part.signature.title()}")
        begun = time.perf_counter()
        try:
            tuned.append(tune(judge, part.signature, part.binding, max(LEAST_SECONDS, share), strategy=strategy,
                              seed_kernel=part.seed_kernel))
        except StrategyError:
            raise
        except TensorGraphsError as e:
            log.warning("no schedules of %s were searched: %s", part.signature.title(), e)
        left = max(0.0, left - min(time.perf_counter() - begun, max(LEAST_SECONDS, share)))
    return tuned


def require_strategy(strategy: str | Strategy | None) -> str:
    """Return the name of a strategy; a function is registered under its own name. Raises PlanError, StrategyError."""
    if strategy is None:
        return next(iter(STRATEGIES))
    if callable(strategy):
        names = [name for name, function in known().items() if function is strategy]
        name = names[0] if names else getattr(strategy, "__name__", type(strategy).__name__)
        if not names:
            register(name)(strategy)
        return name
    if strategy not in known():
        near = close_to(strategy, known())
        raise PlanError(f"no strategy is named {strategy!r}; there are {', '.join(known())}\n"
                        f"  fix: {f'did you mean {near[0]}?' if near else 'one of those, or leave it out'}")
    return strategy
