"""fingerprint: the values of a graph at random points of a finite field, compared with those of graphs over the same leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.atomic import AtomicOp
from tensor_graphs.language.composite import resolve_attributes
from tensor_graphs.language.dims import bounds
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import ArrayValue, Node, Op, walk
from tensor_graphs.meaning.algebra import Array, At
from tensor_graphs.proof import exhaustive, ranges, residues
from tensor_graphs.proof import residue_lanes as lane_room
from tensor_graphs.proof.choice_counts import Selections
from tensor_graphs.proof.degree import degrees
from tensor_graphs.proof.errors import OutsideFragmentError, TooMuchToComputeError
from tensor_graphs.proof.finite_field import POLE, BySign, Field, FieldValue
from tensor_graphs.proof.integer_inputs import Domain, IntegerInputs, draw
from tensor_graphs.proof.normal_form import in_atoms, rounding_aloud
from tensor_graphs.proof.sizes import choose

log = logging.getLogger(__name__)

TARGET = 2.0**-24
"""A proof is wrong with at most this probability."""

MOST_WORK = 20_000_000
"""Elements times points that one comparison of two graphs may compute, at all sizes together (a second at most)."""

_LARGE = 500_000
MOST_POINTS = 8192
FEWEST_POINTS = 2
_LOGARITHM = 400
"""Number of elements that take as long as one discrete logarithm."""

_TERMS = 16
"""Multiplications inside a matrix product that take as long as one element of another op."""

_BATCH_ELEMENTS = 400_000
"""Most elements of the largest node, times points, that are in memory at a time."""


def seed_of(*words: object) -> list[int]:
    digest = hashlib.sha256("|".join(map(str, words)).encode()).digest()
    return [int.from_bytes(digest[i:i + 4], "little") for i in (0, 4, 8, 12)]


class Points:
    """The outputs of several graphs, to be evaluated over the same leaves (paired by kind and name) at chosen sizes. Raises
    OutsideFragmentError for ops that exact evaluation does not support."""

    def __init__(self, roots: Sequence[Sequence[Node]], bits: bool = False) -> None:
        self.bits = bits
        flat = in_atoms([r for graph in roots for r in graph])
        if bits:
            flat = rounding_aloud(flat)
        self.roots: list[list[Node]] = []
        for graph in roots:
            self.roots.append(flat[:len(graph)])
            flat = flat[len(graph):]
        self.lanes, self.compared_in = lane_room.plan(self.roots, bits)
        self.order = walk([r for graph in self.roots for r in graph])
        self.shared = set(walk(self.roots[0])).intersection(*(walk(graph) for graph in self.roots[1:]))
        self.given = IntegerInputs(self.order, self.shared)
        self.has_logarithm = any(n.op.name == "log2" and n not in self.lanes.random for n in self.order)
        self.chosen_compared = _chosen_compared(self.order, self.given.hanging)
        self._places = {node: i for i, node in enumerate(self.order)}
        self._last = {x: i for i, node in enumerate(self.order) for x in node.inputs}
        self._kept = {r for graph in self.roots for r in graph}

    def at(self, binding: Mapping[str, int]) -> list[At]:
        """Return every node with its types and attributes at these sizes, operands before users. Raises DimError."""
        types = {node: node.type.at(binding) for node in self.order}
        return [At(node, resolve_attributes(node.attrs, binding), (types[node],), tuple(types[i] for i in node.inputs))
                for node in self.order]

    def evaluate(self, nodes: Sequence[At], field: Field, domains: Mapping[Node, Domain],
                 indices: dict[Node, Array] | None = None, every: Mapping[Node, Array] | None = None) -> list[list[FieldValue]]:
        """Return the values of the outputs, a list for each graph. domains: the values that each given integer may have. indices:
        receives the integers used by gather and scatter. every: values of the leaves at all combinations (exhaustive.py) in place
        of random ones; all ops are then exact."""
        values: dict[Node, FieldValue] = {}
        for position, n in enumerate(nodes):
            node = n.node
            if every is not None and node in every:
                values[node] = FieldValue(exact=exhaustive.assigned(n, every))
            elif every is not None and isinstance(node.op, AtomicOp):
                values[node] = field.finish(n, node.op.meaning(field, n, *(values[i] for i in node.inputs)))
            elif node in domains:
                values[node] = FieldValue(exact=draw(n.dtype, tuple(n.shape), field.points, domains[node],
                                                     seed_of(field.seed, self.name(node))))
            elif node in self.given.atoms:
                values[node] = field.atom(n, *(values[i] for i in node.inputs))
            elif isinstance(node.op, AtomicOp):
                operands = [values[i] for i in node.inputs]
                if node in self.given.views:                # a sum read as bits, or bits read as a number
                    operands = [field.seen(x) if seen else x for x, seen in zip(operands, self.given.views[node], strict=True)]
                values[node] = field.finish(n, node.op.meaning(field, n, *operands))
            elif node.op is leaves.CONSTANT:
                value = n.attrs["value"]
                values[node] = field.constant(n, value.array() if isinstance(value, ArrayValue) else value)
            elif node.op in leaves.NAMED_LEAVES:
                values[node] = self._draw(n, field)
            else:
                values[node] = getattr(field, node.op.name)(n, *(values[i] for i in node.inputs))
            if indices is not None and node.op.group == "index":
                indices[node.inputs[1]] = values[node.inputs[1]].integers
            for i in node.inputs:
                if self._last[i] == position and i not in self._kept:
                    values.pop(i, None)
        if every is not None:
            return [[values[r] for r in graph] for graph in self.roots]
        mixed = [self.given.mixed(same) for same in zip(*self.roots, strict=True)]
        return [[field.seen(values[r]) if both and self.given.kinds[r].name == "bits" else values[r]
                 for r, both in zip(graph, mixed, strict=True)] for graph in self.roots]

    def key(self) -> str:
        """Return a key of the graphs, from which their primes are drawn, so that no program can be fitted to the primes."""
        return "|".join(r.digest for graph in self.roots for r in graph)

    def name(self, node: Node) -> str:
        """Return the name that seeds the random values of a node: kind and name of a leaf, or the position of a cut node."""
        return leaf_name(node) if node.op in leaves.NAMED_LEAVES else f"cut {self._places[node]}"

    def _draw(self, n: At, field: Field) -> FieldValue:
        lanes = {}
        for lane in field.needed(n):
            rng = np.random.default_rng(seed_of(field.seed, leaf_name(n.node), lane))
            lanes[lane] = rng.integers(0, field.chain[lane], (*n.shape, field.points), dtype=np.uint64)
        return FieldValue(lanes)

    def held(self, binding: Mapping[str, int]) -> frozenset[Node]:
        """Return the casts to floats that are exact at these sizes; none unless roundings count (bits)."""
        return ranges.held(self.order, binding) if self.bits else frozenset()

    def choices(self, nodes: Sequence[At], field: Field, domains: Mapping[Node, Domain], indices: Mapping[Node, Array],
                held: frozenset[Node] = frozenset()) -> float:
        """Return the largest number of choices (in bits) on which one output element, in all graphs together, depends."""
        if not field.selections and not field.roots and not domains:
            return 0.0
        algebra = Selections(field.selections, indices, field.roots, field.ties)
        choices: dict[Node, Any] = {}
        for n in nodes:
            node = n.node
            if node in domains:
                choices[node] = algebra.given(n, self.name(node), domains[node].bits)
            elif node in self.given.atoms:
                choices[node] = algebra.finish(n, algebra.atom(n, *(choices[i] for i in node.inputs)))
            elif isinstance(node.op, AtomicOp):
                choices[node] = algebra.finish(n, node.op.meaning(algebra, n, *(choices[i] for i in node.inputs)))
                if self.bits and node.op.name == "cast" and node.dtype.kind == "float" and node not in held:
                    choices[node] = algebra.floor(n, choices[node])     # a random function of what it rounds
            else:
                choices[node] = getattr(algebra, node.op.name)(n, *(choices[i] for i in node.inputs)) if node.inputs else None
        most = 0.0
        for same in zip(*self.roots, strict=True):
            roots = [choices[r] for r in same if choices[r] is not None]
            if roots:
                together = roots[0].hardest.reshape(-1)
                for other in roots[1:]:
                    together = np.bitwise_or(together, other.hardest.reshape(-1))
                most = max(most, max((algebra.weight(c) for c in together), default=0.0))
        return most


def leaf_name(node: Node) -> str:
    return f"{node.op.name} {node.attrs['name']}"


@dataclass(frozen=True)
class Agreement:
    """Result of a comparison at one choice of sizes.

    equal: all outputs agreed at all points. where: if not, the output and the position in it. probability: upper bound on different
    graphs agreeing by chance. points: at how many points each element was defined, at least. work: elements computed. both_ways:
    some values are compared as a < b and as b < a, so ties count as a third outcome. tied: without ties the graphs agreed; with
    ties this was not shown. exact: all values were tried. values: leaf -> its value where trying all values found a difference.
    """

    equal: bool
    probability: float
    points: int
    work: int
    where: str = ""
    both_ways: bool = False
    tied: bool = False
    exact: bool = False
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def one_sided(x: FieldValue, y: FieldValue) -> bool:
    """Return whether some element of one value divides by 0 at a point at which the other value is defined."""
    for v, other in ((x, y), (y, x)):
        if v.bad is not None:
            pole = (v.bad & POLE) != 0
            if pole.any() and bool(np.any(pole if other.bad is None else pole & (other.bad == 0))):
                return True
    return False


MOST_BY_SQUARES = 3.0
"""Most choices (in bits) that depend on which constants are squares: (1 − 2^-3)^125 is 2^-24, and there are more chains."""


def _chosen_compared(order: Sequence[Node], hanging: Collection[Node]) -> bool:
    """Return whether < compares floats that an order of other floats selected, as in min(a, b) < max(a, b). Such floats tie where a
    and b tie, and no strict order of a and b shows that."""
    chosen: set[Node] = set()
    for n in order:
        floats = [i for i in n.inputs if i.dtype.kind == "float"]
        if n.op.name == "less" and floats and any(i in chosen for i in floats):
            return True
        ordered = _is_ordered(n.op) and bool(floats) and n in hanging
        if ordered or any(i in chosen for i in n.inputs):
            chosen.add(n)
    return False


def _is_ordered(op: Op) -> bool:
    """Return whether an op's result depends on the order of its operands' values."""
    return op.facts.compares or op.facts.selects


def both_ways(sides: Sequence[tuple[Array, Array, int]]) -> bool:
    """Return whether the comparisons by < have a cycle: a < b and b < a, or a < b, b < c and c < a.

    Without a cycle, a tie has the outcomes of some strict order: one that puts a after b wherever a < b is tied. Agreement in all
    strict orders then implies agreement at ties. (a < b also counts as −b < −a.) sides: (each a, each b, their prime).
    """
    for prime in {m for _, _, m in sides}:
        before = np.concatenate([a for a, _, m in sides if m == prime])
        after = np.concatenate([b for _, b, m in sides if m == prime])
        m = np.uint64(prime)
        edges = np.unique(np.stack([np.concatenate([before, (m - after) % m]), np.concatenate([after, (m - before) % m])]), axis=1)
        edges = edges[:, edges[0] != edges[1]]
        while edges.size:                                   # take away the values before which there is none
            first = ~np.isin(edges[0], edges[1])
            if not first.any():
                return True
            edges = edges[:, ~first]
    return False


def compare(p: Points, binding: Mapping[str, int], work_left: int = MOST_WORK, seed: int = 0) -> Agreement:
    """Compare the two graphs of p at these sizes: in all strict orders of their values and, where values are compared both ways,
    also in orders with ties. Raises OutsideFragmentError as `_compare` does."""
    all_values = _compare_all_values(p, binding, seed)
    if all_values is not None:
        return all_values
    strict = _compare(p, binding, work_left, seed)
    if p.chosen_compared:
        strict = dataclasses.replace(strict, both_ways=True)
    if strict.equal and not strict.both_ways:
        return strict
    order = [n for n in p.order if _is_ordered(n.op) and n.inputs[0].dtype.kind == "float"]
    if not strict.equal and any(n.op.name in ("less", "max") for n in order):
        hows: tuple[BySign, ...] = ("keyed", "squares")
        for how in hows:
            try:
                signs = _compare(p, binding, work_left - strict.work, seed, by_sign=how)
                if signs.equal and not signs.both_ways and not p.chosen_compared:
                    # signs that multiply are never 0, but x² is at x = 0; with max alone all is continuous, so ties agree as well
                    never = how == "squares" and any(n.op.name == "less" and n in p.given.hanging for n in order)
                    return dataclasses.replace(signs, work=strict.work + signs.work, tied=never)
            except OutsideFragmentError as e:
                log.debug("not by signs: %s", e)
    if not strict.both_ways and not any(n.op.name == "not_equal" and n.inputs[0].dtype.kind == "float" for n in p.order):
        return strict
    try:
        tied = _compare(p, binding, work_left - strict.work, seed, ties=True)
    except OutsideFragmentError:
        return dataclasses.replace(strict, tied=strict.equal)
    work = strict.work + tied.work
    if tied.equal:
        return dataclasses.replace(tied, work=work, both_ways=True)
    return dataclasses.replace(strict, work=work, tied=strict.equal)


def _compare_all_values(p: Points, binding: Mapping[str, int], seed: int) -> Agreement | None:
    """Return the agreement at all values of integer leaves with few values; None where they have many, or a result is not exact."""
    nodes = p.at(binding)
    every = exhaustive.values(p.order, nodes)
    if every is None:
        return None
    count = next(iter(every.values())).size
    work = sum(math.prod(n.shape) for n in nodes) * count
    if work > MOST_WORK * 4:
        return None
    shapes = [[r.type.at(binding).shape for r in graph] for graph in p.roots]
    if shapes[0] != shapes[1]:
        return Agreement(False, 1.0, 0, 0, "the shapes differ")
    start = seed_of("primes", seed, p.key())[0]
    floats = any(n.dtype.kind == "float" for n in nodes)
    for batch in range(2 if floats else 1):
        field = Field(residues.chain(start + batch, p.has_logarithm), count, seed * 1000 + batch, p.lanes, p.bits)
        try:
            with np.errstate(all="ignore"):
                outputs = p.evaluate(nodes, field, {}, every=every)
        except OutsideFragmentError as e:
            log.debug("not at all values: %s", e)
            return None
        for number, (x, y) in enumerate(zip(*outputs, strict=True)):
            bad = [v.bad for v in (x, y) if v.bad is not None and v.bad.any()]
            if bad or any(v.minus is not None and v.minus.any() for v in (x, y)):
                return None
            lane = p.compared_in[number]
            same = x.exact == y.integers if x.exact is not None else x.lanes[lane] == y.lanes[lane]
            if not np.all(same):
                *place, combination = np.argwhere(~np.asarray(same))[0].tolist()
                values = {leaf_name(leaf): every[leaf][combination] for leaf in every}
                return Agreement(False, 1.0, 0, work // 8, f"output {number} at {place}", values=values)
    return Agreement(True, 2.0**-40 if floats else 0.0, count, work // 8, exact=True)


def _compare(p: Points, binding: Mapping[str, int], work_left: int, seed: int, ties: bool = False,
             by_sign: BySign = "") -> Agreement:
    """Compare the two graphs of p at random points of these sizes, in one kind of order (ties, by_sign).

    Raises OutsideFragmentError where the points show too little: an element is defined nowhere, there are too many choices, there
    is too much to compute, or a comparison of integers never came out both ways.
    """
    nodes = p.at(binding)
    sizes = {n.node: math.prod(n.shape) for n in nodes}
    for a, b in zip(*p.roots, strict=True):
        if a.type.at(binding).shape != b.type.at(binding).shape:
            return Agreement(False, 1.0, 0, 0, "the shapes differ")
    prime = min(min(chain) for chain in residues.CHAINS)
    degrees_of = degrees(p.order, sizes, p.lanes)
    degree = max((degrees_of[r] for graph in p.roots for r in graph if r.dtype.kind == "float"), default=0)
    logarithms = [sizes[n.node] for n in nodes if n.node.op.name == "log2" and n.node not in p.lanes.random]
    terms = sum(sizes[n.node] * int(n.input_types[0].shape[-1]) for n in nodes if n.node.op.name == "dot")
    total, largest = terms // _TERMS + sum(sizes.values()) + _LOGARITHM * sum(logarithms) + 1, max(sizes.values(), default=1) + 1
    shapes = [r.type.at(binding).shape for r in p.roots[0]]
    counts = [np.zeros(tuple(int(s) for s in shape), dtype=np.int64) for shape in shapes]
    hidden, domains = 0.0, p.given.domains(nodes, binding)
    roots = sum(sizes[n.node] for n in nodes if n.node.op.name == "sqrt")
    needed, points, work, batch, lost = FEWEST_POINTS, 8 if not roots else min(128, 32 + roots), 0, 0, 0
    if not roots and total > _LARGE:
        points = FEWEST_POINTS
    outcomes: dict[Node, tuple[bool, bool]] = {}
    circle = False
    held = p.held(binding)
    start = seed_of("primes", seed, p.key())[0]
    while True:
        points = max(1, min(points, _BATCH_ELEMENTS // largest, 512))
        work += total * points
        if work > work_left:
            raise TooMuchToComputeError(f"more than {MOST_WORK:.0e} elements to compute",
                                        fix="make large sizes dims, so that small ones can stand for them")
        chain = residues.chain(start + (lost if p.has_logarithm else batch), p.has_logarithm)
        field = Field(chain, points, seed * 1000 + batch, p.lanes, p.bits, ties, by_sign, p.given.hanging, held)
        indices: dict[Node, Array] = {}
        with np.errstate(all="ignore"):
            outputs = p.evaluate(nodes, field, domains, indices if batch == 0 else None)
        for number, (x, y) in enumerate(zip(*outputs, strict=True)):
            if x.exact is not None:
                same = np.asarray(x.exact == y.integers)
            else:
                lane = p.compared_in[number]
                same = np.asarray(x.lanes[lane] == y.lanes[lane])
                if x.minus is not None or y.minus is not None:
                    none = np.zeros(1, dtype=np.bool_)
                    one, two = none if x.minus is None else x.minus, none if y.minus is None else y.minus
                    same = np.where(one | two, one & two, same)
            good = np.ones((), dtype=np.bool_)
            for v in (x, y):
                if v.bad is not None:
                    good = good & (v.bad == 0)
            if one_sided(x, y):
                raise OutsideFragmentError(f"one graph divides by 0 in output {number} where the other does not")
            same, good = np.broadcast_arrays(same | ~good, good)
            if not same.all():
                place = np.argwhere(~same)[0][:-1].tolist()
                return Agreement(False, 1.0, int(min((c.min() for c in counts if c.size), default=0)), work,
                                 f"output {number} at {place}", both_ways=circle or both_ways(field.sides))
            counts[number] += good.sum(axis=-1) * (points if same.shape[-1] == 1 else 1)
        for node, (true, false) in field.outcomes.items():
            t, f = outcomes.get(node, (False, False))
            outcomes[node] = (t or true, f or false)
        circle = circle or both_ways(field.sides)
        if batch == 0:
            hidden = p.choices(nodes, field, domains, indices, held)
        chance = degree / prime + (1.0 - 2.0**-hidden)
        if chance >= 1.0 - 1e-6:
            raise OutsideFragmentError(f"degree {degree:.1e} and {hidden:.0f} choices hide too much")
        needed = max(FEWEST_POINTS, math.ceil(math.log(TARGET) / math.log(chance)) if chance > 0 else 0)
        if needed > MOST_POINTS:
            raise OutsideFragmentError(f"{hidden:.1f} choices on which an element hangs: {needed} points would be needed")
        least = int(min((c.min() for c in counts if c.size), default=needed))
        batch += 1
        if by_sign == "squares":                            # whether a constant is a square depends on the prime alone
            if p.has_logarithm or hidden > MOST_BY_SQUARES:
                raise OutsideFragmentError(f"{hidden:.1f} choices by signs that multiply")
            if batch < min(len(residues.CHAINS), math.ceil(-24.0 / math.log2(1.0 - 2.0 ** -max(hidden, 1.0)))):
                points = 8
                continue
        if least >= needed:
            break
        lost += least == 0
        drawn = int(work // total)
        if drawn >= 256 and least == 0:
            raise OutsideFragmentError(f"an element of an output is undefined at {drawn} points of the field (too many roots, "
                                       "−∞ where it is no symbol, or two writes to one place)")
        points = min(512, max(8, needed - least if least * 4 > drawn else drawn))
    for node, (true, false) in outcomes.items():
        if not (true and false):
            raise OutsideFragmentError("a comparison of integers never came out both ways", node.location)
    return Agreement(True, chance**least if chance > 0 else 0.0, least, work, both_ways=circle)


def fingerprint(graph: Graph, dims: Mapping[str, int] | None = None, points: int = 8, seed: int = 0, bits: bool = False) -> str:
    """Return a hash of a graph's meaning: 64 hexadecimal digits, equal for graphs that are equal functions of equally named leaves.

    dims: sizes by name (a generic choice where absent). points: number of points of the field. bits: narrowing casts count.
    Elements that are undefined at a point are marked, so graphs with roots and logarithms that are equal only where all of these
    are defined may have different fingerprints; `equal` compares those. Raises OutsideFragmentError, DimError.
    """
    p = Points([graph.roots], bits)
    first = choose(p.roots[0], {name: bounds(x) for name, x in graph.dims.items()}).bindings[0]
    binding = {**first, **(dims or {})}
    nodes = p.at(binding)
    field = Field(residues.CHAINS[0], points, seed, p.lanes, bits, hanging=p.given.hanging, held=p.held(binding))
    with np.errstate(all="ignore"):
        (outputs,) = p.evaluate(nodes, field, p.given.domains(nodes, binding))
    h = hashlib.sha256(f"{points} {seed} {bits}".encode())
    for name, x, lane in zip([*graph.outputs, *graph.updates], outputs, p.compared_in, strict=True):
        values = x.exact if x.exact is not None else x.lanes[lane]
        if x.minus is not None:
            values = np.where(x.minus, np.uint64(2**62), values)
        if x.bad is not None:
            values = np.where(x.bad, np.asarray(0, dtype=values.dtype), values)
        bad = np.broadcast_to(np.zeros(1, dtype=np.bool_) if x.bad is None else x.bad, values.shape)
        whole = np.broadcast_to(values, (*values.shape[:-1], points))
        h.update(f"|{name} {values.dtype} {whole.shape}|".encode() + np.ascontiguousarray(whole).tobytes())
        h.update(np.ascontiguousarray(np.broadcast_to(bad != 0, whole.shape)).tobytes())
    return h.hexdigest()
