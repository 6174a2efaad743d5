"""A graph with a part for each device: the plan over both beside those of one device alone.

    python benchmarks/mixed_plan.py [--budget 20] [--sides 64,65536]

x·w of a large w is the GPU's, as its weights are there; a chain over a small vector that is on the host is the host's, as copying
it takes longer. At the larger side that chain is long, and the GPU's too. Each plan is profiled, compiled and run in turns; printed
are the medians of a run, copies included, and the devices of its kernels. Ends with 1 where the plan over both is slower than the
best of one device by more than a tenth, or where it is mixed although that is no faster. Needs a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tensor_graphs as tg

SETS = {"both": ("c", "gen", "numpy", "cuda", "gencuda"), "cuda:0": ("cuda", "gencuda"), "cpu": ("c", "gen", "numpy")}
TURNS, NEAR = 40, 1.1


def graph_of(side: int) -> tg.Graph:
    x, w = tg.input("x", (1, 4096)), tg.parameter("w", (8192, 4096))
    v = tg.input("v", (side, 64))
    return tg.graph({"y": tg.linear(x, w), "z": tg.softmax(tg.tanh(v) * 2.0) + v})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of measuring for each graph")
    parser.add_argument("--sides", default="64,65536", help="rows of the small vector, one graph each")
    given = parser.parse_args()
    bad, draw = 0, np.random.default_rng(0)
    for side in map(int, given.sides.split(",")):
        g = graph_of(side)
        with tempfile.TemporaryDirectory() as folder:
            database = str(Path(folder) / "bench.db")
            tg.profile(g, budget=given.budget, backends=SETS["both"], database=database)
            values = {n: draw.standard_normal([int(s) for s in p.shape]).astype(np.float32)
                      for n, p in {**g.inputs, **g.parameters}.items()}
            models, where = {}, {}
            for name, backends in SETS.items():
                plan = tg.compile(g, backends=backends, database=database)
                where[name] = sorted({i.device for i in plan.variants[0].program.instructions if i.call.engine != "transfer"})
                models[name] = tg.bind(plan, {n: values[n] for n in g.parameters})
            inputs = {n: values[n] for n in g.inputs}
            taken: dict[str, list[float]] = {name: [] for name in models}
            for _ in range(TURNS):
                for name, model in models.items():
                    begun = time.perf_counter()
                    model.run(inputs)
                    taken[name].append(time.perf_counter() - begun)
            us = {name: statistics.median(times[5:]) * 1e6 for name, times in taken.items()}
            best = min(us["cuda:0"], us["cpu"])
            mixed = len(where["both"]) > 1
            wrong = us["both"] > NEAR * best or (mixed and us["both"] > best)
            bad += wrong
            print(f"{side:6d} rows: " + ", ".join(f"{name} {us[name]:.0f} µs on {' and '.join(where[name])}" for name in models)
                  + ("  WRONG" if wrong else ""), flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
