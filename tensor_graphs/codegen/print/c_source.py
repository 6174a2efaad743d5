"""c_source: a program printed as C in the style of the handwritten kernels (kernels/c/tg.h): one function per nest, one to run
them.

The source is meant to be read. The program's stages precede it as a comment; each value is computed once, as early as its inputs
are available. Loops over the contiguous axis have bodies without branches, which the compiler vectorises. A sum of f32 is
accumulated in registers of f32 over a block of elements and in f64 beyond, as in handwritten kernels, and stays f64
(wide_accumulate.py). Block lengths and loop structure follow the program's advice (`StageAdvice`, `NestAdvice`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import takewhile

from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Nest,
    NestAdvice,
    Running,
    Stage,
    StageProgram,
    Value,
    across,
    computed_in,
    lies_across,
    parallel,
    products_alone,
    values_in,
)
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.codegen.passes.divide_axes import divided
from tensor_graphs.codegen.passes.split_at_conditions import Limits, limits
from tensor_graphs.codegen.passes.tile_rows import TileProduct, product_of
from tensor_graphs.codegen.passes.wide_accumulate import KEPT, in_f64, unrounded
from tensor_graphs.codegen.print.values import (
    LEAST,
    NARROWED,
    STORED,
    ValueWriter,
    c_of,
    c_type,
    called,
    dim_name,
    element_bytes,
    element_type,
    is_number,
)
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f32, f64

TILE = 1 << 12
"""elements of a block"""

PART_ELEMENTS = NestAdvice().grain
"""default grain, equal to the one in loops.h"""




Bounds = tuple[str, str]
"""the first value of a loop's axis, and the value after the last, as C expressions"""



MOST_WORK = 1 << 40
"""cap on the estimated element steps of one iteration: enough for a separate part, and a valid C constant"""


def rendered(program: StageProgram, name: str = "generated") -> str:
    """Return the C source of a program. Its entry is TG_KERNEL(name); ptr: outputs, then operands; ints: the dims."""
    return _Renderer(unrounded(divided(program)), name).text()


def scratch_bytes(program: StageProgram) -> tuple[Dim, Dim]:
    """Return the scratch bytes that the program requests from the pool: one block for all threads, and one for each thread."""
    own = [x for x in program.scratch if x.level and not is_number(x)]
    return sum(_padded(x) for x in program.scratch if x.level == 0), sum(map(_padded, own))


def _padded(array: Array) -> Dim:
    return d.ceil_div(array.size * element_bytes(array), 64) * 64







