"""Composites are found by what they mean, however they are written, and what only looks like one is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.proof.equality import equal
from tensor_graphs.rewrites.discover import discover, replaced
from tensor_graphs.rewrites.errors import RewriteError

N = tg.dim("n", 1, 64)
X = tg.input("x", (N, 16), tg.f32)
W = tg.parameter("w", (16,), tg.f32)


def silu(x: tg.Tensor) -> tg.Tensor:
    return x / (1.0 + tg.exp(-x))


def norm(x: tg.Tensor, eps: float = 1e-5, axis: int = 1) -> tg.Tensor:
    count = 1 / 16 if axis == 1 else 1 / 32
    return x * W / tg.sqrt((x * x).sum(axis, keepdims=True) * count + eps)


def naive(x: tg.Tensor, axis: int = 1) -> tg.Tensor:
    e = tg.exp(x)
    return e / e.sum(axis, keepdims=True)


SAME: dict[str, tuple[str, Callable[[tg.Tensor], tg.Tensor]]] = {
    "silu as a quotient": ("silu", silu),
    "a norm by a sum and a quotient": ("rms_norm", norm),
    "softmax without its shift": ("softmax", naive),
    "sigmoid by exp": ("sigmoid", lambda x: tg.reciprocal(tg.exp(-x) + 1.0)),
}
OTHER: dict[str, tuple[str, Callable[[tg.Tensor], tg.Tensor]]] = {
    "no silu: the sign of x": ("silu", lambda x: x / (1.0 + tg.exp(x))),
    "no norm: the mean is a sum": ("rms_norm", lambda x: x * W / tg.sqrt((x * x).sum(1, keepdims=True) + 1e-5)),
    "no norm: eps beside the root": ("rms_norm", lambda x: x * W / (tg.sqrt((x * x).sum(1, keepdims=True) * (1 / 16)) + 1e-5)),
    "no softmax: two axes": ("softmax", lambda x: tg.exp(x) / tg.exp(x).sum(0, keepdims=True).sum(1, keepdims=True)),
    "no sigmoid: 2 for 1": ("sigmoid", lambda x: tg.reciprocal(tg.exp(-x) + 2.0)),
}


@pytest.mark.parametrize("case", SAME)
def test_a_composite_is_found_in_another_writing_and_may_stand_there(case: str) -> None:
    name, build = SAME[case]
    graph = tg.graph(build(tg.tanh(X)) + X)
    found = discover(graph, [name])
    assert [f.op.name for f in found] == [name] and found[0].verdict.proved and found[0].steps >= 2
    assert name in found[0].show()
    made = replaced(graph, found)
    assert [n.op.name for n in made.nodes if n.op.kind == "composite"] == ["tanh", name]
    assert equal(made, graph).proved


@pytest.mark.parametrize("case", OTHER)
def test_a_near_miss_is_not_found(case: str) -> None:
    name, build = OTHER[case]
    assert discover(tg.graph(build(tg.tanh(X)) + X), [name]) == ()


def test_numbers_and_axes_are_those_of_the_graph() -> None:
    (one,) = discover(tg.graph(norm(X, 1e-3)), ["rms_norm"])
    assert one.attrs["eps"] == 1e-3
    square = tg.input("s", (16, 16), tg.f32)
    (other,) = discover(tg.graph(naive(square, 0)), ["softmax"])
    assert other.attrs["axis"] == 0


def test_another_name_is_refused_and_composites_are_no_discovery() -> None:
    with pytest.raises(RewriteError, match="no library composite is named"):
        discover(tg.graph(X), ["softmin"])
    assert discover(tg.graph(tg.softmax(atomic.add(X, X))), ["softmax"]) == ()
