"""The error measure: relative to the value or to its row, exact for integers, strict about NaN and infinities."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.language.dtypes import bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i8, i64, u64
from tensor_graphs.meaning import error_measure
from tensor_graphs.meaning.error_measure import ErrorReport, measure, row_errors

INF, NAN = math.inf, math.nan
EXACT = ErrorReport(0.0, 0.0, 0.0, 0.0)


def plainly(out: np.ndarray, ref: np.ndarray, floor: float) -> ErrorReport:
    """The definition, written down for finite values along the last axis."""
    difference = np.abs(out - ref)
    rms = np.sqrt(np.mean(ref**2, axis=-1, keepdims=True))
    below = np.maximum(np.maximum(np.abs(ref), rms), floor)
    relative = np.where(difference == 0, 0.0, difference / below)
    tail = np.sort(relative.reshape(-1))[-math.ceil(relative.size / 1000):]
    norm = np.linalg.norm(difference) / np.linalg.norm(ref) if np.any(ref) else (INF if np.any(difference) else 0.0)
    return ErrorReport(float(tail[-1]), float(tail[0]), float(norm), float(difference.max()))


def assert_close(found: ErrorReport, expected: ErrorReport) -> None:
    assert found.mismatch == expected.mismatch
    for name in ("max_relative_error", "p999", "norm_error", "max_absolute_error"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-12, abs=0), name


@settings(max_examples=60)
@given(rows=st.integers(1, 40), width=st.integers(1, 60), seed=st.integers(0, 10**6), block=st.sampled_from([1, 50, 1 << 20]),
       noise=st.sampled_from([0.0, 1e-7, 1e-2, 1.0]))
def test_the_measure_is_its_definition_in_blocks_of_any_size(rows, width, seed, block, noise):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-20, 20, (rows, 1)) * rng.integers(0, 2, (rows, width))
    out = ref * (1 + noise * rng.standard_normal((rows, width))) + noise * 1e-3 * rng.integers(0, 2, (rows, width))
    old, error_measure.BLOCK_ELEMENTS = error_measure.BLOCK_ELEMENTS, block
    try:
        assert_close(measure(out, ref, f64), plainly(out, ref, f64.smallest_normal))
    finally:
        error_measure.BLOCK_ELEMENTS = old


def test_a_small_value_is_measured_against_its_row():
    ref = np.array([[100.0, 1e-9, -100.0, 0.0]])
    out = ref + np.array([[0.0, 1e-6, 0.0, 0.0]])
    found = measure(out, ref, f32)
    assert found.max_relative_error == pytest.approx(1e-6 / math.sqrt(5000))
    assert found.max_absolute_error == pytest.approx(1e-6)
    assert measure(out.T, ref.T, f32).max_relative_error == pytest.approx(1e3)          # each row by itself


def test_a_large_value_is_measured_against_itself():
    ref = np.array([1.0] * 99 + [1000.0])
    assert measure(np.where(ref == 1000, 1001.0, ref), ref, f32).max_relative_error == pytest.approx(1e-3)


def test_rows_run_along_the_axis_that_is_given():
    rng = np.random.default_rng(0)
    ref = rng.standard_normal((3, 4, 5)) * 10.0 ** np.arange(5)
    out = ref + rng.standard_normal((3, 4, 5)) * 1e-3
    for axis in (0, 1, 2, -2):
        moved = [np.ascontiguousarray(np.moveaxis(x, axis, -1)) for x in (out, ref)]
        assert_close(measure(out, ref, f32, axis=axis), measure(*moved, f32))
    assert measure(out, ref, f32, axis=2).max_relative_error != measure(out, ref, f32, axis=1).max_relative_error


def test_nothing_wrong_is_zero_everywhere():
    for shape in ((), (0,), (3, 0), (2, 3)):
        assert measure(np.zeros(shape), np.zeros(shape), f32) == EXACT
        assert measure(np.ones(shape), np.ones(shape), f32) == EXACT
    assert measure(np.zeros((2, 2), np.int32), np.zeros((2, 2), np.int32), i64) == EXACT


def test_a_row_of_zeros_has_to_be_met_down_to_the_smallest_normal_number():
    assert measure([[1e-30, 0.0]], [[0.0, 0.0]], f32).max_relative_error == pytest.approx(1e-30 / f32.smallest_normal)
    assert measure([[f16.smallest_normal / 8, 0.0]], [[0.0, 0.0]], f16).max_relative_error == 0.125
    assert measure([[1e-30]], [[0.0]], f32).norm_error == pytest.approx(1e-30 / f32.smallest_normal)
    assert measure([[1e300]], [[0.0]], f64).norm_error == INF


def test_what_a_processor_may_flush_to_0_is_equal_in_dtypes_with_the_exponents_of_f32():
    small = f32.smallest_normal
    for dtype in (f32, bf16):
        assert measure([[0.0, small]], [[small / 3, -small / 3]], dtype) == EXACT
        assert measure([[0.0], [1.0]], [[small / 3], [1.0]], dtype) == EXACT                   # beside other rows
        assert measure([[small * 1.5]], [[small * 0.5]], dtype).max_relative_error == 1.0      # that is no small number
        assert measure([[0.0]], [[small * 1.5]], dtype).max_relative_error == 1.0
    assert measure([[0.0, 1e-6]], [[1e-5, 1e-6]], f16).max_relative_error > 0.1                # f16 holds numbers of use there
    assert measure([[0.0]], [[small / 3]], f64).max_relative_error == 1.0
    assert row_errors(np.array([[0.0], [0.0]]), np.array([[small / 3], [small * 3]]), f32).tolist() == [0.0, 1.0]


def test_the_norm_of_what_cancels_is_relative_to_what_rounding_explains():
    """x·x − y·y at x = y is 0, and the rounding of one product where the other is kept wider."""
    explained = measure([[1e-7, 0.0]], [[0.0, 0.0]], f32, rounding=np.full((1, 2), 6e-8))
    assert explained.max_relative_error < 1e-6 and explained.norm_error < 1e-6
    wrong = measure([[1e-3]], [[0.0]], f32, rounding=np.full((1, 1), 6e-8))
    assert wrong.norm_error > 1e30


@pytest.mark.parametrize("out, ref, why", [
    ([1.0, NAN], [1.0, 2.0], "nan instead of 2.0 at [1]"), ([1.0, 2.0], [NAN, 2.0], "1.0 instead of nan at [0]"),
    ([INF, 1.0], [2.0, 1.0], "inf instead of 2.0 at [0]"), ([2.0, 1.0], [-INF, 1.0], "2.0 instead of -inf at [0]"),
    ([INF, 1.0], [-INF, 1.0], "inf instead of -inf at [0]"), ([NAN, 1.0], [INF, 1.0], "nan instead of inf at [0]"),
    ([INF, 1.0], [-1e39, 1.0], "inf instead of -1e+39 at [0]"), ([NAN, 1.0], [1e39, 1.0], "nan instead of 1e+39 at [0]"),
])
def test_a_value_that_is_not_finite_has_to_be_answered_by_the_same(out, ref, why):
    found = measure(out, ref, f32)
    assert found == ErrorReport(INF, INF, INF, INF, why)
    assert not found.within(1e9) and not found.within(INF)


def test_the_worst_element_is_named_in_the_coordinates_of_the_array(monkeypatch):
    monkeypatch.setattr(error_measure, "BLOCK_ELEMENTS", 8)
    ref = np.ones((3, 4, 5))
    out = ref.copy()
    out[0, 1, 2], out[2, 3, 1] = 1.001, 0.99
    for axis in (-1, 1):
        worst = measure(out, ref, f32, axis=axis).worst
        assert worst is not None and (worst.index, worst.found, worst.expected) == ((2, 3, 1), 0.99, 1.0)
    assert str(worst) == "0.99 instead of 1 at [2, 3, 1]" and measure(ref, ref, f32).worst is None
    (scalar,) = [measure(np.float64(2), np.float64(1), f32).worst]
    assert scalar is not None and scalar.index == (0,)


def test_the_first_wrong_place_is_named_in_the_coordinates_of_the_array():
    ref = np.zeros((2, 3, 4))
    out = ref.copy()
    out[1, 2, 3] = NAN
    for axis in (0, 1, 2):
        assert measure(out, ref, f32, axis=axis).mismatch == "nan instead of 0.0 at [1, 2, 3]"


def test_non_finite_values_that_match_are_no_error_and_do_not_touch_their_row():
    ref = np.array([NAN, INF, -INF, 1.0, 1.0])
    out = np.array([NAN, INF, -INF, 1.0, 1.5])
    found = measure(out, ref, f32)
    assert found.mismatch is None and found.max_relative_error == 0.5
    assert found.norm_error == pytest.approx(0.5 / math.sqrt(2))


@pytest.mark.parametrize("dtype, beyond", [(f16, 7e4), (f16, -7e4), (bf16, 3.4e38), (f32, 1e300), (f32, -3.5e38)])
def test_beyond_the_range_of_the_dtype_infinity_is_right_and_the_rest_of_the_row_is_judged_without_it(dtype, beyond):
    found = measure([math.copysign(INF, beyond), 1.0, 1.1], [beyond, 1.0, 1.0], dtype)
    assert found.mismatch is None and found.max_relative_error == pytest.approx(0.1)


def test_just_beyond_the_range_the_largest_number_is_right_too():
    assert measure([65504.0, 1.0], [65510.0, 1.0], f16).max_relative_error == pytest.approx(6 / 65510)


def test_neither_differences_nor_squares_overflow():
    found = measure([1.5e308, 1e308], [-1.5e308, 1e308], f64)
    assert found.max_relative_error == pytest.approx(2.0) and found.mismatch is None
    assert found.norm_error == pytest.approx(2 * 1.5 / math.hypot(1.5, 1.0))
    assert measure([1.1e300] * 3, [1e300] * 3, f64).norm_error == pytest.approx(0.1)


def test_squares_do_not_underflow():
    found = measure([1.1e-300, 2e-300], [1e-300, 2e-300], f64)
    assert found.max_relative_error == pytest.approx(0.1e-300 / (math.sqrt(2.5) * 1e-300))
    assert found.norm_error == pytest.approx(0.1 / math.sqrt(5))


def test_rows_far_apart_in_size_share_one_norm(monkeypatch):
    monkeypatch.setattr(error_measure, "BLOCK_ELEMENTS", 1)
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        ref = np.array([[1e-200], [1.0], [1.7e308]])[order]
        out = np.array([[1.1e-200], [1.0], [1.6e308]])[order]
        found = measure(out, ref, f64)
        assert found.max_relative_error == pytest.approx(0.1) and found.norm_error == pytest.approx(0.1 / 1.7)
        assert found.max_absolute_error == pytest.approx(1e307)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), power=st.integers(-60, 60))
def test_the_measure_does_not_change_with_the_unit(seed, power):
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal((4, 7))
    out = ref + 1e-4 * rng.standard_normal((4, 7))
    a, b = measure(out, ref, f64), measure(out * 2.0**power, ref * 2.0**power, f64)
    assert a.max_relative_error == b.max_relative_error and a.p999 == b.p999
    assert a.norm_error == pytest.approx(b.norm_error)


def test_the_percentile_leaves_out_one_element_in_a_thousand():
    ref = np.ones((10, 1000))
    out = ref.copy()
    out[:, 0] = 1 + np.arange(1, 11) / 10                    # ten of ten thousand
    found = measure(out, ref, f32)
    assert found.max_relative_error == pytest.approx(1.0) and found.p999 == pytest.approx(0.1)
    out[0, 1] = 1.01
    assert measure(out, ref, f32).p999 == pytest.approx(0.1)


def test_results_are_read_in_their_own_dtype():
    ref = np.array([1 / 3, 0.1])
    for dtype in (f16, bf16, f32):
        found = measure(ref.astype(dtype.numpy), ref, dtype)
        assert 0 < found.max_relative_error <= dtype.epsilon / 2


def test_integers_and_booleans_must_be_equal():
    found = measure(np.array([[1, 2], [3, 9]]), np.array([[1, 2], [4, 6]]), i64)
    assert found == ErrorReport(INF, INF, INF, 3.0, "2 of 4 values differ, the first at [1, 0]: 3 instead of 4")
    assert measure(np.array([True, False]), np.array([True, True]), bool_).mismatch == (
        "1 of 2 values differ, the first at [1]: False instead of True")
    assert measure(np.array(2**64 - 1, np.uint64), np.array(2**64 - 2, np.uint64), u64).mismatch is not None
    assert measure(np.int8(3), np.int8(3), i8) == EXACT


@settings(max_examples=80)
@given(dtype=st.sampled_from([f32, f64, bf16]), rows=st.integers(1, 30), width=st.integers(1, 40), seed=st.integers(0, 10**6),
       block=st.sampled_from([1, 50, 1 << 20]), explained=st.booleans())
def test_the_errors_of_rows_are_those_of_each_row_alone(dtype, rows, width, seed, block, explained):
    rng = np.random.default_rng(seed)
    ref = rng.normal(size=(rows, width)) * 10.0 ** rng.integers(-60, 30, size=(rows, 1))
    out = ref * (1 + rng.choice([0.0, 1e-7, 1e-2], size=(rows, 1)) * rng.normal(size=(rows, width)))
    for values in (out, ref):                                       # of some rows one value, of one or of both
        for row in rng.integers(0, rows, size=3):
            values[row, rng.integers(width)] = rng.choice([INF, -INF, NAN, 0.0, 1e305, -1e308])
    both = rng.integers(0, rows)
    out[both, 0] = ref[both, 0] = rng.choice([INF, NAN, 1e307])
    moves = np.abs(rng.normal(size=ref.shape)) * 1e-8 * np.where(np.isfinite(ref), np.abs(ref), 0.0) if explained else None
    asked = rng.permutation(rows)[:rng.integers(1, rows + 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(error_measure, "BLOCK_ELEMENTS", block)
        found = row_errors(out, ref, dtype, moves, asked)
        every = row_errors(out, ref, dtype, moves)
    alone = [measure(out[i], ref[i], dtype, rounding=None if moves is None else moves[i]) for i in range(rows)]
    assert every == pytest.approx([each.max_relative_error for each in alone], rel=1e-12, abs=0)
    assert found.tolist() == every[asked].tolist()


def test_of_rows_of_integers_those_that_differ_are_infinitely_wrong():
    ref = np.arange(12).reshape(4, 3)
    out = ref.copy()
    out[2, 1] += 1
    assert row_errors(out, ref, i64).tolist() == [0.0, 0.0, INF, 0.0]
    assert row_errors(out, ref, i64, rows=np.array([3, 2])).tolist() == [0.0, INF]
    assert row_errors(np.empty((0, 1)), np.empty((0, 1)), f32).tolist() == []


@pytest.mark.parametrize(("dtype", "most", "step"), [(f8e5m2, 57344.0, 8192.0), (f8e4m3, 448.0, 32.0)], ids=str)
def test_a_kernel_that_gives_the_largest_number_of_eight_bits_where_it_leaves_the_range_is_wrong(dtype, most, step):
    ref = np.array([[most + step / 4, 1.0], [most + step, 1.0], [most + 1.01 * step, 1.0], [2 * most, 1.0]])
    saturated = np.array([[most, 1.0]] * 4)
    assert [e == INF for e in row_errors(saturated, ref, dtype)] == [False, False, True, True]
    assert measure(saturated[3], ref[3], dtype).mismatch is not None and measure(saturated[0], ref[0], dtype).mismatch is None
    gone = np.array([[INF if dtype.has_infinity else NAN, 1.0]] * 4)
    assert row_errors(gone, ref, dtype).tolist() == [0.0] * 4


def test_a_wrong_shape_is_a_mismatch():
    assert measure(np.zeros((2, 3)), np.zeros((3, 2)), f32).mismatch == "the shape is [2, 3] instead of [3, 2]"
    assert measure(np.zeros(1), np.zeros(()), f32).mismatch == "the shape is [1] instead of []"


def test_a_report_is_within_a_tolerance_or_not():
    assert ErrorReport(1e-3, 0, 0, 0).within(1e-3) and not ErrorReport(1e-3, 0, 0, 0).within(1e-4)
    assert not ErrorReport(NAN, 0, 0, 0).within(1.0)


def test_nothing_given_is_changed():
    ref, out = np.array([[1e308, NAN, 3.0]]), np.array([[-1e308, NAN, 2.0]])
    kept = ref.copy(), out.copy()
    measure(out, ref, f64)
    np.testing.assert_array_equal(ref, kept[0])
    np.testing.assert_array_equal(out, kept[1])


def test_large_arrays_are_compared_in_little_memory():
    ref = np.random.default_rng(0).standard_normal((300, 8192))
    out = ref.astype(np.float32)
    tracemalloc.start()
    try:
        assert measure(out, ref, f32).within(1e-7)
        assert tracemalloc.get_traced_memory()[1] < ref.nbytes
    finally:
        tracemalloc.stop()
