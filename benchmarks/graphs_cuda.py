"""Graphs of every kind on a GPU next to torch eager and torch.compile there, each as CUDA graphs, in turns.

    python benchmarks/graphs_cuda.py [--only softmax] [--profile 3] [--compile] [--ahead 8] [--tinygrad 60] [--json FILE]

The graphs of cpu_graphs.py with more rows and larger products; operands and results are on the GPU. Each is compiled, after
`tg.profile` for --profile seconds or from the cost model alone, and bound to several sets of operands that are together larger than
the L2 cache. Comparing kernels with the oracle takes the host's processors 2 to 40 s for a graph, while the GPU idles. With --ahead
this many processes do it for all graphs first. Nothing is timed until they have ended: torch's max-autotune times its kernels, too.
A contender is a CUDA graph for each set; all of them are replayed in a row, timed by events, interleaved with those of the others,
while the device is kept from idling before. Printed: microseconds of one, the best of torch ÷ ours, launches, the largest error
relative to the root of the mean square of torch's results in float64, ours and torch's, seconds of profile and compilation, and of
all. torch rounds no operand to TF32, unless --tf32 says so. A graph of which a part is computed on the host has no ratio; tinygrad
(--tinygrad), which runs after the others, is in none.
Ends with 1 where one is wrong (beyond 1e-3 and three times torch's), the geometric mean is below 1.15, or one is below 0.9. Needs a
GPU and torch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg
from benchmarks.attention_cuda import MANY, ONE
from benchmarks.cpu_graphs import Case, Given, cases
from benchmarks.kernels_cpu import geomean
from benchmarks.kernels_cuda import captured
from benchmarks.peers.tinygrad_graph import in_a_process
from benchmarks.products_cuda import SHAPES
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.torch.ops import tensor
from tensor_graphs.language.graph import Graph
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.runtime.prepared_run import Prepared
from tensor_graphs.runtime.segments.captured_calls import OnDevice
from tensor_graphs.runtime.segments.launches import Launches

ROWS, PRODUCTS = 8, 4
"""what sizes of cpu_graphs.py are multiplied by"""

CACHES, MOST = 150 << 20, 4
"""bytes of all sets of operands, at least; sets, at most"""

TURNS, ASLEEP = 15, 400_000
"""turns of each; cycles for which the device waits before each, so that the host has asked for all replays"""

GEOMEAN, LEAST, WRONG, TIMES_TORCHS = 1.15, 0.9, 1e-3, 3.0

BEAM = 2
"""how many candidates tinygrad's search keeps"""


def product_cases(torch: Any) -> list[Case]:
    """The products of products_cuda.py, as graphs."""
    found, one = [], torch.ones((), device="cuda")

    def of_eight(x: Any, w: Any) -> Any:                            # by cuBLASLt, sums in tensor cores
        is_eight = x.dtype is torch.float8_e4m3fn                   # else they are doubles, for what is right
        return torch._scaled_mm(x, w.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True) if is_eight else x @ w.T

    for op, rows, columns, k in SHAPES:
        for dtype in (tg.bf16, tg.f16, tg.f32):
            given = {"x": Given((rows, k), dtype), "w": Given((columns, k) if op == "linear" else (k, columns), dtype, weight=True,
                                                             scale=0.05)}
            functions = (tg.linear, torch.nn.functional.linear) if op == "linear" else (tg.dot, torch.matmul)
            found.append(Case("sized", f"{op} {dtype} {rows}, {columns}, {k}", given, *functions))
        if op == "linear":
            given = {"x": Given((rows, k), tg.f8e4m3), "w": Given((columns, k), tg.f8e4m3, weight=True, scale=0.05)}
            found.append(Case("sized", f"{op} {tg.f8e4m3} {rows}, {columns}, {k}", given, tg.scaled_linear, of_eight))
    return found


