"""counterexample: inputs at which two graphs differ in float64 by more than rounding can explain.

The effect of rounding is measured. The graphs run again with the result of every operation, and every constant that is no integer,
perturbed by up to 2^-44 of itself; a sum by up to 2^-44 of the sum of its terms' magnitudes, as its partial sums are rounded. Only
a difference many times larger than the changes counts. Where a result depends on cancellation, or is at an edge of floor, < or ≠,
the perturbed runs scatter and nothing is claimed. Source: Monte Carlo arithmetic, Parker 1997.
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
from tensor_graphs.meaning.exact_definitions import chooses
from tensor_graphs.meaning.interpreter import _Walk

NOISE = 2.0**-44
SAFETY = 256.0
"""A difference counts if it is this many times larger than the changes by perturbations."""

RUNS = 24
"""Number of perturbed runs. Every second run perturbs opposite to the one before: a pair falls on both sides of an edge."""

FEWEST_RUNS, FEW_SAFETY = 4, 2.0**20
"""FEWEST_RUNS: number of perturbed runs where runs cost much. FEW_SAFETY: used for SAFETY then, as so few runs show less."""

DIRECT_SHARE = 1e-4
"""Least relative difference that counts where composites run directly, so that cancellation inside them is not seen."""

_RUNS_WORK = 60_000_000
"""Most elements that all perturbed runs of one attempt may compute, if they are more than the fewest runs."""

MOST_WATCHED = 4_000_000
"""Most elements of comparisons, floors and casts to integers whose distances from an edge are kept over all runs."""

_SMALLEST = 1e-290
_CLIPPED = -2000.0                          # exp turns −∞ into 2^-2000 on its way to 0, but other numbers as well:
_LEAST = 2.0**-1074                         # 2^-2000 is no 0, so that it makes 0 with 2^-∞ alone, and leaves the range with others


class Edges:
    """Ranges, over the runs so far, of every comparison's distance from its edge, in the order in which each run compares.

    Where a distance varies by as much as its size, the true distance may be 0 although no run shows that: x and y may be one
    number, rounded in two ways, with |x - y| never 0. Runs then take the other outcome, or a random one.
    """

    def __init__(self) -> None:
        self.runs = self.place = self.size = 0
        self.extent: list[tuple[Array, Array] | None] = []

    def start(self) -> None:
        self.runs, self.place = self.runs + 1, 0

    def near(self, distance: Array) -> Array | None:
        """Return where the next distance of the run may be 0; None where that is not known."""
        self.place += 1
        if self.runs == 1:
            self.size += distance.size
            self.extent.append((distance, distance) if self.size <= MOST_WATCHED else None)
            return None
        extent = self.extent[self.place - 1]
        if extent is None:
            return None
        low, high = np.fmin(extent[0], distance), np.fmax(extent[1], distance)
        self.extent[self.place - 1] = low, high
        return np.asarray((high > low) & (np.abs(distance) <= SAFETY * (high - low)))


class Perturbed(Real):
    """The float64 algebra Real, with every float result times a random factor within 1 ± NOISE. sign: −1 perturbs opposite to 1, so
    that a pair of runs is on both sides of an edge. edges: distances in earlier runs of the same nodes. out_of_range: a value left
    the range of float64, or is an integer of more than 53 bits, so that results say nothing about real numbers."""

    def __init__(self, seed: int, sign: float, edges: Edges) -> None:
        self.rng, self.sign, self.edges = np.random.default_rng(seed), sign, edges
        edges.start()
        self.out_of_range = False

    def watch(self, n: At, result: Array, *operands: Array) -> Array:
        """Return the result, and record whether it is NaN or beyond the range of float64 although the operands are finite."""
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
        result = super().exp2(n, x)
        clipped = (np.abs(x - _CLIPPED) < 1e-8) & (n.node.inputs[0].op.name != "add")
        lost = (result < _SMALLEST) & np.isfinite(x) & ~clipped
        self.out_of_range |= bool((lost | ((result == np.inf) & np.isfinite(x))).any())
        return np.where(clipped, _LEAST, result)

    def log2(self, n: At, x: Array) -> Array:
        return self.watch(n, super().log2(n, x), x)

    def add(self, n: At, x: Array, y: Array) -> Array:
        return self.watch(n, super().add(n, x, y), x, y)

    def mul(self, n: At, x: Array, y: Array) -> Array:
        result = super().mul(n, x, y)
        if n.dtype.kind == "float":
            self.out_of_range |= bool(((result == 0) & (x != 0) & (y != 0)).any())
        return self.watch(n, result, x, y)

    def sum(self, n: At, x: Array) -> Array:
        total = self.watch(n, super().sum(n, x), x)
        return total if n.dtype.kind != "float" else self.added(total, super().sum(n, np.abs(x)))

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        result = super().scatter(n, base, index, updates)
        if n.dtype.kind != "float" or n.attrs["mode"] != "add":
            return result
        return self.added(result, super().scatter(n, np.abs(base), index, np.abs(updates)))

    def added(self, total: Array, size: Array) -> Array:
        """Return sums perturbed by up to NOISE of `size`, the sum of the magnitudes of their terms, as partial sums are rounded."""
        moved = np.asarray(total + NOISE * self.drawn(total) * size)
        return np.where(np.isfinite(size), moved, total)

    def drawn(self, x: Array) -> Array:
        return np.asarray(self.sign * self.rng.uniform(-1.0, 1.0, x.shape))

    def noise(self, x: Array) -> Array:
        return np.asarray(x * (1.0 + NOISE * self.drawn(x)))

    def either(self, distance: Array) -> Array:
        """Return where to take the other outcome, as the distance may be 0: everywhere there in the first runs, then at random."""
        near = self.edges.near(distance)
        if near is None or not near.any():
            return np.zeros((), dtype=np.bool_)
        return near if self.edges.runs <= FEWEST_RUNS else near & (self.rng.random(near.shape) < 0.5)

    def less(self, n: At, x: Array, y: Array) -> Array:
        result = super().less(n, x, y)
        return result if x.dtype.kind != "f" else np.asarray(result ^ self.either(x - y))

    def not_equal(self, n: At, x: Array, y: Array) -> Array:
        result = super().not_equal(n, x, y)
        return result if x.dtype.kind != "f" else np.asarray(result ^ self.either(x - y))

    def floor(self, n: At, x: Array) -> Array:
        result, near = super().floor(n, x), np.round(x)
        return np.where(self.either(x - near), np.where(result == near, near - 1.0, near), result)

    def nearly_zero(self, x: Array) -> Array:
        return np.where(np.abs(x) < _SMALLEST, _SMALLEST * self.drawn(x), x)

    def constant(self, n: At, value: bool | int | float | Array) -> Array:
        result = super().constant(n, value)
        if n.dtype.kind == "float" and isinstance(value, int):
            self.out_of_range |= float(value) != value      # a size; Python compares exactly
        return result if n.dtype.kind != "float" else np.where(result == np.floor(result), result, self.noise(result))

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


class _PerturbedWalk(_Walk):
    """A perturbed run that expands composites, so that values that cancel inside them are perturbed; not with use_direct."""

    def __init__(self, leaf_values: Mapping[Node, Any], binding: Mapping[str, int], use_direct: bool, perturbed: Perturbed) -> None:
        super().__init__(leaf_values, binding, "real", use_direct)
        self.algebra = self.perturbed = perturbed

    def direct(self, op: Any, node: Node, values: list[Array]) -> tuple[Array, ...]:
        """Return results of a composite with operands and results perturbed, as cancellation inside is not seen. Results near 0
        become random tiny numbers, as they may be near 0 by underflow."""
        def noisy(xs: Sequence[Array]) -> list[Array]:
            return [self.perturbed.noise(x) if x.dtype == np.float64 else x for x in xs]

        if chooses(op.define([i.type for i in node.inputs], node.attrs)):
            return tuple(noisy(super().direct(op, node, values)))
        results = noisy(super().direct(op, node, noisy(values)))
        return tuple(self.perturbed.nearly_zero(x) if x.dtype == np.float64 else x for x in results)


@dataclass(frozen=True)
class Counterexample:
    """Inputs (float64, or integers) at real sizes, and the first position where the outputs differ.

    noise: difference that rounding explains at that position, in either graph. shapes: the output's shapes in both graphs, where
    they differ; inputs and position are then empty.
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
        """Return the counterexample as a few lines of text."""
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
    """Return the number of elements of all nodes, composites unexpanded."""
    return sum(_elements(node, binding) for node in walk(roots))


