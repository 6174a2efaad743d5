"""reach: tolerances that no kernel can meet, refused before anything is compared: an output of f32 holds what f32 can hold.

One run of the oracle on random inputs, rounded to the dtype of the output, is the best that any kernel could give. It is asked only
where the tolerance is far below one rounding; near it, what the kernels were measured to reach decides (compile.py).
"""

from __future__ import annotations

import numpy as np

from tensor_graphs.compiler.choose import typical_sizes
from tensor_graphs.compiler.measuring import random_inputs
from tensor_graphs.costs.rounding import unit_roundoff
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.path import NoPathError

FAR_BELOW = 1024.0
"""times smaller than one rounding: nothing that is rounded on random numbers comes near"""

MOST_ELEMENTS = 1 << 20
"""of the operands and results of an op that the oracle is asked about; it takes some milliseconds"""

SEED = 20_011


def check_reach(graph: Graph, tolerance: float) -> None:
    """Raise NoPathError for a tolerance far below what rounding an output of the graph to its dtype costs."""
    sizes = typical_sizes(graph)
    for root in graph.roots:
        node = root.inputs[0] if root.op is leaves.ITEM else root
        rounding = unit_roundoff(node)
        narrow = sorted({t.dtype for t in node.types if t.dtype.is_float and t.dtype.itemsize < 8}, key=str)
        if not narrow or not tolerance * FAR_BELOW < rounding:
            continue
        signature = signature_of(node)
        least = _least_error(signature, {n: sizes[n] for n in signature.dim_names})
        if least > tolerance:
            raise NoPathError(f"no path is within the tolerance {tolerance:.2g}\n"
                              f"  {signature.title()}: rounding its exact result to {narrow[0]} costs {least:.1e} by itself\n"
                              f"  fix: a tolerance of {2 * rounding:.1e} or more, or operands and outputs of f64")


def _least_error(signature: Signature, binding: dict[str, int]) -> float:
    """The error of the oracle's own result, rounded to the dtype of the output; 0 where it is not known."""
    types = [node.type.at(binding) for node in (*signature.graph.inputs.values(), *signature.graph.outputs.values())]
    if sum(int(t.size()) for t in types) > MOST_ELEMENTS:
        return 0.0
    try:
        exact = interpret(signature.graph, random_inputs(signature.graph, binding, SEED), dims=binding).outputs
    except (TensorGraphsError, ValueError, IndexError):             # these sizes do not go together
        return 0.0
    with np.errstate(all="ignore"):
        return max(measure(value.astype(node.dtype.numpy), value, node.dtype).max_relative_error
                   for value, node in zip(exact.values(), signature.graph.outputs.values(), strict=True))
