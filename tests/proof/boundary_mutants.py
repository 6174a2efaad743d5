"""boundary_mutants: twins of a graph that differ from it on an edge only, each with inputs that show the difference.

A mutation takes one node and gives two others of its type: `left` takes the node's place in the first graph (most often it is
the node itself), `right` in the second. They differ on a tie, at one integer, at one end of a dtype, above one size, in the sign
of one attribute, or by one part in 10⁹ of a literal. A twin counts only with a witness: inputs and sizes at which the float64
interpreter gives different results, in a run that rounding cannot have changed (`_sound`). So "none was proved" says something.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp, expand_all
from tensor_graphs.language.node import ArrayValue, Node, apply, rebuild, walk
from tensor_graphs.meaning.interpreter import evaluate


@dataclass(frozen=True)
class Edge:
    """Two nodes of one type that differ on an edge.

    values: numbers that leaves should hold, sizes: lengths that a dim should have, for the edge to be met. amplified: `right`
    with the change a thousand times as large, where the change itself is too small to be told from rounding by its size alone.
    """

    kind: str
    left: Node
    right: Node
    values: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    amplified: Node | None = None


@dataclass(frozen=True)
class Witness:
    """Leaves, sizes, and the output that differs there. overflow: whether an integer of 32 bits or more wraps on the way."""

    values: Mapping[str, np.ndarray]
    binding: Mapping[str, int]
    output: str
    left: float
    right: float
    overflow: bool


@dataclass(frozen=True)
class Twin:
    kind: str
    left: tg.Graph
    right: tg.Graph
    witness: Witness
    where: str = field(default="", compare=False)


# ---- mutations ---------------------------------------------------------------------------------------------------------

Mutation = Callable[[random.Random, Node], Iterator[Edge]]


def _int_bounds(node: Node) -> tuple[int, int]:
    return int(node.dtype.min), int(node.dtype.max)


def _fill(value: Any, like: Node) -> Node:
    return atomic.fill(value, like.shape, like.dtype)


def _not(x: Node) -> Node:
    return tg.logical_not(x)


def _value(node: Node) -> Any:
    """The number that a node is everywhere, or None."""
    while node.op.name in ("expand", "reshape", "cast", "copy_to") and node.inputs:
        node = node.inputs[0]
    value = node.attrs.get("value") if node.op is leaves.CONSTANT else None
    return None if isinstance(value, ArrayValue) else value


def _some_integer(r: random.Random, node: Node) -> int:
    low, high = _int_bounds(node)
    near = [v + k for v in (0, 1, 7, 100, 127, 128, 255, 256, 2047, 65535) for k in (0, 1)]
    return r.choice([low, high, low + 1, high - 1, *[v for v in near if low <= v <= high], r.randint(low, high)])


def of_comparison(r: random.Random, n: Node) -> Iterator[Edge]:
    """A tie, one integer, or the next threshold."""
    name = n.op.name
    if name in ("less", "less_equal", "greater", "greater_equal") and len(n.inputs) == 2:
        x, y = n.inputs
        yield Edge(
            "comparison: its tie",
            n,
            {
                "less": lambda: _not(tg.less(y, x)),
                "less_equal": lambda: _not(tg.less_equal(y, x)),
                "greater": lambda: _not(tg.greater(y, x)),
                "greater_equal": lambda: _not(tg.greater_equal(y, x)),
            }[name](),
        )
        if x.dtype.is_integer:
            k = _value(y)
            if isinstance(k, int) and _int_bounds(y)[0] < k < _int_bounds(y)[1]:
                yield Edge(
                    "comparison: the next threshold",
                    n,
                    apply(n.op, (x, _fill(k + r.choice([-1, 1]), y)), n.attrs),
                    (k, k + 1, k - 1),
                )
            at = k if isinstance(k, int) and r.random() < 0.3 else _some_integer(r, x)
            yield Edge("comparison: one integer", n, tg.bit_xor(n, tg.equals(x, _fill(at, x))), (at,))
        elif x.dtype.kind == "float":
            k = _value(y)
            if isinstance(k, float) and math.isfinite(k):
                yield Edge("comparison: one real number", n, tg.bit_xor(n, tg.equals(x, _fill(k + 0.5, x))), (k + 0.5,))
                yield Edge(
                    "comparison: a threshold moved by 1/64", n, apply(n.op, (x, _fill(k + 1 / 64, y)), n.attrs), (k, k + 1 / 64)
                )
    if name in ("not_equal", "equals") and n.inputs[0].dtype.is_integer:
        x, y = n.inputs
        at = _some_integer(r, x)
        yield Edge("comparison: one integer", n, tg.bit_xor(n, tg.equals(x, _fill(at, x))), (at,))
    if name in ("not_equal", "equals") and n.inputs[0].dtype.kind == "float":
        x, y = n.inputs
        half = tg.less(x, y)
        yield Edge(
            "comparison: its tie",
            n,
            tg.bit_or(n, _not(tg.bit_or(half, tg.less(y, x))))
            if name == "not_equal"
            else tg.bit_and(n, tg.bit_or(half, tg.less(y, x))),
        )


def of_selection(r: random.Random, n: Node) -> Iterator[Edge]:
    """max, min, |x|, relu, sign, where: written by selection, with another value on the tie."""
    name = n.op.name
    if len(n.types) != 1 or n.dtype.kind == "bool":
        return
    if name in ("max", "min") and len(n.inputs) == 2:
        x, y = n.inputs
        first, second = (y, x) if name == "max" else (x, y)
        yield Edge(
            "selection: its tie", n, tg.where(tg.less(x, y), first, tg.where(tg.less(y, x), second, second + _fill(1, n)))
        )
    if name in ("relu", "abs", "sign"):
        x = n.inputs[0]
        zero = _fill(0, x)
        negative = {"relu": zero, "abs": tg.neg(x), "sign": _fill(-1, x) if x.dtype.kind != "uint" else zero}[name]
        positive = {"relu": x, "abs": x, "sign": _fill(1, x)}[name]
        yield Edge(
            "selection: its tie",
            n,
            tg.where(tg.less(x, zero), negative, tg.where(tg.less(zero, x), positive, _fill(1, x))),
            (0.0,),
        )
    if name == "sign":
        yield Edge("selection: its tie", n, tg.where(tg.less(n.inputs[0], _fill(0, n)), negative, _fill(1, n)), (0.0,))
    if name == "where" and n.inputs[0].op.name in ("less", "less_equal"):
        x, y = n.inputs[0].inputs
        tied = tg.less_equal(x, y) if n.inputs[0].op.name == "less" else tg.less(x, y)
        yield Edge("selection: its tie", n, tg.where(tied, n.inputs[1], n.inputs[2]))
    if name == "clip":
        low, high = n.inputs[1], n.inputs[2]
        yield Edge(
            "selection: one bound moved", n, tg.clip(n.inputs[0], low + _fill(1 if n.dtype.is_integer else 1 / 64, low), high)
        )


def of_floor(r: random.Random, n: Node) -> Iterator[Edge]:
    """Floor and its relatives, by one that differs on whole numbers or halves only; floats to integers and back."""
    name = n.op.name
    if name in ("floor", "ceil", "trunc", "round") and len(n.inputs) == 1:
        x = n.inputs[0]
        if name == "floor":
            yield Edge("floor: at whole numbers", n, tg.ceil(x) - 1.0)
            yield Edge("floor: below zero", n, tg.trunc(x))
            yield Edge("floor: moved by 1/64", n, tg.floor(x + 1 / 64))
        if name == "ceil":
            yield Edge("floor: at whole numbers", n, tg.floor(x) + 1.0)
        if name == "round":
            yield Edge("floor: at halves", n, tg.floor(x + 0.5))
            yield Edge("floor: at halves", n, tg.ceil(x - 0.5))
        if name == "trunc":
            yield Edge("floor: below zero", n, tg.floor(x))
    if name == "cast" and n.inputs[0].dtype.kind == "float" and n.dtype.is_integer:
        x = n.inputs[0]
        low, high = _int_bounds(n)
        yield Edge("cast: below zero", n, tg.cast(tg.floor(x), n.dtype))
        if n.dtype.itemsize < 4:
            yield Edge("cast: wraps instead of saturating", n, tg.cast(tg.cast(x, tg.i32), n.dtype), (high + 1, low - 1, 300.0))
            yield Edge("cast: one end of the dtype", n, tg.minimum(n, high - 1), (high, high + 5))
            yield Edge("cast: one end of the dtype", n, tg.maximum(n, low + 1), (low, low - 5))


def of_cast(r: random.Random, n: Node) -> Iterator[Edge]:
    """Integers that pass through a narrower dtype, another sign, or a float with a threshold."""
    if len(n.types) != 1 or not n.dtype.is_integer:
        return
    low, high = _int_bounds(n)
    for through in r.sample([tg.i8, tg.u8, tg.i16, tg.u16, tg.i32, tg.u32], 2):
        if through.itemsize < n.dtype.itemsize:
            edge = [through.max, int(through.max) + 1, through.min, int(through.min) - 1]
            yield Edge(
                "cast: through a narrower dtype",
                n,
                tg.cast(tg.cast(n, through), n.dtype),
                tuple(float(e) for e in edge if low <= int(e) <= high),
            )
    if n.op.name == "cast" and n.inputs[0].dtype.is_integer and n.inputs[0].dtype.itemsize < n.dtype.itemsize:
        x = n.inputs[0]
        bits = 8 * x.dtype.itemsize
        other = {
            ("int", 8): tg.u8,
            ("uint", 8): tg.i8,
            ("int", 16): tg.u16,
            ("uint", 16): tg.i16,
            ("int", 32): tg.u32,
            ("uint", 32): tg.i32,
        }.get((x.dtype.kind, bits))
        if other is not None:
            yield Edge("cast: another sign", n, tg.cast(tg.cast(x, other), n.dtype), (2.0 ** (bits - 1), -1.0))
    if n.dtype.itemsize <= 4 and n.rank:
        k = r.choice([0, 3, 100, -4] if low < 0 else [3, 7, 100])
        x = tg.cast(n, tg.f32)
        yield Edge("cast: a threshold behind a float", tg.less(n, k), tg.less(x, k + 0.5), (k,))
        yield Edge(
            "cast: a threshold behind a float", tg.cast(tg.floor(x * 0.5), tg.i32), tg.cast(tg.trunc(x * 0.5), tg.i32), (-1, -3)
        )
        yield Edge(
            "cast: a threshold behind a float", tg.cast(n, tg.i32), tg.cast(tg.minimum(x, float(k + 2)), tg.i32), (k + 3,)
        )


def of_integers(r: random.Random, n: Node) -> Iterator[Edge]:
    """One integer, one bit, the end of a dtype, a polynomial modulo 2^k, a magic divisor."""
    if len(n.types) != 1 or not n.dtype.is_integer:
        return
    low, high = _int_bounds(n)
    bits = 8 * n.dtype.itemsize
    at = _some_integer(r, n)
    yield Edge("integer: one value", n, tg.where(tg.equals(n, _fill(at, n)), _fill(at ^ 1, n), n), (at,))
    secret = r.randint(0, min(high, 2**31 - 1))
    hidden = tg.equals(tg.bit_xor(n, _fill(secret, n)), _fill(secret ^ max(at, 0), n))
    yield Edge("integer: one value, hidden by xor", n, tg.where(hidden, _fill(max(at, 0) ^ 1, n), n), (max(at, 0),))
    whole, rest = n // 16, tg.bit_and(n, _fill(15, n))
    both = tg.bit_and(tg.equals(whole, _fill(at // 16, n)), tg.equals(rest, _fill(at % 16, n)))
    yield Edge("integer: one value, by its parts", n, tg.bit_xor(n, tg.cast(both, n.dtype)), (at,))
    bit = r.randrange(bits - (n.dtype.kind == "int"))
    mask = high ^ (1 << bit)
    yield Edge("bits: one bit of a mask", tg.bit_and(n, _fill(high, n)), tg.bit_and(n, _fill(mask, n)), (1 << bit,))
    if n.dtype.kind == "int":
        yield Edge("bits: the sign", n, tg.bit_and(n, _fill(high, n)), (low, -1))
        yield Edge(
            "dtype end: magnitude of the smallest",
            tg.maximum(n, tg.neg(n)),
            tg.where(tg.equals(n, _fill(low, n)), _fill(high, n), tg.maximum(n, tg.neg(n))),
            (low,),
        )
        yield Edge("dtype end: below zero", n // 2, tg.where(tg.less(n, _fill(0, n)), tg.neg(tg.neg(n) // 2), n // 2), (-1, -3))
    yield Edge("dtype end: the largest", n + 1, tg.where(tg.equals(n, _fill(high, n)), n, n + 1), (high,))
    shift = r.choice([1, bits - 2, bits - 1])
    if shift < bits - (n.dtype.kind == "int"):
        yield Edge("bits: a shift", (n * _fill(1 << shift, n)) // _fill(1 << shift, n), n, (high, high // 2 + 1, 1 << shift))
    if bits <= 32:
        c = 1 << (bits - 2)
        step = _fill(c, n)
        yield Edge("polynomial modulo 2^k", n * n, n * n + n * (n + 1) * step, (1, 2, 5))
        term = n * n * step * _fill(2, n) if n.dtype.kind == "uint" else n * n * step
        yield Edge("polynomial modulo 2^k", n * n + n, n * n + n + term, (1, 3, 5))
    k = r.choice([3, 5, 7, 10, 12])
    if n.dtype in (tg.u8, tg.i8, tg.u16, tg.i16):
        wide = tg.cast(n, tg.i32)
        top = r.choice([9, 10, 11, 8])
        magic = -(-(1 << top) // k)
        yield Edge(
            "division: a magic number that is too small",
            wide // k,
            (wide * magic) // (1 << top),
            tuple(float(v) for v in range(max(low, -300), min(high, 5000))),
        )
    yield Edge("division: the next divisor", n // _fill(k, n), n // _fill(k + 1, n), (k, 3 * k, high))
    if n.op.name in ("add", "mul") and bits < 32:
        x, y = (tg.cast(i, tg.i32) for i in n.inputs)
        exact = x + y if n.op.name == "add" else x * y
        yield Edge("dtype end: wraps or saturates", n, tg.cast(tg.clip(exact, low, high), n.dtype), (low, high, high // 2 + 1))
    if n.op.name in ("add", "mul") and n.dtype == tg.i32:
        x, y = n.inputs
        narrow = tg.cast(
            tg.cast(x, tg.i16) + tg.cast(y, tg.i16) if n.op.name == "add" else tg.cast(x, tg.i16) * tg.cast(y, tg.i16), tg.i32
        )
        yield Edge("dtype end: computed in 16 bits", n, narrow, (32767, 200, 400, -32768))
    if n.op.name == "and":
        k = _value(n.inputs[1])
        if isinstance(k, int):
            yield Edge(
                "bits: one bit of a mask",
                n,
                tg.bit_and(n.inputs[0], _fill(k ^ (1 << r.randrange(bits - 1)), n)),
                (k, k + 1, high),
            )
    if n.op.name == "xor":
        yield Edge("bits: where both are set", n, tg.bit_or(*n.inputs), (high, 1, 3))
    if n.op.name in ("idiv", "floor_div"):
        k = _value(n.inputs[1])
        if isinstance(k, int) and k > 1:
            x = n.inputs[0]
            yield Edge("division: rounded up", n, (x + _fill(k - 1, x)) // _fill(k, x), (k + 1, 2 * k + 1))
            yield Edge("division: one quotient", n, tg.where(tg.equals(n, _fill(2, n)), _fill(3, n), n), (2 * k, 2 * k + 1))
    if n.op.name == "mod":
        k = _value(n.inputs[1])
        if isinstance(k, int) and k > 1:
            x = n.inputs[0]
            truncated = tg.where(tg.less(x, _fill(0, x)), tg.neg(tg.mod(tg.neg(x), _fill(k, x))), tg.mod(x, _fill(k, x)))
            yield Edge("division: sign of the remainder", n, truncated, (-1, -k - 1))
            if k & (k - 1):
                yield Edge(
                    "division: a mask for a remainder", n, tg.bit_and(x, _fill((1 << k.bit_length()) - 1, x)), (k, k + 1)
                )


def of_booleans(r: random.Random, n: Node) -> Iterator[Edge]:
    """One corner of a truth table."""
    if len(n.types) != 1 or n.dtype.kind != "bool" or len(n.inputs) != 2 or n.inputs[0].dtype.kind != "bool":
        return
    x, y = n.inputs
    if n.op.name == "bit_or":
        yield Edge("truth table: one corner", n, tg.bit_xor(x, y))
    if n.op.name == "xor":
        yield Edge("truth table: one corner", n, tg.bit_or(x, y))
    if n.op.name == "and":
        yield Edge("truth table: one corner", n, _not(tg.bit_xor(x, y)))


def of_places(r: random.Random, n: Node) -> Iterator[Edge]:
    """Above one size, at one place, at a place computed from sizes."""
    if len(n.types) != 1 or not n.rank or n.dtype.kind == "bool":
        return
    axis = r.randrange(n.rank)
    size = n.shape[axis]
    low, high = d.bounds(size)
    if high < 3 or low > 5000:
        return
    other = n + _fill(1, n)
    place = atomic.iota(n.shape, axis, tg.i32)
    if isinstance(size, int):
        k = r.randrange(size)
        yield Edge("place: one of an axis", n, tg.where(tg.equals(place, k), other, n), (), ())
        return
    k = r.choice([high - 1, high // 2, high // 2 + 1, r.randint(high // 3, high - 1), min(high - 1, 2047), min(high - 1, 1000)])
    whole = atomic.dim_fill(size, n.shape)
    yield Edge("size: places from one on", n, tg.where(tg.less(place, k), n, other), (), (k + 1,))
    yield Edge("size: above one", n, tg.where(tg.less(whole, k + 1), n, other), (), (k + 1,))
    yield Edge("size: one alone", n, tg.where(tg.equals(whole, k), other, n), (), (k,))
    yield Edge("size: a product of sizes", n, tg.where(tg.less(place * place, k * k), n, other), (), (k + 1,))
    far = tg.cast(place, tg.f32) * 0.5
    yield Edge("size: a distance as a float", n, tg.where(tg.less(far, k * 0.5), n, other), (), (k + 1,))
    yield Edge(
        "size: a distance as a float, floored",
        n,
        tg.where(tg.less(tg.floor(far / 8.0), float(k // 16)), n, other),
        (),
        (k // 16 * 16 + 1, min(high, k // 16 * 16 + 17)),
    )
    if high > 300:
        yield Edge(
            "size: a place in eight bits",
            n,
            tg.where(tg.less(tg.cast(atomic.iota(n.shape, axis, tg.u8), tg.i32), place), other, n),
            (),
            (257, 300),
        )
    half = d.dim_min(size, k)
    yield Edge(
        "size: the smaller of it and a number",
        n,
        n + tg.cast(atomic.dim_fill(size - half, n.shape), n.dtype),
        (),
        (k + 1, k + 3),
    )
    b = r.choice([k // 2 + 1, high // 2 + 1, high // 3 + 1])
    yield Edge(
        "size: a divisor beyond half of the range", n, n + tg.cast(atomic.dim_fill(size // b, n.shape), n.dtype), (), (b, b + 1)
    )


def of_moves(r: random.Random, n: Node) -> Iterator[Edge]:
    """Slices, pads, flips, gathers, scatters: one place off, another sign, out of range otherwise, fewer terms."""
    name = n.op.name
    if len(n.types) != 1:
        return
    if name == "slice":
        bounds = list(n.attrs["bounds"])
        i = r.randrange(len(bounds))
        start, stop, step = bounds[i]
        for moved in ((start + 1, stop + 1, step), (start - 1, stop - 1, step), (stop - 1, start - 1, -step)):
            yield Edge("slice: one off, or backwards", n, atomic.slice(n.inputs[0], [*bounds[:i], moved, *bounds[i + 1 :]]))
    if name == "pad":
        value, padding = n.attrs["value"], list(n.attrs["padding"])
        if n.dtype.kind == "float":
            for other in (-value, 1.0, value + 1e-3) if math.isfinite(value) else (-1e4, math.inf):
                if other != value:
                    yield Edge("pad: its value", n, atomic.pad(n.inputs[0], padding, other))
        i = r.randrange(len(padding))
        before, after = padding[i]
        yield Edge(
            "pad: one off", n, atomic.pad(n.inputs[0], [*padding[:i], (before + 1, after - 1), *padding[i + 1 :]], value)
        )
        yield Edge(
            "pad: one off", n, atomic.pad(n.inputs[0], [*padding[:i], (before - 1, after + 1), *padding[i + 1 :]], value)
        )
    if name == "gather":
        x, index = n.inputs
        axis, size = n.attrs["axis"], n.inputs[0].shape[n.attrs["axis"]]
        top = size if isinstance(size, int) else 3
        if not isinstance(size, int) or size > int(index.dtype.max):
            return
        axis_only = {"axis": axis}
        if index.dtype.kind == "int":
            yield Edge("gather: a negative index", n, apply(n.op, (x, tg.maximum(index, 0)), axis_only), (-1, -2))
            yield Edge(
                "gather: a negative index", n, apply(n.op, (x, tg.where(tg.less(index, 0), index + size, index)), axis_only), (-1,)
            )
        yield Edge("gather: an index beyond the end", n, apply(n.op, (x, tg.minimum(index, size - 1)), axis_only), (top, top + 1))
        yield Edge("gather: an index beyond the end", n, apply(n.op, (x, tg.mod(index, size)), axis_only), (top, top + 1, -1))
        at = r.randrange(top)
        yield Edge(
            "gather: one index",
            n,
            apply(n.op, (x, tg.where(tg.equals(index, at), _fill((at + 1) % top, index), index)), axis_only),
            (at,),
        )
    if name == "scatter":
        base, index, updates = n.inputs
        size, mode = base.shape[n.attrs["axis"]], n.attrs["mode"]
        if not isinstance(size, int):
            return
        axis_only = dict(n.attrs)
        yield Edge(
            "scatter: an index beyond the end",
            n,
            apply(n.op, (base, tg.minimum(index, size - 1), updates), axis_only),
            (size, size + 1),
        )
        if index.dtype.kind == "int":
            yield Edge("scatter: a negative index", n, apply(n.op, (base, tg.maximum(index, 0), updates), axis_only), (-1,))
        if mode == "add":
            yield Edge("scatter: another mode", n, apply(n.op, n.inputs, {**axis_only, "mode": "max"}), (0, 1))
        at = r.randrange(size)
        moved = tg.where(tg.equals(index, at), _fill((at + 1) % size, index), index)
        yield Edge("scatter: one index", n, apply(n.op, (base, moved, updates), axis_only), (at,))
    if name in ("sum", "reduce_max"):
        x, axes = n.inputs[0], n.attrs["axes"]
        axis = r.choice(axes)
        size = x.shape[axis]
        low, high = d.bounds(size)
        if low >= 2 or isinstance(size, d.Expr):
            last = [(0, s - int(i == axis), 1) for i, s in enumerate(x.shape)]
            first = [(int(i == axis), s, 1) for i, s in enumerate(x.shape)]
            for part in (last, first):
                if low >= 1:
                    yield Edge("reduction: one term less", n, apply(n.op, (atomic.slice(x, part),), n.attrs), (), (2, 3))
        if isinstance(size, d.Expr) and high > 8:
            k = r.choice([high - 1, high // 2 + 1, min(high - 1, 1024)])
            some = [(0, d.dim_min(s, k) if i == axis else s, 1) for i, s in enumerate(x.shape)]
            yield Edge("reduction: the first terms only", n, apply(n.op, (atomic.slice(x, some),), n.attrs), (), (k + 1, k + 2))
        if name == "reduce_max":
            yield Edge("reduction: starts from a number", n, tg.maximum(n, _fill(0 if n.dtype.kind != "float" else -1.0, n)))
        for other in range(x.rank):
            if other not in axes and x.shape[other] == x.shape[axis]:
                yield Edge("attribute: another axis", n, apply(n.op, (x,), {"axes": tuple(sorted({*axes, other} - {axis}))}))


def of_literals(r: random.Random, n: Node) -> Iterator[Edge]:
    """A constant by one part in 10⁹, by its sign, or by one."""
    if n.op is not leaves.CONSTANT:
        return
    value = n.attrs["value"]
    if isinstance(value, float) and math.isfinite(value):
        if value:
            part = value * (1 + r.choice([-1e-9, 1e-9]))
            yield Edge(
                "literal: one part in 10⁹",
                n,
                tg.constant(part, n.dtype),
                amplified=tg.constant(value + (part - value) * 1000, n.dtype),
            )
            yield Edge("literal: its sign", n, tg.constant(-value, n.dtype))
            close = float(np.float32(value))
            if close != value and abs(close - value) > 1e-12 * abs(value):
                yield Edge(
                    "literal: rounded to f32",
                    n,
                    tg.constant(close, n.dtype),
                    amplified=tg.constant(value + (close - value) * 1000, n.dtype),
                )
        else:
            yield Edge("literal: not quite 0", n, tg.constant(1e-9, n.dtype), amplified=tg.constant(1e-6, n.dtype))
    elif isinstance(value, bool):
        return
    elif isinstance(value, int):
        low, high = _int_bounds(n)
        for other in (value + 1, value - 1, -value):
            if low <= other <= high and other != value:
                yield Edge(
                    "literal: the next integer" if other != -value else "literal: its sign",
                    n,
                    tg.constant(other, n.dtype),
                    (value, value + 1, value - 1),
                )
        if n.dtype == tg.i32 and value:
            yield Edge("literal: a high bit", n, tg.constant(value ^ (1 << 30), n.dtype), (value,))
    elif isinstance(value, d.Expr):
        low, high = d.bounds(value)
        if high - low > 6:
            k = r.choice([high - 1, high // 2 + 1, min(high - 1, 2047)])
            yield Edge("size: a constant made of it", n, tg.constant(d.dim_min(value, k), n.dtype), (), (k + 1, k + 2))
        yield Edge("size: a constant made of it", n, tg.constant(value + 1, n.dtype))


def of_attributes(r: random.Random, n: Node) -> Iterator[Edge]:
    """One attribute of a composite: by one part in 10⁹, its sign, one more, the other of two."""
    if not isinstance(n.op, CompositeOp) or len(n.types) != 1:
        return
    for name, value in n.attrs.items():
        changed: list[tuple[str, Any, Any]] = []
        if isinstance(value, bool):
            changed = [("attribute: the other of two", not value, None)]
        elif isinstance(value, float) and math.isfinite(value):
            changed = (
                [
                    ("attribute: one part in 10⁹", value * (1 + 1e-9), value * (1 + 1e-6)),
                    ("attribute: its sign", -value, None),
                    ("attribute: ten times", value * 10, None),
                ]
                if value
                else [("attribute: not quite 0", 1e-9, 1e-6)]
            )
        elif isinstance(value, int):
            changed = [
                ("attribute: the next integer", value + 1, None),
                ("attribute: the next integer", value - 1, None),
                ("attribute: its sign", -value, None),
                ("attribute: a large integer", value + 1000, None),
            ]
        elif isinstance(value, d.Expr):
            changed = [("attribute: the next size", value + 1, None), ("attribute: the next size", value - 1, None)]
        elif name == "approximate" and value in ("none", "tanh"):
            changed = [("attribute: the other of two", "tanh" if value == "none" else "none", None)]
        for kind, other, more in changed:
            if other == value:
                continue
            try:
                mutant = apply(n.op, n.inputs, {**n.attrs, name: other})
                much = None if more is None else apply(n.op, n.inputs, {**n.attrs, name: more})
            except (TensorGraphsError, ValueError, TypeError):
                continue
            yield Edge(
                kind,
                n,
                mutant,
                (),
                (value, value + 1, value + 2) if type(value) is int and 0 < value < 5000 else (),
                amplified=much,
            )


def of_reals(r: random.Random, n: Node) -> Iterator[Edge]:
    """Another value at one real number, or above one."""
    if len(n.types) != 1 or n.dtype.kind != "float" or n.op is leaves.CONSTANT:
        return
    at = r.choice([0.0, 1.0, -1.5, 2.0, 0.5])
    yield Edge("real: one number", n, tg.where(tg.equals(n, _fill(at, n)), n + 1.0, n), (at,))
    big = r.choice([100.0, 1000.0, 65504.0])
    yield Edge("real: clipped far out", n, tg.minimum(n, big), (big + 1, big * 2))
    yield Edge("real: clipped far out", n, tg.maximum(n, -big), (-big - 1, -big * 2))
    if n.op.name not in ("exp", "exp2"):
        yield Edge("real: its square's root", tg.abs(n), tg.sqrt(n * n + 1e-9), (0.0,))


MUTATIONS: tuple[Mutation, ...] = (
    of_comparison,
    of_selection,
    of_floor,
    of_cast,
    of_integers,
    of_booleans,
    of_places,
    of_moves,
    of_literals,
    of_attributes,
    of_reals,
)


def edges(r: random.Random, node: Node) -> list[Edge]:
    mutants: list[Edge] = []
    for mutation in MUTATIONS:
        mutant = mutation(r, node)
        while True:
            try:
                edge = next(mutant, None)
            except (TensorGraphsError, OverflowError, ValueError):
                break  # this node does not allow it
            if edge is None:
                break
            if edge.left.type == edge.right.type and edge.left is not edge.right:
                mutants.append(edge)
    return mutants


def _replaced(graph: tg.Graph, target: Node, replacement: Node) -> tg.Graph | None:
    """The graph with one node in the place of another: cast, where the dtypes differ; None where they do not fit."""
    if replacement.type != target.type:
        if replacement.shape != target.shape:
            return None
        replacement = tg.cast(replacement, target.dtype)
    return graph.with_roots(rebuild(list(graph.roots), lambda node, inputs: replacement if node is target else None))


def written_out(graph: tg.Graph, keep: Callable[[Node], bool] = lambda node: False) -> tg.Graph:
    return graph.with_roots(expand_all(graph.roots, keep))


def _of_what_changes(left: tg.Graph, right: tg.Graph, more: tg.Graph | None) -> tuple[tg.Graph, tg.Graph, tg.Graph | None]:
    """The outputs and states that the mutation reaches: the rest is one graph on both sides."""
    outputs = [name for name, x in left.outputs.items() if right.outputs[name] is not x]
    updates = [name for name, x in left.updates.items() if right.updates[name] is not x]
    cut = [g and tg.Graph({k: g.outputs[k] for k in outputs}, {k: g.updates[k] for k in updates}) for g in (left, right, more)]
    assert cut[0] is not None and cut[1] is not None
    return cut[0], cut[1], cut[2]


def twins(graph: tg.Graph, seed: int, count: int) -> Iterator[Twin]:
    """Up to `count` twins of a graph, each with its witness; deterministic."""
    r = random.Random(f"twins {seed}")
    base = written_out(graph, keep=lambda n: n.op.name in _SMOOTH) if r.random() < 0.3 else graph
    places = [n for n in base.nodes if len(n.types) == 1]
    places = r.sample(places, min(len(places), max(count, 16)))  # an edge costs a few nodes to write down
    candidates: list[tuple[Node, Edge]] = [(n, e) for n in places for e in edges(r, n)]
    r.shuffle(candidates)
    groups: dict[str, list[tuple[Node, Edge]]] = {}
    for n, e in candidates:
        groups.setdefault(e.kind, []).append((n, e))
    kinds = list(groups)
    r.shuffle(kinds)
    yielded, tried, most = 0, 0, 2 * count + 20
    while kinds and yielded < count and tried < most:  # the kinds in turns, so that no frequent one takes all places
        for kind in list(kinds):
            if not groups[kind]:
                kinds.remove(kind)
                continue
            target, edge = groups[kind].pop()
            tried += 1
            try:
                left, right = _replaced(base, target, edge.left), _replaced(base, target, edge.right)
                more = None if edge.amplified is None else _replaced(base, target, edge.amplified)
            except TensorGraphsError:
                continue
            if left is None or right is None or left == right:
                continue
            left, right, more = _of_what_changes(left, right, more)
            seen = witness(left, right, edge, more, r.randrange(2**32))
            if seen is not None:
                yielded += 1
                if r.random() < 0.3:
                    left, right = (left if r.random() < 0.5 else written_out(left)), written_out(right)
                yield Twin(kind, left, right, seen, f"{target.op.name} {target.types[0]}")
            if yielded >= count or tried >= most:
                return


# ---- witnesses ---------------------------------------------------------------------------------------------------------

TRIALS = 12
_LARGEST = 40_000
"""Elements of all leaves of one run."""


def numbers_in(graph: tg.Graph) -> list[float]:
    """The literals of a graph."""
    numbers: set[float] = set()
    for node in graph.nodes:
        value = _value(node) if node.op is leaves.CONSTANT else None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            numbers.add(float(value))
    return sorted(numbers)


def _floats(rng: np.random.Generator, shape: tuple[int, ...], style: int, special: np.ndarray) -> np.ndarray:
    size = int(np.prod(shape))
    if style == 0:
        out = rng.standard_normal(size).astype(np.float32).astype(np.float64)
    elif style == 1:
        out = rng.integers(-4, 5, size) * 0.5
    elif style == 2:
        out = np.where(rng.random(size) < 0.5, rng.choice(special, size), rng.integers(-32, 33, size) * 0.125)
    elif style == 3:
        out = rng.integers(-9, 10, size).astype(np.float64)
    elif style == 4:
        out = np.full(size, float(rng.integers(-2, 3)))
    elif style == 5:
        out = rng.choice([-3e4, -300.0, -129.0, -2.5, 0.0, 1.5, 128.0, 256.0, 3e3, 7e4], size)
    else:
        out = np.abs(rng.standard_normal(size)).astype(np.float32).astype(np.float64) + 0.25
    return out.reshape(shape)


def _integers(rng: np.random.Generator, node: Node, shape: tuple[int, ...], style: int, special: np.ndarray) -> np.ndarray:
    low, high = _int_bounds(node)
    size = int(np.prod(shape))
    fits = [int(s) for s in special if float(s).is_integer() and low <= s <= high] or [0]
    ends = [v for v in (low, low + 1, high, high - 1, 0, 1, 2, 3) if low <= v <= high]
    if style in (0, 3, 6):
        out = [int(v) for v in rng.integers(max(low, -3), min(high, 12) + 1, size)]
    elif style in (1, 4):
        out = [
            int(rng.choice(fits)) if rng.random() < 0.7 else int(rng.integers(max(low, -40), min(high, 300) + 1))
            for _ in range(size)
        ]
    elif style == 2:
        out = [
            fits[int(rng.integers(len(fits)))] if rng.random() < 0.6 else ends[int(rng.integers(len(ends)))]
            for _ in range(size)
        ]
    else:
        out = [int(rng.integers(low, high, endpoint=True, dtype=node.dtype.numpy)) for _ in range(size)]
    return np.array(out, dtype=node.dtype.numpy).reshape(shape)


def _bindings(graph: tg.Graph, edge: Edge, rng: np.random.Generator) -> Iterator[dict[str, int]]:
    ranges = {name: d.bounds(x) for name, x in graph.dims.items()}
    if not ranges:
        while True:
            yield {}
    hints = [s for s in edge.sizes for _ in range(2)]
    for number in range(10 * TRIALS):
        at = {}
        for place, (name, (low, high)) in enumerate(ranges.items()):
            size = [5, 3, 8, 2, 4, 7, 1, 6][(number + 3 * place) % 8]
            at[name] = min(max(size, low), high)
        if {"n", "p", "m"} <= at.keys():  # a decoder's step: m of n new places, after p
            high = ranges["n"][1]
            at["n"] = 1 + number % 4
            at["m"], at["p"] = 1 + number % at["n"], [0, 2, 3, high - at["n"]][number // 2 % 4]
        elif hints and number % 3 != 2:
            name = list(ranges)[int(rng.integers(len(ranges)))]
            low, high = ranges[name]
            at[name] = min(max(hints[number % len(hints)], low), high)
        yield at


def witness(left: tg.Graph, right: tg.Graph, edge: Edge, more: tg.Graph | None, seed: int) -> Witness | None:
    """Inputs at which the graphs differ for certain, or None where none were found."""
    rng = np.random.default_rng(seed)
    literals = [*numbers_in(left), *numbers_in(right)]
    special = np.array([*edge.values * 4, *(v + k for v in literals for k in (0.0, 0.0, 1.0, -1.0)), 0.0])
    special = special[np.abs(special) < 2.0**40]
    named = {**left.inputs, **left.parameters, **left.states, **right.inputs, **right.parameters, **right.states}
    together = tg.Graph(
        {
            f"{side}{i}": root
            for side, g in (("l", left), ("r", right), ("m", more))
            if g is not None
            for i, root in enumerate(g.roots)
        },
        {},
    )
    count = len(left.roots)
    roots = list(together.roots)
    sizes = _bindings(together, edge, rng)
    done = 0
    for number in range(TRIALS):
        binding = next(sizes, None)
        if binding is None:
            return None
        try:
            shapes = {name: tuple(int(s) for s in node.type.at(binding).shape) for name, node in named.items()}
            if sum(int(np.prod(s)) for s in shapes.values()) > _LARGEST:
                continue
            style = int(rng.integers(7)) if number > 3 else (0 if more is not None and number < 2 else [1, 2, 0, 3][number])
            values: dict[str, np.ndarray] = {}
            for name, node in named.items():
                own = style if rng.random() < 0.75 else int(rng.integers(7))
                values[name] = (
                    rng.integers(0, 2, shapes[name]).astype(np.bool_)
                    if node.dtype.kind == "bool"
                    else _integers(rng, node, shapes[name], own, special)
                    if node.dtype.is_integer
                    else _floats(rng, shapes[name], own, special)
                )
            at = {node: values[name] for name, node in named.items()}
            results = evaluate(roots, at, binding)
            place = _differs(results, count, more is not None)
            if place is None:
                done += 1
                continue
            overflow = _sound(roots[: 2 * count], at, binding)
        except (TensorGraphsError, MemoryError, OverflowError):
            continue
        if overflow is None:
            continue
        i, index = place
        name = [*left.outputs, *left.updates][i]
        return Witness(
            values,
            binding,
            f"{name}{list(map(int, index))}",
            float(results[i][index]),
            float(results[count + i][index]),
            overflow,
        )
    return None


def _differs(results: Sequence[np.ndarray], count: int, small: bool) -> tuple[int, tuple[int, ...]] | None:
    """Return the output that differs, and the place; a small change has to grow in proportion to what makes it."""
    for i in range(count):
        x, y = results[i], results[count + i]
        if x.shape != y.shape:
            return None
        if x.dtype.kind != "f":
            wrong = x != y
        else:
            with np.errstate(all="ignore"):
                size = np.maximum(np.abs(x), np.abs(y))
                gap = np.abs(x - y)
                fine = np.isfinite(x) & np.isfinite(y)
                if small:
                    gap, grown = y - x, results[2 * count + i] - x
                    wrong = (
                        fine & (np.abs(gap) > 1e-12 * np.max(size[fine], initial=0.0)) & (np.abs(grown / gap / 1000 - 1) < 0.2)
                    )
                else:
                    wrong = fine & (gap > 1e-5 * size) & (gap > 1e-5 * np.max(size[fine], initial=0.0) * 1e-3) & (gap > 1e-7)
        if np.any(wrong):
            return i, tuple(int(k) for k in np.argwhere(wrong)[0])
    return None


_SMOOTH = frozenset(
    {
        "exp",
        "log",
        "tanh",
        "sigmoid",
        "softmax",
        "log_softmax",
        "logsumexp",
        "gelu",
        "silu",
        "erf",
        "erfc",
        "cos",
        "expm1",
        "log1p",
        "softplus",
        "layer_norm",
        "rms_norm",
        "rope_table",
        "rope",
        "linear",
        "dot",
        "mean",
        "var",
        "gated",
        "attention",
    }
)
"""Composites without an edge: what their definitions decide inside cancels again."""

_EXACT = frozenset(
    {
        "add",
        "mul",
        "max",
        "where",
        "sum",
        "reduce_max",
        "reshape",
        "permute",
        "expand",
        "pad",
        "slice",
        "gather",
        "scatter",
        "floor",
        "cast",
        "copy_to",
        "item",
    }
)


def _sound(roots: Sequence[Node], at: Mapping[Node, np.ndarray], binding: Mapping[str, int]) -> bool | None:
    """None where rounding may have decided something; else whether an integer of 32 bits or more left its dtype.

    With everything written out: each comparison, floor and cast to an integer is of numbers that float64 holds exactly, or far
    from its edge; nothing is divided by what is near 0, no root or logarithm is taken there, nothing is huge or no number.
    """
    order = walk(expand_all(roots, keep=lambda n: n.op.name in _SMOOTH))
    single = [n for n in order if len(n.types) == 1]
    values = dict(zip(single, evaluate(single, at, binding), strict=True))
    exact: dict[Node, bool] = {}
    overflow = False
    for n in single:
        v = values[n]
        name = n.op.name
        xs = [values[i] for i in n.inputs if i in values]
        if n.dtype.kind == "float":
            finite = v[np.isfinite(v)]
            sized = np.abs(finite)
            if np.isnan(v).any() or ((sized > 1e12) & (sized < 1e29)).any() or (v == np.inf).any():
                return None  # −10³⁰ and the like stand for −∞ in masks
            fine = all(exact.get(i, False) for i in n.inputs) and (n.op.kind == "leaf" or name in _EXACT)
            on_grid = bool(np.max(np.abs(finite), initial=0.0) <= 2.0**38 and (np.floor(finite * 4096) == finite * 4096).all())
            if name == "mul" and fine:
                most = [float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0)) for x in xs]
                whole = all((np.floor(x) == x).all() for x in xs)
                fine = most[0] * most[1] <= (2.0**52 if whole else 2.0**28)
            exact[n] = fine and on_grid
        else:
            exact[n] = True
            if name in ("add", "mul", "sum") and n.dtype.is_integer and n.dtype.itemsize >= 4:
                wide = [x.astype(np.float64) for x in xs]
                true = (
                    wide[0] + wide[1] if name == "add" else wide[0] * wide[1] if name == "mul" else wide[0].sum(n.attrs["axes"])
                )
                overflow |= bool((np.abs(true - v.astype(np.float64)) > 1e-6 * np.abs(true) + 0.5).any())
        if not xs or n.inputs[0].dtype.kind != "float" or not v.size:
            continue
        if not _safe(n, xs, all(exact.get(i, False) for i in n.inputs)):
            return None
    return overflow


def _safe(n: Node, xs: Sequence[np.ndarray], exact: bool) -> bool:
    """Return whether rounding cannot have decided the result of an op of floats: exact operands, or far from edges and poles."""
    x, name = xs[0], n.op.name
    with np.errstate(all="ignore"):
        if name in ("less", "not_equal"):
            return exact or bool((np.abs(x - xs[1]) > 1e-7 * (1 + np.abs(x) + np.abs(xs[1]))).all())
        if name == "floor" or (name == "cast" and n.dtype.is_integer):
            return exact or bool((np.abs(x - np.round(x)) > 1e-7 * (1 + np.abs(x))).all())
        if name == "cast" and n.dtype.kind == "bool":
            return exact or bool((np.abs(x) > 1e-7).all())
        bounds = {
            "reciprocal": np.abs(x) > 1e-4,
            "log2": x > 1e-6,
            "sqrt": (x > 1e-13) | ((x == 0) & exact),
            "exp2": x < 60,
            "sin": np.abs(x) < 1e6,
            "bitcast": np.full(x.shape, exact),
        }
        return name not in bounds or bool(bounds[name].all())
