"""arguments: what callers give, and what stands in a file, held to what is needed, before anything is begun on it or filed.

Each check returns the value that counts; the error names the argument or the field, what was given and what fits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, TypeVar

from tensor_graphs.errors import TensorGraphsError

T = TypeVar("T")

KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"), int: ((int,), "a whole number"), float: ((int, float), "a number"), list: ((list, tuple), "a list"),
    dict: ((Mapping,), "an object"),
}
"""of a field of a document: what it may be in Python, and how that is called"""


class ArgumentError(TensorGraphsError, ValueError):
    """An argument that is not of the kind, or not in the range, that a function takes."""


def whole(name: str, value: Any, least: int = 0, most: int | None = None, fix: str = "") -> int:
    """A whole number (an int, or numpy's) in a range. Raises ArgumentError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least or (
            most is not None and value.__index__() > most):
        span = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ArgumentError(f"{name} is {value!r}\n  fix: {fix or f'a whole number {span}'}")
    return int(value.__index__())


def number(name: str, value: Any, fix: str, least: float = 0.0, infinite: bool = False) -> float:
    """A number of `least` or more, not NaN, and infinity only where that is said. fix: what fits, in words. Raises ArgumentError.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) or (not infinite and math.isinf(value)):
        raise ArgumentError(f"{name} is {value!r}\n  fix: {fix}")
    return float(value)


def names(name: str, value: Any, fix: str) -> tuple[str, ...]:
    """One name, or several. Raises ArgumentError."""
    if isinstance(value, str):
        return (value,)
    given = tuple(value) if isinstance(value, Iterable) else (value,)
    if not isinstance(value, Iterable) or not all(isinstance(each, str) for each in given):
        raise ArgumentError(f"{name} is {value!r}\n  fix: {fix}")
    return given


def place(name: str, value: Any, fix: str) -> str | os.PathLike[str]:
    """A path. Raises ArgumentError."""
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{name} is {value!r}\n  fix: {fix}")
    return value


def entry(of: str, document: Any, key: str, kind: type[T]) -> T:
    """What a document (as `json.load` has it) says under a key. of: what the document is, in words. Raises ArgumentError."""
    if key not in fields(of, document):
        raise ArgumentError(f"{of} has no {key!r}")
    return of_kind(f"{key!r} of {of}", document[key], kind)


def fields(of: str, document: Any) -> Mapping[str, Any]:
    """A document that is an object. Raises ArgumentError."""
    return of_kind(of, document, dict)


def of_kind(of: str, value: Any, kind: type[T]) -> T:
    """A value of a document, if it is of that kind. Raises ArgumentError."""
    may_be, called = KINDS[kind]
    if not isinstance(value, may_be) or isinstance(value, bool):
        raise ArgumentError(f"{of} is {repr(value)[:60]}, and {called} is needed")
    return value                                                    # type: ignore[return-value]
