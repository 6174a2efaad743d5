"""language/composites/blocks.py: the definition, the arrays and the package gguf give one set of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.composites.blocks import FORMATS, dequantize, dequantized, quantized
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.meaning.interpreter import interpret

each_format = pytest.mark.parametrize("name", FORMATS)


def blocks(name: str, count: int) -> np.ndarray[Any, Any]:
    """Random blocks, and one of each byte repeated: all extremes of codes, scales and minima, infinite and NaN ones too."""
    nbytes = FORMATS[name].nbytes
    drawn = np.random.default_rng(7).integers(0, 256, (count, nbytes), np.uint8)
    return np.concatenate([drawn, np.repeat(np.arange(256, dtype=np.uint8), nbytes).reshape(256, nbytes)])


def assert_same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    nan = np.isnan(a)
    np.testing.assert_array_equal(nan, np.isnan(b))
    np.testing.assert_array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])


@each_format
def test_the_definition_computes_the_bits_of_the_arrays(name: str) -> None:
    packed = blocks(name, 300).reshape(2, -1, 2 * FORMATS[name].nbytes)
    x = tg.input("x", packed.shape, tg.u8)
    out = interpret(tg.graph({"y": dequantize(x, format=name)}), {"x": packed}, mode="as_written").outputs["y"]
    assert_same_bits(out, dequantized(packed, name))


@pytest.mark.models
@each_format
def test_ten_thousand_blocks_have_the_bits_of_the_package_gguf(name: str) -> None:
    import gguf

    packed = blocks(name, 10_000)
    with np.errstate(all="ignore"):
        assert_same_bits(gguf.dequantize(packed, gguf.GGMLQuantizationType[name]), dequantized(packed, name))


@pytest.mark.models
def test_quantised_blocks_have_the_bits_of_the_package_gguf() -> None:
    import gguf

    drawn = np.random.default_rng(1).standard_normal((10_000, 64))
    x = (drawn * 10.0 ** np.arange(-5, 5).repeat(1000)[:, None]).astype(np.float32)
    x[7], x[8, :32] = 0, 1e-42
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0), quantized(x, "Q8_0"))


def test_one_block_of_eight_bits_by_hand() -> None:
    packed = np.concatenate([np.array([0.5], np.float16).view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    np.testing.assert_array_equal(dequantized(packed, "Q8_0"), 0.5 * np.arange(-16, 16))


def test_one_block_of_four_bits_by_hand() -> None:
    packed = np.concatenate([np.array([2.0], np.float16).view(np.uint8), np.full(16, 0xF0, np.uint8)])
    np.testing.assert_array_equal(dequantized(packed, "Q4_0"), [-16.0] * 16 + [14.0] * 16)
    packed = np.concatenate([np.array([127 + 1], np.uint8), np.full(16, 0x97, np.uint8)])       # 2 · 6 and 2 · −0.5
    np.testing.assert_array_equal(dequantized(packed, "MXFP4"), [12.0] * 16 + [-1.0] * 16)


def test_quantising_is_off_by_at_most_half_a_step_and_the_scale_s_rounding() -> None:
    x = np.random.default_rng(2).standard_normal((64, 96)).astype(np.float32)
    back = dequantized(quantized(x, "Q8_0"), "Q8_0")
    step = np.abs(x.reshape(64, 3, 32)).max(-1, keepdims=True) / 127
    assert (np.abs((back - x).reshape(64, 3, 32)) <= step * (0.5 + 127 * 2.0 ** -11)).all()


@each_format
def test_a_product_of_blocks_is_that_of_their_numbers(name: str) -> None:
    rng, block = np.random.default_rng(4), FORMATS[name]
    packed = rng.integers(0, 100, (7, 2 * block.nbytes), np.uint8)      # as high bytes of scales these are finite
    x, bias = rng.standard_normal((3, 2 * block.values)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    operands = [tg.input(n, a.shape, tg.u8 if n == "w" else tg.f32) for n, a in (("x", x), ("w", packed), ("b", bias))]
    g = tg.graph({"y": tg.block_linear(*operands, format=name)})
    wanted = x.astype(float) @ dequantized(packed, name, np.float64).T + bias
    np.testing.assert_allclose(interpret(g, {"x": x, "w": packed, "b": bias}).outputs["y"], wanted, rtol=1e-10)
    written = interpret(g, {"x": x, "w": packed, "b": bias}, mode="as_written").outputs["y"]
    np.testing.assert_allclose(written, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@each_format
def test_a_generated_kernel_computes_the_values(name: str) -> None:
    rng, block = np.random.default_rng(3), FORMATS[name]
    packed = rng.integers(0, 256, (5, 2 * block.nbytes), np.uint8)
    finite = np.isfinite(dequantized(packed, name)).all(axis=-1)
    x = tg.input("x", packed.shape, tg.u8)
    plan = tg.compile(tg.graph({"y": dequantize(x, format=name)}), backends=("numpy", "c", "gen"), database=":memory:")
    out = tg.bind(plan, {}).run({"x": packed})["y"]
    np.testing.assert_allclose(out[finite], dequantized(packed, name)[finite], rtol=1e-6, atol=1e-30)


def test_wrong_operands_are_refused() -> None:
    with pytest.raises(AttributeValueError, match=r"dequantize of 'Q2_K'(.|\n)*fix: one of Q8_0, Q4_0"):
        dequantize(tg.input("x", (34,), tg.u8), format="Q2_K")
    with pytest.raises(DTypeError, match=r"block_linear of f64\[3, 32\](.|\n)*fix: x of f32; of another dtype, linear"):
        tg.block_linear(tg.input("x", (3, 32), tg.f64), tg.input("w", (5, 34), tg.u8), format="Q8_0")
    with pytest.raises(ShapeError, match=r"the last axis of x has to be the second"):
        tg.block_linear(tg.input("x", (3, 32), tg.f32), tg.input("w", (5, 68), tg.u8), format="Q8_0")
    with pytest.raises(DTypeError, match="the bytes of blocks are u8"):
        dequantize(tg.input("x", (34,), tg.i8), format="Q8_0")
    with pytest.raises(ShapeError, match="whole blocks: Q8_0 has 34 bytes each"):
        dequantize(tg.input("x", (2, 33), tg.u8), format="Q8_0")
