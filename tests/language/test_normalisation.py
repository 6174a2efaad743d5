"""Softmax and its relatives, means, RMS norm and layer norm: against scipy and torch, at −∞, NaN and nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import torch

import tensor_graphs as tg
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composites.normalisation import (
    batch_norm,
    group_norm,
    layer_norm,
    log_softmax,
    logsumexp,
    mean,
    rms_norm,
    softmax,
    var,
)
from tensor_graphs.language.dtypes import bf16, f16, f32, f64, i32
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import evaluate
from tests.language.agreement import check, check_gradients
from tests.language.messages import said

INF = np.inf
RNG = np.random.default_rng(4)
BOTH = pytest.mark.parametrize("use_direct", [False, True], ids=["definition", "direct"])


def value(node: Node, given: dict[Node, Any], use_direct: bool = False, mode: str = "real",
          dims: Any = None) -> np.ndarray:
    out = np.asarray(evaluate([node], given, dims or {}, mode=mode, use_direct=use_direct)[0])
    return out.astype(np.float64) if node.dtype.kind == "float" else out


@BOTH
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_and_its_logarithms_agree_with_scipy_along_every_axis(axis: int, use_direct: bool):
    x = leaves.input("x", (4, 5, 6), f64)
    a = RNG.normal(size=(4, 5, 6)) * 30
    for ours, theirs in ((softmax, scipy.special.softmax), (log_softmax, scipy.special.log_softmax),
                         (logsumexp, scipy.special.logsumexp)):
        np.testing.assert_allclose(value(ours(x, axis=axis), {x: a}, use_direct), theirs(a, axis), rtol=1e-13)
    kept = value(logsumexp(x, axis=axis, keepdims=True), {x: a}, use_direct)
    np.testing.assert_array_equal(np.squeeze(kept, axis), value(logsumexp(x, axis=axis), {x: a}, use_direct))


@BOTH
def test_softmax_of_huge_numbers_neither_overflows_nor_loses_the_differences(use_direct: bool):
    x = leaves.input("x", (3,), f64)
    a = np.array([1e6, 1e6 - 1, -1e6])
    e = np.exp(-1.0)
    np.testing.assert_allclose(value(softmax(x), {x: a}, use_direct), [1 / (1 + e), e / (1 + e), 0], rtol=1e-14)
    logs = np.array([0, -1, -2e6]) - np.log1p(e)
    np.testing.assert_allclose(value(log_softmax(x), {x: a}, use_direct), logs, rtol=1e-14)


ROWS = np.array([[-INF, 0.0, 1.0], [-INF, -INF, -INF], [0.0, INF, 1.0], [-INF, -INF, 2.0], [np.nan, 0.0, 1.0]])


@BOTH
def test_rows_with_infinities_give_what_torch_gives(use_direct: bool):
    x = leaves.input("x", ROWS.shape, f64)
    t = torch.tensor(ROWS)
    for ours, theirs in ((softmax(x), torch.softmax(t, -1)), (log_softmax(x), torch.log_softmax(t, -1)),
                         (logsumexp(x), torch.logsumexp(t, -1))):
        np.testing.assert_allclose(value(ours, {x: ROWS}, use_direct), theirs.numpy(), rtol=1e-15)


@BOTH
def test_a_row_of_nothing_but_minus_infinity_sums_to_minus_infinity_and_has_no_softmax(use_direct: bool):
    x = leaves.input("x", (2,), f64)
    nothing = np.array([-INF, -INF])
    assert value(logsumexp(x), {x: nothing}, use_direct) == -INF
    assert np.isnan(value(softmax(x), {x: nothing}, use_direct)).all()


@BOTH
def test_an_empty_axis_sums_to_minus_infinity_and_has_no_mean(use_direct: bool):
    x = leaves.input("x", (2, 0), f64)
    nothing = np.zeros((2, 0))
    np.testing.assert_array_equal(value(logsumexp(x), {x: nothing}, use_direct), [-INF, -INF])
    assert value(softmax(x), {x: nothing}, use_direct).shape == (2, 0)
    assert np.isnan(value(mean(x, axis=1), {x: nothing}, use_direct)).all()
    assert np.isnan(value(var(x, axis=1), {x: nothing}, use_direct)).all()
    assert value(rms_norm(x), {x: nothing}, use_direct).shape == (2, 0)
    assert value(layer_norm(x), {x: nothing}, use_direct).shape == (2, 0)


@BOTH
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [None, 0, -1, (0, 2), (), [1]], ids=str)
def test_mean_and_variance_agree_with_numpy(axes: Any, keepdims: bool, use_direct: bool):
    x = leaves.input("x", (4, 5, 6), f64)
    a = RNG.normal(size=(4, 5, 6)) + 3
    numpys = tuple(axes) if isinstance(axes, (list, tuple)) else axes
    for op, reference in ((mean, np.mean), (var, np.var)):
        found = value(op(x, axis=axes, keepdims=keepdims), {x: a}, use_direct)
        np.testing.assert_allclose(found, reference(a, axis=numpys, keepdims=keepdims), rtol=1e-14, atol=1e-30)


@BOTH
def test_the_variance_of_numbers_far_from_zero_keeps_its_digits(use_direct: bool):
    x = leaves.input("x", (4,), f64)
    a = np.array([0.0, 1.0, 2.0, 3.0])
    np.testing.assert_allclose(value(var(x), {x: a + 1e9}, use_direct), 1.25, rtol=1e-14)


@BOTH
def test_a_mean_over_a_symbolic_axis_divides_by_its_size_at_run_time(use_direct: bool):
    n = d.dim("n", 1, 64)
    x = leaves.input("x", (n, 3), f64)
    for size in (1, 7):
        a = RNG.normal(size=(size, 3))
        np.testing.assert_allclose(value(mean(x, axis=0), {x: a}, use_direct, dims={"n": size}), a.mean(0), rtol=1e-14)
        np.testing.assert_allclose(value(softmax(x, axis=0), {x: a}, use_direct, dims={"n": size}),
                                   scipy.special.softmax(a, 0), rtol=1e-14)


@BOTH
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_agrees_with_torch(weighted: bool, offset: float, use_direct: bool):
    x, w = leaves.input("x", (2, 3, 16), f64), leaves.input("w", (16,), f64)
    a, b = RNG.normal(size=(2, 3, 16)) * 5, RNG.normal(size=16)
    weight = torch.tensor(b + offset) if weighted else None
    expected = torch.nn.functional.rms_norm(torch.tensor(a), (16,), weight, eps=1e-6).numpy()
    node, given = rms_norm(x, w if weighted else None, eps=1e-6, offset=offset), {x: a, w: b} if weighted else {x: a}
    np.testing.assert_allclose(value(node, given, use_direct), expected, rtol=1e-13)


@BOTH
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_norm_agrees_with_torch(weighted: bool, with_bias: bool, use_direct: bool):
    x, w, b = leaves.input("x", (6, 16), f64), leaves.input("w", (16,), f64), leaves.input("b", (16,), f64)
    given = {x: RNG.normal(size=(6, 16)) * 5 + 2, w: RNG.normal(size=16), b: RNG.normal(size=16)}
    weight, bias = (torch.tensor(given[v]) if on else None for v, on in ((w, weighted), (b, with_bias)))
    expected = torch.nn.functional.layer_norm(torch.tensor(given[x]), (16,), weight, bias, eps=1e-5).numpy()
    node = layer_norm(x, w if weighted else None, b if with_bias else None, eps=1e-5)
    used = {k: v for k, v in given.items() if k is x or (k is w and weighted) or (k is b and with_bias)}
    np.testing.assert_allclose(value(node, used, use_direct), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("eps", [-1, float("nan"), float("inf"), "1e-6", True])
def test_eps_is_a_finite_number_of_0_or_more(eps):
    x, v = tg.input("x", (2, 4)), tg.input("v", (4,))
    norms = {"rms_norm": lambda: tg.rms_norm(x, eps=eps), "layer_norm": lambda: tg.layer_norm(x, eps=eps),
             "group_norm": lambda: tg.group_norm(x, groups=2, eps=eps), "batch_norm": lambda: tg.batch_norm(x, v, v, eps=eps)}
    for name, norm in norms.items():
        assert said(norm, AttributeValueError) == (
            f"AttributeValueError at HERE: {name}: eps is {eps!r}\n  fix: a finite number of 0 or more, as 1e-6")


def test_eps_and_offset_are_part_of_what_a_norm_is():
    x, w = leaves.input("x", (4, 8)), leaves.input("w", (8,))
    assert rms_norm(x, w, eps=1e-6) is rms_norm(x, w)
    assert len({rms_norm(x, w), rms_norm(x, w, eps=1e-5), rms_norm(x, w, offset=1.0), rms_norm(x)}) == 4
    zeros = np.zeros((4, 8))
    np.testing.assert_array_equal(value(rms_norm(x), {x: zeros}), zeros)


def test_a_weight_of_another_dtype_is_cast_and_the_result_has_the_dtype_of_x():
    x, w = leaves.input("x", (4, 8)), leaves.input("w", (8,), bf16)
    node = rms_norm(x, w)
    assert node.dtype == f32
    a, b = RNG.normal(size=(4, 8)).astype(np.float32), RNG.normal(size=8).astype(ml_dtypes.bfloat16)
    expected = a / np.sqrt(np.mean(a.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6) * b.astype(np.float64)
    np.testing.assert_allclose(value(node, {x: a, w: b}, mode="as_written"), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_rows_are_normalised_in_float32_so_that_squares_do_not_overflow(dtype: Any):
    x = leaves.input("x", (2, 64), dtype)
    a = (RNG.normal(size=(2, 64)) * 1000).astype(dtype.numpy)                    # 1000² is beyond f16
    for node in (rms_norm(x), layer_norm(x), softmax(x), mean(x, axis=1), logsumexp(x)):
        found = value(node, {x: a}, mode="as_written")
        np.testing.assert_array_equal(found, found.astype(dtype.numpy).astype(np.float64))
        true = value(node, {x: a.astype(np.float64)}, use_direct=True)
        error = np.abs(found - true)
        assert (error <= 0.51 * dtype.epsilon * np.abs(true) + dtype.smallest_normal).all(), node.op.name


def test_float32_softmax_and_norms_are_accurate_to_a_few_ulps():
    x = leaves.input("x", (8, 128))
    a = (RNG.normal(size=(8, 128)) * 4).astype(np.float32)
    for node in (softmax(x), log_softmax(x), logsumexp(x), rms_norm(x), layer_norm(x), mean(x, axis=1), var(x, axis=1)):
        true = value(node, {x: a.astype(np.float64)}, use_direct=True)
        found = value(node, {x: a}, mode="as_written")
        scale = np.maximum(np.abs(true), np.sqrt(np.mean(true**2, axis=-1, keepdims=True)))
        assert (np.abs(found - true) <= 1.5e-6 * scale).all(), node.op.name


def test_what_does_not_fit_is_refused_with_names_and_sizes():
    x = leaves.input("x", (4, 8))
    with pytest.raises(ShapeError, match=r"rms_norm of f32\[4, 8\]: the weight is f32\[7\]"):
        rms_norm(x, leaves.input("w", (7,)))
    with pytest.raises(ShapeError, match=r"layer_norm of f32\[4, 8\]: the bias is f32\[1, 8\]"):
        layer_norm(x, None, leaves.input("b", (1, 8)))
    with pytest.raises(ShapeError, match="a scalar has no last axis"):
        rms_norm(leaves.input("s", ()))
    with pytest.raises(AttributeValueError, match="softmax: axis 2 of a tensor of rank 2"):
        softmax(x, axis=2)
    with pytest.raises(DTypeError, match="mean takes float"):
        mean(leaves.input("i", (3,), i32))
    with pytest.raises(AttributeValueError, match="names an axis twice"):
        var(x, axis=(0, -2))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("given", ["", "weight", "weight bias"])
def test_group_norm_agrees_with_torch_and_so_do_its_gradients(given: str, groups: int):
    values = {"x": RNG.normal(size=(2, 6, 3, 5)) * 5 + 2, **{name: RNG.normal(size=6) for name in given.split()}}
    t = {name: torch.tensor(v, requires_grad=True) for name, v in values.items()}
    inputs = {name: leaves.input(name, v.shape, f64) for name, v in values.items()}
    node = group_norm(inputs.pop("x"), **inputs, groups=groups)
    expected = torch.nn.functional.group_norm(t["x"], groups, t.get("weight"), t.get("bias"))
    check(node, expected.detach().numpy(), **values)
    check_gradients(node, expected, t, **values)


@pytest.mark.parametrize("given", ["", "weight", "weight bias"])
def test_batch_norm_by_given_statistics_agrees_with_torch_and_so_do_its_gradients(given: str):
    values = {"x": RNG.normal(size=(2, 6, 3)) * 5 + 2, "mean": RNG.normal(size=6), "var": RNG.random(6) + 0.1,
              **{name: RNG.normal(size=6) for name in given.split()}}
    t = {name: torch.tensor(v, requires_grad=name not in ("mean", "var")) for name, v in values.items()}
    node = batch_norm(*(leaves.input(name, v.shape, f64) for name, v in values.items()))
    expected = torch.nn.functional.batch_norm(t["x"], t["mean"], t["var"], t.get("weight"), t.get("bias"))
    check(node, expected.detach().numpy(), **values)
    check_gradients(node, expected, {k: v for k, v in t.items() if v.requires_grad}, **values)


def test_norms_over_channels_refuse_what_does_not_fit():
    x = leaves.input("x", (2, 6, 3))
    with pytest.raises(AttributeValueError, match=r"group_norm of f32\[2, 6, 3\]: groups is 4"):
        group_norm(x, groups=4)
    with pytest.raises(ShapeError, match=r"group_norm of f32\[2, 6, 3\]: the weight is f32\[3\]"):
        group_norm(x, leaves.input("w", (3,)), groups=2)
    with pytest.raises(ShapeError, match=r"batch_norm of f32\[2, 6, 3\]: the var is f32\[2\]"):
        batch_norm(x, leaves.input("m", (6,)), leaves.input("v", (2,)))
    with pytest.raises(ShapeError, match="it has no axis of channels"):
        group_norm(leaves.input("v", (6,)), groups=1)


def test_cross_entropy_is_torchs_for_each_place_and_leaves_out_what_is_no_class():
    rng = np.random.default_rng(3)
    logits, target = rng.normal(size=(4, 5, 3)) * 30, np.array([[0, 4, 2], [1, 1, -100], [3, 3, 0], [-1, 2, 4]])
    shown = np.where(target < 0, -100, target)
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(shown), reduction="none", ignore_index=-100)
    node = tg.cross_entropy(tg.input("x", logits.shape), tg.input("t", target.shape, tg.i64), axis=1)
    check(node, expected.numpy(), x=logits, t=target)
    masked = np.array([[0.0, -np.inf, 1.0]])
    check(tg.cross_entropy(tg.input("x", (1, 3)), tg.input("t", (1,), tg.u8)), np.array([np.log1p(np.e)]), x=masked,
          t=np.array([0]))
    with pytest.raises(ShapeError, match="one integer for each row of classes"):
        tg.cross_entropy(tg.input("x", (2, 3)), tg.input("t", (3,), tg.i32))


@pytest.mark.parametrize("shape, size", [((2, 6, 4), 3), ((1, 5, 2, 3), 4), ((2, 3, 1), 5)], ids=str)
def test_local_response_norm_is_that_of_torch_and_so_is_its_gradient(shape, size):
    values = np.random.default_rng(3).normal(size=shape)
    t = torch.tensor(values, requires_grad=True)
    node = tg.local_response_norm(tg.input("x", shape, tg.f64), size=size, alpha=0.3, beta=0.7, k=1.5)
    expected = torch.nn.functional.local_response_norm(t, size, 0.3, 0.7, 1.5)
    check(node, expected.detach().numpy(), x=values)
    check_gradients(node, expected, {"x": t}, x=values)
    with pytest.raises(AttributeValueError, match="size is 0"):
        tg.local_response_norm(tg.input("x", shape), size=0)


def test_instance_norm_is_that_of_torch_and_needs_a_number_of_channels():
    values = {"x": np.random.default_rng(4).normal(size=(2, 3, 5)), "w": np.array([1.0, 2, 3]), "b": np.array([0.5, 0, -1])}
    x, w, b = (tg.input(name, v.shape, tg.f64) for name, v in values.items())
    t = {name: torch.tensor(v, requires_grad=True) for name, v in values.items()}
    node, expected = tg.instance_norm(x, w, b), torch.nn.functional.instance_norm(t["x"], weight=t["w"], bias=t["b"])
    check(node, expected.detach().numpy(), **values)
    check_gradients(node, expected, t, **values)
    with pytest.raises(ShapeError, match="it has n channels"):
        tg.instance_norm(tg.input("x", (2, tg.dim("n", 1, 4), 5)))
