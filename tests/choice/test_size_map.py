"""choice/size_map.py, samples.py: at every point of a box the table's choice is compared with the cheapest there."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import search
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.deferred_measure import compare_all
from tensor_graphs.choice.search import asked_sizes, sizes_to_cost
from tensor_graphs.choice.size_map import MOST, Between, cells_of
from tensor_graphs.choice.size_samples import MOST_TOGETHER, Index, Samples, samples_of, table_dims
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.size_cells import Cell, Cells
from tensor_graphs.records.database import Database
from tests.choice.conftest import add_row
from tests.choice.test_requested_path import SOFTMAX, TABLED

Surface = Callable[[Sequence[int]], float]
"""sizes of the table's dims -> seconds"""


def graph_over(**dims: tuple[int, int]) -> tg.Graph:
    sizes = tuple(tg.dim(name, low, high) for name, (low, high) in dims.items())
    return tg.graph(tg.tanh(tg.input("x", sizes)))


def samples_over(at: dict[str, int] | None = None, **dims: tuple[int, int]) -> Samples:
    graph = graph_over(**dims)
    return samples_of(graph, {n: d.bounds(s)[1] for n, s in graph.dims.items()}, at)


def table(samples: Samples, surfaces: Sequence[Surface], known: bool) -> tuple[Cells, list[int]]:
    """The cells, and the winner in each. known: whether prices are known between the samples too."""
    def sizes(index: Index) -> tuple[int, ...]:
        return tuple(axis[i] for axis, i in zip(samples.axes, index, strict=True))

    def cost(way: int, at: Sequence[int]) -> float:
        return surfaces[way](at)

    winners = {i: min(range(len(surfaces)), key=lambda way: cost(way, sizes(i))) for i in samples.points}
    found = cells_of(samples.box, samples.axes, winners, cost if known else Between(samples.axes, cost, samples.points))
    assert len(found) <= MOST
    cells = Cells([cell for cell, _ in found])                      # raises unless they fill a box
    assert cells.box == samples.box
    for i, winner in winners.items():
        assert found[cells.index(dict(zip(cells.dims, sizes(i), strict=True)))][1] == winner, "each sample has its own winner"
    return cells, [way for _, way in found]


def worst(cells: Cells, winners: Sequence[int], surfaces: Sequence[Surface]) -> float:
    """The largest factor by which the table's choice is above the cheapest, over all points of the box."""
    found = 1.0
    for point in itertools.product(*(range(low, high + 1) for _, low, high in cells.box.ranges)):
        way = winners[cells.index(dict(zip(cells.dims, point, strict=True)))]
        found = max(found, surfaces[way](point) / min(s(point) for s in surfaces))
    return found


def kernels(rng: random.Random, dims: int) -> list[Surface]:
    """What kernels take: a cost for each call, and one for each element, of which some kernels take a power."""
    def one() -> Surface:
        call, element, powers = 10 ** rng.uniform(-1, 1.5), 10 ** rng.uniform(-2, 0), [rng.uniform(0.6, 1.3) for _ in range(dims)]

        def seconds(sizes: Sequence[int]) -> float:
            product = 1.0
            for size, power in zip(sizes, powers, strict=True):
                product *= size ** power
            return call + element * product

        return seconds

    return [one() for _ in range(rng.randint(2, 4))]


@pytest.mark.parametrize("known", [True, False], ids=["bisected", "interpolated"])
@pytest.mark.parametrize(("dims", "most", "usual"), [({"n": (1, 128)}, 1.05, 1.002), ({"b": (1, 16), "n": (1, 64)}, 2.8, 1.2)],
                         ids=["one", "two"])
def test_everywhere_in_a_box_the_choice_is_within_a_factor_of_the_best(dims: Any, most: float, usual: float, known: bool) -> None:
    """Kernels whose costs for a call and for an element differ by factors of a hundred; where borders follow no axis, a table of
    few cells loses some at the worst point."""
    lost = []
    for seed in range(60):
        samples, surfaces = samples_over(**dims), kernels(random.Random(seed), len(dims))
        lost.append(worst(*table(samples, surfaces, known), surfaces))
    assert max(lost) < most and sum(lost) / len(lost) < usual


