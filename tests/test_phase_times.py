from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tensor_graphs import phase_times
from tensor_graphs.phase_times import ELSE, Phases


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A clock that goes on by a second at each look, and a processor that works for half of it."""
    clock, worked = itertools.count(), itertools.count(step=0.5)
    monkeypatch.setattr(phase_times.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(phase_times, "_worked", lambda: float(next(worked)))
    yield clock


def test_an_inner_phase_is_not_counted_in_the_outer_one_and_the_rows_add_up(ticks: Any) -> None:
    found = Phases(began=10.0)                             # the clock is looked at once at each border
    found.until_here("import")
    with found.phase("choose"):
        with found.phase("verify"):
            pass
        with found.phase("verify"):
            pass
    spent = found.so_far()
    assert {name: s.wall for name, s in spent.items()} == {"import": 11, "choose": 3, "verify": 2, ELSE: 2}
    assert spent["verify"].times == 2 and spent["verify"].worked == 1.0
    assert sum(s.wall for s in spent.values()) == found.total - 1


def test_a_phase_that_raises_ends_and_another_thread_is_not_followed(ticks: Any) -> None:
    found = Phases()
    with pytest.raises(ValueError), found.phase("bind"):
        raise ValueError
    with found.phase("run"):
        beside = threading.Thread(target=lambda: found.phase("beside").__enter__())
        beside.start()
        beside.join()
    assert set(found.spent) == {"bind", "run", ELSE} and found.spent[ELSE].wall == 2


def test_the_table_has_a_line_for_each_phase_and_for_the_rest(ticks: Any) -> None:
    found = Phases()
    with found.phase("lower"):
        pass
    _, lower, rest, whole = found.table().splitlines()
    assert lower.split()[0] == "lower" and rest.startswith(ELSE) and whole.startswith("all")
    assert list(found.to_json()) == ["lower", ELSE] and found.to_json()["lower"]["ms"] == 1000


def test_this_process_has_an_age() -> None:
    assert 0 < phase_times._age() < 1e6
