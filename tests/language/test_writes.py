"""Writes to memory: slices land where they are told, what falls outside is dropped, gradients go where values went."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.meaning.interpreter import evaluate, interpret
from tests.language.messages import said

RNG = np.random.default_rng(1)
BASE, VALUE = RNG.normal(size=(5, 4, 2)), RNG.normal(size=(5, 3, 2))
B, V = tg.input("base", BASE.shape), tg.input("value", VALUE.shape)


def written(start: int) -> np.ndarray:
    """BASE with VALUE written along axis 1 from `start` on, row by row."""
    out = BASE.copy()
    for k in range(VALUE.shape[1]):
        if 0 <= start + k < BASE.shape[1]:
            out[:, start + k] = VALUE[:, k]
    return out


@pytest.mark.parametrize("start", [-9, -2, 0, 1, 2, 3, 9])
def test_rows_are_written_from_the_start_and_dropped_outside(start):
    node = tg.write_rows(B, V, start=start, axis=1)
    for direct in (False, True):
        (found,) = evaluate([node], {B: BASE, V: VALUE}, {}, use_direct=direct)
        np.testing.assert_array_equal(found, written(start))


def test_the_start_may_be_a_dim():
    n = tg.dim("n", 0, 8)
    node = tg.write_at(B, V, n - 1, axis=-2)
    assert node.op.name == "write_rows"
    for size in (0, 2, 8):
        (found,) = evaluate([node], {B: BASE, V: VALUE}, {"n": size})
        np.testing.assert_array_equal(found, written(size - 1))


@pytest.mark.parametrize("start", [-2, 0, 1, 3])
def test_the_start_may_be_a_scalar_tensor(start):
    at = tg.input("at", (), tg.i32)
    (found,) = evaluate([tg.write_at(B, V, at, axis=1)], {B: BASE, V: VALUE, at: np.array(start, np.int32)}, {})
    np.testing.assert_array_equal(found, written(start))


def test_a_tensor_of_indices_places_each_slice():
    at, places = tg.input("at", (3,), tg.i64), np.array([3, 7, 0])
    node = tg.write_at(B, V, at, axis=1)
    assert node.op.name == "write_at_index"
    expected = BASE.copy()
    expected[:, 3], expected[:, 0] = VALUE[:, 0], VALUE[:, 2]
    (found,) = evaluate([node], {B: BASE, V: VALUE, at: places}, {})
    np.testing.assert_array_equal(found, expected)
    (same,) = evaluate([tg.write_at(B, V, [3, 7, 0], axis=1)], {B: BASE, V: VALUE}, {})
    np.testing.assert_array_equal(same, expected)


@pytest.mark.parametrize("start", [-2, 0, 1, 3])
def test_a_gradient_goes_to_the_value_where_it_was_written_and_to_the_base_elsewhere(start):
    g = tg.input("g", BASE.shape)
    upstream = RNG.normal(size=BASE.shape)
    node = tg.write_rows(B, V, start=start, axis=1)
    to_base, to_value = upstream.copy(), np.zeros(VALUE.shape)
    for k in range(3):
        if 0 <= start + k < 4:
            to_value[:, k], to_base[:, start + k] = upstream[:, start + k], 0
    for out in (node, expand_all([node])[0]):
        found = evaluate(tg.vjp([out], [g], [B, V]), {B: BASE, V: VALUE, g: upstream}, {})
        np.testing.assert_array_equal(found[0], to_base)
        np.testing.assert_array_equal(found[1], to_value)


def test_a_state_grows_step_by_step():
    n = tg.dim("start", 0, 4)
    cache, x = tg.state("cache", (4, 2)), tg.input("x", (1, 2))
    g = tg.graph(cache.read(), {cache: cache.write(x, at=n)})
    held = np.zeros((4, 2))
    for step in range(4):
        result = interpret(g, {"x": np.full((1, 2), step + 1.0)}, states={"cache": held}, dims={"start": step})
        np.testing.assert_array_equal(result.outputs["out"], held)
        held = np.asarray(result.updates["cache"])
    np.testing.assert_array_equal(held, np.array([[1, 1], [2, 2], [3, 3], [4, 4]]))


def test_a_write_says_what_does_not_fit():
    assert said(lambda: tg.write_rows(B, V, start=0), ShapeError) == (
        "ShapeError at HERE: write_rows of f32[5, 3, 2] into f32[5, 4, 2] along axis 0\n"
        "  fix: the value has the shape of the base except along axis 0")
    assert said(lambda: tg.write_rows(B, V.cast(tg.f16), start=0, axis=1), DTypeError) == (
        "DTypeError at HERE: write_rows of f32[5, 4, 2] and f16[5, 3, 2]: the dtypes differ and nothing is promoted\n"
        "  fix: cast one of them: x.cast(tg.f32)")
    assert said(lambda: tg.write_rows(B, V, start=1.5, axis=1), AttributeValueError) == (
        "AttributeValueError at HERE: write_rows: the start is 1.5\n  fix: an int, or an expression of dims")


STATE = tg.state("s", (5, 4))


@pytest.mark.parametrize("use", [
    lambda: tg.sum(STATE), lambda: STATE + 1.0, lambda: 1.0 * STATE, lambda: STATE + tg.input("x", (4,)), lambda: -STATE,
    lambda: tg.input("x", (4,)) + STATE, lambda: STATE[0], lambda: STATE.shape, lambda: tg.softmax(STATE), lambda: tg.graph(STATE),
    lambda: STATE.write(STATE)])
def test_a_state_used_as_a_tensor_is_told_that_its_read_is_one(use) -> None:
    with pytest.raises(tg.TensorGraphsError, match=r"\n  fix: its value before the step is a tensor: state.read\(\)$"):
        use()


def test_a_part_written_without_a_place_is_told_how_to_name_one() -> None:
    with pytest.raises(ShapeError, match=r"fix: a value of that type, or write\(value, at=0, axis=0\) for a part of it$"):
        STATE.write(tg.input("x", (2, 4)))
