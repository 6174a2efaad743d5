"""strategies: search strategies for spaces of schedules. All use the interface in space.py, run until time is over and store
nothing.

A strategy may propose any schedule. The space keeps the measurements, and its winner is tested against the seed again.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.codegen.schedule_actions import Action, Schedule
from tensor_graphs.errors import TensorGraphsError, raised
from tensor_graphs.tuning.space import Space, TimeIsOver

Strategy = Callable[[Space, random.Random], None]

MOST_CHANGES = 4
"""most actions by which a random schedule differs from the seed"""

IN_VAIN = 200
"""consecutive steps without a new schedule after which a space counts as exhausted"""


def descent(space: Space, rng: random.Random) -> None:
    """Search site by site: take a site's best action if it wins in pairs; where no site improves, change two at random."""
    best = space.seed
    at = best
    while True:
        moved = True
        while moved:
            moved = False
            for i in rng.sample(range(len(space.sites(at))), len(space.sites(at))):
                sites = space.sites(at)
                others = [space.changed(at, a) for a in sites[i]] if i < len(sites) else []
                if others:
                    scored = sorted(zip(space.scores(others), others, strict=True), key=lambda pair: pair[0])
                    if scored[0][0] < space.scores([at])[0] and space.better(scored[0][1], at):
                        at, moved = scored[0][1], True
        if at != best and (best == space.seed or space.better(at, best)):
            best = at
        at = _walked(space, best, rng, 2)
        space.scores([at])


def at_random(space: Space, rng: random.Random, together: int = 4) -> None:
    """Try random schedules that differ from the seed by a few actions."""
    while True:
        space.scores([_walked(space, space.seed, rng, rng.randint(1, MOST_CHANGES)) for _ in range(together)])


def beam(space: Space, rng: random.Random, width: int = 4, neighbours: int = 4) -> None:
    """Repeat: keep the best few of the schedules held before and some random neighbours of each."""
    held = [space.seed]
    while True:
        near = [_walked(space, s, rng, 1) for s in held for _ in range(neighbours)]
        both = list(dict.fromkeys((*held, *near)))
        scored = sorted(zip(space.scores(both), range(len(both)), strict=True))
        held = [both[i] for _, i in scored[:width]]


