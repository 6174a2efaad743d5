"""provenance: why two terms of an e-graph are equal, step by step.

The unions of a class form a tree whose edges are applications of rules, or congruences. The path between two terms is the proof
that they are equal. A congruence on the path is proved first, by the proofs of its operands. The result is a list of steps in an
order in which each can be checked: one term equals another term by one rule.
"""

from __future__ import annotations

import itertools
import string
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from tensor_graphs.language.dims import Expr, format_dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.rewrites.egraph import CONGRUENCE, EGraph, rounded
from tensor_graphs.rewrites.errors import RewriteError


@dataclass(frozen=True)
class RuleStep:
    """One application of a rule that shows two terms to be equal. backwards: the rule leads from `after` to `before`."""

    rule: str
    before: int
    after: int
    backwards: bool = False


def derive(e: EGraph, left: int, right: int) -> list[RuleStep]:
    """Return the steps that prove two terms equal, by a short path, which may use unions that joined nothing. Raises RewriteError
    if they are not equal. A congruence is proved by older unions only, as these do not depend on it."""
    if e.find(left) != e.find(right):
        raise RewriteError("no derivation: the two are not known to be equal")
    steps: list[RuleStep] = []
    done: set[tuple[int, int]] = set()
    proved: set[int] = set()
    # pairs that are being proved, each with the rest of its path; a list of our own, so that depth is no limit
    stack = [((left, right), _path(e, left, right, len(e.edges)))]
    while stack:
        pair, path = stack[-1]
        if not path:
            done.add(pair)
            stack.pop()
            continue
        edge, backwards = path.popleft()
        step = e.edges[edge]
        a, b = (step.right, step.left) if backwards else (step.left, step.right)
        if step.reason != CONGRUENCE:
            if edge not in proved:
                proved.add(edge)
                steps.append(RuleStep(step.reason, a, b, backwards))
            continue
        for x, y in reversed(_paired(e, a, b)):
            if x != y and (x, y) not in done:
                stack.append(((x, y), _path(e, x, y, edge)))
    return steps


def _paired(e: EGraph, a: int, b: int) -> list[tuple[int, int]]:
    """Return the operands of two congruent terms in pairs; those of commutative ops are paired by their classes."""
    left, right = list(e.terms[a].children), list(e.terms[b].children)
    if getattr(e.terms[a].op, "commutative", False) and len(left) == 2:
        straight = all(e.find(x) == e.find(y) for x, y in zip(left, right, strict=True))
        if not straight:
            right.reverse()
    return list(zip(left, right, strict=True))


def _path(e: EGraph, left: int, right: int, before: int) -> deque[tuple[int, bool]]:
    """Return the cheapest path between two terms over unions older than `before`: each union, and whether it is walked from right
    to left. A rule costs one step, a congruence an estimated two for each operand that differs."""
    came: dict[int, tuple[int, int, bool]] = {}
    costs, queue = {left: 0}, [(0, left)]
    while queue:
        cost, at = heappop(queue)
        if at == right:
            break
        if cost > costs[at]:
            continue
        for number in e.edges_of[at]:
            if number >= before:
                break                                               # they are listed in the order of their age
            edge = e.edges[number]
            other, backwards = (edge.right, False) if edge.left == at else (edge.left, True)
            through = cost + (1 if edge.reason != CONGRUENCE else 2 * sum(x != y for x, y in _paired(e, edge.left, edge.right)))
            if other not in costs or through < costs[other]:
                costs[other] = through
                came[other] = (at, number, backwards)
                heappush(queue, (through, other))
    path: deque[tuple[int, bool]] = deque()
    at = right
    while at != left:
        at, number, backwards = came[at]
        path.appendleft((number, backwards))
    return path


DEPTH = 4
"""Depth to which the shared part of a step's two sides is written; `…` replaces ops below it."""

LONG = 24
"""Length in characters from which a part that occurs more than once gets a name."""


