"""quantised: rows of QuantizeLinear, DequantizeLinear and products of quantised values."""

from __future__ import annotations

from tensor_graphs.frontends.onnx.call import OnnxNode, along, row
from tensor_graphs.frontends.onnx.neural import conv_of
from tensor_graphs.frontends.onnx.ops import cast_to, less_zero
from tensor_graphs.frontends.onnx.tensor_data import dtype_of
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language.dtypes import DType, f32, f64, i32, u8
from tensor_graphs.language.node import Node


def _spread(n: OnnxNode, x: Node, scale: Node) -> Node:
    """Return a scale or a zero point (of the whole, of slices of an axis, or of blocks of it) in a shape that broadcasts to x."""
    axis, block = n.get("axis", 1), n.get("block_size", 0)
    if scale.rank == 0 or (scale.rank == 1 and scale.shape[0] == 1 and not block):
        return scale.reshape(())
    (axis,) = n.places([axis], x.rank)
    if block:
        return atomic.slice(c.repeat_interleave(scale, block, axis), [(0, s, 1) for s in x.shape])
    return along(scale, axis, x.rank) if scale.rank == 1 else n.refuse(f"a scale of rank {scale.rank} without block_size")


def quantise(x: Node, scale: Node, zero: Node | None, dtype: DType, saturate: bool = True) -> Node:
    """Return saturate(round(x / scale) + zero) in `dtype`; operands broadcast, and x is divided in the scale's dtype."""
    y = (x.cast(scale.dtype).cast(f64) / scale.cast(f64)).cast(scale.dtype)   # halves are rounded to even: no error next to them
    if dtype.is_float:
        return cast_to(y if zero is None else y + zero.cast(y.dtype), dtype, saturate)
    wide = c.round(y).cast(f64)                          # exact for all integers of 32 bits
    return c.clip(wide if zero is None else wide + zero.cast(f64), float(dtype.min), float(dtype.max)).cast(dtype)


@row("QuantizeLinear", since=10)
def _quantise(n: OnnxNode) -> Node:
    x, scale, zero, to = n.x(), n.x(1), n.optional(2), n.get("output_dtype", 0)
    if precision := n.get("precision", 0):
        scale = scale.cast(dtype_of(precision, "the precision of QuantizeLinear"))
    dtype = zero.dtype if zero is not None else dtype_of(to, "the result of QuantizeLinear") if to else u8
    return quantise(x, _spread(n, x, scale), None if zero is None else _spread(n, x, zero), dtype, bool(n.get("saturate", 1)))


@row("DequantizeLinear", since=10)
def _dequantise(n: OnnxNode) -> Node:
    x, scale, zero, to = n.x(), n.x(1), n.optional(2), n.get("output_dtype", 0)
    out = dtype_of(to, "the result of DequantizeLinear") if to else scale.dtype
    wide = x.cast(f32 if x.dtype.is_float else i32 if x.dtype.itemsize < 4 else f64)
    wide = wide if zero is None else wide - _spread(n, x, zero).cast(wide.dtype)
    return wide.cast(out) * _spread(n, x, scale).cast(out)


def _of_result(n: OnnxNode, product: Node, scale: Node) -> Node:
    """Return a product times its scale, as quantised by operands 6 and 7."""
    if n.x(6).rank and n.x(6).shape != (1,):
        n.refuse(f"{n.op} with several scales of the result")
    return quantise(product.cast(f32) * scale, n.x(6).reshape(()).cast(f32), n.x(7).reshape(()), n.x(7).dtype)


@row("QLinearMatMul")
def _qlinear_matmul(n: OnnxNode) -> Node:
    product, (left, right) = c.dot(less_zero(n, 0, 2, -2), less_zero(n, 3, 5, -1)), (n.x(1).cast(f32), n.x(4).cast(f32))
    return _of_result(n, product, (along(left, -2, product.rank) if left.rank == 1 and left.shape[0] != 1 else left) * right)


@row("QLinearConv")
def _qlinear_conv(n: OnnxNode) -> Node:
    bias = n.x(8).cast(f64) if n.has(8) else None
    out, scale = conv_of(n, less_zero(n, 0, 2).cast(f64), less_zero(n, 3, 5, 0).cast(f64), bias), n.x(4)
    return _of_result(n, out, n.x(1).reshape(()) * (along(scale, 1, out.rank) if scale.rank == 1 else scale))
