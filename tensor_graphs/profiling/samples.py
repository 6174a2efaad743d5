"""samples: what a list of times says: median, spread, and how sure the median is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 64
"""samples that are kept of one kind"""


@dataclass(frozen=True)
class Summary:
    """median; spread = (p75 − p25) / median; low, high: with the stated confidence the median of all runs lies in between."""

    median: float
    spread: float
    low: float
    high: float
    confidence: float

    def to_json(self, factor: float = 1.0) -> dict[str, Any]:
        return {"median": self.median * factor, "spread": self.spread, "low": self.low * factor, "high": self.high * factor,
                "confidence": self.confidence}


def summarise(samples: Sequence[float], wanted: float = 0.99) -> Summary:
    """Of at least one sample.

    The interval is that of order statistics, free of assumptions about the distribution: the k-th smallest and the k-th largest of
    n samples enclose the median with probability 1 − 2·P(Binomial(n, 1/2) < k); k is the largest that still gives what is wanted.
    With fewer than eight samples even the extremes give less than 0.99, and `confidence` says how much.
    """
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


def thinned(samples: Sequence[T], most: int = MOST) -> list[T]:
    """At most so many of them, evenly chosen, in order."""
    if len(samples) <= most:
        return list(samples)
    return [samples[math.floor(i * len(samples) / most)] for i in range(most)]
