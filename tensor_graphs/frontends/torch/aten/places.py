"""places: gather, scatter, indexing by tensors, embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensor_graphs.frontends.torch.aten.table import ROWS, AtenCall, cast, filled, like, row, to_shape, wide_dtype
from tensor_graphs.frontends.torch.functions import refuse
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, i32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_shape


def _flat_places(call: AtenCall, x: Node, axis: int, index: Node) -> Node:
    """Return the places in flattened x of elements with `index` along an axis, and their own position along others."""
    flat: Any = None
    for i, size in enumerate(x.shape):
        at = call.read(index, size) if i == axis else atomic.iota(index.shape, i, i64)
        flat = at if flat is None else c.add(c.mul(flat, filled(size, i64)), at)
    return flat


@row("gather.default")
def _gather(call: AtenCall, x: Node, dim: int, index: Node, **_: Any) -> Node:
    if x.rank == 0 or index.rank == 0:
        flat, index = atomic.reshape(x, (x.type.size(),)), atomic.reshape(index, (index.type.size(),))
        return atomic.reshape(atomic.gather(flat, call.read(index, flat.shape[0])), call.shape)
    return atomic.gather(atomic.reshape(x, (x.type.size(),)), _flat_places(call, x, dim % x.rank, index))


def _scatter_along(call: AtenCall, x: Node, dim: int, index: Node, source: Node, mode: str) -> Node:
    """Return x with elements of `source` at the places of _flat_places; of `source`, what lies beyond the index is not read."""
    shape = x.shape
    if x.dtype is bool_ and mode == "add":                # a sum of booleans is True where one of them is
        return cast(_scatter_along(call, cast(x, i32), dim, index, cast(source, i32), "max"), bool_)
    if x.rank == 0 or index.rank == 0:
        x, index, source = (atomic.reshape(v, (v.type.size(),)) for v in (x, index, source))
        dim = 0
    read = atomic.slice(source, [(0, s, 1) for s in index.shape])
    places = _flat_places(call, x, dim % x.rank, index)
    flat, places, read = (atomic.reshape(v, (v.type.size(),)) for v in (x, places, read))
    return atomic.reshape(atomic.scatter(flat, places, read, axis=0, mode=mode), shape)


row("scatter.src")(lambda call, x, dim, index, source: _scatter_along(call, x, dim, index, cast(source, x.dtype), "set"))
row("scatter_add.default")(lambda call, x, dim, index, source: _scatter_along(call, x, dim, index, source, "add"))


@row("scatter.value")
def _scatter_value(call: AtenCall, x: Node, dim: int, index: Node, value: Any) -> Node:
    # a place may occur twice
    hits = _scatter_along(call, filled(0, i32, x.shape), dim, index, filled(1, i32, index.shape), "max")
    return c.where(c.greater(hits, 0), filled(value, x.dtype, x.shape), x)


@row("scatter_reduce.two")
def _scatter_reduce(call: AtenCall, x: Node, dim: int, index: Node, source: Node, reduce: str, include_self: bool = True) -> Node:
    if x.dtype is bool_ or reduce not in ("sum", "amax", "amin", "mean"):
        refuse(f"scatter_reduce by {reduce} of {x.dtype}")
    wide = cast(x, wide_dtype(x.dtype))
    value = cast(source, wide.dtype)
    hit = _scatter_along(call, filled(0, i64, x.shape), dim, index, filled(1, i64, index.shape), "add")
    touched = c.greater(hit, 0)
    if reduce in ("sum", "mean"):
        base = wide if include_self else c.where(touched, like(wide, 0), wide)
        out = _scatter_along(call, base, dim, index, value, "add")
        if reduce == "mean":
            count = cast(c.maximum(hit + 1 if include_self else hit, 1), out.dtype)
            out = out / count if out.dtype.kind == "float" else atomic.idiv(out, count)
        return atomic.cast(out, x.dtype)
    turn = (lambda v: v) if reduce == "amax" else (c.neg if wide.dtype.kind == "float" else atomic.logical_not)
    least = -math.inf if wide.dtype.kind == "float" else int(wide.dtype.min)
    base = turn(wide) if include_self else c.where(touched, like(wide, least), turn(wide))
    return atomic.cast(turn(_scatter_along(call, base, dim, index, turn(value), "max")), x.dtype)


def _indexed(call: AtenCall, x: Node, indices: Sequence[Node | None]) -> tuple[Node, Node, list[int], tuple[Dim, ...]]:
    """Return (x with the indexed axes in front as one, places on it, the other axes, shape of the indices)."""
    chosen = [i for i, index in enumerate(indices) if index is not None]
    nodes = [call.read(_integers(indices[i]), x.shape[i], back=True) for i in chosen]
    shape = broadcast_shape("index", *nodes)
    others = [i for i in range(x.rank) if i not in chosen]
    front = atomic.permute(x, [*chosen, *others])
    flat = atomic.reshape(front, (d.product([x.shape[i] for i in chosen]), *(x.shape[i] for i in others)))
    places: Any = None
    for i, node in zip(chosen, nodes, strict=True):
        at = to_shape(node, shape)
        places = at if places is None else c.add(c.mul(places, filled(x.shape[i], i64)), at)
    return flat, places, others, shape


def _integers(index: Node | None) -> Node:
    assert index is not None
    return refuse("an index of booleans: how many are chosen depends on values") if index.dtype is bool_ else index


def _adjacent(indices: Sequence[Node | None]) -> int | None:
    """Return the first indexed axis, if the indexed axes are next to each other; None otherwise."""
    chosen = [i for i, index in enumerate(indices) if index is not None]
    return chosen[0] if chosen == list(range(chosen[0], chosen[0] + len(chosen))) else None


@row("index.Tensor")
def _index(call: AtenCall, x: Node, indices: Sequence[Node | None]) -> Node:
    flat, places, _, shape = _indexed(call, x, indices)
    out = atomic.gather(flat, places, axis=0)
    first = _adjacent(indices)
    if first:
        order = [*range(len(shape), len(shape) + first), *range(len(shape)), *range(len(shape) + first, out.rank)]
        out = atomic.permute(out, order)
    return out


@row("index_put.default")
def _index_put(call: AtenCall, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    mask = indices[0]
    if accumulate and x.dtype is bool_:
        return c.greater(_index_put(call, cast(x, i32), indices, cast(values, i32), True), 0)
    if len(indices) == 1 and mask is not None and mask.dtype is bool_:
        rows, inner = cast(values, x.dtype), x.rank - mask.rank
        if values.type.size() == 1 or (values.rank > inner and values.shape[0] == 1):
            rows = atomic.reshape(rows, values.shape[values.rank - inner:] if values.rank > inner else (1,) * inner)
        elif values.rank > inner:
            rows = _chosen_rows(mask, rows)
        wide = to_shape(atomic.reshape(mask, (*mask.shape, *(1,) * inner)), x.shape)
        rows = to_shape(rows, x.shape)
        return c.where(wide, c.add(x, rows) if accumulate else rows, x)
    while values.op.facts.view and values.inputs[0].type.size() == 1:
        values = values.inputs[0]
    if values.type.size() == 1 and not accumulate and x.rank:      # a place may occur twice
        hits = _index_put(call, filled(0, i32, x.shape), indices, filled(1, i32, ()), True)
        return c.where(c.greater(hits, 0), to_shape(atomic.reshape(cast(values, x.dtype), (1,) * x.rank), x.shape), x)
    flat, places, others, shape = _indexed(call, x, indices)
    first = _adjacent(indices) or 0
    rest = [x.shape[i] for i in others]
    source = to_shape(cast(values, x.dtype), (*rest[:first], *shape, *rest[first:]))
    source = atomic.permute(source, [*range(first, first + len(shape)), *range(first), *range(first + len(shape), source.rank)])
    out = atomic.scatter(flat, places, source, axis=0, mode="add" if accumulate else "set")
    chosen = [i for i, index in enumerate(indices) if index is not None]
    out = atomic.reshape(out, [*(x.shape[i] for i in chosen), *rest])
    return atomic.permute(out, np.argsort([*chosen, *others]).tolist())


for _name in ("index.Tensor", "index_put.default"):          # torch checks no range of these
    row(f"_unsafe_{_name}")(lambda call, *args, _name=_name: ROWS[_name](replace(call, reads=[]), *args))


def _chosen_rows(mask: Node, values: Node) -> Node:
    """Return rows of `values`, the first for the first place where the mask is True, and so on; elsewhere any of them."""
    places = c.cumsum(atomic.cast(atomic.reshape(mask, (mask.type.size(),)), i64), 0) - 1
    return atomic.reshape(atomic.gather(values, places, axis=0), (*mask.shape, *values.shape[1:]))


@row("masked_scatter.default")
def _masked_scatter(call: AtenCall, x: Node, mask: Node, source: Node) -> Node:
    wide = to_shape(mask, call.shape)
    return c.where(wide, _chosen_rows(wide, atomic.reshape(source, (source.type.size(),))), to_shape(x, call.shape))


@row("embedding.default")
def _embedding(call: AtenCall, weight: Node, ids: Node, *_: Any) -> Node:
    call.read(ids, weight.shape[0])
    return c.embedding(weight, ids, dtype=weight.dtype)


@row("index_select.default")
def _index_select(call: AtenCall, x: Node, dim: int, index: Node) -> Node:
    flat = x if x.rank else atomic.reshape(x, (1,))
    out = atomic.gather(flat, atomic.reshape(call.read(index, flat.shape[dim]), (index.type.size(),)), axis=dim % flat.rank)
    return atomic.reshape(out, call.shape)
