"""user_source: checks for user-registered kernels in C or CUDA: the source and its files, numeric arguments, refusals."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices import c_code
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.check_declaration import dtypes_of, require_function
from tensor_graphs.kernels.declaration_place import Place
from tensor_graphs.kernels.kernel import Kernel, KernelError, Spec
from tensor_graphs.language.dims import Expr, shown_int
from tensor_graphs.language.dtypes import DType

log = logging.getLogger(__name__)

LARGEST_INT = 2**63 - 1
"""largest integer that can be passed to a kernel: each is a signed 64-bit number"""


def require_numbers(name: str, what: str, value: Any, called: str) -> tuple[Any, ...]:
    """Return `value`, the numbers of the option `what`, as a tuple. "ints" and "scratch" take whole numbers and dims, other
    options any numbers. called: name of `value` in messages. Raises KernelError for a wrong type or range."""
    whole = what in ("ints", "scratch")
    kinds = (int, np.integer, Expr) if whole else (int, float, np.integer, np.floating)
    fix = (f"{what}=lambda spec: [math.prod(spec.outputs[0].shape)], or a list of ints and expressions of dims" if whole else
           f"{what}=lambda spec: [spec.attrs[\"eps\"]], or a list of numbers")
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        wanted = "neither a sequence of numbers nor a function of the spec" if called == what else "no sequence of numbers"
        raise KernelError(f"kernel {name!r}: {called} is {value!r}, which is {wanted}\n  fix: {fix}")
    for i, number in enumerate(value):
        if isinstance(number, bool) or not isinstance(number, kinds):
            raise KernelError(f"kernel {name!r}: number {i} of {called} is {number!r}, a {type(number).__name__}\n  fix: {fix}")
        if whole and isinstance(number, (int, np.integer)) and not -LARGEST_INT - 1 <= number <= LARGEST_INT:
            raise KernelError(f"kernel {name!r}: number {i} of {called} is {shown_int(int(number))}, which does not fit 64 bits")
    return tuple(value)


def require_dims(name: str, what: str, numbers: Sequence[Any], spec: Spec) -> None:
    """Raise KernelError where the numbers use a dim that occurs in no type of the spec: its size would be unknown at the call."""
    used = {n for number in numbers if isinstance(number, Expr) for n in number.symbols}
    own = {n for t in (*spec.inputs, *spec.outputs) for size in t.shape if isinstance(size, Expr) for n in size.symbols}
    strange = sorted(used - own - set(spec.single_node_graph().dims)) if used - own else []
    if strange:
        raise KernelError(f"kernel {name!r}: {what} has the dim {strange[0]}, and no operand of the call has it\n"
                          f"  fix: {what}=lambda spec: …, of spec.inputs[0].shape and its like")


def require_given(name: str, what: str, value: Any, kind: str) -> tuple[Any, ...] | None:
    """Check an option of a declaration. Return its numbers as a tuple; None for a function of the spec. Raises KernelError."""
    if callable(value):
        require_function(name, what, value, ("spec",))
        return None
    return require_numbers(name, kind, value, what)


def require_count(name: str, what: str, value: Any, called: str) -> Any:
    """Return `value`, a non-negative whole number or an expression of dims. Raises KernelError for anything else."""
    if not isinstance(value, (int, np.integer, Expr)) or isinstance(value, bool) or (not isinstance(value, Expr) and value < 0):
        raise KernelError(f"kernel {name!r}: {called} is {value!r}\n"
                          f"  fix: {what}=lambda spec: …, a whole number or an expression of dims, or such a number")
    return value


def named_after(name: str | None, backend: str, entry: Any, language: str) -> str:
    """Return the kernel's name; by default `backend.entry`. Raises KernelError for an entry that is no valid function name."""
    own = name if name is not None else f"{backend}.{entry if isinstance(entry, str) else '…'}"
    if not isinstance(entry, str):
        raise KernelError(f"kernel {own!r}: entry is {entry!r}, of type {type(entry).__name__}\n"
                          "  fix: entry=\"my_kernel\", the name of the function")
    if not re.fullmatch(r"[A-Za-z_]\w*", entry, re.ASCII):
        raise KernelError(f"kernel {own!r}: {entry!r} is no name of a {language} function\n  fix: entry=\"my_kernel\"")
    return own


