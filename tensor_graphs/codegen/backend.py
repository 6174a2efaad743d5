"""backend: `gen`, whose single kernel computes everything that stages can express. It is offered for every op and every part of a
graph. It accepts those that it can lower to loops, and products of two operands by register tiles (tile_products.py): around a
softmax fused into one pass (online_reductions.py), and in parts (passes/fuse.py) of few rows, which read their weights at memory
speed (skinny_product.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from tensor_graphs.codegen import compiled_libraries
from tensor_graphs.codegen.arithmetic_count import steps_of
from tensor_graphs.codegen.copy_program import copy_of
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.lower import FARTHEST
from tensor_graphs.codegen.mapping import cpu_parts
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print import c_loops, scan_c
from tensor_graphs.codegen.refusals import cached, or_none, why_not
from tensor_graphs.codegen.spec_to_loops import PAGE, Apart, AskedSpec, asked, definition_of, loops_of, one_pass_of, products_of
from tensor_graphs.codegen.traffic import traffic_of
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, NativeCall, NotLowered, Sharing, Spec
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.composites.scan import SCAN
from tensor_graphs.language.defined_ops import DefinedOp
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim

NAME = "gen"
TUNED = "tensor_graphs.codegen.tuned_kernel"
"""the module that builds kernels of this backend with a searched schedule"""


def available() -> str | None:
    ok, reason = library.available()
    return None if ok else reason


def versions() -> dict[str, str]:
    return {}


def kernels() -> list[Kernel]:
    return [Kernel(name=f"{NAME}.scan", backend=NAME, op="scan", build=scan_c.build, accepts=scan_c.refuse,
                   source="stages rendered as C, in a loop", module=scan_c.__name__, together=scan_c.together,
                   toolchain=compiled_libraries.made_with(), contiguous=True),
            Kernel(name=f"{NAME}.loops", backend=NAME, op=ANY_OP, build=build, accepts=refuse, source="stages rendered as C",
                   module=__name__, traffic=traffic, arithmetic=arithmetic, together=together,
                   toolchain=compiled_libraries.made_with(), contiguous=True, strided=strided, shares=shares)]


def copy_kernel() -> Kernel:
    """Return the kernel of explicit copies, one program for each way in which they lie."""
    def dense(spec: Spec) -> NativeCall:
        return _copy((d.product(spec.inputs[0].shape),), (1,), (1,), spec.inputs[0].dtype.itemsize)

    return Kernel(name=f"{NAME}.copy", backend=NAME, op="copy", build=dense, accepts=lambda spec: None, module=__name__,
                  source="a copy rendered as C", toolchain=compiled_libraries.made_with(), build_copy=build_copy)


def build_copy(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> NativeCall | None:
    """Return the call that copies one strided window into another; None where it depends on more dims than a call takes."""
    if len(set(d.symbols_in((*shape, *out_strides, *in_strides)))) > library.MAX_INT:
        return None
    return _copy(tuple(shape), tuple(out_strides), tuple(in_strides), itemsize)


@lru_cache(maxsize=1024)
def _copy(shape: tuple[Dim, ...], out_strides: tuple[Dim, ...], in_strides: tuple[Dim, ...], itemsize: int) -> NativeCall:
    outer = len(shape)                                              # short rows are several axes of a stage, and no turns
    while outer and (outer == len(shape) or d.bounds(d.product(shape[outer:]))[1] < SHORT_ROW):
        outer -= 1
    return call_of(arranged(copy_of(shape, out_strides, in_strides, itemsize, outer)), 1)


def refuse(spec: Spec) -> str | None:
    """Return why no loops are generated for a spec; None where they are."""
    return why_not(_program, spec)


def build(spec: Spec) -> NativeCall:
    """Return the call of the kernel of a spec; the kernel is compiled on first use. Raises NotLowered."""
    return call_of(_program(spec), len(spec.inputs))


def shares(spec: Spec) -> Sharing:
    """Return the outputs that may share memory with an operand."""
    program = or_none(_program, spec)
    return Sharing() if program is None else Sharing(program.shared, program.updated)


def strided(spec: Spec, strides: Sequence[Strides]) -> NativeCall | None:
    """Return the call for operands whose rows have arbitrary strides. It is one kernel for all row strides, or one for these where
    elements of an operand are repeated along a row. None where elements within a row are apart, or rows are short."""
    if any(lie[-1:] == (0,) for lie in strides) and all(isinstance(s, int) and s >= 0 for lie in strides for s in lie):
        repeated = or_none(_loops, asked(spec), apart=tuple(map(tuple, strides)))
        return None if repeated is None else call_of(repeated, len(spec.inputs))
    longest = max((d.bounds(t.shape[-1])[1] for t in spec.inputs if t.rank), default=0)
    steps: list[Dim] = []
    for t, lie in zip(spec.inputs, strides, strict=True):
        if t.rank and t.shape[-1] != 1 and lie[-1] != 1:
            return None
        if any(dim_ge(s, 0) is not True or d.bounds(s)[1] > FARTHEST for s in lie):
            return None
        steps += lie[:-1]
    program = or_none(_loops, asked(spec), apart=True) if longest >= SHORT_ROW else None
    if program is None:
        return None
    call = call_of(program, len(spec.inputs))
    return replace(call, ints=(*call.ints[:len(call.ints) - len(steps)], *steps))


def call_of(program: StageProgram, operands: int) -> NativeCall:
    """Return the native call of a program."""
    code = compiled_libraries.later(program)
    shared, own = cpu_parts.scratch_bytes(program)
    threads = library.load().threads()
    return NativeCall(code.symbol, tuple(range(operands)), program.dims, (),
                      shared + own * threads + PAGE * (threads + 1), str(code.path))


def text_of(spec: Spec) -> str:
    """Return the C source of the kernel of a spec, with the math as a comment. Raises NotLowered."""
    if spec.op is SCAN:
        return scan_c.text_of(spec)
    return c_loops.rendered(_program(spec))


def derivation_of(spec: Spec) -> tuple[str, ...]:
    """Return the rules that fused the loops of a spec into one pass; empty for other loops."""
    program = or_none(_program, spec)
    return () if program is None else program.derivation


def together(specs: Sequence[Spec]) -> list[str | None]:
    """Compile the kernels of specs in as few compiler runs as possible, for contiguous rows and for arbitrary row strides. Return
    None for each, or why it cannot be built. Raises CacheFolderError."""
    return compiled_libraries.compiled_together([partial(_programs, spec) for spec in specs])


def _programs(spec: Spec) -> list[StageProgram]:
    return [_program(spec), *programs_apart(spec)]


def programs_apart(spec: Spec) -> list[StageProgram]:
    """Return the loops of a spec for arbitrary row strides, if there are any."""
    longest = max((d.bounds(t.shape[-1])[1] for t in spec.inputs if t.rank > 1), default=0)
    program = or_none(_loops, asked(spec), apart=True) if longest >= SHORT_ROW else None
    return [] if program is None else [program]


def arithmetic(spec: Spec) -> Dim:
    """Return the element steps of the loops of a spec. Raises NotLowered."""
    return steps(_program(spec))


SHORT_ROW = 16
"""elements below which rows are copied to contiguous memory rather than read with their strides, which would take longer"""


def traffic(spec: Spec) -> Dim:
    """Return the bytes that the loops of a spec move. Raises NotLowered."""
    return traffic_in(_program(spec))


TILES_SAVE = 0.8
"""share of the steps of loops below which products are computed by register tiles"""

steps, traffic_in = lru_cache(maxsize=4096)(steps_of), lru_cache(maxsize=4096)(traffic_of)


def _program(spec: Spec) -> StageProgram:
    return _loops(asked(spec))


@cached(maxsize=4096)
def _loops(asked: AskedSpec, apart: Apart = False) -> StageProgram:
    definition = definition_of(asked.spec)
    program = one_pass_of(definition, apart)
    if program is not None:
        return program
    try:
        program = loops_of(definition, apart, isinstance(asked.spec.op, DefinedOp))
    except NotLowered:
        by_tiles = None if apart else or_none(products_of, definition)
        if by_tiles is None:
            raise
        return by_tiles
    if apart or not any(s.reduce and s.value.op == "mul" for s in program.stages):
        return program
    by_tiles = or_none(products_of, definition)
    return by_tiles if by_tiles is not None and _most_steps(by_tiles) < TILES_SAVE * _most_steps(program) else program


def _most_steps(program: StageProgram) -> int:
    return d.bounds(steps(program))[1]
