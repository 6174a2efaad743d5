"""assumption_points: tests if a kernel's assumptions (`assuming=`) hold at a point; the kernel is compared only there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import leaves
from tensor_graphs.language.anonymous_composite import over
from tensor_graphs.meaning.assumptions import OVERFLOW
from tensor_graphs.measure.points.inputs import Point, point_inputs
from tensor_graphs.rewrites.conditions import broken

SHARE = 0.5
"""largest magnitude at which operands count as safe from overflow, as a share of the logarithm of the dtype's largest number: 44
for f32, 5.5 for f16. Sums of exponentials, squares and products of such numbers stay in range"""


def holds(assuming: Sequence[str], signature: Signature, point: Point) -> bool:
    """Return whether all assumptions hold at a point. "No overflow" holds where all operands' floats are finite and at most SHARE
    of the logarithm of their dtype's largest number. Any other condition holds where no op of the definition breaks it."""
    graph, inputs = signature.graph, point_inputs(signature.graph, point)
    if OVERFLOW in assuming:
        for name, x in graph.inputs.items():
            values = inputs[name].astype(np.float64) if x.dtype.is_float else np.zeros(0)
            if values.size and not np.abs(values).max() <= SHARE * np.log(x.dtype.max):
                return False
    others = [name for name in assuming if name != OVERFLOW]
    if not others:
        return True
    operands = list(graph.inputs.values())
    sized = [leaves.input(n, x.type.at(point.binding).shape, x.dtype) for n, x in graph.inputs.items()]
    try:
        places = broken(over(graph.roots, operands, sized), dict(zip(sized, inputs.values(), strict=True)), written_out=True)
    except TensorGraphsError:                                       # nothing is known of it there
        return False
    return not any(name in broken_there for broken_there in places for name in others)
