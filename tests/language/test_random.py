"""Random numbers: Threefry's published answers, the same words from definition and `direct`, and true distributions.

The known answers of Threefry-2x32-20 are those of Salmon et al. 2011, as published with their Random123 library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special  # scipy.stats takes a second to import

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.composites.random import normal, random_bits, threefry2x32, uniform
from tensor_graphs.language.dtypes import bf16, f16, f32, f64, i32, u32
from tensor_graphs.language.errors import DTypeError, ShapeError
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import evaluate

KEY = leaves.input("key", (2,), u32)
BOTH = pytest.mark.parametrize("use_direct", [False, True], ids=["definition", "direct"])


def value(node: Node, key: tuple[int, int], use_direct: bool = False, mode: str = "real",
          dims: Any = None) -> np.ndarray:
    given = {KEY: np.array(key, dtype=np.uint32)}
    out = np.asarray(evaluate([node], given, dims or {}, mode=mode, use_direct=use_direct)[0])
    return out.astype(np.float64) if node.dtype.kind == "float" else out


@BOTH
@pytest.mark.parametrize("key, counter, words", [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
], ids=["zeros", "ones", "pi"])
def test_threefry_reproduces_the_published_answers(key: Any, counter: Any, words: Any, use_direct: bool):
    x0, x1 = leaves.input("x0", (1,), u32), leaves.input("x1", (1,), u32)
    given = {KEY: np.array(key, np.uint32), x0: np.array(counter[:1], np.uint32), x1: np.array(counter[1:], np.uint32)}
    y0, y1 = evaluate(list(threefry2x32(KEY, x0, x1)), given, {}, use_direct=use_direct)
    assert y0.dtype == y1.dtype == np.uint32
    assert (int(y0[0]), int(y1[0])) == words


@BOTH
def test_threefry_takes_counters_of_any_shape_scalars_too(use_direct: bool):
    for shape in ((), (2, 3), (0,)):
        x0, x1 = leaves.input("x0", shape, u32), leaves.input("x1", shape, u32)
        given = {KEY: np.zeros(2, np.uint32), x0: np.zeros(shape, np.uint32), x1: np.zeros(shape, np.uint32)}
        words = evaluate(list(threefry2x32(KEY, x0, x1)), given, {}, use_direct=use_direct)
        for y, word in zip(words, (0x6B200159, 0x99BA4EFE), strict=True):
            np.testing.assert_array_equal(y, np.full(shape, word, np.uint32))


def test_definition_and_direct_give_the_same_words():
    for shape in ((7,), (3, 5), (), (0, 4)):
        node = random_bits(KEY, shape=shape)
        found = value(node, (1, 2))
        assert found.shape == shape and found.dtype == np.uint32
        np.testing.assert_array_equal(found, value(node, (1, 2), use_direct=True))


@BOTH
def test_random_bits_are_those_of_jax(use_direct: bool):
    """jax.random.bits(jax.random.wrap_key_data([1, 2]), (2, 3), uint32) of jax 0.10.2."""
    expected = [[2932776407, 1811914268, 2110255537], [172616543, 1466569306, 3408927538]]
    np.testing.assert_array_equal(value(random_bits(KEY, shape=(2, 3)), (1, 2), use_direct), expected)


def test_an_element_depends_on_its_number_alone():
    long, short = (value(random_bits(KEY, shape=shape), (3, 4), True) for shape in ((1000,), (2, 5)))
    np.testing.assert_array_equal(long[:10], short.reshape(-1))
    n = d.dim("n", 1, 4096)
    symbolic = random_bits(KEY, shape=(n, 2))
    for use_direct in (False, True):
        np.testing.assert_array_equal(value(symbolic, (3, 4), use_direct, dims={"n": 6}).reshape(-1), long[:12])


def test_another_key_gives_other_words_and_each_bit_is_set_half_of_the_time():
    node = random_bits(KEY, shape=(20000,))
    a, b = value(node, (0, 7), True), value(node, (0, 8), True)
    assert (a != b).mean() > 0.9999
    for words in (a, b, a ^ b):
        for bit in range(32):                                     # 5 standard deviations of a fair coin
            assert abs(((words >> np.uint32(bit)) & 1).mean() - 0.5) < 5 * 0.5 / np.sqrt(20000)


@pytest.mark.parametrize("dtype, bits", [(f32, 24), (f64, 24), (f16, 11), (bf16, 8)], ids=str)
def test_uniform_floats_are_the_top_bits_below_one_in_every_dtype(dtype: Any, bits: int):
    node = uniform(KEY, shape=(5000,), dtype=dtype)
    words = value(random_bits(KEY, shape=(5000,)), (5, 6), True)
    expected = (words >> np.uint32(32 - bits)).astype(np.float64) / 2**bits
    for use_direct in (False, True):
        np.testing.assert_array_equal(value(node, (5, 6), use_direct), expected)
    written = value(node, (5, 6), mode="as_written")
    np.testing.assert_array_equal(written, expected)      # nothing is rounded, so nothing reaches 1
    assert 0 <= expected.min() and expected.max() < 1


def fits(values: np.ndarray) -> float:
    """The p-value of Kolmogorov and Smirnov's test that many values are uniform in 0 to 1, as for infinitely many."""
    ranks, x = np.arange(len(values) + 1) / len(values), np.sort(values)
    return float(scipy.special.kolmogorov(max((ranks[1:] - x).max(), (x - ranks[:-1]).max()) * np.sqrt(len(values))))


