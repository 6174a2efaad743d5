"""autodiff on models of torch: in float64, the gradient of every parameter is autograd's, within 1e-9 of the largest one's norm."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from benchmarks import torch_models as models

IMAGES = {
    "resnet": ("ResNetModel", "ResNetConfig", {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8,
                                               "layer_type": "basic"}),
    "convnext": ("ConvNextModel", "ConvNextConfig", {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2, "patch_size": 2}),
    "vit": ("ViTModel", "ViTConfig", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
                                      "image_size": 16, "patch_size": 4}),
}
CASES = {name: case[:2] for name, case in models.SMALL.items() if name != "mixtral"} | {
    name: (models._transformer(kind, config, **options), models._image(16)) for name, (kind, config, options) in IMAGES.items()}

IN_FLOAT32 = {"llama", "t5 encoder"}
"""models that compute their norms in float32, whatever their dtype is: autograd's gradients are rounded there"""


@pytest.fixture(autouse=True)
def _numbers_are_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def weight(shape: Any) -> np.ndarray:
    return np.cos(np.arange(np.prod(shape))).reshape(shape)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_gradients_in_float64_are_those_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = CASES[name]
    model = make().eval().double()
    batch = tuple(x.double() if x.is_floating_point() else x for x in inputs(2))
    loaded = tg.from_torch(model, batch)
    values = {n: x.numpy() for n, x in zip(inspect.signature(model.forward).parameters, batch, strict=False)}
    first = next(iter(loaded.graph.outputs.values()))
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad and n in loaded.graph.parameters}
    loss = tg.sum(first * tg.constant(weight(first.shape), tg.f64))
    slopes = tg.grad(loss, [loaded.graph.parameters[n] for n in trained])
    ours = tg.interpret(tg.graph(dict(zip(trained, slopes, strict=True))), values, loaded.weights).outputs
    out = model(*batch)
    out = out if isinstance(out, torch.Tensor) else next(iter(out.values()))
    (out * torch.tensor(weight(out.shape))).sum().backward()
    theirs = {n: np.zeros(p.shape) if p.grad is None else p.grad.numpy() for n, p in trained.items()}
    scale = max(np.linalg.norm(g) for g in theirs.values())
    assert trained and max(np.linalg.norm(ours[n] - g) for n, g in theirs.items()) < (1e-6 if name in IN_FLOAT32 else 1e-9) * scale
