"""tile_rows: run a pass over blocks (online_reductions.py) for many rows at the same time, so that its sums become matrix products.

    nest over h, i in 0..n                          nest over h, p in 0..ceil(n / 32)
        for each block:                                 for each block:
            t5[q] = sum over r of k[q, r] · x[i, r]  →      t5[q, l] = sum over r of k[q, r] · packed[r, l]
            …                                               …

Where the data of a block do not depend on the row, 32 rows share them. Each number of a row becomes a vector of as many lanes,
contiguous in memory. A sum over a block, or over a row's own elements, becomes a register tile of a product (kernels/c/gemm.h). Its
operands need the right layout: a row's own numbers are packed before the first block; the data of a block are copied if their dtype
is narrow, or if their rows map to few sets of the cache.

In: a pass as online_reductions.py derives it.  Out: that program, changed in place; only the order of sums changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensor_graphs.codegen.default_schedule import Entangled, in_chunks, moved
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Value
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
    if not s.tiled:
        return None
    shaped = s.monoid == "sum" and len(s.axes) == 2 and len(s.reduce) == 1 and s.scan is None and s.target.role == "scratch"
    if not shaped or s.value.op != "mul" or s.value.dtype not in (f32, f64) or s.joined != (s.factor is not None):
        return None
    (rows, lane), (inner,), width = s.axes, s.reduce, s.axes[1].size
    if not isinstance(width, int) or any(v.op != "load" or v.args or v.attr[0].dtype is not s.value.dtype for v in s.value.args):
        return None
    for left, right in (s.value.args, s.value.args[::-1]):
        if lane.name in left.symbols or not _lies(right, {lane: 1, inner: width, rows: 0}):
            continue
        if d.coefficient(s.index, lane.name) != 1 or d.coefficient(s.index, rows.name) != width:
            return None
        if s.factor is not None and not (s.factor.op == "load" and _lies(s.factor, {lane: 1, rows: 0, inner: 0})):
            return None
        steps = [d.coefficient(left.attr[1], a.name) for a in (inner, rows)]
        for along_rows in (False, True):
            near, far = steps[::-1] if along_rows else steps
            if near == 1 and far is not None:
                return TileProduct(rows, inner, lane, left, right, along_rows, far, s.factor)
    return None


def _lies(load: Value, steps: dict[Axis, int]) -> bool:
    """Return whether the elements of a load have the given strides along axes."""
    return all(d.coefficient(load.attr[1], a.name) == step for a, step in steps.items())


def laned(program: StageProgram, lanes: int) -> bool:
    """Change the pass of a program to compute `lanes` rows at the same time (half as many if there are few); return whether it
    could."""
    for nest in program.nests:
        if not any(s.within is not None for s in nest.stages) or any(s.level != len(nest.axes) for s in nest.stages):
            continue
        for axis in reversed(nest.axes):
            most = d.bounds(axis.size)[1]
            if most >= FEWEST and _is_shared(nest, axis):
                try:
                    _LanesOfNest(program, nest, axis, lanes if most > lanes // 2 else lanes // 2).made()
                except Entangled:
                    continue
                return True
    return False


def _is_shared(nest: Nest, axis: Axis) -> bool:
    """Return whether some sum of the pass has a factor that depends on the block (with a single block: on what the sum is over) but
    not on the axis."""
    for s in nest.stages:
        if s.within is not None and s.monoid == "sum" and s.axes and s.value.op == "mul":
            alone = s.within.symbol == 0
            names = {a.name for a in (s.reduce if alone else (s.within,))}
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
        self.own = {s.target for s in nest.stages if s.target.role == "scratch" and s.target.level == self.level}
        self.known: dict[Value, Value] = {}
        self.hoisted: dict[Value, tuple[Stage, Value]] = {}

    @property
    def symbol(self) -> Dim:
        return d.dim(self.lane.name, 0, self.width - 1)

    def made(self) -> None:
        """Raises Entangled before anything is changed."""
        first = next(i for i, s in enumerate(self.nest.stages) if s.within is not None)
        stages = [self.with_lanes(s) for s in self.nest.stages]
        packed: list[Stage] = []
        out: list[Stage] = []
        for s in stages:
            if s.within is not None:
                s.value = self.hoist(s.value, s)
                before, in_block = self.as_product(s)
                packed += before
                out += in_block
            out.append(s)
        packed = [*(stage for stage, _ in self.hoisted.values()), *packed]
        for array in self.own:
            array.size = array.size * self.width
        self.nest.axes = tuple(self.part if a is self.axis else a for a in self.nest.axes)
        self.nest.stages = [*out[:first], *packed, *out[first:]]
        products = sum(product_of(s) is not None for s in self.nest.stages)
        self.program.derivation += (f"{self.width} turns of {self.axis.name} beside each other; {products} sums are products",)

    # ---- with lanes ----

    def with_lanes(self, s: Stage) -> Stage:
        mine = s.target in self.own
        if not mine and (s.target.level or s.within is not None or self.axis.name not in self.values.symbols_of(s.index)):
            raise Entangled
        index = s.index * self.width + self.symbol if mine else moved(s.index, self.axis, self.at)
        factor = None if s.factor is None else self.value(s.factor)
        return replace(s, value=self.value(s.value), factor=factor, index=index,
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
                attr = (array, offset * self.width + self.symbol, names)
            else:                                                   # lanes behind the last row read the last row again
                safe = self.at if self.inside else d.dim_min(self.at, self.axis.size - 1)
                attr = (array, moved(offset, self.axis, safe), names)
        elif v.op == "index":
            attr = moved(v.attr, self.axis, self.at)
        self.known[v] = self.values.make(v.op, v.dtype, *args, attr=attr)
        return self.known[v]

    def names(self) -> frozenset[str]:
        return frozenset(a.name if a is not self.axis else self.part.name for a in self.nest.axes)

    def kept(self, name: str, index: Sequence[tuple[Axis, Dim, Dim]], size: Dim, value: Value, within: Axis | None,
             note: str) -> tuple[Stage, Value]:
        """Return the stage that stores a value in scratch, and the load that reads it. index: (axis, its symbol, its stride)."""
        array = Array(name, "scratch", 0, value.dtype, size, self.level)
        offset: Dim = 0
        for _, symbol, step in index:
            offset = offset + symbol * step
        stage = Stage(array, offset, tuple(a for a, _, _ in index), value, self.level, note=note, within=within)
        return stage, self.values.make("load", value.dtype, attr=(array, offset, self.names()))

    def hoist(self, v: Value, s: Stage) -> Value:
        """Return a value with its loads that do not depend on the block replaced by loads of packed lanes."""
        turns = {a.name for a in s.own} - {self.lane.name}
        if v.op == "load" and v.attr[0] not in self.own and self.lane.name in v.symbols and not turns & v.symbols:
            if v not in self.hoisted:
                lane = [(self.lane, self.symbol, 1)]
                self.hoisted[v] = self.kept(f"l{v.number}", lane, self.width, v, None, "for each lane")
            return self.hoisted[v][1]
        args = tuple(self.hoist(a, s) for a in v.args)
        return self.values.remade(v, args)

    # ---- products ----

    def as_product(self, s: Stage) -> tuple[list[Stage], list[Stage]]:
        """Change a sum to the form that `product_of` accepts, if possible. Return the stages to run once before the pass, and those
        to run before the sum in each block."""
        if s.monoid != "sum" or len(s.axes) != 2 or len(s.reduce) != 1 or s.value.op != "mul" or s.joined != (s.factor is not None):
            return [], []
        (rows, lane), (inner,) = s.axes, s.reduce
        lanes = [v for v in s.value.args if lane.name in v.symbols]
        if len(lanes) != 1 or rows.name in lanes[0].symbols:
            return [], []
        (right,) = lanes
        (left,) = (v for v in s.value.args if v is not right)
        if left.op != "load" or left.args or self.longest(inner) is None or self.longest(rows) is None:
            return [], []
        before: list[Stage] = []
        in_block: list[Stage] = []
        if right.op != "load" or right.args or not _lies(right, {lane: 1, inner: self.width, rows: 0}):
            within = s.within if s.within is not None and {s.within.name, *self.turns()} & right.symbols else None
            place = [(inner, self.turn(inner), self.width), (lane, self.symbol, 1)]
            size = (self.longest(inner) or 0) * self.width
            stage, right = self.kept(f"p{right.number}", place, size, right, within, "packed")
            (before if within is None else in_block).append(stage)
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
            stage, left = self.kept(f"c{left.number}", place, (self.longest(far) or 0) * wide, left, s.within, "copied")
            in_block.append(stage)
        s.value, s.tiled = self.values.make("mul", s.value.dtype, left, right), True
        return before, in_block

    def turns(self) -> set[str]:
        """Return the names of the axes within a block."""
        return {a.name for s in self.nest.stages if s.within is not None and s.monoid == "max" for a in s.reduce}

    def longest(self, axis: Axis) -> int | None:
        """Return the most iterations of an axis; None where they are too many to store."""
        most = d.bounds(axis.size)[1]
        return most if isinstance(axis.size, int) or axis.name in self.turns() else None

    def turn(self, axis: Axis) -> Dim:
        most = self.longest(axis)
        assert most is not None
        return d.dim(axis.name, 0, most - 1) if most > 1 else 0