class _Renderer(ValueWriter):
    index_type, step = "int64_t", "++"

    def __init__(self, program: StageProgram, name: str) -> None:
        super().__init__(program.gathered, [str(s) for s in program.dims], products_alone(program))
        self.program, self.name = program, name
        self.declared: set[Array] = set()                           # numbers of a turn that stages begin with
        over = [pair for pair in program.shared if pair not in program.updated]     # what is read and may be written over
        self.shared = {program.outputs[o] for o, _ in over} | {program.operands[i] for _, i in over}
        self.last_stored: dict[Array, str] = {}                            # by array: what this turn of the open loop stored
        self.tiles: dict[int, str] = {}                             # number of a load -> where its block was turned to

    # ---- text ----

    def text(self) -> str:
        p, write = self.program, self.write
        write("/* " + str(p).replace("\n", "\n * ").replace("*/", "* /") + " */")
        write('#include "numbers.h"')
        if any(product_of(s) is not None for nest in p.nests for s in nest.stages):
            write('#include "wide_gemm.h"')
        write()
        write.open(f"typedef struct {self.name}_arguments")
        for a in (*p.outputs, *p.operands):
            const = "" if a.role == "output" else "const "
            write(f"{const}{STORED[a.dtype.name]} *{self.alone(a)}{a.name};")
        for a in p.scratch:
            if a.level == 0:
                write(f"{c_type(a.dtype)} *restrict {a.name};")
        for name in self.dims:
            write(f"int64_t {dim_name(name)};")
        write("int64_t count;")
        write.depth -= 1
        write(f"}} {self.name}_arguments;")
        for i, nest in enumerate(p.nests):
            write()
            self.nest(i, nest)
        for i in range(len(p.nests)):
            others = _beside(self.program, i)
            if others and not p.nests[i].advice.beside:
                write()
                with self.open(f"static void {self.name}_from{i}(void *context, int part, int parts)"):
                    for k in (i, *others):
                        write(f"{self.name}_nest{k}(context, part, parts);")
        write()
        self.entry()
        return "\n".join(write.lines) + "\n"

    def alone(self, array: Array) -> str:
        """Return the qualifier of a pointer when no other pointer leads to its memory."""
        return "" if array in self.shared else "restrict "

    def entry(self) -> None:
        p, write = self.program, self.write
        with self.open(f"TG_KERNEL({self.name})"):
            write("(void)floats, (void)ints;")
            write(f"{self.name}_arguments a;")
            for i, array in enumerate((*p.outputs, *p.operands)):
                write(f"a.{array.name} = ptr[{i}];")
            for i, name in enumerate(self.dims):
                write(f"const int64_t {dim_name(name)} = a.{dim_name(name)} = ints[{i}];")
                write(f"(void){dim_name(name)};")
            shared = [x for x in p.scratch if x.level == 0]
            if shared:
                write(f"char *scratch = tg_scratch(0, {c_of(scratch_bytes(p)[0])});")
                at: Dim = 0
                for x in shared:
                    write(f"a.{x.name} = ({c_type(x.dtype)} *)(scratch + {c_of(at)});")
                    at = at + _padded(x)
            for i, nest in enumerate(p.nests):
                if nest.advice.beside:
                    continue                                            # it runs with one before it
                others = _beside(self.program, i)
                turns, unit, work = split(nest)
                for k in others:                                        # any of them may be the one that has no turns
                    turns = d.dim_max(turns, split(p.nests[k])[0])
                write(f"a.count = {c_of(turns)};")
                if turns == 1 and not others:
                    write(f"{self.name}_nest{i}(&a, 0, 1);")
                else:
                    grain = "PART_ELEMENTS" if nest.advice.grain == PART_ELEMENTS else nest.advice.grain
                    parts = f"tg_parts(tg_ceil(a.count, {unit}), tg_ceil(tg_ceil({grain}, {c_of(min(work, MOST_WORK))}), {unit}))"
                    if work >= nest.advice.grain and nest.blocks is not None:
                        parts = "(int)tg_min(a.count, 4096)"            # long turns, of which some may be shorter than others
                    last = f"{self.name}_nest{i}" if not others else f"{self.name}_from{i}"
                    write(f"if (a.count > 0) tg_parallel({last}, &a, {parts});")

    # ---- one nest ----

    def nest(self, i: int, nest: Nest) -> None:
        write, p = self.write, self.program
        with self.open(f"static void {self.name}_nest{i}(void *context, int part, int parts)"):
            write(f"const {self.name}_arguments *a = context;")
            used = {x.name for s in nest.stages for x in _arrays(self.program, s)}
            for x in (*p.outputs, *p.operands, *(t for t in p.scratch if t.level == 0)):
                if x.name in used:
                    const = "const " if x.role == "operand" else ""
                    write(f"{const}{element_type(x)} *{self.alone(x)}{x.name} = a->{x.name};")
            for name in self.dims:
                write(f"const int64_t {dim_name(name)} = a->{dim_name(name)};")
                write(f"(void){dim_name(name)};")
            local = [s.target for s in nest.stages if s.target.role == "scratch" and s.target.level and not is_number(s.target)]
            if local:
                write(f"char *scratch = tg_scratch(1, {c_of(scratch_bytes(p)[1])});")
                at: Dim = 0
                for x in p.scratch:
                    if x.level and not is_number(x):
                        if x in local:
                            write(f"{c_type(x.dtype)} *restrict {x.name} = ({c_type(x.dtype)} *)(scratch + {c_of(at)});")
                        at = at + _padded(x)
            turns, unit, _ = split(nest)
            write("int64_t from, to;")
            shares = nest.advice.beside or _beside(self.program, i)
            write(f"tg_range({c_of(turns) if shares else 'a->count'}, {unit}, part, parts, &from, &to);")
            self.scopes, self.open_axes = [set()], []
            n = parallel(nest)
            if nest.tile is not None:
                self.tiled(nest, nest.tile)
            elif nest.axes:
                with self.open("for (int64_t turn = from; turn < to; turn++)"):
                    self.turned([(a.name, a.size) for a in nest.axes[:n]])
                    self.open_axes += [a.name for a in nest.axes[:n]]
                    self.inner(nest, n)
            else:
                write("(void)from, (void)to;")
                self.in_order(nest.stages, ("from", "to") if split(nest)[0] != 1 else None)

    def turned(self, counted: Sequence[tuple[str, Dim]]) -> None:
        """Write the axes' values for an iteration number, the last axis counting fastest."""
        rest = "turn"
        for k, (name, size) in reversed(list(enumerate(counted))):
            if k == 0:
                self.write(f"const int64_t {name} = {rest};")
            else:
                self.write(f"const int64_t {name} = {rest} % {c_of(size)};")
                self.write(f"const int64_t left{k} = {rest} / {c_of(size)};")
                rest = f"left{k}"
            self.write(f"(void){name};")

    def tiled(self, nest: Nest, outer: Axis) -> None:
        """Write a nest in blocks of axis `outer` and the stages' own axis. Strided operands are transposed block by block into
        memory that stays in the cache; then all reads are contiguous along the stored axis. Blocks begin at lines of the cache."""
        write, ((inner,), others) = self.write, (nest.stages[0].axes, [a for a in nest.axes if a is not outer])
        loads, (cut, other) = loads_across(self.program, nest, outer, inner), _tiles_of(nest, outer)
        sides, skews = _sides(nest), {outer: " - skew", inner: ""}
        ends = {a: (f"{a.name}_first", f"{a.name}_past") for a in (outer, inner)}

        def block_of(axis: Axis, begin: str) -> None:
            first, past = ends[axis]
            write(f"const int64_t {first} = tg_max_i({begin}, 0), {past} = tg_min({begin} + {sides[axis]}, {c_of(axis.size)});")

        with self.open("for (int64_t turn = from; turn < to; turn++)"):
            self.turned([*((a.name, a.size) for a in others), ("block", _blocks(nest, cut))])
            self.open_axes += [a.name for a in others]
            array, offset, _ = loads[0].attr
            start = c_of(d.substitute(offset, {outer.name: 0, inner.name: 0}))
            write(f"const int64_t skew = (int64_t)((uintptr_t)&{array.name}[{start}] / {element_bytes(array)} % {sides[outer]});")
            block_of(cut, f"block * {sides[cut]}{skews[cut]}")
            begin = f"{other.name}_begin"
            with self.open(f"for (int64_t {begin} = 0{skews[other]}; {begin} < {c_of(other.size)}; {begin} += {sides[other]})"):
                block_of(other, begin)
                at = {a.name: d.dim(ends[a][0], 0, max(d.bounds(a.size)[1] - 1, 0)) for a in ends}
                for v in loads:
                    array, offset, _ = v.attr
                    tile = f"tile{v.number}"
                    step = d.coefficient(offset, inner.name)
                    assert step is not None
                    write(f"{element_type(array)} {tile}[{TILE}];")
                    write(f"turned_{8 * element_bytes(array)}({tile}, {sides[inner]}, "
                          f"&{array.name}[{c_of(d.substitute(offset, at))}], {c_of(step)}, "
                          f"{ends[outer][1]} - {ends[outer][0]}, {ends[inner][1]} - {ends[inner][0]});")
                    self.tiles[v.number] = (f"{tile}[({outer.name} - {ends[outer][0]}) * {sides[inner]} + "
                                            f"({inner.name} - {ends[inner][0]})]")
                with self.loop(outer, ends[outer]):
                    self.in_order(nest.stages, ends[inner])
            self.tiles.clear()

    def inner(self, nest: Nest, level: int) -> None:
        """Write the stages at nest level `level`, then the loops over the deeper axes."""
        for axis, run in nest.runs():
            stages = [s for s in run if s.level == level]
            if stages:
                with nullcontext() if axis is None else self.loop(axis):
                    self.in_order(stages, None)
        deeper = [s for s in nest.stages if s.level > level]
        if not deeper:
            return
        for s in deeper:
            self.declare(s.value, only_ready=True)
        axis = nest.axes[level]
        with self.loop(axis):
            self.inner(nest, level + 1)

    @contextmanager
    def loop(self, axis: Axis, bounds: Bounds | None = None, pragma: str = "", step: str = "") -> Iterator[None]:
        low, high = bounds or ("0", c_of(axis.size))
        line = f"for ({self.index_type} {axis.name} = {low}; {axis.name} < {high}; {axis.name}{step or self.step})"
        with self.open(line, pragma):
            self.open_axes.append(axis.name)
            yield
            assert self.open_axes.pop() == axis.name

    @contextmanager
    def loops(self, axes: Iterable[Axis], bounds: Bounds | None = None, *values: Value, pragma: str = "") -> Iterator[None]:
        """Context manager: nested loops, the first within `bounds`; each declares those parts of `values` that are ready."""
        with ExitStack() as stack:
            for axis in axes:
                stack.enter_context(self.loop(axis, bounds, pragma))
                bounds = None
                for value in values:
                    self.declare(value, only_ready=True)
            yield

    # ---- values ----






    def element(self, load: Value) -> str:
        return self.tiles.get(load.number) or super().element(load)

    def expression(self, v: Value) -> str:
        if v.op == "load" and v.attr[0] in self.last_stored:
            return self.last_stored[v.attr[0]]
        return super().expression(v)

    # ---- stages ----

    def in_order(self, stages: Sequence[Stage], bounds: Bounds | None) -> None:
        """Write stages one after another; neighbours that store along the same axes share one loop."""
        group: list[Stage] = []
        for s, after in zip(stages, [*stages[1:], None], strict=True):
            group.append(s)
            if after is None or not all(_one_loop(self.program, before, after) for before in group):
                self.stage(group, bounds)
                group = []

    def stage(self, group: Sequence[Stage], bounds: Bounds | None) -> None:
        """Write one stage, or several in one loop. bounds: of their first axis, where that is cut into parts."""
        s, write = group[0], self.write
        write(f"/* {', '.join(dict.fromkeys(stage.note for stage in group))} */")
        for stage in group:
            if is_number(stage.target) and stage.target not in self.declared:
                write(f"{c_type(stage.target.dtype)} {stage.target.name};")
                self.declared.add(stage.target)
        product = product_of(s)
        if product is not None:
            self.multiplied(s, product)
            return
        for stage in group:
            self.declare(stage.value, only_ready=True)
        alone = s.monoid is not None and len(s.axes) == (s.scan is not None)
        with self.open() if alone else nullcontext():               # no loop of its own is a scope for its variables
            if s.scan is not None:
                self.scanned(s, s.scan, bounds)
            elif s.monoid is None:
                self.stored(group, bounds)
            elif across(s):
                self.columns(s, bounds)
            else:
                with self.loops(s.axes, bounds, s.value):
                    self.rows(s)

    def multiplied(self, s: Stage, p: TileProduct) -> None:
        """Write a product as a call to the handwritten register tile."""
        begin: dict[str, Dim] = {a.name: 0 for a in (p.rows, p.inner, p.lane)}

        def address(array: Array, offset: Dim) -> str:
            return f"&{array.name}[{c_of(d.substitute(offset, begin))}]"

        left, right = (address(v.attr[0], v.attr[1]) for v in (p.left, p.right))
        keep = "NULL" if p.keep is None else address(p.keep.attr[0], p.keep.attr[1])
        wide = s.value.dtype is not f32
        layout = "ROWS_CONTIGUOUS" if p.along_rows else "K_CONTIGUOUS"
        name, vector, last = ("tg_wide_rows_product", "VD", "") if wide else ("tg_rows_product", "VW", ", NULL")
        self.write(f"{name}({c_of(p.rows.size)}, {p.lane.size} / {vector}, {layout}, {left}, {c_of(p.stride)}, {right}, "
                   f"{c_of(p.inner.size)}, {address(s.target, s.index)}, {keep}{last});")

    def stored(self, group: Sequence[Stage], bounds: Bounds | None) -> None:
        s = group[0]
        with self.loops(s.axes[:-1], bounds, *(stage.value for stage in group)):
            if s.axes and s.advice.unroll > 1:
                self.write(f"#pragma GCC unroll {s.advice.unroll}")
            own = bounds if len(s.axes) == 1 else None
            with self.loop(s.axes[-1], own, "GCC ivdep") if s.axes else nullcontext():
                for stage in group:
                    self.declare(stage.value)
                    self.put(stage, self.ref(stage.value))
                    if stage.target.dtype is stage.value.dtype and not stage.held:
                        self.last_stored[stage.target] = self.ref(stage.value)      # who reads it in this loop reads this element
        self.last_stored.clear()

    def put(self, s: Stage, text: str, index: Dim | None = None) -> None:
        target = s.target
        if s.held:
            held = target.name if is_number(target) else f"{target.name}[{c_of(s.index)}]"
            if isinstance(s.held, Value):
                self.declare(s.held)
                held = f"{held} * {self.ref(s.held)}"
            text = f"{computed_in(target.dtype).name}_max({held}, {text})" if s.monoid == "max" else f"{held} + {text}"
        if is_number(target):
            self.write(f"{target.name} = {text};")
            return
        if target.role == "output":
            exact = target.dtype is bf16 and s.monoid is None and _is_moved(s.value, bf16)
            text = f"(uint16_t)(bits_of({text}) >> 16)" if exact else called(NARROWED, target.dtype, text)
            if target.dtype is bool_:
                text = f"(uint8_t)({text})"
        self.write(f"{target.name}[{c_of(s.index)}] = {text};")

    def rows(self, s: Stage) -> None:
        """Write a reduction to one number."""
        write, t, last = self.write, s.value.dtype, s.reduce[-1]
        total, part = f"total{s.value.number}", f"part{s.value.number}"
        kind, start, combine, done = self.monoid(s)
        blocks = s.monoid == "sum" and t is f32                     # a lane holds few values, and f64 goes on with their sum
        write(f"{'double' if blocks else kind} {total} = {start};")
        first = self.first(s)
        with self.loops(s.reduce[:-1], None, s.value):
            if blocks:
                with self.open(f"for (int64_t begin = 0, end; begin < {c_of(last.size)}; begin = end)"):
                    write(f"end = tg_min(begin + {s.advice.block * s.advice.lanes}, {c_of(last.size)});")
                    write(f"double {part} = 0;")
                    self.taken(s, ("begin", "end"), kind, part, "0", combine)
                    if first:
                        write(f"{part} += (double){first} * (double)(end - begin);")
                    if _may_overflow(s):
                        self.again(s, part)
                    write(f"{total} += {part};")
            else:
                self.taken(s, ("0", c_of(last.size)), kind, total, start, combine)
        target_type = c_type(s.target.dtype)
        narrows = s.monoid == "sum" and t.is_float and target_type != "double"
        self.put(s, f"({target_type}){total}" if narrows else done.format(total))

    def first(self, s: Stage) -> str:
        """Return the name of the variable with a sum's first value, which is subtracted from all values before they are added in
        f32; "" if the sum has none."""
        if s.value.op != "beside_first":
            return ""
        name, (of,) = f"first{s.value.number}", s.value.args
        self.write(f"float {name} = 0;")
        with self.open(""):
            for axis in s.reduce:
                self.write(f"const int64_t {axis.name} = 0;")
                self.open_axes.append(axis.name)
            some = [f"{c_of(axis.size)} > 0" for axis in s.reduce if d.bounds(axis.size)[0] < 1]
            with self.open(f"if ({' && '.join(some)})" if some else ""):
                self.declare(of)
                self.write(f"if (__builtin_fabsf({self.ref(of)}) < INFINITY) {name} = {self.ref(of)};")
            for axis in reversed(s.reduce):
                self.write(f"(void){axis.name};")
                assert self.open_axes.pop() == axis.name
        return name

    def again(self, s: Stage, part: str) -> None:
        """Write the repetition of a block's sum in f64, for the case that the f32 sum left its valid range."""
        exact = replace(s, value=in_f64(self.program.values, s.value, KEPT), advice=replace(s.advice, lanes=1))
        with self.open(f"if ({'out_of_range' if s.value.op in ('mul', 'where') else 'overflowed'}({part}))"):
            self.write(f"{part} = 0;")
            self.taken(exact, ("begin", "end"), "double", part, "0", "{acc} += {x};")

    def taken(self, s: Stage, bounds: Bounds, kind: str, into: str, start: str, combine: str) -> None:
        """Write the innermost loop of a reduction to one number. Several accumulator vectors (`lanes`) avoid waiting for each
        other. Sums of f32 use at least one vector, as their variable is f64."""
        write, last, lanes = self.write, s.reduce[-1], s.advice.lanes
        sign = {"sum": "+", "max": "max", "product": "*"}[str(s.monoid)]
        if lanes == 1 and not (kind == "float" and s.monoid == "sum"):
            with self.loop(last, bounds, f"omp simd reduction({sign} : {into})"):
                self.declare(s.value)
                write(combine.format(acc=into, x=self.ref(s.value)))
            return
        low, high = bounds
        wide = "VW" if kind in ("float", "int32_t", "uint32_t") else "VD"
        many = wide if lanes == 1 else f"{lanes} * {wide}"
        write(f"{kind} lane[{many}];")
        write(f"for (int64_t l = 0; l < {many}; l++) lane[l] = {start};")
        write(f"int64_t at = {low};")
        with (self.open(f"for (; at + {many} <= {high}; at += {many})"),
              self.open(f"for (int64_t l = 0; l < {many}; l++)", "GCC ivdep")):
            self.open_axes.append(last.name)
            write(f"const int64_t {last.name} = at + l;")
            self.declare(s.value)
            write(combine.format(acc="lane[l]", x=self.ref(s.value)))
            self.open_axes.pop()
        pragma = f"omp simd reduction({sign} : {into})"
        with self.loop(last, ("at", high), pragma):
            self.declare(s.value)
            write(combine.format(acc=into, x=self.ref(s.value)))
        if s.monoid == "sum" and lanes > 1:                         # a lane holds few values, so that sums of some are as good
            added = " + ".join(f"lane[{k} * {wide} + l]" for k in range(lanes))
            many = wide
            write(f"for (int64_t l = 0; l < {many}; l++) lane[l] = {added};")
        if s.monoid == "sum" and kind == "float":
            write(f"{into} += v_sum_wide(v_load(lane));")
            return
        write(f"#pragma {pragma}")
        taken = f"lane[l] > {into} ? lane[l] : {into}" if s.monoid == "max" else f"{into} {sign} lane[l]"
        write(f"for (int64_t l = 0; l < {many}; l++) {into} = {taken};")

    def monoid(self, s: Stage) -> tuple[str, str, str, str]:
        """Return (type, initial value, statement that combines, final expression) for an accumulator in the stage's own dtype."""
        t = s.value.dtype
        if s.monoid == "sum":
            if t.is_float:
                return c_type(t), "0", "{acc} += {x};", "{}"
            wide = f"uint{t.bits}_t"
            return wide, "0", "{acc} += (" + wide + "){x};", f"({c_type(t)}){{}}"
        if s.monoid == "product":
            wide = "double" if t.is_float else f"uint{max(32, t.bits)}_t"
            return wide, "1", "{acc} *= (" + wide + "){x};", f"({c_type(t)}){{}}"
        if t.is_float:
            kind, name = ("int32_t", "f32") if t is f32 else ("int64_t", "f64")
            least = "order_f32(-INFINITY)" if t is f32 else "order_f64(-INFINITY)"
            taken = f"const {kind} key = order_{name}({{x}}); {{acc}} = key > {{acc}} ? key : {{acc}};"
            return kind, least, taken, f"unorder_{name}({{}})"
        least = LEAST.get(t.name, "0")
        return c_type(t), least, "{acc} = {x} > {acc} ? {x} : {acc};", "{}"

    def scanned(self, s: Stage, scan: Running, bounds: Bounds | None) -> None:
        """Write a scan. Along memory it runs in blocks, computed first and accumulated next; if its axis is not the last, it runs
        in columns. bounds: of the first axis that is not scanned."""
        write, t, at = self.write, s.value.dtype, s.axes.index(scan.along)
        kind, start, combine, done = self.monoid(s)
        narrow = s.monoid == "sum" and t is f32
        if narrow:
            kind, combine, done = "double", "{acc} += (double){x};", "(float){}"
        running = f"running{s.value.number}"
        outer, inner = s.axes[:at], s.axes[at + 1:]
        with self.loops((*outer, *inner[:-1]), bounds):
            if scan.start is not None:
                self.declare(scan.start)
                start = self.ref(scan.start) if s.monoid != "max" or not t.is_float else f"order_{t.name}({self.ref(scan.start)})"
            if inner:
                axis = inner[-1]
                low, high = (bounds if len(s.axes) == 2 else None) or ("0", c_of(axis.size))
                with self.open(f"for (int64_t first = {low}, past; first < {high}; first = past)"):
                    write(f"past = tg_min(first + {s.advice.columns}, {high});")
                    write(f"{kind} {running}[{s.advice.columns}];")
                    write(f"for (int64_t at = 0; at < past - first; at++) {running}[at] = {start};")
                    with self.loop(scan.along):
                        self.declare(s.value, only_ready=True)
                        with self.loop(axis, ("first", "past"), "GCC ivdep"):
                            self.declare(s.value)
                            acc = f"{running}[{axis.name} - first]"
                            taken = combine.format(acc=acc, x=self.ref(s.value))
                            if not scan.before:
                                write(taken)
                            self.put(s, done.format(acc))
                            if scan.before:
                                write(taken)
            else:
                block, axis, shift = f"block{s.value.number}", scan.along, int(scan.before)
                write(f"{kind} {running} = {start};")
                with self.open(f"for (int64_t begin = 0, end; begin < {c_of(axis.size)}; begin = end)"):
                    write(f"end = tg_min(begin + {s.advice.block}, {c_of(axis.size)});")
                    write(f"{c_type(t)} {block}[{s.advice.block + shift}];")
                    if scan.before:
                        write(f"{block}[0] = {done.format(running)};")
                    with self.loop(axis, ("begin", "end"), "GCC ivdep"):
                        self.declare(s.value)
                        write(f"{block}[{axis.name} - begin{' + 1' * shift}] = {self.ref(s.value)};")
                    if narrow:
                        write(f"f32_running_sum({block}{' + 1' * shift}, end - begin, &{running});")
                    else:
                        with self.open(f"for (int64_t at = {shift}; at < end - begin{' + 1' * shift}; at++)"):
                            write(combine.format(acc=running, x=f"{block}[at]"))
                            write(f"{block}[at] = {done.format(running)};")
                    with self.loop(axis, ("begin", "end"), "GCC ivdep"):
                        self.put(s, f"{block}[{axis.name} - begin]")

    def inside(self, limits: Limits) -> tuple[str, str]:
        """Return the bounds of an axis within which a reduction's iterations count, and write `continue` for the case that none
        does."""
        if limits.free:
            for v in limits.free:
                self.declare(v)
            self.write(f"if (!({' && '.join(map(self.ref, limits.free))})) continue;")
        lows = ["first", *(f"tg_ceil({c_of(-rest)}, {step})" for step, rest in limits.along if step > 0)]
        highs = ["past", *(f"(({c_of(rest)}) < 0 ? 0 : ({c_of(rest)}) / {-step} + 1)" for step, rest in limits.along if step < 0)]
        if len(lows) > 1:
            self.write(f"const int64_t low = {_nested('tg_max_i', lows)};")
        if len(highs) > 1:
            self.write(f"const int64_t high = {_nested('tg_min', highs)};")
        return "low" if len(lows) > 1 else "first", "high" if len(highs) > 1 else "past"

    def columns(self, s: Stage, bounds: Bounds | None) -> None:
        """Write a reduction across memory: its innermost loop runs over the last own axis, with an accumulator for each column."""
        write, t, axis = self.write, s.value.dtype, s.axes[-1]
        kind, start, combine, done = self.monoid(s)
        narrow = s.monoid == "sum" and t is f32
        total, part = f"total{s.value.number}", f"part{s.value.number}"
        with self.loops(s.axes[:-1], bounds):
            low, high = (bounds if bounds and len(s.axes) == 1 else None) or ("0", c_of(axis.size))
            whole = isinstance(axis.size, int) and axis.size <= s.advice.columns and bounds is None
            wide = axis.size if whole else s.advice.columns
            with self.open("" if whole else f"for (int64_t first = {low}, past; first < {high}; first = past)"):
                write(f"enum {{ first = 0, past = {wide} }};" if whole else f"past = tg_min(first + {wide}, {high});")
                write(f"{'double' if narrow else kind} {total}[{wide}];")
                write(f"for (int64_t at = 0; at < past - first; at++) {total}[at] = {'0.0' if narrow else start};")
                last = s.reduce[-1]
                inside = limits(self.program.values, s, axis)
                value = s.value if inside is None else inside.value
                with self.loops(s.reduce[:-1]):
                    blocks = f"for (int64_t begin = 0, end; begin < {c_of(last.size)}; begin = end)"
                    with self.open(blocks) if narrow else nullcontext():
                        if narrow:
                            write(f"end = tg_min(begin + {s.advice.rows}, {c_of(last.size)});")
                            write(f"float {part}[{wide}];")
                            write(f"for (int64_t at = 0; at < past - first; at++) {part}[at] = 0.0f;")
                        with self.loop(last, ("begin", "end") if narrow else None):
                            self.declare(value, only_ready=True)
                            begin, end = self.inside(inside) if inside is not None else ("first", "past")
                            with self.loop(axis, (begin, end), "GCC ivdep"):
                                self.declare(value)
                                acc = f"{part if narrow else total}[{axis.name} - first]"
                                write(f"{acc} += {self.ref(value)};" if narrow else combine.format(acc=acc, x=self.ref(value)))
                        if narrow:
                            write(f"for (int64_t at = 0; at < past - first; at++) {total}[at] += {part}[at];")
                with self.loop(axis, ("first", "past")):
                    acc = f"{total}[{axis.name} - first]"
                    self.put(s, f"(float){acc}" if narrow else done.format(acc))


