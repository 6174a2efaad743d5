"""Schedules of generated GPU kernels: what a search finds, compared with the rules', for 24 kernels.

    python benchmarks/tuning_cuda.py [--seconds 4] [--strategy descent] [--only softmax] [--rows FILE]

Each kernel is searched for that many seconds (tuning/space.py). Then the winner and the rules' kernel are timed anew, interleaved,
on operands at other places in memory: a schedule that is slower there than the rules' by more than the samples vary counts as
slower. Outputs of both are compared with numpy's in float64. Printed: microseconds of the rules' kernel and of the
winner, their ratio, the schedules that were looked at, and what was changed. Ends with 1 where one is slower or wrong. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.node import Node, apply
from tensor_graphs.tuning.device_timing import DeviceBench, DeviceRun
from tensor_graphs.tuning.generators import GENERATORS
from tensor_graphs.tuning.ranked_space import ranked
from tensor_graphs.tuning.space import Measured
from tensor_graphs.tuning.strategies import STRATEGIES, walk
from tensor_graphs.tuning.timing import Paired

Array = np.ndarray

ROUNDS = 21
"""pairs of samples at each place, after the search"""

FASTER, SLOWER = 0.95, 1.01
"""ratios that count: a winner is faster by 5 %; a kernel is slower"""

LIMITS = {"f32": 2e-6, "bf16": 8e-3, "f16": 1e-3}
"""largest error of a winner relative to the root of the mean square of what is right, unless the rules' kernel has as much"""


def x(*shape: int, dtype: tg.DType = tg.bf16, name: str = "x") -> Node:
    return tg.input(name, shape, dtype)


def adam(n: int) -> tuple[Node, ...]:
    p, m, v, g = (x(n, dtype=tg.f32, name=name) for name in "pmvg")
    m1, v1 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m1 / (tg.sqrt(v1 * v1) + 1e-3), m1, v1


def adam_in_numpy(p: Array, m: Array, v: Array, g: Array) -> tuple[Array, ...]:
    m1, v1 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m1 / (np.abs(v1) + 1e-3), m1, v1


def gated(rows: int, inner: int, columns: int) -> tuple[Node, ...]:
    one = x(rows, inner)
    return (tg.silu(tg.linear(one, x(columns, inner, name="w"))) * tg.linear(one, x(columns, inner, name="v")),)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x ** 3)))


