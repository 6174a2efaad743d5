"""rounded: the identity over the real numbers, which rounds to the bits of a format in the dtypes as written."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.composites.rounded import LEVELS, SIGNIFICANDS, rounded, rounded_dot, rounded_linear
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.running_error import running_error

X, W = tg.input("x", (6, 64)), tg.parameter("w", (16, 64))


def numbers(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-110, 110, shape))).astype(np.float32)


@pytest.mark.parametrize("to", SIGNIFICANDS)
def test_it_rounds_to_the_nearest_number_with_the_bits_of_the_format(to: str) -> None:
    x = numbers(6, 64)
    (y,) = interpret(tg.graph(rounded(X, to=to)), {"x": x}, mode="as_written").outputs.values()
    significand, exponent = np.frexp(x.astype(np.float64))
    expected = np.ldexp(np.rint(significand * 2.0 ** SIGNIFICANDS[to]), exponent - SIGNIFICANDS[to])     # ties to even
    np.testing.assert_array_equal(y, expected)
    assert np.max(np.abs(y / x - 1)) <= 2.0 ** -SIGNIFICANDS[to] and np.any(y != x)


@pytest.mark.parametrize("to", SIGNIFICANDS)
def test_infinities_nan_zeros_and_numbers_with_few_bits_stay(to: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.5], np.float32)
    (y,) = interpret(tg.graph(rounded(tg.input("x", (7,)), to=to)), {"x": x}, mode="as_written").outputs.values()
    np.testing.assert_array_equal(y, x)
    assert np.signbit(y[4])


@pytest.mark.parametrize("to", LEVELS)
def test_it_rounds_to_multiples_of_a_scale_of_32_numbers(to: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    x[1], x[2, 5], x[3, 9], x[4] = 0, np.inf, np.nan, x[4] * 1e-41
    (y,) = interpret(tg.graph(rounded(X, to=to)), {"x": x}, mode="as_written").outputs.values()
    parts = x.reshape(6, 2, 32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        scale = np.abs(parts).max(-1, keepdims=True) / LEVELS[to]
        steps = y.reshape(6, 2, 32) / np.where(scale > 0, scale, 1)
        off = np.abs(steps - parts / np.where(scale > 0, scale, 1))
    np.testing.assert_array_equal(y[2:4, :32], x[2:4, :32])
    np.testing.assert_array_equal(y[1], 0)
    is_normal = np.isfinite(scale[..., 0]) & (scale[..., 0] > 1e-37)
    assert off[is_normal].max() <= 0.51 and np.abs(steps[is_normal] - np.rint(steps[is_normal])).max() < 1e-2
    error = running_error(tg.graph(rounded(X, to=to)), {"x": x[:1].repeat(6, 0)}, {})["out"]
    np.testing.assert_allclose(error, np.broadcast_to(scale[:1] / 2, (6, 2, 32)).reshape(6, 64), rtol=1e-6)


def test_over_the_real_numbers_it_is_its_operand() -> None:
    x, w = numbers(6, 64), numbers(16, 64)
    np.testing.assert_array_equal(interpret(tg.graph(rounded(X, to="tf32")), {"x": x}).outputs["out"], x)
    product, plain = tg.graph(rounded_linear(X, W, to="tf32")), tg.graph(tg.linear(X, W))
    np.testing.assert_array_equal(*(interpret(g, {"x": x}, {"w": w}).outputs["out"] for g in (product, plain)))
    assert tg.equal(product, plain).proved and tg.equal(tg.graph(tg.exp(rounded(X, to="bf16x2"))), tg.graph(tg.exp(X))).proved


def test_in_bits_it_is_another_function_than_its_operand_and_than_another_format() -> None:
    plain, coarse, fine = (tg.graph(y) for y in (tg.exp(X), tg.exp(rounded(X, to="tf32")), tg.exp(rounded(X, to="bf16x2"))))
    assert not any(tg.equal(a, b, bits=True).proved for a, b in ((plain, coarse), (coarse, fine), (plain, fine)))


def test_a_product_is_that_of_rounded_operands() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((6, 64)).astype(np.float32), rng.standard_normal((16, 64)).astype(np.float32)
    pairs = ((rounded_linear(X, W, to="tf32"), tg.linear(rounded(X, to="tf32"), rounded(W, to="tf32"))),
             (rounded_dot(X, W.T, to="tf32"), tg.dot(rounded(X, to="tf32"), rounded(W.T, to="tf32"))))
    for product, written in pairs:
        one, other = (interpret(tg.graph(y), {"x": x}, {"w": w}, mode="as_written").outputs["out"] for y in (product, written))
        np.testing.assert_array_equal(one, other)
        assert np.max(np.abs(one - x @ w.T)) > 1e-4


def test_its_running_error_is_a_unit_of_the_format() -> None:
    error = running_error(tg.graph(rounded(tg.input("x", (2, 3)), to="tf32")), {"x": np.ones((2, 3), np.float32)}, {})["out"]
    np.testing.assert_allclose(error, np.full((2, 3), 2.0 ** -11))


def test_its_gradient_is_that_of_the_identity() -> None:
    gradient = tg.grad(tg.sum(rounded(X, to="tf32") * 3.0, (0, 1)), X)
    np.testing.assert_array_equal(interpret(tg.graph(gradient), {}).outputs["out"], np.full((6, 64), 3.0))


def test_other_formats_and_dtypes_are_refused() -> None:
    with pytest.raises(AttributeValueError, match=r"rounded to 'tf23'(.|\n)*tf32, bf16x2"):
        rounded(X, to="tf23")
    with pytest.raises(ShapeError, match=r"rounded of f32\[6, 33\](.|\n)*whole parts of 32 numbers"):
        rounded(tg.input("x", (6, 33)), to="int8")
    with pytest.raises(AttributeValueError, match=r"rounded_block_linear to 'tf32'(.|\n)*int8, int8x2"):
        tg.rounded_block_linear(X, tg.parameter("w", (5, 68), tg.u8), format="Q8_0", to="tf32")
    with pytest.raises(DTypeError, match=r"rounded_linear of (.|\n)*operands of f32"):
        rounded_linear(tg.input("x", (6, 64), tg.bf16), W, to="tf32")