def _nested(function: str, of: Sequence[str]) -> str:
    return of[0] if len(of) == 1 else f"{function}({of[0]}, {_nested(function, of[1:])})"


def _may_overflow(s: Stage) -> bool:
    """Return whether a sum of f32 may leave the range of f32 while its f64 result does not. Stored values of a row, such as
    exponentials, are too small for that."""
    if s.target.dtype is not f64 or s.product == "streamed":
        return False
    return s.value.op in ("mul", "where", "add", "beside_first") or (s.value.op == "load" and s.value.attr[0].role != "scratch")


def _one_loop(program: StageProgram, s: Stage, after: Stage) -> bool:
    """Return whether a stage and a later one may share a loop: both store along the same axes, and the later one reads only the
    element that the first stored in the same iteration."""
    if any(x.monoid is not None or not x.axes for x in (s, after)):
        return False
    if s.axes != after.axes or s.advice != after.advice:
        return False
    return all(v.attr[1] == s.index and not v.args for v in _used(program, after) if v.op == "load" and v.attr[0] == s.target)


def _arrays(program: StageProgram, s: Stage) -> Iterable[Array]:
    yield s.target
    yield from (v.attr[0] for v in _used(program, s) if v.op == "load")


def _used(program: StageProgram, s: Stage) -> Iterator[Value]:
    """Return the values of a stage, including those of indices read at run time."""
    return values_in(*s.roots(), *(v for name, v in program.gathered.items() if name in s.value.symbols))


