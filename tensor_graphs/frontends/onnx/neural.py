"""neural: rows of convolutions, pools, norms and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, row
from tensor_graphs.frontends.onnx.ops import less_zero
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import f32, f64, i32, i64
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

MOST_SLICES = 256
"""channels over which LRN sums; a graph grows by each"""


def _halves(how: str, total: int) -> tuple[int, int]:
    return (total // 2, total - total // 2) if how == "SAME_UPPER" else (total - total // 2, total // 2)


def _geometry(n: OnnxNode, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> dict[str, Any]:
    """Return the stride, padding and dilation that a node's attributes give for axes of these sizes; of pools, ceil_mode too."""
    (strides, dilations, pads), how, pool = n.per_axis(len(sizes)), n.get("auto_pad", "NOTSET"), n.op.endswith("Pool")
    for i, (size, k, by, step) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        if how.startswith("SAME"):
            covers = (n.static_size(k) - 1) * step + 1
            total = covers - 1 if by == 1 else (-(-n.static_size(size) // by) - 1) * by + covers - n.static_size(size)
            if total < 0 and pool:
                n.refuse(f"{how} of a window that is shorter than its stride, of which implementations differ", "write the pads")
            pads[i] = _halves(how, max(total, 0))
    return {"stride": tuple(strides), "padding": tuple(pads), "dilation": tuple(dilations)} | (
        {"ceil_mode": bool(n.get("ceil_mode", 0))} if pool else {})


def conv_of(n: OnnxNode, x: Node, weight: Node, bias: Node | None) -> Node:
    n.read.add("kernel_shape")
    return c.conv(x, weight, bias, groups=n.get("group", 1), **_geometry(n, x.shape[2:], weight.shape[2:]))


row("Conv")(lambda n: conv_of(n, n.x(), n.x(1), n.optional(2)))
# products of bytes are exact in f64
row("ConvInteger")(lambda n: conv_of(n, less_zero(n, 0, 2).cast(f64), less_zero(n, 1, 3, 0).cast(f64), None).cast(i32))


@row("ConvTranspose", ignored=("kernel_shape",))
def _conv_transpose(n: OnnxNode) -> Node:
    x, weight, count = n.x(), n.x(1), n.x().rank - 2
    (strides, dilations, pads), wanted, how = n.per_axis(count), n.get("output_shape"), n.get("auto_pad", "NOTSET")
    more = list(n.get("output_padding") or [0] * count)
    for i, (size, k, by, step) in enumerate(zip(x.shape[2:], weight.shape[2:], strides, dilations, strict=True)):
        if wanted is not None or how.startswith("SAME"):
            total = n.static_size(by * (size - 1) + more[i] + (k - 1) * step + 1 - (wanted[i] if wanted is not None else size * by))
            if wanted is None and total < 0:
                n.refuse(f"{how} of ConvTranspose where the kernel is shorter than the stride", "write the pads")
            pads[i] = _halves(how, total)
        if pads[i][1] < 0 <= pads[i][0]:                 # zeros behind
            pads[i], more[i] = (pads[i][0], 0), more[i] - pads[i][1]
    return c.conv_transpose(x, weight, n.optional(2), stride=tuple(strides), padding=tuple(pads), output_padding=tuple(more),
                            dilation=tuple(dilations), groups=n.get("group", 1))


@row("MaxPool")
def _max_pool(n: OnnxNode) -> Built:
    x, kernel, sizes, by_columns = n.x(), n.get("kernel_shape"), n.x().shape[2:], n.get("storage_order", 0)
    how = _geometry(n, sizes, kernel)
    out = c.max_pool(x, kernel, **how)
    if n.wanted == 1:
        return out
    place, all_sizes = c.max_pool_indices(x, kernel, **how).cast(i64), d.product(sizes)
    if by_columns:                                       # counted with the first axis as the fastest
        numbers = atomic.iota((all_sizes,), 0, i64).reshape(sizes[::-1]).permute(tuple(reversed(range(len(sizes)))))
        place = atomic.gather(numbers.reshape(all_sizes), place)
    return [out, place + (atomic.iota(place.shape, 0, i64) * x.shape[1] + atomic.iota(place.shape, 1, i64)) * all_sizes]


row("AveragePool")(lambda n: c.avg_pool(n.x(), n.get("kernel_shape"), count_padding=bool(n.get("count_include_pad", 0)),
                                        **_geometry(n, n.x().shape[2:], n.get("kernel_shape"))))
row("GlobalAveragePool")(lambda n: c.mean(n.x(), range(2, n.x().rank), keepdims=True))
row("GlobalMaxPool")(lambda n: n.x().max(tuple(range(2, n.x().rank)), keepdims=True))


@row("LpPool", "GlobalLpPool", since=2)
def _lp_pool(n: OnnxNode) -> Node:
    p, kernel, axes, over_all = n.get("p", 2), n.get("kernel_shape"), tuple(range(2, n.x().rank)), n.op == "GlobalLpPool"
    powers = c.pow(c.abs(n.x()), p)
    how = {} if over_all else _geometry(n, n.x().shape[2:], kernel)
    if how.pop("ceil_mode", False):
        n.refuse("LpPool with ceil_mode", "ceil_mode=0")
    return c.pow((powers if over_all else c.windows(powers, kernel, **how)).sum(axes, keepdims=over_all), 1 / p)


@row("MaxUnpool")
def _max_unpool(n: OnnxNode) -> Node:
    x, index, kernel, size = n.x(), n.x(1), n.get("kernel_shape"), d.product(n.x().shape)
    strides, _, pads = n.per_axis(len(kernel))
    own = (*x.shape[:2], *((s - 1) * by - sum(pad) + k for s, by, pad, k in zip(x.shape[2:], strides, pads, kernel, strict=True)))
    n.indices(index, d.product(own), back=False)
    out = atomic.scatter(c.zeros((d.product(own),), x.dtype), index.reshape(size), x.reshape(size)).reshape(own)
    return atomic.pad(out, [(0, w - s) for w, s in zip(n.dims(2), own, strict=True)]) if n.has(2) else out


# ---- norms -----------------------------------------------------------------------------------------------------------


@row("BatchNormalization", since=6)
def _batch_norm(n: OnnxNode) -> Built:
    x, weight, bias, mean, var = (n.x(i) for i in range(5))
    eps, momentum = n.get("epsilon", 1e-5), n.get("momentum", 0.9)
    n.only("spatial", 1)
    if n.opset < 7 and not n.get("is_test", 0):
        n.refuse("BatchNormalization in training, of opset 6")
    if not n.get("training_mode", 0):
        return c.batch_norm(x, mean, var, weight, bias, eps=eps)
    axes = (0, *range(2, x.rank))
    own, spread = c.mean(x, axes), c.var(x, axes)
    return [c.batch_norm(x, own, spread, weight, bias, eps=eps), mean * momentum + own.cast(mean.dtype) * (1 - momentum),
            var * momentum + spread.cast(var.dtype) * (1 - momentum)]


row("GroupNormalization", since=21, ignored=("stash_type",))(lambda n: c.group_norm(
    n.x(), n.x(1), n.x(2), groups=n.get("num_groups"), eps=n.get("epsilon", 1e-5)))
row("InstanceNormalization", since=6)(lambda n: c.instance_norm(n.x(), n.x(1), n.x(2), eps=n.get("epsilon", 1e-5)))


@row("RMSNormalization", since=23)
@row("LayerNormalization", since=17)
def _norm_of_rows(n: OnnxNode) -> Built:
    """Return operand 0 normalised over the axes from `axis` on together, with the vectors of the other operands."""
    x, axis, eps = n.x(), n.axis(-1), n.get("epsilon", 1e-5)
    rest, norm = x.shape[axis:], c.layer_norm if n.op == "LayerNormalization" else c.rms_norm
    n.only("stash_type", 1)
    vectors = [v if v.rank == 1 == len(rest) else broadcast_to(v, rest).reshape(d.product(rest)) for v in n.all()[1:]]
    flat = x if len(rest) == 1 else x.reshape(*x.shape[:axis], d.product(rest))
    out = norm(flat, *vectors, eps=eps).reshape(x.shape)
    if n.wanted == 1:
        return out
    axes, wide = tuple(range(axis, x.rank)), x.cast(f32) if x.dtype.itemsize < 4 else x
    return [out, c.mean(wide, axes, keepdims=True), c.rsqrt(c.var(wide, axes, keepdims=True) + eps)]


@row("LRN")
def _lrn(n: OnnxNode) -> Node:
    x, size = n.x(), n.get("size")
    if size > MOST_SLICES:
        n.refuse(f"LRN over {size} channels")
    x = x if size % 2 else c.flip(x, 1)                  # of an even number of channels, the longer half is behind
    out = c.local_response_norm(x, size=size, alpha=n.get("alpha", 1e-4), beta=n.get("beta", 0.75), k=n.get("bias", 1.0))
    return out if size % 2 else c.flip(out, 1)


@row("LpNormalization")
def _lp_norm(n: OnnxNode) -> Node:
    x, axis, p = n.x(), n.axis(-1), n.get("p", 2)
    size = c.abs(x).sum(axis, keepdims=True) if p == 1 else atomic.sqrt((x * x).sum(axis, keepdims=True))
    return c.where(c.equals(size, 0), 0.0 * x, x / size)


# ---- recurrent layers ------------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]] = {
    "RNN": (c.rnn, (0,), ("tanh",)), "GRU": (c.gru, (1, 0, 2), ("sigmoid", "tanh")),
    "LSTM": (c.lstm, (0, 2, 3, 1), ("sigmoid", "tanh", "tanh")),
}
"""op -> (layer, ONNX's places of its gates, activations by default)"""


@row("RNN", "GRU", "LSTM", since=7, ignored=("hidden_size",))
def _recurrent(n: OnnxNode) -> Built:
    """Return the layers of the language; other activations, a clip, peepholes and coupled gates are refused."""
    layer, order, usual = LAYERS[n.op]
    x, lengths, batch_first, which = n.x(), n.optional(4), n.get("layout", 0), n.get("direction", "forward")
    directions, how = 2 if which == "bidirectional" else 1, dict[str, Any]()
    named = [name.lower() for name in n.get("activations") or usual * directions]
    if n.op == "RNN" and named == ["relu"] * directions:
        how = {"activation": "relu"}
    elif named != list(usual) * directions or n.get("input_forget", 0):
        n.refuse(f"{n.op} with the activations {', '.join(named)}, or with coupled gates", "a layer with its usual activations")
    if n.op == "GRU":
        how = {"reset_after": bool(n.get("linear_before_reset", 0))}
    if batch_first and (n.has(5) or n.has(6)):
        n.refuse("initial states with layout=1", "layout=0")
    parts = [n.x(1), n.x(2), *(c.split(n.x(3), 2, axis=1) if n.has(3) else (None, None))]
    weights = [w if w is None or len(order) == 1 else c.concat(*(c.split(w, len(order), axis=1)[k] for k in order), axis=1)
               for w in parts]
    initial: Any = n.optional(5)
    if n.op == "LSTM" and (n.has(5) or n.has(6)):
        zeros = c.zeros((directions, x.shape[0 if batch_first else 1], n.x(2).shape[2]), x.dtype)
        initial = tuple(zeros if state is None else state for state in (initial, n.optional(6)))
    x = x.permute(1, 0, 2) if batch_first else x
    y, states = layer(x, *weights, initial=initial, lengths=lengths, reverse=which == "reverse", **how)
    y, states = y.reshape(*y.shape[:2], directions, n.x(2).shape[2]), states if isinstance(states, tuple) else (states,)
    return [y.permute(1, 0, 2, 3) if batch_first else y.permute(0, 2, 1, 3),
            *(s.permute(1, 0, 2) if batch_first else s for s in states)]


# ---- attention -------------------------------------------------------------------------------------------------------


@row("Attention", since=23, ignored=("qk_matmul_output_mode",))      # of scores, which are no output
def _attention(n: OnnxNode) -> Built | None:
    """Return the language's attention where it is without a mask, a past and scores, and of f32 or f64; else None."""
    q, k, v = (n.x(i) for i in range(3))
    plain = {"scale", "is_causal", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode"}
    if n.wanted > 1 or any(map(n.has, range(3, len(n.inputs)))) or q.dtype not in (f32, f64) or set(n.attributes) - plain:
        return None
    if flat := q.rank == 3:
        heads = n.get("q_num_heads"), n.get("kv_num_heads"), n.get("kv_num_heads")
        q, k, v = (x.reshape(*x.shape[:2], h, -1) for x, h in zip((q, k, v), heads, strict=True))
    else:
        q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    scale = n.get("scale", 1 / math.sqrt(n.static_size(q.shape[3])))
    out = c.attention(q, k, v, scale=scale, causal=bool(n.get("is_causal", 0)), softcap=n.get("softcap", 0.0))
    return out.reshape(*out.shape[:2], d.product(out.shape[2:])) if flat else out.permute(0, 2, 1, 3)
