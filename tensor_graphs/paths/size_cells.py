"""size_cells: the box of sizes that a plan serves, divided into cells with one path each. Bisection finds the cell of given sizes.

    cells = Cells((Cell.of({"b": (1, 1), "n": (1, 512)}), Cell.of({"b": (2, 64), "n": (1, 512)})))
    cells.index({"b": 8, "n": 100})                                 # 1
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_CELLS = 64
"""Largest number of cells in a box."""

MOST_DIMS = 3
"""Largest number of dims of a box."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-"


@dataclass(frozen=True)
class Cell:
    """A range of sizes for each of some dims, ends included; without dims, all sizes. ranges: (dim, lowest, highest) of each."""

    ranges: tuple[tuple[str, int, int], ...] = ()

    @staticmethod
    def of(ranges: Mapping[str, tuple[int, int]]) -> Cell:
        return Cell(tuple((name, low, high) for name, (low, high) in ranges.items()))

    def __str__(self) -> str:
        return ", ".join(f"{name} = {_span(low, high)}" for name, low, high in self.ranges)

    @property
    def where(self) -> str:
        """Start of a line about the cell, as "n = 1..4: "; "" for a cell of all sizes."""
        return f"{self}: " if self.ranges else ""

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.ranges)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Return True if the cell contains these sizes. A dim that is not in `sizes` may have any size."""
        return all(low <= sizes[name] <= high for name, low, high in self.ranges if name in sizes)

    def distance(self, sizes: Mapping[str, int]) -> float:
        """Return 0 for sizes in the cell; else the sum over dims of |log| of the factor from the size to the cell's border."""
        return sum(abs(math.log((sizes[name] + 1) / (min(max(sizes[name], low), high) + 1))) for name, low, high in self.ranges)

    def meet(self, other: Cell) -> Cell | None:
        """Return the intersection of two cells with equal dims; None where it is empty."""
        theirs = {name: (low, high) for name, low, high in other.ranges}
        both = Cell(tuple((name, max(low, theirs[name][0]), min(high, theirs[name][1])) for name, low, high in self.ranges))
        return both if all(low <= high for _, low, high in both.ranges) else None

    def largest(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the given sizes, each moved into the cell: the largest of the cell that is not larger, or the cell's lowest."""
        return {**sizes, **{name: max(low, min(high, sizes[name])) for name, low, high in self.ranges}}

    def joined(self, other: Cell) -> Cell | None:
        """Return the union of two cells if it is a cell (they are adjacent along one dim and equal in the others), else None."""
        apart = [i for i, (a, b) in enumerate(zip(self.ranges, other.ranges, strict=True)) if a != b]
        if len(apart) != 1:
            return None
        a, b = sorted((self.ranges[apart[0]], other.ranges[apart[0]]), key=lambda r: r[1])
        if a[2] + 1 != b[1]:
            return None
        return Cell((*self.ranges[:apart[0]], (a[0], a[1], b[2]), *self.ranges[apart[0] + 1:]))

    def to_json(self) -> dict[str, list[int]]:
        return {name: [low, high] for name, low, high in self.ranges}


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"


class Cells:
    """Cells that fill a box. Raises ValueError for a gap, an overlap, cells with different dims, or too many cells or dims."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells, self.dims = tuple(cells), cells[0].dims
        if len(cells) > MOST_CELLS or len(self.dims) > MOST_DIMS or len(set(self.dims)) < len(self.dims):
            raise ValueError(f"{len(cells)} cells over the dims {', '.join(self.dims) or '(none)'}: at most {MOST_CELLS} over "
                             f"{MOST_DIMS} different ones")
        if any(c.dims != self.dims for c in cells):
            raise ValueError("its cells are of different dims")
        if not self.dims and len(cells) > 1:
            raise ValueError(f"{len(cells)} paths, and no dim that says which")
        if any(low > high for c in cells for _, low, high in c.ranges):
            raise ValueError(f"its cells do not fill a box: {self._listed()}")
        self.starts = tuple(tuple(sorted({low for low, _ in axis} | {high + 1 for _, high in axis}))[:-1]
                            for axis in ([c.ranges[i][1:] for c in cells] for i in range(len(self.dims))))
        """Lowest sizes of cells along each axis, in order."""
        self._steps = tuple(math.prod(len(s) for s in self.starts[i + 1:]) for i in range(len(self.dims)))
        grid = [-1] * math.prod(len(s) for s in self.starts)
        for number, cell in enumerate(cells):
            inside = ([i for i, start in enumerate(starts) if low <= start <= high]
                      for starts, (_, low, high) in zip(self.starts, cell.ranges, strict=True))
            for place in itertools.product(*inside):
                at = sum(i * step for i, step in zip(place, self._steps, strict=True))
                if grid[at] >= 0:
                    raise ValueError(f"its cells overlap: {self._listed()}")
                grid[at] = number
        if -1 in grid:
            raise ValueError(f"its cells do not fill a box: {self._listed()}")
        self._grid = tuple(grid)

    def _listed(self) -> str:
        return "; ".join(map(str, self.cells))

    @property
    def box(self) -> Cell:
        """The box that the cells fill."""
        return Cell(tuple((name, starts[0], max(c.ranges[i][2] for c in self.cells))
                          for i, (name, starts) in enumerate(zip(self.dims, self.starts, strict=True))))

    def index(self, sizes: Mapping[str, int]) -> int:
        """Return the number of the cell that contains these sizes, or of one at the border for sizes outside of the box."""
        return self._grid[sum(max(0, bisect_right(starts, sizes[name]) - 1) * step
                              for name, starts, step in zip(self.dims, self.starts, self._steps, strict=True))]

    @property
    def pictured(self) -> bool:
        """True where `map` returns a picture: for several cells over two dims."""
        return len(self.dims) == 2 and len(self.cells) > 1

    def where(self, cell: Cell) -> str:
        """Return the start of a line about a cell: its letter in the picture, if there is one, and its sizes."""
        return f"{LETTERS[self.cells.index(cell)]}: {cell.where}" if self.pictured else cell.where

    def map(self) -> list[str]:
        """Return the lines of a picture of cells over two dims: a letter for each cell, the first dim downwards. Else return [].

        >>> cells = Cells((Cell.of({"b": (1, 1), "n": (1, 64)}), Cell.of({"b": (2, 8), "n": (1, 64)})))
        >>> print(*cells.map(), sep="\\n")
                  n = 1..64
           b = 1  A
        b = 2..8  B
        """
        if not self.pictured:
            return []
        down, across = ([f"{name} = {_span(low, high - 1)}" for low, high in itertools.pairwise((*starts, most + 1))]
                        for starts, (name, _, most) in zip(self.starts, self.box.ranges, strict=True))
        width = max(map(len, down))
        rows = ["  ".join([" " * width, *across]).rstrip()]
        for i, head in enumerate(down):
            letters = (LETTERS[self._grid[i * self._steps[0] + j]].ljust(len(text)) for j, text in enumerate(across))
            rows.append("  ".join([head.rjust(width), *letters]).rstrip())
        return rows
