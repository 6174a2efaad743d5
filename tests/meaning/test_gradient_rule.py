"""meaning/gradient_rule.py: a gradient of a user's own is compared with that of the definition where it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.language.errors import GraphError
from tensor_graphs.language.node import Node
from tensor_graphs.meaning import gradient_rule

N = tg.dim("n", 2, 64)
X, Y = tg.input("x", (N, 4)), tg.input("y", (4,))


def scaled(rule: Callable[..., Any], **options: Any) -> tg.CompositeOp:
    """scale · x · y + i, with this gradient."""
    @tg.composite(name="scaled", gradient=rule, **options)
    def scaled(x: Node, y: Node, *, scale: float = 3.0) -> Node:
        return x * y * scale

    return scaled


def right(node: Node, grads: Any) -> dict[str, Node]:
    x, y = node.inputs
    by = node.attrs["scale"]
    return {"x": grads[0] * y * by, "y": tg.sum(grads[0] * x, 0) * by}


def test_a_right_one_is_taken_and_looked_at_once_for_each_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, evaluate = [], gradient_rule.evaluate
    monkeypatch.setattr(gradient_rule, "evaluate", lambda *given: looked.append(given) or evaluate(*given))
    op = scaled(right)
    for _ in range(2):
        assert tg.grad(tg.sum(op(X, Y)), X).shape == X.shape
    tg.grad(tg.sum(op(X, Y, scale=2.0)), X)
    assert len(looked) == 2


@pytest.mark.parametrize(("wrong", "said"), [
    (lambda node, grads: {**right(node, grads), "x": grads[0] * node.inputs[1]}, r"for operand 'x' it gives \S+ where the "),
    (lambda node, grads: {"x": right(node, grads)["x"]}, r"for operand 'y' it gives 0 where the definition's is \S+, at y\["),
    (lambda node, grads: {**right(node, grads), "y": tg.sum(grads[0] * node.inputs[0], 0) * (node.attrs["scale"] * 1.00001)},
     "for operand 'y'"),
], ids=["a factor is missing", "an operand is missing", "off by a thousandth of a percent"])
def test_a_wrong_one_is_refused_with_the_operand_and_both_numbers(wrong: Callable[..., Any], said: str) -> None:
    op = scaled(wrong)
    for _ in range(2):                                              # as long as it is wrong
        with pytest.raises(GraphError, match=rf"the gradient= of scaled is not the gradient of its definition: {said}") as caught:
            tg.grad(tg.sum(op(X, Y)), X)
    assert "test_gradient_rule.py" in str(caught.value) and "\n  fix: correct it, or leave gradient= out; gradient_checked" in str(
        caught.value)


def test_another_one_on_purpose_says_so() -> None:
    through: dict[str, Any] = {"name": "straight", "gradient": lambda node, grads: {"x": grads[0]}}
    straight = tg.composite(lambda x: tg.floor(x), **through)
    with pytest.raises(GraphError, match=r"for operand 'x' it gives \S+ where the definition's is 0"):
        tg.grad(tg.sum(straight(X)), X)
    meant = tg.composite(lambda x: tg.floor(x), **through, gradient_checked=False)
    ones = tg.grad(tg.sum(meant(X)), X)
    assert (tg.interpret(tg.graph(ones), dims={"n": 3}).outputs["out"] == 1.0).all()


def test_what_is_too_large_is_taken_on_trust(caplog: pytest.LogCaptureFixture) -> None:
    large = tg.composite(lambda x: x * x, name="large", gradient=lambda node, grads: {"x": grads[0]})
    with caplog.at_level("INFO", "tensor_graphs.meaning.gradient_rule"):
        tg.grad(tg.sum(large(tg.input("x", (1 << 11, 1 << 10)))), tg.input("x", (1 << 11, 1 << 10)))
    assert "too large" in caplog.text


def test_integers_and_several_outputs_are_compared_too() -> None:
    @tg.composite(name="picked", gradient=lambda node, grads: {
        "x": tg.where(tg.equals(node.inputs[1], 0), *((g if g is not None else node.inputs[0] * 0.0) for g in grads))})
    def picked(x: Node, i: Node) -> tuple[Node, Node]:
        zero = tg.equals(i, 0)
        return tg.where(zero, x, x * 0.0), tg.where(zero, x * 0.0, x)

    x, i = tg.input("x", (5,)), tg.input("i", (5,), tg.i32)
    first, second = picked(x, i)
    assert tg.grad(tg.sum(first) + tg.sum(second), x).shape == (5,) and tg.grad(tg.sum(second), x).shape == (5,)
