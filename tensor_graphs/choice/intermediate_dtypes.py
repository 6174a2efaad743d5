"""intermediate_dtypes: the float dtype of values between ops: as written, wider for a tolerance, or, on request, narrower.

Without a tolerance a graph runs as written (decision 0099). A kernel's error is measured; how much a whole graph amplifies the
rounding of its values is predicted (costs/predicted_error.py). Where the prediction is beyond a tolerance, the graph is rewritten
with wider intermediates (widen_intermediates.py): float32 where that is wider and suffices, else float64 (decisions 0006, 0044 and
0092). bfloat16 products are never chosen automatically (passes/narrow.py, decision 0060).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensor_graphs.choice.graph_forms import REWRITTEN, Intermediates
from tensor_graphs.choice.request import Request, Wanted
from tensor_graphs.choice.tolerance_floor import check_reach
from tensor_graphs.costs.predicted_error import centred, predicted_error, unpredictable
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.graph import Graph
from tensor_graphs.phase_times import phase

WANTED: tuple[Wanted, ...] = ("auto", "as_written", *REWRITTEN)


class IntermediatesError(TensorGraphsError):
    """Another word for the dtype of intermediates than those of WANTED."""


def as_written(graph: Graph, tolerance: float | None, why: str = "", backends: Sequence[str] = ()) -> Intermediates:
    """Return the graph unchanged."""
    predicted = predicted_error(graph, backends)
    if tolerance is None:
        return Intermediates(graph, False, predicted, "as written, nothing narrower than the graph says")
    unknown, norm = unpredictable(graph, tolerance), centred(graph)
    of_rows = f", times |mean| / deviation of the rows of {norm} where that is above 1" if norm else ""
    reason = f"as written, predicted error {f'unknown: {unknown}' if unknown else f'{predicted:.1e}{of_rows}'}"
    return Intermediates(graph, False, predicted, why or reason)


@phase("prepare")
def decide(graph: Graph, tolerance: float | None, wanted: Wanted = "auto", backends: Sequence[str] = ()) -> Intermediates:
    """Return the graph to run within a tolerance (None: as written). Raises IntermediatesError for a word that is not in WANTED."""
    if wanted not in WANTED:
        raise IntermediatesError(f"intermediates are {wanted!r}\n  fix: one of {', '.join(WANTED)}")
    beyond = _beyond(graph, tolerance, backends)
    if wanted == "as_written" or (wanted == "auto" and not beyond):
        return as_written(graph, tolerance, beyond and f"as written, asked for{beyond}", backends)
    from tensor_graphs.choice import widen_intermediates  # a door: most graphs run as they are written

    if wanted != "auto":
        form = widen_intermediates.rewritten(graph, wanted, backends=backends)
        return replace(form, why=f"{form.why}{_beyond(form.graph, tolerance, backends)}")
    assert tolerance is not None                                    # nothing is beyond none
    return widen_intermediates.within(graph, tolerance, backends) or as_written(graph, tolerance, backends=backends)


def _beyond(graph: Graph, tolerance: float | None, backends: Sequence[str]) -> str:
    """Return a note that a graph's predicted error is beyond the tolerance; "" where it is not."""
    if tolerance is None:
        return ""
    predicted = predicted_error(graph, backends)
    return f"; the predicted error {predicted:.1e} is beyond the tolerance {tolerance:.1e}" if predicted > tolerance else ""


def forms(graph: Graph, request: Request) -> Iterator[Intermediates]:
    """Yield the form of a prepared graph that `decide` names; with "auto" then the other one, for when the first has no path that
    may be used.

    Listing, measuring and compiling all go through this, so that they use the same graph. Raises NoPathError for a tolerance that
    no form can meet.
    """
    tolerance, backends = request.allowed, request.here
    if tolerance is not None:
        check_reach(graph, tolerance)
    decided = decide(graph, tolerance, request.intermediates, backends)
    yield decided
    if request.intermediates != "auto":
        return
    if decided.wide:
        assert tolerance is not None                                # wide by a prediction that is beyond it
        yield as_written(graph, tolerance, f"as written, since no path with wider values between the ops is within the tolerance "
                                f"{tolerance:.1e}; the predicted error {decided.predicted:.1e} is beyond it too", backends)
        return
    from tensor_graphs.choice import widen_intermediates  # as above

    if widen_intermediates.widened(graph) is not graph:
        why = "since no path is accurate enough as the graph is written"
        yield widen_intermediates.rewritten(graph, why=why, backends=backends)
