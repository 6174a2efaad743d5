"""judge: compares what a worker returns with the float64 oracle, and writes the verdict (and the time) to the database.

The worker is a separate process (worker.py). Expected outputs stay here. A crash, a hang or a wrong result is a row too.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tensor_graphs.costs.roofline import work
from tensor_graphs.devices.environment import Environment, fingerprint
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import BACKENDS, backend_module
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.json_form import graph_to_json
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.profiling.inputs import make_inputs, work_points
from tensor_graphs.profiling.worker import read_frame, write_frame
from tensor_graphs.records.database import Database
from tensor_graphs.records.rows import GraphRecord, ImplementationRecord, SourceRecord, Status, TraceRecord, WorkloadRecord

log = logging.getLogger(__name__)

VERIFIER = "1"
"""version of the comparison; another version asks every question again"""

SAME_MATH = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2}
"""error beyond which a result is not the same math in this dtype, whatever tolerance a user allows"""

def same_math_limit(signature: Signature) -> float:
    """The error up to which a kernel's outputs count as this signature's math; integers must be exact (0)."""
    return max((SAME_MATH.get(t.dtype.name, 0.0) for t in signature.spec.outputs), default=0.0)


BIG_WORK = 4e9
"""flops: sizes beyond this are verified once only (the oracle takes a second for it)"""


def environment_of(backend: str) -> Environment:
    """The environment of one backend on this machine, cached for the process."""
    return _environment(backend)


@lru_cache(maxsize=16)
def _environment(backend: str) -> Environment:
    versions = backend_module(backend).versions() if backend in BACKENDS else {}
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


class WorkerProcess:
    """A worker that is started when needed, killed with its children when a job runs out of time, and started again."""

    def __init__(self, timeout: float = 120.0) -> None:
        self.timeout = timeout
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="tensor_graphs-")
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        process = subprocess.Popen([sys.executable, "-m", "tensor_graphs.profiling.worker"], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=environment)
        self.process = process
        ready = self._read(process, 60.0)
        if ready is None:
            raise RuntimeError("the profiling worker did not start: " + self._stderr())
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

    def _stderr(self) -> str:
        if self.process is None or self.process.stderr is None:
            return ""
        self.kill()
        return self.process.stderr.read().decode(errors="replace")[-4000:]

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job; a dead or stuck worker is a reply too (RUNTIME_ERROR, TIMEOUT)."""
        process = self.process if self.process is not None and self.process.poll() is None else self._start()
        self.count += 1
        job = {**job, "id": self.count, "folder": self.folder.name}
        assert process.stdin is not None
        try:
            write_frame(process.stdin, job)  # type: ignore[arg-type]
            reply = self._read(process, self.timeout)
        except BrokenPipeError:
            reply = None
        if reply is None:
            text = self._stderr()
            self.process = None
            return {"status": "RUNTIME_ERROR", "log": f"the worker died (exit {process.poll()})\n{text}"}
        if reply["status"] == "TIMEOUT":
            self.kill()
            self.process = None
        return reply

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()

    def close(self) -> None:
        self.kill()
        self.process = None
        self.folder.cleanup()


