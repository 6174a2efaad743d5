"""A float literal stands for the number that it was rounded from, and no two for the same."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensor_graphs.proof import exact_literals
from tensor_graphs.proof.exact_literals import ClosedForm, near, read


@pytest.mark.parametrize(("value", "literal"), [
    (0.0, ClosedForm(Fraction(0))), (3.0, ClosedForm(Fraction(3))), (0.1, ClosedForm(Fraction(1, 10))),
    (-1e-6, ClosedForm(Fraction(-1, 10**6))), (2.0**-24, ClosedForm(Fraction(1, 2**24))),
    (0.044715, ClosedForm(Fraction(44715, 10**6))),
    (1.0 / 3.0, ClosedForm(Fraction(1, 3))), (math.log(2.0), ClosedForm(Fraction(1), ln2=1)),
    (1.4426950408889634, ClosedForm(Fraction(1), ln2=-1)), (math.pi, ClosedForm(Fraction(1), root_pi=2)),
    (-2.0 * math.pi, ClosedForm(Fraction(-2), root_pi=2)),
    (math.sqrt(2.0 / math.pi), ClosedForm(Fraction(1), root_pi=-1, root=Fraction(2))),
    (80.0**-0.5, ClosedForm(Fraction(1), root=Fraction(1, 80))), (math.sqrt(80.0), ClosedForm(Fraction(1), root=Fraction(80))),
    (1.4426950408889634 / 8.0, ClosedForm(Fraction(1, 8), ln2=-1)),
])
def test_a_literal_is_read_as_what_it_was_computed_from(value: float, literal: ClosedForm) -> None:
    assert read(value) == literal


@pytest.mark.parametrize("value", [0.7310585786300049, 1.2345678901234567e-5, 1.0 / math.sqrt(2.0), float(np.float32(0.1))])
def test_any_other_float_stands_for_itself(value: float) -> None:
    assert read(value) == ClosedForm(Fraction(value))


@pytest.mark.parametrize("value", [1.0, 0.1, 1.0 / 3.0, math.log(2.0), math.pi, math.sqrt(0.5), 8.0**-0.5, math.sqrt(2.0 / math.pi),
                                   123.456])
def test_the_floats_next_to_it_stand_for_themselves(value: float) -> None:
    for other in (float(np.nextafter(value, 0.0)), float(np.nextafter(value, math.inf))):
        assert read(other) == ClosedForm(Fraction(other))
        if near(other) != read(other):                      # next to it, to be verified
            assert near(other) == read(value)


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_what_a_float_stands_for_rounds_to_it(value: float) -> None:
    assert read(value).rounded() == value


def test_ln2_and_pi_have_the_digits_they_need() -> None:
    bits = 220
    ln2 = sum((1 << bits) // (k << k) for k in range(1, bits))

    def arc_tangent(n: int) -> int:                         # of 1/n; Machin 1706
        return sum((-1) ** k * ((1 << bits) // ((2 * k + 1) * n ** (2 * k + 1))) for k in range(160))

    pi = 4 * (4 * arc_tangent(5) - arc_tangent(239))
    assert abs(Fraction(ln2, 1 << bits) - exact_literals._LN2) < Fraction(1, 10**60)
    assert abs(Fraction(pi, 1 << bits) - exact_literals._PI) < Fraction(1, 10**60)
