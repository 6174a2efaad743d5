"""judge: compares what a worker returns with the float64 oracle, and writes the verdict (and the time) to the database.

The worker is a separate process (worker_process.py, worker.py). Expected outputs stay here, and so does the clock that decides
whether a time can be true. A crash, a hang or a wrong result is a row too.
"""

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
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeVar

import numpy as np

from tensor_graphs.costs.filing import (
    VERIFIER,
    environment_of,
    graph_record,
    implementation_of,
    timed_workload,
    verdict_key,
    verify_workload,
)
from tensor_graphs.costs.known_rates import FLOPS, READ
from tensor_graphs.costs.roofline import DeviceRates, work
from tensor_graphs.devices.environment import usable_cores
from tensor_graphs.devices.free_memory import OutOfMemory, require_memory
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.import_spec import origin_of, out_of_reach
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.registry import device_of, imports_of
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.composites.products import dot, linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.text_writer import print_graph
from tensor_graphs.meaning.error_measure import (
    ROUNDINGS,
    ErrorReport,
    Worst,
    measure,
    row_errors,
    unit_roundoff,
)
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.precision import Precision
from tensor_graphs.meaning.same_math import SAME_MATH, same_math_limit
from tensor_graphs.measure import failing_point, operand_precision, where_wrong
from tensor_graphs.measure.assumptions import holds
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
from tensor_graphs.measure.points.adversarial import adversarial_points, hangs_on_special, rows_of, settled_rows
from tensor_graphs.measure.points.changed_rows import Updated, Whole, bases, updated
from tensor_graphs.measure.points.coverage import covered, layout_points, size_points, special_points, together_points
from tensor_graphs.measure.points.descriptors import Given, InputError
from tensor_graphs.measure.points.fixed_rows import candidates, fewer, is_fixed, size_of, taken
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
    perturbed,
    point_inputs,
    work_points,
)
from tensor_graphs.measure.points.row_errors import doubtful, moves_of_rows
from tensor_graphs.measure.points.single_kernel import prepared_names
from tensor_graphs.measure.points.size_classes import points_at_size, smaller
from tensor_graphs.measure.timing.aggregate import aggregate, found_quiet
from tensor_graphs.measure.timing.bench import PATIENCE, Timing, grow_heap, most_kept
from tensor_graphs.measure.timing.clock import TIMER
from tensor_graphs.measure.timing.one_thread import one_thread
from tensor_graphs.measure.timing.reference_stream import Kind, waits_for_quiet
from tensor_graphs.measure.timing.timed_batch import LEAST_SECONDS, WARM_UP, Block, implausible
from tensor_graphs.records import queries
from tensor_graphs.records.database import Database
from tensor_graphs.records.logs import reason_of
from tensor_graphs.records.rows import Status, TraceRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

NOTICED = {"f64": 64.0, "f32": 64.0, "f16": 2.0, "bf16": 2.0, "f8e4m3": 2.0, "f8e5m2": 2.0}
"""unit roundoffs of the output's dtype: where an error is more, it is asked whether rounding explains it (most kernels of a narrow
dtype compute in f32, and round once)"""

LARGE_WORK = (5e6, 1 << 20)
"""flops and bytes up to which a kernel is compared at the far end of its dims too (the oracle takes some 50 ms for it)"""

PLAIN = "plain"
"""the name under which the plain path's time is stored as a baseline"""

PLAIN_WORK = 1e10
"""flops beyond which the plain path is not timed beside a kernel"""

FEW_BYTES = 256 << 10
"""what moves less than this waits for memory rather than reads it: 64 KB, read cold beside a neighbour, came within 5 % of
itself in 98 % of pairs of 5 s over the arithmetic reference, in 44 % over the reading one (5 MB: half, and all)"""

FLOPS_PER_BYTE = 10.0
"""work with more flops for each byte it moves is bound by arithmetic, on the CPUs we know. A constant: by measured rates, which
differ from day to day, the same softmax would be compared with one reference now and with the other then"""

FEW_WAYS = 2
"""ways in which operands of timed runs that may be compared are perturbed, where the oracle is slow: it is asked once for each"""

QUICK = (1e8, 1 << 24)
"""flops and bytes up to which the oracle is quick: some 20 ms"""

SLOW = 0.25
"""seconds of the oracle for one answer from which on a kernel of this package is compared on copies of few rows, but for two:
it does not remember what it was asked"""

MOST_DRAWN = 1 << 25
"""elements of an operand that are drawn once more to see whether its rows depend on each other, where that spares slow answers"""

AT_ONCE = 256 << 20
"""bytes of outputs that a worker keeps for the judge, about: twice as much is touched by both"""

RACES = 3
"""times that a kernel on another device than the host is asked the same, one behind the other: its threads come in another order
each time (of a large question the first one only, which has threads enough)"""

LOOKED_AT = 2
"""timed runs of which the outputs are compared, beside the last one"""

LEAST_WAIT = 20.0
"""seconds that a kernel may take over anything: one that is compiled when it is called first is no hanging one …"""

SLOWER = 100.0
"""… and so many times what the oracle took on the same points; JOB_SECONDS in all at most"""

RUNS_BETWEEN = 8
"""runs between two words of a worker that times, about"""

SUSPICIOUS = 10.0
"""a time so many times below the best that is known here is measured again in a fresh worker"""

APART = 3.0
"""two measurements of one kernel that differ by more are no measurements"""

AGAIN = (0.1, 0.5)
"""a measurement in doubt is repeated in blocks that last so many seconds at least"""

PROCESSES = 12
"""fresh workers over which a long measurement is spread: where a process happens to lie in memory makes the same kernel faster or
slower by some percent, in small ones by a third"""

PROCESS_SECONDS = 0.3
"""of a measurement, for each of them at least"""

MOST_ROUNDS = 2
"""times as many workers at most, where some found no quiet"""

IMPLAUSIBLE_FACTOR = 50.0
"""a time so many times below the device's roofline is no time of this work (caches are at most 20 times as fast as memory)"""


TYPICAL = 20
"""size of the dims, or the nearest in range, where a kernel is compared for a class of sizes"""

BIG_WORK = 4e9
"""flops: sizes beyond this are compared at few points (the oracle takes a second for each)"""

BIG_TRAFFIC = 2.5e8
"""bytes: likewise"""


MEANINGS = "tensor_graphs.language."
"""the modules that say what ops mean: a graph brings them along, whether or not this module imports them. They, and all modules
whose code this one may run, are watched: a kernel's module may be imported in this process, so that it could replace what is in
them; a judge that finds that it did gives no verdict"""

ABOUT_TIMES = ("measure.judge.AGAIN", "measure.judge.BIG_TRAFFIC", "measure.judge.BIG_WORK", "measure.judge.IMPLAUSIBLE_FACTOR",
               "measure.judge.LEAST_WAIT", "measure.judge.SLOWER", "measure.judge.found_quiet",
               "measure.timing.bench.BUSY_SHARE", "measure.timing.bench.QUIET_SECONDS",
               "measure.isolation.worker_process.SILENT_SECONDS", "measure.isolation.worker_process.STOPPED_SECONDS")
"""what may be replaced in them: how long and how often something is measured"""


@dataclass(frozen=True)
class Verdict:
    """What the judge found for one kernel on one signature. samples: cold times [s]; plain: those of the plain path in the same
    run; timing: what else is known of the times, as it is stored; seed: of the values that no kernel could know; covered: what
    `cover.covered` says; point: where a number is wrong. JUDGE_ERROR: the judge's own code failed, so that nothing was found, and
    nothing is filed."""

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
class Asked:
    """A kernel on a signature, as `Judge.examine` takes it."""

    kernel: Kernel
    signature: Signature
    typical: Mapping[str, int]
    time_at: Mapping[str, int] | None = None
    verify: bool = True
    given: Given = ()


def _question(asked: Asked) -> tuple[str, Signature, tuple[tuple[str, int], ...]]:
    return asked.kernel.identity, asked.signature, _pairs(asked.typical)


