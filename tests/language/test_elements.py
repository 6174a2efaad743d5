"""Single elements by index against numpy and torch: along an axis, by tuples of indices, out of range, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import check, check_gradients

RNG = np.random.default_rng(29)
A = RNG.normal(size=(3, 4, 5))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_along_an_axis_are_those_of_numpy_and_so_is_the_gradient(axis: int) -> None:
    shape = tuple(7 if i == axis % 3 else s for i, s in enumerate(A.shape))
    index = RNG.integers(0, A.shape[axis], shape)
    t = torch.tensor(A, requires_grad=True)
    node, expected = tg.take_along_axis(tg.input("x", A.shape, tg.f64), tg.input("i", shape, tg.i64), axis), t.gather(
        axis, torch.tensor(index))
    check(node, np.take_along_axis(A, index, axis), x=A, i=index)
    check_gradients(node, expected, {"x": t}, x=A, i=index)


def test_an_index_may_be_shorter_and_out_of_range_reads_0() -> None:
    index = np.array([[-1, 0, 3], [5, 2, 1]], np.int8)
    node = tg.take_along_axis(tg.input("x", (3, 5), tg.f64), tg.input("i", index.shape, tg.i8), 1)
    inside = (index >= 0) & (index < 5)
    check(node, np.where(inside, np.take_along_axis(A[:2, 0], np.where(inside, index, 0), 1), 0), x=A[:, 0], i=index)


@pytest.mark.parametrize("mode, theirs", [("add", "sum"), ("max", "amax"), ("min", "amin")])
@pytest.mark.parametrize("axis", [0, 1])
def test_writing_along_an_axis_is_torchs_scatter_reduce_and_so_are_its_gradients(axis: int, mode: str, theirs: str) -> None:
    shape = (2, 4) if axis == 0 else (3, 6)
    values = {"x": RNG.normal(size=(3, 4)), "u": RNG.normal(size=shape)}
    index = RNG.integers(0, (3, 4)[axis], shape)
    x, u = (tg.input(n, v.shape, tg.f64) for n, v in values.items())
    t = {n: torch.tensor(v, requires_grad=True) for n, v in values.items()}
    node = tg.put_along_axis(x, tg.input("i", shape, tg.i64), u, axis, mode=mode)
    expected = t["x"].scatter_reduce(axis, torch.tensor(index), t["u"], theirs)
    check(node, expected.detach().numpy(), i=index, **values)
    check_gradients(node, expected, t, i=index, **values)


def test_setting_along_an_axis_is_numpys_and_out_of_range_is_dropped() -> None:
    index = np.array([[2], [0], [3], [-1]], np.int32)
    x, values = np.zeros((4, 3), np.int32), np.arange(1, 5, dtype=np.int32)[:, None]
    expected = x.copy()
    np.put_along_axis(expected[:2], index[:2], values[:2], 1)
    node = tg.put_along_axis(tg.input("x", x.shape, tg.i32), tg.input("i", (4, 1), tg.i32), tg.input("v", (4, 1), tg.i32))
    check(node, expected, x=x, i=index, v=values)
    low = tg.put_along_axis(tg.input("x", (2,), tg.i32), tg.input("i", (3,), tg.i32), tg.input("v", (3,), tg.i32), mode="min")
    ends = np.array([np.iinfo(np.int32).min, 5], np.int32)
    check(low, [ends[0], 4], x=ends, i=np.array([0, 1, 1], np.int32), v=np.array([7, 4, 9], np.int32))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tuples_of_indices_read_and_write_as_in_numpy_with_gradients(count: int) -> None:
    index = np.stack([RNG.integers(0, s, (2, 3)) for s in A.shape[:count]], -1)
    x, i = tg.input("x", A.shape, tg.f64), tg.input("i", index.shape, tg.i64)
    t = torch.tensor(A, requires_grad=True)
    where: Any = tuple(torch.tensor(index[..., k]) for k in range(count))
    check(tg.gather_nd(x, i), A[tuple(np.moveaxis(index, -1, 0))], x=A, i=index)
    check_gradients(tg.gather_nd(x, i), t[where], {"x": t}, x=A, i=index)
    updates = RNG.normal(size=(2, 3, *A.shape[count:]))
    ts = {"x": torch.tensor(A, requires_grad=True), "u": torch.tensor(updates, requires_grad=True)}
    node = tg.scatter_nd(x, i, tg.input("u", updates.shape, tg.f64), mode="add")
    expected = ts["x"].index_put(where, ts["u"], accumulate=True)
    check(node, expected.detach().numpy(), x=A, i=index, u=updates)
    check_gradients(node, expected, ts, x=A, i=index, u=updates)


def test_a_tuple_that_is_out_of_range_in_one_place_reads_0_and_sizes_may_be_dims() -> None:
    n = tg.dim("n", 1, 9)
    index = np.array([[0, 4], [1, -1], [2, 1], [-1, 1]], np.int32)
    node = tg.gather_nd(tg.input("x", (n, 4), tg.f64), tg.input("i", (4, 2), tg.i32))
    check(node, [0, 0, A[2, 1, 0], 0], {"n": 3}, x=A[:, :, 0], i=index)


def test_what_does_not_fit_is_refused() -> None:
    x, i = tg.input("x", (3, 4)), tg.input("i", (4, 4), tg.i32)
    with pytest.raises(ShapeError, match=r"take_along_axis of f32\[3, 4\] at i32\[4, 4\] along axis 1"):
        tg.take_along_axis(x, i, 1)
    with pytest.raises(ShapeError, match="axis 0 has two sizes"):
        tg.put_along_axis(x, i, tg.input("u", (3, 4)), 0)
    with pytest.raises(AttributeValueError, match="mode is 'mul'"):
        tg.put_along_axis(x, i, tg.input("u", (4, 4)), 0, mode="mul")
    with pytest.raises(DTypeError, match="take_along_axis \\(index\\) takes int"):
        tg.take_along_axis(x, x)
    with pytest.raises(ShapeError, match=r"index\[…, r\] with r from 1 to 2"):
        tg.gather_nd(x, tg.input("j", (2, 3), tg.i32))
    with pytest.raises(ShapeError, match=r"the updates are f32\[2\]"):
        tg.scatter_nd(x, tg.input("j", (2, 1), tg.i32), tg.input("u", (2,)))
