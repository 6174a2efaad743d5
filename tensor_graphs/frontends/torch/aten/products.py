"""products: matrix products, attention, convolutions and their gradients, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensor_graphs.frontends.torch.aten.reductions import move_axis
from tensor_graphs.frontends.torch.aten.table import AtenCall, cast, filled, row, wide_dtype
from tensor_graphs.frontends.torch.functions import refuse
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.autodiff import vjp
from tensor_graphs.language.composites.batches import attention
from tensor_graphs.language.dtypes import bool_, i32, i64
from tensor_graphs.language.node import Node


def _product(x: Node, y: Node) -> Node:
    """x · y; a transposed weight is read as it lies."""
    if y.rank == 2 and x.rank == 2:
        weight = y.inputs[0] if y.is_op("permute") and y.attrs["axes"] == (1, 0) else None
        if weight is not None and x.dtype.kind == "float":
            return c.linear(x, weight)
    return c.dot(x, y)


row("mm.default", "bmm.default", "matmul.default")(lambda call, x, y: _product(x, y))
row("mv.default", "dot.default")(lambda call, x, y: atomic.reshape(c.dot(
    atomic.reshape(x, (1, x.shape[0])) if x.rank == 1 else x, atomic.reshape(y, (y.shape[0], 1))), call.shape))


@row("addmm.default", "baddbmm.default")
def _addmm(call: AtenCall, bias: Node, x: Node, y: Node, beta: Any = 1, alpha: Any = 1) -> Node:
    if alpha == 1 and beta == 1 and bias.rank == 1 and y.is_op("permute") and x.dtype.kind == "float":
        if bias.shape[0] == y.shape[-1]:
            return c.linear(x, y.inputs[0], bias)
    out = _product(x, y)
    out = out if alpha == 1 else c.mul(out, filled(alpha, out.dtype))
    return out if beta == 0 else c.add(out, bias if beta == 1 else c.mul(bias, filled(beta, bias.dtype)))


def _attention(q: Node, k: Node, v: Node, causal: bool, mask: Node | None, scale: float | None) -> tuple[Node, Node]:
    """Return attention of [b, h, t, d] and the logarithms of its sums. Without a mask it is one op, for which there are kernels. A
    row whose mask hides all keys is 0; its scores are those without the mask, as softmax and its gradient are NaN of −∞ alone."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide = wide_dtype(q.dtype)
    scores = c.dot(cast(q, wide), move_axis(cast(k, wide), -1, -2)) * float(factor)
    if causal:
        rows, columns = (atomic.iota(scores.shape[-2:], axis, i32) for axis in (0, 1))
        scores = c.where(c.less_equal(columns, rows), scores, -math.inf)
    if mask is None:
        swapped = [atomic.permute(x, (0, 2, 1, 3)) for x in (q, k, v)]
        out = atomic.permute(attention(*swapped, scale=float(factor), causal=causal), (0, 2, 1, 3))
    else:
        if mask.dtype is bool_:
            hidden = atomic.logical_not(c.any(mask, -1, keepdims=True))
            scores = c.where(c.bit_or(mask, hidden), scores, -math.inf)
        else:
            hidden = c.equals(c.reduce_max(mask, -1, keepdims=True), -math.inf)
            scores = scores + cast(c.where(hidden, 0.0, mask), wide)
        out = atomic.cast(c.where(hidden, 0.0, c.dot(c.softmax(scores), cast(v, wide))), q.dtype)
    return out, c.logsumexp(scores)


@row("_scaled_dot_product_flash_attention_for_cpu.default")
def _sdpa(call: AtenCall, q: Node, k: Node, v: Node, dropout: float = 0.0, causal: bool = False, *, attn_mask: Node | None = None,
          scale: float | None = None) -> Any:
    if dropout:
        refuse("attention with dropout")
    out, sums = _attention(q, k, v, causal, attn_mask, scale)
    return out, cast(sums, call.results[1][1])


@row("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def _sdpa_backward(call: AtenCall, grad: Node, q: Node, k: Node, v: Node, out: Node, sums: Node, dropout: float, causal: bool, *,
                   attn_mask: Node | None = None, scale: float | None = None) -> Any:
    return tuple(vjp([_attention(q, k, v, causal, attn_mask, scale)[0]], [grad], [q, k, v]))


@row("_scaled_dot_product_efficient_attention.default")
def _efficient(call: AtenCall, q: Node, k: Node, v: Node, bias: Node | None, with_sums: bool, dropout: float = 0.0,
               causal: bool = False, *, scale: float | None = None) -> Any:
    out, sums = _sdpa(call, q, k, v, dropout, causal, attn_mask=bias, scale=scale)
    shape, dtype = call.results[1]                              # on a GPU rows of the sums are padded to a multiple of 32
    rows = shape[-1] - sums.shape[-1]
    padded = atomic.pad(sums, ((0, 0), (0, 0), (0, rows)), 0.0) if with_sums else filled(0.0, dtype, shape)
    return out, padded, filled(0, i64), filled(0, i64)          # the seed and the offset of dropout


