"""fx.py: whole models become one graph for each pass, with the outputs and gradients of eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.torch_models import SMALL
from tensor_graphs.frontends.torch.exchange import to_numpy, to_tensor
from tensor_graphs.frontends.torch.fx import Converter, GraphStep, TorchStep, is_view, op_name
from tensor_graphs.frontends.torch.sizes import TorchSizes
from tensor_graphs.meaning.interpreter import interpret
from tests.frontends.torch.oracle import interpreted

QUICK = ("mlp", "unet block", "graph network")


def first(result: Any) -> torch.Tensor:
    """Return the (first) tensor of what a model returns."""
    return result if isinstance(result, torch.Tensor) else next(iter(result.values())) if hasattr(result, "values") else result[0]


def compare(make: Callable[[], nn.Module], inputs: Callable[[int], tuple[Any, ...]]) -> list[Any]:
    """Compare outputs and gradients at a batch of 2 and outputs at 3 and 4; return the converted modules."""
    model = make().eval()
    modules: list[Any] = []
    fast = torch.compile(model, backend=interpreted(modules))
    with torch.no_grad():
        for size in (2, 3):
            feeds = inputs(size)
            torch.testing.assert_close(first(fast(*feeds)), first(model(*feeds)), rtol=1e-4, atol=1e-4)
        before = len(modules)
        feeds = inputs(4)
        torch.testing.assert_close(first(fast(*feeds)), first(model(*feeds)), rtol=1e-4, atol=1e-4)
        assert len(modules) == before, "a third size was compiled anew"
    feeds = inputs(2)
    slopes = []
    for run in (fast, model):
        model.zero_grad()
        out = first(run(*feeds))
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        # AOT autograd gives 0 where eager torch has no gradient: of what only an unused output needs
        slopes.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()])
    assert any(slope.any() for slope in slopes[0])
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max() + 1))
    return modules


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in SMALL])
def test_a_model_has_the_outputs_and_gradients_of_eager_torch(name: str) -> None:
    make, inputs, opaque = SMALL[name]
    modules = compare(make, inputs)
    assert {op for m in modules for op in m.opaque} <= opaque


def test_a_tensor_on_another_device_is_refused() -> None:
    with pytest.raises(Exception, match="lies on meta, and this backend runs on CPUs and GPUs"):
        torch.compile(lambda x: x * 2, backend=interpreted([]))(torch.empty(3, device="meta"))


def test_an_op_between_two_graphs_cuts_the_module_once_for_all_of_its_level() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return torch.special.i1(y) + torch.special.i1e(y) * y.cos()

    modules: list[Any] = []
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(forward, backend=interpreted(modules))(x), forward(x))
    (module,) = modules
    assert len(module.graph_steps) == 2 and len(module.opaque) == 2


def test_the_number_of_values_that_pass_a_condition_is_a_size_of_the_next_graph() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    modules: list[Any] = []
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = torch.compile(forward, backend=interpreted(modules))
        for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0, -2.0, 3.0])):
            torch.testing.assert_close(fast(x), forward(x))
    assert len(modules) == 1 and set(modules[0].opaque) == {"aten.index.Tensor"} and modules[0].graph_steps


def test_views_of_inputs_that_torch_reads_are_made_by_torch() -> None:
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        turned = weight.unflatten(0, (2, -1)).transpose(1, 2)[1]
        return x @ torch.special.i1(turned) + torch.special.i1e(turned * 2.0)

    modules: list[Any] = []
    x, weight = torch.randn(4, 4), torch.randn(8, 4)
    torch.testing.assert_close(torch.compile(forward, backend=interpreted(modules))(x, weight), forward(x, weight))
    before, *_, after = modules[0].steps
    by_torch = [step.node for step in modules[0].steps if isinstance(step, TorchStep)]
    assert len(before.outputs) == 1 and len(after.outputs) == 1             # the product with 2.0, and the sum
    assert list(map(op_name, by_torch[-2:])) == ["special_i1.default", "special_i1e.default"]
    assert all(map(is_view, by_torch[:-2])) and len(by_torch) > 3


@pytest.mark.parametrize("biased", [False, True])
def test_attention_as_torch_says_it_on_a_gpu_is_that_of_the_host(biased: bool) -> None:
    """Traced with fake tensors of a GPU, which need none; the graphs of both passes are evaluated on the host."""
    aten = torch.ops.aten
    q, k, v, grad = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 6, 6, 5))
    bias = torch.randn(2, 3, 5, 6, requires_grad=True) if biased else None
    expected = nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=not biased)
    leaves = [q, k, v, *([bias] if biased else [])]
    gradients = torch.autograd.grad(expected, leaves, grad)

    def forward(q: Any, k: Any, v: Any, grad: Any, bias: Any = None) -> Any:
        out, sums, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, not biased)
        grads = aten._scaled_dot_product_efficient_attention_backward(
            grad, q, k, v, bias, out, sums, seed, offset, 0.0, [True, True, True, biased], not biased)
        return out, sums, *grads[:3 + biased]

    with FakeTensorMode():
        fakes = [torch.empty(t.shape, device="cuda") for t in (q, k, v, grad, *leaves[3:])]
        module = make_fx(forward if biased else lambda q, k, v, grad: forward(q, k, v, grad))(*fakes)
    (step,) = Converter(module, TorchSizes()).convert()
    assert isinstance(step, GraphStep) and all(n.op.name == "copy_to" for n in step.graph.outputs.values())
    values = dict(zip([n for n in module.graph.nodes if n.op == "placeholder"], (q, k, v, grad, *leaves[3:]), strict=True))
    alone = step.graph.with_roots([n.inputs[0] for n in step.graph.roots])
    outputs = interpret(alone, {name: to_numpy(values[node]) for name, node in step.inputs.items()}).outputs
    order = {node: name for name, node in step.outputs.items()}
    (results,) = module.graph.output_node().args
    out, sums, *grads = (torch.from_numpy(np.asarray(outputs[order[n]], np.float32)) for n in results)
    assert sums.shape == (2, 3, 32)
    for actual, node, reference in zip((out, *grads), (results[0], *results[2:]), (expected, *gradients), strict=True):
        actual = to_tensor(actual.numpy(), step.orders.get(order[node]))
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-5)
