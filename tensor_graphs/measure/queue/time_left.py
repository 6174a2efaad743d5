"""time_left: estimates, before anything is measured, how much time a profile takes in addition to its budget."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass

from tensor_graphs.costs.roofline import work
from tensor_graphs.measure.queue.next_measurements import COMPARING, PER_KERNEL, Question

ORACLE_RATE, SEARCH = 1e8, 2.5
"""bytes per second that a comparison reads (logs of two cores); time to find all questions, relative to that for the first"""


@dataclass(frozen=True)
class Ahead:
    """Estimate. budget: seconds for measuring. device: seconds for the device's constants; 0 where they are known. search: seconds
    to find what to measure; 0 where under a second. never_compared: kernels of the plan without a verdict of the oracle; comparing:
    seconds for these. beyond: seconds by which comparing and timing the plan's kernels may exceed the budget."""

    budget: float = 0.0
    device: float = 0.0
    search: float = 0.0
    never_compared: int = 0
    comparing: float = 0.0
    beyond: float = 0.0

    @property
    def total(self) -> float:
        """Approximate seconds from beginning to end if the entire budget is spent."""
        return self.budget + self.device + self.search + self.beyond

    def __str__(self) -> str:
        """
        >>> print(Ahead(15.0, 3.0, 0.0, 41, 31.2, 10.0))
        takes up to about 28 s: 15 s measuring, 3 s for the constants of this device (first use here), 10 s for the plan's kernels \
beyond the budget; 41 kernels were never compared with the oracle: about 31 s of this
        >>> print(Ahead(60.0, 0.0, 6.2, 1, 0.5, 0.0))
        takes up to about 66 s: 60 s measuring, 6 s finding out what to measure; 1 kernel was never compared with the oracle: \
about 1 s of this
        """
        further = [f"{_seconds(seconds)} {what}" for seconds, what in (
            (self.device, "for the constants of this device (first use here)"),
            (self.search, "finding out what to measure"),
            (self.beyond, "for the plan's kernels beyond the budget")) if seconds]
        total = f"takes up to about {_seconds(self.total)}: {_seconds(self.budget)} measuring" if self.total < math.inf else "takes"
        kernels = "1 kernel was" if self.never_compared == 1 else f"{self.never_compared} kernels were"
        compared = f"{kernels} never compared with the oracle: about {_seconds(self.comparing)} of this"
        return "; ".join([*([", ".join((total, *further))] if further else []), *([compared] if self.never_compared else [])])


class Pace:
    """Load of the machine: wall seconds per processor second of this process, since the object was created."""

    def __init__(self) -> None:
        self._started, self._worked = time.perf_counter(), _worked()

    @property
    def seconds(self) -> float:
        """Wall seconds since the object was created."""
        return time.perf_counter() - self._started

    @property
    def slowdown(self) -> float:
        """Factor of slowdown: 1 on an idle machine, 2 where another process has half of the time."""
        worked = _worked() - self._worked
        return max(1.0, self.seconds / worked) if worked > 0.0 else 1.0


def _worked() -> float:
    """Return the processor seconds of this process and of children that it has waited for (compilers)."""
    return sum(os.times()[:4])


def _seconds(seconds: float) -> str:
    return f"{max(1, round(seconds))} s"


def question_seconds(question: Question, compared: Set[tuple[str, str]], per_kernel: float | None) -> tuple[float, float]:
    """Return estimated seconds: for comparing the question's kernel (0 if its verdict is in `compared`), and for timing it."""
    comparing, signature = 0.0, question.signature
    if question.verdict_key not in compared:
        moved, _ = work(signature, tuple(sorted((n, int(question.binding[n])) for n in signature.dim_names)))
        comparing = COMPARING + moved / ORACLE_RATE
    return comparing, PER_KERNEL if per_kernel is None else per_kernel


def ahead_of(questions: Sequence[Question], compared: Set[tuple[str, str]], per_kernel: float | None, *, device: float,
             pace: Pace, budget: float, apart: float, most: float) -> Ahead:
    """Return an estimate of what answering these questions takes in addition to `budget` [s], at most `most` seconds. apart:
    seconds of the budget for single kernels. device: as in `Ahead`. pace: created when the search for the questions began."""
    alone, timing = map(sum, zip((0.0, 0.0), *(question_seconds(q, compared, per_kernel) for q in questions), strict=True))
    comparing, search = alone * pace.slowdown, SEARCH * pace.seconds
    never = len({q.verdict_key for q in questions} - compared)
    return Ahead(budget, device * pace.slowdown, search if search >= 1.0 else 0.0, never, comparing,
                 min(most, max(0.0, comparing + timing - apart)))
