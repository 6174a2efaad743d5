"""strided_readers: who reads what a recipe hands on with gaps, all over a graph, and has it copied. Loaded where there is any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.node import Node, TensorType, consumers
from tensor_graphs.language.part import PartOp
from tensor_graphs.paths import copies
from tensor_graphs.paths.lower import Operand


@dataclass
class Reading:
    """Who reads values that lie with gaps, at so many places.

    copied: values that are copied whole, and how many; by kernels: (signature, the positions, how the value lies), and how many.
    """

    places: int
    copied: Counter[TensorType] = field(default_factory=Counter)
    by_kernels: Counter[tuple[Signature, tuple[int, ...], Operand]] = field(default_factory=Counter)


class Readers:
    """Of a graph, whose nodes have each the first that is alike. first: signature of each key, of those that the graph asks."""

    def __init__(self, roots: Sequence[Node], same: Mapping[Node, Node], first: Mapping[str, Signature]) -> None:
        self.roots, self.alike, self.users = set(roots), same, consumers(roots)
        self.places: dict[Signature, list[Node]] = {}
        for node in self.users:
            if isinstance(node.op, PartOp):
                self.places.setdefault(first[signature_of(node).key], []).append(node)

    def of(self, s: Signature, outputs: Sequence[Node], lies: Mapping[Node, Operand]) -> Reading:
        """Of all places of a part, one of whose recipes gives these outputs. lies: how its values lie that are not contiguous."""
        lie, places = [lies.get(o) for o in outputs], self.places.get(s, [])
        if not places:
            return Reading(1, Counter(o.type for o, x in zip(outputs, lie, strict=True) if x is not None))
        made = Reading(len(places))
        known: dict[tuple[Node, int], Operand | None] = {}          # how a view of what lies like this lies, by the alike and id
        read: Counter[tuple[Node, tuple[int, ...], int]] = Counter()
        those = {id(x): x for x in lie if x is not None}
        todo = []
        for place in places:
            values = {place: lie[0]} if len(lie) == 1 else {item: lie[item.attrs["index"]] for item in self.users[place]}
            todo += [(value, x) for value, x in values.items() if x is not None]
        while todo:
            value, x = todo.pop()
            if value in self.roots:
                made.copied[value.type] += 1
            for user in dict.fromkeys(self.users[value]):
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
