"""optim: optimisers, as graphs from a parameter, its gradient and its moments to their new values.

    optimiser = tg.optim.AdamW(rate=tg.optim.cosine(3e-4, steps=1000), weight_decay=0.1)

An optimiser is a frozen dataclass of its settings. `update` writes its math once: a Trainer calls it for each parameter, and the
result is compiled with the rest of the step. Settings and defaults are those of torch.optim where torch has the optimiser. A rate
is a number or a schedule (schedules.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composites import dot, equals, expm1, maximum, minimum, rsqrt, sign, where
from tensor_graphs.language.node import Node
from tensor_graphs.training.schedules import (
    Rate,
    Schedule,
    cosine,
    exponential,
    linear,
    milestones,
    one_cycle,
    polynomial,
    rate_at,
    warmup,
)

__all__ = ["OPTIMISERS", "SGD", "Adagrad", "Adam", "AdamW", "Lamb", "Lion", "Moments", "Muon", "Optimiser", "RMSprop", "Rate",
           "Schedule", "clipped_norm", "clipped_value", "cosine", "exponential", "linear", "milestones", "one_cycle", "polynomial",
           "warmup"]


class Moments:
    """The states that an optimiser keeps for one parameter, of its shape. initial: first values other than zero."""

    def __init__(self, parameter: str, like: Node) -> None:
        self._parameter, self._like = parameter, like
        self.updates: dict[str, Node] = {}
        self.initial: dict[str, float] = {}

    def read(self, kind: str, initial: float = 0.0) -> Node:
        """Return a moment's value before the step. initial: that of each element before the first one."""
        name = self._name(kind)
        if initial:
            self.initial[name] = initial
        return leaves.state(name, self._like.shape, self._like.dtype).read()

    def write(self, kind: str, value: Node) -> Node:
        """Name a moment's value after the step, and return it."""
        self.updates[self._name(kind)] = value
        return value

    def average(self, kind: str, value: Node, decay: float) -> Node:
        """Update the exponential average decay·moment + (1 − decay)·value, and return it."""
        return self.write(kind, self.read(kind) * decay + value * (1 - decay))

    def _name(self, kind: str) -> str:
        return f"optim.{kind}.{self._parameter}"


class Optimiser(Protocol):
    """The settings of an optimiser, and the math of one step for one parameter."""

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        """Return the parameter's new value. value, slope: f32 or f64 of one shape. step: the number of this step, from 1 on, as a
        scalar of that dtype. The moments' new values are written to `moments`."""


def _bias(decay: float, step: Node) -> Node:
    """Return 1 − decay^step, the weight of all slopes so far in an exponential average, without cancellation."""
    return -expm1(step * math.log(decay)) if decay else atomic.fill(1, (), step.dtype)


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with momentum (Polyak) or Nesterov's. The first step takes the slope undamped, as torch does."""

    rate: Rate = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        slope = slope + value * self.weight_decay if self.weight_decay else slope
        if self.momentum:
            fresh = slope * (1 - self.dampening)
            if self.dampening:
                fresh = where(equals(step, 1.0), slope, fresh)
            average = moments.write("momentum", moments.read("momentum") * self.momentum + fresh)
            slope = slope + average * self.momentum if self.nesterov else average
        return value - slope * rate_at(self.rate, step)


@dataclass(frozen=True)
class Adam:
    """Adam; weight decay is added to the slope. Sources: Kingma and Ba, 2015; amsgrad: Reddi, Kale and Kumar, 2018."""

    rate: Rate = 1e-3
    decays: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        slope = slope + value * self.weight_decay if self.weight_decay else slope
        return value - self._direction(slope, step, moments, rate_at(self.rate, step))

    def _direction(self, slope: Node, step: Node, moments: Moments, rate: Node | float = 1.0) -> Node:
        """Return rate·m̂ / (√v̂ + ε), the rate and both corrections of bias as one factor each."""
        first, second = self.decays
        mean = moments.average("mean", slope, first)
        square = moments.average("square", slope * slope, second)
        if self.amsgrad:
            square = moments.write("largest", maximum(moments.read("largest"), square))
        root = atomic.sqrt(square) * rsqrt(_bias(second, step))
        factor: Node = rate / _bias(first, step)
        scaled: Node = mean * factor / (root + self.epsilon)
        return scaled


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter itself. Source: Loshchilov and Hutter, 2019."""

    weight_decay: float = 1e-2

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        rate = rate_at(self.rate, step)
        return value * (1.0 - rate * self.weight_decay) - self._direction(slope, step, moments, rate)


@dataclass(frozen=True)
class Lamb(Adam):
    """AdamW whose step has the parameter's norm, times the rate. Source: You et al., "Large batch optimization", 2020."""

    epsilon: float = 1e-6
    weight_decay: float = 1e-2

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        direction = self._direction(slope, step, moments) + value * self.weight_decay
        own, other = (atomic.sqrt(atomic.sum(x * x)) for x in (value, direction))
        trust = where((own > 0.0) & (other > 0.0), own / where(other > 0.0, other, 1.0), 1.0)
        return value - direction * (trust * rate_at(self.rate, step))


