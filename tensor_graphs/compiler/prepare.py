"""prepare: the graph that is compiled in place of the one that was written: the same bits, said in what kernels compute.

Composites are recognised in atomic ops (rewrites/recognise.py), and small graphs are simplified (rewrites/simplify.py); what then
computes the same as a part for which a kernel is registered becomes one node (rewrites/parts.py). All are bitwise, so tolerances
and predictions mean what they meant; a graph that gets no fewer steps stays the very graph that it was.
A copy to the device that everything is on is its source; rewriting knows values and no devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tensor_graphs.kernels.registry import parts
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import MOST_WRITTEN_OUT, TooManyNodesError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.language.part import PartOp
from tensor_graphs.paths.lower import HERE
from tensor_graphs.rewrites.parts import form
from tensor_graphs.rewrites.recognise import may_hold_more, recognise, with_roots
from tensor_graphs.rewrites.simplify import simplify

SMALL = 64
"""Nodes of a graph that is simplified by an e-graph before it is compiled."""


@dataclass(frozen=True)
class Prepared:
    """The graph to compile, and what was done to the written one, for people ("" where nothing was). parts: those formed."""

    graph: Graph
    note: str = ""
    parts: str = ""


_made: WeakKeyDictionary[Graph, Prepared | None] = WeakKeyDictionary()
_formed: WeakKeyDictionary[Graph, tuple[tuple[PartOp, ...], Prepared | None]] = WeakKeyDictionary()
"""with the parts that were looked for; None where the graph holds none of them"""


def prepare(graph: Graph, wanted: bool = True) -> Prepared:
    """The graph to compile. wanted: False to have the one that is written.

    Whoever lists, measures or compiles goes through this, so that all three speak of the same graph.
    """
    if not wanted:
        return Prepared(graph)
    if graph not in _made:
        made = _prepared(graph)
        _made[graph] = None if made.graph is graph else made        # a value that holds its key would keep it for ever
    return _with_parts(_made[graph] or Prepared(graph))


def _with_parts(prepared: Prepared) -> Prepared:
    """With the parts for which there are kernels now."""
    wanted = parts()
    if not wanted:
        return prepared
    known = _formed.get(prepared.graph)
    if known is None or known[0] != wanted:
        found = form(prepared.graph, wanted)
        said = f"parts: {found.show()}"
        note = "; ".join([*([prepared.note] if prepared.note else []), said])
        known = _formed[prepared.graph] = wanted, Prepared(found.graph, note, said) if found.places else None
    return known[1] or prepared


def _leaves(graph: Graph) -> list[set[str]]:
    return [set(group) for group in (graph.inputs, graph.parameters, graph.states, graph.dims)]


def _without_copies(graph: Graph) -> Graph:
    """The graph without copies to the one device there is; one with copies to another stays as it is (lowering refuses it)."""
    copies = [node for node in graph.nodes if node.op is leaves.COPY_TO]
    if not copies or any(node.attrs["device"] != HERE for node in copies):
        return graph

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return inputs[0] if node.op is leaves.COPY_TO else None

    return with_roots(graph, rebuild(graph.roots, replaced))


def _prepared(written: Graph) -> Prepared:
    from tensor_graphs.rewrites.rules import SHRINKING

    graph = _without_copies(written)
    notes = [] if graph is written else [f"copies to {HERE} left out: everything is there"]
    if any(node.op is leaves.COPY_TO for node in graph.nodes) or not may_hold_more(graph):
        return Prepared(graph, "; ".join(notes))
    try:
        found = recognise(graph)
    except TooManyNodesError:
        return Prepared(graph, "; ".join([*notes, f"not recognised: it is more than {MOST_WRITTEN_OUT} nodes in atomic ops"]))
    notes += [f"recognised: {found.show()}"] if found.graph is not graph else []
    made = found.graph
    if len(made.nodes) <= SMALL:                                    # an e-graph of more takes longer than it spares
        made = simplify(found.graph, rules=SHRINKING)
        if _leaves(made) != _leaves(graph):                         # who runs it gives all that the written graph asks for
            made = found.graph
        if made is not found.graph:
            notes.append(f"simplified: {len(found.graph.nodes)} nodes became {len(made.nodes)}")
    return Prepared(made, "; ".join(notes))
