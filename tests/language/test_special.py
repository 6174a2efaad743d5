"""erfinv, lgamma, digamma: how far each is from the true value, as in test_elementary.py, at the edges, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.composites import special
from tensor_graphs.language.dtypes import bf16, f32, f64
from tensor_graphs.language.errors import DTypeError
from tests.language.agreement import check, check_gradients
from tests.language.test_elementary import Accuracy, at_least_one, chebyshev_in_powers, mp, points, values, worst


def log_gamma(x: Any) -> Any:
    return mp.log(abs(mp.gamma(x)))


# Bounds are about 1.5 times the largest error seen
ACCURACY = (
    Accuracy("erfinv", tg.erfinv, mp.erfinv, ((-0.99, 0.99), (-1e-8, 1e-8), (0.9, 0.99999)), 9e-16, 5e-7),
    Accuracy("erfinv, the tail", tg.erfinv, mp.erfinv, ((1 - 1e-7, 1 - 1e-15),), 9e-16, float("inf")),
    Accuracy("lgamma", tg.lgamma, log_gamma,
             ((0.01, 4), (1e-20, 1e-3), (0.9, 1.1), (1.9, 2.1), (2, 3), (4, 20), (20, 1e30)), 1.1e-15, 6e-7),
    Accuracy("lgamma below 0", tg.lgamma, log_gamma, ((-7.99, -0.01), (-84.9, -8.1)), 1.8e-15, 8e-7, at_least_one),
    Accuracy("digamma", tg.digamma, mp.digamma, ((1e-10, 4), (0.5, 20), (20, 1e10), (-7.99, -0.01)), 1.8e-15, 1.3e-6, at_least_one),
)


@pytest.mark.parametrize("row", ACCURACY, ids=lambda row: row.name)
def test_a_definition_is_as_accurate_as_promised_in_float64_and_float32(row: Accuracy) -> None:
    for low, high in row.ranges:
        x = points(low, high)
        assert worst(row, x, values(row.build, x)) <= row.bound64, (low, high)
        if np.isfinite(row.bound32):
            x = x.astype(np.float32)
            assert worst(row, x, values(row.build, x, f32, "as_written")) <= row.bound32, (low, high)


def test_each_composite_of_this_file_has_a_row() -> None:
    here = {name for name, op in LIBRARY.items() if op.build.__module__ == special.__name__}
    assert here == {row.name.split(",")[0].split()[0] for row in ACCURACY}


EDGES = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 1e300, -1e300, 1, -1, 2, -2, 800, -3, 1e-310])


@pytest.mark.parametrize("name", ["erfinv", "lgamma", "digamma"])
def test_the_edges_are_those_of_torch(name: str) -> None:
    expected = getattr(torch, name)(torch.tensor(EDGES)).numpy()
    check(getattr(tg, name)(tg.input("x", EDGES.shape, f64)), expected, x=EDGES, rtol=1e-13)


@pytest.mark.parametrize("name, x", [
    ("erfinv", np.array([-0.999, -0.5, 0.0, 1e-3, 0.9])), ("lgamma", np.array([-2.5, -0.3, 0.5, 1.0, 2.0, 3.7, 12.0, 1e4])),
    ("digamma", np.array([-2.5, -0.3, 0.5, 1.0, 2.0, 3.7, 12.0, 1e4]))])
def test_the_gradient_is_that_of_torch(name: str, x: np.ndarray) -> None:
    t = torch.tensor(x, requires_grad=True)
    check_gradients(getattr(tg, name)(tg.input("x", x.shape, f64)), getattr(torch, name)(t), {"x": t}, x=x)


def test_narrow_floats_are_computed_wide_and_rounded_once() -> None:
    x = np.linspace(-0.98, 0.98, 100).astype(bf16.numpy)
    for build in (tg.erfinv, tg.lgamma, tg.digamma):
        true, actual = values(build, x.astype(np.float64)), values(build, x, bf16, "as_written")
        assert (np.abs(actual - true) <= 0.5005 * bf16.epsilon * np.abs(true) + 1e-6).all(), build.name


CHEBYSHEV: dict[str, tuple[tuple[float, ...], Callable[[Any], Any]]] = {
    "lgamma": (special.LGAMMA, lambda s: mp.loggamma((s + 2.5) / 2) / (((s + 2.5) / 2 - 1) * ((s + 2.5) / 2 - 2))),
}


@pytest.mark.parametrize("name", CHEBYSHEV)
def test_coefficients_are_those_of_the_chebyshev_series(name: str) -> None:
    ours, function = CHEBYSHEV[name]
    for coefficient, derived in zip(ours, chebyshev_in_powers(function, 60, len(ours)), strict=True):
        assert abs(coefficient - derived) <= 1e-15 * abs(derived) + 1e-18


def test_the_series_are_those_of_bernoulli_numbers() -> None:
    for k, (stirling, slope) in enumerate(zip(special.STIRLING, special.DIGAMMA, strict=True), 1):
        assert stirling == float(mp.bernoulli(2 * k) / (2 * k * (2 * k - 1))) and slope == float(mp.bernoulli(2 * k) / (2 * k))


def test_integers_are_refused_by_name() -> None:
    for build in (tg.erfinv, tg.lgamma, tg.digamma):
        with pytest.raises(DTypeError, match=f"{build.name} takes float"):
            build(tg.input("x", (3,), tg.i32))
