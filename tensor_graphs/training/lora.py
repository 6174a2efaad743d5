"""lora: adapters of low rank next to a graph's linear layers, so that a few numbers are trained and the weights stay.

Source: Hu et al., "LoRA: low-rank adaptation of large language models", 2022: y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ, B zero at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import ArgumentError, whole
from tensor_graphs.errors import listed
from tensor_graphs.language import atomic, leaves
from tensor_graphs.language.composites import linear
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, apply, rebuild

DOWN, UP = ".lora_a", ".lora_b"


@dataclass(frozen=True)
class Adapted:
    """graph: with adapters. adapters: their first values, by parameter. scale: s."""

    graph: Graph
    adapters: Mapping[str, np.ndarray]
    scale: float

    def merged(self, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the weights of the graph without adapters that computes the same: W + s·B·A, rounded to W's dtype."""
        merged = {name: np.asarray(array) for name, array in weights.items() if name not in self.adapters}
        for name in [name.removesuffix(UP) for name in self.adapters if name.endswith(UP)]:
            down, up = (np.asarray(weights[name + kind], np.float32) for kind in (DOWN, UP))
            merged[name] = (merged[name] + self.scale * (up @ down)).astype(merged[name].dtype)
        return merged


def lora(program: Graph, pattern: str = "*", *, rank: int = 8, scale: float = 2.0, seed: int = 0) -> Adapted:
    """Return the graph with an adapter at each linear layer whose weight's name fits a pattern (as in fnmatch); the parameters
    NAME.lora_a [rank, in] and NAME.lora_b [out, rank] are new. Raises ArgumentError where no layer fits."""
    rng, first = np.random.default_rng(seed), dict[str, np.ndarray]()
    whole("rank", rank, 1)

    def replace(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        weight = inputs[1] if node.op.name == "linear" else None
        if weight is None or weight.op is not leaves.PARAMETER or not fnmatchcase(weight.attrs["name"], pattern):
            return None
        name, x, (size, inner) = weight.attrs["name"], inputs[0], map(int, weight.shape)
        first[name + DOWN] = rng.normal(0, inner**-0.5, (rank, inner)).astype(x.dtype.numpy)
        first[name + UP] = np.zeros((size, rank), x.dtype.numpy)
        down, up = (leaves.parameter(name + kind, first[name + kind].shape, x.dtype) for kind in (DOWN, UP))
        adapter: Node = linear(linear(x, down), up) * scale
        return atomic.add(apply(node.op, inputs, node.attrs), adapter)

    graph = program.with_roots(rebuild(program.roots, replace))
    if not first:
        names = [n.inputs[1].attrs["name"] for n in program.nodes if n.op.name == "linear" and n.inputs[1].op is leaves.PARAMETER]
        raise ArgumentError(f"no linear layer has a weight like {pattern!r}\n  fix: a pattern for {listed(names) or 'none'}")
    return Adapted(graph, first, scale)
