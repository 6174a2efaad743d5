"""column_rows: several stages over the same columns across memory, as a softmax along a middle axis: a block has some columns, its
threads share their rows, and what is computed of each row stays in registers where it fits.

    grid b: thread w in 0..16: thread l in 0..32                          column = 32·b + l
        unrolled k:  x[k] = load x0[columns·(16·k + w) + column];  m = max(m, x[k])
        tile[w][l] = m;  barrier;  m = max over w of tile[w][l];  barrier
        unrolled k:  e[k] = exp(x[k] − m);  s += e[k]
        tile[w][l] = s;  barrier;  s = sum over w of tile[w][l];  barrier
        unrolled k:  store y0[columns·(16·k + w) + column] = e[k] / s
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tensor_graphs.codegen.default_schedule import on_axes
from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Nest,
    Reduce,
    Stage,
    StageProgram,
    Top,
    Value,
    across,
    computed_in,
    index_symbol,
    parallel,
    values_in,
)
from tensor_graphs.codegen.loop_program import Barrier, Clear, If, Let, Load, Loop, LoopKernel, Stmt, Store, Take, Wait
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.columns import WARPS
from tensor_graphs.codegen.mapping.elementwise import SHORT_SUM
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, element_bytes, lets
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

HELD_WORDS, AHEAD = 64, 4
"""most 4-byte words of each array of a thread's rows in registers; unrolled rows where there are more"""

LEAST_COLUMNS = 4
"""least threads of a block along a row, whose accesses are neighbours"""

Kind = str
"""of a stage: "reduce" (one number of each column), "column" (computed from such numbers), "element" (of each row and column)"""


@dataclass(frozen=True)
class _Columns:
    """The stages of a nest over the common axes of rows and columns, each with its kind."""

    rows: Axis
    columns: Axis
    stages: tuple[tuple[Kind, Stage], ...]


def columns_of(program: StageProgram, nest: Nest) -> _Columns | None:
    """Return the stages of a nest over the same columns; None where these are no reductions across memory, of which others read."""
    level = parallel(nest)
    if len(nest.stages) < 2 or program.gathered or nest.blocks is not None or nest.tile is not None or len(nest.axes) > level + 1:
        return None
    own = [_own_axes(nest, s, level) for s in nest.stages]
    reductions = [axes for s, axes in zip(nest.stages, own, strict=True) if s.monoid is not None and axes is not None]
    if None in own or not reductions or not all(across(s) for s in nest.stages if s.monoid is not None):
        return None
    sizes = tuple(a.size for a in reductions[0])
    rows, columns = Axis("_r", sizes[0]), Axis("_c", sizes[1])
    outer = {a.name for a in nest.axes[:level]}
    if not d.is_static(columns.size) or not all(d.bounds(x)[1] > 1 for x in sizes):
        return None
    if any(str(x) not in outer for x in d.symbols(rows.size)):      # a last part may be shorter
        return None
    stages = list[tuple[Kind, Stage]]()
    for s, axes in zip(nest.stages, own, strict=True):
        assert axes is not None
        if tuple(a.size for a in axes) != sizes[2 - len(axes):]:
            return None
        common = (rows, columns)[2 - len(axes):]
        value = on_axes(program.values, s.value, axes, common)
        kind = "reduce" if s.monoid is not None else "element" if len(axes) == 2 else "column"
        index = d.substitute(s.index, {a.name: b.symbol for a, b in zip(axes, common, strict=True)})
        does = replace(s.does, over=(rows,)) if isinstance(s.does, Reduce) else None
        stages.append((kind, replace(s, value=value, index=index, does=does,
                                     axes=(rows, columns) if kind == "element" else (columns,))))
    result = _Columns(rows, columns, tuple(stages))
    return result if _are_own(result) else None


def _own_axes(nest: Nest, s: Stage, level: int) -> tuple[Axis, ...] | None:
    """Return the axes of rows and columns of a stage, or of columns alone; None for what has others."""
    if s.scan is not None or s.held or s.product or s.level not in (level, level + 1) or isinstance(s.monoid, Top):
        return None
    axes = (*s.reduce, *s.axes) if s.monoid is not None else (*nest.axes[level:s.level], *s.axes)
    fits = len(axes) == 2 if s.monoid is not None or s.level > level else len(axes) in (1, 2)
    return axes if fits and len(s.reduce) < 2 and (s.monoid is None or s.level == level) else None


def _are_own(of: _Columns) -> bool:
    """Return whether each thread reads only numbers of its own rows and columns of what the stages compute."""
    indices = dict[Array, tuple[Kind, Dim]]()
    for kind, s in of.stages:
        if any(v.op == "load" and v.attr[0] in indices and (v.args or v.attr[1] != indices[v.attr[0]][1]
                                                            or (kind == "column" and indices[v.attr[0]][0] == "element"))
               for v in values_in(s.value)):
            return False
        if s.target in indices:
            return False
        if s.target.role == "scratch" and s.target.level:
            indices[s.target] = kind, s.index
        elif any(v.op == "load" and v.attr[0] == s.target for _, other in of.stages for v in values_in(other.value)):
            return False
        if kind != "element" and s.target.level and s.index != of.columns.symbol:
            return False
    return True


