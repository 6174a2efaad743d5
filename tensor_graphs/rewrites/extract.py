"""extract: graphs from an e-graph — the cheapest one, and alternatives that differ in the ops that they pay for.

The cost of a graph is that of its e-nodes, each counted once (a DAG, not a tree). A choice is grown from the leaves: each class
keeps the cheapest set of e-nodes found so far that computes it (the greedy DAG extraction of egg's users), which cannot contain a
cycle. Then single choices are swapped, and the entire graph is scored again. The best few choices become graphs of the language,
with the original names of leaves and outputs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensor_graphs.language import leaves
from tensor_graphs.language.errors import Location, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply
from tensor_graphs.rewrites.egraph import EGraph, View
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.errors import RewriteError

NodeCost = Callable[[ENode, bool], float]
"""Function that returns the cost of an e-node, given whether its value is known once parameters are bound."""

Choice = Mapping[int, ENode]
"""The e-node that computes each needed class."""

MOST_SHARED = 40
"""Largest number of e-nodes that are tried as shared ones."""

TINY = 1e-4
"""Cost of any e-node at all: of two equally good graphs the smaller one wins, and no cycle is free."""


def paid(node: ENode, bound: bool) -> float:
    """Return the cost of an e-node: 1 for an op at run time; almost 0 for leaves, views and values known once parameters are bound.
    """
    if node.op.kind == "leaf" or node.op.facts.view or bound:
        return TINY
    return 1.0 + TINY


def is_paid(node: Node) -> bool:
    """Return whether a node of a graph is a step at run time."""
    return node.op.kind != "leaf" and not node.op.facts.view


def paid_nodes(graph: Graph) -> int:
    """Return the number of steps at run time, without leaves, views and values that depend on parameters and constants alone."""
    e = EGraph()
    count = 0
    for node in graph.nodes:
        if is_paid(node):
            term = e.add(node) if len(node.types) == 1 else e.add(leaves.item(node, 0))
            count += not e.of(term).bound
    return count


@dataclass(frozen=True)
class Extraction:
    """A graph extracted from an e-graph, with its cost."""

    graph: Graph
    cost: float
    choice: Choice

    @property
    def paid(self) -> int:
        return paid_nodes(self.graph)


class Extractor:
    """Extraction of graphs from one snapshot. `outputs`, `updates`: the terms of a graph's outputs and state updates, by name."""

    def __init__(self, view: View, outputs: Mapping[str, int], updates: Mapping[str, int], cost: NodeCost = paid) -> None:
        self.view, self.cost = view, cost
        self.outputs = {name: view.find(t) for name, t in outputs.items()}
        self.updates = {name: view.find(t) for name, t in updates.items()}
        self.roots = tuple(dict.fromkeys((*self.outputs.values(), *self.updates.values())))
        self.users: dict[int, list[int]] = {}
        self.reachable = self._reach()
        for number in self.reachable:
            for node in view.classes[number]:
                for child in dict.fromkeys(node.children):
                    self.users.setdefault(child, []).append(number)
        self.costs = {id(n): cost(n, view.bound[c]) for c in self.reachable for n in view.classes[c]}
        self.kinds = {id(n): (n.op, n.attrs_key, n.children) for c in self.reachable for n in view.classes[c]}

    def _reach(self) -> list[int]:
        order, stack, seen = [], list(reversed(self.roots)), set(self.roots)
        while stack:
            number = stack.pop()
            order.append(number)
            for node in self.view.classes[number]:
                for child in node.children:
                    if child not in seen:
                        seen.add(child)
                        stack.append(child)
        return order

    def grow(self) -> Choice | None:
        """Return the cheapest choice found greedily; None if every choice contains a cycle."""
        grown: dict[int, tuple[float, dict[int, ENode]]] = {}
        costs = self.costs
        pending = dict.fromkeys(c for c in self.reachable if any(not n.children for n in self.view.classes[c]))
        while pending:
            number = next(iter(pending))
            del pending[number]
            best = grown.get(number)
            for node in self.view.classes[number]:
                if any(c not in grown for c in node.children):
                    continue
                own = costs[id(node)]
                if len(node.children) == 1:
                    below, merged = grown[node.children[0]]
                    if number in merged or (best is not None and below + own >= best[0] - 1e-12):
                        continue
                    merged = {**merged, number: node}
                    total = below + own
                else:
                    merged, agree = {}, True
                    for child in node.children:
                        for key, value in grown[child][1].items():
                            agree &= merged.setdefault(key, value) is value
                    if number in merged:
                        continue
                    merged[number] = node
                    total = sum([costs[id(n)] for n in merged.values()])
                if (best is None or total < best[0] - 1e-12) and (agree or self._is_acyclic(number, merged)):
                    best = (total, merged)
            if best is not None and (number not in grown or best[0] < grown[number][0] - 1e-12):
                grown[number] = best
                for user in self.users.get(number, ()):
                    pending[user] = None
        if any(r not in grown for r in self.roots):
            return None
        choice: dict[int, ENode] = {}
        for root in self.roots:
            for key, value in grown[root][1].items():
                choice.setdefault(key, value)
        return self._needed(choice)

    def _is_acyclic(self, root: int, choice: Choice) -> bool:
        """Return whether a merged choice computes its root without a cycle. The union of two acyclic sets may contain one where
        they choose differently."""
        state: dict[int, int] = {}
        stack = [(root, 0)]
        while stack:
            number, at = stack.pop()
            children = choice[number].children
            if at == 0:
                state[number] = 1
            if at < len(children):
                stack.append((number, at + 1))
                child = children[at]
                if state.get(child, 0) == 1:
                    return False
                if child not in state:
                    stack.append((child, 0))
            else:
                state[number] = 2
        return True

    def _needed(self, *choices: Choice) -> Choice | None:
        """Return the part of a choice that the roots need, operands first; None if it contains a cycle. choices: the first that has
        a class counts for it."""
        order: dict[int, ENode] = {}
        above: dict[int, ENode] = {}                                # classes whose operands are being ordered
        stack = list(reversed(self.roots))
        while stack:
            number = stack[-1]
            if number in order or number in above:
                if number in above:
                    order[number] = above.pop(number)
                stack.pop()
                continue
            node = above[number] = next(choice[number] for choice in choices if number in choice)
            for child in reversed(node.children):
                if child in above:
                    return None
                if child not in order:
                    stack.append(child)
        return order

    def score(self, choice: Choice) -> float:
        """Return the cost of a choice as a DAG: several outputs of one node are paid once."""
        counted = {self.kinds[id(n)]: self.costs[id(n)] for n in choice.values()}
        return sum(counted.values())

    def best(self) -> Choice:
        """Return the greedy choice, improved by swaps of one e-node as long as that helps, and by sharing.

        No single swap finds a choice that several classes must make together (one matrix product instead of three). So each e-node
        that several classes could use is treated as free, once. Classes that become cheaper use it, and the result is scored at the
        real costs.
        """
        choice = self.grow()
        if choice is None:
            raise RewriteError("nothing can be extracted: every way to compute an output needs that output")
        choice = self.descend(choice)
        cost = self.score(choice)
        for shared in self._shareable(choice)[:MOST_SHARED]:
            trial = self._needed(self._cheaper_by(shared), choice, self.everything)
            if trial is not None and (new := self.score(trial)) < cost - 1e-9:
                choice, cost = trial, new
        return self.descend(choice)

    def _shareable(self, choice: Choice) -> list[ENode]:
        """Return paid e-nodes that are not chosen and that at least two chosen classes could read, the most read first."""
        shareable = []
        for number in self.reachable:
            readers = sum(user in choice for user in dict.fromkeys(self.users.get(number, ())))
            if number not in choice and readers >= 2:
                shareable += [(-readers, n.term, n) for n in self.view.classes[number] if self.costs[id(n)] > TINY]
        return [n for _, _, n in sorted(shareable, key=lambda row: row[:2])]

    def _cheaper_by(self, shared: ENode) -> dict[int, ENode]:
        """Return the e-nodes of the classes that are cheaper, as trees, if the e-node `shared` is free; `shared` is among them."""
        trees = self._trees
        home = self._home[id(shared)]
        if any(c not in trees for c in shared.children):
            return {}
        costs: dict[int, float] = {home: sum(trees[c][0] for c in shared.children) if shared.children else 0.0}
        taken, pending = {home: shared}, dict.fromkeys(self.users.get(home, ()))
        while pending:
            number = next(iter(pending))
            del pending[number]
            if number == home or number not in trees:
                continue
            before = costs.get(number, trees[number][0])
            for node in self.view.classes[number]:
                if any(c not in trees for c in node.children):
                    continue
                cost = self.costs[id(node)] + sum(costs[c] if c in costs else trees[c][0] for c in node.children)
                if cost < before - 1e-12:
                    before, costs[number], taken[number] = cost, cost, node
                    pending.update(dict.fromkeys(self.users.get(number, ())))
        return taken

    def chosen(self, choice: Choice, number: int, node: ENode) -> Choice | None:
        """Return a choice in which this e-node computes its class and the other classes are as chosen; None if that is a cycle."""
        if any(c not in self.everything for c in node.children):
            return None
        return self._needed({number: node}, choice, self.everything)

    def descend(self, choice: Choice) -> Choice:
        """Swap single e-nodes (with their operands as chosen) as long as the entire graph gets cheaper; return the result."""
        cost, improved = self.score(choice), True
        while improved:
            improved = False
            for number in list(choice):
                for node in self.view.classes[number]:
                    if node is choice.get(number) or number not in choice:
                        continue
                    trial = self.chosen(choice, number, node)
                    if trial is not None and (new := self.score(trial)) < cost - 1e-9:
                        choice, cost, improved = trial, new, True
        return choice

    @cached_property
    def _home(self) -> dict[int, int]:
        return {id(n): c for c in self.reachable for n in self.view.classes[c]}

    @cached_property
    def _trees(self) -> dict[int, tuple[float, ENode]]:
        """Return the cheapest e-node of each class as a tree, with the tree's cost."""
        trees: dict[int, tuple[float, ENode]] = {}
        pending = dict.fromkeys(c for c in self.reachable if any(not n.children for n in self.view.classes[c]))
        while pending:
            number = next(iter(pending))
            del pending[number]
            for node in self.view.classes[number]:
                if any(c not in trees for c in node.children):
                    continue
                cost = self.costs[id(node)] + sum(trees[c][0] for c in node.children)
                if number not in trees or cost < trees[number][0] - 1e-12:
                    trees[number] = (cost, node)
                    pending.update(dict.fromkeys(self.users.get(number, ())))
        return trees

    @cached_property
    def everything(self) -> Choice:
        """Return an e-node for each class, cheapest as trees. Swaps use it for classes that were not chosen."""
        return {number: node for number, (_, node) in self._trees.items()}

    def several(self, count: int) -> list[Choice]:
        """Return up to `count` different choices, the best first, the rest approximately by cost. From each choice, every other
        e-node of each of its classes is forced once, and the rest is completed again."""
        first = self.best()
        queue: list[tuple[float, int, Choice]] = []
        ticket = itertools.count()
        seen: set[frozenset[tuple[int, int]]] = set()

        def offer(choice: Choice) -> None:
            mark = frozenset((c, n.term) for c, n in choice.items())
            if mark not in seen:
                seen.add(mark)
                heapq.heappush(queue, (self.score(choice), next(ticket), choice))

        offer(first)
        choices: list[Choice] = []
        while queue and len(choices) < count:
            _, _, choice = heapq.heappop(queue)
            choices.append(choice)
            if len(seen) > 40 * count:
                continue
            for number in choice:
                for node in self.view.classes[number]:
                    trial = None if node is choice[number] else self.chosen(choice, number, node)
                    if trial is not None:
                        offer(trial)
        return choices

    def nodes(self, choice: Choice, written: Mapping[int, Location] | None = None) -> dict[int, Node]:
        """Return the nodes of the language that a choice computes, by class. written: the location of a class. A class without a
        location takes that of its first reader."""
        places = dict(written or {})
        for reader in reversed(list(choice)):
            for child in choice[reader].children if reader in places else ():
                places.setdefault(child, places[reader])
        nodes: dict[int, Node] = {}
        for number, node in choice.items():
            with written_at(places.get(number)):
                call = apply(node.op, [nodes[c] for c in node.children], node.attrs)
                nodes[number] = leaves.item(call, node.output)
        return nodes

    def graph(self, choice: Choice, nodes: Mapping[int, Node] | None = None) -> Graph:
        """Return a choice as a graph of the language. nodes: the choice's nodes, if they were built before."""
        nodes = self.nodes(choice) if nodes is None else nodes
        updates: dict[Any, Node] = {}
        for name, c in self.updates.items():
            value = nodes[c]
            updates[leaves.state(name, value.shape, value.dtype)] = value
        return make_graph({name: nodes[c] for name, c in self.outputs.items()}, updates)

    def extract(self, count: int = 1) -> list[Extraction]:
        """Return the best graphs; they differ from each other in an op, an attribute or the wiring."""
        out: list[Extraction] = []
        keys: set[str] = set()
        for choice in self.several(count) if count > 1 else [self.best()]:
            graph = self.graph(choice)
            if graph.structural_key not in keys:
                keys.add(graph.structural_key)
                out.append(Extraction(graph, self.score(choice), choice))
        return out


def add_graph(e: EGraph, graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Add a graph to an e-graph; return the terms of its outputs and of its updates, by name."""
    return ({name: e.add(node) for name, node in graph.outputs.items()},
            {name: e.add(node) for name, node in graph.updates.items()})
