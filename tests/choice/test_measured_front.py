"""choice/measured_front.py: forms between the fastest and the most accurate one, each with its measured time and error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.measured_front import FrontPoint, _not_dominated, pareto
from tensor_graphs.records.database import Database
from tests.choice.test_mixed_forms import database as database
from tests.choice.test_mixed_forms import layers, weights


def point(seconds: float, error: float) -> FrontPoint:
    plan: Any = None
    return FrontPoint({}, plan, seconds, 0.0, error, error, None, 0, 2)


def test_what_another_point_beats_is_left_out() -> None:
    points = [point(1, 1e-2), point(2, 2e-2), point(2, 1e-3), point(2.001, 1e-4), point(3, 1e-4), point(4, 1e-7)]
    assert [(p.seconds, p.error) for p in _not_dominated(points)] == [(1, 1e-2), (2.001, 1e-4), (4, 1e-7)]


def test_points_are_compared_round_by_round() -> None:
    one, other = point(1.0, 1e-2), point(1.1, 1e-3)
    rounds = (1.0, 1.5, 2.0, 3.0)                                    # of a machine that others slow down
    of_one = replace(one, samples=rounds)
    always, seldom = (replace(other, samples=tuple(x * y for x, y in zip(rounds, by, strict=True)))
                      for by in ((1.1, 1.1, 1.1, 1.1), (1.2, 0.9, 1.2, 0.9)))
    assert _not_dominated([of_one, always]) == [of_one, always]
    assert _not_dominated([of_one, seldom]) == [seldom]


def test_the_front_of_a_graph_is_measured(database: Database) -> None:
    graph, messages = layers(), list[str]()
    front = pareto(graph, points=6, draws=3, database=database, weights=weights(graph), progress=messages.append)
    assert [p.seconds for p in front] == sorted(p.seconds for p in front)
    assert sum(text.startswith("compiling form") for text in messages) >= 4
    assert front[-1].error < 1e-7, "float64 is the most accurate one"
    assert [p.error for p in front] == sorted((p.error for p in front), reverse=True)
    for p in front:
        assert p.draws == 3 and p.error <= p.bound and p.plan.words == {k: v for k, v in p.words.items() if p.plan.words}
        if p.error > 1e-6:
            assert p.predicted is not None and 0.3 < p.predicted / p.error < 3
    assert any("round 9 of 9" in text for text in messages)
    again = pareto(graph, points=6, draws=3, database=database, weights=weights(graph))
    errors = {tuple(p.words.items()): p.error for p in again}
    assert all(errors.get(tuple(p.words.items()), p.error) == p.error for p in front), "draws are rows that are used again"


def test_what_has_no_front_is_told() -> None:
    for wrong, printed in (({"statistic": "top1"}, "no front of 'top1'\n  fix: one of cosine, kl, max, norm"),
                        ({"output": "z"}, "no float output z"), ({"points": 1}, "points")):
        with pytest.raises(ArgumentError, match=printed):
            pareto(layers(), database=":memory:", **wrong)
    with pytest.raises(ArgumentError, match="no float output"):
        pareto(tg.graph(tg.input("x", (3,), tg.i32) + 1), database=":memory:")
