"""interpret_loops: a reference interpreter of loop programs in numpy, which reports races and needs no GPU.

    run(program, [x, w], {"n": 3})          # one array for each output

Loops of the kinds grid, thread and vector are axes of the arrays (the innermost loop is the first axis, so that what is computed
outside of it broadcasts). Serial and unrolled loops are loops of Python, in which all threads go in step; so results alone do not
show a race, and memory reports it (races.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from tensor_graphs.codegen import loop_program as lp
from tensor_graphs.codegen.evaluate import MONOIDS, Evaluation, Numbers, StageError, at_sizes
from tensor_graphs.codegen.loop_ir import Array, Value, computed_in
from tensor_graphs.codegen.races import TrackedMemory, Units
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.meaning.algebra import wide

ALIGNED = 16
"""bytes to which the memory of a buffer is aligned, and those of the widest access"""


def run(program: lp.LoopProgram, operands: Sequence[Numbers], dims: Mapping[str, int] | None = None,
        warp: int = 32) -> list[Numbers]:
    """Return the outputs as flat arrays, floats as unrounded float64. operands: their memory from the first element on (arrays that
    are not flat are read in C order). dims: sizes by name. warp: threads of a warp. Raises StageError."""
    source, memory = program.source, dict[str, TrackedMemory]()
    sizes = {str(s): int((dims or {})[str(s)]) for s in source.dims}
    for array, values in zip(source.operands, operands, strict=True):
        memory[array.name] = TrackedMemory(array, "global", values.size, 1, wide(values.reshape(-1), array.dtype))
    for array in (*source.outputs, *(a for a in source.scratch if a.level == 0), *program.scratch):
        memory[array.name] = TrackedMemory(array, "global", int(at_sizes(array.size, sizes)))
    for output, operand in source.updated:
        array, old = source.outputs[output], memory[source.operands[operand].name]
        memory[array.name] = TrackedMemory(array, "global", old.size, 1, old.values.copy())
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            _KernelRun(kernel, memory, sizes, warp).run()
    for array in source.outputs:
        if not (full := memory[array.name].full).all():
            raise StageError(f"{int((~full).sum())} of {full.size} elements of {array} are never written")
    return [memory[array.name].values for array in source.outputs]


@dataclass
class _Points(Evaluation):
    """Units that run a statement. inside: which of them work. group: threads of the innermost thread loop; 0 outside of them."""

    kernel: _KernelRun
    at: dict[str, Any]
    values: dict[Value, Numbers]
    inside: Numbers
    block: Any = 0
    thread: Any = 0
    lane: Any = 0
    group: int = 0

    def inner(self, **others: Any) -> _Points:
        """Return these units in a scope of its own, or others inside of it."""
        return replace(self, **{"at": dict(self.at), "values": dict(self.values), **others})

    def unbound(self, name: str) -> Any:
        raise StageError(f"the index {name} is not bound")

    def place(self, array: Array, index: Dim) -> Any:
        """Return where an element of an array is in the memory that it is a part of."""
        return self.offset(index) + self.kernel.begins.get(array.name, 0)

    def chosen(self, x: Any, whole: Numbers | None = None) -> Numbers:
        """Return a number of each unit that works, or of those in `whole`."""
        whole = self.inside if whole is None else whole
        return np.broadcast_to(np.asarray(x), whole.shape)[whole]

    def units(self, whole: Numbers | None = None) -> Numbers:
        """Return the numbers of the units."""
        u = self.kernel.units
        return self.chosen((self.block * u.threads + self.thread) * u.lanes + self.lane, whole)

    def loaded(self, v: Value, args: list[Numbers]) -> Numbers:
        array, index, _ = v.attr
        whole = self.inside & args[0] if args else self.inside
        values = self.kernel.buffer(array).read(self.chosen(self.place(array, index), whole), self.units(whole))
        out = np.zeros(whole.shape, values.dtype)
        out[whole] = values
        return out


class _KernelRun:
    """One kernel. counts: iterations of parallel loops, by which units are numbered. outside: statements next to grid
    or thread loops or around them. cleared: buffer -> the operation whose identity it holds, or that has combined it since. begins:
    where arrays by another name begin in their memory. copies: groups of those ahead (memory, elements, units, values), the last
    one still open."""

    def __init__(self, kernel: lp.LoopKernel, memory: Mapping[str, TrackedMemory], sizes: Mapping[str, int], warp: int) -> None:
        self.kernel, self.sizes = kernel, sizes
        self.counts: dict[lp.Loop, int] = {}
        self.cleared: dict[str, str] = {}
        self.begins: dict[str, Any] = {}
        self.copies: list[list[tuple[TrackedMemory, Numbers, Numbers, Numbers]]] = [[]]
        inside = list(lp.statements(kernel.body))
        bodies = [kernel.body, *(s.body for s in inside if isinstance(s, lp.If | lp.Loop))]
        self.outside = {s for body in bodies if any(map(_is_unit, lp.statements(body))) for s in body}
        self.written = {array.name for s in inside if (array := lp.written(s)) is not None}
        self.written |= {s.buffer.name for s in inside if isinstance(s, lp.Alias) and s.array.name in self.written}
        most = self.most(kernel.body, {name: partial(int, size) for name, size in sizes.items()}, 0)
        self.units = Units(most["grid"], most["thread"], most["vector"], warp, kernel.early)
        copies = {"register": self.units.blocks * self.units.threads, "shared": self.units.blocks}
        own = {b.name: TrackedMemory(b.array, b.place, int(at_sizes(b.array.size, sizes)), copies[b.place]) for b in kernel.buffers}
        self.memory = {**memory, **own}
        for name, m in self.memory.items():
            m.begin(self.units, name in self.written)

    def most(self, body: tuple[lp.Stmt, ...], at: Mapping[str, Callable[[], Any]], rank: int) -> dict[str, int]:
        """Return the most iterations of all loops of each parallel kind, inside of each other. The size of one may depend on those
        outside of it. at: the indices that are defined, of which few are needed."""
        out: dict[str, int] = dict.fromkeys(lp.PARALLEL, 1)
        for s in body:
            if isinstance(s, lp.Let) and not isinstance(s.index, Value):
                at = {**at, s.name: partial(_early, s.index, at)}
            elif isinstance(s, lp.Loop):
                numbers = partial(_numbers, s, at, rank)
                inner = self.most(s.body, {**at, s.axis: numbers}, rank + 1)
                if s.kind in lp.PARALLEL:
                    self.counts[s] = len(numbers())
                    inner[s.kind] *= self.counts[s]
                out = {kind: max(out[kind], n) for kind, n in inner.items()}
            elif isinstance(s, lp.If):
                out = {kind: max(out[kind], n) for kind, n in self.most(s.body, at, rank).items()}
        return out

    def run(self) -> None:
        self.statement: lp.Stmt | None = None
        try:
            self.body(self.kernel.body, _Points(self, dict(self.sizes), {}, np.ones((), bool)))
        except StageError as error:
            at = f", in `{lp.text_of(self.statement)}`" if self.statement is not None else ""
            raise StageError(f"{error}{at} of {self.kernel.entry}") from None

    def body(self, body: tuple[lp.Stmt, ...], scope: _Points) -> None:
        scope = scope.inner()
        for s in body:
            if not scope.inside.any():
                return
            self.statement, p = s, scope.inner()
            if s in self.outside and (lp.written(s) is not None or (p.group and isinstance(s, lp.Barrier | lp.Wait))):
                raise StageError("the statement is outside of thread loops")
            match s:
                case lp.Let():
                    scope.at[s.name] = p.value(s.index).astype(np.int64) if isinstance(s.index, Value) else p.offset(s.index)
                case lp.Alias():
                    self.memory[s.array.name], self.begins[s.array.name] = self.buffer(s.buffer), p.place(s.buffer, s.index)
                case lp.Compute():
                    scope.values[s.value] = p.value(s.value)
                case lp.Load():
                    self.load(s, p)
                case lp.CopyAhead():
                    self.copy_ahead(s, p)
                case lp.CopiesWait():
                    self.wait_for_copies(s, p)
                case lp.Store():
                    value = p.chosen(p.value(s.value))
                    self.write(s.buffer, p.chosen(p.place(s.buffer, s.index)), p.units(), value)
                case lp.Put():
                    self.copy(s.buffer, s.index, s.source, s.at, s.lanes, p, p.inside)
                case lp.Clear():
                    self.clear(s, p)
                case lp.Take():
                    self.take(s, p)
                case lp.Combine():
                    self.combine(s, p)
                case lp.Prefetch():
                    p.offset(s.index)
                case lp.Barrier():
                    self.units.meet(self.threads(p), s.scope == "block")
                case lp.Wait():
                    self.units.waited[self.threads(p)] = True
                case lp.If():
                    self.body(s.body, p.inner(inside=p.inside & p.value(s.when)))
                case lp.Loop():
                    self.loop(s, p)

    def loop(self, s: lp.Loop, p: _Points) -> None:
        first, size, step = p.offset(s.first), p.offset(s.size), p.offset(s.step)
        if s.kind not in lp.PARALLEL:
            for k in range(int(np.max(p.chosen(-((first - size) // step)), initial=0))):
                axis = first + k * step
                self.body(s.body, p.inner(at={**p.at, s.axis: axis}, inside=p.inside & (axis < size)))
            return
        number = np.arange(count := self.counts[s]).reshape(-1, *(1,) * p.inside.ndim)
        axis = first + step * number
        p = p.inner(at={**p.at, s.axis: axis}, inside=p.inside & (axis < size))
        if s.kind == "grid":
            p.block = p.block * count + number
        elif s.kind == "thread":
            p.thread, p.group = p.thread * count + number, count
        else:
            p.lane = p.lane * count + number
        if s.kind == "vector":
            self.units.meet_lanes()
        self.body(s.body, p)
        if s.kind == "vector":
            self.units.meet_lanes()

    def load(self, s: lp.Load, p: _Points) -> None:
        whole = p.inside if s.when is None else p.inside & p.value(s.when)
        if s.how == "now" and s.buffer.name in self.written:
            raise StageError(f"{s.buffer} is no read-only memory")
        self.copy(s.into, s.at, s.buffer, s.index, s.lanes, p, whole)
        offsets, units = self.pack(s.into, s.at, s.lanes, p, p.inside & ~whole)
        self.write(s.into, offsets, units, np.zeros(len(units), bool))

    def copy(self, into: Array, at: Dim, source: Array, index: Dim, lanes: int, p: _Points, whole: Numbers) -> None:
        """Write into[at + k] = source[index + k] for all k below `lanes`."""
        if _bits(into) != _bits(source):
            raise StageError(f"{into} does not hold the bits of {source}")
        values = self.buffer(source).read(*self.pack(source, index, lanes, p, whole))
        self.write(into, *self.pack(into, at, lanes, p, whole), values)

    def copy_ahead(self, s: lp.CopyAhead, p: _Points) -> None:
        """Begin a copy: until it is waited for, what it writes is not there."""
        values = self.buffer(s.buffer).read(*self.pack(s.buffer, s.index, s.lanes, p, p.inside))
        m, (offsets, units) = self.buffer(s.into), self.pack(s.into, s.at, s.lanes, p, p.inside)
        m.full[m.claim(offsets, units)] = False
        self.copies[-1].append((m, offsets, units, values))

    def wait_for_copies(self, s: lp.CopiesWait, p: _Points) -> None:
        if len(self.threads(p)) != self.units.blocks * self.units.threads:
            raise StageError("some threads do not wait for copies")
        self.copies.append([])
        while len(self.copies) > s.left + 1:
            for m, offsets, units, values in self.copies.pop(0):
                m.values[m.claim(offsets, units)] = values

    def pack(self, array: Array, index: Dim, lanes: int, p: _Points, whole: Numbers) -> tuple[Numbers, Numbers]:
        """Return the elements of an access, and their units."""
        offsets = p.chosen(p.place(array, index), whole)
        if lanes > 1 and self.buffer(array).place != "register":
            if lanes * array.dtype.itemsize > ALIGNED or lanes & (lanes - 1):
                raise StageError(f"{lanes} elements of {array} are no access")
            if (bad := offsets % lanes > 0).any():
                raise StageError(f"{array}[{offsets[bad][0]}] is misaligned")
        return (offsets[:, None] + np.arange(lanes)).reshape(-1), np.repeat(p.units(whole), lanes)

    def write(self, array: Array, offsets: Numbers, units: Numbers, values: Numbers) -> None:
        m = self.buffer(array)
        self.cleared.pop(array.name, None)
        m.values[m.claim(offsets, units)] = values

    def clear(self, s: lp.Clear, p: _Points) -> None:
        m, threads = self.buffer(s.buffer), np.unique(p.units() // self.units.lanes)
        flat = m.claim(np.tile(np.arange(m.size), len(threads)), np.repeat(threads * self.units.lanes, m.size))
        m.values[flat], self.cleared[s.buffer.name] = MONOIDS[s.monoid][2](m.array.dtype), s.monoid

    def take(self, s: lp.Take, p: _Points) -> None:
        m, value, offsets, units = self.accumulator(s), p.chosen(p.value(s.value)), p.chosen(p.offset(s.index)), p.units()
        lanes = self.units.lanes
        if len(np.unique(units // lanes * m.size + offsets)) < len(units):
            units = units // lanes * lanes                          # a thread combines the elements of its vector loop
        m.read(offsets, units)
        MONOIDS[s.monoid][1].at(m.values, m.claim(offsets, units), value.astype(m.values.dtype))

    def combine(self, s: lp.Combine, p: _Points) -> None:
        m, n, warp = self.accumulator(s), s.threads, self.units.warp
        if (p.group or 1) % n or m.place != "register":
            raise StageError(f"{s.buffer} is combined across {n} threads in a loop of {p.group or 1}")
        if warp % n if n <= warp else n % warp:
            raise StageError(f"groups of {n} threads are no warps of {warp}")
        if s.shared is not None:
            if (own := self.buffer(s.shared)).place != "shared" or own.size < self.units.warps:
                raise StageError(f"{s.shared} has no room for a number of each of {self.units.warps} warps")
            self.units.meet(self.threads(p), True)
            own.full[...] = False
        elif n > warp:
            raise StageError(f"{n} threads combine {s.buffer} without shared memory")
        offsets, units = p.chosen(p.offset(s.index)), p.units()
        number = units // self.units.lanes % self.units.threads % n     # in the group
        groups, group, counts = np.unique(units - number * self.units.lanes, return_inverse=True, return_counts=True)
        if (counts != n).any():
            raise StageError(f"{counts.min()} of {n} threads combine {s.buffer}")
        result = np.full(len(groups), MONOIDS[s.monoid][2](m.array.dtype), m.values.dtype)
        MONOIDS[s.monoid][1].at(result, group, m.read(offsets, units))
        m.values[m.claim(offsets, units)] = result[group]

    def accumulator(self, s: lp.Take | lp.Combine) -> TrackedMemory:
        if (held := self.cleared.get(s.buffer.name, s.monoid)) != s.monoid:
            raise StageError(f"{s.buffer} is combined by {s.monoid}, and was cleared for {held}")
        return self.buffer(s.buffer)

    def threads(self, p: _Points) -> Numbers:
        """Return the numbers of the threads that run a statement: of whole blocks if it is outside of the thread loops."""
        threads = np.unique(p.units() // self.units.lanes)
        if self.statement not in self.outside:
            return threads
        blocks = np.unique(threads // self.units.threads) if p.inside.ndim else np.arange(self.units.blocks)
        return (blocks[:, None] * self.units.threads + np.arange(self.units.threads)).reshape(-1)

    def buffer(self, array: Array) -> TrackedMemory:
        if array.name not in self.memory:
            raise StageError(f"{array} is no buffer of this kernel")
        return self.memory[array.name]


def _is_unit(s: lp.Stmt) -> bool:
    return isinstance(s, lp.Loop) and s.kind in ("grid", "thread")


def _bits(array: Array) -> DType:
    """Return the dtype of the elements as a buffer holds them."""
    return computed_in(array.dtype) if array.role == "scratch" else array.dtype


def _early(x: Dim, at: Mapping[str, Callable[[], Any]]) -> Any:
    """Return a dim at all iterations of a kernel. Raises StageError if it depends on what is read at run time."""
    names = x.symbols if isinstance(x, d.Expr) else ()
    if (late := [name for name in names if name not in at]):
        raise StageError(f"the number of threads depends on {late[0]}, which is read at run time")
    return at_sizes(x, {name: at[name]() for name in names})


def _numbers(s: lp.Loop, at: Mapping[str, Callable[[], Any]], rank: int) -> Numbers:
    """Return the indices of a loop as the first axis of an array."""
    first, size, step = (_early(x, at) for x in (s.first, s.size, s.step))
    count = int(np.max(-((first - size) // step), initial=0))
    return np.asarray(first + step * np.arange(count).reshape(-1, *(1,) * rank))
