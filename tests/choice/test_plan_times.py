"""choice/plan_times.py: a plan with fewer bits than written is chosen only where a run of it is faster."""

from __future__ import annotations

from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.choice import plan_times
from tensor_graphs.measure.error_draws import drawn_weights
from tensor_graphs.records.database import Database
from tests.choice.test_mixed_forms import compiled, layers
from tests.choice.test_mixed_forms import database as database


def timed_as(monkeypatch: pytest.MonkeyPatch, narrow: float, written: float) -> list[Any]:
    """Let runs take these seconds; return a list that grows with each comparison."""
    calls: list[Any] = []

    def times(*arguments: Any) -> list[list[float]]:
        calls.append(arguments)
        return [[narrow], [written]]

    monkeypatch.setattr(plan_times, "interleaved", times)
    return calls


def test_fewer_bits_that_are_not_faster_lose(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_times, "KIND", "times of this test")
    timed_as(monkeypatch, 2e-3, 1e-3)
    plan = compiled(database, "norm:2e-2")
    assert not plan.words and "as written" in plan.precision
    assert "is not faster: 2.00 ms a run, as written 1.00 ms" in plan.measured and "bound" in plan.measured


def test_fewer_bits_that_are_faster_win_and_are_timed_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_times, "KIND", "times of that test")
    calls = timed_as(monkeypatch, 1e-3, 2e-3)
    plan, again = compiled(database, "norm:2e-2"), compiled(database, "norm:2e-2")
    assert len(calls) == 1 and plan.words and plan.measured == again.measured
    assert plan.measured.endswith("; 1.00 ms a run, as written 2.00 ms")


def test_runs_are_interleaved_until_the_time_is_spent(database: Database) -> None:
    graph, messages = layers(), list[str]()
    model = tg.bind(tg.compile(graph, database=database), drawn_weights(graph))
    first, second = plan_times.interleaved([model, model], graph, {}, say=messages.append)
    assert len(first) == len(second) == plan_times.ROUNDS - 1 == len(messages) - 1
    assert [len(times) for times in plan_times.interleaved([model, model], graph, {}, 0.0)] == [1, 1]
