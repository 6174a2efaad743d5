"""merge_alternatives: two equivalent forms of a graph merged into one graph that can run as either.

A piece for which a user registered a kernel, or at which a user's rule holds, becomes a part, and its steps are no longer joined
with their neighbours. So a graph is rewritten to one form without the user's additions, and to a second form with them. Where the
two differ, the merged graph has a part whose definition is the first form and whose recipe is the second. Cost decides which one
runs: a kernel or a rule adds alternatives and removes none. If the second form only puts a part around steps of the first, that
part is used.
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

from tensor_graphs.language.anonymous_composite import PartOp, other_dims, over
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, consumers
from tensor_graphs.rewrites.candidate import Offer, Other
from tensor_graphs.rewrites.passes.offer_recipes import formed
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.proved_composites import PROVED
from tensor_graphs.rewrites.rule import BITWISE
from tensor_graphs.rewrites.subgraphs import fed
from tensor_graphs.rewrites.user_rules import user_rules


def both(one: PassResult, other: PassResult, graph: Graph) -> PassResult:
    """Return the first form of a graph with the second form's alternatives added. Numeric class: bitwise; what runs is chosen
    later. graph: the graph before both; its nodes relate the two forms."""
    if one.graph is other.graph:
        return one
    return one.then(formed(one.graph, list(_Difference(one, other, graph).offers()), {}, one.graph.roots))


class _Difference:
    """The differences of two forms of a graph. twin: maps values (and nodes that both forms have) of the first form to nodes of the
    second. back: the inverse. A difference ends at values with a twin."""

    def __init__(self, one: PassResult, other: PassResult, graph: Graph) -> None:
        self.one, self.other = one.graph, other.graph
        here, there = set(self.one.nodes), set(self.other.nodes)
        self.twin: dict[Node, Node] = {}
        self.back: dict[Node, Node] = {}
        values = [(one.images.get(n, n), other.images.get(n, n)) for n in graph.nodes if len(n.types) == 1]
        for a, b in (*zip(self.one.roots, self.other.roots, strict=True), *values, *((n, n) for n in self.one.nodes)):
            if a in here and b in there:
                self._pair(a, b)
        self.alike: set[Node] = set()                               # of the first: what both say in one way, of the same operands
        keys = {self._said(b, b.inputs): b for b in self.other.nodes}
        for a in self.one.nodes:
            same = keys.get(self._said(a, [self.twin.get(i, i) for i in a.inputs]))
            if same is not None and self._pair(a, same):
                self.alike.add(a)
        self.place = {n: i for i, n in enumerate(self.one.nodes)}
        self.live = fed(self.one.nodes) | fed(self.other.nodes)    # what is not is said again by what reads it
        self.readers, self.other_readers = consumers(self.one.roots), consumers(self.other.roots)
        self.roots = {*self.one.roots, *self.other.roots}

    def _pair(self, a: Node, b: Node) -> bool:
        return self.twin.setdefault(a, b) is b and self.back.setdefault(b, a) is a

    @staticmethod
    def _said(node: Node, inputs: Sequence[Node]) -> Hashable:
        recipes = [r.name for r in node.op.recipes] if isinstance(node.op, PartOp) else []
        return node.said, tuple(recipes), tuple(inputs)

    def offers(self) -> Iterator[Offer]:
        for own, new in self._pieces():
            outputs = [n for n in own if len(n.types) == 1 and (self.is_read(n, self.readers, own) or (
                n in self.twin and self.is_read(self.twin[n], self.other_readers, new)))]
            read = dict.fromkeys([*(i for n in own for i in n.inputs if i in self.live and i not in own),
                                  *(self.back[i] for n in new for i in n.inputs if i in self.live and i not in new)])
            operands = sorted(read, key=self.place.__getitem__)
            wording = over([self.twin[o] for o in outputs], [self.twin[o] for o in operands], operands)
            names = tuple(dict.fromkeys(name for n in new if isinstance(n.op, PartOp) for name in _added(n.op)))
            if not names or other_dims(outputs, operands) != other_dims(wording, operands):
                continue                                            # the wordings of a part mention the same dims
            stands = all(map(_is_said_by, wording, outputs))
            yield Offer(tuple(operands), tuple(outputs), frozenset(own),
                        (Other(wording, names, f"users added {', '.join(names)}", BITWISE),), stands)

    def is_read(self, n: Node, readers: Mapping[Node, Sequence[Node]], piece: Collection[Node]) -> bool:
        """Return whether a value is read outside a piece."""
        return n in self.roots or any(r not in piece for r in readers.get(n, ()))

    def _pieces(self) -> Iterator[tuple[dict[Node, None], dict[Node, None]]]:
        """Yield each connected group of nodes in which the forms differ: (nodes of the first, nodes of the second). A group is
        convex: in neither form a path leaves it and comes back."""
        home: dict[Node, Node] = {}

        def find(n: Node) -> Node:
            while n in home:
                n = home[n]
            return n

        def join(a: Node, b: Node) -> None:
            if (a := find(a)) is not (b := find(b)):
                home[a] = b

        alike = self.alike | {self.twin[a] for a in self.alike}
        wordings = [[n for n in graph.nodes if n in self.live] for graph in (self.one, self.other)]
        nodes = list(dict.fromkeys(itertools.chain(*wordings)))
        for n in nodes:
            if n in self.twin:
                join(n, self.twin[n])
            for i in n.inputs:
                if n not in alike and i in self.live and i not in self.twin and i not in self.back:
                    join(n, i)
        while True:
            needs: dict[Node, set[Node]] = {find(n): set() for n in nodes}
            for n in nodes:
                needs[find(n)] |= {find(i) for i in n.inputs if i in self.live} - {find(n)}
            try:
                graphlib.TopologicalSorter(needs).prepare()
                break
            except graphlib.CycleError as e:
                for n in e.args[1]:
                    join(n, e.args[1][0])
        for piece in dict.fromkeys(find(n) for n in nodes if n not in alike):
            own, new = (dict.fromkeys(n for n in wording if find(n) is piece and n.op.kind != "leaf") for wording in wordings)
            yield own, new


def _without_somebodys(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with the parts that users added replaced by their definitions."""
    return expand_all(nodes, lambda n: not isinstance(n.op, PartOp) or (n.op.alone and not _rules(n.op)))


