"""A known number lies within its bound, however it was computed, and a bound that says nothing is infinite."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from tensor_graphs.proof import error_bounds
from tensor_graphs.proof.error_bounds import Bounded

EXACT = mpmath.mp.clone()
EXACT.prec = 2500                                           # 1 next to 2^±2000


def number(value: float) -> Bounded:
    return Bounded(np.asarray(value))


UNARY: dict[str, tuple[Callable[[Bounded], Bounded], Callable[[mpmath.mpf], mpmath.mpf]]] = {
    "reciprocal": (error_bounds.reciprocal, lambda x: 1 / x), "sqrt": (error_bounds.sqrt, lambda x: EXACT.sqrt(x)),
    "exp2": (error_bounds.exp2, lambda x: EXACT.mpf(2) ** x), "log2": (error_bounds.log2, lambda x: EXACT.log(x) / EXACT.log(2)),
    "sin": (error_bounds.sin, lambda x: EXACT.sin(x)),
}


@pytest.mark.parametrize("seed", range(4))
def test_random_chains_of_operations_stay_within_their_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shown = 0
    for _ in range(25):
        first = [float(x) for x in rng.standard_normal(4) * 10.0 ** rng.integers(-200, 200, 4) ** rng.integers(0, 2)]
        numbers = [(number(x), EXACT.mpf(x)) for x in first]
        with np.errstate(all="ignore"):
            for _ in range(12):
                (x, true_x), (y, true_y) = (numbers[int(rng.integers(len(numbers)))] for _ in range(2))
                choice = int(rng.integers(9))
                if choice < 2:
                    numbers.append((error_bounds.add(x, y), true_x + true_y))
                elif choice < 4:
                    numbers.append((error_bounds.mul(x, y), true_x * true_y))
                else:
                    ours, exact = list(UNARY.values())[choice - 4]
                    positive = choice - 4 in (1, 3)
                    if true_x == 0 or (positive and true_x < 0) or (choice - 4 in (2, 4) and abs(true_x) > 1e6):
                        continue
                    numbers.append((ours(x), exact(true_x)))
        for got, true in numbers:
            if np.isfinite(got.off):
                assert abs(EXACT.mpf(float(got.value)) - true) <= EXACT.mpf(float(got.off)), (seed, got, EXACT.nstr(true, 20))
                shown += 1
    assert shown > 200


def test_a_bound_is_of_the_size_of_the_rounding() -> None:
    third = error_bounds.reciprocal(number(3.0))
    assert 0 < third.off < 1e-16
    assert error_bounds.add(number(0.5), number(3.0)).error is None and error_bounds.mul(number(0.5), number(3.0)).error is None
    assert error_bounds.exp2(number(-3.0)).error is None and error_bounds.sqrt(number(9.0)).error is None
    power = error_bounds.add(number(1.0), number(1e-9))
    for _ in range(30):
        power = error_bounds.mul(power, power)
    assert 1e-8 < power.off < 1e-6                          # 2^30 roundings of 1 + 1e-9


def test_what_cancels_keeps_the_error_of_what_was_added() -> None:
    left = error_bounds.add(error_bounds.add(number(1e16), number(1.0)), number(-1e16))
    assert left.off >= 1.0
    terms = Bounded(np.asarray([1e16, 1.0, -1e16, 0.25]))
    assert abs(error_bounds.sum(terms, (0,)).value - 1.25) <= error_bounds.sum(terms, (0,)).off < 100.0
    assert error_bounds.sum(Bounded(np.arange(1000.0)), (0,)).error is None


def test_an_underflow_is_no_zero_and_an_overflow_no_number() -> None:
    with np.errstate(all="ignore"):
        tiny, huge = number(1e-300), number(1e300)
        back = error_bounds.mul(error_bounds.mul(error_bounds.mul(tiny, tiny), huge), huge)
        assert back.value == 0 and back.off > 1.0
        assert not error_bounds.mul(huge, huge).shown and not error_bounds.log2(error_bounds.exp2(number(-2000.0))).shown
        assert not error_bounds.mul(number(0.0), error_bounds.mul(huge, huge)).shown
        nothing = error_bounds.log2(number(0.0))
        assert nothing.infinite and error_bounds.exp2(nothing).error is None and error_bounds.add(nothing, number(1.0)).infinite
