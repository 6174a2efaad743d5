"""tg.cuda_kernel: a CUDA kernel of a user's own is compiled where it is declared, and computes what its op says (on the host)."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.devices import cuda
from tensor_graphs.devices.c_code import ToolchainError
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import KernelError, LaunchCall, Spec
from tests.codegen import emulated

N = tg.dim("n", 1, 4096)
SILU = """
#include "numbers.cuh"
extern "C" __global__ void __launch_bounds__(64) own_silu(float *y, const float *x, const int64_t *ints) {
    const int64_t i = blockIdx.x * 64 + threadIdx.x;
    if (i < ints[0]) y[i] = x[i] / (1 + expf(-x[i]));
}
"""


@pytest.fixture(autouse=True)
def _no_kernel_is_left() -> Iterator[None]:
    before = set(registry._places)
    yield
    for name in set(registry._places) - before:
        registry.unregister(name)


def count(spec: Spec) -> list[Any]:
    return [math.prod(spec.outputs[0].shape)]


def declared(**changed: Any) -> Any:
    given = {"source": SILU, "entry": "own_silu", "dtypes": ["f32"], "block": 64, "ints": count,
             "grid": lambda spec: (math.prod(spec.outputs[0].shape) + 63) // 64}
    return tg.cuda_kernel(changed.pop("op", "silu"), **{**given, **changed})


def test_it_computes_what_its_op_says_at_each_size(tmp_path: Path) -> None:
    kernel = declared()
    call = kernel.build(Spec.of(tg.silu(tg.input("x", (N, 5)))))
    assert isinstance(call, LaunchCall)
    for n in (1, 13, 40):
        x = np.random.default_rng(n).standard_normal((n, 5)).astype(np.float32)
        (y,) = emulated.run(tmp_path, call, [((n, 5), np.dtype(np.float32))], [x], {"n": n})
        np.testing.assert_allclose(y, x / (1 + np.exp(-x.astype(np.float64))), rtol=1e-6)


def test_a_kernel_of_a_graph_is_a_kernel_of_its_part() -> None:
    x, y = tg.input("x", (N, 8)), tg.input("y", (N, 8))
    text = SILU.replace("own_silu", "own_gate").replace("const float *x,", "const float *x, const float *b,").replace(
        "expf(-x[i]))", "expf(-x[i])) * b[i]")
    kernel = tg.cuda_kernel(tg.graph(tg.silu(x) * y), source=text, entry="own_gate", dtypes=["f32"], block=64, ints=count,
                            grid=lambda spec: (math.prod(spec.outputs[0].shape) + 63) // 64)
    assert kernel.name == "cuda.own_gate" and kernel.composite is not None
    assert kernel.composite in registry.parts()


def test_scratch_comes_last_in_whole_blocks() -> None:
    text = SILU.replace("const int64_t *ints)", "const int64_t *ints, float *parts)")
    call = declared(source=text, scratch=lambda spec: [4 * spec.inputs[0].shape[0]]).build(Spec.of(tg.silu(tg.input("x", (N,)))))
    assert [str(p) for p in call.pieces] == ["256*((n + 63) // 64)"] and str(call.launches[0].grid) == "(n + 63) // 64"


@pytest.mark.skipif(cuda.why_missing() is None, reason="of a machine without a GPU, and this one has one")
def test_without_a_gpu_it_is_registered_and_no_candidate(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kernel = declared()
    assert "kernel cuda.own_silu is no candidate" in caplog.text
    assert kernel.accepts(Spec.of(tg.silu(tg.input("x", (N,))))) is not None


@pytest.mark.parametrize(("changed", "error", "says"), [
    ({"entry": "other"}, KernelError, "its source has no function 'other'"),
    ({"source": SILU.replace('extern "C" ', "")}, KernelError, "no name by which it can be found"),
    ({"source": SILU.replace("__global__ void __launch_bounds__(64) own_silu", "__device__ void own_silu")}, KernelError,
     "'own_silu' of its source is no kernel that can be launched"),
    ({"source": SILU.replace("own_silu(", "another(") + "// own_silu(x)"}, KernelError, "is no kernel that can be launched"),
    ({"source": SILU.replace("expf(-x[i])", "exq(-x[i])")}, ToolchainError, '"exq" is undefined'),
    ({"source": SILU.replace("expf(-x[i])", "exq(-x[i])")}, ToolchainError, "cannot compile own_silu.cu for sm_90"),
    ({"source": f"#include <cuda_fp16.h>\n{SILU}"}, ToolchainError, "fix: NVRTC has no headers of the system"),
    ({"source": "own.cu"}, KernelError, "there is no such file"),
    ({"dtypes": []}, KernelError, "which arrays it can read"),
    ({"block": 2048}, KernelError, "a block has 2048 threads"),
    ({"shared": -1}, KernelError, "shared is -1"),
    ({"scratch": [-3]}, KernelError, "scratch is [-3]"),
    ({"scratch": "x"}, KernelError, "fix: scratch=lambda spec:"),
    ({"ints": "n"}, KernelError, "ints is 'n'"),
    ({"ints": lambda spec, n: [n]}, KernelError, "ints is called with 1 argument (spec), and takes (spec, n)"),
    ({"grid": None}, KernelError, "grid is None, which is no number of blocks"),
    ({"grid": 0}, KernelError, "grid is 0, which is no number of blocks"),
    ({"grid": lambda spec, n: n}, KernelError, "grid is called with 1 argument (spec), and takes (spec, n)"),
    ({"in_place": ((0, 7),)}, KernelError, "in_place names operand 7, which silu does not have; it has 1"),
    ({"source": b"x"}, KernelError, "source is of type bytes, and neither a text nor a file"),
    ({"dtypes": "f32"}, KernelError, "dtypes is 'f32', and no list of them"),
    ({"name": "numpy.silu"}, KernelError, "no name of the backend 'cuda'"),
    ({"entry": "own silu"}, KernelError, "no name of a CUDA function")])
def test_what_is_wrong_with_it_is_said_where_it_is_declared(changed: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)) as caught:
        declared(**changed)
    assert error is ToolchainError or "fix:" in str(caught.value)


def test_where_it_cannot_be_registered_that_is_the_one_message(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KernelError, match="computes 'silo', which is no op"):
        declared(op="silo")
    assert "no candidate" not in caplog.text


def test_a_grid_that_is_no_number_of_blocks_is_named() -> None:
    with pytest.raises(KernelError, match="what grid returns is 1.5, which is no number of blocks"):
        declared(grid=lambda spec: 1.5).build(Spec.of(tg.silu(tg.input("x", (N,)))))


def test_the_kernel_of_the_page_computes_what_its_op_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "backends.md").read_text(encoding="utf-8")
    file = tmp_path / "of_the_page.py"
    file.write_text(page.partition("## A CUDA kernel of your own")[2].partition("```python\n")[2].partition("```")[0])
    spec = importlib.util.spec_from_file_location("of_the_page", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["of_the_page"] = module
    spec.loader.exec_module(module)
    kernel = next(k for k in registry._registered if k.name == "cuda.my_silu")
    call = kernel.build(Spec.of(tg.silu(tg.input("x", (N, 5)))))
    assert isinstance(call, LaunchCall)
    x = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    whole = replace(call, text='#include "numbers.cuh"\n' + call.text)
    (y,) = emulated.run(tmp_path, whole, [((60, 5), np.dtype(np.float32))], [x], {"n": 60})
    np.testing.assert_allclose(y, x / (1 + np.exp(-x.astype(np.float64))), rtol=1e-6)
