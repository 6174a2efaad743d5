"""algebra: the number systems in which the rows of the op table are evaluated, with one method per atomic op.

`Real`: floats are float64 whatever their dtype, and a cast between floats changes nothing; integers are exact and wrap in their
dtype. `AsWritten`: like Real, but rounded at every node to the node's dtype (to nearest, ties to even).

A method gets the node at concrete sizes (`At`) and its operands: float64, an integer's numpy dtype, or bool. It never writes to an
operand, and may return a view of one. It follows the fixed semantics that language/atomic.py lists.

Accuracy of a single op as written: add, mul, reciprocal, sqrt and casts are rounded correctly (a float64 result rounded to f32 or a
narrower dtype is the correctly rounded one: 53 ≥ 2·24 + 2 bits, Figueroa 1995); exp2, log2 and sin are within 1 ulp of float64
before that rounding, so wrong only where that ulp decides a tie; sum and scatter(add) add up in float64 and are rounded once, as
any kernel may accumulate in a wider dtype. NaN payloads are not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensor_graphs.language.atomic import python_slice
from tensor_graphs.language.dtypes import DType, bf16, f16, f32, f64
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.meaning.errors import InterpreterError, MeaningError

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class At:
    """A node at concrete sizes: attributes and types have ints where the node may have expressions of dims."""

    node: Node
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    input_types: tuple[TensorType, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the only output."""
        return tuple(int(s) for s in self.types[0].shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the only output."""
        return self.types[0].dtype


def carrier(dtype: DType) -> np.dtype[Any]:
    """Return the numpy dtype in which values of `dtype` are computed: float64 for floats, the same dtype for others."""
    return np.dtype(np.float64) if dtype.kind == "float" else dtype.numpy


def wide(x: Array, dtype: DType) -> Array:
    """Return x, an array of `dtype` or a wider one, in the dtype of `carrier`; x itself if it has that dtype."""
    return x.astype(carrier(dtype), copy=False)


def narrow(x: Array, dtype: DType) -> Array:
    """Return floats rounded to the nearest of `dtype`, ties to even, as an array of `dtype.numpy`. Beyond its range the result is
    ±∞, or NaN if the dtype has no infinity."""
    with np.errstate(all="ignore"):
        if x.dtype.itemsize < 8 or dtype in (f64, f32, f16):
            return x.astype(dtype.numpy, copy=False)
        if dtype is not bf16:
            return _f32_to_odd(x).astype(dtype.numpy)
        # ml_dtypes rounds float64 to float32 first; a value that lands on a tie there would be rounded twice
        near = np.asarray(x.astype(np.float32))
        tie = (near.view(np.uint32) & np.uint32(0xFFFF)) == 0x8000
        if tie.any():
            exact, first = x[tie], near[tie]
            toward = np.where(first > exact, np.float32(-np.inf), np.float32(np.inf))
            near[tie] = np.where(first.astype(np.float64) == exact, first, np.nextafter(first, toward))
        return near.astype(dtype.numpy)


def _f32_to_odd(x: Array) -> Array:
    """Return float64 as float32, rounded to odd where inexact, so that a second rounding to fewer bits gives the nearest value."""
    near = np.asarray(x.astype(np.float32))
    inexact = np.asarray(near.astype(np.float64) != x) & ~np.isnan(x)
    if inexact.any():
        exact, first = x[inexact], near[inexact]
        low = np.where(np.abs(first.astype(np.float64)) > np.abs(exact), np.nextafter(first, np.float32(0)), first)
        near[inexact] = (low.view(np.uint32) | np.uint32(1)).view(np.float32)
    return near


def _to_odd(x: Array) -> Array:
    """Return 64-bit integers as float64, rounded to odd where inexact, so that a second rounding gives the nearest value."""
    exact = x.astype(np.float64)
    if x.dtype.itemsize < 8:
        return exact
    shifted = x >> x.dtype.type(11)                            # floors, also for negative numbers
    sticky = ((x & x.dtype.type(0x7FF)) != 0).astype(x.dtype)
    return np.where(np.abs(exact) >= 2.0**53, (shifted | sticky).astype(np.float64) * 2048.0, exact)


def _signed_zero(negative: Array) -> Array:
    return np.where(negative, -0.0, 0.0)


def _by_numpy(function: np.ufunc) -> Callable[..., Array]:
    """Return the method of an algebra that applies a numpy function to the operands."""
    return lambda self, n, *operands: np.asarray(function(*operands))


class Real:
    """Real numbers, approximated by float64; integers are exact. See the module's docstring."""

    def constant(self, n: At, value: bool | int | float | Array) -> Array:
        """Return a constant's value; an array is passed in its stored dtype. Raises MeaningError for an integer out of range."""
        if isinstance(value, np.ndarray):
            return wide(value, n.dtype)
        if n.dtype.is_integer and not n.dtype.min <= value <= n.dtype.max:
            raise MeaningError(f"the constant {n.node.attrs['value']} is {value} at these sizes, which {n.dtype.name} "
                               f"does not hold", n.node.location, fix="give the constant a wider dtype")
        return np.asarray(value, dtype=carrier(n.dtype))

    def finish(self, n: At, value: Array) -> Array:
        """Return the final value of a node from the value that its row computed."""
        return value

    # ---- sources and elementwise -------------------------------------------------------------------------------------

    reciprocal, sqrt, exp2, log2, sin, floor = map(
        _by_numpy, (np.reciprocal, np.sqrt, np.exp2, np.log2, np.sin, np.floor))
    add, mul, bit_and, bit_xor, less, not_equal = map(
        _by_numpy, (np.add, np.multiply, np.bitwise_and, np.bitwise_xor, np.less, np.not_equal))

    def iota(self, n: At) -> Array:
        axis = n.attrs["axis"]
        line = np.arange(n.shape[axis], dtype=np.int64).astype(carrier(n.dtype))        # integers wrap
        return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(n.shape))]), n.shape)

    def cast(self, n: At, x: Array) -> Array:
        old, new = n.input_types[0].dtype, n.dtype
        if new.kind == "bool":
            return np.asarray(x != 0)                       # NaN is not 0
        if new.kind == "float":
            return x.astype(np.float64, copy=False)
        if old.kind != "float":
            return x.astype(new.numpy)                      # wraps
        out = np.zeros(x.shape, dtype=new.numpy)            # NaN stays 0
        whole = np.trunc(x)
        high, low = np.asarray(whole >= float(new.max)), np.asarray(whole <= float(new.min))
        inside = ~(high | low | np.isnan(whole))
        out[inside] = whole[inside].astype(new.numpy)
        out[high], out[low] = new.max, new.min
        return out

    def bitcast(self, n: At, x: Array) -> Array:
        old, new = n.input_types[0].dtype, n.dtype
        stored = np.ascontiguousarray(self.stored(x, old)).reshape(-1)
        if new.kind == "bool":                              # a byte other than 0 and 1 is no numpy bool
            return np.asarray(stored.view(np.uint8).reshape(n.shape) != 0)
        return wide(stored.view(new.numpy).reshape(n.shape), new)

    def stored(self, x: Array, dtype: DType) -> Array:
        """Return the values in their stored form, whose bits a bitcast reads."""
        return narrow(x, dtype) if dtype.kind == "float" else x

    def max(self, n: At, x: Array, y: Array) -> Array:
        out = np.asarray(np.maximum(x, y))                  # propagates NaN, but takes either zero
        if n.dtype.kind == "float":
            zero = out == 0
            if np.any(zero):
                out[zero] = _signed_zero(np.signbit(x[zero]) & np.signbit(y[zero]))
        return out

    def idiv(self, n: At, x: Array, y: Array) -> Array:
        none = y == 0
        out = np.asarray(np.floor_divide(x, np.where(none, y.dtype.type(1), y)))        # smallest // −1 wraps
        out[none] = 0
        return out

    def where(self, n: At, condition: Array, x: Array, y: Array) -> Array:
        return np.where(condition, x, y)

    # ---- reductions --------------------------------------------------------------------------------------------------

    def sum(self, n: At, x: Array) -> Array:
        axes = n.attrs["axes"]
        if n.dtype.kind != "float":
            return np.asarray(np.sum(x, axis=axes, dtype=x.dtype))      # wraps
        if x.size == 0:
            return np.zeros(n.shape)
        # numpy adds pairwise along the last, contiguous axis only; that is what keeps long sums in float64 exact enough
        other_axes = [i for i in range(x.ndim) if i not in axes]
        return np.asarray(np.sum(np.ascontiguousarray(x.transpose(other_axes + list(axes))).reshape(*n.shape, -1), axis=-1))

    def reduce_max(self, n: At, x: Array) -> Array:
        axes = n.attrs["axes"]
        if n.dtype.kind != "float":
            return np.asarray(np.max(x, axis=axes, initial=int(n.dtype.min)))
        out = np.asarray(np.max(x, axis=axes, initial=-np.inf))
        zero = out == 0
        if np.any(zero):
            out = np.where(zero, _signed_zero(~np.any((x == 0) & ~np.signbit(x), axis=axes)), out)
        return out

    # ---- movement ----------------------------------------------------------------------------------------------------

    def reshape(self, n: At, x: Array) -> Array:
        return x.reshape(n.shape)

    def permute(self, n: At, x: Array) -> Array:
        return x.transpose(n.attrs["axes"])

    def expand(self, n: At, x: Array) -> Array:
        return np.broadcast_to(x, n.shape)

    def pad(self, n: At, x: Array) -> Array:
        padding = n.attrs["padding"]
        for axis, pair in enumerate(padding):
            if min(pair) < 0:
                raise MeaningError(f"pad: axis {axis} is padded by {min(pair)} at these sizes", n.node.location,
                                   fix="choose sizes at which the amounts are ≥ 0")
        out = np.full(n.shape, n.attrs["value"], dtype=x.dtype)
        out[tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, padding, strict=True))] = x
        return out

    def slice(self, n: At, x: Array) -> Array:
        for axis, ((start, stop, step), size) in enumerate(zip(n.attrs["bounds"], x.shape, strict=True)):
            low, high = (start, stop) if step > 0 else (stop + 1, start + 1)
            if not 0 <= low <= high <= size:
                raise MeaningError(f"slice: axis {axis} from {start} to {stop} step {step} leaves the axis of size "
                                   f"{size}", n.node.location,
                                   fix="choose sizes at which the bounds lie inside of the axis")
        return np.asarray(x[tuple(python_slice(*bound) for bound in n.attrs["bounds"])])

    # ---- indexing ----------------------------------------------------------------------------------------------------

    def gather(self, n: At, x: Array, index: Array) -> Array:
        axis = n.attrs["axis"]
        inside = np.asarray((index >= 0) & (index < x.shape[axis]))
        if not inside.any():
            return np.zeros(n.shape, dtype=x.dtype)
        out = np.take(x, np.where(inside, index, index.dtype.type(0)).astype(np.intp), axis=axis)
        if not inside.all():
            rows = out.reshape(*x.shape[:axis], index.size, *x.shape[axis + 1:])        # a view of out
            np.moveaxis(rows, axis, 0)[~inside.reshape(-1)] = 0
        return out

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        axis, mode = n.attrs["axis"], n.attrs["mode"]
        flat = index.reshape(-1)
        inside = np.flatnonzero((flat >= 0) & (flat < base.shape[axis]))
        places = flat[inside].astype(np.intp)
        out = base.copy()
        rows = np.moveaxis(out, axis, 0)                    # a view: writing to it writes to out
        new = np.moveaxis(updates.reshape(*base.shape[:axis], flat.size, *base.shape[axis + 1:]), axis, 0)[inside]
        if mode == "set":
            values, counts = np.unique(places, return_counts=True)
            if np.any(counts > 1):
                first = int(np.argmax(counts > 1))
                raise InterpreterError(f"scatter(set): the index {values[first]} of axis {axis} occurs {counts[first]} "
                                       f"times, so the result would depend on an order", n.node.location,
                                       fix="make the indices distinct, or use mode add or max")
            rows[places] = new
        elif mode == "add":
            np.add.at(rows, places, new)
        else:
            np.maximum.at(rows, places, new)
            zero = out == 0
            if n.dtype.kind == "float" and np.any(zero):
                plus = np.asarray((base == 0) & ~np.signbit(base))
                np.logical_or.at(np.moveaxis(plus, axis, 0), places, (new == 0) & ~np.signbit(new))
                out = np.where(zero, _signed_zero(~plus), out)
        return out


