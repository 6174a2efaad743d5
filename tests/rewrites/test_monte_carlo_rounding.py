"""What rounding explains of a difference: nothing where nothing was rounded."""

from __future__ import annotations

import numpy as np

import tensor_graphs as tg
from tensor_graphs.rewrites.monte_carlo_rounding import runs

X = tg.input("x", (2,), tg.f64)


def moves(made: tg.Node, *values: float) -> list[bool]:
    """Whether each element differs between the runs."""
    found = runs([made], {X: np.array(values)})
    return [len({float(run[0][i]) for run in found}) > 1 for i in range(len(values))]


def test_what_float64_holds_exactly_stays_where_it_is() -> None:
    assert moves(X + 1.0, 7.25, 1e-30) == [False, True]
    assert moves(X * 3.0, 7.25, 0.1) == [False, True]
    assert moves(tg.reciprocal(X), 0.25, 3.0) == [False, True]
    assert moves(tg.sqrt(X), 6.25, 2.0) == [False, True]
    assert moves(tg.exp2(X), 3.0, 0.5) == [False, True]
    assert moves(tg.log2(X), 8.0, 3.0) == [False, True]
    assert moves(tg.sin(X), 0.0, 1.0) == [False, True]
    assert moves(tg.reshape(X, (2, 1)).sum(1), 0.1, 0.2) == [False, False]


def test_a_sum_of_whole_numbers_is_exact_and_one_of_others_is_not() -> None:
    assert not any(len({float(r[0]) for r in runs([X.sum(0)], {X: np.array(v)})}) > 1 for v in ([2.0, 3.0], [0.0, 0.1]))
    assert len({float(r[0]) for r in runs([X.sum(0)], {X: np.array([0.1, 0.2])})}) > 1


def test_a_test_for_a_number_that_is_met_exactly_is_without_doubt() -> None:
    assert moves(tg.where(tg.equals(X + 1.0, 8.3), 1.0, 0.0), 7.25, 1.0) == [False, False]
    assert moves(tg.where(tg.less(X * 0.1, 0.3), 1.0, 0.0), 3.0, 1.0) == [True, False]
