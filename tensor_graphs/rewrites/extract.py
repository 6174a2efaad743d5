"""extract: graphs from an e-graph — the cheapest one, and alternatives that differ in the ops that they pay for.

The cost of a graph is that of its e-nodes, each counted once (a DAG, not a tree). A choice is grown from the leaves: each class
keeps the cheapest set of e-nodes found so far that computes it (the greedy DAG extraction of egg's users), which cannot contain a
cycle. Then single choices are swapped, and the entire graph is scored again. The best few choices become graphs of the language,
with the original names of leaves and outputs.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensor_graphs.language import leaves
from tensor_graphs.language.errors import Location, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, Op, apply
from tensor_graphs.rewrites.egraph import EGraph, View
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.errors import RewriteError

NodeCost = Callable[[ENode, bool], float]
"""Function that returns the cost of an e-node, given whether its value is known once parameters are bound."""

Kind = tuple[Op, Any, tuple[int, ...]]
"""The op, attributes and operands of an e-node, which all outputs of one node share."""

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
        self.kinds = {id(n): (n.op, n.attrs_key, n.children) for c in self.reachable for n in view.classes[c]}
        prices: dict[Kind, float] = {}                              # of a node with several outputs, which are e-nodes of their own
        for number in self.reachable:
            for node in view.classes[number]:
                kind = self.kinds[id(node)]
                prices[kind] = max(prices.get(kind, 0.0), cost(node, view.bound[number]))
        self.costs = {number: prices[kind] for number, kind in self.kinds.items()}

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
                below, merged = grown[node.children[0]] if node.children else (0.0, {})
                if number in merged or (best is not None and below + own >= best[0] + 1e-9):
                    continue                                        # all of the first operand's e-nodes count
                agree = True
                for child in node.children[1:]:
                    joined = merged | grown[child][1]
                    merged = joined | merged                        # where they differ, the first one's
                    agree &= joined == merged
                if number in merged:
                    continue
                merged = {**merged, number: node}
                total = below + own if len(node.children) == 1 else sum([costs[id(n)] for n in merged.values()])
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
        home = self._home[id(shared)]
        costs = {number: cost for number, (cost, _) in self._trees.items()}
        if any(c not in costs for c in shared.children):
            return {}
        costs[home] = sum(costs[c] for c in shared.children)
        taken, pending = {home: shared}, self._readers(home)
        heapq.heapify(pending)
        while pending:
            place = heapq.heappop(pending)                          # cheaper trees first: most of their operands are done
            number = self._by_cost[place]
            if number == home or (pending and pending[0] == place):
                continue
            before = costs[number]
            for node in self._ways[number]:
                cost = self.costs[id(node)] + sum([costs[c] for c in node.children])
                if cost < costs[number] - 1e-12:
                    costs[number], taken[number] = cost, node
            if costs[number] < before:
                for reader in self._readers(number):
                    heapq.heappush(pending, reader)
        return taken

    @cached_property
    def _by_cost(self) -> list[int]:
        """Return the classes that a tree can compute, the cheapest first."""
        return sorted(self._trees, key=lambda number: self._trees[number][0])

    @cached_property
    def _ways(self) -> dict[int, list[ENode]]:
        """Return the e-nodes of each of these classes whose operands are such classes."""
        return {number: [n for n in self.view.classes[number] if self._trees.keys() >= set(n.children)] for number in self._trees}

    @cached_property
    def _place(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self._by_cost)}

    def _readers(self, number: int) -> list[int]:
        """Return the places in `_by_cost` of the classes that may read a class."""
        return [self._place[user] for user in self.users.get(number, ()) if user in self._place]

    def chosen(self, choice: Choice, number: int, node: ENode) -> Choice | None:
        """Return a choice in which this e-node computes its class and the other classes are as chosen; None if that is a cycle."""
        if any(c not in self.everything for c in node.children):
            return None
        return self._needed({number: node}, choice, self.everything)

    def descend(self, choice: Choice) -> Choice:
        """Swap single e-nodes (with their operands as chosen) as long as the entire graph gets cheaper; return the result."""
        swaps, improved = _Swaps(self, choice), True
        while improved:
            improved = False
            for number in list(swaps.choice):
                for node in self.view.classes[number]:
                    if number in swaps.choice and (swap := swaps.of(number, node)) is not None and swap.saved > 1e-9:
                        swaps, improved = _Swaps(self, swaps.after(swap)), True
        return swaps.choice

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
        swaps = _Swaps(self, self.best())
        queue: list[tuple[float, int, _Swaps, _Swap | None]] = [(0.0, 0, swaps, None)]
        ticket = itertools.count(1)
        seen = {swaps.changes}
        choices: list[Choice] = []
        while queue and len(choices) < count:
            _, _, swaps, swap = heapq.heappop(queue)
            if swap is not None:
                swaps = _Swaps(self, swaps.after(swap), swaps.cost - swap.saved, swap.changes)
            choices.append(swaps.choice)
            if len(seen) > 40 * count:
                continue
            for number in swaps.choice:
                for node in self.view.classes[number]:
                    trial = swaps.of(number, node)
                    if trial is not None and trial.changes not in seen:
                        seen.add(trial.changes)
                        # rounded: of two choices that cost the same the one that was found first, however their costs are summed
                        heapq.heappush(queue, (round(swaps.cost - trial.saved, 6), next(ticket), swaps, trial))
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


@dataclass(frozen=True)
class _Swap:
    """An e-node in place of another one that computes the same class. saved: what the entire graph then costs less. changes: the
    (class, term) pairs of which one choice has one and the first choice none, or the other way round: equal for equal choices."""

    number: int
    node: ENode
    saved: float
    changes: frozenset[tuple[int, int]]


class _Swaps:
    """The swaps of single e-nodes in one choice, each evaluated by what it changes, without a walk over the entire graph.

    cost: of the choice, relative to that of the first choice; changes: of the choice (see `_Swap`)."""

    def __init__(self, extractor: Extractor, choice: Choice, cost: float = 0.0,
                 changes: frozenset[tuple[int, int]] = frozenset()) -> None:
        self.extractor, self.choice, self.cost, self.changes = extractor, choice, cost, changes
        self.place = {number: i for i, number in enumerate(choice)}    # operands before their readers
        self.readers = Counter(extractor.roots)
        self.paid: Counter[Kind] = Counter()
        for node in choice.values():
            self.readers.update(set(node.children))
            self.paid[extractor.kinds[id(node)]] += 1
        self._above: tuple[int, set[int]] = (-1, set())

    def of(self, number: int, node: ENode) -> _Swap | None:
        """Return the swap to an e-node; None if it is chosen already, or would lead to a cycle."""
        everything = self.extractor.everything
        if node is self.choice[number] or any(c not in everything for c in node.children):
            return None
        new: dict[int, ENode | None] = {number: node}
        counts: dict[int, int] = {}
        todo = [*set(node.children)]
        while todo:
            child = todo.pop()
            counts[child] = counts.get(child, self.readers[child]) + 1
            if child in self.choice:
                if self._depends(child, number):
                    return None
            elif counts[child] == 1:
                new[child] = everything[child]
                todo += set(everything[child].children)
        todo = [*set(self.choice[number].children)]
        while todo:
            child = todo.pop()
            counts[child] = counts.get(child, self.readers[child]) - 1
            if counts[child] == 0:
                new[child] = None
                todo += set(self.choice[child].children)
        return self._priced(number, node, new)

    def _priced(self, number: int, node: ENode, new: Mapping[int, ENode | None]) -> _Swap:
        """Return the swap that has these e-nodes in place of those of the choice, None where a class is no longer needed."""
        kinds, costs = self.extractor.kinds, self.extractor.costs
        calls: Counter[Kind] = Counter()
        prices: dict[Kind, float] = {}
        pairs = set[tuple[int, int]]()
        for place, other in new.items():
            for one, count in ((self.choice.get(place), -1), (other, 1)):
                if one is not None:
                    calls[kinds[id(one)]] += count
                    prices[kinds[id(one)]] = costs[id(one)]
                    pairs ^= {(place, one.term)}
        saved = sum(prices[kind] * ((self.paid[kind] > 0) - (self.paid[kind] + count > 0)) for kind, count in calls.items())
        return _Swap(number, node, saved, self.changes ^ pairs)

    def _depends(self, reader: int, number: int) -> bool:
        """Return whether a class of the choice is computed from another one, or is that one."""
        if self.place[reader] <= self.place[number]:
            return reader == number
        if self._above[0] != number:
            above = {number}
            for place in itertools.islice(self.choice, self.place[number] + 1, None):
                if not above.isdisjoint(self.choice[place].children):
                    above.add(place)
            self._above = number, above
        return reader in self._above[1]

    def after(self, swap: _Swap) -> Choice:
        """Return the choice after a swap."""
        choice = self.extractor.chosen(self.choice, swap.number, swap.node)
        assert choice is not None
        return choice


def add_graph(e: EGraph, graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Add a graph to an e-graph; return the terms of its outputs and of its updates, by name."""
    return ({name: e.add(node) for name, node in graph.outputs.items()},
            {name: e.add(node) for name, node in graph.updates.items()})
