"""signature_counts: which signatures a graph asks, how often, and how what they read lies. No price is in it, so it is made once
for a graph.

Equal layers ask the same: what follows from a node's op, attributes and operand types is asked of the first of those that are alike
(language/node.py), and the others are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.composite import CompositeOp, Definition
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, alike, is_step, walk
from tensor_graphs.language.part import PartOp, PartRecipe, known_when_bound
from tensor_graphs.paths import copies
from tensor_graphs.paths.lower import Operand

if TYPE_CHECKING:
    from tensor_graphs.paths.strided_readers import Readers, Reading

Lies = tuple[tuple[int, Operand], ...]
"""how the operands of a node lie that are not contiguous, by position"""


@dataclass
class Tally:
    """The signatures of a graph's nodes, and of those inside its composites as they are looked at.

    first: signature of each key, one for all tallies of a graph; the others of that key are the same question, their dims in other
    places. lies: how the operands of the nodes that run lie, and of how many.
    """

    first: dict[str, Signature] = field(default_factory=dict)
    lies: dict[Signature, Counter[Lies]] = field(default_factory=dict)

    def copy(self) -> Tally:
        """Another one of the same graph, to which more is added."""
        return Tally(self.first, {s: Counter(each) for s, each in self.lies.items()})

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


class GraphTally:
    """The tally of a whole graph. top: its own signatures, with how often each runs. varies: keys of the composites of which more
    is known when the graph is bound at one place than at another."""

    def __init__(self, graph: Graph) -> None:
        self.roots, self.alike, self.tally = graph.roots, graph.alike, Tally()     # not the graph: `_tallies` would keep it
        self.top = list(self.tally.add(graph.alike).items())
        self._bound, self.varies = _bound_operands(graph.alike)
        self._readers: Readers | None = None
        self._readings: dict[tuple[Signature, str], Reading | None] = {}
        self._inside: dict[Signature, list[TensorType]] = {}

    def bound(self, s: Signature) -> frozenset[int]:
        """The operands of a composite that parameters alone decide, at each place where it runs."""
        given = s.spec.op.bound if isinstance(s.spec.op, PartOp) else frozenset[int]()
        return self._bound.get(s.key, given)

    def copied_inside(self, s: Signature) -> list[TensorType]:
        """What a composite's own definition copies, where a view of what lies with gaps is none; of a part nothing is said."""
        if s not in self._inside:
            op, self._inside[s] = s.spec.op, []
            if isinstance(op, CompositeOp) and not isinstance(op, PartOp):
                written = op.define(s.spec.inputs, s.spec.attrs)
                nodes = alike(walk(written.outputs))
                known = known_when_bound(list(nodes), [written.arguments[i] for i in self.bound(s)])
                self._inside[s] = copies.forced(nodes, copies.apart(nodes, known))
        return self._inside[s]

    def handed_on(self, s: Signature, recipe: PartRecipe) -> Reading | None:
        """Who reads what a recipe of a part hands on with gaps, over all places of the part in the graph; None: nothing is. Of a
        part inside of another it depends on how that is computed: as if it were copied, at one place."""
        if (key := (s, recipe.op.key)) not in self._readings:
            outputs = recipe.op.define(s.spec.inputs, s.spec.attrs).outputs
            lies, self._readings[key] = copies.apart(alike(walk(outputs))), None
            if any(o in lies for o in outputs):
                from tensor_graphs.paths.strided_readers import Readers  # a door: most recipes hand on nothing with gaps

                self._readers = self._readers or Readers(self.roots, self.alike, self.tally.first)
                self._readings[key] = self._readers.of(s, outputs, lies)
        return self._readings[key]


def _bound_operands(same: Mapping[Node, Node]) -> tuple[dict[str, frozenset[int]], frozenset[str]]:
    """(operands of each composite that parameters alone decide at every place where it runs, in a graph and in all definitions and
    recipes that it may run; the composites of which more is known at one place than at another), by the signatures' keys."""
    places: dict[str, dict[frozenset[int], Signature]] = {}
    todo: list[tuple[Signature, frozenset[int]]] = []

    def add(same: Mapping[Node, Node], given: Collection[Node]) -> None:
        known = known_when_bound(list(same), given)
        for first, held in dict.fromkeys((first, frozenset(i for i, x in enumerate(node.inputs) if x in known))
                                         for node, first in same.items() if isinstance(node.op, CompositeOp) and node not in known):
            s = signature_of(first)
            if held not in places.setdefault(s.key, {}):
                places[s.key][held] = s
                todo.append((s, held))

    add(same, ())
    for s, held in todo:                                            # which grows
        for written in _written(s):
            add(alike(walk(written.outputs)), [written.arguments[i] for i in held])
    bound = {key: frozenset.intersection(*each) for key, each in places.items()}
    varies = (key for key, each in places.items() if len(each) > 1 and any(
        len({_steps_known(written, held) for held in (bound[key], *each)}) > 1 for written in _written(next(iter(each.values())))))
    return bound, frozenset(varies)


def _written(s: Signature) -> list[Definition]:
    """What may run in place of a composite: its definition, and a part's recipes."""
    op = s.spec.op
    assert isinstance(op, CompositeOp)
    ops = [op, *(r.op for r in op.recipes)] if isinstance(op, PartOp) else [] if op.opaque else [op]
    return [each.define(s.spec.inputs, s.spec.attrs) for each in ops]


def _steps_known(written: Definition, bound: Collection[int]) -> int:
    known = known_when_bound(walk(written.outputs), [written.arguments[i] for i in bound])
    return sum(map(is_step, known))


_tallies: WeakKeyDictionary[Graph, GraphTally] = WeakKeyDictionary()
"""a graph is priced several times while it is compiled"""


def tally_of(graph: Graph) -> GraphTally:
    """Made once for each graph."""
    if graph not in _tallies:
        _tallies[graph] = GraphTally(graph)
    return _tallies[graph]
