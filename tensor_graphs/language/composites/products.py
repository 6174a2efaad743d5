"""products: sums of products — dot (numpy.matmul), linear (x · Wᵀ + b), scaled_linear (narrow floats with scales), gather_linear (W
chosen by an index) and attention.

Their definitions are the plain math in atomic ops; `direct` evaluates them in float64 by BLAS, so that the oracle is fast enough
for entire models. Sources: attention, Vaswani et al. 2017; grouped heads, Ainslie et al. 2023 (GQA); soft cap, Gemma 2 report 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import dim_fill, fill, need, same_dim, same_dtype, show
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import sigmoid, tanh, wide
from tensor_graphs.language.composites.normalisation import logsumexp, softmax
from tensor_graphs.language.dim_proofs import exact_div
from tensor_graphs.language.dims import Dim, format_dim
from tensor_graphs.language.dtypes import DType, bf16, bool_, f32, i32
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts, Rows
from tensor_graphs.language.operands import broadcast_to

__all__ = ["dot", "gather_linear", "linear", "scaled_linear"]

Roles = Mapping[str, np.ndarray]
Gradients = dict[str, Node | None]


# ---- dot -------------------------------------------------------------------------------------------------------------


def _batch_shape(a: Node, b: Node) -> tuple[Dim, ...]:
    """Return the broadcast shape of the leading axes of two operands of rank ≥ 2."""
    out: list[Dim] = []
    for back in range(max(a.rank, b.rank), 2, -1):
        sizes = [x.shape[-back] for x in (a, b) if x.rank >= back and x.shape[-back] != 1]
        if len(sizes) == 2 and not same_dim(*sizes):
            raise ShapeError(f"dot of {show(a)} and {show(b)}: batch axis {-back} has two sizes, "
                             f"{format_dim(sizes[0])} and {format_dim(sizes[1])}",
                             fix="batch axes are equal, or one of them 1")
        out.append(sizes[0] if sizes else 1)
    return tuple(out)


def _as_matrices(a: Node, b: Node) -> tuple[Node, Node]:
    """Return vectors as matrices, as numpy.matmul does: a row on the left, a column on the right."""
    return (atomic.reshape(a, (1, *a.shape)) if a.rank == 1 else a,
            atomic.reshape(b, (*b.shape, 1)) if b.rank == 1 else b)


def _swap(x: Node) -> Node:
    """Return x with its last two axes exchanged."""
    return atomic.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _sum_to(x: Node, shape: tuple[Dim, ...]) -> Node:
    """Return x summed over the axes that were broadcast from `shape`."""
    extra = x.rank - len(shape)
    axes = [*range(extra), *(i + extra for i, s in enumerate(shape) if s == 1 and x.shape[i + extra] != 1)]
    return atomic.reshape(atomic.sum(x, axes), shape) if axes else x


@of_one_output
def _dot_gradient(node: Node, g: Node) -> Gradients:
    a, b = _as_matrices(*node.inputs)
    g = atomic.reshape(g, (*_batch_shape(a, b), a.shape[-2], b.shape[-1]))
    to_a, to_b = _sum_to(dot(g, _swap(b)), a.shape), _sum_to(dot(_swap(a), g), b.shape)
    return {"a": atomic.reshape(to_a, node.inputs[0].shape), "b": atomic.reshape(to_b, node.inputs[1].shape)}


@library(direct=lambda roles, attrs, types: np.asarray(np.matmul(roles["a"], roles["b"])),
         gradient=_dot_gradient, facts=OpFacts(product=True, mentioned=True, symbol="@"))
def dot(a: Node, b: Node) -> Node:
    """a[…, m, k] · b[…, k, n] = […, m, n]: numpy.matmul; leading axes broadcast, vectors are read as a row or a column.

    Both have one dtype, which is the result's; floats narrower than f32 are multiplied and summed in f32, integers
    wrap. Raises ShapeError, DTypeError.
    """
    need("dot", a, "float", "int", "uint")
    dtype = same_dtype("dot", a, b)
    if a.rank == 0 or b.rank == 0:
        raise ShapeError(f"dot of {show(a)} and {show(b)}: a scalar has no axis to sum over", fix="x * y multiplies")
    left, right = _as_matrices(*((wide(a), wide(b)) if dtype.is_float else (a, b)))
    if not same_dim(left.shape[-1], right.shape[-2]):
        raise ShapeError(f"dot of {show(a)} and {show(b)}: the axis to sum over has two sizes, "
                         f"{format_dim(left.shape[-1])} and {format_dim(right.shape[-2])}",
                         fix="the last axis of a matches the last but one of b; x.T exchanges the last two")
    batch, (m, k), n = _batch_shape(left, right), left.shape[-2:], right.shape[-1]
    full = (*batch, m, n, k)
    rows = broadcast_to(atomic.reshape(left, (*left.shape[:-1], 1, k)), full)
    swapped = _swap(right)
    columns = broadcast_to(atomic.reshape(swapped, (*swapped.shape[:-2], 1, *swapped.shape[-2:])), full)
    out = atomic.sum(atomic.mul(rows, columns), (len(full) - 1,))
    shape = (*batch, *((m,) if a.rank > 1 else ()), *((n,) if b.rank > 1 else ()))
    return atomic.cast(atomic.reshape(out, shape), dtype)


# ---- linear ----------------------------------------------------------------------------------------------------------


PIECE = 1 << 21
"""number of elements of a stored weight that are widened per piece (16 MB): few enough to be written quickly, and enough that the
threads of a matrix product rarely wait for each other"""

FEW_VECTORS = 16
"""up to this many vectors, one matrix-vector product for each is faster than packing the weight for a matrix product"""

NEAR = 1 << 17
"""number of elements per piece for so few vectors (1 MB): the widened piece is still in the cache when it is read again"""


def times_rows(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return x[…, k] · weight[m, k]ᵀ in float64. A weight in a narrower dtype is widened one piece of its rows at a time, because
    an entire float64 copy would take longer to write than the matrix product takes."""
    if weight.dtype == np.float64:
        return np.asarray(np.matmul(x, weight.T))
    vectors = x.reshape(-1, weight.shape[1])
    rows = max(1, (NEAR if len(vectors) <= FEW_VECTORS else PIECE) // max(1, weight.shape[1]))
    out = np.empty((*x.shape[:-1], len(weight)))
    piece = np.empty((min(rows, len(weight)), weight.shape[1]))
    for start in range(0, len(weight), rows):
        some = weight[start:start + rows]
        wide_rows = piece[:len(some)]
        wide_rows[...] = some
        if len(vectors) <= FEW_VECTORS:
            for vector, products in zip(vectors, out.reshape(-1, len(weight)), strict=True):
                products[start:start + rows] = np.matmul(wide_rows, vector)
        else:
            out[..., start:start + rows] = np.matmul(x, wide_rows.T)
    return out


def _linear_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    out = times_rows(roles["x"], roles["weight"])
    return out + roles["bias"] if "bias" in roles else out


@of_one_output
def _linear_gradient(node: Node, g: Node) -> Gradients:
    roles = linear.roles(node)
    x, weight = roles["x"], roles["weight"]
    rows: Dim = 1
    for s in x.shape[:-1]:
        rows = rows * s
    g2, x2 = atomic.reshape(g, (rows, weight.shape[0])), atomic.reshape(x, (rows, x.shape[-1]))
    out: Gradients = {"x": atomic.reshape(dot(g2, atomic.cast(weight, x.dtype)), x.shape),
                      "weight": atomic.cast(dot(_swap(g2), x2), weight.dtype)}
    if "bias" in roles:
        out["bias"] = atomic.cast(atomic.sum(g2, (0,)), roles["bias"].dtype)
    return out


def _need_rows(op: str, x: Node, weight: Node) -> None:
    if x.rank == 0 or weight.rank != 2 or not same_dim(x.shape[-1], weight.shape[1]):
        raise ShapeError(f"{op} of {show(x)} and the weight {show(weight)}: the last axis of x has to be the second of a "
                         "weight[out, in]", fix="weight.T when it is stored as [in, out]")


def need_bias(op: str, weight: Node, bias: Node) -> None:
    """Raise DTypeError, ShapeError unless the bias has one element for each output of the weight."""
    need(f"{op} (bias)", bias, "float")
    if bias.rank != 1 or not same_dim(bias.shape[0], weight.shape[0]):
        raise ShapeError(f"{op}: the bias is {show(bias)}, the weight {show(weight)}",
                         fix=f"a bias of {format_dim(weight.shape[0])} elements")


def _with_bias(op: str, out: Node, weight: Node, bias: Node | None) -> Node:
    if bias is None:
        return out
    need_bias(op, weight, bias)
    return atomic.add(out, broadcast_to(atomic.cast(bias, out.dtype), out.shape))


@library(direct=_linear_direct, gradient=_linear_gradient, facts=OpFacts(product=True, mentioned=True, piecewise=("weight",)))
def linear(x: Node, weight: Node, bias: Node | None = None) -> Node:
    """x[…, k] · weight[out, k]ᵀ + bias[out] = […, out], in x's dtype; the weight is stored as in torch.nn.Linear.

    weight and bias may have another float dtype (bf16 with f32): they are cast to x's. Raises ShapeError, DTypeError.
    """
    need("linear", x, "float")
    need("linear (weight)", weight, "float")
    _need_rows("linear", x, weight)
    return _with_bias("linear", dot(x, atomic.permute(atomic.cast(weight, x.dtype), (1, 0))), weight, bias)


# ---- scaled_linear ---------------------------------------------------------------------------------------------------


def _scaled_linear_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    out = times_rows(roles["x"], roles["weight"])
    for name in ("x_scale", "weight_scale"):
        out = out * roles[name] if name in roles else out
    return out + roles["bias"] if "bias" in roles else out


def _scaled(out: Node, name: str, scale: Node, *shapes: tuple[Dim, ...]) -> Node:
    """Return `out` times one of the scales, checked to have one of `shapes`."""
    if scale.dtype is not f32:
        raise DTypeError(f"scaled_linear: {name} is {show(scale)}", fix="a scale of f32")
    if not any(len(s) == scale.rank and all(map(same_dim, s, scale.shape)) for s in shapes):
        wanted = " or ".join(f"[{', '.join(map(format_dim, s))}]" for s in shapes)
        raise ShapeError(f"scaled_linear: {name} is {show(scale)}", fix=f"a scale of {wanted}")
    return atomic.mul(out, broadcast_to(scale, out.shape))


@library(direct=_scaled_linear_direct, facts=OpFacts(product=True, sought=False, piecewise=("weight",)))
def scaled_linear(x: Node, weight: Node, x_scale: Node | None = None, weight_scale: Node | None = None, bias: Node | None = None, *,
                  dtype: DType = bf16) -> Node:
    """(x[…, k] · weight[out, k]ᵀ) · x_scale · weight_scale + bias[out] = […, out], in `dtype`: a product of quantised values.

    x and weight are floats of 8 or 16 bits, which may differ; all is computed in f32 and rounded once. Scales are f32, where there
    are some: x_scale is one number, [], or one of each row, […, 1]; weight_scale one number, or one of each output, [out]. The bias
    may have any float dtype. As torch.nn.functional.scaled_mm with scales of a tensor or of rows. Raises ShapeError, DTypeError.
    """
    for name, operand in (("x", x), ("weight", weight)):
        if not operand.dtype.is_float or operand.dtype.itemsize > 2:
            raise DTypeError(f"scaled_linear: {name} is {show(operand)}",
                             fix="floats of 8 or 16 bits: x.cast(tg.f8e4m3); of wider ones, linear")
    _need_rows("scaled_linear", x, weight)
    if not dtype.is_float or dtype.itemsize > 4:
        raise DTypeError(f"scaled_linear to {dtype.name}", fix="dtype=tg.f32, or a narrower float")
    out: Node = linear(atomic.cast(x, f32), weight)
    if x_scale is not None:
        out = _scaled(out, "x_scale", x_scale, (), (*x.shape[:-1], 1))
    if weight_scale is not None:
        out = _scaled(out, "weight_scale", weight_scale, (), weight.shape[:1])
    return atomic.cast(_with_bias("scaled_linear", out, weight, bias), dtype)


# ---- gather_linear ---------------------------------------------------------------------------------------------------


def _gather_linear_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    weight, index = roles["weight"], roles["index"]
    x = np.broadcast_to(roles["x"], (*index.shape, weight.shape[2]))
    out = np.zeros((*index.shape, weight.shape[1]), x.dtype)
    for e in range(len(weight)):
        mine = index == e
        if mine.any():
            out[mine] = x[mine] @ weight[e].T + (roles["bias"][e] if "bias" in roles else 0.0)
    return out


@of_one_output
def _gather_linear_gradient(node: Node, g: Node) -> Gradients:
    roles = gather_linear.roles(node)
    x, weight, index = roles["x"], roles["weight"], roles["index"]
    lead, (matrices, size, inner) = index.shape, weight.shape
    to_x = gather_linear(g, atomic.permute(weight, (0, 2, 1)), index)
    pairs = (*lead, size, inner)
    outer = atomic.mul(broadcast_to(atomic.reshape(g, (*lead, size, 1)), pairs),
                       broadcast_to(atomic.reshape(x, (*x.shape[:-1], 1, inner)), pairs))
    zeros = fill(0, (matrices, size, inner), g.dtype)
    out: Gradients = {"x": _sum_to(to_x, x.shape), "index": None,
                      "weight": atomic.cast(atomic.scatter(zeros, index, outer, axis=0, mode="add"), weight.dtype)}
    if "bias" in roles:
        added = atomic.scatter(fill(0, (matrices, size), g.dtype), index, g, axis=0, mode="add")
        out["bias"] = atomic.cast(added, roles["bias"].dtype)
    return out


@library(direct=_gather_linear_direct, gradient=_gather_linear_gradient, facts=OpFacts(product=True, reads=Rows(1, 2)))
def gather_linear(x: Node, weight: Node, index: Node, bias: Node | None = None) -> Node:
    """x[…, k] · weight[index[…]][out, k]ᵀ + bias[index[…]][out] = […, out]: each row by the matrix that its index chooses.

    weight[matrices, out, k] and bias[matrices, out] are stacks, as of a mixture's experts; an index out of range gives zeros. The
    leading axes of x are those of index, or 1 where several indices share a row. x's dtype is the result's; weight and bias
    may have another float dtype, as in `linear`. Kernels read the chosen matrices alone, each once, where the definition
    has one copy per row. Raises ShapeError, DTypeError.
    """
    need("gather_linear", x, "float")
    need("gather_linear (weight)", weight, "float")
    need("gather_linear (index)", index, "int", "uint")
    if x.rank == 0 or weight.rank != 3 or not same_dim(x.shape[-1], weight.shape[2]):
        raise ShapeError(f"gather_linear of {show(x)} and the weight {show(weight)}: the last axis of x has to be the third of "
                         "a weight[matrices, out, in]", fix="weight.permute(0, 2, 1) when it is stored as [matrices, in, out]")
    if x.rank != index.rank + 1 or not all(a == 1 or same_dim(a, b) for a, b in zip(x.shape[:-1], index.shape, strict=True)):
        raise ShapeError(f"gather_linear of {show(x)} by the index {show(index)}: the leading axes of x differ from those of index",
                         fix="as many axes, of equal sizes or 1")
    lead, (matrices, size, inner) = index.shape, weight.shape
    chosen = atomic.cast(atomic.gather(weight, index, axis=0), x.dtype)
    column = broadcast_to(atomic.reshape(x, (*x.shape, 1)), (*lead, inner, 1))
    out = atomic.reshape(dot(chosen, column), (*lead, size))
    there = atomic.reshape(atomic.gather(fill(True, (matrices,), bool_), index, axis=0), (*lead, 1))
    out = atomic.where(broadcast_to(there, out.shape), out, fill(0, out.shape, x.dtype))      # and not 0 · NaN
    if bias is None:
        return out
    need("gather_linear (bias)", bias, "float")
    if bias.rank != 2 or not same_dim(bias.shape[0], matrices) or not same_dim(bias.shape[1], size):
        raise ShapeError(f"gather_linear: the bias is {show(bias)}, the weight {show(weight)}",
                         fix=f"a bias of [{format_dim(matrices)}, {format_dim(size)}]")
    return atomic.add(out, atomic.cast(atomic.gather(bias, index, axis=0), x.dtype))


# ---- attention -------------------------------------------------------------------------------------------------------


class _Sizes(NamedTuple):
    n: Dim        # queries
    s: Dim        # keys
    heads: Dim    # of q
    groups: Dim   # heads of k and v
    width: Dim    # of q and k


def _attention_sizes(q: Node, k: Node, v: Node, mask: Node | None) -> _Sizes:
    for name, x in (("q", q), ("k", k), ("v", v)):
        need(f"attention ({name})", x, "float")
        if x.rank != 3:
            raise ShapeError(f"attention: {name} is {show(x)}",
                             fix="q[n, heads, d], k[s, kv_heads, d], v[s, kv_heads, d]")
    n, heads, width = q.shape
    s, groups, _ = k.shape
    if not same_dim(width, k.shape[2]):
        raise ShapeError(f"attention of q {show(q)} and k {show(k)}: the last axis has two sizes, "
                         f"{format_dim(width)} and {format_dim(k.shape[2])}",
                         fix="q[n, heads, d] and k[s, kv_heads, d]")
    if not same_dim(s, v.shape[0]) or not same_dim(groups, v.shape[1]):
        raise ShapeError(f"attention of k {show(k)} and v {show(v)}: they differ in their first two axes",
                         fix="k[s, kv_heads, d] and v[s, kv_heads, e]")
    if exact_div(heads, groups) is None:
        raise ShapeError(f"attention of q {show(q)} and k {show(k)}: {format_dim(heads)} heads are not a multiple of "
                         f"{format_dim(groups)}", fix="each head of k serves the same number of heads of q")
    if mask is not None:
        need("attention (mask)", mask, "bool")
        if mask.rank != 2 or not same_dim(mask.shape[0], n) or not same_dim(mask.shape[1], s):
            raise ShapeError(f"attention: the mask is {show(mask)}, bool[{format_dim(n)}, {format_dim(s)}] is needed",
                             fix="mask[i, j] says whether query i sees key j, for all heads")
    return _Sizes(n, s, heads, groups, width)


def _visible(mask: Node | None, n: Dim, s: Dim, attrs: Mapping[str, Any]) -> Node | None:
    """Return a mask bool[n, s] of the keys that each query may see ([b, 1, n, s] with one for each sequence); None if it sees
    all of them."""
    causal, window, start = attrs["causal"], attrs["window"], attrs["start"]
    visible = mask if mask is None or mask.rank == 2 else atomic.reshape(mask, (mask.shape[0], 1, n, s))
    if causal or window:
        key = atomic.iota((n, s), 1, i32)
        position = atomic.add(atomic.iota((n, s), 0, i32), dim_fill(start, (n, s)))
        if causal:
            seen = arithmetic.less_equal(key, position)
            visible = seen if visible is None else atomic.bit_and(visible, broadcast_to(seen, visible.shape))
        if window:
            near = atomic.less(arithmetic.sub(position, key), fill(window, (n, s), i32))
            visible = near if visible is None else atomic.bit_and(visible, broadcast_to(near, visible.shape))
    return visible


class _Weights(NamedTuple):
    probabilities: Node           # […, heads, n, s], zero where nothing is visible
    squashed: Node | None         # tanh(scores / softcap), when there is a soft cap


def _heads_first(x: Node) -> Node:
    """[…, t, heads, d] -> […, heads, t, d], and back."""
    return atomic.permute(x, (*range(x.rank - 3), x.rank - 2, x.rank - 3, x.rank - 1))


def _by_head(x: Node, heads: Dim) -> Node:
    """[…, t, groups, d] -> […, heads, t, d]: repeat each head of k or v for the heads of q that use it."""
    *lead, t, groups, width = x.shape
    out = _heads_first(x)
    if same_dim(groups, heads):
        return out
    per = exact_div(heads, groups)
    assert per is not None
    out = atomic.expand(atomic.reshape(out, (*lead, groups, 1, t, width)), (*lead, groups, per, t, width))
    return atomic.reshape(out, (*lead, heads, t, width))


def _weights(q: Node, k: Node, mask: Node | None, attrs: Mapping[str, Any]) -> _Weights:
    """Return softmax over the visible keys of scale · q·k, soft-capped. q and k must have the dtype to compute in."""
    *lead, n, heads, _ = q.shape
    s = k.shape[-3]
    full = (*lead, heads, n, s)
    scores = dot(_heads_first(q), _swap(_by_head(k, heads)))
    scores = atomic.mul(scores, broadcast_to(constant(attrs["scale"], q.dtype), full))
    squashed: Node | None = None
    if attrs["softcap"]:
        cap = fill(attrs["softcap"], full, q.dtype)
        squashed = tanh(arithmetic.div(scores, cap))
        scores = atomic.mul(squashed, cap)
    visible = _visible(mask, n, s, attrs)
    if visible is None:
        return _Weights(softmax(scores, axis=-1), squashed)
    return _Weights(softmax_of_visible(scores, visible), squashed)


def softmax_of_visible(scores: Node, visible: Node, sinks: Node | None = None) -> Node:
    """Return the softmax of scores[…, n, s] over the keys that a mask bool[n, s] shows; zeros in a row that shows none. sinks: one
    more score for each row, that has no weight of its own, as it broadcasts to […, n, 1].

    A row that shows no key keeps its scores, and its weights are zeroed afterwards: −∞ in the entire row would give NaN. This is
    decided by the mask, not by the scores, so that it stays exact where scores are evaluated symbolically.
    """
    some = broadcast_to(arithmetic.any(visible, visible.rank - 1, keepdims=True), visible.shape)
    hidden = arithmetic.where(atomic.bit_and(some, atomic.logical_not(visible)), -float("inf"), scores)
    weights = softmax(hidden, axis=-1)
    if sinks is not None:
        weights = weights * sigmoid(logsumexp(hidden, axis=-1, keepdims=True) - sinks)              # the share of the keys
    return arithmetic.where(some, weights, 0.0)


def attention_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    """Evaluate head by head, so that only one [n, s] matrix of scores is in memory."""
    q, k, v, mask = roles["q"], roles["k"], roles["v"], roles.get("mask")
    (n, heads, _), (s, groups, _) = q.shape, k.shape
    out = np.zeros((n, heads, v.shape[2]), dtype=q.dtype)
    if n == 0 or s == 0 or heads == 0:
        return out
    visible = None if mask is None else mask
    if attrs["causal"] or attrs["window"]:
        offset = (attrs["start"] + np.arange(n))[:, None] - np.arange(s)[None, :]
        band = offset >= 0 if attrs["causal"] else np.ones((n, s), dtype=bool)
        if attrs["window"]:
            band &= offset < attrs["window"]
        visible = band if visible is None else visible & band
    some = None if visible is None else np.asarray(visible.any(axis=1, keepdims=True))
    for h in range(heads):
        g = h // (heads // groups)
        scores = (q[:, h] @ k[:, g].T) * attrs["scale"]
        if attrs["softcap"]:
            scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
        if visible is not None and some is not None:
            scores = np.where(visible | ~some, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        if some is not None:
            weights = np.where(some, weights, 0.0)
        out[:, h] = weights @ v[:, g]
    return out


@of_one_output
def attention_gradient(node: Node, g: Node) -> Gradients:
    """Return the gradients of attention, of one sequence or of a batch: all sequences are in one product."""
    roles = attention.roles(node)
    q, k, v, mask = roles["q"], roles["k"], roles["v"], roles.get("mask")
    heads, groups = q.shape[-2], k.shape[-2]
    q_wide, k_wide, v_wide = (wide(atomic.cast(x, q.dtype)) for x in (q, k, v))
    p, squashed = _weights(q_wide, k_wide, mask, node.attrs)
    by_head = _heads_first(wide(g))                                             # […, heads, n, e]
    to_p = dot(by_head, _swap(_by_head(v_wide, heads)))                          # […, heads, n, s]
    mean = atomic.sum(atomic.mul(p, to_p), (p.rank - 1,))
    to_scores = atomic.mul(p, arithmetic.sub(to_p, atomic.reshape(mean, (*mean.shape, 1))))
    if squashed is not None:                                                    # d tanh = 1 − tanh²
        to_scores = atomic.mul(to_scores, arithmetic.sub(1.0, arithmetic.square(squashed)))
    to_scores = atomic.mul(to_scores, broadcast_to(constant(node.attrs["scale"], p.dtype), to_scores.shape))

    def shared(x: Node) -> Node:
        """[…, heads, s, d] -> […, s, groups, d]: sum over the heads that share one head of k and v."""
        per, at = exact_div(heads, groups), x.rank - 3
        assert per is not None
        if not same_dim(heads, groups):
            x = atomic.sum(atomic.reshape(x, (*x.shape[:at], groups, per, *x.shape[-2:])), (at + 1,))
        return _heads_first(x)

    to_q = _heads_first(dot(to_scores, _by_head(k_wide, heads)))
    to_k = shared(dot(_swap(to_scores), _heads_first(q_wide)))
    to_v = shared(dot(_swap(p), by_head))
    gradients = {"q": (to_q, q), "k": (to_k, k), "v": (to_v, v)}
    return {name: atomic.cast(gradient, x.dtype) for name, (gradient, x) in gradients.items()}


@library(direct=attention_direct, gradient=attention_gradient, facts=OpFacts(product=True, closed=True, sought=False,
                                                                                      contains=("sum", "max", "exp2")))
def attention(q: Node, k: Node, v: Node, mask: Node | None = None, *, scale: float | Dim, causal: bool = False,
              window: int = 0, start: Dim = 0, softcap: float = 0.0) -> Node:
    """See `batches.attention`: this op is the attention of one sequence."""
    sizes = _attention_sizes(q, k, v, mask)
    if isinstance(window, bool) or not isinstance(window, int) or window < 0:
        raise AttributeValueError(f"attention: the window is {window!r}",
                                  fix="the number of keys to see, an int; 0 = all of them")
    if not softcap >= 0:
        raise AttributeValueError(f"attention: the soft cap is {softcap!r}", fix="a number > 0; 0 = none")
    attrs = {"scale": scale, "causal": causal, "window": window, "start": start, "softcap": softcap}
    q_wide, k_wide, v_wide = (wide(atomic.cast(x, q.dtype)) for x in (q, k, v))
    p = _weights(q_wide, k_wide, mask, attrs).probabilities
    return atomic.cast(atomic.permute(dot(p, _by_head(v_wide, sizes.heads)), (1, 0, 2)), q.dtype)
