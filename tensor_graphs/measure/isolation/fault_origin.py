"""fault_origin: whose code raised an exception in a worker: the candidate's, which is a verdict on it, or the judge's own.

An exception is the judge's where no frame of it belongs to a candidate: not its file, not a file outside of this package, and none
of the rooms that run a candidate (CANDIDATES). Frames of libraries belong to their callers. A failed `assert` is the judge's too,
in any room except those that hold or write kernels. Where a room of CANDIDATES works for the judge alone, as on the plain path,
`judges_own` marks it."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

CANDIDATES = frozenset({"codegen", "devices", "kernels", "paths", "runtime"})
"""rooms whose code runs for a candidate: its declarations are read there, it is built there, and called"""

KERNELS = frozenset({"codegen", "kernels"})
"""rooms whose code is a candidate"""


class JudgeFault(Exception):
    """Failure of the judge's own code; the cause is attached."""


@contextmanager
def judges_own() -> Iterator[None]:
    """Context manager: what raises inside is the judge's own code. Raises JudgeFault from it."""
    try:
        yield
    except Exception as error:
        raise JudgeFault(f"{type(error).__name__}: {error}") from error


def is_judges(error: BaseException, own: Collection[str] = ()) -> bool:
    """Return whether the judge's own code raised an exception. own: files that declare the candidates."""
    if isinstance(error, JudgeFault):
        return True
    if not isinstance(error, Exception):                            # SystemExit, KeyboardInterrupt: nothing of ours raises them
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [real_file(frame.f_code.co_filename) for frame in frames if not _is_generated(frame)]
    if any(file in own or not file.startswith((PACKAGE + os.sep, *LIBRARIES)) for file in files):
        return False
    rooms = [_room(file) for file in files]
    if isinstance(error, AssertionError) and rooms and rooms[-1]:
        return rooms[-1] not in KERNELS
    return CANDIDATES.isdisjoint(rooms)


def _is_generated(frame: FrameType) -> bool:
    """Return whether a frame is of a method that `dataclass` has written for a class of this package."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith("tensor_graphs.")


def real_file(file: str) -> str:
    """Return a file by its real name; what is no file, like <stdin>, unchanged."""
    return file if file.startswith("<") else os.path.realpath(file)


LIBRARIES = ("<frozen ", *(real_file(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib")))
"""prefixes of files that belong to their callers"""


def _room(file: str) -> str:
    """Return the room of this package in which a file lies; "" for another file."""
    return file[len(PACKAGE) + 1:].partition(os.sep)[0] if file.startswith(PACKAGE + os.sep) else ""
