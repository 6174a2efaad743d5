"""user_source: what kernels that users give as text have in common: the text and where it stands, numbers given or computed, what
is refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices import c_code
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.declaration import dtypes_of, require_function, require_text
from tensor_graphs.kernels.kernel import Kernel, KernelError, Spec
from tensor_graphs.kernels.location import Place
from tensor_graphs.language.dims import Expr, shown_int
from tensor_graphs.language.dtypes import DType

log = logging.getLogger(__name__)

LARGEST_INT = 2**63 - 1
"""a kernel gets its whole numbers as 64 bits each"""


def require_numbers(name: str, what: str, given: Any, called: str) -> tuple[Any, ...]:
    """What a kernel is called with, as a tuple. Raises KernelError for what is no sequence of numbers: of ints (bytes of
    scratch, too), or of floats."""
    whole = what in ("ints", "scratch")
    kinds = (int, np.integer, Expr) if whole else (int, float, np.integer, np.floating)
    fix = (f"{what}=lambda spec: [math.prod(spec.outputs[0].shape)], or a list of ints and expressions of dims" if whole else
           f"{what}=lambda spec: [spec.attrs[\"eps\"]], or a list of numbers")
    if isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, np.ndarray)):
        wanted = "neither a sequence of numbers nor a function of the spec" if called == what else "no sequence of numbers"
        raise KernelError(f"kernel {name!r}: {called} is {given!r}, which is {wanted}\n  fix: {fix}")
    for i, each in enumerate(given):
        if isinstance(each, bool) or not isinstance(each, kinds):
            raise KernelError(f"kernel {name!r}: number {i} of {called} is {each!r}, a {type(each).__name__}\n  fix: {fix}")
        if whole and isinstance(each, (int, np.integer)) and not -LARGEST_INT - 1 <= each <= LARGEST_INT:
            raise KernelError(f"kernel {name!r}: number {i} of {called} is {shown_int(int(each))}, which does not fit 64 bits")
    return tuple(given)


def require_dims(name: str, what: str, numbers: Sequence[Any], spec: Spec) -> None:
    """Raise KernelError for a dim in numbers that the call has not: only its own have sizes."""
    used = {n for each in numbers if isinstance(each, Expr) for n in each.symbols}
    own = {n for t in (*spec.inputs, *spec.outputs) for size in t.shape if isinstance(size, Expr) for n in size.symbols}
    strange = sorted(used - own - set(spec.single_node_graph().dims)) if used - own else []
    if strange:
        raise KernelError(f"kernel {name!r}: {what} has the dim {strange[0]}, and no operand of the call has it\n"
                          f"  fix: {what}=lambda spec: …, of spec.inputs[0].shape and its like")


def require_given(name: str, what: str, given: Any, kind: str) -> tuple[Any, ...] | None:
    """What is given at the declaration: numbers, which are returned; or a function of the spec: None. Raises KernelError."""
    if callable(given):
        require_function(name, what, given, ("spec",))
        return None
    return require_numbers(name, kind, given, what)


def require_count(name: str, what: str, given: Any, called: str) -> Any:
    """One whole number that is not negative, or an expression of dims. Raises KernelError."""
    if not isinstance(given, (int, np.integer, Expr)) or isinstance(given, bool) or (not isinstance(given, Expr) and given < 0):
        raise KernelError(f"kernel {name!r}: {called} is {given!r}\n"
                          f"  fix: {what}=lambda spec: …, a whole number or an expression of dims, or such a number")
    return given


def named_after(name: str | None, backend: str, entry: Any, language: str) -> str:
    """The name of a kernel, its entry's where none is given. Raises KernelError for an entry that is no name of a function."""
    own = name if name is not None else f"{backend}.{entry if isinstance(entry, str) else '…'}"
    require_text(own, "entry", entry, "entry=\"my_kernel\", the name of the function")
    if not re.fullmatch(r"[A-Za-z_]\w*", entry, re.ASCII):
        raise KernelError(f"kernel {own!r}: {entry!r} is no name of a {language} function\n  fix: entry=\"my_kernel\"")
    return own


