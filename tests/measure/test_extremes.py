"""Extreme values are what their kind says, in every dtype, the same for a seed, and at sizes on either side of tiles."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.dtypes import DTYPES, f32
from tensor_graphs.measure.points.extremes import Extreme, extreme_sizes, extreme_values
from tensor_graphs.measure.points.inputs import Point, point_inputs

KINDS: tuple[Extreme, ...] = get_args(Extreme)
FLOATS = [t for t in DTYPES.values() if t.kind == "float"]


def rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=4))


def of(kind: Extreme, shape: tuple[int, ...] = (40, 24), positive: bool = False) -> np.ndarray:
    return extreme_values(rng(), kind, shape, f32, positive=positive).astype(np.float64)


def test_large_values_have_both_signs_and_the_edge_of_exp() -> None:
    assert set(np.unique(of("large"))) == {-1e4, -88, -1, 1, 88, 1e4}
    assert np.exp(88.0) < np.finfo(np.float32).max < np.exp(89.0)


def test_equal_values_are_rows_of_one_number_and_rows_in_which_the_maximum_comes_more_than_once() -> None:
    x = of("equal")
    ties, constant = x[::2], x[1::2]
    assert (constant == constant[:, :1]).all() and len(np.unique(constant)) > 10
    assert (constant > 0).any() and (constant < 0).any() and (x != 0).all()
    assert len(np.unique(ties)) == 4 and np.mean(np.sum(ties == ties.max(axis=1, keepdims=True), axis=1) > 1) > 0.9


def test_wide_values_span_four_tenths_of_the_exponents_and_every_other_row_is_denormal() -> None:
    x = of("wide")
    wide, denormal = x[::2], x[1::2]
    assert np.abs(wide).max() > 2.0 ** 48 and np.abs(wide).min() < 2.0 ** -48 and (wide < 0).any() and (wide > 0).any()
    assert (np.abs(denormal) <= f32.smallest_normal).all() and np.mean(denormal != 0) > 0.9
    line = of("wide", (40,))
    assert (np.abs(line[1::2]) <= f32.smallest_normal).all() and (np.abs(line[::2]) > f32.smallest_normal).all()


def test_the_bands_of_a_sweep_are_narrow_and_leave_no_gap_however_the_array_lies() -> None:
    x = of("sweep", (257, 24))
    whole, magnitudes = x[::2], np.log2(np.abs(x[1::2]))
    for rows, reach, share in ((whole, 100, 129), (magnitudes, 20, 128)):
        assert (np.ptp(rows, axis=1) < 2 * reach / share * 1.01).all()
        bands = np.sort(rows.mean(axis=1))
        assert np.diff(bands).max() < 4 * reach / share and bands[0] < -0.97 * reach and bands[-1] > 0.97 * reach
    assert (x[1::2] < 0).any() and (x[1::2] > 0).any()
    line = of("sweep", (257,))
    assert np.diff(np.sort(line[::2])).max() < 4 * 100 / 129


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_finite_in_every_dtype_and_shape_and_positive_where_they_have_to_be(kind: Extreme) -> None:
    for dtype in FLOATS:
        for shape in ((), (0,), (3, 0), (1,), (2, 3, 5)):
            x = extreme_values(rng(), kind, shape, dtype)
            assert x.shape == shape and x.dtype == dtype.numpy and np.isfinite(x.astype(np.float64)).all()
    assert (of(kind, positive=True) >= 0).all()


def test_sizes_lie_on_either_side_of_tiles_within_bounds() -> None:
    n, m = tg.dim("n", 1, 4096), tg.dim("m", 8, 50)
    found = [extreme_sizes({"n": n, "m": m}, kind) for kind in KINDS]
    assert {s["m"] for s in found} | {s["n"] for s in found} >= {1, 31, 33, 65}
    assert all(8 <= s["m"] <= 50 and s["n"] != s["m"] for s in found)
    assert extreme_sizes({"n": n, "m": m}, "wide", small=True) == {"m": 8, "n": 2} and extreme_sizes({}, "wide") == {}


def test_a_point_of_a_kind_has_it_in_all_floats_and_leaves_integers_legal() -> None:
    node = tg.gather(tg.input("t", (10, 4), tg.f32), tg.input("i", (7,), tg.i32), axis=0)
    graph = signature_of(node).graph
    point = Point((), 5, extreme="large")
    one, again = point_inputs(graph, point), point_inputs(graph, point)
    assert set(np.unique(np.abs(one["x0"]))) <= {1, 88, 1e4} and one["x1"].min() >= -1 and one["x1"].max() <= 10
    np.testing.assert_array_equal(one["x0"], again["x0"])
    assert point.values == point and point != Point((), 5) and "large values" in str(point)
    logs = point_inputs(signature_of(tg.log2(tg.input("x", (9, 8), tg.f32))).graph, Point((), 5, extreme="wide"))
    assert (logs["x0"] > 0).all()


def test_of_several_huge_operands_one_stands_alone_in_every_fourth_row() -> None:
    """x + y shows nothing of an x that is a millionth of y."""
    node = tg.input("x", (129, 33)) + tg.input("y", (129, 33))
    made = point_inputs(signature_of(node).graph, Point((), 5, extreme="huge"))
    zero = np.stack([(made[name] == 0).all(axis=1) for name in ("x0", "x1")])
    alone = zero[:, 1::4]
    assert (alone.sum(axis=0) == 1).all() and (alone.sum(axis=1) == 16).all() and zero.sum() == 32
