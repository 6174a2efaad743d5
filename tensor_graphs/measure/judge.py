"""judge: compares a kernel's outputs with the float64 oracle, and stores the verdict (and the time) in the database.

The kernel runs in a worker, a separate process (worker_process.py, worker.py). Expected outputs stay in this process, and so does
the clock that decides whether a time is plausible. A crash, a hang or a wrong result is stored as a row too."""

from __future__ import annotations

import logging
import math
import os
import secrets
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypeVar

import numpy as np

from tensor_graphs.costs.database_keys import (
    VERIFIER,
    environment_of,
    graph_record,
    implementation_of,
    timed_workload,
    verdict_key,
    verify_workload,
)
from tensor_graphs.costs.measured_rates import FLOPS, READ
from tensor_graphs.costs.roofline import DeviceRates, work
from tensor_graphs.devices.environment import usable_cores
from tensor_graphs.devices.free_memory import OutOfMemory, require_memory
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.kernel_origin import origin_of, out_of_reach
from tensor_graphs.kernels.registry import device_of, imports_of
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.composites.products import dot, linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.meaning.error_measure import ErrorReport, Worst, measure, neighbours_error, row_errors, unit_roundoff
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.running_error import running_error
from tensor_graphs.meaning.same_math import SAME_MATH, same_math_limit
from tensor_graphs.measure import failing_point, where_wrong
from tensor_graphs.measure.assumption_points import holds
from tensor_graphs.measure.definition_analysis import adds_floats
from tensor_graphs.measure.definition_points import concurrent_points, hazard_points
from tensor_graphs.measure.isolation import process_tree, reused_arrays
from tensor_graphs.measure.isolation.memory_guards import bytes_of, digest
from tensor_graphs.measure.isolation.replies import (
    JUDGE_ERROR,
    Begin,
    End,
    Kept,
    Loaded,
    Mark,
    Next,
    ProtocolError,
    Reply,
    ReportedOutput,
    Returned,
    Shown,
)
from tensor_graphs.measure.isolation.tampering import Names, reached
from tensor_graphs.measure.isolation.worker_process import CRASHED, DIED, JOB_SECONDS, JudgeError, WorkerProcess
from tensor_graphs.measure.oracle_cache import Answers, OracleCache
from tensor_graphs.measure.points.adversarial import adversarial_points, depends_on_special, rows_of, settled_rows
from tensor_graphs.measure.points.changed_rows import Updated, Whole, bases, updated
from tensor_graphs.measure.points.doubtful_rows import doubtful, moves_of_rows
from tensor_graphs.measure.points.fewer_rows import candidates, fewer, is_fixed, same_rows, size_of, taken
from tensor_graphs.measure.points.input_descriptors import Given, InputError
from tensor_graphs.measure.points.inputs import (
    BIG_INPUT,
    PAIRED,
    SAME_VALUES,
    Perturb,
    Point,
    all_rows,
    changeable,
    few_of,
    few_rows,
    generator,
    held_by_oracle,
    is_big,
    is_held,
    largest_sizes,
    pairs,
    perturbed,
    point_inputs,
    work_points,
)
from tensor_graphs.measure.points.point_plan import covered, layout_points, size_points, special_points, together_points
from tensor_graphs.measure.points.single_op_plans import prepared_names
from tensor_graphs.measure.points.size_classes import points_at_size, smaller
from tensor_graphs.measure.timing.aggregate import aggregate, found_quiet
from tensor_graphs.measure.timing.bench import PATIENCE, Timing, grow_heap, most_kept
from tensor_graphs.measure.timing.clock import TIMER
from tensor_graphs.measure.timing.noise_reference import Kind, waits_for_quiet
from tensor_graphs.measure.timing.one_thread import one_thread
from tensor_graphs.measure.timing.timed_batch import LEAST_SECONDS, WARM_UP, Block, implausible
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.logs import reason_of
from tensor_graphs.records.rows import Status, TraceRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

NOTICED = {"f64": 64.0, "f32": 64.0, "f16": 2.0, "bf16": 2.0, "f8e4m3": 2.0, "f8e5m2": 2.0}
"""error of an output, in unit roundoffs, above which rounding is examined (kernels of narrow dtypes mostly compute in f32)"""

LARGE_WORK = (5e6, 1 << 20)
"""flops and bytes up to which a kernel is also compared at the upper ends of its dims (some 50 ms for the oracle)"""

PLAIN, PLAIN_WORK = "plain", 1e10
"""name of the baseline under which the plain path's time is stored; flops beyond which the plain path is not timed"""

FEW_BYTES = 256 << 10
"""bytes; moving fewer is bound by latency, not bandwidth (`_bound`). Cold reads of 64 KB next to a busy neighbour, in pairs of 5 s,
agree to 5 % in 98 % of pairs over the arithmetic reference, in 44 % over the reading one (5 MB: half, and all)"""

FLOPS_PER_BYTE = 10.0
"""flops per byte above which work counts as bound by arithmetic. A constant, as measured rates differ from day to day and the kind
of reference that a kernel is timed with must not"""

FEW_WAYS, QUICK = 2, (1e8, 1 << 24)
"""number of different perturbations of timed runs where the oracle is slow; flops and bytes up to which it is quick (some 20 ms)"""

SLOW = 0.25
"""seconds of the oracle for one answer, above which built-in kernels are compared on copies of few rows, except at two points"""

MOST_DRAWN = 1 << 25
"""elements of an operand up to which independence of its rows is tested (`_look_for_rows`) where the oracle is slow"""

AT_ONCE = 256 << 20
"""approximate bytes of outputs that a worker holds for the judge in one job"""

RACES = 3
"""runs of each point (if slow: the first) on a device other than the host, as its threads come in another order each time"""

LOOKED_AT = 2
"""timed runs whose outputs are compared, besides the last run"""

LEAST_WAIT = 20.0
SLOWER = 100.0
"""LEAST_WAIT: seconds that every kernel may take, as it may compile first. SLOWER: multiple of the oracle's time allowed on top"""

RUNS_BETWEEN = 8
"""approximate number of runs between two messages of a worker that times a kernel"""

SUSPICIOUS, APART, AGAIN = 10.0, 3.0, (0.1, 0.5)
"""SUSPICIOUS: a time lower than the best stored one by this factor is measured again in a fresh worker. APART: two times that
differ by this factor are rejected. AGAIN: least seconds of blocks in repeated measurements"""

PROCESSES, PROCESS_SECONDS, MOST_ROUNDS = 12, 0.3, 2
"""fresh workers over which a long measurement is spread, as a process's memory layout changes times by some percent, those of small
kernels by a third; least seconds in each worker; factor for the number of workers where some found the machine busy"""

IMPLAUSIBLE_FACTOR = 50.0
"""a time this many times below the device's roofline is implausible (caches are at most 20 times as fast as memory)"""

TYPICAL = 20
"""size of all dims (or the nearest size in range) at which a kernel is compared for a class of sizes"""

BIG_WORK, BIG_TRAFFIC = 4e9, 2.5e8
"""flops and bytes of sizes beyond which a kernel is compared at few points (the oracle takes a second for each)"""

MEANINGS = "tensor_graphs.language."
"""prefix of the modules that define the meaning of ops. These modules, and all whose code this module may run, are watched: a
kernel's module imported in this process could replace their contents. A judge that finds a replacement gives no verdict"""

ABOUT_TIMES = ("measure.judge.AGAIN", "measure.judge.BIG_TRAFFIC", "measure.judge.BIG_WORK", "measure.judge.IMPLAUSIBLE_FACTOR",
               "measure.judge.LEAST_WAIT", "measure.judge.SLOWER", "measure.judge.found_quiet",
               "measure.timing.bench.BUSY_SHARE", "measure.timing.bench.QUIET_SECONDS",
               "measure.isolation.worker_process.SILENT_SECONDS", "measure.isolation.worker_process.STOPPED_SECONDS")
"""names in watched modules that may be replaced: they set how long and how often something is measured"""


@dataclass(frozen=True)
class Verdict:
    """Judge's result for one kernel on one signature. samples: cold times [s]; plain: those of the plain path in the same run;
    timing: stored facts about the times; seed: seed of the inputs, secret from kernels; covered: result of `coverage.covered`;
    point: where a number is wrong. Status JUDGE_ERROR: the judge's own code failed, and nothing is stored."""

    status: Status | Literal["JUDGE_ERROR"]
    error: float | None
    p999: float | None
    norm_error: float | None
    absolute: float | None
    log: str
    samples: tuple[float, ...] = ()
    plain: tuple[float, ...] = ()
    timing: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    covered: Mapping[str, Any] = field(default_factory=dict)
    point: Point | None = None


@dataclass(frozen=True)
class JudgeTask:
    """Kernel to examine on a signature; the fields are the arguments of `Judge.examine`."""

    kernel: Kernel
    signature: Signature
    typical: Mapping[str, int]
    time_at: Mapping[str, int] | None = None
    verify: bool = True
    given: Given = ()


