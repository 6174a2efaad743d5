"""trigonometry: the inverse trigonometric functions, and the hyperbolic ones and their inverses.

Definitions are chosen for accuracy relative to the value, near 0 too; tests/language/test_trigonometry.py states the error of each.
Operands narrower than 32 bits are computed in f32 and rounded once. Angles are in radians.
"""

from __future__ import annotations

import math

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import need, same_dtype, same_shape
from tensor_graphs.language.composite import library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import LN2, exp, expm1, log, log1p, polynomial, real, wide
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import Operand, together

__all__ = ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh"]

FACTS = OpFacts(closed=True, sought=False)

# atan(x)/x as a polynomial in x² for |x| ≤ tan(π/8): a Chebyshev series computed with 60 digits at 40 nodes, cut where the
# coefficients fall below 1e-17, rewritten in powers with 60 digits and rounded once. The tests derive it again.
ATAN_END = math.sqrt(2) - 1
ATAN = (
    1.0, -0.33333333333333126, 0.19999999999942342, -0.14285714279381564, 0.11111110751018727, -0.09090896974391927,
    0.07692048125814824, -0.06662982166188505, 0.05847090096609891, -0.05036020352571326, 0.03798774160996723,
    -0.017829184144146384)
_STEEPER = math.sqrt(2) + 1                                          # tan(3π/8)
_HALF_ROOT_LARGEST = float(2**28)
"""from here on √(x² ± 1) is |x| to f64"""
_NO_UNIT = 20.0
"""from here on e^−x is nothing next to e^x to f64"""


# ---- inverse trigonometric -------------------------------------------------------------------------------------------


@real(direct=np.arctan, slope=lambda x, y: atomic.reciprocal(x * x + 1.0), facts=OpFacts(closed=True, sought=False, mentioned=True))
def atan(x: Node) -> Node:
    """The angle in (−π/2, π/2) whose tangent is x, by our own Chebyshev fit up to tan(π/8).

    Beyond, it is π/4 + atan((x − 1)/(x + 1)), and from tan(3π/8) on π/2 − atan(1/x); odd.
    """
    a = arithmetic.abs(x)
    far, middle = a > _STEEPER, a > ATAN_END
    t = arithmetic.where(far, -atomic.reciprocal(a), arithmetic.where(middle, (a - 1.0) / (a + 1.0), a))
    begin = arithmetic.where(far, math.pi / 2, atomic.cast(middle, x.dtype) * (math.pi / 4))
    angle = begin + t * polynomial(t * t, ATAN)
    return arithmetic.where(x < 0.0, -angle, angle)


def _root_below_one(x: Node) -> Node:
    """Return √(1 − x²), as √((1 − x)·(1 + x)), which keeps its digits near ±1."""
    return atomic.sqrt((1.0 - x) * (x + 1.0))


@real(direct=np.arcsin, slope=lambda x, y: atomic.reciprocal(_root_below_one(x)), facts=FACTS)
def asin(x: Node) -> Node:
    """The angle in [−π/2, π/2] whose sine is x: atan(x / √((1 − x)·(1 + x))); NaN beyond ±1."""
    return atan(x / _root_below_one(x))


