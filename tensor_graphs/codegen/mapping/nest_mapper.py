"""nest_mapper: what all forms of a kernel share: packs of elements, the axes of a flat index, values moved into mapped loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import Literal

from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Nest,
    Stage,
    StageProgram,
    Value,
    Values,
    computed_in,
    index_symbol,
    rewritten,
    values_in,
)
from tensor_graphs.codegen.loop_program import If, Let, Load, Loop, LoopBuffer, LoopKernel, Put, Stmt, Store
from tensor_graphs.codegen.mapping.choices import NestChoices, why_no_block
from tensor_graphs.devices.target import Target
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bool_, f64, i32, i64, u32

Place = Callable[[Dim], tuple[Array, Dim]]
"""index in an array of the stages -> array and index in the kernel"""

FAR_APART = 64
"""bytes of a pack that are too many: a thread reads 16 bytes in one load, so only two threads would share a line of 128 bytes"""

NOWHERE: Mapping[Value, tuple[Array, Dim]] = MappingProxyType({})


class NestMapper:
    """A nest on its way to a kernel. values: the factory of all values of the loop program. alone: products that are rounded before
    something is added to them. aligned: every array begins at a multiple of the widest access; else elements are loaded singly."""

    def __init__(self, program: StageProgram, nest: Nest, target: Target, values: Values, alone: Collection[Value], aligned: bool,
                 names: set[str]) -> None:
        self.program, self.nest, self.target = program, nest, target
        self.values, self.alone, self.aligned = values, alone, aligned
        self.names = names                                          # of all buffers of the program
        self.buffers: list[LoopBuffer] = []
        self.scratch: list[Array] = []                              # in global memory, of this kernel alone
        self.places: dict[Array, Place] = {}
        self.singly = set[Array]()                                  # arrays whose elements are not accessed in packs
        self.early: tuple[int, ...] = ()
        self.resident = 1

    # ---- choices ----

    @cached_property
    def choices(self) -> NestChoices:
        """The numbers by which the nest is mapped: the rules', unless a schedule has set others before."""
        return self.seed()

    def seed(self) -> NestChoices:
        """Return the numbers that the rules of the form choose."""
        raise NotImplementedError

    def why_not(self, choices: NestChoices) -> str | None:
        """Return why the form cannot map the nest by these numbers; None where it can."""
        return why_no_block(choices.warps * self.target.warp, self.target) if choices.warps else None

    def with_one(self, choices: NestChoices, what: str, size: int) -> NestChoices:
        """Return the choices with another number, and with those that follow from it."""
        return replace(choices, **{what: size})

    def kernel(self, entry: str, body: Iterable[Stmt]) -> LoopKernel:
        return LoopKernel(entry, tuple(self.buffers), tuple(body), self.early, self.resident)

    # ---- memory ----

    def buffer(self, place: Literal["register", "shared"], name: str, dtype: DType, size: Dim, like: Array | None = None,
               lanes: int = 1, row: int = 0) -> Array:
        """Return new memory of the kernel. like: an operand or output whose elements it holds as they are stored."""
        numbered = (f"{name}_{k}" for k in count(2))
        name = name if name not in self.names else next(other for other in numbered if other not in self.names)
        self.names.add(name)
        array = Array(name, "scratch" if like is None else like.role, -1 if like is None else like.number, dtype, size, 1)
        self.buffers.append(LoopBuffer(array, place, lanes, row))
        return array

    def accumulator(self, s: Stage, size: int, wide: bool = False) -> Array:
        """Return registers in which a stage's values are combined. wide: a sum of f32 is combined in f64."""
        dtype = s.value.dtype
        if wide or (s.monoid == "product" and dtype.is_float):
            dtype = f64
        elif not dtype.is_float and dtype.itemsize < 4:             # threads exchange words
            dtype = i32 if dtype.kind == "int" else u32
        return self.buffer("register", f"part_{s.target.name}", dtype, size)

    def total(self, s: Stage, part: Array, at: Dim = 0) -> Value:
        """Return what an accumulator of a stage holds, in the stage's dtype."""
        value = self.values.load(part, at)
        return value if part.dtype is s.value.dtype else self.values.make("cast", s.value.dtype, value)

    # ---- values ----

    def moved(self, root: Value, dims: Mapping[str, Dim] = MappingProxyType({}), loads: Mapping[Value, tuple[Array, Dim]] = NOWHERE,
              fixed: Collection[Value] = (), own: Mapping[Array, Value] = MappingProxyType({})) -> Value:
        """Return a stage's value as the kernel computes it. dims: what axes are in the kernel's loops. loads: where a load has been
        copied to. fixed: subexpressions for which `dims` do not count. own: values of arrays that are stored in the same place."""
        def change(v: Value, args: tuple[Value, ...]) -> Value:
            if v in fixed:
                return self.moved(v) if dims else v
            if v in loads:
                array, at = loads[v]
                return self.values.load(array, at)
            if v.op == "load":
                array, offset, inside = v.attr
                if array in own:
                    return own[array]
                around = frozenset() if array in self.places else inside - set(dims)
                return self.values.make("load", v.dtype, *args, attr=(*self.placed(array, self.index(offset, dims)), around))
            op = "mul_alone" if v in self.alone else v.op
            attr = self.index(v.attr, dims) if v.op == "index" else v.attr
            return self.values.make(op, v.dtype, *args, attr=attr)

        return rewritten(root, change)

    def index(self, x: Dim, dims: Mapping[str, Dim]) -> Dim:
        """Return an index in which axes, also those on which an index that is read depends, are what `dims` says."""
        if not isinstance(x, d.Expr):
            return x
        changes = dict(dims)
        for name in sorted(x.symbols):                              # texts do not depend on the order of a set
            value = self.values.gathered.get(name)
            if value is not None and not value.symbols.isdisjoint(self._reaching(dims)):
                high = d.bounds(next(s for s in d.symbols_in(x) if str(s) == name))[1]
                changes[name] = self.values.gather(self.moved(value, dims), high + 1)
        return d.substitute(x, changes) if not changes.keys().isdisjoint(x.symbols) else x

    def _reaching(self, dims: Mapping[str, Dim]) -> set[str]:
        """Return the symbols that change: those of `dims`, and those that are read at such an index."""
        return {*dims, *(name for name, v in self.values.gathered.items() if not v.symbols.isdisjoint(dims))}

    def placed(self, array: Array, index: Dim) -> tuple[Array, Dim]:
        """Return where an element of an array of the stages is in the kernel."""
        return self.places[array](index) if array in self.places else (array, index)

    def below(self, index: Dim, size: Dim) -> Value:
        """Return the condition index < size."""
        return self.values.make("less", bool_, self.values.index(index, i64), self.values.index(size, i64))

    # ---- loops ----

    def inside(self, name: str, index: Dim, size: Dim, body: Sequence[Stmt]) -> list[Stmt]:
        """Return the definition of an index, and statements that run where it is below a size: always, if that is known."""
        if d.bounds(index)[1] < d.bounds(size)[0]:
            return [Let(name, index), *body]
        return [Let(name, index), If(self.below(d.dim(name, 0, d.bounds(index)[1]), size), tuple(body))]

    def reducing(self, axes: Sequence[Axis], body: Sequence[Stmt], kind: Literal["serial", "unrolled"] = "serial") -> list[Stmt]:
        out = list(body)
        for axis in reversed(axes):
            out = [Loop(axis.name, axis.size, kind, tuple(out))]
        return out

    # ---- packs ----

    def packable(self, v: Value, axis: Axis, pack: int) -> bool:
        """Return whether a load reads `pack` contiguous, aligned elements along an axis."""
        array, offset, _ = v.attr
        if pack == 1 or not self.aligned or array in self.singly or (
                array.role == "scratch" and array.level and array not in self.places):
            return False
        names = offset.symbols if isinstance(offset, d.Expr) else ()
        gathered = [self.values.gathered[name] for name in names if name in self.values.gathered]
        return (d.coefficient(offset, axis.name) == 1 and divides(pack, offset - axis.symbol)
                and not any(axis.name in g.symbols for g in gathered) and all(uniform(a, axis, pack) for a in v.args))

    def pack_of(self, along: Sequence[tuple[Stage, Axis]]) -> int:
        """Return the elements of a pack for stages that each run along an axis: one access of the largest array. Where packs would
        be so far apart that a warp reads them piece by piece, one access of the widest dtype."""
        sizes = self.accessed(along)
        if not self.aligned or not sizes:
            return 1
        most = max(size for size, _ in sizes)
        vector = self.target.vector
        pack, widest = max(1, vector // min(width for size, width in sizes if size == most)), max(width for _, width in sizes)
        if pack * widest >= FAR_APART * vector // 16:
            pack = max(1, vector // widest)
        while not all(divides(pack, axis.size) for _, axis in along):
            pack //= 2
        return pack

    def accessed(self, along: Sequence[tuple[Stage, Axis]]) -> list[tuple[int, int]]:
        """Return the bytes, and those of an element, of arrays that lie along the axes; none where there are no packs."""
        sizes: list[tuple[int, int]] = []
        for s, axis in along:
            if d.bounds(axis.size)[1] < 2:                          # one element, or none at all
                return []
            read = [(v.attr[0], v.attr[1]) for v in values_in(s.value) if v.op == "load"]
            for array, offset in [*read, *([] if s.reduce else [(s.target, s.index)])]:
                if not (array.role == "scratch" and array.level) and d.coefficient(offset, axis.name) == 1:
                    sizes.append((d.bounds(array.size)[1] * element_bytes(array), element_bytes(array)))
        return sizes

    def why_no_pack(self, pack: int, along: Sequence[tuple[Stage, Axis]]) -> str | None:
        """Return why stages cannot have packs of this many elements; None where they can."""
        widths, vector = [width for _, width in self.accessed(along)], self.target.vector
        if pack == 1:
            return None
        if not widths or not self.aligned or not all(divides(pack, axis.size) for _, axis in along):
            return "its axes have no such packs"
        if pack * min(widths) > vector or vector < pack * max(widths) >= FAR_APART * vector // 16:
            return "its packs would be longer than accesses"
        return None

    def elements(self, stages: Sequence[Stage], axes: Sequence[Axis], pack: int,
                 copied: Mapping[Value, tuple[Array, Dim]] = NOWHERE) -> list[Stmt]:
        """Return statements that store the element or pack at the axes, whose indices are defined; packs are along the last axis.
        copied: where loads have been copied to, for element _v of the pack."""
        own: dict[Array, Value] = {}
        if pack == 1:
            out: list[Stmt] = []
            for s in stages:
                own[s.target] = value = self.moved(s.value, loads=copied, own=own)
                out.append(Store(*self.placed(s.target, s.index), value, s.note))
            return out
        axis, lane = axes[-1], index_symbol("_v", pack)
        before, copies, fixed = self.packs([s.value for s in stages], axis, pack, {s.target for s in stages}, copied)
        dims = self.in_pack(axis, pack)
        inner: list[Stmt] = []
        after: list[Stmt] = []
        for s in stages:
            own[s.target] = value = self.moved(s.value, dims, copies, fixed, own)
            target, index = self.placed(s.target, s.index)
            if s.target not in self.singly and d.coefficient(s.index, axis.name) == 1 and divides(pack, s.index - axis.symbol):
                result = self.buffer("register", f"out_{target.name}", memory_dtype(target), pack, target, lanes=pack)
                inner.append(Store(result, lane, value, s.note))
                after.append(Put(target, index, result, 0, pack))
            else:
                inner.append(Store(*self.placed(s.target, self.index(s.index, dims)), value, s.note))
        return [*before, Loop("_v", pack, "vector", tuple(inner)), *after]

    def in_pack(self, axis: Axis, pack: int) -> dict[str, Dim]:
        """Return the index of element _v of the pack that begins at an axis."""
        first = d.dim(axis.name, 0, max(0, d.bounds(axis.size)[1] - pack))
        return {axis.name: first + index_symbol("_v", pack)}

    def packs(self, values: Sequence[Value], axis: Axis, pack: int, others: Collection[Array] = (),
              copied: Mapping[Value, tuple[Array, Dim]] = NOWHERE) -> tuple[list[Stmt], dict[Value, tuple[Array, Dim]], set[Value]]:
        """Return loads of packs, where each load that is copied is then, and conditions that are equal for all of a pack. others:
        arrays that are read element by element. copied: loads that are copied already."""
        out: list[Stmt] = []
        copies, fixed, lane = dict(copied), set[Value](), index_symbol("_v", pack)
        for v in (v for value in values for v in values_in(value)):
            if v.op == "load" and v not in copies and v.attr[0] not in others and self.packable(v, axis, pack):
                array, offset = self.placed(v.attr[0], v.attr[1])
                row = self.buffer("register", f"p{v.number}", memory_dtype(array), pack, array, lanes=pack)
                copies[v] = row, lane
                out.append(Load(row, 0, array, offset, pack, self.moved(v.args[0]) if v.args else None))
                fixed |= set(v.args)
        return out, copies, fixed


def within(values: Values, x: Dim, low: Dim, high: Dim) -> Value:
    """Return the condition low <= x < high."""
    here, *ends = (values.index(at, i64) for at in (x, low, high))
    return values.make("and", bool_, values.make("at_least", bool_, here, ends[0]), values.make("less", bool_, here, ends[1]))


def split(flat: Dim, axes: Sequence[Axis]) -> list[tuple[str, Dim]]:
    """Return (name, index) of the axes for a flat index, the last axis counting fastest, and of what is left for the others."""
    out: list[tuple[str, Dim]] = []
    rest = flat
    for k in reversed(range(len(axes))):
        axis = axes[k]
        if k == 0:
            out.append((axis.name, rest))
        else:
            name = f"{axis.name}_rest"
            over = index_symbol(name, 1 + d.bounds(rest)[1])
            size = axis.size if d.bounds(axis.size)[0] > 0 else d.dim_max(1, axis.size)     # an empty one is never entered
            out += [(name, rest // size), (axis.name, rest - over * size)]
            rest = over
    return out


def lets(flat: Dim, axes: Sequence[Axis]) -> list[Stmt]:
    """Return the definitions of `split`."""
    return [Let(name, index) for name, index in split(flat, axes)]


def memory_dtype(array: Array) -> DType:
    """Return the dtype of an array's elements in memory."""
    return array.dtype if array.role != "scratch" else computed_in(array.dtype)


def element_bytes(array: Array) -> int:
    """Return the bytes of an array's element in memory."""
    return memory_dtype(array).itemsize


def divides(n: int, x: Dim) -> bool:
    """Return whether a dim is a multiple of n for all values of its symbols."""
    return all(k % n == 0 for _, k in x.terms) if isinstance(x, d.Expr) else int(x) % n == 0


def uniform(v: Value, axis: Axis, pack: int) -> bool:
    """Return whether a condition is equal for all elements of each pack along an axis."""
    if axis.name not in v.symbols:
        return True
    if v.op == "and":
        return all(uniform(a, axis, pack) for a in v.args)
    if v.op not in ("at_least", "less") or not all(a.op in ("index", "constant") for a in v.args):
        return False
    left, right = (a.attr for a in v.args)
    over = left - right if v.op == "at_least" else right - left - 1         # it holds where this is not below 0
    step = d.coefficient(over, axis.name)
    return (step == 1 and divides(pack, over - axis.symbol)) or (step == -1 and divides(pack, over + axis.symbol + 1))
