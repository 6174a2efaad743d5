"""cuda_program: the loops of a definition, arranged for rendering on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import CUDA, CUDA_LOOPS, CUDA_ROWS, STREAMS, through
from tensor_graphs.codegen.refusals import or_none
from tensor_graphs.codegen.skinny_product import is_streams
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language.composite import Definition

HEADER = Path(__file__).resolve().parents[1] / "numbers.cuh"
ALIGNED = 16
"""bytes in one vector load"""


def program_of(definition: Definition, strides: Sequence[Strides] | None = None, alone: bool = False) -> StageProgram:
    """Return the loops of a definition for a GPU, for operands with these strides (None: contiguous). alone: each block runs
    everything for its own rows, so products are no streams, nothing is written in place, and long rows stay uncut. Raises
    NotLowered."""
    apart = False if strides is None else strides
    plain = None if alone else or_none(spec_to_loops.loops_of, definition, few_rows=True)
    if plain is not None and is_streams(plain):
        program = through(STREAMS, lower(definition, apart, few_rows=True))
    else:
        program = through(CUDA_LOOPS, lower(definition, apart, updates=not alone))
    return through(CUDA_ROWS if alone else CUDA, program)
