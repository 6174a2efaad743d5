"""map_loops: the form of each nest of a program, and the loops of its kernels.

- elementwise: a thread has a pack of elements; transposed: a block turns squares of operands that lie across in shared memory
- columns: a reduction across memory; a warp walks along memory, the warps of a block share the rows
- rows: anything else; some threads share an iteration of the outer axes, and its reductions along memory

Nests that follow each other, read nothing of each other and do not fill the device share a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Array, Nest, StageProgram, Values, index_symbol, products_alone
from tensor_graphs.codegen.loop_program import If, Let, Loop, LoopKernel, LoopProgram, Stmt
from tensor_graphs.codegen.mapping.columns import Columns, is_columns
from tensor_graphs.codegen.mapping.elementwise import Elementwise, ShortReduction, is_elementwise, is_short_reduction, reads
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper
from tensor_graphs.codegen.mapping.place_values import placed
from tensor_graphs.codegen.mapping.rows import BLOCKS, Rows
from tensor_graphs.codegen.mapping.transposed import Transposed
from tensor_graphs.devices.target import HOPPER, Target
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, i64


def map_loops(program: StageProgram, target: Target = HOPPER, aligned: bool = True, prefix: str = "nest") -> LoopProgram:
    """Return the kernels of a program. aligned: every array begins at a multiple of the widest access; else elements are loaded
    one by one."""
    values, dims = program.values, [str(s) for s in program.dims]
    kernels, scratch = nest_kernels(program, values, target, aligned, prefix)
    return LoopProgram(program, tuple(scratch), tuple(placed(kernel, values, dims) for kernel in kernels))


def nest_kernels(program: StageProgram, values: Values, target: Target, aligned: bool, prefix: str,
                 rows: Callable[..., Rows] = Rows) -> tuple[list[LoopKernel], list[Array]]:
    """Return the kernels of a program before their values are placed, and the scratch that only they use. values: the factory of
    their values. rows: makes the form of nests that have no other."""
    alone, names = products_alone(program), {a.name for s in program.stages for a in (s.target, *reads(program, s))}
    groups: list[list[tuple[Nest, LoopKernel, NestMapper]]] = []
    for number, nest in enumerate(program.nests):
        mapper = (_form(program, nest) or rows)(program, nest, target, values, alone, aligned, names)
        here = nest, mapper.mapped(f"{prefix}{number}"), mapper
        if groups and _may_be_beside(program, groups[-1], here, target):
            groups[-1].append(here)
        else:
            groups.append([here])
    kernels = [_together([kernel for _, kernel, _ in group], values) for group in groups]
    return kernels, [array for group in groups for _, _, mapper in group for array in mapper.scratch]


def _form(program: StageProgram, nest: Nest) -> type[Elementwise | Transposed | Columns] | None:
    if is_elementwise(program, nest):
        return Elementwise if nest.tile is None else Transposed
    if is_short_reduction(nest):
        return ShortReduction
    return Columns if is_columns(nest) else None


def _may_be_beside(program: StageProgram, group: list[tuple[Nest, LoopKernel, NestMapper]],
                   here: tuple[Nest, LoopKernel, NestMapper], target: Target) -> bool:
    """Return whether a nest may share the launch of the nests before it: it has equally many threads, and none reads or writes what
    another writes. Nests that fill the device have separate launches."""
    nest, kernel, _ = here
    first = group[0][1]
    few = all(d.bounds(one.grid)[0] < BLOCKS * target.units for one in (first, kernel))
    if kernel.threads != first.threads or not few:
        return False
    written, theirs = ({s.target for n in nests for s in n.stages} for nests in ([nest], [n for n, _, _ in group]))
    read, they_read = ({a for n in nests for s in n.stages for a in reads(program, s)}
                       for nests in ([nest], [n for n, _, _ in group]))
    return not (written & (theirs | they_read) or theirs & read)


def _together(kernels: list[LoopKernel], values: Values) -> LoopKernel:
    """Return one kernel that has the blocks of several."""
    if len(kernels) == 1:
        return kernels[0]
    grid: Dim = sum(kernel.grid for kernel in kernels)
    block, body = index_symbol("_all", grid), list[Stmt]()
    first: Dim = 0
    for kernel in kernels:
        loop = kernel.body[0]
        assert isinstance(loop, Loop)
        past = first + kernel.grid
        compared = [values.make(op, bool_, values.index(block, i64), values.index(x, i64)) for op, x in (
            ("at_least", first), ("less", past))]
        body.append(If(values.make("and", bool_, *compared), (Let(loop.axis, block - first), *loop.body)))
        first = past
    buffers = tuple(replace(buffer, branch=k) for k, kernel in enumerate(kernels, 1) for buffer in kernel.buffers)
    return LoopKernel(kernels[0].entry, buffers, (Loop("_all", grid, "grid", tuple(body)),))
