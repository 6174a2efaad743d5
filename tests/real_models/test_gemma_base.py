"""benchmarks/gemma_base.py: each weight is moved by less than half a step of its codes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gemma_base import LOWEST_BITS, values_with_noise

pytestmark = pytest.mark.models

LAYOUTS = {"Q8_0": (32, (0,)), "Q5_0": (32, (0,)), "Q4_K": (32, (0, 2)), "Q6_K": (16, (208,))}
"""Type -> (number of neighbours with one step, where a block's numbers in f16 lie)."""


@pytest.mark.usefixtures("gemma_packages")
@pytest.mark.parametrize("name", LOWEST_BITS)
def test_noise_is_uniform_within_half_a_step(name: str) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind, (alike, scales), rng = GGMLQuantizationType[name], LAYOUTS[name], np.random.default_rng(1)
    packed = rng.integers(0, 256, (256, GGML_QUANT_SIZES[kind][1]), np.uint8)
    for at in scales:
        packed[:, at:at + 2] = rng.uniform(0.01, 0.1, (256, 1)).astype("<f2").view(np.uint8)
    values = dequantize(packed, kind)
    noise = (values_with_noise(packed, kind, rng) - values).reshape(-1, alike)
    gaps = [np.diff(np.unique(row)) for row in values.reshape(-1, alike)]
    steps = np.array([gap.min() if len(gap) else 0 for gap in gaps])
    assert (np.abs(noise) <= 0.501 * steps[:, None]).all()
    parts = noise[steps > 0] / steps[steps > 0, None]
    assert abs(parts.mean()) < 0.01 and parts.std() == pytest.approx(12 ** -0.5, rel=0.03)
