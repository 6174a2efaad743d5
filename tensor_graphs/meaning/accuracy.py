"""accuracy: the accuracy that a caller asks of a graph's outputs, as a value: parsed, checked against a graph, met by draws or not.

    parse("norm:logits:1e-3 & kl:logits:0.01").allows(draws).allowed

An Accuracy is a set of terms, each a limit of one statistic (draw_statistics.py) on one output or on every float output. Without
terms it means *as written*: nothing is narrower than the graph says, which no measurement decides. A term is met if the bound that
the draws allow (draw_bound.py) is within its limit. NaN is within no limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, ParamSpec
from urllib.parse import quote, unquote

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, number, text
from tensor_graphs.errors import close_to, listed
from tensor_graphs.language import dims as d
from tensor_graphs.language.explain_call_errors import worded
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import TensorType

if TYPE_CHECKING:
    from tensor_graphs.meaning.draw_bound import Spread
    from tensor_graphs.meaning.draw_statistics import Statistics

Statistic = Literal["max", "norm", "as_written", "kl", "top1", "cosine"]
P = ParamSpec("P")


@dataclass(frozen=True)
class _Range:
    """The limits that a statistic can have, and one as an example. shown: how a term of it reads, with its limit as {}. of_one:
    it judges one output for what this output is, so it is never a limit on every output. best: its value without any error, 1 if
    the limit is a lower one."""

    shown: str
    example: float
    least: float = 0.0
    most: float = math.inf
    of_one: bool = False
    best: float = 0.0

    @property
    def fix(self) -> str:
        return (f"a number from {self.least:g} to {self.most:g}" if self.most < math.inf else "a finite number ≥ 0"
                ) + f", as {self.example:g}"


RANGES: dict[str, _Range] = {
    "max": _Range("max error {}", 1e-5),
    "norm": _Range("norm {}", 1e-3),
    "as_written": _Range("{} × the norm as written", 1.0),
    "kl": _Range("kl {}", 0.01, of_one=True),
    "top1": _Range("top1 {}", 0.98, most=1.0, of_one=True, best=1.0),
    "cosine": _Range("cosine {}", 0.999, least=-1.0, most=1.0, of_one=True, best=1.0),
}
WRITTEN = "written"
ANY_STATISTIC = f"one of {', '.join(RANGES)}"
ANY = "1e-5, norm:1e-3, kl:logits:0.01, logits=1e-2, or several of them joined by &; None for as written"


@dataclass(frozen=True)
class Term:
    """A limit on one statistic: an upper one; of top1 (a share) and cosine a lower one. output: "" for every float output. The
    limit of `as_written` is a factor of the norm error that the graph has when it is evaluated in its own dtypes.

    Raises ArgumentError for a statistic that does not exist, and for a limit that it cannot have.
    """

    statistic: Statistic
    limit: float
    output: str = ""

    def __post_init__(self) -> None:
        if self.statistic not in RANGES:
            raise ArgumentError(f"there is no statistic {self.statistic!r} of an error\n  fix: {ANY_STATISTIC}")
        text("the output of a tolerance", self.output, f"the name of an output, as {_call(self.statistic, True)}")
        allowed, name = RANGES[self.statistic], f"the limit of {self.statistic}{self.output and f' on {self.output!r}'}"
        limit = number(name, self.limit, allowed.fix, allowed.least)
        if limit > allowed.most:
            raise ArgumentError(f"{name} is {limit:g}\n  fix: {allowed.fix}")
        object.__setattr__(self, "limit", limit + 0.0)               # −0.0 would have another text

    def __str__(self) -> str:
        return RANGES[self.statistic].shown.format(f"{self.limit:g}") + (f" on {self.output}" if self.output else "")

    @property
    def text(self) -> str:
        """The term as `parse` reads it. Characters of the output's name that separate terms are written as in a URL: %26."""
        output = re.sub(r"[%&,=\s]", lambda match: quote(match[0], safe=""), self.output)
        return f"{self.statistic}:{output}{output and ':'}{self.limit!r}"


@dataclass(frozen=True)
class Allowed:
    """Decision on a path: `allowed`, and the worst term with the bound on its statistic. (Of `as_written`, the bound is relative to
    the norm as written.) The term names its output. It is None where nothing was asked."""

    allowed: bool
    bound: float
    term: Term | None

    @property
    def ratio(self) -> float:
        """The error's bound as a share of the limit (of top1 and cosine, both are differences from 1); 0 if nothing was asked."""
        if self.term is None:
            return 0.0
        best = RANGES[self.term.statistic].best
        return _ratio(abs(best - self.bound), abs(best - self.term.limit))


