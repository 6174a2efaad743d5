"""deferred_measure: functions of `measure`, imported only when `choice` needs a measurement.

A plan whose kernels have verdicts in the database runs without them: the judge and its workers are a sixth of the package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.costs.roofline import DeviceRates
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.phase_times import phase
from tensor_graphs.records.database import Database
from tensor_graphs.records.logs import reason_of

if TYPE_CHECKING:
    from tensor_graphs.measure.judge import Judge


def open_judge(database: Database, threads: int | None, rates: DeviceRates | None) -> Judge:
    """Open a judge that stores its verdicts in the database; the caller closes it. threads: threads of kernels (None: the default).
    rates: of this device."""
    from tensor_graphs.measure.judge import Judge

    return Judge(database, threads=threads, rates=rates)


@phase("verify")
def foresee(judge: Judge, pending: Sequence[tuple[Kernel, Signature, Mapping[str, int]]], enough: Callable[[], bool]) -> None:
    """Have the oracle compute results that comparisons will need, until `enough` returns True."""
    from tensor_graphs.measure.judge import JudgeTask

    judge.foresee([JudgeTask(*question) for question in pending], enough)


def compare_all(judge: Judge, pending: Sequence[tuple[Kernel, Signature, Mapping[str, int]]],
                progress: Callable[[str], None], until: float = float("inf")) -> dict[tuple[str, str], str]:
    """Compare kernels with the oracle at the given sizes and store the verdicts. until: on the clock of time.perf_counter. Return
    the comparisons in which the judge itself failed, so that nothing is stored: (identity, signature key) -> why."""
    from tensor_graphs.measure.comparison_pipeline import compare
    from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
    from tensor_graphs.measure.judge import JudgeTask

    failed: dict[tuple[str, str], str] = {}
    with closing(compare(judge, [JudgeTask(*question) for question in pending])) as verdicts:
        for i, (asked, verdict) in enumerate(verdicts):
            progress(f"compared {asked.kernel.name} with the oracle ({i + 1} of {len(pending)}): {asked.signature.title()}")
            judge.record(asked.kernel, asked.signature, verdict, None)
            if verdict.status == JUDGE_ERROR:
                failed[asked.kernel.identity, asked.signature.key] = reason_of(verdict.log)
            if time.perf_counter() >= until:
                break
    return failed


def may_have_been_disturbed() -> bool:
    """Return whether measurements on this machine record if other load disturbed them."""
    from tensor_graphs.measure.timing.noise_reference import waits_for_quiet

    return waits_for_quiet()


def calibrate(database: Database, backends: Sequence[str], threads: int | None) -> None:
    """Store the device rates that first estimates need, where none are in the database (measure/rates/calibration.py)."""
    if known_rates(database, backends, threads) is None:
        from tensor_graphs.measure.rates import calibration

        calibration.calibrate(database, backends, threads)
