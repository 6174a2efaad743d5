"""user_rules: the rules that users declared in this process (`tg.rule`), once they are admitted.

A compile, a list of paths and a profile run them beside the package's own (rules/`allowed`). What is kept of a search is kept under
`digest`, since other rules find other things. Nothing heavy is imported: a plan on file is looked up under that digest too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from tensor_graphs.rewrites.errors import RewriteError

if TYPE_CHECKING:
    from tensor_graphs.kernels.location import Place
    from tensor_graphs.rewrites.rule import Rule


@dataclass(frozen=True)
class UserRule:
    """An admitted rule. place: where it was declared. code: a digest of its function with all that the function is made of."""

    rule: Rule
    place: Place
    code: str


_admitted: list[UserRule] = []


NAMELESS = "<lambda>"
"""the name of every rule whose function has none"""


def require_free(name: str, place: Place, code: str) -> None:
    """Raise RewriteError where another rule has this name. The same function, or a later state of it (a cell that is run again, a
    module that is reloaded), is not another."""
    for u in _admitted:
        if u.rule.name == name != NAMELESS and not (place.follows(u.place) or (u.code, u.place) == (code, place)):
            raise RewriteError(f"a rule named {name!r} is declared already, at {u.place}", fix="another name for one of them")


def put(rule: Rule, place: Place, code: str) -> None:
    """Add a rule, in place of an earlier state of it."""
    _admitted[:] = [u for u in _admitted if not (u.rule.name == rule.name and (u.code == code or place.follows(u.place)))]
    _admitted.append(UserRule(rule, place, code))


def user_rules() -> tuple[Rule, ...]:
    return tuple(u.rule for u in _admitted)


def digest() -> str:
    """A digest of these rules, their functions included; "" where there are none."""
    rules = [(u.code, [repr(getattr(u.rule, f.name)) for f in fields(u.rule) if f.name != "replacement"]) for u in _admitted]
    return hashlib.sha256(repr(rules).encode()).hexdigest() if rules else ""
