"""The helpers that compare are seen to fail: a wrong definition, `direct` or gradient, another message."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import DTypeError, LanguageError, ShapeError
from tensor_graphs.language.node import Node
from tests.language.agreement import check, check_gradients
from tests.language.messages import said

X = tg.input("x", (3,))
VALUES = np.array([1.0, -2.0, 3.0])


def double(by: float, direct_by: float, slope: float) -> tg.CompositeOp:
    """x · by, evaluated directly as x · direct_by, with the gradient g · slope."""
    @tg.composite(direct=lambda roles, attrs, types: roles["x"] * direct_by,
                  gradient=lambda node, grads: {"x": grads[0] * slope}, gradient_checked=False)
    def op(x: Node) -> Node:
        return x * by

    return op


def test_a_right_composite_passes():
    right = double(2.0, 2.0, 2.0)(X)
    check(right, VALUES * 2, x=VALUES)
    t = torch.tensor(VALUES, requires_grad=True)
    check_gradients(right, t * 2, {"x": t}, x=VALUES)


@pytest.mark.parametrize("by, direct_by", [(2.0 + 1e-9, 2.0), (2.0, 2.0 + 1e-9)])
def test_a_definition_or_a_direct_that_is_off_is_noticed(by, direct_by):
    with pytest.raises(AssertionError):
        check(double(by, direct_by, 2.0)(X.cast(tg.f64)), VALUES * 2, x=VALUES)


def test_another_shape_is_noticed():
    with pytest.raises(AssertionError):
        check(X, VALUES[:, None], x=VALUES)


@pytest.mark.parametrize("by, slope", [(2.0, 2.5), (2.5, 2.0)])
def test_a_gradient_rule_or_a_definition_with_another_gradient_is_noticed(by, slope):
    t = torch.tensor(VALUES, requires_grad=True)
    with pytest.raises(AssertionError):
        check_gradients(double(by, by, slope)(X), t * 2, {"x": t}, x=VALUES)


def test_an_error_of_another_class_is_not_taken_for_the_one_asked_for():
    with pytest.raises(DTypeError):
        said(lambda: X + "1", ShapeError)
    with pytest.raises(AssertionError):
        said(lambda: X + "1", LanguageError)
    assert said(lambda: X + "1", DTypeError).startswith("DTypeError at HERE: str '1' is neither")
