"""cases: for every op that a kernel computes, random instances of it: dtypes, shapes (0 and 1 among them), attributes, layouts.

A case draws its operands through `Draw`, which makes an input, a legal value for it, and puts views (turned, stepped,
reversed, repeated) between the input and the op, so that a kernel meets strides as a model makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.language.leaves import ITEM
from tensor_graphs.language.node import Node

SIZES = (0, 1, 1, 2, 3, 4, 5, 17)


class Draw:
    """One random instance under construction; `values` are the arrays of its inputs by name."""

    def __init__(self, seed: int, dtype: DType) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.values: dict[str, np.ndarray] = {}

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, least: int = 0) -> int:
        return max(least, int(self.pick(*SIZES)))

    def shape(self, low: int = 0, high: int = 3, least: int = 0) -> tuple[int, ...]:
        return tuple(self.size(least) for _ in range(int(self.rng.integers(low, high + 1))))

    def tensor(self, shape: tuple[int, ...], dtype: DType | None = None, *, positive: bool = False, low: int | None = None,
               high: int | None = None, distinct: bool = False, plain: bool = False) -> Node:
        """A tensor of this type behind some view; floats are normal, integers within low … high − 1 or their whole range."""
        dtype = dtype or self.dtype
        kind = self.pick("plain", "plain", "turned", "stepped", "reversed", "repeated")
        if plain or distinct:
            kind = "plain"
        name = f"x{len(self.values)}"
        inner = list(shape)
        if kind == "turned":
            inner = inner[::-1]
        elif kind == "stepped" and inner:
            inner[-1] = 2 * inner[-1]
        elif kind == "repeated":
            axis = int(self.rng.integers(len(inner))) if inner else -1
            if inner:
                inner[axis] = 1
        self.values[name] = self.array(tuple(inner), dtype, positive, low, high, distinct)
        x = tg.input(name, tuple(inner), dtype)
        if kind == "turned":
            return atomic.permute(x, tuple(reversed(range(len(shape)))))
        if kind == "stepped" and inner:
            return x[..., ::2]
        if kind == "reversed" and inner:
            return x[::-1]
        return atomic.expand(x, shape) if kind == "repeated" else x

    def array(self, shape: tuple[int, ...], dtype: DType, positive: bool, low: int | None, high: int | None,
              distinct: bool) -> np.ndarray:
        if dtype.kind == "float":
            x = np.asarray(self.rng.standard_normal(shape))
            return np.asarray(np.abs(x) + 0.05 if positive else x).astype(dtype.numpy)
        if dtype.kind == "bool":
            return self.rng.integers(0, 2, shape).astype(np.bool_)
        info = np.iinfo(dtype.numpy)
        low = int(info.min) if low is None else max(low, int(info.min))
        high = int(info.max) + 1 if high is None else min(high, int(info.max) + 1)
        if distinct:
            count = int(np.prod(shape))
            return (low + self.rng.permutation(max(high - low, count)))[:count].reshape(shape).astype(dtype.numpy)
        wide = self.rng.integers(low, high, shape, dtype=np.int64 if high <= 2**63 else np.uint64)
        return np.asarray(wide).astype(dtype.numpy)

    def index(self, shape: tuple[int, ...], size: int, distinct: bool = False) -> Node:
        """Integers of any width that index `size` elements, one too low or too high among them."""
        dtype = DTYPES[self.pick("i32", "i64", "i8", "i16", "u8", "u32", "u64")]
        return self.tensor(shape, dtype, low=-1, high=min(size + 1, 127), distinct=distinct)


Case = Callable[[Draw], Node]


def unary(op: Callable[..., Node], **how: Any) -> Case:
    return lambda d: op(d.tensor(d.shape(), **how))


def binary(op: Callable[[Node, Node], Node], **how: Any) -> Case:
    def build(d: Draw) -> Node:
        shape = d.shape()
        x = d.tensor(shape, **how)
        return op(x, x if d.pick(*range(6)) == 0 else d.tensor(shape, **how))

    return build


def cast(d: Draw) -> Node:
    to = DTYPES[d.pick(*(n for n in DTYPES if n != d.dtype.name))]
    shape = d.shape()
    return apply_atomic("cast", [d.tensor(shape, low=-100, high=100)], dtype=to)


def bitcast(d: Draw) -> Node:
    to = DTYPES[d.pick(*(n for n in DTYPES if n != d.dtype.name and n != "bool"))]
    if d.dtype.kind == "float" or to.kind == "float":      # only small numbers have bits that are small, ordinary floats
        to = DTYPES[{1: "i8", 2: "i16", 4: "i32", 8: "i64"}[to.itemsize]]
    return apply_atomic("bitcast", [d.tensor((*d.shape(0, 2), 8 * d.size()))], dtype=to)


def apply_atomic(name: str, xs: list[Node], **attrs: Any) -> Node:
    from tensor_graphs.language.node import apply

    return apply(atomic.ATOMIC[name], xs, attrs)


def reduction(op: Callable[..., Node]) -> Case:
    def build(d: Draw) -> Node:
        shape = d.shape(1, 4)
        axes = [a for a in range(len(shape)) if d.rng.random() < 0.5] or [len(shape) - 1]
        return op(d.tensor(shape), axes)

    return build


def where(d: Draw) -> Node:
    shape = d.shape()
    return atomic.where(d.tensor(shape, tg.bool_), d.tensor(shape), d.tensor(shape))


def pad(d: Draw) -> Node:
    shape = d.shape(1, 3)
    value = {"float": -2.5, "int": -7, "uint": 7, "bool": True}[d.dtype.kind]
    padding = [(int(d.rng.integers(0, 3)), int(d.rng.integers(0, 3))) for _ in shape]
    padding[0] = (1, padding[0][1])
    return atomic.pad(d.tensor(shape), padding, value)


def gather(d: Draw) -> Node:
    shape = d.shape(1, 3)
    axis = int(d.rng.integers(len(shape)))
    return atomic.gather(d.tensor(shape), d.index(d.shape(0, 2), shape[axis]), axis=axis)


def scatter(d: Draw) -> Node:
    shape = d.shape(1, 3)
    axis, mode = int(d.rng.integers(len(shape))), d.pick("set", "add", "max")
    if d.dtype.kind == "bool":
        mode = "set"
    count = d.shape(0, 1) if mode != "set" else (min(d.size(), shape[axis]),)
    return atomic.scatter(d.tensor(shape), d.index(count, shape[axis], distinct=mode == "set"),
                          d.tensor((*shape[:axis], *count, *shape[axis + 1:])), axis=axis, mode=mode)


def reshape(d: Draw) -> Node:
    n = d.size()
    return apply_atomic("reshape", [d.tensor((2, 3, n))], shape=(3, n, 2))


def permute(d: Draw) -> Node:
    return apply_atomic("permute", [d.tensor((2, d.size(), 3))], axes=tuple(int(a) for a in d.rng.permutation(3)))


def expand(d: Draw) -> Node:
    return apply_atomic("expand", [d.tensor((1, 3, 1))], shape=(d.size(), 3, 4))


def slice_(d: Draw) -> Node:
    rows, columns = d.pick((0, 5, 2), (4, -1, -1), (3, 0, -2)), d.pick((1, 4, 1), (5, -1, -3), (2, 2, 1))
    return apply_atomic("slice", [d.tensor((5, 6))], bounds=(rows, columns))


def softmax(d: Draw) -> Node:
    shape = d.shape(1, 3, least=1)
    return tg.softmax(d.tensor(shape), axis=int(d.rng.integers(-len(shape), len(shape))))


def weight(d: Draw, *shape: int) -> Node | None:
    """An optional operand in another float dtype."""
    return d.pick(None, d.tensor(shape, d.dtype), d.tensor(shape, tg.bf16), d.tensor(shape, tg.f32))


def rms_norm(d: Draw) -> Node:
    shape = d.shape(1, 3)
    return tg.rms_norm(d.tensor(shape), weight(d, shape[-1]), eps=d.pick(1e-6, 0.3), offset=d.pick(0.0, 1.0))


def layer_norm(d: Draw) -> Node:
    shape = (*d.shape(0, 2), d.pick(0, 3, 5, 17))
    scale = weight(d, shape[-1])
    return tg.layer_norm(d.tensor(shape, plain=True), scale, None if scale is None else weight(d, shape[-1]), eps=d.pick(1e-5, 0.3))


def dot(d: Draw) -> Node:
    m, k, n = d.size(), d.size(least=1), d.size()
    lead = d.pick((), (2,), (3, 1))
    other = d.pick((), lead, tuple(1 for _ in lead))
    matrices = (*lead, m, k), (*other, k, n)
    left, right = d.pick(matrices, matrices, ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)))
    bound = {"low": -9, "high": 9} if d.dtype.kind == "int" else {}
    return tg.dot(d.tensor(left, **bound), d.tensor(right, **bound))


def linear(d: Draw) -> Node:
    k, out = d.size(least=1), d.size()
    return tg.linear(d.tensor((*d.shape(0, 2), k)), d.tensor((out, k), d.pick(d.dtype, tg.bf16, tg.f32)), weight(d, out))


def embedding(d: Draw) -> Node:
    rows = d.size()
    return tg.embedding(d.tensor((rows, d.size())), d.index(d.shape(0, 2), rows), scale=d.pick(1.0, 0.37),
                        dtype=d.pick(tg.f32, tg.f32, tg.bf16, tg.f64))


def rope_table(d: Draw) -> Node:
    positions = d.tensor((d.size(),), d.pick(tg.i32, tg.i64, d.dtype), low=0, high=127)
    return tg.rope_table(positions, head_dim=d.pick(2, 6, 16), theta=d.pick(1e4, 3.5), scaling=d.pick(1.0, 8.0),
                         dtype=d.dtype if d.dtype.kind == "float" else tg.f32)[0]


def rope(d: Draw) -> Node:
    n, half = d.size(), d.size(least=1)
    table = d.pick(d.dtype, tg.f32)
    return tg.rope(d.tensor((n, d.size(), 2 * half)), d.tensor((n, half), table), d.tensor((n, half), table))


def attention(d: Draw) -> Node:
    n, s, groups, width = d.size(), d.size(least=1), d.pick(1, 2, 3), d.pick(1, 4, 8)
    value_width = d.pick(width, width, width, 3)
    mask = d.pick(None, None, d.tensor((n, s), tg.bool_))
    cache = d.pick(d.dtype, d.dtype, tg.bf16)
    return tg.attention(d.tensor((n, groups * d.pick(1, 2, 4), width)), d.tensor((s, groups, width), cache),
                        d.tensor((s, groups, value_width), cache), mask, scale=d.pick(0.5, 1.0), causal=d.pick(True, False),
                        window=d.pick(0, 1, 3), start=d.pick(0, 2, 20), softcap=d.pick(0.0, 0.0, 1.5))


def write_rows(d: Draw) -> Node:
    shape = d.shape(1, 3)
    axis = int(d.rng.integers(len(shape)))
    count = d.size()
    return tg.write_rows(d.tensor(shape), d.tensor((*shape[:axis], count, *shape[axis + 1:])), start=int(d.rng.integers(-3, 9)),
                         axis=d.pick(axis, axis - len(shape)))


def concat(d: Draw) -> Node:
    shape = d.shape(1, 3)
    axis = int(d.rng.integers(-len(shape), len(shape)))
    parts = []
    for _ in range(int(d.rng.integers(1, 5))):
        part = list(shape)
        part[axis] = d.size()
        parts.append(d.tensor(tuple(part)))
    return tg.concat(*parts, axis=axis)


def argmax(d: Draw) -> Node:
    shape = d.shape(1, 3, least=1)
    return tg.argmax(d.tensor(shape), axis=int(d.rng.integers(-len(shape), len(shape))))


def mean(d: Draw) -> Node:
    shape = d.shape(1, 3, least=1)
    axis = int(d.rng.integers(-len(shape), len(shape)))
    return tg.mean(d.tensor(shape), axes=d.pick(None, axis, (axis,), tuple(range(len(shape)))), keepdims=d.pick(True, False))


def cumsum(d: Draw) -> Node:
    shape = d.shape(1, 3)
    return tg.cumsum(d.tensor(shape), axis=int(d.rng.integers(-len(shape), len(shape))))


def gated(d: Draw) -> Node:
    shape = d.shape()
    return tg.gated(d.tensor(shape), d.tensor(shape), activation=d.pick("gelu_tanh", "gelu", "silu"))


def library(name: str, **how: Any) -> Case:
    op = LIBRARY[name]
    return binary(op, **how) if len(op.operands) == 2 else unary(op, **how)


CASES: dict[str, Case] = {
    "iota": lambda d: atomic.iota(d.shape(1, 3), 0, d.dtype),
    **{name: unary(getattr(atomic, name), positive=name in ("sqrt", "log2", "reciprocal"))
       for name in ("reciprocal", "sqrt", "exp2", "log2", "sin", "floor")},
    "cast": cast, "bitcast": bitcast,
    "add": binary(atomic.add), "mul": binary(atomic.mul), "max": binary(atomic.max), "idiv": binary(atomic.idiv),
    "and": binary(atomic.bit_and), "xor": binary(atomic.bit_xor),
    "less": binary(atomic.less), "not_equal": binary(atomic.not_equal),
    "where": where, "sum": reduction(atomic.sum), "reduce_max": reduction(atomic.reduce_max),
    "reshape": reshape, "permute": permute, "expand": expand, "slice": slice_, "pad": pad, "gather": gather, "scatter": scatter,
    **{name: library(name) for name in ("sub", "neg", "exp", "tanh", "cos", "sigmoid", "silu", "erf")},
    "div": library("div", positive=True), "log": library("log", positive=True),
    "gelu": lambda d: tg.gelu(d.tensor(d.shape()), approximate=d.pick("tanh", "none")), "gated": gated,
    "softmax": softmax, "rms_norm": rms_norm, "layer_norm": layer_norm, "dot": dot, "linear": linear, "embedding": embedding,
    "rope_table": rope_table, "rope": rope, "attention": attention, "write_rows": write_rows, "concat": concat, "argmax": argmax,
    "mean": mean, "cumsum": cumsum,
}


def applied(node: Node) -> Node:
    """The application of the op itself, behind the item of an op with several outputs."""
    return node.inputs[0] if node.op is ITEM else node
