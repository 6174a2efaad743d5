"""convolution: conv1d, conv2d and conv3d, with any stride, padding, dilation and number of groups, and their transposes.

The definition is the matrix product of the weight and the windows of x (windows.py), so that kernels of `dot` compute it. Where
each group has one channel (depthwise), it is a sum over the offsets instead, since a matrix product would have one row. A 1×1
window of stride 1 is a product with x itself. "Convolution" is cross-correlation, as in torch: the weight is not flipped.
A transposed convolution is, for each remainder of a place by the stride, a convolution of x with every stride-th tap of the flipped
weight; the results are interleaved.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import need, same_dim, show
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites.elementary import wide
from tensor_graphs.language.composites.indexing import concat, flip
from tensor_graphs.language.composites.products import dot, need_bias
from tensor_graphs.language.composites.windows import (
    Geometry,
    Padding,
    PerAxis,
    geometry,
    padded,
    per_axis,
    spread,
    strided,
    windows,
)
from tensor_graphs.language.dim_proofs import dim_ge, exact_div
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = ["conv", "conv1d", "conv2d", "conv3d", "conv_transpose"]

Attributes = Mapping[str, Any]
Gradients = dict[str, Node | None]


def _check(op: str, x: Node, weight: Node, bias: Node | None, groups: Any) -> None:
    need(op, x, "float")
    need(f"{op} (weight)", weight, "float")
    if x.rank < 3 or weight.rank != x.rank:
        raise ShapeError(f"{op} of {show(x)} and the weight {show(weight)}: they need as many axes",
                         fix="x[n, c, …] and weight[out, c / groups, …], with one to three axes for …")
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise AttributeValueError(f"{op}: groups is {groups!r}", fix="an int ≥ 1")
    per = exact_div(x.shape[1], groups)
    if per is None or not same_dim(per, weight.shape[1]):
        raise ShapeError(f"{op} of {show(x)} and the weight {show(weight)} in {groups} group{'s' * (groups > 1)}: axis 1 of the "
                         f"weight has the size {format_dim(weight.shape[1])}, {format_dim(x.shape[1])} / {groups} is needed",
                         fix="weight[out, c / groups, …] for x[n, c, …]")
    if exact_div(weight.shape[0], groups) is None:
        raise ShapeError(f"{op} of {show(x)} and the weight {show(weight)}: {format_dim(weight.shape[0])} outputs are not a "
                         f"multiple of {groups} groups", fix="as many outputs for each group")
    if not all(isinstance(k, int) for k in weight.shape[2:]):
        raise ShapeError(f"{op} of the weight {show(weight)}: the size of its windows is a dim", fix="ints in its last axes")
    if bias is not None:
        need_bias(op, weight, bias)


def _geometry(weight_shape: Any, attrs: Attributes) -> Geometry:
    return Geometry(tuple(int(k) for k in weight_shape[2:]), attrs["stride"], attrs["padding"], attrs["dilation"])


def _product(shape: Any) -> Dim:
    return d.product(tuple(shape))


def _columns(x: Node, how: Geometry, groups: int) -> Node:
    """Return [n, groups, c / groups · k…, p…], the elements of the windows: a row for each weight of an output."""
    n, c = x.shape[:2]
    seen = x
    if any(k != 1 for k in how.size) or any(s != 1 for s in how.stride) or any(map(any, how.padding)):
        seen = windows(x, how.size, stride=how.stride, padding=how.padding, dilation=how.dilation)
    per = exact_div(c, groups)
    assert per is not None
    return atomic.reshape(seen, (n, groups, per * _product(how.size), _product(how.places(x.shape[2:]))))


def _conv_direct(roles: Mapping[str, np.ndarray], attrs: Attributes, out_types: Any) -> np.ndarray:
    x, weight, groups = roles["x"], roles["weight"], attrs["groups"]
    how = _geometry(weight.shape, attrs)
    n, out = x.shape[0], weight.shape[0]
    places = cast(tuple[int, ...], how.places(x.shape[2:]))
    rows = weight.reshape(groups, out // groups, -1)
    result = np.empty((n, groups, out // groups, int(np.prod(places))), np.float64)
    for i in range(n):                                          # one image at a time: windows are many times as large
        seen = strided(padded(x[i], how.padding, 0), how).reshape(groups, rows.shape[2], result.shape[3])
        result[i] = np.matmul(rows, seen)
    result = result.reshape(n, out, *places)
    return result + roles["bias"].reshape(-1, *(1,) * len(places)) if "bias" in roles else result


@of_one_output
def _conv_gradient(node: Node, g: Node) -> Gradients:
    """Return gradients. To x: the convolution of g, spread by the stride, with the flipped weight; to the weight: g · windows."""
    roles, attrs = _conv.roles(node), node.attrs
    x, weight, groups = roles["x"], roles["weight"], attrs["groups"]
    how = _geometry(weight.shape, attrs)
    out, lead = weight.shape[0], 2
    group_channels = exact_div(out, groups)
    assert group_channels is not None
    apart = g
    zeros: list[tuple[Dim, Dim]] = [(0, 0), (0, 0)]
    inside: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in x.shape[:2]]
    for axis, (k, by, (low, _), step) in enumerate(zip(*how, strict=True), lead):
        apart = spread(apart, axis, by)
        covers = step * (k - 1)
        zeros.append((covers, covers))
        inside.append((low, low + x.shape[axis], 1))
    turned = _transposed(weight, groups)
    ones = (1,) * len(how.size)
    full = _conv(apart, atomic.cast(turned, x.dtype), stride=ones, padding=tuple(zeros[lead:]), dilation=how.dilation,
                 groups=groups)
    to_x = atomic.slice(full, inside)
    n, places = x.shape[0], _product(g.shape[2:])
    seen = atomic.permute(_columns(x, how, groups), (1, 2, 0, 3))                   # [groups, c / groups · k…, n, p…]
    seen = atomic.reshape(seen, (*seen.shape[:2], n * places))
    by_group = atomic.permute(atomic.reshape(g, (n, groups, group_channels, places)), (1, 0, 3, 2))
    to_weight = dot(seen, atomic.reshape(by_group, (groups, n * places, group_channels)))
    to_weight = atomic.reshape(atomic.permute(to_weight, (0, 2, 1)), weight.shape)
    gradients: Gradients = {"x": to_x, "weight": atomic.cast(to_weight, weight.dtype)}
    if "bias" in roles:
        total = atomic.sum(wide(g), (0, *range(lead, g.rank)))
        gradients["bias"] = atomic.cast(total, roles["bias"].dtype)
    return gradients


@library(name="conv", direct=_conv_direct, gradient=_conv_gradient, facts=OpFacts(product=True, closed=True, sought=False))
def _conv(x: Node, weight: Node, bias: Node | None = None, *, stride: tuple[int, ...], padding: tuple[tuple[int, int], ...],
          dilation: tuple[int, ...], groups: int) -> Node:
    """See `conv`: in this op, each attribute has one number for each axis, and padding has pairs (before, behind)."""
    _check("conv", x, weight, bias, groups)
    how = geometry("conv", cast(tuple[int, ...], weight.shape[2:]), stride, padding, dilation).check("conv", x)
    n, out, places = x.shape[0], weight.shape[0], how.places(x.shape[2:])
    group_channels = exact_div(out, groups)
    assert group_channels is not None
    seen, rows = _columns(x, how, groups), atomic.cast(weight, x.dtype)
    if weight.shape[1] == 1:                                        # [n, groups, out / groups, k…, p…], summed over k
        full = (n, groups, group_channels, *seen.shape[2:])
        apart = broadcast_to(atomic.reshape(wide(seen), (n, groups, 1, *seen.shape[2:])), full)
        by = broadcast_to(atomic.reshape(wide(rows), (groups, group_channels, seen.shape[2], 1)), full)
        result = atomic.cast(atomic.sum(atomic.mul(apart, by), (3,)), x.dtype)
    elif groups == 1:
        result = dot(atomic.reshape(rows, (out, seen.shape[2])), atomic.reshape(seen, (n, *seen.shape[2:])))
    else:
        result = dot(atomic.reshape(rows, (groups, group_channels, seen.shape[2])), seen)
    result = atomic.reshape(result, (n, out, *places))
    if bias is None:
        return result
    return atomic.add(result, broadcast_to(atomic.reshape(atomic.cast(bias, x.dtype), (out, *(1,) * len(places))), result.shape))


def conv(x: Node, weight: Node, bias: Node | None = None, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
         groups: int = 1) -> Node:
    """out[n, o, p…] = bias[o] + Σ x[n, c, stride · p + dilation · k − padding] · weight[o, c, k…] over c and k; around x are zeros.

    x[n, c, …], weight[out, c / groups, k…] for any number of axes …, as torch.nn.functional.conv2d (which turns no weight round).
    Along each, p has (size + padding − dilation · (k − 1) − 1) // stride + 1 places. stride, padding (at both ends), dilation: an
    int, or one for each axis; for padding also pairs (before, behind). groups: the channels in this many groups, each with its own
    outputs; with c groups it is depthwise. In x's dtype; weight and bias may have another float dtype, as in `linear`; narrow
    floats are multiplied and summed in f32. Raises ShapeError, AttributeValueError, DTypeError.
    """
    return _made("conv", None, x, weight, bias, stride, padding, dilation, groups)


def _made(op: str, axes: int | None, x: Node, weight: Node, bias: Node | None, stride: PerAxis, padding: Padding,
          dilation: PerAxis, groups: int) -> Node:
    if axes is not None and x.rank != axes + 2:
        sizes = ", ".join(("w", "hw", "dhw")[axes - 1])
        raise ShapeError(f"{op} of {show(x)}: it has {x.rank} axes", fix=f"x[n, c, {sizes}] and weight[out, c / groups, …]")
    _check(op, x, weight, bias, groups)
    how = geometry(op, cast(tuple[int, ...], weight.shape[2:]), stride, padding, dilation).check(op, x).attributes
    return _conv(x, weight, bias, **{k: v for k, v in how.items() if k != "size"}, groups=groups)


def conv1d(x: Node, weight: Node, bias: Node | None = None, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
           groups: int = 1) -> Node:
    """x[n, c, w], weight[out, c / groups, kw], bias[out] -> [n, out, w′]: `conv` over one axis.

    Floats. Raises ShapeError, AttributeValueError, DTypeError.
    """
    return _made("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(x: Node, weight: Node, bias: Node | None = None, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
           groups: int = 1) -> Node:
    """x[n, c, h, w], weight[out, c / groups, kh, kw], bias[out] -> [n, out, h′, w′]: `conv` over two axes.

    Floats. Raises ShapeError, AttributeValueError, DTypeError.
    """
    return _made("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(x: Node, weight: Node, bias: Node | None = None, *, stride: PerAxis = 1, padding: Padding = 0, dilation: PerAxis = 1,
           groups: int = 1) -> Node:
    """x[n, c, d, h, w], weight[out, c / groups, kd, kh, kw], bias[out] -> [n, out, d′, h′, w′]: `conv` over three axes.

    Floats. Raises ShapeError, AttributeValueError, DTypeError.
    """
    return _made("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


# ---- transposed convolution ------------------------------------------------------------------------------------------


def conv_transpose(x: Node, weight: Node, bias: Node | None = None, *, stride: PerAxis = 1, padding: Padding = 0,
                   output_padding: PerAxis = 0, dilation: PerAxis = 1, groups: int = 1) -> Node:
    """The transpose of `conv`, + bias[o]: each element of x adds its multiple of the weight to a window of the result.

    x[n, c, …], weight[c, out / groups, k…] -> [n, out, …], as torch.nn.functional.conv_transpose2d, for any number of axes …: along
    each, the result has (size − 1) · stride + dilation · (k − 1) + 1 + output_padding elements, less the padding, which is cut off
    (a pair: before, behind). The attributes are an int, or one for each axis. In x's dtype; weight and bias may have another float
    dtype. Raises ShapeError, AttributeValueError, DTypeError. Source: Dumoulin and Visin 2016.
    """
    op = "conv_transpose"
    need(op, x, "float")
    need(f"{op} (weight)", weight, "float")
    if x.rank < 3 or weight.rank != x.rank or not same_dim(x.shape[1], weight.shape[0]):
        raise ShapeError(f"{op} of {show(x)} and the weight {show(weight)}: they need as many axes, and x's channels in axis 0 "
                         "of the weight", fix="x[n, c, …] and weight[c, out / groups, …]")
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or exact_div(weight.shape[0], groups) is None:
        raise AttributeValueError(f"{op} of {show(x)}: groups is {groups!r}", fix="an int ≥ 1 that divides the channels of axis 1")
    if not all(isinstance(k, int) for k in weight.shape[2:]):
        raise ShapeError(f"{op} of the weight {show(weight)}: the size of its windows is a dim", fix="ints in its last axes")
    how = geometry(op, cast(tuple[int, ...], weight.shape[2:]), stride, padding, dilation)
    extra = per_axis(op, "output_padding", output_padding, len(how.size), 0)
    if any(more >= max(by, step) for more, by, step in zip(extra, how.stride, how.dilation, strict=True)):
        raise AttributeValueError(f"{op}: output_padding {extra} with stride {how.stride} and dilation {how.dilation}",
                                  fix="less than the stride or the dilation of its axis")
    turned, axes = _transposed(weight, groups), []
    for axis, (k, by, (low, high), step), more in zip(range(2, x.rank), zip(*how, strict=True), extra, strict=True):
        rest = step * (k - 1) + 1 + more - low - high - by             # elements of the result beyond `by` for each of x
        if step > 1 < by:
            x, by = spread(x, axis, by), 1
        axes.append(_Axis(k, by, low, step, rest))
        if any(dim_ge(x.shape[axis] + sum(min(side, 0) for side in axes[-1].around(*phases)), 0) is False
               for phases in axes[-1].phases()):
            raise ShapeError(f"{op} of {show(x)} by the weight {show(weight)}: the padding {(low, high)} cuts all of axis {axis} "
                             "off", fix="less padding")
    return _interleaved(x, turned, bias, axes, groups)


class _Axis(NamedTuple):
    """An axis of a transposed convolution whose result has x's size · by + rest elements. by or step is 1."""

    k: int
    by: int
    low: int
    step: int
    rest: int

    def phases(self) -> list[tuple[int, int, range]]:
        """Return (shift, taps, numbers r) of the places by · q + r of the result that have these: at them it is the sum, over j
        below taps, of x[q + shift − step · j] · weight[(r + low) % by + by · j]."""
        return [(*key, range(min(same), max(same) + 1)) for key, same in ((key, list(group)) for key, group in itertools.groupby(
            range(self.by), lambda r: ((r + self.low) // self.by, len(range((r + self.low) % self.by, self.k, self.by)))))]

    def around(self, shift: int, taps: int, numbers: range) -> tuple[int, int]:
        """Return zeros before and behind x for which a convolution by `taps` has an element for each q; negative: to be cut."""
        covers = self.step * max(taps - 1, 0)
        before = covers - shift
        return before, covers - before - (-self.rest // self.by)


def _interleaved(x: Node, turned: Node, bias: Node | None, axes: Sequence[_Axis], groups: int) -> Node:
    """Return a transposed convolution as one convolution for all places of the result that read the same window of x, without the
    zeros between x's elements. turned: weight as [out, c / groups, k…], reversed along each k."""
    count, out, sizes = len(axes), turned.shape[0], x.shape[2:]
    taps = [-(-a.k // a.by) for a in axes]
    zeros: list[tuple[Dim, Dim]] = [(0, 0), (0, 0), *((n * a.by - a.k, 0) for n, a in zip(taps, axes, strict=True))]
    apart = atomic.reshape(atomic.pad(turned, zeros, 0),
                           (*turned.shape[:2], *(s for n, a in zip(taps, axes, strict=True) for s in (n, a.by))))
    order = (0, *range(3, 3 + 2 * count, 2), 1, *range(2, 2 + 2 * count, 2))
    places = [size + -(-a.rest // a.by) for size, a in zip(sizes, axes, strict=True)]

    def phase(chosen: Sequence[tuple[int, int, range]]) -> Node:
        """Return [n, out, r…, q…]."""
        numbers = [len(r) for _, _, r in chosen]
        shape = (x.shape[0], out, *numbers, *places)
        added = None if bias is None else atomic.reshape(broadcast_to(atomic.reshape(bias, (out, *(1,) * count)), (out, *numbers)),
                                                         (out * d.product(tuple(numbers)),))
        if any(n == 0 for _, n, _ in chosen):                          # no element of x reaches these places
            nothing = atomic.fill(0, (x.shape[0], out * d.product(tuple(numbers)), *places), x.dtype)
            flat = nothing if added is None else atomic.add(nothing, broadcast_to(
                atomic.reshape(atomic.cast(added, x.dtype), (-1, *(1,) * count)), nothing.shape))
            return atomic.reshape(flat, shape)
        bounds: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in turned.shape[:2]]
        inside: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in x.shape[:2]]
        around = []
        for a, most, size, (shift, n, r) in zip(axes, taps, sizes, chosen, strict=True):
            last = a.by - 1 - (r[0] + a.low) % a.by                    # reversed as the taps are
            bounds += [(most - n, most, 1), (last, last - len(r), -1)]
            before, behind = a.around(shift, n, r)
            inside.append((max(-before, 0), size + min(behind, 0), 1))
            around.append((max(before, 0), max(behind, 0)))
        own = atomic.permute(atomic.slice(apart, bounds), order)
        own = atomic.reshape(own, (out * d.product(tuple(numbers)), *own.shape[1 + count:]))
        y = conv(atomic.slice(x, inside), own, added, padding=tuple(around), dilation=tuple(a.step for a in axes), groups=groups)
        return atomic.reshape(y, shape)

    def from_axis(chosen: Sequence[tuple[int, int, range]]) -> Node:
        if len(chosen) == count:
            return phase(chosen)
        pieces = [from_axis((*chosen, more)) for more in axes[len(chosen)].phases()]
        return concat(*pieces, axis=2 + len(chosen)) if len(pieces) > 1 else pieces[0]

    result = atomic.permute(from_axis(()), (0, 1, *(i for a in range(count) for i in (2 + count + a, 2 + a))))
    result = atomic.reshape(result, (x.shape[0], out, *(n * a.by for n, a in zip(places, axes, strict=True))))
    return atomic.slice(result, [(0, s, 1) for s in (x.shape[0], out)] + [
        (0, size * a.by + a.rest, 1) for size, a in zip(sizes, axes, strict=True)])


def _transposed(weight: Node, groups: int) -> Node:
    """Return weight[c, out / groups, k…] as [out, c / groups, k…], reversed along each k."""
    channels, out, sizes = weight.shape[0], weight.shape[1], weight.shape[2:]
    per = exact_div(channels, groups)
    assert per is not None
    turned = atomic.reshape(flip(weight, tuple(range(2, weight.rank))), (groups, per, out, *sizes))
    turned = atomic.permute(turned, (0, 2, 1, *range(3, turned.rank)))
    return atomic.reshape(turned, (groups * out, per, *sizes))
