"""tampering: did a candidate replace what measures it? Functions and classes are compared with those before it was imported.

Watched are every function, class and method of this package, and the functions of the standard library and of numpy that the worker
relies on: which object lies under each name, and which code each function has. Names that are new are no concern: importing adds
some. A candidate that replaces something and puts it back before it returns has changed nothing that matters here: the worker's
clock is not looked up by name (clock.py).
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

PACKAGE = "tensor_graphs"

OTHERS: tuple[ModuleType, ...] = (builtins, np, np.testing, os, sys, threading, time)
"""modules beside the package's own whose functions must stay what they are"""

KINDS = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property, np.ufunc)

STREAMS = ("stdin", "stdout", "stderr")


class Watch:
    """What lay under the names of all modules that were there when it was made, or last extended."""

    def __init__(self) -> None:
        self._entries: list[tuple[Mapping[str, Any], str, str, Any, object, object]] = []
        self._modules: dict[str, ModuleType] = {}
        self._streams = tuple(getattr(sys, name) for name in STREAMS)
        self._tracing = (sys.gettrace(), sys.getprofile())
        self.extend()

    def extend(self) -> None:
        """Watch modules too that were imported since."""
        for name, module in list(sys.modules.items()):
            own = name == PACKAGE or name.startswith(f"{PACKAGE}.")
            if name not in self._modules and isinstance(module, ModuleType) and (own or module in OTHERS):
                self._modules[name] = module
                self._add(vars(module), name, own)

    def _add(self, names: Mapping[str, Any], where: str, own: bool) -> None:
        for name, value in list(names.items()):
            if isinstance(value, KINDS):
                self._entries.append((names, name, where, value, *_code(value)))
                if own and isinstance(value, type) and value.__module__ == where:
                    self._add(vars(value), f"{where}.{name}", False)

    def replaced(self) -> list[str]:
        """The names under which something else lies now, sorted."""
        found = [f"{where}.{name}" for names, name, where, value, code, defaults in self._entries
                 if names.get(name) is not value
                 or (code is not None and _code(value) != (code, defaults))]
        found += [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        found += [f"sys.{name}" for name, stream in zip(STREAMS, self._streams, strict=True) if getattr(sys, name) is not stream]
        if any(a is not b for a, b in zip(self._tracing, (sys.gettrace(), sys.getprofile()), strict=True)):
            found.append("sys.settrace")
        return sorted(found)


def _code(value: object) -> tuple[object, object]:
    """What a function of Python's does, and with which defaults; None and None of anything else."""
    return (value.__code__, value.__defaults__) if isinstance(value, FunctionType) else (None, None)
