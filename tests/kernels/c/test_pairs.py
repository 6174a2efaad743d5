"""kernels/c/pairs.h: products of bfloat16 are rounded once, to bfloat16 or f32, whatever the dot products leave out.

The portable build has no such instruction and widens all operands; so does this processor's where it has none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensor_graphs.devices.features import features
from tensor_graphs.kernels.c import library
from tests.kernels.c.test_native import Array, poisoned, run

BF16, F32 = ml_dtypes.bfloat16, np.float32
FLAG = {np.dtype(F32): 0, np.dtype(BF16): 1}
results = pytest.mark.parametrize("of_out", [BF16, F32])


def normal(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def product(lib: library.NativeLibrary, x: Array, w: Array, bias: Array | None = None, of_out: type = BF16) -> Array:
    (n, k), m = x.shape, len(w)
    out = poisoned((n, m), of_out)
    run(lib, "tg_linear_narrow", [out, x, w, bias], [n, m, k, 0 if bias is None else FLAG[bias.dtype], FLAG[out.dtype]])
    return out


def exact(x: Array, w: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(x.astype(float) @ w.astype(float).T)


def beyond_rounding(out: Array, wanted: Array, terms: Array) -> float:
    """The largest error beyond half a unit of the result, over the sum of the products' sizes; infinite where other elements are
    not finite."""
    assert out.shape == wanted.shape
    finite = np.isfinite(wanted)
    if not np.array_equal(out[~finite].astype(float), wanted[~finite], equal_nan=True):
        return np.inf
    half, least = (2.0**-8, 2.0**-134) if out.dtype == BF16 else (2.0**-24, 2.0**-150)      # least: half of a denormal's
    unit = np.maximum(np.abs(wanted) * half / (1 + half), least)
    with np.errstate(invalid="ignore"):
        left = np.maximum(np.abs(out.astype(float) - wanted) - unit, 0) / np.maximum(terms, 2.0**-126)
    return float(np.max(left[finite], initial=0.0))


def error(out: Array, x: Array, w: Array) -> float:
    return beyond_rounding(out, exact(x, w), exact(np.abs(x), np.abs(w)))


@results
def test_the_comparison_sees_a_unit_too_many_a_lost_denormal_and_a_nan(of_out: type) -> None:
    x, w = normal((5, 7), 1), normal((3, 7), 2)
    good = exact(x, w).astype(of_out)
    assert error(good, x, w) == 0.0
    bad = good.copy()
    bad[1, 1] = float(bad[1, 1]) * (1 + 2.0**(-6 if of_out is BF16 else -15))
    assert error(bad, x, w) > 2e-6
    bad[1, 1] = np.nan
    assert not error(bad, x, w) <= 1e-4
    tiny = np.full((1, 1), 2.0**-130, BF16), np.ones((1, 1), BF16)
    assert error(tiny[0].astype(of_out), *tiny) == 0.0 and error(np.zeros((1, 1), of_out), *tiny) > 1e-2


@results
@pytest.mark.parametrize("n", [0, 1, 3, 8, 9, 17, 33, 52, 127, 129])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 0), (3, 17), (61, 33), (130, 640), (15, 1024), (127, 129), (20, 1000)])
def test_a_product_is_rounded_once(each_build: library.NativeLibrary, n: int, m: int, k: int, of_out: type) -> None:
    x, w = normal((n, k), 1), normal((m, k), 2)
    assert error(product(each_build, x, w, of_out=of_out), x, w) <= 1e-6
    for dtype in (F32, BF16):
        bias = np.random.default_rng(3).standard_normal(m).astype(dtype)
        actual = product(each_build, x, w, bias, of_out)
        assert beyond_rounding(actual, exact(x, w) + bias.astype(float), exact(np.abs(x), np.abs(w)) + np.abs(bias)) <= 1e-6


@results
@pytest.mark.parametrize(("n", "m", "k"), [(40, 300, 2048), (1000, 70, 4096), (33, 500, 5000)])
def test_long_rows_and_many_are_right_on_any_number_of_threads(n: int, m: int, k: int, of_out: type) -> None:
    lib, x, w = library.load(), normal((n, k), 1), normal((m, k), 2)
    before = lib.threads()
    try:
        for threads in (1, 3):
            lib.set_threads(threads)
            assert error(product(lib, x, w, of_out=of_out), x, w) <= 1e-6
    finally:
        lib.set_threads(before)


@pytest.mark.parametrize("n", [1, 20])
def test_a_very_long_sum_is_nearly_as_near_as_a_short_one(n: int) -> None:
    """All products are alike, so that all roundings of a sum go the same way; one f32 sum of all of them is 1e-3 away."""
    x, w = np.full((n, 1 << 17), 1.1, BF16), np.full((32, 1 << 17), 0.7, BF16)
    assert error(product(library.load(), x, w, of_out=F32), x, w) <= 1e-5


@pytest.mark.parametrize("k", [50, 51])
def test_memory_may_be_aligned_to_its_elements_only(k: int) -> None:
    n, m = 40, 21
    x, w = normal((n * k + 1,), 1)[1:].reshape(n, k), normal((m * k + 3,), 2)[3:].reshape(m, k)
    assert error(product(library.load(), x, w), x, w) <= 1e-6


@results
@pytest.mark.parametrize("n", [1, 20, 64])
@pytest.mark.parametrize("k", [40, 41])
def test_what_is_not_finite_stays_where_it_belongs(each_build: library.NativeLibrary, n: int, k: int, of_out: type) -> None:
    x, w = normal((n, k), 1), normal((50, k), 2)
    w[7, k - 1], w[8, 0], w[9, 3], w[9, 4] = np.nan, np.inf, -np.inf, np.inf
    x[n - 1, k - 1] = np.inf
    out = product(each_build, x, w, of_out=of_out)
    assert error(out, x, w) <= 1e-6 and np.isnan(out[:, 7]).all() and not np.isnan(out[: n - 1, 8]).any()


@results
@pytest.mark.parametrize("n", [1, 20, 64])
@pytest.mark.parametrize("where", ["x", "w", "both", "products", "sums", "first sums"])
def test_numbers_below_the_smallest_normal_one_are_no_zeros(each_build: library.NativeLibrary, n: int, where: str,
                                                            of_out: type) -> None:
    x, w = normal((n, 90), 1), normal((45, 90), 2)
    if where in ("x", "both"):                              # by large numbers they count
        x[0] = (x[0].astype(float) * 2.0**-128).astype(BF16)
        w[5] = (w[5].astype(float) * 2.0**120).astype(BF16)
    if where in ("w", "both"):
        w[::7] = (w[::7].astype(float) * 2.0**-130).astype(BF16)
    if where == "products":
        x, w = (x.astype(float) * 2.0**-70).astype(BF16), (w.astype(float) * 2.0**-60).astype(BF16)
    if where == "sums":                                     # of normal numbers that cancel
        x, w = (x.astype(float) * 2.0**-63).astype(BF16), (w.astype(float) * 2.0**-62).astype(BF16)
        x[:, 45:], w[:, 45:] = x[:, :45], -w[:, :45]
        w[:, 0] += np.array(2.0**-68, BF16)
    if where == "first sums":                               # they are below 2^-16 of the last product, and count in f32
        x[:, :-1], w[:, :-1], x[:, -1], w[:, -1] = 2.0**-63, 2.0**-64, 2.0**-51, 2.0**-52
    assert error(product(each_build, x, w, of_out=of_out), x, w) <= (1e-5 if of_out is BF16 else 1e-6)


def test_rows_of_zeros_are_zeros_beside_any_others(each_build: library.NativeLibrary) -> None:
    x, w = normal((70, 64), 1), normal((40, 64), 2)
    x[3:9], x[64:], w[11], w[30:] = 0, 0, 0, 0
    out = product(each_build, x, w)
    assert error(out, x, w) <= 1e-6 and not out[3:9].any() and not out[64:].any() and not out[:, 11].any()


def test_the_core_says_whether_the_processor_has_such_dot_products() -> None:
    assert library.load().pairs() == ("avx512_bf16" in features()) and not library.build(portable=True).pairs()


@pytest.mark.parametrize("where", ["a", "b", "both"])
@pytest.mark.parametrize(("batch", "m", "k", "n"), [(1, 3, 5, 7), (2, 40, 65, 50), (3, 17, 90, 33), (1, 100, 64, 16), (1, 9, 0, 4)])
def test_a_dot_of_any_strides_is_rounded_once(each_build: library.NativeLibrary, batch: int, m: int, k: int, n: int,
                                              where: str) -> None:
    a, b = normal((batch, m, k), 1), normal((batch, k, n), 2)
    if k:
        a[0, 1, k // 2], b[0, k - 1, 1] = 2.0**-130, 2.0**100            # their product counts
        a[0, 1, k - 1], b[0, k // 2, 1] = 0, 2.0**120
    strides = []
    held = [a, b]
    for i, apart in ((0, where != "b"), (1, where != "a")):
        if apart:
            held[i] = np.ascontiguousarray(held[i].swapaxes(1, 2))
        x, y = held[i].shape[1:]
        strides += [x * y, 1, y] if apart else [x * y, y, 1]
    out = poisoned((batch, m, n), BF16)
    run(each_build, "tg_matmul_bf16", [out, *held], [batch, m, n, k, m * n, n, 1, *strides])
    sizes = np.abs(a.astype(float)) @ np.abs(b.astype(float))
    assert beyond_rounding(out, a.astype(float) @ b.astype(float), sizes) <= 1e-6
