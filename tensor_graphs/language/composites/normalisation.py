"""normalisation: softmax and its relatives, means and variances, RMS norm and layer norm, norms over channels.

Operands narrower than 32 bits are computed in f32 and rounded once. Where dims are symbolic, a mean divides by an expression of
them. Sources: RMS norm, Zhang and Sennrich 2019; layer norm, Ba, Kiros and Hinton 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import need, same_dim, show
from tensor_graphs.language.axis import Axes, one_axis, several_axes
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import exp, log, wide
from tensor_graphs.language.dim_proofs import exact_div
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to, keep

__all__ = [
    "batch_norm", "cross_entropy", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "log_softmax", "logsumexp",
    "mean", "rms_norm", "softmax", "var"
]

Roles = Mapping[str, np.ndarray]
Attributes = Mapping[str, Any]
Gradients = dict[str, Node | None]


def _numpy_axes(axes: Any) -> Any:
    return tuple(axes) if isinstance(axes, (list, tuple)) else axes


# ---- softmax ---------------------------------------------------------------------------------------------------------


def _softmax_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x, axis = roles["x"], attrs["axis"]
    e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(e / np.sum(e, axis=axis, keepdims=True))


@of_one_output
def _softmax_gradient(node: Node, g: Node) -> Gradients:
    y, g = wide(node), wide(g)
    gy = g * y
    return {"x": atomic.cast(gy - y * gy.sum(node.attrs["axis"], keepdims=True), node.dtype)}


@library(direct=_softmax_direct, gradient=_softmax_gradient, facts=OpFacts(mentioned=True))
def softmax(x: Node, axis: int = -1) -> Node:
    """e^(x − max x) / Σ e^(x − max x) along `axis`.

    −∞ weighs nothing; a row of nothing but −∞ has no softmax and gives NaN, as does one with +∞ (as scipy and torch).

    x of a float dtype -> its shape and dtype. Raises AttributeValueError (axis), DTypeError. Source: Bridle 1990.
    """
    need("softmax", x, "float")
    axis = one_axis("softmax", axis, x.rank)
    w = wide(x)
    e = exp(w - w.max(axis, keepdims=True))
    return atomic.cast(e / e.sum(axis, keepdims=True), x.dtype)


def _log_softmax_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x, axis = roles["x"], attrs["axis"]
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


@of_one_output
def _log_softmax_gradient(node: Node, g: Node) -> Gradients:
    y, g = wide(node), wide(g)
    return {"x": atomic.cast(g - exp(y) * g.sum(node.attrs["axis"], keepdims=True), node.dtype)}


@library(direct=_log_softmax_direct, gradient=_log_softmax_gradient)
def log_softmax(x: Node, axis: int = -1) -> Node:
    """log softmax(x) = (x − max x) − log Σ e^(x − max x) along `axis`, finite where softmax underflows.

    x of a float dtype -> its shape and dtype. Raises AttributeValueError (axis), DTypeError.
    """
    need("log_softmax", x, "float")
    axis = one_axis("log_softmax", axis, x.rank)
    w = wide(x)
    shifted = w - w.max(axis, keepdims=True)
    return atomic.cast(shifted - log(exp(shifted).sum(axis, keepdims=True)), x.dtype)


def cross_entropy(logits: Node, target: Node, axis: int = -1) -> Node:
    """−log softmax(logits) at the class `target`, for each element of target: tg.mean of it is the usual loss.

    logits[…, c, …] of a float dtype, target[…] of integers, without `axis` -> [… ] of the logits' dtype; 0 where target is no class
    (−1, −100), so that padding does not count. Raises AttributeValueError (axis), ShapeError, DTypeError.
    """
    need("cross_entropy", logits, "float")
    need("cross_entropy", target, "int", "uint")
    axis = one_axis("cross_entropy", axis, logits.rank)
    rest = (*logits.shape[:axis], *logits.shape[axis + 1:])
    if len(rest) != target.rank or not all(map(atomic.same_dim, rest, target.shape)):
        raise ShapeError(f"cross_entropy of {show(logits)} and {show(target)}: the targets have not the logits' shape without "
                         f"axis {axis}", fix="one integer for each row of classes")
    ids = atomic.cast(target, i32) if target.dtype.itemsize < i32.itemsize else target    # as one_hot
    at = broadcast_to(atomic.reshape(ids, (*target.shape[:axis], 1, *target.shape[axis:])), logits.shape)
    chosen = arithmetic.equals(atomic.iota(logits.shape, axis, ids.dtype), at)
    return -atomic.sum(arithmetic.where(chosen, log_softmax(logits, axis), 0.0), (axis,))


def _logsumexp_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x, axis = roles["x"], attrs["axis"]
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0.0)
    out = np.log(np.sum(np.exp(x - shift), axis=axis, keepdims=True)) + shift
    return np.asarray(out if attrs["keepdims"] else np.squeeze(out, axis=axis))


@of_one_output
def _logsumexp_gradient(node: Node, g: Node) -> Gradients:
    x = node.inputs[0]
    axis = one_axis("logsumexp", node.attrs["axis"], x.rank)
    with_ones = tuple(1 if i == axis else s for i, s in enumerate(x.shape))
    back = broadcast_to(atomic.reshape(g, with_ones), x.shape)
    return {"x": back * softmax(x, axis=axis)}


@library(direct=_logsumexp_direct, gradient=_logsumexp_gradient)
def logsumexp(x: Node, axis: int = -1, *, keepdims: bool = False) -> Node:
    """log Σ e^x along `axis`, which disappears, or stays with size 1.

    Computed as m + log Σ e^(x − m), m the maximum, or 0 where that is not finite. A row of nothing but −∞, and an empty
    one, give −∞; a row with +∞ gives +∞.

    x of a float dtype; the result has its dtype. Raises AttributeValueError (axis), DTypeError. Source: Blanchard, Higham and
    Higham, "Accurately computing the log-sum-exp and softmax functions", 2021.
    """
    need("logsumexp", x, "float")
    axis = one_axis("logsumexp", axis, x.rank)
    w = wide(x)
    top = w.max(axis, keepdims=True)
    shift = arithmetic.where(arithmetic.is_finite(top), top, 0.0)
    out = log(exp(w - shift).sum(axis, keepdims=True)) + shift
    shape = out.shape if keepdims else tuple(s for i, s in enumerate(out.shape) if i != axis)
    return atomic.cast(atomic.reshape(out, shape), x.dtype)


# ---- mean and variance -----------------------------------------------------------------------------------------------


def _mean(w: Node, axes: tuple[int, ...]) -> Node:
    """Return the mean over the axes, which stay with size 1."""
    count: Dim = 1
    for axis in axes:
        count = count * w.shape[axis]
    total = keep(w, atomic.sum(w, axes), axes, True)
    return total * atomic.reciprocal(constant(count, w.dtype))


def _reduced(name: str, x: Node, axes: Axes) -> tuple[int, ...]:
    need(name, x, "float")
    return several_axes(name, axes, x.rank)


def _drop(x: Node, reduced: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """Return `reduced`, whose reduced axes have size 1, in x's dtype and without those axes unless keepdims."""
    shape = reduced.shape if keepdims else tuple(s for i, s in enumerate(reduced.shape) if i not in axes)
    return atomic.cast(atomic.reshape(reduced, shape), x.dtype)


