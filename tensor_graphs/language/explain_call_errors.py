"""explain_call_errors: a decorator for functions: a call with wrong arguments raises an error that names a fix (call_errors.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

def worded(function: Callable[P, R], name: str = "", example: str = "") -> Callable[P, R]:
    """Return `function` so that a call whose arguments do not fit its signature raises CallError; errors raised inside of it pass.
    name: its public name, if that differs. example: a call of it, for the fix."""
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            signature = inspect.signature(function)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                from tensor_graphs.language.call_errors import misfit  # a door: of wrong calls

                raise misfit(name or function.__name__, signature, kwargs, error, example) from None
            raise

    return call
