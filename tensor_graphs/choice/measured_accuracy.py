"""measured_accuracy: decides whether plans are as accurate as a request asks, by draws of the whole path (measure/error_draws.py).

Draws are rows of the database, pooled over all measurements of the same plan with the same weights and inputs, never replaced. What
could not be measured is decided by the predicted error (costs/predicted_error.py), and the plan says so.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.accuracy_inputs import DRAWN, AccuracyInputs
from tensor_graphs.choice.cost_table import typical_sizes
from tensor_graphs.choice.graph_forms import words_text
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.database_keys import VERIFIER, path_environment, path_workload, whole_graph_record
from tensor_graphs.costs.predicted_error import predicted_error, unpredictable
from tensor_graphs.errors import TensorGraphsError, counted, listed
from tensor_graphs.language.dtypes import f32, f64
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.json_writer import graph_to_json
from tensor_graphs.meaning.accuracy import RANGES, Accuracy, Allowed, Term, named
from tensor_graphs.meaning.draw_bound import LEAST, PRIOR, Spread
from tensor_graphs.meaning.draw_statistics import Statistics
from tensor_graphs.meaning.precision import Form, parse_form
from tensor_graphs.measure.error_draws import Draw, ErrorDraws, drawn_weights
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.phase_times import phase
from tensor_graphs.records.measurements import conditions_at
from tensor_graphs.records.rows import ImplementationRecord, TraceRecord
from tensor_graphs.rewrites.passes.apply_precision import apply_form
from tensor_graphs.runtime.arrays import as_array

log = logging.getLogger(__name__)

DRAWS, DRAWS_OF_FEW, FEW = 2, 8, 64
"""draws of a plan's first measurement, and where an output has fewer than FEW elements; the prior of their spread makes the bound
about twice the measured error"""

OF_FEW = Spread(1.0, 8)
"""spread of ln(error) between draws of few elements: one that is near 0 has a large relative error"""

UNSEEN = 4.0
"""roundings of the accumulations (float32, or float64) that a plan may be off by where no draw shows an error"""

PROMISING = 3.0
"""factor by which the error of a form, evaluated with each value rounded, may exceed a limit: kernels round less often"""

SCREENED, FAR_BELOW = 2e9, 16.0
"""flops above which no form is evaluated op by op; factor below one rounding that no form with several of them comes near"""

WHOLE, BLOCKS, BLOCK_BYTES = 1 << 20, 32, 4096
"""bytes of a weight that is digested whole; number and bytes of the evenly spaced blocks of a larger one"""

KIND = "path error"
"""`what` of the conditions of these rows"""


@dataclass(frozen=True)
class PlanAccuracy:
    """Decision on one plan. draws: number of trajectories, 0 if the error is predicted. source: that of inputs and weights."""

    allowed: Allowed
    accuracy: Accuracy
    draws: int
    source: str

    @property
    def fix(self) -> str:
        """Text of an accuracy that the bound meets; "" if there is none."""
        term = self.allowed.term
        if term is None or not math.isfinite(self.allowed.bound):
            return ""
        return Accuracy((replace(term, limit=_looser(term, self.allowed.bound)),)).text

    def __str__(self) -> str:
        output = "" if self.allowed.term is None else f" on {self.allowed.term.output}"
        is_least = self.allowed.term is not None and self.allowed.term.statistic in LEAST
        bound = f"bound {self.allowed.bound:{'.6g' if is_least else '.1e'}}{output}"
        how = f"{counted(self.draws, 'draw')}, {self.source}" if self.draws else f"predicted, not measured: {self.source}"
        return f"{self.accuracy}: {bound} ({how})"


def measured_accuracy(request: Request) -> MeasuredAccuracy:
    """Return the measurement of a request's plans, created once: forms of one graph share the exact outputs."""
    measured: MeasuredAccuracy | None = request.__dict__.get("measured")
    if measured is None:
        measured = request.__dict__["measured"] = MeasuredAccuracy(request)
    return measured


