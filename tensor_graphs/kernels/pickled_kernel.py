"""pickled_kernel: pickling of a kernel that was declared in an interactive session, for another process.

Its functions are pickled by value (code objects, and the values of the global names that they use), members of importable modules
by name. Both processes run the same interpreter, and the receiver trusts the sender (pickle)."""

from __future__ import annotations

import builtins
import dataclasses
import importlib
import io
import marshal
import pickle
import sys
from collections.abc import Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from tensor_graphs.kernels.declaration_place import Place, is_importable
from tensor_graphs.kernels.identity import globals_of
from tensor_graphs.kernels.kernel import Kernel, ParcelError
from tensor_graphs.language.atomic import ATOMIC, AtomicOp
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.dtypes import DType, parse_dtype

SESSION = "__tensor_graphs_session__"
"""`__module__` of a session's functions in the process that receives them"""

LARGEST = 128 << 20
"""most bytes of a parcel (a pickled kernel)"""

_spaces: dict[str, dict[str, Any]] = {}
"""module name of a session -> globals of its functions in the receiving process"""


def pack(kernel: Kernel) -> bytes:
    """Return a registered kernel as a parcel: its pickled bytes. Raises ParcelError where it cannot be pickled."""
    if kernel.read_code().digest != kernel.code.digest:             # it runs with what the names hold by now
        raise ParcelError(f"a value that {kernel.name} uses was changed after it was declared\n  fix: run its cell again")
    fields = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel)}
    written = io.BytesIO()
    packer = _Packer(written)
    try:
        packer.dump({**fields, "identity": kernel.identity})
    except ParcelError:
        raise
    except RecursionError:
        raise ParcelError(f"what {kernel.name} uses is nested too deeply to be given to another process\n"
                          "  fix: put the kernel into a file") from None
    except Exception as e:                                          # whatever an object of the user's raises when it is pickled
        raise ParcelError(f"{kernel.name} uses {packer.name or 'a value'} ({e}), which no other process can be given\n"
                          "  fix: put the kernel into a file, which is imported there") from e
    if written.tell() > LARGEST:
        raise ParcelError(f"the global names that {kernel.name} uses hold {written.tell() >> 20} MB, more than the "
                          f"{LARGEST >> 20} MB that are given to another process\n  fix: put the kernel into a file")
    return written.getvalue()


def unpack(parcel: bytes) -> tuple[Kernel, Place]:
    """Return the kernel of a parcel, with its identity from the declaring process, and a place for it."""
    fields: dict[str, Any] = pickle.loads(parcel)
    kernel = object.__new__(Kernel)
    vars(kernel).update(fields)
    return kernel, Place(kernel.module, None, 0, "a parcel", None, {}, None)


class _Packer(pickle.Pickler):
    """A pickler that writes functions by value. name: global name of the value that is being written, for messages."""

    name = ""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return NotImplemented if _is_importable_by_name(value) else self._function(value)
        if isinstance(value, ModuleType):
            if not is_importable(value):
                raise ParcelError(f"the module {value.__name__!r} cannot be imported by another process\n"
                                  "  fix: put it into a file")
            return importlib.import_module, (value.__name__,)
        if isinstance(value, CompositeOp) and LIBRARY.get(value.name) is not value:
            options = {"name": value.name, "direct": value.direct, "gradient": value.gradient_rule, "opaque": value.opaque,
                       "conditions": value.conditions}
            return _composite, (value.build, options)
        if isinstance(value, (AtomicOp, CompositeOp)):
            return _op, (value.name,)
        if isinstance(value, DType):
            return parse_dtype, (value.name,)
        if isinstance(value, type) and not _is_importable_by_name(value):
            raise ParcelError(f"the class {value.__qualname__!r} was defined in a session, where no other process finds it\n"
                              "  fix: put it into a file, or do without it in the kernel")
        return NotImplemented

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, _Named):
            self.name = value.name
        return None

    def _function(self, function: FunctionType) -> Any:
        code, space = function.__code__, function.__globals__
        home = sys.modules.get(function.__module__ or "")
        whole = home is not None and vars(home) is space and is_importable(home)
        used = () if whole else tuple(_Named(name, space[name]) for name in sorted(globals_of(code)) if name in space)
        cells = tuple(tuple(_Named(name, value) for value in _content(cell))
                      for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True))
        state = used, cells, function.__defaults__, function.__kwdefaults__
        arguments = function.__module__ or "", whole, marshal.dumps(code), function.__qualname__
        return _function, arguments, state, None, None, _fill


class _Named:
    """A value with the global or closure name under which a function uses it."""

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __reduce__(self) -> Any:
        return _Named, (self.name, self.value)


def _content(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:                                              # not assigned yet
        return ()


def _is_importable_by_name(value: Any) -> bool:
    """Return whether a function or class is found by importing its module and looking up its qualified name."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or not is_importable(module):
        return False
    member: Any = module
    for part in value.__qualname__.split("."):
        member = getattr(member, part, None)
    return member is value


# ---- in the process that receives it ---------------------------------------------------------------------------------


def _op(name: str) -> Any:
    return ATOMIC.get(name) or LIBRARY[name]


def _composite(build: Any, options: Mapping[str, Any]) -> CompositeOp:
    return CompositeOp(build, **options)


def _function(module: str, whole: bool, code: bytes, qualname: str) -> FunctionType:
    loaded: CodeType = marshal.loads(code)
    if whole:
        space = vars(importlib.import_module(module))
    else:
        space = _spaces.setdefault(module, {"__name__": SESSION, "__builtins__": builtins})
    function = FunctionType(loaded, space, closure=tuple(CellType() for _ in loaded.co_freevars))
    function.__qualname__ = qualname
    function.__module__ = module if whole else SESSION
    return function


def _fill(function: FunctionType, state: Any) -> None:
    used, cells, defaults, keywords = state
    function.__globals__.update((named.name, named.value) for named in used)
    for cell, content in zip(function.__closure__ or (), cells, strict=True):
        for named in content:
            cell.cell_contents = named.value
    function.__defaults__, function.__kwdefaults__ = defaults, keywords
