"""own_source: what kernels that users give as text have in common: the text and where it stands, numbers given or computed, what is
refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices import toolchain
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import KernelError, Spec
from tensor_graphs.kernels.place import Place
from tensor_graphs.language.dims import Expr
from tensor_graphs.language.dtypes import DType, parse_dtype


def require_numbers(name: str, what: str, given: Any, called: str) -> tuple[Any, ...]:
    """What a kernel is called with, as a tuple. Raises KernelError for what is no sequence of numbers: of ints, or of floats."""
    kinds = (int, np.integer, Expr) if what == "ints" else (int, float, np.integer, np.floating)
    fix = ("ints=lambda spec: [math.prod(spec.outputs[0].shape)], or a list of ints and expressions of dims" if what == "ints" else
           f"{what}=lambda spec: [spec.attrs[\"eps\"]], or a list of numbers")
    if isinstance(given, str) or not isinstance(given, (Sequence, np.ndarray)):
        wanted = "neither a sequence of numbers nor a function of the spec" if called == what else "no sequence of numbers"
        raise KernelError(f"kernel {name!r}: {called} is {given!r}, which is {wanted}\n  fix: {fix}")
    for i, each in enumerate(given):
        if isinstance(each, bool) or not isinstance(each, kinds):
            raise KernelError(f"kernel {name!r}: number {i} of {called} is {each!r}, a {type(each).__name__}\n  fix: {fix}")
    return tuple(given)


def require_declared(name: str, entry: str, language: str, dtypes: Sequence[DType | str],
                     accepts: Callable[[Spec], str | None] | None) -> None:
    """Raise KernelError for an entry that is no name of a function, and where nothing says which arrays it can read."""
    if not re.fullmatch(r"[A-Za-z_]\w*", entry, re.ASCII):
        raise KernelError(f"kernel {name!r}: {entry!r} is no name of a {language} function\n  fix: entry=\"my_kernel\"")
    if not dtypes and accepts is None:
        raise KernelError(f"kernel {name!r} does not say which arrays it can read\n"
                          "  fix: dtypes=[\"f32\"], or accepts=… for operands of several dtypes")


def require_files(name: str, folder: Path, files: Sequence[Path]) -> None:
    """Raise KernelError for a file that is not there."""
    for file in files:
        if not file.is_file():
            raise KernelError(f"kernel {name!r} is made of {file.name!r}, and there is no such file: {file}\n"
                              f"  fix: a path from the folder of its module ({folder}), or an absolute one")


def refusal(backend: str, dtypes: Sequence[DType | str], accepts: Callable[[Spec], str | None] | None,
            ) -> Callable[[Spec], str | None]:
    """What tells whether a spec is taken: the backend is there, all dtypes are among these, and then `accepts`."""
    known = frozenset(parse_dtype(each) if isinstance(each, str) else each for each in dtypes)

    def refuse(spec: Spec) -> str | None:
        missing = registry.why_missing(backend)
        if missing is not None:
            return missing
        strange = next((t.dtype for t in (*spec.inputs, *spec.outputs) if known and t.dtype not in known), None)
        if strange is not None:
            return f"{strange.name} is not among {', '.join(sorted(each.name for each in known))}"
        return accepts(spec) if accepts is not None else None

    return refuse


def source_of(name: str, source: str | Path, folder: Path, place: Place, suffix: str) -> tuple[toolchain.Source, tuple[Path, ...]]:
    """What is compiled, and the file that it is read from, if any."""
    if isinstance(source, Path) or ("\n" not in source and source.endswith(suffix)):
        file = folder / source
        return file, (file,)
    return toolchain.Text(f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}{suffix}", source, folder, _line_of(source, place)), ()


def _line_of(text: str, place: Place) -> tuple[Path, int] | None:
    """Where a text stands in the file that declares the kernel, if it stands there once and letter by letter."""
    if place.file is None or not text.strip():
        return None
    try:
        before, found, after = Path(place.file).read_text(encoding="utf-8").partition(text)
    except (OSError, UnicodeDecodeError):
        return None
    return (Path(place.file), before.count("\n") + 1) if found and text not in after else None


def text_of(source: toolchain.Source) -> str:
    """The text of a source."""
    return source.text if isinstance(source, toolchain.Text) else source.read_text(encoding="utf-8", errors="replace")


def given_for(given: Any, spec: Spec) -> Any:
    """What was given as it is, or as a function of the spec."""
    return given(spec) if callable(given) else given
