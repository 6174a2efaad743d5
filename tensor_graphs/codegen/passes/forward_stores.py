"""forward_stores: a reduction whose results are only copied elsewhere stores them directly there.

A GPU computes such a nest with a thread for each number, rather than a row in shared memory.

In: an arranged program.  Out: the program without such copies.
"""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def handed_on(program: StageProgram) -> StageProgram:
    """Return the program without stages that only copy the result of the reduction right before them.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 9, 8]", "output y = cast(sum(x; axes=(1,)); dtype=bf16)")
    >>> print(program)
    nest over _i0 in 0..4
        t1[_j2] = sum over _r3 in 0..9 of x0[72*_i0 + _j2 + 8*_r3]    over _j2 in 0..8
        y0[8*_i0 + _j1] = t1[_j1]    over _j1 in 0..8
    >>> print(handed_on(program))
    nest over _i0 in 0..4
        y0[8*_i0 + _j2] = sum over _r3 in 0..9 of x0[72*_i0 + _j2 + 8*_r3]    over _j2 in 0..8
    """
    for nest in program.nests:
        for s, last in zip(nest.stages[:-1], nest.stages[1:], strict=True):
            index = _index_of(program, nest, s, last)
            if index is not None:
                placed = {s: [replace(s, target=last.target, index=index)], last: []}
                fewer = nest.mapped(lambda stage, placed=placed: placed.get(stage, [stage]))    # type: ignore[misc]
                program = program.made_of(fewer if other is nest else other for other in program.nests)
                break
    return program


def _index_of(program: StageProgram, nest: Nest, s: Stage, last: Stage) -> Dim | None:
    """Return the index at which a reduction can store for the next stage; None where that stage does more than copy."""
    if s.monoid is None or s.scan is not None or last.monoid is not None or last.scan is not None or s.level != last.level:
        return None
    if s.target.role != "scratch" or s.target.dtype not in (s.value.dtype, last.target.dtype):      # it would be rounded twice
        return None
    if nest.tile is not None or nest.blocks is not None or any(x.held or x.product for x in (s, last)):
        return None
    if [a.size for a in s.axes] != [a.size for a in last.axes] or last.value.op != "load" or last.value.args:
        return None
    same: dict[str, Dim] = {a.name: b.symbol for a, b in zip(last.axes, s.axes, strict=True)}
    read, offset, _ = last.value.attr
    if read != s.target or d.substitute(offset, same) != s.index or not {a.name for a in s.reduce}.isdisjoint(
            str(x) for x in d.symbols(last.index)):
        return None
    others = (stage for stage in program.stages if stage is not last)
    values = (*(root for stage in others for root in stage.roots()), *program.gathered.values())
    if any(v.op == "load" and v.attr[0] == s.target for v in values_in(*values)):
        return None
    return d.substitute(last.index, same)