def require_declared(name: str, dtypes: Any, accepts: Any) -> frozenset[DType]:
    """The dtypes that are declared. Raises KernelError where nothing says which arrays the kernel can read."""
    if accepts is not None:
        require_function(name, "accepts", accepts, ("spec",))
    if (dtypes is None or dtypes == () or dtypes == []) and accepts is None:
        raise KernelError(f"kernel {name!r} does not say which arrays it can read\n"
                          "  fix: dtypes=[\"f32\"], or accepts=… for operands of several dtypes")
    return dtypes_of(name, dtypes if dtypes is not None else ())


def files_of(name: str, folder: Path, sources: Any) -> tuple[Path, ...]:
    """Further files that a kernel is made of. Raises KernelError for what names none."""
    each = [sources] if isinstance(sources, (str, Path)) else sources
    if not isinstance(each, (list, tuple)) or not all(isinstance(one, (str, Path)) for one in each):
        raise KernelError(f"kernel {name!r}: sources is {sources!r}\n  fix: sources=[\"table.npy\"], names of files")
    return tuple(folder / one for one in each)


def require_files(name: str, folder: Path, files: Sequence[Path]) -> None:
    """Raise KernelError for a file that is not there."""
    for file in files:
        if not file.is_file():
            raise KernelError(f"kernel {name!r} is made of {file.name!r}, and there is no such file: {file}\n"
                              f"  fix: a path from the folder of its module ({folder}), or an absolute one")


def refusal(backend: str, known: frozenset[DType], accepts: Callable[[Spec], str | None] | None) -> Callable[[Spec], str | None]:
    """What tells whether a spec is taken: the backend is there, all dtypes are among the known ones, if any, and then `accepts`."""
    def refuse(spec: Spec) -> str | None:
        missing = registry.why_missing(backend)
        if missing is not None:
            return missing
        strange = next((t.dtype for t in (*spec.inputs, *spec.outputs) if known and t.dtype not in known), None)
        if strange is not None:
            return f"{strange.name} is not among {', '.join(sorted(each.name for each in known))}"
        return accepts(spec) if accepts is not None else None

    return refuse


def source_of(name: str, source: str | Path, folder: Path, place: Place, suffix: str) -> tuple[c_code.Source, tuple[Path, ...]]:
    """What is compiled, and the file that it is read from, if any. Raises KernelError for what is no text and no file."""
    if not isinstance(source, (str, Path)):
        decode = ".decode(), or" if isinstance(source, bytes) else "…,"
        raise KernelError(f"kernel {name!r}: source is of type {type(source).__name__}, and neither a text nor a file\n"
                          f"  fix: source={'the bytes' if isinstance(source, bytes) else ''}{decode} Path(\"my{suffix}\")")
    if isinstance(source, Path) or ("\n" not in source and source.endswith(suffix)):
        file = folder / source
        return file, (file,)
    return c_code.Text(f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}{suffix}", source, folder, _line_of(source, place)), ()


def _line_of(text: str, place: Place) -> tuple[Path, int] | None:
    """Where a text stands in the file that declares the kernel, if it stands there once and letter by letter."""
    if place.file is None or not text.strip():
        return None
    try:
        before, found, after = Path(place.file).read_text(encoding="utf-8").partition(text)
    except (OSError, UnicodeDecodeError):
        return None
    return (Path(place.file), before.count("\n") + 1) if found and text not in after else None


def text_of(source: c_code.Source) -> str:
    """The text of a source."""
    return source.text if isinstance(source, c_code.Text) else source.read_text(encoding="utf-8", errors="replace")


def given_for(given: Any, spec: Spec) -> Any:
    """What was given as it is, or as a function of the spec."""
    return given(spec) if callable(given) else given


def registered(kernel: Kernel, place: Place, why: str | None) -> Kernel:
    """The kernel, registered. Why it is no candidate is logged after that: where it cannot be registered, that is all there is to
    say."""
    made = registry.put(kernel, place)
    if why is not None:
        log.warning("kernel %s is no candidate: %s", kernel.name, why)
    return made
