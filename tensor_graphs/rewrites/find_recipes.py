"""find_recipes: a search by rules for recipes (equivalent graphs) of pieces of a graph. Each such piece becomes one node, a part,
that has its equivalents as recipes.

    made = reword(graph)        # passes/offer_recipes.py
    made.graph                  # unchanged, but for a part wherever an equivalent may be cheaper
    made.note                   # "18 linear_linear_linear_4f0c11: recipe join/three 5d1e…"

A graph is saturated in one e-graph or, if it is large, region by region, each distinct region once. The graphs with the least
estimated time are extracted. Only their differences from the original count: the nodes that an extracted graph does without, closed
between operands and outputs. The part's definition is the original piece, so expanding it gives the graph back. Equal pieces become
equal parts, which are measured once. Cost decides later which recipe runs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensor_graphs.costs.predicted_error import predicted_error
from tensor_graphs.costs.roofline import BACKEND_RATES, DeviceRates, work
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import between, other_dims
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, walk
from tensor_graphs.rewrites.candidate import Offer, Other
from tensor_graphs.rewrites.egraph import EGraph, View
from tensor_graphs.rewrites.enode import ENode, Key, is_commutative
from tensor_graphs.rewrites.extract import TINY, Extractor, NodeCost, add_graph, is_paid, paid
from tensor_graphs.rewrites.graph_regions import LARGE, regions
from tensor_graphs.rewrites.provenance import RuleStep, derive, show_steps
from tensor_graphs.rewrites.recipe_rows import RecipeRows, compared
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Rewrite
from tensor_graphs.rewrites.saturate import Budget, saturate
from tensor_graphs.rewrites.subgraphs import fed
from tensor_graphs.rewrites.user_rules import digest, user_rules

log = logging.getLogger(__name__)

BRIEF = Budget(expanding_depth=1, nodes=1500, matches=500, expanding=30, seconds=math.inf)
"""Search budget of one region during a compile. It has no time limit, so a graph has the same recipes on every machine."""

SEVERAL = 4
"""Number of graphs extracted for each set of sizes."""

LARGER = 256
"""Larger of the two sizes of a dim for which graphs are extracted."""

WORTH = 1.0
"""Microseconds by which a recipe must be estimated to be cheaper than the original piece: less than one call."""

ROUNDED = 1.25
"""Factor by which a recipe's predicted error may exceed that of the original piece."""

STAYS = 0.3
"""Microseconds by which a step of the original graph is preferred: changes without a gain would hide those with one."""

TIES = 0.01
"""Weight of the smaller of a step's arithmetic and traffic times: of two graphs that take as long, the one that reads less wins."""

MOST_SAID = 64
"""Largest number of positions in one graph at which user-registered rules are offered."""

RENAMES = "composite/"
"""Prefix of rules that expand or recognise a definition. Paths do both, so a recipe by these rules alone is not offered."""


def may_be_reworded(graph: Graph, users: bool = False) -> bool:
    """Return False for a graph that is not worth a search: it has one step, no matrix product, or copies to a device. users:
    whether a user-registered rule, which may match any step, is among the rules."""
    if any(n.op is leaves.COPY_TO for n in graph.nodes):
        return False
    steps = [n for n in graph.nodes if is_paid(n)]
    return bool(steps) if users else len(steps) > 1 and any(n.op.facts.product for n in steps)


