"""rows: softmax along any axis, rms_norm and layer_norm in Triton. A block reads a row, or some short ones, once and keeps them in
registers. Rows that are too long for that are read again in each pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.numpy.composites import operand

FLOATS = ("f32", "bf16", "f16")

LONGEST = 16384
"""most numbers of a row that a block keeps in registers: 32 in each thread of 16 warps"""

BLOCK, WARPS = 8192, 16
"""numbers of a longer row that a block reads in one step, and its warps"""

TOGETHER = 2048
"""least numbers of a block: it takes several short rows to have as many"""


def rows_takes(spec: Spec) -> str | None:
    """Return None where all operands and outputs have dtypes of FLOATS, else the reason for a refusal."""
    if any(t.dtype.name not in FLOATS for t in (*spec.inputs, *spec.outputs)):
        return "f32, bf16 and f16 only"
    return None


def block_of(n: int) -> tuple[int, int, int]:
    """Return (rows, padded row length, warps) of a block that keeps rows of n numbers in registers."""
    block = 1 << max(4, (n - 1).bit_length())
    rows = max(1, TOGETHER // block)
    return rows, block, min(WARPS, max(4, rows * block // 512))


def _in_rows(t: Any, n: int) -> tuple[Any, int, int]:
    """Return (tensor as [rows, n], stride of rows, stride in a row), without a copy where rows are evenly spaced."""
    rows = t.reshape(-1, n)
    return rows, rows.stride(0), rows.stride(1)


def softmax(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    from tensor_graphs.kernels.triton import jit_functions

    x, y = ins[0], outs[0]
    if not y.numel():
        return
    axis = attrs["axis"] % x.dim()
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1:])
    if inner > 1:
        cube = x.reshape(-1, n, inner)
        columns = min(128, 1 << (inner - 1).bit_length())
        steps = min(1 << (n - 1).bit_length(), 4096 // columns)
        tiles = len(cube) * -(-inner // columns)
        jit_functions.softmax_columns[(tiles,)](y, cube, n, inner, *cube.stride(), ROWS=steps, COLUMNS=columns, num_warps=4)
        return
    rows, x_row, x_each = _in_rows(x, n)
    if n > LONGEST:
        jit_functions.softmax_long[(len(rows),)](y, rows, n, n, x_row, x_each, BLOCK=BLOCK, num_warps=WARPS)
        return
    together, block, warps = block_of(n)
    jit_functions.softmax_rows[(-(-len(rows) // together),)](y, rows, len(rows), n, n, x_row, x_each, ROWS=together, BLOCK=block,
                                                             num_warps=warps)


def _norm(outs: Sequence[Any], x: Any, weight: Any, bias: Any, eps: float, offset: float, centred: bool) -> None:
    from tensor_graphs.kernels.triton import jit_functions

    y = outs[0]
    if not y.numel():
        return
    n = x.shape[-1]
    rows, x_row, x_each = _in_rows(x, n)
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    flags = {"CENTRED": centred, "WEIGHT": weight is not None, "BIAS": bias is not None}
    scales = rows if weight is None else weight, rows if bias is None else bias      # where there is none, anything: it is not read
    if n > LONGEST:
        jit_functions.norm_long[(len(rows),)](y, rows, *scales, n, n, x_row, x_each, eps, offset, **flags, BLOCK=BLOCK,
                                              num_warps=WARPS)
        return
    together, block, warps = block_of(n)
    jit_functions.norm_rows[(-(-len(rows) // together),)](y, rows, *scales, len(rows), n, n, x_row, x_each, eps, offset, **flags,
                                                          ROWS=together, BLOCK=block, num_warps=warps)


def rms_norm(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    weight: Any = operand(ins, attrs, ("x", "weight"), "weight")
    _norm(outs, ins[0], weight, None, float(attrs["eps"]), float(attrs["offset"]), centred=False)


def layer_norm(outs: Sequence[Any], ins: Sequence[Any], attrs: Mapping[str, Any]) -> None:
    weight, bias = (operand(ins, attrs, ("x", "weight", "bias"), name) for name in ("weight", "bias"))
    _norm(outs, ins[0], weight, bias, float(attrs["eps"]), 0.0, centred=True)