class Judge:
    """Asks a worker to run kernels, compares, records. One judge per process is enough; use it as a context manager."""

    def __init__(self, database: Database, *, timeout: float = 120.0, threads: int | None = None) -> None:
        self.database, self.threads = database, threads
        self.worker = WorkerProcess(timeout)
        self._expected: dict[tuple[str, tuple[tuple[str, int], ...], int], dict[str, np.ndarray]] = {}
        self._expected_for = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.worker.close()

    def expected(self, signature: Signature, binding: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
        """The oracle's outputs, kept for the kernels of one signature (they are asked in a row)."""
        if self._expected_for != signature.key:
            self._expected.clear()
            self._expected_for = signature.key
        key = (signature.key, tuple(sorted(binding.items())), seed)
        if key not in self._expected:
            inputs = make_inputs(signature.graph, binding, seed)
            self._expected[key] = dict(interpret(signature.graph, inputs, dims=dict(binding)).outputs)
        return self._expected[key]

    def examine(self, kernel: Kernel, signature: Signature, typical: Mapping[str, int], *,
                time_at: Mapping[str, int] | None = None, budget: float = 0.3, verify: bool = True) -> Verdict:
        """Run a kernel and compare it with the oracle; with time_at, time it there too. Nothing is stored.

        verify: compare at several sizes; otherwise only where it is timed (it has a verdict already).
        """
        sizes = work_points(signature.graph, typical) if verify else []
        points = [(p, 1000 + i) for i, p in enumerate(sizes[1:4:2] if _big(signature, typical) else sizes)]
        if verify and not signature.dim_names and not _big(signature, typical):
            points.append((dict(typical), 2000))                    # other values at the same size: a memory shows
        if time_at is not None and dict(time_at) not in [p for p, _ in points]:
            points.append((dict(time_at), 3000))
        job = {"graph": print_graph(signature.graph), "kernel": kernel.name, "points": points, "seed": 7,
               "modules": [_module_of(kernel)], "time_at": None if time_at is None else dict(time_at), "budget": budget,
               "threads": self.threads}
        reply = self.worker.run(job)
        if reply["status"] != "RAN":
            status: Status = reply["status"]
            return Verdict(status, None, None, None, None, reply.get("log", ""))
        worst = [0.0, 0.0, 0.0, 0.0]
        for (binding, seed), point in zip(points, reply["points"], strict=True):
            verdict = self._compare(signature, binding, seed, point, worst)
            if verdict is not None:
                return verdict
        return Verdict("PASSED", *worst, "", tuple(reply.get("samples", ())))

    def _compare(self, signature: Signature, binding: Mapping[str, int], seed: int, point: Mapping[str, Any],
                 worst: list[float]) -> Verdict | None:
        sizes = ", ".join(f"{k}={v}" for k, v in binding.items()) or "its only size"
        if point["mutated"]:
            return Verdict("MUTATED_INPUT", None, None, None, None, f"an input was changed at {sizes}")
        expected = self.expected(signature, binding, seed)
        for name, node in signature.graph.outputs.items():
            t = node.type.at(binding)
            shape = tuple(point["shapes"][name])
            if shape != t.shape:
                return Verdict("INCORRECT_SHAPE", None, None, None, None, f"output {name}: {shape} instead of {t} at {sizes}")
            data = np.fromfile(point["files"][name], dtype=np.uint8)
            Path(point["files"][name]).unlink()
            if data.nbytes != int(np.prod(shape)) * t.dtype.itemsize:
                return Verdict("INCORRECT_DTYPE", None, None, None, None, f"output {name}: {data.nbytes} bytes, {t} expected")
            report = measure(data.view(t.dtype.numpy).reshape(shape), expected[name], t.dtype)
            found = (report.max_relative_error, report.p999, report.norm_error, report.max_absolute_error)
            limit = SAME_MATH.get(t.dtype.name, 0.0)
            for i, value in enumerate(found):
                worst[i] = value if not value <= worst[i] else worst[i]
            if report.mismatch is not None or not report.max_relative_error <= limit:
                error = report.max_relative_error if not report.max_relative_error <= limit else float("inf")
                return Verdict("INCORRECT_NUMERICAL", error, report.p999, report.norm_error, report.max_absolute_error,
                               f"output {name} at {sizes}: error {report.max_relative_error:.3g} > {limit:.1g} "
                               f"{report.mismatch or ''}")
        return None

    def record(self, kernel: Kernel, signature: Signature, verdict: Verdict, binding: Mapping[str, int] | None,
               baseline: tuple[str, float] | None = None) -> TraceRecord:
        """Store a verdict (binding None) or a time at these dims; returns the row."""
        limit = same_math_limit(signature)
        self.database.ensure_graph(graph_record(signature))
        workload = verify_workload(signature) if binding is None else timed_workload(signature, binding)
        timed = binding is not None
        trace = TraceRecord(
            implementation_of(kernel), workload, environment_of(kernel.backend), "cold" if timed else "verify", verdict.status,
            samples_ms=tuple(s * 1e3 for s in verdict.samples) if timed else (),
            max_relative_error=verdict.error, p999_relative_error=verdict.p999, norm_error=verdict.norm_error,
            max_absolute_error=verdict.absolute, tolerance=limit, seed=7, timer="perf_counter" if timed else "",
            verifier=VERIFIER, log=verdict.log, baseline=baseline[0] if baseline else "",
            baseline_ms=baseline[1] * 1e3 if baseline else None,
            conditions={"threads": self.threads or 0})
        self.database.add_trace(trace)
        log.info("%s on %s: %s error %s", kernel.name, signature.title(), verdict.status, verdict.error)
        return trace


def _big(signature: Signature, binding: Mapping[str, int]) -> bool:
    traffic, flops = work(signature, tuple(sorted((n, int(binding[n])) for n in signature.dim_names)))
    return flops > BIG_WORK or traffic > 2.5e8


def _module_of(kernel: Kernel) -> tuple[str, str | None]:
    module = sys.modules.get(kernel.module)
    return kernel.module, getattr(module, "__file__", None)


def verify_all(judge: Judge, pairs: Sequence[tuple[Kernel, Signature, Mapping[str, int]]]) -> None:
    """Verify kernels on signatures at typical dims, and record each verdict."""
    for kernel, signature, typical in pairs:
        judge.record(kernel, signature, judge.examine(kernel, signature, typical), None)
