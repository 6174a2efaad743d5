"""The native kernels with f64 activations: against float64 numpy to the last digits, at the sizes of test_native.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensor_graphs.kernels.c import library
from tests.kernels.c.test_native import I32, Array, error, poisoned, run

F32, F64 = np.float32, np.float64
WEIGHTS = {"f32": 0, "bf16": 1, "f64": 2}
"""enum TG_F32, TG_BF16, TG_F64"""


@pytest.fixture(scope="module")
def native() -> library.NativeLibrary:
    return library.load()


def normal(shape: Any, seed: int = 0, dtype: str = "f64") -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape)
    return numbers.astype({"f32": F32, "bf16": ml_dtypes.bfloat16, "f64": F64}[dtype])


# --- linear ---


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 6, 7, 9, 17, 33])
def test_linear_is_the_product_with_weights_of_any_width(each_build: library.NativeLibrary, n: int, weights: str) -> None:
    for m, k in ((1, 1), (7, 0), (3, 17), (61, 33), (130, 640), (15, 1030)):
        x, w = normal((n, k), 1), normal((m, k), 2, weights)
        reference = x @ w.astype(float).T
        scale = np.sqrt(np.sum(x * x, -1, keepdims=True) + 1)
        for bias_dtype in (None, *WEIGHTS):
            bias = None if bias_dtype is None else normal((m,), 3, bias_dtype)
            out = poisoned((n, m), F64)
            run(each_build, "tg_linear_f64", [out, x, w, bias], [n, m, k, WEIGHTS[weights], WEIGHTS[bias_dtype or "f32"]])
            wanted = reference if bias is None else reference + bias.astype(float)
            assert np.max(np.abs(out - wanted) / scale, initial=0.0) <= 1e-14


def test_linear_reads_memory_that_is_only_aligned_to_its_elements(native: library.NativeLibrary) -> None:
    m, k = 21, 50
    x, w = normal((17 * k + 1,), 1)[1:].reshape(17, k), normal((m * k + 3,), 2, "bf16")[3:].reshape(m, k)
    for n in (17, 1):
        out = poisoned((n * m + 1,), F64)[1:].reshape(n, m)
        run(native, "tg_linear_f64", [out, x[:n], w, None], [n, m, k, 1, 0])
        assert error(out, x[:n] @ w.T.astype(float)) <= 1e-14


def test_a_large_linear_is_the_same_however_many_threads_share_it(native: library.NativeLibrary) -> None:
    w, before = normal((1031, 96), 2, "f32"), native.threads()
    try:
        for n in (1, 300):
            x, results = normal((n, 96), 1), []
            for threads in (1, 2, 5):
                native.set_threads(threads)
                out = poisoned((n, 1031), F64)
                run(native, "tg_linear_f64", [out, x, w, None], [n, 1031, 96, 0, 0])
                results.append(out)
            assert all(np.array_equal(results[0], r) for r in results[1:])
            assert error(results[0], x @ w.T.astype(float)) <= 1e-13
    finally:
        native.set_threads(before)


# --- softmax ---


@pytest.mark.parametrize("d", [1, 3, 17, 1000])
def test_softmax_is_accurate_and_spoils_exactly_the_rows_that_have_no_answer(each_build: library.NativeLibrary, d: int) -> None:
    x = np.concatenate([normal((3, d), 1), normal((1, d), 2) * 300 + 1e4, np.full((1, d), -np.inf), normal((2, d), 3)])
    x[5, -1], x[6, 0] = np.nan, np.inf
    out = poisoned(x.shape, F64)
    run(each_build, "tg_softmax_f64", [out, x], [len(x), d])
    e = np.exp(x[:4] - x[:4].max(-1, keepdims=True))
    assert error(out[:4], e / e.sum(-1, keepdims=True)) <= 3e-15 and np.isnan(out[4:]).all()


# --- positions, rows, argmax ---


@pytest.mark.parametrize("half", [1, 3, 64, 128])
def test_the_rope_table(each_build: library.NativeLibrary, half: int) -> None:
    positions = np.array([0, 1, 17, 4095, 131071], I32)
    cosine, sine = poisoned((5, half), F64), poisoned((5, half), F64)
    run(each_build, "tg_rope_table_f64", [cosine, sine, positions], [5, half], [10000.0, 8.0])
    angle = (positions / 8.0)[:, None] * 10000.0 ** (-np.arange(half) / half)
    assert np.max(np.abs(cosine - np.cos(angle))) <= 2e-11 and np.max(np.abs(sine - np.sin(angle))) <= 2e-11


# --- attention ---


@pytest.mark.parametrize(("symbol", "dtype"), [("tg_attention", F32), ("tg_attention_f64", F64)])
@pytest.mark.parametrize("n", [1, 40])
def test_a_query_all_of_whose_scores_are_minus_infinity_has_no_answer(
    native: library.NativeLibrary, symbol: str, dtype: type, n: int
) -> None:
    q, k = np.ones((n, 1, 16), dtype), np.ones((9, 1, 16), dtype)
    q[-1, 0, 3] = -np.inf
    out = poisoned(q.shape, dtype)
    run(native, symbol, [out, q, k, k, None], [n, 9, 1, 1, 16, 0, 0, 0, 16, 16], [1.0, 0.0])
    assert np.isnan(out[-1]).all() and (abs(out[:-1] - 1) < 1e-6).all()
