"""path_errors: measures the errors of paths through an entire graph against the float64 oracle, on the inputs of their timed runs.

A path of several kernels rounds at every step, so its error does not follow from those of its kernels. The oracle runs after all
timed runs: no candidate runs in a process that holds the expected output."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.costs.roofline import work
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import is_step
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret

log = logging.getLogger(__name__)

MOST_BYTES, MOST_FLOPS = 1 << 27, 1 << 31
"""bytes and flops of a graph's steps, above which no error is measured: the oracle takes too long for a profile"""

WRONG = 1e6
"""largest error that is reported: stands also for a misplaced non-finite value and a wrong integer, as replies are finite"""


def is_measured(graph: Graph, dims: Mapping[str, int]) -> bool:
    """Return whether the graph is small enough for the oracle to evaluate it within some tenths of a second."""
    total = [work(s, tuple((n, dims[n]) for n in s.dim_names)) for s in map(signature_of, filter(is_step, graph.nodes))]
    return sum(nbytes for nbytes, _ in total) <= MOST_BYTES and sum(flops for _, flops in total) <= MOST_FLOPS


def errors_of(graph: Graph, outputs: Sequence[Mapping[str, Any]], inputs: Mapping[str, np.ndarray],
              weights: Mapping[str, np.ndarray], dims: Mapping[str, int]) -> list[float | None]:
    """Return each path's largest relative error over its outputs (states start at zero), or None where the oracle has no value."""
    try:
        right = interpret(graph, inputs, weights, dims=dims).outputs
    except (TensorGraphsError, ValueError, IndexError, MemoryError) as error:
        log.debug("the oracle has no value of the whole graph: %s", error)
        return [None] * len(outputs)
    errors: list[float | None] = []
    for of_path in outputs:
        reports = [measure(of_path[name], right[name], node.dtype) for name, node in graph.outputs.items()]
        worst = max((math.inf if r.mismatch is not None else r.max_relative_error for r in reports), default=0.0)
        errors.append(min(worst, WRONG))
    return errors