def test_where_ratios_are_monotone_along_one_axis_the_table_is_exact() -> None:
    """One crossing between two samples, in the same place for all rows: bisection finds it."""
    for seed in range(40):
        rng = random.Random(seed)
        per_n, per_b = rng.uniform(0.01, 1.0), rng.uniform(0.0, 2.0)
        start, rate = rng.uniform(0.5, 40.0), rng.uniform(0.0, 0.009)

        def steep(sizes: Sequence[int], per_n: float = per_n, per_b: float = per_b) -> float:
            return (1.0 + per_b * sizes[0]) * (1.0 + per_n * sizes[-1])

        def flat(sizes: Sequence[int], start: float = start, rate: float = rate, per_b: float = per_b) -> float:
            return (1.0 + per_b * sizes[0]) * (start + rate * sizes[-1])

        for samples in (samples_over(n=(1, 256)), samples_over(b=(1, 4), n=(1, 100))):
            cells, winners = table(samples, [steep, flat], True)
            assert worst(cells, winners, [steep, flat]) == 1.0 and len(winners) <= 2


def test_a_choice_of_both_dims_has_cells_of_both() -> None:
    """One row: whatever the length; many rows: from some length on."""
    def vector(sizes: Sequence[int]) -> float:
        return 1.0 * sizes[0] * sizes[1]

    def matrix(sizes: Sequence[int]) -> float:
        return 100.0 + 0.2 * sizes[0] * sizes[1] if sizes[0] > 1 else 1e4

    cells, winners = table(samples_over(b=(1, 32), n=(1, 64)), [vector, matrix], True)
    assert winners[cells.index({"b": 1, "n": 64})] == 0 == winners[cells.index({"b": 32, "n": 1})]
    assert winners[cells.index({"b": 32, "n": 64})] == 1 and 3 <= len(winners) <= 8 and len(cells.map()) > 2


def test_a_sample_that_one_winner_cannot_run_is_left_to_the_other() -> None:
    axes = ((1, 16),)
    costs = {(0, (1,)): 1.0, (0, (16,)): float("inf"), (1, (1,)): 2.0, (1, (16,)): 2.0}
    cost = Between(axes, lambda way, at: costs[way, at], {(0,), (1,)})
    found = cells_of(Cell.of({"n": (1, 20)}), axes, {(0,): 0, (1,): 1}, cost)
    assert found == [(Cell.of({"n": (1, 1)}), 0), (Cell.of({"n": (2, 20)}), 1)]


def test_where_samples_are_missing_the_cells_still_fill_the_box() -> None:
    rng = random.Random(5)
    axes = ((1, 8, 36), (1, 8, 36, 130))
    for _ in range(40):
        winners = {i: rng.randrange(3) for i in itertools.product(range(3), range(4)) if not any(i) or rng.random() < 0.5}
        costs = {(way, (axes[0][i], axes[1][j])): rng.random() + (way != winner)
                 for way in range(3) for (i, j), winner in winners.items()}
        found = cells_of(Cell.of({"b": (1, 40), "n": (1, 200)}), axes, winners,
                         Between(axes, lambda way, at, costs=costs: costs[way, at], winners))
        cells = Cells([cell for cell, _ in found])
        for i, winner in winners.items():
            assert found[cells.index({"b": axes[0][i[0]], "n": axes[1][i[1]]})][1] == winner


def test_samples_lie_on_a_few_sizes_of_each_axis_and_where_they_are_asked_for() -> None:
    assert samples_over(n=(1, 512)).axes == ((1, 4, 16, 64, 260),)
    two = samples_over(b=(1, 64), n=(1, 512))
    assert two.axes == ((1, 8, 36), (1, 8, 36, 260)) and (2, 3) not in two.points and len(two.points) == 11
    assert all(p["b"] * p["n"] <= MOST_TOGETHER for p in two.points.values()) and not two.asked
    asked = samples_over({"b": 50, "n": 500}, b=(1, 64), n=(1, 512))
    assert [asked.points[i] for i in asked.asked] == [{"b": 50, "n": 500}]
    rows = samples_over({"b": 3}, b=(1, 64), n=(1, 512))
    assert {rows.points[i]["b"] for i in rows.asked} == {3} and len(rows.asked) == 4
    fixed = samples_over()
    assert fixed.box == Cell() and list(fixed.points.values()) == [{}]


def test_the_box_ends_at_the_largest_sizes_in_use_and_larger_ones_run_what_its_border_runs(database: Database) -> None:
    graph = graph_over(n=(1, 512))
    found = samples_of(graph, {"n": 8}, {"n": 1})
    assert found.box == Cell.of({"n": (1, 8)}) and found.axes == ((1, 4, 8),)
    plan = tg.compile(graph, largest={"n": 8}, backends=("numpy",), database=database)
    x = np.linspace(-2, 2, 100, dtype=np.float32)
    np.testing.assert_allclose(tg.bind(plan).run({"x": x})["out"], np.tanh(x), rtol=1e-6)


