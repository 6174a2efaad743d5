"""subgraphs: small parts of a graph that end in a node: one output, few operands and steps, no path that leaves and re-enters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import between
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step

MOST_CUTS, MOST_DECISIONS = 160, 4000
"""Largest number of parts considered for one output, and of decisions whether a node is an operand."""


def inside(node: Node, operands: Collection[Node]) -> set[Node]:
    """Return the nodes computed from the operands on the way to a node, including that node; no leaves."""
    return {n for n in between([node], operands) if n.op.kind != "leaf"}


def fed(nodes: Iterable[Node]) -> set[Node]:
    """Return those of the nodes (operands first) that depend on a named leaf. Other nodes belong to the pieces that read them."""
    result: set[Node] = set()
    for n in nodes:
        if n.op in leaves.NAMED_LEAVES or any(i in result for i in n.inputs):
            result.add(n)
    return result


class Cuts:
    """The parts of one graph. nodes: those of the graph. fed: those that depend on a named leaf."""

    def __init__(self, graph: Graph) -> None:
        self.nodes, self.fed = graph.nodes, fed(graph.nodes)
        self._bit = {n: 1 << i for i, n in enumerate(graph.nodes)}
        self._below: dict[Node, int] = {}                           # what a node is made of, as bits
        for n in graph.nodes:
            self._below[n] = self._bit[n]
            for i in n.inputs:
                self._below[n] |= self._below[i]

    def of(self, node: Node, most_steps: int, most_operands: int,
           may_be: Callable[[Node], bool] = lambda node: True) -> Iterator[tuple[Node, ...]]:
        """Yield sets of operands over which a node is a part of few steps, with no path that leaves the part and re-enters; the
        fewest steps first. may_be: returns whether a node may be an operand.

        Each candidate is decided from the top down: it is an operand, or it is in the part and its operands become candidates. A
        node that an operand depends on cannot be in the part.
        """
        first = frozenset(i for i in node.inputs if i in self.fed)
        order = itertools.count()
        todo: list[tuple[int, int, frozenset[Node], frozenset[Node], int]] = [(1, next(order), frozenset(), first, 0)]
        yielded = 0
        while todo and yielded < MOST_CUTS and next(order) < MOST_DECISIONS:
            steps, _, operands, undecided, below = heappop(todo)
            if not undecided:
                part = inside(node, operands)
                if operands and sum(map(is_step, part)) <= most_steps:
                    yielded += 1
                    yield tuple(self.in_order(operands))
                continue
            one = max(undecided, key=self._bit.__getitem__)
            rest = undecided - {one}
            if len(operands) < most_operands and may_be(one):
                heappush(todo, (steps, next(order), operands | {one}, rest, below | self._below[one]))
            if one.op.kind == "leaf" or len(one.types) != 1 or one.op is leaves.ITEM or self._bit[one] & below:
                continue
            more = steps + is_step(one)
            if more <= most_steps:
                heappush(todo, (more, next(order), operands, rest | {i for i in one.inputs if i in self.fed and i not in operands},
                                below))

    def in_order(self, nodes: Collection[Node]) -> Sequence[Node]:
        return sorted(nodes, key=lambda n: self._bit[n])
