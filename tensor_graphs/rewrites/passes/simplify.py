"""simplify: reduction of a graph to the fewest steps that bitwise rules find."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.language.graph import Graph
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import Extractor, add_graph, paid_nodes
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.rule import BITWISE, Rewrite
from tensor_graphs.rewrites.saturate import USUAL, Budget, saturate


def simplify(graph: Graph, budget: Budget = USUAL, rules: Sequence[Rewrite] | None = None) -> PassResult:
    """Return a graph of the same function, bit by bit, with the fewest run-time steps that were found. Numeric class: bitwise.

    Before: well typed. After: well typed; the same names and types, no new inputs; never more paid nodes (extract.paid_nodes), and
    the very same graph if it gets no smaller. Common sub-expressions and dead code need no rule: equal nodes are one node, and
    nodes that no output needs are not extracted. rules: by default rules.SIMPLIFYING.

    >>> import tensor_graphs as tg
    >>> x = tg.input("x", (2, 3))
    >>> simplify(tg.graph(tg.permute(tg.neg(tg.neg(x)), (1, 0)).T)).graph.outputs["out"] is x
    True
    """
    from tensor_graphs.rewrites.rules import SIMPLIFYING

    e = EGraph()
    outputs, updates = add_graph(e, graph)
    terms = {n: e.add(n) for n in graph.nodes if len(n.types) == 1}
    done = saturate(e, SIMPLIFYING if rules is None else rules, budget, (BITWISE,))
    view = done.views[BITWISE]
    extractor = Extractor(view, outputs, updates)
    choice = extractor.best()
    home = {n: view.find(term) for n, term in terms.items()}
    nodes = extractor.nodes(choice, {home[n]: n.location for n in reversed(home) if n.location is not None})
    smaller = extractor.graph(choice, nodes)
    before, after = (paid_nodes(graph), len(graph.nodes)), (paid_nodes(smaller), len(smaller.nodes))
    if after >= before:
        return PassResult(graph)
    images = {n: nodes[c] for n, c in home.items() if c in nodes and nodes[c] is not n}
    return PassResult(smaller, images, note=f"simplified: {before[1]} nodes became {after[1]}")
