"""registry: which backends and kernels there are in this process, and why a backend is missing.

A backend is a module with `NAME`, `available() -> str | None` (None, or the reason why not), `versions() -> dict` and
`kernels() -> list[Kernel]`. Optional members: `DEVICE`, the kind of device that it computes on (default: the host's);
`view(memory, offset, shape, strides, dtype)`, which returns the backend's array on that memory without a copy (default: numpy's);
`copy_kernel() -> Kernel`, which copies strided windows; `whole_kernels() -> list[Kernel]` (`Kernel.whole`). A backend whose library
uses GPU streams may have `in_order(device)`, a context for each call, and `captured(work)`, which calls work(stream) and returns an
object whose `run()` replays the captured work. Built-in backends are listed in OURS. They may also have `IMPORTS` (`imports_of`),
and `ON_STREAM` where Python functions registered for them may be captured. Any other backend is found by an entry point of its
installed distribution (group GROUP), or calls `register_backend` at import. `register` adds a single kernel, kernel_decorator.py
one from a Python function. docs/backends.md describes how to write a backend."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tensor_graphs.devices.cpu import array_view
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.device_registry import HOST, all_names, of_kind
from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.kernels import identity
from tensor_graphs.kernels.device_requirements import unmet
from tensor_graphs.kernels.kernel import ANY_OP, Call, HostCall, Kernel, KernelError, NativeCall, Spec, source_of
from tensor_graphs.language.anonymous_composite import PartOp
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

if TYPE_CHECKING:
    from tensor_graphs.kernels.declaration_place import Place

log = logging.getLogger(__name__)

OURS: dict[str, str] = {
    "c": "tensor_graphs.kernels.c.backend",
    "cuda": "tensor_graphs.kernels.cuda.backend",
    "gen": "tensor_graphs.codegen.backend",
    "gencuda": "tensor_graphs.codegen.backend_cuda",
    "numpy": "tensor_graphs.kernels.numpy.backend",
    "torch": "tensor_graphs.kernels.torch.backend",
    "torchcuda": "tensor_graphs.kernels.torch.backend_cuda",
    "triton": "tensor_graphs.kernels.triton.backend",
}
DEFAULT_BACKENDS = ("c", "gen", "numpy")
"""backends that a plan uses by default; `torch` must be requested by name, as importing it takes 1.7 s"""

GENERATORS = ("gen", "gencuda")
"""the backends that generate kernels for arbitrary graphs"""


def generators(backends: Sequence[str]) -> tuple[str, ...]:
    """Return those of these backends that generate kernels (GENERATORS) and are available on this machine."""
    return tuple(name for name in GENERATORS if name in backends and why_missing(name) is None)


GROUP = "tensor_graphs.backends"
"""entry-point group in which installed distributions list backends, as name = module"""

_lock = threading.RLock()
_loaded: dict[str, list[Kernel]] = {}
_missing: dict[str, str] = {}
_registered: list[Kernel] = []
_places: dict[str, Place] = {}
"""kernel name -> place of declaration, for each registered kernel"""

made: dict[str, Kernel] = {}
"""name -> kernel that a generator has built for one spec (`Kernel.remade`)"""

_added: dict[str, str] = {}


@lru_cache(maxsize=1)
def _installed() -> Mapping[str, str]:
    """Return backend name -> module of installed distributions. A name that is invalid or taken is left out, with a warning."""
    modules: dict[str, str] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name in OURS or not point.name.isidentifier() or modules.get(point.name, point.value) != point.value:
            log.warning("the backend %r (%s) is left out: its name is taken, or is no name", point.name, point.value)
        else:
            modules[point.name] = point.value
    return modules


class _Backends(Mapping[str, str]):
    """A mapping backend name -> module of built-in, registered and installed backends. Installed ones are searched only for a name
    that is neither built-in nor registered, or for a full listing: reading the metadata of all distributions takes some 10 ms."""

    def __getitem__(self, name: str) -> str:
        with _lock:
            module = OURS.get(name) or _added.get(name)
        return module if module is not None else _installed()[name]

    def __iter__(self) -> Iterator[str]:
        with _lock:
            return iter([*OURS, *_added, *(n for n in _installed() if n not in _added)])

    def __len__(self) -> int:
        return len(list(iter(self)))


BACKENDS: Mapping[str, str] = _Backends()


def register_backend(name: str, module: str | ModuleType) -> None:
    """Register a backend in this process. name: NAME of its module. module: the module, or its dotted name.

    A backend that is not installed calls this function at import (`register_backend(NAME, __name__)`). Its kernels name that module
    too, so that the process that compares them with the oracle can import them. Registering a module again does nothing. Raises
    KernelError when the name is no Python name or belongs to another module."""
    path = module if isinstance(module, str) else module.__name__
    if not isinstance(name, str) or not name.isidentifier():
        raise KernelError(f"a backend cannot be named {name!r}\n  fix: a Python name, like my_backend")
    with _lock:
        taken = OURS.get(name) or _added.get(name)
        if taken is not None and taken != path:
            raise KernelError(f"the backend {name!r} is {taken} already, so it cannot be {path}\n  fix: another NAME")
        _added[name] = path
        reset(name)


def unregister_backend(name: str) -> None:
    """Remove a backend that was added by `register_backend`."""
    with _lock:
        _added.pop(name, None)
        reset(name)


def backend_module(name: str) -> Any:
    """Import and return the backend's module. Raises KernelError for an unknown backend, and for a module that is no backend of
    this name; ImportError when the module cannot be imported."""
    try:
        path = BACKENDS[name]
    except KeyError:
        near = close_to(name, BACKENDS)
        several = tuple(n.strip() for n in name.split(",")) if isinstance(name, str) and "," in name else DEFAULT_BACKENDS
        fix = f"did you mean {near[0]}?" if near and several is DEFAULT_BACKENDS else f"one of those, as backends={several}"
        raise KernelError(f"no backend is named {name!r}; known: {', '.join(sorted(BACKENDS))}\n  fix: {fix}") from None
    module = importlib.import_module(path)
    if name not in OURS:
        _check_protocol(name, module)
    return module


def optional_member(backend: str, name: str) -> Any:
    """Return an optional member of a backend's module; None where the module lacks it or the backend is unknown."""
    return getattr(backend_module(backend), name, None) if backend in BACKENDS else None