def require_declared(name: str, dtypes: Any, accepts: Any) -> frozenset[DType]:
    """Return the declared dtypes. Raises KernelError where neither `dtypes` nor `accepts` is given."""
    if accepts is not None:
        require_function(name, "accepts", accepts, ("spec",))
    if (dtypes is None or dtypes == () or dtypes == []) and accepts is None:
        raise KernelError(f"kernel {name!r} does not say which arrays it can read\n"
                          "  fix: dtypes=[\"f32\"], or accepts=… for operands of several dtypes")
    return dtypes_of(name, dtypes if dtypes is not None else ())


def files_of(name: str, folder: Path, sources: Any) -> tuple[Path, ...]:
    """Return the paths of a kernel's further files. Raises KernelError where `sources` is no file name and no list of them."""
    names = [sources] if isinstance(sources, (str, Path)) else sources
    if not isinstance(names, (list, tuple)) or not all(isinstance(one, (str, Path)) for one in names):
        raise KernelError(f"kernel {name!r}: sources is {sources!r}\n  fix: sources=[\"table.npy\"], names of files")
    return tuple(folder / one for one in names)


def require_files(name: str, folder: Path, files: Sequence[Path]) -> None:
    """Raise KernelError for the first file that does not exist."""
    for file in files:
        if not file.is_file():
            raise KernelError(f"kernel {name!r} is made of {file.name!r}, and there is no such file: {file}\n"
                              f"  fix: a path from the folder of its module ({folder}), or an absolute one")


def refusal(backend: str, accepted: frozenset[DType], accepts: Callable[[Spec], str | None] | None) -> Callable[[Spec], str | None]:
    """Return the `accepts` function of a kernel. It gives a reason where the backend is missing, a dtype is not in a non-empty
    `accepted`, or the user's `accepts` gives one, else None."""
    def refuse(spec: Spec) -> str | None:
        missing = registry.why_missing(backend)
        if missing is not None:
            return missing
        strange = next((t.dtype for t in (*spec.inputs, *spec.outputs) if accepted and t.dtype not in accepted), None)
        if strange is not None:
            return f"{strange.name} is not among {', '.join(sorted(dtype.name for dtype in accepted))}"
        return accepts(spec) if accepts is not None else None

    return refuse


def source_of(name: str, source: str | Path, folder: Path, place: Place, suffix: str) -> tuple[c_code.Source, tuple[Path, ...]]:
    """Return the source to compile, and the files that it is read from (one or none). A text without line breaks that ends in
    `suffix` is a file name. Raises KernelError for a source that is neither text nor Path."""
    if not isinstance(source, (str, Path)):
        decode = ".decode(), or" if isinstance(source, bytes) else "…,"
        raise KernelError(f"kernel {name!r}: source is of type {type(source).__name__}, and neither a text nor a file\n"
                          f"  fix: source={'the bytes' if isinstance(source, bytes) else ''}{decode} Path(\"my{suffix}\")")
    if isinstance(source, Path) or ("\n" not in source and source.endswith(suffix)):
        file = folder / source
        return file, (file,)
    return c_code.Text(f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}{suffix}", source, folder, _line_of(source, place)), ()


def _line_of(text: str, place: Place) -> tuple[Path, int] | None:
    """Return the declaring file and the line where the source text begins in it, if it occurs there exactly once, else None."""
    if place.file is None or not text.strip():
        return None
    try:
        before, middle, after = Path(place.file).read_text(encoding="utf-8").partition(text)
    except (OSError, UnicodeDecodeError):
        return None
    return (Path(place.file), before.count("\n") + 1) if middle and text not in after else None


def text_of(source: c_code.Source) -> str:
    """Return the text of a source; a file is read."""
    return source.text if isinstance(source, c_code.Text) else source.read_text(encoding="utf-8", errors="replace")


def of_spec(what: str, option: Any, spec: Spec) -> tuple[Any, str]:
    """Return (value, name of the value in messages): the option itself, or option(spec) where the option is a function."""
    return (option(spec), f"what {what} returns") if callable(option) else (option, what)


def registered(kernel: Kernel, place: Place, why: str | None) -> Kernel:
    """Register the kernel and return it. why: reason why it is no candidate, or None. The reason is logged after the registration,
    so that a failed registration raises only its own error."""
    result = registry.put(kernel, place)
    if why is not None:
        log.warning("kernel %s is no candidate: %s", kernel.name, why)
    return result
