"""Products against numpy and torch: dot, linear and attention by definition and by `direct`, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensor_graphs as tg
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.dtypes import parse_dtype
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import evaluate
from tests.language.agreement import both_ways, check, check_gradients
from tests.language.messages import said

# ---- dot -------------------------------------------------------------------------------------------------------------

MATMUL = hnp.mutually_broadcastable_shapes(signature=np.matmul.signature, max_dims=2, max_side=4)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(shapes=MATMUL, seed=st.integers(0, 2**32 - 1))
def test_dot_is_matmul_for_matrices_vectors_and_broadcast_batches(shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=s) for s in shapes.input_shapes)
    node = tg.dot(tg.input("a", a.shape), tg.input("b", b.shape))
    assert node.shape == shapes.result_shape
    check(node, np.matmul(a, b), a=a, b=b)


@pytest.mark.parametrize("a_shape, b_shape", [((0, 3), (3, 2)), ((2, 0), (0, 2)), ((2, 3), (3, 0)),
                                              ((0, 2, 3), (1, 3, 2))])
def test_dot_of_nothing_is_zero_or_empty(a_shape, b_shape):
    a, b = np.ones(a_shape), np.ones(b_shape)
    check(tg.dot(tg.input("a", a_shape), tg.input("b", b_shape)), np.matmul(a, b), a=a, b=b)


@pytest.mark.parametrize("dtype", [tg.u8, tg.i32], ids=str)
def test_dot_of_integers_wraps(dtype):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(dtype.min, dtype.max, s, dtype=dtype.numpy) for s in ((3, 5), (5, 2)))
    node = tg.dot(tg.input("a", a.shape, dtype), tg.input("b", b.shape, dtype))
    for (found,) in both_ways([node], {"a": a, "b": b}):
        assert found.dtype == dtype.numpy
        np.testing.assert_array_equal(found, np.matmul(a, b))


def test_dot_takes_dims_and_keeps_them():
    n, k = tg.dim("n", 1, 16), tg.dim("k", 1, 16)
    a, b = np.random.default_rng(2).normal(size=(3, 4)), np.random.default_rng(3).normal(size=(4, 2))
    node = tg.dot(tg.input("a", (n, k)), tg.input("b", (k, 2)))
    assert node.shape == (n, 2)
    check(node, a @ b, {"n": 3, "k": 4}, a=a, b=b)


@pytest.mark.parametrize("a_shape, b_shape", [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)),
                                              ((5, 2, 3), (3, 4)), ((1, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (4, 3, 1)),
                                              ((3,), (5, 3, 2)), ((5, 2, 3), (3,))])
def test_the_gradient_of_dot_is_that_of_torch(a_shape, b_shape):
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=a_shape), rng.normal(size=b_shape)
    ta, tb = (torch.tensor(v, requires_grad=True) for v in (a, b))
    node = tg.dot(tg.input("a", a_shape), tg.input("b", b_shape))
    check_gradients(node, torch.matmul(ta, tb), {"a": ta, "b": tb}, a=a, b=b)


def test_dot_says_which_sizes_disagree():
    x = tg.input("x", (2, 3))
    assert said(lambda: x @ tg.input("y", (4, 5)), ShapeError) == (
        "ShapeError at HERE: dot of f32[2, 3] and f32[4, 5]: the axis to sum over has two sizes, 3 and 4\n"
        "  fix: the last axis of a matches the last but one of b; x.T exchanges the last two")
    assert said(lambda: tg.input("a", (2, 4, 3)) @ tg.input("b", (5, 3, 4)), ShapeError) == (
        "ShapeError at HERE: dot of f32[2, 4, 3] and f32[5, 3, 4]: batch axis -3 has two sizes, 2 and 5\n"
        "  fix: batch axes are equal, or one of them 1")
    assert said(lambda: x @ tg.input("s", ()), ShapeError) == (
        "ShapeError at HERE: dot of f32[2, 3] and f32[]: a scalar has no axis to sum over\n  fix: x * y multiplies")
    assert said(lambda: x @ tg.input("h", (3, 2), tg.f16), DTypeError) == (
        "DTypeError at HERE: dot of f32[2, 3] and f16[3, 2]: the dtypes differ and nothing is promoted\n"
        "  fix: cast one of them: x.cast(tg.f32)")


# ---- linear ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_is_that_of_torch_with_its_gradient(leading, bias):
    rng = np.random.default_rng(6)
    x, w, b = rng.normal(size=(*leading, 4)), rng.normal(size=(5, 4)), rng.normal(size=5)
    tx, tw, tb = (torch.tensor(v, requires_grad=True) for v in (x, w, b))
    operands = [tg.input("x", x.shape), tg.input("w", w.shape), *([tg.input("b", b.shape)] if bias else [])]
    node = tg.linear(*operands)
    reference = torch.nn.functional.linear(tx, tw, tb if bias else None)
    check(node, reference.detach().numpy(), x=x, w=w, b=b)
    check_gradients(node, reference, {"x": tx, "w": tw, **({"b": tb} if bias else {})}, x=x, w=w, b=b)


def test_linear_takes_a_narrow_weight_and_answers_in_the_dtype_of_x():
    x, w = tg.input("x", (tg.dim("n", 1, 8), 4)), tg.parameter("w", (5, 4), tg.bf16)
    node = tg.linear(x, w)
    assert str(node.type) == "f32[n, 5]"
    to_x, to_w = tg.vjp([node], [tg.input("g", node.shape)], [x, w])
    assert to_x.type == x.type and to_w.type == w.type


def test_linear_says_what_a_weight_looks_like():
    x = tg.input("x", (2, 3))
    assert said(lambda: tg.linear(x, tg.input("w", (3, 5))), ShapeError) == (
        "ShapeError at HERE: linear of f32[2, 3] and the weight f32[3, 5]: the last axis of x has to be the second of "
        "a weight[out, in]\n  fix: weight.T when it is stored as [in, out]")
    assert said(lambda: tg.linear(x, tg.input("w", (5, 3)), tg.input("b", (3,))), ShapeError) == (
        "ShapeError at HERE: linear: the bias is f32[3], the weight f32[5, 3]\n  fix: a bias of 5 elements")
    assert said(lambda: tg.linear(x, tg.input("w", (5, 3), tg.i8)), DTypeError) == (
        "DTypeError at HERE: linear (weight) takes float, the operand is i8[5, 3]\n  fix: cast it first")


# ---- scaled_linear ---------------------------------------------------------------------------------------------------


def narrow(dtype: tg.DType, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype.numpy)


@pytest.mark.parametrize("x_scale, weight_scale", [(None, None), ((), ()), ((2, 3, 1), (5,)), (None, (5,)), ((2, 3, 1), None)],
                         ids=str)
@pytest.mark.parametrize("dtype", [tg.bf16, tg.f32], ids=str)
def test_scaled_linear_is_the_product_of_what_its_operands_and_scales_are(x_scale, weight_scale, dtype):
    x, w, b = narrow(tg.f8e4m3, 2, 3, 4), narrow(tg.f8e5m2, 5, 4, seed=1), narrow(tg.bf16, 5, seed=2)
    rng = np.random.default_rng(3)
    scales = [None if s is None else np.asarray(rng.uniform(0.1, 9, s), np.float32) for s in (x_scale, weight_scale)]
    a, c = (1.0 if s is None else s.astype(float) for s in scales)
    expected = x.astype(float) @ w.astype(float).T * a * c + b.astype(float)
    operands = {"x": x, "w": w, **{name: s for name, s in zip("ac", scales, strict=True) if s is not None}, "b": b}
    inputs = {name: tg.input(name, v.shape, parse_dtype(v.dtype)) for name, v in operands.items()}
    node = tg.scaled_linear(inputs["x"], inputs["w"], inputs.get("a"), inputs.get("c"), inputs["b"], dtype=dtype)
    assert node.dtype is dtype and node.shape == (2, 3, 5)
    for (found,) in both_ways([node], operands):
        np.testing.assert_allclose(found.astype(float), expected, rtol=dtype.epsilon)


def test_scaled_linear_rounds_once_and_its_product_is_not_of_the_narrow_dtype():
    x, w = np.full((1, 3), 448, tg.f8e4m3.numpy), np.full((2, 3), 448, tg.f8e4m3.numpy)
    node = tg.scaled_linear(tg.input("x", x.shape, tg.f8e4m3), tg.input("w", w.shape, tg.f8e4m3), dtype=tg.f32)
    for (found,) in both_ways([node], {"x": x, "w": w}):
        np.testing.assert_array_equal(found, np.full((1, 2), 3 * 448.0**2, np.float32))


def test_scaled_linear_says_what_it_takes():
    x, w = tg.input("x", (2, 3), tg.f8e4m3), tg.input("w", (5, 3), tg.f8e4m3)
    assert said(lambda: tg.scaled_linear(tg.input("y", (2, 3)), w), DTypeError) == (
        "DTypeError at HERE: scaled_linear: x is f32[2, 3]\n"
        "  fix: floats of 8 or 16 bits: x.cast(tg.f8e4m3); of wider ones, linear")
    assert said(lambda: tg.scaled_linear(x, w, dtype=tg.i32), DTypeError) == (
        "DTypeError at HERE: scaled_linear to i32\n  fix: dtype=tg.f32, or a narrower float")
    assert said(lambda: tg.scaled_linear(x, w, tg.input("s", (2,))), ShapeError) == (
        "ShapeError at HERE: scaled_linear: x_scale is f32[2]\n  fix: a scale of [] or [2, 1]")
    assert said(lambda: tg.scaled_linear(x, w, weight_scale=tg.input("s", (3,))), ShapeError) == (
        "ShapeError at HERE: scaled_linear: weight_scale is f32[3]\n  fix: a scale of [] or [5]")
    assert said(lambda: tg.scaled_linear(x, w, tg.input("s", (), tg.bf16)), DTypeError) == (
        "DTypeError at HERE: scaled_linear: x_scale is bf16[]\n  fix: a scale of f32")
    assert said(lambda: tg.scaled_linear(x, w, bias=tg.input("b", (3,))), ShapeError) == (
        "ShapeError at HERE: scaled_linear: the bias is f32[3], the weight f8e4m3[5, 3]\n  fix: a bias of 5 elements")
    assert said(lambda: tg.scaled_linear(x, tg.input("v", (5, 4), tg.f8e4m3)), ShapeError) == (
        "ShapeError at HERE: scaled_linear of f8e4m3[2, 3] and the weight f8e4m3[5, 4]: the last axis of x has to be the second of "
        "a weight[out, in]\n  fix: weight.T when it is stored as [in, out]")


# ---- gather_linear ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gather_linear_is_a_linear_of_each_row_with_its_gradient(shared, bias):
    rng = np.random.default_rng(6)
    x, w, b = rng.normal(size=(3, 1 if shared else 2, 4)), rng.normal(size=(6, 5, 4)), rng.normal(size=(6, 5))
    index = np.array([[0, 5], [2, 2], [5, 1]], np.int32)
    tx, tw, tb = (torch.tensor(v, requires_grad=True) for v in (x, w, b))
    operands = [tg.input("x", x.shape), tg.input("w", w.shape), tg.input("i", (3, 2), tg.i32),
                *([tg.input("b", b.shape)] if bias else [])]
    node = tg.gather_linear(*operands)
    chosen = torch.tensor(index.astype(np.int64))
    reference = torch.einsum("nkoi,nki->nko", tw[chosen], tx.expand(3, 2, 4)) + (tb[chosen] if bias else 0.0)
    check(node, reference.detach().numpy(), x=x, w=w, b=b, i=index)
    check_gradients(node, reference, {"x": tx, "w": tw, **({"b": tb} if bias else {})}, x=x, w=w, b=b, i=index)


def test_gather_linear_gives_zeros_out_of_range_the_bias_included():
    x, w, b = np.ones((3, 2)), np.ones((2, 4, 2)), np.full((2, 4), 7.0)
    node = tg.gather_linear(tg.input("x", x.shape), tg.input("w", w.shape), tg.input("i", (3,), tg.i32), tg.input("b", b.shape))
    check(node, np.array([[0.0] * 4, [9.0] * 4, [0.0] * 4]), x=x, w=w, b=b, i=np.array([-1, 1, 2], np.int32))
    not_a_number = np.where(np.arange(3)[:, None] == 1, 1.0, [np.nan, np.inf])
    check(node, np.array([[0.0] * 4, [9.0] * 4, [0.0] * 4]), x=not_a_number, w=w, b=b, i=np.array([-1, 1, 2], np.int32))


def test_gather_linear_says_what_a_stack_looks_like():
    x, i = tg.input("x", (2, 1, 3)), tg.input("i", (2, 4), tg.i32)
    assert said(lambda: tg.gather_linear(x, tg.input("w", (6, 3, 5)), i), ShapeError) == (
        "ShapeError at HERE: gather_linear of f32[2, 1, 3] and the weight f32[6, 3, 5]: the last axis of x has to be the third of "
        "a weight[matrices, out, in]\n  fix: weight.permute(0, 2, 1) when it is stored as [matrices, in, out]")
    assert said(lambda: tg.gather_linear(tg.input("y", (2, 2, 3)), tg.input("w", (6, 5, 3)), i), ShapeError) == (
        "ShapeError at HERE: gather_linear of f32[2, 2, 3] by the index i32[2, 4]: the leading axes of x differ from those of "
        "index\n  fix: as many axes, of equal sizes or 1")
    assert said(lambda: tg.gather_linear(x, tg.input("w", (6, 5, 3)), i, tg.input("b", (5,))), ShapeError) == (
        "ShapeError at HERE: gather_linear: the bias is f32[5], the weight f32[6, 5, 3]\n  fix: a bias of [6, 5]")
    assert said(lambda: tg.gather_linear(x, tg.input("w", (6, 5, 3)), tg.input("f", (2, 4))), DTypeError).startswith(
        "DTypeError at HERE: gather_linear (index) takes int or uint, the operand is f32[2, 4]")


# ---- attention -------------------------------------------------------------------------------------------------------


def reference_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float,
                        softcap: float = 0.0) -> torch.Tensor:
    """Attention as a textbook writes it; rows that see nothing are zero."""
    groups = q.shape[1] // max(k.shape[1], 1)
    scores = torch.einsum("ihd,jhd->hij", q, k.repeat_interleave(groups, 1)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.softmax(scores.masked_fill(~visible, -float("inf")), -1)
    weights = torch.where(visible.any(-1, keepdim=True), weights, torch.zeros_like(weights)).nan_to_num(0.0)
    return torch.einsum("hij,jhe->ihe", weights, v.repeat_interleave(groups, 1))


def visible_keys(n: int, s: int, mask: np.ndarray | None = None, causal: bool = False, window: int = 0,
                 start: int = 0) -> np.ndarray:
    """By the words of the contract, key by key."""
    found = np.ones((n, s), bool)
    for i in range(n):
        for j in range(s):
            position = start + i
            found[i, j] = ((mask is None or mask[i, j]) and (not causal or j <= position)
                           and (not window or position - j < window))
    return found


CASES: dict[str, dict[str, Any]] = {
    "plain": {"shape": (3, 5, 4, 2)},
    "one head of k for all of q": {"shape": (3, 5, 4, 1)},
    "as many heads": {"shape": (2, 4, 3, 3)},
    "causal prefill": {"shape": (5, 5, 2, 1), "causal": True},
    "causal decode": {"shape": (1, 6, 4, 2), "causal": True, "start": 3},
    "before the first key": {"shape": (3, 4, 2, 2), "causal": True, "start": -2},
    "window": {"shape": (6, 6, 2, 1), "causal": True, "window": 2},
    "window that has left the keys": {"shape": (2, 3, 2, 1), "causal": True, "window": 2, "start": 9},
    "window without causal": {"shape": (3, 6, 2, 1), "window": 2, "start": 2},
    "soft cap": {"shape": (3, 4, 2, 1), "softcap": 0.7},
    "mask with an empty row": {"shape": (4, 5, 2, 1), "mask": True},
    "everything": {"shape": (4, 7, 4, 2), "mask": True, "causal": True, "window": 3, "start": 2, "softcap": 1.3},
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_a_textbook_with_its_gradient(name):
    case = dict(CASES[name])
    n, s, heads, groups = case.pop("shape")
    rng = np.random.default_rng(7)
    q, k, v = rng.normal(size=(n, heads, 6)), rng.normal(size=(s, groups, 6)), rng.normal(size=(s, groups, 5))
    mask = None
    if case.pop("mask", False):
        mask = rng.random((n, s)) < 0.6
        mask[1] = False
    tq, tk, tv = (torch.tensor(x, requires_grad=True) for x in (q, k, v))
    visible = visible_keys(n, s, mask, **{key: value for key, value in case.items() if key != "softcap"})
    reference = reference_attention(tq, tk, tv, torch.tensor(visible), 0.4, case.get("softcap", 0.0))
    operands = [tg.input("q", q.shape), tg.input("k", k.shape), tg.input("v", v.shape)]
    if mask is not None:
        operands.append(tg.input("mask", mask.shape, tg.bool_))
    node = tg.attention(*operands, scale=0.4, **case)
    expected = reference.detach().numpy()
    check(node, expected, q=q, k=k, v=v, mask=mask)
    wrt = {"q": tq, "k": tk, "v": tv}
    if visible.any(1).all():                     # torch's own gradient of a row without a visible key is NaN
        check_gradients(node, reference, wrt, q=q, k=k, v=v, mask=mask)


def test_rows_that_see_nothing_are_zero_and_pass_no_gradient():
    rng = np.random.default_rng(8)
    q, k, v = rng.normal(size=(2, 2, 3)), rng.normal(size=(4, 1, 3)), rng.normal(size=(4, 1, 3))
    mask = np.array([[False] * 4, [True, False, True, False]])
    leaves = [tg.input("q", q.shape), tg.input("k", k.shape), tg.input("v", v.shape),
              tg.input("mask", mask.shape, tg.bool_)]
    node = tg.attention(*leaves, scale=1.0)
    values = dict(zip(leaves, (q, k, v, mask), strict=True))
    for out in (node, expand_all([node])[0]):
        found = evaluate([out, *tg.grad(tg.sum(out), leaves[:3])], values, {})
        assert all(np.isfinite(x).all() for x in found)
        np.testing.assert_array_equal(found[0][0], 0)
        np.testing.assert_array_equal(found[1][0], 0)
        np.testing.assert_array_equal(found[3][1], 0)         # key 1 is seen by nobody


def test_attention_without_keys_is_zero():
    node = tg.attention(tg.input("q", (2, 2, 3)), tg.input("k", (0, 1, 3)), tg.input("v", (0, 1, 4)), scale=1.0)
    check(node, np.zeros((2, 2, 4)), q=np.ones((2, 2, 3)), k=np.zeros((0, 1, 3)), v=np.zeros((0, 1, 4)))


def test_attention_over_a_cache_takes_its_start_from_a_dim():
    n, s, start = tg.dim("n", 1, 8), tg.dim("s", 1, 32), tg.dim("start", 0, 31)
    node = tg.attention(tg.input("q", (n, 4, 6)), tg.input("k", (s, 2, 6), tg.bf16), tg.input("v", (s, 2, 6), tg.bf16),
                        scale=0.3, causal=True, window=5, start=start)
    assert str(node.type) == "f32[n, 4, 6]"
    rng = np.random.default_rng(10)
    q, k, v = rng.normal(size=(2, 4, 6)), rng.normal(size=(9, 2, 6)), rng.normal(size=(9, 2, 6))
    visible = torch.tensor(visible_keys(2, 9, causal=True, window=5, start=6))
    expected = reference_attention(torch.tensor(q), torch.tensor(k), torch.tensor(v), visible, 0.3).numpy()
    check(node, expected, {"n": 2, "s": 9, "start": 6}, q=q, k=k, v=v)


def test_attention_stays_finite_for_scores_that_overflow_an_exponential():
    q, k = np.full((1, 1, 2), 1e3), np.array([[[1e3, 0.0]], [[0.0, -1e3]]])
    v = np.array([[[1.0]], [[2.0]]])
    node = tg.attention(tg.input("q", q.shape), tg.input("k", k.shape), tg.input("v", v.shape), scale=1.0)
    check(node, np.array([[[1.0]]]), q=q, k=k, v=v)


def test_attention_of_narrow_floats_answers_in_the_dtype_of_q():
    leaves = [tg.input("q", (2, 2, 4), tg.bf16), tg.input("k", (3, 1, 4), tg.f16), tg.input("v", (3, 1, 4), tg.f16)]
    node = tg.attention(*leaves, scale=0.5)
    assert str(node.type) == "bf16[2, 2, 4]"
    for leaf, g in zip(leaves, tg.vjp([node], [tg.input("g", node.shape, tg.bf16)], leaves), strict=True):
        assert g.type == leaf.type


def attend(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], mask: Node | None = None, **attrs: Any) -> Node:
    return tg.attention(tg.input("q", q), tg.input("k", k), tg.input("v", v), mask, scale=1.0, **attrs)


def test_attention_says_what_does_not_fit():
    assert said(lambda: attend((3, 2), (3, 2, 4), (3, 2, 4)), ShapeError) == (
        "ShapeError at HERE: attention: q is f32[3, 2]\n  fix: q[n, heads, d], k[s, kv_heads, d], v[s, kv_heads, d]")
    assert said(lambda: attend((3, 2, 4), (3, 2, 5), (3, 2, 5)), ShapeError) == (
        "ShapeError at HERE: attention of q f32[3, 2, 4] and k f32[3, 2, 5]: the last axis has two sizes, 4 and 5\n"
        "  fix: q[n, heads, d] and k[s, kv_heads, d]")
    assert said(lambda: attend((3, 2, 4), (3, 2, 4), (5, 2, 4)), ShapeError) == (
        "ShapeError at HERE: attention of k f32[3, 2, 4] and v f32[5, 2, 4]: they differ in their first two axes\n"
        "  fix: k[s, kv_heads, d] and v[s, kv_heads, e]")
    assert said(lambda: attend((3, 3, 4), (3, 2, 4), (3, 2, 4)), ShapeError) == (
        "ShapeError at HERE: attention of q f32[3, 3, 4] and k f32[3, 2, 4]: 3 heads are not a multiple of 2\n"
        "  fix: each head of k serves the same number of heads of q")
    assert said(lambda: attend((3, 2, 4), (5, 2, 4), (5, 2, 4), tg.input("m", (5, 3), tg.bool_)), ShapeError) == (
        "ShapeError at HERE: attention: the mask is bool[5, 3], bool[3, 5] is needed\n"
        "  fix: mask[i, j] says whether query i sees key j, for all heads")
    assert said(lambda: attend((3, 2, 4), (5, 2, 4), (5, 2, 4), tg.input("m", (3, 5))), DTypeError) == (
        "DTypeError at HERE: attention (mask) takes bool, the operand is f32[3, 5]\n  fix: cast it first")
    assert said(lambda: attend((3, 2, 4), (5, 2, 4), (5, 2, 4), window=-1), AttributeValueError) == (
        "AttributeValueError at HERE: attention: the window is -1\n"
        "  fix: the number of keys to see, an int; 0 = all of them")
    assert said(lambda: attend((3, 2, 4), (5, 2, 4), (5, 2, 4), softcap=-1.0), AttributeValueError) == (
        "AttributeValueError at HERE: attention: the soft cap is -1.0\n  fix: a number > 0; 0 = none")
