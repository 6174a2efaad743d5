"""softmax: naive, safe and online (split) softmax, and the forms with log-sum-exp.

The split rules run on request (option "split"): they halve the reduced axis. The shift of an entire row then becomes a shift of
each half, rescaled when the halves are joined: online softmax (Milakov and Gimelshein 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.composites import exp, log_softmax, logsumexp, softmax
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import BITWISE, REASSOCIATING, Refused, RuleTable

TABLE = RuleTable("softmax")
FLOATS = ("float",)


def _kept(s: Any, axis: int) -> bool:
    """Return whether a shape keeps the reduced axis with size 1."""
    return 0 <= axis < len(s) and bool(s[axis] == 1)


@TABLE.rule("div(exp(x), expand(reshape(sum(exp(x), axes=a), shape=s), shape=t))", REASSOCIATING, dtypes=FLOATS,
            assuming=("no overflow",), shapes="x[n, m]", name="softmax/naive-to-safe")
def naive(x: Node, a: tuple[int, ...], s: Any) -> Node | None:
    """Replace e^x / Σ e^x, which overflows, by softmax, which does not."""
    if len(a) != 1 or tuple(s) != tuple(1 if i in a else n for i, n in enumerate(x.shape)):
        return None
    return softmax(x, axis=a[0])


def _along(axis: int, x: Node) -> int:
    return axis % x.rank


# What is the same along the axis does not matter.
TABLE.row("shifted", "softmax(sub(x, expand(c, shape=s)), axis=k)", REASSOCIATING,
          lambda x, c, k: None if c.shape[_along(k, x)] != 1 else softmax(x, axis=k), dtypes=FLOATS, shapes="x[n, m] c[n, 1]")
TABLE.row("shifted-up", "softmax(add(x, expand(c, shape=s)), axis=k)", REASSOCIATING,
          lambda x, c, k: None if c.shape[_along(k, x)] != 1 else softmax(x, axis=k), dtypes=FLOATS, shapes="x[n, m] c[n, 1]")
TABLE.row("log-of-softmax", "log(softmax(x, axis=k))", REASSOCIATING,
          lambda x, k: log_softmax(x, axis=k), dtypes=FLOATS, assuming=("no overflow",))
TABLE.row("exp-of-log-softmax", "exp(log_softmax(x, axis=k))", REASSOCIATING, lambda x, k: softmax(x, axis=k), dtypes=FLOATS)
TABLE.row("log-softmax-by-logsumexp", "log_softmax(x, axis=k)", REASSOCIATING,
          lambda x, k: x - logsumexp(x, axis=k, keepdims=True), dtypes=FLOATS, expanding=True)
TABLE.row("softmax-by-logsumexp", "softmax(x, axis=k)", REASSOCIATING,
          lambda x, k: exp(x - logsumexp(x, axis=k, keepdims=True)), dtypes=FLOATS, expanding=True, option="split")
TABLE.row("naive-logsumexp", "log(sum(exp(x), axes=a))", REASSOCIATING,
          lambda x, a: logsumexp(x, axis=a[0]) if len(a) == 1 else None, dtypes=FLOATS, assuming=("no overflow",))


def _halves(x: Node, a: tuple[int, ...], reduce: Callable[..., Node], join: Callable[[Node, Node], Node]) -> Node | None:
    """Return the joined reductions of the two halves of the last reduced axis; None if it may have fewer than two elements."""
    if not a:
        return None
    axis, size = a[-1], x.shape[a[-1]]
    if dim_ge(size, 2) is not True:
        return None

    def part(lo: Any, hi: Any) -> Node:
        return reduce(atomic.slice(x, [(lo, hi, 1) if i == axis else (0, s, 1) for i, s in enumerate(x.shape)]), a)

    return join(part(0, size // 2), part(size // 2, size))


TABLE.row("split-max", "reduce_max(x, axes=a)", BITWISE,
          lambda x, a: _halves(x, a, atomic.reduce_max, atomic.max),
          dtypes=("float", "int", "uint"), expanding=True, option="split")
TABLE.row("split-sum", "sum(x, axes=a)", REASSOCIATING,
          lambda x, a: _halves(x, a, atomic.sum, atomic.add), dtypes=FLOATS, expanding=True, option="split")


REFUSED = (
    Refused("softmax/other-axis", REASSOCIATING, "softmax(x, axis=k)", lambda x, k: softmax(x, axis=(k + 1) % x.rank),
            "columns are no rows", shapes="x[n, m]"),
    Refused("softmax/scaled", REASSOCIATING, "softmax(mul(x, expand(c, shape=s)), axis=k)", lambda x, k: softmax(x, axis=k),
            "a factor is no shift", shapes="x[n, m] c[n, 1]"),
)
