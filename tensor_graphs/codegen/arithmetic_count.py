"""arithmetic_count: the amount of arithmetic in a program, in steps of one element, as an expression of its dims."""

from __future__ import annotations

from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, Value, values_in
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f16

DEAR_STEPS = 12
"""steps that one exponential (or another op of DEAR) counts as"""


HALF_STEPS = 4
"""steps that a number of f16 counts as, which is made f32 by its bits"""

TILED_STEPS = 3
"""steps that a multiplication and addition in a register tile count as, with the packing around it; loops take 4"""


def steps_of(program: StageProgram) -> Dim:
    """Return the steps of all iterations of all loops. An axis whose size depends on other axes counts with its maximum."""
    inner = {a.name for n in program.nests for s in n.stages for a in (*n.axes, *n.loops(s))}
    total: Dim = 0
    for nest in program.nests:
        for stage in nest.stages:
            turns: Dim = 1
            for axis in (*nest.axes[:stage.level], *nest.loops(stage)):
                is_outer = not isinstance(axis.size, d.Expr) or not set(axis.size.symbols) & inner
                turns = turns * (axis.size if is_outer else d.bounds(axis.size)[1])
            total = total + turns * stage_weight(nest, stage)
    return total


def stage_weight(nest: Nest, stage: Stage) -> int:
    """Return the cost of one innermost iteration in steps. Only operations that depend on the innermost axes count; a product by
    register tiles counts TILED_STEPS."""
    if stage.product == "tiled":
        return TILED_STEPS
    inner = {a.name for a in (*stage.axes[-1:], *stage.reduce[-1:])} or {a.name for a in nest.axes}
    return 1 + sum(_steps(v) for v in values_in(stage.value) if v.symbols & inner)


def _steps(value: Value) -> int:
    if value.op == "load" and value.attr[0].dtype is f16:
        return HALF_STEPS
    return DEAR_STEPS if value.op in DEAR else 0 if value.op in ("constant", "index") else 1