def of_class(kernel: Kernel, small: Signature) -> Asked:
    """The question about a kernel that stands for a class of sizes."""
    return Asked(kernel, small, {n: d.clamp(TYPICAL, s) for n, s in small.graph.dims.items()})


@dataclass
class _Answers:
    """What the oracle has answered on one signature, by point. took: seconds of the clock, and worked: of this thread's processor;
    held: bytes of the answers. asking: held while it is asked, as kernels of one signature have the same points; an answer that is
    there is read without it."""

    expected: dict[Point, dict[str, np.ndarray | Updated] | None] = field(default_factory=dict)
    rounding: dict[tuple[Point, Precision | None], dict[str, np.ndarray]] = field(default_factory=dict)
    took: dict[Point, float] = field(default_factory=dict)
    worked: dict[Point, float] = field(default_factory=dict)
    held: int = 0
    asking: threading.RLock = field(default_factory=threading.RLock)


WORKERS, ELSEWHERE = 2, 6
"""at most, of comparison_pipeline.py: of kernels of which some compute on the host, each with all of its processors; and of others, whose
workers spend their time in compilers and on operands (of these a worker for two processors)"""

BESIDE, FOR_BESIDE = 2, 8
"""threads of comparison_pipeline.py that ask the oracle and compare, beside those of the workers, where no kernel computes on the host and
that has so many processors. Four take as long: numpy lets go of the interpreter for about half of that work"""

MUCH = 256 << 20
"""bytes that the oracle holds for an answer, from which on one thread at a time asks or compares: each sees the same free memory"""

FOR_A_WORKER = 3
"""signatures for each worker of which the oracle's answers are kept at least: one that is compared, that it runs, and the next …"""

MOST_HELD = 512 << 20
"""… and of as many as have so many bytes together: while one that takes long is run, many quick ones come and go"""

FORESEEN = 8
"""of which the oracle is asked while compilers run"""


