"""products: rules of the matrix products dot and linear: moved transposes and scales, scales folded into weights, association."""

from __future__ import annotations

from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language.composites import dot, linear, rms_norm, scaled_linear
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to
from tensor_graphs.rewrites.rule import REASSOCIATING, RuleTable

TABLE = RuleTable("product")
FLOATS = ("float",)
EIGHT_BITS, SIXTEEN_BITS = ("f8e4m3", "f8e5m2"), ("bf16", "f16")


TABLE.row("dot-as-linear", "dot(x, permute(w, axes=(1, 0)))", REASSOCIATING,
          lambda x, w: linear(x, w), dtypes=FLOATS, shapes="x[n, k] w[m, k]")
TABLE.row("linear-as-dot", "linear(x, w)", REASSOCIATING,
          lambda x, w: None if x.rank != 2 or w.dtype != x.dtype else dot(x, atomic.permute(w, (1, 0))),
          dtypes=FLOATS, shapes="x[n, k] w[m, k]", expanding=True)


@TABLE.rule("add(linear(x, w), expand(reshape(b, shape=s), shape=t))", REASSOCIATING, dtypes=FLOATS, shapes="x[n, k] w[m, k] b[m]")
def bias_into_linear(x: Node, w: Node, b: Node, s: Any) -> Node | None:
    """Make an added vector, one number per column, the bias of a linear."""
    if b.rank != 1 or not atomic.same_dim(b.shape[0], w.shape[0]) or not atomic.same_dim(s[-1], b.shape[0]):
        return None
    return linear(x, w, b)


@TABLE.rule("linear(x, w, b)", REASSOCIATING, dtypes=FLOATS, shapes="x[n, k] w[m, k] b[m]", expanding=True)
def bias_out_of_linear(x: Node, w: Node, b: Node) -> Node:
    product = linear(x, w)
    return product + atomic.cast(b, product.dtype)


# What is widened for a product alone, multiplied as it is.
TABLE.row("linear-of-eight-bits", "linear(cast(x, dtype=t), w)", REASSOCIATING,
          lambda x, w, t: scaled_linear(x, w, dtype=t), dtypes=EIGHT_BITS, shapes="x[n, k] w[m, k]")
TABLE.row("linear-of-sixteen-bits", "linear(cast(x, dtype=t), w)", REASSOCIATING,
          lambda x, w, t: scaled_linear(x, w, dtype=t) if (t, w.dtype) == (f32, x.dtype) else None,
          dtypes=SIXTEEN_BITS, shapes="x[n, k] w[m, k]")
TABLE.row("linear-of-eight-bits-with-bias", "linear(cast(x, dtype=t), w, b)", REASSOCIATING,
          lambda x, w, b, t: scaled_linear(x, w, bias=b, dtype=t),
          dtypes=EIGHT_BITS, shapes="x[n, k] w[m, k] b[m]:float")
TABLE.row("linear-of-sixteen-bits-with-bias", "linear(cast(x, dtype=t), w, b)", REASSOCIATING,
          lambda x, w, b, t: scaled_linear(x, w, bias=b, dtype=t) if (t, w.dtype) == (f32, x.dtype) else None,
          dtypes=SIXTEEN_BITS, shapes="x[n, k] w[m, k] b[m]:float")
TABLE.row("transpose-of-dot", "permute(dot(x, y), axes=(1, 0))", REASSOCIATING,
          lambda x, y: None if x.rank != 2 or y.rank != 2 else dot(atomic.permute(y, (1, 0)), atomic.permute(x, (1, 0))),
          dtypes=FLOATS, shapes="x[n, k] y[k, m]")


def _times_repeated(x: Node, c: Node) -> Node:
    return atomic.mul(x, atomic.expand(c, x.shape))


def _per_row(c: Node) -> bool:
    return c.rank > 0 and c.shape[-1] == 1


