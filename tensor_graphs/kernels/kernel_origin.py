"""kernel_origin: how another process gets a kernel: a module that it imports, a file that it runs, or the pickled kernel itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import NamedTuple

from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import Kernel, ParcelError

MAIN = "__main__"
ALIAS = "__tensor_graphs_main__"
"""module name of the user's main script in a worker, so that code under `if __name__ == "__main__"` does not run there"""


class Origin(NamedTuple):
    """The origin of a kernel, for a worker. module, file: name and path of the module that declares it. package: base of the file's
    relative imports. parcel: the pickled kernel, where no file declares it (pickled_kernel.py). made: (function of the module,
    source text that it is called with), for a kernel that a generator has built (`Kernel.remade`)."""

    module: str
    file: str | None = None
    package: str | None = None
    parcel: bytes | None = None
    made: tuple[str, str] | None = None


def origin_of(kernel: Kernel) -> Origin:
    """Return the origin from which a worker gets this kernel. Raises ParcelError for a kernel that was declared in an interactive
    session and cannot be pickled."""
    if kernel.remade:
        return Origin(kernel.module, made=(kernel.remade, kernel.source))
    place = registry.place_of(kernel)
    if place is not None and place.file is None and not kernel.ours:
        from tensor_graphs.kernels import pickled_kernel

        return Origin(kernel.module, parcel=pickled_kernel.pack(kernel))
    module = sys.modules.get(kernel.module)
    file = getattr(module, "__file__", None)
    if type(file) is not str:
        file = None if place is None else place.file
    package = getattr(module, "__package__", None) if kernel.module == MAIN else None
    return Origin(kernel.module, file, package if type(package) is str else None)


def out_of_reach(kernel: Kernel) -> str | None:
    """Return None, or the reason why no other process can import this kernel, or why no database row can name it. A kernel with
    such a reason is neither compared nor measured."""
    texts = (kernel.name, kernel.backend, kernel.op, kernel.module, kernel.source, kernel.toolchain)
    if not all(type(text) is str and _encodes(text) for text in texts) or type(kernel.in_place) is not tuple:
        return "its name, backend, op, module, source and toolchain have to be texts, in_place a tuple"
    changed = kernel.code.changed()
    if changed is not None:
        return f"{changed} was changed after this process imported it; start this process again, so that it runs what is compared"
    try:
        origin = origin_of(kernel)
    except ParcelError as e:
        return f"it was declared in a session, and {'; '.join(part.strip() for part in str(e).splitlines())}"
    if origin.module == MAIN and origin.file is None and origin.parcel is None:
        return "it was defined in an interactive session and not registered there, so no other process finds it; put it into a file"
    return None


def _encodes(text: str) -> bool:
    try:
        return "\0" not in text and text.encode() is not None
    except UnicodeEncodeError:                                      # a lone surrogate
        return False


def load(origin: Origin) -> None:
    """Register the kernel in this process, from its origin. Raises ImportError, and whatever the kernel's module raises."""
    if origin.parcel is not None:
        from tensor_graphs.kernels import pickled_kernel

        registry.put(*pickled_kernel.unpack(origin.parcel))
        return
    if origin.made is not None:
        function, text = origin.made
        registry.know(getattr(importlib.import_module(origin.module), function)(text))
        return
    name, file, package, *_ = origin
    alias = ALIAS if name == MAIN else name
    if alias in sys.modules:
        return
    if name != MAIN:
        try:
            importlib.import_module(name)
            return
        except ImportError:
            if file is None:
                raise
    if file is None:
        raise ImportError("the kernel was defined in a session that is not at hand here; put it into a file")
    if package:                                                     # of `python -m package.module`
        importlib.import_module(package)
    spec = importlib.util.spec_from_file_location(alias, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if package:
        module.__package__ = package
        module.__spec__ = importlib.util.spec_from_file_location(f"{package}.{alias}", file)     # whose parent is the package
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
