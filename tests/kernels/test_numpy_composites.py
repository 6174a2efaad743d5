"""kernels/numpy/composites.py: mod is numpy's, in every dtype, however large the quotient."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.registry import kernel_named


@pytest.mark.parametrize("dtype", [tg.f16, tg.bf16, tg.f32, tg.f64, tg.f8e4m3], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_remainders_of_floats_are_exact(dtype: tg.DType) -> None:
    rng, bits = np.random.default_rng(2), np.dtype(f"u{dtype.itemsize}")
    x, y = (rng.integers(0, np.iinfo(bits).max, 4096, bits, endpoint=True).view(dtype.numpy) for _ in range(2))
    right = np.mod(x.astype(np.float64), y.astype(np.float64)).astype(dtype.numpy).astype(np.float64)
    np.testing.assert_array_equal(kernel_named("numpy.mod").run([x, y]).astype(np.float64), right)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64], ids=lambda t: t.__name__)
def test_an_integer_modulo_0_is_itself(dtype: type) -> None:
    x, y = np.array([7, 5, 100, 3], dtype), np.array([0, 3, 7, 0], dtype)
    assert kernel_named("numpy.mod").run([x, y]).tolist() == [7, 2, 2, 3]
