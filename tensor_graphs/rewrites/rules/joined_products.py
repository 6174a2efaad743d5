"""joined_products: matrix products that share their input, computed as one product with concatenated weights (QKV, gate and up).
The weights are concatenated once, when the graph is bound."""

from __future__ import annotations

from tensor_graphs.language import atomic
from tensor_graphs.language.composites import concat, dot, linear
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import REASSOCIATING, RuleTable

TABLE = RuleTable("join")


def _parts(joined: Node, *widths: Dim) -> tuple[Node, ...]:
    """Return consecutive slices of the last axis."""
    out: list[Node] = []
    at: Dim = 0
    for width in widths:
        out.append(atomic.slice(joined, [*((0, s, 1) for s in joined.shape[:-1]), (at, at + width, 1)]))
        at = at + width
    return tuple(out)


# linear(x, a) and linear(x, b) as slices of linear(x, concat(a, b)).
TABLE.row("two", ("linear(x, a)", "linear(x, b)"), REASSOCIATING,
          lambda x, a, b: None if a.dtype != b.dtype else _parts(linear(x, concat(a, b, axis=0)), a.shape[0], b.shape[0]),
          parameters=("a", "b"), dtypes=("float",), shapes="x[n, k] a[m, k] b[p, k]")


@TABLE.rule(("linear(x, a)", "linear(x, b)", "linear(x, c)"), REASSOCIATING, parameters=("a", "b", "c"), dtypes=("float",),
            shapes="x[n, k] a[m, k] b[p, k] c[q, k]")
def three(x: Node, a: Node, b: Node, c: Node) -> tuple[Node, ...] | None:
    """Compute three products (as of queries, keys and values) by one matrix product."""
    if not a.dtype == b.dtype == c.dtype:
        return None
    return _parts(linear(x, concat(a, b, c, axis=0)), a.shape[0], b.shape[0], c.shape[0])


@TABLE.rule(("linear(x, a, d)", "linear(x, b, e)", "linear(x, c, f)"), REASSOCIATING, parameters=("a", "b", "c"), dtypes=("float",),
            shapes="x[n, k] a[m, k] b[p, k] c[q, k] d[m] e[p] f[q]")
def three_with_bias(x: Node, a: Node, b: Node, c: Node, d: Node, e: Node, f: Node) -> tuple[Node, ...] | None:
    if not a.dtype == b.dtype == c.dtype or not d.dtype == e.dtype == f.dtype:
        return None
    joined = linear(x, concat(a, b, c, axis=0), concat(d, e, f, axis=0))
    return _parts(joined, a.shape[0], b.shape[0], c.shape[0])


def _of_one_kind(*weights: Node) -> bool:
    return all(w.rank == 2 and w.dtype == weights[0].dtype for w in weights)


# Weights stored as [in, out] stand side by side.
TABLE.row("two-dots", ("dot(x, a)", "dot(x, b)"), REASSOCIATING,
          lambda x, a, b: _parts(dot(x, concat(a, b, axis=1)), a.shape[1], b.shape[1]) if _of_one_kind(a, b) else None,
          parameters=("a", "b"), dtypes=("float",), shapes="x[n, k] a[k, m] b[k, p]")


@TABLE.rule(("dot(x, a)", "dot(x, b)", "dot(x, c)"), REASSOCIATING, parameters=("a", "b", "c"), dtypes=("float",),
            shapes="x[n, k] a[k, m] b[k, p] c[k, q]")
def three_dots(x: Node, a: Node, b: Node, c: Node) -> tuple[Node, ...] | None:
    if not _of_one_kind(a, b, c):
        return None
    return _parts(dot(x, concat(a, b, c, axis=1)), a.shape[1], b.shape[1], c.shape[1])
