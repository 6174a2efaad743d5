"""signature_counts: the signatures of a graph, how often each occurs, and the layouts of their operands; computed once per graph.

Nodes are alike if they have equal ops, attributes and operand types (language/node.py). Results that depend on these alone are
computed for the first of the alike nodes, and the other nodes are only counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import PartOp, PartRecipe, known_when_bound
from tensor_graphs.language.composite import CompositeOp, Definition
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, alike, is_step, walk
from tensor_graphs.paths import copies
from tensor_graphs.paths.lower import Operand

if TYPE_CHECKING:
    from tensor_graphs.paths.strided_readers import Readers, Reading

Layouts = tuple[tuple[int, Operand], ...]
"""(position, layout) of each operand of a node that is not contiguous."""


@dataclass
class Tally:
    """The signatures of a graph's nodes, and of the nodes inside those composites whose definitions were examined.

    first: signature key -> the first signature with that key, shared by all tallies of a graph; signatures with equal keys differ
    only in the dims they contain. layouts: signature -> the operand layouts of the nodes that run, counted.
    """

    first: dict[str, Signature] = field(default_factory=dict)
    layouts: dict[Signature, Counter[Layouts]] = field(default_factory=dict)

    def copy(self) -> Tally:
        """Return another tally of the graph, to which more nodes can be added."""
        return Tally(self.first, {s: Counter(counter) for s, counter in self.layouts.items()})

    def add(self, same: Mapping[Node, Node], bound: Collection[Node] = ()) -> dict[Signature, int]:
        """Return signature -> number of nodes computed in a run, for the nodes that need a choice. same: node -> the first node
        that is alike. bound: nodes whose values are known when the graph is bound."""
        counts: dict[Signature, int] = {}
        bound = known_when_bound(list(same), bound)
        with_gaps = copies.strided(same, bound)
        signatures: dict[Node, Signature | None] = {}
        for node, first in same.items():
            if first not in signatures:
                s = signature_of(first) if is_step(first) else None
                signatures[first] = None if s is None else self.first.setdefault(s.key, s)
            if (s := signatures[first]) is None:
                continue
            counts[s] = counts.get(s, 0) + (node not in bound)
            if node not in bound:
                layouts = tuple([(i, with_gaps[x]) for i, x in enumerate(node.inputs) if x in with_gaps]) if with_gaps else ()
                self.layouts.setdefault(s, Counter())[layouts] += 1
        return counts


class GraphTally:
    """The tally of an entire graph. top: the graph's own signatures, with how often each runs. varies: keys of the composites of
    which more operands are known at bind time at one position in the graph than at another."""

    def __init__(self, graph: Graph) -> None:
        self.roots, self.alike, self.tally = graph.roots, graph.alike, Tally()     # not the graph: `_tallies` would keep it
        self.top = list(self.tally.add(graph.alike).items())
        self._bound, self.varies = _bound_operands(graph.alike)
        self._readers: Readers | None = None
        self._readings: dict[tuple[Signature, str], Reading | None] = {}
        self._inside: dict[Signature, list[TensorType]] = {}

    def bound(self, s: Signature) -> frozenset[int]:
        """Return the positions of a composite's operands that depend on parameters alone wherever the composite occurs."""
        return self._bound.get(s.key, s.spec.op.bound if isinstance(s.spec.op, PartOp) else frozenset[int]())

    def copied_inside(self, s: Signature) -> list[TensorType]:
        """Return the types of the views that a composite's definition has to copy (no strides express them); none for a part."""
        if s not in self._inside:
            op, self._inside[s] = s.spec.op, []
            if isinstance(op, CompositeOp) and not isinstance(op, PartOp):
                written = op.define(s.spec.inputs, s.spec.attrs)
                nodes = alike(walk(written.outputs))
                bound = known_when_bound(list(nodes), [written.arguments[i] for i in self.bound(s)])
                self._inside[s] = copies.forced(nodes, copies.strided(nodes, bound))
        return self._inside[s]

    def handed_on(self, s: Signature, recipe: PartRecipe) -> Reading | None:
        """Return the readers of a recipe's results with gaps, wherever the part occurs in the graph; None where no result has gaps.
        A part inside another part counts as copied at one position, as its readers depend on how the outer part is computed."""
        if (key := (s, recipe.op.key)) not in self._readings:
            outputs = recipe.op.define(s.spec.inputs, s.spec.attrs).outputs
            layouts, self._readings[key] = copies.strided(alike(walk(outputs))), None
            if any(o in layouts for o in outputs):
                from tensor_graphs.paths.strided_readers import Readers  # a door: most recipes hand on nothing with gaps

                self._readers = self._readers or Readers(self.roots, self.alike, self.tally.first)
                self._readings[key] = self._readers.of(s, outputs, layouts)
        return self._readings[key]


def _bound_operands(same: Mapping[Node, Node]) -> tuple[dict[str, frozenset[int]], frozenset[str]]:
    """Return (composite's signature key -> operands that depend on parameters alone wherever it occurs, in a graph and in all
    definitions and recipes that the graph may run; `GraphTally.varies`)."""
    places: dict[str, dict[frozenset[int], Signature]] = {}
    todo: list[tuple[Signature, frozenset[int]]] = []

    def add(same: Mapping[Node, Node], arguments: Collection[Node]) -> None:
        nodes = known_when_bound(list(same), arguments)
        for first, held in dict.fromkeys((first, frozenset(i for i, x in enumerate(node.inputs) if x in nodes))
                                         for node, first in same.items() if isinstance(node.op, CompositeOp) and node not in nodes):
            s = signature_of(first)
            if held not in places.setdefault(s.key, {}):
                places[s.key][held] = s
                todo.append((s, held))

    add(same, ())
    for s, held in todo:                                            # grows during the loop
        for written in _written(s):
            add(alike(walk(written.outputs)), [written.arguments[i] for i in held])
    bound = {key: frozenset.intersection(*at) for key, at in places.items()}

    def steps_bound(written: Definition, operands: Collection[int]) -> int:
        return sum(map(is_step, known_when_bound(walk(written.outputs), [written.arguments[i] for i in operands])))

    varies = (key for key, at in places.items() if len(at) > 1 and any(
        len({steps_bound(written, held) for held in (bound[key], *at)}) > 1 for written in _written(next(iter(at.values())))))
    return bound, frozenset(varies)


def _written(s: Signature) -> list[Definition]:
    """Return the definitions that may replace a composite: its own, and those of a part's recipes."""
    op = s.spec.op
    assert isinstance(op, CompositeOp)
    ops = [op, *(r.op for r in op.recipes)] if isinstance(op, PartOp) else [] if op.opaque else [op]
    return [composite.define(s.spec.inputs, s.spec.attrs) for composite in ops]


_tallies: WeakKeyDictionary[Graph, GraphTally] = WeakKeyDictionary()
"""Cache: a graph is costed several times while it is compiled."""


def tally_of(graph: Graph) -> GraphTally:
    """Return the tally of a graph, computed at the first call."""
    if graph not in _tallies:
        _tallies[graph] = GraphTally(graph)
    return _tallies[graph]
