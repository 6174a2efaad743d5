"""operand_precision: how far rounding moves what a kernel computes that rounds its operands to fewer bits (`Kernel.precision`).

The running error beside which such a kernel is measured is that of its graph with operands that are rounded first. No dtype has
the bits of TF32; bf16 has its exponent, so operands are rounded to that, and a rounding counts for as much less as TF32's is finer.
What explains a difference is then, as for other kernels, eight of its roundings; the error over it is one over what was added up.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.dtypes import DType, bf16, f32
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.leaves import INPUT
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.meaning.error_measure import neighbours_error, unit_roundoff
from tensor_graphs.meaning.precision import Precision
from tensor_graphs.meaning.running_error import running_error


def widened(dtype: DType, precision: Precision | None) -> float:
    """How much more a rounding to this precision is than one to the dtype."""
    return precision.unit / unit_roundoff(dtype) if precision is not None and dtype is f32 else 1.0


def running_errors(graph: Graph, inputs: Mapping[str, np.ndarray], binding: Mapping[str, int],
                   precision: Precision | None) -> dict[str, np.ndarray | None]:
    """`running_error`, for a kernel of a precision: what its roundings come to, in units of those of the outputs' dtypes."""
    if precision is None:
        return running_error(graph, inputs, binding)
    found = running_error(graph.with_roots(rebuild(graph.roots, _rounded)), inputs, binding)
    return {name: None if error is None else error * _in_units(graph.outputs[name].dtype) for name, error in found.items()}


def neighbours(ref: np.ndarray, dtype: DType, precision: Precision | None) -> np.ndarray:
    """`neighbours_error`, likewise."""
    is_coarser = precision is not None and dtype is f32
    return neighbours_error(ref, bf16) * _in_units(dtype) if is_coarser else neighbours_error(ref, dtype)


def _rounded(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    return atomic.cast(atomic.cast(node, bf16), f32) if node.op is INPUT and node.dtype is f32 else None


def _in_units(dtype: DType) -> float:
    return unit_roundoff(dtype) / unit_roundoff(bf16) if dtype is f32 else 1.0
