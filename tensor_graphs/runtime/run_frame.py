"""run_frame: the tables and arenas that one run uses at a time; a compiled graph keeps a few frames, one per simultaneous run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.devices.device_registry import HOST, device_named

if TYPE_CHECKING:
    from tensor_graphs.runtime.dim_tables import Window
    from tensor_graphs.runtime.executor import Executor

LARGE_ARENA = 1 << 20
"""size in bytes above which an arena is freed when another variant of the plan runs"""


class Frame:
    """The tables and arenas of one run at a time. values: the integer table (dim_tables.py). bases: base -> address. memory: base
    -> Memory (None: host memory of which only the address is set). views: base -> window id -> view that a segment has created;
    dropped when the memory is replaced, or a size changes. rooms: base -> buffer of `room`."""

    def __init__(self, executor: Executor) -> None:
        self.values, self.bases = executor.lookup.table(), executor.lookup.bases()
        self.n_exprs = executor.lookup.n_exprs
        self.memory: list[Memory | None] = [None] * len(self.bases)
        self.arenas: dict[str, Memory] = {}
        self.binding: tuple[int, ...] | None = None
        self.layout_key: tuple[int, ...] | None = None
        self.arena_offsets: list[int] = []
        self.slots = executor.lookup.slots(())              # the arena offsets in the form that `fill` takes
        self.apart = self.shift = 0
        self.views: defaultdict[int, dict[int, Any]] = defaultdict(dict)
        self.shapes: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
        self.rooms: dict[int, Memory] = {}
        self.kept: dict[int, Any] = {}
        """id of a segment -> its data for this frame"""
        self.states: object | None = None
        """`Session.places` of the session whose states' addresses are in the tables"""
        self.bound = -1                                     # the executor's `bound` whose values are in the tables
        self._arena_bases = executor.lookup.arenas
        self.sizes: Mapping[str, int] = {}
        self.call: Callable[[], int] | None = executor.native_call(self)

    def spread(self, apart: int, shift: int = 0) -> None:
        """Leave gaps of `apart` bytes around all buffers in arenas and scratch, and shift buffers in arenas by `shift` bytes off
        their alignment (`ArenaLayout.offsets`)."""
        if (apart, shift) != (self.apart, self.shift):
            self.apart, self.shift = apart, shift
            self.layout_key = self.binding = None

    def set_base(self, base: int, memory: Memory) -> None:
        self.memory[base] = memory
        self.bases[base] = memory.address if memory.nbytes else 0
        self.views.pop(base, None)

    def room(self, base: int, device: Device, nbytes: int) -> Memory:
        """Return a buffer on a device for a caller's array on another one; later runs reuse it where it is large enough."""
        held = self.rooms.get(base)
        if held is None or held.nbytes < nbytes:
            self.rooms.pop(base, None)                                # free before growing
            held = self.rooms[base] = device.allocate(nbytes)
        return held if held.nbytes == nbytes else device.part(held, 0, nbytes)

    def let_go(self, bases: Iterable[int]) -> None:
        """Drop the references to the memory at these bases, so that it may be freed; the addresses stay until they are replaced."""
        for base in bases:
            self.memory[base] = None
            self.views.pop(base, None)

    def shape_of(self, w: Window) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Return (offset in bytes, shape, strides in elements) of an operand at the sizes of this frame."""
        shape_and_strides = self.shapes.get(id(w))
        if shape_and_strides is None:
            values = self.values
            shape, strides = (tuple(int(values[i]) for i in numbers) for numbers in (w.shape, w.strides))
            shape_and_strides = self.shapes[id(w)] = int(values[self.n_exprs + w.pointer]), shape, strides
        return shape_and_strides

    def give_arenas(self, needed: Mapping[str, int]) -> None:
        """Allocate an arena of the needed bytes on each device; an arena that is large enough, and up to 4 times that, is kept."""
        for device, nbytes in needed.items():
            held = self.arenas.get(device)
            if held is None or nbytes > held.nbytes or nbytes < held.nbytes // 4:
                self._drop(device)                                    # free before growing: never two arenas at once
                held = None
                door = device_named(device)
                door.require(nbytes, "the memory for what this run computes in between", "smaller sizes (plan.memory says more)")
                self.arenas[device] = door.allocate(nbytes)
                self.set_base(self._arena_bases[device], self.arenas[device])

    @property
    def arena(self) -> Memory:
        """The arena on the host; empty memory if there is none."""
        return self.arenas.get(HOST.name) or HOST.allocate(0)

    def release_large(self) -> None:
        """Free arenas of more than LARGE_ARENA bytes."""
        for device in [name for name, memory in self.arenas.items() if memory.nbytes > LARGE_ARENA]:
            self._drop(device)

    def _drop(self, device: str) -> None:
        if self.arenas.pop(device, None) is not None:
            self.memory[self._arena_bases[device]] = None
            self.views.pop(self._arena_bases[device], None)
            self.layout_key = self.binding = None
