"""skinny_product: matrix products of few rows as loops over columns, each reading one row of a weight, at the speed of memory.

Left factors are computed first. The rows that use a row of a weight are innermost, so that memory is read once.

In: a program lowered with `few_rows`, arranged.  Out: the program. Its nests of products come last and run concurrently, so that it
waits for its threads once.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from tensor_graphs.codegen.default_schedule import LANES
from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Value, values_in
from tensor_graphs.kernels.kernel import NotLowered
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

ROWS = 4
"""rows for which a GPU reads a weight once"""

FEWEST = 128
"""elements from which on a sum uses several vectors of accumulators"""


@dataclass(frozen=True)
class StreamProduct:
    """A product of a nest: its stage, its weight, the other factor, and the axis that is summed."""

    stage: Stage
    weight: Value
    other: Value
    along: Axis


@dataclass(frozen=True)
class Stream:
    """A nest of products. columns, rows: its axes on which the weights depend, and the rest."""

    nest: Nest
    products: tuple[StreamProduct, ...]
    columns: tuple[Axis, ...]
    rows: tuple[Axis, ...]

    @property
    def count(self) -> Dim:
        return d.product(a.size for a in self.columns)

    @property
    def row_count(self) -> Dim:
        return d.product(a.size for a in self.rows)


def is_streams(program: StageProgram) -> bool:
    """Return whether a program has products, which come last then."""
    return any(s.product for s in program.stages)


def streams_of(program: StageProgram) -> list[Stream]:
    """Return the nests of products of a program. Raises NotLowered where they are none of warps that share columns."""
    return [_products(nest) for nest in program.nests if any(s.product for s in nest.stages)]


def traffic_of(program: StageProgram) -> Dim:
    """Return the bytes moved: each weight once for ROWS rows, everything else once."""
    weights = [{p.weight.attr[0] for p in stream.products} for stream in streams_of(program)]
    once = sum(a.size * a.dtype.itemsize for a in (*program.operands, *program.outputs) if a not in set[Array]().union(*weights))
    return once + sum(a.size * a.dtype.itemsize * d.ceil_div(stream.row_count, ROWS)
                      for stream, own in zip(streams_of(program), weights, strict=True) for a in own)


def streamed(program: StageProgram) -> StageProgram:
    """Return the program; its products read each weight once. Raises NotLowered if nests follow them, or if one cannot be so.

    >>> from tensor_graphs.codegen.lower import lower_text
    >>> program = lower_text("dim n 1..4", "input x f32[n, 8]", "input w f32[16, 8]", "output y = linear(x, w)", few_rows=True)
    >>> print(program)
    nest over _i0 in 0..n, _i1 in 0..16
        y0[16*_i0 + _i1] = sum over _r2 in 0..8 of (x0[8*_i0 + _r2] * x1[8*_i1 + _r2])
    >>> print(streamed(program))
    nest over _i1 in 0..16, _i0 in 0..n
        y0[16*_i0 + _i1] = sum over _r2 in 0..8 of (x0[8*_i0 + _r2] * x1[8*_i1 + _r2])
    """
    streams = [nest for nest in program.nests if any(s.product for s in nest.stages)]
    others = program.nests[:len(program.nests) - len(streams)]
    if not streams or program.nests != (*others, *streams):
        raise NotLowered("more is made of its products, taken together")
    targets = {s.target for nest in streams for s in nest.stages}
    return program.made_of((*others, *(_stream(nest, targets, nest is streams[0]) for nest in streams)))


def _stream(nest: Nest, targets: Set[Array], is_first: bool) -> Nest:
    """Return a nest of products with the rows that use a row of a weight innermost. targets: what all products compute."""
    weights = [weight_of(s) for s in nest.stages if s.product]
    first = weights[0]
    if first is None or None in weights or any(s.level != len(nest.axes) for s in nest.stages):
        raise NotLowered("a product whose factors do not lie along memory")
    own = {s.target for s in nest.stages}
    if any(v.op == "load" and v.attr[0] in targets - own for s in nest.stages for v in values_in(*s.roots())):
        raise NotLowered("a product of what another product gives")

    def advised(s: Stage) -> Stage:
        lanes = LANES if s.product and d.bounds(s.reduce[-1].size)[0] >= FEWEST else 1
        return replace(s, advice=replace(s.advice, lanes=lanes)) if s.product else s

    shared = max(1, sum(a.name in first.symbols for a in nest.axes))
    return nest.mapped(lambda s: [advised(s)], axes=tuple(sorted(nest.axes, key=lambda a: a.name not in first.symbols)),
                       advice=replace(nest.advice, shared=shared, beside=not is_first))


def alike(program: StageProgram) -> StageProgram:
    """Return the program with products that nothing joins in nests of their own, where its nests have different numbers of
    products: the blocks of one launch have as many weights in registers, as of a query of many heads, and of a key and a value."""
    nests = [nest for nest in program.nests if any(s.product for s in nest.stages)]
    if len({sum(bool(s.product) for s in nest.stages) for nest in nests}) == 1:
        return program
    return program.made_of(part for nest in program.nests for part in (_parted(nest) if nest in nests else (nest,)))


def _parted(nest: Nest) -> list[Nest]:
    """Return a nest for each group of stages that read what others of the group compute for an element."""
    groups: list[list[Stage]] = []
    for s in nest.stages:
        loaded = {v.attr[0] for v in values_in(*s.roots()) if v.op == "load"}
        joined = [group for group in groups if any(other.target in loaded and other.target.level for other in group)]
        groups = [*(group for group in groups if group not in joined), [*(other for group in joined for other in group), s]]
    first = nest.advice
    return [nest.mapped(lambda s, group=group: [s] if s in group else [],     # type: ignore[misc]
                        advice=first if group is groups[0] else replace(first, beside=True)) for group in groups]


def weight_of(s: Stage) -> Value | None:
    """Return the load of a product's larger factor. None where that is no operand, or where either factor is not contiguous."""
    loads = [v.args[0] if v.op == "cast" else v for v in s.value.args]
    if s.value.op != "mul" or any(v.op != "load" or v.args or d.coefficient(v.attr[1], s.reduce[-1].name) != 1 for v in loads):
        return None
    weight = max(loads, key=lambda v: d.bounds(v.attr[0].size)[0])
    return weight if weight.attr[0].role == "operand" else None


def _products(nest: Nest) -> Stream:
    products = []
    for s in nest.stages:
        if not s.product:
            if s.monoid is not None or s.scan is not None or s.axes:
                raise NotLowered("a reduction beside products")
            continue
        weight = weight_of(s)
        if weight is None or len(s.reduce) != 1 or s.axes or s.value.dtype is not f32 or any(a.op != "load" for a in s.value.args):
            raise NotLowered("a product that is no sum of f32 along one axis")
        (other,) = [v for v in s.value.args if v is not weight] or [weight]
        products.append(StreamProduct(s, weight, other, s.reduce[0]))
    names = _names(products[0].weight)
    columns = tuple(a for a in nest.axes if a.name in names)
    if not columns:
        raise NotLowered("a weight of one row")
    rows = tuple(a for a in nest.axes if a not in columns)
    for p in products:
        if {a.name for a in columns} != {a.name for a in nest.axes if a.name in _names(p.weight)} \
                or {a.name for a in columns} & _names(p.other):
            raise NotLowered("products of one column that do not share their rows")
    return Stream(nest, tuple(products), columns, rows)


def _names(load: Value) -> set[str]:
    """Return the symbols in the offset of a load."""
    return set(map(str, d.symbols(load.attr[1])))
