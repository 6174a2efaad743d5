"""held_out_draws: how often a plan that was chosen for a tolerance exceeds it on draws that nothing has seen.

    python benchmarks/held_out_draws.py [--compiles 500] [--draws 20] [--seed 0]

Graphs are layers of several families at random sizes, in f32 or bf16; tolerances are log-uniform. Each plan is measured on further
draws of the same kind of inputs and weights. The claim: at most 1 % of further draws of a largest error exceed the tolerance.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable

import numpy as np

import tensor_graphs as tg
from tensor_graphs.measure.error_draws import ErrorDraws, drawn_weights
from tensor_graphs.paths.path import NoPathError

HELD_OUT = 10_000
"""first seed of the draws that the choice has not seen"""


def mlp(rows: int, width: int, dtype: tg.DType) -> tg.Node:
    x = tg.input("x", (rows, width), dtype)
    for i in range(2):
        gate, up = (tg.linear(tg.rms_norm(x), tg.parameter(f"layers.{i}.{n}", (2 * width, width), dtype)) for n in ("gate", "up"))
        x = x + tg.linear(tg.silu(gate) * up, tg.parameter(f"layers.{i}.down", (width, 2 * width), dtype))
    return x


def attention(rows: int, width: int, dtype: tg.DType) -> tg.Node:
    x = tg.input("x", (rows, width), dtype)
    q, k, v = (tg.linear(x, tg.parameter(f"layers.0.{n}", (width, width), dtype)).reshape((rows, 2, width // 2)) for n in "qkv")
    heads = tg.attention(q, k, v, scale=(width // 2) ** -0.5, causal=True)
    return x + tg.linear(heads.reshape((rows, width)), tg.parameter("layers.0.o", (width, width), dtype))


def normed(rows: int, width: int, dtype: tg.DType) -> tg.Node:
    x = tg.input("x", (rows, width), dtype)
    return tg.gelu(tg.linear(tg.layer_norm(x), tg.parameter("w", (width, width), dtype), tg.parameter("b", (width,), dtype)))


def scores(rows: int, width: int, dtype: tg.DType) -> tg.Node:
    return tg.softmax(tg.linear(tg.input("x", (rows, width), dtype), tg.parameter("w", (3 * width, width), dtype)))


def elementwise(rows: int, width: int, dtype: tg.DType) -> tg.Node:
    x, y = (tg.input(name, (rows, width), dtype) for name in "xy")
    return tg.tanh(x * y + x) * tg.sigmoid(y)


def convolution(rows: int, width: int, dtype: tg.DType) -> tg.Node:
    x = tg.input("x", (1, 8, 12, width), dtype)
    return tg.relu(tg.conv(x, tg.parameter("w", (8, 8, 3, 3), dtype)))


FAMILIES: dict[str, Callable[[int, int, tg.DType], tg.Node]] = {
    f.__name__: f for f in (mlp, attention, normed, scores, elementwise, convolution)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiles", type=int, default=500)
    parser.add_argument("--graphs", type=int, default=40)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--db", default=":memory:")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    graphs = []
    for number in range(arguments.graphs):
        family = list(FAMILIES)[number % len(FAMILIES)]
        dtype = rng.choice([tg.f32, tg.f32, tg.bf16])
        graphs.append((family, dtype, tg.graph({"y": FAMILIES[family](rng.choice([4, 16, 48]), rng.choice([32, 64, 128]), dtype)})))
    counts = {"draws": 0, "above": 0, "far above": 0, "refused": 0}
    began = time.perf_counter()
    for number in range(arguments.compiles):
        family, dtype, graph = graphs[number % len(graphs)]
        tolerance = 10 ** rng.uniform(-6.5, -1.0)
        row = {"graph": number % len(graphs), "family": family, "dtype": dtype.name, "tolerance": tolerance}
        try:
            plan = tg.compile(graph, tolerance=tolerance, database=arguments.db)
        except NoPathError as error:
            counts["refused"] += 1
            print(json.dumps({**row, "refused": str(error).partition("\n")[0]}), flush=True)
            continue
        draws = ErrorDraws(graph, drawn_weights(graph), {})
        errors = [draw["y"].max for draw in draws.of_plan(plan, range(HELD_OUT, HELD_OUT + arguments.draws))]
        counts["draws"] += len(errors)
        counts["above"] += sum(not error <= tolerance for error in errors)
        counts["far above"] += sum(not error <= 1.5 * tolerance for error in errors)
        worst = max(errors) if all(map(math.isfinite, errors)) else math.inf
        print(json.dumps({**row, "form": plan.precision.rpartition(",")[0], "worst": worst / tolerance,
                          "median": float(np.median(errors)) / tolerance}), flush=True)
        if number % 50 == 49:
            print(f"{number + 1} compiles, {time.perf_counter() - began:.0f} s: {counts}", file=sys.stderr)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