class Judge:
    """Asks a worker to run kernels, compares, records. One judge per process is enough; use it as a context manager. Many kernels,
    none of them timed: comparison_pipeline.py."""

    def __init__(self, database: Database, *, timeout: float | None = None, threads: int | None = None,
                 rates: DeviceRates | None = None) -> None:
        """rates: of this device, where they were measured; below them times are IMPLAUSIBLE. timeout: seconds after which a kernel
        counts as hanging (default: by what the oracle takes over the same work, `limit`)."""
        grow_heap()                                                 # the oracle makes and frees large arrays
        self.patient = timeout is None
        self.database, self.threads, self.rates = database, threads, rates or DeviceRates()
        self.worker = WorkerProcess(JOB_SECONDS if timeout is None else timeout)
        cores = usable_cores()
        self.workers = min(WORKERS, cores)
        """how many may compare at once …"""
        self.elsewhere = max(self.workers, min(ELSEWHERE, cores // 2))
        """… where no kernel computes on the host"""
        self.beside = BESIDE if cores >= FOR_BESIDE else 1
        """threads that ask the oracle then"""
        self._answers: dict[Signature, _Answers] = {}
        """of the oracle, by the signature: of the last of them, FOR_A_WORKER or MOST_HELD; points name dims, and a key none"""
        self._keeping = threading.Lock()
        """held while it is looked up in them: the next kernels' answers are made while workers run others (`compare`)"""
        self._much = threading.RLock()
        """held over what takes MUCH; before `_Answers.asking`"""
        self._rows: dict[tuple[Signature, tuple[tuple[str, int], ...]], tuple[str, int] | None] = {}
        """(signature, sizes) -> rows along a fixed axis that are independent (`_look_for_rows`)"""
        self._points: dict[tuple[str, Signature, tuple[tuple[str, int], ...]], list[Point]] = {}
        """(identity, signature, typical sizes) -> where a kernel is going to be compared, as far as that was found ahead"""
        self._later: dict[tuple[str, Signature, tuple[tuple[str, int], ...]], deque[Point]] = {}
        """of these those of later jobs than the first, about which the oracle is to be asked"""
        self._secrets: dict[str, int] = {}
        self._levels: dict[tuple[bool, Kind], float] = {}
        """of the reference streams (native or not, kind), the lowest seen [s]"""
        self._prepared: dict[tuple[str, str], tuple[str, ...]] = {}
        self._passed: dict[tuple[str, str], float | None] = {}
        """(identity, signature's key) -> the error on a class of smaller sizes; None where the kernel did not pass"""
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def ready(self) -> None:
        """Start the worker, if there is none. Raises JudgeError."""
        with self._lock:
            self.worker.ready()

    def begin(self) -> None:
        """Start the worker, if there is none, beside what the caller does next; who needs it meets what goes wrong."""
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
        """The oracle's outputs, kept for the kernels of one signature (they are asked in a row); None: these sizes do not fit."""
        few = self._answered(signature, point)
        return few if few is None or point.rows is None else all_rows(signature.graph, point, few, outputs=True)

    def _answered(self, signature: Signature, point: Point) -> dict[str, np.ndarray] | None:
        """As `expected`; where rows are copies of few, of those few."""
        kept = self._kept(signature, point)
        return None if kept is None else dict(self._whole(signature, point, kept))

    def _whole(self, signature: Signature, point: Point, kept: Mapping[str, np.ndarray | Updated]) -> Whole:
        """Outputs as they were kept, each whole once somebody asks for it."""
        return Whole(kept, lambda: point_inputs(signature.graph, point, by_rows=True))

    def _kept(self, signature: Signature, point: Point) -> dict[str, np.ndarray | Updated] | None:
        """As `_answered`; of outputs that are operands but for some rows, these rows."""
        if point.rows is not None and not is_fixed(point.rows[0]):
            point = few_rows(point)
        key, known = point.values, self._known_of(signature)
        if key not in known.expected:
            with self._in_turn(signature, point), known.asking:
                if key not in known.expected:
                    self._ask_about(signature, point, known)
        return known.expected[key]

    def _in_turn(self, signature: Signature, point: Point) -> AbstractContextManager[object]:
        """What is held while the oracle is asked about a point, or a kernel's outputs are compared there."""
        return self._much if held_by_oracle(signature.graph, point.binding) >= MUCH else nullcontext()

    def _ask_about(self, signature: Signature, point: Point, known: _Answers) -> None:
        begun, worked = time.perf_counter(), time.thread_time()
        require_memory(held_by_oracle(signature.graph, point.binding), f"comparing {signature.title()} with the oracle",
                       "smaller sizes, or dims in their place: a dim is compared at small sizes")
        found: dict[str, np.ndarray | Updated] | None = None
        try:
            found = self._computed(signature, point)
            known.held += sum(each.nbytes for each in found.values())
        except (InputError, OutOfMemory):
            raise
        except (TensorGraphsError, ValueError, IndexError) as e:
            log.debug("%s has no value at %s: %s", signature.title(), point, e)
        known.took[point.values], known.worked[point.values] = time.perf_counter() - begun, time.thread_time() - worked
        known.expected[point.values] = found                        # last: who finds it there needs no lock

    def _computed(self, signature: Signature, point: Point) -> dict[str, np.ndarray | Updated]:
        """The oracle's outputs at a point, of the few rows that differ where it has such, or of those in which an operand was
        overwritten: answers at all points are kept at once."""
        if point.rows is not None:
            graph, few = few_of(signature.graph, point)
            return dict(interpret(graph, point_inputs(graph, few), dims=few.binding).outputs)
        inputs = point_inputs(signature.graph, point, by_rows=True)
        found = interpret(signature.graph, inputs, dims=point.binding).outputs
        operands = bases(signature.graph, point.binding)
        return {name: updated(array, inputs[operands[name]], operands[name]) if name in operands else array
                for name, array in found.items()}

    def _look_for_rows(self, signature: Signature, point: Point, most: int = BIG_INPUT) -> tuple[str, int] | None:
        """Rows along a fixed axis that do not depend on each other, and how many of them are enough, as `Point.rows` says it; None
        where there are none, the point is small, or an operand has more than `most` elements. Seen from what the oracle answered at
        the point: some of its rows have to come out of the same rows of its operands."""
        key = signature, point.sizes
        if key not in self._rows:
            self._rows[key] = self._found_rows(signature, point, most)
        return self._rows[key]

    def _found_rows(self, signature: Signature, point: Point, most: int) -> tuple[str, int] | None:
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
            wanted = taken(expected, few.outputs, numbers)
            if all(np.allclose(some[each].astype(np.float64), wanted[each].astype(np.float64), rtol=1e-9, atol=1e-12,
                               equal_nan=True) for each in wanted):
                return name, count
        return None

    def _known_of(self, signature: Signature) -> _Answers:
        """The oracle's answers on a signature; those on others but for the last ones are forgotten."""
        with self._keeping:
            found = self._answers.pop(signature, None) or _Answers()
            self._answers[signature] = found
            while (len(self._answers) > FOR_A_WORKER * self.elsewhere
                   and sum(each.held for each in self._answers.values()) > MOST_HELD):
                del self._answers[next(iter(self._answers))]
            return found

    def expected_in_full(self, signature: Signature, point: Point) -> dict[str, np.ndarray]:
        """The oracle's outputs for all rows of a point whose rows are copies of few."""
        graph = signature.graph
        return dict(interpret(graph, point_inputs(graph, point, by_rows=True), dims=point.binding).outputs)

    def rounding(self, signature: Signature, point: Point, in_full: bool = False,
                 precision: Precision | None = None) -> dict[str, np.ndarray]:
        """How far rounding may move each value of the float outputs: their running errors, or what stands for those. in_full: for
        all rows of a point whose rows are copies of few. precision: that of a kernel, as `operand_precision` has it."""
        graph = signature.graph
        if point.rows is not None and not in_full:
            return all_rows(graph, point, self._rounding_of_few(signature, point, precision), outputs=True)
        key, known = (point.values, precision), self._known_of(signature).rounding
        if key not in known:
            expected = self.expected_in_full(signature, point) if in_full else self.expected(signature, point)
            assert expected is not None
            known[key] = _rounding(graph, point_inputs(graph, point, by_rows=True), point.binding, expected, precision)
        return known[key]

    def _rounding_of_few(self, signature: Signature, point: Point, precision: Precision | None) -> dict[str, np.ndarray]:
        """`rounding`, of the rows that differ."""
        graph, few = few_of(signature.graph, point)
        if graph is signature.graph:
            return self.rounding(signature, few, precision=precision)
        expected = self._answered(signature, point)
        assert expected is not None
        return _rounding(graph, point_inputs(graph, few), few.binding, expected, precision)

    def _error(self, signature: Signature, point: Point, name: str, out: np.ndarray, ref: np.ndarray, *, in_full: bool,
               rows: np.ndarray | None = None, precision: Precision | None = None) -> ErrorReport:
        """The error of an output, beside what rounding explains. rows: it consists of these rows of the output."""
        t = signature.graph.outputs[name].type
        dtype, limit = t.dtype, same_math_limit((t,), precision)
        roundings = ROUNDINGS * operand_precision.widened(dtype, precision)
        report = measure(out, ref, dtype)
        if dtype.is_float and report.mismatch is None and not report.within(NOTICED[dtype.name] * unit_roundoff(dtype)):
            moves = self.rounding(signature, point, in_full, precision)[name]
            report = measure(out, ref, dtype, rounding=moves if rows is None else rows_of(moves)[rows], roundings=roundings)
            if rows is None and not report.within(limit):
                graph, answer = signature.graph, self.expected_in_full if in_full else self.expected
                doubt = doubtful(out, ref, dtype, moves, limit, roundings)
                found = moves_of_rows(graph, point.binding, lambda: point_inputs(graph, point, by_rows=True),
                                      lambda: answer(signature, point) or {}, name, doubt, moves, precision)
                report = report if found is None else measure(out, ref, dtype, rounding=found, roundings=roundings)
        return report

    def _wrong_rows(self, signature: Signature, point: Point, name: str, out: np.ndarray, ref: np.ndarray, limit: float,
                    in_full: bool, precision: Precision | None = None) -> np.ndarray:
        """Of each row of an output whether it is off by more than is allowed, beside what rounding explains."""
        dtype = signature.graph.outputs[name].dtype
        outs, refs = rows_of(out), rows_of(ref)
        errors = row_errors(outs, refs, dtype)
        off = np.flatnonzero(~(errors <= limit))
        if dtype.is_float and len(off):
            moves = rows_of(self.rounding(signature, point, in_full, precision)[name])
            errors[off] = row_errors(outs, refs, dtype, moves, off, ROUNDINGS * operand_precision.widened(dtype, precision))
        return np.asarray(~(errors <= limit))

    def limit(self, signature: Signature, shown: Sequence[Point], timing: Timing | None) -> float | None:
        """Seconds that a worker may be silent over these points before it counts as hanging; None: as long as the job may take.

        The oracle computes every op by its definition in numpy, so what it took says how much work this is, and (as it has just
        been asked) how busy the machine is. Nothing that takes a second is cut short.
        """
        if not self.patient:
            return None
        took = self._known_of(signature).took.copy()                # at once, while others ask
        seconds = sum(took.get(p.values, 0.0) for p in shown)
        between = 0.0
        if timing is not None:
            seconds += RUNS_BETWEEN * max((t for p, t in took.items() if p.sizes == timing.point.sizes), default=0.0)
            between = PATIENCE[0] * max(timing.budget, timing.least)
        return min(JOB_SECONDS, LEAST_WAIT + SLOWER * seconds + between)

    def points(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int]) -> list[Point]:
        """Where a kernel is compared: sizes small and large, awkward values, remembered answers, shared memory, windows.

        Never none: sizes at which the op has no value are left out, and a signature without any raises JudgeError.
        """
        return self._of_value(signature, self._candidates(kernel, signature, typical))

    def _of_value(self, signature: Signature, points: Sequence[Point]) -> list[Point]:
        """Those at which the op has a value: the oracle is asked about each."""
        return [p for p in points if self._kept(signature, p) is not None]

    def _candidates(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int]) -> list[Point]:
        """As `points`, before the oracle is asked about most of them: the first one has a value."""
        graph = signature.graph
        sizes = work_points(graph, typical)
        affordable = [p for p in sizes if not _big(signature, p) and is_held(graph, p)]
        affordable = affordable or sizes[1:4:2] or sizes[:1]        # an operand is large at any size: the smallest, and a small one
        far = next((p for p in largest_sizes(graph) if _within(signature, p, *LARGE_WORK)), None)
        if far is not None and far not in affordable:
            affordable.append(far)
        found = [p for i, s in enumerate(affordable) if self._kept(signature, p := Point(_pairs(s), 1000 + i)) is not None]
        if not found:
            raise JudgeError(f"{signature.title()} has a value at none of {', '.join(map(str, affordable))}, so no kernel can be "
                             "compared\n  fix: sizes at which its operands fit together")
        base = max(found[:-1] or found, key=lambda p: sum(n for _, n in p.sizes if n <= 32))
        again = found.index(base) + 1
        other = Point(base.sizes, self.secret(signature), like=base.seed)
        kept = self.prepared(kernel, signature)
        slow = kernel.ours and self._known_of(signature).worked.get(base.values, 0.0) > SLOW
        ways = [] if slow else [perturbed(signature.graph, base.sizes, other.seed, number, kept) for number in (0, 2)]
        found[again:again] = [other, *(replace(other, perturbed=way) for way in ways)]
        secret = self.secret(signature)
        big = _big(signature, base.binding)
        drawn = MOST_DRAWN if slow else BIG_INPUT
        rows = self._look_for_rows(signature, base, drawn) if kernel.ours and (slow or not big) else None

        def of_few(points: Sequence[Point]) -> list[Point]:
            return [replace(p, rows=rows) if p.sizes == base.sizes and p.form not in PAIRED else p for p in points]

        awkward = adversarial_points(signature, secret)
        found += of_few(awkward) if slow else awkward
        if not big:
            beside = layout_points(kernel, signature, base.binding, secret) + special_points(signature, base.binding, secret)
            found += of_few(beside)
            found += size_points(signature, secret) + together_points(signature, secret)
            found += hazard_points(signature, base.binding, secret)
        if device_of(kernel.backend).is_host:
            return found if kernel.ours else found + concurrent_points(signature, base, found)
        return [*found[:1] * RACES, *found[1:]] if slow else [p for p in found for _ in range(RACES)]

    def examine(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int], *,
                time_at: Mapping[str, int] | None = None, budget: float = 0.3, verify: bool = True, given: Given = ()) -> Verdict:
        """Run a kernel and compare it with the oracle; with time_at, time it there too, beside the plain path. Nothing is stored.

        verify: compare at many points; otherwise only where it is timed (it has a verdict already). Raises JudgeError when the
        kernel cannot be judged at all. given: operands whose values, where it is timed, come from elsewhere; raises InputError when
        they do not fit.
        """
        return self.examine_in_turns([Asked(kernel, signature, typical, time_at, verify, given)], budget=budget)[0]

    def examine_in_turns(self, asked: Sequence[Asked], *, budget: float = 0.3, until: float = math.inf) -> list[Verdict]:
        """As `examine`, kernels that are to be compared with each other: where a measurement is long enough to be spread over
        several workers, each round measures a part of every kernel, so that what changes within minutes meets all alike.

        budget: seconds for each of them. until: the time (of perf_counter) from which on no part is begun but each one's first.
        """
        refuse_replaced()
        for each in asked:
            reason = out_of_reach(each.kernel)
            if reason is not None:
                raise JudgeError(f"kernel {each.kernel.name!r} cannot be judged: {reason}")
        with self._lock:
            return [self._beyond_doubt(each, verdict, budget, until) for each, verdict in
                    zip(asked, self._rounds(asked, budget, LEAST_SECONDS, until), strict=True)]

    def _beyond_doubt(self, asked: Asked, verdict: Verdict, budget: float, until: float) -> Verdict:
        doubt = self._doubt(asked, verdict)
        if not doubt:
            return verdict
        log.info("%s on %s is measured again in a fresh worker: %s", asked.kernel.name, asked.signature.title(), doubt)
        self.worker.kill()
        (again,) = self._rounds([replace(asked, verify=False)], budget, AGAIN[0], until)
        return self._slower(verdict, again, doubt) if again.status == "PASSED" else again

    def _rounds(self, asked: Sequence[Asked], budget: float, least: float, until: float) -> list[Verdict]:
        """A verdict for each: of one worker, or of several that measure for a part of the budget each, and of more of them where
        the machine was not quiet enough for some; of fewer where the time is over.

        Where there are several, none has done anything before it measures: what a process has allocated shows in its times.
        """
        parts = max(1, min(PROCESSES, int(budget / PROCESS_SECONDS)))
        several = parts > 1
        verdicts: dict[int, Verdict] = {}
        hearings: list[list[_Dialogue]] = [[] for _ in asked]

        def hear(number: int, ask: Callable[[Asked], Verdict | _Dialogue]) -> None:
            heard = _unless_it_fails(ask, asked[number])
            if isinstance(heard, Verdict):
                verdicts[number] = heard
            else:
                hearings[number].append(heard)

        for number, each in enumerate(asked):
            declared = _unless_it_fails(lambda each: self.prepared(each.kernel, each.signature), each)
            if isinstance(declared, Verdict):
                verdicts[number] = declared
            elif each.time_at is None or (several and each.verify):
                hear(number, lambda each: self._ask(each.kernel, each.signature, self._shown(each), None))
        for part in range(MOST_ROUNDS * parts if several else 1):
            for number, each in enumerate(asked):
                if each.time_at is None or number in verdicts or (
                        part >= parts and (not waits_for_quiet() or found_quiet(_timed(hearings[number])) >= parts)):
                    continue
                if part and time.perf_counter() >= until:
                    break
                if several:
                    self.worker.leave()
                hear(number, partial(self._part, several=several, budget=budget / parts, least=least, baseline=not part))
        for number, each in enumerate(asked):
            if number not in verdicts:
                verdicts[number] = _unless_it_fails(partial(self._judged, heard=hearings[number]), each)
        return [verdicts[number] for number in range(len(asked))]

    def _shown(self, asked: Asked) -> list[Point]:
        """Where a kernel is going to be compared; at some of these points its op may have no value."""
        shown = self._to_show(asked)
        if asked.kernel.assuming:
            shown = [p for p in shown if holds(asked.kernel.assuming, asked.signature, p)]
        if asked.verify and not shown:
            why = f"no point was drawn at which {' and '.join(asked.kernel.assuming)} holds"
            raise _Refused(_without_numbers("RUNTIME_ERROR", why))
        return shown

    def _to_show(self, asked: Asked) -> list[Point]:
        if not asked.verify:
            return []
        known = self._points.pop(_question(asked), None)
        if known is not None:
            return known
        small = self._class_of(asked.kernel, asked.signature)
        if small is not None:
            found = points_at_size(asked.kernel, asked.signature, small, asked.typical, self.secret(asked.signature))
            if any(self._kept(asked.signature, p) is not None for p in found):
                return found
        return self._candidates(asked.kernel, asked.signature, asked.typical)

    def _class_of(self, kernel: Kernel, signature: Signature) -> Signature | None:
        """The smaller fixed sizes at which a kernel was compared at all points, as its row says: now, if nobody has. None where
        there are none, and where it did not pass."""
        small = smaller(kernel, signature)
        if small is None:
            return None
        if not self.is_on_file(kernel, small):
            (verdict,) = self._rounds([of_class(kernel, small)], 0.0, LEAST_SECONDS, math.inf)
            self.note_class(kernel, small, verdict)
            self.record(kernel, small, verdict, None)
        error = self._passed[kernel.identity, small.key]
        return None if error is None or not error <= same_math_limit(small.spec.outputs, kernel.precision) else small

    def is_on_file(self, kernel: Kernel, small: Signature) -> bool:
        """Whether a kernel has a verdict on a class of sizes, here or in the database."""
        key = kernel.identity, small.key
        if key not in self._passed:
            rows = queries.latest_traces(self.database, environment_of(kernel.backend, self.threads), verifier=VERIFIER)
            row = rows.get(verdict_key(kernel, small))
            if row is None:
                return False
            self._passed[key] = row.worst_relative_error if row.passed and not row.refuted and row.status == "PASSED" else None
        return True

    def note_class(self, kernel: Kernel, small: Signature, verdict: Verdict) -> None:
        """What was found at the small sizes that stand for a class of them: its members need it."""
        self._passed[kernel.identity, small.key] = verdict.error if verdict.status == "PASSED" else None

    def returned(self, asked: Asked, worker: WorkerProcess,
                 given_up: Callable[[], bool] = lambda: False) -> Verdict | Callable[[], Verdict]:
        """Have a worker run a kernel at all points where it is compared: the verdict, or what compares the outputs and needs no
        worker. A kernel from outside is compared at once: where one has failed nothing else runs in its process. given_up: asked
        before each job; raises JudgeError where nobody waits for it any more."""
        kernel, signature = asked.kernel, asked.signature
        if not kernel.ours:
            return self.examine(kernel, signature, asked.typical)
        refuse_replaced()
        with self._lock if worker is self.worker else nullcontext():
            heard = _unless_it_fails(
                lambda asked: self._heard(kernel, signature, self._shown(asked), None, worker, given_up), asked)
        if isinstance(heard, Verdict):
            return heard
        return lambda: _unless_it_fails(
            lambda asked: heard.compared() or self._with_class(asked, self._right(signature, [heard])), asked)

    def look_ahead(self, asked: Asked) -> None:
        """Ask the oracle what a worker's first job on this question needs. Not for a kernel from outside, as the worker may have to
        be asked too; and what is wrong here is raised where it is needed."""
        small = smaller(asked.kernel, asked.signature)
        if not asked.kernel.ours or (small is not None and (asked.kernel.identity, small.key) not in self._passed):
            return
        with suppress(Exception):
            shown = self._shown(asked)
            first, *later = _jobs(asked.signature, shown)
            self._of_value(asked.signature, first)
            self._later[_question(asked)] = deque(point for job in later for point in job)
            self._points[_question(asked)] = shown

    def ask_the_rest(self, asked: Asked, enough: Callable[[], bool]) -> None:
        """Ask the oracle what the other jobs on a question need at which `look_ahead` has looked, until it is enough: while a
        worker runs the first one."""
        later = self._later.get(_question(asked), deque[Point]())
        with suppress(Exception):
            while later and not enough():
                self._kept(asked.signature, later.popleft())
        if not later:
            self._later.pop(_question(asked), None)

    def is_foreseen(self, asked: Asked) -> bool:
        """Whether the oracle was asked what the first job on this question needs."""
        return _question(asked) in self._points

    def foresee(self, asked: Sequence[Asked], enough: Callable[[], bool]) -> None:
        """Ask the oracle what `compare` is going to ask, one question after the other until it is enough: while compilers run. At
        few: of many, the first answers would be forgotten before they are compared with."""
        with one_thread():
            for each in asked[:FORESEEN]:
                if enough():
                    return
                small = smaller(each.kernel, each.signature)
                if small is not None and not self.is_on_file(each.kernel, small):
                    each = of_class(each.kernel, small)
                if _question(each) not in self._points:
                    self.look_ahead(each)
                self.ask_the_rest(each, enough)

    def _judged(self, asked: Asked, heard: Sequence[_Dialogue]) -> Verdict:
        """The verdict on a kernel whose outputs are right."""
        right = self._right(asked.signature, heard) if asked.time_at is None else self._weigh(asked, heard)
        return self._with_class(asked, right)

    def _part(self, asked: Asked, *, several: bool, budget: float, least: float, baseline: bool) -> Verdict | _Dialogue:
        """What one worker has measured, or why the kernel does not pass. Times that cannot be true are measured again, in longer
        blocks of a fresh worker: a busy machine looks like a cheat for a moment. several: it was compared by another worker."""
        kernel, signature = asked.kernel, asked.signature
        timing = self._timing(asked, budget, least, baseline)
        shown = [] if several else self._shown(asked)
        tried: list[_Dialogue] = []
        for longer in (timing.least, *AGAIN):
            heard = self._ask(kernel, signature, shown, replace(timing, least=max(timing.least, longer)))
            if isinstance(heard, Verdict):
                return heard
            tried.append(heard)
            why = implausible(heard.blocks, anew=bool(timing.anew), copied=not device_of(kernel.backend).is_host)
            if not why:
                heard.worst = list(_worst(tried))
                return heard
            log.info("%s on %s cannot have taken what it claims: %s", kernel.name, signature.title(), why)
            self.worker.kill()
            shown = []                                              # compared already
        return replace(self._right(signature, tried), status="IMPLAUSIBLE", log=f"seen from outside: {why}")

    def _ask(self, kernel: Kernel, signature: Signature, shown: Sequence[Point], timing: Timing | None) -> Verdict | _Dialogue:
        """What a worker says, whose outputs are right; or why the kernel does not pass: then nothing else runs in the process in
        which one from outside has failed."""
        found = self._heard(kernel, signature, shown, timing)
        if isinstance(found, Verdict) and not kernel.ours:
            self.worker.leave()
        return found

    def _heard(self, kernel: Kernel, signature: Signature, shown: Sequence[Point], timing: Timing | None,
               later: WorkerProcess | None = None, given_up: Callable[[], bool] = lambda: False) -> Verdict | _Dialogue:
        """What a worker says, of points with large outputs in several jobs: what it keeps for the judge is memory. Points at which
        the op has no value are left out of each job; what is wrong with one is raised when its job comes. later: this one, whose
        outputs are read, and `_Dialogue.compared` (of the last job) is left to the caller."""
        earlier: list[_Dialogue] = []
        jobs = _jobs(signature, shown)
        for number, job in enumerate(jobs):
            if given_up():
                raise JudgeError(f"comparing {kernel.name} on {signature.title()} was given up")
            points, is_last = self._of_value(signature, job), number == len(jobs) - 1
            if is_last and shown and not points and not earlier:    # nothing was compared, so nothing is right
                raise JudgeError(f"{signature.title()} has a value at none of the points at which {kernel.name} was to be compared")
            if is_last and (points or timing is not None or not earlier):
                return self._heard_at(kernel, signature, points, timing, later, earlier)
            if points:
                heard = self._heard_at(kernel, signature, points, None, later, earlier)
                wrong = heard if isinstance(heard, Verdict) else heard.compared()
                if isinstance(heard, Verdict) or wrong is not None:
                    return heard if wrong is None else wrong
                earlier.append(heard)
        return earlier.pop()                                        # no point of the last job has a value

    def _heard_at(self, kernel: Kernel, signature: Signature, shown: Sequence[Point], timing: Timing | None,
                  later: WorkerProcess | None, earlier: Sequence[_Dialogue]) -> Verdict | _Dialogue:
        worker = later or self.worker
        job = {"graph": print_graph(signature.graph), "kernel": kernel.name, "identity": kernel.identity, "points": shown,
               "origins": [origin_of(kernel)], "time": timing, "threads": self.threads, "argv": list(sys.argv),
               "guests": _guests(kernel), "many_calls": bool(shown) and not earlier and not kernel.ours}
        hearing = _Dialogue(self, signature, shown, timing, later, earlier, kernel.precision)
        worker.imports = imports_of(kernel.backend)
        try:
            limit, what = self.limit(signature, shown, timing), f"{kernel.name} on {signature.title()}"
            reply = worker.run(job, hearing, limit, what, hearing.forget)
            if reply.status == "OTHER" and not hearing.loaded:      # it may have imported the module before that was reloaded here
                worker.kill()
                reply = worker.run(job, hearing, limit, what, hearing.forget)
            if reply.status != "RAN":
                return self._not_run(kernel, reply, hearing)
            hearing.end()
            wrong = None if later else hearing.compared()
            if wrong is not None:
                return wrong
            if timing is not None:
                if len(reply.points) != len(hearing.runs):
                    raise ProtocolError(f"outputs of {len(reply.points)} runs were told of, and {len(hearing.runs)} are due")
                for run, found in zip(hearing.runs, reply.points, strict=True):
                    secret, salt = hearing.secret_of(run)
                    way = self._way(kernel, signature, timing, run, secret, salt)
                    values = {"anew": (secret ^ salt, timing.anew)} if run in hearing.anew else {"perturbed": way}
                    wrong = self._compare(signature, replace(timing.point, **values), found, hearing.read, hearing.worst,
                                          hearing.digests[run], kernel.precision)
                    if wrong is not None:
                        return wrong
            return hearing
        except ProtocolError as e:
            worker.kill()
            return _disjointed(e)
        finally:
            hearing.close()

    def _not_run(self, kernel: Kernel, reply: Reply, hearing: _Dialogue) -> Verdict:
        """What a reply other than RAN means. Raises KernelError and InputError where that is no kernel's fault, as far as can be
        seen from here: a candidate may say so too."""
        match reply.status:
            case "OTHER" if not hearing.loaded and _edited(kernel):
                raise KernelError(reply.log + "\n  fix: start this process again, so that both see the same source")
            case "INPUT" if hearing.timing is not None:
                point_inputs(hearing.signature.graph, hearing.timing.point)        # raises InputError where it is true
            case "RUNTIME_ERROR" | "COMPILE_ERROR" | "TIMEOUT":
                message, crashed = hearing.placed(reply), kernel.crash_note and reply.log.startswith(CRASHED)
                return _without_numbers(reply.status, f"{message}\n{kernel.crash_note}" if crashed else message)
            case "JUDGE_ERROR":
                return _no_verdict(kernel, hearing.signature, reply.log)
        raise ProtocolError(f"{reply.status}: {reply.log}")

    def prepared(self, kernel: Kernel, signature: Signature) -> tuple[str, ...]:
        """The inputs from which this kernel prepares something, as it declares them. One from outside this package is asked in the
        worker: what it is made of may raise, hang, or answer with anything. Raises _Refused."""
        if kernel.prepare is None or kernel.ours:
            return prepared_names(signature.graph, kernel)
        key = kernel.identity, signature.key
        if key not in self._prepared:
            job = {"kind": "declared", "graph": print_graph(signature.graph), "kernel": kernel.name, "identity": kernel.identity,
                   "origins": [origin_of(kernel)], "guests": _guests(kernel)}
            hearing = _Dialogue(self, signature, (), None)
            self.worker.imports = imports_of(kernel.backend)
            reply = self.worker.run(job, hearing, self.limit(signature, (), None), f"{kernel.name} on {signature.title()}",
                                    hearing.forget)
            try:
                if reply.status != "RAN":
                    raise _Refused(self._not_run(kernel, reply, hearing))
                if not set(reply.names) <= signature.graph.inputs.keys():
                    raise ProtocolError(f"it prepares from {', '.join(reply.names)}, which are no inputs")
            except ProtocolError as e:
                raise _Refused(_disjointed(e)) from e
            self._prepared[key] = reply.names
        return self._prepared[key]

    def secret(self, signature: Signature) -> int:
        """The seed of values that show a remembered or prepared answer: drawn for each signature, stored with the row."""
        return self._secrets.setdefault(signature.key, 10_000 + secrets.randbelow(1 << 31))

    def _timing(self, asked: Asked, budget: float, least: float, baseline: bool) -> Timing:
        kernel, signature, time_at = asked.kernel, asked.signature, asked.time_at or {}
        point = Point(_pairs(time_at), self.secret(signature), given=asked.given)
        bound = _bound(signature, time_at)
        level = self._levels.get((kernel.backend == "c", bound), math.inf)
        timing = Timing(point, 0 if _within(signature, time_at, *QUICK) else FEW_WAYS, budget,
                        baseline and _within(signature, time_at, PLAIN_WORK, 1e12), bound, level, least,
                        self._anew(asked) if baseline else ())
        if self.expected(signature, replace(point, perturbed=self._way(kernel, signature, timing, 0, 0, 0))) is None:
            raise JudgeError(f"{signature.title()} has no value at {dict(time_at)}, so it cannot be timed there")
        return timing

    def _anew(self, asked: Asked) -> tuple[str, ...]:
        """The operands that can get new values altogether, once in a measurement: it takes long, and the oracle is asked again."""
        given = {name for name, _ in asked.given}
        kept = self.prepared(asked.kernel, asked.signature)
        names = changeable(asked.signature.graph, _pairs(asked.time_at or {}), kept)
        return tuple(name for name in names if name not in given)

    def _way(self, kernel: Kernel, signature: Signature, timing: Timing, run: int, secret: int, salt: int) -> Perturb:
        """How the operands of a timed run were perturbed."""
        kept = self.prepared(kernel, signature)
        return perturbed(signature.graph, timing.point.sizes, *timing.way(run, secret, salt), kept)

    def _right(self, signature: Signature, hearings: Sequence[_Dialogue]) -> Verdict:
        """The verdict on a kernel whose outputs are right, without its times."""
        shown = max((hearing.covers for hearing in hearings), key=len)
        return Verdict("PASSED", *_worst(hearings), "", seed=self.secret(signature),
                       covered=covered(shown, signature) if shown else {})

    def _with_class(self, asked: Asked, verdict: Verdict) -> Verdict:
        """A verdict of few points with what its class adds: the larger error, and what says so."""
        small = smaller(asked.kernel, asked.signature) if verdict.status == "PASSED" and verdict.covered else None
        error = None if small is None else self._passed.get((asked.kernel.identity, small.key))
        if small is None or error is None:
            return verdict
        return replace(verdict, error=max(error, verdict.error or 0.0),
                       covered={**verdict.covered, "and": f"all points of {small.title()}"})

    def _weigh(self, asked: Asked, hearings: Sequence[_Dialogue]) -> Verdict:
        """The verdict on a kernel that is right: PASSED, or IMPLAUSIBLE where the device cannot be so fast."""
        kernel, signature, binding = asked.kernel, asked.signature, asked.time_at or {}
        bound = _bound(signature, binding)
        right = self._right(signature, hearings)
        weighed = aggregate(_timed(hearings))
        known = self._levels.get((kernel.backend == "c", bound), math.inf)
        self._levels[kernel.backend == "c", bound] = min(known, weighed.level)
        floor, median = self._floor(kernel, signature, binding), statistics.median(weighed.cold)
        if median < floor:
            return replace(right, status="IMPLAUSIBLE", log=f"{median:.2g} s: this work takes {floor:.2g} s at least")
        timing = {**weighed.timing, "reference": {**weighed.timing["reference"], "kind": bound}}
        return replace(right, samples=weighed.cold, plain=weighed.plain, timing=timing)

    def _doubt(self, asked: Asked, verdict: Verdict) -> str:
        """Why a time is measured a second time before it is believed; "" when it is not."""
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
        """Of two measurements, the one that claims less; IMPLAUSIBLE when they are too far apart."""
        one, two = statistics.median(first.samples), statistics.median(second.samples)
        if max(one, two) > APART * min(one, two):
            return replace(first, status="IMPLAUSIBLE", log=f"{doubt}; measured again, {two * 1e3:.3g} ms", samples=(), plain=())
        slower = first if one >= two else second
        return replace(slower, timing={**slower.timing, "measured_twice": [one * 1e3, two * 1e3]})

    def _floor(self, kernel: Kernel, signature: Signature, binding: Mapping[str, int]) -> float:
        """A time [s] that no kernel of its device beats; of arithmetic only where no formula saves any."""
        device = device_of(kernel.backend)
        peaks = device.peaks()
        rates = self.rates if device.is_host else DeviceRates(peaks.get(READ, math.inf), peaks.get(FLOPS, math.inf))
        traffic, flops = work(signature, pairs_at(signature, binding))
        flops = flops if signature.spec.op in (linear, dot) else 0.0
        return max(traffic / rates.bandwidth, flops / rates.flops) / IMPLAUSIBLE_FACTOR

    def _compare(self, signature: Signature, point: Point, found: ReportedOutput, read: Callable[[int], np.ndarray],
                 worst: list[float], returned: str | None = None, precision: Precision | None = None) -> Verdict | None:
        """None, or why the outputs that come next are wrong, of which `read` gives as many bytes; `worst` collects the errors.
        returned: their digest as it was when the block ended in which the kernel returned them. precision: the kernel's."""
        if found.outside:
            return _without_numbers("INCORRECT_SHAPE", f"at {point} it wrote outside: {'; '.join(found.outside)}")
        if found.mutated:
            return _without_numbers("MUTATED_INPUT", f"an operand was changed at {point}")
        kept = self._kept(signature, point)
        assert kept is not None
        expected: Mapping[str, np.ndarray] = self._whole(signature, point, kept)
        if point.rows is not None:
            expected = all_rows(signature.graph, point, expected, outputs=True)
        outputs: dict[str, np.ndarray] = {}
        error_of, in_full = partial(self._error, signature, point, precision=precision), False
        for name, node in signature.graph.outputs.items():
            t = node.type.at(point.binding)
            shape = found.shapes.get(name)
            if shape is None:
                raise ProtocolError(f"of output {name} nothing was said")
            if shape != t.shape:
                return _without_numbers("INCORRECT_SHAPE", f"output {name}: {shape} instead of {t} at {point}")
            limit, picked = same_math_limit((t,), precision), None
            if name in found.rows:
                told, answer = self._rows_told(signature, point, name, found.rows[name], read), kept[name]
                if isinstance(answer, Updated) and np.array_equal(told.rows, answer.rows):   # all other rows are the operand's
                    report = error_of(name, told.values, answer.values, in_full=False, rows=told.rows)
                    if report.within(limit):
                        _take_worse(worst, report)
                        continue
                data = bytes_of(told.whole(point_inputs(signature.graph, point)[told.base]))
            else:
                data = read(int(np.prod(shape)) * t.dtype.itemsize)
            if data.nbytes != int(np.prod(shape)) * t.dtype.itemsize:
                return _without_numbers("INCORRECT_DTYPE", f"output {name}: {data.nbytes} bytes, {t} expected")
            outputs[name] = data
            values = data.view(t.dtype.numpy).reshape(shape)
            report = error_of(name, values, expected[name], in_full=in_full)
            if point.rows is not None and not in_full and not report.within(limit):     # are its rows independent after all?
                expected, in_full = self.expected_in_full(signature, point), True
                report = error_of(name, values, expected[name], in_full=in_full)
            if (point.extreme is not None or point.form in SAME_VALUES) and not report.within(limit):
                wrong = self._wrong_rows(signature, point, name, values, expected[name], limit, in_full, precision)
                moves = self.rounding(signature, point, in_full)
                rows = ~wrong | settled_rows(signature, point, expected, SAME_MATH, moves, {name: wrong})[name]
                if not rows.any():
                    continue                                        # the answer depends on rounding: no kernel is held to it
                picked = rows
                report = error_of(name, rows_of(values)[rows], rows_of(expected[name])[rows], in_full=in_full, rows=rows)
            if point.special and not report.within(limit):
                asked = hangs_on_special(signature, point)[name]
                if adds_floats(signature.graph):                    # tiles are padded with zeros, and 0 · ∞ is NaN
                    asked &= ~(np.isinf(expected[name]) & np.isnan(values.astype(np.float64)))
                out, picked = np.where(asked, values, expected[name].astype(values.dtype)), None
                report = error_of(name, out, expected[name], in_full=in_full)
            _take_worse(worst, report)
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
            return _without_numbers("RUNTIME_ERROR", f"an output at {point} was changed after the block of runs that returned it")
        return None

    def _rows_told(self, signature: Signature, point: Point, name: str, count: int, read: Callable[[int], np.ndarray]) -> Updated:
        """An output of which the worker reports the rows that differ from an operand's. Raises ProtocolError where that is not
        due, or there are no such rows."""
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
        """Store a verdict (binding None) or a time at these dims; returns the row. Where the judge itself failed there is none: the
        log says how to report it. Raises JudgeError: this process was changed."""
        refuse_replaced()                                           # here too: `examine_in_turns` itself may have been replaced
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
            max_absolute_error=verdict.absolute, tolerance=same_math_limit(signature.spec.outputs, kernel.precision),
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
              precision: Precision | None) -> dict[str, np.ndarray]:
    """The running errors of a graph's float outputs, or what stands for those."""
    found = operand_precision.running_errors(graph, inputs, binding, precision)
    return {name: operand_precision.neighbours(expected[name], graph.outputs[name].dtype, precision) if error is None else error
            for name, error in found.items()}


