"""choices: what the form of a GPU kernel decides about a nest, as data.

The form of a nest (map_loops.py) has a rule for each number, `seed`, and says which other numbers it can map, `why_not`. A schedule
(cuda_schedule.py) replaces single numbers. The texts of other numbers differ in speed and in the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tensor_graphs.devices.target import Target


@dataclass(frozen=True)
class NestChoices:
    """The numbers that a form decides; 0 where it has no such choice.

    pack: elements of one access to memory. warps: warps of a block, or threads that share the rows of columns. packs: packs of a
    thread, one after the other. ahead: rows or elements of a line that a thread loads before it combines them. side: elements of a
    side of a square that is transposed. across: elements of a pack along its other axis. threads: threads that share an iteration
    of the outer axes. rows: such iterations of a block. held: most packs of a row that a thread keeps in registers, where the loop
    over it is unrolled. early: blocks of a multiprocessor that prefetch before they wait, plus one. columns: columns of a weight
    for a warp. taken: steps of a row of a weight whose packs are loaded before they are used. splits: warps that share a row of a
    weight. resident: blocks of a multiprocessor, for which registers are left."""

    pack: int = 0
    warps: int = 0
    packs: int = 0
    ahead: int = 0
    side: int = 0
    across: int = 0
    threads: int = 0
    rows: int = 0
    held: int = 0
    early: int = 0
    columns: int = 0
    taken: int = 0
    splits: int = 0
    resident: int = 0

    def items(self) -> list[tuple[str, int]]:
        """Return the choices that the form has."""
        return [(f.name, size) for f in fields(self) if (size := getattr(self, f.name))]


SIZES: Mapping[str, tuple[int, ...]] = {
    "pack": (1, 2, 4, 8, 16), "warps": (1, 2, 4, 8, 16, 32), "packs": (1, 2, 4, 8), "ahead": (1, 2, 4, 8, 16, 32),
    "side": (8, 16, 32, 64, 128), "across": (1, 2, 4, 8), "threads": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "rows": (1, 2, 4, 8, 16, 32, 64, 128), "held": (1, 2, 4, 8, 16, 32), "early": (1, 3, 5, 9, 17), "columns": (1, 2, 4, 8),
    "taken": (1, 2, 3, 4, 6, 8, 12), "splits": (1, 2, 4, 8, 16), "resident": (1, 2, 3, 4)}
"""the numbers that a search tries"""


def why_no_block(threads: int, target: Target) -> str | None:
    """Return why a block cannot have this number of threads; None where it can."""
    if threads > target.threads:
        return f"a block has at most {target.threads} threads"
    return None if threads % target.warp == 0 else f"a block is whole warps of {target.warp} threads"
