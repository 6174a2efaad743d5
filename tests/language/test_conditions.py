"""language/conditions.py: every relation between sizes that a type rule could not prove is listed, and only those."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.text import parse_graph

D, P = tg.dim("d", 0, 16), tg.dim("p", 0, 8)
X = tg.input("x", (D, 3))


def wanted(*roots: tg.Node) -> list[str]:
    return [c.wanted for c in conditions_of(roots)]


@pytest.mark.parametrize(
    ("made", "conditions"),
    [
        (lambda: X[-1], ["d ≥ 1"]),
        (lambda: X[0], ["d ≥ 1"]),
        (lambda: X[5] * 2.0, ["d ≥ 6"]),
        (lambda: X[1:], []),
        (lambda: X[-3:], []),
        (lambda: tg.flip(X, axis=0), []),
        (lambda: atomic.slice(X, ((P, P + 4, 1), (0, 3, 1))), ["d ≥ p + 4"]),
        (lambda: atomic.slice(X, ((P, 9, 2), (0, 3, 1))), ["d ≥ 9"]),
        (lambda: atomic.slice(X, ((2, P, 1), (0, 3, 1))), ["d ≥ p", "p ≥ 2"]),
        (lambda: atomic.pad(X, ((0, 12 - D), (0, 0))), ["d ≤ 12"]),
        (lambda: tg.concat(X, X, axis=0), []),
        (lambda: atomic.iota((D - 3,)), ["d ≥ 3"]),
        (lambda: tg.input("y", (D - 3, 2)), ["d ≥ 3"]),
        (lambda: tg.argmax(X, axis=0), ["d ≥ 1"]),
        (lambda: tg.argmax(X, axis=1), []),
        (lambda: tg.topk(tg.input("y", (D,)), k=4)[0], ["d ≥ 4"]),
        (lambda: tg.softmax(X) + tg.rms_norm(X), []),
    ],
)
def test_what_a_size_in_range_may_break_is_a_condition(made, conditions) -> None:  # type: ignore[no-untyped-def]
    assert wanted(made()) == conditions


def test_conditions_inside_of_definitions_count_and_name_the_callers_line() -> None:
    @tg.composite
    def third(x):  # type: ignore[no-untyped-def]
        return x[2] * 2.0

    node = third(X)
    (found,) = conditions_of([node + 1.0])
    assert found.op == "slice of f32[d, 3] in third" and found.location == node.location
    assert str(found).endswith("axis 0 from 2 to 3 leaves the axis of size d")


def test_a_condition_stands_once_however_many_nodes_ask_for_it() -> None:
    assert wanted(X[5] * 2.0, X[5] + 1.0, atomic.slice(X, ((4, 6, 1), (0, 3, 1)))) == ["d ≥ 6"]


def test_a_condition_of_a_text_graph_names_its_line() -> None:
    g = parse_graph("tg 1\ndim d 0..16\ninput x f32[d, 3]\ny = slice(x; bounds=((5, 6, 1), (0, 3, 1)))\noutput y = y\n", "rows.tg")
    (found,) = conditions_of(g.roots)
    assert str(found).startswith("slice of f32[d, 3] at rows.tg:4: ")


def test_whether_a_graph_can_run_at_sizes() -> None:
    conditions = conditions_of([atomic.slice(X, ((P, P + 4, 1), (0, 3, 1)))])
    assert all_hold(conditions, {"d": 8, "p": 4}) and not all_hold(conditions, {"d": 8, "p": 5})


def test_the_parts_of_a_difference_are_sums() -> None:
    assert d.parts(256 - D - 2 * P) == (256, D + 2 * P)
    assert d.parts(D - P) == (D, P) and d.parts(-3) == (0, 3) and d.parts(4) == (4, 0)