def _take_worse(worst: list[float], report: ErrorReport) -> None:
    """Of each kind of error the larger one, or NaN."""
    for i, value in enumerate((report.max_relative_error, report.p999, report.norm_error, report.max_absolute_error)):
        worst[i] = value if not value <= worst[i] else worst[i]


def _at_worst(worst: Worst | None, shape: Sequence[int], picked: np.ndarray | None) -> str:
    """For people, where an output is wrong most. picked: the rows that were compared, where these are not all."""
    if worst is not None and picked is not None:
        row, *rest = worst.index
        row = int(np.flatnonzero(picked)[row])
        worst = replace(worst, index=(*map(int, np.unravel_index(row, tuple(shape[:-1]))), *rest))
    return "" if worst is None else f"({worst})"


class _Dialogue:
    """What the judge hears from the worker in the middle of a job, and when: outputs that are there, blocks that begin and end."""

    def __init__(self, judge: Judge, signature: Signature, points: Sequence[Point], timing: Timing | None,
                 later: WorkerProcess | None = None, earlier: Sequence[_Dialogue] = (),
                 precision: Precision | None = None) -> None:
        """later: outputs of this worker are read when they are there, and compared when somebody asks: it may run something else
        then. earlier: of the jobs at other points of the same question. precision: the kernel's."""
        self.judge, self.signature, self.points, self.timing, self.later = judge, signature, points, timing, later
        self.earlier, self.precision = earlier, precision
        self.worker = later or judge.worker
        self._kept: np.ndarray | None = None
        self._file: BinaryIO | None = None
        self.forget()

    def forget(self) -> None:
        """What was said so far: the job is begun, maybe again."""
        self.close()
        self._kept = None
        self.before: type[Mark] | None = None
        """the word before this one"""
        self.at = ""
        """where the kernel is being run, as a verdict says it"""
        self.blocks: list[Block] = []
        self.worst = list(_worst(self.earlier)) if self.earlier else [0.0, 0.0, 0.0, 0.0]
        self.runs: list[int] = []
        self.anew: set[int] = set()
        self.digests: dict[int, str] = {}
        """of each run whose outputs the worker has kept, as they were at the end of its block"""
        self._begun, self._secret, self._others = 0.0, 0, 0.0
        self._scheduled: tuple[float, ...] = ()
        self._secrets: list[tuple[int, int]] = []
        """of each block: its first run, and the seed of its runs"""
        self._salts: Mapping[int, int] = {}
        self._shown: tuple[ReportedOutput, ...] = ()
        self._verdict: tuple[Verdict | None] | None = None

    @property
    def covers(self) -> list[Point]:
        """The points of all jobs of the question so far."""
        return [p for each in (*self.earlier, self) for p in each.points]

    @property
    def loaded(self) -> bool:
        """Whether the kernel was imported, as the worker says."""
        return self.before is not None

    def placed(self, reply: Reply) -> str:
        """The log of a reply, whose first line says where the worker died or hung; what a kernel raises names its point itself."""
        first, line, rest = reply.log.partition("\n")
        return f"{first}{self.at}{line}{rest}" if reply.status == "TIMEOUT" or first.startswith(DIED) else reply.log

    def __call__(self, said: Mark, heard: float) -> dict[str, Any] | None:
        """Raises ProtocolError, also for a word that is not due: a block that displeases cannot be told of again."""
        if type(said) not in AFTER[self.before] or (self.timing is None and isinstance(said, Begin)):
            raise ProtocolError(f"{type(said).__name__} after {'nothing' if self.before is None else self.before.__name__}")
        self.before = type(said)
        match said:
            case Next():
                if said.number >= len(self.points):
                    raise ProtocolError(f"point {said.number} was told of, and there are {len(self.points)}")
                self.at = f"{' in many calls in a row' if said.many else ''} at {self.points[said.number]}"
            case Shown():
                self.at = "" if self.timing is None else f" in a timed run at {self.timing.point}"
                if len(said.points) != len(self.points):
                    raise ProtocolError(f"outputs at {len(said.points)} points were told of, and {len(self.points)} are due")
                if any(not self.signature.graph.outputs.keys() <= point.shapes.keys() for point in said.points):
                    raise ProtocolError("of an output nothing was said")
                self._shown = said.points
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
                if said.first != sum(len(b.whole) for b in self.blocks):
                    raise ProtocolError(f"the first run of a block was told of as {said.first}")
                before, after = self._scheduled, self.scheduled()
                passed = [b - a for a, b in zip(before, after, strict=False)]
                self.blocks.append(Block.of(said, heard - self._begun, self.others() - self._others, *passed))
                self._secrets.append((said.first, self._secret))
                return {"heard": True}
            case Returned():
                last = self.blocks[-1]
                if not said.digests.keys() <= set(range(last.first + WARM_UP, last.first + len(last.whole))):
                    raise ProtocolError("digests were told of runs that are not of their block")
                self.digests |= said.digests
            case Kept():                                            # chosen now, when all runs are over
                self._salts = said.salts
                first = next((b.first for b in self.blocks if b.name == "new"), math.inf)
                self.anew = {run for run in self._salts if run >= first}
                others = sorted(self._salts.keys() - self.anew)
                if not others or not self._salts.keys() <= self.digests.keys():
                    raise ProtocolError("outputs were kept of no run, or of runs of which it was not said what they have returned")
                for due, kept in ((self._due("cold"), set(others)), (self._due("new"), self.anew)):
                    if not kept <= due or len(kept) < min(len(due), self._most_kept()):
                        raise ProtocolError(f"outputs were kept of {len(kept)} runs, and {len(due)} were due")
                draw = secrets.SystemRandom().sample
                anew = 1 if self.timing is not None and self.timing.ways else LOOKED_AT
                self.runs = [*draw(others[:-1], min(LOOKED_AT, len(others) - 1)), others[-1],
                             *draw(sorted(self.anew), min(anew, len(self.anew)))]
                return {"runs": self.runs}
        return None

    def _due(self, name: str) -> set[int]:
        """The runs of these blocks of which outputs are kept: who chooses among them chooses those in which the work was done."""
        assert self.timing is not None
        return {run for block, (first, secret) in zip(self.blocks, self._secrets, strict=True) if block.name == name
                for run in range(first + WARM_UP, first + len(block.whole))
                if name == "new" or self.timing.comparable(run, secret)}

    def _most_kept(self) -> int:
        assert self.timing is not None
        types = [t.at(self.timing.point.binding) for t in self.signature.spec.outputs]
        return most_kept(sum(int(t.size()) * t.dtype.itemsize for t in types))

    def end(self) -> None:
        """Raise ProtocolError unless all was said that a job says."""
        last = Shown if self.timing is None else Kept
        if self.before is not last:
            raise ProtocolError(f"the job ended without the word {last.__name__}")

    def others(self) -> float:
        """Seconds for which the processors have worked for others than the worker and this process."""
        worker = self.worker.pid
        return process_tree.machine_worked() - (process_tree.worked(worker) if worker else 0.0) - time.process_time()

    def scheduled(self) -> tuple[float, ...]:
        """Seconds for which the worker's first thread, and this one, could have worked and had no processor; for which the worker's
        had one; and for which its other threads had none. Nothing where nobody knows. The worker sleeps meanwhile."""
        worker = self.worker.pid
        its, mine = process_tree.scheduled(str(worker)), process_tree.scheduled("thread-self")
        if worker is None or its is None or mine is None:
            return ()
        return its[1] + mine[1], its[0], process_tree.others_waited(worker)

    def secret_of(self, run: int) -> tuple[int, int]:
        """The seed of the block that a run was in, and what was drawn for the run, as the worker says."""
        return next((secret for first, secret in reversed(self._secrets) if first <= run), 0), self._salts[run]

    def compared(self) -> Verdict | None:
        """None, or why the outputs at the points are wrong."""
        if self._verdict is None:
            wrong = None
            last: tuple[Point, ReportedOutput, np.ndarray] | None = None      # what was right, where it is kept
            for point, found in zip(self.points, self._shown, strict=True):
                if last is not None and last[0] == point and self._again(found, *last[1:]):
                    continue
                left = self._kept
                with self.judge._in_turn(self.signature, point):
                    wrong = self.judge._compare(self.signature, point, found, self.read, self.worst, precision=self.precision)
                if wrong is not None:
                    before = [*(p for each in self.earlier for p in each.points), *self.points[:self.points.index(point)]]
                    if wrong.point is not None and (sizes := where_wrong.other_sizes(before, point)):
                        wrong = replace(wrong, log=f"{wrong.log}; right at {sizes}")
                    break
                last = None if left is None or self._kept is None else (point, found, left[:left.size - self._kept.size])
            self._verdict, self._kept = (wrong,), None
        return self._verdict[0]

    def _again(self, found: ReportedOutput, told: ReportedOutput, data: np.ndarray) -> bool:
        """Whether the outputs that come next are, bit by bit, those that were right before at this point; then they are read."""
        same = self._kept is not None and found == told and np.array_equal(self._kept[:data.size], data)
        if same:
            self.read(data.size)
        return same

    def read(self, count: int) -> np.ndarray:
        """The next bytes of the outputs; fewer where they end."""
        if self._kept is None:
            found = reused_arrays.empty((count,), np.uint8)
            return found[:self.file().readinto(found.data)]         # type: ignore[attr-defined]
        found, self._kept = self._kept[:count], self._kept[count:]
        return found

    def file(self) -> BinaryIO:
        """Of the outputs; behind those that were compared."""
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
"""word -> those that may come next"""

