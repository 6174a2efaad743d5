"""The native kernels against float64 numpy: awkward sizes, both weight dtypes, NaN and infinity, hidden keys, threads, fork."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.kernels.c import library
from tensor_graphs.language.composites.windows import Geometry, padded, strided

F32, F64, I32, I64 = np.float32, np.float64, np.int32, np.int64
SIZES = (1, 3, 17)
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def native() -> library.NativeLibrary:
    return library.load()


def run(
    lib: library.NativeLibrary, symbol: str, arrays: Sequence[Array | None], ints: Sequence[int] = (), floats: Sequence[float] = ()
) -> None:
    assert all(array is None or array.flags.c_contiguous for array in arrays)
    lib.call(symbol, [None if array is None else array.ctypes.data for array in arrays], ints, floats)


def normal(shape: Sequence[int], seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F32)


def poisoned(shape: Sequence[int], dtype: Any = F32) -> Array:
    """An output that shows what was never written."""
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -77, dtype)


def bf16(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16)


def error(out: Array, reference: Array) -> float:
    """Per row of the last axis: |out - ref| / max(|ref|, rms(row)); infinite if the non-finite places differ."""
    reference = np.asarray(reference, np.float64)
    assert out.shape == reference.shape
    if out.size == 0:
        return 0.0
    finite = np.isfinite(reference)
    if not np.array_equal(np.isfinite(out), finite):
        return math.inf
    if not np.array_equal(out[~finite], reference[~finite].astype(F32), equal_nan=True):
        return math.inf
    ref = np.where(finite, reference, 0.0)
    rms = np.sqrt(np.mean(ref * ref, axis=-1, keepdims=True)) if ref.ndim else abs(ref)
    return float(np.max(np.abs(np.where(finite, out, 0.0) - ref) / np.maximum(np.maximum(abs(ref), rms), 1e-30)))


def test_the_comparison_sees_a_wrong_value_and_a_missing_nan() -> None:
    good = normal((4, 9))
    assert error(good, good) == 0.0
    bad = good.copy()
    bad[1, 1] += 1e-3
    assert error(bad, good) > 1e-4
    bad[1, 1] = np.nan
    assert error(bad, good) == math.inf and error(good, bad) == math.inf


# --- linear ---


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 9, 17, 33, 65])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 0), (3, 17), (61, 33), (130, 640), (15, 1024)])
def test_linear_is_the_product_with_both_weight_dtypes(each_build: library.NativeLibrary, n: int, m: int, k: int) -> None:
    x, w, b = normal((n, k), 1), normal((m, k), 2), normal((m,), 3)
    for symbol, weight in (("tg_linear_f32", w), ("tg_linear_bf16", bf16(w))):
        reference = x.astype(float) @ weight.astype(float).T
        for bias, wanted in ((None, reference), (b, reference + b)):
            out = poisoned((n, m))
            run(each_build, symbol, [out, x, weight, bias], [n, m, k])
            scale = np.sqrt(np.sum(x.astype(float) ** 2, -1, keepdims=True) + 1)  # of a sum, which may itself cancel
            assert np.max(np.abs(out - wanted) / scale, initial=0.0) <= 1.2e-6


def test_linear_works_on_memory_that_is_only_aligned_to_its_elements(native: library.NativeLibrary) -> None:
    n, m, k = 3, 21, 50
    x, w = normal((n * k + 1,), 1)[1:].reshape(n, k), normal((m * k + 3,), 2)[3:].reshape(m, k)
    for rows in (3, 1):
        out = poisoned((rows * m + 1,))[1:].reshape(rows, m)
        run(native, "tg_linear_f32", [out, x, w, None], [rows, m, k])
        assert error(out, x[:rows].astype(float) @ w.T.astype(float)) <= 5e-7


@pytest.mark.parametrize(("dtype", "limit"), [(F32, 6e-7), (F64, 1e-14)])
@pytest.mark.parametrize("n", [1, 4, 20])
def test_linear_lets_nan_and_infinity_through_where_they_belong(native: library.NativeLibrary, n: int, dtype: type,
                                                                limit: float) -> None:
    x, w = normal((n, 40), 1).astype(dtype), normal((50, 40), 2)
    w[7, 39], w[8, 0], w[9, 5] = np.nan, np.inf, -np.inf
    x[0, 0] = 0.0                                       # 0 times infinity
    out = poisoned((n, 50), dtype)
    run(native, "tg_linear_f32" if dtype is F32 else "tg_linear_f64", [out, x, w, None], [n, 50, 40, 0, 0])
    with np.errstate(invalid="ignore"):
        wanted = x.astype(float) @ w.T.astype(float)
    assert np.isnan(wanted[0, 8]) and np.isnan(out[:, 7]).all() and np.isinf(out[:, 9]).all() and error(out, wanted) <= limit


def test_a_large_linear_is_right_however_many_threads_share_it(native: library.NativeLibrary) -> None:
    x, w = normal((600, 96), 1), normal((1031, 96), 2)
    reference = x.astype(float) @ w.T.astype(float)
    before = native.threads()
    try:
        for threads in (1, 2, 5):
            native.set_threads(threads)
            assert native.threads() == threads
            for n in (1, 4, 600):
                out = poisoned((n, 1031))
                run(native, "tg_linear_f32", [out, x, w, None], [n, 1031, 96])
                assert error(out, reference[:n]) <= 1e-6
    finally:
        native.set_threads(before)


def deviation(out: Array, reference: Array) -> Array:
    """The error of every element against the rms of its row, or of all where a row has a single element."""
    axis = -1 if reference.shape[-1] > 1 else None
    return np.asarray(np.abs(out - reference) / np.sqrt(np.mean(reference * reference, axis=axis, keepdims=True)))


# Largest rms and largest single error against the rms of a row, at any k. Measured: few rows 6e-8 … 9e-8 and 2e-7 … 4e-7 (one f32
# sum per lane: 1.3e-7 … 4e-7, 5e-7 … 3e-6), many 1.2e-7 and 5e-7 … 8e-7 (one f32 sum: 4.5e-7 … 8e-7, 5e-6).
FEW_ROWS, MANY_ROWS = (1.0e-7, 5e-7), (1.4e-7, 9e-7)


@pytest.mark.parametrize("k", [640, 2048, 5000])
@pytest.mark.parametrize("n", [1, 4, 8, 9, 40])
def test_linear_is_as_accurate_for_long_sums_as_for_short_ones(each_build: library.NativeLibrary, n: int, k: int) -> None:
    x, w = normal((n, k), 1), normal((700, k), 2)
    rms, most = FEW_ROWS if n <= 8 else MANY_ROWS
    for symbol, weight in (("tg_linear_f32", w), ("tg_linear_bf16", bf16(w))):
        out = poisoned((n, 700))
        run(each_build, symbol, [out, x, weight, None], [n, 700, k])
        errors = deviation(out, x.astype(float) @ weight.astype(float).T)
        assert np.sqrt(np.mean(errors**2)) <= rms and np.max(errors) <= most


@pytest.mark.parametrize("at", [0, 200, 599])
@pytest.mark.parametrize("n", [1, 4, 20])
def test_an_infinity_anywhere_in_a_long_sum_is_the_infinity_of_the_definition(
    each_build: library.NativeLibrary, n: int, at: int
) -> None:
    x, w = normal((n, 600), 1), normal((9, 600), 2)
    w[3, at], w[4, at], w[5, at] = np.inf, -np.inf, np.nan
    w[6, at] = w[6, 300] = np.inf  # of both signs in some rows: NaN
    for symbol, weight in (("tg_linear_f32", w), ("tg_linear_bf16", bf16(w))):
        out = poisoned((n, 9))
        run(each_build, symbol, [out, x, weight, None], [n, 9, 600])
        with np.errstate(invalid="ignore"):
            wanted = x.astype(float) @ weight.astype(float).T
        assert error(out, wanted) <= 1e-6 and np.isinf(out[:, 3:5]).all() and np.isnan(out[:, 5]).all()


@pytest.mark.parametrize("k", [300, 2048])
def test_matmul_is_as_accurate_for_long_sums_as_for_short_ones(each_build: library.NativeLibrary, k: int) -> None:
    a, b, rms, most = normal((40, k), 1), normal((k, 300), 2), *MANY_ROWS
    for left, right in ((a, b), (a.T.copy().T, b), (a, b.T.copy().T)):  # the memory of either operand may lie either way
        out = poisoned((40, 300))
        ints = [1, 40, 300, k, *(0, 300, 1), 0, *element_strides(left), 0, *element_strides(right)]
        each_build.call("tg_matmul_f32", [out.ctypes.data, left.ctypes.data, right.ctypes.data], ints)
        errors = deviation(out, a.astype(float) @ b.astype(float))
        assert np.sqrt(np.mean(errors**2)) <= rms and np.max(errors) <= most


def element_strides(array: Array) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


@pytest.mark.parametrize(("dtype", "limit"), [(F32, 1e-6), (F64, 3e-15)])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 3), (1, 1, 1), (5, 33, 7), (17, 3, 0), (64, 70, 65), (3, 1, 600)])
def test_matmul_takes_any_stride_of_any_operand(each_build: library.NativeLibrary, m: int, n: int, k: int, dtype: type,
                                                limit: float) -> None:
    for turned in range(8):
        a = (normal((3, k, m), 1).transpose(0, 2, 1) if turned & 1 else normal((3, m, k), 1)).astype(dtype)
        b = (normal((3, n, k), 2).transpose(0, 2, 1) if turned & 2 else normal((3, k, n), 2)).astype(dtype)
        out = poisoned((3, n, m), dtype).transpose(0, 2, 1) if turned & 4 else poisoned((3, m, n), dtype)
        ints = [3, m, n, k, *element_strides(out), *element_strides(a), *element_strides(b)]
        each_build.call(f"tg_matmul_f{8 * out.itemsize}", [out.ctypes.data, a.ctypes.data, b.ctypes.data], ints)
        # one column is one number per row, which may cancel: measure against the size of the terms instead
        assert np.max(np.abs(out - a.astype(float) @ b.astype(float)), initial=0.0) <= limit * math.sqrt(k + 1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmul_takes_operands_whose_rows_or_columns_share_a_set_of_the_cache(
    each_build: library.NativeLibrary, dtype: type, batch: int
) -> None:
    m, n, k, symbol = 512, 70, 1024, f"tg_matmul_f{8 * np.dtype(dtype).itemsize}"
    a, b, out = normal((batch, m, k), 1).astype(dtype), normal((batch, k, n), 2).astype(dtype), np.empty((batch, m, n), dtype)
    spread = np.zeros((batch, m, 2 * k), dtype)[:, :, ::2]                          # neither rows nor columns follow each other
    spread[...] = a
    for left in (a, a.transpose(0, 2, 1).copy().transpose(0, 2, 1), spread):
        out[...] = np.nan
        ints = [batch, m, n, k, *element_strides(out), *element_strides(left), *element_strides(b)]
        each_build.call(symbol, [out.ctypes.data, left.ctypes.data, b.ctypes.data], ints)
        assert np.max(deviation(out, a.astype(float) @ b.astype(float))) <= MANY_ROWS[1]


def test_matmul_repeats_an_operand_whose_batch_stride_is_0(native: library.NativeLibrary) -> None:
    a, b, out = normal((4, 9, 8), 1), normal((8, 40), 2), poisoned((4, 9, 40))
    run(native, "tg_matmul_f32", [out, a, b], [4, 9, 40, 8, 360, 40, 1, 72, 8, 1, 0, 40, 1])
    assert error(out, a.astype(float) @ b.astype(float)) <= 5e-7


# --- norms, softmax ---


def rms_norm(x: Array, w: Array | None, eps: float, offset: float) -> Array:
    x = x.astype(float)
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if w is None else y * (offset + w.astype(float))


@pytest.mark.parametrize("n", [0, 1, 3, 100])
@pytest.mark.parametrize("d", [1, 3, 17, 64, 640])
def test_rms_norm_with_and_without_a_weight(each_build: library.NativeLibrary, n: int, d: int) -> None:
    x, w = normal((n, d), 1), normal((d,), 3)
    for weight, dtype in ((w, 0), (bf16(w), 1), (None, 0)):
        out = poisoned((n, d))
        run(each_build, "tg_rms_norm", [out, x, weight], [n, d, dtype], [1e-6, 1.0])
        assert error(out, rms_norm(x, weight, 1e-6, 1.0)) <= 1.2e-7  # one rounding is up to 6e-8


def softmax(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(float) - np.max(x.astype(float), axis=-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize("d", [1, 3, 17, 64, 1000])
def test_softmax_of_any_scale_and_offset(each_build: library.NativeLibrary, d: int) -> None:
    for x in (normal((5, d)), normal((5, d), scale=30) + F32(500), normal((0, d))):
        out = poisoned(x.shape)
        run(each_build, "tg_softmax", [out, x], [x.shape[0], d])
        assert error(out, softmax(x)) <= 3e-7


def test_softmax_hides_minus_infinity_and_spoils_exactly_the_rows_that_have_no_answer(native: library.NativeLibrary) -> None:
    x = normal((5, 70))
    x[0, :69] = -np.inf
    x[1, 3] = np.nan
    x[2, 4] = np.inf
    x[3] = -np.inf
    out = poisoned(x.shape)
    run(native, "tg_softmax", [out, x], [5, 70])
    assert error(out, softmax(x)) <= 1e-6
    assert out[0, 69] == 1.0 and np.isnan(out[1:4]).all() and np.isfinite(out[4]).all()


# --- movement ---


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64, np.complex128])
def test_a_strided_copy_is_the_numpy_view(each_build: library.NativeLibrary, dtype: Any) -> None:
    base = np.arange(2 * 3 * 4 * 5 * 6).astype(dtype).reshape(2, 3, 4, 5, 6)
    views = [
        base, base.transpose(4, 2, 0, 3, 1), base[:, ::2, 1:3, ::-1], base[1, 2, 3, 4, 5, ...], base[:0], base[..., :1],
        np.broadcast_to(base[:, :, :, :1], base.shape), base.reshape(6, 20, 6)[:, ::-3],
    ]  # fmt: skip
    turned = np.arange(3 * 35 * 50).astype(dtype).reshape(3, 35, 50)  # in tiles, which neither size is a multiple of
    views += [turned.transpose(axes) for axes in ((0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 2, 0))]
    views += [turned.transpose(0, 2, 1)[:, ::-1], turned.transpose(0, 2, 1)[..., ::-1], turned[:, ::2, 3:40].transpose(2, 0, 1)]
    large = np.arange(300 * 70).astype(dtype).reshape(300, 70)  # more than a block of rows, and where no line of the cache begins
    views += [large.T, large[1:, 3:].T, large.reshape(70, 300)[:, 5:].T, large.reshape(70, 300)[:17, 1:282].T]
    views += [np.broadcast_to(base[..., None], (*base.shape, times)) for times in (2, 3, 4, 5, 17)]
    views += [np.broadcast_to(turned[:, :, None, first:, None][..., ::step, :], (3, 35, 2, len(range(first, 50, step)), 2))
              for first, step in ((0, 1), (3, 2), (49, -1))]
    for view in views:
        out = np.zeros(view.shape, dtype)
        pad = [0] * (8 - view.ndim)
        strides = [*element_strides(out), *pad, *element_strides(view), *pad]
        sizes = [view.ndim, out.itemsize, *view.shape, *pad]
        each_build.call("tg_copy_strided", [out.ctypes.data, view.ctypes.data], [*sizes, *strides])
        assert np.array_equal(out, view)


def test_a_large_copy_is_whole_and_a_strided_target_keeps_what_lies_between(native: library.NativeLibrary) -> None:
    source = np.arange(300 * 1024, dtype=I32)
    out = np.zeros_like(source)
    run(native, "tg_copy_strided", [out, source], [1, 4, source.size, *[0] * 7, 1, *[0] * 7, 1, *[0] * 7])
    assert np.array_equal(out, source)
    target = np.full((500, 200), -1, I32)
    run(native, "tg_copy_strided", [target, source], [2, 4, 500, 100, *[0] * 6, 200, 2, *[0] * 6, 1, 500, *[0] * 6])
    assert np.array_equal(target[:, ::2], source[:50000].reshape(100, 500).T) and (target[:, 1::2] == -1).all()


@pytest.mark.parametrize("start", [-5, -2, 0, 3, 7, 9, 10, 50])
def test_rows_written_beyond_the_state_are_dropped(native: library.NativeLibrary, start: int) -> None:
    state, value = np.zeros((10, 3), F32), normal((4, 3))
    wanted = state.copy()
    for i in range(4):
        if 0 <= start + i < 10:
            wanted[start + i] = value[i]
    run(native, "tg_write_rows", [state, value], [10, 4, 12, start])
    assert np.array_equal(state, wanted)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("d", [1, 3, 17, 500, 262144 // 4])
@pytest.mark.parametrize("n", [0, 1, 3, 200])
def test_argmax_takes_the_first_of_equals_and_nan_above_all(each_build: library.NativeLibrary, n: int, d: int, dtype: type) -> None:
    n = min(n, 3) if d > 1000 else n
    x = np.random.default_rng(n + d).integers(-40, 40, (n, d)).astype(dtype)
    cases = [x, -np.inf * np.ones_like(x)]
    if n:
        cases.append(np.where(np.random.default_rng(1).random(x.shape) < 2.0 / d, np.nan, x).astype(dtype))
    if dtype is F64:                                    # equal in f32
        cases.append(1 + np.random.default_rng(d).permutation(n * d).reshape(n, d) * 2.0**-50)
    for case in cases:
        for index in (I32, I64):
            out = poisoned((n,), index)
            run(each_build, f"tg_argmax_{'f64_' if dtype is F64 else ''}i{8 * out.itemsize}", [out, case], [n, d])
            assert np.array_equal(out, np.argmax(case, axis=-1))


@pytest.mark.parametrize("index_dtype", [I32, I64])
@pytest.mark.parametrize("outer, size, count, inner", [(1, 40, 300, 5), (3, 7, 0, 4), (2, 1000, 60, 300), (1, 9, 50, 1)])
def test_rows_are_added_where_an_index_says_each_as_often_as_it_does(
        native: library.NativeLibrary, outer: int, size: int, count: int, inner: int, index_dtype: Any) -> None:
    rng = np.random.default_rng(size)
    base, updates = rng.normal(size=(outer, size, inner)), rng.normal(size=(outer, count, inner))
    index = rng.integers(-1, size + 1, count).astype(index_dtype)
    inside = (index >= 0) & (index < size)
    expected = base.astype(F32).astype(np.float64)
    np.add.at(expected, (slice(None), index[inside]), updates.astype(F32)[:, inside])
    ints = [outer, size, count, inner, int(index_dtype == I64), 1]
    out = poisoned(base.shape, F32)
    run(native, "tg_scatter_f32", [out, base.astype(F32), index, updates.astype(F32)], ints)
    np.testing.assert_array_equal(out, expected.astype(F32))
    whole = (base * 100).astype(np.int64)
    run(native, "tg_scatter_i64", [whole, whole, index, (updates * 100).astype(np.int64)], ints)       # in place
    integers = (base * 100).astype(np.int64)
    np.add.at(integers, (slice(None), index[inside]), (updates * 100).astype(np.int64)[:, inside])
    np.testing.assert_array_equal(whole, integers)


DTYPES: dict[str, Any] = {"f32": F32, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f64": np.float64}
FLAGS: dict[Any, int] = {F32: 0, ml_dtypes.bfloat16: 1, np.float64: 2, np.float16: 3}
NEAR: dict[Any, dict[str, float]] = {F32: {"rtol": 1e-5, "atol": 1e-5}, ml_dtypes.bfloat16: {"rtol": 2.0**-8, "atol": 1e-5},
                                     np.float16: {"rtol": 2.0**-11 * 1.02, "atol": 1e-5},
                                     np.float64: {"rtol": 1e-12, "atol": 1e-12}}


@pytest.mark.parametrize("n, groups, channels, outputs, shape, size, stride, padding, dilation", [
    (1, 1, 3, 70, (1, 9, 40), (1, 3, 3), (1, 1, 1), ((0, 0), (1, 1), (1, 1)), (1, 1, 1)),
    (2, 2, 2, 3, (5, 4, 7), (2, 3, 2), (1, 2, 3), ((1, 0), (2, 2), (0, 1)), (2, 1, 3)),
    (3, 4, 1, 1, (1, 1, 65), (1, 1, 5), (1, 1, 2), ((0, 0), (0, 0), (4, 4)), (1, 1, 1)),
    (2, 3, 1, 2, (1, 35, 37), (1, 3, 3), (1, 1, 1), ((0, 0), (1, 1), (1, 1)), (1, 1, 1)),
    (1, 3, 1, 1, (1, 6, 300), (1, 3, 3), (1, 1, 1), ((0, 0), (0, 0), (2, 3)), (1, 1, 1)),
    (1, 2, 1, 1, (1, 40, 11), (1, 7, 6), (1, 2, 3), ((0, 0), (8, 5), (3, 9)), (1, 2, 4)),
    (1, 2, 1, 1, (1, 1, 2), (1, 1, 3), (1, 1, 1), ((0, 0), (0, 0), (1, 1)), (1, 1, 1)),
    (1, 2, 1, 1, (3, 5, 6), (2, 2, 2), (1, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
    (2, 2, 5, 18, (1, 7, 11), (1, 1, 1), (1, 1, 1), ((0, 0), (0, 0), (0, 0)), (1, 1, 1)),
    (1, 1, 3, 2, (1, 5, 7), (1, 1, 1), (1, 2, 1), ((0, 0), (1, 0), (0, 2)), (1, 1, 1)),
], ids=["panels and rows that are not full", "three axes", "depthwise", "depthwise with two outputs of a channel",
        "depthwise of long lines", "depthwise with gaps", "depthwise of two elements", "depthwise over three axes",
        "windows of one element", "of one element, with padding"])
@pytest.mark.parametrize("dtypes", ["f32 f32", "bf16 bf16", "f16 f16", "bf16 f32", "f64 f64", "f64 bf16"])
def test_a_convolution_is_a_product_with_what_the_windows_see(each_build: library.NativeLibrary, n: int, groups: int, channels: int,
                                                              outputs: int, shape: Any, size: Any, stride: Any, padding: Any,
                                                              dilation: Any, dtypes: str) -> None:
    rng, how, (of_x, of_w) = np.random.default_rng(7), Geometry(size, stride, padding, dilation), map(DTYPES.get, dtypes.split())
    x = rng.normal(size=(n, groups * channels, *shape)).astype(of_x)
    w, bias = rng.normal(size=(groups * outputs, channels, *size)).astype(of_w), rng.normal(size=groups * outputs).astype(of_w)
    places = how.places(shape)
    seen = strided(padded(x.astype(np.float64), padding, 0), how).reshape(n, groups, -1, int(np.prod(places)))
    product = np.matmul(w.astype(np.float64).reshape(groups, outputs, -1), seen).reshape(n, groups * outputs, *places)
    by_axis = zip(shape, places, size, stride, (before for before, _ in padding), dilation, strict=True)
    ints = [n, groups, channels, outputs, *(number for axis in by_axis for number in axis), *map(FLAGS.get, (of_x, of_w, of_w))]
    symbols = ["tg_conv_f64" if of_x is np.float64 else "tg_conv_f32"]
    if channels == shape[0] == size[0] == 1 and of_x is not np.float64:
        symbols.append("tg_depthwise")
    for symbol in symbols:
        for shift in (None, bias):
            out = poisoned(product.shape, of_x)
            run(each_build, symbol, [out, x, w, shift], ints)
            expected = product if shift is None else product + bias.astype(float).reshape(-1, 1, 1, 1)
            np.testing.assert_allclose(out.astype(float), expected, **NEAR[of_x])


@pytest.mark.parametrize("n, channels, outputs, shape, size, stride, padding, dilation", [
    (1, 3, 70, (9, 40), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    (2, 5, 33, (11, 13), (3, 5), (2, 3), ((1, 0), (3, 2)), (1, 1)),
    (1, 40, 17, (30, 29), (3, 3), (1, 1), ((2, 2), (0, 4)), (2, 3)),
    (3, 9, 16, (7, 1), (7, 1), (1, 1), ((3, 3), (0, 0)), (1, 1)),
    (1, 2, 3, (1, 241), (1, 4), (1, 2), ((0, 0), (0, 9)), (1, 5)),
    (2, 300, 5, (2, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    (1, 1, 50, (70, 120), (2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    (1, 70, 34, (3, 130), (3, 3), (2, 2), ((5, 5), (6, 6)), (4, 4)),
], ids=["outputs that fill no panel", "strides that differ", "dilation", "columns", "one long line", "windows of one element",
        "one channel", "more zeros than image"])
@pytest.mark.parametrize("dtypes", ["f32 f32", "bf16 bf16", "f16 f16", "bf16 f32"])
def test_a_convolution_that_packs_nothing_but_the_weight_is_the_same(
        each_build: library.NativeLibrary, n: int, channels: int, outputs: int, shape: Any, size: Any, stride: Any, padding: Any,
        dilation: Any, dtypes: str) -> None:
    rng, how, (of_x, of_w) = np.random.default_rng(7), Geometry(size, stride, padding, dilation), map(DTYPES.get, dtypes.split())
    x, w = rng.normal(size=(n, channels, *shape)).astype(of_x), rng.normal(size=(outputs, channels, *size)).astype(of_w)
    bias, lanes = rng.normal(size=outputs).astype(F32), each_build.tile(4).lanes // 2
    places, inside = how.places(shape), channels * size[0] * size[1]
    packed = poisoned((-(-outputs // lanes) * (lanes * (channels + 1) * size[0] * size[1] + 2),), F32)
    flags = list(map(FLAGS.get, (of_x, of_w)))
    run(each_build, "tg_direct_weights", [packed, w], [outputs, channels, size[0] * size[1], *flags])
    by_axis = zip(shape, places, size, stride, (before for before, _ in padding), dilation, strict=True)
    ints = [n, 1, channels, outputs, 1, 1, 1, 1, 0, 1, *(number for axis in by_axis for number in axis), *flags, 0]
    for shift in (None, bias):
        for where, value in ((0, 0.0), (n - 1, np.inf), (0, np.nan), (0, 2.0**-130)):
            if value:
                x[where, -1, shape[0] // 2, shape[1] // 2] = value      # an output that does not see it is what it was
            with np.errstate(invalid="ignore"):
                seen = strided(padded(x.astype(np.float64), padding, 0), how).reshape(n, -1, int(np.prod(places)))
                expected = np.einsum("ok,nkp->nop", w.astype(np.float64).reshape(outputs, -1), seen).reshape(n, outputs, *places)
            out = poisoned(expected.shape, of_x)
            run(each_build, "tg_direct_conv", [out, x, w, shift, packed], ints)
            wanted = expected if shift is None else expected + bias.reshape(-1, 1, 1)
            np.testing.assert_allclose(out.astype(float), wanted, NEAR[of_x]["rtol"], 2e-6 * inside ** 0.5)     # of an output's rms
        x[~np.isfinite(x)] = 1.0


def test_a_direct_convolution_loses_no_number_below_the_smallest_normal_one(each_build: library.NativeLibrary) -> None:
    """By pairs they would be zeros: those of the input, of the weight, and products of others."""
    rng, BF16 = np.random.default_rng(3), ml_dtypes.bfloat16
    lanes = each_build.tile(4).lanes // 2
    for small, large in ((2.0**-130, 2.0**120), (2.0**120, 2.0**-130), (2.0**-65, 2.0**-64)):
        x, w = (rng.normal(size=(1, 3, 6, 7)) * small).astype(BF16), (rng.normal(size=(5, 3, 3, 3)) * large).astype(BF16)
        packed, out = poisoned((-(-5 // lanes) * (lanes * 4 * 9 + 2),), F32), poisoned((1, 5, 4, 5), BF16)
        run(each_build, "tg_direct_weights", [packed, w], [5, 3, 9, 1, 1])
        ints = [1, 1, 3, 5, 1, 1, 1, 1, 0, 1, 6, 4, 3, 1, 0, 1, 7, 5, 3, 1, 0, 1, 1, 1, 0]
        run(each_build, "tg_direct_conv", [out, x, w, None, packed], ints)
        seen = strided(x.astype(float), Geometry((3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1))).reshape(1, 27, 20)
        expected = np.einsum("ok,nkp->nop", w.astype(float).reshape(5, -1), seen).reshape(out.shape)
        np.testing.assert_allclose(out.astype(float), expected, rtol=2.0**-8, atol=2e-6 * np.sqrt(np.mean(expected**2)) + 2.0**-134)


# --- rotary positions ---


@pytest.mark.parametrize("half", [1, 3, 64, 128])
def test_the_rope_table_is_rounded_once_even_at_far_positions(each_build: library.NativeLibrary, half: int) -> None:
    positions = np.array([0, 1, 17, 4095, 131071, 1000000], I32)
    cosine, sine = poisoned((6, half)), poisoned((6, half))
    run(each_build, "tg_rope_table", [cosine, sine, positions], [6, half], [10000.0, 8.0])
    angle = positions[:, None].astype(float) * (10000.0 ** (-np.arange(half) / half) / 8.0)
    assert np.max(np.abs(cosine - np.cos(angle))) <= 1e-7 and np.max(np.abs(sine - np.sin(angle))) <= 1e-7


# --- attention ---


def attention(
    q: Array, k: Array, v: Array, mask: Array | None, *, causal: int, window: int, start: int, scale: float, softcap: float
) -> Array:
    n, hq, _ = q.shape
    s, hkv, _ = k.shape
    wide_k, wide_v = (np.repeat(a.astype(float), hq // hkv, axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q.astype(float), wide_k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    i, j = np.arange(n)[:, None] + start, np.arange(s)[None]
    seen = np.ones((n, s), bool) if mask is None else mask.astype(bool)
    if causal:
        seen = seen & (j <= i)
    if window:
        seen = seen & (i - j < window)
    scores = np.where(seen, scores, -np.inf)
    most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(most), 0.0, most))
    total = p.sum(-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", p / np.where(total == 0, 1.0, total), wide_v)


CASES = [
    # n, s, hq, hkv, d, causal, window, start, softcap, masked
    (1, 1, 1, 1, 1, 1, 0, 0, 0.0, False),
    (1, 17, 4, 1, 64, 1, 0, 16, 0.0, False),
    (1, 300, 4, 1, 256, 1, 0, 299, 0.0, False),
    (1, 1000, 4, 1, 64, 1, 512, 999, 0.0, False),
    (1, 1000, 8, 4, 40, 1, 100, 700, 30.0, True),
    (2, 200, 4, 1, 33, 1, 64, 198, 0.0, True),
    (3, 50, 2, 2, 17, 0, 0, 0, 5.0, False),
    (1, 0, 4, 1, 16, 1, 0, 0, 0.0, False),
    (0, 5, 4, 1, 16, 1, 0, 0, 0.0, False),
    (5, 5, 4, 1, 64, 1, 0, 0, 0.0, False),
    (40, 0, 4, 1, 16, 0, 0, 0, 0.0, False),
    (17, 17, 3, 3, 5, 1, 0, 0, 50.0, False),
    (130, 130, 4, 1, 64, 1, 0, 0, 0.0, False),
    (130, 330, 4, 2, 48, 1, 33, 200, 0.0, False),
    (64, 150, 12, 4, 30, 0, 20, 86, 2.0, True),
    (33, 99, 71, 1, 8, 1, 0, 66, 0.0, True),
    (20, 40, 4, 4, 128, 0, 0, 0, 0.0, False),
    (10, 60, 4, 1, 16, 0, 8, 200, 0.0, False),  # the window has left every key behind: zeros
]


of_both_widths = pytest.mark.parametrize(("symbol", "dtype"), [("tg_attention", F32), ("tg_attention_f64", F64)])


@of_both_widths
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_the_definition(each_build: library.NativeLibrary, case: tuple[Any, ...], symbol: str, dtype: type) -> None:
    n, s, hq, hkv, d, causal, window, start, softcap, masked = case
    q, k, v = (normal(shape, seed).astype(dtype) for seed, shape in enumerate([(n, hq, d), (s, hkv, d), (s, hkv, d)], 1))
    mask = None
    if masked:
        mask = (np.random.default_rng(4).random((n, s)) < 0.6).astype(np.uint8)
        mask[-1] = 0
    options = {"causal": causal, "window": window, "start": start, "scale": 1.5 / math.sqrt(d), "softcap": softcap}
    out = poisoned(q.shape, dtype)
    ints = [n, s, hq, hkv, d, causal, window, start, hkv * d, hkv * d]
    run(each_build, symbol, [out, q, k, v, mask], ints, [options["scale"], softcap])
    assert error(out, attention(q, k, v, mask, **options)) <= (3e-6 if dtype is F32 else 2e-14)
    if masked or (start == 200 and window == 8):
        assert not out[-1].any()


# (queries, keys): largest rms error against the rms of a row; measured 1.4e-7 … 1.7e-7, 1.6e-7, 1.8e-7, 2.5e-7 … 3e-7, where sums
# in single f32 chains had 1.9e-7, 4.1e-7, 4.6e-7 and 1.3e-6
ACCURACY = {(1, 300): 1.85e-7, (1, 4096): 2.2e-7, (128, 128): 2.3e-7, (32, 4096): 3.5e-7}


@pytest.mark.parametrize(("n", "s"), ACCURACY)
def test_attention_is_as_accurate_over_many_keys_as_over_few(each_build: library.NativeLibrary, n: int, s: int) -> None:
    q, k, v = normal((n, 4, 256), 1), normal((s, 1, 256), 2), normal((s, 1, 256), 3)
    options = {"causal": 1, "window": 0, "start": s - n, "scale": 1 / 16, "softcap": 0.0}
    out = poisoned(q.shape)
    run(each_build, "tg_attention", [out, q, k, v, None], [n, s, 4, 1, 256, 1, 0, s - n, 256, 256], [1 / 16, 0.0])
    errors = deviation(out, attention(q, k, v, None, **options))
    assert np.sqrt(np.mean(errors**2)) <= ACCURACY[n, s]


@pytest.mark.parametrize("n", [1, 40])
def test_attention_with_huge_scores_is_the_value_of_the_likeliest_key(each_build: library.NativeLibrary, n: int) -> None:
    rng = np.random.default_rng(5)
    q, v = rng.standard_normal((n, 2, 16)).astype(F32), rng.standard_normal((64, 1, 16)).astype(F32)
    k = (rng.standard_normal((64, 1, 16)) * 1e30).astype(F32)
    out = np.full((n, 2, 16), np.nan, F32)
    run(each_build, "tg_attention", [out, q, k, v, None], [n, 64, 2, 1, 16, 0, 0, 0, 16, 16], [0.25, 0.0])
    likeliest = np.einsum("nhd,sd->nhs", q.astype(np.float64), k[:, 0].astype(np.float64)).argmax(axis=-1)
    assert np.array_equal(out, v[likeliest, 0])


@pytest.mark.parametrize("n", [1, 30])
def test_attention_reads_keys_and_values_out_of_wider_rows(native: library.NativeLibrary, n: int) -> None:
    q, wide = normal((n, 4, 32), 1), normal((50, 512), 2)
    out = poisoned(q.shape)
    ints = [n, 50, 4, 2, 32, 1, 0, 50 - n, 512, 512]
    address = wide.ctypes.data
    native.call("tg_attention", [out.ctypes.data, q.ctypes.data, address + 4 * 10, address + 4 * 100, None], ints, [0.3, 0.0])
    k, v = wide[:, 10:74].reshape(50, 2, 32), wide[:, 100:164].reshape(50, 2, 32)
    assert error(out, attention(q, k, v, None, causal=1, window=0, start=50 - n, scale=0.3, softcap=0.0)) <= 3e-6


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n", [1, 30])
def test_attention_reads_one_head_after_the_other(native: library.NativeLibrary, n: int, wide: bool) -> None:
    """Queries, keys and values that lie as [heads, positions, channels]."""
    dtype = np.float64 if wide else F32
    q, k, v = (normal(shape, seed).astype(dtype) for seed, shape in enumerate([(4, n, 32), (2, 50, 32), (2, 50, 32)]))
    out = poisoned((n, 4, 32), dtype)
    ints = [n, 50, 4, 2, 32, 1, 0, 50 - n, 32, 32, 32, n * 32, 50 * 32, 50 * 32]
    run(native, "tg_attention_f64" if wide else "tg_attention", [out, q, k, v, None], ints, [0.3, 0.0])
    by_position = (x.transpose(1, 0, 2) for x in (q, k, v))
    assert error(out, attention(*by_position, None, causal=1, window=0, start=50 - n, scale=0.3, softcap=0.0)) <= 3e-6


@of_both_widths
@pytest.mark.parametrize("n", [1, 40])
def test_attention_never_reads_keys_that_no_query_may_see(native: library.NativeLibrary, n: int, symbol: str, dtype: type) -> None:
    q, k, v = (normal(shape, seed).astype(dtype) for seed, shape in enumerate([(n, 2, 16), (400, 1, 16), (400, 1, 16)], 1))
    start = 300 - n
    wanted = attention(q, k, v, None, causal=1, window=50, start=start, scale=0.25, softcap=0.0)
    for hidden in (slice(0, start - 49), slice(start + n, None)):
        k[hidden] = v[hidden] = np.nan
    out = poisoned(q.shape, dtype)
    run(native, symbol, [out, q, k, v, None], [n, 400, 2, 1, 16, 1, 50, start, 16, 16], [0.25, 0.0])
    assert error(out, wanted) <= (3e-6 if dtype is F32 else 1e-14)


@pytest.mark.parametrize("n", [1, 20])
def test_attention_of_large_scores_does_not_overflow_and_nan_stays_in_its_query(native: library.NativeLibrary, n: int) -> None:
    q, k, v = normal((n, 1, 16), 1, scale=100), normal((90, 1, 16), 2, scale=100), normal((90, 1, 16), 3)
    q[-1, 0, 3] = np.nan
    out = poisoned(q.shape)
    run(native, "tg_attention", [out, q, k, v, None], [n, 90, 1, 1, 16, 0, 0, 0, 16, 16], [1.0, 0.0])
    wanted = attention(q, k, v, None, causal=0, window=0, start=0, scale=1.0, softcap=0.0)
    assert np.isnan(out[-1]).all()
    assert n == 1 or error(out[:-1], wanted[:-1]) <= 5e-3  # scores near 1e5: their own rounding is 4e-3


# --- runner, pool ---


def step(
    lib: library.NativeLibrary, symbol: str, bases: Sequence[int], offsets: Sequence[int], ints: Sequence[int]
) -> library.Step:
    result = library.Step(fn=lib.address(symbol), n_ptr=len(bases), n_int=len(ints))
    result.ptr_base[: len(bases)] = list(bases)
    result.ptr_offset[: len(offsets)] = list(offsets)
    result.ints[: len(ints)] = list(ints)
    return result


def test_the_runner_takes_bases_offsets_and_sizes_from_its_tables(native: library.NativeLibrary) -> None:
    memory, weights = np.zeros((4, 6), F32), normal((6, 6), 2)
    memory[0], memory[1] = normal((6,), 0), normal((6,), 1)
    values = [24, 48, 72, 1, 6, 0]  # three byte offsets into the arena, then two sizes, and no gaps
    steps = (library.Step * 3)(
        step(native, "tg_softmax", [0, 0], [1, -1], [3, 4, 5, 5, 5]),
        step(native, "tg_noop", [], [], []),
        step(native, "tg_linear_f32", [0, 0, 1, -1], [2, 1, -1, -1], [3, 4, 4]),
    )
    bases = [memory.ctypes.data, weights.ctypes.data]
    seconds, base_array, value_array = (ctypes.c_double * 3)(), (ctypes.c_void_p * 2)(*bases), (ctypes.c_int64 * 6)(*values)
    assert native.runner("tg_run_profiled")(steps, 3, base_array, value_array, seconds) == 0
    assert error(memory[2], softmax(memory[0])) <= 1e-6
    assert error(memory[3], memory[2].astype(float) @ weights.T.astype(float)) <= 1e-6
    assert len(seconds) == 3 and all(second >= 0 for second in seconds) and sum(seconds) > 0
    once = memory.copy()
    memory[2:] = 0
    native.run(steps, bases, values)
    assert np.array_equal(memory, once)


def test_a_malformed_step_is_named(native: library.NativeLibrary) -> None:
    steps = (library.Step * 2)(step(native, "tg_noop", [], [], []), step(native, "tg_noop", [], [], []))
    steps[1].n_ptr = 17
    with pytest.raises(ValueError, match="step 1 is malformed"):
        native.run(steps, [], [])


def test_every_symbol_that_the_sources_declare_is_in_the_library_and_has_an_identity(native: library.NativeLibrary) -> None:
    symbols = library.symbol_sources()
    assert len({native.address(symbol) for symbol in symbols}) == len(symbols) > 20
    written, read, softmax = (library.identity_of(symbols[name]) for name in ("tg_write_rows", "tg_copy_strided", "tg_softmax"))
    assert written == read != softmax
    with pytest.raises(KeyError, match="no kernel 'tg_nothing'"):
        native.address("tg_nothing")


def test_available_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.available()[0]

    def refuse() -> library.NativeLibrary:
        raise ToolchainError("no C compiler: none here")

    monkeypatch.setattr(library, "load", refuse)
    assert library.available() == (False, "no C compiler: none here")


@pytest.fixture
def two_threads(native: library.NativeLibrary) -> Iterator[None]:
    before = native.threads()
    native.set_threads(2)
    yield
    native.set_threads(before)


def test_two_python_threads_may_call_at_once(native: library.NativeLibrary, two_threads: None) -> None:
    work = []
    for seed in range(2):
        x, w = normal((40, 256), seed), normal((700, 256), seed + 5)
        work.append((x, w, x.astype(float) @ w.T.astype(float)))
    worst: list[float] = []

    def repeat(x: Array, w: Array, reference: Array) -> None:
        for i in range(40):
            n = (1, 40)[i % 2]
            out = poisoned((n, 700))
            run(native, "tg_linear_f32", [out, x, w, None], [n, 700, 256])
            worst.append(error(out, reference[:n]))

    threads = [threading.Thread(target=repeat, args=item) for item in work]
    for thread in threads:
        thread.start()
    for _ in range(5):
        native.set_threads(2)  # restarts the workers under way
    for thread in threads:
        thread.join(60)
    assert len(worst) == 80 and max(worst) <= 1e-6


def _child(connection: Any) -> None:
    signal.alarm(30)  # a pool that waits for workers it no longer has would wait for ever
    x, w = normal((1, 256)), normal((3000, 256), 1)
    out = poisoned((1, 3000))
    lib = library.load()
    run(lib, "tg_linear_f32", [out, x, w, None], [1, 3000, 256])
    connection.send((lib.threads(), error(out, x.astype(float) @ w.T.astype(float))))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_a_pool_of_its_own(native: library.NativeLibrary, two_threads: None) -> None:
    native.call("tg_pause_region", [], [8, 100])  # the parent's workers are running
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(there,))
    child.start()
    assert here.poll(30)
    threads, worst = here.recv()
    child.join(30)
    assert child.exitcode == 0 and threads == 2 and worst <= 5e-7
    native.call("tg_pause_region", [], [8, 100])


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2,
                    reason="it has to wake on another processor, and none is known here")
def test_a_thread_that_slept_wakes_on_another_processor_than_the_caller(native: library.NativeLibrary) -> None:
    tasks = Path("/proc/self/task")
    native.set_threads(1)
    before = {task.name for task in tasks.iterdir()}
    native.set_threads(2)
    try:
        for _ in range(20):                                         # on a busy machine it has slept before it is first asked
            native.set_threads(1)
            native.set_threads(2)
            native.call("tg_pause_region", [], [2, 100])
            (worker,) = {task.name for task in tasks.iterdir()} - before
            if os.sched_getaffinity(int(worker)) == os.sched_getaffinity(0):
                break
        assert os.sched_getaffinity(int(worker)) == os.sched_getaffinity(0)
        for _ in range(5):
            time.sleep(0.02)  # it has gone to sleep
            native.call("tg_pause_region", [], [2, 100])
            assert len(os.sched_getaffinity(0) - os.sched_getaffinity(int(worker))) == 1
    finally:
        native.set_threads(0)


def test_a_thread_that_a_short_region_woke_stays_awake_for_the_next(native: library.NativeLibrary) -> None:
    """The region has ended by the time it runs. It spins half a millisecond before it sleeps again."""
    status = Path("/proc/self/task")
    native.set_threads(1)
    before = {task.name for task in status.iterdir()}
    native.set_threads(2)
    try:
        native.call("tg_pause_region", [], [2, 100])
        (worker,) = {task.name for task in status.iterdir()} - before

        def slept() -> int:
            text = (status / worker / "status").read_text()
            return int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])

        first = slept()
        for _ in range(5):
            time.sleep(0.005)  # it has gone to sleep
            for _ in range(200):
                native.call("tg_pause_region", [], [2, 0])
                until = time.perf_counter() + 2e-5
                while time.perf_counter() < until:
                    pass
        assert slept() - first <= 100  # of 1000; a busy machine keeps the caller waiting for longer than it spins, now and then
    finally:
        native.set_threads(0)


def test_the_default_thread_count_respects_the_affinity_mask(native: library.NativeLibrary) -> None:
    allowed = os.sched_getaffinity(0)
    assert 1 <= native.default_threads() <= len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert native.default_threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_pure_read_touches_every_byte(native: library.NativeLibrary) -> None:
    data = np.random.default_rng(0).integers(0, 2**32, 1 << 20, dtype=np.uint32)
    out = np.zeros(1, np.uint32)
    run(native, "tg_read_stream", [out, data], [data.nbytes])
    assert out[0] == np.bitwise_xor.reduce(data)


def test_the_step_of_python_is_the_step_of_c() -> None:
    assert ctypes.sizeof(library.Step) == 8 + 16 + 2 * 64 + 128 + 64