View = Callable[[Any, int, Sequence[int], Sequence[int], DType], Any]
"""(memory, offset in bytes, shape, strides in elements, dtype) -> a backend's own array on that memory, without a copy"""


def view_of(name: str) -> View:
    """Return a backend's `view` function, which builds its arrays on device memory; numpy's where the backend has none."""
    return optional_member(name, "view") or array_view


def kind_of(name: str) -> str:
    """Return the kind of device that a backend computes on."""
    return str(optional_member(name, "DEVICE") or HOST.kind)


def device_of(name: str) -> Device:
    """Return the device of this machine on which a backend computes. Raises KernelError where the machine has none of its kind."""
    device = of_kind(kind_of(name))
    if device is None:
        raise KernelError(f"the backend {name!r} computes on a device of the kind {kind_of(name)!r}, and there is none; "
                          f"this machine has {all_names()}")
    return device


def lacking(kernel: Kernel) -> str | None:
    """Return None when the kernel's device meets all its requirements, else a sentence about the first that is not met."""
    return unmet(kernel.requirements, device_of(kernel.backend)) if kernel.requirements else None


def imports_of(name: str) -> tuple[str, ...]:
    """Return the slow-to-import libraries (IMPORTS) of a built-in backend; none for other backends. The process that forks workers
    imports them ahead; it runs no kernel."""
    return tuple(getattr(backend_module(name), "IMPORTS", ())) if name in OURS else ()


