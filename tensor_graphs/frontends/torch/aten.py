"""aten: a table of ATen ops: name of an overload -> function that builds its nodes.

    ROWS["add.Tensor"](call, x, y, alpha=2)

A row is called with a Call (the type that torch states for the result, and the common dtype of the first operands), then with the
arguments of the overload: tensors are nodes, sizes are dims. Rules of torch (promotion of dtypes) are therefore not repeated here: a
row converts its operands to the dtype that torch states. What fx.py gets back must have torch's shape and dtype, or it is not used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.frontends.torch.functions import FUNCTIONS, refuse
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.autodiff import vjp
from tensor_graphs.language.composites.batches import attention
from tensor_graphs.language.composites.windows import spread
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_shape, broadcast_to

NO_END = (1 << 63) - 1
"""end of a slice that has none"""


@dataclass(frozen=True)
class Call:
    """What torch states of a call: shape and dtype of its (first) result, the common dtype of its first two operands, and the types
    of all results (None for one that is absent)."""

    shape: tuple[Dim, ...]
    dtype: DType
    common: DType
    results: Sequence[Any]


ROWS: dict[str, Callable[..., Any]] = {}
"""Name of an ATen overload, without its namespace -> builder."""

KEPT = frozenset({
    "_softmax.default", "_log_softmax.default", "gelu.default", "native_layer_norm.default", "native_group_norm.default",
    "_scaled_dot_product_flash_attention_for_cpu.default", "addmm.default", "embedding.default", "relu.default", "sigmoid.default", "tanh.default", "silu.default", "softplus.default",
    "convolution_backward.default", "where.self", "_native_batch_norm_legit_no_training.default",
})
"""ops that are not decomposed: rows here, of which one kernel may compute all"""

DECOMPOSED = (
    "upsample_bilinear2d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_trilinear3d",
    "upsample_bicubic2d", "grid_sampler_2d", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
    "native_group_norm_backward", "native_layer_norm_backward", "native_batch_norm_backward", "std", "std_mean", "var_mean",
    "linalg_vector_norm", "norm", "_softmax_backward_data", "_log_softmax_backward_data", "gelu_backward", "silu_backward",
    "elu_backward", "leaky_relu_backward", "hardtanh_backward", "threshold_backward", "nll_loss_forward", "nll_loss_backward",
    "nll_loss2d_forward", "elu", "leaky_relu", "hardtanh", "logsumexp", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "select_scatter", "slice_scatter", "index_select",
    "max_pool2d_with_indices_backward", "embedding_dense_backward", "addmv", "addbmm", "fmax", "fmin", "ldexp", "adaptive_max_pool2d", "index_reduce", "put", "nll_loss2d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "reflection_pad3d_backward", "_adaptive_avg_pool2d_backward", "pixel_shuffle", "pixel_unshuffle", "im2col", "unfold",
    "unfold_backward", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "cumprod",
    "select_backward", "slice_backward", "diagonal_scatter", "isneginf", "isposinf", "heaviside", "logaddexp", "logaddexp2",
    "nan_to_num", "sgn", "trace", "xlogy", "dist", "index_add", "index_copy", "index_fill", "masked_fill", "renorm", "glu",
    "glu_backward", "soft_margin_loss", "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "affine_grid_generator",
)
"""further ops that torch's own decompositions replace"""


