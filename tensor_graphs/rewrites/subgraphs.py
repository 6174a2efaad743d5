"""subgraphs: small parts of a graph that end in a node: one output, few operands and steps, no path that leaves and re-enters."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
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
    """The parts of one graph. nodes: those of the graph. fed: those that depend on a named leaf. A set of nodes is an int, with a
    bit for each node by its place in the graph."""

    def __init__(self, graph: Graph) -> None:
        self.nodes, self.fed = graph.nodes, fed(graph.nodes)
        self.place = {n: i for i, n in enumerate(graph.nodes)}
        self._reads = [self.mask(i for i in n.inputs if i in self.fed) for n in graph.nodes]
        self._steps = self.mask(n for n in graph.nodes if is_step(n))
        self._inner = self.mask(n for n in graph.nodes if n.op.kind != "leaf" and len(n.types) == 1 and n.op is not leaves.ITEM)
        self._below, self._own = list[int](), list[int]()           # what a node is made of; what is in each part that it is in
        for at, n in enumerate(graph.nodes):
            below, own = 1 << at, 0 if n.op.kind == "leaf" else 1 << at
            for i in n.inputs:
                below |= self._below[self.place[i]]
                own |= 0 if i in self.fed else self._own[self.place[i]]
            self._below.append(below)
            self._own.append(own)

    def mask(self, nodes: Iterable[Node]) -> int:
        """Return a set of nodes as an int."""
        mask = 0
        for node in nodes:
            mask |= 1 << self.place[node]
        return mask

    def among(self, mask: int) -> list[Node]:
        """Return the nodes of a set in the order of the graph."""
        nodes = []
        while mask:
            nodes.append(self.nodes[(mask & -mask).bit_length() - 1])
            mask &= mask - 1
        return nodes

    def steps(self, part: int) -> int:
        """Return the number of steps in a set of nodes."""
        return (part & self._steps).bit_count()

    def of(self, node: Node, most_steps: int, most_operands: int, may_be: int = -1) -> Iterator[tuple[tuple[Node, ...], int]]:
        """Yield (operands, the nodes computed from them) of parts of few steps that end in a node; the fewest steps first. No path
        leaves a part and re-enters. may_be: the nodes that may be operands.

        Each candidate is decided from the top down: it is an operand, or it is in the part and its operands become candidates. A
        node that an operand depends on cannot be in the part.
        """
        order, top = itertools.count(), self.place[node]
        todo = [(1, next(order), 0, self._reads[top], 0, self._own[top])]
        yielded = 0
        while todo and yielded < MOST_CUTS and next(order) < MOST_DECISIONS:
            steps, _, operands, undecided, below, part = heappop(todo)
            if not undecided:
                if operands and self.steps(part) <= most_steps:
                    yielded += 1
                    yield tuple(self.among(operands)), part
                continue
            place = undecided.bit_length() - 1
            one = 1 << place
            if may_be & one and operands.bit_count() < most_operands:
                heappush(todo, (steps, next(order), operands | one, undecided ^ one, below | self._below[place], part))
            more = steps + self.steps(one)
            if self._inner & one and not one & below and more <= most_steps:
                heappush(todo, (more, next(order), operands, (undecided ^ one) | (self._reads[place] & ~operands), below,
                                part | self._own[place]))
