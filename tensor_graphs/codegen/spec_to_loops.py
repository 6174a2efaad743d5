"""spec_to_loops: from a requested spec to the loops of its definition, from which the backends build kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tensor_graphs.codegen.epilogue_products import EpilogueProduct, epilogue_product
from tensor_graphs.codegen.loop_ir import Stage, StageProgram, symbols_of, values_in
from tensor_graphs.codegen.lower import lower, stays
from tensor_graphs.codegen.passes.in_place import shared_by
from tensor_graphs.codegen.passes.select_top import selected
from tensor_graphs.codegen.passes.tile_products import tiled
from tensor_graphs.codegen.pipelines import LOOPS, PARTS, STREAMS, WHOLE, fused, through
from tensor_graphs.codegen.refusals import TooManyTurns, cached, or_none, refused
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import NotLowered, Spec
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp, Definition, definition_digest
from tensor_graphs.language.dtypes import f32, f64
from tensor_graphs.language.leaves import argument
from tensor_graphs.language.node import apply, encode_attribute, walk

TILES = 8
"""register tiles of a product's rows in one block of a one-pass kernel"""

MOST_TURNS, MOST_COUNTED = 24, 512
"""most innermost iterations for each element read or written: of products, which are for register tiles, and of other loops (ranks
that are counted), whose cost decides"""

FEW_ROWS = 4
"""the equivalent limit for products that stream over weights: about as many rows"""

Apart = bool | tuple[Strides, ...]
"""strides of operands: contiguous (False), any row strides (True), or these"""

PAGE = 4096
"""bytes to which the pool rounds each block up"""


@dataclass(frozen=True)
class AskedSpec:
    """A spec with a key that is equal for equivalent specs; one compile requests the loops of a spec some forty times."""

    key: tuple[Any, ...]
    spec: Spec = field(compare=False)


def asked(spec: Spec) -> AskedSpec:
    return AskedSpec((spec.op, spec.inputs, tuple((k, encode_attribute(v)) for k, v in spec.attrs.items())), spec)


def definition_of(spec: Spec) -> Definition:
    """Return a spec's definition over placeholders: the definition of a composite, or the op itself where it is not expanded."""
    if isinstance(spec.op, CompositeOp) and not spec.op.opaque and not stays(spec.op, spec.outputs[0].dtype):
        return spec.op.define(spec.inputs, spec.attrs)
    return _of_itself(asked(spec))


@lru_cache(maxsize=4096)
def _of_itself(asked: AskedSpec) -> Definition:
    """Return the definition of a single op. Equal specs get one identical object, since caches are keyed by it."""
    spec = asked.spec
    arguments = tuple(argument(i, t) for i, t in enumerate(spec.inputs))
    outputs = (apply(spec.op, arguments, spec.attrs),)
    return Definition(arguments, outputs, definition_digest(outputs))


@lru_cache(maxsize=4096)
def one_pass_of(definition: Definition, apart: Apart = False) -> StageProgram | None:
    """Return the loops of a definition whose reductions fuse into one pass (online_reductions.py); None where they do not."""
    plain = or_none(loops_of, definition, apart)
    if plain is not None and not any(s.monoid == "max" for s in plain.stages):
        return None
    return or_none(_one_pass_of, definition, apart)


def _one_pass_of(definition: Definition, apart: Apart) -> StageProgram:
    with refused():
        program = lower(definition, apart, updates=True)
        tile = library.load().tile(8 if any(a.dtype is f64 for a in program.operands) else 4)
        return replace(fused(_for_a_call(program), tile.lanes, TILES * tile.rows), shared=program.updated)


@cached(maxsize=4096)
def loops_of(definition: Definition, apart: Apart = False, few_rows: bool = False, updates: bool = True) -> StageProgram:
    """Return the loops of a definition. apart: strides of operands (`Apart`). few_rows: products with weights stream over
    these (skinny_product.py), for any number of rows; costs decide when that pays. updates: memory into which rows are written
    already holds the operand (`StageProgram.updated`). Raises NotLowered; for a product, which is for other kernels,
    TooManyTurns."""
    if not few_rows:
        return _plain_of(definition, apart, updates)
    try:
        return _streams_of(definition, apart)
    except NotLowered as no_streams:
        try:
            return _plain_of(definition, apart, updates)
        except TooManyTurns:
            raise no_streams from None


@cached(maxsize=4096)
def products_of(definition: Definition) -> StageProgram:
    """Return the loops of a definition with products by register tiles (tile_products.py). Raises NotLowered."""
    with refused():
        program = through(WHOLE, lower(definition))
        dtype = f64 if any(s.reduce and s.value.dtype is f64 for s in program.stages) else f32
        tile = library.load().tile(dtype.itemsize)
        program = through(PARTS, tiled(program, dtype, tile.lanes, tile.rows, TILES))
    if not any(s.product == "tiled" for s in program.stages):
        raise NotLowered("it has no product for register tiles")
    return _for_a_call(_within_limit(program))


