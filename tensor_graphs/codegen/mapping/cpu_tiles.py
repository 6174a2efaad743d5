"""cpu_tiles: nests in tiles of two axes on a CPU: strided operands are transposed by blocks into memory that stays in the cache.

All reads are then contiguous along the stored axis. Blocks begin at lines of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensor_graphs.codegen.loop_ir import Array, Axis, Nest, Stage, StageProgram, Value, lies_across, values_in
from tensor_graphs.codegen.loop_program import FunctionCall, Load, Local, Loop, Skew
from tensor_graphs.codegen.mapping.cpu_body import Bounds, CpuBody, index
from tensor_graphs.codegen.mapping.cpu_parts import TILE, sides, tiles_along, tiles_of
from tensor_graphs.codegen.mapping.nest_mapper import element_bytes, lets
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim


def tiles(body: CpuBody, nest: Nest, outer: Axis, part: Bounds,
          in_order: Callable[[CpuBody, Sequence[Stage], Bounds], None]) -> None:
    """Walk a nest in blocks of axis `outer` and the stages' own axis. in_order: writes the stages within bounds of the latter."""
    (inner,), others = nest.stages[0].axes, tuple(a for a in nest.axes if a is not outer)
    loads, (cut, other) = _loads_across(body.program, nest, outer, inner), tiles_of(nest, outer)
    side, blocks = sides(nest), Axis("_block", tiles_along(nest, cut))
    with body.scope() as turns:
        body.add(*lets(index("_turn", part[1]), (*others, blocks)))
        array, offset, _ = loads[0].attr
        body.add(Skew("_skew", array, d.substitute(offset, {outer.name: 0, inner.name: 0}), side[outer]))
        skew: dict[Axis, Dim] = {outer: d.dim("_skew", 0, side[outer] - 1), inner: 0}
        ends = {cut: _block_of(body, cut, blocks.symbol * side[cut] - skew[cut], side[cut])}
        begin = d.dim(f"{other.name}_begin", 0, d.bounds(other.size)[1])
        with body.scope() as rows:
            ends[other] = _block_of(body, other, begin if skew[other] == 0 else begin - skew[other], side[other])
            body.instead = {v: _turned(body, v, outer, inner, ends, side[inner]) for v in loads}
            with body.loop(outer, bounds=ends[outer]):
                in_order(body, nest.stages, ends[inner])
            body.instead = {}
        size = other.size if skew[other] == 0 else other.size + skew[other]
        body.add(Loop(f"{other.name}_begin", size, "serial", tuple(rows), 0, side[other]))
    body.add(Loop("_turn", part[1], "serial", tuple(turns), part[0]))


def _loads_across(program: StageProgram, nest: Nest, outer: Axis, inner: Axis) -> list[Value]:
    """Return the loads of a nest that are contiguous along `outer`, at positions known before it runs."""
    loads = dict.fromkeys(v for s in nest.stages for v in values_in(s.value) if v.op == "load")
    return [v for v in loads if v.attr[0].level == 0 and not v.symbols & set(program.gathered)
            and lies_across(v, outer.name, inner.name)]


def _block_of(body: CpuBody, axis: Axis, begin: Dim, side: int) -> Bounds:
    """Define the bounds of a block that begins at an index, or at 0 if that is less."""
    first = body.let(f"{axis.name}_first", d.dim_max(begin, 0))
    return first, body.let(f"{axis.name}_past", d.dim_min(begin + side, axis.size))


def _turned(body: CpuBody, load: Value, outer: Axis, inner: Axis, ends: dict[Axis, Bounds], side: int) -> Value:
    """Transpose the block of a load, and return the load that reads it there."""
    array, offset, _ = load.attr
    step = d.coefficient(offset, inner.name)
    assert step is not None
    tile = Array(f"tile{load.number}", array.role, array.number, array.dtype, TILE, 1)
    begin = {a.name: d.dim(f"{a.name}_first", 0, max(0, d.bounds(a.size)[1] - 1)) for a in ends}
    rows, columns = (ends[a][1] - ends[a][0] for a in (outer, inner))
    source, i, j = d.substitute(offset, begin), d.dim("_i", 0, TILE), d.dim("_j", 0, TILE)
    one = Load(tile, i * side + j, array, source + j * step + i)
    arguments = (tile, 0), side, (array, source), step, rows, columns
    loops = Loop("_i", rows, "serial", (Loop("_j", columns, "vector", (one,)),))
    body.add(Local(tile), FunctionCall(f"turned_{8 * element_bytes(array)}", arguments, (loops,)))
    at = (outer.symbol - ends[outer][0]) * side + (inner.symbol - ends[inner][0])
    return body.values.make("load", load.dtype, attr=(tile, at, frozenset()), number=load.number)
