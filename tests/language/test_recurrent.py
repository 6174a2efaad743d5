"""LSTM, GRU and plain recurrent layers against torch.nn: directions, states, lengths, gradients, dims, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.meaning.interpreter import evaluate

STEPS, BATCH, INPUTS, WIDTH = 5, 3, 4, 2
RNG = np.random.default_rng(37)
KINDS: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "lstm": (tg.lstm, torch.nn.LSTM, 2), "gru": (tg.gru, torch.nn.GRU, 1), "rnn": (tg.rnn, torch.nn.RNN, 1),
}
ROLES = {"weight": "weight_ih_l0", "recurrent": "weight_hh_l0", "bias": "bias_ih_l0", "recurrent_bias": "bias_hh_l0"}
X = RNG.normal(size=(STEPS, BATCH, INPUTS))


def layer(kind: str, directions: int) -> tuple[Any, dict[str, np.ndarray]]:
    """torch's layer, and its weights with an axis of directions in front."""
    torch.manual_seed(3)
    theirs = KINDS[kind][1](INPUTS, WIDTH, bidirectional=directions == 2).double()
    named = dict(theirs.named_parameters())
    return theirs, {role: np.stack([named[name + end].detach().numpy() for end in ("", "_reverse")[:directions]])
                    for role, name in ROLES.items()}


def flat(results: Any) -> list[Any]:
    return [leaf for r in results for leaf in flat(r)] if isinstance(results, (tuple, list)) else [results]


@pytest.mark.parametrize("lengths", [None, [5, 2, 3]], ids=["one length", "lengths"])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_that_of_torch_and_so_are_its_gradients(kind: str, directions: int, lengths: list[int] | None) -> None:
    build, _, states = KINDS[kind]
    theirs, weights = layer(kind, directions)
    initial = [RNG.normal(size=(directions, BATCH, WIDTH)) for _ in range(states)]
    x, t = tg.input("x", X.shape, tg.f64), torch.tensor(X, requires_grad=True)
    inputs = {role: tg.input(role, v.shape, tg.f64) for role, v in weights.items()}
    begin = [tg.input(f"s{k}", s.shape, tg.f64) for k, s in enumerate(initial)]
    count = None if lengths is None else tg.input("n", (BATCH,), tg.i32)
    actual = flat(build(x, *inputs.values(), initial=tuple(begin) if states == 2 else begin[0], lengths=count))
    t0 = [torch.tensor(s, requires_grad=True) for s in initial]
    packed: Any = t if lengths is None else torch.nn.utils.rnn.pack_padded_sequence(t, torch.tensor(lengths), enforce_sorted=False)
    y, last = theirs(packed, tuple(t0) if states == 2 else t0[0])
    if lengths is not None:
        y = torch.nn.utils.rnn.pad_packed_sequence(y)[0]
    expected = flat((y, last))
    values: dict[Any, Any] = {x: X, **{inputs[r]: v for r, v in weights.items()}, **dict(zip(begin, initial, strict=True))}
    if count is not None:
        values[count] = np.array(lengths, np.int32)
    for ours, true in zip(evaluate(actual, values, {}), expected, strict=True):
        np.testing.assert_allclose(ours, true.detach().numpy(), rtol=1e-12, atol=1e-14)
    seeds = [RNG.normal(size=tuple(e.shape)) for e in expected]
    torch.autograd.backward(expected, [torch.tensor(s) for s in seeds])
    cotangents = [tg.input(f"g{k}", o.shape, tg.f64) for k, o in enumerate(actual)]
    wanted = [x, *inputs.values(), *begin]
    named = dict(theirs.named_parameters())
    true_gradients = [t.grad, *(torch.stack([named[name + end].grad for end in ("", "_reverse")[:directions]])
                                for name in ROLES.values()), *(s.grad for s in t0)]
    gradients = evaluate(tg.vjp(actual, cotangents, wanted), values | dict(zip(cotangents, seeds, strict=True)), {})
    for node, ours, gradient in zip(wanted, gradients, true_gradients, strict=True):
        assert gradient is not None
        np.testing.assert_allclose(ours, gradient.numpy(), rtol=1e-9, atol=1e-11, err_msg=str(node.attrs["name"]))