@cached(maxsize=4096)
def any_loops_of(written: Definition) -> StageProgram:
    """Return the loops of a definition, however many turns they have. Raises NotLowered."""
    with refused():
        return through(LOOPS, lower(written))


@cached(maxsize=4096)
def lists_of(definition: Definition) -> StageProgram:
    """Return the loops of a definition in which the largest elements of rows are lists. Raises NotLowered where none are."""
    if not any(node.op.name in ("topk", "less") for node in walk(definition.outputs)):
        raise NotLowered("it ranks nothing")
    with refused():
        ranked = lower(definition)
        program = selected(ranked)
        if program is ranked:
            raise NotLowered("no list is all that is read of its ranks")
        program = through(LOOPS, program)
    return _for_a_call(_within_limit(program))


@cached(maxsize=4096)
def tiles_of(definition: Definition) -> EpilogueProduct:
    """Return a definition as matrix products and what is computed from their elements. Raises NotLowered."""
    return epilogue_product(any_loops_of(definition))


@cached(maxsize=4096)
def _plain_of(definition: Definition, apart: Apart, updates: bool) -> StageProgram:
    """Return `loops_of` without streams, cached because several callers request it."""
    if not updates:
        rows = or_none(_plain_of, definition, apart, True)
        if rows is not None and not rows.updated:                   # nothing is written into an operand: the same loops
            return rows
    with refused():
        program = through(LOOPS, lower(definition, apart, updates=updates))
    plain = or_none(loops_of, definition) if apart else None        # rows that lie anywhere may be where those of no gaps are
    program = replace(program, shared=shared_by(program) if plain is None else plain.shared)
    return _for_a_call(_within_limit(program))


def _within_limit(program: StageProgram) -> StageProgram:
    """Return a program. Raises TooManyTurns."""
    elements, turns, products = _counted(program, 1)
    if products > MOST_TURNS * elements or turns > MOST_COUNTED * elements:
        raise TooManyTurns(f"its loops have {turns} turns for {elements} elements: a product, or a sum of sums")
    return program


def _streams_of(definition: Definition, apart: Apart) -> StageProgram:
    with refused():
        program = through(STREAMS, lower(definition, apart, few_rows=True))
    elements, turns, _ = _counted(program, 0)
    if turns > FEW_ROWS * elements:
        raise NotLowered(f"its loops have {turns} turns for {elements} elements at the least sizes: a product of many rows")
    return _for_a_call(replace(program, shared=program.updated))


def _counted(program: StageProgram, end: int) -> tuple[int, int, int]:
    """Return the elements read and written (of a table: those looked up), the innermost iterations, and those of sums of products.
    end: for the least sizes (0) or the largest (1)."""
    updated = [program.outputs[o] for o, _ in program.updated]
    elements, turns, products = {a: d.bounds(a.size)[end] for a in program.outputs if a not in updated}, 0, 0
    for nest in program.nests:
        for s in nest.stages:
            if s.product == "tiled":
                continue
            sizes = {axis.name: d.bounds(axis.size)[end] for axis in (*nest.axes[:s.level], *s.axes, *s.reduce)}
            turns += math.prod(sizes.values())
            if _is_product(s):
                products += math.prod(sizes.values())
            if s.target in updated:
                elements[s.target] = math.prod(sizes.values())
            gathered = (v for name, v in program.gathered.items() if name in s.value.symbols)
            for v in values_in(*s.roots(), *gathered):
                if v.op == "load" and v.attr[0].role == "operand":
                    array, offset, _ = v.attr
                    read = math.prod(n for name, n in sizes.items() if name in symbols_of(offset, program.gathered))
                    elements[array] = min(d.bounds(array.size)[end], max(elements.get(array, 0), read))
    return max(sum(elements.values()), 1), turns, products


def _is_product(s: Stage) -> bool:
    """Return whether a stage sums products of numbers that change along the sum."""
    over = {a.name for a in s.reduce}
    return s.monoid == "sum" and any(v.op == "mul" and v.dtype.is_float and all(over & a.symbols for a in v.args)
                                     for v in values_in(s.value))


def _for_a_call(program: StageProgram) -> StageProgram:
    """Return a program. Raises NotLowered where it has more arrays or dims than one call accepts."""
    arrays = (*program.operands, *program.outputs)
    if len(arrays) > library.MAX_PTR or len(program.dims) > library.MAX_INT:
        raise NotLowered(f"it has {len(arrays)} operands and outputs and {len(program.dims)} dims, more than a call takes")
    return program