def _most(axes: Iterable[Axis]) -> int:
    """Return the most iterations of nested loops; the size of an axis may depend on outer axes."""
    return math.prod(d.bounds(a.size)[1] for a in axes)




# ---- how a nest is cut into parts ----------------------------------------------------------------------------------------------


def is_shared_out(nest: Nest) -> bool:
    """Return whether a nest has several iterations for threads to share."""
    return split(nest)[0] != 1


def split(nest: Nest) -> tuple[Dim, int, int]:
    """Return (number of items to divide among threads, the granularity of parts, element steps per item)."""
    n = parallel(nest)
    if nest.tile is not None:
        cut, other = _tiles_of(nest, nest.tile)
        turns = d.product(a.size for a in nest.axes if a is not nest.tile) * _blocks(nest, cut)
        return turns, 1, _sides(nest)[cut] * _most((other,)) * len(nest.stages)
    if nest.axes:
        turns = d.product(a.size for a in nest.axes[:n])
        return turns, 1, 1 + sum(_most((*nest.axes[n:s.level], *nest.loops(s))) for s in nest.stages)
    axes, scan = nest.stages[0].axes, nest.stages[0].scan
    if len({(s.axes, s.scan and (s.scan.along, s.scan.before, s.scan.start)) for s in nest.stages}) > 1:
        return 1, 1, 1
    if scan is not None:                                        # the scanned axis stays in one piece, and is walked in order
        free = tuple(a for a in axes if a != scan.along)
        axes = (*free, scan.along) if free else ()
    if not axes:
        return 1, 1, 1
    work = _most((*axes[1:], *nest.stages[0].reduce)) * max(map(_steps, nest.stages))
    return axes[0].size, 64 if len(axes) == 1 + (scan is not None) else 1, max(1, work)


