"""fuse: neighbouring steps that one generated kernel computes in fewer passes over memory become one part.

Element-wise steps, reductions, norms and everything that codegen can write as loops are joined along their values, as long as that
saves a pass (a nest of loops) and hardly anything is computed twice. For a device with tiles (codegen/epilogue_products.py), a
matrix product, or two of the same rows, is joined with the steps that use its elements. Then matrix products with weights, which
loops compute well for few rows (codegen/skinny_product.py), are joined with the steps before and after them. Earlier parts are
steps there. At last, rows that are written into states are joined with the steps that compute them, and steps that one step reads,
or that read one large value, are joined with each other. A part's definition is the original piece, so cost decides whether one
kernel or several compute it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tensor_graphs.codegen.arithmetic_count import steps_of
from tensor_graphs.codegen.epilogue_products import is_epilogue_product
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import DEAR, REDUCTIONS
from tensor_graphs.codegen.refusals import or_none
from tensor_graphs.codegen.spec_to_loops import any_loops_of, loops_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import PartOp, between, known_when_bound, part_between
from tensor_graphs.language.composite import CompositeOp, Definition
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, is_step, walk
from tensor_graphs.rewrites.candidate import Offer
from tensor_graphs.rewrites.passes.offer_recipes import formed
from tensor_graphs.rewrites.passes.result import PassResult
from tensor_graphs.rewrites.subgraphs import fed

log = logging.getLogger(__name__)

TWICE = 2.0
"""Factor by which joining two clusters may increase their work."""

MOST_OPERANDS, MOST_STEPS = 12, 40

TINY, SMALL = 1 << 10, 1 << 18
"""Element steps of what takes less time than a call, and of an update that takes no longer than a few calls."""

LARGE = 1 << 20
"""Bytes of a value from which on two steps that read it are joined where that saves a pass over it."""

DIVISIONS = frozenset({"idiv"})
"""Integer divisions: they take some twenty times as long as vector ops, and thousands of rows may read one of them."""


def fuse(graph: Graph, tiles: bool = False) -> PassResult:
    """Return the graph with a part for each cluster of two or more steps. Numeric class: bitwise; what runs is chosen later.
    tiles: products are joined with what follows them, for any number of rows."""
    result = PassResult(graph)
    for clusters in (_Clusters, *((_AfterProducts,) if tiles else ()), _AroundProducts, _Siblings):
        offers = clusters(result.graph).offers()
        if offers:
            result = result.then(formed(result.graph, offers, {}, result.graph.roots))
    return result


@dataclass(eq=False)
class _Cluster:
    """Steps that become one part. work: element steps. passes: nests of loops."""

    steps: set[Node]
    work: int
    passes: int


def _loops(written: Definition) -> StageProgram:
    return loops_of(written)


def _streams(written: Definition) -> StageProgram:
    return loops_of(written, few_rows=True)


Lowering = Callable[[Definition], StageProgram]


@dataclass(frozen=True)
class _Cut:
    """A piece that could become a part. key: the part's key."""

    key: str
    lowering: Lowering
    written: Definition = field(compare=False)


@lru_cache(maxsize=4096)
def _program_of(cut: _Cut) -> StageProgram | None:
    """Return the loops of a piece, or None; cached, as layers repeat and a graph is searched several times."""
    return or_none(cut.lowering, cut.written)


def _shape_of(outputs: Sequence[Node], operands: Sequence[Node]) -> Hashable:
    """Return what a piece computes of its operands' types, whatever nodes they are: equal for the same piece of each layer."""
    number = {n: i for i, n in enumerate(operands)}
    steps: list[Hashable] = [o.types for o in operands]
    for node in between(outputs, operands):
        number[node] = len(number)
        op = node.op.written.digest if isinstance(node.op, PartOp) else node.op
        steps.append((op, node.key[2], *[number[i] for i in node.inputs]))
    return (*steps, *[number[o] for o in outputs])


_pieces: dict[Hashable, StageProgram | None] = {}
"""`_shape_of` a piece, its lowering, whether it updates a state -> its loops. Layers repeat, and a graph is searched in several
forms: building a piece takes longer than looking it up"""

MOST_PIECES = 8192


