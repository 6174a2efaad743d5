"""softmax_exp: detect sums of exp(x − m), m the maximum of their row, for which cheaper exponentials are accurate enough.

The sum is at least 1, since the maximum contributes 1. So x · log2 e may be rounded once, and subnormal terms may be dropped: the
errors of the terms, each |x| exp(x) roundings, add up to at most log n roundings of the sum of n terms (the mean of −x under exp(x)
/ sum is below log n). A GPU then needs two instructions rather than eight. Where the maximum is infinite or NaN, so is the sum (or
all of it is 0), however the terms are rounded.
"""

from __future__ import annotations

import math
from functools import partial

from tensor_graphs.codegen.default_schedule import changed
from tensor_graphs.codegen.loop_ir import Nest, Stage, StageProgram, Value
from tensor_graphs.language import dims as d


def is_shifted(program: StageProgram, nest: Nest, s: Stage) -> bool:
    """Return whether a stage sums exp(x - m), where m is the maximum of x over the same row, computed earlier in the nest."""
    if s.monoid != "sum" or s.scan is not None or s.held or s.value.op != "exp" or len(s.reduce) != 1:
        return False
    (by,), (over,) = s.value.args, s.reduce
    if by.op != "add":
        return False
    before = {o.target.name: o for o in nest.stages[:nest.stages.index(s)] if o.monoid == "max" and o.level == s.level
              and o.scan is None and not o.held and not o.axes and len(o.reduce) == 1}
    for x, away in (by.args, by.args[::-1]):
        most = _subtracted(away)
        maximum = before.get(most.attr[0].name) if most is not None and most.op == "load" else None
        if maximum is None or maximum.reduce[0].size != over.size:
            continue
        (axis,) = maximum.reduce
        along = partial(d.substitute, mapping={axis.name: over.symbol})
        same = changed(program.values, maximum.value, along, {axis.name}, over.name)
        if same is x and over.name in x.symbols:
            return True
    return False


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
