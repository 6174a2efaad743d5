"""kernels/c/amx_product.c: products by tiles of bfloat16 are as near as those by vectors of floats, whatever tiles leave out.

The portable build has no tiles, and asks other kernels, or adds up in f64; so does this processor's where it has none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensor_graphs.devices.features import features
from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.registry import kernel_named, lacking
from tests.kernels.c.test_native import Array, poisoned, run
from tests.kernels.c.test_pairs import FLAG, beyond_rounding, exact

BF16, F32 = ml_dtypes.bfloat16, np.float32
PAIRS = [(F32, F32), (F32, BF16), (BF16, BF16)]
"""dtypes of x and of weights"""
KINDS = [*((x, w, x) for x, w in PAIRS), (BF16, BF16, F32)]
"""dtypes of x, of weights and of the result of `linear` and of `scaled_linear`"""


def normal(shape: tuple[int, ...], seed: int, dtype: type = F32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(lib: library.NativeLibrary, x: Array, w: Array, bias: Array | None = None, of_out: type | None = None) -> Array:
    """Return x · wᵀ + bias in a dtype, by default that of x."""
    (n, k), m = x.shape, len(w)
    out = poisoned((n, m), of_out or x.dtype)
    dtypes = [FLAG[x.dtype], FLAG[w.dtype], 0 if bias is None else FLAG[bias.dtype], FLAG[out.dtype]]
    run(lib, "tg_linear_amx", [out, x, w, bias], [n, m, k, *dtypes])
    return out


def dot(lib: library.NativeLibrary, a: Array, b: Array) -> Array:
    """Multiply arrays [batch, m, k] and [batch, k, n] of any strides."""
    size = a.dtype.itemsize
    out = poisoned((len(a), a.shape[1], b.shape[2]), a.dtype)
    strides = [s // size for each in (out, a, b) for s in each.strides]
    lib.call("tg_dot_amx", [each.ctypes.data for each in (out, a, b)], [*out.shape, a.shape[2], *strides, FLAG[a.dtype]])
    return out


def beyond(out: Array, wanted: Array, terms: Array) -> float:
    """The largest error over the sum of the products' sizes: beyond one rounding where results are of bfloat16."""
    if out.dtype == BF16:
        return beyond_rounding(out, wanted, terms)
    finite = np.isfinite(wanted)
    if not np.array_equal(out[~finite], wanted[~finite], equal_nan=True):
        return np.inf
    with np.errstate(invalid="ignore"):
        return float(np.max((np.abs(out - wanted) / np.maximum(terms, 2.0**-149))[finite], initial=0.0))


def error(out: Array, x: Array, w: Array) -> float:
    return beyond(out, exact(x, w), exact(np.abs(x), np.abs(w)))


@pytest.mark.parametrize(("of_x", "of_w", "of_out"), KINDS)
@pytest.mark.parametrize("n", [0, 1, 8, 9, 16, 17, 21, 33, 52, 129])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 0), (3, 17), (61, 33), (130, 640), (16, 64), (127, 129), (300, 1000)])
def test_a_product_is_near_the_exact_one(each_build: library.NativeLibrary, of_x: type, of_w: type, of_out: type, n: int, m: int,
                                         k: int) -> None:
    x, w = normal((n, k), 1, of_x), normal((m, k), 2, of_w)
    assert error(product(each_build, x, w, of_out=of_out), x, w) <= 4e-7
    for dtype in (F32, BF16) if of_x is BF16 else (F32,):
        bias = normal((m,), 3, dtype)
        actual = product(each_build, x, w, bias, of_out)
        assert beyond(actual, exact(x, w) + bias.astype(float), exact(np.abs(x), np.abs(w)) + np.abs(bias)) <= 4e-7


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("batch", "m", "k", "n"),
                         [(1, 1, 5, 1), (1, 9, 33, 40), (2, 64, 64, 64), (9, 17, 50, 21), (3, 70, 300, 100)])
