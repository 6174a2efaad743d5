"""user_rules: the admitted rules that users registered in this process (`tg.rule`).

A compile, a list of paths and a profile run them together with the built-in rules (rules/`allowed`). Results of a search are cached
under `digest`, since other rules find other recipes. The module imports nothing heavy: looking up a plan on file needs `digest`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from tensor_graphs.rewrites.errors import RewriteError

if TYPE_CHECKING:
    from tensor_graphs.kernels.declaration_place import Place
    from tensor_graphs.rewrites.rule import Rule


@dataclass(frozen=True)
class UserRule:
    """An admitted rule. place: where it was declared. code: a digest of its function with everything that the function uses."""

    rule: Rule
    place: Place
    code: str


_admitted: list[UserRule] = []


NAMELESS = "<lambda>"
"""Name of every rule whose function is a lambda."""


def require_free(name: str, place: Place, code: str) -> None:
    """Raise RewriteError if another rule has this name. A later state of the same function (a rerun cell, a reloaded module) may
    have it."""
    for u in _admitted:
        if u.rule.name == name != NAMELESS and not (place.follows(u.place) or (u.code, u.place) == (code, place)):
            raise RewriteError(f"a rule named {name!r} is declared already, at {u.place}", fix="another name for one of them")


def put(rule: Rule, place: Place, code: str) -> None:
    """Add a rule; it replaces an earlier state of itself."""
    _admitted[:] = [u for u in _admitted if not (u.rule.name == rule.name and (u.code == code or place.follows(u.place)))]
    _admitted.append(UserRule(rule, place, code))


def user_rules() -> tuple[Rule, ...]:
    return tuple(u.rule for u in _admitted)


def digest() -> str:
    """Return a digest of the user-registered rules and their functions; "" if there are none."""
    rules = [(u.code, [repr(getattr(u.rule, f.name)) for f in fields(u.rule) if f.name != "replacement"]) for u in _admitted]
    return hashlib.sha256(repr(rules).encode()).hexdigest() if rules else ""
