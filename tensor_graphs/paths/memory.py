"""memory: the offsets of transient values: greedy by size, in one arena per device. Offsets are functions of the dims.

Buffers that are alive at the same time never share bytes, at any size in range. The placement is found at the largest sizes and
stored as an order (the neighbours that each buffer must be above). At other sizes offsets are evaluated along that order.
Source of the heuristic: greedy by size for offset calculation, Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.devices.device_registry import HOST, device_named
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


@dataclass(frozen=True)
class Interval:
    """A transient buffer of `nbytes` in the arena of `device`, alive from instruction `first` to `last` (both included)."""

    first: int
    last: int
    nbytes: Dim
    label: str = ""
    device: str = HOST.name

    def overlaps(self, other: Interval) -> bool:
        """Return True if the two buffers may not share bytes."""
        return self.device == other.device and self.first <= other.last and other.first <= self.last

    def size(self, binding: Mapping[str, int]) -> int:
        """Return the bytes that the buffer takes in its arena, with alignment."""
        return aligned(int(d.evaluate(self.nbytes, binding)), self.device)


def aligned(nbytes: int, device: str = HOST.name) -> int:
    step = device_named(device).alignment
    return -(-nbytes // step) * step


@dataclass(frozen=True)
class ArenaLayout:
    """Placement of intervals. order: indices, as placed; above[i]: the intervals placed earlier that i must be above."""

    intervals: tuple[Interval, ...]
    order: tuple[int, ...]
    above: tuple[tuple[int, ...], ...]

    def offsets(self, binding: Mapping[str, int], apart: int = 0, shift: int = 0) -> tuple[list[int], dict[str, int]]:
        """Return (byte offset of each interval, bytes of each device's arena) at concrete dims. apart: unused bytes before, between
        and after intervals (a multiple of every alignment); shift: bytes that each offset is moved past its alignment."""
        sizes = [i.size(binding) for i in self.intervals]
        out = [0] * len(sizes)
        total: dict[str, int] = {}
        for i in self.order:
            out[i] = max([apart + shift, *(out[j] + sizes[j] + apart for j in self.above[i])])
            device = self.intervals[i].device
            total[device] = max(total.get(device, 0), out[i] + sizes[i] + apart)
        return out, total

    def largest_live_set(self, binding: Mapping[str, int], device: str = HOST.name) -> tuple[int, list[Interval]]:
        """Return (most bytes alive at one instruction, the intervals alive then): the device's arena has at least these bytes."""
        ours = [(i, i.size(binding)) for i in self.intervals if i.device == device]
        alive = {t: sum(s for i, s in ours if i.first <= t <= i.last) for t in sorted({i.first for i, _ in ours})}
        best = max(alive.values(), default=0)
        at = next((t for t, total in alive.items() if total == best > 0), -1)
        members = [i for i, _ in ours if i.first <= at <= i.last]
        return best, sorted(members, key=lambda i: -int(d.evaluate(i.nbytes, binding)))


def place(intervals: Sequence[Interval], at: Mapping[str, int]) -> ArenaLayout:
    """Lay out the intervals by their sizes at the dims `at` (the largest in use).

    Three greedy orders are tried: by size, by the densest moment and by time. The layout with the smallest arenas is returned.
    """
    sizes = [i.size(at) for i in intervals]
    neighbours = _neighbours(intervals)
    crowd = [sum(sizes[j] for j in neighbours[i]) + sizes[i] for i in range(len(intervals))]
    by_size = sorted(range(len(intervals)), key=lambda i: (-sizes[i], intervals[i].first, i))
    by_crowd = sorted(range(len(intervals)), key=lambda i: (-crowd[i], -sizes[i], i))
    by_time = sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -sizes[i], i))
    layouts = [_greedy(intervals, sizes, neighbours, order) for order in (by_size, by_crowd, by_time)]
    return min(layouts, key=lambda layout: sum(layout.offsets(at)[1].values()))


def _neighbours(intervals: Sequence[Interval]) -> list[list[int]]:
    """Return for each interval the indices of those that it may not share bytes with. Intervals are scanned by their beginnings and
    compared only with those that have not ended."""
    neighbours: list[list[int]] = [[] for _ in intervals]
    alive: list[int] = []
    for i in sorted(range(len(intervals)), key=lambda i: intervals[i].first):
        alive = [j for j in alive if intervals[j].last >= intervals[i].first]
        for j in alive:
            if intervals[i].overlaps(intervals[j]):
                neighbours[i].append(j)
                neighbours[j].append(i)
        alive.append(i)
    return list(map(sorted, neighbours))


def _greedy(intervals: Sequence[Interval], sizes: list[int], neighbours: list[list[int]], order: list[int]) -> ArenaLayout:
    offset: dict[int, int] = {}
    for i in order:
        taken = sorted((offset[j], offset[j] + sizes[j]) for j in neighbours[i] if j in offset)
        at = 0
        for start, end in taken:
            if at + sizes[i] <= start:
                break
            at = max(at, end)
        offset[i] = at
    # Keep "i above j" for every pair alive together; what lies lower at these sizes stays lower at all sizes. Ordering by the
    # end of the lower buffer is a total order (offsets of neighbours differ, or one is empty), so the chain has no cycle.
    final = sorted(range(len(intervals)), key=lambda i: (offset[i], offset[i] + sizes[i], i))
    rank = {i: k for k, i in enumerate(final)}
    above = tuple(tuple(j for j in neighbours[i] if rank[j] < rank[i]) for i in range(len(intervals)))
    return ArenaLayout(tuple(intervals), tuple(final), above)
