"""attention: attention kernels of the backend `cuda`: many queries on tensor cores (also f32), and few queries over many keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensor_graphs.kernels.cuda.source_text import ALIGNED, FLOATS, MULTIPROCESSORS, SHARE, TILES_BYTES, static, text_of
from tensor_graphs.kernels.kernel import Launch, LaunchCall, Spec, TensorMap
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, f16, f32
from tensor_graphs.language.node import TensorType

MOST_PARTS = 32
"""most parts into which keys are split"""

KEYS_OF_A_PART = 64
"""least keys of a part, for the largest number of keys"""

BLOCKS_OF_PARTS = 8 * MULTIPROCESSORS
"""number of blocks of attention.cu from which on keys are not split"""


def _lanes_and_packs(width: int, pack: int) -> tuple[int, int]:
    """Return (lanes that share a key, packs of elements per lane)."""
    lanes = min(32, max(1, width // pack))
    return lanes, width // (lanes * pack)


def _bytes_of_sums(width: int, group: int, lanes: int, warps: int) -> int:
    """Return the bytes of shared memory of a block of attention.cu: sums of its warps, and whether it is the last of its row."""
    return warps * (32 // lanes) * group * (width + 2) * 4 + 16


def _numbers(spec: Spec) -> dict[str, object]:
    """Return the numbers of an attention spec that all attention sources define."""
    q, k = spec.inputs[:2]
    return {"D": int(q.shape[2]), "GROUP": int(q.shape[1]) // int(k.shape[1]), "HEADS": int(k.shape[1]),
            "SCALE": repr(float(spec.attrs["scale"])), "CAP": repr(float(spec.attrs["softcap"])),
            "CAUSAL": int(bool(spec.attrs.get("causal", True))), "WINDOW": int(spec.attrs["window"])}


def _lift(spec: Spec) -> str:
    """Return the factor of weights that are rounded to 16 bits: f16 has no number below 2^-24, and many such weights of large
    values would be lost next to a weight of 1, while it has one of 2^15."""
    return "0x1p15f" if spec.inputs[0].dtype is f16 else "1.0f"


def _numbers_of_scores(spec: Spec, power: str) -> dict[str, object]:
    """Return the numbers of weighed_scores.cu without those of its tiles. power: name of the device function for 2^x."""
    by = float(spec.attrs["scale"]) * math.log2(math.e)
    return {"POWER": power, "LIFT": _lift(spec), "POWER_OF_TWO": repr(2.0 ** math.ceil(math.log2(by))) if by > 0 else "1.0"}


def _types(spec: Spec) -> dict[str, DType | str]:
    return {name: t.dtype for name, t in zip("QKVY", (*spec.inputs[:3], spec.outputs[0]), strict=True)}


def _padded(spec: Spec) -> int:
    """Return the length of heads, rounded up to a multiple of 64."""
    return -(-int(spec.inputs[0].shape[2]) // 64) * 64


def _row_by_row(spec: Spec, text: str) -> LaunchCall:
    """Return the call for operands that are not aligned to ALIGNED bytes."""
    n, s = (t.shape[0] for t in spec.inputs[:2])
    launch = Launch("plain", d.ceil_div(n * int(spec.inputs[0].shape[1]), 8), 256, waits=True)
    return LaunchCall(text, (launch,), (n, s, spec.attrs["start"]))


def attention_takes(spec: Spec) -> str | None:
    if spec.role("mask") is not None:
        return "no mask"
    q, k, v = spec.inputs[:3]
    if any(t.dtype not in FLOATS for t in (*spec.inputs, *spec.outputs)) or k.dtype is not v.dtype:
        return "f32, bf16 and f16, keys and values of one type"
    if (why := static(*q.shape[1:], *k.shape[1:], *v.shape[1:])) is not None:
        return why
    if int(v.shape[2]) != int(q.shape[2]):
        return "keys and values of one length only"
    width, group = int(q.shape[2]), int(q.shape[1]) // int(k.shape[1])
    for pack in (ALIGNED // k.dtype.itemsize, 1):
        lanes, chunks = _lanes_and_packs(width, pack)
        if lanes & (lanes - 1) or lanes * chunks * pack != width:
            return "heads whose length is a power of two, or a multiple of 32 packs of 16 bytes"
        if group * chunks * pack > 64 or _bytes_of_sums(width, group, lanes, 4) > 48 << 10:
            return "too many heads for one head of keys"
    if d.bounds(q.shape[0])[1] * int(q.shape[1]) * width > 1 << 31:
        return "too many queries: parts of so many rows are not kept"
    return None


def attention(spec: Spec) -> LaunchCall:
    q, k = spec.inputs[:2]
    n, s, width, heads = q.shape[0], k.shape[0], int(q.shape[2]), int(k.shape[1])
    group = int(q.shape[1]) // heads
    parts = max(1, min(MOST_PARTS, -(-d.bounds(s)[1] // KEYS_OF_A_PART)))
    numbers = _numbers(spec) | {"SPLITS": parts, "ROWS": BLOCKS_OF_PARTS}
    rows = n * (heads * group)
    here = d.dim_min(parts, d.ceil_div(BLOCKS_OF_PARTS, d.dim_max(1, n) * heads))
    pieces = (d.ceil_div(rows * here * (width * 4), 256) * 256, d.ceil_div(rows * here * 8, 256) * 256)

    def form(pack: int) -> LaunchCall:
        warps = 8 if _bytes_of_sums(width, group, _lanes_and_packs(width, pack)[0], 8) <= 48 << 10 else 4
        packs = {"PACK": pack, "PACK_Q": min(pack, ALIGNED // q.dtype.itemsize)}
        text = text_of("attention.cu", {**numbers, **packs, "WARPS": warps}, _types(spec))
        launch = Launch("attention", n * here * heads, 32 * warps, waits=True)
        return LaunchCall(text, (launch,), (s, spec.attrs["start"], here), pieces)

    return replace(form(ALIGNED // k.dtype.itemsize), alignment=ALIGNED, otherwise=form(1))


def attention_traffic(spec: Spec, times: Dim | None = None) -> Dim:
    """Return the bytes moved: all keys and values `times` (None: for each query), counted as a fifth after the first (they are in
    the cache)."""
    q, k = spec.inputs[:2]
    of_keys = 2 * k.shape[0] * (int(k.shape[1]) * int(k.shape[2]) * k.dtype.itemsize)
    small = 2 * q.shape[0] * (int(q.shape[1]) * int(q.shape[2]) * q.dtype.itemsize)
    return of_keys + of_keys * ((q.shape[0] if times is None else times) - 1) // 5 + small


def attention_steps(spec: Spec) -> Dim:
    """Return the operations. Those of the first query overlap with loading keys; those of the others count eightfold, as they run
    at an eighth of the f32 peak."""
    q, k = spec.inputs[:2]
    seen = k.shape[0] - q.shape[0] // 2 if spec.attrs["causal"] else k.shape[0]
    window = int(spec.attrs["window"])
    of_query = (d.dim_min(seen, window) if window else seen) * (int(q.shape[1]) * int(q.shape[2]) * 4)
    return of_query + (d.dim_max(1, q.shape[0]) - 1) * of_query * 8


# ---- attention of many queries -----------------------------------------------------------------------------------------

MANY = "seen_keys.cu plain_attention.cu weighed_scores.cu attention_tiles.cu"
"""files at the beginning of the sources for many queries"""

TENSOR_KEYS = {64: 128, 128: 128, 192: 80, 256: 80}
"""length of heads, up to a multiple of 64 -> keys of a tile of tensor_attention.cu"""

QUERY_GROUPS = {64: 3, 128: 2, 192: 2, 256: 2}
"""padded length of heads -> warpgroups of tensor_attention.cu, with 64 queries each"""


def tensor_attention_takes(spec: Spec) -> str | None:
    if spec.role("mask") is not None:
        return "no mask"
    q, k, v = spec.inputs[:3]
    if q.dtype not in (bf16, f16) or any(t.dtype is not q.dtype for t in (k, v, *spec.outputs)):
        return "bf16 or f16, one type for all"
    if (why := static(*q.shape[1:], *k.shape[1:], *v.shape[1:])) is not None:
        return why
    width = int(q.shape[2])
    if int(v.shape[2]) != width or width % 8 or not 0 < width <= max(TENSOR_KEYS):
        return f"heads of one length only, a multiple of 8 up to {max(TENSOR_KEYS)}"
    many = max(d.bounds(q.shape[0])[1] * int(q.shape[1]), d.bounds(k.shape[0])[1] * int(k.shape[1])) * width
    return None if many < 1 << 40 and max(d.bounds(t.shape[0])[1] for t in (q, k)) < 1 << 30 else "too many queries or keys"


def tensor_attention(spec: Spec, near: bool = False) -> LaunchCall:
    """Return the call. near: softmax weights keep twice as many bits in products with values, which then take twice as long."""
    q, k = spec.inputs[:2]
    n, s, padded = q.shape[0], k.shape[0], _padded(spec)
    keys, groups = TENSOR_KEYS[padded], 2 if near else QUERY_GROUPS[padded]
    rows = 64 * groups
    stages = min(4, (TILES_BYTES - rows * padded * 2 + (24 << 10)) // (4 * keys * padded))
    kind = "F16" if q.dtype is f16 else "Bf16"
    numbers = _numbers(spec) | {"KIND": kind, "PARTS": 1, "PADDED": padded, "KEYS": keys, "STAGES": stages, "GROUPS": groups,
                            "NEAR": int(near)} | _numbers_of_scores(spec, "exp2_flushed")
    text = text_of(f"{MANY} tensor_attention.cu", numbers, _types(spec))
    shared = rows * padded * 2 + 4 * stages * keys * padded + 1024
    ints = n, s, spec.attrs["start"]
    launch = Launch("tensor_attention", d.ceil_div(n, rows) * int(q.shape[1]), 128 * (groups + 1), shared, waits=True)
    maps = _maps(spec, (1, 2, 3), rows, keys)
    return LaunchCall(text, (launch,), ints, (), ALIGNED, _row_by_row(spec, text), maps)


def _maps(spec: Spec, words: Sequence[int], rows: int, keys: int, parts: int = 1) -> tuple[TensorMap, ...]:
    """Return the maps of q, k and v, or of their parts, which lie beside each other in each row. words: the arguments; rows, keys:
    rows of a box of q, and of k and v."""
    maps = []
    for word, t, box in zip(words, spec.inputs[:3], (rows, keys, keys), strict=True):
        heads, width = int(t.shape[1]), int(t.shape[2])
        steps = 2 * width * heads * parts, 2 * width
        maps.append(TensorMap(word, "u16", (width, d.dim_max(1, t.shape[0]), heads * parts), steps, (64, box, 1), (1, 1, 1)))
    return tuple(maps)


def near_attention_steps(spec: Spec) -> Dim:
    return tensor_attention_steps(spec) * 3 // 2


def tensor_attention_traffic(spec: Spec) -> Dim:
    """Return the bytes of operands and results, each once."""
    return sum((d.product(t.shape) * t.dtype.itemsize for t in (*spec.inputs[:3], *spec.outputs)), 0)


def tensor_attention_steps(spec: Spec, groups: int = 0) -> Dim:
    """Return the operations on all visible keys, with one block per multiprocessor at a time, divided by SHARE. groups: warpgroups
    of a block, QUERY_GROUPS by default."""
    q, k = spec.inputs[:2]
    n, s, padded = q.shape[0], k.shape[0], _padded(spec)
    seen = s - n // 2 if spec.attrs["causal"] else s
    window = int(spec.attrs["window"])
    rows = 64 * (groups or QUERY_GROUPS[padded])
    seen = d.dim_min(seen, window + rows) if window else seen
    waves = d.ceil_div(d.ceil_div(n, rows) * int(q.shape[1]), MULTIPROCESSORS)
    return waves * seen * (MULTIPROCESSORS * rows * padded * 4 // SHARE)


FLOAT_TILES = {64: (64, 3, 2), 128: (32, 2, 2), 192: (32, 2, 1), 256: (32, 1, 1)}
"""padded length of heads -> (keys of a tile, tiles copied ahead, warpgroups) of float_attention.cu"""


def float_attention_takes(spec: Spec) -> str | None:
    if any(t.dtype is not f32 for t in (*spec.inputs, *spec.outputs)):
        return "f32 only"
    half = [TensorType(t.shape, bf16) for t in spec.inputs], [TensorType(t.shape, bf16) for t in spec.outputs]
    return tensor_attention_takes(replace(spec, inputs=tuple(half[0]), outputs=tuple(half[1])))


def float_attention(spec: Spec) -> LaunchCall:
    q, k, v = spec.inputs[:3]
    n, s, width, heads, all_heads, padded = q.shape[0], k.shape[0], int(q.shape[2]), int(k.shape[1]), int(q.shape[1]), _padded(spec)
    keys, stages, groups = FLOAT_TILES[padded]
    rows = 64 * groups
    tiles = {"PADDED": padded, "KEYS": keys, "STAGES": stages, "GROUPS": groups}
    numbers = _numbers(spec) | tiles | {"PARTS": 3} | _numbers_of_scores(spec, "exp2_fast")
    text = text_of(f"{MANY} float_attention.cu", numbers, _types(spec))
    shared = 6 * padded * (rows + 2 * stages * keys) + 1024
    ints = n, s, spec.attrs["start"]
    elements = n * (all_heads * width) + s * (2 * heads * width)
    launches = (Launch("attention_parts", d.dim_min(d.ceil_div(elements, 1024), 16 * MULTIPROCESSORS), 256, waits=True),
                Launch("float_attention", d.ceil_div(n, rows) * all_heads, 128 * (groups + 1), shared, waits=True))
    pieces = tuple(d.ceil_div(t.shape[0] * (int(t.shape[1]) * width * 6), 256) * 256 for t in (q, k, v))
    first = 2 + len(spec.inputs)                                    # the argument behind the result, the operands and the sizes
    maps = _maps(spec, (first, first + 1, first + 2), rows, keys, 3)
    return LaunchCall(text, launches, ints, pieces, ALIGNED, _row_by_row(spec, text), maps)


def float_attention_traffic(spec: Spec) -> Dim:
    """Return the bytes of operands and results once, and of the operands' bf16 parts (6 bytes per element), written and read."""
    return sum((d.product(t.shape) * 16 for t in spec.inputs[:3]), d.product(spec.outputs[0].shape) * 4)


