"""Convolutions against torch: by the definition, by `direct`, and their gradients; grouped, strided, dilated, of dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tests.language.agreement import check, check_gradients
from tests.language.messages import said

F = torch.nn.functional
RNG = np.random.default_rng(5)
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), (4, 3, 3), {"padding": 1}),
    ((2, 4, 9), (6, 2, 2), {"stride": 2, "groups": 2}),
    ((2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
    ((1, 3, 8, 7), (2, 3, 3, 2), {"stride": (2, 3), "padding": (2, 0), "dilation": (1, 2)}),
    ((2, 4, 5, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4}),                       # depthwise
    ((2, 2, 5, 5), (6, 1, 3, 3), {"stride": 2, "groups": 2}),                        # and with three outputs for each channel
    ((2, 5, 3, 4), (3, 5, 1, 1), {}),                                                # pointwise
    ((1, 2, 4, 4, 3), (3, 2, 2, 3, 1), {"padding": (0, 1, 0), "stride": (1, 1, 2)}),
]


@pytest.mark.parametrize("shape, kernel, how", CASES, ids=lambda v: str(v))
def test_a_convolution_is_that_of_torch_and_so_are_its_gradients(shape, kernel, how):
    axes = len(shape) - 2
    values = {"x": RNG.normal(size=shape), "w": RNG.normal(size=kernel), "b": RNG.normal(size=kernel[0])}
    x, w, b = (tg.input(name, v.shape) for name, v in values.items())
    t = {name: torch.tensor(v, requires_grad=True) for name, v in values.items()}
    node = getattr(tg, f"conv{axes}d")(x, w, b, **how)
    expected = getattr(F, f"conv{axes}d")(t["x"], t["w"], t["b"], **how)
    check(node, expected.detach().numpy(), **values)
    check_gradients(node, expected, t, **values)
    assert tg.conv(x, w, b, **how) is node


TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), (3, 4, 3), {}),
    ((2, 4, 5), (4, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    ((1, 3, 4, 5), (3, 2, 3, 2), {"stride": (2, 3), "padding": (2, 0), "dilation": (1, 2)}),
    ((2, 4, 4, 4), (4, 1, 2, 2), {"groups": 4, "stride": 3, "padding": 3, "dilation": 2}),      # the padding cuts x itself
    ((1, 2, 3, 3, 2), (2, 2, 2, 3, 1), {"stride": 2}),
    ((2, 2, 4, 3), (2, 6, 5, 2), {"stride": (3, 4), "padding": (4, 1), "output_padding": (2, 3)}),    # x does not reach all places
]


@pytest.mark.parametrize("shape, kernel, how", TRANSPOSED, ids=lambda v: str(v))
def test_a_transposed_convolution_is_that_of_torch_and_so_are_its_gradients(shape, kernel, how):
    values = {"x": RNG.normal(size=shape), "w": RNG.normal(size=kernel), "b": RNG.normal(size=kernel[1] * how.get("groups", 1))}
    x, w, b = (tg.input(name, v.shape) for name, v in values.items())
    t = {name: torch.tensor(v, requires_grad=True) for name, v in values.items()}
    node = tg.conv_transpose(x, w, b, **how)
    expected = getattr(F, f"conv_transpose{len(shape) - 2}d")(t["x"], t["w"], t["b"], **how)
    check(node, expected.detach().numpy(), **values)
    check_gradients(node, expected, t, **values)


def test_a_transposed_convolution_multiplies_no_zeros_and_keeps_infinities_where_they_belong():
    x, w = np.array([[[np.inf, 1.0, 2.0]]]), np.ones((1, 1, 2))
    node = tg.conv_transpose(tg.input("x", x.shape), tg.input("w", w.shape), stride=3)
    check(node, F.conv_transpose1d(torch.tensor(x), torch.tensor(w), stride=3).numpy(), x=x, w=w)
    y = tg.conv_transpose(tg.input("x", (1, 8, 10, 10)), tg.input("w", (8, 4, 4, 4)), stride=2, padding=1)
    products = [n for n in tg.graph(y).nodes if n.op.name == "conv"]
    assert sum(n.shape[2] * n.shape[3] * n.inputs[1].shape[2] * n.inputs[1].shape[3] for n in products) == 10 * 10 * 4 * 4


def test_a_transposed_convolution_of_dims_is_the_gradient_of_the_convolution():
    n = tg.dim("n", 2, 9)
    x, w = tg.input("x", (1, 2, n)), tg.input("w", (3, 2, 3))
    y = tg.conv1d(x, w, stride=2, padding=1)
    g = tg.input("g", y.shape)
    (to_x,) = tg.vjp([y], [g], [x])
    back = tg.conv_transpose(g, w, stride=2, padding=1, output_padding=1)
    values = {"g": RNG.normal(size=(1, 3, 3)), "w": RNG.normal(size=(3, 2, 3))}
    check(to_x - back[:, :, :n], np.zeros((1, 2, 6)), {"n": 6}, x=np.zeros((1, 2, 6)), **values)


def test_a_transposed_convolution_that_does_not_fit_is_refused():
    x, w = tg.input("x", (2, 4, 5)), tg.input("w", (4, 3, 3))
    with pytest.raises(ShapeError, match="x's channels in axis 0"):
        tg.conv_transpose(x, tg.input("v", (3, 4, 3)))
    with pytest.raises(AttributeValueError, match="groups is 3"):
        tg.conv_transpose(x, w, groups=3)
    with pytest.raises(AttributeValueError, match=r"output_padding \(1,\) with stride \(1,\) and dilation \(1,\)"):
        tg.conv_transpose(x, w, output_padding=1)
    with pytest.raises(ShapeError, match="cuts all of axis 2 off"):
        tg.conv_transpose(x, w, padding=9)


def test_padding_may_differ_before_and_behind():
    x, w = RNG.normal(size=(1, 2, 5)), RNG.normal(size=(3, 2, 3))
    expected = F.conv1d(F.pad(torch.tensor(x), (2, 0)), torch.tensor(w))
    check(tg.conv1d(tg.input("x", x.shape), tg.input("w", w.shape), padding=((2, 0),)), expected.numpy(), x=x, w=w)


def test_the_number_of_images_and_their_height_may_be_dims():
    n, h = tg.dim("n", 1, 4), tg.dim("h", 3, 64)
    x, w = RNG.normal(size=(2, 3, 7, 6)), RNG.normal(size=(4, 3, 3, 3))
    node = tg.conv2d(tg.input("x", (n, 3, h, 6)), tg.input("w", w.shape), stride=2, padding=1)
    tx = torch.tensor(x, requires_grad=True)
    expected = F.conv2d(tx, torch.tensor(w), stride=2, padding=1)
    check(node, expected.detach().numpy(), {"n": 2, "h": 7}, x=x, w=w)
    (to_x,) = tg.grad(node.sum(), [tg.graph(node).inputs["x"]])
    expected.sum().backward()
    assert tx.grad is not None
    check(to_x, tx.grad.numpy(), {"n": 2, "h": 7}, x=x, w=w)


def test_a_weight_of_another_dtype_is_cast_and_narrow_floats_are_summed_in_f32():
    x = tg.input("x", (1, 64, 4), tg.bf16)
    assert tg.conv1d(x, tg.input("w", (2, 64, 3))).dtype == tg.bf16
    ones = np.ones((1, 64, 4)).astype(tg.bf16.numpy)
    found = tg.interpret(tg.graph(tg.conv1d(x, tg.input("w", (2, 64, 3)), padding=1)),
                         {"x": ones, "w": np.ones((2, 64, 3), np.float32)}, mode="as_written").outputs
    np.testing.assert_array_equal(np.asarray(next(iter(found.values())), float)[0, 0], [128, 192, 192, 128])


def test_what_does_not_fit_is_refused_with_axis_sizes_and_a_fix():
    x, w = tg.input("x", (2, 4, 5, 5)), tg.input("w", (6, 4, 3, 3))
    text = said(lambda: tg.conv2d(x, tg.input("v", (6, 3, 3, 3))), ShapeError)
    assert ("conv2d of f32[2, 4, 5, 5] and the weight f32[6, 3, 3, 3] in 1 group: axis 1 of the weight has the size 3, "
            "4 / 1 is needed") in text
    assert "fix: weight[out, c / groups, …] for x[n, c, …]" in text
    with pytest.raises(ShapeError, match="6 outputs are not a multiple of 4 groups"):
        tg.conv2d(x, tg.input("v", (6, 1, 3, 3)), groups=4)
    with pytest.raises(ShapeError, match="a window covers 9 elements of axis 2, which has 5 with its padding"):
        tg.conv2d(x, w, dilation=4)
    with pytest.raises(ShapeError, match="conv1d of f32"):
        tg.conv1d(x, w)
    with pytest.raises(ShapeError, match="they need as many axes"):
        tg.conv2d(x, tg.input("v", (6, 4, 3)))
    with pytest.raises(ShapeError, match="the bias is f32"):
        tg.conv2d(x, w, tg.input("b", (4,)))
    with pytest.raises(AttributeValueError, match="groups is 0"):
        tg.conv2d(x, w, groups=0)
    with pytest.raises(ShapeError, match="the size of its windows is a dim"):
        tg.conv2d(x, tg.input("v", (6, 4, tg.dim("k", 1, 3), 3)))
