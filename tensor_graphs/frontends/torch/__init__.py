"""torch: modules of PyTorch as graphs: torch.compile(model, backend="tensor_graphs"), and tg.from_torch.

In: a module of torch.  Out: a compiled callable, or a graph with its weights. torch is imported by backend.py and fx.py alone.
Read first: fx.py (an FX graph of ATen ops becomes steps: graphs, and what torch runs between them), aten/ (the table of ops),
backend.py (torch.compile), export.py (tg.from_torch). functions.py is the table of torch's functions by name, for source code that
is read (flashinfer/reference_graph.py).
"""

from __future__ import annotations

from typing import Any

DOORS = ("CompiledModule", "compiled_graphs", "compiled_modules", "forget", "tensor_graphs")
"""names of backend.py, which imports torch, loaded when they are first used"""


def __getattr__(name: str) -> Any:
    if name not in DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tensor_graphs.frontends.torch import backend

    return getattr(backend, name)
