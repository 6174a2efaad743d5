"""backend.py: torch.compile(backend=tensor_graphs) gives what eager torch gives, and compiles no size twice."""

from __future__ import annotations

import logging
import sys
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry

import tensor_graphs as tg
from tensor_graphs.frontends.torch import backend
from tensor_graphs.frontends.torch.backend import tensor_graphs
from tests.frontends.torch.oracle import interpreted

ROOT = Path(__file__).parents[3]
NUMPY = {"backends": ["numpy"], "simplify": False}


def compiled(module: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return torch.compile(module, backend=tensor_graphs, options={**NUMPY, **options})


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


class Loaded(EntryPoint):
    """An entry point that three threads have loaded before torch registers what the first of them loads."""

    barrier = threading.Barrier(3)

    def load(self) -> Any:
        self.barrier.wait(timeout=60)
        value = super().load()
        self.barrier.wait(timeout=60)
        return value


def test_threads_that_look_the_backend_up_together_all_get_this_callable(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    path = project["entry-points"]["torch_dynamo_backends"]["tensor_graphs"]
    registry.list_backends()
    monkeypatch.setitem(registry._BACKENDS, "tensor_graphs", Loaded("tensor_graphs", path, "torch_dynamo_backends"))
    registry._COMPILER_FNS.pop("tensor_graphs", None)
    sys.modules.pop(path.partition(":")[0], None)
    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(registry.lookup_backend, ["tensor_graphs"] * 3)) == {tensor_graphs}


def test_outputs_and_gradients_are_those_of_eager_torch() -> None:
    model, x = mlp(), torch.randn(5, 6)
    out = compiled(model)(x)
    out.square().sum().backward()
    slopes = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    expected = model(x)
    expected.square().sum().backward()
    torch.testing.assert_close(out, expected)
    for slope, p in zip(slopes, model.parameters(), strict=True):
        torch.testing.assert_close(slope, p.grad)
    assert len(backend.compiled_modules()) == 2 and not any(m.opaque for m in backend.compiled_modules())


def test_further_sizes_of_a_dynamic_batch_compile_nothing_and_0_and_1_are_right() -> None:
    model, x = mlp(), torch.randn(5, 6)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        fast = compiled(model)
        for size in (5, 3, 17, 1000):
            batch = x if size == 5 else torch.randn(size, 6)
            torch.testing.assert_close(fast(batch), model(batch))
        assert len(backend.compiled_modules()) == len(backend._plans) == 1
        (plan,) = backend.compiled_modules()[0].plans
        assert list(plan.graph.dims) == ["d0"]
        one = torch.randn(1, 6)
        torch.testing.assert_close(fast(one), model(one))
        assert fast(torch.empty(0, 6)).shape == (0, 3)


def test_an_optimisers_step_is_seen_by_the_next_run() -> None:
    model, x = mlp(), torch.randn(4, 6)
    fast = compiled(model)
    with torch.no_grad():
        before = fast(x)
        for p in model.parameters():
            p.data.mul_(2)                              # which raises no version counter
        torch.testing.assert_close(fast(x), model(x))
        assert not torch.allclose(before, fast(x))


def test_equal_layers_have_one_plan() -> None:
    first, second, x = mlp(), mlp(), torch.randn(4, 6)
    with torch.no_grad():
        compiled(first)(x)
        torch._dynamo.reset()
        compiled(second)(x)
    assert len(backend._plans) == 1


class Drawn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cumsum(x * 2, 0)
        values = torch.special.i1(y)                    # no core op, and none of ours
        return values + y


def test_an_op_without_a_row_is_run_by_torch_and_named(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3, 4)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(compiled(Drawn())(x), Drawn()(x))
    assert "aten.special_i1.default" in caplog.text
    (module,) = backend.compiled_modules()
    assert module.opaque == {"aten.special_i1.default": "no row"} and len(module.graph_steps) == 2
    assert "torch runs aten.special_i1.default: no row" in module.explain()


def test_strict_refuses_it_by_name() -> None:
    with pytest.raises(Exception, match="no graph computes aten.special_i1.default"):
        compiled(Drawn(), strict=True)(torch.randn(3, 4))


def test_an_unknown_option_is_an_error_that_names_a_near_one() -> None:
    with pytest.raises(Exception, match="did you mean tolerance"):
        compiled(mlp(), tolerence=1e-3)(torch.randn(2, 6))


@pytest.mark.parametrize(("how", "message"), [({"options": {"strict": "yes"}}, "strict and freeze are True or False"),
                                              ({"mode": "reduce-overhead"}, "no mode 'reduce-overhead'")])
def test_a_mode_and_a_switch_that_is_neither_true_nor_false_are_errors(how: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        torch.compile(mlp(), backend="tensor_graphs", **how)(torch.randn(2, 6))


def test_the_request_reaches_the_plan() -> None:
    with torch.no_grad():
        compiled(mlp(), threads=1)(torch.randn(2, 6))
    (graph,) = backend.compiled_graphs()
    assert graph.outputs and backend.compiled_modules()[0].plans[0].backends == ("numpy",)
    assert isinstance(graph, tg.Graph)


def test_a_result_has_the_strides_that_torch_has() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).transpose(0, 1).contiguous().transpose(0, 1) + 0

    x = torch.randn(3, 4)
    out = compiled(turned)(x)
    assert out.stride() == turned(x).stride() and torch.equal(out, turned(x))


def test_results_without_elements_have_the_strides_of_eager_torch() -> None:
    for x in (torch.empty(0, 4), torch.empty(0), torch.empty(3, 0)):
        result, expected = compiled(lambda x: ((x * 2).t(), x + 1))(x), ((x * 2).t(), x + 1)
        assert [(r.shape, r.stride()) for r in result] == [(e.shape, e.stride()) for e in expected]


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2)[1], "slice": lambda x: x[x.shape[0] // 2:], "select": lambda x: x[x.shape[0] - 1],
    "diagonal": lambda x: (x.diagonal(1), x.unfold(0, 2, 1)), "of another result": lambda x: (x + 1).chunk(2),
    "with others": lambda x: (x * 2, x.T[1:]),
    "of a view": lambda x: x.T[x.shape[1] // 2:].split(1)[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=list(VIEWS))
def test_views_lie_where_torch_has_them_at_all_sizes(view: Callable[[torch.Tensor], Any]) -> None:
    fast = torch.compile(view, backend=interpreted([]), dynamic=True)
    for rows in (4, 7):
        x = torch.randn(rows, 6)
        pairs = zip(*([r] if isinstance(r, torch.Tensor) else r for r in (fast(x), view(x))), strict=True)
        assert all(torch.equal(a, b) and (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset()) for a, b in pairs)


def test_a_write_to_a_result_is_seen_in_those_that_overlap_it() -> None:
    def overlapping(x: torch.Tensor) -> Any:
        y = x + 1
        return y[:2], y[1:], y.T

    first, *others = torch.compile(overlapping, backend=interpreted([]))(torch.zeros(3, 2))
    first.zero_()
    assert [t.sum().item() for t in others] == [2.0, 2.0]


def test_a_write_to_a_weight_whose_transpose_is_kept_for_the_gradient_is_an_error_as_in_eager_torch() -> None:
    weight, x = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    out = compiled(lambda x, weight: x @ weight.t())(x, weight)
    assert weight.data_ptr() in [t.data_ptr() for t in out.grad_fn.saved_tensors]
    with torch.no_grad():
        weight.mul_(0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_number_that_may_be_negative_is_none_of_the_sizes_of_a_graph() -> None:
    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n + n % 4

    fast = torch.compile(scaled, backend=tensor_graphs, options=NUMPY, dynamic=True)
    for n in (-3, 1 << 33):
        assert torch.equal(fast(torch.ones(2), n), scaled(torch.ones(2), n))


def test_a_diagonal_is_written_to_as_by_eager_torch() -> None:
    def jitter(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.diagonal(1, 0, 2).add_(2.0)
        x.diagonal(-1).copy_(torch.arange(3.0))
        return x

    x = torch.randn(4, 3, 4)
    assert torch.equal(torch.compile(jitter, backend=interpreted([]))(x), jitter(x))
    jacobian = torch.func.jacrev(lambda y: y * y)
    assert torch.equal(torch.compile(lambda y: jacobian(y), backend=interpreted([]))(x[0, 0]), jacobian(x[0, 0]))


def test_inputs_are_written_to_as_by_eager_torch() -> None:
    def counted(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x.sum(0))
        return total * 2

    ours, theirs, x = torch.zeros(4), torch.zeros(4), torch.randn(3, 4)
    torch.testing.assert_close(compiled(counted)(x, ours), counted(x, theirs))
    torch.testing.assert_close(ours, theirs)


def test_bfloat16_is_exchanged_without_a_conversion() -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    out = compiled(lambda v: v * 2)(x)
    assert out.dtype is torch.bfloat16 and torch.equal(out, x * 2)


def test_inputs_that_overlap_only_later_are_refused_where_one_is_written_to() -> None:
    def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x * 2

    fast, base = compiled(written), torch.zeros(6)
    assert torch.equal(fast(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(tg.TensorGraphsError, match="share memory, which they did not when it was compiled"):
        fast(base[:4], base[2:])


def test_as_strided_reads_the_storage_of_this_run() -> None:
    fast = compiled(lambda x: torch.as_strided(x, (2, 3), (3, 2), 0) * 2)
    for x in (torch.arange(12.0), torch.arange(20.0)[4:16]):
        assert torch.equal(fast(x), torch.as_strided(x, (2, 3), (3, 2), 0) * 2)


@pytest.mark.parametrize("x", [torch.arange(12.0), torch.arange(12.0).reshape(3, 4).T, torch.arange(20.0)[4:16]])
def test_as_strided_reads_storage_and_not_values(x: torch.Tensor) -> None:
    def strided(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2, 3), (3, 2)) * 2

    assert torch.equal(compiled(strided)(x), strided(x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_is_a_graph_where_dynamo_is_allowed_to_trace_it(kind: Any) -> None:
    torch.manual_seed(0)
    layer, x = kind(3, 4), torch.randn(2, 1, 3)
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x), layer(x))
    (module,) = backend.compiled_modules()
    assert not module.opaque and len(module.graph_steps) == 1


def test_dropout_draws_as_eager_torch_does_and_its_gradient_is_right() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x * 2, 0.5, training=True) * 3

    x = torch.randn(6, 7, requires_grad=True)
    runs = []
    for run in (model, compiled(model)):
        torch.manual_seed(3)
        out = run(x)
        runs.append((out.detach(), *torch.autograd.grad(out.sum(), x)))
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=0)


def test_frozen_parameters_are_bound_once_and_again_after_a_write() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 3, 9, 9)
    fast = torch.compile(model, backend="tensor_graphs", options={"freeze": True})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        (module,) = backend.compiled_modules()[-1:]
        (step,) = module.graph_steps
        assert len(step.parameters) == 6 and len(step.inputs) == 1
        bound = module._run[0]._model
        fast(x)
        assert module._run[0]._model is bound
        model[0].weight.mul_(2.0)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        assert backend.compiled_modules()[-1] is module and module._run[0]._model is not bound
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_parameters_stay_inputs_where_gradients_are_computed() -> None:
    model = nn.Linear(5, 3)
    x = torch.randn(2, 5)
    torch.compile(model, backend="tensor_graphs", options={"freeze": True})(x).sum().backward()
    assert all(not step.parameters for module in backend.compiled_modules()[-2:] for step in module.graph_steps)
    torch.testing.assert_close(model.weight.grad, x.sum(0).expand(3, 5))