def _steps(s: Stage) -> int:
    """Return the steps of one element. An exponential is 8, in f64 16 (a separate thread pays from 2048 and 1024 of them on)."""
    return max((2 * computed_in(v.dtype).itemsize for v in values_in(*s.roots()) if v.op in DEAR), default=1)


def _tiles_of(nest: Nest, outer: Axis) -> tuple[Axis, Axis]:
    """Return the two axes of a nest's tiles: the longer one, which is divided among threads, and the other."""
    (inner,) = nest.stages[0].axes
    return (outer, inner) if d.bounds(outer.size)[1] >= d.bounds(inner.size)[1] else (inner, outer)


def loads_across(program: StageProgram, nest: Nest, outer: Axis, inner: Axis) -> list[Value]:
    """Return the loads of a nest that are contiguous along `outer`, at positions known before it runs."""
    loads = dict.fromkeys(v for s in nest.stages for v in values_in(s.value) if v.op == "load")
    return [v for v in loads if v.attr[0].level == 0 and not v.symbols & set(program.gathered)
            and lies_across(v, outer.name, inner.name)]


def _beside(program: StageProgram, i: int) -> list[int]:
    """Return the numbers of the nests that run concurrently with nest i."""
    return list(takewhile(lambda k: program.nests[k].advice.beside, range(i + 1, len(program.nests))))


def _sides(nest: Nest) -> dict[Axis, int]:
    """Return the iterations of a tile along each of its two axes."""
    (inner,), outer = nest.stages[0].axes, nest.tile
    assert outer is not None
    return {outer: nest.advice.tile, inner: TILE // nest.advice.tile}


def _blocks(nest: Nest, axis: Axis) -> Dim:
    """Return the tiles along an axis; along that which is read contiguously there may be one more, as the first may be shorter."""
    side = _sides(nest)[axis]
    return d.ceil_div(axis.size + (side - 1 if axis is nest.tile else 0), side)


# ---- numbers -------------------------------------------------------------------------------------------------------------------



def _is_moved(v: Value, dtype: DType) -> bool:
    """Return whether a value is a stored number of the dtype or 0, so that storing it again rounds nothing."""
    if v.op == "where":
        return all(_is_moved(x, dtype) for x in v.args[1:])
    return v.is_constant(0) or (v.op == "load" and v.attr[0].role == "operand" and v.attr[0].dtype is dtype)








