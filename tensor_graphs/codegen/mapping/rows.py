"""rows: nests in which some threads share an iteration of the outer axes, and its reductions along memory.

    grid b: thread g in 0..groups: thread t in 0..32
        turn = min(b·groups + g, turns − 1)
        unrolled k in 0..4:  row[k] = load4 x0[n·turn + 4·(32·k + t)]
        part = sum over k, v of row[k][v];  combine part across t;  t1 = part
        unrolled k:  vector v: out[v] = row[k][v] / t1;  store4 y0[…] = out

Rows that are short enough stay in registers between stages, where each thread has the same elements in all stages. A value of a row
is kept in registers if every stage reads it in the thread that wrote it; else in shared memory, or in global scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Nest,
    Stage,
    Top,
    Value,
    Values,
    computed_in,
    index_symbol,
    parallel,
    values_in,
)
from tensor_graphs.codegen.loop_program import (
    Barrier,
    Clear,
    Combine,
    How,
    If,
    Let,
    Load,
    Loop,
    LoopBuffer,
    LoopKernel,
    Prefetch,
    Stmt,
    Store,
    Take,
    Wait,
)
from tensor_graphs.codegen.mapping import running
from tensor_graphs.codegen.mapping.elementwise import SHORT_SUM, reads
from tensor_graphs.codegen.mapping.nest_mapper import element_bytes, lets
from tensor_graphs.codegen.mapping.row_choices import HELD_PACKS, RESIDENT, RowChoices
from tensor_graphs.codegen.passes.softmax_exp import is_shifted
from tensor_graphs.devices.target import Target
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bf16, f16, f32, f64

WIDE_PARTS = 4
"""most numbers of f64 in which a thread combines a reduction; each takes two registers"""

HELD_ELEMENTS, HELD_WORDS = 64, 96
"""limits for rows in registers: elements of a thread, and 4-byte words of packs that are loaded ahead"""

FAR = 4 << 20
"""bytes of an operand from which on its rows are prefetched; most of a smaller one is still in the cache from its last write"""

BROUGHT = 4 << 20
"""most bytes that all blocks of a launch prefetch; more would delay the first loads"""

Key = tuple[str, Dim]
"""an array, and the index at which a loop over an axis begins to read it"""


@dataclass(frozen=True)
class RowLoop:
    """The loop of a stage over the flattened `axes`, shared by `threads` threads in packs of `pack` elements. turns: iterations of
    a thread, if the loop is unrolled; 0 where its length is unknown."""

    axes: tuple[Axis, ...]
    pack: int
    threads: int
    turns: int

    @property
    def total(self) -> Dim:
        return d.product(a.size for a in self.axes)


class RowForm(RowChoices):
    def mapped(self, entry: str) -> LoopKernel:
        nest, warp = self.nest, self.target.warp
        self.outer = outer = nest.axes[:parallel(nest)]             # groups of threads share their iterations
        turns = d.product(a.size for a in outer)
        self.loops, self.group, self.groups = self.shared_among(), self.choices.threads, self.choices.rows
        grid = d.ceil_div(turns, self.groups)
        if self.place_rows(grid):
            grid = d.dim_min(grid, RESIDENT * self.target.units)
        b, g = index_symbol("_b", grid), index_symbol("_g", self.groups)
        begin = index_symbol("_begin", d.dim_max(1, turns)) if self.scratch else b * self.groups
        turn = index_symbol("_turn", d.dim_max(1, turns))
        self.live = self.below(begin + g, turns) if self.groups > 1 else None
        number = d.dim_min(begin + g, turns - 1) if self.groups > 1 else begin
        body: list[Stmt] = [Let("_turn", number), *lets(turn, outer), *self.load_ahead(), *self.level(len(outer))]
        of_warp = max(1, warp // self.group)
        first = begin + g // of_warp * of_warp                      # of the warp, which does nothing if it has no iteration
        if self.groups > of_warp and d.bounds(first)[1] >= d.bounds(turns)[0]:
            body = [If(self.below(first, turns), tuple(body))]
        if self.scratch:
            body = [Loop("_begin", turns, "serial", (*body, self.barrier()), b * self.groups, grid * self.groups)]
        threads = Loop("_t", self.group, "thread", (*self.prefetched(turns), Wait(), *body))
        loops: Stmt = Loop("_g", self.groups, "thread", (threads,)) if self.groups > 1 else threads
        return self.kernel(entry, [Loop("_b", grid, "grid", (loops,))])

    # ---- decisions ----

    def shared_among(self) -> dict[int, RowLoop]:
        """Return the loop of each stage, by the stage's index."""
        (along, shared), stages, loops = self.along(), self.nest.stages, dict[int, RowLoop]()
        pack, group, held = self.choices.pack, self.choices.threads, self.choices.held
        elements = HELD_ELEMENTS * max(1, held // HELD_PACKS)
        for k, axes in along.items():
            total, own = d.product(a.size for a in axes), pack if k in shared else 1
            own = self.scan_pack(stages[k], axes) or own
            of_thread = -(-int(d.evaluate(total, {})) // (group * own)) if d.is_static(total) else 0
            short = 0 < of_thread <= held and of_thread * own <= elements and k in shared
            loops[k] = RowLoop(tuple(axes), own, group, of_thread if short else 0)
        return loops

    def place_rows(self, grid: Dim) -> bool:
        """Decide where the numbers and rows of an iteration are. Return whether some are in global scratch."""
        self.filled: dict[str, RowLoop] = {}                        # rows in registers
        self.rows: dict[Array, Array] = {}
        bytes_of_rows = 0
        for k, s in enumerate(self.nest.stages):
            array = s.target
            if array.role != "scratch" or array.level == 0 or array in self.rows or any(b.array == array for b in self.buffers):
                continue
            loop, kind = self.loops.get(k), computed_in(array.dtype)
            if isinstance(s.monoid, Top):                           # keys are wider than what is stored of them
                self.singly.add(array)
            if array.size == 1:
                self.buffers.append(LoopBuffer(array, "register"))
            elif loop is not None and loop.turns and self.stays(k):
                self.rows[array] = self.buffer("register", array.name, kind, loop.turns * loop.pack)
                self.singly.add(array)
                self.filled[array.name] = loop
            elif 0 < (size := kind.itemsize * self.groups * _row(array, self.target)) <= self.target.shared - bytes_of_rows:
                bytes_of_rows += -(-size // 16) * 16
                own = _row(array, self.target)
                self.in_memory(array, self.buffer("shared", array.name, kind, own * self.groups), 0, own)
            else:
                row = d.ceil_div(array.size, 8) * 8
                blocks = d.dim_min(grid, RESIDENT * self.target.units)
                whole = replace(array, name=f"{array.name}_rows", level=0, size=row * blocks * self.groups)
                self.scratch.append(whole)
                self.in_memory(array, whole, index_symbol("_b", blocks) * self.groups * row, row)
        return bool(self.scratch)

    def in_memory(self, array: Array, rows: Array, begin: Dim, row: Dim) -> None:
        first = begin + (index_symbol("_g", self.groups) * row if self.groups > 1 else 0)
        self.places[array] = lambda index: (rows, first + index)

    def stays(self, k: int) -> bool:
        """Return whether each thread reads only those elements of a row that it wrote itself, in an identical loop."""
        nest, s, loop = self.nest, self.nest.stages[k], self.loops[k]
        if s.level != len(nest.axes) or len(self.outer) != len(nest.axes) or len(loop.axes) != 1 or s.monoid is not None \
                or s.index != loop.axes[0].symbol:
            return False
        for other, reader in enumerate(nest.stages):
            loads = [v for v in values_in(reader.value) if v.op == "load" and v.attr[0] == s.target]
            theirs = self.loops.get(other)
            if loads and (theirs is None or len(theirs.axes) != 1 or theirs.axes[0].size != loop.axes[0].size
                          or theirs.turns != loop.turns or any(v.args or v.attr[1] != theirs.axes[0].symbol for v in loads)):
                return False
        return not any(v.op == "load" and v.attr[0] == s.target for g in self.program.gathered.values() for v in values_in(g))

    # ---- loops ----

    def over(self, loop: RowLoop, body: Sequence[Stmt]) -> list[Stmt]:
        """Return the loop over a thread's packs, with the axes at the first element of each pack."""
        at, t = index_symbol("_at", d.dim_max(1, loop.total)), index_symbol("_t", loop.threads)
        if not loop.turns:
            inner = (*lets(at, loop.axes), *body)
            return [Loop("_at", loop.total, "serial", inner, t * loop.pack, loop.threads * loop.pack)]
        first = (index_symbol("_k", loop.turns) * loop.threads + t) * loop.pack
        return [Loop("_k", loop.turns, "unrolled", tuple(self.inside("_at", first, loop.total, [*lets(at, loop.axes), *body])))]

    def barrier(self) -> Stmt:
        return Barrier("block" if self.group > self.target.warp else "warp")

    def guarded(self, s: Stage, body: list[Stmt]) -> list[Stmt]:
        """Return statements that run once for each iteration, where what they store is seen by others."""
        return [If(self.live, tuple(body))] if self.live is not None and s.target.level == 0 else body

    # ---- loads ahead ----

    def load_ahead(self) -> list[Stmt]:
        """Return loads of what several stages read at the same positions. Loads of one stage that are the same in every iteration
        come before the last reduction that precedes it (`later`)."""
        self.ahead: dict[Key, Array] = {}
        self.later: dict[int, list[Stmt]] = {}
        stages, uses = self.nest.stages, dict[Key, list[tuple[int, Value]]]()
        own = {s.target for s in stages}
        for k, loop in self.loops.items():
            if not loop.turns or len(loop.axes) != 1 or stages[k].level != len(self.outer) or loop.pack == 1:
                continue
            (axis,) = loop.axes
            for v in values_in(stages[k].value):
                if v.op == "load" and not v.args and v.attr[0] not in own and self.packable(v, axis, loop.pack):
                    uses.setdefault((v.attr[0].name, v.attr[1] - axis.symbol), []).append((k, v))
        words, out = 0, list[Stmt]()
        for key, users in uses.items():
            k, v = users[0]
            loop = self.loops[k]
            same = {(self.loops[j].turns, str(self.loops[j].axes[0].size)) for j, _ in users}
            own_words = loop.turns * loop.pack * element_bytes(v.attr[0]) // 4
            reductions = [j for j in range(k) if stages[j].monoid is not None]
            if len(same) == 1 and self.lasts(key, v, own_words):
                out += self.load_row(key, v, loop)
                continue
            if len(same) != 1 or words + own_words > HELD_WORDS:
                continue
            if len({j for j, _ in users}) > 1:
                out += self.load_row(key, v, loop)
            elif reductions and not _of_an_iteration(self.nest, key[1]) and words + own_words <= self.held_later():
                self.later.setdefault(reductions[-1], []).extend(self.load_row(key, v, loop))
            else:
                continue
            words += own_words
        return out

    def held_later(self) -> int:
        """Return the most words of rows that a thread keeps, if not all are of an iteration: a quarter of its registers, so that
        one block of a multiprocessor loads while another computes."""
        return self.target.registers // (2 * self.group * self.groups) // 4

    def lasts(self, key: Key, v: Value, words: int) -> bool:
        """Return whether a row stays in registers when the nest has run: where a kernel runs it repeatedly (scans.py)."""
        return False

    def load_row(self, key: Key, v: Value, loop: RowLoop) -> list[Stmt]:
        """Return loads of a row to registers."""
        array, offset = self.placed(v.attr[0], self.index(v.attr[1], {}))
        row = self.buffer("register", f"row_{array.name}", array.dtype, loop.turns * loop.pack, array, lanes=loop.pack)
        self.ahead[key] = row
        at = index_symbol("_k", loop.turns) * loop.pack
        return self.over(loop, [Load(row, at, array, offset, loop.pack, how=self.how(key[1]))])

    def how(self, at: Dim) -> How:
        """Return how a row is loaded: one that one iteration of a nest that stores no rows uses bypasses the first-level cache."""
        return "once" if _of_an_iteration(self.nest, at) and not any(s.axes for s in self.nest.stages) else "plain"

    def prefetched(self, turns: Dim) -> list[Stmt]:
        """Return prefetches before the wait: memory is idle between the last loads of one launch and the first of the next."""
        return _brought(self, turns)

    # ---- stages ----

    def level(self, level: int) -> list[Stmt]:
        """Return the stages at a level of the nest, then the loops over the deeper axes."""
        stages, out = self.nest.stages, list[Stmt]()
        for k, s in enumerate(stages):
            if s.level == level:
                out += [*self.later.get(k, ()), *self.stage(k, s)]
                number = s.target.role == "scratch" and s.target.level and s.target.size == 1
                if s.target not in self.rows and not number and any(s.target in reads(self.program, other) for other in stages):
                    out.append(self.barrier())
        if any(s.level > level for s in stages):
            axis = self.nest.axes[level]
            out.append(Loop(axis.name, axis.size, "serial", (*self.level(level + 1), self.barrier())))
        return out

    def stage(self, k: int, s: Stage) -> list[Stmt]:
        loop = self.loops.get(k)
        if s.scan is not None and loop is not None:
            return running.scan_of_row(self, s, loop)
        if loop is None:                                            # one number, which every thread computes
            return self.number(s, self.moved(s.value))
        if s.monoid is None:
            with_rows = self.in_rows(loop)
            body = self.elements([s], loop.axes, loop.pack, self.copied(s, loop))
            self.places = {a: place for a, place in self.places.items() if a not in with_rows}
            return self.guarded(s, self.over(loop, body))
        return self.each_alone(s, loop) if loop.axes != s.reduce else self.together(s, loop)

    def number(self, s: Stage, value: Value) -> list[Stmt]:
        """Return what stores one number of an iteration: in a register of every thread, or in memory."""
        store = Store(*self.placed(s.target, s.index), value, s.note)
        if any(b.array == s.target for b in self.buffers):
            return [store]
        stored: list[Stmt] = [If(self.below(index_symbol("_t", self.group), 1), (store,))] if self.group > 1 else [store]
        return [If(self.live, tuple(stored))] if self.live is not None else stored

    def in_rows(self, loop: RowLoop) -> list[Array]:
        """Make the rows in registers readable at the elements of a loop. Return them."""
        at = index_symbol("_k", loop.turns) * loop.pack + index_symbol("_v", loop.pack)
        here = [a for a in self.rows if loop.turns and self.filled[a.name].turns == loop.turns]
        for array in here:
            self.places[array] = lambda index, row=self.rows[array]: (row, at)      # type: ignore[misc]
        return here

    def copied(self, s: Stage, loop: RowLoop) -> dict[Value, tuple[Array, Dim]]:
        """Return the loads of a stage that were loaded ahead, and the place of each in registers."""
        if len(loop.axes) != 1 or not loop.turns:
            return {}
        loads = ((v, (v.attr[0].name, v.attr[1] - loop.axes[0].symbol)) for v in values_in(s.value)
                 if v.op == "load" and not v.args)
        at = index_symbol("_k", loop.turns) * loop.pack + index_symbol("_v", loop.pack)
        return {v: (self.ahead[key], at) for v, key in loads if key in self.ahead}

    def together(self, s: Stage, loop: RowLoop) -> list[Stmt]:
        """Return a reduction that the threads of an iteration share."""
        assert s.monoid is not None
        pack, lane = loop.pack, index_symbol("_v", loop.pack)
        long = not loop.turns and s.monoid == "sum" and s.value.dtype is f32    # so that what floats drop adds up
        few = long and pack > 1                                     # a pack at a time: a step to f64 costs four sums of f64
        monoid, length = (_longer(s.monoid), _longer(s.monoid).count) if isinstance(s.monoid, Top) else (s.monoid, 0)
        parts = 1 if few or length else min(pack, WIDE_PARTS) if s.value.dtype is f64 else pack
        part = self.accumulator(s, length or parts, long)
        here = self.in_rows(loop)
        fill: list[Stmt] = []
        after: list[Stmt] = []
        root = s.value
        if root.op == "exp" and root.dtype is f32 and is_shifted(self.program, self.nest, s):
            root = self.values.make("exp_in_sum", f32, *root.args)
        if pack == 1:
            value = self.moved(root, loads=self.copied(s, loop))
            body: list[Stmt] = [Take(part, 0, monoid, value, s.note)]
        else:
            axis = loop.axes[-1]
            before, copies, fixed = self.packs([root], axis, pack, self.singly, self.copied(s, loop))
            value = self.moved(root, self.in_pack(axis, pack), copies, fixed)
            at = 0 if length else lane - lane // parts * parts if parts < pack else lane
            body = [*before, Loop("_v", pack, "vector", (Take(part, at, monoid, value, s.note),))]
            if few:
                some = self.buffer("register", f"few_{s.target.name}", f32, pack)
                body = [*before, Loop("_v", pack, "vector", (Store(some, lane, value, s.note),)), *_halved(self.values, some, pack),
                        Take(part, 0, monoid, self.values.load(some, 0))]
            elif s.monoid == "max" and root in copies and copies[root][0].dtype in (bf16, f16):
                most = self.buffer("register", f"most_{s.target.name}", value.attr[0].dtype, pack, value.attr[0], lanes=pack)
                fill = [Clear(most, "max")]                         # narrow floats are compared two at a time, as they are stored
                body = [*before, Loop("_v", pack, "vector", (Take(most, lane, "max", value, s.note),))]
                after = [Loop("_v", pack, "vector", (Take(part, lane, "max", self.values.load(most, lane)),))]
        self.places = {a: place for a, place in self.places.items() if a not in here}
        one = index_symbol("_n", parts)
        if parts > 1:
            after.append(Loop("_n", parts, "unrolled", (Take(part, 0, monoid, self.values.load(part, one)),), 1))
        if self.group > 1:
            shared = None
            if self.group > self.target.warp:
                room = self.group // self.target.warp * max(1, length)
                shared = self.buffer("shared", f"warps_{s.target.name}", part.dtype, room)
            after.append(Combine(part, 0, monoid, self.group, shared))
        if isinstance(s.monoid, Top):
            return [Clear(part, monoid), *self.over(loop, body), *after, *_stored_list(self, s, part)]
        return [Clear(part, monoid), *fill, *self.over(loop, body), *after, *self.number(s, self.total(s, part))]

    def each_alone(self, s: Stage, loop: RowLoop) -> list[Stmt]:
        """Return reductions of which each thread computes separate ones."""
        assert s.monoid is not None
        terms = d.bounds(d.product(a.size for a in s.reduce))[1]
        part = self.accumulator(s, 1, s.monoid == "sum" and s.value.dtype is f32 and terms > SHORT_SUM)
        body: list[Stmt] = [Clear(part, s.monoid), *self.reducing(s.reduce, [Take(part, 0, s.monoid, self.moved(s.value), s.note)]),
                            Store(*self.placed(s.target, s.index), self.total(s, part))]
        return self.guarded(s, self.over(loop, body))


def _stored_list(form: RowForm, s: Stage, part: Array) -> list[Stmt]:
    assert isinstance(s.monoid, Top)
    listed, (target, index) = index_symbol("_n", s.monoid.count), form.placed(s.target, s.index)
    store: Stmt = Loop("_n", s.monoid.count, "unrolled", (Store(target, index + listed, form.values.load(part, listed)),))
    return form.guarded(s, [If(form.below(index_symbol("_t", form.group), 1), (store,))] if form.group > 1 else [store])


def _brought(form: RowForm, turns: Dim) -> list[Stmt]:
    """Return prefetches of what the first blocks load of large operands while earlier launches still run."""
    axes, far = {a.name for a in form.outer}, dict[Key, tuple[Value, RowLoop]]()
    if form.choices.early == 1:
        return []
    for k, loop in form.loops.items():
        if not loop.turns or len(loop.axes) != 1 or form.nest.stages[k].level != len(form.outer):
            continue
        (axis,) = loop.axes
        for v in values_in(form.nest.stages[k].value):
            if v.op == "load" and not v.args and v.attr[0].role == "operand" and form.packable(v, axis, loop.pack):
                array, offset, _ = v.attr
                names = {str(x) for x in d.symbols_in(offset)} - {axis.name} - {str(x) for x in form.program.dims}
                if names and names <= axes and d.bounds(array.size)[1] * element_bytes(array) >= FAR:
                    far.setdefault((array.name, offset - axis.symbol), (v, loop))
    if not far:
        return []
    of_block = form.groups * sum(int(d.evaluate(loop.total, {})) * element_bytes(v.attr[0]) for v, loop in far.values())
    blocks = max(1, min((form.choices.early - 1) * form.target.units, BROUGHT // of_block))
    b = index_symbol("_b", max(1, d.bounds(turns)[1]))
    number = d.dim_min(b * form.groups + index_symbol("_g", form.groups), turns - 1) if form.groups > 1 else b
    body = [Let("_turn", number), *lets(index_symbol("_turn", d.dim_max(1, turns)), form.outer)]
    for v, loop in far.values():
        body += form.over(loop, [Prefetch(v.attr[0], v.attr[1])])
    return [If(form.below(b, blocks), tuple(body))]


def _of_an_iteration(nest: Nest, at: Dim) -> bool:
    """Return whether iterations of a nest read at different positions; a weight, for example, is the same for all."""
    return bool({str(x) for x in d.symbols_in(at)} & {a.name for a in nest.axes})


def _longer(monoid: Top) -> Top:
    """Return the monoid of lists in registers, whose length is a power of two, as they are merged in halves."""
    return Top(1 << (monoid.count - 1).bit_length())


def _row(array: Array, target: Target) -> int:
    """Return the elements reserved for a row in shared memory; 0 where it is too long, or its length is unknown."""
    most = d.bounds(array.size)[1]
    return -(-most // 8) * 8 if most < target.shared else 0


def _halved(values: Values, some: Array, pack: int) -> list[Stmt]:
    """Return the sums of pairs, then of pairs of these, until one is left."""
    out: list[Stmt] = []
    while pack > 1:
        pack //= 2
        one = index_symbol("_n", pack)
        out.append(Loop("_n", pack, "unrolled", (Take(some, one, "sum", values.load(some, one + pack)),)))
    return out
