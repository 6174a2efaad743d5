"""A GPT of two layers loses step by step as torch's does, from the same weights on the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg

LAYERS, WIDTH, HEADS, COUNT, LENGTH, BATCH, RATE = 2, 32, 2, 20, 12, 3, 3e-3
SHAPES: dict[str, tuple[int, ...]] = {"tokens": (COUNT, WIDTH), "places": (LENGTH, WIDTH), "norm": (WIDTH,), "head": (COUNT, WIDTH)}
for _layer in range(LAYERS):
    SHAPES |= {f"{_layer}.norm1": (WIDTH,), f"{_layer}.norm2": (WIDTH,), f"{_layer}.up": (4 * WIDTH, WIDTH),
               f"{_layer}.down": (WIDTH, 4 * WIDTH), **{f"{_layer}.{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "out")}}


def ours() -> tg.Graph:
    ids, target = (tg.input(name, (BATCH, LENGTH), tg.i32) for name in ("ids", "target"))
    w = {name: tg.parameter(name, shape) for name, shape in SHAPES.items()}
    x = tg.embedding(w["tokens"], ids) + w["places"]
    for layer in range(LAYERS):
        h = tg.layer_norm(x, w[f"{layer}.norm1"])
        q, k, v = (tg.linear(h, w[f"{layer}.{name}"]).reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS) for name in "qkv")
        seen = tg.attention(q, k, v, scale=(WIDTH // HEADS)**-0.5, causal=True).reshape(BATCH, LENGTH, WIDTH)
        x = x + tg.linear(seen, w[f"{layer}.out"])
        h = tg.layer_norm(x, w[f"{layer}.norm2"])
        x = x + tg.linear(tg.gelu(tg.linear(h, w[f"{layer}.up"])), w[f"{layer}.down"])
    logits = tg.linear(tg.layer_norm(x, w["norm"]), w["head"])
    return tg.graph({"loss": tg.losses.cross_entropy(logits.reshape(BATCH * LENGTH, COUNT), target.reshape(BATCH * LENGTH))})


def theirs(p: dict[str, Any], ids: Any, target: Any) -> Any:
    F = torch.nn.functional
    x = F.embedding(ids, p["tokens"]) + p["places"]
    for layer in range(LAYERS):
        h = F.layer_norm(x, (WIDTH,), p[f"{layer}.norm1"])
        q, k, v = ((h @ p[f"{layer}.{name}"].T).view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for name in "qkv")
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        x = x + seen @ p[f"{layer}.out"].T
        h = F.layer_norm(x, (WIDTH,), p[f"{layer}.norm2"])
        x = x + F.gelu(h @ p[f"{layer}.up"].T) @ p[f"{layer}.down"].T
    return F.cross_entropy((F.layer_norm(x, (WIDTH,), p["norm"]) @ p["head"].T).view(-1, COUNT), target.view(-1))


@pytest.mark.long
def test_fifty_losses_are_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    weights = {name: (np.ones(shape) if len(shape) == 1 else rng.normal(0, 0.08, shape)).astype(np.float32)
               for name, shape in SHAPES.items()}
    text = np.arange(400) ** 2 % COUNT
    trainer = tg.Trainer(ours(), tg.optim.AdamW(tg.optim.warmup(RATE, 10, 0.1)), weights, clip_norm=1.0, backends=("numpy",))
    p = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    optimiser = torch.optim.AdamW(p.values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, 1.0, 10)
    losses = []
    for _ in range(50):
        rows = rng.integers(0, len(text) - LENGTH - 1, BATCH)[:, None] + np.arange(LENGTH)
        loss = theirs(p, torch.tensor(text[rows]), torch.tensor(text[rows + 1]))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimiser.step()
        schedule.step()
        batch = {"ids": text[rows].astype(np.int32), "target": text[rows + 1].astype(np.int32)}
        losses.append((float(trainer.step(batch)["loss"]), loss.item()))
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=0, atol=1e-4)
    assert losses[-1][0] < losses[0][0] / 2
