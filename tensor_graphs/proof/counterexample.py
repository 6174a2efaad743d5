"""counterexample: inputs at which two graphs differ in float64 by more than rounding can explain.

What rounding can do is measured, not estimated: the graphs run again with every operation and every constant that is no
whole number disturbed by up to 2^-44 of itself, a sum by up to 2^-44 of the sum of the sizes of its terms, as its partial
sums are rounded, and only a difference many times larger than all that this moves counts. Where a result depends on
cancellation, or sits at an edge of floor, < or ≠, the disturbed runs scatter and nothing is claimed. Source: Monte Carlo
arithmetic, Parker 1997.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp, Definition, expand_all, looked_into
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.leaves import CONSTANT, NAMED_LEAVES
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.algebra import Array, At, Real, narrow
from tensor_graphs.meaning.choosing import chooses
from tensor_graphs.meaning.interpreter import _Walk

NOISE = 2.0**-44
SAFETY = 256.0
"""A difference counts when it is so many times what the disturbances moved."""

RUNS = 24
"""Disturbed runs, every second one the opposite of the one before: at an edge of floor or < each pair falls on both sides."""

FEWEST_RUNS, FEW_SAFETY = 4, 2.0**20
"""Where runs cost much there are fewer of them, and only a larger difference counts."""

DIRECT_PART = 1e-4
"""Of the results a difference has to be, where what cancels inside of composites is not seen."""

_RUNS_WORK = 60_000_000
"""Elements that all disturbed runs of one attempt may compute, beyond the fewest."""

MOST_WATCHED = 4_000_000
"""Elements of comparisons, floors and casts to integers that are watched over all runs, at most."""

_SMALLEST = 1e-290
_CLIPPED = -2000.0                          # exp turns −∞ into 2^-2000 on its way to 0, but other numbers as well:
_LEAST = 2.0**-1074                         # 2^-2000 is no 0, so that it makes 0 with 2^-∞ alone, and leaves the range with others


class Edges:
    """How far from an edge all comparisons of the runs so far were, in the order in which each run makes them.

    Where the distance moves by as much as it is, what happens on the edge itself may be the truth, and is seen in no run: |x - y|
    is 0 in none if x and y are the same number, each rounded in its own way. The outcome is then the other one, or random.
    """

    def __init__(self) -> None:
        self.runs = self.place = self.size = 0
        self.extent: list[tuple[Array, Array] | None] = []

    def start(self) -> None:
        self.runs, self.place = self.runs + 1, 0

    def near(self, distance: Array) -> Array | None:
        """Where this distance, the next of the run, may be 0; None where it is not known."""
        self.place += 1
        if self.runs == 1:
            self.size += distance.size
            self.extent.append((distance, distance) if self.size <= MOST_WATCHED else None)
            return None
        known = self.extent[self.place - 1]
        if known is None:
            return None
        low, high = np.fmin(known[0], distance), np.fmax(known[1], distance)
        self.extent[self.place - 1] = low, high
        return np.asarray((high > low) & (np.abs(distance) <= SAFETY * (high - low)))


class Disturbed(Real):
    """Real, with floats off by a random factor within 1 ± NOISE after every op."""

    def __init__(self, seed: int, sign: float, edges: Edges) -> None:
        """sign: −1 for the opposite of what 1 does, so that what is cut off on one side of an edge is seen on the other. edges:
        those of the runs before, of the same nodes."""
        self.rng, self.sign, self.edges = np.random.default_rng(seed), sign, edges
        edges.start()
        self.out_of_range = False
        """a value left what float64 holds on the way, by its size, or as an integer of more than 53 bits: what follows from it says
        nothing about real numbers"""

    def watch(self, n: At, result: Array, *operands: Array) -> Array:
        """Remember results beyond the range of float64, or NaN, from finite operands."""
        if n.dtype.kind == "float" and not self.out_of_range:
            size = np.abs(result)
            odd = ~np.isfinite(result) | ((size < _SMALLEST) & (size > 0))
            if odd.any():
                fine = np.ones((), dtype=np.bool_)
                for x in operands:
                    fine = fine & (np.isfinite(x) if x.shape == result.shape else np.isfinite(x).all())
                self.out_of_range = bool(np.any(odd & fine))
        return result

    def reciprocal(self, n: At, x: Array) -> Array:
        return self.watch(n, super().reciprocal(n, x), x)

    def sqrt(self, n: At, x: Array) -> Array:
        return self.watch(n, super().sqrt(n, x), x)

    def exp2(self, n: At, x: Array) -> Array:
        made = super().exp2(n, x)
        clipped = (np.abs(x - _CLIPPED) < 1e-8) & (n.node.inputs[0].op.name != "add")
        lost = (made < _SMALLEST) & np.isfinite(x) & ~clipped
        self.out_of_range |= bool((lost | ((made == np.inf) & np.isfinite(x))).any())
        return np.where(clipped, _LEAST, made)

    def log2(self, n: At, x: Array) -> Array:
        return self.watch(n, super().log2(n, x), x)

    def add(self, n: At, x: Array, y: Array) -> Array:
        return self.watch(n, super().add(n, x, y), x, y)

    def mul(self, n: At, x: Array, y: Array) -> Array:
        made = super().mul(n, x, y)
        if n.dtype.kind == "float":
            self.out_of_range |= bool(((made == 0) & (x != 0) & (y != 0)).any())
        return self.watch(n, made, x, y)

    def sum(self, n: At, x: Array) -> Array:
        made = self.watch(n, super().sum(n, x), x)
        return made if n.dtype.kind != "float" else self.added(made, super().sum(n, np.abs(x)))

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        made = super().scatter(n, base, index, updates)
        if n.dtype.kind != "float" or n.attrs["mode"] != "add":
            return made
        return self.added(made, super().scatter(n, np.abs(base), index, np.abs(updates)))

    def added(self, total: Array, size: Array) -> Array:
        """Sums disturbed as their partial sums are by rounding: by a part of the sum of the sizes of the terms."""
        moved = np.asarray(total + NOISE * self.drawn(total) * size)
        return np.where(np.isfinite(size), moved, total)

    def drawn(self, x: Array) -> Array:
        return np.asarray(self.sign * self.rng.uniform(-1.0, 1.0, x.shape))

    def noise(self, x: Array) -> Array:
        return np.asarray(x * (1.0 + NOISE * self.drawn(x)))

    def either(self, distance: Array) -> Array:
        """Where the other outcome is to be taken, as this distance may be 0: everywhere there in the first runs, then at random."""
        near = self.edges.near(distance)
        if near is None or not near.any():
            return np.zeros((), dtype=np.bool_)
        return near if self.edges.runs <= FEWEST_RUNS else near & (self.rng.random(near.shape) < 0.5)

    def less(self, n: At, x: Array, y: Array) -> Array:
        made = super().less(n, x, y)
        return made if x.dtype.kind != "f" else np.asarray(made ^ self.either(x - y))

    def not_equal(self, n: At, x: Array, y: Array) -> Array:
        made = super().not_equal(n, x, y)
        return made if x.dtype.kind != "f" else np.asarray(made ^ self.either(x - y))

    def floor(self, n: At, x: Array) -> Array:
        made, near = super().floor(n, x), np.round(x)
        return np.where(self.either(x - near), np.where(made == near, near - 1.0, near), made)

    def nearly_zero(self, x: Array) -> Array:
        return np.where(np.abs(x) < _SMALLEST, _SMALLEST * self.drawn(x), x)

    def constant(self, n: At, value: bool | int | float | Array) -> Array:
        made = super().constant(n, value)
        if n.dtype.kind == "float" and isinstance(value, int):
            self.out_of_range |= float(value) != value      # a size; Python compares exactly
        return made if n.dtype.kind != "float" else np.where(made == np.floor(made), made, self.noise(made))

    def cast(self, n: At, x: Array) -> Array:
        if n.dtype.kind == "float" and x.dtype.kind in "iu" and x.dtype.itemsize == 8:
            # 0 or more zeros after at most 53 bits; −2^63 is its own opposite, and one bit
            size = (x if x.dtype.kind == "u" else np.abs(x)).astype(np.uint64)
            ones = size // np.maximum(size & (~size + np.uint64(1)), np.uint64(1))
            self.out_of_range |= bool((ones >= np.uint64(1 << 53)).any())
        if n.dtype.kind == "float" or x.dtype.kind != "f":
            return super().cast(n, x)
        if n.dtype.kind == "bool":
            return np.asarray(super().cast(n, x) ^ self.either(x))
        near = np.round(x)
        beyond = np.where(np.trunc(x) == near, near - np.sign(near), near)
        return super().cast(n, np.where(self.either(x - near), beyond, x))

    def finish(self, n: At, value: Array) -> Array:
        return self.noise(value) if n.dtype.kind == "float" and n.node.op.facts.rounds else value


class _DisturbedWalk(_Walk):
    """Composites by their definitions, so that what cancels inside of them is disturbed, too; but where use_direct."""

    def __init__(self, leaf_values: Mapping[Node, Any], binding: Mapping[str, int], use_direct: bool, disturbed: Disturbed) -> None:
        super().__init__(leaf_values, binding, "real", use_direct)
        self.algebra = self.disturbed = disturbed

    def direct(self, op: Any, node: Node, values: list[Array]) -> tuple[Array, ...]:
        """Disturbed before, as what cancels inside is not seen, and after; where it is nearly 0, it may be so by underflow."""
        def each(xs: Sequence[Array]) -> list[Array]:
            return [self.disturbed.noise(x) if x.dtype == np.float64 else x for x in xs]

        if chooses(op.define([i.type for i in node.inputs], node.attrs)):
            return tuple(each(super().direct(op, node, values)))
        found = each(super().direct(op, node, each(values)))
        return tuple(self.disturbed.nearly_zero(x) if x.dtype == np.float64 else x for x in found)


@dataclass(frozen=True)
class Counterexample:
    """Inputs (float64, or integers) at real sizes, and the first place where the outputs differ.

    noise: what rounding could explain there, of both together. shapes: those of the output in both graphs, where they
    differ: no inputs are needed to see it then, and there is no place.
    """

    sizes: Mapping[str, int]
    leaves: Mapping[str, Array]
    output: str
    index: tuple[int, ...]
    left: float | int | bool | None
    right: float | int | bool | None
    noise: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def show(self) -> str:
        """A few lines for a person."""
        at = ", ".join(f"{k} = {v}" for k, v in self.sizes.items())
        if self.shapes is not None:
            one, other = map(list, self.shapes)
            return f"the shapes differ: {self.output} is {one} in one graph and {other} in the other{f' at {at}' if at else ''}"
        place = ", ".join(map(str, self.index))
        explained = f"rounding explains {self.noise:.1e}"
        lines = [f"{self.output}[{place}] is {self.left!r} and {self.right!r} ({explained}){f' at {at}' if at else ''}"]
        for name, value in self.leaves.items():
            text = np.array2string(value.reshape(-1), threshold=12, edgeitems=3, precision=17, max_line_width=1000)
            lines.append(f"  {name} {value.dtype.name}{list(value.shape)} = {text}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        def plain(x: Any) -> Any:
            x = x.item() if isinstance(x, np.generic) else x
            return x if not isinstance(x, float) or math.isfinite(x) else str(x)

        return {"sizes": dict(self.sizes), "output": self.output, "index": list(self.index), "left": plain(self.left),
                "right": plain(self.right), "noise": self.noise,
                "shapes": None if self.shapes is None else [list(x) for x in self.shapes],
                "leaves": {name: {"dtype": x.dtype.name, "shape": list(x.shape),
                                  "values": [plain(v) for v in x.reshape(-1)[:4096].tolist()]} for name, x in self.leaves.items()}}


def work(roots: Sequence[Node], binding: Mapping[str, int]) -> int:
    """Elements of all nodes, composites unexpanded."""
    return sum(_elements(node, binding) for node in walk(roots))


def _elements(node: Node, binding: Mapping[str, int]) -> int:
    return sum(math.prod(d.evaluate(s, binding) for s in t.shape) for t in node.types)


DISTURBED = 4
"""How much longer an op takes whose result is disturbed (14 ns for an element, 3 without)."""

_DIRECT_SPARES = 8
"""A direct evaluation costs a part of the elements of its definition: attention takes 0.5 to 1 ns for each, disturbed or not."""

_TERMS = 64
"""Products within a matrix product that take as long as one element elsewhere."""


def cost(roots: Sequence[Node], binding: Mapping[str, int], disturbed: bool = False) -> int:
    """What one run of these nodes with direct evaluations takes, in elements of some 4 ns."""
    return _Costs(binding).all_of(roots, DISTURBED if disturbed else 1, True)


class _Costs:
    """What nodes take at these sizes; each definition is looked at once, however often others use it."""

    def __init__(self, binding: Mapping[str, int]) -> None:
        self.binding = binding
        self._known: dict[tuple[Definition, int, bool], int] = {}

    def all_of(self, roots: Sequence[Node], each: int, spared: bool) -> int:
        return sum(self.of(node, each, spared) for node in walk(roots))

    def of(self, node: Node, each: int, spared: bool) -> int:
        found = _elements(node, self.binding)
        if node.op.name == "dot":
            return found * (each + d.evaluate(node.inputs[0].shape[-1], self.binding) // _TERMS)
        if not isinstance(node.op, CompositeOp):
            return found * each
        definition = looked_into(node)
        each *= d.evaluate(node.op.turns([i.type for i in node.inputs], node.attrs), self.binding)
        if spared and node.op.direct is not None:
            return found * each + self.inside(definition, 1, False) // _DIRECT_SPARES
        return found + self.inside(definition, each, spared)

    def inside(self, definition: Definition, each: int, spared: bool) -> int:
        key = definition, each, spared
        if key not in self._known:
            self._known[key] = self.all_of(definition.outputs, each, spared)
        return self._known[key]


AT_NUMBERS = 5
"""the kind of values that are numbers of the graph, where it may choose"""

MOST_NUMBERS = 24
"""of a graph, the first ones"""


def numbers_at(roots: Sequence[Node]) -> list[float]:
    """The numbers that graphs hold as constants, 0, and values between, next to and beyond them: where a condition
    compares an input with a number, values drawn at random may all be on one side."""
    held = dict.fromkeys(float(n.attrs["value"]) for n in walk(roots) if n.op is CONSTANT and type(n.attrs["value"]) in (int, float)
                         and abs(n.attrs["value"]) < 2.0**60)
    if not held:
        return []
    points = sorted({0.0, *list(held)[:MOST_NUMBERS]})
    between = [(a + b) / 2 for a, b in itertools.pairwise(points)]
    neighbours = [x + step for x in points for step in (1.0, -1.0, abs(x) / 1024, -abs(x) / 1024)]
    return sorted({*points, *between, *neighbours, 2 * points[0] - 1, 2 * points[-1] + 1})


def draw(leaf: Node, shape: tuple[int, ...], kind: int, seed: list[int], numbers: Sequence[float] = ()) -> Array:
    """Values for a leaf: kind 0 normal, 1 positive, 2 of many magnitudes, 3 zeros, repeats and signs, 4 large or at the ends,
    AT_NUMBERS those given."""
    dtype, rng = leaf.dtype, np.random.default_rng(seed)
    if kind == AT_NUMBERS:
        if dtype.kind == "bool" or not numbers:
            return draw(leaf, shape, 0, seed)
        if dtype.kind != "float":
            numbers = [x for x in map(math.floor, numbers) if int(dtype.min) <= x <= int(dtype.max)] or [0]
        count = math.prod(shape)
        made = np.resize(rng.permutation(np.asarray(numbers)), count)[rng.permutation(count)].reshape(shape)
        return narrow(made, dtype).astype(np.float64) if dtype.kind == "float" else made.astype(dtype.numpy)
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < (0.5, 0.7, 0.3, 0.1, 0.95)[kind])
    if dtype.kind == "float":
        normal = rng.standard_normal(shape)
        made = (normal, rng.uniform(0.25, 2.0, shape), normal * 10.0 ** rng.uniform(-4, 2, shape),
                rng.integers(-2, 3, shape) * 0.5, normal * 6.0)[kind]
        return narrow(np.asarray(made, dtype=np.float64), dtype).astype(np.float64)
    return _integers(dtype, shape, kind, rng)


def _integers(dtype: DType, shape: tuple[int, ...], kind: int, rng: np.random.Generator) -> Array:
    low, high = int(dtype.min), int(dtype.max)
    if kind in (0, 1):
        count = math.prod(shape)
        made = rng.permutation(max(count, 3))[:count].reshape(shape) if kind == 0 else rng.integers(0, 3, shape)
        return np.asarray(made % min(high + 1, 2**31)).astype(dtype.numpy)
    if kind == 3:
        return rng.integers(max(low, -3), min(high, 12), shape).astype(dtype.numpy)
    made = rng.integers(low, high, shape, dtype=dtype.numpy, endpoint=True)
    if kind == 2 and dtype.itemsize == 8:                   # 53 bits, so that float64 holds them: the high ones, or the low ones
        made = np.where(rng.random(shape) < 0.75, made >> 11 << 11, made >> 11)
    if kind == 4:
        ends = np.asarray([low, low + 1, high - 1, high], dtype=object).astype(dtype.numpy)
        made = np.where(rng.random(shape) < 0.5, ends[rng.integers(0, 4, shape)], made)
    return np.asarray(made)


@dataclass(frozen=True)
class Trial:
    """Two graphs run once: worst relative difference among finite places, and a counterexample if it counts.

    disturbed: how often they ran again (until nothing can count any more, or as often as their work allows).
    """

    difference: float
    compared: int
    found: Counterexample | None
    disturbed: int = 0


def attempt(left: Mapping[str, Node], right: Mapping[str, Node], binding: Mapping[str, int], kind: int, seed: int,
            use_direct: bool = False, values: Mapping[str, Any] = {}, numbers: Sequence[float] = ()) -> Trial | None:
    """Run two graphs, outputs by name, at random leaves; None where one of them has no meaning for the values drawn.

    values: of all elements of a leaf, by its kind and name, in place of random ones. numbers: those of AT_NUMBERS. use_direct:
    composites are not written out in disturbed runs, and only a difference counts that no cancellation explains.
    """
    roots, count = [*left.values(), *right.values()], len(left)
    given = {leaf: draw(leaf, tuple(int(s) for s in leaf.type.at(binding).shape), kind,
                        [seed, kind, *leaf.attrs["name"].encode()], numbers)
             for leaf in walk(roots) if leaf.op in NAMED_LEAVES}
    for leaf, x in given.items():
        if (name := f"{leaf.op.name} {leaf.attrs['name']}") in values:
            x[...] = values[name]
    names = {str(leaf.attrs["name"]): x for leaf, x in given.items()}
    judged: list[_Judged] = []
    runs, done, left_range, edges = 0, 0, False, Edges()
    try:
        with np.errstate(all="ignore"):
            exact = _Walk(given, binding, "real", True).run(roots)
            for name, x, y in zip(left, exact[:count], exact[count:], strict=True):
                if x.shape != y.shape:
                    return Trial(math.inf, 0, Counterexample(binding, {}, name, (), None, None, 0.0, (x.shape, y.shape)))
                judged.append(_Judged(name, x, y))
            if _differ(exact, count):
                elements = DISTURBED * (work(expand_all(roots), binding) + 1)
                runs = FEWEST_RUNS if use_direct else max(FEWEST_RUNS, min(RUNS, _RUNS_WORK // elements))
            safety, part = SAFETY if runs == RUNS else FEW_SAFETY, DIRECT_PART if use_direct else 1e-12
            # what has moved too much never counts again, and a run that left the range of float64 has the last word
            while done < runs and not left_range and (not done or any(j.counts(safety, part).any() for j in judged)):
                disturbed = Disturbed(seed * 100 + done // 2, (1.0, -1.0)[done % 2], edges)
                run = _DisturbedWalk(given, binding, use_direct, disturbed)
                noisy = run.run(roots)
                for place, j in enumerate(judged):
                    j.see(noisy[place], noisy[count + place])
                left_range = run.disturbed.out_of_range     # e^800 / e^800, or e^-400 · e^-400 where it is divided by again
                done += 1
    except TensorGraphsError:
        return None
    worst, compared, found = 0.0, 0, None
    for j in judged:
        finite, relative = j.finite, j.relative
        compared += int(finite.sum())
        if relative.size:
            worst = max(worst, float(relative.max()))
        if found is None and done and not left_range and (counts := j.counts(safety, part)).any():
            first = np.unravel_index(int(np.argmax(np.where(counts, relative, -1.0))), relative.shape)
            index = tuple(int(i) for i in first)
            found = Counterexample(binding, names, j.name, index, j.x[index].item(), j.y[index].item(), float(j.moved[index]))
    return Trial(worst, compared, found, done)


class _Judged:
    """An output in both graphs, and by how much disturbed runs moved either."""

    def __init__(self, name: str, x: Array, y: Array) -> None:
        self.name, self.x, self.y = name, x, y
        self.a, self.b = x.astype(np.float64), y.astype(np.float64)
        self.gap = np.abs(self.a - self.b)
        if x.dtype != np.float64 and x.dtype.itemsize == 8:
            self.gap = np.where(x == y, 0.0, np.maximum(self.gap, 1.0))
        self.scale = np.maximum(np.abs(self.a), np.abs(self.b))
        self.moved = np.zeros(x.shape)

    def see(self, x: Array, y: Array) -> None:
        for run, was in ((x, self.a), (y, self.b)):
            self.moved = np.maximum(self.moved, np.abs(run.astype(np.float64) - was))

    @property
    def finite(self) -> Array:
        return np.asarray(np.isfinite(self.a) & np.isfinite(self.b) & np.isfinite(self.moved))

    @property
    def relative(self) -> Array:
        with np.errstate(all="ignore"):
            return np.where(self.finite & (self.gap > 0), self.gap / np.where(self.scale > 0, self.scale, 1.0), 0.0)

    def counts(self, safety: float, part: float) -> Array:
        """The places whose difference no disturbance explains."""
        return np.asarray(self.finite & (self.gap > safety * self.moved + part * self.scale) & (self.gap > 1e-200))


def _differ(values: Sequence[Array], count: int) -> bool:
    """Whether the first `count` arrays differ from the rest by so much that disturbed runs have to judge."""
    with np.errstate(all="ignore"):
        return any(x.shape != y.shape or bool(np.any(np.abs(x - y.astype(x.dtype)) > 1e-13 * np.abs(x)) if x.dtype.kind == "f" else
                                              np.any(x != y)) for x, y in zip(values[:count], values[count:], strict=True))


def trials(bindings: Sequence[Mapping[str, int]], numbers: Sequence[float] = ()) -> Iterator[tuple[Mapping[str, int], int, int]]:
    """(sizes, kind, seed) in the order in which to try them: every size once, then every kind at the first ones, then numbers of
    the graphs."""
    for i, binding in enumerate(bindings):
        yield binding, 0, i
    for kind in (1, 3, 2, 4):
        for binding in bindings[:2]:
            yield binding, kind, 100 + kind
    for seed in range(4):
        for kind in (0, 3):
            yield bindings[seed % len(bindings)], kind, 200 + seed
    for seed in range(min(len(numbers), 24)):
        yield bindings[seed % len(bindings)], AT_NUMBERS, 300 + seed
