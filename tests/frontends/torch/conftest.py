"""Each test begins and ends without what torch.compile and this package's backend keep in the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tensor_graphs.frontends.torch import backend


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    backend.forget()
    yield
    torch._dynamo.reset()
    backend.forget()
