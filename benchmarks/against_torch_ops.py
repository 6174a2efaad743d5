"""against_torch_ops: for each op of docs/ops, how a random call is drawn and how torch or numpy computes it in float64.

A row of OPS: draw(d) chooses operands (indices of steps) and attributes; call(*nodes, **attributes) writes the call;
reference(*arrays, **attributes) is its value, written from docs/ops alone. Arrays of floats are float64, others have their dtype.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import tensor_graphs as tg
from tensor_graphs.language.dims import Dim, bounds

FLOATS = (*[tg.f32] * 8, tg.f64, tg.f64, tg.f16, tg.f16, tg.bf16, tg.bf16, tg.f8e4m3, tg.f8e5m2)
INTEGERS = (tg.i32, tg.i32, tg.i32, tg.i64, tg.i64, tg.i8, tg.i16, tg.u8, tg.u16, tg.u32, tg.u64)
NUMBERS, ANY = (*FLOATS, *FLOATS, *INTEGERS), (*FLOATS, *FLOATS, *INTEGERS, tg.bool_)
WIDE = tuple(t for t in FLOATS if t.bits >= 16)
STYLES = (*["normal"] * 3, "tiny", "huge", "wide", "large mean", "equal rows", "whole", "angles", *["specials"] * 2)
UNCERTAIN = itertools.cycle([np.nan, np.inf, 0.0, -np.inf, 1.5, -0.0, -2.5])
"""values that differ from one evaluation to the next, so that nothing made of them is compared"""
LARGEST = 6000
"""elements of a drawn value at its largest size"""

Call = tuple[tuple[int, ...], dict[str, Any]]


@dataclass(frozen=True)
class Step:
    """A leaf or the call of an op. data: the values of a leaf in each run, else they are made of its style and key."""

    op: str
    args: tuple[int, ...]
    attrs: dict[str, Any]
    data: tuple[np.ndarray, ...] | None = None

    @property
    def leaf(self) -> bool:
        return self.op in ("input", "parameter", "constant", "state")


@dataclass(frozen=True)
class Op:
    """Row of an op: how to draw its operands and compute it. exact: signs of zeros are certain. mixes: it sums products of its
    operands, whose rounding counts (1), or is that of f32 at least (2). typed: the reference is also given the dtype of the
    result. on_the_way: of the same arguments, values that f32 has to hold on the way, each beside the result's elements. rounds: an
    absolute error, of a number near 1 on the way."""

    draw: Callable[[Draw], Call | None]
    reference: Callable[..., Any]
    call: Callable[..., Any]
    exact: bool = False
    mixes: int = 0
    typed: bool = False
    on_the_way: Callable[..., Sequence[Any]] | None = None
    rounds: float = 0.0

    def needs(self, dtype: tg.DType, sizes: dict[str, int]) -> dict[str, Any]:
        return {"out": dtype} if self.typed else {}


@dataclass
class Draw:
    """A graph that grows: its steps, and the node of each."""

    r: np.random.Generator
    steps: list[Step] = field(default_factory=list)
    nodes: list[tg.Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hi = int(self.r.choice([3, 7, 17, 33]))
        self.n, self.m = tg.dim("n", 1, self.hi), tg.dim("m", 0, self.hi)
        self.symbolic = self.r.random() < 0.6

    def one(self, among: Sequence[Any]) -> Any:
        return among[self.r.integers(len(among))]

    def chance(self, p: float) -> bool:
        return bool(self.r.random() < p)

    def size(self, zero: bool = True) -> Dim:
        sizes = [1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 31]
        return self.one([*sizes, *([0] if zero else []), *([self.n] * 4 + ([self.m] if zero else []) if self.symbolic else [])])

    def shape(self, low: int = 0, high: int = 4, zero: bool = True) -> tuple[Dim, ...]:
        rank = int(self.r.integers(low, high + 1))
        shape = [self.size(zero) for _ in range(rank)]
        if 0 < rank < 3 and self.chance(0.2):
            shape[-1] = self.one([64, 127, 257, 1031])
        while elements(shape) > LARGEST:
            shape[int(self.r.integers(rank))] = self.one([1, 2, 3])
        return tuple(shape)

    def leaf(self, shape: Sequence[Dim], dtype: tg.DType, style: str | None = None, size: Dim = 0) -> int:
        static = all(isinstance(s, int) for s in shape)
        kind = self.one(["input", "input", "input", "parameter", "constant", "state"]) if static else "input"
        if (kind == "state" and style is not None) or (kind == "constant" and elements(shape) > 64):
            kind = "input"
        attrs = {"shape": tuple(shape), "dtype": dtype, "key": len(self.steps), "style": style or self.one(STYLES), "size": size}
        self.steps.append(Step(kind, (), attrs))
        self.nodes.append(tg.input(f"v{len(self.steps) - 1}", tuple(shape), dtype))
        return len(self.steps) - 1

    def value(self, dtypes: Sequence[tg.DType] = ANY, low: int = 0, high: int = 4, fits: Callable[[tg.Node], bool] = lambda x: True,
              zero: bool = True) -> int:
        """A value there is, or a new leaf."""
        ok = [i for i, x in enumerate(self.nodes) if x.dtype in dtypes and low <= x.rank <= high and fits(x)
              and (zero or all(bounds(s)[0] > 0 for s in x.shape))]
        if ok and self.chance(0.8):
            return ok[-1 - min(int(self.r.geometric(0.3)) - 1, len(ok) - 1)]
        for _ in range(20):
            shape = self.shape(low, high, zero)
            leaf = self.leaf(shape, self.one(dtypes))
            if fits(self.nodes[leaf]):
                return leaf
        return leaf

    def like(self, i: int, shape: Sequence[Dim] | None = None, dtype: tg.DType | None = None, style: str | None = None) -> int:
        """Another value of a shape and dtype: one there is, or a new leaf."""
        shape = self.nodes[i].shape if shape is None else tuple(shape)
        dtype = dtype or self.nodes[i].dtype
        ok = [j for j, x in enumerate(self.nodes) if x.shape == shape and x.dtype is dtype]
        return self.one(ok) if ok and style is None and self.chance(0.7) else self.leaf(shape, dtype, style)

    def beside(self, i: int) -> int:
        """A value that broadcasts against another one."""
        shape = list(self.nodes[i].shape)
        if self.chance(0.6):
            return self.like(i)
        return self.like(i, [1 if self.chance(0.4) else s for s in shape][int(self.r.integers(len(shape) + 1)):])

    def axis(self, i: int) -> int:
        return int(self.r.integers(-self.nodes[i].rank, self.nodes[i].rank))

    def index(self, shape: Sequence[Dim], size: Dim, style: str = "index") -> int:
        return self.leaf(shape, self.one([tg.i32, tg.i32, tg.i64, tg.i8, tg.u8, tg.u32]), style, size)


def elements(shape: Sequence[Dim]) -> int:
    return int(np.prod([max(1, bounds(s)[1]) for s in shape], dtype=np.float64))


def drawn(d: Draw, name: str) -> None:
    """Add a call of an op. Nothing is added where its operands do not suit it."""
    call = OPS[name].draw(d)
    if call is None:
        return
    args, attrs = call
    try:
        node = OPS[name].call(*(d.nodes[a] for a in args), **attrs)
    except tg.TensorGraphsError:
        return
    if elements(node.shape) <= 4 * LARGEST and node.rank <= 7 and all(bounds(s)[0] >= 0 for s in node.shape):
        d.steps.append(Step(name, args, attrs))
        d.nodes.append(node)


# ---- what references are made of --------------------------------------------------------------------------------------

def t(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(x, order="C"))


def by_torch(f: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    """A function of tensors as one of arrays."""
    return lambda *xs, **attrs: f(*(t(x) for x in xs), **attrs).numpy()


def larger(x: Any, y: Any) -> np.ndarray:
    """NaN wins, and +0 > -0."""
    x, y = np.broadcast_arrays(x, np.asarray(y, x.dtype))
    return np.where((x == 0) & (y == 0), x + y, np.maximum(x, y)) if x.dtype.kind == "f" else np.maximum(x, y)


def least(dtype: Any) -> Any:
    return -np.inf if np.dtype(dtype).kind == "f" else np.iinfo(dtype).min


def floor_div(x: Any, y: Any) -> np.ndarray:
    if np.asarray(x).dtype.kind == "f" or isinstance(y, float):
        return np.floor(np.asarray(x, np.float64) / y)
    x, y = np.broadcast_arrays(x, np.asarray(y, x.dtype))
    return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y)))


def mod(x: Any, y: Any) -> np.ndarray:
    if np.asarray(x).dtype.kind == "f":                             # of a large quotient no digit of the remainder is certain
        exact = np.mod(x, y)                                        # nor whether what is left rounds to y
        certain = ((np.abs(x / y) < 2**24) | np.isinf(x / y) | np.isnan(x / y)) & ~((exact == y) & np.isfinite(y) & (y != 0))
        return np.where(certain, exact, next(UNCERTAIN))
    x, y = np.broadcast_arrays(x, np.asarray(y, x.dtype))
    return np.where(y == 0, x, np.mod(x, np.where(y == 0, 1, y)))


def power(x: Any, y: Any) -> np.ndarray:
    if not isinstance(y, (int, float)):
        return np.power(x, y)
    special = {0.5: np.sqrt, -0.5: lambda v: 1 / np.sqrt(v), -1: lambda v: 1 / v}
    return special[y](x) if y in special else np.power(x, y)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """0 may stand for its subnormal numbers, so x · sigmoid(x) is drawn below f64 only."""
    small = np.exp(-np.abs(x))                                      # torch.sigmoid is 0 where 1 + e^-x overflows
    return np.where(x < 0, small, 1) / (1 + small)


def gelu(x: np.ndarray, approximate: str) -> np.ndarray:
    """F.gelu, but for the tail, which 1 + erf cancels there."""
    if approximate == "tanh":
        return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return x / 2 * torch.erfc(t(-x / np.sqrt(2))).numpy()


def cast(x: np.ndarray, out: tg.DType, **_: Any) -> np.ndarray:
    if x.dtype.kind != "f" or out.is_float:
        return x.astype(np.float64) if out.is_float else x.astype(out.numpy)
    if out.name == "bool":
        return x != 0
    top, bottom = float(out.max), float(out.min)
    inside = np.where(np.isnan(x), 0, np.clip(np.trunc(x), bottom, np.nextafter(top, 0) if top > 2**53 else top))
    return np.where(x >= top, out.numpy.type(out.max), inside.astype(out.numpy))


def bitcast(x: np.ndarray, dtype: tg.DType, source: str, out: tg.DType) -> np.ndarray:
    if x.dtype.kind == "f":                                         # the sign of a NaN is nobody's promise
        x = np.where(np.isnan(x), np.copysign(np.nan, next(UNCERTAIN)), x)
    bits = np.ascontiguousarray(x.astype(tg.parse_dtype(source).numpy)).view(dtype.numpy)
    return bits.astype(np.float64) if dtype.is_float else bits


def shift(x: Any, y: Any, left: bool) -> np.ndarray:
    x, y = np.broadcast_arrays(x, np.asarray(y, x.dtype))
    bits = x.dtype.itemsize * 8
    inside = np.clip(y, 0, bits - 1).astype(x.dtype)
    if left:
        return np.where((y < 0) | (y >= bits), 0, np.left_shift(x, inside))
    return np.where(y < 0, 0, np.where(y >= bits, np.where(x < 0, -1, 0).astype(x.dtype) if x.dtype.kind == "i" else 0,
                                       np.right_shift(x, inside)))


def reduced(f: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """f(x, axes) of a call with axis and keepdims."""
    def reference(x: np.ndarray, axis: Any = None, keepdims: bool = False, **more: Any) -> np.ndarray:
        return np.asarray(f(x, axis=axis if axis is None or isinstance(axis, int) else tuple(axis), keepdims=keepdims, **more))
    return reference


def mean(x: np.ndarray, **axes: Any) -> np.ndarray:
    return np.asarray(np.sum(x, **axes) / (x.size / np.sum(np.ones_like(x), **axes).size if x.size else
                                           np.sum(np.ones_like(x), **axes)))


def prod(x: np.ndarray, axis: Any, keepdims: bool, out: tg.DType) -> np.ndarray:
    """Uncertain where another order of the factors may overflow or underflow on its way."""
    product = np.asarray(np.prod(x, axis, x.dtype, keepdims=keepdims))
    if not out.is_float:
        return product
    digits = np.nan_to_num(np.abs(np.log2(np.abs(x))), posinf=0)
    return np.where(np.sum(digits, axis, keepdims=keepdims) < -np.log2(out.smallest_normal), product, next(UNCERTAIN))


def highest_first(x: np.ndarray) -> np.ndarray:
    """The order of the last axis, largest first, NaN before all, equal ones by index."""
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]


def topk(x: np.ndarray, k: int, pick: int) -> np.ndarray:
    order = highest_first(x)[..., :k]
    return order.astype(np.int32) if pick else np.take_along_axis(x, order, -1)


def gather(x: np.ndarray, index: np.ndarray, axis: int = 0) -> np.ndarray:
    axis %= x.ndim
    safe = np.where((index >= 0) & (index < x.shape[axis]), index.astype(np.int64), x.shape[axis])
    return np.take(np.concatenate([x, np.zeros_like(x, shape=(*x.shape[:axis], 1, *x.shape[axis + 1:]))], axis), safe, axis)


def scatter(base: np.ndarray, index: np.ndarray, updates: np.ndarray, axis: int = 0, mode: str = "set") -> np.ndarray:
    axis %= base.ndim
    out = np.moveaxis(base.copy(), axis, 0)
    values = updates.reshape(*base.shape[:axis], index.size, *base.shape[axis + 1:])
    for at, value in zip(index.ravel().tolist(), np.moveaxis(values, axis, 0), strict=True):
        if 0 <= at < len(out):
            out[at] = value if mode == "set" else out[at] + value if mode == "add" else larger(out[at], value)
    return np.moveaxis(out, 0, axis)


def write_rows(base: np.ndarray, value: np.ndarray, start: int, axis: int = 0) -> np.ndarray:
    return scatter(base, np.arange(start, start + value.shape[axis]), value, axis)


def windows(x: np.ndarray, size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, value: float = 0) -> np.ndarray:
    """[..., k..., p...], as docs/ops/windows.md says."""
    count = len(size)
    first = x.ndim - count
    each = [v if isinstance(v, tuple) else (v,) * count for v in (stride, dilation)]
    pads = [p if isinstance(p, tuple) else (p, p) for p in (padding if isinstance(padding, tuple) else (padding,) * count)]
    x = np.pad(x, [(0, 0)] * first + pads, constant_values=value)
    for i, (k, s, dil) in enumerate(zip(size, *each, strict=True)):
        places = (x.shape[first + 2 * i] - dil * (k - 1) - 1) // s + 1
        x = np.take(x, dil * np.arange(k)[:, None] + s * np.arange(places), first + 2 * i)
    return np.moveaxis(x, [first + 2 * i for i in range(count)], range(first, first + count))


def max_pool(x: np.ndarray, size: Any, stride: Any = None, **rest: Any) -> np.ndarray:
    seen = windows(x, size, size if stride is None else stride, value=least(x.dtype), **rest)
    return seen.max(axis=tuple(range(x.ndim - len(size), x.ndim)))


def avg_pool(x: np.ndarray, size: Any, stride: Any = None, padding: Any = 0, count_padding: bool = True) -> np.ndarray:
    stride, axes = size if stride is None else stride, tuple(range(x.ndim - len(size), x.ndim))
    total = windows(x, size, stride, padding).sum(axes)
    return total / (np.prod(size) if count_padding else windows(np.ones_like(x), size, stride, padding).sum(axes))


def conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
         groups: int = 1) -> np.ndarray:
    places = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[2:], weight.shape[2:], strict=True)]
    if min(places) < 1:                                             # torch refuses a kernel longer than its axis
        return np.zeros((len(x), len(weight), *places))
    convolution = [F.conv1d, F.conv2d, F.conv3d][x.ndim - 3]
    return convolution(t(x), t(weight), None if bias is None else t(bias), stride, padding, dilation, groups).numpy()


def attention(q: Any, k: Any, v: Any, mask: Any = None, scale: float = 1.0, causal: bool = False, window: int = 0, start: int = 0,
              softcap: float = 0.0, sinks: Any = None) -> np.ndarray:
    heads = q.shape[1] // max(k.shape[1], 1)
    q, k, v = t(q).movedim(1, 0), t(k).movedim(1, 0).repeat_interleave(heads, 0), t(v).movedim(1, 0).repeat_interleave(heads, 0)
    scores = scale * (q @ k.mT)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    i, j = start + torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    sees = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool) if mask is None else t(mask)
    sees = sees & (j <= i) if causal else sees
    sees = sees & (i - j < window) if window else sees
    scores = scores.masked_fill(~sees, -torch.inf)
    weights = torch.where(sees.any(-1, keepdim=True), torch.softmax(scores, -1), 0.0)
    if sinks is not None:                                           # one more key, whose value is zero; an infinite one takes all
        weights = weights * torch.sigmoid(torch.logsumexp(scores, -1, keepdim=True) - t(sinks).to(scores)[:, None, None])
    return (weights @ v).movedim(0, 1).numpy()


def batched_attention(q: Any, k: Any, v: Any, mask: Any = None, **attrs: Any) -> np.ndarray:
    masks = [mask] * len(q) if mask is None or mask.ndim == 2 else mask
    return np.stack([attention(*one, **attrs) for one in zip(q, k, v, masks, strict=True)])


def paged_attention(q: Any, k: Any, v: Any, pages: Any, positions: Any, sinks: Any = None, *, page: int, scale: float,
                    window: int = 0, softcap: float = 0.0) -> np.ndarray:
    def of_token(i: int) -> np.ndarray:
        keys = np.arange(min(int(positions[i]) + 1, pages.shape[1] * page))
        rows = pages[i].astype(np.int64)[keys // page] * page + keys % page
        near = (np.concatenate([x, np.zeros_like(x[:1])])[np.where((rows >= 0) & (rows < len(x)), rows, -1)] for x in (k, v))
        return attention(q[i:i + 1], *near, scale=scale, causal=True, window=window, start=int(positions[i]), softcap=softcap,
                         sinks=sinks)[0]
    return np.stack([of_token(i) if positions[i] >= 0 else np.zeros((q.shape[1], v.shape[2])) for i in range(len(q))])


def group_norm(x: np.ndarray, *vectors: np.ndarray, groups: int, eps: float) -> np.ndarray:
    y = x.reshape(x.shape[0], groups, -1)
    y = ((y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + eps)).reshape(x.shape)
    for k, v in enumerate(vectors):
        v = v.reshape(1, -1, *[1] * (x.ndim - 2))
        y = y + v if k else y * v
    return y


def batch_norm(x: np.ndarray, *vectors: np.ndarray, eps: float) -> np.ndarray:
    given = (*vectors, *[np.ones(x.shape[1]), np.zeros(x.shape[1])][len(vectors) - 2:])
    m, var, w, b = (v.reshape(1, -1, *[1] * (x.ndim - 2)) for v in given)
    return (x - m) / np.sqrt(var + eps) * w + b


def layer_norm(x: np.ndarray, *vectors: np.ndarray, eps: float) -> np.ndarray:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    y = y * vectors[0] if vectors else y
    return y + vectors[1] if len(vectors) > 1 else y


def rms_norm(x: np.ndarray, *weight: np.ndarray, eps: float, offset: float = 0.0) -> np.ndarray:
    y = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)
    return y * (offset + weight[0]) if weight else y


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    a, b = np.split(x, 2, axis=-1)
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def rope_table(positions: np.ndarray, head_dim: int, theta: float, scaling: float, pick: int) -> np.ndarray:
    angles = positions.astype(np.float64)[:, None] / scaling * theta ** (-2 * np.arange(head_dim // 2) / head_dim)
    return (np.sin if pick else np.cos)(angles)


def blocks_of_q8_0(x: np.ndarray, format: str) -> np.ndarray:
    blocks = np.ascontiguousarray(x).reshape(len(x), -1, 34)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    return (scale * np.ascontiguousarray(blocks[..., 2:]).view(np.int8)).reshape(len(x), -1)


def quantised_to_q8_0(x: np.ndarray, format: str) -> np.ndarray:
    blocks = np.asarray(x, np.float32).reshape(len(x), -1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    steps = blocks * np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale)).astype(np.float32)
    codes = np.trunc(steps + np.copysign(np.float32(0.5), steps)).astype(np.int8)
    return np.concatenate([scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)], axis=-1).reshape(len(x), -1)


def products_of_blocks(d: Draw) -> Call:
    count, rows = d.one([1, 2]), d.size()
    return (d.leaf((d.size(), 32 * count), tg.f32), d.leaf((rows, 34 * count), tg.u8, "wide"), d.leaf((rows,), tg.f32)), {
        "format": "Q8_0"}


def product_of_blocks(x: np.ndarray, w: np.ndarray, b: np.ndarray, format: str) -> np.ndarray:
    return x @ blocks_of_q8_0(w, format).T + b


def threefry(key: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011)."""
    keys = [key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)]
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        x0, x1 = x0 + keys[(block + 1) % 3], x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x0, x1


