"""kernel_decorator: the decorator `tg.kernel`, which makes a kernel from a Python function that fills arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensor_graphs.errors import close_to
from tensor_graphs.kernels import check_declaration
from tensor_graphs.kernels.check_declaration import Computed
from tensor_graphs.kernels.kernel import HostCall, Kernel, KernelError, Spec, source_of
from tensor_graphs.kernels.registry import BACKENDS, GENERATORS, OURS, backend_module, register
from tensor_graphs.language.explain_call_errors import worded

COMPILED = {"c": "tg.c_kernel(…, source=…, entry=…)", "cuda": "tg.cuda_kernel(…, source=…, entry=…)"}
"""backend with compiled kernels -> the call that registers a user's kernel for it; gen and gencuda generate theirs"""


def host_kernel(op: Computed, *, backend: str = "numpy", name: str | None = None,
                accepts: Callable[[Spec], str | None] | None = None, in_place: tuple[tuple[int, int], ...] = (),
                contiguous: bool = False, sources: Sequence[str | Path] = (),
                requirements: Mapping[str, Any] | None = None,
                assuming: str | Sequence[str] = ()) -> Callable[[Callable[..., None]], Kernel]:
    """Return a decorator that registers a function `f(outs, ins, attrs)` as a kernel of an op (name or `tg.composite`) or a graph.

        @tg.kernel("softmax", sources=["softmax.c", "table.npy"])
        def my_softmax(outs, ins, attrs): ...

        @tg.kernel(tg.graph(tg.linear(tg.rms_norm(x, g), w)))
        def my_norm_linear(outs, ins, attrs): ...

    A graph without states is a part. The operands of the part are the graph's inputs in order of first use, its outputs are the
    graph's, and its dims may take every size in their ranges. The kernel is a candidate wherever a piece of a graph is proved
    equal.

    outs, ins: numpy arrays for backends of the host (torch.from_numpy gives a tensor on the same memory; with contiguous=True the
    arrays have no gaps), torch tensors on the GPU for "triton" and "torchcuda". A function for "triton" must start all its work on
    torch's current stream and do the same work whatever the operands hold, so that it may be captured. ins: the operands in the
    order of the op's page, without absent optional ones (`Spec.role_index` gives the positions, for `accepts`).
    sources: further files that the kernel depends on, besides its module and imports, relative to the module's folder. An edit of
    one makes it a new kernel, which is compared with the oracle before use.
    requirements: features of the device, like {"arch": ["avx512f"]} (device_requirements.py); elsewhere the kernel is no candidate.
    A kernel that rounds f32 operands to TF32, as tl.dot of Triton does by default, is one of the op "rounded_linear", not "linear";
    its `accepts` returns None for specs with the attribute to="tf32".
    assuming: conditions on values, like "no overflow". The kernel is compared at points where they hold, and is a candidate where
    the caller assumes them too (`tg.compile(graph, assuming="no overflow")`).
    name: must begin with the backend's name and a dot; by default the backend's name, a dot and the function's name.
    A notebook cell that is run again, or a reloaded module, replaces its kernels.
    Raises KernelError when a source is missing, when another place has a kernel of this name, and for an invalid name, pair in
    `in_place`, function or requirement; GraphError for a graph that is no part.
    """
    op = check_declaration.require_computed(op)

    def require_name(own: Any) -> None:
        _require_backend(own, backend)
        check_declaration.require_declaration(own, backend, op)

    if name is not None:
        require_name(name)

    def wrap(function: Callable[..., None]) -> Kernel:
        own = name if name is not None else f"{backend}.{getattr(function, '__name__', type(function).__name__)}"
        require_name(own)
        pairs = check_declaration.pairs_in_place(own, in_place, op)
        check_declaration.require_flag(own, "contiguous", contiguous)
        assumed = check_declaration.assuming_of(own, assuming)
        if accepts is not None:
            check_declaration.require_function(own, "accepts", accepts, ("spec",))
        check_declaration.require_function(own, "the function", function, ("outs", "ins", "attrs"))
        captured = backend in OURS and getattr(backend_module(backend), "ON_STREAM", False)
        return register(Kernel(
            name=own, backend=backend, op=check_declaration.op_name(op), composite=check_declaration.own_composite(op),
            build=(lambda spec: HostCall(function, on_stream=True)) if captured else (lambda spec: HostCall(function)),
            accepts=accepts or (lambda spec: None), source=source_of(function),
            module=function.__module__ or "", in_place=pairs, contiguous=contiguous, sources=sources,
            requirements=requirements or {}, assuming=assumed))

    return wrap


host_kernel = worded(host_kernel, "kernel")


def _require_backend(name: Any, backend: Any) -> None:
    """Raise KernelError unless the backend is known and runs Python functions."""
    if not isinstance(backend, str) or not backend.isidentifier():
        raise KernelError(f"kernel {name!r} is for the backend {backend!r}, which is no name\n  fix: backend=\"numpy\"")
    python = [n for n in BACKENDS if n not in COMPILED and n not in GENERATORS]
    if backend not in BACKENDS:
        near = close_to(backend, BACKENDS)
        meant = (f"did you mean {near[0]}?" if near else
                 f"one that runs functions of Python ({', '.join(python)}), or `register_backend` it before its kernels")
        raise KernelError(f"kernel {name!r} is for the backend {backend!r}, and there is none of that name\n  fix: {meant}")
    if backend not in python:
        declares = f", or {COMPILED[backend]}" if backend in COMPILED else ""
        raise KernelError(f"kernel {name!r} is a function of Python, and the backend {backend!r} runs none\n"
                          f"  fix: one that does ({', '.join(python)}){declares}")
