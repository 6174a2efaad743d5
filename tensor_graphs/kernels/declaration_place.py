"""declaration_place: the place where a kernel was declared: a file, or code in no file (a cell of a notebook, a session, `exec`).

When that code is run again (a cell, a reloaded module), its kernel replaces the earlier one of the same name. Two kernels of one
name in one run of a file, or in two files, are an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType, ModuleType
from typing import Any

HOUSE = "tensor_graphs"


@dataclass(frozen=True)
class Place:
    """The place of a declaration. module: `__name__` where the code ran. file: None where the code is in no file. line, shown: line
    and file name as in tracebacks. text: code in no file (a cell, `exec`) that is or called the declaring code. space: globals."""

    module: str
    file: str | None
    line: int
    shown: str
    text: CodeType | None = field(repr=False, compare=False)
    space: Mapping[str, Any] = field(repr=False, compare=False)
    spec: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.file or self.shown}:{self.line}"

    def follows(self, earlier: Place) -> bool:
        """Return whether this declaration is a rerun of the earlier one and replaces its kernel, and is no second kernel."""
        if self.file is None:
            return self.module == earlier.module                    # a later cell, or text that is run again
        if self.file != earlier.file:
            return False
        # one run of a file has one namespace, and one spec, which a reload replaces; a cell is compiled again when it is run again.
        # A text alone is no rerun: `python -c` and the processes of pytest-xdist begin with one
        again = self.text is not None and self.text is not earlier.text
        return again or self.space is not earlier.space or self.spec is not earlier.spec


def here() -> Place:
    """Return the place of the code that called this package: the first frame outside of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _of_the_house(frame) and frame.f_back is not None:
        frame = frame.f_back
    assert frame is not None
    space = frame.f_globals
    name = space.get("__name__")
    within: FrameType | None = frame
    while within is not None and not (_is_text(within) and within.f_code.co_name == "<module>"):
        within = within.f_back
    file = None if _is_text(frame) else os.path.realpath(frame.f_code.co_filename)
    return Place(name if isinstance(name, str) else "", file, frame.f_lineno, frame.f_code.co_filename,
                 None if within is None else within.f_code, space, space.get("__spec__"))


def _of_the_house(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == HOUSE


def _is_text(frame: FrameType) -> bool:
    """Return whether the code of a frame is in no file that Python would import."""
    file, space = frame.f_code.co_filename, frame.f_globals
    if file.startswith("<frozen "):
        return False
    if space.get("__name__") != "__main__" and _imported(space):     # of a zip file; or text that a module runs whenever imported
        return False
    return not os.path.isfile(file) or not isinstance(space.get("__file__"), str)


def _imported(space: Mapping[str, Any]) -> bool:
    module = sys.modules.get(str(space.get("__name__")))
    return module is not None and vars(module) is space and is_importable(module)


def is_importable(module: ModuleType) -> bool:
    """Return whether another process with the same path finds this module by its name."""
    if module.__name__ in ("__main__", "__mp_main__"):
        return False
    return isinstance(getattr(module, "__file__", None), str) or module.__name__ in sys.builtin_module_names \
        or getattr(module, "__path__", None) is not None or module.__name__ in sys.stdlib_module_names
