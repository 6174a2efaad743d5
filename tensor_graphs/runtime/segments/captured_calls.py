"""captured_calls: the segment of interleaved launches and library calls on one device, replayed as one where only contents changed.

A library call costs the host some ten microseconds, as long as a small kernel runs; in a replay with the launches around it, it
costs nothing. Calls that cannot be captured are made at every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any

from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.registry import optional_member
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.host_calls import HostCalls
from tensor_graphs.runtime.segments.launches import Launches
from tensor_graphs.runtime.segments.replays import Replays
from tensor_graphs.runtime.segments.segment import Clock, Segment


class OnDevice(Segment):
    """A segment of launches and library calls of one device, captured as one replay where possible. parts: Launches, HostCalls."""

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables,
                 engines: Mapping[str, type[Segment]]) -> None:
        super().__init__(indices, instructions, lookup)
        self.parts: list[Launches | HostCalls] = []
        for engine, run in groupby(range(len(indices)), key=lambda i: instructions[i].call.engine):
            of = list(run)
            part = engines[engine]([indices[i] for i in of], [instructions[i] for i in of], lookup)
            assert isinstance(part, Launches | HostCalls)
            self.parts.append(part)
        self.device = device_named(instructions[0].device)
        capture = next(optional_member(ins.backend, "captured") for ins in instructions if ins.call.engine == "host")
        assert capture is not None
        self.capture, self.one_by_one = capture, False

    def prepare(self) -> None:
        for part in self.parts:
            part.prepare()

    def _replays(self, frame: Frame) -> Replays:
        replays: Replays = frame.kept.setdefault(id(self), Replays(self.capture))
        return replays

    def _key(self, frame: Frame) -> bytes:
        return b"".join(part.key(frame) for part in self.parts)

    def run(self, frame: Frame) -> None:
        self.device.use()
        if self.one_by_one:
            self.launch_all(frame)
            return
        replays, key = self._replays(frame), self._key(frame)
        if replays.run(key):
            return
        self.launch_all(frame)
        replays.note(key, partial(self.launch_all, frame))

    def launch_all(self, frame: Frame, stream: Any = 0) -> None:
        """Start every step. Library calls use the library's current stream, which must be `stream`."""
        for part in self.parts:
            if isinstance(part, HostCalls):
                part.run(frame)
            elif not part.silent:
                part.launch_all(frame, stream)

    def _steps(self, frame: Frame) -> Iterator[Callable[[Any], None]]:
        for part in self.parts:
            for k in range(len(part.indices)):
                yield partial(part.launch_one, frame, k) if isinstance(part, Launches) else partial(_called, part, frame, k)

    def time(self, frame: Frame, seconds: Any) -> None:
        self.device.use()
        if not self.one_by_one:
            replays, key = self._replays(frame), self._key(frame)
            taken = replays.timed(key, self.device)
            if taken is not None:
                for index, duration in zip(self.indices, taken, strict=True):
                    seconds[index] += duration
                return
        for part in self.parts:
            part.time(frame, seconds)
        if not self.one_by_one:
            replays.mark(key, self.device, list(self._steps(frame)))

    def one(self, frame: Frame, k: int) -> None:
        for part in self.parts:
            if k < len(part.indices):
                part.one(frame, k)
                return
            k -= len(part.indices)

    def silence(self) -> Callable[[], None]:
        undo = ExitStack()
        undo.callback(setattr, self, "one_by_one", self.one_by_one)
        self.one_by_one = True
        for part in self.parts:
            undo.callback(part.silence())
        return undo.close

    def watch(self, clock: Clock, taken: list[float]) -> Sequence[int]:
        """Return all instructions: `time` measures them by marks on the device, without the host's time for a call."""
        return self.indices

    def scratch(self, frame: Frame) -> list[tuple[Memory, list[tuple[int, int]]]]:
        return [piece for part in self.parts for piece in part.scratch(frame)]

    def sizes_changed(self, frame: Frame) -> bool:
        return any(part.sizes_changed(frame) for part in self.parts)


def _called(part: HostCalls, frame: Frame, k: int, stream: Any) -> None:
    part.one(frame, k)
