"""Runs of equal blocks are folded, also inside of each other, and every element stays accounted for."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import lists, sampled_from

from tensor_graphs.views.fold_repeats import Repeat, folded, shown_for, stands_for


def test_layers_of_two_kinds_are_folded_inside_of_each_other() -> None:
    local, other = "abcdef", "abcxef"
    items = folded("t" + (local * 5 + other) * 3 + "h")
    assert items == (0, Repeat(3, (Repeat(5, tuple(range(1, 7))), *range(31, 37))), 109)
    assert {shown_for(items)[i] for i in range(1, 7)} == {15} and shown_for(items)[31] == 3 and shown_for(items)[109] == 1


def test_two_equal_steps_are_no_layer() -> None:
    assert folded("abbcdd") == (0, 1, 2, 3, 4, 5) and folded("") == ()


@given(lists(sampled_from("abc"), max_size=40))
def test_what_is_shown_stands_for_equal_elements_and_for_all_of_them(kinds: list[str]) -> None:
    items = folded(kinds)
    shown = stands_for(items)
    assert len(shown) == len(kinds) and all(kinds[a] == kinds[i] for i, a in enumerate(shown))
    assert shown_for(items) == {a: shown.count(a) for a in shown}
