"""buffer_rows: store a row of sums in scratch before applying a costly function to its elements.

A nest that ends with `number = sum over …; out = tanh(… number …)` calls tanh for one element at a time. With a row of the sums in
scratch the second stage is a loop over memory, and is vectorised. Steps of a scan have such nests; outside of scans other kernels
compute these products (spec_to_loops.py, MOST_TURNS).

In: an arranged program.  Out: the program, with such rows where a nest has that form.
"""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.codegen.default_schedule import reloaded
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Value, Values, values_in
from tensor_graphs.codegen.lower import DEAR
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim

LEAST, MOST = 8, 4096
"""elements of a stored row, at least and at most: a shorter one fills no vector, a longer one leaves the cache before it is read"""


def with_rows(program: StageProgram) -> StageProgram:
    """Return the program in which each such nest stores its sums as rows along its last axis.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("input x f32[4, 9]", "input w f32[16, 9]", "output y = tanh(linear(x, w))")
    >>> print(program)
    nest over _i0 in 0..4, _i1 in 0..16
        t1[0] = sum over _r2 in 0..9 of (x0[9*_i0 + _r2] * x1[9*_i1 + _r2])
        y0[16*_i0 + _i1] = tanh(t1[0])
    >>> print(with_rows(program))
    nest over _i0 in 0..4
        t1[_i1] = sum over _r2 in 0..9 of (x0[9*_i0 + _r2] * x1[9*_i1 + _r2])    over _i1 in 0..16
        y0[16*_i0 + _i1] = tanh(t1[_i1])    over _i1 in 0..16
    """
    return program.made_of(_with_rows(program, nest) for nest in program.nests)


def _with_rows(program: StageProgram, nest: Nest) -> Nest:
    if not nest.axes or nest.tile is not None:
        return nest
    level, last = len(nest.axes), nest.axes[-1]
    plain = nest.blocks is None and all(s.level == level and not s.axes and s.scan is None and not s.held for s in nest.stages)
    low, high = d.bounds(last.size)
    sums = [s.target for s in nest.stages if s.monoid is not None]
    stored = [s for s in nest.stages if s.monoid is None]
    if not plain or low < LEAST or high > MOST or not sums or any(a.role != "scratch" or a.level != level for a in sums) \
            or any(s.target.level != 0 for s in stored) or any(last.name in v.symbols for v in program.gathered.values()):
        return nest
    if not any(v.op in DEAR for s in stored for v in values_in(s.value)):
        return nest
    rows = {a: replace(a, size=last.size, level=level - 1) for a in sums}
    return nest.mapped(lambda s: [_along(s, last, rows, program.values)], axes=nest.axes[:-1])


def _along(s: Stage, last: Axis, rows: dict[Array, Array], values: Values) -> Stage:
    target = rows.get(s.target)
    index: Dim = s.index if target is None else last.symbol
    return replace(s, target=target or s.target, index=index, axes=(last,), level=s.level - 1,
                   value=_reading(s.value, last, rows, values))


def _reading(value: Value, last: Axis, rows: dict[Array, Array], values: Values) -> Value:
    """Return a value that reads from rows what it read from single numbers."""

    def load(v: Value, args: tuple[Value, ...]) -> Value | None:
        array, _, inside = v.attr
        if array not in rows:
            return None
        return values.make("load", v.dtype, *args, attr=(rows[array], last.symbol, inside - {last.name}))

    return reloaded(values, value, load)
