"""tally: which signatures a graph asks, how often, and how what they read lies. No price is in it, so it is made once for a graph.

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
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, alike, is_step, walk
from tensor_graphs.language.part import PartOp, PartRecipe, known_when_bound
from tensor_graphs.paths import copies
from tensor_graphs.paths.lower import Operand

if TYPE_CHECKING:
    from tensor_graphs.paths.reading import Readers, Reading

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
    """The tally of a whole graph. top: its own signatures, with how often each runs."""

    def __init__(self, graph: Graph) -> None:
        self.roots, self.alike, self.tally = graph.roots, graph.alike, Tally()     # not the graph: `_tallies` would keep it
        self.top = list(self.tally.add(graph.alike).items())
        self._readers: Readers | None = None
        self._readings: dict[tuple[Signature, str], Reading | None] = {}
        self._inside: dict[Signature, list[TensorType]] = {}

    def copied_inside(self, s: Signature) -> list[TensorType]:
        """What a composite's own definition copies, where a view of what lies with gaps is none; of a part nothing is said."""
        if s not in self._inside:
            op, self._inside[s] = s.spec.op, []
            if isinstance(op, CompositeOp) and not isinstance(op, PartOp):
                nodes = alike(walk(op.define(s.spec.inputs, s.spec.attrs).outputs))
                self._inside[s] = copies.forced(nodes, copies.apart(nodes))
        return self._inside[s]

    def handed_on(self, s: Signature, recipe: PartRecipe) -> Reading | None:
        """Who reads what a recipe of a part hands on with gaps, over all places of the part in the graph; None: nothing is. Of a
        part inside of another it depends on how that is computed: as if it were copied, at one place."""
        if (key := (s, recipe.op.key)) not in self._readings:
            outputs = recipe.op.define(s.spec.inputs, s.spec.attrs).outputs
            lies, self._readings[key] = copies.apart(alike(walk(outputs))), None
            if any(o in lies for o in outputs):
                from tensor_graphs.paths.reading import Readers  # a door: most recipes hand on nothing with gaps

                self._readers = self._readers or Readers(self.roots, self.alike, self.tally.first)
                self._readings[key] = self._readers.of(s, outputs, lies)
        return self._readings[key]


_tallies: WeakKeyDictionary[Graph, GraphTally] = WeakKeyDictionary()
"""a graph is priced several times while it is compiled"""


def tally_of(graph: Graph) -> GraphTally:
    """Made once for each graph."""
    if graph not in _tallies:
        _tallies[graph] = GraphTally(graph)
    return _tallies[graph]
