"""segments: groups of consecutive instructions that one engine executes; the call of an instruction names its engine.

Read first: segment.py (the interface), then native.py, host_calls.py, launches.py, transfers.py. decoder_kernel.py replaces
launches by one kernel, captured_calls.py joins launches and host calls, replays.py holds captured work of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from tensor_graphs.kernels.kernel import HostCall
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.segments.captured_calls import OnDevice
from tensor_graphs.runtime.segments.host_calls import HostCalls
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.native import NativeList
from tensor_graphs.runtime.segments.segment import Segment
from tensor_graphs.runtime.segments.transfers import Transfers

ENGINES: Mapping[str, type[Segment]] = {"native": NativeList, "host": HostCalls, "launch": Launches, "transfer": Transfers}
"""engine of a call -> class of the segment that runs it"""


ON_DEVICE = "on device"


def _engine(ins: Instruction) -> tuple[str, str]:
    """Return the key that groups instructions: (ON_DEVICE, device) for launches and capturable library calls, else (engine, "")."""
    if ins.call.engine == "launch" or (isinstance(ins.call, HostCall) and ins.call.on_stream):
        return ON_DEVICE, ins.device
    return ins.call.engine, ""


def segments_of(instructions: Sequence[Instruction], lookup: DimTables, all_steps: str = "") -> list[Segment]:
    """Return the segments of a program: consecutive instructions of one engine, or launches and library calls captured together.
    all_steps: name of a kernel that replaces all launches at the sizes that it takes, "" for none."""
    segments: list[Segment] = []
    for (engine, _), run in groupby(range(len(instructions)), key=lambda i: _engine(instructions[i])):
        indices = list(run)
        run_of = [instructions[i] for i in indices]
        segment: Segment | None = None
        if engine == ON_DEVICE and any(ins.call.engine == "host" for ins in run_of):
            segment = OnDevice(indices, run_of, lookup, ENGINES)
        elif engine == ON_DEVICE:
            engine = "launch"
        if engine == "launch" and all_steps:
            from tensor_graphs.runtime.segments.decoder_kernel import in_place_of  # a door: most plans have none

            segment = in_place_of(indices, run_of, lookup, kernel_named(all_steps))
        segments.append(segment or ENGINES[engine](indices, run_of, lookup))
    return segments
