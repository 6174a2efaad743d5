"""constructors: tensors from sizes alone (zeros, ones, full, arange), and the triangles of a matrix.

None of these is a separate op: a full tensor is an expanded constant, arange an iota, a triangle a comparison of two iotas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import fill
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f32, i32, parse_dtype
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

__all__ = ["arange", "eye", "full", "ones", "tril", "triu", "zeros"]

Shape = Sequence[Dim] | Dim
Number = bool | int | float


def full(shape: Shape, value: Number, dtype: DType | str | None = None) -> Node:
    """A tensor of one number everywhere. dtype: f32 for a float, i32 for an int, bool for a bool unless given.

    Any dtype. Raises ShapeError, DTypeError (the dtype can not hold the number).
    """
    usual = bool_ if isinstance(value, (bool, np.bool_)) else i32 if isinstance(value, (int, np.integer)) else f32
    return fill(value, _sizes(shape), usual if dtype is None else parse_dtype(dtype))


def zeros(shape: Shape, dtype: DType | str = f32) -> Node:
    """A tensor of zeros.

    Any dtype. Raises ShapeError, DTypeError.
    """
    return full(shape, 0, dtype)


def ones(shape: Shape, dtype: DType | str = f32) -> Node:
    """A tensor of ones.

    Any dtype. Raises ShapeError, DTypeError.
    """
    return full(shape, 1, dtype)


def arange(start: Dim | float, stop: Dim | float | None = None, step: int | float = 1, dtype: DType | str | None = None) -> Node:
    """start, start + step, … below stop (above it for a negative step): numpy.arange; arange(n) counts from 0.

    A vector of ⌈(stop − start) / step⌉ numbers, none where that is negative. start and stop may be dims, with a step of 1.
    dtype: i32, or f32 where one of the numbers is a float, unless given. Raises AttributeValueError (a step of 0, or dims with
    another step than 1).
    """
    if stop is None:
        start, stop = 0, start
    if isinstance(step, bool) or not isinstance(step, (int, float, np.number)) or step == 0:
        raise AttributeValueError(f"arange: the step is {step!r}", fix="a number other than 0")
    if isinstance(start, d.Expr) or isinstance(stop, d.Expr):
        if step != 1 or isinstance(start, float) or isinstance(stop, float):
            raise AttributeValueError(f"arange from {start} to {stop} by {step}: of dims the step is 1, and both ends are sizes",
                                      fix="arange(n) * step + start")
        size: Dim = d.dim_max(stop - start, 0)
    else:
        size = max(0, math.ceil((stop - start) / step))
    has_float = any(isinstance(x, (float, np.floating)) for x in (start, stop, step))
    places = atomic.iota((size,), 0, (f32 if has_float else i32) if dtype is None else parse_dtype(dtype))
    scaled = places if step == 1 else arithmetic.mul(places, step)
    return scaled if isinstance(start, (int, float)) and start == 0 else arithmetic.add(scaled, start)


def eye(n: Dim, m: Dim | None = None, k: int = 0, dtype: DType | str = f32) -> Node:
    """The matrix [n, m] (m: n unless given) of ones where column − row = k, and zeros (numpy.eye).

    Any dtype. Raises ShapeError, DTypeError.
    """
    shape = (n, n if m is None else m)
    return atomic.cast(arithmetic.equals(atomic.iota(shape, 1), arithmetic.add(atomic.iota(shape, 0), k)), dtype)


def tril(x: Node, k: int = 0) -> Node:
    """The lower triangle of the last two axes: x where column − row ≤ k, 0 elsewhere (numpy.tril).

    x[…, m, n] of any dtype. Raises ShapeError (fewer than two axes).
    """
    return _triangle("tril", x, k, upper=False)


def triu(x: Node, k: int = 0) -> Node:
    """The upper triangle of the last two axes: x where column − row ≥ k, 0 elsewhere (numpy.triu).

    x[…, m, n] of any dtype. Raises ShapeError (fewer than two axes).
    """
    return _triangle("triu", x, k, upper=True)


def _triangle(name: str, x: Node, k: int, *, upper: bool) -> Node:
    if x.rank < 2:
        raise ShapeError(f"{name} of {x.type}: a matrix has two axes", fix="x[None] makes a row of a vector")
    shape = x.shape[-2:]
    rows, columns = arithmetic.add(atomic.iota(shape, 0), k), atomic.iota(shape, 1)
    inside = arithmetic.greater_equal(columns, rows) if upper else arithmetic.less_equal(columns, rows)
    return arithmetic.where(broadcast_to(inside, x.shape), x, fill(0, x.shape, x.dtype))


def _sizes(shape: Shape) -> tuple[Dim, ...]:
    return (shape,) if isinstance(shape, (int, np.integer, d.Expr)) else tuple(shape)
