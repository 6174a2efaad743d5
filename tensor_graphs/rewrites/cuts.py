"""cuts: the small parts of a graph that end in a node: one output, few operands, few steps, nothing that leaves and comes back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step
from tensor_graphs.language.part import between

MOST_CUTS = 160
"""Parts that are looked at for one output."""


def inside(node: Node, operands: Collection[Node]) -> set[Node]:
    """What is computed from the operands on the way to a node, the node included; no leaves."""
    return {n for n in between([node], operands) if n.op.kind != "leaf"}


def fed(nodes: Iterable[Node]) -> set[Node]:
    """Of nodes, operands before users: those that depend on a leaf with a name. What does not is part of whoever reads it."""
    found: set[Node] = set()
    for n in nodes:
        if n.op in leaves.NAMED_LEAVES or any(i in found for i in n.inputs):
            found.add(n)
    return found


class Cuts:
    """The parts of one graph. fed: as `fed` has it."""

    def __init__(self, graph: Graph) -> None:
        self.fed = fed(graph.nodes)
        self._bit = {n: 1 << i for i, n in enumerate(graph.nodes)}
        self._below: dict[Node, int] = {}                           # what a node is made of, as bits
        for n in graph.nodes:
            self._below[n] = self._bit[n]
            for i in n.inputs:
                self._below[n] |= self._below[i]

    def of(self, node: Node, most_steps: int, most_operands: int) -> Iterator[tuple[Node, ...]]:
        """Sets of operands over which a node is a part of few steps, and from which no way leads out of the part and back."""
        first = frozenset(i for i in node.inputs if i in self.fed)
        seen, todo = {first}, [first]
        while todo and len(seen) < MOST_CUTS:
            cut = todo.pop(0)
            part = inside(node, cut)
            if sum(map(is_step, part)) > most_steps:
                continue
            bits = sum(self._bit[n] for n in part)
            if 0 < len(cut) <= most_operands and not any(self._below[o] & bits for o in cut):
                yield tuple(self.in_order(cut))
            for operand in sorted(cut, key=lambda o: -self._bit[o]):
                if operand.op.kind == "leaf" or len(operand.types) != 1 or operand.op is leaves.ITEM:
                    continue
                wider = (cut - {operand}) | {i for i in operand.inputs if i in self.fed}
                if wider not in seen and len(wider) <= most_operands + 1:
                    seen.add(wider)
                    todo.append(wider)

    def in_order(self, nodes: Collection[Node]) -> Sequence[Node]:
        return sorted(nodes, key=lambda n: self._bit[n])
