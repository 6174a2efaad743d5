"""Rotary positions: the table is exact to float64, the rotation is that of Hugging Face, distances are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import tensor_graphs as tg
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.meaning.interpreter import evaluate
from tests.language.messages import said


def table(positions: np.ndarray, dim: int = 8, theta: float = 1e4, scaling: float = 1.0) -> list[np.ndarray]:
    """(cos, sin) by the definition, checked against `direct`."""
    p = tg.input("p", positions.shape, tg.parse_dtype(positions.dtype))
    nodes = tg.rope_table(p, head_dim=dim, theta=theta, scaling=scaling)
    by_definition, by_numpy = (evaluate(nodes, {p: positions}, {}, use_direct=direct) for direct in (False, True))
    for a, b in zip(by_definition, by_numpy, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    return list(by_numpy)


@pytest.mark.parametrize("theta, scaling", [(1e4, 1.0), (1e6, 1.0), (1e6, 8.0)])
def test_the_table_holds_the_cosines_and_sines_of_the_angles(theta, scaling):
    positions = np.array([0, 1, 2, 77, 4095, 32768], dtype=np.int32)
    cos, sin = table(positions, 8, theta, scaling)
    for row, position in enumerate(positions):
        for i in range(4):
            angle = position / scaling * theta ** (-2 * i / 8)
            assert abs(cos[row, i] - np.cos(angle)) < 1e-10 and abs(sin[row, i] - np.sin(angle)) < 1e-10


def test_positions_may_be_floats_and_of_a_symbolic_number():
    cos, _ = table(np.array([0.5, 2.25]))
    np.testing.assert_allclose(cos[:, 0], np.cos([0.5, 2.25]))
    n = tg.dim("n", 1, 64)
    c, s = tg.rope_table(tg.input("p", (n,), tg.i32), head_dim=8, theta=1e4, dtype=tg.bf16)
    assert str(c.type) == str(s.type) == "bf16[n, 4]"


def test_angles_are_not_rounded_to_float32_before_the_cosine():
    position = np.array([999_983], dtype=np.int32)
    p = tg.input("p", (1,), tg.i32)
    nodes = tg.rope_table(p, head_dim=64, theta=1e4)
    cos, sin = evaluate(nodes, {p: position}, {}, mode="as_written")
    angles = 999_983 * 1e4 ** (-np.arange(32) / 32)
    np.testing.assert_allclose(cos[0], np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(sin[0], np.sin(angles), atol=1e-7)


def test_the_rotation_is_that_of_hugging_face_with_its_gradient():
    rng = np.random.default_rng(1)
    x, angles = rng.normal(size=(5, 3, 8)), rng.normal(size=(5, 4))
    tx, tc, ts = (torch.tensor(v, requires_grad=True) for v in (x, np.cos(angles), np.sin(angles)))
    full = [torch.cat([t, t], -1)[None] for t in (tc, ts)]
    expected, _ = apply_rotary_pos_emb(tx.permute(1, 0, 2)[None], tx.permute(1, 0, 2)[None], *full)
    expected = expected[0].permute(1, 0, 2)
    leaves = [tg.input("x", x.shape), tg.input("cos", angles.shape), tg.input("sin", angles.shape)]
    node = tg.rope(*leaves)
    g = tg.input("g", node.shape)
    upstream = rng.normal(size=x.shape)
    expected.backward(torch.tensor(upstream))
    values = dict(zip([*leaves, g], (x, np.cos(angles), np.sin(angles), upstream), strict=True))
    for out, direct in ((node, True), (node, False), (expand_all([node])[0], False)):
        found = evaluate([out, *tg.vjp([out], [g], leaves)], values, {}, use_direct=direct)
        for ours, theirs in zip(found, (expected.detach(), tx.grad, tc.grad, ts.grad), strict=True):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-14)


def test_a_score_depends_on_the_distance_of_two_positions_alone():
    rng = np.random.default_rng(2)
    q, k = rng.normal(size=(1, 1, 8)), rng.normal(size=(1, 1, 8))
    x, c, s = tg.input("x", (1, 1, 8)), tg.input("c", (1, 4)), tg.input("s", (1, 4))

    def at(value: np.ndarray, position: int) -> np.ndarray:
        cos, sin = table(np.array([position], dtype=np.int32))
        return np.asarray(evaluate([tg.rope(x, c, s)], {x: value, c: cos, s: sin}, {})[0])

    scores = [float((at(q, 7 + shift) * at(k, 3 + shift)).sum()) for shift in (0, 100, 4000)]
    np.testing.assert_allclose(scores, scores[0], rtol=1e-9)
    assert abs(float((at(q, 7) * at(k, 4)).sum()) - scores[0]) > 1e-3


def test_rope_takes_its_tables_in_another_dtype_and_keeps_its_own():
    node = tg.rope(tg.input("x", (2, 1, 4), tg.bf16), tg.input("c", (2, 2)), tg.input("s", (2, 2)))
    assert node.dtype == tg.bf16


def test_positions_and_tables_that_do_not_fit_are_refused():
    p = tg.input("p", (3,), tg.i32)
    assert said(lambda: tg.rope_table(tg.input("p", (1, 3), tg.i32), head_dim=8, theta=1e4), ShapeError) == (
        "ShapeError at HERE: rope_table: the positions are i32[1, 3]\n  fix: one axis: positions[n]")
    assert said(lambda: tg.rope_table(p, head_dim=7, theta=1e4), AttributeValueError) == (
        "AttributeValueError at HERE: rope_table: head_dim is 7\n  fix: an even int > 0")
    assert said(lambda: tg.rope_table(p, head_dim=8, theta=0.0), AttributeValueError) == (
        "AttributeValueError at HERE: rope_table: theta is 0.0 and scaling 1.0\n  fix: numbers > 0")
    x = tg.input("x", (3, 2, 8))
    assert said(lambda: tg.rope(x, tg.input("c", (3, 8)), tg.input("s", (3, 8))), ShapeError) == (
        "ShapeError at HERE: rope of f32[3, 2, 8] by the tables f32[3, 8] and f32[3, 8]\n"
        "  fix: x[n, heads, d] and both tables [3, 8/2], as rope_table makes them")
    assert said(lambda: tg.rope(x, tg.input("c", (3, 4)), tg.input("s", (3, 4), tg.f16)), DTypeError) == (
        "DTypeError at HERE: rope (cos and sin) of f32[3, 4] and f16[3, 4]: the dtypes differ and nothing is promoted\n"
        "  fix: cast one of them: x.cast(tg.f32)")
