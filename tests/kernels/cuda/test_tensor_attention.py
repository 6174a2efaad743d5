"""tensor_attention.cu, float_attention.cu, few_queries.cu: attention by tensor cores, of many queries, and of few over many keys.
Texts are compiled without a GPU, and the form for operands that lie anywhere runs as C++ on the host; tiles need a GPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import nvrtc
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.kernels.cuda import attention, backend
from tensor_graphs.kernels.kernel import LaunchCall, Spec
from tensor_graphs.language import dims as d
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.codegen import emulated, launched

N, P = tg.dim("n", 0, 3000), tg.dim("p", 0, 3000)
NEAR = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 3e-6}
"""of a result beside the largest: its rounding, and that of the weights; of f32 those of sums"""


def attending(width: int, heads: int = 4, of_keys: int = 2, dtype: DType = tg.bf16, **how: Any) -> Node:
    q = tg.input("q", (N, heads, width), dtype)
    k, v = (tg.input(name, (N + P, of_keys, width), dtype) for name in "kv")
    return tg.attention(q, k, v, **{"scale": 0.125, "causal": True, "start": P, **how})


def of_many(y: Node, near: bool = False) -> LaunchCall:
    spec = Spec.of(y)
    if near:
        return attention.tensor_attention(spec, near=True)
    return attention.float_attention(spec) if y.dtype is tg.f32 else attention.tensor_attention(spec)


def drawn(y: Node, dims: dict[str, int], seed: int = 1) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    shapes = {i: [int(d.evaluate(s, dims)) for s in i.shape] for i in y.inputs}
    return {i.attrs["name"]: draw.standard_normal(shape).astype(i.dtype.numpy) for i, shape in shapes.items()}


def right(y: Node, arrays: dict[str, np.ndarray], dims: dict[str, int]) -> np.ndarray:
    return np.asarray(interpret(make_graph(y), arrays, dims=dims).outputs["out"])


def close(found: np.ndarray, wanted: np.ndarray, dtype: DType) -> None:
    wide = wanted.astype(np.float64)
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=1e-30)
    np.testing.assert_allclose(found.astype(np.float64), wide, rtol=NEAR[dtype.name], atol=NEAR[dtype.name] * largest)


@pytest.mark.parametrize(("width", "dtype"), [
    (64, tg.bf16), (72, tg.f32), *(pytest.param(width, dtype, marks=pytest.mark.long) for width, dtype in (
        (72, tg.bf16), (256, tg.bf16), (64, tg.f16), (72, tg.f16), (256, tg.f16), (64, tg.f32), (256, tg.f32)))])
def test_texts_of_all_lengths_of_heads_compile(width: int, dtype: DType) -> None:
    for how in ({}, {"causal": False, "window": 100, "softcap": 30.0, "scale": -0.5}):
        for near in (False, True) if dtype is not tg.f32 else (False,):
            call = of_many(attending(width, dtype=dtype, **how), near)
            assert call.launches[-1].shared <= 227 << 10
            for architecture in ("sm_90a", "sm_80") if not how else ("sm_90a",):        # elsewhere without the tiles
                assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


@pytest.mark.parametrize(("y", "n", "p"), [
    (attending(64), 5, 3), (attending(40, 2, 2, tg.f16, window=4), 7, 20), (attending(72, 2, 1, causal=False, softcap=2.0), 3, 0),
    (attending(8, 1, 1, start=-2), 4, 0), (attending(40, 2, 1, tg.f32, window=9), 7, 20)])
def test_operands_that_lie_anywhere_are_computed_one_by_one(tmp_path: Path, y: Node, n: int, p: int) -> None:
    dims = {"n": n, "p": p}
    call = of_many(y).otherwise
    assert call is not None
    arrays = drawn(y, dims)
    wanted = right(y, arrays, dims)
    found, = emulated.run(tmp_path, call, [(wanted.shape, y.dtype.numpy)], list(arrays.values()), dims, 1)
    close(found, wanted, y.dtype)


@pytest.mark.parametrize("width", [64, 192])
@pytest.mark.parametrize("dtype", [tg.bf16, pytest.param(tg.f16, marks=pytest.mark.long)])
def test_texts_for_few_queries_compile(width: int, dtype: DType) -> None:
    for how in ({}, {"causal": False, "window": 100, "softcap": 30.0, "scale": -0.5}):
        call = attention.few_queries(Spec.of(attending(width, dtype=dtype, **how)))
        assert call.launches[0].shared + 10240 <= 227 << 10
        for architecture in ("sm_80", "sm_90a"):
            assert nvrtc.compiled(call.text, architecture, backend.HEADER.parent)[:4] == b"\x7fELF"


def test_a_longer_cache_is_the_same_launch() -> None:
    first, _ = attention.few_queries(Spec.of(attending(64))).launches
    assert d.evaluate(first.grid, {"n": 1, "p": 5}) == d.evaluate(first.grid, {"n": 1, "p": 2900})


@pytest.mark.parametrize(("y", "why"), [(attending(96), "a multiple of 64"), (attending(64, 34, 2), "too many heads")])
def test_what_the_kernel_for_few_queries_does_not_take_is_said(y: Node, why: str) -> None:
    said = attention.few_queries_takes(Spec.of(y))
    assert said is not None and why in said


@pytest.mark.parametrize(("y", "why"), [
    (attending(64, dtype=tg.f32), "bf16 or f16"), (attending(36), "a multiple of 8"), (attending(264), "up to 256")])
def test_what_it_does_not_take_is_said(y: Node, why: str) -> None:
    said = attention.tensor_attention_takes(Spec.of(y))
    assert said is not None and why in said
    assert (attention.float_attention_takes(Spec.of(y)) is None) is (why == "bf16 or f16")


# ---- on a GPU ----------------------------------------------------------------------------------------------------------

CASES = [attending(64), attending(128), attending(256, 4, 1, window=512), attending(128, causal=False), attending(192, 2, 1),
         attending(256, 2, 2, causal=False, window=70), attending(64, softcap=20.0), attending(64, scale=-0.2),
         attending(128, dtype=tg.f16, window=1), attending(128, 2, 2, start=-40), attending(64, 10, 2), attending(96, 3, 3),
         attending(8, 2, 1)]
FEW = CASES[:-2]
MANY = CASES + [attending(width, 4, 2, tg.f32, **how) for width in (64, 128, 192, 256, 72) for how in (
    {}, {"causal": False, "window": 70}, {"softcap": 20.0, "start": -40}, {"scale": -0.2})]


@pytest.mark.gpu
@pytest.mark.parametrize("y", MANY, ids=range(len(MANY)))
def test_tiles_give_what_the_oracle_gives(y: Node) -> None:
    device, calls = device_named("cuda:0"), [of_many(y), *([of_many(y, near=True)] if y.dtype is not tg.f32 else [])]
    for n, p in ((1, 0), (64, 1), (127, 0), (129, 300), (300, 77), (513, 0), (40, 1000), (700, 90)):
        dims = {"n": n, "p": p}
        arrays = drawn(y, dims, n)
        wanted = right(y, arrays, dims)
        for call in calls * 3:                                      # a race would show as a difference
            found, = launched.run_call(device, call, [y], list(arrays.values()), dims)
            close(found, wanted, y.dtype)


@pytest.mark.gpu
def test_many_small_weights_of_f16_are_not_lost() -> None:
    """One key has nearly all of the weight and a value of 0; 2,000 others have 2^-26 each, and values of 2^15."""
    y, dims = attending(64, 1, 1, tg.f16, causal=False, scale=1.0), {"n": 64, "p": 2000}
    arrays = {name: np.zeros_like(a) for name, a in drawn(y, dims).items()}
    arrays["q"][:, :, 0] = 1.0
    arrays["k"][0, :, 0] = 26 * math.log(2)
    arrays["v"][1:] = 2.0**15
    wanted = right(y, arrays, dims)
    assert wanted.min() > 0.5
    for call in (of_many(y), of_many(y, near=True), attention.few_queries(Spec.of(y))):
        found, = launched.run_call(device_named("cuda:0"), call, [y], list(arrays.values()), dims)
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("y", FEW, ids=range(len(FEW)))
def test_few_queries_give_what_the_oracle_gives(y: Node) -> None:
    device = device_named("cuda:0")
    call = attention.few_queries(Spec.of(y))
    for n, p in ((1, 0), (1, 15), (1, 2900), (3, 700), (16, 33), (40, 1000)):
        dims = {"n": n, "p": p}
        arrays = drawn(y, dims, n)
        wanted = right(y, arrays, dims)
        for _ in range(3):
            found, = launched.run_call(device, call, [y], list(arrays.values()), dims)
            close(found, wanted, y.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [tg.bf16, tg.f32])
def test_rows_whose_scores_are_not_numbers_are_none_and_others_are(dtype: DType) -> None:
    device, y, dims = device_named("cuda:0"), attending(64, 2, 2, dtype), {"n": 200, "p": 0}
    arrays = drawn(y, dims)
    arrays["q"][70, 0, 3] = np.nan
    arrays["q"][80, 1] = np.inf
    found, = launched.run_call(device, of_many(y), [y], list(arrays.values()), dims)
    wanted = right(y, arrays, dims)
    assert np.isnan(found[70, 0].astype(np.float32)).all() and np.isnan(found[80, 1].astype(np.float32)).all()
    close(found, wanted, y.dtype)


@pytest.mark.gpu
def test_floats_whose_scores_are_infinite_below_are_not_lost() -> None:
    device, y, dims = device_named("cuda:0"), attending(64, 2, 2, tg.f32), {"n": 200, "p": 0}
    arrays = drawn(y, dims)
    arrays["q"] = np.abs(arrays["q"])
    arrays["k"][30, 1, 5] = -np.inf                                 # hidden from all of its head by its score
    found, = launched.run_call(device, of_many(y), [y], list(arrays.values()), dims)
    wanted = right(y, arrays, dims)
    assert np.isfinite(wanted).all()
    close(found, wanted, y.dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("dtype", [tg.bf16, tg.f16, tg.f32])
def test_rows_of_scores_of_any_size_are_weighed(dtype: DType, scale: float) -> None:
    """From 1e9 on, a score times a factor rounds by more than an exponent of f32 holds."""
    y = attending(64, dtype=dtype, scale=scale)
    device, dims = device_named("cuda:0"), {"n": 260, "p": 40}
    arrays = drawn(y, dims)
    of_16_bits = y.dtype is tg.f16
    sizes = 10.0 ** np.linspace(0, 4 if of_16_bits else 16, 260)[:, None, None]
    arrays["q"] = (arrays["q"].astype(np.float64) * sizes).astype(y.dtype.numpy)
    arrays["k"] = (arrays["k"].astype(np.float64) * (1e4 if of_16_bits else 1e16)).astype(y.dtype.numpy)
    wanted = right(y, arrays, dims)
    for call in (of_many(y), *([of_many(y, near=True)] if y.dtype is not tg.f32 else [])):
        found, = launched.run_call(device, call, [y], list(arrays.values()), dims)
        close(found, wanted, y.dtype)


@pytest.mark.gpu
def test_operands_off_their_alignment_are_computed_one_by_one_there_too() -> None:
    device, y, dims = device_named("cuda:0"), attending(64), {"n": 70, "p": 9}
    arrays = drawn(y, dims)
    found, = launched.run_call(device, attention.tensor_attention(Spec.of(y)), [y], list(arrays.values()), dims, shift=1)
    close(found, right(y, arrays, dims), y.dtype)