def _row(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(build: Callable[..., Any]) -> Callable[..., Any]:
        ROWS.update(dict.fromkeys(names, build))
        return build

    return add


def _number(value: Any, dtype: DType, shape: Sequence[Dim] = ()) -> Node:
    """Return a tensor filled with a number, or with the value of an expression of dims."""
    if isinstance(value, d.Expr):
        return atomic.cast(atomic.dim_fill(value, shape, i64), dtype)
    return atomic.fill(dtype.numpy.type(value).item() if dtype.kind != "float" else float(value), shape, dtype)


def _cast(x: Any, dtype: DType) -> Node:
    """Return a tensor or a number as a tensor of this dtype. A conversion to bool asks for what is not 0."""
    if not isinstance(x, Node):
        return _number(x, dtype)
    if dtype is bool_ and x.dtype is not bool_:
        return c.not_equal(x, atomic.fill(0, x.shape, x.dtype))
    return atomic.cast(x, dtype)


def _wide(dtype: DType) -> DType:
    """Return the dtype in which torch computes: f32 for narrow floats."""
    return f32 if dtype in (f16, bf16) else dtype


def _to(x: Node, shape: Sequence[Dim]) -> Node:
    """Return x, broadcast to a shape."""
    return broadcast_to(x, tuple(shape))


def _real(build: Callable[..., Node]) -> Callable[..., Node]:
    """Return a row: a function of real numbers, computed in f32 at least."""
    return lambda call, *xs: atomic.cast(build(*_together(_wide(call.dtype), *xs)), call.dtype)


def _together(dtype: DType, *xs: Any) -> list[Node]:
    """Return tensors and numbers as tensors of one dtype and shape."""
    nodes = [_cast(x, dtype) for x in xs]
    shape = broadcast_shape("operands", *nodes)
    return [_to(n, shape) for n in nodes]


def _like(x: Node, value: float) -> Node:
    return atomic.fill(value, x.shape, x.dtype)


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _signed(x: Node, size: Node) -> Node:
    """Return `size` with the sign of x."""
    return c.where(c.less(x, 0.0), c.neg(size), size)


def _sinh(x: Node) -> Node:
    size = c.abs(x)
    small = c.expm1(c.minimum(size, 1.0))
    root = c.exp(size * 0.5)                              # exp(|x|) overflows before sinh does
    return _signed(x, c.where(c.less(size, 1.0), (small + small / (small + 1.0)) * 0.5, (root * 0.5) * root - (0.5 / root) / root))


def _cosh(x: Node) -> Node:
    root = c.exp(c.abs(x) * 0.5)
    return (root * 0.5) * root + (0.5 / root) / root


HUGE = 1e8
"""number beyond which √(x² ± 1) is x in f64, and whose square no dtype overflows at"""


def _asinh(x: Node) -> Node:
    size = c.abs(x)
    near = c.minimum(size, HUGE)
    square = near * near
    return _signed(x, c.where(c.less(size, HUGE), c.log1p(near + square / (atomic.sqrt(square + 1.0) + 1.0)),
                              c.log(size) + math.log(2)))


def _acosh(x: Node) -> Node:
    over = c.minimum(x, HUGE) - 1.0
    return c.where(c.less(x, HUGE), c.log1p(over + atomic.sqrt(over * over + over * 2.0)), c.log(x) + math.log(2))


def _atanh(x: Node) -> Node:
    size = c.abs(x)
    return _signed(x, c.log1p((size * 2.0) / (1.0 - size)) * 0.5)


def _atan(x: Node) -> Node:
    """arctan: arguments beyond 1 are inverted, two halvings of the angle leave |t| ≤ tan(π / 16), then Taylor's series."""
    size = c.abs(x)
    over = c.greater(size, 1.0)
    t = c.where(over, c.div(1.0, size), size)
    for _ in range(2):
        t = t / (atomic.sqrt(t * t + 1.0) + 1.0)
    square, series = t * t, _like(t, 0.0)
    for k in reversed(range(13)):
        series = series * square + (-1.0) ** k / (2 * k + 1)
    angle = t * series * 4.0
    return _signed(x, c.where(over, math.pi / 2 - angle, angle))


def _atan2(y: Node, x: Node) -> Node:
    a, b = c.abs(y), c.abs(x)
    both = c.equals(a, math.inf) & c.equals(b, math.inf)
    ratio = c.where(c.equals(a, 0.0), 0.0 * a, c.where(both, _like(a, 1.0), a / b))
    ratio = c.where(c.is_nan(x) | c.is_nan(y), x + y, ratio)
    negative = c.less(x, 0.0) | (c.equals(x, 0.0) & c.less(atomic.reciprocal(x), 0.0))
    below = c.less(y, 0.0) | (c.equals(y, 0.0) & c.less(atomic.reciprocal(y), 0.0))
    angle = _atan(ratio)
    angle = c.where(negative, math.pi - angle, angle)
    return c.where(below, c.neg(angle), angle)


for _name, _build in {
    "sqrt": atomic.sqrt, "rsqrt": c.rsqrt, "reciprocal": atomic.reciprocal, "exp": c.exp, "exp2": atomic.exp2, "expm1": c.expm1,
    "log": c.log, "log2": atomic.log2, "log10": lambda x: atomic.log2(x) * math.log10(2), "log1p": c.log1p, "sin": atomic.sin,
    "cos": c.cos, "tan": c.tan, "tanh": c.tanh, "sigmoid": c.sigmoid, "erf": c.erf, "erfc": c.erfc, "silu": c.silu, "sinh": _sinh,
    "cosh": _cosh, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh, "atan": _atan,
    "asin": lambda x: _atan(x / atomic.sqrt((1.0 - x) * (x + 1.0))),
    "acos": lambda x: 2.0 * _atan(atomic.sqrt((1.0 - x) / (x + 1.0))),
}.items():  # fmt: skip
    _row(f"{_name}.default")(_real(_build))
_row("atan2.default")(_real(_atan2))
_row("copysign.Tensor", "copysign.Scalar")(_real(lambda x, y: c.where(
    c.less(y, 0.0) | (c.equals(y, 0.0) & c.less(atomic.reciprocal(y), 0.0)), c.neg(c.abs(x)), c.abs(x))))
_row("gelu.default")(lambda call, x, approximate="none": c.gelu(x, approximate=approximate))


def _whole(build: Callable[[Node], Node]) -> Callable[..., Node]:
    return lambda call, x, **_: build(x) if x.dtype.kind == "float" else x


for _name, _build in {"floor": atomic.floor, "ceil": c.ceil, "trunc": c.trunc, "round": c.round}.items():
    _row(f"{_name}.default")(_whole(_build))


_row("neg.default")(lambda call, x: c.neg(x))
_row("abs.default")(lambda call, x: c.abs(x) if x.dtype.kind != "bool" else x)
_row("relu.default")(lambda call, x: c.relu(x) if x.dtype.kind == "float" else c.maximum(x, 0))
_row("sign.default")(lambda call, x: c.sign(x) if x.dtype.kind != "bool" else x)
_row("isnan.default")(lambda call, x: c.is_nan(x) if x.dtype.kind == "float" else atomic.fill(False, x.shape, bool_))
_row("isinf.default")(lambda call, x: c.equals(c.abs(x), math.inf) if x.dtype.kind == "float" else atomic.fill(False, x.shape, bool_))
_row("logical_not.default")(lambda call, x: atomic.logical_not(_cast(x, bool_)))
_row("bitwise_not.default")(lambda call, x: atomic.logical_not(x))


def _sums(build: Callable[[Node, Node], Node]) -> Callable[..., Node]:
    def row(call: Call, x: Any, y: Any, alpha: Any = 1) -> Node:
        if call.dtype is bool_:
            return c.bit_or(*_together(bool_, x, y)) if build is c.add and alpha == 1 else refuse("a sum of booleans")
        a, b = _together(_wide(call.dtype), x, y)
        return atomic.cast(build(a, b if alpha == 1 else c.mul(b, _number(alpha, b.dtype))), call.dtype)

    return row


_row("add.Tensor", "add.Scalar")(_sums(c.add))
_row("sub.Tensor", "sub.Scalar")(_sums(c.sub))


def _numeric(build: Callable[[Node, Node], Node], on_bool: Callable[[Node, Node], Node] | None = None) -> Callable[..., Node]:
    """Return a row of an operation of two numbers, in the dtype of the result; on_bool: the same of booleans."""

    def row(call: Call, x: Any, y: Any) -> Node:
        a, b = _together(_wide(call.dtype), x, y)
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


def _fmod(a: Node, b: Node) -> Node:
    """The remainder of a / b with the sign of a."""
    rest = c.mod(a, b)
    zero = _like(rest, 0)
    other = c.not_equal(rest, zero) & c.not_equal(c.less(a, zero), c.less(b, zero))
    return c.where(other, c.sub(rest, b), rest)


def _fmod_float(a: Node, b: Node) -> Node:
    rest = c.mod(c.abs(a), c.abs(b))
    return _signed(a, rest)


_row("mul.Tensor", "mul.Scalar")(_numeric(c.mul, c.bit_and))
_row("maximum.default")(_numeric(c.maximum, c.bit_or))
_row("minimum.default")(_numeric(c.minimum, c.bit_and))
_row("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")(_numeric(c.mod))
_row("fmod.Tensor", "fmod.Scalar")(_numeric(lambda a, b: _fmod_float(a, b) if a.dtype.kind == "float" else _fmod(a, b)))
_row("floor_divide.default", "floor_divide.Scalar")(_numeric(_floor_quotient))
_row("pow.Tensor_Tensor", "pow.Scalar")(_numeric(c.pow))
_row("bitwise_and.Tensor", "bitwise_and.Scalar", "__and__.Tensor")(_numeric(c.bit_and, c.bit_and))
_row("bitwise_or.Tensor", "bitwise_or.Scalar", "__or__.Tensor")(_numeric(c.bit_or, c.bit_or))
_row("bitwise_xor.Tensor", "bitwise_xor.Scalar", "__xor__.Tensor")(_numeric(c.bit_xor, c.bit_xor))
_row("bitwise_left_shift.Tensor", "__lshift__.Tensor", "__lshift__.Scalar")(_numeric(c.left_shift))
_row("bitwise_right_shift.Tensor", "__rshift__.Tensor", "__rshift__.Scalar")(_numeric(c.right_shift))


@_row("pow.Tensor_Scalar")
def _pow(call: Call, x: Node, exponent: Any) -> Node:
    base = _cast(x, _wide(call.dtype))
    if base.dtype.kind == "float" and isinstance(exponent, (int, float)):
        return atomic.cast(c.pow(base, exponent), call.dtype)
    return _numeric(c.pow)(call, x, exponent)


@_row("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "true_divide.Tensor")
def _div(call: Call, x: Any, y: Any, rounding_mode: str | None = None) -> Node:
    build = {None: c.div, "floor": _floor_quotient, "trunc": _trunc_quotient}[rounding_mode]
    return _numeric(build)(call, x, y)


for _name, _build in {"lt": c.less, "le": c.less_equal, "gt": c.greater, "ge": c.greater_equal, "eq": c.equals, "ne": c.not_equal}.items():

    def _compare(call: Call, x: Any, y: Any, _build: Callable[..., Node] = _build, _name: str = _name) -> Node:
        a, b = _together(call.common, x, y)
        if a.dtype is bool_ and _name not in ("eq", "ne"):
            a, b = _cast(a, i32), _cast(b, i32)
        return _build(a, b)

    _row(f"{_name}.Tensor", f"{_name}.Scalar")(_compare)

for _name, _build in {"and": c.bit_and, "or": c.bit_or, "xor": c.bit_xor}.items():
    _row(f"logical_{_name}.default")(lambda call, x, y, _build=_build: _build(*_together(bool_, x, y)))


@_row("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(call: Call, condition: Node, x: Any, y: Any) -> Node:
    a, b = _cast(x, call.dtype), _cast(y, call.dtype)
    return c.where(_cast(condition, bool_), a, b)


@_row("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default")
def _clamp(call: Call, x: Node, low: Any = None, high: Any = None, **named: Any) -> Node:
    low, high = named.get("min", low), named.get("max", high)
    dtype = _extreme(call)
    out = _cast(x, dtype)
    if low is not None:
        out = c.maximum(*_together(dtype, out, low))
    return _cast(out if high is None else c.minimum(*_together(dtype, out, high)), call.dtype)


@_row("_to_copy.default", "convert_element_type.default", "prims.convert_element_type.default")
def _convert(call: Call, x: Node, *_: Any) -> Node:
    return _cast(x, call.dtype)


_row("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "contiguous.default", "prims.device_put.default",
     "prims.view_of.default")(lambda call, x, *_, **__: x)
_row("copy.default")(lambda call, x, source, *_: _to(_cast(source, call.dtype), call.shape))


for _prim, _name in {
    "div": "div.Tensor", "abs": "abs.default", "neg": "neg.default", "where": "where.self", "add": "add.Tensor", "mul": "mul.Tensor",
    "sub": "sub.Tensor", "eq": "eq.Tensor", "ne": "ne.Tensor", "lt": "lt.Tensor", "gt": "gt.Tensor", "le": "le.Tensor",
    "ge": "ge.Tensor", "sqrt": "sqrt.default", "exp": "exp.default", "log": "log.default", "rsqrt": "rsqrt.default",
}.items():  # fmt: skip
    _row(f"prims.{_prim}.default")(ROWS[_name])


# ---- new tensors -----------------------------------------------------------------------------------------------------

_row("full.default", "new_full.default")(lambda call, *args, **_: _number(args[-1], call.dtype, call.shape))
_row("full_like.default", "fill.Scalar")(lambda call, x, value, **_: _number(value, call.dtype, call.shape))
_row("fill.Tensor")(lambda call, x, value: _to(_cast(value, call.dtype), call.shape))
_row("scalar_tensor.default")(lambda call, value, **_: _number(value, call.dtype))
_row("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default", "empty_strided.default",
     "new_empty.default", "new_empty_strided.default", "empty_permuted.default")(lambda call, *_, **__: _number(0, call.dtype, call.shape))
_row("ones.default", "ones_like.default", "new_ones.default")(lambda call, *_, **__: _number(1, call.dtype, call.shape))


@_row("arange.start_step", "arange.start", "arange.default")
def _arange(call: Call, start: Any, end: Any = None, step: Any = 1) -> Node:
    begin = 0 if end is None else start
    counting = f64 if call.dtype.kind == "float" else i64
    places = atomic.cast(atomic.iota(call.shape, 0, i64), counting)
    return atomic.cast(_to(_number(begin, counting), call.shape) + places * _to(_number(step, counting), call.shape), call.dtype)


@_row("prims.iota.default")
def _iota(call: Call, length: Any, start: Any = 0, step: Any = 1, **_: Any) -> Node:
    return _arange(call, start, NO_END, step)


# ---- reductions ------------------------------------------------------------------------------------------------------


def _axes(x: Node, dim: Any) -> tuple[int, ...]:
    """Return the axes of a dim, several dims, or (None, []) all."""
    if dim is None or dim == []:
        return tuple(range(x.rank))
    return tuple(sorted({a % max(x.rank, 1) for a in (dim if isinstance(dim, (tuple, list)) else [dim])} if x.rank else ()))


def _reduce(build: Callable[..., Node], dtype: Callable[[Call], DType] = lambda call: call.dtype) -> Callable[..., Node]:
    """Return a row of a reduction build(x, axes, keepdims=…); dtype: in which it is computed."""

    def row(call: Call, x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Node:
        axes, operand = _axes(x, dim), _cast(x, dtype(call))
        return _cast(build(operand, axes, keepdims=keepdim) if axes else operand, call.dtype)

    return row


def _mean(x: Node, axes: Any, keepdims: bool = False) -> Node:
    return c.mean(x, axes, keepdims=keepdims)  # type: ignore[no-any-return]


def _extreme(call: Call) -> DType:
    return i32 if call.dtype is bool_ else call.dtype


_row("sum.dim_IntList", "sum.default")(_reduce(c.sum))
_row("mean.dim", "mean.default")(_reduce(_mean))
_row("amax.default", "max.default")(_reduce(c.reduce_max, _extreme))
_row("amin.default", "min.default")(_reduce(c.reduce_min, _extreme))
_row("any.default", "any.dim", "any.dims")(_reduce(c.any, lambda call: bool_))
_row("all.default", "all.dim", "all.dims")(_reduce(c.all, lambda call: bool_))
_row("prod.default", "prod.dim_int")(_reduce(c.prod))


@_row("var.correction", "var.dim", "var.default")
def _var(call: Call, x: Node, dim: Any = None, unbiased: Any = True, keepdim: bool = False, **named: Any) -> Node:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = named.get("correction", int(unbiased))
    correction = 1 if correction is None else correction
    axes, wide = _axes(x, dim), _cast(x, _wide(call.dtype))
    count = d.product([x.shape[a] for a in axes])
    spread_out = wide - _to(_mean(wide, axes, keepdims=True), wide.shape) if axes else wide - wide
    squares = c.sum(spread_out * spread_out, axes, keepdims=keepdim) if axes else spread_out
    divisor = c.maximum(_number(count, wide.dtype) - float(correction), 0.0)
    return atomic.cast(squares / _to(divisor, squares.shape), call.dtype)


def _best(build: Callable[[Node, int], Node]) -> Callable[..., Node]:
    def row(call: Call, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
        if x.rank == 0:
            return _number(0, i64)
        flat = atomic.reshape(x, (x.type.size(),)) if dim is None else x
        axis = 0 if dim is None else dim % x.rank
        index = atomic.cast(build(_cast(flat, i32) if x.dtype is bool_ else flat, axis), i64)
        return atomic.reshape(index, call.shape)

    return row


def _argmin(x: Node, axis: int) -> Node:
    return c.argmax(c.neg(x) if x.dtype.kind == "float" else atomic.logical_not(x), axis)  # type: ignore[no-any-return]


_row("argmax.default")(_best(c.argmax))
_row("argmin.default")(_best(_argmin))


def _with_index(value: str, index: str) -> Callable[..., Any]:
    def row(call: Call, x: Node, dim: int, keepdim: bool = False) -> Any:
        at = Call(call.shape, i64, i64, ())
        return ROWS[value](call, x, dim, keepdim), ROWS[index](at, x, dim, keepdim)

    return row


_row("max.dim")(_with_index("amax.default", "argmax.default"))
_row("min.dim")(_with_index("amin.default", "argmin.default"))


def _over(operation: Callable[..., Any]) -> Callable[..., Node]:
    """Return a row of softmax or log_softmax: computed in f32 at least."""
    return lambda call, x, dim, *_: atomic.cast(operation(_cast(x, _wide(call.dtype)), dim), call.dtype) if x.rank else (
        operation(atomic.reshape(_cast(x, call.dtype), (1,)), 0).reshape(()))


_row("_softmax.default", "softmax.int")(_over(c.softmax))
_row("_log_softmax.default", "log_softmax.int")(_over(c.log_softmax))


@_row("cumsum.default")
def _cumsum(call: Call, x: Node, dim: int, **_: Any) -> Node:
    operand = _cast(x, call.dtype)
    return c.cumsum(operand, dim) if x.rank else operand  # type: ignore[no-any-return]


def _ordered(x: Node, axis: int, k: Dim, descending: bool) -> tuple[Node, Node]:
    """Return the first k elements along an axis in order, and their indices (i64): equal ones by index, NaN as the largest."""
    n = x.shape[axis]
    if not (isinstance(k, int) and isinstance(n, int)):
        refuse("the order of an axis whose size is a dim")
    moved = _moved(_cast(x, i32) if x.dtype is bool_ else x, axis, -1)
    values, index = c.topk(moved, k=k) if descending else c.topk(c.flip(moved, -1), k=n)
    if not descending:                                    # all of them, from the back: ties in order, NaN last
        last = (moved.rank - 1,)
        values, index = c.flip(values, last), (n - 1) - c.flip(index, last)
        bounds = [(0, s, 1) for s in moved.shape[:-1]] + [(0, k, 1)]
        values, index = atomic.slice(values, bounds), atomic.slice(index, bounds)
    return _cast(_moved(values, -1, axis), x.dtype), atomic.cast(_moved(index, -1, axis), i64)


def _moved(x: Node, source: int, target: int) -> Node:
    order = list(range(x.rank))
    order.insert(target % x.rank, order.pop(source % x.rank))
    return atomic.permute(x, order)


@_row("sort.default", "sort.stable")
def _sort(call: Call, x: Node, dim: int = -1, descending: bool = False, **named: Any) -> Any:
    dim, descending = named.get("dim", dim), named.get("descending", descending)
    return _ordered(x, dim % x.rank, x.shape[dim], descending) if x.rank else (x, _number(0, i64))


@_row("topk.default")
def _topk(call: Call, x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return _ordered(x, dim % x.rank, k, largest) if x.rank else (x, _number(0, i64))


# ---- shapes ----------------------------------------------------------------------------------------------------------

_row("view.default", "reshape.default", "_unsafe_view.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default",
     "flatten.using_ints", "expand_copy.default", "prims.broadcast_in_dim.never")(lambda call, x, *_: atomic.reshape(x, call.shape))
_row("permute.default")(lambda call, x, dims: atomic.permute(x, [i % max(x.rank, 1) for i in dims]))
_row("transpose.int")(lambda call, x, a, b: x.transpose(a, b) if x.rank else x)
_row("t.default")(lambda call, x: atomic.permute(x, (1, 0)) if x.rank == 2 else x)
_row("expand.default")(lambda call, x, *_, **__: _to(x, call.shape))
_row("flip.default")(lambda call, x, dims: c.flip(x, dims) if dims else x)


@_row("slice.Tensor")
def _slice(call: Call, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Node:
    end = None if isinstance(end, int) and end >= NO_END else end
    return x[(slice(None),) * (dim % x.rank) + (slice(start, end, step),)]


@_row("select.int")
def _select(call: Call, x: Node, dim: int, index: Any) -> Node:
    return x[(slice(None),) * (dim % x.rank) + (index,)]


@_row("cat.default")
def _cat(call: Call, tensors: Sequence[Node], dim: int = 0) -> Node:
    parts = [_cast(t, call.dtype) for t in tensors if not (t.rank == 1 and t.shape[0] == 0 and len(call.shape) != 1)]
    return c.concat(*parts, axis=dim % len(call.shape)) if len(parts) > 1 else parts[0]


@_row("split_with_sizes.default", "split.Tensor")
def _split(call: Call, x: Node, *_: Any) -> Any:
    return FUNCTIONS["split"](x, [shape[_[1] if len(_) > 1 else 0] for shape, _dtype in call.results], _[1] if len(_) > 1 else 0)


@_row("repeat.default")
def _repeat(call: Call, x: Node, repeats: Sequence[Any]) -> Node:
    old = (1,) * (len(repeats) - x.rank) + x.shape
    apart = [s for size in old for s in (1, size)]
    wide = [s for times, size in zip(repeats, old, strict=True) for s in (times, size)]
    return atomic.reshape(atomic.expand(atomic.reshape(x, apart), wide), call.shape)


@_row("constant_pad_nd.default")
def _pad(call: Call, x: Node, amounts: Sequence[Any], value: Any = 0) -> Node:
    pairs = [(0, 0)] * (x.rank - len(amounts) // 2) + list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    cut = [(-a if isinstance(a, int) and a < 0 else 0, s + b if isinstance(b, int) and b < 0 else s, 1)
           for s, (a, b) in zip(x.shape, pairs, strict=True)]
    grown = [tuple(0 if isinstance(e, int) and e < 0 else e for e in pair) for pair in pairs]
    return atomic.pad(atomic.slice(x, cut), grown, x.dtype.numpy.type(value).item())  # type: ignore[arg-type]


@_row("as_strided.default")
def _as_strided(call: Call, x: Node, size: Any, stride: Sequence[Any], offset: Any = 0) -> Node:
    index = _number(offset or 0, i64, call.shape)
    for axis, step in enumerate(stride):
        index = index + atomic.iota(call.shape, axis, i64) * step
    return atomic.gather(atomic.reshape(x, (x.type.size(),)), index)


@_row("diagonal.default")
def _diagonal(call: Call, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    a, b = dim1 % x.rank, dim2 % x.rank
    rest = [i for i in range(x.rank) if i not in (a, b)]
    flat = atomic.reshape(atomic.permute(x, [*rest, a, b]), (*(x.shape[i] for i in rest), x.shape[a] * x.shape[b]))
    places = atomic.iota((call.shape[-1],), 0, i64) * (x.shape[b] + 1)
    return atomic.gather(flat, places + (offset if offset >= 0 else -offset * x.shape[b]), axis=len(rest))


# ---- products --------------------------------------------------------------------------------------------------------


def _product(x: Node, y: Node) -> Node:
    """x · y; a transposed weight is read as it lies."""
    if y.rank == 2 and x.rank == 2:
        weight = y.inputs[0] if y.is_op("permute") and y.attrs["axes"] == (1, 0) else None
        if weight is not None and x.dtype.kind == "float":
            return c.linear(x, weight)  # type: ignore[no-any-return]
    return c.dot(x, y)  # type: ignore[no-any-return]


_row("mm.default", "bmm.default", "matmul.default")(lambda call, x, y: _product(x, y))
_row("mv.default", "dot.default")(lambda call, x, y: atomic.reshape(c.dot(
    atomic.reshape(x, (1, x.shape[0])) if x.rank == 1 else x, atomic.reshape(y, (y.shape[0], 1))), call.shape))


@_row("addmm.default", "baddbmm.default")
def _addmm(call: Call, bias: Node, x: Node, y: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    if alpha == 1 and beta == 1 and bias.rank == 1 and y.is_op("permute") and x.dtype.kind == "float":
        if bias.shape[0] == y.shape[-1]:
            return c.linear(x, y.inputs[0], bias)  # type: ignore[no-any-return]
    out = _product(x, y)
    out = out if alpha == 1 else c.mul(out, _number(alpha, out.dtype))
    return out if beta == 0 else c.add(out, bias if beta == 1 else c.mul(bias, _number(beta, bias.dtype)))


def _attention(q: Node, k: Node, v: Node, causal: bool, mask: Node | None, scale: float | None) -> tuple[Node, Node]:
    """Return attention of [b, h, t, d] and the logarithms of its sums. Without a mask it is one op, for which there are kernels."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = _wide(q.dtype)
    scores = c.dot(_cast(q, wide), _moved(_cast(k, wide), -1, -2)) * float(factor)
    if causal:
        rows, columns = (atomic.iota(scores.shape[-2:], axis, i32) for axis in (0, 1))
        scores = c.where(c.less_equal(columns, rows), scores, -math.inf)
    if mask is not None:
        scores = scores + _cast(mask, wide) if mask.dtype is not bool_ else c.where(mask, scores, -math.inf)
    if mask is None:
        swapped = [atomic.permute(x, (0, 2, 1, 3)) for x in (q, k, v)]
        out = atomic.permute(attention(*swapped, scale=float(factor), causal=causal), (0, 2, 1, 3))
    else:
        out = atomic.cast(c.dot(c.softmax(scores), _cast(v, wide)), q.dtype)
    return out, c.logsumexp(scores)


@_row("_scaled_dot_product_flash_attention_for_cpu.default")
def _sdpa(call: Call, q: Node, k: Node, v: Node, dropout: float = 0.0, causal: bool = False, *, attn_mask: Node | None = None,
          scale: float | None = None) -> Any:
    if dropout:
        refuse("attention with dropout")
    out, sums = _attention(q, k, v, causal, attn_mask, scale)
    return out, _cast(sums, call.results[1][1])


@_row("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _sdpa_backward(call: Call, grad: Node, q: Node, k: Node, v: Node, out: Node, sums: Node, dropout: float, causal: bool, *,
                   attn_mask: Node | None = None, scale: float | None = None) -> Any:
    return tuple(vjp([_attention(q, k, v, causal, attn_mask, scale)[0]], [grad], [q, k, v]))


def _conv(x: Node, weight: Node, bias: Node | None = None, *, stride: Any, padding: Any, dilation: Any, groups: int) -> Node:
    """c.conv, and the same of integers: windows times weights, summed."""
    if x.dtype.kind == "float":
        return c.conv(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    n, per, kernel = x.shape[0], weight.shape[0] // groups, weight.shape[2:]
    seen = c.windows(x, kernel, stride=stride, padding=padding, dilation=dilation)
    places = seen.shape[2 + len(kernel):]
    columns = atomic.reshape(seen, (n, groups, 1, d.product(weight.shape[1:]), d.product(places)))
    rows = atomic.reshape(weight, (1, groups, per, d.product(weight.shape[1:]), 1))
    out = atomic.reshape(c.sum(columns * rows, 3), (n, weight.shape[0], *places))
    return out if bias is None else out + atomic.reshape(bias, (weight.shape[0], *(1,) * len(places)))


def _convolve(call: Call, x: Node, weight: Node, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
              transposed: bool, groups: int, places: Sequence[Dim]) -> Node:
    axes = x.rank - 2
    stride, padding, dilation = (list(v) * (axes if len(v) == 1 else 1) for v in (stride, padding, dilation))
    if not transposed:
        return _conv(x, weight, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation), groups=groups)
    kernel = weight.shape[2:]
    bounds: list[Any] = [(0, s, 1) for s in (x.shape[0], weight.shape[1] * groups)]
    margins: list[Any] = [(0, 0), (0, 0)]
    for axis in range(axes):                              # zeros between the elements, then a convolution by the flipped kernel
        x = spread(x, axis + 2, stride[axis])
        covers = dilation[axis] * (kernel[axis] - 1)
        lacking = places[axis] + padding[axis] - (x.shape[axis + 2] + covers)
        margins.append((covers, covers + (max(lacking, 0) if isinstance(lacking, int) else 0)))
        bounds.append((padding[axis], padding[axis] + places[axis], 1))
    turned = c.flip(weight, tuple(range(2, weight.rank)))
    turned = atomic.reshape(turned, (groups, weight.shape[0] // groups, weight.shape[1], *kernel))
    turned = atomic.permute(turned, (0, 2, 1, *range(3, turned.rank)))
    turned = atomic.reshape(turned, (groups * weight.shape[1], weight.shape[0] // groups, *kernel))
    full = _conv(x, turned, stride=1, padding=margins[2:], dilation=tuple(dilation), groups=groups)
    return atomic.slice(full, bounds)


@_row("convolution.default")
def _convolution(call: Call, x: Node, weight: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
                 output_padding: Any, groups: int) -> Node:
    if not transposed and bias is not None and len(stride) == x.rank - 2:
        return _conv(x, weight, bias, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation), groups=groups)
    out = _convolve(call, x, weight, stride, padding, dilation, transposed, groups, call.shape[2:])
    return out if bias is None else out + atomic.reshape(bias, (bias.shape[0], *(1,) * (x.rank - 2)))


@_row("convolution_backward.default")
def _convolution_backward(call: Call, grad: Node, x: Node, weight: Node, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
                          transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool]) -> Any:
    out = _convolve(call, x, weight, stride, padding, dilation, transposed, groups, grad.shape[2:])
    wanted = [o for o, needed in zip((x, weight), mask, strict=False) if needed]
    slopes = iter(vjp([out], [grad], wanted))
    to_x, to_weight = (next(slopes) if needed else None for needed in mask[:2])
    to_bias = c.sum(grad, (0, *range(2, grad.rank))) if mask[2] else None
    return to_x, to_weight, to_bias


@_row("_cdist_forward.default")
def _cdist(call: Call, x: Node, y: Node, p: float, mode: Any = None) -> Node:
    """Return the p-norms of the differences of all pairs of rows."""
    apart = c.abs(atomic.reshape(x, (*x.shape[:-1], 1, x.shape[-1])) - atomic.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:])))
    last = apart.rank - 1
    if p in (0, math.inf):
        return atomic.cast(c.reduce_max(apart, last) if p else c.sum(_cast(_cast(apart, bool_), apart.dtype), last), call.dtype)
    total = c.sum(apart if p == 1 else c.square(apart) if p == 2 else c.pow(apart, float(p)), last)
    return total if p == 1 else atomic.sqrt(total) if p == 2 else c.pow(total, 1 / p)


@_row("_pdist_forward.default")
def _pdist(call: Call, x: Node, p: float = 2) -> Node:
    n = x.shape[0]
    if not isinstance(n, int):
        refuse("pairs of a number of rows that is a dim")
    pairs = np.array([i * n + j for i in range(n) for j in range(i + 1, n)], np.int64)
    return atomic.gather(atomic.reshape(_cdist(call, x, x, p), (n * n,)), leaves.constant(pairs))


# ---- normalisation ---------------------------------------------------------------------------------------------------


def _moments(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """Return mean and 1 / √(variance + eps) over axes, which stay with size 1."""
    return _mean(x, axes, keepdims=True), c.rsqrt(c.var(x, axes, keepdims=True) + eps)


@_row("native_layer_norm.default")
def _layer_norm(call: Call, x: Node, normalized: Sequence[Any], weight: Node | None, bias: Node | None, eps: float) -> Any:
    count = len(normalized)
    lead, size = x.shape[:x.rank - count], d.product(x.shape[x.rank - count:])
    wide = atomic.reshape(x, (*lead, size))
    flat = [None if p is None else atomic.reshape(p, (size,)) for p in (weight, bias)]
    out = c.layer_norm(wide, *flat, eps=eps) if flat[0] is not None or flat[1] is None else c.layer_norm(wide, eps=eps) + flat[1]
    dtype = call.results[1][1]
    moments = _moments(_cast(wide, _wide(x.dtype)), (len(lead),), eps)
    return (atomic.reshape(out, x.shape), *(atomic.cast(atomic.reshape(m, (*lead, *(1,) * count)), dtype) for m in moments))


@_row("native_group_norm.default")
def _group_norm(call: Call, x: Node, weight: Node | None, bias: Node | None, n: Any, channels: Any, area: Any, groups: int,
                eps: float) -> Any:
    out = c.group_norm(x, weight, bias, groups=groups, eps=eps)
    wide = atomic.reshape(_cast(x, _wide(x.dtype)), (n, groups, x.type.size() // (n * groups)))
    dtype = call.results[1][1]
    return (out, *(atomic.cast(atomic.reshape(m, (n, groups)), dtype) for m in _moments(wide, (2,), eps)))


@_row("_native_batch_norm_legit_no_training.default")
def _batch_norm(call: Call, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, momentum: float, eps: float) -> Any:
    return c.batch_norm(x, mean, var, weight, bias, eps=eps), *(_number(0, t, s) for s, t in call.results[1:])


# ---- windows ---------------------------------------------------------------------------------------------------------


def _window(x: Node, size: Any, stride: Any, padding: Any, dilation: Any, places: Sequence[Dim]) -> dict[str, Any]:
    """Return the attributes of windows over the last axes. Padding behind is as much as the number of windows needs."""
    axes = len(size)
    size, stride, padding, dilation = (list(v) * (axes if len(v) == 1 else 1) for v in (size, stride or size, padding, dilation))
    pairs = []
    for axis, (k, step, pad, apart) in enumerate(zip(size, stride, padding, dilation, strict=True)):
        need = (places[axis] - 1) * step + apart * (k - 1) + 1 - x.shape[x.rank - axes + axis] - pad
        pairs.append((pad, max(need, pad) if isinstance(need, int) else pad))
    return {"size": tuple(size), "stride": tuple(stride), "padding": tuple(pairs), "dilation": tuple(dilation)}


@_row("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool(call: Call, x: Node, size: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False) -> Any:
    axes = 2 if "2d" in str(len(call.shape)) else len(size) if len(size) > 1 else x.rank - 2
    size = list(size) * (axes if len(size) == 1 else 1)
    places = call.shape[-axes:]
    how = _window(x, size, stride, padding, dilation, places)
    values = c.max_pool(x, **how)
    lead = x.shape[:-axes]
    seen = c.windows(x, value=-math.inf if x.dtype.kind == "float" else int(x.dtype.min), **how)
    best = c.argmax(atomic.reshape(seen, (*lead, math.prod(how["size"]), *places)), len(lead))
    index: Any = None
    for axis in range(axes):                              # place of the best in the window, then of the window in x
        after = math.prod(how["size"][axis + 1:])
        inside = c.mod(c.floor_div(best, after), how["size"][axis])
        at = atomic.iota(best.shape, len(lead) + axis, i32) * how["stride"][axis] + inside * how["dilation"][axis]
        at = at - how["padding"][axis][0]
        index = at if index is None else index * x.shape[-axes + axis] + at
    return values, atomic.cast(index, i64)


@_row("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(call: Call, x: Node, size: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False, count_padding: bool = True,
              divisor: Any = None) -> Node:
    if x.dtype.kind != "float":
        refuse("an average of integers")
    axes = len(size)
    places = call.shape[-axes:]
    how = _window(x, size, stride, padding, (1,), places)
    plain = all(a == b for a, b in how["padding"])
    if divisor is None and (plain or not count_padding):
        return c.avg_pool(x, how["size"], stride=how["stride"], padding=how["padding"], count_padding=count_padding)
    inner = tuple(range(x.rank - axes, x.rank))
    total = c.sum(c.windows(_cast(x, _wide(x.dtype)), **how), inner)
    if divisor is not None:
        return atomic.cast(total / float(divisor), x.dtype)
    own = _window(x, size, stride, padding, (1,), places)["padding"]
    given = list(padding) * (axes if len(padding) == 1 else 1)
    ones = atomic.pad(_number(1, total.dtype, x.shape[-axes:]), [(p, p) for p in given], 1)
    rest = tuple((0, after - p) for p, (_, after) in zip(given, own, strict=True))
    count = c.sum(c.windows(ones, **{**how, "padding": rest}), tuple(range(axes)))
    return atomic.cast(total / _to(count, total.shape), x.dtype)


@_row("avg_pool2d_backward.default")
def _avg_pool_backward(call: Call, grad: Node, x: Node, *how: Any) -> Node:
    forward = Call(grad.shape, x.dtype, x.dtype, ())
    return vjp([_avg_pool(forward, x, *how)], [grad], [x])[0]


@_row("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_avg_pool(call: Call, x: Node, sizes: Sequence[Any]) -> Node:
    axes = tuple(range(x.rank - len(sizes), x.rank))
    if all(s == 1 for s in sizes):
        return _mean(x, axes, keepdims=True)
    out = _cast(x, _wide(x.dtype))
    for axis, count in zip(axes, sizes, strict=True):
        length = x.shape[axis]
        if not isinstance(length, int) or not isinstance(count, int):
            refuse("adaptive pooling of a size that is a dim")
        weights = np.zeros((length, count))
        for i in range(count):
            low, high = i * length // count, -(-(i + 1) * length // count)
            weights[low:high, i] = 1 / (high - low)
        out = _moved(c.dot(_moved(out, axis, -1), leaves.constant(weights, out.dtype)), -1, axis)
    return atomic.cast(out, x.dtype)


@_row("_adaptive_avg_pool2d_backward.default")
def _adaptive_backward(call: Call, grad: Node, x: Node) -> Node:
    return vjp([_adaptive_avg_pool(call, x, grad.shape[-2:])], [grad], [x])[0]


# ---- rows and places -------------------------------------------------------------------------------------------------


def _counted(index: Node, size: Dim) -> Node:
    """Return indices of which negative ones count from the back."""
    wide = atomic.cast(index, i64)
    return c.where(c.less(wide, 0), c.add(wide, _number(size, i64)), wide)


def _flat_places(x: Node, axis: int, index: Node) -> Node:
    """Return the places in flattened x of elements with `index` along an axis, and their own position along others."""
    flat: Any = None
    for i, size in enumerate(x.shape):
        at = _counted(index, size) if i == axis else atomic.iota(index.shape, i, i64)
        flat = at if flat is None else c.add(c.mul(flat, _number(size, i64)), at)
    return flat  # type: ignore[no-any-return]


@_row("gather.default")
def _gather(call: Call, x: Node, dim: int, index: Node, **_: Any) -> Node:
    if x.rank == 0 or index.rank == 0:
        flat, index = atomic.reshape(x, (x.type.size(),)), atomic.reshape(index, (index.type.size(),))
        return atomic.reshape(atomic.gather(flat, _counted(index, flat.shape[0])), call.shape)
    return atomic.gather(atomic.reshape(x, (x.type.size(),)), _flat_places(x, dim % x.rank, index))


def _scatter_along(x: Node, dim: int, index: Node, source: Node, mode: str) -> Node:
    """Return x with elements of `source` at the places of _flat_places; of `source`, what lies beyond the index is not read."""
    shape = x.shape
    if x.dtype is bool_ and mode == "add":                # a sum of booleans is True where one of them is
        return _cast(_scatter_along(_cast(x, i32), dim, index, _cast(source, i32), "max"), bool_)
    if x.rank == 0 or index.rank == 0:
        x, index, source = (atomic.reshape(v, (v.type.size(),)) for v in (x, index, source))
        dim = 0
    read = atomic.slice(source, [(0, s, 1) for s in index.shape])
    places = _flat_places(x, dim % x.rank, index)
    flat, places, read = (atomic.reshape(v, (v.type.size(),)) for v in (x, places, read))
    return atomic.reshape(atomic.scatter(flat, places, read, axis=0, mode=mode), shape)


_row("scatter.src")(lambda call, x, dim, index, source: _scatter_along(x, dim, index, _cast(source, x.dtype), "set"))
_row("scatter_add.default")(lambda call, x, dim, index, source: _scatter_along(x, dim, index, source, "add"))


@_row("scatter.value")
def _scatter_value(call: Call, x: Node, dim: int, index: Node, value: Any) -> Node:
    hits = _scatter_along(_number(0, i32, x.shape), dim, index, _number(1, i32, index.shape), "max")     # a place may occur twice
    return c.where(c.greater(hits, 0), _number(value, x.dtype, x.shape), x)


@_row("scatter_reduce.two")
def _scatter_reduce(call: Call, x: Node, dim: int, index: Node, source: Node, reduce: str, include_self: bool = True) -> Node:
    if x.dtype is bool_ or reduce not in ("sum", "amax", "amin", "mean"):
        refuse(f"scatter_reduce by {reduce} of {x.dtype}")
    wide = _cast(x, _wide(x.dtype))
    value = _cast(source, wide.dtype)
    hit = _scatter_along(_number(0, i64, x.shape), dim, index, _number(1, i64, index.shape), "add")
    touched = c.greater(hit, 0)
    if reduce in ("sum", "mean"):
        base = wide if include_self else c.where(touched, _like(wide, 0), wide)
        out = _scatter_along(base, dim, index, value, "add")
        if reduce == "mean":
            count = _cast(c.maximum(hit + 1 if include_self else hit, 1), out.dtype)
            out = out / count if out.dtype.kind == "float" else atomic.idiv(out, count)
        return atomic.cast(out, x.dtype)
    turn = (lambda v: v) if reduce == "amax" else (c.neg if wide.dtype.kind == "float" else atomic.logical_not)
    least = -math.inf if wide.dtype.kind == "float" else int(wide.dtype.min)
    base = turn(wide) if include_self else c.where(touched, _like(wide, least), turn(wide))
    return atomic.cast(turn(_scatter_along(base, dim, index, turn(value), "max")), x.dtype)


def _indexed(x: Node, indices: Sequence[Node | None]) -> tuple[Node, Node, list[int], tuple[Dim, ...]]:
    """Return (x with the indexed axes in front as one, places on it, the other axes, shape of the indices)."""
    chosen = [i for i, index in enumerate(indices) if index is not None]
    nodes = [_counted(_integers(indices[i]), x.shape[i]) for i in chosen]
    shape = broadcast_shape("index", *nodes)
    others = [i for i in range(x.rank) if i not in chosen]
    front = atomic.permute(x, [*chosen, *others])
    flat = atomic.reshape(front, (d.product([x.shape[i] for i in chosen]), *(x.shape[i] for i in others)))
    places: Any = None
    for i, node in zip(chosen, nodes, strict=True):
        at = _to(node, shape)
        places = at if places is None else c.add(c.mul(places, _number(x.shape[i], i64)), at)
    return flat, places, others, shape


def _integers(index: Node | None) -> Node:
    assert index is not None
    return refuse("an index of booleans: how many are chosen depends on values") if index.dtype is bool_ else index


def _adjacent(indices: Sequence[Node | None]) -> int | None:
    """Return the first indexed axis, if the indexed axes are next to each other; None otherwise."""
    chosen = [i for i, index in enumerate(indices) if index is not None]
    return chosen[0] if chosen == list(range(chosen[0], chosen[0] + len(chosen))) else None


@_row("index.Tensor", "_unsafe_index.Tensor")
def _index(call: Call, x: Node, indices: Sequence[Node | None]) -> Node:
    flat, places, others, shape = _indexed(x, indices)
    out = atomic.gather(flat, places, axis=0)
    first = _adjacent(indices)
    if first:
        order = [*range(len(shape), len(shape) + first), *range(len(shape)), *range(len(shape) + first, out.rank)]
        out = atomic.permute(out, order)
    return out


@_row("index_put.default", "_unsafe_index_put.default")
def _index_put(call: Call, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    mask = indices[0]
    if len(indices) == 1 and mask is not None and mask.dtype is bool_ and values.type.size() == 1 and not accumulate:
        wide = _to(atomic.reshape(mask, (*mask.shape, *(1,) * (x.rank - mask.rank))), x.shape)
        return c.where(wide, _to(atomic.reshape(values, (1,) * x.rank), x.shape), x)
    if accumulate and x.dtype is bool_:
        return c.greater(_index_put(call, _cast(x, i32), indices, _cast(values, i32), True), 0)
    if len(indices) == 1 and mask is not None and mask.dtype is bool_ and values.rank == 1 + x.rank - mask.rank:
        rows = _chosen_rows(mask, values)
        wide = _to(atomic.reshape(mask, (*mask.shape, *(1,) * (x.rank - mask.rank))), x.shape)
        return c.where(wide, c.add(x, rows) if accumulate else rows, x)
    while values.op.name in ("expand", "reshape") and values.inputs[0].type.size() == 1:
        values = values.inputs[0]
    if values.type.size() == 1 and not accumulate and x.rank:      # a place may occur twice
        hits = _index_put(call, _number(0, i32, x.shape), indices, _number(1, i32, ()), True)
        return c.where(c.greater(hits, 0), _to(atomic.reshape(_cast(values, x.dtype), (1,) * x.rank), x.shape), x)
    flat, places, others, shape = _indexed(x, indices)
    first = _adjacent(indices) or 0
    rest = [x.shape[i] for i in others]
    source = _to(_cast(values, x.dtype), (*rest[:first], *shape, *rest[first:]))
    source = atomic.permute(source, [*range(first, first + len(shape)), *range(first), *range(first + len(shape), source.rank)])
    out = atomic.scatter(flat, places, source, axis=0, mode="add" if accumulate else "set")
    chosen = [i for i, index in enumerate(indices) if index is not None]
    out = atomic.reshape(out, [*(x.shape[i] for i in chosen), *rest])
    return atomic.permute(out, np.argsort([*chosen, *others]).tolist())


def _chosen_rows(mask: Node, values: Node) -> Node:
    """Return rows of `values`, the first for the first place where the mask is True, and so on; elsewhere any of them."""
    places = c.cumsum(atomic.cast(atomic.reshape(mask, (mask.type.size(),)), i64), 0) - 1
    return atomic.reshape(atomic.gather(values, places, axis=0), (*mask.shape, *values.shape[1:]))


@_row("masked_scatter.default")
def _masked_scatter(call: Call, x: Node, mask: Node, source: Node) -> Node:
    wide = _to(mask, call.shape)
    return c.where(wide, _chosen_rows(wide, atomic.reshape(source, (source.type.size(),))), _to(x, call.shape))


@_row("embedding.default")
def _embedding(call: Call, weight: Node, ids: Node, *_: Any) -> Node:
    return c.embedding(weight, ids, dtype=weight.dtype)  # type: ignore[no-any-return]
