"""recurrent: rows of RNN, GRU and LSTM: a scan over the steps, each direction on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, row
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import i64
from tensor_graphs.language.node import Node

Activation = Callable[[Node], Node]

ACTIVATIONS: dict[str, tuple[tuple[float, float], Callable[[Node, float, float], Node]]] = {
    "relu": ((0, 0), lambda x, a, b: c.relu(x)), "tanh": ((0, 0), lambda x, a, b: c.tanh(x)),
    "sigmoid": ((0, 0), lambda x, a, b: c.sigmoid(x)), "affine": ((1, 0), lambda x, a, b: x * a + b),
    "leakyrelu": ((0.01, 0), lambda x, a, b: c.where(x < 0, x * a, x)),
    "thresholdedrelu": ((1, 0), lambda x, a, b: c.where(x > a, x, 0.0)),
    "scaledtanh": ((1, 1), lambda x, a, b: a * c.tanh(b * x)),
    "hardsigmoid": ((0.2, 0.5), lambda x, a, b: c.clip(x * a + b, 0.0, 1.0)),
    "elu": ((1, 0), lambda x, a, b: c.where(x < 0, a * c.expm1(c.minimum(x, 0.0)), x)),
    "softsign": ((0, 0), lambda x, a, b: x / (1 + c.abs(x))), "softplus": ((0, 0), lambda x, a, b: c.softplus(x)),
}
"""name -> ((alpha, beta) by default, function of x, alpha, beta)"""

DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def _activations(n: OnnxNode, directions: int) -> list[list[Activation]]:
    names = n.get("activations") or list(DEFAULTS[n.op]) * directions
    per, alphas, betas = len(DEFAULTS[n.op]), list(n.get("activation_alpha") or ()), list(n.get("activation_beta") or ())
    limit = n.get("clip")

    def built(build: Callable[..., Node], alpha: float, beta: float) -> Activation:
        return lambda x: build(c.clip(x, -limit, limit) if limit else x, alpha, beta)

    out: list[Activation] = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            n.refuse(f"the activation {name} of {n.op}")
        (alpha, beta), build = ACTIVATIONS[name.lower()]
        alpha = alphas.pop(0) if alphas and alpha else alpha
        beta = betas.pop(0) if betas and beta else beta
        out.append(built(build, alpha, beta))
    return [out[i * per:(i + 1) * per] for i in range(directions)]


def _rnn(n: OnnxNode, f: Sequence[Activation], r: Node, bias: Node | None, peep: Node | None) -> Any:
    def step(states: Sequence[Node], x: Node) -> list[Node]:
        return [f[0](x + c.linear(states[0], r))]
    return step


def _gru(n: OnnxNode, f: Sequence[Activation], r: Node, bias: Node | None, peep: Node | None) -> Any:
    size, before = n.get("hidden_size"), n.get("linear_before_reset", 0)

    def step(states: Sequence[Node], x: Node) -> list[Node]:
        h = states[0]
        both = c.linear(h, r[:2 * size])
        z = f[0](x[:, :size] + both[:, :size])
        reset = f[0](x[:, size:2 * size] + both[:, size:])
        own = reset * c.linear(h, r[2 * size:], bias) if before else c.linear(reset * h, r[2 * size:], bias)
        return [(1 - z) * f[1](x[:, 2 * size:] + own) + z * h]
    return step


def _lstm(n: OnnxNode, f: Sequence[Activation], r: Node, bias: Node | None, peep: Node | None) -> Any:
    size, coupled = n.get("hidden_size"), n.get("input_forget", 0)

    def step(states: Sequence[Node], x: Node) -> list[Node]:
        h, cell = states
        gates = x + c.linear(h, r)
        i, o, forget, new = (gates[:, k * size:(k + 1) * size] for k in range(4))
        i, forget = (i, forget) if peep is None else (i + peep[:size] * cell, forget + peep[2 * size:] * cell)
        i = f[0](i)
        memory = (1 - i if coupled else f[0](forget)) * cell + i * f[1](new)
        o = f[0](o if peep is None else o + peep[size:2 * size] * memory)
        return [o * f[2](memory), memory]
    return step


CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def _reversed(x: Node, lengths: Node | None) -> Node:
    """Return x[steps, batch, …] with the first lengths[batch] steps of each sequence in reverse order."""
    if lengths is None:
        return c.flip(x, 0)
    shape = x.shape[:2]
    t, ends = atomic.iota(shape, 0, i64), atomic.expand(lengths.cast(i64).reshape(1, shape[1]), shape)
    place = c.where(t < ends, ends - 1 - t, t) * shape[1] + atomic.iota(shape, 1, i64)
    return atomic.gather(x.reshape(d.product(shape), *x.shape[2:]), place, 0)


def _direction(n: OnnxNode, x: Node, k: int, f: Sequence[Activation], lengths: Node | None, back: bool) -> tuple[Node, list[Node]]:
    """Return ys[steps, batch, hidden] and the last states of direction k."""
    size, gates, width = n.get("hidden_size"), GATES[n.op], x.dtype
    w, r, count = n.x(1)[k], n.x(2)[k], 2 if n.op == "LSTM" else 1
    both = n.x(3)[k] if n.has(3) else None
    inner = None
    if both is not None:
        wb, rb = both[:gates * size], both[gates * size:]
        if n.op == "GRU":                                # the bias of the new value is added next to its product
            inner = rb[2 * size:]
            rb = c.concat(rb[:2 * size], c.zeros((size,), width))
        both = wb + rb
    peep = n.x(7)[k] if n.has(7) else None
    step = CELLS[n.op](n, f, r, inner, peep)
    initial = [n.x(5 + i)[k] if n.has(5 + i) else c.zeros((x.shape[1], size), width) for i in range(count)]
    x = _reversed(x, lengths) if back else x

    def turn(states: Any, slices: Any) -> Any:
        new = step(states, slices[0])
        if lengths is None:
            return tuple(new), new[0]
        here = (slices[1] < lengths.cast(i64)).reshape(-1, 1)
        return tuple(c.where(here, a, b) for a, b in zip(new, states, strict=True)), c.where(here, new[0], 0.0)

    time = (atomic.iota((x.shape[0],), 0, i64),) if lengths is not None else ()
    last, ys = c.scan(turn, tuple(initial), (c.linear(x, w, both), *time))
    return (_reversed(ys, lengths) if back else ys), list(last)


@row("RNN", "GRU", "LSTM", since=7)
def _recurrent(n: OnnxNode) -> Built:
    batch_first, which = n.get("layout", 0), n.get("direction", "forward")
    x, lengths = n.x(), n.optional(4)
    if batch_first and (n.has(5) or n.has(6)):
        n.refuse("initial states with layout=1", "layout=0")
    n.ignore("linear_before_reset", "input_forget")
    if n.get("clip") and n.op == "LSTM":
        n.refuse("LSTM with clip, of which implementations differ: some do not bound the cell before its activation")
    x = x.permute(1, 0, 2) if batch_first else x
    backs = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[which]
    runs = [_direction(n, x, k, f, lengths, back)
            for k, (f, back) in enumerate(zip(_activations(n, len(backs)), backs, strict=True))]
    ys = c.stack(*(y for y, _ in runs), axis=1) if len(runs) > 1 else runs[0][0].reshape(*runs[0][0].shape[:1], 1,
                                                                                     *runs[0][0].shape[1:])
    lasts = [c.stack(*states, axis=0) if len(runs) > 1 else states[0].reshape(1, *states[0].shape)
             for states in zip(*(last for _, last in runs), strict=True)]
    return [ys.permute(2, 0, 1, 3), *(s.permute(1, 0, 2) for s in lasts)] if batch_first else [ys, *lasts]
