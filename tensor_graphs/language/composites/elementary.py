"""elementary: exp, log, the trigonometric, hyperbolic and error functions, and activations built from them.

Each definition is chosen for accuracy, in float32 as in float64: every split constant leaves room for an exact product in both, and
tests/language/test_elementary.py states the error of each. Operands narrower than 32 bits are computed in f32 and rounded once.

ALGEBRAIC has, for definitions that branch or round on purpose, the shortest form that is the same function of real numbers.
Symbolic evaluation (finite fields) and pattern matching may read it instead of the definition.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import need
from tensor_graphs.language.composite import CompositeOp, library, of_one_output
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.errors import AttributeValueError
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import UNKNOWN, OpFacts
from tensor_graphs.language.operands import Operand, together

__all__ = [
    "cos", "erf", "erfc", "exp", "expm1", "gelu", "log", "log1p", "log10", "logaddexp", "relu", "sigmoid", "silu", "softplus",
    "tan", "tanh"
]

Roles = Mapping[str, np.ndarray]
Gradients = dict[str, Node | None]

LN2, LOG2E = math.log(2.0), 1.4426950408889634           # ln 2, log2 e
LN2_HI = 5678 / 8192                                     # ln 2 to 13 bits: k · LN2_HI is exact for |k| ≤ 2^11
LN2_LO = 3.1946184945309415e-05                          # ln 2 − LN2_HI, computed with 60 digits
# x · this is a little below x · log2 e: rounding up at the top of the range would make 2^k overflow early
_LOG2E_BELOW = LOG2E * (1 - 2.0**-20)


def wide(x: Node) -> Node:
    """Return x in the dtype that definitions compute in: x's dtype, or f32 for narrower floats."""
    return x if x.dtype.itemsize >= 4 else atomic.cast(x, f32)


def polynomial(x: Node, coefficients: tuple[float, ...]) -> Node:
    """Return c0 + x·(c1 + x·(c2 + …)), by Horner's rule."""
    out = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        out = out * x + c
    return out


def direct_by(f: Callable[..., Any]) -> Callable[[Roles, Mapping[str, Any], Any], np.ndarray]:
    """Return `direct` for an op of one operand x, from a function of numpy."""
    def direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
        return np.asarray(f(roles["x"]))

    return direct


def in_wide(definition: Callable[..., Node]) -> Callable[..., Node]:
    """Return a function of one float tensor x that computes `definition` of x as `wide` gives it, rounded to x's dtype. A docstring
    that says nothing of x's dtype gets the line that does. The function raises DTypeError for any other x."""
    @functools.wraps(definition)
    def function(x: Node, *axis: Any, **attributes: Any) -> Node:
        need(definition.__name__, x, "float")
        return atomic.cast(definition(wide(x), *axis, **attributes), x.dtype)

    doc = inspect.getdoc(definition) or ""
    rounded = "" if "of a float dtype" in doc else "\n\nx[…] of a float dtype -> its shape and dtype. Raises DTypeError."
    function.__doc__ = doc + rounded
    return function


def real(direct: Callable[..., Any] | None = None, slope: Callable[[Node, Node], Node] | None = None,
         facts: OpFacts = UNKNOWN) -> Callable[[Callable[..., Node]], CompositeOp]:
    """Return a decorator: a library op that is a function of one float tensor (`in_wide`). direct: the same function of numpy.
    slope: f(x, y) = dy/dx, computed in the dtype of the definition."""
    gradient = None if slope is None else of_one_output(
        lambda node, g: {"x": atomic.cast(wide(g) * slope(wide(node.inputs[0]), wide(node)), node.inputs[0].dtype)})
    return lambda definition: library(direct=None if direct is None else direct_by(direct), gradient=gradient,
                                      facts=facts)(in_wide(definition))


# ---- exponential and logarithm ---------------------------------------------------------------------------------------


@real(direct=np.exp, slope=lambda x, y: y, facts=OpFacts(mentioned=True, closed=True))
def exp(x: Node) -> Node:
    """e^x = 2^k · 2^(r·log2 e) with k = ⌊x·log2 e⌋ and r = x − k·ln 2, ln 2 in two parts (Cody and Waite 1980).

    x·log2 e alone would be off by |x| · 2^-53 relative (1e-13 at 700). k is clipped so that r stays defined at ±∞.
    """
    k = arithmetic.clip(atomic.floor(x * _LOG2E_BELOW), -2000.0, 1023.0)
    r = (x - k * LN2_HI) - k * LN2_LO
    return atomic.exp2(k) * atomic.exp2(r * LOG2E)


