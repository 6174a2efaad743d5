"""kernel_decorator: a Python function that fills arrays becomes a kernel: the decorator `tg.kernel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensor_graphs.errors import close_to
from tensor_graphs.kernels import check_declaration
from tensor_graphs.kernels.check_declaration import Computed
from tensor_graphs.kernels.kernel import HostCall, Kernel, KernelError, Spec, source_of
from tensor_graphs.kernels.registry import BACKENDS, GENERATORS, OURS, backend_module, register
from tensor_graphs.language.call_decorator import worded

COMPILED = {"c": "tg.c_kernel(…, source=…, entry=…)", "cuda": "tg.cuda_kernel(…, source=…, entry=…)"}
"""backends whose kernels are compiled -> what declares one of a user's; gen and gencuda write theirs themselves"""


def host_kernel(op: Computed, *, backend: str = "numpy", name: str | None = None,
                accepts: Callable[[Spec], str | None] | None = None, in_place: tuple[tuple[int, int], ...] = (),
                contiguous: bool = False, sources: Sequence[str | Path] = (),
                requirements: Mapping[str, Any] | None = None,
                precision: str | None = None, assuming: str | Sequence[str] = ()) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: register a function `f(outs, ins, attrs)` as a kernel of an op (its name, or a `tg.composite`), or of a graph.

        @tg.kernel("softmax", sources=["softmax.c", "table.npy"])
        def my_softmax(outs, ins, attrs): ...

        @tg.kernel(tg.graph(tg.linear(tg.rms_norm(x, g), w)))
        def my_norm_linear(outs, ins, attrs): ...

    A graph without states is a part: its operands are the graph's inputs in order of first use, its outputs the graph's, its dims
    stand for every size in their ranges. The kernel is a candidate wherever a graph is proved to compute the same.

    outs, ins: numpy arrays for every backend of the host (torch.from_numpy makes a tensor of the same memory; contiguous=True
    spares it strides); for "triton" and "torchcuda" torch's tensors on the GPU. All that a function for "triton" does is begun on
    torch's current stream and is the same whatever the operands hold, so that it may be captured. ins: the operands in the order of
    the op's page; an optional one that a call does not have is left out (`Spec.role_index` says where each stands, for `accepts`).
    sources: files that it is made of besides its module and what that imports, relative to the module's folder. When one of them is
    edited, it is another kernel, which is compared with the oracle before it is used.
    requirements: what the device must have, like {"arch": ["avx512f"]} (device_requirements.py); elsewhere it is no candidate.
    precision: "tf32" where it rounds operands of f32 to that, as tl.dot of Triton does by default: it is compared with what
    that allows (a largest error of 3.5e-3), and is a candidate where the tolerance allows what it makes of a graph.
    assuming: what it takes for granted of values, as "no overflow": it is compared at points where that holds, and is a candidate
    where a caller assumes it, too (`tg.compile(graph, assuming="no overflow")`).
    A cell of a notebook that is run again, or a module that is reloaded, replaces its kernels.
    name: begins with the backend's name and a dot, which goes before the function's unless given.
    Raises KernelError when a source is missing, when another place has a kernel of this name, for a name, a pair in place or a
    function that cannot be meant, and for a requirement that nothing here can check; GraphError for a graph that is no part.
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
        rounded, assumed = check_declaration.precision_of(own, precision), check_declaration.assuming_of(own, assuming)
        if accepts is not None:
            check_declaration.require_function(own, "accepts", accepts, ("spec",))
        check_declaration.require_function(own, "the function", function, ("outs", "ins", "attrs"))
        captured = backend in OURS and getattr(backend_module(backend), "ON_STREAM", False)
        return register(Kernel(
            name=own, backend=backend, op=check_declaration.op_name(op), composite=check_declaration.own_composite(op),
            build=(lambda spec: HostCall(function, on_stream=True)) if captured else (lambda spec: HostCall(function)),
            accepts=accepts or (lambda spec: None), source=source_of(function),
            module=function.__module__ or "", in_place=pairs, contiguous=contiguous, sources=sources,
            requirements=requirements or {}, precision=rounded, assuming=assumed))

    return wrap


host_kernel = worded(host_kernel, "kernel")


def _require_backend(name: Any, backend: Any) -> None:
    """A backend that is known, and runs functions of Python."""
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
