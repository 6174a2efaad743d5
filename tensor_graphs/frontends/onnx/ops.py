"""ops: rows of ops that compute element by element, along axes, and as products. call.py has the table."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, along, row
from tensor_graphs.frontends.onnx.tensor_data import dtype_of
from tensor_graphs.frontends.onnx.values import COMPARES, ELEMENTS, OnnxValue, elementwise, narrowed
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType, bool_, f32, f64, i32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import together

# ---- one operand -----------------------------------------------------------------------------------------------------


def _abs(x: Node) -> Node:
    return c.abs(x) if x.dtype.kind != "uint" else x


UNARY: dict[str, Callable[[Node], Node]] = {
    "Ceil": c.ceil, "Floor": atomic.floor, "Round": c.round, "Sqrt": atomic.sqrt, "Exp": c.exp, "Log": c.log,
    "Sin": atomic.sin, "Cos": c.cos, "Tan": c.tan, "Tanh": c.tanh, "Sigmoid": c.sigmoid, "Erf": c.erf, "Softplus": c.softplus,
    "Reciprocal": atomic.reciprocal, "IsNaN": c.is_nan, "Atan": c.atan, "Asin": c.asin, "Acos": c.acos, "Sinh": c.sinh,
    "Cosh": c.cosh, "Asinh": c.asinh, "Acosh": c.acosh, "Atanh": c.atanh, "Softsign": c.softsign, "Mish": c.mish,
    "HardSwish": c.hardswish, "Neg": c.neg, "Sign": c.sign, "Abs": _abs, "Relu": lambda x: c.maximum(x, 0), "Not": lambda x: ~x,
    "BitwiseNot": lambda x: ~x,
}
"""op -> function of a tensor"""


def _unary(build: Callable[[Node], Node]) -> Callable[[OnnxNode], Node]:
    return lambda n: build(n.x())


for _op, _build in UNARY.items():
    row(_op)(_unary(_build))

row("Identity", "OptionalGetElement")(lambda n: n.value(0))
row("OptionalHasElement")(lambda n: leaves.constant(n.has(0)))
row("Elu")(lambda n: c.elu(n.x(), alpha=n.get("alpha", 1.0)))
row("Celu")(lambda n: c.celu(n.x(), alpha=n.get("alpha", 1.0)))
row("LeakyRelu")(lambda n: c.leaky_relu(n.x(), slope=n.get("alpha", 0.01)))
row("HardSigmoid")(lambda n: c.hardsigmoid(n.x(), alpha=n.get("alpha", 0.2), beta=n.get("beta", 0.5)))
row("Gelu", since=20)(lambda n: c.gelu(n.x(), approximate=n.get("approximate", "none")))
row("Swish", since=24)(lambda n: c.silu(n.x()) if n.get("alpha", 1.0) == 1 else n.x() * c.sigmoid(n.get("alpha") * n.x()))
row("BitCast")(lambda n: atomic.bitcast(n.x(), dtype_of(n.get("to"), "the result of BitCast")))
row("Binarizer", domain="ai.onnx.ml")(lambda n: (n.x() > n.get("threshold", 0.0)).cast(n.x().dtype))
row("ArrayFeatureExtractor", domain="ai.onnx.ml")(
    lambda n: atomic.gather(n.x(), n.indices(n.x(1), n.x().shape[-1], back=False).reshape(-1), n.x().rank - 1))


@row("PRelu")
def _prelu(n: OnnxNode) -> Node:
    x, slope = n.x(), n.x(1)
    if n.opset < 7 and slope.rank == 1 and x.rank > 1:   # one for each channel
        slope = along(slope, 0, x.rank - 1)
    x, slope = together("PRelu", x, slope)
    return c.where(x < 0, x * slope, x)


@row("IsInf")
def _is_inf(n: OnnxNode) -> Node:
    x, above, below = n.x(), n.get("detect_positive", 1), n.get("detect_negative", 1)
    limit = c.full(x.shape, False, bool_) if not above and not below else x > 0 if not below else x < 0
    return c.is_inf(x) if above and below else c.is_inf(x) & limit


def cast_to(x: Node, dtype: DType, saturate: bool) -> Node:
    """Return x in another dtype; to eight bits, a float out of range becomes the largest number if `saturate`."""
    if dtype is bool_ and x.dtype is not bool_:
        return c.not_equal(x, 0)
    if dtype.is_float and dtype.itemsize == 1 and x.dtype is not dtype and saturate and x.dtype.max > dtype.max:
        x = c.clip(x if x.dtype.is_float else x.cast(f32), -dtype.max, dtype.max)
    return x.cast(dtype)


@row("Cast", "CastLike")
def _cast(n: OnnxNode) -> Built:
    to, value, saturate = n.get("to"), n.value(0), bool(n.get("saturate", 1))
    n.only("round_mode", "up", "nearest", "down")
    if isinstance(to, str):
        import onnx

        to = onnx.TensorProto.DataType.Value(to)
    dtype = n.value(1).dtype if n.op == "CastLike" else dtype_of(to, "the result of Cast")
    if value.array is not None and value.array.dtype.kind in "iubO" and dtype.is_integer:
        return OnnxValue(dtype, array=narrowed(value.array.astype(object), dtype))
    return cast_to(n.x(), dtype, saturate)


@row("Clip", since=11)
def _clip(n: OnnxNode) -> Node:
    x, low, high = n.x(), n.optional(1), n.optional(2)
    x = x if low is None else c.maximum(x, low)
    return x if high is None else c.minimum(x, high)


row("Clip")(lambda n: c.clip(n.x(), n.get("min", -math.inf), n.get("max", math.inf)))


@row("Dropout", ignored=("seed", "ratio", 1))            # of training
def _dropout(n: OnnxNode) -> Built:
    if (n.opset < 7 and not n.get("is_test", 0)) or (n.has(2) and bool(n.scalar(2)) and n.scalar(1, 0.5) != 0):
        n.refuse("Dropout in training mode draws random numbers")
    return [n.x(), c.full(n.x().shape, True, bool_) if n.opset >= 10 else None]


# ---- several operands ------------------------------------------------------------------------------------------------


def truncated_div(x: Node, y: Node) -> Node:
    """Return x / y of integers, rounded towards 0."""
    return c.floor_div(x - c.fmod(x, y), y)


def _pow(n: OnnxNode) -> Node:
    x, y, exponent = n.x(), n.x(1), n.value(1).array
    if exponent is not None and exponent.size == 1 and exponent.dtype != object and y.rank <= x.rank:
        number = exponent.ravel()[0].item()
        if x.dtype.is_float or (float(number).is_integer() and 0 <= number <= 64):
            return c.pow(x, number)
    if x.dtype.is_float:
        return c.pow(x, y.cast(x.dtype)) if y.dtype.itemsize <= x.dtype.itemsize or y.dtype.kind != "float" else c.pow(
            x.cast(y.dtype), y).cast(x.dtype)
    if y.dtype.is_float:                                 # whole exponents are exact, as for integers
        return c.where(c.equals(atomic.floor(y), y), c.pow(x, y.cast(x.dtype)), c.pow(x.cast(f64), y.cast(f64)).cast(x.dtype))
    return c.pow(x, y.cast(x.dtype))


row("Pow")(_pow)


BINARY: dict[str, Callable[[Node, Node], Node]] = {
    "Add": c.add, "Sub": c.sub, "Mul": c.mul, "Div": lambda x, y: c.div(x, y) if x.dtype.is_float else truncated_div(x, y),
    "Equal": lambda x, y: ~c.bit_xor(x, y) if x.dtype is bool_ else c.equals(x, y),
    "Less": c.less, "Greater": c.greater, "LessOrEqual": c.less_equal, "GreaterOrEqual": c.greater_equal,
    "And": c.bit_and, "Or": c.bit_or, "Xor": c.bit_xor, "BitwiseAnd": c.bit_and, "BitwiseOr": c.bit_or, "BitwiseXor": c.bit_xor,
}
"""op -> function of two tensors, which broadcast"""


def _two(build: Callable[[Node, Node], Node]) -> Callable[[OnnxNode], Node]:
    def built(n: OnnxNode) -> Node:
        x, y = n.x(), n.x(1)
        if n.opset < 7 and (axis := n.get("axis")) is not None:      # y's axes lie at x's from this one on
            behind = x.rank - axis % max(x.rank, 1) - y.rank
            y = y.reshape(*y.shape, *(1,) * behind) if behind >= 0 else n.refuse(f"axis={axis} of {n.op}")
        return build(x, y)
    return built


def _chain(build: Callable[[Node, Node], Node]) -> Callable[[OnnxNode], Node]:
    return lambda n: functools.reduce(build, n.all())


for _op, _binary in BINARY.items():
    row(_op)(_two(_binary))
for _op, _binary in (("Max", c.maximum), ("Min", c.minimum), ("Sum", c.add)):
    row(_op, since=6)(_chain(_binary))

row("Mean", since=6)(lambda n: functools.reduce(c.add, n.all()) / len(n.inputs))
row("Where")(lambda n: c.where(n.x(), n.x(1), n.x(2)))
row("Mod")(lambda n: (c.fmod if n.get("fmod", 0) else c.mod)(n.x(), n.x(1)))


@row("BitShift")
def _shift(n: OnnxNode) -> Node:
    x, by = together("BitShift", n.x(), n.x(1))
    if n.get("direction") == "LEFT":
        return c.left_shift(x, by)
    last = x.dtype.bits - 1                              # a count out of range moves all bits out: copies of the sign are left
    return c.right_shift(x, by) if x.dtype.kind == "uint" else c.right_shift(x, c.where((by < 0) | (by > last), last, by))


def fold(n: OnnxNode) -> OnnxValue | None:
    """Return the known value of an op on known integers; None where it is to be computed at run time."""
    arrays = [v.array for v in n.inputs if v is not None and v.array is not None and v.array.dtype.kind in "iubO"]
    if n.op not in ELEMENTS or n.domain or n.attributes or len(arrays) < len(n.inputs) or any(a.size > 4096 for a in arrays):
        return None
    try:
        out = elementwise(n.op, *arrays)
    except ValueError:
        return None
    dtype = bool_ if n.op in COMPARES else n.value(1 if n.op == "Where" else 0).dtype
    return OnnxValue(dtype, array=narrowed(out, dtype))


# ---- along axes ------------------------------------------------------------------------------------------------------


def _log_sum_exp(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    return functools.reduce(lambda y, axis: c.logsumexp(y, axis, keepdims=keepdims), reversed(axes), x)


def _mean(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    count = d.product([x.shape[a] for a in axes])
    return c.mean(x, axes, keepdims) if x.dtype.is_float else truncated_div(x.sum(axes, keepdims), leaves.constant(count, x.dtype))


def _root(x: Node) -> Node:
    return atomic.sqrt(x if x.dtype.is_float else x.cast(f64)).cast(x.dtype)


REDUCTIONS: dict[str, tuple[Callable[[Node], Node] | None, Callable[..., Node], Callable[[Node], Node] | None]] = {
    "ReduceSum": (None, c.sum, None), "ReduceMean": (None, _mean, None), "ReduceProd": (None, c.prod, None),
    "ReduceMax": (None, lambda x, *how: (c.any if x.dtype is bool_ else c.reduce_max)(x, *how), None),
    "ReduceMin": (None, lambda x, *how: (c.all if x.dtype is bool_ else c.reduce_min)(x, *how), None),
    "ReduceL1": (_abs, c.sum, None), "ReduceL2": (c.square, c.sum, _root), "ReduceSumSquare": (c.square, c.sum, None),
    "ReduceLogSum": (None, c.sum, c.log), "ReduceLogSumExp": (None, _log_sum_exp, None),
}
"""op -> (before, over the axes, after)"""


@row(*REDUCTIONS)
def _reduction(n: OnnxNode) -> Node:
    before, over, after = REDUCTIONS[n.op]
    x, keep, none, axes = n.x(), bool(n.get("keepdims", 1)), n.get("noop_with_empty_axes", 0), n.axes()
    x = x if before is None else before(x)
    if axes or not none:
        x = over(x, tuple(sorted(n.places(axes or range(x.rank), x.rank))), keep)
    return x if after is None else after(x)


@row("ArgMax", "ArgMin")
def _arg(n: OnnxNode) -> Node:
    x, axis, last = n.x(), n.axis(0), n.get("select_last_index", 0)
    if n.op == "ArgMin":                                 # the largest in reversed order
        x = -x if x.dtype.is_float else ~x
    index = c.argmax(c.flip(x, axis) if last else x, axis=axis).cast(i64)
    index = c.sub(leaves.constant(x.shape[axis] - 1, i64), index) if last else index
    return c.stack(index, axis=axis) if n.get("keepdims", 1) else index


@row("TopK", since=10, ignored=("sorted",))
def _topk(n: OnnxNode) -> Built:
    values, indices = c.topk(n.x(), n.axis(-1), k=int(n.scalar(1)), largest=bool(n.get("largest", 1)))
    return [values, indices.cast(i64)]


def _hardmax(x: Node, axis: int) -> Node:
    best = c.stack(c.argmax(x, axis=axis).cast(i64), axis=axis)
    return c.equals(atomic.iota(x.shape, axis, i64), atomic.expand(best, x.shape)).cast(x.dtype)


SOFTMAX: dict[str, Callable[..., Node]] = {"Softmax": c.softmax, "LogSoftmax": c.log_softmax, "Hardmax": _hardmax}


@row(*SOFTMAX)
def _softmax(n: OnnxNode) -> Node:
    x, axis = n.x(), n.axis(-1 if n.opset >= 13 else 1)
    if n.opset >= 13:
        return SOFTMAX[n.op](x, axis=axis)
    matrix = x.reshape(d.product(x.shape[:axis]), d.product(x.shape[axis:]))
    return SOFTMAX[n.op](matrix, axis=1).reshape(x.shape)


@row("CumSum", "CumProd")
def _cumulative(n: OnnxNode) -> Node:
    x, build, back = n.x(), c.cumsum if n.op == "CumSum" else c.cumprod, n.get("reverse", 0)
    (axis,) = n.places([int(n.scalar(1))], x.rank)
    x = c.flip(x, axis) if back else x
    if n.get("exclusive", 0):                            # all moved up by one
        shorter = atomic.slice(x, [(0, s - (i == axis), 1) for i, s in enumerate(x.shape)])
        x = atomic.pad(shorter, [(int(i == axis), 0) for i in range(x.rank)], int(n.op == "CumProd"))
    out: Node = build(x, axis)
    return c.flip(out, axis) if back else out


# ---- products --------------------------------------------------------------------------------------------------------

row("MatMul")(lambda n: c.dot(n.x(), n.x(1)))


@row("Gemm")
def _gemm(n: OnnxNode) -> Node:
    a, b, alpha, beta, bias = n.x(), n.x(1), n.get("alpha", 1.0), n.get("beta", 1.0), n.optional(2)
    a = a.transpose() if n.get("transA", 0) else a
    if n.get("transB", 0) and alpha == 1 and beta == 1 and a.dtype.is_float and (bias is None or (bias.rank == 1 and (
            bias.shape[0] == b.shape[0]))):
        return c.linear(a, b, bias)
    out = c.dot(a, b.transpose() if n.get("transB", 0) else b)
    number: Callable[[float], Any] = float if a.dtype.is_float else int
    out = out if alpha == 1 else out * number(alpha)
    return out if bias is None else out + (bias if beta == 1 else bias * number(beta))


@row("Einsum")
def _einsum(n: OnnxNode) -> Node:
    left, arrow, right = n.get("equation").replace(" ", "").partition("->")
    terms, xs = left.split(","), n.all()
    if not arrow:
        arrow, right = "->", "..." * ("..." in left) + "".join(sorted(e for e in set(left) if e.isalpha() and left.count(e) == 1))
    for number, term in enumerate(terms):
        while again := [e for e in term if e.isalpha() and term.count(e) > 1]:      # a diagonal, as a new last axis
            first, last = term.index(again[0]), term.rindex(again[0])
            axes = [a - len(term) if "..." in term[:a] else a for a in (first, last)]
            xs[number] = c.diagonal(xs[number], 0, *axes)
            terms[number] = term = term[:first] + term[first + 1:last] + term[last + 1:] + again[0]
    return c.einsum(",".join(terms) + arrow + right, *xs)


def less_zero(n: OnnxNode, index: int, zero: int, axis: int | None = None) -> Node:
    """Return an operand of small integers as i32, its zero point (operand `zero`, of the whole or along an axis) subtracted."""
    x, point = n.x(index).cast(i32), n.optional(zero)
    if point is not None and point.rank == 1 and point.shape[0] != 1:
        point = n.refuse(f"several zero points of operand {index} of {n.op}") if axis is None else along(point, axis, x.rank)
    return x if point is None else x - point.cast(i32)


row("MatMulInteger")(lambda n: c.dot(less_zero(n, 0, 2, -2), less_zero(n, 1, 3, -1)))
