"""ranked_space: a search space in which only the schedules that a cost model ranks first are compiled and timed.

A strategy gets measured scores where there are some, else predicted ones. After every POOL new proposals, or if the strategy
proposes nothing new, the FEW schedules that may be the fastest are compiled together and measured. The errors of similar measured
schedules correct a prediction, as schedules of one signature share what the model does not know about it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from tensor_graphs.codegen.schedule_actions import Action, Schedule
from tensor_graphs.costs.learned import cost_model
from tensor_graphs.costs.learned.trees import Estimate
from tensor_graphs.costs.schedule_features import features_of_schedule
from tensor_graphs.tuning.generators import HOST
from tensor_graphs.tuning.space import Measured, Space

POOL, FEW, ANY = 32, 6, 2
"""new proposals that trigger a measurement; schedules then measured, the best by prediction and (as models may be wrong) at
random"""

IN_VAIN = 8
"""consecutive steps without a new proposal that trigger a measurement too"""

BROKEN = 4.0
"""the score that stands for an unusable schedule when it corrects predictions"""

OPTIMISM = 0.5
"""share of a prediction's spread by which optimistic scores are lower"""

ALIKE = 0.5
"""factor on the weight of a measured schedule for each action by which it differs; the model's weight is 1"""

Predict = Callable[[Schedule], Estimate]


def ranked(space: Measured) -> Space:
    """Return the space ranked by this machine's cost model of schedules on a CPU; the given space where none was trained."""
    model = cost_model.of_machine(cost_model.SCHEDULES)
    if model is None or space.generator is not HOST:
        return space
    rules = space.program(space.seed)
    return Ranked(space, lambda schedule: model.estimate(
        features_of_schedule(space.signature, space.dims, space.program(schedule), rules)))


class Ranked:
    """A ranked space. predict: returns the logarithm of a schedule's score, and its spread."""

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
        """Return whether `one` is faster than `other` in pairs; unmeasured ones are measured first, with the best proposals."""
        new = [schedule for schedule in dict.fromkeys((one, other)) if schedule not in self.found]
        if new:
            self.measure([*new, *self.best(FEW // 2)])
        return self.space.better(one, other)

    def best(self, count: int) -> list[Schedule]:
        """Return the unmeasured proposals with the best optimistic scores."""
        left = {schedule: self.estimate(schedule)[1] for schedule in self.predicted if schedule not in self.found}
        return sorted(left, key=lambda schedule: left[schedule])[:count]

    def measure(self, schedules: Sequence[Schedule]) -> None:
        self.new = self.vain = 0
        several = list(dict.fromkeys(schedules))
        self.found |= zip(several, self.space.scores(several), strict=True)

    def estimate(self, schedule: Schedule) -> tuple[float, float]:
        """Return the expected score and an optimistic one."""
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
        """Return a schedule's actions encoded as integers, which compare quickly."""
        if schedule not in self.sets:
            self.sets[schedule] = frozenset(self.numbers.setdefault(a, len(self.numbers)) for a in schedule)
        return self.sets[schedule]
