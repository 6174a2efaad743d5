"""training/trainer.py and step.py: a compiled step follows torch, and goes on from a checkpoint bit by bit or refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.language.node import is_step
from tensor_graphs.training.step import COUNT, SEED, step_graphs

SHAPES = {"w1": (16, 8), "b1": (16,), "w2": (4, 16), "b2": (4,)}
NUMPY = {"backends": ("numpy",)}


def network(rate: float = 0.0, dtype: Any = tg.f32, rows: Any = 12) -> tg.Graph:
    """A classifier of two layers, with dropout between them."""
    x, y = tg.input("x", (rows, 8), dtype), tg.input("y", (rows,), tg.i32)
    w1, b1, w2, b2 = (tg.parameter(name, shape, dtype) for name, shape in SHAPES.items())
    hidden = tg.relu(tg.linear(x, w1) + b1)
    logits = tg.linear(tg.dropout(hidden, rate, site=1) if rate else hidden, w2) + b2
    return tg.graph({"loss": tg.losses.cross_entropy(logits.cast(tg.f32), y), "logits": logits})


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}


def batch(seed: int, rows: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 8)).astype(np.float32), "y": rng.integers(0, 4, rows).astype(np.int32)}


def schedule() -> Any:
    return tg.optim.Adam(rate=tg.optim.warmup(tg.optim.cosine(0.05, 20), 3))


def states(trainer: tg.Trainer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainer.session.snapshot().items()}


@pytest.mark.parametrize("batches", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_bit_by_bit(batches: int, tmp_path: Path) -> None:
    """Dropout, the schedule, the moments and a gradient that is half gathered go on where they were."""
    first = tg.Trainer(network(0.3), schedule(), weights(), batches=batches, seed=7, **NUMPY)
    losses = [float(first.step(batch(i))["loss"]) for i in range(9)]
    again = tg.Trainer(network(0.3), schedule(), weights(), batches=batches, seed=7, **NUMPY)
    for i in range(5):
        again.step(batch(i))
    again.save(tmp_path / "a.safetensors")
    resumed = tg.Trainer(network(0.3), schedule(), weights(1), batches=batches, seed=8, **NUMPY)
    resumed.load(tmp_path / "a.safetensors")
    assert [float(resumed.step(batch(i))["loss"]) for i in range(5, 9)] == losses[5:]
    assert states(resumed) == states(first) and resumed.seen == 9 and resumed.steps == 9 // batches
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_damaged_checkpoint_is_one_error_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    trainer = tg.Trainer(network(), tg.optim.Adam(), weights(), **NUMPY)
    trainer.step(batch(0))
    trainer.save(file)
    whole, before = file.read_bytes(), states(trainer)
    changed = bytearray(whole)
    changed[-9] ^= 1
    for damaged, error in ((whole[:-20], "truncated"), (bytes(changed), "its bytes are not those that were written"),
                           (b"", "truncated"), (b"nonsense" * 9, "truncated or not a safetensors file")):
        file.write_bytes(damaged)
        with pytest.raises(tg.TensorGraphsError, match=error):
            trainer.load(file)
    with pytest.raises(tg.TensorGraphsError, match="cannot read|there is no"):
        trainer.load(tmp_path / "none.safetensors")
    file.write_bytes(whole)
    with pytest.raises(tg.TensorGraphsError, match=r"of another graph or optimiser: optim\.mean\.b1"):
        tg.Trainer(network(), tg.optim.SGD(), weights(), **NUMPY).load(file)
    assert states(trainer) == before
    trainer.load(file)


def test_two_batches_for_each_step_are_one_batch_of_both() -> None:
    both = {name: np.concatenate([batch(0)[name], batch(1)[name]]) for name in ("x", "y")}
    one = tg.Trainer(network(rows=24), tg.optim.AdamW(0.01), weights(), clip_norm=0.5, **NUMPY)
    two = tg.Trainer(network(), tg.optim.AdamW(0.01), weights(), clip_norm=0.5, batches=2, **NUMPY)
    for _ in range(3):
        one.step(both)
        two.step(batch(0))
        assert two.steps < one.steps
        two.step(batch(1))
        for name, value in one.weights.items():
            np.testing.assert_allclose(two.weights[name], value, rtol=0, atol=1e-6)


def test_a_frozen_parameter_stays_and_an_evaluator_reads_those_of_now() -> None:
    trainer = tg.Trainer(network(), {"*1": None, "*": tg.optim.SGD(0.1)}, weights(), **NUMPY)
    assert set(trainer.session.types) == {"w2", "b2", COUNT}
    model = trainer.evaluator(tg.graph({"logits": network().outputs["logits"]}))
    before = trainer.step(batch(0))["logits"]
    after = model.run({"x": batch(0)["x"]}, session=trainer.session)["logits"]
    np.testing.assert_array_equal(after, trainer.step(batch(0))["logits"])
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(trainer.weights["w1"], weights()["w1"])


def test_a_narrow_parameter_has_a_master_of_f32() -> None:
    """Steps far below half a unit of bf16 add up."""
    narrow = {name: array.astype(ml_dtypes.bfloat16) for name, array in weights().items()}
    inputs = {"x": batch(0)["x"].astype(ml_dtypes.bfloat16), "y": batch(0)["y"]}
    trainer = tg.Trainer(network(dtype=tg.bf16), tg.optim.Adam(1e-5), narrow, **NUMPY)
    for _ in range(400):
        trainer.step(inputs)
    assert trainer.session["w1"].dtype == np.float32 and trainer.weights["w1"].dtype == ml_dtypes.bfloat16
    moved = np.abs(trainer.session["w1"] - narrow["w1"].astype(np.float32))
    assert 1e-3 < moved.max() < 8e-3 and not np.array_equal(trainer.weights["w1"], narrow["w1"])


def test_products_of_bf16_update_states_of_f32(tmp_path: Path) -> None:
    """Loss curves are near each other, all products are of bf16, the optimiser is as written, and a run goes on bit by bit."""
    step = step_graphs(network(), schedule(), precision="bf16").update
    products = [node for node in step.nodes if node.op.facts.product]
    assert len(products) == 5 and {t.dtype for node in products for t in (node, *node.inputs)} == {tg.bf16}
    assert all(node.dtype in (tg.f32, tg.i32) for node in step.states.values())
    moments = [node for name, node in step.updates.items() if str(name).startswith("optim.")]
    assert len(moments) == 8 and {node.dtype for node in moments} == {tg.f32}

    exact, narrow, resumed = (tg.Trainer(network(), schedule(), weights(), precision=p, **NUMPY) for p in (None, "bf16", "bf16"))
    losses = []
    for i in range(20):
        losses.append([float(t.step(batch(i % 3))["loss"]) for t in (exact, narrow)])
        if i == 9:
            narrow.save(tmp_path / "a.safetensors")
            resumed.load(tmp_path / "a.safetensors")
        elif i > 9:
            resumed.step(batch(i % 3))
    ours, bf16 = np.array(losses).T
    assert 1e-5 < np.abs(ours - bf16).max() < 0.05 and bf16[-1] < bf16[0] / 1.5
    assert states(resumed) == states(narrow)


@pytest.mark.parametrize(("precision", "error"), [
    ("f16", "f16 in a training step: gradients below 6e-8 become 0\n  fix: bf16"),
    ("product=f16", "precision of product is f16"),
    ({"state": "bf16"}, "states of a training step are master copies"),
    ("product:none=bf16", "the graph has no such site"),
])
def test_a_precision_that_training_cannot_have_is_refused(precision: Any, error: str) -> None:
    with pytest.raises(tg.TensorGraphsError, match=error):
        tg.Trainer(network(), schedule(), weights(), precision=precision, **NUMPY)


def test_moments_start_where_the_optimiser_says() -> None:
    trainer = tg.Trainer(network(), tg.optim.Adagrad(initial=0.25), weights(), **NUMPY)
    assert np.array_equal(trainer.session["optim.sum.b2"], np.full(4, 0.25, np.float32))


def test_dropout_drops_its_share_by_seed_batch_site_and_element() -> None:
    x = tg.input("x", (200, 50))
    graph = tg.graph({"a": tg.dropout(x, 0.3, site=1), "b": tg.dropout(x, 0.3, site=2)})
    ones = np.ones((200, 50), np.float32)

    def drawn(seed: int, count: int) -> dict[str, np.ndarray]:
        return tg.interpret(graph, {"x": ones}, {}, {SEED: np.array([seed, 0], np.uint32), COUNT: np.int32(count)}).outputs

    first = drawn(1, 0)
    assert abs((first["a"] == 0).mean() - 0.3) < 0.02
    np.testing.assert_allclose(first["a"][first["a"] != 0], 1 / 0.7, rtol=1e-6)
    np.testing.assert_array_equal(first["a"], drawn(1, 0)["a"])
    for other in (first["b"], drawn(1, 1)["a"], drawn(2, 0)["a"]):
        assert abs(((first["a"] == 0) & (other == 0)).mean() - 0.09) < 0.02


@pytest.mark.parametrize("mask_rank", [0, 2, 3])
def test_a_step_of_attention_has_as_many_nodes_for_any_batch(mask_rank: int) -> None:
    def nodes(batch: int) -> int:
        masks = [tg.input("seen", (batch, 6, 6)[3 - mask_rank:], tg.bool_)] if mask_rank else []
        q, k, v = (tg.linear(tg.input("x", (batch, 6, 8)), tg.parameter(name, (8, 8))).reshape(batch, 6, 2, 4) for name in "qkv")
        program = tg.graph({"loss": tg.mean(tg.attention(q, k, v, *masks, scale=0.5, causal=True))})
        return len(step_graphs(program, tg.optim.Adam()).update.nodes)

    assert nodes(2) == nodes(7)


def test_a_step_of_adam_on_two_layers_is_eleven_parts() -> None:
    x, y = tg.input("x", (tg.dim("n", 1, 256), 64)), tg.input("y", (tg.dim("n", 1, 256),), tg.i32)
    shapes = {"w1": (128, 64), "b1": (128,), "w2": (10, 128), "b2": (10,)}
    w1, b1, w2, b2 = (tg.parameter(name, shape) for name, shape in shapes.items())
    program = tg.graph({"loss": tg.losses.cross_entropy(tg.linear(tg.relu(tg.linear(x, w1) + b1), w2) + b2, y)})
    prepared = prepare(step_graphs(program, tg.optim.Adam()).update, True, recipes=False, backends=("c", "gen", "numpy"))
    assert sum(map(is_step, prepared.graph.nodes)) == 11             # on this processor the first one is a product and a relu


def test_thirty_steps_lose_as_those_of_torch() -> None:
    trainer = tg.Trainer(network(), tg.optim.Adam(0.01), weights(), clip_norm=1.0)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in weights().items()}
    optimiser = torch.optim.Adam(tensors.values(), lr=0.01)
    for i in range(30):
        x, y = (torch.tensor(array) for array in batch(i).values())
        hidden = torch.relu(x @ tensors["w1"].T + tensors["b1"])
        loss = torch.nn.functional.cross_entropy(hidden @ tensors["w2"].T + tensors["b2"], y.long())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)
        optimiser.step()
        assert abs(float(trainer.step(batch(i))["loss"]) - loss.item()) < 1e-5


@pytest.mark.parametrize(("arguments", "error"), [
    ({"loss": "los"}, "no output 'los'"), ({"optimiser": {"*": None}}, "no parameter is trained"),
    ({"weights": {"w1": weights()["w1"]}}, "weights has no b1, b2, w2"), ({"batches": 0}, "batches is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"loss": "logits"}, "a scalar is needed")])
def test_a_mistake_is_named(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(tg.TensorGraphsError, match=error):
        tg.Trainer(**{"graph": network(), "optimiser": tg.optim.Adam(), "weights": weights(), **NUMPY, **arguments})