def _rules(op: PartOp) -> list[str]:
    """Return the user-registered rules and the proofs that gave a part its recipes."""
    names = {r.name for r in user_rules()}
    return [name for recipe in op.recipes for name in recipe.rules if name in names or name.startswith(PROVED)]


def _added(op: PartOp) -> list[str]:
    """Return the names of what users added to a part: rules, or the piece for which a kernel is registered."""
    return [*_rules(op), *([op.name] if op.somebodys else [])]


def _is_said_by(new: Node, own: Node) -> bool:
    """Return whether two nodes are equal, apart from parts that users added and that are equal by definition."""
    todo, seen = [(new, own)], set[tuple[Node, Node]]()
    while todo:
        pair = a, b = todo.pop()
        if a is b or pair in seen:
            continue
        seen.add(pair)
        (words,) = _without_somebodys([a])
        if isinstance(a.op, PartOp) and isinstance(b.op, PartOp):
            mine, its = _words(a.op, a.inputs), _words(b.op, b.inputs)
            same = words is a and mine == its
            if same or (not a.op.somebodys and mine[0] == its[0] and all(way in mine for way in its)):
                continue                                            # the same part, perhaps with rules' words added
        if words is not a:
            todo.append((words, b))
        elif a.op is not b.op or a.key[2] != b.key[2] or len(a.inputs) != len(b.inputs):
            return False
        else:
            todo += zip(a.inputs, b.inputs, strict=True)
    return True


def _words(op: PartOp, operands: Sequence[Node]) -> list[list[Node]]:
    """Return all alternatives that a part may run, on its operands: its definition and its recipes."""
    return [_without_somebodys(over(part.written.outputs, part.written.arguments, operands))
            for part in (op, *(r.op for r in op.recipes))]
