"""arithmetic: the functions behind the operators (+ − * / // % ** < == …), with broadcasting and Python numbers.

A function broadcasts its operands and then makes one node: an atomic op where there is one (add, mul, maximum, less, where, …),
else a library composite on equal shapes (sub, div, min, mod, pow, …), defined here. Composites of one operand (neg, abs, square,
rsqrt, …) are called directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill, need
from tensor_graphs.language.axis import Axes, several_axes
from tensor_graphs.language.composite import CompositeOp, library, of_one_output
from tensor_graphs.language.dtypes import DType, bool_, f32, f64, i32
from tensor_graphs.language.errors import AttributeValueError, DTypeError
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import Operand, as_node, broadcast_shape, broadcast_to, keep, together

__all__ = [
    "abs", "add", "all", "any", "bit_and", "bit_or", "bit_xor", "ceil", "clip", "div", "equals", "floor_div", "fmod", "greater",
    "greater_equal", "hypot", "integer_power", "is_finite", "is_inf", "is_nan", "left_shift", "less", "less_equal", "maximum",
    "minimum", "mod", "mul", "nan_to_num", "neg", "not_equal", "pow", "reduce_max", "reduce_min", "right_shift", "round", "rsqrt",
    "sign", "square", "sub", "sum", "trunc", "where"
]

_LN2 = 0.6931471805599453  # ln 2
_LARGEST_UNROLLED_POWER = 64  # x ** 64 is 6 multiplications; beyond, exp2(y · log2 x) is shorter and as accurate


def _ones(x: Node) -> Node:
    return fill(1, x.shape, x.dtype)


def _minus_one(x: Node) -> Node:
    """Return −1 in x's dtype; for unsigned integers the largest number, which is −1 since integers wrap."""
    return fill(int(np.iinfo(x.dtype.numpy).max) if x.dtype.kind == "uint" else -1, x.shape, x.dtype)


def _zeros(x: Node) -> Node:
    return fill(0, x.shape, x.dtype)


def _both(name: str, x: Node, y: Node, *kinds: str) -> None:
    """Check the operands of a composite of two operands. Errors name the composite, not an op of its definition."""
    need(name, x, *kinds)
    need(name, y, *kinds)
    atomic.same_dtype(name, x, y)
    atomic.same_shape(name, x, y)


# ---- composites of one operand ---------------------------------------------------------------------------------------


@library(facts=OpFacts(mentioned=True))
def neg(x: Node) -> Node:
    """−x; unsigned integers wrap.

    x[…] of floats or integers -> its shape and dtype. Raises DTypeError.
    """
    need("neg", x, "float", "int", "uint")
    return atomic.mul(x, _minus_one(x))


@library(facts=OpFacts(mentioned=True))
def abs(x: Node) -> Node:
    """|x| = max(x, −x); the smallest signed integer stays itself, as it does everywhere when integers wrap.

    x[…] of floats or integers -> its shape and dtype. Raises DTypeError.
    """
    need("abs", x, "float", "int", "uint")
    return x if x.dtype.kind == "uint" else atomic.max(x, neg(x))


@library()
def square(x: Node) -> Node:
    """x · x.

    x[…] of floats or integers -> its shape and dtype. Raises DTypeError.
    """
    need("square", x, "float", "int", "uint")
    return atomic.mul(x, x)


@library(facts=OpFacts(positive=True, mentioned=True))
def rsqrt(x: Node) -> Node:
    """1 / √x, for floats.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError.
    """
    need("rsqrt", x, "float")
    return atomic.reciprocal(atomic.sqrt(x))


@library(facts=OpFacts(leaps=True))
def sign(x: Node) -> Node:
    """−1, 0 or 1; NaN stays NaN.

    x[…] of floats or integers -> its shape and dtype. Raises DTypeError.
    """
    need("sign", x, "float", "int", "uint")
    zero = _zeros(x)
    rest = atomic.where(atomic.not_equal(x, x), x, zero) if x.dtype.kind == "float" else zero
    positive = atomic.where(atomic.less(zero, x), _ones(x), rest)
    return atomic.where(atomic.less(x, zero), _minus_one(x), positive)


@library(facts=OpFacts(leaps=True, mentioned=True))
def ceil(x: Node) -> Node:
    """The smallest whole number ≥ x, for floats: −floor(−x).

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError.
    """
    need("ceil", x, "float")
    return neg(atomic.floor(neg(x)))


