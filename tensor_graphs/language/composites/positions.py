"""positions: rotary position embeddings — a table of cosines and sines, and the rotation of pairs of channels by it.

Source: RoFormer, Su et al. 2021, in the half-split layout of GPT-NeoX and Llama (channels i and i + d/2 are a pair).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill, need, same_dim, same_dtype, show
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import cos as cosine
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.dims import format_dim
from tensor_graphs.language.dtypes import DType, f32, f64
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = ["rope", "rope_table"]


def _rope_table_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any],
                       out_types: Any) -> tuple[np.ndarray, ...]:
    frequencies = float(attrs["theta"]) ** (-np.arange(0, attrs["head_dim"], 2, dtype=np.float64) / attrs["head_dim"])
    angles = (roles["positions"].astype(np.float64) / attrs["scaling"])[:, None] * frequencies[None, :]
    return np.cos(angles), np.sin(angles)


@library(direct=_rope_table_direct, facts=OpFacts(closed=True, sought=False))
def rope_table(positions: Node, *, head_dim: int, theta: float, scaling: float = 1.0,
               dtype: DType = f32) -> tuple[Node, Node]:
    """(cos, sin)[n, head_dim/2] of the angles positions[n] / scaling · theta^(−2i/head_dim), in radians.

    positions are integers or floats; scaling > 1 stretches the context ("linear" rope scaling). The angles are
    computed in float64 and only the tables are rounded to `dtype`: at position 32768 an angle in float32 is 0.002 rad
    off. Raises ShapeError, AttributeValueError.

    Source: RoFormer, Su et al. 2021.
    """
    need("rope_table (positions)", positions, "float", "int", "uint")
    if positions.rank != 1:
        raise ShapeError(f"rope_table: the positions are {show(positions)}", fix="one axis: positions[n]")
    if isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim <= 0 or head_dim % 2:
        raise AttributeValueError(f"rope_table: head_dim is {head_dim!r}", fix="an even int > 0")
    if not theta > 0 or not scaling > 0:
        raise AttributeValueError(f"rope_table: theta is {theta!r} and scaling {scaling!r}", fix="numbers > 0")
    half = head_dim // 2
    step = fill(-2.0 * math.log2(theta) / head_dim, (half,), f64)
    frequencies = atomic.exp2(atomic.mul(atomic.iota((half,), 0, f64), step))
    where = arithmetic.div(atomic.cast(positions, f64), float(scaling))
    angles = arithmetic.mul(atomic.reshape(where, (positions.shape[0], 1)), frequencies)
    return atomic.cast(cosine(angles), dtype), atomic.cast(atomic.sin(angles), dtype)


def _rope_direct(roles: Mapping[str, np.ndarray], attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    x, c, s = roles["x"], roles["cos"][:, None, :], roles["sin"][:, None, :]
    half = x.shape[2] // 2
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * c - second * s, second * c + first * s], axis=2)


def _halves(x: Node) -> tuple[Node, Node]:
    return x[:, :, :x.shape[2] // 2], x[:, :, x.shape[2] // 2:]


@of_one_output
def _rope_gradient(node: Node, g: Node) -> dict[str, Node | None]:
    x, c, s = node.inputs
    (x1, x2), (g1, g2) = _halves(x), _halves(g)
    to_cos = atomic.sum(atomic.add(atomic.mul(g1, x1), atomic.mul(g2, x2)), (1,))
    to_sin = atomic.sum(arithmetic.sub(atomic.mul(g2, x1), atomic.mul(g1, x2)), (1,))
    # a rotation is transposed by rotating back
    back = rope(g, c, arithmetic.neg(s))
    return {"x": back, "cos": atomic.cast(to_cos, c.dtype), "sin": atomic.cast(to_sin, s.dtype)}


@library(direct=_rope_direct, gradient=_rope_gradient)
def rope(x: Node, cos: Node, sin: Node) -> Node:
    """x[n, heads, d] with channels (i, i + d/2) of row t rotated by the angle whose cos[t, i] and sin[t, i] are given.

    The tables are cast to x's dtype. Raises ShapeError, DTypeError.

    Source: RoFormer, Su et al. 2021, in the half-split layout.
    """
    need("rope", x, "float")
    need("rope (cos)", cos, "float")
    same_dtype("rope (cos and sin)", cos, sin)
    fits = x.rank == 3 and cos.rank == 2 and cos.shape == sin.shape and same_dim(x.shape[0], cos.shape[0]) and (
        same_dim(x.shape[2], 2 * cos.shape[1]))
    if not fits:
        wanted = f"[{format_dim(x.shape[0])}, {format_dim(x.shape[2])}/2]" if x.rank == 3 else "[n, d/2]"
        raise ShapeError(f"rope of {show(x)} by the tables {show(cos)} and {show(sin)}",
                         fix=f"x[n, heads, d] and both tables {wanted}, as rope_table makes them")
    first, second = _halves(x)
    n, _, half = first.shape
    c, s = (broadcast_to(atomic.reshape(atomic.cast(t, x.dtype), (n, 1, half)), first.shape) for t in (cos, sin))
    turned = (arithmetic.sub(atomic.mul(first, c), atomic.mul(second, s)),
              atomic.add(atomic.mul(second, c), atomic.mul(first, s)))
    return concat(*turned, axis=2)
