"""integer_inputs: the integers and booleans that a graph is given, and the values of them at which graphs have to agree.

One random residue serves for all floats, as formulas are polynomials. A random integer does not: a comparison with a number such as
n < 333, or a look-up, may differ at a few values only. So each node that depends on given integers has a kind:

- *plain*: elements of leaves, moved or selected, with a known number added, and known numbers among them (from pad, the other
  operand of a selection, or an index out of range). Comparisons of plain integers with known numbers or with each other, and
  look-ups by one, split the integers at thresholds. Values are drawn at every threshold and between any two, so any difference
  shows in one of these slots: log2(slots) bits of choice for each element (choice_counts.py).
- *ring*: sums and products, which wrap: a polynomial that is not 0 is not 0 at a fair share of all integers.
- *bits*: and, xor, and shifts (∗ and // by powers of two): functions of single bits.
- *test*: booleans computed from the above, and given ones: exact.
- Any other result (idiv, a comparison of a sum, the widening of a wrapped value) is an *atom*: a keyed random function of its
  operands, as sin is among floats. Graphs that agree for any such function agree for the real one. A sum read as bits, and bits
  read as a number, are random functions too: no rare carry can hide a difference.

In 8 or 16 bits any value may wrap, and each value is a slot. In 32 and more bits the values at which a plain integer with a number
added wraps are thresholds, and a sum or product that becomes a float is a random function of itself.

The distribution of any other index is unknown. Where both graphs share the index it is cut: replaced by independent integers, as a
result that holds for any integers holds for the index. Else nothing is claimed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.algebra import Array, At
from tensor_graphs.meaning.interpreter import evaluate
from tensor_graphs.proof.errors import OutsideFragmentError

MOST_THRESHOLDS = 2048
"""Most thresholds of one leaf; with more of them no number of points would do."""

MOST_OFFSETS = 256

MOST_DEGREE = 64

NARROW = 2
"""Largest width, in bytes, of integers that wrap in practice."""

_SHIFTS = frozenset({"mul", "idiv"})

Name = Literal["known", "plain", "ring", "bits", "test"]


@dataclass(frozen=True)
class Number:
    """A number, or elements of a known node, times the sign, plus elements of the `added` known nodes."""

    value: Node | int
    added: tuple[Node, ...] = ()
    sign: int = 1


@dataclass(frozen=True)
class Kind:
    """Kind of a node. leaves: given integers from which it is computed. added: known nodes whose elements may have been added to
    them. sign: −1 where they were negated. numbers: other values of elements, where it is plain. degree: as a polynomial in its
    leaves (in their bits, for bits). ones: mask of the bits that may be set, −1 where that is not known."""

    name: Name
    leaves: frozenset[Node] = frozenset()
    added: tuple[Node, ...] = ()
    sign: int = 1
    degree: int = 1
    ones: int = -1
    numbers: frozenset[Number] = frozenset()

    @property
    def as_given(self) -> bool:
        """True where nothing was added to an element, and none was negated."""
        return not self.added and self.sign == 1 and not any(n.added or n.sign < 0 for n in self.numbers)


KNOWN, TEST = Kind("known"), Kind("test")


@dataclass
class LeafUse:
    """Uses of one given integer; `nodes added` and `sign` are those applied to it before. thresholds: (number compared with it,
    nodes added, sign). axes: (look-up that it indexes, nodes added, sign), in one graph; common_axes: in all graphs. ends: (nodes
    added, sign) where it becomes a number, so that the values at which the sum wraps matter. compared: leaves compared with it.
    arithmetic: bits of choice of results computed from it, 0 for none. wraps: some are modulo 2^8 or 2^16."""

    thresholds: list[tuple[Number, tuple[Node, ...], int]] = field(default_factory=list)
    axes: list[tuple[Node, tuple[Node, ...], int]] = field(default_factory=list)
    common_axes: list[tuple[Node, tuple[Node, ...], int]] = field(default_factory=list)
    ends: list[tuple[tuple[Node, ...], int]] = field(default_factory=list)
    compared: set[Node] = field(default_factory=set)
    arithmetic: int = 0
    wraps: bool = False


@dataclass(frozen=True)
class Domain:
    """Values from which a leaf is drawn at one choice of sizes. tested: thresholds, sorted. indexed: positions that an index may
    have. bits: bits of choice of an element. shares: fractions of the values drawn from tested and from indexed."""

    tested: Array
    indexed: Array
    bits: float
    shares: tuple[float, float]


class IntegerInputs:
    """The kinds of all nodes of some graphs. shared: nodes that all of the graphs have.

    atoms: nodes that are random functions of their operands. views: nodes whose operands (where True) are read through a random
    function. hanging: nodes that depend on leaves. cut: nodes replaced by independent integers. leaves: uses of given integers and
    booleans, and of cut nodes. problem: error for an unsupported op, raised by `domains` (not where all values can be tried).
    """

    def __init__(self, order: Sequence[Node], shared: set[Node]) -> None:
        self.order, self.shared = order, shared
        self.problem: OutsideFragmentError | None = None
        self.cut: frozenset[Node] = frozenset()
        self._users: dict[Node, list[Node]] = {}
        for node in order:
            for i in node.inputs:
                self._users.setdefault(i, []).append(node)
        while True:
            self.atoms: set[Node] = set()
            self.views: dict[Node, tuple[bool, ...]] = {}
            self.kinds: dict[Node, Kind] = {}
            self.leaves: dict[Node, LeafUse] = {}
            self.hanging: set[Node] = set()
            self._to_cut: set[Node] = set()
            for node in order:
                self._visit(node)
            if not self._to_cut:
                return
            self.cut |= self._to_cut

    def _visit(self, node: Node) -> None:
        hangs = node.op in leaves.NAMED_LEAVES or any(i in self.hanging for i in node.inputs)
        if hangs:
            self.hanging.add(node)
        if node.dtype.kind == "float":
            self._into_floats(node)
        elif node in self.cut or node.op in leaves.NAMED_LEAVES:
            self.hanging.add(node)
            self.leaves[node] = LeafUse()
            self.kinds[node] = TEST if node.dtype.kind == "bool" else Kind("plain", frozenset({node}))
        else:
            self.kinds[node] = self._kind(node) if hangs else KNOWN

    # ---- kinds -------------------------------------------------------------------------------------------------------

    def _into_floats(self, node: Node) -> None:
        if node.op.group == "index":
            self._index(node)
        elif node.op.name in ("cast", "bitcast") and node.inputs[0] in self.kinds:
            kind = self.kinds[node.inputs[0]]
            self._counts(kind)
            self._must_not_wrap(kind)
            if kind.name in ("ring", "bits") and node.inputs[0].dtype.itemsize > NARROW:
                self.views[node] = (True,)                  # wrapping is rare: a random function of itself

    def _counts(self, kind: Kind, wraps_in: DType | None = None) -> None:
        for leaf in kind.leaves:
            bits = min(8 * leaf.dtype.itemsize, kind.degree if kind.name == "bits" else kind.degree.bit_length())
            self.leaves[leaf].arithmetic = max(self.leaves[leaf].arithmetic, bits)
            self.leaves[leaf].wraps |= wraps_in is not None and wraps_in.itemsize <= NARROW

    def _must_not_wrap(self, kind: Kind) -> None:
        """Record that values at which an added number overflows the dtype have to be drawn."""
        if kind.added or kind.sign < 0:
            for leaf in kind.leaves:
                self.leaves[leaf].ends.append((kind.added, kind.sign))

    def _index(self, node: Node) -> None:
        index = node.inputs[1]
        kind = self.kinds[index]
        if kind.name == "plain":
            self._must_not_wrap(kind)
            for leaf in kind.leaves:
                use = self.leaves[leaf]
                any_row = node in self.shared and node.inputs[0] in self.hanging    # rows of a known table may be special
                (use.common_axes if any_row else use.axes).append((node, kind.added, kind.sign))
        elif kind.name != "known" and index in self.shared:
            self._to_cut.add(index)
        elif kind.name != "known":
            self.problem = self.problem or OutsideFragmentError(
                "an index that is computed from given integers in one of the graphs only", node.location)

    def _kind(self, node: Node) -> Kind:
        name, operands = node.op.name, [self.kinds.get(i, KNOWN if i not in self.hanging else TEST) for i in node.inputs]
        if node.op.group == "index":
            self._index(node)
            if node.dtype.kind == "bool":
                return TEST
            if name == "gather":                            # a place out of range reads 0
                return self._joined(node, operands, (0,), frozenset({Number(0)}))
            if node.attrs["mode"] == "add":
                return self._together(node, "ring", operands, (0, 2))
            if node.attrs["mode"] == "max" and not self._compared(
                    node, [operands[0], operands[2]], [node.inputs[0], node.inputs[2]]):
                return self._atom(node, operands)
            return self._joined(node, operands, (0, 2))
        if node.dtype.kind == "bool":
            return self._boolean(node, operands)
        if node.op.group == "move":
            if operands[0].name == "plain" and name == "pad":
                return replace(operands[0], numbers=operands[0].numbers | {Number(int(node.attrs["value"]))})
            return operands[0] if operands[0].name != "known" else self._numbers_of(node.inputs[0])
        if name == "where":
            return self._joined(node, operands, (1, 2))
        if node.op.facts.selects:
            # the elements of one operand are compared with each other
            if self._compared(node, operands if name == "max" else operands * 2, node.inputs if name == "max" else node.inputs * 2):
                return self._joined(node, operands, range(len(operands)))
            return self._atom(node, operands)
        if name == "cast":
            return self._cast(node, operands[0])
        if node.op.facts.bits or (name in _SHIFTS and self._shifts(node)):
            return self._together(node, "bits", operands, range(len(operands)))
        if node.op.facts.ring:
            return self._sum(node, operands)
        if name == "bitcast" and node.inputs[0].dtype.kind in ("int", "uint") and operands[0].name != "ring":
            return self._together(node, "bits", operands, (0,))
        return self._atom(node, operands)

    def _shifts(self, node: Node) -> bool:
        """Return whether a node is x // 2^k, or x · 2^k that only bit ops and shifts use."""
        by = _constant(node.inputs[1])
        if by is None or by < 2 or by & (by - 1):
            return False
        return node.op.name == "idiv" or all(
            u.op.facts.bits or (u.op.name == "idiv" and self._shifts(u)) for u in self._users.get(node, [node]))

    @staticmethod
    def _numbers_of(node: Node) -> Kind:
        return Kind("plain", numbers=frozenset({Number(node)}))

    def _joined(self, node: Node, operands: Sequence[Kind], chosen: Sequence[int], more: frozenset[Number] = frozenset()) -> Kind:
        """Return the kind of a node that selects among the operands `chosen` and the numbers `more`."""
        among = [self._numbers_of(node.inputs[k]) if operands[k].name == "known" else operands[k] for k in chosen]
        if all(o.name == "plain" for o in among):
            plain = [o for o in among if o.leaves]
            forms = {(o.added, o.sign) for o in plain}
            if len(forms) <= 1:
                added, sign = next(iter(forms), ((), 1))
                return Kind("plain", frozenset().union(*(o.leaves for o in plain)), added, sign,
                            numbers=more.union(*(o.numbers for o in among)))
        return self._together(node, "ring" if any(o.name == "ring" for o in among) else "bits", operands, chosen)

    def _together(self, node: Node, name: Name, operands: Sequence[Kind], which: Sequence[int]) -> Kind:
        """Return the kind `name` (ring or bits) of a node computed from the operands `which`; operands of the other of these two
        kinds are read through a random function."""
        def seen(o: Kind) -> bool:
            return o.name == "bits" if name == "ring" else o.name == "ring" or bool(o.added) or o.sign < 0

        views = tuple(k in which and seen(o) for k, o in enumerate(operands))
        if any(views):
            self.views[node] = views
        degrees = [1 if views[k] else operands[k].degree for k in which if operands[k].leaves]
        multiplies = node.op.name in ("mul", "and") and not (name == "bits" and node.op.name == "mul")
        ones = self._ones(node, operands) if name == "bits" else -1
        if ones == 0:                                       # no bits in common, as in the or of a rotation
            return Kind("bits", ones=0)
        kind = Kind(name, frozenset().union(*(operands[k].leaves for k in which)),
                    degree=min(MOST_DEGREE, sum(degrees) if multiplies else max(degrees, default=1)), ones=ones)
        self._counts(kind, node.dtype)
        return kind

    def _ones(self, node: Node, operands: Sequence[Kind]) -> int:
        """Return the bits that may be set in results of and, xor and shifts of unsigned integers."""
        if not (node.op.facts.bits or node.op.name in _SHIFTS) or any(x.dtype.kind != "uint" for x in (node, *node.inputs)):
            return -1
        every = (1 << (8 * node.dtype.itemsize)) - 1
        masks = []
        for i, kind in zip(node.inputs, operands, strict=True):
            number = _constant(i)
            masks.append(number if number is not None else every if kind.ones < 0 or self.views.get(node) else kind.ones)
        if node.op.name == "and":
            return masks[0] & masks[1]
        if node.op.name == "xor":
            return masks[0] | masks[1]
        by = _constant(node.inputs[1])
        if node.op.name in _SHIFTS and by:
            return (masks[0] * by) & every if node.op.name == "mul" else masks[0] // by
        return -1

    def _atom(self, node: Node, operands: Sequence[Kind]) -> Kind:
        refused = node.op.name in ("reduce_max", "scatter", "bitcast", "iota") or any(i.dtype.kind == "float" for i in node.inputs)
        if refused:
            self.problem = self.problem or OutsideFragmentError(
                f"{node.op.name} of integers that are computed from given ones", node.location)
        else:
            self.atoms.add(node)
        if node.dtype.kind == "bool":
            return TEST
        for o in () if refused else operands:
            self._counts(o, node.dtype)
        return Kind("ring", frozenset().union(*(o.leaves for o in operands)))

    def _sum(self, node: Node, operands: Sequence[Kind]) -> Kind:
        if node.op.name in ("add", "mul") and sorted(o.name for o in operands) == ["known", "plain"]:
            (k, plain), = [(k, o) for k, o in enumerate(operands) if o.name == "plain"]
            by, exact = node.inputs[1 - k], plain.leaves and node.dtype.itemsize > NARROW
            if exact and node.op.name == "add":
                return replace(plain, added=(*plain.added, by),
                               numbers=frozenset(replace(n, added=(*n.added, by)) for n in plain.numbers))
            if exact and node.op.name == "mul" and plain.as_given and _constant(by) == -1:
                return replace(plain, sign=-1, numbers=frozenset(replace(n, sign=-1) for n in plain.numbers))
        return self._together(node, "ring", operands, range(len(operands)))

    def _cast(self, node: Node, operand: Kind) -> Kind:
        old, new = node.inputs[0].dtype, node.dtype
        if old.kind == "bool":
            return Kind("plain", numbers=frozenset({Number(0), Number(1)}))
        if old.kind == "float":
            return Kind("plain")                            # known, or refused by the field
        wider = int(new.min) <= int(old.min) and int(old.max) <= int(new.max)
        if operand.name == "plain" and wider and operand.as_given:
            return operand
        if operand.name == "bits" or not wider:             # modulo a smaller power of two: still sums and products
            return self._together(node, "bits" if operand.name == "bits" else "ring", [operand], (0,))
        return self._atom(node, [operand])

    def _boolean(self, node: Node, operands: Sequence[Kind]) -> Kind:
        inputs = [i for i in node.inputs if i.dtype.kind in ("int", "uint")]
        if not inputs:
            return TEST
        if node.op.facts.compares and self._compared(node, operands, node.inputs):
            return TEST
        if node.op.name == "cast" and operands[0].name == "plain":
            for leaf in operands[0].leaves:
                self.leaves[leaf].thresholds.append((Number(0), operands[0].added, operands[0].sign))
            return TEST
        return self._atom(node, operands)

    def _compared(self, node: Node, operands: Sequence[Kind], of: Sequence[Node]) -> bool:
        """Return whether a comparison of plain or known integers can be handled; if so, record its thresholds. of: its operands."""
        if any(o.name not in ("known", "plain") for o in operands):
            return False
        one, other = (self._numbers_of(n) if o.name == "known" else o for n, o in zip(of, operands, strict=True))
        if one.leaves and other.leaves:
            if (one.sign, one.added) != (other.sign, other.added) or not all(_constant(n) is not None for n in one.added):
                return False
        for kind, against in ((one, other), (other, one)):
            self._must_not_wrap(kind)
            for leaf in kind.leaves:
                self.leaves[leaf].compared |= against.leaves
                self.leaves[leaf].thresholds += [(n, kind.added, kind.sign) for n in sorted(against.numbers, key=str)]
        return True

    def mixed(self, roots: Sequence[Node]) -> bool:
        """Return whether an output, with a root in each graph, is bits in one graph and a sum in another."""
        names = {self.kinds[r].name for r in roots if r in self.kinds}
        return {"bits", "ring"} <= names

    # ---- at sizes ----------------------------------------------------------------------------------------------------

    def domains(self, nodes: Sequence[At], binding: Mapping[str, int]) -> dict[Node, Domain]:
        """Return the domain of each leaf at these sizes. Raises OutsideFragmentError where no number of points would do."""
        if self.problem is not None:
            raise self.problem
        at = {n.node: n for n in nodes}
        known_values: dict[Node, Array] = {}

        def values(node: Node) -> Array:
            if node not in known_values:
                if math.prod(at[node].shape) > 1 << 20:
                    raise OutsideFragmentError(f"{node.op.name} with which given integers are compared is too large", node.location)
                known_values[node] = np.unique(np.asarray(evaluate([node], {}, binding)[0]).astype(object))
            return known_values[node]

        def offsets(added: tuple[Node, ...]) -> list[int]:
            sums = {0}
            for node in added:
                sums = {s + int(v) for s in sums for v in values(node)}
                if len(sums) > MOST_OFFSETS:
                    raise OutsideFragmentError("too many numbers are added to one given integer", node.location)
            return sorted(sums)

        def elements(number: Number, low: int, high: int) -> set[int]:
            every = [number.value] if isinstance(number.value, int) else [int(v) for v in values(number.value)]
            numbers = {number.sign * v + o for v in every for o in offsets(number.added)}
            return numbers | {(v - low) % (high - low + 1) + low for v in numbers if number.added or number.sign < 0}   # wrapped

        tested: dict[Node, set[int]] = {leaf: set() for leaf in self.leaves}
        indexed: dict[Node, set[int]] = {leaf: set() for leaf in self.leaves}
        for leaf, use in self.leaves.items():
            low, high = int(leaf.dtype.min), int(leaf.dtype.max)
            for number, added, sign in use.thresholds:
                tested[leaf] |= {sign * (c - o) for c in elements(number, low, high) for o in offsets(added)}
            for added, sign in use.ends:
                for o in offsets(added):
                    tested[leaf] |= {sign * (end - o) + k for end in (low, high) for k in (-1, 0, 1)} | {low, high}
            for axes, into in ((use.axes, tested), (use.common_axes, indexed)):
                for user, added, sign in axes:
                    size = int(at[user].input_types[0].shape[user.attrs["axis"]])
                    if size > MOST_THRESHOLDS and into is tested:
                        raise OutsideFragmentError(f"an index of {size} places: not all of them can be tried", user.location)
                    places = range(size) if size <= MOST_THRESHOLDS else (0, 1, size // 2, size - 1)
                    into[leaf] |= {sign * (p - o) for p in places for o in offsets(added)}
        for group in _groups({leaf: use.compared for leaf, use in self.leaves.items()}):
            together = set().union(*(tested[leaf] for leaf in group)) | ({0, 1, 2} if len(group) > 1 else set())
            if len(group) > 1:                              # ties between any two thresholds
                together = {t + k for t in together for k in (-1, 0, 1, 2)}
            for leaf in group:
                if together and (len(group) > 1 or self.leaves[leaf].compared):
                    tested[leaf] = set(together)
        return {leaf: self._domain(leaf, tested[leaf], indexed[leaf]) for leaf in self.leaves}

    def _domain(self, leaf: Node, tested: set[int], indexed: set[int]) -> Domain:
        if leaf.dtype.kind == "bool":
            return Domain(np.empty(0), np.empty(0), 1.0, (0.0, 0.0))
        if self.leaves[leaf].wraps:                         # any value may be the one
            return Domain(np.empty(0), np.empty(0), 8.0 * leaf.dtype.itemsize, (0.0, 0.0))
        low, high = int(leaf.dtype.min), int(leaf.dtype.max)
        inside = sorted(t for t in tested if low <= t <= high)
        if len(inside) > MOST_THRESHOLDS:
            raise OutsideFragmentError(f"{leaf.attrs.get('name', leaf.op.name)!r} is compared with {len(inside)} numbers: not all "
                                       "of them can be tried", leaf.location)
        places = sorted(t for t in indexed if low <= t <= high)
        shares = (0.5, 0.45) if inside and places else (0.8, 0.0) if inside else (0.0, 0.95) if places else (0.0, 0.0)
        bits = math.log2((2 * len(inside) + 1) / shares[0]) if inside else 0.1 if places else 1.0
        if self.leaves[leaf].arithmetic:
            bits += self.leaves[leaf].arithmetic + (1.0 if inside else 0.0)
        return Domain(np.asarray(inside, dtype=object), np.asarray(places, dtype=object), bits, shares)


def draw(dtype: DType, shape: tuple[int, ...], points: int, domain: Domain, seed: list[int]) -> Array:
    """Return random integers, [*shape, points]: at a threshold or between two, a position of an axis, or any value of the dtype."""
    rng = np.random.default_rng(seed)
    full = (*shape, points)
    if dtype.kind == "bool":
        return np.asarray(rng.random(full) < 0.5)
    low, high = int(dtype.min), int(dtype.max)
    out = rng.integers(low, high, full, dtype=dtype.numpy, endpoint=True)
    style = rng.random(full)
    tested, indexed = domain.shares
    if tested:
        edges = [low - 1, *domain.tested.tolist(), high + 1]
        slots: list[tuple[int, int]] = [(t, t) for t in edges[1:-1]]
        slots += [(a + 1, b - 1) for a, b in itertools.pairwise(edges) if b - a > 1]
        starts, ends = (np.asarray([s[k] for s in slots], dtype=dtype.numpy) for k in (0, 1))
        slot = rng.integers(0, len(slots), full)
        within = rng.integers(starts[slot], ends[slot], dtype=dtype.numpy, endpoint=True)
        out = np.where(style < tested, within, out)
    if indexed:
        places = domain.indexed.astype(dtype.numpy)
        out = np.where(style >= 1.0 - indexed, places[rng.integers(0, len(places), full)], out)
    return np.asarray(out)


def _constant(node: Node) -> int | None:
    """Return the integer that all elements of a constant equal; None for any other node."""
    while node.op.facts.rearranges:
        node = node.inputs[0]
    value = node.attrs["value"] if node.op is leaves.CONSTANT else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _groups(compared: Mapping[Node, set[Node]]) -> list[set[Node]]:
    """Return the leaves in groups that are compared with each other, directly or through other leaves."""
    groups: list[set[Node]] = []
    seen: set[Node] = set()
    for leaf in compared:
        group, todo = set[Node](), [leaf]
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                group.add(one)
                todo += compared.get(one, ())
        if group:
            groups.append(group)
    return groups