class MeasuredAccuracy:
    """Measures the plans of one request. Raises ArgumentError for an accuracy that does not fit the graph."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.accuracy = named(request.accuracy, request.graph)
        lacking = [] if request.weights is None else [name for name in request.graph.parameters if name not in request.weights]
        if lacking:
            raise ArgumentError(f"weights lack the parameter {lacking[0]!r}, {request.graph.parameters[lacking[0]].type}\n"
                                f"  fix: an array for each of {listed(request.graph.parameters)}")
        for name, node in request.graph.parameters.items():
            shape = node.shape if request.weights is None else np.shape(request.weights[name])
            if shape != node.shape:
                raise ArgumentError(f"the weight {name!r} has the shape {list(shape)}, and the parameter is {node.type}\n"
                                    "  fix: an array of that shape")
        self.sizes = typical_sizes(request.graph, request.at)
        self.latest: PlanAccuracy | None = None
        """the decision on the last plan"""
        self.predicted: Callable[[Form], dict[str, dict[str, float]]] = lambda words: {}
        """function from words to predicted errors, output -> metric -> error; {} where they are unknown (mixed_forms.py)"""
        self.inputs = AccuracyInputs(request.inputs, request.weights, request.graph, self.sizes)

    @cached_property
    def draws(self) -> ErrorDraws:
        graph, weights = self.request.graph, self.request.weights
        weights = drawn_weights(graph) if weights is None else {
            name: as_array(name, weights[name], node.type, "parameter") for name, node in graph.parameters.items()}
        return ErrorDraws(graph, weights, self.sizes, sizes=[sizes for _, sizes in self.inputs.first],
                          runs_of=None if self.inputs_key == DRAWN else self.inputs.runs)

    @property
    def count(self) -> int:
        """Draws of a plan: as many as there are inputs for, else more of an output of few elements, whose error varies more."""
        return self.inputs.count or (DRAWS if self.draws.elements >= FEW else DRAWS_OF_FEW)

    @property
    def spread(self) -> Spread:
        return PRIOR if self.draws.elements >= FEW else OF_FEW

    @cached_property
    def weights_key(self) -> str:
        return DRAWN if self.request.weights is None else weights_key(self.request.weights, self.request.graph)

    @cached_property
    def graph_key(self) -> str:
        """Digest of the graph with its names: rows are filed by structure alone, and errors by the names of outputs."""
        return hashlib.sha256(graph_to_json(self.request.graph).encode()).hexdigest()

    @property
    def inputs_key(self) -> str:
        return self.inputs.key

    @property
    def source(self) -> str:
        """Sources of inputs and weights. Statistics of a task say little of random ones."""
        source = f"{self.inputs.source}, {'drawn' if self.weights_key == DRAWN else 'given'} weights"
        tasks = dict.fromkeys(term.statistic for term in self.accuracy.terms if RANGES[term.statistic].of_one)
        return f"{source}; {listed(tasks)} says little unless both are real" if tasks and "drawn" in source else source

    def check_margins(self) -> None:
        """Raise NoPathError where an output depends on a comparison, floor or argmax of computed floats that rounding errors
        of float64 decide otherwise: no arithmetic of floats can promise an error there."""
        leaps = unpredictable(self.request.graph, math.inf)
        if not leaps:
            return
        try:
            wide = apply_form(self.request.graph, parse_form("f64")).graph
            draw = self.draws.of_graph(wide, [0], first_run=True, mode="jittered")[0]
        except (TensorGraphsError, MemoryError) as error:
            log.info("the margins of comparisons are not known: %s", error)
            return
        if not self._loosely(draw):
            raise NoPathError(f"no path is as accurate as asked: {self.accuracy}\n  {leaps}, and what decides it is closer than "
                              "rounding errors\n  fix: no tolerance, and it runs as written")

    @phase("verify")
    def promises(self, form: Graph) -> bool:
        """Return False for a form of the graph that is far less accurate than asked, evaluated with each value rounded to its
        dtype; of a large graph, if the limit on the largest error is far below one rounding of the values between its ops."""
        if self.draws.flops > SCREENED:
            limits = [term.limit for term in self.accuracy.terms if term.statistic == "max"]
            return min(limits, default=math.inf) >= _coarsest(form) / FAR_BELOW
        try:
            draws = self.draws.of_graph(form, [0], first_run=True)
        except (TensorGraphsError, MemoryError) as error:
            log.info("the error of a form is not known: %s", error)
            return True
        return self._loosely(draws[0])

    def _loosely(self, draw: Draw) -> bool:
        """Return whether a draw is within PROMISING times each limit."""
        for term in self.accuracy.terms:
            output = draw.get(term.output)
            if output is None:
                continue
            limit = PROMISING * term.limit
            errors = {"max": output.max, "norm": output.norm, "kl": output.kl}
            least = {"top1": output.top1, "cosine": output.cosine}
            if term.statistic in errors and not errors[term.statistic] <= limit:
                return False
            if term.statistic in least and not 1.0 - least[term.statistic] <= PROMISING * (1.0 - term.limit):
                return False
        return True

    @phase("verify")
    def of(self, plan: Plan) -> PlanAccuracy:
        """Return whether a plan is accurate enough, by rows of the database or by new draws, which are stored."""
        self.latest = self._of(plan)
        return self.latest

    def _of(self, plan: Plan) -> PlanAccuracy:
        try:
            draws = self.draws_of(plan, self.count, self.request.accuracy_seconds)
            if not draws:
                return self._predicted(plan, "accuracy_seconds=0")
            relative = any(term.statistic == "as_written" for term in self.accuracy.terms)
            written = self.draws.of_graph(self.request.graph, list(draws)) if relative else []
        except (TensorGraphsError, MemoryError) as error:
            return self._predicted(plan, str(error).partition("\n")[0])
        allowed = self.accuracy.allows(list(draws.values()), written, self.spread)
        unseen = min((term for term in self.accuracy.terms if term.statistic == "max"), key=lambda term: term.limit, default=None)
        if allowed.allowed and unseen is not None and unseen.limit < (least := _unseen(plan)):
            allowed = Allowed(False, least, unseen)
        return PlanAccuracy(allowed, self.accuracy, len(draws), self.source)

    def draws_of(self, plan: Plan, count: int, seconds: float = math.inf) -> dict[int, Draw]:
        """Return draws of a plan by seed: the stored ones, and new ones up to `count`, which are stored. seconds: no new draw
        begins later than that after the first one; 0 for no new ones."""
        key, count = plan_key(plan), count if self.inputs.count is None else min(count, self.inputs.count)
        draws = self._stored(key)
        missing = [seed for seed in range(count) if seed not in draws] if seconds else []
        return {**draws, **self._new(plan, missing, seconds)} if missing and len(draws) < count else draws

    def _new(self, plan: Plan, seeds: list[int], seconds: float) -> dict[int, Draw]:
        draws = dict(zip(seeds, self.draws.of_plan(plan, seeds, seconds), strict=False))
        request = self.request
        for graph in (request.graph, plan.graph):
            request.store.ensure_graph(whole_graph_record(graph))
        worst = max((s.max for draw in draws.values() for s in draw.values()), default=0.0)
        request.store.add_trace(TraceRecord(
            plan_record(plan), path_workload(request.graph, self.sizes), path_environment(plan.backends, request.threads), "verify",
            "PASSED" if math.isfinite(worst) else "INCORRECT_NUMERICAL", max_relative_error=worst, verifier=VERIFIER,
            conditions={"what": KIND, "graph": self.graph_key, "weights": self.weights_key, "inputs": self.inputs_key,
                        "form": words_text(plan.words), "predicted": self.predicted(plan.words),
                        "measured": _means(list(draws.values())),
                        "draws": {str(seed): {name: _numbers(s) for name, s in draw.items()} for seed, draw in draws.items()}}))
        return draws

    def _stored(self, key: str) -> dict[int, Draw]:
        """Return the stored draws of a plan with these weights and inputs, by seed."""
        return {int(seed): {name: _statistics(numbers) for name, numbers in draw.items()} for row in self.rows(key)
                if (row.get("weights"), row.get("inputs")) == (self.weights_key, self.inputs_key)
                for seed, draw in row["draws"].items()}

    def rows(self, key: str | None = None) -> list[Mapping[str, Any]]:
        """Return the conditions of the rows of one plan of the graph, by its key, or of all its plans."""
        workload = path_workload(self.request.graph, self.sizes)
        rows = conditions_at(self.request.store, workload.key, key, "verify", verifier=VERIFIER)
        return [row for row in rows if (row.get("what"), row.get("graph")) == (KIND, self.graph_key)]

    def _predicted(self, plan: Plan, why: str) -> PlanAccuracy:
        """Return the decision by the predicted error, which says nothing of terms other than the largest error."""
        predicted = predicted_error(plan.graph, plan.backends)
        worst = min((t for t in self.accuracy.terms if t.statistic == "max"), key=lambda t: t.limit, default=None)
        within = worst is not None and predicted <= worst.limit
        return PlanAccuracy(Allowed(within, predicted, worst or self.accuracy.terms[0]), self.accuracy, 0, why)


def rounded_up(x: float) -> str:
    """Return a number with two digits as text, never less than x: the advised tolerance must be enough."""
    step = 10.0 ** (math.floor(math.log10(x)) - 1) if x > 0 else 1.0
    return f"{math.ceil(x / step) * step:.1e}"


def _looser(term: Term, bound: float) -> float:
    """Return a limit of two digits that a bound is within."""
    if term.statistic in LEAST:
        return math.floor(bound * 1000) / 1000
    return float(rounded_up(bound))


def _coarsest(graph: Graph) -> float:
    """Return the relative error of one rounding to the narrowest float dtype of the values between a graph's ops."""
    outputs = set(graph.roots)
    return max((t.dtype.epsilon / 2 for node in graph.nodes if node.op.kind != "leaf" and node not in outputs
                for t in node.types if t.dtype.is_float), default=0.0)


