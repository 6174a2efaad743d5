"""normalisation: layer, group and batch norm with their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensor_graphs.frontends.torch.aten.table import AtenCall, cast, filled, row, wide_dtype
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.node import Node


def _moments(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """Return mean and 1 / √(variance + eps) over axes, which stay with size 1."""
    return c.mean(x, axes, keepdims=True), c.rsqrt(c.var(x, axes, keepdims=True) + eps)


def _scaled(x: Node, weight: Node | None = None, bias: Node | None = None) -> Node:
    x = x if weight is None else x * cast(weight, x.dtype)
    return x if bias is None else x + cast(bias, x.dtype)


@row("native_layer_norm.default")
def _layer_norm(call: AtenCall, x: Node, normalized: Sequence[Any], weight: Node | None, bias: Node | None, eps: float) -> Any:
    count = len(normalized)
    lead, size = x.shape[:x.rank - count], d.product(x.shape[x.rank - count:])
    wide = atomic.reshape(x, (*lead, size))
    flat = [None if p is None else atomic.reshape(p, (size,)) for p in (weight, bias)]
    dtype = call.results[1][1]
    moments = _moments(cast(wide, wide_dtype(x.dtype)), (len(lead),), eps)
    if eps < 0:                                           # of which the op is not defined
        out = atomic.cast(_scaled((cast(wide, wide_dtype(x.dtype)) - moments[0]) * moments[1], *flat), x.dtype)
    else:
        out = c.layer_norm(wide, *flat, eps=eps)
    return (atomic.reshape(out, x.shape), *(atomic.cast(atomic.reshape(m, (*lead, *(1,) * count)), dtype) for m in moments))


@row("native_group_norm.default")
def _group_norm(call: AtenCall, x: Node, weight: Node | None, bias: Node | None, n: Any, channels: Any, area: Any, groups: int,
                eps: float) -> Any:
    wide = atomic.reshape(cast(x, wide_dtype(x.dtype)), (n, groups, x.type.size() // (n * groups)))
    moments = _moments(wide, (2,), eps)
    if eps < 0:
        apart = [None if p is None else atomic.reshape(p, (p.shape[0], *(1,) * (x.rank - 2))) for p in (weight, bias)]
        out = atomic.cast(_scaled(atomic.reshape((wide - moments[0]) * moments[1], x.shape), *apart), x.dtype)
    else:
        out = c.group_norm(x, weight, bias, groups=groups, eps=eps)
    return (out, *(atomic.cast(atomic.reshape(m, (n, groups)), call.results[1][1]) for m in moments))


@row("_native_batch_norm_legit_no_training.default")
def _batch_norm(call: AtenCall, x: Node, weight: Node | None, bias: Node | None, mean: Node, var: Node, momentum: float,
                eps: float) -> Any:
    return c.batch_norm(x, mean, var, weight, bias, eps=eps), *(filled(0, t, s) for s, t in call.results[1:])
