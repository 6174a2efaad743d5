"""backend_cuda: `gencuda`, the loops of `gen` as GPU kernels: what stages can express, and matrix products of few rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tensor_graphs.codegen import backend, skinny_product, spec_to_loops
from tensor_graphs.codegen.copy_program import copy_of
from tensor_graphs.codegen.loop_ir import StageProgram
from tensor_graphs.codegen.map_loops import map_loops
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.codegen.print import cuda_tiles, scan_cuda
from tensor_graphs.codegen.print.cuda_loops import printed
from tensor_graphs.codegen.print.cuda_program import ALIGNED, HEADER, loops_of, program_of
from tensor_graphs.codegen.refusals import cached, or_none, why_not
from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.kernel import ANY_OP, Kernel, LaunchCall, NotLowered, Sharing, Spec
from tensor_graphs.kernels.strides import Strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dims import Dim

NAME = "gencuda"
DEVICE = "cuda"
TUNED = backend.TUNED


def available() -> str | None:
    from tensor_graphs.devices import cuda

    return cuda.why_missing()


def versions() -> dict[str, str]:
    return {"nvrtc": nvrtc.version()}


def kernels() -> list[Kernel]:
    return [scan_cuda.kernel(NAME), *cuda_tiles.kernels(NAME),
            Kernel(name=f"{NAME}.loops", backend=NAME, op=ANY_OP, build=build, accepts=refuse,
                   source="stages rendered as CUDA", module=__name__, arithmetic=arithmetic,
                   traffic=traffic, toolchain=nvrtc.made_with(HEADER), contiguous=True, strided=strided, shares=shares)]


def copy_kernel() -> Kernel:
    return Kernel(name=f"{NAME}.copy", backend=NAME, op="copy", build=_no_copy, accepts=_anything, source="a copy rendered as CUDA",
                  module=__name__, toolchain=nvrtc.made_with(HEADER), build_copy=build_copy)


def whole_kernels() -> list[Kernel]:
    from tensor_graphs.kernels.decoder.read_graph import all_steps  # a door: most graphs are no decoder

    return [all_steps()]


def refuse(spec: Spec) -> str | None:
    """Return why no kernels are generated for a spec; None where they are."""
    return why_not(_loops, spec_to_loops.definition_of(spec))


def shares(spec: Spec) -> Sharing:
    """Return the outputs that are updated in place: only the rows that differ from an operand are stored."""
    program = or_none(_plain, spec_to_loops.definition_of(spec))
    return Sharing() if program is None else Sharing(program.updated, program.updated)


def _plain(definition: Definition) -> StageProgram:
    lists = or_none(spec_to_loops.lists_of, definition)
    return loops_of(definition) if lists is None else lists


@cached(maxsize=4096)
def _loops(definition: Definition) -> StageProgram:
    """Return the loops of a definition for which kernels are generated. Raises NotLowered."""
    program = _plain(definition)
    if skinny_product.is_streams(program) or any(s.scan is not None for s in program.stages):
        _whole_call(definition)
    return program


def arithmetic(spec: Spec) -> Dim:
    """Return the element steps of the loops of a spec. Raises NotLowered."""
    return backend.steps(_plain(spec_to_loops.definition_of(spec)))


def traffic(spec: Spec) -> Dim:
    """Return the bytes that the kernels of a spec move. Raises NotLowered."""
    program = _plain(spec_to_loops.definition_of(spec))
    return skinny_product.traffic_of(program) if skinny_product.is_streams(program) else backend.traffic_in(program)


def build(spec: Spec) -> LaunchCall:
    """Return the call of the kernels of a spec; they are compiled when a plan needs them. Raises NotLowered."""
    return call_of(spec_to_loops.definition_of(spec))


def strided(spec: Spec, strides: Sequence[Strides]) -> LaunchCall | None:
    """Return the call for operands with these strides; None where a stride is negative or known only at run time."""
    if not all(d.is_static(s) and int(d.evaluate(s, {})) >= 0 for lie in strides for s in lie):
        return None
    definition = spec_to_loops.definition_of(spec)
    if or_none(_loops, definition) is None:
        return None
    return _strided_call(definition, tuple(tuple(int(d.evaluate(s, {})) for s in lie) for lie in strides))


@lru_cache(maxsize=1024)
def _strided_call(definition: Definition, strides: tuple[tuple[int, ...], ...]) -> LaunchCall | None:
    return or_none(lambda: _call(program_of(definition, strides)))     # no streams, whose weights are to lie in rows


def text_of(spec: Spec) -> str:
    """Return the CUDA source of the kernels of a spec. Raises NotLowered."""
    return build(spec).text


def call_of(definition: Definition) -> LaunchCall:
    """Return the call that computes a definition. Raises NotLowered."""
    _loops(definition)
    return _whole_call(definition)


@cached(maxsize=1024)
def _whole_call(definition: Definition) -> LaunchCall:
    """Return the call for contiguous operands. Raises NotLowered."""
    return _call(program_of(definition))


def _call(program: StageProgram) -> LaunchCall:
    whole, single = (printed(map_loops(program, aligned=aligned)) for aligned in (True, False))
    other = LaunchCall(single.text, single.launches, program.dims, single.scratch)
    if single.text == whole.text:
        return other
    return LaunchCall(whole.text, whole.launches, program.dims, whole.scratch, ALIGNED, other)


def build_copy(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> LaunchCall:
    """Return the call that copies one strided window into another."""
    return _copy(tuple(shape), tuple(out_strides), tuple(in_strides), itemsize)


@lru_cache(maxsize=1024)
def _copy(shape: tuple[Dim, ...], out_strides: tuple[Dim, ...], in_strides: tuple[Dim, ...], itemsize: int) -> LaunchCall:
    return _call(arranged(copy_of(shape, out_strides, in_strides, itemsize)))


def _no_copy(spec: Spec) -> LaunchCall:
    raise NotLowered("copies are built by build_copy")


def _anything(spec: Spec) -> str | None:
    return None
