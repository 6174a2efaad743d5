"""map_cpu: the loops of a program on a CPU: parts for threads, loops that fill registers, sums in lanes.

    kernel nest0
        parallel parts of n in units of 1
            serial _turn in _from.._to
                _i0 = _turn
                note exp
                vector _j1 in 0..64
                    y0[_j1 + 64*_i0] = exp(x0[_j1 + 64*_i0])

Nothing is decided after this: print/c_loops.py writes it, interpret_loops.py runs it in numpy and reports races of parts. Lengths
of blocks and the structure of loops follow the advice of a program (`StageAdvice`, `NestAdvice`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from tensor_graphs.codegen.loop_ir import Array, Nest, Stage, StageProgram, Value, across, parallel, products_alone
from tensor_graphs.codegen.loop_program import (
    FROM,
    LANES,
    TO,
    FunctionCall,
    Local,
    Loop,
    LoopBuffer,
    LoopKernel,
    LoopProgram,
    Note,
    Parallel,
    Store,
    Take,
    is_number,
)
from tensor_graphs.codegen.mapping.cpu_body import Bounds, CpuBody, index
from tensor_graphs.codegen.mapping.cpu_parts import beside, split
from tensor_graphs.codegen.mapping.cpu_reductions import columns, row
from tensor_graphs.codegen.mapping.cpu_scans import scan
from tensor_graphs.codegen.mapping.cpu_tiles import tiles
from tensor_graphs.codegen.mapping.elementwise import used
from tensor_graphs.codegen.mapping.nest_mapper import lets
from tensor_graphs.codegen.mapping.place_values import placed
from tensor_graphs.codegen.passes.divide_axes import divided
from tensor_graphs.codegen.passes.tile_rows import TileProduct, product_of
from tensor_graphs.codegen.passes.wide_accumulate import unrounded
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

MOST_WORK = 1 << 40
"""cap on the estimated element steps of one iteration: enough for a separate part, and a valid C constant"""


def map_cpu(program: StageProgram) -> LoopProgram:
    """Return the loops of a program: a kernel for each nest, or for several that run concurrently."""
    program = unrounded(divided(program))
    kernels, dims, alone = list[LoopKernel](), [str(s) for s in program.dims], products_alone(program)
    for i, nest in enumerate(program.nests):
        if nest.advice.beside:
            continue                                                # it runs with one before it
        together = [program.nests[k] for k in (i, *beside(program, i))]
        own = dict.fromkeys(s.target for other in together for s in other.stages)
        buffers = tuple(LoopBuffer(a, "shared") for a in own if a.role == "scratch" and a.level and not is_number(a))
        kernel = LoopKernel(f"nest{i}", buffers, tuple(_parts(program, other, alone) for other in together))
        kernels.append(placed(kernel, program.values, dims, divide=False))
    return LoopProgram(program, (), tuple(kernels))


def _parts(program: StageProgram, nest: Nest, alone: frozenset[Value]) -> Parallel:
    """Return the parts of a nest."""
    body, n = CpuBody(program, alone), parallel(nest)
    size, unit, work = split(nest)
    part = index(FROM, size), index(TO, size)
    if nest.tile is not None:
        tiles(body, nest, nest.tile, part, in_order)
    elif nest.axes:
        with body.scope() as turns:
            body.add(*lets(index("_turn", size), nest.axes[:n]))
            _inner(body, nest, n)
        body.add(Loop("_turn", part[1], "serial", tuple(turns), part[0]))
    else:
        in_order(body, nest.stages, part if size != 1 else None)
    apart = work >= nest.advice.grain and nest.blocks is not None    # long turns, of which some may be shorter than others
    return Parallel(size, unit, min(work, MOST_WORK), 0 if apart else nest.advice.grain, body.statements)


def _inner(body: CpuBody, nest: Nest, level: int) -> None:
    """Write the stages at a nest level, then the loops over the deeper axes."""
    for axis, run in nest.runs():
        stages = [s for s in run if s.level == level]
        if stages:
            with nullcontext() if axis is None else body.loop(axis):
                in_order(body, stages, None)
    deeper = [s for s in nest.stages if s.level > level]
    if not deeper:
        return
    with body.loop(nest.axes[level]):
        _inner(body, nest, level + 1)


def in_order(body: CpuBody, stages: Sequence[Stage], bounds: Bounds | None) -> None:
    """Write stages one after another; neighbours that store along the same axes share one loop."""
    group: list[Stage] = []
    for s, after in zip(stages, [*stages[1:], None], strict=True):
        group.append(s)
        if after is None or not all(_one_loop(body.program, other, after) for other in group):
            _stages(body, group, bounds)
            group = []


def _one_loop(program: StageProgram, s: Stage, after: Stage) -> bool:
    """Return whether a stage and a later one may share a loop: both store along the same axes, and the later one reads only the
    element that the first stored in the same iteration."""
    if any(x.monoid is not None or not x.axes for x in (s, after)):
        return False
    if s.axes != after.axes or s.advice != after.advice:
        return False
    return all(v.attr[1] == s.index and not v.args for v in used(program, after) if v.op == "load" and v.attr[0] == s.target)


def _stages(body: CpuBody, group: Sequence[Stage], bounds: Bounds | None) -> None:
    """Write one stage, or several in one loop. bounds: of their first axis, where that is cut into parts."""
    s = group[0]
    body.add(Note(", ".join(dict.fromkeys(stage.note for stage in group))))
    for stage in group:
        if is_number(stage.target) and stage.target not in body.variables:
            body.add(Local(stage.target))
            body.variables.add(stage.target)
    product = product_of(s)
    if product is not None:
        _multiply(body, s, product)
        return
    alone = s.monoid is not None and len(s.axes) == (s.scan is not None)
    with body.block() if alone else nullcontext():                  # no loop of its own is a scope for its variables
        if s.scan is not None:
            scan(body, s, bounds)
        elif s.monoid is None:
            _store(body, group, bounds)
        elif across(s):
            columns(body, s, bounds)
        else:
            with body.loops(s.axes, bounds):
                row(body, s)


def _store(body: CpuBody, group: Sequence[Stage], bounds: Bounds | None) -> None:
    s = group[0]
    with body.loops(s.axes[:-1], bounds):
        own, unroll = bounds if len(s.axes) == 1 else None, s.advice.unroll if s.advice.unroll > 1 else 0
        with body.loop(s.axes[-1], "vector", own, unroll) if s.axes else nullcontext():
            for stage in group:
                value = body.here(stage.value)
                body.put(stage, value)
                if stage.target.dtype is stage.value.dtype:
                    body.stored[stage.target] = value               # who reads it in this loop reads this element
    body.stored = {}


def _multiply(body: CpuBody, s: Stage, p: TileProduct) -> None:
    """Call the handwritten register tile of a product."""
    begin: dict[str, Dim] = {a.name: 0 for a in (p.rows, p.inner, p.lane)}

    def address(v: Value) -> tuple[Array, Dim]:
        return v.attr[0], d.substitute(v.attr[1], begin)

    wide = s.value.dtype is not f32
    old = body.values.load(s.target, s.index)
    first = body.values.constant(0.0, old.dtype) if p.keep is None else body.values.make("mul", old.dtype, old, p.keep)
    one = Loop(p.lane.name, p.lane.size, "vector", (Take(s.target, s.index, "sum", s.value),))
    meaning = (Loop(p.lane.name, p.lane.size, "vector", (Store(s.target, s.index, first),)),
               Loop(p.inner.name, p.inner.size, "serial", (one,)))
    vectors = d.dim_max(p.lane.size, 0) // LANES[64 if wide else 32]
    body.add(FunctionCall("tg_wide_rows_product" if wide else "tg_rows_product", (
        p.rows.size, vectors, "ROWS_CONTIGUOUS" if p.along_rows else "K_CONTIGUOUS", address(p.left), p.stride, address(p.right),
        p.inner.size, (s.target, d.substitute(s.index, begin)), "NULL" if p.keep is None else address(p.keep),
        *(() if wide else ("NULL",))), (Loop(p.rows.name, p.rows.size, "serial", meaning),)))