@pytest.mark.parametrize("kind", KINDS)
def test_one_direction_needs_no_axis_for_it_and_may_be_the_reverse_one(kind: str) -> None:
    build, _, _ = KINDS[kind]
    theirs, weights = layer(kind, 2)
    n = tg.dim("n", 1, 9)
    x = tg.input("x", (n, INPUTS), tg.f64)                           # no axis of sequences either
    backward = [tg.constant(v[1]) for v in weights.values()]
    actual = flat(build(x, *backward, reverse=True))
    y, last = theirs(torch.tensor(X[:, 0]))
    expected = [y[:, WIDTH:], *(s[1] for s in flat(last))]
    for ours, true in zip(evaluate(actual, {x: X[:, 0]}, {"n": STEPS}), expected, strict=True):
        np.testing.assert_allclose(ours, true.detach().numpy(), rtol=1e-12)


def test_the_reset_gate_may_come_before_the_product_and_a_plain_layer_may_have_relu() -> None:
    _, weights = layer("gru", 1)
    w, u, b, v = (weights[role][0] for role in ROLES)
    x = tg.input("x", X.shape, tg.f64)
    y, _ = tg.gru(x, *map(tg.constant, (w, u, b, v)), reset_after=False)
    h, rows = np.zeros((BATCH, WIDTH)), []

    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    for step in X:
        (xr, xz, xn), (ur, uz, un), (vr, vz, vn) = (np.split(a, 3, axis) for a, axis in ((step @ w.T + b, 1), (u, 0), (v, 0)))
        r, z = sigmoid(xr + h @ ur.T + vr), sigmoid(xz + h @ uz.T + vz)
        new = np.tanh(xn + (r * h) @ un.T + vn)
        h = (1 - z) * new + z * h
        rows.append(h)
    np.testing.assert_allclose(evaluate([y], {x: X}, {})[0], np.stack(rows), rtol=1e-12)
    theirs = torch.nn.RNN(INPUTS, WIDTH, nonlinearity="relu", bias=False).double()
    plain = [tg.constant(p.detach().numpy()) for p in theirs.parameters()]
    y, _ = tg.rnn(x, *plain, activation="relu")
    np.testing.assert_allclose(evaluate([y], {x: X}, {})[0], theirs(torch.tensor(X))[0].detach().numpy(), rtol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    x, w, u = tg.input("x", (5, 3, 4)), tg.input("w", (8, 4)), tg.input("u", (8, 2))
    for call, text in (
            (lambda: tg.lstm(x, tg.input("v", (8, 3)), u), r"lstm of f32\[5, 3, 4\]: the weight of a direction is f32\[8, 3\]"),
            (lambda: tg.gru(x, w, u), r"gru of .*: the weight of a direction is f32\[8, 4\]"),
            (lambda: tg.lstm(x, w, u, tg.input("b", (4,))), "the bias of a direction"),
            (lambda: tg.lstm(x, w, u, initial=(tg.input("h", (2,)),) * 2), "an initial state is"),
            (lambda: tg.lstm(x, w, u, lengths=tg.input("n", (2,), tg.i32)), "the lengths are"),
            (lambda: tg.lstm(x, tg.input("v", (3, 8, 4)), u), "3 directions"),
            (lambda: tg.lstm(x, tg.input("v", (2, 8, 4)), u), "with a weight of 2 directions"),
            (lambda: tg.rnn(tg.input("c", (4,)), w, u), "no axis of steps")):
        with pytest.raises(ShapeError, match=text):
            call()
    with pytest.raises(AttributeValueError, match="the activation is 'elu'"):
        tg.rnn(x, w, u, activation="elu")
