"""table: the table of ATen ops, what a row is called with, and what rows are made of: dtypes, shapes, constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensor_graphs.frontends.torch.functions import converted
from tensor_graphs.frontends.torch.index_ranges import Read
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f16, f32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_shape, broadcast_to

NO_END = (1 << 63) - 1
"""end of a slice that has none"""


@dataclass(frozen=True)
class AtenCall:
    """Facts that torch states of a call: shape and dtype of its (first) result, the common dtype of its first two operands, and the
    types of all results (None for one that is absent). reads: the indices of the call, for a check of their range."""

    shape: tuple[Dim, ...]
    dtype: DType
    common: DType
    results: Sequence[Any]
    reads: list[Read] = field(default_factory=list)

    def read(self, index: Node, size: Dim, back: bool = False) -> Node:
        """Return indices of an axis of `size` elements as i64, and note that they must be in its range. back: negative ones count
        from its end."""
        self.reads.append(Read(index, size, back))
        wide = atomic.cast(index, i64)
        return c.where(c.less(wide, 0), c.add(wide, filled(size, i64)), wide) if back else wide


ROWS: dict[str, Callable[..., Any]] = {}
"""Name of an ATen overload, without its namespace -> builder."""

def row(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(build: Callable[..., Any]) -> Callable[..., Any]:
        ROWS.update(dict.fromkeys(names, build))
        return build

    return add


def filled(value: Any, dtype: DType, shape: Sequence[Dim] = ()) -> Node:
    """Return a tensor filled with a number, or with the value of an expression of dims."""
    if isinstance(value, d.Expr):
        return atomic.cast(atomic.dim_fill(value, shape, i64), dtype)
    return atomic.fill(dtype.numpy.type(value).item() if dtype.kind != "float" else float(value), shape, dtype)


def cast(x: Any, dtype: DType) -> Node:
    """Return a tensor or a number as a tensor of this dtype. A conversion to bool asks for what is not 0."""
    if not isinstance(x, Node):
        return filled(x, dtype)
    if dtype is bool_ and x.dtype is not bool_:
        return c.not_equal(x, atomic.fill(0, x.shape, x.dtype))
    return converted(x, dtype)


def wide_dtype(dtype: DType) -> DType:
    """Return the dtype in which torch computes: f32 for narrow floats."""
    return f32 if dtype in (f16, bf16) else dtype


def to_shape(x: Node, shape: Sequence[Dim]) -> Node:
    """Return x, broadcast to a shape."""
    return broadcast_to(x, tuple(shape))


def real(build: Callable[..., Node]) -> Callable[..., Node]:
    """Return a row: a function of real numbers, computed in f32 at least."""
    return lambda call, *xs: atomic.cast(build(*together(wide_dtype(call.dtype), *xs)), call.dtype)


def together(dtype: DType, *xs: Any) -> list[Node]:
    """Return tensors and numbers as tensors of one dtype and shape."""
    nodes = [cast(x, dtype) for x in xs]
    shape = broadcast_shape("operands", *nodes)
    return [to_shape(n, shape) for n in nodes]


def like(x: Node, value: float) -> Node:
    return atomic.fill(value, x.shape, x.dtype)


