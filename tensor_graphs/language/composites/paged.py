"""paged: attention over keys and values that lie in pages of a pool shared by many sequences.

Source: Kwon et al. 2023 (paged attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill, need, same_dim, show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import tanh, wide
from tensor_graphs.language.composites.products import dot, softmax_of_visible
from tensor_graphs.language.dim_proofs import exact_div
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = ["paged_attention"]


def _paged_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    """Evaluate token by token, so that only the keys of one sequence are brought together."""
    q, k, v, pages, positions = (roles[name] for name in ("q", "k", "v", "pages", "positions"))
    sinks = roles.get("sinks")
    heads, groups, page = q.shape[1], k.shape[1], attrs["page"]
    out = np.zeros((len(q), heads, v.shape[2]), dtype=q.dtype)
    for i, at in enumerate(positions.tolist()):
        keys = np.arange(max(0, at - attrs["window"] + 1) if attrs["window"] else 0, min(at + 1, pages.shape[1] * page))
        if not keys.size:
            continue
        rows = pages[i].astype(np.int64)[keys // page] * page + keys % page
        inside = ((rows >= 0) & (rows < len(k)))[:, None, None]
        near_k, near_v = (np.where(inside, pool[np.clip(rows, 0, len(k) - 1)], 0.0) for pool in (k, v))
        scores = np.einsum("gpd,sgd->gps", q[i].reshape(groups, heads // groups, -1), near_k) * attrs["scale"]
        if attrs["softcap"]:
            scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
        top = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        weights /= total
        if sinks is not None:                                       # the share of the keys: none where the sink is infinite
            weights /= 1 + np.exp(sinks.astype(scores.dtype).reshape(groups, -1, 1) - top) / total
        out[i] = np.einsum("gps,sge->gpe", weights, near_v).reshape(heads, -1)
    return out


def _check(q: Node, k: Node, v: Node, pages: Node, positions: Node, sinks: Node | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        need(f"paged_attention ({name})", x, "float")
    for name, x in (("pages", pages), ("positions", positions)):
        if x.dtype != i32:
            raise DTypeError(f"paged_attention: the {name} are {show(x)}", fix="cast them to i32 first")
    if (q.rank, k.rank, v.rank, pages.rank, positions.rank) != (3, 3, 3, 2, 1):
        raise ShapeError(f"paged_attention of {', '.join(map(show, (q, k, v, pages, positions)))}",
                         fix="q[t, heads, d], k[rows, kv_heads, d], v[rows, kv_heads, e], pages[t, w], positions[t]")
    if not all(same_dim(x.shape[0], q.shape[0]) for x in (pages, positions)):
        raise ShapeError(f"paged_attention of q {show(q)}: pages are {show(pages)} and positions {show(positions)}",
                         fix="a row of pages and a position for each token of q")
    if not same_dim(q.shape[2], k.shape[2]) or not all(same_dim(*sizes) for sizes in zip(k.shape[:2], v.shape[:2], strict=True)):
        raise ShapeError(f"paged_attention of q {show(q)}, k {show(k)} and v {show(v)}: sizes differ",
                         fix="k has the width of q, and v the rows and heads of k")
    if exact_div(q.shape[1], k.shape[1]) is None:
        raise ShapeError(f"paged_attention: {format_dim(q.shape[1])} heads are not a multiple of {format_dim(k.shape[1])}",
                         fix="each head of k serves the same number of heads of q")
    if sinks is not None:
        need("paged_attention (sinks)", sinks, "float")
        if sinks.rank != 1 or not same_dim(sinks.shape[0], q.shape[1]):
            raise ShapeError(f"paged_attention of q {show(q)}: the sinks are {show(sinks)}", fix="one number for each head of q")


@library(direct=_paged_direct, facts=OpFacts(product=True, closed=True, sought=False, pages=3))
def paged_attention(q: Node, k: Node, v: Node, pages: Node, positions: Node, sinks: Node | None = None, *, page: int,
                    scale: float | Dim, window: int = 0, softcap: float = 0.0) -> Node:
    """Attention of q[t, hq, d] over rows of pools k[rows, hkv, d] and v[rows, hkv, e] -> [t, hq, e]; tokens may be of many
    sequences.

    pages: i32[t, w], the pages of each token's sequence in order; key j of a sequence is row pages[j // page] · page + j % page of
    the pools, and zero where that is outside of them. positions: i32[t]; token i sees the keys 0 … positions[i], with window > 0
    the last `window` of them. A token that sees no key (position −1) gives zeros. sinks: [hq], a score of each head that is in the
    sum of the softmax and has no value (Xiao et al. 2023; OpenAI 2025). Grouped heads, scale, softcap and dtypes are as in
    `attention`. Raises ShapeError, DTypeError, AttributeValueError.
    """
    _check(q, k, v, pages, positions, sinks)
    for name, value, least in (("page", page, 1), ("window", window, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise AttributeValueError(f"paged_attention: {name} is {value!r}", fix=f"an int ≥ {least}")
    if not softcap >= 0:
        raise AttributeValueError(f"paged_attention: the soft cap is {softcap!r}", fix="a number > 0; 0 = none")
    (t, heads, d), groups, w = q.shape, k.shape[1], pages.shape[1]
    per, s, one_page = exact_div(heads, groups), w * page, (t, w, page)
    assert per is not None
    firsts = atomic.expand(atomic.reshape(atomic.mul(pages, fill(page, pages.shape, i32)), (t, w, 1)), one_page)
    rows = atomic.reshape(atomic.add(firsts, atomic.iota(one_page, 2, i32)), (t, s))
    keys, values = (wide(atomic.cast(atomic.gather(pool, rows, axis=0), q.dtype)) for pool in (k, v))      # [t, s, groups, width]
    scores = dot(atomic.reshape(wide(q), (t, groups, per, d)), atomic.permute(keys, (0, 2, 3, 1))) * scale
    if softcap:
        scores = tanh(scores / softcap) * softcap
    at, key = broadcast_to(atomic.reshape(positions, (t, 1)), (t, s)), atomic.iota((t, s), 1, i32)
    visible = arithmetic.less_equal(key, at)
    if window:
        visible = atomic.bit_and(visible, atomic.less(arithmetic.sub(at, key), fill(window, (t, s), i32)))
    of_rows = None if sinks is None else atomic.cast(atomic.reshape(sinks, (groups, per, 1)), scores.dtype)
    weights = softmax_of_visible(scores, atomic.reshape(visible, (t, 1, 1, s)), of_rows)
    seen = atomic.reshape(dot(weights, atomic.permute(values, (0, 2, 1, 3))), (t, heads, v.shape[2]))
    return atomic.cast(seen, q.dtype)
