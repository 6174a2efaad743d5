"""precision: arithmetic of fewer bits than its operands have, which a kernel may say that it uses (`Kernel.precision`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision to which operands of f32 are rounded. unit: largest relative change by a rounding. limit: the error beyond which
    a result is not that of such operands, as `SAME_MATH` for operands that are not rounded."""

    name: str
    unit: float
    limit: float


TF32 = Precision("tf32", 2.0 ** -11, 3.5e-3)
"""8 bits of exponent and 10 of fraction (NVIDIA A100 Tensor Core GPU Architecture, 2020). Of a million sums the furthest was off by
1.6e-3, by 2.1e-3 with operands that are cut off, by 5.5e-3 with 8 bits and by 1.1e-2 with bf16's 7"""

PRECISIONS = {TF32.name: TF32}
