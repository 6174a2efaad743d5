"""choice/mixed_forms.py: different words at different sites where that is the fastest within an accuracy; all is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice import mixed_forms, plan_times
from tensor_graphs.choice.measured_accuracy import MeasuredAccuracy, measured_accuracy
from tensor_graphs.choice.mixed_forms import MixedForms
from tensor_graphs.choice.precision_forms import estimate
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.choice.request import Request
from tensor_graphs.measure.sensitivity import sensitivities
from tensor_graphs.records.database import Database, open_database

WIDTH = 512


def layers(dtype: tg.DType = tg.f32) -> tg.Graph:
    """One row by large weights: what a run reads is what it takes."""
    x = tg.input("x", (1, WIDTH), dtype)
    for i in range(4):
        x = x + tg.silu(tg.linear(tg.rms_norm(x), tg.parameter(f"layers.{i}.w", (WIDTH, WIDTH), dtype)))
    return tg.graph({"y": x})


def weights(graph: tg.Graph) -> dict[str, np.ndarray]:
    """Weights of which the first layer's are small, so that its rounding costs little."""
    rng = np.random.default_rng(0)
    return {n: (rng.standard_normal(p.shape) * (0.1 if n == "layers.0.w" else 1.0) / np.sqrt(WIDTH)).astype(p.dtype.numpy)
            for n, p in graph.parameters.items()}


def compiled(database: Database, tolerance: Any, graph: tg.Graph | None = None, **options: Any) -> tg.Plan:
    graph = layers() if graph is None else graph
    return tg.compile(graph, tolerance=tolerance, weights=weights(graph), database=database, **options)


def norm_of(plan: tg.Plan, graph: tg.Graph) -> float:
    """The norm error of a plan on another input than those that it was chosen by."""
    its = weights(graph)
    inputs = {"x": np.random.default_rng(9).standard_normal((1, WIDTH)).astype(np.float32)}
    exact = tg.interpret(graph, inputs, its).outputs["y"]
    return float(np.linalg.norm(tg.bind(plan, its).run(inputs)["y"] - exact) / np.linalg.norm(exact))


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """Verdicts and draws of one test serve the others, in whichever process and module they run."""
    with open_database(Path(os.environ["XDG_DATA_HOME"]) / "mixed_forms.sqlite") as one_for_all:
        yield one_for_all


@pytest.fixture(autouse=True)
def _fewer_bits_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two plans that are timed takes half the time."""
    monkeypatch.setattr(plan_times, "interleaved", lambda *_: [[1.0], [2.0]])


@pytest.fixture(scope="module")
def predictions(database: Database) -> MixedForms:
    graph = layers()
    request = Request(graph, "norm:1e-3", ("c", "gen", "numpy"), database, weights=weights(graph))
    prepared = prepare(graph, backends=request.here).graph
    return MixedForms(prepared, measured_accuracy(request), estimate(prepared, request))


def test_between_two_forms_of_one_dtype_words_are_mixed(database: Database) -> None:
    plan = compiled(database, "norm:8e-5")
    words = [site for site in plan.words if site.startswith("weight:")]
    assert 0 < len(words) < 4, plan.precision
    assert norm_of(plan, layers()) <= 8e-5 and "given weights" in plan.measured


def test_looser_tolerances_give_faster_plans(database: Database) -> None:
    plans = [compiled(database, f"norm:{limit}") for limit in (1e-6, 8e-5, 1e-3, 2e-2)]
    times = [plan.variants[0].predicted for plan in plans]
    assert times == sorted(times, reverse=True) and times[-1] < 0.7 * times[0]
    assert not plans[0].words and all(norm_of(plan, layers()) <= limit
                                      for plan, limit in zip(plans, (1e-6, 8e-5, 1e-3, 2e-2), strict=True))


def test_weights_are_stored_in_blocks_where_the_tolerance_allows_it(database: Database) -> None:
    plan = compiled(database, "norm:3e-2")
    assert {word for site, word in plan.words.items() if site.startswith("weight:")} & {"q8_0", "q6_k"}, plan.precision
    assert norm_of(plan, layers()) <= 3e-2
    whole = sum(p.type.nbytes() for p in layers().parameters.values())
    memory = plan.memory()                                          # of the packed blocks, not those that they are packed from
    assert memory.bound < whole / 3 and memory.bind_peak <= memory.bound + WIDTH * WIDTH * 34 // 32


def bound_of(plan: tg.Plan, graph: tg.Graph, database: Database) -> float:
    """The bound of a plan's norm error by which it would be allowed."""
    request = Request(graph, "norm:1", ("c", "gen", "numpy"), database, weights=weights(graph))
    return MeasuredAccuracy(request).of(plan).allowed.bound


