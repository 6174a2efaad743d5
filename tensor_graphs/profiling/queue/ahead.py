"""ahead: what a profile takes beside its budget: an estimate before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tensor_graphs.costs.roofline import work
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.profiling.queue.questions import PER_KERNEL, Question

COMPARING, ORACLE_RATE = 0.5, 1e8
"""Rough constants, from logs of a busy server with two cores: seconds that comparing a kernel with the oracle takes on small
operands, and bytes per second that a comparison reads."""

SEARCH = 1.5
"""times the seconds until the first questions are known that finding all of them takes, about"""


@dataclass(frozen=True)
class Ahead:
    """device: seconds that measuring the device's constants takes, about; 0 where they are known. search: seconds that finding out
    what to measure takes, about; 0 where that is under a second. never_compared: how many kernels
    of the plan have no verdict of the oracle; comparing: seconds that this takes, about. beyond: seconds by which comparing and
    timing the plan's kernels may exceed the budget."""

    device: float = 0.0
    search: float = 0.0
    never_compared: int = 0
    comparing: float = 0.0
    beyond: float = 0.0

    def __str__(self) -> str:
        """
        >>> print(Ahead(3.0, 0.0, 41, 31.2, 10.0))
        first use here: measuring the device takes about 3 s; 41 kernels were never compared with the oracle: about 31 s, 10 s of \
these beyond the budget
        >>> print(Ahead(0.0, 6.2, 1, 0.5, 0.0))
        finding out what to measure takes about 6 s; 1 kernel was never compared with the oracle: about 1 s, within the budget
        """
        device = f"first use here: measuring the device takes about {_seconds(self.device)}" if self.device else ""
        search = f"finding out what to measure takes about {_seconds(self.search)}" if self.search else ""
        kernels = "1 kernel was" if self.never_compared == 1 else f"{self.never_compared} kernels were"
        over = f"{_seconds(self.beyond)} of these beyond the budget" if self.beyond else "within the budget"
        compared = f"{kernels} never compared with the oracle: about {_seconds(self.comparing)}, {over}"
        timed = f"the plan's kernels may take {_seconds(self.beyond)} beyond the budget" if self.beyond else ""
        return "; ".join(filter(None, (device, search, compared if self.never_compared else timed)))


def _seconds(seconds: float) -> str:
    return f"{max(1, round(seconds))} s"


def comparing_seconds(signature: Signature, binding: Mapping[str, int]) -> float:
    """Estimate of how long comparing one kernel with the oracle takes."""
    moved, _ = work(signature, tuple(sorted((n, int(binding[n])) for n in signature.dim_names)))
    return COMPARING + moved / ORACLE_RATE


def question_seconds(question: Question, compared: Set[tuple[str, str]], per_kernel: float | None) -> tuple[float, float]:
    """Estimates of how long a question takes: comparing its kernel, unless its verdict is among those `compared`; timing it."""
    fresh = question.verdict_key not in compared
    return (comparing_seconds(question.signature, question.binding) if fresh else 0.0,
            PER_KERNEL if per_kernel is None else per_kernel)


def ahead_of(questions: Sequence[Question], compared: Set[tuple[str, str]], per_kernel: float | None, *, device: float,
             searched: float, budget: float, most: float) -> Ahead:
    """What answering these questions takes beside `budget` [s]: `most` seconds at most. device: as in `Ahead`. searched: seconds
    that finding the first questions took."""
    comparing, timing = map(sum, zip((0.0, 0.0), *(question_seconds(q, compared, per_kernel) for q in questions), strict=True))
    never = len({q.verdict_key for q in questions} - compared)
    search = SEARCH * searched
    return Ahead(device, search if search >= 1.0 else 0.0, never, comparing, min(most, max(0.0, comparing + timing - budget)))
