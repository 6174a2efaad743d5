"""error_bounds: known numbers in float64, each with a bound on its error, so that exact evaluation can compare them by size.

    1e20 · log1p(1e-20)     0 ± 2e4        nothing follows: 1 + 1e-20 was rounded to 1
    1e-300 · 1e-300         0 ± 2e-308     an underflow: the error grows with every factor that follows
    2^900 · 2^900           ∞ ± ∞          an overflow; log 0 = −∞ and what follows from it is exact

Bounds are worst cases, to all orders (running_error.py adds errors as if they were independent, which proves nothing: x · x has
twice the relative error of x, not √2 times). Every operand of an op may be at either end of its error, the rounding of the op is
added (0 where the result is seen to be exact), and the total is rounded up.

Source: running error analysis, Higham, Accuracy and Stability of Numerical Algorithms, SIAM 2002, section 3.3; the error of a sum
of two by Knuth, vol. 2, 4.2.2.
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
"""Smallest normal float64. Results below it have lost digits or became 0, by an error of at most this."""

_SMALL = 2.0**-960
"""Results below this may have lost digits, so LEAST is added to their error."""

_UP = 1.0 + 1e-6                                            # for the rounding of the errors themselves

_HELD = 2.0**53
"""Whole numbers up to this are added exactly."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Numbers in float64 with errors: each real number is within `error` of `value`. Error ∞: float64 does not show the number.
    Error None: all numbers are exact."""

    value: Array
    error: Array | None = None

    @property
    def off(self) -> Array:
        return np.zeros(()) if self.error is None else self.error

    @property
    def shown(self) -> Array:
        """Mask of the elements whose error is finite."""
        return np.asarray(np.isfinite(self.off))

    @property
    def infinite(self) -> Array:
        """Mask of the elements that are exactly −∞ or ∞."""
        return np.asarray(np.isinf(self.value) & (self.off == 0))

    def each(self, f: Callable[[Array], Array]) -> Bounded:
        """Return both arrays passed through f, which only moves or repeats elements."""
        return Bounded(f(self.value), None if self.error is None else f(self.error))

    def together(self, other: Bounded, f: Callable[[Array, Array], Array]) -> Bounded:
        """Return f of both values, with f of both errors; f only chooses between the elements of its two arrays."""
        value = f(self.value, other.value)
        if self.error is None and other.error is None:
            return Bounded(value)
        return Bounded(value, f(np.broadcast_to(self.off, self.value.shape), np.broadcast_to(other.off, other.value.shape)))

    def ends(self) -> tuple[Array, Array]:
        """Return (lower bounds, upper bounds) of the real numbers."""
        return np.asarray(self.value - self.off * _UP), np.asarray(self.value + self.off * _UP)


def literal(value: Array, exact: Array) -> Bounded:
    """Return float literals with their errors: none where `exact`, else relative errors of UNIT, as they were rounded."""
    return _made(value, np.zeros(()), UNIT * np.abs(value), exact | ~np.isfinite(value), np.isinf(value))


def held(x: Array) -> Array:
    """Return where numbers fit float32, so that the product of two of them has at most 53 bits and is exact."""
    return np.asarray(x.astype(np.float32) == x)


def _made(value: Array, carried: Array, own: Array, exact: Array, infinite: Array) -> Bounded:
    """Return a result with its error. carried: error from the operands. own: error from the op's rounding, ignored where `exact`.
    infinite: where an infinite result is exact and no overflow."""
    value = np.asarray(value)
    own = np.where(exact, 0.0, np.where(np.abs(value) < _SMALL, own + LEAST, own))
    error = np.broadcast_to((carried + own) * _UP, value.shape)
    odd = ~np.isfinite(value) | np.isnan(error)
    if odd.any():
        error = np.where(odd, np.where(np.isinf(value) & infinite, 0.0, np.inf), error)
    return Bounded(value, error if error.any() else None)


def _carried(x: Bounded, error: Callable[[], Array]) -> Array:
    """Return the error that the error of x causes: 0 where x is exact, and never rounded to 0 elsewhere."""
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
    """Return the sum over axes. Its error holds for any order of adding, as no partial sum is larger than the sum of magnitudes."""
    axes = tuple(axes)
    size = np.sum(np.abs(x.value), axis=axes)
    terms = math.prod(x.value.shape[a] for a in axes)
    whole = np.all(x.value == np.floor(x.value), axis=axes) & (size < _HELD)
    carried = np.zeros(()) if x.error is None else np.sum(x.error, axis=axes)
    return _made(np.sum(x.value, axis=axes), carried, terms * UNIT * size, whole | (terms <= 1), np.any(x.infinite, axis=axes))


def dot(x: Bounded, y: Bounded, terms: int, product: Callable[[Array, Array], Array]) -> Bounded:
    """Return the matrix product computed by `product`, each element a sum of `terms` terms."""
    value, size = product(x.value, y.value), product(np.abs(x.value), np.abs(y.value))
    carried = np.zeros(())
    for one, other in ((np.abs(x.value), y.error), (x.error, np.abs(y.value)), (x.error, y.error)):
        if one is not None and other is not None:
            carried = carried + product(one, other) + terms * LEAST
    every = all(bool((v.value == np.floor(v.value)).all()) for v in (x, y))
    return _made(value, carried, (terms + 1) * UNIT * size, every & (size < _HELD), np.zeros((), dtype=np.bool_))
