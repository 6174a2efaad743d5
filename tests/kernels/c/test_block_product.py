"""kernels/c/block_product.c: products by blocks are as near as products by the numbers in them, for each format and set of
instructions."""

from __future__ import annotations

import itertools
import platform

import numpy as np
import pytest

from tensor_graphs.kernels.c import library
from tensor_graphs.kernels.c.backend import ROUNDED, packed_bytes
from tensor_graphs.language.composites.blocks import FORMATS, dequantized
from tensor_graphs.language.composites.rounded import LEVELS, PART
from tests.kernels.c.test_native import Array, normal, poisoned, run

NAMES = list(FORMATS)
HALVES = {"Q6_K": (208,), "MXFP4": (), **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))}
"""format -> offsets of the f16 numbers in a block, by default 0"""
each_format = pytest.mark.parametrize("name", NAMES)


SETS = {"without AVX-512": "-mno-avx512f", "without VNNI": "-mno-avx512vnni"}


@pytest.fixture(scope="module", params=["native", *SETS, "portable"])
def each_set(request: pytest.FixtureRequest) -> library.NativeLibrary:
    """The library for this processor's instructions, for fewer of them, and for any processor; the user's cache keeps them, as each
    takes 14 s to compile."""
    if request.param == "native":
        return library.load()
    if request.param == "portable":
        return library.build(portable=True)
    if platform.machine() != "x86_64":
        pytest.skip("x86-64 alone has this instruction set")
    return library.build(cc=f"cc {SETS[request.param]}")


