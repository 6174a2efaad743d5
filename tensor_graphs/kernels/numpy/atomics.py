"""atomics: the atomic ops in numpy, each with the semantics fixed in language/atomic.py.

Each function f(outs, ins, attrs) writes outs[0]; arrays may have any strides. Floats of 16 and 8 bits are computed in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from tensor_graphs.language.dtypes import BY_NUMPY

Arrays = Sequence[np.ndarray]
Function = Callable[[Arrays, Arrays, Mapping[str, Any]], None]
TABLE: dict[str, tuple[Function, bool]] = {}
"""op name -> (function, True where the output may share memory with operand 0)"""


def row(op: str, in_place: bool = False, table: dict[str, tuple[Function, bool]] = TABLE, *,
        warns: bool = True) -> Callable[[Function], Function]:
    """Return a decorator that puts a function into a table. warns: numpy may warn about floats in the function, so it runs with
    warnings off (np.errstate, 2 µs a call)."""
    def add(f: Function) -> Function:
        if not warns:
            table[op] = (f, in_place)
            return f

        @wraps(f)
        def quiet(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
            with np.errstate(all="ignore"):
                f(outs, ins, attrs)

        table[op] = (quiet, in_place)
        return quiet

    return add


def wide(x: np.ndarray) -> np.ndarray:
    """Return floats of 16 and 8 bits as f32 (numpy has no fast loops for them), and other arrays unchanged."""
    return x.astype(np.float32) if x.dtype.itemsize <= 2 and is_float(x) else x


def is_float(x: np.ndarray) -> bool:
    dtype = BY_NUMPY.get(x.dtype)                           # numpy has no common `kind` for the floats of ml_dtypes
    return dtype is not None and dtype.is_float


def widened(op: str, function: np.ufunc, table: dict[str, tuple[Function, bool]] = TABLE) -> None:
    """Put an op of one operand into a table. It applies the numpy function to the operand, with 16- and 8-bit floats as f32."""
    def run(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        outs[0][...] = function(wide(ins[0]))

    run.__name__ = op
    row(op, True, table)(run)


for _op, _function in {"reciprocal": np.reciprocal, "sqrt": np.sqrt, "exp2": np.exp2, "log2": np.log2, "sin": np.sin,
                       "floor": np.floor}.items():
    widened(_op, _function)


def direct(op: str, function: np.ufunc, in_place: bool = True, table: dict[str, tuple[Function, bool]] = TABLE) -> None:
    """Put an op of two operands into a table. It applies the numpy function to the operands in their own dtype."""
    def run(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
        function(ins[0], ins[1], out=outs[0])

    run.__name__ = op
    row(op, in_place, table)(run)


for _op, _of_two in {"add": np.add, "mul": np.multiply, "and": np.bitwise_and, "xor": np.bitwise_xor}.items():
    direct(_op, _of_two)
direct("less", np.less, in_place=False)
direct("not_equal", np.not_equal, in_place=False)


@row("iota", warns=False)
def iota(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    out, axis = outs[0], attrs["axis"]
    line = np.arange(out.shape[axis]).astype(out.dtype)
    out[...] = line.reshape([-1 if i == axis else 1 for i in range(out.ndim)])


@row("cast")
def cast(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, out = ins[0], outs[0]
    if is_float(x) and out.dtype.kind in "iu":
        info = np.iinfo(out.dtype)
        f = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        t = np.trunc(f)
        inside = (t > float(info.min) - 1) & (t < float(info.max) + (0 if info.max > 2**53 else 1))
        least, most = (out.dtype.type(end) for end in (info.min, info.max))     # an int of Python's may be none of numpy's
        out[...] = np.where(t <= float(info.min), least, np.where(inside, out.dtype.type(0), most))
        keep = inside & (t > float(info.min))
        if np.any(keep):
            out[keep] = t[keep].astype(out.dtype)
    elif out.dtype == np.bool_:
        out[...] = x != 0
    else:
        out[...] = x.astype(out.dtype)


@row("bitcast", warns=False)
def bitcast(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.ascontiguousarray(ins[0]).view(outs[0].dtype).reshape(outs[0].shape)


@row("max", in_place=True)
def maximum(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y = ins
    if not is_float(x):
        np.maximum(x, y, out=outs[0])
        return
    a, b = wide(x), wide(y)
    zeros = (a == 0) & (b == 0)
    result = np.maximum(a, b)                     # propagates NaN; the sign of zero is settled by hand: +0 > −0
    outs[0][...] = np.where(zeros, np.where(np.signbit(a) & np.signbit(b), result.dtype.type(-0.0), 0), result)


@row("idiv", in_place=True)
def idiv(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, y = ins
    outs[0][...] = np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y))).astype(outs[0].dtype)


@row("where", warns=False)
def where(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = np.where(ins[0], ins[1], ins[2])


@row("sum")
def sum(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axes = ins[0], tuple(attrs["axes"])
    # numpy sums pairwise only along the fastest axis; a wider accumulator makes sums along the other axes as accurate
    accumulate = np.float64 if is_float(x) else x.dtype
    outs[0][...] = np.sum(x, axis=axes, dtype=accumulate).astype(outs[0].dtype)


@row("reduce_max", warns=False)
def reduce_max(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, axes = ins[0], tuple(attrs["axes"])
    initial = -np.inf if is_float(x) else np.iinfo(x.dtype).min
    outs[0][...] = np.max(wide(x), axis=axes, initial=initial)
    if is_float(x) and outs[0].size:
        zero = wide(outs[0]) == 0
        if np.any(zero):                              # among zeros +0 wins, whatever order numpy compared in
            positive = np.any((x == 0) & ~np.signbit(wide(x)), axis=axes)
            outs[0][...] = np.where(zero & positive, np.zeros((), outs[0].dtype), outs[0])


@row("reshape", warns=False)
def reshape(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0].reshape(outs[0].shape)


@row("permute", warns=False)
def permute(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0].transpose(attrs["axes"])


@row("expand", warns=False)
def expand(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    outs[0][...] = ins[0]


@row("pad", warns=False)
def pad(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    out = outs[0]
    out[...] = np.asarray(attrs["value"]).astype(out.dtype)
    out[tuple(slice(before, before + s) for (before, _), s in zip(attrs["padding"], ins[0].shape, strict=True))] = ins[0]


@row("slice", warns=False)
def slice_(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    # −1 is before the first element; an empty slice may start there
    outs[0][...] = ins[0][tuple(slice(0, 0) if a < 0 else slice(a, None if b < 0 else b, s) for a, b, s in attrs["bounds"])]


@row("gather", warns=False)
def gather(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    x, index = ins
    axis = attrs["axis"]
    size = x.shape[axis]
    inside = (index >= 0) & (index < size)
    if size == 0:
        outs[0][...] = 0
        return
    taken = np.take(x, np.where(inside, index, 0).astype(np.int64), axis=axis)
    keep = inside.reshape((1,) * axis + inside.shape + (1,) * (x.ndim - axis - 1))
    outs[0][...] = taken if inside.all() else np.where(keep, taken, np.zeros((), x.dtype))


@row("scatter")
def scatter(outs: Arrays, ins: Arrays, attrs: Mapping[str, Any]) -> None:
    base, index, updates = ins
    axis, mode, out = attrs["axis"], attrs["mode"], outs[0]
    if mode == "add" and is_float(base):              # a half-wide sum of many ones stops at 256
        out = base.astype(np.float64)
    else:
        out[...] = base
    flat = index.reshape(-1)
    inside = np.flatnonzero((flat >= 0) & (flat < base.shape[axis]))
    to = np.moveaxis(out, axis, 0)
    source = np.moveaxis(updates.reshape((*base.shape[:axis], flat.size, *base.shape[axis + 1:])), axis, 0)[inside]
    at = flat[inside].astype(np.int64)
    if mode == "set":
        to[at] = source
    elif mode == "add":
        order = np.argsort(at, kind="stable")                   # np.add.at takes a hundred times as long for rows
        rows, starts = np.unique(at[order], return_index=True)
        if len(rows):
            to[rows] += np.add.reduceat(source[order], starts, axis=0, dtype=to.dtype)
    else:
        np.maximum.at(to, at, source)
    if out is not outs[0]:
        outs[0][...] = out
