"""requests: what was asked for and not yet measured. A plan that rests on a guess leaves a request; `drain_queue` answers them.

A request names an implementation and a workload; the workload's graph lies in the database as text, so that another process, days
later, can build the question again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensor_graphs.arguments import function
from tensor_graphs.costs.filing import FIXED, VERIFIER, environment_of
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.one_op import signature_of_graph
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, by_op, kernel_named, matching, why_missing
from tensor_graphs.language.text import parse_graph
from tensor_graphs.profiling.distrust.replies import JUDGE_ERROR
from tensor_graphs.profiling.measure.descriptors import InputError, given_of
from tensor_graphs.profiling.measure.judge import Judge
from tensor_graphs.profiling.queue.questions import Question, answer, unanswered
from tensor_graphs.records import claims, queries, upkeep
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import QueueItem

log = logging.getLogger(__name__)

@dataclass
class DrainReport:
    """What one `drain_queue` did. answered: requests that had their rows already; impossible: put back, with the reason."""

    measured: int = 0
    failed: int = 0
    answered: int = 0
    obsolete: int = 0
    impossible: int = 0
    left: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True)
class Waiting:
    """What a queue still holds that may be claimed. seconds: of plans that are in doubt, as they rest on guesses instead."""

    requests: int
    seconds: float


class Obsolete(KernelError):
    """A request that can never be answered: its kernel has another source by now, or no longer accepts the op."""


def question_of(database: Database, item: QueueItem) -> Question:
    """The question behind a request. Raises Obsolete, KernelError when this process does not know the kernel, or InputError."""
    text, _ = queries.graph_text(database, item.workload.graph_key)
    signature = signature_of_graph(parse_graph(text))
    if signature.key != item.workload.graph_key:
        raise Obsolete(f"the graph {item.workload.graph_key[:12]} reads as {signature.key[:12]} today")
    kernel = kernel_named(item.implementation.name)
    if kernel.identity != item.implementation.source_hash:
        raise Obsolete(f"{kernel.name} has another source than the one asked for")
    if not matching(signature.spec, by_op([kernel])):
        raise Obsolete(f"{kernel.name} does not accept {signature.title()}")
    axes = {n: v for n, v in item.workload.axes.items() if n != FIXED or signature.dim_names}
    return Question(kernel, signature, signature.binding(axes), item.priority, given_of(item.workload.inputs))


def drain_queue(database: Database, *, budget: float = 60.0, backends: Sequence[str] | None = None, threads: int | None = None,
                timeout: float | None = None, on_step: Callable[[int, Waiting, str], None] | None = None) -> DrainReport:
    """Answer the requests of these backends' environments on this machine, most urgent first, until the budget [s] is spent.

    A request is claimed, measured, stored and taken off, one after the other: whatever stops this process, no request is lost, and
    several processes may drain one database. Ctrl-C gives back what was claimed. on_step is told how many were measured, what is
    left in the queue, and what the last one was. Raises ArgumentError.
    """
    function("on_step", on_step, "how many are done, what waits, and what was measured")
    started = time.perf_counter()
    report = DrainReport()
    worker = worker_name()
    reclaim(database)
    here = [b for b in (backends or DEFAULT_BACKENDS) if why_missing(b) is None]
    returned: list[tuple[QueueItem, str]] = []
    with claims.renewing(database) as held, Judge(database, timeout=timeout, threads=threads) as judge:
        for backend in here:
            environment = environment_of(backend, threads)
            while time.perf_counter() - started < budget:
                item = claims.claim_next(database, worker, environment)
                if item is None:
                    break
                held.append(item)
                try:
                    status = _serve(database, judge, item)
                except KeyboardInterrupt:
                    claims.release(database, item)
                    report.interrupted = True
                    break
                except (KernelError, InputError) as e:
                    if isinstance(e, Obsolete):
                        held.remove(item)
                        claims.complete(database, item)
                        report.obsolete += 1
                    else:                                          # put back at the end: released now, it would be claimed next
                        returned.append((item, str(e)))
                    log.info("request %d is not answered: %s", item.id, e)
                    continue
                except BaseException:
                    claims.release(database, item, "the drain stopped at it")
                    raise
                if status == JUDGE_ERROR:                           # no row answers it
                    returned.append((item, "the judge itself failed, as its log says"))
                    continue
                held.remove(item)
                claims.complete(database, item)
                if status is None:
                    report.answered += 1
                    continue
                report.statuses[status] = report.statuses.get(status, 0) + 1
                report.measured += status == "PASSED"
                report.failed += status != "PASSED"
                if on_step is not None:
                    on_step(report.measured + report.failed, Waiting(*claims.waiting(database, environment)),
                            f"{item.implementation.name} {item.reason}")
            if report.interrupted:
                break
        for item, why in returned:
            held.remove(item)
            claims.release(database, item, why)
    report.impossible = len(returned)
    report.left = upkeep.stats(database).waiting
    report.seconds = time.perf_counter() - started
    return report


def _serve(database: Database, judge: Judge, item: QueueItem) -> str | None:
    """Measure what one request asks for; the status, or None when its rows were there already, or another worker has claimed it."""
    question = question_of(database, item)
    todo = unanswered(database, [question], VERIFIER, judge.threads)
    found = [status for _, status in answer(judge, todo, budget=float("inf"),
                                            lost=lambda: not claims.renew(database, item))]
    return found[-1] if found else None


def settle_queue(database: Database, backends: Sequence[str], threads: int | None = None) -> int:
    """Take the requests off the queue that have their rows by now; returns how many. The others are left as they were."""
    worker = worker_name()
    kept: list[QueueItem] = []
    done = 0
    for backend in backends:
        environment = environment_of(backend, threads)
        rows = queries.latest_traces(database, environment, "cold", verifier=VERIFIER)
        while (item := claims.claim_next(database, worker, environment)) is not None:
            verdict = rows.get((item.implementation.source_hash, verify_key(item)))
            refuted = verdict is not None and (verdict.status != "PASSED" or verdict.refuted)
            if refuted or (item.implementation.source_hash, item.workload.key) in rows:
                claims.complete(database, item)
                done += 1
            else:
                kept.append(item)
    for item in kept:
        claims.release(database, item)
    return done


def verify_key(item: QueueItem) -> str:
    """The key of the workload under which the verdict over all sizes is filed."""
    return type(item.workload)(item.workload.graph_key).key


def worker_name() -> str:
    """Who claims: host, process and when that was started, and a number, so that a claim is never mistaken for another one's."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}:{time.monotonic_ns()}"


def reclaim(database: Database) -> int:
    """Put back what processes of this machine hold that are gone (killed, say): their leases need not run out first. How many."""
    done = 0
    for name in claims.claimants(database):
        *host, process, started, _ = ["", "", "", *name.split(":")]
        if ":".join(host[3:]) == socket.gethostname() and process.isdigit() and _started(int(process)) != started:
            done += claims.release_worker(database, name)
            log.info("%s is gone; what it had claimed is free again", name)
    return done


def _started(process: int) -> str:
    """When a process was started, in clock ticks since the machine was; "gone" for none, "" where the system does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return "gone" if Path("/proc/self/stat").exists() else ""
    except OSError:
        return ""
    return text[text.rindex(")") + 2:].split()[19]
