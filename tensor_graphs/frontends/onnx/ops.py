"""ops: rows of ops that compute element by element, along axes, and as products. call.py has the table."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, floats, row
from tensor_graphs.frontends.onnx.errors import NotSupported
from tensor_graphs.frontends.onnx.tensor_data import dtype_of
from tensor_graphs.frontends.onnx.values import ELEMENTS, OnnxValue, narrowed
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType, bool_, f32, f64, i32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_shape, broadcast_to, together

# ---- one operand -----------------------------------------------------------------------------------------------------


def atan(x: Node) -> Node:
    """arctan x: 8 times that of x halved three times in angle, by its series; 1/x is used above 1."""
    size = c.abs(x)
    large = size > 1
    z = c.where(large, atomic.reciprocal(size), size)
    for _ in range(3):
        z = z / (1 + atomic.sqrt(1 + z * z))
    square, series = z * z, c.full(z.shape, 0.0, z.dtype)
    for k in range(19, 0, -2):
        series = 1 / k - square * series
    angle = 8.0 * z * series
    return c.where(large, math.pi / 2 - angle, angle) * c.where(x < 0, c.full(x.shape, -1.0, x.dtype), 1.0)


def _asin(x: Node) -> Node:
    return 2.0 * atan(x / (1 + atomic.sqrt((1 - x) * (1 + x))))


def _sinh(x: Node) -> Node:
    t, size = c.expm1(c.abs(x)), c.abs(x)
    return c.sign(x) * c.where(size > 20, c.exp(size - math.log(2)), 0.5 * (t + t / (t + 1)))


def _cosh(x: Node) -> Node:
    half = c.exp(c.abs(x) - math.log(2))
    return half + 0.25 / half


def _asinh(x: Node) -> Node:
    size = c.abs(x)
    near = c.log1p(size + size * size / (1 + atomic.sqrt(size * size + 1)))
    return c.sign(x) * c.where(size > 1e4, c.log(size) + math.log(2), near)


def _acosh(x: Node) -> Node:
    t = x - 1
    return c.where(x > 1e4, c.log(x) + math.log(2), c.log1p(t + atomic.sqrt(t * (t + 2))))


UNARY: dict[str, Callable[[Node], Node]] = {
    "Ceil": c.ceil, "Floor": atomic.floor, "Round": c.round, "Sqrt": atomic.sqrt, "Exp": c.exp, "Log": c.log,
    "Sin": atomic.sin, "Cos": c.cos, "Tan": c.tan, "Tanh": c.tanh, "Sigmoid": c.sigmoid, "Erf": c.erf, "Softplus": c.softplus,
    "Reciprocal": atomic.reciprocal, "IsNaN": c.is_nan, "Atan": atan, "Asin": _asin, "Sinh": _sinh, "Cosh": _cosh,
    "Acos": lambda x: 2.0 * atan(atomic.sqrt((1 - x) / (1 + x))), "Asinh": _asinh, "Acosh": _acosh,
    "Atanh": lambda x: 0.5 * (c.log1p(x) - c.log1p(-x)), "Softsign": lambda x: x / (1 + c.abs(x)),
    "Mish": lambda x: x * c.tanh(c.softplus(x)),
}
"""op -> function of a tensor of floats"""

NARROW_IN_F32 = ("Atan", "Asin", "Sinh", "Cosh", "Acos", "Asinh", "Acosh", "Atanh", "Mish", "Softsign")


def _unary(op: str, build: Callable[[Node], Node]) -> None:
    def built(call: OnnxNode) -> Built:
        x = floats(call, call.x())
        wide = x.cast(f32) if op in NARROW_IN_F32 and x.dtype.itemsize < 4 else x
        out = build(wide)
        return out.cast(x.dtype) if wide is not x else out
    row(op)(built)


for _op, _build in UNARY.items():
    _unary(_op, _build)

row("Identity")(lambda n: n.value(0))
row("Neg")(lambda n: c.neg(n.x()))
row("Abs")(lambda n: c.abs(n.x()) if n.x().dtype.kind != "uint" else n.x())
row("Sign")(lambda n: c.sign(n.x()))
row("Not")(lambda n: ~n.x())
row("BitwiseNot")(lambda n: ~n.x())
row("Relu")(lambda n: c.maximum(n.x(), 0))


@row("Elu")
def _elu(n: OnnxNode) -> Node:
    x, alpha = n.x(), n.get("alpha", 1.0)
    return c.where(x < 0, alpha * c.expm1(c.minimum(x, 0)), x)


@row("LeakyRelu")
def _leaky(n: OnnxNode) -> Node:
    return c.where(n.x() < 0, n.get("alpha", 0.01) * n.x(), n.x())


@row("PRelu")
def _prelu(n: OnnxNode) -> Node:
    n.before_7("consumed_inputs")
    x, slope = n.x(), n.x(1)
    if n.opset < 7 and slope.rank == 1 and x.rank > 1:   # one for each channel
        slope = slope.reshape(-1, *(1,) * (x.rank - 2))
    x, slope = _broadcast(x, slope)
    return c.where(x < 0, x * slope, x)


@row("HardSigmoid")
def _hard_sigmoid(n: OnnxNode) -> Node:
    return c.clip(n.x() * n.get("alpha", 0.2) + n.get("beta", 0.5), 0.0, 1.0)


@row("Gelu", since=20)
def _gelu(n: OnnxNode) -> Node:
    return c.gelu(n.x(), approximate=n.get("approximate", "none"))


@row("Swish", since=24)
def _swish(n: OnnxNode) -> Node:
    alpha = n.get("alpha", 1.0)
    return c.silu(n.x()) if alpha == 1 else n.x() * c.sigmoid(alpha * n.x())


@row("IsInf")
def _is_inf(n: OnnxNode) -> Node:
    x = n.x()
    high, low = ((x >= math.inf) if x.dtype.has_infinity else c.full(x.shape, False, bool_),
                 (x <= -math.inf) if x.dtype.has_infinity else c.full(x.shape, False, bool_))
    wanted = [side for side, name in ((high, "detect_positive"), (low, "detect_negative")) if n.get(name, 1)]
    return functools.reduce(c.bit_or, wanted) if wanted else c.full(x.shape, False, bool_)


def cast_to(n: OnnxNode, x: Node, dtype: DType, saturate: bool) -> Node:
    """Return x in another dtype; to eight bits, a float out of range becomes the largest number if `saturate`."""
    if dtype is bool_ and x.dtype is not bool_:
        return c.not_equal(x, 0)
    if dtype.is_float and dtype.itemsize == 1 and x.dtype is not dtype and saturate and x.dtype.max > dtype.max:
        x = c.clip(x if x.dtype.is_float else x.cast(f32), -dtype.max, dtype.max)
    return x.cast(dtype)


@row("Cast")
def _cast(n: OnnxNode) -> Built:
    to, value = n.get("to"), n.value(0)
    n.only("round_mode", "up", "nearest", "down")
    saturate = bool(n.get("saturate", 1))
    if isinstance(to, str):
        import onnx

        to = onnx.TensorProto.DataType.Value(to)
    dtype = dtype_of(to, "the result of Cast")
    if value.array is not None and value.array.dtype == object and dtype.is_integer:
        return OnnxValue(dtype, array=value.array)
    if value.array is not None and value.array.dtype.kind in "iub" and dtype.is_integer:
        return OnnxValue(dtype, array=narrowed(value.array.astype(object), dtype))
    return cast_to(n, n.x(), dtype, saturate)


@row("CastLike")
def _cast_like(n: OnnxNode) -> Built:
    n.ignore("round_mode")
    return cast_to(n, n.x(), n.value(1).dtype, bool(n.get("saturate", 1)))


@row("BitCast")
def _bitcast(n: OnnxNode) -> Node:
    return atomic.bitcast(n.x(), dtype_of(n.get("to"), "the result of BitCast"))


@row("Clip", since=11)
def _clip(n: OnnxNode) -> Node:
    x = n.x()
    low, high = n.optional(1), n.optional(2)
    x = x if low is None else c.maximum(x, low)
    return x if high is None else c.minimum(x, high)


@row("Clip")
def _clip_6(n: OnnxNode) -> Node:
    return c.clip(n.x(), n.get("min", -math.inf), n.get("max", math.inf))


@row("Dropout", since=7)
def _dropout(n: OnnxNode) -> Built:
    n.ignore("seed", "ratio", 1)                         # of training
    if n.has(2) and bool(n.scalar(2)) and n.scalar(1, 0.5) != 0:
        n.refuse("Dropout in training mode draws random numbers")
    return [n.x(), c.full(n.x().shape, True, bool_)] if n.opset >= 10 else n.x()


# ---- several operands ------------------------------------------------------------------------------------------------


def _broadcast(*xs: Node) -> list[Node]:
    return together("broadcast", *xs)


def _broadcast_each(*xs: Node) -> list[Node]:
    """Return tensors of any dtypes in one shape."""
    shape = broadcast_shape("broadcast", *xs)
    return [broadcast_to(x, shape) for x in xs]


def truncated_div(x: Node, y: Node) -> Node:
    """Return x / y of integers, rounded towards 0."""
    q = c.floor_div(x, y)
    if x.dtype.kind == "uint":
        return q
    inexact = c.not_equal(q * y, x) & c.not_equal(c.bit_xor(x, y) >= 0, c.full((), True, bool_))
    return c.where(inexact, q + 1, q)


@row("Div")
def _div(n: OnnxNode) -> Node:
    n.before_7("broadcast")
    x, y = n.x(), n.x(1)
    return c.div(x, y) if x.dtype.is_float else truncated_div(x, y)


@row("Mod")
def _mod(n: OnnxNode) -> Node:
    x, y = n.x(), n.x(1)
    if not n.get("fmod", 0):
        return c.mod(x, y)
    if x.dtype.kind == "uint":
        return c.mod(x, y)
    if not x.dtype.is_float:
        return x - truncated_div(x, y) * y
    rest = c.mod(c.abs(x), c.abs(y))
    return c.where(x < 0, -rest, rest)


@row("Pow")
def _pow(n: OnnxNode) -> Node:
    n.before_7("broadcast")
    x, y, exponent = n.x(), n.x(1), n.value(1).array
    if exponent is not None and exponent.size == 1 and exponent.dtype != object and y.rank <= x.rank:
        number = exponent.ravel()[0].item()
        if x.dtype.is_float or (float(number).is_integer() and 0 <= number <= 64):
            return c.pow(x, int(number) if float(number).is_integer() and abs(number) <= 64 else float(number))
    if x.dtype.is_float:
        return c.pow(x, y.cast(x.dtype)) if y.dtype.itemsize <= x.dtype.itemsize or y.dtype.kind != "float" else c.pow(
            x.cast(y.dtype), y).cast(x.dtype)
    if y.dtype.is_float:                                 # whole exponents are exact, as for integers
        x, y = _broadcast_each(x, y)
        whole, any_power = _whole_power(x, y.cast(x.dtype)), c.pow(x.cast(f64), y.cast(f64)).cast(x.dtype)
        return c.where(c.equals(atomic.floor(y), y), whole, any_power)
    return _whole_power(*_broadcast(x, y.cast(x.dtype)))


def _whole_power(x: Node, y: Node) -> Node:
    power, out, rest = x, c.full(x.shape, 1, x.dtype), c.maximum(y, 0)
    for _ in range(x.dtype.bits):                        # by squaring; a negative power is 1/x rounded to 0, unless |x| is 1
        out = c.where(c.equals(rest & 1, 1), out * power, out)
        power, rest = power * power, c.floor_div(rest, 2)
    if x.dtype.kind == "uint":
        return out
    inverse = c.where(c.equals(x, 1) | (c.equals(x, -1) & c.equals(y & 1, 0)), c.full(x.shape, 1, x.dtype), 0)
    return c.where(y >= 0, out, c.where(c.equals(x, -1) & c.equals(y & 1, 1), c.full(x.shape, -1, x.dtype), inverse))


def _chain(build: Callable[[Node, Node], Node]) -> Callable[[OnnxNode], Node]:
    return lambda n: functools.reduce(build, n.all())


def _equal(x: Node, y: Node) -> Node:
    return ~c.bit_xor(x, y) if x.dtype is bool_ else c.equals(x, y)


BINARY: dict[str, Callable[[Node, Node], Node]] = {
    "Add": c.add, "Sub": c.sub, "Mul": c.mul, "Equal": _equal, "Less": c.less, "Greater": c.greater,
    "LessOrEqual": c.less_equal, "GreaterOrEqual": c.greater_equal, "And": c.bit_and, "Or": c.bit_or, "Xor": c.bit_xor,
    "BitwiseAnd": c.bit_and, "BitwiseOr": c.bit_or, "BitwiseXor": c.bit_xor,
}
"""op -> function of two tensors, which broadcast"""

def _two(build: Callable[[Node, Node], Node]) -> Callable[[OnnxNode], Node]:
    def built(n: OnnxNode) -> Node:
        n.before_7("broadcast")                          # with an axis, which is not read, y's axes would lie elsewhere
        return build(n.x(), n.x(1))
    return built


for _op, _binary in BINARY.items():
    row(_op)(_two(_binary))

row("Max", since=6)(_chain(c.maximum))
row("Min", since=6)(_chain(c.minimum))
row("Sum", since=6)(_chain(c.add))
row("Mean", since=6)(lambda n: functools.reduce(c.add, n.all()) / len(n.inputs))


@row("Where")
def _where(n: OnnxNode) -> Node:
    return c.where(n.x(), n.x(1), n.x(2))


@row("BitShift")
def _shift(n: OnnxNode) -> Node:
    if n.get("direction") == "LEFT":
        return c.left_shift(n.x(), n.x(1))
    x, by = _broadcast(n.x(), n.x(1))
    last = x.dtype.bits - 1                              # a count out of range moves all bits out: copies of the sign are left
    return c.right_shift(x, by) if x.dtype.kind == "uint" else c.right_shift(x, c.where((by < 0) | (by > last), last, by))


def fold(call: OnnxNode) -> OnnxValue | None:
    """Return the known value of an op on known integers; None where it is to be computed at run time."""
    arrays = [None if v is None else v.array for v in call.inputs]
    if call.op not in ELEMENTS or call.domain or any(a is None or a.dtype.kind not in "iubO" or a.size > 4096 for a in arrays):
        return None
    if call.op in ("Mod", "Pow") or call.attributes:
        return None
    try:
        out = ELEMENTS[call.op](*arrays)
    except ValueError:
        return None
    first = call.inputs[-1] if call.op == "Where" else call.inputs[0]
    assert first is not None
    dtype = bool_ if call.op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual") else first.dtype
    return OnnxValue(dtype, array=narrowed(out, dtype))


# ---- along axes ------------------------------------------------------------------------------------------------------


def _axes(n: OnnxNode) -> tuple[tuple[int, ...], bool] | None:
    """Return the axes that a reduction removes, and if they stay with size 1; None for no reduction at all."""
    x, keep = n.x(), bool(n.get("keepdims", 1))
    none = bool(n.get("noop_with_empty_axes", 0))
    axes = n.ints(1) if n.has(1) else n.get("axes")
    if not axes:
        return None if none else (tuple(range(x.rank)), keep)
    return tuple(sorted(n.places(axes, x.rank))), keep


def _max_of(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    return c.any(x, axes, keepdims=keep) if x.dtype is bool_ else x.max(axes, keepdims=keep)


def _min_of(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    if x.dtype is bool_:
        return c.all(x, axes, keepdims=keep)
    return c.reduce_min(x, axes, keepdims=keep)


def _log_sum_exp(x: Node, axes: tuple[int, ...], keep: bool) -> Node:
    top = x.max(axes, keepdims=True)
    top = c.where(c.is_finite(top), top, 0.0)
    return c.log(c.exp(x - top).sum(axes, keepdims=keep)) + (top if keep else top.sum(axes))


REDUCTIONS: dict[str, tuple[Callable[[Node], Node], Callable[..., Node], Callable[[Node], Node]]] = {
    "ReduceSum": (lambda x: x, lambda x, a, k: x.sum(a, keepdims=k), lambda x: x),
    "ReduceMean": (lambda x: x, lambda x, a, k: c.mean(x, a, keepdims=k), lambda x: x),
    "ReduceProd": (lambda x: x, lambda x, a, k: c.prod(x, a, keepdims=k), lambda x: x),
    "ReduceMax": (lambda x: x, _max_of, lambda x: x),
    "ReduceMin": (lambda x: x, _min_of, lambda x: x),
    "ReduceL1": (lambda x: x if x.dtype.kind == "uint" else c.abs(x), lambda x, a, k: x.sum(a, keepdims=k), lambda x: x),
    "ReduceL2": (lambda x: x * x, lambda x, a, k: x.sum(a, keepdims=k),
                 lambda x: atomic.sqrt(x) if x.dtype.is_float else atomic.sqrt(x.cast(f64)).cast(x.dtype)),
    "ReduceSumSquare": (lambda x: x * x, lambda x, a, k: x.sum(a, keepdims=k), lambda x: x),
    "ReduceLogSum": (lambda x: x, lambda x, a, k: x.sum(a, keepdims=k), lambda x: c.log(x)),
    "ReduceLogSumExp": (lambda x: x, _log_sum_exp, lambda x: x),
}
"""op -> (before, over the axes, after)"""


def _reduction(op: str) -> Callable[[OnnxNode], Node]:
    before, over, after = REDUCTIONS[op]

    def built(n: OnnxNode) -> Node:
        axes, x = _axes(n), n.x()
        if op == "ReduceMean" and not x.dtype.is_float:
            kind = x.dtype
            total = x if axes is None else x.sum(axes[0], keepdims=axes[1])
            count = 1 if axes is None else d.product([x.shape[a] for a in axes[0]])
            return truncated_div(total, leaves.constant(count, kind)) if count != 1 else total
        if op == "ReduceLogSumExp" and axes is None:
            return x
        if axes is None:
            return after(before(x))
        return after(over(before(x), *axes))
    return built


for _op in REDUCTIONS:
    row(_op)(_reduction(_op))


def _arg(n: OnnxNode, x: Node) -> Node:
    axis, last = n.axis(0), bool(n.get("select_last_index", 0))
    index = c.argmax(c.flip(x, axis) if last else x, axis=axis).cast(i64)
    index = (x.shape[axis] - 1) - index if last else index
    keep = tuple(1 if i == axis else s for i, s in enumerate(x.shape))
    return index.reshape(keep) if n.get("keepdims", 1) else index


def reversed_order(x: Node) -> Node:
    """Return x with its order reversed: −x for floats, ~x for integers."""
    return -x if x.dtype.is_float else ~x


row("ArgMax")(lambda n: _arg(n, n.x()))
row("ArgMin")(lambda n: _arg(n, reversed_order(n.x())))


@row("TopK", since=10)
def _topk(n: OnnxNode) -> Built:
    x, axis, k = n.x(), n.axis(-1), int(n.scalar(1))
    n.ignore("sorted")
    turned = x if n.get("largest", 1) else reversed_order(x)
    values, indices = c.topk(turned.transpose(axis, -1), k=k)
    values = values if n.get("largest", 1) else reversed_order(values)
    return [values.transpose(axis, -1), indices.cast(i64).transpose(axis, -1)]


def flattened(n: OnnxNode, build: Callable[..., Node]) -> Node:
    """Return `build` over the last axis of a matrix: all axes before `axis`, and all from it on (opsets below 13)."""
    x, axis = n.x(), n.axis(1)
    flat = x.reshape(d.product(x.shape[:axis]), d.product(x.shape[axis:]))
    return build(flat, axis=1).reshape(x.shape)


row("Softmax", since=13)(lambda n: c.softmax(n.x(), axis=n.axis(-1)))
row("LogSoftmax", since=13)(lambda n: c.log_softmax(n.x(), axis=n.axis(-1)))
row("Softmax")(lambda n: flattened(n, c.softmax))
row("LogSoftmax")(lambda n: flattened(n, c.log_softmax))


def _hardmax(x: Node, axis: int) -> Node:
    hot = c.one_hot(c.argmax(x, axis=axis), size=x.shape[axis], dtype=f32).cast(x.dtype)
    order = list(range(x.rank - 1))
    order.insert(axis, x.rank - 1)
    return hot.permute(order)


row("Hardmax", since=13)(lambda n: _hardmax(n.x(), n.axis(-1)))
row("Hardmax")(lambda n: flattened(n, _hardmax))


def shifted(x: Node, axis: int, by: int, value: int) -> Node:
    """Return x moved up by `by` places along an axis, `value` in front."""
    bounds = [(0, s - by if i == axis else s, 1) for i, s in enumerate(x.shape)]
    return atomic.pad(atomic.slice(x, bounds), [(by if i == axis else 0, 0) for i in range(x.rank)], value)


def _cumulative(n: OnnxNode, build: Callable[[Node, int], Node], empty: int) -> Node:
    x = n.x()
    (axis,) = n.places([int(n.scalar(1))], x.rank)
    back, before = n.get("reverse", 0), n.get("exclusive", 0)
    x = c.flip(x, axis) if back else x
    out = build(shifted(x, axis, 1, empty) if before else x, axis)
    return c.flip(out, axis) if back else out


def _cumprod(x: Node, axis: int) -> Node:
    size, by = x.shape[axis], 1
    if not isinstance(size, int):
        raise NotSupported("a cumulative product along a dim")
    while by < size:
        x, by = x * shifted(x, axis, by, 1), by * 2
    return x


row("CumSum")(lambda n: _cumulative(n, lambda x, axis: c.cumsum(x, axis=axis), 0))
row("CumProd")(lambda n: _cumulative(n, _cumprod, 1))

# ---- products --------------------------------------------------------------------------------------------------------

row("MatMul")(lambda n: c.dot(n.x(), n.x(1)))


@row("Gemm")
def _gemm(n: OnnxNode) -> Node:
    n.before_7("broadcast")
    a, b = n.x(), n.x(1)
    a = a.transpose() if n.get("transA", 0) else a
    alpha, beta, bias = n.get("alpha", 1.0), n.get("beta", 1.0), n.optional(2)
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
    for number, term in enumerate(terms):
        for letter in sorted({e for e in term if e.isalpha() and term.count(e) > 1}):
            while terms[number].count(letter) > 1:       # a diagonal: the sum over one of two axes, zero off it
                term, x = terms[number], xs[number]
                first, second = (a - len(term) if "..." in term[:a] else a for a in (term.index(letter), term.rindex(letter)))
                on = c.equals(atomic.iota(x.shape, first % x.rank, i64), atomic.iota(x.shape, second % x.rank, i64))
                xs[number] = c.where(on, x, 0).sum(second % x.rank)
                terms[number] = term[:term.rindex(letter)] + term[term.rindex(letter) + 1:]
    return c.einsum(",".join(terms) + arrow + right, *xs)


@row("OptionalHasElement")
def _has_element(n: OnnxNode) -> Node:
    if n.has(0):
        n.x()
    return leaves.constant(n.has(0))


row("OptionalGetElement")(lambda n: n.value(0))


def less_zero(n: OnnxNode, index: int, zero: int, axis: int | None = None) -> Node:
    """Return an operand of small integers as i32, its zero point (operand `zero`) subtracted."""
    x, point = n.x(index).cast(i32), n.optional(zero)
    if point is None:
        return x
    if point.rank == 1 and axis is not None:
        point = point.reshape(tuple(-1 if i == axis % x.rank else 1 for i in range(x.rank)))
    return x - point.cast(i32)


@row("MatMulInteger")
def _matmul_integer(n: OnnxNode) -> Node:
    return c.dot(less_zero(n, 0, 2, -2), less_zero(n, 1, 3, -1))


