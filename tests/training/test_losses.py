"""training/losses.py: losses are those of torch, for targets that are ignored, spread, certain or impossible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg

RNG = np.random.default_rng(0)
LOGITS = (RNG.normal(size=(9, 5)) * 10).astype(np.float32)
CLASSES = np.array([0, 1, 2, 3, 4, -100, 1, -100, 4], np.int32)
SHARES = RNG.dirichlet(np.ones(5), 9).astype(np.float32)
SHARES[0] = [1, 0, 0, 0, 0]


def value_and_slope(loss: Any, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, t = tg.input("x", LOGITS.shape), tg.input("t", target.shape, str(target.dtype))
    output = loss(x, t)
    results = tg.interpret(tg.graph({"loss": output, "slope": tg.grad(output, x)}), {"x": LOGITS, "t": target}).outputs
    return results["loss"], results["slope"]


F = torch.nn.functional
CASES = {
    "classes": (lambda x, t: tg.losses.cross_entropy(x, t, ignore=-100), lambda x, t: F.cross_entropy(x, t.long()), CLASSES),
    "all classes": (lambda x, t: tg.losses.cross_entropy(x, t), lambda x, t: F.cross_entropy(x, t.long()), np.abs(CLASSES) % 5),
    "smoothed": (lambda x, t: tg.losses.cross_entropy(x, t, ignore=-100, smoothing=0.1),
                 lambda x, t: F.cross_entropy(x, t.long(), label_smoothing=0.1), CLASSES),
    "logits": (tg.losses.bce_with_logits, F.binary_cross_entropy_with_logits, SHARES),
    "squares": (tg.losses.mse, F.mse_loss, SHARES),
    "divergence": (lambda x, t: tg.losses.kl(tg.log_softmax(x), t),
                   lambda x, t: F.kl_div(F.log_softmax(x, -1), t, reduction="batchmean"), SHARES),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_gradient_are_those_of_torch(name: str) -> None:
    ours, theirs, target = CASES[name]
    value, slope = value_and_slope(ours, target)
    x = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    expected = theirs(x, torch.tensor(target, dtype=torch.float64 if target.dtype == np.float32 else None))
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-9)
    np.testing.assert_allclose(slope, x.grad, rtol=1e-7, atol=1e-9)


def test_smoothing_is_a_share() -> None:
    with pytest.raises(tg.TensorGraphsError, match="smoothing is 2"):
        tg.losses.cross_entropy(tg.input("x", (3, 4)), tg.input("t", (3,), tg.i32), smoothing=2.0)
