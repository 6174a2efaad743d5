"""cases: generates instances of every op: shapes, attributes, and dtypes of the other operands.

A case is a function of a `CaseDraw` that returns one application of the op. It creates plain inputs whose first sizes are dims (the
judge then compares at 0, at 1, at odd sizes and at large ones). It rotates the choices, so that as many variants as a choice has
values cover them all. The tests have another draw, with random sizes, values and views. An op without a row in CASES is applied to
operands of one shape without attributes, which is right for elementwise ops and an error otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, composites, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import ATOMIC
from tensor_graphs.language.composite import LIBRARY, CompositeOp
from tensor_graphs.language.composites.blocks import FORMATS
from tensor_graphs.language.composites.quantise import QUANTISERS
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType, bf16, bool_, f8e4m3, f16, f32, f64, i32, i64, u8, u32
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.leaves import ITEM
from tensor_graphs.language.node import Node, Op, apply

LARGEST = 1024
"""upper bound of a dim in a case"""

SIZES = (3, 2, 5, 1)
"""sizes of the axes after those that are dims"""

VARIANTS = 4
"""number of instances of an op at a dtype; ops in MORE have as many as their longest choice"""


class CaseError(TensorGraphsError):
    """Op of which the table of cases can build no instance."""


class CaseDraw:
    """State of one instance while it is built. dtype: that of the table's column, applied where `STANDS_FOR` tells."""

    def __init__(self, variant: int, dtype: DType) -> None:
        self.variant, self.dtype = variant, dtype
        self.dims = 2
        self._picks = self._inputs = 0
        self._dims: list[Dim] = []

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices; each is returned once over as many variants as there are choices."""
        self._picks += 1
        order = np.random.default_rng(1000 * self._picks + len(choices)).permutation(len(choices))
        return choices[int(order[self.variant % len(choices)])]

    def size(self, least: int = 0) -> Dim:
        """Return a size ≥ least: a new dim while there are fewer than `dims` dims, then a number."""
        if len(self._dims) < self.dims:
            self._dims.append(d.dim(f"n{len(self._dims)}", least, LARGEST))
            return self._dims[-1]
        return max(least, int(self.pick(*SIZES)))

    def shape(self, low: int = 0, high: int = 3, least: int = 0) -> tuple[Dim, ...]:
        return tuple(self.size(least) for _ in range(int(self.pick(*range(low, high + 1)))))

    def tensor(self, shape: tuple[Dim, ...], dtype: DType | None = None, *, positive: bool = False, low: int | None = None,
               high: int | None = None, distinct: bool = False, plain: bool = False) -> Node:
        """Return a new input. Arguments about its values are only for the tests' `CaseDraw`; the judge draws its own values."""
        self._inputs += 1
        return leaves.input(f"x{self._inputs - 1}", shape, dtype or self.dtype)

    def index(self, shape: tuple[Dim, ...], size: Dim, distinct: bool = False) -> Node:
        """Return an input of indices into `size` elements, of any integer width; the range exceeds the valid one by one."""
        other = self.pick("i8", "i16", "u8", "u32", "u64")
        dtype = DTYPES[self.pick("i32", "i64", "i32", other)]
        high = min(int(size) + 1, 127) if d.is_static(size) else 127
        return self.tensor(shape, dtype, low=-1, high=high, distinct=distinct)


Case = Callable[[CaseDraw], Node]


def applied(node: Node) -> Node:
    """Return the application of the op itself, without the item node that selects one of several outputs."""
    return node.inputs[0] if node.op is ITEM else node


def apply_atomic(name: str, xs: list[Node], **attrs: Any) -> Node:
    return apply(ATOMIC[name], xs, attrs)


def compose(name: str, *xs: Node | None, **attrs: Any) -> Node:
    """Return the application of a library composite; its first output if it has several."""
    result = LIBRARY[name](*xs, **attrs)
    return result[0] if isinstance(result, tuple) else result


