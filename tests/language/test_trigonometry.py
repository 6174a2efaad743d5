"""Inverse trigonometric and hyperbolic functions: how far each is from the true value, as in test_elementary.py, and edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.composite import LIBRARY
from tensor_graphs.language.composites import trigonometry
from tensor_graphs.language.dtypes import f16, f32, f64
from tensor_graphs.language.errors import DTypeError
from tests.language.agreement import check, check_gradients
from tests.language.test_elementary import Accuracy, chebyshev_in_powers, mp, points, values, worst

# Bounds are about 1.5 times the largest error seen
ACCURACY = (
    Accuracy("atan", tg.atan, mp.atan, ((-1, 1), (-1e-8, 1e-8), (-30, 30), (1, 1e30)), 3.2e-16, 2e-7),
    Accuracy("asin", tg.asin, mp.asin, ((-1, 1), (-1e-8, 1e-8), (0.999, 1)), 5e-16, 3.2e-7),
    Accuracy("acos", tg.acos, mp.acos, ((-1, 0.999), (0.99, 1)), 4e-16, 2.7e-7),
    Accuracy("sinh", tg.sinh, mp.sinh, ((-1, 1), (-1e-8, 1e-8), (-700, 700)), 5.5e-16, 2.2e-7),
    Accuracy("cosh", tg.cosh, mp.cosh, ((-1, 1), (-700, 700)), 5.5e-16, 2.2e-7),
    Accuracy("asinh", tg.asinh, mp.asinh, ((-1, 1), (-1e-8, 1e-8), (-80, 80), (1, 1e30)), 4.2e-16, 2.4e-7),
    Accuracy("acosh", tg.acosh, mp.acosh, ((1, 2), (1, 1.0001), (1, 1e30)), 5e-16, 2.7e-7),
    Accuracy("atanh", tg.atanh, mp.atanh, ((-0.99, 0.99), (-1e-8, 1e-8), (0.9, 0.9999)), 5e-16, 2.4e-7),
)


@pytest.mark.parametrize("row", ACCURACY, ids=lambda row: row.name)
def test_a_definition_is_as_accurate_as_promised_in_float64_and_float32(row: Accuracy) -> None:
    for low, high in row.ranges:
        x = points(low, high)
        assert worst(row, x, values(row.build, x)) <= row.bound64, (low, high)
        assert worst(row, x, values(row.build, x, use_direct=True)) <= max(row.bound64, 6e-16), ("direct", low, high)
        x = (x if high > 1e3 else np.clip(x, -85, 85)).astype(np.float32)
        assert worst(row, x, values(row.build, x, f32, "as_written")) <= row.bound32, (low, high)


def test_each_composite_of_this_file_has_a_row() -> None:
    here = {name for name, op in LIBRARY.items() if op.build.__module__ == trigonometry.__name__}
    assert here == {row.name for row in ACCURACY} | {"atan2"}


EDGES = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 1e300, -1e300, 1, -1, 800, -800, 2.5, -0.5, 5e-324])


@pytest.mark.parametrize("row", ACCURACY, ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_edges_are_those_of_torch_and_so_is_the_gradient(row: Accuracy) -> None:
    check(row.build(tg.input("x", EDGES.shape, f64)), getattr(torch, row.name)(torch.tensor(EDGES)).numpy(), x=EDGES, rtol=1e-13)
    inside = np.array([1.1, 2.0, 50.0]) if row.name == "acosh" else np.array([-0.9, -0.3, 1e-4, 0.5])
    t = torch.tensor(inside, requires_grad=True)
    node, expected = row.build(tg.input("x", inside.shape, f64)), getattr(torch, row.name)(t)
    check_gradients(node, expected, {"x": t}, x=inside)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_atan2_is_that_of_numpy_in_every_corner_and_so_are_its_gradients() -> None:
    y, x = (grid.ravel() for grid in np.meshgrid(EDGES, EDGES))
    node = tg.atan2(tg.input("y", y.shape, f64), tg.input("x", x.shape, f64))
    check(node, np.arctan2(y, x), y=y, x=x, rtol=1e-15)
    rng = np.random.default_rng(5)
    feeds = {"y": rng.normal(size=30), "x": rng.normal(size=30)}
    t = {name: torch.tensor(v, requires_grad=True) for name, v in feeds.items()}
    node = tg.atan2(tg.input("y", (30,), f64), tg.input("x", (30,), f64))
    check_gradients(node, torch.atan2(t["y"], t["x"]), t, **feeds)
    assert tg.atan2(tg.input("y", (2, 1)), tg.input("x", (3,))).shape == (2, 3)


def test_narrow_floats_are_computed_wide_and_rounded_once() -> None:
    x = np.linspace(-0.99, 0.99, 200).astype(np.float16)
    for build in (tg.atan, tg.asin, tg.acos, tg.sinh, tg.cosh, tg.asinh, tg.atanh):
        true, actual = values(build, x.astype(np.float64)), values(build, x, f16, "as_written")
        assert (np.abs(actual - true) <= 0.5001 * f16.epsilon * np.abs(true) + f16.smallest_normal * f16.epsilon).all(), build.name


def test_the_coefficients_of_atan_are_those_of_its_chebyshev_series() -> None:
    end, count = (mp.sqrt(2) - 1) ** 2, len(trigonometry.ATAN)
    in_s = chebyshev_in_powers(lambda s: mp.atan(mp.sqrt(end * (1 + s) / 2)) / mp.sqrt(end * (1 + s) / 2), 40, count)
    in_q = [mp.mpf(0)] * count                                          # s = 2·q/end − 1
    for k, c in enumerate(in_s):
        for i in range(k + 1):
            in_q[i] += c * mp.binomial(k, i) * (2 / end) ** i * (-1) ** (k - i)
    for ours, derived in zip(trigonometry.ATAN, in_q, strict=True):
        assert abs(ours - derived) <= 1e-15 * abs(derived)


def test_integers_are_refused_by_name() -> None:
    for row in ACCURACY:
        with pytest.raises(DTypeError, match=f"{row.name} takes float"):
            row.build(tg.input("x", (3,), tg.i32))
    with pytest.raises(DTypeError, match="atan2 takes float"):
        tg.atan2(tg.input("y", (3,), tg.i32), 1)
