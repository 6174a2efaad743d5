"""elementwise: nests whose stages store, or reduce few elements, for each element of the same axes: a thread has some of them.

    grid b in 0..⌈n / 1024⌉: thread t in 0..256
        at = (256·b + t)·4
        if at < n
            p = load4 x0[at];  vector v in 0..4: out[v] = exp(p[v]);  store4 y0[at] = out

A nest whose operands are contiguous along another axis than its output is mapped by transposed.py.
"""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Value, across, index_symbol, values_in
from tensor_graphs.codegen.loop_program import Clear, Loop, LoopKernel, Stmt, Store, Take, Wait
from tensor_graphs.codegen.mapping.choices import NestChoices
from tensor_graphs.codegen.mapping.nest_mapper import NestMapper, lets
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

WARPS = 8
"""warps of a block"""

SHORT_SUM, FEW_NUMBERS = 64, 4
"""most terms of a reduction across memory for one thread: in a window (several axes, or one compound axis), and otherwise"""

MOST_TERMS, AHEAD = 256, 16
"""most terms of a sum of products for one thread; terms whose loads are written out"""


def is_elementwise(program: StageProgram, nest: Nest) -> bool:
    stages = nest.stages
    return all(s.monoid is None and s.level == len(nest.axes) and s.axes == stages[0].axes and s.target.level == 0
               and all(_own_elements(program, nest, s, before) for before in stages[:k]) for k, s in enumerate(stages))


def _own_elements(program: StageProgram, nest: Nest, s: Stage, before: Stage) -> bool:
    """Return whether a stage reads only its own element of what an earlier stage stores, if any."""
    reads = [v for v in used(program, s) if v.op == "load" and v.attr[0] == before.target]
    return not reads or (nest.tile is None and before.target.dtype is before.value.dtype
                         and all(v.attr[1] == before.index and not v.args for v in reads))


def used(program: StageProgram, s: Stage) -> list[Value]:
    """Return the values of a stage, including those of indices read at run time."""
    return list(values_in(*s.roots(), *(v for name, v in program.gathered.items() if name in s.value.symbols)))


def is_short_reduction(nest: Nest) -> bool:
    """Return whether a nest is one reduction across memory with few terms (as of a window), for one thread per result."""
    if len(nest.stages) != 1 or not nest.stages[0].reduce:
        return False
    (s,) = nest.stages
    terms = d.product(a.size for a in s.reduce)
    loads = (v for v in values_in(s.value) if v.op == "load")
    window = len(s.reduce) > 1 or any(d.coefficient(v.attr[1], s.reduce[0].name) is None for v in loads)
    return (s.monoid is not None and s.scan is None and nest.blocks is None and not s.held and bool(s.axes or nest.axes)
            and s.level == len(nest.axes) and s.target.level == 0 and across(s) and d.is_static(terms)
            and 0 < int(d.evaluate(terms, {})) <= (SHORT_SUM if window else FEW_NUMBERS))


def is_across_sum(nest: Nest) -> bool:
    """Return whether a nest is one sum for each of its iterations, of elements next to those of the next iteration: small
    products of matrices, whose right operand lies so."""
    if len(nest.stages) != 1 or not nest.axes or nest.blocks is not None or nest.tile is not None:
        return False
    (s,), last = nest.stages, nest.axes[-1].name
    if s.monoid != "sum" or s.scan is not None or s.axes or s.held or s.product or s.level != len(nest.axes) or s.target.level:
        return False
    if len(s.reduce) != 1 or not d.is_static(s.reduce[0].size) or d.bounds(s.reduce[0].size)[1] > MOST_TERMS:
        return False
    loads = [v for v in values_in(s.value) if v.op == "load"]
    along = [v for v in loads if d.coefficient(v.attr[1], last) == 1 and d.coefficient(v.attr[1], s.reduce[0].name) not in (0, 1)]
    return bool(along) and len(loads) > 1 and d.coefficient(s.index, last) == 1 and d.bounds(nest.axes[-1].size)[0] > 1


