"""Elementary functions: how far each definition is from the true value, in float64 and in float32, and at the edges.

The true values come from mpmath with 40 digits. A definition is evaluated op by op (never through its `direct`), once
on float64 and once rounded to float32 after every op; `direct` has to agree too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest

from tensor_graphs.language import leaves
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.composites import elementary
from tensor_graphs.language.composites.elementary import (
    cos,
    erf,
    erfc,
    exp,
    expm1,
    gelu,
    log,
    log1p,
    relu,
    sigmoid,
    silu,
    softplus,
    tan,
    tanh,
)
from tensor_graphs.language.composites.gated import ACTIVATIONS, gated
from tensor_graphs.language.dtypes import bf16, f16, f32, f64, i32, u8
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import evaluate

mp = mpmath.mp.clone()
mp.dps = 40
POINTS = 250
Build = Callable[[Node], Node]


def values(build: Build, x: np.ndarray, dtype: Any = f64, mode: str = "real", use_direct: bool = False) -> np.ndarray:
    """build(x) evaluated at the points x, floats as float64."""
    node = leaves.input("x", x.shape, dtype)
    out = np.asarray(evaluate([build(node)], {node: x}, {}, mode=mode, use_direct=use_direct)[0])
    return out.astype(np.float64) if dtype.kind == "float" else out


def relative(true: Any, x: Any) -> Any:
    """What an error is divided by to be relative to the value itself."""
    return abs(true)


def absolute(true: Any, x: Any) -> Any:
    return mp.mpf(1)


def at_least_one(true: Any, x: Any) -> Any:
    """Relative to the value where it is large, absolute where it is small."""
    return max(abs(true), mp.mpf(1))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _gelu_tanh(x: Any) -> Any:
    return x * _sigmoid(2 * mp.sqrt(2 / mp.pi) * (x + mp.mpf(elementary._GELU_CUBIC) * x**3))


@dataclass(frozen=True)
class Accuracy:
    """A promise: on these ranges, error / scale(true value) <= bound64 in float64 and <= bound32 in float32."""

    name: str
    build: Build
    true: Callable[[Any], Any]
    ranges: tuple[tuple[float, float], ...]
    bound64: float
    bound32: float
    scale: Callable[[Any, Any], Any] = relative


# Bounds are about 1.5 times the largest error seen over 4000 points per range. float32 sees each range cut to ±85.
ACCURACY = (
    Accuracy("exp", exp, mp.exp, ((-700, 700), (-1, 1), (-1e-8, 1e-8)), 3e-16, 1.6e-7),
    Accuracy("log", log, mp.log, ((0.5, 2), (1e-30, 1e-20), (1, 1e30), (0.999, 1.001)), 3.2e-16, 2.2e-7),
    Accuracy("expm1", expm1, mp.expm1, ((-1, 1), (-1e-8, 1e-8), (-700, 700), (-40, 40)), 4e-16, 2.6e-7),
    Accuracy("log1p", log1p, mp.log1p, ((-0.999, 1), (-1e-8, 1e-8), (-1e-3, 1e-3), (1, 1e30)), 4.5e-16, 2.6e-7),
    Accuracy("cos", cos, mp.cos, ((-10, 10), (-1000, 1000)), 5e-16, 3.3e-7, absolute),
    Accuracy("tan", tan, mp.tan, ((-1.5, 1.5), (-10, 10)), 5e-16, 3e-7, lambda true, x: 1 + true * true),
    Accuracy("tanh", tanh, mp.tanh, ((-1, 1), (-1e-8, 1e-8), (-30, 30)), 6e-16, 3.4e-7),
    Accuracy("sigmoid", sigmoid, _sigmoid, ((-700, 40), (-5, 5)), 4.5e-16, 2e-7),
    Accuracy("softplus", softplus, lambda x: mp.log1p(mp.exp(x)), ((-700, 700), (-5, 5)), 6e-16, 3e-7),
    Accuracy("erf", erf, mp.erf, ((-6, 6), (-1, 1), (-1e-8, 1e-8)), 5e-16, 3e-7),
    Accuracy("erfc", erfc, mp.erfc, ((-6, 6), (0.4, 1), (1, 9)), 1e-15, 6e-7),
    Accuracy("erfc, the tail", erfc, mp.erfc, ((9, 26),), 1e-15, float("inf")),
    Accuracy("silu", silu, lambda x: x * _sigmoid(x), ((-700, 700), (-5, 5)), 5e-16, 2.4e-7),
    Accuracy("gelu", gelu, lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2, ((-8, 8), (-1, 1)), 7e-16, 4e-7, at_least_one),
    # the tail multiplies the rounding of x/√2 by x²
    Accuracy("gelu, the tail", gelu, lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2, ((-8, -1),), 1.5e-14, 6e-6),
    Accuracy("gelu tanh", lambda x: gelu(x, approximate="tanh"), _gelu_tanh, ((-8, 8), (-1, 1)), 7e-16, 4e-7,
             at_least_one),
    Accuracy("gelu tanh, the tail", lambda x: gelu(x, approximate="tanh"), _gelu_tanh, ((-8, -1),), 1.5e-14, 7e-6),
)


def worst(row: Accuracy, x: np.ndarray, found: np.ndarray) -> float:
    """The largest scaled error; NaN anywhere is infinitely wrong."""
    if not np.isfinite(found).all():
        return float("inf")
    errors = []
    for point, value in zip(x.tolist(), found.tolist(), strict=True):
        true = row.true(mp.mpf(point))
        error = abs(mp.mpf(value) - true)
        errors.append(float(error / row.scale(true, point)) if error else 0.0)
    return max(errors)


def points(low: float, high: float) -> np.ndarray:
    """Seeded points in the range, its ends among them; evenly by size where the range spans many powers of ten."""
    rng = np.random.default_rng(20)
    if low > 0 and high / low > 1e3:
        x = np.exp(rng.uniform(np.log(low), np.log(high), POINTS))
    else:
        x = rng.uniform(low, high, POINTS)
    return np.concatenate([x, [low, high]])


@pytest.mark.parametrize("row", ACCURACY, ids=lambda row: row.name)
def test_a_definition_is_as_accurate_as_promised_in_float64(row: Accuracy):
    for low, high in row.ranges:
        x = points(low, high)
        assert worst(row, x, values(row.build, x)) <= row.bound64, (low, high)
        assert worst(row, x, values(row.build, x, use_direct=True)) <= max(row.bound64, 6e-16), ("direct", low, high)


@pytest.mark.parametrize("row", [r for r in ACCURACY if np.isfinite(r.bound32)], ids=lambda row: row.name)
def test_a_definition_is_as_accurate_as_promised_in_float32(row: Accuracy):
    for low, high in row.ranges:
        wide_range = not (low > 0 and high / low > 1e3)
        x = points(max(low, -85.0), min(high, 85.0) if wide_range else high).astype(np.float32)
        found = values(row.build, x, f32, mode="as_written")
        np.testing.assert_array_equal(found, found.astype(np.float32))               # it was rounded
        assert worst(row, x, found) <= row.bound32, (low, high)


def test_real_mode_means_real_numbers_for_a_graph_of_float32_too():
    x = points(-20, 20)
    for op in (exp, tanh, erf, gelu):
        np.testing.assert_array_equal(values(op, x, f32), values(op, x, f64), err_msg=op.name)


def test_the_comparison_of_accuracies_sees_an_error_of_three_ulps():
    row = ACCURACY[0]
    x = np.array([1.0, 2.0])
    right = values(row.build, x)
    assert worst(row, x, right * (1 + 3 * 2.0**-52)) > row.bound64
    assert worst(row, x, np.array([np.nan, right[1]])) == float("inf")


def test_every_elementary_composite_has_an_accuracy_row_except_relu_which_is_exact():
    here = {name for name, op in LIBRARY.items() if op.build.__module__ == elementary.__name__}
    measured = {row.name.split(",")[0].split()[0] for row in ACCURACY}
    assert here - {"relu"} == measured
    x = np.array([-np.inf, -2.0, 0.0, 3.0, np.inf])
    np.testing.assert_array_equal(values(relu, x), [0.0, 0.0, 0.0, 3.0, np.inf])
    np.testing.assert_array_equal(values(relu, np.array([-3, 0, 4], np.int32), i32), [0, 0, 4])


EDGES = np.array([-np.inf, np.inf, np.nan, 0.0, 1e300, -1e300, 800.0, -800.0])
AT_EDGES: dict[str, tuple[Build, list[float]]] = {
    "exp": (exp, [0, np.inf, np.nan, 1, np.inf, 0, np.inf, 0]),
    "log": (log, [np.nan, np.inf, np.nan, -np.inf, np.log(1e300), np.nan, np.log(800), np.nan]),
    "expm1": (expm1, [-1, np.inf, np.nan, 0, np.inf, -1, np.inf, -1]),
    "log1p": (log1p, [np.nan, np.inf, np.nan, 0, np.log(1e300), np.nan, np.log1p(800), np.nan]),
    "tanh": (tanh, [-1, 1, np.nan, 0, 1, -1, 1, -1]),
    "sigmoid": (sigmoid, [0, 1, np.nan, 0.5, 1, 0, 1, 0]),
    "softplus": (softplus, [0, np.inf, np.nan, np.log(2), 1e300, 0, 800, 0]),
    "erf": (erf, [-1, 1, np.nan, 0, 1, -1, 1, -1]),
    "erfc": (erfc, [2, 0, np.nan, 1, 0, 2, 0, 2]),
    "silu": (silu, [np.nan, np.inf, np.nan, 0, 1e300, 0, 800, 0]),
    "gelu": (gelu, [np.nan, np.inf, np.nan, 0, 1e300, 0, 800, 0]),
    "gelu tanh": (lambda x: gelu(x, approximate="tanh"), [np.nan, np.inf, np.nan, 0, 1e300, 0, 800, 0]),
    "cos": (cos, [np.nan, np.nan, np.nan, 1, np.cos(1e300), np.cos(1e300), np.cos(800), np.cos(800)]),
}


@pytest.mark.parametrize("use_direct", [False, True], ids=["definition", "direct"])
@pytest.mark.parametrize("name", AT_EDGES)
def test_infinities_nan_zero_and_large_values_give_their_limits(name: str, use_direct: bool):
    build, expected = AT_EDGES[name]
    np.testing.assert_allclose(values(build, EDGES, use_direct=use_direct), expected, rtol=1e-14)


def test_exp_reaches_the_ends_of_the_range_of_both_dtypes():
    largest64, smallest64 = 709.782712893384, -744.4
    assert np.isfinite(values(exp, np.array([709.78]))).all() and values(exp, np.array([largest64 + 1e-3]))[0] == np.inf
    assert 0 < values(exp, np.array([smallest64]))[0] < 1e-322
    found = values(exp, np.array([88.7228, 88.73, -103.2], np.float32), f32, mode="as_written")
    assert np.isfinite(found[0]) and found[0] > 3.402e38 and found[1] == np.inf and 0 < found[2] < 2e-45


def test_tanh_of_plus_zero_is_plus_zero():
    assert not np.signbit(values(tanh, np.array([0.0])))[0]


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_computed_wide_and_rounded_once(dtype: Any):
    x = np.linspace(-6, 6, 200).astype(dtype.numpy)
    for op in (exp, tanh, sigmoid, erf, silu, gelu, softplus):
        true = values(op, x.astype(np.float64))
        found = values(op, x, dtype, mode="as_written")
        np.testing.assert_array_equal(found, found.astype(dtype.numpy).astype(np.float64))
        error = np.abs(found - true)
        assert (error <= 0.5001 * dtype.epsilon * np.abs(true) + dtype.smallest_normal * dtype.epsilon).all(), op.name


def test_the_split_of_ln_2_is_exact_to_twenty_digits():
    assert float(mp.log(2) - mp.mpf(elementary.LN2_HI)) == elementary.LN2_LO
    assert (elementary.LN2_HI * 2**13).is_integer() and elementary.LN2_HI * 2**13 < 2**13


def chebyshev_in_powers(f: Callable[[Any], Any], nodes: int, count: int) -> list[Any]:
    """The first `count` terms of f's Chebyshev series on [−1, 1], from its values at `nodes` points, in powers of s."""
    angles = [mp.pi * (2 * j + 1) / (2 * nodes) for j in range(nodes)]
    samples = [f(mp.cos(a)) for a in angles]
    series = [2 * mp.fsum(s * mp.cos(k * a) for s, a in zip(samples, angles, strict=True)) / nodes
              for k in range(count)]
    series[0] /= 2
    powers = [mp.mpf(0)] * count
    before, now = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]                  # T0 and T1, by T(k+1) = 2·s·T(k) − T(k−1)
    for k, c in enumerate(series):
        polynomial = before if k == 0 else now
        for i, p in enumerate(polynomial):
            powers[i] += c * p
        if k >= 1:
            later = [mp.mpf(0)] + [2 * p for p in now]
            for i, p in enumerate(before):
                later[i] -= p
            before, now = now, later
    return powers


