"""device_lab: the memory of other devices than the host, as a candidate is judged: poisoned before it runs, looked at afterwards.

The zones around the caller's arrays are on the host, and so is what is compared with the oracle. On a device a kernel has copies of
its operands, which it may not change, and an arena, in which only its buffers are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensor_graphs.devices.cpu import array_view
from tensor_graphs.devices.device import transfer
from tensor_graphs.devices.known import HOST, device_named
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.runtime.held_numbers import array_of

if TYPE_CHECKING:
    from tensor_graphs.runtime.executor import Executor
    from tensor_graphs.runtime.frame import Frame
    from tensor_graphs.runtime.lookup import Window

POISON = 0xFF
"""of every byte: NaN in every float format"""


class DeviceLab:
    """For one executor. Without other devices it does nothing."""

    def __init__(self, executor: Executor) -> None:
        program, lookup = executor.program, executor.lookup
        self.executor, self.devices = executor, program.devices[1:]
        self._copies: list[tuple[str, Window, Window]] = []
        kernels = [i for i in program.instructions if i.backend and i.device in self.devices]
        read = {program.home(o.buffer) for i in kernels for o in i.ins}
        written = {program.home(o.buffer) for i in kernels for o in i.outs}
        # a value that is made contiguous for its copy dies there, and its memory is another's: what it was made of stays
        made_of = {ins.outs[0].buffer: ins.ins[0] for ins in (*program.instructions, *program.bind_instructions)
                   if ins.op == "contiguous" and program.buffers[ins.outs[0].buffer].kind == "arena"}
        for ins in (*program.instructions, *program.bind_instructions):
            if ins.call.engine == "transfer" and ins.device in self.devices:
                home = program.home(ins.outs[0].buffer)
                if home in read and home not in written:            # in place a kernel may write over what it reads
                    name = program.buffers[ins.ins[0].buffer].name
                    given = made_of.get(ins.ins[0].buffer, ins.ins[0])
                    self._copies.append((name, lookup.window(given), lookup.window(ins.outs[0])))

    def poison(self, frame: Frame) -> None:
        """Before a run on a frame that is ready: what is not written shows."""
        for device in self.devices:
            device_named(device).fill(frame.arenas[device], POISON)

    def mutated(self, frame: Frame) -> bool:
        """After a run: whether a copy of an operand is another one than the operand."""
        return any(array_of(frame, copy).tobytes() != array_of(frame, given).tobytes() for _, given, copy in self._copies)

    def outside(self, frame: Frame) -> list[str]:
        """After a run: the devices on whose arena bytes between the buffers were changed."""
        found = []
        offsets, _ = self.executor.layout.offsets(frame.sizes)
        for device in self.devices:
            arena = frame.arenas[device]
            here = HOST.allocate(arena.nbytes)
            transfer(arena, here, HOST)
            free = np.ones(arena.nbytes, np.bool_)
            for interval, offset in zip(self.executor.layout.intervals, offsets, strict=True):
                if interval.device == device:
                    free[offset:offset + int(d.evaluate(interval.nbytes, frame.sizes))] = False
            if (array_view(here, 0, (arena.nbytes,), (1,), DTYPES["u8"])[free] != POISON).any():
                found.append(f"the memory of {device}, between its buffers")
        return found