@pytest.mark.parametrize("lie", ["as written", "turned", "every second", "one for all"])
def test_matrices_may_lie_in_any_way(each_build: library.NativeLibrary, dtype: type, batch: int, m: int, k: int, n: int,
                                     lie: str) -> None:
    if lie == "turned":
        a, b = normal((batch, k, m), 1, dtype).transpose(0, 2, 1), normal((batch, n, k), 2, dtype).transpose(0, 2, 1)
    elif lie == "every second":
        a, b = normal((batch, m, 2 * k), 1, dtype)[:, :, ::2], normal((batch, k, 2 * n), 2, dtype)[:, :, 1::2]
    else:
        a, b = normal((batch, m, k), 1, dtype), normal((batch, k, n), 2, dtype)
    if lie == "one for all":
        b = np.broadcast_to(b[:1], b.shape)
    out = dot(each_build, a, b)
    assert max(error(out[i], a[i], b[i].T) for i in range(batch)) <= 4e-7


@pytest.mark.parametrize(("of_x", "of_w", "of_out"), KINDS)
@pytest.mark.parametrize(("n", "m", "k"), [(40, 300, 2048), (1000, 70, 4096), (33, 500, 5000)])
def test_long_rows_and_many_are_right_on_any_number_of_threads(of_x: type, of_w: type, of_out: type, n: int, m: int,
                                                               k: int) -> None:
    lib, x, w = library.load(), normal((n, k), 1, of_x), normal((m, k), 2, of_w)
    before = lib.threads()
    try:
        for threads in (1, 3):
            lib.set_threads(threads)
            assert error(product(lib, x, w, of_out=of_out), x, w) <= 4e-7
    finally:
        lib.set_threads(before)


def test_sums_of_floats_are_as_near_as_those_of_vectors() -> None:
    """Positive numbers: every rounding counts."""
    lib, x, w = library.load(), np.abs(normal((64, 4096), 1)), np.abs(normal((64, 4096), 2))
    for weights in (w, w.astype(BF16)):
        assert error(product(lib, x, weights), x, weights) <= 5e-7


@pytest.mark.parametrize("of_w", [F32, BF16])
def test_a_very_long_sum_is_as_near_as_a_short_one(of_w: type) -> None:
    """All products are alike, so that all roundings of a sum go the same way. With vectors of 8 there are half as many sums beside
    each other, each twice as long; and without tiles a sum is as long as all of it."""
    x, w = np.full((20, 1 << 17), 1.1, F32), np.full((32, 1 << 17), 0.7, of_w)
    assert error(product(library.load(), x, w), x, w) <= (2e-7 if "amx_bf16" in features() else 5e-7)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_sums_of_zeros_among_other_numbers_are_zeros(each_build: library.NativeLibrary, dtype: type) -> None:
    a, b = normal((1, 70, 90), 1, dtype), normal((1, 90, 50), 2, dtype)
    a[:, :35, 40:], a[:, 35:, :40], b[:, :40, 20:], b[:, 40:, :20] = 0, 0, 0, 0
    out = dot(each_build, a, b)[0]
    assert error(out, a[0], b[0].T) <= 4e-7 and not out[:35, 20:].any() and not out[35:, :20].any()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**-130])
def test_a_whole_row_or_column_of_odd_numbers(each_build: library.NativeLibrary, dtype: type, value: float) -> None:
    for row, column in ((5, None), (None, 7)):
        a, b = normal((1, 40, 64), 1, dtype), normal((1, 64, 33), 2, dtype)
        if row is not None:
            b[0, row] = value
        if column is not None:
            a[0, :, column] = value
        assert error(dot(each_build, a, b)[0], a[0], b[0].T) <= 4e-7


