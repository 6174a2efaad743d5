"""kernels/torch/backend_cuda.py: its functions on tensors of the CPU, where torch has the same operators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import Spec
from tensor_graphs.kernels.torch import backend_cuda
from tensor_graphs.kernels.torch.ops import tensor
from tensor_graphs.language.composites.rounded import rounded_dot, rounded_linear
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import Node


def product(rows: int = 6, k: int = 32, out: int = 48, x: DType = tg.f8e4m3, w: DType = tg.f8e4m3,
            scales: tuple[tuple[int, ...] | None, ...] = (None, None), bias: DType | None = None, dtype: DType = tg.bf16) -> Node:
    given = [None if s is None else tg.input(name, s) for name, s in zip("ac", scales, strict=True)]
    return tg.scaled_linear(tg.input("x", (rows, k), x), tg.input("w", (out, k), w), *given,
                            None if bias is None else tg.input("b", (out,), bias), dtype=dtype)


ONE, ROWS = ((), ()), ((6, 1), (48,))
TAKEN: list[tuple[bool, Callable[[], Node]]] = [
    (False, product), (False, lambda: product(x=tg.f8e5m2, dtype=tg.f32)),
    (False, lambda: product(scales=((), None), bias=tg.bf16)),
    (False, lambda: product(scales=ONE, dtype=tg.f16, bias=tg.f16)), (False, lambda: product(rows=0)),
    (True, lambda: product(scales=ROWS)), (True, lambda: product(scales=ROWS, bias=tg.bf16)),
    (True, lambda: product(rows=1, scales=((1, 1), (48,))))]


@pytest.mark.parametrize("of_rows, made", TAKEN)
def test_a_product_of_eight_bits_is_that_of_its_numbers_and_scales(of_rows: bool, made: Callable[[], Node]) -> None:
    node, rng = made(), np.random.default_rng(0)
    spec = Spec.of(node)
    assert backend_cuda.scaled_linear_takes(of_rows, spec) is None
    assert backend_cuda.scaled_linear_takes(not of_rows, spec) is not None
    values = [rng.uniform(0.2, 3, t.shape).astype(t.dtype.numpy) if t.rank != 2 or t.dtype is tg.f32
              else rng.normal(size=t.shape).astype(t.dtype.numpy) for t in spec.inputs]
    out = np.empty(node.shape, node.dtype.numpy)
    backend_cuda.scaled_linear([tensor(out)], [tensor(np.asarray(v)) for v in values], node.attrs)
    inputs = {i.attrs["name"]: v for i, v in zip(node.inputs, values, strict=True)}
    expected = tg.interpret(tg.graph(node), inputs).outputs["out"].astype(float)
    np.testing.assert_allclose(out.astype(float), expected, rtol=0, atol=2 * node.dtype.epsilon * np.abs(expected).max(initial=0))


@pytest.mark.parametrize("made, why", [
    (lambda: product(x=tg.f8e5m2, w=tg.f8e5m2), "floats of eight bits, of which one at least is f8e4m3"),
    (lambda: product(x=tg.bf16), "floats of eight bits, of which one at least is f8e4m3"),
    (lambda: product(k=24), "a weight whose sizes are multiples of 16"),
    (lambda: product(out=40), "a weight whose sizes are multiples of 16"),
    (lambda: product(bias=tg.f32), "a result of bf16, f16 or f32, and a bias of the first two that is as the result"),
    (lambda: product(dtype=tg.f32, bias=tg.f32), "a result of bf16, f16 or f32, and a bias of the first two that is as the result"),
    (lambda: product(scales=(None, (48,))), "scales of one number")])
def test_what_cublas_does_not_multiply_is_refused(made: Callable[[], Node], why: str) -> None:
    assert backend_cuda.scaled_linear_takes(False, Spec.of(made())) == why


def test_cublas_is_given_rows_without_gaps_at_addresses_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    given, multiplied = dict[str, torch.Tensor](), torch._scaled_mm

    def seen(x: torch.Tensor, w: torch.Tensor, **how: Any) -> torch.Tensor:
        given.update(x=x, w=w.t(), out=how["out"])
        return multiplied(x, w, **how)

    monkeypatch.setattr(torch, "_scaled_mm", seen)
    rng = np.random.default_rng(0)

    def apart(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Columns that lie as rows would, one element behind a round address."""
        values = torch.from_numpy(rng.normal(size=rows * columns + 1)).to(dtype)
        return values[1:].view(columns, rows).t()

    x, w = apart(6, 32, torch.float8_e4m3fn), apart(48, 32, torch.float8_e4m3fn)
    out = torch.empty(6 * 48 + 1, dtype=torch.bfloat16)[1:].view(6, 48)
    backend_cuda.scaled_linear([out], [x, w], product().attrs)
    assert all(t.is_contiguous() and t.data_ptr() % 16 == 0 for t in given.values())
    torch.testing.assert_close(out.double(), x.double() @ w.double().t(), rtol=0, atol=2 * tg.bf16.epsilon * float(out.abs().max()))


def test_scales_of_rows_are_for_results_of_bf16() -> None:
    assert backend_cuda.scaled_linear_takes(True, Spec.of(product(scales=ROWS, dtype=tg.f32))) == "a result of bf16"
    assert backend_cuda.scaled_linear_takes(True, Spec.of(product(scales=(None, (48,))))) == "scales of the rows of both"


