"""cpu_graphs: what benchmarks/kernels_cpu.py measures: graphs of every kind, and the same in torch.

A case names its operands once; they are inputs, or parameters of a plan (`weight`), and torch's function takes tensors in the same
order. `wrt`: both compute the gradients of what the functions give, with respect to these operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import tensor_graphs as tg

F32, BF16, I32, I8 = tg.f32, tg.bf16, tg.i32, tg.i8


@dataclass(frozen=True)
class Given:
    """An operand. low, high: the range of integers. scale: of normal numbers; positive: their size."""

    shape: tuple[int, ...]
    dtype: tg.DType = F32
    weight: bool = False
    low: int = -100
    high: int = 100
    scale: float = 1.0
    positive: bool = False

    def node(self, name: str) -> tg.Node:
        return (tg.parameter if self.weight else tg.input)(name, self.shape, self.dtype)

    def array(self, rng: np.random.Generator) -> np.ndarray:
        if self.dtype.kind != "float":
            return rng.integers(self.low, self.high, self.shape).astype(self.dtype.numpy)
        values = rng.standard_normal(self.shape, np.float32) * np.float32(self.scale)
        return np.asarray(np.abs(values) + 0.1 if self.positive else values).astype(self.dtype.numpy)


@dataclass(frozen=True)
class Case:
    kind: str
    name: str
    given: Mapping[str, Given]
    ours: Callable[..., Any]
    torch: Callable[..., Any]
    wrt: tuple[str, ...] = ()

    @property
    def graph(self) -> tg.Graph:
        nodes = {name: each.node(name) for name, each in self.given.items()}
        out = self.ours(*nodes.values())
        if self.wrt:
            found = tg.grad(out, [nodes[n] for n in self.wrt])
            return tg.graph({f"to_{n}": g for n, g in zip(self.wrt, found, strict=True)})
        return tg.graph({f"out{i}": o for i, o in enumerate(out)} if isinstance(out, tuple) else out)


def x(*shape: int, dtype: tg.DType = F32, **how: Any) -> Given:
    return Given(shape, dtype, **how)


def w(*shape: int, dtype: tg.DType = F32, scale: float = 0.05, **how: Any) -> Given:
    return Given(shape, dtype, weight=True, scale=scale, **how)


def ids(below: int, *shape: int) -> Given:
    return Given(shape, I32, low=0, high=below)


def cases(torch: Any, r: int = 1, p: int = 1) -> list[Case]:
    """All of them, in the order of the table. r: what rows, images, queries and vectors are multiplied by (a GPU wants more of
    them); p: the sides of products and of squares."""
    f = torch.nn.functional
    return [*_elementwise(torch, f, r), *_reductions(torch, f, r), *_rows(torch, f, r, p), *_moves(torch, f, r, p),
            *_products(torch, f, p), *_attention(torch, f, r), *_images(torch, f, r), *_loops(torch, f, r),
            *_gradients(torch, f, r, p)]


def _elementwise(torch: Any, f: Any, r: int) -> list[Case]:
    k, xy = "element-wise", {"x": x(2048 * r, 1024), "y": x(2048 * r, 1024)}
    half = {n: x(2048 * r, 1024, dtype=BF16) for n in "xy"}
    vectors = {n: x(r << 20) for n in "pgm"}

    def adam(p: Any, g: Any, m: Any, v: Any, sqrt: Any) -> tuple[Any, ...]:
        m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        return p - m * 0.001 / (sqrt(v) + 1e-8), m, v

    def momentum(p: Any, g: Any, m: Any) -> tuple[Any, ...]:
        m = m * 0.9 + g
        return p - m * 0.01, m

    def blend(x: Any, y: Any, sqrt: Any) -> Any:
        return x * 0.9 + y * 0.1 + sqrt(y * y + 1e-8)

    return [
        Case(k, "gelu(tanh) * y", xy, lambda x, y: tg.gelu(x, approximate="tanh") * y,
             lambda x, y: f.gelu(x, approximate="tanh") * y),
        Case(k, "gelu", {"x": xy["x"]}, lambda x: tg.gelu(x), lambda x: f.gelu(x)),
        Case(k, "silu * y", xy, lambda x, y: tg.silu(x) * y, lambda x, y: f.silu(x) * y),
        Case(k, "silu * y bf16", half, lambda x, y: tg.silu(x) * y, lambda x, y: f.silu(x) * y),
        Case(k, "tanh", {"x": xy["x"]}, lambda x: tg.tanh(x), lambda x: x.tanh()),
        Case(k, "tanh of 64", {"x": x(64)}, lambda x: tg.tanh(x), lambda x: x.tanh()),
        Case(k, "exp", {"x": xy["x"]}, lambda x: tg.exp(x), lambda x: x.exp()),
        Case(k, "bias, relu, residual", {**xy, "b": w(1024)}, lambda x, y, b: tg.relu(x + b) + y,
             lambda x, y, b: (x + b).relu() + y),
        Case(k, "a x + b y + sqrt", xy, lambda x, y: blend(x, y, tg.sqrt), lambda x, y: blend(x, y, torch.sqrt)),
        Case(k, "int32 arithmetic", {"i": x(r << 20, dtype=I32, low=0, high=1000)}, lambda i: (i * 3 + 7) * i,
             lambda i: (i * 3 + 7) * i),
        Case("optimizer", "Adam", {**vectors, "v": x(r << 20, positive=True)}, lambda p, g, m, v: adam(p, g, m, v, tg.sqrt),
             lambda p, g, m, v: adam(p, g, m, v, torch.sqrt)),
        Case("optimizer", "SGD with momentum", vectors, momentum, momentum),
    ]


def _reductions(torch: Any, f: Any, r: int) -> list[Case]:
    k, one, image = "reduction", {"x": x(2048 * r, 1024)}, {"x": x(32 * r, 64, 28, 28)}
    return [
        Case(k, "sum of all", one, lambda x: x.sum(), lambda x: x.sum()),
        Case(k, "sum of rows bf16", {"x": x(2048 * r, 1024, dtype=BF16)}, lambda x: x.sum(axis=1), lambda x: x.sum(1)),
        Case(k, "sum of columns", one, lambda x: x.sum(axis=0), lambda x: x.sum(0)),
        Case(k, "max of columns", one, lambda x: tg.reduce_max(x, axis=0), lambda x: x.amax(0)),
        Case(k, "max of rows", one, lambda x: tg.reduce_max(x, axis=1), lambda x: x.amax(1)),
        Case(k, "var of rows", one, lambda x: tg.var(x, axis=1), lambda x: x.var(-1, correction=0)),
        Case(k, "mean over three axes", image, lambda x: tg.mean(x, axis=(0, 2, 3)), lambda x: x.mean((0, 2, 3))),
        Case(k, "argmax of rows", one, lambda x: tg.argmax(x), lambda x: x.argmax(-1).int()),
        Case(k, "cumsum of rows", {"x": x(1024 * r, 1024)}, lambda x: tg.cumsum(x), lambda x: x.cumsum(-1)),
        Case(k, "cumsum down columns", {"x": x(1024 * r, 1024)}, lambda x: tg.cumsum(x, axis=0), lambda x: x.cumsum(0)),
    ]


def _rows(torch: Any, f: Any, r: int, p: int) -> list[Case]:
    s, n, one = "softmax", "norm", {"x": x(2048 * r, 1024)}
    gain, image = {**one, "g": w(1024), "b": w(1024)}, x(32 * r, 64, 28, 28)
    square, channels = {"x": x(1024 * p, 1024 * p)}, {"g": w(64), "b": w(64)}
    over = (0, 2, 3)

    def causal(x: tg.Node) -> tg.Node:
        rows, columns = tg.iota(x.shape, 0, I32), tg.iota(x.shape, 1, I32)
        return tg.softmax(tg.where(columns <= rows, x * 0.125, -float("inf")))

    def causal_torch(x: Any) -> Any:
        hidden = torch.ones(x.shape, dtype=torch.bool, device=x.device).triu(1)
        return (x * 0.125).masked_fill(hidden, -float("inf")).softmax(-1)

    def between_reshapes(x: tg.Node, g: tg.Node, b: tg.Node) -> tg.Node:
        rows = tg.layer_norm(tg.reshape(x, (32 * r, 8192)))
        return tg.reshape(rows, x.shape) * tg.reshape(g, (256, 1, 1)) + tg.reshape(b, (256, 1, 1))

    return [
        Case(s, "softmax", one, lambda x: tg.softmax(x), lambda x: x.softmax(-1)),
        Case(s, "softmax bf16", {"x": x(2048 * r, 1024, dtype=BF16)}, lambda x: tg.softmax(x), lambda x: x.softmax(-1)),
        Case(s, "scale, mask, softmax", {**one, "m": x(2048 * r, 1024)}, lambda x, m: tg.softmax(x * 0.125 + m),
             lambda x, m: (x * 0.125 + m).softmax(-1)),
        Case(s, "causal softmax", square, causal, causal_torch),
        Case(s, "softmax down columns", one, lambda x: tg.softmax(x, axis=0), lambda x: x.softmax(0)),
        Case(s, "log_softmax", one, lambda x: tg.log_softmax(x), lambda x: x.log_softmax(-1)),
        Case(s, "logsumexp", one, lambda x: tg.logsumexp(x), lambda x: x.logsumexp(-1)),
        Case(n, "layer_norm", gain, lambda x, g, b: tg.layer_norm(x, g, b), lambda x, g, b: f.layer_norm(x, (1024,), g, b)),
        Case(n, "layer_norm, gelu", gain, lambda x, g, b: tg.gelu(tg.layer_norm(x, g, b)),
             lambda x, g, b: f.gelu(f.layer_norm(x, (1024,), g, b))),
        Case(n, "rms_norm", {**one, "g": w(1024)}, lambda x, g: tg.rms_norm(x, g), lambda x, g: f.rms_norm(x, (1024,), g, 1e-6)),
        Case(n, "residual, rms_norm", {**one, "y": x(2048 * r, 1024), "g": w(1024)}, lambda x, y, g: tg.rms_norm(x + y, g),
             lambda x, y, g: f.rms_norm(x + y, (1024,), g, 1e-6)),
        Case(n, "group_norm, silu", {"x": image, **channels}, lambda x, g, b: tg.silu(tg.group_norm(x, g, b, groups=8)),
             lambda x, g, b: f.silu(f.group_norm(x, 8, g, b))),
        Case(n, "group_norm by reshapes", {"x": x(r, 256, 32, 32), "g": w(256), "b": w(256)}, between_reshapes,
             lambda x, g, b: f.group_norm(x, 32, g, b)),
        Case(n, "batch_norm of a batch", {"x": image},
             lambda x: (x - tg.mean(x, axis=over, keepdims=True)) * tg.rsqrt(tg.var(x, axis=over, keepdims=True) + 1e-5),
             lambda x: f.batch_norm(x, None, None, training=True)),
        Case(n, "batch_norm, relu", {"x": image, "m": w(64), "v": w(64, positive=True), **channels},
             lambda x, m, v, g, b: tg.relu(tg.batch_norm(x, m, v, g, b)), lambda x, m, v, g, b: f.batch_norm(x, m, v, g, b).relu()),
    ]


def _moves(torch: Any, f: Any, r: int, p: int) -> list[Case]:
    k, su = "movement", {name: x(1024 * p, 1024 * p) for name in "su"}
    table = {"t": w(32000, 256), "i": ids(32000, 2048 * r)}

    def shifted(s: tg.Node) -> tg.Node:
        p = tg.pad(s, ((1, 1), (1, 1)), 0)
        return p[1:-1, 1:-1] * 4.0 - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:]

    def shifted_torch(s: Any) -> Any:
        p = f.pad(s, (1, 1, 1, 1))
        return p[1:-1, 1:-1] * 4.0 - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:]

    def rotated(q: Any, c: Any, s: Any) -> Any:
        a, b = q[..., :64], q[..., 64:]
        c, s = c[:, None], s[:, None]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    return [
        Case(k, "transpose", {"s": su["s"]}, lambda s: s.permute((1, 0)) * 1.0, lambda s: s.T.contiguous()),
        Case(k, "transpose + add", su, lambda s, u: s.permute((1, 0)) + u, lambda s, u: s.T + u),
        Case(k, "concat", su, lambda s, u: tg.concat(s, u, axis=1), lambda s, u: torch.cat([s, u], 1)),
        Case(k, "pad, slice, 5 points", {"s": su["s"]}, shifted, shifted_torch),
        Case(k, "embedding", table, lambda t, i: tg.embedding(t, i), lambda t, i: f.embedding(i, t)),
        Case(k, "embedding bf16", {"t": w(32000, 256, dtype=BF16), "i": table["i"]},    # of the table's dtype, as torch's is
             lambda t, i: tg.embedding(t, i, dtype=BF16), lambda t, i: f.embedding(i, t)),
        Case(k, "scatter-add", {"z": x(4096 * r, 256), "i": ids(4096 * r, 2048 * r), "u": x(2048 * r, 256)},
             lambda z, i, u: tg.scatter(z, i, u, mode="add"), lambda z, i, u: z.index_add(0, i, u)),
        Case(k, "rope", {"q": x(512 * r, 8, 128), "c": x(512 * r, 64), "s": x(512 * r, 64)},
             lambda q, c, s: tg.rope(q, c, s), rotated),
    ]


def _products(torch: Any, f: Any, p: int) -> list[Case]:
    k, m = "product", "layer"

    def swiglu(x: tg.Node, g: tg.Node, u: tg.Node, d: tg.Node) -> tg.Node:
        return tg.linear(tg.silu(tg.linear(x, g)) * tg.linear(x, u), d)

    def swiglu_torch(x: Any, g: Any, u: Any, d: Any) -> Any:
        return f.linear(f.silu(f.linear(x, g)) * f.linear(x, u), d)

    def mixture(x: tg.Node, gate: tg.Node, up: tg.Node, down: tg.Node) -> tg.Node:
        top, chosen = tg.topk(tg.linear(x, gate), k=2)
        inner = tg.silu(tg.gather_linear(x.reshape(16 * p, 1, 256), up, chosen))
        return (tg.gather_linear(inner, down, chosen) * tg.softmax(top).reshape(16 * p, 2, 1)).sum(axis=1)

    def mixture_torch(x: Any, gate: Any, up: Any, down: Any) -> Any:
        top, chosen = f.linear(x, gate).topk(2)
        inner = f.silu(torch.einsum("ti,tkoi->tko", x, up[chosen]))
        return (torch.einsum("tki,tkoi->tko", inner, down[chosen]) * top.softmax(-1)[..., None]).sum(1)

    def recurrence(x: Any, h: Any, a: Any, b: Any, linear: Any, tanh: Any) -> Any:
        for t in range(8):
            h = tanh(linear(x[t], a) + linear(h, b))
        return h

    def sides(shape: Sequence[int]) -> list[int]:
        return [n if n == 1 else n * p for n in shape]

    def of_x(*shape: int, **how: Any) -> Given:
        return x(*sides(shape), **how)

    def of_w(*shape: int, **how: Any) -> Given:
        return w(*sides(shape), **how)

    def named(text: str) -> str:
        return re.sub(r"\b\d{2,}\b", lambda found: str(int(found[0]) * p), text)

    swiglus = {"g": of_w(2048, 640), "u": of_w(2048, 640), "d": of_w(640, 2048)}
    return [
        Case(k, named("GEMV 4096, 4096"), {"x": of_x(1, 4096), "w": of_w(4096, 4096)}, tg.linear, lambda x, w: f.linear(x, w)),
        Case(k, named("GEMV 2048, 8192 bf16"), {"x": of_x(1, 2048, dtype=BF16), "w": of_w(8192, 2048, dtype=BF16)},
             lambda x, w: tg.linear(x, w), lambda x, w: f.linear(x, w)),
        Case(k, "GEMV int8 weight", {"x": of_x(1, 2048), "q": of_w(4096, 2048, dtype=I8), "s": of_w(4096, 1, positive=True)},
             lambda x, q, s: tg.linear(x, q.cast(F32) * s), lambda x, q, s: f.linear(x, q.float() * s)),
        Case(k, named("rms_norm, GEMV 2048"), {"x": of_x(1, 2048), "g": of_w(2048), "w": of_w(2048, 2048)},
             lambda x, g, w: tg.linear(tg.rms_norm(x, g), w), lambda x, g, w: f.linear(f.rms_norm(x, g.shape, g, 1e-6), w)),
        Case(k, named("16, 1024, 4096 gelu"), {"x": of_x(16, 1024), "w": of_w(4096, 1024), "b": of_w(4096)},
             lambda x, w, b: tg.gelu(tg.linear(x, w, b)), lambda x, w, b: f.gelu(f.linear(x, w, b))),
        Case(k, named("64, 2048, 2048 relu + y"), {"x": of_x(64, 2048), "w": of_w(2048, 2048), "b": of_w(2048),
                                                   "y": of_x(64, 2048)},
             lambda x, w, b, y: tg.relu(tg.linear(x, w, b)) + y, lambda x, w, b, y: f.linear(x, w, b).relu() + y),
        Case(k, named("128, 640, 2048 silu"), {"x": of_x(128, 640), "w": of_w(2048, 640)}, lambda x, w: tg.silu(tg.linear(x, w)),
             lambda x, w: f.silu(f.linear(x, w))),
        Case(k, named("128, 640, 2048 bf16"), {"x": of_x(128, 640, dtype=BF16), "w": of_w(2048, 640, dtype=BF16)},
             lambda x, w: tg.linear(x, w), lambda x, w: f.linear(x, w)),
        Case(k, named("33, 1000, 333"), {"x": of_x(33, 1000), "w": of_w(333, 1000)}, lambda x, w: tg.linear(x, w),
             lambda x, w: f.linear(x, w)),
        Case(k, named("512, 512, 512"), {"a": of_x(512, 512), "b": of_x(512, 512)}, lambda a, b: a @ b, lambda a, b: a @ b),
        Case(k, named("1024, 1024, 1024"), {"a": of_x(1024, 1024), "b": of_x(1024, 1024)}, lambda a, b: a @ b, lambda a, b: a @ b),
        Case(k, f"{64 * p} of 32, 64, 32", {"a": x(64 * p, 32, 64), "b": x(64 * p, 64, 32)}, lambda a, b: a @ b,
             lambda a, b: a @ b),
        Case(m, "SwiGLU, 1 row", {"x": of_x(1, 640), **swiglus}, swiglu, swiglu_torch),
        Case(m, named("SwiGLU, 64 rows"), {"x": of_x(64, 640), **swiglus}, swiglu, swiglu_torch),
        Case(m, "mixture of experts", {"x": x(16 * p, 256), "gate": w(8, 256), "up": w(8, 512, 256), "down": w(8, 256, 512)},
             mixture, mixture_torch),
        Case(m, "8 steps of an RNN", {"x": x(8, 16 * p, 256 * p), "h": of_x(16, 256), "a": of_w(256, 256), "b": of_w(256, 256)},
             lambda x, h, a, b: recurrence(x, h, a, b, tg.linear, tg.tanh),
             lambda x, h, a, b: recurrence(x, h, a, b, f.linear, torch.tanh)),
    ]


def _attention(torch: Any, f: Any, r: int) -> list[Case]:
    k, n, heads, d = "attention", 256 * r, 8, 64
    qkv = {name: x(n, heads, d) for name in "qkv"}
    grouped = {"q": x(n, heads, d), "k": x(n, 2, d), "v": x(n, 2, d)}

    @cache
    def near(device: Any) -> Any:
        return torch.ones(n, n, dtype=torch.bool, device=device).tril().triu(-63)

    def fused(q: Any, k: Any, v: Any, **how: Any) -> Any:
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        return f.scaled_dot_product_attention(q, k, v, **how)[0].transpose(0, 1)

    def naive(q: Any, k: Any, v: Any, transposed: Any, softmax: Any) -> Any:
        return softmax(q @ transposed(k) * 0.125) @ v

    return [
        Case(k, "causal", qkv, lambda q, k, v: tg.attention(q, k, v, scale=0.125, causal=True),
             lambda q, k, v: fused(q, k, v, is_causal=True)),
        Case(k, "causal in a window", qkv, lambda q, k, v: tg.attention(q, k, v, scale=0.125, causal=True, window=64),
             lambda q, k, v: fused(q, k, v, attn_mask=near(q.device))),
        Case(k, "grouped heads", grouped, lambda q, k, v: tg.attention(q, k, v, scale=0.125),
             lambda q, k, v: fused(q, k, v, enable_gqa=True)),
        Case(k, f"one query, {8 * n} keys", {"q": x(1, heads, d), "k": x(8 * n, 2, d), "v": x(8 * n, 2, d)},
             lambda q, k, v: tg.attention(q, k, v, scale=0.125), lambda q, k, v: fused(q, k, v, enable_gqa=True)),
        Case(k, "naive", {name: x(heads, n, d) for name in "qkv"},
             lambda q, k, v: naive(q, k, v, lambda k: k.permute((0, 2, 1)), tg.softmax),
             lambda q, k, v: naive(q, k, v, lambda k: k.transpose(1, 2), lambda s: s.softmax(-1))),
    ]


def _images(torch: Any, f: Any, r: int) -> list[Case]:
    k, image = "image", x(8 * r, 64, 28, 28)
    three, one = w(64, 64, 3, 3), w(128, 64, 1, 1)

    def block(x: tg.Node, a: tg.Node, b: tg.Node, g: tg.Node, s: tg.Node) -> tg.Node:
        h = tg.conv2d(tg.silu(tg.group_norm(x, g, s, groups=8)), a, padding=1)
        return x + tg.conv2d(tg.silu(tg.group_norm(h, g, s, groups=8)), b, padding=1)

    def block_torch(x: Any, a: Any, b: Any, g: Any, s: Any) -> Any:
        h = f.conv2d(f.silu(f.group_norm(x, 8, g, s)), a, padding=1)
        return x + f.conv2d(f.silu(f.group_norm(h, 8, g, s)), b, padding=1)

    return [
        Case(k, "conv 3x3", {"x": image, "w": three}, lambda x, w: tg.conv2d(x, w, padding=1),
             lambda x, w: f.conv2d(x, w, padding=1)),
        Case(k, "conv 3x3, bias, relu", {"x": image, "w": three, "b": w(64)},
             lambda x, w, b: tg.relu(tg.conv2d(x, w, b, padding=1)), lambda x, w, b: f.conv2d(x, w, b, padding=1).relu()),
        Case(k, "conv 1x1", {"x": image, "w": one}, tg.conv2d, lambda x, w: f.conv2d(x, w)),
        Case(k, "conv depthwise", {"x": image, "w": w(64, 1, 3, 3)}, lambda x, w: tg.conv2d(x, w, padding=1, groups=64),
             lambda x, w: f.conv2d(x, w, padding=1, groups=64)),
        Case(k, "max_pool 3x3", {"x": image}, lambda x: tg.max_pool2d(x, 3, stride=2, padding=1),
             lambda x: f.max_pool2d(x, 3, stride=2, padding=1)),
        Case(k, "upsample", {"x": image}, lambda x: tg.upsample(x, (2, 2)), lambda x: f.interpolate(x, scale_factor=2)),
        Case(k, "block of a U-net", {"x": x(4 * r, 64, 28, 28), "a": three, "b": three, "g": w(64), "s": w(64)}, block,
             block_torch),
    ]


def _loops(torch: Any, f: Any, r: int) -> list[Case]:
    """Recurrences: torch's own RNN, and a selective scan as torch says it without a kernel of its own, turn by turn."""
    k, rnn = "loop", {"x": x(64, 8 * r, 64), "h": x(8 * r, 64), "w": w(64, 64), "u": w(64, 64)}
    state = {"a": x(64, 128 * r, 16), "b": x(64, 128 * r, 16), "c": x(64, 16), "h": x(128 * r, 16)}

    def cells(x: Any, h: Any, w: Any, u: Any) -> Any:
        def cell(h: Any, y: Any) -> tuple[Any, Any]:
            new = tg.tanh(y + tg.linear(h, u))
            return new, new

        return tg.scan(cell, h, tg.linear(x, w))[1]

    def selective(a: Any, b: Any, c: Any, h: Any) -> Any:
        def turn(h: Any, at: Any) -> tuple[Any, Any]:
            gate, new, read = at
            h = tg.sigmoid(gate) * h + new
            return h, (h * read).sum(axis=-1)

        return tg.scan(turn, h, (a, b, c))[1]

    def selective_torch(a: Any, b: Any, c: Any, h: Any) -> Any:
        out = []
        for gate, new, read in zip(a.sigmoid(), b, c, strict=True):
            h = gate * h + new
            out.append((h * read).sum(-1))
        return torch.stack(out)

    return [
        Case(k, "64 steps of an RNN", rnn, cells,
             lambda x, h, w, u: torch.rnn_tanh(x, h[None], [w, u], False, 1, 0.0, False, False, False)[0]),
        Case(k, "selective scan of 64 steps", state, selective, selective_torch),
    ]


