"""activations: functions of one tensor between the layers of a network, each written with ops that are there, and no op of its own.

Operands narrower than 32 bits are computed in f32 and rounded once. Where a function has a corner, its gradient is between those of
both sides, as for `relu`.
"""

from __future__ import annotations

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import need, same_dim, show
from tensor_graphs.language.axis import one_axis
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import expm1, in_wide, sigmoid, softplus, tanh, wide
from tensor_graphs.language.composites.indexing import split
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

__all__ = [
    "celu", "elu", "glu", "hardsigmoid", "hardswish", "leaky_relu", "log_sigmoid", "mish", "prelu", "selu", "softsign"
]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""the constants at which a unit normal distribution stays one, Klambauer et al. 2017"""


@in_wide
def elu(x: Node, *, alpha: float = 1.0) -> Node:
    """x where x > 0, else alpha · (e^x − 1).

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError. Source: Clevert, Unterthiner and Hochreiter 2015.
    """
    return arithmetic.maximum(x, 0.0) + expm1(arithmetic.minimum(x, 0.0)) * alpha


@in_wide
def selu(x: Node) -> Node:
    """1.0507… · elu(x; alpha = 1.6732…), with which unit variance is a fixed point.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError. Source: Klambauer et al. 2017.
    """
    return elu(x, alpha=SELU_ALPHA) * SELU_SCALE


@in_wide
def celu(x: Node, *, alpha: float = 1.0) -> Node:
    """max(x, 0) + min(0, alpha · (e^(x / alpha) − 1)), which has no corner.

    x[…] of a float dtype -> its shape and dtype. Raises AttributeValueError (alpha is 0), DTypeError. Source: Barron 2017.
    """
    if not alpha:
        raise AttributeValueError(f"celu: alpha is {alpha!r}", fix="a number other than 0")
    return arithmetic.maximum(x, 0.0) + expm1(arithmetic.minimum(x, 0.0) * (1 / alpha)) * alpha


@in_wide
def leaky_relu(x: Node, *, slope: float = 0.01) -> Node:
    """x where x ≥ 0, else slope · x."""
    return arithmetic.where(x < 0.0, x * slope, x)


def prelu(x: Node, weight: Node) -> Node:
    """x where x ≥ 0, else weight · x, with one weight for all or one for each channel of axis 1.

    x[n, c, …] of a float dtype, weight[c], [1] or a scalar, of any float dtype -> x's shape and dtype. Raises ShapeError,
    DTypeError. Source: He et al. 2015.
    """
    need("prelu", x, "float")
    need("prelu (weight)", weight, "float")
    per_channel = weight.rank == 1 and weight.shape[0] != 1
    if weight.rank > 1 or (per_channel and (x.rank < 2 or not same_dim(weight.shape[0], x.shape[1]))):
        raise ShapeError(f"prelu of {show(x)}: the weight is {show(weight)}",
                         fix="a scalar, or one number for each channel of axis 1")
    shape = (weight.shape[0], *(1,) * (x.rank - 2)) if per_channel else (1,) * x.rank
    w = wide(x)
    slope = broadcast_to(atomic.reshape(atomic.cast(weight, w.dtype), shape), w.shape)
    return atomic.cast(arithmetic.where(w < 0.0, w * slope, w), x.dtype)


@in_wide
def hardsigmoid(x: Node, *, alpha: float = 1 / 6, beta: float = 0.5) -> Node:
    """min(max(alpha · x + beta, 0), 1): a sigmoid of three lines.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError. Source: Courbariaux, Bengio and David 2015.
    """
    return arithmetic.clip(x * alpha + beta, 0.0, 1.0)


@in_wide
def hardswish(x: Node) -> Node:
    """x · min(max(x + 3, 0), 6) / 6.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError. Source: Howard et al. 2019.
    """
    return x * (arithmetic.clip(x + 3.0, 0.0, 6.0) * (1 / 6))


@in_wide
def mish(x: Node) -> Node:
    """x · tanh(softplus(x)).

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError. Source: Misra 2019.
    """
    return x * tanh(softplus(x))


@in_wide
def log_sigmoid(x: Node) -> Node:
    """log sigmoid(x) = −softplus(−x), finite where the sigmoid underflows."""
    return -softplus(-x)


@in_wide
def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    return x / (arithmetic.abs(x) + 1.0)


@in_wide
def glu(x: Node, axis: int = -1) -> Node:
    """a · sigmoid(b), where a and b are the halves of x along `axis`.

    x of a float dtype; the axis of the result is half as long. Raises AttributeValueError (axis, one of an odd size), DTypeError.
    Source: Dauphin et al. 2017.
    """
    first, second = split(x, 2, one_axis("glu", axis, x.rank))
    return first * sigmoid(second)
