"""errors: the errors for programs that make no sense, such as an op on operands whose shapes do not fit.

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
from types import FrameType

from tensor_graphs.errors import TensorGraphsError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMMANDS, *_MODELS = (os.path.join(_PACKAGE, room, "") for room in ("cli", "models", "frontends"))
_PYTHON = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_NO_USERS = (_PACKAGE, _PYTHON, "<frozen ")
_INSTALLED = (os.path.join(_PYTHON, "site-packages", ""), os.path.join(_PYTHON, "dist-packages", ""))


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code: the innermost frame outside of this package and of Python's library."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def source(self) -> str:
        """Return the source of the line, without indentation; "" when it is not available (a REPL, a text graph)."""
        return linecache.getline(self.file, self.line).strip()


NOWHERE = Location("", 0)
"""the location for `written_at` with which nodes get no location: they are read from a file, and no line of code wrote them"""

_place: ContextVar[Location | None] = ContextVar("place", default=None)


@contextmanager
def written_at(location: Location | None) -> Iterator[None]:
    """Context manager: nodes made inside get `location`: a rewritten node that of the node it replaces, a node of a text its line.

    Of nested calls, the outermost decides.
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
    """Return the caller's line outside of this package and of Python's library. If a command of this package was called, return the
    line of the model code that is being run, or None if there is none."""
    place = _place.get()
    if place is not None:
        return None if place is NOWHERE else place
    frame: FrameType | None = sys._getframe(1)
    inner = frame
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NO_USERS) or (file.startswith(_INSTALLED) and not file.startswith(_PACKAGE)):
            break
        inner, frame = frame, frame.f_back
    if frame is None or (inner is not None and inner.f_code.co_filename.startswith(_COMMANDS)):
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(tuple(_MODELS)):
            frame = None if frame is inner else frame.f_back
    return None if frame is None else Location(frame.f_code.co_filename, frame.f_lineno)


class LanguageError(TensorGraphsError):
    """A program that makes no sense. location: the user's line. message: the fault."""

    def __init__(self, message: str, location: Location | None = None, fix: str | None = None) -> None:
        self.location, self.message = location if location is not None else where_written(), message
        at = f" at {self.location}" if self.location else ""
        text = f"{type(self).__name__}{at}: {message}"
        source = self.location.source() if self.location else ""
        if source:
            text += f"\n    {source}"
        if fix:
            text += f"\n  fix: {fix}"
        super().__init__(text)


class ShapeError(LanguageError):
    """Operands whose shapes do not fit together."""


class DTypeError(LanguageError):
    """A dtype that an op does not take, or two dtypes that differ."""


class AttributeValueError(LanguageError):
    """An attribute (axis, eps, start, …) with a value that the op does not allow."""


class NoValueError(LanguageError, TypeError):
    """A tensor of a graph used as if it had values: in an `if`, with `==`, in a loop, as a numpy array."""


class GraphError(LanguageError):
    """A graph that cannot be built: two leaves with the same name, an update of an unknown state, …"""
