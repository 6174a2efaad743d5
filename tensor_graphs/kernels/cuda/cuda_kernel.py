"""cuda_kernel: registration of a user's CUDA kernel from its source (`tg.cuda_kernel`), compiled by NVRTC like built-in ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices import c_code, cache_folder, cuda, nvrtc
from tensor_graphs.kernels import check_declaration, registry, user_source
from tensor_graphs.kernels.cuda.backend import HEADER, NAME
from tensor_graphs.kernels.declaration_place import here
from tensor_graphs.kernels.identity import base_folder
from tensor_graphs.kernels.kernel import Kernel, KernelError, Launch, LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.explain_call_errors import worded

TRIED = "sm_90"
"""architecture for which a source is compiled at its declaration, as a check; at a run it is compiled for the device's"""

MOST_THREADS = 1024
"""most threads of a block"""

Numbers = Sequence[Dim] | Callable[[Spec], Sequence[Dim]]
Count = Dim | Callable[[Spec], Dim]


@worded
def cuda_kernel(op: check_declaration.Computed, *, source: str | Path, entry: str, grid: Count, block: int, shared: int = 0,
                name: str | None = None, ints: Numbers = (), scratch: Numbers = (), dtypes: Sequence[DType | str] = (),
                accepts: Callable[[Spec], str | None] | None = None, in_place: tuple[tuple[int, int], ...] = (),
                updates: bool = False, requirements: Mapping[str, Any] | None = None,
                assuming: str | Sequence[str] = ()) -> Kernel:
    """Register a kernel in CUDA C as a kernel of an op (its name, or a `tg.composite` of yours), or of a graph (see `tg.kernel`).

        tg.cuda_kernel("silu", entry="my_silu", dtypes=["f32"], block=256,
                       ints=lambda spec: [math.prod(spec.outputs[0].shape)],
                       grid=lambda spec: (math.prod(spec.outputs[0].shape) + 255) // 256, source=r'''
        extern "C" __global__ void my_silu(float *y, const float *x, const long long *ints) {
            const long long i = blockIdx.x * 256LL + threadIdx.x;
            if (i < ints[0]) y[i] = x[i] / (1 + expf(-x[i]));
        }''')

    source: CUDA C; or a file, as a Path or as a name that ends in .cu, relative to the folder of the calling module. NVRTC compiles
    it, so it can include no system headers, but the built-in "numbers.cuh" (types of fixed width, bf16 and f16, packs of elements,
    reductions of a block).
    entry: name of an `extern "C" __global__` function. Its arguments are addresses: of the outputs, of the operands without absent
    optional ones, of the array of `ints` if any (64 bits each), then of the pieces of scratch. Arrays are C-contiguous in their
    dtype and aligned to one element only; elements of bf16 and f16 are 16-bit integers.
    grid: number of blocks, an expression of dims or a function of the spec. block: threads per block, 1024 at most. shared: bytes
    of dynamic shared memory. ints: sequence or function of the spec, with numbers or expressions of dims; the kernel reads them
    from device memory, with the values of the current run also in replayed launches. scratch: bytes of each piece, given like
    `ints`; each piece begins at a multiple of 256.
    dtypes, accepts, name (by default "cuda." and the entry), in_place, updates, requirements: as in `tg.c_kernel`; assuming: as in
    `tg.kernel`.
    The kernel belongs to the backend `cuda`, which plans use on request. Without a GPU it is registered (and compiled, if NVRTC is
    installed) but is no candidate; a WARNING is logged with the reason.
    Raises KernelError when the name is taken, a file is missing, neither `dtypes` nor `accepts` is given, or the source has no such
    entry; ToolchainError with the compiler's messages when the source does not compile.
    """
    place = here()
    op = check_declaration.require_computed(op)
    name = user_source.named_after(name, NAME, entry, "CUDA")
    taken_dtypes = user_source.require_declared(name, dtypes, accepts)
    check_declaration.require_declaration(name, NAME, op)
    in_place = check_declaration.pairs_in_place(name, in_place, op)
    check_declaration.require_flag(name, "updates", updates)
    if type(block) is not int or not 1 <= block <= MOST_THREADS:
        raise KernelError(f"kernel {name!r}: a block has {block!r} threads\n"
                          f"  fix: block=256, or another number from 1 to {MOST_THREADS}")
    if type(shared) is not int or shared < 0:                       # how much there is the device says when it runs
        raise KernelError(f"kernel {name!r}: shared is {shared!r}\n  fix: shared=0, or the bytes that a block takes")
    for what, option in (("ints", ints), ("scratch", scratch)):
        numbers = user_source.require_given(name, what, option, what)
        if what == "scratch" and numbers is not None:
            _pieces(name, numbers)
    if callable(grid):
        check_declaration.require_function(name, "grid", grid, ("spec",))
    else:
        _blocks(name, grid, "grid")
    folder = base_folder(place.module) if place.file is None else Path(place.file).parent
    main, read = user_source.source_of(name, source, folder, place, ".cu")
    user_source.require_files(name, folder, read)
    text = user_source.text_of(main)
    if not re.search(rf"\b{entry}\s*\(", text):
        raise KernelError(f"kernel {name!r}: its source has no function {entry!r}\n"
                          f"  fix: extern \"C\" __global__ void {entry}(…) {{ … }} in it, or another `entry`")
    if not re.search(r'extern\s+"C"', text):
        raise KernelError(f"kernel {name!r}: {entry} has no name by which it can be found\n"
                          f"  fix: extern \"C\" __global__ void {entry}(…)")

    def build(spec: Spec) -> LaunchCall:
        wholes, bytes_of = (user_source.require_numbers(name, what, *user_source.of_spec(what, option, spec))
                            for what, option in (("ints", ints), ("scratch", scratch)))
        user_source.require_dims(name, "ints", wholes, spec)
        blocks = _blocks(name, *user_source.of_spec("grid", grid, spec))
        return LaunchCall(text, (Launch(entry, blocks, block, shared),), wholes, _pieces(name, bytes_of))

    kernel = Kernel(
        name=name, backend=NAME, op=check_declaration.op_name(op), composite=check_declaration.own_composite(op), build=build,
        accepts=user_source.refusal(NAME, taken_dtypes, accepts),
        source=text, module=place.module, toolchain=nvrtc.made_with(HEADER), in_place=in_place, contiguous=True, updates=updates,
        requirements=requirements or {}, sources=tuple(map(str, read)),
        assuming=check_declaration.assuming_of(name, assuming))
    if nvrtc.why_missing() is None:                                 # an error is raised where the kernel is written
        try:
            image = nvrtc.compiled(text, TRIED, cuda.HEADERS, name=Path(read[0]).name if read else f"{entry}.cu")
        except cache_folder.CacheFolderError:
            raise
        except c_code.ToolchainError as error:
            raise c_code.ToolchainError(f"kernel {name!r}: {error}") from None
        if f".text.{entry}\0".encode() not in image:                # a section for each kernel, by the name it is found under
            raise KernelError(f"kernel {name!r}: {entry!r} of its source is no kernel that can be launched\n"
                              f"  fix: extern \"C\" __global__ void {entry}(…) {{ … }} in it")
    return user_source.registered(kernel, place, registry.why_missing(NAME))


def _pieces(name: str, bytes_of: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return the sizes of the scratch pieces, rounded up to multiples of 256 bytes. Raises KernelError for a negative size."""
    if any(d.bounds(nbytes)[1] < 0 for nbytes in bytes_of):
        raise KernelError(f"kernel {name!r}: scratch is {list(bytes_of)}\n  fix: bytes of each piece, none below 0")
    return tuple(d.ceil_div(nbytes, 256) * 256 for nbytes in bytes_of)


def _blocks(name: str, value: Any, called: str) -> Dim:
    """Return a number of blocks. Raises KernelError for anything else, and for a number that is below 1 at every size."""
    blocks = int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else value
    if isinstance(blocks, bool) or not isinstance(blocks, (int, d.Expr)) or d.bounds(blocks)[1] < 1:
        raise KernelError(f"kernel {name!r}: {called} is {value!r}, which is no number of blocks\n"
                          "  fix: grid=lambda spec: (math.prod(spec.outputs[0].shape) + 255) // 256, or an expression of dims")
    return blocks