@library(facts=OpFacts(leaps=True))
def trunc(x: Node) -> Node:
    """x without its fraction, for floats.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError.
    """
    need("trunc", x, "float")
    return atomic.where(atomic.less(x, _zeros(x)), ceil(x), atomic.floor(x))


@library(facts=OpFacts(leaps=True, closed=True))
def round(x: Node) -> Node:
    """The nearest whole number, halves to the even one (IEEE 754 roundTiesToEven, as numpy.round), for floats.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError.
    """
    need("round", x, "float")
    low = atomic.floor(x)
    fraction = sub(x, low)
    half = fill(0.5, x.shape, x.dtype)
    odd = atomic.not_equal(atomic.floor(atomic.mul(low, half)), atomic.mul(low, half))
    up = atomic.bit_or(atomic.less(half, fraction), atomic.bit_and(equals(fraction, half), odd))
    return atomic.where(up, atomic.add(low, _ones(x)), low)


@library(facts=OpFacts(mentioned=True))
def is_nan(x: Node) -> Node:
    """True where x is not a number, for floats: only NaN differs from itself.

    x[…] of a float dtype -> bool[…]. Raises DTypeError.
    """
    need("is_nan", x, "float")
    return atomic.not_equal(x, x)


@library(facts=OpFacts(mentioned=True))
def is_finite(x: Node) -> Node:
    """True where x is neither NaN nor infinite, for floats.

    x[…] of a float dtype -> bool[…]. Raises DTypeError.
    """
    need("is_finite", x, "float")
    below, end = (atomic.less, float("inf")) if x.dtype.has_infinity else (_less_equal, x.dtype.max)
    return below(abs(x), fill(end, x.shape, x.dtype))


@library()
def integer_power(x: Node, *, exponent: int) -> Node:
    """x multiplied with itself `exponent` ≥ 0 times, by repeated squaring; x⁰ is 1, of NaN too.

    x[…] of floats or integers -> its shape and dtype. Raises AttributeValueError (exponent), DTypeError.
    """
    need("integer_power", x, "float", "int", "uint")
    if isinstance(exponent, bool) or not isinstance(exponent, int) or exponent < 0:
        raise AttributeValueError(f"integer_power: the exponent is {exponent!r}",
                                  fix="an int ≥ 0; x ** y takes any number")
    result: Node | None = None
    base = x
    while exponent:
        if exponent & 1:
            result = base if result is None else atomic.mul(result, base)
        exponent >>= 1
        if exponent:
            base = atomic.mul(base, base)
    return _ones(x) if result is None else result


# ---- composites of two operands, reached through the broadcasting functions below ------------------------------------


@library(name="sub", facts=OpFacts(mentioned=True, symbol="−"))
def _sub(x: Node, y: Node) -> Node:
    """x − y; integers wrap."""
    _both("sub", x, y, "float", "int", "uint")
    return atomic.add(x, atomic.mul(y, _minus_one(y)))


@library(name="div", direct=lambda roles, attrs, types: np.asarray(np.divide(roles["x"], roles["y"])),
         facts=OpFacts(mentioned=True, symbol="/"))
def _div(x: Node, y: Node) -> Node:
    """x / y, for floats."""
    _both("div", x, y, "float")
    return atomic.mul(x, atomic.reciprocal(y))


@library(name="floor_div", facts=OpFacts(leaps=True, mentioned=True))
def _floor_div(x: Node, y: Node) -> Node:
    """⌊x / y⌋; integers by the atomic op idiv, where ÷0 gives 0."""
    _both("floor_div", x, y, "float", "int", "uint")
    return atomic.floor(_div(x, y)) if x.dtype.kind == "float" else atomic.idiv(x, y)


def _mod_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    x, y = roles["x"], roles["y"]
    return np.asarray(np.mod(x, y) if x.dtype.kind == "f" else np.where(y == 0, x, np.mod(x, np.where(y == 0, 1, y))), x.dtype)


@of_one_output
def _mod_gradient(node: Node, g: Node) -> dict[str, Node | None]:
    """Return the gradients, 1 and −⌊x / y⌋. The latter is from the remainder: the rounded x / y may pass a whole number."""
    if node.dtype.kind != "float":
        return {}
    x, y = node.inputs
    return {"x": g, "y": atomic.mul(g, _div(_sub(node, x), y))}


