"""cuda_program: the loops of a definition, arranged for rendering on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.default_schedule import arranged
from tensor_graphs.codegen.loop_ir import Reduce, Stage, StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.forward_stores import handed_on
from tensor_graphs.codegen.passes.split_columns import in_parts
from tensor_graphs.codegen.passes.split_into_groups import grouped
from tensor_graphs.codegen.passes.split_rows import rows_in_parts
from tensor_graphs.codegen.passes.split_variance import deviations_in_parts
from tensor_graphs.codegen.print import cuda_streams
from tensor_graphs.codegen.refusals import or_none
from tensor_graphs.codegen.skinny_product import streamed
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language.composite import Definition

HEADER = Path(__file__).resolve().parents[1] / "numbers.cuh"
ALIGNED = 16
"""bytes in one vector load"""


def program_of(definition: Definition, strides: Sequence[Strides] | None = None, of_part: bool = False, alone: bool = False,
               ) -> StageProgram:
    """Return the loops of a definition for a GPU, for operands with these strides (None: contiguous).
    of_part: products become streams where loops_of has such, and rows are written in place. alone: each block runs everything for
    its own rows, so long rows stay uncut. Raises NotLowered."""
    apart = False if strides is None else strides
    plain = or_none(spec_to_loops.loops_of, definition, few_rows=of_part, updates=of_part) if of_part else None
    if plain is not None and cuda_streams.is_streams(plain):
        program = streamed(arranged(lower(definition, apart, few_rows=True)))
    else:
        program = arranged(lower(definition, apart, updates=of_part))
    result = grouped(handed_on(without_single_turns(program)))
    return in_parts(result if alone else rows_in_parts(deviations_in_parts(result)))


def without_single_turns(program: StageProgram) -> StageProgram:
    """Return the program without axes of one turn, which are no loops."""
    def fewer(s: Stage) -> Stage:
        if all(a.size != 1 for a in (*s.axes, *s.reduce)):
            return s
        over = tuple(a for a in s.reduce if a.size != 1) or s.reduce[:1]
        does = replace(s.does, over=over) if isinstance(s.does, Reduce) else s.does
        return replace(s, axes=tuple(a for a in s.axes if a.size != 1), does=does)

    return program.mapped(lambda s: [fewer(s)])
