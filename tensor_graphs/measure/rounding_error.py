"""rounding_error: the least error that any output of its dtype can have: the oracle's own result, rounded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.points.inputs import make_inputs

SEED = 20_011


def least_error(signature: Signature, binding: Mapping[str, int]) -> float:
    """Return the relative error on random inputs of the oracle's result after one rounding to the output's dtype; 0 where the sizes
    do not fit together."""
    graph = signature.graph
    try:
        exact = interpret(graph, make_inputs(graph, binding, SEED), dims=binding).outputs
    except (TensorGraphsError, ValueError, IndexError):
        return 0.0
    with np.errstate(all="ignore"):
        return max(measure(value.astype(node.dtype.numpy), value, node.dtype).max_relative_error
                   for value, node in zip(exact.values(), graph.outputs.values(), strict=True))
