"""aten.py: samples of PyTorch's own tests of its ops (OpInfo): each is right within OpInfo's tolerance, or refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.torch_op_info import DTYPES, Verdict, control, judge_sample, nearer, samples
from benchmarks.torch_samples import op_db
from tensor_graphs.frontends.torch.aten.table import ROWS
from tests.frontends.torch.oracle import interpreted

SEED = 7
BY_NAME = {(info.name, info.variant_test_name): info for info in op_db}
CORE = [
    "add", "sub", "mul", "div", "pow", "remainder", "fmod", "where", "clamp", "sum", "mean", "var", "amax", "argmin", "cumsum",
    "sort", "topk", "gather", "scatter", "scatter_reduce", "index_put", "index_select", "masked_scatter", "cat",
    "slice_scatter", "as_strided", "diagonal", "constant_pad_nd", "addmm", "baddbmm", "native_layer_norm",
    "nn.functional.group_norm", "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d",
    "nn.functional.avg_pool2d", "nn.functional.adaptive_avg_pool2d", "nn.functional.embedding", "nn.functional.gelu", "softmax",
    "log_softmax", "logsumexp", "atan2", "asinh", "acosh", "sinh", "cosh", "asin", "acos", "atan", "cdist",
    "nn.functional.scaled_dot_product_attention",
]


def judged(name: str, dtype: str, count: int, gradients: bool = False) -> list[Verdict]:
    """Return the verdicts on a few samples of each variant of an op, drawn with a fixed seed."""
    verdicts = []
    for (own, _), info in BY_NAME.items():
        if own == name:
            every = list(samples(info, DTYPES[dtype], gradients))[:20]
            drawn = random.Random(SEED).sample(every, min(count, len(every)))
            verdicts += [judge_sample(info, dtype, sample, gradients) for sample in drawn]
    return verdicts


def wrong(verdicts: list[Verdict]) -> list[str]:
    return [f"{v.op} {v.dtype}: {v.reason}" for v in verdicts if v.status == "wrong"]


@pytest.mark.parametrize(("dtype", "every"), [("f32", 7), ("i64", 7), ("bf16", 7)])
def test_samples_of_core_ops_are_right_and_almost_all_are_graphs(dtype: str, every: int) -> None:
    verdicts = [v for name in random.Random(SEED).sample(CORE, len(CORE) // every) for v in judged(name, dtype, 1)]
    assert wrong(verdicts) == []
    counted = [v for v in verdicts if v.core and v.status != "skipped"]
    assert len(counted) >= 6 and sum(v.status == "right" for v in counted) >= len(counted) - 2


def test_gradients_of_samples_are_right() -> None:
    names = ["pow", "gather", "nn.functional.conv2d", "nn.functional.max_pool2d", "native_layer_norm",
             "nn.functional.scaled_dot_product_attention"]
    verdicts = [v for name in names for v in judged(name, "f32", 1, gradients=True)]
    assert wrong(verdicts) == [] and sum(v.status == "right" for v in verdicts) >= len(names) - 2


HIDING = torch.tensor([[True, False], [False, False]])          # of two queries, the second sees no key


@pytest.mark.parametrize("mask", [HIDING, torch.where(HIDING, 0.5, -torch.inf), torch.zeros(2, 1, 1, 2, dtype=torch.bool)])
def test_a_query_that_sees_no_key_is_0_and_its_gradient_too(mask: torch.Tensor) -> None:
    def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    operands = [torch.randn(2, 3, 2, 4, requires_grad=True) for _ in range(3)]
    results = [(out, *torch.autograd.grad(out.square().sum(), operands))
               for out in (run(*operands) for run in (torch.compile(attended, backend=interpreted([])), attended))]
    torch.testing.assert_close(*results)
    assert (results[0][0][:, :, 1] == 0).all()


NARROW = (torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.int32)


def test_floats_become_narrow_integers_by_their_low_bits_and_the_sign_of_nan_is_0() -> None:
    x = torch.tensor([-1.5, -2.5, 300.0, 40000.0, 3.9, float("nan")])

    def forward(x: torch.Tensor) -> Any:
        return *(x[:5].to(dtype) for dtype in NARROW), x.sign(), x.sgn()

    for actual, expected in zip(torch.compile(forward, backend=interpreted([]))(x), forward(x), strict=True):
        assert actual.dtype is expected.dtype and actual.tolist() == expected.tolist()


@pytest.mark.long
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_samples_of_all_ops_are_right_or_named(dtype: str) -> None:
    assert wrong([v for name in sorted({n for n, _ in BY_NAME}) for v in judged(name, dtype, 3)]) == []


def test_a_row_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, "amax.default", ROWS["amin.default"])
    assert wrong(judged("amax", "f32", 6))


def test_a_result_further_from_the_exact_one_than_eager_torch_is_wrong() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager = torch.tensor([1.0, 2.03], dtype=torch.bfloat16)
    assert nearer(exact.bfloat16(), eager, exact) and not nearer(torch.tensor([1.5, 2.0]).bfloat16(), eager, exact)


@pytest.mark.parametrize("backend", ["relu_accuracy_error_TESTING_ONLY", "relu_compile_error_TESTING_ONLY",
                                     "relu_runtime_error_TESTING_ONLY", "non_leaf_compile_error_TESTING_ONLY"])
def test_the_backends_of_torch_that_fail_on_purpose_are_noticed(backend: str) -> None:
    verdicts = control(backend)
    assert verdicts and {v.status for v in verdicts} == {"wrong"}


def test_a_backend_that_runs_eager_torch_is_right() -> None:
    assert {v.status for v in control("eager")} == {"right"}
