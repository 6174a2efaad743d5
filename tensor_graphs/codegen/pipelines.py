"""pipelines: which passes a program goes through between lowering and printing, for each use.

A pass is a pure function of a program, in passes/, default_schedule.py or skinny_product.py; its docstring has an example.
schedule_actions.py goes through some of them with choices in place of rules, and map_cpu.py begins with wide_accumulate.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensor_graphs.codegen.default_schedule import advised, cut, merged, without_single_turns
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.passes.closed_form_count import counted
from tensor_graphs.codegen.passes.forward_stores import handed_on
from tensor_graphs.codegen.passes.online_reductions import online
from tensor_graphs.codegen.passes.pair_moments import moments_in_parts
from tensor_graphs.codegen.passes.select_top import selected
from tensor_graphs.codegen.passes.skip_masked_blocks import without_hidden
from tensor_graphs.codegen.passes.split_at_conditions import decided
from tensor_graphs.codegen.passes.split_differences import with_split_differences
from tensor_graphs.codegen.passes.split_into_groups import grouped
from tensor_graphs.codegen.passes.split_reduction import columns_in_parts, rows_in_parts
from tensor_graphs.codegen.passes.split_scans import scans_in_parts
from tensor_graphs.codegen.passes.split_softmax import softmax_in_parts
from tensor_graphs.codegen.passes.tile_rows import laned
from tensor_graphs.codegen.skinny_product import streamed
from tensor_graphs.kernels.kernel import NotLowered

Pass = Callable[[StageProgram], StageProgram]
Pipeline = tuple[Pass, ...]

WHOLE: Pipeline = (decided, merged, grouped)
"""before a schedule cuts anything"""

PARTS: Pipeline = (cut, advised)
"""the rules of a schedule"""

LOOPS: Pipeline = (*WHOLE, *PARTS)
"""loops in C, and what all others begin with"""

CUDA_LOOPS: Pipeline = (selected, *WHOLE, scans_in_parts, *PARTS)
"""loops on a GPU, which keeps lists of the largest elements in registers, and has other parts of scans"""

STREAMS: Pipeline = (*LOOPS, streamed)
"""products of few rows, lowered as such"""

CUDA_ROWS: Pipeline = (without_single_turns, handed_on, columns_in_parts, with_split_differences)
"""loops or streams on a GPU where each block runs everything for its own rows, as in a scan"""

CUDA: Pipeline = (without_single_turns, handed_on, moments_in_parts, softmax_in_parts, rows_in_parts,
                  columns_in_parts, with_split_differences)
"""loops or streams on a GPU"""


def through(passes: Pipeline, program: StageProgram) -> StageProgram:
    """Return a program after some passes, one after the other. Raises NotLowered where one of them does."""
    for one_pass in passes:
        program = one_pass(program)
    return program


def arranged(program: StageProgram) -> StageProgram:
    """Return a program as lowered, arranged by the rules."""
    return through(LOOPS, program)


def fused(program: StageProgram, lanes: int, block: int) -> StageProgram:
    """Return a program as lowered with reductions fused into one pass over blocks of so many elements, for `lanes` rows at a time.
    Raises NotLowered where they do not fuse."""
    result = online(counted(program), block)
    if result is None:
        raise NotLowered("its reductions are no one pass")
    program, one_pass = result
    return through((partial(laned, lanes=lanes), partial(without_hidden, one_pass=one_pass)), program)
