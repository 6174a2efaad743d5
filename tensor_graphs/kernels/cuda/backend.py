"""backend: the backend `cuda`: hand-written kernels for cases where generated ones are slow. This module has
`linear_argmax`, copies, and the list of all kernels. source_text.py builds the source of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.cuda import attention, conv, matrix_products
from tensor_graphs.kernels.cuda.scatter import scatter, scatter_takes
from tensor_graphs.kernels.cuda.source_text import (
    ALIGNED,
    FLOATS,
    FROM_80,
    HERE,
    MULTIPROCESSORS,
    OF_SIZE,
    read,
    rows_of,
    static,
    text_of,
)
from tensor_graphs.kernels.kernel import Kernel, Launch, LaunchCall, Spec
from tensor_graphs.kernels.strides import contiguous_strides
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32

NAME = "cuda"
DEVICE = "cuda"
HEADER = HERE.parent.parent / "codegen" / "numbers.cuh"
TENSOR_CORES = HEADER.with_name("tensor_cores.cuh")
ROWS, ROW_WARPS, COLUMNS, RESIDENT = 8, 4, 2, 4
"""constants of linear_argmax.cu: rows of x for which weights are read once; warps of a block; columns of a warp; blocks of each
multiprocessor"""


def available() -> str | None:
    from tensor_graphs.devices import cuda

    return cuda.why_missing()


def versions() -> dict[str, str]:
    return {"nvrtc": nvrtc.version()}


# ---- linear_argmax -----------------------------------------------------------------------------------------------------


def linear_argmax_takes(spec: Spec) -> str | None:
    """Return None, or why not: values must be f32, as after rounding to a narrower dtype other elements would be equal."""
    x, w = spec.inputs[:2]
    if spec.outputs[0].dtype is not f32 or any(t.dtype not in FLOATS for t in spec.inputs):
        return "f32, bf16 and f16 only, and f32 values"
    if (why := static(*w.shape)) is not None:
        return why
    pack = ALIGNED // w.dtype.itemsize
    if int(w.shape[1]) % max(pack, ALIGNED // x.dtype.itemsize):
        return f"rows of a multiple of {pack} elements only"
    return None if int(w.shape[0]) < 1 << 30 else "too many columns"


def linear_argmax(spec: Spec) -> LaunchCall:
    """Return the call of linear_argmax.cu."""
    x, w = spec.inputs[:2]
    columns, k = (int(s) for s in w.shape)
    rows = rows_of(x)
    types = {"X": x.dtype, "W": w.dtype, "Y": spec.outputs[0].dtype}
    blocks = min(-(-columns // (ROW_WARPS * COLUMNS)), RESIDENT * MULTIPROCESSORS)
    several = d.dim_min(1, rows // 2)
    launches = (Launch("few_rows", blocks * d.ceil_div(rows, ROWS) * several, 32 * ROW_WARPS, waits=True, early=(1,)),
                Launch("one_row", blocks * (d.dim_min(1, rows) - several), 32 * ROW_WARPS, waits=True, early=(1,)),
                Launch("best_of_row", rows, 256, waits=True))
    pieces = (d.ceil_div(rows * (4 * blocks), 256) * 256,) * 2

    def text(pack: int) -> str:
        return text_of("linear_argmax.cu", {"PACK": pack, "PACK_X": min(pack, ALIGNED // x.dtype.itemsize), "COLUMNS": COLUMNS,
                                            "K": k, "N": columns, "BLOCKS": blocks, "RESIDENT": RESIDENT}, types)

    single = LaunchCall(text(1), launches, (rows,), pieces)
    return LaunchCall(text(ALIGNED // w.dtype.itemsize), launches, (rows,), pieces, ALIGNED, single)


def linear_argmax_traffic(spec: Spec) -> Dim:
    """Return the bytes moved: all of w once per ROWS rows of x, each time but the first counted as a fifth (it is in the cache)."""
    x, w = spec.inputs[:2]
    rows = rows_of(x)
    of_w = int(w.shape[0]) * int(w.shape[1]) * w.dtype.itemsize
    small = rows * (int(w.shape[1]) * x.dtype.itemsize + int(w.shape[0]) * spec.outputs[0].dtype.itemsize)
    return of_w + of_w // 5 * (d.ceil_div(rows, ROWS) - 1) + small


# ---- the backend -------------------------------------------------------------------------------------------------------


def of_tiles(arithmetic: Callable[[Spec], Dim], spec: Spec) -> Dim:
    """Return the operations of a tensor-core kernel as estimates take them: these assume that a kernel reaches three tenths of a
    device's peak (roofline.BACKEND_RATES), and tensor-core tiles reach all that SHARE says."""
    return d.ceil_div(arithmetic(spec) * 3, 10)


