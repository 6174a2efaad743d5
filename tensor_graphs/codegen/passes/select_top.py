"""select_top: the largest elements of a row by one reduction to a sorted list, where ranks are counted only to be compared.

A rank is the number of elements that come before: n² comparisons for a row of n. Where only the elements of the first ranks are
read, a list of that many keys is enough. A key is one integer: an element as an integer of the same order (NaN above all, −0 as 0)
in its upper half, and the elements that follow in its lower half, so that the first of equal ones is the greatest. So the monoid
(loop_ir.Top) compares integers only, and value and index are read from its keys.

In: a program as lowered.  Out: the program with such ranks, and the sums that pick elements by them, in one nest. Rows of more than
MOST elements wanted, and dtypes of 64 bits, keep their ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from tensor_graphs.codegen.default_schedule import changed
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, Top, Value, Values, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f32, i32, i64, u32

MOST = 32
"""most elements that are wanted of a row: a thread keeps a list of as many keys in registers"""

HALF, LEAST, GREATEST = 1 << 32, -(1 << 31), (1 << 31) - 1


@dataclass(frozen=True)
class _Ranks:
    """The ranks of rows. batch: the axes around a row; axis: that of its elements, by number; over: by what they are compared
    with; x: an element at `axis`."""

    nest: Nest
    stage: Stage
    batch: tuple[Axis, ...]
    axis: Axis
    over: Axis
    x: Value


@dataclass(frozen=True)
class _Pick:
    """A sum that picks an element of each rank below the size of `axis`: its value, or its index. here: what the axes around it are
    among those of the ranks."""

    nest: Nest
    stage: Stage
    axis: Axis
    here: Mapping[str, Dim]
    value: bool


def selected(program: StageProgram) -> StageProgram:
    """Return the program with the first ranks selected by lists.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> print(selected(lower_text("input x i8[4, 9]", "(v, i) = topk(x; k=2)", "output y = i")))
    nest over _i3 in 0..4
        t1[0] = top 2 over _r7 in 0..9 of ((cast(x0[9*_i3 + _r7]) * 4294967296) + i64(-_r7 + 8))
        y0[2*_i3 + _i4] = cast((i64(8) + ((t1[_i4] & 4294967295) * -1)))    over _i4 in 0..2
    """
    while True:
        fewer = next((new for nest in program.nests for s in nest.stages if (new := _selected(program, nest, s)) is not None), None)
        if fewer is None:
            return program
        program = fewer


def _selected(program: StageProgram, nest: Nest, s: Stage) -> StageProgram | None:
    ranks = _ranks_of(program, nest, s)
    picks = None if ranks is None else _picks_of(program, ranks)
    if ranks is None or not picks:
        return None
    values, level = program.values, len(ranks.batch)
    keys = Array(s.target.name, "scratch", 0, i64, max(int(d.evaluate(p.axis.size, {})) for p in picks), level)
    around = frozenset(a.name for a in ranks.batch) if level else frozenset[str]()
    x = _at(values, ranks.x, {ranks.axis.name: ranks.over.symbol}, {ranks.axis.name})
    count = int(d.evaluate(keys.size, {}))
    greatest = Reduce((ranks.over,), Top(count) if count > 1 else "max")
    top = Stage(keys, 0, (), _key(values, x, ranks.over), level, greatest, "topk")
    stores = []
    for p in picks:
        key = values.make("load", i64, attr=(keys, p.axis.symbol, around))
        value = _value(values, key, x.dtype) if p.value else _index(values, key, ranks.over.size, p.stage.value.dtype)
        index = d.substitute(p.stage.index, p.here)
        stores.append(replace(p.stage, index=index, axes=(p.axis,), value=value, level=level, does=None))
    gone = {s, *(p.stage for p in picks)}
    rest = [stage for stage in nest.stages if stage not in gone]
    if any(stage.level > level for stage in rest) or any(
            p.nest is not nest and len(p.nest.stages) > 1 for p in picks) or nest.blocks is not None:
        return None
    both = Nest(ranks.batch, (*rest, top, *stores))
    return program.made_of(both if other is nest else other for other in program.nests
                           if other is nest or not any(p.nest is other for p in picks))


def _ranks_of(program: StageProgram, nest: Nest, s: Stage) -> _Ranks | None:
    """Return the ranks that a stage counts; None of other stages."""
    own = (*nest.axes[:s.level], *s.axes)
    if s.monoid != "sum" or len(s.reduce) != 1 or s.held or s.value.op != "cast" or s.value.dtype is not i32 or not own:
        return None
    (*batch, axis), (over,) = own, s.reduce
    if axis.size != over.size or s.target.role != "scratch" or not all(a in nest.axes for a in batch):
        return None
    for v in values_in(s.value.args[0]):
        if v.op == "less" and v.args[0].dtype.itemsize <= i32.itemsize and v.args[0].op != "index":
            x, other = v.args
            same = _at(program.values, x, {axis.name: over.symbol}, {axis.name})
            if same is other and s.value.args[0] is _before(program.values, x, other, axis, over):
                return _Ranks(nest, s, tuple(batch), axis, over, x)
    return None


def _before(v: Values, x: Value, other: Value, axis: Axis, over: Axis) -> Value:
    """Return the condition that the definition of topk counts: that another element comes before."""
    def no(a: Value) -> Value:
        return v.make("xor", bool_, a, v.constant(True, bool_))

    def both(a: Value, b: Value) -> Value:
        return v.make("and", bool_, a, b)

    def either(a: Value, b: Value) -> Value:
        return v.make("xor", bool_, v.make("xor", bool_, a, b), both(a, b))

    def unequal(a: Value, b: Value) -> Value:
        return v.make("not_equal", bool_, a, b)

    larger, same = v.make("less", bool_, x, other), no(unequal(x, other))
    if x.dtype.is_float:
        nan, other_nan = unequal(x, x), unequal(other, other)
        larger, same = either(larger, both(other_nan, no(nan))), either(same, both(nan, other_nan))
    return either(larger, both(same, v.make("less", bool_, v.index(over.symbol, i32), v.index(axis.symbol, i32))))


def _picks_of(program: StageProgram, ranks: _Ranks) -> list[_Pick] | None:
    """Return the sums that read ranks; None where something else does, or none does."""
    target, picks = ranks.stage.target, list[_Pick]()
    if any(v.op == "load" and v.attr[0] == target for g in program.gathered.values() for v in values_in(g)):
        return None
    for nest in program.nests:
        for s in nest.stages:
            if any(v.op == "load" and v.attr[0] == target for root in s.roots() for v in values_in(root)):
                pick = _pick_of(program, ranks, nest, s)
                if pick is None:
                    return None
                picks.append(pick)
    return picks


def _pick_of(program: StageProgram, ranks: _Ranks, nest: Nest, s: Stage) -> _Pick | None:
    own, v, value = (*nest.axes[:s.level], *s.axes), program.values, s.value
    if s.monoid != "sum" or len(s.reduce) != 1 or s.held or value.op != "where" or not own or s.target.level > len(ranks.batch):
        return None
    (*batch, axis), (over,) = own, s.reduce
    if [a.size for a in (*batch, over)] != [a.size for a in (*ranks.batch, ranks.axis)] or not value.args[2].is_constant(0):
        return None
    if not isinstance(axis.size, int) or not 0 < axis.size <= MOST:
        return None
    there: dict[str, Dim] = {a.name: b.symbol for a, b in zip((*ranks.batch, ranks.axis), (*batch, over), strict=True)}
    index = d.substitute(ranks.stage.index, there)
    inside = frozenset(a.name for a in ranks.batch) if ranks.stage.target.level else frozenset[str]()
    place = v.make("load", i32, attr=(ranks.stage.target, index, inside))
    wanted = v.make("xor", bool_, v.make("not_equal", bool_, place, v.index(axis.symbol, i32)), v.constant(True, bool_))
    x = _at(v, ranks.x, there, {ranks.axis.name})
    if value.args[0] is not wanted or not (value.args[1] is x or value.args[1] is v.index(over.symbol, value.dtype)):
        return None
    back: dict[str, Dim] = {a.name: b.symbol for a, b in zip(batch, ranks.batch, strict=True)}
    return _Pick(nest, s, axis, back, value.args[1] is x)


def _at(values: Values, value: Value, where: Mapping[str, Dim], names: set[str]) -> Value:
    return changed(values, value, partial(d.substitute, mapping=where), names, "")


# ---- keys ------------------------------------------------------------------------------------------------------------------------

def _key(v: Values, x: Value, over: Axis) -> Value:
    """Return the key of an element."""
    dtype = x.dtype
    if dtype.is_float:
        bits = v.make("bitcast", i32, x, attr="f32 i32")
        low = v.make("where", i32, _below_0(v, bits), v.make("xor", i32, bits, v.constant(GREATEST, i32)), bits)
        low = v.make("where", i32, v.make("not_equal", bool_, x, v.constant(0.0, f32)), low, v.constant(0, i32))
        x = v.make("where", i32, v.make("not_equal", bool_, x, x), v.constant(GREATEST, i32), low)
    order = v.make("cast", i64, x)
    if dtype is u32:
        order = v.make("add", i64, order, v.constant(LEAST, i64))
    behind = v.index(over.size - 1 - over.symbol, i64)
    return v.make("add", i64, v.make("mul", i64, order, v.constant(HALF, i64)), behind)


def _index(v: Values, key: Value, size: Dim, dtype: DType) -> Value:
    behind = v.make("mul", i64, v.make("and", i64, key, v.constant(HALF - 1, i64)), v.constant(-1, i64))
    return v.make("cast", dtype, v.make("add", i64, v.index(size - 1, i64), behind))


def _value(v: Values, key: Value, dtype: DType) -> Value:
    order = v.make("idiv", i64, key, v.constant(HALF, i64))
    if not dtype.is_float:
        order = v.make("add", i64, order, v.constant(-LEAST, i64)) if dtype is u32 else order
        return v.make("cast", dtype, order)
    bits = v.make("cast", i32, order)
    bits = v.make("where", i32, _below_0(v, bits), v.make("xor", i32, bits, v.constant(GREATEST, i32)), bits)
    return v.make("bitcast", f32, bits, attr="i32 f32")


def _below_0(v: Values, bits: Value) -> Value:
    return v.make("less", bool_, bits, v.constant(0, i32))
