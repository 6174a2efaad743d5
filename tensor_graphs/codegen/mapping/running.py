"""running: scans. The threads of a row take it in chunks and keep what is before a chunk; across memory a thread has a line.

    carry = identity
    x = x0[4·t …]
    serial c in 0..n step chunk
        prefetch x0[… c + 2·chunk …]
        row = x;  x = x0[c + chunk + 4·t …]
        own = sum of row;  combine own across the threads, before them → before
        unrolled e in 0..4:  before += row[e];  y0[c + 4·t + e] = carry + before
        carry += own;  barrier
    of a line:  serial c in 0..n step 8: unrolled e: x[e] = x0[columns·(c + e) + column];  unrolled e: total += x[e];  y0[…] = total

Memory is read once. A thread has one pack of a chunk, so that a warp loads and stores whole sectors; packs of the next chunk are on
their way while one is added up. Sums of f32 are added in f32 inside of a chunk, and in f64 from chunk to chunk and along a line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tensor_graphs.codegen.loop_ir import JOINS, Array, Nest, Stage, Value, index_symbol, values_in
from tensor_graphs.codegen.loop_program import (
    Barrier,
    Clear,
    Combine,
    Compute,
    If,
    Let,
    Load,
    Loop,
    LoopKernel,
    Prefetch,
    Stmt,
    Store,
    Take,
)
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.elementwise import WARPS, ElementwiseForm
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, lets
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

if TYPE_CHECKING:
    from tensor_graphs.codegen.mapping.rows import RowForm, RowLoop

TOGETHER = 8
"""elements of a line that are loaded before they are added up, and of a thread in a chunk where there are no packs"""

THREADS = 256
"""most threads of a row: few enough that a multiprocessor has several rows, of which one computes while others load"""

AHEAD = 2
"""chunks by which prefetches precede what is added up"""


def is_line_scan(nest: Nest) -> bool:
    """Return whether a nest is one scan across memory, which a reduction for its beginning may precede."""
    *first, s = nest.stages
    inner = s.axes[1:]
    return (s.scan is not None and bool(inner) and s.scan.along == s.axes[0] and s.level == len(nest.axes) and s.target.level == 0
            and nest.blocks is None and len(first) <= 1 and all(
                b.reduce and b.level == s.level and b.monoid == s.monoid and s.scan.start is not None and s.scan.start.op == "load"
                and s.scan.start.attr[0] == b.target and [a.size for a in b.axes] == [a.size for a in inner] for b in first))


class LineScanForm(ElementwiseForm):
    def seed(self) -> NestChoices:
        return NestChoices(warps=WARPS, ahead=TOGETHER)

    def mapped(self, entry: str) -> LoopKernel:
        *first, s = self.nest.stages
        assert s.scan is not None and s.monoid is not None
        along, *inner = s.axes
        total, ahead = self.accumulator(s, 1, s.monoid == "sum" and s.value.dtype is f32), self.choices.ahead
        row = self.buffer("register", f"some_{s.target.name}", s.value.dtype, ahead)
        body: list[Stmt] = [Clear(total, s.monoid)]
        for b in first:
            here = {old.name: new.symbol for old, new in zip(b.axes, inner, strict=True)}
            body += self.reducing(b.reduce, [Take(total, 0, s.monoid, self.moved(b.value, here), b.note)])
        if s.scan.start is not None and not first:
            body.append(Take(total, 0, s.monoid, self.moved(s.scan.start)))
        e = index_symbol("_e", ahead)
        at = index_symbol("_c", along.size) + e

        def each(*inside: Stmt) -> Stmt:
            return Loop("_e", ahead, "unrolled", tuple(self.inside(along.name, at, along.size, inside)))

        store = Store(*self.placed(s.target, s.index), self.total(s, total))
        take = Take(total, 0, s.monoid, self.values.load(row, e))
        some = (each(Store(row, e, self.moved(s.value), s.note)), each(*((store, take) if s.scan.before else (take, store))))
        body.append(Loop("_c", along.size, "serial", some, 0, ahead))
        return self.kernel(entry, self.over((*self.nest.axes, *inner), 1, body))


def scan_of_row(form: RowForm, s: Stage, loop: RowLoop) -> list[Stmt]:
    """Return a scan along the only axis of a stage that the threads of an iteration share."""
    assert s.scan is not None and s.monoid is not None
    pack, monoid, values = loop.pack, s.monoid, form.values
    several = form.choices.ahead if pack == 1 else 1                # a warp stores packs beside each other, which are whole sectors
    own, before = form.accumulator(s, 1), form.accumulator(s, 1)
    carry = form.accumulator(s, 1, monoid == "sum" and s.value.dtype is f32)
    row = form.buffer("register", f"some_{s.target.name}", own.dtype, several * pack)
    chunk, c, m = loop.threads * several * pack, index_symbol("_c", loop.total), index_symbol("_m", several)
    of_thread = index_symbol("_t", loop.threads) * (several * pack) + m * pack
    lane = m * pack + (index_symbol("_v", pack) if pack > 1 else 0)
    at = index_symbol("_at", d.dim_max(1, loop.total))

    def packs(inside: list[Stmt], begin: Dim = c) -> Stmt:
        within = form.inside("_at", begin + of_thread, loop.total, [*lets(at, loop.axes), *inside])
        return Loop("_m", several, "unrolled", tuple(within))

    e = index_symbol("_e", several * pack)
    x, sofar = values.load(row, e), values.load(before, 0)
    fold: tuple[Stmt, ...] = (Take(before, 0, monoid, x), Store(row, e, sofar))
    if s.scan.before:
        fold = (Compute(x), Store(row, e, sofar), Take(before, 0, monoid, x))
    result = replace(s, does=None, value=_with_carry(form, s, carry, values.load(row, lane)))
    combine: list[Stmt] = [Clear(before, monoid)]
    wide = loop.threads > form.target.warp
    if loop.threads > 1:
        shared = form.buffer("shared", f"warps_{s.target.name}", own.dtype, loop.threads // form.target.warp) if wide else None
        combine.append(Combine(own, 0, monoid, loop.threads, shared, before))
    several_chunks = d.bounds(loop.total)[1] > chunk

    def elements(*inside: Stmt) -> Stmt:
        return Loop("_e", several * pack, "unrolled", inside)

    loads, fill = _filled(form, s, loop, row, lane)
    far = c + index_symbol("_t", loop.threads) * (several * pack) + AHEAD * chunk
    body = [*(_prefetched(form, s, loop, far) if several_chunks else ()),
            Clear(row, monoid), packs(fill), *([packs(loads, c + chunk)] if loads and several_chunks else ()),
            Clear(own, monoid), elements(Take(own, 0, monoid, x)), *combine, elements(*fold),
            packs(form.guarded(s, form.elements([result], loop.axes, pack))), Take(carry, 0, monoid, values.load(own, 0)),
            *((Barrier("block"),) if wide and several_chunks else ())]
    start = [] if s.scan.start is None else [Take(carry, 0, monoid, form.moved(s.scan.start))]
    return [Clear(carry, monoid), *start, *([packs(loads, 0)] if loads else ()),
            Loop("_c", loop.total, "serial", tuple(body), 0, chunk)]


def _filled(form: RowForm, s: Stage, loop: RowLoop, row: Array, lane: Dim) -> tuple[list[Stmt], list[Stmt]]:
    """Return the loads of packs, and what computes the elements of a chunk."""
    if loop.pack == 1:
        return [], [Store(row, lane, form.moved(s.value), s.note)]
    loads, copies, fixed = form.packs([s.value], loop.axes[-1], loop.pack, form.singly)
    value = form.moved(s.value, form.in_pack(loop.axes[-1], loop.pack), copies, fixed)
    once: list[Stmt] = [replace(load, how="once") if isinstance(load, Load) and load.buffer.role == "operand" else load
                        for load in loads]
    return once, [Loop("_v", loop.pack, "vector", (Store(row, lane, value, s.note),))]


def _with_carry(form: RowForm, s: Stage, carry: Array, x: Value) -> Value:
    """Return what an element is, with what all chunks before have. A sum in f64 is two floats, as a step to f64 for each element
    takes longer than memory."""
    make, of_all = form.values.make, form.values.load(carry, 0)
    if carry.dtype is not x.dtype:
        return make("add", f32, make("high", f32, of_all), make("add", f32, x, make("low", f32, of_all)))
    value = make(JOINS[s.monoid or "sum"][0], x.dtype, of_all, x)
    return value if x.dtype is s.value.dtype else make("cast", s.value.dtype, value)


def _prefetched(form: NestMapper, s: Stage, loop: RowLoop, ahead: Dim) -> list[Stmt]:
    """Return prefetches of what a thread loads in a later chunk."""
    (axis,) = loop.axes
    far: dict[Dim, Stmt] = {}
    following = index_symbol("_next", d.dim_max(1, loop.total))
    for v in values_in(s.value):
        if v.op == "load" and not v.args and v.attr[0].role == "operand" and d.coefficient(v.attr[1], axis.name) == 1:
            index = form.index(v.attr[1], {axis.name: following})
            far[index] = Prefetch(v.attr[0], index)
    return [Let("_next", ahead), If(form.below(following, loop.total), tuple(far.values()))] if far else []
