"""verdict_stability: honest kernels on short rows get one verdict, whatever values are drawn: PASSED.

    python benchmarks/verdict_stability.py [--seeds 200] [--first 0] [--last-axis 1 2 3 4] [--dtypes f32] [--ops dot sum …]

Each kernel is compared at all points at which the judge compares it (sizes, extreme values, NaN and infinities, strided
operands, shared memory), all of their values drawn anew for each seed, by the judge's own comparison. It runs in this process
rather than in a worker of its own, as all of these kernels are known to be honest. Ends with code 1 if a verdict is not PASSED.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tensor_graphs as tg
from benchmarks.arguments import at_least
from tensor_graphs.kernels.kernel import HostCall, Kernel, Spec, source_of
from tensor_graphs.kernels.registry import kernel_named, load_backend
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.dtypes import parse_dtype
from tensor_graphs.language.node import Node
from tensor_graphs.measure.isolation.replies import ReportedOutput
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.points.inputs import Point
from tensor_graphs.measure.timing.bench import Bench
from tensor_graphs.records.database import open_database

Arrays = Sequence[np.ndarray]
Body = Callable[[Arrays, Arrays, Mapping[str, Any]], None]

N = tg.dim("n", 1, 64)
TYPICAL = {"n": 20}
STEP = 1_000_003
"""between the seeds of a point"""

CASES: dict[str, Callable[[int, str], Node]] = {
    "dot": lambda k, t: tg.dot(_x((N, 8, 128), t), tg.input("y", (N, 128, k), t)),
    "linear": lambda k, t: tg.linear(_x((N, 128), t), tg.input("w", (k, 128), t)),
    "sum": lambda k, t: tg.sum(_x((N, 128, k), t), axis=1),
    "mean": lambda k, t: tg.mean(_x((N, 128, k), t), axis=1),
    "var": lambda k, t: tg.var(_x((N, 128, k), t), axis=1),
    "softmax": lambda k, t: tg.softmax(_x((N, k), t)),
    "sum of a row": lambda k, t: tg.sum(_x((N, k), t), axis=1),
    "mean of a row": lambda k, t: tg.mean(_x((N, k), t), axis=1, keepdims=True),
    "var of a row": lambda k, t: tg.var(_x((N, k), t), axis=1, keepdims=True),
}
"""what is computed, by the size of the last axis and the dtype: many terms for each of few columns, and rows of few terms"""


def _x(shape: tuple[Any, ...], dtype: str) -> Node:
    return tg.input("x", shape, dtype)


# ---- honest kernels beside those of the backends ---------------------------------------------------------------------


def _axes(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    axes = attrs["axes"]
    return (axes,) if isinstance(axes, int) else tuple(axes)


def _as_torch(x: np.ndarray) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.array(x, dtype=np.float32, order="C"))      # a copy: torch takes no strides below 0


def numpy_var(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    with np.errstate(all="ignore"):
        outs[0][...] = np.var(ins[0].astype(np.float32), axis=_axes(attrs)).reshape(outs[0].shape)


def welford_var(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """One pass, in f32."""
    with np.errstate(all="ignore"):
        rows = np.moveaxis(ins[0].astype(np.float32), _axes(attrs)[0], 0)
        mean, square = np.zeros_like(rows[0]), np.zeros_like(rows[0])
        for i, row in enumerate(rows):
            step = row - mean
            mean = mean + step / np.float32(i + 1)
            square = square + step * (row - mean)
        outs[0][...] = (square / np.float32(len(rows))).reshape(outs[0].shape)


def torch_var(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = torch.var(_as_torch(ins[0]), dim=_axes(attrs), correction=0).numpy().reshape(outs[0].shape)


def torch_sum(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = torch.sum(_as_torch(ins[0]), dim=_axes(attrs)).numpy().reshape(outs[0].shape)


def torch_mean(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = torch.mean(_as_torch(ins[0]), dim=_axes(attrs)).numpy().reshape(outs[0].shape)


def sum_in_order(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    """One term after the other in f32, as a loop in C does."""
    with np.errstate(all="ignore"):
        outs[0][...] = np.cumsum(ins[0].astype(np.float32), axis=_axes(attrs)[0], dtype=np.float32).take(
            -1, axis=_axes(attrs)[0]).reshape(outs[0].shape)


def mean_in_order(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    axis = _axes(attrs)[0]
    with np.errstate(all="ignore"):
        total = np.cumsum(ins[0].astype(np.float32), axis=axis, dtype=np.float32).take(-1, axis=axis)
        outs[0][...] = (total * np.float32(1 / ins[0].shape[axis])).reshape(outs[0].shape)


def dot_in_order(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y = (a.astype(np.float32) for a in ins)
    total = np.zeros(outs[0].shape, np.float32)
    with np.errstate(all="ignore"):
        for i in range(x.shape[-1]):
            total += x[..., i:i + 1] * y[..., i:i + 1, :]
        outs[0][...] = total


OWN: Mapping[str, tuple[Body, ...]] = {
    "sum": (torch_sum, sum_in_order), "mean": (torch_mean, mean_in_order), "var": (numpy_var, welford_var, torch_var),
    "dot": (dot_in_order,)}
THEIRS = ("numpy.dot", "c.dot", "torch.dot", "numpy.linear", "c.linear", "torch.linear", "numpy.softmax", "c.softmax",
          "torch.softmax", "numpy.sum", "numpy.mean")


def made_of(body: Body, op: str) -> Kernel:
    return Kernel(f"own.{body.__name__}", "numpy", op, lambda spec: HostCall(body), lambda spec: None, source_of(body), __name__)


def kernels_for(signature: Signature) -> Iterator[Kernel]:
    spec: Spec = signature.spec
    for name in THEIRS:
        kernel = kernel_named(name)
        if kernel.op == spec.op.name and kernel.accepts(spec) is None:
            yield kernel
    for body in OWN.get(spec.op.name, ()) if spec.outputs[0].dtype.name != "f64" else ():           # they compute in f32
        yield made_of(body, spec.op.name)


# ---- comparing -------------------------------------------------------------------------------------------------------


@dataclass
class Count:
    """What became of one kernel on one case."""

    statuses: dict[str, int] = field(default_factory=dict)
    worst: float = 0.0
    logs: list[str] = field(default_factory=list)


def anew(points: Sequence[Point], seed: int) -> list[Point]:
    """The same points, with values of another draw."""
    if not seed:
        return list(points)
    moved = seed * STEP
    return [replace(p, seed=p.seed + moved, like=None if p.like is None else p.like + moved) for p in points]


def verdict(judge: Judge, bench: Bench, signature: Signature, points: Sequence[Point]) -> tuple[str, float, str]:
    """(status, error, log) of the kernel of a bench, run in this process."""
    bench.replies.clear()
    os.ftruncate(bench.file, 0)
    os.lseek(bench.file, 0, os.SEEK_SET)
    worst = [0.0] * 4
    with np.errstate(all="ignore"):
        for point in points:
            bench.show(point)
    os.lseek(bench.file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(bench.file), "rb") as file:
        for point, reply in zip(points, bench.replies, strict=True):
            found = ReportedOutput(reply["shapes"], tuple(reply["outside"]), reply["mutated"])
            wrong = judge._compare(signature, point, found, partial(np.fromfile, file, np.uint8), worst)
            if wrong is not None:
                return wrong.status, wrong.error or 0.0, wrong.log
    return "PASSED", worst[0], ""


def compared(judge: Judge, node: Node, kernels: Sequence[Kernel], seeds: Sequence[int]) -> dict[str, Count]:
    """Kernel name -> its verdicts over the seeds."""
    signature = signature_of(node)
    asked = {kernel.name: judge.points(kernel, signature, TYPICAL) for kernel in kernels}
    benches = {kernel.name: Bench(signature.graph, kernel, os.memfd_create(kernel.name)) for kernel in kernels}
    counts = {kernel.name: Count() for kernel in kernels}
    for seed in seeds:
        judge._answers.by_signature.clear()                         # answers of one draw serve all kernels, and no other draw
        for name, bench in benches.items():
            points = [p for p in anew(asked[name], seed) if judge.expected(signature, p) is not None]
            status, error, log = verdict(judge, bench, signature, points)
            count = counts[name]
            count.statuses[status] = count.statuses.get(status, 0) + 1
            count.worst = max(count.worst, error)
            if log and len(count.logs) < 3:
                count.logs.append(f"seed {seed}: {log}")
    for bench in benches.values():
        os.close(bench.file)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=200, help="draws for each kernel (default: %(default)s)")
    parser.add_argument("--first", type=at_least(0), default=0, help="the first of them")
    parser.add_argument("--last-axis", type=at_least(1), nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--dtypes", nargs="+", default=["f32"], choices=["f16", "bf16", "f32", "f64"])
    parser.add_argument("--ops", nargs="+", default=list(CASES), choices=list(CASES))
    given = parser.parse_args()
    for backend in ("numpy", "c", "torch"):
        load_backend(backend)
    torch.set_num_threads(1)                                        # small work: threads that wait for each other are slower
    bad, verdicts, names, begun = 0, 0, set(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, open_database(Path(folder) / "bench.db") as database, Judge(database) as judge:
        todo = [(op, k, dtype) for op in given.ops for dtype in given.dtypes for k in given.last_axis]
        for done, (op, k, dtype) in enumerate(todo):
            if sys.stderr.isatty():
                print(f"\r{done}/{len(todo)} {op}, last axis {k}, {dtype}   ", end="", file=sys.stderr, flush=True)
            node = CASES[op](k, str(parse_dtype(dtype)))
            for name, count in compared(judge, node, list(kernels_for(signature_of(node))),
                                        range(given.first, given.first + given.seeds)).items():
                names.add(name)
                said = ", ".join(f"{status} {number}" for status, number in sorted(count.statuses.items()))
                wrong = set(count.statuses) != {"PASSED"}
                bad, verdicts = bad + wrong, verdicts + sum(count.statuses.values())
                print(f"{name:18s} {op:14s} {dtype:4s} last axis {k}: {said:32s} largest error {count.worst:.1e}", flush=True)
                for log in count.logs:
                    print(f"    {log}")
    print(f"{verdicts} verdicts of {len(names)} kernels in {time.perf_counter() - begun:.0f} s; {bad} rows not PASSED throughout")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
