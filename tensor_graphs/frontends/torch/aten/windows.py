"""windows: pooling and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_graphs.frontends.torch.aten.reductions import mean, move_axis
from tensor_graphs.frontends.torch.aten.table import AtenCall, cast, filled, row, to_shape, wide_dtype
from tensor_graphs.frontends.torch.functions import refuse
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language.autodiff import vjp
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import i32, i64
from tensor_graphs.language.node import Node


def _window(x: Node, size: Any, stride: Any, padding: Any, dilation: Any, places: Sequence[Dim]) -> dict[str, Any]:
    """Return the attributes of windows over the last axes. Padding behind is as much as the number of windows needs."""
    axes = len(size)
    size, stride, padding, dilation = (list(v) * (axes if len(v) == 1 else 1) for v in (size, stride or size, padding, dilation))
    pairs = []
    for axis, (k, step, pad, apart) in enumerate(zip(size, stride, padding, dilation, strict=True)):
        need = (places[axis] - 1) * step + apart * (k - 1) + 1 - x.shape[x.rank - axes + axis] - pad
        pairs.append((pad, max(need, pad) if isinstance(need, int) else pad))
    return {"size": tuple(size), "stride": tuple(stride), "padding": tuple(pairs), "dilation": tuple(dilation)}


@row("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool(call: AtenCall, x: Node, size: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
              ceil_mode: bool = False) -> Any:
    axes = len(size) if len(size) > 1 else x.rank - 2
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


@row("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _avg_pool(call: AtenCall, x: Node, size: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False,
              count_padding: bool = True, divisor: Any = None) -> Node:
    if x.dtype.kind != "float":
        refuse("an average of integers")
    axes = len(size)
    places = call.shape[-axes:]
    how = _window(x, size, stride, padding, (1,), places)
    plain = all(a == b for a, b in how["padding"])
    if divisor is None and (plain or not count_padding):
        return c.avg_pool(x, how["size"], stride=how["stride"], padding=how["padding"], count_padding=count_padding)
    inner = tuple(range(x.rank - axes, x.rank))
    total = c.sum(c.windows(cast(x, wide_dtype(x.dtype)), **how), inner)
    if divisor is not None:
        return atomic.cast(total / float(divisor), x.dtype)
    own = _window(x, size, stride, padding, (1,), places)["padding"]
    pads = list(padding) * (axes if len(padding) == 1 else 1)
    ones = atomic.pad(filled(1, total.dtype, x.shape[-axes:]), [(p, p) for p in pads], 1)
    rest = tuple((0, after - p) for p, (_, after) in zip(pads, own, strict=True))
    count = c.sum(c.windows(ones, **{**how, "padding": rest}), tuple(range(axes)))
    return atomic.cast(total / to_shape(count, total.shape), x.dtype)


@row("avg_pool2d_backward.default")
def _avg_pool_backward(call: AtenCall, grad: Node, x: Node, *how: Any) -> Node:
    forward = AtenCall(grad.shape, x.dtype, x.dtype, ())
    return vjp([_avg_pool(forward, x, *how)], [grad], [x])[0]


@row("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def _adaptive_avg_pool(call: AtenCall, x: Node, sizes: Sequence[Any]) -> Node:
    axes = tuple(range(x.rank - len(sizes), x.rank))
    if all(s == 1 for s in sizes):
        return mean(x, axes, keepdims=True)
    out = cast(x, wide_dtype(x.dtype))
    for axis, count in zip(axes, sizes, strict=True):
        length = x.shape[axis]
        if not isinstance(length, int) or not isinstance(count, int):
            refuse("adaptive pooling of a size that is a dim")
        weights = np.zeros((length, count))
        for i in range(count):
            low, high = i * length // count, -(-(i + 1) * length // count)
            weights[low:high, i] = 1 / (high - low)
        out = move_axis(c.dot(move_axis(out, axis, -1), leaves.constant(weights, out.dtype)), -1, axis)
    return atomic.cast(out, x.dtype)


@row("_adaptive_avg_pool2d_backward.default")
def _adaptive_backward(call: AtenCall, grad: Node, x: Node) -> Node:
    return vjp([_adaptive_avg_pool(call, x, grad.shape[-2:])], [grad], [x])[0]