MOST_BLOCKS = 7
"""of one worker's measurement: every name once, cold twice"""


class _Refused(Exception):
    """A kernel fails before it is run: with this verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.log)
        self.verdict = verdict


def _edited(kernel: Kernel) -> bool:
    """Whether the files of a kernel hold something else than this process has read: then it is another one in a worker."""
    file = origin_of(kernel).file
    try:
        return kernel.code.changed() is not None or file is None or kernel.source not in Path(file).read_text(errors="replace")
    except OSError:
        return True


def _guests(kernel: Kernel) -> list[str]:
    """The kernel, by identity, where it is from outside."""
    return [] if kernel.ours else [kernel.identity]


def _timed(hearings: Sequence[_Dialogue]) -> list[list[Block]]:
    """The blocks of each worker that measured; one may only have compared."""
    return [hearing.blocks for hearing in hearings if hearing.blocks]


def _worst(hearings: Sequence[_Dialogue]) -> tuple[float, float, float, float]:
    """The errors, as a verdict has them: of each kind the largest (NaN where there was one)."""
    worst = zip(*(hearing.worst for hearing in hearings), strict=True)
    a, b, c, e = (max(each, key=lambda value: (math.isnan(value), value)) for each in worst)
    return a, b, c, e


def _without_numbers(status: Status | Literal["JUDGE_ERROR"], why: str) -> Verdict:
    return Verdict(status, None, None, None, None, why)


def _unless_it_fails(find: Callable[[Asked], T], asked: Asked) -> T | Verdict:
    """What is found of a question; JUDGE_ERROR where the judge's own code fails over it, so that the next one is asked all the
    same. Raises what a user can mend."""
    try:
        return find(asked)
    except _Refused as e:
        return e.verdict
    except TensorGraphsError:
        raise
    except Exception:
        return _no_verdict(asked.kernel, asked.signature, traceback.format_exc())


def _no_verdict(kernel: Kernel, signature: Signature, why: str) -> Verdict:
    """What is said where the judge's own code has failed, with all that a report of it needs."""
    failed = f"the judge itself failed over {kernel.name} on {signature.title()}, so nothing is filed of it: {reason_of(why)}"
    fix = "  fix: report it as a fault of tensor_graphs, with these lines and tg --version"
    return _without_numbers(JUDGE_ERROR, "\n".join((failed, fix, why.rstrip(), print_graph(signature.graph))))