def blocks(name: str, rows: int, k: int, scale: float = 1e-2, seed: int = 0) -> Array:
    """Random codes with scales of about `scale`."""
    rng, block = np.random.default_rng(seed), FORMATS[name]
    drawn = rng.integers(0, 256, (rows, k // block.values, block.nbytes), np.uint8)
    for at in HALVES.get(name, (0,)):
        drawn[..., at:at + 2] = (rng.uniform(0.1, 1, drawn.shape[:2]) * scale).astype(np.float16)[..., None].view(np.uint8)
    if name == "MXFP4":
        drawn[..., 0] = np.clip(128 + np.log2(scale).astype(int) + rng.integers(-2, 3, drawn.shape[:2]), 0, 254)
    return drawn.reshape(rows, drawn.shape[1] * block.nbytes)


def product(lib: library.NativeLibrary, name: str, x: Array, w: Array, bias: Array | None = None, to: str | None = None) -> Array:
    out, format = poisoned((len(x), len(w))), NAMES.index(name)
    packed = np.full((packed_bytes(name, len(w), x.shape[1]),), 170, np.uint8)
    run(lib, "tg_pack_blocks", [packed, w], [len(w), x.shape[1], format, w.shape[1]])
    run(lib, "tg_block_linear", [out, x, packed, bias], [*out.shape, x.shape[1], format, ROUNDED.index(to)])
    return out


def error(name: str, out: Array, x: Array, w: Array, bias: Array | None = None) -> float:
    return error_of(dequantized(w, name, np.float64) if w.size else np.zeros((len(w), x.shape[1])), out, x, bias)


def error_of(numbers: Array, out: Array, x: Array, bias: Array | None = None) -> float:
    """The largest error over the sum of the products' sizes; infinite where a result is finite and the exact one is not, or vice
    versa, but for sums of products that leave f32."""
    with np.errstate(all="ignore"):
        exact, terms = x.astype(float) @ numbers.T, np.abs(x).astype(float) @ np.abs(numbers).T
        if bias is not None:
            exact, terms = exact + bias, terms + np.abs(bias)
    held = terms < 3e38
    if not np.isfinite(out[held]).all() or np.isfinite(out[~np.isfinite(exact)]).any():
        return np.inf
    return float(np.max((np.abs(out - exact) / np.maximum(terms, 1e-37))[held], initial=0.0))


@each_format
def test_a_product_is_near_the_exact_one(each_set: library.NativeLibrary, name: str) -> None:
    for n, (m, of_row) in itertools.product((0, 1, 2, 3, 4, 7, 8, 9, 33), ((0, 1), (1, 0), (1, 1), (17, 3), (130, 5), (9, 8))):
        k = of_row * FORMATS[name].values
        x, w, bias = normal((n, k), 1), blocks(name, m, k), normal((m,), 2)
        assert error(name, product(each_set, name, x, w), x, w) <= 3e-7, (n, m, of_row)
        assert error(name, product(each_set, name, x, w, bias), x, w, bias) <= 3e-7, (n, m, of_row)


@each_format
def test_a_long_sum_is_no_farther_than_one_of_dequantised_weights(each_set: library.NativeLibrary, name: str) -> None:
    k = 3072
    w = blocks(name, 512, k, seed=4)
    numbers, exact = dequantized(w, name), dequantized(w, name, np.float64)
    for n in (2, 11):
        x, out = normal((n, k), 3), poisoned((n, 512))
        run(each_set, "tg_linear_f32", [out, x, numbers, None], [*out.shape, k])
        assert error_of(exact, product(each_set, name, x, w), x) <= 1.5 * error_of(exact, out, x) + 3e-8, n


@each_format
def test_extreme_rows_are_as_near(each_set: library.NativeLibrary, name: str) -> None:
    for n, values in itertools.product((1, 3, 20), ("zeros", "all 3000", "one 1e5", "-1e5 and 1e5", "1e-34", "3e38")):
        x = np.zeros((n, 512), np.float32)
        if values != "zeros":
            x += {"all 3000": 3000, "1e-34": 1e-34, "3e38": 3e38}.get(values, 0)
            x[:, 37] += 1e5 if "1e5" in values else 0
            x[:, 38] -= 1e5 if "-1e5" in values else 0
        w = blocks(name, 40, 512, 1e-6 if values == "3e38" else 1e-2)
        if values == "3e38":                             # sums of products of codes alone leave f32
            x[:, 1:] = 0
        assert error(name, product(each_set, name, x, w), x, w) <= 3e-7, (n, values)


@each_format
def test_any_bytes_are_numbers(each_set: library.NativeLibrary, name: str) -> None:
    """Subnormal, infinite and NaN scales, and all codes: what is finite is near, and nothing else is finite."""
    rng, block = np.random.default_rng(5), FORMATS[name]
    w = rng.integers(0, 256, (300, 2 * block.nbytes), np.uint8)
    w[:40] = blocks(name, 40, 2 * block.values, 1e-7)
    for n in (1, 2, 20):
        x = normal((n, 2 * block.values), 6)
        assert error(name, product(each_set, name, x, w), x, w) <= 3e-7, n
        x[0, 3] = np.nan
        assert error(name, product(each_set, name, x, w), x, w) <= 3e-7, n


def rounding(name: str, x: Array, w: Array, to: str) -> Array:
    """The most that a product may change where x is rounded to integers: half a step of each part of x, and 1e-6 for f32."""
    parts, numbers = np.abs(x).reshape(len(x), -1, PART).max(-1), np.abs(dequantized(w, name, np.float64)).reshape(len(w), -1, PART)
    return (0.51 / LEVELS[to] + 1e-6) * (parts.astype(float) @ numbers.sum(-1).T) + 1.2e-38 * np.maximum(1, numbers.sum((1, 2)))


@each_format
def test_integers_change_a_product_by_half_a_step(each_set: library.NativeLibrary, name: str) -> None:
    for n, to, (m, of_row, values) in itertools.product((1, 6), LEVELS, (
            (1, 1, "normal"), (33, 3, "normal"), (130, 5, "zeros"), (17, 2, "all 3000"), (17, 2, "one 1e5"), (17, 2, "1e-34"),
            (17, 2, "1e-42"))):
        k = of_row * FORMATS[name].values
        x = normal((n, k), 1)
        if values not in ("normal", "one 1e5"):
            x[:] = {"zeros": 0, "all 3000": 3000, "1e-34": 1e-34, "1e-42": 1e-42}[values]
        x[:, 7] = 1e5 if values == "one 1e5" else x[:, 7]
        x[-1, 9] *= -1
        w, bias = blocks(name, m, k), normal((m,), 2)
        exact = x.astype(float) @ dequantized(w, name, np.float64).T
        assert (np.abs(product(each_set, name, x, w, None, to) - exact) <= rounding(name, x, w, to)).all(), (n, to, m, values)
        off = np.abs(product(each_set, name, x, w, bias, to) - exact - bias)
        assert (off <= rounding(name, x, w, to) + 1e-6 * np.abs(bias)).all(), (n, to, m, values)


@each_format
@pytest.mark.parametrize("to", LEVELS)
def test_integers_multiplied_by_any_bytes_are_finite_where_numbers_are(each_set: library.NativeLibrary, name: str, to: str) -> None:
    rng, block = np.random.default_rng(5), FORMATS[name]
    w = rng.integers(0, 256, (300, 2 * block.nbytes), np.uint8)
    x = normal((3, 2 * block.values), 6)
    x[1, 3], x[2, 40] = np.nan, np.inf
    with np.errstate(all="ignore"):
        exact, terms = (f(x).astype(float) @ f(dequantized(w, name, np.float64)).T for f in (np.array, np.abs))
        out, is_held = product(each_set, name, x, w, None, to), terms < 1e38
        assert np.isfinite(out[is_held]).all() and not np.isfinite(out[~np.isfinite(exact)]).any()
        assert (np.abs(out - exact) <= rounding(name, x, w, to))[is_held].all()
