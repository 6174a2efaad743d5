"""prepare: the graph that is compiled in place of the written one. It computes the same bits, in ops that kernels compute.

Composites are recognised in atomic ops (rewrites/passes/recognise.py), and small graphs are simplified (simplify.py there). Some
subgraphs become one node, a part: those that a registered kernel computes (rewrites/find_parts.py), those that rules can rewrite
(rewrites/find_recipes.py), and loops for which a device has no kernel (unroll.py). All steps are bitwise, so tolerances and
predictions stay valid; a graph that gets no fewer steps stays the same object. Costs decide whether a part's kernel or recipe (a
graph that means the same) runs. rewriting.py does the work. It imports all rewriting code and is loaded only for a graph that was
not prepared before: a stored plan does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from weakref import WeakKeyDictionary

from tensor_graphs.choice.border_copies import Interior, interior
from tensor_graphs.choice.graph_forms import PreparedGraph as PreparedGraph
from tensor_graphs.devices.device_registry import devices
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, generators, parts
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import is_loop
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.lower import device_asked
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites import user_rules

_interiors: WeakKeyDictionary[Graph, Interior | None] = WeakKeyDictionary()
_recognised: WeakKeyDictionary[Graph, PreparedGraph | None] = WeakKeyDictionary()
Formed = tuple[tuple[tuple[PartOp, ...], str], Callable[[Collection[str]], PreparedGraph] | None]
_formed: WeakKeyDictionary[Graph, dict[tuple[Hashable, Sequence[str], Sequence[str]], Formed]] = WeakKeyDictionary()
"""graph -> (source of recipes, whether steps were joined, backends if it has loops) -> the parts and the digest of user-registered
rules then searched for, and the function that builds the prepared graph (None where the graph contains none of them)"""


def prepare(graph: Graph, wanted: bool = True, *, recipes: Database | bool = True,
            backends: Sequence[str] = DEFAULT_BACKENDS) -> PreparedGraph:
    """Return the graph to compile. wanted: False for the written graph, changed only in loops for which a device has no kernel.
    recipes: whether rules may rewrite pieces; a database to read recipes from its rows and store them there. backends: those that
    may be used; with one that generates kernels for any piece (`gen`) neighbouring steps become parts.

    Listing, measuring and compiling all call this, so that they use one graph. Raises PlanError for a device that is not
    present."""
    for node in (n for n in graph.nodes if n.op is leaves.COPY_TO):
        device_asked(node)
    if not wanted:
        return _as_written(graph, backends)
    if len(devices()) > 1 and graph not in _interiors:              # on one device a copy is its source
        _interiors[graph] = interior(graph)
    between = _interiors.get(graph)
    if between is None:
        return _prepared(graph, recipes, backends)
    prepared = _prepared(between.graph, recipes, backends)
    return PreparedGraph(graph) if prepared.graph is between.graph else between.restored(prepared)


def _prepared(graph: Graph, recipes: Database | bool, backends: Sequence[str]) -> PreparedGraph:
    if graph not in _recognised:
        from tensor_graphs.choice.rewriting import said_in_composites

        recognised = said_in_composites(graph)
        _recognised[graph] = None if recognised.graph is graph else recognised  # a value that holds its key would keep it for ever
    return _with_parts(_recognised[graph] or PreparedGraph(graph), recipes, generators(backends), backends)


def _as_written(graph: Graph, backends: Sequence[str]) -> PreparedGraph:
    if not any(is_loop(n.op) for n in graph.nodes):
        return PreparedGraph(graph)
    from tensor_graphs.choice.rewriting import said_in_turns

    return said_in_turns(graph, backends)


def _with_parts(prepared: PreparedGraph, recipes: Database | bool, fused: Sequence[str], backends: Sequence[str]) -> PreparedGraph:
    """Add the parts that have kernels now, and those that rules can rewrite."""
    wanted = parts()
    looked_for, formed = (wanted, user_rules.digest()), _formed.setdefault(prepared.graph, {})
    # a database in memory is itself and no other one of its name
    source: Hashable = recipes if isinstance(recipes, bool) or recipes.location == ":memory:" else recipes.location
    loops = tuple(backends) if any(is_loop(n.op) for n in prepared.graph.nodes) else ()
    where = source, fused, loops
    stored = formed.get(where)
    if recipes is True:                                             # found for a database, they are the same
        stored = next((entry for key, entry in formed.items()
                      if key[0] is not False and key[1:] == where[1:] and entry[0] == looked_for), stored)
    if stored is None or stored[0] != looked_for:
        from tensor_graphs.choice.rewriting import said_in_parts

        stored = formed[where] = looked_for, said_in_parts(prepared, wanted, recipes, fused, backends)
    return prepared if stored[1] is None else stored[1](backends)
