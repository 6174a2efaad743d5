"""scans: a scan as the loops of one kernel, in which each block takes its rows through all iterations.

    grid row in 0..rows
        thread t:  carry0[t] = in0[n·row + t];  the copies of slices 0, 1 and 2 begin
        thread group: thread t:  weights = load in2[…], which no iteration changes
        serial i in 0..length
            x0 is carry0[n·(i % 2)], …;  y0 is carry0[n·((i + 1) % 2)], …;  x1 is slices1[n·(i % 4)], …
            thread t:  the copy of slice i + 3 begins
            thread group in 0..8: serial b in group..blocks step 8: thread t:  the first nest of the step
            barrier
        thread t:  out0[n·row + t] = carry0[n·(length % 2) + t]

The nests of a step are mapped like any others. A block of such a kernel becomes a group of threads of the scan's block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tensor_graphs.codegen.loop_ir import Array, StageProgram, Value, Values, index_symbol
from tensor_graphs.codegen.loop_program import (
    Alias,
    Barrier,
    Combine,
    CopiesWait,
    CopyAhead,
    How,
    If,
    Let,
    Load,
    Loop,
    LoopBuffer,
    LoopKernel,
    LoopProgram,
    Put,
    Stmt,
    Store,
    Wait,
    shared_places,
    statements,
)
from tensor_graphs.codegen.map_loops import nest_kernels
from tensor_graphs.codegen.mapping.elementwise import reads
from tensor_graphs.codegen.mapping.place_values import placed
from tensor_graphs.codegen.mapping.row_choices import HELD_READ
from tensor_graphs.codegen.mapping.rows import HELD_WORDS, Key, RowForm
from tensor_graphs.codegen.passes.row_independence import FewRows
from tensor_graphs.devices.target import HOPPER, Target
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, i64
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.language.subgraph import Turns

STEP = 256
"""threads that a nest of a step has, where a row has packs for more"""

KEPT_WORDS = 32 << 10
"""most 4-byte words that a block's threads keep between iterations: half of the registers of a multiprocessor"""

SLOTS = 4
"""iterations whose slices have room in shared memory; the slices of all but one are being copied meanwhile"""


@dataclass(frozen=True, eq=False)
class RowsInTurns:
    """A scan by rows. turns: operands by role. outputs: their types. few: the step on `count` of `rows` rows; program: its loops.
    places: for each output the index of its value in the step, which may return one twice. length: iterations."""

    turns: Turns
    outputs: tuple[TensorType, ...]
    few: FewRows
    count: int
    program: StageProgram
    places: tuple[int, ...]
    rows: Dim
    length: Dim


