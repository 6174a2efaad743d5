"""skinny_product: products of few rows as loops over columns, each of which reads one row of a weight, as fast as memory hands it
over.

    nest over i in 0..n                     # what the products multiply, made first
        …
    nest over j in 0..2048, i in 0..n       # the rows that meet a row of a weight are innermost: it comes from memory once
        t0[] = sum over r in 0..640 of t[640·i + r] · gate[640·j + r]
        t1[] = sum over r in 0..640 of t[640·i + r] · up[640·j + r]
        y[2048·i + j] = t0[] · t1[]

In: a program lowered with `few_rows`, arranged.  Out: the same, changed in place. Nests of products are the last ones and run
beside each other, so that such a program waits for its threads once.
"""

from __future__ import annotations

from dataclasses import replace

from tensor_graphs.codegen.arrange import LANES
from tensor_graphs.codegen.stages import Stage, StageProgram, Value, values_in
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d

FEWEST = 128
"""elements of a sum that is taken by several vectors"""


def streamed(program: StageProgram) -> StageProgram:
    """With products as streams over their weights. Raises NotLowered where some are none, or are not the last that is done."""
    streams = [nest for nest in program.nests if any(s.product for s in nest.stages)]
    if not streams or streams != program.nests[-len(streams):]:
        raise NotLowered("more is made of its products, taken together")
    targets = {s.target for nest in streams for s in nest.stages}
    for nest in streams:
        weights = {s: weight_of(s) for s in nest.stages if s.product}
        first = next(iter(weights.values()))
        if first is None or None in weights.values() or any(s.level != len(nest.axes) for s in nest.stages):
            raise NotLowered("a product whose factors do not lie along memory")
        own = {s.target for s in nest.stages}
        if any(v.op == "load" and v.attr[0] in targets - own for s in nest.stages for v in values_in(*s.roots())):
            raise NotLowered("a product of what another product gives")
        nest.axes = tuple(sorted(nest.axes, key=lambda a: a.name not in first.symbols))
        nest.advice = replace(nest.advice, shared=max(1, sum(a.name in first.symbols for a in nest.axes)),
                              beside=nest is not streams[0])
        for s in weights:
            s.advice = replace(s.advice, lanes=LANES if d.bounds(s.reduce[-1].size)[0] >= FEWEST else 1)
    return program


def weight_of(s: Stage) -> Value | None:
    """The load of a product's larger factor, an operand; None where one of the two does not lie along memory."""
    loads = [v.args[0] if v.op == "cast" else v for v in s.value.args]
    if s.value.op != "mul" or any(v.op != "load" or v.args or d.coefficient(v.attr[1], s.reduce[-1].name) != 1 for v in loads):
        return None
    weight = max(loads, key=lambda v: d.bounds(v.attr[0].size)[0])
    return weight if weight.attr[0].role == "operand" else None
