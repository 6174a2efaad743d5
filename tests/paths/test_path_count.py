"""paths/path_count.py: as many paths as are listed, or a bound that says that it is one."""

from __future__ import annotations

import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.paths import path_count
from tensor_graphs.paths.path import Cost, Paths
from tensor_graphs.paths.path_count import PathCount, count_paths
from tests.paths.test_path import GRAPHS, TABLE, every_path, random_prices


@pytest.mark.parametrize("name", GRAPHS)
def test_paths_are_counted_without_being_listed(name: str) -> None:
    for seed in range(4):
        cost = random_prices(seed)
        assert count_paths(Paths(GRAPHS[name], TABLE, cost)) == PathCount(len(every_path(GRAPHS[name], cost)))


def test_beyond_so_many_states_the_number_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "the inner of one is the outer of another"
    exact = len(every_path(GRAPHS[name], random_prices(1)))
    monkeypatch.setattr(path_count, "MOST_STATES", 2)
    bound = count_paths(Paths(GRAPHS[name], TABLE, random_prices(1)))
    assert not bound.exact and bound.number >= exact and str(bound) == f"at most {bound.number:,}"


def test_two_hundred_steps_of_few_kinds_are_counted() -> None:
    x = tg.input("x", (4,))
    for i in range(200):
        x = tg.softmax(x * float(i)) if i % 2 else tg.sin(tg.silu(x))
    count = count_paths(Paths(tg.graph(x), by_op(all_kernels(("numpy",))), lambda kernel, s: Cost(1e-6)))
    assert count.exact and count.number > 10


@pytest.mark.parametrize("number, words", [(3, "3"), (1296, "1,296"), (10**22 + 5, "10^22")])
def test_a_number_is_written_for_people(number: int, words: str) -> None:
    assert str(PathCount(number)) == words
