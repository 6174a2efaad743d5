"""export.py: tg.from_torch gives a graph with the module's names, which computes what the module computes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tensor_graphs as tg
from tensor_graphs.language.text import parse_graph, print_graph


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval()


def test_dims_parameters_and_values_are_those_of_the_module() -> None:
    model = mlp()
    loaded = tg.from_torch(model, (torch.randn(2, 6),), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))
    assert list(loaded.graph.dims) == ["batch"] and loaded.graph.dims["batch"].bounds() == (2, 64)
    assert set(loaded.weights) == set(model.state_dict()) == set(loaded.graph.parameters)
    assert loaded.weights["0.weight"].ctypes.data == model[0].weight.data_ptr()
    x = torch.randn(9, 6)
    out = tg.interpret(loaded.graph, {"input": x.numpy()}, loaded.weights).outputs["y0"]
    np.testing.assert_allclose(out, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_the_graph_is_written_and_read_as_text() -> None:
    graph = tg.from_torch(mlp(), (torch.randn(2, 6),)).graph
    assert parse_graph(print_graph(graph)) == graph


class Uncommon(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.i1(x) * 2


def test_an_op_that_graphs_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(tg.TensorGraphsError, match="no graph computes aten.special_i1.default"):
        tg.from_torch(Uncommon(), (torch.randn(3),))


def test_a_module_that_writes_to_a_buffer_is_refused_and_is_taken_when_it_evaluates() -> None:
    model = nn.BatchNorm1d(4)
    with pytest.raises(tg.TensorGraphsError, match="writes to .*running_mean"):
        tg.from_torch(model, (torch.randn(3, 4),))
    x = torch.randn(3, 4)
    loaded = tg.from_torch(model.eval(), (x,))
    out = tg.interpret(loaded.graph, {"input": x.numpy()}, loaded.weights).outputs["y0"]
    np.testing.assert_allclose(out, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_inputs_and_results_of_a_function_are_those_of_its_signature() -> None:
    x = torch.arange(3.0)
    loaded = tg.from_torch(lambda a, b, unread: (b - a, None, a), (x, x, x))
    assert (loaded.inputs, loaded.unused, list(loaded.graph.outputs)) == (("a", "b"), ("unread",), ["y0", "y2"])
    out = tg.interpret(loaded.graph, {"a": x.numpy(), "b": x.numpy() + 5}).outputs
    assert out["y0"].tolist() == [5.0] * 3 and out["y2"].tolist() == x.tolist()


@pytest.mark.parametrize(("function", "args", "message"), [
    (lambda x: x, torch.ones(2), "args is a tuple"),
    (lambda x: x * 2, (np.ones(2),), "torch.export does not take the module: Unsupported input type"),
    (lambda x: x if x.sum() > 0 else -x, (torch.ones(2),), "torch.export does not take the module: .*data-dependent"),
    (lambda x: (x, 3), (torch.ones(2),), "returns 3, which is no tensor"),
    (lambda x: torch.linalg.qr(x)[0], (torch.ones(2, 2),), r"no graph computes aten.linalg_qr.default \(no row\)$"),
])
def test_what_is_no_graph_is_refused_in_one_sentence(function: Any, args: Any, message: str) -> None:
    with pytest.raises(tg.TensorGraphsError) as error:
        tg.from_torch(function, args)
    assert re.search(message, str(error.value).splitlines()[0])
