"""measured_front: measures forms of a graph, and lists those that no other one beats in time and error (`tg pareto`).

The forms that are tried come from predictions (mixed_forms.py). Each is compiled without a tolerance. Its error is measured on
draws of the entire path, which are rows of the database and used again; the times of all forms are measured interleaved.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, whole
from tensor_graphs.choice.accuracy_inputs import Inputs
from tensor_graphs.choice.compile import answer
from tensor_graphs.choice.graph_forms import words_text
from tensor_graphs.choice.measured_accuracy import MeasuredAccuracy, measured_accuracy
from tensor_graphs.choice.mixed_forms import METRICS, MixedForms, joined
from tensor_graphs.choice.plan_times import interleaved
from tensor_graphs.choice.precision_forms import NARROW, WIDE, WIDER, estimate
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.form_front import thinned
from tensor_graphs.errors import listed
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.precision import Form
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.database import Database
from tensor_graphs.runtime.compiled_graph import bind

SAME_TIME = 0.99
"""two plans count as equally fast if the ratio of their times is at least this, and at most 1"""

MEASURED = tuple(statistic for statistic in METRICS if statistic != "as_written")
"""statistics for which forms can be listed"""


@dataclass(frozen=True)
class FrontPoint:
    """One measured form with its plan. seconds: median time of a run; spread: half of the interquartile range, relative to it.
    error: geometric mean over `draws` draws; bound: upper bound of further draws. predicted: the error as predicted, None if
    unknown. nbytes: of the parameters. measured: True; it distinguishes these points from estimates in charts."""

    words: Mapping[str, str]
    plan: Plan
    seconds: float
    spread: float
    error: float
    bound: float
    predicted: float | None
    nbytes: int
    draws: int
    measured: bool = True

    @property
    def id(self) -> str:
        """Text of the words, for people."""
        return words_text(self.words)

    def to_json(self) -> dict[str, Any]:
        return {"precision": dict(self.words), "us": self.seconds * 1e6, "spread": self.spread, "error": self.error,
                "bound": self.bound, "predicted_error": self.predicted, "parameter_bytes": self.nbytes, "draws": self.draws}


def pareto(graph: Graph, *, statistic: str = "norm", output: str | None = None, points: int = 12, draws: int = 8,
           backends: Sequence[str] | None = None, database: Database | str | FilePath | None = None,
           at: Mapping[str, int] | None = None, threads: int | None = None, weights: Mapping[str, Any] | None = None,
           inputs: Inputs = None, progress: Callable[[str], None] | None = None) -> list[FrontPoint]:
    """Return the measured forms of a graph that no other one beats in time and error, the fastest first.

    statistic: measure of the error, "max", "norm", "kl" or "cosine". output: name of the float output whose error is measured
    (default: the first). points: most forms to compile. draws: number of error draws per form. progress: is called with a line of
    text at each step. Other arguments are as in `compile_graph`; times are those of a run at the typical sizes. Raises
    ArgumentError, and NoPathError where nothing computes the graph."""
    if statistic not in MEASURED:
        raise ArgumentError(f"there is no front of {statistic!r}\n  fix: one of {listed(MEASURED)}")
    points, draws = whole("points", points, 2), whole("draws", draws, 2)
    floats = [name for name, node in graph.outputs.items() if node.dtype.is_float]
    if not floats or (output is not None and output not in floats):
        raise ArgumentError(f"the graph has no float output {output or ''}\n  fix: one of {listed(floats) or 'a graph with one'}")
    say = progress or (lambda text: None)
    request = Request(graph, f"{statistic}:{output or floats[0]}:1", backends, database, at, threads=threads, weights=weights,
                      inputs=inputs)
    accuracy = measured_accuracy(request)
    say("predicting errors of words")
    candidates = list(_candidates(graph, request, accuracy, points))
    plans: list[tuple[Form, float | None, Plan]] = []
    for number, (words, predicted) in enumerate(candidates):
        say(f"compiling form {number + 1} of {len(candidates)}: {words_text(words)}")
        plan = _compiled(graph, request, words)
        if plan is not None and all(plan.graph != other.graph for *_, other in plans):
            plans.append((words, predicted, plan))
    if not plans:
        raise NoPathError("no form of the graph has a path\n  fix: tg explain says why the written one has none")
    models = [bind(plan, accuracy.draws.weights) for *_, plan in plans]
    times = interleaved(models, graph, accuracy.sizes, say=say)
    measured = []
    for number, ((words, predicted, plan), samples) in enumerate(zip(plans, times, strict=True)):
        say(f"measuring the error of form {number + 1} of {len(plans)}: {words_text(words)}")
        measured.append(_point(words, predicted, plan, samples, accuracy, draws))
    return _not_dominated(measured)


def _candidates(graph: Graph, request: Request, accuracy: MeasuredAccuracy, points: int) -> Iterator[tuple[Form, float | None]]:
    """Yield the words of forms to try, and their predicted errors: some of the predicted front, then forms with one dtype per kind
    of site."""
    prepared = prepare(graph, request.simplify, recipes=request.store, backends=request.here).graph
    mixed = MixedForms(prepared, accuracy, estimate(prepared, request))
    front = thinned(mixed.front, max(2, points - 2)) if mixed.front else []
    uniform: list[Form] = [{}, WIDE] if front else [{}, *NARROW, *WIDER]
    for words in [*map(joined, front), *uniform][:points + 2]:
        yield words, mixed.linear(mixed.error(words))


def _compiled(graph: Graph, request: Request, words: Form) -> Plan | None:
    try:
        return answer(replace(request, tolerance=None, precision=words))
    except NoPathError:
        return None


def _point(words: Form, predicted: float | None, plan: Plan, samples: Sequence[float], accuracy: MeasuredAccuracy,
           draws: int) -> FrontPoint:
    (term,) = accuracy.accuracy.terms
    of_draws = accuracy.draws_of(plan, draws)
    values = [getattr(draw[term.output], term.statistic) for draw in of_draws.values()]
    errors = [1.0 - v if term.statistic == "cosine" else v for v in values]
    error = float(np.exp(np.mean(np.log(np.maximum(errors, 1e-300))))) if all(map(math.isfinite, errors)) else math.inf
    bound = accuracy.accuracy.allows(list(of_draws.values()), [], accuracy.spread).bound
    quartiles = statistics.quantiles(samples, n=4)
    seconds = statistics.median(samples)
    return FrontPoint(dict(words), plan, seconds, (quartiles[2] - quartiles[0]) / 2 / seconds, error,
                      1.0 - bound if term.statistic == "cosine" else bound, predicted, plan.memory().parameters, len(of_draws))


def _not_dominated(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points that no other one beats in both time and error, the fastest first. Of points that are equally fast
    (SAME_TIME), only the most accurate one stays."""
    order = sorted(points, key=lambda point: (point.seconds, point.error))
    front: list[FrontPoint] = []
    for point in order:
        if front and point.error >= front[-1].error:
            continue
        if front and front[-1].seconds >= SAME_TIME * point.seconds:
            front.pop()
        front.append(point)
    return front
