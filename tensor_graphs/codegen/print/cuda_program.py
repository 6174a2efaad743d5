"""cuda_program: the loops of a definition, arranged for rendering on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.default_schedule import arranged
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.forward_stores import handed_on
from tensor_graphs.codegen.passes.split_columns import in_parts
from tensor_graphs.codegen.passes.split_rows import rows_in_parts
from tensor_graphs.codegen.passes.split_variance import deviations_in_parts
from tensor_graphs.codegen.print import cuda_streams
from tensor_graphs.codegen.skinny_product import streamed
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language.composite import Definition

HEADER = Path(__file__).resolve().parents[1] / "numbers.cuh"
ALIGNED = 16
"""bytes in one vector load"""


def program_of(definition: Definition, strides: Sequence[Strides] | None = None, of_part: bool = False, alone: bool = False,
               ) -> StageProgram:
    """Return the loops of a definition for a GPU, for operands with these strides (None: contiguous). The caller may modify them.
    of_part: products become streams where loops_of has such, and rows are written in place. alone: each block runs everything for
    its own rows, so long rows stay uncut. Raises NotLowered."""
    apart = False if strides is None else strides
    plain = spec_to_loops.loops_of(definition, few_rows=of_part, updates=of_part)
    if of_part and isinstance(plain, StageProgram) and cuda_streams.is_streams(plain):
        program = streamed(arranged(lower(definition, apart, few_rows=True)))
    else:
        program = arranged(lower(definition, apart, updates=of_part))
    for nest in program.nests:
        for s in nest.stages:                                       # one turn is no loop
            s.axes = tuple(a for a in s.axes if a.size != 1)
            s.reduce = tuple(a for a in s.reduce if a.size != 1) or s.reduce[:1]
    result = handed_on(program)
    return in_parts(result if alone else rows_in_parts(deviations_in_parts(result)))
