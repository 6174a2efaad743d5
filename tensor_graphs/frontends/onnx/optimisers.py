"""optimisers: rows of the steps of Adagrad, Momentum and Adam, which ONNX has in a domain of their own."""

from __future__ import annotations

from collections.abc import Sequence

from tensor_graphs.frontends.onnx.call import Built, OnnxNode, row
from tensor_graphs.language import atomic
from tensor_graphs.language import composites as c
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import Node

TRAINING = "ai.onnx.preview.training"


def _groups(n: OnnxNode, count: int) -> tuple[Node, Node, list[tuple[Node, ...]]]:
    """Return the rate, the number of updates so far, and for each tensor (x, gradient with norm_coefficient · x, memories…)."""
    rate, time, xs = n.x().reshape(()), n.x(1).reshape(()), [n.x(i) for i in range(2, len(n.inputs))]
    size, norm = len(xs) // count, n.get("norm_coefficient", 0.0)
    parts = [xs[i::size] for i in range(size)]
    return rate, time, [(x, g if norm == 0 else norm * x + g, *memories) for x, g, *memories in parts]


def _in_order(steps: Sequence[tuple[Node, ...]]) -> list[Node]:
    """Return the new values of all tensors, then their first memories, …"""
    return [value for kind in zip(*steps, strict=True) for value in kind]


@row("Adagrad", domain=TRAINING)
def _adagrad(n: OnnxNode) -> Built:
    rate, time, groups = _groups(n, 3)
    rate, eps, out = rate / (1 + time.cast(rate.dtype) * n.get("decay_factor", 0.0)), n.get("epsilon", 1e-6), []
    for x, g, squares in groups:
        squares = squares + g * g
        out.append((x - rate * g / (atomic.sqrt(squares) + eps), squares))
    return _in_order(out)


@row("Momentum", domain=TRAINING)
def _momentum(n: OnnxNode) -> Built:
    rate, time, groups = _groups(n, 3)
    alpha, mode, out = n.get("alpha"), n.get("mode"), []
    beta = c.where(time > 0, c.full((), n.get("beta"), rate.dtype), 1.0)
    for x, g, speed in groups:
        speed = alpha * speed + beta * g
        out.append((x - rate * (g + alpha * speed if mode == "nesterov" else speed), speed))
    return _in_order(out)


@row("Adam", domain=TRAINING)
def _adam(n: OnnxNode) -> Built:
    rate, time, groups = _groups(n, 4)
    alpha, beta, eps, after = n.get("alpha", 0.9), n.get("beta", 0.999), n.get("epsilon", 1e-6), n.get("norm_coefficient_post", 0.0)
    steps = time.cast(f32)
    powers = [c.pow(c.full((), base, f32), steps) for base in (alpha, beta)]
    rate, out = c.where(time > 0, rate * (atomic.sqrt(1 - powers[1]) / (1 - powers[0])).cast(rate.dtype), rate), []
    for x, g, mean, squares in groups:
        mean, squares = alpha * mean + (1 - alpha) * g, beta * squares + (1 - beta) * g * g
        out.append(((1 - after) * (x - rate * mean / (atomic.sqrt(squares) + eps)), mean, squares))
    return _in_order(out)
