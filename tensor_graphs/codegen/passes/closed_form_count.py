"""closed_form_count: the number of indices along an axis that satisfy index comparisons, as a closed form rather than a sum.

Where the count is always at least 1, the test "count ≠ 0" is true, and selections by it are removed. In: a program as lowered. Out:
the program; its results are the same in every bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensor_graphs.codegen.loop_ir import Array, Stage, StageProgram, Value, Values, rewritten, values_in
from tensor_graphs.codegen.lower import least_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import bool_


def counted(program: StageProgram) -> StageProgram:
    """Return the program with closed forms for sums of comparisons, and without selections on a count that is never 0.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("dim s 1..64", "input x i32[9]",
    ...     "seen = iota(; shape=(9, s), axis=1, dtype=i32) < iota(; shape=(9, s), axis=0, dtype=i32)",
    ...     "output y = x + sum(cast(seen; dtype=i32); axes=(1,))")
    >>> print(program)
    nest over _i0 in 0..9
        t1[0] = sum over _r1 in 0..s of cast((i32(_r1) < i32(_i0)))
        y0[_i0] = (x0[_i0] + t1[0])
    >>> print(counted(program))
    nest over _i0 in 0..9
        t1[0] = i32(min(_i0, s))
        y0[_i0] = (x0[_i0] + t1[0])
    derived: a sum of comparisons is a number of indices: t1 is min(_i0, s)
    """
    counts = {s: count for s in program.stages if (count := count_of(s)) is not None
              and s.value.dtype.min <= d.bounds(count)[0] <= d.bounds(count)[1] <= s.value.dtype.max}
    some = {s.target for s, count in counts.items() if d.bounds(count)[0] >= 1 and s.target.role == "scratch"}
    if not counts:
        return program
    values = program.values

    stages = {s: replace(s, value=values.index(counts[s], s.value.dtype), does=None, note="how many compare") if s in counts else s
              for s in program.stages}
    stages = {s: replace(new, value=_decided(values, new.value, some)) for s, new in stages.items()} if some else stages
    read = {v.attr[0] for s in stages.values() for v in values_in(*s.roots()) if v.op == "load"}
    lines = [f"a sum of comparisons is a number of indices: {s.target} is {d.format_dim(count)}" for s, count in counts.items()]
    return program.made_of((nest.mapped(lambda s: [] if s.target in some - read else [stages[s]]) for nest in program.nests),
                           derivation=(*program.derivation, *lines))


def count_of(s: Stage) -> Dim | None:
    """Return the closed form of a stage that counts the indices for which comparisons hold; None for another stage."""
    if s.monoid != "sum" or s.scan is not None or len(s.reduce) != 1 or s.value.op != "cast" or s.value.args[0].dtype is not bool_:
        return None
    (axis,) = s.reduce
    low: Dim = 0
    high: Dim = axis.size
    for condition in all_of(s.value.args[0]):
        least = least_of(condition, True)                           # it holds where this is at least 0
        step = None if least is None else d.coefficient(least, axis.name)
        if least is None or step not in (1, -1):
            return None
        rest = least - step * axis.symbol
        if step > 0:
            low = d.dim_max(low, -rest)
        else:
            high = d.dim_min(high, rest + 1)
    return d.dim_max(0, high - low)


def all_of(condition: Value) -> Iterator[Value]:
    """Yield the conditions of a conjunction; any other condition is yielded itself."""
    if condition.op == "and":
        for part in condition.args:
            yield from all_of(part)
    else:
        yield condition


def _decided(values: Values, value: Value, some: set[Array]) -> Value:
    """Return a value simplified by the fact that counts in the arrays `some` are not 0."""

    def one(v: Value, args: tuple[Value, ...]) -> Value:
        constants = [a.attr if a.op == "constant" else None for a in args]
        if v.op == "not_equal" and args[0].op == "load" and args[0].attr[0] in some and constants[1] == 0:
            return values.constant(True, bool_)
        if v.op == "where" and constants[0] is True:
            return args[1]
        if v.op == "and" and v.dtype is bool_ and True in constants:
            return args[1 - constants.index(True)]
        return values.remade(v, args)

    return rewritten(value, one)
