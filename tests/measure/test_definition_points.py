"""Points of ops whose definition adds many terms, takes a maximum or compares; and values that are what their kind says."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.definition_points import LONG, LONGEST_PADDED, concurrent_points, hazard_points, one_sided
from tensor_graphs.measure.points.extremes import ONE_SIDED, begins_late, extreme_values, one_sided_values, rising_values
from tensor_graphs.measure.points.inputs import Point, point_inputs

FEW, N, M = tg.dim("few", 1, 4), tg.dim("n", 1, 4096), tg.dim("m", 1, 4096)
MANY = tg.dim("many", 1, 1 << 22)
FLOATS = [dtype for dtype in DTYPES.values() if dtype.kind == "float"]


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def kinds(signature: Signature) -> list[str | None]:
    return [p.extreme for p in hazard_points(signature, dict.fromkeys(signature.dim_names, 3), 5)]


def test_a_sum_of_many_terms_is_asked_at_its_largest_on_numbers_that_do_not_cancel() -> None:
    signature = signature_of(tg.sum(tg.input("x", (FEW, MANY), tg.f32), axis=1))
    even, drifting = hazard_points(signature, {"few": 3, "many": 20}, 5)
    assert (even.extreme, drifting.extreme) == ("even", "drifting") and even.binding == drifting.binding
    assert even.binding["many"] >= 1 << 21
    inputs = point_inputs(signature.graph, even)["x0"]
    exact = interpret(signature.graph, {"x0": inputs}, dims=even.binding).outputs["y0"]
    one_accumulator = np.add.accumulate(inputs, axis=1, dtype=np.float32)[:, -1]
    assert (np.abs(one_accumulator / exact - 1) > 1e-3).all()
    np.testing.assert_allclose(inputs.sum(axis=1), exact, rtol=1e-5)


def test_a_sum_of_a_fixed_number_of_terms_is_asked_as_well_and_a_short_one_is_not() -> None:
    assert kinds(signature_of(tg.sum(tg.input("x", (N, LONG), tg.f32), axis=1))) == ["even", "drifting"]
    assert kinds(signature_of(tg.sum(tg.input("x", (N, LONG - 1), tg.f32), axis=1))) == []
    assert kinds(signature_of(tg.sum(tg.input("x", (N, M), tg.f32), axis=1))) == []


def test_no_point_takes_long_whatever_is_declared() -> None:
    weights = tg.input("w", (1 << 13, 1 << 13), tg.f32)
    assert kinds(signature_of(tg.linear(tg.input("x", (N, 1 << 13), tg.f32), weights))) == []


def test_rows_of_a_maximum_are_padded_beside_other_rows_and_alone() -> None:
    signature = signature_of(tg.softmax(tg.input("x", (N, M), tg.f32)))
    several, alone, *_ = hazard_points(signature, {"n": 20, "m": 20}, 5)
    assert several.extreme == alone.extreme == "padded"
    assert several.binding == {"n": 20, "m": LONGEST_PADDED} and alone.binding == {"n": 1, "m": LONGEST_PADDED}
    for point in (several, alone):
        x = point_inputs(signature.graph, point)["x0"]
        before = np.argmax(np.isfinite(x), axis=1)
        assert np.isfinite(x[:, -1]).all() and before.max() >= LONGEST_PADDED // 2
        assert all(np.isneginf(row[:k]).all() and np.isfinite(row[k:]).all() for row, k in zip(x, before, strict=True))
    x = point_inputs(signature.graph, several)["x0"]
    assert {0, LONGEST_PADDED // 2, LONGEST_PADDED - 1} <= set(np.argmax(np.isfinite(x), axis=1).tolist())


def test_a_mask_hides_the_first_keys() -> None:
    keys = tuple(tg.input(name, (size, 2, 8), tg.f32) for name, size in (("q", N), ("k", M), ("v", M)))
    signature = signature_of(tg.attention(*keys, tg.input("mask", (N, M), tg.bool_), scale=0.5))
    several, alone, *_ = hazard_points(signature, {"n": 5, "m": 9}, 5)
    for point in (several, alone):
        inputs = point_inputs(signature.graph, point)
        mask = inputs["x3"]
        assert mask[:, -1].all() and not mask[0, :mask.shape[1] // 2].any() and (np.diff(mask.astype(int)) >= 0).all()
        assert all(np.isfinite(inputs[name]).all() for name in ("x0", "x1", "x2"))
    assert alone.binding["n"] == 1


@pytest.mark.parametrize("axis", [-1, -2, -3])
def test_padding_runs_along_the_axis_of_the_maximum(axis: int) -> None:
    x = extreme_values(rng(), "padded", (5, 6, 7), tg.f32, first=axis)
    assert x.shape == (5, 6, 7) and np.isfinite(np.moveaxis(x, axis, -1)[..., -1]).all()
    assert (np.diff(np.isfinite(np.moveaxis(x, axis, -1)).astype(int), axis=-1) >= 0).all() and np.isneginf(x).any()


def sides(x: np.ndarray, axis: int = -1) -> list[float]:
    """The largest of each row below zero, the smallest of each above."""
    rows = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    assert ((rows < 0).all(axis=1) | (rows > 0).all(axis=1)).all()
    return [float(row.max() if row[0] < 0 else row.min()) for row in rows]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("axis", [-1, -2])
def test_rows_lie_on_one_side_down_to_the_last_number_and_infinity(dtype: tg.DType, axis: int) -> None:
    x = one_sided_values(rng(), (9, 9), dtype, axes=(axis,)).astype(np.float64)
    below, near, varied, least, above, *_ = sides(x, axis)
    assert (below, above) == (-dtype.max, dtype.max) and -210 < near < -190 and -dtype.max < varied < -dtype.max / 4
    assert least == (-math.inf if dtype.has_infinity else -dtype.max)


@pytest.mark.parametrize("dtype", [tg.i8, tg.i32, tg.i64, tg.u8, tg.u64], ids=str)
def test_rows_of_integers_lie_at_either_end(dtype: tg.DType) -> None:
    x = one_sided_values(rng(), (8, 9), dtype, axes=(-1,))
    assert x.dtype == dtype.numpy and (x[0] == dtype.min).all() and (x[4] == dtype.max).all()
    assert int(x[2].max()) <= dtype.min // 2 and int(x[6].min()) >= dtype.max // 2


def test_each_row_of_one_side_is_asked_however_few_rows_there_are() -> None:
    for rows, count in ((1, ONE_SIDED), (3, 3), (20, 1)):
        signature = signature_of(tg.softmax(tg.input("x", (rows, 320), tg.f32)))
        points = one_sided(signature, {}, 5)
        assert len(points) == count
        found = [float(row) for p in points for row in sides(point_inputs(signature.graph, p)["x0"])]
        assert {-math.inf, math.inf, -float(tg.f32.max), float(tg.f32.max)} <= set(found)


def softmax(x: np.ndarray, start: float = -math.inf, of_nothing: float = math.nan) -> np.ndarray:
    top = x.max(axis=-1, keepdims=True, initial=start)
    with np.errstate(all="ignore"):
        e = np.exp(x - top)
        return np.where(np.isneginf(top), of_nothing, e / e.sum(axis=-1, keepdims=True)).astype(x.dtype)


@pytest.mark.parametrize(("wrong", "said"), [
    ({}, None), ({"start": -100.0}, "nan instead of"), ({"start": -1e4}, "nan instead of"), ({"start": -1e30}, "nan instead of"),
    ({"of_nothing": 0.0}, "0.0 instead of nan")], ids=str)
def test_a_softmax_whose_maximum_begins_at_a_number_or_that_gives_0_for_nothing_is_wrong_there(wrong, said) -> None:
    signature = signature_of(tg.softmax(tg.input("x", (N, 320), tg.f32)))
    (point,) = one_sided(signature, {"n": 20}, 5)
    inputs = point_inputs(signature.graph, point)
    expected = interpret(signature.graph, inputs, dims=point.binding).outputs["y0"]
    mismatch = measure(softmax(inputs["x0"], **wrong), expected, tg.f32).mismatch
    assert mismatch is None if said is None else mismatch is not None and said in mismatch


def test_all_scores_of_a_query_are_far_below_zero_and_some_rows_of_a_mask_hide_all() -> None:
    keys = tuple(tg.input(name, (size, 2, 8), tg.f32) for name, size in (("q", N), ("k", M), ("v", M)))
    signature = signature_of(tg.attention(*keys, tg.input("mask", (N, M), tg.bool_), scale=0.5))
    (point,) = one_sided(signature, {"n": 12, "m": 9}, 5)
    inputs = point_inputs(signature.graph, point)
    scores = np.einsum("nhd,mhd->hnm", inputs["x0"], inputs["x1"])
    assert min(sides(scores)) < -1e30 and not inputs["x3"][::3].any() and inputs["x3"][1:].any()
    assert len(np.unique(inputs["x2"])) > 9


@pytest.mark.parametrize("shape", [(), (0,), (5,), (600, 2)])
def test_rising_values_are_numbers_of_the_dtype_in_any_shape(shape: tuple[int, ...]) -> None:
    for dtype in FLOATS:
        x = rising_values(shape, dtype)
        assert x.shape == shape and np.isfinite(x.astype(np.float64)).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0), (4, 1)])
def test_rows_of_one_element_or_none_are_not_padded(shape: tuple[int, ...]) -> None:
    assert not begins_late(rng(), shape).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_neighbours_are_apart_by_one_step_of_their_dtype_and_the_same_in_each_operand(dtype: tg.DType) -> None:
    x, y = (extreme_values(np.random.default_rng(seed), "neighbouring", (40, 24), dtype) for seed in (1, 2))
    for row in range(4):
        values = np.unique(np.concatenate([x[row::4], y[row::4]]).astype(np.float64))
        step = 2.0 ** math.floor(math.log2(np.abs(values).min())) * dtype.epsilon
        assert len(values) == 3
        np.testing.assert_array_equal(np.diff(values), [step, step])
    assert not np.array_equal(x, y)


def test_even_numbers_are_one_number_and_drifting_ones_grow() -> None:
    x = extreme_values(rng(), "even", (30, 7), tg.f32)
    assert len(np.unique(x)) == 1 and x[0, 0] > 0
    second = extreme_values(rng(), "even", (30, 7), tg.f32, among=(1, 2))
    assert len(np.unique(second)) == 1 and math.frexp(float(second[0, 0]))[0] == 0.5
    drift = extreme_values(rng(), "drifting", (30, 7), tg.f32).reshape(-1)
    assert (np.diff(drift) > 0).all() and 1.9 < drift[-1] / drift[0] < 2


@pytest.mark.parametrize(("dtype", "bits"), [(tg.i32, 16), (tg.i64, 32)])
def test_indices_lie_beyond_the_table_so_that_fewer_bits_would_find_a_row(dtype: tg.DType, bits: int) -> None:
    node = tg.gather(tg.input("t", (50, 4), tg.f32), tg.input("i", (N,), dtype))
    point = Point((("n", 400),), 5, integers=True)
    ids = point_inputs(signature_of(node).graph, point)["x1"].astype(np.int64)
    low = ids & ((1 << bits) - 1)
    assert ((ids >= 1 << bits) & (low < 50)).any() and ((ids < 0) & (low < 50)).any() and ((ids >= 0) & (ids < 50)).any()


def test_where_indices_have_to_lie_within_they_do() -> None:
    node = tg.write_at_index(tg.input("s", (50, 4), tg.f32), tg.input("r", (1, 4), tg.f32), tg.input("i", (1,), tg.i64))
    graph = signature_of(node).graph
    (name,) = [n for n, x in graph.inputs.items() if x.dtype == tg.i64]
    for seed in range(20):
        ids = point_inputs(graph, Point((), seed, integers=True))[name]
        assert ((ids >= 0) & (ids < 50)).all()


def test_a_kernel_is_run_beside_itself_at_small_sizes_and_at_the_largest() -> None:
    signature = signature_of(tg.square(tg.input("x", (N, 24), tg.f32)))
    base = Point((("n", 17),), 1)
    points = [base, Point((("n", 4096),), 2), Point((("n", 4000),), 3, extreme="huge"), Point((("n", 90),), 4, form="windows")]
    found = concurrent_points(signature, base, points)
    assert [(p.binding["n"], p.beside, p.seed) for p in found] == [(17, True, 1), (4096, True, 2)]
    assert found[0].values == base and "one of many runs under load" in str(found[0])
