"""tampering: detects that a candidate replaced code that measures it: the objects under watched names are compared with earlier
ones.

Watched are every function, class, method and constant (upper case) of this package, and the functions of the standard library and
of numpy that the worker relies on: the object under each name, and the code of each function; the values of a constant dict, and
their functions if they are objects of this package (the ops); in the worker, all kernels. New names are ignored: importing adds
some. A candidate that restores what it replaced gains nothing: the worker's clock is not looked up by name (clock.py).

The judge's process is watched too, as far as verdicts depend on it (`Names`): a kernel's module may be imported there. Its streams
and trace functions belong to the user (notebooks and debuggers replace them), and names that only concern times are not watched."""

from __future__ import annotations

import builtins
import functools
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import Kernel

PACKAGE = "tensor_graphs"

OTHERS: tuple[ModuleType, ...] = (builtins, math, np, np.linalg, np.random, np.testing, os, random, sys, threading, time)
"""modules outside the package whose functions must not change …"""

LIBRARIES = frozenset({"torch", "torch.linalg", "torch.nn.functional", "torch.special", "scipy.linalg", "scipy.special"})
"""… and libraries that kernels call: a candidate that replaces a function in them changes what other kernels compute"""

KINDS = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property, np.ufunc,
         type(np.sum), functools._lru_cache_wrapper)

STREAMS = ("stdin", "stdout", "stderr")

HOME = frozenset({PACKAGE, "numpy", "sqlalchemy", "typing_extensions", *(name.partition(".")[0] for name in LIBRARIES),
                  *sys.stdlib_module_names}) - {"__main__"}
"""packages in which functions found in watched modules may legitimately be defined"""


def of_package(name: str) -> bool:
    """Return whether a module of this name belongs to this package."""
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def reached(root: str) -> frozenset[str]:
    """Return the names of the modules of this package whose code a module may run: the modules that define the objects under its
    names, and so on. An imported constant counts as the importing module's; imports inside functions are not followed."""
    names: set[str] = set()
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in names and of_package(name):
            names.add(name)
            for value in vars(sys.modules[name]).values():
                module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", type(value).__module__)
                todo += [module] if module in sys.modules else []
    return frozenset(names)


class Names:
    """Record of the objects under the names of some modules, as of its creation or last extension. own: predicate of modules whose
    methods and constants are watched too. others: modules of which only functions are watched. spared: full names that may be
    replaced. libraries: names of modules that are watched like `others` once they are imported."""

    def __init__(self, own: Callable[[str], bool], others: Sequence[ModuleType], spared: Collection[str] = (),
                 libraries: Collection[str] = ()) -> None:
        self._own, self._others, self._spared, self._libraries = own, others, frozenset(spared), libraries
        self._entries: list[tuple[Mapping[Any, Any], Any, Any, str]] = []
        self._functions: dict[FunctionType, tuple[object, object, str]] = {}
        self._modules: dict[str, ModuleType] = {}
        self.extend()

    def extend(self) -> None:
        """Also watch modules that were imported since."""
        for name, module in list(sys.modules.items()):
            if name not in self._modules and isinstance(module, ModuleType):
                own = self._own(name)
                if own or module in self._others or name in self._libraries:
                    self._modules[name] = module
                    self._add(vars(module), name, own)

    def _add(self, names: Mapping[str, Any], where: str, own: bool) -> None:
        for name, value in list(names.items()):
            if f"{where}.{name}" in self._spared:
                continue
            constant = own and name.isupper() and value is not None          # None: not known yet
            if isinstance(value, KINDS) or constant:
                self._keep(names, name, value, where)
            if own and isinstance(value, type) and value.__module__ == where:
                self._add(vars(value), f"{where}.{name}", False)
            if constant and isinstance(value, dict):
                for key, entry in value.items():
                    self._keep(value, key, entry, f"{where}.{name}")
                    if of_package(str(type(entry).__module__)):
                        self._add(getattr(entry, "__dict__", {}), f"{where}.{name}[{key}]", False)

    def _keep(self, names: Mapping[Any, Any], name: Any, value: Any, where: str) -> None:
        self._entries.append((names, name, value, where))
        if isinstance(value, FunctionType):
            self._functions.setdefault(value, (value.__code__, value.__defaults__, f"{where}.{name}"))

    def replaced(self) -> list[str]:
        """Return the watched names that now refer to another object or another code, sorted."""
        names_replaced = {f"{where}.{name}" for names, name, value, where in self._entries if names.get(name) is not value}
        names_replaced |= {where for f, (code, defaults, where) in self._functions.items()
                  if f.__code__ is not code or f.__defaults__ is not defaults}
        return sorted(names_replaced)

    def strange(self) -> list[str]:
        """Return the names of watched functions that are defined outside of HOME: they were replaced before the record began."""
        return sorted(where for f, (_, _, where) in self._functions.items()
                      if str(f.__globals__.get("__name__")).partition(".")[0] not in HOME)


class Watch(Names):
    """Record of all of this package, and of everything else in a worker's process that a candidate may replace."""

    def __init__(self) -> None:
        self._kernels = set[Kernel]()
        super().__init__(of_package, OTHERS, libraries=LIBRARIES)
        self._streams = tuple(getattr(sys, name) for name in STREAMS)
        self._tracing = (sys.gettrace(), sys.getprofile())

    def extend(self) -> None:
        """Also watch modules and kernels that were loaded since."""
        super().extend()
        for kernel in registry.known() - self._kernels:
            self._kernels.add(kernel)
            for name, value in list(vars(kernel).items()):
                self._keep(vars(kernel), name, value, f"the kernel {kernel.name}")

    def replaced(self) -> list[str]:
        """Return the watched names that now refer to another object or another code, sorted."""
        names = super().replaced()
        names += [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        names += [f"sys.{name}" for name, stream in zip(STREAMS, self._streams, strict=True) if getattr(sys, name) is not stream]
        if any(a is not b for a, b in zip(self._tracing, (sys.gettrace(), sys.getprofile()), strict=True)):
            names.append("sys.settrace")
        return sorted(names)
