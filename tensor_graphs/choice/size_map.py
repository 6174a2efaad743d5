"""size_map: divide a box of sizes into cells with one winning alternative each, from costs at some sizes.

Costs are known at samples: sizes on each axis, in all combinations or most. The winner of each sample is given. Between two samples
with different winners bisection finds the border, where their costs cross. With several axes, the winners where borders meet are
computed too. A tree then cuts the box: the cell that loses most comes first, by the cut that leaves the least disorder. Each sample
thus gets its own winner (within MOST cells).

No measurements exist between samples, so costs there are interpolated from the samples around (`Between`): powers of each size.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from tensor_graphs.choice.size_samples import Index
from tensor_graphs.paths.size_cells import Cell

Sizes = tuple[int, ...]
"""one size for each axis"""

CostAt = Callable[[int, Sizes], float]
"""function from a winner and sizes to the cost"""

MOST = 12
"""most cells of a table"""

LITTLE = 0.1
"""logarithm of the factor by which a cell's choice may exceed the cheapest between samples before the cell is cut"""

def cells_of(box: Cell, axes: Sequence[Sequence[int]], winners: Mapping[Index, int], cost: CostAt) -> list[tuple[Cell, int]]:
    """Return the box as cells with one winner each, in order of their lowest sizes. winners: of the samples that were costed; other
    samples follow their neighbours. On one axis a border is where costs cross: the table is exact if they cross once between two
    samples. With several axes borders are parallel to the axes, and near to where costs cross."""
    points = {tuple(axis[i] for axis, i in zip(axes, index, strict=True)): winner for index, winner in winners.items()}
    if len(axes) > 1:
        points |= _where_borders_meet(points, cost)
    sampled = frozenset(tuple(axis[i] for axis, i in zip(axes, index, strict=True)) for index in winners)
    whole = _Leaf(box, points, sampled, cost)
    heap, tie, cells = [(-whole.lost, 0, whole)], itertools.count(1), list[tuple[Cell, int]]()
    while heap:
        _, _, leaf = heapq.heappop(heap)
        if leaf.whole or len(heap) + len(cells) + 1 >= MOST:
            cells.append((leaf.cell, leaf.winner))
            continue
        axis, last, first, rows = min(_cuts(leaf.points), key=lambda cut: (_disorder(leaf.points, *cut[:2]), -len(cut[3]), cut[:2]))
        name, low, high = leaf.cell.ranges[axis]
        at = _border(axis, last, first, rows, cost)
        for ends in ((low, at - 1), (at, high)):
            cell = Cell((*leaf.cell.ranges[:axis], (name, *ends), *leaf.cell.ranges[axis + 1:]))
            part = _Leaf(cell, {x: w for x, w in leaf.points.items() if ends[0] <= x[axis] <= ends[1]}, sampled, cost)
            heapq.heappush(heap, (-part.lost, next(tie), part))
    return sorted(_merged(cells), key=lambda entry: [low for _, low, _ in entry[0].ranges])


class _Leaf:
    """A cell with the points in it, the winner that loses least if it is used in the entire cell, and its loss. whole: cutting the
    cell gains nothing."""

    def __init__(self, cell: Cell, points: Mapping[Sizes, int], sampled: Collection[Sizes], cost: CostAt) -> None:
        self.cell, self.points = cell, points
        ways = sorted({w for x, w in points.items() if x in sampled} or set(points.values()))
        lost = {way: [_ratio(cost, way, w, x) for x, w in points.items() if w != way] for way in ways}
        self.winner = min(ways, key=lambda way: sum(lost[way]))
        self.lost = sum(lost[self.winner])
        self.whole = len(ways) == 1 and max(lost[self.winner], default=0.0) < LITTLE


Row = tuple[Sizes, int, Sizes, int]
"""two neighbouring points on a line along an axis, each followed by its winner"""


def _rows(points: Mapping[Sizes, int], axis: int) -> Iterator[Row]:
    """Yield the pairs of neighbours along an axis whose winners differ."""
    lines: dict[Sizes, list[Sizes]] = {}
    for x in sorted(points):
        lines.setdefault((*x[:axis], *x[axis + 1:]), []).append(x)
    for line in lines.values():
        yield from ((x, points[x], y, points[y]) for x, y in itertools.pairwise(line) if points[x] != points[y])


def _where_borders_meet(points: Mapping[Sizes, int], cost: CostAt) -> dict[Sizes, int]:
    """Return winners for new points: the grid of all samples and both sides of each border. Only winners of samples compete; points
    that samples do not surround are left out."""
    axes = [sorted({x[axis] for x in points}) for axis in range(len(next(iter(points))))]
    finer = []
    for axis, sizes in enumerate(axes):
        borders = [_crossing(axis, row, cost) for row in _rows(points, axis)]
        finer.append(sorted({*sizes, *borders, *(at - 1 for at in borders)}))
    ways = sorted(set(points.values()))
    inner = {}
    for x in itertools.product(*finer):
        around = itertools.product(*((max(s for s in sizes if s <= at), min(s for s in sizes if s >= at))
                                     for sizes, at in zip(axes, x, strict=True)))
        if x not in points and all(corner in points for corner in around):
            inner[x] = min(ways, key=lambda way: cost(way, x))
    return inner


