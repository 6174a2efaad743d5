"""stage_programs: a random stage program of a seed: what codegen/loop_ir.py allows, beyond what definitions are lowered to.

Each value carries how large it may be, of which power of two it is a multiple, and how far it may be off where a kernel rounds.
What is exact in the dtype that it is computed in has to come out exactly; a comparison, a floor or a cast to integers is only made
of such.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tensor_graphs.codegen.loop_ir import (
    Array,
    Axis,
    Monoid,
    Nest,
    Reduce,
    Running,
    Stage,
    StageProgram,
    Value,
    Values,
    computed_in,
)
from tensor_graphs.codegen.lower import steps_apart
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.dim_proofs import proved_equal
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DTYPES, DType, bf16, bool_, f16, f32, f64, i32, i64

N, M = d.dim("n", 0, 70), d.dim("m", 1, 9)
SIZES: tuple[Dim, ...] = (1, 2, 3, 4, 5, 8, 9, 17, N, N, M, M, N + 1, 2 * M, N + M, d.dim_min(N, 4), d.ceil_div(N, 2), 0)
LONG: tuple[Dim, ...] = (65, 130, 600, 1100, 8 * N, 60 * M + N)
"""sizes beyond a block of each kind"""

MOST = 20_000
"""turns of all axes of a stage, at most"""

ROUNDED = {"f8e5m2": 2.0 ** -2, "f8e4m3": 2.0 ** -3, "f16": 2.0 ** -10, "bf16": 2.0 ** -7, "f32": 2.0 ** -22, "f64": 2.0 ** -46}
"""what one operation or one store may lose, relative to the size of its result: some units in the last place"""

INTEGERS = [t for t in DTYPES.values() if t.is_integer]


@dataclass(frozen=True)
class Drawn:
    """bound: its absolute value at most. grain: it is a multiple of 2^−grain; None: not known. error: how far it may be off."""

    value: Value
    bound: float = 0.0
    grain: int | None = 0
    error: float = 0.0


@dataclass
class Written:
    """A stage's target that may be read. outer: the axes of its nest for whose turns it is separate."""

    array: Array
    shape: tuple[Dim, ...]
    like: Drawn
    outer: tuple[Axis, ...] = ()


@dataclass
class Program:
    """program: as it was drawn. shapes, steps: of its operands. errors: of its outputs, how far each
    number may be off, and how far relative to it. special: there are NaN and infinities in its operands."""

    program: StageProgram
    shapes: list[tuple[Dim, ...]]
    steps: list[tuple[Dim, ...]]
    errors: list[tuple[float, float]]
    special: bool
    dims: dict[str, d.Expr] = field(default_factory=dict)


class _Again(Exception):
    """What was drawn does not go on."""


def stage_program(seed: int) -> Program:
    """The program of a seed: the same object structure each time, made anew."""
    for attempt in range(50):
        try:
            return _Draw(random.Random(f"stages {seed} {attempt}")).program()
        except _Again:
            continue
    raise AssertionError(f"nothing can be drawn for the seed {seed}")


