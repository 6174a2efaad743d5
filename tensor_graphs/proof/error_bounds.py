"""error_bounds: known numbers in float64, each with a bound on its error: what exact evaluation may decide by their size.

    1e20 · log1p(1e-20)     0 ± 2e4        nothing follows: 1 + 1e-20 was rounded to 1
    1e-300 · 1e-300         0 ± 2e-308     an underflow: the error grows with every factor that follows
    2^900 · 2^900           ∞ ± ∞          an overflow; log 0 = −∞ and what follows from it is exact

The worst case, to all orders (running_error.py adds errors as if they were independent, which proves nothing: x · x has twice the
relative error of x, not √2 times). Every operand of an op may be at either end of its error, the op's own rounding is added (0
where the result is seen to be exact), and all of it is rounded up.

Source: running error analysis, Higham, Accuracy and Stability of Numerical Algorithms, SIAM 2002, section 3.3; the error of a
sum of two by Knuth, vol. 2, 4.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tensor_graphs.meaning.algebra import Array

UNIT = 2.0**-53
"""Relative error of a rounded result."""

FUNCTION = 8.0 * UNIT
"""Largest relative error of numpy's exp2, log2 and sin."""

LEAST = 2.0**-1022
"""Results below it have lost digits, and may be 0: this is their error."""

_SMALL = 2.0**-960
"""Results below it may have lost digits."""

_UP = 1.0 + 1e-6                                            # for the rounding of the errors themselves

