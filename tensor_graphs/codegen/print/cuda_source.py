"""cuda_source: a program printed as CUDA C, a kernel for each nest, in the order of their launches on one stream.

The stages of a nest decide among three forms:
- flat: element by element. A thread has V contiguous elements, loaded and stored as one pack of up to 16 bytes.
- columns: a reduction across memory. A warp walks along memory, the warps of a block share the rows, each thread has V columns.
- turns: anything else. GROUP threads share one iteration ("turn") of the nest's outer axes, and its reductions along memory. Rows
  that are short enough stay in registers between stages, where each thread has the same elements in all stages.

A value of a row is kept in registers if every stage reads it in the thread that wrote it; else in shared memory, or in scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Nest,
    Stage,
    StageProgram,
    Value,
    across,
    computed_in,
    parallel,
    values_in,
)
from tensor_graphs.codegen.passes.softmax_exp import is_shifted
from tensor_graphs.codegen.print.c_source import _arrays, _most, _Renderer, _used, loads_across
from tensor_graphs.codegen.print.values import (
    LEAST,
    NARROWED,
    STORED,
    WIDENED,
    c_of,
    c_type,
    called,
    dim_name,
    element_bytes,
    element_type,
    is_number,
)
from tensor_graphs.kernels.kernel import Launch
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f16, f32

FLAT = 256
"""threads of a block in the flat form"""

SIDE = 64
"""side length, in elements, of a block in which strided operands are transposed"""

TILE = 128
"""bytes of a row of such a block when it is read in packs: a cache line"""

WARPS, FEW_WARPS = 16, 8
"""warps of a block in the column form, which read as many rows at the same time: usually, and for very few rows"""

AHEAD, AHEAD_COMPUTED = 16, 4
"""unrolled rows of a warp in the column form: where rows are only added, and where their elements are computed first"""

HELD = 4
"""packs of a row per thread where there are enough iterations to fill the device"""

HELD_READ = 8
"""packs of a row per thread where the row is only reduced to numbers"""

HELD_PACKS, HELD_ELEMENTS, HELD_WORDS = 8, 64, 96
"""limits for rows in registers: packs and elements of a thread, and 4-byte words of packs that are loaded ahead"""

SHORT_SUM, FEW_NUMBERS = 64, 4
"""most terms of a reduction across memory for one thread: in a window (several axes, or one compound axis), and otherwise"""

SHORT = 256
"""packs of a row up to which each thread takes a single pack, where there may be few iterations"""

ENOUGH = 528
"""iterations that fill the device: four blocks for each of 132 multiprocessors"""

SHARED = 96 << 10
"""most bytes of shared memory for the rows of a block"""

RESIDENT = 1056
"""most blocks that have rows in scratch, or that prefetch rows before they wait: eight for each of 132 multiprocessors"""

FAR = 4 << 20
"""bytes of an operand from which on its rows are prefetched; most of a smaller one is still in the cache from its last write"""

BROUGHT = 4 << 20
"""most bytes that all blocks of a launch prefetch; more would delay the first loads"""

WAIT = "after_those_before();"
"""the statement of a kernel after which it reads and writes"""

FAR_APART = 64
"""bytes of a pack that are too many: a thread reads 16 bytes in one load, so only two threads would share a line of 128 bytes"""

LOWEST = {bf16: "0xff80", f16: "0xfc00"}
"""bits of -inf, for dtypes whose maxima are computed two at a time"""

WIDE = 1 << 31
"""elements of an array from which on indices need 64 bits"""


@dataclass(frozen=True)
class Rendered:
    """CUDA source, its launches in order, and the bytes of each scratch array, whose addresses are the last parameters."""

    text: str
    launches: tuple[Launch, ...]
    scratch: tuple[Dim, ...]


def rendered(program: StageProgram, aligned: bool = True, prefix: str = "nest") -> Rendered:
    """Return the CUDA source of a program. Parameters of each kernel: outputs, operands, the dims (if any), scratch. aligned: every
    array begins at a multiple of 16 bytes; else elements are loaded one by one."""
    return _Cuda(program, aligned, prefix).rendered()


@dataclass(frozen=True)
class _Loop:
    """The loop of a stage over the flattened `axes`, shared by `threads` threads in packs of `pack` elements. turns: iterations of
    a thread, if the loop is unrolled; 0 where its length is unknown."""

    axes: tuple[Axis, ...]
    pack: int
    threads: int
    turns: int
    exact: bool

    @property
    def total(self) -> Dim:
        return d.product(a.size for a in self.axes)


class _Cuda(_Renderer):
    index_type, step = "index_t", " += 1"

    def __init__(self, program: StageProgram, aligned: bool, prefix: str) -> None:
        super().__init__(program, prefix)
        self.aligned = aligned
        self.launches: list[Launch] = []
        self.long_rows: list[tuple[Array, Dim]] = []                     # of levels of their own, in scratch: elements of all turns
        self.packs: list[dict[int, str]] = []                       # of a value's number: the pack that has it, by block
        self.held: dict[str, str] = {}                              # arrays in registers: where this element of a row is
        self.divisors: list[dict[int, str]] = []
        self.in_sum: set[int] = set()                               # exponentials of which a sum is wanted: softmax_exp.py
        self.uniform: dict[int, str] = {}                           # conditions that hold for all lanes of a pack or for none
        self.made_here: set[Array] = set()                             # what the stages that are written together make
        self.wide = any(d.bounds(a.size)[1] >= WIDE for a in self.all_arrays()) or any(
            _most((*n.axes, *s.axes, *s.reduce)) >= WIDE for n in program.nests for s in n.stages)

    def all_arrays(self) -> Iterator[Array]:
        yield from self.program.outputs
        yield from self.program.operands
        yield from self.program.scratch

    # ---- text ----

    def rendered(self) -> Rendered:
        p, write = self.program, self.write
        bodies = self.bodies()
        write.lines += self.preamble()
        parameters = self.parameters()
        for body in bodies:
            write()
            write.lines += [line.replace("PARAMETERS", parameters) for line in body]
        pieces = [d.ceil_div(a.size * computed_in(a.dtype).itemsize, 256) * 256 for a in p.scratch if a.level == 0]
        pieces += [d.ceil_div(n * computed_in(a.dtype).itemsize, 256) * 256 for a, n in self.long_rows]
        return Rendered("\n".join(write.lines) + "\n", tuple(self.launches), tuple(pieces))

    def preamble(self) -> list[str]:
        """Return the lines before the kernels."""
        p = self.program
        return ["/* " + str(p).replace("\n", "\n * ").replace("*/", "* /") + " */",
                *(["#define NARROW"] if all(computed_in(a.dtype) is not a.dtype for a in p.outputs) else []),
                '#include "numbers.cuh"', "", f"typedef {'int64_t' if self.wide else 'int'} index_t;"]

    def bodies(self) -> list[list[str]]:
        """Return the lines of each kernel: one for each nest, or for several independent nests."""
        bodies: list[list[str]] = []
        group: list[tuple[Nest, Launch, list[str]]] = []
        for i, nest in enumerate(self.program.nests):
            lines = self.apart(partial(self.nest, i, nest))
            launch = self.launches.pop()
            if group and not self.may_be_beside([other for other, _, _ in group], nest, group[0][1], launch):
                bodies.append(self.beside_each_other([kernel[1:] for kernel in group]))
                group = []
            group.append((nest, launch, lines))
        return [*bodies, self.beside_each_other([kernel[1:] for kernel in group])] if group else bodies

    def may_be_beside(self, others: Sequence[Nest], nest: Nest, first: Launch, launch: Launch) -> bool:
        """Return whether a nest may share the launch of the nests before it: it has equally many threads, and none reads or writes
        what another writes. Nests that fill the device have separate launches."""
        if launch.block != first.block or any(d.bounds(one.grid)[0] >= ENOUGH for one in (first, launch)):
            return False
        written, theirs = ({s.target for n in nests for s in n.stages} for nests in ([nest], others))
        read, they_read = ({a for n in nests for s in n.stages for a in self.read(s)} for nests in ([nest], others))
        return not (written & (theirs | they_read) or theirs & read)

    def beside_each_other(self, kernels: Sequence[tuple[Launch, list[str]]]) -> list[str]:
        """Return the lines of one kernel that has the blocks of several."""
        (first, lines), *more = kernels
        if not more:
            self.launches.append(first)
            return lines
        begun = 1 + len(self.dims)                                  # the head, dims; then what is brought near, the wait
        grid: Dim = 0
        text = [*lines[:begun], f"    {WAIT}"]
        for launch, own in kernels:
            begun = own.index(f"    {WAIT}") + 1
            text.append(f"    if ((index_t)blockIdx.x < {c_of(grid + launch.grid)}) {{")
            text.append(f"        const index_t own_block = (index_t)blockIdx.x - {c_of(grid)}, own_blocks = {c_of(launch.grid)};")
            text += ["    " + line.replace("blockIdx.x", "own_block").replace("gridDim.x", "own_blocks") for line in own[begun:-1]]
            text += ["        return;", "    }"]
            grid = grid + launch.grid
        shared = max(launch.shared for launch, _ in kernels)
        self.launches.append(Launch(first.entry, grid, first.block, shared, waits=True))
        return [*text, "}"]

    def apart(self, emit: Callable[[], None]) -> list[str]:
        """Return the lines that `emit` writes, without adding them to the source."""
        self.write.lines, before = [], self.write.lines
        emit()
        lines, self.write.lines = self.write.lines, before
        return lines

    def parameters(self) -> str:
        p = self.program
        apart = {a for n in p.nests for s in n.stages for a in self.read(s) if all(a != o.target for o in n.stages)}

        def alone(a: Array) -> str:                                 # numbers.cuh, after_those_before, says which may be restrict
            return "" if a in apart else "__restrict__ "

        texts = [f"{STORED[a.dtype.name]} *{alone(a)}{a.name}" for a in p.outputs]
        texts += [f"const {STORED[a.dtype.name]} *{a.name}" for a in p.operands]
        texts += ["const int64_t *__restrict__ sizes"] if self.dims else []
        texts += [f"{c_type(a.dtype)} *{alone(a)}{a.name}" for a in p.scratch if a.level == 0]
        texts += [f"{c_type(a.dtype)} *__restrict__ {a.name}_rows" for a, _ in self.long_rows]
        return ", ".join(texts)

    def begin(self, i: int, grid: Dim, block: int, shared: int = 0) -> None:
        self.enter(f"{self.name}{i}", grid, block, shared)
        self.write(WAIT)

    def enter(self, entry: str, grid: Dim, block: int, shared: int = 0, early: tuple[int, ...] = (),
              dims: Mapping[str, int] | None = None) -> None:
        """Begin a kernel. dims: values of dims that are known at this launch."""
        self.launches.append(Launch(entry, grid, block, shared, waits=True, early=early))
        self.write.open(f'extern "C" __global__ void __launch_bounds__({block}) {entry}(PARAMETERS)')
        for at, name in enumerate(self.dims):
            size = f"(index_t)sizes[{at}]" if name not in (dims or {}) else str((dims or {})[name])
            self.write(f"const index_t {dim_name(name)} = {size};")
        self.scopes, self.open_axes, self.packs, self.divisors, self.held = [set()], [], [{}], [{}], {}

    @contextmanager
    def open(self, line: str = "", pragma: str = "") -> Iterator[None]:
        self.packs.append({})
        self.divisors.append({})
        with super().open(line, pragma):
            yield
            for number in self.scopes[-1]:
                self.uniform.pop(number, None)
        self.packs.pop()
        self.divisors.pop()

    def split_index(self, flat: str, axes: Sequence[Axis]) -> None:
        """Write the axes' values for a flat index, the last axis counting fastest."""
        rest = flat
        for k in reversed(range(len(axes))):
            axis = axes[k]
            if k == 0:
                self.write(f"const index_t {axis.name} = {rest};")
            else:
                size = c_of(axis.size)
                self.write(f"const index_t {axis.name} = {rest} % {size}, {axis.name}_rest = {rest} / {size};")
                rest = f"{axis.name}_rest"
        self.open_axes += [axis.name for axis in axes]

    def nest(self, i: int, nest: Nest) -> None:
        if self.is_flat(nest):
            if nest.tile is None:
                self.flat(i, nest)
            elif not self.tiled_packs(i, nest, nest.tile):
                self.tiled_blocks(i, nest, nest.tile)
        elif self.is_short(nest):
            self.one_each(i, nest)
        elif self.is_columns(nest):
            self.by_columns(i, nest)
        else:
            self.by_turns(i, nest)
        self.write.close()

    # ---- packs ----

    def packable(self, v: Value, axis: Axis, pack: int) -> bool:
        """Return whether a load reads `pack` contiguous, aligned elements along an axis."""
        array, offset, _ = v.attr
        return (pack > 1 and self.aligned and not is_number(array) and array.name not in self.held and array not in self.made_here
                and d.coefficient(offset, axis.name) == 1 and _divides(pack, offset - axis.symbol)
                and all(_uniform(a, axis, pack) for a in v.args))

    def pack_of(self, along: Sequence[tuple[Stage, Axis]]) -> int:
        """Return the elements of a pack for stages that each run along an axis: 16 bytes of the largest array. Where packs would be
        so far apart that a warp reads them piece by piece, 16 bytes of the widest dtype."""
        sizes: list[tuple[int, int]] = []
        if not self.aligned:
            return 1
        for s, axis in along:
            if axis.symbol == 0:
                return 1
            seen = [(v.attr[0], v.attr[1]) for v in values_in(s.value) if v.op == "load"]
            for array, offset in [*seen, *([] if s.monoid else [(s.target, s.index)])]:
                if not (array.role == "scratch" and array.level) and d.coefficient(offset, axis.name) == 1:
                    sizes.append((d.bounds(array.size)[1] * element_bytes(array), element_bytes(array)))
        if not sizes:
            return 1
        most = max(size for size, _ in sizes)
        pack, widest = max(1, 16 // min(width for size, width in sizes if size == most)), max(width for _, width in sizes)
        if pack * widest >= FAR_APART:
            pack = max(1, 16 // widest)
        while not all(_divides(pack, axis.size) for _, axis in along):
            pack //= 2
        return pack

    def load_packs(self, value: Value, axis: Axis, pack: int) -> None:
        """Write the pack loads of a value and the divisors that all its lanes share, before the loop over lanes."""
        for v in values_in(value):
            if v.op == "load" and self.packable(v, axis, pack) and self.pack_name(v) is None and self.reachable(v, axis):
                array, offset, _ = v.attr
                read = f"pack_at<{pack}>({array.name} + {c_of(offset)})"
                kind = f"Pack<{element_type(array)}, {pack}>"
                name = f"p{v.number}"
                if v.args:
                    self.declare_uniform(v.args[0], axis)
                    self.write(f"{kind} {name} = {{}};")
                    self.write(f"if ({self.ref(v.args[0])}) {name} = {read};")
                else:
                    self.write(f"const {kind} {name} = {read};")
                self.packs[-1][v.number] = name

    def reachable(self, v: Value, axis: Axis) -> bool:
        """Return whether the address and the condition of a load are known, except for the axis."""
        names = {str(s) for s in d.symbols_in(v.attr[1])} - {axis.name} - set(self.dims)
        gathered = self.program.gathered
        self.open_axes.append(axis.name)
        ready = all(self.ready(a) for a in v.args)
        self.open_axes.pop()
        return (ready and v.attr[2] <= set(self.open_axes) | {axis.name}
                and all(n in self.open_axes or (n in gathered and self.known(gathered[n])) for n in names))

    def declare_uniform(self, condition: Value, axis: Axis) -> None:
        """Declare a condition that is equal for all lanes of a pack, evaluated at the first lane."""
        if self.known(condition):
            return
        name = f"all{condition.number}"
        self.write(f"bool {name};")
        with self.open():
            self.open_axes.append(axis.name)
            self.declare(condition)
            self.write(f"{name} = {self.ref(condition)};")
            self.open_axes.pop()
        self.scopes[-1].add(condition.number)
        self.uniform[condition.number] = name

    def ref(self, v: Value) -> str:
        return self.uniform.get(v.number) or super().ref(v)

    def pack_name(self, v: Value) -> str | None:
        return next((names[v.number] for names in reversed(self.packs) if v.number in names), None)

    def share_divisors(self, value: Value) -> None:
        for v in values_in(value):
            if v.op == "div" and v.dtype is f32 and v.args[1].op != "constant" and v.args[0].op != "constant":
                by = v.args[1]
                if self.ready(by) and not any(by.number in names for names in self.divisors):
                    self.declare(by)
                    self.write(f"const Divisor by{by.number} = divisor_of({self.ref(by)});")
                    self.divisors[-1][by.number] = f"by{by.number}"

    def expression(self, v: Value) -> str:
        if v.op == "load":
            array = v.attr[0]
            register = self.held.get(array.name)
            packed = self.pack_name(v)
            if register is not None:
                return register
            if packed is not None:
                return _widened(array, f"{packed}.at[lane]")
        if v in self.products_alone:                               # not fused with a sum: numbers.h
            return f"__{'f' if v.dtype is f32 else 'd'}mul_rn({self.ref(v.args[0])}, {self.ref(v.args[1])})"
        if v.number in self.in_sum:
            return f"f32_exp_in_sum({self.ref(v.args[0])})"
        if v.op == "div" and v.dtype is f32:
            by = next((names[v.args[1].number] for names in reversed(self.divisors) if v.args[1].number in names), None)
            if by is not None:
                return f"divided({self.ref(v.args[0])}, {by})"
        return super().expression(v)

    # ---- flat ----

    def is_flat(self, nest: Nest) -> bool:
        stages = nest.stages
        return all(s.monoid is None and s.level == len(nest.axes) and s.axes == stages[0].axes and s.target.level == 0
                   and all(self.own_elements(nest, s, before) for before in stages[:k]) for k, s in enumerate(stages))

    def own_elements(self, nest: Nest, s: Stage, before: Stage) -> bool:
        """Return whether a stage reads only its own element of what an earlier stage stores, if any."""
        reads = [v for v in _used(self.program, s) if v.op == "load" and v.attr[0] == before.target]
        return not reads or (nest.tile is None and before.target.dtype is before.value.dtype
                             and all(v.attr[1] == before.index and not v.args for v in reads))

    def read(self, s: Stage) -> list[Array]:
        return list(_arrays(self.program, s))[1:]

    def flat(self, i: int, nest: Nest) -> None:
        write, axes = self.write, (*nest.axes, *nest.stages[0].axes)
        pack = self.pack_of([(s, axes[-1]) for s in nest.stages]) if axes else 1
        total = d.product(a.size for a in axes)
        self.begin(i, d.ceil_div(total, FLAT * pack), FLAT)
        write(f"const index_t at = ((index_t)blockIdx.x * {FLAT} + (index_t)threadIdx.x) * {pack};")
        write(f"if (at >= {c_of(total)}) return;")
        if axes:
            self.split_index("at", axes)
        self.lanes(nest.stages, axes, pack)

    def begin_tiles(self, i: int, nest: Nest, outer: Axis, inner: Axis, side: int) -> None:
        """Begin a kernel whose blocks cover `side` by `side` iterations of two axes."""
        write, others = self.write, [a for a in nest.axes if a is not outer]
        down, right = d.ceil_div(outer.size, side), d.ceil_div(inner.size, side)
        self.begin(i, d.product(a.size for a in others) * down * right, FLAT)
        write(f"const index_t right = {c_of(right)}, down = {c_of(down)}, turn = (index_t)blockIdx.x / right / down;")
        write(f"const index_t first_{inner.name} = (index_t)blockIdx.x % right * {side};")
        write(f"const index_t first_{outer.name} = (index_t)blockIdx.x / right % down * {side};")
        if others:
            self.split_index("turn", others)

    def tiled_blocks(self, i: int, nest: Nest, outer: Axis) -> None:
        """Write a nest in blocks of SIDE by SIDE along `outer` and the stages' own axis. Strided operands are read along `outer`,
        transposed in shared memory, and read from it in the order of the output."""
        write, (inner,) = self.write, nest.stages[0].axes
        pack = self.pack_of([(s, inner) for s in nest.stages])
        self.begin_tiles(i, nest, outer, inner, SIDE)
        across = loads_across(self.program, nest, outer, inner)
        rows = {v: SIDE + max(1, 4 // element_bytes(v.attr[0])) for v in across}   # odd numbers of words: no two in one bank
        for v in across:
            write(f"__shared__ {element_type(v.attr[0])} tile{v.number}[{SIDE} * {rows[v]}];")
        with self.open(f"for (int at = threadIdx.x; at < {SIDE * SIDE}; at += {FLAT})"):
            write(f"const int o = at % {SIDE}, i = at / {SIDE};")
            write(f"const index_t {outer.name} = first_{outer.name} + o, {inner.name} = first_{inner.name} + i;")
            with self.open(f"if ({outer.name} < {c_of(outer.size)} && {inner.name} < {c_of(inner.size)})"):
                for v in across:
                    write(f"tile{v.number}[o * {rows[v]} + i] = {v.attr[0].name}[{c_of(v.attr[1])}];")
        write("__syncthreads();")
        with self.open(f"for (int at = threadIdx.x * {pack}; at < {SIDE * SIDE}; at += {FLAT * pack})"):
            write(f"const int o = at / {SIDE}, i = at % {SIDE};")
            write(f"const index_t {outer.name} = first_{outer.name} + o, {inner.name} = first_{inner.name} + i;")
            write(f"if ({outer.name} >= {c_of(outer.size)} || {inner.name} >= {c_of(inner.size)}) continue;")
            self.open_axes += [outer.name, inner.name]
            lane = " + lane" if pack > 1 else ""
            self.tiles = {v.number: f"tile{v.number}[o * {rows[v]} + i{lane}]" for v in across}
            self.lanes(nest.stages, (*nest.axes, inner), pack)
            self.tiles = {}

    def tiled_packs(self, i: int, nest: Nest, outer: Axis) -> bool:
        """Write tiled blocks in packs of 16 bytes, in blocks whose rows have TILE bytes; other operands are loaded before the block
        synchronises. Return False where strided operands have no such packs."""
        write, (inner,) = self.write, nest.stages[0].axes
        pack = self.pack_of([(s, inner) for s in nest.stages])
        loads = list(dict.fromkeys(v for s in nest.stages for v in values_in(s.value) if v.op == "load"))
        across = loads_across(self.program, nest, outer, inner)
        widths = {element_bytes(v.attr[0]) for v in across}
        if len(widths) != 1 or not widths <= {2, 4}:
            return False
        (width,) = widths
        tall, side, rows = 16 // width, TILE // width, 4 // width
        if not (pack > 1 and tall % pack == 0 and _divides(tall, outer.size) and all(
                _divides(tall, v.attr[1] - outer.symbol) for v in across)) or len(across) * TILE * side > 48 << 10:
            return False
        turns = side * side // (FLAT * pack)
        self.begin_tiles(i, nest, outer, inner, side)
        inside = f"{outer.name} < {c_of(outer.size)} && {inner.name} < {c_of(inner.size)}"
        for v in across:
            kind = element_type(v.attr[0])
            write(f"__shared__ __align__(16) {kind} tile{v.number}[{side} * {side}];")
            write(f"Pack<{kind}, {tall}> across{v.number}[{rows}] = {{}};")
        write(f"const int column = threadIdx.x % {side // tall} * {tall}, row = threadIdx.x / {side // tall} * {rows};")
        with self.open(f"for (int k = 0; k < {rows}; k++)", "unroll"):
            write(f"const index_t {outer.name} = first_{outer.name} + column, {inner.name} = first_{inner.name} + row + k;")
            with self.open(f"if ({inside})"):
                for v in across:
                    write(f"across{v.number}[k] = pack_at<{tall}>({v.attr[0].name} + {c_of(v.attr[1])});")
        early = [v for v in loads if v not in across and not v.args and self.packable(v, inner, pack) and not v.attr[2]
                 and not v.symbols & set(self.program.gathered)]
        for v in early:
            write(f"Pack<{element_type(v.attr[0])}, {pack}> early{v.number}[{turns}];")
        place = (f"const int at = (k * {FLAT} + threadIdx.x) * {pack}, o = at / {side}, i = at % {side};",
                 f"const index_t {outer.name} = first_{outer.name} + o, {inner.name} = first_{inner.name} + i;")
        with self.open(f"for (int k = 0; k < {turns if early else 0}; k++)", "unroll"):
            for line in place:
                write(line)
            with self.open(f"if ({inside})"):
                for v in early:
                    write(f"early{v.number}[k] = pack_at<{pack}>({v.attr[0].name} + {c_of(v.attr[1])});")
        for v in across:
            write(f"put_across(tile{v.number}, column, row, across{v.number});")
        write("__syncthreads();")
        with self.open(f"for (int k = 0; k < {turns}; k++)", "unroll"):
            for line in place:
                write(line)
            write(f"if (!({inside})) continue;")
            for v in across:
                kind = element_type(v.attr[0])
                write(f"const Pack<{kind}, {pack}> p{v.number} = pack_at<{pack}>(tile{v.number} + tile_place<{kind}>(o, i));")
                self.packs[-1][v.number] = f"p{v.number}"
            for v in early:
                self.packs[-1][v.number] = f"early{v.number}[k]"
            self.open_axes += [outer.name, inner.name]
            self.lanes(nest.stages, (*nest.axes, inner), pack)
        return True

    def lanes(self, stages: Sequence[Stage], axes: Sequence[Axis], pack: int) -> None:
        """Write stages that store the element or pack at the open axes; packs are along the last axis."""
        self.made_here = {s.target for s in stages}
        self.at_each(stages, axes, pack)
        self.made_here = set()
        self.last_stored.clear()

    def at_each(self, stages: Sequence[Stage], axes: Sequence[Axis], pack: int) -> None:
        write = self.write
        if pack == 1:
            for s in stages:
                write(f"/* {s.note} */")
                self.declare(s.value)
                self.put(s, self.ref(s.value))
                self.last_stored[s.target] = self.ref(s.value)      # who reads it reads this element
            return
        axis = axes[-1]
        assert self.open_axes.pop() == axis.name
        for s in stages:
            self.declare(s.value, only_ready=True)
            self.share_divisors(s.value)
        for s in stages:
            self.load_packs(s.value, axis, pack)
        outs = {}
        for k, s in enumerate(stages):
            if s.target.name not in self.held and d.coefficient(s.index, axis.name) == 1 and _divides(pack, s.index - axis.symbol):
                again = any(other.target == s.target for other in stages[:k])
                outs[k] = f"out_{s.target.name}" + (f"_{k}" if again else "")
                write(f"Pack<{element_type(s.target)}, {pack}> {outs[k]};")
        with self.lane_loop(axis, pack):
            for k, s in enumerate(stages):
                write(f"/* {s.note} */")
                self.declare(s.value)
                if k in outs:
                    write(f"{outs[k]}.at[lane] = {_narrowed(s.target, self.ref(s.value))};")
                else:
                    self.put(s, self.ref(s.value))
                self.last_stored[s.target] = self.ref(s.value)
        for k, s in enumerate(stages):
            if k in outs:
                write(f"put_pack<{pack}>({s.target.name} + {c_of(s.index)}, {outs[k]});")
        self.open_axes.append(axis.name)

    @contextmanager
    def lane_loop(self, axis: Axis, pack: int) -> Iterator[None]:
        """Context manager: a loop over the elements of the pack at an axis."""
        with self.open(f"for (int lane = 0; lane < {pack}; lane++)", "unroll"):
            self.write(f"const index_t first_{axis.name} = {axis.name};")
            with self.open():
                self.write(f"const index_t {axis.name} = first_{axis.name} + lane;")
                self.open_axes.append(axis.name)
                yield
                assert self.open_axes.pop() == axis.name

    def put(self, s: Stage, text: str, index: Dim | None = None) -> None:
        register = self.held.get(s.target.name)
        if register is not None:
            self.write(f"{register} = {text};")
        elif is_number(s.target):
            self.write(f"{s.target.name} = {text};")
        else:
            self.write(f"{s.target.name}[{c_of(s.index)}] = {_narrowed(s.target, text)};")

    # ---- columns ----

    def is_short(self, nest: Nest) -> bool:
        """Return whether a nest is one reduction across memory with few terms (as of a window), for one thread per result."""
        if len(nest.stages) != 1 or not nest.stages[0].reduce:
            return False
        (s,) = nest.stages
        turns = d.product(a.size for a in s.reduce)
        loads = (v for v in values_in(s.value) if v.op == "load")
        window = len(s.reduce) > 1 or any(d.coefficient(v.attr[1], s.reduce[0].name) is None for v in loads)
        return (s.monoid is not None and s.scan is None and nest.blocks is None and not s.held and bool(s.axes or nest.axes)
                and s.level == len(nest.axes) and s.target.level == 0 and across(s) and d.is_static(turns)
                and 0 < int(d.evaluate(turns, {})) <= (SHORT_SUM if window else FEW_NUMBERS))

    def one_each(self, i: int, nest: Nest) -> None:
        write, (s,) = self.write, nest.stages
        axes = (*nest.axes, *s.axes)
        total = d.product(a.size for a in axes)
        kind, start, combine, done = accumulator(s)
        self.begin(i, d.ceil_div(total, FLAT), FLAT)
        write(f"const index_t at = (index_t)blockIdx.x * {FLAT} + (index_t)threadIdx.x;")
        write(f"if (at >= {c_of(total)}) return;")
        self.split_index("at", axes)
        write(f"/* {s.note} */")
        write(f"{kind} total = {start};")
        self.declare(s.value, only_ready=True)
        with self.loops(s.reduce, None, s.value, pragma="unroll"):
            self.declare(s.value)
            write(f"total = {combine}(total, ({kind}){self.ref(s.value)});")
        self.put(s, done.format("total"))

    def is_columns(self, nest: Nest) -> bool:
        if len(nest.stages) != 1:
            return False
        (s,) = nest.stages
        inner = {a.name for a in (*nest.axes, *s.axes)}
        return (s.monoid is not None and bool(s.axes) and s.level == len(nest.axes) and s.target.level == 0 and across(s)
                and not any(str(x) in inner for a in s.reduce for x in d.symbols(a.size)))

    def by_columns(self, i: int, nest: Nest) -> None:
        write, (s,) = self.write, nest.stages
        axis, outer, last = s.axes[-1], (*nest.axes, *s.axes[:-1]), s.reduce[-1]
        pack = self.pack_of([(s, axis)])
        blocks = d.ceil_div(axis.size, 32 * pack)
        kind, start, combine, done = accumulator(s)
        warps = WARPS if d.bounds(last.size)[1] > FEW_WARPS // 2 else FEW_WARPS
        across = 32 + (32 // pack if pack > 1 else 0)               # of a lane's numbers to the next lane's: no two in one bank
        wide = 8 if kind in ("double", "int64_t", "uint64_t") else 4
        self.begin(i, d.product(a.size for a in outer) * blocks, 32 * warps, warps * across * pack * wide)
        write(f"/* {s.note} */")
        write("extern __shared__ __align__(16) char rows[];")
        write(f"{kind} (*const tile)[{across * pack}] = ({kind} (*)[{across * pack}])rows;")
        write(f"const index_t blocks = {c_of(blocks)}, turn = (index_t)blockIdx.x / blocks;")
        write("const int column = threadIdx.x % 32, row = threadIdx.x / 32;")
        write(f"const index_t {axis.name} = ((index_t)blockIdx.x % blocks * 32 + column) * {pack};")
        if outer:
            self.split_index("turn", outer)
        write(f"{kind} part[{pack}];")
        write("#pragma unroll")
        write(f"for (int lane = 0; lane < {pack}; lane++) part[lane] = {start};")
        with self.open(f"if ({axis.name} < {c_of(axis.size)})"), self.loops(s.reduce[:-1]):
            self.declare(s.value, only_ready=True)
            unroll = f"unroll {AHEAD if s.value.op == 'load' else AHEAD_COMPUTED}"
            with self.loop(last, ("row", c_of(last.size)), unroll, f" += {warps}"):
                self.declare(s.value, only_ready=True)
                self.share_divisors(s.value)
                self.load_packs(s.value, axis, pack)
                with self.lane_loop(axis, pack):
                    self.declare(s.value)
                    write(f"part[lane] = {combine}(part[lane], ({kind}){self.ref(s.value)});")
        write("#pragma unroll")
        write(f"for (int lane = 0; lane < {pack}; lane++) tile[row][lane * {across} + column] = part[lane];")
        write("__syncthreads();")
        with self.open(f"for (int k = 0; k < {-(-pack // warps)}; k++)", "unroll"):
            write(f"const int at = k * {32 * warps} + threadIdx.x, place = at % {pack} * {across} + at / {pack};")
            write(f"const index_t {axis.name} = (index_t)blockIdx.x % blocks * {32 * pack} + at;")
            self.open_axes.append(axis.name)
            with self.open(f"if (at < {32 * pack} && {axis.name} < {c_of(axis.size)})"):
                write(f"{kind} total = tile[0][place];")
                write("#pragma unroll")
                write(f"for (int each = 1; each < {warps}; each++) total = {combine}(total, tile[each][place]);")
                self.put(s, done.format("total"))
            self.open_axes.pop()

    # ---- turns ----

    def by_turns(self, i: int, nest: Nest) -> None:
        write = self.write
        outer = nest.axes[:parallel(nest)]
        turns = d.product(a.size for a in outer)
        loops, group = self.shared_among(nest, outer)
        groups = max(1, 128 // group) if group <= 32 else 1
        block = group * groups
        in_shared, in_scratch, shared = self.places(nest, loops, groups)
        grid = d.ceil_div(turns, groups)
        self.enter(f"{self.name}{i}", d.dim_min(grid, RESIDENT) if in_scratch else grid, block, shared)
        self.bring_rows(nest, outer, loops, group, groups)
        write(WAIT)
        write(f"const int thread = threadIdx.x % {group}, group = threadIdx.x / {group};")
        if shared:
            write("extern __shared__ __align__(16) char rows[];")
        for array, at in in_shared:
            kind = c_type(array.dtype)
            write(f"{kind} *const {array.name} = ({kind} *)(rows + {at}) + group * {_row(array)};")
        for array in in_scratch:
            kind, row = c_type(array.dtype), d.ceil_div(array.size, 4) * 4
            self.long_rows.append((array, row * d.dim_min(grid, RESIDENT) * groups))
            write(f"{kind} *const {array.name} = {array.name}_rows + ((index_t)blockIdx.x * {groups} + group) * {c_of(row)};")
        self.of_warps(nest, loops, group)
        write(f"const index_t count = {c_of(turns)};")
        every = f"begin < count; begin += (index_t)gridDim.x * {groups}" if in_scratch else "begin < count; begin = count"
        with self.open(f"for (index_t begin = (index_t)blockIdx.x * {groups}; {every})"):
            live = "live" if groups > 1 else "true"
            if groups > 1:                                          # a warp runs as one: what is left over does the last turn again
                write("const bool live = begin + group < count;")
                write("const index_t turn = live ? begin + group : count - 1;")
            else:
                write("const index_t turn = begin;")
            if outer:
                self.split_index("turn", outer)
            self.ahead(nest, loops)
            self.turn(nest, len(outer), loops, group, live)
            if in_scratch:
                self.sync(group)

    def bring_rows(self, nest: Nest, outer: Sequence[Axis], loops: dict[int, _Loop], group: int, groups: int) -> None:
        """Prefetch what the first blocks load of large operands while earlier launches still run; the memory would be idle between
        the last loads of one launch and the first of the next. No data is used, so concurrent writes do no harm."""
        axes, far = {a.name for a in outer}, dict[tuple[str, Dim], tuple[Value, _Loop]]()
        for k, s in enumerate(nest.stages):
            loop = loops.get(k)
            if loop is None or not loop.turns or len(loop.axes) != 1 or s.level != len(outer):
                continue
            (axis,) = loop.axes
            for v in values_in(s.value):
                if v.op != "load" or v.args or v.attr[0].role != "operand" or not self.packable(v, axis, loop.pack):
                    continue
                array, offset, _ = v.attr
                names = {str(x) for x in d.symbols_in(offset)} - {axis.name} - set(self.dims)
                if names and names <= axes and d.bounds(array.size)[1] * element_bytes(array) >= FAR:
                    far.setdefault((array.name, offset - axis.symbol), (v, loop))
        if not far:
            return
        of_block = groups * sum(int(d.evaluate(loop.total, {})) * element_bytes(v.attr[0]) for v, loop in far.values())
        before = list(self.open_axes)
        with self.open(f"if (blockIdx.x < {max(1, min(RESIDENT, BROUGHT // of_block))})"):
            self.write(f"const int thread = threadIdx.x % {group}, group = threadIdx.x / {group};")
            last = f"{c_of(d.product(a.size for a in outer))} - 1"
            turn = f"tg_min((index_t)blockIdx.x * {groups} + group, {last})" if groups > 1 else "(index_t)blockIdx.x"
            self.write(f"const index_t turn = {turn};")
            self.split_index("turn", outer)
            for v, loop in far.values():
                with self.pack_loop(loop):
                    self.write(f"bring({v.attr[0].name} + {c_of(v.attr[1])});")
        self.open_axes = before

    def of_warps(self, nest: Nest, loops: dict[int, _Loop], group: int) -> None:
        """Declare shared memory for one number of each warp, where several warps reduce together."""
        for s in nest.stages:
            if s.monoid is not None and not s.axes and group > 32:
                long = s.monoid == "sum" and s.value.dtype is f32 and not loops[nest.stages.index(s)].turns
                self.write(f"__shared__ {'double' if long else accumulator(s)[0]} warps_{s.target.name}[32];")

    def shared_among(self, nest: Nest, outer: Sequence[Axis], group: int = 0) -> tuple[dict[int, _Loop], int]:
        """Return the loop of each stage, by the stage's index, and how many threads share an iteration (group: a fixed number)."""
        along = {k: s.axes or s.reduce for k, s in enumerate(nest.stages) if s.axes or s.reduce}
        shared = [k for k in along if not (nest.stages[k].axes and nest.stages[k].reduce)]
        pack = self.pack_of([(nest.stages[k], along[k][-1]) for k in shared])
        most = max((_most(axes) for axes in along.values()), default=1)
        packs = -(-most // pack)
        fewest, turns = d.bounds(d.product(a.size for a in outer))
        held = HELD if any(s.axes for s in nest.stages) else HELD_READ
        packs_each = held if turns >= ENOUGH and (fewest >= ENOUGH or packs > SHORT) else 1
        fixed, group = group, group or 1
        while not fixed and group < 1024 and group * packs_each < packs:
            group *= 2
        loops = {}
        for k, axes in along.items():
            total = d.product(a.size for a in axes)
            is_static = isinstance(total, int) or d.is_static(total)
            own = pack if k in shared else 1
            turns_of = -(-int(d.evaluate(total, {})) // (group * own)) if is_static else 0
            short = 0 < turns_of <= HELD_PACKS and turns_of * own <= HELD_ELEMENTS and k in shared
            exact = is_static and int(d.evaluate(total, {})) % (group * own) == 0
            loops[k] = _Loop(tuple(axes), own, group, turns_of if short else 0, exact)
        return loops, group

    def places(self, nest: Nest, loops: dict[int, _Loop], groups: int,
               at: int = 0) -> tuple[list[tuple[Array, int]], list[Array], int]:
        """Return a nest's rows in shared memory with their offsets from `at` on, its rows in scratch, and the end offset. Rows in
        registers go to `self.registers`."""
        self.registers = {}
        in_shared, in_scratch = list[tuple[Array, int]](), list[Array]()
        for k, s in enumerate(nest.stages):
            array = s.target
            if array.role != "scratch" or array.level == 0 or is_number(array):
                continue
            loop = loops.get(k)
            if loop is not None and loop.turns and self.stays(nest, k, loops):
                self.registers[array.name] = (array, loop)
                continue
            size = _row(array) * computed_in(array.dtype).itemsize * groups
            if size and at + size <= SHARED:
                in_shared.append((array, at))
                at += -(-size // 16) * 16
            else:
                in_scratch.append(array)
        return in_shared, in_scratch, at

    def stays(self, nest: Nest, k: int, loops: dict[int, _Loop]) -> bool:
        """Return whether each thread reads only those elements of a row that it wrote itself, in an identical loop."""
        s, loop = nest.stages[k], loops[k]
        if s.level != len(nest.axes) or parallel(nest) != len(nest.axes) or len(loop.axes) != 1 or s.monoid is not None \
                or s.index != loop.axes[0].symbol:
            return False
        for other, reader in enumerate(nest.stages):
            loads = [v for v in values_in(reader.value) if v.op == "load" and v.attr[0] == s.target]
            if not loads:
                continue
            theirs = loops.get(other)
            if theirs is None or len(theirs.axes) != 1 or theirs.axes[0].size != loop.axes[0].size or theirs.turns != loop.turns \
                    or any(v.args or v.attr[1] != theirs.axes[0].symbol for v in loads):
                return False
        return not any(v.op == "load" and v.attr[0] == s.target for g in self.program.gathered.values() for v in values_in(g))

    def ahead(self, nest: Nest, loops: dict[int, _Loop]) -> None:
        """Declare registers for rows. Load what several stages read at the same positions before all stages. Loads of one stage
        that are the same in every iteration come before the last reduction that precedes it (`later`)."""
        write = self.write
        for name, (array, loop) in self.registers.items():
            write(f"{c_type(array.dtype)} {name}[{loop.turns * loop.pack}];")
        self.loaded: dict[tuple[str, Dim], str] = {}
        uses: dict[tuple[str, Dim], list[tuple[int, Value]]] = {}
        targets = {s.target.name for s in nest.stages}
        for k, s in enumerate(nest.stages):
            if k not in loops:
                continue
            loop = loops[k]
            if not loop.turns or len(loop.axes) != 1 or s.level != parallel(nest) or loop.pack == 1:
                continue
            (axis,) = loop.axes
            for v in values_in(s.value):
                if v.op == "load" and not v.args and v.attr[0].name not in targets and v.attr[0].name not in self.registers \
                        and self.packable(v, axis, loop.pack) and self.reachable(v, axis):
                    uses.setdefault((v.attr[0].name, v.attr[1] - axis.symbol), []).append((k, v))
        self.later: dict[int, list[tuple[tuple[str, Dim], Value, _Loop]]] = {}
        words = 0
        for key, users in uses.items():
            k, v = users[0]
            loop, array = loops[k], v.attr[0]
            same = {(loops[j].turns, str(loops[j].axes[0].size)) for j, _ in users}
            own = loop.turns * loop.pack * element_bytes(array) // 4
            words += own
            if len(same) != 1 or words > HELD_WORDS:
                continue
            if len({j for j, _ in users}) > 1:
                self.load_row(nest, key, v, loop)
            else:                                                   # the same for all turns: it is here when it is read
                reductions = [j for j in range(k) if nest.stages[j].monoid is not None]
                if reductions and not _of_a_turn(key[1], nest):
                    self.later.setdefault(reductions[-1], []).append((key, v, loop))
                else:
                    words -= own

    def load_row(self, nest: Nest, key: tuple[str, Dim], v: Value, loop: _Loop) -> None:
        """Load a row into registers. A row used in one iteration, in a nest that stores no rows, bypasses the first-level cache."""
        array = v.attr[0]
        name = f"row_{array.name}_{v.number}"
        self.write(f"Pack<{element_type(array)}, {loop.pack}> {name}[{loop.turns}];")
        how = "pack_once" if _of_a_turn(key[1], nest) and not any(s.axes for s in nest.stages) else "pack_at"
        with self.pack_loop(loop):
            self.write(f"{name}[k] = {how}<{loop.pack}>({array.name} + {c_of(v.attr[1])});")
        self.loaded[key] = name

    @contextmanager
    def pack_loop(self, loop: _Loop) -> Iterator[None]:
        """Context manager: a loop over a thread's packs, with the axes at the first element of each pack."""
        write = self.write
        if loop.turns:
            first = f"for (int k = 0; k < {loop.turns}; k++)"
        else:
            step = loop.threads * loop.pack
            first = f"for (index_t at = (index_t)thread * {loop.pack}; at < {c_of(loop.total)}; at += {step})"
        with self.open(first, "unroll" if loop.turns else ""):
            if loop.turns:
                write(f"const index_t at = (k * {loop.threads} + thread) * {loop.pack};")
                if not loop.exact:
                    write(f"if (at >= {c_of(loop.total)}) break;")
            self.split_index("at", loop.axes)
            yield
            self.shut(loop.axes)

    def shut(self, axes: Sequence[Axis]) -> None:
        for axis in axes:
            self.open_axes.remove(axis.name)

    def turn(self, nest: Nest, level: int, loops: dict[int, _Loop], group: int, live: str) -> None:
        """Write the stages at nest level `level`, then the loops over the deeper axes."""
        for k, s in enumerate(nest.stages):
            if s.level == level:
                for key, v, loop in self.later.get(k, ()):
                    self.load_row(nest, key, v, loop)
                self.write(f"/* {s.note} */")
                self.shared_stage(nest, k, s, loops.get(k), group, live)
        if any(s.level > level for s in nest.stages):
            axis = nest.axes[level]
            with self.loop(axis):
                self.turn(nest, level + 1, loops, group, live)
                self.sync(group)

    def shared_stage(self, nest: Nest, k: int, s: Stage, loop: _Loop | None, group: int, live: str) -> None:
        write = self.write
        self.declare(s.value, only_ready=True)
        self.share_divisors(s.value)
        if loop is None:                                            # one number, which every thread computes
            self.declare(s.value)
            if is_number(s.target):
                write(f"const {c_type(s.target.dtype)} {s.target.name} = {self.ref(s.value)};")
            else:
                self.by_one(s, self.ref(s.value), live)
        elif s.monoid is None:
            self.registers_of(loop)
            guarded = live != "true" and s.target.level == 0
            with self.open(f"if ({live})") if guarded else nullcontext(), self.pack_loop(loop):
                self.rows_of(s, loop)
                self.lanes([s], loop.axes, loop.pack)
            self.held = {}
        elif s.axes:
            self.each_alone(s, loop, live)
        else:
            self.together(nest, s, loop, group, live)
        if s.target.name not in self.registers and not is_number(s.target) and any(
                a == s.target for other in nest.stages for a in self.read(other)):
            self.sync(group)

    def registers_of(self, loop: _Loop) -> None:
        lane = f"k * {loop.pack} + lane" if loop.pack > 1 else "k"
        self.held = {name: f"{name}[{lane}]" for name, (_, own) in self.registers.items() if own.turns == loop.turns and loop.turns}

    def rows_of(self, s: Stage, loop: _Loop) -> None:
        """Register the packs that were loaded ahead, inside of the loop of a stage."""
        if len(loop.axes) == 1 and loop.turns:
            for v in values_in(s.value):
                if v.op == "load" and not v.args:
                    name = self.loaded.get((v.attr[0].name, v.attr[1] - loop.axes[0].symbol))
                    if name is not None:
                        self.packs[-1][v.number] = f"{name}[k]"

    def by_one(self, s: Stage, text: str, live: str) -> None:
        with self.open("if (thread == 0)" if live == "true" else f"if (thread == 0 && {live})"):
            self.put(s, text)

    def together(self, nest: Nest, s: Stage, loop: _Loop, group: int, live: str) -> None:
        """Write a reduction that the threads of an iteration share."""
        write = self.write
        kind, start, combine, done = accumulator(s)
        part, pack = f"part_{s.target.name}", loop.pack
        long = not loop.turns and s.monoid == "sum" and kind == "float"
        if long:                                                    # so that what floats drop adds up
            kind, done = "double", "(float)({})"
        few = long and pack > 1                                     # a pack at a time: a step to f64 costs four sums of f64
        lowest = None                                               # of narrow floats that are compared two at a time, as they are
        if s.monoid == "max" and s.value.op == "load" and not s.value.args and self.packable(s.value, loop.axes[-1], pack):
            lowest = LOWEST.get(s.value.attr[0].dtype)
        parts = 1 if few else pack
        write(f"{kind} {part}[{parts}];")
        if lowest:
            write(f"Pack<uint16_t, {pack}> most_{part};")
        write("#pragma unroll")
        write(f"for (int lane = 0; lane < {parts}; lane++) {f'most_{part}.at' if lowest else part}[lane] = {lowest or start};")
        self.in_sum = {s.value.number} if s.value.dtype is f32 and is_shifted(self.program, nest, s) else set()
        self.registers_of(loop)
        with self.pack_loop(loop):
            self.rows_of(s, loop)
            if pack == 1:
                self.declare(s.value)
                write(f"{part}[0] = {combine}({part}[0], ({kind}){self.ref(s.value)});")
            else:
                axis = loop.axes[-1]
                assert self.open_axes.pop() == axis.name
                self.declare(s.value, only_ready=True)
                self.load_packs(s.value, axis, pack)
                if lowest:
                    write(f"keep_larger_{s.value.attr[0].dtype}(most_{part}, {self.pack_name(s.value)});")
                else:
                    if few:
                        write(f"float few_{part}[{pack}];")
                    with self.lane_loop(axis, pack):
                        self.declare(s.value)
                        write(f"few_{part}[lane] = {self.ref(s.value)};" if few else
                              f"{part}[lane] = {combine}({part}[lane], ({kind}){self.ref(s.value)});")
                    if few:
                        write(f"{part}[0] += (double)added<{pack}>(few_{part});")
                self.open_axes.append(axis.name)
        if lowest:
            write("#pragma unroll")
            write(f"for (int lane = 0; lane < {pack}; lane++) {part}[lane] = {_widened(s.value.attr[0], f'most_{part}.at[lane]')};")
        self.held, self.in_sum = {}, set()
        write("#pragma unroll")
        write(f"for (int lane = 1; lane < {parts}; lane++) {part}[0] = {combine}({part}[0], {part}[lane]);")
        shared = f"warps_{s.target.name}" if group > 32 else f"({kind} *)0"
        total = done.format(f"reduced<{group}>({part}[0], {combine}, {shared})")
        if is_number(s.target):
            write(f"const {c_type(s.target.dtype)} {s.target.name} = {total};")
        else:
            name = f"total_{s.target.name}"
            write(f"const {c_type(s.target.dtype)} {name} = {total};")
            self.by_one(s, name, live)

    def each_alone(self, s: Stage, loop: _Loop, live: str) -> None:
        """Write reductions of which each thread computes separate ones."""
        write = self.write
        kind, start, combine, done = accumulator(s)
        double = s.monoid == "sum" and s.value.dtype is f32 and _most(s.reduce) > SHORT_SUM
        with self.pack_loop(loop):
            write(f"{'double' if double else kind} total = {start};")
            self.declare(s.value, only_ready=True)
            with self.loops(s.reduce, None, s.value):
                self.declare(s.value)
                write(f"total = {combine}(total, ({'double' if double else kind}){self.ref(s.value)});")
            text = "(float)total" if double else done.format("total")
            with self.open(f"if ({live})") if live != "true" and s.target.level == 0 else nullcontext():
                self.put(s, text)

    def sync(self, group: int) -> None:
        self.write("__syncthreads();" if group > 32 else "__syncwarp();")


def accumulator(s: Stage) -> tuple[str, str, str, str]:
    """Return (type, initial value, combining functor, final expression) for the accumulator of a reduction."""
    t: DType = s.value.dtype
    wide = "uint64_t" if t.bits == 64 else "uint32_t"
    if s.monoid == "product":
        return "double" if t.is_float else wide, "1", "Product()", f"({c_type(t)})({{}})"
    if t.is_float:
        kind = "float" if t is f32 else "double"
        return (kind, "0", "Sum()", "{}") if s.monoid == "sum" else (kind, f"-({kind})INFINITY", "Max()", "{}")
    if s.monoid == "sum":
        return wide, "0", "Sum()", f"({c_type(t)})({{}})"
    kind = {"u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t"}.get(t.name, "int32_t")
    return kind, LEAST.get(t.name, "0"), "Max()", f"({c_type(t)})({{}})"


def _uniform(v: Value, axis: Axis, pack: int) -> bool:
    """Return whether a condition is equal for all elements of each pack along an axis."""
    if axis.name not in v.symbols:
        return True
    if v.op == "and":
        return all(_uniform(a, axis, pack) for a in v.args)
    if v.op not in ("at_least", "less") or not all(a.op in ("index", "constant") for a in v.args):
        return False
    left, right = (a.attr for a in v.args)
    over = left - right if v.op == "at_least" else right - left - 1         # it holds where this is not below 0
    step = d.coefficient(over, axis.name)
    return (step == 1 and _divides(pack, over - axis.symbol)) or (step == -1 and _divides(pack, over + axis.symbol + 1))


def _of_a_turn(at: Dim, nest: Nest) -> bool:
    """Return whether iterations of a nest read at different positions; a weight, for example, is the same for all."""
    return bool({str(x) for x in d.symbols_in(at)} & {a.name for a in nest.axes})


def _row(array: Array) -> int:
    """Return the elements reserved for a row in shared memory; 0 where it is too long, or its length is unknown."""
    most = d.bounds(array.size)[1]
    return -(-most // 4) * 4 if most < SHARED else 0


def _divides(n: int, x: Dim) -> bool:
    """Return whether a dim is a multiple of n for all values of its symbols."""
    return all(k % n == 0 for _, k in x.terms) if isinstance(x, d.Expr) else int(x) % n == 0


def _widened(array: Array, read: str) -> str:
    if array.role == "scratch":
        return read
    return called(WIDENED, array.dtype, read)


def _narrowed(array: Array, text: str) -> str:
    if array.role == "scratch":
        return text
    if array.dtype is bool_:
        return f"(uint8_t)({text})"
    return called(NARROWED, array.dtype, text)
