"""losses: functions of predictions and targets whose mean a Trainer makes small. All return a scalar."""

from __future__ import annotations

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.language import atomic
from tensor_graphs.language.composites import cross_entropy as of_each
from tensor_graphs.language.composites import equals, log, log_softmax, maximum, mean, softplus, square, where
from tensor_graphs.language.dtypes import f32
from tensor_graphs.language.node import Node


def cross_entropy(logits: Node, target: Node, *, axis: int = -1, smoothing: float = 0.0, ignore: int | None = None) -> Node:
    """Return the mean of −log softmax(logits) at the class `target`, along `axis` of the logits.

    smoothing: share of the target that is spread over all classes (Szegedy et al., 2016). ignore: a target that does not count.
    Raises ArgumentError, and what tg.cross_entropy raises.
    """
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"smoothing is {smoothing}\n  fix: a share between 0 and 1")
    losses = of_each(logits, target, axis)
    if smoothing:
        losses = losses * (1 - smoothing) - mean(log_softmax(logits, axis), axis) * smoothing
    if ignore is None:
        return mean(losses)
    ignored = equals(target, ignore)
    count = atomic.sum(where(ignored, atomic.fill(0, target.shape, f32), 1.0))
    return atomic.sum(where(ignored, 0.0, losses)) / atomic.cast(maximum(count, 1.0), losses.dtype)


def bce_with_logits(logits: Node, target: Node) -> Node:
    """Return the mean of −t·log σ(x) − (1 − t)·log(1 − σ(x)) = softplus(x) − t·x, which no large x overflows."""
    return mean(softplus(logits) - logits * target)


def mse(prediction: Node, target: Node) -> Node:
    """Return the mean of (prediction − target)²."""
    return mean(square(prediction - target))


def kl(log_probabilities: Node, target: Node) -> Node:
    """Return Σ t·(log t − log p) over the last axis, the mean over all others; a term is 0 where t is 0."""
    safe = maximum(target, 1e-30)
    return mean(atomic.sum(where(target > 0.0, target * (log(safe) - log_probabilities), 0.0), (-1,)))
