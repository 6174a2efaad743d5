"""writes: a tensor with some of its slices overwritten, which is how a state (a KV cache) is updated.

All of these are `scatter(mode="set")`: rows out of range are dropped, and the planner decides whether memory is written in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import dim_fill, same_dim, same_dtype, show
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts, Rows
from tensor_graphs.language.operands import broadcast_to

__all__ = ["write_at", "write_at_index", "write_rows"]


def _row_numbers(count: Dim, start: Dim) -> Node:
    """Return start, start + 1, …, start + count − 1 as i32[count]."""
    return atomic.add(atomic.iota((count,), 0, i32), dim_fill(start, (count,)))


def _write_rows_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    out = roles["base"].copy()
    rows = np.moveaxis(out, attrs["axis"], 0)                    # a view: writing to it writes to out
    value = np.moveaxis(roles["value"], attrs["axis"], 0)
    first, last = max(attrs["start"], 0), min(attrs["start"] + len(value), len(rows))
    if first < last:
        rows[first:last] = value[first - attrs["start"]:last - attrs["start"]]
    return out


@of_one_output
def _write_rows_gradient(node: Node, g: Node) -> dict[str, Node | None]:
    value, start, axis = node.inputs[1], node.attrs["start"], node.attrs["axis"]
    zeros = atomic.fill(0, value.shape, value.dtype)
    return {"base": write_rows(g, zeros, start=start, axis=axis),
            "value": atomic.gather(g, _row_numbers(value.shape[axis], start), axis=axis)}


@library(direct=_write_rows_direct, gradient=_write_rows_gradient, facts=OpFacts(writes=Rows(0, None), closed=True))
def write_rows(base: Node, value: Node, *, start: Dim, axis: int = 0) -> Node:
    """base[…, s, …] with value[…, c, …] written at start … start + c − 1 of `axis`; what falls outside is dropped.

    start is an int or an expression of dims. Raises ShapeError unless value has base's shape but for `axis`.

    Any dtype, the same for both. Raises DTypeError, AttributeValueError too.
    """
    axis = one_axis("write_rows", axis, base.rank)
    same_dtype("write_rows", base, value)
    if value.rank != base.rank or not all(
            same_dim(a, b) for i, (a, b) in enumerate(zip(base.shape, value.shape, strict=True)) if i != axis):
        raise ShapeError(f"write_rows of {show(value)} into {show(base)} along axis {axis}",
                         fix=f"the value has the shape of the base except along axis {axis}")
    if isinstance(start, bool) or not isinstance(start, (int, d.Expr)):
        raise AttributeValueError(f"write_rows: the start is {start!r}", fix="an int, or an expression of dims")
    return atomic.scatter(base, _row_numbers(value.shape[axis], start), value, axis=axis, mode="set")


@library(facts=OpFacts(writes=Rows(0, 2), closed=True))
def write_at_index(base: Node, value: Node, index: Node, *, axis: int = 0) -> Node:
    """base with slices of `value` written at the integers `index` along `axis`; indices out of range are dropped.

    base[a…, s, b…], index[i…], value[a…, i…, b…]. No two indices may be equal. Raises ShapeError, DTypeError.

    Any dtype, the same for base and value.
    """
    return atomic.scatter(base, index, value, axis=one_axis("write_at_index", axis, base.rank), mode="set")


def write_at(base: Node, value: Node, at: Dim | Node, axis: int = 0) -> Node:
    """A copy of `base` in which slices along `axis` are replaced by those of `value`, from index `at` on or at the indices `at`.

    at: the first index (an int, a dim or an integer scalar), or integers with one index per slice of `value`, no two of them equal.
    Slices outside of `base` are dropped. `State.write` calls this function. Raises ShapeError, DTypeError, AttributeValueError.
    """
    axis = one_axis("write_at", axis, base.rank)
    if isinstance(at, (int, np.integer, d.Expr)) and not isinstance(at, bool):
        return write_rows(base, value, start=int(at) if isinstance(at, np.integer) else at, axis=axis)
    if not isinstance(at, Node):
        at = constant(np.asarray(at))
    if at.rank == 0 and value.rank == base.rank:       # a position known only at run time: rows at, at + 1, …
        count = value.shape[axis]
        at = atomic.add(atomic.iota((count,), 0, at.dtype), broadcast_to(at, (count,)))
    return write_at_index(base, value, at, axis=axis)
