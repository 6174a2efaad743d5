"""precision_prediction: predicted ÷ measured errors of random forms of a model, on text.

    python benchmarks/precision_prediction.py FOLDER --text FILE [--forms 60] [--rows 32] [--statistics norm,kl]

Errors of words are predicted by backward passes on one piece of the text (measure/sensitivity.py). Each form has random words at
random sites; its outputs, by numpy's kernels, are compared with the float64 oracle on another piece.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.meaning.draw_statistics import statistics
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.precision import KINDS, WRITTEN
from tensor_graphs.measure.points.single_op_plans import plain_plan
from tensor_graphs.measure.sensitivity import sensitivities, words_of
from tensor_graphs.rewrites.passes.apply_precision import PrecisionSite, apply_form, sites
from tensor_graphs.runtime.compiled_graph import bind


def random_form(places: tuple[PrecisionSite, ...], rng: random.Random) -> dict[str, str]:
    """Return narrow words at sites of some kinds, each with its own probability from a few sites to all of them."""
    shares = {kind: rng.choice([0.0, 10 ** rng.uniform(-1.5, 0.0)]) for kind in KINDS}
    form = {}
    for site in places:
        narrow = [word for word in words_of(site) if word in ("bf16", "f16")]
        if narrow and rng.random() < shares[site.kind]:
            form[site.key] = rng.choice(narrow)
    return form


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--forms", type=int, default=60)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--statistics", default="norm,kl")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    model = load_model(arguments.folder, dtype="float32", max_positions=512)
    weights: dict[str, Any] = {name: np.asarray(model.weights[name]) for name in model.graph.parameters}
    (output,) = model.graph.outputs
    metrics: list[Any] = [(output, name) for name in arguments.statistics.split(",")]
    ids = np.asarray(model.tokenizer.encode(arguments.text.read_text()), np.int32)
    sizes = {name: {"p": 0}.get(name, arguments.rows) for name in model.graph.dims}
    pieces = [{"ids": ids[i * arguments.rows:(i + 1) * arguments.rows]} for i in range(2)]
    began = time.perf_counter()
    predicted = sensitivities(model.graph, weights, pieces[0], sizes, metrics)
    print(f"predicted in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    exact = interpret(model.graph, pieces[1], weights, dims=sizes).outputs[output]
    places, rng = sites(model.graph), random.Random(arguments.seed)
    ratios: dict[str, list[float]] = {name: [] for _, name in metrics}
    for number in range(arguments.forms):
        form = random_form(places, rng)
        if not form:
            continue
        plan = plain_plan(apply_form(model.graph, form).graph)
        assert plan is not None
        compiled = bind(plan, weights)
        logits = compiled.run(pieces[1], dims={"p": 0, "m": arguments.rows}, session=compiled.session())[output]
        measured = statistics(logits, exact, model.graph.outputs[output].dtype)
        for _, name in metrics:
            error = sum(predicted[site.key, form.get(site.key, WRITTEN)][output, name] for site in places)
            error, real = (error ** 0.5 if name == "norm" else error), getattr(measured, name)
            ratios[name].append(error / real)
            row = {"form": number, "sites": len(form), "statistic": name, "predicted": error, "measured": real}
            print(json.dumps(row), flush=True)
    for name, values in ratios.items():
        low, middle, high = np.percentile(values, [2.5, 50, 97.5])
        print(f"{name}: predicted ÷ measured of {len(values)} forms: {low:.2f} (2.5 %) {middle:.2f} {high:.2f} (97.5 %)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
