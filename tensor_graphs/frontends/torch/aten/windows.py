"""windows: pooling and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tensor_graphs.frontends.torch.aten.table import AtenCall, cast, row, wide_dtype
from tensor_graphs.frontends.torch.functions import refuse
from tensor_graphs.language import atomic
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


row("adaptive_avg_pool1d.default", "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")(
    lambda call, x, sizes: c.adaptive_avg_pool(x, sizes))
row("_adaptive_avg_pool2d_backward.default")(
    lambda call, grad, x: vjp([c.adaptive_avg_pool(x, grad.shape[-2:])], [grad], [x])[0])
