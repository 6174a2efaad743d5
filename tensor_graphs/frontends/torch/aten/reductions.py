"""reductions: sums, means, extremes, sorts and softmaxes along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensor_graphs.frontends.torch.aten.table import ROWS, AtenCall, cast, filled, row, to_shape, wide_dtype
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType, bool_, i32, i64
from tensor_graphs.language.node import Node


def _axes(x: Node, dim: Any) -> tuple[int, ...]:
    """Return the axes of a dim, several dims, or (None, []) all."""
    if dim is None or dim == []:
        return tuple(range(x.rank))
    return tuple(sorted({a % max(x.rank, 1) for a in (dim if isinstance(dim, (tuple, list)) else [dim])} if x.rank else ()))


def _reduce(build: Callable[..., Node], dtype: Callable[[AtenCall], DType] = lambda call: call.dtype) -> Callable[..., Node]:
    """Return a row of a reduction build(x, axes, keepdims=…); dtype: in which it is computed."""

    def row(call: AtenCall, x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Node:
        axes, operand = _axes(x, dim), cast(x, dtype(call))
        return cast(build(operand, axes, keepdims=keepdim) if axes else operand, call.dtype)

    return row


def computed_in(call: AtenCall) -> DType:
    return i32 if call.dtype is bool_ else call.dtype


row("sum.dim_IntList", "sum.default")(_reduce(c.sum))
row("mean.dim", "mean.default")(_reduce(c.mean))
row("amax.default", "max.default")(_reduce(c.reduce_max, computed_in))
row("amin.default", "min.default")(_reduce(c.reduce_min, computed_in))
row("any.default", "any.dim", "any.dims")(_reduce(c.any, lambda call: bool_))
row("all.default", "all.dim", "all.dims")(_reduce(c.all, lambda call: bool_))
row("prod.default", "prod.dim_int")(_reduce(c.prod))


@row("var.correction", "var.dim", "var.default")
def _var(call: AtenCall, x: Node, dim: Any = None, unbiased: Any = True, keepdim: bool = False, **named: Any) -> Node:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = named.get("correction", int(unbiased))
    correction = 1 if correction is None else correction
    axes, wide = _axes(x, dim), cast(x, wide_dtype(call.dtype))
    count = d.product([x.shape[a] for a in axes])
    spread_out = wide - to_shape(c.mean(wide, axes, keepdims=True), wide.shape) if axes else wide - wide
    squares = c.sum(spread_out * spread_out, axes, keepdims=keepdim) if axes else spread_out
    divisor = c.maximum(filled(count, wide.dtype) - float(correction), 0.0)
    return atomic.cast(squares / to_shape(divisor, squares.shape), call.dtype)


row("prims.sum.default")(lambda call, x, dims, **_: ROWS["sum.dim_IntList"](call, x, dims))
row("prims.prod.default")(lambda call, x, dims, **_: ROWS["prod.dim_int"](call, x, dims))
row("prims.var.default")(lambda call, x, dims, correction=1, **_: _var(call, x, dims, correction=correction))


def _best(build: Callable[[Node, int], Node]) -> Callable[..., Node]:
    def row(call: AtenCall, x: Node, dim: Any = None, keepdim: bool = False) -> Node:
        if x.rank == 0:
            return filled(0, i64)
        flat = atomic.reshape(x, (x.type.size(),)) if dim is None else x
        axis = 0 if dim is None else dim % x.rank
        index = atomic.cast(build(cast(flat, i32) if x.dtype is bool_ else flat, axis), i64)
        return atomic.reshape(index, call.shape)

    return row


def _argmin(x: Node, axis: int) -> Node:
    return c.argmax(c.neg(x) if x.dtype.kind == "float" else atomic.logical_not(x), axis)


row("argmax.default")(_best(c.argmax))
row("argmin.default")(_best(_argmin))


def _with_index(value: str, index: str) -> Callable[..., Any]:
    def row(call: AtenCall, x: Node, dim: int, keepdim: bool = False) -> Any:
        at = AtenCall(call.shape, i64, i64, ())
        return ROWS[value](call, x, dim, keepdim), ROWS[index](at, x, dim, keepdim)

    return row


row("max.dim")(_with_index("amax.default", "argmax.default"))
row("min.dim")(_with_index("amin.default", "argmin.default"))


def _over(operation: Callable[..., Any]) -> Callable[..., Node]:
    """Return a row of softmax or log_softmax: computed in f32 at least."""
    return lambda call, x, dim, *_: atomic.cast(operation(cast(x, wide_dtype(call.dtype)), dim), call.dtype) if x.rank else (
        operation(atomic.reshape(cast(x, call.dtype), (1,)), 0).reshape(()))


row("_softmax.default", "softmax.int")(_over(c.softmax))
row("_log_softmax.default", "log_softmax.int")(_over(c.log_softmax))


@row("cumsum.default")
def _cumsum(call: AtenCall, x: Node, dim: int, **_: Any) -> Node:
    operand = cast(x, call.dtype)
    return c.cumsum(operand, dim) if x.rank else operand


def _ordered(build: Callable[..., Any], x: Node, dim: int, **how: Any) -> Any:
    """Return what build(x, axis, …) puts in order along an axis, and its indices (i64). A scalar is an axis of one element."""
    axis = dim % max(x.rank, 1)
    line = x if x.rank else atomic.reshape(x, (1,))
    values, index = build(cast(line, i32) if x.dtype is bool_ else line, axis, **how)
    shape = (*x.shape[:axis], values.shape[axis], *x.shape[axis + 1:]) if x.rank else ()
    return atomic.reshape(cast(values, x.dtype), shape), atomic.reshape(atomic.cast(index, i64), shape)


def move_axis(x: Node, source: int, target: int) -> Node:
    order = list(range(x.rank))
    order.insert(target % x.rank, order.pop(source % x.rank))
    return atomic.permute(x, order)


@row("sort.default", "sort.stable")
def _sort(call: AtenCall, x: Node, dim: int = -1, descending: bool = False, **named: Any) -> Any:
    return _ordered(c.sort, x, named.get("dim", dim), descending=named.get("descending", descending))


@row("topk.default")
def _topk(call: AtenCall, x: Node, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return _ordered(c.topk, x, dim, k=k, largest=largest)


row("cummax.default")(lambda call, x, dim: _ordered(c.cummax, x, dim))
row("cummin.default")(lambda call, x, dim: _ordered(c.cummin, x, dim))
row("logcumsumexp.default")(lambda call, x, dim: c.logcumsumexp(x, dim) if x.rank else x)
