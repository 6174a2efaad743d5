"""Every recipe of random graphs against the float64 oracle: `python benchmarks/recipes_against_oracle.py [graphs] [recipes]`.

Draws graphs as tests/meaning/random_graphs.py does until so many have at least so many reassociating recipes, and compares each of
those, and each bitwise one, with the oracle's value of the graph itself: in float64 within 1e-9, and bitwise ones in bits, every
step rounded as written. Prints how many were compared, the largest relative difference, and what is wrong; exit code 1 if
anything is.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.recipes import recipes
from tensor_graphs.rewrites.rule import BITWISE, LEVELS, REASSOCIATING
from tensor_graphs.rewrites.saturate import Budget
from tests.meaning.random_graphs import expression

SIZES = {"n": 3, "m": 4}
BOUND = 1e-9
BUDGET = Budget(nodes=1500, rounds=6, depth=5, expanding=12, seconds=60.0)


def value(graph: tg.Graph, given: dict[str, np.ndarray], mode: Literal["real", "as_written"]) -> np.ndarray:
    """What the oracle says a graph is: of definitions, in float64 or with every step rounded."""
    inputs = {n: given[n] for n in graph.inputs}
    with np.errstate(all="ignore"):
        return interpret(graph, inputs, dims={k: SIZES[k] for k in graph.dims}, mode=mode, use_direct=False).outputs["out"]


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest element; infinite where what is not finite differs."""
    finite = np.isfinite(want)
    if not (np.array_equal(finite, np.isfinite(got)) and np.array_equal(got[~finite], want[~finite], equal_nan=True)):
        return float("inf")
    return float(np.abs(got - want)[finite].max(initial=0.0)) / max(1.0, float(np.abs(want)[finite].max(initial=0.0)))


def same_bits(got: np.ndarray, want: np.ndarray) -> bool:
    """Equal as bits, but for which NaN it is."""
    nan = np.isnan(got) & np.isnan(want)
    return got.dtype == want.dtype and np.where(nan, 0.0, got).tobytes() == np.where(nan, 0.0, want).tobytes()


def main() -> None:
    graphs, count = (int(a) for a in (sys.argv[1:] + ["500", "10"][len(sys.argv) - 1:]))
    rng = np.random.default_rng(7)
    given = {name: rng.standard_normal((3, 4)) for name in "xyz"}
    tally = dict.fromkeys(LEVELS, 0)
    wrong = enough = seed = 0
    worst, started = 0.0, time.perf_counter()
    while enough < graphs:
        graph = tg.graph(expression(random.Random(seed), 2 + seed % 4))
        seed += 1
        found = recipes(graph, count=count, budget=BUDGET).list
        if len(found) < count:
            continue
        enough += 1
        bitwise = recipes(graph, count=count, budget=BUDGET, level=BITWISE).list
        exact, bits = value(graph, given, "real"), value(graph, given, "as_written")
        for level, recipe in [*((REASSOCIATING, r) for r in found), *((BITWISE, r) for r in bitwise)]:
            tally[level] += 1
            gap = difference(value(recipe.graph, given, "real"), exact)
            worst = max(worst, gap)
            same = level == REASSOCIATING or same_bits(value(recipe.graph, given, "as_written"), bits)
            if not (gap <= BOUND and same):
                wrong += 1
                print(f"seed {seed - 1}, {level}: {gap:.1e}{'' if same else ', other bits'} by {', '.join(recipe.rules)}")
                print(f"{print_graph(graph)}=>\n{print_graph(recipe.graph)}", flush=True)
        if enough % 50 == 0:
            print(f"{enough} graphs of {seed} drawn, {tally}, {wrong} wrong, {time.perf_counter() - started:.0f} s", flush=True)
    print(f"{graphs} graphs with {count} recipes or more, of {seed} drawn; compared: "
          f"{', '.join(f'{n} {level}' for level, n in tally.items())}; {wrong} wrong, largest difference {worst:.1e}; "
          f"{time.perf_counter() - started:.0f} s")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
