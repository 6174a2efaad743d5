"""neural: rows of convolutions, pools and norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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

# ---- windows ---------------------------------------------------------------------------------------------------------


class Windows(NamedTuple):
    """The geometry of a convolution or a pool. pads: (before, behind) an axis as written; extra: behind it, by ceil_mode."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    extra: tuple[int, ...]

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        return tuple((low, high + more) for (low, high), more in zip(self.pads, self.extra, strict=True))


def _windows(n: OnnxNode, sizes: Sequence[Dim], kernel: Sequence[Dim]) -> Windows:
    """Return the geometry that a node's attributes give for axes of these sizes."""
    count, how = len(sizes), n.get("auto_pad", "NOTSET")
    strides, dilations = n.get("strides") or [1] * count, n.get("dilations") or [1] * count
    flat = n.get("pads") or [0] * (2 * count)
    pads, extra = list(zip(flat[:count], flat[count:], strict=True)), [0] * count
    up = bool(n.get("ceil_mode", 0))
    for i, (size, k, by, step) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        k = n.whole(k)
        covers = (k - 1) * step + 1
        if how.startswith("SAME"):
            total = covers - 1 if by == 1 else (-(-n.whole(size) // by) - 1) * by + covers - n.whole(size)
            if total < 0 and n.op.endswith("Pool"):
                n.refuse(f"{how} of a window that is shorter than its stride, of which implementations differ", "write the pads")
            total = max(total, 0)
            pads[i] = (total // 2, total - total // 2) if how == "SAME_UPPER" else (total - total // 2, total // 2)
        if up and by > 1:
            size = n.whole(size)
            room = size + sum(pads[i]) - covers
            places = -(-room // by) + 1
            places -= (places - 1) * by >= size + pads[i][0]     # no window starts behind the tensor
            extra[i] = max((places - 1) * by - room, 0)
    if any(p < 0 for pair in pads for p in pair):
        n.refuse("negative pads")
    return Windows(tuple(map(n.whole, kernel)), tuple(strides), tuple(dilations), tuple(pads), tuple(extra))


def _conv_of(n: OnnxNode, x: Node, weight: Node, bias: Node | None) -> Node:
    n.ignore("kernel_shape")
    w = _windows(n, x.shape[2:], weight.shape[2:])
    return c.conv(x, weight, bias, stride=w.strides, padding=w.pads, dilation=w.dilations, groups=n.get("group", 1))


@row("Conv")
def _conv(n: OnnxNode) -> Node:
    return _conv_of(n, n.x(), n.x(1), n.optional(2))


@row("ConvInteger")
def _conv_integer(n: OnnxNode) -> Node:
    x, weight = less_zero(n, 0, 2), less_zero(n, 1, 3, 0)
    return _conv_of(n, x.cast(f64), weight.cast(f64), None).cast(i32)   # products of bytes: exact in f64


@row("ConvTranspose")
def _conv_transpose(n: OnnxNode) -> Node:
    x, weight, bias = n.x(), n.x(1), n.optional(2)
    count, groups = x.rank - 2, n.get("group", 1)
    n.ignore("kernel_shape")
    more, wanted, how = n.get("output_padding") or [0] * count, n.get("output_shape"), n.get("auto_pad", "NOTSET")
    strides, dilations = n.get("strides") or [1] * count, n.get("dilations") or [1] * count
    flat = n.get("pads") or [0] * (2 * count)
    ch, per, kernel = weight.shape[0], weight.shape[1], weight.shape[2:]
    apart = weight.reshape(groups, d.product([ch]) // groups, per, *kernel)
    turned = apart.permute(0, 2, 1, *range(3, 3 + count)).reshape(groups * per, d.product([ch]) // groups, *kernel)
    cuts: list[tuple[int, int]] = []
    for i, (size, k, by, step) in enumerate(zip(x.shape[2:], kernel, strides, dilations, strict=True)):
        low, high, covers = flat[i], flat[count + i], (k - 1) * step + 1
        if wanted is not None or how.startswith("SAME"):
            total = by * (size - 1) + more[i] + covers - (wanted[i] if wanted is not None else size * by)
            if wanted is None and n.whole(total) < 0:
                n.refuse(f"{how} of ConvTranspose where the kernel is shorter than the stride", "write the pads")
            low, high = (total // 2, total - total // 2) if how == "SAME_UPPER" else (total - total // 2, total // 2)
        cuts.append((n.whole(covers - 1 - low), n.whole(covers - 1 - high + more[i])))
    for i, by in enumerate(strides, 2):                  # zeros between the elements
        if by > 1:
            grown = atomic.pad(x.reshape(*x.shape[:i + 1], 1, *x.shape[i + 1:]),
                               [(0, by - 1 if axis == i + 1 else 0) for axis in range(x.rank + 1)])
            x = grown.reshape(*x.shape[:i], x.shape[i] * by, *x.shape[i + 1:])
            x = atomic.slice(x, [(0, s - (by - 1) if axis == i else s, 1) for axis, s in enumerate(x.shape)])
    x = atomic.slice(x, [(0, s, 1) for s in x.shape[:2]] + [(max(-low, 0), s - max(-high, 0), 1)
                                                            for s, (low, high) in zip(x.shape[2:], cuts, strict=True)])
    padding = tuple((max(low, 0), max(high, 0)) for low, high in cuts)
    return c.conv(x, c.flip(turned, tuple(range(2, 2 + count))), bias, padding=padding, dilation=tuple(dilations), groups=groups)


@row("MaxPool")
def _max_pool(n: OnnxNode) -> Built:
    x, kernel, order = n.x(), n.get("kernel_shape"), n.get("storage_order", 0)
    w = _windows(n, x.shape[2:], kernel)
    out = c.max_pool(x, kernel, stride=w.strides, padding=w.padding, dilation=w.dilations)
    return [out, _places(x, w, order)] if n.wants(1) else out


def _places(x: Node, w: Windows, order: int) -> Node:
    """Return the place, in the flattened tensor, of the largest element of each window; order 1: the last axis varies slowest."""
    count = len(w.kernel)
    seen = c.windows(x, w.kernel, stride=w.strides, padding=w.padding, dilation=w.dilations,
                     value=-math.inf if x.dtype.is_float else x.dtype.min)
    lead, positions = x.shape[:2], seen.shape[2 + count:]
    best = c.argmax(seen.reshape(*lead, math.prod(w.kernel), *positions), axis=2).cast(i64)
    strides: list[Dim] = [d.product(x.shape[2:][i + 1:] if not order else x.shape[2:][:i]) for i in range(count)]
    place: Any = (atomic.iota(best.shape, 0, i64) * lead[1] + atomic.iota(best.shape, 1, i64)) * d.product(x.shape[2:])
    rest = best
    for i in reversed(range(count)):
        own = c.mod(rest, w.kernel[i]) * w.dilations[i] + atomic.iota(best.shape, 2 + i, i64) * w.strides[i] - w.pads[i][0]
        place, rest = place + own * strides[i], c.floor_div(rest, w.kernel[i])
    return place


def _sums(x: Node, w: Windows, padding: Sequence[tuple[int, int]]) -> Node:
    seen = c.windows(x, w.kernel, stride=w.strides, padding=padding, dilation=w.dilations)
    return seen.sum(tuple(range(x.rank - len(w.kernel), x.rank)))


@row("AveragePool")
def _average_pool(n: OnnxNode) -> Node:
    x, kernel, all_count = n.x(), n.get("kernel_shape"), bool(n.get("count_include_pad", 0))
    w = _windows(n, x.shape[2:], kernel)
    if set(w.dilations) == {1} and not any(w.extra):
        return c.avg_pool(x, kernel, stride=w.strides, padding=w.pads, count_padding=all_count)
    none = [(0, 0)] * len(kernel)
    ones = atomic.pad(c.ones((1, 1, *x.shape[2:]), x.dtype), [(0, 0), (0, 0), *w.pads], 1 if all_count else 0)
    grown = atomic.pad(ones, [(0, 0), (0, 0), *((0, more) for more in w.extra)])
    return c.div(_sums(x, w, w.padding), _sums(grown, w, none))


@row("LpPool")
def _lp_pool(n: OnnxNode) -> Node:
    x, kernel, p = n.x(), n.get("kernel_shape"), n.get("p", 2)
    w = _windows(n, x.shape[2:], kernel)
    return c.pow(_sums(c.pow(c.abs(x), p), w, w.padding), 1 / p)


def _all_places(n: OnnxNode) -> tuple[int, ...]:
    return tuple(range(2, n.x().rank))


row("GlobalAveragePool")(lambda n: c.mean(n.x(), _all_places(n), keepdims=True))
row("GlobalMaxPool")(lambda n: n.x().max(_all_places(n), keepdims=True))


@row("GlobalLpPool", since=2)
def _global_lp_pool(n: OnnxNode) -> Node:
    p = n.get("p", 2)
    return c.pow(c.pow(c.abs(n.x()), p).sum(_all_places(n), keepdims=True), 1 / p)


@row("MaxUnpool")
def _max_unpool(n: OnnxNode) -> Node:
    x, index, kernel = n.x(), n.x(1), n.get("kernel_shape")
    count = len(kernel)
    strides, pads = n.get("strides") or [1] * count, n.get("pads") or [0] * (2 * count)
    own = (*x.shape[:2], *((s - 1) * by - pads[i] - pads[count + i] + k
                           for i, (s, by, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))))
    size = d.product(x.shape)
    out = atomic.scatter(c.zeros((d.product(own),), x.dtype), index.reshape(size), x.reshape(size)).reshape(own)
    return atomic.pad(out, [(0, w - s) for w, s in zip(n.dims(2), own, strict=True)]) if n.has(2) else out


# ---- norms -----------------------------------------------------------------------------------------------------------


@row("BatchNormalization", since=6)
def _batch_norm(n: OnnxNode) -> Built:
    x, weight, bias, mean, var = (n.x(i) for i in range(5))
    eps, momentum, training = n.get("epsilon", 1e-5), n.get("momentum", 0.9), n.get("training_mode", 0)
    n.only("spatial", 1)
    n.before_7("consumed_inputs")
    if n.opset < 7 and not n.get("is_test", 0):
        n.refuse("BatchNormalization in training, of opset 6")
    if not training:
        return c.batch_norm(x, mean, var, weight, bias, eps=eps)
    axes = (0, *range(2, x.rank))
    own, spread = c.mean(x, axes), c.var(x, axes)
    return [c.batch_norm(x, own, spread, weight, bias, eps=eps), mean * momentum + own.cast(mean.dtype) * (1 - momentum),
            var * momentum + spread.cast(var.dtype) * (1 - momentum)]


@row("InstanceNormalization", since=6)
def _instance_norm(n: OnnxNode) -> Node:
    return c.group_norm(n.x(), n.x(1), n.x(2), groups=n.whole(n.x().shape[1]), eps=n.get("epsilon", 1e-5))


@row("GroupNormalization", since=21)
def _group_norm(n: OnnxNode) -> Node:
    n.ignore("stash_type")
    return c.group_norm(n.x(), n.x(1), n.x(2), groups=n.get("num_groups"), eps=n.get("epsilon", 1e-5))


@row("LayerNormalization", since=17)
def _layer_norm(n: OnnxNode) -> Built:
    x, axis, eps = n.x(), n.axis(-1), n.get("epsilon", 1e-5)
    n.only("stash_type", 1)
    rest = x.shape[axis:]
    flat = x if len(rest) == 1 else x.reshape(*x.shape[:axis], d.product(rest))
    vectors = [None if v is None else v if v.shape == rest and v.rank == 1 else broadcast_to(v, rest).reshape(d.product(rest))
               for v in (n.x(1), n.optional(2))]
    out = c.layer_norm(flat, *vectors, eps=eps).reshape(x.shape)
    if n.wanted == 1:
        return out
    axes = tuple(range(axis, x.rank))
    wide = x.cast(f32) if x.dtype.itemsize < 4 else x
    return [out, c.mean(wide, axes, keepdims=True), c.rsqrt(c.var(wide, axes, keepdims=True) + eps)]


@row("RMSNormalization", since=23)
def _rms_norm(n: OnnxNode) -> Node:
    x, axis, eps = n.x(), n.axis(-1), n.get("epsilon", 1e-5)
    n.only("stash_type", 1)
    rest = x.shape[axis:]
    flat = x if len(rest) == 1 else x.reshape(*x.shape[:axis], d.product(rest))
    weight = n.x(1) if len(rest) == 1 and n.x(1).rank == 1 else broadcast_to(n.x(1), rest).reshape(d.product(rest))
    return c.rms_norm(flat, weight, eps=eps).reshape(x.shape)


@row("LRN")
def _lrn(n: OnnxNode) -> Node:
    x, size = n.x(), n.get("size")
    if size > MOST_SLICES:
        n.refuse(f"LRN over {size} channels")
    before, squares, channels = (size - 1) // 2, n.x() * n.x(), n.x().shape[1]
    grown = atomic.pad(squares, [(before, size - 1 - before) if i == 1 else (0, 0) for i in range(x.rank)])
    total = sum((grown[:, k:k + channels] for k in range(1, size)), grown[:, 0:channels])
    return x / c.pow(n.get("bias", 1.0) + total * (n.get("alpha", 1e-4) / size), n.get("beta", 0.75))


@row("LpNormalization")
def _lp_norm(n: OnnxNode) -> Node:
    x, axis, p = n.x(), n.axis(-1), n.get("p", 2)
    size = c.abs(x).sum(axis, keepdims=True) if p == 1 else atomic.sqrt((x * x).sum(axis, keepdims=True))
    return c.where(c.equals(size, 0), 0.0 * x, x / size)


