"""aggregate: computes a kernel's time from blocks of runs, of one worker or several.

Disturbances only make runs slower, so undisturbed runs count (QUIET), where there are enough. A worker's memory layout affects all
its runs, so all workers have equal weight, whatever their numbers of quiet runs."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tensor_graphs.measure.isolation.replies import Name
from tensor_graphs.measure.timing.noise_reference import FEW_QUIET, QUIET, STILL, level_of, waits_for_quiet
from tensor_graphs.measure.timing.statistics import drifting, thinned
from tensor_graphs.measure.timing.timed_batch import WARM_UP, Block

FAST = 0.05
"""share of quiet runs below the quantile that is compared between days"""

Workers = Sequence[Sequence[Block]]
"""blocks of each worker"""


@dataclass(frozen=True)
class Run:
    """Timed run that counts: its seconds, and those of the reference stream before it; quiet: it was undisturbed. weight: each
    worker's runs weigh 1 together, or less where they are few."""

    seconds: float
    reference: float
    quiet: bool
    weight: float


@dataclass(frozen=True)
class Aggregate:
    """Times of a kernel. level: undisturbed seconds of the reference stream; cold, plain: seconds of the kernel and of the plain
    path; timing: stored facts (docs/profiling.md lists the keys)."""

    level: float
    cold: tuple[float, ...]
    plain: tuple[float, ...]
    timing: dict[str, Any]


def aggregate(workers: Workers) -> Aggregate:
    """Aggregate the blocks of at least one worker; each has blocks of every name, except "plain", which one of them may have."""
    level = level_between(workers)
    counting = {name: runs_that_count(workers, name, level) for name in ("cold", "plain", "hot")}
    cold, plain, hot = (tuple(run.seconds for run in thinned(runs)) for runs in counting.values())
    stillest = runs_that_count(workers, "cold", level, (STILL, QUIET))
    quiet = all(run.quiet for run in stillest)
    blocks = [b for worker in workers for b in worker]
    return Aggregate(level, cold, plain, {
        "cold": drifting(counting["cold"], _seconds).to_json(1e3),
        "hot": {**drifting(counting["hot"], _seconds).to_json(1e3), "samples": [s * 1e3 for s in hot]},
        "reference": drifting(counting["cold"], _reference).to_json(1e3),
        "over_reference": {**drifting(stillest, _over_quiet if quiet else _over).to_json(),
                           "quiet": quiet if waits_for_quiet() else None},
        "wall": {"seconds": sum(b.wall for b in blocks), "counted": sum(b.counted for b in blocks),
                 "runs": sum(len(b.calls) for b in blocks), "processes": len(workers)}})


def level_between(workers: Workers) -> float:
    """Return the undisturbed seconds of the reference stream between cold runs now: a tenth of the blocks are faster. Not their
    minimum, which falls with the number of blocks, and not that of hot runs, between which caches keep more."""
    return level_of([level_of(b.reference) for blocks in workers for b in blocks if b.name == "cold"])


def runs_that_count(workers: Workers, name: Name, level: float, bounds: Sequence[float] = (QUIET,)) -> list[Run]:
    """Return the runs of this name, after the warm-up, that were quiet by the first of these bounds with enough of them, or all."""
    for bound in bounds:
        runs, quiet = [], []
        for blocks in workers:
            claimed = [run for b in blocks if b.name == name
                    for run in list(zip(b.seconds(), b.reference, b.quiet(level, bound), strict=True))[WARM_UP:]]
            calm = [run for run in claimed if run[2]]
            runs += [Run(*run, 1 / len(claimed)) for run in claimed]
            quiet += [Run(*run, 1 / max(len(calm), FEW_QUIET)) for run in calm]
        if len(quiet) >= FEW_QUIET:
            return quiet
    return runs


def found_quiet(workers: Workers) -> int:
    """Return how many of these workers timed the kernel undisturbed: in enough runs, or in half of its runs."""
    level = level_between(workers)
    quiet = [[run.quiet for run in runs_that_count([blocks], "cold", level)] for blocks in workers]
    return sum(sum(flags) >= min(FEW_QUIET, len(flags) / 2) for flags in quiet)


def _seconds(runs: Sequence[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def _reference(runs: Sequence[Run]) -> float:
    return statistics.median(run.reference for run in runs)


def _over_quiet(runs: Sequence[Run]) -> float:
    """Return the quantile FAST of the runs over that of their references, for nearly undisturbed runs: what disturbance is left
    slows down the two differently. (The same kernels in six quiet processes, drawn from two profiles next to a neighbour: 98 of 100
    pairs agree within 5 %; 95 with a fifth for FAST, and 89 with five processes.)"""
    return _fast([(run.seconds, run.weight) for run in runs]) / _fast([(run.reference, run.weight) for run in runs])


def _fast(weighed: Sequence[tuple[float, float]]) -> float:
    """Return the value below which the share FAST of the weight is, at least one value."""
    ordered = sorted(weighed)
    below = list(accumulate(weight for _, weight in ordered))
    return ordered[bisect_left(below, FAST * below[-1])][0]


def _over(runs: Sequence[Run]) -> float:
    """Return the median ratio of each run to the reference before it, which was disturbed as the run was."""
    return statistics.median(run.seconds / run.reference for run in runs)
