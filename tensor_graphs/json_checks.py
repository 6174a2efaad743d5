"""json_checks: checks of the content of a file, as `json.load` returns it. Errors name the field, the value found and the type
needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tensor_graphs.argument_checks import ArgumentError

T = TypeVar("T")

KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"), int: ((int,), "a whole number"), float: ((int, float), "a number"), list: ((list, tuple), "a list"),
    dict: ((Mapping,), "an object"),
}
"""Type of a field of a document -> (the Python types accepted for it, its name in errors)."""


def entry(of: str, document: Any, key: str, kind: type[T]) -> T:
    """Return the value under a key of a document (from `json.load`). of: name of the document in errors. Raises ArgumentError."""
    if key not in fields(of, document):
        raise ArgumentError(f"{of} has no {key!r}")
    return of_kind(f"{key!r} of {of}", document[key], kind)


def fields(of: str, document: Any) -> Mapping[str, Any]:
    """Return a document that is an object. of: name of the document in errors. Raises ArgumentError for any other document."""
    return of_kind(of, document, dict)


def of_kind(of: str, value: Any, kind: type[T]) -> T:
    """Return a value of a document unchanged if it has the type `kind`. of: name of the value in errors. Raises ArgumentError."""
    may_be, called = KINDS[kind]
    if not isinstance(value, may_be) or isinstance(value, bool):
        raise ArgumentError(f"{of} is {repr(value)[:60]}, and {called} is needed")
    return value                                                    # type: ignore[return-value]
