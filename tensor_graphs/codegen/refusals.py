"""refusals: what is not lowered says so by an exception, `NotLowered` with the reason; caches keep refusals as they keep programs.

    program = loops_of(definition)              # raises NotLowered
    why = why_not(loops_of, definition)         # the reason as text, or None, for hooks such as Kernel.accepts
    program = or_none(loops_of, definition)     # None where there is none
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language.errors import LanguageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class TooManyTurns(NotLowered):
    """A definition whose loops are a matrix product, or a sum of sums; the message gives the number of iterations."""


def cached(maxsize: int) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Return a decorator that caches what a function returns, as lru_cache does, and also the NotLowered that it raises."""
    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @lru_cache(maxsize)
        def outcome(*args: Hashable, **more: Hashable) -> tuple[Result | None, NotLowered | None]:
            try:
                return function(*args, **more), None                # type: ignore[arg-type]
            except NotLowered as e:
                return None, e.with_traceback(None)

        @wraps(function)
        def call(*args: Arguments.args, **more: Arguments.kwargs) -> Result:
            result, refusal = outcome(*args, **more)                # type: ignore[arg-type]
            if refusal is not None:
                raise type(refusal)(*refusal.args)                  # another one each time: who catches it may keep its traceback
            return result                                           # type: ignore[return-value]

        call.cache_clear = outcome.cache_clear                      # type: ignore[attr-defined]
        return call

    return decorate


def or_none(make: Callable[Arguments, Result], *args: Arguments.args, **more: Arguments.kwargs) -> Result | None:
    """Return what a function makes; None where it raises NotLowered."""
    try:
        return make(*args, **more)
    except NotLowered:
        return None


def why_not(make: Callable[Arguments, object], *args: Arguments.args, **more: Arguments.kwargs) -> str | None:
    """Return the message of the NotLowered that a function raises; None where it raises none."""
    try:
        make(*args, **more)
    except NotLowered as e:
        return str(e)
    return None


@contextmanager
def refused(where: str = "") -> Iterator[None]:
    """Context manager: errors of the language, such as for a size that may be 0 where an index is divided by it, are refusals, too.
    where: the place, which messages begin with."""
    try:
        yield
    except NotLowered as e:
        raise type(e)(f"{where}{e}") from None
    except LanguageError as e:
        raise NotLowered(f"{where}{e}") from None