def _disjointed(error: ProtocolError) -> Verdict:
    return _without_numbers("RUNTIME_ERROR", f"what the worker said does not go together: {error}")


def _pairs(binding: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((n, int(v)) for n, v in binding.items()))


def pairs_at(signature: Signature, binding: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((n, int(binding[n])) for n in signature.dim_names))


def _jobs(signature: Signature, shown: Sequence[Point]) -> list[list[Point]]:
    """The points in pieces of about AT_ONCE bytes of outputs; what needs the same addresses as the point before stays with it."""
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
    """What the time of this work is compared with."""
    traffic, flops = work(signature, pairs_at(signature, binding))
    return "read" if traffic >= FEW_BYTES and flops <= FLOPS_PER_BYTE * traffic else "arithmetic"


def _within(signature: Signature, binding: Mapping[str, int], flops: float, traffic: float) -> bool:
    moved, arithmetic = work(signature, pairs_at(signature, binding))
    return arithmetic <= flops and moved <= traffic


def refuse_replaced() -> None:
    """Raise JudgeError when something that says what is right is no longer what it was when this module was imported.

    It takes about a millisecond. It sees what a careless module does, and a plain attempt; code in this process can undo it.
    """
    found = sorted({*_WATCH.replaced(), *_STRANGE})
    if found:
        raise JudgeError(f"this process would judge with other code than tensor_graphs': {', '.join(found)} "
                         f"{'was' if len(found) == 1 else 'were'} replaced, so no verdict would mean anything\n"
                         "  fix: start Python again without the module that replaces it (a kernel's own, perhaps)")


_REACHED = reached(__name__)
_WATCH = Names(lambda name: name in _REACHED or name.startswith(MEANINGS), (np,),
               {f"tensor_graphs.{each}" for each in ABOUT_TIMES})
_STRANGE = _WATCH.strange()
"""last, so that all that lies above is watched"""
