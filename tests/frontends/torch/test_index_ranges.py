"""index_ranges.py: an index out of range is an error, as in eager torch, and what is proved or in range costs no further output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tensor_graphs.frontends.torch import backend
from tensor_graphs.frontends.torch.backend import tensor_graphs
from tensor_graphs.frontends.torch.index_ranges import IndexRangeError

OPS: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, i: x[i],
    "computed index": lambda x, i: x[i + 1 - 1],
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "embedding": lambda x, i: F.embedding(i, x),
    "gather": lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 4)),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(())),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 4)),
}


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=tensor_graphs, options={"backends": ["numpy"], "simplify": False}, **options)


@pytest.mark.parametrize("name", OPS)
def test_an_index_out_of_range_is_refused_where_torch_refuses_it(name: str) -> None:
    x, run = torch.arange(20.0).reshape(5, 4), compiled(OPS[name])
    for index in (torch.tensor([1, 4]), torch.tensor([0, 5])):
        try:
            expected = OPS[name](x, index)
        except (IndexError, RuntimeError):
            with pytest.raises(IndexRangeError, match="index 5 is out of bounds for an axis of size 5"):
                run(x, index)
        else:
            torch.testing.assert_close(run(x, index), expected)


def test_the_size_of_an_axis_that_is_a_dim_is_that_of_the_run() -> None:
    run, x = compiled(OPS["index"]), torch.ones(6, 2)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    assert run(x, torch.tensor([5, 0, 4])).shape == (3, 2)
    with pytest.raises(IndexRangeError, match="index: index 5 is out of bounds for an axis of size 4"):
        run(torch.ones(4, 2), torch.tensor([0, 5, 1]))


def test_a_table_without_a_bound_of_its_sizes_is_read_and_checked() -> None:
    run = compiled(OPS["embedding"], dynamic=True)
    for rows in (7, 50):
        x, index = torch.randn(rows, 5), torch.randint(0, rows, (rows + 3,))
        torch.testing.assert_close(run(x, index), x[index])
    assert len(backend.compiled_modules()) == 1
    with pytest.raises(IndexRangeError, match="embedding: index 6 is out of bounds for an axis of size 6"):
        run(torch.randn(6, 5), torch.tensor([0, 6, 1]))


def test_indices_that_are_proved_are_not_checked() -> None:
    compiled(lambda x: x[x.argmax(0) % 5] + x[torch.arange(4)] + x[x.argsort(0)[0].clamp(0, 3)])(torch.randn(5, 4))
    (step,) = backend.compiled_modules()[0].graph_steps
    assert step.checks == [] and list(step.graph.outputs) == ["y0"]
