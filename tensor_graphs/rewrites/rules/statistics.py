"""statistics: mean and variance — scaled sums, one and two passes, halves merged as by Welford and Chan (Chan et al. 1979)."""

from __future__ import annotations

from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.axis import several_axes
from tensor_graphs.language.composites import mean, rsqrt, var
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import REASSOCIATING, RuleTable

TABLE = RuleTable("statistic")
FLOATS = ("float",)


@TABLE.rule("var(x, axes=a, keepdims=k)", REASSOCIATING, dtypes=FLOATS, assuming=("no cancellation",), expanding=True)
def var_in_one_pass(x: Node, a: Any, k: bool) -> Node | None:
    """Compute a variance as mean(x²) − mean(x)²: the same real number, which loses digits if the mean is large."""
    if x.dtype.itemsize < 4:
        return None
    m = mean(x, a, keepdims=k)
    return mean(x * x, a, keepdims=k) - m * m


@TABLE.rule("var(x, axes=a, keepdims=k)", REASSOCIATING, dtypes=FLOATS, expanding=True, option="split", shapes="x[n, m]")
def var_by_halves(x: Node, a: Any, k: bool) -> Node | None:
    """Merge halves: (n₁·v₁ + n₂·v₂ + δ²·n₁·n₂/n) / n, δ the difference of the halves' means, Welford's step for two blocks."""
    axes = several_axes("statistic", a, x.rank)
    if len(axes) != 1 or x.dtype.itemsize < 4 or not isinstance(x.shape[axes[0]], int):
        return None
    size = x.shape[axes[0]]
    assert isinstance(size, int)
    if size < 2:
        return None
    n1, n2 = size // 2, size - size // 2
    halves = [x[(slice(None),) * axes[0] + (part,)] for part in (slice(0, n1), slice(n1, size))]
    m1, m2 = (mean(h, a, keepdims=k) for h in halves)
    v1, v2 = (var(h, a, keepdims=k) for h in halves)
    delta = m1 - m2
    return v1 * (n1 / size) + v2 * (n2 / size) + delta * delta * (n1 * n2 / (size * size))


TABLE.row("divide-by-root", "div(x, sqrt(y))", REASSOCIATING, lambda x, y: atomic.mul(x, rsqrt(y)), dtypes=FLOATS)