def test_a_convolution_rounds_no_floats_to_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, multiplied = [], torch.conv1d
    monkeypatch.setattr(torch, "conv1d", lambda *given: (asked.append(torch.backends.cudnn.allow_tf32), multiplied(*given))[1])
    node = tg.conv(tg.input("x", (1, 2, 9)), tg.input("w", (3, 2, 4)))
    x, w = (np.random.default_rng(i).normal(size=t.shape).astype(np.float32) for i, t in enumerate(node.inputs))
    out, before = np.empty(node.shape, np.float32), torch.backends.cudnn.allow_tf32
    backend_cuda.conv([tensor(out)], [tensor(x), tensor(w)], node.attrs)
    np.testing.assert_allclose(out, tg.interpret(tg.graph(node), {"x": x, "w": w}).outputs["out"], rtol=1e-5, atol=1e-6)
    assert asked == [False] and torch.backends.cudnn.allow_tf32 is before


class _Stream:
    """A stream of torch's, and what makes it the current one."""

    current: _Stream

    def __init__(self, cuda_stream: int) -> None:
        self.cuda_stream = cuda_stream

    def __enter__(self) -> None:
        self.before, _Stream.current = _Stream.current, self

    def __exit__(self, *_: object) -> None:
        _Stream.current = self.before


@pytest.mark.parametrize("chosen, captures, begun_on", [(0, False, 0), (7, False, 0), (7, True, 7)])
def test_a_stream_that_somebody_has_chosen_is_left_meanwhile_but_for_one_that_is_captured(
        monkeypatch: pytest.MonkeyPatch, chosen: int, captures: bool, begun_on: int) -> None:
    default = _Stream(0)
    _Stream.current = default if chosen == 0 else _Stream(chosen)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _Stream.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: default)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    with backend_cuda.in_order("cuda:0"):
        assert _Stream.current.cuda_stream == begun_on
    assert _Stream.current.cuda_stream == chosen


def asked_for_tf32(monkeypatch: pytest.MonkeyPatch, function: Callable[..., None]) -> tuple[bool, str]:
    """The setting of cuBLAS in torch while a product was made, by its older name and by its newer one."""
    asked, multiplied, cublas = list[tuple[bool, str]](), torch.mm, torch.backends.cuda.matmul

    def seen(*given: Any, **how: Any) -> Any:
        asked.append((cublas.allow_tf32, cublas.fp32_precision))
        return multiplied(*given, **how)

    monkeypatch.setattr(torch, "mm", seen)
    node = tg.linear(tg.input("x", (4, 8)), tg.input("w", (5, 8)))
    x, w = (np.random.default_rng(i).normal(size=t.shape).astype(np.float32) for i, t in enumerate(node.inputs))
    out = np.empty(node.shape, np.float32)
    function([tensor(out)], [tensor(x), tensor(w)], node.attrs)
    np.testing.assert_allclose(out, x @ w.T, rtol=1e-5, atol=1e-6)
    return asked[0]


def said() -> tuple[str, bool | None, str]:
    word = torch.backends.cuda.matmul.fp32_precision
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, word
    except RuntimeError:                                            # the two words disagree
        return "", None, word


@pytest.mark.parametrize("set_to", [
    lambda: None, lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest"),
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True)],
    ids=["", "high", "highest", "medium", "tf32", "ieee", "allowed"])
def test_products_of_floats_are_rounded_to_tf32_where_that_is_meant_whatever_the_process_has_set(
        monkeypatch: pytest.MonkeyPatch, set_to: Callable[[], None]) -> None:
    try:
        set_to()
        before = said()
        assert asked_for_tf32(monkeypatch, backend_cuda.linear_tf32) == (True, "tf32")
        assert said() == before
        allowed, word = asked_for_tf32(monkeypatch, backend_cuda.linear)
        assert allowed is False and word in ("ieee", "none")
        assert said() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision = "none"


def test_products_that_are_made_at_once_in_several_threads_leave_the_setting_as_it_was() -> None:
    before, seen = said(), list[bool]()
    begun = threading.Event()

    def exact() -> None:
        begun.set()
        with backend_cuda.products_of(False):                            # waits until the other has put it back
            seen.append(torch.backends.cuda.matmul.allow_tf32)

    with backend_cuda.products_of(True):
        other = threading.Thread(target=exact)
        other.start()
        begun.wait()
        other.join(0.05)
        assert seen == [] and torch.backends.cuda.matmul.allow_tf32
    other.join()
    assert seen == [False] and said() == before


def test_kernels_of_rounded_products_take_tf32_only() -> None:
    kernels = {k.name: k for k in backend_cuda.kernels()}
    x, w = tg.input("x", (4, 8)), tg.input("w", (5, 8))
    for name, product in (("torchcuda.rounded_linear", lambda to: rounded_linear(x, w, to=to)),
                          ("torchcuda.rounded_dot", lambda to: rounded_dot(x, w.T, to=to))):
        assert kernels[name].accepts(Spec.of(product("tf32"))) is None
        assert kernels[name].accepts(Spec.of(product("bf16x2"))) == "TF32 only"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_attention_of_operands_off_their_alignment_is_that_of_aligned_ones(dtype: torch.dtype) -> None:
    draw = torch.Generator("cuda").manual_seed(3)
    aligned = [torch.randn(rows, 4, 64, generator=draw, device="cuda", dtype=torch.float32).to(dtype) for rows in (25, 68, 68)]
    shifted = [torch.empty(t.numel() + 1, device="cuda", dtype=dtype)[1:].view(t.shape).copy_(t) for t in aligned]
    outs = [torch.empty(25, 4, 64, device="cuda", dtype=dtype) for _ in range(2)]
    how = {"scale": 0.125, "causal": False, "window": 0, "start": 0, "softcap": 0.0, "absent": ("mask",)}
    for out, ins in zip(outs, (aligned, shifted), strict=True):
        backend_cuda.attention([out], ins, how)
    assert torch.isfinite(outs[0]).all() and torch.equal(outs[0], outs[1])