@real(direct=np.log, slope=lambda x, y: atomic.reciprocal(x), facts=OpFacts(positive=True, mentioned=True, closed=True))
def log(x: Node) -> Node:
    """The natural logarithm: log2(x) · ln 2."""
    return atomic.log2(x) * LN2


@in_wide
def log10(x: Node) -> Node:
    """The logarithm to base 10: log2(x) · log10 2."""
    return atomic.log2(x) * math.log10(2.0)


_EXPM1 = tuple(1.0 / math.factorial(k) for k in range(2, 17))        # 0.5^16 / 17! < 2^-64


@real(direct=np.expm1, slope=lambda x, y: exp(x), facts=OpFacts(mentioned=True, closed=True))
def expm1(x: Node) -> Node:
    """e^x − 1 without cancellation: x + x²·(1/2! + x/3! + …) where |x| < ½, exp(x) − 1 elsewhere."""
    near = x + x * x * polynomial(x, _EXPM1)
    return arithmetic.where(arithmetic.abs(x) < 0.5, near, exp(x) - 1.0)


@real(direct=np.log1p, slope=lambda x, y: atomic.reciprocal(x + 1.0), facts=OpFacts(mentioned=True, closed=True))
def log1p(x: Node) -> Node:
    """log(1 + x) without loss: log(u) + c/u, where u is 1 + x rounded and c = x − (u − 1) is what rounding lost.

    c is exact for |x| < 1 and too small to matter beyond. Over the reals c = 0.
    """
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    return log(u) + arithmetic.where(arithmetic.abs(x) < 1.0, lost, 0.0)


# ---- trigonometry ----------------------------------------------------------------------------------------------------


@real(direct=np.cos, slope=lambda x, y: -atomic.sin(x), facts=OpFacts(mentioned=True, closed=True))
def cos(x: Node) -> Node:
    """cos x = 1 − 2·sin²(x/2), x in radians: sin(x + π/2) would round x first. Absolute error of a few 2^-53."""
    s = atomic.sin(x * 0.5)
    return 1.0 - (s * s) * 2.0


@real(direct=np.tan, slope=lambda x, y: y * y + 1.0, facts=OpFacts(mentioned=True, closed=True))
def tan(x: Node) -> Node:
    """sin x / cos x, x in radians. The error relative to 1 + tan² x is a few 2^-53."""
    return atomic.sin(x) / cos(x)


# ---- hyperbolic ------------------------------------------------------------------------------------------------------


@real(direct=np.tanh, slope=lambda x, y: 1.0 - y * y, facts=OpFacts(mentioned=True, closed=True))
def tanh(x: Node) -> Node:
    """tanh x = −t / (2 + t) for x ≥ 0, t = expm1(−2|x|); odd. Relative error of a few 2^-53 near 0 too."""
    t = expm1(arithmetic.abs(x) * -2.0)
    m = t / (t + 2.0)
    return arithmetic.where(x < 0.0, m, 0.0 - m)    # 0 − m: +0 stays +0


def _sigmoid_numpy(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(x, 0.0)) / (1.0 + np.exp(-np.abs(x))))


def _sigmoid_slope(x: Node, y: Node) -> Node:
    return y * sigmoid(-x)


@real(direct=_sigmoid_numpy, slope=_sigmoid_slope, facts=OpFacts(mentioned=True))
def sigmoid(x: Node) -> Node:
    """1 / (1 + e^−x). Both tails keep their digits; where e^−x overflows, 0 stands for a subnormal number."""
    return atomic.reciprocal(exp(-x) + 1.0)


@real(direct=lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))), slope=lambda x, y: sigmoid(x), facts=OpFacts(closed=True))
def softplus(x: Node) -> Node:
    """log(1 + e^x) = max(x, 0) + log1p(e^−|x|), which overflows nowhere."""
    return arithmetic.maximum(x, 0.0) + log1p(exp(-arithmetic.abs(x)))


