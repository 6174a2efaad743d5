"""algebra: what the rows of the op table are evaluated in. `Real`: floats as float64, integers exact in their own dtype.

Each method takes the node at concrete sizes (`At`) and the operands' values. `AsWritten` rounds every float result to its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.meaning.errors import InterpreterError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class At:
    """A node with every dim replaced by its value."""

    node: Node
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    input_types: tuple[TensorType, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(s) for s in self.types[0].shape)

    @property
    def dtype(self) -> DType:
        return self.types[0].dtype


def carrier(dtype: DType) -> np.dtype[Any]:
    """The numpy dtype in which the oracle holds values of a dtype: float64 for every float, itself for the others."""
    return np.dtype(np.float64) if dtype.kind == "float" else dtype.numpy


def round_to(x: Array, dtype: DType) -> Array:
    """float64 values rounded to nearest even in a narrower float dtype, held in float64 again."""
    with np.errstate(all="ignore"):
        return x.astype(dtype.numpy).astype(np.float64)


class Real:
    """Floats are real numbers as well as float64 can hold them; float→float casts change nothing."""

    rounds = False

    def value(self, x: Array, dtype: DType) -> Array:
        """An op's result as this algebra keeps it."""
        return x

    def _quiet(self, n: At, f: Callable[..., Any], *xs: Array) -> Array:
        with np.errstate(all="ignore"):
            return self.value(np.asarray(f(*xs)), n.dtype)

    def iota(self, n: At) -> Array:
        axis = n.attrs["axis"]
        line = np.arange(n.shape[axis]).astype(carrier(n.dtype)).reshape([-1 if i == axis else 1 for i in range(len(n.shape))])
        return self.value(np.array(np.broadcast_to(line, n.shape)), n.dtype)

    def reciprocal(self, n: At, x: Array) -> Array:
        return self._quiet(n, lambda v: 1.0 / v, x)

    def sqrt(self, n: At, x: Array) -> Array:
        return self._quiet(n, np.sqrt, x)

    def exp2(self, n: At, x: Array) -> Array:
        return self._quiet(n, np.exp2, x)

    def log2(self, n: At, x: Array) -> Array:
        return self._quiet(n, np.log2, x)

    def sin(self, n: At, x: Array) -> Array:
        return self._quiet(n, np.sin, x)

    def floor(self, n: At, x: Array) -> Array:
        return self._quiet(n, np.floor, x)

    def cast(self, n: At, x: Array) -> Array:
        source, target = n.input_types[0].dtype, n.dtype
        if target.kind == "float":
            return self.value(x.astype(np.float64), target)
        if target.kind == "bool":
            return np.asarray(x != 0)
        if source.kind != "float":
            return x.astype(target.numpy)                          # integers wrap
        info = np.iinfo(target.numpy)
        truncated = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
        high, low = truncated >= float(info.max), truncated <= float(info.min)
        out = np.zeros(truncated.shape, dtype=target.numpy)
        inside = ~(high | low)
        out[inside] = truncated[inside].astype(target.numpy)
        out[high], out[low] = info.max, info.min
        return out

    def bitcast(self, n: At, x: Array) -> Array:
        source = n.input_types[0].dtype
        with np.errstate(all="ignore"):                            # a float has bits only in its own dtype
            raw = np.ascontiguousarray(x.astype(source.numpy)).view(n.dtype.numpy).reshape(n.shape)
            return raw.astype(carrier(n.dtype))

    def add(self, n: At, x: Array, y: Array) -> Array:
        return self._quiet(n, np.add, x, y)

    def mul(self, n: At, x: Array, y: Array) -> Array:
        return self._quiet(n, np.multiply, x, y)

    def max(self, n: At, x: Array, y: Array) -> Array:
        larger = self._quiet(n, np.maximum, x, y)                  # propagates NaN
        if n.dtype.kind != "float":
            return larger
        zeros = (x == 0) & (y == 0)                                # numpy leaves the sign of a zero open; here +0 > −0
        return np.where(zeros, np.where(np.signbit(x) & np.signbit(y), -0.0, 0.0), larger)

    def idiv(self, n: At, x: Array, y: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y))).astype(n.dtype.numpy)

    def bit_and(self, n: At, x: Array, y: Array) -> Array:
        return np.asarray(x & y)

    def bit_xor(self, n: At, x: Array, y: Array) -> Array:
        return np.asarray(x ^ y)

    def less(self, n: At, x: Array, y: Array) -> Array:
        return np.asarray(x < y)

    def not_equal(self, n: At, x: Array, y: Array) -> Array:
        return np.asarray(x != y)

    def where(self, n: At, c: Array, x: Array, y: Array) -> Array:
        return np.where(c, x, y)

    def sum(self, n: At, x: Array) -> Array:
        return self._quiet(n, lambda v: np.sum(v, axis=n.attrs["axes"], dtype=v.dtype), x)

    def reduce_max(self, n: At, x: Array) -> Array:
        if n.dtype.kind != "float":
            return np.asarray(np.max(x, axis=n.attrs["axes"], initial=np.iinfo(n.dtype.numpy).min)).astype(x.dtype)
        out = np.asarray(np.max(x, axis=n.attrs["axes"], initial=-np.inf))
        positive_zero = np.any((x == 0) & ~np.signbit(x), axis=n.attrs["axes"])
        return np.where((out == 0) & positive_zero, 0.0, np.where(out == 0, -0.0, out))

    def reshape(self, n: At, x: Array) -> Array:
        return x.reshape(n.shape)

    def permute(self, n: At, x: Array) -> Array:
        return x.transpose(n.attrs["axes"])

    def expand(self, n: At, x: Array) -> Array:
        return np.broadcast_to(x, n.shape)

    def pad(self, n: At, x: Array) -> Array:
        out = np.full(n.shape, n.attrs["value"], dtype=carrier(n.dtype))
        out[tuple(slice(before, before + size) for (before, _), size in zip(n.attrs["padding"], x.shape, strict=True))] = x
        return self.value(out, n.dtype)

    def slice(self, n: At, x: Array) -> Array:
        return x[tuple(slice(a, None if s < 0 and b < 0 else b, s) for a, b, s in n.attrs["bounds"])]

    def gather(self, n: At, x: Array, index: Array) -> Array:
        axis = n.attrs["axis"]
        size = x.shape[axis]
        if size == 0:
            return np.zeros(n.shape, dtype=carrier(n.dtype))
        inside = (index >= 0) & (index < size)
        taken = np.take(x, np.where(inside, index, 0).astype(np.int64), axis=axis).astype(carrier(n.dtype))
        keep = inside.reshape((1,) * axis + inside.shape + (1,) * (x.ndim - axis - 1))
        return np.where(keep, taken, np.zeros((), taken.dtype))

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        axis, mode = n.attrs["axis"], n.attrs["mode"]
        out = base.copy()
        flat = index.reshape(-1)
        inside = np.flatnonzero((flat >= 0) & (flat < base.shape[axis]))
        at = flat[inside].astype(np.int64)
        if mode == "set":
            values, counts = np.unique(at, return_counts=True)
            if np.any(counts > 1):
                raise InterpreterError(f"scatter(set) at {n.node.location}: index {int(values[counts > 1][0])} occurs "
                                       f"{int(counts.max())} times, so the result would hang on an order\n"
                                       "  fix: unique indices, or mode add or max")
        to = np.moveaxis(out, axis, 0)
        flat_updates = updates.reshape((*base.shape[:axis], flat.size, *base.shape[axis + 1:]))
        source = np.moveaxis(flat_updates, axis, 0)[inside]
        with np.errstate(all="ignore"):
            if mode == "set":
                to[at] = source
            elif mode == "add":
                np.add.at(to, at, source)
            else:
                np.maximum.at(to, at, source)
        return self.value(out, n.dtype)


class AsWritten(Real):
    """Every float result is rounded to the node's dtype: each op is computed in float64 from rounded operands, then rounded once.

    For dtypes up to f32 that is the correctly rounded result of add, mul, reciprocal and sqrt (float64 has more than twice the
    bits); f64 graphs are as in `Real`.
    """

    rounds = True

    def value(self, x: Array, dtype: DType) -> Array:
        return round_to(x, dtype) if dtype.kind == "float" and dtype.itemsize < 8 else x
