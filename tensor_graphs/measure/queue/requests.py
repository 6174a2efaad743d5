"""requests: answers requests for measurements. A plan whose costs are estimates leaves requests in the database; `drain_queue`
measures them.

A request names an implementation and a workload; the workload's graph is in the database as text, so that another process, days
later, can rebuild the question."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tensor_graphs.argument_checks import function
from tensor_graphs.costs.database_keys import FIXED, VERIFIER, environment_of
from tensor_graphs.devices.environment import Environment
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import KernelError
from tensor_graphs.kernels.one_op_signature import signature_of_graph
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS, by_op, kernel_named, matching, why_missing
from tensor_graphs.language.text import parse_graph
from tensor_graphs.measure.isolation import process_tree
from tensor_graphs.measure.isolation.replies import JUDGE_ERROR
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.input_descriptors import given_of
from tensor_graphs.measure.queue.next_measurements import Question, answer, unanswered
from tensor_graphs.records import DatabaseError, queries, work_queue
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import QueueItem, at_sizes

log = logging.getLogger(__name__)


@dataclass
class DrainReport:
    """Result of one `drain_queue`. answered: requests that had rows already; impossible: requests put back, for `reasons`; left:
    number of requests in the queue afterwards, `queue` in detail; here: the environments that were drained."""

    measured: int = 0
    failed: int = 0
    answered: int = 0
    obsolete: int = 0
    impossible: int = 0
    left: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    reasons: list[str] = field(default_factory=list)
    queue: tuple[work_queue.Queued, ...] = ()
    here: tuple[Environment, ...] = ()

    def counts(self) -> str:
        """Return the counts as a phrase."""
        return (f"{self.measured} measured, {self.failed} failed, {self.answered} known already, {self.obsolete} obsolete, "
                f"{self.impossible} not possible here")


@dataclass(frozen=True)
class Waiting:
    """Requests that may be claimed. seconds: total time of the plans that use estimates because these requests are open."""

    requests: int
    seconds: float


class Obsolete(KernelError):
    """Request that can never be answered: its kernel's source has changed, or the kernel no longer accepts the op."""


class NotHere(KernelError):
    """Request that this process cannot answer, while another process may."""


class NoKernelHere(NotHere):
    """Request for a kernel that is not registered in this process."""


def question_of(database: Database, item: QueueItem) -> Question:
    """Return the question of a request. Raises Obsolete, NotHere (NoKernelHere for an unknown kernel), or DatabaseError."""
    try:
        kernel = kernel_named(item.implementation.name)
    except KernelError as error:
        raise NoKernelHere(str(error)) from error
    if kernel.identity != item.implementation.source_hash:
        raise Obsolete(f"{kernel.name} has another source than the one asked for")
    text, _ = queries.graph_text(database, item.workload.graph_key)
    try:
        signature = signature_of_graph(parse_graph(text))
        axes = {n: v for n, v in item.workload.axes.items() if n != FIXED or signature.dim_names}
        binding, supplied = signature.binding(axes), given_of(item.workload.inputs)
    except Exception as error:                                      # rows of other versions and other hands may say anything
        raise NotHere(f"it cannot be read here: {error or type(error).__name__}") from error
    if signature.key != item.workload.graph_key:
        raise Obsolete(f"the graph {item.workload.graph_key[:12]} reads as {signature.key[:12]} today")
    if not matching(signature.spec, by_op([kernel])):
        raise Obsolete(f"{kernel.name} does not accept {signature.title()}")
    return Question(kernel, signature, binding, item.priority, supplied)


def drain_queue(database: Database, *, budget: float = 60.0, backends: Sequence[str] | None = None, threads: int | None = None,
                timeout: float | None = None, on_step: Callable[[int, Waiting, str], None] | None = None) -> DrainReport:
    """Answer the requests of these backends' environments on this machine, most urgent first, until the budget [s] is spent.

    Requests are claimed, measured, stored and removed one after the other: however this process stops, no request is lost, and
    several processes may drain one database. Ctrl-C releases the claimed request. on_step: called with the number measured, what
    waits in the queue, and the last request. Raises ArgumentError, and DatabaseError with a message of what was measured before."""
    function("on_step", on_step, "how many are done, what waits, and what was measured")
    started = time.perf_counter()
    reclaim(database)
    here = [environment_of(b, threads) for b in (backends or DEFAULT_BACKENDS) if why_missing(b) is None]
    report = DrainReport(here=tuple(here))
    try:
        with work_queue.renewing(database) as held, Judge(database, timeout=timeout, threads=threads) as judge:
            drain = _Drain(database, judge, held, report, on_step)
            try:
                for environment in here:
                    drain.answer(environment, started + budget)
            finally:
                drain.put_back()
        report.queue = work_queue.queued(database)
    except DatabaseError as error:
        if not report.statuses:
            raise
        done = f"before that: {report.counts()}; all of it is stored, and the same call goes on from there"
        raise type(error)(f"{error}\n  {done}") from error
    report.left = sum(q.waiting + q.claimed + q.abandoned + q.untrusted for q in report.queue)
    report.seconds = time.perf_counter() - started
    return report