def _check_protocol(name: str, module: Any) -> None:
    missing = [f"{f}()" for f in ("available", "versions", "kernels") if not callable(getattr(module, f, None))]
    if missing or getattr(module, "NAME", None) != name:
        what = f"lacks {', '.join(missing)}" if missing else f"has the NAME {getattr(module, 'NAME', None)!r}"
        raise KernelError(f"{module.__name__} is no backend {name!r}: it {what}\n  fix: docs/backends.md says what a backend has")


def load_backend(name: str) -> list[Kernel]:
    """Return the backend's kernels without registered ones; an empty list when it is unavailable (see `why_missing`). An error in a
    backend outside this package makes that backend unavailable and is not raised."""
    with _lock:
        if name not in _loaded:
            try:
                module = backend_module(name)
                reason = module.available()
                if reason is None and of_kind(kind_of(name)) is None:
                    reason = f"there is no device of the kind {kind_of(name)!r} here"
                kernels = [] if reason is not None else _checked(name, module.kernels())
            except Exception as e:                                  # anyone's code
                if name in OURS or name not in BACKENDS:
                    raise
                log.debug("the backend %s cannot be loaded", name, exc_info=True)
                text = str(e) if isinstance(e, TensorGraphsError) else f"{BACKENDS[name]} raised {type(e).__name__}: {e}"
                reason, kernels = text, []
            if reason is not None:
                _missing[name] = reason
                log.info("backend %s is missing: %s", name, reason)
            _loaded[name] = kernels
        return _loaded[name]


