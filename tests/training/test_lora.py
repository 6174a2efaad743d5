"""training/lora.py and text.py: adapters begin without effect, are all that is trained, and can be merged into the weights."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
from tensor_graphs.training.lora import lora
from tensor_graphs.training.step import step_graphs
from tensor_graphs.training.text import next_token
from tests.cli.command import TINY

IDS = np.array([2, 9, 10, 11, 9, 10, 11, 9], np.int32)
INPUTS = {"ids": IDS[:-1], "target": IDS[1:]}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("lora") / "gemma"
    write_gemma3_folder(folder, TINY, seed=0)
    return tg.load_model(str(folder), max_positions=8)


def test_the_loss_of_a_row_is_that_of_the_decoders_logits(loaded: object) -> None:
    graph = next_token(loaded.graph)  # type: ignore[attr-defined]
    weights = {name: loaded.weights[name] for name in graph.parameters}  # type: ignore[attr-defined]
    assert not graph.states and set(graph.inputs) == {"ids", "target"}
    logits = tg.interpret(loaded.graph, {"ids": IDS[:-1]}, weights, {}, {"p": 0, "m": 7}).outputs["logits"]  # type: ignore[attr-defined]
    shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -shares[np.arange(7), IDS[1:]].mean()
    np.testing.assert_allclose(tg.interpret(graph, INPUTS, weights).outputs["loss"], expected, rtol=1e-6)


def test_adapters_begin_without_effect_and_are_all_that_is_trained(loaded: object) -> None:
    graph = next_token(loaded.graph)  # type: ignore[attr-defined]
    weights = {name: loaded.weights[name] for name in graph.parameters}  # type: ignore[attr-defined]
    adapted = lora(graph, "*.[qv]_proj.weight", rank=3, scale=1.5)
    assert sorted({name.split(".")[4] for name in adapted.adapters}) == ["q_proj", "v_proj"] and len(adapted.adapters) == 8
    both = {**weights, **adapted.adapters}
    before = tg.interpret(graph, INPUTS, weights).outputs["loss"]
    np.testing.assert_allclose(tg.interpret(adapted.graph, INPUTS, both).outputs["loss"], before, rtol=1e-12)

    graphs = step_graphs(adapted.graph, {"*.lora_?": tg.optim.SGD(0.5), "*": None})
    assert set(graphs.trained) == set(adapted.adapters)
    states = {name: adapted.adapters.get(name, np.zeros((), np.int32)) for name in graphs.update.states}
    for _ in range(3):
        result = tg.interpret(graphs.update, INPUTS, weights, states)
        states = result.updates
    after = tg.interpret(adapted.graph, INPUTS, {**weights, **states}).outputs["loss"]
    assert after < before - 1e-4
    merged = adapted.merged({**weights, **{name: array.astype(np.float32) for name, array in states.items() if name in both}})
    assert set(merged) == set(weights)
    np.testing.assert_allclose(tg.interpret(graph, INPUTS, merged).outputs["loss"], after, rtol=1e-5)


def test_a_pattern_that_fits_no_layer_is_refused() -> None:
    layer = tg.graph(tg.linear(tg.input("x", (2, 3)), tg.parameter("w", (4, 3))))
    with pytest.raises(tg.TensorGraphsError, match=r"no linear layer has a weight like 'v'\n  fix: a pattern for w"):
        lora(layer, "v")
    with pytest.raises(tg.TensorGraphsError, match="rank is 0"):
        lora(layer, rank=0)