@real(direct=np.arccos, slope=lambda x, y: -atomic.reciprocal(_root_below_one(x)), facts=FACTS)
def acos(x: Node) -> Node:
    """The angle in [0, π] whose cosine is x: 2·atan(√((1 − x)/(1 + x))); NaN beyond ±1."""
    return atan(atomic.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def _below_zero(x: Node) -> Node:
    """Return where the sign of x is −, of −0 too: 1/x tells it from +0."""
    return atomic.bit_or(x < 0.0, atomic.bit_and(arithmetic.equals(x, 0.0), atomic.reciprocal(x) < 0.0))


@of_one_output
def _atan2_gradient(node: Node, g: Node) -> dict[str, Node | None]:
    y, x, g = (wide(v) for v in (*node.inputs, g))
    share = g / (x * x + y * y)
    return {"y": atomic.cast(x * share, node.dtype), "x": atomic.cast(-(y * share), node.dtype)}


@library(name="atan2", direct=lambda roles, attrs, types: np.asarray(np.arctan2(roles["y"], roles["x"])),
         gradient=_atan2_gradient, facts=FACTS)
def _atan2(y: Node, x: Node) -> Node:
    """See `atan2`: of equal shapes."""
    need("atan2", y, "float")
    same_dtype("atan2", y, x)
    same_shape("atan2", y, x)
    v, w = wide(y), wide(x)
    a, b = arithmetic.abs(v), arithmetic.abs(w)
    same = arithmetic.equals(a, b)                                   # of two zeros or infinities, which have no quotient
    flat = atomic.bit_and(arithmetic.equals(a, 0.0), atomic.logical_not(arithmetic.is_nan(b)))
    angle = atan(arithmetic.where(flat, 0.0, arithmetic.where(same, 1.0, a / b)))
    angle = arithmetic.where(_below_zero(w), math.pi - angle, angle)
    return atomic.cast(arithmetic.where(_below_zero(v), -angle, angle), y.dtype)


def atan2(y: Operand, x: Operand) -> Node:
    """The angle in [−π, π] of the point (x, y), as C's atan2: the signs of zeros and infinities count.

    Floats. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    return _atan2(*together("atan2", y, x))


# ---- hyperbolic ------------------------------------------------------------------------------------------------------


def _half_of_exp(a: Node) -> Node:
    """Return e^a / 2 for a ≥ 0, which overflows where it has to and no earlier."""
    root: Node = exp(a * 0.5)
    return root * (root * 0.5)


def _slope_of_sinh(x: Node, y: Node) -> Node:
    return cosh(x)


@real(direct=np.sinh, slope=_slope_of_sinh, facts=FACTS)
def sinh(x: Node) -> Node:
    """(e^x − e^−x) / 2 = (t + t/(t + 1)) / 2 with t = expm1 |x|, and e^|x| / 2 from 20 on; odd."""
    a = arithmetic.abs(x)
    t = expm1(arithmetic.minimum(a, _NO_UNIT))
    size = arithmetic.where(a < _NO_UNIT, (t + t / (t + 1.0)) * 0.5, _half_of_exp(a))
    return arithmetic.where(x < 0.0, -size, size)


@real(direct=np.cosh, slope=lambda x, y: sinh(x), facts=FACTS)
def cosh(x: Node) -> Node:
    """(e^x + e^−x) / 2, and e^|x| / 2 from |x| = 20 on."""
    a = arithmetic.abs(x)
    e = exp(arithmetic.minimum(a, _NO_UNIT))
    return arithmetic.where(a < _NO_UNIT, (e + atomic.reciprocal(e)) * 0.5, _half_of_exp(a))


@real(direct=np.arcsinh, slope=lambda x, y: atomic.reciprocal(arithmetic.hypot(x, 1.0)), facts=FACTS)
def asinh(x: Node) -> Node:
    """log(x + √(x² + 1)) = log1p(a + a²/(1 + √(a² + 1))) with a = |x|, and log a + ln 2 from 2^28 on; odd."""
    a = arithmetic.abs(x)
    near = arithmetic.minimum(a, _HALF_ROOT_LARGEST)
    square = near * near
    size = log1p(near + square / (atomic.sqrt(square + 1.0) + 1.0))
    size = arithmetic.where(a < _HALF_ROOT_LARGEST, size, log(a) + LN2)
    return arithmetic.where(x < 0.0, -size, size)


@real(direct=np.arccosh, slope=lambda x, y: atomic.reciprocal(atomic.sqrt(x - 1.0) * atomic.sqrt(x + 1.0)), facts=FACTS)
def acosh(x: Node) -> Node:
    """log(x + √(x² − 1)) = log1p(t + √(t·(t + 2))) with t = x − 1, and log x + ln 2 from 2^28 on; NaN below 1."""
    t = arithmetic.minimum(x, _HALF_ROOT_LARGEST) - 1.0
    size = log1p(t + atomic.sqrt(t * (t + 2.0)))
    size = arithmetic.where(x < _HALF_ROOT_LARGEST, size, log(x) + LN2)
    return arithmetic.where(x < 1.0, float("nan"), size)


@real(direct=np.arctanh, slope=lambda x, y: atomic.reciprocal((1.0 - x) * (x + 1.0)), facts=FACTS)
def atanh(x: Node) -> Node:
    """½·log((1 + x)/(1 − x)) = ½·log1p(2a/(1 − a)) with a = |x|; odd, ±∞ at ±1 and NaN beyond."""
    a = arithmetic.abs(x)
    size = log1p((a + a) / (1.0 - a)) * 0.5
    return arithmetic.where(x < 0.0, -size, size)
