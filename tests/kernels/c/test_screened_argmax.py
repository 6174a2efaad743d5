"""The screened argmax is exact: whatever the weights, the index and value are those of the product in full."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.c import screened_argmax
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.registry import kernel_named
from tensor_graphs.language.dtypes import bf16, f32
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tests.plans import plan_of

BF16 = ml_dtypes.bfloat16


def compiled(m: int, k: int, weight: np.ndarray, dtype: tg.DType = f32) -> CompiledGraph:
    n = tg.dim("n", 0, 64)
    x = tg.input("x", (n, k), dtype)
    w = tg.parameter("w", (m, k), bf16 if weight.dtype == BF16 else f32)
    value, index = tg.linear_argmax(x, w)
    return bind(plan_of(tg.graph({"value": value, "index": index}), ("c",)), {"w": weight})


def check(x: np.ndarray, weight: np.ndarray) -> None:
    """Exact arithmetic in the reference: the products of these tests are sums that float64 holds without rounding, or ties."""
    made = compiled(*weight.shape, weight, tg.f64 if x.dtype == np.float64 else f32).run({"x": x})
    with np.errstate(all="ignore"):
        full = x.astype(np.float64) @ weight.astype(np.float64).T
    expected = full.argmax(axis=1)
    np.testing.assert_array_equal(made["index"], expected)
    np.testing.assert_array_equal(made["value"], full[np.arange(len(x)), expected].astype(x.dtype))


def whole(rng: np.random.Generator, *shape: int, most: int = 200) -> np.ndarray:
    return rng.integers(-most, most + 1, shape).astype(np.float32)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("weight_kind", [np.float32, BF16])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (16, 64), (17, 65), (333, 100), (2000, 1500)])
def test_whole_numbers_of_every_shape(shape: tuple[int, int], weight_kind: type, kind: type) -> None:
    rng = np.random.default_rng(shape[0])
    for rows in (1, 3, 6):
        check(whole(rng, rows, shape[1]).astype(kind), whole(rng, *shape, most=100).astype(weight_kind))


def test_no_rows_of_x_and_rows_without_elements() -> None:
    check(np.zeros((0, 8), np.float32), np.ones((3, 8), np.float32))
    check(np.zeros((2, 0), np.float32), np.ones((3, 0), np.float32))


def test_the_first_of_equals_wins_even_when_all_are_equal() -> None:
    rng = np.random.default_rng(1)
    x = whole(rng, 5, 96)
    check(x, np.zeros((300, 96), np.float32))
    check(x, np.tile(whole(rng, 1, 96), (300, 1)))
    check(np.zeros((1, 96), np.float32), whole(rng, 300, 96))


def test_rows_that_differ_by_less_than_a_code() -> None:
    """Every row has the same codes nearly; only the exact products tell them apart."""
    rng = np.random.default_rng(2)
    base = whole(rng, 1, 256, most=1000)
    weight = np.tile(base, (500, 1)) + rng.integers(-2, 3, (500, 256)).astype(np.float32)
    check(whole(rng, 4, 256, most=1000), weight)


def test_rows_of_very_different_size_and_single_large_weights() -> None:
    rng = np.random.default_rng(3)
    weight = whole(rng, 400, 128, most=4)
    weight[::7] *= 2.0 ** rng.integers(-20, 8, (58, 1))
    weight[np.arange(400), rng.integers(0, 128, 400)] += 4096
    x = whole(rng, 3, 128, most=4)
    x[:, 5] = 2.0 ** 12
    check(x, weight)


@pytest.mark.parametrize("scale", [2.0 ** -140, 2.0 ** -80, 2.0 ** 80])
def test_numbers_near_the_ends_of_the_range(scale: float) -> None:
    rng = np.random.default_rng(4)
    check(whole(rng, 2, 64).astype(np.float64) * scale, whole(rng, 100, 64) * np.float32(min(scale, 2.0 ** 80)))


@pytest.mark.parametrize("where", ["x", "weight", "both"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_not_finite_is_met_as_in_the_product(value: float, where: str) -> None:
    rng = np.random.default_rng(5)
    x, weight = whole(rng, 3, 40, most=3), whole(rng, 90, 40, most=3)
    if where in ("x", "both"):
        x[1, 7] = value
    if where in ("weight", "both"):
        weight[33, 9] = weight[71, 9] = value
    made = compiled(90, 40, weight).run({"x": x})
    with np.errstate(all="ignore"):
        full = x.astype(np.float64) @ weight.astype(np.float64).T
        expected = full.argmax(axis=1)
        np.testing.assert_array_equal(made["index"], expected)
        np.testing.assert_array_equal(made["value"], full[np.arange(3), expected].astype(np.float32))


def test_random_weights_in_their_many() -> None:
    rng = np.random.default_rng(6)
    weight = rng.standard_normal((20000, 192)).astype(np.float32)
    x = rng.standard_normal((9, 192)).astype(np.float32)
    made = compiled(20000, 192, weight).run({"x": x})
    full = x.astype(np.float64) @ weight.astype(np.float64).T
    np.testing.assert_array_equal(made["index"], full.argmax(axis=1))


def test_a_new_weight_is_screened_anew() -> None:
    rng = np.random.default_rng(7)
    x, first, second = whole(rng, 1, 64), whole(rng, 50, 64), whole(rng, 50, 64)
    made = compiled(50, 64, first)
    before = int(made.run({"x": x})["index"][0])
    made.rebind("w", second)
    assert (before, int(made.run({"x": x})["index"][0])) == ((x @ first.T).argmax(), (x @ second.T).argmax())


def test_what_the_kernel_does_not_take() -> None:
    kernel, n = kernel_named("c.linear_argmax", ("c",)), tg.dim("n", 1, 4)

    def why(x: tg.DType, w: tg.DType, rows: object = 5) -> str | None:
        value, _ = tg.linear_argmax(tg.input("x", (2, 3), x), tg.input("w", (rows, 3), w))
        return kernel.accepts(Spec.of(value.inputs[0]))

    assert why(bf16, f32) == "f32 or f64 activations only"
    assert why(f32, tg.f16) == "f32 or bf16 weights only"
    assert why(f32, f32, n) == "weights of fixed shape only"
    long = tg.linear_argmax(tg.input("x", (1, screened_argmax.LONGEST + 1)), tg.input("w", (1, screened_argmax.LONGEST + 1)))[0]
    assert kernel.accepts(Spec.of(long.inputs[0])) == "rows of at most 1048576 elements"


def test_few_bytes_move_and_the_copy_of_the_weight_is_a_quarter_of_it() -> None:
    value, _ = tg.linear_argmax(tg.input("x", (1, 640)), tg.parameter("w", (262144, 640)))
    kernel, spec = kernel_named("c.linear_argmax", ("c",)), Spec.of(value.inputs[0])
    assert kernel.traffic is not None and kernel.traffic(spec) == 262144 * (640 + 12 + 4)
    plan = plan_of(tg.graph({"value": value}), ("c",))
    assert plan.memory().bound == 262144 * (640 + 12) and plan.memory().scratch < 2_000_000
