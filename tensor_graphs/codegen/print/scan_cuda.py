"""scan_cuda: a scan as one GPU kernel, in which each block takes its rows through all iterations.

Independent rows (row_independence.py) need not wait for each other: a block has some of them, keeps their carries in shared memory
between iterations, and never waits for other blocks (mapping/scans.py).
"""

from __future__ import annotations

import math

from tensor_graphs.codegen.mapping.scans import RowsInTurns, map_scan
from tensor_graphs.codegen.passes.row_independence import RowsMeet, few_rows
from tensor_graphs.codegen.print.cuda_loops import printed
from tensor_graphs.codegen.print.cuda_program import ALIGNED, HEADER, program_of
from tensor_graphs.codegen.print.scan_c import each_once
from tensor_graphs.codegen.refusals import cached, refused, why_not
from tensor_graphs.codegen.spec_to_loops import AskedSpec, asked, loops_of
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.target import HOPPER
from tensor_graphs.kernels.kernel import Kernel, LaunchCall, NotLowered, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.subgraph import Turns, slice_type

ENOUGH, FEW_ELEMENTS = 2 * HOPPER.units, 256
"""blocks (two per multiprocessor) from which on each may have several rows, and the most carry elements of such a block"""

NEAR = 96 << 10
"""most bytes of operands without rows that each iteration reads: they stay in a multiprocessor's cache"""

A_TURN = 3 << 20
"""bytes that the device moves in the time of one iteration of a nest, about half a microsecond"""


def kernel(backend: str) -> Kernel:
    return Kernel(name=f"{backend}.scan", backend=backend, op="scan", build=build, accepts=refuse,
                  source="stages rendered as CUDA, in a loop", module=__name__, traffic=traffic,
                  toolchain=nvrtc.made_with(HEADER), contiguous=True)


def refuse(spec: Spec) -> str | None:
    """Return why a scan cannot be one kernel; None where it can."""
    return why_not(_call, asked(spec))


def build(spec: Spec) -> LaunchCall:
    """Return the call of a scan. Raises NotLowered."""
    return _call(asked(spec))


def traffic(spec: Spec) -> Dim:
    """Return the bytes of a scan's operands and outputs, and those that could be moved while iterations wait for each other."""
    scan = _turns_of(asked(spec))
    return sum(t.nbytes() for t in (*spec.inputs, *spec.outputs)) + scan.length * len(scan.program.nests) * A_TURN


@cached(maxsize=1024)
def _turns_of(asked: AskedSpec) -> RowsInTurns:
    spec = asked.spec
    if spec.op is not SCAN:
        raise NotLowered(f"{spec.op.name} is no scan")
    turns = Turns(spec.inputs, spec.attrs)
    carries = len(turns.carries)
    try:
        rows = turns.carries[0].shape[0] if carries and turns.carries[0].rank else 1
        count = _count(turns, rows)
        few = few_rows(turns.step, carries, count)
    except RowsMeet as e:
        raise NotLowered(f"its rows depend on each other: {e}") from None
    step, places = each_once(few.step)
    with refused("in its step: "):
        loops_of(step, updates=False)
        program = program_of(step, alone=True)
    if program.dims:
        raise NotLowered("sizes of its step are dims")
    if any(s.scan is not None for s in program.stages):
        raise NotLowered("a running sum in its step is not written for GPUs")
    if not all(few.of_outputs):
        raise NotLowered("what it returns has no rows")
    types = (*map(slice_type, turns.sliced), *turns.others)
    apart = [t for t, has in zip(types, few.of_arguments[carries:], strict=True) if not has]
    if sum(int(d.evaluate(t.nbytes(), {})) for t in apart) > NEAR:
        raise NotLowered(f"each turn reads more than {NEAR >> 10} KB that all rows share")
    return RowsInTurns(turns, spec.outputs, few, count, program, places, rows, turns.sliced[0].shape[0])


def _count(turns: Turns, rows: Dim) -> int:
    """Return the rows of a block: as many as keep its carries small, where there are enough blocks; a divisor of all rows."""
    if not isinstance(rows, int) or rows == 0:
        return 1
    elements = sum(math.prod(int(d.bounds(s)[1]) for s in t.shape[1:]) for t in turns.carries)
    most = min(rows // ENOUGH, FEW_ELEMENTS // max(1, elements))
    return max((n for n in range(2, most + 1) if rows % n == 0), default=1)


@cached(maxsize=1024)
def _call(asked: AskedSpec) -> LaunchCall:
    scan = _turns_of(asked)
    programs = [map_scan(scan, aligned) for aligned in (True, False)]
    whole, single = map(printed, programs)
    dims = programs[0].source.dims
    other = LaunchCall(single.text, single.launches, dims, ())
    return other if whole.text == single.text else LaunchCall(whole.text, whole.launches, dims, (), ALIGNED, other)
