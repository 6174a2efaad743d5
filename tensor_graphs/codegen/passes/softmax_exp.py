"""softmax_exp: detect sums of exp(x − m), m the maximum of their row, for which cheaper exponentials are accurate enough.

The sum is at least 1, since the maximum contributes 1. So x · log2 e may be rounded once, and subnormal terms may be dropped: the
errors of the terms, each |x| exp(x) roundings, add up to at most log n roundings of the sum of n terms (the mean of −x under exp(x)
/ sum is below log n). A GPU then needs two instructions rather than eight. Where the maximum is infinite or NaN, so is the sum (or
all of it is 0), however the terms are rounded.
"""

from __future__ import annotations

import math

from tensor_graphs.codegen.default_schedule import on_axes
from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, Value
from tensor_graphs.language import dims as d


def is_shifted(program: StageProgram, nest: Nest, s: Stage) -> bool:
    """Return whether a stage sums exp(x - m), where m is the maximum of x over the same row, computed earlier in the nest."""
    if s.monoid != "sum" or s.scan is not None or s.held or len(s.reduce) != 1:
        return False
    return any(subtracted(program, s, o) for o in nest.stages[:nest.stages.index(s)] if o.level == s.level and not o.axes
               and o.scan is None and not o.held and len(o.reduce) == 1)


def subtracted(program: StageProgram, s: Stage, maximum: Stage) -> Value | None:
    """Return m, as it is subtracted, if a stage's value is exp(x − m) with the maximum m of x by another stage, over axes of the
    same sizes; None otherwise."""
    ours, own = (*maximum.axes, *maximum.reduce), (*s.axes, *s.reduce)
    if maximum.monoid != "max" or [a.size for a in ours] != [a.size for a in own]:
        return None
    if s.value.op != "exp" or s.value.args[0].op != "add":
        return None
    by, place = s.value.args[0].args, d.substitute(maximum.index, {a.name: b.symbol for a, b in zip(ours, own, strict=True)})
    same = on_axes(program.values, maximum.value, ours, own)
    if not any(a.name in same.symbols for a in s.reduce):
        return None
    return next((away.args[0] for x, away in (by, by[::-1]) if x is same and (m := _subtracted(away)) is not None
                 and m.op == "load" and m.attr[:2] == (maximum.target, place)), None)


def _subtracted(away: Value) -> Value | None:
    """Return m if `away` is −m, or −m with 0 in place of a non-finite m; None otherwise."""
    if away.op != "mul" or not away.args[1].is_constant(-1.0):
        return None
    m = away.args[0]
    if m.op != "where":
        return m
    finite, m, other = m.args
    if finite.op != "less" or not other.is_constant(0.0) or not finite.args[1].is_constant(math.inf) or finite.args[0].op != "max":
        return None
    size = finite.args[0].args
    return m if size[0] is m and size[1].op == "mul" and size[1].args[0] is m and size[1].args[1].is_constant(-1.0) else None