class _Drain:
    """Claims requests and answers them. held: claims whose leases are renewed meanwhile."""

    def __init__(self, database: Database, judge: Judge, held: list[QueueItem], report: DrainReport,
                 on_step: Callable[[int, Waiting, str], None] | None) -> None:
        self.database, self.judge, self.held, self.report, self.on_step = database, judge, held, report, on_step
        self.worker = worker_name()
        self.returned: list[tuple[QueueItem, str, bool]] = []
        self.unknown: set[str] = set()                              # signatures of kernels that are not here

    def answer(self, environment: Environment, until: float) -> None:
        """Answer requests of one environment until this time (perf_counter), or Ctrl-C."""
        while time.perf_counter() < until and not self.report.interrupted:
            item = work_queue.claim_next(self.database, self.worker, environment, but=self.unknown)
            if item is None:
                return
            self.held.append(item)
            status = self._served(item)
            if status is None:
                continue
            if self.on_step is not None:
                self.on_step(self.report.measured + self.report.failed, Waiting(*work_queue.waiting(self.database, environment)),
                             f"{item.implementation.name} {item.reason}")

    def _served(self, item: QueueItem) -> str | None:
        """Answer one request; return the status of its measurement, or None if nothing was measured."""
        try:
            status = _serve(self.database, self.judge, item)
        except KeyboardInterrupt:
            work_queue.release(self.database, item)
            self.report.interrupted = True
            return None
        except Obsolete as error:
            log.info("request %d is taken off: %s", item.id, error)
            self._done(item)
            self.report.obsolete += 1
            return None
        except DatabaseError:                                       # the database cannot be written now: the lease ends by itself
            self.held.remove(item)
            raise
        except TensorGraphsError as error:
            self._return(item, str(error))
            if isinstance(error, NoKernelHere):                     # nor are its other requests claimed
                self.unknown.add(item.implementation.signature)
                self.report.impossible += work_queue.waiting(self.database, item.environment, [item.implementation.signature])[0]
            return None
        except BaseException:
            work_queue.release(self.database, item, "the drain stopped at it", attempt=True)
            raise
        if status == JUDGE_ERROR:                                   # no row answers it
            self._return(item, "the judge itself failed, as its log says", attempt=True)
            return None
        self._done(item)
        if status is None:
            self.report.answered += 1
            return None
        self.report.statuses[status] = self.report.statuses.get(status, 0) + 1
        self.report.measured += status == "PASSED"
        self.report.failed += status != "PASSED"
        return status

    def _done(self, item: QueueItem) -> None:
        self.held.remove(item)
        work_queue.complete(self.database, item)

    def _return(self, item: QueueItem, why: str, *, attempt: bool = False) -> None:
        """Note a request to be released at the end: if it were released now, it would be claimed next."""
        self.returned.append((item, why, attempt))
        self.report.impossible += 1
        what = f"{item.implementation.name} on {item.workload.graph_key[:8]}{at_sizes(item.workload.axes)}"
        self.report.reasons.append(f"request {item.id}, {what}: {why}")

    def put_back(self) -> None:
        for item, why, attempt in self.returned:
            self.held.remove(item)
            with contextlib.suppress(DatabaseError):                # else the lease ends by itself
                work_queue.release(self.database, item, why, attempt=attempt)


def _serve(database: Database, judge: Judge, item: QueueItem) -> str | None:
    """Measure one request; return the status, or None when its rows existed already or another worker has claimed it."""
    question = question_of(database, item)
    todo = unanswered(database, [question], VERIFIER, judge.threads)
    statuses = [status for _, status in answer(judge, todo, budget=float("inf"),
                                            lost=lambda: not work_queue.renew(database, item))]
    return statuses[-1] if statuses else None


def settle_queue(database: Database, backends: Sequence[str], threads: int | None = None) -> int:
    """Remove the requests that have rows by now; return their number. The other requests stay unchanged."""
    worker = worker_name()
    open_items: list[QueueItem] = []
    done = 0
    for backend in backends:
        environment = environment_of(backend, threads)
        rows = queries.latest_traces(database, environment, "cold", verifier=VERIFIER)
        while (item := work_queue.claim_next(database, worker, environment)) is not None:
            over_all = type(item.workload)(item.workload.graph_key).key             # the verdict over all sizes is filed under it
            verdict = rows.get((item.implementation.source_hash, over_all))
            refuted = verdict is not None and (verdict.status != "PASSED" or verdict.refuted)
            if refuted or (item.implementation.source_hash, item.workload.key) in rows:
                work_queue.complete(database, item)
                done += 1
            else:
                open_items.append(item)
    for item in open_items:
        work_queue.release(database, item)
    return done


def worker_name() -> str:
    """Return the name of a claimant: host, process, its start time, and a number, so that no two are equal."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}:{time.monotonic_ns()}"


def reclaim(database: Database) -> int:
    """Release requests claimed by ended processes of this machine, before their leases end; return their number."""
    done = 0
    for name in work_queue.claimants(database):
        *host, process, started, _ = ["", "", "", *name.split(":")]
        if ":".join(host[3:]) == socket.gethostname() and process.isdigit() and _started(int(process)) != started:
            done += work_queue.release_worker(database, name)
            log.info("%s is gone; what it had claimed is free again", name)
    return done


def _started(process: int) -> str:
    """Return when a process was started, in clock ticks since boot; "gone" if it does not exist, "" on systems without /proc."""
    fields = process_tree.stat(process)
    return fields[19] if fields else "gone" if process_tree.stat("self") else ""
