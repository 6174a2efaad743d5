"""Graphs of every kind next to torch eager and torch.compile: one process, two threads, in turns, cold and hot operands.

    python benchmarks/kernels_cpu.py --no-compile --rounds 7
    python benchmarks/kernels_cpu.py --profile 20 --backends c,gen,numpy,torch --json kernels.json
    python benchmarks/kernels_cpu.py --only softmax --rounds 5

Each graph (cpu_graphs.py) is compiled, after `tg.profile` for --profile seconds or from the cost model alone, and is run in turns
with the same in torch (in_turns.py): its operands are out of the caches (cold), or were just used (hot). Times are tenth
percentiles, in microseconds. Weights are operands: a graph that has some is bound twice, one without runs as one model, as torch's
function does. ratio: the best of torch ÷ ours, so more than 1 is faster than torch; calls: of our kernels in a run.
errors: the largest relative error against the float64 oracle, ours and torch's. An error beyond both the tolerance of compile and
three times torch's is a wrong output, and the row has no ratio.

Ends with 1 where an output is wrong, the geometric mean of the cold ratios is below 1.25 (1.0 without --profile), or one is below
0.85.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg  # before numpy, whose threads would spin otherwise
from benchmarks.arguments import at_least, new_file
from benchmarks.cpu_graphs import Case, cases
from benchmarks.in_turns import Timed, flushing, in_turns
from tensor_graphs.devices.environment import fingerprint
from tensor_graphs.kernels.registry import DEFAULT_BACKENDS
from tensor_graphs.kernels.torch.ops import tensor
from tensor_graphs.meaning.error_measure import measure, neighbours_error

THREADS = 2
MODES = {"compile": {}, "max-autotune": {"mode": "max-autotune"}}
"""column -> arguments of torch.compile"""

GEOMEAN, GEOMEAN_UNMEASURED, LEAST = 1.25, 1.0, 0.85
"""limits: of the geometric mean with --profile and without, and of each ratio"""

ALLOWED = 1e-3
"""error that is never wrong, as two roundings of an output"""

TIMES_TORCHS = 3.0
"""of torch's error, within which ours is no wrong output"""


def error_of(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], outputs: Sequence[tg.Node]) -> float:
    """The largest relative error of all outputs (NaN is the largest); see meaning/error_measure.py."""
    worst = 0.0
    for out, ref, node in zip(found, expected, outputs, strict=True):
        rounding = neighbours_error(ref, node.dtype) if node.dtype.kind == "float" else None
        error = measure(np.asarray(out).reshape(ref.shape), ref, node.dtype, rounding=rounding).max_relative_error
        worst = worst if error <= worst else error
    return worst


def as_array(t: Any) -> np.ndarray:
    t = t.detach()
    return np.asarray((t.float() if t.dtype.is_floating_point and t.element_size() < 4 else t).numpy())


def torch_call(torch: Any, case: Case, function: Callable[..., Any], operands: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    """The function on these operands, or its gradients, as a function without arguments."""
    tensors = [tensor(a).requires_grad_(name in case.wrt) for name, a in operands.items()]
    if not case.wrt:
        def run() -> Any:
            with torch.no_grad():
                return function(*tensors)

        return run
    wanted = [t for name, t in zip(operands, tensors, strict=True) if name in case.wrt]
    return lambda: torch.autograd.grad(function(*tensors), wanted)


def row_of(torch: Any, case: Case, database: str, given: argparse.Namespace, cache: np.ndarray) -> dict[str, Any]:
    """One line of the table."""
    graph, backends, rng = case.graph, given.backends, np.random.default_rng(0)
    options: dict[str, Any] = {"database": database, "backends": backends, "threads": THREADS}
    began = time.perf_counter()
    if given.profile:
        tg.profile(graph, budget=given.profile, **options)
    profiled = time.perf_counter()
    plan = tg.compile(graph, **options)
    compiled = time.perf_counter()
    sets = [{name: each.array(rng) for name, each in case.given.items()} for _ in range(2)]
    inputs = [{n: each[n] for n in graph.inputs} for each in sets]
    weights = [{n: each[n] for n in graph.parameters} for each in sets]
    models = [tg.bind(plan, each) for each in weights] if graph.parameters else [tg.bind(plan, {})] * 2
    runs: dict[str, Timed] = {"ours": Timed(*(_running(m, i) for m, i in zip(models, inputs, strict=True)))}
    functions: dict[str, Callable[..., Any]] = {"eager": case.torch}
    for name in given.modes:
        torch.compiler.reset()
        functions[name] = torch.compile(case.torch, dynamic=False, **MODES[name])
    for name, function in functions.items():
        runs[name] = Timed(*(torch_call(torch, case, function, each) for each in sets))

    outputs = list(graph.outputs.values())
    oracle = tg.interpret(graph, inputs[1], weights[1]).outputs
    expected = [np.asarray(oracle[n]) for n in graph.outputs]
    mine = runs["ours"].run_cold()
    error = error_of([mine[n] for n in graph.outputs], expected, outputs)
    theirs = runs["eager"].run_cold()
    torchs = error_of([as_array(t) for t in (theirs if isinstance(theirs, tuple) else (theirs,))], expected, outputs)
    limit = max(ALLOWED, TIMES_TORCHS * torchs, *(2.0 * o.dtype.epsilon for o in outputs if o.dtype.is_float))
    in_turns(list(runs.values()), given.rounds, cache)

    calls = plan.variants[0].program.instructions
    us = {name: (t.low * 1e6, t.low_hot * 1e6) for name, t in runs.items()}
    best, best_hot = (min(us[n][i] for n in functions) for i in (0, 1))
    right = error <= limit
    return {"kind": case.kind, "graph": case.name, "us": us, "right": right, "error": error, "torch_error": torchs,
            "ratio": best / us["ours"][0] if right else math.nan, "hot": best_hot / us["ours"][1] if right else math.nan,
            "calls": len(calls), "kernels": [f"{c.kernel} {c.label}" for c in calls], "profiled_s": profiled - began,
            "compile_s": compiled - profiled, "backends": sorted({c.backend for c in calls}),
            "predicted_us": plan.variants[0].predicted * 1e6}


def _running(model: Any, inputs: Mapping[str, np.ndarray]) -> Callable[[], Any]:
    return lambda: model.run(inputs)


def geomean(ratios: Sequence[float]) -> float:
    """Of all ratios that there are; nan of none."""
    known = [r for r in ratios if not math.isnan(r)]
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.nan


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float, float]]:
    """Kind, and "all" -> how many graphs, the geometric means of their cold ratios and of the hot ones."""
    kinds = [*dict.fromkeys(r["kind"] for r in rows), "all"]
    some = {k: [r for r in rows if k in (r["kind"], "all")] for k in kinds}
    return {k: (len(rs), geomean([r["ratio"] for r in rs]), geomean([r["hot"] for r in rs])) for k, rs in some.items()}


