"""epilogue_products: the loops of one or two matrix products and of what is computed from each element of the results.

    nest over i in 0..197, j in 0..3072
        t1[] = sum over r in 0..768 of x0[768·i + r] · x1[768·j + r]
        y0[3072·i + j] = gelu(t1[] + x2[j])

The sums are tiles of a template; the stages after them are printed into it and run on sums in registers (print/cuda_tiles.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensor_graphs.codegen.loop_ir import Array, Axis, Stage, StageProgram, Value, flat, values_in
from tensor_graphs.codegen.refusals import why_not
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

MOST_PRODUCTS = 2
"""weights that are multiplied by the same rows: a gate and what it gates"""


@dataclass(frozen=True)
class EpilogueProduct:
    """y[i, j] = f(sum over r of x[i, r] · w[j, r], …, i, j). rows, columns: the axes of i and of j. sums: a stage for each weight.
    across: w is stored as [r][j]. after: the stages that compute y, the last of which stores it; none where y is the sum."""

    program: StageProgram
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    inner: int
    x: Array
    weights: tuple[Array, ...]
    across: bool
    sums: tuple[Stage, ...]
    after: tuple[Stage, ...]

    @property
    def width(self) -> int:
        return _number(d.product(a.size for a in self.columns))


def epilogue_product(program: StageProgram) -> EpilogueProduct:
    """Return an arranged program as products and the stages after them. Raises NotLowered for other programs."""
    if len(program.nests) != 1 or len(program.outputs) != 1 or program.gathered:
        raise NotLowered("more than one nest of loops")
    (nest,) = program.nests
    sums = tuple(s for s in nest.stages if s.monoid is not None)
    after = tuple(s for s in nest.stages if s.monoid is None)
    if nest.blocks is not None or any(s.axes or s.scan is not None or s.held or s.level != len(nest.axes) for s in nest.stages):
        raise NotLowered("loops inside of those over the elements of the result")
    if not 1 <= len(sums) <= MOST_PRODUCTS or not (after or len(sums) == 1):
        raise NotLowered("no products, or more than two")
    columns = tuple(a for a in nest.axes if a.name in _right(sums[0], nest.axes[-1]).symbols)
    rows = nest.axes[:len(nest.axes) - len(columns)]
    if (*rows, *columns) != nest.axes or not columns or not all(d.is_static(a.size) for a in columns):
        raise NotLowered("no rows and columns of known width")
    at, width = flat(columns), _number(d.product(a.size for a in columns))
    (over,), inner = sums[0].reduce[:1], _number(sums[0].reduce[0].size)
    across = _right(sums[0], nest.axes[-1]).attr[1] == over.symbol * width + at
    x: set[Array] = set()
    weights = []
    for s in sums:
        if s.monoid != "sum" or len(s.reduce) != 1 or s.value.dtype is not f32 or _number(s.reduce[0].size) != inner:
            raise NotLowered("sums of different lengths")
        right = _right(s, nest.axes[-1])
        left = next((v for v in s.value.args if v is not right), right)
        r = s.reduce[0].symbol
        if left.attr[1] != flat(rows) * inner + r or right.attr[1] != (r * width + at if across else at * inner + r):
            raise NotLowered("operands of a product that do not lie as matrices")
        x.add(left.attr[0])
        weights.append(right.attr[0])
    last = (*sums, *after)[-1]
    if len(x) != 1 or len({w.dtype for w in weights}) != 1 or (across and len(sums) > 1):
        raise NotLowered("products of different rows")
    if last.target != program.outputs[0] or last.index != flat(nest.axes) or last.value.dtype is not f32:
        raise NotLowered("a result that does not lie as a matrix of floats")
    names = {a.name for a in nest.axes}
    if any(not v.symbols <= names for s in after for v in values_in(s.value)):
        raise NotLowered("a result that depends on sizes")
    return EpilogueProduct(program, rows, columns, inner, x.pop(), tuple(weights), across, sums, after)


def is_epilogue_product(program: StageProgram) -> bool:
    return why_not(epilogue_product, program) is None


def _right(s: Stage, last: Axis) -> Value:
    """Return the load of the factor that depends on the last axis of the result. Raises NotLowered."""
    loads = s.value.args
    if s.value.op != "mul" or any(v.op != "load" or v.args or v.attr[0].role != "operand" for v in loads):
        raise NotLowered("a sum of other values than products of two operands")
    right = [v for v in loads if last.name in v.symbols]
    if len(right) != 1:
        raise NotLowered("a product of no rows and columns")
    return right[0]


def _number(size: Dim) -> int:
    if not d.is_static(size):
        raise NotLowered("a size of a product that is known only when it runs")
    return int(d.evaluate(size, {}))
