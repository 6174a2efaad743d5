"""ranked: a space in which a strategy proposes many schedules, and only those that a cost model ranks first are compiled and timed.

A strategy sees measured scores where there are some, else predicted ones. After every POOL new proposals, or where a strategy names
nothing new, the FEW that may be the fastest are measured, compiled together. The errors of measured neighbours correct a
prediction: schedules of one call share what the model does not know of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from tensor_graphs.codegen.actions import Action, Schedule
from tensor_graphs.costs.learned import cost_model
from tensor_graphs.costs.learned.trees import Estimate
from tensor_graphs.costs.schedule_features import features_of_schedule
from tensor_graphs.tuning.space import Measured, Space

POOL, FEW, ANY = 32, 6, 2
"""new proposals after which some are measured; how many of the best by prediction, and how many at random, as a model may be wrong
"""

IN_VAIN = 8
"""steps in a row that name nothing new, after which some are measured too"""

BROKEN = 4.0
"""the score of an unusable schedule, where it corrects predictions"""

OPTIMISM = 0.5
"""share of the spread of a prediction by which it may be better"""

ALIKE = 0.5
"""weight of a measured schedule per action of difference, relative to the model's 1"""

Predict = Callable[[Schedule], Estimate]


def ranked(space: Measured) -> Space:
    """Return the space, ranked by this machine's model of schedules; itself where none was trained."""
    model = cost_model.of_machine(cost_model.SCHEDULES)
    if model is None:
        return space
    rules = space.program(space.seed)
    return Ranked(space, lambda schedule: model.estimate(
        features_of_schedule(space.signature, space.dims, space.program(schedule), rules)))


class Ranked:
    """A ranked space. predict: the logarithm of a schedule's score, and its spread."""

    def __init__(self, space: Space, predict: Predict) -> None:
        self.space, self.seed, self.predict = space, space.seed, predict
        self.predicted: dict[Schedule, Estimate] = {}
        self.found: dict[Schedule, float] = {space.seed: 1.0}
        self.numbers: dict[Action, int] = {}
        self.sets: dict[Schedule, frozenset[int]] = {}
        self.new = self.vain = 0
        self.rng = random.Random(0)

    def sites(self, schedule: Schedule) -> Sequence[Sequence[Action]]:
        return self.space.sites(schedule)

    def changed(self, schedule: Schedule, action: Action) -> Schedule:
        return self.space.changed(schedule, action)

    def scores(self, schedules: Sequence[Schedule]) -> list[float]:
        before = len(self.predicted)
        for schedule in dict.fromkeys(schedules):
            if schedule not in self.predicted and schedule not in self.found:
                self.predicted[schedule] = self.predict(schedule)
        named = len(self.predicted) - before
        self.new, self.vain = self.new + named, 0 if named else self.vain + 1
        if self.new >= POOL or self.vain >= IN_VAIN:
            best = self.best(FEW)
            others = [schedule for schedule in self.predicted if schedule not in self.found and schedule not in best]
            self.measure([*best, *self.rng.sample(others, min(ANY, len(others)))])
        return [self.found[schedule] if schedule in self.found else self.estimate(schedule)[0] for schedule in schedules]

    def better(self, one: Schedule, other: Schedule) -> bool:
        """Return whether one is faster, in pairs; unmeasured ones are measured first, together with the best proposals."""
        new = [schedule for schedule in dict.fromkeys((one, other)) if schedule not in self.found]
        if new:
            self.measure([*new, *self.best(FEW // 2)])
        return self.space.better(one, other)

    def best(self, count: int) -> list[Schedule]:
        """Return the unmeasured proposals that may be the fastest."""
        left = {schedule: self.estimate(schedule)[1] for schedule in self.predicted if schedule not in self.found}
        return sorted(left, key=lambda schedule: left[schedule])[:count]

    def measure(self, schedules: Sequence[Schedule]) -> None:
        self.new = self.vain = 0
        several = list(dict.fromkeys(schedules))
        self.found |= zip(several, self.space.scores(several), strict=True)

    def estimate(self, schedule: Schedule) -> tuple[float, float]:
        """Return the expected score, and an optimistic one."""
        estimate = self.predicted[schedule]
        own = self.actions(schedule)
        weight, off = 1.0, 0.0
        for other, score in self.found.items():
            if other in self.predicted:
                alike = ALIKE ** (len(own ^ self.actions(other)) / 2)
                weight, off = weight + alike, off + alike * (math.log(min(score, BROKEN)) - self.predicted[other].off)
        middle = estimate.off + off / weight
        return math.exp(middle), math.exp(middle - OPTIMISM * estimate.spread / math.sqrt(weight))

    def actions(self, schedule: Schedule) -> frozenset[int]:
        """Encode actions as numbers, which compare at once."""
        if schedule not in self.sets:
            self.sets[schedule] = frozenset(self.numbers.setdefault(a, len(self.numbers)) for a in schedule)
        return self.sets[schedule]
