"""split_rows: cut long reductions along memory into parts, where a nest has fewer iterations than a device has multiprocessors.

A reduction of everything to one number is cut earlier (default_schedule.py), one across memory later (split_columns.py).

In: an arranged program.  Out: the program with such nests cut; only the order of sums changes.
"""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.codegen.default_schedule import value_in_parts
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, Top, Value, flat, values_in
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.language import dims as d

FEW = HOPPER.units
"""most iterations of a nest that is cut: one block for each multiprocessor"""

BLOCKS = 1024
"""number of iterations times parts that keeps a device busy"""

LEAST = 1 << 12
"""least elements of a part; a row is cut only if it has at least eight times as many"""


def rows_in_parts(program: StageProgram) -> StageProgram:
    """Return the program with reductions of few long rows cut into parts.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[2, 65536]", "output y = reduce_max(x; axes=(1,))")
    >>> print(program)
    nest over _i0 in 0..2
        y0[_i0] = max over _r1 in 0..65536 of x0[65536*_i0 + _r1]
    >>> print(rows_in_parts(program))
    nest over _i0 in 0..2, _r1p in 0..16
        y0p[16*_i0 + _r1p] = max over _r1q in 0..4096 of x0[65536*_i0 + 4096*_r1p + _r1q]
    nest over _i0 in 0..2
        y0[_i0] = max over _r1t in 0..16 of y0p[16*_i0 + _r1t]
    """
    return program.made_of(piece for nest in program.nests for piece in _cut(program, nest))


def _cut(program: StageProgram, nest: Nest) -> list[Nest]:
    """Return a reduction of long rows as two nests, its parts and the combination with all that uses it; [nest] for others."""
    s = _long_row(program, nest)
    if s is None or nest.blocks is not None or any(stage.axes and not isinstance(s.monoid, Top) for stage in nest.stages):
        return [nest]
    assert isinstance(s.does, Reduce)
    width = s.monoid.count if isinstance(s.monoid, Top) else 1      # elements of a result
    first, *rest = s.reduce
    turns, count = d.bounds(d.product(a.size for a in nest.axes))[1], int(d.evaluate(first.size, {}))
    elements = d.bounds(d.product(a.size for a in s.reduce))[1]
    parts = min(count, -(-BLOCKS // turns), elements // LEAST)
    wanted = -(-count // parts)
    chunk = next((n for n in range(wanted, 2 * wanted + 1) if count % n == 0), wanted)      # the last part is as long
    cut = value_in_parts(program, s.value, first, chunk)
    if cut is None:
        return [nest]
    part, inner, value = cut
    offset = flat(nest.axes)
    results = Array(f"{s.target.name}p", "scratch", 0, s.value.dtype, part.size * width * d.product(a.size for a in nest.axes), 0)
    total = Axis(f"{first.name}t", part.size * width)
    read = program.values.load(results, offset * part.size * width + total.symbol)
    of_parts = Stage(results, (offset * part.size + part.symbol) * width, (), value, len(nest.axes) + 1,
                     replace(s.does, over=(inner, *rest)), f"{s.note}, in parts")
    whole = replace(s, value=read, does=replace(s.does, over=(total,)), note=f"{s.note} of the parts")
    return [Nest(with_parts(nest.axes, part, value), (of_parts,)), nest.mapped(lambda stage: [whole if stage is s else stage])]


def with_parts(axes: tuple[Axis, ...], part: Axis, value: Value) -> tuple[Axis, ...]:
    """Return the axes of a nest of parts. The axis of parts comes first where its elements are further apart in memory."""
    steps = [[d.coefficient(v.attr[1], axis.name) for axis in (part, *axes[-1:])] for v in values_in(value) if v.op == "load"]
    first = bool(axes and steps) and all(isinstance(a, int) and isinstance(b, int) and a > b for a, b in steps)
    return (part, *axes) if first else (*axes, part)


def _long_row(program: StageProgram, nest: Nest) -> Stage | None:
    """Return the only reduction of a nest of few iterations, if it is long and reads nothing that the nest computes; else None."""
    reductions = [s for s in nest.stages if s.monoid is not None]
    if len(reductions) != 1 or not few_and_long(nest, reductions[0]):
        return None
    (s,) = reductions
    here = [stage.target for stage in nest.stages]
    return None if any(v.op == "load" and v.attr[0] in here for v in values_in(s.value)) else s


def few_and_long(nest: Nest, s: Stage) -> bool:
    """Return whether a stage is a reduction of long rows, one in each of few iterations."""
    if s.monoid in (None, "product") or nest.tile is not None or not (nest.axes or isinstance(s.monoid, Top)):
        return False
    if nest.blocks is not None or any(stage.axes for stage in nest.stages if stage.monoid is not None):
        return False
    turns = d.bounds(d.product(a.size for a in nest.axes))[1]
    if s.scan is not None or s.held or s.product or s.level != len(nest.axes) or not 0 < turns <= FEW:
        return False
    return all(d.is_static(a.size) for a in s.reduce) and d.bounds(d.product(a.size for a in s.reduce))[1] >= 8 * LEAST
