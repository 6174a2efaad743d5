"""pair_moments: a sum and the sum of squared deviations from its mean, of the same elements, in one pass over memory.

A part of the elements gives its sums of differences from one of them, c, and of their squares. Sources: T. F. Chan, G. H. Golub,
R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979; "Algorithms for computing the
sample variance", 1983. With the mean m of all, part by part

    sum of x = d + n·c        sum of (x − m)² = q + (c − m)·(2·d + n·(c − m))        d = sum of x − c, q = sum of (x − c)²

which holds for any number c, if every use sees the same. As c is an element of its part, q is at most n + 1 times the deviation
of that part: f64 loses at most n + 1 roundings, however far the mean is from 0. Where c is not finite, it is 0.

In: an arranged program.  Out: the program, cut where nests have this form: few long rows, and columns; only the order of sums
changes. What only reads both sums is computed with them. Rows whose parts would run along several axes, or have no fitting length,
are left to split_reduction.py; f64 operands, for whose results n roundings are many, to it, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from tensor_graphs.codegen.default_schedule import changed, reloaded, value_in_parts, with_parts
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, Value, Values, across, flat, values_in
from tensor_graphs.codegen.passes.split_reduction import (
    BLOCKS,
    FEW,
    LEAST_ROWS,
    PARALLEL,
    few_and_long,
    rows_of_part,
)
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_, f64

PART = (256, 1 << 13)
"""elements of a part of a row, at least and at most: in shorter ones three numbers dominate; longer ones do not fit registers"""

MOST_PARTS = 1 << 13
"""most parts of a row, since one block combines them"""

MOST_ROWS = 1 << 11
"""most rows of a part of columns"""


@dataclass(frozen=True)
class _Pair:
    """A sum in nest `of`, and the sum of squared deviations from its mean in nest `around` (possibly the same nest)."""

    of: Nest
    total: Stage
    around: Nest
    squares: Stage
    count: int

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the results."""
        return (*self.of.axes, *self.total.axes)


def moments_in_parts(program: StageProgram) -> StageProgram:
    """Return the program with each such pair of sums cut into parts.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4096, 8]", "output y = var(x; axes=(0,))")
    >>> print(str(moments_in_parts(program)).replace("where((max(v56, (v56 * -1.0)) < inf), v56, 0.0)", "v56").replace(
    ...     "where((max(v26, (v26 * -1.0)) < inf), v26, 0.0)", "v26"))
    nest over _r4p in 0..64
        t2d[64*_j3 + _r4p] = sum over _r4q in 0..64 of (cast(x0[_j3 + 512*_r4p + 8*_r4q]) + (v56 * -1.0))    over _j3 in 0..8
            where v56 = cast(x0[_j3 + 512*_r4p])
        t2q[64*_j3 + _r4p] = sum over _r4q in 0..64 of (v62 * v62)    over _j3 in 0..8
            where v56 = cast(x0[_j3 + 512*_r4p])
            where v62 = (cast(x0[_j3 + 512*_r4p + 8*_r4q]) + (v56 * -1.0))
    nest over _j3 in 0..8
        t2a[0] = sum over _r4pt in 0..64 of (t2d[64*_j3 + _r4pt] + (v26 * 64.0))
            where v26 = cast(x0[_j3 + 512*_r4pt])
        t2b[0] = div(t2a[0], 4096.0)
        t2s[0] = sum over _r4pt in 0..64 of (t2q[64*_j3 + _r4pt] + (v36 * ((t2d[64*_j3 + _r4pt] * 2.0) + (v36 * 64.0))))
            where v26 = cast(x0[_j3 + 512*_r4pt])
            where v36 = (v26 + (t2b[0] * -1.0))
        y0[_j3] = cast((t2s[0] * reciprocal(4096.0)))
    """
    while True:                                                     # others are looked for among the nests that there are by then
        parts = next((cut for pair in _pairs(program) if (cut := _cut(program, pair)) is not None), None)
        if parts is None:
            return program
        program = parts