def attention_cases(torch: Any) -> list[Case]:
    """Those of attention_cuda.py, of bf16."""
    found = []
    for width, heads, of_keys, n, s, causal, window in [*((*each[:4], each[3], *each[4:]) for each in MANY),
                                                        *((*each[:3], 1, each[3], False, 0) for each in ONE)]:
        given = {"q": Given((n, heads, width), tg.bf16), **{x: Given((s, of_keys, width), tg.bf16) for x in "kv"}}
        how = {"causal": causal, "window": window, "scale": width ** -0.5, **({"start": s - n} if causal else {})}

        def sdpa(q: Any, k: Any, v: Any, causal: bool = causal, window: int = window) -> Any:
            at = [t.transpose(0, 1)[None] for t in (q, k, v)]
            rows = torch.arange(q.shape[0], device=q.device)[:, None] - torch.arange(k.shape[0], device=q.device)
            seen = (rows >= 0) & (rows < window) if window else None
            out = torch.nn.functional.scaled_dot_product_attention(*at, attn_mask=seen, is_causal=causal and not window,
                                                                   enable_gqa=q.shape[1] != k.shape[1])
            return out[0].transpose(0, 1)

        name = f"{n} × {s}, {heads} heads of {width}{'' if heads == of_keys else f', {of_keys} of keys'}"
        found.append(Case("attention", f"{name}{' causal' * causal}{f' window {window}' if window else ''}", given,
                          partial(tg.attention, **how), sdpa))
    return found


def layer_cases(torch: Any) -> list[Case]:
    """Pieces of layers as models have them, for whose sizes nothing here was tuned."""
    f = torch.nn.functional

    def x(*shape: int, dtype: Any = tg.bf16) -> Given:
        return Given(shape, dtype)

    def w(*shape: int, dtype: Any = tg.bf16) -> Given:
        return Given(shape, dtype, weight=True, scale=shape[-1] ** -0.5)

    def gated(rows: int, width: int, inner: int) -> Case:
        operands = {"x": x(rows, width), "g": w(inner, width), "u": w(inner, width), "d": w(width, inner)}
        return Case("layers", f"SwiGLU of {rows} rows, {width}, {inner}", operands,
                    lambda x, g, u, d: tg.linear(tg.silu(tg.linear(x, g)) * tg.linear(x, u), d),
                    lambda x, g, u, d: f.linear(f.silu(f.linear(x, g)) * f.linear(x, u), d))

    def mlp(rows: int, width: int, dtype: Any) -> Case:
        operands = {"x": x(rows, width, dtype=dtype), "a": w(4 * width, width, dtype=dtype), "b": w(4 * width, dtype=dtype),
                 "c": w(width, 4 * width, dtype=dtype), "e": w(width, dtype=dtype)}
        return Case("layers", f"MLP of {rows} rows, {width} {dtype}", operands,
                    lambda x, a, b, c, e: x + tg.linear(tg.gelu(tg.linear(x, a, b)), c, e),
                    lambda x, a, b, c, e: x + f.linear(f.gelu(f.linear(x, a, b)), c, e))

    def topk(x: Any) -> Any:
        return tg.topk(x, k=8)

    def topk_torch(x: Any) -> Any:
        values, indices = x.topk(8)
        return values, indices.int()

    def heads(q: Any, k: Any, v: Any) -> Any:
        at = [t.transpose(0, 1)[None] for t in (q, k, v)]
        return f.scaled_dot_product_attention(*at)[0].transpose(0, 1)

    return [
        Case("layers", "attention of 197, 12 heads of 64", {name: x(197, 12, 64) for name in "qkv"},
             lambda q, k, v: tg.attention(q, k, v, scale=0.125), heads),
        Case("layers", "softmax along the middle of 8, 512, 64", {"x": x(8, 512, 64, dtype=tg.f32)},
             lambda x: tg.softmax(x, axis=1), lambda x: x.softmax(1)),
        Case("layers", "softmax down columns of 1024, 4096", {"x": x(1024, 4096)},
             lambda x: tg.softmax(x, axis=0), lambda x: x.softmax(0)),
        Case("layers", "rms_norm of 8192, 16384", {"x": x(8192, 16384), "g": w(16384)}, lambda x, g: tg.rms_norm(x, g),
             lambda x, g: f.rms_norm(x, (16384,), g, 1e-6)),
        Case("layers", "layer_norm of 8192, 16384", {"x": x(8192, 16384), "g": w(16384), "b": w(16384)},
             lambda x, g, b: tg.layer_norm(x, g, b), lambda x, g, b: f.layer_norm(x, (16384,), g, b)),
        Case("layers", "gelu(linear + b) of 197, 768, 3072", {"x": x(197, 768), "w": w(3072, 768), "b": w(3072)},
             lambda x, w, b: tg.gelu(tg.linear(x, w, b)), lambda x, w, b: f.gelu(f.linear(x, w, b))),
        gated(8, 4096, 14336), gated(2048, 2048, 8192), mlp(197, 768, tg.bf16), mlp(1024, 768, tg.f32),
        Case("layers", "top-k 8 of 4096, 128", {"x": x(4096, 128, dtype=tg.f32)}, topk, topk_torch),
        Case("layers", "mean and variance of columns of 65536, 256", {"x": x(65536, 256, dtype=tg.f32)},
             lambda x: (tg.mean(x, axis=0), tg.var(x, axis=0)), lambda x: (x.mean(0), x.var(0, correction=0))),
        Case("layers", "cumsum of 512, 65536", {"x": x(512, 65536, dtype=tg.f32)}, lambda x: tg.cumsum(x), lambda x: x.cumsum(-1)),
        Case("layers", "rms_norm, qkv of a row, 4096, 6144", {"x": x(1, 4096), "g": w(4096), "w": w(6144, 4096)},
             lambda x, g, w: tg.linear(tg.rms_norm(x, g), w), lambda x, g, w: f.linear(f.rms_norm(x, (4096,), g, 1e-6), w))]