def offers(graph: Graph, rules: Sequence[Rewrite] | None = None, budget: Budget = BRIEF,
           rows: RecipeRows | None = None, of_users: bool = True) -> list[Offer]:
    """Return the pieces of a graph that have equivalents, no two with a node in common.

    rules: by default all without assumptions, with user-registered rules if of_users. rows: where results are read and saved.
    """
    from tensor_graphs.rewrites.rules import ALL, allowed

    if rules is None:
        rules = allowed() if of_users else ALL
    users = not {r.name for r in rules}.isdisjoint(r.name for r in user_rules())

    def found_in(one: Graph) -> list[Offer]:
        def search() -> list[Offer]:
            searched = _RewordSearch(one, rules, budget)
            found_offers = searched.offers()
            if rows is not None:
                rows.notes += searched.notes.values()
            return found_offers

        if not may_be_reworded(one, users):
            return []
        if rows is not None:
            return rows.kept(one, search, digest() if users else "")
        accurate = (replace(o, others=tuple(x for x in o.others if compared(o, x).passed)) for o in search())
        return [o for o in accurate if o.others]

    if not may_be_reworded(graph, users) or sum(map(is_paid, graph.nodes)) <= LARGE:
        return found_in(graph)
    solved: dict[Graph, list[Offer]] = {}
    moved = []
    for region in regions(graph).all:
        if region.graph not in solved:
            solved[region.graph] = found_in(region.graph)
        at = {leaf: region.leaves[str(leaf.attrs["name"])] for leaf in region.graph.nodes if leaf.op in leaves.NAMED_LEAVES}
        moved += [_moved(o, at) for o in solved[region.graph]]
    return moved


def _moved(offer: Offer, at: dict[Node, Node]) -> Offer:
    """Return an offer of a region as one of the graph that the region's leaves refer to (`at`)."""
    def put(node: Node) -> Node:
        for n in walk([node]):
            if n not in at:
                at[n] = apply(n.op, [at[i] for i in n.inputs], n.attrs) if n.inputs else n
        return at[node]

    return Offer(tuple(map(put, offer.operands)), tuple(map(put, offer.outputs)), frozenset(map(put, offer.inside)),
                 tuple(replace(o, outputs=tuple(map(put, o.outputs))) for o in offer.others))


# ---- one e-graph -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class _Change:
    """One connected difference between the graph and an extracted graph: its classes, and how the extracted graph computes them."""

    classes: frozenset[int]
    choice: Mapping[int, ENode]


