"""rewriting: rewrite a graph in ops that kernels compute: recognise composites, form parts, find recipes (graphs that mean the
same).

A copy to the only device is replaced by its source, because rewriting handles values and no devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tensor_graphs.choice.graph_forms import PreparedGraph, following
from tensor_graphs.devices.device_registry import HOST, devices
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.registry import generators, kernels_of_graphs, parts
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.composite import MOST_WRITTEN_OUT, TooManyNodesError
from tensor_graphs.language.composites.blocks import block_linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.records.database import Database
from tensor_graphs.rewrites.find_parts import form
from tensor_graphs.rewrites.find_recipes import offers
from tensor_graphs.rewrites.merge_alternatives import both
from tensor_graphs.rewrites.passes.fuse import fuse
from tensor_graphs.rewrites.passes.offer_recipes import stating
from tensor_graphs.rewrites.passes.read_blocks import read_blocks
from tensor_graphs.rewrites.passes.recognise import may_hold_more, recognise
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.passes.simplify import simplify
from tensor_graphs.rewrites.passes.unroll import unroll
from tensor_graphs.rewrites.proved_composites import beside, offers_of_composites
from tensor_graphs.rewrites.recipe_rows import RecipeRows
from tensor_graphs.rewrites.rules import SHRINKING
from tensor_graphs.rewrites.user_rules import user_rules

SMALL = 64
"""most nodes of a graph that an e-graph simplifies before it is compiled"""


def said_in_parts(prepared: PreparedGraph, wanted: tuple[PartOp, ...], recipes: Database | bool, fused: Sequence[str],
                  backends: Sequence[str]) -> Callable[[Collection[str]], PreparedGraph] | None:
    """Form these parts, parts where recipes are found, and parts of loops for which a device of the backends has no kernel; fused:
    the generators for which neighbouring steps become parts, too. Return None where the graph contains none of these. Else return
    a function from backends to the prepared graph with its note, which names the parts with kernels of these backends."""
    rows = None if isinstance(recipes, bool) else RecipeRows(recipes)
    read = _reading_blocks(prepared.graph, backends)
    formed = form(read.graph, wanted)
    worded = _worded(read.graph, formed.images, recipes is not False, fused, rows)
    looped, images = _in_turns(worded["ways"].graph, worded["ways"].images, recipes, backends)
    images = following(following(prepared.images, read.images), images)
    before = [*(rows.notes if rows is not None else []), *([read.note] if read.note else [])]
    after = [f"{what}: {result.note}" for what, result in {**worded, "loops": looped}.items() if result.note]
    if not (before or formed.places or after):
        return None
    graph, show, first = looped.graph, formed.show if formed.places else None, prepared.note

    def told(backends: Collection[str]) -> PreparedGraph:
        lines = [*before, *([f"parts: {show(kernels_of_graphs(backends))}"] if show else []), *after]
        return PreparedGraph(graph, "; ".join([*([first] if first else []), *lines]), "\n".join(lines), images)

    return told


def said_in_turns(graph: Graph, backends: Sequence[str]) -> PreparedGraph:
    """Return the graph with the loops that `said_in_parts` would unroll, unrolled; their steps stay unchanged."""
    unrolled = unroll(graph, lambda loop: _is_lacked(loop, backends))
    note = f"loops: {unrolled.note}" if unrolled.note else ""
    return PreparedGraph(unrolled.graph, note, note, unrolled.images)


def said_anew(graph: Graph, recipes: Database | bool, fused: Sequence[str],
              backends: Sequence[str]) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph with products of blocks, and with parts where recipes are found, of neighbouring steps (fused), and of loops
    as in `said_in_parts`; and the replacements of its nodes."""
    read = _reading_blocks(graph, backends)
    ways = _worded(read.graph, {}, recipes is not False, fused, None if isinstance(recipes, bool) else RecipeRows(recipes))["ways"]
    looped, images = _in_turns(ways.graph, ways.images, recipes, backends)
    return looped.graph, following(read.images, images)


def _reading_blocks(graph: Graph, backends: Sequence[str]) -> PassResult:
    """Return the graph with products that read blocks of bytes, if a kernel of these backends does."""
    has_kernel = registry.by_op(registry.all_kernels(backends)).get(block_linear.name)
    return read_blocks(graph) if has_kernel else PassResult(graph)


