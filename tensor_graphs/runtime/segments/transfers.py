"""transfers: the segment of copies between devices, by whichever device can do it (device.transfer). Both ends are contiguous."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.devices.device import Memory, transfer, transfer_all
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables, Window
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.segment import Segment


@dataclass(frozen=True)
class _Copy:
    index: int
    source: Window
    into: Window
    sizes: tuple[int, ...]


class Transfers(Segment):
    """A segment of copies of complete values from one device to another, in order."""

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables) -> None:
        super().__init__(indices, instructions, lookup)
        self.steps = [_Copy(index, lookup.window(ins.ins[0]), lookup.window(ins.outs[0]), tuple(map(lookup.expr, ins.ins[0].shape)))
                      for index, ins in zip(indices, instructions, strict=True)]

    def run(self, frame: Frame) -> None:
        pairs = [(self._part(frame, step.source, step), self._part(frame, step.into, step)) for step in self.steps]
        transfer_all([pair for pair in pairs if pair[0].nbytes], HOST)

    def time(self, frame: Frame, seconds: Any) -> None:
        for k, step in enumerate(self.steps):
            start = HOST.clock()
            self.one(frame, k)
            seconds[step.index] += HOST.clock() - start

    def one(self, frame: Frame, k: int) -> None:
        step = self.steps[k]
        source, into = self._part(frame, step.source, step), self._part(frame, step.into, step)
        if source.nbytes:
            transfer(source, into, HOST)

    def silence(self) -> Callable[[], None]:
        """Change nothing: transfers are no kernels, but part of the measured overhead."""
        return lambda: None

    @staticmethod
    def _part(frame: Frame, w: Window, step: _Copy) -> Memory:
        part: Memory | None = frame.views[w.base].get(id(w))
        if part is not None:
            return part
        memory = frame.memory[w.base]
        assert memory is not None
        nbytes = math.prod((int(frame.values[size]) for size in step.sizes), start=w.dtype.itemsize)
        part = memory.device.part(memory, int(frame.values[frame.n_exprs + w.pointer]) if nbytes else 0, nbytes)
        frame.views[w.base][id(w)] = part
        return part