class _RewordSearch:
    """A search for equivalents of pieces of one graph. A class is the value of its nodes, in the graph and in extracted graphs."""

    def __init__(self, graph: Graph, rules: Sequence[Rewrite], budget: Budget) -> None:
        self.graph, self.e = graph, EGraph()
        self.kinds = {r.name: r.numeric_class for r in rules if hasattr(r, "numeric_class")}
        self.users = {r.name for r in user_rules()} & self.kinds.keys()
        self.notes: dict[tuple[str, Node], str] = {}
        """Remarks for people: where a user-registered rule holds and is not offered."""
        self.ends = add_graph(self.e, graph)
        self.view = saturate(self.e, rules, budget, (BITWISE, REASSOCIATING)).views[REASSOCIATING]
        self.fed = fed(graph.nodes)
        self.readers: dict[Node, list[Node]] = {}
        for n in graph.nodes:
            for i in n.inputs:
                self.readers.setdefault(i, []).append(n)
        self.nodes: dict[int, list[Node]] = {}
        self.node_of: dict[Key, Node] = {}
        for n in graph.nodes:
            if len(n.types) == 1:
                self.nodes.setdefault(self.home(n), []).append(n)
                self.node_of.setdefault(self._key(self.e.terms[self.e.add(n)]), n)

    def home(self, node: Node) -> int:
        """Return the class of a node of the graph."""
        return self.view.find(self.e.add(node))

    def _key(self, term: ENode) -> Key:
        children = tuple(self.view.find(c) for c in term.children)
        return (term.op, term.attrs_key, tuple(sorted(children)) if is_commutative(term.op) else children, term.output)

    def offers(self) -> list[Offer]:
        changes: list[_Change] = []
        for at in _points(self.graph):
            cost = _seconds(self.view, at)

            def near(node: ENode, bound: bool, cost: NodeCost = cost) -> float:
                taken = cost(node, bound)
                return taken - STAYS if taken > STAYS and self._key(node) in self.node_of else taken

            for extracted in Extractor(self.view, *self.ends, near).extract(SEVERAL):
                # the cheapest first: what holds a whole change that is there already is that one, and more that gains nothing
                changes += [c for c in self._changes(extracted.choice) if self._pays(c, cost)
                            and not any(there.classes < c.classes for there in changes)]
        changes += self._users_changes()
        pieces = []
        for group in _joined(changes):
            offer = self._offer(group)
            if offer is not None:
                pieces.append(offer)
        return pieces

    def _users_changes(self) -> list[_Change]:
        """Return the changes by user-registered rules, which are offered at any estimated cost, as users' kernels are."""
        homes = {e.right: self.view.find(e.right) for e in self.e.edges if e.reason in self.users}
        if not homes:
            return []
        users_changes: dict[frozenset[int], _Change] = {}
        extractor = Extractor(self.view, *self.ends, self._own_first)
        stands = extractor.best()                                   # without what a rule makes an operand of its own
        for term, home in list(homes.items())[:MOST_SAID]:
            key = self._key(self.e.terms[term])
            node = next((n for n in self.view.classes[home] if self._key(n) == key), None)
            other = None if node is None or home not in stands else extractor.chosen(stands, home, node)
            for change in self._changes(other or stands):
                if home in change.classes:
                    users_changes.setdefault(change.classes, change)
        return list(users_changes.values())

    def _own_first(self, node: ENode, bound: bool) -> float:
        """Return a cost by which extraction prefers the nodes of the original graph."""
        return paid(node, bound) * (TINY if self._key(node) in self.node_of else 1.0)

    def _changes(self, choice: Mapping[int, ENode]) -> list[_Change]:
        """Return the connected differences between the graph and an extracted graph."""
        stays = {c for c, node in choice.items() if self._key(node) in self.node_of}
        links: dict[int, set[int]] = {c: set() for c in choice if c not in stays}
        left = [n for c, nodes in self.nodes.items() for n in nodes
                if n.op.kind != "leaf" and not (c in stays and self.node_of[self._key(choice[c])] is n)]
        for n in left:
            links.setdefault(self.home(n), set())
        new = [(c, choice[c]) for c in choice if c not in stays]
        for c, node in (*new, *((self.home(n), self.e.terms[self.e.add(n)]) for n in left)):
            for child in node.children:
                below = self.view.find(child)
                if below in links:
                    links[c].add(below)
                    links[below].add(c)
        out, seen = [], set[int]()
        for start in links:
            if start not in seen:
                group, todo = {start}, [start]
                while todo:
                    linked = links[todo.pop()] - group
                    group |= linked
                    todo += linked
                seen |= group
                out.append(_Change(frozenset(group), {c: choice[c] for c in group if c in choice and c not in stays}))
        return out

    def _pays(self, change: _Change, cost: NodeCost) -> bool:
        """Return whether a change is cheaper by estimate."""
        bound = self.view.bound
        old = {self._key(self.e.terms[self.e.add(n)])[:3]: cost(self.e.terms[self.e.add(n)], bound[c])
               for c in change.classes for n in self.nodes.get(c, ()) if n.op.kind != "leaf"}
        new = {self._key(node)[:3]: cost(node, bound[c]) for c, node in change.choice.items()}
        return bool(change.choice) and sum(new.values()) < sum(old.values()) - WORTH

    def _offer(self, group: Sequence[_Change], more: frozenset[Node] = frozenset()) -> Offer | None:
        """Return the offer for changes that share classes: the piece that they are about, with its equivalents. Return None if a
        path leaves the piece and comes back. more: nodes that also belong to the piece."""
        classes = frozenset().union(*(c.classes for c in group))
        inside = {*more} | {n for c in classes for n in self.nodes.get(c, ()) if n.op.kind != "leaf"}
        inside |= {n.inputs[0] for n in inside if n.op is leaves.ITEM}
        roots = set(self.graph.roots)
        outputs = tuple(n for n in self.graph.nodes if n in inside and len(n.types) == 1
                        and (n in roots or any(r not in inside for r in self.readers.get(n, ()))))
        if not outputs:
            return None
        operands = dict.fromkeys(i for n in self.graph.nodes if n in inside for i in n.inputs if i not in inside and i in self.fed)
        others: dict[str, Other] = {}
        for change in group:
            wording = self._said(change, outputs, inside)
            if wording is None:
                continue
            new, read = wording
            handed_on = [(o, n) for o, n in zip(outputs, new, strict=True) if n in read]
            joining = {n for o, value in handed_on for n in self._beside(o, value)} - inside
            if joining:
                return self._offer(group, more | joining)
            if handed_on:
                continue
            operands.update(dict.fromkeys(read))
            others.setdefault(_steps(new, operands), self._other(outputs, new))
        if any(n in inside for n in walk(list(operands))):
            return None
        every = Offer(tuple(in_order_of_use([outputs, *(o.outputs for o in others.values())], operands, {o: o for o in operands})),
                      outputs, frozenset(inside), tuple(others.values()))
        own = every.alone(outputs)
        if own is None or other_dims(outputs, every.operands):
            return None
        usable = tuple(o for o in every.others if not all(r.startswith(RENAMES) for r in o.rules)
                       and (g := every.alone(o.outputs)) is not None and not other_dims(o.outputs, every.operands)
                       and self._is_accurate(o, g, own))
        return replace(every, others=usable) if usable else None

    def _is_accurate(self, other: Other, new: Graph, own: Graph) -> bool:
        """Return whether an equivalent is predicted to be about as accurate as the original; note user-registered rules that are
        not."""
        error, allowed = predicted_error(new), ROUNDED * predicted_error(own)
        place = next(iter(own.outputs.values()))
        for rule in sorted(self.users & {*other.rules}) if error > allowed else ():
            why = f"it is predicted to be off by {error:.1e}, and {allowed:.1e} is allowed ({ROUNDED} times)"
            self.notes.setdefault((rule, place), f"{rule} holds at {place.op.name} {place.type} and is not offered: {why}")
        return error <= allowed

    def _said(self, change: _Change, outputs: Sequence[Node], inside: set[Node]) -> tuple[tuple[Node, ...], list[Node]] | None:
        """Return the changed outputs, computed over nodes outside of the piece, and those nodes; None if there is a cycle."""
        nodes: dict[int, Node] = {}
        read: dict[Node, None] = {}

        def outside(number: int) -> Node | None:
            return next((n for n in self.nodes.get(number, ()) if n not in inside), None)

        def build(number: int, above: frozenset[int] = frozenset()) -> Node:
            if number in nodes:
                return nodes[number]
            there = outside(number)
            if there is not None and number not in change.choice:
                nodes[number] = there
                if there in self.fed:
                    read[there] = None
                return there
            if number in above:                                     # words of two graphs together may lead in a circle
                raise LanguageError("a value is made of itself", fix="other words")
            term = change.choice.get(number) or self.e.terms[self.e.add(self.nodes[number][0])]
            below = [build(self.view.find(x), above | {number}) for x in term.children]
            nodes[number] = leaves.item(apply(term.op, below, term.attrs), term.output)
            return nodes[number]

        try:
            new = tuple(build(self.home(o)) for o in outputs)
        except LanguageError:
            return None
        return new, list(read)

    def _beside(self, output: Node, value: Node) -> list[Node]:
        """Return the nodes to add to a piece one of whose outputs is a value from outside, as a part cannot return an operand: the
        node that computes the value or, if it is a leaf, the readers of the output."""
        if value.op.kind != "leaf":
            return [value]
        return [] if output in self.graph.roots else self.readers.get(output, [])

    def _other(self, outputs: Sequence[Node], new: Sequence[Node]) -> Other:
        steps: dict[RuleStep, None] = {}
        for old, value in zip(outputs, new, strict=True):
            steps.update(dict.fromkeys(derive(self.e, self.e.add(old), self.e.add(value))))
        rules = tuple(dict.fromkeys(s.rule for s in steps))
        kind = BITWISE if all(self.kinds.get(r, BITWISE) == BITWISE for r in rules) else REASSOCIATING
        return Other(tuple(new), rules, show_steps(self.e, list(steps)), kind)