def _unseen(plan: Plan) -> float:
    """Return the error that a few draws may miss, as it shows only where it crosses half a gap of an output's dtype; 0 for a graph
    that rounds nothing."""
    is_wide = plan.words.get("between") == "f64" or any(t.dtype == f64 for node in plan.graph.nodes for t in node.types)
    return UNSEEN * (f64 if is_wide else f32).epsilon / 2 if predicted_error(plan.written or plan.graph) else 0.0


def plan_key(plan: Plan) -> str:
    """Return a digest of the paths of all ranges of sizes: equal for plans that compute the same way."""
    return hashlib.sha256(repr([(v.cell.to_json(), v.path.id) for v in plan.variants]).encode()).hexdigest()


def plan_record(plan: Plan) -> ImplementationRecord:
    """Return the implementation under which errors and times of an entire plan are filed."""
    key, graph_key = plan_key(plan), plan.graph.structural_key
    return ImplementationRecord("GRAPH_RECIPE", f"plan {key[:16]}", "recipe", key, graph_key, graph_key,
                                description=f"in the form {words_text(plan.words)}")


def weights_key(weights: Mapping[str, Any], graph: Graph) -> str:
    """Return a digest of a graph's parameters: names, dtypes, shapes, and bytes (of a large one evenly spaced blocks)."""
    digest = hashlib.sha256()
    for name in sorted(graph.parameters):
        array = np.ascontiguousarray(weights[name])
        content = array.reshape(-1).view(np.uint8)
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        if content.size <= WHOLE:
            digest.update(content.tobytes())
            continue
        for at in np.linspace(0, content.size - BLOCK_BYTES, BLOCKS).astype(int):
            digest.update(content[at:at + BLOCK_BYTES].tobytes())
    return digest.hexdigest()


def _numbers(errors: Statistics) -> list[float | None]:
    """Return statistics as JSON has them: None for a number that is not finite."""
    return [x if math.isfinite(x) else None for x in map(float, astuple(errors))]


def _means(draws: Sequence[Draw]) -> dict[str, dict[str, float]]:
    """Return the geometric mean over draws of each error: output -> statistic -> mean; none of errors that are 0 or not finite."""
    means: dict[str, dict[str, float]] = {}
    for output, statistic in itertools.product(draws[0] if draws else (), ("max", "norm", "kl", "cosine")):
        values = [getattr(draw[output], statistic) for draw in draws]
        values = [1.0 - x for x in values] if statistic == "cosine" else values
        if all(math.isfinite(x) and x > 0 for x in values):
            means.setdefault(output, {})[statistic] = math.exp(sum(map(math.log, values)) / len(values))
    return means


def _statistics(numbers: list[float | None]) -> Statistics:
    *errors, top1, cosine = numbers
    maximum, p999, norm, kl = (math.inf if x is None else x for x in errors)
    return Statistics(maximum, p999, norm, kl, math.nan if top1 is None else top1, math.nan if cosine is None else cosine)
