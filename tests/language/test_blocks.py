"""language/composites/blocks.py: the definition, the arrays and the package gguf give one set of bits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.composites.blocks import FORMATS, dequantize, dequantized
from tensor_graphs.language.composites.quantise import QUANTISERS, quantize, quantized
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.records.database import Database

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


def rows_of_many_sizes() -> np.ndarray[Any, Any]:
    """Rows of two blocks, of sizes from 1e-5 to 1e4, of zeros, of ties and of numbers between codes."""
    drawn = np.random.default_rng(1).standard_normal((10_000, 64))
    x = (drawn * 10.0 ** np.arange(-5, 5).repeat(1000)[:, None]).astype(np.float32)
    x[7], x[8], x[9], x[10], x[11] = 0, np.arange(64) - 32, 1, np.tile([-3, 3], 32), np.linspace(-8, 7, 64)
    return x


each_simple_format = pytest.mark.parametrize("name", [name for name in QUANTISERS if FORMATS[name].values == 32])


@pytest.mark.models
@each_simple_format
def test_quantised_blocks_have_the_bits_of_the_package_gguf(name: str) -> None:
    import gguf

    x = rows_of_many_sizes()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(gguf.quantize(x, gguf.GGMLQuantizationType[name]), quantized(x, name))


def test_one_block_of_eight_bits_by_hand() -> None:
    packed = np.concatenate([np.array([0.5], np.float16).view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    np.testing.assert_array_equal(dequantized(packed, "Q8_0"), 0.5 * np.arange(-16, 16))


def test_one_block_of_four_bits_by_hand() -> None:
    packed = np.concatenate([np.array([2.0], np.float16).view(np.uint8), np.full(16, 0xF0, np.uint8)])
    np.testing.assert_array_equal(dequantized(packed, "Q4_0"), [-16.0] * 16 + [14.0] * 16)
    packed = np.concatenate([np.array([127 + 1], np.uint8), np.full(16, 0x97, np.uint8)])       # 2 · 6 and 2 · −0.5
    np.testing.assert_array_equal(dequantized(packed, "MXFP4"), [12.0] * 16 + [-1.0] * 16)


STEPS = {"Q8_0": 254, "Q4_0": 16, "Q5_0": 32, "Q4_1": 15, "Q5_1": 31, "MXFP4": 4}
"""Format -> the steps between the least and the largest number of a block; of MXFP4, those of its coarsest part."""


@each_simple_format
def test_quantising_is_off_by_at_most_half_a_step_and_the_scale_s_rounding(name: str) -> None:
    x = np.random.default_rng(2).standard_normal((64, 96)).astype(np.float32)
    x[0] = 0
    back = dequantized(quantized(x, name), name)
    blocks, off = x.reshape(64, 3, 32), (back - x).reshape(64, 3, 32)
    width = np.ptp(blocks, axis=-1) if name in ("Q4_1", "Q5_1") else 2 * np.abs(blocks).max(-1)
    rounding = 2.0 ** -10 * np.abs(blocks).max(-1)
    allowed = width / STEPS[name] * (1.0 if name in ("Q4_0", "Q5_0") else 0.51) + rounding      # these have no code for +largest
    assert (np.abs(off).max(-1) <= allowed).all() and not off[0].any()


each_k_format = pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])


def error_of_simple_scales(x: np.ndarray[Any, Any], name: str) -> float:
    """The squared error of codes in each part of a block with scales of f32 from the least and the largest number."""
    parts = x.reshape(-1, 16 if name == "Q6_K" else 32)
    if name == "Q6_K":
        scale = np.abs(parts).max(-1, keepdims=True) / 31
        return float(np.sum((np.rint(parts / scale) * scale - parts) ** 2))
    low = np.minimum(parts.min(-1, keepdims=True), 0)
    scale = (parts.max(-1, keepdims=True) - low) / (15 if name == "Q4_K" else 31)
    return float(np.sum((np.rint((parts - low) / scale) * scale + low - parts) ** 2))


@each_k_format
@pytest.mark.parametrize("kind", ["normal", "positive", "long tails"])
def test_searched_scales_beat_those_of_the_extremes_though_they_have_fewer_bits(name: str, kind: str) -> None:
    rng = np.random.default_rng(4)
    x = {"normal": rng.standard_normal((40, 512)), "positive": rng.random((40, 512)), "long tails": rng.standard_t(3, (40, 512))}[
        kind].astype(np.float32)
    error = float(np.sum((dequantized(quantized(x, name), name) - x) ** 2))
    assert error < 0.97 * error_of_simple_scales(x, name)


@each_k_format
def test_searched_scales_of_zeros_and_of_one_number_and_of_all_sizes(name: str) -> None:
    x = np.zeros((6, 512), np.float32)
    x[1], x[2], x[3, 7], x[4, 8] = 0.5, -0.5, 3, -3
    x[5] = np.random.default_rng(0).standard_normal(512)
    for size in (1.0, 1e-4, 1e3):
        back = dequantized(quantized(size * x, name), name)
        assert np.isfinite(back).all() and not back[0].any()
        assert np.abs(back / np.float32(size) - x).max() < 0.25


@pytest.mark.parametrize("name", sorted(QUANTISERS.keys() - {"Q8_0", "MXFP4"}))
def test_importance_moves_the_error_to_columns_that_count_less(name: str) -> None:
    rng = np.random.default_rng(5)
    x, importance = rng.standard_normal((64, 512)).astype(np.float32), np.exp(2 * rng.standard_normal(512)).astype(np.float32)
    plain, weighted = ((dequantized(quantized(x, name, by), name) - x) ** 2 for by in (np.ones(512, np.float32), importance))
    assert (weighted * importance).sum() < 0.9 * (plain * importance).sum() and plain.sum() < weighted.sum()


@pytest.mark.parametrize("name", QUANTISERS)
def test_zeros_and_equal_numbers_with_importance_are_near_themselves(name: str) -> None:
    x = np.concatenate([np.zeros((2, 512), np.float32), np.full((2, 512), -0.5, np.float32), np.full((2, 512), 1e-30, np.float32)])
    importance = np.linspace(0, 3, 512).astype(np.float32)
    back = dequantized(quantized(x, name, importance), name)
    assert np.isfinite(back).all() and not back[:2].any() and np.abs(back[2:4] + 0.5).max() < 0.01 and np.abs(back[4:]).max() < 1e-6


def test_a_graph_quantises_in_every_mode_to_the_bytes_of_the_function() -> None:
    values = rows_of_many_sizes()[::50].reshape(2, -1, 64)
    x = tg.input("x", values.shape, tg.f32)
    for name in QUANTISERS:
        graph = tg.graph({"y": quantize(tg.concat(*[x] * 4, axis=-1), format=name)})
        expected = quantized(np.concatenate([values] * 4, axis=-1), name)
        for mode in ("real", "as_written"):
            np.testing.assert_array_equal(interpret(graph, {"x": values}, mode=mode).outputs["y"], expected)


def test_rows_that_are_no_blocks_are_refused() -> None:
    x = tg.input("x", (3, 48), tg.f32)
    with pytest.raises(ShapeError, match="whole blocks: Q4_0 has 32"):
        quantize(x, format="Q4_0")
    with pytest.raises(AttributeValueError, match="IQ4_NL"):
        quantize(x, format="IQ4_NL")
    with pytest.raises(DTypeError, match="fix: floats"):
        quantize(x.cast(tg.i32), format="Q8_0")


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


@pytest.mark.processes
@each_format
def test_what_is_compiled_computes_the_values(name: str, store: Database) -> None:
    rng, block = np.random.default_rng(3), FORMATS[name]
    packed = rng.integers(0, 256, (5, 2 * block.nbytes), np.uint8)
    finite = np.isfinite(dequantized(packed, name)).all(axis=-1)
    x = tg.input("x", packed.shape, tg.u8)
    plan = tg.compile(tg.graph({"y": dequantize(x, format=name)}), backends=("numpy", "c", "gen"), database=store)
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


def test_no_rows_of_blocks_are_no_rows_of_numbers() -> None:
    for name, block in FORMATS.items():
        assert dequantized(np.zeros((0, 2 * block.nbytes), np.uint8), name).shape == (0, 2 * block.values)
        assert dequantized(np.zeros((3, 0), np.uint8), name).shape == (3, 0)


@pytest.mark.parametrize("format", sorted(QUANTISERS))
def test_quantising_what_no_block_holds_warns_nobody(format: str) -> None:
    x = np.zeros((600, 256), np.float32)
    x[0, :4], x[300] = (np.inf, -np.inf, np.nan, 3e38), 1e-42
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized(x, format)
