"""columns: reductions of the same columns across memory: warps share the rows, and each of their threads has a pack of columns.

    grid b: thread w in 0..16: thread l in 0..32
        serial r in w..n step 16:  p = load4 x0[columns·r + column];  vector v in 0..4: part[v] += p[v]
        tile[w][l][v] = part[v];  barrier
        total = sum over w of tile[w][…];  y0[column] = total
"""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, Value, across, index_symbol, values_in
from tensor_graphs.codegen.loop_program import Barrier, Clear, Let, Loop, LoopKernel, Stmt, Store, Take, Wait
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, lets
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

WARPS, FEW_WARPS = 16, 8
"""warps of a block, which read as many rows at the same time: usually, and for very few rows"""

AHEAD, AHEAD_COMPUTED = 16, 4
"""unrolled rows of a warp: where rows are only added, and where their elements are computed first"""


def is_columns(nest: Nest) -> bool:
    loops = {(s.axes, s.reduce) for s in nest.stages}
    return len(loops) == 1 and all(_is_column(nest, s) for s in nest.stages)


def _is_column(nest: Nest, s: Stage) -> bool:
    inner = {a.name for a in (*nest.axes, *s.axes)}
    return (s.monoid is not None and bool(s.axes) and s.level == len(nest.axes) and s.target.level == 0 and across(s)
            and not any(str(x) in inner for a in s.reduce for x in d.symbols(a.size))
            and not any(v.op == "load" and v.attr[0] == o.target for o in nest.stages for v in values_in(s.value)))


class ColumnForm(NestMapper):
    @property
    def along(self) -> list[tuple[Stage, Axis]]:
        """The stages with the axis of their packs."""
        return [(s, self.nest.stages[0].axes[-1]) for s in self.nest.stages]

    def seed(self) -> NestChoices:
        s, several = self.nest.stages[0], len(self.nest.stages)
        warps = WARPS if d.bounds(s.reduce[-1].size)[1] > FEW_WARPS // 2 else FEW_WARPS
        return NestChoices(pack=self.pack_of(self.along), warps=min(warps, self.target.threads // self.target.warp),
                           ahead=AHEAD if s.value.op == "load" else AHEAD_COMPUTED * several)

    def why_not(self, choices: NestChoices) -> str | None:
        return super().why_not(choices) or self.why_no_pack(choices.pack, self.along)

    def mapped(self, entry: str) -> LoopKernel:
        stages = self.nest.stages
        s = stages[0]
        axis, outer, warp = s.axes[-1], (*self.nest.axes, *s.axes[:-1]), self.target.warp
        pack, warps = self.choices.pack, self.choices.warps
        blocks = d.dim_max(1, d.ceil_div(axis.size, warp * pack))
        grid = d.product(a.size for a in outer) * blocks
        b, w, thread = index_symbol("_b", grid), index_symbol("_w", warps), index_symbol("_l", warp)
        apart = warp + (warp // pack if pack > 1 else 0)            # of a lane's numbers to the next lane's: no two in one bank
        lane = index_symbol("_v", pack)
        turn = index_symbol("_turn", d.dim_max(1, d.product(a.size for a in outer)))
        at = b - index_symbol("_turn", d.dim_max(1, grid)) * blocks
        parts = [self.accumulator(s, pack) for s in stages]
        tiles = [self.buffer("shared", f"tile_{s.target.name}", part.dtype, warps * apart * pack)
                 for s, part in zip(stages, parts, strict=True)]
        body: list[Stmt] = [
            Wait(), Let("_turn", b // blocks), *lets(turn, outer),
            *(Clear(part, s.monoid) for s, part in zip(stages, parts, strict=True) if s.monoid is not None),
            *self.inside(axis.name, (at * warp + thread) * pack, axis.size, self.rows(pack, warps, parts)),
            *(Loop("_v", pack, "unrolled", (Store(tile, (w * pack + lane) * apart + thread, self.values.load(part, lane)),))
              for part, tile in zip(parts, tiles, strict=True)),
            Barrier("block")]
        turns = -(-pack // warps)
        number = index_symbol("_at", turns * warps * warp)
        k = index_symbol("_k", turns)
        column: Dim = at * warp * pack + number                     # another name than the axis's, of which values are known
        summed = [x for s, tile in zip(stages, tiles, strict=True)
                  for x in self.of_warps(s, tile, warps, apart * pack, (number - number // pack * pack) * apart + number // pack)]
        inside = self.inside("_at", k * (warps * warp) + w * warp + thread, warp * pack,
                             self.inside("_column", column, axis.size, summed))
        body.append(Loop("_k", turns, "unrolled", tuple(inside)))
        loops = Loop("_w", warps, "thread", (Loop("_l", warp, "thread", tuple(body)),))
        return self.kernel(entry, [Loop("_b", grid, "grid", (loops,))])

    def of_warps(self, s: Stage, tile: Array, warps: int, apart: int, place: Dim) -> list[Stmt]:
        """Return what combines the numbers of all warps for a column, and stores it."""
        assert s.monoid is not None
        axis, one, total = s.axes[-1], index_symbol("_n", warps), self.accumulator(s, 1)
        dims = {axis.name: d.dim("_column", 0, max(0, d.bounds(axis.size)[1] - 1))}
        target, index = self.placed(s.target, self.index(s.index, dims))
        return [Clear(total, s.monoid),
                Loop("_n", warps, "unrolled", (Take(total, 0, s.monoid, self.values.load(tile, one * apart + place)),)),
                Store(target, index, self.total(s, total))]

    def rows(self, pack: int, warps: int, parts: Sequence[Array]) -> list[Stmt]:
        """Return the loops of a warp over its rows. What several stages read of one row is loaded before."""
        stages = self.nest.stages
        s, several = stages[0], len(stages) > 1
        axis, last, lane = s.axes[-1], s.reduce[-1], index_symbol("_v", pack) if pack > 1 else 0
        takes, first = list[Stmt](), list[Stmt]()
        copied = dict[Value, tuple[Array, Dim]]()
        if pack > 1 and several:
            over = {a.name for a in s.reduce}
            same = [v for stage in stages for v in values_in(stage.value) if v.op == "load" and v.symbols.isdisjoint(over)]
            first, copied, _ = self.packs(same, axis, pack)
        before, copies, fixed = list[Stmt](), dict[Value, tuple[Array, Dim]](), set[Value]()
        if pack > 1:
            before, copies, fixed = self.packs([stage.value for stage in stages], axis, pack, copied=copied)
        for stage, part in zip(stages, parts, strict=True):
            assert stage.monoid is not None
            value = self.moved(stage.value, self.in_pack(axis, pack) if pack > 1 else {}, copies, fixed)
            takes.append(Take(part, lane, stage.monoid, value, stage.note))
        one = [*before, Loop("_v", pack, "vector", tuple(takes))] if pack > 1 else takes
        row = Loop(last.name, last.size, "serial", tuple(one), index_symbol("_w", warps), warps, self.choices.ahead)
        return [*first, *self.reducing(s.reduce[:-1], [row])]
