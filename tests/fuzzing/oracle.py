"""oracle: what a graph's values are, how far rounding may move them, and whether a result is one of those.

A result is compared with the float64 oracle by the project's error measure. Where that says more than a few roundings, the graph
is evaluated some times more, as it is written, every operation that rounds moved by some units in its last place, every sum added
as if in another order, once as it is rounded, and once as exact kernels would have it: each composite in real numbers, its result
stored in its dtype. How far a value moves then stands for its running error; where one of those
evaluations has another integer, a NaN or an infinity, the value depends on rounding, and nobody is held to it. What NaN and
infinities do not matter to may be what follows from the rest (measure/points/adversarial.py says why).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, walk
from tensor_graphs.meaning.algebra import Array, At, Jittered, Real, narrow
from tensor_graphs.meaning.error_measure import measure, unit_roundoff
from tensor_graphs.meaning.interpreter import _Walk
from tensor_graphs.measure.judge import NOTICED
from tensor_graphs.measure.points.adversarial import INFLUENCE, REPLACED

SAMPLES, MORE_SAMPLES = 6, 24
"""evaluations with other roundings; and those that are made besides before a result is called wrong, as few say little of the tails
of a sum of many roundings"""

UNITS = 2.0
"""roundings by which an operation is moved, up or down"""

NEVER_EXACT = frozenset({"exp2", "log2", "sin"})
"""ops that kernels compute by a series: also where the true value is a number of the dtype"""

MOVES = frozenset({"iota", "pad", "bitcast", "constant"})


class Shaken(Jittered):
    """As written, everything that rounds moved by some roundings; what is exact stays so."""

    def __init__(self, seed: int, units: float = UNITS) -> None:
        super().__init__(seed)
        self.units = units

    def finish(self, n: At, value: Array) -> Array:
        name = n.node.op.name
        if n.dtype.kind != "float" or n.node.op.facts.exact or name in MOVES:
            return super().finish(n, value)
        moved = value * (1.0 + self.units * unit_roundoff(n.dtype) * self.rng.uniform(-1.0, 1.0, value.shape))
        if name not in NEVER_EXACT:
            short = f32 if n.dtype.itemsize == 8 else n.dtype       # what an f32 holds was hardly rounded to f64
            moved = np.where(narrow(value, short).astype(np.float64) == value, value, moved)
        return super().finish(n, np.where(np.isfinite(value), moved, value))

    def sum(self, n: At, x: Array) -> Array:
        return Real.sum(self, n, x) if exact_in_any_order(n, x) else super().sum(n, x)

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        if exact_in_any_order(n, np.concatenate([base.reshape(-1), updates.reshape(-1)])):
            return Real.scatter(self, n, base, index, updates)
        return super().scatter(n, base, index, updates)


def exact_in_any_order(n: At, x: Array) -> bool:
    """Whether all sums of these floats are numbers of the dtype, even of a narrow one."""
    if n.dtype.kind != "float":
        return False
    with np.errstate(all="ignore"):
        eighths = x * 8.0
        return bool(np.all(eighths == np.floor(eighths))) and float(np.sum(np.abs(x), initial=0.0)) < 2.0 ** 11


class Watched(Real):
    """Real numbers; `infinite` is set once one of them is none, or so large that a product of two such ones would be none."""

    def __init__(self) -> None:
        self.infinite = False

    def finish(self, n: At, value: Array) -> Array:
        self.infinite = self.infinite or (n.dtype.kind == "float" and not bool(np.all(np.abs(value) < float(n.dtype.max) ** 0.5)))
        return value


class Skipped(Real):
    """0 · x is 0 whatever x is: nobody has to multiply by zeros, of a padding say, which the definition does."""

    def mul(self, n: At, x: Array, y: Array) -> Array:
        product = super().mul(n, x, y)
        return np.where((x == 0) | (y == 0), 0.0, product) if n.dtype.kind == "float" else product


class Replaced(Real):
    """Numbers in place of NaN and infinities, wherever they come up."""

    def __init__(self, value: float) -> None:
        self.value = value

    def constant(self, n: At, value: Any) -> Array:
        return self.finish(n, super().constant(n, value))

    def finish(self, n: At, value: Array) -> Array:
        return np.where(np.isfinite(value), value, self.value) if n.dtype.kind == "float" else value


@dataclass
class Outlier:
    """Of one output: other values that rounding makes of it; where NaN and infinities matter, and what follows without them, and
    without those that are multiplied by 0."""

    samples: list[Array]
    matters: Array
    without: Array
    skipped: Array


@dataclass
class Answer:
    """The oracle's values of a graph's roots at one point; doubts are made when they are asked for. infinite: there is a NaN, an
    infinity or a huge number in what the leaves hold or is computed."""

    graph: Graph
    leaf_values: Mapping[Node, Any]
    binding: Mapping[str, int]
    values: list[Array] = field(default_factory=list)
    infinite: bool = False
    _doubts: list[Outlier] | None = None
    _all_sampled: bool = False

    def __post_init__(self) -> None:
        watched = Watched()
        self.values = self._evaluated(watched)
        for leaf, v in self.leaf_values.items():
            large = leaf.dtype.is_float and not np.all(np.abs(v.astype(np.float64)) < float(leaf.dtype.max) ** 0.5)
            watched.infinite = watched.infinite or large
        self.infinite = watched.infinite

    def _evaluated(self, algebra: Real) -> list[Array]:
        as_written = isinstance(algebra, Jittered)
        given = dict(self.leaf_values)
        if isinstance(algebra, Replaced):
            given = {leaf: np.where(np.isfinite(v.astype(np.float64)), v, v.dtype.type(algebra.value)) if leaf.dtype.is_float else v
                     for leaf, v in given.items()}
        with np.errstate(all="ignore"):
            walk = _Walk(given, self.binding, "as_written" if as_written else "real", not isinstance(algebra, Skipped))
            walk.algebra = algebra
            return [np.array(x) for x in walk.run(self.graph.roots)]

    def _stored(self) -> list[Array]:
        """Each node of the graph in real numbers of what those before it stored: a norm whose squares would overflow does not here,
        and a number beyond its dtype is an infinity for the next."""
        values: dict[Node, Array] = {}
        for node in self.graph.nodes:
            if len(node.types) > 1:
                continue                                            # its items are evaluated, each by itself
            whole, index = (node.inputs[0], node.attrs["index"]) if node.op is leaves.ITEM else (node, 0)
            given = {x: leaves.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(whole.inputs)}
            if node in self.leaf_values:
                value = np.asarray(self.leaf_values[node])
            else:
                alone = apply(whole.op, [given[x] for x in whole.inputs], whole.attrs)
                with np.errstate(all="ignore"):
                    walk = _Walk({leaf: values[x] for x, leaf in given.items()}, self.binding, "real", True)
                    (value,) = walk.run([leaves.item(alone, index)])
            values[node] = narrow(np.asarray(value), node.dtype) if node.dtype.is_float else np.asarray(value)
        return [values[r].astype(np.float64) if r.dtype.is_float else values[r] for r in self.graph.roots]

    def _shaken(self, seeds: Iterable[int]) -> list[list[Array]]:
        return [self._evaluated(Shaken(i + 1)) for i in seeds]

    def sample_more(self) -> bool:
        """More other values that rounding makes of all outputs; False where they were made before."""
        if self._all_sampled or self._doubts is None:
            return False
        self._all_sampled = True
        more = self._shaken(range(SAMPLES, SAMPLES + MORE_SAMPLES))
        for i, doubt in enumerate(self._doubts):
            doubt.samples += [s[i] for s in more]
        return True

    def doubt(self, index: int) -> Outlier:
        """Raises what the oracle does where there is no value at other roundings."""
        if self._doubts is None:
            samples = self._shaken(range(SAMPLES))
            samples.append(self._evaluated(Shaken(0, units=0.0)))   # equal numbers are rounded alike, which no drawn ones are
            samples.append(self._stored())
            high, low = self._evaluated(Replaced(REPLACED)), self._evaluated(Replaced(-REPLACED))
            skipped = self._evaluated(Skipped())
            self._doubts = []
            for i in range(len(self.values)):
                a, b = high[i].astype(np.float64), low[i].astype(np.float64)
                with np.errstate(all="ignore"):
                    matters = ~(np.abs(a - b) <= INFLUENCE * np.minimum(np.abs(a), np.abs(b)))
                self._doubts.append(Outlier([s[i] for s in samples], matters, high[i], skipped[i]))
        return self._doubts[index]

    def given_huge(self, root: Node) -> bool:
        """Whether a leaf that a root is made of holds an f64 whose square is none."""
        return any(bool(np.any(np.isfinite(v) & (np.abs(v) > float(leaf.dtype.max) ** 0.5)))
                   for leaf in walk([root]) if leaf.op in leaves.NAMED_LEAVES and leaf.dtype.is_float and leaf.dtype.itemsize == 8
                   for v in [self.leaf_values[leaf]])

    def why_wrong(self, index: int, found: Array, reworded: bool = False) -> str | None:
        """What is wrong with a result of root number `index`; None where nothing is. reworded: by recipes, which give the same
        number where nothing infinite is met on the way (docs/rewrites.md)."""
        node, reference = self.graph.roots[index], self.values[index]
        if found.shape != reference.shape or found.dtype != node.dtype.numpy:
            return f"{found.dtype}{list(found.shape)} instead of {node.dtype}{list(reference.shape)}"
        if reworded and self.infinite:                              # which infinity it is may decide what is chosen behind it
            return None
        if not node.dtype.is_float and self.given_huge(node):           # the oracle has no more range than these floats
            return None
        limit = NOTICED.get(node.dtype.name, 0.0) * unit_roundoff(node.dtype) if node.dtype.is_float else 0.0
        report = measure(found, reference, node.dtype)
        if report.within(limit):
            return None
        doubt = self.doubt(index)
        value = found.astype(np.float64) if node.dtype.is_float else found
        differs = np.zeros(reference.shape, bool)
        spread = np.zeros(reference.shape)
        with np.errstate(all="ignore"):
            for s in doubt.samples:
                if node.dtype.is_float:
                    differs |= _kind(s) != _kind(reference)
                    spread = np.maximum(spread, np.where(np.isfinite(s) & np.isfinite(reference), np.abs(s - reference), 0.0))
                else:
                    differs |= s != reference
        excused = differs | (~doubt.matters & (~np.isfinite(reference) if node.dtype.is_float else found == doubt.without))
        if node.dtype.itemsize == 8 and node.dtype.is_float and self.given_huge(node):
            excused |= ~np.isfinite(reference)                      # the oracle itself overflowed: a fused product need not
        if node.dtype.is_float:                                     # tiles are padded with zeros, and 0 · ∞ is NaN
            excused |= np.isinf(reference) & np.isnan(value)
            reference = np.where(np.isnan(reference) & ~np.isnan(value), doubt.skipped, reference)
        report = measure(np.where(excused, reference, value).astype(value.dtype), reference, node.dtype,
                         rounding=spread if node.dtype.is_float else None)
        if report.within(limit):
            return None
        if self.sample_more():
            return self.why_wrong(index, found, reworded)
        return report.mismatch or f"error {report.max_relative_error:.3g}: {report.worst}"


def _kind(x: Array) -> Array:
    """0 for a number, 1 for NaN, 2 and 3 for the infinities."""
    return np.where(np.isnan(x), 1, np.where(np.isinf(x), np.where(x > 0, 2, 3), 0))


def leaves_of(graph: Graph, inputs: Mapping[str, Array], parameters: Mapping[str, Array],
              states: Mapping[str, Array]) -> dict[Node, Any]:
    """The arrays of a graph's leaves, by node."""
    out: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op in leaves.NAMED_LEAVES:
            name = str(node.attrs["name"])
            given = {leaves.INPUT: inputs, leaves.PARAMETER: parameters, leaves.STATE: states}[node.op]  # type: ignore[index]
            out[node] = given[name]
    return out
