"""typer_app: the app that verbs register with. It refuses a repeated option that takes one value.

By default a repeated option's last value wins, so that one of two prompts would be ignored silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from tensor_graphs.cli import option_groups, options


def _single(param: Any) -> Any:
    """Return the parameter, if it is an option that takes one value; else None."""
    several = param.param_type_name != "option" or param.multiple or param.is_flag or param.count
    return None if several else param


class OnceEach(TyperCommand):
    """A verb whose options may be given only once, except flags and repeatable options. Raises UsageError."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, times in Counter(map(_single, order)).items():
            if param is None:
                continue
            if times > 1:
                name = max(param.opts, key=len)
                raise options.UsageError(f"{name} is given {times} times, and it takes one value\n  fix: {name} once")
        return super().parse_args(ctx, args)


class Verbs(typer.Typer):
    """An app whose verbs are `OnceEach`, and take the options of the groups among their parameters."""

    def command(self, name: str | None = None, *, cls: Any = None, **more: Any) -> Callable[[Any], Any]:
        register = super().command(name, cls=cls or OnceEach, **more)
        return lambda verb: register(option_groups.spread(verb))