@pytest.mark.parametrize(("of_x", "of_w", "of_out"), KINDS)
@pytest.mark.parametrize("n", [1, 20, 64])
@pytest.mark.parametrize("k", [40, 64])
def test_what_is_not_finite_stays_where_it_belongs(each_build: library.NativeLibrary, of_x: type, of_w: type, of_out: type, n: int,
                                                   k: int) -> None:
    x, w = normal((n, k), 1, of_x), normal((50, k), 2, of_w)
    w[7, k - 1], w[8, 0], w[9, 3], w[9, 4] = np.nan, np.inf, -np.inf, np.inf
    w[12], x[n // 2] = 0, 0
    x[n - 1, k - 1] = np.inf
    out = product(each_build, x, w, of_out=of_out)
    assert error(out, x, w) <= 1e-6 and np.isnan(out[:, 7]).all() and not np.isnan(out[: n // 2, 8]).any()


@pytest.mark.parametrize(("of_x", "of_w"), PAIRS)
@pytest.mark.parametrize("n", [1, 20, 64])
def test_numbers_next_to_the_largest_are_finite(each_build: library.NativeLibrary, of_x: type, of_w: type, n: int) -> None:
    x, w = normal((n, 90), 1, of_x) * of_x(2.0**-20), normal((45, 90), 2, of_w)
    w[3], w[4, 5] = ml_dtypes.finfo(of_w).max, ml_dtypes.finfo(of_w).min
    x[0, 7] = ml_dtypes.finfo(of_x).max
    w[:, 7] = w[:, 7] * of_w(0.01)
    w[3, 7] = 0                                             # no sum is beyond the largest
    assert error(product(each_build, x, w), x, w) <= 1e-6


@pytest.mark.parametrize(("of_x", "of_w", "of_out"), KINDS)
@pytest.mark.parametrize("n", [1, 20, 64])
@pytest.mark.parametrize("where", ["x", "w", "both", "one", "products", "sums"])
def test_numbers_below_the_smallest_normal_one_are_no_zeros(each_build: library.NativeLibrary, of_x: type, of_w: type,
                                                            of_out: type, n: int, where: str) -> None:
    x, w = normal((n, 90), 1).astype(float), normal((45, 90), 2).astype(float)
    if where in ("x", "both"):                              # by large numbers they count
        x[0] *= 2.0**-128
        w[5] *= 2.0**120
    if where in ("w", "both"):
        w[::7] *= 2.0**-130
    if where == "one":                                      # among zeros
        x[0], x[0, 3], w[5] = 0, 2.0**-130, w[5] * 2.0**120
    if where == "products":
        x, w = x * 2.0**-70, w * 2.0**-60
    if where == "sums":                                     # of normal numbers that cancel
        x, w = x * 2.0**-63, w * 2.0**-62
        x[:, 45:], w[:, 45:] = x[:, :45], -w[:, :45]
        w[:, 0] += 2.0**-68
    x, w = x.astype(of_x), w.astype(of_w)
    out = product(each_build, x, w, of_out=of_out)
    rounding = 45 * 2.0**-149 if of_out is F32 else 0.0     # of sums that are denormal
    assert beyond(out, exact(x, w), exact(np.abs(x), np.abs(w)) + rounding * 1e6) <= 1e-5


def test_each_part_of_a_float_is_multiplied() -> None:
    """Numbers that differ from a bfloat16, and from the sum of two, only in their last bits; weights that leave those."""
    x = np.full((32, 64), 1 + 2.0**-23, F32)
    x[:, 1::2] = -1
    for dtype in (F32, BF16):
        w = np.ones((32, 64), dtype)
        assert np.array_equal(product(library.load(), x, w), np.full((32, 32), 32 * 2.0**-23, F32))
    turned = product(library.load(), np.ones((32, 64), F32), x)
    assert np.array_equal(turned, np.full((32, 32), 32 * 2.0**-23, F32))


def test_it_is_a_candidate_where_the_processor_has_tiles() -> None:
    for name in ("c.linear_amx", "c.scaled_linear_amx", "c.dot_amx"):
        why = lacking(kernel_named(name))
        assert (why is None) == ("amx_bf16" in features()) and (why is None or "amx_bf16" in why)