def logaddexp(x: Operand, y: Operand) -> Node:
    """log(e^x + e^y) = max(x, y) + log1p(e^−|x − y|), which overflows nowhere.

    Floats. Numbers take the tensor's dtype, shapes broadcast as numpy's. Raises ShapeError, DTypeError.
    """
    a, b = together("logaddexp", x, y)
    need("logaddexp", a, "float")
    u, v = wide(a), wide(b)
    apart = arithmetic.where(arithmetic.equals(u, v), 0.0, u - v)      # of two infinities: no difference
    return atomic.cast(arithmetic.maximum(u, v) + log1p(exp(-arithmetic.abs(apart))), a.dtype)


# ---- the error function ----------------------------------------------------------------------------------------------

# erf(x)/x as a polynomial in x² on [0, 9/16], and (x + 3)·e^(x²)·erfc(x) as a polynomial in s on x ∈ [3/4, 28], where
# s = A − B/(x + 3) runs over [−1, 1]: Chebyshev series computed with 60 digits at 80 and 120 nodes, cut where the
# coefficients fall below 1e-17, rewritten in powers with 60 digits and rounded once. The tests derive them again.
ERF_SPLIT, ERFC_LAST = 0.75, 28.0
ERF_NEAR = (
    1.1283791670955126, -0.37612638903183754, 0.11283791670955087, -0.02686617064511852, 0.005223977625223246,
    -0.0008548327001223344, 0.00012055331549810692, -1.4925589533723744e-05, 1.6460386405915453e-06,
    -1.633327165692877e-07, 1.4414195873086809e-08, -9.503863762341979e-10)
ERFC_A, ERFC_B = 1.2752293577981651, 8.532110091743119
ERFC_TAIL = (
    0.9887787838101395, -0.5421553621425853, 0.24796997284786096, -0.09180528726963327, 0.025825099108817712,
    -0.004632519284056685, 9.596353038335853e-05, 0.00021179118385804624, -4.4819743031989275e-05,
    -6.41283725170128e-06, 3.8048084945094824e-06, 1.257830857609925e-07, -3.036761147270431e-07,
    5.932259299686457e-10, 2.6314463846724166e-08, 2.3877337825902987e-10, -2.466993991955349e-09,
    -1.4684013817055342e-10, 2.2540462951804907e-10, 3.0051692948763907e-11, -1.4456006009660346e-11,
    -2.952952068695705e-12)
_TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
_SQRT_HALF = math.sqrt(0.5)


def gaussian(x: Node) -> Node:
    """Return e^(−x²) for 0 ≤ x ≤ 28 without the error of squaring: e^(−h²)·e^(−(x − h)·(x + h)), h = ⌊64x⌋/64, h² exact."""
    h = atomic.floor(x * 64.0) * (1.0 / 64.0)
    return exp(-(h * h)) * exp((h - x) * (x + h))


def _erfc_tail(a: Node) -> Node:
    """Return erfc(a) for a ≥ 3/4. Larger numbers than 28 are replaced by 28, where even float64 has 0."""
    a = arithmetic.minimum(a, ERFC_LAST)
    inverse = atomic.reciprocal(a + 3.0)
    return gaussian(a) * polynomial(ERFC_A - inverse * ERFC_B, ERFC_TAIL) * inverse


def _bell(scale: float) -> Callable[[Node, Node], Node]:
    """Return a function for the slope scale · e^(−x²), which is 0 at ±∞."""
    return lambda x, y: gaussian(arithmetic.minimum(arithmetic.abs(x), ERFC_LAST)) * scale


