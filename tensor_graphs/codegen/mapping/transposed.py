"""transposed: nests whose operands are contiguous along another axis than their output, in squares turned in shared memory.

    grid b: thread t in 0..256
        serial at in t..64·64 step 256:  tile[o][i] = x0[rows·i + o]          along o, as x0 lies
        barrier
        serial at in 4·t..64·64 step 1024:  y0[columns·o + i] = tile[o][i]    along i, as y0 lies
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tensor_graphs.codegen.loop_ir import Array, Axis, Stage, Value, index_symbol, lies_across, values_in
from tensor_graphs.codegen.loop_program import Barrier, Clear, Let, Load, Loop, LoopKernel, Put, Stmt, Wait
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, divides, element_bytes, lets, memory_dtype
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

WARPS = 8
"""warps of a block"""

SIDE = 64
"""side length, in elements, of a block in which strided operands are transposed one by one"""

MOST = 48 << 10
"""most bytes of shared memory of a block"""


class TransposedForm(NestMapper):
    @property
    def along(self) -> list[tuple[Stage, Axis]]:
        """The stages with the axis of their packs."""
        return [(s, self.nest.stages[0].axes[0]) for s in self.nest.stages]

    def look(self) -> None:
        """Note the axes of the nest, and what it loads."""
        outer, (inner,) = self.nest.tile, self.nest.stages[0].axes
        assert outer is not None
        self.outer, self.inner = outer, inner
        loads = dict.fromkeys(v for s in self.nest.stages for v in values_in(s.value) if v.op == "load")
        self.loads = list(loads)
        self.across = [v for v in loads if v.attr[0].level == 0 and not v.symbols & set(self.program.gathered)
                       and lies_across(v, outer.name, inner.name)]

    def seed(self) -> NestChoices:
        self.look()
        pack = self.pack_of(self.along)
        tall = self.tall(pack)
        warps = min(WARPS, self.line() ** 2 // (self.target.warp * max(tall, pack))) if tall else WARPS
        return NestChoices(pack=pack, warps=warps, side=SIDE, across=max(1, tall))

    def why_not(self, choices: NestChoices) -> str | None:
        if (why := super().why_not(choices) or self.why_no_pack(choices.pack, self.along)) is not None:
            return why
        self.look()
        tall, threads = self.tall(choices.pack), choices.warps * self.target.warp
        if choices.across == 1:
            return "a side has whole packs" if choices.side % choices.pack else None
        if choices.across != tall or choices.side != SIDE:
            return "operands that lie across have packs of one access, in squares of a line"
        side = self.line()
        if side * side % (threads * max(tall, choices.pack)):
            return "a square is packs for all threads"
        rows = side * side // (threads * tall)                      # of a thread, which it puts into a line of the square at once
        return "a thread would have more rows than an access has elements" if rows > tall else None

    def mapped(self, entry: str) -> LoopKernel:
        self.look()
        self.threads, self.pack = self.choices.warps * self.target.warp, self.choices.pack
        tall = self.choices.across
        self.side = side = self.line() if tall > 1 else self.choices.side
        body = self.in_packs(tall, side) if tall > 1 else self.one_by_one(side)
        return self.kernel(entry, self.squares(side, body))

    def line(self) -> int:
        """Return the elements of a cache line of the operands that lie across."""
        return self.target.line // element_bytes(self.across[0].attr[0])

    def tall(self, pack: int) -> int:
        """Return the elements of a pack along the outer axis; 0 where operands that lie across have no such packs."""
        widths = {element_bytes(v.attr[0]) for v in self.across}
        if len(widths) != 1 or not widths <= {2, 4}:
            return 0
        (width,) = widths
        tall, side = self.target.vector // width, self.target.line // width
        packs = pack > 1 and tall % pack == 0 and divides(tall, self.outer.size) and all(
            divides(tall, v.attr[1] - self.outer.symbol) for v in self.across)
        return tall if packs and len(self.across) * self.target.line * side <= MOST else 0

    def squares(self, side: int, body: Sequence[Stmt]) -> list[Stmt]:
        """Return the loops of blocks, which cover `side` by `side` iterations of two axes, and of threads."""
        others = [a for a in self.nest.axes if a is not self.outer]
        down, right = d.ceil_div(self.outer.size, side), d.ceil_div(self.inner.size, side)
        grid = d.product(a.size for a in others) * down * right
        b, turn = index_symbol("_b", grid), index_symbol("_turn", d.dim_max(1, d.product(a.size for a in others)))
        rest = index_symbol("_rest", d.dim_max(1, grid))
        begin: list[Stmt] = [
            Let("_rest", b // right), Let("_right", (b - rest * right) * side), Let("_turn", rest // down),
            Let("_down", (rest - turn * down) * side), *lets(turn, others)]
        return [Loop("_b", grid, "grid", (Loop("_t", self.threads, "thread", (Wait(), *begin, *body)),))]

    def at(self, o: Dim, i: Dim, body: Sequence[Stmt]) -> list[Stmt]:
        """Return statements at an iteration of a block, if it is one of the axes."""
        def first(name: str, axis: Axis) -> Dim:
            return d.dim(name, 0, max(0, d.bounds(axis.size)[1] - 1) // self.side * self.side)

        inner = self.inside(self.inner.name, first("_right", self.inner) + i, self.inner.size, body)
        return self.inside(self.outer.name, first("_down", self.outer) + o, self.outer.size, inner)

    def tile(self, place: Literal["register", "shared"], name: str, load: Value, size: int, lanes: int = 1, row: int = 0) -> Array:
        """Return memory for elements of an operand, as they are stored."""
        array = load.attr[0]
        return self.buffer(place, f"{name}{load.number}", memory_dtype(array), size, array, lanes, row)

    def one_by_one(self, side: int) -> list[Stmt]:
        """Return statements that read operands along the outer axis, and store along the inner one what they read of each tile."""
        rows = {v: side + max(1, 4 // element_bytes(v.attr[0])) for v in self.across}   # odd numbers of words: no two in one bank
        tiles = {v: self.tile("shared", "tile", v, side * rows[v]) for v in self.across}
        at = index_symbol("_at", side * side)
        here = self.at(at - at // side * side, at // side, [
            Load(tiles[v], (at - at // side * side) * rows[v] + at // side, v.attr[0], v.attr[1]) for v in self.across])
        t = index_symbol("_t", self.threads)
        o, i = at // side, at - at // side * side
        lane = index_symbol("_v", self.pack) if self.pack > 1 else 0
        placed = {v: (tiles[v], o * rows[v] + i + lane) for v in self.across}
        there = self.at(o, i, self.elements(self.nest.stages, (*self.nest.axes, self.inner), self.pack, copied=placed))
        return [Loop("_at", side * side, "serial", tuple(here), t, self.threads), Barrier("block"),
                Loop("_at", side * side, "serial", tuple(there), t * self.pack, self.threads * self.pack)]

    def in_packs(self, tall: int, side: int) -> list[Stmt]:
        """Return the same in packs, in blocks whose rows are cache lines; other operands are loaded before the barrier."""
        pack, t = self.pack, index_symbol("_t", self.threads)
        rows, turns, per_row = max(1, side * side // (self.threads * tall)), side * side // (self.threads * pack), side // tall
        column, row = (t - t // per_row * per_row) * tall, t // per_row * rows
        k, e, r = index_symbol("_k", rows), index_symbol("_e", tall), index_symbol("_v", rows)
        tiles = {v: self.tile("shared", "tile", v, side * side, row=side) for v in self.across}
        taken = {v: self.tile("register", "across", v, rows * tall, tall) for v in self.across}
        out: list[Stmt] = [Clear(taken[v], "sum") for v in self.across]
        out.append(Loop("_k", rows, "unrolled", tuple(self.at(column, row + k, [
            Load(taken[v], k * tall, v.attr[0], v.attr[1], tall) for v in self.across]))))
        at = index_symbol("_at", side * side)
        step = index_symbol("_k", turns)
        early = [v for v in self.loads if v not in self.across and not v.args and self.packable(v, self.inner, pack)
                 and not v.symbols & set(self.program.gathered)]
        copies = {v: self.tile("register", "early", v, turns * pack, pack) for v in early}
        o, i, here = at // side, at - at // side * side, Let("_at", (step * self.threads + t) * pack)
        if early:
            loads = [Load(copies[v], step * pack, v.attr[0], v.attr[1], pack) for v in early]
            out.append(Loop("_k", turns, "unrolled", (here, *self.at(o, i, loads))))
        for v in self.across:
            turned = self.tile("register", "turned", v, rows, rows)
            out.append(Loop("_e", tall, "unrolled", (
                Loop("_v", rows, "vector", (Load(turned, r, taken[v], r * tall + e),)),
                Put(tiles[v], (column + e) * side + row, turned, 0, rows))))
        lane = index_symbol("_v", pack)
        placed: dict[Value, tuple[Array, Dim]] = {v: (copies[v], step * pack + lane) for v in early}
        before: list[Stmt] = []
        for v in self.across:
            line = self.tile("register", "line", v, pack, pack)
            before.append(Load(line, 0, tiles[v], o * side + i, pack))
            placed[v] = line, lane
        stored = self.elements(self.nest.stages, (*self.nest.axes, self.inner), pack, copied=placed)
        out += [Barrier("block"), Loop("_k", turns, "unrolled", (here, *self.at(o, i, [*before, *stored])))]
        return out
