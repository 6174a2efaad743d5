"""language/explain_call_errors.py, call_errors.py: an argument that an op does not have is told with the name that is meant,
whoever defines it."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

import tensor_graphs as tg
from tensor_graphs.language.call_errors import CallError
from tensor_graphs.language.errors import DTypeError
from tensor_graphs.language.explain_call_errors import worded
from tests.language.messages import said

X = tg.input("x", (3, 4))


@pytest.mark.parametrize(("call", "fix"), [
    (lambda: tg.softmax(X, dim=1), "axis=… instead of dim=…"), (lambda: tg.sum(X, dim=1), "axis=… instead of dim=…"),
    (lambda: X.sum(dim=1), "axis=… instead of dim=…"), (lambda: tg.mean(X, keepdim=True), "keepdims=… instead of keepdim=…"),
    (lambda: tg.layer_norm(X, epsilon=1.0), "eps=… instead of epsilon=…"), (lambda: tg.max(X, axi=0), "axis=… instead of axi=…"),
    (lambda: tg.relu(X, inplace=True), "its arguments are: x"), (lambda: tg.softmax(), "call it like softmax(x, axis=-1)"),
    (lambda: tg.sum(X, 0, False, 1), "call it like sum(x, axis=None, keepdims=False)")])  # fmt: skip
def test_a_call_that_does_not_bind_says_how_to_call(call: Callable[[], object], fix: str) -> None:
    with pytest.raises(TypeError) as caught:                        # as Python's own
        call()
    assert isinstance(caught.value, CallError) and str(caught.value).endswith(f"\n  fix: {fix}")


def test_the_signature_and_the_line_are_named() -> None:
    assert said(lambda: tg.softmax(X, dim=1), CallError) == (
        "CallError at HERE: softmax(x, axis=-1) has no argument 'dim'\n  fix: axis=… instead of dim=…")


def test_an_error_inside_of_a_function_stays_what_it_is() -> None:
    def mine(x: object) -> object:
        raise TypeError("not iterable")

    with pytest.raises(TypeError, match="^not iterable$") as caught:
        worded(mine)(1)
    assert not isinstance(caught.value, CallError)


@pytest.mark.parametrize(("x", "number", "largest"), [
    (X, 1e39, "3.4028235e+38"), (X, -1e39, "3.4028235e+38"), (X, 10**400, "3.4028235e+38"),
    (tg.input("h", (3,), tg.f16), 1e9, "65504"), (tg.input("b", (3,), tg.bf16), 3.4e38, "3.3895314e+38")])  # fmt: skip
def test_a_number_that_would_be_infinite_beside_a_tensor_is_refused(x: tg.Node, number: float, largest: str) -> None:
    for call in (lambda: x * number, lambda: tg.where(x > 0, x, number), lambda: tg.maximum(number, x)):
        with pytest.raises(DTypeError) as caught:
            call()
        assert f"beside a tensor of {x.dtype} would be infinite: the largest number is {largest}\n" in str(caught.value)


def test_numbers_that_fit_and_infinities_that_are_meant_pass() -> None:
    h = tg.input("h", (3,), tg.f16)
    for made in (X * 3.4028235e38, X * float("inf"), X * float("nan"), h - 65504.0, h - 65519, X.cast(tg.f64) * 1e300):
        assert made.shape


@pytest.mark.parametrize("function", [tg.sum, tg.mean, tg.max, tg.reshape, tg.stack, tg.graph, tg.grad, tg.softmax])
def test_a_function_is_pickled_by_its_name(function: Callable[..., object]) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
