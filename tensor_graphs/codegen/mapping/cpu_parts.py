"""cpu_parts: how a nest is cut into parts for the threads of a CPU, and the scratch that a program takes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import takewhile

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, computed_in, parallel, values_in
from tensor_graphs.codegen.loop_program import is_number
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

TILE = 1 << 12
"""elements of a block of a nest in tiles"""


def is_shared_out(nest: Nest) -> bool:
    """Return whether a nest has several iterations for threads to share."""
    return split(nest)[0] != 1


def split(nest: Nest) -> tuple[Dim, int, int]:
    """Return (number of items to divide among threads, the granularity of parts, element steps per item)."""
    n = parallel(nest)
    if nest.tile is not None:
        cut, other = tiles_of(nest, nest.tile)
        turns = d.product(a.size for a in nest.axes if a is not nest.tile) * tiles_along(nest, cut)
        return turns, 1, sides(nest)[cut] * _most((other,)) * len(nest.stages)
    if nest.axes:
        turns = d.product(a.size for a in nest.axes[:n])
        return turns, 1, 1 + sum(_most((*nest.axes[n:s.level], *nest.loops(s))) for s in nest.stages)
    axes, scan = nest.stages[0].axes, nest.stages[0].scan
    if len({(s.axes, s.scan and (s.scan.along, s.scan.before, s.scan.start)) for s in nest.stages}) > 1:
        return 1, 1, 1
    if scan is not None:                                        # the scanned axis stays in one piece, and is walked in order
        free = tuple(a for a in axes if a != scan.along)
        axes = (*free, scan.along) if free else ()
    if not axes:
        return 1, 1, 1
    work = _most((*axes[1:], *nest.stages[0].reduce)) * max(map(_steps, nest.stages))
    return axes[0].size, 64 if len(axes) == 1 + (scan is not None) else 1, max(1, work)


def _most(axes: Iterable[Axis]) -> int:
    """Return the most iterations of nested loops; the size of an axis may depend on outer axes."""
    return math.prod(d.bounds(a.size)[1] for a in axes)


def _steps(s: Stage) -> int:
    """Return the steps of one element. An exponential is 8, in f64 16 (a separate thread pays from 2048 and 1024 of them on)."""
    return max((2 * computed_in(v.dtype).itemsize for v in values_in(*s.roots()) if v.op in DEAR), default=1)


def beside(program: StageProgram, i: int) -> list[int]:
    """Return the numbers of the nests that run concurrently with nest i."""
    return list(takewhile(lambda k: program.nests[k].advice.beside, range(i + 1, len(program.nests))))


# ---- tiles -----------------------------------------------------------------------------------------------------------------------


def tiles_of(nest: Nest, outer: Axis) -> tuple[Axis, Axis]:
    """Return the two axes of a nest's tiles: the longer one, which is divided among threads, and the other."""
    (inner,) = nest.stages[0].axes
    return (outer, inner) if d.bounds(outer.size)[1] >= d.bounds(inner.size)[1] else (inner, outer)


def sides(nest: Nest) -> dict[Axis, int]:
    """Return the iterations of a tile along each of its two axes."""
    (inner,), outer = nest.stages[0].axes, nest.tile
    assert outer is not None
    return {outer: nest.advice.tile, inner: TILE // nest.advice.tile}


def tiles_along(nest: Nest, axis: Axis) -> Dim:
    """Return the tiles along an axis; along that which is read contiguously there may be one more, as the first may be shorter."""
    side = sides(nest)[axis]
    return d.ceil_div(axis.size + (side - 1 if axis is nest.tile else 0), side)


# ---- scratch ---------------------------------------------------------------------------------------------------------------------


def scratch_bytes(program: StageProgram) -> tuple[Dim, Dim]:
    """Return the scratch bytes that the program requests from the pool: one block for all threads, and one for each thread."""
    own = [x for x in program.scratch if x.level and not is_number(x)]
    return sum(padded_bytes(x) for x in program.scratch if x.level == 0), sum(map(padded_bytes, own))


def padded_bytes(array: Array) -> Dim:
    """Return the bytes of an array of scratch, up to the end of its last line."""
    return d.ceil_div(array.size * computed_in(array.dtype).itemsize, 64) * 64
