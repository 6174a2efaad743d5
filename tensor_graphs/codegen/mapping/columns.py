"""columns: one reduction across memory: warps share the rows, and each of their threads has a pack of columns.

    grid b: thread w in 0..16: thread l in 0..32
        serial r in w..n step 16:  p = load4 x0[columns·r + column];  vector v in 0..4: part[v] += p[v]
        tile[w][l][v] = part[v];  barrier
        total = sum over w of tile[w][…];  y0[column] = total
"""

from __future__ import annotations

from tensor_graphs.codegen.loop_ir import Nest, across, index_symbol
from tensor_graphs.codegen.loop_program import Barrier, Clear, Let, Loop, LoopKernel, Stmt, Store, Take, Wait
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, lets
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

WARPS, FEW_WARPS = 16, 8
"""warps of a block, which read as many rows at the same time: usually, and for very few rows"""

AHEAD, AHEAD_COMPUTED = 16, 4
"""unrolled rows of a warp: where rows are only added, and where their elements are computed first"""


def is_columns(nest: Nest) -> bool:
    if len(nest.stages) != 1:
        return False
    (s,) = nest.stages
    inner = {a.name for a in (*nest.axes, *s.axes)}
    return (s.monoid is not None and bool(s.axes) and s.level == len(nest.axes) and s.target.level == 0 and across(s)
            and not any(str(x) in inner for a in s.reduce for x in d.symbols(a.size)))


class ColumnForm(NestMapper):
    def mapped(self, entry: str) -> LoopKernel:
        (s,) = self.nest.stages
        assert s.monoid is not None
        axis, outer, warp = s.axes[-1], (*self.nest.axes, *s.axes[:-1]), self.target.warp
        pack = self.pack_of([(s, axis)])
        blocks = d.dim_max(1, d.ceil_div(axis.size, warp * pack))
        warps = WARPS if d.bounds(s.reduce[-1].size)[1] > FEW_WARPS // 2 else FEW_WARPS
        warps = min(warps, self.target.threads // warp)
        grid = d.product(a.size for a in outer) * blocks
        b, w, thread = index_symbol("_b", grid), index_symbol("_w", warps), index_symbol("_l", warp)
        apart = warp + (warp // pack if pack > 1 else 0)            # of a lane's numbers to the next lane's: no two in one bank
        part = self.accumulator(s, pack)
        tile = self.buffer("shared", f"tile_{s.target.name}", part.dtype, warps * apart * pack)
        lane = index_symbol("_v", pack)
        turn = index_symbol("_turn", d.dim_max(1, d.product(a.size for a in outer)))
        at = b - index_symbol("_turn", d.dim_max(1, grid)) * blocks
        body: list[Stmt] = [
            Wait(), Let("_turn", b // blocks), *lets(turn, outer), Clear(part, s.monoid),
            *self.inside(axis.name, (at * warp + thread) * pack, axis.size, self.rows(pack, warps)),
            Loop("_v", pack, "unrolled", (Store(tile, (w * pack + lane) * apart + thread, self.values.load(part, lane)),)),
            Barrier("block")]
        turns = -(-pack // warps)
        total, number = self.accumulator(s, 1), index_symbol("_at", turns * warps * warp)
        k, one = index_symbol("_k", turns), index_symbol("_n", warps)
        place = (number - number // pack * pack) * apart + number // pack
        column: Dim = at * warp * pack + number                     # another name than the axis's, of which values are known
        dims = {axis.name: d.dim("_column", 0, max(0, d.bounds(axis.size)[1] - 1))}
        target, index = self.placed(s.target, self.index(s.index, dims))
        summed: list[Stmt] = [
            Clear(total, s.monoid),
            Loop("_n", warps, "unrolled", (Take(total, 0, s.monoid, self.values.load(tile, one * apart * pack + place)),)),
            Store(target, index, self.total(s, total))]
        inside = self.inside("_at", k * (warps * warp) + w * warp + thread, warp * pack,
                             self.inside("_column", column, axis.size, summed))
        body.append(Loop("_k", turns, "unrolled", tuple(inside)))
        loops = Loop("_w", warps, "thread", (Loop("_l", warp, "thread", tuple(body)),))
        return self.kernel(entry, [Loop("_b", grid, "grid", (loops,))])

    def rows(self, pack: int, warps: int) -> list[Stmt]:
        """Return the loops of a warp over its rows."""
        (s,) = self.nest.stages
        assert s.monoid is not None
        part, axis, last = self.buffers[0].array, s.axes[-1], s.reduce[-1]
        unroll = AHEAD if s.value.op == "load" else AHEAD_COMPUTED
        if pack == 1:
            one: list[Stmt] = [Take(part, 0, s.monoid, self.moved(s.value), s.note)]
        else:
            lane = index_symbol("_v", pack)
            before, copied, fixed = self.packs([s.value], axis, pack)
            value = self.moved(s.value, self.in_pack(axis, pack), copied, fixed)
            one = [*before, Loop("_v", pack, "vector", (Take(part, lane, s.monoid, value, s.note),))]
        row = Loop(last.name, last.size, "serial", tuple(one), index_symbol("_w", warps), warps, unroll)
        return self.reducing(s.reduce[:-1], [row])
