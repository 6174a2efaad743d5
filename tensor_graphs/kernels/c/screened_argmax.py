"""screened_argmax: an exact kernel of `linear_argmax` that reads 8-bit codes of all weights, and the weights of few rows only.

Codes, scales and radii are prepared from the weight (at bind time where it is a parameter); they add a quarter of the bytes of f32
weights. screened_argmax.c explains why the result is exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tensor_graphs.kernels.kernel import Kernel, NativeCall, Preparation, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, bf16, f32, f64, i8
from tensor_graphs.language.node import TensorType

OP = "linear_argmax"
SOURCE = Path(__file__).parent / "screened_argmax.c"
WEIGHT_DTYPES: dict[DType, int] = {f32: 0, bf16: 1}    # enum TG_F32, TG_BF16 in tg.h
LONGEST = 1 << 20
"""most elements of a row; in far longer ones the rounding of sums of squares would exceed the bounds"""
ROWS_AT_A_TIME = 4


def refuse(spec: Spec) -> str | None:
    """Return None, or the reason why this kernel does not take the spec."""
    x, w = spec.inputs
    if x.dtype not in (f32, f64) or spec.outputs[0].dtype != x.dtype:
        return "f32 or f64 activations only"
    if w.dtype not in WEIGHT_DTYPES:
        return "f32 or bf16 weights only"
    if not all(d.is_static(s) for s in w.shape):
        return "weights of fixed shape only"
    return None if w.shape[1] <= LONGEST else f"rows of at most {LONGEST} elements"


def build(spec: Spec) -> NativeCall:
    """Return the call; its operands are x, the weight, and the prepared values."""
    x, w = spec.inputs
    m, k = w.shape
    n = d.product(x.shape[:-1])
    return NativeCall("tg_screened_argmax", (0, 1, 2, 3, 4, 5), (n, m, k, WEIGHT_DTYPES[w.dtype], int(x.dtype == f64)),
                      scratch=d.dim_min(n, ROWS_AT_A_TIME) * (m * 4 + d.ceil_div(m, 16) * 8 + k * 2) + 64)


def prepare(spec: Spec) -> tuple[Preparation, ...]:
    """Return the preparation of the weight: codes i8[m, k], and three f32[m]: scales, norms of the rounding errors, norms of
    scale · codes."""
    w = spec.inputs[1]
    m, k = w.shape
    call = NativeCall("tg_screen_rows", (0,), (m, k, WEIGHT_DTYPES[w.dtype]))
    return (Preparation(call, (1,), (TensorType((m, k), i8), *(TensorType((m,), f32),) * 3)),)


def traffic(spec: Spec) -> Dim:
    """Return the bytes that a call moves: codes, scales and norms once per four rows of x, and one f32 per output score."""
    m, k = spec.inputs[1].shape
    n = d.product(spec.inputs[0].shape[:-1])
    return m * (k + 12) * d.ceil_div(n, ROWS_AT_A_TIME) + 4 * n * m


def kernel(toolchain: str, module: str, together: Callable[[Sequence[Spec]], Sequence[str | None]]) -> Kernel:
    """Return the kernel. toolchain, module, together: as in `Kernel`, from backend.py."""
    return Kernel(name="c.linear_argmax", backend="c", op=OP, build=build, accepts=refuse, source=SOURCE.read_text(),
                  module=module, toolchain=toolchain, contiguous=True, prepare=prepare, traffic=traffic, together=together)