def _question(asked: JudgeTask) -> tuple[str, Signature, tuple[tuple[str, int], ...]]:
    return asked.kernel.identity, asked.signature, pairs(asked.typical)


def class_task(kernel: Kernel, small: Signature) -> JudgeTask:
    """Return the task of comparing a kernel at the small sizes that represent a class of sizes."""
    return JudgeTask(kernel, small, {n: d.clamp(TYPICAL, s) for n, s in small.graph.dims.items()})


WORKERS, ELSEWHERE = 2, 6
"""most workers of comparison_pipeline.py: if some kernels compute on the host, each with all its processors; and otherwise, where
workers spend their time in compilers and on operands (one for two processors)"""

SIDE_THREADS, CORES_FOR_SIDE_THREADS = 2, 8
"""threads of comparison_pipeline.py that evaluate the oracle and compare where no kernel computes on the host, and the processors
they need. Four threads are no faster: numpy releases the interpreter lock for about half of that work"""

MUCH = 256 << 20
"""bytes that the oracle holds for an answer, beyond which only one thread at a time evaluates or compares"""

FOR_A_WORKER = 3
"""number of signatures per worker whose answers are cached: one is compared, one runs, one comes next"""

FORESEEN = 8
"""number of tasks that the oracle evaluates in advance while compilers run"""


