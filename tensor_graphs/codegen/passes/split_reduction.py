"""split_reduction: cut long reductions of few rows, and of columns, into parts, where a nest does not fill a device.

A reduction of everything to one number is cut earlier (default_schedule.py).

In: an arranged program.  Out: the program with a nest of partial results, and one that combines them, for each such nest; only the
order of sums changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensor_graphs.codegen.default_schedule import BY_RULE, PartSize, in_two, value_in_parts
from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, Top, values_in
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.language import dims as d

FEW = HOPPER.units
"""most iterations of a nest whose rows are cut: one block for each multiprocessor"""

BLOCKS = 1024
"""number of iterations times parts that keeps a device busy"""

LEAST = 1 << 12
"""least elements of a part of a row; a row is cut only if it has at least eight times as many"""

PARALLEL = 1 << 16
"""number of columns times parts that keeps a device busy; more parts would cost more reads of partial results"""

LEAST_ROWS = 64
"""least rows of a part of columns"""


def rows_in_parts(program: StageProgram, parts: Mapping[str, int] = BY_RULE) -> StageProgram:
    """Return the program with reductions of few long rows cut into parts. parts: elements of a part in place of the rule's, by the
    name of what is reduced; 0: uncut.

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
    sizes = {name: one.size for name, one in row_parts(program).items()} | {**parts}
    return program.made_of(piece for nest in program.nests for piece in _cut_rows(program, nest, sizes))


def columns_in_parts(program: StageProgram, parts: Mapping[str, int] = BY_RULE) -> StageProgram:
    """Return the program with reductions of few long columns cut into parts. parts: as of rows.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[65536, 16]", "output y = sum(x; axes=(0,))")
    >>> print(program)
    nest over nothing
        y0[_j0] = sum over _r1 in 0..65536 of x0[_j0 + 16*_r1]    over _j0 in 0..16
    >>> print(columns_in_parts(program))
    nest over _r1p in 0..1024
        y0p[_j0 + 16*_r1p] = sum over _r1q in 0..64 of x0[_j0 + 1024*_r1p + 16*_r1q]    over _j0 in 0..16
    nest over nothing
        y0[_j0] = sum over _r1t in 0..1024 of y0p[_j0 + 16*_r1t]    over _j0 in 0..16
    """
    sizes = {name: one.size for name, one in column_parts(program).items()} | {**parts}
    return program.made_of(piece for nest in program.nests
                           for piece in cut_columns(program, nest, sizes.get(nest.stages[0].target.name, 0)))


def _in_two(program: StageProgram, nest: Nest, s: Stage, chunk: int) -> list[Nest]:
    """Return a nest as two, with parts of `chunk` iterations of the first axis of a reduction; [nest] if it cannot be cut."""
    first, *rest = s.reduce
    pieces = value_in_parts(program, s.value, first, chunk)
    return [nest] if pieces is None else in_two(program, nest, s, pieces[0], (pieces[1], *rest), pieces[2])


# ---- rows ------------------------------------------------------------------------------------------------------------------------


def row_parts(program: StageProgram) -> dict[str, PartSize]:
    """Return the parts of each reduction of rows that can be cut."""
    return {s.target.name: PartSize(_row_by_rule(nest, s), int(d.evaluate(s.reduce[0].size, {})))
            for nest in program.nests if (s := _row(nest)) is not None}


def _cut_rows(program: StageProgram, nest: Nest, sizes: Mapping[str, int]) -> list[Nest]:
    """Return a reduction of rows in two nests; [nest] for others, and where it stays whole."""
    s = _row(nest)
    chunk = 0 if s is None else sizes.get(s.target.name, 0)
    return _in_two(program, nest, s, chunk) if s is not None and chunk else [nest]


