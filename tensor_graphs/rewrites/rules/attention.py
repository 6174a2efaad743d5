"""attention: scores, their softmax and its product with values become one op whose kernels store no scores; and keys in halves.

softmax(q·kᵀ · c, masked with −∞) · v becomes `attention`. Its kernels pass over the keys once, with a running maximum, sum and
weighted values for each query, which are rescaled when a larger score comes (Milakov and Gimelshein, Online normalizer calculation
for softmax, 2018). `split_keys` joins two such states: each half of the keys is attended to separately, and the results are merged
by their log-sum-exps (flash decoding). Operands that attributes can express are in rewrites/attention_masks.py.
"""

from __future__ import annotations

from typing import Any

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.composites import attention, dot, exp, logsumexp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import REASSOCIATING, RuleTable

TABLE = RuleTable("attention")
FLOATS = ("float",)


# ---- from the naive form ---------------------------------------------------------------------------------------------


def _same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(map(same_dim, a, b))


def _groups(lead: tuple[Dim, ...], own: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """Return the leading axes of keys or values, which repeat along the queries' further axes; None if the axes do not fit."""
    own = (1,) * (len(lead) - len(own)) + own
    count = len(own)
    while count and own[count - 1] == 1:
        count -= 1
    return own[:count] if len(own) == len(lead) and _same(own[:count], lead[:count]) else None


def _by_position(x: Node, lead: tuple[Dim, ...]) -> Node:
    """Return x[…, t, d] as [t, heads, d], all leading axes joined as heads."""
    rows, heads = x.shape[-2:], d.product(lead)
    if heads == 1:
        return atomic.reshape(x, (rows[0], 1, rows[1]))
    return atomic.permute(atomic.reshape(x, (heads, *rows)), (1, 0, 2))


def seen_by_all(mask: Node, n: Dim, s: Dim) -> Node | None:
    """Return a mask of scores as attention takes it: [n, s], by query and key. None if it differs between heads."""
    while mask.op.name == "expand" and any(size != 1 for size in mask.shape[:-2]):
        mask = mask.inputs[0]
    if mask.rank < 2 or any(size != 1 for size in mask.shape[:-2]):
        return None
    return atomic.expand(atomic.reshape(mask, mask.shape[-2:]), (n, s))


def attended(q: Node, k: Node, v: Node, axis: int, seen: Node | None = None) -> Node | None:
    """Return softmax(q[…, n, d] · k[…, d, s], −∞ except where seen[n, s]) · v[…, s, e] as attention; None if shapes do not fit."""
    if min(q.rank, k.rank, v.rank) < 2 or axis % q.rank != q.rank - 1:
        return None
    lead = q.shape[:-2]
    groups = _groups(lead, k.shape[:-2])
    if groups is None or groups != _groups(lead, v.shape[:-2]) or any(not isinstance(s, int) for s in lead[len(groups):]):
        return None
    turned = atomic.permute(k, (*range(k.rank - 2), k.rank - 1, k.rank - 2))
    operands = [_by_position(q, lead), _by_position(turned, groups), _by_position(v, groups)]
    result = attention(*operands, *([] if seen is None else [seen]), scale=1.0)
    shape = (*lead, q.shape[-2], v.shape[-1])
    return atomic.reshape(result if d.product(lead) == 1 else atomic.permute(result, (1, 0, 2)), shape)


# Weights that are never all there; what is hidden is read by attending.HiddenScores.
TABLE.row("online", "dot(softmax(dot(q, k), axis=a), v)", REASSOCIATING,
          lambda q, k, v, a: attended(q, k, v, a), dtypes=FLOATS, shapes="q[h, n, d] k[h, d, s] v[h, s, e]")


@TABLE.rule("mul(dot(x, y), expand(c, shape=s))", REASSOCIATING, dtypes=FLOATS, shapes="x[n, k] y[k, m] c[n, 1]")
def scale_into_dot(x: Node, y: Node, c: Node) -> Node | None:
    """Scale rows before the matrix product: queries instead of scores, weights instead of sums."""
    by = _of_rows(x, y, c)
    return None if by is None else dot(atomic.mul(x, by), y)


@TABLE.rule("div(dot(x, y), expand(c, shape=s))", REASSOCIATING, dtypes=FLOATS, shapes="x[n, k] y[k, m] c[n, 1]")
def divisor_into_dot(x: Node, y: Node, c: Node) -> Node | None:
    """Divide rows before the matrix product: the softmax weights by their sum before they meet the values."""
    by = _of_rows(x, y, c)
    return None if by is None else dot(x / by, y)


# Each row times the reciprocal of its sum is what a softmax divides by.
TABLE.row("divided-by-repeated", "mul(x, expand(reciprocal(c), shape=s))", REASSOCIATING,
          lambda x, c: x / atomic.expand(c, x.shape), dtypes=FLOATS, shapes="x[n, m] c[n, 1]")


def _of_rows(x: Node, y: Node, c: Node) -> Node | None:
    """Return c, one value per row of a matrix product, repeated along x; None if it does not fit."""
    fits = 2 <= y.rank <= x.rank == c.rank and c.shape[-1] == 1
    return atomic.expand(c, x.shape) if fits else None


# ---- in halves -------------------------------------------------------------------------------------------------------


@TABLE.rule("attention(q, k, v, scale=c)", REASSOCIATING, dtypes=("float",), expanding=True, option="split",
            shapes="q[n, h, d] k[s, h, d] v[s, h, e]")
def split_keys(q: Node, k: Node, v: Node, c: float) -> Node | None:
    """Attend to halves of the keys separately; weight the results by e^(lse of the half − lse of both). Equal heads only."""
    size = k.shape[0]
    if not isinstance(size, int) or size < 2 or q.shape[1] != k.shape[1] or not isinstance(c, float):
        return None
    if not q.dtype == k.dtype == v.dtype or q.dtype.itemsize < 4:
        return None
    results, logs = [], []
    for part in (slice(0, size // 2), slice(size // 2, size)):
        results.append(attention(q, k[part], v[part], scale=c))
        scores = dot(atomic.permute(q, (1, 0, 2)), atomic.permute(k[part], (1, 2, 0))) * c      # [h, n, s]
        logs.append(atomic.permute(logsumexp(scores, axis=-1), (1, 0))[:, :, None])             # [n, h, 1]
    top = atomic.max(*logs)
    weights = [exp(x - top) for x in logs]
    total: Node = results[0] * weights[0] + results[1] * weights[1]
    return total / (weights[0] + weights[1])
