"""tally: which signatures a graph asks, how often, and how what they read lies. No price is in it, so it is made once for a graph.

Equal layers ask the same: what follows from a node's op, attributes and operand types is asked of the first of those that are alike
(language/node.py), and the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, alike, consumers, is_step, walk
from tensor_graphs.language.part import PartOp, known_when_bound
from tensor_graphs.paths import copies
from tensor_graphs.paths.lower import Operand

Lies = tuple[tuple[int, Operand], ...]
"""how the operands of a node lie that are not contiguous, by position"""


@dataclass
class Tally:
    """The signatures of a graph's nodes, and of those inside its composites as they are looked at.

    first: signature of each key; the others of that key are the same question. lies: how the operands of the nodes that run lie,
    and of how many.
    """

    first: dict[str, Signature] = field(default_factory=dict)
    lies: dict[Signature, Counter[Lies]] = field(default_factory=dict)

    def copy(self) -> Tally:
        """Another one, to which more is added."""
        return Tally(dict(self.first), {s: Counter(each) for s, each in self.lies.items()})

    def add(self, same: Mapping[Node, Node], known: Collection[Node] = ()) -> dict[Signature, int]:
        """Signatures of the nodes that need a choice, with how many nodes of each are computed in a run. known: what is not.
        same: nodes with the first that is alike."""
        counts: dict[Signature, int] = {}
        known = known_when_bound(list(same), known)
        with_gaps = copies.apart(same, known)
        asked: dict[Node, Signature | None] = {}
        for node, first in same.items():
            if first not in asked:
                s = signature_of(first) if is_step(first) else None
                asked[first] = None if s is None else self.first.setdefault(s.key, s)
            s = asked[first]
            if s is None:
                continue
            counts[s] = counts.get(s, 0) + (node not in known)
            if node not in known:
                lies = tuple([(i, with_gaps[x]) for i, x in enumerate(node.inputs) if x in with_gaps]) if with_gaps else ()
                self.lies.setdefault(s, Counter())[lies] += 1
        return counts


@dataclass
class Reading:
    """Who reads values that lie with gaps, at so many places.

    copied: values that are copied whole, and how many; by kernels: (signature, the positions, how the value lies), and how many.
    """

    places: int
    copied: Counter[TensorType] = field(default_factory=Counter)
    by_kernels: Counter[tuple[Signature, tuple[int, ...], Operand]] = field(default_factory=Counter)


class GraphTally:
    """The tally of a whole graph. top: its own signatures, with how often each runs."""

    def __init__(self, graph: Graph) -> None:
        self.roots, self.alike, self.tally = graph.roots, graph.alike, Tally()     # not the graph: `_tallies` would keep it
        self.top = list(self.tally.add(graph.alike).items())
        self._users: dict[Node, list[Node]] = {}
        self._places: dict[Signature, list[Node]] = {}
        self._readings: dict[tuple[Signature, str], Reading] = {}

    def handed_on(self, s: Signature, op: CompositeOp) -> Reading:
        """Who reads what is handed on with gaps where a definition runs (of a composite, or of a recipe of a part), over all its
        places in the graph. Of one inside of another it depends on how that is computed: as if it were copied, at one place. Of a
        composite also what is copied before that, where a view is none."""
        if (key := (s, op.key if isinstance(op, PartOp) else "")) not in self._readings:
            outputs = op.define(s.spec.inputs, s.spec.attrs).outputs
            same = alike(walk(outputs))
            lie = copies.apart(same)
            read = self._read(s, outputs, [lie.get(o) for o in outputs])
            if not isinstance(op, PartOp):
                read.copied.update({t: n * read.places for t, n in Counter(copies.forced(same)).items()})
            self._readings[key] = read
        return self._readings[key]

    def _read(self, s: Signature, outputs: Sequence[Node], lie: Sequence[Operand | None]) -> Reading:
        if not any(lie):
            return Reading(1)
        if not self._users:
            self._users = consumers(self.roots)
            for node in self._users:
                if isinstance(node.op, CompositeOp):
                    self._places.setdefault(self.tally.first[signature_of(node).key], []).append(node)
        places = self._places.get(s, [])
        if not places:
            return Reading(1, Counter(o.type for o, x in zip(outputs, lie, strict=True) if x is not None))
        made, roots = Reading(len(places)), set(self.roots)
        known: dict[tuple[Node, int], Operand | None] = {}          # how a view of what lies like this lies, by the alike and id
        read: Counter[tuple[Node, tuple[int, ...], int]] = Counter()
        those = {id(x): x for x in lie if x is not None}
        todo = []
        for place in places:
            values = {place: lie[0]} if len(lie) == 1 else {item: lie[item.attrs["index"]] for item in self._users[place]}
            todo += [(value, x) for value, x in values.items() if x is not None]
        while todo:
            value, x = todo.pop()
            if value in roots:
                made.copied[value.type] += 1
            for user in dict.fromkeys(self._users[value]):
                first = self.alike[user]
                if not user.op.facts.view:
                    read[first, tuple([i for i, each in enumerate(user.inputs) if each is value]), id(x)] += 1
                    continue
                if (first, id(x)) not in known:
                    known[first, id(x)] = copies.seen(user, x)
                view = known[first, id(x)]
                if view is None:
                    made.copied[value.type] += 1
                elif not view.contiguous:
                    those[id(view)] = view
                    todo.append((user, view))
        for (user, at, number), count in read.items():
            x = those[number]
            if isinstance(user.op, PartOp):
                made.copied[TensorType(x.shape, x.dtype)] += count * len(at)
            else:
                made.by_kernels[signature_of(user), at, x] += count
        return made


_tallies: WeakKeyDictionary[Graph, GraphTally] = WeakKeyDictionary()
"""a graph is priced several times while it is compiled"""


def tally_of(graph: Graph) -> GraphTally:
    """Made once for each graph."""
    if graph not in _tallies:
        _tallies[graph] = GraphTally(graph)
    return _tallies[graph]
