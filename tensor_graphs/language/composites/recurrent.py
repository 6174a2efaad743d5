"""recurrent: LSTM, GRU and plain recurrent layers, in one direction or two, over sequences of one length or several.

Each direction is a `scan` over the steps (scan.py). What the inputs contribute to the gates is one product before it. Operands
narrower than 32 bits are computed in f32, and states are carried so. Sources: Hochreiter and Schmidhuber 1997; Cho et al. 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import need, same_dim, show
from tensor_graphs.language.composites import arithmetic
from tensor_graphs.language.composites.elementary import relu, sigmoid, tanh, wide
from tensor_graphs.language.composites.indexing import concat, split, stack
from tensor_graphs.language.composites.products import linear
from tensor_graphs.language.composites.scan import scan
from tensor_graphs.language.dims import format_dim
from tensor_graphs.language.dtypes import i32
from tensor_graphs.language.errors import AttributeValueError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.language.operands import broadcast_to

__all__ = ["gru", "lstm", "rnn"]

Carry = tuple[Node, ...]
Step = Callable[[Carry, Node], Carry]
"""(states, what the inputs contribute) -> the states after the step, the output first"""

ACTIVATIONS: dict[str, Callable[[Node], Node]] = {"tanh": tanh, "relu": relu}


class _CellWeights(NamedTuple):
    """Weights of one direction: weight[g · h, i], recurrent[g · h, h] and biases [g · h] or None, for g gates."""

    weight: Node
    recurrent: Node
    bias: Node | None
    recurrent_bias: Node | None

    def check(self, op: str, gates: int, x: Node) -> _CellWeights:
        """Return the weights themselves. Raises ShapeError, DTypeError where they do not fit."""
        width = self.recurrent.shape[-1] if self.recurrent.rank else 0
        rows = width * gates
        wanted = {"weight": (rows, x.shape[-1]), "recurrent": (rows, width), "bias": (rows,), "recurrent_bias": (rows,)}
        for role, shape in wanted.items():
            operand: Node | None = getattr(self, role)
            if operand is None:
                continue
            need(f"{op} ({role})", operand, "float")
            if operand.rank != len(shape) or not all(map(same_dim, operand.shape, shape)):
                sizes = ", ".join(map(format_dim, shape))
                raise ShapeError(f"{op} of {show(x)}: the {role} of a direction is {show(operand)}",
                                 fix=f"[{sizes}]: {gates} gate{'s' * (gates > 1)} of {format_dim(width)}")
        return self


def _layer(op: str, gates: int, step: Callable[[_CellWeights], Step], x: Node, weights: _CellWeights,
           initial: Sequence[Node | None], lengths: Node | None, reverse: bool) -> tuple[Node, Carry]:
    """Return the outputs of all steps and the last states, of one direction, or of those along the first axis of the weights."""
    need(op, x, "float")
    if x.rank < 2:
        raise ShapeError(f"{op} of {show(x)}: it has no axis of steps", fix="x[steps, …, inputs]")
    if weights.weight.rank != 3:
        y, last = _one_way(op, step(weights.check(op, gates, x)), x, weights, initial, lengths, reverse)
        return atomic.cast(y, x.dtype), tuple(atomic.cast(s, x.dtype) for s in last)
    count = weights.weight.shape[0]
    if count not in (1, 2) or (count == 2 and reverse):
        raise ShapeError(f"{op} of {show(x)}: the weight {show(weights.weight)} has {format_dim(count)} directions",
                         fix="1 or 2 along the first axis, 2 without reverse, or a weight of two axes for one direction")
    for operand in (*weights, *initial):
        if operand is not None and (operand.rank == 0 or operand.shape[0] != count):
            raise ShapeError(f"{op} of {show(x)}: {show(operand)} with a weight of {count} directions",
                             fix=f"{count} as the first axis of all weights and initial states")
    ways = []
    for k in range(int(count)):
        one = _CellWeights(*(None if w is None else w[k] for w in weights)).check(op, gates, x)     # type: ignore[arg-type]
        first = [None if s is None else s[k] for s in initial]
        ways.append(_one_way(op, step(one), x, one, first, lengths, reverse or k == 1))
    y = concat(*(y for y, _ in ways), axis=x.rank - 1)
    last = tuple(stack(*states) for states in zip(*(states for _, states in ways), strict=True))
    return atomic.cast(y, x.dtype), tuple(atomic.cast(s, x.dtype) for s in last)


def _one_way(op: str, step: Step, x: Node, weights: _CellWeights, initial: Sequence[Node | None], lengths: Node | None,
             reverse: bool) -> tuple[Node, Carry]:
    shape = (*x.shape[1:-1], weights.recurrent.shape[-1])
    begin: list[Node] = []
    w = wide(x)
    for state in initial:
        if state is not None and (state.rank != len(shape) or not all(map(same_dim, state.shape, shape))):
            raise ShapeError(f"{op} of {show(x)}: an initial state is {show(state)}", fix=f"[{', '.join(map(format_dim, shape))}]")
        begin.append(atomic.fill(0, shape, w.dtype) if state is None else atomic.cast(state, w.dtype))
    inputs = wide(linear(x, weights.weight, weights.bias))
    if lengths is None:
        def turn(carry: Carry, now: Node) -> tuple[Carry, Node]:
            new = step(carry, now)
            return new, new[0]

        last, y = scan(turn, tuple(begin), inputs, reverse=reverse)
        return y, last
    need(f"{op} (lengths)", lengths, "int", "uint")
    if lengths.rank != x.rank - 2 or not all(map(same_dim, lengths.shape, x.shape[1:-1])):
        raise ShapeError(f"{op} of {show(x)}: the lengths are {show(lengths)}",
                         fix="one for each sequence: x without its first and last axes")
    ends = atomic.reshape(atomic.cast(lengths, i32), (*lengths.shape, 1))

    def masked(carry: Carry, now: tuple[Node, Node]) -> tuple[Carry, Node]:
        alive = broadcast_to(arithmetic.less(now[1], ends), shape)
        new = step(carry, now[0])
        states = tuple(atomic.where(alive, after, before) for before, after in zip(carry, new, strict=True))
        return states, arithmetic.where(alive, new[0], 0.0)

    last, y = scan(masked, tuple(begin), (inputs, atomic.iota((x.shape[0],))), reverse=reverse)
    return y, last


def lstm(x: Node, weight: Node, recurrent: Node, bias: Node | None = None, recurrent_bias: Node | None = None, *,
         initial: tuple[Node, Node] | None = None, lengths: Node | None = None,
         reverse: bool = False) -> tuple[Node, tuple[Node, Node]]:
    """(y, (h, c)): a layer of long short-term memory over x[steps, …, inputs], its outputs y[steps, …, h] and its last states.

    weight[4 · h, inputs], recurrent[4 · h, h] and the biases [4 · h] have the rows of the gates input, forget, cell, output, in
    this order (as torch.nn.LSTM). Between steps and inputs, x has any axes of sequences. initial: (h, c) before the first step,
    with these axes in front of h; zeros if absent. reverse: from the last step to the first. With an axis of directions in front of
    all weights and states, of size 2 both are computed, forward then backward: y[steps, …, 2 · h], states [2, …, h].

    lengths: integers, one for each sequence: states stay as they are from that step on, and y is 0 there. x of a float dtype; the
    others may have another one. Raises ShapeError, DTypeError.
    """
    def cell(weights: _CellWeights) -> Step:
        def step(carry: Carry, now: Node) -> Carry:
            h, c = carry
            write, forget, new, read = split(now + linear(h, weights.recurrent, weights.recurrent_bias), 4, -1)
            c = sigmoid(forget) * c + sigmoid(write) * tanh(new)
            return sigmoid(read) * tanh(c), c

        return step

    weights = _CellWeights(weight, recurrent, bias, recurrent_bias)
    y, (h, c) = _layer("lstm", 4, cell, x, weights, (None, None) if initial is None else initial, lengths, reverse)
    return y, (h, c)


def gru(x: Node, weight: Node, recurrent: Node, bias: Node | None = None, recurrent_bias: Node | None = None, *,
        initial: Node | None = None, lengths: Node | None = None, reverse: bool = False,
        reset_after: bool = True) -> tuple[Node, Node]:
    """(y, h): a layer of gated recurrent units over x[steps, …, inputs], its outputs y[steps, …, h] and its last state.

    weight[3 · h, inputs], recurrent[3 · h, h] and the biases [3 · h] have the rows of the gates reset, update, new, in this order.
    reset_after: the reset gate multiplies the recurrent product (as in torch.nn.GRU); else the state before it (Cho et al. 2014).
    initial, lengths, reverse and an axis of directions: see `lstm`. x of a float dtype. Raises ShapeError, DTypeError.
    """
    def cell(weights: _CellWeights) -> Step:
        parts = split(weights.recurrent, 3)
        biases = (None,) * 3 if weights.recurrent_bias is None else split(weights.recurrent_bias, 3)

        def step(carry: Carry, now: Node) -> Carry:
            (h,) = carry
            for_reset, for_update, for_new = split(now, 3, -1)
            reset = sigmoid(for_reset + linear(h, parts[0], biases[0]))
            update = sigmoid(for_update + linear(h, parts[1], biases[1]))
            inner = reset * linear(h, parts[2], biases[2]) if reset_after else linear(reset * h, parts[2], biases[2])
            new = tanh(for_new + inner)
            return (new + update * (h - new),)

        return step

    weights = _CellWeights(weight, recurrent, bias, recurrent_bias)
    y, (h,) = _layer("gru", 3, cell, x, weights, (initial,), lengths, reverse)
    return y, h


def rnn(x: Node, weight: Node, recurrent: Node, bias: Node | None = None, recurrent_bias: Node | None = None, *,
        initial: Node | None = None, lengths: Node | None = None, reverse: bool = False,
        activation: str = "tanh") -> tuple[Node, Node]:
    """(y, h): h ← activation(weight · x + recurrent · h + biases) over x[steps, …, inputs]: all h, and the last one.

    weight[h, inputs], recurrent[h, h], biases [h]; activation "tanh" or "relu" (as torch.nn.RNN). initial, lengths, reverse and an
    axis of directions: see `lstm`. x of a float dtype. Raises AttributeValueError (activation), ShapeError, DTypeError.
    """
    if activation not in ACTIVATIONS:
        raise AttributeValueError(f"rnn: the activation is {activation!r}", fix=" or ".join(map(repr, ACTIVATIONS)))

    def cell(weights: _CellWeights) -> Step:
        return lambda carry, now: (ACTIVATIONS[activation](now + linear(carry[0], weights.recurrent, weights.recurrent_bias)),)

    weights = _CellWeights(weight, recurrent, bias, recurrent_bias)
    y, (h,) = _layer("rnn", 1, cell, x, weights, (initial,), lengths, reverse)
    return y, h
