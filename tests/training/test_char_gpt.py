"""A GPT of two layers loses step by step as torch's does, from the same weights on the same batches."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.training import Gpt, batches, of_torch, ours, run


@pytest.mark.long
def test_fifty_losses_are_those_of_torch() -> None:
    gpt = Gpt(layers=2, width=32, head=16, length=12, batch=3, count=20, rate=3e-3)
    rng = np.random.default_rng(0)
    weights, data = gpt.weights(rng), batches(gpt, np.arange(400) ** 2 % 20, 50, rng)
    results = run({"ours": ours(gpt, weights, backends=("numpy",))[0], "torch": of_torch(gpt, weights)}, data)
    losses = [of["losses"] for of in results.values()]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-4)
    assert losses[0][-1] < losses[0][0] / 2