class AsWritten(Real):
    """Real, rounded at every node to the node's dtype; the values are still float64 arrays, which represent them exactly."""

    def constant(self, n: At, value: bool | int | float | Array) -> Array:
        return self._round(super().constant(n, value), n.dtype)

    def finish(self, n: At, value: Array) -> Array:
        return value if n.node.op.facts.exact else self._round(value, n.dtype)

    def cast(self, n: At, x: Array) -> Array:
        if n.dtype.kind == "float" and n.input_types[0].dtype.is_integer:
            # f64 and f32 straight from the integer; the narrow ones by way of float64 without rounding twice
            return x.astype(n.dtype.numpy).astype(np.float64) if n.dtype.itemsize >= 4 else _to_odd(x)
        return super().cast(n, x)

    def _round(self, value: Array, dtype: DType) -> Array:
        return wide(narrow(value, dtype), dtype) if dtype.kind == "float" and dtype.itemsize < 8 else value


TERMS = 4096
"""cap on the number of terms of a sum whose partial sums are assumed to be rounded: longer sums are added in parts"""

NOWHERE = np.zeros((), np.bool_)


class Jittered(AsWritten):
    """AsWritten with sums perturbed as if they were added in another order. Every term is perturbed by up to JITTER units in the
    last place, and the sum by up to the rounding error of as many partial sums. The latter matters for many terms, whose
    perturbations cancel: x − mean(x) of equal numbers is seldom 0.

    No kernel can be required to avoid a change that this makes. Narrow floats count as f32, in which kernels add them. A sum that
    overflows in some order of its terms gets the result of such an order: for every third seed the total, also beyond the dtype's
    range, as from a kernel that accumulates in a wider dtype; else ∞, −∞ or NaN. Which of these three changes per element from seed
    to seed, so that three seeds cover all that an element may be; one choice for all elements, such as NaN, could be hidden by the
    op that reads them. The sign and the payload of a NaN, which nothing preserves, differ for each of four consecutive seeds.
    """

    JITTER = 16

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.rng = np.random.Generator(np.random.Philox(key=seed))
        self.turns = np.random.Generator(np.random.Philox(key=0))    # whatever the seed

    def finish(self, n: At, value: Array) -> Array:
        rounded = super().finish(n, value)
        if n.node.op.name == "sum" and n.dtype.kind == "float" and self.seed % 3 == 0:
            return np.where(np.isinf(rounded), value, rounded)
        return rounded

    def sum(self, n: At, x: Array) -> Array:
        if n.dtype.kind != "float":
            return super().sum(n, x)
        x = self._moved(n, x)
        plus = minus = NOWHERE
        if np.isinf(x).any():                                       # seldom: two more sums of everything
            plus, minus = (super(Jittered, self).sum(n, (x == infinity).astype(np.float64)) > 0 for infinity in (np.inf, -np.inf))
        total = super().sum(n, x)
        total = self._lost(n, total, x.size // max(1, total.size))
        if _largest(x) * (x.size / max(1, total.size)) <= _most(n):      # no order of adding leaves the range: two sums less
            return self._reached(n, total, NOWHERE, NOWHERE)
        return self._reached(n, total, super().sum(n, _above_zero(x)), super().sum(n, _above_zero(-x)), plus, minus)

    def scatter(self, n: At, base: Array, index: Array, updates: Array) -> Array:
        if n.dtype.kind != "float" or n.attrs["mode"] != "add":
            return super().scatter(n, base, index, updates)
        added = super().scatter(n, np.zeros_like(base), index, np.ones_like(updates)) > 0
        base, updates = np.where(added, self._moved(n, base), base), self._moved(n, updates)
        up = super().scatter(n, _above_zero(base), index, _above_zero(updates))
        down = super().scatter(n, _above_zero(-base), index, _above_zero(-updates))
        return np.where(added, self._reached(n, super().scatter(n, base, index, updates), up, down), base)

    def stored(self, x: Array, dtype: DType) -> Array:
        out = super().stored(x, dtype)
        none = np.isnan(x) if dtype.kind == "float" else np.zeros(0, bool)
        if not none.any():
            return out
        unsigned = np.dtype(f"u{dtype.itemsize}")
        infinity = int(narrow(np.full(1, np.inf), dtype).view(unsigned)[0])
        quiet = (infinity & -infinity) >> 1 if dtype.has_infinity else 0        # the fraction's highest bit; else there is none
        bits = infinity | quiet | (quiet - 1 if quiet and self.seed & 2 else 0)
        bits |= 1 << (8 * dtype.itemsize - 1) if self.seed & 1 else 0
        out = np.array(out)                                 # x itself may have come back
        out.view(unsigned)[none] = bits
        return out

    def _moved(self, n: At, x: Array) -> Array:
        """Return the terms of a sum perturbed; no finite term becomes infinite."""
        step = self.JITTER * (2.0 ** -52 if n.dtype.itemsize == 8 else 2.0 ** -23)
        moved = self.rng.uniform(1.0 - step, 1.0 + step, x.shape)
        with np.errstate(all="ignore"):
            moved *= x
        return moved if _largest(x) <= f64.max / 2 else np.where(np.isfinite(x), np.clip(moved, -f64.max, f64.max), x)

    def _lost(self, n: At, total: Array, terms: int) -> Array:
        """Return a sum perturbed by the rounding error of its partial sums (as in running_error.py, with all terms equal)."""
        step = math.sqrt(max(0, min(terms, TERMS) - 1) / 3.0) * (2.0 ** -53 if n.dtype.itemsize == 8 else 2.0 ** -24)
        with np.errstate(all="ignore"):
            moved = total * self.rng.uniform(1.0 - step, 1.0 + step, total.shape)
        return np.where(np.abs(moved) <= n.dtype.max, moved, total)        # none becomes infinite by that, either

    def _reached(self, n: At, total: Array, up: Array, down: Array, plus: Array = NOWHERE, minus: Array = NOWHERE) -> Array:
        """Return sums as some order of adding gives them. up: sum of the positive terms; down: of the negative ones, negated. plus,
        minus: where a term is ∞, −∞; other terms may have overflowed to the opposite infinity before."""
        most = _most(n)
        over, under = up > most, down > most
        turn = self.turns.integers(3, size=total.shape, dtype=np.uint8)     # drawn in any case: one sum's are no other's
        if self.seed % 3 == 0 or not (over.any() or under.any()):
            return total
        turn = (turn + (self.seed - self.seed // 3) % 3) % 3
        numbers = ~(plus | minus)
        grown = np.where(over & numbers & (turn == 0), np.inf, np.where(under & numbers & (turn == 1), -np.inf, total))
        return np.where((over | plus) & (under | minus) & (turn == 2), np.nan, grown)


ALMOST = 2.0 ** -20
"""share of the dtype's largest number by which roundings may move a sum"""


def _most(n: At) -> float:
    """Return the largest sum of terms of one sign that overflows in no order."""
    return (f64.max if n.dtype.itemsize == 8 else f32.max) * (1.0 - ALMOST)


def _largest(x: Array) -> float:
    """Return the largest absolute value; NaN if one of the numbers is NaN."""
    return float(np.maximum(x.max(initial=0.0), -x.min(initial=0.0)))


def _above_zero(x: Array) -> Array:
    """Return x with 0 in place of all terms that are not finite and above 0."""
    return np.where(np.isfinite(x) & (x > 0), x, 0.0)
