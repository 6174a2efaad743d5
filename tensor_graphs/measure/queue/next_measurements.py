"""next_measurements: chooses what to measure next for a graph, and measures it within a budget. Every row is stored at once.

Priority: share of the plan's time × its uncertainty. A question that has a row is repeated only for a given reason."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.costs.database_keys import VERIFIER, environment_of, timing_key, verdict_key
from tensor_graphs.kernels.kernel import Kernel, make_together
from tensor_graphs.kernels.kernel_origin import out_of_reach
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.judge import PROCESS_SECONDS, Judge, JudgeTask
from tensor_graphs.measure.points.input_descriptors import Given
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.logs import reason_of
from tensor_graphs.records.measurements import KnownTime
from tensor_graphs.records.rows import REFUTING

log = logging.getLogger(__name__)

TRIES = 2
"""failures of a kernel that never passed which a busy machine may explain; after these, no profile measures it again"""

PER_KERNEL, COMPARING = 0.25, 1.0
"""default seconds of timed runs for one kernel; seconds to compile and compare it on small operands (from logs of two cores)"""

AHEAD = 16
"""number of questions whose kernels are compiled together before the first is examined; fewer if the budget is small"""

SEVERAL, LEAST_EACH = 40, 0.05
"""number of questions among which a budget is divided at least, as long as each then gets LEAST_EACH seconds"""


@dataclass(frozen=True)
class Question:
    """Kernel to time for a signature at these dims. worth: share of the plan's time that the answer may save. given: operands whose
    values come from descriptors. again: reason to repeat it although there is a row; "" without."""

    kernel: Kernel
    signature: Signature
    binding: Mapping[str, int]
    worth: float
    given: Given = ()
    again: str = ""

    @property
    def verdict_key(self) -> tuple[str, str]:
        """Key of the kernel's verdict over all sizes."""
        return verdict_key(self.kernel, self.signature)


def verified(database: Database, backends: Iterable[str], threads: int | None) -> set[tuple[str, str]]:
    """Return the keys of verdicts in this environment for kernels of these backends; without those that may pass if repeated."""
    return {key for b in backends
            for key, row in queries.latest_traces(database, environment_of(b, threads), verifier=VERIFIER).items()
            if not may_pass_later(row)}


def question_key(q: Question) -> tuple[str, str]:
    """Return a key that equal questions share: of the code and the workload."""
    return timing_key(q.kernel, q.signature, q.binding, q.given)


def may_pass_later(row: KnownTime | None) -> bool:
    """Return whether a busy machine may explain a kernel's failure: it has passed before, or has not failed too often."""
    busy = row is not None and row.status in ("TIMEOUT", "IMPLAUSIBLE") and not row.refuted
    return row is not None and busy and (row.passed or row.failures < TRIES)


def unanswered(database: Database, questions: Sequence[Question], verifier: str, threads: int | None = None) -> list[Question]:
    """Return the questions without a row (a time or a failure) in this environment, or with a reason to repeat, whose kernel is not
    refuted; each once, the most valuable first."""
    backends = {q.kernel.backend for q in questions}
    traces = {b: queries.latest_traces(database, environment_of(b, threads), "cold", verifier=verifier) for b in backends}
    out: dict[tuple[str, str], Question] = {}
    for q in sorted(questions, key=lambda q: -q.worth):
        rows = traces[q.kernel.backend]
        verdict = rows.get(q.verdict_key)
        failed = verdict is not None and (verdict.status != "PASSED" or verdict.refuted)
        failed = failed and not (q.again and may_pass_later(verdict))
        if (q.again or question_key(q) not in rows) and not failed and out_of_reach(q.kernel) is None:
            out.setdefault(question_key(q), q)
    return list(out.values())


def answer(judge: Judge, questions: Sequence[Question], *, budget: float, per_kernel: float | None = None,
           at_least: int = 0, unless: Callable[[Question], bool] | None = None,
           lost: Callable[[], bool] = lambda: False) -> Iterator[tuple[Question, str]]:
    """Measure questions until the budget (seconds) is spent and `at_least` this many are answered; yield each with its status as
    soon as it is stored. Kernels of one signature that are measured in several processes are interleaved; if the budget ends
    meanwhile, each has been measured in one process at least.

    per_kernel: seconds of timed runs for each; by default PER_KERNEL, or less if few questions would use up the budget. unless:
    predicate of questions to skip when their time comes. lost: returns whether another process has taken over; then nothing more is
    stored or measured. Every time is stored with the plain path's time of the same run, if any."""
    started = time.perf_counter()
    seconds = min(PER_KERNEL, max(LEAST_EACH, budget / SEVERAL)) if per_kernel is None else per_kernel
    compared = verified(judge.database, {q.kernel.backend for q in questions}, judge.threads)
    refuted: set[tuple[str, str]] = set()
    # questions of one signature in a row: the oracle's answer and the big operands are then made once
    of: dict[str, list[Question]] = {}
    for q in questions:
        of.setdefault(q.signature.key, []).append(q)
    groups = [group for qs in of.values() for group in ([qs] if seconds >= 2 * PROCESS_SECONDS else [[q] for q in qs])]
    done, ahead = 0, 0
    broken: dict[tuple[str, str], tuple[str, str]] = {}
    """verdict key -> (status, reason) of failures that are not stored: a failure of a compiler or the judge may not recur"""
    while groups:
        left = started + budget - time.perf_counter()
        if done >= at_least and left < 0:
            return
        if not ahead:
            ahead = max(1, int(min(AHEAD, left / COMPARING)))
            soon = [q for group in groups[:ahead] for q in group]
            whys = make_together([(q.kernel, q.signature.spec) for q in soon])
            broken |= {q.verdict_key: ("COMPILE_ERROR", why) for q, why in zip(soon, whys, strict=True) if why is not None}
        ahead -= 1
        # only as many as there is time for: each is compared before any is timed, and a long group would use up a small budget
        count = int(min(len(groups[0]), max(1.0, left / max(seconds, PROCESS_SECONDS))))
        group, rest = groups[0][:count], groups[0][count:]
        groups[:1] = [rest] if rest else []
        done += len(group)
        yield from ((q, "REFUTED") for q in group if q.verdict_key in refuted)
        for q in group:
            if q.verdict_key in broken:
                status, why = broken[q.verdict_key]
                log.warning("%s is left out for %s: %s", q.kernel.name, q.signature.title(), why)
                yield q, status
        todo = [q for q in group
                if q.verdict_key not in refuted and q.verdict_key not in broken and not (unless is not None and unless(q))]
        new = [q.verdict_key not in compared for q in todo]
        asked = [JudgeTask(q.kernel, q.signature, q.binding, q.binding, fresh, q.given) for q, fresh in zip(todo, new, strict=True)]
        verdicts = judge.examine_interleaved(asked, budget=seconds, until=started + budget)
        if lost():
            return
        for q, fresh, verdict in zip(todo, new, verdicts, strict=True):
            if verdict.status == JUDGE_ERROR:
                broken[q.verdict_key] = JUDGE_ERROR, reason_of(verdict.log)
            elif fresh or verdict.status == "INCORRECT_NUMERICAL" or verdict.status in REFUTING:
                # the verdict over all sizes; a time-out, a crash or an implausible time at one size stays with that size
                judge.record(q.kernel, q.signature, verdict, None)
                compared.add(q.verdict_key)
                if verdict.status != "PASSED":
                    refuted.add(q.verdict_key)
            judge.record(q.kernel, q.signature, verdict, q.binding, q.given)
            yield q, verdict.status
