"""Layouts: no two boxes overlap, frames hold their boxes, arrows go down and meet the boxes that they join."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from tensor_graphs.views.fold_repeats import Item, Repeat, folded, shown_for
from tensor_graphs.views.layout import DiagramLayout, layout

SEEDS = range(40)
Drawn = tuple[tuple[Item, ...], dict[int, tuple[float, float]], list[tuple[int, int]]]


def drawn(seed: int) -> Drawn:
    """Boxes of random sizes, some in repetitions, some of these in others, and arrows between them in both directions."""
    rng = random.Random(seed)
    kinds = [rng.randrange(30) for _ in range(rng.randrange(1, 12))]
    body = [rng.randrange(30, 60) for _ in range(rng.randrange(2, 6))]
    inner = body + [rng.randrange(60, 90)] * rng.choice((0, 5))
    items = folded(kinds + inner * rng.randrange(1, 5) + [99])
    numbers = sorted(shown_for(items))
    sizes = {n: (rng.uniform(20, 200), rng.uniform(10, 60)) for n in numbers}
    pairs = [(a, b) for b in numbers for a in rng.sample(numbers, min(len(numbers), rng.randrange(4)))]
    arrows = [(a, b) for a, b in pairs if a < b or rng.random() < 0.2]
    return items, sizes, arrows


def rectangle(placed: DiagramLayout, sizes: dict[int, tuple[float, float]], n: int) -> tuple[float, float, float, float]:
    (x, y), (w, h) = placed.boxes[n], sizes[n]
    return x - w / 2, y - h / 2, x + w / 2, y + h / 2


def repeats(items: Sequence[Item]) -> list[Repeat]:
    return [r for item in items if isinstance(item, Repeat) for r in (item, *repeats(item.inside))]


@pytest.mark.parametrize("seed", SEEDS)
def test_boxes_do_not_overlap_and_lie_in_the_frames_of_their_repetitions(seed: int) -> None:
    items, sizes, arrows = drawn(seed)
    placed = layout(items, sizes, arrows)
    assert set(placed.boxes) == set(sizes)
    boxes = {n: rectangle(placed, sizes, n) for n in sizes}
    for a, b in combinations(boxes.values(), 2):
        assert a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] + 1e-6 or b[3] <= a[1] + 1e-6
    assert all(0 <= x0 and 0 <= y0 and x1 <= placed.width and y1 <= placed.height for x0, y0, x1, y1 in boxes.values())
    assert sorted(f.times for f in placed.frames) == sorted(r.times for r in repeats(items))
    inside = [set(shown_for(r.inside)) for r in repeats(items)]
    for f in placed.frames:
        within = {n for n, (x0, y0, x1, y1) in boxes.items()
                if f.x <= x0 and x1 <= f.x + f.width and f.y <= y0 and y1 <= f.y + f.height}
        assert within in inside


@pytest.mark.parametrize("seed", SEEDS)
def test_an_arrow_goes_down_from_the_box_that_is_read_to_its_reader_and_a_backward_one_has_its_own_lane(seed: int) -> None:
    items, sizes, arrows = drawn(seed)
    placed = layout(items, sizes, arrows)
    assert placed.arrows.keys() | placed.back.keys() == set(arrows) and not placed.arrows.keys() & placed.back.keys()
    for (a, b), pieces in placed.arrows.items():
        assert a < b
        points = sorted((p for piece in pieces for p in piece), key=lambda p: p[1])
        for piece in pieces:
            assert all(low[1] >= high[1] for high, low in pairwise(piece))
        assert points[0][1] == pytest.approx(rectangle(placed, sizes, a)[3])
        assert points[-1][1] == pytest.approx(rectangle(placed, sizes, b)[1])
        assert points[0][0] == pytest.approx(placed.boxes[a][0]) and points[-1][0] == pytest.approx(placed.boxes[b][0])


def test_a_chain_is_a_column_and_equal_inputs_give_equal_pictures() -> None:
    sizes = dict.fromkeys(range(4), (40.0, 20.0))
    placed = layout((0, 1, 2, 3), sizes, [(0, 1), (1, 2), (2, 3)])
    assert len({x for x, _ in placed.boxes.values()}) == 1
    ys = [placed.boxes[n][1] for n in range(4)]
    assert ys == sorted(ys) and placed == layout((0, 1, 2, 3), sizes, [(2, 3), (1, 2), (0, 1)])


def test_crossings_that_an_order_avoids_are_avoided() -> None:
    sizes = dict.fromkeys(range(6), (30.0, 20.0))
    placed = layout(tuple(range(6)), sizes, [(0, 5), (1, 4), (2, 3)])
    order = sorted(range(3), key=lambda n: placed.boxes[n][0])
    assert [5 - n for n in order] == sorted(range(3, 6), key=lambda n: placed.boxes[n][0])


def test_boxes_without_arrows_are_placed() -> None:
    placed = layout((0, 1), {0: (10, 10), 1: (10, 10)}, [])
    assert placed.boxes[0] != placed.boxes[1] and placed.width > 20
