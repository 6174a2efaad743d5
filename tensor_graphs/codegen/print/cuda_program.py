"""cuda_program: the loops of a definition, arranged for rendering on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from tensor_graphs.codegen import spec_to_loops
from tensor_graphs.codegen.default_schedule import BY_RULE, PartSize, cut, whole_parts
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.passes.split_reduction import column_parts, columns_in_parts, row_parts, rows_in_parts
from tensor_graphs.codegen.passes.split_scans import scan_parts, scans_in_parts
from tensor_graphs.codegen.pipelines import CUDA, CUDA_LOOPS, CUDA_ROWS, STREAMS
from tensor_graphs.codegen.refusals import or_none
from tensor_graphs.codegen.skinny_product import is_streams, streams_of
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language.composite import Definition

HEADER = Path(__file__).resolve().parents[1] / "numbers.cuh"
ALIGNED = 16
"""bytes in one vector load"""

CUTS: Mapping[Callable[..., StageProgram], Callable[[StageProgram], dict[str, PartSize]]] = {
    scans_in_parts: scan_parts, cut: whole_parts, rows_in_parts: row_parts, columns_in_parts: column_parts}
"""passes that cut what is long into parts, and the parts that each of them would have"""


@lru_cache(maxsize=4096)
def _is_streams(definition: Definition) -> bool:
    """Return whether products of a definition are streams over rows of weights, which warps can share."""
    plain = or_none(spec_to_loops.loops_of, definition, few_rows=True)
    return plain is not None and is_streams(plain) and or_none(streams_of, plain) is not None


def loops_of(definition: Definition) -> StageProgram:
    """Return the loops of a definition as lowered for a GPU. Raises NotLowered."""
    return spec_to_loops.loops_of(definition, few_rows=_is_streams(definition))


def program_of(definition: Definition, strides: Sequence[Strides] | None = None, alone: bool = False) -> StageProgram:
    """Return the loops of a definition for a GPU, for operands with these strides (None: contiguous). alone: each block runs
    everything for its own rows, so products are no streams, nothing is written in place, and long rows stay uncut. Raises
    NotLowered."""
    return cut_program(definition, strides, alone)[0]


def cut_program(definition: Definition, strides: Sequence[Strides] | None = None, alone: bool = False,
                again: Collection[int] | None = None, parts: Mapping[str, int] = BY_RULE,
                ) -> tuple[StageProgram, dict[str, PartSize]]:
    """Return `program_of` as a schedule arranges it, and what of it can be cut, by name. again: numbers of the costly values that
    are recomputed (None: by rule). parts: elements of a part in place of the rules'. Raises NotLowered."""
    apart = False if strides is None else strides
    if not alone and _is_streams(definition):
        program, first = lower(definition, apart, again, few_rows=True), STREAMS
    else:
        program, first = lower(definition, apart, again, updates=not alone), CUDA_LOOPS
    names, sites = {s.target.name for s in program.stages}, dict[str, PartSize]()
    passes: tuple[Callable[..., StageProgram], ...] = (*first, *(CUDA_ROWS if alone else CUDA))
    for one_pass in passes:
        if one_pass not in CUTS:
            program = one_pass(program)
            continue
        new = {name: one for name, one in CUTS[one_pass](program).items() if name in names and name not in sites}
        program = one_pass(program, {name: parts[name] for name in new if name in parts})
        sites |= new
    return program, sites
