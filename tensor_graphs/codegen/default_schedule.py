"""default_schedule: rules that arrange lowered nests for execution. Conditions that depend only on indices are decided before the
loops (split_at_conditions.py). Neighbouring axes that are contiguous together are merged. A sum over everything, and a long scan,
is cut into parts. Nests that read along one axis and write along another are tiled.

In: a program as lowered.  Out: an arranged program; its results do not change, except for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from tensor_graphs.codegen.loop_ir import (
    SCAN_ADVICE,
    Array,
    Axis,
    Nest,
    Reduce,
    Running,
    Stage,
    StageProgram,
    Top,
    Value,
    Values,
    dim_of,
    flat,
    lies_across,
    rewritten,
    values_in,
)
from tensor_graphs.codegen.passes.wide_accumulate import in_f64
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32


@dataclass(frozen=True)
class PartSize:
    """The elements of a part by rule (0: uncut), and those of all parts (0: there are no parts but the rule's)."""

    size: int
    whole: int


BY_RULE: Mapping[str, int] = MappingProxyType({})
"""no elements of a part in place of the rule's"""

CHUNK = 1 << 14
"""elements of one part of a sum over everything"""


LEAST_TILE = 8
"""iterations from which on an axis is worth walking in blocks"""


def advised(program: StageProgram) -> StageProgram:
    """Return the program with the advice of nests and stages (tiles, accumulators) that the rules give.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[64, 32]", "output y = permute(x; axes=(1, 0))")
    >>> print(program)
    nest over _i0 in 0..32
        y0[64*_i0 + _j1] = x0[_i0 + 32*_j1]    over _j1 in 0..64
    >>> print(advised(program))
    nest over _i0 in 0..32, in tiles along _i0
        y0[64*_i0 + _j1] = x0[_i0 + 32*_j1]    over _j1 in 0..64
    """
    def with_lanes(s: Stage) -> Stage:
        lanes = lanes_by_rule(s)
        return s if lanes == s.advice.lanes else replace(s, advice=replace(s.advice, lanes=lanes))

    return program.made_of(nest.mapped(lambda s: [with_lanes(s)], tile=tile_by_rule(program, nest)) for nest in program.nests)


def merged(program: StageProgram) -> StageProgram:
    """Return the program with neighbouring axes that are contiguous together merged.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 8]", "output y = exp(x)")
    >>> print(program)
    nest over _i0 in 0..4
        y0[8*_i0 + _j1] = exp(x0[8*_i0 + _j1])    over _j1 in 0..8
    >>> print(merged(program))
    nest over nothing
        y0[_j1_] = exp(x0[_j1_])    over _j1_ in 0..32
    """
    for place in range(len(program.nests)):
        while (fewer := _one_merge(program, place)) is not None:
            program = fewer
    return program


def cut(program: StageProgram, parts: Mapping[str, int] = BY_RULE) -> StageProgram:
    """Return the program with each reduction to one number, and each scan, cut into parts. parts: elements of a part in place of
    the rule's, by the name of what is computed. A nest stays uncut if the number is 0 or if it cannot be cut.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[98304]", "output y = sum(x; axes=(0,))")
    >>> print(program)
    nest over nothing
        y0[0] = sum over _r0 in 0..98304 of x0[_r0]
    >>> print(cut(program))
    nest over _r0p in 0..6
        y0p[_r0p] = sum over _r0q in 0..16384 of cast(x0[16384*_r0p + _r0q])
    nest over nothing
        y0[0] = sum over _r0t in 0..6 of y0p[_r0t]
    """
    own = {name: one.size for name, one in whole_parts(program).items()} | {**parts}
    sizes = [own.get(nest.stages[0].target.name, 0) if cut_along(nest) else 0 for nest in program.nests]
    if not any(sizes):
        return program
    return program.made_of(piece for nest, size in zip(program.nests, sizes, strict=True)
                           for piece in (in_parts(program, nest, size) if size else [nest]))


# ---- axes that are one, or none ------------------------------------------------------------------------------------------------


def _one_merge(program: StageProgram, place: int) -> StageProgram | None:
    """Return the program with the first two axes of a nest merged that can be; None where there are no such axes."""
    nest = program.nests[place]
    for stages, where, axes in _neighbours(nest):
        for i in range(len(axes) - 1):
            if where == "nest" and any(s.level == i + 1 for s in nest.stages):
                continue
            result = _merged(program, place, stages, axes[i:i + 2], where)
            if result is not None:
                return result
    return None


def _neighbours(nest: Nest) -> Iterator[tuple[Sequence[Stage], str, tuple[Axis, ...]]]:
    """Yield stages, and axes of which two neighbours may be merged if all of these stages agree: the stages' own, reduced axes,
    those of the nest, and the nest's last with the first of all innermost stages."""
    own = {tuple(a.name for a in s.axes) for s in nest.stages}
    if len(own) == 1:                                               # several outputs of one shape, or one
        yield nest.stages, "axes", nest.stages[0].axes
    for s in nest.stages:
        yield [s], "over", s.reduce
        if sum(s.axes == other.axes for other in nest.stages) == 1:
            yield [s], "axes", s.axes
    yield nest.stages, "nest", nest.axes
    inmost = [s for s in nest.stages if s.level == len(nest.axes)]  # stages at lower levels do not know the axis, and come before
    if nest.axes and inmost and all(s.axes and s.axes == inmost[0].axes and s.target.level == 0 for s in inmost):
        yield inmost, "inner", (nest.axes[-1], inmost[0].axes[0])


def _merged(program: StageProgram, place: int, stages: Sequence[Stage], pair: Sequence[Axis], where: str) -> StageProgram | None:
    """Return the program with one axis in place of a pair of axes of some stages; None where an index or a scan needs both."""
    (a, b), nest = pair, program.nests[place]
    if any(s.scan is not None and s.scan.along in pair for s in stages):
        return None
    if any(str(x) in (a.name, b.name) for s in stages for axis in (*s.axes, *s.reduce) for x in d.symbols(axis.size)):
        return None                                                 # a loop that is as long as one of the two has come
    names = {a.name, b.name}
    read = {name for name, v in program.gathered.items() if v.symbols & names}
    if read and any(root.symbols & read for s in program.stages if s not in stages for root in s.roots()):
        return None                                                 # a stage that keeps both loads at an index along one of them
    both = Axis(b.name + "_", a.size * b.size)

    def change(x: Dim) -> Dim | None:
        return _as_one(x, a, b, both)

    if any(change(x) is None for s in stages for x in dims_of(program, s)):
        return None

    def must(x: Dim) -> Dim:
        index = change(x)
        assert index is not None
        return index

    values = program.values
    outer = nest.axes.index(a) if where == "nest" else len(nest.axes)
    arrays = {s.target: replace(s.target, level=s.target.level - 1) for s in nest.stages
              if where == "nest" and s.target.role == "scratch" and s.target.level > outer}

    def with_one(s: Stage) -> Stage:
        fields: dict[str, Any] = {"index": must(s.index)}
        if where == "nest":
            fields |= {"level": s.level - (s.level > outer), "target": arrays.get(s.target, s.target)}
        elif where == "inner":
            fields |= {"level": s.level - 1, "axes": (both, *s.axes[1:])}
        elif where == "axes":
            fields["axes"] = _joined(s.axes, a, both)
        elif isinstance(s.does, Reduce):
            fields["does"] = replace(s.does, over=_joined(s.reduce, a, both))
        return s.with_roots(lambda v: changed(values, v, must, names, both.name), **fields)

    axes = _joined(nest.axes, a, both) if where == "nest" else nest.axes[:-1] if where == "inner" else nest.axes
    own = nest.mapped(lambda s: [with_one(s) if s in stages else s], axes=axes)
    for name, v in list(values.gathered.items()):
        if name in read and all(change(x) is not None for x in _dims_of_value(v)):
            values.gathered[name] = changed(values, v, must, names, both.name)
    if arrays:
        own = own.mapped(lambda s: [s.with_roots(lambda v: values.of_arrays(v, arrays))])
        values.gathered = {name: values.of_arrays(v, arrays) for name, v in values.gathered.items()}
    return program.made_of((own if other is nest else other for other in program.nests), values)


def _joined(axes: tuple[Axis, ...], first: Axis, both: Axis) -> tuple[Axis, ...]:
    """Return the axes with one axis in place of `first` and its successor."""
    at = axes.index(first)
    return (*axes[:at], both, *axes[at + 2:])


def without_single_turns(program: StageProgram) -> StageProgram:
    """Return the program without axes of one turn, which are no loops.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 1, 8]", "output y = sum(x; axes=(1, 2))")
    >>> print(program)
    nest over _i0 in 0..4
        y0[_i0] = sum over _r1 in 0..1, _r2 in 0..8 of x0[8*_i0 + _r2]
    >>> print(without_single_turns(program))
    nest over _i0 in 0..4
        y0[_i0] = sum over _r2 in 0..8 of x0[8*_i0 + _r2]
    """
    def fewer(s: Stage) -> Stage:
        along = None if s.scan is None else s.scan.along
        if all(a.size != 1 for a in (*s.axes, *s.reduce)):
            return s
        over = tuple(a for a in s.reduce if a.size != 1) or s.reduce[:1]
        does = replace(s.does, over=over) if isinstance(s.does, Reduce) else s.does
        return replace(s, axes=tuple(a for a in s.axes if a.size != 1 or a == along), does=does)

    return program.mapped(lambda s: [fewer(s)])


def _as_one(x: Dim, a: Axis, b: Axis, both: Axis) -> Dim | None:
    """Return x in terms of the merged index a·size(b) + b; None where that is impossible."""
    if not isinstance(x, d.Expr) or not {a.name, b.name} & set(x.symbols):
        return x
    of_a, of_b = d.coefficient(x, a.name), d.coefficient(x, b.name)
    if of_a is None or of_b is None:
        return None
    if a.symbol == 0:                                               # one turn only
        of_a = of_b * b.size
    if b.symbol == 0:
        of_b = of_a
    if not proved_equal(of_a, of_b * b.size):
        return None
    return x - of_a * a.symbol - of_b * b.symbol + of_b * both.symbol


def dims_of(program: StageProgram, stage: Stage) -> Iterable[Dim]:
    yield stage.index
    for axis in (*stage.axes, *stage.reduce):
        yield axis.size
    for root in stage.roots():
        yield from _dims_of_value(root)
        for name, v in program.gathered.items():
            if name in root.symbols:
                yield from _dims_of_value(v)


def _dims_of_value(value: Value) -> Iterable[Dim]:
    return (x for v in values_in(value) if (x := dim_of(v)) is not None)


def changed(values: Values, value: Value, change: Callable[[Dim], Dim], names: Set[str], new: str) -> Value:
    """Return a value with `change` applied to each index. names: the axes that are replaced; new: the name that replaces them."""
    def one(v: Value, args: tuple[Value, ...]) -> Value:
        attr = v.attr
        if v.op == "index":
            attr = change(attr)
        elif v.op == "load":
            inside = v.attr[2]
            attr = (v.attr[0], change(v.attr[1]), (inside - names) | {new} if inside & names else inside)
        return values.make(v.op, v.dtype, *args, attr=attr)

    return rewritten(value, one)


def on_axes(values: Values, value: Value, axes: Sequence[Axis], others: Sequence[Axis]) -> Value:
    """Return a value over axes as the same over others of the same sizes, none of which occurs in it."""
    here: dict[str, Dim] = {a.name: b.symbol for a, b in zip(axes, others, strict=True)}
    for a, b in zip(axes, others, strict=True):
        value, here = changed(values, value, partial(d.substitute, mapping=here), {a.name}, b.name), {}
    return value


def reloaded(values: Values, value: Value, load: Callable[[Value, tuple[Value, ...]], Value | None]) -> Value:
    """Return a value with some of its loads replaced. load: returns the replacement, given the changed arguments, or None."""
    def one(v: Value, args: tuple[Value, ...]) -> Value:
        read = load(v, args) if v.op == "load" else None
        return values.make(v.op, v.dtype, *args, attr=v.attr) if read is None else read

    return rewritten(value, one)


# ---- what lies across ----------------------------------------------------------------------------------------------------------


def tile_by_rule(program: StageProgram, nest: Nest) -> Axis | None:
    """Return the axis to tile against the stages' own axis: the nest axis along which most of the strided operands are contiguous.
    None without such an axis, or where either axis is too short for blocks."""
    if any(s.monoid is not None or s.level != len(nest.axes) or len(s.axes) != 1 or s.axes != nest.stages[0].axes
           for s in nest.stages):
        return None
    (inner,) = nest.stages[0].axes
    loads = [v for s in nest.stages for v in values_in(s.value) if v.op == "load" and v.attr[0].level == 0
             and not v.symbols & set(program.gathered)]
    count = {a: sum(lies_across(v, a.name, inner.name) for v in loads) for a in nest.axes if d.bounds(a.size)[1] >= LEAST_TILE}
    most = max(count.values(), default=0)
    return next(a for a in count if count[a] == most) if most and d.bounds(inner.size)[1] >= LEAST_TILE else None


# ---- sums of long rows ---------------------------------------------------------------------------------------------------------

LONG_ROW, LANES = 512, 4
"""elements from which on a row is summed in LANES vectors of accumulators. Measured on f32 in the cache, one thread, relative to
one vector: 0.7 of the time from 640 on, 0.95 for 384, 1.2 for 256; 1.3 for sums of exponentials, which additions do not delay"""

CHEAP = frozenset({"load", "index", "constant", "add", "mul", "cast"})
"""ops so fast that a sum of their results is limited by its additions"""


def lanes_by_rule(s: Stage) -> int:
    """Return the number of accumulator vectors for a reduction."""
    if s.monoid != "sum" or s.scan is not None or not s.value.dtype.is_float:
        return s.advice.lanes
    cheap = all(v.op in CHEAP for v in values_in(s.value) if s.reduce[-1].name in v.symbols)
    return LANES if cheap and d.bounds(s.reduce[-1].size)[1] >= LONG_ROW else 1


# ---- sums over everything, and long scans ------------------------------------------------------------------------------------


def part_by_rule(nest: Nest) -> int:
    """Return the elements per part for a nest of one long reduction to one number or one long scan; 0 where it stays uncut."""
    over = cut_along(nest)
    return CHUNK if over and d.bounds(d.product(a.size for a in over))[1] > 4 * CHUNK else 0


def whole_parts(program: StageProgram) -> dict[str, PartSize]:
    """Return the parts of each reduction to one number, and of each scan, that can be cut."""
    return {nest.stages[0].target.name: PartSize(part_by_rule(nest), d.bounds(over[0].size)[1] if len(over) == 1 else 0)
            for nest in program.nests if (over := cut_along(nest))}


def cut_along(nest: Nest) -> tuple[Axis, ...]:
    """Return the axes along which a nest of one reduction to one number, or of one scan, can be cut; empty for other nests."""
    if nest.axes or len(nest.stages) != 1:
        return ()
    (stage,) = nest.stages
    over = stage.reduce if stage.scan is None else (stage.scan.along,)
    if stage.monoid in (None, "product") or stage.axes != (() if stage.scan is None else over):
        return ()
    return over


def in_parts(program: StageProgram, nest: Nest, size: int) -> list[Nest]:
    """Cut a nest into partial results, computed in parallel, and their combination. A scan becomes three nests: the total of each
    part, the running total before each part, and a scan of each part that starts with that total."""
    over = cut_along(nest)
    if not over:
        return [nest]
    (stage,), (first, *rest), scan = nest.stages, over, nest.stages[0].scan
    cut = (first, tuple(rest), stage.value) if rest else value_in_parts(program, stage.value, first, size)
    if cut is None:
        return [nest]
    part, turns, value = cut
    inner = turns if isinstance(turns, tuple) else (turns,)
    if scan is None:
        if stage.monoid == "sum" and value.dtype is f32:
            value = in_f64(program.values, value)                   # one number of many, which may cancel; memory takes as long
        return in_two(program, nest, stage, part, inner, value)
    try:
        index = in_chunks(first, size)[2](stage.index)
    except Entangled:
        return [nest]
    whole = replace(stage, axes=(), does=Reduce(over, scan.monoid))
    totals, combined = in_two(program, Nest((), (whole,)), whole, part, inner, value)
    (total,), read = combined.stages[0].reduce, combined.stages[0].value
    begun = Array(f"{stage.target.name}b", "scratch", 0, stage.value.dtype, part.size)
    before = Stage(begun, total.symbol, (total,), read, 0, Running(total, scan.monoid, True, scan.start), "before each part",
                   SCAN_ADVICE)
    last = Stage(stage.target, index, inner, value, 1,
                 Running(inner[0], scan.monoid, scan.before, program.values.load(begun, part.symbol)), stage.note, SCAN_ADVICE)
    return [totals, Nest((), (before,)), Nest((part,), (last,))]


def in_two(program: StageProgram, nest: Nest, s: Stage, part: Axis, inner: tuple[Axis, ...], value: Value) -> list[Nest]:
    """Return a nest as two: parts of a reduction, of a value over the axes `inner`, and the nest with their combination. Parts of a
    row lie beside each other, those of columns are rows."""
    assert isinstance(s.does, Reduce)
    own = (*nest.axes, *s.axes)
    offset, width = flat(own), s.monoid.count if isinstance(s.monoid, Top) else 1       # elements of a result
    results = Array(f"{s.target.name}p", "scratch", 0, value.dtype, part.size * width * d.product(a.size for a in own))
    total = Axis(f"{s.reduce[0].name}t", part.size * width)
    if s.axes:
        lines = d.product(a.size for a in own)
        axes, index, read = (part, *nest.axes), part.symbol * lines + offset, total.symbol * lines + offset
    else:
        axes = with_parts(nest.axes, part, value)
        index, read = (offset * part.size + part.symbol) * width, offset * part.size * width + total.symbol
    of_parts = Stage(results, index, s.axes, value, len(nest.axes) + 1, replace(s.does, over=inner), f"{s.note}, in parts")
    whole = replace(s, value=program.values.load(results, read), does=replace(s.does, over=(total,)), note=f"{s.note} of the parts")
    return [Nest(axes, (of_parts,)), nest.mapped(lambda stage: [whole if stage is s else stage])]


def with_parts(axes: tuple[Axis, ...], part: Axis, value: Value) -> tuple[Axis, ...]:
    """Return the axes of a nest of parts. The axis of parts comes first where its elements are further apart in memory."""
    steps = [[d.coefficient(v.attr[1], axis.name) for axis in (part, *axes[-1:])] for v in values_in(value) if v.op == "load"]
    first = bool(axes and steps) and all(isinstance(a, int) and isinstance(b, int) and a > b for a, b in steps)
    return (part, *axes) if first else (*axes, part)


def in_chunks(axis: Axis, chunk: int) -> tuple[Axis, Axis, Callable[[Dim], Dim]]:
    """Split an axis into parts of `chunk` iterations. Return the axis of parts, the axis within a part, and a function that
    rewrites an index to both. The function raises Entangled."""
    part = Axis(f"{axis.name}p", d.ceil_div(axis.size, chunk))
    inner = Axis(f"{axis.name}q", d.dim_min(chunk, axis.size - part.symbol * chunk))
    return part, inner, partial(moved, axis=axis, at=part.symbol * chunk + d.dim(inner.name, 0, chunk - 1))


def value_in_parts(program: StageProgram, value: Value, over: Axis, chunk: int) -> tuple[Axis, Axis, Value] | None:
    """Split an axis as `in_chunks` does, and return both axes with the value rewritten to them; None where that is impossible."""
    part, inner, change = in_chunks(over, chunk)
    if any(over.name in v.symbols for v in program.gathered.values()):
        return None
    try:
        return part, inner, changed(program.values, value, change, {over.name}, part.name)
    except Entangled:
        return None


def moved(x: Dim, axis: Axis, at: Dim) -> Dim:
    """Return an index with the symbol of an axis replaced by `at`. Raises Entangled where the index is not linear in the axis."""
    if not isinstance(x, d.Expr) or axis.name not in x.symbols:
        return x
    factor = d.coefficient(x, axis.name)
    if factor is None:
        raise Entangled
    return x - factor * axis.symbol + factor * at


class Entangled(Exception):
    """An index that is not linear in the axis."""