def _elements(node: Node, binding: Mapping[str, int]) -> int:
    return sum(math.prod(d.evaluate(s, binding) for s in t.shape) for t in node.types)


PERTURBED = 4
"""Factor by which an op takes longer if its result is perturbed (14 ns for an element, 3 ns without)."""

_DIRECT_SPARES = 8
"""A direct evaluation costs 1 / this of its definition: attention takes 0.5 to 1 ns for an element, perturbed or not."""

_TERMS = 64
"""Multiplications inside a matrix product that take as long as one element of another op."""


def cost(roots: Sequence[Node], binding: Mapping[str, int], perturbed: bool = False) -> int:
    """Return the cost of one run of these nodes with direct evaluations, in elements of some 4 ns."""
    return _Costs(binding).all_of(roots, PERTURBED if perturbed else 1, True)


class _Costs:
    """Costs of nodes at these sizes; each definition is costed once, however often it is used. unit: cost of one element."""

    def __init__(self, binding: Mapping[str, int]) -> None:
        self.binding = binding
        self._inside: dict[tuple[Definition, int, bool], int] = {}

    def all_of(self, roots: Sequence[Node], unit: int, spared: bool) -> int:
        return sum(self.of(node, unit, spared) for node in walk(roots))

    def of(self, node: Node, unit: int, spared: bool) -> int:
        elements = _elements(node, self.binding)
        if node.op.name == "dot":
            return elements * (unit + d.evaluate(node.inputs[0].shape[-1], self.binding) // _TERMS)
        if not isinstance(node.op, CompositeOp):
            return elements * unit
        definition = looked_into(node)
        unit *= d.evaluate(node.op.turns([i.type for i in node.inputs], node.attrs), self.binding)
        if spared and node.op.direct is not None:
            return elements * unit + self.inside(definition, 1, False) // _DIRECT_SPARES
        return elements + self.inside(definition, unit, spared)

    def inside(self, definition: Definition, unit: int, spared: bool) -> int:
        key = definition, unit, spared
        if key not in self._inside:
            self._inside[key] = self.all_of(definition.outputs, unit, spared)
        return self._inside[key]


AT_NUMBERS = 5
"""The kind of values (see draw) that are near constants of the graph, at which it may branch."""

MOST_NUMBERS = 24
"""Most constants of a graph that are used, the first ones."""


def numbers_at(roots: Sequence[Node]) -> list[float]:
    """Return the constants of graphs, 0, and values between, next to and beyond these: random values may all be on one side of a
    constant with which a condition compares an input."""
    held = dict.fromkeys(float(n.attrs["value"]) for n in walk(roots) if n.op is CONSTANT and type(n.attrs["value"]) in (int, float)
                         and abs(n.attrs["value"]) < 2.0**60)
    if not held:
        return []
    points = sorted({0.0, *list(held)[:MOST_NUMBERS]})
    between = [(a + b) / 2 for a, b in itertools.pairwise(points)]
    neighbours = [x + step for x in points for step in (1.0, -1.0, abs(x) / 1024, -abs(x) / 1024)]
    return sorted({*points, *between, *neighbours, 2 * points[0] - 1, 2 * points[-1] + 1})


def draw(leaf: Node, shape: tuple[int, ...], kind: int, seed: list[int], numbers: Sequence[float] = ()) -> Array:
    """Return random values for a leaf. kind: 0 normal, 1 positive, 2 many magnitudes, 3 small with zeros, repeats and signs, 4
    large or at the ends of the dtype, AT_NUMBERS from `numbers`."""
    dtype, rng = leaf.dtype, np.random.default_rng(seed)
    if kind == AT_NUMBERS:
        if dtype.kind == "bool" or not numbers:
            return draw(leaf, shape, 0, seed)
        if dtype.kind != "float":
            numbers = [x for x in map(math.floor, numbers) if int(dtype.min) <= x <= int(dtype.max)] or [0]
        count = math.prod(shape)
        values = np.resize(rng.permutation(np.asarray(numbers)), count)[rng.permutation(count)].reshape(shape)
        return narrow(values, dtype).astype(np.float64) if dtype.kind == "float" else values.astype(dtype.numpy)
    if dtype.kind == "bool":
        return np.asarray(rng.random(shape) < (0.5, 0.7, 0.3, 0.1, 0.95)[kind])
    if dtype.kind == "float":
        normal = rng.standard_normal(shape)
        values = (normal, rng.uniform(0.25, 2.0, shape), normal * 10.0 ** rng.uniform(-4, 2, shape),
                  rng.integers(-2, 3, shape) * 0.5, normal * 6.0)[kind]
        return narrow(np.asarray(values, dtype=np.float64), dtype).astype(np.float64)
    return _integers(dtype, shape, kind, rng)


def _integers(dtype: DType, shape: tuple[int, ...], kind: int, rng: np.random.Generator) -> Array:
    low, high = int(dtype.min), int(dtype.max)
    if kind in (0, 1):
        count = math.prod(shape)
        values = rng.permutation(max(count, 3))[:count].reshape(shape) if kind == 0 else rng.integers(0, 3, shape)
        return np.asarray(values % min(high + 1, 2**31)).astype(dtype.numpy)
    if kind == 3:
        return rng.integers(max(low, -3), min(high, 12), shape).astype(dtype.numpy)
    values = rng.integers(low, high, shape, dtype=dtype.numpy, endpoint=True)
    if kind == 2 and dtype.itemsize == 8:                   # 53 bits, so that float64 holds them: the high ones, or the low ones
        values = np.where(rng.random(shape) < 0.75, values >> 11 << 11, values >> 11)
    if kind == 4:
        ends = np.asarray([low, low + 1, high - 1, high], dtype=object).astype(dtype.numpy)
        values = np.where(rng.random(shape) < 0.5, ends[rng.integers(0, 4, shape)], values)
    return np.asarray(values)


@dataclass(frozen=True)
class Trial:
    """Result of one run of two graphs: the worst relative difference of finite elements, the number of these, and a counterexample
    if a difference counts. perturbed: number of perturbed runs, up to where nothing can count any more or the work limit is
    reached."""

    difference: float
    compared: int
    example: Counterexample | None
    perturbed: int = 0


def attempt(left: Mapping[str, Node], right: Mapping[str, Node], binding: Mapping[str, int], kind: int, seed: int,
            use_direct: bool = False, values: Mapping[str, Any] = {}, numbers: Sequence[float] = ()) -> Trial | None:
    """Run two graphs, outputs by name, at random leaves; return None where one of them is undefined for the values drawn.

    values: for leaves by "kind name", the value of all elements, in place of random ones. numbers: those of AT_NUMBERS. use_direct:
    perturbed runs do not expand composites, and a difference counts only if no cancellation explains it.
    """
    roots, count = [*left.values(), *right.values()], len(left)
    inputs = {leaf: draw(leaf, tuple(int(s) for s in leaf.type.at(binding).shape), kind,
                         [seed, kind, *leaf.attrs["name"].encode()], numbers)
              for leaf in walk(roots) if leaf.op in NAMED_LEAVES}
    for leaf, x in inputs.items():
        if (name := f"{leaf.op.name} {leaf.attrs['name']}") in values:
            x[...] = values[name]
    names = {str(leaf.attrs["name"]): x for leaf, x in inputs.items()}
    judged: list[_Judged] = []
    runs, done, left_range, edges = 0, 0, False, Edges()
    try:
        with np.errstate(all="ignore"):
            exact = _Walk(inputs, binding, "real", True).run(roots)
            for name, x, y in zip(left, exact[:count], exact[count:], strict=True):
                if x.shape != y.shape:
                    return Trial(math.inf, 0, Counterexample(binding, {}, name, (), None, None, 0.0, (x.shape, y.shape)))
                judged.append(_Judged(name, x, y))
            if _differ(exact, count):
                elements = PERTURBED * (work(expand_all(roots), binding) + 1)
                runs = FEWEST_RUNS if use_direct else max(FEWEST_RUNS, min(RUNS, _RUNS_WORK // elements))
            safety, share = SAFETY if runs == RUNS else FEW_SAFETY, DIRECT_SHARE if use_direct else 1e-12
            # what has moved too much never counts again, and a run that left the range of float64 has the last word
            while done < runs and not left_range and (not done or any(j.counts(safety, share).any() for j in judged)):
                perturbed = Perturbed(seed * 100 + done // 2, (1.0, -1.0)[done % 2], edges)
                noisy = _PerturbedWalk(inputs, binding, use_direct, perturbed).run(roots)
                for place, j in enumerate(judged):
                    j.see(noisy[place], noisy[count + place])
                left_range = perturbed.out_of_range         # e^800 / e^800, or e^-400 · e^-400 where it is divided by again
                done += 1
    except TensorGraphsError:
        return None
    worst, compared, example = 0.0, 0, None
    for j in judged:
        finite, relative = j.finite, j.relative
        compared += int(finite.sum())
        if relative.size:
            worst = max(worst, float(relative.max()))
        if example is None and done and not left_range and (counts := j.counts(safety, share)).any():
            first = np.unravel_index(int(np.argmax(np.where(counts, relative, -1.0))), relative.shape)
            index = tuple(int(i) for i in first)
            example = Counterexample(binding, names, j.name, index, j.x[index].item(), j.y[index].item(), float(j.moved[index]))
    return Trial(worst, compared, example, done)


class _Judged:
    """An output in both graphs, and how far perturbed runs moved it in either."""

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

    def counts(self, safety: float, share: float) -> Array:
        """Return a mask of the elements whose difference no perturbation explains."""
        return np.asarray(self.finite & (self.gap > safety * self.moved + share * self.scale) & (self.gap > 1e-200))


def _differ(values: Sequence[Array], count: int) -> bool:
    """Return whether the first `count` arrays differ from the others by more than 1e-13, relatively: perturbed runs are then
    made."""
    with np.errstate(all="ignore"):
        return any(x.shape != y.shape or bool(np.any(np.abs(x - y.astype(x.dtype)) > 1e-13 * np.abs(x)) if x.dtype.kind == "f" else
                                              np.any(x != y)) for x, y in zip(values[:count], values[count:], strict=True))


def trials(bindings: Sequence[Mapping[str, int]], numbers: Sequence[float] = ()) -> Iterator[tuple[Mapping[str, int], int, int]]:
    """Yield (sizes, kind, seed) in the order in which to try them: every size once, then every kind of values at the first sizes,
    then constants of the graphs."""
    yield from ((binding, 0, i) for i, binding in enumerate(bindings))
    yield from ((binding, kind, 100 + kind) for kind in (1, 3, 2, 4) for binding in bindings[:2])
    yield from ((bindings[seed % len(bindings)], kind, 200 + seed) for seed in range(4) for kind in (0, 3))
    yield from ((bindings[seed % len(bindings)], AT_NUMBERS, 300 + seed) for seed in range(min(len(numbers), 24)))
