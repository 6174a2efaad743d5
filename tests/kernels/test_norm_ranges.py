"""Norms and long products of hand-written kernels: right wherever their elements are numbers of f32."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.numpy import composites
from tensor_graphs.kernels.torch import ops
from tensor_graphs.language.node import Node

ROWS, LENGTH = 4, 600


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True)


NORMS: dict[str, tuple[Callable[[Node], Node], Callable[[np.ndarray], np.ndarray]]] = {
    "rms_norm": (lambda x: tg.rms_norm(x, eps=0.0), lambda x: x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True))),
    "layer_norm": (lambda x: tg.layer_norm(x, eps=0.0), standardised),
    "group_norm": (lambda x: tg.reshape(tg.group_norm(tg.reshape(x, (ROWS, 4, LENGTH // 4)), groups=1, eps=0.0), (ROWS, LENGTH)),
                   standardised)}

ROWS_OF = [*((0.0, size) for size in (1.0, 1e19, 1e30, 3e36, 1e-25, 1e-36)), (1e4, 1.0), (1e4, 0.01)]
"""means and spreads"""

BACKENDS = (("numpy",), ("c", "gen", "numpy"), ("torch", "numpy"))


def run(node: Node, backends: tuple[str, ...], values: dict[str, np.ndarray]) -> np.ndarray:
    model = tg.bind(tg.compile(tg.graph({"y": node}), backends=backends), {})
    return np.asarray(model.run(values)["y"])


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("mean", "spread"), ROWS_OF)
def test_a_norm_is_right_for_large_small_and_shifted_rows(name: str, backends: tuple[str, ...], mean: float, spread: float) -> None:
    written, in_numpy = NORMS[name]
    x = (np.random.default_rng(0).standard_normal((ROWS, LENGTH)) * spread + mean).astype(np.float32)
    y = run(written(tg.input("x", x.shape)), backends, {"x": x})
    np.testing.assert_allclose(y, in_numpy(x.astype(np.float64)), rtol=0, atol=2e-6)


@pytest.mark.parametrize("backends", BACKENDS, ids="+".join)
def test_a_norm_of_zeros_is_zero_and_of_an_infinity_none(backends: tuple[str, ...]) -> None:
    x = np.zeros((ROWS, LENGTH), np.float32)
    x[1, 0] = np.inf
    y = run(tg.layer_norm(tg.input("x", x.shape)), backends, {"x": x})
    assert (y[[0, 2, 3]] == 0).all() and np.isnan(y[1]).all()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_the_variance_of_numpy_is_that_of_f64(axis: int | None) -> None:
    x = (np.random.default_rng(1).standard_normal((ROWS, LENGTH)) * 1e18).astype(np.float32)
    y = run(tg.var(tg.input("x", x.shape), axis=axis), ("numpy",), {"x": x})
    np.testing.assert_allclose(y, np.var(x.astype(np.float64), axis=axis), rtol=2e-7)


@pytest.mark.parametrize("kernels", [composites, ops], ids=["numpy", "torch"])
def test_a_product_of_a_million_equal_terms_keeps_its_digits(kernels: ModuleType) -> None:
    x, w = (np.full((rows, 1 << 20), np.float32(0.1)) for rows in (2, 3))
    vector, matrix = np.empty((), np.float32), np.empty((2, 3), np.float32)
    expected = x.shape[1] * float(x[0, 0]) ** 2
    kernels.dot([matrix], [x, w.T], {})
    np.testing.assert_allclose(matrix, expected, rtol=3e-4)
    kernels.linear([matrix], [x, w], {"absent": ("bias",)})
    np.testing.assert_allclose(matrix, expected, rtol=3e-4)
    kernels.dot([vector], [x[0], w[0]], {})
    np.testing.assert_allclose(vector, expected, rtol=3e-4)
