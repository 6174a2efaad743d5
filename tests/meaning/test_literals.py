"""A float literal stands for the number that it was rounded from."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from tensor_graphs.meaning.literals import Literal, read


@pytest.mark.parametrize(("value", "literal"), [
    (0.0, Literal(Fraction(0))), (3.0, Literal(Fraction(3))), (0.1, Literal(Fraction(1, 10))),
    (-1e-6, Literal(Fraction(-1, 10**6))), (2.0**-24, Literal(Fraction(1, 2**24))), (0.044715, Literal(Fraction(44715, 10**6))),
    (1.0 / 3.0, Literal(Fraction(1, 3))), (math.log(2.0), Literal(Fraction(1), ln2=1)),
    (1.4426950408889634, Literal(Fraction(1), ln2=-1)), (math.pi, Literal(Fraction(1), root_pi=2)),
    (-2.0 * math.pi, Literal(Fraction(-2), root_pi=2)),
    (math.sqrt(2.0 / math.pi), Literal(Fraction(1), root_pi=-1, root=Fraction(2))),
    (1.0 / math.sqrt(80.0), Literal(Fraction(1), root=Fraction(1, 80))), (math.sqrt(80.0), Literal(Fraction(1), root=Fraction(80))),
    (1.4426950408889634 / 8.0, Literal(Fraction(1, 8), ln2=-1)),
])
def test_a_literal_is_read_as_what_it_was_computed_from(value: float, literal: Literal) -> None:
    assert read(value) == literal


@pytest.mark.parametrize("value", [0.7310585786300049, 1.2345678901234567e-5])
def test_any_other_float_stands_for_itself(value: float) -> None:
    assert read(value) == Literal(Fraction(value))