def misses(rows: Sequence[Mapping[str, Any]], profiled: bool) -> list[str]:
    """What is not as it has to be, for people."""
    wrong = [f"{r['graph']}: wrong, its error is {r['error']:.1e}" for r in rows if not r["right"]]
    by_ratio = sorted(rows, key=lambda r: r["ratio"])
    slow = [f"{r['graph']}: {r['ratio']:.2f} is below {LEAST}" for r in by_ratio if r["ratio"] < LEAST]
    mean, limit = geomean([r["ratio"] for r in rows]), GEOMEAN if profiled else GEOMEAN_UNMEASURED
    return [*wrong, *slow, *([] if mean >= limit else [f"the geometric mean is {mean:.2f}, below {limit}"])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="graphs whose kind or name holds one of these words, split by commas")
    parser.add_argument("--profile", type=float, default=0.0, metavar="SECONDS", help="of tg.profile for each graph; default: none")
    parser.add_argument("--backends", default=",".join(DEFAULT_BACKENDS), type=lambda text: tuple(text.split(",")))
    parser.add_argument("--rounds", type=at_least(3), default=15)
    parser.add_argument("--no-compile", action="store_true", help="torch eager alone")
    parser.add_argument("--no-max-autotune", action="store_true", help="without that mode of torch.compile")
    parser.add_argument("--database", help="default: an empty one")
    parser.add_argument("--json", type=new_file)
    given = parser.parse_args()
    given.modes = [] if given.no_compile else ["compile"] if given.no_max_autotune else list(MODES)
    import torch

    torch.set_num_threads(THREADS)
    words = given.only.split(",")
    chosen = [c for c in cases(torch) if any(word in f"{c.kind}: {c.name}" for word in words)]
    if not chosen:
        parser.error(f"--only {given.only!r} is in the name of no graph")
    cache, rows = flushing(), []
    columns = ("ours", "eager", *given.modes)
    print(f"{'graph':38}" + "".join(f" {c:>17}" for c in columns)
          + f" {'ratio':>6} {'hot':>6} {'calls':>5} {'error':>8} {'torch':>8}  backends\n"
          + " " * 38 + f" {'cold and hot µs':>17}" * len(columns), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            row = row_of(torch, case, given.database or str(Path(folder) / "bench.db"), given, cache)
            rows.append(row)
            times = "".join(f" {row['us'][c][0]:8.0f} {row['us'][c][1]:8.0f}" for c in columns)
            ratios = f"{row['ratio']:6.2f} {row['hot']:6.2f}" if row["right"] else f"{'WRONG':>13}"
            print(f"{row['kind'] + ': ' + row['graph']:38}{times} {ratios} {row['calls']:5} {row['error']:8.1e} "
                  f"{row['torch_error']:8.1e}  {','.join(row['backends'])}", flush=True)
    found = summary(rows)
    print("geometric means of the ratios, cold and hot: "
          + " · ".join(f"{kind} {cold:.2f} {hot:.2f} of {n}" for kind, (n, cold, hot) in found.items()))
    missed = misses(rows, bool(given.profile))
    print(*missed, sep="\n")
    if given.json:
        environments = {name: asdict(fingerprint(name)) for name in given.backends}
        given.json.write_text(json.dumps({"summary": found, "missed": missed, "rows": rows, "environments": environments}, indent=1,
                                         default=str))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
