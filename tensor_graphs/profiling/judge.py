"""judge: compares what a worker returns with the float64 oracle, and writes the verdict (and the time) to the database.

The worker is a separate process (worker.py). Expected outputs stay here. A crash, a hang or a wrong result is a row too.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tensor_graphs.costs.roofline import DeviceRates, work
from tensor_graphs.devices.environment import Environment, fingerprint
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel, KernelError
from tensor_graphs.kernels.registry import BACKENDS, backend_module
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.json_form import graph_to_json
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.profiling.inputs import Point, largest_sizes, point_inputs, work_points
from tensor_graphs.profiling.worker import INSIDE, MAIN, read_frame, write_frame
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import GraphRecord, ImplementationRecord, SourceRecord, Status, TraceRecord, WorkloadRecord

log = logging.getLogger(__name__)

VERIFIER = "2"
"""version of the comparison; another version asks every question again"""

SAME_MATH = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2}
"""error beyond which a result is not the same math in this dtype, whatever tolerance a user allows"""

JOB_SECONDS = 120.0
"""a worker that has not answered after so many seconds is killed"""

START_SECONDS = 60.0
"""the time a worker may take to start"""

LARGE_WORK = (5e6, 1 << 20)
"""flops and bytes up to which a kernel is compared at the far end of its dims too (the oracle takes some 50 ms for it)"""

PLAIN = "plain"
"""the name under which the plain path's time is stored as a baseline"""

PLAIN_WORK = 1e10
"""flops beyond which the plain path is not timed beside a kernel"""

IMPLAUSIBLE_FACTOR = 50.0
"""a time so many times below the device's roofline is no time of this work (caches are at most 20 times as fast as memory)"""


class JudgeError(TensorGraphsError):
    """The judge can not work here: a worker does not start, or a worker asks for one."""


def same_math_limit(signature: Signature) -> float:
    """The error up to which a kernel's outputs count as this signature's math; integers must be exact (0)."""
    return max((SAME_MATH.get(t.dtype.name, 0.0) for t in signature.spec.outputs), default=0.0)


BIG_WORK = 4e9
"""flops: sizes beyond this are compared at few points (the oracle takes a second for each)"""

BIG_TRAFFIC = 2.5e8
"""bytes: likewise"""


def environment_of(backend: str, threads: int | None = None) -> Environment:
    """The environment of one backend on this machine, cached for the process. threads: as many, instead of the default number."""
    return _environment(backend, threads)


@lru_cache(maxsize=64)
def _environment(backend: str, threads: int | None) -> Environment:
    versions = dict(backend_module(backend).versions()) if backend in BACKENDS else {}
    if threads:
        versions["threads"] = str(threads)
    return fingerprint(backend, libs=versions)


def implementation_of(kernel: Kernel) -> ImplementationRecord:
    return ImplementationRecord("KERNEL", kernel.name, kernel.backend, kernel.identity, requirements=dict(kernel.requirements),
                                sources=(SourceRecord(f"{kernel.name}.txt", kernel.source, trusted=True),))


def graph_record(signature: Signature) -> GraphRecord:
    return GraphRecord(signature.key, print_graph(signature.graph), graph_to_json(signature.graph), signature.spec.op.name)


def verify_workload(signature: Signature) -> WorkloadRecord:
    """The workload under which a verdict over all sizes is filed: no axes."""
    return WorkloadRecord(signature.key)


def timed_workload(signature: Signature, binding: Mapping[str, int]) -> WorkloadRecord:
    """The workload under which a time is filed: the signature's axes, or (if it has none) a single axis that says "fixed"."""
    return WorkloadRecord(signature.key, signature.axes(binding) or {"fixed": 1})


@dataclass(frozen=True)
class Verdict:
    """What the judge found for one kernel on one signature."""

    status: Status
    error: float | None
    p999: float | None
    norm_error: float | None
    absolute: float | None
    log: str
    samples: tuple[float, ...] = ()
    plain: tuple[float, ...] = ()
    """times [s] of the plain path of the same run"""


def out_of_reach(kernel: Kernel) -> str | None:
    """None, or why no other process can import this kernel (then it can neither be compared nor measured)."""
    if kernel.module == MAIN and getattr(sys.modules.get(MAIN), "__file__", None) is None:
        return "it was defined in an interactive session, where no other process finds it; put it into a file"
    return None


