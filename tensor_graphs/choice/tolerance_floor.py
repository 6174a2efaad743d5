"""tolerance_floor: refuse, before any comparison, tolerances that no kernel can meet: an f32 output has only the precision of f32.

The oracle's result on random inputs, rounded to the output's dtype, is the best that any kernel could give. It is computed only if
the tolerance is far below one rounding; for larger ones, measured errors of kernels decide (compile.py).
"""

from __future__ import annotations

from tensor_graphs.choice.cost_table import typical_sizes
from tensor_graphs.choice.deferred_measure import least_error
from tensor_graphs.costs.predicted_error import unit_roundoff
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import leaves
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.path import NoPathError

FAR_BELOW = 1024.0
"""factor below one rounding: no rounded result on random numbers is that accurate"""

MOST_ELEMENTS = 1 << 20
"""most elements of operands and results of an op that the oracle computes for this, in some milliseconds"""


def check_reach(graph: Graph, tolerance: float) -> None:
    """Raise NoPathError for a tolerance far below the error of rounding an output of the graph to its dtype."""
    sizes = typical_sizes(graph)
    for root in graph.roots:
        node = root.inputs[0] if root.op is leaves.ITEM else root
        rounding = unit_roundoff(node)
        narrow = sorted({t.dtype for t in node.types if t.dtype.is_float and t.dtype.itemsize < 8}, key=str)
        if not narrow or not tolerance * FAR_BELOW < rounding:
            continue
        signature = signature_of(node)
        binding = {n: sizes[n] for n in signature.dim_names}
        types = [node.type.at(binding) for node in (*signature.graph.inputs.values(), *signature.graph.outputs.values())]
        if sum(int(t.size()) for t in types) <= MOST_ELEMENTS and (least := least_error(signature, binding)) > tolerance:
            raise NoPathError(f"no path is within the tolerance {tolerance:.2g}\n"
                              f"  {signature.title()}: rounding its exact result to {narrow[0]} costs {least:.1e} by itself\n"
                              f"  fix: a tolerance of {2 * rounding:.1e} or more, or operands and outputs of f64")
