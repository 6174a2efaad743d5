"""process_state: compares settings of a process before and after a kernel runs: rounding mode, environment, signal handlers, …

A kernel runs in its user's process. If it leaves a recursion limit, rounding mode, variable or seed changed, it changes other
kernels' results, and no comparison of its own outputs shows it.

    guard = StateGuard()             # the kernel's module has been imported
    with guard.unchanged("n=3"):     # raises StateError
        run()

A kernel may draw from global random generators. They are seeded from the system before each run, so a kernel that leaves a
generator in the same state twice has seeded it."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import importlib
import locale
import os
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tensor_graphs.measure.isolation.fault_origin import is_judges

HIDDEN = ("TENSOR_GRAPHS_WORKER",)
"""environment variables of the worker that a deployed process lacks; hidden from a kernel while it runs"""

SHOWN = 120
"""most characters of a value in a message"""


class StateError(Exception):
    """Change of the process's state that a kernel has left behind."""

    def __init__(self, changes: list[str], where: str) -> None:
        super().__init__(f"the kernel has changed the state of its process at {where}, and other kernels run in it: "
                         f"{'; '.join(changes[:6])}\n  fix: put it back before the call returns (with, try … finally), or do it "
                         "once where the module is imported")


_handler, _mask = importlib.import_module("_signal").getsignal, signal.pthread_sigmask
"""C's getsignal: Python's `signal.getsignal` also searches two enums for a name, for each signal at each point"""
_SIGNALS = tuple(map(int, signal.valid_signals()))
_LIMITS = {getattr(resource, n): n for n in dir(resource) if n.startswith("RLIMIT_")}
_NAMES: dict[tuple[str, Any], str] = {("resource limits", n): name for n, name in _LIMITS.items()}
_NAMES |= {("signal handlers", int(s)): s.name for s in signal.Signals}
_TINY = np.array([1e-40], np.float32)


def _libm() -> Any:
    try:
        library = ctypes.CDLL(ctypes.util.find_library("m") or None)
        library.fegetround.restype = ctypes.c_int
        library.fegetround()
        return library
    except (OSError, AttributeError):
        return None


_LIBM = _libm()


def floating_point() -> dict[str, Any]:
    """Return this thread's rounding mode, and whether numbers below the smallest normal one are flushed to zero. The flag has no
    portable name, so the second is tested by a product: 1e-40 · 1, in a loop long enough to be vectorised."""
    state: dict[str, Any] = {}
    if _LIBM is not None:
        state["rounding mode"] = _LIBM.fegetround()
    with np.errstate(all="ignore"):
        state["denormal numbers count"] = bool(np.multiply(_TINY.repeat(16), np.float32(1)).all())
    return state


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _torch() -> dict[str, Any]:
    torch, state = sys.modules.get("torch"), dict[str, Any]()
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return state
    for name in ("get_num_threads", "get_default_dtype", "is_grad_enabled", "get_float32_matmul_precision",
                 "are_deterministic_algorithms_enabled", "is_inference_mode_enabled"):
        with suppress(Exception):
            state[f"torch.{name}()"] = str(getattr(torch, name)())
    return state


AS_IMPORTED = {"torch.get_default_dtype()": "torch.float32", "torch.is_grad_enabled()": "True",
               "torch.get_float32_matmul_precision()": "highest", "torch.are_deterministic_algorithms_enabled()": "False",
               "torch.is_inference_mode_enabled()": "False"}
"""settings of a freshly imported torch, as a kernel may import it in its first call (its number of threads is not known then)"""


