"""documents: what stands in a file, as `json.load` has it, held to what is needed. The error names the field, what is there and
what fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tensor_graphs.arguments import ArgumentError

T = TypeVar("T")

KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"), int: ((int,), "a whole number"), float: ((int, float), "a number"), list: ((list, tuple), "a list"),
    dict: ((Mapping,), "an object"),
}
"""of a field of a document: what it may be in Python, and how that is called"""


def entry(of: str, document: Any, key: str, kind: type[T]) -> T:
    """Return the value under a key of a document (from `json.load`). of: what the document is, in words. Raises ArgumentError."""
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
