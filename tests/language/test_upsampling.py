"""Upsampling against torch: by the definition, by `direct`, and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError
from tests.language.agreement import check, check_gradients

A = np.random.default_rng(8).normal(size=(2, 3, 4, 5))


@pytest.mark.parametrize("mode, theirs", [("nearest", "nearest"), ("linear", "bilinear")])
@pytest.mark.parametrize("scale", [(2, 2), (3, 1), (1, 4)], ids=str)
def test_upsampling_is_that_of_torch_and_so_is_its_gradient(mode, theirs, scale):
    t = torch.tensor(A, requires_grad=True)
    node = tg.upsample(tg.input("x", A.shape), scale, mode=mode)
    expected = torch.nn.functional.interpolate(t, scale_factor=scale, mode=theirs)
    check(node, expected.detach().numpy(), x=A)
    check_gradients(node, expected, {"x": t}, x=A)


def test_integers_are_repeated_and_sizes_may_be_dims():
    n = tg.dim("n", 1, 9)
    check(tg.upsample(tg.input("x", (n,), tg.i32), 3), [4, 4, 4, 5, 5, 5], {"n": 2}, x=np.array([4, 5], np.int32))
    check(tg.upsample(tg.input("x", (n,)), 2, mode="linear"), [4, 4.25, 4.75, 5], {"n": 2}, x=np.array([4.0, 5.0]))


def test_what_makes_no_sense_is_refused():
    x = tg.input("x", (2, 3))
    for scale in (0, 1.5, (2, 2, 2), ()):
        with pytest.raises(AttributeValueError, match="upsample of f32"):
            tg.upsample(x, scale)
    with pytest.raises(AttributeValueError, match="mode is 'cubic'"):
        tg.upsample(x, 2, mode="cubic")
    with pytest.raises(DTypeError):
        tg.upsample(tg.input("i", (2,), tg.i32), 2, mode="linear")
