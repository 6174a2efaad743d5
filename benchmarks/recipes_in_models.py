"""Do recipes pay? A model as it is compiled with recipes to choose from and without, step by step in turns.

    python benchmarks/recipes_in_models.py [--models gemma-f32 gemma-bf16 minilm] [--budget 120] [--pairs 200]

Both graphs are profiled into one database first, so that each plan rests on rows. Printed: the recipes that were chosen, kernel
calls and memory made of parameters of both plans, the median of with ÷ without over pairs of runs in turns (whoever goes first
goes second in the next pair) with its quartiles, and the largest difference of their outputs. Ends with 1 where the outputs differ
by more than the tolerance, no recipe was chosen, or the median is above 1.00.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tensor_graphs as tg
from benchmarks.arguments import at_least
from benchmarks.twin_plans import minilm
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.language.anonymous_composite import RECIPE
from tensor_graphs.paths.plan import Plan

STEP, TOKENS = {"n": 1, "m": 1, "p": 64}, 32
Run = Callable[[], np.ndarray]


def gemma(dtype: str) -> tuple[tg.Graph, dict[str, int], Callable[[Plan], Run]]:
    """One decode step behind 64 tokens."""
    model = load_model("gemma-3-270m", dtype=dtype, random_seed=0, max_positions=1024)

    def ready(plan: Plan) -> Run:
        bound = tg.bind(plan, model.weights)
        session = bound.session()
        ids = np.random.default_rng(1).integers(5, 262000, 64).astype(np.int32)
        bound.run({"ids": ids}, dims={"p": 0, "m": 1}, session=session)
        return lambda: next(iter(bound.run({"ids": ids[:1]}, dims={"p": 64, "m": 1}, session=session).values()))

    return model.graph, STEP, ready


def encoder() -> tuple[tg.Graph, dict[str, int], Callable[[Plan], Run]]:
    """One sentence of 32 tokens."""
    graph = minilm()

    def ready(plan: Plan) -> Run:
        rng = np.random.default_rng(0)
        weights = {name: 0.05 * rng.standard_normal([int(s) for s in p.shape], np.float32) for name, p in graph.parameters.items()}
        bound, ids = tg.bind(plan, weights), rng.integers(5, 30000, TOKENS).astype(np.int32)
        return lambda: next(iter(bound.run({"ids": ids}).values()))

    return graph, {"n": TOKENS}, ready


MODELS: dict[str, Callable[[], tuple[tg.Graph, dict[str, int], Callable[[Plan], Run]]]] = {
    "gemma-f32": lambda: gemma("float32"), "gemma-bf16": lambda: gemma("bfloat16"), "minilm": encoder}


def in_turns(runs: dict[str, Run], pairs: int) -> list[float]:
    ratios = []
    for pair in range(pairs):
        seconds = {}
        for name in reversed(runs) if pair % 2 else runs:
            start = time.perf_counter()
            runs[name]()
            seconds[name] = time.perf_counter() - start
        ratios.append(seconds["with"] / seconds["without"])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of measuring for each graph, at most")
    parser.add_argument("--pairs", type=at_least(2), default=200)
    args = parser.parse_args()
    wrong = False
    sizes: dict[str, Any]
    for name in args.models:
        graph, at, ready = MODELS[name]()
        with tempfile.TemporaryDirectory() as folder:
            database = str(Path(folder) / "bench.db")
            plain = prepare(graph, recipes=False).graph
            report = tg.profile(graph, budget=args.budget, database=database, at=at)
            largest = {n: size if n == "m" else max(size, 128) for n, size in at.items()}
            sizes = {"at": at, "reuse_outputs": True, "largest": largest}
            plans = {"with": tg.compile(graph, database=database, **sizes),
                     "without": tg.compile(plain, database=database, simplify=False, **sizes)}
            runs = {which: ready(plan) for which, plan in plans.items()}
            outs = {which: np.array(run()) for which, run in runs.items()}
            ratios = in_turns(runs, args.pairs)
        low, middle, high = np.quantile(ratios[len(ratios) // 10:], [0.25, 0.5, 0.75])
        off = float(np.abs(outs["with"] - outs["without"]).max() / np.abs(outs["without"]).max())
        variant = {which: plan.variant({n: at[n] for n in at}) for which, plan in plans.items()}
        chosen = sorted({c for c in variant["with"].path.choices.values() if c.startswith(RECIPE)})
        print(f"{name}: with ÷ without {middle:.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs); outputs differ by {off:.1e}; "
              f"profiled in {report.seconds:.0f} s, {report.left} left\n  chosen: {', '.join(chosen) or 'none'}")
        for which, v in variant.items():
            print(f"  {which}: {len(v.program.instructions)} calls, {v.path.seconds * 1e3:.2f} ms predicted, "
                  f"{v.measured_share:.0%} measured, {plans[which].memory(**at).bound / 1e6:.0f} MB made of parameters", flush=True)
        wrong |= not chosen or middle > 1.0 or off > plans["with"].tolerance
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
