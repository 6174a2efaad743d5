"""functions: a table of torch's functions and methods: name -> function that builds the equivalent nodes.

A reference is source code that is read, never run (reference_graph.py); for `torch.rsqrt(x)` or `x.rsqrt()` in it, the entry
`rsqrt` builds the node. Signatures are torch's, so Python itself refuses a wrong call. This module implements torch's rules where
they differ from this package's: dtypes promote, a Python number next to a half-precision tensor is not rounded to its dtype,
integer sums are 64 bits wide, negative indices count from the back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import exact_div, proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32
from tensor_graphs.language.node import Node

MOST_PIECES = 64  # largest number of pieces of a chunk or split


class OpaqueReference(Exception):
    """A reference that is not straight-line code of supported operations; the message is the reason, in one line."""


def refuse(reason: str) -> NoReturn:
    raise OpaqueReference(reason)


@dataclass(frozen=True)
class Scalar:
    """An input that is a Python number when the reference runs: it never changes the dtype of a tensor that it is combined with."""

    node: Node


@dataclass(frozen=True)
class AnyDevice:
    """A torch device. Devices have no effect on the graph, so every device equals every other."""


class Pair(NamedTuple):
    """The result of torch's max or topk along an axis."""

    values: Node
    indices: Node


DTYPES: Mapping[str, DType] = {
    "float32": f32, "float": f32, "float16": f16, "half": f16, "bfloat16": bf16, "float64": f64, "double": f64,
    "int8": i8, "int16": i16, "short": i16, "int32": i32, "int": i32, "int64": i64, "long": i64, "uint8": u8,
    "bool": bool_,
}  # fmt: skip
BY_I64 = frozenset({i8, i16, u8, u16, u32})


# ---- dtypes of two operands ------------------------------------------------------------------------------------------

_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2}


def is_number(x: object) -> bool:
    return isinstance(x, (bool, int, float, d.Expr))


def _promoted(x: Node, y: Node) -> tuple[Node, Node]:
    """Return two tensors, converted to torch's common dtype."""
    if x.dtype is y.dtype:
        return x, y
    a, b = _RANK[x.dtype.kind], _RANK[y.dtype.kind]
    if a == b and (x.rank == 0) != (y.rank == 0):  # a tensor without axes follows the other one
        common = y.dtype if x.rank == 0 else x.dtype
    elif a != b:
        small, large = (x, y) if a < b else (y, x)
        if large.rank == 0 and small.rank > 0:
            refuse(f"{x.dtype} beside {y.dtype}, one of them without axes")
        common = large.dtype
    elif a == 2:
        common = f64 if f64 in (x.dtype, y.dtype) else f32  # f16 beside bf16 is f32, too
    else:
        refuse(f"integers of two dtypes, {x.dtype} and {y.dtype}")
    return atomic.cast(x, common), atomic.cast(y, common)


def _number_kind(x: Any) -> int:
    if isinstance(x, Scalar):
        return _RANK[x.node.dtype.kind]
    return 0 if isinstance(x, bool) else 2 if isinstance(x, float) else 1


def combine(build: Callable[[Any, Any], Any], x: Any, y: Any, *, compares: bool = False) -> Any:
    """Return a binary operation of two tensors, or of a tensor and a number, in the dtype that torch would use."""
    if isinstance(x, Node) and isinstance(y, Node):
        return build(*_promoted(x, y))
    tensor, number = (x, y) if isinstance(x, Node) else (y, x)
    if not isinstance(tensor, Node):
        refuse("arithmetic on scalar inputs alone")
    if not (isinstance(number, Scalar) or is_number(number)):
        refuse(f"a tensor beside {type(number).__name__}")
    kind = _number_kind(number)
    if kind > _RANK[tensor.dtype.kind]:
        if kind != 2:
            refuse("an integer beside a tensor of booleans")
        tensor = atomic.cast(tensor, f32)
    result = tensor.dtype
    if compares and isinstance(number, float) and float(result.numpy.type(number)) != number:
        refuse(f"a comparison with {number}, which is no {result}")
    if result in (f16, bf16):  # torch computes in f32 and rounds the result, not the number
        tensor = atomic.cast(tensor, f32)
    if isinstance(number, Scalar):
        number = atomic.cast(number.node, tensor.dtype)
    elif isinstance(number, bool) and tensor.dtype is not bool_:
        number = int(number)
    out = build(tensor, number) if isinstance(x, Node) else build(number, tensor)
    return out if compares else atomic.cast(out, result)


