"""registry: which backends and kernels there are in this process, and why a backend is missing.

A backend is a module that has `NAME`, `available() -> str | None` (None, or why not), `versions() -> dict` and
`kernels() -> list[Kernel]`. It may have `DEVICE`, the kind of device that it computes on (that of the host by default),
`view(memory, offset, shape, strides, dtype)`, which makes its own array on memory of such a device without a copy (numpy's by
default), `copy_kernel() -> Kernel`, which copies strided windows, `whole_kernels() -> list[Kernel]` (`Kernel.whole`), and, where
its library works on streams of a GPU, `in_order(device)`, in which each call is made, and `captured(work)`, which calls
work(stream) and makes of all that it begins there something that has `run()`. Ours are listed in OURS, and may have `IMPORTS`
(`imports_of`), and `ON_STREAM` where functions of Python that are registered for them may be captured. One from elsewhere is found
by its entry point in the group GROUP when its distribution is installed, or it calls `register_backend` when it is imported; single
kernels are added with `register`, functions of Python by kernel_decorator.py. docs/backends.md says how to write one.
"""

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
from tensor_graphs.devices.known import HOST, all_names, of_kind
from tensor_graphs.errors import TensorGraphsError, close_to
from tensor_graphs.kernels import identity
from tensor_graphs.kernels.device_requirements import unmet
from tensor_graphs.kernels.kernel import ANY_OP, Call, HostCall, Kernel, KernelError, NativeCall, Spec, source_of
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.part import PartOp

if TYPE_CHECKING:
    from tensor_graphs.kernels.location import Place

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
"""backends of a plan by default; `torch` is used only by name, as importing it takes 1.7 s"""

GENERATORS = ("gen", "gencuda")
"""the backends that write kernels for whatever they are given"""


def writes_kernels(backends: Sequence[str]) -> bool:
    """Return whether one of these backends writes kernels for whatever it is given, here."""
    return any(name in backends and why_missing(name) is None for name in GENERATORS)


GROUP = "tensor_graphs.backends"
"""the entry points of installed backends: name = module"""

_lock = threading.RLock()
_loaded: dict[str, list[Kernel]] = {}
_missing: dict[str, str] = {}
_registered: list[Kernel] = []
_places: dict[str, Place] = {}
"""of each registered kernel, by name"""

made: dict[str, Kernel] = {}
"""name -> kernels that generators have made for single questions (`Kernel.remade`)"""

_added: dict[str, str] = {}


@lru_cache(maxsize=1)
def _installed() -> Mapping[str, str]:
    """Backend name -> module, of the distributions installed here. A name that is ours is left out, with a warning."""
    modules: dict[str, str] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name in OURS or not point.name.isidentifier() or modules.get(point.name, point.value) != point.value:
            log.warning("the backend %r (%s) is left out: its name is taken, or is no name", point.name, point.value)
        else:
            modules[point.name] = point.value
    return modules


class _Backends(Mapping[str, str]):
    """Backend name -> module: ours, those that registered themselves, those installed. The last are looked for only when a name
    is not among the first two, or when all are asked for: reading the metadata of every distribution takes some 10 ms."""

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
    """Make a backend known in this process, under the name that its module has as NAME. module: itself, or its dotted name.

    A backend that is not installed calls this at import (`register_backend(NAME, __name__)`), and its kernels name that module, so
    that the process that judges them knows them too. To register the same module again does nothing. Raises KernelError when the
    name is no Python name or belongs to another module."""
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
    """Forget a backend that `register_backend` made known."""
    with _lock:
        _added.pop(name, None)
        reset(name)


def backend_module(name: str) -> Any:
    """The backend's module. Raises KernelError for a name that nothing has, and for a module that is no backend of this name;
    ImportError when it cannot be imported."""
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
    """Return the member of a backend's module under a name that not all have; None where it lacks it or there is no such
    backend."""
    return getattr(backend_module(backend), name, None) if backend in BACKENDS else None


