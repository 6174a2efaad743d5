"""Every recipe of random graphs against the float64 oracle: `python benchmarks/recipes_against_oracle.py [graphs] [recipes]`.

Draws graphs as tests/meaning/random_graphs.py does, extracts up to so many recipes from each (bitwise and reassociating), and
compares every one with the oracle's value of the graph itself. Prints how many were compared, the largest relative difference,
and each recipe beyond 1e-9; exit code 1 if there is one.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.recipes import recipes
from tensor_graphs.rewrites.saturate import Budget
from tests.meaning.random_graphs import expression

SIZES = {"n": 3, "m": 4}
BOUND = 1e-9


def value(graph: tg.Graph, given: dict[str, np.ndarray]) -> np.ndarray:
    return interpret(graph, {n: given[n] for n in graph.inputs}, dims={k: SIZES[k] for k in graph.dims}).outputs["out"]


def main() -> None:
    graphs, count = (int(a) for a in (sys.argv[1:] + ["500", "10"][len(sys.argv) - 1:]))
    rng = np.random.default_rng(7)
    given = {name: rng.standard_normal((3, 4)) for name in "xyz"}
    compared = wrong = enough = 0
    worst, started = 0.0, time.perf_counter()
    for seed in range(graphs):
        graph = tg.graph(expression(random.Random(seed), 2 + seed % 4))
        want = value(graph, given)
        found = recipes(graph, count=count, budget=Budget(nodes=1500, rounds=6, depth=5, expanding=12, seconds=60.0)).list
        enough += len(found) >= count
        for recipe in found:
            gap = np.abs(value(recipe.graph, given) - want)
            relative = float(gap.max()) / max(1.0, float(np.abs(want).max()))
            compared, worst = compared + 1, max(worst, relative)
            if not relative <= BOUND:
                wrong += 1
                print(f"seed {seed}: {relative:.1e} by {', '.join(recipe.rules)}")
                print(f"{print_graph(graph)}=>\n{print_graph(recipe.graph)}")
    print(f"{graphs} graphs, {enough} with {count} recipes; {compared} recipes compared, {wrong} beyond {BOUND}, "
          f"largest difference {worst:.1e}; {time.perf_counter() - started:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
