"""provenance: why two terms of an e-graph are equal, step by step.

The unions of a class form a tree whose edges are applications of rules or congruences. The path between two terms is the
proof that they are equal; a congruence on it is proved by those of the operands, first. What comes out is a list of
steps in an order in which each may be checked: this term is that term, by this rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensor_graphs.language.dims import Expr, format_dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.rewrites.egraph import CONGRUENCE, EGraph, rounded
from tensor_graphs.rewrites.errors import RewriteError


@dataclass(frozen=True)
class Step:
    """One application of a rule: the term `before` is the term `after` (or the other way round, where `backwards`)."""

    rule: str
    before: int
    after: int
    backwards: bool = False


def derive(e: EGraph, left: int, right: int) -> list[Step]:
    """The steps that make two equal terms equal. Raises RewriteError when they are not."""
    if e.find(left) != e.find(right):
        raise RewriteError("no derivation: the two are not known to be equal")
    steps: list[Step] = []
    done: set[tuple[int, int]] = set()
    said: set[int] = set()
    # paths that are being walked, so that depth is no limit
    stack: list[list[tuple[int, bool]]] = [_path(e, left, right)]
    while stack:
        if not stack[-1]:
            stack.pop()
            continue
        edge, backwards = stack[-1].pop(0)
        found = e.edges[edge]
        a, b = (found.right, found.left) if backwards else (found.left, found.right)
        if found.reason != CONGRUENCE:
            if edge not in said:
                said.add(edge)
                steps.append(Step(found.reason, a, b, backwards))
            continue
        for x, y in _paired(e, a, b):
            if x != y and (x, y) not in done:
                done.add((x, y))
                stack.append(_path(e, x, y))
    return steps


def _paired(e: EGraph, a: int, b: int) -> list[tuple[int, int]]:
    """The operands of two congruent terms, those of commutative ops by their classes."""
    left, right = list(e.terms[a].children), list(e.terms[b].children)
    if getattr(e.terms[a].op, "commutative", False) and len(left) == 2:
        straight = all(e.find(x) == e.find(y) for x, y in zip(left, right, strict=True))
        if not straight:
            right.reverse()
    return list(zip(left, right, strict=True))


def _path(e: EGraph, left: int, right: int) -> list[tuple[int, bool]]:
    """The edges from one term to another one of its class, each with whether it is walked from right to left."""
    before: dict[int, tuple[int, int, bool]] = {left: (left, -1, False)}
    queue = deque([left])
    while queue and right not in before:
        at = queue.popleft()
        for number in e.edges_of[at]:
            edge = e.edges[number]
            other, backwards = (edge.right, False) if edge.left == at else (edge.left, True)
            if other not in before:
                before[other] = (at, number, backwards)
                queue.append(other)
    path: list[tuple[int, bool]] = []
    at = right
    while at != left:
        at, number, backwards = before[at]
        path.append((number, backwards))
    return path[::-1]


def show_term(e: EGraph, term: int, depth: int = 4) -> str:
    """A term as text: ops and leaves by name, fills as their number, `…` below the depth."""
    node = e.terms[term]
    name = node.op.name
    if node.op.kind == "leaf" and "name" in node.attrs:
        return str(node.attrs["name"])
    splat = _splat(e, term)
    if splat is not None:
        return splat
    if depth == 0:
        return "…"
    inner = [show_term(e, c, depth - 1) for c in node.children]
    if name in INFIX and len(inner) == 2:
        return f"({inner[0]} {INFIX[name]} {inner[1]})"
    if name in ("reshape", "expand"):
        return f"{name}({inner[0]}, {_attribute(e.types[term].shape)})"
    attrs = [f"{k}={_attribute(v)}" for k, v in node.attrs.items() if k != "absent"]
    return f"{name}({'; '.join([', '.join(inner), *([', '.join(attrs)] if attrs else [])])})" + (
        f"[{node.output}]" if node.output else "")


INFIX = {"add": "+", "sub": "−", "mul": "·", "div": "/", "less": "<", "dot": "@"}


def _splat(e: EGraph, term: int) -> str | None:
    """The number of a constant, or of a view of one; what the term itself says, not its class."""
    node = e.terms[term]
    while node.op.name in ("reshape", "expand", "permute"):
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


def show_steps(e: EGraph, steps: list[Step]) -> str:
    """The steps, numbered, each on two lines under the name of its rule."""
    lines = []
    for number, s in enumerate(steps, 1):
        arrow = "← (read backwards)" if s.backwards else "→"
        lines.append(f"{number:3}. {s.rule} {arrow}\n       {show_term(e, s.before)}\n     = {show_term(e, s.after)}")
    return "\n".join(lines)
