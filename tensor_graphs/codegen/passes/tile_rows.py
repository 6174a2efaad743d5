"""tile_rows: run a pass over blocks (online_reductions.py) for many rows at the same time, so that its sums become matrix products.

    nest over h, i in 0..n                          nest over h, p in 0..ceil(n / 32)
        for each block:                                 for each block:
            t5[q] = sum over r of k[q, r] · x[i, r]  →      t5[q, l] = sum over r of k[q, r] · packed[r, l]
            …                                               …

Where the data of a block do not depend on the row, 32 rows share them. Each number of a row becomes a vector of as many lanes,
contiguous in memory. A sum over a block, or over a row's own elements, becomes a register tile of a product (kernels/c/gemm.h). Its
operands need the right layout: a row's own numbers are packed before the first block; the data of a block are copied if their dtype
is narrow, or if their rows map to few sets of the cache.

In: a pass as online_reductions.py derives it.  Out: the program with lanes; only the order of sums changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensor_graphs.codegen.default_schedule import Entangled, in_chunks, moved
from tensor_graphs.codegen.loop_ir import Array, Axis, Blocks, Nest, Stage, StageProgram, Value, symbols_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, f64

FEWEST = 8
"""rows from which on lanes pay; fewer are computed one by one. A pass of one block, whose packing is used once, needs twice as many
(time one by one ÷ with lanes: 0.8 for 8 rows of 64 keys, 2.1 to 3.7 for 16 to 64)"""

LINE = 64
"""bytes of a cache line"""

CROWDED = 2048
"""bytes between rows from which on (with multiples) they map to few sets of the first-level cache"""


@dataclass(frozen=True)
class TileProduct:
    """A stage as target[row, lane] = (target[row, lane] · keep[lane]) + sum over inner of left[row, inner] · right[inner, lane].

    rows, inner, lane: its axes. along_rows: left is contiguous along rows, with `stride` elements between steps of inner; else it
    is the other way round. keep: None where the target's old values do not count."""

    rows: Axis
    inner: Axis
    lane: Axis
    left: Value
    right: Value
    along_rows: bool
    stride: Dim
    keep: Value | None


def product_of(s: Stage) -> TileProduct | None:
    """Return a stage as a product whose operands have the layout of a register tile, because `laned` arranged them; None for
    another stage. A stage that only looks like one may have incomplete vectors, and unaligned panels."""
    if s.product != "tiled":
        return None
    shaped = s.monoid == "sum" and len(s.axes) == 2 and len(s.reduce) == 1 and s.scan is None and s.target.role == "scratch"
    if not shaped or s.value.op != "mul" or s.value.dtype not in (f32, f64) or s.held == 1:
        return None
    (rows, lane), (inner,), width = s.axes, s.reduce, s.axes[1].size
    if not isinstance(width, int) or any(v.op != "load" or v.args or v.attr[0].dtype is not s.value.dtype for v in s.value.args):
        return None
    for left, right in (s.value.args, s.value.args[::-1]):
        if lane.name in left.symbols or not _lies(right, {lane: 1, inner: width, rows: 0}):
            continue
        if d.coefficient(s.index, lane.name) != 1 or d.coefficient(s.index, rows.name) != width:
            return None
        keep = s.held if isinstance(s.held, Value) else None
        if keep is not None and not (keep.op == "load" and _lies(keep, {lane: 1, rows: 0, inner: 0})):
            return None
        steps = [d.coefficient(left.attr[1], a.name) for a in (inner, rows)]
        for along_rows in (False, True):
            near, far = steps[::-1] if along_rows else steps
            if near == 1 and far is not None:
                return TileProduct(rows, inner, lane, left, right, along_rows, far, keep)
    return None


def _lies(load: Value, steps: dict[Axis, int]) -> bool:
    """Return whether the elements of a load have the given strides along axes."""
    return all(d.coefficient(load.attr[1], a.name) == step for a, step in steps.items())


