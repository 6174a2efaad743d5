"""executor: one variant of a plan, made concrete. Addresses are base + offset; both come from tables that are filled per run.

Instructions run as segments (segments/). What depends on dims is evaluated once per run (dim_tables.py), where a size changed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tensor_graphs.devices.device import Device, Memory, transfer
from tensor_graphs.devices.known import HOST, device_named
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.paths.bind_time import BindTime
from tensor_graphs.paths.lower import BufferKind, Instruction, Program
from tensor_graphs.paths.memory import ArenaLayout
from tensor_graphs.paths.plan import Variant
from tensor_graphs.runtime.bind_time_cache import CachedValues, places_of
from tensor_graphs.runtime.device_constants import array_of, constant, number
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.frame import Frame
from tensor_graphs.runtime.segments import segments_of


class Executor:
    """The concrete form of one program: segments, tables, and what is bound once (constants, parameters, bind-time values)."""

    def __init__(self, variant: Variant, dims: Sequence[str]) -> None:
        self.variant = variant
        self.program: Program = variant.program
        self.bind_time = BindTime(variant.program)
        self.layout: ArenaLayout = variant.layout
        self.dims = tuple(dims)
        self.lookup = DimTables(self.program, self.dims)
        self.bind_segments = segments_of(self.program.bind_instructions, self.lookup)
        self.segments = segments_of(self.program.instructions, self.lookup, variant.path.all_steps)
        self._outs = [[self.lookup.window(o) for o in ins.outs] for ins in self.program.instructions]
        self.lookup.close()
        for segment in (*self.segments, *self.bind_segments):
            segment.prepare()
        self._dim_buffers = [(self.lookup.first + i, b) for i, b in enumerate(self.program.buffers) if b.kind == "dims"]
        self._dim_values = compile_dims([b.value for _, b in self._dim_buffers], self.dims)
        layout_dims = {str(s) for interval in self.layout.intervals for s in d.symbols(interval.nbytes)}
        self._layout_dims = tuple(i for i, n in enumerate(self.dims) if n in layout_dims)
        self.input_bases, self.output_bases = self._bases_of("input"), self._bases_of("output")
        self.state_bases, self.parameter_bases = self._bases_of("state"), self._bases_of("parameter")
        self.input_devices, self.output_devices = self._devices_of("input"), self._devices_of("output")
        self.state_devices = self._devices_of("state")
        self.fixed: dict[int, Memory] = {}
        self.bound = 0
        """how often `fixed` has changed"""
        for base, b in enumerate(self.program.buffers, self.lookup.first):
            if b.kind == "constant":
                assert b.dtype is not None
                self.fixed[base] = constant(b.value, b.dtype, device_named(b.device))

    def _bases_of(self, kind: BufferKind) -> dict[str, int]:
        return {b.name: self.lookup.first + i for i, b in enumerate(self.program.buffers) if b.kind == kind and b.alias is None}

    def _devices_of(self, kind: BufferKind) -> dict[str, Device]:
        return {b.name: device_named(b.device) for b in self.program.buffers if b.kind == kind}

    # ---- binding ----

    def bind(self, parameters: Mapping[str, Memory], changed: set[str] | None = None,
             shared: dict[Hashable, Memory] | None = None) -> None:
        """Set the parameters (whole, of the right type) and evaluate what depends on them alone; values that no run reads are freed
        after their last use. changed: only these were replaced; other values stay. shared: values that executors of the same
        parameters have evaluated in this round; read from there, or put there."""
        self.bound += 1
        for name, base in self.parameter_bases.items():
            self.fixed[base] = parameters[name]
        if not self.program.bind_instructions:
            return
        shared = {} if shared is None else shared
        stale = self.bind_time.stale(changed)
        places = self._restore(parameters, stale, shared)
        missing = self.bind_time.missing(stale, shared)
        frame = Frame(self)
        self.ready(frame, tuple(self.variant.at[n] for n in self.dims), {})
        at = {index: (segment, k) for segment in self.bind_segments for k, index in enumerate(segment.indices)}
        for step in self.bind_time.steps(missing):
            memories = [self._room(frame, home) for home in self.bind_time.outs[step.index]]
            segment, k = at[step.index]
            segment.one(frame, k)
            if step.index in places:
                places[step.index].write(memories)
            frame.let_go(self.lookup.first + home for home in step.frees)
        keys = [(self.bind_time.key_of(home), home) for home in missing]
        shared.update((key, self.fixed[self.lookup.first + home]) for key, home in keys if key is not None)

    def _restore(self, parameters: Mapping[str, Memory], stale: Sequence[int], shared: dict[Hashable, Memory],
                 ) -> dict[int, CachedValues]:
        """Take the kept values that another executor has made, or an earlier process (bind_time_cache.py; those are put into
        `shared`). Returns where the outputs of the other instructions may be kept, by index."""
        own = {index: homes for index in stale if (homes := self.bind_time.kept_outs(index))}
        places = places_of(self.bind_time, [i for i, homes in own.items() if not self.bind_time.all_in(homes, shared)], parameters)
        for index, place in list(places.items()):
            if (memories := place.read()) is not None:
                shared.update(zip(map(self.bind_time.key_of, self.bind_time.outs[index]), memories, strict=True))
                del places[index]
        for homes in own.values():
            if self.bind_time.all_in(homes, shared):
                self.fixed |= {self.lookup.first + home: shared[self.bind_time.key_of(home)] for home in homes}
        return places

    def _room(self, frame: Frame, home: int) -> Memory:
        """Memory for a value that is about to be made: of a kept one what it had, unless that is mapped from a file."""
        base, b = self.lookup.first + home, self.program.buffers[home]
        held = frame.memory[base]
        if held is None or (held.device.is_host and not held.owner.flags.writeable):
            held = device_named(b.device).allocate(int(d.evaluate(b.nbytes, {})))
            frame.set_base(base, held)
        if home in self.bind_time.kept:
            self.fixed[base] = held
        return held

    # ---- running ----

    def _prepare(self, frame: Frame, sizes: tuple[int, ...]) -> None:
        """Fill the frame's tables for these dims; nothing to do when they did not change."""
        if frame.binding == sizes:
            return
        frame.binding = None                                          # until all is there: what raises below is tried again
        key = tuple(sizes[i] for i in self._layout_dims)
        frame.sizes = self.lookup.binding(sizes)
        if frame.layout_key != key:
            frame.arena_offsets, needed = self.layout.offsets(frame.sizes, frame.apart, frame.shift)
            frame.slots = self.lookup.slots(frame.arena_offsets)
            frame.layout_key = None
            frame.give_arenas({device: needed.get(device, 0) for device in self.program.devices})
            frame.layout_key = key
        self.lookup.fill(frame.values, frame.slots, sizes)
        frame.shapes.clear()
        frame.views.clear()
        for (base, b), value in zip(self._dim_buffers, self._dim_values(*sizes), strict=True):
            assert b.dtype is not None
            held = frame.memory[base]
            if held is None or held.device.is_host:
                frame.set_base(base, number(value, b.dtype, device_named(b.device)))
            else:                                                       # the same place: what was captured reads it there
                transfer(number(value, b.dtype, HOST), held, HOST)
        frame.binding = sizes

    def run(self, frame: Frame, sizes: tuple[int, ...], bases: Mapping[int, Memory], *, seconds: Any = None,
            after: Callable[[Instruction, list[Any]], None] | None = None,
            spans: list[tuple[int, float, float]] | None = None) -> None:
        """Run every instruction. bases: memory of inputs, outputs and states, by base number. seconds: receives the time of each
        instruction. after: called after every instruction with the values of its outputs (slow: for tracing). spans: receives
        (instruction, start, end) on the host's clock; each instruction then runs alone, and its device is waited for."""
        self.ready(frame, sizes, bases)
        if after is not None:
            for segment in self.segments:
                for k, index in enumerate(segment.indices):
                    segment.one(frame, k)
                    after(self.program.instructions[index], [array_of(frame, w) for w in self._outs[index]])
        elif spans is not None:
            for segment in self.segments:
                for k, index in enumerate(segment.indices):
                    device = device_named(self.program.instructions[index].device)
                    start = HOST.clock()
                    segment.one(frame, k)
                    device.synchronise()
                    spans.append((index, start, HOST.clock()))
        elif seconds is not None:
            for segment in self.segments:
                segment.time(frame, seconds)
        else:
            for segment in self.segments:
                segment.run(frame)

    def ready(self, frame: Frame, sizes: tuple[int, ...], bases: Mapping[int, Memory]) -> None:
        """Fill a frame's tables for a run at these sizes, on this memory."""
        self._prepare(frame, sizes)
        if frame.bound != self.bound:                               # what is bound is in the tables of other frames already
            for base, memory in self.fixed.items():
                if frame.memory[base] is not memory:
                    frame.set_base(base, memory)
            frame.bound = self.bound
        for base, memory in bases.items():
            if frame.memory[base] is not memory:
                frame.set_base(base, memory)

    def native_call(self, frame: Frame) -> Callable[[], int] | None:
        """Return the one native call that runs a ready frame (its result 0: no error); None where a run is more than that."""
        return self.segments[0].native_call(frame) if len(self.segments) == 1 else None

    @property
    def one_native_call(self) -> bool:
        """True where a run is one list of native calls."""
        return len(self.segments) == 1 and self.segments[0].native

    def silence(self) -> Callable[[], None]:
        """Make every call do nothing, to measure the walk itself; return the function that undoes it."""
        undo = ExitStack()
        for segment in self.segments:
            undo.callback(segment.silence())
        return undo.close

    def watch(self, clock: Callable[[], float], taken: list[float]) -> list[int]:
        """Put a watch around every call (segments/segment.py); returns the instructions that are timed without one."""
        return [i for segment in self.segments for i in segment.watch(clock, taken)]
