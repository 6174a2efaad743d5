"""elementwise: views exchanged with ops that work element by element. Bitwise: the same numbers at other positions.

Reshapes and expands move behind an op (which then works on fewer elements, and equal work meets); slices move before the op.
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


TABLE.row("reshape-out", "_f(reshape(x, shape=s))", BITWISE, lambda f, x, s: atomic.reshape(f(x), s))
TABLE.row("permute-out", "_f(permute(x, axes=a))", BITWISE, lambda f, x, a: atomic.permute(f(x), a))
TABLE.row("expand-out", "_f(expand(x, shape=s))", BITWISE, lambda f, x, s: atomic.expand(f(x), s))
TABLE.row("reshape-out-of-two", "_f(reshape(x, shape=s), reshape(y, shape=s))", BITWISE,
          lambda f, x, y, s: atomic.reshape(f(x, y), s) if x.shape == y.shape else None)
TABLE.row("permute-out-of-two", "_f(permute(x, axes=a), permute(y, axes=a))", BITWISE,
          lambda f, x, y, a: atomic.permute(f(x, y), a))


def _common(x: Node, y: Node) -> list[Dim] | None:
    """Return the shape to which x and y expand; None if axes other than those of size 1 differ."""
    shape: list[Dim] = []
    for a, b in zip(x.shape, y.shape, strict=True):
        if a != b and a != 1 and b != 1:
            return None
        shape.append(b if a == 1 else a)
    return shape


@TABLE.rule("_f(expand(x, shape=s), expand(y, shape=s))", BITWISE)
def expand_out_of_two(f: F, x: Node, y: Node, s: Any) -> Node | None:
    """Apply the op before both operands are repeated."""
    common = _common(x, y)
    if common is None or tuple(common) == tuple(s):
        return None
    return atomic.expand(f(atomic.expand(x, common), atomic.expand(y, common)), s)


def _stretched(c: Node, x: Node) -> Node | None:
    """Return a single number repeated to x's shape; None if c has more elements."""
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


# x is permuted there and back: it stays, and y is permuted instead.
TABLE.row("permute-to-the-other", "permute(_f(permute(x, axes=a), y), axes=b)", BITWISE,
          lambda f, x, y, a, b: f(x, atomic.permute(y, b)) if _undoes(a, b) else None, shapes="x[n, m] y[m, n]")
TABLE.row("permute-to-the-first", "permute(_f(y, permute(x, axes=a)), axes=b)", BITWISE,
          lambda f, x, y, a, b: f(atomic.permute(y, b), x) if _undoes(a, b) else None, shapes="x[n, m] y[m, n]")
TABLE.row("slice-into", "slice(_f(x), bounds=b)", BITWISE, lambda f, x, b: f(atomic.slice(x, b)), expanding=True)
TABLE.row("slice-into-two", "slice(_f(x, y), bounds=b)", BITWISE,
          lambda f, x, y, b: f(atomic.slice(x, b), atomic.slice(y, b)), expanding=True)
TABLE.row("reshape-into-max", "reshape(max(x, y), shape=s)", BITWISE,
          lambda x, y, s: atomic.max(atomic.reshape(x, s), atomic.reshape(y, s)), expanding=True, option="split")
TABLE.row("expand-into-max", "expand(max(x, y), shape=s)", BITWISE,
          lambda x, y, s: atomic.max(atomic.expand(x, s), atomic.expand(y, s)), expanding=True, option="split")