class _Clusters:
    lowering: Lowering = staticmethod(_loops)
    few_rows = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fed = fed(graph.nodes)
        self.bound = known_when_bound(graph.nodes)
        self.place = {n: i for i, n in enumerate(graph.nodes)}
        self.readers: dict[Node, list[Node]] = {n: [] for n in graph.nodes}
        for n in graph.nodes:
            for i in dict.fromkeys(n.inputs):
                self.readers[i].append(n)
        self.updates = {n: name for name, n in graph.updates.items()}
        self.roots = set(graph.roots)
        self.of: dict[Node, _Cluster] = {}
        self.last = -1
        """Position of the last step in a cluster: later nodes lead into no cluster."""

    def offers(self) -> list[Offer]:
        for node in self.graph.nodes:
            if self.may_join(node):
                steps = self.step(node)
                program = self.program(steps)
                if program is not None:
                    self.of |= dict.fromkeys(steps, _Cluster(steps, _work(program), len(program.nests)))
                    self.last = max(self.last, *map(self.place.__getitem__, steps))
            self.join(node)
        out = []
        for cluster in dict.fromkeys(self.of.values()):
            if self.pays(cluster):
                operands, outputs = self.border(cluster.steps)
                out.append(Offer(tuple(operands), tuple(outputs), frozenset(self.inside(cluster.steps)), ()))
        return out

    def may_join(self, node: Node) -> bool:
        rows = node in self.updates and node.op.facts.writes is not None    # the last to be joined, so that the rest is a part
        return (is_step(node) and len(node.types) == 1 and node in self.fed and node not in self.bound and not rows
                and not node.op.facts.product and not isinstance(node.op, PartOp))

    def step(self, node: Node) -> set[Node]:
        """Return the nodes that join a cluster together with a step."""
        return {node}

    def pays(self, cluster: _Cluster) -> bool:
        """Return whether a cluster becomes a part: several steps, or one that reads values of sizes alone, which need no memory
        then."""
        return len(cluster.steps) > 1 or any(is_step(n) for n in self.inside(cluster.steps) - cluster.steps)

    def saves(self, a: _Cluster, b: _Cluster, both: StageProgram) -> bool:
        return len(both.nests) < a.passes + b.passes

    def join(self, node: Node) -> None:
        """Join a step with each of the clusters that it reads, one after another, if that pays."""
        for source in self.sources(node) if node in self.of else ():
            self.join_two(self.of[source], self.of[node])

    def join_two(self, a: _Cluster, b: _Cluster) -> None:
        steps = a.steps | b.steps
        if a is b or len(steps) > MOST_STEPS or self.leads_around(a, b):
            return
        program = self.program(steps)
        if program is not None and self.saves(a, b, program) and _work(program) <= TWICE * (a.work + b.work):
            both = _Cluster(steps, _work(program), len(program.nests))
            for n in steps:
                self.of[n] = both

    def sources(self, node: Node) -> list[Node]:
        """Return the steps in clusters whose values a node reads, through views; the latest step first."""
        sources: dict[Node, None] = {}
        todo, seen = list(node.inputs), set[Node]()
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            if n in self.of:
                sources[n] = None
            elif not is_step(n) and n.op.kind != "leaf" and n.op not in (leaves.ITEM, leaves.COPY_TO):
                todo += n.inputs
        return sorted(sources, key=lambda n: -self.place[n])

    def leads_around(self, a: _Cluster, b: _Cluster) -> bool:
        """Return whether a path leads from two clusters out and back into them. A path through another cluster may leave it by any
        of its values. A view between the two is repeated inside, and is no path."""
        both = a.steps | b.steps
        todo: list[Node] = []
        inner = list(both)
        for n in inner:
            for r in self.readers[n]:
                (inner if r.op.facts.view and r not in both else todo).append(r)
        todo = [r for r in todo if r not in both]
        seen: set[Node] = set()
        while todo:
            n = todo.pop()
            if n in seen or self.place[n] > self.last:
                continue
            seen.add(n)
            group = self.of[n].steps if n in self.of else (n,)
            beyond = [r for member in group for r in self.readers[member]]
            if any(r in both for r in beyond):
                return True
            todo += beyond
        return False

    def inside(self, steps: set[Node]) -> set[Node]:
        """Return the steps, and the nodes that are repeated rather than read: views, and numbers that follow from sizes alone."""
        inner = set(steps)
        todo = [i for s in steps for i in s.inputs]
        while todo:
            n = todo.pop()
            if n not in inner and self.is_said_again(n):
                inner.add(n)
                todo += n.inputs
        return inner

    def is_said_again(self, node: Node) -> bool:
        if node.op.kind == "leaf" or node.op in (leaves.ITEM, leaves.COPY_TO):
            return False
        if node in self.bound and node in self.fed:                 # made once, when it is bound, with more bytes perhaps
            return (self.few_rows or not is_step(node)) and _is_wider(node)
        if not is_step(node):
            return True
        return (node not in self.fed and len(node.types) == 1 and _is_cheap(node)
                and all(i.op.kind == "leaf" or self.is_said_again(i) for i in node.inputs))

    def border(self, steps: set[Node]) -> tuple[list[Node], list[Node]]:
        """Return (the operands of a cluster, its values that are read outside), in the graph's order."""
        inner = self.inside(steps)
        operands = {i for n in inner for i in n.inputs if i not in inner and i.op is not leaves.CONSTANT}
        outputs = {n for n in steps if n in self.roots or any(self.leaves_by(r, inner, steps) for r in self.readers[n])}
        return sorted(operands, key=self.place.__getitem__), sorted(outputs, key=self.place.__getitem__)

    def leaves_by(self, reader: Node, inner: set[Node], steps: set[Node]) -> bool:
        """Return whether a reader of a step is outside the cluster, or a view that is read outside."""
        if reader in steps:
            return False
        if reader not in inner:
            return True
        return reader in self.roots or any(self.leaves_by(r, inner, steps) for r in self.readers[reader])

    def program(self, steps: set[Node]) -> StageProgram | None:
        """Return the loops of a cluster; None if it has none."""
        operands, outputs = self.border(steps)
        if not operands or len(operands) > MOST_OPERANDS:
            return None
        updates = {k: self.updates[o] for k, o in enumerate(outputs) if o in self.updates}
        key = _shape_of(outputs, operands), self.lowering, bool(updates)
        if key not in _pieces:
            if len(_pieces) >= MOST_PIECES:
                _pieces.clear()
            try:
                part = part_between(outputs, operands)
                _pieces[key] = None if part.dims and not updates else _program_of(
                    _Cut(part.key, self.lowering, part.written))
            except LanguageError:
                _pieces[key] = None
        program = _pieces[key]
        return program if program is not None and self.in_place(program, updates, operands, outputs) else None

    def in_place(self, program: StageProgram, updates: Mapping[int, str], operands: Sequence[Node],
                 outputs: Sequence[Node]) -> bool:
        """Return whether each state updated from its old value is written in place, and updated rows as these rows only."""
        for output, name in updates.items():
            rows = _writes_rows(outputs[output])
            old = [(output, i) for i, o in enumerate(operands) if o.op is leaves.STATE and o.attrs["name"] == name]
            if (rows and output not in dict(program.updated)) or any(pair not in program.shared for pair in old):
                return False
        return True