def kernels() -> list[Kernel]:
    def kernel(op: str, build: Callable[[Spec], LaunchCall], accepts: Callable[[Spec], str | None], files: str, *,
             mark: str = "", arch: tuple[str, ...] = (), header: Path = HEADER, **fields: Any) -> Kernel:
        return Kernel(name=f"{NAME}.{op}{mark}", backend=NAME, op=op, build=build, accepts=accepts, source=read(files),
                      module=__name__, toolchain=nvrtc.made_with(header), contiguous=True,
                      requirements={"arch": arch} if arch else {}, **fields)

    def by_tiles(op: str, build: Callable[[Spec], LaunchCall], accepts: Callable[[Spec], str | None], files: str, mark: str,
                 traffic: Callable[[Spec], Dim] | None, arithmetic: Callable[[Spec], Dim] | None,
                 arch: tuple[str, ...] = ("sm_90",), **fields: Any) -> Kernel:
        return kernel(op, build, accepts, files, mark=mark, traffic=traffic, arch=arch, header=TENSOR_CORES,
                    arithmetic=None if arithmetic is None else partial(of_tiles, arithmetic), **fields)

    a, p = attention, matrix_products
    turned_traffic = partial(p.product_traffic, boxed=p.BOXED_ROWS)
    return [kernel("linear_argmax", linear_argmax, linear_argmax_takes, "linear_argmax.cu", traffic=linear_argmax_traffic),
            *(by_tiles(op, p.product, p.product_takes, f"{p.TILED} weight_parts.cu", "_tensor", p.product_traffic, p.product_steps,
                       prepare=p.product_prepares) for op in ("linear", "dot", "rounded_linear")),
            *(by_tiles(op, p.turned, partial(p.turned_takes, p.product_takes), f"{p.TILED} weight_parts.cu", "_turned",
                       turned_traffic, p.turned_steps, prepare=p.product_prepares) for op in ("linear", "rounded_linear")),
            by_tiles("scaled_linear", p.product, p.scaled_takes, p.TILED, "_tensor", p.product_traffic, p.product_steps),
            by_tiles("scaled_linear", partial(p.product, fast=True), p.fast_takes, p.TILED, "_tensor_fast", p.product_traffic,
                     p.product_steps),
            by_tiles("scaled_linear", p.turned, partial(p.turned_takes, p.scaled_takes), p.TILED, "_turned",
                     turned_traffic, p.turned_steps),
            by_tiles("conv", conv.conv, conv.conv_takes, f"{p.SUMS} {conv.CONV} conv_weights.cu", "_tensor", conv.conv_traffic,
                     conv.conv_steps, prepare=conv.conv_prepares),
            by_tiles("linear", p.skinny, p.skinny_takes, p.SKINNY, "_skinny", p.skinny_traffic, p.skinny_steps, FROM_80),
            *(kernel(op, p.any_product, p.any_product_takes, "any_product.cu", mark="_any", arithmetic=p.any_product_steps)
              for op in ("linear", "dot")),
            kernel("attention", a.attention, a.attention_takes, "attention.cu", traffic=a.attention_traffic,
                   arithmetic=a.attention_steps),
            by_tiles("attention", a.tensor_attention, a.tensor_attention_takes, f"{a.MANY} tensor_attention.cu", "_tensor",
                     a.tensor_attention_traffic, a.tensor_attention_steps),
            by_tiles("attention", partial(a.tensor_attention, near=True), a.tensor_attention_takes, f"{a.MANY} tensor_attention.cu",
                     "_tensor_near", a.tensor_attention_traffic, a.near_attention_steps),
            by_tiles("attention", a.float_attention, a.float_attention_takes, f"{a.MANY} float_attention.cu", "_floats",
                     a.float_attention_traffic, a.float_attention_steps),
            by_tiles("attention", a.few_queries, a.few_queries_takes, "seen_keys.cu few_queries.cu plain_attention.cu", "_few",
                     a.few_queries_traffic, None, FROM_80),
            kernel("paged_attention", a.paged_attention, a.paged_attention_takes, "seen_keys.cu plain_attention.cu",
                   arithmetic=a.paged_attention_steps),
            by_tiles("paged_attention", a.few_queries, a.paged_few_takes, "seen_keys.cu few_queries.cu plain_attention.cu", "_few",
                     None, None, FROM_80),
            kernel("scatter", scatter, scatter_takes, "scatter.cu", in_place=((0, 0),))]


WORTH_A_TEXT = 1 << 18
"""elements from which on a copy has a source for its sizes: it compiles in a quarter of a second and saves up to half the time"""


def copy_kernel() -> Kernel:
    return Kernel(name=f"{NAME}.copy", backend=NAME, op="copy", build=_no_copy, accepts=lambda spec: None,
                  source=read("copy.cu"), module=__name__, toolchain=nvrtc.made_with(HEADER), build_copy=build_copy)


def _no_copy(spec: Spec) -> LaunchCall:
    raise AssertionError("copies are built by build_copy")


def build_copy(shape: Sequence[Dim], out_strides: Sequence[Dim], in_strides: Sequence[Dim], itemsize: int) -> LaunchCall:
    """Return the call that copies a strided window into another."""
    axes = _fewest_axes([axis for axis in zip(shape, out_strides, in_strides, strict=True) if axis[0] != 1] or [(1, 0, 0)])
    sizes, count = tuple(x for column in zip(*axes, strict=True) for x in column), d.product(shape)
    of_thread, numbers = 4, {}
    if all(d.is_static(x) for x in sizes) and d.bounds(count)[0] >= WORTH_A_TEXT:
        of_thread, numbers = max(4, ALIGNED // itemsize), {"SIZES": ", ".join(f"{int(d.evaluate(x, {}))}LL" for x in sizes)}
    dense = tuple(out_strides) == contiguous_strides(shape)
    text = text_of("copy.cu", {"RANK": len(axes), "EACH": of_thread, "DENSE": int(dense), **numbers}, {"T": OF_SIZE[itemsize]})
    return LaunchCall(text, (Launch("copy", d.ceil_div(count, of_thread * 256), 256, waits=True),), sizes)


def _fewest_axes(axes: Sequence[tuple[Dim, Dim, Dim]]) -> list[tuple[Dim, Dim, Dim]]:
    """Return the axes as (size, output stride, input stride), with axes merged that are contiguous to each other in both."""
    merged = [axes[0]]
    for size, to, by in axes[1:]:
        before, *strides = merged[-1]
        if strides == [size * to, size * by]:
            merged[-1] = before * size, to, by
        else:
            merged.append((size, to, by))
    return merged
