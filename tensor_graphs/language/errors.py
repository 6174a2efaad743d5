"""errors: what the language says to a person who wrote something that cannot be meant.

Every message names the op, the operands with their shapes, the axis that disagrees, the line of the user's code and a fix.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tensor_graphs.errors import TensorGraphsError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code: the innermost frame outside of this package."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def source(self) -> str:
        """The text of that line, without indentation; empty when the source is not at hand (a REPL, a text graph)."""
        return linecache.getline(self.file, self.line).strip()


_place: ContextVar[Location | None] = ContextVar("place", default=None)


@contextmanager
def written_at(location: Location | None) -> Iterator[None]:
    """What is made inside was written there: a rewritten node where the old one was, a node of a text on its line.

    The outermost counts.
    """
    if location is None or _place.get() is not None:
        yield
        return
    token = _place.set(location)
    try:
        yield
    finally:
        _place.reset(token)


def where_written() -> Location | None:
    """The caller's line outside of this package, or the outermost line of it when there is none (the package's own models)."""
    place = _place.get()
    if place is not None:
        return place
    frame = sys._getframe(1)
    last = frame
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        last = frame
        frame = frame.f_back  # type: ignore[assignment]
    found = frame or last
    return Location(found.f_code.co_filename, found.f_lineno)


class LanguageError(TensorGraphsError):
    """Something that cannot be meant; `location` is the user's line."""

    def __init__(self, message: str, location: Location | None = None, fix: str | None = None) -> None:
        self.location = location if location is not None else where_written()
        text = f"{type(self).__name__} at {self.location}: {message}"
        source = self.location.source() if self.location else ""
        if source:
            text += f"\n    {source}"
        if fix:
            text += f"\n  fix: {fix}"
        super().__init__(text)


class ShapeError(LanguageError):
    """Shapes that do not fit together."""


class DTypeError(LanguageError):
    """A dtype that an op does not take, or two that differ."""


class AttributeValueError(LanguageError):
    """An attribute (axis, eps, start, …) outside of what the op allows."""


class NoValueError(LanguageError, TypeError):
    """A tensor of a graph used as if it held values: in an `if`, beside `==`, in a loop, as a numpy array."""


class GraphError(LanguageError):
    """A graph that is put together wrongly: two leaves with one name, an update of an unknown state, …"""
