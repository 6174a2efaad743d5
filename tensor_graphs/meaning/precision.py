"""precision: arithmetic with fewer bits than its operands have, which a kernel may declare (`Kernel.precision`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """A precision to which operands of f32 are rounded. unit: largest relative change by a rounding. limit: the error beyond which
    a result cannot come from such operands, as `SAME_MATH` is for operands that are not rounded."""

    name: str
    unit: float
    limit: float


TF32 = Precision("tf32", 2.0 ** -11, 3.5e-3)
"""8 bits of exponent and 10 of fraction (NVIDIA A100 Tensor Core GPU Architecture, 2020). The largest error of a million sums was
1.6e-3; with truncated operands it was 2.1e-3, with 8 bits of fraction 5.5e-3, and with the 7 bits of bf16 1.1e-2"""

PRECISIONS = {TF32.name: TF32}