@row("_scaled_dot_product_efficient_attention_backward.default")
def _efficient_backward(call: AtenCall, grad: Node, q: Node, k: Node, v: Node, bias: Node | None, out: Node, sums: Node, seed: Node,
                        offset: Node, dropout: float, wanted: Any, causal: bool = False, *, scale: float | None = None) -> Any:
    if dropout:
        refuse("attention with dropout")
    operands = [x for x, result in zip((q, k, v, bias), call.results, strict=True) if result is not None and x is not None]
    grads = iter(vjp([_attention(q, k, v, causal, bias, scale)[0]], [grad], operands))
    return tuple(None if result is None else next(grads) for result in call.results)


def _conv(x: Node, weight: Node, bias: Node | None = None, *, stride: Any, padding: Any, dilation: Any, groups: int) -> Node:
    """c.conv, and the same of integers: windows times weights, summed."""
    if x.dtype.kind == "float":
        return c.conv(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    n, per, kernel = x.shape[0], weight.shape[0] // groups, weight.shape[2:]
    seen = c.windows(x, [int(k) for k in kernel], stride=stride, padding=padding, dilation=dilation)
    places = seen.shape[2 + len(kernel):]
    columns = atomic.reshape(seen, (n, groups, 1, d.product(weight.shape[1:]), d.product(places)))
    rows = atomic.reshape(weight, (1, groups, per, d.product(weight.shape[1:]), 1))
    out = atomic.reshape(c.sum(columns * rows, 3), (n, weight.shape[0], *places))
    return out if bias is None else out + atomic.reshape(bias, (weight.shape[0], *(1,) * len(places)))


def _convolve(x: Node, weight: Node, bias: Node | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
              transposed: bool, output_padding: Sequence[int], groups: int) -> Node:
    axes = x.rank - 2
    stride, padding, dilation, extra = (tuple(v) * (axes if len(v) == 1 else 1)
                                        for v in (stride, padding, dilation, output_padding))
    if not transposed:
        return _conv(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
    out = c.conv_transpose(x, weight, stride=stride, padding=padding, output_padding=extra, dilation=dilation, groups=groups)
    return out if bias is None else out + atomic.reshape(bias, (bias.shape[0], *(1,) * axes))


@row("convolution.default")
def _convolution(call: AtenCall, x: Node, weight: Node, bias: Node | None, stride: Any, padding: Any, dilation: Any,
                 transposed: bool, output_padding: Any, groups: int) -> Node:
    return _convolve(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


@row("convolution_backward.default")
def _convolution_backward(call: AtenCall, grad: Node, x: Node, weight: Node, bias_sizes: Any, stride: Any, padding: Any,
                          dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool]) -> Any:
    out = _convolve(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    wanted = [o for o, needed in zip((x, weight), mask, strict=False) if needed]
    slopes = iter(vjp([out], [grad], wanted))
    to_x, to_weight = (next(slopes) if needed else None for needed in mask[:2])
    to_bias = c.sum(grad, (0, *range(2, grad.rank))) if mask[2] else None
    return to_x, to_weight, to_bias


@row("_cdist_forward.default")
def _cdist(call: AtenCall, x: Node, y: Node, p: float, mode: Any = None) -> Node:
    """Return the p-norms of the differences of all pairs of rows."""
    apart = c.abs(atomic.reshape(x, (*x.shape[:-1], 1, x.shape[-1])) - atomic.reshape(y, (*y.shape[:-2], 1, *y.shape[-2:])))
    last = apart.rank - 1
    if p in (0, math.inf):
        return atomic.cast(c.reduce_max(apart, last) if p else c.sum(cast(cast(apart, bool_), apart.dtype), last), call.dtype)
    total = c.sum(apart if p == 1 else c.square(apart) if p == 2 else c.pow(apart, float(p)), last)
    return total if p == 1 else atomic.sqrt(total) if p == 2 else c.pow(total, 1 / p)


@row("_pdist_forward.default")
def _pdist(call: AtenCall, x: Node, p: float = 2) -> Node:
    n = x.shape[0]
    if not isinstance(n, int):
        refuse("pairs of a number of rows that is a dim")
    pairs = np.array([i * n + j for i in range(n) for j in range(i + 1, n)], np.int64)
    return atomic.gather(atomic.reshape(_cdist(call, x, x, p), (n * n,)), leaves.constant(pairs))
