"""interpret_loops: a reference interpreter of loop programs in numpy, which reports races and needs no GPU.

    run(program, [x, w], {"n": 3})          # one array for each output

Loops of the kinds grid, thread and vector are axes of the arrays (the innermost loop is the first axis, so that what is computed
outside of it broadcasts). Serial and unrolled loops are loops of Python, in which all threads go in step; so results alone do not
show a race, and memory reports it (races.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tensor_graphs.codegen import loop_program as lp
from tensor_graphs.codegen.evaluate import MONOIDS, Numbers, StageError, at_sizes, combined
from tensor_graphs.codegen.loop_ir import Array, Monoid, Top, Value, computed_in, identity_of
from tensor_graphs.codegen.loop_points import UnitPoints
from tensor_graphs.codegen.races import TrackedMemory, Units
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.meaning.algebra import wide

REGISTER = {32: 4, 64: 2}
"""numbers in a register of a CPU, by their bits: as many as the least has"""

ALIGNED = 16
"""bytes to which the memory of a buffer is aligned, and those of the widest access"""


def run(program: lp.LoopProgram, operands: Sequence[Numbers], dims: Mapping[str, int] | None = None,
        warp: int = 32, parts: int = 1 << 16) -> list[Numbers]:
    """Return the outputs as flat arrays, floats as unrounded float64. operands: their memory from the first element on (arrays that
    are not flat are read in C order). dims: sizes by name. warp: threads of a warp. parts: most parts of a nest on a CPU. Raises
    StageError."""
    source, memory = program.source, dict[str, TrackedMemory]()
    sizes = {str(s): int((dims or {})[str(s)]) for s in source.dims} | {str(x): REGISTER[bits] for bits, x in lp.LANES.items()}
    for array, values in zip(source.operands, operands, strict=True):
        memory[array.name] = TrackedMemory(array, "global", values.size, 1, wide(values.reshape(-1), array.dtype))
    for array in (*source.outputs, *(a for a in source.scratch if a.level == 0), *program.scratch):
        memory[array.name] = TrackedMemory(array, "global", int(at_sizes(array.size, sizes)))
    for output, operand in source.updated:
        array, old = source.outputs[output], memory[source.operands[operand].name]
        memory[array.name] = TrackedMemory(array, "global", old.size, 1, old.values.copy())
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            _KernelRun(kernel, memory, sizes, warp, parts).run()
    for array in source.outputs:
        if not (full := memory[array.name].full).all():
            raise StageError(f"{int((~full).sum())} of {full.size} elements of {array} are never written")
    return [memory[array.name].values for array in source.outputs]


class _KernelRun:
    """One kernel. counts: iterations of parallel loops, by which units are numbered. outside: statements next to grid
    or thread loops or around them. cleared: buffer -> the operation whose identity it holds, or that has combined it since."""

    def __init__(self, kernel: lp.LoopKernel, memory: Mapping[str, TrackedMemory], sizes: Mapping[str, int], warp: int,
                 parts: int) -> None:
        self.kernel, self.sizes, self.parts = kernel, sizes, parts
        self.counts, self.cleared = dict[lp.Loop | lp.Parallel, int](), dict[str, Monoid]()
        inside = list(lp.statements(kernel.body))
        bodies = [kernel.body, *(s.body for s in inside if isinstance(s, lp.INNER))]
        self.outside = {s for body in bodies for s in body
                        if any(isinstance(x, lp.Loop) and x.kind in ("grid", "thread") for x in lp.statements(body))}
        self.written = {array.name for s in inside for array in lp.written(s)}
        rows = {b.name for b in kernel.buffers if b.row}
        for s in inside:
            if isinstance(s, lp.Load | lp.Put) and s.buffer.name in rows and s.lanes * s.buffer.dtype.itemsize > ALIGNED:
                raise StageError(f"{lp.text_of(s)}: {ALIGNED} bytes of a row are together, and it is one access of more")
        for alias in reversed([s for s in inside if isinstance(s, lp.Alias)]):
            self.written |= {alias.buffer.name} if alias.array.name in self.written else set()
        most = self.most(kernel.body)
        self.units = Units(most["grid"], most["thread"], most["vector"], warp, kernel.early)
        copies = {"register": self.units.blocks * self.units.threads, "shared": self.units.blocks}
        own = {b.name: TrackedMemory(b.array, b.place, int(at_sizes(b.array.size, sizes)), copies[b.place]) for b in kernel.buffers}
        self.memory = {**memory, **own}
        self.local = {s: TrackedMemory(s.array, "register", int(at_sizes(s.array.size, sizes)), copies["register"])
                      for s in inside if isinstance(s, lp.Local)}
        self.groups = np.zeros(self.units.blocks * self.units.threads, int)     # of copies that each thread has waited for
        self.copies: list[tuple[TrackedMemory, Numbers, Numbers, Numbers, Numbers]] = []
        for m in (*self.memory.values(), *self.local.values()):
            m.begin(self.units, m.array.name in self.written)

    def most(self, body: tuple[lp.Stmt, ...]) -> dict[str, int]:
        """Return the most iterations of all loops of each parallel kind, inside of each other."""
        out: dict[str, int] = dict.fromkeys(lp.PARALLEL, 1)
        for s in body:
            if isinstance(s, lp.INNER):
                inner = self.most(s.body)
                if isinstance(s, lp.Loop) and s.kind in lp.PARALLEL:
                    self.counts[s] = max(0, d.bounds(d.substitute(d.ceil_div(s.size - s.first, s.step), self.sizes))[1])
                    inner[s.kind] *= self.counts[s]
                elif isinstance(s, lp.Parallel):
                    self.counts[s] = min(self.parts, -(-int(at_sizes(s.size, self.sizes)) // s.unit))
                    inner["grid"] *= self.counts[s]
                out = {kind: max(out[kind], n) for kind, n in inner.items()}
        return out

    def run(self) -> None:
        self.statement: lp.Stmt | None = None
        try:
            self.body(self.kernel.body, UnitPoints(self.memory, self.units, dict(self.sizes), {}, np.ones((), bool)))
        except StageError as error:
            at = f", in `{lp.text_of(self.statement)}`" if self.statement is not None else ""
            raise StageError(f"{error}{at} of {self.kernel.entry}") from None

    def body(self, body: tuple[lp.Stmt, ...], scope: UnitPoints) -> None:
        scope = scope.inner()
        for s in body:
            if not scope.inside.any():
                return
            self.statement, p = s, scope.inner()
            if s in self.outside and (lp.written(s) or (p.group and isinstance(s, lp.Barrier | lp.Wait))):
                raise StageError("the statement is outside of thread loops")
            match s:
                case lp.Let():
                    scope.at[s.name] = p.value(s.index).astype(np.int64) if isinstance(s.index, Value) else p.offset(s.index)
                case lp.Alias():
                    scope.aliases[s.array.name] = s.buffer, p.offset(s.index)
                case lp.Compute():
                    for of_before in (p.values, p.unknown):         # another Compute of the same value computes it again
                        of_before.pop(s.value, None)
                    p.computes = s.value
                    scope.values[s.value], scope.unknown = p.value(s.value), p.unknown
                case lp.Load():
                    self.load(s, p)
                case lp.Store():
                    value = p.chosen(p.value(s.value))
                    self.write(s.buffer, *self.pack(s.buffer, s.index, 1, p, p.inside), value)
                case lp.Put():
                    self.copy(s.buffer, s.index, s.source, s.at, s.lanes, p, p.inside)
                case lp.CopyAhead():
                    self.copy_ahead(s, p)
                case lp.CopiesWait():
                    self.wait_for_copies(s, p)
                case lp.Clear():
                    self.clear(s, p)
                case lp.Take():
                    self.take(s, p)
                case lp.Combine():
                    self.combine(s, p)
                case lp.Prefetch():
                    p.place(s.buffer, s.index)
                case lp.Barrier():
                    self.units.meet(self.threads(p), s.scope == "block")
                case lp.Wait():
                    self.units.waited[self.threads(p)] = True
                case lp.If():
                    self.body(s.body, p.inner(inside=p.inside & p.value(s.when)))
                case lp.Loop():
                    self.loop(s, p)
                    if s.rest:
                        scope.at[s.axis] = p.offset(s.first + s.step * (d.dim_max(0, s.size - s.first) // s.step))
                case _:
                    self.on_cpu(s, scope, p)

    def on_cpu(self, s: lp.Stmt, scope: UnitPoints, p: UnitPoints) -> None:
        """Run a statement that only kernels for a CPU have."""
        match s:
            case lp.Local():
                self.local_memory(s, p)
            case lp.Skew():
                scope.at[s.name] = (p.place(s.buffer, s.index)[1] + 3) % s.elements     # memory that begins somewhere
            case lp.Braces() | lp.FunctionCall():
                self.body(s.body, p)
            case lp.Parallel():
                count = self.counts[s]
                number, size = np.arange(count), p.offset(s.size)
                units = -(-size // s.unit)
                ends = [np.minimum(size, units * (number + k) // max(1, count) * s.unit) for k in (0, 1)]
                p = p.inner(at={**p.at, lp.FROM: ends[0], lp.TO: ends[1]}, inside=p.inside & (number >= 0))
                p.block = number
                self.units.waited[...] = True
                self.body(s.body, p)

    def local_memory(self, s: lp.Local, p: UnitPoints) -> None:
        """Begin with memory of a body: not written, or the identity of what it accumulates."""
        m = self.memory[s.array.name] = self.local[s]
        threads, count = self.threads(p), p.chosen(p.offset(m.size if s.count is None else s.count))
        m.lose(np.tile(np.arange(m.size), len(threads)), np.repeat(threads * self.units.lanes, m.size))
        if s.monoid is not None:
            units = np.repeat(p.units(), count)
            at = np.concatenate([np.arange(n) for n in count]) if len(count) else np.zeros(0, int)
            m.values[m.claim(at, units)] = identity_of(s.monoid, m.array.dtype)
            self.cleared[s.array.name] = s.monoid

    def loop(self, s: lp.Loop, p: UnitPoints) -> None:
        first, size, step = p.offset(s.first), p.offset(s.size), p.offset(s.step)
        if s.kind not in lp.PARALLEL:
            for k in range(int(np.max(p.chosen(-((first - size) // step)), initial=0))):
                axis = first + k * step
                past = {s.past: np.minimum(axis + step, size)} if s.past else {}
                inside = axis + step <= size if s.rest else axis < size
                self.body(s.body, p.inner(at={**p.at, s.axis: axis, **past}, inside=p.inside & inside))
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
            self.units.meet_lanes()
        self.body(s.body, p)
        self.units.meet_lanes()

    def load(self, s: lp.Load, p: UnitPoints) -> None:
        whole = p.inside if s.when is None else p.inside & p.value(s.when)
        if s.how == "now" and s.buffer.name in self.written:
            raise StageError(f"{s.buffer} is no read-only memory")
        self.copy(s.into, s.at, s.buffer, s.index, s.lanes, p, whole)
        m, offsets, units = self.pack(s.into, s.at, s.lanes, p, p.inside & ~whole)
        self.write(s.into, m, offsets, units, np.zeros(len(units), bool))

    def copy(self, into: Array, at: Dim, source: Array, index: Dim, lanes: int, p: UnitPoints, whole: Numbers) -> None:
        """Write into[at + k] = source[index + k] for all k below `lanes`."""
        if _bits(into) != _bits(source):
            raise StageError(f"{into} does not hold the bits of {source}")
        m, offsets, units = self.pack(source, index, lanes, p, whole)
        self.write(into, *self.pack(into, at, lanes, p, whole), m.read(offsets, units))

    def copy_ahead(self, s: lp.CopyAhead, p: UnitPoints) -> None:
        (m, offsets, units), into = (self.pack(a, x, s.lanes, p, p.inside) for a, x in ((s.buffer, s.index), (s.into, s.at)))
        if m.place != "global" or m.array.name in self.written or into[0].place != "shared":
            raise StageError(f"{s.buffer} is not copied from read-only to shared memory")
        self.write(s.into, *into, np.zeros(len(units), bool))
        into[0].lose(into[1], units)
        self.copies.append((*into, m.read(offsets, units), self.groups[units // self.units.lanes]))

    def wait_for_copies(self, s: lp.CopiesWait, p: UnitPoints) -> None:
        self.groups[threads := self.threads(p)] += 1
        copies, self.copies = self.copies, []
        for m, offsets, units, values, groups in copies:
            own = units // self.units.lanes
            done = np.isin(own, threads) & (groups < self.groups[own] - s.left)
            m.values[m.claim(offsets[done], units[done])] = values[done]
            self.copies.append((m, *(x[~done] for x in (offsets, units, values, groups))))

    def pack(self, array: Array, index: Dim, lanes: int, p: UnitPoints, whole: Numbers) -> tuple[TrackedMemory, Numbers, Numbers]:
        """Return the elements of an access, and their units."""
        m, at = p.place(array, index)
        offsets = p.chosen(at, whole)
        if lanes > 1 and m.place != "register":
            if lanes * array.dtype.itemsize > ALIGNED or lanes & (lanes - 1):
                raise StageError(f"{lanes} elements of {array} are no access")
            if (bad := offsets % lanes > 0).any():
                raise StageError(f"{array}[{offsets[bad][0]}] is misaligned")
        return m, (offsets[:, None] + np.arange(lanes)).reshape(-1), np.repeat(p.units(whole), lanes)

    def write(self, array: Array, m: TrackedMemory, offsets: Numbers, units: Numbers, values: Numbers) -> None:
        self.cleared.pop(array.name, None)
        m.values[m.claim(offsets, units)] = values

    def clear(self, s: lp.Clear, p: UnitPoints) -> None:
        (m, _), threads = p.place(s.buffer, 0), np.unique(p.units() // self.units.lanes)
        flat = m.claim(np.tile(np.arange(m.size), len(threads)), np.repeat(threads * self.units.lanes, m.size))
        m.values[flat], self.cleared[s.buffer.name] = identity_of(s.monoid, m.array.dtype), s.monoid

    def take(self, s: lp.Take, p: UnitPoints) -> None:
        value, (m, offsets, units), lanes = p.chosen(p.value(s.value)), self.accumulator(s, p), self.units.lanes
        if isinstance(s.monoid, Top):
            threads, row, count = np.unique(units // lanes * lanes, return_inverse=True, return_counts=True)
            taken = np.full((len(threads), count.max(initial=0)), identity_of(s.monoid, m.array.dtype), m.values.dtype)
            order = np.argsort(row, kind="stable")
            taken[row[order], np.concatenate([np.arange(n) for n in count])] = value[order]
            self.rewrite(m, threads, lambda lists: combined(s.monoid, np.concatenate([lists, taken], axis=1), 1))
            return
        if len(np.unique(units // lanes * m.size + offsets)) < len(units):
            units = units // lanes * lanes                          # a thread combines the elements of its vector loop
        m.read(offsets, units)
        MONOIDS[s.monoid].at(m.values, m.claim(offsets, units), value.astype(m.values.dtype))

    def rewrite(self, m: TrackedMemory, units: Numbers, change: Callable[[Numbers], Numbers]) -> None:
        """Replace all of a buffer that these units have by what `change` returns for it, a row for each."""
        offsets, owners = np.tile(np.arange(m.size), len(units)), np.repeat(units, m.size)
        after = change(m.read(offsets, owners).reshape(len(units), m.size))
        m.values[m.claim(offsets, owners)] = after.reshape(-1)

    def combine(self, s: lp.Combine, p: UnitPoints) -> None:
        (m, offsets, units), n, warp = self.accumulator(s, p), s.threads, self.units.warp
        if (p.group or 1) % n or m.place != "register":
            raise StageError(f"{s.buffer} is combined across {n} threads in a loop of {p.group or 1}")
        if warp % n if n <= warp else n % warp:
            raise StageError(f"groups of {n} threads are no warps of {warp}")
        if s.shared is not None:
            length = m.size if isinstance(s.monoid, Top) else 1
            if (own := p.place(s.shared, 0)[0]).place != "shared" or own.size < self.units.warps * length:
                what = "number" if length == 1 else f"list of {length}"
                raise StageError(f"{s.shared} has no room for a {what} of each of {self.units.warps} warps")
            self.units.meet(self.threads(p), True)
            own.full[...] = False
        elif n > warp:
            raise StageError(f"{n} threads combine {s.buffer} without shared memory")
        number = units // self.units.lanes % self.units.threads % n     # in the group
        groups, counts = np.unique(units - number * self.units.lanes, return_counts=True)
        if (counts != n).any():
            raise StageError(f"{counts.min()} of {n} threads combine {s.buffer}")
        order = np.argsort(units)                                   # groups after each other, and the threads of each
        units, offsets = units[order], offsets[order]
        if isinstance(s.monoid, Top):
            self.rewrite(m, units, lambda lists: np.repeat(
                combined(s.monoid, lists.reshape(len(groups), -1), 1), n, axis=0))
            return
        along = MONOIDS[s.monoid].accumulate(m.read(offsets, units).reshape(len(groups), n), axis=1, dtype=m.values.dtype)
        if s.before is not None:
            earlier, _ = p.place(s.before, s.index)
            first = np.full((len(groups), 1), identity_of(s.monoid, m.array.dtype), m.values.dtype)
            self.write(s.before, earlier, offsets, units, np.concatenate([first, along[:, :-1]], axis=1).reshape(-1))
        m.values[m.claim(offsets, units)] = np.repeat(along[:, -1], n)

    def accumulator(self, s: lp.Take | lp.Combine, p: UnitPoints) -> tuple[TrackedMemory, Numbers, Numbers]:
        if (held := self.cleared.get(s.buffer.name, s.monoid)) != s.monoid:
            raise StageError(f"{s.buffer} is combined by {s.monoid}, and was cleared for {held}")
        return self.pack(s.buffer, s.index, 1, p, p.inside)

    def threads(self, p: UnitPoints) -> Numbers:
        """Return the numbers of the threads that run a statement: of whole blocks if it is outside of the thread loops."""
        threads = np.unique(p.units() // self.units.lanes)
        if self.statement not in self.outside:
            return threads
        blocks = np.unique(threads // self.units.threads) if p.inside.ndim else np.arange(self.units.blocks)
        return (blocks[:, None] * self.units.threads + np.arange(self.units.threads)).reshape(-1)


def _bits(array: Array) -> DType:
    """Return the dtype of the elements as a buffer holds them."""
    return computed_in(array.dtype) if array.role == "scratch" else array.dtype