def test_between_bf16_and_q8_0_words_are_mixed_and_beat_both(database: Database) -> None:
    graph = layers()
    its = weights(graph)
    pure = {word: tg.compile(graph, precision={"weight": word}, weights=its, database=database) for word in ("bf16", "q8_0")}
    bounds = {word: bound_of(plan, graph, database) for word, plan in pure.items()}
    limit = (bounds["bf16"] * bounds["q8_0"]) ** 0.5
    assert 1.5 * bounds["bf16"] < bounds["q8_0"]
    plan = compiled(database, f"norm:{limit}", graph)
    assert len({plan.words.get(f"weight:layers.{i}.w") for i in range(4)}) >= 2, plan.precision
    assert norm_of(plan, graph) <= limit
    assert plan.variants[0].predicted <= 0.9 * pure["bf16"].variants[0].predicted


@pytest.mark.slow
def test_at_twice_the_bound_of_each_family_it_or_a_faster_plan_is_chosen(database: Database) -> None:
    graph, times = layers(), list[float]()
    for words in ("f64", "between=f32", "weight=bf16", "weight=q8_0", "weight=q4_0"):
        pure = tg.compile(graph, precision=words, weights=weights(graph), database=database)
        limit = 2 * bound_of(pure, graph, database)
        plan = compiled(database, f"norm:{limit}", graph)
        times.append(plan.variants[0].predicted)
        assert times[-1] <= 1.01 * pure.variants[0].predicted, words
        assert norm_of(plan, graph) <= limit, words
    assert times == sorted(times, reverse=True)


def test_words_that_are_asked_for_stay(database: Database) -> None:
    plan = compiled(database, "norm:8e-5", precision={"weight:layers.3.w": "written"})
    assert plan.words["weight:layers.3.w"] == "written" and norm_of(plan, layers()) <= 8e-5


def test_predicted_errors_are_in_units_of_the_accuracy(predictions: MixedForms) -> None:
    assert predictions.error({}) == pytest.approx(0.0, abs=1e-6)
    all_in_bf16 = predictions.error({"weight": "bf16"})
    assert all_in_bf16 is not None and 1.0 < all_in_bf16 < 100.0
    measured = predictions.linear(all_in_bf16)
    assert measured is not None and 1e-3 < measured < 1e-2


def test_the_front_leads_from_the_fastest_to_the_most_accurate_form(predictions: MixedForms) -> None:
    front = predictions.front
    assert [f.seconds for f in front] == sorted(f.seconds for f in front) and len(front) > 8
    assert [f.error for f in front] == sorted((f.error for f in front), reverse=True)


def test_a_product_on_a_device_is_estimated_with_its_values_there(database: Database) -> None:
    x, w = tg.copy_to(tg.input("x", (64, 32)), "cuda:0"), tg.parameter("w", (8, 32))
    graph = tg.graph({"y": tg.copy_to(tg.linear(x, w), "cuda:0")})
    alone: list[tg.Graph] = []

    def seconds(part: tg.Graph, form: Any) -> float:
        alone.append(part)
        return 1.0

    mixed = MixedForms(graph, measured_accuracy(Request(graph, "norm:1e-3", ("numpy",), database)), seconds)
    mixed.errors = dict.fromkeys(((site.key, word) for site in mixed.places for word in ("written", "f64", "f16", "bf16")), 0.0)
    assert mixed.front
    assert [n.op.name for n in alone[0].nodes] == ["input", "copy_to", "parameter", "linear", "copy_to"]


@pytest.mark.parametrize("factor", [1e-6, 1e6], ids=["too low", "too high"])
def test_a_wrong_prediction_is_overruled_by_measurement(database: Database, monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    def wrong(*args: Any, **options: Any) -> Any:
        return {key: {of: value * factor for of, value in errors.items()}
                for key, errors in sensitivities(*args, **options).items()}

    monkeypatch.setattr(mixed_forms, "sensitivities", wrong)
    plan = compiled(database, "norm:8e-5")
    assert norm_of(plan, layers()) <= 8e-5


def test_what_a_comparison_hides_from_the_prediction_is_measured(database: Database) -> None:
    x = tg.input("x", (1, WIDTH))
    y = tg.linear(x, tg.parameter("layers.0.w", (WIDTH, WIDTH)))
    graph = tg.graph({"y": tg.floor(y * 3000.0) * (1 / 3000)})      # whose gradient is zero
    plan = compiled(database, "norm:1e-4", graph)
    assert norm_of(plan, graph) <= 1e-4
    assert not {"bf16", "f16"} & set(plan.words.values())


def test_an_outlier_channel_is_seen_by_the_prediction_or_by_the_measurement(database: Database) -> None:
    graph = layers()
    its = weights(graph)
    its["layers.2.w"][7] *= 1e3
    plan = tg.compile(graph, tolerance="norm:1e-4", weights=its, database=database)
    inputs = {"x": np.random.default_rng(9).standard_normal((1, WIDTH)).astype(np.float32)}
    exact = tg.interpret(graph, inputs, its).outputs["y"]
    assert np.linalg.norm(tg.bind(plan, its).run(inputs)["y"] - exact) / np.linalg.norm(exact) <= 1e-4
