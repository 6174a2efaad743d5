"""A training step under a memory limit: half of the arena, by an order in which values are computed again, and no bit changes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.training.step import step_graphs

ROWS, LENGTH, WIDTH, LAYERS = 16, 24, 64, 2
NUMPY = {"backends": ("numpy",)}
Shapes = dict[str, tuple[int, ...]]


def transformer() -> tuple[tg.Graph, Shapes]:
    """Layers of attention and of a network of two products, each with a norm and a residual sum."""
    shapes: Shapes = {}

    def linear(x: tg.Node, name: str, out: int) -> tg.Node:
        shapes[name] = (out, int(x.shape[-1]))
        return tg.linear(x, tg.parameter(name, shapes[name]))

    x = tg.input("x", (ROWS, LENGTH, WIDTH))
    y = x
    for layer in range(LAYERS):
        h = tg.layer_norm(y)
        q, k, v = (linear(h, f"{layer}.{name}", WIDTH).reshape(ROWS, LENGTH, 2, WIDTH // 2) for name in "qkv")
        y = y + linear(tg.attention(q, k, v, scale=0.25, causal=True).reshape(ROWS, LENGTH, WIDTH), f"{layer}.o", WIDTH)
        y = y + linear(tg.gelu(linear(tg.layer_norm(y), f"{layer}.up", 4 * WIDTH)), f"{layer}.down", WIDTH)
    return tg.graph({"loss": tg.losses.mse(y, x * 0.5)}), shapes


def residual_network() -> tuple[tg.Graph, Shapes]:
    """Convolutions with a norm each, and residual sums."""
    shapes: Shapes = {}

    def conv(x: tg.Node, name: str) -> tg.Node:
        shapes[name], shapes[f"{name}.scale"] = (8, int(x.shape[1]), 3, 3), (8,)
        y = tg.conv2d(x, tg.parameter(name, shapes[name]), padding=1)
        return tg.group_norm(y, tg.parameter(f"{name}.scale", (8,)), groups=2)

    x = tg.input("x", (ROWS, 3, 12, 12))
    y = tg.relu(conv(x, "first"))
    for block in range(8):
        y = tg.relu(y + conv(tg.relu(conv(y, f"{block}.a")), f"{block}.b"))
    return tg.graph({"loss": tg.mean(tg.square(tg.mean(y, (2, 3)) - 1.0))}), shapes


MODELS = {"transformer": transformer, "residual network": residual_network}


def trainer_of(graph: tg.Graph, shapes: Mapping[str, tuple[int, ...]], limit: int | None) -> tg.Trainer:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    return tg.Trainer(graph, tg.optim.AdamW(1e-2), weights, clip_norm=1.0, memory_limit=limit, **NUMPY)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_half_of_the_arena_has_the_same_bits(model: str, tmp_path: Path) -> None:
    graph, shapes = MODELS[model]()
    x = np.random.default_rng(1).normal(size=tuple(map(int, graph.inputs["x"].shape))).astype(np.float32)
    free = trainer_of(graph, shapes, None)
    most = free.plan.memory().most - free.plan.memory().arena // 2
    half = trainer_of(graph, shapes, most)
    use, (variant,) = half.plan.memory(), half.plan.variants
    assert use.most <= most and variant.smaller is not None and 0 < variant.smaller.calls
    assert variant.predicted == pytest.approx(free.plan.variants[0].path.seconds + variant.smaller.seconds)
    (note,) = half.plan.notes
    assert "computed again take" in note and note in str(tg.explain(half.plan))
    for _ in range(3):
        assert half.step({"x": x})["loss"].tobytes() == free.step({"x": x})["loss"].tobytes()

    half.save(tmp_path / "a.safetensors")                           # the break of a run changes nothing either
    resumed = trainer_of(graph, shapes, most)
    resumed.load(tmp_path / "a.safetensors")
    for trainer in (free, half, resumed):
        trainer.step({"x": x})
    states = [{name: array.tobytes() for name, array in t.session.snapshot().items()} for t in (free, half, resumed)]
    assert states[0] == states[1] == states[2]


@pytest.mark.long
def test_the_planned_bytes_are_those_that_a_run_takes() -> None:
    update = step_graphs(transformer()[0], tg.optim.AdamW(1e-2)).update
    free = tg.compile(update, **NUMPY).memory()
    plan = tg.compile(update, memory_limit=free.most - free.arena // 2, **NUMPY)
    x = np.zeros((ROWS, LENGTH, WIDTH), np.float32)
    tracemalloc.start()
    try:
        model = tg.bind(plan, {})
        session = model.session()
        outputs = model.run({"x": x}, session=session)
        arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    finally:
        tracemalloc.stop()
    measured, use = sum(trace.size for trace in arrays.traces), plan.memory()
    assert outputs and use.allocated - use.bound <= measured * 1.001             # what binding computes may be mapped from a file
    assert measured <= use.allocated * 1.02
