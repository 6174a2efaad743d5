"""sources: ops that make tensors of numbers."""

from __future__ import annotations

from typing import Any

from tensor_graphs.frontends.torch.aten.table import NO_END, AtenCall, cast, filled, row, to_shape
from tensor_graphs.language import atomic
from tensor_graphs.language.dtypes import f64, i64
from tensor_graphs.language.node import Node

row("full.default", "new_full.default")(lambda call, *args, **_: filled(args[-1], call.dtype, call.shape))
row("full_like.default", "fill.Scalar")(lambda call, x, value, **_: filled(value, call.dtype, call.shape))
row("fill.Tensor")(lambda call, x, value: to_shape(cast(value, call.dtype), call.shape))
row("scalar_tensor.default")(lambda call, value, **_: filled(value, call.dtype))
row("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default", "new_empty.default",
    "empty_strided.default", "new_empty_strided.default", "empty_permuted.default")(
    lambda call, *_, **__: filled(0, call.dtype, call.shape))
row("ones.default", "ones_like.default", "new_ones.default")(lambda call, *_, **__: filled(1, call.dtype, call.shape))


@row("arange.start_step", "arange.start", "arange.default")
def _arange(call: AtenCall, start: Any, end: Any = None, step: Any = 1) -> Node:
    begin = 0 if end is None else start
    counting = f64 if call.dtype.kind == "float" else i64
    places = atomic.cast(atomic.iota(call.shape, 0, i64), counting)
    first, apart = (to_shape(filled(number, counting), call.shape) for number in (begin, step))
    return atomic.cast(first + places * apart, call.dtype)


@row("prims.iota.default")
def _iota(call: AtenCall, length: Any, start: Any = 0, step: Any = 1, **_: Any) -> Node:
    return _arange(call, start, NO_END, step)