@library(name="mod", direct=_mod_direct, gradient=_mod_gradient, facts=OpFacts(leaps=True, closed=True, determined=True))
def _mod(x: Node, y: Node) -> Node:
    """x − ⌊x / y⌋·y, with the sign of y as in Python. For integers, x mod 0 is x, since x ÷ 0 is 0.

    As numpy.mod for floats: NaN for x = ±∞ and for y = 0; x mod ±∞ is x, or ±∞ where the signs differ; a remainder of 0 has y's
    sign. Below f64 the definition is a long division in f64, exact before the result is rounded, however large the quotient. In f64
    it is a single step, with an error of at most 2^-51·|x| for normal y and finite x / y; kernels and the oracle have no such
    error."""
    _both("mod", x, y, "float", "int", "uint")
    if x.dtype.kind != "float":
        return _sub(x, atomic.mul(_floor_div(x, y), y))
    size, divisor = (abs(atomic.cast(operand, f64)) for operand in (x, y))
    rest = size
    for shift in _shifts(x.dtype):
        multiple = atomic.mul(divisor, fill(2.0**shift, x.shape, f64)) if shift else divisor
        rest = _sub(rest, atomic.mul(_floor_div(rest, multiple), multiple))
    # a quotient may be rounded to the wrong side of a whole number: the next step takes that back, and after the last one these
    zero = _zeros(rest)
    rest = atomic.where(atomic.less(rest, zero), atomic.add(rest, divisor), rest)
    rest = atomic.where(less_equal(divisor, rest), _sub(rest, divisor), rest)
    rest = atomic.where(atomic.less(size, divisor), size, rest)         # y = ∞ too, where 0 · ∞ would be NaN
    down = atomic.less(y, _zeros(y))
    other_side = atomic.bit_and(atomic.not_equal(atomic.less(x, _zeros(x)), down), atomic.not_equal(rest, zero))
    rest = atomic.where(other_side, _sub(divisor, rest), rest)
    return atomic.cast(atomic.where(down, neg(rest), rest), x.dtype)