def test_the_coefficients_of_erf_are_those_of_its_chebyshev_series():
    end = mp.mpf(elementary.ERF_SPLIT) ** 2
    count = len(elementary.ERF_NEAR)
    in_s = chebyshev_in_powers(lambda s: mp.erf(mp.sqrt(end * (1 + s) / 2)) / mp.sqrt(end * (1 + s) / 2), 40, count)
    in_q = [mp.mpf(0)] * count                                          # s = 2·q/end − 1
    for k, c in enumerate(in_s):
        for i in range(k + 1):
            in_q[i] += c * mp.binomial(k, i) * (2 / end) ** i * (-1) ** (k - i)
    for ours, derived in zip(elementary.ERF_NEAR, in_q, strict=True):
        assert abs(ours - derived) <= 1e-15 * abs(derived)


def test_the_coefficients_of_erfc_are_those_of_its_chebyshev_series():
    low, high = mp.mpf(elementary.ERF_SPLIT), mp.mpf(elementary.ERFC_LAST)
    # s = a − b/(x + 3) is −1 at the low end and 1 at the high one
    b = 2 / (1 / (low + 3) - 1 / (high + 3))
    a = 1 + b / (high + 3)
    assert (elementary.ERFC_A, elementary.ERFC_B) == (float(a), float(b))

    def scaled(s: Any) -> Any:
        x = b / (a - s) - 3
        return (x + 3) * mp.exp(x * x) * mp.erfc(x)

    derived = chebyshev_in_powers(scaled, 60, len(elementary.ERFC_TAIL))
    for ours, true in zip(elementary.ERFC_TAIL, derived, strict=True):
        assert abs(ours - true) <= 1e-15 * abs(true) + 1e-18


