"""rounded_operand_errors: bounds the errors of a kernel that rounds its operands to fewer bits (`Kernel.precision`).

The reference for such a kernel is the running error of its graph with operands rounded first. No dtype has the bits of TF32. bf16
has its exponents, so operands are rounded to bf16, and its larger rounding is scaled to that of TF32. A difference is then
explained, as for other kernels, by eight of the kernel's roundings."""

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
    """Return the factor by which a rounding to this precision is larger than a rounding to the dtype."""
    return precision.unit / unit_roundoff(dtype) if precision is not None and dtype is f32 else 1.0


def running_errors(graph: Graph, inputs: Mapping[str, np.ndarray], binding: Mapping[str, int],
                   precision: Precision | None) -> dict[str, np.ndarray | None]:
    """Return `running_error` for a kernel of this precision, rescaled from roundings to bf16 to those of the outputs' dtypes."""
    if precision is None:
        return running_error(graph, inputs, binding)
    errors = running_error(graph.with_roots(rebuild(graph.roots, _rounded)), inputs, binding)
    return {name: None if error is None else error * _in_units(graph.outputs[name].dtype) for name, error in errors.items()}


def neighbours(ref: np.ndarray, dtype: DType, precision: Precision | None) -> np.ndarray:
    """Return `neighbours_error` for a kernel of this precision."""
    is_coarser = precision is not None and dtype is f32
    return neighbours_error(ref, bf16) * _in_units(dtype) if is_coarser else neighbours_error(ref, dtype)


def _rounded(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    return atomic.cast(atomic.cast(node, bf16), f32) if node.op is INPUT and node.dtype is f32 else None


def _in_units(dtype: DType) -> float:
    return unit_roundoff(dtype) / unit_roundoff(bf16) if dtype is f32 else 1.0