_HELD = 2.0**53
"""Whole numbers up to here are added exactly."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """value: float64; the real number lies within `error` of it: ∞ where float64 does not show it. No error: all are exact."""

    value: Array
    error: Array | None = None

    @property
    def off(self) -> Array:
        return np.zeros(()) if self.error is None else self.error

    @property
    def shown(self) -> Array:
        """Elements whose error is finite."""
        return np.asarray(np.isfinite(self.off))

    @property
    def infinite(self) -> Array:
        """Elements that are exactly −∞ or ∞."""
        return np.asarray(np.isinf(self.value) & (self.off == 0))

    def each(self, f: Callable[[Array], Array]) -> Bounded:
        """Return both arrays passed through f, which only moves or repeats elements."""
        return Bounded(f(self.value), None if self.error is None else f(self.error))

    def together(self, other: Bounded, f: Callable[[Array, Array], Array]) -> Bounded:
        """Return the arrays of two passed through f, which only chooses between them."""
        value = f(self.value, other.value)
        if self.error is None and other.error is None:
            return Bounded(value)
        return Bounded(value, f(np.broadcast_to(self.off, self.value.shape), np.broadcast_to(other.off, other.value.shape)))

    def ends(self) -> tuple[Array, Array]:
        """Return the least and the largest number that it may be."""
        return np.asarray(self.value - self.off * _UP), np.asarray(self.value + self.off * _UP)


def literal(value: Array, exact: Array) -> Bounded:
    """Return floats that stand for the numbers from which they were rounded, themselves where exact."""
    return _made(value, np.zeros(()), UNIT * np.abs(value), exact | ~np.isfinite(value), np.isinf(value))


def held(x: Array) -> Array:
    """Return where numbers have so few bits that a product of two of them has at most 53."""
    return np.asarray(x.astype(np.float32) == x)


def _made(value: Array, carried: Array, own: Array, exact: Array, infinite: Array) -> Bounded:
    """Return a result with its error. carried: that of the operands; own: the op's rounding, but where exact; infinite: where ∞ is
    no overflow."""
    value = np.asarray(value)
    own = np.where(exact, 0.0, np.where(np.abs(value) < _SMALL, own + LEAST, own))
    error = np.broadcast_to((carried + own) * _UP, value.shape)
    odd = ~np.isfinite(value) | np.isnan(error)
    if odd.any():
        error = np.where(odd, np.where(np.isinf(value) & infinite, 0.0, np.inf), error)
    return Bounded(value, error if error.any() else None)


def _carried(x: Bounded, error: Callable[[], Array]) -> Array:
    """Return an error that comes from that of x: none where that is none, and never rounded to 0."""
    return np.zeros(()) if x.error is None else np.where(x.error == 0, 0.0, error() + LEAST)


def add(x: Bounded, y: Bounded) -> Bounded:
    a, b = x.value, y.value
    value = np.asarray(a + b)
    second = value - a
    lost = np.abs((a - (value - second)) + (b - second))    # exactly
    return _made(value, x.off + y.off, lost, lost == 0, x.infinite | y.infinite)


def mul(x: Bounded, y: Bounded) -> Bounded:
    value = np.asarray(x.value * y.value)
    carried = np.zeros(())
    for factor, off in ((np.abs(x.value), y.off), (np.abs(y.value), x.off), (x.off, y.off)):
        carried = carried + np.where((off == 0) | (factor == 0), 0.0, factor * off + LEAST)
    exact = (held(x.value) & held(y.value)) | (x.value == 0) | (y.value == 0)
    return _made(value, carried, UNIT * np.abs(value), exact, x.infinite | y.infinite)


def reciprocal(x: Bounded) -> Bounded:
    """Return 1/x; 1/0 is ∞, a pole and no overflow."""
    size = np.abs(x.value)
    left = size - x.off
    carried = _carried(x, lambda: np.where(left > 0, x.off / size / left, np.inf))
    value = 1.0 / x.value
    return _made(value, carried, UNIT * np.abs(value), _power_of_two(x) | x.infinite, (x.value == 0) & (x.off == 0))


def sqrt(x: Bounded) -> Bounded:
    value = np.sqrt(x.value)
    low = x.value - x.off
    carried = _carried(x, lambda: np.where(low > 0, x.off / (np.sqrt(np.maximum(low, 0.0)) + value), np.inf))
    return _made(value, carried, UNIT * value, (value * value == x.value) & held(value), x.infinite)


def exp2(x: Bounded) -> Bounded:
    value = np.exp2(x.value)
    carried = _carried(x, lambda: (value + LEAST) * np.expm1(math.log(2.0) * x.off))
    whole = (x.value == np.floor(x.value)) & (np.abs(x.value) <= 1022)
    return _made(value, carried, FUNCTION * value, x.infinite | whole, x.infinite)


def log2(x: Bounded) -> Bounded:
    value = np.log2(x.value)
    left = x.value - x.off
    carried = _carried(x, lambda: np.where(left > 0, x.off / (math.log(2.0) * left), np.inf))
    return _made(value, carried, FUNCTION * np.abs(value), _power_of_two(x), x.infinite | ((x.value == 0) & (x.off == 0)))


def sin(x: Bounded) -> Bounded:
    return _made(np.sin(x.value), np.minimum(x.off, 2.0), FUNCTION * np.minimum(np.abs(x.value), 1.0), x.value == 0,
                 np.zeros((), dtype=np.bool_))


def _power_of_two(x: Bounded) -> Array:
    return np.asarray(np.abs(np.frexp(x.value)[0]) == 0.5)


def sum(x: Bounded, axes: Sequence[int]) -> Bounded:
    """Return the sum over axes, in any order: no partial sum is larger than the sum of the sizes."""
    axes = tuple(axes)
    size = np.sum(np.abs(x.value), axis=axes)
    terms = math.prod(x.value.shape[a] for a in axes)
    whole = np.all(x.value == np.floor(x.value), axis=axes) & (size < _HELD)
    carried = np.zeros(()) if x.error is None else np.sum(x.error, axis=axes)
    return _made(np.sum(x.value, axis=axes), carried, terms * UNIT * size, whole | (terms <= 1), np.any(x.infinite, axis=axes))


def dot(x: Bounded, y: Bounded, terms: int, product: Callable[[Array, Array], Array]) -> Bounded:
    """Return the product of two matrices by `product`, a sum of `terms` terms."""
    value, size = product(x.value, y.value), product(np.abs(x.value), np.abs(y.value))
    carried = np.zeros(())
    for one, other in ((np.abs(x.value), y.error), (x.error, np.abs(y.value)), (x.error, y.error)):
        if one is not None and other is not None:
            carried = carried + product(one, other) + terms * LEAST
    every = all(bool((v.value == np.floor(v.value)).all()) for v in (x, y))
    return _made(value, carried, (terms + 1) * UNIT * size, every & (size < _HELD), np.zeros((), dtype=np.bool_))
