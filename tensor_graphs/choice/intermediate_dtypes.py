"""intermediate_dtypes: the float dtype of values between ops: as written, or for an accuracy the narrowest within it.

Without a tolerance a graph runs as written (decision 0099). With one, forms are tried from the fastest to the widest: products of
bf16, as written, float32, float64 between ops (widen_intermediates.py). A form whose error is far beyond the tolerance when each
value is rounded to its dtype is left out; the plans of the others are measured (measured_accuracy.py), and the first one within the
tolerance is the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensor_graphs.choice.graph_forms import NARROWER, REWRITTEN, WIDER, Intermediates
from tensor_graphs.choice.request import Request, Wanted
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.graph import Graph
from tensor_graphs.phase_times import phase

WANTED: tuple[Wanted, ...] = ("auto", "as_written", *REWRITTEN)

LEAST_NARROW = 1e-4
"""tolerance below which products of bf16 are not tried: rounding to it costs 2e-3"""

FOR_ACCURACY = "for the accuracy that was asked for"


class IntermediatesError(TensorGraphsError):
    """The requested dtype of intermediates is not one of WANTED."""


def as_written(graph: Graph) -> Intermediates:
    """Return the graph unchanged."""
    return Intermediates(graph, False, "as written, nothing narrower than the graph says")


@phase("prepare")
def requested(graph: Graph, wanted: Wanted, backends: Sequence[str] = ()) -> Intermediates:
    """Return the form that a word of WANTED means. Raises IntermediatesError for any other word."""
    if wanted not in WANTED:
        raise IntermediatesError(f"intermediates are {wanted!r}\n  fix: one of {', '.join(WANTED)}")
    if wanted in ("auto", "as_written"):
        return as_written(graph)
    from tensor_graphs.choice import widen_intermediates  # a door: most graphs run as written

    return widen_intermediates.rewritten(graph, wanted, backends=backends)


def forms(graph: Graph, request: Request) -> Iterator[Intermediates]:
    """Yield the forms of a prepared graph that may be compiled, the first choice first; a later one is for when the earlier ones
    have no path that may be used, or are less accurate than asked. Listing, measuring and compiling all use it, so that they
    use the same graph.
    """
    if request.intermediates == "auto" and request.accuracy.terms:
        yield from _promising(graph, request)
        return
    yield requested(graph, request.intermediates, request.here)
    if request.intermediates == "auto":
        from tensor_graphs.choice import widen_intermediates  # as above

        if widen_intermediates.widened(graph) is not graph:
            why = "since no kernels compute the graph as written"
            yield widen_intermediates.rewritten(graph, why=why, backends=request.here)


def _promising(graph: Graph, request: Request) -> Iterator[Intermediates]:
    """Yield the forms whose error may be as small as asked, by evaluating them with each value rounded; the widest one always."""
    from tensor_graphs.choice.measured_accuracy import measured_accuracy  # a door: what is as written needs no oracle

    accuracy, tried, widest = measured_accuracy(request), list[Graph](), None
    for form in _fastest_first(graph, request):                     # a wider one is built only once it is needed
        if form.graph not in tried:
            tried.append(form.graph)
            widest = form if not accuracy.promises(form.graph) else None
            if widest is None:
                yield form
    if widest is not None:
        yield widest


def _fastest_first(graph: Graph, request: Request) -> Iterator[Intermediates]:
    """Yield the forms of a graph in the order of their speed: the less wide their values are, the less they move. A wider form in
    which pieces that users' kernels compute are as written comes before the one without."""
    from tensor_graphs.choice import widen_intermediates  # as above

    allowed, here = request.allowed, request.here
    products, wider = (widen_intermediates.widened(graph, word) for word in (NARROWER, WIDER[0]))
    narrow = (allowed is None or allowed >= LEAST_NARROW) and products != wider
    if narrow and wider is graph:
        yield widen_intermediates.rewritten(graph, NARROWER, FOR_ACCURACY, here)
    yield as_written(graph)
    if narrow and wider is not graph:
        yield widen_intermediates.rewritten(graph, NARROWER, FOR_ACCURACY, here)
    for word in WIDER:
        if widen_intermediates.widened(graph, word) is not graph:
            pieces = frozenset(widen_intermediates.own_pieces(graph, word, here))
            if pieces:
                yield widen_intermediates.rewritten(graph, word, FOR_ACCURACY, here, pieces)
            yield widen_intermediates.rewritten(graph, word, FOR_ACCURACY, here)
