"""device_memory: checks a candidate's use of memory on devices other than the host: poisons it before a run, checks it afterwards.

The guard zones around the caller's arrays are on the host. On a device a kernel has copies of its operands, which it may not
change, an arena, in which only its buffers are its own, scratch, and memory that a block's threads share. A zone surrounds every
buffer. Before a run all of this holds one byte, another one each time: NaN, a large number or a large negative one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tensor_graphs.devices.cpu import array_view
from tensor_graphs.devices.device import Memory, transfer
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DTYPES, DType
from tensor_graphs.measure.isolation.memory_guards import POISONS
from tensor_graphs.paths.lower import Operand, arena_buffers

if TYPE_CHECKING:
    from tensor_graphs.runtime.executor import Executor
    from tensor_graphs.runtime.run_frame import Frame

PIECE, ZONE_BYTES = 16 << 20, 64 << 10
"""bytes of a copy that are transferred back in one piece; size of the zone around each buffer: as large as a misplaced tile"""


class DeviceLab:
    """Memory checks of one executor. Without other devices it does nothing."""

    def __init__(self, executor: Executor) -> None:
        program = executor.program
        self.executor, self.devices, self.runs = executor, program.devices[1:], -1
        self._copies: list[tuple[Operand, Operand]] = []
        """(what a kernel reads on its device, or the copy of which that is a view; the equal value on the host)"""
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
        held = executor.bind_time.kept                              # what else was made of parameters is freed: nothing to compare
        self._copies = [(copy, operand) for copy, operand in self._copies
                        if program.buffers[home := program.home(operand.buffer)].kind != "bound" or home in held]

    @property
    def byte(self) -> int:
        """Byte that was written everywhere before the last run."""
        return POISONS[self.runs % len(POISONS)]

    def poison(self, frame: Frame, shared: bool) -> None:
        """Fill memory before a run, so that missing writes show. shared: also what a block's threads share (a launch each)."""
        self.runs += 1
        for device in self.devices:
            device_named(device).fill(frame.arenas[device], self.byte)
            device_named(device).shared_byte = self.byte if shared else None
        for memory, _ in self._scratch(frame):
            memory.device.fill(memory, self.byte)

    def _scratch(self, frame: Frame) -> list[tuple[Memory, list[tuple[int, int]]]]:
        return [scratch for segment in self.executor.segments for scratch in segment.scratch(frame)]

    def mutated(self, frame: Frame) -> bool:
        """Return, after a run, whether a copy of an operand differs from the operand, or a size on the device has changed."""
        return (any(self._differs(frame, copy, operand) for copy, operand in self._copies)
                or any(segment.sizes_changed(frame) for segment in self.executor.segments if self.devices))

    def _differs(self, frame: Frame, copy: Operand, operand: Operand) -> bool:
        """Return whether a copy of an operand differs from it. Compares by pieces: weights may be half of the host's memory."""
        ours, theirs = (self._place(frame, o) for o in (copy, operand))
        whole = np.ascontiguousarray(_brought(*theirs, operand.dtype)).reshape(-1).view(np.uint8)
        if ours[0].device is HOST:
            return bool((np.ascontiguousarray(_brought(*ours, copy.dtype)).reshape(-1).view(np.uint8) != whole).any())
        memory, begin = ours[:2]
        here = HOST.allocate(min(PIECE, whole.nbytes))
        for first in range(0, whole.nbytes, PIECE):
            piece = whole[first:first + PIECE]
            transfer(memory.device.part(memory, begin + first, piece.nbytes), HOST.part(here, 0, piece.nbytes), HOST)
            if _differ(array_view(here, 0, piece.shape, (1,), DTYPES["u8"]), piece):
                return True
        return False

    def _place(self, frame: Frame, o: Operand) -> tuple[Memory, int, list[int], list[int]]:
        """Return (memory, first byte, shape, strides) of an operand."""
        memory = frame.memory[self.executor.lookup.base(o)]
        assert memory is not None
        offset, *sizes = (int(d.evaluate(x, frame.sizes)) for x in (o.offset, *o.shape, *o.strides))
        shape, strides = sizes[:len(o.shape)], sizes[len(o.shape):]
        if memory.device is not HOST:
            slots = arena_buffers(self.executor.program)
            home = self.executor.program.home(o.buffer)
            offset += frame.arena_offsets[slots.index(home)] if home in slots else 0
        return memory, offset, shape, strides

    def outside(self, frame: Frame) -> list[str]:
        """Return, after a run, descriptions of where memory between the buffers, or between pieces of scratch, was changed; none
        for a frame that never ran, as of a set of operands whose turn did not come."""
        places_changed: list[str] = []
        if frame.layout_key is None:
            return places_changed
        for device in self.devices:
            places = zip(self.executor.layout.intervals, frame.arena_offsets, strict=True)
            ours = [(offset, int(d.evaluate(i.nbytes, frame.sizes))) for i, offset in places if i.device == device]
            if self._strange(frame.arenas[device], ours):
                places_changed.append(f"the memory of {device}, between its buffers")
        return places_changed + [f"the scratch of {memory.device.name}, beside its pieces"
                                 for memory, pieces in self._scratch(frame) if self._strange(memory, pieces)]

    def _strange(self, memory: Memory, parts: Sequence[tuple[int, int]]) -> bool:
        """Return whether a byte outside of these parts (offset, bytes) differs from before the run."""
        at = 0
        for offset, nbytes in (*sorted(parts), (memory.nbytes, 0)):
            if offset > at and _differ(_brought(memory, at, [offset - at], [1], DTYPES["u8"]), self.byte):
                return True
            at = max(at, offset + nbytes)
        return False


def _differ(data: np.ndarray, wanted: np.ndarray | int) -> bool:
    """Return whether bytes differ from these, or from this one byte; compares words, eight times as fast as bytes."""
    even = data.nbytes // 8 * 8
    words, rest = (wanted[:even].view(np.uint64), wanted[even:]) if isinstance(wanted, np.ndarray) else (
        np.uint64(wanted * 0x0101010101010101), np.uint8(wanted))
    return bool((data[:even].view(np.uint64) != words).any() or (data[even:] != rest).any())


def _brought(memory: Memory, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: DType) -> np.ndarray:
    """Return a memory region as a host array; contiguous device memory is copied to the host."""
    if memory.device is HOST or 0 in shape:
        return array_view(memory if memory.device is HOST else HOST.allocate(0), offset, shape, strides, dtype)
    here = HOST.allocate(int(np.prod(shape)) * dtype.itemsize)
    transfer(memory.device.part(memory, offset, here.nbytes), here, HOST)
    return array_view(here, 0, shape, contiguous_strides(shape), dtype)  # type: ignore[arg-type]  # the shape is of ints
