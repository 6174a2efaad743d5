"""counterexample: inputs at which two graphs differ in float64 by more than rounding can explain.

What rounding can do is measured, not estimated: the graphs run again with every operation and every constant that is no
whole number disturbed by up to 2^-44 of itself, and only a difference many times larger than all that this moves
counts. Where a result hangs on cancellation, or sits at an edge of floor or <, the disturbed runs scatter and nothing
is claimed. Source: Monte Carlo arithmetic, Parker 1997.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.leaves import NAMED_LEAVES
from tensor_graphs.language.node import Node, walk
from tensor_graphs.meaning.algebra import Array, At, Real, narrow
from tensor_graphs.meaning.interpreter import _Walk

NOISE = 2.0**-44
SAFETY = 256.0
"""A difference counts when it is so many times what the disturbances moved."""

RUNS = 24
"""Disturbed runs: at an edge of floor or < each of them falls on either side."""

FEWEST_RUNS, FEW_SAFETY = 4, 2.0**20
"""Where runs cost much there are fewer of them, and only a larger difference counts."""

DIRECT_PART = 1e-4
"""Of the results a difference has to be, where what cancels inside of composites is not seen."""

_RUNS_WORK = 60_000_000
"""Elements that all disturbed runs of one attempt may compute, beyond the fewest."""

_SMALLEST = 1e-290
_CLIPPED = -1990.0                          # exp turns −∞ into 2^-2000 on its way to 0


class Disturbed(Real):
    """Real, with floats off by a random factor within 1 ± NOISE after every op."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.out_of_range = False
        """a value left float64's range on the way: what follows from it says nothing about real numbers"""

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
        lost = (made < _SMALLEST) & (x > _CLIPPED)
        self.out_of_range |= bool((lost | ((made == np.inf) & np.isfinite(x))).any())
        return made

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
        return self.watch(n, super().sum(n, x), x)

    def noise(self, x: Array) -> Array:
        return np.asarray(x * (1.0 + NOISE * self.rng.uniform(-1.0, 1.0, x.shape)))

    def constant(self, n: At, value: bool | int | float | Array) -> Array:
        made = super().constant(n, value)
        return made if n.dtype.kind != "float" else np.where(made == np.floor(made), made, self.noise(made))

    def finish(self, n: At, value: Array) -> Array:
        return self.noise(value) if n.dtype.kind == "float" and n.node.op.name in ROUNDING else value


ROUNDING = frozenset({"reciprocal", "sqrt", "exp2", "log2", "sin", "add", "mul", "sum", "scatter"})


class _DisturbedWalk(_Walk):
    """Composites by their definitions, so that what cancels inside of them is disturbed, too; but where use_direct."""

    def __init__(self, leaf_values: Mapping[Node, Any], binding: Mapping[str, int], use_direct: bool, seed: int) -> None:
        super().__init__(leaf_values, binding, "real", use_direct)
        self.algebra = self.disturbed = Disturbed(seed)

    def direct(self, op: Any, node: Node, values: list[Array]) -> tuple[Array, ...]:
        return tuple(self.disturbed.noise(x) if x.dtype == np.float64 else x for x in super().direct(op, node, values))


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
    return sum(_cost(node, binding, DISTURBED if disturbed else 1, True) for node in walk(roots))