def _gradients(torch: Any, f: Any, r: int, p: int) -> list[Case]:
    k, qkv = "gradient", {name: x(8, 128 * r, 64) for name in "qkv"}
    layers = {"x": x(64 * r, 512 * p), "a": w(1024 * p, 512 * p), "b": w(512 * p, 1024 * p)}
    return [
        Case(k, "MLP", layers, lambda x, a, b: (tg.linear(tg.relu(tg.linear(x, a)), b) * 0.01).sum(),
             lambda x, a, b: (f.linear(f.linear(x, a).relu(), b) * 0.01).sum(), wrt=("x", "a", "b")),
        Case(k, "attention", qkv, lambda q, k, v: (tg.softmax(q @ k.permute((0, 2, 1)) * 0.125) @ v * v).sum(),
             lambda q, k, v: ((q @ k.transpose(1, 2) * 0.125).softmax(-1) @ v * v).sum(), wrt=("q", "k", "v")),
        Case(k, "layer_norm", {"x": x(1024 * r, 512), "g": w(512), "b": w(512), "y": x(1024 * r, 512)},
             lambda x, g, b, y: (tg.layer_norm(x, g, b) * y).sum(), lambda x, g, b, y: (f.layer_norm(x, (512,), g, b) * y).sum(),
             wrt=("x", "g", "b")),
    ]
