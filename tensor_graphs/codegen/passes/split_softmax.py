"""split_softmax: the maximum m of long columns, and the sum of exp(x − m) over the same, in one pass over memory.

A part of the rows gives its maximum, and the sum around it; both are combined as the parts of an online softmax are (M. Milakov,
N. Gimelshein, "Online normalizer calculation for softmax", 2018):

    m = max over parts of m_p        sum of exp(x − m) = sum over parts of s_p · exp(m_p − m)

A part whose maximum is not finite sums exp(x), which is 0, infinite or NaN; it counts as it is.

In: an arranged program.  Out: the program with parts where split_reduction.py would cut both; only the order of sums changes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensor_graphs.codegen.default_schedule import reloaded, value_in_parts
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Reduce, Stage, StageProgram, Value, Values
from tensor_graphs.codegen.passes.softmax_exp import subtracted
from tensor_graphs.codegen.passes.split_reduction import LEAST_ROWS, column_parts
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import bool_


def softmax_in_parts(program: StageProgram) -> StageProgram:
    """Return the program with the maximum and the sum of each such pair cut into parts together.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4096, 8]", "output y = logsumexp(x; axis=0)")
    >>> print(str(softmax_in_parts(program)).split(" + (where")[0])
    nest over _r4p in 0..64
        t2m[_j3] = max over _r4q in 0..64 of x0[_j3 + 512*_r4p + 8*_r4q]    over _j3 in 0..8
        t2p[64*_j3 + _r4p] = t2m[_j3]    over _j3 in 0..8
        t1p[64*_j3 + _r4p] = sum over _r4q in 0..64 of exp((x0[_j3 + 512*_r4p + 8*_r4q]
    """
    pair = next(((a, b) for k, a in enumerate(program.nests) for b in program.nests[k + 1:] if _are_pair(program, a, b)), None)
    if pair is None:
        return program
    first, second = pair
    cut = _cut(program, first, second)
    return program if cut is None else softmax_in_parts(
        program.made_of(new for nest in program.nests if nest is not second for new in (cut if nest is first else [nest])))


def _are_pair(program: StageProgram, first: Nest, second: Nest) -> bool:
    """Return whether nests are the maximum of long columns, and the sum of exponentials of what is left of the same elements."""
    if len(first.stages) != 1 or len(second.stages) != 1 or second.stages[0].monoid != "sum":
        return False
    (maximum,), (s,), parts = first.stages, second.stages, column_parts(program)
    long = all(x.target.name in parts and parts[x.target.name].size and len(x.axes) == len(x.reduce) == 1 for x in (maximum, s))
    alike = long and not first.axes and not second.axes and not program.gathered and maximum.target.role == "scratch"
    return alike and maximum.target.dtype is maximum.value.dtype and subtracted(program, s, maximum) is not None


def _cut(program: StageProgram, first: Nest, second: Nest) -> list[Nest] | None:
    """Return the nest of the parts and the one that combines them; None where the columns cannot be cut."""
    (maximum,), (s,), values = first.stages, second.stages, program.values
    (column,), (row,) = maximum.axes, maximum.reduce
    rows = max(LEAST_ROWS, column_parts(program)[s.target.name].size // 2)      # of two blocks one loads while the other computes
    pieces = value_in_parts(program, maximum.value, row, rows)
    if pieces is None:
        return None
    part, inner, x = pieces
    size, total = column.size * part.size, Axis(f"{row.name}t", part.size)
    near = Array(f"{maximum.target.name}m", "scratch", 0, x.dtype, column.size, 1)
    tops, sums = (Array(f"{y.target.name}p", "scratch", 0, y.value.dtype, size) for y in (maximum, s))
    most, whole = (Array(f"{y.target.name}a", "scratch", 0, y.value.dtype, 1, 1) for y in (maximum, s))
    at, there = column.symbol * part.size + part.symbol, column.symbol * part.size + total.symbol
    nearest = values.load(near, column.symbol)
    around = _exp(values, x, _finite(values, nearest, values.constant(0.0, x.dtype)))
    away = subtracted(program, s, maximum)
    assert away is not None
    away = reloaded(values, away, lambda v, _: values.load(most, 0) if v.attr[0] == maximum.target else None)
    parts = Nest((part,), (
        Stage(near, column.symbol, (column,), x, 1, Reduce((inner,), "max"), f"{maximum.note}, in parts"),
        Stage(tops, at, (column,), nearest, 1, note="kept"),
        Stage(sums, at, (column,), around, 1, Reduce((inner,), "sum"), f"{s.note}, in parts")))
    top = values.load(tops, there)
    by = values.make("mul", s.value.dtype, values.load(sums, there), _exp(values, _finite(values, top, away), away))
    place = d.substitute(s.index, {s.axes[0].name: column.symbol})
    return [parts, Nest((column,), (
        Stage(most, 0, (), top, 1, Reduce((total,), "max"), f"{maximum.note} of the parts"),
        Stage(maximum.target, maximum.index, (), values.load(most, 0), 1, note="kept"),
        Stage(whole, 0, (), by, 1, Reduce((total,), "sum"), f"{s.note} of the parts"),
        replace(s, index=place, axes=(), value=values.load(whole, 0), level=1, does=None, note="kept")))]


def _exp(values: Values, x: Value, m: Value) -> Value:
    """Return exp(x − m)."""
    away = values.make("mul", m.dtype, m, values.constant(-1.0, m.dtype))
    return values.make("exp", x.dtype, values.make("add", x.dtype, x, away))


def _finite(values: Values, m: Value, other: Value) -> Value:
    """Return a value, or another where it is not finite."""
    size = values.make("max", m.dtype, m, values.make("mul", m.dtype, m, values.constant(-1.0, m.dtype)))
    finite = values.make("less", bool_, size, values.constant(math.inf, m.dtype))
    return values.make("where", m.dtype, finite, m, other)