def evolution(space: Space, rng: random.Random, size: int = 8) -> None:
    """Evolve a population: a parent wins against a random rival, a child mixes two and has one change, the worst go."""
    population = list(dict.fromkeys([space.seed, *(_walked(space, space.seed, rng, 2) for _ in range(size - 1))]))
    while True:
        parents = [_better_of_two(space, population, rng) for _ in range(size // 2 * 2)]
        children = [_walked(space, _crossed(space, one, other, rng), rng, 1)
                    for one, other in zip(parents[::2], parents[1::2], strict=True)]
        both = list(dict.fromkeys((*population, *children)))
        scored = sorted(zip(space.scores(both), range(len(both)), strict=True))
        population = [both[i] for _, i in scored[:size]]


def _better_of_two(space: Space, population: Sequence[Schedule], rng: random.Random) -> Schedule:
    two = rng.choices(population, k=2)
    return min(zip(space.scores(two), (0, 1), two, strict=True))[2]


@dataclass
class _Node:
    """A node of the search tree, with decisions for the first `depth` sites. reward: the sum over visits."""

    schedule: Schedule
    depth: int
    visits: int = 0
    reward: float = 0.0
    children: list[_Node] = field(default_factory=list)
    open: list[Schedule] | None = None


def tree_search(space: Space, rng: random.Random, curiosity: float = 0.1) -> None:
    """Search by Monte-Carlo tree search: at each site the child with the largest bound (UCT), then random changes."""
    root = _Node(space.seed, 0)
    while True:
        path = [root]
        while True:
            node = path[-1]
            if node.open is None:
                sites = space.sites(node.schedule)
                beyond = node.depth >= len(sites)
                node.open = [] if beyond else [node.schedule, *(space.changed(node.schedule, a) for a in sites[node.depth])]
                rng.shuffle(node.open)
            if node.open:
                child = _Node(node.open.pop(), node.depth + 1)
                node.children.append(child)
                path.append(child)
                break
            if not node.children:
                break
            seen = math.log(node.visits + 1)
            path.append(max(node.children, key=lambda c, seen=seen: c.reward / max(c.visits, 1)     # type: ignore[misc]
                            + curiosity * math.sqrt(seen / max(c.visits, 1))))
        end = _walked(space, path[-1].schedule, rng, rng.randint(0, 2))
        (score,) = space.scores([end])
        for node in path:
            node.visits += 1
            node.reward += max(-1.0, -math.log(score)) if score > 0 else 1.0


STRATEGIES: Mapping[str, Strategy] = {
    "descent": descent, "beam": beam, "evolution": evolution, "tree": tree_search, "random": at_random}
"""the built-in strategies; the first is the default"""

_registered: dict[str, Strategy] = {}
"""user-registered strategies"""


def known() -> dict[str, Strategy]:
    """Return the built-in and the user-registered strategies by name."""
    return {**STRATEGIES, **_registered}


class StrategyError(TensorGraphsError):
    """A user-registered strategy that cannot be registered, or that raised."""


def register(name: str) -> Callable[[Strategy], Strategy]:
    """Decorator: register a search strategy, a function of (space, rng), under a name for `tg profile --strategy NAME`. A second
    function under that name replaces the first. Raises StrategyError.

    >>> @register("one step")
    ... def one_step(space, rng):
    ...     space.scores([space.changed(space.seed, action) for site in space.sites(space.seed) for action in site])
    """
    if not isinstance(name, str) or not name.strip():
        raise StrategyError(f"a strategy is registered under a name, and this is {name!r}\n"
                            "  fix: @register(\"mine\") above a function of (space, rng)")
    if name in STRATEGIES:
        raise StrategyError(f"{name!r} is the name of a built-in strategy\n  fix: another name than {', '.join(STRATEGIES)}")

    def take(strategy: Strategy) -> Strategy:
        try:
            inspect.signature(strategy).bind(None, None)
        except (TypeError, ValueError) as e:
            raise StrategyError(f"the strategy {name!r} cannot be called with (space, rng): {e}\n"
                                "  fix: a function of a space and a random.Random (docs/strategies.md)") from e
        _registered[name] = strategy
        return strategy

    return take


def walk(space: Space, strategy: str, rng: random.Random) -> None:
    """Run a strategy until its space has no time left or the strategy proposes nothing new. Raises StrategyError where a
    user-registered strategy raises."""
    try:
        known()[strategy](_Bored(space), rng)
    except TimeIsOver:
        return
    except Exception as e:
        if strategy in STRATEGIES:
            raise
        raise StrategyError(f"the strategy {strategy!r} raised {raised(e)}\n"
                            "  fix: the function; what it had measured so far is stored") from e


class _Bored:
    """A space that raises TimeIsOver after too many consecutive steps without a new schedule."""

    def __init__(self, space: Space) -> None:
        self.space, self.seed = space, space.seed
        self.known: set[Schedule] = set()
        self.vain = 0

    def sites(self, schedule: Schedule) -> Sequence[Sequence[Action]]:
        return self.space.sites(schedule)

    def changed(self, schedule: Schedule, action: Action) -> Schedule:
        return self.space.changed(schedule, action)

    def scores(self, schedules: Sequence[Schedule]) -> list[float]:
        before = len(self.known)
        self.known.update(schedules)
        self.vain = 0 if len(self.known) > before else self.vain + 1
        if self.vain > IN_VAIN:
            raise TimeIsOver
        return self.space.scores(schedules)

    def better(self, one: Schedule, other: Schedule) -> bool:
        return self.space.better(one, other)


def _walked(space: Space, schedule: Schedule, rng: random.Random, steps: int) -> Schedule:
    """Return the schedule after `steps` random actions."""
    for _ in range(steps):
        sites = space.sites(schedule)
        if sites:
            schedule = space.changed(schedule, rng.choice(rng.choice(sites)))
    return schedule


def _crossed(space: Space, one: Schedule, other: Schedule, rng: random.Random) -> Schedule:
    """Return `one` with about half of the actions in which `other` differs from it."""
    for action in other:
        if action not in one and rng.random() < 0.5:
            one = space.changed(one, action)
    return one
