"""parts: where a graph computes what somebody's kernel computes, each such place made one node, so that the kernel is a candidate.

    formed = form(graph, parts)                 # parts: graphs as ops (language/part.py), those that kernels were registered for
    formed.graph, formed.show()                 # "90 rms_norm_linear_1a2b3c"

A place is a piece with the part's operand types that is proved to be the part (`proof.equal`), whatever its words. The node made
of it has the place's own words as its definition, so that expanding it gives back the graph as it was, the kernel is compared with
what the place says, and equal layers stay one question. What other nodes need too is not taken away from them: where a kernel of
the part runs, it is computed a second time.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, is_step, walk
from tensor_graphs.language.part import PartOp, note_same, over, part_between
from tensor_graphs.rewrites.cuts import Cuts, inside
from tensor_graphs.rewrites.recognise import write_out

log = logging.getLogger(__name__)

MORE_STEPS, MOST_STEPS = 2, 24
"""steps that a place may take beyond those of the part in atomic ops, and at most"""


@dataclass(frozen=True)
class Formed:
    """The graph with its parts as nodes; places: how many of each, by name. images: what became of each node of the graph, where
    that is another one."""

    graph: Graph
    places: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False)

    def show(self) -> str:
        """For people; "" where there is none."""
        return ", ".join(f"{count} {name}" for name, count in sorted(self.places.items()))


def form(graph: Graph, parts: Sequence[PartOp]) -> Formed:
    """The graph in which each place of a part is a node of its own. Numeric class: bitwise; what runs there is chosen later.

    At a node with places of several parts the smaller is inside of the larger. The very same graph where there is none.
    """
    if not parts:
        return Formed(graph)
    search = _PartSearch(graph, [_Wanted(p) for p in parts])
    made: dict[Node, Node] = {}
    places: Counter[str] = Counter()
    for node in graph.nodes:
        inputs = [made[i] for i in node.inputs]
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        made[node] = node if same else apply(node.op, inputs, node.attrs)
        known: dict[tuple[Node, ...], PartOp] = {}
        for op, operands in search.at(node):
            types = [o.type for o in operands]
            if operands in known:                                   # the same part, registered in two wordings
                note_same(op.define(types, {}), known[operands].define(types, {}))
                continue
            try:                                                    # with the parts inside of it, where none crosses its border
                whole = part_between([made[node]], [made[o] for o in operands], op.written.digest)
            except LanguageError:
                whole = part_between([node], operands, op.written.digest)
            note_same(op.define(types, {}), whole.define(types, {}))
            known[operands] = whole
            made[node] = apply(whole, [made[o] for o in operands], {})
            places[whole.name] += 1
    if not places:
        return Formed(graph)
    log.info("formed %s", dict(places))
    images = {n: m for n, m in made.items() if n is not m}
    return Formed(graph.with_roots([made[r] for r in graph.roots]), dict(places), images)


class _Wanted:
    """A part, and what a piece must have to be compared with it."""

    def __init__(self, op: PartOp) -> None:
        self.op = op
        self.arguments, self.output = op.written.arguments, op.written.outputs[0]
        self.graph = _alone(self.output, self.arguments, [a.type for a in self.arguments])
        self.telling = telling(self.graph.nodes)
        self.most_steps = min(MOST_STEPS, MORE_STEPS + sum(map(is_step, write_out(self.graph).nodes)))

    def orders(self, cut: Sequence[Node], output: TensorType) -> Iterator[tuple[Node, ...]]:
        """The operands in each order in which their types are the part's."""
        for order in itertools.permutations(cut):
            types = [o.type for o in order]
            if all(t.dtype == a.type.dtype and t.rank == a.type.rank for t, a in zip(types, self.arguments, strict=True)) \
                    and self._in_range(types):
                try:
                    made = self.op.define(types, {})
                except LanguageError:
                    continue
                if made.outputs[0].type == output:
                    yield order

    def _in_range(self, types: Sequence[TensorType]) -> bool:
        """Whether every size lies in the range of the part's dim that stands for it."""
        for t, a in zip(types, self.arguments, strict=True):
            for size, wanted in zip(t.shape, a.type.shape, strict=True):
                (low, high), (least, most) = _bounds(size), _bounds(wanted)
                if low < least or high > most:
                    return False
        return True


