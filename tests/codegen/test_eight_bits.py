"""eight_bits.h, in C and as CUDA on the host: every pattern is widened exactly, every f32 is rounded as ml_dtypes does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.codegen.backend_cuda import HEADER
from tensor_graphs.codegen.lower import lower
from tensor_graphs.codegen.pipelines import arranged
from tensor_graphs.devices import nvrtc
from tensor_graphs.kernels.kernel import Launch, LaunchCall
from tensor_graphs.language.anonymous_composite import part_between
from tensor_graphs.language.composite import Definition
from tensor_graphs.language.dtypes import DType
from tests.codegen import emulated
from tests.codegen.generated import Library

EIGHT = (tg.f8e4m3, tg.f8e5m2)
PATTERNS = np.arange(256, dtype=np.uint8)


def numbers(dtype: DType) -> np.ndarray:
    """f32: all values of a dtype, all middles between two neighbours, and the next f32 on both sides of each; beyond the largest,
    below the smallest; NaN of many payloads; any bits."""
    with np.errstate(all="ignore"):
        values = np.unique(PATTERNS.view(dtype.numpy).astype(np.float32))
        finite = values[np.isfinite(values)]
        step = finite[-1] - finite[-2]
        edges = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, finite[-1] + step * np.float32([0.25, 0.5, 0.75, 1, 2, 3])])
        edges = np.concatenate([edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf)),
                                np.float32([0, 1e-45, 1e-40, 1.2e-38, 1e-20, 1e9, 3.4e38, np.inf])])
        payloads = np.array([0x7F800001, 0x7FA00000, 0x7FC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
        drawn = np.random.default_rng(5).integers(0, 1 << 32, 200_000, np.uint32).view(np.float32)
        return np.concatenate([edges, -edges, payloads, -payloads, drawn]).astype(np.float32)


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    """The same numbers with the same signs, those of NaN too; whatever else a NaN holds."""
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].tobytes(), expected[~nan].tobytes())
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


# ---- in C ------------------------------------------------------------------------------------------------------------------------


@cache
def library() -> tuple[Library, list[Definition]]:
    """For each dtype a kernel that widens and one that narrows."""
    made = []
    for dtype in EIGHT:
        count = len(numbers(dtype))
        for x, to in ((tg.input("x", (256,), dtype), tg.f32), (tg.input("x", (count,)), dtype)):
            made.append(part_between([x.cast(to)], [x]).written)
    return Library([arranged(lower(w)) for w in made]), made


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_every_pattern_is_widened_exactly_in_c(dtype: DType) -> None:
    compiled, made = library()
    at = 2 * EIGHT.index(dtype)
    (found,) = compiled.run(at, made[at], [PATTERNS.view(dtype.numpy)], {})
    assert_same(found, PATTERNS.view(dtype.numpy).astype(np.float32))


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_every_f32_is_rounded_to_the_nearest_in_c(dtype: DType) -> None:
    compiled, made = library()
    at, x = 2 * EIGHT.index(dtype) + 1, numbers(dtype)
    (found,) = compiled.run(at, made[at], [x], {})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found.view(np.uint8), x.astype(dtype.numpy).view(np.uint8))


# ---- in CUDA ---------------------------------------------------------------------------------------------------------------------


def call_of_all(dtype: DType, count: int) -> LaunchCall:
    """wide[i] = x[i] of all patterns, near[i] of `count` numbers."""
    text = f"""#include "numbers.cuh"
extern "C" __global__ void __launch_bounds__(256) f(float *wide, uint8_t *near, const uint8_t *x, const float *y) {{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < 256) wide[i] = f32_of_{dtype.name}(x[i]);
    if (i < {count}) near[i] = {dtype.name}_of_f32(y[i]);
}}
"""
    return LaunchCall(text, (Launch("f", -(-count // 256), 256),))


@pytest.mark.parametrize("dtype", EIGHT, ids=str)
def test_the_same_text_as_cuda_says_the_same(dtype: DType, tmp_path_factory: pytest.TempPathFactory) -> None:
    y = numbers(dtype)[:6000]
    call = call_of_all(dtype, len(y))
    assert nvrtc.compiled(call.text, "sm_90", HEADER.parent)[:4] == b"\x7fELF"
    folder: Path = tmp_path_factory.mktemp("emulated")
    outputs = [((256,), np.dtype(np.float32)), ((len(y),), np.dtype(np.uint8))]
    wide, near = emulated.run(folder, call, outputs, [PATTERNS, y], {})
    assert_same(wide, PATTERNS.view(dtype.numpy).astype(np.float32))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(near, y.astype(dtype.numpy).view(np.uint8))


def test_a_wrong_number_is_noticed() -> None:
    """The comparison must itself be seen to fail: in a number, in the sign of zero, in that of NaN."""
    right = PATTERNS.view(tg.f8e4m3.numpy).astype(np.float32)
    for place, wrong in ((3, right[4]), (0, -0.0), (0x7F, -np.nan), (0x7F, 480.0)):
        found = right.copy()
        found[place] = wrong
        with pytest.raises(AssertionError):
            assert_same(found, right)