def _row_by_rule(nest: Nest, s: Stage) -> int:
    """Return the elements of a part of a row; 0 where it stays whole."""
    if not few_and_long(nest, s):
        return 0
    turns, count = d.bounds(d.product(a.size for a in nest.axes))[1], int(d.evaluate(s.reduce[0].size, {}))
    parts = min(count, -(-BLOCKS // turns), d.bounds(d.product(a.size for a in s.reduce))[1] // LEAST)
    wanted = -(-count // parts)
    return next((n for n in range(wanted, 2 * wanted + 1) if count % n == 0), wanted)       # the last part is as long


def _row(nest: Nest) -> Stage | None:
    """Return the only reduction of a nest, if it is one of rows and reads nothing that the nest computes; else None."""
    reductions = [s for s in nest.stages if s.monoid is not None]
    if len(reductions) != 1 or not _is_row(nest, reductions[0]) or any(
            stage.axes and not isinstance(reductions[0].monoid, Top) for stage in nest.stages):
        return None
    (s,) = reductions
    here = [stage.target for stage in nest.stages]
    return None if any(v.op == "load" and v.attr[0] in here for v in values_in(s.value)) else s


def few_and_long(nest: Nest, s: Stage) -> bool:
    """Return whether a stage is a reduction of long rows, one in each of few iterations."""
    turns = d.bounds(d.product(a.size for a in nest.axes))[1]
    return _is_row(nest, s) and turns <= FEW and d.bounds(d.product(a.size for a in s.reduce))[1] >= 8 * LEAST


def _is_row(nest: Nest, s: Stage) -> bool:
    """Return whether a stage is a reduction of rows of a length that is known."""
    if s.monoid in (None, "product") or nest.tile is not None or not (nest.axes or isinstance(s.monoid, Top)):
        return False
    if nest.blocks is not None or any(stage.axes for stage in nest.stages if stage.monoid is not None):
        return False
    turns = d.bounds(d.product(a.size for a in nest.axes))[1]
    if s.scan is not None or s.held or s.product or s.level != len(nest.axes) or turns <= 0:
        return False
    return all(d.is_static(a.size) for a in s.reduce)


# ---- columns ---------------------------------------------------------------------------------------------------------------------


def column_parts(program: StageProgram) -> dict[str, PartSize]:
    """Return the parts of each reduction of columns that can be cut."""
    return {nest.stages[0].target.name: PartSize(_rows_by_rule(nest), int(d.evaluate(nest.stages[0].reduce[0].size, {})))
            for nest in program.nests if why_whole(nest) is None}


def _rows_by_rule(nest: Nest) -> int:
    """Return the rows of a part of columns; 0 where the nest stays uncut."""
    (stage,) = nest.stages
    columns = d.bounds(d.product(a.size for a in (*nest.axes, *stage.axes)))[1]
    rows = d.bounds(stage.reduce[0].size)[1]
    if rows < 4 * LEAST_ROWS or not 0 < columns < PARALLEL:
        return 0
    return rows_of_part(rows, -(-PARALLEL // columns))


def rows_of_part(rows: int, parts: int, most: int = 1 << 31) -> int:
    """Return the rows of a part of columns. parts: about how many there are to be."""
    wanted = min(most, max(LEAST_ROWS, -(-rows // parts)))
    return next((n for n in range(wanted, min(2 * wanted, rows // 2) + 1) if rows % n == 0), wanted)    # a last part is as long


def why_whole(nest: Nest) -> str | None:
    """Return why a nest is no reduction of columns that can be cut; None where it is one."""
    if len(nest.stages) != 1:
        return "it has several stages"
    (stage,) = nest.stages
    if not stage.reduce or not stage.axes or stage.level != len(nest.axes):
        return "it is no reduction across memory"
    return None if d.is_static(stage.reduce[0].size) else "how many rows there are is known when it runs"


def cut_columns(program: StageProgram, nest: Nest, chunk: int) -> list[Nest]:
    """Return a reduction of columns as two nests, parts of `chunk` rows and their combination; [nest] if it cannot be cut."""
    if why_whole(nest) is not None or not 0 < chunk < d.bounds(nest.stages[0].reduce[0].size)[1]:
        return [nest]
    return _in_two(program, nest, nest.stages[0], chunk)
