"""memory: which bytes each transient value gets. Greedy by size into one arena; offsets stay functions of the dims.

Buffers that are alive together never share bytes, at any size in range: the placement is found at the largest sizes and kept as
an order ("above which of my neighbours do I lie"); for other sizes offsets are evaluated along that order.
Source of the heuristic: greedy by size for offset calculation, Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
Net Inference", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

ALIGNMENT = 64
"""bytes: a cache line, and the widest vector"""


@dataclass(frozen=True)
class Interval:
    """A transient buffer: alive from instruction `first` to `last` (both included), `nbytes` long."""

    first: int
    last: int
    nbytes: Dim
    label: str = ""

    def overlaps(self, other: Interval) -> bool:
        return self.first <= other.last and other.first <= self.last


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class ArenaLayout:
    """Where each interval lies. order: placement order; above[i]: the intervals (placed earlier) that i must lie above."""

    intervals: tuple[Interval, ...]
    order: tuple[int, ...]
    above: tuple[tuple[int, ...], ...]

    def offsets(self, binding: Mapping[str, int]) -> tuple[list[int], int]:
        """(byte offset of each interval, size of the arena) at concrete dims."""
        sizes = [aligned(int(d.evaluate(i.nbytes, binding))) for i in self.intervals]
        out = [0] * len(sizes)
        total = 0
        for i in self.order:
            at = 0
            for j in self.above[i]:
                end = out[j] + sizes[j]
                if end > at:
                    at = end
            out[i] = at
            total = max(total, at + sizes[i])
        return out, total

    def largest_live_set(self, binding: Mapping[str, int]) -> tuple[int, list[Interval]]:
        """The lower bound of any arena: the most bytes alive at one instruction, and what is alive there."""
        sizes = [aligned(int(d.evaluate(i.nbytes, binding))) for i in self.intervals]
        best, at = 0, -1
        for t in sorted({i.first for i in self.intervals}):
            alive = sum(s for i, s in zip(self.intervals, sizes, strict=True) if i.first <= t <= i.last)
            if alive > best:
                best, at = alive, t
        members = [i for i in self.intervals if i.first <= at <= i.last]
        return best, sorted(members, key=lambda i: -int(d.evaluate(i.nbytes, binding)))


def place(intervals: Sequence[Interval], at: Mapping[str, int]) -> ArenaLayout:
    """Lay out the intervals, judging sizes at the dims `at` (the largest in use).

    Two greedy orders are tried, by size and by the densest moment first; the smaller arena wins.
    """
    sizes = [aligned(int(d.evaluate(i.nbytes, at))) for i in intervals]
    neighbours = [[j for j, other in enumerate(intervals) if j != i and me.overlaps(other)] for i, me in enumerate(intervals)]
    crowd = [sum(sizes[j] for j in neighbours[i]) + sizes[i] for i in range(len(intervals))]
    by_size = sorted(range(len(intervals)), key=lambda i: (-sizes[i], intervals[i].first, i))
    by_crowd = sorted(range(len(intervals)), key=lambda i: (-crowd[i], -sizes[i], i))
    by_time = sorted(range(len(intervals)), key=lambda i: (intervals[i].first, -sizes[i], i))
    layouts = [_greedy(intervals, sizes, neighbours, order) for order in (by_size, by_crowd, by_time)]
    return min(layouts, key=lambda layout: layout.offsets(at)[1])


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