def tensor(x: Any) -> Node:
    """Return x if it is a tensor, else raise OpaqueReference."""
    if not isinstance(x, Node):
        refuse(f"a tensor is needed, {type(x).__name__} is given")
    return x


def floating(x: Any) -> Node:
    """Return x with integers converted to f32, as torch's functions of real numbers do."""
    node = tensor(x)
    return node if node.dtype.kind == "float" else atomic.cast(node, f32)


def sizes(values: Sequence[Any]) -> tuple[Dim, ...]:
    """Return the sizes given to `view(2, 3)` or to `view((2, 3))`."""
    items = tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else tuple(values)
    if not all(isinstance(s, (int, d.Expr)) and not isinstance(s, bool) for s in items):
        refuse("a size that is not known from the shapes")
    return items


def _axis(x: Node, axis: Any, extra: int = 0) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int) or not -(x.rank + extra) <= axis < x.rank + extra:
        refuse(f"{axis!r} is no axis of a tensor of rank {x.rank}")
    return axis % (x.rank + extra)


def _axes(x: Node, dim: Any) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(x.rank))
    return tuple(_axis(x, axis) for axis in (dim if isinstance(dim, (tuple, list)) else (dim,)))


def converted(x: Node, dtype: DType | None) -> Node:
    """Return x in another dtype, if there is one. Floats become narrow integers by way of i64, whose low bits torch keeps: it
    states so of u8, and does so of others; the language's cast saturates."""
    if dtype in BY_I64 and x.dtype.kind == "float":
        x = atomic.cast(x, i64)
    return x if dtype is None else atomic.cast(x, dtype)


# ---- the table -------------------------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Name -> builder of `torch.NAME(x, …)`, `torch.nn.functional.NAME(x, …)` and `x.NAME(…)` alike."""