View = Callable[[Any, int, Sequence[int], Sequence[int], DType], Any]
"""(memory, offset in bytes, shape, strides in elements, dtype) -> a backend's own array on that memory, without a copy"""


def view_of(name: str) -> View:
    """Return the function by which a backend views memory of its device; without one, and for unknown backends, numpy's."""
    return optional_member(name, "view") or array_view


def kind_of(name: str) -> str:
    """The kind of device that a backend computes on."""
    return str(optional_member(name, "DEVICE") or HOST.kind)


def device_of(name: str) -> Device:
    """The device on which a backend computes here. Raises KernelError where there is none of its kind."""
    device = of_kind(kind_of(name))
    if device is None:
        raise KernelError(f"the backend {name!r} computes on a device of the kind {kind_of(name)!r}, and there is none; "
                          f"this machine has {all_names()}")
    return device


def lacking(kernel: Kernel) -> str | None:
    """None when the device that a kernel runs on has all that it requires, else the first thing that it lacks, for people."""
    return unmet(kernel.requirements, device_of(kernel.backend)) if kernel.requirements else None


def imports_of(name: str) -> tuple[str, ...]:
    """The libraries of a backend that take long to import (IMPORTS in its module). Of ours only: the process that forks workers
    imports them, and it runs no kernel."""
    return tuple(getattr(backend_module(name), "IMPORTS", ())) if name in OURS else ()


def _check_protocol(name: str, module: Any) -> None:
    missing = [f"{f}()" for f in ("available", "versions", "kernels") if not callable(getattr(module, f, None))]
    if missing or getattr(module, "NAME", None) != name:
        what = f"lacks {', '.join(missing)}" if missing else f"has the NAME {getattr(module, 'NAME', None)!r}"
        raise KernelError(f"{module.__name__} is no backend {name!r}: it {what}\n  fix: docs/backends.md says what a backend has")


def load_backend(name: str) -> list[Kernel]:
    """The backend's own kernels; an empty list when it is not available here (see `why_missing`). Any error in a backend from
    elsewhere is a reason for its absence, so that the others still work."""
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
    """The kernels of a backend, which bear its name: measurements are filed under it, and `kernel_named` looks there."""
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
    """All kernels that this process has by now; nothing is loaded for it."""
    with _lock:
        return {*itertools.chain(*_loaded.values()), *_registered, *made.values()}


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
    """Add a kernel to this process; it is ineligible until compared with the oracle. It replaces one declared at the same place
    before (location.py: a cell that is run again, a module that is reloaded). Raises KernelError when another place has a kernel of
    this name, or the same one twice in one run."""
    from tensor_graphs.kernels.location import here  # a door: compiling declares no kernel

    return put(kernel, here())


def put(kernel: Kernel, place: Place) -> Kernel:
    """`register` for a kernel whose place is known."""
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
    """Register a kernel that its generator has made for one question, or made again; return the first of its name."""
    with _lock:
        return made.setdefault(kernel.name, kernel)


def place_of(kernel: Kernel) -> Place | None:
    """Return the place where a kernel was registered; None for one of a backend."""
    with _lock:
        return _places[kernel.name] if any(k is kernel for k in _registered) else None


def unregister(name: str) -> None:
    with _lock:
        _registered[:] = [k for k in _registered if k.name != name]
        _places.pop(name, None)


def parts() -> tuple[PartOp, ...]:
    """The parts for which kernels are registered, each once."""
    with _lock:
        return tuple({p.written.digest: p for k in reversed(_registered) if isinstance(p := k.composite, PartOp)}.values())


def kernels_of_graphs(backends: Collection[str]) -> dict[str, list[str]]:
    """By the digest of a part's definition, the kernels of these backends that are registered for it."""
    names: dict[str, list[str]] = {}
    with _lock:
        for k in _registered:
            if isinstance(k.composite, PartOp) and k.backend in backends:
                names.setdefault(k.composite.written.digest, []).append(k.name)
    return names


def is_registered(name: str) -> bool:
    """Return whether a kernel of this name was registered here, and is none of a backend's own."""
    with _lock:
        return any(k.name == name for k in _registered)


