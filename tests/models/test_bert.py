"""models/bert.py against transformers' own BERT: small models with drawn weights, and the real MiniLM."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.bert import BertSpec, bert_graph

SMALL = BertSpec(vocabulary=53, hidden=24, ffn=40, layers=2, heads=3, positions=16, token_types=2, eps=1e-3)


def relative_error(out: np.ndarray, expected: np.ndarray) -> float:
    return measure(out, expected, f32).max_relative_error


def small_model(spec: BertSpec) -> BertModel:
    """transformers' model with weights that leave no norm at 1 and no bias at 0."""
    config = BertConfig(
        vocab_size=spec.vocabulary, hidden_size=spec.hidden, intermediate_size=spec.ffn, num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads, max_position_embeddings=spec.positions, type_vocab_size=spec.token_types,
        layer_norm_eps=spec.eps, hidden_act={"gelu_tanh": "gelu_new"}.get(spec.activation, spec.activation))
    model = BertModel(config, add_pooling_layer=False).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * (0.3 if weight.ndim == 2 else 0.5))
    return model


def run(g: Graph, model: BertModel, ids: np.ndarray) -> dict[str, np.ndarray]:
    weights = {k: v.numpy() for k, v in model.state_dict().items() if k in g.parameters}
    return interpret(g, {"ids": ids.astype(np.int32)}, weights, {}, {"n": len(ids)}).outputs


def transformers_hidden(model: BertModel, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0].numpy())


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
@pytest.mark.parametrize("n", [1, 9, 16])
def test_the_hidden_vectors_are_those_of_transformers(activation: str, n: int) -> None:
    spec = dataclasses.replace(SMALL, activation=activation)  # type: ignore[arg-type]
    model, ids = small_model(spec), np.random.default_rng(n).integers(0, 53, n)
    assert relative_error(run(bert_graph(spec), model, ids)["hidden"], transformers_hidden(model, ids)) <= 1e-5


@pytest.mark.parametrize("change", [{"eps": 1e-2}, {"heads": 2}, {"heads": 4}, {"activation": "gelu_tanh"}])
def test_the_comparison_refuses_another_model(change: dict[str, object]) -> None:
    model, ids = small_model(SMALL), np.arange(9)
    wrong = bert_graph(dataclasses.replace(SMALL, **change))  # type: ignore[arg-type]
    assert not relative_error(run(wrong, model, ids)["hidden"], transformers_hidden(model, ids)) <= 1e-4


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_embedding_is_the_pooled_hidden(pooling: str, normalise: bool) -> None:
    spec = dataclasses.replace(SMALL, pooling=pooling, normalise=normalise)  # type: ignore[arg-type]
    out = run(bert_graph(spec), small_model(SMALL), np.arange(7))
    expected = {"mean": out["hidden"].mean(0), "cls": out["hidden"][0], "max": out["hidden"].max(0)}[pooling]
    if normalise:
        expected = expected / np.linalg.norm(expected)
    assert np.allclose(out["embedding"], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("limit", [0, 17])
def test_more_positions_than_the_model_has_are_refused(limit: int) -> None:
    with pytest.raises(AttributeValueError, match=f"max_positions is {limit}"):
        bert_graph(SMALL, max_positions=limit)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(AttributeValueError, match="hidden 24 is not a multiple of 5 heads"):
        dataclasses.replace(SMALL, heads=5)