class _Draw:
    """shape: any, or what is cut into parts (one long line, few and long columns) or walked in tiles (turned), which is rare among
    what is drawn without regard to it."""

    def __init__(self, r: random.Random) -> None:
        self.r, self.values = r, Values()
        self.shape = r.choice(("any", "any", "any", "line", "turned", "columns"))
        self.apart, self.special, self.long = r.random() < 0.25, r.random() < 0.2, r.random() < 0.35
        self.operands: list[Array] = []
        self.shapes: list[tuple[Dim, ...]] = []
        self.steps: list[tuple[Dim, ...]] = []
        self.written: list[Written] = []
        self.visible: list[Written] = []
        self.count = 0

    def program(self) -> Program:
        nests, outputs = [], list[tuple[Array, Drawn]]()
        for number in range(count := self.r.choice((1, 1, 1, 2, 3) if self.shape == "any" else (1, 1, 2))):
            nests.append(self.nest(outputs, last=number == count - 1))
        if not self.operands or len(self.operands) > 8:
            raise _Again
        dims = {str(s): s for s in (N, M)}
        free = [s for steps in self.steps for step in steps for s in d.symbols(step) if str(s).startswith("_")]
        program = StageProgram(tuple(self.operands), tuple(a for a, _ in outputs), (), dims=(*dims.values(), *free))
        program = program.made_of(nests, self.values)
        errors = [(x.error, 0.0 if x.grain is not None and x.bound <= 2.0 ** (_bits(a.dtype) - x.grain) else ROUNDED[a.dtype.name])
                  if a.dtype.is_float else (0.0, 0.0) for a, x in outputs]
        return Program(program, self.shapes, self.steps, errors, self.special, {str(s): s for s in program.dims})

    # ---- loops ----

    def axis(self, letter: str, room: float, others: Sequence[Axis] = ()) -> Axis:
        """An axis of at most so many turns; now and then one that is as long as the index of another says."""
        large = LONG if letter == "r" or self.shape == "line" else (*LONG, 2 * M, N, N + M, 17)
        sizes = [s for s in ((*SIZES, *(LONG if self.long else ())) if self.shape == "any" else large) if d.bounds(s)[1] <= room]
        if not sizes:
            raise _Again
        size = self.r.choice(sizes)
        free = [a for a in others if d.bounds(a.size)[1] <= room and d.bounds(a.size)[0] > 0]
        if free and self.r.random() < 0.15:
            size = self.r.choice(free).symbol + 1
        self.count += 1
        return Axis(f"_{letter}{self.count}", size)

    def nest(self, outputs: list[tuple[Array, Drawn]], last: bool) -> Nest:
        room: float = MOST
        axes: list[Axis] = []
        for _ in range(self.r.choice({"any": (0, 1, 1, 2, 3), "line": (0,), "turned": (1, 1, 2), "columns": (0, 1)}[self.shape])):
            axes.append(self.axis("i", min(room, 150)))
            room /= max(1, _most(axes[-1:]))
        stages: list[Stage] = []
        levels = sorted(self.r.choice(range(1, len(axes) + 1)) if axes else 0 for _ in range(self.r.choice((1, 1, 2, 3))))
        if self.shape != "any":
            levels = [len(axes)]
        elif axes:
            levels[-1] = self.r.choice((levels[-1], len(axes)))
        alike: tuple[Axis, ...] | None = None
        made: list[Written] = []
        for k, level in enumerate(levels):
            final = k == len(levels) - 1
            outer = tuple(axes[:level])
            own: tuple[Axis, ...] | None = None
            if alike is not None and self.r.random() < 0.4:
                own = alike
            stage, like = self.stage(stages, outer, own, made)
            kind = "output" if final and last else self.r.choice(("output", "whole") if final or not axes else
                                                                 ("inner", "inner", "inner", "whole", "output"))
            if kind == "output" and len(outputs) > 2:
                kind = "whole"
            shape = tuple(a.size for a in stage.axes)
            if any(str(s).startswith("_") for size in shape for s in d.symbols(size)):
                raise _Again
            alike = stage.axes
            if kind == "inner":
                array = Array(f"t{self.count}", "scratch", 0, stage.value.dtype, d.product(shape), level)
                stages.append(replace(stage, target=array, index=self.place(stage.axes, shape)))
            else:
                whole = (*outer, *stage.axes)
                dtype = stage.value.dtype
                if kind == "output":
                    dtype = self.r.choice([t for t in (dtype, bf16, f16) if computed_in(t) is dtype])
                array = Array(f"y{len(outputs)}" if kind == "output" else f"t{self.count}",
                              "output" if kind == "output" else "scratch", len(outputs) if kind == "output" else 0, dtype,
                              d.product(a.size for a in whole))
                shape = tuple(a.size for a in whole)
                stages.append(replace(stage, target=array, index=self.place(whole, shape)))
                if kind == "output":
                    outputs.append((array, like))
            self.count += 1
            if array.dtype is computed_in(array.dtype):
                known = Written(array, shape, like, outer if kind == "inner" else ())
                (made if kind == "inner" else self.written).append(known)
        return Nest(tuple(axes), tuple(stages))

    def place(self, axes: Sequence[Axis], shape: Sequence[Dim]) -> Dim:
        """Where a stage stores: in the order of its axes, mostly; some of them backwards."""
        index = [a.size - 1 - a.symbol if self.r.random() < 0.1 else a.symbol for a in axes]
        return _offset(index, shape)

    def stage(self, before: Sequence[Stage], outer: tuple[Axis, ...], own: tuple[Axis, ...] | None,
              made: Sequence[Written]) -> tuple[Stage, Drawn]:
        r = self.r
        kind = r.choice({"any": ("store", "store", "reduce", "reduce", "scan"), "line": ("reduce", "scan"), "turned": ("store",),
                         "columns": ("reduce",)}[self.shape])
        room = MOST / max(1, _most(outer))
        axes = list(own or ())
        if own is None:
            own_axes = {"any": (0, 1, 1, 2) if kind != "scan" else (1, 1, 2), "line": (int(kind == "scan"),)}.get(self.shape, (1,))
            for _ in range(r.choice(own_axes)):
                axes.append(self.axis("j", room / max(1, _most(axes))))
        if kind == "scan" and not axes:
            kind = "store"
        room /= max(1, _most(axes))
        monoid: Monoid | None = None if kind == "store" else r.choice(("sum", "sum", "max", "product"))
        reduce: list[Axis] = []
        if kind == "reduce":
            for _ in range(r.choice((1, 1, 2))):
                reduce.append(self.axis("r", room / max(1, _most(reduce)), (*outer, *axes) if self.shape == "any" else ()))
        dtype = r.choice((f32, f32, f32, f64, i32, i64, r.choice(INTEGERS), *((bool_,) if monoid is None else ())))
        # what is written whole is read by later nests only, as its other turns may not be done
        self.visible = [*made, *(w for w in self.written if not any(s.target == w.array for s in before))]
        found = self.value(dtype, (*outer, *axes, *reduce), r.choice((0, 1, 2, 3)))
        does: Reduce | Running | None = None if monoid is None else Reduce(tuple(reduce), monoid)
        count = float(_most(reduce)) if reduce else 1.0
        if kind == "scan":
            axis = r.choice(axes)
            start = None
            if r.random() < 0.25:
                start = self.value(dtype, outer, 1)
                found = Drawn(found.value, max(found.bound, start.bound), _least(found.grain, start.grain),
                              max(found.error, start.error))
            count = float(_most([axis])) + 1
            assert monoid is not None
            does = Running(axis, monoid, r.random() < 0.4, None if start is None else start.value)
        if monoid == "product" and dtype.is_float and (found.bound > 1 or found.error or found.grain is None):
            raise _Again
        found = _taken(found, monoid, count)
        none = Array("none", "scratch", 0, dtype, 1)
        return Stage(none, 0, tuple(axes), found.value, len(outer), does, f"{kind} {monoid or ''}".strip()), found

    # ---- values ----

    def value(self, t: DType, axes: Sequence[Axis], depth: int) -> Drawn:
        if depth == 0 or self.r.random() < 0.1:
            return self.leaf(t, axes)
        draw = self.of_float if t.is_float else self.of_bool if t is bool_ else self.of_integer
        return draw(t, axes, depth - 1)

    def leaf(self, t: DType, axes: Sequence[Axis]) -> Drawn:
        r, v = self.r, self.values
        what = r.choice(("operand",) * 6 + ("written",) * 4 + ("constant", "index"))
        if what == "constant":
            if t is bool_:
                return Drawn(v.constant(r.random() < 0.5, t), 1.0)
            if t.is_float:
                return Drawn(v.constant(r.choice((-2.0, -0.5, 0.0, 1.0, 3.0)), t), 3.0, 1)
            return Drawn(v.constant(r.choice((0, 1, 2, int(t.max), int(t.min))), t), float(t.max))
        if what == "index" and t is not bool_ and axes:
            at, most = self.position(r.choice(axes))
            return Drawn(v.index(at, t), float(d.bounds(most)[1]))
        if what == "written":
            for w in r.sample(self.visible, len(self.visible)):
                if w.array.dtype is t:
                    index = self.matching(w.shape, axes)
                    if index is not None:
                        names = frozenset(a.name for a in w.outer)
                        load = v.make("load", t, attr=(w.array, _offset(index, w.shape), names))
                        return Drawn(load, w.like.bound, w.like.grain, w.like.error)
        return self.loaded(t, axes)

    def matching(self, shape: Sequence[Dim], axes: Sequence[Axis]) -> list[Dim] | None:
        """An index of a written array: axes as long as its own are, what remains of others, or its first element."""
        out: list[Dim] = []
        for size in shape:
            same = [a for a in axes if proved_equal(a.size, size)]
            if same and (self.r.random() < 0.8 or d.bounds(size)[0] < 1):
                at = self.r.choice(same)
                out.append(at.symbol if self.r.random() < 0.8 else size - 1 - at.symbol)
            elif d.bounds(size)[0] >= 1:
                out.append(self.r.choice(axes).symbol % size if axes and self.r.random() < 0.5 else 0)
            else:
                return None
        return out

    def position(self, axis: Axis) -> tuple[Dim, Dim]:
        """An index made of an axis, and a size that it stays below."""
        at, size = axis.symbol, _extent(axis)
        found = self.r.choice((
            (at, size), (at, size), (at, size), (axis.size - 1 - at, size), (2 * at + 1, 2 * size), (at // 2, d.ceil_div(size, 2)),
            (at % 3, 3), (at + 2, size + 2)))
        # what may be empty keeps a symbol, so that nothing is read before its loop is entered
        return found if d.bounds(axis.size)[0] > 0 or d.symbols(found[0]) else (at, size)

    def loaded(self, t: DType, axes: Sequence[Axis]) -> Drawn:
        """An operand at an index that is made of some axes; guarded, gathered or cast."""
        r, v = self.r, self.values
        stored = r.choice([x for x in DTYPES.values() if computed_in(x) is t])
        chosen = r.sample(list(axes), min(len(axes), r.choice((0, 1, 1, 2, 2, 3))))
        if self.shape == "turned" and r.random() < 0.7:
            chosen = list(axes)[::-1]
        elif r.random() < 0.6:
            chosen = [a for a in axes if a in chosen]
        index: list[Dim] = []
        shape: list[Dim] = []
        guard: Value | None = None
        for axis in chosen:
            form = r.random() if self.shape == "any" or r.random() < 0.3 else 1.0
            if form < 0.12:                                         # one before, or two behind: outside of memory at an end
                shift = r.choice((-1, 2))
                size = _extent(axis)
                low, high = v.index(axis.symbol + shift, i64), v.index(size, i64)
                holds = (v.make("at_least", bool_, low, v.constant(0, i64)) if shift < 0 else v.make("less", bool_, low, high))
                guard = holds if guard is None else v.make("and", bool_, guard, holds)
                index.append(axis.symbol + shift)
                shape.append(size)
            elif form < 0.22 and len(self.operands) < 6:
                at, size, holds = self.gathered(axis)
                guard = holds if guard is None else v.make("and", bool_, guard, holds)
                index.append(at)
                shape.append(size)
            else:
                at, size = self.position(axis)
                index.append(at)
                shape.append(size)
        if r.random() < 0.15:
            index.append(1)
            shape.append(r.choice((2, M + 1)))
        array, steps = self.operand(stored, tuple(shape))
        offset: Dim = 0
        for at, step in zip(index, steps, strict=True):
            offset = offset + at * step
        load = v.load(array, offset, guard)
        if guard is not None and r.random() < 0.6:
            load = v.make("where", t, guard, load, v.constant(False if t is bool_ else 1, t))
        return Drawn(load, 8.0, 2) if t.is_float else Drawn(load, 1.0 if t is bool_ else float(t.max))

    def gathered(self, axis: Axis) -> tuple[Dim, Dim, Value]:
        r, v = self.r, self.values
        kind = r.choice((i32, i64, DTYPES["u8"]))
        places, steps = self.operand(kind, (_extent(axis),))
        at = v.load(places, axis.symbol * steps[0])
        wide = at if at.dtype is i64 else v.make("cast", i64, at)
        size = r.choice((3, 5, M, N))
        holds = v.make("and", bool_, v.make("at_least", bool_, wide, v.index(0, i64)),
                       v.make("less", bool_, wide, v.index(size, i64)))
        return v.gather(v.make("where", i64, holds, wide, v.constant(0, i64)), size), size, holds

    def operand(self, dtype: DType, shape: tuple[Dim, ...]) -> tuple[Array, tuple[Dim, ...]]:
        for array, other, steps in zip(self.operands, self.shapes, self.steps, strict=True):
            if array.dtype is dtype and other == shape and self.r.random() < 0.5:
                return array, steps
        number = len(self.operands)
        if number > 8:
            raise _Again
        array = Array(f"x{number}", "operand", number, dtype, d.product(shape))
        self.operands.append(array)
        self.shapes.append(shape)
        self.steps.append(steps_apart(number, shape) if self.apart else contiguous_strides(shape))
        return array, self.steps[-1]

    # ---- expressions ----

    def condition(self, axes: Sequence[Axis], depth: int) -> Value:
        return self.value(bool_, axes, max(depth, 0)).value

    def of_bool(self, t: DType, axes: Sequence[Axis], depth: int) -> Drawn:
        r, v = self.r, self.values
        what = r.choice(("and", "xor", "less", "less", "not_equal", "at_least", "cast"))
        if what in ("and", "xor"):
            return Drawn(v.make(what, t, self.value(t, axes, depth).value, self.value(t, axes, depth).value), 1.0)
        kind = r.choice((f32, f64, i32, i64, r.choice(INTEGERS))) if what != "at_least" else r.choice((i32, i64))
        x, y = self.exact(kind, axes, depth), self.exact(kind, axes, depth)
        return Drawn(v.make("cast", t, x.value) if what == "cast" else v.make(what, t, x.value, y.value), 1.0)

    def exact(self, t: DType, axes: Sequence[Axis], depth: int) -> Drawn:
        for _ in range(4):
            found = self.value(t, axes, depth)
            if not found.error:
                return found
        return self.loaded(t, axes)

    def of_integer(self, t: DType, axes: Sequence[Axis], depth: int) -> Drawn:
        r, v = self.r, self.values
        what = r.choice(("add", "mul", "max", "idiv", "and", "xor", "where", "cast", "bitcast"))
        most = float(t.max)
        if what == "cast":
            other = r.choice([x for x in (*INTEGERS, f32, f64, bool_) if x is not t])
            return Drawn(v.make("cast", t, self.exact(other, axes, depth).value), most)
        if what == "bitcast":
            other = DTYPES[("u" if t.name[0] == "i" else "i") + t.name[1:]]
            return Drawn(v.make("bitcast", t, self.value(other, axes, depth).value, attr=f"{other} {t}"), most)
        x, y = self.value(t, axes, depth).value, self.value(t, axes, depth).value
        return Drawn(v.make("where", t, self.condition(axes, depth), x, y) if what == "where" else v.make(what, t, x, y), most)

    def of_float(self, t: DType, axes: Sequence[Axis], depth: int) -> Drawn:
        r, v = self.r, self.values
        what = r.choice(("add", "add", "mul", "mul", "max", "max", "where", "where", "floor", "cast", "bits", "mod", "series",
                         "below"))
        x = self.exact(t, axes, depth) if what in ("floor", "bits", "mod") else self.value(t, axes, depth)
        if what == "floor":
            return Drawn(v.make("floor", t, x.value), x.bound + 1, 0)
        if what == "mod":
            return _held(Drawn(v.make("mod", t, x.value, v.constant(r.choice((3.0, -2.5)), t)), 3.0, _least(x.grain, 1)))
        if what == "bits":
            bits = DTYPES[f"u{t.bits}"]
            inner = v.make("bitcast", bits, x.value, attr=f"{t} {bits}")
            return Drawn(v.make("bitcast", t, inner, attr=f"{bits} {t}"), x.bound, x.grain)
        if what == "cast":
            other = r.choice([o for o in (*INTEGERS, bool_, f32, f64) if o is not t])
            y = self.value(other, axes, depth)
            return _held(Drawn(v.make("cast", t, y.value), y.bound, y.grain, y.error))
        if what == "series":
            name, most = r.choice((("sin", 1.0), ("cos", 1.0), ("tanh", 1.0), ("erf", 1.0), ("erfc", 2.0)))
            if x.bound > 2.0 ** 12:
                return x
            return _held(Drawn(v.make(name, t, x.value), most, None, 1.2 * x.error))
        if what == "below":                                         # of numbers from 1 on
            if x.bound > 2.0 ** 12:
                return x
            square = _product(v, t, x, x)
            above = _total(v, t, square, Drawn(v.constant(1.0, t), 1.0, 0))
            name = r.choice(("reciprocal", "log2", "sqrt", "div"))
            if name == "div":
                y = self.value(t, axes, depth)
                return _held(Drawn(v.make("div", t, y.value, above.value), y.bound, None, y.error + y.bound * above.error))
            bound = {"reciprocal": 1.0, "log2": math.log2(above.bound) + 1, "sqrt": above.bound}[name]
            return _held(Drawn(v.make(name, t, above.value), bound, None, 1.5 * above.error))
        y = self.value(t, axes, depth)
        if what in ("add", "mul"):
            made = (_total if what == "add" else _product)(v, t, x, y)
            return made if made.bound < 2.0 ** 30 else x
        either = max(x.bound, y.bound), _least(x.grain, y.grain), max(x.error, y.error)
        if what == "max":
            return Drawn(v.make("max", t, x.value, y.value), *either)
        return Drawn(v.make("where", t, self.condition(axes, depth), x.value, y.value), *either)


def _bits(t: DType) -> int:
    return {"f8e5m2": 3, "f8e4m3": 4, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}[t.name]


def _least(a: int | None, b: int | None) -> int | None:
    """The grain of a number that is one of two."""
    return None if a is None or b is None else max(a, b)


def _held(x: Drawn) -> Drawn:
    """With what is lost where the dtype does not hold the number."""
    t = x.value.dtype
    if x.grain is not None and not x.error and x.bound <= 2.0 ** (_bits(t) - x.grain):
        return x
    return Drawn(x.value, x.bound, None, x.error + ROUNDED[t.name] * x.bound)


def _total(v: Values, t: DType, x: Drawn, y: Drawn) -> Drawn:
    return _held(Drawn(v.make("add", t, x.value, y.value), x.bound + y.bound, _least(x.grain, y.grain), x.error + y.error))


def _product(v: Values, t: DType, x: Drawn, y: Drawn) -> Drawn:
    grain = None if x.grain is None or y.grain is None else x.grain + y.grain
    return _held(Drawn(v.make("mul", t, x.value, y.value), x.bound * y.bound, grain, x.bound * y.error + y.bound * x.error))


def _taken(x: Drawn, monoid: Monoid | None, count: float) -> Drawn:
    """What so many of them come to."""
    if monoid != "sum" or not x.value.dtype.is_float:
        return x
    made = _held(Drawn(x.value, x.bound * count, x.grain, x.error * count))
    return made if not made.error else Drawn(x.value, made.bound, None, made.error + ROUNDED[x.value.dtype.name] * made.bound * 4)


def _offset(index: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    out: Dim = 0
    for at, size in zip(index, shape, strict=True):
        out = out * size + at
    return out


def _extent(axis: Axis) -> Dim:
    """A size without symbols of other axes that an axis stays below."""
    inner = [s for s in d.symbols(axis.size) if str(s).startswith("_")]
    return d.bounds(axis.size)[1] if inner else axis.size


def _most(axes: Sequence[Axis]) -> int:
    return math.prod(d.bounds(a.size)[1] for a in axes)


# ---- values of operands ----------------------------------------------------------------------------------------------------


def binding_of(made: Program, seed: int, number: int) -> dict[str, int]:
    """Sizes for the program's dims: an end of each range, or any; steps between rows that leave gaps."""
    r = random.Random(f"sizes {seed} {number}")
    out = {str(s): r.choice((d.bounds(s)[0], d.bounds(s)[1], r.randint(*d.bounds(s)))) for s in (N, M)}
    for shape, steps in zip(made.shapes, made.steps, strict=True):
        step = 1
        for size, apart in reversed(list(zip(shape, steps, strict=True))):
            if isinstance(apart, d.Expr) and str(apart).startswith("_"):
                step += r.choice((0, 1, 7))
                out[str(apart)] = step
            step *= max(1, d.evaluate(size, out))
    return out


def operands_of(made: Program, seed: int, binding: Mapping[str, int]) -> list[np.ndarray]:
    """The memory of each operand, flat, as far as the last element that it has; what lies in gaps is never read."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    found = []
    for array, shape, steps in zip(made.program.operands, made.shapes, made.steps, strict=True):
        sizes = [d.evaluate(s, binding) for s in shape]
        apart = [d.evaluate(s, binding) for s in steps]
        length = 1 + sum((n - 1) * s for n, s in zip(sizes, apart, strict=True)) if all(sizes) else 0
        t = array.dtype
        if t is bool_:
            values = rng.integers(0, 2, length).astype(bool)
        elif t.is_integer:
            values = np.where(rng.random(length) < 0.7, rng.integers(-2 if t.min else 0, 9, length),
                              rng.integers(0, int(t.max), length, dtype=np.int64 if int(t.max) < 2 ** 63 else np.uint64,
                                           endpoint=True)).astype(t.numpy)
        else:
            values = (rng.integers(-32, 33, length) / 4).astype(t.numpy)
            if made.special:
                some = rng.random(length) < 0.1
                values[some] = rng.choice(np.array([np.nan, np.inf, -np.inf, -0.0]), int(some.sum())).astype(t.numpy)
        found.append(values)
    return found

