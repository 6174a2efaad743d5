"""races: memory that remembers who uses its elements and when, so that an access that nothing separates from another is reported.

A unit is one iteration of the vector loops of one thread. Units are numbered: blocks, their threads, their iterations. Two accesses
of one element, not both reads, are apart if one unit does both, or if between them both units were at a barrier of a scope that has
both: a block, a warp, or a thread, which passes one at the begin and at the end of its vector loops.
"""

from __future__ import annotations

import numpy as np

from tensor_graphs.codegen.evaluate import Numbers, StageError
from tensor_graphs.codegen.loop_ir import Array
from tensor_graphs.codegen.loop_program import Place
from tensor_graphs.meaning.algebra import carrier


class Units:
    """The units of one kernel, and the time, which goes on at each barrier. met: when the units of each block and of each warp, and
    those of all threads, have last waited for each other. waited: the threads that know that all earlier kernels are done."""

    def __init__(self, blocks: int, threads: int, lanes: int, warp: int, early: tuple[int, ...]) -> None:
        self.blocks, self.threads, self.lanes, self.warp, self.early = blocks, threads, lanes, warp, early
        self.warps = -(-threads // warp)
        self.time, self.thread_met = 1, 0
        self.block_met, self.warp_met = np.zeros(blocks), np.zeros(blocks * self.warps)
        self.waited = np.zeros(blocks * threads, bool)

    def unordered(self, others: Numbers, when: Numbers, units: Numbers) -> Numbers:
        """Return where an access of another unit (−1: of nobody) at a time may still be running."""
        other, own = others // self.lanes, units // self.lanes
        theirs, ours = other // self.threads, own // self.threads
        warp, mine = (b * self.warps + t % self.threads // self.warp for b, t in ((theirs, other), (ours, own)))
        apart = (others < 0) | (others == units) | ((other == own) & (when < self.thread_met))
        apart |= (theirs == ours) & (when < self.block_met[ours])
        return ~(apart | ((warp == mine) & (when < self.warp_met[mine])))

    def meet(self, threads: Numbers, block: bool) -> None:
        """Let these threads wait for each other: those of a block, or those of a warp. Raises StageError if some are elsewhere."""
        own = threads % self.threads
        starts, counts = np.unique(threads - (own if block else own % self.warp), return_counts=True)
        sizes = np.minimum(self.threads - starts % self.threads, self.threads if block else self.warp)
        if (away := counts != sizes).any():
            raise StageError(f"{counts[away][0]} of {sizes[away][0]} threads are at a barrier")
        self.time += 1
        blocks = starts // self.threads
        if block:
            self.block_met[blocks] = self.time
        else:
            self.warp_met[blocks * self.warps + starts % self.threads // self.warp] = self.time

    def meet_lanes(self) -> None:
        self.thread_met = self.time = self.time + 1

    def named(self, unit: int) -> str:
        thread = unit // self.lanes
        lane = f"lane {unit % self.lanes} of " if self.lanes > 1 else ""
        return f"{lane}thread {thread % self.threads} of block {thread // self.threads}"


class TrackedMemory:
    """A buffer's elements, those of each copy after each other: their contents, whether they are written, by which unit and when in
    this kernel, and the least and the greatest of the units that have read them since they were last apart (high: −1 for nobody),
    and when."""

    def __init__(self, array: Array, place: Place, size: int, copies: int = 1, values: Numbers | None = None) -> None:
        self.array, self.place, self.size = array, place, size
        self.values = np.zeros(size * copies, carrier(array.dtype)) if values is None else values
        self.full = np.full(size * copies, values is not None)

    def begin(self, units: Units, written: bool) -> None:
        """Forget who has used it: a kernel begins. written: whether it writes this memory. Memory of one unit has no races."""
        self.units, self.raced = units, written and (self.place != "register" or units.lanes > 1)
        if self.raced:
            self.writer, self.low, self.high = (np.full(self.full.size, -1) for _ in range(3))
            self.wrote, self.read_at = (np.zeros(self.full.size, np.int64) for _ in range(2))

    def empty(self, offsets: Numbers, units: Numbers) -> Numbers:
        """Return which elements are not written."""
        return ~self.full[self._elements(offsets, units)]

    def lose(self, offsets: Numbers, units: Numbers) -> None:
        """Make elements unwritten."""
        self.full[self._elements(offsets, units)] = False

    def read(self, offsets: Numbers, units: Numbers) -> Numbers:
        """Return the elements that units read. Raises StageError."""
        flat = self._elements(offsets, units)
        early = self.array.role == "operand" and self.array.number in self.units.early
        if self.place == "global" and not early and not (waited := self.units.waited[units // self.units.lanes]).all():
            raise StageError(f"{self.array}[{offsets[~waited][0]}] is read before the wait")
        if (empty := ~self.full[flat]).any():
            raise StageError(f"{self.array}[{offsets[empty][0]}] is read before it is written")
        if self.raced:
            self._apart(flat, units, self.writer, self.wrote, "read", "written")
            self._note(flat, units)
        return self.values[flat]

    def claim(self, offsets: Numbers, units: Numbers) -> Numbers:
        """Note that units write elements, and return where these are. Raises StageError where others use them."""
        flat, own = self._elements(offsets, units), units // self.units.lanes
        if self.place == "global":
            if self.array.role == "operand":
                raise StageError(f"the operand {self.array} is written")
            if not (waited := self.units.waited[own]).all():
                raise StageError(f"{self.array}[{offsets[~waited][0]}] is written before the wait")
            if self.array.role == "output":
                other = self.writer[flat]
                self._report(flat, units, other, (other >= 0) & (other // self.units.lanes != own), "written", "written before")
        self.full[flat] = True
        if self.raced:
            self._apart(flat, units, self.writer, self.wrote, "written", "written")
            for readers in (self.low, self.high):
                self._apart(flat, units, readers, self.read_at, "written", "read")
            self.writer[flat], self.wrote[flat] = units, self.units.time
            self._report(flat, units, self.writer[flat], self.writer[flat] != units, "written", "written")
        return flat

    def _elements(self, offsets: Numbers, units: Numbers) -> Numbers:
        """Return where the elements of the units' own copies are."""
        if (bad := (offsets < 0) | (offsets >= self.size)).any():
            raise StageError(f"{self.array}[{offsets[bad][0]}] is outside of its {self.size} elements")
        own = units // self.units.lanes
        return {"register": own, "shared": own // self.units.threads, "global": 0 * own}[self.place] * self.size + offsets

    def _note(self, flat: Numbers, units: Numbers) -> None:
        """Remember who reads, and who has read before and is not apart from it: a write that is not apart from one of these is not
        apart from the least or the greatest of them."""
        low, high, when = self.low[flat], self.high[flat], self.read_at[flat]
        others = self.units.unordered(low, when, units) | self.units.unordered(high, when, units)
        self.low[flat], self.high[flat] = units, units
        for units_of, where in ((units, flat), (low[others], flat[others])):
            np.minimum.at(self.low, where, units_of)
        for units_of, where in ((units, flat), (high[others], flat[others])):
            np.maximum.at(self.high, where, units_of)
        self.read_at[flat] = self.units.time

    def _apart(self, flat: Numbers, units: Numbers, others: Numbers, when: Numbers, does: str, did: str) -> None:
        self._report(flat, units, others[flat], self.units.unordered(others[flat], when[flat], units), does, did)

    def _report(self, flat: Numbers, units: Numbers, others: Numbers, bad: Numbers, does: str, did: str) -> None:
        if bad.any():
            one, other = (self.units.named(int(x[bad][0])) for x in (units, others))
            raise StageError(f"{self.array}[{flat[bad][0] % self.size}] is {does} by {one} and {did} by {other}")
