"""elementwise: ops of single elements: arithmetic, comparisons, functions of real numbers, conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensor_graphs.frontends.torch.aten.reductions import computed_in
from tensor_graphs.frontends.torch.aten.table import ROWS, AtenCall, cast, filled, real, row, to_shape, together, wide_dtype
from tensor_graphs.frontends.torch.functions import COMPARISONS, REAL, refuse
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language.dtypes import bool_, i32
from tensor_graphs.language.node import Node

OF_REALS: Mapping[str, Callable[..., Node]] = {**REAL, "atan2": c.atan2, "hypot": c.hypot}
for _name, _build in OF_REALS.items():
    row(f"{_name}.default")(real(_build))
row("copysign.Tensor", "copysign.Scalar")(real(lambda x, y: c.where(
    c.less(y, 0.0) | (c.equals(y, 0.0) & c.less(atomic.reciprocal(y), 0.0)), c.neg(c.abs(x)), c.abs(x))))
row("gelu.default")(lambda call, x, approximate="none": c.gelu(x, approximate=approximate))


def _whole(build: Callable[[Node], Node]) -> Callable[..., Node]:
    return lambda call, x, **_: build(x) if x.dtype.kind == "float" else x


ROUNDED: Mapping[str, Callable[..., Node]] = {"floor": atomic.floor, "ceil": c.ceil, "trunc": c.trunc, "round": c.round}
for _name, _build in ROUNDED.items():
    row(f"{_name}.default")(_whole(_build))


row("neg.default")(lambda call, x: c.neg(x))
row("abs.default")(lambda call, x: c.abs(x) if x.dtype.kind != "bool" else x)
row("relu.default")(lambda call, x: c.relu(x) if x.dtype.kind == "float" else c.maximum(x, 0))
row("sign.default")(lambda call, x: x if x.dtype is bool_ else c.sign(x) if x.dtype.kind != "float" else c.where(
    c.is_nan(x), 0.0, c.sign(x)))
row("isnan.default")(lambda call, x: c.is_nan(x) if x.dtype.kind == "float" else atomic.fill(False, x.shape, bool_))
row("isinf.default")(lambda call, x: c.is_inf(x) if x.dtype.kind == "float" else atomic.fill(False, x.shape, bool_))
row("logical_not.default")(lambda call, x: atomic.logical_not(cast(x, bool_)))
row("bitwise_not.default")(lambda call, x: atomic.logical_not(x))


def _sums(build: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    def row(call: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Node:
        if call.dtype is bool_:
            return c.bit_or(*together(bool_, x, y)) if build is c.add and alpha else together(
                bool_, x, y)[0] if build is c.add else refuse("a difference of booleans")
        a, b = together(wide_dtype(call.dtype), x, y)
        return atomic.cast(build(a, b if alpha == 1 else c.mul(b, filled(alpha, b.dtype))), call.dtype)

    return row


row("add.Tensor", "add.Scalar")(_sums(c.add))
row("sub.Tensor", "sub.Scalar")(_sums(c.sub))


def _numeric(build: Callable[[Node, Node], Node], on_bool: Callable[[Node, Node], Node] | None = None) -> Callable[..., Node]:
    """Return a row of an operation of two numbers, in the dtype of the result; on_bool: the same of booleans."""

    def row(call: AtenCall, x: Any, y: Any) -> Node:
        a, b = together(wide_dtype(call.dtype), x, y)
        if a.dtype is bool_:
            return on_bool(a, b) if on_bool is not None else refuse("arithmetic of booleans")
        return atomic.cast(build(a, b), call.dtype)

    return row


def _floor_quotient(a: Node, b: Node) -> Node:
    """⌊a / b⌋; of floats as torch's: (a − a mod b) / b, which is a whole number up to rounding."""
    if a.dtype.kind != "float":
        return atomic.idiv(a, b)
    quotient = a / b
    exact = c.round((a - c.mod(a, b)) / b)
    return c.where(c.equals(b, 0.0), quotient, exact)


def _trunc_quotient(a: Node, b: Node) -> Node:
    if a.dtype.kind == "float":
        return c.trunc(a / b)
    if a.dtype.kind == "uint":
        return atomic.idiv(a, b)
    floor = atomic.idiv(a, b)
    inexact = c.not_equal(c.mul(floor, b), a)
    return c.where(inexact & c.not_equal(c.less(a, 0), c.less(b, 0)), floor + 1, floor)