def by_kinds(torch: Any, function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The function with each of torch's fused forms of attention that is no default."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def by(kind: Any) -> Callable[..., Any]:
        def run(*operands: Any) -> Any:
            with sdpa_kernel(kind):
                return function(*operands)

        return run

    return {"flash": by(SDPBackend.FLASH_ATTENTION), "cudnn": by(SDPBackend.CUDNN_ATTENTION)}


def on_device(case: Case) -> Graph:
    """The case's graph; it takes its inputs and gives its outputs on the GPU."""
    nodes = {name: each.node(name) for name, each in case.given.items()}
    there = [node if case.given[name].weight else tg.copy_to(node, "cuda:0") for name, node in nodes.items()]
    out = case.ours(*there)
    if case.wrt:
        of = dict(zip(nodes, there, strict=True))
        out = tuple(tg.grad(out, [of[n] for n in case.wrt]))
    outs = out if isinstance(out, tuple) else (out,)
    return tg.graph({f"out{i}": tg.copy_to(o, "cuda:0") for i, o in enumerate(outs)})


def torch_call(torch: Any, case: Case, function: Callable[..., Any], operands: Mapping[str, Any]) -> Callable[[], tuple[Any, ...]]:
    tensors = [t.requires_grad_(name in case.wrt) for name, t in operands.items()]

    def run() -> tuple[Any, ...]:
        if case.wrt:
            wanted = [t for n, t in zip(operands, tensors, strict=True) if n in case.wrt]
            return tuple(torch.autograd.grad(function(*tensors), wanted))
        with torch.no_grad():
            out = function(*tensors)
        return out if isinstance(out, tuple) else (out,)

    return run


def drawn(torch: Any, given: Given, random: Any) -> Any:
    """Random values of an operand, as `Given.array` has them, made on the GPU."""
    dtype = tensor(np.empty(0, given.dtype.numpy)).dtype
    if given.dtype.kind != "float":
        return torch.randint(given.low, given.high, given.shape, generator=random, device="cuda").to(dtype)
    values = torch.randn(given.shape, generator=random, device="cuda") * given.scale
    return (values.abs() + 0.1 if given.positive else values).to(dtype)


def operand_sets(torch: Any, case: Case, on_host: bool) -> list[dict[str, Any]]:
    """Sets of operands on the GPU. on_host: drawn by numpy, so that another process can draw the same."""
    nbytes = sum(math.prod(each.shape) * each.dtype.itemsize for each in case.given.values())
    count = max(2, min(MOST, -(-CACHES // nbytes)))
    rng, random = np.random.default_rng(0), torch.Generator("cuda").manual_seed(0)
    return [{name: tensor(each.array(rng)).cuda() if on_host else drawn(torch, each, random) for name, each in case.given.items()}
            for _ in range(count)]


def start_ahead(first: int, every: int, count: int, arguments: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start processes that compile the graphs of a part, each some of them, into the database."""
    command = [sys.executable, __file__, *arguments, "--only-compile"]
    return [subprocess.Popen([*command, "--part", f"{first + k * every}/{every * count}"], stdout=subprocess.DEVNULL)
            for k in range(count)]


def compiled_by_torch(torch: Any, case: Case) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.compile(case.torch, dynamic=False, mode="max-autotune-no-cudagraphs")
    return function


def replay_of(made: CompiledGraph, ready: Prepared) -> tuple[Any, int, list[str]]:
    """(what replays all launches of a prepared run, how many those are, kernels on the host); it has run before."""
    device, executor = device_named("cuda:0"), made.executors[0]
    frame = ready._frame
    segments = [s for s in executor.segments if isinstance(s, Launches | OnDevice)]
    calls = executor.program.instructions
    elsewhere = [f"{c.kernel} {c.label}" for c in calls if c.call.engine != "transfer" and c.device != "cuda:0"
                 and not c.kernel.endswith(".copy")]                # which hands results out
    elsewhere += [f"{c.kernel} {c.label}" for s in executor.segments if not isinstance(s, Launches | OnDevice)
                  for c in (calls[i] for i in s.indices) if c.call.engine != "transfer" and c.device == "cuda:0"]

    def work(stream: Any) -> None:
        for segment in segments:
            segment.launch_all(frame, stream)

    parts = [part for s in segments for part in (s.parts if isinstance(s, OnDevice) else [s])]
    launches = sum(sum(map(len, p.ready(frame).launches)) if isinstance(p, Launches) else len(p.steps) for p in parts)
    capture = next((s.capture for s in segments if isinstance(s, OnDevice)), device.captured)
    return capture(work), launches, elsewhere


def error_of(found: Sequence[Any], right: Sequence[Any]) -> float:
    """The largest of all outputs."""
    worst = 0.0
    for out, ref in zip(found, right, strict=True):
        size = float(ref.double().square().mean().sqrt()) or 1.0
        error = float((out.double().reshape(ref.shape) - ref.double()).abs().max()) / size
        worst = worst if error <= worst else error
    return worst


def microseconds(torch: Any, contenders: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, replays in contenders.items():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(ASLEEP)
            for replay in replays:
                replay()
            first.record()
            for replay in replays:
                replay()
            last.record()
            last.synchronize()
            taken[name].append(first.elapsed_time(last) * 1e3 / len(replays))
    return {name: statistics.median(times) for name, times in taken.items()}


def row_of(torch: Any, case: Case, options: Mapping[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    graph = on_device(case)
    began = time.perf_counter()
    if given.profile:
        tg.profile(graph, budget=given.profile, **options)
    plan = tg.compile(graph, **options)
    seconds = time.perf_counter() - began
    tensors = operand_sets(torch, case, bool(given.tinygrad))
    doubles = {n: t.double() if t.is_floating_point() else t for n, t in tensors[0].items()}
    right = [t.detach() for t in torch_call(torch, case, case.torch, doubles)()]
    del doubles
    kept, replays, found = [], [], []
    for there in tensors:
        model = tg.bind(plan, {n: there[n].cpu() for n in graph.parameters})
        ready = model.prepared({n: there[n] for n in graph.inputs})
        out = ready.run()
        found = found or [torch.from_dlpack(out[n]).clone() for n in graph.outputs]
        kept.append(ready)                                          # and the memory of its results
        replays.append(replay_of(model, ready))
    functions = {"eager": case.torch, **(by_kinds(torch, case.torch) if given.attention else {}),
                 **({"compile": compiled_by_torch(torch, case)} if given.compile else {})}
    contenders: dict[str, Sequence[Callable[[], Any]]] = {"ours": [replay.run for replay, _, _ in replays]}
    theirs = math.nan
    failed = ""
    for name, function in functions.items():
        try:
            calls = [torch_call(torch, case, function, t) for t in tensors]
            outs = [call() for call in calls]
            if name == "eager":
                theirs = error_of([t.detach() for t in outs[0]], right)
            for call in calls:
                call()
            torch.cuda.synchronize()
            contenders[name] = [captured(torch, call).replay for call in calls]
        except Exception as e:                                      # torch's own trouble with one of its modes
            failed += f" {name}: {type(e).__name__}"
    torch.cuda.synchronize()
    error = error_of(found, right)

    allowed = max(WRONG, TIMES_TORCHS * theirs, *(2 * o.dtype.epsilon for o in graph.outputs.values() if o.dtype.is_float))
    us = microseconds(torch, contenders)
    if given.tinygrad:
        torch.cuda.empty_cache()
        with tempfile.TemporaryDirectory() as folder:
            try:
                told, outs = in_a_process(f"{case.kind}: {case.name}", ROWS, PRODUCTS, len(tensors), BEAM, given.tinygrad,
                                          Path(folder))
                off = error_of([torch.from_numpy(a).cuda() for a in outs.values()], right)
                us["tinygrad"] = told["us"] if off <= allowed else math.nan
                failed += f" tinygrad: {told['launches']} kernels, {told['seconds']:.0f} s, error {off:.1e}"
            except RuntimeError as e:
                failed += f" tinygrad: {e}"
    _, launches, elsewhere = replays[0]
    is_right = error <= allowed
    best = min((t for n, t in us.items() if n not in ("ours", "tinygrad")), default=math.nan)
    calls_made = plan.variants[0].program.instructions
    return {"kind": case.kind, "graph": case.name, "us": us, "right": bool(is_right), "error": error, "torch_error": theirs,
            "ratio": best / us["ours"] if is_right and not elsewhere else math.nan, "launches": launches, "elsewhere": elsewhere,
            "kernels": [f"{c.kernel} {c.label}" for c in calls_made], "seconds": seconds, "failed": failed,
            "predicted_us": plan.variants[0].predicted * 1e6}


def row_shown(torch: Any, case: Case, options: Mapping[str, Any], given: argparse.Namespace) -> dict[str, Any]:
    """The row of a case, printed."""
    name, began = f"{case.kind}: {case.name}", time.perf_counter()
    try:
        row = row_of(torch, case, options, given)
    except Exception as e:
        print(f"{name:38}{type(e).__name__}: {str(e)[:150]!r}", flush=True)
        return {"kind": case.kind, "graph": case.name, "right": False, "ratio": math.nan, "error": math.nan}
    us = row["us"]
    eager = min((us[n] for n in us if n not in ("ours", "compile", "tinygrad")), default=math.nan)
    shown = f"{us['ours']:10.1f}{eager:10.1f}" + "".join(f"{us[n]:10.1f}" if n in us else " " * 10 for n in ("compile", "tinygrad"))
    ratio = "  WRONG" if not row["right"] else f"{row['ratio']:7.2f}"
    where = f"  on the host: {', '.join(row['elsewhere'][:3])}" if row["elsewhere"] else ""
    print(f"{name:38}{shown}{ratio}{row['launches']:9}{row['error']:9.1e}{row['torch_error']:9.1e}"
          f"  {row['seconds']:.1f} of {time.perf_counter() - began:.1f} s{where}{row['failed']}", flush=True)
    return row


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="graphs whose kind or name holds one of these words, split by commas")
    parser.add_argument("--part", default="0/1", help="K/N: of these graphs, each N-th from the K-th on")
    parser.add_argument("--profile", type=float, default=0.0, metavar="SECONDS", help="of tg.profile for each graph; default: none")
    parser.add_argument("--backends", default="cuda,gencuda", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--tolerance", type=float, help="of tg.profile and tg.compile; default: theirs. Sums of products of eight "
                        "bits that stay in tensor cores, as cuBLASLt's do here, may need more")
    parser.add_argument("--tf32", action="store_true", help="torch's products of f32 round their operands to TF32; ours may with a "
                        "--tolerance of 2e-3 or more")
    parser.add_argument("--compile", action="store_true", help="torch.compile's max-autotune too (10 s for each graph)")
    parser.add_argument("--ahead", type=int, default=0, metavar="N", help="processes that compile all graphs first")
    parser.add_argument("--only-compile", action="store_true", help="time nothing")
    parser.add_argument("--tinygrad", type=float, default=0.0, metavar="SECONDS",
                        help=f"tinygrad with BEAM={BEAM} too, in this time for each graph of the suite; its own process")
    parser.add_argument("--products", action="store_true", help="the sizes of products_cuda.py in place of the suite")
    parser.add_argument("--attention", action="store_true", help="the sizes of attention_cuda.py in place of the suite")
    parser.add_argument("--layers", action="store_true", help="pieces of layers of models in place of the suite")
    parser.add_argument("--database", help="default: an empty one")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.tinygrad and (given.products or given.attention or given.layers):
        parser.error("--tinygrad runs graphs of the suite")
    return given


def main() -> int:
    given = arguments()
    import torch

    began = time.perf_counter()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = given.tf32
    device = device_named("cuda:0")
    device.use()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 10
    words, (first, every) = given.only.split(","), map(int, given.part.split("/"))
    listed = (product_cases(torch) if given.products else attention_cases(torch) if given.attention else
              layer_cases(torch) if given.layers else
              cases(torch, ROWS, PRODUCTS))
    chosen = [c for c in listed if any(word in f"{c.kind}: {c.name}" for word in words)][first::every]
    print(f"{device.hardware()[0]}; torch {torch.__version__}")
    print(" " * 38 + "".join(f"{name:>10}" for name in ("ours", "eager", "compile", "tinygrad"))
          + f"{'ratio':>7}{'launches':>9}{'error':>9}{'torch':>9}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        options = {"database": given.database or str(Path(folder) / "bench.db"), "backends": given.backends,
                   "tolerance": given.tolerance}
        if given.only_compile:
            for case in chosen:
                with contextlib.suppress(Exception):                # where it is timed, it says why
                    tg.compile(on_device(case), **options)
            return 0
        processes = start_ahead(first, every, given.ahead, [*sys.argv[1:], "--database", options["database"]])
        for process in processes:
            process.wait()
        print(f"compiled ahead in {time.perf_counter() - began:.0f} s", flush=True)
        rows = [row_shown(torch, case, options, given) for case in chosen]
    mean = geomean([r["ratio"] for r in rows])
    known = sorted((r["ratio"], r["graph"]) for r in rows if not math.isnan(r["ratio"]))
    print(f"geometric mean {mean:.2f} of {len(known)}; below {LEAST}: " + ", ".join(f"{n} {x:.2f}" for x, n in known if x < LEAST))
    wrong = [r["graph"] for r in rows if not r["right"]]
    if wrong:
        print(f"wrong: {', '.join(wrong)}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1, default=str))
    return int(bool(wrong) or len(known) < len(rows) or mean < GEOMEAN or known[0][0] < LEAST)


if __name__ == "__main__":
    sys.exit(main())
