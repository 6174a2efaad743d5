"""export.py: tg.from_torch gives a graph with the module's names, which computes what the module computes."""

from __future__ import annotations

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
