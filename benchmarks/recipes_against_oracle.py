"""Recipes of random graphs against the float64 oracle: `python benchmarks/recipes_against_oracle.py [graphs] [recipes]`.

Draws graphs as tests/proof/random_graphs.py does until so many have at least so many reassociating recipes (about one in ten
has ten). The recipes of all graphs drawn on the way are compared with the oracle's value of the graph: in float64 within 1e-9, and
those of the bitwise level in bits, every step rounded as written.

What is counted as a recipe: a graph that differs from the given one, and from the recipes before it, once all composites are
written out in atomic ops; so neither the graph itself is, nor the same ops under a composite's name. Of each level up to so many
are compared, those that a reassociating rule led to first. The last line says how many that were, and how many have other bits
than the graph: not all have, because some of these rules move elements and round nothing, and some sums happen to round alike.

Prints what is wrong; exit code 1 if anything is, or if no recipe rounds otherwise than its graph: nothing was tested then.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.passes.recognise import write_out
from tensor_graphs.rewrites.recipes import Recipe, recipes
from tensor_graphs.rewrites.rule import BITWISE, LEVELS, REASSOCIATING, NumericClass
from tensor_graphs.rewrites.rules import ALL
from tensor_graphs.rewrites.saturate import Budget
from tests.proof.random_graphs import expression

SIZES = {"n": 3, "m": 5}
"""Odd, or a mean over four is a shift of the exponent, and nothing rounds."""
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


REASSOCIATES = {r.name for r in ALL if r.numeric_class == REASSOCIATING}
MORE = 4
"""Recipes that are asked for, for each that is wanted: some are the same graph once composites are written out."""


def distinct(graph: tg.Graph, count: int, level: NumericClass) -> list[Recipe]:
    """Up to `count` recipes, no two of which are the same graph in atomic ops, and none the given one."""
    seen, kept = {write_out(graph).structural_key}, []
    for recipe in recipes(graph, count=MORE * count, budget=BUDGET, level=level).list:
        key = write_out(recipe.graph).structural_key
        if key not in seen:
            seen.add(key)
            kept.append(recipe)
    # those that really reassociate come first, then the cheapest, as they were
    return sorted(kept, key=lambda r: REASSOCIATES.isdisjoint(r.rules))[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=at_least(1), nargs="?", default=500, help="how many are compared (default: %(default)s)")
    parser.add_argument("recipes", type=at_least(1), nargs="?", default=10, help="how many each has (default: %(default)s)")
    asked = parser.parse_args()
    graphs, count = asked.graphs, asked.recipes
    rng = np.random.default_rng(7)
    given = {name: rng.standard_normal((SIZES["n"], SIZES["m"])) for name in "xyz"}
    tally = dict.fromkeys(LEVELS, 0)
    wrong = enough = seed = reassociated = moved = 0
    worst, started = 0.0, time.perf_counter()
    while enough < graphs:
        graph = tg.graph(expression(random.Random(seed), 2 + seed % 4))
        seed += 1
        found = distinct(graph, count, REASSOCIATING)
        differ = 0
        bitwise = distinct(graph, count, BITWISE)
        exact, bits = value(graph, given, "real"), value(graph, given, "as_written")
        for level, recipe in [*((REASSOCIATING, r) for r in found), *((BITWISE, r) for r in bitwise)]:
            tally[level] += 1
            got = value(recipe.graph, given, "real")
            gap = difference(got, exact)
            worst = max(worst, gap)
            reassociated += not REASSOCIATES.isdisjoint(recipe.rules)
            differ += level == REASSOCIATING and not same_bits(got, exact)
            same = level == REASSOCIATING or same_bits(value(recipe.graph, given, "as_written"), bits)
            if not (gap <= BOUND and same):
                wrong += 1
                print(f"seed {seed - 1}, {level}: {gap:.1e}{'' if same else ', other bits'} by {', '.join(recipe.rules)}")
                print(f"{print_graph(graph)}=>\n{print_graph(recipe.graph)}", flush=True)
        moved += differ
        if len(found) < count:
            continue
        enough += 1
        if enough % 50 == 0:
            print(f"{enough} graphs of {seed} drawn, {tally}, {wrong} wrong, {time.perf_counter() - started:.0f} s", flush=True)
    print(f"{graphs} graphs with {count} recipes or more, of {seed} drawn; compared: "
          f"{', '.join(f'{n} {level}' for level, n in tally.items())}, of which a reassociating rule led to {reassociated}; "
          f"{moved} have other bits, by {worst:.1e} at most; {wrong} wrong; {time.perf_counter() - started:.0f} s")
    if not moved:
        print("no recipe rounds otherwise than its graph: ask for more graphs")
    sys.exit(1 if wrong or not moved else 0)


if __name__ == "__main__":
    main()
