"""accurate_plan: the plan of a request with a tolerance: the first form whose measured error is within it.

A form whose plan is not accurate enough is planned again without the kernels whose own errors are by far the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tensor_graphs.choice.forms import forms
from tensor_graphs.choice.graph_forms import GraphForm
from tensor_graphs.choice.measured_accuracy import PlanAccuracy, measured_accuracy
from tensor_graphs.choice.refusals import not_accurate
from tensor_graphs.choice.request import Request
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import NoPathError
from tensor_graphs.paths.plan import Plan
from tensor_graphs.records.rows_digest import generation

REPLANNED, SUSPECT, SUSPECT_RATIO = 2, 1e-5, 8.0
"""times that a form is planned again; error of a kernel from which on it may be what makes a plan inaccurate; ratio by which the
errors of other kernels have to be smaller"""

Planned = Callable[[GraphForm, float | None], Plan]
"""Function that plans a form; with a number, of kernels whose own errors are at most that beyond one rounding. Raises
NoPathError."""


def accurate_plan(request: Request, graph: Graph, decided: GraphForm | None, planned: Planned) -> Plan:
    """Return the first plan whose measured error is as small as asked. graph: as prepared. decided: the only form that counts.
    Raises NoPathError."""
    accuracy, refused = measured_accuracy(request), list[NoPathError]()
    accuracy.check_margins()
    plans = _plans(request, graph, planned, refused) if decided is None else iter([planned(decided, None)])
    nearest: list[tuple[PlanAccuracy, Plan]] = []
    for plan in plans:
        measured = accuracy.of(plan)
        if measured.allowed.allowed:
            return replace(plan, measured=str(measured), measured_at=accuracy.sizes, weights=accuracy.weights_key,
                           inputs=request.inputs, database=request.store.location, rests_on=generation(request.store))
        nearest.append((measured, plan))
    raise not_accurate(request, nearest) if nearest else refused[0]


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
