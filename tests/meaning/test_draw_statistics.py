"""Statistics of one output of one draw: against their definitions in numpy, at NaN, infinities, huge values and few elements."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from tensor_graphs.language.dtypes import DType, bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i32
from tensor_graphs.meaning import error_measure
from tensor_graphs.meaning.draw_statistics import EXACT, WRONG, Statistics, statistics

INF, NAN = math.inf, math.nan
FLOATS = (f64, f32, bf16, f16, f8e4m3, f8e5m2)


def plainly(y: np.ndarray, r: np.ndarray, half_ulp: np.ndarray, floor: float) -> Statistics:
    """The definitions, written down for finite rows."""
    rms = np.sqrt(np.mean(r**2, axis=-1, keepdims=True))
    errors = np.maximum(0.0, np.abs(y - r) - half_ulp) / np.maximum(np.maximum(np.abs(r), rms), floor)
    tail = np.sort(errors.reshape(-1))[-math.ceil(errors.size / 1000):]
    norms = np.linalg.norm(y - r, axis=-1) / np.linalg.norm(r, axis=-1)
    p, log_p, log_q = scipy.special.softmax(r, -1), scipy.special.log_softmax(r, -1), scipy.special.log_softmax(y, -1)
    cosines = np.sum(y * r, axis=-1) / np.linalg.norm(y, axis=-1) / np.linalg.norm(r, axis=-1)
    return Statistics(float(tail[-1]), float(tail[0]), float(np.sqrt(np.mean(norms**2))),
                      float(np.mean(np.sum(p * (log_p - log_q), axis=-1))), float(np.mean(y.argmax(-1) == r.argmax(-1))),
                      float(cosines.min()))


def assert_close(result: Statistics, expected: Statistics) -> None:
    for name in ("max", "p999", "norm", "kl", "top1", "cosine"):
        assert getattr(result, name) == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-13), name


@given(rows=st.integers(1, 40), width=st.integers(2, 60), seed=st.integers(0, 10**6), block=st.sampled_from([1, 50, 1 << 20]),
       noise=st.sampled_from([1e-6, 1e-2, 1.0]), size=st.sampled_from([1e-3, 1.0, 30.0]))
def test_statistics_are_their_definitions_in_blocks_of_any_size(rows, width, seed, block, noise, size):
    rng = np.random.default_rng(seed)
    r = size * rng.standard_normal((rows, width))
    y = (r + noise * size * rng.standard_normal((rows, width))).astype(np.float32)
    half_ulp = np.spacing(np.maximum(np.abs(y), np.abs(r).astype(np.float32))).astype(np.float64) / 2
    old, error_measure.BLOCK_ELEMENTS = error_measure.BLOCK_ELEMENTS, block
    try:
        result = statistics(y, r, f32)
    finally:
        error_measure.BLOCK_ELEMENTS = old
    assert_close(result, plainly(y.astype(np.float64), r, half_ulp, f32.smallest_normal))


def test_a_definition_with_another_rounding_is_seen_to_differ():
    r = np.random.default_rng(0).standard_normal((4, 9))
    y = (r * 1.001).astype(np.float32)
    with pytest.raises(AssertionError, match="max"):
        assert_close(statistics(y, r, f32), plainly(y.astype(np.float64), r, np.full(r.shape, 1e-5), f32.smallest_normal))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(seed=st.integers(0, 10**6), low=st.integers(-50, 20), error=st.sampled_from([0.0, 1e-9, 1e-4, 0.1]))
def test_the_last_rounding_of_an_output_never_costs(dtype: DType, seed: int, low: int, error: float):
    """From subnormal numbers up to beyond the range, where the rounded value is infinite (or NaN in f8e4m3)."""
    rng = np.random.default_rng(seed)
    r = rng.standard_normal((3, 5)) * 2.0 ** rng.integers(low, low + 4, (3, 5))
    scale = np.maximum(np.maximum(np.abs(r), np.sqrt(np.mean(r**2, axis=-1, keepdims=True))), dtype.smallest_normal)
    v = r + error * scale * rng.uniform(-1, 1, r.shape)
    with np.errstate(all="ignore"):
        y = v.astype(dtype.numpy)
    if (np.abs(r) < 0.4 * dtype.max).all() or error == 0:
        result = statistics(y, r, dtype)
        assert result.max <= error * (1 + 1e-6) + 1e-15
        assert result.p999 <= result.max


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_roundings_cost(dtype: DType):
    r = np.array([[1.0, 1.25, 1.5]])
    steps = 1 + 2 * dtype.epsilon * np.arange(3) / 2
    assert statistics((r * steps).astype(dtype.numpy), r, dtype).max > 0.4 * dtype.epsilon
    one = np.array([1.0 + dtype.epsilon, 1.25, 1.5]).astype(dtype.numpy)[None]
    assert statistics(one, r, dtype).max == pytest.approx(dtype.epsilon / 2 / math.sqrt(np.mean(r**2)), rel=1e-12)


def test_equal_outputs_are_exact_also_without_elements_and_as_scalars():
    rng = np.random.default_rng(0)
    for dtype in FLOATS:
        for shape in ((), (0,), (3, 0), (0, 3), (1,), (4, 1), (2, 3, 5)):
            x = rng.standard_normal(shape).astype(dtype.numpy)
            assert statistics(x, x.astype(np.float64), dtype) == EXACT
    assert statistics(np.zeros((2, 3), np.float32), np.zeros((2, 3)), f32) == EXACT


def test_integers_and_booleans_are_equal_or_wrong_and_so_are_shapes():
    assert statistics(np.arange(4, dtype=np.int32), np.arange(4), i32) == EXACT
    assert statistics(np.array([0, 1, 2, 4], np.int32), np.arange(4), i32) == WRONG
    assert statistics(np.array(True), np.array(False), bool_) == WRONG
    assert statistics(np.zeros((2, 3), np.float32), np.zeros((3, 2)), f32) == WRONG


@pytest.mark.parametrize("y, r", [(NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, -INF), (INF, -INF), (NAN, INF)])
def test_what_is_not_finite_in_one_of_the_two_alone_is_wrong(y: float, r: float):
    rows = np.ones((2, 3))
    out, reference = rows.copy(), rows.copy()
    out[1, 2], reference[1, 2] = y, r
    assert statistics(out.astype(np.float32), reference, f32) == WRONG


def test_masked_logits_are_no_difference():
    r = np.array([[0.0, 1.0, -INF], [2.0, -INF, -INF]])
    result = statistics((r + np.array([0.0, 0.5, 0.0])).astype(np.float32), r, f32)
    p, q = scipy.special.softmax([0.0, 1.0]), scipy.special.softmax([0.0, 1.5])
    assert result.kl == pytest.approx(np.sum(p * np.log(p / q)) / 2, rel=1e-12)
    assert result.max == pytest.approx(0.5, rel=1e-6) and result.norm == pytest.approx(0.5 / math.sqrt(2)) and result.top1 == 1


def test_rows_without_a_softmax_have_no_divergence_that_a_limit_allows():
    for row in ([INF, 1.0], [-INF, -INF], [NAN, 1.0]):
        r = np.array([row, [1.0, 2.0]])
        result = statistics(r.astype(np.float32), r, f32)
        assert result.kl == INF and result.max == 0 and result.cosine == 1


def test_huge_values_neither_overflow_nor_warn():
    r = np.array([[1e308, -1e308, 1e300], [1.0, 2.0, 3.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert statistics(r, r, f64) == EXACT
        near = statistics(r * (1 + 1e-3), r, f64)
        assert near.max == pytest.approx(1e-3) and near.norm == pytest.approx(1e-3) and near.cosine == pytest.approx(1)
        far = statistics(-r, r, f64)
        assert far.max == pytest.approx(2) and far.norm == pytest.approx(2) and far.cosine == pytest.approx(-1) and far.kl == INF
        over = statistics(np.array([[INF, 1.0]], np.float16), np.array([[7e4, 1.0]]), f16)
        assert over.max == 0 and over.kl == INF


def test_a_divergence_is_exact_where_logits_hardly_differ_and_where_they_differ_much():
    rng = np.random.default_rng(1)
    r = 5 * rng.standard_normal((1, 1000)) + 20
    p = scipy.special.softmax(r)
    for size in (1e-3, 1e-6, 1e-9):
        y = r + size * rng.standard_normal(r.shape)
        d = (y - r) - np.sum(p * (y - r))
        assert statistics(y, r, f64).kl == pytest.approx(np.sum(p * d**2) / 2, rel=10 * size + 1e-6)
    assert statistics(r + 3.0, r, f64).kl < 1e-28                   # softmax does not see a shift
    assert statistics(np.array([[0.0, 5e3]]), np.array([[5e3, 0.0]]), f64).kl == pytest.approx(5e3)


def test_a_tie_in_the_reference_is_no_other_token():
    r = np.array([[1.0, 3.0, 3.0], [1.0, 3.0, 2.999]])
    y = np.array([[1.0, 2.9, 3.0], [1.0, 2.9, 3.0]])
    assert statistics(y, r, f64).top1 == 0.5


def test_a_row_of_zeros_is_measured_against_the_smallest_normal_number():
    r, tiny = np.zeros((2, 4)), np.full((2, 4), 1e-3)
    assert statistics(tiny.astype(np.float32), r, f32).norm == pytest.approx(1e-3 / f32.smallest_normal)
    assert statistics(np.full((2, 4), 1e-39, np.float32), r, f32).max == 0          # a processor may flush it
    assert statistics(tiny, r, f64).cosine == statistics(r, tiny, f64).cosine == 0


def test_a_row_of_one_element_has_a_sign_for_its_cosine():
    result = statistics(np.array([[1.5], [-2.0]]), np.array([[1.0], [2.0]]), f64)
    assert (result.kl, result.top1, result.cosine) == (0.0, 1.0, -1.0) and result.max == pytest.approx(2)
    assert statistics(np.array(1.5), np.array(1.0), f64).norm == pytest.approx(0.5)
