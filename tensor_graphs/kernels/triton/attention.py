"""attention: attention of many queries in Triton, tile by tile with a running maximum, without storing all scores
(FlashAttention-2, Dao 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.triton.products import MOST, NARROW, machine
from tensor_graphs.language import dims as d

LONGEST = 256
"""most elements of a head, as a tile of results is kept in registers"""


def attention_takes(spec: Spec) -> str | None:
    if spec.role("mask") is not None:
        return "no mask"
    q, k, v = spec.inputs[:3]
    if q.dtype.name not in NARROW or any(t.dtype is not q.dtype for t in (k, v, *spec.outputs)):
        return "bf16 or f16, one type for all"
    if any(not isinstance(t.shape[2], int) or not 0 < t.shape[2] <= LONGEST for t in (q, v)):
        return f"heads of a known length, up to {LONGEST}"
    return None if max(d.bounds(t.shape[0])[1] for t in (q, k)) < MOST else "too many queries or keys"


def tile_for(queries: int, length: int, values: int, shared: int, near: bool = False) -> tuple[int, int, int, int]:
    """Return (queries of a tile, keys of a step, warps, steps of keys loaded ahead), for heads of padded lengths: `length` of
    queries and keys, `values` of values. It is the largest tile whose queries and two steps of keys and values fit into shared
    memory (near: and one more step of values)."""
    longest = max(length, values)
    tall = min(128, max(16, 1 << (queries - 1).bit_length()))
    step = 128 if longest <= 128 and tall == 128 else 64
    while (fits := (shared // 2 - 512 - tall * length - near * step * values) // ((length + values) * step)) < 2 and tall > 16:
        tall, step = tall // 2, max(32, step // 2)
    return tall, step, 8 if tall * longest >= 128 * 64 else 4, max(1, min(3, fits))


def attention_near(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    """Compute `attention`, with softmax weights in two parts: the rounded weight and its rounding error."""
    attention(outs, ins, attrs, True)


def attention(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any], near: bool = False) -> None:
    """Compute attention, with softmax weights rounded to the dtype of values. near: their rounding errors multiply values too."""
    from tensor_graphs.kernels.triton import jit_functions

    y, (q, k, v) = outs[0], ins[:3]
    if not y.numel():
        return
    (queries, heads, length), (keys, of_keys, values) = q.shape, v.shape
    padded, padded_values = (max(16, 1 << (size - 1).bit_length()) for size in (length, values))
    tall, step, warps, stages = tile_for(queries, padded, padded_values, machine(y.device).shared, near)
    (q_row, q_head, q_each), (k_row, k_head, k_each), (v_row, v_head, v_each) = (t.stride() for t in (q, k, v))
    pack = math.gcd(16, q_row, q_head, k_row, k_head, v_row, v_head)
    cap = float(attrs["softcap"])
    factor = float(attrs["scale"]) * math.log2(math.e)
    jit_functions.attention[(-(-queries // tall) * heads,)](
        y, q, k, v, queries, keys, int(attrs["start"]), factor * 2 / cap if cap else factor, cap * math.log2(math.e),
        int(attrs["window"]), heads, heads // of_keys, *y.stride()[:2], q_row // pack, q_head // pack, q_each, k_row // pack,
        k_head // pack, k_each, v_row // pack, v_head // pack, v_each,
        LENGTH=length, PADDED=padded, VALUES=values, PADDED_VALUES=padded_values, QUERIES=tall, KEYS=step, PACK=pack,
        CAUSAL=bool(attrs["causal"]), WINDOW=attrs["window"] > 0, CAPPED=cap > 0, NEAR=near, num_warps=warps, num_stages=stages)
