"""batches: attention over a batch of sequences, by the attention of one sequence (products.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import same_dim, show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites import products
from tensor_graphs.language.composites.indexing import stack
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.errors import ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts

__all__ = ["attention", "batched_attention"]

SEQUENCES = 32
"""up to this many sequences of a batch, each gets its own attention node on views of q, k and v. With more sequences, or where
their number is a dim, sequences are folded into the heads, which copies q, k and v"""


def attention(q: Node, k: Node, v: Node, mask: Node | None = None, *, scale: float | Dim, causal: bool = False,
              window: int = 0, start: Dim = 0, softcap: float = 0.0) -> Node:
    """softmax(scale · q·kᵀ over visible keys) · v for each head: q[n, hq, d], k[s, hkv, d], v[s, hkv, e] -> [n, hq, e].

    All three may have an axis of sequences in front: q[b, n, hq, d], k[b, s, hkv, d], v[b, s, hkv, e] -> [b, n, hq, e].
    hq is a multiple of hkv: head h of q reads head h // (hq / hkv) of k and v, which are cast to q's dtype; below f32 the whole is
    computed in f32. Query i is at position start + i (start: an int or a dim), key j at position j. A key is visible if mask[n, s]
    (bool, or [b, n, s] with one for each sequence) says so, with causal if j ≤ start + i, with window > 0 if
    start + i − j < window. softcap c > 0 replaces a score x by c · tanh(x / c). A row that sees no key is zero. v has to be finite
    at invisible keys too (0 · ∞ is NaN). Raises ShapeError, DTypeError, AttributeValueError.

    Sources: Vaswani et al. 2017; grouped heads, Ainslie et al. 2023; soft cap, the report on Gemma 2, 2024.
    """
    op: Any = products.attention if q.rank != 4 else batched_attention
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    return op(*operands, scale=scale, causal=causal, window=window, start=start, softcap=softcap)


def _direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    mask = roles.get("mask")
    sequences = ({name: x if x is mask and x.ndim == 2 else x[i] for name, x in roles.items()} for i in range(len(roles["q"])))
    outs = [products.attention_direct(one, attrs, out_types) for one in sequences]
    q, v = roles["q"], roles["v"]
    return np.stack(outs) if outs else np.zeros((0, *q.shape[1:3], v.shape[3]), q.dtype)


@library(direct=_direct, gradient=products.attention_gradient, facts=OpFacts(product=True, closed=True, sought=False))
def batched_attention(q: Node, k: Node, v: Node, mask: Node | None = None, *, scale: float | Dim, causal: bool = False,
                      window: int = 0, start: Dim = 0, softcap: float = 0.0) -> Node:
    """Return the `attention` of a batch of sequences, of which the gradient computes all sequences in one product. Raises as
    `attention`."""
    attributes = {"scale": scale, "causal": causal, "window": window, "start": start, "softcap": softcap}

    def one(*operands: Node | None) -> Node:
        return products.attention(*(x for x in operands if x is not None), **attributes)

    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.rank != 4 or not same_dim(x.shape[0], q.shape[0]):
            raise ShapeError(f"attention of q {show(q)} and {name} {show(x)}: they differ in the number of sequences",
                             fix=f"{name}[b, s, kv_heads, d] for q[b, n, heads, d]")
    batch, mask_per_batch = q.shape[0], mask is not None and mask.rank == 3
    if isinstance(batch, int) and 0 < batch <= (batch if mask_per_batch else SEQUENCES):
        return stack(*(one(q[i], k[i], v[i], mask[i] if mask_per_batch and mask is not None else mask) for i in range(batch)))
    if mask_per_batch:
        raise ShapeError(f"attention: a mask for each of {format_dim(batch)} sequences needs a number of sequences that is known",
                         fix="mask[n, s] for all sequences, or an int as the first axis of q")
    folded = (atomic.reshape(atomic.permute(x, (1, 0, 2, 3)), (x.shape[1], batch * x.shape[2], x.shape[3])) for x in (q, k, v))
    out = one(*folded, mask)
    return atomic.permute(atomic.reshape(out, (q.shape[1], batch, q.shape[2], v.shape[3])), (1, 0, 2, 3))