def _elementwise(f: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.fromiter(map(f, x.ravel().tolist()), dtype=np.float64, count=x.size).reshape(x.shape)


@real(direct=_elementwise(math.erf), slope=_bell(_TWO_OVER_SQRT_PI), facts=OpFacts(closed=True))
def erf(x: Node) -> Node:
    """2/√π · ∫ e^(−t²) dt from 0 to x: x·P(x²) where |x| < ¾, else ±(1 − erfc |x|), by our own Chebyshev fits."""
    a = arithmetic.abs(x)
    far = 1.0 - _erfc_tail(a)
    near = x * polynomial(x * x, ERF_NEAR)
    return arithmetic.where(a < ERF_SPLIT, near, arithmetic.where(x < 0.0, -far, far))


@real(direct=_elementwise(math.erfc), slope=_bell(-_TWO_OVER_SQRT_PI), facts=OpFacts(mentioned=True, closed=True))
def erfc(x: Node) -> Node:
    """1 − erf x, accurate relative to itself into the tail: e^(−x²)·Q(1/(x + 3))/(x + 3) where x ≥ ¾.

    erfc(−x) = 2 − erfc(x).
    """
    a = arithmetic.abs(x)
    tail = _erfc_tail(a)
    near = 1.0 - x * polynomial(x * x, ERF_NEAR)
    return arithmetic.where(a < ERF_SPLIT, near, arithmetic.where(x < 0.0, 2.0 - tail, tail))


# ---- activations -----------------------------------------------------------------------------------------------------


@library(direct=direct_by(lambda x: np.maximum(x, 0)), facts=OpFacts(closed=True))
def relu(x: Node) -> Node:
    """max(x, 0); NaN stays NaN. Its gradient at 0 is ½, as for every tie of max.

    x[…] of floats or integers -> its shape and dtype. Raises DTypeError.
    """
    need("relu", x, "float", "int", "uint")
    return arithmetic.maximum(x, 0)


@real(direct=lambda x: x * _sigmoid_numpy(x), slope=lambda x, y: sigmoid(x) * (x * sigmoid(-x) + 1.0),
      facts=OpFacts(mentioned=True))
def silu(x: Node) -> Node:
    """x · sigmoid(x)."""
    return x * sigmoid(x)


_GELU_SCALE, _GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
_NORMAL_PEAK = 1.0 / math.sqrt(2.0 * math.pi)


def _gelu_argument(x: Node) -> Node:
    return (x + x * x * x * _GELU_CUBIC) * _GELU_SCALE


def _gelu_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    x = roles["x"]
    if attrs["approximate"] == "tanh":
        u = _GELU_SCALE * (x + _GELU_CUBIC * (x * x * x))           # a power takes ten times as long
        return np.asarray(x * _sigmoid_numpy(2.0 * u))
    return np.asarray(0.5 * x * _elementwise(math.erfc)(-_SQRT_HALF * x))


@of_one_output
def _gelu_gradient(node: Node, g: Node) -> Gradients:
    x = wide(node.inputs[0])
    if node.attrs["approximate"] == "tanh":
        u = _gelu_argument(x)
        s = sigmoid(u + u)
        du = (x * x * (3.0 * _GELU_CUBIC) + 1.0) * _GELU_SCALE
        slope = s + x * s * sigmoid(-(u + u)) * (du + du)
    else:
        slope = erfc(x * -_SQRT_HALF) * 0.5 + x * exp(x * x * -0.5) * _NORMAL_PEAK
    return {"x": atomic.cast(wide(g) * slope, node.inputs[0].dtype)}


@library(direct=_gelu_direct, gradient=_gelu_gradient, facts=OpFacts(mentioned=True, closed=True))
@in_wide
def gelu(x: Node, *, approximate: str = "none") -> Node:
    """x · Φ(x), Φ the normal distribution function (Hendrycks and Gimpel 2016).

    "none": x/2 · erfc(−x/√2), which keeps the negative tail that 1 + erf would cancel. "tanh": Φ is replaced by
    ½·(1 + tanh u) = sigmoid(2u), u = √(2/π)·(x + 0.044715·x³). Raises AttributeValueError for any other word.

    x[…] of a float dtype -> its shape and dtype. Raises DTypeError too.
    """
    if approximate not in ("none", "tanh"):
        raise AttributeValueError(f"gelu: approximate is {approximate!r}", fix='"none" or "tanh"')
    if approximate == "tanh":
        u = _gelu_argument(x)
        return x * sigmoid(u + u)
    return x * 0.5 * erfc(x * -_SQRT_HALF)


# ---- the same functions over the reals -------------------------------------------------------------------------------


def _tanh_algebraic(x: Node) -> Node:
    e = atomic.exp2((x + x) * LOG2E)
    return (e - 1.0) / (e + 1.0)


ALGEBRAIC: dict[str, Callable[[Node], Node]] = {
    "exp": lambda x: atomic.exp2(x * LOG2E),
    "expm1": lambda x: atomic.exp2(x * LOG2E) - 1.0,
    "log1p": lambda x: log(x + 1.0),
    "tanh": _tanh_algebraic,
    "softplus": lambda x: log(exp(x) + 1.0),
}
"""Name of a composite of this file -> its shortest form over the reals; all others are defined by theirs."""
