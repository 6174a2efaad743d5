"""The running error: how far rounding alone moves a value, known where terms cancel, and no excuse for anything else."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.composite import composite
from tensor_graphs.language.node import Node
from tensor_graphs.meaning import running_error as running
from tensor_graphs.meaning.error_measure import ROUNDINGS, measure, neighbours_error, unit_roundoff
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.running_error import running_error

U = unit_roundoff(tg.f32)


def errors(node: Node, **values: np.ndarray) -> np.ndarray:
    found = running_error(tg.graph({"y": node}), values, {})["y"]
    assert found is not None
    return found


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def x(*shape: int, dtype: tg.DType = tg.f32) -> Node:
    return tg.input("x", shape, dtype)


def test_what_is_only_moved_is_exact() -> None:
    node = tg.concat(x(3, 4)[::-1], tg.input("z", (2, 4), tg.f32), axis=0).T
    assert not errors(node, x=draw(3, 4), z=draw(2, 4)).any()
    assert not errors(tg.maximum(x(5), -x(5)), x=draw(5)).any()
    assert not errors(x(5) - x(5), x=draw(5)).any()


def test_one_op_rounds_once() -> None:
    a, b = draw(50), draw(50, seed=1)
    node = tg.mul(x(50), tg.input("z", (50,), tg.f32))
    np.testing.assert_allclose(errors(node, x=a, z=b), U * np.abs(a.astype(float) * b), rtol=1e-12)


def test_a_sum_loses_a_rounding_of_what_is_added_up_however_much_cancels() -> None:
    a = np.array([[1.0, 1e-4, -1.0], [1.0, 1e-4, 1.0]], np.float32)
    found = errors(tg.sum(x(2, 3), axis=1), x=a)
    assert found[0] == pytest.approx(U * np.sqrt(2), rel=1e-3)                  # √(½ (n − 1) Σ x²)
    assert found[1] == pytest.approx(U * np.sqrt(2 + 4 + 4), rel=1e-3)          # and n/3 (Σ x)², and the rounding of the result


def test_terms_of_one_sign_lose_more_and_the_squares_of_what_one_mean_has_moved_are_moved_together() -> None:
    """A row of one number, added in turn: the mean is off, and so is the variance, which is 0."""
    values = np.full((1, 128), 0.7, np.float32)
    mean = np.cumsum(values, axis=1, dtype=np.float32)[:, -1] / np.float32(128)
    deviation = np.abs(mean.astype(float) - values[0, 0])
    assert 0 < deviation < ROUNDINGS * errors(tg.mean(x(1, 128), axis=1), x=values)
    assert deviation ** 2 < ROUNDINGS * errors(tg.var(x(1, 128), axis=1), x=values)


def test_a_dot_has_the_running_error_of_its_definition_though_no_product_is_stored() -> None:
    a, b = draw(4, 5, 30), draw(4, 30, 3, seed=1)
    y = tg.input("z", (4, 30, 3), tg.f32)
    in_one = errors(tg.dot(x(4, 5, 30), y), x=a, z=b)
    rows, columns = a[:, :, None, :].astype(float), np.swapaxes(b, 1, 2)[:, None].astype(float)
    by_hand = np.sqrt(((1 + 29 / 2) * (rows * columns) ** 2).sum(axis=-1) + (1 + 30 / 3) * (rows * columns).sum(axis=-1) ** 2) * U
    np.testing.assert_allclose(in_one, by_hand, rtol=1e-9)


@pytest.mark.parametrize("make", [
    lambda x: tg.sum(x, axis=1), lambda x: tg.mean(x, axis=1), lambda x: tg.var(x, axis=1), tg.softmax, tg.log_softmax,
    tg.layer_norm, tg.rms_norm, lambda x: tg.sum(tg.exp(x) - 1.0, axis=1), lambda x: tg.sigmoid(tg.sum(x, axis=1)),
    lambda x: tg.dot(x, x.T)],
    ids=("sum", "mean", "var", "softmax", "log_softmax", "layer_norm", "rms_norm", "sum of exp − 1", "sigmoid of a sum", "dot"))
def test_a_graph_that_is_rounded_at_every_node_is_off_by_about_its_running_error(make) -> None:
    node = make(x(200, 6))
    graph, values = tg.graph({"y": node}), {"x": draw(200, 6)}
    exact = interpret(graph, values).outputs["y"]
    rounded = interpret(graph, values, mode="jittered", use_direct=False).outputs["y"].astype(float)
    found, off = errors(node, **values), np.abs(rounded - exact)
    assert 0.005 < np.sqrt(np.mean(off ** 2)) / np.sqrt(np.mean(found ** 2)) < 20


def test_an_elementwise_composite_is_one_rounding_where_its_definition_cancels_on_purpose() -> None:
    small = np.array([1e-30, 1e-8, 1e-3, 50.0], np.float32)
    for op in (tg.log1p, tg.expm1, tg.tanh, tg.softplus, tg.exp):
        node = op(x(4))
        ref = interpret(tg.graph({"y": node}), {"x": small}).outputs["y"]
        assert (errors(node, x=small) <= 1.01 * U * np.maximum(np.abs(ref), tg.f32.smallest_normal)).all(), op


def test_a_single_element_has_no_softmax_but_one() -> None:
    """What subtracts a number from itself is not off by a rounding of the number."""
    assert (errors(tg.softmax(x(3, 1)), x=draw(3, 1)) <= 4 * U).all()
    assert (errors(tg.var(x(3, 1), axis=1), x=draw(3, 1)) <= U * tg.f32.smallest_normal).all()


def test_a_narrow_dtype_adds_up_in_f32() -> None:
    values = draw(100).astype(tg.bf16.numpy)
    long = errors(tg.dot(x(100, dtype=tg.bf16), tg.input("z", (100,), tg.bf16)), x=values, z=-values)
    assert long < 1.1 * unit_roundoff(tg.bf16) * float(np.sum(values.astype(float) ** 2))


def test_what_is_not_finite_is_explained_by_nothing() -> None:
    found = errors(tg.sum(x(3, 2), axis=1), x=np.array([[1, np.inf], [np.nan, 1], [1, 2]], np.float32))
    assert not found[:2].any() and found[2] > 0


def test_large_squares_do_not_overflow() -> None:
    big = draw(4, 8).astype(float) * 1e200
    z = tg.input("z", (8, 1), tg.f64)
    found = errors(tg.dot(x(4, 8, dtype=tg.f64), z), x=big, z=big[:1].T * 1e-300)
    assert (found > 0).all() and np.isfinite(found).all()


def test_what_would_take_long_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tg.graph({"y": tg.softmax(x(8, 8))})
    assert running_error(graph, {"x": draw(8, 8)}, {})["y"] is not None
    monkeypatch.setattr(running, "WORK", 100)
    assert running_error(graph, {"x": draw(8, 8)}, {})["y"] is None


def test_an_op_without_a_definition_has_none() -> None:
    @composite(opaque=True, direct=lambda roles, attrs, types: np.sort(roles["x"]))
    def sorted_rows(x: Node) -> Node:
        """Sorted."""
        return x * 1.0

    assert running_error(tg.graph({"y": sorted_rows(x(3))}), {"x": draw(3)}, {}) == {"y": None}


# ---- in the measure --------------------------------------------------------------------------------------------------


def test_a_difference_that_rounding_explains_is_divided_by_what_was_added_up() -> None:
    ref, moves = np.array([[1e-4], [1e-4], [1.0]]), np.full((3, 1), 3 * U)
    out = ref + np.array([[5 * U], [1e-3], [0.0]])
    plain = measure(out, ref, tg.f32)
    assert plain.max_relative_error == pytest.approx(10)
    assert measure(out[[0, 2]], ref[[0, 2]], tg.f32, rounding=moves[[0, 2]]).max_relative_error == pytest.approx(5 / 3 * U)
    assert measure(out, ref, tg.f32, rounding=moves).max_relative_error == pytest.approx(10)          # 1e-3 is not explained


@pytest.mark.parametrize("axis", [0, 1])
def test_beyond_so_many_roundings_nothing_is_explained(axis: int) -> None:
    ref, moves = np.full((1, 1), 1e-4), np.full((1, 1), U)
    for factor, explained in ((ROUNDINGS - 0.01, True), (ROUNDINGS + 0.01, False)):
        error = measure(ref + factor * U, ref, tg.f32, axis=axis, rounding=moves).max_relative_error
        assert error == pytest.approx(factor * U if explained else factor * U / 1e-4, rel=1e-6)


def test_a_scalar_may_be_explained_too() -> None:
    assert measure(2e-9, 1e-9, tg.f32, rounding=np.asarray(1e-9)).max_relative_error == pytest.approx(1e-9 * U / 1e-9)


def test_where_the_running_error_is_not_known_a_value_is_put_beside_its_neighbours() -> None:
    ref = draw(3, 64, 1).astype(float) * np.array([1.0, 10.0, 100.0])[:, None, None]
    found = neighbours_error(ref, tg.f32)
    assert found.shape == ref.shape and len(np.unique(found)) == 3
    np.testing.assert_allclose(found[1, 0, 0] * ROUNDINGS, ROUNDINGS * 33 * U * np.sqrt(np.mean(ref[1] ** 2)))
    assert ROUNDINGS * 33 * U < 1e-4 / 4                                        # far less than the limit, in any long row
    few = neighbours_error(np.array([[1.0, np.inf], [1.0, np.nan]]), tg.bf16)
    assert few.shape == (2, 2) and 0 < few[0, 0] < 1.01 * unit_roundoff(tg.bf16)


# ---- as strict as before on long rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 64])
@pytest.mark.parametrize("kept", [7, 10])
def test_products_with_fractions_of_so_many_bits_do_not_pass_for_f32(kept: int, columns: int) -> None:
    """bf16 and tf32, of 4096 products."""
    node = tg.dot(x(16, 4096), tg.input("z", (4096, columns), tg.f32))
    a, b = draw(16, 4096), draw(4096, columns, seed=1)
    ref = interpret(tg.graph({"y": node}), {"x": a, "z": b}).outputs["y"]
    moves = errors(node, x=a, z=b)
    cut = [(v.view(np.uint32) & np.uint32(0xFFFFFFFF << (23 - kept) & 0xFFFFFFFF)).view(np.float32).astype(float) for v in (a, b)]
    assert not measure((cut[0] @ cut[1]).astype(np.float32), ref, tg.f32, rounding=moves).within(1e-4)
    assert measure((a @ b), ref, tg.f32, rounding=moves).within(1e-5)
    rms = np.sqrt(np.mean(ref ** 2))
    assert (ROUNDINGS * moves < 0.4 * 1e-4 * np.maximum(rms, np.abs(ref))).all()


def test_a_sum_that_is_kept_in_bfloat16_does_not_pass_for_f32() -> None:
    a, b = draw(8, 4096), draw(4096, 1, seed=1)
    node = tg.dot(x(8, 4096), tg.input("z", (4096, 1), tg.f32))
    ref = interpret(tg.graph({"y": node}), {"x": a, "z": b}).outputs["y"]
    total = np.zeros((8, 1), tg.bf16.numpy)
    for i in range(4096):
        total = (total.astype(np.float32) + a[:, i:i + 1] * b[i]).astype(tg.bf16.numpy)
    assert not measure(total.astype(np.float32), ref, tg.f32, rounding=errors(node, x=a, z=b)).within(1e-2)


@pytest.mark.parametrize("seed", range(4))
def test_scores_that_lie_apart_by_rounding_alone_explain_which_of_them_is_the_largest(seed: int) -> None:
    """Dot products of numbers near 1e15 that cancel: the softmax of f32 may choose another key than the oracle's."""
    q, k, v = (draw(6, 2, 8, seed=10 * seed + i) * np.float32(scale) for i, scale in enumerate((1e15, 1e15, 1)))
    q[:, :, 1] = -q[:, :, 0]
    k[:, :, 1] = k[:, :, 0] * np.float32(1 + 1e-7)
    q[:, :, 2:], k[:, :, 2:] = 0, 0
    node = tg.attention(*(tg.input(name, (6, 2, 8), tg.f32) for name in "qkv"), scale=1.0, causal=False)
    scores = np.einsum("nhd,mhd->hnm", q, k, dtype=np.float32)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    ours = np.einsum("hnm,mhd->nhd", weights / weights.sum(axis=-1, keepdims=True), v)
    exact = interpret(tg.graph({"y": node}), {"q": q, "k": k, "v": v}).outputs["y"]
    assert (np.abs(ours - exact) <= ROUNDINGS * errors(node, q=q, k=k, v=v) + 1e-5).all()


def test_scores_that_are_told_apart_explain_no_other_choice() -> None:
    q, k, v = (draw(6, 2, 8, seed=i) for i in range(3))
    node = tg.attention(*(tg.input(name, (6, 2, 8), tg.f32) for name in "qkv"), scale=1.0, causal=False)
    assert (errors(node, q=q, k=k, v=v) < 1e-5).all()