def _row(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(build: Callable[..., Any]) -> Callable[..., Any]:
        if build.__qualname__ == "<lambda>":                # Python's error for a wrong call shows this name
            build.__qualname__ = f"_{names[0]}"
        FUNCTIONS.update(dict.fromkeys(names, build))
        return build

    return add


def _binary(build: Callable[[Any, Any], Node], *names: str, compares: bool = False) -> None:
    _row(*names)(lambda x, other, /: combine(build, x, other, compares=compares))


def _real(build: Callable[[Node], Node], *names: str) -> None:
    _row(*names)(lambda x, /: build(floating(x)))


def _integer_only(build: Callable[[Any, Any], Node]) -> Callable[[Any, Any], Node]:
    def checked(x: Any, y: Any) -> Any:
        if any(isinstance(operand, float) or (isinstance(operand, Node) and operand.dtype.kind != "int") for operand in (x, y)):
            refuse("// or % of numbers that are not integers")
        return build(x, y)

    return checked


_binary(c.add, "add")
_binary(c.sub, "sub", "subtract")
_binary(c.mul, "mul", "multiply")
_binary(_integer_only(c.floor_div), "floor_divide")
_binary(_integer_only(c.mod), "remainder")
_binary(c.pow, "pow")
_binary(c.maximum, "maximum")
_binary(c.minimum, "minimum")
_binary(c.bit_and, "bitwise_and", "logical_and")
_binary(c.bit_or, "bitwise_or", "logical_or")
_binary(c.bit_xor, "bitwise_xor", "logical_xor")

@_row("div", "divide", "true_divide")
def _div(x: Any, other: Any, /) -> Any:
    if isinstance(x, Node) and isinstance(other, Node):
        x, other = _promoted(x, other)
    return combine(c.div, *(floating(operand) if isinstance(operand, Node) else operand for operand in (x, other)))


COMPARISONS: Mapping[str, Callable[[Any, Any], Node]] = {
    "lt": c.less, "le": c.less_equal, "gt": c.greater, "ge": c.greater_equal, "eq": c.equals, "ne": c.not_equal,
}  # fmt: skip
for _name, _build in COMPARISONS.items():
    _binary(_build, _name, *([] if _name == "eq" else [_build.__name__]), compares=True)

REAL: Mapping[str, Callable[[Node], Node]] = {
    "sqrt": atomic.sqrt, "rsqrt": c.rsqrt, "reciprocal": atomic.reciprocal, "exp": c.exp, "exp2": atomic.exp2, "expm1": c.expm1,
    "log": c.log, "log2": atomic.log2, "log10": c.log10, "log1p": c.log1p, "sin": atomic.sin, "cos": c.cos, "tan": c.tan,
    "tanh": c.tanh, "sigmoid": c.sigmoid, "erf": c.erf, "erfc": c.erfc, "silu": c.silu, "sinh": c.sinh, "cosh": c.cosh,
    "asinh": c.asinh, "acosh": c.acosh, "atanh": c.atanh, "asin": c.asin, "acos": c.acos, "atan": c.atan,
    "erfinv": c.erfinv, "lgamma": c.lgamma, "digamma": c.digamma,
}  # fmt: skip
"""name of a function of real numbers -> its composite"""
for _name, _one in REAL.items():
    _real(_one, _name)
_real(c.softplus, "softplus")


_row("neg", "negative")(lambda x, /: c.neg(tensor(x)))
_row("abs", "absolute")(lambda x, /: c.abs(tensor(x)))
_row("relu")(lambda x, /: c.relu(tensor(x)))
_row("square")(lambda x, /: c.square(tensor(x)))
_row("gelu")(lambda x, /, approximate="none": c.gelu(tensor(x), approximate=approximate))


@_row("logical_not", "bitwise_not")
def _not(x: Any, /) -> Any:
    if tensor(x).dtype is not bool_:
        refuse("not of a tensor that is not of booleans")
    return atomic.logical_not(x)


_row("matmul", "mm", "bmm")(lambda x, other, /: c.dot(tensor(x), tensor(other)))


@_row("linear")
def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    operands = [tensor(operand) for operand in (x, weight, bias) if operand is not None]
    if any(operand.dtype is not operands[0].dtype for operand in operands):
        refuse("linear of several dtypes")
    return c.linear(*operands)


@_row("layer_norm")
def _layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if len(normalized_shape) != 1:
        refuse("layer_norm over several axes")
    return c.layer_norm(tensor(x), weight, bias, eps=eps)


@_row("rms_norm")
def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    if len(normalized_shape) != 1 or eps is None:
        refuse("rms_norm over several axes, or without eps")
    return c.rms_norm(tensor(x), weight, eps=eps)


# ---- reductions ------------------------------------------------------------------------------------------------------


_row("softmax")(lambda x, /, dim, dtype=None: c.softmax(converted(tensor(x), dtype), axis=dim))
_row("log_softmax")(lambda x, /, dim, dtype=None: c.log_softmax(converted(tensor(x), dtype), axis=dim))


@_row("logsumexp")
def _logsumexp(x: Any, /, dim: Any, keepdim: bool = False) -> Any:
    (axis,) = _axes(tensor(x), dim)
    return c.logsumexp(x, axis=axis, keepdims=keepdim)


_row("mean")(lambda x, /, dim=None, keepdim=False, dtype=None: c.mean(converted(tensor(x), dtype), _axes(x, dim), keepdims=keepdim))


@_row("var")
def _var(x: Any, /, dim: Any = None, unbiased: bool = True, keepdim: bool = False, correction: int = 1) -> Any:
    if unbiased and correction != 0:
        refuse("a variance with Bessel's correction")
    return c.var(tensor(x), _axes(x, dim), keepdims=keepdim)


@_row("sum")
def _sum(x: Any, /, dim: Any = None, keepdim: bool = False, dtype: DType | None = None) -> Any:
    node = converted(tensor(x), dtype)
    wide = node if node.dtype.kind == "float" or dtype is not None else atomic.cast(node, i64)
    return wide.sum(_axes(node, dim), keepdims=keepdim)


@_row("amax")
def _amax(x: Any, /, dim: Any = None, keepdim: bool = False) -> Any:
    return tensor(x).max(_axes(x, dim), keepdims=keepdim)


@_row("amin")
def _amin(x: Any, /, dim: Any = None, keepdim: bool = False) -> Any:
    return c.reduce_min(tensor(x), _axes(x, dim), keepdims=keepdim)


@_row("max")
def _max(x: Any, /, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Node):
        return combine(c.maximum, x, dim)
    return _amax(x) if dim is None else Pair(_amax(x, dim, keepdim), _argmax(x, dim, keepdim))


@_row("min")
def _min(x: Any, /, dim: Any = None) -> Any:
    if isinstance(dim, Node):
        return combine(c.minimum, x, dim)
    return _amin(x) if dim is None else refuse("the position of a minimum")


@_row("argmax")
def _argmax(x: Any, /, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        refuse("argmax over all axes")
    axis = _axis(tensor(x), dim)
    indices = atomic.cast(c.argmax(x, axis=axis), i64)
    return _unsqueeze(indices, axis) if keepdim else indices


@_row("cumsum")
def _cumsum(x: Any, /, dim: int, dtype: DType | None = None) -> Any:
    node = converted(tensor(x), dtype)
    return c.cumsum(node if node.dtype.kind == "float" or dtype is not None else atomic.cast(node, i64), axis=dim)


@_row("topk")
def _topk(x: Any, /, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    if _axis(tensor(x), dim) != x.rank - 1 or not largest or not isinstance(k, int):
        refuse("topk along another axis than the last, or of the smallest")
    values, indices = c.topk(x, k=k)
    return Pair(values, atomic.cast(indices, i64))


# ---- dtypes and devices ----------------------------------------------------------------------------------------------


@_row("to", "type")
def _to(x: Any, /, *where: Any, dtype: Any = None, device: Any = None, copy: bool = False, non_blocking: bool = False) -> Any:
    for argument in where:
        if isinstance(argument, DType):
            dtype = argument
        elif isinstance(argument, Node):
            dtype = argument.dtype
        elif not isinstance(argument, (str, AnyDevice, bool)):
            refuse(f"to({argument!r})")
    return converted(tensor(x), dtype)


_row("type_as")(lambda x, other, /: converted(tensor(x), tensor(other).dtype))


for _name in ("float", "half", "bfloat16", "double", "int", "long", "bool"):
    _row(_name)(lambda x, /, _dtype=DTYPES[_name]: atomic.cast(tensor(x), _dtype))


_row("contiguous", "clone", "detach", "cuda", "cpu")(lambda x, /: tensor(x))


# ---- shapes ----------------------------------------------------------------------------------------------------------


@_row("size")
def _size(x: Any, /, dim: Any = None) -> Any:
    shape = tensor(x).shape
    return shape if dim is None else shape[_axis(x, dim)]


_row("dim", "ndimension")(lambda x, /: tensor(x).rank)
_row("numel")(lambda x, /: tensor(x).type.size())
_row("reshape", "view")(lambda x, /, *shape: atomic.reshape(tensor(x), sizes(shape)))
_row("reshape_as", "view_as")(lambda x, other, /: atomic.reshape(tensor(x), tensor(other).shape))


@_row("permute")
def _permute(x: Any, /, *dims: Any) -> Any:
    order = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return atomic.permute(tensor(x), order)


_row("transpose", "swapaxes")(lambda x, dim0, dim1, /: tensor(x).transpose(dim0, dim1))


@_row("t")
def _t(x: Any, /) -> Any:
    if tensor(x).rank > 2:
        refuse("t() of a tensor of more than two axes")
    return x.transpose(0, 1) if x.rank == 2 else x


@_row("unsqueeze")
def _unsqueeze(x: Any, /, dim: int) -> Any:
    axis = _axis(tensor(x), dim, extra=1)
    return atomic.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@_row("squeeze")
def _squeeze(x: Any, /, dim: Any = None) -> Any:
    axes = _axes(tensor(x), dim)
    if not all(isinstance(x.shape[axis], int) for axis in axes):
        refuse("squeeze of an axis whose size is not known")
    return atomic.reshape(x, tuple(s for i, s in enumerate(x.shape) if i not in axes or s != 1))


@_row("flatten")
def _flatten(x: Any, /, start_dim: int = 0, end_dim: int = -1) -> Any:
    first, last = _axis(tensor(x), start_dim), _axis(x, end_dim)
    count: Dim = 1
    for size in x.shape[first : last + 1]:
        count = count * size
    return atomic.reshape(x, (*x.shape[:first], count, *x.shape[last + 1 :]))


@_row("expand")
def _expand(x: Any, /, *shape: Any) -> Any:
    wanted = sizes(shape)
    new = len(wanted) - tensor(x).rank
    target = tuple(x.shape[i - new] if i >= new and s == -1 else s for i, s in enumerate(wanted))
    return atomic.expand(atomic.reshape(x, (1,) * new + x.shape), target)


_row("expand_as")(lambda x, other, /: _expand(x, tensor(other).shape))


@_row("repeat_interleave")
def _repeat_interleave(x: Any, /, repeats: Any, dim: Any = None) -> Any:
    if not isinstance(repeats, int) or dim is None:
        refuse("repeat_interleave by a tensor, or over all axes")
    return c.repeat_interleave(tensor(x), repeats, _axis(x, dim))


@_row("narrow")
def _narrow(x: Any, dim: int, start: Any, length: Any, /) -> Any:
    axis = _axis(tensor(x), dim)
    return x[(slice(None),) * axis + (slice(start, start + length),)]


@_row("select")
def _select(x: Any, dim: int, index: Any, /) -> Any:
    if not isinstance(index, (int, d.Expr)):
        refuse("select by a tensor")
    return tensor(x)[(slice(None),) * _axis(x, dim) + (index,)]


@_row("split")
def _split(x: Any, /, split_size_or_sections: Any, dim: int = 0) -> Any:
    total = tensor(x).shape[_axis(x, dim)]
    parts = split_size_or_sections
    if isinstance(parts, int):
        if not isinstance(total, int) or parts < 1 or total > parts * MOST_PIECES:
            refuse("a split into pieces whose number is not known, or is large")
        parts = [min(parts, total - at) for at in range(0, total, parts)]
    if len(parts) > MOST_PIECES or not proved_equal(sum(parts), total):
        refuse("a split whose pieces are not the whole")
    starts = [sum(parts[:i]) for i in range(len(parts))]
    return tuple(_narrow(x, dim, start, length) for start, length in zip(starts, parts, strict=True))


@_row("chunk")
def _chunk(x: Any, /, chunks: int, dim: int = 0) -> Any:
    total = tensor(x).shape[_axis(x, dim)]
    length = exact_div(total, chunks) if isinstance(chunks, int) and 0 < chunks <= MOST_PIECES else None
    return refuse("chunks of unequal sizes") if length is None else _split(x, [length] * chunks, dim)


@_row("cat", "concat", "concatenate")
def _cat(tensors: Sequence[Any], /, dim: int = 0) -> Any:
    parts = [tensor(part) for part in tensors]
    if any(part.dtype is not parts[0].dtype for part in parts):
        refuse("cat of several dtypes")
    return c.concat(*parts, axis=dim)


_row("stack")(lambda tensors, /, dim=0: _cat([_unsqueeze(part, dim) for part in tensors], dim))


# ---- choosing --------------------------------------------------------------------------------------------------------


@_row("where")
def _where(condition: Any, x: Any, other: Any, /) -> Any:
    if tensor(condition).dtype is not bool_ or not (isinstance(x, Node) or isinstance(other, Node)):
        refuse("where of a condition that is not boolean, or of two numbers")
    return combine(lambda a, b: c.where(condition, a, b), x, other)


@_row("masked_fill")
def _masked_fill(x: Any, mask: Any, value: Any, /) -> Any:
    if not is_number(value):
        refuse("masked_fill with a tensor")
    return _where(mask, value, tensor(x))


@_row("clamp", "clip")
def _clamp(x: Any, /, min: Any = None, max: Any = None) -> Any:
    out = tensor(x)
    if min is not None:
        out = combine(c.maximum, out, min)
    return out if max is None else combine(c.minimum, out, max)


def _triangle(x: Any, diagonal: Any, lower: bool) -> Any:
    if tensor(x).rank < 2 or not isinstance(diagonal, (int, d.Expr)):
        refuse("a triangle of a tensor with one axis")
    shape = x.shape[-2:]
    rows, columns = atomic.iota(shape, 0, i64), atomic.iota(shape, 1, i64)
    edge = c.add(rows, diagonal)
    keep = c.less_equal(columns, edge) if lower else c.greater_equal(columns, edge)
    return c.where(keep, x, atomic.fill(0, x.shape, x.dtype))


_row("tril")(lambda x, /, diagonal=0: _triangle(x, diagonal, lower=True))
_row("triu")(lambda x, /, diagonal=0: _triangle(x, diagonal, lower=False))


def wrapped(x: Node, ids: Node, axis: int) -> Any:
    """Return rows of x along `axis`, as x[ids] does: negative ids count from the back."""
    if ids.dtype.kind not in ("int", "uint"):
        refuse("an index that is not of integers")
    if ids.dtype.kind == "int":
        ids = c.where(c.less(ids, 0), c.add(ids, x.shape[axis]), ids)
    return atomic.gather(x, ids, axis=axis)


_row("index_select")(lambda x, dim, index, /: atomic.gather(tensor(x), tensor(index), axis=_axis(x, dim)))
_row("embedding")(lambda ids, weight, /: c.embedding(tensor(weight), tensor(ids), dtype=weight.dtype))


# ---- new tensors -----------------------------------------------------------------------------------------------------


@_row("arange")
def _arange(first: Any, second: Any = None, /, dtype: DType | None = None, device: Any = None) -> Any:
    start, stop = (0, first) if second is None else (first, second)
    if not all(isinstance(bound, (int, d.Expr)) for bound in (start, stop)):
        refuse("arange of numbers that are not sizes")
    return converted(c.add(atomic.iota((stop - start,), 0, i64), start), dtype)


@_row("full")
def _full(size: Any, fill_value: Any, /, dtype: DType | None = None, device: Any = None) -> Any:
    if isinstance(fill_value, bool) or not isinstance(fill_value, (int, float)):
        refuse("full of something that is not a number")
    return atomic.fill(fill_value, sizes((size,)), dtype or (i64 if isinstance(fill_value, int) else f32))


_row("zeros")(lambda *size, dtype=None, device=None: atomic.fill(0, sizes(size), dtype or f32))
_row("ones")(lambda *size, dtype=None, device=None: atomic.fill(1, sizes(size), dtype or f32))
_row("zeros_like")(lambda x, /, dtype=None, device=None: atomic.fill(0, tensor(x).shape, dtype or x.dtype))
_row("ones_like")(lambda x, /, dtype=None, device=None: atomic.fill(1, tensor(x).shape, dtype or x.dtype))
_row("full_like")(lambda x, fill_value, /, dtype=None, device=None: _full(tensor(x).shape, fill_value, dtype=dtype or x.dtype))


# ---- plain Python ----------------------------------------------------------------------------------------------------


def _static(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, restricted to arguments that are known when the reference is read."""

    def call(*values: Any) -> Any:
        if not all(isinstance(value, (int, float, str)) for value in values):
            refuse(f"{function.__name__} of a value that is known only when the reference runs")
        return function(*values)

    return call


def _whole(x: Any) -> Any:
    return x if isinstance(x, d.Expr) else _static(int)(x)


def _extreme(many: Callable[..., Dim], few: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        items = values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values
        return many(*items) if any(isinstance(item, d.Expr) for item in items) else _static(few)(*items)

    return call


BUILTINS: Mapping[str, Callable[..., Any]] = {
    "int": _whole, "float": _static(float), "bool": _static(bool), "abs": _static(abs), "len": len, "tuple": tuple,
    "list": list, "min": _extreme(d.dim_min, min), "max": _extreme(d.dim_max, max),
}  # fmt: skip
MATH: Mapping[str, Any] = {
    "sqrt": _static(math.sqrt), "exp": _static(math.exp), "log": _static(math.log), "log2": _static(math.log2),
    "pow": _static(math.pow), "ceil": _static(math.ceil), "floor": _static(math.floor),
    "pi": math.pi, "inf": math.inf, "e": math.e,
}  # fmt: skip
