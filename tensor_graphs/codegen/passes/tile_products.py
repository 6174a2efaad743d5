"""tile_products: run nests of products of two operands by register tiles (kernels/c/gemm.h), in C.

    nest over i in 0..m, j in 0..n                  nest over jp in 0..ceil(n / 32), ip in 0..ceil(m / 112)
        y[i, j] = sum over r of a[i, r] · b[r, j] →     p[r, q] = b[r, 32 jp + q]    over r, q in 0..32    in 1 axis
                                                        t[i, q] = sum over r of a[112 ip + i, r] · p[r, q]
                                                        y[112 ip + i, 32 jp + q] = t[i, q]

One factor is packed into a panel with the lanes of a tile; what it is (a padded window of an image, a number of f16 with a scale)
is computed once for each panel. The other one is read where it lies, or copied for a block of rows. The stages that follow the
product, such as a bias and an activation, run on a block of its sums while that is in the first-level cache.

In: a program with merged axes.  Out: the program with such nests; only the order of sums changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

from tensor_graphs.codegen.default_schedule import Entangled, changed, moved, reloaded
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, Value, Values, dim_of, flat, values_in
from tensor_graphs.codegen.passes.divide_axes import digits_of, in_digits
from tensor_graphs.codegen.passes.split_at_conditions import Limits, limits, margin
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

BLOCK_BYTES = 1 << 18
"""most bytes of a copied block of rows"""

MOST_INNER = 1 << 15
"""most elements of a sum, whose panel has to fit into a cache"""

FEW_PANELS = 4
"""panels below which threads share rows, too, and pack once more for each part of them"""

MOVED, GATHERED = 0.15, 1.0
"""steps of a tile that moving an element takes, along memory and across it"""


def tiled(program: StageProgram, dtype: DType, lanes: int, rows: int, tiles: int) -> StageProgram:
    """Return the program with its products of a dtype by register tiles of `lanes` × `rows` elements, in blocks of `tiles` tiles.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> from tensor_graphs.language.dtypes import f32
    >>> program = lower_text("input a f32[30, 64]", "input b f32[64, 48]", "output y = relu(a @ b)")
    >>> print(program)
    nest over _i0 in 0..30, _i1 in 0..48
        t1[0] = sum over _r2 in 0..64 of (x0[64*_i0 + _r2] * x1[_i1 + 48*_r2])
        y0[48*_i0 + _i1] = max(t1[0], 0.0)
    >>> print(tiled(program, f32, 16, 5, 3))  # doctest: +ELLIPSIS
    nest over _i1p in 0..3, _i0p in 0..3
        t1b[_i1q + 16*_r2] = x1[16*_i1p + _i1q + 48*_r2]    over _r2 in 0..64, _i1q in 0..16
        t1t[16*_i0q + _i1w] = sum over _r2 in 0..64 of (x0[640*_i0p + 64*_i0q + _r2] * t1b[_i1w + 16*_r2])    over ...
        y0[480*_i0p + 48*_i0q + 16*_i1p + _i1q] = max(t1t[16*_i0q + _i1q], 0.0)    over ...
    """
    if program.gathered:
        return program
    return program.made_of(_tiled(program, nest, dtype, (lanes, rows, tiles)) or nest for nest in program.nests)


def _tiled(program: StageProgram, nest: Nest, dtype: DType, tile: tuple[int, int, int]) -> Nest | None:
    """Return a nest by tiles; None where it has no product, or does not have the form."""
    stages = [s for s in (_of_each_turn(program, nest, s) for s in nest.stages) if s is not None and _fits(s, dtype)]
    if nest.blocks is not None or len(stages) < len(nest.stages) or not any(s.reduce for s in stages):
        return None
    axes, stages = _in_digits(program, nest.axes, stages)
    ways = (_NestByTiles(program.values, axes, stages, row, lane, tile) for row, lane in permutations(axes, 2))
    best = min((way for way in ways if way.possible()), key=lambda way: way.steps(), default=None)
    try:
        return None if best is None else best.made()
    except Entangled:
        return None


def _in_digits(program: StageProgram, axes: tuple[Axis, ...], stages: list[Stage]) -> tuple[tuple[Axis, ...], list[Stage]]:
    """Return the axes of a nest as digits where products divide them, and the stages in these."""
    for axis in axes:
        digits = digits_of(axis, (x for s in stages if s.reduce for v in values_in(s.value) if (x := dim_of(v)) is not None))
        if len(digits) > 1:
            at = axes.index(axis)
            axes = (*axes[:at], *digits, *axes[at + 1:])
            stages = [replace(in_digits(program, s, axis, digits), level=len(axes)) for s in stages]
    return axes, stages


def _of_each_turn(program: StageProgram, nest: Nest, s: Stage) -> Stage | None:
    """Return a stage as one of each turn of the nest: also where it computes a row of numbers, of which each turn reads its own."""
    axes = tuple(a for a in s.axes if a.symbol != 0)
    if s.level == len(nest.axes):
        return s if not axes else None
    if len(axes) != 1 or s.level != len(nest.axes) - 1 or s.index != axes[0].symbol or axes[0].size != nest.axes[-1].size:
        return None
    at = nest.axes[-1].symbol
    reads = values_in(*(root for other in nest.stages for root in other.roots()))
    if s.target.role != "scratch" or any(v.op == "load" and v.attr[0] == s.target and v.attr[1] != at for v in reads):
        return None
    own = {axes[0].name: at}
    return s.with_roots(lambda v: changed(program.values, v, lambda x: d.substitute(x, own), frozenset(), ""),
                        index=0, axes=(), level=len(nest.axes))


def _fits(s: Stage, dtype: DType) -> bool:
    """Return whether a stage stores one number, or is a product of two factors of a dtype."""
    if s.scan is not None or s.held or (s.target.role == "scratch" and s.target.level == 0):
        return False
    if not s.reduce:
        return s.monoid is None
    inner = s.reduce[0].size
    if any(v.attr[0].level for v in values_in(s.value) if v.op == "load"):
        return False                                                # of another stage of the nest
    return (len(s.reduce) == 1 and s.monoid == "sum" and s.value.op == "mul" and s.value.dtype is dtype
            and isinstance(inner, int) and inner <= MOST_INNER)


def _chunks(axis: Axis, chunk: int) -> tuple[Axis, Axis, Callable[[Dim], Dim]]:
    """Split an axis as `in_chunks` does; the index within a part is that of its axis."""
    part = Axis(f"{axis.name}p", d.ceil_div(axis.size, chunk))
    inner = Axis(f"{axis.name}q", d.dim_min(chunk, axis.size - part.symbol * chunk))
    return part, inner, partial(moved, axis=axis, at=part.symbol * chunk + inner.symbol)


def _within(inside: Limits, size: Dim) -> tuple[Dim, Dim]:
    """Return the first index of an axis that is inside of limits, and how many are."""
    lows = [d.ceil_div(-rest, step) for step, rest in inside.along if step > 0]
    ends = [rest // -step + 1 for step, rest in inside.along if step < 0]
    first = d.dim_min(d.dim_max(0, *lows), size)
    count = d.dim_max(0, d.dim_min(size, *ends) - first)
    for condition in inside.free:
        over = margin(condition)
        assert over is not None
        count = count * d.dim_max(0, d.dim_min(1, over + 1))
    return first, count


class _NestByTiles:
    """One way to run a nest by tiles: which of its axes is that of rows, and which that of lanes."""

    def __init__(self, values: Values, axes: tuple[Axis, ...], stages: Sequence[Stage], row: Axis, lane: Axis,
                 tile: tuple[int, int, int]) -> None:
        self.values, self.stages, self.row, self.lane = values, stages, row, lane
        lanes, rows, tiles = tile
        self.lanes = lanes
        most = d.bounds(lane.size)[1]
        self.width = lanes if most > lanes // 2 else lanes // 2
        self.panels = -(-most // self.width)
        self.batch = tuple(a for a in axes if a not in (row, lane))
        self.count = math.prod(d.bounds(a.size)[1] for a in self.batch)
        self.few = self.panels * self.count < FEW_PANELS
        longest = d.bounds(row.size)[1]
        block = rows * tiles
        if self.few:
            block = max(rows, min(-(-longest // (FEW_PANELS * rows)) * rows, FEW_PANELS * block))
        inner = max((s.reduce[0].size for s in stages if s.reduce), key=lambda size: d.bounds(size)[1])
        assert isinstance(inner, int)
        if any(self.copied(self.factors(s)[0], s.reduce[0]) for s in stages if s.reduce and self.factors(s)):
            block = max(rows, min(block, BLOCK_BYTES // (8 * inner) // rows * rows))
        self.inner, self.longest = inner, longest
        self.sizes = min(block, longest)
        self.part, self.some, self.lane_at = _chunks(lane, self.width)
        self.block, self.turn, self.row_at = _chunks(row, self.sizes)
        self.whole = Axis(f"{lane.name}w", self.width)              # all lanes of a panel
        self.axes = (*self.batch, self.part, self.block)
        self.arrays: dict[Array, Array] = {}

    def factors(self, s: Stage) -> tuple[Value, ...]:
        """Return a product's factor of the rows and that of the lanes; none where it has no such factors."""
        row, lane, inner = self.row.name, self.lane.name, s.reduce[0].name
        of_left, of_right = frozenset({row, inner}), frozenset({lane, inner})
        for left, right in (s.value.args, s.value.args[::-1]):
            if left.symbols & {row, lane, inner} == of_left and right.symbols & {row, lane, inner} == of_right:
                return left, right
        return ()

    def copied(self, left: Value, inner: Axis) -> bool:
        """Return whether the factor of the rows is copied, as a tile cannot read it where it lies."""
        if left.op != "load" or left.args or left.attr[0].dtype is not left.dtype:
            return True
        steps = [d.coefficient(left.attr[1], a.name) for a in (self.row, inner)]
        return 1 not in steps or None in steps

    def possible(self) -> bool:
        return all(self.factors(s) for s in self.stages if s.reduce)

    def steps(self) -> float:
        """Return the time of this way in steps of a tile."""
        total = 0.0
        m, n = self.longest, d.bounds(self.lane.size)[1]
        packs = -(-m // self.sizes) if self.few else 1
        for s in self.stages:
            if s.reduce:
                left, right = self.factors(s)
                k = d.bounds(s.reduce[0].size)[1]
                total += self.panels * m * k * (self.width / self.lanes)
                total += packs * n * k * self.moving(right)
                total += self.panels * m * k * MOVED if self.copied(left, s.reduce[0]) else 0
            elif s.target.role == "output":
                total += m * n * (MOVED if d.coefficient(s.index, self.lane.name) == 1 else GATHERED)
        return total * self.count

    def moving(self, v: Value) -> float:
        loads = [x for x in values_in(v) if x.op == "load"]
        return MOVED if all(d.coefficient(x.attr[1], self.lane.name) in (0, 1) for x in loads) else GATHERED

    # ---- stages ----

    def made(self) -> Nest:
        """Return the nest. Raises Entangled."""
        before, body = list[Stage](), list[Stage]()
        for s in self.stages:
            if s.reduce:
                first, then = self.product(s)
                before += first
                body += then
            else:
                body.append(self.stored(s, s.value))
        return Nest(self.axes, (*before, *body))

    @property
    def level(self) -> int:
        """The level at which panels are packed: for each panel, or where there are few for each block of rows as well."""
        return len(self.axes) - (not self.few)

    def array(self, name: str, like: Value, size: int, level: int) -> Array:
        return Array(name, "scratch", 0, like.dtype, size, level)

    def load(self, array: Array, offset: Dim) -> Value:
        return self.values.make("load", array.dtype, attr=(array, offset, frozenset(a.name for a in self.axes[:array.level])))

    def placed(self, v: Value, change: Callable[[Dim], Dim], axis: Axis, part: Axis) -> Value:
        return changed(self.values, v, change, frozenset({axis.name}), part.name)

    def product(self, s: Stage) -> tuple[list[Stage], list[Stage]]:
        """Return the stages that pack a panel, and those of a block of rows."""
        (inner,), (left, right) = s.reduce, self.factors(s)
        digits = digits_of(inner, (x for v in values_in(right) if (x := dim_of(v)) is not None))
        panel = self.array(f"{s.target.name}b", right, self.inner * self.width, self.level)
        of_panel = self.in_digits(self.placed(right, self.lane_at, self.lane, self.part), inner, digits)
        pack = self.packed(panel, digits, of_panel)
        left, copies = self.placed(left, self.row_at, self.row, self.block), list[Stage]()
        if self.copied(self.factors(s)[0], inner):
            digits = digits_of(inner, (x for v in values_in(left) if (x := dim_of(v)) is not None))
            apart = -(-self.inner // 16) * 16 + 16                  # rows in different sets of the first-level cache
            block = self.array(f"{s.target.name}a", left, apart * self.sizes, len(self.axes))
            value, at = self.in_digits(left, inner, digits), self.turn.symbol * apart + flat(digits)
            copies = [Stage(block, at, (self.turn, *digits), value, len(self.axes), note="copied")]
            left = self.load(block, self.turn.symbol * apart + inner.symbol)
        sums = self.array(f"{s.target.name}t", s.value, self.sizes * self.width, len(self.axes))
        value = self.values.make("mul", s.value.dtype, left, self.load(panel, inner.symbol * self.width + self.whole.symbol))
        by_tile = Stage(sums, self.turn.symbol * self.width + self.whole.symbol, (self.turn, self.whole), value, len(self.axes),
                        Reduce((inner,), "sum"), s.note, product="tiled")
        if s.target.role == "scratch":
            self.arrays[s.target] = sums
            return pack, [*copies, by_tile]
        return pack, [*copies, by_tile, self.stored(s, self.sum_of(sums))]

    def packed(self, panel: Array, digits: tuple[Axis, ...], value: Value) -> list[Stage]:
        """Return the stages that store the values of a panel, and zeros where there are no lanes or no values."""
        def store(some: Dim, axis: Axis, x: Value, note: str) -> Stage:
            return Stage(panel, flat(digits) * self.width + some, (*digits, axis), x, self.level, note=note)

        zero, whole = self.values.constant(0.0, value.dtype), store(self.some.symbol, self.some, value, "packed")
        inside = limits(self.values, replace(whole, does=Reduce((self.some,), "sum")), self.some)
        if inside is not None:
            first, count = _within(inside, self.some.size)
            axis = Axis(f"{self.lane.name}y", count)
            value = self.placed(inside.value, partial(moved, axis=self.some, at=first + axis.symbol), self.some, axis)
            return [store(self.whole.symbol, self.whole, zero, "no lanes"), store(first + axis.symbol, axis, value, "packed")]
        rest = Axis(f"{self.lane.name}z", self.width - self.some.size)
        if not d.bounds(rest.size)[1]:
            return [whole]
        return [whole, store(self.some.size + rest.symbol, rest, zero, "no lanes")]

    def in_digits(self, v: Value, inner: Axis, digits: tuple[Axis, ...]) -> Value:
        return changed(self.values, v, lambda x: d.substitute(x, {inner.name: flat(digits)}), frozenset(), "")

    def sum_of(self, sums: Array) -> Value:
        return self.load(sums, self.turn.symbol * self.width + self.some.symbol)

    def stored(self, s: Stage, value: Value) -> Stage:
        """Return the stage that stores a number of each turn for a block."""
        def number(v: Value, args: tuple[Value, ...]) -> Value | None:
            array = self.arrays.get(v.attr[0])
            return None if array is None else self.sum_of(array)

        value = reloaded(self.values, value, number)
        value = self.placed(self.placed(value, self.row_at, self.row, self.block), self.lane_at, self.lane, self.part)
        axes = (self.turn, self.some)
        if s.target.role == "scratch":
            target = self.array(f"{s.target.name}t", value, self.sizes * self.width, len(self.axes))
            self.arrays[s.target] = target
            return Stage(target, self.turn.symbol * self.width + self.some.symbol, axes, value, len(self.axes), note=s.note)
        if d.coefficient(s.index, self.row.name) == 1:
            axes = axes[::-1]
        return Stage(s.target, self.lane_at(self.row_at(s.index)), axes, value, len(self.axes), note=s.note)
