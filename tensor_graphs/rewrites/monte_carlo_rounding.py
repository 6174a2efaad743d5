"""monte_carlo_rounding: how much of the difference between a rule's sides rounding explains, element by element.

Both sides run again while every result that is not exact is changed at random by up to 2^-44 of itself (Monte Carlo arithmetic,
Parker 1997), as `meaning.counterexample` does for entire graphs. Constants and results that float64 holds exactly are left
unchanged: at x = 7.25 the test x = 7.25 stays true, which is how a rule that is wrong at a single number is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language.node import Node
from tensor_graphs.meaning.algebra import Array, At, Real
from tensor_graphs.meaning.interpreter import _Walk
from tensor_graphs.proof.counterexample import NOISE, SAFETY

RUNS = 8
"""Number of runs. Two values that rounding made equal keep one order in all 8 runs once in 256 times."""

__all__ = ["RUNS", "SAFETY", "runs"]


def _exact_product(x: Array, y: Array, product: Array) -> Array:
    """Return whether x · y is exactly the float64 `product`, element by element (Dekker 1971)."""
    def halves(v: Array) -> tuple[Array, Array]:
        high = v * 134217729.0                              # 2^27 + 1
        high = high - (high - v)
        return high, v - high

    (a, b), (c, d) = halves(x), halves(y)
    return np.asarray(((a * c - product) + a * d + b * c) + b * d == 0)


class Rounded(Real):
    """Arithmetic of Real in which every inexact result is multiplied by a random factor within 1 ± NOISE."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def noise(self, x: Array, exact: Array | bool = False) -> Array:
        return np.asarray(np.where(exact, x, x * (1.0 + NOISE * self.rng.uniform(-1.0, 1.0, x.shape))))

    def add(self, n: At, x: Array, y: Array) -> Array:
        result = super().add(n, x, y)
        if n.dtype.kind != "float":
            return result
        part = result - x
        return self.noise(result, (x - (result - part)) + (y - part) == 0)

    def mul(self, n: At, x: Array, y: Array) -> Array:
        result = super().mul(n, x, y)
        return self.noise(result, _exact_product(x, y, result)) if n.dtype.kind == "float" else result

    def reciprocal(self, n: At, x: Array) -> Array:
        result = super().reciprocal(n, x)
        return self.noise(result, (x * result == 1) & _exact_product(x, result, np.ones_like(result)))

    def sqrt(self, n: At, x: Array) -> Array:
        result = super().sqrt(n, x)
        return self.noise(result, _exact_product(result, result, x))

    def exp2(self, n: At, x: Array) -> Array:
        return self.noise(super().exp2(n, x), x == np.floor(x))

    def log2(self, n: At, x: Array) -> Array:
        result = super().log2(n, x)
        return self.noise(result, (result == np.floor(result)) & (np.exp2(result) == x))

    def sin(self, n: At, x: Array) -> Array:
        return self.noise(super().sin(n, x), x == 0)

    def sum(self, n: At, x: Array) -> Array:
        result = super().sum(n, x)
        if n.dtype.kind != "float":
            return result
        axes = n.attrs["axes"]
        whole = np.all(x == np.floor(x), axis=axes) & (np.sum(np.abs(x), axis=axes) < 2.0**53)
        return self.noise(result, whole | (np.count_nonzero(x, axis=axes) <= 1))

    def finish(self, n: At, value: Array) -> Array:
        return self.noise(value) if n.dtype.kind == "float" and n.node.op.name == "scatter" else value


class _RoundedWalk(_Walk):
    """Interpreter that runs every composite by its definition, so that exact results inside a composite are left unchanged."""

    def __init__(self, inputs: Mapping[Node, Any], seed: int) -> None:
        super().__init__(inputs, {}, "real", False)
        self.algebra = self.rounded = Rounded(seed)

    def direct(self, op: Any, node: Node, values: list[Array]) -> tuple[Array, ...]:
        return tuple(self.rounded.noise(x) if x.dtype == np.float64 else x for x in super().direct(op, node, values))


def runs(roots: Sequence[Node], inputs: Mapping[Node, Any], seeds: Iterable[int] = range(RUNS)) -> list[list[Array]]:
    """Return the values of the roots in each of the randomly rounded runs."""
    with np.errstate(all="ignore"):
        return [_RoundedWalk(inputs, seed).run(roots) for seed in seeds]
