"""rule: a rewrite as data — a name, a numeric class, what it looks for, what it puts there, and when.

    TABLE = RuleTable("products")

    @TABLE.rule("linear(x * c)", …)                            # see rules/*.py

    @tg.rule("mul(add(a, b), c)", numeric_class="reassociating")   # a user's: admitted or refused at once
    def distribute(a, b, c):
        return a * c + b * c

The function is called with tensors of the language for the pattern's variables, with values for its attribute variables, and with
a function for an op variable `_f` (as `f`); it asks for those that it names. It returns what is equal to the pattern, or None
where the rule does not hold; an error of the language (shapes that do not fit) means None too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from tensor_graphs.language.node import Node, apply
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.errors import PatternError
from tensor_graphs.rewrites.pattern import ANY_OP, Application, Match, instance, parse_pattern, search, variables

NumericClass = Literal["bitwise", "reassociating"]
BITWISE: NumericClass = "bitwise"
REASSOCIATING: NumericClass = "reassociating"
LEVELS: tuple[NumericClass, ...] = (BITWISE, REASSOCIATING)
"""bitwise: the same bits, evaluated as written. reassociating: the same real number for finite values, rounded differently."""

class Index(dict[str, list[tuple[int, ENode]]]):
    """E-nodes by the name of their op, each with its class.

    distance: for each class, how many ops below it something changed; None where everything is to be looked at.
    """

    distance: Mapping[int, int] | None = None


Reach = Literal["near", "above", "anywhere"]
"""Where a rule has to look again after a change: a few ops above it, anywhere above it, or everywhere (several patterns)."""

Equalities = list[tuple[int, int]]
"""Pairs of terms that are equal."""


@dataclass(frozen=True)
class Candidate:
    """A place where a rule may be applied. `key` is the same for the same place; `apply` gives None when it does not hold.

    term: the youngest of the e-nodes that were matched; how far rewriting went before it decides whether it goes on.
    """

    key: tuple[Any, ...]
    term: int
    apply: Callable[[], Equalities | None]


class Rewrite(Protocol):
    """What saturation runs: a Rule, or one of those that no pattern says (expansion, recognition, folding)."""

    @property
    def name(self) -> str: ...
    @property
    def numeric_class(self) -> NumericClass: ...
    @property
    def assuming(self) -> tuple[str, ...]: ...
    @property
    def expanding(self) -> bool: ...
    @property
    def reach(self) -> Reach: ...

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]: ...


@dataclass(frozen=True)
class Rule:
    """See the module's docstring.

    assuming: named conditions on values that are taken for granted (no overflow, …); such a rule runs only where they are allowed.
    expanding: it makes graphs larger, and gets a small budget. shapes, dtypes: what admission draws for the variables, as in
    "x[n, k] w[m, k] c:bool", and kinds of dtypes; by default all have one random shape and one random dtype.
    option: the name of a group that runs only where it is asked for ("split"). parameters: variables that have to be parameters,
    each another one, in the order of their classes (so that a join of several is found once). roots: kinds of dtypes that the
    whole pattern may have; by default any.
    """

    name: str
    numeric_class: NumericClass
    patterns: tuple[Application, ...]
    replacement: Callable[..., Node | Sequence[Node] | None]
    assuming: tuple[str, ...] = ()
    expanding: bool = False
    option: str = ""
    parameters: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    shapes: str = ""
    dtypes: tuple[str, ...] = ("float", "int", "uint", "bool")
    text: str = ""

    @property
    def reach(self) -> Reach:
        return "near" if len(self.patterns) == 1 else "anywhere"

    def candidates(self, e: EGraph, index: Index) -> Iterator[Candidate]:
        attributes = {name for name, kind in self.variables.items() if kind == "attribute"}
        for roots, match in self._search(e, index, 0, {}):
            # e-nodes say which attributes they have; classes are those of now
            terms = [v.term for v in match.values() if isinstance(v, ENode)]
            classes = [e.find(v) for k, v in match.items() if not isinstance(v, ENode) and k not in attributes]
            key = (self.name, *roots, *terms, *classes)
            youngest = max(terms, key=e.generations.__getitem__)
            yield Candidate(key, youngest, lambda match=match: self._apply(e, match))  # type: ignore[misc]

    def _search(self, e: EGraph, index: Index, at: int, bound: Match) -> Iterator[tuple[tuple[int, ...], Match]]:
        if at == len(self.patterns):
            yield (), bound
            return
        for root, match in search(e, self.patterns[at], index, bound, self.roots):
            if not self._are_parameters(e, match):
                continue
            for rest, full in self._search(e, index, at + 1, match):
                yield (root, *rest), full

    def _are_parameters(self, e: EGraph, match: Match) -> bool:
        homes = [e.find(match[name]) for name in self.parameters if name in match]
        if homes != sorted(dict.fromkeys(homes)):
            return False
        return all(any(n.op.name == "parameter" for n in e.classes[h].nodes) for h in homes)

    def _apply(self, e: EGraph, match: Match) -> Equalities | None:
        made = self.replace({name: self._argument(e, match, name, kind) for name, kind in self.variables.items()})
        if made is None:
            return None
        right = [e.add(node) for node in made]
        left = [instance(e, p, match) for p in self.patterns]
        return list(zip(left, right, strict=True))

    def _argument(self, e: EGraph, match: Match, name: str, kind: str) -> Any:
        if kind == "tensor":
            return e.placeholder(match[name])
        if kind == "op":
            node: ENode = match[name]
            return lambda *xs: apply(node.op, xs, node.attrs)
        return match[name]

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        """The names that the replacement takes."""
        return tuple(inspect.signature(self.replacement).parameters)

    @cached_property
    def variables(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for p in self.patterns:
            found.update(variables(p))
        return found

    def replace(self, values: Mapping[str, Any]) -> tuple[Node, ...] | None:
        """What the rule puts for the patterns, given values for its variables; None where it does not hold."""
        from tensor_graphs.language.errors import LanguageError

        named = {name.lstrip(ANY_OP): value for name, value in values.items()}
        try:
            made = self.replacement(**{p: named[p] for p in self._asked})
        except LanguageError:
            return None
        if made is None:
            return None
        return (made,) if isinstance(made, Node) else tuple(made)


def make_rule(text: str | Sequence[str], numeric_class: NumericClass, replacement: Callable[..., Any], *, name: str = "",
              **options: Any) -> Rule:
    """A rule of patterns as text. Raises PatternError for what is no pattern, or a function that asks for what it does not bind."""
    texts = [text] if isinstance(text, str) else list(text)
    if numeric_class not in LEVELS:
        raise PatternError(f"the numeric class is {numeric_class!r}", fix=" or ".join(LEVELS))
    patterns: list[Application] = []
    for t in texts:
        patterns.append(parse_pattern(t, 1000 * len(patterns)))
    rule = Rule(name or replacement.__name__, numeric_class, tuple(patterns), replacement, text="; ".join(texts), **options)
    known = {v.lstrip(ANY_OP) for v in rule.variables}
    for parameter in inspect.signature(replacement).parameters:
        if parameter not in known:
            raise PatternError(f"the rule {rule.name} asks for {parameter!r}, which its pattern {rule.text!r} does not bind",
                               fix=f"it binds {', '.join(sorted(known))}")
    return rule


@dataclass
class RuleTable:
    """The rules of one topic, in the order in which they run."""

    topic: str
    rows: list[Rule] = field(default_factory=list)

    def rule(self, text: str | Sequence[str], numeric_class: NumericClass, **options: Any) -> Callable[[Callable[..., Any]], Rule]:
        """Put a function with its pattern into the table, as a rule. It is held to its class by the tests, not at import."""
        def register(replacement: Callable[..., Any]) -> Rule:
            name = options.pop("name", "") or f"{self.topic}/{replacement.__name__.replace('_', '-')}"
            made = make_rule(text, numeric_class, replacement, name=name, **options)
            self.rows.append(made)
            return made

        return register

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rows)


@dataclass(frozen=True)
class Refused:
    """A tempting rule that is wrong, with values of its variables that show it."""

    name: str
    numeric_class: NumericClass
    pattern: str
    replacement: Callable[..., Any]
    why: str
    dtypes: tuple[str, ...] = ("float",)
    shapes: str = ""

    def rule(self) -> Rule:
        return make_rule(self.pattern, self.numeric_class, self.replacement, name=self.name, dtypes=self.dtypes, shapes=self.shapes)