def _joined(changes: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Yield the changes in groups that have classes in common."""
    left = list(changes)
    while left:
        group, classes = [left.pop(0)], set[int]()
        grown = True
        while grown:
            classes = set().union(*(c.classes for c in group))
            more = [c for c in left if c.classes & classes]
            left = [c for c in left if not c.classes & classes]
            group, grown = group + more, bool(more)
        yield group


def _steps(outputs: Sequence[Node], operands: Collection[Node]) -> str:
    """Return a piece's steps with their types, sorted, as a key that does not depend on the order of joined weights."""
    return "|".join(sorted(f"{n.op.name} {' '.join(str(i.type) for i in n.inputs)}" for n in between(outputs, operands)
                           if is_paid(n)))


def in_order_of_use(wordings: Sequence[Sequence[Node]], operands: Collection[Node], nodes: Mapping[Node, Node]) -> list[Node]:
    """Return the operands in the order in which the graphs use them, so that equal pieces have one order. nodes: for each operand,
    its node in the graphs after the first."""
    ordered: dict[Node, None] = {}
    back = {own: o for o, own in nodes.items()}
    for i, outputs in enumerate(wordings):
        stop = operands if i == 0 else set(back)
        for n in (*between(outputs, stop), *outputs):
            for x in n.inputs:
                if x in stop:
                    ordered[x if i == 0 else back[x]] = None
    return list(ordered)


def _points(graph: Graph) -> list[dict[str, int]]:
    """Return the sizes for which graphs are extracted: the smallest, and larger ones."""
    low = {name: d.bounds(s)[0] for name, s in graph.dims.items()}
    high = {name: d.clamp(LARGER, s) for name, s in graph.dims.items()}
    return [low, high] if high != low else [low]


def _seconds(view: View, at: Mapping[str, int]) -> NodeCost:
    """Return a function that estimates the microseconds of an e-node: arithmetic counts for matrix products, and operand traffic
    for all. Values that are computed when the graph is bound cost almost nothing."""
    rates, device = BACKEND_RATES["c"], DeviceRates()
    costs: dict[Key, float] = {}

    def cost(node: ENode, bound: bool) -> float:
        if node.op.kind == "leaf" or bound or node.op.facts.view:
            return TINY
        if node.key not in costs:
            arguments = [leaves.argument(i, view.types[view.find(c)]) for i, c in enumerate(node.children)]
            signature = signature_of(apply(node.op, arguments, node.attrs))
            moved = work(signature, tuple(sorted((n, at[n]) for n in signature.dim_names)))[0]
            moving, busy = moved / (device.bandwidth * rates.bandwidth_share), _product_flops(signature.graph.nodes, at) / (
                device.flops * rates.flop_share)
            costs[node.key] = 1e6 * (rates.call_seconds + max(moving, busy) + TIES * min(moving, busy))
        return costs[node.key]

    return cost


def _product_flops(nodes: Sequence[Node], at: Mapping[str, int]) -> float:
    """Return the operations of the innermost matrix products alone; other work of a composite is hidden by them."""
    total = 0.0
    for n in nodes:
        if n.op.facts.product:
            assert isinstance(n.op, CompositeOp)
            inside = walk(n.op.define([i.type for i in n.inputs], n.attrs).outputs)
            signature = signature_of(n)
            total += _product_flops(inside, at) or work(signature, tuple(sorted((s, at[s]) for s in signature.dim_names)))[1]
    return total
