"""executor: executes one variant of a plan. Addresses are base + offset; both are looked up in tables that are filled per run.

Instructions run as segments (segments/). Numbers that depend on dims are evaluated only when a size changes (dim_tables.py)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tensor_graphs.devices.device import Device, Memory, transfer
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_functions import compile_dims
from tensor_graphs.paths.bind_time import BindTime
from tensor_graphs.paths.lower import BufferKind, Instruction, Program
from tensor_graphs.paths.memory import ArenaLayout
from tensor_graphs.paths.plan import Variant
from tensor_graphs.runtime.bind_time_cache import CachedValues, places_of
from tensor_graphs.runtime.device_constants import array_of, constant, number
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments import segments_of


class Executor:
    """The executable form of one program: segments, tables, and memory bound once (constants, parameters, bind-time values)."""

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
        """number of changes of `fixed` so far"""
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
        """Set all parameters and evaluate the bind-time values (computed from parameters alone); values that no run reads are freed
        after their last use. changed: names of replaced parameters; values independent of them are kept. shared: key -> bind-time
        value, exchanged by executors with the same parameters."""
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
        """Reuse values of other executors (`shared`) and of earlier processes (bind_time_cache.py; also added to `shared`). Returns
        instruction index -> cache file, for instructions whose outputs are still to be computed and written there."""
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
        """Return memory for a bind-time value that is computed next: its previous memory unless that is mapped from a file."""
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
        """Fill the frame's tables for these sizes of dims, unless they are the frame's last ones."""
        if frame.binding == sizes:
            return
        frame.binding = None                                          # until all is filled: the next run retries after an error
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
            else:                                                       # in place: captured work reads this address
                transfer(number(value, b.dtype, HOST), held, HOST)
        frame.binding = sizes

    def run(self, frame: Frame, sizes: tuple[int, ...], bases: Mapping[int, Memory], *, seconds: Any = None,
            after: Callable[[Instruction, list[Any]], None] | None = None,
            spans: list[tuple[int, float, float]] | None = None) -> None:
        """Run every instruction. bases: base -> memory of inputs, outputs and states. seconds: array to which the time of each
        instruction is added. after: called after each instruction with its outputs (slow, for tracing). spans: list that receives
        (index, start, end) on the host's clock; each instruction then runs alone, followed by a wait for its device."""
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
        """Fill a frame's tables for a run at these sizes, on the memory `bases` (by base number)."""
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
        """Return a function that runs a ready frame by one native call (result 0: no error); None where a run is more than that."""
        return self.segments[0].native_call(frame) if len(self.segments) == 1 else None

    @property
    def one_native_call(self) -> bool:
        """True where a run is one list of native calls."""
        return len(self.segments) == 1 and self.segments[0].native

    def silence(self) -> Callable[[], None]:
        """Make every call do nothing, to measure the overhead of the walk; return a function that undoes this."""
        undo = ExitStack()
        for segment in self.segments:
            undo.callback(segment.silence())
        return undo.close

    def watch(self, clock: Callable[[], float], taken: list[float]) -> list[int]:
        """Time every call by `clock` into `taken` (segments/segment.py); return instructions that only `run(seconds=)` times."""
        return [i for segment in self.segments for i in segment.watch(clock, taken)]
