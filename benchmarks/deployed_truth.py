"""deployed_truth: are the times in the database those of the model that runs?

    python benchmarks/deployed_truth.py --dtypes float32,bfloat16

For the decode step of Gemma-3-270M (true shape): the sum of the times of its steps in their places, over the step measured whole;
and for each matrix-vector product the kernels that could run it, by their cold time, by their hot time, and by the time of the
whole step in which that kernel is used for it. Where whole steps are apart (their 99 % intervals do not meet), cold times must rank
the kernels as they do. Paths are run in turns in one worker, on weights that fill the same memory as the model's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

sys.path.insert(0, str(FilePath(__file__).resolve().parent.parent))

from tensor_graphs.choice.cost_table import ESTIMATE_MARGIN, CostTable
from tensor_graphs.choice.profile_graph import profile_graph
from tensor_graphs.costs.measured_rates import known_rates
from tensor_graphs.frontends.huggingface.load import model_graph
from tensor_graphs.kernels.registry import all_kernels, by_op, kernel_named, matching
from tensor_graphs.measure.judge import Judge
from tensor_graphs.measure.rates.calibration import measure_device
from tensor_graphs.measure.timing.in_graph_steps import Deployed, measure_deployed
from tensor_graphs.measure.timing.statistics import Summary, summarise
from tensor_graphs.paths.path import Path
from tensor_graphs.records.database import open_database

AT = {"n": 1, "m": 1, "p": 64}
BACKENDS = ("c", "numpy")


def milliseconds(summary: Summary) -> str:
    return f"{summary.median * 1e3:8.3f} ({summary.low * 1e3:.3f} to {summary.high * 1e3:.3f})"


def apart(a: Summary, b: Summary) -> int:
    return -1 if a.high < b.low else int(a.low > b.high)


def truth(dtype: str, database: str, rounds: int) -> dict[str, Any]:
    """One document for one dtype of the weights."""
    graph = model_graph("gemma-3-270m", dtype=dtype, greedy=False)
    with open_database(database) as store:
        measure_device(store, BACKENDS)
        with Judge(store, rates=known_rates(store, BACKENDS)) as judge:
            book = CostTable(store, BACKENDS, 1e-3, None, ESTIMATE_MARGIN).load()
            paths = book.paths(graph, by_op(all_kernels(BACKENDS)), AT, optimistic=True)
            first = paths.cheapest()
            signatures = {s.key: s for s in paths.known()}
            products = [signatures[key] for key in first.choices if signatures[key].spec.op.name == "linear"]
            tried: list[tuple[str, str, Path]] = []
            for s in products:
                for kernel in matching(s.spec, by_op(all_kernels(BACKENDS))):
                    tried.append((s.key, kernel.name, replace(first, choices={**first.choices, s.key: kernel.name},
                                                              identities={**first.identities, kernel.name: kernel.identity})))
            kernels = {name: kernel_named(name) for _, _, p in tried for name in p.choices.values() if name != "expand"}
            alone: dict[tuple[str, str], dict[str, Any]] = {}
            for key, name, _ in tried:
                s = signatures[key]
                at = {n: AT[n] for n in s.dim_names}
                verdict = judge.examine(kernels[name], s, at, time_at=at, budget=1.0)
                if verdict.status != "PASSED":
                    raise SystemExit(f"{name} on {s.title()}: {verdict.status} {verdict.log}")
                alone[key, name] = dict(verdict.timing)
            distinct = {p.id: p for _, _, p in tried}
            found: dict[str, list[Deployed]] = {i: [] for i in distinct}
            for _ in range(rounds):
                for each in measure_deployed(judge, graph, list(distinct.values()), kernels, AT, BACKENDS):
                    found[each.path.id].append(each)
    whole = {i: summarise([s for each in runs for s in each.whole]) for i, runs in found.items()}
    of_first = found[first.id]
    ratio = statistics.median(steps / step for each in of_first for steps, step in zip(each.sums, each.whole, strict=True))
    print(f"{dtype}: a step measured whole {milliseconds(whole[first.id])} ms; the sum of its steps ÷ the whole {ratio:.4f}")
    wrong = {"cold": 0, "hot": 0}
    pairs = 0
    for s in products:
        rows = [(name, alone[key, name], whole[p.id]) for key, name, p in tried if key == s.key]
        print(f"  {s.title()}, {first.calls.get(s.key, 0)} calls")
        for name, times, step in sorted(rows, key=lambda r: r[2].median):
            print(f"    {name:14s} cold {times['cold']['median']:8.4f} ms   hot {times['hot']['median']:8.4f} ms   "
                  f"whole step with it {milliseconds(step)} ms")
        for (_, a, x), (_, b, y) in itertools.combinations(rows, 2):
            order = apart(x, y)
            if order:
                pairs += 1
                for what in wrong:
                    wrong[what] += (a[what]["median"] - b[what]["median"]) * order < 0
    print(f"  of {pairs} pairs of kernels whose whole steps are apart cold times rank {wrong['cold']} wrongly, hot times "
          f"{wrong['hot']}")
    return {"dtype": dtype, "sum_over_whole": ratio, "whole_ms": whole[first.id].to_json(1e3), "pairs": pairs,
            "ranked_wrongly": wrong,
            "kernels": [{"signature": signatures[k].title(), "kernel": n, "cold_ms": alone[k, n]["cold"]["median"],
                         "hot_ms": alone[k, n]["hot"]["median"], "whole_ms": whole[p.id].to_json(1e3)} for k, n, p in tried]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--rounds", type=int, default=2, help="how often all paths are run in turns, some 8 seconds each")
    parser.add_argument("--profile", type=float, default=0.0, help="seconds of profiling first, so that the path is a measured one")
    parser.add_argument("--database", default=None, help="default: an empty one")
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = args.database or str(FilePath(folder) / "bench.db")
        found = []
        for dtype in args.dtypes.split(","):
            if args.profile:
                profile_graph(model_graph("gemma-3-270m", dtype=dtype, greedy=False), budget=args.profile, database=database, at=AT)
            found.append(truth(dtype, database, args.rounds))
    if args.json:
        FilePath(args.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
    sys.exit(0 if all(abs(f["sum_over_whole"] - 1) <= 0.05 and not f["ranked_wrongly"]["cold"] for f in found) else 1)


if __name__ == "__main__":
    main()
