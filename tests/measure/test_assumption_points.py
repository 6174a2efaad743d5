"""measure/assumption_points.py: a kernel that takes something for granted is compared where that holds, and only there."""

from __future__ import annotations

import tensor_graphs as tg
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.anonymous_composite import part_of
from tensor_graphs.language.node import apply
from tensor_graphs.meaning.assumptions import DIVISION, OVERFLOW, ROOT
from tensor_graphs.measure.assumption_points import holds
from tensor_graphs.measure.points.inputs import Point

SIZES = (("n", 4),)


def test_operands_far_from_an_overflow_are_compared_and_infinite_ones_are_not() -> None:
    s = signature_of(tg.softmax(tg.input("x", (tg.dim("n", 1, 64), 16))))
    ordinary, special = Point(SIZES, 1000), Point(SIZES, 1000, special=True)
    assert holds((OVERFLOW,), s, ordinary) and not holds((OVERFLOW,), s, special) and holds((), s, special)


def test_a_condition_of_an_ops_domain_holds_where_the_definition_keeps_it() -> None:
    x = tg.input("x", (tg.dim("n", 1, 64), 16))
    point = Point(SIZES, 1000)
    y = tg.input("y", (tg.dim("n", 1, 64), 16))
    difference = apply(part_of(tg.graph(tg.sqrt(x - y))), [x, y], {})
    assert not holds((ROOT,), signature_of(difference), point) and holds((DIVISION,), signature_of(difference), point)
    assert holds((ROOT, DIVISION), signature_of(tg.softmax(x)), point)