def float_attention_steps(spec: Spec) -> Dim:
    """Return the operations: eight times tensor_attention's. There are six products of parts, and as they do not overlap with the
    softmax a third more time (on an H200 87 µs for 2048 queries and keys of 8 heads of 64)."""
    return tensor_attention_steps(spec, FLOAT_TILES[_padded(spec)][2]) * 8


# ---- attention of few queries over keys of 16 bits ---------------------------------------------------------------------

ROWS_OF_QUERIES, QUERY_WARPS = 16, 4
"""constants of few_queries.cu: rows of a tile; warps of a block"""

MOST_QUERY_PARTS, LEAST_KEYS, JOINED_COLUMNS = 256, 128, 64
"""constants for few_queries.cu: most parts of the keys; least keys of a part, for most keys; columns of a queries_joined block"""


def few_queries_takes(spec: Spec) -> str | None:
    why = tensor_attention_takes(spec)
    if why is not None:
        return why
    q, k = spec.inputs[:2]
    if int(q.shape[2]) % 64:
        return "heads whose length is a multiple of 64"
    if int(q.shape[1]) // int(k.shape[1]) > ROWS_OF_QUERIES:
        return "too many heads for one head of keys"
    if d.bounds(q.shape[0])[1] * int(q.shape[1]) * int(q.shape[2]) > 1 << 31:
        return "too many queries: parts of so many rows are not kept"
    return None


