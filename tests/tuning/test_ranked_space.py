"""Ranking: of what a strategy proposes only what is predicted best is measured; what was measured corrects what is predicted."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path

import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.schedule_actions import Grain, Schedule, Unroll
from tensor_graphs.costs.learned import cost_model
from tensor_graphs.costs.learned.trees import HIGH, MIDDLE, Estimate, Model, Tree
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.tuning.ranked_space import ANY, FEW, POOL, Ranked, ranked
from tensor_graphs.tuning.space import Measured
from tensor_graphs.tuning.strategies import STRATEGIES, walk
from tests.tuning.test_strategies import SITES, SIZES, Known


def right(space: Known, noise: float = 0.0) -> Ranked:
    """A space ranked by what its scores are, give or take."""
    rng = random.Random(0)
    return Ranked(space, lambda schedule: Estimate(math.log(space.score(schedule)) + rng.gauss(0.0, noise), noise))


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_good_model_finds_the_best_with_a_tenth_of_the_measurements(name: str) -> None:
    best = []
    for seed in range(3):
        space = Known(40)
        walk(right(space, 0.05), name, random.Random(seed))
        best.append(min(space.seen.values()))
    assert sorted(best)[1] <= (0.71 if name == "random" else 0.51), best


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_does_not_compile_and_a_model_that_is_wrong_end_no_search(name: str) -> None:
    space = Known(100, hard=True)
    wrong = Ranked(space, lambda schedule: Estimate(-math.log(min(space.score(schedule), 4.0)), 0.1))
    walk(wrong, name, random.Random(0))
    assert len(space.seen) == 100 and min(space.seen.values()) < 0.95


def test_of_many_proposals_the_best_are_measured() -> None:
    space = Known(10**9)
    view = right(space)
    drawn = random.Random(1).sample(list(product(SIZES, repeat=SITES)), POOL)
    proposed = [tuple(map(Grain, sizes, range(SITES))) for sizes in drawn]
    assert view.scores(proposed[:-1]) == pytest.approx([space.score(s) for s in proposed[:-1]]) and not space.seen
    view.scores(proposed[-1:])
    assert len(space.seen) == FEW + ANY
    assert sorted(space.seen.values())[:FEW] == sorted(map(space.score, proposed))[:FEW]


def test_where_nothing_new_is_named_what_is_left_is_measured() -> None:
    space = Known(10**9)
    view = right(space)
    one: Schedule = (Grain(2, 0), *space.seed[1:])
    for _ in range(20):
        view.scores([one])
    assert set(space.seen) == {one}


def test_a_measured_neighbour_corrects_a_prediction() -> None:
    space = Known(10**9)
    view = Ranked(space, lambda schedule: Estimate(0.0, 0.4))
    near, far = ((Grain(2, 0), *space.seed[1:]), tuple(Grain(4, i) for i in range(SITES)))
    view.scores([near, far])
    (expected, hopeful), before = view.estimate(near), view.estimate(far)
    assert expected == 1.0 and hopeful < 1.0
    measured: Schedule = (Grain(2, 0), Grain(2, 1), *space.seed[2:])
    view.scores([measured])
    view.found[measured] = 2.0
    assert 1.1 < view.estimate(near)[0] < 2.0 and view.estimate(near)[0] > view.estimate(far)[0] >= before[0]


def test_what_is_to_be_better_is_measured_with_the_best_that_were_proposed() -> None:
    space = Known(10**9)
    view = right(space)
    good: Schedule = (Grain(2, 0), *space.seed[1:])
    others = [(Grain(1, 0), Grain(size, 1), *space.seed[2:]) for size in (2, 4, 8)]
    view.scores([good, *others])
    assert view.better(good, space.seed) and good in space.seen and len(space.seen) > 2


def test_without_a_model_a_space_is_what_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cost_model.of_machine.cache_clear()
    space = object()
    assert ranked(space) is space                                   # type: ignore[comparison-overlap, arg-type]
    cost_model.of_machine.cache_clear()


def test_a_model_on_file_ranks_a_measured_space(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Unroll, beside the rules"
    better = Tree((0,), (0.5,), (-1,), (-2,), (0.0, -0.5))
    model = Model((name,), {MIDDLE: (better,), HIGH: (better,)}, 99, cost_model.machine())
    monkeypatch.setattr(cost_model, "of_machine", lambda what: {cost_model.SCHEDULES: model}[what])
    space = Measured(signature_of(tg.tanh(tg.input("x", (32, 64)))), {}, 60.0)
    view = ranked(space)
    assert isinstance(view, Ranked)
    site = next(a for a in space.seed if isinstance(a, Unroll))
    unrolled = space.changed(space.seed, Unroll(4, site.nest, site.stage))
    (score,) = view.scores([unrolled])
    assert score == pytest.approx(math.exp(-0.5)) and unrolled not in space.looked
    view.measure([unrolled])
    assert view.scores([unrolled]) == [space.looked[unrolled].score] != [score]
