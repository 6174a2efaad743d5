"""in_turns: how benchmarks time things next to each other in one process: in turns, with cold and with hot operands.

Before each turn the threads that others left spinning fall asleep, and twice the last-level cache is read. Then it runs on other
operands, so that code and activations are warm and threads awake, and then on its own, which are cold: that run counts as cold,
and the next one, on the same operands, as hot. On a machine that others use low quantiles say more than medians: neighbours only
add time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensor_graphs.measure.timing.bench import LLC_BYTES
from tensor_graphs.measure.timing.settle_threads import settle, warm_up

FLUSHED = 2 * LLC_BYTES
"""bytes read before each turn"""

LOW = 0.1
"""the quantile that stands for an undisturbed run"""


def flushing() -> np.ndarray:
    """What is read before each turn."""
    return np.ones(FLUSHED // 4, np.float32)


class Timed:
    """Something that runs: `warm` on other operands than `cold`. samples, hot: seconds of its cold and of its hot runs."""

    def __init__(self, warm: Callable[[], Any], cold: Callable[[], Any]) -> None:
        self.run_warm, self.run_cold = warm, cold
        self.samples: list[float] = []
        self.hot: list[float] = []

    def turn(self, cache: np.ndarray) -> None:
        """One turn; see the module's docstring."""
        settle()
        cache.sum()
        warm_up(self.run_warm)
        for samples in (self.samples, self.hot):
            began = time.perf_counter()
            self.run_cold()
            samples.append(time.perf_counter() - began)

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.samples, [0.25, 0.75])
        return float(low), float(high)

    @property
    def low(self) -> float:
        """Seconds of an undisturbed cold run."""
        return float(np.quantile(self.samples, LOW))

    @property
    def low_hot(self) -> float:
        """Seconds of an undisturbed hot run."""
        return float(np.quantile(self.hot, LOW))


def in_turns(everyone: Sequence[Timed], rounds: int, cache: np.ndarray) -> None:
    """So many turns of each, there and back, so that none always follows the same one."""
    for number in range(rounds):
        for each in everyone if number % 2 else reversed(everyone):
            each.turn(cache)
