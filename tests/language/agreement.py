"""agreement: compares a composite (its definition, its `direct`, its gradients) with what is known to be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import tensor_graphs as tg
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import evaluate


def both_ways(nodes: Sequence[Node], values: Mapping[str, Any],
              dims: Mapping[str, int] | None = None) -> list[list[np.ndarray]]:
    """The values of the nodes by their definitions alone, and with every `direct`; inputs by name."""
    leaves = {leaf: values[name] for name, leaf in tg.graph(list(nodes)).inputs.items()}
    return [[np.asarray(v) for v in evaluate(list(nodes), leaves, dict(dims or {}), use_direct=direct)]
            for direct in (False, True)]


def check(node: Node, expected: Any, dims: Mapping[str, int] | None = None, rtol: float = 1e-11, **values: Any) -> None:
    """The definition and `direct` both give `expected`: NaN and infinities in place, signs of zero aside."""
    expected = np.asarray(expected)
    for (found,) in both_ways([node], values, dims):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-13)


def check_gradients(node: Node, reference: torch.Tensor, wrt: Mapping[str, torch.Tensor], rtol: float = 1e-9,
                    **values: Any) -> None:
    """The composite's own rule and autodiff of its definition both give torch's gradients, for a random cotangent."""
    inputs = tg.graph(node).inputs
    g = np.random.default_rng(9).normal(size=reference.shape)
    reference.backward(torch.tensor(g))
    cotangent = tg.input("cotangent", node.shape, node.dtype)
    leaves = {leaf: values[name] for name, leaf in inputs.items()} | {cotangent: g}
    for out in (node, expand_all([node])[0]):
        found = evaluate(tg.vjp([out], [cotangent], [inputs[name] for name in wrt]), leaves, {})
        for (name, tensor), ours in zip(wrt.items(), found, strict=True):
            assert tensor.grad is not None
            np.testing.assert_allclose(ours, tensor.grad.numpy(), rtol=rtol, atol=1e-11, err_msg=name)
