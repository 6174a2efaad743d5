"""segments: runs of instructions that one engine executes in one go. Which engine it is, the call of an instruction says.

Read first: segment.py (what the executor asks of each), then native.py, host_calls.py, launches.py, transfers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.lookup import Lookup
from tensor_graphs.runtime.segments.host_calls import HostCalls
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.native import NativeList
from tensor_graphs.runtime.segments.segment import Segment
from tensor_graphs.runtime.segments.transfers import Transfers

ENGINES: Mapping[str, type[Segment]] = {"native": NativeList, "host": HostCalls, "launch": Launches, "transfer": Transfers}
"""what a call says runs it -> the segment that does"""


def segments_of(instructions: Sequence[Instruction], lookup: Lookup) -> list[Segment]:
    """Consecutive instructions of one engine are one segment."""
    found = []
    for engine, run in groupby(range(len(instructions)), key=lambda i: instructions[i].call.engine):
        indices = list(run)
        found.append(ENGINES[engine](indices, [instructions[i] for i in indices], lookup))
    return found
