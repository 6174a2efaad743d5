"""oracle: a backend of torch.compile whose graphs the oracle evaluates: for tests of the conversion, without kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd

from benchmarks.torch_op_info import Interpreted
from tensor_graphs.frontends.torch.backend import boxed, decompositions


def interpreted(modules: list[Interpreted]) -> Callable[..., Any]:
    """Return the backend; it adds what it converts to `modules`."""

    def compiler(module: fx.GraphModule, _: Sequence[Any]) -> Any:
        modules.append(Interpreted(module, {}, False))
        return boxed(modules[-1])

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions())
