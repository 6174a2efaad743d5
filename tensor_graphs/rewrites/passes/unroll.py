"""unroll: a loop with a known, small number of iterations that may also run as separate iterations, one after another.

This is for devices whose backends have no kernel that runs the loop. The loop becomes a part (anonymous_composite.py) whose
definition is the loop itself, so predicted errors and forms are those of the loop. The unrolled steps are its
recipe; cost decides which of the two runs. Each step takes its slices; the results are stacked at the end.

The step is prepared once, as a separate graph, so all iterations hold the same parts and are measured once; nothing is fused across
two iterations. The sum over the iterations is not judged together: each kernel is compared alone, as in a hand-unrolled graph.

Loops that carry the same values over the same operands are first joined: the gradient of a scan repeats the scan, to recompute the
values at the start of each iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, PartRecipe, between, known_when_bound, name_of, over
from tensor_graphs.language.composite import Definition, definition_digest
from tensor_graphs.language.composites.scan import SCAN, length
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, rebuild
from tensor_graphs.language.subgraph import Body, Turns
from tensor_graphs.rewrites.passes.result import PassResult, count_parts
from tensor_graphs.rewrites.rule import BITWISE

MOST_NODES, MOST_IN_ALL = 1 << 13, 1 << 15
"""Largest numbers of nodes of an unrolled loop (slices and stacked rows count), and of all unrolled loops of a graph: 1000
iterations of a plain recurrence, 400 of a cell with four gates, 100 of its gradient. Choosing kernels takes as long as for one
iteration; laying out memory does not: 6 s for 3000 calls. A graph of 2^16 nodes is never written out (language/composite.py)."""

IN_ALL = f"its turns are not written out, as those of all loops of the graph come to more than {MOST_IN_ALL} nodes"

RULE = "scan/turns"


def unroll(graph: Graph, wanted: Callable[[Node], bool], prepared: Callable[[Graph], Graph] = lambda step: step) -> PassResult:
    """Return the graph with a part in place of each wanted loop that `why_whole` does not refuse, in order, up to MOST_IN_ALL
    nodes. Numeric class: bitwise (each iteration has the step's ops, in the loop's order); what runs is chosen later.

    Before: well typed. After: well typed, same outputs; the very same graph if no loop is wanted. prepared: prepares the step,
    given as a graph; its parameters are operands that are equal in all iterations and known when the entire graph is bound.
    """
    loops, total = list[Node](), 0
    for n in (n for n in graph.nodes if n.op is SCAN):
        operands = [i.type for i in n.inputs]
        if why_whole(operands, n.attrs) is None and wanted(n):
            total += d.evaluate(length(operands, n.attrs), {}) * _nodes(n.attrs)
            loops += [n] if total <= MOST_IN_ALL else []
    if not loops:
        return PassResult(graph)
    bound_nodes = known_when_bound(graph.nodes)
    parts: dict[Any, PartOp] = {}
    places: dict[Node, tuple[PartOp, Mapping[int, int]]] = {}
    for loop, body, place in _joined(graph, loops):
        attrs, bound = {**loop.attrs, "step": body}, [i for i, x in enumerate(loop.inputs) if x in bound_nodes]
        types = tuple(i.type for i in loop.inputs)
        key = types, tuple(bound), body, loop.attrs["carries"], loop.attrs["slices"], loop.attrs["reverse"]
        if key not in parts:
            parts[key] = _part(types, attrs, bound, prepared)
        places[loop] = parts[key], place

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node in places:
            part, place = places[node]
            new = apply(part, inputs, part.attrs)
            return leaves.item(new, place[0]) if len(node.types) == 1 else new
        if node.op is leaves.ITEM and node.inputs[0] in places:
            return leaves.item(inputs[0], places[node.inputs[0]][1][node.attrs["index"]])
        return None

    new = dict(zip(graph.nodes, rebuild(graph.nodes, replaced), strict=True))
    images = {n: m for n, m in new.items() if n is not m and len(n.types) == 1}
    whole = graph.with_roots([new[r] for r in graph.roots])
    counts = Counter(part for n in whole.nodes for part in parts.values() if n.op is part)
    return PassResult(whole, images, note=count_parts(counts))


def why_whole(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> str | None:
    """Return why a loop is not unrolled, for people; None if it is."""
    count, nodes = length(types, attrs), _nodes(attrs)
    if not isinstance(count, int):
        return f"its turns are not written out, as their number is {d.format_dim(count)}"
    if count * nodes > MOST_NODES:
        return f"its {count} turns of {nodes} nodes are not written out; up to {MOST_NODES // nodes} such turns are"
    return None


def _nodes(attrs: Mapping[str, Any]) -> int:
    """Return the number of nodes of one iteration."""
    step = attrs["step"]
    return len(between(step.outputs, step.arguments)) + 2 * attrs["slices"] + len(step.outputs) - attrs["carries"]


def _joined(graph: Graph, loops: Sequence[Node]) -> Iterator[tuple[Node, Body, dict[int, int]]]:
    """Yield for each loop: the loop, the step of a joined loop that replaces all loops with the same carries over the same
    operands, and for each of its outputs the index of that step's output. Outputs that nothing reads are left out."""
    read = {(n.inputs[0], n.attrs["index"]) for n in graph.nodes if n.op is leaves.ITEM}
    read |= {(n, 0) for n in loops if len(n.types) == 1}
    groups: dict[Any, list[Node]] = {}
    for n in loops:
        turns, count = Turns(n.inputs, n.attrs), n.attrs["carries"]
        same = n.inputs, count, n.attrs["slices"], turns.reverse, turns.step.arguments, turns.step.outputs[:count]
        groups.setdefault(same, []).append(n)
    for (_, count, _, _, arguments, carries), group in groups.items():
        read_outputs = {n: {k: o for k, o in enumerate(n.attrs["step"].outputs) if k >= count and (n, k) in read} for n in group}
        others = list(dict.fromkeys(o for numbered in read_outputs.values() for o in numbered.values()))
        body = Body(arguments, (*carries, *others))
        for n in group:
            yield n, body, {**{k: k for k in range(count)}, **{k: count + others.index(o) for k, o in read_outputs[n].items()}}


