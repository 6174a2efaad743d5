"""forms: lists the forms of a graph that a request allows (meaning/precision.py defines forms). Without a tolerance and without
words for the precision, a graph is compiled as written (decision 0099)."""

from __future__ import annotations

from collections.abc import Iterator

from tensor_graphs.choice.graph_forms import GraphForm, as_written
from tensor_graphs.choice.request import Request
from tensor_graphs.language.graph import Graph


def forms(graph: Graph, request: Request) -> Iterator[GraphForm]:
    """Yield the different forms of a prepared graph in the order in which they are tried: a form is used if no earlier one has a
    path that may be used and is as accurate as requested. Listing, measuring and compiling all call this function, so they use the
    same graph. Raises ArgumentError for words of the request that name no site of the graph."""
    words = request.words
    if not (words or request.accuracy.terms):
        yield as_written(graph)
    from tensor_graphs.choice.precision_forms import WIDE, formed, own_pieces, promising  # doors: most graphs run as written
    from tensor_graphs.rewrites.passes.apply_precision import check_sites

    check_sites(words, graph, own_pieces(graph, request.here))
    if request.accuracy.terms:
        seen = set[Graph]()                                         # words of the request replace others, so forms may be the same
        for form in promising(graph, request):
            if form.graph not in seen:
                seen.add(form.graph)
                yield form
    elif words:
        yield formed(graph, words, "asked for", request.here)
    else:
        wide = formed(graph, WIDE, "since no kernels compute the graph as written", request.here)
        if wide.words:
            yield wide
