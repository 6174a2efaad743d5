"""tinygrad_graph: one graph of cpu_graphs.py in tinygrad on a GPU, as a peer to be measured against.

    python benchmarks/peers/tinygrad_graph.py "softmax: softmax" --rows 8 --products 4 --sets 2 --beam 2 --out found.npz

The functions that cpu_graphs.py has for torch are given tinygrad's tensors, and its functions under torch's names. Each set of
operands has a TinyJit of its own, all kernels of which are one CUDA graph; those are launched in a row, timed by events, behind as
many launches as keep the device from idling. The first set's results are written to a file for whoever compares them, and a line of
JSON says microseconds, the kernels of a graph, and the seconds until it could be timed, of which a search (BEAM) takes most.
A process for each graph: a search that takes too long can be ended, and tinygrad has a CUDA context of its own.

Needs tinygrad (no dependency of this package) and a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from benchmarks.cpu_graphs import Case, cases

TURNS, AHEAD = 15, 500e-6
"""turns; seconds of work that the device has before it is timed"""


class Functional:
    """What cpu_graphs.py takes of torch.nn.functional."""

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        return x.gelu(approximate=approximate)

    def silu(self, x: Any) -> Any:
        return x.silu()

    def linear(self, x: Any, w: Any, b: Any = None) -> Any:
        return x.linear(w.transpose(0, 1), b)

    def layer_norm(self, x: Any, shape: Sequence[int], g: Any, b: Any) -> Any:
        return x.layernorm(axis=tuple(range(-len(shape), 0))) * g + b

    def rms_norm(self, x: Any, shape: Sequence[int], g: Any, eps: float) -> Any:
        return x * (x.square().mean(tuple(range(-len(shape), 0)), keepdim=True) + eps).rsqrt() * g

    def group_norm(self, x: Any, groups: int, g: Any, b: Any) -> Any:
        apart = (1, -1, *(1 for _ in x.shape[2:]))
        return x.reshape(x.shape[0], groups, -1).layernorm().reshape(x.shape) * g.reshape(apart) + b.reshape(apart)

    def batch_norm(self, x: Any, m: Any, v: Any, g: Any = None, b: Any = None, training: bool = False) -> Any:
        if training:
            over = (0, *range(2, x.ndim))
            centred = x - x.mean(over, keepdim=True)
            return centred * (centred.square().mean(over, keepdim=True) + 1e-5).rsqrt()
        return x.batchnorm(g, b, m, (v + 1e-5).rsqrt())

    def conv2d(self, x: Any, w: Any, b: Any = None, padding: int = 0, groups: int = 1) -> Any:
        return x.conv2d(w, b, padding=padding, groups=groups)

    def max_pool2d(self, x: Any, size: int, stride: int, padding: int) -> Any:
        return x.max_pool2d((size, size), stride=stride, padding=padding)

    def interpolate(self, x: Any, scale_factor: int) -> Any:
        return x.interpolate(tuple(n * scale_factor for n in x.shape[2:]), mode="nearest")

    def pad(self, x: Any, by: Sequence[int]) -> Any:
        return x.pad(by)

    def embedding(self, indices: Any, table: Any) -> Any:
        return table[indices]

    def scaled_dot_product_attention(self, q: Any, k: Any, v: Any, **how: Any) -> Any:
        return q.scaled_dot_product_attention(k, v, **how)


class Torch:
    """What cpu_graphs.py takes of torch."""

    def __init__(self, tensor: Any, dtypes: Any) -> None:
        self.tensor, self.bool = tensor, dtypes.bool
        self.nn = SimpleNamespace(functional=Functional())

    def ones(self, *shape: Any, dtype: Any, device: Any) -> Any:
        return self.tensor.ones(*shape, dtype=dtype, device=device)

    def sqrt(self, x: Any) -> Any:
        return x.sqrt()

    def tanh(self, x: Any) -> Any:
        return x.tanh()

    def cat(self, tensors: Sequence[Any], axis: int) -> Any:
        return tensors[0].cat(*tensors[1:], dim=axis)

    def stack(self, tensors: Sequence[Any]) -> Any:
        return tensors[0].stack(*tensors[1:])

    def einsum(self, formula: str, *tensors: Any) -> Any:
        return self.tensor.einsum(formula, *tensors)

    def rnn_tanh(self, x: Any, h: Any, weights: Sequence[Any], *_: Any) -> list[Any]:
        found, h, (w, u) = [], h[0], weights
        for turn in x.linear(w.transpose(0, 1)):
            h = (turn + h.linear(u.transpose(0, 1))).tanh()
            found.append(h)
        return [self.stack(found)]


def with_torchs_names(tensor: Any) -> Any:
    """tinygrad's tensors with the methods that it calls otherwise, or has not."""

    def index_add(self: Any, axis: int, index: Any, values: Any) -> Any:
        apart = [1] * values.ndim
        apart[axis] = -1
        return self.scatter_reduce(axis, index.reshape(apart).expand(values.shape), values, reduce="sum")

    tensor.amax, tensor.index_add = tensor.max, index_add
    return tensor


