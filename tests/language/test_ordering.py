"""Sorting, running values and searchsorted against numpy and torch: ties, NaN, infinities, integers, dims, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import check, check_gradients

RNG = np.random.default_rng(23)
INF, NAN = float("inf"), float("nan")
A = RNG.normal(size=(3, 5, 4))
TIES = np.array([[2.0, NAN, 1, 2, INF, -INF, NAN, 1, 2], [0, 0, 0, -1, 0, 3, 3, -1, 0]])
WHOLE = RNG.integers(-3, 4, size=(4, 7)).astype(np.int8)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_the_stable_one_of_torch_and_so_is_its_gradient(axis: int, descending: bool) -> None:
    t = torch.tensor(A, requires_grad=True)
    expected, places = torch.sort(t, dim=axis, descending=descending, stable=True)
    values, actual = tg.sort(tg.input("x", A.shape, tg.f64), axis, descending=descending)
    check(values, expected.detach().numpy(), x=A)
    check(actual, places.numpy(), x=A)
    check_gradients(values, expected, {"x": t}, x=A)


@pytest.mark.parametrize("values", [TIES, WHOLE, WHOLE.view(np.uint8)], ids=["floats", "i8", "u8"])
def test_equal_elements_keep_their_order_and_nan_is_last(values: np.ndarray) -> None:
    x = tg.input("x", values.shape, tg.parse_dtype(values.dtype.name))
    check(tg.sort(x)[0], np.sort(values, axis=-1), x=values)
    check(tg.argsort(x), np.argsort(values, axis=-1, kind="stable"), x=values)
    down = torch.sort(torch.tensor(values), descending=True, stable=True)
    check(tg.sort(x, descending=True)[1], down.indices.numpy(), x=values)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_topk_takes_the_largest_or_the_smallest_along_any_axis(axis: int, largest: bool) -> None:
    t = torch.tensor(A, requires_grad=True)
    expected, places = torch.topk(t, 2, axis, largest)
    values, actual = tg.topk(tg.input("x", A.shape, tg.f64), axis, k=2, largest=largest)
    check(values, expected.detach().numpy(), x=A)
    check(actual, places.numpy(), x=A)
    check_gradients(values, expected, {"x": t}, x=A)


RUNNING: dict[str, Any] = {"cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", RUNNING)
def test_a_running_value_is_that_of_torch_and_so_is_its_gradient(name: str, axis: int) -> None:
    values = np.where(RNG.random(size=A.shape) < 0.1, 0.0, A)                  # a product of some zeros has a gradient too
    t = torch.tensor(values, requires_grad=True)
    node, expected = getattr(tg, name)(tg.input("x", A.shape, tg.f64), axis), RUNNING[name](t, axis)
    check(node, expected.detach().numpy(), x=values)
    check_gradients(node, expected, {"x": t}, x=values)


def test_a_running_sum_of_exponentials_overflows_nowhere_and_begins_at_minus_infinity() -> None:
    values = np.array([-INF, -INF, 800.0, 801.0, -3.0, INF, 2.0])
    check(tg.logcumsumexp(tg.input("x", (7,), tg.f64)), torch.logcumsumexp(torch.tensor(values), 0).numpy(), x=values)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("values", [A, TIES, WHOLE], ids=["normal", "ties", "i8"])
def test_a_running_extreme_and_its_place_are_those_of_torch_and_so_is_its_gradient(name: str, values: np.ndarray) -> None:
    for axis in range(values.ndim):
        t = torch.tensor(values, requires_grad=values.dtype.kind == "f")
        expected, places = getattr(torch, name)(t, axis)
        node, actual = getattr(tg, name)(tg.input("x", values.shape, tg.parse_dtype(values.dtype.name)), axis)
        check(node, expected.detach().numpy(), x=values)
        check(actual, places.numpy(), x=values)
        if values is A:
            check_gradients(node, expected, {"x": t}, x=values)


def test_the_length_of_a_running_value_may_be_a_dim_or_nothing() -> None:
    n = tg.dim("n", 0, 20)
    for name, numpys in (("cumprod", np.cumprod), ("cummax", np.maximum.accumulate)):
        node = getattr(tg, name)(tg.input("x", (n,), tg.f64), 0)
        node = node[0] if isinstance(node, tuple) else node
        for size in (0, 1, 5, 16, 20):
            values = RNG.normal(size=size)
            check(node, numpys(values) if size else values, {"n": size}, x=values)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_is_that_of_numpy_and_with_rows_that_of_torch(right: bool) -> None:
    side: Any = "right" if right else "left"
    bounds = np.array([-INF, -1, 0, 0, 2.5, INF, NAN, NAN])
    values = np.array([[-INF, -1, -0.5, 0], [3, INF, NAN, 2.5]])
    node = tg.searchsorted(tg.input("b", bounds.shape, tg.f64), tg.input("v", values.shape, tg.f64), right=right)
    check(node, np.searchsorted(bounds, values, side), b=bounds, v=values)
    rows, inside = np.sort(RNG.integers(0, 9, (3, 5)).astype(np.int32), 1), RNG.integers(0, 9, (3, 4)).astype(np.int32)
    node = tg.searchsorted(tg.input("b", rows.shape, tg.i32), tg.input("v", inside.shape, tg.i32), right=right)
    check(node, torch.searchsorted(torch.tensor(rows), torch.tensor(inside), right=right).numpy(), b=rows, v=inside)


def test_what_makes_no_sense_is_refused() -> None:
    x = tg.input("x", (2, tg.dim("n", 1, 9)))
    with pytest.raises(ShapeError, match=r"sort of f32\[2, n\]: axis 1 has the size n"):
        tg.sort(x)
    with pytest.raises(ShapeError, match="topk of the smallest"):
        tg.topk(x, k=1, largest=False)
    for k in (3, -1, True):
        with pytest.raises(AttributeValueError, match="an int from 0 to 2"):
            tg.topk(x, 0, k=k, largest=False)
    with pytest.raises(ShapeError, match="there are no boundaries for each row"):
        tg.searchsorted(tg.input("b", (3, 4)), tg.input("v", (2, 4)))
    for build in (tg.sort, tg.cumprod, tg.cummax, tg.cummin, tg.logcumsumexp):
        with pytest.raises(DTypeError, match=f"{build.__name__} takes float"):
            build(tg.input("b", (3,), tg.bool_))