class ColumnRowsForm(NestMapper):
    @cached_property
    def of(self) -> _Columns:
        of = columns_of(self.program, self.nest)
        assert of is not None
        return of

    @property
    def along(self) -> list[tuple[Stage, Axis]]:
        """The stages that access rows, with the axis of their packs."""
        return [(s, self.of.columns) for kind, s in self.of.stages if kind != "column"]

    def seed(self) -> NestChoices:
        units, threads = self.target.units, self.target.threads
        turns, columns = (d.bounds(x)[1] for x in (self.turns, self.of.columns.size))
        pack = self.pack_of(self.along)
        while pack > 1 and turns * -(-columns // (self.lanes(pack) * pack)) < 2 * units:
            pack //= 2
        few = turns * -(-columns // (self.lanes(pack) * pack)) < 2 * units
        warps = 2 * WARPS if few or self.row_turns(WARPS) * pack > HELD_WORDS else WARPS
        rows = 1 << (d.bounds(self.of.rows.size)[1] - 1).bit_length()
        least = max(1, self.target.warp // self.lanes(pack))
        return NestChoices(pack=pack, warps=max(least, min(warps, rows, threads // self.lanes(pack))), ahead=AHEAD)

    def why_not(self, choices: NestChoices) -> str | None:
        threads = choices.warps * self.lanes(choices.pack)
        if threads > self.target.threads or threads % self.target.warp:
            return f"a block has no {threads} threads"
        return self.why_no_pack(choices.pack, self.along)

    @property
    def turns(self) -> Dim:
        """The iterations of the outer axes."""
        return d.product(a.size for a in self.nest.axes[:parallel(self.nest)])

    def lanes(self, pack: int) -> int:
        """Return the threads along a row."""
        columns, lanes = int(d.evaluate(self.of.columns.size, {})), min(LEAST_COLUMNS, self.target.warp)
        while lanes < self.target.warp and lanes * pack < columns:
            lanes *= 2
        return lanes

    def row_turns(self, warps: int) -> int:
        """Return the rows of a thread."""
        return -(-d.bounds(self.of.rows.size)[1] // warps)

    def mapped(self, entry: str) -> LoopKernel:
        pack, warps, outer = self.choices.pack, self.choices.warps, self.nest.axes[:parallel(self.nest)]
        self.width = self.lanes(pack) * pack
        blocks = d.ceil_div(self.of.columns.size, self.width)
        grid = self.turns * blocks
        b, self.w, self.l = index_symbol("_b", grid), index_symbol("_w", warps), index_symbol("_l", self.lanes(pack))
        turn = index_symbol("_turn", d.dim_max(1, self.turns))
        self.first = index_symbol("_first", d.dim_max(1, blocks * self.width - self.width + 1))
        self.is_unrolled = self.row_turns(warps) * pack <= HELD_WORDS
        body: list[Stmt] = [Wait(), Let("_turn", b // blocks), *lets(turn, outer), Let("_first", (b - turn * blocks) * self.width),
                            Let(self.of.columns.name, self.first + self.l * pack)]
        loaded = self.load_ahead()
        self.place(turn)
        body += loaded
        for kind, s in self.of.stages:
            body += {"reduce": self.reduced, "column": self.column, "element": self.element}[kind](s)
        loops = Loop("_w", warps, "thread", (Loop("_l", self.lanes(pack), "thread", tuple(body)),))
        return self.kernel(entry, [Loop("_b", grid, "grid", (loops,))])

    # ---- memory ----

    def place(self, turn: Dim) -> None:
        """Decide where the numbers of the columns and of the rows are."""
        number = index_symbol("_k", self.row_turns(self.choices.warps)) * self.choices.pack + index_symbol("_v", self.choices.pack)
        for kind, s in self.of.stages:
            array = s.target
            if array.role != "scratch" or not array.level:
                continue
            dtype = computed_in(array.dtype)
            if kind != "element":
                own = self.buffer("shared", array.name, dtype, self.width)
                self.places[array] = lambda index, own=own: (own, index - self.first)       # type: ignore[misc]
            elif self.is_unrolled:
                own = self.buffer("register", array.name, dtype, self.row_turns(self.choices.warps) * self.choices.pack)
                self.singly.add(array)
                self.places[array] = lambda _, own=own: (own, number)                       # type: ignore[misc]
            else:
                whole = replace(array, name=f"{array.name}_rows", level=0, size=array.size * self.turns)
                self.scratch.append(whole)
                self.places[array] = lambda index, whole=whole, size=array.size: (whole, turn * size + index)  # type: ignore[misc]

    def load_ahead(self) -> list[Stmt]:
        """Return loads of what several stages read of the same rows, to registers."""
        self.loads, pack = dict[Value, tuple[Array, Dim]](), self.choices.pack
        if not self.is_unrolled or pack == 1:
            return []
        uses, out, own = dict[Value, int](), list[Stmt](), {s.target for _, s in self.of.stages}
        for kind, s in self.of.stages:
            for v in values_in(s.value) if kind != "column" else ():
                if v.op == "load" and not v.args and v.attr[0] not in own and self.of.rows.name in v.symbols \
                        and self.packable(v, self.of.columns, pack):
                    uses[v] = uses.get(v, 0) + 1
        words, number = 0, index_symbol("_k", self.row_turns(self.choices.warps)) * pack
        for v in (v for v, count in uses.items() if count > 1):
            array, index, _ = v.attr
            words += self.row_turns(self.choices.warps) * pack * element_bytes(array) // 4
            if words > HELD_WORDS:
                break
            row = self.buffer("register", f"row_{array.name}", array.dtype, self.row_turns(self.choices.warps) * pack, array,
                              lanes=pack)
            self.loads[v] = row, number + index_symbol("_v", pack)
            out += self.over_rows([Load(row, number, array, self.index(index, {}), pack)])
        return out

    # ---- loops ----

    def over_rows(self, body: Sequence[Stmt]) -> list[Stmt]:
        """Return the loop over a thread's rows of its columns."""
        warps, rows = self.choices.warps, self.of.rows
        if self.is_unrolled:
            turns = self.row_turns(warps)
            loop = Loop("_k", turns, "unrolled", tuple(self.inside(rows.name, index_symbol("_k", turns) * warps + self.w, rows.size,
                                                                   body)))
        else:
            loop = Loop(rows.name, rows.size, "serial", tuple(body), self.w, warps, self.choices.ahead)
        if d.bounds(self.first + self.l * self.choices.pack)[1] < int(d.evaluate(self.of.columns.size, {})):
            return [loop]
        column = d.dim(self.of.columns.name, 0, d.bounds(self.first)[1] + self.width)
        return [If(self.below(column, self.of.columns.size), (loop,))]

    def by_column(self, body: Sequence[Stmt]) -> list[Stmt]:
        """Return statements that a thread of the block runs for each column, _column, whose number in the block is _at."""
        threads = self.choices.warps * self.lanes(self.choices.pack)
        turns = -(-self.width // threads)
        at = index_symbol("_n", turns) * threads + self.w * self.lanes(self.choices.pack) + self.l
        column = self.first + index_symbol("_at", self.width)
        inside = self.inside("_at", at, self.width, self.inside("_column", column, self.of.columns.size, body))
        return [Loop("_n", turns, "unrolled", tuple(inside))]

    @property
    def here(self) -> dict[str, Dim]:
        """The axis of columns in statements for each column."""
        return {self.of.columns.name: d.dim("_column", 0, int(d.evaluate(self.of.columns.size, {})) - 1)}

    # ---- stages ----

    def published(self, s: Stage) -> list[Stmt]:
        """Return the barrier after numbers of columns that are read here."""
        return [Barrier("block")] if s.target in self.places else []

    def element(self, s: Stage) -> list[Stmt]:
        return self.over_rows(self.elements([s], (self.of.rows, self.of.columns), self.choices.pack, self.loads))

    def column(self, s: Stage) -> list[Stmt]:
        here = self.here
        store = Store(*self.placed(s.target, self.index(s.index, here)), self.moved(s.value, here), s.note)
        return [*self.by_column([store]), *self.published(s)]

    def reduced(self, s: Stage) -> list[Stmt]:
        """Return a reduction of each column: of a thread's rows, then of all threads of a column."""
        assert s.monoid is not None
        pack, warps, lanes = self.choices.pack, self.choices.warps, self.lanes(self.choices.pack)
        wide = s.monoid == "sum" and s.value.dtype is f32 and self.row_turns(warps) > SHORT_SUM
        part, apart, lane = self.accumulator(s, pack, wide), lanes + 1, index_symbol("_v", pack)
        tile = self.buffer("shared", f"tile_{s.target.name}", part.dtype, warps * pack * apart)
        before, copies, fixed, moves = list[Stmt](), self.loads, set[Value](), dict[str, Dim]()
        if pack > 1:
            before, copies, fixed = self.packs([s.value], self.of.columns, pack, (), self.loads)
            moves = self.in_pack(self.of.columns, pack)
        take: Stmt = Take(part, lane, s.monoid, self.moved(s.value, moves, copies, fixed), s.note)
        row = [*before, Loop("_v", pack, "vector", (take,))] if pack > 1 else [take]
        total, one, at = self.accumulator(s, 1, wide), index_symbol("_t", warps), index_symbol("_at", self.width)
        place = (one * pack + at - at // pack * pack) * apart + at // pack if pack > 1 else one * apart + at
        store = Store(*self.placed(s.target, self.index(s.index, self.here)), self.total(s, total))
        return [Clear(part, s.monoid), *self.over_rows(row),
                Loop("_v", pack, "unrolled", (Store(tile, (self.w * pack + lane) * apart + self.l, self.values.load(part, lane)),)),
                Barrier("block"),
                *self.by_column([Clear(total, s.monoid),
                                 Loop("_t", warps, "unrolled", (Take(total, 0, s.monoid, self.values.load(tile, place)),)), store]),
                *self.published(s)]


def is_column_rows(program: StageProgram, nest: Nest) -> bool:
    return columns_of(program, nest) is not None


