"""argument_checks: checks of the values that callers pass, made before anything is computed or stored.

Each check returns the checked value as one plain type. Its error names the argument, the value and what fits. Of files:
json_checks.py.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from numbers import Real
from typing import Any

from tensor_graphs.errors import TensorGraphsError


class ArgumentError(TensorGraphsError, ValueError):
    """An argument that is not of the kind, or not in the range, that a function takes."""


def _shown(value: Any) -> str:
    """Return the value as text for an error. Python prints no whole number of more than 4300 digits."""
    beyond = isinstance(value, int) and value.bit_length() > sys.float_info.max_exp
    return "beyond what a float holds" if beyond else repr(value)


def whole(name: str, value: Any, least: int = 0, most: int | None = None, fix: str = "") -> int:
    """Return a whole number (an int, or numpy's) from `least` to `most`. fix: what fits, for people. Raises ArgumentError."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least or (
            most is not None and value.__index__() > most):
        span = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ArgumentError(f"{name} is {_shown(value)}\n  fix: {fix or f'a whole number {span}'}")
    return int(value.__index__())


def number(name: str, value: Any, fix: str, least: float = 0.0, infinite: bool = False) -> float:
    """Return a number of `least` or more as a float; infinity if `infinite`. fix: what fits, for people. Raises ArgumentError."""
    try:
        result = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        result = math.inf if value > 0 else -math.inf
    if not least <= result or (not infinite and math.isinf(result)):
        raise ArgumentError(f"{name} is {_shown(value)}\n  fix: {fix}")
    return result


def names(name: str, value: Any, fix: str) -> tuple[str, ...]:
    """Return one name, or several, as a tuple. fix: the names that fit, for people. Raises ArgumentError for anything else."""
    if isinstance(value, str):
        return (value,)
    items = tuple(value) if isinstance(value, Iterable) else (value,)
    if not isinstance(value, Iterable) or not all(isinstance(item, str) for item in items):
        raise ArgumentError(f"{name} is {_shown(value)}\n  fix: {fix}")
    return items


def text(name: str, value: Any, fix: str = "a string") -> str:
    """Return a string unchanged. fix: what fits, for people. Raises ArgumentError for anything else."""
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {_shown(value):.80}\n  fix: {fix}")
    return value


def function(name: str, value: Any, takes: str) -> Any:
    """Return a function, or None if none is given. takes: its arguments, for people. Raises ArgumentError."""
    if value is not None and not callable(value):
        raise ArgumentError(f"{name} is {_shown(value)}, which cannot be called\n  fix: a function of {takes}, or leave it out")
    return value


def place(name: str, value: Any, fix: str) -> str | os.PathLike[str]:
    """Return the path of a file or folder. fix: the paths that fit, for people. Raises ArgumentError."""
    if not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{name} is {_shown(value)}\n  fix: {fix}")
    return value


def switch(variable: str, unless_said: bool) -> bool:
    """Return a setting (on or off) from an environment variable; `unless_said` where it is not set. Raises ArgumentError."""
    setting = os.environ.get(variable, "").lower()
    if setting not in ("", "on", "1", "yes", "off", "0", "no"):
        raise ArgumentError(f"{variable} is {setting!r}\n  fix: on or off; without it, it is {'on' if unless_said else 'off'}")
    return setting in ("on", "1", "yes") if setting else unless_said