@pytest.mark.parametrize("name", elementary.ALGEBRAIC)
def test_an_algebraic_form_is_the_same_function(name: str):
    op = LIBRARY[name]
    x = points(0.1, 3.0)
    np.testing.assert_allclose(values(elementary.ALGEBRAIC[name], x), values(op, x), rtol=1e-14)


def test_an_elementary_function_of_integers_is_refused_in_its_own_name():
    for op in (exp, log, cos, tan, tanh, sigmoid, silu, softplus, expm1, log1p, erf, erfc, gelu):
        with pytest.raises(DTypeError, match=f"{op.name} takes float"):
            op(leaves.input("x", (3,), u8))


def test_gelu_refuses_an_approximation_it_does_not_know():
    with pytest.raises(AttributeValueError, match="approximate is 'erf'.*\n(.*\n)*.*fix: \"none\" or \"tanh\""):
        gelu(leaves.input("x", (3,)), approximate="erf")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_is_the_activation_of_the_gate_times_up(activation: str):
    gate, up = leaves.input("gate", (4, 5)), leaves.input("up", (4, 5))
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    for use_direct in (False, True):
        found, factor = evaluate([gated(gate, up, activation=activation), ACTIVATIONS[activation](gate)],
                                 {gate: a, up: b}, {}, use_direct=use_direct)
        np.testing.assert_allclose(found, factor * b, rtol=1e-14)


def test_gated_refuses_unequal_operands_and_unknown_activations():
    gate = leaves.input("gate", (4, 5))
    with pytest.raises(ShapeError, match="axis 1 has two sizes, 5 and 6"):
        gated(gate, leaves.input("up", (4, 6)))
    with pytest.raises(DTypeError, match="nothing is promoted"):
        gated(gate, leaves.input("up", (4, 5), bf16))
    with pytest.raises(AttributeValueError, match="one of gelu_tanh, gelu, silu"):
        gated(gate, gate, activation="relu")
