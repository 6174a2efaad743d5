"""device_lab: the memory of other devices than the host, as a candidate is judged: poisoned before it runs, looked at afterwards.

The zones around the caller's arrays are on the host, and so is what is compared with the oracle. On a device a kernel has copies of
its operands, which it may not change, and an arena, in which only its buffers are its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tensor_graphs.devices.cpu import array_view
from tensor_graphs.devices.device import transfer
from tensor_graphs.devices.known import HOST, device_named
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.paths.lower import Operand, arena_buffers

if TYPE_CHECKING:
    from tensor_graphs.runtime.executor import Executor
    from tensor_graphs.runtime.frame import Frame

POISON = 0xFF
"""of every byte: NaN in every float format"""


class DeviceLab:
    """For one executor. Without other devices it does nothing."""

    def __init__(self, executor: Executor) -> None:
        program = executor.program
        self.executor, self.devices = executor, program.devices[1:]
        self._copies: list[tuple[Operand, Operand]] = []
        """(what a kernel reads on its device, or the copy of which that is a view; the same on the host)"""
        everything = (*program.bind_instructions, *program.instructions)
        kernels = [i for i in program.instructions if i.signature and i.device in self.devices]
        written = {program.home(o.buffer) for i in kernels for o in i.outs}       # in place a kernel may write over what it reads
        made_of = {i.outs[0].buffer: i.ins[0] for i in everything if i.op == "contiguous"}
        brought = {i.outs[0].buffer: (i.ins[0], i.outs[0]) for i in everything if i.call.engine == "transfer"}
        for o in {o.buffer: o for i in kernels for o in i.ins}.values():
            seen = made_of.get(o.buffer, o)                         # what is copied into o dies there, and its memory is another's
            if program.home(o.buffer) in written or seen.buffer not in brought:
                continue
            source, copy = brought[seen.buffer]
            if seen is o:
                self._copies.append((copy, made_of.get(source.buffer, source)))
            elif source.buffer not in made_of:
                self._copies.append((o, replace(seen, buffer=source.buffer, offset=source.offset + seen.offset)))

    def poison(self, frame: Frame) -> None:
        """Before a run on a frame that is ready: what is not written shows."""
        for device in self.devices:
            device_named(device).fill(frame.arenas[device], POISON)

    def mutated(self, frame: Frame) -> bool:
        """After a run: whether a copy of an operand is another one than the operand."""
        return any(self._array(frame, copy).tobytes() != self._array(frame, given).tobytes() for copy, given in self._copies)

    def _array(self, frame: Frame, o: Operand) -> np.ndarray:
        """What an operand holds, which on a device is contiguous."""
        memory = frame.memory[self.executor.lookup.base(o)]
        assert memory is not None
        offset, *sizes = (int(d.evaluate(x, frame.sizes)) for x in (o.offset, *o.shape, *o.strides))
        shape, strides = sizes[:len(o.shape)], sizes[len(o.shape):]
        if memory.device is HOST or 0 in shape:
            return array_view(memory if memory.device is HOST else HOST.allocate(0), offset, shape, strides, o.dtype)
        slots = arena_buffers(self.executor.program)
        home = self.executor.program.home(o.buffer)
        begin = frame.arena_offsets[slots.index(home)] if home in slots else 0
        here = HOST.allocate(int(np.prod(shape)) * o.dtype.itemsize)
        transfer(memory.device.part(memory, begin + offset, here.nbytes), here, HOST)
        return array_view(here, 0, shape, contiguous_strides(shape), o.dtype)  # type: ignore[arg-type]  # the shape is of ints

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
