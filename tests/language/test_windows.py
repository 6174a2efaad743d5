"""Windows and pooling against torch: by their definitions, by `direct`, and their gradients; at padding, NaN, integers, dims."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import check, check_gradients
from tests.language.messages import said

F = torch.nn.functional
WAYS = [{}, {"stride": 2}, {"stride": (1, 3), "padding": (2, 1)}, {"dilation": (2, 1), "padding": 1}]
A = np.random.default_rng(3).normal(size=(2, 3, 7, 6))


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_windows_are_those_that_torch_unfolds_and_so_is_their_gradient(how):
    x, t = tg.input("x", A.shape), torch.tensor(A, requires_grad=True)
    node = tg.windows(x, (3, 2), **how)
    expected = F.unfold(t, (3, 2), **{"stride": 1, **how}).reshape(node.shape)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)


def test_windows_over_one_axis_with_another_value_before_than_behind():
    x = tg.input("x", (5,), tg.i32)
    found = tg.windows(x, (2,), padding=((1, 0),), value=-7)
    check(found, [[-7, 1, 2, 3, 4], [1, 2, 3, 4, 5]], x=np.arange(1, 6, dtype=np.int32))


@pytest.mark.parametrize("how", [{}, {"stride": 1}, {"stride": 2, "padding": 1},
                                 {"stride": (1, 2), "padding": (0, 1), "dilation": 2}], ids=str)
def test_max_pool_is_that_of_torch_and_so_is_its_gradient(how):
    x, t = tg.input("x", A.shape), torch.tensor(A, requires_grad=True)
    node, expected = tg.max_pool2d(x, 3, **how), F.max_pool2d(t, 3, **how)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)


@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": 1}], ids=str)
def test_avg_pool_is_that_of_torch_and_so_is_its_gradient(how, count_padding):
    x, t = tg.input("x", A.shape), torch.tensor(A, requires_grad=True)
    node = tg.avg_pool2d(x, (3, 2), count_padding=count_padding, **how)
    expected = F.avg_pool2d(t, (3, 2), count_include_pad=count_padding, **how)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)


def test_pooling_over_one_axis_is_that_of_torch():
    x, t = tg.input("x", A.shape), torch.tensor(A[0])
    check(tg.max_pool1d(x, 3)[0], F.max_pool1d(t, 3).numpy(), x=A)
    check(tg.avg_pool1d(x, 2, stride=1, padding=1)[0], F.avg_pool1d(t, 2, 1, 1).numpy(), x=A)


ROUNDED_UP = [{"size": 2}, {"size": 3, "stride": 2, "padding": 1}, {"size": 2, "stride": 3, "padding": 1},
              {"size": (3, 2), "stride": (2, 3)}]


@pytest.mark.parametrize("how", [*ROUNDED_UP, {"size": 2, "stride": 2, "dilation": 2}], ids=str)
def test_with_ceil_mode_the_last_window_counts_as_in_torch_and_so_do_the_indices(how):
    x, t = tg.input("x", A.shape), torch.tensor(A, requires_grad=True)
    expected, places = F.max_pool2d(t, how["size"], **{k: v for k, v in how.items() if k != "size"}, ceil_mode=True,
                                    return_indices=True)
    node = tg.max_pool2d(x, **how, ceil_mode=True)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)
    sizes = how["size"] if isinstance(how["size"], tuple) else (how["size"],) * 2
    check(tg.max_pool_indices(x, **{**how, "size": sizes}, ceil_mode=True), places.numpy(), x=A)


@pytest.mark.parametrize("count_padding", [True, False])
@pytest.mark.parametrize("how", ROUNDED_UP, ids=str)
def test_with_ceil_mode_a_mean_counts_what_torch_counts(how, count_padding):
    x, t = tg.input("x", A.shape), torch.tensor(A, requires_grad=True)
    theirs = {k: v for k, v in how.items() if k != "size"}
    node = tg.avg_pool2d(x, **how, count_padding=count_padding, ceil_mode=True)
    expected = F.avg_pool2d(t, how["size"], **theirs, count_include_pad=count_padding, ceil_mode=True)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)


def test_a_mean_of_every_other_element_is_the_convolution_with_equal_weights():
    x, ones = tg.input("x", (7, 6)), torch.ones(1, 1, 2, 3, dtype=torch.float64)
    seen, counted = (F.conv2d(t[None], ones, stride=2, padding=(0, 1), dilation=(3, 2))[0]
                     for t in (torch.tensor(A[0, :1]), torch.ones(1, 7, 6, dtype=torch.float64)))
    for count_padding, count in ((True, 6), (False, counted[0])):
        node = tg.avg_pool(x, (2, 3), stride=2, padding=(0, 1), dilation=(3, 2), count_padding=count_padding)
        check(node, (seen[0] / count).numpy(), x=A[0, 0])


def test_the_first_of_equal_elements_is_the_place_and_padding_never_is():
    low = np.array([-np.inf, 3.0, 3.0, np.nan, 1.0])
    check(tg.max_pool_indices(tg.input("x", (5,)), 2, padding=1), [0, 1, 3], x=low)


def test_with_ceil_mode_a_size_may_be_a_dim_where_no_window_starts_behind_the_end():
    h = tg.dim("h", 3, 64)
    x = tg.input("x", (h, 6))
    node = tg.max_pool2d(x, 3, stride=2, ceil_mode=True)
    for size in (6, 7):
        expected = F.max_pool2d(torch.tensor(A[0, :1, :size]), 3, 2, ceil_mode=True)[0]
        check(node, expected.numpy(), {"h": size}, x=A[0, 0, :size])
    with pytest.raises(ShapeError, match="depend on its size h"):
        tg.max_pool2d(x, 2, stride=3, ceil_mode=True)


def test_a_padded_maximum_of_integers_and_of_minus_infinity_is_one_of_them_and_nan_wins():
    small = np.full((2, 2), -5, np.int8)
    check(tg.max_pool2d(tg.input("x", (2, 2), tg.i8), 2, padding=1), small, x=small)
    low = np.array([-np.inf, np.nan, 1.0, 2.0])
    check(tg.max_pool1d(tg.input("x", (4,)), 2, stride=1, padding=1), [-np.inf, np.nan, np.nan, 2.0, 2.0], x=low)


def test_sizes_may_be_dims():
    n, h = tg.dim("n", 1, 9), tg.dim("h", 2, 64)
    x = tg.input("x", (n, h, 6))
    for node, expected in ((tg.max_pool2d(x, 2), F.max_pool2d(torch.tensor(A[0]), 2)),
                           (tg.avg_pool2d(x, 2, padding=1), F.avg_pool2d(torch.tensor(A[0]), 2, padding=1))):
        check(node, expected.numpy(), {"n": 3, "h": 7}, x=A[0])


def test_what_does_not_fit_is_refused_with_axis_sizes_and_a_fix():
    x = tg.input("x", (2, 3, 7, 6))
    text = said(lambda: tg.max_pool2d(x, (3, 7)), ShapeError)
    assert "max_pool2d of f32[2, 3, 7, 6]: a window covers 7 elements of axis 3, which has 6 with its padding" in text
    assert "fix: a smaller window or dilation, or more padding" in text
    with pytest.raises(AttributeValueError, match="some would see nothing but padding"):
        tg.max_pool2d(x, 2, padding=2)
    with pytest.raises(AttributeValueError, match="avg_pool2d: stride is 0"):
        tg.avg_pool2d(x, 2, stride=0)
    with pytest.raises(AttributeValueError, match=r"windows: dilation is \(1, 2\)"):
        tg.windows(x, (2, 2, 2), dilation=(1, 2))
    with pytest.raises(AttributeValueError, match=r"windows: padding is \(1, 2, 3\)"):
        tg.windows(x, (2, 2), padding=(1, 2, 3))
    with pytest.raises(AttributeValueError, match="the size is"):
        tg.windows(x, (1,) * 5)
    with pytest.raises(DTypeError, match="avg_pool takes float"):
        tg.avg_pool1d(tg.input("i", (4,), tg.i32), 2)
    with pytest.raises(ShapeError, match="2 axes are pooled"):
        tg.max_pool2d(tg.input("v", (4,)), 2)
