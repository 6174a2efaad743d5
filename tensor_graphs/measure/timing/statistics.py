"""statistics: median, spread and confidence interval of a list of times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 64
"""samples of one kind that are stored at most"""


@dataclass(frozen=True)
class Summary:
    """Statistics of samples. spread = (p75 − p25) / median; low, high: bounds of all runs' median with this confidence."""

    median: float
    spread: float
    low: float
    high: float
    confidence: float

    def to_json(self, factor: float = 1.0) -> dict[str, Any]:
        return {"median": self.median * factor, "spread": self.spread, "low": self.low * factor, "high": self.high * factor,
                "confidence": self.confidence}


def summarise(samples: Sequence[float], wanted: float = 0.99) -> Summary:
    """Summarise at least one sample. The interval is that of order statistics, free of assumptions about the distribution: the k-th
    smallest and the k-th largest of n samples enclose the median with probability 1 − 2·P(Binomial(n, 1/2) < k); k is the largest
    that still gives `wanted`. With fewer than eight samples even the extremes give less than 0.99; `confidence` has the value."""
    if not samples:
        raise ValueError("no samples to summarise")
    ordered = sorted(samples)
    n = len(ordered)
    below, k = 0.5 ** n, 1                                          # P(Binomial < k), as long as it is small enough
    term = below
    while k < (n + 1) // 2:
        term *= (n - k + 1) / k
        if 1 - 2 * (below + term) < wanted:
            break
        below += term
        k += 1
    middle = statistics.median(ordered)
    spread = 0.0
    if n > 1 and middle:
        lower, _, upper = statistics.quantiles(ordered, n=4, method="inclusive")
        spread = (upper - lower) / middle
    return Summary(middle, spread, ordered[k - 1], ordered[n - k], max(0.0, 1 - 2 * below))


WINDOWS = 16
"""number of consecutive pieces into which many samples are divided"""


def drifting(samples: Sequence[T], middle: Callable[[Sequence[T]], float]) -> Summary:
    """Summarise at least one sample, given in the order of measurement. median: middle(samples). Disturbed runs are not
    independent, so interval and spread are those of the middles of WINDOWS pieces (of single samples, where there are few)."""
    size = 1 if len(samples) < 2 * WINDOWS else math.ceil(len(samples) / WINDOWS)
    pieces = summarise([middle(samples[at:at + size]) for at in range(0, len(samples), size)])
    whole = middle(samples)
    return replace(pieces, median=whole, low=min(pieces.low, whole), high=max(pieces.high, whole))


def thinned(samples: Sequence[T], most: int = MOST) -> list[T]:
    """Return at most `most` of the samples, evenly chosen, in order."""
    if len(samples) <= most:
        return list(samples)
    return [samples[math.floor(i * len(samples) / most)] for i in range(most)]
