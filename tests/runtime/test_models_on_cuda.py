"""Models of true width on a GPU beside the oracle: sentence vectors, a prompt, a training step, a recurrence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.models.bert import BertSpec, bert_graph
from tensor_graphs.models.gemma3 import Gemma3Spec, gemma3_graph
from tensor_graphs.models.rope import Rope
from tensor_graphs.runtime.compiled_graph import bind

pytestmark = pytest.mark.gpu
THERE = ("cuda", "gencuda")


def weights_of(g: Graph, scale: float) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    return {n: (draw.standard_normal([int(s) for s in p.shape]) * scale).astype(p.dtype.numpy) for n, p in g.parameters.items()}


def near(g: Graph, inputs: dict[str, np.ndarray], weights: dict[str, np.ndarray], tmp_path: Path, dims: dict[str, int],
         largest: dict[str, int]) -> None:
    """A plan for the GPU alone gives the oracle's results, twice: launched, and replayed."""
    plan = compile_graph(g, backends=THERE, database=tmp_path / "b.db", at=dims, largest=largest)
    assert {i.device for v in plan.variants for i in v.program.instructions if i.call.engine != "transfer"} == {"cuda:0"}
    made = bind(plan, weights)
    right = interpret(g, inputs, weights, dims=dims)
    for _ in range(3):
        session = made.session() if g.states else None
        found = made.run(inputs, dims={n: v for n, v in dims.items() if n not in ("n",)} if g.states else None, session=session)
        for name, wanted in right.outputs.items():
            size = float(np.sqrt(np.mean(np.square(np.asarray(wanted, np.float64))))) or 1.0
            np.testing.assert_allclose(found[name].astype(np.float64), wanted, atol=2e-3 * size, rtol=2e-3)


def test_sentence_vectors_of_a_model_as_wide_as_minilm(tmp_path: Path) -> None:
    g = bert_graph(BertSpec(vocabulary=500, hidden=384, ffn=1536, layers=6, heads=12, positions=128, token_types=2, eps=1e-12))
    draw = np.random.default_rng(1)
    inputs = {name: draw.integers(0, 2 if "type" in name else 500, [40] * node.rank).astype(node.dtype.numpy)
              for name, node in g.inputs.items()}
    near(g, inputs, weights_of(g, 0.05), tmp_path, {"n": 40}, {"n": 128})


def test_a_prompt_of_a_thousand_tokens_of_gemmas_width(tmp_path: Path) -> None:
    spec = Gemma3Spec(vocabulary=300, hidden=640, ffn=2048, heads=4, kv_heads=1, head_dim=256, layers=("sliding", "full"),
                      window=512, eps=1e-6, scale=256 ** -0.5, sliding_rope=Rope(1e4), full_rope=Rope(1e6))
    g = gemma3_graph(spec, max_positions=1100)
    ids = np.random.default_rng(2).integers(0, 300, 1024).astype(np.int32)
    near(g, {"ids": ids}, weights_of(g, 0.03), tmp_path, {"n": 1024, "m": 1, "p": 0}, {"n": 1024, "m": 1, "p": 64})


def test_a_training_step_of_an_mlp(tmp_path: Path) -> None:
    x, label = tg.input("x", (256, 784)), tg.input("label", (256, 10))
    layers = [tg.input(name, shape) for name, shape in (("a", (512, 784)), ("b", (512, 512)), ("c", (10, 512)))]
    h = x
    for w in layers[:-1]:
        h = tg.relu(tg.linear(h, w))
    loss = -(tg.log_softmax(tg.linear(h, layers[-1])) * label).sum() * (1 / 256)
    stepped = {f"new_{w.attrs['name']}": w - 0.1 * g for w, g in zip(layers, tg.grad(loss, layers), strict=True)}
    draw = np.random.default_rng(4)
    inputs = {n.attrs["name"]: (draw.standard_normal([int(s) for s in n.shape]) * 0.05).astype(np.float32) for n in (x, *layers)}
    inputs["label"] = np.eye(10, dtype=np.float32)[draw.integers(0, 10, 256)]
    near(tg.graph({"loss": loss, **stepped}), inputs, {}, tmp_path, {}, {})


def test_a_recurrence_whose_turns_are_written_out(tmp_path: Path) -> None:
    x, h, w, u = tg.input("x", (20, 8, 64)), tg.input("h", (8, 64)), tg.parameter("w", (64, 64)), tg.parameter("u", (64, 64))

    def cell(h: tg.Node, y: tg.Node) -> tuple[tg.Node, tg.Node]:
        new = tg.tanh(y + tg.linear(h, u))
        return new, new

    g = tg.graph(tg.scan(cell, h, tg.linear(x, w))[1])
    draw = np.random.default_rng(5)
    inputs = {"x": draw.standard_normal((20, 8, 64)).astype(np.float32), "h": draw.standard_normal((8, 64)).astype(np.float32)}
    near(g, inputs, weights_of(g, 0.1), tmp_path, {}, {})