def _pairs(program: StageProgram) -> Iterator[_Pair]:
    targets = {s.target for s in program.stages}
    indices = {v.attr[0] for g in program.gathered.values() for v in values_in(g) if v.op == "load"}
    for place, nest in enumerate(program.nests if not program.doubles else ()):
        for total in nest.stages:
            if total.monoid != "sum" or total.value.dtype is not f64 or not (few_and_long(nest, total) or _is_columns(nest, total)):
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


def _is_columns(nest: Nest, s: Stage) -> bool:
    """Return whether a stage reduces long columns of elements as they are, of which one of each part is read again later."""
    value = s.value.args[0] if s.value.op == "cast" else s.value
    if s.target.level and d.bounds(d.product(a.size for a in nest.axes))[1] > FEW:      # what an iteration reads again is near
        return False
    return (_of_each(nest, s) and across(s) and len(s.reduce) == 1 and d.bounds(s.reduce[0].size)[0] >= 4 * LEAST_ROWS
            and all(d.is_static(a.size) for a in (*nest.axes, *s.axes, *s.reduce)) and value.op == "load" and not value.args)


def _of_each(nest: Nest, s: Stage) -> bool:
    """Return whether a stage is a reduction for each index of axes of its own."""
    return bool(s.axes and s.reduce) and s.level == len(nest.axes) and nest.blocks is None and nest.tile is None and not s.held


def _is_around(program: StageProgram, nest: Nest, total: Stage, around: Nest, s: Stage, count: int) -> bool:
    """Return whether a stage is the sum of (x − sum of x / count)² over the elements of `total`, in corresponding iterations."""
    if s.monoid != "sum" or s.value.op != "mul" or s.value.args[0] is not s.value.args[1]:
        return False
    if not (_of_each(around, s) if total.axes else few_and_long(around, s)):
        return False
    ours, theirs = (*nest.axes, *total.axes, *total.reduce), (*around.axes, *s.axes, *s.reduce)
    if [a.size for a in theirs] != [a.size for a in ours]:
        return False
    here: dict[str, Dim] = {a.name: b.symbol for a, b in zip(ours, theirs, strict=True)}
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