class WorkerProcess:
    """A worker that is started when needed, killed with its children when a job runs out of time, and started again."""

    def __init__(self, timeout: float = JOB_SECONDS) -> None:
        self.timeout = timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="tensor_graphs-")
        self.count = 0
        self.starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if INSIDE in os.environ:
            raise JudgeError("a worker may not start another worker\n  fix: in the file that defines the kernel, compile and "
                             "profile under `if __name__ == \"__main__\":` only")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path), INSIDE: "1"}
        self.starts += 1
        with self._said.open("wb") as said:                        # a file: a pipe that nobody reads would block who writes much
            process = subprocess.Popen([sys.executable, "-m", "tensor_graphs.profiling.worker"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=said, start_new_session=True, env=environment)
        self.process = process
        ready = self._read(process, START_SECONDS)
        if ready is None or ready["status"] != "READY":
            text = self._last_words()
            self.kill()
            raise JudgeError(f"the profiling worker did not start within {START_SECONDS:.0f} s: {text or 'it said nothing'}")
        return process

    def _read(self, process: subprocess.Popen[bytes], timeout: float) -> dict[str, Any] | None:
        assert process.stdout is not None
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            if left <= 0:
                return {"status": "TIMEOUT", "log": f"no answer within {timeout:.0f} s"}
            ready, _, _ = select.select([process.stdout], [], [], min(left, 1.0))
            if ready:
                return read_frame(process.stdout)  # type: ignore[arg-type]
            if process.poll() is not None:
                return None

    @property
    def _said(self) -> Path:
        return Path(self.folder.name, "said.txt")

    def _last_words(self) -> str:
        try:
            with self._said.open("rb") as said:
                said.seek(max(0, said.seek(0, os.SEEK_END) - 4000))
                return said.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job; a dead or stuck worker is a reply too (RUNTIME_ERROR, TIMEOUT).

        A worker that was found dead had not begun the job, and one that was killed from outside (SIGKILL, as by a system short of
        memory) need not have died of it: the job is then tried once more.
        """
        self.count += 1
        job = {**job, "id": self.count, "folder": self.folder.name}
        tries = 0
        while True:
            tries += 1
            process = self.process if self.process is not None and self.process.poll() is None else self._start()
            assert process.stdin is not None
            begun = False
            try:
                write_frame(process.stdin, job)  # type: ignore[arg-type]
                begun = True
                reply = self._read(process, self.timeout)
            except BrokenPipeError:
                reply = None
            except BaseException:                                   # Ctrl-C: a later job must not read this job's answer
                self.kill()
                raise
            if reply is not None and reply["status"] != "TIMEOUT":
                return reply
            text = self._last_words()
            try:
                process.wait(1.0 if reply is None else 0.0)         # how it ended, before it is made to
            except subprocess.TimeoutExpired:
                pass
            self.kill()
            code = process.returncode
            if reply is not None:
                return {**reply, "log": f"{reply['log']}\n{text}".strip()}
            if tries < 2 and (not begun or code == -signal.SIGKILL):
                log.warning("the worker was %s; trying once more", "dead before the job began" if not begun else "killed")
                continue
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
            return {"status": "RUNTIME_ERROR", "log": f"the worker died ({how})\n{text}".strip()}

    def kill(self) -> None:
        """End the worker and whatever it started."""
        process, self.process = self.process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)                  # its own session: the group is the worker and its children
        except (ProcessLookupError, PermissionError):
            pass
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def close(self) -> None:
        self.kill()
        self.folder.cleanup()


class Judge:
    """Asks a worker to run kernels, compares, records. One judge per process is enough; use it as a context manager."""

    def __init__(self, database: Database, *, timeout: float | None = None, threads: int | None = None,
                 rates: DeviceRates | None = None) -> None:
        """rates: of this device, where they were measured; below them times are IMPLAUSIBLE."""
        self.database, self.threads, self.rates = database, threads, rates or DeviceRates()
        self.worker = WorkerProcess(JOB_SECONDS if timeout is None else timeout)
        self._expected: dict[Point, dict[str, np.ndarray] | None] = {}
        self._expected_for = ""
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self.worker.close()

    def expected(self, signature: Signature, point: Point) -> dict[str, np.ndarray] | None:
        """The oracle's outputs, kept for the kernels of one signature (they are asked in a row); None: these sizes do not fit."""
        if self._expected_for != signature.key:
            self._expected.clear()
            self._expected_for = signature.key
        key = point.values
        if key not in self._expected:
            try:
                inputs = point_inputs(signature.graph, point)
                self._expected[key] = dict(interpret(signature.graph, inputs, dims=point.binding).outputs)
            except (TensorGraphsError, ValueError, IndexError) as e:
                log.debug("%s has no value at %s: %s", signature.title(), point, e)
                self._expected[key] = None
        return self._expected[key]

    def points(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int]) -> list[Point]:
        """Where a kernel is compared: sizes small and large, awkward values, remembered answers, shared memory, windows.

        Never none: sizes at which the op has no value are left out, and a signature without any raises JudgeError.
        """
        graph = signature.graph
        sizes = work_points(graph, typical)
        affordable = [p for p in sizes if not _big(signature, p)]
        affordable = affordable or sizes[1:4:2] or sizes[:1]        # an operand is large at any size: the smallest, and a small one
        far = next((p for p in largest_sizes(graph) if _within(signature, p, *LARGE_WORK)), None)
        if far is not None and far not in affordable:
            affordable.append(far)
        found = [p for i, s in enumerate(affordable) if self.expected(signature, p := Point(_pairs(s), 1000 + i)) is not None]
        if not found:
            raise JudgeError(f"{signature.title()} has a value at none of {', '.join(map(str, affordable))}, so no kernel can be "
                             "compared\n  fix: sizes at which its operands fit together")
        base = max(found[:-1] or found, key=lambda p: sum(n for _, n in p.sizes if n <= 32))
        again = found.index(base) + 1
        found.insert(again, Point(base.sizes, 2000, like=base.seed))
        if not _big(signature, base.binding):
            if kernel.in_place:
                found.append(Point(base.sizes, base.seed, form="in_place"))
            found.append(Point(base.sizes, base.seed, form="views"))
            if any(t.dtype.kind == "float" for t in signature.spec.inputs):
                found.append(Point(base.sizes, 2500, special=True))
        return [p for p in found if self.expected(signature, p) is not None]

    def examine(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int], *,
                time_at: Mapping[str, int] | None = None, budget: float = 0.3, verify: bool = True) -> Verdict:
        """Run a kernel and compare it with the oracle; with time_at, time it there too, beside the plain path. Nothing is stored.

        verify: compare at many points; otherwise only where it is timed (it has a verdict already). Raises JudgeError when the
        kernel cannot be judged at all.
        """
        reason = out_of_reach(kernel)
        if reason is not None:
            raise JudgeError(f"kernel {kernel.name!r} cannot be judged: {reason}")
        with self._lock:
            shown = self.points(kernel, signature, typical) if verify else []
            timed: tuple[Point, ...] | None = None
            baseline = False
            if time_at is not None:
                same = next((p for p in shown if p.binding == dict(time_at) and p.like is None and not p.special), None)
                first = same.values if same is not None else Point(_pairs(time_at), 3000)
                timed = (first,) if _big(signature, time_at) else (first, Point(_pairs(time_at), 3001))
                if self.expected(signature, first) is None:
                    raise JudgeError(f"{signature.title()} has no value at {dict(time_at)}, so it cannot be timed there")
                baseline = _within(signature, time_at, PLAIN_WORK, 1e12)
            job = {"graph": print_graph(signature.graph), "kernel": kernel.name, "identity": kernel.identity, "points": shown,
                   "modules": [module_of(kernel)], "time": timed, "baseline": baseline, "budget": budget, "threads": self.threads}
            reply = self.worker.run(job)
            if reply["status"] == "OTHER":
                raise KernelError(reply["log"] + "\n  fix: start this process again, so that both see the same source")
            if reply["status"] != "RAN":
                status: Status = reply["status"]
                return Verdict(status, None, None, None, None, reply.get("log", ""))
            worst = [0.0, 0.0, 0.0, 0.0]
            for point, found in zip((*shown, *(timed or ())), reply["points"], strict=True):
                verdict = self._compare(signature, point, found, worst)
                if verdict is not None:
                    self._sweep()
                    return verdict
            samples = tuple(reply.get("samples", ()))
            if time_at is not None:
                floor = self._floor(signature, time_at)
                if statistics.median(samples) < floor:
                    return Verdict("IMPLAUSIBLE", worst[0], worst[1], worst[2], worst[3],
                                   f"{statistics.median(samples):.2g} s: this work takes {floor:.2g} s at least")
            return Verdict("PASSED", worst[0], worst[1], worst[2], worst[3], "", samples, tuple(reply.get("plain", ())))

    def _floor(self, signature: Signature, binding: Mapping[str, int]) -> float:
        """A time [s] that no kernel of this device beats; of arithmetic only where no formula saves any."""
        traffic, flops = work(signature, _at(signature, binding))
        flops = flops if signature.spec.op.name in ("linear", "dot") else 0.0
        return max(traffic / self.rates.bandwidth, flops / self.rates.flops) / IMPLAUSIBLE_FACTOR

    def _sweep(self) -> None:
        for file in Path(self.worker.folder.name).glob("*.bin"):
            file.unlink()

    def _compare(self, signature: Signature, point: Point, found: Mapping[str, Any], worst: list[float]) -> Verdict | None:
        """None, or why these outputs are wrong; `worst` collects the errors."""
        if found["outside"]:
            return Verdict("INCORRECT_SHAPE", None, None, None, None, f"at {point} it wrote outside: {'; '.join(found['outside'])}")
        if found["mutated"]:
            return Verdict("MUTATED_INPUT", None, None, None, None, f"an operand was changed at {point}")
        expected = self.expected(signature, point)
        assert expected is not None
        for name, node in signature.graph.outputs.items():
            t = node.type.at(point.binding)
            shape = tuple(found["shapes"][name])
            if shape != t.shape:
                return Verdict("INCORRECT_SHAPE", None, None, None, None, f"output {name}: {shape} instead of {t} at {point}")
            data = np.fromfile(found["files"][name], dtype=np.uint8)
            Path(found["files"][name]).unlink()
            if data.nbytes != int(np.prod(shape)) * t.dtype.itemsize:
                return Verdict("INCORRECT_DTYPE", None, None, None, None, f"output {name}: {data.nbytes} bytes, {t} expected")
            report = measure(data.view(t.dtype.numpy).reshape(shape), expected[name], t.dtype)
            errors = (report.max_relative_error, report.p999, report.norm_error, report.max_absolute_error)
            limit = SAME_MATH.get(t.dtype.name, 0.0)
            for i, value in enumerate(errors):
                worst[i] = value if not value <= worst[i] else worst[i]
            if report.mismatch is not None or not report.max_relative_error <= limit:
                error = report.max_relative_error if not report.max_relative_error <= limit else float("inf")
                return Verdict("INCORRECT_NUMERICAL", error, report.p999, report.norm_error, report.max_absolute_error,
                               f"output {name} at {point}: error {report.max_relative_error:.3g} > {limit:.1g} "
                               f"{report.mismatch or ''}")
        return None

    def record(self, kernel: Kernel, signature: Signature, verdict: Verdict, binding: Mapping[str, int] | None) -> TraceRecord:
        """Store a verdict (binding None) or a time at these dims; returns the row."""
        self.database.ensure_graph(graph_record(signature))
        workload = verify_workload(signature) if binding is None else timed_workload(signature, binding)
        timed = binding is not None
        plain = statistics.median(verdict.plain) * 1e3 if timed and verdict.plain else None
        trace = TraceRecord(
            implementation_of(kernel), workload, environment_of(kernel.backend, self.threads), "cold" if timed else "verify",
            verdict.status, samples_ms=tuple(s * 1e3 for s in verdict.samples) if timed else (),
            max_relative_error=verdict.error, p999_relative_error=verdict.p999, norm_error=verdict.norm_error,
            max_absolute_error=verdict.absolute, tolerance=same_math_limit(signature), seed=1000 if binding is None else 3001,
            timer="perf_counter" if timed else "", verifier=VERIFIER, log=verdict.log, baseline="" if plain is None else PLAIN,
            baseline_ms=plain, conditions={"threads": self.threads or 0})
        self.database.add_trace(trace)
        log.info("%s on %s: %s error %s", kernel.name, signature.title(), verdict.status, verdict.error)
        return trace


def _pairs(binding: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((n, int(v)) for n, v in binding.items()))


def _at(signature: Signature, binding: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((n, int(binding[n])) for n in signature.dim_names))


def _big(signature: Signature, binding: Mapping[str, int]) -> bool:
    return not _within(signature, binding, BIG_WORK, BIG_TRAFFIC)


def _within(signature: Signature, binding: Mapping[str, int], flops: float, traffic: float) -> bool:
    moved, arithmetic = work(signature, _at(signature, binding))
    return arithmetic <= flops and moved <= traffic


def module_of(kernel: Kernel) -> tuple[str, str | None]:
    """What a worker imports to know a kernel: the module's name and its file."""
    module = sys.modules.get(kernel.module)
    return kernel.module, getattr(module, "__file__", None)


def verify_all(judge: Judge, pairs: Sequence[tuple[Kernel, Signature, Mapping[str, int]]]) -> None:
    """Verify kernels on signatures at typical dims, and record each verdict."""
    for kernel, signature, typical in pairs:
        judge.record(kernel, signature, judge.examine(kernel, signature, typical), None)
