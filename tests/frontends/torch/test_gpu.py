"""torch.compile(backend="tensor_graphs") with tensors on a GPU: graphs run there, on the memory of torch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tensor_graphs.frontends.torch.backend import compiled_modules, tensor_graphs
from tensor_graphs.frontends.torch.exchange import to_array, to_tensor
from tensor_graphs.frontends.torch.export import from_torch
from tensor_graphs.runtime.arrays import device_array

pytestmark = pytest.mark.gpu


class Attention(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def close(actual: torch.Tensor, expected: torch.Tensor, limit: float = 1e-4) -> bool:
    return actual.device == expected.device and actual.dtype == expected.dtype and actual.shape == expected.shape and bool(
        (actual - expected).norm() <= limit * expected.norm())


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 8)), lambda n: torch.randn(n, 48)),
    "attention": (Attention, lambda n: torch.randn(n, 3 + n, 64)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
                    lambda n: torch.randn(n, 3, 16, 16)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_on_a_gpu_gives_what_eager_gives_there_at_two_batch_sizes(name: str) -> None:
    make, inputs = MODULES[name]
    model = make().eval().cuda()
    fast = torch.compile(model, backend=tensor_graphs, dynamic=True)
    for batch in (2, 5):
        x = inputs(batch).cuda()
        with torch.no_grad():
            assert close(fast(x), model(x))
    assert all(not module.opaque for module in compiled_modules())


@pytest.mark.parametrize("name", ["mlp", "attention"])
def test_gradients_on_a_gpu_are_those_of_eager(name: str) -> None:
    make, inputs = MODULES[name]
    model, x = make().cuda(), inputs(4).cuda().requires_grad_()
    grads = []
    for forward in (model, torch.compile(model, backend=tensor_graphs)):
        model.zero_grad()
        x.grad = None
        forward(x).square().sum().backward()
        grads.append([t.grad.clone() for t in (x, *model.parameters())])
    assert all(close(actual, expected) for expected, actual in zip(*grads, strict=True))


def test_a_bf16_module_stays_bf16_on_a_gpu() -> None:
    make, inputs = MODULES["mlp"]
    model, x = make().eval().cuda().bfloat16(), inputs(4).cuda().bfloat16()
    with torch.no_grad():
        assert close(torch.compile(model, backend=tensor_graphs)(x), model(x), 0.02)


def test_an_op_that_torch_runs_between_two_graphs_reads_and_gives_tensors_of_the_gpu() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.bincount((x.relu() * 3).to(torch.int64).flatten(), minlength=64) * 2

    x = torch.randn(40, device="cuda")
    assert torch.equal(torch.compile(program, backend=tensor_graphs)(x), program(x))


def test_tensors_and_arrays_of_a_run_are_the_same_memory() -> None:
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    shared: Any = to_tensor(device_array(to_array(x), "cuda:0"))
    assert shared.data_ptr() == x.data_ptr() and torch.equal(shared, x)


def test_a_module_on_a_gpu_is_exported_with_weights_on_the_host() -> None:
    make, inputs = MODULES["mlp"]
    module = from_torch(make().eval().cuda(), (inputs(2).cuda(),))
    assert module.weights["0.weight"].shape == (96, 48) and "copy_to" not in str(module.graph)