@dataclass(frozen=True)
class Accuracy:
    """Limits that all have to hold; () is as written. Terms are unique and in a fixed order, so equal requests are `==`."""

    terms: tuple[Term, ...] = ()

    def __post_init__(self) -> None:
        order = list(RANGES)
        unique = sorted(set(self.terms), key=lambda term: (order.index(term.statistic), term.output, term.limit))
        object.__setattr__(self, "terms", tuple(unique))

    def __and__(self, other: Accuracy | float | Mapping[str, float | None] | str | None) -> Accuracy:
        return Accuracy(self.terms + parse(other).terms)

    __rand__ = __and__

    def __str__(self) -> str:
        return " and ".join(map(str, self.terms)) or "as written"

    @property
    def text(self) -> str:
        """The canonical text, which `parse` reads back: the same for equal accuracies."""
        return "&".join(term.text for term in self.terms) or WRITTEN

    def allows(self, draws: Sequence[Mapping[str, Statistics]], written: Sequence[Mapping[str, Statistics]] = (),
               spread: Spread | None = None) -> Allowed:
        """Return whether a path is accurate enough, with the worst term.

        draws: the path's statistics by output, one mapping per draw. written: those of the graph evaluated in its own dtypes, for
        terms of `as_written`. An output that a draw lacks is within no limit.
        """
        worst, rank = Allowed(True, 0.0, None), (False, -1.0)
        every = dict.fromkeys(output for draw in draws for output in draw) if draws else [""]
        for term in self.terms:
            for output in [term.output] if term.output else every:
                value = _bound(term, output, draws, written, spread)
                within = value >= term.limit if RANGES[term.statistic].best else value <= term.limit
                decision = Allowed(within, value, replace(term, output=output))
                if (not within, decision.ratio) > rank:
                    worst, rank = decision, (not within, decision.ratio)
        return worst


def _bound(term: Term, output: str, draws: Sequence[Mapping[str, Statistics]], written: Sequence[Mapping[str, Statistics]],
           spread: Spread | None) -> float:
    from tensor_graphs.meaning.draw_bound import PRIOR, bound  # here: what is as written needs no bounds

    relative = term.statistic == "as_written"
    field = "norm" if relative else term.statistic

    def values(of: Sequence[Mapping[str, Statistics]]) -> list[float]:
        return [getattr(draw[output], field) if output in draw else math.nan for draw in of]

    if not relative:
        return bound(values(draws), field, spread or PRIOR)
    norms, of_written = values(draws), values(written)              # on the same draws, so their means are compared
    if not of_written or any(map(math.isnan, (*norms, *of_written))):
        return math.inf
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        return _ratio(float(np.exp(np.mean(np.log(norms)))), float(np.exp(np.mean(np.log(of_written)))))


def _ratio(error: float, limit: float) -> float:
    """Return error ÷ limit, for both ≥ 0: 0 for no error, else ∞ for no limit. An error that is not finite is beyond any limit."""
    return 0.0 if error == 0 else math.inf if limit == 0 or not math.isfinite(error) else error / limit


def _call(statistic: str, names_output: bool) -> str:
    """Return a call of the constructor of a statistic, as an example."""
    allowed = RANGES[statistic]
    arguments = [f"{allowed.example:g}", *['"logits"'] * (names_output or allowed.of_one)]
    name = {"max": "maximum"}.get(statistic, statistic)
    return f"tg.accuracy.{name}({', '.join(reversed(arguments) if allowed.of_one else arguments)})"


def _constructor(function: Callable[P, Accuracy]) -> Callable[P, Accuracy]:
    name = function.__name__
    return worded(function, f"tg.accuracy.{name}", _call("max" if name == "maximum" else name, False))


@_constructor
def maximum(limit: float, output: str = "") -> Accuracy:
    """Limit the largest error of an element, relative to the element or its row and beyond the output's own last rounding."""
    return Accuracy((Term("max", limit, output),))


@_constructor
def norm(limit: float, output: str = "") -> Accuracy:
    """Limit the root mean square over rows of ‖out − reference‖ / ‖reference‖."""
    return Accuracy((Term("norm", limit, output),))


@_constructor
def as_written(factor: float, output: str = "") -> Accuracy:
    """Limit the norm error to `factor` times that of the graph evaluated in its own dtypes on the same draws."""
    return Accuracy((Term("as_written", factor, output),))


@_constructor
def kl(output: str, limit: float) -> Accuracy:
    """Limit the mean over rows of KL(softmax(reference) ‖ softmax(out)), in nats. output: rows of logits."""
    return Accuracy((Term("kl", limit, output),))


@_constructor
def top1(output: str, share: float) -> Accuracy:
    """Ask for a share (0 to 1) of rows whose largest element is where the reference's is. output: rows of logits."""
    return Accuracy((Term("top1", share, output),))


@_constructor
def cosine(output: str, least: float) -> Accuracy:
    """Ask for at least this cosine between each row and the reference's."""
    return Accuracy((Term("cosine", least, output),))