def _chunk(nest: Nest, total: Stage) -> int:
    """Return how many iterations of the first axis form one part (for rows a divisor of its length); 0 where none fits."""
    first, *rest = total.reduce
    size = int(d.evaluate(first.size, {}))
    if total.axes:
        columns = d.bounds(d.product(a.size for a in (*nest.axes, *total.axes)))[1]
        return rows_of_part(size, max(2, -(-PARALLEL // max(1, columns))), MOST_ROWS)
    turns = d.bounds(d.product(a.size for a in nest.axes))[1]
    low, high = PART
    if rest:
        return int(len(rest) == 1 and low <= d.bounds(rest[0].size)[1] <= high and size <= MOST_PARTS)
    fitting = [n for n in range(low, min(high, size // 2) + 1) if size % n == 0 and size // n <= MOST_PARTS]
    return max((n for n in fitting if turns * (size // n) >= BLOCKS), default=min(fitting, default=0))


class _Moments:
    """The numbers of the parts of a pair: sums of differences (`left`), of their squares, and what they differ from (`center`)."""

    def __init__(self, program: StageProgram, pair: _Pair, part: Axis, over: tuple[Axis, ...], value: Value) -> None:
        self.values, self.pair, self.part, self.over, self.value = program.values, pair, part, over, value
        self.of_part = -(-pair.count // int(d.evaluate(part.size, {})))
        self.turn = Axis(f"{part.name}t", part.size)
        self.name = pair.total.target.name
        whole = part.size * d.product(a.size for a in pair.axes)
        self.left, self.squares, self.centers = (Array(f"{self.name}{letter}", "scratch", 0, f64, whole) for letter in "dqm")

    def plus(self, x: Value, y: Value) -> Value:
        return self.values.make("add", f64, x, y)

    def times(self, x: Value, y: Value | float) -> Value:
        return self.values.make("mul", f64, x, y if isinstance(y, Value) else self.values.constant(y, f64))

    def at(self, which: Axis) -> Dim:
        return flat(self.pair.axes) * self.part.size + which.symbol

    def center(self, which: Axis) -> Value:
        """Return the first element of a part, or 0 if it is not finite."""
        make = self.values.make
        where: dict[str, Dim] = {**{a.name: 0 for a in self.over}, self.part.name: which.symbol}
        x = changed(self.values, self.value, partial(d.substitute, mapping=where), {a.name for a in self.over}, "")
        finite = make("less", bool_, make("max", f64, x, self.times(x, -1.0)), self.values.constant(math.inf, f64))
        return make("where", f64, finite, x, self.values.constant(0.0, f64))

    def parts(self) -> Nest:
        """Return the nest that reads the elements."""
        nest, total, values = self.pair.of, self.pair.total, self.values
        level, index = len(nest.axes) + 1, self.at(self.part)
        one = Array(f"{self.name}c", "scratch", 0, f64, 1, level)
        center = self.center(self.part) if total.axes else values.load(one, 0)
        off = self.plus(self.value, self.times(center, -1.0))
        sums = (Stage(self.left, index, total.axes, off, level, Reduce(self.over, "sum"), f"{total.note}, in parts"),
                Stage(self.squares, index, total.axes, self.times(off, off), level, Reduce(self.over, "sum"),
                      f"{self.pair.squares.note} around an element of each part"))
        if total.axes:
            return Nest((self.part, *nest.axes), sums)
        return Nest(with_parts(nest.axes, self.part, self.value), (
            Stage(one, 0, (), self.center(self.part), level, note="an element of each part"),
            Stage(self.centers, index, (), values.load(one, 0), level, note="kept"), *sums))

    def together(self) -> tuple[tuple[Stage, ...], Array, Array]:
        """Return the stages that combine the parts, and the two sums."""
        values, level, at = self.values, len(self.pair.axes), self.at(self.turn)
        of_all, middle, around = (Array(f"{self.name}{letter}", "scratch", 0, f64, 1, level) for letter in "abs")
        center = self.center(self.turn) if self.pair.total.axes else values.load(self.centers, at)
        last = self.pair.count - self.turn.symbol * self.of_part        # the last part may have fewer
        even = self.pair.count % self.of_part == 0
        size = values.constant(float(self.of_part), f64) if even else values.index(d.dim_min(self.of_part, last), f64)
        apart, left = self.plus(center, self.times(values.load(middle, 0), -1.0)), values.load(self.left, at)
        whole = self.plus(values.load(self.squares, at),
                          self.times(apart, self.plus(self.times(left, 2.0), self.times(apart, size))))
        mean = values.make("div", f64, values.load(of_all, 0), values.constant(float(self.pair.count), f64))
        over, total = Reduce((self.turn,), "sum"), self.plus(left, self.times(center, size))
        return (Stage(of_all, 0, (), total, level, over, f"{self.pair.total.note} of the parts"),
                Stage(middle, 0, (), mean, level, note="the mean"),
                Stage(around, 0, (), whole, level, over, f"{self.pair.squares.note} of the parts")), of_all, around


def _cut(program: StageProgram, pair: _Pair) -> StageProgram | None:
    """Return the program with the parts of a pair of sums and their combination in two new nests; None where no parts fit."""
    first, *rest = pair.total.reduce
    chunk = _chunk(pair.of, pair.total)
    if chunk == 0:
        return None
    if rest:
        moments = _Moments(program, pair, first, tuple(rest), pair.total.value)
    else:
        cut = value_in_parts(program, pair.total.value, first, chunk)
        if cut is None:
            return None
        moments = _Moments(program, pair, cut[0], (cut[1],), cut[2])
    combined, *numbers = moments.together()
    sums = dict(zip((pair.total.target, pair.squares.target), numbers, strict=True))
    stages, left_over = list(combined), dict[Nest, tuple[Stage, ...]]()
    for nest in program.nests:
        others = tuple(s for s in nest.stages if s is not pair.total and s is not pair.squares)
        reading = [s for s in others if any(v.op == "load" and v.attr[0] in sums for root in s.roots() for v in values_in(root))]
        if len(others) < len(nest.stages) or reading:
            inside = [_with_numbers(program, pair, nest, s, sums, others) for s in others]
            if all(s is not None for s in inside):
                stages += [s for s in inside if s is not None]
                left_over[nest] = ()
            else:
                left_over[nest] = others
    return _placed(program, pair, moments, stages, sums, left_over)


def _with_numbers(program: StageProgram, pair: _Pair, nest: Nest, s: Stage, sums: Mapping[Array, Array],
                  others: tuple[Stage, ...]) -> Stage | None:
    """Return a stage as one of those that combine the parts; None where it does more than use the sums at its own place."""
    own = (*nest.axes[:s.level], *s.axes)
    mine = {o.target for o in others if o.target.level == len(pair.axes)} if nest is pair.of is pair.around else set[Array]()
    if s.monoid is not None or [a.size for a in own] != [a.size for a in pair.axes]:
        return None
    if not s.value.symbols.isdisjoint(program.gathered):
        return None
    here: dict[str, Dim] = {a.name: b.symbol for a, b in zip(own, pair.axes, strict=True)}
    places = {pair.total.target: pair.total.index, pair.squares.target: _there(pair)}
    for v in values_in(s.value):
        if v.op == "load" and v.attr[0] in sums:
            if d.substitute(v.attr[1], here) != places[v.attr[0]]:
                return None
        elif v.op == "load" and v.attr[0].role != "operand" and v.attr[0] not in mine:
            return None
    if s.target.level and s.target not in mine:
        return None
    value = changed(program.values, s.value, partial(d.substitute, mapping=here), set(), "")
    value = reloaded(program.values, value, lambda v, _: program.values.load(sums[v.attr[0]], 0) if v.attr[0] in sums else None)
    return replace(s, value=value, index=d.substitute(s.index, here), axes=(), level=len(pair.axes))


def _there(pair: _Pair) -> Dim:
    """Return the place of the sum of squares, in the axes of the pair."""
    theirs = (*pair.around.axes, *pair.squares.axes)
    return d.substitute(pair.squares.index, {a.name: b.symbol for a, b in zip(theirs, pair.axes, strict=True)})


def _placed(program: StageProgram, pair: _Pair, moments: _Moments, stages: list[Stage], sums: Mapping[Array, Array],
            left_over: Mapping[Nest, tuple[Stage, ...]]) -> StageProgram:
    """Return the program with both nests, in which what is left over reads the sums from memory."""
    values, level, place = program.values, len(pair.axes), flat(pair.axes)
    remaining = [s for nest in program.nests for s in left_over.get(nest, nest.stages)]
    read = {v.attr[0] for s in remaining for root in s.roots() for v in values_in(root) if v.op == "load"}
    stored = dict[Array, Array]()
    for target, index in ((pair.total.target, pair.total.index), (pair.squares.target, _there(pair))):
        if target.role == "output" or target in read:
            array = Array(target.name, "scratch", 0, target.dtype, d.product(a.size for a in pair.axes)) if target.level else target
            stages.append(Stage(array, place if target.level else index, (), values.load(sums[target], 0), level, note="kept"))
            stored |= {target: array} if target.level else {}
    nests = [replace(nest, body=tuple(_reading(values, nest, s, stored) for s in left_over[nest])) if nest in left_over else nest
             for nest in program.nests]
    where = program.nests.index(pair.of)
    return program.made_of((*nests[:where], moments.parts(), Nest(pair.axes, tuple(stages)), *nests[where:]))


def _reading(values: Values, nest: Nest, s: Stage, stored: Mapping[Array, Array]) -> Stage:
    """Return a stage that reads the combined sums from where they are stored now."""
    def load(v: Value, _: tuple[Value, ...]) -> Value | None:
        array, index, _ = v.attr
        return values.load(stored[array], flat(nest.axes) * array.size + index) if array in stored else None

    return replace(s, value=reloaded(values, s.value, load))