@dataclass(frozen=True)
class RMSprop:
    """RMSprop (Tieleman and Hinton, 2012), centered (Graves, 2013), with momentum."""

    rate: Rate = 1e-2
    decay: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        slope = slope + value * self.weight_decay if self.weight_decay else slope
        square = moments.average("square", slope * slope, self.decay)
        if self.centered:
            mean = moments.average("mean", slope, self.decay)
            square = square - mean * mean
        direction = slope / (atomic.sqrt(square) + self.epsilon)
        if self.momentum:
            direction = moments.write("momentum", moments.read("momentum") * self.momentum + direction)
        return value - direction * rate_at(self.rate, step)


@dataclass(frozen=True)
class Adagrad:
    """Adagrad: rates fall with the sum of squared slopes. Source: Duchi, Hazan and Singer, 2011."""

    rate: Rate = 1e-2
    rate_decay: float = 0.0
    weight_decay: float = 0.0
    initial: float = 0.0
    epsilon: float = 1e-10

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        slope = slope + value * self.weight_decay if self.weight_decay else slope
        total = moments.write("sum", moments.read("sum", self.initial) + slope * slope)
        rate = rate_at(self.rate, step) / ((step - 1.0) * self.rate_decay + 1.0)
        return value - slope / (atomic.sqrt(total) + self.epsilon) * rate


@dataclass(frozen=True)
class Lion:
    """Lion: the sign of an average. Source: Chen et al., "Symbolic discovery of optimization algorithms", 2023."""

    rate: Rate = 1e-4
    decays: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        rate, mean = rate_at(self.rate, step), moments.read("mean")
        direction: Node = sign(mean * self.decays[0] + slope * (1 - self.decays[0]))
        moments.average("mean", slope, self.decays[1])
        return value * (1.0 - rate * self.weight_decay) - direction * rate


@dataclass(frozen=True)
class Muon:
    """Momentum whose step is made orthogonal by Newton and Schulz's iteration; for matrices. Source: Jordan et al., 2024.

    The iteration is computed in f32; torch rounds it to bf16.
    """

    rate: Rate = 1e-3
    momentum: float = 0.95
    weight_decay: float = 0.1
    nesterov: bool = True
    coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    iterations: int = 5
    epsilon: float = 1e-7

    def update(self, value: Node, slope: Node, step: Node, moments: Moments) -> Node:
        if value.rank != 2:
            raise ArgumentError(f"Muon updates matrices, and one parameter is {value.type}\n"
                                "  fix: another optimiser for it: {\"*.bias\": tg.optim.AdamW(), \"*\": tg.optim.Muon()}")
        rows, columns = (int(size) for size in value.shape)
        average = moments.average("momentum", slope, self.momentum)
        x = slope * (1 - self.momentum) + average * self.momentum if self.nesterov else average
        x = x.T if rows > columns else x
        x = x / maximum(atomic.sqrt(atomic.sum(x * x)), self.epsilon)
        a, b, c = self.coefficients
        for _ in range(self.iterations):
            gram = dot(x, x.T)
            x = x * a + dot(gram * b + dot(gram, gram) * c, x)
        rate = rate_at(self.rate, step)
        x = x.T if rows > columns else x
        return value * (1.0 - rate * self.weight_decay) - x * (rate * math.sqrt(max(1.0, rows / columns)))


OPTIMISERS: Mapping[str, type] = {kind.__name__.lower(): kind for kind in (SGD, Adam, AdamW, Lamb, RMSprop, Adagrad, Lion, Muon)}
"""Optimisers by the name that a configuration file gives."""


def clipped_value(slopes: Sequence[Node], most: float) -> list[Node]:
    """Return the slopes with each element between −most and most."""
    return [minimum(maximum(slope, -most), most) for slope in slopes]


def clipped_norm(slopes: Sequence[Node], most: float) -> list[Node]:
    """Return the slopes times one factor, at most 1, with which the norm of all elements together is at most `most`."""
    squares = [atomic.sum(slope * slope) for slope in slopes]
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    factor = minimum(most / (atomic.sqrt(total) + 1e-6), 1.0)
    return [slope * factor for slope in slopes]
