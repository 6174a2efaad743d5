"""segments: runs of instructions that one engine executes in one go. Which engine it is, the call of an instruction says.

Read first: segment.py (what the executor asks of each), then native.py, host_calls.py, launches.py, transfers.py; all_steps.py is
launches.py with one kernel in place of all launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.lookup import Lookup
from tensor_graphs.runtime.segments.host_calls import HostCalls
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.native import NativeList
from tensor_graphs.runtime.segments.segment import Segment
from tensor_graphs.runtime.segments.transfers import Transfers

ENGINES: Mapping[str, type[Segment]] = {"native": NativeList, "host": HostCalls, "launch": Launches, "transfer": Transfers}
"""what a call says runs it -> the segment that does"""


def segments_of(instructions: Sequence[Instruction], lookup: Lookup, all_steps: str = "") -> list[Segment]:
    """Consecutive instructions of one engine are one segment. all_steps: the name of a kernel that runs all launches at once, at
    the sizes that it takes."""
    found: list[Segment] = []
    for engine, run in groupby(range(len(instructions)), key=lambda i: instructions[i].call.engine):
        indices = list(run)
        run_of = [instructions[i] for i in indices]
        made = None
        if engine == "launch" and all_steps:
            from tensor_graphs.runtime.segments.all_steps import in_place_of  # a door: most plans have none

            made = in_place_of(indices, run_of, lookup, kernel_named(all_steps))
        found.append(made or ENGINES[engine](indices, run_of, lookup))
    return found
