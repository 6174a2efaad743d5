"""split_columns: long reductions across memory in parts, for devices that have more to keep busy than a nest has columns.

In: a program as it was arranged.  Out: the same, changed in place: a nest of partial results, one that takes them together.
"""

from __future__ import annotations

from tensor_graphs.codegen.arrange import value_in_parts
from tensor_graphs.codegen.stages import Array, Axis, Nest, Stage, StageProgram, flat
from tensor_graphs.language import dims as d

PARALLEL = 1 << 16
"""columns and parts together that keep a device busy; what each part comes to is read again"""

LEAST = 64
"""rows of a part, at least"""


def in_parts(program: StageProgram) -> StageProgram:
    """Cut the reductions of columns that are few and long."""
    program.nests = [piece for nest in program.nests for piece in cut(program, nest, _rows_by_rule(nest))]
    return program


def _rows_by_rule(nest: Nest) -> int:
    """Rows of a part; 0 where the nest stays whole."""
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
    """Why a nest is no reduction of columns that can be cut; None where it is one."""
    if len(nest.stages) != 1:
        return "it has several stages"
    (stage,) = nest.stages
    if not stage.reduce or not stage.axes or stage.level != len(nest.axes):
        return "it is no reduction across memory"
    return None if d.is_static(stage.reduce[0].size) else "how many rows there are is known when it runs"


def cut(program: StageProgram, nest: Nest, chunk: int) -> list[Nest]:
    """Cut a reduction of columns into parts of `chunk` rows and their combination; a nest that cannot be cut so stays."""
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
    return [Nest((part, *nest.axes), [Stage(parts, part.symbol * whole + offset, stage.axes, value, len(nest.axes) + 1,
                                            (inner, *stage.reduce[1:]), stage.monoid, f"{stage.note}, in parts")]),
            Nest(nest.axes, [Stage(stage.target, stage.index, stage.axes, read, stage.level, (total,), stage.monoid,
                                   f"{stage.note} of the parts")])]
