"""special: the inverse of the error function, the logarithm of the gamma function and its derivative.

Accurate to float64 relative to the value where it is not near a zero at a negative number; tests/language/test_special.py states
the error of each. Operands narrower than 32 bits are computed in f32 and rounded once.
"""

from __future__ import annotations

import math

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import fill
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import exp, log, polynomial, real, tan
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts

__all__ = ["digamma", "erfinv", "lgamma"]

FACTS = OpFacts(closed=True, sought=False)

# Wichura's rational functions for the quantile of the normal distribution (algorithm AS 241, Applied Statistics 37(3), 1988):
# numerator and denominator, by powers of 0.180625 − (y/2)², then of r − 1.6 and r − 5 with r = √(−log((1 − |y|)/2))
_CENTRE = (
    (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4, 4.5921953931549871457e4,
     6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3))
_SHOULDER = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504, 1.27045825245236838258,
     2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9))
_TAIL = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 2.96560571828504891230e-1, 2.65321895265761230930e-2,
     1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15))
_CENTRAL = 0.85                                                      # |y|, twice 0.425


def _rational(x: Node, parts: tuple[tuple[float, ...], tuple[float, ...]]) -> Node:
    return polynomial(x, parts[0]) / polynomial(x, parts[1])


def _slope_of_erfinv(x: Node, y: Node) -> Node:
    growth: Node = exp(y * y)
    return growth * (math.sqrt(math.pi) / 2)


@real(slope=_slope_of_erfinv, facts=FACTS)
def erfinv(x: Node) -> Node:
    """The y for which erf y = x: the quantile of the normal distribution at (1 + x)/2, divided by √2; ±∞ at ±1, NaN beyond.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError. Source: Wichura 1988.
    """
    a = arithmetic.abs(x)
    near = x * 0.5 * _rational(0.180625 - x * x * 0.25, _CENTRE)
    r = atomic.sqrt(-log((1.0 - a) * 0.5))
    r = arithmetic.minimum(r, 40.0)                                  # at ±1: no ∞ / ∞, which would hide that NaN is NaN
    far = arithmetic.where(r > 5.0, _rational(r - 5.0, _TAIL), _rational(r - 1.6, _SHOULDER))
    far = arithmetic.where(arithmetic.equals(a, 1.0), float("inf"), far)
    quantile = arithmetic.where(a < _CENTRAL, near, arithmetic.where(x < 0.0, -far, far))
    return quantile * math.sqrt(0.5)


# ---- the gamma function ----------------------------------------------------------------------------------------------

# log Γ(x) / ((x − 1)·(x − 2)) on [¾, 1¾] as a polynomial in s = 2x − 2½: a Chebyshev series computed with 60 digits at 60 nodes,
# cut where the coefficients fall below 1e-17, rewritten in powers with 60 digits and rounded once. The tests derive it again.
LGAMMA = (
    0.5241164609163369, -0.09227919221840826, 0.023641434508253234, -0.00703417590920584, 0.002259924873438881,
    -0.0007596501580103324, 0.00026293248609697654, -9.287685485744266e-05, 3.33012355621525e-05, -1.2078098659768735e-05,
    4.4208055669271845e-06, -1.6300730120030101e-06, 6.048435179116778e-07, -2.2602581327002404e-07,
    8.476429126017152e-08, -3.1228007207036834e-08, 1.1723126200550835e-08, -5.185612455081109e-09,
    2.0211340610207445e-09, -2.4697384253945443e-10, 7.26608068087652e-11, -2.3688401522998517e-10, 9.471547078165945e-11)
# B₂ₖ / (2k·(2k − 1)) and B₂ₖ / 2k for k = 1, 2, …: the series of Stirling and of its derivative in 1/x², from LARGE on
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
LARGE = 10


def _from_whole(x: Node) -> Node:
    """Return the distance of x from the nearest whole number, which is exact."""
    return x - atomic.floor(x + 0.5)


def _slope_of_lgamma(x: Node, y: Node) -> Node:
    return digamma(x)


@real(slope=_slope_of_lgamma, facts=FACTS)
def lgamma(x: Node) -> Node:
    """log |Γ(x)|, +∞ at 0 and the negative whole numbers.

    By our own Chebyshev fit on [¾, 1¾] and Γ(x + 1) = x·Γ(x); from 10 on by Stirling's series; below 0 by reflection,
    log(π / |sin πx|) − log Γ(1 − x), whose error is relative to the larger one of both.
    """
    negative = x < 0.0
    z = arithmetic.where(negative, 1.0 - x, arithmetic.abs(x))                          # of −0 too
    small = arithmetic.minimum(z, float(LARGE))
    below = small < 0.75
    at, product = arithmetic.where(below, small + 1.0, small), arithmetic.where(below, small, 1.0)
    for _ in range(LARGE - 1):                                       # down to [¾, 1¾], multiplying what is passed
        above = at > 1.75
        at = arithmetic.where(above, at - 1.0, at)
        product = arithmetic.where(above, product * at, product)
    near = (at - 1.0) * (at - 2.0) * polynomial(at * 2.0 - 2.5, LGAMMA)
    near = near + log(product) * arithmetic.where(below, fill(-1.0, x.shape, x.dtype), 1.0)
    large = arithmetic.maximum(z, float(LARGE))
    inverse = atomic.reciprocal(large)
    far = (large - 0.5) * (log(large) - 1.0) + 0.5 * (math.log(2 * math.pi) - 1)
    far = far + inverse * polynomial(inverse * inverse, STIRLING)
    result = arithmetic.where(z < float(LARGE), near, far)
    # elsewhere any angle will do, whose sine is no 0
    angle = _from_whole(arithmetic.where(atomic.bit_and(negative, arithmetic.is_finite(x)), x, 0.25)) * math.pi
    mirrored = log(math.pi / arithmetic.abs(atomic.sin(angle))) - result
    result = arithmetic.where(negative, mirrored, result)
    return arithmetic.where(arithmetic.is_inf(x), float("inf"), result)


@real(facts=OpFacts(closed=True, sought=False))
def digamma(x: Node) -> Node:
    """The derivative of log Γ: −∞ at 0, NaN at the negative whole numbers.

    By ψ(x + 1) = ψ(x) + 1/x up to 10 and the derivative of Stirling's series from there; below 0 by reflection,
    ψ(1 − x) − π / tan πx. The error is relative to max(1, |ψ|).
    """
    negative = x < 0.0
    z = arithmetic.where(negative, 1.0 - x, x)
    steps: Node | None = None
    for _ in range(LARGE):
        below = z < float(LARGE)
        part = arithmetic.where(below, atomic.reciprocal(arithmetic.where(below, z, 1.0)), 0.0)
        steps = part if steps is None else steps + part
        z = arithmetic.where(below, z + 1.0, z)
    assert steps is not None
    inverse = atomic.reciprocal(z)
    square = inverse * inverse
    result = log(z) - inverse * 0.5 - square * polynomial(square, DIGAMMA) - steps
    apart = _from_whole(x)
    pole = arithmetic.equals(apart, 0.0)
    usual = atomic.bit_and(negative, atomic.logical_not(pole))       # elsewhere any angle will do, whose tangent is no 0
    mirrored = result - math.pi / tan(arithmetic.where(usual, apart, 0.25) * math.pi)
    return arithmetic.where(negative, arithmetic.where(pole, float("nan"), mirrored), result)
