"""strided_readers: the nodes of a graph that read results with gaps of a recipe. Imported only where there are such results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.node import Node, TensorType, consumers
from tensor_graphs.paths import copies
from tensor_graphs.paths.lower import Operand


@dataclass
class Reading:
    """Reads of values with gaps, where the part occurs `places` times. copied: types of the values that are copied, counted.
    by_kernels: (reader's signature, operand positions, layout of the value), counted."""

    places: int
    copied: Counter[TensorType] = field(default_factory=Counter)
    by_kernels: Counter[tuple[Signature, tuple[int, ...], Operand]] = field(default_factory=Counter)


class Readers:
    """The readers in a graph. same: node -> the first node that is alike. first: signature key -> signature in the graph."""

    def __init__(self, roots: Sequence[Node], same: Mapping[Node, Node], first: Mapping[str, Signature]) -> None:
        self.roots, self.alike, self.users = set(roots), same, consumers(roots)
        self.places: dict[Signature, list[Node]] = {}
        for node in self.users:
            if isinstance(node.op, PartOp):
                self.places.setdefault(first[signature_of(node).key], []).append(node)

    def of(self, s: Signature, outputs: Sequence[Node], layouts: Mapping[Node, Operand]) -> Reading:
        """Return the reads, wherever the part `s` occurs, of one recipe's outputs. layouts: of the outputs that have gaps."""
        results, places = [layouts.get(o) for o in outputs], self.places.get(s, [])
        if not places:
            return Reading(1, Counter(o.type for o, x in zip(outputs, results, strict=True) if x is not None))
        reading = Reading(len(places))
        views: dict[tuple[Node, int], Operand | None] = {}          # by the alike and the id of the operand's layout
        read: Counter[tuple[Node, tuple[int, ...], int]] = Counter()
        by_id = {id(x): x for x in results if x is not None}
        todo = []
        for place in places:
            values = {place: results[0]} if len(results) == 1 else {i: results[i.attrs["index"]] for i in self.users[place]}
            todo += [(value, x) for value, x in values.items() if x is not None]
        while todo:
            value, x = todo.pop()
            if value in self.roots:
                reading.copied[value.type] += 1
            for user in dict.fromkeys(self.users[value]):
                first = self.alike[user]
                if not user.op.facts.view:
                    read[first, tuple([i for i, operand in enumerate(user.inputs) if operand is value]), id(x)] += 1
                    continue
                if (first, id(x)) not in views:
                    views[first, id(x)] = copies.layout_of(user, x)
                view = views[first, id(x)]
                if view is None:
                    reading.copied[value.type] += 1
                elif not view.contiguous:
                    by_id[id(view)] = view
                    todo.append((user, view))
        for (user, at, number), count in read.items():
            x = by_id[number]
            if isinstance(user.op, PartOp):
                reading.copied[TensorType(x.shape, x.dtype)] += count * len(at)
            else:
                reading.by_kernels[signature_of(user), at, x] += count
        return reading
