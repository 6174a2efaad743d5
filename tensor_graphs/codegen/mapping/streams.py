"""streams: products of few rows (skinny_product.py): a warp has rows of a weight in registers, and multiplies each row with them.

    grid b: thread t in 0..256                                          w, l = t / 32, t % 32
        unrolled s in 0..10:  taken[s] = load8 now x1[2560·column + 8·(32·s + l)]
        wait
        serial row in 0..n
            unrolled s:  of = load8 x0[2560·row + 8·(32·s + l)];  unrolled e in 0..8: part += of[e] · taken[s][e]
                         taken[s] = load8 now of what follows in the row, where that is longer than what is held
            combine part across 32 threads
            if l < 1:  y0[columns·row + column] = part

For one row everything is one kernel. Each block recomputes the stages before the products in shared memory, which saves a launch;
block 0 stores those that are outputs. For several rows these stages are kernels before. The products of a program share a launch:
a block has columns of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, StageProgram, Value, index_symbol, parallel, products_alone, values_in
from tensor_graphs.codegen.loop_program import (
    Barrier,
    Clear,
    Combine,
    If,
    Let,
    Load,
    Loop,
    LoopKernel,
    Prefetch,
    Stmt,
    Store,
    Take,
    Wait,
)
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.elementwise import is_elementwise
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, divides, element_bytes, lets, memory_dtype, within
from tensor_graphs.codegen.mapping.rows import RowForm
from tensor_graphs.codegen.passes.fix_dims import with_dims
from tensor_graphs.codegen.skinny_product import Stream, StreamProduct, streams_of
from tensor_graphs.devices.target import Target
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Dim

WARPS = 8
"""warps of a block, which share what it computes before the products"""

MOST_TAKEN = 12
"""most packs of weights that are on their way to a thread"""

MANY_COLUMNS = ((4224, 1), (32768, 2))
"""(most columns, columns per warp) for the first entry that fits; beyond the last entry a warp has four columns"""

MADE_AGAIN = 40 << 10
"""most bytes that each block recomputes for one row"""

STEPS_AGAIN = 1 << 14
"""most elements of everything that a block recomputes"""

LINES = 64
"""most cache lines of an operand that are prefetched"""


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
    """Return a program for one row; None where there never is one, or where that does not fix what a block would recompute."""
    streams = streams_of(program)
    rows = streams[0].row_count
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
    if not all(d.is_static(x) for x in (*steps, *sizes.values())):
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


class Streams(NestMapper):
    """The products of a program on their way to a kernel. one: the program is for one row; blocks recompute what comes before."""

    def __init__(self, program: StageProgram, target: Target, aligned: bool, names: set[str], one: OneRow | None) -> None:
        self.streams = streams_of(program)
        self.one, self.before = one, program.nests[:len(program.nests) - len(self.streams)]
        first = self.streams[0]
        super().__init__(program, first.nest, target, program.values, products_alone(program), aligned, names)
        self.row_count = first.row_count
        alike = _kinds(first)
        if any(_kinds(stream) != alike for stream in self.streams):
            raise NotLowered("products beside each other that are not alike")
        if any(not same_dim(stream.row_count, self.row_count) for stream in self.streams):
            raise NotLowered("products beside each other of other numbers of rows")
        if len({(weight, length) for weight, _, length in alike}) != 1:
            raise NotLowered("products of one column that are not alike")
        length = first.products[0].along.size
        if not d.is_static(length) or not all(d.is_static(stream.count) for stream in self.streams):
            raise NotLowered("a weight whose sizes are known when it runs")
        if any(not p.weight.symbols.isdisjoint(program.gathered) for stream in self.streams for p in stream.products):
            raise NotLowered("a weight whose rows are looked up")
        self.length, self.widths = int(d.evaluate(length, {})), [int(d.evaluate(stream.count, {})) for stream in self.streams]
        self.products = first.products

    def seed(self) -> NestChoices:
        columns, pack = next((n for most, n in MANY_COLUMNS if sum(self.widths) <= most), 4), self.longest_pack()
        return NestChoices(pack=pack, warps=WARPS, columns=columns, taken=self.most_taken(pack, columns))

    def most_taken(self, pack: int, columns: int) -> int:
        """Return the steps of a row whose weights a thread loads before it waits."""
        steps = -(-self.length // (self.target.warp * pack))
        return max(1, min(steps, MOST_TAKEN // (columns * len(self.products))))

    def with_one(self, choices: NestChoices, what: str, size: int) -> NestChoices:
        other = super().with_one(choices, what, size)
        return replace(other, taken=self.most_taken(other.pack, other.columns)) if what in ("pack", "columns") else other

    def why_not(self, choices: NestChoices) -> str | None:
        steps = -(-self.length // (self.target.warp * choices.pack))
        if choices.pack > self.longest_pack() or choices.taken > steps:
            return "a row of its weights has no such packs"
        threads = choices.warps * self.target.warp
        return "too few threads for prefetches" if choices.warps != WARPS and threads <= LINES else super().why_not(choices)

    def settle(self) -> None:
        """Note the sizes of a warp and of a block that follow from the choices."""
        self.pack, self.columns = self.choices.pack, self.choices.columns                           # of a warp
        self.warps, self.threads = self.choices.warps, self.choices.warps * self.target.warp
        self.blocks = [-(-n // (self.warps * self.columns)) for n in self.widths]
        self.pack_other = self.pack_of_other()
        self.turns = -(-self.length // (self.target.warp * self.pack))
        self.held = self.choices.taken                              # turns whose weights are loaded

    def longest_pack(self) -> int:
        """Return the most elements of a load of a weight."""
        products = [p for stream in self.streams for p in stream.products]
        pack = self.target.vector // element_bytes(products[0].weight.attr[0]) if self.aligned else 1
        while not all(divides(pack, x) for p in products for x in (self.length, p.weight.attr[1] - p.along.symbol)):
            pack //= 2
        return pack

    def pack_of_other(self) -> int:
        """Return the elements of a load of the other factor."""
        products, vector, pack = [p for stream in self.streams for p in stream.products], self.target.vector, self.pack
        other = min(pack, *(vector // element_bytes(p.other.attr[0]) for p in products))
        while not all(divides(other, p.other.attr[1] - p.along.symbol) for p in products):
            other //= 2
        return other

    def mapped(self, entry: str, times: Dim) -> LoopKernel:
        """Return the kernel of all products, which runs `times` times: 0 or 1."""
        self.settle()
        grid, warp = sum(self.blocks) * times, self.target.warp
        self.block, self.row = index_symbol("_b", grid), index_symbol("_row", self.row_count)
        self.warp, self.lane = index_symbol("_w", self.warps), index_symbol("_l", warp)
        self.thread = index_symbol("_t", self.threads)
        self.k, self.c = d.dim("_d", 0, self.length - self.pack), index_symbol("_c", self.columns)
        self.slot = index_symbol("_s", self.held)
        self.early = tuple(dict.fromkeys(p.weight.attr[0].number for stream in self.streams for p in stream.products))
        if self.one is not None:
            self.make_room(self.one.sizes)
        size, weights = self.held * self.columns * self.pack, [product.weight.attr[0] for product in self.products]
        self.taken = [self.buffer("register", f"taken{p}", memory_dtype(a), size, a, self.pack) for p, a in enumerate(weights)]
        self.parts = [self.accumulator(product.stage, self.columns) for product in self.products]
        self.rows = [_coordinates(f"_row{k}_", self.row, stream.rows) for k, stream in enumerate(self.streams)]
        body: list[Stmt] = [Let("_w", self.thread // warp), Let("_l", self.thread - self.warp * warp), *self.weights()]
        body += [*self.prefetched(), Wait(), *self.made_again(), *self.each_row()] if self.one is not None else [
            Wait(), *self.each_row()]
        return self.kernel(entry, [Loop("_b", grid, "grid", (Loop("_t", self.threads, "thread", tuple(body)),))])

    def in_stream(self, k: int, body: Sequence[Stmt]) -> list[Stmt]:
        """Return statements that run in the blocks of a stream."""
        if len(self.streams) == 1:
            return list(body)
        return [If(within(self.values, self.block, sum(self.blocks[:k]), sum(self.blocks[:k + 1])), tuple(body))]

    def column(self, k: int) -> Dim:
        """Return a column of a warp in a stream."""
        return ((self.block - sum(self.blocks[:k])) * self.warps + self.warp) * self.columns + self.c

    def over_packs(self, turn: Dim, body: Sequence[Stmt], after: Sequence[Stmt] = ()) -> list[Stmt]:
        """Return the loop over packs of a row whose weights are held, from a turn on. A thread has one pack of a turn. after:
        statements that follow those of a pack, whether it is in the row or not."""
        at = ((turn + self.slot) * self.target.warp + self.lane) * self.pack
        return [Loop("_s", self.held, "unrolled", (*self.inside("_d", at, self.length, body), *after))]

    def weights(self) -> list[Stmt]:
        """Return the loads of the first packs of weights."""
        return [s for k in range(len(self.streams)) for s in self.in_stream(k, self.over_packs(0, self.loads(k, self.k)))]

    def following(self, turn: Dim) -> list[Stmt]:
        """Return the loads of the packs that take the place of those just multiplied, so that as many are always on their way."""
        if self.held == self.turns:
            return []
        at = ((turn + self.held + self.slot) * self.target.warp + self.lane) * self.pack
        there = d.dim("_f", 0, self.length - self.pack)
        loads = [s for k in range(len(self.streams)) for s in self.in_stream(k, self.loads(k, there))]
        return self.inside("_f", at, self.length, loads)

    def loads(self, k: int, at: Dim) -> list[Stmt]:
        """Return the loads of weights of a stream at one place of a row; those of columns behind the last are of the last."""
        stream = self.streams[k]
        lets, columns = _coordinates("_column", index_symbol("_place", self.widths[k]), stream.columns)
        held = (self.slot * self.columns + self.c) * self.pack
        loads = [Load(self.taken[p], held, product.weight.attr[0], self.index(product.weight.attr[1], {
            **columns, product.along.name: at}), self.pack, how="now") for p, product in enumerate(stream.products)]
        place = Let("_place", d.dim_min(self.column(k), self.widths[k] - 1))
        return [Loop("_c", self.columns, "unrolled", (place, *lets, *loads))]

    def at(self, load: Value, product: StreamProduct, dims: Mapping[str, Dim], further: Dim) -> Dim:
        """Return where a factor's pack begins."""
        return self.index(load.attr[1], {**dims, product.along.name: self.k + further})

    # ---- before the products ----

    def make_room(self, sizes: Mapping[Array, int]) -> None:
        for array, size in sizes.items():
            room = self.buffer("shared", f"made_{array.name}", memory_dtype(array), -(-size // 16) * 16,
                               array if array.role == "output" else None)
            self.places[array] = lambda index, room=room: (room, index)      # type: ignore[misc]

    def prefetched(self) -> list[Stmt]:
        """Return prefetches of operands that the recomputed stages read completely, such as the weights of norms."""
        loads = (v for nest in self.before for s in nest.stages for v in values_in(s.value) if v.op == "load" and not v.args)
        operands = dict.fromkeys(v.attr[0] for v in loads if v.attr[0].role == "operand" and d.is_static(v.attr[0].size)
                                 and v.symbols.isdisjoint(self.program.gathered))
        begin, out = 0, list[Stmt]()
        for array in operands:
            lines = -(-int(d.evaluate(array.size, {})) * element_bytes(array) // self.target.line)
            if lines <= LINES:
                line = Prefetch(array, (self.thread - begin) * (self.target.line // element_bytes(array)))
                out.append(If(within(self.values, self.thread, begin, begin + lines), (line,)))
                begin = (begin + lines) % (self.threads - LINES)
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

    def each_row(self) -> list[Stmt]:
        """Return the dot products of each row with the weights in a warp's registers, and the stages that use the results."""
        lets = [let for own, _ in self.rows for let in own]
        turn, body = index_symbol("_turn", self.turns) if self.held < self.turns else 0, list[Stmt]()
        halves = index_symbol("_half", self.pack // self.pack_other)
        body += self.over_packs(turn, [Loop("_half", self.pack // self.pack_other, "unrolled", tuple(self.multiplied(halves)))],
                                self.following(turn))
        if self.held < self.turns:
            body = [Loop("_turn", self.turns, "serial", tuple(body), 0, self.held)]
            if self.row_count != 1:
                body.append(If(self.below(self.row + 1, self.row_count), tuple(self.weights())))
        done = [Combine(part, self.c, "sum", self.target.warp) for part in self.parts]
        stored = [stmt for k in range(len(self.streams)) for stmt in self.in_stream(k, self.stored(k))]
        last = Loop("_c", self.columns, "unrolled", (*done, If(self.below(self.lane, 1), tuple(stored))))
        row = [*lets, *(Clear(part, "sum") for part in self.parts), *body, last]
        return [Loop("_row", self.row_count, "serial", tuple(row))] if self.row_count != 1 else row

    def multiplied(self, half: Dim) -> list[Stmt]:
        """Return the update of a thread's sums with the products of one pack of weights."""
        out: list[Stmt] = []
        factors = [[self.placed(q.other.attr[0], self.at(q.other, q, self.rows[k][1], half * self.pack_other))
                    for q in stream.products] for k, stream in enumerate(self.streams)]
        common = len({factor for own in factors for factor in own}) == 1                # all products multiply the same
        packs: list[Array] = []
        for p in range(len(self.products)):
            if p == 0 or not common:
                first = factors[0][p][0]
                packs.append(self.buffer("register", f"of{p}", memory_dtype(first), self.pack_other, first, self.pack_other))
                loads = [Load(packs[p], 0, *own[p], self.pack_other) for own in factors]
                same = len({own[p] for own in factors}) == 1
                out += loads[:1] if same else [s for k, load in enumerate(loads) for s in self.in_stream(k, [load])]
            else:
                packs.append(packs[0])
        e = index_symbol("_e", self.pack_other)
        held = (self.slot * self.columns + self.c) * self.pack + half * self.pack_other + e
        taken: list[Stmt] = [
            Take(self.parts[p], self.c, "sum", self.moved(product.stage.value, loads={
                product.other: (packs[p], e), product.weight: (self.taken[p], held)})) for p, product in enumerate(self.products)]
        return [*out, Loop("_e", self.pack_other, "unrolled", (Loop("_c", self.columns, "unrolled", tuple(taken)),))]

    def stored(self, k: int) -> list[Stmt]:
        """Return the stages of a stream for a row and a column of a warp, by one of its threads."""
        stream = self.streams[k]
        lets, columns = _coordinates("_column", index_symbol("_place", self.widths[k]), stream.columns)
        dims, own = {**self.rows[k][1], **columns}, dict[Array, Value]()
        totals = {product.stage: p for p, product in enumerate(stream.products)}
        out: list[Stmt] = [Let("_place", self.column(k)), *lets]
        for s in stream.nest.stages:
            value = self.total(s, self.parts[totals[s]], self.c) if s in totals else self.moved(s.value, dims, own=own)
            if s.target.role == "scratch" and s.target.level:
                own[s.target] = value
            else:
                out.append(Store(*self.placed(s.target, self.index(s.index, dims)), value, s.note))
        return [If(self.below(self.column(k), self.widths[k]), tuple(out))]


def _kinds(stream: Stream) -> list[tuple[object, object, Dim]]:
    """Return the dtypes in memory and the length of each product."""
    return [(memory_dtype(p.weight.attr[0]), memory_dtype(p.other.attr[0]), p.along.size) for p in stream.products]


def _coordinates(name: str, at: Dim, axes: Sequence[Axis]) -> tuple[list[Stmt], dict[str, Dim]]:
    """Return definitions of axes for a flat index, and the index of each axis by its name."""
    if len(axes) == 1:
        return [], {axes[0].name: at}
    named = [Axis(f"{name}{k}", a.size) for k, a in enumerate(axes)]
    return lets(at, named), {a.name: own.symbol for a, own in zip(axes, named, strict=True)}
