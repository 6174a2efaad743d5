"""split_columns: cut long reductions across memory into parts, for devices with more parallelism than a nest has columns.

In: an arranged program.  Out: the program with a nest of partial results, and one that combines them, for each such nest.
"""

from __future__ import annotations

from tensor_graphs.codegen.default_schedule import value_in_parts
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, flat
from tensor_graphs.language import dims as d

PARALLEL = 1 << 16
"""number of columns times parts that keeps a device busy; more parts would cost more reads of partial results"""

LEAST = 64
"""least rows of a part"""


def in_parts(program: StageProgram) -> StageProgram:
    """Return the program with reductions of few long columns cut into parts.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[65536, 16]", "output y = sum(x; axes=(0,))")
    >>> print(program)
    nest over nothing
        y0[_j0] = sum over _r1 in 0..65536 of x0[_j0 + 16*_r1]    over _j0 in 0..16
    >>> print(in_parts(program))
    nest over _r1p in 0..1024
        y0p[_j0 + 16*_r1p] = sum over _r1q in 0..64 of x0[_j0 + 1024*_r1p + 16*_r1q]    over _j0 in 0..16
    nest over nothing
        y0[_j0] = sum over _r1t in 0..1024 of y0p[_j0 + 16*_r1t]    over _j0 in 0..16
    """
    return program.made_of(piece for nest in program.nests for piece in cut(program, nest, _rows_by_rule(nest)))


def _rows_by_rule(nest: Nest) -> int:
    """Return the rows of a part; 0 where the nest stays uncut."""
    if why_whole(nest) is not None:
        return 0
    (stage,) = nest.stages
    columns = d.bounds(d.product(a.size for a in (*nest.axes, *stage.axes)))[1]
    rows = d.bounds(stage.reduce[0].size)[1]
    if rows < 4 * LEAST or not 0 < columns < PARALLEL:
        return 0
    wanted = max(LEAST, -(-rows // -(-PARALLEL // columns)))
    return next((n for n in range(wanted, min(2 * wanted, rows // 2) + 1) if rows % n == 0), wanted)    # a last part is as long


def why_whole(nest: Nest) -> str | None:
    """Return why a nest is no reduction of columns that can be cut; None where it is one."""
    if len(nest.stages) != 1:
        return "it has several stages"
    (stage,) = nest.stages
    if not stage.reduce or not stage.axes or stage.level != len(nest.axes):
        return "it is no reduction across memory"
    return None if d.is_static(stage.reduce[0].size) else "how many rows there are is known when it runs"


def cut(program: StageProgram, nest: Nest, chunk: int) -> list[Nest]:
    """Return a reduction of columns as two nests, parts of `chunk` rows and their combination; [nest] if it cannot be cut."""
    if why_whole(nest) is not None:
        return [nest]
    (stage,) = nest.stages
    first, own = stage.reduce[0], (*nest.axes, *stage.axes)
    pieces = value_in_parts(program, stage.value, first, chunk) if 0 < chunk < d.bounds(first.size)[1] else None
    if pieces is None:
        return [nest]
    part, inner, value = pieces
    offset = flat(own)
    whole = d.product(a.size for a in own)
    parts = Array(f"{stage.target.name}p", "scratch", 0, stage.value.dtype, part.size * whole, 0)
    total = Axis(f"{first.name}t", part.size)
    read = program.values.load(parts, total.symbol * whole + offset)
    assert stage.monoid is not None
    return [Nest((part, *nest.axes), (Stage(parts, part.symbol * whole + offset, stage.axes, value, len(nest.axes) + 1,
                                            Reduce((inner, *stage.reduce[1:]), stage.monoid), f"{stage.note}, in parts"),)),
            Nest(nest.axes, (Stage(stage.target, stage.index, stage.axes, read, stage.level, Reduce((total,), stage.monoid),
                                   f"{stage.note} of the parts"),))]