def _part(types: Sequence[TensorType], attrs: Mapping[str, Any], bound: Collection[int],
          prepared: Callable[[Graph], Graph]) -> PartOp:
    """Return the loop as a part, with the unrolled iterations as its recipe."""
    arguments = [leaves.argument(i, t) for i, t in enumerate(types)]
    loop = apply(SCAN, arguments, attrs)
    outputs = [leaves.item(loop, i) for i in range(len(loop.types))]
    turns = SCAN.in_turns(types, attrs, _step(attrs["step"], bound, attrs["carries"] + attrs["slices"], prepared))
    written = PartOp(name_of(turns.outputs, turns.digest), arguments, turns.outputs, bound=bound, alone=True)
    recipe = PartRecipe(written, (RULE,), f"{RULE}: {length(types, attrs)} turns, one after another", BITWISE)
    # The name holds the digest of the turns: where steps are prepared otherwise the graph has another key, so a saved path of the
    # one is never taken for a path of the other.
    return PartOp(name_of(outputs, turns.digest), arguments, outputs, recipes=[recipe], bound=bound, alone=True)


def _step(body: Body, bound: Collection[int], changing: int, prepared: Callable[[Graph], Graph]) -> Definition:
    """Return the prepared step over its original arguments. bound: operands known when the graph is bound. changing: the number of
    carries and slices, which come first."""
    operands = [(leaves.parameter if i >= changing and i in bound else leaves.input)(f"x{i}", t.shape, t.dtype)
             for i, t in enumerate(body.types)]
    graph = prepared(make_graph(over(body.outputs, body.arguments, operands)))
    outputs = over(list(graph.outputs.values()), operands, body.arguments)
    return Definition(body.arguments, outputs, definition_digest(outputs))
