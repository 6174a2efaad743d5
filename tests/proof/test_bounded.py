"""A known number lies within its bound, however it was computed, and a bound that says nothing is infinite."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from tensor_graphs.proof import bounded
from tensor_graphs.proof.bounded import Bounded

EXACT = mpmath.mp.clone()
EXACT.prec = 2500                                           # 1 next to 2^±2000


def number(value: float) -> Bounded:
    return Bounded(np.asarray(value))


UNARY: dict[str, tuple[Callable[[Bounded], Bounded], Callable[[mpmath.mpf], mpmath.mpf]]] = {
    "reciprocal": (bounded.reciprocal, lambda x: 1 / x), "sqrt": (bounded.sqrt, lambda x: EXACT.sqrt(x)),
    "exp2": (bounded.exp2, lambda x: EXACT.mpf(2) ** x), "log2": (bounded.log2, lambda x: EXACT.log(x) / EXACT.log(2)),
    "sin": (bounded.sin, lambda x: EXACT.sin(x)),
}


@pytest.mark.parametrize("seed", range(4))
def test_random_chains_of_operations_stay_within_their_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shown = 0
    for _ in range(25):
        first = [float(x) for x in rng.standard_normal(4) * 10.0 ** rng.integers(-200, 200, 4) ** rng.integers(0, 2)]
        found = [(number(x), EXACT.mpf(x)) for x in first]
        with np.errstate(all="ignore"):
            for _ in range(12):
                (x, true_x), (y, true_y) = (found[int(rng.integers(len(found)))] for _ in range(2))
                choice = int(rng.integers(9))
                if choice < 2:
                    found.append((bounded.add(x, y), true_x + true_y))
                elif choice < 4:
                    found.append((bounded.mul(x, y), true_x * true_y))
                else:
                    ours, exact = list(UNARY.values())[choice - 4]
                    positive = choice - 4 in (1, 3)
                    if true_x == 0 or (positive and true_x < 0) or (choice - 4 in (2, 4) and abs(true_x) > 1e6):
                        continue
                    found.append((ours(x), exact(true_x)))
        for got, true in found:
            if np.isfinite(got.off):
                assert abs(EXACT.mpf(float(got.value)) - true) <= EXACT.mpf(float(got.off)), (seed, got, EXACT.nstr(true, 20))
                shown += 1
    assert shown > 200


def test_a_bound_is_of_the_size_of_the_rounding() -> None:
    third = bounded.reciprocal(number(3.0))
    assert 0 < third.off < 1e-16
    assert bounded.add(number(0.5), number(3.0)).error is None and bounded.mul(number(0.5), number(3.0)).error is None
    assert bounded.exp2(number(-3.0)).error is None and bounded.sqrt(number(9.0)).error is None
    power = bounded.add(number(1.0), number(1e-9))
    for _ in range(30):
        power = bounded.mul(power, power)
    assert 1e-8 < power.off < 1e-6                          # 2^30 roundings of 1 + 1e-9


def test_what_cancels_keeps_the_error_of_what_was_added() -> None:
    left = bounded.add(bounded.add(number(1e16), number(1.0)), number(-1e16))
    assert left.off >= 1.0
    terms = Bounded(np.asarray([1e16, 1.0, -1e16, 0.25]))
    assert abs(bounded.sum(terms, (0,)).value - 1.25) <= bounded.sum(terms, (0,)).off < 100.0
    assert bounded.sum(Bounded(np.arange(1000.0)), (0,)).error is None


def test_an_underflow_is_no_zero_and_an_overflow_no_number() -> None:
    with np.errstate(all="ignore"):
        tiny, huge = number(1e-300), number(1e300)
        back = bounded.mul(bounded.mul(bounded.mul(tiny, tiny), huge), huge)
        assert back.value == 0 and back.off > 1.0
        assert not bounded.mul(huge, huge).shown and not bounded.log2(bounded.exp2(number(-2000.0))).shown
        assert not bounded.mul(number(0.0), bounded.mul(huge, huge)).shown
        nothing = bounded.log2(number(0.0))
        assert nothing.infinite and bounded.exp2(nothing).error is None and bounded.add(nothing, number(1.0)).infinite
