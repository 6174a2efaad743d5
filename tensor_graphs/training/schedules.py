"""schedules: learning rates that change from step to step, as graphs of the number of steps taken so far.

    rate = tg.optim.warmup(tg.optim.cosine(3e-4, steps=1000), steps=100)

A schedule is a function of a scalar f32 or f64, 0 before the first step. Their values are those of torch.optim.lr_scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language import atomic
from tensor_graphs.language.composites import cos, exp, greater_equal, maximum, minimum, pow, where
from tensor_graphs.language.node import Node

Schedule = Callable[[Node], Node]
"""Steps taken so far, a scalar f32 or f64 -> the rate of the next one, of that dtype."""

Rate = float | Schedule


def rate_at(rate: Rate, step: Node) -> Node:
    """Return the rate of a step, numbered from 1 on, as a scalar of its dtype."""
    return rate(step - 1.0) if callable(rate) else atomic.fill(rate, (), step.dtype)


def _steps(steps: int) -> int:
    if steps < 1:
        raise ArgumentError(f"steps is {steps}\n  fix: a number of steps of 1 or more")
    return steps


def linear(start: float, end: float, steps: int) -> Schedule:
    """Return the schedule that goes from `start` to `end` in a straight line, and stays there. Raises ArgumentError."""
    total = _steps(steps)
    return lambda step: minimum(step, float(total)) * ((end - start) / total) + start


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """Return the schedule end + (rate − end)·(1 + cos(π·step/steps))/2, `end` afterwards. Raises ArgumentError.

    Source: Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.
    """
    total = _steps(steps)
    return lambda step: (cos(minimum(step, float(total)) * (math.pi / total)) + 1.0) * ((rate - end) / 2) + end


def polynomial(rate: float, steps: int, power: float = 1.0) -> Schedule:
    """Return the schedule rate·(1 − step/steps)^power, 0 afterwards. Raises ArgumentError."""
    total = _steps(steps)
    return lambda step: pow(1.0 - minimum(step, float(total)) / float(total), power) * rate


def exponential(rate: float, factor: float, every: int = 1) -> Schedule:
    """Return the schedule rate·factor^⌊step/every⌋: with `every` steps between changes, a staircase. Raises ArgumentError."""
    length = _steps(every)
    if not 0 < factor:
        raise ArgumentError(f"factor is {factor}\n  fix: a factor above 0")
    return lambda step: exp(atomic.floor(step / float(length)) * math.log(factor)) * rate


def milestones(rate: float, factor: float, at: Sequence[int]) -> Schedule:
    """Return the schedule that multiplies the rate by `factor` at each of the steps `at`."""
    def schedule(step: Node) -> Node:
        value = atomic.fill(rate, (), step.dtype)
        for milestone in at:
            value = where(greater_equal(step, float(milestone)), value * factor, value)
        return value
    return schedule


def warmup(rate: Rate, steps: int, start: float = 0.0) -> Schedule:
    """Return the schedule that goes from `start` times a rate's first value to that value in a straight line, and follows the rate
    from its own first step on. Raises ArgumentError."""
    total = _steps(steps)

    def schedule(step: Node) -> Node:
        first = rate_at(rate, atomic.fill(1, (), step.dtype))
        ramp = first * (step * ((1 - start) / total) + start)
        return where(step < float(total), ramp, rate_at(rate, maximum(step - float(total - 1), 1.0)))
    return schedule


def one_cycle(peak: float, steps: int, rise: float = 0.3, start: float = 1 / 25, end: float = 1e-4) -> Schedule:
    """Return the schedule that rises from start·peak to peak over the share `rise` of all steps, and falls to end·start·peak at the
    last one, both along half a cosine. Raises ArgumentError.

    Source: Smith and Topin, "Super-convergence: very fast training of neural networks using large learning rates", 2018.
    """
    top, last = rise * _steps(steps) - 1, steps - 1.0
    if not 0 < top < last:
        raise ArgumentError(f"rise is {rise} of {steps} steps\n  fix: a share that leaves steps before and after the peak")

    def schedule(step: Node) -> Node:
        up = (1.0 - cos(step * (math.pi / top))) * (peak * (1 - start) / 2) + peak * start
        fall = (minimum(step, last) - top) * (math.pi / (last - top))
        down = (cos(fall) + 1.0) * (peak * (1 - end * start) / 2) + peak * end * start
        return where(step <= top, up, down)
    return schedule
