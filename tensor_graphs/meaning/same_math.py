"""same_math: the error beyond which a result counts as different math, per dtype of the output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensor_graphs.language.node import TensorType

if TYPE_CHECKING:
    from tensor_graphs.meaning.precision import Precision

SAME_MATH = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2, "f8e4m3": 0.25, "f8e5m2": 0.5}
"""error beyond which a result counts as different math in this dtype, whatever tolerance a user allows"""


def same_math_limit(outputs: Iterable[TensorType], precision: Precision | None = None) -> float:
    """Return the largest error that counts as the same math for these types; 0 (exact) for integers. precision: a kernel's."""
    limits = SAME_MATH if precision is None else {**SAME_MATH, "f32": precision.limit}
    return max((limits.get(t.dtype.name, 0.0) for t in outputs), default=0.0)
