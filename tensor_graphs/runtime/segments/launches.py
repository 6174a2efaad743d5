"""launches: the segment of GPU kernel launches, in order on their device; repeated launches are captured and replayed.

A frame keeps the arguments: a table of addresses, and the sizes in device memory. Launches that repeat with the same addresses and
grids are captured, where the device can, and replayed by one call. Sizes may change between replays, as when a state grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from tensor_graphs.devices.array_address import address
from tensor_graphs.devices.cpu import array_view, memory_of
from tensor_graphs.devices.device import Device, Memory, transfer
from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.kernels.kernel import LaunchCall, TensorMap
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.paths.lower import Instruction
from tensor_graphs.runtime.dim_tables import DimTables
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.segments.replays import Replays
from tensor_graphs.runtime.segments.segment import Clock, Segment


@dataclass
class _LaunchForm:
    """A launch call with indices into the tables. pieces, grids, maps: expressions of scratch sizes, of grids, and of the sizes and
    steps of arrays that have tensor maps. at: index of the argument word with the first piece's address. entries: the compiled
    kernels."""

    call: LaunchCall
    pieces: list[int]
    grids: list[int]
    maps: list[list[int]]
    at: int
    entries: list[Any] = field(default_factory=list)


@dataclass
class _LaunchStep:
    """One call. words: index of its first argument word. addresses: number of outputs and operands. sizes: index of its first size,
    or None. written: numbers of operands that the program computes. forms: the call and, if any, its `otherwise`."""

    index: int
    device: Device
    words: int
    addresses: int
    sizes: int | None
    alignment: int
    written: frozenset[int]
    forms: list[_LaunchForm]


@dataclass
class _LaunchTable:
    """The arguments of one frame's launches. words: argument words for kernels. parameters: address of each word. sizes, there:
    sizes on the host and on the device. maps: encoded tensor maps, for each call that has some. given: bytes last copied to the
    device. pieces: (offset, bytes) of each piece of scratch. key: addresses and grids. launches: a list per step. replays: captured
    launches by key."""

    words: np.ndarray
    parameters: np.ndarray
    sizes: np.ndarray
    there: Memory
    replays: Replays
    maps: list[np.ndarray] = field(default_factory=list)
    given: bytes = b""
    scratch: Memory | None = None
    pieces: list[tuple[int, int]] = field(default_factory=list)
    key: bytes = b""
    launches: list[list[tuple[Any, int, int, int, bool]]] = field(default_factory=list)


class Launches(Segment):
    """A segment of launches on one device or several, in order."""

    def __init__(self, indices: Sequence[int], instructions: Sequence[Instruction], lookup: DimTables) -> None:
        super().__init__(indices, instructions, lookup)
        self.steps: list[_LaunchStep] = []
        self.silent = False
        n = 0
        base, pointer, address_at, value = (list[int]() for _ in range(4))
        # includes results of library calls among these launches; transferred values are complete before any launch
        written = {lookup.program.home(o.buffer) for ins in lookup.program.instructions if ins.call.engine != "transfer"
                   for o in ins.outs}
        for index, ins in zip(indices, instructions, strict=True):
            call = ins.call
            assert isinstance(call, LaunchCall)
            operands = [*ins.outs, *ins.ins]
            for k, o in enumerate(operands):
                base.append(lookup.base(o))
                pointer.append(lookup.pointer(o))
                address_at.append(n + k)
            sizes = len(value) if call.ints else None
            value += map(lookup.expr, call.ints)
            first = n + len(operands) + (1 if call.ints else 0)
            forms = [_LaunchForm(form, list(map(lookup.expr, form.pieces)), [lookup.expr(one.grid) for one in form.launches],
                                 [list(map(lookup.expr, (*one.sizes, *one.steps))) for one in form.maps], first)
                     for form in (call, call.otherwise) if form is not None]
            moving = frozenset(k for k, o in enumerate(ins.ins) if lookup.program.home(o.buffer) in written)
            self.steps.append(_LaunchStep(index, device_named(ins.device), n, len(operands), sizes, call.alignment, moving, forms))
            n = first + max(len(f.pieces) + bool(f.maps) for f in forms)
        self.size = n
        shapes = sorted({x for s in self.steps for f in s.forms for x in (*f.pieces, *f.grids, *chain.from_iterable(f.maps))})
        self._base, self._pointer, self._address_at, self._value, self._seen = (
            np.array(x, np.int64) for x in (base, pointer, address_at, value, shapes))
        self.devices = list(dict.fromkeys(s.device for s in self.steps))
        self._bases = np.array(sorted(set(base)), np.int64)

    def prepare(self) -> None:
        self._pointer += self.lookup.n_exprs                            # pointers come behind the expressions
        self._places = np.array(sorted({*self._pointer.tolist(), *self._seen.tolist()}), np.int64)
        for step in self.steps:
            _load(step.device, step.forms[0])

    # ---- words ----

    def ready(self, frame: Frame) -> _LaunchTable:
        """Return this frame's table, filled for its current sizes and addresses."""
        table: _LaunchTable | None = frame.kept.get(id(self))
        if table is None:
            words = np.zeros(max(1, self.size), np.uint64)
            parameters = address(words) + 8 * np.arange(len(words), dtype=np.uint64)
            sizes = np.zeros(len(self._value), np.int64)
            table = frame.kept[id(self)] = _LaunchTable(words, parameters, sizes, self.devices[0].allocate(sizes.nbytes),
                                                          Replays(self.devices[0].captured))
        values = frame.values
        key = frame.bases[self._bases].tobytes() + values[self._places].tobytes()
        if key != table.key:
            table.key = b""                                          # filled again after an interruption (no memory, Ctrl-C)
            self._fill(frame, table, frame.bases[self._base] + values[self._pointer].view(np.uint64))
            table.key = key
        sizes = values[self._value]
        if sizes.tobytes() != table.given:
            table.given = b""
            table.sizes[...] = sizes
            self.devices[0].upload(memory_of(table.sizes), table.there)
            table.given = sizes.tobytes()
        return table

    def _fill(self, frame: Frame, table: _LaunchTable, addresses: np.ndarray) -> None:
        values, words = frame.values, table.words
        words[self._address_at] = addresses
        most = max((sum(int(values[p]) + frame.apart for p in f.pieces) for s in self.steps for f in s.forms), default=0)
        if most and (table.scratch is None or table.scratch.nbytes < most + frame.apart):
            table.replays.clear()
            table.scratch = None                                         # free before growing
            table.scratch = self.devices[0].allocate(most + frame.apart)
        table.launches, table.pieces, table.maps = [], [], []
        table.parameters[...] = address(words) + 8 * np.arange(len(words), dtype=np.uint64)
        for step in self.steps:
            own = words[step.words:step.words + step.addresses]
            if step.sizes is not None:
                words[step.words + step.addresses] = table.there.address + 8 * step.sizes
            form = step.forms[-1 if (own % np.uint64(step.alignment)).any() else 0]
            begin = frame.apart
            for k, piece in enumerate(form.pieces):
                assert table.scratch is not None or not values[piece]
                words[form.at + k] = table.scratch.address + begin if table.scratch is not None else 0
                table.pieces.append((begin, int(values[piece])))
                begin += int(values[piece]) + frame.apart
            if form.maps:
                table.maps.append(encoded_maps(step.device, form.call.maps, words[step.words:],
                                               [[int(values[x]) for x in exprs] for exprs in form.maps]))
                table.parameters[form.at + len(form.pieces)] = address(table.maps[-1])
            launches = [(entry, int(values[g]), launch.block, launch.shared, launch.waits and step.written.isdisjoint(launch.early))
                     for entry, g, launch in zip(_load(step.device, form), form.grids, form.call.launches, strict=True)]
            table.launches.append([launch for launch in launches if launch[1] > 0])

    # ---- running ----

    def run(self, frame: Frame) -> None:
        if self.silent:
            return
        table = self.ready(frame)
        for device in self.devices:
            device.use()
        if table.replays.run(table.key):
            return
        self._launch_steps(table)
        if len(self.devices) == 1 and sum(map(len, table.launches)) > 1:
            table.replays.note(table.key, partial(self.launch_all, frame))

    def key(self, frame: Frame) -> bytes:
        """Return, as bytes, all that launches on a frame depend on, except for sizes that they read on the device. The address of
        scratch is included: another segment's replay contains it, and it changes when scratch grows."""
        table = self.ready(frame)
        return table.key + (b"" if table.scratch is None else table.scratch.address.to_bytes(8, "little"))

    def launch_all(self, frame: Frame, stream: Any = 0) -> None:
        """Launch every step on a stream of the device."""
        self._launch_steps(self.ready(frame), stream)

    def _launch_steps(self, table: _LaunchTable, stream: Any = 0) -> None:
        for k in range(len(self.steps)):
            self._launch(table, k, stream)

    def launch_one(self, frame: Frame, k: int, stream: Any = 0) -> None:
        self._launch(self.ready(frame), k, stream)

    def _launch(self, table: _LaunchTable, k: int, stream: Any = 0) -> None:
        step = self.steps[k]
        parameters = int(table.parameters.ctypes.data) + 8 * step.words
        for entry, grid, block, shared, waits in table.launches[k]:
            step.device.launch(entry, grid, block, shared, parameters, stream, waits)

    def time(self, frame: Frame, seconds: Any) -> None:
        table = self.ready(frame)
        taken = None if self.silent else table.replays.timed(table.key, self.devices[0])
        if taken is not None:
            for step, duration in zip(self.steps, taken, strict=True):
                seconds[step.index] += duration
            return
        marks = []
        for k, step in enumerate(self.steps):
            start = step.device.mark()
            if not self.silent:                                         # silent: measure the overhead around launches
                self._launch(table, k)
            marks.append((step, start, step.device.mark()))
        for step, start, end in marks:
            seconds[step.index] += step.device.between(start, end)
        if not self.silent and len(self.devices) == 1:
            table.replays.mark(table.key, self.devices[0], [partial(self._launch, table, k) for k in range(len(self.steps))])

    def one(self, frame: Frame, k: int) -> None:
        if not self.silent:
            table = self.ready(frame)
            self.steps[k].device.use()
            self._launch(table, k)

    def scratch(self, frame: Frame) -> list[tuple[Memory, list[tuple[int, int]]]]:
        table = self.ready(frame)
        return [] if table.scratch is None else [(table.scratch, table.pieces)]

    def sizes_changed(self, frame: Frame) -> bool:
        table = self.ready(frame)
        here = HOST.allocate(table.there.nbytes)
        transfer(table.there, here, HOST)
        return bytes(array_view(here, 0, (here.nbytes,), (1,), DTYPES["u8"])) != table.given

    def silence(self) -> Callable[[], None]:
        self.silent = True
        return partial(setattr, self, "silent", False)

    def watch(self, clock: Clock, taken: list[float]) -> Sequence[int]:
        return self.indices


def encoded_maps(device: Device, maps: Sequence[TensorMap], words: np.ndarray, numbers: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the bytes of tensor maps, at a multiple of 64 as drivers and kernels want them. words: the call's argument words;
    numbers: sizes and steps of each array."""
    room = np.zeros(128 * len(maps) + 64, np.uint8)
    begin = -address(room) % 64
    encoded = room[begin:begin + 128 * len(maps)]
    for k, (one, values) in enumerate(zip(maps, numbers, strict=True)):
        rank = len(one.sizes)
        raw = device.tensor_map(one.kind, int(words[one.word]), values[:rank], values[rank:], one.box, one.every)
        encoded[128 * k:128 * (k + 1)] = np.frombuffer(raw, np.uint8)
    return encoded


def _load(device: Device, form: _LaunchForm) -> list[Any]:
    """Return the compiled kernels of a call; they are compiled at the first use."""
    if not form.entries:
        form.entries = [device.entry(form.call.text, launch.entry, launch.shared) for launch in form.call.launches]
    return form.entries