class Judge:
    """Runs kernels in a worker, compares their outputs and stores verdicts; a context manager, one per process. To compare many
    kernels without timing them, see comparison_pipeline.py."""

    def __init__(self, database: Database, *, timeout: float | None = None, threads: int | None = None,
                 rates: DeviceRates | None = None) -> None:
        """timeout: seconds after which a kernel counts as hanging (default: `limit`, derived from the oracle's time). rates:
        measured rates of this device; times that would need higher rates are IMPLAUSIBLE."""
        grow_heap()                                                 # the oracle makes and frees large arrays
        self.patient = timeout is None
        self.database, self.threads, self.rates = database, threads, rates or DeviceRates()
        self.worker = WorkerProcess(JOB_SECONDS if timeout is None else timeout)
        cores = usable_cores()
        self.workers = min(WORKERS, cores)
        """most workers that may compare simultaneously …"""
        self.elsewhere = max(self.workers, min(ELSEWHERE, cores // 2))
        """… and the most where no kernel computes on the host"""
        self.side_threads = SIDE_THREADS if cores >= CORES_FOR_SIDE_THREADS else 1
        """threads that evaluate the oracle and compare in that case"""
        self._answers = OracleCache(FOR_A_WORKER * self.elsewhere)
        self._much = threading.RLock()
        """held during work on more than MUCH bytes; acquired before `Answers.asking`"""
        self._rows: dict[tuple[Signature, tuple[tuple[str, int], ...]], tuple[str, int] | None] = {}
        """(signature, sizes) -> independent rows along a fixed axis (`_look_for_rows`)"""
        self._points: dict[tuple[str, Signature, tuple[tuple[str, int], ...]], list[Point]] = {}
        """(identity, signature, typical sizes) -> points of a coming comparison, if already chosen"""
        self._later: dict[tuple[str, Signature, tuple[tuple[str, int], ...]], deque[Point]] = {}
        """those of `_points` in jobs after the first that the oracle has not evaluated yet"""
        self._secrets: dict[str, int] = {}
        self._levels: dict[tuple[bool, Kind], float] = {}
        """(native, kind) of a reference stream -> lowest level measured [s]"""
        self._prepared: dict[tuple[str, str], tuple[str, ...]] = {}
        self._passed: dict[tuple[str, str], float | None] = {}
        """(identity, signature's key) -> the error on a class of smaller sizes; None where the kernel did not pass"""
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ready(self) -> None:
        """Start the worker if none is running. Raises JudgeError."""
        with self._lock:
            self.worker.ready()

    def begin(self) -> None:
        """Start the worker in the background if none is running; errors surface when the worker is used."""
        def start() -> None:
            with suppress(JudgeError):
                self.ready()

        if self._starting is None:
            self._starting = threading.Thread(target=start, daemon=True)
            self._starting.start()

    def close(self) -> None:
        """End the worker."""
        if self._starting is not None:
            self._starting.join()
        self.worker.close()
        reused_arrays.clear()

    def expected(self, signature: Signature, point: Point) -> dict[str, np.ndarray] | None:
        """Return the oracle's outputs at a point, cached per signature; None where the op has no value at these sizes."""
        few = self._answer_of_few(signature, point)
        return few if few is None or point.rows is None else all_rows(signature.graph, point, few, outputs=True)

    def _answer_of_few(self, signature: Signature, point: Point) -> dict[str, np.ndarray] | None:
        """Return `expected`; for a point whose rows are copies of a few rows, return only the few."""
        answer = self._stored_answer(signature, point)
        return None if answer is None else dict(self._restored(signature, point, answer))

    def _restored(self, signature: Signature, point: Point, answer: Mapping[str, np.ndarray | Updated]) -> Whole:
        """Return stored outputs as a mapping that restores each one when it is read."""
        return Whole(answer, lambda: point_inputs(signature.graph, point, by_rows=True))

    def _stored_answer(self, signature: Signature, point: Point) -> dict[str, np.ndarray | Updated] | None:
        """Return the cached answer (evaluated if needed): only differing rows, or rows in which an output differs from an operand.
        """
        if point.rows is not None and not is_fixed(point.rows[0]):
            point = few_rows(point)
        key, answers = point.values, self._answers.of(signature)
        try:
            return answers.expected[key]
        except KeyError:
            with self._memory_lock(signature, point), answers.asking:
                return answers.expected[key] if key in answers.expected else self._evaluate(signature, point, answers)

    def _memory_lock(self, signature: Signature, point: Point) -> AbstractContextManager[object]:
        """Return the lock to hold while the oracle evaluates a point or its outputs are compared."""
        return self._much if held_by_oracle(signature.graph, point.binding) >= MUCH else nullcontext()

    def _evaluate(self, signature: Signature, point: Point, answers: Answers) -> dict[str, np.ndarray | Updated] | None:
        begun, worked = time.perf_counter(), time.thread_time()
        require_memory(held_by_oracle(signature.graph, point.binding), f"comparing {signature.title()} with the oracle",
                       "smaller sizes, or dims in their place: a dim is compared at small sizes")
        outputs: dict[str, np.ndarray | Updated] | None = None
        try:
            outputs = self._oracle_outputs(signature, point)
        except (InputError, OutOfMemory):
            raise
        except (TensorGraphsError, ValueError, IndexError) as e:
            log.debug("%s has no value at %s: %s", signature.title(), point, e)
        answers.took[point.values], answers.worked[point.values] = time.perf_counter() - begun, time.thread_time() - worked
        self._answers.make_room(answers, point.values, outputs or {})
        answers.expected[point.values] = outputs                        # last: who finds it there needs no lock
        return outputs

    def _oracle_outputs(self, signature: Signature, point: Point) -> dict[str, np.ndarray | Updated]:
        """Return the oracle's outputs at a point in a compact form, as answers at all points are cached together: only the rows
        that differ if others are copies, and only the changed rows of an output that is an overwritten operand."""
        if point.rows is not None:
            graph, few = few_of(signature.graph, point)
            return dict(interpret(graph, point_inputs(graph, few), dims=few.binding).outputs)
        inputs = point_inputs(signature.graph, point, by_rows=True)
        outputs = interpret(signature.graph, inputs, dims=point.binding).outputs
        operands = bases(signature.graph, point.binding)
        return {name: updated(array, inputs[operands[name]], operands[name]) if name in operands else array
                for name, array in outputs.items()}

    def _look_for_rows(self, signature: Signature, point: Point, most: int = BIG_INPUT) -> tuple[str, int] | None:
        """Return, in the form of `Point.rows`, a fixed axis along which rows do not depend on each other, and a sufficient number
        of rows; None without such an axis or with an operand of more than `most` elements. Rows count as independent if the oracle
        returns the same for some rows alone as in its answer for all."""
        key = signature, point.sizes
        if key not in self._rows:
            self._rows[key] = self._independent_rows(signature, point, most)
        return self._rows[key]

    def _independent_rows(self, signature: Signature, point: Point, most: int) -> tuple[str, int] | None:
        graph, expected = signature.graph, self.expected(signature, point)
        if expected is None or any(is_big(x.type.at(point.binding), most) for x in graph.inputs.values()):
            return None
        inputs = point_inputs(graph, point)
        for name, count in candidates(graph) if inputs else ():
            few = fewer(graph, name, count)
            if few is None:
                continue
            numbers = generator(point.seed, f"some rows of {name}").permutation(size_of(name))[:count]
            try:
                some = interpret(few.graph, taken(inputs, few.inputs, numbers), dims=point.binding).outputs
            except (TensorGraphsError, ValueError, IndexError):
                continue
            if same_rows(some, taken(expected, few.outputs, numbers)):
                return name, count
        return None

    def expected_in_full(self, signature: Signature, point: Point) -> dict[str, np.ndarray]:
        """Return the oracle's outputs evaluated on all rows, for a point whose rows are copies of a few."""
        graph = signature.graph
        return dict(interpret(graph, point_inputs(graph, point, by_rows=True), dims=point.binding).outputs)

    def rounding(self, signature: Signature, point: Point, in_full: bool = False) -> dict[str, np.ndarray]:
        """Return how far rounding may move each element of the float outputs: the running error, or an estimate. in_full: evaluate
        all rows even if they are copies of a few."""
        graph = signature.graph
        if point.rows is not None and not in_full:
            return all_rows(graph, point, self._rounding_of_few(signature, point), outputs=True)
        key, answers = point.values, self._answers.of(signature)
        errors = answers.rounding.get(key)
        if errors is None:
            expected = self.expected_in_full(signature, point) if in_full else self.expected(signature, point)
            assert expected is not None
            errors = _rounding(graph, point_inputs(graph, point, by_rows=True), point.binding, expected, signature.unit)
            self._answers.make_room(answers, key, errors)
            answers.rounding[key] = errors
        return errors

    def _rounding_of_few(self, signature: Signature, point: Point) -> dict[str, np.ndarray]:
        """Return `rounding` for only the rows of a point that differ."""
        graph, few = few_of(signature.graph, point)
        if graph is signature.graph:
            return self.rounding(signature, few)
        expected = self._answer_of_few(signature, point)
        assert expected is not None
        return _rounding(graph, point_inputs(graph, few), few.binding, expected, signature.unit)

    def _error(self, signature: Signature, point: Point, name: str, out: np.ndarray, ref: np.ndarray, *, in_full: bool,
               rows: np.ndarray | None = None) -> ErrorReport:
        """Return the error of an output, less what rounding explains. rows: numbers of the rows in `out`, if not all."""
        t = signature.graph.outputs[name].type
        dtype, limit = t.dtype, same_math_limit((t,), signature.unit)
        report = measure(out, ref, dtype)
        if dtype.is_float and report.mismatch is None and not report.within(NOTICED[dtype.name] * unit_roundoff(dtype)):
            moves = self.rounding(signature, point, in_full)[name]
            report = measure(out, ref, dtype, rounding=moves if rows is None else rows_of(moves)[rows])
            if rows is None and not report.within(limit):
                graph, answer = signature.graph, self.expected_in_full if in_full else self.expected
                doubt = doubtful(out, ref, dtype, moves, limit)
                row_moves = moves_of_rows(graph, point.binding, lambda: point_inputs(graph, point, by_rows=True),
                                      lambda: answer(signature, point) or {}, name, doubt, moves)
                report = report if row_moves is None else measure(out, ref, dtype, rounding=row_moves)
        return report

    def _wrong_rows(self, signature: Signature, point: Point, name: str, out: np.ndarray, ref: np.ndarray, limit: float,
                    in_full: bool) -> np.ndarray:
        """Return for each row of an output whether its error exceeds both the limit and what rounding explains."""
        dtype = signature.graph.outputs[name].dtype
        outs, refs = rows_of(out), rows_of(ref)
        errors = row_errors(outs, refs, dtype)
        off = np.flatnonzero(~(errors <= limit))
        if dtype.is_float and len(off):
            moves = rows_of(self.rounding(signature, point, in_full)[name])
            errors[off] = row_errors(outs, refs, dtype, moves, off)
        return np.asarray(~(errors <= limit))

    def limit(self, signature: Signature, shown: Sequence[Point], timing: Timing | None) -> float | None:
        """Return the seconds without a message after which a worker counts as hanging; None: the worker's own timeout for the job.

        The oracle computes every op by its definition in numpy, so its time at these points shows how much work they are, and how
        busy the machine is."""
        if not self.patient:
            return None
        took = self._answers.of(signature).took.copy()                # at once, while others ask
        seconds = sum(took.get(p.values, 0.0) for p in shown)
        between = 0.0
        if timing is not None:
            seconds += RUNS_BETWEEN * max((t for p, t in took.items() if p.sizes == timing.point.sizes), default=0.0)
            between = PATIENCE[0] * max(timing.budget, timing.least)
        return min(JOB_SECONDS, LEAST_WAIT + SLOWER * seconds + between)

    def points(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int]) -> list[Point]:
        """Return the points at which a kernel is compared: candidates where the op has a value. Raises JudgeError without any."""
        return self._with_value(signature, self._candidates(kernel, signature, typical))

    def _with_value(self, signature: Signature, points: Sequence[Point]) -> list[Point]:
        """Return the points at which the op has a value; the oracle evaluates each."""
        return [p for p in points if self._stored_answer(signature, p) is not None]

    def _candidates(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int]) -> list[Point]:
        """Return the candidates for `points`, most of them not yet evaluated by the oracle; the op has a value at the first."""
        graph = signature.graph
        sizes = work_points(graph, typical)
        affordable = [p for p in sizes if not _big(signature, p) and is_held(graph, p)]
        affordable = affordable or sizes[1:4:2] or sizes[:1]        # an operand is large at any size: the smallest, and a small one
        far = next((p for p in largest_sizes(graph) if _within(signature, p, *LARGE_WORK)), None)
        if far is not None and far not in affordable:
            affordable.append(far)
        first = [Point(pairs(s), 1000 + i) for i, s in enumerate(affordable)]
        points = [p for p in first if self._stored_answer(signature, p) is not None]
        if not points:
            raise JudgeError(f"{signature.title()} has a value at none of {', '.join(map(str, affordable))}, so no kernel can be "
                             "compared\n  fix: sizes at which its operands fit together")
        base = max(points[:-1] or points, key=lambda p: sum(n for _, n in p.sizes if n <= 32))
        again = points.index(base) + 1
        other = Point(base.sizes, self.secret(signature), like=base.seed)
        prepared = self.prepared(kernel, signature)
        slow = kernel.ours and self._answers.of(signature).worked.get(base.values, 0.0) > SLOW
        ways = [] if slow else [perturbed(signature.graph, base.sizes, other.seed, number, prepared) for number in (0, 2)]
        points[again:again] = [other, *(replace(other, perturbed=way) for way in ways)]
        secret = self.secret(signature)
        big = _big(signature, base.binding)
        drawn = MOST_DRAWN if slow else BIG_INPUT
        rows = self._look_for_rows(signature, base, drawn) if kernel.ours and (slow or not big) else None

        def of_few(chosen: Sequence[Point]) -> list[Point]:
            return [replace(p, rows=rows) if p.sizes == base.sizes and p.form not in PAIRED else p for p in chosen]

        awkward = adversarial_points(signature, secret)
        points += of_few(awkward) if slow else awkward
        if not big:
            further = layout_points(kernel, signature, base.binding, secret) + special_points(signature, base.binding, secret)
            points += of_few(further)
            points += size_points(signature, secret) + together_points(signature, secret)
            points += hazard_points(signature, base.binding, secret)
        if device_of(kernel.backend).is_host:
            return points if kernel.ours else points + concurrent_points(signature, base, points)
        return [*points[:1] * RACES, *points[1:]] if slow else [p for p in points for _ in range(RACES)]

    def examine(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int], *,
                time_at: Mapping[str, int] | None = None, budget: float = 0.3, verify: bool = True, given: Given = ()) -> Verdict:
        """Run a kernel and compare it with the oracle; with time_at, also time it there, interleaved with the plain path. Nothing
        is stored.

        verify: compare at many points; if False, only where it is timed (it has a verdict already). given: operands whose values in
        the timed runs come from a descriptor. Raises JudgeError when the kernel cannot be judged at all, InputError when `given`
        does not fit."""
        return self.examine_interleaved([JudgeTask(kernel, signature, typical, time_at, verify, given)], budget=budget)[0]

    def examine_interleaved(self, asked: Sequence[JudgeTask], *, budget: float = 0.3, until: float = math.inf) -> list[Verdict]:
        """Examine kernels whose times are to be compared: a long measurement is spread over several workers, and each round
        measures a part of every kernel, so that what changes within minutes affects all kernels alike.

        budget: seconds for each kernel. until: time (perf_counter) after which only each kernel's first part begins."""
        refuse_replaced()
        for task in asked:
            reason = out_of_reach(task.kernel)
            if reason is not None:
                raise JudgeError(f"kernel {task.kernel.name!r} cannot be judged: {reason}")
        with self._lock:
            return [self._beyond_doubt(task, verdict, budget, until) for task, verdict in
                    zip(asked, self._rounds(asked, budget, LEAST_SECONDS, until), strict=True)]

    def _beyond_doubt(self, asked: JudgeTask, verdict: Verdict, budget: float, until: float) -> Verdict:
        doubt = self._doubt(asked, verdict)
        if not doubt:
            return verdict
        log.info("%s on %s is measured again in a fresh worker: %s", asked.kernel.name, asked.signature.title(), doubt)
        self.worker.kill()
        (again,) = self._rounds([replace(asked, verify=False)], budget, AGAIN[0], until)
        return self._slower(verdict, again, doubt) if again.status == "PASSED" else again

    def _rounds(self, asked: Sequence[JudgeTask], budget: float, least: float, until: float) -> list[Verdict]:
        """Return a verdict for each task. A large budget is divided among several workers, which then only time a kernel, as memory
        that a process has allocated changes its times; more are used if the machine was too busy, fewer once `until` has passed."""
        parts = max(1, min(PROCESSES, int(budget / PROCESS_SECONDS)))
        several = parts > 1
        verdicts: dict[int, Verdict] = {}
        dialogues: list[list[_Dialogue]] = [[] for _ in asked]

        def take(number: int, ask: Callable[[JudgeTask], Verdict | _Dialogue]) -> None:
            result = _or_judge_error(ask, asked[number])
            if isinstance(result, Verdict):
                verdicts[number] = result
            else:
                dialogues[number].append(result)

        for number, task in enumerate(asked):
            declared = _or_judge_error(lambda task: self.prepared(task.kernel, task.signature), task)
            if isinstance(declared, Verdict):
                verdicts[number] = declared
            elif task.time_at is None or (several and task.verify):
                take(number, lambda task: self._run_kernel(task.kernel, task.signature, self._compared_points(task), None))
        for part in range(MOST_ROUNDS * parts if several else 1):
            for number, task in enumerate(asked):
                if task.time_at is None or number in verdicts or (
                        part >= parts and (not waits_for_quiet() or found_quiet(_timed(dialogues[number])) >= parts)):
                    continue
                if part and time.perf_counter() >= until:
                    break
                if several:
                    self.worker.leave()
                take(number, partial(self._part, several=several, budget=budget / parts, least=least, baseline=not part))
        for number, task in enumerate(asked):
            if number not in verdicts:
                verdicts[number] = _or_judge_error(partial(self._final_verdict, dialogues=dialogues[number]), task)
        return [verdicts[number] for number in range(len(asked))]

    def _compared_points(self, asked: JudgeTask) -> list[Point]:
        """Return the points at which a kernel will be compared; at some of them the op may have no value."""
        shown = self._drawn_points(asked)
        if asked.kernel.assuming:
            shown = [p for p in shown if holds(asked.kernel.assuming, asked.signature, p)]
        if asked.verify and not shown:
            raise _Decided(_failure("RUNTIME_ERROR", f"no point was drawn at which {' and '.join(asked.kernel.assuming)} holds"))
        return shown

    def _drawn_points(self, asked: JudgeTask) -> list[Point]:
        if not asked.verify:
            return []
        foreseen = self._points.pop(_question(asked), None)
        if foreseen is not None:
            return foreseen
        small = self._class_of(asked.kernel, asked.signature)
        if small is not None:
            _stop_where_rows_repeat(asked, small, self._passed[asked.kernel.identity, small.key])
            points = points_at_size(asked.kernel, asked.signature, small, asked.typical, self.secret(asked.signature))
            if any(self._stored_answer(asked.signature, p) is not None for p in points):
                return points
        return self._candidates(asked.kernel, asked.signature, asked.typical)

    def _class_of(self, kernel: Kernel, signature: Signature) -> Signature | None:
        """Return the smaller fixed sizes at which a kernel has passed at all points (compares it now if needed), or None."""
        small = smaller(kernel, signature)
        if small is None:
            return None
        if not self.is_on_file(kernel, small):
            (verdict,) = self._rounds([class_task(kernel, small)], 0.0, LEAST_SECONDS, math.inf)
            self.note_class(kernel, small, verdict)
            self.record(kernel, small, verdict, None)
        error = self._passed[kernel.identity, small.key]
        return None if error is None or not error <= same_math_limit(small.spec.outputs, small.unit) else small

    def is_on_file(self, kernel: Kernel, small: Signature) -> bool:
        """Return whether a kernel has a verdict on a class of sizes, in this object or in the database."""
        key = kernel.identity, small.key
        if key not in self._passed:
            rows = queries.latest_traces(self.database, environment_of(kernel.backend, self.threads), verifier=VERIFIER)
            row = rows.get(verdict_key(kernel, small))
            if row is None:
                return False
            self._passed[key] = row.worst_relative_error if row.passed and not row.refuted and row.status == "PASSED" else None
        return True

    def note_class(self, kernel: Kernel, small: Signature, verdict: Verdict) -> None:
        """Remember the verdict at the sizes that represent a class: verdicts at its other sizes depend on it."""
        self._passed[kernel.identity, small.key] = verdict.error if verdict.status == "PASSED" else None

    def returned(self, asked: JudgeTask, worker: WorkerProcess,
                 given_up: Callable[[], bool] = lambda: False) -> Verdict | Callable[[], Verdict]:
        """Have a worker run a kernel at all its points: return the verdict, or a function that compares the outputs and needs no
        worker. A user-registered kernel is compared immediately, as nothing else may run in a process after it failed. given_up:
        polled before each job; if it returns True, JudgeError is raised."""
        kernel, signature = asked.kernel, asked.signature
        if not kernel.ours:
            return self.examine(kernel, signature, asked.typical)
        refuse_replaced()
        with self._lock if worker is self.worker else nullcontext():
            result = _or_judge_error(
                lambda asked: self._run_jobs(kernel, signature, self._compared_points(asked), None, worker, given_up), asked)
        if isinstance(result, Verdict):
            return result
        return lambda: _or_judge_error(
            lambda asked: result.compared() or self._with_class(asked, self._passed_verdict(signature, [result])), asked)

    def look_ahead(self, asked: JudgeTask) -> None:
        """Have the oracle evaluate the first job of a task; does nothing for a user-registered kernel. Ignores errors."""
        small = smaller(asked.kernel, asked.signature)
        if not asked.kernel.ours or (small is not None and (asked.kernel.identity, small.key) not in self._passed):
            return
        with suppress(Exception):
            shown = self._compared_points(asked)
            first, *later = _jobs(asked.signature, shown)
            self._with_value(asked.signature, first)
            self._later[_question(asked)] = deque(point for job in later for point in job)
            self._points[_question(asked)] = shown

    def ask_the_rest(self, asked: JudgeTask, enough: Callable[[], bool]) -> None:
        """Have the oracle evaluate the later jobs of a task while a worker runs the first, until `enough` returns True."""
        later = self._later.get(_question(asked), deque[Point]())
        with suppress(Exception):
            while later and not enough():
                self._stored_answer(asked.signature, later.popleft())
        if not later:
            self._later.pop(_question(asked), None)

    def is_foreseen(self, asked: JudgeTask) -> bool:
        """Return whether the oracle has evaluated the first job of this task."""
        return _question(asked) in self._points

    def foresee(self, asked: Sequence[JudgeTask], enough: Callable[[], bool]) -> None:
        """Have the oracle evaluate, while compilers run, what `compare` will need first, until `enough` returns True."""
        with one_thread():
            for task in asked[:FORESEEN]:
                if enough():
                    return
                small = smaller(task.kernel, task.signature)
                if small is not None and not self.is_on_file(task.kernel, small):
                    task = class_task(task.kernel, small)
                if _question(task) not in self._points:
                    self.look_ahead(task)
                self.ask_the_rest(task, enough)

    def _final_verdict(self, asked: JudgeTask, dialogues: Sequence[_Dialogue]) -> Verdict:
        """Return the verdict on a kernel whose outputs are right, with its times if it was timed."""
        right = self._passed_verdict(asked.signature, dialogues) if asked.time_at is None else self._timed_verdict(asked, dialogues)
        return self._with_class(asked, right)

    def _part(self, asked: JudgeTask, *, several: bool, budget: float, least: float, baseline: bool) -> Verdict | _Dialogue:
        """Return one worker's measurement, or a verdict if the kernel does not pass. Impossible times are measured again in longer
        blocks in a fresh worker, as the machine may be busy. several: another worker has compared the kernel already."""
        kernel, signature = asked.kernel, asked.signature
        timing = self._timing(asked, budget, least, baseline)
        shown = [] if several else self._compared_points(asked)
        tried: list[_Dialogue] = []
        for longer in (timing.least, *AGAIN):
            result = self._run_kernel(kernel, signature, shown, replace(timing, least=max(timing.least, longer)))
            if isinstance(result, Verdict):
                return result
            tried.append(result)
            why = implausible(result.blocks, anew=bool(timing.anew), copied=not device_of(kernel.backend).is_host)
            if not why:
                result.worst = list(_worst(tried))
                return result
            log.info("%s on %s cannot have taken what it claims: %s", kernel.name, signature.title(), why)
            self.worker.kill()
            shown = []                                              # compared already
        return replace(self._passed_verdict(signature, tried), status="IMPLAUSIBLE", log=f"seen from outside: {why}")

    def _run_kernel(self, kernel: Kernel, signature: Signature, shown: Sequence[Point],
                    timing: Timing | None) -> Verdict | _Dialogue:
        """Return the dialogue of a run whose outputs are right, else a verdict; after it a user-registered kernel's worker is
        replaced."""
        result = self._run_jobs(kernel, signature, shown, timing)
        if isinstance(result, Verdict) and not kernel.ours:
            self.worker.leave()
        return result

    def _run_jobs(self, kernel: Kernel, signature: Signature, shown: Sequence[Point], timing: Timing | None,
               later: WorkerProcess | None = None, given_up: Callable[[], bool] = lambda: False) -> Verdict | _Dialogue:
        """Run a kernel at points in one job, or in several jobs if outputs are large, as the worker holds them in memory. Points at
        which the op has no value are skipped; errors of a point are raised when its job starts. later: worker to use; the last
        job's outputs are then copied, and the caller compares them by `_Dialogue.compared`."""
        earlier: list[_Dialogue] = []
        jobs = _jobs(signature, shown)
        for number, job in enumerate(jobs):
            if given_up():
                raise JudgeError(f"comparing {kernel.name} on {signature.title()} was given up")
            points, is_last = self._with_value(signature, job), number == len(jobs) - 1
            if is_last and shown and not points and not earlier:    # nothing was compared, so nothing is right
                raise JudgeError(f"{signature.title()} has a value at none of the points at which {kernel.name} was to be compared")
            if is_last and (points or timing is not None or not earlier):
                return self._run_job(kernel, signature, points, timing, later, earlier)
            if points:
                result = self._run_job(kernel, signature, points, None, later, earlier)
                wrong = result if isinstance(result, Verdict) else result.compared()
                if isinstance(result, Verdict) or wrong is not None:
                    return result if wrong is None else wrong
                earlier.append(result)
        return earlier.pop()                                        # no point of the last job has a value

    def _run_job(self, kernel: Kernel, signature: Signature, shown: Sequence[Point], timing: Timing | None,
                  later: WorkerProcess | None, earlier: Sequence[_Dialogue]) -> Verdict | _Dialogue:
        worker = later or self.worker
        job = {**_named_job(kernel, signature), "points": shown, "time": timing, "threads": self.threads, "argv": list(sys.argv),
               "many_calls": bool(shown) and not earlier and not kernel.ours}
        dialogue = _Dialogue(self, signature, shown, timing, later, earlier)
        worker.imports = imports_of(kernel.backend)
        try:
            limit, what = self.limit(signature, shown, timing), f"{kernel.name} on {signature.title()}"
            reply = worker.run(job, dialogue, limit, what, dialogue.forget)
            if reply.status == "OTHER" and not dialogue.loaded:      # it may have imported the module before that was reloaded here
                worker.kill()
                reply = worker.run(job, dialogue, limit, what, dialogue.forget)
            if reply.status != "RAN":
                return self._not_run(kernel, reply, dialogue)
            dialogue.end()
            wrong = None if later else dialogue.compared()
            if wrong is not None:
                return wrong
            if timing is not None:
                if len(reply.points) != len(dialogue.runs):
                    raise ProtocolError(f"outputs of {len(reply.points)} runs were told of, and {len(dialogue.runs)} are due")
                for run, output in zip(dialogue.runs, reply.points, strict=True):
                    secret, salt = dialogue.secret_of(run)
                    way = self._perturbation(kernel, signature, timing, run, secret, salt)
                    values = {"anew": (secret ^ salt, timing.anew)} if run in dialogue.anew else {"perturbed": way}
                    wrong = self._compare(signature, replace(timing.point, **values), output, dialogue.read, dialogue.worst,
                                          dialogue.digests[run])
                    if wrong is not None:
                        return wrong
            return dialogue
        except ProtocolError as e:
            worker.kill()
            return _inconsistent(e)
        finally:
            dialogue.close()

    def _not_run(self, kernel: Kernel, reply: Reply, dialogue: _Dialogue) -> Verdict:
        """Return the verdict for a reply other than RAN. Raises KernelError or InputError where a reply of that kind is true."""
        match reply.status:
            case "OTHER" if not dialogue.loaded and _edited(kernel):
                raise KernelError(reply.log + "\n  fix: start this process again, so that both see the same source")
            case "INPUT" if dialogue.timing is not None:
                point_inputs(dialogue.signature.graph, dialogue.timing.point)        # raises InputError where it is true
            case "RUNTIME_ERROR" | "COMPILE_ERROR" | "TIMEOUT":
                message, crashed = dialogue.placed(reply), kernel.crash_note and reply.log.startswith(CRASHED)
                return _failure(reply.status, f"{message}\n{kernel.crash_note}" if crashed else message)
            case "JUDGE_ERROR":
                return _judge_error(kernel, dialogue.signature, reply.log)
        raise ProtocolError(f"{reply.status}: {reply.log}")

    def prepared(self, kernel: Kernel, signature: Signature) -> tuple[str, ...]:
        """Return the inputs from which this kernel declares that it prepares something. A user-registered kernel's declaration is
        evaluated in the worker, as it may raise, hang, or return anything. Raises _Decided."""
        if kernel.prepare is None or kernel.ours:
            return prepared_names(signature.graph, kernel)
        key = kernel.identity, signature.key
        if key not in self._prepared:
            job = {"kind": "declared", **_named_job(kernel, signature)}
            dialogue = _Dialogue(self, signature, (), None)
            self.worker.imports = imports_of(kernel.backend)
            reply = self.worker.run(job, dialogue, self.limit(signature, (), None), f"{kernel.name} on {signature.title()}",
                                    dialogue.forget)
            try:
                if reply.status != "RAN":
                    raise _Decided(self._not_run(kernel, reply, dialogue))
                if not set(reply.names) <= signature.graph.inputs.keys():
                    raise ProtocolError(f"it prepares from {', '.join(reply.names)}, which are no inputs")
            except ProtocolError as e:
                raise _Decided(_inconsistent(e)) from e
            self._prepared[key] = reply.names
        return self._prepared[key]

    def secret(self, signature: Signature) -> int:
        """Return the secret seed of inputs that expose remembered or precomputed answers; drawn per signature, stored in rows."""
        return self._secrets.setdefault(signature.key, 10_000 + secrets.randbelow(1 << 31))

    def _timing(self, asked: JudgeTask, budget: float, least: float, baseline: bool) -> Timing:
        kernel, signature, time_at = asked.kernel, asked.signature, asked.time_at or {}
        point = Point(pairs(time_at), self.secret(signature), given=asked.given)
        bound = _bound(signature, time_at)
        level = self._levels.get((kernel.backend == "c", bound), math.inf)
        timing = Timing(point, 0 if _within(signature, time_at, *QUICK) else FEW_WAYS, budget,
                        baseline and _within(signature, time_at, PLAIN_WORK, 1e12), bound, level, least,
                        self._renewable(asked) if baseline else ())
        if self.expected(signature, replace(point, perturbed=self._perturbation(kernel, signature, timing, 0, 0, 0))) is None:
            raise JudgeError(f"{signature.title()} has no value at {dict(time_at)}, so it cannot be timed there")
        return timing

    def _renewable(self, asked: JudgeTask) -> tuple[str, ...]:
        """Return the operands that can get entirely new values; done once in a measurement, as it is slow."""
        supplied = {name for name, _ in asked.given}
        prepared = self.prepared(asked.kernel, asked.signature)
        names = changeable(asked.signature.graph, pairs(asked.time_at or {}), prepared)
        return tuple(name for name in names if name not in supplied)

    def _perturbation(self, kernel: Kernel, signature: Signature, timing: Timing, run: int, secret: int, salt: int) -> Perturb:
        """Return the perturbation of the operands in a timed run."""
        prepared = self.prepared(kernel, signature)
        return perturbed(signature.graph, timing.point.sizes, *timing.way(run, secret, salt), prepared)

    def _passed_verdict(self, signature: Signature, dialogues: Sequence[_Dialogue]) -> Verdict:
        """Return the verdict on a kernel whose outputs are right, without its times."""
        shown = max((dialogue.covers for dialogue in dialogues), key=len)
        return Verdict("PASSED", *_worst(dialogues), "", seed=self.secret(signature),
                       covered=covered(shown, signature) if shown else {})

    def _with_class(self, asked: JudgeTask, verdict: Verdict) -> Verdict:
        """Return a PASSED verdict of few points combined with its class's: the larger of both errors, and a note."""
        small = smaller(asked.kernel, asked.signature) if verdict.status == "PASSED" and verdict.covered else None
        error = None if small is None else self._passed.get((asked.kernel.identity, small.key))
        if small is None or error is None:
            return verdict
        return replace(verdict, error=max(error, verdict.error or 0.0),
                       covered={**verdict.covered, "and": f"all points of {small.title()}"})

    def _timed_verdict(self, asked: JudgeTask, dialogues: Sequence[_Dialogue]) -> Verdict:
        """Return the verdict on a timed kernel whose outputs are right: PASSED, or IMPLAUSIBLE if the device cannot be so fast."""
        kernel, signature, binding = asked.kernel, asked.signature, asked.time_at or {}
        bound = _bound(signature, binding)
        right = self._passed_verdict(signature, dialogues)
        weighed = aggregate(_timed(dialogues))
        lowest = self._levels.get((kernel.backend == "c", bound), math.inf)
        self._levels[kernel.backend == "c", bound] = min(lowest, weighed.level)
        floor, median = self._floor(kernel, signature, binding), statistics.median(weighed.cold)
        if median < floor:
            return replace(right, status="IMPLAUSIBLE", log=f"{median:.2g} s: this work takes {floor:.2g} s at least")
        timing = {**weighed.timing, "reference": {**weighed.timing["reference"], "kind": bound}}
        return replace(right, samples=weighed.cold, plain=weighed.plain, timing=timing)

    def _doubt(self, asked: JudgeTask, verdict: Verdict) -> str:
        """Return the reason for which a time is measured again before it is stored; "" if there is none."""
        signature = asked.signature
        if asked.time_at is None or verdict.status != "PASSED":
            return ""
        best = queries.best_implementation(self.database, signature.key, timed_workload(signature, asked.time_at, asked.given),
                                           environment_of(asked.kernel.backend, self.threads), float("inf"), verifier=VERIFIER)
        median = statistics.median(verdict.samples) * 1e3
        if best and best[0].median_ms is not None and median * SUSPICIOUS < best[0].median_ms:
            return f"{median:.3g} ms, and the best that is known is {best[0].median_ms:.3g} ms"
        return ""

    @staticmethod
    def _slower(first: Verdict, second: Verdict, doubt: str) -> Verdict:
        """Return the slower of two measurements; IMPLAUSIBLE if they differ by more than the factor APART."""
        one, two = statistics.median(first.samples), statistics.median(second.samples)
        if max(one, two) > APART * min(one, two):
            return replace(first, status="IMPLAUSIBLE", log=f"{doubt}; measured again, {two * 1e3:.3g} ms", samples=(), plain=())
        slower = first if one >= two else second
        return replace(slower, timing={**slower.timing, "measured_twice": [one * 1e3, two * 1e3]})

    def _floor(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> float:
        """Return a time [s] that no kernel on its device beats; flops count only for ops that no formula computes with fewer."""
        device = device_of(kernel.backend)
        peaks = device.peaks()
        rates = self.rates if device.is_host else DeviceRates(peaks.get(READ, math.inf), peaks.get(FLOPS, math.inf))
        traffic, flops = work(signature, pairs_at(signature, binding))
        flops = flops if signature.spec.op in (linear, dot) else 0.0
        return max(traffic / rates.bandwidth, flops / rates.flops) / IMPLAUSIBLE_FACTOR

    def _compare(self, signature: Signature, point: Point, reported: ReportedOutput, read: Callable[[int], np.ndarray],
                 worst: list[float], returned: str | None = None) -> Verdict | None:
        """Return a verdict if the next outputs of the worker are wrong, else None. read: yields the outputs' bytes. worst: collects
        the errors. returned: digest of the outputs when the block of their run ended."""
        if reported.outside:
            return _failure("INCORRECT_SHAPE", f"at {point} it wrote outside: {'; '.join(reported.outside)}")
        if reported.mutated:
            return _failure("MUTATED_INPUT", f"an operand was changed at {point}")
        stored = self._stored_answer(signature, point)
        assert stored is not None
        expected: Mapping[str, np.ndarray] = self._restored(signature, point, stored)
        if point.rows is not None:
            expected = all_rows(signature.graph, point, expected, outputs=True)
        outputs: dict[str, np.ndarray] = {}
        error_of, in_full = partial(self._error, signature, point), False
        for name, node in signature.graph.outputs.items():
            t = node.type.at(point.binding)
            shape = reported.shapes.get(name)
            if shape is None:
                raise ProtocolError(f"of output {name} nothing was said")
            if shape != t.shape:
                return _failure("INCORRECT_SHAPE", f"output {name}: {shape} instead of {t} at {point}")
            limit, picked = same_math_limit((t,), signature.unit), None
            if name in reported.rows:
                update, answer = self._read_rows(signature, point, name, reported.rows[name], read), stored[name]
                if isinstance(answer, Updated) and np.array_equal(update.rows, answer.rows):   # all other rows are the operand's
                    report = error_of(name, update.values, answer.values, in_full=False, rows=update.rows)
                    if report.within(limit):
                        _update_worst(worst, report)
                        continue
                data = bytes_of(update.whole(point_inputs(signature.graph, point)[update.base]))
            else:
                data = read(int(np.prod(shape)) * t.dtype.itemsize)
            if data.nbytes != int(np.prod(shape)) * t.dtype.itemsize:
                return _failure("INCORRECT_DTYPE", f"output {name}: {data.nbytes} bytes, {t} expected")
            outputs[name] = data
            values = data.view(t.dtype.numpy).reshape(shape)
            report = error_of(name, values, expected[name], in_full=in_full)
            if point.rows is not None and not in_full and not report.within(limit):     # are its rows independent after all?
                expected, in_full = self.expected_in_full(signature, point), True
                report = error_of(name, values, expected[name], in_full=in_full)
            if (point.extreme is not None or point.form in SAME_VALUES) and not report.within(limit):
                wrong = self._wrong_rows(signature, point, name, values, expected[name], limit, in_full)
                moves = self.rounding(signature, point, in_full)
                rows = ~wrong | settled_rows(signature, point, expected, SAME_MATH, moves, {name: wrong})[name]
                if not rows.any():
                    continue                                        # the answer depends on rounding: no kernel is held to it
                picked = rows
                report = error_of(name, rows_of(values)[rows], rows_of(expected[name])[rows], in_full=in_full, rows=rows)
            if point.special and not report.within(limit):
                asked = depends_on_special(signature, point)[name]
                if adds_floats(signature.graph):                    # tiles are padded with zeros, and 0 · ∞ is NaN
                    asked &= ~(np.isinf(expected[name]) & np.isnan(values.astype(np.float64)))
                out, picked = np.where(asked, values, expected[name].astype(values.dtype)), None
                report = error_of(name, out, expected[name], in_full=in_full)
            _update_worst(worst, report)
            if report.mismatch is not None or not report.max_relative_error <= limit:
                error = report.max_relative_error if not report.max_relative_error <= limit else float("inf")
                off = where_wrong.wrong_elements(values, np.asarray(expected[name]), t.dtype, limit)
                found_there = (where_wrong.UNWRITTEN if where_wrong.unwritten(values, off) else
                               f"error {report.max_relative_error:.3g} > {limit:.2g} "
                               f"{report.mismatch or _at_worst(report.worst, shape, picked)}")
                attributes = signature.attributes()
                return Verdict("INCORRECT_NUMERICAL", error, report.p999, report.norm_error, report.max_absolute_error,
                               f"output {name} at {point}{f' with {attributes}' if attributes else ''}: {found_there}"
                               + (f"; {where}" if (where := where_wrong.in_words(off, picked)) else ""), point=point)
        if returned is not None and digest(outputs) != returned:
            return _failure("RUNTIME_ERROR", f"an output at {point} was changed after the block of runs that returned it")
        return None

    def _read_rows(self, signature: Signature, point: Point, name: str, count: int, read: Callable[[int], np.ndarray]) -> Updated:
        """Return an output of which the worker sent only the changed rows. Raises ProtocolError if these are not valid."""
        t, base = signature.graph.outputs[name].type.at(point.binding), bases(signature.graph, point.binding).get(name)
        shape = tuple(map(int, t.shape))
        if base is None or count > math.prod(shape[:-1]):
            raise ProtocolError(f"{count} rows were told of output {name}")
        numbers, data = read(8 * count), read(count * shape[-1] * t.dtype.itemsize)
        if numbers.nbytes != 8 * count or data.nbytes != count * shape[-1] * t.dtype.itemsize:
            raise ProtocolError(f"of output {name} fewer rows are there than {count}")
        rows = numbers.view(np.int64)
        if count and not (rows[0] >= 0 and rows[-1] < math.prod(shape[:-1]) and (np.diff(rows) > 0).all()):
            raise ProtocolError(f"the rows that were told of output {name} are not in order")
        return Updated(shape, base, rows, data.view(t.dtype.numpy).reshape(count, shape[-1]))

    def record(self, kernel: Kernel, signature: Signature, verdict: Verdict, binding: Mapping[str, int] | None,
               given: Given = ()) -> TraceRecord | None:
        """Store a verdict (binding None) or a time; return the row. Raises JudgeError if code of this process was replaced."""
        refuse_replaced()                                           # here too: `examine_interleaved` itself may have been replaced
        if verdict.status == JUDGE_ERROR:
            log.error("%s", verdict.log)
            return None
        self.database.ensure_graph(graph_record(signature))
        workload = verify_workload(signature) if binding is None else timed_workload(signature, binding, given)
        timed = binding is not None
        plain = statistics.median(verdict.plain) * 1e3 if timed and verdict.plain else None
        trace = TraceRecord(
            implementation_of(kernel), workload, environment_of(kernel.backend, self.threads), "cold" if timed else "verify",
            verdict.status, samples_ms=tuple(s * 1e3 for s in verdict.samples) if timed else (),
            max_relative_error=verdict.error, p999_relative_error=verdict.p999, norm_error=verdict.norm_error,
            max_absolute_error=verdict.absolute, tolerance=same_math_limit(signature.spec.outputs, signature.unit),
            seed=verdict.seed,
            timer=TIMER if timed and verdict.samples else "", verifier=VERIFIER, log=verdict.log,
            baseline="" if plain is None else PLAIN, baseline_ms=plain,
            conditions={"threads": self.threads or 0, **(verdict.timing if timed else {}),
                        **({"covered": dict(verdict.covered)} if verdict.covered and not timed else {}),
                        **({} if verdict.point is None else failing_point.kept(signature.graph, verdict.point))})
        self.database.add_trace(trace)
        log.info("%s on %s: %s error %s", kernel.name, signature.title(), verdict.status, verdict.error)
        return trace


def _rounding(graph: Graph, inputs: Mapping[str, np.ndarray], binding: Mapping[str, int], expected: Mapping[str, np.ndarray],
              unit: float) -> dict[str, np.ndarray]:
    """Return the running errors of a graph's float outputs, or estimates where a running error is too much work. unit: of the
    coarsest rounding that the graph allows (`licensed_unit`)."""
    def estimated(name: str) -> np.ndarray:
        dtype = graph.outputs[name].dtype
        return neighbours_error(expected[name], dtype) * max(1.0, unit / unit_roundoff(dtype))

    return {name: estimated(name) if error is None else error for name, error in running_error(graph, inputs, binding).items()}


def _update_worst(worst: list[float], report: ErrorReport) -> None:
    """Update the largest error of each kind in place; NaN counts as largest."""
    for i, value in enumerate((report.max_relative_error, report.p999, report.norm_error, report.max_absolute_error)):
        worst[i] = value if not value <= worst[i] else worst[i]


def _at_worst(worst: Worst | None, shape: Sequence[int], picked: np.ndarray | None) -> str:
    """Return a phrase with the position of the largest error. picked: mask of the rows that were compared, if not all were."""
    if worst is not None and picked is not None:
        row, *rest = worst.index
        row = int(np.flatnonzero(picked)[row])
        worst = replace(worst, index=(*map(int, np.unravel_index(row, tuple(shape[:-1]))), *rest))
    return "" if worst is None else f"({worst})"


class _Dialogue:
    """Exchange of messages with a worker during a job, with their times: outputs are ready, a block of runs begins or ends."""

    def __init__(self, judge: Judge, signature: Signature, points: Sequence[Point], timing: Timing | None,
                 later: WorkerProcess | None = None, earlier: Sequence[_Dialogue] = ()) -> None:
        """later: worker whose outputs are copied when ready and compared on demand, so that it can run something else. earlier:
        dialogues of the same task's jobs at other points."""
        self.judge, self.signature, self.points, self.timing, self.later = judge, signature, points, timing, later
        self.earlier = earlier
        self.worker = later or judge.worker
        self._kept: np.ndarray | None = None
        self._file: BinaryIO | None = None
        self.forget()

    def forget(self) -> None:
        """Reset all state: the job begins, or begins again."""
        self.close()
        self._kept = None
        self.before: type[Mark] | None = None
        """the previous message's type"""
        self.at = ""
        """position in the job at which the kernel is being run, as a phrase for a verdict"""
        self.blocks: list[Block] = []
        self.worst = list(_worst(self.earlier)) if self.earlier else [0.0, 0.0, 0.0, 0.0]
        self.runs: list[int] = []
        self.anew: set[int] = set()
        self.digests: dict[int, str] = {}
        """run -> digest of its stored outputs, taken when its block ended"""
        self._begun, self._secret, self._others = 0.0, 0, 0.0
        self._scheduled: tuple[float, ...] = ()
        self._secrets: list[tuple[int, int]] = []
        """first run of each block, and the seed of the block's runs"""
        self._salts: Mapping[int, int] = {}
        self._shown: tuple[ReportedOutput, ...] = ()
        self._verdict: tuple[Verdict | None] | None = None

    @property
    def covers(self) -> list[Point]:
        """Points of all jobs of the task so far."""
        return [p for dialogue in (*self.earlier, self) for p in dialogue.points]

    @property
    def loaded(self) -> bool:
        """Return whether the worker has reported that the kernel was imported."""
        return self.before is not None

    def placed(self, reply: Reply) -> str:
        """Return the log of a reply, with the point at which the worker died or hung; exceptions name their point themselves."""
        first, line, rest = reply.log.partition("\n")
        return f"{first}{self.at}{line}{rest}" if reply.status == "TIMEOUT" or first.startswith(DIED) else reply.log

    def __call__(self, mark: Mark, at: float) -> dict[str, Any] | None:
        """Process a message and return the answer to the worker. Raises ProtocolError, also for a message out of order."""
        if type(mark) not in AFTER[self.before] or (self.timing is None and isinstance(mark, Begin)):
            raise ProtocolError(f"{type(mark).__name__} after {'nothing' if self.before is None else self.before.__name__}")
        self.before = type(mark)
        match mark:
            case Next():
                if mark.number >= len(self.points):
                    raise ProtocolError(f"point {mark.number} was told of, and there are {len(self.points)}")
                self.at = f"{' in many calls in a row' if mark.many else ''} at {self.points[mark.number]}"
            case Shown():
                self.at = "" if self.timing is None else f" in a timed run at {self.timing.point}"
                if len(mark.points) != len(self.points):
                    raise ProtocolError(f"outputs at {len(mark.points)} points were told of, and {len(self.points)} are due")
                if any(not self.signature.graph.outputs.keys() <= point.shapes.keys() for point in mark.points):
                    raise ProtocolError("of an output nothing was said")
                self._shown = mark.points
                if self.later:
                    self._kept = np.fromfile(self.file(), np.uint8, os.fstat(self.file().fileno()).st_size)
                elif self.timing is None:                           # nothing is being timed meanwhile, so that there is time for it
                    self.compared()
            case Begin():
                if len(self.blocks) >= MOST_BLOCKS:
                    raise ProtocolError("more blocks were begun than any measurement has")
                self._secret, self._others, self._scheduled = secrets.randbits(62), self.others(), self.scheduled()
                self._begun = time.perf_counter()                   # the worker does nothing before it is answered
                return {"secret": self._secret}
            case End():
                if mark.first != sum(len(b.whole) for b in self.blocks):
                    raise ProtocolError(f"the first run of a block was told of as {mark.first}")
                before, after = self._scheduled, self.scheduled()
                passed = [b - a for a, b in zip(before, after, strict=False)]
                self.blocks.append(Block.of(mark, at - self._begun, self.others() - self._others, *passed))
                self._secrets.append((mark.first, self._secret))
                return {"heard": True}
            case Returned():
                last = self.blocks[-1]
                if not mark.digests.keys() <= set(range(last.first + WARM_UP, last.first + len(last.whole))):
                    raise ProtocolError("digests were told of runs that are not of their block")
                self.digests |= mark.digests
            case Kept():                                            # chosen now, when all runs are over
                self._salts = mark.salts
                first = next((b.first for b in self.blocks if b.name == "new"), math.inf)
                self.anew = {run for run in self._salts if run >= first}
                others = sorted(self._salts.keys() - self.anew)
                if not others or not self._salts.keys() <= self.digests.keys():
                    raise ProtocolError("outputs were kept of no run, or of runs of which it was not said what they have returned")
                for due, runs in ((self._due("cold"), set(others)), (self._due("new"), self.anew)):
                    if not runs <= due or len(runs) < min(len(due), self._most_kept()):
                        raise ProtocolError(f"outputs were kept of {len(runs)} runs, and {len(due)} were due")
                draw = secrets.SystemRandom().sample
                anew = 1 if self.timing is not None and self.timing.ways else LOOKED_AT
                self.runs = [*draw(others[:-1], min(LOOKED_AT, len(others) - 1)), others[-1],
                             *draw(sorted(self.anew), min(anew, len(self.anew)))]
                return {"runs": self.runs}
        return None

    def _due(self, name: str) -> set[int]:
        """Return the runs of the blocks of this name whose outputs must have been stored."""
        assert self.timing is not None
        return {run for block, (first, secret) in zip(self.blocks, self._secrets, strict=True) if block.name == name
                for run in range(first + WARM_UP, first + len(block.whole))
                if name == "new" or self.timing.comparable(run, secret)}

    def _most_kept(self) -> int:
        assert self.timing is not None
        types = [t.at(self.timing.point.binding) for t in self.signature.spec.outputs]
        return most_kept(sum(int(t.size()) * t.dtype.itemsize for t in types))

    def end(self) -> None:
        """Raise ProtocolError unless the job's last message has arrived."""
        last = Shown if self.timing is None else Kept
        if self.before is not last:
            raise ProtocolError(f"the job ended without the word {last.__name__}")

    def others(self) -> float:
        """Return the seconds for which processors have worked for other processes than the worker and this process."""
        worker = self.worker.pid
        return process_tree.machine_worked() - (process_tree.worked(worker) if worker else 0.0) - time.process_time()

    def scheduled(self) -> tuple[float, ...]:
        """Return () where unknown, else seconds for which the worker's first thread and this thread waited for a processor, for
        which the worker's first thread ran, and for which its other threads waited. The worker sleeps meanwhile."""
        worker = self.worker.pid
        its, mine = process_tree.scheduled(str(worker)), process_tree.scheduled("thread-self")
        if worker is None or its is None or mine is None:
            return ()
        return its[1] + mine[1], its[0], process_tree.others_waited(worker)

    def secret_of(self, run: int) -> tuple[int, int]:
        """Return the seed of the block of a run, and the salt that the worker reports to have drawn for the run."""
        return next((secret for first, secret in reversed(self._secrets) if first <= run), 0), self._salts[run]

    def compared(self) -> Verdict | None:
        """Return a verdict if outputs at the points are wrong, else None."""
        if self._verdict is None:
            wrong = None
            last: tuple[Point, ReportedOutput, np.ndarray] | None = None      # what was right, where it is kept
            for point, reported in zip(self.points, self._shown, strict=True):
                if last is not None and last[0] == point and self._again(reported, *last[1:]):
                    continue
                left = self._kept
                with self.judge._memory_lock(self.signature, point):
                    wrong = self.judge._compare(self.signature, point, reported, self.read, self.worst)
                if wrong is not None:
                    before = [*(p for dialogue in self.earlier for p in dialogue.points), *self.points[:self.points.index(point)]]
                    if wrong.point is not None and (sizes := where_wrong.other_sizes(before, point)):
                        wrong = replace(wrong, log=f"{wrong.log}; right at {sizes}")
                    break
                last = None if left is None or self._kept is None else (point, reported, left[:left.size - self._kept.size])
            self._verdict, self._kept = (wrong,), None
        return self._verdict[0]

    def _again(self, reported: ReportedOutput, previous: ReportedOutput, data: np.ndarray) -> bool:
        """Return whether the next outputs equal bit by bit those that were right before at the same point; if so, skip them."""
        same = self._kept is not None and reported == previous and np.array_equal(self._kept[:data.size], data)
        if same:
            self.read(data.size)
        return same

    def read(self, count: int) -> np.ndarray:
        """Return the next bytes of the outputs; fewer at their end."""
        if self._kept is None:
            data = reused_arrays.empty((count,), np.uint8)
            return data[:self.file().readinto(data.data)]         # type: ignore[attr-defined]
        data, self._kept = self._kept[:count], self._kept[count:]
        return data

    def file(self) -> BinaryIO:
        """Return the worker's file of outputs, positioned after those that were compared."""
        if self._file is None:
            self._file = self.worker.outputs()
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


AFTER: Mapping[type[Mark] | None, tuple[type[Mark], ...]] = {
    None: (Loaded,), Loaded: (Next, Shown), Next: (Next, Shown), Shown: (Begin,), Begin: (End,), End: (Returned, Begin, Kept),
    Returned: (Begin, Kept), Kept: ()}
"""type of a message -> types of messages that may follow it"""

MOST_BLOCKS = 7
"""most blocks of one worker's measurement: one of each name, and a second cold one"""


class _Decided(Exception):
    """A verdict that needs no run: of a kernel that fails before it, or has passed where it does the same."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.log)
        self.verdict = verdict


def _stop_where_rows_repeat(asked: JudgeTask, small: Signature, error: float | None) -> None:
    """Raise _Decided for a kernel of an op `by_rows` that has passed, with this error, at the smaller sizes of its class."""
    if asked.time_at is None and asked.signature.spec.op.facts.by_rows:
        covers = {"points": 0, "and": f"all points of {small.title()}"}
        raise _Decided(Verdict("PASSED", error, error, error, None, "", covered=covers))


def _edited(kernel: Kernel) -> bool:
    """Return whether a kernel's files differ from the source that this process has read, so that a worker would load other code."""
    file = origin_of(kernel).file
    try:
        return kernel.code.changed() is not None or file is None or kernel.source not in Path(file).read_text(errors="replace")
    except OSError:
        return True


def _named_job(kernel: Kernel, signature: Signature) -> dict[str, Any]:
    """Return the part of a worker's job that names the kernel, its code and its origin, and the graph that it computes."""
    return {"graph": print_graph(signature.graph), "kernel": kernel.name, "identity": kernel.identity,
            "parts": dict(kernel.code.parts), "origins": [origin_of(kernel)], "guests": _guests(kernel)}


def _guests(kernel: Kernel) -> list[str]:
    """Return a list of the kernel's identity if it is user-registered, else an empty list."""
    return [] if kernel.ours else [kernel.identity]


def _timed(dialogues: Sequence[_Dialogue]) -> list[list[Block]]:
    """Return the blocks of each worker that timed; a worker may only have compared."""
    return [dialogue.blocks for dialogue in dialogues if dialogue.blocks]


def _worst(dialogues: Sequence[_Dialogue]) -> tuple[float, float, float, float]:
    """Return the largest error of each kind, in the order of a verdict's fields; NaN if one is NaN."""
    worst = zip(*(dialogue.worst for dialogue in dialogues), strict=True)
    a, b, c, e = (max(errors, key=lambda value: (math.isnan(value), value)) for errors in worst)
    return a, b, c, e


def _failure(status: Status | Literal["JUDGE_ERROR"], why: str) -> Verdict:
    return Verdict(status, None, None, None, None, why)


def _or_judge_error(find: Callable[[JudgeTask], T], asked: JudgeTask) -> T | Verdict:
    """Return find(asked), or a JUDGE_ERROR verdict if the judge's own code fails. Raises errors that a user can fix."""
    try:
        return find(asked)
    except _Decided as e:
        return e.verdict
    except TensorGraphsError:
        raise
    except Exception:
        return _judge_error(asked.kernel, asked.signature, traceback.format_exc())


def _judge_error(kernel: Kernel, signature: Signature, why: str) -> Verdict:
    """Return the verdict for a failure of the judge's own code; its log has all that a bug report needs."""
    failed = f"the judge itself failed over {kernel.name} on {signature.title()}, so nothing is filed of it: {reason_of(why)}"
    fix = "  fix: report it as a fault of tensor_graphs, with these lines and tg --version"
    return _failure(JUDGE_ERROR, "\n".join((failed, fix, why.rstrip(), print_graph(signature.graph))))


def _inconsistent(error: ProtocolError) -> Verdict:
    return _failure("RUNTIME_ERROR", f"what the worker said does not go together: {error}")


def pairs_at(signature: Signature, binding: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((n, int(binding[n])) for n in signature.dim_names))


def _jobs(signature: Signature, shown: Sequence[Point]) -> list[list[Point]]:
    """Split the points into jobs of about AT_ONCE bytes of outputs; points that share memory stay in one job."""
    jobs: list[list[Point]] = [[]]
    left = AT_ONCE
    for point in shown:
        nbytes = sum(int(node.type.at(point.binding).nbytes()) for node in signature.graph.outputs.values())
        if jobs[-1] and nbytes > left and point.like is None and point != jobs[-1][-1]:
            jobs.append([])
            left = AT_ONCE
        jobs[-1].append(point)
        left -= nbytes
    return jobs


def _big(signature: Signature, binding: Mapping[str, int]) -> bool:
    return not _within(signature, binding, BIG_WORK, BIG_TRAFFIC)


def _bound(signature: Signature, binding: Mapping[str, int]) -> Kind:
    """Return the kind of reference with which the time of this work is compared."""
    traffic, flops = work(signature, pairs_at(signature, binding))
    return "read" if traffic >= FEW_BYTES and flops <= FLOPS_PER_BYTE * traffic else "arithmetic"


def _within(signature: Signature, binding: Mapping[str, int], flops: float, traffic: float) -> bool:
    moved, arithmetic = work(signature, pairs_at(signature, binding))
    return arithmetic <= flops and moved <= traffic


def refuse_replaced() -> None:
    """Raise JudgeError if anything that defines correct results was replaced after this module was imported.

    It takes about a millisecond. It detects a careless module and a plain attempt; code in this process can undo it."""
    names = sorted({*_WATCH.replaced(), *_STRANGE})
    if names:
        raise JudgeError(f"this process would judge with other code than tensor_graphs': {', '.join(names)} "
                         f"{'was' if len(names) == 1 else 'were'} replaced, so no verdict would mean anything\n"
                         "  fix: start Python again without the module that replaces it (a kernel's own, perhaps)")


_REACHED = reached(__name__)
_WATCH = Names(lambda name: name in _REACHED or name.startswith(MEANINGS), (np,),
               {f"tensor_graphs.{each}" for each in ABOUT_TIMES})
_STRANGE = _WATCH.strange()
"""names found replaced already at import. This statement comes last, so that everything above is watched"""