def silu(x: Array) -> Array:
    return x / (1.0 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def logsumexp(x: Array) -> Array:
    most = x.max(-1)
    return most + np.log(np.exp(x - most[:, None]).sum(-1))


def layer_norm(x: Array, g: Array, b: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


def largest(x: Array) -> tuple[Array, ...]:
    order = np.argsort(-x, axis=-1, kind="stable")[:, :8]
    return np.take_along_axis(x, order, -1), order


F = tg.f32
CASES: dict[str, tuple[str, Callable[[], tuple[Node, ...]], Callable[..., Any]]] = {
    "gelu(x + b) 2048 × 4096": ("loops", lambda: (tg.gelu(x(2048, 4096) + x(4096, name="b"), approximate="tanh"),),
                                lambda x, b: gelu(x + b)),
    "silu(g)·u 512 × 8192": ("loops", lambda: (tg.silu(x(512, 8192)) * x(512, 8192, name="u"),), lambda x, u: silu(x) * u),
    "tanh f32 1024 × 1000": ("loops", lambda: (tg.tanh(x(1024, 1000, dtype=F)),), lambda x: np.tanh(x)),
    "Adam f32 1 M": ("loops", lambda: adam(1 << 20), adam_in_numpy),
    "row sums f32 4096 × 1024": ("loops", lambda: (x(4096, 1024, dtype=F).sum(axis=1),), lambda x: x.sum(1)),
    "row maxima 256 × 32000": ("loops", lambda: (tg.reduce_max(x(256, 32000), axis=1),), lambda x: x.max(1)),
    "few rows' means f32 8 × 262144": ("loops", lambda: (tg.mean(x(8, 1 << 18, dtype=F), axis=1),), lambda x: x.mean(1)),
    "sum of all f32 4 M": ("loops", lambda: (x(1 << 22, dtype=F).sum(axis=0),), lambda x: x.sum()),
    "column sums f32 8192 × 1024": ("loops", lambda: (x(8192, 1024, dtype=F).sum(axis=0),), lambda x: x.sum(0)),
    "column maxima 1000 × 336": ("loops", lambda: (tg.reduce_max(x(1000, 336), axis=0),), lambda x: x.max(0)),
    "column variances f32 16384 × 256": ("loops", lambda: (tg.var(x(16384, 256, dtype=F), axis=0),), lambda x: x.var(0)),
    "softmax 4096 × 1000": ("loops", lambda: (tg.softmax(x(4096, 1000)),), softmax),
    "softmax f32 64 × 32000": ("loops", lambda: (tg.softmax(x(64, 32000, dtype=F)),), softmax),
    "logsumexp 512 × 32000": ("loops", lambda: (tg.logsumexp(x(512, 32000), axis=1),), logsumexp),
    "rms_norm 2048 × 640": ("loops", lambda: (tg.rms_norm(x(2048, 640), x(640, name="g"), eps=1e-6),),
                            lambda x, g: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6) * g),
    "layer_norm f32 512 × 768": ("loops", lambda: (
        tg.layer_norm(x(512, 768, dtype=F), x(768, dtype=F, name="g"), x(768, dtype=F, name="b"), eps=1e-5),), layer_norm),
    "transpose + add 2048 × 2048": ("loops", lambda: (tg.permute(x(2048, 2048), (1, 0)) + x(2048, 2048, name="y"),),
                                    lambda x, y: x.T + y),
    "transposes f32 16 × 512 × 640": ("loops", lambda: (tg.permute(x(16, 512, 640, dtype=F), (0, 2, 1)) * 1.0,),
                                      lambda x: x.transpose(0, 2, 1)),
    "cumsum of rows f32 512 × 4096": ("loops", lambda: (tg.cumsum(x(512, 4096, dtype=F), axis=1),), lambda x: x.cumsum(1)),
    "cumsum of lines f32 4096 × 512": ("loops", lambda: (tg.cumsum(x(4096, 512, dtype=F), axis=0),), lambda x: x.cumsum(0)),
    "top-k 8 f32 of 2048 × 512": ("loops", lambda: tuple(tg.topk(x(2048, 512, dtype=F), k=8)), largest),
    "linear 1 × 2048 × 8192": ("loops", lambda: (tg.linear(x(1, 2048), x(8192, 2048, name="w")) + x(8192, name="b"),),
                               lambda x, w, b: x @ w.T + b),
    "gated product 1 × 2048 × 8192": ("loops", lambda: gated(1, 2048, 8192), lambda x, w, v: silu(x @ w.T) * (x @ v.T)),
    "gelu(linear + b) 512 × 2048 × 3072": ("tiles", lambda: (
        tg.gelu(tg.linear(x(512, 2048), x(3072, 2048, name="w")) + x(3072, name="b"), approximate="tanh"),),
        lambda x, w, b: gelu(x @ w.T + b))}
"""name -> the kernel with the rules' schedule, the outputs, and the same in numpy, of float64"""


def signature(outputs: tuple[Node, ...]) -> tuple[Signature, list[str]]:
    """The outputs as one part of a graph, and the names of its operands."""
    g = tg.graph({f"y{k}": y for k, y in enumerate(outputs)})
    inputs = list(g.inputs.values())
    node = apply(part_between(list(g.outputs.values()), inputs), inputs, {})
    return signature_of(node), list(g.inputs)


def errors(bench: DeviceBench, run: DeviceRun, right: Sequence[Array]) -> float:
    """The largest error of a call's outputs relative to the root of their mean square; infinite where one is no number."""
    run.calls[0]()
    worst = 0.0
    for memory, like, ref in zip(bench.sets[0][0], bench.likes, right, strict=True):
        out = np.empty_like(like)
        bench.device.download(bench.device.part(memory, 0, out.nbytes), memory_of(out))
        off = np.abs(out.astype(np.float64) - ref)
        scale = float(np.sqrt(np.mean(np.square(ref, dtype=np.float64)))) or 1.0
        worst = max(worst, float(off.max(initial=0.0)) / scale) if np.isfinite(off).all() else float("inf")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of search for each kernel")
    parser.add_argument("--strategy", default=next(iter(STRATEGIES)))
    parser.add_argument("--only", default="", help="parts of names, with commas between")
    parser.add_argument("--rows", type=Path, help="a file for all numbers, as JSON")
    args = parser.parse_args()
    device = device_named("cuda:0")
    print(f"{device.hardware()[0]}; {args.seconds} s each, {args.strategy}")
    print(f"{'':38s}{'rules':>9s}{'best':>9s}{'ratio':>7s}{'looked':>8s}{'bad':>5s}{'s':>6s}{'error':>9s}{'rules':>9s}")
    faster, slower, wrong, rows = 0, 0, 0, list[dict[str, object]]()
    for name, (kernel, outputs, in_numpy) in CASES.items():
        if args.only and not any(part in name for part in args.only.split(",")):
            continue
        begun, (s, names) = time.perf_counter(), signature(outputs())
        space = Measured(s, {}, args.seconds, generator=GENERATORS[f"gencuda.{kernel}"])
        walk(ranked(space), args.strategy, random.Random(0))
        best, _ = space.winner()
        took = time.perf_counter() - begun
        paired = Paired.joined(space.beside_seed(best, space.elsewhere(), ROUNDS))
        assert isinstance(space.bench, DeviceBench)
        right = in_numpy(**{n: a.astype(np.float64) for n, a in zip(names, space.bench.operands, strict=True)})
        right = right if isinstance(right, tuple) else (right,)
        own, its = (errors(space.bench, space.loaded(space.bench, space.programs[one]), right) for one in (best, space.seed))
        limit = max(LIMITS.get(t.dtype.name, 0.0) for t in s.spec.outputs)
        bad = not own <= max(2 * its, limit)
        us, rules = (float(np.median(samples)) * 1e6 for samples in (paired.own, paired.seed))
        faster += paired.ratio <= FASTER
        slower += best != space.seed and paired.ratio > SLOWER
        wrong += bad
        refused = sum(looked.samples is None for looked in space.looked.values())
        changes = "; ".join(str(a) for a in best if a not in space.seed)
        print(f"{name:38s}{rules:9.2f}{us:9.2f}{paired.ratio:7.3f}{len(space.looked):8d}{refused:5d}{took:6.1f}{own:9.1e}{its:9.1e}"
              f"{'  WRONG' * bad}  {changes}", flush=True)
        rows.append({"name": name, "rules_us": rules, "best_us": us, "ratio": paired.ratio, "looked": len(space.looked),
                     "refused": refused, "changes": changes, "why": sorted({o.why for o in space.looked.values() if o.why})})
        if args.rows:
            args.rows.write_text(json.dumps(rows, indent=1))
        del space, paired
    print(f"{len(rows)} kernels: {faster} faster by 5 % and more, {slower} slower, {wrong} wrong")
    return int(slower > 0 or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
