"""split_variance: compute sums of squared deviations from the mean, for few long rows, in parts that are read from memory once.

Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
The formula (see the example of `deviations_in_parts`) is exact for any numbers m, the means of parts, and b, the mean: the sums of
differences from m have the error of rounding it, provided every use sees identical values. So m is stored, and means are quotients:
a compiler may omit the rounding of a product. Nothing is subtracted from a sum of squares.

In: an arranged program.  Out: the program, cut where nests have this form; only the order of sums changes. Rows whose parts
would run along several axes, or have no fitting length, are left to split_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tensor_graphs.codegen.default_schedule import changed, reloaded, value_in_parts
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, Value, Values, flat, values_in
from tensor_graphs.codegen.passes.split_rows import BLOCKS, few_and_long, with_parts
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, f64

PART = (256, 1 << 13)
"""elements of a part, at least and at most: in shorter ones the four numbers per part dominate; longer ones do not fit registers"""

MOST_PARTS = 1 << 13
"""most parts of a row, since one block combines them"""


@dataclass(frozen=True)
class _Pair:
    """A sum in nest `of`, and the sum of squared deviations from its mean in nest `around` (possibly the same nest)."""

    of: Nest
    total: Stage
    around: Nest
    squares: Stage
    count: int


def deviations_in_parts(program: StageProgram) -> StageProgram:
    """Return the program with each such pair of sums cut into parts.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[3, 40000]", "output y = var(x; axes=(1,))")
    >>> print(program)
    nest over _i0 in 0..3
        t2[0] = sum over _r2 in 0..40000 of cast(x0[40000*_i0 + _r2])
        t1[0] = sum over _r1 in 0..40000 of (v18 * v18)
            where v18 = (cast(x0[40000*_i0 + _r1]) + ((t2[0] * reciprocal(40000.0)) * -1.0))
        y0[_i0] = cast((t1[0] * reciprocal(40000.0)))
    >>> print(deviations_in_parts(program))
    nest over _i0 in 0..3, _r2p in 0..125
        t2o[0] = sum over _r2q in 0..320 of cast(x0[40000*_i0 + 320*_r2p + _r2q])
        t2c[0] = div(t2o[0], 320.0)
        t2p[125*_i0 + _r2p] = t2o[0]
        t2m[125*_i0 + _r2p] = t2c[0]
        t2d[125*_i0 + _r2p] = sum over _r2q in 0..320 of (cast(x0[40000*_i0 + 320*_r2p + _r2q]) + (t2c[0] * -1.0))
        t2q[125*_i0 + _r2p] = sum over _r2q in 0..320 of (v27 * v27)
            where v27 = (cast(x0[40000*_i0 + 320*_r2p + _r2q]) + (t2c[0] * -1.0))
    nest over _i0 in 0..3
        t2a[0] = sum over _r2t in 0..125 of t2p[125*_i0 + _r2t]
        t2[0] = t2a[0]
        t2b[0] = div(t2a[0], 40000.0)
        t1[0] = sum over _r2t in 0..125 of (t2q[125*_i0 + _r2t] + (v35 * ((t2d[125*_i0 + _r2t] * 2.0) + (v35 * 320.0))))
            where v35 = (t2m[125*_i0 + _r2t] + (t2b[0] * -1.0))
        y0[_i0] = cast((t1[0] * reciprocal(40000.0)))
    """
    while True:                                                     # others are looked for among the nests that there are by then
        parts = next((cut for pair in _pairs(program) if (cut := _cut(program, pair)) is not None), None)
        if parts is None:
            return program
        program = parts


def _pairs(program: StageProgram) -> Iterator[_Pair]:
    targets = {s.target for s in program.stages}
    indices = {v.attr[0] for g in program.gathered.values() for v in values_in(g) if v.op == "load"}
    for place, nest in enumerate(program.nests):
        for total in nest.stages:
            if total.monoid != "sum" or not few_and_long(nest, total) or not total.value.dtype.is_float:
                continue
            if total.target.role != "scratch" or total.target.dtype is not total.value.dtype:   # squares are around what is stored
                continue
            if not total.value.symbols.isdisjoint(program.gathered) or any(
                    v.op == "load" and v.attr[0] in targets for v in values_in(total.value)):
                continue
            count = int(d.evaluate(d.product(a.size for a in total.reduce), {}))
            for around in program.nests[place:]:
                yield from (_Pair(nest, total, around, s, count) for s in around.stages
                            if s is not total and indices.isdisjoint((total.target, s.target))
                            and (around is nest or s.target.role == "scratch")      # outputs may lie where nests between read
                            and _is_around(program, nest, total, around, s, count))


def _is_around(program: StageProgram, nest: Nest, total: Stage, around: Nest, s: Stage, count: int) -> bool:
    """Return whether a stage is the sum of (x − sum of x / count)² over the elements of `total`, in corresponding iterations."""
    if s.monoid != "sum" or not few_and_long(around, s) or s.value.op != "mul" or s.value.args[0] is not s.value.args[1]:
        return False
    if [a.size for a in (*around.axes, *s.reduce)] != [a.size for a in (*nest.axes, *total.reduce)]:
        return False
    here: dict[str, Dim] = {a.name: b.symbol for a, b in zip((*nest.axes, *total.reduce), (*around.axes, *s.reduce), strict=True)}
    difference = s.value.args[0]
    if difference.op != "add":
        return False
    where = d.substitute(total.index, here)
    same = changed(program.values, total.value, partial(d.substitute, mapping=here), set(), "")     # it is in no nest's own scratch
    return any(x is same and _is_minus_mean(m, total.target, where, count)
               for x, m in (difference.args, difference.args[::-1]))


def _is_minus_mean(v: Value, total: Array, where: Dim, count: int) -> bool:
    """Return whether a value is −1 · (total · (1 / count))."""
    return v.op == "mul" and any(
        minus.op == "constant" and minus.attr == -1.0 and mean.op == "mul" and any(
            a.op == "load" and a.attr[0] == total and a.attr[1] == where and not a.args
            and b.op == "reciprocal" and b.args[0].op == "constant" and b.args[0].attr == count
            for a, b in (mean.args, mean.args[::-1]))
        for minus, mean in (v.args, v.args[::-1]))


def _chunk(nest: Nest, reduce: tuple[Axis, ...]) -> int:
    """Return how many iterations of the first axis form one part (a divisor of its length); 0 where none fits."""
    first, *rest = reduce
    size, turns = int(d.evaluate(first.size, {})), d.bounds(d.product(a.size for a in nest.axes))[1]
    low, high = PART
    if rest:
        return int(len(rest) == 1 and low <= d.bounds(rest[0].size)[1] <= high and size <= MOST_PARTS)
    fitting = [n for n in range(low, min(high, size // 2) + 1) if size % n == 0 and size // n <= MOST_PARTS]
    return max((n for n in fitting if turns * (size // n) >= BLOCKS), default=min(fitting, default=0))


def _cut(program: StageProgram, pair: _Pair) -> StageProgram | None:
    """Return the program with the parts of a pair of sums and their combination in two new nests; None where no parts fit."""
    nest, total, values = pair.of, pair.total, program.values
    first, *rest = total.reduce
    chunk = _chunk(nest, total.reduce)
    if chunk == 0:
        return None
    if rest:
        part, over, value = first, tuple(rest), total.value
    else:
        cut = value_in_parts(program, total.value, first, chunk)
        if cut is None:
            return None
        part, inner, value = cut
        over = (inner,)
    level, dtype, name = len(nest.axes), total.value.dtype, total.target.name
    part_size = pair.count // int(d.evaluate(part.size, {}))             # elements of a part

    def plus(x: Value, y: Value) -> Value:
        return values.make("add", x.dtype, x, y)

    def times(x: Value, y: Value | float) -> Value:
        return values.make("mul", x.dtype, x, y if isinstance(y, Value) else values.constant(y, x.dtype))

    def cast(x: Value, to: DType) -> Value:
        return x if x.dtype is to else values.make("cast", to, x)

    def mean(of: Value, count: int) -> Value:
        return cast(values.make("div", f64, of, values.constant(float(count), f64)), dtype)       # exact where elements are equal

    def number(letter: str, kind: DType, at: int) -> Array:
        return Array(f"{name}{letter}", "scratch", 0, kind, 1, at)

    index, turns = flat(nest.axes), d.product(a.size for a in nest.axes)
    size, offset = part.size * turns, index * part.size
    sums, means, left, squares = (Array(f"{name}{letter}", "scratch", 0, kind, size)
                                  for letter, kind in (("p", f64), ("m", dtype), ("d", dtype), ("q", dtype)))
    of_part, of_all = number("o", f64, level + 1), number("a", f64, level)
    center, middle = number("c", dtype, level + 1), number("b", dtype, level)
    here = offset + part.symbol
    off = plus(value, times(values.load(center, 0), -1.0))
    parts = Nest(with_parts(nest.axes, part, value), (
        Stage(of_part, 0, (), cast(value, f64), level + 1, Reduce(over, "sum"), f"{total.note}, in parts"),
        Stage(center, 0, (), mean(values.load(of_part, 0), part_size), level + 1, note="the mean of each part"),
        Stage(sums, here, (), values.load(of_part, 0), level + 1, note="kept"),
        Stage(means, here, (), values.load(center, 0), level + 1, note="kept"),
        Stage(left, here, (), off, level + 1, Reduce(over, "sum"), "what rounding the mean of each part leaves"),
        Stage(squares, here, (), times(off, off), level + 1, Reduce(over, "sum"),
              f"{pair.squares.note} around the mean of each part")))

    turn = Axis(f"{first.name}t", part.size)
    at = offset + turn.symbol
    apart_by = plus(values.load(means, at), times(values.load(middle, 0), -1.0))
    whole = plus(values.load(squares, at),
                 times(apart_by, plus(times(values.load(left, at), 2.0), times(apart_by, float(part_size)))))
    back: dict[str, Dim] = {a.name: b.symbol for a, b in zip(pair.around.axes, nest.axes, strict=True)}
    others = [s for s in nest.stages if s is not total and s is not pair.squares]
    apart = any(s.axes for s in others)                             # they are to be spread over more than these turns
    stored = {s.target: Array(s.target.name, "scratch", 0, dtype, turns) for s in (total, pair.squares)
              if s.target.level and (apart or pair.around is not nest)}

    def into(s: Stage, value: Value, reduce: tuple[Axis, ...], note: str) -> Stage:
        array = stored.get(s.target)
        return Stage(array or s.target, index if array else d.substitute(s.index, back), (), value, level,
                     Reduce(reduce, "sum") if reduce else None, note)

    together = Nest(nest.axes, (
        Stage(of_all, 0, (), values.load(sums, at), level, Reduce((turn,), "sum"), f"{total.note} of the parts"),
        into(total, cast(values.load(of_all, 0), dtype), (), "kept"),
        Stage(middle, 0, (), mean(values.load(of_all, 0), pair.count), level, note="the mean"),
        into(pair.squares, whole, (turn,), f"{pair.squares.note} of the parts"), *(() if apart else others)))
    left_over = {nest: [_reading(values, s, stored, index) for s in others] if apart else []}
    if pair.around is not nest:
        there = flat(pair.around.axes)
        left_over[pair.around] = [_reading(values, s, stored, there) for s in pair.around.stages if s is not pair.squares]
    nests = [replace(n, body=tuple(left_over[n])) if n in left_over else n for n in program.nests]
    place = program.nests.index(nest)
    return program.made_of((*nests[:place], parts, together, *nests[place:]))


def _reading(values: Values, s: Stage, stored: dict[Array, Array], at: Dim) -> Stage:
    """Return a stage that reads the combined sums from where they are stored now."""

    def load(v: Value, _: tuple[Value, ...]) -> Value | None:
        return values.load(stored[v.attr[0]], at) if v.attr[0] in stored else None

    return replace(s, value=reloaded(values, s.value, load))