def test_of_many_dims_those_with_the_widest_ranges_are_tabled() -> None:
    assert table_dims(graph_over(a=(1, 9), b=(1, 3), c=(0, 7), e=(4, 5))) == ("a", "b", "c")
    assert len(samples_over(a=(1, 9), b=(1, 64), c=(1, 512)).points) <= 16


B, N = tg.dim("b", 1, 16), tg.dim("n", 1, 40)
ROWS = tg.graph({"y": tg.linear(tg.input("x", (B, N, 16)), tg.parameter("w", (8, 16)))})


@pytest.fixture
def tabled(database: Database) -> Database:
    """Rows by which numpy is the faster for a batch of one, whatever its length, and C from eight on."""
    signature = signature_of(ROWS.outputs["y"])
    for name in ("numpy.linear", "c.linear"):
        add_row(database, kernel_named(name), signature)
        for at in sizes_to_cost(ROWS):
            us = 1.0 if (at["b"] == 1) == name.startswith("numpy") else 6.0
            add_row(database, kernel_named(name), signature, at, us=0.01 * us * at["n"])
    return database


def test_a_batch_of_rows_is_computed_otherwise_than_one_and_equals_the_oracle_everywhere(tabled: Database) -> None:
    plan = tg.compile(ROWS, database=tabled, backends=("numpy", "c"))
    assert [(str(v.cell), *v.kernels) for v in plan.variants] == [
        ("b = 1..2, n = 1..40", "numpy.linear"), ("b = 3..16, n = 1..40", "c.linear")]
    assert all(v.measured_share == 1.0 for v in plan.variants)
    weights = {"w": np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)}
    model, rng = tg.bind(plan, weights), np.random.default_rng(1)
    for b, n in itertools.product((1, 2, 3, 4, 16), (1, 2, 7, 40)):
        x = rng.standard_normal((b, n, 16)).astype(np.float32)
        wanted = interpret(ROWS, {"x": x}, weights).outputs["y"]
        np.testing.assert_allclose(model.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)
        assert plan.variant({"b": b, "n": n}) is plan.variants[b > 2] and plan.memory(b=b, n=n).outputs >= b * n * 8 * 4
    text = tg.explain(plan, at={"b": 16})
    assert "           n = 1..40\n b = 1..2  A\nb = 3..16  B\n" in text
    assert text.index("B: b = 3..16, n = 1..40: path") < text.index("A: b = 1..2, n = 1..40: path")
    assert "A: b = 1..2, n = 1..40: path" in str(plan)


def test_a_box_is_pinned_and_replayed_and_asked_for_at_sizes(tabled: Database, tmp_path: Path) -> None:
    plan = tg.compile(ROWS, database=tabled, backends=("numpy", "c"))
    plan.pin.save(tmp_path / "rows.pin")
    again = tg.compile(ROWS, database=tabled, path=tmp_path / "rows.pin")
    assert again.pin == plan.pin and [v.cell for v in again.variants] == [v.cell for v in plan.variants]
    first, later = asked_sizes(ROWS, {"b": 5})
    assert {p["b"] for p in first} == {5} and len(first) == 3 and not any(p["b"] == 5 for p in later)
    asked = {"b": 5, "n": 9}
    assert tg.compile(ROWS, database=tabled, backends=("numpy", "c"), at=asked).variant(asked).at == asked


def test_what_has_no_verdict_at_any_of_the_sizes_is_compared_in_one_round(database: Database,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[list[str]] = []

    def noted(judge: Any, pending: Sequence[Any], progress: Any) -> dict[tuple[str, str], str]:
        rounds.append([kernel.name for kernel, _, _ in pending])
        return compare_all(judge, pending, progress)

    monkeypatch.setattr(search, "compare_all", noted)
    for name in ("numpy.softmax", "torch.softmax"):
        for n in (1, 4, 16, 64):
            us = 1.0 if (n <= 4) == name.startswith("numpy") else 9.0
            add_row(database, kernel_named(name), signature_of(SOFTMAX), {"n": n}, us=us)
    plan = compile_graph(TABLED, database=database, backends=("numpy", "torch"))
    assert len(plan.variants) == 2 and rounds == [["numpy.softmax", "torch.softmax"]]
