"""Pooling to a given size against torch: with intervals of one length and of several, its gradients, dims, integers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tests.language.agreement import check, check_gradients

F = torch.nn.functional
RNG = np.random.default_rng(14)
CASES = [((2, 8, 6), (4, 3)), ((2, 8, 7), (3, 5)), ((2, 5), (7,)), ((2, 3, 4, 4), (1, 1)), ((2, 3, 7), (None, 2))]


@pytest.mark.parametrize("kind", ["avg", "max"])
@pytest.mark.parametrize("shape, size", CASES, ids=str)
def test_adaptive_pooling_is_that_of_torch_and_so_is_its_gradient(shape, size, kind):
    values = RNG.normal(size=shape)
    t = torch.tensor(values, requires_grad=True)
    node = getattr(tg, f"adaptive_{kind}_pool")(tg.input("x", shape), size)
    expected = getattr(F, f"adaptive_{kind}_pool{len(size)}d")(t, size)
    check(node, expected.detach().numpy(), x=values)
    check_gradients(node, expected, {"x": t}, x=values)


def test_a_dim_may_be_pooled_to_one_element_and_integers_have_a_largest():
    n = tg.dim("n", 1, 9)
    check(tg.adaptive_avg_pool(tg.input("x", (n, 4)), (1, 2)), [[1.5, 3.5]], {"n": 3}, x=np.tile([1.0, 2, 3, 4], (3, 1)))
    check(tg.adaptive_max_pool(tg.input("x", (5,), tg.i8), 2), [-3, -1], x=np.array([-5, -4, -3, -2, -1], np.int8))


def test_what_has_no_intervals_is_refused():
    x = tg.input("x", (4, tg.dim("n", 1, 9)))
    with pytest.raises(ShapeError, match=r"adaptive_avg_pool of f32\[4, n\]: axis 1 has n elements, for 2 intervals"):
        tg.adaptive_avg_pool(x, 2)
    for size in (0, (1, 2, 3), 1.5):
        with pytest.raises(AttributeValueError, match="the size is"):
            tg.adaptive_max_pool(x, size)
    with pytest.raises(DTypeError):
        tg.adaptive_avg_pool(tg.input("i", (4,), tg.i32), 2)