class ElementwiseForm(NestMapper):
    @property
    def along(self) -> list[tuple[Stage, Axis]]:
        """The stages with the axis of their packs."""
        axes = (*self.nest.axes, *self.nest.stages[0].axes)
        return [(s, axes[-1]) for s in self.nest.stages] if axes else []

    def seed(self) -> NestChoices:
        return NestChoices(pack=self.pack_of(self.along) if self.along else 1, warps=WARPS, packs=1)

    def why_not(self, choices: NestChoices) -> str | None:
        return super().why_not(choices) or (self.why_no_pack(choices.pack, self.along) if choices.pack else None)

    def mapped(self, entry: str) -> LoopKernel:
        stages, pack = self.nest.stages, self.choices.pack
        axes = (*self.nest.axes, *stages[0].axes)
        return self.kernel(entry, self.over(axes, pack, self.elements(stages, axes, pack)))

    def over(self, axes: tuple[Axis, ...], pack: int, body: list[Stmt]) -> list[Stmt]:
        """Return the loops of blocks and threads over the packs of all axes."""
        total, threads, packs = d.product(a.size for a in axes), self.choices.warps * self.target.warp, self.choices.packs or 1
        grid = d.ceil_div(total, threads * pack * packs)
        at, b = index_symbol("_at", d.dim_max(total, 1)), index_symbol("_b", grid)
        of_block: Dim = b * packs + index_symbol("_k", packs) if packs > 1 else b
        flat: Dim = (of_block * threads + index_symbol("_t", threads)) * pack
        inner = self.inside("_at", flat, total, [*lets(at, axes), *body])
        if packs > 1:
            inner = [Loop("_k", packs, "unrolled", tuple(inner))]
        return [Loop("_b", grid, "grid", (Loop("_t", threads, "thread", (Wait(), *inner)),))]


class ShortReductionForm(ElementwiseForm):
    def seed(self) -> NestChoices:
        return NestChoices(warps=WARPS, packs=1)

    def mapped(self, entry: str) -> LoopKernel:
        (s,) = self.nest.stages
        assert s.monoid is not None
        total = self.accumulator(s, 1)
        terms = self.reducing(s.reduce, [Take(total, 0, s.monoid, self.moved(s.value), s.note)], "unrolled")
        stored = Store(*self.placed(s.target, s.index), self.total(s, total))
        return self.kernel(entry, self.over((*self.nest.axes, *s.axes), 1, [Clear(total, s.monoid), *terms, stored]))


class AcrossSumForm(ElementwiseForm):
    """A thread has a pack of results."""

    def seed(self) -> NestChoices:
        return NestChoices(pack=self.pack_of(self.along), warps=WARPS // 2, packs=1, ahead=AHEAD)

    def mapped(self, entry: str) -> LoopKernel:
        (s,), axes, pack = self.nest.stages, self.nest.axes, self.choices.pack
        assert s.monoid is not None
        (over,), lane, axis = s.reduce, index_symbol("_v", pack), axes[-1]
        part, result = self.accumulator(s, pack), Stage(s.target, s.index, (), s.value, s.level, None, s.note)
        if pack == 1:
            terms: list[Stmt] = [Take(part, 0, s.monoid, self.moved(s.value), s.note)]
            stored: list[Stmt] = [Store(*self.placed(s.target, s.index), self.total(s, part))]
        else:
            before, copies, fixed = self.packs([s.value], axis, pack)
            value = self.moved(s.value, self.in_pack(axis, pack), copies, fixed)
            terms = [*before, Loop("_v", pack, "vector", (Take(part, lane, s.monoid, value, s.note),))]
            stored = self.elements([replace(result, value=self.total(s, part, lane))], (axis,), pack)
        loop = Loop(over.name, over.size, "serial", tuple(terms), unroll=self.choices.ahead)
        return self.kernel(entry, self.over(axes, pack, [Clear(part, s.monoid), loop, *stored]))


def reads(program: StageProgram, s: Stage) -> set[Array]:
    """Return the arrays that a stage reads."""
    return {v.attr[0] for v in used(program, s) if v.op == "load"}