def snapshot() -> dict[str, Any]:
    """Return the settings of this process, by name; takes some 0.2 ms."""
    state = floating_point()
    state |= {
        "numpy.geterr()": np.geterr(), "sys.getrecursionlimit()": sys.getrecursionlimit(),
        "sys.getswitchinterval()": sys.getswitchinterval(), "sys.path": tuple(sys.path), "sys.argv": tuple(sys.argv),
        "sys.dont_write_bytecode": sys.dont_write_bytecode, "sys.get_int_max_str_digits()": sys.get_int_max_str_digits(),
        "os.umask": _umask(), "locale.setlocale(LC_ALL)": locale.setlocale(locale.LC_ALL), "gc.isenabled()": gc.isenabled(),
        "gc.get_threshold()": gc.get_threshold(), "threading.stack_size()": threading.stack_size(),
        "warnings.filters": tuple(warnings.filters), "os.environ": dict(_view()),
        "signal mask": frozenset(map(int, _mask(signal.SIG_BLOCK, ()))), "signal handlers": {s: _handler(s) for s in _SIGNALS},
        "timer (signal.setitimer)": signal.getitimer(signal.ITIMER_REAL)[0] > 0, "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "resource limits": {n: resource.getrlimit(n) for n in _LIMITS},
    }
    try:
        state["os.getcwd()"] = os.getcwd()
    except OSError as e:
        state["os.getcwd()"] = str(e)
    if hasattr(os, "sched_getaffinity"):
        state["os.sched_getaffinity(0)"] = frozenset(os.sched_getaffinity(0))
    return state | _torch()


def _view() -> dict[bytes, bytes]:
    """Return the undecoded dict behind os.environ: decoding all of it at each point takes long."""
    return os.environ._data                                         # type: ignore[attr-defined]


def _show(value: Any) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Describe the settings that differ from before; settings of a newly imported library are compared with AS_IMPORTED."""
    out = []
    new = {name: was for name, was in AS_IMPORTED.items() if name in after and name not in before}
    for name, was in {**before, **new}.items():
        now = after.get(name)
        if was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            for key in {**was, **now}:
                if was.get(key) != now.get(key):
                    which = _NAMES.get((name, key), _show(key))
                    out.append(f"{name}[{which}] was {_show(was.get(key))} and is {_show(now.get(key))}")
        else:
            out.append(f"{name} was {_show(was)} and is {_show(now)}")
    return sorted(out)


def _generators() -> dict[str, int]:
    """Return a hash of the state of each global random generator."""
    states = {"random": hash(random.getstate()), "numpy.random": hash(_numpy_state())}
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = hash(torch.get_rng_state().numpy().tobytes())
    return states


def _numpy_state() -> bytes:
    state: Any = np.random.get_state(legacy=False)
    return bytes(state["state"]["key"].tobytes()) + str(state["state"]["pos"]).encode()


def _seed_generators() -> None:
    number = int.from_bytes(os.urandom(4), "little")
    random.seed(number)
    np.random.seed(number)
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        torch.default_generator.manual_seed(number)


@contextmanager
def deployed(argv: Sequence[str]) -> Iterator[None]:
    """Context manager: Python code sees what a deployed process has: no variables of the worker, and the caller's arguments. Child
    processes still inherit the variables, by which processes that a kernel leaves running are found."""
    view, names = _view(), [os.fsencode(name) for name in HIDDEN]
    hidden, arguments = {name: view.pop(name) for name in names if name in view}, sys.argv
    sys.argv = list(argv)
    try:
        yield
    finally:
        view.update(hidden)
        sys.argv = arguments


class StateGuard:
    """Compares settings of the process before and after runs, and the floating-point state before and after a kernel's import."""

    def __init__(self, before_import: Mapping[str, Any] | None = None) -> None:
        self._left: dict[str, set[int]] = {}
        if before_import is not None and (differences := changes(before_import, floating_point())):
            raise StateError(differences, "the import of its module")

    @contextmanager
    def unchanged(self, where: object, *, seeds: bool = True) -> Iterator[None]:
        """Context manager: raise StateError if the body changes settings. seeds: check global random generators too."""
        if seeds:
            _seed_generators()
        before, modules = snapshot(), len(sys.modules)
        start = _generators() if seeds else {}
        try:
            yield
        except Exception as error:                                  # the judge's own code may fail because of changed settings
            if is_judges(error) and (differences := changes(before, snapshot())):
                raise StateError(differences, str(where)) from error
            raise
        after = snapshot()
        if len(sys.modules) != modules:                             # a library that is imported late may add filters of warnings
            after["warnings.filters"] = before["warnings.filters"]
        differences = changes(before, after)
        for name, state in (_generators() if seeds else {}).items():
            if name in start and state != start[name]:
                if state in self._left.setdefault(name, set()):
                    differences.append(f"the global generator of {name} was seeded")
                self._left[name].add(state)
        if differences:
            raise StateError(differences, str(where))