def _worded(graph: Graph, places: Mapping[Node, Node], recipes: bool, fused: Sequence[str],
            rows: RecipeRows | None = None) -> dict[str, PassResult]:
    """Return the graph with parts where recipes are found, with joined steps, and ("ways") with what user-registered kernels and
    rules add. places: the replacements of its nodes by parts with registered kernels."""
    offered = offers(graph, rows=rows, of_users=False) if recipes else []
    theirs = offers(graph, rows=rows) if recipes and user_rules() else offered
    theirs = beside(theirs, offers_of_composites(graph, rows)) if recipes else theirs
    reworded = stating(graph, offered)
    joined, images = _joined(reworded, fused)
    ways = PassResult(joined.graph, images)
    if places or theirs is not offered:
        reworded = stating(graph, theirs, places)
        others, images = _joined(reworded, fused)
        ways = both(ways, PassResult(others.graph, images), graph)
    return {"recipes": reworded, "fused": joined, "ways": ways}


def _joined(reworded: PassResult, fused: Sequence[str]) -> tuple[PassResult, dict[Node, Node]]:
    """Return the graph with neighbouring steps as parts (if fused), and the replacements of the nodes of both graphs."""
    joined = fuse(reworded.graph, tiles="gencuda" in fused) if fused else PassResult(reworded.graph)
    return joined, following(reworded.images, joined.images)


def _in_turns(graph: Graph, images: Mapping[Node, Node], recipes: Database | bool,
              backends: Sequence[str]) -> tuple[PassResult, dict[Node, Node]]:
    """Return the graph with a part for each loop that can be unrolled and for which a device of these backends has no kernel, and
    the replacements of the nodes of both graphs. Steps are prepared like graphs."""
    def prepared(step: Graph) -> Graph:
        recognised = said_in_composites(step)
        with_parts = said_in_parts(recognised, parts(), recipes, generators(backends), backends)
        return (recognised if with_parts is None else with_parts(backends)).graph

    unrolled = unroll(graph, lambda loop: _is_lacked(loop, backends), prepared)
    return unrolled, following(images, unrolled.images)


def _is_lacked(loop: Node, backends: Sequence[str]) -> bool:
    """Return whether one of the devices of these backends has no kernel that runs the loop."""
    kernels = registry.matching(Spec.of(loop), registry.by_op(registry.all_kernels(backends)))
    here = [name for name in backends if registry.why_missing(name) is None]
    return bool(set(map(registry.kind_of, here)) - {registry.kind_of(k.backend) for k in kernels})


def _leaves(graph: Graph) -> list[set[str]]:
    return [set(group) for group in (graph.inputs, graph.parameters, graph.states, graph.dims)]


def _without_copies(graph: Graph) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph without copies to the only device, and the replacements of its nodes. A graph with copies to other devices
    is unchanged."""
    copies = [node for node in graph.nodes if node.op is leaves.COPY_TO]
    if not copies or len(devices()) > 1 or any(node.attrs["device"] != HOST.name for node in copies):
        return graph, {}

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        return inputs[0] if node.op is leaves.COPY_TO else None

    images = dict(zip(graph.nodes, rebuild(graph.nodes, replaced), strict=True))
    return graph.with_roots([images[r] for r in graph.roots]), {n: m for n, m in images.items() if n is not m}


def said_in_composites(written: Graph) -> PreparedGraph:
    """Return the graph with composites recognised in atomic ops, and simplified where it is small."""
    graph, images = _without_copies(written)
    notes = [] if graph is written else [f"copies to {HOST.name} left out: everything is there"]
    if any(node.op is leaves.COPY_TO for node in graph.nodes) or not may_hold_more(graph):
        return PreparedGraph(graph, "; ".join(notes), images=images)
    try:
        recognised = recognise(graph)
    except TooManyNodesError:
        why = f"not recognised: it is more than {MOST_WRITTEN_OUT} nodes in atomic ops"
        return PreparedGraph(graph, "; ".join([*notes, why]), images=images)
    notes += [f"recognised: {recognised.note}"] if recognised.graph is not graph else []
    current, images = recognised.graph, following(images, recognised.images)
    if len(current.nodes) <= SMALL:                                 # an e-graph of more takes longer than it spares
        smaller = simplify(current, rules=SHRINKING)
        if smaller.graph is not current and _leaves(smaller.graph) == _leaves(graph):  # a caller gives a value for each
            notes.append(smaller.note)
            current, images = smaller.graph, following(images, smaller.images)
    return PreparedGraph(current, "; ".join(notes), images=images)
