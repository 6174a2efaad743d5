"""unrounded: what sums of f32 come to stays f64, and so does what is made of it once a row, until it meets the row's elements.

    t1[] = sum over r of x[r] · x[r]                   t1 is f64, and so is r = 1 / sqrt(t1 / n + eps)
    y[j] = x[j] · (1 / sqrt(t1[] / n + eps))     →     y[j] = fma(x[j], high(r), x[j] · low(r))

A number of a row costs nothing in f64, while its rounding would be the same for all elements of the row, and such errors do not
average out. With elements it stays f32 arithmetic, as twice as many fit a register: r is high(r) + low(r), two f32, and a product
or a sum with both is rounded as one with r would be. In short rows (LONG) it is rounded there, once. A quotient by such a number is
a product with both halves of its inverse, where f32 has that.

In: a program that is to be rendered.  Out: another one; its scratch takes as many bytes, as only variables become f64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.codegen.stages import Array, Nest, Stage, StageProgram, Value, Values, values_in
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import bool_, f32, f64

KEPT = frozenset({"add", "mul", "div", "reciprocal", "sqrt"})
"""ops that go on in f64 where all is a number of a row; others take it rounded"""

LONG = 512
"""elements of a row from which on it takes products and sums with both halves of a number of its own. Measured on norms of f32 in
the cache, time before ÷ after: 0.95 to 1.2 of rows of 512 to 1024; of rows of 64 to 320 0.72 to 0.95, which wait for the halves"""


def in_f64(values: Values, v: Value, ops: Collection[str] = ("add", "mul")) -> Value:
    """A value of f32 in f64: these ops of what is loaded, of constants and of whole numbers without a rounding; else as it was."""
    if v.dtype is f64:
        return v
    if v.op in ops:
        return values.make(v.op, f64, *(in_f64(values, a, ops) for a in v.args))
    if v.op in ("constant", "index"):
        return values.make(v.op, f64, attr=v.attr)
    return values.make("cast", f64, v.args[0] if v.op == "cast" and v.args[0].dtype.is_integer else v)


def unrounded(program: StageProgram) -> StageProgram:
    """With numbers of rows that are not rounded."""
    written = Counter(s.target for nest in program.nests for s in nest.stages)
    indices = {v.attr[0] for g in program.values.gathered.values() for v in values_in(g) if v.op == "load"}
    wide: dict[Array, Array] = {}
    nests = []
    for nest in program.nests:
        exact, stages = _may_cancel(nest), []
        for s in nest.stages:
            made = _Unrounded(program, nest, s, wide)
            value = made(s.value)
            free = s.target.level > 0 and s.target.size == 1 and s.target.dtype is f32 and s.target not in indices
            is_sum = s.monoid == "sum" and s.scan is None
            if free and written[s.target] == 1 and not s.product and (is_sum or (s.monoid is None and value.dtype is f64)):
                wide[s.target] = replace(s.target, dtype=f64)
                value = in_f64(program.values, value) if is_sum and exact else value
            elif not is_sum:
                value = made.narrow(value)
            stages.append(replace(s, target=wide.get(s.target, s.target), value=value))
        nests.append(replace(nest, stages=stages))
    return replace(program, nests=nests) if wide else program


def _may_cancel(nest: Nest) -> bool:
    """Whether elements are added to products with sums of exponentials, as in a softmax's gradient: y g - y sum(y g) is a small
    difference where one y is nearly 1. A sum of f32 would lose as much there as that is."""
    sums = {s.target for s in nest.stages if s.monoid == "sum"}
    dear = any(v.op in DEAR for s in nest.stages for v in values_in(s.value))
    return dear and any(v.op == "add" and any(_has_factor(a, sums) for a in v.args) and v.dtype is f32
                        for s in nest.stages for v in values_in(s.value))


def _has_factor(v: Value, sums: Collection[Array]) -> bool:
    return (v.op == "load" and v.attr[0] in sums) if v.op != "mul" else any(_has_factor(a, sums) for a in v.args)


class _Unrounded:
    """The values of a stage inside of axes of these names, of `wide` numbers in the place of those that were rounded."""

    def __init__(self, program: StageProgram, nest: Nest, stage: Stage, wide: Mapping[Array, Array]) -> None:
        self.values, self.wide = program.values, wide
        self.fixed = {a.name for a in nest.axes[:stage.level]} | {str(x) for x in program.dims}
        self.known: dict[Value, Value] = {}
        self.both = d.bounds(d.product(a.size for a in stage.own))[1] >= LONG

    def __call__(self, v: Value) -> Value:
        """It stays f64 where it is made of numbers of a row alone."""
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
            if v.op == "div" and args[1].dtype is f64:
                x, number = self.narrow(args[0]), args[1]
                inverse = make("reciprocal", f64, number)
                return make("over", f32, x, self.narrow(number), make("inverted", bool_, inverse),
                            make("high", f32, inverse), make("low", f32, inverse))
            if v.op in ("add", "mul") and self.both:
                number, x = sorted(args, key=lambda a: a.dtype is f32)
                high = make("high", f32, number)
                if v.op == "add":
                    return make("add", f32, make("add", f32, x, high), make("rest", f32, number))
                low = make("low", f32, number)
                return make("fma", f32, x, high, make("mul", f32, x, low))
        if v.op == "cast" and v.dtype is f64 and args[0].dtype is f64:
            return args[0]
        rounded = [self.narrow(a) if old.dtype is f32 else a for a, old in zip(args, v.args, strict=True)]
        return v if rounded == list(v.args) else make(v.op, v.dtype, *rounded, attr=v.attr)

    def narrow(self, v: Value) -> Value:
        return self.values.make("cast", f32, v) if v.dtype is f64 else v