def _shifts(dtype: DType) -> range:
    """Return the powers of 2 that scale the divisor in each step of a long division in f64, the largest first.

    With p bits in a significand, a quotient of 52 − p bits times y is exact in f64, as is the remainder. f64: one step."""
    if dtype is f64:
        return range(1)
    bits = 51 + int(math.log2(dtype.epsilon))
    most = math.frexp(dtype.max / dtype.smallest_normal / dtype.epsilon)[1]         # bits of the largest quotient
    return range((most - 1) // bits * bits, -1, -bits)


def _pow_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    x, y = roles["x"], roles["y"]
    if x.dtype.kind == "f":                                     # for one exponent in all places numpy takes a root: NaN of −∞
        return np.asarray(np.power(np.atleast_1d(x), np.array(y, ndmin=1, order="C"))).reshape(x.shape)
    power = np.power(x, np.where(y < 0, 0, y).astype(y.dtype))
    odd = (y & 1).astype(bool)
    inverse = np.where(x == 1, 1, np.where(x == -1, np.where(odd, -1, 1), 0)) if x.dtype.kind == "i" else 0
    return np.where(y < 0, inverse, power).astype(x.dtype)


@of_one_output
def _pow_gradient(node: Node, g: Node) -> dict[str, Node | None]:
    """Return the gradients y·x^(y−1) and x^y·ln x, without the 0 · ∞ that x⁰ and 0^y would give."""
    x, y = node.inputs
    zero = _zeros(x)
    to_x = atomic.where(_equals(y, zero), zero, atomic.mul(y, _pow(x, _sub(y, _ones(y)))))
    flat = atomic.bit_and(_equals(x, zero), _less_equal(zero, y))
    to_y = atomic.where(flat, zero, atomic.mul(node, atomic.mul(atomic.log2(x), fill(_LN2, x.shape, x.dtype))))
    return {"x": atomic.mul(g, to_x), "y": atomic.mul(g, to_y)}


@library(name="pow", direct=_pow_direct, gradient=_pow_gradient, facts=OpFacts(closed=True))
def _pow(x: Node, y: Node) -> Node:
    """x^y. Floats: exp2(y · log2 |x|), negative where x < 0 and y is odd, NaN where x < 0 and y is no whole number.

    x⁰ and 1^y are 1, also for NaN. Integers use repeated squaring over the bits of y, and wrap; where y < 0 the exact value is
    rounded towards zero, and 0^y is 0."""
    _both("pow", x, y, "float", "int", "uint")
    one = _ones(x)
    if x.dtype.kind == "float":
        zero, half = _zeros(x), fill(0.5, x.shape, x.dtype)
        nan, infinity = fill(float("nan"), x.shape, x.dtype), fill(float("inf"), x.shape, x.dtype)
        size = atomic.exp2(atomic.mul(y, atomic.log2(abs(x))))
        whole = equals(atomic.floor(y), y)
        halved = atomic.mul(y, half)
        odd = atomic.bit_and(whole, atomic.not_equal(atomic.floor(halved), halved))
        # 1/x distinguishes −0 from +0, so that (−0)^−1 is −∞ and (−0)^3 is −0
        minus_zero = atomic.bit_and(equals(x, zero), atomic.less(atomic.reciprocal(x), zero))
        negative = atomic.bit_or(atomic.less(x, zero), minus_zero)
        signed = atomic.where(atomic.bit_and(negative, odd), neg(size), size)
        finite_below = atomic.bit_and(atomic.less(x, zero), atomic.less(abs(x), infinity) if x.dtype.has_infinity else is_finite(x))
        defined = atomic.where(atomic.bit_and(finite_below, atomic.logical_not(whole)), nan, signed)
        # |−1| to ±∞ and 1 to anything is 1: log2 1 = 0, and 0 · ∞ would be NaN
        unit = atomic.bit_or(equals(x, one), atomic.bit_and(equals(abs(x), one), equals(abs(y), infinity)))
        return atomic.where(atomic.bit_or(equals(y, zero), unit), one, defined)
    bits = x.dtype.itemsize * 8 - (1 if x.dtype.kind == "int" else 0)
    result, base, rest, two = one, x, y, fill(2, x.shape, x.dtype)
    for _ in range(bits):
        half_rest = atomic.idiv(rest, two)
        bit = atomic.not_equal(_sub(rest, atomic.mul(half_rest, two)), _zeros(x))
        result = atomic.where(bit, atomic.mul(result, base), result)
        base, rest = atomic.mul(base, base), half_rest
    if x.dtype.kind == "uint":
        return result
    odd = atomic.not_equal(atomic.bit_and(y, one), _zeros(x))
    minus = _minus_one(x)
    inverse = atomic.where(equals(x, one), one, atomic.where(
        equals(x, minus), atomic.where(odd, minus, one), _zeros(x)))
    return atomic.where(atomic.less(y, _zeros(x)), inverse, result)


@library(name="min", facts=OpFacts(any_order=("float", "int", "uint"), mentioned=True))
def _min(x: Node, y: Node) -> Node:
    """Return the smaller of x and y; NaN wins, and −0 < +0. Floats: −max(−x, −y); integers: ~max(~x, ~y), which cannot overflow."""
    _both("min", x, y, "float", "int", "uint")
    flip = neg if x.dtype.kind == "float" else atomic.logical_not
    return flip(atomic.max(flip(x), flip(y)))


@library(name="equals", facts=OpFacts(leaps=True, mentioned=True))
def _equals(x: Node, y: Node) -> Node:
    """True where x = y; NaN equals nothing."""
    _both("equals", x, y, "float", "int", "uint", "bool")
    return atomic.logical_not(atomic.not_equal(x, y))


@library(name="less_equal", facts=OpFacts(leaps=True, mentioned=True))
def _less_equal(x: Node, y: Node) -> Node:
    """True where x ≤ y; False next to NaN."""
    _both("less_equal", x, y, "float", "int", "uint")
    if x.dtype.kind == "float":
        return atomic.bit_or(atomic.less(x, y), _equals(x, y))
    return atomic.logical_not(atomic.less(y, x))


@library(name="bit_or")
def _bit_or(x: Node, y: Node) -> Node:
    """x or y, bit by bit; of booleans the logical or."""
    _both("bit_or", x, y, "int", "uint", "bool")
    return atomic.bit_or(x, y)


# ---- reductions built from max and sum -------------------------------------------------------------------------------


@library(name="reduce_min")
def _reduce_min(x: Node, *, axes: tuple[int, ...]) -> Node:
    """See `reduce_min`. Defined by negation, like `min`; over no elements it is +inf, or the integers' maximum."""
    need("reduce_min", x, "float", "int", "uint")
    flip = neg if x.dtype.kind == "float" else atomic.logical_not
    return flip(atomic.reduce_max(flip(x), axes))


@library(name="any", facts=OpFacts(mentioned=True))
def _any(x: Node, *, axes: tuple[int, ...]) -> Node:
    """See `any`; False over no elements."""
    need("any", x, "bool")
    count = atomic.sum(atomic.cast(x, i32), axes)
    return atomic.not_equal(count, _zeros(count))


@library(name="all")
def _all(x: Node, *, axes: tuple[int, ...]) -> Node:
    """See `all`; True over no elements."""
    need("all", x, "bool")
    return atomic.logical_not(_any(atomic.logical_not(x), axes=axes))


def _reduced(op: CompositeOp, x: Node, axis: Axes, keepdims: bool) -> Node:
    axes = several_axes(op.name, axis, x.rank)
    return keep(x, op(x, axes=axes), axes, keepdims) if axes else x


def sum(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """The sum over the axes (all by default), in x's dtype; integers wrap.

    x of floats or integers; the axes disappear, or stay with size 1 (keepdims). Raises AttributeValueError (axis), DTypeError.
    """
    return keep(x, atomic.sum(x, axis), axis, keepdims)


def reduce_max(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """The largest element over the axes (all by default); NaN wins; of nothing: −inf, or the integers' minimum.

    x of floats or integers; the axes disappear, or stay with size 1 (keepdims). Raises AttributeValueError (axis), DTypeError.
    """
    return keep(x, atomic.reduce_max(x, axis), axis, keepdims)


def reduce_min(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """The smallest element over the axes (all by default); NaN wins.

    x of floats or integers; the axes disappear, or stay with size 1 (keepdims). Raises AttributeValueError (axis), DTypeError.
    """
    return _reduced(_reduce_min, x, axis, keepdims)


def any(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """True where some element of a bool tensor is True over the axes (all by default).

    x of booleans; the axes disappear, or stay with size 1 (keepdims). Raises AttributeValueError (axis), DTypeError.
    """
    return _reduced(_any, x, axis, keepdims)


def all(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """True where every element of a bool tensor is True over the axes (all by default).

    x of booleans; the axes disappear, or stay with size 1 (keepdims). Raises AttributeValueError (axis), DTypeError.
    """
    return _reduced(_all, x, axis, keepdims)


# ---- broadcasting functions: what the operators call -----------------------------------------------------------------


class _Broadcasting(Protocol):
    def __call__(self, x: Operand, y: Operand) -> Node: ...


def _broadcasting(name: str, strict: Callable[..., Any], result: str, operands: str = "") -> _Broadcasting:
    """Return a function that broadcasts its operands and applies `strict`. result, operands: parts of its docstring."""
    def function(x: Operand, y: Operand) -> Node:
        return strict(*together(name, x, y))

    rules = "Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError."
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{result}\n\n{f'{operands} {rules}'.lstrip()}"
    return function


add: _Broadcasting = _broadcasting("add", atomic.add, "x + y.", "Floats or integers, which wrap.")
sub: _Broadcasting = _broadcasting("sub", _sub, "x − y; integers wrap.", "Floats or integers.")
mul: _Broadcasting = _broadcasting("mul", atomic.mul, "x · y.", "Floats or integers, which wrap.")
mod: _Broadcasting = _broadcasting(
    "mod", _mod, "x − ⌊x / y⌋·y, with the sign of y; integers: x mod 0 is x. Floats: that of the exact quotient, as numpy.mod.",
    "Floats or integers.")
minimum: _Broadcasting = _broadcasting("minimum", _min, "The smaller one, element by element; NaN wins.", "Floats or integers.")
maximum: _Broadcasting = _broadcasting("maximum", atomic.max,
                                       "The larger one, element by element; NaN wins.", "Floats or integers.")
less: _Broadcasting = _broadcasting("less", atomic.less, "x < y.", "A bool tensor.")
greater: _Broadcasting = _broadcasting("greater", lambda x, y: atomic.less(y, x), "x > y.", "A bool tensor.")
less_equal: _Broadcasting = _broadcasting("less_equal", _less_equal, "x ≤ y; False next to NaN.", "A bool tensor.")
greater_equal: _Broadcasting = _broadcasting("greater_equal", lambda x, y: _less_equal(y, x),
                                             "x ≥ y; False next to NaN.", "A bool tensor.")
equals: _Broadcasting = _broadcasting(
    "equals", _equals, "x = y as a bool tensor (`==` between tensors asks whether they are the same node); NaN equals nothing.")
not_equal: _Broadcasting = _broadcasting("not_equal", atomic.not_equal, "x ≠ y.", "A bool tensor; True next to NaN.")
bit_and: _Broadcasting = _broadcasting("bit_and", atomic.bit_and,
                                       "x and y, bit by bit; of booleans the logical and.", "Integers or booleans.")
bit_or: _Broadcasting = _broadcasting("bit_or", _bit_or, "x or y, bit by bit; of booleans the logical or.", "Integers or booleans.")
bit_xor: _Broadcasting = _broadcasting("bit_xor", atomic.bit_xor,
                                       "x xor y, bit by bit; of booleans: exactly one of them.", "Integers or booleans.")


def div(x: Operand, y: Operand) -> Node:
    """x / y for floats. Raises DTypeError for integers.

    Shapes broadcast as numpy's. Raises ShapeError too.
    """
    a, b = together("div", x, y)
    if a.dtype.kind != "float":
        raise DTypeError(f"div of {a.type} and {b.type}: integers have no /",
                         fix="x // y floors; or cast to a float dtype")
    return _div(a, b)


def floor_div(x: Operand, y: Operand) -> Node:
    """⌊x / y⌋; integers ÷ 0 give 0. Floats: of the rounded x / y, which may reach a whole number above the exact one.

    An infinite x / y stays so: of x = ±∞ and a finite y it is ±∞, where numpy and torch give NaN (x % y is NaN here, too).
    Floats or integers. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    a, b = together("floor_div", x, y)
    return _floor_div(a, b) if a.dtype.kind == "float" else atomic.idiv(a, b)


def pow(x: Operand, y: Operand) -> Node:
    """x^y. A number as exponent becomes products (0 to 64), sqrt (½: NaN of −∞, where C's pow and a tensor as exponent give +∞),
    rsqrt (−½) or reciprocal (−1); 2^y is exp2.

    Floats or integers. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    if isinstance(x, Node) and isinstance(y, (int, float, np.number)) and not isinstance(y, bool):
        exponent = float(y)
        if exponent == 2:
            return square(x)
        if exponent.is_integer() and 0 <= exponent <= _LARGEST_UNROLLED_POWER:
            return x if exponent == 1 else integer_power(x, exponent=int(exponent))
        if x.dtype.kind == "float" and exponent in (0.5, -0.5, -1.0):
            if exponent == -0.5:
                return rsqrt(x)
            return atomic.sqrt(x) if exponent == 0.5 else atomic.reciprocal(x)
    if isinstance(y, Node) and y.dtype.kind == "float" and isinstance(x, (int, float, np.number)) and float(x) == 2.0:
        return atomic.exp2(y)
    return _pow(*together("pow", x, y))


def clip(x: Node, low: Operand, high: Operand) -> Node:
    """min(max(x, low), high).

    Floats or integers; NaN stays NaN. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    return minimum(maximum(x, low), high)


def fmod(x: Operand, y: Operand) -> Node:
    """x − trunc(x / y) · y, with the sign of x, as C's fmod and numpy.fmod; integers: of x and 0 it is x. See `mod` for y's sign.

    Floats or integers. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    a, b = together("fmod", x, y)
    need("fmod", a, "float", "int", "uint")
    if a.dtype.kind == "float":
        rest = _mod(abs(a), abs(b))                           # exact: where signs differ, mod rounds y − rest
        return atomic.where(atomic.less(a, _zeros(a)), neg(rest), rest)
    rest, zero = _mod(a, b), _zeros(a)
    apart = atomic.bit_and(atomic.not_equal(atomic.less(a, zero), atomic.less(b, zero)), atomic.not_equal(rest, zero))
    return atomic.where(atomic.bit_and(apart, atomic.not_equal(b, zero)), _sub(rest, b), rest)


def hypot(x: Operand, y: Operand) -> Node:
    """√(x² + y²) without overflow: with a the larger one of |x| and |y| and b the other, a · √(1 + (b / a)²); +∞ next to ±∞.

    Floats. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    one, other = together("hypot", x, y)
    need("hypot", one, "float")
    one, other = abs(one), abs(other)
    large, small = atomic.max(one, other), minimum(one, other)
    infinite = atomic.bit_or(is_inf(one), is_inf(other))
    flat = atomic.bit_or(infinite, equals(large, 0.0))
    ratio = div(where(flat, 0.0, small), where(flat, 1.0, large))
    result = atomic.mul(large, atomic.sqrt(atomic.mul(ratio, ratio) + 1.0))
    return where(infinite, float("inf"), result) if one.dtype.has_infinity else result


def is_inf(x: Node) -> Node:
    """True where x is +∞ or −∞, for floats.

    x[…] of a float dtype -> bool[…]. Raises DTypeError.
    """
    need("is_inf", x, "float")
    if not x.dtype.has_infinity:
        return fill(False, x.shape, bool_)
    return equals(abs(x), float("inf"))


def nan_to_num(x: Node, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Node:
    """x with `nan` for NaN, `posinf` for +∞ and `neginf` for −∞: the largest and the lowest number of the dtype unless given.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError.
    """
    need("nan_to_num", x, "float")
    result = where(is_nan(x), nan, x)
    if not x.dtype.has_infinity:
        return result
    result = where(equals(x, float("inf")), float(x.dtype.max) if posinf is None else posinf, result)
    return where(equals(x, -float("inf")), float(x.dtype.min) if neginf is None else neginf, result)


def left_shift(x: Operand, y: Operand) -> Node:
    """x · 2^y: the bits moved up by y, zeros from below; 0 where y is negative or no less than the number of bits.

    Integers. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    a, b = together("left_shift", x, y)
    return atomic.mul(a, _powers_of_two("left_shift", a, b))


def right_shift(x: Operand, y: Operand) -> Node:
    """⌊x / 2^y⌋: the bits moved down by y, copies of the sign from above; 0 where y is negative.

    Integers. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    a, b = together("right_shift", x, y)
    least = a.dtype.itemsize * 8 - (2 if a.dtype.kind == "int" else 1)   # 2^least is the largest power that the dtype holds
    most = fill(least, b.shape, b.dtype)
    shifted = atomic.idiv(a, _powers_of_two("right_shift", a, minimum(b, most)))
    rest = where(greater(b, most), fill(2, a.shape, a.dtype), _ones(a))
    return atomic.idiv(shifted, rest)                                    # one bit more: all that is left is the sign


def _powers_of_two(name: str, x: Node, y: Node) -> Node:
    """Return 2^y in x's dtype (the sign bit included), 0 where y is no bit position: a gather out of range reads 0."""
    _both(name, x, y, "int", "uint")
    bits = x.dtype.itemsize * 8
    table = np.array([1 << i for i in range(bits)], dtype=np.uint64).astype(x.dtype.numpy)
    return atomic.gather(constant(table, x.dtype), y)


def where(condition: Operand, x: Operand, y: Operand) -> Node:
    """x where the condition (a bool tensor) is True, else y; a number takes the dtype of the other one.

    Of two numbers: f32 if one of them is a float, else i32 (bool for two booleans).

    All three broadcast as numpy's. Raises ShapeError, DTypeError (the condition is no bool tensor, x and y differ in dtype).
    """
    if not isinstance(condition, Node):
        raise DTypeError(f"where: the condition is {type(condition).__name__}, a bool tensor is needed",
                         fix="x < y, tg.equals(x, y) or tg.not_equal(x, y) compare element by element (x == y asks whether they "
                             "are one tensor); tg.constant(array) makes a tensor of an array")
    dtypes = [v.dtype for v in (x, y) if isinstance(v, Node)]
    if dtypes:
        dtype = dtypes[0]
    elif isinstance(x, (bool, np.bool_)) and isinstance(y, (bool, np.bool_)):
        dtype = bool_
    else:
        dtype = f32 if isinstance(x, (float, np.floating)) or isinstance(y, (float, np.floating)) else i32
    nodes = [condition, as_node(x, dtype), as_node(y, dtype)]
    shape = broadcast_shape("where", *nodes)
    return atomic.where(*(broadcast_to(n, shape) for n in nodes))