def _bounds(size: d.Dim) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else d.bounds(size)


_kinds: dict[str, frozenset[str]] = {}
"""by the digest of a definition"""


def telling(nodes: Sequence[Node]) -> frozenset[str]:
    """Which telling ops (facts.py) occur in nodes, in the definitions of composites too: a piece with others is not compared."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node.op, CompositeOp) and not node.op.opaque:
            key = node.op.identity(node)
            if key not in _kinds:
                _kinds[key] = telling(walk(node.op.define([i.type for i in node.inputs], node.attrs).outputs))
            found |= _kinds[key]
        elif node.op.facts.telling:
            found.add(node.op.name)
    return frozenset(found)


class _PartSearch:
    """The places of parts in one graph."""

    def __init__(self, graph: Graph, wanted: Sequence[_Wanted]) -> None:
        self.cuts, self.wanted = Cuts(graph), wanted
        self.most_steps = max(w.most_steps for w in wanted)
        self.most_operands = max(len(w.arguments) for w in wanted)
        self._kinds = {(a.type.dtype, a.type.rank) for w in wanted for a in w.arguments}

    def at(self, node: Node) -> list[tuple[PartOp, tuple[Node, ...]]]:
        """(part, its operands) of those that end in a node, the smallest first, one of each part."""
        likely = [w for w in self.wanted if w.output.type.dtype == node.type.dtype and w.output.type.rank == node.type.rank
                  ] if is_step(node) and len(node.types) == 1 and node in self.cuts.fed else []
        if not likely:
            return []
        found: dict[PartOp, tuple[int, tuple[Node, ...]]] = {}
        for cut in self.cuts.of(node, self.most_steps, self.most_operands, self._may_be_operand):
            piece = inside(node, cut)
            steps, kinds = sum(map(is_step, piece)), None
            for w in likely:
                if len(cut) != len(w.arguments) or steps > w.most_steps or (w.op in found and found[w.op][0] <= steps):
                    continue
                kinds = telling(list(piece)) if kinds is None else kinds
                if kinds != w.telling:
                    continue
                for order in w.orders(cut, node.type):
                    if is_same(w, node, order):
                        found[w.op] = steps, order
                        break
        return [(op, order) for op, (_, order) in sorted(found.items(), key=lambda row: row[1][0])]


    def _may_be_operand(self, node: Node) -> bool:
        return len(node.types) == 1 and (node.dtype, node.rank) in self._kinds


_verdicts: dict[tuple[str, str], bool] = {}
"""(the part's definition, a piece over placeholders or over the part's operands) -> whether they were proved to be the same"""


def is_same(wanted: _Wanted, node: Node, operands: Sequence[Node]) -> bool:
    """Whether a piece is proved to be the part: at the part's own sizes where the piece can be said of them, else at its own."""
    key = (wanted.op.written.digest, part_between([node], operands).written.digest)
    if key not in _verdicts:
        _verdicts[key] = _at_all_sizes(wanted, node, operands) or _at_its_sizes(wanted, node, operands)
    return _verdicts[key]


def _at_all_sizes(wanted: _Wanted, node: Node, operands: Sequence[Node]) -> bool:
    try:
        mine = _alone(node, operands, [a.type for a in wanted.arguments])
    except TensorGraphsError:                                       # it holds sizes of its own
        return False
    key = (wanted.op.written.digest, mine.outputs["out"].digest)
    if key not in _verdicts:
        _verdicts[key] = mine.outputs["out"].type == wanted.output.type and _proved(mine, wanted.graph)
    return _verdicts[key]


def _at_its_sizes(wanted: _Wanted, node: Node, operands: Sequence[Node]) -> bool:
    types = [o.type for o in operands]
    definition = wanted.op.define(types, {})
    return _proved(_alone(node, operands, types), _alone(definition.outputs[0], definition.arguments, types))


def _alone(node: Node, operands: Sequence[Node], types: Sequence[TensorType]) -> Graph:
    """A piece as a graph of its own, over inputs x0, x1, … of these types. Raises what its ops say of others than its own."""
    return make_graph(over([node], operands, [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)])[0])


def _proved(one: Graph, other: Graph) -> bool:
    from tensor_graphs.proof.equality import equal

    return equal(one, other).proved
