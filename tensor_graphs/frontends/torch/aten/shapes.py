"""shapes: ops that move elements: views, slices, concatenation, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensor_graphs.frontends.torch.aten.reductions import move_axis
from tensor_graphs.frontends.torch.aten.table import NO_END, AtenCall, cast, filled, row, to_shape
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language.dtypes import i64
from tensor_graphs.language.node import Node

row("view.default", "reshape.default", "_unsafe_view.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
    "unsqueeze.default", "flatten.using_ints", "view_copy.default", "squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims",
    "unsqueeze_copy.default")(lambda call, x, *_: atomic.reshape(x, call.shape))
row("permute.default", "permute_copy.default")(lambda call, x, dims: atomic.permute(x, [i % max(x.rank, 1) for i in dims]))
row("transpose.int", "transpose_copy.int")(lambda call, x, a, b: x.transpose(a, b) if x.rank else x)
row("t.default", "t_copy.default")(lambda call, x: atomic.permute(x, (1, 0)) if x.rank == 2 else x)
row("expand.default", "expand_copy.default")(lambda call, x, *_, **__: to_shape(x, call.shape))
row("flip.default")(lambda call, x, dims: c.flip(x, dims) if dims else x)


@row("slice.Tensor", "slice_copy.Tensor")
def _slice(call: AtenCall, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Node:
    end = None if isinstance(end, int) and end >= NO_END else end
    return x[(slice(None),) * (dim % x.rank) + (slice(start, end, step),)]


@row("select.int", "select_copy.int")
def _select(call: AtenCall, x: Node, dim: int, index: Any) -> Node:
    return x[(slice(None),) * (dim % x.rank) + (index,)]


@row("cat.default")
def _cat(call: AtenCall, tensors: Sequence[Node], dim: int = 0) -> Node:
    parts = [cast(t, call.dtype) for t in tensors if not (t.rank == 1 and t.shape[0] == 0 and len(call.shape) != 1)]
    return c.concat(*parts, axis=dim % len(call.shape)) if len(parts) > 1 else parts[0]


@row("split_with_sizes.default", "split.Tensor", "split_copy.Tensor", "split_with_sizes_copy.default")
def _split(call: AtenCall, x: Node, *_: Any) -> Any:
    axis = _[1] if len(_) > 1 else 0
    return c.split(x, [shape[axis] for shape, _dtype in call.results], axis)


@row("repeat.default")
def _repeat(call: AtenCall, x: Node, repeats: Sequence[Any]) -> Node:
    old = (1,) * (len(repeats) - x.rank) + x.shape
    apart = [s for size in old for s in (1, size)]
    wide = [s for times, size in zip(repeats, old, strict=True) for s in (times, size)]
    return atomic.reshape(atomic.expand(atomic.reshape(x, apart), wide), call.shape)


@row("constant_pad_nd.default")
def _pad(call: AtenCall, x: Node, amounts: Sequence[Any], value: Any = 0) -> Node:
    pairs = [(0, 0)] * (x.rank - len(amounts) // 2) + list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    cut = [(-a if isinstance(a, int) and a < 0 else 0, s + b if isinstance(b, int) and b < 0 else s, 1)
           for s, (a, b) in zip(x.shape, pairs, strict=True)]
    grown = [tuple(0 if isinstance(e, int) and e < 0 else e for e in pair) for pair in pairs]
    return atomic.pad(atomic.slice(x, cut), grown, x.dtype.numpy.type(value).item())  # type: ignore[arg-type]


@row("as_strided.default")
def _as_strided(call: AtenCall, x: Node, size: Any, stride: Sequence[Any], offset: Any = 0) -> Node:
    index = filled(offset or 0, i64, call.shape)
    for axis, step in enumerate(stride):
        index = index + atomic.iota(call.shape, axis, i64) * step
    return atomic.gather(atomic.reshape(x, (x.type.size(),)), index)


row("diagonal.default", "diagonal_copy.default")(lambda call, x, *axes: c.diagonal(x, *axes))


@row("unfold.default")
def _unfold(call: AtenCall, x: Node, dim: int, size: int, step: int) -> Node:
    axis, windows = dim % max(x.rank, 1), (call.shape[dim % max(x.rank, 1)], size)
    places = atomic.iota(windows, 0, i64) * step + atomic.iota(windows, 1, i64)
    return move_axis(atomic.gather(x, places, axis=axis), axis + 1, -1) if x.rank else atomic.reshape(x, call.shape)


@row("diagonal_scatter.default")
def _diagonal_scatter(call: AtenCall, x: Node, diagonal: Node, offset: int = 0, row: int = 0, column: int = 1) -> Node:
    axes = row % x.rank, column % x.rank
    places = atomic.iota(x.shape, axes[1], i64) - atomic.iota(x.shape, axes[0], i64)
    along = axes[offset < 0]                                    # the axis by whose places the diagonal counts
    padded = atomic.pad(cast(diagonal, x.dtype), [*[(0, 0)] * (diagonal.rank - 1), (0, x.shape[along] - diagonal.shape[-1])], 0)
    order = [axis for axis in range(x.rank) if axis not in axes]
    whole = atomic.permute(padded, [order.index(i) if i in order else len(order) for i in range(x.rank) if i in (*order, along)])
    sizes = [1 if axis in axes and axis != along else size for axis, size in enumerate(x.shape)]
    return c.where(c.equals(places, offset), to_shape(atomic.reshape(whole, sizes), x.shape), x)


@row("prims.broadcast_in_dim.default")
def _broadcast_in_dim(call: AtenCall, x: Node, shape: Sequence[Any], axes: Sequence[int]) -> Node:
    sizes = iter(x.shape)
    return to_shape(atomic.reshape(x, [next(sizes) if i in axes else 1 for i in range(len(shape))]), call.shape)
