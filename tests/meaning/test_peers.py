"""The oracle and the error measure against other people's code: torch and numpy op by op as written, numpy's percentile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret


def numpys_sqrt(x: torch.Tensor) -> torch.Tensor:
    """numpy's is correctly rounded in float32, torch's is off by one ulp here and there."""
    return torch.from_numpy(np.sqrt(x.float().numpy())).to(x.dtype)


FLOATS = {tg.f32: torch.float32, tg.f16: torch.float16, tg.bf16: torch.bfloat16}
PAIRS: dict[str, tuple[Callable[..., Node], Callable[..., torch.Tensor]]] = {
    "add": (atomic.add, torch.add), "mul": (atomic.mul, torch.mul), "max": (atomic.max, torch.maximum),
    "less": (atomic.less, torch.less), "not_equal": (atomic.not_equal, torch.ne),
    "where": (lambda x, y: atomic.where(atomic.less(x, y), x, y), lambda x, y: torch.where(x < y, x, y)),
    "sqrt": (lambda x, y: atomic.sqrt(x), lambda x, y: numpys_sqrt(x)),
    "floor": (lambda x, y: atomic.floor(x), lambda x, y: torch.floor(x)),
    "reciprocal": (lambda x, y: atomic.reciprocal(x), lambda x, y: torch.reciprocal(x)),
    "reduce_max": (lambda x, y: atomic.reduce_max(x, 0), lambda x, y: torch.amax(x, 0)),
    "to i8": (lambda x, y: atomic.cast(atomic.floor(x), tg.i8), lambda x, y: x.floor().to(torch.int8)),
    "bits": (lambda x, y: atomic.bitcast(x, tg.u8), lambda x, y: x.view(torch.uint8)),
    "three in a row": (lambda x, y: atomic.add(atomic.mul(x, y), x), lambda x, y: x * y + x),
}


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers over the range of an i8, of many sizes."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g, dtype=torch.float64) * torch.exp2(torch.randint(-12, 6, shape, generator=g).double())
    return x.clamp(-100, 100).to(dtype)


@pytest.mark.parametrize("shape", [(40, 50), (1, 1), (3, 0)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_as_written_is_bit_for_bit_what_the_libraries_compute(name, dtype: DType, shape):
    ours, theirs = PAIRS[name]
    x, y = sample(shape, FLOATS[dtype], 1), sample(shape, FLOATS[dtype], 2)
    if name in ("sqrt", "reciprocal"):
        x = x.abs() + 1
    expected = theirs(x, y)
    g = tg.graph(ours(tg.input("x", shape, dtype), tg.input("y", shape, dtype)))
    used = {k: v.double().numpy() for k, v in (("x", x), ("y", y)) if k in g.inputs}
    found = interpret(g, used, mode="as_written").outputs["out"]
    assert found.dtype == g.outputs["out"].dtype.numpy
    np.testing.assert_array_equal(found.astype(np.float64), expected.double().numpy())


@pytest.mark.parametrize("name", ["exp2", "log2", "sin"])
def test_in_real_mode_the_elementary_functions_are_numpys_in_float64(name):
    x = np.random.default_rng(0).uniform(0.1, 30, (20, 3)).astype(np.float32)
    found = interpret(tg.graph(getattr(atomic, name)(tg.input("x", (20, 3)))), {"x": x}).outputs["out"]
    np.testing.assert_array_equal(found, getattr(np, name)(x.astype(np.float64)))


@pytest.mark.parametrize("size", [1, 2, 999, 1000, 1002, 2000, 2003, 9000, 12345])
def test_the_percentile_is_numpys_next_higher_one(size):
    rng = np.random.default_rng(size)
    ref = rng.uniform(1, 2, size)                                   # every value is larger than half of its row
    out = ref * (1 + rng.normal(size=size) * 1e-3)
    rms = np.sqrt(np.mean(ref ** 2))
    errors = np.abs(out - ref) / np.maximum(ref, rms)
    report = measure(out, ref, tg.f64)
    assert report.p999 == pytest.approx(np.percentile(errors, 99.9, method="higher"), rel=1e-12)
    assert report.max_relative_error == pytest.approx(errors.max(), rel=1e-12)


@pytest.mark.parametrize("dtype", [*FLOATS, tg.f64], ids=str)
def test_one_percent_off_at_one_place_is_seen(dtype: DType):
    ref = np.random.default_rng(0).normal(size=(20, 30)) + 3
    out = ref.copy()
    assert measure(out, ref, dtype).within(0.0)
    out[7, 8] *= 1.01
    report = measure(out, ref, dtype)
    assert not report.within(0.005) and report.within(0.0101) and report.mismatch is None
    out[7, 8] = np.nan
    assert not measure(out, ref, dtype).within(float("inf"))
