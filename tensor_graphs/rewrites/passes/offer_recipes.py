"""offer_recipes: a graph with a part wherever rules give an equivalent of a piece; the equivalents are the part's recipes.

    result = reword(graph)
    result.graph                # unchanged, but for a part wherever an equivalent may be cheaper
    result.note                 # "18 linear_linear_linear_4f0c11: recipe join/three 5d1e…"

A part's definition is the original piece, so expanding it gives the graph back; equal pieces are equal parts. Cost chooses later.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, PartRecipe, known_when_bound, over, part_between
from tensor_graphs.language.errors import written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, walk
from tensor_graphs.rewrites.candidate import Offer
from tensor_graphs.rewrites.find_recipes import BRIEF, in_order_of_use, offers
from tensor_graphs.rewrites.passes.result import PassResult, count_parts
from tensor_graphs.rewrites.recipe_rows import RecipeRows
from tensor_graphs.rewrites.rule import Rewrite
from tensor_graphs.rewrites.saturate import Budget
from tensor_graphs.rewrites.subgraphs import fed

log = logging.getLogger(__name__)


def reword(graph: Graph, images: Mapping[Node, Node] | None = None, *, rules: Sequence[Rewrite] | None = None,
           budget: Budget = BRIEF, rows: RecipeRows | None = None) -> PassResult:
    """Return the graph with a part for each offer that `offers` finds (see `stating`)."""
    return stating(graph, offers(graph, rules, budget, None if rules else rows), images)


def stating(graph: Graph, pieces: Sequence[Offer], images: Mapping[Node, Node] | None = None) -> PassResult:
    """Return the graph with a part for each offer. Numeric class: bitwise; what runs is chosen later. images: node -> node with
    other parts (rewrites/find_parts.py), which are kept inside of and around the new parts."""
    there = images or {}
    roots = [there.get(r, r) for r in graph.roots]
    while pieces:
        try:
            return formed(graph, pieces, there, roots)
        except _Circle as e:                                        # two parts, each with an operand of the other
            pieces = [o for o in pieces if o is not e.offer]
    return PassResult(graph.with_roots(roots), there)


class _Circle(Exception):
    def __init__(self, offer: Offer) -> None:
        super().__init__()
        self.offer = offer


def formed(graph: Graph, pieces: Sequence[Offer], images: Mapping[Node, Node], roots: Sequence[Node]) -> PassResult:
    """Return the graph with the offers as parts. Raises _Circle for an offer that would form a cycle with another one."""
    home = {images.get(o, o): offer for offer in pieces for o in offer.outputs}
    order = walk(roots)
    bound, live = known_when_bound(order), fed(order)
    nodes: dict[Node, Node] = {}
    parts: dict[Offer, tuple[Node, ...]] = {}
    counts: Counter[PartOp] = Counter()
    ops: dict[str, PartOp] = {}
    pending: dict[Offer, tuple[PartOp | None, list[Node]]] = {}
    """For offers whose operands are not built yet: the part (None: the equivalent replaces the piece) and its operands"""

    def put(node: Node) -> Node:
        stack = [node]
        while stack:
            n = stack[-1]
            if n in nodes:
                stack.pop()
                continue
            offer = home.get(n)
            if offer is None:
                missing = [i for i in n.inputs if i not in nodes]
                if missing:
                    stack += missing
                    continue
                inputs = [nodes[i] for i in n.inputs]
                with written_at(n.location):
                    nodes[n] = n if all(a is b for a, b in zip(inputs, n.inputs, strict=True)) else apply(n.op, inputs, n.attrs)
                continue
            if offer not in parts:
                begun = offer in pending
                if not begun:
                    pending[offer] = form(offer)
                op, operands = pending[offer]
                missing = [i for i in operands if i not in nodes]
                if missing:
                    if begun:                                       # one of them is made of it
                        raise _Circle(offer)
                    stack += reversed(missing)
                    continue
                del pending[offer]
                parts[offer] = apply_part(offer, op, [nodes[i] for i in operands])
            for o, part in zip(offer.outputs, parts[offer], strict=True):
                nodes[images.get(o, o)] = part
        return nodes[node]

    def form(offer: Offer) -> tuple[PartOp | None, list[Node]]:
        if offer.stands:
            return None, list(offer.operands)
        inside = {images.get(n, n) for n in offer.inside}
        outputs = [images.get(o, o) for o in offer.outputs]
        operand_of = {images.get(o, o): o for o in offer.operands}
        operands = {i for n in offer.inside for i in images.get(n, n).inputs if i not in inside and i in live} | set(operand_of)
        ordered = in_order_of_use([outputs, *(other.outputs for other in offer.others)], operands, operand_of)
        recipes = []
        for other in offer.others:
            written = part_between(other.outputs, [operand_of.get(o, o) for o in ordered])
            recipes.append(PartRecipe(written, other.rules, other.derivation, other.numeric_class))
        op = part_between(outputs, ordered, recipes=recipes, bound=[i for i, o in enumerate(ordered) if o in bound], alone=True)
        key = "|".join([op.key, *(r.name for r in recipes), str(sorted(op.bound))])
        return ops.setdefault(key, op), ordered

    def apply_part(offer: Offer, op: PartOp | None, operands: Sequence[Node]) -> tuple[Node, ...]:
        if op is None:
            return tuple(over(offer.others[0].outputs, offer.operands, operands))
        with written_at(images.get(offer.outputs[0], offer.outputs[0]).location):
            node = apply(op, operands, op.attrs)
        counts[op] += 1
        return tuple(leaves.item(node, i) for i in range(len(offer.outputs)))

    whole = graph.with_roots([put(r) for r in roots])
    log.info("reworded %s", {op.name: count for op, count in counts.items()})
    now = {n: put(images.get(n, n)) for n in graph.nodes}
    return PassResult(whole, {n: image for n, image in now.items() if image is not n}, note=count_parts(counts))