class _AroundProducts(_Clusters):
    """Clusters of matrix products of weights with the steps before and after them, in a graph that already has its other parts."""

    lowering = staticmethod(_streams)
    few_rows = True

    def offers(self) -> list[Offer]:
        return super().offers() if any(map(_multiplies, self.graph.nodes)) else []

    def may_join(self, node: Node) -> bool:
        return self.is_ours(node) and not self.step(node) & self.updates.keys()

    def is_ours(self, node: Node) -> bool:
        somebodys = isinstance(node.op, PartOp) and not node.op.alone       # for which there are kernels
        return (is_step(node) and node in self.fed and not somebodys and node.op.facts.joined and not self.step(node) & self.bound)

    def step(self, node: Node) -> set[Node]:
        return {node, *(r for r in self.readers[node] if r.op is leaves.ITEM)}

    def pays(self, cluster: _Cluster) -> bool:
        """Return whether a cluster has a matrix product and another step, such as one that widens a weight stored in a narrow
        dtype."""
        return any(map(_multiplies, cluster.steps)) and sum(map(is_step, self.inside(cluster.steps))) > 1

    def saves(self, a: _Cluster, b: _Cluster, both: StageProgram) -> bool:
        """Return whether joining pays: the products stream, and either `a` only prepares a product's input or a pass is saved."""
        products = [any(map(_multiplies, cluster.steps)) for cluster in (a, b)]
        streams = any(s.product for nest in both.nests for s in nest.stages)
        return streams and (products == [False, True] or super().saves(a, b, both))


class _AfterProducts(_AroundProducts):
    """Clusters of one matrix product, or two of the same rows, with the steps that use their elements."""

    lowering = staticmethod(any_loops_of)
    few_rows = False

    def saves(self, a: _Cluster, b: _Cluster, both: StageProgram) -> bool:
        return any(map(_multiplies, a.steps | b.steps)) and is_epilogue_product(both)


