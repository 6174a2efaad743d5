"""traffic: the bytes a program moves, as an expression of its dims. Each nest is one pass over everything it reads and writes."""

from __future__ import annotations

from collections.abc import Iterator

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, symbols_of, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

APART = 4
"""factor on the bytes of an array that the loop does not read contiguously: 4 to 5 measured for a transposed matrix of 0.5 to 4 MB,
where 16 floats share a cache line, and only some of them are read before it is evicted"""


def traffic_of(program: StageProgram) -> Dim:
    """Return the bytes of all passes. What several stages of a nest read counts once; of a table, only elements looked up count."""
    total: Dim = 0
    for nest in program.nests:
        moved: dict[Array, Dim] = {}
        for stage in nest.stages:
            for array, nbytes in _moved(program, nest, stage):
                moved[array] = d.dim_max(moved[array], nbytes) if array in moved else nbytes
        total = total + sum(moved.values())
    return total


def _moved(program: StageProgram, nest: Nest, stage: Stage) -> Iterator[tuple[Array, Dim]]:
    """Yield each array that a stage reads or writes in memory, and its bytes."""
    axes = (*nest.axes[:stage.level], *nest.loops(stage))
    inner = (*stage.axes[-1:], *stage.reduce[-1:]) or axes[-1:]
    gathered = (v for name, v in program.gathered.items() if name in stage.value.symbols)
    loads = [v for v in values_in(stage.value, *gathered) if v.op == "load"]
    for array, index in ((stage.target, stage.index), *((v.attr[0], v.attr[1]) for v in loads)):
        symbols = symbols_of(index, program.gathered)
        if array.role == "scratch" and array.level:                 # in a register, or a row that stays in the cache
            continue
        turns = d.product(d.bounds(a.size)[1] if _depends(a.size, axes) else a.size for a in axes if a.name in symbols)
        apart = bool(inner) and all(d.coefficient(index, a.name) not in (0, 1, -1) for a in inner)
        yield array, d.dim_min(array.size, turns) * array.dtype.itemsize * (APART if apart else 1)


def _depends(size: Dim, axes: tuple[Axis, ...]) -> bool:
    """Return whether the size of an axis depends on the axes around it."""
    return bool({str(s) for s in d.symbols(size)} & {a.name for a in axes})
