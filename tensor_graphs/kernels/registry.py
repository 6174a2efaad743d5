"""registry: which backends and kernels there are in this process, and why a backend is missing.

A backend is a folder with a module `backend` that has `NAME`, `available() -> str | None` (None, or why not),
`versions() -> dict` and `kernels() -> list[Kernel]`. Third parties add kernels with `register`.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tensor_graphs.kernels.kernel import HostCall, Kernel, KernelError, Spec, source_of
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.node import Op

log = logging.getLogger(__name__)

BACKENDS: dict[str, str] = {
    "c": "tensor_graphs.kernels.c.backend",
    "numpy": "tensor_graphs.kernels.numpy.backend",
    "torch": "tensor_graphs.kernels.torch.backend",
}
DEFAULT_BACKENDS = ("c", "numpy")
"""What a plan may use when nothing is said; `torch` costs 1.7 s of import, so it is asked for by name."""

_lock = threading.RLock()
_loaded: dict[str, list[Kernel]] = {}
_missing: dict[str, str] = {}
_registered: list[Kernel] = []


def backend_module(name: str) -> Any:
    if name not in BACKENDS:
        raise KernelError(f"no backend is named {name!r}; known: {', '.join(sorted(BACKENDS))}")
    return importlib.import_module(BACKENDS[name])


def load_backend(name: str) -> list[Kernel]:
    """The backend's own kernels; an empty list when it is not available here (see `why_missing`)."""
    with _lock:
        if name not in _loaded:
            module = backend_module(name)
            reason = module.available()
            if reason is not None:
                _missing[name] = reason
                log.info("backend %s is missing: %s", name, reason)
            _loaded[name] = [] if reason is not None else module.kernels()
        return _loaded[name]


def why_missing(name: str) -> str | None:
    """None when the backend is available, otherwise the reason."""
    load_backend(name)
    return _missing.get(name)


def reset(name: str | None = None) -> None:
    """Forget what was found out about a backend (all by default); the next use looks again."""
    with _lock:
        for n in [name] if name else list(_loaded):
            _loaded.pop(n, None)
            _missing.pop(n, None)


def register(kernel: Kernel) -> Kernel:
    """Add a kernel to this process. It stays ineligible until it has been compared with the oracle."""
    if kernel.op not in ATOMIC and kernel.op not in LIBRARY:
        raise KernelError(f"kernel {kernel.name!r} computes {kernel.op!r}, which is no op")
    with _lock:
        if any(k.name == kernel.name for k in _registered):
            raise KernelError(f"a kernel named {kernel.name!r} is registered already")
        _registered.append(kernel)
    return kernel


def unregister(name: str) -> None:
    with _lock:
        _registered[:] = [k for k in _registered if k.name != name]


def host_kernel(op: str, *, backend: str = "numpy", name: str | None = None, accepts: Callable[[Spec], str | None] | None = None,
                in_place: tuple[tuple[int, int], ...] = (), contiguous: bool = False) -> Callable[[Callable[..., None]], Kernel]:
    """Decorator: register a Python function `f(outs, ins, attrs)` as a kernel of an op.

        @tg.kernel("softmax")
        def my_softmax(outs, ins, attrs): ...
    """

    def wrap(function: Callable[..., None]) -> Kernel:
        return register(Kernel(
            name=name or f"{backend}.{function.__name__}", backend=backend, op=op, build=lambda spec: HostCall(function),
            accepts=accepts or (lambda spec: None), source=source_of(function), module=function.__module__,
            in_place=in_place, contiguous=contiguous))

    return wrap


def op_named(name: str) -> Op | None:
    return ATOMIC.get(name) or LIBRARY.get(name)


def all_kernels(backends: Sequence[str] = DEFAULT_BACKENDS) -> list[Kernel]:
    """Every kernel of these backends, registered ones included."""
    found: list[Kernel] = []
    for name in backends:
        found += load_backend(name)
    with _lock:
        found += [k for k in _registered if k.backend in backends]
    return found


def by_op(kernels: Iterable[Kernel]) -> Mapping[str, list[Kernel]]:
    table: dict[str, list[Kernel]] = {}
    for k in kernels:
        table.setdefault(k.op, []).append(k)
    return table


def matching(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[Kernel]:
    """The kernels that accept this spec. The op itself must be the library's, not a namesake."""
    if op_named(spec.op.name) is not spec.op:
        return []
    return [k for k in table.get(spec.op.name, ()) if k.accepts(spec) is None]


def kernel_named(name: str, backends: Sequence[str] = tuple(BACKENDS)) -> Kernel:
    for backend in backends:
        for k in load_backend(backend):
            if k.name == name:
                return k
    for k in _registered:
        if k.name == name:
            return k
    raise KernelError(f"no kernel is named {name!r} here")


def native_library() -> Any:
    """The loaded library of the `c` backend: `.address(symbol)`, `.run(steps, bases, values, seconds=None)`, `.set_threads(n)`."""
    return importlib.import_module("tensor_graphs.kernels.c.library").load()


def copy_kernel(backends: Sequence[str]) -> Kernel:
    """The kernel behind explicit copies: the native strided copy where the `c` backend may be used, numpy's otherwise."""
    if "c" in backends and why_missing("c") is None:
        return _native_copy()
    return NUMPY_COPY


@lru_cache(maxsize=1)
def _native_copy() -> Kernel:
    made: Kernel = backend_module("c").copy_kernel()
    return made


def _numpy_copy(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0]


NUMPY_COPY = Kernel(name="numpy.copy", backend="numpy", op="copy", build=lambda spec: HostCall(_numpy_copy),
                    accepts=lambda spec: None, source=source_of(_numpy_copy), module=__name__)
