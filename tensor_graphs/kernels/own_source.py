"""own_source: what kernels that users give as text have in common: the text and where it stands, numbers given or computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices import toolchain
from tensor_graphs.kernels.kernel import KernelError, Spec
from tensor_graphs.kernels.place import Place
from tensor_graphs.language.dims import Expr


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