def test_uniform_floats_are_uniform():
    assert fits(value(uniform(KEY, shape=(20000,)), (9, 9), True)) > 1e-3


def test_normal_floats_are_normal_and_definition_and_direct_agree():
    x = value(normal(KEY, shape=(20000,)), (1, 1), True)
    assert fits(scipy.special.ndtr(x)) > 1e-3
    assert abs(x.mean()) < 5 / np.sqrt(20000) and abs(x.var() - 1) < 5 * np.sqrt(2 / 20000)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / np.sqrt(20000)
    np.testing.assert_allclose(value(normal(KEY, shape=(500,), dtype=f64), (1, 1)), x[:500], rtol=0, atol=3e-15)


@pytest.mark.parametrize("dtype, tolerance", [(f32, 1.5e-6), (f16, 6e-4), (bf16, 5e-3)], ids=str)
def test_normal_floats_rounded_at_every_op_stay_close(dtype: Any, tolerance: float):
    node = normal(KEY, shape=(2000,), dtype=dtype)
    true, written = value(node, (2, 3), True), value(node, (2, 3), mode="as_written")
    np.testing.assert_array_equal(written, written.astype(dtype.numpy).astype(np.float64))
    assert (np.abs(written - true) <= tolerance * np.maximum(np.abs(true), 1)).all()


def test_the_largest_normal_float_is_finite_where_the_uniform_one_is_smallest():
    from tensor_graphs.language.composites.random import _unit
    word = leaves.input("word", (2,), u32)
    lowest = evaluate([_unit(word, 24, f32)], {word: np.array([0, 0xFFFFFFFF], np.uint32)}, {})[0]
    np.testing.assert_array_equal(lowest, [0.0, 1 - 2.0**-24])
    assert np.sqrt(-2 * np.log(lowest[0] + 2.0**-24)) == pytest.approx(np.sqrt(48 * np.log(2)))


def test_keys_counters_and_dtypes_that_do_not_fit_are_refused():
    with pytest.raises(DTypeError, match=r"uniform: the key is i32\[2\](.|\n)*fix: two 32-bit words"):
        uniform(leaves.input("k", (2,), i32), shape=(3,))
    with pytest.raises(ShapeError, match=r"normal: the key is u32\[4\]"):
        normal(leaves.input("k", (4,), u32), shape=(3,))
    with pytest.raises(DTypeError, match=r"threefry2x32: x1 is i32\[3\]"):
        threefry2x32(KEY, leaves.input("x0", (3,), u32), leaves.input("x1", (3,), i32))
    with pytest.raises(ShapeError, match="axis 0 has two sizes, 3 and 4"):
        threefry2x32(KEY, leaves.input("x0", (3,), u32), leaves.input("x1", (4,), u32))
    with pytest.raises(DTypeError, match="uniform: the dtype is i32(.|\n)*random_bits gives integers"):
        uniform(KEY, shape=(3,), dtype=i32)
    with pytest.raises(ShapeError, match="a counter of 32 bits has 4294967296"):
        random_bits(KEY, shape=(2**17, 2**16))