def _cost(node: Node, binding: Mapping[str, int], each: int, spared: bool) -> int:
    found = _elements(node, binding)
    if node.op.name == "dot":
        return found * (each + d.evaluate(node.inputs[0].shape[-1], binding) // _TERMS)
    if not isinstance(node.op, CompositeOp):
        return found * each
    definition = node.op.define([i.type for i in node.inputs], node.attrs)
    if spared and node.op.direct is not None:
        return found * each + sum(_cost(x, binding, 1, False) for x in walk(definition.outputs)) // _DIRECT_SPARES
    return found + sum(_cost(x, binding, each, spared) for x in walk(definition.outputs))


def draw(leaf: Node, shape: tuple[int, ...], kind: int, seed: list[int]) -> Array:
    """Values for a leaf: kind 0 normal, 1 positive, 2 of many magnitudes, 3 zeros, repeats and signs, 4 large or at the ends."""
    dtype, rng = leaf.dtype, np.random.default_rng(seed)
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
    if kind == 4:
        ends = np.asarray([low, low + 1, high - 1, high], dtype=object).astype(dtype.numpy)
        made = np.where(rng.random(shape) < 0.5, ends[rng.integers(0, 4, shape)], made)
    return np.asarray(made)


@dataclass(frozen=True)
class Trial:
    """Two graphs run once: worst relative difference among finite places, and a counterexample if it counts.

    disturbed: how often they ran again.
    """

    difference: float
    compared: int
    found: Counterexample | None
    disturbed: int = 0


def attempt(left: Mapping[str, Node], right: Mapping[str, Node], binding: Mapping[str, int], kind: int, seed: int,
            use_direct: bool = False) -> Trial | None:
    """Run two graphs, outputs by name, at random leaves; None where one of them has no meaning for the values drawn.

    use_direct: composites are not written out in disturbed runs, and only a difference counts that no cancellation explains.
    """
    roots = [*left.values(), *right.values()]
    given = {leaf: draw(leaf, tuple(int(s) for s in leaf.type.at(binding).shape), kind,
                        [seed, kind, *leaf.attrs["name"].encode()])
             for leaf in walk(roots) if leaf.op in NAMED_LEAVES}
    names = {str(leaf.attrs["name"]): x for leaf, x in given.items()}
    try:
        with np.errstate(all="ignore"):
            exact = _Walk(given, binding, "real", True).run(roots)
            runs = 0
            if _differ(exact, len(left)):
                elements = DISTURBED * (work(expand_all(roots), binding) + 1)
                runs = FEWEST_RUNS if use_direct else max(FEWEST_RUNS, min(RUNS, _RUNS_WORK // elements))
            walks = [_DisturbedWalk(given, binding, use_direct, seed * 100 + k) for k in range(runs)]
            noisy = [w.run(roots) for w in walks]
    except TensorGraphsError:
        return None
    worst, compared, found = 0.0, 0, None
    count = len(left)
    for place, name in enumerate(left):
        x, y = exact[place], exact[count + place]
        if x.shape != y.shape:
            return Trial(math.inf, 0, Counterexample(binding, {}, name, (), None, None, 0.0, (x.shape, y.shape)))
        if x.size == 0:
            continue
        with np.errstate(all="ignore"):
            a, b = x.astype(np.float64), y.astype(np.float64)
            if x.dtype != np.float64 and x.dtype.itemsize == 8:
                gap = np.where(x == y, 0.0, np.maximum(np.abs(a - b), 1.0))
            else:
                gap = np.abs(a - b)
            moved = np.zeros(x.shape)
            for run in noisy:
                for at, was in ((place, a), (count + place, b)):
                    moved = np.maximum(moved, np.abs(run[at].astype(np.float64) - was))
            scale = np.maximum(np.abs(a), np.abs(b))
            finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(moved)
            safety = SAFETY if runs == RUNS else FEW_SAFETY
            part = DIRECT_PART if use_direct else 1e-12
            counts = finite & (len(noisy) > 0) & (gap > safety * moved + part * scale) & (gap > 1e-200)
            relative = np.where(finite & (gap > 0), gap / np.where(scale > 0, scale, 1.0), 0.0)
        compared += int(finite.sum())
        if relative.size:
            worst = max(worst, float(relative.max()))
        if found is None and counts.any():
            first = np.unravel_index(int(np.argmax(np.where(counts, relative, -1.0))), x.shape)
            index = tuple(int(i) for i in first)
            found = Counterexample(binding, names, name, index, x[index].item(), y[index].item(), float(moved[index]))
    if any(w.disturbed.out_of_range for w in walks):        # e^800 / e^800, or e^-400 · e^-400 where it is divided by again
        found = None
    return Trial(worst, compared, found, len(walks))


def _differ(values: Sequence[Array], count: int) -> bool:
    """Whether the first `count` arrays differ from the rest by so much that disturbed runs have to judge."""
    with np.errstate(all="ignore"):
        return any(x.shape != y.shape or bool(np.any(np.abs(x - y.astype(x.dtype)) > 1e-13 * np.abs(x)) if x.dtype.kind == "f" else
                                              np.any(x != y)) for x, y in zip(values[:count], values[count:], strict=True))


def trials(bindings: Sequence[Mapping[str, int]]) -> Iterator[tuple[Mapping[str, int], int, int]]:
    """(sizes, kind, seed) in the order in which to try them: every size once, then every kind at the first ones."""
    for i, binding in enumerate(bindings):
        yield binding, 0, i
    for kind in (1, 3, 2, 4):
        for binding in bindings[:2]:
            yield binding, kind, 100 + kind
    for seed in range(4):
        for kind in (0, 3):
            yield bindings[seed % len(bindings)], kind, 200 + seed
