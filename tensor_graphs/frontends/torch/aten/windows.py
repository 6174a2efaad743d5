"""windows: pooling and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tensor_graphs.frontends.torch.aten.table import ROWS, AtenCall, cast, filled, row, to_shape, wide_dtype
from tensor_graphs.frontends.torch.functions import refuse
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language.autodiff import vjp
from tensor_graphs.language.dtypes import i64
from tensor_graphs.language.node import Node


def _each(axes: int, *values: Sequence[int]) -> list[tuple[int, ...]]:
    """Return attributes with a value for each axis: torch may state one for all."""
    return [tuple(v) * (axes if len(v) == 1 else 1) for v in values]


def _max_pool(axes: int, call: AtenCall, x: Node, size: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
              ceil_mode: bool = False) -> Any:
    size, stride, padding, dilation = _each(axes, size, stride or size, padding, dilation)
    how: Any = {"size": size, "stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    return c.max_pool(x, **how), atomic.cast(c.max_pool_indices(x, **how), i64)


def _avg_pool(axes: int, call: AtenCall, x: Node, size: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False,
              count_padding: bool = True, divisor: Any = None) -> Node:
    if x.dtype.kind != "float":
        refuse("an average of integers")
    size, stride, padding = _each(axes, size, stride or size, padding)
    if divisor is None:
        return c.avg_pool(x, size, stride=stride, padding=padding, ceil_mode=ceil_mode, count_padding=count_padding)
    behind = [(places - 1) * step + k - have - pad for places, step, k, have, pad in zip(
        call.shape[-axes:], stride, size, x.shape[-axes:], padding, strict=True)]      # of the last window
    pairs = [(pad, max(rest, 0) if isinstance(rest, int) else pad) for pad, rest in zip(padding, behind, strict=True)]
    zeros = c.avg_pool(cast(x, wide_dtype(x.dtype)), size, stride=stride, padding=pairs)
    return atomic.cast(zeros * (math.prod(size) / divisor), x.dtype)


for _axes in (1, 2, 3):
    row(f"max_pool{_axes}d_with_indices.default")(partial(_max_pool, _axes))
    row(f"avg_pool{_axes}d.default")(partial(_avg_pool, _axes))


@row("avg_pool2d_backward.default")
def _avg_pool_backward(call: AtenCall, grad: Node, x: Node, *how: Any) -> Node:
    forward = AtenCall(grad.shape, x.dtype, x.dtype, ())
    return vjp([_avg_pool(2, forward, x, *how)], [grad], [x])[0]


def _adaptive_max_pool(axes: int, call: AtenCall, x: Node, sizes: Sequence[int]) -> Any:
    """Return the largest element of each interval, and its place in the pooled axes. An interval that is shorter than the longest
    has its last element again."""
    inner: Any = x.shape[-axes:]
    if not all(isinstance(n, int) for n in (*inner, *sizes)):
        refuse("adaptive pooling of a size that is a dim")
    places: Any = np.zeros((1,) * 2 * axes, np.int64)
    for axis, (n, count) in enumerate(zip(inner, sizes, strict=True)):
        starts, ends = np.arange(count) * n // count, -(-(np.arange(count) + 1) * n // count)
        at = np.minimum(starts[:, None] + np.arange(int((ends - starts).max())), ends[:, None] - 1)
        places = places * n + np.expand_dims(at, [i for i in range(2 * axes) if i not in (axis, axes + axis)])
    table = leaves.constant(places.reshape(*sizes, -1), i64)
    seen = atomic.gather(atomic.reshape(x, (*x.shape[:-axes], math.prod(inner))), table, axis=x.rank - axes)
    best = atomic.cast(c.argmax(seen, -1), i64)
    first = leaves.constant(np.arange(math.prod(sizes)).reshape(sizes) * table.shape[-1], i64)
    index = atomic.gather(atomic.reshape(table, (table.type.size(),)), best + to_shape(first, best.shape))
    return c.reduce_max(seen, seen.rank - 1), index


def _adaptive_max_backward(axes: int, call: AtenCall, grad: Node, x: Node, index: Node) -> Node:
    flat = [atomic.reshape(v, (*v.shape[:-axes], math.prod(v.shape[-axes:]))) for v in (filled(0, x.dtype, x.shape), index, grad)]
    return atomic.reshape(ROWS["scatter_add.default"](call, flat[0], -1, *flat[1:]), x.shape)


for _axes in (2, 3):
    row(f"adaptive_max_pool{_axes}d.default")(partial(_adaptive_max_pool, _axes))
    row(f"adaptive_max_pool{_axes}d_backward.default")(partial(_adaptive_max_backward, _axes))
row("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")(
    lambda call, x, sizes: c.adaptive_avg_pool(x, sizes))
row("_adaptive_avg_pool2d_backward.default")(
    lambda call, grad, x: vjp([c.adaptive_avg_pool(x, grad.shape[-2:])], [grad], [x])[0])
