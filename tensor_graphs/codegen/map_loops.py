"""map_loops: the form of each nest of a program, and the loops of its kernels.

- elementwise: a thread has a pack of elements; transposed: a block turns squares of operands that lie across in shared memory
- line scans: a scan across memory; a thread has a line (running.py; along memory it is a stage of rows)
- columns: a reduction across memory; a warp walks along memory, the warps of a block share the rows
- column rows: several stages over the same columns; a block has some columns, of which its threads share the rows
- rows: anything else; some threads share an iteration of the outer axes, and its reductions along memory
- streams: all products of few rows together; a warp has rows of a weight

Other nests that follow each other, read nothing of each other and do not fill the device share a launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tensor_graphs.codegen.loop_ir import Array, Nest, StageProgram, Values, index_symbol, products_alone
from tensor_graphs.codegen.loop_program import If, Let, Loop, LoopKernel, LoopProgram, Stmt
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.column_rows import ColumnRowsForm, is_column_rows
from tensor_graphs.codegen.mapping.columns import ColumnForm, is_columns
from tensor_graphs.codegen.mapping.elementwise import (
    AcrossSumForm,
    ElementwiseForm,
    ShortReductionForm,
    is_across_sum,
    is_elementwise,
    is_short_reduction,
    reads,
)
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, within
from tensor_graphs.codegen.mapping.one_row_streams import OneRowStreams, one_row
from tensor_graphs.codegen.mapping.place_values import placed
from tensor_graphs.codegen.mapping.row_choices import BLOCKS
from tensor_graphs.codegen.mapping.rows import RowForm
from tensor_graphs.codegen.mapping.running import LineScanForm, is_line_scan
from tensor_graphs.codegen.mapping.streams import Streams
from tensor_graphs.codegen.mapping.transposed import TransposedForm
from tensor_graphs.codegen.skinny_product import alike, is_streams, streams_of
from tensor_graphs.devices.target import HOPPER, Target
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

Chosen = Mapping[int, NestChoices]
"""number of a nest -> the numbers by which it is mapped; those of streams are of the first of their nests"""

BY_RULE: Chosen = MappingProxyType({})


def map_loops(program: StageProgram, target: Target = HOPPER, aligned: bool = True, prefix: str = "nest",
              chosen: Chosen = BY_RULE) -> LoopProgram:
    """Return the kernels of a program. aligned: every array begins at a multiple of the widest access; else elements are loaded
    one by one. chosen: choices in place of the rules'."""
    names = {a.name for s in program.stages for a in (s.target, *reads(program, s))}
    if not is_streams(program):
        return LoopProgram(program, *_placed_nests(program, program.nests, target, aligned, prefix, names, chosen))
    program = alike(program)
    streams, one = streams_of(program), one_row(program)
    own = chosen.get(len(program.nests) - len(streams))
    several, once = (1, 0) if one is None else one.times(streams[0].row_count)
    scratch, kernels = tuple[Array, ...](), list[LoopKernel]()
    if several != 0:
        before = program.nests[:len(program.nests) - len(streams)]
        scratch, first = _placed_nests(program, before, target, aligned, prefix, set(names), chosen)
        kernels = [*(_times(kernel, several) for kernel in first),
                   _streams(Streams(program, target, aligned, set(names), one), f"{prefix}_rows", several, own)]
    if one is not None:
        kernels.append(_streams(OneRowStreams(one.program, target, aligned, names, one), f"{prefix}_row", once, own))
    return LoopProgram(program, scratch, tuple(kernels))


def _placed_nests(program: StageProgram, nests: Sequence[Nest], target: Target, aligned: bool, prefix: str,
                  names: set[str], chosen: Chosen) -> tuple[tuple[Array, ...], tuple[LoopKernel, ...]]:
    """Return the scratch and the kernels of nests that are no streams. names: of all buffers, which grow."""
    values, dims = program.values, [str(s) for s in program.dims]
    kernels, scratch = nest_kernels(program, nests, values, target, aligned, prefix, names, chosen=chosen)
    return tuple(scratch), tuple(placed(kernel, values, dims) for kernel in kernels)


def nest_kernels(program: StageProgram, nests: Sequence[Nest], values: Values, target: Target, aligned: bool, prefix: str,
                 names: set[str], rows: Callable[..., RowForm] = RowForm,
                 chosen: Chosen = BY_RULE) -> tuple[list[LoopKernel], list[Array]]:
    """Return the kernels of nests before their values are placed, and the scratch that only they use. values: the factory of their
    values. names: of all buffers, which grow. rows: makes the form of nests that have no other. Raises NotLowered."""
    if any(s.scan is not None and s.axes != (s.scan.along,) and not is_line_scan(nest) for nest in nests for s in nest.stages):
        raise NotLowered("a running value of rows beside others, which is not written for GPUs")
    alone = products_alone(program)
    groups: list[list[tuple[Nest, LoopKernel, NestMapper]]] = []
    for number, nest in enumerate(nests):
        mapper = (_form(program, nest) or rows)(program, nest, target, values, alone, aligned, names)
        if number in chosen:
            mapper.choices = chosen[number]
        here = nest, mapper.mapped(f"{prefix}{number}"), mapper
        if groups and _may_be_beside(program, groups[-1], here, target):
            groups[-1].append(here)
        else:
            groups.append([here])
    kernels = [_together([kernel for _, kernel, _ in group], values) for group in groups]
    return kernels, [array for group in groups for _, _, mapper in group for array in mapper.scratch]


def forms(program: StageProgram, target: Target = HOPPER) -> dict[int, NestMapper]:
    """Return the form of each nest for aligned arrays, by its number, for its rules and what it may choose. Raises NotLowered."""
    program = alike(program) if is_streams(program) else program
    names, alone = set[str](), products_alone(program)
    streams = streams_of(program) if is_streams(program) else []
    first = len(program.nests) - len(streams)
    mappers: dict[int, NestMapper] = {
        k: (_form(program, nest) or RowForm)(program, nest, target, program.values, alone, True, names)
        for k, nest in enumerate(program.nests[:first])}
    if streams:
        mappers[first] = Streams(program, target, True, names, one_row(program))
    return mappers


def _streams(streams: Streams, entry: str, times: Dim, choices: NestChoices | None) -> LoopKernel:
    if choices is not None:
        streams.choices = choices
    kernel = streams.mapped(entry, times)
    return placed(kernel, streams.values, [str(s) for s in streams.program.dims])


def _times(kernel: LoopKernel, times: Dim) -> LoopKernel:
    """Return a kernel that runs `times` times: 0 or 1."""
    (grid,) = kernel.body
    assert isinstance(grid, Loop)
    return replace(kernel, body=(replace(grid, size=grid.size * times),))


def _form(program: StageProgram, nest: Nest) -> type[ElementwiseForm | TransposedForm | ColumnForm | ColumnRowsForm] | None:
    if is_line_scan(nest):
        return LineScanForm
    if is_elementwise(program, nest):
        return ElementwiseForm if nest.tile is None else TransposedForm
    if is_short_reduction(nest):
        return ShortReductionForm
    if is_across_sum(nest):
        return AcrossSumForm
    if is_columns(nest):
        return ColumnForm
    return ColumnRowsForm if is_column_rows(program, nest) else None


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
        body.append(If(within(values, block, first, past), (Let(loop.axis, block - first), *loop.body)))
        first = past
    buffers = tuple(replace(buffer, branch=k) for k, kernel in enumerate(kernels, 1) for buffer in kernel.buffers)
    return LoopKernel(kernels[0].entry, buffers, (Loop("_all", grid, "grid", tuple(body)),))