class _Siblings(_AroundProducts):
    """Clusters of a state's rows with the steps that compute them, of independent steps that one step reads, of a few numbers with
    what they are computed from, and of updates of small states, in a graph that has its other parts: one call replaces several that
    do not fill it. Also of independent steps that read one large value. Matrix products are left out."""

    lowering = staticmethod(_loops)
    few_rows = False

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.small: Node | None = None                     # the last update of a small state

    def offers(self) -> list[Offer]:
        return _Clusters.offers(self)

    def may_join(self, node: Node) -> bool:
        return self.is_ours(node) and not _multiplies(node)

    def pays(self, cluster: _Cluster) -> bool:
        return sum(map(is_step, cluster.steps)) > 1

    def saves(self, a: _Cluster, b: _Cluster, both: StageProgram) -> bool:
        return _work(both) <= a.work + b.work

    def join(self, node: Node) -> None:
        work = self.of[node].work if node in self.of else SMALL + 1
        if node in self.updates or work <= TINY:
            super().join(node)
        if node in self.updates and not _writes_rows(node) and work <= SMALL:
            if self.small is not None and self.of[self.small].work <= SMALL:
                self.join_two(self.of[self.small], self.of[node])
            self.small = node
        first, *others = self.sources(node) or [node]
        for other in others:
            a, b = self.of[first], self.of[other]
            if not self.reads(a, b) and not self.reads(b, a):
                self.join_two(a, b)
        for other in self.beside(node) if node in self.of else ():
            a, b = self.of[other], self.of[node]
            both = None if a is b or self.reads(b, a) else self.program(a.steps | b.steps)
            if both is not None and len(both.nests) < a.passes + b.passes:
                self.join_two(a, b)

    def beside(self, node: Node) -> dict[Node, None]:
        """Return the earlier steps in clusters that read a large value that a step reads."""
        large = (i for i in node.inputs if len(i.types) == 1 and d.bounds(i.type.nbytes())[0] >= LARGE)
        return {r: None for i in large for r in self.readers[i] if r in self.of and self.place[r] < self.place[node]}

    def reads(self, a: _Cluster, b: _Cluster) -> bool:
        return any(self.of[n] is b for s in a.steps for n in self.sources(s))


def _is_wider(node: Node) -> bool:
    """Return whether a value has at least twice the bytes of its sources, and is cheap to compute from them."""
    sources, seen, todo = set[Node](), {node}, [node]
    while todo:
        n = todo.pop()
        if n.op.kind != "leaf" and len(n.types) == 1 and (not is_step(n) or _is_cheap(n)):
            todo += [i for i in n.inputs if i not in seen]          # what is shared is looked at once
            seen.update(n.inputs)
        elif n.op.kind == "leaf":
            sources.add(n)
        else:
            return False
    return 2 * sum(d.bounds(n.type.nbytes())[1] for n in sources) <= d.bounds(node.type.nbytes())[0]


def _is_cheap(node: Node) -> bool:
    """Return whether computing a value takes less than reading it, per reading element: no loop, no division, nothing expensive."""
    op = node.op
    if op.kind == "atomic":
        return op.name not in DEAR and op.name not in REDUCTIONS and op.name not in DIVISIONS
    if not isinstance(op, CompositeOp) or op.opaque:
        return False
    key = op.identity(node)
    if key not in _cheap:
        written = op.define([i.type for i in node.inputs], node.attrs)
        _cheap[key] = all(n.op.kind == "leaf" or not is_step(n) or _is_cheap(n) for n in walk(written.outputs))
    return _cheap[key]


_cheap: dict[str, bool] = {}
"""Cache of `_is_cheap`, by a composite's identity."""


def _multiplies(node: Node) -> bool:
    return node.op.facts.product or (isinstance(node.op, PartOp) and any(map(_multiplies, walk(node.op.written.outputs))))


def _writes_rows(node: Node) -> bool:
    """Return whether a value is another value with some rows overwritten."""
    while node.op is leaves.ITEM or isinstance(node.op, PartOp):
        call = node.inputs[0] if node.op is leaves.ITEM else node
        if not isinstance(call.op, PartOp):
            return False
        node = call.op.written.outputs[node.attrs.get("index", 0)]
    return node.op.facts.writes is not None


@lru_cache(maxsize=1024)
def _work(program: StageProgram) -> int:
    """Return the element steps at the largest sizes."""
    return d.bounds(steps_of(program))[1]
