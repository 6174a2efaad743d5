"""split_scans: scans of few long rows in parts, whose totals are computed first.

A device takes a scan in one pass over memory, with as many rows at the same time as there are (mapping/running.py). Where these are
few, a nest computes the total of every part but the last, and the scan of a part begins with those before it: memory is read twice,
by everyone. Which is faster follows from the bytes that are moved, and from the turns that a row waits for (devices/target.py).

In: a program with merged axes.  Out: the program with such scans as two nests; only the order of sums changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tensor_graphs.codegen.default_schedule import BY_RULE, Entangled, PartSize, changed, in_chunks, moved, value_in_parts
from tensor_graphs.codegen.loop_ir import SCAN_ADVICE, Array, Axis, Nest, Reduce, Running, Stage, StageProgram, flat
from tensor_graphs.devices.target import HOPPER, Target
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import f32, f64

ROWS, LINES = 4, 1 << 11
"""rows along memory that a multiprocessor takes at the same time, and lines across memory"""

ROW_TURN, LINE_TURN = 1 << 11, 8
"""elements that it takes of each in a turn"""

LEAST = 4
"""least turns of a part"""


def scans_in_parts(program: StageProgram, parts: Mapping[str, int] = BY_RULE) -> StageProgram:
    """Return the program with scans of few long rows cut into parts. parts: elements of a part in place of the rule's, by the name
    of what is computed; 0: uncut.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> print(scans_in_parts(lower_text("input x i32[65536]", "output y = cumsum(x; axis=0)")))
    nest over _j2o in 0..7
        y0p[_j2o] = sum over _j2r in 0..8192 of x0[8192*_j2o + _j2r]
    nest over _j2p in 0..8
        y0b[0] = sum over _j2t in 0.._j2p of y0p[_j2t]
        y0[8192*_j2p + _j2q] = sum of y0b[0] and all up to _j2q of x0[8192*_j2p + _j2q]    over _j2q in 0..8192
    """
    sizes = {name: one.size for name, one in scan_parts(program).items()} | {**parts}
    return program.made_of(piece for nest in program.nests
                           for piece in _cut(program, nest, sizes.get(nest.stages[0].target.name, 0) if _is_scan(nest) else 0))


def scan_parts(program: StageProgram) -> dict[str, PartSize]:
    """Return the parts of each scan that can be cut."""
    return {nest.stages[0].target.name: PartSize(_part(nest, HOPPER), d.bounds(nest.stages[0].axes[0].size)[1])
            for nest in program.nests if _is_scan(nest)}


def _is_scan(nest: Nest) -> bool:
    """Return whether a nest is one scan, along the first axis of its stage."""
    if len(nest.stages) != 1 or nest.blocks is not None or nest.tile is not None:
        return False
    (s,) = nest.stages
    return (s.scan is not None and s.scan.start is None and s.axes[:1] == (s.scan.along,) and s.level == len(nest.axes)
            and not s.target.level)


def _part(nest: Nest, target: Target) -> int:
    """Return the elements of a part of a scan; 0 where one pass takes less time."""
    (s,) = nest.stages
    inner, length = s.axes[1:], d.bounds(s.axes[0].size)[1]
    lines = max(1, d.bounds(d.product(a.size for a in (*nest.axes, *inner)))[0])
    at_once, turn = (LINES, LINE_TURN) if inner else (ROWS, ROW_TURN)
    turns = -(-length // turn)
    parts = min(target.units * at_once // lines, turns // LEAST)
    if parts < 2:
        return 0
    of_part, bytes_read = -(-turns // parts), lines * length * s.value.dtype.itemsize
    once = max(2 * bytes_read / target.bandwidth, turns * target.turn)
    twice = max(3 * bytes_read / target.bandwidth, 2 * of_part * target.turn) + target.launch
    return of_part * turn if twice < once else 0


def _cut(program: StageProgram, nest: Nest, chunk: int) -> list[Nest]:
    """Return a scan as two nests: totals of parts of `chunk` elements, and their scans; [nest] where it stays whole."""
    if chunk == 0:
        return [nest]
    (s,), values = nest.stages, program.values
    assert s.scan is not None and s.monoid is not None
    along, inner, level, name = s.axes[0], s.axes[1:], len(nest.axes) + 1, s.target.name
    cut = value_in_parts(program, s.value, along, chunk)
    try:
        index = in_chunks(along, chunk)[2](s.index)
    except Entangled:
        return [nest]
    if cut is None:
        return [nest]
    part, turns, value = cut
    before, over = Axis(f"{along.name}o", d.dim_max(part.size - 1, 0)), Axis(f"{along.name}r", chunk)
    earlier = Axis(f"{along.name}t", part.symbol)
    at = partial(moved, axis=along, at=before.symbol * chunk + over.symbol)
    summed = changed(values, s.value, at, {along.name}, before.name)
    if s.monoid == "sum" and summed.dtype is f32:
        summed = values.make("cast", f64, summed)
    whole = d.product(a.size for a in inner)
    totals = Array(f"{name}p", "scratch", 0, summed.dtype, d.product(a.size for a in nest.axes) * before.size * whole)
    begun = Array(f"{name}b", "scratch", 0, summed.dtype, whole, level)

    def place(which: Axis) -> d.Dim:
        return (flat(nest.axes) * before.size + which.symbol) * whole + flat(inner)

    names = frozenset(a.name for a in (*nest.axes, part))
    own = flat(inner)
    of_parts = Stage(totals, place(before), inner, summed, level, Reduce((over,), s.monoid), f"{s.note}, of parts")
    begin = Stage(begun, own, inner, values.load(totals, place(earlier)), level, Reduce((earlier,), s.monoid), "before each part")
    running = Running(turns, s.monoid, s.scan.before, values.make("load", summed.dtype, attr=(begun, own, names)))
    scan = Stage(s.target, index, (turns, *inner), value, level, running, s.note, SCAN_ADVICE)
    return [Nest((*nest.axes, before), (of_parts,)), Nest((*nest.axes, part), (begin, scan))]
