"""Strategies: each finds the best of a landscape that is known, keeps to what is legal, and ends when the time is over."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tensor_graphs.codegen.schedule_actions import Action, Grain, Schedule
from tensor_graphs.tuning import strategies
from tensor_graphs.tuning.space import BAD, Space, TimeIsOver
from tensor_graphs.tuning.strategies import STRATEGIES, StrategyError, register, walk

SITES, SIZES = 6, (1, 2, 4, 8)


class Known:
    """A space with a score that is computed. looks: after so many new schedules the time is over."""

    def __init__(self, looks: int, hard: bool = False) -> None:
        self.seed: Schedule = tuple(Grain(1, i) for i in range(SITES))
        self.seen: dict[Schedule, float] = {}
        self.looks, self.hard = looks, hard

    def score(self, schedule: Schedule) -> float:
        wrong = sum(a.size != SIZES[1 + i % 3] for i, a in enumerate(schedule))
        if self.hard and schedule[0].size == 8:
            return BAD                                              # does not compile
        return 0.4 + 0.1 * wrong

    def sites(self, schedule: Schedule) -> list[list[Action]]:
        return [[Grain(s, i) for s in SIZES if s != a.size] for i, a in enumerate(schedule)]

    def changed(self, schedule: Schedule, action: Action) -> Schedule:
        return tuple(action if a.site == action.site else a for a in schedule)

    def scores(self, schedules: Sequence[Schedule]) -> list[float]:
        for s in schedules:
            if s not in self.seen:
                if len(self.seen) >= self.looks:
                    raise TimeIsOver
                self.seen[s] = self.score(s)
        return [self.seen[s] for s in schedules]

    def better(self, one: Schedule, other: Schedule) -> bool:
        return self.score(one) < self.score(other)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("hard", [False, True])
def test_every_strategy_comes_near_to_the_best_of_a_landscape_that_is_known(name: str, hard: bool) -> None:
    best = []
    for seed in range(3):
        space = Known(300, hard)
        walk(space, name, random.Random(seed))
        best.append(min(space.seen.values()))
        assert len(space.seen) <= 300
    assert sorted(best)[1] <= (0.61 if name == "random" else 0.51), best


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_ends_when_it_has_nothing_new_to_name(name: str) -> None:
    space = Known(10**9)
    space.sites = lambda schedule: []                              # type: ignore[method-assign]
    walk(space, name, random.Random(0))
    assert set(space.seen) <= {space.seed}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_repeats_with_its_seed(name: str) -> None:
    spaces = [Known(60), Known(60)]
    for space in spaces:
        walk(space, name, random.Random(3))
    assert list(spaces[0].seen) == list(spaces[1].seen)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_registered", {})


def test_a_registered_function_walks_the_space_under_its_name_and_a_later_one_replaces_it(registered: None) -> None:
    @register("mine")
    def first(space: Space, rng: random.Random) -> None:
        raise AssertionError("it was replaced")

    @register("mine")
    def second(space: Space, rng: random.Random) -> None:
        for action in (action for site in space.sites(space.seed) for action in site):
            space.scores([space.changed(space.seed, action)])

    space = Known(1000)
    walk(space, "mine", random.Random(0))
    assert set(space.seen) == {space.changed(space.seed, a) for site in space.sites(space.seed) for a in site}


def test_what_is_no_strategy_is_refused_with_the_fix(registered: None) -> None:
    for name, value, why in (("descent", second_of, "'descent' is the name of a built-in strategy\n  fix: another name"),
                             ("", second_of, "registered under a name, and this is ''\n  fix: @register"),
                             (3, second_of, "and this is 3\n  fix: "),
                             ("mine", lambda space: None, r"cannot be called with \(space, rng\): too many .*\n  fix: a function"),
                             ("mine", 3, r"cannot be called with \(space, rng\): 3 is not a callable.*\n  fix: a function")):
        with pytest.raises(StrategyError, match=why):
            register(name)(value)                                   # type: ignore[arg-type]
    assert "mine" not in strategies.known()


def test_what_a_strategy_raises_is_told_with_its_name(registered: None) -> None:
    @register("mine")
    def fails(space: Space, rng: random.Random) -> None:
        raise KeyError("no such site")

    with pytest.raises(StrategyError, match="the strategy 'mine' raised KeyError: 'no such site' at test_strategies.py:"
                                            "[0-9]+ in [a-z_]+\n  fix: the function"):
        walk(Known(10), "mine", random.Random(0))


def second_of(space: Space, rng: random.Random) -> None:
    space.scores([space.seed])