def function_of(case: Case) -> Callable[..., tuple[Any, ...]]:
    def run(*tensors: Any) -> tuple[Any, ...]:
        out = case.torch(*tensors)
        if case.wrt:
            return tuple(out.gradient(*(t for n, t in zip(case.given, tensors, strict=True) if n in case.wrt)))
        return out if isinstance(out, tuple) else (out,)

    return run


def given_to(tensor: Any, dtypes: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":                              # which tinygrad takes from no array
        return tensor(array.astype(np.float32)).cast(dtypes.bfloat16).realize()
    return tensor(array).realize()


def graphs_of(jit: Any, realize: Any) -> list[Any]:
    """The CUDA graphs that a captured function is. Raises RuntimeError where it is anything else, too."""
    runners = [realize.get_graph_runtime(call.src[0]) for call in jit.captured.linear.src
               if str(call.src[0].op).endswith("CUSTOM_FUNCTION") and call.src[0].arg == "graph"]
    if not runners or len(runners) < len(jit.captured.linear.src) or any(each is None for each in runners):
        raise RuntimeError(f"{len(jit.captured.linear.src)} calls, {len(runners)} CUDA graphs")
    return runners


def launching(cuda: Any, check: Callable[[int], None], runners: Sequence[Any]) -> Callable[[], None]:
    def replay() -> None:
        for runner in runners:
            check(cuda.cuGraphLaunch(runner.instance, None))

    return replay


def microseconds(device: Any, cuda: Any, check: Callable[[int], None], replays: Sequence[Callable[[], None]]) -> float:
    """Of one, the median of all turns."""
    check(cuda.cuCtxSetCurrent(device.context))

    def mark() -> Any:
        event = cuda.CUevent()
        check(cuda.cuEventCreate(ctypes.byref(event), 0))
        check(cuda.cuEventRecord(event, None))
        return event

    def turn(before: int) -> float:
        for replay in itertools.islice(itertools.cycle(replays), before):
            replay()
        first = mark()
        for replay in replays:
            replay()
        last = mark()
        check(cuda.cuEventSynchronize(last))
        passed = ctypes.c_float()
        check(cuda.cuEventElapsedTime(ctypes.byref(passed), first, last))
        return passed.value * 1e-3 / len(replays)

    rough = min(turn(len(replays)) for _ in range(3))
    before = max(len(replays), min(1000, int(AHEAD / rough)))
    return statistics.median(turn(before) for _ in range(TURNS)) * 1e6


def measured(name: str, rows: int, products: int, sets: int, beam: int, out: Path) -> dict[str, Any]:
    os.environ |= {"DEV": "CUDA", "GRAPH_ONE_KERNEL": "1", "JIT_BATCH_SIZE": "0", "IGNORE_JIT_FIRST_BEAM": "1"}
    tinygrad = importlib.import_module("tinygrad")
    helpers, realize, cuda, ops = (importlib.import_module(f"tinygrad.{each}")
                                   for each in ("helpers", "engine.realize", "runtime.autogen.cuda", "runtime.ops_cuda"))
    tensor = with_torchs_names(tinygrad.Tensor)
    (case,) = (c for c in cases(Torch(tensor, tinygrad.dtypes), rows, products) if f"{c.kind}: {c.name}" == name)
    rng = np.random.default_rng(0)                                  # as graphs_cuda.py draws them
    arrays = [{n: each.array(rng) for n, each in case.given.items()} for _ in range(sets)]
    began = time.perf_counter()
    replays: list[Callable[[], None]] = []
    kept, launches = [], 0
    for each in arrays:
        tensors = [given_to(tensor, tinygrad.dtypes, a) for a in each.values()]
        jit = tinygrad.TinyJit(function_of(case))
        with helpers.Context(BEAM=beam):
            for _ in range(3):                                      # as it is, captured and searched, replayed
                found = jit(*tensors)
        if not kept:
            np.savez(out, **{f"out{i}": t.float().numpy() if t.dtype == tinygrad.dtypes.bfloat16 else t.numpy()
                             for i, t in enumerate(found)})
        runners = graphs_of(jit, realize)
        launches = sum(len(runner.calls) for runner in runners)
        kept.append((tensors, jit, found))
        replays.append(launching(cuda, ops.check, runners))
    seconds = time.perf_counter() - began
    us = microseconds(tinygrad.Device["CUDA"], cuda, ops.check, replays)
    return {"us": us, "launches": launches, "seconds": seconds}


def in_a_process(name: str, rows: int, products: int, sets: int, beam: int, limit: float, folder: Path,
                 ) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
    """(what a process of its own says of the graph, its outputs by name). Raises RuntimeError with why there is nothing."""
    out = folder / "tinygrad.npz"
    command = [sys.executable, __file__, name, "--rows", rows, "--products", products, "--sets", sets, "--beam", beam, "--out", out]
    try:
        done = subprocess.run([str(each) for each in command], capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not searched within {limit:.0f} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no answer"])[-1][:200])
    with np.load(out) as arrays:
        return json.loads(lines[-1]), dict(arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help='"kind: name" of one of cpu_graphs.py')
    for option, default in (("rows", 1), ("products", 1), ("sets", 2), ("beam", 2)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--out", type=Path, required=True, help="what the results are written to (.npz)")
    given = parser.parse_args()
    print(json.dumps(measured(given.name, given.rows, given.products, given.sets, given.beam, given.out)))


if __name__ == "__main__":
    main()
