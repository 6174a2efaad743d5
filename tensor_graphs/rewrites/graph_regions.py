"""graph_regions: a long graph cut into pieces between single tensors; pieces that are equal up to names are solved once.

    found = regions(graph)                          # the cuts, and which pieces are equal
    made, report = simplify_by_regions(graph)       # the same graph, each distinct piece as small as rules can make it

A cut is a tensor through which everything passes that depends on a stream of inputs (a residual stream, between the parts of a
layer). Parameters, states, and values that depend on no stream (tables of positions) may cross a cut as leaves. Pieces that differ
only in the names of leaves are equal: each distinct piece is saturated once, and its recipes get the original names back. Gains
that a border hides are searched in pairs: for each distinct pair of neighbours, the nodes near their border are solved both joined
and separately. If joined is cheaper, the entire pair is solved, and the cheapest cover of the chain by pieces and pairs is chosen.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensor_graphs.language import leaves
from tensor_graphs.language.dims import is_static
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply, rebuild
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.extract import Extraction, Extractor, add_graph, is_paid, paid_nodes
from tensor_graphs.rewrites.provenance import RuleStep, derive
from tensor_graphs.rewrites.report import Report
from tensor_graphs.rewrites.rule import BITWISE, LEVELS, NumericClass, Rewrite
from tensor_graphs.rewrites.saturate import USUAL, Budget, saturate

log = logging.getLogger(__name__)

SMALLEST = 3
"""Smallest number of paid nodes of a piece; smaller neighbours are merged."""

LARGE = 60
"""Number of paid nodes above which a graph is cut."""

WORTH = 0.5
"""Cost by which a joined pair must be cheaper."""

NEAR = 1
"""Number of paid ops on each side of a border that are solved jointly."""


@dataclass(frozen=True, eq=False)
class Region:
    """A piece: its nodes (operands first), its results, and its graph without names, which is equal for equal pieces. leaves: for
    each name in `graph`, the node of the entire graph that it replaces."""

    nodes: tuple[Node, ...]
    results: tuple[Node, ...]
    graph: Graph
    leaves: Mapping[str, Node]


@dataclass(frozen=True)
class Regions:
    """The chain of pieces in order. beside: nodes that depend on no stream and are read by several pieces, or None."""

    chain: tuple[Region, ...]
    beside: Region | None
    whole: Graph
    read_by: Mapping[Node, Sequence[Node]]
    numbers: frozenset[Node]
    bound: frozenset[Node]

    @property
    def all(self) -> tuple[Region, ...]:
        return (*self.chain, *([self.beside] if self.beside else []))

    @property
    def distinct(self) -> int:
        return len({r.graph for r in self.all})


@dataclass
class RegionReport:
    """Statistics of one run. regions, distinct: numbers of pieces, and of those saturated. pairs: neighbours tried jointly; joined:
    those for which that was cheaper. e_nodes, classes: sums over all saturations; largest: e-nodes of the largest. saturation,
    extraction, seconds: times, the last of everything. memory: the peak of the process in MiB."""

    regions: int = 0
    distinct: int = 0
    pairs: int = 0
    joined: int = 0
    e_nodes: int = 0
    classes: int = 0
    largest: int = 0
    saturation: float = 0.0
    extraction: float = 0.0
    seconds: float = 0.0
    memory: float = 0.0
    saturated: dict[str, bool] = field(default_factory=dict)
    stopped: str = ""
    together: Report = field(default_factory=Report)

    def add(self, one: Report) -> None:
        """Add the report of a saturation."""
        self.saturation += one.seconds
        self.largest = max(self.largest, one.e_nodes)
        self.together.add(one)
        self.e_nodes, self.classes = self.together.e_nodes, self.together.classes
        self.saturated, self.stopped = self.together.saturated, self.together.stopped

    def show(self) -> str:
        state = ", ".join(f"{level}: {'saturated' if done else 'not saturated'}" for level, done in self.saturated.items())
        return (f"{self.regions} regions, {self.distinct} distinct, {self.pairs} borders, {self.joined} joined; "
                f"{self.e_nodes} e-nodes in {self.classes} classes, {self.largest} at most; "
                f"{self.saturation:.2f} s + {self.extraction:.2f} s extraction, {self.seconds:.2f} s in all; "
                f"{self.memory:.0f} MiB; {state}")


# ---- cutting ---------------------------------------------------------------------------------------------------------

def regions(graph: Graph) -> Regions:
    """Cut a graph into regions. A graph without a cut is one region."""
    order = _order(graph)
    streams = [{n for n in order if n.op is leaves.INPUT}]
    if len(streams[0]) > 1:
        streams += [{n} for n in order if n.op is leaves.INPUT]
    groups, stream = max((_chain(graph, order, s) for s in streams), key=lambda chain: len(chain[0]))
    return _pieces(graph, order, groups, stream)


def _order(graph: Graph) -> list[Node]:
    """Return the nodes with operands first. Nodes that do not lead to the first output come directly after their operands."""
    place: dict[Node, tuple[int, ...]] = {}
    main = set(make_graph([next(iter(graph.roots))]).nodes)
    for i, node in enumerate(n for n in graph.nodes if n in main):
        place[node] = (i,)
    for i, node in enumerate(graph.nodes):
        if node not in place:
            place[node] = (*max((place[o] for o in node.inputs), default=(-1,)), i)
    return sorted(place, key=place.__getitem__)


def _chain(graph: Graph, order: Sequence[Node], sources: set[Node]) -> tuple[list[list[Node]], set[Node]]:
    """Return the nodes that depend on the sources, in groups with a single tensor between two of them, and as a set."""
    stream: set[Node] = set()
    for node in order:
        if node in sources or any(i in stream for i in node.inputs):
            stream.add(node)
    last: dict[Node, int] = {}
    for at, node in enumerate(order):
        for i in node.inputs:
            last[i] = at
    groups: list[list[Node]] = [[]]
    live: set[Node] = set()
    ends: dict[int, list[Node]] = {}
    for node, at in last.items():
        ends.setdefault(at, []).append(node)
    for at, node in enumerate(order):
        if node in stream:
            groups[-1].append(node)
            if last.get(node, at) > at:
                live.add(node)
        live.difference_update(ends.get(at, ()))
        if node in stream and node.op.kind != "leaf" and len(live) == 1 and all(len(n.types) == 1 for n in live):
            groups.append([])
    return _merged([g for g in groups if g]), stream


def _merged(groups: list[list[Node]]) -> list[list[Node]]:
    """Return the groups with small neighbours merged until they are large enough."""
    merged: list[list[Node]] = []
    growing = False
    for group in groups:
        small = sum(map(is_paid, group)) < SMALLEST
        if small and growing and sum(map(is_paid, merged[-1])) < 2 * SMALLEST:
            merged[-1] += group
        else:
            merged.append(list(group))
            growing = small
    return merged


def _pieces(graph: Graph, order: Sequence[Node], groups: list[list[Node]], stream: set[Node]) -> Regions:
    at = {node: i for i, group in enumerate(groups) for node in group}
    wanted = set(graph.roots)
    readers: dict[Node, set[int]] = {n: {-1} if n in wanted else set() for n in order}
    numbers = _numbers(order)
    for node in reversed(order):
        if node.op is leaves.ITEM and node not in stream:
            readers[node.inputs[0]] |= readers[node]                 # it goes where its node goes
            continue
        if node not in stream and node not in numbers and node.op.kind != "leaf" and len(readers[node]) == 1:
            (only,) = readers[node]
            if only >= 0:
                at[node] = only                                      # read in one place only: a part of it
        for i in node.inputs:
            readers[i].add(at.get(node, -1))
    for node in order:
        if node.op is leaves.ITEM and node.inputs[0] in at:
            at[node] = at[node.inputs[0]]
    homes: list[list[Node]] = [[] for _ in groups]
    free: list[Node] = []
    for node in order:
        if node in at:
            homes[at[node]].append(node)
        elif node.op.kind != "leaf" and node not in numbers:
            free.append(node)
    bound, read_by = _bound(order), _read_by(order, numbers)

    def piece(nodes: Sequence[Node]) -> Region:
        return _region(nodes, _read_elsewhere(read_by, nodes, wanted), numbers, bound)

    side = piece(free) if free else None
    return Regions(tuple(c for c in map(piece, homes) if c.results), side, graph, read_by, numbers, bound)


def _read_by(order: Sequence[Node], numbers: Collection[Node]) -> dict[Node, list[Node]]:
    """Return the readers of each node, without those that are numbers."""
    read_by: dict[Node, list[Node]] = {}
    for node in order:
        for i in node.inputs if node not in numbers else ():
            read_by.setdefault(i, []).append(node)
    return read_by


def _read_elsewhere(read_by: Mapping[Node, Sequence[Node]], nodes: Sequence[Node], wanted: set[Node]) -> tuple[Node, ...]:
    """Return those of some nodes that other nodes read. Several outputs are read through items, which are among the nodes."""
    inside = set(nodes)
    return tuple(n for n in nodes if n.op.kind != "leaf" and len(n.types) == 1
                 and (n in wanted or not inside.issuperset(read_by.get(n, ()))))


def _numbers(order: Sequence[Node]) -> frozenset[Node]:
    """Return constants and views of them, which are repeated wherever they are read."""
    numbers: set[Node] = set()
    for node in order:
        if node.op is leaves.CONSTANT or (node.op.facts.view and all(i in numbers for i in node.inputs)):
            numbers.add(node)
    return frozenset(numbers)


def _bound(order: Sequence[Node]) -> frozenset[Node]:
    """Return the nodes that depend on parameters and constants alone."""
    e, nodes = EGraph(), set[Node]()
    for node in order:
        if len(node.types) == 1 and all(is_static(s) for s in node.shape) and e.of(e.add(node)).bound:
            nodes.add(node)
    return frozenset(nodes)


def _region(nodes: Sequence[Node], results: Sequence[Node], numbers: Collection[Node], bound: Collection[Node]) -> Region:
    """Return a region without names: its leaves are numbered by their first use."""
    inside, names, new = set(nodes), dict[str, Node](), dict[Node, Node]()

    def leaf(node: Node) -> Node:
        kind = node.op if node.op in (leaves.PARAMETER, leaves.STATE, leaves.INPUT) else None
        make = leaves.parameter if kind is leaves.PARAMETER or (kind is None and node in bound) else leaves.input
        name = f"v{len(names)}"
        names[name] = node
        return make(name, node.shape, node.dtype)

    def visit(node: Node) -> Node:
        if node not in new:
            if (node in inside and node.op.kind != "leaf") or node in numbers:
                inputs = tuple(map(visit, node.inputs))
                new[node] = apply(node.op, inputs, node.attrs)
            else:
                new[node] = leaf(node)
        return new[node]

    for node in nodes:
        if node.op.kind != "leaf":
            visit(node)
    outputs = {f"r{i}": new[r] for i, r in enumerate(results)}
    return Region(tuple(nodes), tuple(results), make_graph(outputs) if outputs else Graph({}, {}), names)


# ---- solving ---------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Solved:
    """The cheapest graphs of one distinct region, and the e-graph that proves them equal."""

    graphs: tuple[Extraction, ...]
    egraph: EGraph
    outputs: Mapping[str, int]

    @property
    def cost(self) -> float:
        return self.graphs[0].cost

    def steps(self, index: int) -> list[RuleStep]:
        """Return the steps from the region to one of its graphs."""
        outputs, _ = add_graph(self.egraph, self.graphs[index].graph)
        steps: dict[RuleStep, None] = {}
        for name, term in self.outputs.items():
            steps.update(dict.fromkeys(derive(self.egraph, term, outputs[name])))
        return list(steps)


class Solver:
    """Solver of regions: it saturates each distinct graph once, and sums up the statistics."""

    def __init__(self, rules: Sequence[Rewrite], level: NumericClass, budget: Budget, count: int = 1,
                 after_round: Callable[[EGraph], None] = lambda e: None) -> None:
        self.rules, self.level, self.budget, self.count, self.after_round = rules, level, budget, count, after_round
        self.report = RegionReport()
        self.known: dict[Graph, Solved] = {}
        self.started = time.perf_counter()

    def solve(self, graph: Graph) -> Solved:
        if graph in self.known:
            return self.known[graph]
        left = max(0.0, self.budget.seconds - (time.perf_counter() - self.started))
        e, r = EGraph(), self.report
        outputs, updates = add_graph(e, graph)
        done = saturate(e, self.rules, replace(self.budget, seconds=left), LEVELS[:LEVELS.index(self.level) + 1], self.after_round)
        started = time.perf_counter()
        extracted = Extractor(done.views[self.level], outputs, updates).extract(self.count)
        r.extraction += time.perf_counter() - started
        r.add(done.report)
        self.known[graph] = Solved(tuple(extracted), e, outputs)
        return self.known[graph]

    def cover(self, cut: Regions) -> list[Region]:
        """Return the pieces and joined pairs that cover the graph at the least cost."""
        r, chain = self.report, cut.chain
        r.regions, r.distinct = len(cut.all), cut.distinct
        costs = [self.solve(c.graph).cost for c in chain]
        best: list[tuple[float, list[Region]]] = [(0.0, [])]
        looked: set[Graph] = set()
        for i, region in enumerate(chain):
            cost, used = best[-1]
            options = [(cost + costs[i], [*used, region])]
            joined = self._joined(cut, chain[i - 1], region, looked) if i else None
            if joined is not None:
                options.append((best[i - 1][0] + self.solve(joined.graph).cost, [*best[i - 1][1], joined]))
            best.append(min(options, key=lambda o: o[0]))
        if cut.beside:
            self.solve(cut.beside.graph)
        r.joined = sum(region not in chain for region in best[-1][1])
        r.seconds = time.perf_counter() - self.started
        r.memory = peak_memory()
        return [*([cut.beside] if cut.beside else []), *best[-1][1]]

    def _joined(self, cut: Regions, a: Region, b: Region, looked: set[Graph]) -> Region | None:
        """Return two neighbours as one region if that is cheaper near their border, else None."""
        near = _near_border(a, b)
        if near is None:
            return None
        above, below = set(a.nodes), set(b.nodes)
        together = _part(cut, near)
        parts = [_part(cut, [n for n in near if n in side]) for side in (above, below)]
        if together.graph not in looked:
            looked.add(together.graph)
            self.report.pairs += 1
        apart = sum(self.solve(p.graph).cost for p in parts if p.results)
        if self.solve(together.graph).cost > apart - WORTH:
            return None
        return _part(cut, [*a.nodes, *b.nodes])


def _part(cut: Regions, nodes: Sequence[Node]) -> Region:
    return _region(nodes, _read_elsewhere(cut.read_by, nodes, set(cut.whole.roots)), cut.numbers, cut.bound)


def _near_border(a: Region, b: Region) -> list[Node] | None:
    """Return the nodes within NEAR paid ops of the tensors between two neighbours; None if no tensor is between them."""
    border = [n for n in b.leaves.values() if n in a.results]
    if not border:
        return None
    near, inside = dict.fromkeys(border, 0), set(a.nodes)
    for node in reversed(a.nodes):                                   # above
        if node in near and near[node] < NEAR:
            for i in node.inputs:
                if i in inside:
                    near.setdefault(i, near[node] + is_paid(node))
    for node in b.nodes:                                             # below
        steps = [near[i] for i in node.inputs if i in near]
        if steps and min(steps) < NEAR:
            near.setdefault(node, min(steps) + is_paid(node))
    whole = {o for n in near for o in (n.inputs if n.op is leaves.ITEM else ())} | {n for n in near if len(n.types) > 1}
    return [n for n in (*a.nodes, *b.nodes)
            if n.op.kind != "leaf" and (n in near or n in whole or (n.op is leaves.ITEM and n.inputs[0] in whole))]


def stitch(graph: Graph, pieces: Sequence[tuple[Region, Graph]]) -> Graph:
    """Return the entire graph, given a graph for each region (read regions before their readers), with the original names."""
    new: dict[Node, Node] = {}
    for region, graph_of_region in pieces:
        def put(node: Node, inputs: tuple[Node, ...], region: Region = region) -> Node | None:
            if node.op not in leaves.NAMED_LEAVES:
                return None
            there = region.leaves[str(node.attrs["name"])]
            return new.get(there, there)

        for result, value in zip(region.results, rebuild(list(graph_of_region.outputs.values()), put), strict=True):
            new[result] = value
    states = {name: leaves.state(name, node.shape, node.dtype) for name, node in graph.states.items()}
    return make_graph({name: new.get(node, node) for name, node in graph.outputs.items()},
                      {states[name]: new.get(node, node) for name, node in graph.updates.items()})


@dataclass(frozen=True)
class Stitched:
    """An entire graph, its cost, and for each distinct region the index of the graph that it is built from."""

    graph: Graph
    cost: float
    chosen: Mapping[Graph, int]


def solve_by_regions(graph: Graph, rules: Sequence[Rewrite], level: NumericClass, budget: Budget = USUAL, count: int = 1,
                     after_round: Callable[[EGraph], None] = lambda e: None) -> tuple[list[Stitched], Solver]:
    """Return up to `count` graphs, the cheapest first: the best graph for each distinct region, or another one for a single one."""
    solver = Solver(rules, level, budget, count, after_round)
    pieces = solver.cover(regions(graph))
    kinds = {p.graph: sum(q.graph == p.graph for q in pieces) for p in pieces}
    base = sum(solver.known[p.graph].cost for p in pieces)
    choices: list[tuple[float, Graph | None, int]] = [(base, None, 0)]
    for kind, times in kinds.items():
        solved = solver.known[kind]
        choices += [(base + times * (solved.graphs[i].cost - solved.cost), kind, i) for i in range(1, len(solved.graphs))]
    results = []
    for cost, other, index in sorted(choices, key=lambda c: c[0])[:count]:
        chosen = {k: index if k == other else 0 for k in kinds}
        stitched = stitch(graph, [(p, solver.known[p.graph].graphs[chosen[p.graph]].graph) for p in pieces])
        results.append(Stitched(stitched, cost, chosen))
    solver.report.seconds, solver.report.memory = time.perf_counter() - solver.started, peak_memory()
    return results, solver


def simplify_by_regions(graph: Graph, budget: Budget = USUAL) -> tuple[Graph, RegionReport]:
    """Simplify each region (see `simplify`). Return a graph with the same bits, or the very same graph if nothing was gained."""
    from tensor_graphs.rewrites.rules import SIMPLIFYING

    (result,), solver = solve_by_regions(graph, SIMPLIFYING, BITWISE, budget)
    before, after = (paid_nodes(graph), len(graph.nodes)), (paid_nodes(result.graph), len(result.graph.nodes))
    return (result.graph if after < before else graph), solver.report


def peak_memory() -> float:
    """Return the peak memory of this process in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
