"""attention: keys and values in two halves, each attended to alone, merged by their log-sum-exps (flash decoding)."""

from __future__ import annotations

from tensor_graphs.language import atomic
from tensor_graphs.language.composites import attention, dot, exp, logsumexp
from tensor_graphs.language.node import Node
from tensor_graphs.rewrites.rule import REASSOCIATING, RuleTable

TABLE = RuleTable("attention")


@TABLE.rule("attention(q, k, v, scale=c)", REASSOCIATING, dtypes=("float",), expanding=True, option="split",
            shapes="q[n, h, d] k[s, h, d] v[s, h, e]")
def split_keys(q: Node, k: Node, v: Node, c: float) -> Node | None:
    """softmax over s keys = two softmaxes over halves, weighted by e^(lse of the half − lse of both). Equal heads only."""
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