def parse(value: Accuracy | float | Mapping[str, float | None] | str | None) -> Accuracy:
    """Return the accuracy that a value means. Raises ArgumentError, with what fits.

    None: as written. A number: the largest error of every float output. A mapping: the largest error per output; an output with
    None, or left out, is as written. Text, for the command line: "1e-5", "logits=1e-2", "norm:1e-3", "norm:logits:1e-3" (statistic,
    output, limit), or several joined by "&" or ","; "written".
    """
    if isinstance(value, Accuracy):
        return value
    if value is None:
        return Accuracy()
    if isinstance(value, str):
        parts = [part.strip() for part in re.split("[&,]", value)]
        return Accuracy() if parts == [WRITTEN] else Accuracy(tuple(_term(part) for part in parts))
    if not isinstance(value, Mapping):
        return maximum(number("the tolerance", value, f"a finite number ≥ 0, {ANY}"))
    if not all(isinstance(name, str) and name for name in value):
        raise ArgumentError(f"the tolerance names outputs by {listed(map(repr, value))}\n  fix: their names, as {{'logits': 1e-2}}")
    return Accuracy(tuple(Term("max", limit, name) for name, limit in value.items() if limit is not None))


def _term(part: str) -> Term:
    head, colon, rest = part.partition(":")
    statistic: Any = head.strip()
    if colon and statistic in RANGES:
        output, _, limit = rest.rpartition(":")
    elif colon and "=" not in part:
        raise ArgumentError(f"there is no statistic {statistic!r} of an error\n  fix: {ANY_STATISTIC}, as kl:logits:0.01")
    else:
        statistic, (output, _, limit) = "max", part.rpartition("=")
    try:
        return Term(statistic, float(limit), unquote(output.strip()))
    except ValueError as e:
        if isinstance(e, ArgumentError):
            raise
        fix = _with_number(head, output, limit) or ANY
        raise ArgumentError(f"the tolerance {part!r} ends in no number\n  fix: {fix}") from None


def _with_number(head: str, output: str, limit: str) -> str:
    """Return a term that a text without a number at its end may mean: kl:logits:0.01 for "kl:logits", norm:logits:1e-3 for
    "norm:1e-3:logits"; "" if it begins with no statistic."""
    statistic = head.strip()
    if statistic not in RANGES:
        return ""
    try:
        float(output)
    except ValueError:
        name = (output or limit).strip() if limit != head else ""
        return ":".join(filter(None, (statistic, name, f"{RANGES[statistic].example:g}")))
    return f"{statistic}:{limit.strip()}:{output.strip()}"


def check(accuracy: Accuracy, graph: Graph) -> None:
    """Raise ArgumentError for a term on an output that the graph does not have, and for kl, top1 or cosine of one without float
    rows of two elements or more. Those three may leave the output out if the graph has one float output only."""
    fitting = [name for name, node in graph.outputs.items() if _has_rows(node.type)]
    for term in accuracy.terms:
        outputs = _outputs(term, graph)
        if not RANGES[term.statistic].of_one:
            if term.output and not graph.outputs[term.output].dtype.is_float:
                floats = [name for name, node in graph.outputs.items() if node.dtype.is_float]
                raise ArgumentError(f"{term}: it is {graph.outputs[term.output].type}, and only floats have an error\n"
                                    f"  fix: {_examples(term, floats)}")
            continue
        if len(outputs) != 1:
            raise ArgumentError(f"{term} names no output, and the graph has {len(outputs)} of floats\n"
                                f"  fix: {_examples(term, fitting)}")
        if outputs[0] not in fitting:
            raise ArgumentError(f"{term}: {graph.outputs[outputs[0]].type} has no rows of two floats or more\n"
                                f"  fix: {_examples(term, fitting)}")


def named(accuracy: Accuracy, graph: Graph) -> Accuracy:
    """Return the accuracy with a term per float output in place of each term on every output. Raises what `check` raises."""
    check(accuracy, graph)
    return Accuracy(tuple(replace(term, output=name) for term in accuracy.terms for name in _outputs(term, graph)))


def _has_rows(type: TensorType) -> bool:
    return type.dtype.is_float and type.rank > 0 and d.bounds(type.shape[-1])[1] >= 2


def _outputs(term: Term, graph: Graph) -> list[str]:
    """Return the names of the outputs that a term limits. Raises ArgumentError for a name that the graph does not have."""
    if not term.output:
        return [name for name, node in graph.outputs.items() if node.dtype.is_float]
    if term.output not in graph.outputs:
        near = close_to(term.output, graph.outputs)
        raise ArgumentError(f"{term}: the graph has no such output; it has {listed(graph.outputs) or 'none'}\n"
                            f"  fix: {_examples(term, near or graph.outputs)}")
    return [term.output]


def _examples(term: Term, outputs: Iterable[str]) -> str:
    return " or ".join(replace(term, output=name).text for name in list(outputs)[:3]) or "leave this term out"