def alike(op: Op, **how: Any) -> Case:
    """Return a case of operands of one shape without attributes; two operands are the same node in one instance of six."""

    def build(draw: CaseDraw) -> Node:
        shape = draw.shape()
        arity = len(op.operands) if isinstance(op, CompositeOp) else ATOMIC[op.name].arity
        xs = [draw.tensor(shape, **how)]
        for _ in range(arity - 1):
            xs.append(xs[0] if draw.pick(*range(6)) == 0 else draw.tensor(shape, **how))
        return compose(op.name, *xs) if isinstance(op, CompositeOp) else apply(op, xs, {})

    return build


def op_named(name: str) -> Op:
    return ATOMIC.get(name) or LIBRARY[name]


# ---- atomic ops ---------------------------------------------------------------------------------------------------------------


def cast(draw: CaseDraw) -> Node:
    to = DTYPES[draw.pick(*(n for n in DTYPES if n != draw.dtype.name))]
    return apply_atomic("cast", [draw.tensor(draw.shape(), low=-100, high=100)], dtype=to)


def bitcast(draw: CaseDraw) -> Node:
    to = DTYPES[draw.pick(*(n for n in DTYPES if n != draw.dtype.name and n != "bool"))]
    if draw.dtype.kind == "float" or to.kind == "float":   # only small numbers have bits that are small, ordinary floats
        to = DTYPES[{1: "i8", 2: "i16", 4: "i32", 8: "i64"}[to.itemsize]]
        if to.name == draw.dtype.name:
            to = DTYPES["u8"]
    return apply_atomic("bitcast", [draw.tensor((*draw.shape(0, 2), 8 * draw.size()))], dtype=to)


def reduction(op: Op) -> Case:
    def build(draw: CaseDraw) -> Node:
        shape = draw.shape(1, 4)
        axes = tuple(a for a in range(len(shape)) if draw.pick(True, False)) or (len(shape) - 1,)
        x = draw.tensor(shape)
        return compose(op.name, x, axes=axes) if isinstance(op, CompositeOp) else apply(op, [x], {"axes": axes})

    return build


