"""kernels/numpy/atomics.py: the semantics that language/atomic.py fixes, value by value; the oracle says the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tests.plans import compiled_of

INF, NAN = float("inf"), float("nan")
FLOATS = ("f16", "bf16", "f32", "f64")
INTS = ("i8", "i16", "i32", "i64")
UINTS = ("u8", "u16", "u32", "u64")


def run(node: Node, oracle: bool = True, **values: Any) -> np.ndarray:
    """The value of a node by the numpy kernels; the oracle's is compared on the way."""
    g = tg.graph(node)
    inputs = {n: np.asarray(values[n]).astype(x.dtype.numpy) for n, x in g.inputs.items()}
    out = compiled_of(g).run(inputs)["out"]
    if oracle:
        np.testing.assert_array_equal(out.astype(np.float64), np.asarray(interpret(g, inputs).outputs["out"], np.float64))
    return out


def leaf(name: str, values: Any, dtype: str) -> Node:
    return tg.input(name, np.shape(values), DTYPES[dtype])


@pytest.mark.parametrize("dtype", INTS + UINTS)
def test_integers_wrap(dtype: str) -> None:
    info = np.iinfo(DTYPES[dtype].numpy)
    x = np.array([info.max, info.min, info.max], DTYPES[dtype].numpy)
    y = np.array([1, 1, 2], DTYPES[dtype].numpy)
    a, b = leaf("a", x, dtype), leaf("b", y, dtype)
    assert run(a + b, a=x, b=y).tolist() == [info.min, info.min + 1, info.min + 1]
    twice = (2 * info.max) % (1 << info.bits)
    assert int(run(a * b, a=x, b=y)[2]) % (1 << info.bits) == twice
    assert int(run(atomic.sum(a), a=x)) % (1 << info.bits) == int(2 * info.max + info.min) % (1 << info.bits)


@pytest.mark.parametrize("dtype", INTS)
def test_idiv_floors_and_by_zero_gives_zero(dtype: str) -> None:
    info = np.iinfo(DTYPES[dtype].numpy)
    x, y = np.array([7, -7, 7, -7, 5, -5, 0, info.min, info.min]), np.array([2, 2, -2, -2, 0, 0, 0, -1, 0])
    assert run(atomic.idiv(leaf("a", x, dtype), leaf("b", y, dtype)), a=x, b=y).tolist() == [3, -4, -4, 3, 0, 0, 0, info.min, 0]