def map_scan(scan: RowsInTurns, aligned: bool, target: Target = HOPPER) -> LoopProgram:
    """Return the kernel of a scan. aligned: every array begins at a multiple of the widest access. Raises NotLowered."""
    rows = [*scan.few.step.arguments, *scan.few.step.outputs]
    aligned = aligned and not any(_size(x) * x.dtype.itemsize % target.vector for x in rows)    # else no row begins at one
    step = _step(scan, aligned, True, target)
    words = step.lasting.words * step.threads
    if words and (words > KEPT_WORDS or any(_threads(kernel) > step.threads for kernel in step.kernels)):
        step = _step(scan, aligned, False, target)                  # too much to keep, or of several blocks for one thread
    for slots, most in ((SLOTS, target.shared // 2), (2, target.shared // 2), (0, target.shared)):
        program = _ScanMapper(scan, step, slots, aligned, target).mapped()
        if shared_places(program.kernels[0].buffers)[1] <= most:
            return program
    raise NotLowered(f"its rows take more than {target.shared} bytes of shared memory")


# ---- the nests of a step ----


@dataclass
class _Lasting:
    """Registers that last over all iterations: operands that no iteration changes, registers, and the words of these."""

    operands: Collection[str]
    rows: set[Array] = field(default_factory=set)
    words: int = 0


class _StepRows(RowForm):
    """RowForm of a nest that runs in each iteration. Its operands may be in shared memory."""

    def __init__(self, *nest: Any, lasting: _Lasting) -> None:
        super().__init__(*nest)
        self.lasting, self.keys = lasting, list[Key]()

    def mapped(self, entry: str) -> LoopKernel:
        kernel = super().mapped(entry)
        self.lasting.rows |= {self.ahead[key] for key in self.keys}
        return kernel

    def packs_each(self, turns: Dim, packs: int) -> int:
        return min(HELD_READ, max(1, d.bounds(turns)[1] * packs // STEP))    # each thread repeats what comes of a row

    def lasts(self, key: Key, v: Value, words: int) -> bool:
        fits = v.attr[0].name in self.lasting.operands and self.lasting.words + words <= HELD_WORDS
        if fits:
            self.lasting.words += words
            self.keys.append(key)
        return fits

    def how(self, at: Dim) -> How:
        return "plain"

    def prefetched(self, turns: Dim) -> list[Stmt]:
        return []


@dataclass(frozen=True, eq=False)
class _StepKernels:
    """The nests of a step as kernels, and the threads of a block that has groups of threads for all of them."""

    values: Values
    kernels: Sequence[LoopKernel]
    lasting: _Lasting
    threads: int


def _step(scan: RowsInTurns, aligned: bool, keep: bool, target: Target) -> _StepKernels:
    """Map the nests of a step. keep: what a thread reads in each iteration stays in its registers. Raises NotLowered."""
    sliced, arguments = len(scan.turns.carries) + len(scan.turns.sliced), len(scan.few.step.arguments)
    lasting = _Lasting({f"x{k}" for k in range(sliced, arguments)} if keep else ())
    values = scan.program.values
    names = {a.name for s in scan.program.stages for a in (s.target, *reads(scan.program, s))}
    rows = partial(_StepRows, lasting=lasting)
    kernels, scratch = nest_kernels(scan.program, scan.program.nests, values, target, aligned, "step", names, rows)
    if scratch:
        raise NotLowered("a row of its step is in scratch")
    return _StepKernels(values, kernels, lasting, _block(kernels, target))


def _block(kernels: Sequence[LoopKernel], target: Target) -> int:
    """Return the threads of a block. If threads of a nest wait for each other, it is that nest's block; else all groups of the
    largest nest fit, up to what a block may have. Raises NotLowered."""
    fixed = {kernel.threads for kernel in kernels if _waits(kernel)}
    if len(fixed) > 1:
        raise NotLowered("its nests have blocks of several sizes whose threads wait for each other")
    largest = max(kernel.threads for kernel in kernels)
    block = fixed.pop() if fixed else max(largest, min(target.threads, max(map(_threads, kernels))) // largest * largest)
    if any(block % kernel.threads for kernel in kernels):
        raise NotLowered("its nests have blocks of several sizes")
    return block


def _waits(kernel: LoopKernel) -> bool:
    """Return whether all threads of a block wait for each other."""
    return any((isinstance(s, Barrier) and s.scope == "block") or (isinstance(s, Combine) and s.shared is not None)
               for s in statements(kernel.body))


def _blocks(kernel: LoopKernel) -> int:
    return int(d.evaluate(kernel.grid, {}))


def _threads(kernel: LoopKernel) -> int:
    """Return the threads of all blocks of a kernel."""
    return kernel.threads * _blocks(kernel)


def _size(x: Node | TensorType) -> int:
    return math.prod(int(s) for s in x.shape)


# ---- the kernel ----


class _ScanMapper:
    """A scan on its way to a kernel. Shared memory has each carry twice (an iteration writes where the next one reads), the slices
    of `slots` iterations, scratch of the step, and the rows of one nest at a time. ahead: of an operand whose slices are copied
    ahead, the elements of one copy; other slices are read from global memory."""

    def __init__(self, scan: RowsInTurns, step: _StepKernels, slots: int, aligned: bool, target: Target) -> None:
        self.scan, self.step, self.slots, self.vector = scan, step, slots, target.vector
        self.carries, self.sliced = len(scan.turns.carries), len(scan.turns.carries) + len(scan.turns.sliced)
        self.blocks, self.length = d.ceil_div(scan.rows, scan.count), scan.length
        self.row, self.slice = index_symbol("_row", self.blocks), index_symbol("_slice", self.length)
        self.now, self.thread = index_symbol("_iteration", self.length), index_symbol("_thread", step.threads)
        self.half, self.slot = index_symbol("_half", 2), index_symbol("_slot", max(2, slots))
        types = (*scan.turns.carries, *scan.turns.sliced, *scan.turns.others)
        self.ins = [Array(f"in{k}", "operand", k, t.dtype, d.product(t.shape)) for k, t in enumerate(types)]
        self.outs = [Array(f"out{k}", "output", k, t.dtype, d.product(t.shape)) for k, t in enumerate(scan.outputs)]
        self.buffers = [LoopBuffer(a, "shared") for a in scan.program.scratch if a.level == 0]
        self.memory: dict[int, Array] = {}                          # of carries, and of slices that are copied ahead
        self.ahead: dict[int, int] = {}
        for k, x in enumerate(scan.few.step.arguments[:self.sliced]):
            width, at_once = x.dtype.itemsize, target.vector if aligned else x.dtype.itemsize
            if k >= self.carries and slots and _size(x) and at_once >= 4:
                self.ahead[k] = at_once // width
            if k < self.carries or k in self.ahead:
                name, times = (f"carry{k}", 2) if k < self.carries else (f"slices{k}", slots)
                self.memory[k] = Array(name, "output", k, x.dtype, times * self.room(x))
                self.buffers.append(LoopBuffer(self.memory[k], "shared"))

    def room(self, x: Node) -> int:
        """Return the elements that are reserved for a carry or a slice."""
        width = x.dtype.itemsize
        return -(-_size(x) * width // self.vector) * self.vector // width

    def mapped(self) -> LoopProgram:
        scan, last = self.scan, self.slots - 1
        arrived: list[Stmt] = [CopiesWait(self.slots - 2)] if self.ahead else []
        aliases, copies = self.of_an_iteration()
        first, nests = list[Stmt](), list[Stmt]()
        for number, kernel in enumerate(self.step.kernels, 1):
            grid = kernel.body[0]
            assert isinstance(grid, Loop)
            loads, rest = _split(grid.body, self.step.lasting.rows)
            first += self.in_groups(kernel, loads, []) if _does_anything(loads) else []
            nests += [*self.in_groups(kernel, _repeated(rest, copies), self.own_memory(kernel, number)), Barrier("block")]
        begun = Loop("_first", last, "unrolled", (*self.copies(index_symbol("_first", max(1, last))), *arrived))
        now = [Let("_slice", self.slice_at(self.now)), Let("_half", self.now % 2), *self.in_slot(self.now), *aliases]
        turn = [*now, *self.copies(self.now + last), *nests[:-1], *arrived, nests[-1]]
        body = [Wait(), *self.lasting_operands(), *([begun] if self.ahead else []), self.first_carries(), *first, Barrier("block"),
                Loop("_iteration", self.length, "serial", tuple(turn)), self.last_carries()]
        dims = tuple(sorted({*d.symbols(self.length), *d.symbols(scan.rows)}, key=str))
        kernel = LoopKernel("turns", tuple(self.buffers), (Loop("_row", self.blocks, "grid", tuple(body)),))
        source = StageProgram(tuple(self.ins), tuple(self.outs), scan.program.nests, scan.program.gathered, dims)
        return LoopProgram(source, (), (placed(kernel, self.step.values, [str(s) for s in dims]),))

    # ---- memory ----

    def in_slot(self, turn: Dim) -> list[Stmt]:
        return [Let("_slot", turn % self.slots)] if self.ahead else []

    def slice_at(self, turn: Dim) -> Dim:
        return self.length - 1 - turn if self.scan.turns.reverse else turn

    def begin(self, has_rows: bool, x: Node) -> Dim:
        """Return where the block's part of a slice begins in an operand or output."""
        return (self.slice * (self.scan.rows // self.scan.count) + self.row if has_rows else self.slice) * _size(x)

    def lasting_operands(self) -> list[Stmt]:
        """Return where the operands begin that all iterations read."""
        few = self.scan.few
        return [Alias(a, self.ins[a.number], self.row * _size(few.step.arguments[a.number]) if few.of_arguments[a.number] else 0)
                for a in self.scan.program.operands if a.number >= self.sliced]

    def of_an_iteration(self) -> tuple[list[Stmt], dict[Array, list[Array]]]:
        """Return the operands and outputs of the step in an iteration, and the arrays to which an output is also written."""
        few, out = self.scan.few, list[Stmt]()
        for a in (a for a in self.scan.program.operands if a.number < self.sliced):
            k, x = a.number, few.step.arguments[a.number]
            if k < self.carries:
                out.append(Alias(a, self.memory[k], self.half * self.room(x)))
            else:
                out.append(Alias(a, self.memory[k], self.slot * self.room(x)) if k in self.ahead else
                           Alias(a, self.ins[k], self.begin(few.of_arguments[k], x)))
        outputs, copies = {a.number: a for a in self.scan.program.outputs}, dict[Array, list[Array]]()
        for k, u in enumerate(self.scan.places):
            x, array = few.step.outputs[k], outputs[u]
            if self.scan.places.index(u) != k:
                array = replace(array, name=f"again{k}")
                copies.setdefault(outputs[u], []).append(array)
            out.append(Alias(array, self.memory[k], (1 - self.half) * self.room(x)) if k < self.carries else
                       Alias(array, self.outs[k], self.begin(True, x)))
        return out, copies

    def own_memory(self, kernel: LoopKernel, number: int) -> list[Stmt]:
        """Add the buffers of a nest, shared ones for each group of threads. Return where those of a group begin."""
        groups, aliases = self.step.threads // kernel.threads, list[Stmt]()
        for b in kernel.buffers:
            if b.place == "shared" and groups > 1:
                whole = replace(b.array, name=f"{b.name}_groups", size=b.array.size * groups)
                aliases.append(Alias(b.array, whole, index_symbol("_group", groups) * b.array.size))
                b = replace(b, array=whole)
            self.buffers.append(replace(b, branch=number))
        return aliases

    # ---- loops ----

    def in_groups(self, kernel: LoopKernel, body: Sequence[Stmt], aliases: Sequence[Stmt]) -> list[Stmt]:
        """Return the loop over the blocks of a nest, of which each group of threads runs some. body: that of one block."""
        grid, groups = kernel.body[0], self.step.threads // kernel.threads
        assert isinstance(grid, Loop)
        if _blocks(kernel) > groups and any(b.place == "shared" for b in kernel.buffers):    # the next writes where this one reads
            body = (*body, Barrier("block")) if _waits(kernel) else _at_end(body, Barrier("warp"))
        loop = Loop(grid.axis, grid.size, "serial", tuple(body), index_symbol("_group", groups), groups)
        return [Loop("_group", groups, "thread", (*aliases, loop))] if groups > 1 else [loop]

    def elements(self, size: int, lanes: int, body: Stmt) -> Stmt:
        """Return a thread's loop over elements that all threads of the block share."""
        return Loop("_c", size, "serial", (body,), self.thread * lanes, self.step.threads * lanes)

    def copies(self, turn: Dim) -> list[Stmt]:
        """Return the loop in which threads begin to copy the slices of an iteration, if there is one."""
        ahead = d.dim("_ahead", 0, d.bounds(turn)[1])
        body: list[Stmt] = [Let("_slice", self.slice_at(ahead)), *self.in_slot(ahead)]
        for k, lanes in self.ahead.items():
            x, c = self.scan.few.step.arguments[k], index_symbol("_c", _size(self.scan.few.step.arguments[k]))
            source, into = (replace(self.memory[k], name=f"{name}{k}", size=_size(x)) for name in ("next", "slot"))
            body += [Alias(source, self.ins[k], self.begin(self.scan.few.of_arguments[k], x)),
                     Alias(into, self.memory[k], self.slot * self.room(x)),
                     self.elements(_size(x), lanes, CopyAhead(into, c, source, c, lanes))]
        there = self.step.values.make("less", bool_, *(self.step.values.index(x, i64) for x in (ahead, self.length)))
        threads = Loop("_thread", self.step.threads, "thread", (Let("_ahead", turn), If(there, tuple(body))))
        return [threads] if self.ahead else []

    def first_carries(self) -> Stmt:
        """Return the loop that copies the block's carries to shared memory."""
        body = list[Stmt]()
        for k, x in enumerate(self.scan.few.step.arguments[:self.carries]):
            source, c = replace(self.ins[k], name=f"begin{k}", size=_size(x)), index_symbol("_c", _size(x))
            load = Load(self.memory[k], c, source, c)
            body += [Alias(source, self.ins[k], self.row * _size(x)), self.elements(_size(x), 1, load)]
        return Loop("_thread", self.step.threads, "thread", tuple(body))

    def last_carries(self) -> Stmt:
        """Return the loop that copies them from there."""
        body: list[Stmt] = [Let("_half", self.length % 2)]
        for k, x in enumerate(self.scan.few.step.arguments[:self.carries]):
            last, final = (replace(self.outs[k], name=f"{name}{k}", size=_size(x)) for name in ("last", "final"))
            c = index_symbol("_c", _size(x))
            body += [Alias(last, self.memory[k], self.half * self.room(x)), Alias(final, self.outs[k], self.row * _size(x)),
                     self.elements(_size(x), 1, Load(final, c, last, c))]
        return Loop("_thread", self.step.threads, "thread", tuple(body))


def _split(body: Sequence[Stmt], rows: Collection[Array]) -> tuple[list[Stmt], list[Stmt]]:
    """Return the loads of some registers, and all else but waits, each inside of the same loops and definitions."""
    loads, rest = list[Stmt](), list[Stmt]()
    for s in body:
        if isinstance(s, If | Loop):
            for out, part in zip((loads, rest), _split(s.body, rows), strict=True):
                if _does_anything(part):
                    out.append(replace(s, body=tuple(part)))
        elif isinstance(s, Let):
            loads.append(s)
            rest.append(s)
        elif not isinstance(s, Wait):
            (loads if isinstance(s, Load) and s.into in rows else rest).append(s)
    return loads, rest


def _does_anything(body: Sequence[Stmt]) -> bool:
    return any(not isinstance(s, Let) for s in body)


def _repeated(body: Sequence[Stmt], copies: Mapping[Array, Sequence[Array]]) -> list[Stmt]:
    """Return statements that store what they store in some arrays also in others."""
    out: list[Stmt] = []
    for s in body:
        out.append(replace(s, body=tuple(_repeated(s.body, copies))) if isinstance(s, If | Loop) else s)
        if isinstance(s, Store):
            out += [replace(s, buffer=other, note="") for other in copies.get(s.buffer, ())]
        elif isinstance(s, Put):
            out += [replace(s, buffer=other) for other in copies.get(s.buffer, ())]
    return out


def _at_end(body: Sequence[Stmt], end: Stmt) -> list[Stmt]:
    """Return statements with one more at the end of each innermost thread loop."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, If | Loop):
            inner = any(isinstance(x, Loop) and x.kind == "thread" for x in statements(s.body))
            if inner or (isinstance(s, Loop) and s.kind == "thread"):
                s = replace(s, body=tuple(_at_end(s.body, end)) if inner else (*s.body, end))
        out.append(s)
    return out
