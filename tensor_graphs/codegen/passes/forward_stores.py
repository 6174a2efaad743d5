"""forward_stores: a reduction whose results are only copied elsewhere stores them directly there.

    t[j] = sum over r of x[i, j, r]    over j
    y[i, k] = t[k]                     over k         →    y[i, j] = sum over r of x[i, j, r]    over j

A GPU computes such a nest with a thread for each number, rather than a row in shared memory.

In: an arranged program.  Out: that program, changed in place.
"""

from __future__ import annotations

from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def handed_on(program: StageProgram) -> StageProgram:
    """Return the program without stages that only copy the result of the reduction right before them."""
    for nest in program.nests:
        for s, last in zip(nest.stages[:-1], nest.stages[1:], strict=True):
            index = _index_of(program, nest, s, last)
            if index is not None:
                s.target, s.index = last.target, index
                nest.stages = [stage for stage in nest.stages if stage is not last]
                break
    return program


def _index_of(program: StageProgram, nest: Nest, s: Stage, last: Stage) -> Dim | None:
    """Return the index at which a reduction can store for the next stage; None where that stage does more than copy."""
    if s.monoid is None or s.scan is not None or last.monoid is not None or last.scan is not None or s.level != last.level:
        return None
    if s.target.role != "scratch" or s.target.dtype not in (s.value.dtype, last.target.dtype):      # it would be rounded twice
        return None
    if nest.tile is not None or any(x.within is not None or x.joined or x.tiled or x.product for x in (s, last)):
        return None
    if [a.size for a in s.axes] != [a.size for a in last.axes] or last.value.op != "load" or last.value.args:
        return None
    same: dict[str, Dim] = {a.name: b.symbol for a, b in zip(last.axes, s.axes, strict=True)}
    read, offset, _ = last.value.attr
    if read is not s.target or d.substitute(offset, same) != s.index or not {a.name for a in s.reduce}.isdisjoint(
            str(x) for x in d.symbols(last.index)):
        return None
    others = (stage for other in program.nests for stage in other.stages if stage is not last)
    values = (*(root for stage in others for root in stage.roots()), *program.values.gathered.values())
    if any(v.op == "load" and v.attr[0] is s.target for v in values_in(*values)):
        return None
    return d.substitute(last.index, same)
