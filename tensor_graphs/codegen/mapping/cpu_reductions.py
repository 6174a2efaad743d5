"""cpu_reductions: reductions on a CPU: to one number, in registers of several vectors, and across memory, of many columns at once.

A sum of f32 is accumulated in f32 over a block of elements and in f64 beyond, as in handwritten kernels. The lengths of blocks and
the number of accumulators are the stage's advice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tensor_graphs.codegen.loop_ir import Array, Axis, Monoid, Stage, Value
from tensor_graphs.codegen.loop_program import LANES, Clear, FunctionCall, Loop, Take
from tensor_graphs.codegen.mapping.cpu_body import Bounds, CpuBody, index
from tensor_graphs.codegen.passes.split_at_conditions import Limits, limits
from tensor_graphs.codegen.passes.wide_accumulate import KEPT, in_f64
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f32, f64, i64


def is_narrow(s: Stage) -> bool:
    """Return whether a stage sums f32, which f64 goes on with."""
    return s.monoid == "sum" and s.value.dtype is f32


def sum_type(s: Stage) -> DType:
    """Return the dtype in which a stage's values are combined at last."""
    return f64 if is_narrow(s) or (s.monoid == "product" and s.value.dtype.is_float) else s.value.dtype


@dataclass(frozen=True)
class _Elements:
    """Values to combine along the last axis of a reduction. dtype: of a lane. lanes: vectors of accumulators (0: none)."""

    value: Value
    monoid: Monoid
    axis: Axis
    dtype: DType
    lanes: int


def row(body: CpuBody, s: Stage) -> None:
    """Reduce to one number."""
    assert s.monoid is not None
    last, narrow, number = s.reduce[-1], is_narrow(s), s.value.number
    total = body.local(f"total{number}", sum_type(s), monoid=s.monoid)
    value, first = _besides_first(body, s)
    lanes = s.advice.lanes if s.advice.lanes > 1 or narrow else 0   # sums of f32 have one vector at least, as their variable is f64
    elements = _Elements(value, s.monoid, last, f32 if narrow else total.dtype, lanes)
    with body.loops(s.reduce[:-1]):
        if not narrow:
            _combined(body, elements, (0, last.size), total)
        else:
            with body.strips("_begin", "_end", (0, last.size), s.advice.block * s.advice.lanes) as strip:
                part = body.local(f"part{number}", f64, monoid="sum")
                _combined(body, elements, strip, part)
                if first is not None:
                    body.take(part, 0, "sum", _times(body, first, strip))
                if _may_overflow(s):
                    _again(body, s, strip, part)
                body.take(total, 0, "sum", body.values.load(part, 0))
    body.put(s, body.values.load(total, 0))


def _besides_first(body: CpuBody, s: Stage) -> tuple[Value, Array | None]:
    """Return a reduced value minus the first one, if it is one of nearly equal numbers, and the variable with that."""
    if s.value.op != "beside_first":
        return s.value, None
    (of,), make = s.value.args, body.values.make
    first = body.local(f"first{s.value.number}", f32, monoid="sum")
    some = [_below(body, 0, axis.size) for axis in s.reduce if d.bounds(axis.size)[0] < 1]
    with body.block():
        for axis in s.reduce:
            body.let(axis.name, 0)
        with body.when(_all(body, some)), body.when(make("finite", bool_, body.here(of))):
            body.store(first, 0, of)
    return make("minus", f32, body.here(of), body.values.load(first, 0), number=s.value.number), first


def _below(body: CpuBody, low: Dim, high: Dim) -> Value:
    return body.values.make("less", bool_, body.values.index(low, i64), body.values.index(high, i64))


def _all(body: CpuBody, conditions: list[Value]) -> Value | None:
    return reduce(lambda a, b: body.values.make("and", bool_, a, b), conditions) if conditions else None


def _times(body: CpuBody, first: Array, strip: Bounds) -> Value:
    make = body.values.make
    return make("mul", f64, make("cast", f64, body.values.load(first, 0)), body.values.index(strip[1] - strip[0], f64))


def _may_overflow(s: Stage) -> bool:
    """Return whether a sum of f32 may leave the range of f32 while its f64 result does not. Stored values of a row, such as
    exponentials, are too small for that."""
    if s.target.dtype is not f64 or s.product == "streamed":
        return False
    return s.value.op in ("mul", "where", "add", "beside_first") or (s.value.op == "load" and s.value.attr[0].role != "scratch")


def _again(body: CpuBody, s: Stage, strip: Bounds, part: Array) -> None:
    """Repeat a block's sum in f64, for the case that the f32 sum left its valid range."""
    name = "out_of_range" if s.value.op in ("mul", "where") else "overflowed"
    with body.when(body.values.make(name, bool_, body.values.load(part, 0))):
        body.add(Clear(part, "sum"))
        exact = in_f64(body.program.values, s.value, KEPT)
        _combined(body, _Elements(exact, "sum", s.reduce[-1], f64, 0), strip, part)


