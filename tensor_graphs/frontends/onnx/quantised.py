"""quantised: rows of QuantizeLinear, DequantizeLinear and products of quantised values."""

from __future__ import annotations

from tensor_graphs.frontends.onnx.call import OnnxNode, row
from tensor_graphs.frontends.onnx.neural import conv_of
from tensor_graphs.frontends.onnx.ops import cast_to, less_zero
from tensor_graphs.frontends.onnx.tensor_data import dtype_of
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language.dtypes import DType, f32, f64, i32, u8
from tensor_graphs.language.node import Node


def _spread(n: OnnxNode, x: Node, scale: Node, axis: int, block: int) -> Node:
    """Return a scale or a zero point (of the whole, of slices of an axis, or of blocks of it) in a shape that broadcasts to x."""
    if scale.rank == 0 or (scale.rank == 1 and scale.shape[0] == 1 and not block):
        return scale.reshape(())
    if not block:
        if scale.rank != 1:
            n.refuse(f"a scale of rank {scale.rank} without block_size")
        return scale.reshape(tuple(-1 if i == axis else 1 for i in range(x.rank)))
    apart = scale.reshape(*scale.shape[:axis + 1], 1, *scale.shape[axis + 1:])
    wide = atomic.expand(apart, tuple(block if i == axis + 1 else s for i, s in enumerate(apart.shape)))
    full = wide.reshape(*scale.shape[:axis], scale.shape[axis] * block, *scale.shape[axis + 1:])
    return atomic.slice(full, [(0, s, 1) for s in x.shape])


def quantise(n: OnnxNode, x: Node, scale: Node, zero: Node | None, dtype: DType, saturate: bool = True) -> Node:
    """Return saturate(round(x / scale) + zero) in `dtype`; operands broadcast, and x is divided in the scale's dtype."""
    if n.op.startswith("QLinear") and scale.rank and scale.shape != (1,):
        n.refuse(f"{n.op} with several scales of the result")
    y = (x.cast(scale.dtype).cast(f64) / scale.cast(f64)).cast(scale.dtype)   # halves are rounded to even: no error next to them
    if dtype.is_float:
        return cast_to(n, y if zero is None else y + zero.cast(y.dtype), dtype, saturate)
    wide = c.round(y).cast(f64)                          # exact for all integers of 32 bits
    return c.clip(wide if zero is None else wide + zero.cast(f64), float(dtype.min), float(dtype.max)).cast(dtype)


@row("QuantizeLinear", since=10)
def _quantise(n: OnnxNode) -> Node:
    x, scale, zero = n.x(), n.x(1), n.optional(2)
    axis, block, to = n.get("axis", 1), n.get("block_size", 0), n.get("output_dtype", 0)
    if (precision := n.get("precision", 0)):
        scale = scale.cast(dtype_of(precision, "the precision of QuantizeLinear"))
    axis = 0 if scale.rank == 0 or x.rank == 0 else n.places([axis], x.rank)[0]
    dtype = zero.dtype if zero is not None else dtype_of(to, "the result of QuantizeLinear") if to else u8
    zero = None if zero is None else _spread(n, x, zero, axis, block)
    return quantise(n, x, _spread(n, x, scale, axis, block), zero, dtype, bool(n.get("saturate", 1)))


@row("DequantizeLinear", since=10)
def _dequantise(n: OnnxNode) -> Node:
    x, scale, zero = n.x(), n.x(1), n.optional(2)
    axis, block, to = n.get("axis", 1), n.get("block_size", 0), n.get("output_dtype", 0)
    axis = 0 if scale.rank == 0 or x.rank == 0 else n.places([axis], x.rank)[0]
    out = dtype_of(to, "the result of DequantizeLinear") if to else scale.dtype
    wide = x.cast(f32 if x.dtype.is_float else i32 if x.dtype.itemsize < 4 else f64)
    if zero is not None:
        wide = wide - _spread(n, x, zero, axis, block).cast(wide.dtype)
    return wide.cast(out) * _spread(n, x, scale, axis, block).cast(out)


@row("QLinearMatMul")
def _qlinear_matmul(n: OnnxNode) -> Node:
    product = c.dot(less_zero(n, 0, 2, -2), less_zero(n, 3, 5, -1))
    a_scale, b_scale = n.x(1), n.x(4)
    a_scale = a_scale.reshape(*a_scale.shape, 1) if a_scale.rank == 1 and a_scale.shape[0] != 1 else a_scale
    return quantise(n, product.cast(f32) * a_scale.cast(f32) * b_scale.cast(f32), n.x(6).cast(f32), n.x(7), n.x(7).dtype)


@row("QLinearConv")
def _qlinear_conv(n: OnnxNode) -> Node:
    bias = None if not n.has(8) else n.x(8).cast(f64)
    out = conv_of(n, less_zero(n, 0, 2).cast(f64), less_zero(n, 3, 5, 0).cast(f64), bias)
    scale = n.x(4)
    scale = scale.reshape(-1, *(1,) * (out.rank - 2)) if scale.rank == 1 and scale.shape[0] != 1 else scale.reshape(())
    return quantise(n, out.cast(f32) * n.x(1).reshape(()) * scale, n.x(6).reshape(()), n.x(7).reshape(()), n.x(7).dtype)
