"""measured_front: measures forms of a graph, and lists those that no other one beats in time and error (`tg pareto`).

The forms that are tried are some of the predicted front (mixed_forms.py), forms with one dtype per kind of sites, and forms between
neighbours of those that were measured. Each is compiled without a tolerance. Its error is measured on draws of the entire path,
which are rows of the database and used again; the times of all forms are measured interleaved.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from tensor_graphs.choice.precision_forms import NARROWED, WIDE, candidates, estimate
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.costs.form_front import spaced, within
from tensor_graphs.errors import listed
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.precision import WRITTEN, Form, parse_form
from tensor_graphs.notebook import Pictured
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.passes.apply_precision import resolved
from tensor_graphs.runtime.compiled_graph import bind

SAME_TIME, SAME_ERROR = 0.99, 0.95
"""two plans count as equally fast, or accurate, if the ratio is between this and 1; equally fast if it is in more than a quarter of
the rounds of interleaved runs"""

QUICK = 4.0
"""seconds of timing by which the forms between measured ones are chosen"""

BEHIND = 1.5
"""ratio of times from which on a form, compared with a more accurate one, is not timed again"""

GAP = 1.02, 2.0
"""least ratios of times and of errors of two measured forms between which others are tried"""

MEASURED = tuple(statistic for statistic in METRICS if statistic != "as_written")
"""statistics for which forms can be listed"""


@dataclass(frozen=True)
class FrontPoint:
    """One measured form with its plan. seconds: median time of a run; spread: half of the interquartile range, relative to it.
    error: geometric mean over `draws` draws; bound: upper bound of further draws. predicted: the error as predicted, None if
    unknown. nbytes: of the parameters, as runs read them. measured: True; it distinguishes these points from estimates in charts.
    samples: seconds of each run, interleaved with those of the other points."""

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
    samples: tuple[float, ...] = ()

    @property
    def id(self) -> str:
        """Text of the words, for people."""
        return words_text(self.words)

    def to_json(self) -> dict[str, Any]:
        return {"precision": dict(self.words), "us": self.seconds * 1e6, "spread": self.spread, "error": self.error,
                "bound": self.bound, "predicted_error": self.predicted, "parameter_bytes": self.nbytes, "draws": self.draws}


class Front(list[FrontPoint], Pictured):
    """Points in the order of their times; a notebook draws them."""


def pareto(graph: Graph, *, statistic: str = "norm", output: str | None = None, points: int = 12, draws: int = 8,
           backends: Sequence[str] | None = None, database: Database | str | FilePath | None = None,
           at: Mapping[str, int] | None = None, threads: int | None = None, weights: Mapping[str, Any] | None = None,
           inputs: Inputs = None, progress: Callable[[str], None] | None = None) -> Front:
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
    prepared = prepare(graph, request.simplify, recipes=request.store, backends=request.here).graph
    mixed = MixedForms(prepared, accuracy, estimate(prepared, request))
    forms = _Forms(request, accuracy, mixed, draws, say)
    forms.add(_spread(prepared, request, mixed, points), points - points // 4)
    if not forms.plans:
        raise NoPathError("no form of the graph has a path\n  fix: tg explain says why the written one has none")
    quick = forms.points(QUICK)
    forms.plans = [(point.words, point.plan) for point in quick if not _is_far_behind(point, quick)]
    forms.add(_between(_not_dominated(quick), mixed, points // 4), len(forms.plans) + points // 4)
    return Front(_not_dominated(forms.points()))


class _Forms:
    """The forms that are measured, with their plans."""

    def __init__(self, request: Request, accuracy: MeasuredAccuracy, mixed: MixedForms, draws: int,
                 say: Callable[[str], None]) -> None:
        self.request, self.accuracy, self.mixed, self.draws, self.say = request, accuracy, mixed, draws, say
        self.plans: list[tuple[Form, Plan]] = []

    def add(self, forms: Iterable[Form], most: int) -> None:
        """Compile forms until there are `most` with different graphs."""
        for words in forms:
            if len(self.plans) >= most:
                return
            self.say(f"compiling form {len(self.plans) + 1}: {words_text(words)}")
            try:
                plan = answer(replace(self.request, tolerance=None, precision=words))
            except NoPathError:
                continue
            if all(plan.graph != other.graph for _, other in self.plans):
                self.plans.append((words, plan))

    def points(self, seconds: float = math.inf) -> list[FrontPoint]:
        """Return all forms with their errors, which are stored, and their times, measured now. seconds: for timing."""
        models, measured = [bind(plan, self.accuracy.draws.weights) for _, plan in self.plans], list[FrontPoint]()
        times = interleaved(models, self.request.graph, self.accuracy.sizes, seconds, self.say)
        for number, ((words, plan), samples) in enumerate(zip(self.plans, times, strict=True)):
            self.say(f"measuring the error of form {number + 1} of {len(self.plans)}: {words_text(words)}")
            predicted = self.mixed.linear(self.mixed.error(words))
            measured.append(_point(words, predicted, plan, samples, self.accuracy, self.draws))
        return measured


def _spread(prepared: Graph, request: Request, mixed: MixedForms, points: int) -> Iterator[Form]:
    """Yield the words of forms to try first: as written, in f64, with one dtype per kind of sites, and some of the predicted front,
    at equal distances. Forms of the front that are more accurate than all in f32 differ in their f64 sites alone, and are left
    out."""
    uniform = [words for words, _ in candidates(prepared, request, NARROWED if mixed.errors is None else NARROWED[:2]) if words]
    mixed.narrows = mixed.errors is not None and (mixed.error({}) or 0.0) <= 2 * _useful(mixed)    # written in f32, or f64
    front = [form for form in mixed.front if form.error >= _useful(mixed)]
    yield from ({}, WIDE)
    pairs = itertools.zip_longest(uniform, map(joined, spaced(front, max(2, points // 3))) if front else ())
    yield from (words for pair in pairs for words in pair if words and words != WIDE)


def _useful(mixed: MixedForms) -> float:
    """Return the predicted error of the graph as written or all in f32, whichever is less."""
    return min(mixed.error(words) or 0.0 for words in ({}, parse_form("f32")))


def _between(points: Sequence[FrontPoint], mixed: MixedForms, count: int) -> Iterator[Form]:
    """Yield the words of up to `count` forms between neighbours of a measured front, where these are far apart: of the predicted
    front, or the faster neighbour with the words of the other one at one class of sites (the same one of all layers)."""
    gaps = [(a, b) for a, b in itertools.pairwise(points) if b.seconds >= GAP[0] * a.seconds and a.error >= GAP[1] * b.error]
    size = {i: math.log(b.seconds / a.seconds) * math.log(a.error / max(b.error, 1e-16)) for i, (a, b) in enumerate(gaps)}
    within_gap, least = dict.fromkeys(size, 0), _useful(mixed)
    for _ in range(count if size else 0):                           # the largest gap, in as many parts as it has already
        largest = max(size, key=lambda i: size[i] / (1 + within_gap[i]))
        within_gap[largest] += 1
    for i, parts in within_gap.items():
        ends = [resolved(point.words, mixed.graph) for point in gaps[i]]
        errors = [mixed.error(words) for words in ends]
        if not all(errors) or (errors[0] or 0.0) <= 2 * least:
            continue
        by_class: dict[str, list[str]] = {}
        for key in ends[0]:
            by_class.setdefault(re.sub(r"\d+", "*", key), []).append(key)
        swaps = [{**ends[0], **{key: ends[1][key] for key in keys}} for keys in by_class.values()]
        for part in range(parts):
            target = math.exp(np.interp((part + 1) / (parts + 1), (0, 1), np.log(np.maximum(np.array(errors, float), least))))
            on_front = within(mixed.front, target)
            tried = [{key: word for key, word in words.items() if word != WRITTEN}
                     for words in (*swaps, *([] if on_front is None else [joined(on_front)]))
                     if words not in ends and WIDE["between"] not in words.values()]
            yield min(tried, key=lambda words: abs(math.log((mixed.error(words) or 1e-300) / target)), default={})


def _point(words: Form, predicted: float | None, plan: Plan, samples: Sequence[float], accuracy: MeasuredAccuracy,
           draws: int) -> FrontPoint:
    (term,) = accuracy.accuracy.terms
    of_draws = accuracy.draws_of(plan, draws)
    values = [getattr(draw[term.output], term.statistic) for draw in of_draws.values()]
    errors = [1.0 - v if term.statistic == "cosine" else v for v in values]
    error = float(np.exp(np.mean(np.log(errors)))) if all(map(math.isfinite, errors)) and min(errors) > 0 else max(errors)
    bound = accuracy.accuracy.allows(list(of_draws.values()), [], accuracy.spread).bound
    quartiles = statistics.quantiles([*samples, *samples], n=4)      # two at least
    seconds = statistics.median(samples)
    nbytes = sum(use.parameters + use.bound for use in plan.memory().devices)
    return FrontPoint(dict(words), plan, seconds, (quartiles[2] - quartiles[0]) / 2 / seconds, error,
                      1.0 - bound if term.statistic == "cosine" else bound, predicted, nbytes, len(of_draws),
                      samples=tuple(samples))


def _is_far_behind(point: FrontPoint, points: Sequence[FrontPoint]) -> bool:
    return any(other.error <= point.error and BEHIND * other.seconds < point.seconds for other in points)


def _not_dominated(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the points that no other one beats in both time and error, the fastest first. Of points that are equally fast or
    accurate (SAME_TIME, SAME_ERROR), only the best one stays."""
    order = sorted(points, key=lambda point: (point.seconds, point.error))
    front: list[FrontPoint] = []
    for point in order:
        if front and point.error >= SAME_ERROR * front[-1].error:
            continue
        if front and _is_as_fast(point, front[-1]):
            front.pop()
        front.append(point)
    return front


def _is_as_fast(slower: FrontPoint, faster: FrontPoint) -> bool:
    """Return whether a point is as fast as a faster one, but for noise."""
    pairs = zip(faster.samples or (faster.seconds,), slower.samples or (slower.seconds,), strict=True)
    ratios = sorted(a / b for a, b in pairs)
    return ratios[(3 * len(ratios)) // 4] >= SAME_TIME