def all_kernels(backends: Sequence[str] = DEFAULT_BACKENDS) -> list[Kernel]:
    """Every kernel of these backends, registered ones included; of a backend that is missing, none."""
    kernels = [k for name in backends for k in load_backend(name)]
    with _lock:
        kernels += [k for k in (*_registered, *made.values()) if k.backend in backends and k.backend not in _missing]
    return kernels


def by_op(kernels: Iterable[Kernel]) -> Mapping[str, list[Kernel]]:
    """Kernels by the op that they compute; those of parts, whatever their names, under PARTS too."""
    table: dict[str, list[Kernel]] = {}
    for k in kernels:
        table.setdefault(k.op, []).append(k)
        if isinstance(k.composite, PartOp):
            table.setdefault(PARTS, []).append(k)
    return table


PARTS = "(parts)"


def _of_op(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[Kernel]:
    """The kernels that may compute this spec's op, by its name; of a part, those of all parts, which may be the same."""
    kernels = [*table.get(spec.op.name, ()), *table.get(ANY_OP, ())]
    if isinstance(spec.op, DefinedOp):
        kernels = [*kernels, *(k for k in table.get(PARTS, ()) if k not in kernels)]
    return [k for k in kernels if k.computes(spec)]


def matching(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[Kernel]:
    """The kernels that accept this spec, and whose requirements the device meets. The op itself must be the one that they compute,
    not a namesake."""
    return [k for k in _of_op(spec, table) if lacking(k) is None and refused(k, spec) is None]


def left_out(spec: Spec, table: Mapping[str, list[Kernel]]) -> list[tuple[Kernel, str]]:
    """The kernels of this op whose requirements the device does not meet, and what is missing."""
    return [(k, why) for k in _of_op(spec, table) if (why := lacking(k)) is not None]


def refused(kernel: Kernel, spec: Spec) -> str | None:
    """None where a kernel says that it runs this spec, else why not. One from outside this package that raises, or answers
    something else, does not; ours would be a bug."""
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
    """The kernel of this name, of these backends (all by default) or registered. Raises KernelError when there is none."""
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
    """The loaded library of the `c` backend: `.address(symbol)`, `.run(steps, bases, values, seconds=None)`, `.set_threads(n)`."""
    return importlib.import_module("tensor_graphs.kernels.c.library").load()


def begin(backends: Sequence[str]) -> None:
    """Have a thread compile what all native code is linked against, where one of these backends runs such and it is not there yet;
    meanwhile what the modules of ours say is read, which their kernels' identities are made of."""
    if {"c", "gen"} & set(backends):
        importlib.import_module("tensor_graphs.kernels.c.library").ahead(())
    for name in backends:
        if name in OURS:
            identity.reached(backend_module(name).__name__)


def compile_ahead(backends: Sequence[str], ops: Collection[str]) -> None:
    """Have threads compile what graphs of these ops are likely to run of native code, where it is not there yet."""
    if "c" in backends:
        backend_module("c").compile_ahead(ops)


def make_images(calls: Iterable[Call]) -> None:
    """Make the libraries of these calls that are not there yet, together; those of our own kernels by threads, for the caller that
    binds. Raises ToolchainError."""
    native = [call for call in calls if isinstance(call, NativeCall)]
    if native:
        library = importlib.import_module("tensor_graphs.kernels.c.library")
        library.begin_those_of([call.symbol for call in native if not call.image])
        library.make_now([call.image for call in native if call.image])


def whole_kernels(backends: Sequence[str]) -> list[Kernel]:
    """The kernels of these backends that run all steps of some graphs at once (`whole_kernels`), and that are possible here."""
    return [k for name in backends for k in _whole_kernels(name) if lacking(k) is None]


def _whole_kernels(backend: str) -> list[Kernel]:
    make = optional_member(backend, "whole_kernels") if why_missing(backend) is None else None
    return [] if make is None else make()


def copy_kernels(backends: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels behind explicit copies, in the order in which they are tried: those that these backends have (`copy_kernel`),
    then numpy's, on the host."""
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