def random_words(key: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    count = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint32).reshape(shape)
    return threefry(key, np.zeros_like(count), count)


def uniform(key: np.ndarray, shape: tuple[int, ...], dtype: tg.DType) -> np.ndarray:
    bits = {"f16": 11, "bf16": 8}.get(dtype.name, 24)
    a, b = random_words(key, shape)
    return ((a ^ b) >> np.uint32(32 - bits)).astype(np.float64) / 2**bits


def normal(key: np.ndarray, shape: tuple[int, ...], dtype: tg.DType) -> np.ndarray:
    u, v = ((w >> np.uint32(8)).astype(np.float64) / 2**24 for w in random_words(key, shape))
    return np.sqrt(-2 * np.log(u + 2.0**-24)) * np.cos(2 * np.pi * v)


def upsample(x: np.ndarray, scale: tuple[int, ...], mode: str) -> np.ndarray:
    for axis, s in zip(range(x.ndim - len(scale), x.ndim), scale, strict=True):
        if mode == "nearest":
            x = np.repeat(x, s, axis)
            continue
        at = np.maximum((np.arange(x.shape[axis] * s) + 0.5) / s - 0.5, 0)
        low = np.floor(at).astype(int)
        w = (at - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        high = np.minimum(low + 1, x.shape[axis] - 1)
        x = np.take(x, low, axis) * (1 - w) + np.take(x, high, axis) * w
    return x


def resize(x: np.ndarray, size: tuple[int, ...], mode: str) -> np.ndarray:
    """Uncertain where an infinite element has a weight of 0, or of a rounding."""
    name = {"nearest": "nearest", "linear": ("linear", "bilinear")[len(size) - 1], "cubic": "bicubic"}[mode]
    rows = t(x).reshape(1, -1, *x.shape[x.ndim - len(size):])
    out = F.interpolate(rows, size, mode=name).numpy().reshape(*x.shape[:x.ndim - len(size)], *size)
    return out if mode == "nearest" else np.where(np.isfinite(out), out, next(UNCERTAIN))


def from_poles(f: Callable[..., torch.Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    """Uncertain where some roundings of f32 in x lead across a pole at a negative whole number or much nearer to it."""
    return lambda x: np.where((x < 0) & (np.abs(x) * 2.0**-18 >= np.abs(np.sin(np.pi * (x - np.round(x))))), next(UNCERTAIN),
                              by_torch(f)(x))


def atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Uncertain where the sign of a zero counts, and where a quotient's divisor has no reciprocal."""
    uncertain = ((y == 0) & ~(x > 0)) | ((x != 0) & (np.abs(x) < 1e-37))
    return np.where(uncertain, next(UNCERTAIN), np.arctan2(y, x))


def scan_recurrence(decay: float, xs: Any, h: Any) -> tg.Node:
    last, ys = tg.scan(lambda c, x: ((c * decay + x), c * decay - x), h, xs)
    return tg.concat(ys, tg.reshape(last, (1, *last.shape)), axis=0)


def scan_reference(xs: np.ndarray, h: np.ndarray, decay: float) -> np.ndarray:
    ys = []
    for x in xs:
        ys.append(h * decay - x)
        h = h * decay + x
    return np.stack([*ys, h])


def sliced(x: np.ndarray, bounds: Any) -> np.ndarray:
    return x[tuple(np.s_[a:(None if step < 0 and b == -1 else b):step] for a, b, step in bounds)]


def cross_entropy(logits: np.ndarray, target: np.ndarray, axis: int) -> np.ndarray:
    p = -torch.log_softmax(t(logits), axis).numpy()
    ok = (target >= 0) & (target < logits.shape[axis])
    at = np.expand_dims(np.where(ok, target, 0).astype(np.int64), axis)
    return np.where(ok, np.take_along_axis(p, at, axis).squeeze(axis), 0)


# ---- how operands are drawn -------------------------------------------------------------------------------------------

def unary(*dtypes: tg.DType, **attrs: Callable[[Draw], Any]) -> Callable[[Draw], Call]:
    return lambda d: ((d.value(dtypes),), {k: v(d) for k, v in attrs.items()})


def binary(dtypes: Sequence[tg.DType], number: bool = True, low: int = -3) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.value(dtypes)
        dtype = d.nodes[x].dtype
        if number and dtype.name != "bool" and d.chance(0.25):
            numbers = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1.75, -3.0, 2.0**-6, np.inf]
            return (x,), {"y": d.one(numbers if dtype.is_float else range(max(low, dtype.min), 6))}
        y = d.beside(x)
        return ((x, y) if d.chance(0.5) or low == 0 else (y, x)), {}
    return draw


def along(dtypes: Sequence[tg.DType], zero: bool = True, **attrs: Callable[[Draw], Any]) -> Callable[[Draw], Call]:
    """A value and one of its axes."""
    def draw(d: Draw) -> Call:
        x = d.value(dtypes, low=1, zero=zero)
        return (x,), {"axis": d.axis(x), **{k: v(d) for k, v in attrs.items()}}
    return draw


def over(dtypes: Sequence[tg.DType]) -> Callable[[Draw], Call]:
    """A value and some of its axes."""
    def draw(d: Draw) -> Call:
        x = d.value(dtypes)
        rank = d.nodes[x].rank
        axes = tuple(int(a) for a in d.r.permutation(rank)[:int(d.r.integers(0, rank + 1))])
        return (x,), {"axis": d.one([None, axes, axes, *axes[:1]]), "keepdims": d.chance(0.4)}
    return draw


def reshape(d: Draw) -> Call:
    x = d.value()
    shape = list(d.nodes[x].shape)
    if len(shape) > 1 and d.chance(0.6):
        at = int(d.r.integers(len(shape) - 1))
        shape[at:at + 2] = [shape[at] * shape[at + 1]]
    else:
        at = int(d.r.integers(len(shape) + 1))
        shape[at:at] = [1]
    splits = [i for i, s in enumerate(shape) if isinstance(s, int) and s > 1]
    if splits and d.chance(0.5):
        i = d.one(splits)
        k = d.one([f for f in range(1, shape[i] + 1) if shape[i] % f == 0])
        shape[i:i + 1] = [k, shape[i] // k]
    return (x,), {"shape": tuple(shape)}


def permute(d: Draw) -> Call:
    x = d.value(low=1)
    return (x,), {"axis": tuple(int(a) for a in d.r.permutation(d.nodes[x].rank))}


def expand(d: Draw) -> Call | None:
    x = d.value(fits=lambda v: any(s == 1 for s in v.shape))
    return (x,), {"shape": tuple(d.size() if s == 1 and d.chance(0.7) else s for s in d.nodes[x].shape)}


def pad(d: Draw) -> Call:
    x = d.value()
    dtype = d.nodes[x].dtype
    value = d.one([0.0, 1.5, -np.inf, np.nan, -0.0]) if dtype.is_float and dtype.has_infinity else d.one([0, 1])
    return (x,), {"padding": tuple((d.one([0, 0, 1, 3, d.n]), d.one([0, 0, 1, 2])) for _ in d.nodes[x].shape),
                  "value": bool(value) if dtype.name == "bool" else value}


def slices(d: Draw) -> Call:
    x = d.value(low=1)
    bounds_ = []
    for s in d.nodes[x].shape:
        low = bounds(s)[0]
        a, step = int(d.r.integers(0, low + 1)), d.one([1, 1, 1, 2, 3])
        backwards = (s - 1, -1, -step) if low else (0, s, 1)
        bounds_.append(d.one([(0, s, step), (a, s, step), backwards, (a, a + (low - a + 1) // 2, step)]))
    return (x,), {"bounds": tuple(bounds_)}


def concat(d: Draw) -> Call:
    x = d.value(low=1)
    axis = d.axis(x)
    def other() -> int:
        shape = list(d.nodes[x].shape)
        shape[axis] = d.one([shape[axis], d.size()])
        return d.like(x, shape)
    return tuple(d.one([x, other()]) for _ in range(d.one([1, 2, 2, 3]))), {"axis": axis}


def gathers(d: Draw) -> Call:
    x = d.value(low=1)
    axis = d.axis(x)
    return (x, d.index(d.shape(0, 2), d.nodes[x].shape[axis])), {"axis": axis}


def scatters(d: Draw) -> Call:
    x = d.value(NUMBERS, low=1)
    axis, mode, shape = d.axis(x) % d.nodes[x].rank, d.one(["set", "add", "max"]), d.nodes[x].shape
    once = mode == "set"
    index = d.index((d.one([1, 2, 3, 5]),) if once else d.shape(0, 2), shape[axis], "distinct" if once else "index")
    updates = d.like(x, (*shape[:axis], *d.nodes[index].shape, *shape[axis + 1:]))
    return (x, index, updates), {"axis": axis, "mode": mode}


def writes(d: Draw) -> Call:
    (x, index, updates), attrs = scatters(d)
    if attrs.pop("mode") != "set":
        shape, axis = list(d.nodes[x].shape), attrs["axis"]
        shape[axis] = d.one([1, 2, 3])
        return (x, d.like(x, shape)), {"start": d.one([0, 1, -1, 2, d.n]), **attrs}
    return (x, updates, index), attrs


def only(length: int, f: Callable[[Draw], Call]) -> Callable[[Draw], Call | None]:
    """Draw a call with this number of operands."""
    def draw(d: Draw) -> Call | None:
        return next((c for c in (f(d) for _ in range(8)) if len(c[0]) == length), None)
    return draw


def dots(d: Draw) -> Call:
    a = d.value((*WIDE, *WIDE, *INTEGERS), low=1)
    shape = d.nodes[a].shape
    k, n = shape[-1], d.size()
    return (a, d.like(a, d.one([(k,), (k, n), (k, n), (*shape[:-2], k, n)]))), {}


def styled(d: Draw, x: int, weight: tg.DType) -> str | None:
    """The values of a weight that is cast to x's dtype: those that f16 holds, where that is x's and not its own."""
    return "normal" if d.nodes[x].dtype is tg.f16 and weight is not tg.f16 else d.one([None, "normal"])


def linears(d: Draw) -> Call:
    x = d.value(WIDE, low=1)
    out, weight = d.size(False), d.one([d.nodes[x].dtype, d.one(FLOATS)])
    args = [x, d.like(x, (out, d.nodes[x].shape[-1]), weight, styled(d, x, weight))]
    return (*args, *([d.like(x, (out,), weight)] if d.chance(0.5) else [])), {}


def scaled(d: Draw) -> Call:
    narrow = (tg.f8e4m3, tg.f8e5m2, tg.bf16, tg.f16)
    x, out = d.value(narrow, low=1), d.one([1, 3, 8, 16])
    scales = [d.like(x, d.one([(), (*d.nodes[x].shape[:-1], 1)]), tg.f32), d.like(x, d.one([(), (out,)]), tg.f32)]
    return (x, d.like(x, (out, d.nodes[x].shape[-1]), d.one(narrow)), *scales), {"dtype": d.one([tg.f32, tg.bf16, tg.f16])}


def convs(d: Draw) -> Call:
    count, groups = d.one([1, 2, 2, 3]), d.one([1, 1, 2])
    channels, dtype = groups * d.one([1, 2, 3]), d.one(WIDE)
    x = d.value((dtype,), count + 2, count + 2, fits=lambda v: v.shape[1] == channels, zero=False)
    if d.nodes[x].shape[1] != channels:
        x = d.leaf((d.one([1, 2, d.n]), channels, *(d.one([3, 5, 7]) for _ in range(count))), dtype)
    out = groups * d.one([1, 2, 4])
    w = d.like(x, (out, channels // groups, *(d.one([1, 2, 3]) for _ in range(count))), d.one([dtype, dtype, tg.f32]), "normal")
    return (x, w, *([d.like(x, (out,))] if d.chance(0.5) else [])), {
        "stride": d.one([1, 1, 2, 3]), "padding": d.one([0, 1, 2]), "dilation": d.one([1, 1, 2]), "groups": groups}


def pools(extra: Callable[[Draw], dict[str, Any]], dtypes: Sequence[tg.DType]) -> Callable[[Draw], Call]:
    def draw(d: Draw) -> Call:
        x = d.value(dtypes, low=2, zero=False)
        return (x,), {"size": tuple(d.one([1, 2, 3]) for _ in range(d.one([1, 2]))), "stride": d.one([1, 1, 2, 3]), **extra(d)}
    return draw


def attentions(d: Draw) -> Call:
    heads, dtype = d.one([1, 2]), d.one(WIDE)
    q = d.value((dtype,), 3, 3, fits=lambda v: v.shape[1] in (heads, 2 * heads) and v.shape[2] != 0, zero=False)
    if d.nodes[q].shape[1] not in (heads, 2 * heads):
        q = d.leaf((d.size(False), heads, d.one([1, 4, 8, 16])), dtype, d.one(["normal", "large mean", "wide"]))
    s = d.size()
    k = d.like(q, (s, heads, d.nodes[q].shape[2]), style=d.one(["normal", "equal rows"]))
    v = d.like(q, (s, heads, d.one([1, 3, 8])), style=d.one(["normal", "large mean"]))
    mask = [d.like(q, (d.nodes[q].shape[0], s), tg.bool_)] if d.chance(0.3) else []
    return (q, k, v, *mask), {"scale": d.one([0.5, 1.0]), "causal": d.chance(0.5), "window": d.one([0, 0, 1, 3]),
                              "start": d.one([0, 0, 2, d.n]), "softcap": d.one([0.0, 0.0, 5.0])}


def batched_attentions(d: Draw) -> Call:
    heads, dtype, b, n, s = d.one([1, 2]), d.one(WIDE), d.one([1, 2, 3]), d.one([1, 3, 5]), d.one([1, 4])
    q = d.leaf((b, n, d.one([heads, 2 * heads]), d.one([1, 4, 8])), dtype, d.one(["normal", "large mean"]))
    k = d.like(q, (b, s, heads, d.nodes[q].shape[3]), style=d.one(["normal", "equal rows"]))
    v = d.like(q, (b, s, heads, d.one([1, 3, 8])), style="normal")
    mask = [d.like(q, d.one([(n, s), (b, n, s)]), tg.bool_)] if d.chance(0.3) else []
    return (q, k, v, *mask), {"scale": d.one([0.5, 1.0]), "causal": d.chance(0.5), "window": d.one([0, 0, 1, 3]),
                              "start": d.one([0, 0, 2]), "softcap": d.one([0.0, 0.0, 5.0])}


def paged_attentions(d: Draw) -> Call:
    heads, dtype, t, page = d.one([1, 2]), d.one(WIDE), d.size(False), d.one([1, 2, 4])
    q = d.leaf((t, d.one([heads, 2 * heads]), d.one([1, 4, 8])), dtype, d.one(["normal", "large mean"]))
    k = d.like(q, (4 * page, heads, d.nodes[q].shape[2]), style=d.one(["normal", "equal rows"]))
    v = d.like(q, (4 * page, heads, d.one([1, 3, 8])), style="normal")
    sinks = [d.leaf((d.nodes[q].shape[1],), tg.f32)] if d.chance(0.3) else []
    return (q, k, v, d.leaf((t, d.one([1, 3])), tg.i32, "index", 4), d.leaf((t,), tg.i32, "index", 4), *sinks), {
        "page": page, "scale": d.one([0.5, 1.0]), "window": d.one([0, 0, 1, 3]), "softcap": d.one([0.0, 0.0, 5.0])}


def norms(most: int, axis: int = -1, low: int = 1, **attrs: Callable[[Draw], Any]) -> Callable[[Draw], Call]:
    """A value and up to `most` vectors of one of its axes."""
    def draw(d: Draw) -> Call:
        x = d.value(WIDE, low=low, zero=False)
        dtype = d.one([d.nodes[x].dtype, tg.f32])
        vectors = [d.like(x, (d.nodes[x].shape[axis],), dtype) for _ in range(int(d.r.integers(2 if most == 4 else 0, most + 1)))]
        return (x, *vectors), {"eps": d.one([1e-5, 1e-6, 1e-3]), **{k: v(d) for k, v in attrs.items()}}
    return draw


def ropes(d: Draw) -> Call:
    n, dtype = d.size(), d.one(WIDE)
    x = d.leaf((n, d.one([1, 2]), d.one([2, 8, 10])), dtype)
    half = d.nodes[x].shape[2] // 2
    return (x, d.like(x, (n, half), d.one([dtype, tg.f32])), d.like(x, (n, half), d.one([dtype, tg.f32]))), {}


def choices(d: Draw) -> Call:
    x = d.value()
    y = d.beside(x)
    return (d.like(x, dtype=tg.bool_), *((x, y) if d.chance(0.5) else (y, x))), {}


def gather_linears(d: Draw) -> Call:
    x = d.value(WIDE, low=1)
    lead, k = d.nodes[x].shape[:-1], d.nodes[x].shape[-1]
    weight = d.like(x, (4, 3, k), style="normal")
    return (x, weight, d.index(lead, 4), *([d.like(x, (4, 3))] if d.chance(0.5) else [])), {}


def gather_linear(x: Any, weight: Any, index: Any, *bias: Any) -> np.ndarray:
    y = np.einsum("...k,...ok->...o", x, gather(weight, index))
    y = y + gather(bias[0], index) if bias else y
    return np.where(((index >= 0) & (index < len(weight)))[..., None], y, 0)


def linear_argmaxes(d: Draw) -> Call:
    x = d.value(WIDE, low=1)
    weight = d.one([d.nodes[x].dtype, tg.f32])
    return (x, d.like(x, (d.one([1, 3, 17]), d.nodes[x].shape[-1]), weight, styled(d, x, weight))), {"pick": d.one([0, 1])}


def linear_argmax(x: Any, weight: Any, pick: int) -> np.ndarray:
    y = np.matmul(x, weight.T)
    return y.argmax(-1).astype(np.int32) if pick else y.max(-1)


def keys(**attrs: Callable[[Draw], Any]) -> Callable[[Draw], Call]:
    return lambda d: ((d.leaf((2,), tg.u32, "wide"),), {k: v(d) for k, v in attrs.items()})


def embeddings(d: Draw) -> Call:
    x = d.value(FLOATS, 2, 2)
    return (x, d.index(d.shape(0, 2), d.nodes[x].shape[0])), {"scale": d.one([1.0, 2.0, 0.125]), "dtype": d.one(WIDE)}


def scans(d: Draw) -> Call:
    xs = d.value((tg.f32, tg.f32, tg.f64, tg.bf16), low=1, high=3)
    return (xs, d.like(xs, d.nodes[xs].shape[1:])), {"decay": d.one([0.5, -0.875, 1.0])}


def bitcasts(d: Draw) -> Call:
    x = d.value(tuple(a for a in ANY if a.name != "bool"), low=1)
    return (x,), {"dtype": d.one(tuple(a for a in ANY if a.name != "bool")), "source": d.nodes[x].dtype.name}


def einsums(d: Draw) -> Call:
    a = d.value((*WIDE, tg.i32), 2, 3)
    shape = d.nodes[a].shape
    if len(shape) == 2:
        equation, other = d.one([("ij,jk->ik", (shape[1], d.size())), ("ij,ij->i", shape), ("ij,kj->ki", (d.size(), shape[1])),
                                 ("ij,j", shape[1:])])
    else:
        equation, other = d.one([("bij,bjk->bik", (shape[0], shape[2], 3)), ("bij,bij->", shape), ("bij,jk->kib", (shape[2], 2))])
    return (a, d.like(a, other)), {"equation": equation}


def cross_entropies(d: Draw) -> Call:
    x = d.value(WIDE, low=1, zero=False)
    axis = d.axis(x)
    shape = list(d.nodes[x].shape)
    size = shape.pop(axis)
    return (x, d.leaf(shape, d.one([tg.i32, tg.i64]), "index", size)), {"axis": axis}


def sourced(x: Draw) -> Call:
    shape = x.shape(1, 3)
    return (), {"shape": shape, "axis": int(x.r.integers(len(shape))), "dtype": x.one(NUMBERS)}


def iota(shape: Any, axis: int, dtype: tg.DType) -> np.ndarray:
    line = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return np.broadcast_to(line, shape).astype(np.float64 if dtype.is_float else dtype.numpy)


def picked(f: Callable[..., Sequence[tg.Node]]) -> Callable[..., tg.Node]:
    return lambda *xs, pick, **attrs: f(*xs, **attrs)[pick]


OPS: dict[str, Op] = {}


def op(name: str, draw: Callable[[Draw], Call | None], reference: Callable[..., Any], call: Callable[..., Any] | None = None,
       **facts: Any) -> None:
    OPS[name] = Op(draw, reference, call or getattr(tg, name), **facts)


def linear(x: np.ndarray, w: np.ndarray, *b: np.ndarray) -> np.ndarray:
    return sum(b, np.matmul(x, w.T))


def sizes_of(f: Callable[..., Any]) -> Callable[..., Sequence[Any]]:
    """Sums the magnitudes of products: where that leaves f32, a sum of f32 may be ∞ or NaN, however small the exact sum is."""
    return lambda *xs, **attrs: (f(*(np.abs(x) if x.dtype.kind == "f" else x for x in xs), **attrs),)


def of_two(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of operands x and y, which may be named."""
    return lambda x, y: f(x, y)


def tan(x: np.ndarray) -> np.ndarray:
    """Uncertain where some roundings of f32 in x lead across a pole or much nearer to it."""
    return np.where(np.abs(x) * 2.0**-18 > np.abs(np.cos(x)), next(UNCERTAIN), by_torch(torch.tan)(x))


op("tan", unary(*FLOATS), tan)
for _name in ("sqrt", "exp2", "log2", "sin", "cos", "exp", "expm1", "log", "log1p", "erf", "erfc", "tanh", "rsqrt"):
    op(_name, unary(*FLOATS), by_torch(getattr(torch, _name)))
for _name in ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfinv"):
    op(_name, unary(*FLOATS), by_torch(getattr(torch, _name)))
for _name in ("lgamma", "digamma"):
    op(_name, unary(*FLOATS), from_poles(getattr(torch, _name)))
op("atan2", lambda d: ((y := d.value(FLOATS), d.like(y, style=d.one(["normal", "wide", "large mean"]))), {}), atan2)
op("sigmoid", unary(*FLOATS), sigmoid)
op("silu", unary(*(t for t in FLOATS if t.bits < 64)), lambda x: np.where(x < -87, next(UNCERTAIN), x * sigmoid(x)))   # e^-x: ∞
for _name, _g in {"reciprocal": lambda x: 1 / x, "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
                  "is_finite": np.isfinite, "is_nan": np.isnan, "softplus": lambda x: np.logaddexp(0, x)}.items():
    op(_name, unary(*FLOATS), _g)
for _name, _g in {"abs": np.abs, "neg": np.negative, "sign": np.sign, "square": np.square,
                  "relu": lambda x: larger(x, x.dtype.type(0))}.items():
    op(_name, unary(*NUMBERS), _g, exact=_name in ("neg", "relu"))
for _name, _g in {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": larger, "minimum": np.minimum}.items():
    op(_name, binary(NUMBERS), of_two(_g), exact=_name in ("add", "mul", "maximum"))
for _name, _g in {"less": np.less, "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
                  "equals": np.equal, "not_equal": np.not_equal}.items():
    op(_name, binary(NUMBERS), of_two(_g))
op("div", binary(FLOATS), of_two(np.divide), mixes=1)                # x / x may be a rounding off 1: it is x · (1 / x)
op("floor_div", binary(NUMBERS), floor_div, mixes=1)
op("mod", binary(NUMBERS), mod, mixes=1)                           # its error is relative to x, as a quotient is rounded
op("pow", binary(WIDE), power)
op("integer_power", unary(*NUMBERS, exponent=lambda d: int(d.r.integers(0, 7))),
   lambda x, exponent: np.power(x, x.dtype.type(exponent)))
for _name, _g in {"bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor}.items():
    op(_name, binary((*INTEGERS, tg.bool_)), of_two(_g))
op("left_shift", binary(INTEGERS, low=0), partial(shift, left=True))
op("right_shift", binary(INTEGERS, low=0), partial(shift, left=False))
op("logical_not", unary(*INTEGERS, tg.bool_, tg.bool_), np.invert)
op("where", choices, np.where, exact=True)
op("clip", unary(*WIDE, tg.i32, low=lambda d: d.one([-1, 0]), high=lambda d: d.one([1, 3])),
   lambda x, low, high: np.clip(x, low, high))
op("cast", unary(*ANY, dtype=lambda d: d.one(ANY)), cast, typed=True, exact=True)
op("bitcast", bitcasts, bitcast, lambda x, dtype, source: tg.bitcast(x, dtype), typed=True)
op("gelu", unary(*FLOATS, approximate=lambda d: d.one(["none", "tanh"])), gelu)
op("gated", lambda d: ((x := d.value(WIDE), d.like(x)),
                       {"activation": d.one(["gelu_tanh", "gelu", *(["silu"] if d.nodes[x].dtype.bits < 64 else [])])}),
   lambda g, u, activation: u * (g * sigmoid(g) if activation == "silu" else gelu(g, "none" if activation == "gelu" else "tanh")))

op("sum", over(NUMBERS), lambda x, axis, keepdims: np.sum(x, axis, x.dtype, keepdims=keepdims), mixes=1)
op("prod", over(NUMBERS), prod, mixes=1, typed=True)
op("mean", over(FLOATS), reduced(mean), mixes=1)
op("var", over(FLOATS), reduced(np.var), mixes=1)
op("reduce_max", over(NUMBERS), lambda x, axis, keepdims: np.max(x, axis, keepdims=keepdims, initial=least(x.dtype)))
op("reduce_min", over(NUMBERS), lambda x, axis, keepdims: np.min(
    x, axis, keepdims=keepdims, initial=np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).max))
op("all", over((tg.bool_,)), reduced(np.all))
op("any", over((tg.bool_,)), reduced(np.any))
op("argmax", along(NUMBERS, zero=False), lambda x, axis: x.argmax(axis).astype(np.int32))
op("cumsum", along(NUMBERS), lambda x, axis: np.cumsum(x, axis, x.dtype), mixes=1)
op("softmax", along(FLOATS), by_torch(lambda x, axis: torch.softmax(x, axis)), mixes=1)
op("log_softmax", along(FLOATS), by_torch(lambda x, axis: torch.log_softmax(x, axis)), mixes=1, rounds=2**-23)
op("logsumexp", along(FLOATS, keepdims=lambda d: d.chance(0.5)),
   by_torch(lambda x, axis, keepdims: torch.logsumexp(x, axis, keepdims)), mixes=1, rounds=2**-23)
op("topk", lambda d: ((x := d.value(NUMBERS, low=1, zero=False),), {"k": min(d.one([1, 2, 3]), bounds(d.nodes[x].shape[-1])[0]),
                                                                    "pick": d.one([0, 1])}), topk, picked(tg.topk))
op("layer_norm", norms(2), layer_norm, mixes=1)
op("rms_norm", norms(1, offset=lambda d: d.one([0.0, 1.0])), rms_norm, mixes=1)
op("group_norm", norms(2, 1, 2, groups=lambda d: d.one([1, 1, 2])), group_norm, mixes=1)
op("batch_norm", norms(4, 1, 2), batch_norm, mixes=1)

op("iota", sourced, iota)
op("arange", lambda d: ((), {"start": d.one([0, 2, -3]), "stop": d.one([5, 0, 17]), "step": d.one([1, 2, -1]),
                             "dtype": d.one([tg.i32, tg.f32])}), lambda start, stop, step, dtype: np.arange(start, stop, step))
op("full", lambda d: ((), {"shape": d.shape(), "value": d.one([0, 1, 3]), "dtype": d.one(NUMBERS)}),
   lambda shape, value, dtype: np.full(shape, value, np.float64 if dtype.is_float else dtype.numpy))
op("reshape", reshape, np.reshape, exact=True)
op("permute", permute, lambda x, axis: np.transpose(x, axis), exact=True)
op("expand", expand, np.broadcast_to, exact=True)
op("pad", pad, lambda x, padding, value: np.pad(x, padding, constant_values=value) if x.ndim else x, exact=True)
op("slice", slices, sliced, exact=True)
op("flip", along(ANY), lambda x, axis: np.flip(x, axis), exact=True)
op("concat", concat, lambda *xs, axis: np.concatenate(xs, axis), exact=True)
op("stack", lambda d: ((x := d.value(high=3), d.like(x)), {"axis": d.one([0, -1])}),
   lambda *xs, axis: np.stack(xs, axis), exact=True)
op("split", lambda d: ((d.value(low=1, fits=lambda v: v.shape[0] in (2, 4, 8, 16)),), {"parts": 2,
                                                                                                 "pick": d.one([0, 1])}),
   lambda x, parts, pick: np.split(x, parts)[pick], picked(tg.split), exact=True)
op("tril", lambda d: ((d.value(low=2),), {"k": d.one([0, 1, -2])}), np.tril)
op("triu", lambda d: ((d.value(low=2),), {"k": d.one([0, 1, -2])}), np.triu)
op("gather", gathers, gather, exact=True)
op("scatter", scatters, scatter, mixes=1)
op("write_at_index", only(3, writes), lambda x, value, index, axis: scatter(x, index, value, axis), exact=True)
op("write_rows", only(2, writes), write_rows, exact=True)
op("one_hot", lambda d: ((d.index(d.shape(0, 3), 5),), {"size": d.one([5, 1, d.n]), "dtype": d.one(NUMBERS)}),
   lambda ids, size, dtype: (ids[..., None] == np.arange(size)).astype(np.float64 if dtype.is_float else dtype.numpy))
op("embedding", embeddings, lambda x, ids, scale, dtype: scale * gather(x, ids))

op("dot", dots, np.matmul, mixes=2, on_the_way=sizes_of(np.matmul))
op("einsum", einsums, lambda a, b, equation: np.einsum(equation, a, b), lambda a, b, equation: tg.einsum(equation, a, b), mixes=2,
   on_the_way=sizes_of(lambda a, b, equation: np.einsum(equation, a, b)))
op("linear", linears, linear, mixes=2, on_the_way=sizes_of(linear))
op("scaled_linear", scaled, lambda x, w, s, u, dtype: np.matmul(x, w.T) * s * u, mixes=2,
   on_the_way=lambda x, w, s, u, dtype: (y := np.matmul(np.abs(x), np.abs(w.T)), y * np.abs(s)))
op("gather_linear", gather_linears, gather_linear, mixes=2, on_the_way=sizes_of(gather_linear))
op("linear_argmax", linear_argmaxes, linear_argmax, picked(tg.linear_argmax), mixes=2)
op("conv", convs, conv, mixes=2, on_the_way=sizes_of(conv))
op("attention", attentions, attention, mixes=2)
op("batched_attention", batched_attentions, batched_attention, mixes=2)
op("paged_attention", paged_attentions, paged_attention, mixes=2)
op("windows", pools(lambda d: {"padding": d.one([0, 1, ((0, 1), (1, 0))]), "dilation": d.one([1, 2])}, ANY), windows, exact=True)
op("max_pool", pools(lambda d: {"padding": d.one([0, 1]), "dilation": d.one([1, 1, 2])}, NUMBERS), max_pool)
op("avg_pool", pools(lambda d: {"padding": d.one([0, 1]), "count_padding": d.chance(0.5)}, FLOATS), avg_pool, mixes=1)
op("upsample", lambda d: ((d.value(FLOATS, low=2, zero=False),), {"scale": d.one([(2,), (3,), (2, 3)]),
                                                                  "mode": d.one(["nearest", "linear"])}),
   upsample)
op("resize", lambda d: ((d.value(FLOATS, low=2, zero=False),), {
    "size": (size := d.one([(3,), (7,), (2, 5)])), "mode": d.one(["nearest", "linear", "cubic"][:len(size) + 1])}), resize, mixes=1)
op("rope", ropes, rope, mixes=1,
   on_the_way=lambda x, c, s: tuple(rope(np.abs(x), np.abs(c), sign * np.abs(s)) for sign in (1, -1)))
op("rope_table", lambda d: ((d.leaf((d.size(),), d.one([tg.i32, tg.f32]), "whole"),),
                            {"head_dim": d.one([2, 8]), "theta": 1e4, "scaling": d.one([1.0, 4.0]), "pick": d.one([0, 1])}),
   rope_table, picked(tg.rope_table))
op("scan", scans, scan_reference, lambda xs, h, decay: scan_recurrence(decay, xs, h), mixes=1)
op("cross_entropy", cross_entropies, cross_entropy, mixes=1, rounds=2**-23)

op("dequantize", lambda d: ((d.leaf((d.size(), 34 * d.one([1, 2])), tg.u8, "wide"),), {"format": "Q8_0"}), blocks_of_q8_0)
op("quantize", lambda d: ((d.leaf((d.size(), 32 * d.one([1, 2])), tg.f32),), {"format": "Q8_0"}), quantised_to_q8_0, exact=True)
op("block_linear", products_of_blocks, product_of_blocks, mixes=2,
   on_the_way=lambda x, w, b, format: (np.abs(x) @ np.abs(blocks_of_q8_0(w, format)).T,))
op("threefry2x32", lambda d: ((d.leaf((2,), tg.u32, "wide"), x := d.value((tg.u32,)), d.like(x)), {"pick": d.one([0, 1])}),
   lambda key, x0, x1, pick: threefry(key, x0, x1)[pick], picked(tg.threefry2x32))
op("random_bits", keys(shape=lambda d: d.shape()), lambda key, shape: np.bitwise_xor(*random_words(key, shape)))
op("uniform", keys(shape=lambda d: d.shape(), dtype=lambda d: d.one([tg.f32, tg.f16, tg.bf16, tg.f64])), uniform)
op("normal", keys(shape=lambda d: d.shape(), dtype=lambda d: d.one([tg.f32, tg.f64, tg.bf16])), normal)