def few_queries(spec: Spec) -> LaunchCall:
    q, k = spec.inputs[:2]
    paged = spec.op.facts.pages is not None
    n, width, heads = q.shape[0], int(q.shape[2]), int(k.shape[1])
    s = spec.inputs[3].shape[1] * int(spec.attrs["page"]) if paged else k.shape[0]
    group = int(q.shape[1]) // heads
    tiles = d.ceil_div(n, 1 if paged else ROWS_OF_QUERIES // group) * heads
    most = max(1, min(MOST_QUERY_PARTS, -(-d.bounds(s)[1] // LEAST_KEYS)))      # whatever s is: a longer cache is the same launch
    resident = 2 if width <= 128 else 1
    parts = d.dim_min(most, d.ceil_div(resident * MULTIPROCESSORS, d.dim_max(1, tiles)))
    stages = 4 if width == 64 else 3
    kind = "F16" if q.dtype is f16 else "Bf16"
    numbers = _numbers(spec) | {"KIND": kind, "LIFT": _lift(spec), "WARPS": QUERY_WARPS, "STAGES": stages, "JOINED": JOINED_COLUMNS}
    rows = n * (heads * group)
    shared = max(stages * 2 * 16 * width * 2, 16 * width * 4) * QUERY_WARPS
    launches = (Launch("queries_parts", tiles * parts, 32 * QUERY_WARPS, shared, waits=True),
                Launch("queries_joined", rows * (width // JOINED_COLUMNS), 256, waits=True))
    pieces = (d.ceil_div(rows * parts * (width * 4), 256) * 256, d.ceil_div(rows * parts * 8, 256) * 256)
    if paged:
        text = text_of("seen_keys.cu few_queries.cu", numbers | _numbers_of_pages(spec), _types(spec))
        return LaunchCall(text, launches, (n, spec.inputs[3].shape[1], k.shape[0], parts), pieces, ALIGNED, paged_attention(spec))
    text = text_of("seen_keys.cu few_queries.cu", numbers, _types(spec))
    return LaunchCall(text, launches, (n, s, spec.attrs["start"], parts), pieces, ALIGNED, tensor_attention(spec).otherwise)


def few_queries_traffic(spec: Spec) -> Dim:
    """Return the bytes moved: keys and values once per tile of rows."""
    q, k = spec.inputs[:2]
    tiles = d.ceil_div(q.shape[0], ROWS_OF_QUERIES // (int(q.shape[1]) // int(k.shape[1])))
    return attention_traffic(spec, d.dim_max(1, tiles))


# ---- attention over keys in pages --------------------------------------------------------------------------------------


def _numbers_of_pages(spec: Spec) -> dict[str, object]:
    return {"PAGED": 1, "PAGE": int(spec.attrs["page"]), "SINKS": int(spec.role("sinks") is not None)}


def paged_attention_takes(spec: Spec) -> str | None:
    q, k, v = spec.inputs[:3]
    if any(t.dtype not in FLOATS for t in (q, k, v)) or any(t.dtype is not f32 for t in spec.inputs[5:]):
        return "f32, bf16 and f16, sinks of f32"
    if (why := static(*q.shape[1:], *k.shape[1:], *v.shape[1:])) is not None:
        return why
    return None if int(v.shape[2]) == int(q.shape[2]) else "keys and values of one length only"


def paged_attention(spec: Spec) -> LaunchCall:
    """Return the call that computes each row of each head by a warp."""
    q, k, _, pages = spec.inputs[:4]
    text = text_of("seen_keys.cu plain_attention.cu", _numbers(spec) | _numbers_of_pages(spec), _types(spec))
    launch = Launch("plain", d.ceil_div(q.shape[0] * int(q.shape[1]), 8), 256, waits=True)
    return LaunchCall(text, (launch,), (q.shape[0], pages.shape[1], k.shape[0]))


def paged_attention_steps(spec: Spec) -> Dim:
    """Return the operations: 32 lanes reduce each score, so that they count eightfold."""
    q, pages = spec.inputs[0], spec.inputs[3]
    return q.size() * pages.shape[1] * (32 * int(spec.attrs["page"]))


def paged_few_takes(spec: Spec) -> str | None:
    return paged_attention_takes(spec) or few_queries_takes(spec)
