"""streams: products of few rows (skinny_product.py): a warp has rows of a weight in registers, and multiplies rows with them.

    grid b: thread t in 0..256                                          w, l = t / 32, t % 32
        unrolled s in 0..10:  taken[s] = load8 now x1[2560·column + 8·(32·s + l)]
        wait
        serial row in 0..n step 4
            unrolled s, r in 0..4:  of = load8 x0[2560·(row + r) + 8·(32·s + l)]
                                    unrolled e in 0..8: part[r] += of[e] · taken[s][e]
                         taken[s] = load8 now of what follows in the row of the weight, where that is longer than what is held
            unrolled r:  combine part[r] across 32 threads
                         if l < 1 and row + r < n:  y0[columns·(row + r) + column] = part[r]

The stages before the products are kernels before. The products of a program share a launch: a block has columns of one of them. One
row has a kernel of its own (one_row_streams.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensor_graphs.codegen.loop_ir import Array, Axis, StageProgram, Value, index_symbol, products_alone
from tensor_graphs.codegen.loop_program import Clear, Combine, If, Let, Load, Loop, LoopKernel, Stmt, Store, Take, Wait
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, divides, element_bytes, lets, memory_dtype, within
from tensor_graphs.codegen.skinny_product import ROWS, Stream, streams_of
from tensor_graphs.devices.target import Target
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import same_dim
from tensor_graphs.language.dims import Dim

if TYPE_CHECKING:
    from tensor_graphs.codegen.mapping.one_row_streams import OneRow

WARPS = 8
"""warps of a block, which share what it computes before the products"""

MOST_TAKEN = 12
"""most packs of weights that are on their way to a thread"""

MANY_COLUMNS = ((4224, 1), (32768, 2))
"""(most columns, columns per warp) for the first entry that fits; beyond the last entry a warp has four columns"""

PACKS_OF_ROW, HELD_OF_ROW = 4, 64
"""one row: packs of it in a thread, if warps can share it so; most elements of it in a thread"""

RESIDENT, AHEAD = 2, 8
"""one row: blocks of a multiprocessor, and packs of weights on their way to a thread, for which there are registers"""

MOST_SUMS = 32
"""most sums of a thread, of rows that are multiplied at a time"""


class Streams(NestMapper):
    """The products of a program on their way to a kernel for several rows. one: the program for one row, where it has a kernel."""

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

    # ---- choices ----

    def seed(self) -> NestChoices:
        choices = NestChoices(pack=self.longest_pack(), warps=WARPS, resident=RESIDENT, ahead=1, splits=1)
        if self.one is None or not self.one.always:
            columns, rows = next((n for most, n in MANY_COLUMNS if sum(self.widths) <= most), 4), d.bounds(self.row_count)[1]
            choices = replace(choices, columns=columns, rows=rows if rows < ROWS else ROWS)
        return self.following_from(choices, splits=True)

    def following_from(self, choices: NestChoices, splits: bool = False) -> NestChoices:
        """Return the choices with those numbers of loads that follow from the others. splits: with the warps of a row too."""
        steps, products = self.packs_of_row(choices.pack, 1), len(self.products)
        if choices.columns:
            choices = replace(choices, taken=max(1, min(steps, MOST_TAKEN // (choices.columns * products))))
        if self.one is None:
            return replace(choices, splits=0, ahead=0, resident=0)
        rows, number = self.rows_of_block(choices.resident), choices.splits
        while splits and number < choices.warps and (held := self.packs_of_row(choices.pack, number)) > 1 and (
                held * products > PACKS_OF_ROW or choices.warps // number > rows):
            number *= 2
        ahead = AHEAD // (self.packs_of_row(choices.pack, number) * products)
        return replace(choices, splits=number, ahead=max(1, min(ahead, -(-rows * number // choices.warps))))

    def packs_of_row(self, pack: int, splits: int) -> int:
        """Return the packs of one row for a thread, where `splits` warps share it."""
        return -(-self.length // (splits * self.target.warp * pack))

    def rows_of_block(self, resident: int) -> int:
        """Return the rows of the weights of a block, where one row is multiplied: each multiprocessor has that many blocks."""
        return max(1, -(-sum(self.widths) // (resident * self.target.units)))

    def with_one(self, choices: NestChoices, what: str, size: int) -> NestChoices:
        other = super().with_one(choices, what, size)
        return self.following_from(other) if what in ("pack", "columns", "splits", "warps", "resident") else other

    def why_not(self, choices: NestChoices) -> str | None:
        pack, splits = choices.pack, choices.splits
        if pack > self.longest_pack() or choices.taken > self.packs_of_row(pack, 1):
            return "a row of its weights has no such packs"
        if choices.rows * choices.columns * len(self.products) > MOST_SUMS:
            return "too many sums of a thread"
        if splits and (choices.warps % splits or self.packs_of_row(pack, splits) * pack > HELD_OF_ROW):
            return "its warps cannot hold a row so"
        return super().why_not(choices)

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

    # ---- the kernel ----

    def settle(self) -> None:
        """Note the sizes of a warp and of a block that follow from the choices."""
        self.pack, self.columns = self.choices.pack, self.choices.columns                           # of a warp
        self.warps, self.threads = self.choices.warps, self.choices.warps * self.target.warp
        self.blocks = [-(-n // (self.warps * self.columns)) for n in self.widths] if self.columns else []
        self.pack_other = self.pack_of_other()
        self.turns = self.packs_of_row(self.pack, 1)
        self.held, self.at_once = self.choices.taken, max(1, self.choices.rows)     # turns whose weights are loaded; rows

    def mapped(self, entry: str, times: Dim) -> LoopKernel:
        """Return the kernel of all products, which runs `times` times: 0 or 1."""
        self.settle()
        grid, warp = sum(self.blocks) * times, self.target.warp
        self.block, self.row = index_symbol("_b", grid), index_symbol("_row", self.row_count)
        self.warp, self.lane = index_symbol("_w", self.warps), index_symbol("_l", warp)
        self.thread = index_symbol("_t", self.threads)
        self.k, self.slot = d.dim("_d", 0, self.length - self.pack), index_symbol("_s", self.held)
        self.c, self.r = index_symbol("_c", self.columns), index_symbol("_r", self.at_once)
        self.early = tuple(dict.fromkeys(p.weight.attr[0].number for stream in self.streams for p in stream.products))
        size, weights = self.held * self.columns * self.pack, [product.weight.attr[0] for product in self.products]
        self.taken = [self.buffer("register", f"taken{p}", memory_dtype(a), size, a, self.pack) for p, a in enumerate(weights)]
        self.parts = [self.accumulator(product.stage, self.at_once * self.columns) for product in self.products]
        row = d.dim_min(self.row + self.r, self.row_count - 1) if self.at_once > 1 else self.row
        self.rows = [coordinates(f"_row{k}_", row, stream.rows) for k, stream in enumerate(self.streams)]
        body = (Let("_w", self.thread // warp), Let("_l", self.thread - self.warp * warp), *self.body())
        return self.kernel(entry, [Loop("_b", grid, "grid", (Loop("_t", self.threads, "thread", body),))])

    def body(self) -> list[Stmt]:
        """Return the statements of a thread."""
        return [*self.weights(), Wait(), self.each_row()]

    def everywhere(self, body: Callable[[int], Sequence[Stmt]]) -> list[Stmt]:
        """Return the statements of each stream, which run in its blocks."""
        if len(self.streams) == 1:
            return list(body(0))
        return [If(within(self.values, self.block, sum(self.blocks[:k]), sum(self.blocks[:k + 1])), tuple(body(k)))
                for k in range(len(self.streams))]

    def column(self, k: int) -> Dim:
        """Return a column of a warp in a stream."""
        return ((self.block - sum(self.blocks[:k])) * self.warps + self.warp) * self.columns + self.c

    def place(self, k: int) -> Dim:
        """Return a column of a stream that is there."""
        return index_symbol("_place", self.widths[k])

    def loads(self, k: int, at: Dim) -> list[Stmt]:
        """Return the loads of weights of a stream for the column `_place` of a warp, at one place of a row."""
        stream = self.streams[k]
        lets, columns = coordinates("_column", self.place(k), stream.columns)
        held = (self.slot * self.columns + self.c) * self.pack
        return [*lets, *(Load(self.taken[p], held, product.weight.attr[0], self.index(product.weight.attr[1], {
            **columns, product.along.name: at}), self.pack, how="now") for p, product in enumerate(stream.products))]

    def loads_of_other(self, into: Dim, half: Dim, size: int) -> tuple[list[Stmt], list[Array]]:
        """Return the loads of the other factors' packs, and for each product the registers that have them. into: where. half: of a
        pack of a weight. size: of the registers."""
        factors = [[self.placed(q.other.attr[0], self.index(q.other.attr[1], {
            **self.rows[k][1], q.along.name: self.k + half * self.pack_other})) for q in stream.products]
            for k, stream in enumerate(self.streams)]
        common, packs, out = len({factor for own in factors for factor in own}) == 1, list[Array](), list[Stmt]()
        for p in range(len(self.products)):
            if p and common:                                        # all products multiply the same
                packs.append(packs[0])
                continue
            first = factors[0][p][0]
            packs.append(self.buffer("register", f"of{p}", memory_dtype(first), size, first, self.pack_other))
            loads = [Load(packs[p], into, *own[p], self.pack_other) for own in factors]
            same = len({own[p] for own in factors}) == 1
            out += loads[:1] if same else self.everywhere(lambda k, loads=loads: [loads[k]])    # type: ignore[misc]
        return out, packs

    def takes(self, at: Dim, held: Dim, packs: Sequence[Array], of: Dim) -> list[Stmt]:
        """Return the update of a thread's sums at `at` by an element of each weight that is held and one of the other factors."""
        return [Take(self.parts[p], at, "sum", self.moved(product.stage.value, loads={
            product.other: (packs[p], of), product.weight: (self.taken[p], held)})) for p, product in enumerate(self.products)]

    def ended(self, k: int, column: Dim, totals: Sequence[Value]) -> list[Stmt]:
        """Return the stages of a stream for one row and column, if that is there. totals: what its products are."""
        stream, own = self.streams[k], dict[Array, Value]()
        lets, columns = coordinates("_column", self.place(k), stream.columns)
        dims, products = {**self.rows[k][1], **columns}, {product.stage: p for p, product in enumerate(stream.products)}
        out: list[Stmt] = [Let("_place", column), *lets]
        for s in stream.nest.stages:
            value = totals[products[s]] if s in products else self.moved(s.value, dims, own=own)
            if s.target.role == "scratch" and s.target.level:
                own[s.target] = value
            else:
                out.append(Store(*self.placed(s.target, self.index(s.index, dims)), value, s.note))
        return [If(self.below(column, self.widths[k]), tuple(out))]

    # ---- several rows ----

    def weights(self) -> list[Stmt]:
        """Return the loads of the first packs of weights."""
        return self.over_packs(0, self.of_columns(self.k))

    def of_columns(self, at: Dim) -> list[Stmt]:
        """Return the loads of weights for all columns of a warp; those of columns after the last are of the last."""
        return self.everywhere(lambda k: [Loop("_c", self.columns, "unrolled", (
            Let("_place", d.dim_min(self.column(k), self.widths[k] - 1)), *self.loads(k, at)))])

    def over_packs(self, turn: Dim, body: Sequence[Stmt], after: Sequence[Stmt] = ()) -> list[Stmt]:
        """Return the loop over packs of a row whose weights are held, from a turn on. A thread has one pack of a turn. after:
        statements that follow those of a pack, whether it is in the row or not."""
        at = ((turn + self.slot) * self.target.warp + self.lane) * self.pack
        return [Loop("_s", self.held, "unrolled", (*self.inside("_d", at, self.length, body), *after))]

    def following(self, turn: Dim) -> list[Stmt]:
        """Return the loads of the packs that take the place of those just multiplied, so that as many are always on their way."""
        at = ((turn + self.held + self.slot) * self.target.warp + self.lane) * self.pack
        return self.inside("_f", at, self.length, self.of_columns(d.dim("_f", 0, self.length - self.pack)))

    def each_row(self) -> Stmt:
        """Return the dot products of rows with the weights in a warp's registers, and the stages that use the results."""
        turn = index_symbol("_turn", self.turns) if self.held < self.turns else 0
        half, e = index_symbol("_half", self.pack // self.pack_other), index_symbol("_e", self.pack_other)
        at, there = self.r * self.columns + self.c, self.below(self.row + self.r, self.row_count)
        loads, packs = self.loads_of_other(0, half, self.pack_other)
        takes = self.takes(at, (self.slot * self.columns + self.c) * self.pack + half * self.pack_other + e, packs, e)
        lets = [let for own, _ in self.rows for let in own]
        elements = Loop("_e", self.pack_other, "unrolled", (Loop("_c", self.columns, "unrolled", tuple(takes)),))
        rows = Loop("_r", self.at_once, "unrolled", (*lets, *loads, elements))
        body = self.over_packs(turn, [Loop("_half", self.pack // self.pack_other, "unrolled", (rows,))],
                               self.following(turn) if self.held < self.turns else ())
        if self.held < self.turns:
            again = If(self.below(self.row + self.at_once, self.row_count), tuple(self.weights()))
            body = [Loop("_turn", self.turns, "serial", tuple(body), 0, self.held), again]
        totals = [self.total(product.stage, part, at) for product, part in zip(self.products, self.parts, strict=True)]
        stored = If(self.below(self.lane, 1), tuple(self.everywhere(lambda k: self.ended(k, self.column(k), totals))))
        last = Loop("_c", self.columns, "unrolled", (*(Combine(part, at, "sum", self.target.warp) for part in self.parts),
                                                     If(there, (stored,)) if self.at_once > 1 else stored))
        sums = [Clear(part, "sum") for part in self.parts]
        last = Loop("_r", self.at_once, "unrolled", (*lets, last))
        return Loop("_row", self.row_count, "serial", (*sums, *body, last), 0, self.at_once)


def _kinds(stream: Stream) -> list[tuple[object, object, Dim]]:
    """Return the dtypes in memory and the length of each product."""
    return [(memory_dtype(p.weight.attr[0]), memory_dtype(p.other.attr[0]), p.along.size) for p in stream.products]


def coordinates(name: str, at: Dim, axes: Sequence[Axis]) -> tuple[list[Stmt], dict[str, Dim]]:
    """Return definitions of axes for a flat index, and the index of each axis by its name."""
    if len(axes) == 1:
        return [], {axes[0].name: at}
    named = [Axis(f"{name}{k}", a.size) for k, a in enumerate(axes)]
    return lets(at, named), {a.name: own.symbol for a, own in zip(axes, named, strict=True)}
