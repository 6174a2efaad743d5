"""Rolled, tiled, repeated tensors and diagonals against numpy, with gradients by torch, and of dims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tests.language.agreement import check, check_gradients

A = np.random.default_rng(31).normal(size=(3, 4, 5))
X = tg.input("x", A.shape, tg.f64)


@pytest.mark.parametrize("shift, axis", [(1, 0), (-2, 1), (7, -1), (3, None), ((1, -1), (2, 0)), (2, (0, 1)), (0, 1)], ids=str)
def test_roll_is_that_of_numpy_and_so_is_its_gradient(shift, axis):
    t = torch.tensor(A, requires_grad=True)
    node = tg.roll(X, shift, axis)
    check(node, np.roll(A, shift, axis), x=A)
    if axis is not None:
        axes = axis if isinstance(axis, tuple) else (axis,)
        check_gradients(node, t.roll(shift if isinstance(shift, tuple) else (shift,) * len(axes), axes), {"x": t}, x=A)


def test_a_dim_is_rolled_and_by_a_dim():
    n = tg.dim("n", 1, 9)
    node = tg.roll(tg.input("x", (n, 2), tg.f64), -2, 0)
    by_dim = tg.roll(tg.input("x", (n, 2), tg.f64), n - 1, 0)
    for size in (1, 2, 5):
        values = np.arange(2.0 * size).reshape(size, 2)
        check(node, np.roll(values, -2, 0), {"n": size}, x=values)
        check(by_dim, np.roll(values, size - 1, 0), {"n": size}, x=values)


@pytest.mark.parametrize("repeats", [2, (2, 1, 3), (1, 0, 2), (2, 1, 1, 2)], ids=str)
def test_tile_is_that_of_numpy(repeats):
    check(tg.tile(X, repeats), np.tile(A, repeats), x=A)


def test_tile_and_repeat_sum_their_gradients():
    t = torch.tensor(A, requires_grad=True)
    check_gradients(tg.tile(X, (2, 1, 3)), t.repeat(2, 1, 3), {"x": t}, x=A)
    for axis in (0, -1):
        t = torch.tensor(A, requires_grad=True)
        node, expected = tg.repeat_interleave(X, 3, axis), t.repeat_interleave(3, axis)
        check(node, expected.detach().numpy(), x=A)
        check_gradients(node, expected, {"x": t}, x=A)


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [((1, 2), (0, 3)), ((9, 0), (2, 11))], ids=str)
def test_padding_with_own_elements_is_that_of_numpy_also_beyond_the_axis(mode, padding):
    check(tg.pad_edges(X, padding, mode=mode), np.pad(A, ((0, 0), *padding), mode), x=A)
    single = A[:, :1, :1]
    check(tg.pad_edges(tg.input("x", single.shape, tg.f64), padding, mode=mode), np.pad(single, ((0, 0), *padding), mode), x=single)


@pytest.mark.parametrize("mode, theirs", [("edge", "replicate"), ("wrap", "circular"), ("reflect", "reflect")])
def test_the_gradient_of_padding_with_own_elements_is_torchs_and_sizes_may_be_dims(mode, theirs):
    n = tg.dim("n", 2, 9)
    t = torch.tensor(A, requires_grad=True)
    expected = torch.nn.functional.pad(t, (2, 1), mode=theirs)
    check_gradients(tg.pad_edges(X, [(2, 1)], mode=mode), expected, {"x": t}, x=A)
    check(tg.pad_edges(tg.input("x", (3, 4, n), tg.f64), [(2, 1)], mode=mode), expected.detach().numpy(), {"n": 5}, x=A)


@pytest.mark.parametrize("offset, axes", [(0, (0, 1)), (1, (0, 2)), (-2, (1, 0)), (3, (-2, -1)), (4, (0, 1))], ids=str)
def test_a_diagonal_and_its_sum_are_those_of_numpy_and_so_is_the_gradient(offset, axes):
    t = torch.tensor(A, requires_grad=True)
    node, expected = tg.diagonal(X, offset, *axes), t.diagonal(offset, *axes)
    check(node, np.diagonal(A, offset, *axes), x=A)
    check_gradients(node, expected, {"x": t}, x=A)
    check(tg.trace(X, offset, *axes), np.trace(A, offset, *axes), x=A)


def test_eye_is_that_of_numpy_and_a_diagonal_may_be_of_dims():
    n = tg.dim("n", 2, 9)
    for dtype in (tg.f32, tg.bool_, tg.i8):
        check(tg.eye(3, 5, 1, dtype), np.eye(3, 5, 1, dtype.numpy))
    check(tg.eye(n), np.eye(4), {"n": 4})
    check(tg.diagonal(tg.input("x", (n, 4), tg.f64), 1), np.diagonal(A[:, :, 0], 1), {"n": 3}, x=A[:, :, 0])


def test_what_makes_no_sense_is_refused():
    for call, text in ((lambda: tg.roll(X, (1, 2), 0), "shift is"), (lambda: tg.roll(X, 1.5, 0), "shift is 1.5"),
                       (lambda: tg.tile(X, (2, -1)), "repeats is"), (lambda: tg.pad_edges(X, [(1, -1)]), "padding is"),
                       (lambda: tg.pad_edges(X, [(1, 1)], mode="mirror"), "mode is 'mirror'"),
                       (lambda: tg.repeat_interleave(X, 1.5, 0), "repeats is"),
                       (lambda: tg.diagonal(X, 0, 1, 1), "two axes"), (lambda: tg.diagonal(X, 0, 0, 3), "axis2 3 of a tensor")):
        with pytest.raises(AttributeValueError, match=text):
            call()
    with pytest.raises(ShapeError, match="axis 1 has 0 elements"):
        tg.pad_edges(tg.input("x", (2, 0)), [(1, 1)])
    with pytest.raises(ShapeError, match="there is none at the offset 5"):
        tg.diagonal(X, 5)