def laned(program: StageProgram, lanes: int) -> StageProgram:
    """Return the program with its pass for `lanes` rows at the same time (half as many if there are few); as it is if that cannot
    be.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> from tensor_graphs.codegen.passes.online_reductions import online
    >>> program, _ = online(lower_text("input x f32[32, 256]", "input w f32[256, 7]", "output y = softmax(x) @ w"))
    >>> print(program)  # doctest: +ELLIPSIS
    nest over _i0 in 0..32
        t3[0] = -inf
        ...
    >>> print(laned(program, 16))  # doctest: +ELLIPSIS
    nest over _i0p in 0..2
        t3[_i0q] = -inf    over _i0q in 0..16
        ...
    derived: 16 turns of _i0 beside each other; 1 sums are products
    """
    for nest in program.nests:
        if nest.blocks is None or any(s.level != len(nest.axes) for s in nest.stages):
            continue
        for axis in reversed(nest.axes):
            most = d.bounds(axis.size)[1]
            if most >= FEWEST and _is_shared(nest, nest.blocks, axis):
                try:
                    return _LanesOfNest(program, nest, axis, lanes if most > lanes // 2 else lanes // 2).made()
                except Entangled:
                    continue
    return program


def _is_shared(nest: Nest, blocks: Blocks, axis: Axis) -> bool:
    """Return whether some sum of the pass has a factor that depends on the block (with a single block: on what the sum is over) but
    not on the axis."""
    for s in blocks.stages:
        if s.monoid == "sum" and s.axes and s.value.op == "mul":
            alone = blocks.axis.symbol == 0
            names = {a.name for a in (s.reduce if alone else (blocks.axis,))}
            enough = not alone or d.bounds(axis.size)[1] >= 2 * FEWEST
            if enough and any(axis.name not in v.symbols and names & v.symbols for v in s.value.args):
                return True
    return False


class _LanesOfNest:
    """The transformation of one axis of a nest into parts of `width` lanes."""

    def __init__(self, program: StageProgram, nest: Nest, axis: Axis, width: int) -> None:
        self.program, self.nest, self.axis, self.width, self.values = program, nest, axis, width, program.values
        self.level = len(nest.axes)
        self.part, self.some, _ = in_chunks(axis, width)
        self.lane = Axis(self.some.name, width)
        self.at = self.part.symbol * width + self.symbol
        self.inside = proved_equal(axis.size % width, 0)
        own = {s.target for s in nest.stages if s.target.role == "scratch" and s.target.level == self.level}
        self.own = {a: replace(a, size=a.size * width) for a in own}
        self.lanes_of = set(self.own.values())
        self.known: dict[Value, Value] = {}
        self.hoisted: dict[Value, tuple[Stage, Value]] = {}

    @property
    def symbol(self) -> Dim:
        return d.dim(self.lane.name, 0, self.width - 1)

    def made(self) -> StageProgram:
        """Return the program with lanes. Raises Entangled."""
        nest = self.nest.mapped(lambda s: [self.with_lanes(s)])
        blocks = nest.blocks
        assert blocks is not None
        packed: list[Stage] = []
        inside: list[Stage] = []
        for s in blocks.stages:
            value = self.hoist(s.value, nest.loops(s))
            before, in_block = self.as_product(replace(s, value=value), blocks.axis)
            packed += before
            inside += in_block
        packed = [*(stage for stage, _ in self.hoisted.values()), *packed]
        at = nest.body.index(blocks)
        body = (*nest.body[:at], *packed, Blocks(blocks.axis, tuple(inside)), *nest.body[at + 1:])
        laned = replace(nest, axes=tuple(self.part if a is self.axis else a for a in nest.axes), body=body)
        products = sum(product_of(s) is not None for s in laned.stages)
        line = f"{self.width} turns of {self.axis.name} beside each other; {products} sums are products"
        return self.program.made_of((laned if other is self.nest else other for other in self.program.nests),
                                    derivation=(*self.program.derivation, line))

    # ---- with lanes ----

    def with_lanes(self, s: Stage) -> Stage:
        mine = s.target in self.own
        in_blocks = self.nest.blocks is not None and s in self.nest.blocks.stages
        if not mine and (s.target.level or in_blocks or self.axis.name not in symbols_of(s.index, self.values.gathered)):
            raise Entangled
        index = s.index * self.width + self.symbol if mine else moved(s.index, self.axis, self.at)
        if isinstance(s.held, Value):                               # first, as its values were made first
            self.value(s.held)
        return s.with_roots(self.value, target=self.own.get(s.target, s.target), index=index,
                            axes=(*s.axes, self.lane) if mine else (self.some, *s.axes))

    def value(self, v: Value) -> Value:
        if v in self.known:
            return self.known[v]
        args = tuple(self.value(a) for a in v.args)
        attr = v.attr
        if any(self.axis.name in self.values.gathered[x].symbols for x in v.symbols if x in self.values.gathered):
            raise Entangled
        if v.op == "load":
            array, offset, names = v.attr
            names = frozenset(self.part.name if x == self.axis.name else x for x in names)
            if array in self.own:
                attr = (self.own[array], offset * self.width + self.symbol, names)
            else:                                                   # lanes behind the last row read the last row again
                safe = self.at if self.inside else d.dim_min(self.at, self.axis.size - 1)
                attr = (array, moved(offset, self.axis, safe), names)
        elif v.op == "index":
            attr = moved(v.attr, self.axis, self.at)
        self.known[v] = self.values.make(v.op, v.dtype, *args, attr=attr)
        return self.known[v]

    def names(self) -> frozenset[str]:
        return frozenset(a.name if a is not self.axis else self.part.name for a in self.nest.axes)

    def kept(self, name: str, index: Sequence[tuple[Axis, Dim, Dim]], size: Dim, value: Value, note: str) -> tuple[Stage, Value]:
        """Return the stage that stores a value in scratch, and the load that reads it. index: (axis, its symbol, its stride)."""
        array = Array(name, "scratch", 0, value.dtype, size, self.level)
        offset: Dim = 0
        for _, symbol, step in index:
            offset = offset + symbol * step
        stage = Stage(array, offset, tuple(a for a, _, _ in index), value, self.level, note=note)
        return stage, self.values.make("load", value.dtype, attr=(array, offset, self.names()))

    def hoist(self, v: Value, loops: Sequence[Axis]) -> Value:
        """Return a value with its loads that do not depend on the loops of its stage replaced by loads of packed lanes."""
        turns = {a.name for a in loops} - {self.lane.name}
        if v.op == "load" and v.attr[0] not in self.lanes_of and self.lane.name in v.symbols and not turns & v.symbols:
            if v not in self.hoisted:
                lane = [(self.lane, self.symbol, 1)]
                self.hoisted[v] = self.kept(f"l{v.number}", lane, self.width, v, "for each lane")
            return self.hoisted[v][1]
        args = tuple(self.hoist(a, loops) for a in v.args)
        return self.values.remade(v, args)

    # ---- products ----

    def as_product(self, s: Stage, blocks: Axis) -> tuple[list[Stage], list[Stage]]:
        """Return the stages to run once before the pass, and those to run in each block: a sum in the form that `product_of`
        accepts, behind what it needs, or the stage as it is."""
        if s.monoid != "sum" or len(s.axes) != 2 or len(s.reduce) != 1 or s.value.op != "mul" or s.held == 1:
            return [], [s]
        (rows, lane), (inner,) = s.axes, s.reduce
        lanes = [v for v in s.value.args if lane.name in v.symbols]
        if len(lanes) != 1 or rows.name in lanes[0].symbols:
            return [], [s]
        (right,) = lanes
        (left,) = (v for v in s.value.args if v is not right)
        if left.op != "load" or left.args or self.longest(inner) is None or self.longest(rows) is None:
            return [], [s]
        before: list[Stage] = []
        in_block: list[Stage] = []
        if right.op != "load" or right.args or not _lies(right, {lane: 1, inner: self.width, rows: 0}):
            changes = {blocks.name, *self.turns()} & right.symbols
            place = [(inner, self.turn(inner), self.width), (lane, self.symbol, 1)]
            size = (self.longest(inner) or 0) * self.width
            stage, right = self.kept(f"p{right.number}", place, size, right, "packed")
            (in_block if changes else before).append(stage)
        array, offset, _ = left.attr
        steps = {a: d.coefficient(offset, a.name) for a in (inner, rows)}
        near, far = (inner, rows) if steps[inner] == 1 or steps[rows] != 1 else (rows, inner)
        apart = steps[far]
        narrow = array.dtype is not s.value.dtype
        crowded = near is inner and isinstance(apart, int) and apart * array.dtype.itemsize % CROWDED == 0
        if narrow or crowded or steps[near] != 1 or apart is None:
            line = LINE // s.value.dtype.itemsize
            wide = -(-(self.longest(near) or 0) // line) * line + line
            place = [(far, self.turn(far), wide), (near, self.turn(near), 1)]
            stage, left = self.kept(f"c{left.number}", place, (self.longest(far) or 0) * wide, left, "copied")
            in_block.append(stage)
        return before, [*in_block, replace(s, value=self.values.make("mul", s.value.dtype, left, right), product="tiled")]

    def turns(self) -> set[str]:
        """Return the names of the axes within a block."""
        stages = () if self.nest.blocks is None else self.nest.blocks.stages
        return {a.name for s in stages if s.monoid == "max" for a in s.reduce}

    def longest(self, axis: Axis) -> int | None:
        """Return the most iterations of an axis; None where they are too many to store."""
        most = d.bounds(axis.size)[1]
        return most if isinstance(axis.size, int) or axis.name in self.turns() else None

    def turn(self, axis: Axis) -> Dim:
        most = self.longest(axis)
        assert most is not None
        return d.dim(axis.name, 0, most - 1) if most > 1 else 0
