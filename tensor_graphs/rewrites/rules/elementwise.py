"""elementwise: views exchanged with ops that work element by element. Bitwise: the same numbers in other places.

Reshapes and expands are pulled behind an op (which then works on fewer elements, and equal work meets); slices are pushed
before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, RuleTable

TABLE = RuleTable("elementwise")
F = Callable[..., Node]


@TABLE.rule("_f(reshape(x, shape=s))", BITWISE)
def reshape_out(f: F, x: Node, s: Any) -> Node:
    return atomic.reshape(f(x), s)


@TABLE.rule("_f(permute(x, axes=a))", BITWISE)
def permute_out(f: F, x: Node, a: Any) -> Node:
    return atomic.permute(f(x), a)


@TABLE.rule("_f(expand(x, shape=s))", BITWISE)
def expand_out(f: F, x: Node, s: Any) -> Node:
    return atomic.expand(f(x), s)


@TABLE.rule("_f(reshape(x, shape=s), reshape(y, shape=s))", BITWISE)
def reshape_out_of_two(f: F, x: Node, y: Node, s: Any) -> Node | None:
    return atomic.reshape(f(x, y), s) if x.shape == y.shape else None


@TABLE.rule("_f(permute(x, axes=a), permute(y, axes=a))", BITWISE)
def permute_out_of_two(f: F, x: Node, y: Node, a: Any) -> Node:
    return atomic.permute(f(x, y), a)


def _common(x: Node, y: Node) -> list[Dim] | None:
    """The shape that both stretch to; None when axes other than those of size 1 differ."""
    found: list[Dim] = []
    for a, b in zip(x.shape, y.shape, strict=True):
        if a != b and a != 1 and b != 1:
            return None
        found.append(b if a == 1 else a)
    return found


@TABLE.rule("_f(expand(x, shape=s), expand(y, shape=s))", BITWISE)
def expand_out_of_two(f: F, x: Node, y: Node, s: Any) -> Node | None:
    """Computed before it is repeated."""
    common = _common(x, y)
    if common is None or tuple(common) == tuple(s):
        return None
    return atomic.expand(f(atomic.expand(x, common), atomic.expand(y, common)), s)


def _stretched(c: Node, x: Node) -> Node | None:
    """One number, repeated to x's shape."""
    return None if any(s != 1 for s in c.shape) else atomic.expand(atomic.reshape(c, (1,) * x.rank), x.shape)


@TABLE.rule("_f(reshape(x, shape=s), expand(c, shape=s))", BITWISE)
def reshape_out_beside_number(f: F, x: Node, c: Node, s: Any) -> Node | None:
    y = _stretched(c, x)
    return None if y is None else atomic.reshape(f(x, y), s)


@TABLE.rule("_f(expand(c, shape=s), reshape(x, shape=s))", BITWISE)
def reshape_out_behind_number(f: F, x: Node, c: Node, s: Any) -> Node | None:
    y = _stretched(c, x)
    return None if y is None else atomic.reshape(f(y, x), s)


@TABLE.rule("_f(permute(x, axes=a), expand(c, shape=s))", BITWISE)
def permute_out_beside_number(f: F, x: Node, c: Node, a: Any) -> Node | None:
    y = _stretched(c, x)
    return None if y is None else atomic.permute(f(x, y), a)


def _undoes(a: Any, b: Any) -> bool:
    return [a[i] for i in b] == list(range(len(a)))


@TABLE.rule("permute(_f(permute(x, axes=a), y), axes=b)", BITWISE, shapes="x[n, m] y[m, n]")
def permute_to_the_other(f: F, x: Node, y: Node, a: Any, b: Any) -> Node | None:
    """x is permuted there and back: it stays, and y is permuted instead."""
    return f(x, atomic.permute(y, b)) if _undoes(a, b) else None


@TABLE.rule("permute(_f(y, permute(x, axes=a)), axes=b)", BITWISE, shapes="x[n, m] y[m, n]")
def permute_to_the_first(f: F, x: Node, y: Node, a: Any, b: Any) -> Node | None:
    return f(atomic.permute(y, b), x) if _undoes(a, b) else None


@TABLE.rule("slice(_f(x), bounds=b)", BITWISE, expanding=True)
def slice_into(f: F, x: Node, b: Any) -> Node:
    return f(atomic.slice(x, b))


@TABLE.rule("slice(_f(x, y), bounds=b)", BITWISE, expanding=True)
def slice_into_two(f: F, x: Node, y: Node, b: Any) -> Node:
    return f(atomic.slice(x, b), atomic.slice(y, b))


@TABLE.rule("reshape(max(x, y), shape=s)", BITWISE, expanding=True, option="split")
def reshape_into_max(x: Node, y: Node, s: Any) -> Node:
    return atomic.max(atomic.reshape(x, s), atomic.reshape(y, s))


@TABLE.rule("expand(max(x, y), shape=s)", BITWISE, expanding=True, option="split")
def expand_into_max(x: Node, y: Node, s: Any) -> Node:
    return atomic.max(atomic.expand(x, s), atomic.expand(y, s))
