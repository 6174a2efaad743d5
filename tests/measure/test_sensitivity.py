"""measure/sensitivity.py: what backward passes predict of the errors of words is what evaluating the graph in these words shows."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.composites.blocks import FORMATS, dequantized
from tensor_graphs.language.composites.quantise import quantized
from tensor_graphs.language.composites.rounded import LEVELS
from tensor_graphs.meaning.precision import BLOCKS
from tensor_graphs.measure.error_draws import ErrorDraws, drawn_weights
from tensor_graphs.measure.sensitivity import Metric, Sensitivities, column_squares, sensitivities, words_of
from tensor_graphs.models.gemma3 import gemma3_graph
from tensor_graphs.rewrites.passes.apply_precision import apply_form, resolved, sites
from tests.models.test_gemma3 import VARIANTS

N = tg.dim("n", 1, 32)


def layers(dtype: tg.DType = tg.f32) -> tg.Graph:
    x = tg.input("x", (N, 32), dtype)
    for i in range(3):
        x = x + tg.silu(tg.linear(tg.rms_norm(x), tg.parameter(f"layers.{i}.w", (32, 32), dtype)))
    return tg.graph({"y": tg.linear(x, tg.parameter("head", (40, 32), dtype)).cast(tg.f32)})


def decoder() -> tg.Graph:
    return gemma3_graph(next(iter(VARIANTS.values())), max_positions=64)


OF_32 = [word for word, name in BLOCKS.items() if FORMATS[name].values == 32]
"""Words of formats of blocks of 32."""


class Case:
    """A graph with weights and one run, the predicted errors of its words, and the measured error of a form."""

    def __init__(self, graph: tg.Graph, output: str, metric: Metric = "norm") -> None:
        self.graph, self.output, self.metric = graph, output, metric
        self.draws = ErrorDraws(graph, drawn_weights(graph), {name: 16 if name != "p" else 0 for name in graph.dims})
        inputs, sizes = self.draws.runs(77)[0]
        self.predicted: Sensitivities = sensitivities(graph, self.draws.weights, inputs, sizes, [(output, metric)])

    def ratio(self, form: dict[str, str]) -> float:
        """Return predicted ÷ measured error of a form."""
        words = resolved(form, self.graph)
        predicted = sum(self.predicted.get((key, word), self.predicted[key, "written"])[self.output, self.metric]
                        for key, word in words.items())
        draw = self.draws.of_graph(apply_form(self.graph, form).graph, [0], first_run=True)[0][self.output]
        return {"norm": predicted ** 0.5 / draw.norm, "kl": predicted / max(draw.kl, 1e-300),
                "cosine": predicted / max(1.0 - draw.cosine, 1e-300)}[self.metric]


@pytest.mark.parametrize("dtype, scale, metric", [(tg.f64, 1e300, "norm"), (tg.f32, 1e-44, "cosine"), (tg.bf16, 1e37, "kl")])
def test_values_that_overflow_have_no_finite_error_and_leak_no_warning(dtype: tg.DType, scale: float, metric: Metric) -> None:
    x = tg.input("x", (4, 64), dtype)
    graph = tg.graph({"y": tg.linear(1.0 / tg.linear(x, tg.parameter("w", (64, 64), dtype)), tg.parameter("v", (64, 64), dtype))})
    numbers = np.random.default_rng(0).standard_normal((4, 64))
    with np.errstate(over="ignore"):
        inputs = {"x": (numbers * scale).astype(dtype.numpy)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = sensitivities(graph, drawn_weights(graph), inputs, {}, [("y", metric)])
    assert not any(math.isnan(error) for of_word in words.values() for error in of_word.values())


@pytest.fixture(scope="module")
def of_decoder() -> Case:
    return Case(decoder(), "logits")


def test_each_word_of_each_site_alone_is_predicted(of_decoder: Case) -> None:
    alone = [{site.key: word} for site in sites(of_decoder.graph) for word in words_of(site)
             if word in ("bf16", "f16") and site.kind != "between"]
    ratios = [of_decoder.ratio(form) for form in alone[::4]]
    assert len(ratios) > 25 and np.percentile(ratios, [2, 98]).tolist() == pytest.approx([1.0, 1.0], abs=0.6), np.sort(ratios)


@pytest.mark.parametrize("form", [{"weight": "bf16"}, {"product": "bf16"}, {"between": "bf16"}, {"state": "f16"},
                                  {"weight": "f16", "product": "f16", "between:model.layers.1": "bf16"}], ids=str)
def test_errors_of_several_words_add_up(of_decoder: Case, form: dict[str, str]) -> None:
    assert 0.6 <= of_decoder.ratio(form) <= 1.6


@pytest.mark.parametrize("form", [{}, {"between:layers.1": "f32"}], ids=str)
def test_what_is_written_in_few_bits_counts_as_an_error_too(form: dict[str, str]) -> None:
    assert 0.6 <= Case(layers(tg.bf16), "y").ratio(form) <= 1.6


def test_a_product_of_narrow_operands_counts_where_the_values_between_are_wide() -> None:
    assert 0.6 <= Case(layers(tg.bf16), "y").ratio({"between": "f32", "product": "bf16"}) <= 1.6


@pytest.mark.parametrize("word", ["q8_0", "q5_1", "q4_0", "mxfp4"])
def test_errors_of_blocks_are_predicted_from_a_few_rows(word: str) -> None:
    assert 0.6 <= Case(layers(), "y").ratio({"weight": word}) <= 1.6


def test_columns_count_as_what_they_are_multiplied_by_is_large_and_errors_with_them_are_predicted() -> None:
    x = tg.input("x", (N, 64), tg.f32)
    graph = tg.graph({"y": tg.linear(tg.rms_norm(x) * tg.parameter("scale", (64,), tg.f32), tg.parameter("w", (48, 64), tg.f32))})
    rng = np.random.default_rng(2)
    weights = {"scale": np.exp(rng.standard_normal(64)).astype(np.float32), "w": rng.standard_normal((48, 64)).astype(np.float32)}
    values = rng.standard_normal((20, 64)).astype(np.float32)
    importance = column_squares(graph, weights, [({"x": values}, {"n": 20})])
    inner = values / np.sqrt(np.mean(values ** 2, -1, keepdims=True)) * weights["scale"]
    assert importance.keys() == {"w"} and np.allclose(importance["w"], np.mean(inner ** 2, 0), rtol=1e-3)
    of_words = sensitivities(graph, weights, {"x": values}, {"n": 20}, [("y", "norm")], 0, ("weight",), importance)
    assert {site for site, _ in of_words} == {"weight:w"}
    exact = inner @ weights["w"].T
    y = inner @ dequantized(quantized(weights["w"], "Q4_1", importance["w"]), "Q4_1").T
    measured = np.mean(np.sum((y - exact) ** 2, -1) / np.sum(exact ** 2, -1))
    assert 0.5 < of_words["weight:w", "q4_1"]["y", "norm"] / measured < 2


def test_a_divergence_is_predicted() -> None:
    assert 0.4 <= Case(layers(), "y", "kl").ratio({"weight": "bf16"}) <= 2.5


def test_a_cosine_is_predicted_as_its_mean() -> None:
    assert 0.1 <= Case(layers(), "y", "cosine").ratio({"weight": "bf16"}) <= 1.5    # the measured one is the worst row's


def test_words_of_a_site_are_those_that_change_something() -> None:
    words = {site.key: words_of(site) for site in sites(layers(tg.bf16))}
    assert words["weight:layers.1.w"] == ["written", *OF_32]
    assert words["product:layers.1.w"] == ["written", "f16", "bf16", "f8e4m3", *LEVELS]
    assert words["between:layers.1"] == ["written", "f64", "f32", "f16"]
    assert "q4_k" not in OF_32                                      # rows of less than 256
    of_floats = {site.key: words_of(site) for site in sites(layers(tg.f32))}
    assert of_floats["product:layers.1.w"] == ["written", "f16", "bf16", "f8e4m3", "tf32", "bf16x2", "int8", "int8x2"]


def test_behind_an_op_without_a_gradient_nothing_is_predicted() -> None:
    @tg.composite(opaque=True, direct=lambda roles, attrs, types: roles["x"])
    def anything(x: tg.Node) -> tg.Node:
        return x

    graph = tg.graph({"y": anything(tg.linear(tg.input("x", (4, 8)), tg.parameter("w", (8, 8))))})
    with pytest.raises(TensorGraphsError):
        sensitivities(graph, drawn_weights(graph), {"x": np.ones((4, 8), np.float32)}, {}, [("y", "norm")])
