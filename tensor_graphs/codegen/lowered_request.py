"""lowered_request: what is asked for, and the loops of its definition: what the backend's kernels are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from tensor_graphs.codegen.arrange import arranged
from tensor_graphs.codegen.lower import lower, stays
from tensor_graphs.codegen.passes.in_place import shared_by
from tensor_graphs.codegen.passes.one_pass import online
from tensor_graphs.codegen.passes.skip_masked_blocks import without_hidden
from tensor_graphs.codegen.passes.tile_rows import laned
from tensor_graphs.codegen.skinny_product import streamed
from tensor_graphs.codegen.stages import StageProgram, values_in
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import NotLowered, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp, Definition, definition_digest
from tensor_graphs.language.dtypes import f64
from tensor_graphs.language.errors import LanguageError
from tensor_graphs.language.leaves import argument
from tensor_graphs.language.node import apply, encode_attribute

Program = TypeVar("Program")

TILES = 8
"""of a product's rows, in a block of a pass"""

MOST_TURNS = 24
"""turns of the innermost loops for each element that is read or written: what takes more is a product"""

FEW_ROWS = 4
"""… and of products that are streams over weights: about as many rows"""

PAGE = 4096
"""to which the pool rounds each block up"""


@dataclass(frozen=True)
class AskedSpec:
    """A spec with a key that is equal for specs that mean the same: a compile asks for the loops of one some forty times."""

    key: tuple[Any, ...]
    spec: Spec = field(compare=False)


def asked(spec: Spec) -> AskedSpec:
    return AskedSpec((spec.op, spec.inputs, tuple((k, encode_attribute(v)) for k, v in spec.attrs.items())), spec)


def definition_of(spec: Spec) -> Definition:
    """Return a spec's definition, over placeholders: of a composite its own, of an op that is not written out the op itself."""
    if isinstance(spec.op, CompositeOp) and not spec.op.opaque and not stays(spec.op, spec.outputs[0].dtype):
        return spec.op.define(spec.inputs, spec.attrs)
    return _of_itself(asked(spec))


@lru_cache(maxsize=4096)
def _of_itself(asked: AskedSpec) -> Definition:
    """Return the definition of an op alone; equal specs get the same object, as caches are keyed by it."""
    spec = asked.spec
    arguments = tuple(argument(i, t) for i, t in enumerate(spec.inputs))
    outputs = (apply(spec.op, arguments, spec.attrs),)
    return Definition(arguments, outputs, definition_digest(outputs))


@lru_cache(maxsize=4096)
def one_pass_of(definition: Definition, apart: bool = False) -> StageProgram | None:
    """Return the loops of a definition whose reductions become one pass (one_pass.py); None where they do not."""
    plain = loops_of(definition, apart)
    if isinstance(plain, StageProgram) and not any(s.monoid == "max" for nest in plain.nests for s in nest.stages):
        return None
    try:
        program = lower(definition, apart, updates=True)
        tile = library.load().tile(8 if any(a.dtype is f64 for a in program.operands) else 4)
        one_pass = online(program, TILES * tile.rows)
        if one_pass is None or _too_many(program) is not None:
            return None
        laned(program, tile.lanes)
        without_hidden(program, one_pass)
        program.shared = program.updated
    except (NotLowered, LanguageError):
        return None
    return program


@lru_cache(maxsize=4096)
def loops_of(definition: Definition, apart: bool = False, few_rows: bool = False, updates: bool = True) -> StageProgram | str:
    """Return the loops of a definition, or why there are none. apart: for operands whose rows lie anywhere. few_rows: products of
    weights are streams over them (skinny_product.py), whatever the number of rows: at how many they pay is for costs. updates:
    memory that rows are written into holds the operand already (`StageProgram.updated`)."""
    streams = _streams_of(definition, apart) if few_rows else None
    if isinstance(streams, StageProgram):
        return streams
    plain = _plain_of(definition, apart, updates)
    return streams if streams is not None and isinstance(plain, _TooManyTurns) else plain


def lowered(loops: Program | str) -> Program:
    """Return loops. Raises NotLowered where they are the reason why there are none."""
    if isinstance(loops, str):
        raise NotLowered(loops)
    return loops


class _TooManyTurns(str):
    """Why there are no loops: the definition is a product, or a sum of sums."""


@lru_cache(maxsize=4096)
def _plain_of(definition: Definition, apart: bool, updates: bool) -> StageProgram | str:
    """Return `loops_of` without streams, cached: several callers ask for it."""
    if not updates:
        rows = _plain_of(definition, apart, True)
        if isinstance(rows, StageProgram) and not rows.updated:     # nothing is written into an operand: the same loops
            return rows
    try:
        program = arranged(lower(definition, apart, updates=updates))
    except (NotLowered, LanguageError) as e:                        # a size that may be 0 where an index is divided by it
        return str(e)
    plain = loops_of(definition) if apart else None                 # rows that lie anywhere may be where those of no gaps are
    program.shared = plain.shared if isinstance(plain, StageProgram) else shared_by(program)
    elements, turns = _counted(program, 1)
    if turns > MOST_TURNS * elements:
        return _TooManyTurns(f"its loops have {turns} turns for {elements} elements: a product, or a sum of sums")
    return _too_many(program) or program


def _streams_of(definition: Definition, apart: bool) -> StageProgram | str:
    try:
        program = streamed(arranged(lower(definition, apart, few_rows=True)))
        program.shared = program.updated
    except (NotLowered, LanguageError) as e:
        return str(e)
    elements, turns = _counted(program, 0)
    if turns > FEW_ROWS * elements:
        return f"its loops have {turns} turns for {elements} elements at the least sizes: a product of many rows"
    return _too_many(program) or program


def _counted(program: StageProgram, end: int) -> tuple[int, int]:
    """Return the elements that are read and written (of a table those that are asked for), and the turns of the innermost loops.
    end: at the least sizes (0), or at the largest (1)."""
    updated = [program.outputs[o] for o, _ in program.updated]
    elements, turns = {a: d.bounds(a.size)[end] for a in program.outputs if a not in updated}, 0
    for nest in program.nests:
        for s in nest.stages:
            sizes = {axis.name: d.bounds(axis.size)[end] for axis in (*nest.axes[:s.level], *s.axes, *s.reduce)}
            turns += math.prod(sizes.values())
            if s.target in updated:
                elements[s.target] = math.prod(sizes.values())
            gathered = (v for name, v in program.values.gathered.items() if name in s.value.symbols)
            for v in values_in(*s.roots(), *gathered):
                if v.op == "load" and v.attr[0].role == "operand":
                    array, offset, _ = v.attr
                    read = math.prod(n for name, n in sizes.items() if name in program.values.symbols_of(offset))
                    elements[array] = min(d.bounds(array.size)[end], max(elements.get(array, 0), read))
    return max(sum(elements.values()), 1), turns


def _too_many(program: StageProgram) -> str | None:
    """Why a program is more than one call can be handed."""
    arrays = (*program.operands, *program.outputs)
    if len(arrays) > library.MAX_PTR or len(program.dims) > library.MAX_INT:
        return f"it has {len(arrays)} operands and outputs and {len(program.dims)} dims, more than a call takes"
    return None
