"""default_schedule: rules that arrange lowered nests for execution. Conditions that depend only on indices are decided before the
loops (split_at_conditions.py). Neighbouring axes that are contiguous together are merged. A sum over everything, and a long scan,
is cut into parts. Nests that read along one axis and write along another are tiled.

In: a program as lowered.  Out: that program, changed in place; its results do not change, except for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from tensor_graphs.codegen.loop_ir import (
    SCAN_ADVICE,
    Array,
    Axis,
    Nest,
    Scan,
    Stage,
    StageProgram,
    Value,
    Values,
    dim_of,
    lies_across,
    rewritten,
    values_in,
)
from tensor_graphs.codegen.passes.split_at_conditions import decided
from tensor_graphs.codegen.passes.split_into_groups import grouped
from tensor_graphs.codegen.passes.wide_accumulate import in_f64
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

CHUNK = 1 << 14
"""elements of one part of a sum over everything"""


LEAST_TILE = 8
"""iterations from which on an axis is worth walking in blocks"""


def arranged(program: StageProgram) -> StageProgram:
    """Arrange a program by the rules; schedule_actions.py offers the individual steps."""
    merged(program)
    cut(program, [part_by_rule(nest) for nest in program.nests])
    advise(program)
    return program


def advise(program: StageProgram) -> None:
    """Set the advice of nests and stages (tiles, accumulators) by rule."""
    for nest in program.nests:
        nest.tile = tile_by_rule(program, nest)
        for s in nest.stages:
            s.advice = replace(s.advice, lanes=lanes_by_rule(s))


def merged(program: StageProgram) -> StageProgram:
    """Merge neighbouring axes that are contiguous together, split those whose iterations share numbers in groups, and remove
    conditions that depend only on indices."""
    for nest in decided(program).nests:
        _merge_axes(program, nest)
    return grouped(program)


def cut(program: StageProgram, parts: Sequence[int]) -> StageProgram:
    """Cut each nest into parts of the given number of elements. A nest stays uncut if that is 0 or if it cannot be cut."""
    program.nests = [piece for nest, size in zip(program.nests, parts, strict=True)
                     for piece in (in_parts(program, nest, size) if size else [nest])]
    return program


# ---- axes that are one ---------------------------------------------------------------------------------------------------------


def _merge_axes(program: StageProgram, nest: Nest) -> None:
    changed = True
    while changed:
        changed = False
        own = [(s, s.axes) for s in nest.stages]
        if len({tuple(a.name for a in axes) for _, axes in own}) == 1:      # several outputs of one shape, or one
            (axes,) = {axes for _, axes in own}
            changed = _merge_shared(program, nest, nest.stages, axes, "axes")
        for stage in nest.stages:
            changed = changed or _merge_shared(program, nest, [stage], stage.reduce, "reduce")
            if sum(stage.axes == other.axes for other in nest.stages) == 1:
                changed = changed or _merge_shared(program, nest, [stage], stage.axes, "axes")
        for i in range(len(nest.axes) - 1):
            if not changed and not any(s.level == i + 1 for s in nest.stages):
                merged = _merged(program, nest.stages, nest.axes[i], nest.axes[i + 1])
                if merged is not None:
                    nest.axes = (*nest.axes[:i], merged, *nest.axes[i + 2:])
                    for s in nest.stages:
                        s.level -= s.level > i
                        if s.target.role == "scratch" and s.target.level > i:
                            s.target.level -= 1
                    changed = True
                    break
        inmost = [s for s in nest.stages if s.level == len(nest.axes)]
        alike = bool(inmost) and all(s.axes and s.axes == inmost[0].axes and s.target.level == 0 for s in inmost)
        if not changed and nest.axes and alike:
            merged = _merged(program, inmost, nest.axes[-1], inmost[0].axes[0])
            if merged is not None:                                  # stages at lower levels do not know the axis, and come before
                nest.axes = nest.axes[:-1]
                for s in inmost:
                    s.axes, s.level = (merged, *s.axes[1:]), len(nest.axes)
                changed = True


def _merge_shared(program: StageProgram, nest: Nest, stages: list[Stage], axes: tuple[Axis, ...], where: str) -> bool:
    for i in range(len(axes) - 1):
        merged = _merged(program, stages, axes[i], axes[i + 1])
        if merged is not None:
            new = (*axes[:i], merged, *axes[i + 2:])
            for s in stages:
                setattr(s, where, new)
            return True
    return False


def _merged(program: StageProgram, stages: list[Stage], a: Axis, b: Axis) -> Axis | None:
    """Return one axis that replaces a and b, after changing the stages to it; None where an index or a scan needs both."""
    if any(s.scan is not None and s.scan.axis in (a, b) for s in stages):
        return None
    if any(str(x) in (a.name, b.name) for s in stages for axis in (*s.axes, *s.reduce) for x in d.symbols(axis.size)):
        return None                                                 # a loop that is as long as one of the two has come
    names, gathered = {a.name, b.name}, program.values.gathered
    read = {name for name, v in gathered.items() if v.symbols & names}
    if any(root.symbols & read for nest in program.nests for s in nest.stages if s not in stages for root in s.roots()):
        return None                                                 # a stage that keeps both loads at an index along one of them
    both = Axis(b.name + "_", a.size * b.size)

    def change(x: Dim) -> Dim | None:
        return _as_one(x, a, b, both)

    if any(change(x) is None for s in stages for x in _dims(program, s)):
        return None

    def must(x: Dim) -> Dim:
        index = change(x)
        assert index is not None
        return index

    for s in stages:
        s.index, s.value = must(s.index), changed(program, s.value, must, names, both.name)
        if s.scan is not None and s.scan.start is not None:
            s.scan = replace(s.scan, start=changed(program, s.scan.start, must, names, both.name))
    for name, v in list(gathered.items()):
        if name in read and all(change(x) is not None for x in _dims_of_value(v)):
            gathered[name] = changed(program, v, must, names, both.name)
    return both


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


def _dims(program: StageProgram, stage: Stage) -> Iterable[Dim]:
    yield stage.index
    for axis in (*stage.axes, *stage.reduce):
        yield axis.size
    for root in stage.roots():
        yield from _dims_of_value(root)
        for name, v in program.values.gathered.items():
            if name in root.symbols:
                yield from _dims_of_value(v)


def _dims_of_value(value: Value) -> Iterable[Dim]:
    return (x for v in values_in(value) if (x := dim_of(v)) is not None)


def changed(program: StageProgram, value: Value, change: Callable[[Dim], Dim], names: set[str], new: str) -> Value:
    """Return a value with `change` applied to each index. names: the axes that are replaced; new: the name that replaces them."""
    def one(v: Value, args: tuple[Value, ...]) -> Value:
        attr = v.attr
        if v.op == "index":
            attr = change(attr)
        elif v.op == "load":
            inside = v.attr[2]
            attr = (v.attr[0], change(v.attr[1]), (inside - names) | {new} if inside & names else inside)
        return program.values.make(v.op, v.dtype, *args, attr=attr)

    return rewritten(value, one)


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
             and not v.symbols & set(program.values.gathered)]
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


def cut_along(nest: Nest) -> tuple[Axis, ...]:
    """Return the axes along which a nest of one reduction to one number, or of one scan, can be cut; empty for other nests."""
    if nest.axes or len(nest.stages) != 1:
        return ()
    (stage,) = nest.stages
    over = stage.reduce if stage.scan is None else (stage.scan.axis,)
    if stage.monoid in (None, "product") or stage.axes != (() if stage.scan is None else over):
        return ()
    return over


def in_parts(program: StageProgram, nest: Nest, size: int) -> list[Nest]:
    """Cut a nest into partial results, computed in parallel, and their combination. A scan becomes three nests: the total of each
    part, the running total before each part, and a scan of each part that starts with that total."""
    over = cut_along(nest)
    if not over:
        return [nest]
    (stage,) = nest.stages
    scan = stage.scan
    first, *rest = over
    if rest:
        part, inner, value, index = first, tuple(rest), stage.value, stage.index
    else:
        cut = value_in_parts(program, stage.value, first, size)
        if cut is None:
            return [nest]
        part, turns, value = cut
        inner = (turns,)
        try:
            index = in_chunks(first, size)[2](stage.index)
        except Entangled:
            return [nest]
    values, name = program.values, stage.target.name                # of two nests that are cut the names differ
    if stage.monoid == "sum" and scan is None and value.dtype is f32:
        value = in_f64(values, value)                               # one number of many, which may cancel; memory takes as long
    parts = Array(f"{name}p", "scratch", 0, value.dtype, part.size)
    total = Axis(f"{first.name}t", part.size)
    read = values.load(parts, total.symbol)
    nests = [Nest((part,), [Stage(parts, part.symbol, (), value, 1, inner, stage.monoid, f"{stage.note}, in parts")])]
    if scan is None:
        last = Stage(stage.target, stage.index, (), read, 0, (total,), stage.monoid, f"{stage.note} of the parts")
        return [*nests, Nest((), [last])]
    begun = Array(f"{name}b", "scratch", 0, stage.value.dtype, part.size)
    before = Stage(begun, total.symbol, (total,), read, 0, (), stage.monoid, "before each part",
                   Scan(total, before=True, start=scan.start), SCAN_ADVICE)
    last = Stage(stage.target, index, inner, value, 1, (), stage.monoid, stage.note,
                 Scan(inner[0], scan.before, values.load(begun, part.symbol)), SCAN_ADVICE)
    return [*nests, Nest((), [before]), Nest((part,), [last])]


def in_chunks(axis: Axis, chunk: int) -> tuple[Axis, Axis, Callable[[Dim], Dim]]:
    """Split an axis into parts of `chunk` iterations. Return the axis of parts, the axis within a part, and a function that
    rewrites an index to both. The function raises Entangled."""
    part = Axis(f"{axis.name}p", d.ceil_div(axis.size, chunk))
    inner = Axis(f"{axis.name}q", d.dim_min(chunk, axis.size - part.symbol * chunk))
    return part, inner, partial(moved, axis=axis, at=part.symbol * chunk + d.dim(inner.name, 0, chunk - 1))


def value_in_parts(program: StageProgram, value: Value, over: Axis, chunk: int) -> tuple[Axis, Axis, Value] | None:
    """Split an axis as `in_chunks` does, and return both axes with the value rewritten to them; None where that is impossible."""
    part, inner, change = in_chunks(over, chunk)
    if any(over.name in v.symbols for v in program.values.gathered.values()):
        return None
    try:
        return part, inner, changed(program, value, change, {over.name}, part.name)
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