def _statistic(f: Callable[..., Any]) -> Callable[[Roles, Attributes, Any], np.ndarray]:
    def direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
        x, axes = roles["x"], _numpy_axes(attrs["axes"])
        size = x.size if axes is None else int(np.prod([x.shape[a] for a in np.atleast_1d(axes)], dtype=np.int64))
        if size == 0:                                    # 0/0, without numpy's warning
            return np.full(np.sum(x, axis=axes, keepdims=attrs["keepdims"]).shape, np.nan)
        return np.asarray(f(x, axis=axes, keepdims=attrs["keepdims"]))

    return direct


@library(name="mean", direct=_statistic(np.mean))
def _mean_over(x: Node, *, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """See `mean`."""
    reduced_axes = _reduced("mean", x, axes)
    return _drop(x, _mean(wide(x), reduced_axes), reduced_axes, keepdims)


@library(name="var", direct=_statistic(np.var))
def _var_over(x: Node, *, axes: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """See `var`."""
    reduced_axes = _reduced("var", x, axes)
    w = wide(x)
    centred = w - _mean(w, reduced_axes)
    return _drop(x, _mean(centred * centred, reduced_axes), reduced_axes, keepdims)


def _stored(name: str, axis: Axes, x: Node) -> Axes:
    """Check `axis`, and return it unchanged but for lists, which become tuples: signatures in the database have it so."""
    several_axes(name, axis, x.rank)
    return axis if axis is None or isinstance(axis, (int, np.integer)) else tuple(int(a) for a in axis)


def mean(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """Σ x / count over the axes (all by default); of nothing: NaN.

    x of floats; the axes disappear, or stay with size 1 (keepdims). Raises AttributeValueError (axis), DTypeError.
    """
    return _mean_over(x, axes=_stored("mean", axis, x), keepdims=keepdims)


def var(x: Node, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Node:
    """The variance over the axes (all by default): the mean of (x − mean(x))², that is, the sum is divided by n, not by n − 1.

    x of floats; the axes disappear, or stay with size 1 (keepdims). The variance of no numbers is NaN. Raises AttributeValueError
    (axis), DTypeError. Source: the two-pass formula, Chan, Golub and LeVeque 1983.
    """
    return _var_over(x, axes=_stored("var", axis, x), keepdims=keepdims)


# ---- RMS norm and layer norm -----------------------------------------------------------------------------------------


def _last_axis(name: str, x: Node, **vectors: Node | None) -> int:
    """Return the number of the last axis, after checking that each vector has one element for each of its channels."""
    need(name, x, "float")
    if x.rank == 0:
        raise ShapeError(f"{name} of {show(x)}: a scalar has no last axis")
    _need_vectors(name, x, x.shape[-1], "the last axis", vectors)
    return x.rank - 1


def _need_vectors(name: str, x: Node, size: Dim, axis: str, vectors: Mapping[str, Node | None]) -> None:
    """Raise DTypeError, ShapeError unless each vector that is not None has `size` elements. axis: x's axis of that size."""
    for role, v in vectors.items():
        if v is not None:
            need(f"{name} ({role})", v, "float")
            if v.rank != 1 or not same_dim(v.shape[0], size):
                raise ShapeError(f"{name} of {show(x)}: the {role} is {show(v)}",
                                 fix=f"one axis of {format_dim(size)} elements, as many as {axis} of x has")


def _require_eps(name: str, eps: float) -> None:
    """Raise AttributeValueError unless eps is a finite number ≥ 0: it is added to a variance, whose root is taken."""
    if isinstance(eps, bool) or not isinstance(eps, (int, float, np.floating)) or not 0 <= eps < math.inf:
        raise AttributeValueError(f"{name}: eps is {eps!r}", fix="a finite number of 0 or more, as 1e-6")


def _rms_inverse(w: Node, eps: float) -> Node:
    return arithmetic.rsqrt(_mean(w * w, (w.rank - 1,)) + eps)


def _rms_norm_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x = roles["x"]
    out = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + attrs["eps"]) if x.size else x
    return np.asarray(out * (attrs["offset"] + roles["weight"]) if "weight" in roles else out)


def _sum_rows(x: Node) -> Node:
    return atomic.sum(x, tuple(range(x.rank - 1)))


@of_one_output
def _rms_norm_gradient(node: Node, g: Node) -> Gradients:
    roles = rms_norm.roles(node)
    x, weight = roles["x"], roles.get("weight")
    w, g = wide(x), wide(g)
    inverse = _rms_inverse(w, node.attrs["eps"])
    unit = w * inverse
    out: Gradients = {}
    gu = g
    if weight is not None:
        gu = g * (atomic.cast(weight, w.dtype) + node.attrs["offset"])
        out["weight"] = atomic.cast(_sum_rows(g * unit), weight.dtype)
    out["x"] = atomic.cast((gu - unit * _mean(gu * unit, (w.rank - 1,))) * inverse, x.dtype)
    return out


@library(direct=_rms_norm_direct, gradient=_rms_norm_gradient, facts=OpFacts(contains=("sum", "sqrt")))
def rms_norm(x: Node, weight: Node | None = None, *, eps: float = 1e-6, offset: float = 0.0) -> Node:
    """x[…, d] · rsqrt(mean(x²) + eps) · (offset + weight[d]), over the last axis.

    offset = 1 for weights that are stored around 0 (Gemma). weight may have another float dtype: it is cast to the one
    computed in. Without a weight the factor is 1. Raises ShapeError, DTypeError.

    x of a float dtype -> its shape and dtype. Source: Zhang and Sennrich 2019.
    """
    _require_eps("rms_norm", eps)
    _last_axis("rms_norm", x, weight=weight)
    w = wide(x)
    out = w * _rms_inverse(w, eps)
    if weight is not None:
        out = out * (atomic.cast(weight, w.dtype) + offset if offset else atomic.cast(weight, w.dtype))
    return atomic.cast(out, x.dtype)


def _layer_norm_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x = roles["x"]
    centred = x - np.mean(x, axis=-1, keepdims=True) if x.size else x
    out = centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + attrs["eps"]) if x.size else x
    out = out * roles["weight"] if "weight" in roles else out
    return np.asarray(out + roles["bias"] if "bias" in roles else out)


@of_one_output
def _layer_norm_gradient(node: Node, g: Node) -> Gradients:
    roles = layer_norm.roles(node)
    x, weight, bias = roles["x"], roles.get("weight"), roles.get("bias")
    w, g = wide(x), wide(g)
    last = (w.rank - 1,)
    centred = w - _mean(w, last)
    inverse = _rms_inverse(centred, node.attrs["eps"])
    unit = centred * inverse
    out: Gradients = {}
    gu = g
    if weight is not None:
        gu = g * atomic.cast(weight, w.dtype)
        out["weight"] = atomic.cast(_sum_rows(g * unit), weight.dtype)
    if bias is not None:
        out["bias"] = atomic.cast(_sum_rows(g), bias.dtype)
    out["x"] = atomic.cast((gu - _mean(gu, last) - unit * _mean(gu * unit, last)) * inverse, x.dtype)
    return out


@library(direct=_layer_norm_direct, gradient=_layer_norm_gradient,
         facts=OpFacts(contains=("sum", "sqrt")))
def layer_norm(x: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float = 1e-5) -> Node:
    """(x − mean x) · rsqrt(var x + eps) · weight[d] + bias[d], over the last axis of x[…, d].

    weight and bias may have another float dtype: they are cast to the dtype computed in. Raises ShapeError, DTypeError.

    x of a float dtype -> its shape and dtype. Source: Ba, Kiros and Hinton 2016.
    """
    _require_eps("layer_norm", eps)
    last = (_last_axis("layer_norm", x, weight=weight, bias=bias),)
    w = wide(x)
    centred = w - _mean(w, last)
    out = centred * _rms_inverse(centred, eps)
    if weight is not None:
        out = out * atomic.cast(weight, w.dtype)
    if bias is not None:
        out = out + atomic.cast(bias, w.dtype)
    return atomic.cast(out, x.dtype)


# ---- norms over channels: x[n, c, …] ---------------------------------------------------------------------------------


def _channels(name: str, x: Node, **vectors: Node | None) -> Dim:
    """Return the size of axis 1, after checking that each vector has one element for each channel."""
    need(name, x, "float")
    if x.rank < 2:
        raise ShapeError(f"{name} of {show(x)}: it has no axis of channels", fix="x[n, c, …]")
    _need_vectors(name, x, x.shape[1], "axis 1", vectors)
    return x.shape[1]


def _per_channel(v: Node, like: Node) -> Node:
    """Return v[c] broadcast to the shape of like[n, c, …], in its dtype."""
    return broadcast_to(atomic.reshape(atomic.cast(v, like.dtype), (v.shape[0], *(1,) * (like.rank - 2))), like.shape)


def _of_channels(roles: Roles, name: str) -> np.ndarray:
    return roles[name].reshape(-1, *(1,) * (roles["x"].ndim - 2))


def _group_norm_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    x = roles["x"]
    rows = x.reshape(x.shape[0], attrs["groups"], -1) if x.size else x
    out = _layer_norm_direct({"x": rows}, attrs, out_types).reshape(x.shape)
    out = out * _of_channels(roles, "weight") if "weight" in roles else out
    return np.asarray(out + _of_channels(roles, "bias") if "bias" in roles else out)


@library(direct=_group_norm_direct, facts=OpFacts(closed=True, sought=False))
def group_norm(x: Node, weight: Node | None = None, bias: Node | None = None, *, groups: int, eps: float = 1e-5) -> Node:
    """layer_norm of each of `groups` groups of channels of x[n, c, …] with all that lies behind, · weight[c] + bias[c].

    groups = 1 is a norm of each n; groups = c, of each channel (instance norm). weight and bias may have another float dtype.
    x of a float dtype -> its shape and dtype. Raises AttributeValueError, ShapeError, DTypeError. Source: Wu and He 2018.
    """
    _require_eps("group_norm", eps)
    channels = _channels("group_norm", x, weight=weight, bias=bias)
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or exact_div(channels, groups) is None:
        raise AttributeValueError(f"group_norm of {show(x)}: groups is {groups!r}",
                                  fix=f"an int that divides {format_dim(channels)}, the channels of axis 1")
    group_channels = exact_div(channels, groups)
    assert group_channels is not None
    w = atomic.reshape(wide(x), (x.shape[0], groups, group_channels, d.product(x.shape[2:])))
    centred = w - _mean(w, (2, 3))
    out = centred * arithmetic.rsqrt(_mean(centred * centred, (2, 3)) + eps)
    # channels keep an axis of their own: loops over all of a group would divide for each element to find its weight
    for v, op in ((weight, atomic.mul), (bias, atomic.add)):
        if v is not None:
            out = op(out, broadcast_to(atomic.reshape(atomic.cast(v, w.dtype), (groups, group_channels, 1)), w.shape))
    return atomic.cast(atomic.reshape(out, x.shape), x.dtype)


def instance_norm(x: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float = 1e-5) -> Node:
    """`group_norm` with a group for each channel: x[n, c, …] is normalised over all axes behind c.

    Their number is an int. weight[c] and bias[c] may have another float dtype. x of a float dtype -> its shape and dtype. Raises
    AttributeValueError, ShapeError, DTypeError. Source: Ulyanov, Vedaldi and Lempitsky 2016.
    """
    channels = _channels("instance_norm", x, weight=weight, bias=bias)
    if not isinstance(channels, int) or channels < 1:
        raise ShapeError(f"instance_norm of {show(x)}: it has {format_dim(channels)} channels", fix="an int ≥ 1 as axis 1")
    return group_norm(x, weight, bias, groups=channels, eps=eps)


def local_response_norm(x: Node, *, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Node:
    """x / (k + alpha · s)^beta, s the sum of x² over `size` neighbouring channels of x[n, c, …], divided by `size`.

    The channels are i − ⌊size / 2⌋ … i + ⌊(size − 1) / 2⌋, those beyond the ends 0 (as in torch). x of a float dtype -> its shape
    and dtype. Raises AttributeValueError (size), ShapeError, DTypeError. Source: Krizhevsky, Sutskever and Hinton 2012.
    """
    channels = _channels("local_response_norm", x)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise AttributeValueError(f"local_response_norm: size is {size!r}", fix="an int ≥ 1, the number of channels")
    w = wide(x)
    around: list[tuple[Dim, Dim]] = [(0, 0)] * x.rank
    around[1] = (size // 2, (size - 1) // 2)
    squares = atomic.pad(w * w, around, 0)
    total: Node | None = None
    for first in range(size):
        inside: list[tuple[Dim, Dim, int]] = [(0, s, 1) for s in squares.shape]
        inside[1] = (first, first + channels, 1)
        part = atomic.slice(squares, inside)
        total = part if total is None else atomic.add(total, part)
    assert total is not None
    return atomic.cast(w / (total * (alpha / size) + k) ** beta, x.dtype)


def _batch_norm_direct(roles: Roles, attrs: Attributes, out_types: Any) -> np.ndarray:
    out = (roles["x"] - _of_channels(roles, "mean")) / np.sqrt(_of_channels(roles, "var") + attrs["eps"])
    out = out * _of_channels(roles, "weight") if "weight" in roles else out
    return np.asarray(out + _of_channels(roles, "bias") if "bias" in roles else out)


@library(direct=_batch_norm_direct, facts=OpFacts(closed=True, sought=False, contains=("sqrt",)))
def batch_norm(x: Node, mean: Node, var: Node, weight: Node | None = None, bias: Node | None = None, *, eps: float = 1e-5) -> Node:
    """(x[n, c, …] − mean[c]) · rsqrt(var[c] + eps) · weight[c] + bias[c], with the mean and the variance that training left.

    For a batch's own: mean and var of x over all axes but 1. The vectors may have another float dtype. x of a float dtype -> its
    shape and dtype. Raises ShapeError, DTypeError. Source: Ioffe and Szegedy 2015.
    """
    _require_eps("batch_norm", eps)
    _channels("batch_norm", x, mean=mean, var=var, weight=weight, bias=bias)
    w = wide(x)
    scale = arithmetic.rsqrt(atomic.cast(var, w.dtype) + eps)        # of vectors: parameters mostly, so once
    if weight is not None:
        scale = scale * atomic.cast(weight, w.dtype)
    out = atomic.mul(arithmetic.sub(w, _per_channel(mean, w)), _per_channel(scale, w))
    if bias is not None:
        out = atomic.add(out, _per_channel(bias, w))
    return atomic.cast(out, x.dtype)