row("mul.Tensor", "mul.Scalar")(_numeric(c.mul, c.bit_and))
row("maximum.default")(_numeric(c.maximum, c.bit_or))
row("minimum.default")(_numeric(c.minimum, c.bit_and))
row("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")(_numeric(c.mod))
row("fmod.Tensor", "fmod.Scalar")(_numeric(c.fmod))
row("floor_divide.default", "floor_divide.Scalar")(_numeric(_floor_quotient))
row("pow.Tensor_Tensor", "pow.Scalar")(_numeric(c.pow))
row("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor")(_numeric(c.bit_and, c.bit_and))
row("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor")(_numeric(c.bit_or, c.bit_or))
row("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor")(_numeric(c.bit_xor, c.bit_xor))
row("bitwise_left_shift.Tensor", "__lshift__.Tensor", "__lshift__.Scalar")(_numeric(c.left_shift))
row("bitwise_right_shift.Tensor", "__rshift__.Tensor", "__rshift__.Scalar")(_numeric(c.right_shift))


@row("pow.Tensor_Scalar")
def _pow(call: AtenCall, x: Node, exponent: Any) -> Node:
    base = cast(x, wide_dtype(call.dtype))
    if base.dtype.kind == "float" and isinstance(exponent, (int, float)):
        return atomic.cast(c.pow(base, exponent), call.dtype)
    return _numeric(c.pow)(call, x, exponent)


@row("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "true_divide.Tensor")
def _div(call: AtenCall, x: Any, y: Any, rounding_mode: str | None = None) -> Node:
    build = {None: c.div, "floor": _floor_quotient, "trunc": _trunc_quotient}[rounding_mode]
    return _numeric(build)(call, x, y)


for _name, _relation in COMPARISONS.items():

    def _compare(call: AtenCall, x: Any, y: Any, _build: Callable[..., Node] = _relation, _name: str = _name) -> Node:
        a, b = together(call.common, x, y)
        if a.dtype is bool_ and _name not in ("eq", "ne"):
            a, b = cast(a, i32), cast(b, i32)
        return _build(a, b)

    row(f"{_name}.Tensor", f"{_name}.Scalar")(_compare)

for _name, _build in {"and": c.bit_and, "or": c.bit_or, "xor": c.bit_xor}.items():
    row(f"logical_{_name}.default")(lambda call, x, y, _build=_build: _build(*together(bool_, x, y)))


@row("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(call: AtenCall, condition: Node, x: Any, y: Any) -> Node:
    a, b = cast(x, call.dtype), cast(y, call.dtype)
    return c.where(cast(condition, bool_), a, b)


@row("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default")
def _clamp(call: AtenCall, x: Node, low: Any = None, high: Any = None, **named: Any) -> Node:
    low, high = named.get("min", low), named.get("max", high)
    dtype = computed_in(call)
    out = cast(x, dtype)
    if low is not None:
        out = c.maximum(*together(dtype, out, low))
    return cast(out if high is None else c.minimum(*together(dtype, out, high)), call.dtype)


@row("_to_copy.default", "convert_element_type.default", "prims.convert_element_type.default")
def _convert(call: AtenCall, x: Node, *_: Any) -> Node:
    return cast(x, call.dtype)


row("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "contiguous.default", "prims.device_put.default",
     "prims.view_of.default")(lambda call, x, *_, **__: x)
row("copy.default")(lambda call, x, source, *_: to_shape(cast(source, call.dtype), call.shape))


for _prim, _name in {
    "div": "div.Tensor", "abs": "abs.default", "neg": "neg.default", "where": "where.self", "add": "add.Tensor",
    "mul": "mul.Tensor", "sub": "sub.Tensor", "eq": "eq.Tensor", "ne": "ne.Tensor", "lt": "lt.Tensor", "gt": "gt.Tensor",
    "le": "le.Tensor", "ge": "ge.Tensor", "sqrt": "sqrt.default", "exp": "exp.default", "log": "log.default",
    "rsqrt": "rsqrt.default",
}.items():  # fmt: skip
    row(f"prims.{_prim}.default")(ROWS[_name])
