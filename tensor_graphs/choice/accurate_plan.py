"""accurate_plan: the plan of a request with a tolerance: the first form whose measured error is within it.

A form whose plan is not accurate enough is planned again without the kernels whose own errors are by far the largest. A form with
fewer bits than written is chosen only if its plan runs faster than the graph as written, or if the latter is not accurate enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.graph_forms import GraphForm, as_written, words_text
from tensor_graphs.choice.measured_accuracy import PlanAccuracy, measured_accuracy
from tensor_graphs.choice.precision_forms import FOR_ACCURACY, GAIN, estimate, formed
from tensor_graphs.choice.refusals import not_accurate
from tensor_graphs.choice.request import Request
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.rows_digest import generation
from tensor_graphs.rewrites.passes.apply_precision import loses_nothing

REPLANNED, SUSPECT, SUSPECT_RATIO = 2, 1e-5, 8.0
"""times that a form is planned again; error of a kernel from which on it may be what makes a plan inaccurate; ratio by which the
errors of other kernels have to be smaller"""

SLOWER = 2
"""plans with fewer bits that turn out to be slower than as written, after which no other ones are tried"""

Planned = Callable[[GraphForm, float | None], Plan]
"""Function that plans a form; with a number, of kernels whose own errors are at most that beyond one rounding. Raises
NoPathError."""


def accurate_plan(request: Request, graph: Graph, decided: GraphForm | None, planned: Planned) -> Plan:
    """Return the first plan whose measured error is as small as asked, and that is worth its error. graph: as prepared. decided:
    the only form that counts. Raises NoPathError."""
    accuracy, refused = measured_accuracy(request), list[NoPathError]()
    accuracy.check_margins()
    rival = _Written(request, graph, planned)
    plans = _plans(request, graph, planned, refused) if decided is None else iter([planned(decided, None)])
    nearest: list[tuple[PlanAccuracy, Plan]] = []
    for plan in plans:
        measured = accuracy.of(plan)
        if not plan.words and all(t.statistic == "as_written" and t.limit >= 1.0 for t in accuracy.accuracy.terms):
            return _finished(request, plan, measured, ["the graph as written is as accurate as written"])
        if not measured.allowed.allowed:
            nearest.append((measured, plan))
        elif decided is not None or loses_nothing(plan.words, graph) or not rival.is_faster(plan):
            return _finished(request, plan, measured, rival.notes)
        elif len(rival.notes) == SLOWER:
            break
    if rival.notes:
        return _finished(request, rival.plan, accuracy.of(rival.plan), rival.notes)
    raise not_accurate(request, nearest) if nearest else refused[0]


def _finished(request: Request, plan: Plan, measured: PlanAccuracy, notes: Sequence[str]) -> Plan:
    accuracy = measured_accuracy(request)
    return replace(plan, measured="; ".join((str(measured), *notes)), measured_at=accuracy.sizes, weights=accuracy.weights_key,
                   inputs=request.inputs, database=request.store.location, rests_on=generation(request.store))


class _Written:
    """The graph as written, but for words that are asked for: a plan with fewer bits has to be faster. notes: texts on the plans
    that were compared with it."""

    def __init__(self, request: Request, graph: Graph, planned: Planned) -> None:
        self.request, self.graph, self.planned, self.notes = request, graph, planned, list[str]()

    @cached_property
    def plan(self) -> Plan:
        words, here = self.request.words, self.request.here
        return self.planned(formed(self.graph, words, FOR_ACCURACY, here) if words else as_written(self.graph), None)

    def is_faster(self, plan: Plan) -> bool:
        """Return whether the graph as written is accurate enough, and a plan with fewer bits takes more than GAIN of its time."""
        from tensor_graphs.choice.plan_times import against_written  # a door: most plans have no fewer bits than written
        from tensor_graphs.paths.fit_terminal import duration

        accuracy, estimated = measured_accuracy(self.request), estimate(self.graph, self.request)(self.graph, self.request.words)
        times = None if math.isinf(estimated) else against_written(accuracy, plan, lambda: self.plan, estimated)
        if times is None:
            return False
        slower = times[0] > GAIN * times[1] and accuracy.of(self.plan).allowed.allowed
        text = f"{duration(times[0])} a run, as written {duration(times[1])}"
        self.notes.append(f"{words_text(plan.words)} is not faster: {text}" if slower else text)
        return slower


def _plans(request: Request, graph: Graph, planned: Planned, refused: list[NoPathError]) -> Iterator[Plan]:
    """Yield the plans of each form of the graph that has one; the errors of the others are added to `refused`."""
    for form in forms(graph, request):
        most: float | None = None
        ids: Sequence[str] = ()
        for _ in range(1 + REPLANNED):
            try:
                plan = planned(form, most)
            except NoPathError as e:
                if most is None:
                    refused.append(e)
                break
            before, ids = ids, [v.path.id for v in plan.variants]
            if ids == before:
                break
            yield plan
            worst = max((v.path.error or 0.0 for v in plan.variants), default=0.0)
            if worst < SUSPECT:
                break
            most = worst / SUSPECT_RATIO
