"""precision: arithmetic of fewer bits than its operands have, which a kernel may say that it uses (`Kernel.precision`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """What operands of f32 are rounded to. unit: the most that a rounding changes one, relative to it. limit: the error beyond
    which a result is not that of such operands, as `SAME_MATH` has it for those that are not rounded."""

    name: str
    unit: float
    limit: float


TF32 = Precision("tf32", 2.0 ** -11, 3.5e-3)
"""8 bits of exponent and 10 of fraction (NVIDIA A100 Tensor Core GPU Architecture, 2020). Of a million sums the furthest was off by
1.6e-3, by 2.1e-3 with operands that are cut off, by 5.5e-3 with 8 bits and by 1.1e-2 with bf16's 7"""

PRECISIONS = {each.name: each for each in (TF32,)}
