"""precision_prediction: predicted ÷ measured errors of random forms of models, on text, before and after calibration.

    python benchmarks/precision_prediction.py FOLDER [FOLDER ...] --text FILE [--forms 200] [--rows 32] [--smoke]

--forms are shared by the models. Errors of words are predicted by backward passes on one piece of the text
(measure/sensitivity.py). Each form has random words at random sites; its outputs, by numpy's kernels, are compared with the
float64 oracle on another piece: norm and KL of a decoder's logits, norm and cosine of an encoder's embedding. Calibration
(choice/error_calibration.py) uses the forms before each one, of the same model. --smoke: 8 forms, 8 rows.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.choice.error_calibration import calibrated
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


def ratios_of(folder: Path, text: str, forms: int, rows: int, seed: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each statistic (predicted ÷ measured, the same after calibration) of random forms of a model; print each."""
    model = load_model(folder, dtype="float32", max_positions=512)
    weights: dict[str, Any] = {name: np.asarray(model.weights[name]) for name in model.graph.parameters}
    output = "embedding" if model.encoder else "logits"
    metrics: list[Any] = [(output, name) for name in (("norm", "cosine") if model.encoder else ("norm", "kl"))]
    assert model.tokenizer is not None
    ids = np.asarray(model.tokenizer.encode(text, special_tokens=False), np.int32)
    sizes = {name: {"p": 0}.get(name, rows) for name in model.graph.dims}
    pieces = [{"ids": ids[i * rows:(i + 1) * rows]} for i in range(2)]
    began = time.perf_counter()
    predicted = sensitivities(model.graph, weights, pieces[0], sizes, metrics)
    print(f"{folder.name}: predicted in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    exact = interpret(model.graph, pieces[1], weights, dims=sizes).outputs[output]
    places, rng = sites(model.graph), random.Random(seed)
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for _, name in metrics}
    number = 0
    while number < forms:
        form = random_form(places, rng)
        if not form:
            continue
        plan = plain_plan(apply_form(model.graph, form).graph)
        assert plan is not None
        compiled = bind(plan, weights)
        value = compiled.run(pieces[1], dims=sizes, session=compiled.session())[output]
        measured = statistics(value, exact, model.graph.outputs[output].dtype)
        for _, name in metrics:
            error = sum(predicted[site.key, form.get(site.key, WRITTEN)][output, name] for site in places)
            error = error ** 0.5 if name == "norm" else error
            real = 1.0 - measured.cosine if name == "cosine" else getattr(measured, name)
            factor = calibrated(name, [-math.log(ratio) for ratio, _ in ratios[name]])
            ratios[name].append((error / real, factor * error / real))
            row = {"model": folder.name, "form": number, "sites": len(form), "statistic": name, "predicted": error,
                   "calibrated": factor * error, "measured": real}
            print(json.dumps(row), flush=True)
        number += 1
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--forms", type=int, default=200)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    forms, rows = (8, 8) if arguments.smoke else (arguments.forms, arguments.rows)
    text, every = arguments.text.read_text(), dict[str, list[tuple[float, float]]]()
    for folder in arguments.folders:
        ratios = ratios_of(folder, text, forms // len(arguments.folders), rows, arguments.seed)
        every |= {f"{folder.name} {name}": values for name, values in ratios.items()}
    pooled = [values for of in every.values() for values in of]
    for name, pairs in {**every, "all": pooled}.items():
        for which, values in zip(("predicted", "calibrated"), zip(*pairs, strict=True), strict=True):
            low, middle, high = np.percentile(values, [2.5, 50, 97.5])
            inside = np.mean([0.4 <= value <= 2.5 for value in values])
            print(f"{name}: {which} ÷ measured of {len(values)} forms: {low:.2f} (2.5 %) {middle:.2f} {high:.2f} (97.5 %), "
                  f"{inside:.0%} within 0.4 to 2.5")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
