"""one_row_streams: products of one row: warps hold the row in registers, and rows of the weights pass them by.

    grid b: thread t in 0..256                      w, l = t / 32, t % 32;  group, part = w / 4, w % 4
        unrolled s in 0..4, c in 0..3:  taken[s, c] = load8 now x1[4096·(12·b + 2·c + group) + 8·(32·(4·s + part) + l)]
        wait
        unrolled s in 0..4:  of[s] = load8 x0[8·(32·(4·s + part) + l)]
        serial turn in 0..12 step 6
            unrolled s, e in 0..8, c:  sum[c] += of[s][e] · taken[s, c][e]
            unrolled s, c:  taken[s, c] = load8 now of the row that is 6 further on
            unrolled c:  combine sum[c] across 32 threads;  if l < 1:  sums[part, turn + 2·c + group] = sum[c]
        barrier block
        if t < 12:  y0[12·b + t] = the sum of sums[·, t]

Everything is one kernel. Each block recomputes the stages before the products in shared memory, which saves a launch; block 0
stores those that are outputs. The products of a program share a launch: a block has columns of one of them. There are as many
blocks as run at once, or a few less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from tensor_graphs.codegen.loop_ir import Array, Nest, StageProgram, index_symbol, parallel, values_in
from tensor_graphs.codegen.loop_program import (
    Barrier,
    Clear,
    Combine,
    If,
    Let,
    Load,
    Loop,
    Prefetch,
    Stmt,
    Store,
    Wait,
)
from tensor_graphs.codegen.mapping.elementwise import is_elementwise
from tensor_graphs.codegen.mapping.nest_mapper import element_bytes, memory_dtype
from tensor_graphs.codegen.mapping.rows import RowForm
from tensor_graphs.codegen.mapping.streams import HELD_OF_ROW, WARPS, Streams
from tensor_graphs.codegen.passes.fix_dims import with_dims
from tensor_graphs.codegen.skinny_product import streams_of
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

MADE_AGAIN = 40 << 10
"""most bytes that each block recomputes for one row"""

STEPS_AGAIN = 1 << 14
"""most elements of everything that a block recomputes"""

LINES = 64
"""most cache lines of an operand that are prefetched"""

MOST_HELD = 32 * WARPS * HELD_OF_ROW
"""most elements of a row"""

SUMS = 1 << 12
"""most sums of a block in shared memory, about"""


@dataclass(frozen=True)
class OneRow:
    """A program for one row. sizes: elements of what each block recomputes. always: there are never several rows."""

    program: StageProgram
    sizes: Mapping[Array, int]
    always: bool

    def times(self, rows: Dim) -> tuple[Dim, Dim]:
        """Return two dims of 0 or 1: if there are several rows, and if there is one."""
        if self.always:
            return 0, 1
        several = d.dim_min(1, rows // 2)
        return several, d.dim_min(1, rows) - several


def one_row(program: StageProgram) -> OneRow | None:
    """Return a program for one row; None where there never is one, where that does not fix what a block would recompute, and where
    the row is too long for registers."""
    streams = streams_of(program)
    rows, length = streams[0].row_count, streams[0].products[0].along.size
    symbols, dims = d.symbols(rows), dict[str, int]()
    if symbols:
        if len(symbols) != 1 or not same_dim(rows, symbols[0]) or d.bounds(symbols[0])[0] > 1:
            return None
        dims = {str(symbols[0]): 1}
    elif int(d.evaluate(rows, {})) != 1:
        return None
    before = program.nests[:len(program.nests) - len(streams)]
    for nest in before:
        turns = d.substitute(d.product(a.size for a in nest.axes[:parallel(nest)]), dims)
        if any(s.scan is not None or s.held for s in nest.stages) or (turns != 1 and not is_elementwise(program, nest)):
            return None
    fixed = with_dims(program, dims)
    again = [_in_a_block(fixed, nest) for nest in fixed.nests[:len(before)]]
    steps = [d.product(a.size for a in (*nest.axes[:s.level], *s.axes, *s.reduce)) for nest in again for s in nest.stages]
    sizes = {s.target: d.substitute(s.target.size, dims) for nest in again for s in nest.stages if s.target.level == 0}
    if not all(d.is_static(x) for x in (*steps, *sizes.values())) or d.bounds(length)[1] > MOST_HELD:
        return None
    counts = {array: int(d.evaluate(size, {})) for array, size in sizes.items()}
    room = sum(-(-size * element_bytes(array) // 16) * 16 for array, size in counts.items())
    if room > MADE_AGAIN or sum(int(d.evaluate(x, {})) for x in steps) > STEPS_AGAIN:
        return None
    return OneRow(fixed.made_of((*again, *fixed.nests[len(before):])), counts, not symbols)


def _in_a_block(program: StageProgram, nest: Nest) -> Nest:
    """Return a nest whose stages are shared by the threads of a block, those that store elements too."""
    if not is_elementwise(program, nest):
        return nest
    return nest.mapped(lambda s: [replace(s, axes=(*nest.axes, *s.axes), level=0)], axes=())


class RowsOfBlock(RowForm):
    """A nest of one iteration, which all threads of a block share."""

    def inside_block(self, threads: int) -> list[Stmt]:
        """Return the nest's statements. Raises NotLowered where its rows do not fit the block's memory."""
        self.outer, self.groups, self.live = (), 1, None
        self.choices, self.group = self.by_rule(1, threads), threads
        self.loops = self.shared_among()
        if self.place_rows(1):
            raise NotLowered("a row before products that is too long to be made again")
        return [*self.load_ahead(), *self.level(0), Barrier("block")]


class OneRowStreams(Streams):
    """The products of a program for one row on their way to a kernel."""

    def settle(self) -> None:
        super().settle()
        assert self.one is not None
        self.splits, self.columns, products = self.choices.splits, self.choices.ahead, len(self.products)
        self.resident = self.choices.resident
        self.held = self.packs_of_row(self.pack, self.splits)
        self.groups = self.warps // self.splits                     # of warps, which have rows of the weights one after the other
        self.turn = self.columns * self.groups                      # rows of the weights that a block multiplies at a time
        self.each = min(self.rows_of_block(self.choices.resident), max(1, SUMS // (self.splits * products)))
        self.room = -(-self.each // self.turn) * self.turn
        self.blocks = [-(-n // self.each) for n in self.widths]
        self.part, self.group = index_symbol("_part", self.splits), index_symbol("_group", self.groups)

    def body(self) -> list[Stmt]:
        """Return the statements of a thread."""
        assert self.one is not None
        for array, size in self.one.sizes.items():
            room = self.buffer("shared", f"made_{array.name}", memory_dtype(array), -(-size // 16) * 16,
                               array if array.role == "output" else None)
            self.places[array] = lambda index, room=room: (room, index)      # type: ignore[misc]
        self.sums = self.buffer("shared", "sums", f32, self.splits * len(self.products) * self.room)
        places = [Let("_group", self.warp // self.splits)] if self.groups > 1 else []
        places += [Let("_part", self.warp - self.splits * self.group)] if self.splits > 1 else []
        lets = [let for own, _ in self.rows for let in own]
        first = self.over_packs(0, self.of_columns(self.k))
        return [*places, *first, *self.prefetched(), Wait(), *self.made_again(), *lets, *self.factors(),
                *self.everywhere(self.passed_by), Barrier("block"), self.stored()]

    def over_packs(self, turn: Dim, body: Sequence[Stmt], after: Sequence[Stmt] = ()) -> list[Stmt]:
        """Return the loop over the packs of a thread, for rows of the block from `turn` on."""
        k = ((self.slot * self.splits + self.part) * self.target.warp + self.lane) * self.pack
        return [Loop("_s", self.held, "unrolled", (Let("_at", turn), *self.inside("_d", k, self.length, body), *after))]

    def column(self, k: int) -> Dim:
        return self.column_of(k, self.row_of_block())

    def row_of_block(self) -> Dim:
        """Return a row of a warp among those of the weights that its block has."""
        return index_symbol("_at", self.room + self.turn) + self.c * self.groups + self.group

    def column_of(self, k: int, row: Dim) -> Dim:
        """Return the column of a stream for a row of the block."""
        return (self.block - sum(self.blocks[:k])) * self.each + row

    # ---- before the products ----

    def prefetched(self) -> list[Stmt]:
        """Return prefetches of operands that the recomputed stages read completely, such as the weights of norms."""
        loads = (v for nest in self.before for s in nest.stages for v in values_in(s.value) if v.op == "load" and not v.args)
        operands = dict.fromkeys(v.attr[0] for v in loads if v.attr[0].role == "operand" and d.is_static(v.attr[0].size)
                                 and v.symbols.isdisjoint(self.program.gathered))
        out = list[Stmt]()
        for array in operands:
            lines = -(-int(d.evaluate(array.size, {})) * element_bytes(array) // self.target.line)
            if lines <= LINES:
                line = Prefetch(array, index_symbol("_line", lines) * (self.target.line // element_bytes(array)))
                out.append(Loop("_line", lines, "serial", (line,), self.thread, self.threads))
        return out

    def made_again(self) -> list[Stmt]:
        """Return the stages before the products, and what stores those that are outputs."""
        assert self.one is not None
        out: list[Stmt] = []
        for nest in self.before:
            rows = RowsOfBlock(self.program, nest, self.target, self.values, self.alone, self.aligned, self.names)
            rows.places = dict(self.places)
            out += rows.inside_block(self.threads)
            self.buffers += rows.buffers
        stored: list[Stmt] = []
        for array, size in self.one.sizes.items():
            if array.role == "output":
                at = index_symbol("_at", size)
                stored.append(Loop("_at", size, "serial", (Load(array, at, *self.placed(array, at)),), self.thread, self.threads))
        return [*out, If(self.below(self.block, 1), tuple(stored))] if stored else out

    # ---- products ----

    def factors(self) -> list[Stmt]:
        """Return the loads of what the rows of the weights are multiplied by."""
        half = index_symbol("_half", self.pack // self.pack_other)
        loads, self.of = self.loads_of_other(self.slot * self.pack + half * self.pack_other, half, self.held * self.pack)
        return self.over_packs(0, [Loop("_half", self.pack // self.pack_other, "unrolled", tuple(loads))])

    def passed_by(self, k: int) -> list[Stmt]:
        """Return the loop in which a warp multiplies its rows of the weights of a stream."""
        e, turn, products = index_symbol("_e", self.pack), index_symbol("_turn", self.each), len(self.products)
        takes = self.takes(self.c, (self.slot * self.columns + self.c) * self.pack + e, self.of, self.slot * self.pack + e)
        rows, row = d.dim_min(self.each, self.widths[k] - self.column_of(k, 0)), self.row_of_block()
        here = self.below(row, index_symbol("_rows", self.each + 1))
        further = If(here, (Let("_place", self.column(k)), *self.loads(k, self.k)))
        multiplied = [Loop("_e", self.pack, "unrolled", (Loop("_c", self.columns, "unrolled", tuple(takes)),)),
                      Loop("_c", self.columns, "unrolled", (further,))]
        sums = [Store(self.sums, (self.part * products + p) * self.room + turn + self.c * self.groups + self.group,
                      self.values.load(part, self.c)) for p, part in enumerate(self.parts)]
        body = [*(Clear(part, "sum") for part in self.parts), *self.over_packs(turn + self.turn, multiplied),
                Loop("_c", self.columns, "unrolled", tuple(Combine(part, self.c, "sum", self.target.warp) for part in self.parts)),
                If(self.below(self.lane, 1), (Loop("_c", self.columns, "unrolled", tuple(sums)),))]
        return [Let("_rows", rows), Loop("_turn", self.each, "serial", tuple(body), 0, self.turn)]

    def stored(self) -> Stmt:
        """Return the stages after the products, a column for a thread."""
        row, products = index_symbol("_i", self.each), len(self.products)
        parts = [[self.values.load(self.sums, (part * products + p) * self.room + row) for part in range(self.splits)]
                 for p in range(products)]
        totals = [reduce(partial(self.values.make, "add", f32), own) for own in parts]
        body = self.everywhere(lambda k: self.ended(k, self.column_of(k, row), totals))
        return Loop("_i", self.each, "serial", tuple(body), self.thread, self.threads)