def show_term(e: EGraph, term: int, depth: int = DEPTH, names: Mapping[int, str] | None = None, fills: bool = True) -> str:
    """Return a term as text: ops and leaves by name, `…` below the depth (-1: no limit). fills: write repeated constants as
    numbers."""
    if names is not None and term in names:
        return names[term]
    node = e.terms[term]
    name = node.op.name
    if node.op.kind == "leaf" and "name" in node.attrs:
        return str(node.attrs["name"])
    splat = _splat(e, term) if fills or node.op.name == "constant" else None
    if splat is not None:
        return splat
    if depth == 0:
        return "…"
    inner = [show_term(e, c, depth - 1, names, fills) for c in node.children]
    if node.op.facts.symbol and len(inner) == 2:
        return f"({inner[0]} {node.op.facts.symbol} {inner[1]})"
    if node.op.facts.rearranges and "shape" in node.attrs:
        return f"{name}({inner[0]}, {_attribute(e.types[term].shape)})"
    attrs = [f"{k}={_attribute(v)}" for k, v in node.attrs.items() if k != "absent"]
    return f"{name}({'; '.join([', '.join(inner), *([', '.join(attrs)] if attrs else [])])})" + (
        f"[{node.output}]" if node.output else "")


def show_equation(e: EGraph, before: int, after: int) -> list[str]:
    """Return the lines of an equation: both sides of a step in full, and the meaning of the names in them. A long part that both
    sides share, or that occurs twice, gets a name. `…` occurs only inside shared parts, so different sides never read the same."""
    shared = set(_walk(e, [before])) & set(_walk(e, [after]))
    parts = _walk(e, [before, after], shared)
    counts = Counter(c for t in parts if t not in shared for c in e.terms[t].children)
    taken = {str(e.terms[t].attrs.get("name")) for t in _walk(e, [before, after])}
    letters = (n for n in ("".join(w) for k in itertools.count(1) for w in itertools.product(string.ascii_uppercase, repeat=k))
               if n not in taken)
    names: dict[int, str] = {}
    meanings: list[str] = []
    for term in parts:                                              # operands first: names stand in what is named after them
        text = show_term(e, term, DEPTH if term in shared else -1, names)
        if (len(text) > LONG and (term in shared or counts[term] > 1)) or "…" in text:
            names[term] = next(letters)
            meanings.append(f"{'where' if not meanings else '     '} {names[term]} = {text}")
    sides = [show_term(e, side, -1, names) for side in (before, after)]
    if sides[0] == sides[1]:                                        # one number, repeated in two ways
        sides = [show_term(e, side, -1, names, fills=False) for side in (before, after)]
    return [sides[0], f"= {sides[1]}", *(f"  {line}" for line in meanings)]


def _walk(e: EGraph, roots: Sequence[int], stop: Collection[int] = ()) -> list[int]:
    """Return terms with their operands at every depth, operands first; operands of terms in `stop` are left out."""
    order: dict[int, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        term, complete = stack.pop()
        if complete:
            order[term] = None
        elif term not in order:
            stack.append((term, True))
            if term not in stop:
                stack += [(c, False) for c in reversed(e.terms[term].children)]
    return list(order)


def _splat(e: EGraph, term: int) -> str | None:
    """Return the number of a term that is a constant or a view of one, as text, else None; other terms of its class do not count.
    """
    node = e.terms[term]
    while node.op.facts.rearranges:
        node = e.terms[node.children[0]]
    if node.op.name != "constant":
        return None
    value = rounded(node.attrs["value"], node.attrs["dtype"])
    return None if value is None else _attribute(value)


def _attribute(value: Any) -> str:
    shown: dict[type, Callable[[Any], str]] = {Expr: format_dim, float: lambda v: f"{v:.6g}", DType: lambda v: str(v.name)}
    for kind, f in shown.items():
        if isinstance(value, kind):
            return f(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_attribute, value)) + "]"
    return str(value)


def show_steps(e: EGraph, steps: list[RuleStep]) -> str:
    """Return the steps as numbered equations, each under the name of its rule."""
    lines = []
    for number, s in enumerate(steps, 1):
        arrow = "← (read backwards)" if s.backwards else "→"
        left, *others = show_equation(e, s.before, s.after)
        lines += [f"{number:3}. {s.rule} {arrow}", f"       {left}", *(f"     {line}" for line in others)]
    return "\n".join(lines)
