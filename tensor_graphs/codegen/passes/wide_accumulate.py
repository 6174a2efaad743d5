"""wide_accumulate: keep sums of f32, and scalars computed from them once per row, in f64 until they are combined with row elements.

A scalar per row costs almost nothing in f64. Its rounding error would be the same for all elements of the row, and such errors do
not average out. Elements stay f32, as a register holds twice as many: a scalar r is split into two f32, high(r) + low(r), and a
product or sum with both is rounded as one with r would be. As a factor of short rows (LONG) r is rounded, once. A quotient by such
a scalar becomes a product with both halves of its inverse, where f32 can hold that.

Sums that a program has in f64 because f32 may not hold their elements (wide_statistics.py) are also added in f32, in blocks; the
mapper adds a block again in f64 if it left the range of f32. `beside_first` marks f32 values minus the first one of their row,
which the mapper adds back in f64, so that nearly equal numbers lose no digits of their differences.

In: a program that is to be mapped.  Out: a new program; its scratch has the same size, as only variables become f64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Array, Nest, Stage, StageProgram, Value, Values, across, values_in
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import bool_, f32, f64

KEPT = frozenset({"add", "mul", "div", "reciprocal", "sqrt"})
"""ops that continue in f64 where all their arguments are scalars of a row; other ops get these rounded"""

LONG = 512
"""elements of a row from which on its products use both halves of a row scalar. Measured on norms of f32 in the cache, time before
÷ after: 0.95 to 1.2 for rows of 512 to 1024; 0.72 to 0.95 for rows of 64 to 320, which wait for the halves"""


def in_f64(values: Values, v: Value, ops: Collection[str] = ("add", "mul")) -> Value:
    """Return an f32 value in f64. Results of `ops` on loads, constants and whole numbers are not rounded; other values are cast."""
    if v.dtype is f64:
        return v
    if v.op in ops:
        return values.make(v.op, f64, *(in_f64(values, a, ops) for a in v.args))
    if v.op in ("constant", "index"):
        return values.make(v.op, f64, attr=v.attr)
    if v.op == "beside_first":
        return in_f64(values, v.args[0], ops)
    if v.op == "where":
        return values.make("where", f64, v.args[0], *(in_f64(values, a, ops) for a in v.args[1:]))
    return values.make("cast", f64, v.args[0] if v.op == "cast" and v.args[0].dtype.is_integer else v)


def unrounded(program: StageProgram) -> StageProgram:
    """Return the program with unrounded row scalars.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 800]", "s = sum(x * x; axes=(1,))", "output y = x * reshape(rsqrt(s); shape=(4, 1))")
    >>> print(program)
    nest over _i0 in 0..4
        t1[0] = sum over _r2 in 0..800 of (v7 * v7)
            where v7 = cast(x0[800*_i0 + _r2])
        y0[800*_i0 + _j1] = (x0[800*_i0 + _j1] * cast(reciprocal(sqrt(t1[0]))))    over _j1 in 0..800
    >>> print(unrounded(program))
    nest over _i0 in 0..4
        t1[0] = sum over _r2 in 0..800 of (x0[800*_i0 + _r2] * x0[800*_i0 + _r2])
        y0[800*_i0 + _j1] = fma(x0[800*_i0 + _j1], high(v11), (x0[800*_i0 + _j1] * low(v11)))    over _j1 in 0..800
            where v11 = reciprocal(sqrt(t1[0]))
    """
    written = Counter(s.target for s in program.stages)
    indices = {v.attr[0] for g in program.gathered.values() for v in values_in(g) if v.op == "load"}
    parts = {s.value.attr[0] for s in program.stages if s.monoid == "sum" and s.value.op == "load"}
    wide: dict[Array, Array] = {}
    nests, same = [], True
    for nest in program.nests:
        exact, stages = _may_cancel(nest), dict[Stage, Stage]()
        for s in nest.stages:
            widened = _Unrounded(program, nest, s, wide)
            value = widened(s.value)
            free = s.target.level > 0 and s.target.size == 1 and s.target.dtype is f32 and s.target not in indices
            free = free and written[s.target] == 1 and s.product != "streamed"
            is_sum = s.monoid == "sum" and s.scan is None
            if free and (is_sum or (s.monoid is None and value.dtype is f64)):
                wide[s.target] = replace(s.target, dtype=f64)
                value = in_f64(program.values, value) if is_sum and exact else value
            elif not is_sum:
                value = widened.narrow(value) if s.value.dtype is f32 else value
            elif s.value.dtype is s.target.dtype is f64 and s.value.op != "load" and s.target not in parts and not across(s):
                value = value if program.doubles else widened.of_narrow(s.value) or value
            same = same and value is s.value
            target = wide.get(s.target, s.target)
            stages[s] = s if value is s.value and target is s.target else replace(s, target=target, value=value)
        nests.append(nest.mapped(lambda s, stages=stages: [stages[s]]))                         # type: ignore[misc]
    return program if same and not wide else program.made_of(nests)


def _may_cancel(nest: Nest) -> bool:
    """Return whether elements are added to products with sums of exponentials, as in a softmax's gradient: y g - y sum(y g) is a
    small difference where one y is nearly 1, as small as the error of an f32 sum."""
    sums = {s.target for s in nest.stages if s.monoid == "sum"}
    dear = any(v.op in DEAR for s in nest.stages for v in values_in(s.value))
    return dear and any(v.op == "add" and any(_has_factor(a, sums) for a in v.args) and v.dtype is f32
                        for s in nest.stages for v in values_in(s.value))


def _has_factor(v: Value, sums: Collection[Array]) -> bool:
    return (v.op == "load" and v.attr[0] in sums) if v.op != "mul" else any(_has_factor(a, sums) for a in v.args)


class _Unrounded:
    """The values of one stage, reading the arrays in `wide` in f64. `fixed`: the axes that a row scalar may depend on."""

    def __init__(self, program: StageProgram, nest: Nest, stage: Stage, wide: Mapping[Array, Array]) -> None:
        self.values, self.wide = program.values, wide
        outside = stage.axes if stage.reduce and not across(stage) else stage.axes[:-1]
        self.fixed = {a.name for a in (*nest.axes[:stage.level], *outside)} | {str(x) for x in program.dims}
        self.known: dict[Value, Value] = {}
        self.both = d.bounds(d.product(a.size for a in nest.loops(stage)))[1] >= LONG

    def __call__(self, v: Value) -> Value:
        """Return the value, in f64 where it depends only on row scalars."""
        if v not in self.known:
            self.known[v] = self.made(v, [self(a) for a in v.args])
        return self.known[v]

    def made(self, v: Value, args: Sequence[Value]) -> Value:
        make = self.values.make
        if v.op == "load" and v.attr[0] in self.wide:
            return make("load", f64, *args, attr=(self.wide[v.attr[0]], *v.attr[1:]))
        if v.dtype is f32 and v.op in KEPT and any(a.dtype is f64 for a in args):
            if all(a.symbols <= self.fixed for a in args):
                return make(v.op, f64, *(in_f64(self.values, a, KEPT) for a in args))
            with_halves = self.with_halves(v.op, args)
            if with_halves is not None:
                return with_halves
        if v.op == "cast" and v.dtype is f32 and v.args[0].op == "add" and v.args[0].dtype is f64:
            x, number = sorted(v.args[0].args, key=lambda a: a.symbols <= self.fixed)
            if x.op == "cast" and x.args[0].dtype is f32 and number.symbols <= self.fixed:
                return self.beside(self.narrow(self(x.args[0])), self(number))
        if v.op == "cast" and args[0].dtype is f64 and (v.dtype is f64 or (v.dtype is f32 and args[0].symbols <= self.fixed)):
            return args[0]
        rounded = [self.narrow(a) if old.dtype is f32 else a for a, old in zip(args, v.args, strict=True)]
        return v if rounded == list(v.args) else make(v.op, v.dtype, *rounded, attr=v.attr)

    def with_halves(self, op: str, args: Sequence[Value]) -> Value | None:
        """Return a quotient by a row scalar, or a product or sum with one, using both halves; None where it is rounded before."""
        make = self.values.make
        if op == "div" and args[1].dtype is f64:
            x, number = self.narrow(args[0]), args[1]
            inverse = make("reciprocal", f64, number)
            return make("over", f32, x, self.narrow(number), make("inverted", bool_, inverse),
                        make("high", f32, inverse), make("low", f32, inverse))
        if op not in ("add", "mul") or not (self.both or op == "add"):
            return None
        number, x = sorted(args, key=lambda a: a.dtype is f32)
        if op == "add":
            return self.beside(x, number)
        return make("fma", f32, x, make("high", f32, number), make("mul", f32, x, make("low", f32, number)))

    def beside(self, x: Value, number: Value) -> Value:
        """Return x plus a row scalar; where x is close to it the result is rounded as if added to both halves exactly."""
        high = self.values.make("add", f32, x, self.values.make("high", f32, number))
        return self.values.make("add", f32, high, self.values.make("rest", f32, number))

    def of_narrow(self, v: Value) -> Value | None:
        """Return the elements of an f64 sum in f32, where they depend on f32 values and row scalars; else None. Elements that are
        no products may be nearly equal, so their differences from the first are added up."""
        narrow = self.in_f32(v)
        if narrow is None or narrow.symbols <= self.fixed:
            return None
        return narrow if v.op in ("mul", "where") else self.values.make("beside_first", f32, narrow)

    def in_f32(self, v: Value) -> Value | None:
        if v.dtype is not f64:
            return self(v)
        if v.symbols <= self.fixed:
            return self(v)
        if v.op == "cast":
            return self.narrow(self(v.args[0])) if v.args[0].dtype is f32 else self.values.make("cast", f32, self(v.args[0]))
        if v.op == "load":
            return self.values.make("cast", f32, self(v)) if v.attr[0].role == "scratch" else None
        args = [self.in_f32(a) for a in v.args]
        there = [a for a in args if a is not None]
        if len(there) < len(args) or not (v.op in KEPT or v.op == "where"):
            return None
        if any(a.dtype is f64 for a in there):
            with_halves = self.with_halves(v.op, there)
            if with_halves is not None:
                return with_halves
        return self.values.make(v.op, f32, *map(self.narrow, there), attr=v.attr)

    def narrow(self, v: Value) -> Value:
        return self.values.make("cast", f32, v) if v.dtype is f64 else v