@pytest.mark.parametrize("dtype", UINTS)
def test_idiv_of_unsigned_integers(dtype: str) -> None:
    top = int(np.iinfo(DTYPES[dtype].numpy).max)
    x, y = np.array([7, top, top, 0], np.uint64), np.array([2, 0, 2, 0], np.uint64)
    assert run(atomic.idiv(leaf("a", x, dtype), leaf("b", y, dtype)), a=x, b=y).tolist() == [3, 0, top // 2, 0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_propagates_nan_and_prefers_positive_zero(dtype: str) -> None:
    x, y = [1.0, NAN, 1.0, 0.0, -0.0, -0.0, -INF, INF], [2.0, 1.0, NAN, -0.0, 0.0, -0.0, INF, -INF]
    out = run(atomic.max(leaf("a", x, dtype), leaf("b", y, dtype)), a=x, b=y).astype(np.float64)
    np.testing.assert_array_equal(out, [2, NAN, NAN, 0, 0, 0, INF, INF])
    assert np.signbit(out[3:6]).tolist() == [False, False, True]


@pytest.mark.parametrize("dtype", FLOATS)
def test_reduce_max_propagates_nan_prefers_positive_zero_and_of_nothing_is_minus_infinity(dtype: str) -> None:
    x = [[1.0, NAN, 2.0], [-0.0, 0.0, -0.0], [-0.0, -0.0, -0.0], [-INF, -INF, -INF], [-3.0, -0.0, 0.0]]
    out = run(atomic.reduce_max(leaf("a", x, dtype), 1), a=x).astype(np.float64)
    np.testing.assert_array_equal(out, [NAN, 0, 0, -INF, 0])
    assert np.signbit(out).tolist() == [False, False, True, True, False]
    empty = np.zeros((2, 0))
    assert run(atomic.reduce_max(leaf("a", empty, dtype), 1), a=empty).tolist() == [-INF, -INF]
    assert run(atomic.reduce_max(leaf("a", empty, dtype)), a=empty) == -INF


@pytest.mark.parametrize("dtype", INTS + UINTS)
def test_an_empty_reduce_max_of_integers_is_their_minimum(dtype: str) -> None:
    empty = np.zeros((2, 0))
    assert run(atomic.reduce_max(leaf("a", empty, dtype), 1), a=empty).tolist() == [np.iinfo(DTYPES[dtype].numpy).min] * 2


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", INTS + UINTS)
def test_casts_of_floats_truncate_and_saturate_and_nan_is_zero(source: str, target: str) -> None:
    info = np.iinfo(DTYPES[target].numpy)
    x = np.array([1.75, -1.75, 0.5, -0.5, NAN, INF, -INF, -0.0, 100.0, 30000.0, -30000.0]).astype(DTYPES[source].numpy)
    out = run(atomic.cast(leaf("a", x, source), target), a=x)
    wanted = [0 if np.isnan(v) else int(np.clip(np.trunc(np.clip(v, -1e6, 1e6)), info.min, info.max)) if np.isfinite(v)
              else (info.max if v > 0 else info.min) for v in x.astype(np.float64)]
    assert out.tolist() == wanted


@pytest.mark.parametrize("target", INTS + UINTS)
def test_casts_at_the_very_edge_of_an_integer(target: str) -> None:
    info = np.iinfo(DTYPES[target].numpy)
    edge = float(info.max)                              # for 64 bits this is one more than the maximum
    x = np.array([edge, np.nextafter(edge, INF), np.nextafter(edge, 0), float(info.min), np.nextafter(float(info.min), -INF)])
    out = run(atomic.cast(leaf("a", x, "f64"), target), a=x)
    assert out.tolist() == [min(max(int(v), info.min), info.max) for v in x]


def test_casts_between_integers_wrap_and_to_bool_ask_for_zero() -> None:
    x = np.array([0, 1, -1, 255, 256, 300, -129], np.int64)
    assert run(atomic.cast(leaf("a", x, "i64"), "u8"), a=x).tolist() == [0, 1, 255, 255, 0, 44, 127]
    assert run(atomic.cast(leaf("a", x, "i64"), "bool"), a=x).tolist() == [False] + [True] * 6
    y = [0.0, -0.0, 0.25, NAN, -INF]
    assert run(atomic.cast(leaf("a", y, "f32"), "bool"), a=y).tolist() == [False, False, True, True, True]


def test_bitcasts_keep_the_bytes_and_scale_the_last_axis() -> None:
    x = np.array([[1.0, -2.0]], np.float32)
    out = run(atomic.bitcast(leaf("a", x, "f32"), "u8"), a=x)
    assert out.shape == (1, 8) and out.tobytes() == x.tobytes()
    back = run(atomic.bitcast(leaf("a", out, "u8"), "f32"), a=out)
    assert back.tolist() == x.tolist()
    halves = run(atomic.bitcast(leaf("a", x, "f32"), "u16"), a=x)
    assert halves.tolist() == [[0, 0x3F80, 0, 0xC000]]


def test_gather_out_of_range_reads_zero() -> None:
    x, i = [[1.0, 2.0], [3.0, 4.0]], [1, -1, 0, 2, 100, -100]
    assert run(atomic.gather(leaf("a", x, "f32"), leaf("i", i, "i32")), a=x, i=i).tolist() == [
        [3, 4], [0, 0], [1, 2], [0, 0], [0, 0], [0, 0]]
    nothing = np.zeros((0, 2))
    assert run(atomic.gather(leaf("a", nothing, "f32"), leaf("i", i, "i32")), a=nothing, i=i).tolist() == [[0, 0]] * 6


@pytest.mark.parametrize("mode", ["set", "add", "max"])
def test_scatter_drops_what_is_out_of_range(mode: str) -> None:
    base, i, u = [1.0, 5.0, 3.0], [2, -1, 3, 0], [4.0, 9.0, 9.0, -2.0]
    out = run(atomic.scatter(leaf("a", base, "f32"), leaf("i", i, "i64"), leaf("u", u, "f32"), mode=mode), a=base, i=i, u=u)
    assert out.tolist() == {"set": [-2, 5, 4], "add": [-1, 5, 7], "max": [1, 5, 4]}[mode]


def test_scatter_adds_and_maximises_duplicates_in_every_dtype() -> None:
    for dtype in (*FLOATS, *INTS):
        base, i, u = [1, 0], [0, 0, 0, 1], [2, 3, 4, 5]
        a, j, v = leaf("a", base, dtype), leaf("i", i, "i32"), leaf("u", u, dtype)
        assert run(atomic.scatter(a, j, v, mode="add"), a=base, i=i, u=u).tolist() == [10, 5]
        assert run(atomic.scatter(a, j, v, mode="max"), a=base, i=i, u=u).tolist() == [4, 5]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_many_small_additions_to_one_place_do_not_stall(dtype: str) -> None:
    """1024 ones added to one place are 1024: a half-wide accumulator would stop at 256 (bf16) or 2048 (f16)."""
    base, i, u = [0.0, 0.0], np.zeros(4096, np.int64), np.ones(4096)
    out = run(atomic.scatter(leaf("a", base, dtype), leaf("i", i, "i32"), leaf("u", u, dtype), mode="add"), a=base, i=i, u=u)
    assert out.astype(np.float64).tolist() == [4096, 0]
    assert float(run(atomic.sum(leaf("u", u, dtype)), u=u)) == 4096


def test_a_sum_of_nothing_is_zero_and_keeps_its_dtype() -> None:
    for dtype in (*FLOATS, *INTS, *UINTS):
        out = run(atomic.sum(leaf("a", np.zeros((3, 0)), dtype), 1), a=np.zeros((3, 0)))
        assert out.tolist() == [0, 0, 0] and out.dtype == DTYPES[dtype].numpy


def test_comparisons_with_nan_are_false_but_not_equal_is_true() -> None:
    for dtype in FLOATS:
        x, y = [NAN, 1.0, NAN, -0.0], [1.0, NAN, NAN, 0.0]
        a, b = leaf("a", x, dtype), leaf("b", y, dtype)
        assert run(atomic.less(a, b), a=x, b=y).tolist() == [False] * 4
        assert run(atomic.not_equal(a, b), a=x, b=y).tolist() == [True, True, True, False]


def test_where_takes_nothing_from_the_other_side() -> None:
    c, x, y = [True, False], [NAN, 1.0], [2.0, INF]
    node = atomic.where(leaf("c", c, "bool"), leaf("x", x, "f32"), leaf("y", y, "f32"))
    assert run(node, c=c, x=[1.0, NAN], y=y).tolist() == [1, INF]
    assert np.isnan(run(node, c=c, x=x, y=y)[0])


def test_elementary_functions_at_the_edges() -> None:
    with np.errstate(all="ignore"):
        for dtype in FLOATS:
            x = [0.0, -0.0, INF, -INF, NAN, 1.0]
            a = leaf("a", x, dtype)
            for op, wanted in ((atomic.reciprocal, [INF, -INF, 0, -0.0, NAN, 1]), (atomic.sqrt, [0, -0.0, INF, NAN, NAN, 1]),
                               (atomic.exp2, [1, 1, INF, 0, NAN, 2]), (atomic.log2, [-INF, -INF, INF, NAN, NAN, 0]),
                               (atomic.floor, [0, -0.0, INF, -INF, NAN, 1])):
                out = run(op(a), a=x).astype(np.float64)
                np.testing.assert_array_equal(out, wanted)
                assert np.signbit(out[~np.isnan(out)]).tolist() == np.signbit([w for w in wanted if not np.isnan(w)]).tolist()


def test_pads_hold_their_value_and_iotas_count() -> None:
    for dtype, value in (("i8", -128), ("u64", 2**64 - 1), ("bool", True), ("bf16", -INF), ("f32", 1.5)):
        x = np.zeros((1, 2))
        out = run(atomic.pad(leaf("a", x, dtype), [(0, 1), (2, 0)], value), a=x, oracle=dtype != "u64")
        assert out.shape == (2, 4) and out[1, 0] == DTYPES[dtype].numpy.type(value) and out[0, 3] == 0
    assert run(atomic.iota((2, 3), 1, tg.u8)).tolist() == [[0, 1, 2]] * 2
    assert run(atomic.iota((300,), 0, tg.u8)).tolist() == [i % 256 for i in range(300)]