def _combined(body: CpuBody, x: _Elements, bounds: Bounds, into: Array) -> None:
    """Combine elements with a variable. Several accumulator vectors (`lanes`) avoid waiting for each other."""
    if not x.lanes:
        with body.loop(x.axis, "vector", bounds):
            body.take(into, 0, x.monoid, x.value)
        return
    load = body.values.load
    wide = LANES[32 if _bits(x) == 32 else 64]
    many, lane_at = x.lanes * wide, d.dim("_l", 0, x.lanes * d.bounds(wide)[1] - 1)
    lane = body.local("lane", x.dtype, many, x.monoid)
    at = index("_at", bounds[1])
    with body.scope() as turns:
        with body.scope() as one:
            body.let(x.axis.name, at + lane_at)
            body.take(lane, lane_at, x.monoid, x.value)
        body.add(Loop("_l", many, "vector", tuple(one)))
    body.add(Loop("_at", bounds[1], "serial", tuple(turns), bounds[0], many, rest=True))
    with body.loop(x.axis, "vector", (at, bounds[1])):
        body.take(into, 0, x.monoid, x.value)
    left = Axis("_l", many)
    if x.monoid == "sum" and x.lanes > 1:                           # a lane holds few values, so that sums of some are as good
        left = Axis("_l", wide)
        vectors = (load(lane, k * wide + lane_at) for k in range(x.lanes))
        added = reduce(lambda a, b: body.values.make("add", x.dtype, a, b), vectors)
        with body.loop(left):
            body.store(lane, lane_at, added)
    with body.scope() as one:
        body.take(into, 0, x.monoid, load(lane, lane_at))
    rest = Loop("_l", left.size, "vector", tuple(one))
    sums = x.monoid == "sum" and x.dtype is f32
    body.add(FunctionCall("f32_add_lanes", ((into, 0), (lane, 0)), (rest,)) if sums else rest)


def _bits(x: _Elements) -> int:
    """Return the bits of a lane."""
    bits = x.dtype.bits
    return max(32, bits) if x.monoid == "product" and not x.dtype.is_float else bits


# ---- across memory ---------------------------------------------------------------------------------------------------------------


def columns(body: CpuBody, s: Stage, bounds: Bounds | None) -> None:
    """Reduce across memory: the innermost loop runs over the last own axis, with an accumulator for each column."""
    axis, wide = s.axes[-1], s.advice.columns
    whole = isinstance(axis.size, int) and axis.size <= wide and bounds is None
    with body.loops(s.axes[:-1], bounds):
        if whole:
            with body.block():
                _columns(body, s, axis.size, (0, axis.size))
        else:
            own = (bounds if len(s.axes) == 1 else None) or (0, axis.size)
            with body.strips("_first", "_past", own, wide) as strip:
                _columns(body, s, wide, strip)


def _columns(body: CpuBody, s: Stage, wide: Dim, strip: Bounds) -> None:
    """Reduce some columns. wide: the most of them."""
    assert s.monoid is not None
    (first, past), axis, last, narrow = strip, s.axes[-1], s.reduce[-1], is_narrow(s)
    at, load = index("_at", wide), body.values.load
    total = body.local(f"total{s.value.number}", sum_type(s), wide, s.monoid, past - first)
    inside = limits(body.program.values, s, axis)
    with body.loops(s.reduce[:-1]):
        if narrow:
            with body.strips("_begin", "_end", (0, last.size), s.advice.rows) as block:
                part = body.local(f"part{s.value.number}", f32, wide, "sum", past - first)
                _rows_of_columns(body, s, inside, strip, block, part)
                body.add(Loop("_at", past - first, "serial", (Take(total, at, "sum", load(part, at)),)))
        else:
            _rows_of_columns(body, s, inside, strip, (0, last.size), total)
    with body.loop(axis, bounds=strip):
        body.put(s, load(total, axis.symbol - first))


def _rows_of_columns(body: CpuBody, s: Stage, inside: Limits | None, strip: Bounds, rows: Bounds, into: Array) -> None:
    assert s.monoid is not None
    axis, value = s.axes[-1], s.value if inside is None else inside.value
    with body.loop(s.reduce[-1], bounds=rows):
        free = [] if inside is None else [body.here(v) for v in inside.free]
        with body.when(_all(body, free)):
            bounds = strip if inside is None else _within(body, inside, strip)
            with body.loop(axis, "vector", bounds):
                body.take(into, axis.symbol - strip[0], s.monoid, value)


def _within(body: CpuBody, inside: Limits, strip: Bounds) -> Bounds:
    """Return the bounds of an axis within which a reduction's iterations count."""
    low, high = strip
    lows = [d.dim_max(-rest + step - 1, 0) // step for step, rest in inside.along if step > 0]
    highs = [d.dim_max(rest - step, 0) // -step for step, rest in inside.along if step < 0]
    if lows:
        low = body.let("_low", d.dim_max(low, *lows))
    if highs:
        high = body.let("_high", d.dim_min(high, *highs))
    return low, high