def pad(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    value = {"float": -2.5, "int": -7, "uint": 7, "bool": True}[draw.dtype.kind]
    padding = [(draw.pick(0, 1, 2), draw.pick(0, 1, 2)) for _ in shape]
    padding[0] = (1, padding[0][1])
    return atomic.pad(draw.tensor(shape), padding, value)


def gather(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    axis = draw.pick(*range(len(shape)))
    return atomic.gather(draw.tensor(shape), draw.index(draw.shape(0, 2), shape[axis]), axis=axis)


def scatter(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    axis, mode = draw.pick(*range(len(shape))), draw.pick("set", "add", "max")
    if draw.dtype.kind == "bool":
        mode = "set"
    size = shape[axis]
    count = draw.shape(0, 1)
    if mode == "set" and d.is_static(size) and all(d.is_static(c) for c in count):
        count = (min(int(draw.size()), int(size)),)
    return atomic.scatter(draw.tensor(shape), draw.index(count, size, distinct=mode == "set"),
                          draw.tensor((*shape[:axis], *count, *shape[axis + 1:])), axis=axis, mode=mode)


def slice_(draw: CaseDraw) -> Node:
    rows, columns = draw.pick((0, 5, 2), (4, -1, -1), (3, 0, -2)), draw.pick((1, 4, 1), (5, -1, -3), (2, 2, 1))
    return apply_atomic("slice", [draw.tensor((5, 6))], bounds=(rows, columns))


# ---- composites ---------------------------------------------------------------------------------------------------------------


def along_axis(name: str, least: int = 0, keepdims: bool = False) -> Case:
    """Return a case with one operand and one axis, counted from either end."""

    def build(draw: CaseDraw) -> Node:
        shape = draw.shape(1, 3, least=least)
        axis = draw.pick(-1, 0, len(shape) - 1, -len(shape))
        return compose(name, draw.tensor(shape), axis=axis, **({"keepdims": draw.pick(True, False)} if keepdims else {}))

    return build


def mean(name: str) -> Case:
    def build(draw: CaseDraw) -> Node:
        shape = draw.shape(1, 3, least=1)
        axis = draw.pick(*range(-len(shape), len(shape)))
        return compose(name, draw.tensor(shape), axes=draw.pick(None, axis, (axis,), tuple(range(len(shape)))),
                       keepdims=draw.pick(True, False))

    return build


def weights(draw: CaseDraw, *choices: tuple[DType | None, ...], shapes: tuple[tuple[Dim, ...], ...]) -> list[Node | None]:
    """Return optional operands whose dtypes are chosen together: the instance's, a narrower one, or mixed; None where absent."""
    return [None if dtype is None else draw.tensor(shape, dtype) for dtype, shape in zip(draw.pick(*choices), shapes, strict=True)]


def rms_norm(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    x, (weight,) = draw.tensor(shape), weights(draw, (None,), (draw.dtype,), (bf16,), (f32,), shapes=(shape[-1:],))
    return compose("rms_norm", x, weight, eps=draw.pick(1e-6, 0.3), offset=draw.pick(0.0, 1.0))


def layer_norm(draw: CaseDraw) -> Node:
    shape = (*draw.shape(0, 2), draw.pick(17, 3, 5, 0))
    scale, bias = weights(draw, (None, None), (draw.dtype, None), (draw.dtype, draw.dtype), (bf16, bf16), (f32, draw.dtype),
                          shapes=(shape[-1:], shape[-1:]))
    return compose("layer_norm", draw.tensor(shape, plain=True), scale, bias, eps=draw.pick(1e-5, 0.3))


def dot(draw: CaseDraw) -> Node:
    draw.dims = 3
    m, k, n = draw.size(), draw.size(least=1), draw.size()
    lead = draw.pick((), (2,), (3, 1))
    other = draw.pick((), lead, tuple(1 for _ in lead))
    matrices = (*lead, m, k), (*other, k, n)
    left, right = draw.pick(matrices, matrices, ((k,), (k, n)), ((m, k), (k,)), ((k,), (k,)))
    low, high = (-9, 9) if draw.dtype.kind == "int" else (None, None)
    return compose("dot", draw.tensor(left, low=low, high=high), draw.tensor(right, low=low, high=high))


def linear(draw: CaseDraw) -> Node:
    draw.dims = 3
    k, out = draw.size(least=1), draw.size()
    x = draw.tensor((*draw.shape(0, 2), k))
    return compose("linear", x, *weights(draw, (draw.dtype, None), (draw.dtype, draw.dtype), (bf16, None), (bf16, bf16),
                                         (f32, draw.dtype), shapes=((out, k), (out,))))


def scaled_linear(draw: CaseDraw) -> Node:
    draw.dims = 3
    k, out, lead = draw.pick(3, 64, 48), draw.pick(2, 32, 80), draw.shape(0, 2)
    x_scale, weight_scale = draw.pick(((), ()), (None, None), ((*lead, 1), (out,)), (None, ()), ((), (out,)))
    scales = [None if shape is None else draw.tensor(shape, f32) for shape in (x_scale, weight_scale)]
    weight = draw.tensor((out, k), draw.pick(draw.dtype, f8e4m3, draw.dtype, bf16))
    return compose("scaled_linear", draw.tensor((*lead, k)), weight, *scales,
                   draw.tensor((out,), draw.pick(bf16, f32)) if draw.pick(False, True) else None, dtype=draw.pick(bf16, f32, f16))


def dequantize(draw: CaseDraw) -> Node:
    name = str(draw.pick(*FORMATS))
    return compose("dequantize", draw.tensor((*draw.shape(0, 2), 2 * FORMATS[name].nbytes)), format=name)


def quantize(draw: CaseDraw) -> Node:
    name = str(draw.pick(*QUANTISERS))
    return compose("quantize", draw.tensor((*draw.shape(0, 2), 2 * FORMATS[name].values)), format=name)


def block_linear(draw: CaseDraw, op: str = "block_linear", **attrs: str) -> Node:
    draw.dims = 3
    name = str(draw.pick(*FORMATS))
    block, count, out = FORMATS[name], int(draw.pick(2, 1, 5)), draw.size()
    bias = draw.tensor((out,), f32) if draw.pick(False, True) else None
    x, blocks = draw.tensor((*draw.shape(0, 2), count * block.values)), draw.tensor((out, count * block.nbytes), u8)
    return compose(op, x, blocks, bias, format=name, **attrs)


def rounded_linear(draw: CaseDraw) -> Node:
    draw.dims = 3
    k, out = draw.pick(64, 7, 96), draw.pick(33, 2, 64)
    bias = draw.tensor((out,), draw.pick(f32, bf16)) if draw.pick(False, True) else None
    x, to = draw.tensor((*draw.shape(0, 2), k)), draw.pick("tf32", "bf16x2")
    return compose("rounded_linear", x, draw.tensor((out, k)), bias, to=to)


def gather_linear(draw: CaseDraw) -> Node:
    k, out, matrices, lead = draw.size(least=1), draw.pick(3, 17, 1), draw.pick(4, 1, 9), draw.shape(1, 2)
    shared = draw.pick((*lead[:-1], 1), lead)                       # a row of x for all indices of the last axis, or for each
    weight, bias = weights(draw, (draw.dtype, None), (draw.dtype, draw.dtype), (bf16, None), (f32, draw.dtype),
                           shapes=((matrices, out, k), (matrices, out)))
    return compose("gather_linear", draw.tensor((*shared, k)), weight, draw.index(lead, matrices), bias)


def linear_argmax(draw: CaseDraw) -> Node:
    draw.dims = 3
    k, out = draw.pick((None, None), (64, 300), (7, 33), (96, 1000))  # a weight of fixed shape, as in a model, or any
    k, out = k or draw.size(least=1), out or draw.size(least=1)
    return compose("linear_argmax", draw.tensor((*draw.shape(0, 2), k)), draw.tensor((out, k), draw.pick(draw.dtype, bf16, f32)))


def embedding(draw: CaseDraw) -> Node:
    rows = draw.size()
    return compose("embedding", draw.tensor((rows, draw.size())), draw.index(draw.shape(0, 2), rows), scale=draw.pick(1.0, 0.37),
                   dtype=draw.pick(f32, f32, bf16, f64))


def one_hot(draw: CaseDraw) -> Node:
    size = draw.pick(5, 1, 17)
    return compose("one_hot", draw.index(draw.shape(0, 2), size), size=size, dtype=draw.dtype)


def concat(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    axis = draw.pick(*range(-len(shape), len(shape)))
    parts = []
    for _ in range(draw.pick(2, 3, 1, 4)):
        part = list(shape)
        part[axis] = draw.size()
        parts.append(draw.tensor(tuple(part)))
    return compose("concat", *parts, axis=axis)


def rope_table(draw: CaseDraw) -> Node:
    dtype = draw.pick(i32, i32, i64, draw.dtype) if draw.dtype.kind == "float" else draw.dtype
    positions = draw.tensor((draw.size(),), dtype, low=0, high=127)
    return compose("rope_table", positions, head_dim=draw.pick(2, 6, 16), theta=draw.pick(1e4, 3.5), scaling=draw.pick(1.0, 8.0),
                   dtype=draw.dtype if draw.dtype.kind == "float" else f32)


def rope(draw: CaseDraw) -> Node:
    draw.dims = 3
    n, half = draw.size(), draw.size(least=1)
    table = draw.pick(draw.dtype, f32)
    return compose("rope", draw.tensor((n, draw.size(), 2 * half)), draw.tensor((n, half), table), draw.tensor((n, half), table))


def attention(draw: CaseDraw) -> Node:
    n, s, groups, width = draw.size(), draw.size(least=1), draw.pick(1, 2, 3), draw.pick(8, 4, 1)
    value_width = draw.pick(width, width, width, 3)
    mask = draw.tensor((n, s), bool_) if draw.pick(False, True, False) else None
    cache = draw.pick(draw.dtype, draw.dtype, bf16)
    return compose("attention", draw.tensor((n, groups * draw.pick(2, 1, 4), width)), draw.tensor((s, groups, width), cache),
                   draw.tensor((s, groups, value_width), cache), mask, scale=draw.pick(0.5, 1.0), causal=draw.pick(True, False),
                   window=draw.pick(0, 1, 3), start=draw.pick(0, 2, 20), softcap=draw.pick(0.0, 0.0, 1.5))


def batched_attention(draw: CaseDraw) -> Node:
    b, n, s, groups, width = draw.pick(2, 3, 1), draw.size(), draw.size(least=1), draw.pick(1, 2), draw.pick(8, 4, 1)
    mask = draw.tensor(draw.pick((n, s), (b, n, s)), bool_) if draw.pick(False, True) else None
    return compose("batched_attention", draw.tensor((b, n, groups * draw.pick(2, 1), width)), draw.tensor((b, s, groups, width)),
                   draw.tensor((b, s, groups, draw.pick(width, width, 3))), mask, scale=draw.pick(0.5, 1.0),
                   causal=draw.pick(True, False), window=draw.pick(0, 1, 3), start=draw.pick(0, 2), softcap=draw.pick(0.0, 1.5))


def paged_attention(draw: CaseDraw) -> Node:
    t, w, groups, width, page = draw.size(), draw.size(least=1), draw.pick(1, 2, 3), draw.pick(8, 4, 1), draw.pick(2, 4, 1)
    pool, cache, heads = (5 * page, groups), draw.pick(draw.dtype, draw.dtype, bf16), groups * draw.pick(2, 1, 4)
    sinks = draw.tensor((heads,), f32) if draw.pick(False, False, True) else None
    return compose("paged_attention", draw.tensor((t, heads, width)), draw.tensor((*pool, width), cache),
                   draw.tensor((*pool, draw.pick(width, width, width, 3)), cache), draw.tensor((t, w), i32, low=-1, high=6),
                   draw.tensor((t,), i32, low=-1, high=9), sinks, page=page, scale=draw.pick(0.5, 1.0),
                   window=draw.pick(0, 1, 3), softcap=draw.pick(0.0, 0.0, 1.5))


def _sliding(draw: CaseDraw) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the sizes of windows over two axes and their layout (stride, padding, dilation), for axes of at least 4 elements."""
    size, stride, before, behind, dilation = draw.pick(
        ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1)), ((2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
        ((1, 1), (1, 1), (0, 0), (0, 0), (1, 1)), ((2, 3), (2, 1), (0, 1), (1, 0), (1, 2)))
    return size, {"stride": stride, "padding": tuple(zip(before, behind, strict=True)), "dilation": dilation}


def sliding(name: str) -> Case:
    """Return a case of the op `windows` or of a pooling."""
    def build(draw: CaseDraw) -> Node:
        size, how = _sliding(draw)
        if name == "windows":
            how["value"] = draw.pick(0, 0, True if draw.dtype.kind == "bool" else 2)
        x = draw.tensor((draw.size(), 5, draw.size(least=4)))
        if name == "avg_pool":
            del how["dilation"]
            how["count_padding"] = draw.pick(True, False)
        return compose(name, x, size=size, **how)

    return build


def conv(draw: CaseDraw) -> Node:
    size, how = _sliding(draw)
    groups, inner, out = draw.pick((1, 3, 4), (2, 2, 3), (3, 1, 1), (2, 1, 2))    # dense, grouped, depthwise: one output, two
    scale, bias = weights(draw, (draw.dtype, None), (draw.dtype, draw.dtype), (bf16, None), (f32, draw.dtype),
                          shapes=((groups * out, inner, *size), (groups * out,)))
    return compose("conv", draw.tensor((draw.size(), groups * inner, 5, draw.pick(4, 17))), scale, bias, **how, groups=groups)


def group_norm(draw: CaseDraw) -> Node:
    x = draw.tensor((draw.size(), 6, draw.pick(17, 3)), plain=True)
    scale, bias = weights(draw, (None, None), (draw.dtype, None), (draw.dtype, draw.dtype), (bf16, f32), shapes=((6,), (6,)))
    return compose("group_norm", x, scale, bias, groups=draw.pick(2, 1, 3), eps=draw.pick(1e-5, 0.3))


def batch_norm(draw: CaseDraw) -> Node:
    x, dtype = draw.tensor((draw.size(), 6, draw.size())), draw.pick(draw.dtype, f32)
    scale, bias = weights(draw, (None, None), (draw.dtype, None), (draw.dtype, draw.dtype), (bf16, f32), shapes=((6,), (6,)))
    return compose("batch_norm", x, draw.tensor((6,), dtype), draw.tensor((6,), dtype, positive=True), scale, bias,
                   eps=draw.pick(1e-5, 0.3))


def upsample(draw: CaseDraw) -> Node:
    mode = draw.pick("nearest", "linear") if draw.dtype.kind == "float" else "nearest"
    return compose("upsample", draw.tensor((draw.size(), draw.size(), 3)), scale=draw.pick((2, 2), (3, 1), (2,)), mode=mode)


def resize(draw: CaseDraw) -> Node:
    size, scale = draw.pick(((8, 2), ()), ((3, 3), ()), ((4, 7), (0.8, 2.5)), ((5,), ()))
    mode, coordinates, rounding = draw.pick(
        ("linear", "half_pixel", "floor"), ("cubic", "align_corners", "floor"), ("nearest", "half_pixel", "round_prefer_ceil"),
        ("cubic", "half_pixel", "floor")) if draw.dtype.kind == "float" else ("nearest", "asymmetric", "floor")
    smooth = mode != "nearest" and draw.pick(False, True)
    return compose("resize", draw.tensor((draw.size(), 5, 3)), size=size, scale=scale, mode=mode, coordinates=coordinates,
                   rounding=rounding, antialias=smooth, cubic=-0.75, exclude_outside=smooth)


def write_rows(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    axis = draw.pick(0, 0, len(shape) - 1, len(shape) // 2)
    count = draw.size()
    return compose("write_rows", draw.tensor(shape), draw.tensor((*shape[:axis], count, *shape[axis + 1:])),
                   start=draw.pick(0, -3, 8, 2), axis=draw.pick(axis, axis - len(shape)))


def write_at_index(draw: CaseDraw) -> Node:
    shape = draw.shape(1, 3)
    axis = draw.pick(*range(len(shape)))
    count = draw.shape(1, 1)
    return compose("write_at_index", draw.tensor(shape), draw.tensor((*shape[:axis], *count, *shape[axis + 1:])),
                   draw.index(count, shape[axis], distinct=True), axis=axis)


def scan(draw: CaseDraw) -> Node:
    """Return recurrences whose values neither grow nor shrink much: with a gate, with weights, or with two carries that swap."""
    length, width = draw.size(), draw.size()
    x, h, reverse = draw.tensor((length, width)), draw.tensor((width,)), draw.pick(False, True, False, True)
    if draw.dtype.kind != "float":
        def step(carry: tuple[Node, Node], x: Node) -> tuple[tuple[Node, Node], Node]:
            a, b = carry
            return (b, composites.bit_xor(a, x)), composites.bit_and(a, b)

        return first_of(composites.scan(step, (h, draw.tensor((width,))), x, reverse=reverse))
    match draw.pick("gate", "weights", "places", "rows"):
        case "gate":
            gates = draw.tensor((length, width))
            return first_of(composites.scan(lambda h, xs: ((y := composites.sigmoid(xs[0]) * h + xs[1]), y), h, (gates, x),
                                           reverse=reverse))
        case "weights":
            w, h = draw.tensor((5, 5)), draw.tensor((2, 5))
            rows = draw.tensor((length, 2, 5))
            return first_of(composites.scan(lambda h, x: ((y := composites.tanh(composites.linear(h, w) + x)), y * x), h, rows,
                                           reverse=reverse))
        case "places":
            return first_of(composites.scan(lambda c, x: ((c[1], c[0] * 0.5 + x), (c[0], c[1] * x)), (h, draw.tensor((width,))), x,
                                           reverse=reverse))
    return first_of(composites.scan(lambda h, x: (h * 0.5 + x.sum(), None), draw.tensor(()), x, reverse=reverse))


def first_of(results: Any) -> Node:
    """Return the first node of a function's result, which may be nested tuples."""
    while isinstance(results, tuple):
        results = results[0]
    node: Node = results
    return node


CASES: dict[str, Case] = {
    "cast": cast, "bitcast": bitcast, "pad": pad, "gather": gather, "scatter": scatter, "slice": slice_,
    "iota": lambda draw: atomic.iota(shape := draw.shape(1, 3), draw.pick(*range(len(shape))), draw.dtype),
    "where": lambda draw: atomic.where(draw.tensor(shape := draw.shape(), bool_), draw.tensor(shape), draw.tensor(shape)),
    "reshape": lambda draw: apply_atomic("reshape", [draw.tensor((2, 3, n := draw.size()))], shape=(3, n, 2)),
    "permute": lambda draw: apply_atomic("permute", [draw.tensor((2, draw.size(), 3))],
                                         axes=draw.pick((1, 2, 0), (2, 1, 0), (0, 2, 1), (1, 0, 2))),
    "expand": lambda draw: apply_atomic("expand", [draw.tensor((1, 3, 1))], shape=(draw.size(), 3, 4)),
    **{name: alike(op_named(name), positive=True)
       for name in ("reciprocal", "sqrt", "log2", "log", "div", "rsqrt", "pow", "acosh")},
    **{name: reduction(op_named(name)) for name in ("sum", "reduce_max", "reduce_min", "any", "all")},
    "integer_power": lambda draw: compose("integer_power", draw.tensor(draw.shape()), exponent=draw.pick(3, 2, 0, 1)),
    "gelu": lambda draw: compose("gelu", draw.tensor(draw.shape()), approximate=draw.pick("tanh", "none")),
    "gated": lambda draw: compose("gated", draw.tensor(shape := draw.shape()), draw.tensor(shape),
                                  activation=draw.pick("gelu_tanh", "gelu", "silu")),
    "softmax": along_axis("softmax", least=1), "log_softmax": along_axis("log_softmax", least=1),
    "logsumexp": along_axis("logsumexp", least=1, keepdims=True), "mean": mean("mean"), "var": mean("var"),
    "rms_norm": rms_norm, "layer_norm": layer_norm, "dot": dot, "linear": linear, "gather_linear": gather_linear,
    "linear_argmax": linear_argmax, "scaled_linear": scaled_linear, "rounded_linear": rounded_linear,
    "rounded": lambda draw: compose("rounded", draw.tensor(draw.shape()), to=draw.pick("tf32", "bf16x2")),
    "rounded_dot": lambda draw: compose("rounded_dot", draw.tensor((*draw.pick((), (2,)), draw.size(), 8)), draw.tensor((8, 5)),
                                        to=draw.pick("tf32", "bf16x2")),
    "dequantize": dequantize, "quantize": quantize, "block_linear": block_linear,
    "rounded_block_linear": lambda draw: block_linear(draw, "rounded_block_linear", to=str(draw.pick("int8", "int8x2"))),
    "embedding": embedding, "one_hot": one_hot, "concat": concat,
    "argmax": along_axis("argmax", least=1),
    "topk": lambda draw: compose("topk", draw.tensor((*draw.shape(0, 1), draw.pick(7, 5, 17))), k=draw.pick(1, 3, 5, 0)),
    **{name: sliding(name) for name in ("windows", "max_pool", "avg_pool")}, "conv": conv, "upsample": upsample,
    "resize": resize,
    "group_norm": group_norm, "batch_norm": batch_norm,
    "prod": lambda draw: compose("prod", draw.tensor(shape := draw.shape(1, 2)),
                                 axes=draw.pick((0,), (len(shape) - 1,), tuple(range(len(shape))))),
    "cumsum": along_axis("cumsum"), "scan": scan, "rope_table": rope_table, "rope": rope, "attention": attention,
    "batched_attention": batched_attention, "paged_attention": paged_attention,
    "write_rows": write_rows, "write_at_index": write_at_index,
    "threefry2x32": lambda draw: compose("threefry2x32", draw.tensor((2,)), draw.tensor(shape := draw.shape()), draw.tensor(shape)),
    "random_bits": lambda draw: compose("random_bits", draw.tensor((2,)), shape=draw.shape()),
    "uniform": lambda draw: compose("uniform", draw.tensor((2,), u32), shape=draw.shape(), dtype=draw.dtype),
    "normal": lambda draw: compose("normal", draw.tensor((2,), u32), shape=draw.shape(), dtype=draw.dtype),
}
"""op -> its case; ops that are not in it take operands of one shape and no attributes"""

MORE = {"cast": len(DTYPES) - 1, "bitcast": len(DTYPES) - 2, "scatter": 6, "dot": 6, "attention": 6, "linear": 5,
        "paged_attention": 6, "gather_linear": 5, "layer_norm": 5, "scaled_linear": 10, "dequantize": len(FORMATS) - 1,
        "quantize": len(QUANTISERS) - 1, "block_linear": len(FORMATS), "rounded_block_linear": len(FORMATS)}
"""op -> number of its instances, where it is larger than VARIANTS"""

STANDS_FOR = {
    "iota": "the output", "one_hot": "the output", "uniform": "the output", "normal": "the output",
    "rope_table": "the output (integers: the positions)", "where": "the values", "embedding": "the table",
    "threefry2x32": "all words", "random_bits": "the key",
}
"""op -> operand or output that has the dtype of the table's column; for other ops it is the first operand"""


def ops() -> tuple[str, ...]:
    """Return the rows of the table: every atomic op in the order of the op table, then every library composite by name."""
    return (*ATOMIC, *sorted(LIBRARY))


def case(name: str) -> Case:
    """Return the case of an op: its entry in CASES, else operands of one shape. Raises KeyError for an unknown op."""
    return CASES.get(name) or alike(op_named(name))


def instance(name: str, draw: CaseDraw) -> Node:
    """Return one application of an op. Raises DTypeError for a dtype it does not take, CaseError if the case builds another op."""
    try:
        node = applied(case(name)(draw))
    except DTypeError:
        raise
    except (TypeError, TensorGraphsError) as e:
        if name in CASES:
            raise
        raise CaseError(f"no instance of {name!r} can be made by itself: {e}\n  fix: a row for it in CASES, "
                        "tensor_graphs/measure/conformance/cases.py") from None
    if node.op is not op_named(name):
        raise CaseError(f"the case of {name!r} makes {node.op.name!r}\n  fix: its row in CASES, "
                        "tensor_graphs/measure/conformance/cases.py")
    return node


def instances(name: str, dtype: DType) -> list[Node]:
    """Return the distinct variants of an op at a dtype. Raises DTypeError when the op does not take the dtype."""
    nodes: dict[str, Node] = {}
    for variant in range(MORE.get(name, VARIANTS)):
        node = instance(name, CaseDraw(variant, dtype))
        nodes.setdefault(node.digest, node)
    return list(nodes.values())
