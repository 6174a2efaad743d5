"""prepare: the graph that is compiled in place of the one that was written: the same bits, said in what kernels compute.

Composites are recognised in atomic ops (rewrites/recognise.py), and small graphs are simplified (rewrites/simplify.py); what then
computes the same as a part for which a kernel is registered becomes one node (rewrites/parts.py), and so does what rules can say
otherwise (rewrites/reword.py). All are bitwise, so tolerances and predictions mean what they meant; a graph that gets no fewer
steps stays the very graph that it was. Whether a kernel of a part, or a recipe, runs is chosen by price.
A copy to the device that everything is on is its source; rewriting knows values and no devices.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tensor_graphs.devices.known import HOST, devices
from tensor_graphs.kernels.registry import parts
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import MOST_WRITTEN_OUT, TooManyNodesError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.language.part import PartOp
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.parts import form
from tensor_graphs.rewrites.recipe_rows import RecipeRows
from tensor_graphs.rewrites.recognise import may_hold_more, recognise, with_roots
from tensor_graphs.rewrites.reword import Reworded, reword
from tensor_graphs.rewrites.simplify import simplify

SMALL = 64
"""Nodes of a graph that is simplified by an e-graph before it is compiled."""


@dataclass(frozen=True)
class Prepared:
    """The graph to compile, and what was done to the written one, for people ("" where nothing was). parts: those formed.
    images: what a node of the graph without parts has become, where that is another one."""

    graph: Graph
    note: str = ""
    parts: str = ""
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False, compare=False)


_made: WeakKeyDictionary[Graph, Prepared | None] = WeakKeyDictionary()
_formed: WeakKeyDictionary[Graph, dict[Hashable, tuple[tuple[PartOp, ...], Prepared | None]]] = WeakKeyDictionary()
"""by where recipes were looked for: with the parts that were; None where the graph holds none of them"""


def prepare(graph: Graph, wanted: bool = True, *, recipes: Database | bool = True) -> Prepared:
    """The graph to compile. wanted: False to have the one that is written. recipes: whether pieces may be said otherwise; a
    database, so that what was found is read from its rows and put there.

    Whoever lists, measures or compiles goes through this, so that all three speak of the same graph.
    """
    if not wanted:
        return Prepared(graph)
    if graph not in _made:
        made = _prepared(graph)
        _made[graph] = None if made.graph is graph else made        # a value that holds its key would keep it for ever
    return _with_parts(_made[graph] or Prepared(graph), recipes)


def _with_parts(prepared: Prepared, recipes: Database | bool) -> Prepared:
    """With the parts for which there are kernels now, and those that can be said otherwise."""
    wanted, formed = parts(), _formed.setdefault(prepared.graph, {})
    # a database in memory is itself and no other one of its name
    where: Hashable = recipes if isinstance(recipes, bool) or recipes.location == ":memory:" else recipes.location
    known = formed.get(where)
    if recipes is True:                                             # found for a database, they are the same
        known = next((each for key, each in formed.items() if key is not False and each[0] == wanted), known)
    if known is None or known[0] != wanted:
        rows = None if isinstance(recipes, bool) else RecipeRows(recipes)
        found = form(prepared.graph, wanted)
        made = Reworded(found.graph, images=found.images) if recipes is False else reword(prepared.graph, found.images, rows=rows)
        said = [*(rows.notes if rows is not None else []),
                *([f"parts: {found.show()}"] if found.places else []), *([f"recipes: {made.show()}"] if made.parts else [])]
        note = "; ".join([*([prepared.note] if prepared.note else []), *said])
        known = formed[where] = wanted, Prepared(made.graph, note, "\n".join(said), made.images) if said else None
    return known[1] or prepared


def _leaves(graph: Graph) -> list[set[str]]:
    return [set(group) for group in (graph.inputs, graph.parameters, graph.states, graph.dims)]


def _without_copies(graph: Graph) -> Graph:
    """The graph without copies to the one device there is; one with copies to others stays as it is."""
    copies = [node for node in graph.nodes if node.op is leaves.COPY_TO]
    if not copies or len(devices()) > 1 or any(node.attrs["device"] != HOST.name for node in copies):
        return graph

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return inputs[0] if node.op is leaves.COPY_TO else None

    return with_roots(graph, rebuild(graph.roots, replaced))


def _prepared(written: Graph) -> Prepared:
    from tensor_graphs.rewrites.rules import SHRINKING

    graph = _without_copies(written)
    notes = [] if graph is written else [f"copies to {HOST.name} left out: everything is there"]
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
