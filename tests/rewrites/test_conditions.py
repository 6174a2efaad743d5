"""Where a condition is broken, element by element."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.meaning.assumptions import DIVISION, LOGARITHM, OVERFLOW, ROOT
from tensor_graphs.rewrites.conditions import UNDERFLOW, broken, checked
from tensor_graphs.rewrites.errors import RewriteError

X = tg.input("x", (4,), tg.f64)
VALUES = {X: np.array([-1.0, 0.0, 4.0, 900.0])}


def places(made: tg.Node) -> dict[str, list[bool]]:
    (found,) = broken([made], VALUES, written_out=True)
    return {name: mask.tolist() for name, mask in found.items() if mask.any()}


def test_each_op_breaks_its_own_condition() -> None:
    assert places(tg.sqrt(X)) == {ROOT: [True, False, False, False]}
    assert places(tg.log(X)) == {LOGARITHM: [True, True, False, False]}
    assert places(tg.reciprocal(X)) == {DIVISION: [False, True, False, False]}
    assert places(tg.exp(X * 2)) == {OVERFLOW: [False, False, False, True]}
    assert places(tg.exp(X * -2)) == {UNDERFLOW: [False, False, False, True]}


def test_where_hangs_on_the_branch_that_it_takes() -> None:
    assert places(tg.where(tg.less(X, 0.0), 0.0, tg.sqrt(X))) == {}
    assert places(tg.where(tg.less(X, 0.0), tg.sqrt(X), 0.0)) == {ROOT: [True, False, False, False]}


def test_what_is_broken_is_carried_through_views_and_sums() -> None:
    roots = tg.sqrt(X)
    assert places(roots[::-1] + 1.0) == {ROOT: [False, False, False, True]}
    assert places(tg.reshape(roots, (2, 2)).sum(1)) == {ROOT: [True, False]}
    assert places(tg.pad(roots, ((1, 0),))) == {ROOT: [False, True, False, False, False]}


def test_an_infinity_that_is_written_breaks_nothing() -> None:
    assert places(tg.maximum(X, -float("inf"))) == {}


def test_a_condition_is_one_that_is_known() -> None:
    assert checked("no overflow", "r") == ("no overflow",) and checked(["roots of numbers >= 0"], "r") == (ROOT,)
    for wrong in (("no bugs",), 3):
        with pytest.raises(RewriteError, match="the rule r assumes"):
            checked(wrong, "r")
