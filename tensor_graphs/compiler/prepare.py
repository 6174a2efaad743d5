"""prepare: the graph that is compiled in place of the one that was written: the same bits, said in what kernels compute.

Composites are recognised in atomic ops (rewrites/recognise.py), and small graphs are simplified (rewrites/simplify.py). Both are
bitwise, so tolerances and predictions mean what they meant; a graph that gets no fewer steps stays the very graph that it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tensor_graphs.language.graph import Graph
from tensor_graphs.rewrites.recognise import may_hold_more, recognise
from tensor_graphs.rewrites.simplify import simplify

SMALL = 64
"""Nodes of a graph that is simplified by an e-graph before it is compiled."""


@dataclass(frozen=True)
class Prepared:
    """The graph to compile, and what was done to the written one, for people ("" where nothing was)."""

    graph: Graph
    note: str = ""


_made: WeakKeyDictionary[Graph, Prepared | None] = WeakKeyDictionary()


def prepare(graph: Graph, wanted: bool = True) -> Prepared:
    """The graph to compile. wanted: False to have the one that is written.

    Whoever lists, measures or compiles goes through this, so that all three speak of the same graph.
    """
    if not wanted:
        return Prepared(graph)
    if graph not in _made:
        made = _prepared(graph)
        _made[graph] = None if made.graph is graph else made        # a value that holds its key would keep it for ever
    return _made[graph] or Prepared(graph)


def _leaves(graph: Graph) -> list[set[str]]:
    return [set(group) for group in (graph.inputs, graph.parameters, graph.states, graph.dims)]


def _prepared(graph: Graph) -> Prepared:
    from tensor_graphs.rewrites.rules import SHRINKING

    if not may_hold_more(graph):
        return Prepared(graph)
    found = recognise(graph)
    notes = [f"recognised: {found.show()}"] if found.graph is not graph else []
    made = found.graph
    if len(made.nodes) <= SMALL:                                    # an e-graph of more takes longer than it spares
        made = simplify(found.graph, rules=SHRINKING)
        if _leaves(made) != _leaves(graph):                         # who runs it gives all that the written graph asks for
            made = found.graph
        if made is not found.graph:
            notes.append(f"simplified: {len(found.graph.nodes)} nodes became {len(made.nodes)}")
    return Prepared(made, "; ".join(notes))