def _checked(name: str, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels after checking op and name: names are distinct and begin with the backend's, as `kernel_named` expects."""
    for k in kernels:
        if k.backend != name or not k.name.startswith(f"{name}."):
            raise KernelError(f"the kernel {k.name!r} (backend {k.backend!r}) is not of the backend {name!r}\n  fix: "
                              f"Kernel(backend=NAME, name=f\"{{NAME}}.{k.op}\", …)")
        if k.op not in ATOMIC and k.op not in LIBRARY and k.op != ANY_OP:
            raise KernelError(f"kernel {k.name!r} computes {k.op!r}, which is no op")
    names = [k.name for k in kernels]
    if len(set(names)) != len(names):
        raise KernelError(f"two kernels of the backend {name!r} are called {max(names, key=names.count)!r}\n  fix: other names")
    return list(kernels)


def known() -> set[Kernel]:
    """Return all kernels that this process has loaded, registered or generated so far. Nothing is loaded."""
    with _lock:
        return {*itertools.chain(*_loaded.values()), *_registered, *made.values()}


def why_missing(name: str) -> str | None:
    """Return None when the backend is available, otherwise the reason."""
    load_backend(name)
    return _missing.get(name)


def reset(name: str | None = None) -> None:
    """Forget the loaded kernels and the availability of a backend (all by default); its next use loads it again."""
    with _lock:
        for n in [name] if name else list(_loaded):
            _loaded.pop(n, None)
            _missing.pop(n, None)


def register(kernel: Kernel) -> Kernel:
    """Add a kernel to this process and return it; it is ineligible until compared with the oracle. It replaces a kernel of its name
    from an earlier run of the same place (declaration_place.py: a cell that is run again, a reloaded module). Raises KernelError
    when another place has a kernel of this name, or when one run of a file declares the name twice."""
    from tensor_graphs.kernels.declaration_place import here  # a door: compiling declares no kernel

    return put(kernel, here())


def put(kernel: Kernel, place: Place) -> Kernel:
    """Add a kernel that was declared at `place`, as `register` does for the calling code."""
    if kernel.composite is None:
        from tensor_graphs.kernels.check_declaration import require_op  # the same door

        require_op(kernel.name, kernel.op)
    own = kernel.name.partition(".")[0]
    if own in OURS and any(k.name == kernel.name for k in load_backend(own)):
        raise KernelError(f"{kernel.name!r} is the name of a kernel of ours, so {place} cannot have it\n  fix: another name")
    with _lock:
        at = next((i for i, k in enumerate(_registered) if k.name == kernel.name), None)
        if at is None:
            _registered.append(kernel)
        elif place.follows(_places[kernel.name]):
            _registered[at] = kernel
        else:
            raise KernelError(f"a kernel named {kernel.name!r} is registered already: {_places[kernel.name]}\n"
                              f"  and once more: {place}\n  fix: another name for one of them")
        _places[kernel.name] = place
    return kernel


def know(kernel: Kernel) -> Kernel:
    """Register a kernel that a generator has built for one spec (`Kernel.remade`); return the first one of its name."""
    with _lock:
        return made.setdefault(kernel.name, kernel)


def place_of(kernel: Kernel) -> Place | None:
    """Return the place where a registered kernel was declared; None for a kernel of a backend."""
    with _lock:
        return _places[kernel.name] if any(k is kernel for k in _registered) else None


def unregister(name: str) -> None:
    with _lock:
        _registered[:] = [k for k in _registered if k.name != name]
        _places.pop(name, None)


def parts() -> tuple[PartOp, ...]:
    """Return the parts for which kernels are registered, each once, the last registered first."""
    with _lock:
        return tuple({p.written.digest: p for k in reversed(_registered) if isinstance(p := k.composite, PartOp)}.values())


def kernels_of_graphs(backends: Collection[str]) -> dict[str, list[str]]:
    """Return definition digest of a part -> names of the kernels of these backends that are registered for the part."""
    names: dict[str, list[str]] = {}
    with _lock:
        for k in _registered:
            if isinstance(k.composite, PartOp) and k.backend in backends:
                names.setdefault(k.composite.written.digest, []).append(k.name)
    return names


def is_registered(name: str) -> bool:
    """Return whether a kernel of this name was added by `register`, and does not come with a backend."""
    with _lock:
        return any(k.name == name for k in _registered)


def all_kernels(backends: Sequence[str] = DEFAULT_BACKENDS) -> list[Kernel]:
    """Return all kernels of the available backends among these, with registered and generated ones."""
    kernels = [k for name in backends for k in load_backend(name)]
    with _lock:
        kernels += [k for k in (*_registered, *made.values()) if k.backend in backends and k.backend not in _missing]
    return kernels


def by_op(kernels: Iterable[Kernel]) -> Mapping[str, list[Kernel]]:
    """Return op name -> its kernels; kernels of parts are also listed under the key PARTS."""
    table: dict[str, list[Kernel]] = {}
    for k in kernels:
        table.setdefault(k.op, []).append(k)
        if isinstance(k.composite, PartOp):
            table.setdefault(PARTS, []).append(k)
    return table


PARTS = "(parts)"


def _of_op(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[Kernel]:
    """Return the kernels in `table` (see `by_op`) that compute this spec's op. For a part, kernels of all parts are tried, as parts
    of different names may be equal."""
    kernels = [*table.get(spec.op.name, ()), *table.get(ANY_OP, ())]
    if isinstance(spec.op, DefinedOp):
        kernels = [*kernels, *(k for k in table.get(PARTS, ()) if k not in kernels)]
    return [k for k in kernels if k.computes(spec)]


def matching(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[Kernel]:
    """Return the kernels that compute this spec's op (not a namesake), accept the spec, and whose requirements the device meets."""
    return [k for k in _of_op(spec, table) if lacking(k) is None and refused(k, spec) is None]


def left_out(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[tuple[Kernel, str]]:
    """Return (kernel, unmet requirement) for the kernels of this spec's op whose requirements the device does not meet."""
    return [(k, why) for k in _of_op(spec, table) if (why := lacking(k)) is not None]


def refused(kernel: Kernel, spec: Spec) -> str | None:
    """Return None where a kernel accepts this spec, else the reason. An exception or an odd result of `accepts` counts as a refusal
    for kernels outside this package; an exception of a built-in kernel is a bug and is raised."""
    try:
        why: Any = kernel.accepts(spec)
        if why is None or (isinstance(why, str) and why.strip()):
            return why
        odd = f"accepts returned {why!r}; it returns None where the kernel takes the call, else a sentence that says why not"
    except Exception as e:
        if kernel.ours:
            raise
        odd = f"what it accepts raised {type(e).__name__}: {e}"
        if isinstance(e, KeyError):
            odd += f"; the attributes of {spec.op.name} are {', '.join(spec.attrs) or 'none'}"
    log.warning("kernel %s is left out for %s: %s", kernel.name, spec.op.name, odd)
    return odd


def kernel_named(name: str, backends: Sequence[str] | None = None) -> Kernel:
    """Return the kernel of this name, from these backends (all by default), registered or generated. Raises KernelError if none."""
    own = name.partition(".")[0]
    of_backend = (*load_backend(own), *_whole_kernels(own)) if own in (BACKENDS if backends is None else backends) else ()
    for k in (*of_backend, *_registered, *made.values()):
        if k.name == name:
            return k
    missing = why_missing(own) if own in BACKENDS else None
    if missing is not None:
        raise KernelError(f"no kernel is named {name!r} here: backend {own} is not available: {missing}\n"
                          "  fix: make it available, or a kernel of another backend (tg devices lists them)")
    if own in BACKENDS or not own.isidentifier() or "." not in name:
        fix = "import the module that defines it first"
    else:
        fix = f"the module that its Kernel names calls register_backend({own!r}, __name__)"
    raise KernelError(f"no kernel is named {name!r} here\n  fix: {fix}")


def native_library() -> Any:
    """Return the loaded library of the `c` backend (NativeLibrary in kernels/c/library.py)."""
    return importlib.import_module("tensor_graphs.kernels.c.library").load()


def begin(backends: Sequence[str]) -> None:
    """Start compiling the core C library in a thread, where one of these backends runs native code. Meanwhile read the modules of
    the built-in backends, from which the identities of their kernels are computed."""
    if {"c", "gen"} & set(backends):
        importlib.import_module("tensor_graphs.kernels.c.library").ahead(())
    for name in backends:
        if name in OURS:
            identity.reached(backend_module(name).__name__)


def compile_ahead(backends: Sequence[str], ops: Collection[str]) -> None:
    """Start threads that compile the C libraries that graphs of these ops are likely to use, unless they are compiled."""
    if "c" in backends:
        backend_module("c").compile_ahead(ops)


def make_images(calls: Iterable[Call]) -> None:
    """Compile the missing libraries of these calls: those of C kernels of this package in threads, generated ones now and together.
    Raises ToolchainError."""
    native = [call for call in calls if isinstance(call, NativeCall)]
    if native:
        library = importlib.import_module("tensor_graphs.kernels.c.library")
        library.begin_those_of([call.symbol for call in native if not call.image])
        library.make_now([call.image for call in native if call.image])


def whole_kernels(backends: Sequence[str]) -> list[Kernel]:
    """Return the kernels that run all steps of a graph (`Kernel.whole`), of these backends, if their requirements are met."""
    return [k for name in backends for k in _whole_kernels(name) if lacking(k) is None]


def _whole_kernels(backend: str) -> list[Kernel]:
    make = optional_member(backend, "whole_kernels") if why_missing(backend) is None else None
    return [] if make is None else make()


def copy_kernels(backends: Sequence[str]) -> tuple[Kernel, ...]:
    """Return the kernels for explicit copies, in the order in which they are tried: those of the available backends among these
    (`copy_kernel`), then numpy's, on the host."""
    here = [name for name in backends if name in BACKENDS and why_missing(name) is None]
    return (*(k for name in here if (k := _copy_kernel(name)) is not None), NUMPY_COPY)


@lru_cache(maxsize=32)
def _copy_kernel(name: str) -> Kernel | None:
    make: Callable[[], Kernel] | None = optional_member(name, "copy_kernel")
    return None if make is None else make()


def _numpy_copy(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0]


def _copy_of_any_rank(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> HostCall:
    return HostCall(_numpy_copy)


NUMPY_COPY = Kernel(name="numpy.copy", backend="numpy", op="copy", build=lambda spec: HostCall(_numpy_copy),
                    accepts=lambda spec: None, source=source_of(_numpy_copy), module=__name__, build_copy=_copy_of_any_rank)
