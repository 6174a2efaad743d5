"""rule: a rewrite as data — a name, a numeric class, a pattern to find, its replacement, and the condition for it.

    TABLE = RuleTable("products")

    @TABLE.rule("linear(mul(x, c), w)", …)                     # see rules/*.py

    @tg.rule("mul(add(a, b), c)", numeric_class="reassociating")   # a user's: admitted or refused immediately
    def distribute(a, b, c):
        return a * c + b * c

The function receives tensors for the pattern's variables, values for its attribute variables, and a function for an op variable
`_f` (as `f`). It names the arguments that it needs; other arguments must have defaults. It returns a tensor that equals the
pattern, or None where the rule does not hold. An error of the language (shapes that do not fit) also means None.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from tensor_graphs.errors import close_to
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.node import Node, apply
from tensor_graphs.rewrites.conditions import checked
from tensor_graphs.rewrites.egraph import EGraph
from tensor_graphs.rewrites.enode import ENode
from tensor_graphs.rewrites.errors import PatternError, RewriteError
from tensor_graphs.rewrites.pattern import (
    ANY_OP,
    KINDS,
    Application,
    Match,
    dtype_words,
    instance,
    is_among,
    parse_pattern,
    search,
    variables,
)

NumericClass = Literal["bitwise", "reassociating"]
BITWISE: NumericClass = "bitwise"
REASSOCIATING: NumericClass = "reassociating"
LEVELS: tuple[NumericClass, ...] = (BITWISE, REASSOCIATING)
"""Numeric classes. bitwise: the same bits, as written. reassociating: the same real number for finite values, other rounding."""

class Index(dict[str, list[tuple[int, ENode]]]):
    """E-nodes by the name of their op, each with its class. distance: for each class, the number of ops down to the nearest change;
    None if rules must search everywhere."""

    distance: Mapping[int, int] | None = None


Reach = Literal["near", "above", "anywhere"]
"""Where a rule must search again after a change: a few ops above it, anywhere above it, or everywhere (several patterns)."""

Equalities = list[tuple[int, int]]
"""Pairs of terms that are equal."""


@dataclass(frozen=True)
class Candidate:
    """A match to which a rule may be applied. key: identifies the match. apply: returns None if the rule does not hold. term: the
    youngest of the matched e-nodes; its generation bounds how many rules are chained."""

    key: tuple[Any, ...]
    term: int
    apply: Callable[[], Equalities | None]


class Rewrite(Protocol):
    """Interface of what saturation runs: a Rule, or a rewrite that no pattern expresses (expansion, recognition, folding)."""

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
    """A rewrite as data.

    assuming: named conditions on values (no overflow, …); the rule runs only where the caller allows them. expanding: the rule
    makes graphs larger, and gets a small budget. shapes: the shapes that admission draws for the variables, as in "x[n, k] w[m, k]
    c:bool i:i32"; by default all have one random shape and one dtype. dtypes: those of variables without a dtype in `shapes`, as
    kinds ("float", "int", "uint", "bool") and names ("u8", "bf16"); admission draws them, and the rule matches no others. option:
    the name of a group that runs only on request ("split"). parameters: variables that must be different parameters, in the order
    of their classes (so that a join of several is found once). roots: kinds of dtypes of the pattern's value; by default any.
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
    dtypes: tuple[str, ...] = KINDS
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
            if not self._are_parameters(e, match) or not self._are_of_dtypes(e, match):
                continue
            for rest, full in self._search(e, index, at + 1, match):
                yield (root, *rest), full

    def _are_parameters(self, e: EGraph, match: Match) -> bool:
        homes = [e.find(match[name]) for name in self.parameters if name in match]
        if homes != sorted(dict.fromkeys(homes)):
            return False
        return all(any(n.op.name == "parameter" for n in e.classes[h].nodes) for h in homes)

    def _are_of_dtypes(self, e: EGraph, match: Match) -> bool:
        """Return whether the rule was admitted at the dtypes of a match."""
        return all(is_among(e.classes[e.find(match[name])].type.dtype, words) for name, words in self._bounded if name in match)

    @cached_property
    def _bounded(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return the tensor variables that may not have every dtype, with the dtypes that they may have."""
        words = {name: self.said[name].dtypes if name in self.said and self.said[name].dtypes else self.dtypes
                 for name, kind in self.variables.items() if kind == "tensor"}
        return tuple((name, w) for name, w in words.items() if not set(KINDS) <= set(w))

    @cached_property
    def said(self) -> dict[str, Said]:
        """Return the entries of `shapes` by variable. Raises PatternError."""
        return _read_shapes(self.shapes, self.name, [n for n, kind in self.variables.items() if kind == "tensor"])

    def _apply(self, e: EGraph, match: Match) -> Equalities | None:
        replacement = self.replace({name: self._argument(e, match, name, kind) for name, kind in self.variables.items()})
        if replacement is None:
            return None
        right = [e.add(node) for node in replacement]
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
        """Return the names of the arguments that the replacement takes."""
        return tuple(inspect.signature(self.replacement).parameters)

    @cached_property
    def variables(self) -> dict[str, str]:
        kinds: dict[str, str] = {}
        for p in self.patterns:
            kinds.update(variables(p))
        return kinds

    def replace(self, values: Mapping[str, Any]) -> tuple[Node, ...] | None:
        """Return the replacement of the patterns, given values for the variables; None if the rule does not hold."""
        try:
            return self.replaced(values)
        except RewriteError:
            raise
        except LanguageError:
            return None

    def replaced(self, values: Mapping[str, Any]) -> tuple[Node, ...] | None:
        """Return the replacement as `replace` does, but raise errors of the language, and PatternError for a non-tensor."""
        named = {name.lstrip(ANY_OP): value for name, value in values.items()}
        result = self.replacement(**{p: named[p] for p in self._asked if p in named})
        if result is None:
            return None
        nodes = (result,) if isinstance(result, Node) else tuple(result) if isinstance(result, (tuple, list)) else None
        if nodes is None or not all(isinstance(n, Node) for n in nodes):
            raise PatternError(f"the rule {self.name} returned {result!r}, of type {type(result).__name__}, which is no tensor",
                               fix="return a tensor made of the function's arguments (tg.constant for a number), or None where "
                                   "the rule does not hold")
        if len(nodes) != len(self.patterns):
            raise PatternError(f"the rule {self.name} returned {len(nodes)} tensors, its patterns are {len(self.patterns)}",
                               fix="one tensor for each pattern")
        return nodes


@dataclass(frozen=True)
class Said:
    """Entry of a variable in `shapes`: its dims (names, or numbers as text), and the dtypes that it may have."""

    dims: tuple[str, ...] | None
    dtypes: tuple[str, ...]


_SAID = re.compile(r"\s*([A-Za-z]\w*)(?:\[([\w\s,]*)\])?(?::(\w+))?(?=\s|$)")


def _read_shapes(text: Any, rule: str, tensors: Sequence[str]) -> dict[str, Said]:
    fix = 'shapes="x[n, k] w[m, k] c:bool": each variable with the names of its dims, or with its dtype'
    if not isinstance(text, str):
        raise PatternError(f"the shapes of the rule {rule} are {text!r}", fix=fix)
    entries: dict[str, Said] = {}
    at = 0
    while text[at:].strip():
        read = _SAID.match(text, at)
        if read is None:
            raise PatternError(f"the shapes of the rule {rule} cannot be read at {text[at:].strip()!r}", fix=fix)
        name, dims, word = read.groups()
        if name not in tensors:
            raise PatternError(f"the shapes of the rule {rule} name {name!r}, which is no tensor of its pattern",
                               fix=f"it has {', '.join(tensors)}")
        entries[name] = Said(None if not dims else tuple(d.strip() for d in dims.split(",")),
                           dtype_words(word, f"the shapes of the rule {rule}") if word else ())
        at = read.end()
    return entries


OPTIONS = ("assuming", "expanding", "option", "parameters", "roots", "shapes", "dtypes")
"""Names of a rule's options, besides its pattern, numeric class, function and name."""


def require_pattern(text: Any) -> None:
    """Raise PatternError unless the pattern is a non-empty string, or several."""
    if not isinstance(text, (str, tuple, list)) or not text:
        raise PatternError(f"the pattern is {text!r}, of type {type(text).__name__}", fix='text: @tg.rule("add(x, y)")')


def make_rule(text: str | Sequence[str], numeric_class: NumericClass, replacement: Callable[..., Any], *, name: str = "",
              **options: Any) -> Rule:
    """Return a rule, given its patterns as text. Raises PatternError for an invalid pattern, or unbound arguments."""
    require_pattern(text)
    texts = [text] if isinstance(text, str) else list(text)
    if numeric_class not in LEVELS:
        raise PatternError(f"the numeric class is {numeric_class!r}", fix=" or ".join(LEVELS))
    if not callable(replacement):
        raise PatternError(f"the replacement is {replacement!r}, of type {type(replacement).__name__}",
                           fix="a function of the pattern's variables that returns a tensor")
    name = name or getattr(replacement, "__name__", type(replacement).__name__)
    if not isinstance(name, str):
        raise PatternError(f"the name of a rule is {name!r}, of type {type(name).__name__}", fix='text: name="mine/add"')
    patterns: list[Application] = []
    for t in texts:
        patterns.append(parse_pattern(t, 1000 * len(patterns)))
    rule = Rule(name, numeric_class, tuple(patterns), replacement, text="; ".join(texts), **_options(name, options))
    names = {v.lstrip(ANY_OP) for v in rule.variables}
    for parameter in inspect.signature(replacement).parameters.values():
        if parameter.name not in names and parameter.default is inspect.Parameter.empty:
            raise PatternError(f"the rule {rule.name} asks for {parameter.name!r}, which its pattern {rule.text!r} does not bind",
                               fix=f"it binds {', '.join(sorted(names))}; what else the function takes needs a default")
    tensors = [n for n, kind in rule.variables.items() if kind == "tensor"]
    for parameter_name in rule.parameters:
        if parameter_name not in tensors:
            raise PatternError(f"the rule {rule.name} asks for the parameter {parameter_name!r}, which is no tensor of its pattern",
                               fix=f"it has {', '.join(tensors)}")
    _read_shapes(rule.shapes, rule.name, tensors)            # what is wrong with them is said now, not when a draw meets it
    return rule


def _options(rule: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a rule as Rule stores them. Raises PatternError for an unknown or invalid option."""
    checked_options = dict(options)
    for name in checked_options:
        if name not in OPTIONS:
            close = close_to(name, OPTIONS, 1)
            raise PatternError(f"the rule {rule} has the option {name!r}, which there is not",
                               fix=f"{f'{close[0]}? ' if close else ''}Options are name, {', '.join(OPTIONS)}")
    if "assuming" in checked_options:
        checked_options["assuming"] = checked(checked_options["assuming"], rule)
    for name in ("dtypes", "roots"):
        if name in checked_options and (checked_options[name] or name == "dtypes"):
            checked_options[name] = dtype_words(checked_options[name], f"the option {name} of the rule {rule}")
    if "parameters" in checked_options:
        one = checked_options["parameters"]
        checked_options["parameters"] = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, (tuple, list)) else None
        if checked_options["parameters"] is None:
            raise PatternError(f"the parameters of the rule {rule} are {one!r}", fix='names of its variables: parameters=("w",)')
    for name, type_ in (("expanding", bool), ("option", str)):
        if name in checked_options and not isinstance(checked_options[name], type_):
            raise PatternError(f"the option {name} of the rule {rule} is {checked_options[name]!r}", fix=f"a {type_.__name__}")
    return checked_options


@dataclass
class RuleTable:
    """The rules of one topic, in the order in which they run."""

    topic: str
    rows: list[Rule] = field(default_factory=list)

    def rule(self, text: str | Sequence[str], numeric_class: NumericClass, **options: Any) -> Callable[[Callable[..., Any]], Rule]:
        """Decorate a function as a rule of this table with the pattern. Tests check its numeric class, not the import."""
        def register(replacement: Callable[..., Any]) -> Rule:
            name = options.pop("name", "") or f"{self.topic}/{replacement.__name__.replace('_', '-')}"
            self.rows.append(make_rule(text, numeric_class, replacement, name=name, **options))
            return self.rows[-1]

        return register

    def row(self, name: str, text: str | Sequence[str], numeric_class: NumericClass, replacement: Callable[..., Any],
            **options: Any) -> None:
        """Add a rule whose replacement is a single expression. name: without the topic."""
        self.rows.append(make_rule(text, numeric_class, replacement, name=f"{self.topic}/{name}", **options))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rows)


@dataclass(frozen=True)
class Refused:
    """A tempting but wrong rule. why: a counterexample, or the reason, for people."""

    name: str
    numeric_class: NumericClass
    pattern: str
    replacement: Callable[..., Any]
    why: str
    dtypes: tuple[str, ...] = ("float",)
    shapes: str = ""

    def rule(self) -> Rule:
        return make_rule(self.pattern, self.numeric_class, self.replacement, name=self.name, dtypes=self.dtypes, shapes=self.shapes)