def _cuts(points: Mapping[Sizes, int]) -> Iterator[tuple[int, int, int, list[Row]]]:
    """Yield (axis, last size before the cut, first size after it, rows whose winners change there). Where no winner changes along
    any axis, since samples are missing, yield all cuts with points on both sides."""
    dims = len(next(iter(points)))
    cuts: dict[tuple[int, int, int], list[Row]] = {}
    for axis in range(dims):
        for row in _rows(points, axis):
            cuts.setdefault((axis, row[0][axis], row[2][axis]), []).append(row)
    for key, rows in cuts.items():
        yield (*key, rows)
    if not cuts:
        for axis in range(dims):
            for last, first in itertools.pairwise(sorted({x[axis] for x in points})):
                yield axis, last, first, []


def _disorder(points: Mapping[Sizes, int], axis: int, last: int) -> float:
    """Return the Gini impurity of the two sides of a cut, weighted by their points: 0 where each side has one winner."""
    total = 0.0
    for side in ([w for x, w in points.items() if x[axis] <= last], [w for x, w in points.items() if x[axis] > last]):
        total += len(side) - sum(n * n for n in Counter(side).values()) / len(side)
    return total


def _ratio(cost: CostAt, way: int, other: int, at: Sizes) -> float:
    """Return the logarithm of the ratio of two winners' costs."""
    one, two = (max(min(cost(winner, at), 1e30), 1e-30) for winner in (way, other))
    return math.log(one / two)


def _crossing(axis: int, row: Row, cost: CostAt) -> int:
    """Return the first size at which the winner of the row's upper point costs less."""
    x, a, y, b = row
    low, high = x[axis], y[axis]
    while high - low > 1:
        at = (low + high) // 2
        low, high = (low, at) if _ratio(cost, a, b, (*x[:axis], at, *x[axis + 1:])) >= 0.0 else (at, high)
    return high


def _border(axis: int, last: int, first: int, rows: Sequence[Row], cost: CostAt) -> int:
    """Return the first size on the upper side of a cut: the mean of the rows' crossings, weighted by how fast their cost ratios
    change."""
    if not rows:
        return math.isqrt(last * first) + 1
    middle = weights = 0.0
    for row in rows:
        x, a, y, b = row
        weight = max(_ratio(cost, a, b, y) - _ratio(cost, a, b, x), 1e-9)
        middle, weights = middle + weight * math.log1p(_crossing(axis, row, cost)), weights + weight
    return max(last + 1, min(first, round(math.expm1(middle / weights))))


class Between:
    """Costs at any sizes, interpolated from samples: between two samples a power of the size, beyond the last constant. The cost of
    a missing sample follows from its neighbours."""

    def __init__(self, axes: Sequence[Sequence[int]], cost: CostAt, samples: Collection[Index]) -> None:
        """cost: of a winner at the sizes of a sample; inf where it cannot be used there."""
        self.axes, self.cost, self.samples = axes, cost, frozenset(samples)
        self._logs: dict[tuple[int, Index], float] = {}

    def __call__(self, way: int, at: Sizes) -> float:
        ends = []
        for axis, size in zip(self.axes, at, strict=True):
            above = min(max(bisect.bisect_left(axis, size), 0), len(axis) - 1)
            if axis[above] <= size or above == 0:
                ends.append([(above, 1.0)])
                continue
            low, high, here = (math.log(max(x, 0.5)) for x in (axis[above - 1], axis[above], size))
            share = (here - low) / (high - low)
            ends.append([(above - 1, 1.0 - share), (above, share)])
        return math.exp(sum(self._log(way, tuple(i for i, _ in corner)) * math.prod(share for _, share in corner)
                            for corner in itertools.product(*ends)))

    def _log(self, way: int, index: Index) -> float:
        if (way, index) not in self._logs:
            if index in self.samples:
                sizes = tuple(axis[i] for axis, i in zip(self.axes, index, strict=True))
                value = math.log(max(min(self.cost(way, sizes), 1e30), 1e-30))
            else:                                                   # as if the axes' shares of it were factors
                up = [axis for axis, i in enumerate(index) if i > 0]
                below = tuple(i - (axis in up) for axis, i in enumerate(index))
                steps = [tuple(i - (axis == moved) for axis, i in enumerate(index)) for moved in up]
                value = self._log(way, steps[0]) if len(up) == 1 else (
                    sum(self._log(way, step) for step in steps) - self._log(way, below)) / (len(up) - 1)
            self._logs[way, index] = value
        return self._logs[way, index]


def _merged(cells: Sequence[tuple[Cell, int]]) -> list[tuple[Cell, int]]:
    """Merge adjacent cells with equal winners."""
    left = list(cells)
    for _ in cells:
        pair = next(((x, y, cell) for x, y in itertools.combinations(left, 2)
                     if x[1] == y[1] and (cell := x[0].joined(y[0])) is not None), None)
        if pair is None:
            break
        left = [entry for entry in left if entry is not pair[0] and entry is not pair[1]] + [(pair[2], pair[0][1])]
    return left
