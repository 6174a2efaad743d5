"""profile: what to measure next for a graph, and doing it within a budget. Resumable: every row is stored as soon as it is known.

Priority: share of the plan's time first. What has a row is not measured again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.profiling.judge import Judge, environment_of, timed_workload, verify_workload
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Question:
    """How long does this kernel take for this signature at these dims? worth: seconds of the plan that hang on it."""

    kernel: Kernel
    signature: Signature
    binding: Mapping[str, int]
    worth: float


@dataclass
class ProfileReport:
    """What one profiling run did."""

    measured: int = 0
    already_known: int = 0
    failed: int = 0
    left: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False


def unanswered(database: Database, questions: Sequence[Question], verifier: str) -> list[Question]:
    """The questions that have no time on file here and whose kernel was not refuted, worth most first, each once."""
    backends = {q.kernel.backend for q in questions}
    known = {b: queries.latest_traces(database, environment_of(b), "cold", verifier=verifier) for b in backends}
    out: dict[tuple[str, str], Question] = {}
    for q in sorted(questions, key=lambda q: -q.worth):
        key = (q.kernel.identity, timed_workload(q.signature, q.binding).key)
        row = known[q.kernel.backend].get(key)
        if row is None:
            out.setdefault(key, q)
    return list(out.values())


def answer(judge: Judge, questions: Sequence[Question], *, budget: float, baseline: Callable[[Signature], Kernel | None],
           seconds_per_kernel: float = 0.25) -> Iterator[tuple[Question, str]]:
    """Measure question after question until the budget (seconds) is spent; yields each with its status as it is stored.

    Every time is stored beside the plain kernel's time of the same run, when there is a plain kernel.
    """
    started = time.perf_counter()
    plain_times: dict[tuple[str, tuple[tuple[str, int], ...]], tuple[str, float] | None] = {}
    verified = {k for b in {q.kernel.backend for q in questions} for k in queries.latest_traces(judge.database, environment_of(b))}
    # questions of one signature in a row: the oracle's answer and the big operands are then made once
    rank: dict[str, int] = {}
    for q in questions:
        rank.setdefault(q.signature.key, len(rank))
    for q in sorted(questions, key=lambda q: rank[q.signature.key]):
        if time.perf_counter() - started > budget:
            return
        new = (q.kernel.identity, verify_workload(q.signature).key) not in verified
        verdict = judge.examine(q.kernel, q.signature, q.binding, time_at=q.binding, budget=seconds_per_kernel, verify=new)
        key = (q.signature.key, tuple(sorted(q.binding.items())))
        if key not in plain_times and verdict.status == "PASSED":
            plain = baseline(q.signature)
            plain_times[key] = None
            if plain is not None and plain is not q.kernel:
                other = judge.examine(plain, q.signature, q.binding, time_at=q.binding, budget=seconds_per_kernel / 2, verify=False)
                if other.status == "PASSED" and other.samples:
                    plain_times[key] = (plain.name, sorted(other.samples)[len(other.samples) // 2])
        if new or verdict.status != "PASSED":
            judge.record(q.kernel, q.signature, verdict, None)
            verified.add((q.kernel.identity, verify_workload(q.signature).key))
        judge.record(q.kernel, q.signature, verdict, q.binding, plain_times.get(key))
        yield q, verdict.status
