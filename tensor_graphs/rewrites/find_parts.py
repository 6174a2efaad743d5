"""find_parts: occurrences in a graph of what registered kernels compute; each becomes one node, so that the kernel is a candidate.

    formed = form(graph, parts)                 # parts: graphs as ops (language/anonymous_composite.py) that have kernels
    formed.graph, formed.show()                 # "90 rms_norm_linear_1a2b3c"

An occurrence is a piece with the part's operand types that is proved to be the part (`proof.equal`), whatever ops express it. The
definition of the new node is the piece, so expanding it gives back the original graph, the kernel is compared with the piece, and
equal layers become equal nodes. Values that other nodes need stay: where a kernel of the part runs, they are computed twice.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import UNNAMED, PartOp, between, note_same, over, part_between, steps_said
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.errors import LanguageError, written_at
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, TensorType, apply, is_step, walk
from tensor_graphs.rewrites.passes.recognise import write_out
from tensor_graphs.rewrites.subgraphs import Cuts, inside

log = logging.getLogger(__name__)

MORE_STEPS, MOST_STEPS = 2, 24
"""Steps that an occurrence may have in addition to those of the part in atomic ops, and its largest number of steps."""


POINTS = 4
"""Points of the finite field for a first comparison."""

LARGE = 1 << 20
"""Elements of a piece, at its dims' smallest sizes, beyond which a `brief` part is not compared with it at the piece's sizes."""

MOST_COMPARED = 256
"""Largest number of operand orders that are compared with one part in one graph, and that are considered for one piece."""

MOST_EXCHANGED = 120
"""Largest number of operand orders of one occurrence that follow from exchanges of operands."""

RUN_COST = 1 << 20
"""Largest cost in elements of the float64 run that precedes a proof (counterexample.cost)."""

ROWS = 3
"""Size of the first dim in such a run; each further dim is larger by one."""


@dataclass(frozen=True)
class Formed:
    """The graph with its parts as nodes. places: how many there are, by name. images: node of the old graph -> its new node, if
    that is a different one. wholes: for each name, one of the formed parts. wanted: for each name, the digests of the registered
    parts it equals."""

    graph: Graph
    places: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[Node, Node] = field(default_factory=dict, repr=False)
    wholes: Mapping[str, PartOp] = field(default_factory=dict, repr=False)
    wanted: Mapping[str, Collection[str]] = field(default_factory=dict, repr=False)

    def show(self, kernels: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the parts as text for people; "" for none. kernels: those registered, by digest of a part; the first is shown."""
        texts = []
        for name, count in sorted(self.places.items()):
            own = [k for digest in self.wanted[name] for k in (kernels or {}).get(digest, ())][:1]
            what = [steps_said(self.wholes[name])] if name.startswith(UNNAMED) else []
            inside = "; ".join([*what, *own])
            texts.append(f"{count} {name}{f' ({inside})' if inside else ''}")
        return ", ".join(texts)


def form(graph: Graph, parts: Sequence[PartOp]) -> Formed:
    """Return the graph in which each occurrence of a part is one node, or the very same graph. Numeric class: bitwise; what runs is
    chosen later. If several parts end in one node, the smaller is inside the larger."""
    if not parts:
        return Formed(graph)
    one = [p for p in parts if len(p.written.outputs) == 1]
    several = [Several(p) for p in parts if len(p.written.outputs) > 1]
    search = PartSearch(graph, [*(Wanted(p) for p in one), *(w for part in several for w, _ in part.outputs)], one)
    now: dict[Node, Node] = {}
    places: Counter[str] = Counter()
    wholes: dict[str, PartOp] = {}
    digests: dict[str, dict[str, None]] = {}
    together = _taken(graph, [place for part in several for place in part.places(search)])
    for node in _in_order(graph.roots, together):
        if node in now:
            continue
        if node in together:
            place = together[node]
            inner, whole = place.whole(one)
            with written_at(node.location):
                call = apply(whole, [now[o] for o in place.operands], {})
                now.update((output, leaves.item(call, i)) for i, output in enumerate(place.outputs))
            note_same(place.op.define([o.type for o in place.operands], {}), whole.define([o.type for o in place.operands], {}))
            for name, count in {whole.name: 1, **inner.places}.items():
                places[name] += count
                wholes.setdefault(name, whole if name == whole.name else inner.wholes[name])
                wanted = [place.op.written.digest] if name == whole.name else inner.wanted[name]
                digests.setdefault(name, {}).update(dict.fromkeys(wanted))
            continue
        inputs = [now[i] for i in node.inputs]
        same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
        with written_at(node.location):
            now[node] = node if same else apply(node.op, inputs, node.attrs)
        calls: dict[tuple[Node, ...], PartOp] = {}
        for op, operands in search.at(node):
            types = [o.type for o in operands]
            if operands in calls:                                   # the same part, registered in two wordings
                note_same(op.define(types, {}), calls[operands].define(types, {}))
                digests[calls[operands].name][op.written.digest] = None
                continue
            try:                                                    # with the parts inside of it, where none crosses its border
                whole = part_between([now[node]], [now[o] for o in operands], op.written.digest)
            except LanguageError:
                whole = part_between([node], operands, op.written.digest)
            note_same(op.define(types, {}), whole.define(types, {}))
            calls[operands] = whole
            with written_at(node.location):
                now[node] = apply(whole, [now[o] for o in operands], {})
            places[whole.name] += 1
            wholes.setdefault(whole.name, whole)
            digests.setdefault(whole.name, {})[op.written.digest] = None
    if not places:
        return Formed(graph)
    log.info("formed %s", dict(places))
    images = {n: m for n, m in now.items() if n is not m}
    return Formed(graph.with_roots([now[r] for r in graph.roots]), dict(places), images, wholes, digests)


