"""fault_origin: decides whose code raised an exception in a worker: the candidate's, which is a verdict on it, or the judge's own.

An exception is the judge's if no frame of its traceback belongs to a candidate: to the candidate's file, to a file outside of this
package, or to a top folder of this package that runs candidates (CANDIDATES). Frames of libraries belong to their callers. A failed
`assert` is the judge's too, except in folders that contain or generate kernels (KERNELS). `judges_own` marks code that runs through
a folder of CANDIDATES for the judge alone, as the plain path does."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import FrameType

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

CANDIDATES = frozenset({"codegen", "devices", "kernels", "paths", "runtime"})
"""top folders of this package whose code runs for a candidate: it reads a candidate's declarations, builds it, or calls it"""

KERNELS = frozenset({"codegen", "kernels"})
"""top folders of this package whose code may itself be a candidate"""


class JudgeFault(Exception):
    """Failure of the judge's own code; its __cause__ is the original exception."""


@contextmanager
def judges_own() -> Iterator[None]:
    """Context manager: attribute any exception in its body to the judge, by raising JudgeFault from it."""
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
    """Return whether a frame is of a method that `dataclass` generated for a class of this package."""
    return frame.f_code.co_filename == "<string>" and str(frame.f_globals.get("__name__")).startswith("tensor_graphs.")


def real_file(file: str) -> str:
    """Return the real path of a file; a name that is no file, like <stdin>, is returned unchanged."""
    return file if file.startswith("<") else os.path.realpath(file)


LIBRARIES = ("<frozen ", *(real_file(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "purelib", "platlib")))
"""prefixes of library files, whose frames belong to their callers"""


def _room(file: str) -> str:
    """Return the top folder of this package that contains a file; "" for a file outside."""
    return file[len(PACKAGE) + 1:].partition(os.sep)[0] if file.startswith(PACKAGE + os.sep) else ""