TABLE.row("scale-of-rows-out-of-dot", "dot(mul(x, expand(c, shape=s)), y)", REASSOCIATING,
          lambda x, c, y: None if not _per_row(c) or x.rank != 2 or y.rank != 2 else _times_repeated(dot(x, y), c),
          dtypes=FLOATS, shapes="x[n, k] c[n, 1] y[k, m]")
TABLE.row("scale-of-columns-out-of-dot", "dot(x, mul(y, expand(c, shape=s)))", REASSOCIATING,
          lambda x, c, y: None if c.rank != 2 or c.shape[0] != 1 or x.rank != 2 else _times_repeated(dot(x, y), c),
          dtypes=FLOATS, shapes="x[n, k] c[1, m] y[k, m]")
TABLE.row("scale-out-of-linear", "linear(mul(x, expand(c, shape=s)), w)", REASSOCIATING,
          lambda x, c, w: None if not _per_row(c) else _times_repeated(linear(x, w), c),
          dtypes=FLOATS, shapes="x[n, k] c[n, 1] w[m, k]")


@TABLE.rule("linear(mul(x, expand(c, shape=s)), w)", REASSOCIATING, dtypes=FLOATS, shapes="x[n, k] c[1, k] w[m, k]")
def scale_into_weight(x: Node, c: Node, w: Node) -> Node | None:
    """Move a scale per input channel into the weight, which may be known when the graph is bound."""
    if any(s != 1 for s in c.shape[:-1]) or c.rank == 0:
        return None
    factor = broadcast_to(atomic.reshape(c, c.shape[-1:]), w.shape)
    return linear(x, atomic.mul(atomic.cast(w, x.dtype), factor))


@TABLE.rule("linear(rms_norm(x, g, eps=e, offset=o), w)", REASSOCIATING, dtypes=FLOATS, shapes="x[n, k] g[k] w[m, k]")
def norm_scale_into_weight(x: Node, g: Node, w: Node, e: float, o: float) -> Node:
    """Fold the scale of a norm into the weight that follows. The scaled weight has x's dtype, so nothing narrower rounds it."""
    scaled = atomic.mul(atomic.cast(w, x.dtype), broadcast_to(atomic.cast(g, x.dtype) + o, w.shape))
    return linear(rms_norm(x, eps=e), scaled)


TABLE.row("associate-dot", "dot(dot(x, y), z)", REASSOCIATING,
          lambda x, y, z: None if not x.rank == y.rank == z.rank == 2 else dot(x, dot(y, z)),
          dtypes=FLOATS, shapes="x[n, k] y[k, m] z[m, p]", expanding=True)
TABLE.row("associate-dot-left", "dot(x, dot(y, z))", REASSOCIATING,
          lambda x, y, z: None if not x.rank == y.rank == z.rank == 2 else dot(dot(x, y), z),
          dtypes=FLOATS, shapes="x[n, k] y[k, m] z[m, p]", expanding=True)
TABLE.row("factor-dot", "add(dot(x, z), dot(y, z))", REASSOCIATING,
          lambda x, y, z: None if x.shape != y.shape else dot(atomic.add(x, y), z), dtypes=FLOATS, shapes="x[n, k] y[n, k] z[k, m]")


@TABLE.rule("rope(x, c, s)", REASSOCIATING, dtypes=FLOATS, shapes="x[n, h, 4] c[n, 2] s[n, 2]", expanding=True)
def rope_by_rotated_half(x: Node, c: Node, s: Node) -> Node | None:
    """Write a rotary embedding as x · (cos, cos) + (−x₂, x₁) · (sin, sin), with one element-wise product of each."""
    if x.dtype != c.dtype or x.shape[2] != 2 * c.shape[1]:
        return None
    n, _, width = x.shape
    half = width // 2

    def twice(t: Node) -> Node:
        return atomic.expand(atomic.reshape(concat(t, t, axis=1), (n, 1, width)), x.shape)

    rotated: Node = concat(-x[:, :, half:], x[:, :, :half], axis=2)
    return atomic.add(atomic.mul(x, twice(c)), atomic.mul(rotated, twice(s)))