class Wanted:
    """A part and how it is compared with pieces. brief: no reason is needed why a piece is not the part, so different fingerprints
    need no counterexample, and a large piece is not compared at its sizes."""

    def __init__(self, op: PartOp, brief: bool = False) -> None:
        self.op, self.brief = op, brief
        self.least_steps = 2 if brief else 0                        # one step is another op, and no words for this one
        self.key = f"{op.written.digest}{' brief' * brief}"
        self.arguments, self.output = op.written.arguments, op.written.outputs[0]
        self.graph = _alone(self.output, self.arguments, [a.type for a in self.arguments])
        self.telling = telling(self.graph.nodes)
        self.most_steps = min(MOST_STEPS, MORE_STEPS + sum(map(is_step, write_out(self.graph).nodes)))

    @cached_property
    def exchangeable(self) -> Sequence[Sequence[int]]:
        """Return the arguments in groups of one type; exchanging two arguments of a group is proved not to change the part."""
        groups: list[list[int]] = []
        for i, argument in enumerate(self.arguments):
            group = next((g for g in groups if self.arguments[g[0]].type == argument.type and self._may_exchange(g[0], i)), None)
            if group is None:
                groups.append(group := [])
            group.append(i)
        return groups

    def _may_exchange(self, i: int, j: int) -> bool:
        swapped = list(self.arguments)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        other = _alone(self.output, swapped, [a.type for a in swapped])
        return not _refuted(other, self.graph) and not _compared(other, self.graph, self.brief).why

    def orders(self, cut: Sequence[Node], output: TensorType) -> Iterator[tuple[Node, ...]]:
        """Yield the operands in each order that gives the part's types; one order for operands that may be exchanged."""
        for order in self._orders(cut):
            types = [o.type for o in order]
            if not self.out_of_range(types):
                try:
                    definition = self.op.define(types, {})
                except LanguageError:
                    continue
                if definition.outputs[0].type == output:
                    yield order

    def orders_out_of_range(self, cut: Sequence[Node], output: TensorType) -> Iterator[tuple[tuple[Node, ...], str]]:
        """Yield the orders that are ruled out only by a size outside of its dim's range, with a description of that size."""
        for order in self._orders(cut):
            types = [o.type for o in order]
            if (why := self.out_of_range(types)) and self._one_size_each([*types, output]):
                yield order, why

    def _orders(self, cut: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
        """Yield the operands in each order that gives the part's dtypes and ranks, up to MOST_COMPARED orders."""
        def kind(node: Node) -> tuple[DType, int]:
            return node.dtype, node.rank

        def extended(groups: Sequence[Sequence[int]], order: dict[int, Node]) -> Iterator[tuple[Node, ...]]:
            if not groups:
                yield tuple(order[i] for i in range(len(cut)))
                return
            fitting = [o for o in cut if o not in order.values() and kind(o) == kind(self.arguments[groups[0][0]])]
            for chosen in itertools.combinations(fitting, len(groups[0])):
                yield from extended(groups[1:], {**order, **dict(zip(groups[0], chosen, strict=True))})

        if Counter(map(kind, cut)) == Counter(map(kind, self.arguments)):
            if [*map(kind, cut)] == [*map(kind, self.arguments)]:
                yield tuple(cut)                                    # as they stand: often it is that one
            yield from itertools.islice(extended(self.exchangeable, {}), MOST_COMPARED)

    def operands_in_words(self, node: Node) -> tuple[Node, ...] | None:
        """Return the operands over which a node is computed by exactly the part's ops, with any attributes; None for others."""
        stands = {self.output: node}
        for mine in reversed(walk([self.output])):                  # users before operands
            if mine in self.arguments:
                continue
            its = stands[mine]
            if its.op is not mine.op or len(its.inputs) != len(mine.inputs):
                return None
            if any(stands.setdefault(a, b) is not b for a, b in zip(mine.inputs, its.inputs, strict=True)):
                return None
        operands = tuple(stands[a] for a in self.arguments)
        return operands if len({*operands}) == len(operands) and not inside(node, operands) & {*walk(operands)} else None
    def exchanged(self, order: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
        """Yield the order and those that follow from it by exchanges, up to MOST_EXCHANGED."""
        every = (itertools.permutations(order[i] for i in group) for group in self.exchangeable)
        for chosen in itertools.islice(itertools.product(*every), MOST_EXCHANGED):
            at = {i: o for group, those in zip(self.exchangeable, chosen, strict=True) for i, o in zip(group, those, strict=True)}
            yield tuple(at[i] for i in range(len(order)))

    def _one_size_each(self, types: Sequence[TensorType]) -> bool:
        """Return whether each dim of the part would have a single size. types: of the operands, then of the output."""
        sizes: dict[str, d.Dim] = {}
        wanted = [*(a.type for a in self.arguments), self.output.type]
        return all(sizes.setdefault(str(dim), size) == size if isinstance(dim, d.Expr) else dim == size
                   for t, a in zip(types, wanted, strict=True) for size, dim in zip(t.shape, a.shape, strict=True))

    def out_of_range(self, types: Sequence[TensorType]) -> str:
        """Return the first size outside the range of the part's dim that it is bound to, for people; "" if there is none."""
        return next((why for i, (t, a) in enumerate(zip(types, self.arguments, strict=True))
                     if (why := size_out_of_range(t, a.type, f"operand {i}"))), "")


def size_out_of_range(type: TensorType, wanted: TensorType, called: str) -> str:
    """Return the first size outside the range of the dim that it is bound to, for people; "" if there is none."""
    for axis, (size, dim) in enumerate(zip(type.shape, wanted.shape, strict=True)):
        (low, high), (least, most) = d.bounds(size), d.bounds(dim)
        if low < least or high > most:
            named = f" ({dim})" if isinstance(dim, d.Expr) else ""
            return f"axis {axis} of {called}{named} is {_range(least, most)} in the part, and {_range(low, high)} in the graph"
    return ""


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"


_kinds: dict[str, frozenset[str]] = {}
"""Cache of the telling ops in a definition, by its digest."""


def telling(nodes: Sequence[Node]) -> frozenset[str]:
    """Return the telling ops (op_facts.py) that occur in nodes, including the definitions of composites. Only pieces with the
    telling ops of a part are compared with it."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node.op, CompositeOp) and not node.op.opaque:
            key = node.op.identity(node)
            if key not in _kinds:
                _kinds[key] = telling(walk(node.op.define([i.type for i in node.inputs], node.attrs).outputs))
            names |= _kinds[key]
        elif node.op.facts.telling:
            names.add(node.op.name)
    return frozenset(names)


@dataclass(frozen=True)
class JointPlace:
    """An occurrence of a part with several outputs."""

    op: PartOp
    outputs: tuple[Node, ...]
    operands: tuple[Node, ...]

    def whole(self, parts: Sequence[PartOp]) -> tuple[Formed, PartOp]:
        """Return the piece as one op with the occurrences of other parts inside it, and what was formed inside."""
        inputs = [leaves.input(f"x{i}", o.shape, o.dtype) for i, o in enumerate(self.operands)]
        inner = form(make_graph(over(self.outputs, self.operands, inputs)), parts)
        return inner, part_between(list(inner.graph.outputs.values()), inputs, self.op.written.digest)


class Several:
    """A part with several outputs. Each output is searched as a separate part over the operands that it reads."""

    def __init__(self, op: PartOp) -> None:
        self.op, arguments = op, op.written.arguments
        reads = [[i for i, a in enumerate(arguments) if a in walk([output])] for output in op.written.outputs]
        self.outputs = [(Wanted(part_between([output], [arguments[i] for i in its])), its)
                        for output, its in zip(op.written.outputs, reads, strict=True)]

    def places(self, search: PartSearch) -> Iterator[JointPlace]:
        """Yield the occurrences: all outputs occur on the same operands."""
        rows = [list(search.places(w)) for w, _ in self.outputs]
        last = max(i for _, its in self.outputs for i in its)

        def extended(left: Sequence[int], outputs: dict[int, Node], operands: dict[int, Node]) -> Iterator[JointPlace]:
            if not left:
                yield JointPlace(self.op, tuple(outputs[i] for i in range(len(rows))), tuple(operands[i] for i in range(last + 1)))
                return
            for node, its in rows[left[0]]:
                both = dict(operands)
                same = all(both.setdefault(i, o) is o for i, o in zip(self.outputs[left[0]][1], its, strict=True))
                computed = {*outputs.values(), node}
                if same and len({*both.values()}) == len(both) and len(computed) > len(outputs) and not computed & {*both.values()}:
                    yield from extended(left[1:], {**outputs, left[0]: node}, both)

        yield from extended(sorted(range(len(rows)), key=lambda i: len(rows[i])), {}, {})


def _taken(graph: Graph, places: Sequence[JointPlace]) -> dict[Node, JointPlace]:
    """Return output -> occurrence, larger ones first; without those that share an output with one taken or would form a cycle."""
    taken: dict[Node, JointPlace] = {}
    for place in sorted(places, key=lambda p: -len(between(p.outputs, p.operands))):
        if not taken.keys() & {*place.outputs} and not {*place.outputs} & {*_in_order(place.operands, taken)}:
            taken.update(dict.fromkeys(place.outputs, place))
    return taken


def _in_order(roots: Sequence[Node], together: Mapping[Node, JointPlace]) -> list[Node]:
    """Return the nodes below the roots, operands before users. The operands of an occurrence are before each of its outputs."""
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            below = (*together[node].operands, *node.inputs) if node in together else node.inputs
            stack.extend((i, False) for i in reversed(below))
    return list(order)


class PartSearch:
    """A search for occurrences of parts in one graph."""

    def __init__(self, graph: Graph, wanted: Sequence[Wanted], ends: Collection[PartOp] | None = None) -> None:
        """Prepare a search. ends: the parts that `at` finds; by default all."""
        self.cuts, self.wanted = Cuts(graph), wanted
        self.most_steps = max(w.most_steps for w in wanted)
        self.most_operands = max(len(w.arguments) for w in wanted)
        self.ends = {w.op for w in wanted} if ends is None else ends
        self._asked, self._ended = dict[Wanted, set[tuple[str, str]]](), set[Wanted]()
        kinds = {(a.type.dtype, a.type.rank) for w in wanted for a in w.arguments}
        self._may_be_operands = self.cuts.mask(n for n in graph.nodes if len(n.types) == 1 and (n.dtype, n.rank) in kinds)

    def at(self, node: Node) -> list[tuple[PartOp, tuple[Node, ...]]]:
        """Return (part, operands) of one occurrence for each part that ends in a node, the smallest first."""
        here: dict[PartOp, tuple[int, tuple[Node, ...]]] = {}
        for w, cut, steps in self.pieces(node):
            if w.op not in self.ends or (w.op in here and here[w.op][0] <= steps):
                continue
            order = next((order for order, comparison in self.compared(w, node, cut) if not comparison.why), None)
            if order is not None:
                here[w.op] = steps, order
        return [(op, order) for op, (_, order) in sorted(here.items(), key=lambda row: row[1][0])]

    def places(self, wanted: Wanted) -> Iterator[tuple[Node, tuple[Node, ...]]]:
        """Yield (last node, operands) for each occurrence of a part, and for each order of operands in which it is the part."""
        for node in self.cuts.nodes:
            for w, cut, _ in self.pieces(node):
                if w is wanted:
                    for order, comparison in self.compared(w, node, cut):
                        if not comparison.why:
                            yield from ((node, exchanged) for exchanged in w.exchanged(order))

    def compared(self, wanted: Wanted, node: Node, cut: Sequence[Node]) -> Iterator[tuple[tuple[Node, ...], _Compared]]:
        """Yield the comparisons of a piece with a part, one per order of its operands; at most MOST_COMPARED for one part."""
        asked = self._asked.setdefault(wanted, set())
        for order in wanted.orders(cut, node.type):
            key = wanted.key, part_between([node], order).written.digest
            if key not in asked and len(asked) == MOST_COMPARED:
                if wanted not in self._ended:
                    self._ended.add(wanted)
                    log.warning("the search for %s in a graph ended after %d comparisons: it may have more places",
                                steps_said(wanted.op), MOST_COMPARED)
                return
            asked.add(key)
            if key not in _verdicts:
                _verdicts[key] = _why_not_same(wanted, node, order)
            yield order, _verdicts[key]
            if _verdicts[key].in_any_order:
                return

    def pieces(self, node: Node) -> Iterator[tuple[Wanted, tuple[Node, ...], int]]:
        """Yield (part, operands, steps) of the pieces that end in a node and have a part's number of operands and telling ops."""
        likely = [w for w in self.wanted if w.output.type.dtype == node.type.dtype and w.output.type.rank == node.type.rank
                  ] if is_step(node) and len(node.types) == 1 and node in self.cuts.fed else []
        for w in likely:
            words = w.operands_in_words(node)
            if words is not None and self.cuts.fed.issuperset(words):
                yield w, words, sum(map(is_step, inside(node, words)))
        for cut, part in self.cuts.of(node, self.most_steps, self.most_operands, self._may_be_operands) if likely else ():
            steps, kinds = self.cuts.steps(part), None
            for w in likely:
                if len(cut) == len(w.arguments) and w.least_steps <= steps <= w.most_steps:
                    kinds = telling(self.cuts.among(part)) if kinds is None else kinds
                    if kinds == w.telling:
                        yield w, cut, steps


@dataclass(frozen=True)
class _Compared:
    """Result of a comparison of a piece with a part. why: why the piece is not proved to be the part, for people; "" if it is.
    refuted: it is a different function. in_any_order: the result holds for every order of operands of these types."""

    why: str
    refuted: bool = False
    in_any_order: bool = False


_verdicts: dict[tuple[str, str], _Compared] = {}
"""Cache of comparisons, by the part's definition and the piece over placeholders or over the part's operands."""


def _why_not_same(wanted: Wanted, node: Node, operands: Sequence[Node]) -> _Compared:
    """Return the comparison of a piece with a part, at the part's sizes if the piece can be stated at them, else at the piece's. A
    run in float64 comes first: with equal values for operands of one type, which refutes every order together, then with different
    ones."""
    types = [o.type for o in operands]
    for order in ([types.index(t) for t in types], range(len(types))):
        if why := _refuted_at_its_sizes(wanted, node, operands, order):
            return _Compared(why, True, len({*order}) == 1)
    comparison = _at_all_sizes(wanted, node, operands)
    if comparison is None or comparison.why:
        large = wanted.brief and _is_large(node, operands)
        comparison = _Compared("it is large") if large else _at_its_sizes(wanted, node, operands)
    return comparison


_refutations: dict[tuple[str, str], str] = {}
"""Cache of refutations, by the digests of both graphs."""


def _refuted_at_its_sizes(wanted: Wanted, node: Node, operands: Sequence[Node], same: Sequence[int]) -> str:
    """Return why a float64 run refutes that a piece is a part, or "". same: for each operand, the one whose values it takes."""
    types = [o.type for o in operands]
    definition = wanted.op.define(types, {})
    one, other = _alone(node, operands, types, same), _alone(definition.outputs[0], definition.arguments, types, same)
    key = one.outputs["out"].digest, other.outputs["out"].digest
    if key not in _refutations:
        _refutations[key] = _refuted(one, other)
    return _refutations[key]


def _refuted(one: Graph, other: Graph) -> str:
    """Return an example from a float64 run at which graphs over the same inputs differ, for people; "" for none, or if a run takes
    long."""
    from tensor_graphs.proof import counterexample

    at = {name: d.clamp(ROWS + i, s) for i, (name, s) in enumerate(sorted({**one.dims, **other.dims}.items()))}
    try:
        if counterexample.cost([*one.roots, *other.roots], at, True) > RUN_COST:
            return ""
        trial = counterexample.attempt(one.outputs, other.outputs, at, 0, 0, use_direct=True)
    except TensorGraphsError:
        return ""
    return "" if trial is None or trial.example is None else trial.example.show().splitlines()[0]


def _at_all_sizes(wanted: Wanted, node: Node, operands: Sequence[Node]) -> _Compared | None:
    """Return the comparison at the part's sizes, or None if the piece cannot be stated at them."""
    types = [a.type for a in wanted.arguments]
    try:
        mine = _alone(node, operands, types)
    except TensorGraphsError:                                       # it holds sizes of its own
        try:
            mine = _resized(node, operands, types)
        except TensorGraphsError:
            return None
    if mine.outputs["out"].type != wanted.output.type:
        return None
    key = (wanted.key, mine.outputs["out"].digest)
    if key not in _verdicts:
        _verdicts[key] = _compared(mine, wanted.graph, wanted.brief)
    return _verdicts[key]


def _resized(node: Node, operands: Sequence[Node], types: Sequence[TensorType]) -> Graph:
    """Return a piece as `_alone` does at these types, with the operands' sizes replaced in its shapes, too. Raises as `_alone`."""
    pairs = [pair for o, t in zip(operands, types, strict=True) for pair in zip(o.shape, t.shape, strict=True)]
    sizes = {size: dim for size, dim in pairs if size != 1}
    inputs = {o: leaves.input(f"x{i}", t.shape, t.dtype) for i, (o, t) in enumerate(zip(operands, types, strict=True))}
    for n in between([node], operands):
        attrs = {**n.attrs, **({"shape": tuple(sizes.get(s, s) for s in n.attrs["shape"])} if "shape" in n.attrs else {})}
        inputs[n] = apply(n.op, [inputs[i] for i in n.inputs], attrs) if n.inputs else n
    return make_graph(inputs[node])


def _at_its_sizes(wanted: Wanted, node: Node, operands: Sequence[Node]) -> _Compared:
    types = [o.type for o in operands]
    definition = wanted.op.define(types, {})
    return _compared(_alone(node, operands, types), _alone(definition.outputs[0], definition.arguments, types), wanted.brief)


def _alone(node: Node, operands: Sequence[Node], types: Sequence[TensorType], same: Sequence[int] | None = None) -> Graph:
    """Return a piece as a graph over inputs x0, x1, … of these types. same: for each operand, the index of its input; default: its
    position. Raises the errors of its ops for types that they do not accept."""
    inputs = [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    return make_graph(over([node], operands, inputs if same is None else [inputs[i] for i in same])[0])


def _is_large(node: Node, operands: Sequence[Node]) -> bool:
    return sum(d.bounds(t.size())[0] for n in (*operands, *between([node], operands)) for t in n.types) > LARGE


def _compared(one: Graph, other: Graph, brief: bool) -> _Compared:
    from tensor_graphs.proof.equality import equal
    from tensor_graphs.proof.fingerprint import fingerprint

    if brief:
        try:
            if fingerprint(one, points=POINTS) != fingerprint(other, points=POINTS):
                return _Compared("other fingerprints")
        except TensorGraphsError as e:
            return _Compared(str(e))
    verdict = equal(one, other)
    if verdict.proved:
        return _Compared("")
    if verdict.counterexample is not None:
        return _Compared(verdict.counterexample.show().splitlines()[0], True)
    return _Compared(verdict.reason or "not proved")


@dataclass(frozen=True)
class Nearest:
    """A piece that is not the part, though it has the part's telling ops, and operands of the part's dtypes and ranks. why: the
    reason, for people. lacks: what is missing: a proof, sizes in range, or the same function."""

    node: Node
    operands: tuple[Node, ...]
    steps: int
    why: str
    lacks: Literal["proof", "range", "same"]

    @property
    def rank(self) -> tuple[int, int, int]:
        """Return a rank; a higher one is nearer. Views count last: a weight is nearer than its transpose."""
        return {"same": 0, "range": 1, "proof": 2}[self.lacks], self.steps, len(inside(self.node, self.operands))


def nearest(graph: Graph, op: PartOp) -> Nearest | None:
    """Return the piece of a graph that is nearest to being a part; None if no piece has such operands and ops."""
    wanted, candidates = Wanted(op), list[Nearest]()
    search = PartSearch(graph, [wanted])
    for node in graph.nodes:
        for _, cut, steps in search.pieces(node):
            for order, comparison in search.compared(wanted, node, cut):
                if comparison.why:
                    candidates.append(Nearest(node, order, steps, comparison.why, "same" if comparison.refuted else "proof"))
            candidates += [Nearest(node, order, steps, why, "range") for order, why in wanted.orders_out_of_range(cut, node.type)]
    return max(candidates, key=lambda near: near.rank, default=None)
