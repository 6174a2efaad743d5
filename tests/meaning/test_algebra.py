"""Each row of the op table against arithmetic done one element at a time in Python, and each fixed semantic by itself."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import ROWS
from tensor_graphs.language.dtypes import DType, bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tensor_graphs.language.node import Node, apply
from tensor_graphs.meaning.algebra import narrow, wide
from tensor_graphs.meaning.errors import InterpreterError, MeaningError
from tensor_graphs.meaning.interpreter import evaluate, interpret
from tests.strategies import ATOMIC_MAKERS, FLOATS, INTEGERS, Pool, array_of

INF, NAN = math.inf, math.nan


def value(node: Node, *arrays: Any, mode: Any = "real") -> np.ndarray:
    """The value of a node whose operands are inputs, in order."""
    return evaluate([node], dict(zip(node.inputs, map(np.asarray, arrays), strict=True)), {}, mode)[0]


def call(build: Callable[..., Node], *arrays: Any, dtypes: Any, mode: Any = "real") -> np.ndarray:
    """build(inputs) at these values; one dtype for all operands, or one for each."""
    listed = dtypes if isinstance(dtypes, tuple) else (dtypes,) * len(arrays)
    given = [np.asarray(a, dtype=None if t.kind == "float" else t.numpy) for a, t in zip(arrays, listed, strict=True)]
    nodes = [tg.input(f"x{i}", a.shape, t) for i, (a, t) in enumerate(zip(given, listed, strict=True))]
    return evaluate([build(*nodes)], dict(zip(nodes, given, strict=True)), {}, mode)[0]


def same(found: np.ndarray, expected: Any) -> None:
    """Equal values, NaN in place, and equal signs of zero."""
    wanted = np.asarray(expected, dtype=found.dtype)
    np.testing.assert_array_equal(found, wanted)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found) & (found == 0), np.signbit(wanted) & (wanted == 0))


# ---- one element at a time -------------------------------------------------------------------------------------------


def wrap(x: int, dtype: DType) -> int:
    """A whole number modulo 2^bits, in the dtype's range."""
    x %= 1 << dtype.bits
    return x - (1 << dtype.bits) if dtype.kind == "int" and x >> (dtype.bits - 1) else x


def larger(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return NAN
    if a == b == 0 and isinstance(a, float):
        return -0.0 if math.copysign(1, a) + math.copysign(1, b) == -2 else 0.0
    return a if a > b else b


def converted(x: Any, dtype: DType) -> Any:
    if dtype.kind == "bool":
        return x != 0
    if dtype.kind == "float":
        return float(x)
    if isinstance(x, float):
        return 0 if x != x else max(int(dtype.min), min(int(dtype.max), math.trunc(x) if math.isfinite(x) else
                                                        int(dtype.max) if x > 0 else int(dtype.min)))
    return wrap(int(x), dtype)


def scalar(x: Any) -> Any:
    """An element as a Python number."""
    return float(x) if np.asarray(x).dtype.kind in "fV" else bool(x) if np.asarray(x).dtype.kind == "b" else int(x)


def python_unary(fn: Callable[[float], float], at_zero: float = NAN) -> Callable[[float], float]:
    def safe(x: float) -> float:
        try:
            return math.copysign(at_zero, x) if x == 0 and at_zero == at_zero else fn(x)
        except (ValueError, ZeroDivisionError):
            return NAN
        except OverflowError:
            return INF

    return safe


UNARY = {"reciprocal": python_unary(lambda x: 1 / x, INF), "sqrt": python_unary(math.sqrt),
         "exp2": python_unary(lambda x: math.pow(2, x)), "sin": python_unary(math.sin),
         "log2": lambda x: -INF if x == 0 else python_unary(math.log2)(x),
         "floor": lambda x: math.copysign(math.floor(x), x) if math.isfinite(x) else x}
BINARY: dict[str, Callable[[Any, Any, DType], Any]] = {
    "add": lambda a, b, t: a + b if t.is_float else wrap(a + b, t),
    "mul": lambda a, b, t: a * b if t.is_float else wrap(a * b, t),
    "max": lambda a, b, t: larger(a, b), "idiv": lambda a, b, t: wrap(a // b, t) if b else 0,
    "and": lambda a, b, t: a & b, "xor": lambda a, b, t: a ^ b, "less": lambda a, b, t: a < b,
    "not_equal": lambda a, b, t: a != b}


EIGHT_BITS = {f8e4m3: 3, f8e5m2: 2}
"""bits of the mantissa"""


def decoded(bits: int, dtype: DType) -> float:
    """A pattern of eight bits as its number (OFP8, section 4)."""
    after = EIGHT_BITS[dtype]
    bias = (1 << 6 - after) - 1
    e, m, sign = bits >> after & 0x7F >> after, bits & (1 << after) - 1, -1.0 if bits & 0x80 else 1.0
    if e == 0x7F >> after and (dtype.has_infinity or bits & 0x7F == 0x7F):
        return NAN if m else sign * INF
    return sign * (math.ldexp(m, 1 - bias - after) if e == 0 else math.ldexp(m + (1 << after), e - bias - after))


def from_bytes(raw: bytes, dtype: DType) -> Any:
    if dtype.kind in ("int", "uint"):
        return int.from_bytes(raw, "little", signed=dtype.kind == "int")
    if dtype.kind == "bool":
        return raw != b"\0"
    if dtype in EIGHT_BITS:
        return decoded(raw[0], dtype)
    return struct.unpack({"f16": "<e", "bf16": "<f", "f32": "<f", "f64": "<d"}[dtype.name],
                         b"\0\0" + raw if dtype is bf16 else raw)[0]


def to_bytes(x: Any, dtype: DType) -> bytes:
    if dtype.kind != "float":
        return int(x).to_bytes(dtype.itemsize, "little", signed=dtype.kind == "int")
    if dtype is bf16:
        return struct.pack("<f", x)[2:]                     # the samples are values of bf16, so nothing is cut off
    if dtype in EIGHT_BITS:
        return next(bytes([b]) for b in (127, *range(256)) if repr(decoded(b, dtype)) == repr(x))
    return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[dtype.name], x)


def by_hand(node: Node, xs: list[np.ndarray]) -> np.ndarray:
    """What a node computes, by a loop over the elements of its result."""
    name, attrs, out_type = node.op.name, node.attrs, node.type
    shape = tuple(int(s) for s in node.shape)
    out = np.empty(shape, dtype=object)
    if name == "bitcast":
        raw = b"".join(to_bytes(scalar(x), node.inputs[0].dtype) for x in xs[0].flat)
        size = out_type.dtype.itemsize
        for i in range(out.size):
            out.flat[i] = from_bytes(raw[i * size:(i + 1) * size], out_type.dtype)
        return out
    if name == "scatter":
        axis = attrs["axis"]
        for at in itertools.product(*map(range, shape)):
            out[at] = scalar(xs[0][at])
        for where in itertools.product(*map(range, xs[1].shape)):
            place = int(xs[1][where])
            for rest in itertools.product(*map(range, (*shape[:axis], *shape[axis + 1:]))):
                to = (*rest[:axis], place, *rest[axis:])
                new = scalar(xs[2][(*rest[:axis], *where, *rest[axis:])])
                if 0 <= place < shape[axis]:
                    out[to] = {"set": new, "max": larger(out[to], new) if attrs["mode"] == "max" else None,
                               "add": BINARY["add"](out[to], new, out_type.dtype) if attrs["mode"] == "add" else None
                               }[attrs["mode"]]
        return out
    for at in itertools.product(*map(range, shape)):
        out[at] = element(node, name, attrs, at, xs)
    return out


def element(node: Node, name: str, attrs: Any, at: tuple[int, ...], xs: list[np.ndarray]) -> Any:
    dtype = node.type.dtype
    if name == "iota":
        return converted(at[attrs["axis"]], dtype)
    if name in UNARY:
        return UNARY[name](scalar(xs[0][at]))
    if name in BINARY:
        return BINARY[name](scalar(xs[0][at]), scalar(xs[1][at]), node.inputs[0].dtype)
    if name == "cast":
        return converted(scalar(xs[0][at]), dtype)
    if name == "where":
        return scalar(xs[1][at] if xs[0][at] else xs[2][at])
    if name in ("sum", "reduce_max"):
        axes, source = attrs["axes"], xs[0].shape
        ranges = [range(source[i]) if i in axes else None for i in range(len(source))]
        kept = iter(at)
        fixed = [None if r is not None else next(kept) for r in ranges]
        picks = itertools.product(*(r if r is not None else [f] for r, f in zip(ranges, fixed, strict=True)))
        items = [scalar(xs[0][p]) for p in picks]
        if name == "sum":
            return math.fsum(items) if dtype.is_float else wrap(sum(items), dtype)
        found = -INF if dtype.is_float else int(dtype.min)
        for item in items:
            found = larger(found, item)
        return found
    if name == "reshape":
        return scalar(xs[0].reshape(-1)[int(np.ravel_multi_index(at, node.shape)) if at else 0])
    if name == "permute":
        source_at = [0] * len(at)
        for i, axis in enumerate(attrs["axes"]):
            source_at[axis] = at[i]
        return scalar(xs[0][tuple(source_at)])
    if name == "expand":
        return scalar(xs[0][tuple(0 if size == 1 else i for i, size in zip(at, xs[0].shape, strict=True))])
    if name == "pad":
        inner = tuple(i - before for i, (before, _) in zip(at, attrs["padding"], strict=True))
        inside = all(0 <= i < size for i, size in zip(inner, xs[0].shape, strict=True))
        return scalar(xs[0][inner]) if inside else attrs["value"]
    if name == "slice":
        return scalar(xs[0][tuple(start + i * step for i, (start, _, step) in zip(at, attrs["bounds"], strict=True))])
    assert name == "gather"
    axis, rank = attrs["axis"], xs[1].ndim
    place = int(xs[1][at[axis:axis + rank]])
    if not 0 <= place < xs[0].shape[axis]:
        return 0
    return scalar(xs[0][(*at[:axis], place, *at[axis + rank:])])


def test_every_row_of_the_op_table_has_a_maker():
    assert set(ATOMIC_MAKERS) == {row.name for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@settings(max_examples=25)
@given(data=st.data())
def test_a_row_computes_what_a_loop_over_elements_computes(row, data):
    node = ATOMIC_MAKERS[row.name](Pool(data.draw, (), (*FLOATS, *INTEGERS, bool_)))
    assert isinstance(node, Node)
    if node.op is not row:                                  # a reshape to the same shape is no node
        return
    leaves_of = dict.fromkeys(node.inputs)
    arrays = {n: array_of([int(s) for s in n.shape], n.dtype, seed) for seed, n in enumerate(leaves_of)}
    if row.name == "scatter" and node.attrs["mode"] == "set":
        arrays[node.inputs[1]] = np.arange(node.inputs[1].shape[0], dtype=np.int32) * 2 - 1
    fresh = {n: tg.input(f"operand{i}", n.shape, n.dtype) for i, n in enumerate(leaves_of)}
    again = apply(row, [fresh[n] for n in node.inputs], node.attrs)
    (found,) = evaluate([again], {fresh[n]: a for n, a in arrays.items()}, {})
    expected = by_hand(again, [arrays[n] for n in node.inputs])
    assert found.dtype == (np.float64 if again.dtype.kind == "float" else again.dtype.numpy)
    assert found.shape == expected.shape
    if again.dtype.kind == "float" and not row.facts.exact:
        np.testing.assert_allclose(found, expected.astype(np.float64), rtol=4e-16, atol=1e-15)
    else:
        np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_the_loop_over_elements_sees_a_wrong_axis():
    x = tg.input("x", (2, 3))
    values = np.arange(6.0).reshape(2, 3)
    assert not np.array_equal(by_hand(atomic.sum(x, 0), [values]).astype(float), values.sum(axis=1)[:2])
    assert by_hand(atomic.permute(x, (1, 0)), [values]).tolist() == values.T.tolist()


# ---- the fixed semantics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_in_their_own_dtype(dtype):
    top, bottom = int(dtype.max), int(dtype.min)
    same(call(atomic.add, [top, bottom], [1, bottom], dtypes=dtype), [bottom, wrap(2 * bottom, dtype)])
    same(call(atomic.mul, [top], [top], dtypes=dtype), [1])
    same(call(lambda x: atomic.sum(x), [top, top, 3], dtypes=dtype), wrap(2 * top + 3, dtype))


def test_integers_and_scalars_wrap_without_a_warning(recwarn):
    same(call(atomic.add, 127, 1, dtypes=i8), -128)
    same(call(atomic.mul, -128, -1, dtypes=i8), -128)
    assert not recwarn.list


def test_idiv_floors():
    same(call(atomic.idiv, [7, -7, 7, -7], [2, 2, -2, -2], dtypes=i32), [3, -4, -4, 3])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_by_zero_gives_zero(dtype):
    same(call(atomic.idiv, [5, 0, int(dtype.min)], [0, 0, 0], dtypes=dtype), [0, 0, 0])


def test_the_smallest_integer_divided_by_minus_one_wraps():
    same(call(atomic.idiv, [-128], [-1], dtypes=i8), [-128])
    same(call(atomic.idiv, [-2**63], [-1], dtypes=i64), [-2**63])


def test_max_propagates_nan_from_either_side():
    same(call(atomic.max, [NAN, 1.0, -INF], [1.0, NAN, NAN], dtypes=f32), [NAN, NAN, NAN])


def test_plus_zero_is_larger_than_minus_zero():
    same(call(atomic.max, [0.0, -0.0, -0.0, 0.0], [-0.0, 0.0, -0.0, 0.0], dtypes=f32), [0.0, 0.0, -0.0, 0.0])
    same(call(atomic.max, [-0.0, 0.0, -3.0, -3.0], [-3.0, -3.0, -0.0, 0.0], dtypes=f32), [-0.0, 0.0, -0.0, 0.0])
    same(call(lambda x: atomic.reduce_max(x, 1), [[-0.0, 0.0], [-0.0, -0.0], [-1.0, -0.0]], dtypes=f32), [0.0, -0.0, -0.0])
    same(call(lambda b, i, u: atomic.scatter(b, i, u, mode="max"), [-0.0, -0.0, -1.0, 0.0], [0, 2, 3], [0.0, -0.0, -0.0],
              dtypes=(f32, i32, f32)), [0.0, -0.0, -0.0, 0.0])


def test_reduce_max_propagates_nan():
    same(call(lambda x: atomic.reduce_max(x, 0), [[1.0, NAN], [INF, 2.0]], dtypes=f64), [INF, NAN])


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_an_empty_reduce_max_is_minus_infinity_or_the_smallest_integer(dtype):
    found = value(atomic.reduce_max(tg.input("x", (2, 0), dtype), 1), np.zeros((2, 0), dtype.numpy))
    same(found, [-INF if dtype.is_float else dtype.min] * 2)


def test_an_empty_sum_is_zero():
    same(value(atomic.sum(tg.input("x", (2, 0)), 1), np.zeros((2, 0))), [0.0, 0.0])
    same(value(atomic.sum(tg.input("x", (0, 2), i8), 0), np.zeros((0, 2), np.int8)), [0, 0])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_cast_of_a_float_to_an_integer_truncates_and_saturates(dtype):
    top, bottom = int(dtype.max), int(dtype.min)
    found = call(lambda x: x.cast(dtype), [2.9, -2.9, 1e30, -1e30, INF, -INF, float(top), float(bottom)], dtypes=f64)
    same(found, [2, max(-2, bottom), top, bottom, top, bottom, top, bottom])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_cast_of_nan_to_an_integer_is_zero(dtype):
    same(call(lambda x: x.cast(dtype), [NAN, -NAN], dtypes=f32), [0, 0])


def test_a_cast_between_integers_wraps():
    same(call(lambda x: x.cast(i8), [200, -200, 65536 + 5], dtypes=i32), [-56, 56, 5])
    same(call(lambda x: x.cast(u64), [-1], dtypes=i8), [2**64 - 1])


def test_a_cast_to_bool_asks_for_anything_but_zero():
    same(call(lambda x: x.cast(bool_), [0.0, -0.0, 0.1, NAN, INF], dtypes=f32), [False, False, True, True, True])
    same(call(lambda x: x.cast(bool_), [0, 256], dtypes=i32), [False, True])
    same(call(lambda x: x.cast(f32), [True, False], dtypes=bool_), [1.0, 0.0])


def test_a_cast_between_floats_is_the_identity_on_real_numbers():
    x = np.array([0.1, 1e300, 1e-300, 65520.0])
    same(call(lambda x: x.cast(f16).cast(bf16).cast(f32), x, dtypes=f64), x)


def test_a_bitcast_may_change_the_width_and_is_little_endian():
    same(call(lambda x: atomic.bitcast(x, u8), [[0x04030201]], dtypes=u32), [[1, 2, 3, 4]])
    same(call(lambda x: atomic.bitcast(x, u16), [[1, 2, 3, 4]], dtypes=u8), [[0x0201, 0x0403]])
    same(call(lambda x: atomic.bitcast(x, i64), [[-1, -1]], dtypes=i32), [[-1]])


def test_a_bitcast_reads_the_bits_of_a_float_in_its_own_dtype():
    third = 1 / 3                                           # no value of any narrow dtype: it is rounded first
    same(call(lambda x: atomic.bitcast(x, u32), [third], dtypes=f32), [0x3EAAAAAB])
    same(call(lambda x: atomic.bitcast(x, u16), [third], dtypes=f16), [0x3555])
    same(call(lambda x: atomic.bitcast(x, u16), [third], dtypes=bf16), [0x3EAB])
    same(call(lambda x: atomic.bitcast(x, u64), [third], dtypes=f64), [0x3FD5555555555555])
    same(call(lambda x: atomic.bitcast(x, f32), [0x3EAAAAAB, 0x7F800000, 0x80000000], dtypes=u32),
         [np.float32(third), INF, -0.0])
    same(call(lambda x: atomic.bitcast(x, bf16), [0x3EAB], dtypes=u16), [0.333984375])


def test_a_byte_other_than_zero_is_true():
    found = call(lambda x: atomic.bitcast(x, bool_), [0, 1, 2, 255], dtypes=u8)
    assert found.view(np.uint8).tolist() == [0, 1, 1, 1]
    same(call(lambda x: atomic.bitcast(x, u8), [True, False], dtypes=bool_), [1, 0])


@pytest.mark.parametrize("dtype", [i32, i64, u8, u64], ids=str)
def test_gather_out_of_range_reads_zero(dtype):
    index = [0, 2, 3, 255] if dtype.kind == "uint" else [0, 2, 3, -1]
    found = call(lambda x, i: atomic.gather(x, i), [5.0, NAN, 7.0], index, dtypes=(f32, dtype))
    same(found, [5.0, 7.0, 0.0, 0.0])
    same(value(atomic.gather(tg.input("x", (0, 2)), tg.input("i", (1,), dtype)), np.zeros((0, 2)), np.zeros(1, dtype.numpy)),
         [[0.0, 0.0]])


def test_gather_from_rows_without_elements_has_none():
    assert call(lambda x, i: atomic.gather(x, i), np.zeros((3, 0)), [0, 9], dtypes=(f32, i32)).shape == (2, 0)


@pytest.mark.parametrize("mode, expected", [("set", [1, 9, 3]), ("add", [1, 11, 3]), ("max", [1, 9, 3])])
def test_scatter_drops_what_is_out_of_range(mode, expected):
    found = call(lambda b, i, u: atomic.scatter(b, i, u, mode=mode), [1, 2, 3], [-1, 1, 3], [7, 9, 8], dtypes=(i32, i64, i32))
    same(found, expected)


def test_scatter_adds_and_maximises_over_duplicates():
    index, updates = [1, 1, 1], [2, 5, 3]
    same(call(lambda b, i, u: atomic.scatter(b, i, u, mode="add"), [0, 100], index, updates, dtypes=i8), [0, 110])
    same(call(lambda b, i, u: atomic.scatter(b, i, u, mode="add"), [0, 120], index, updates, dtypes=i8), [0, -126])
    same(call(lambda b, i, u: atomic.scatter(b, i, u, mode="max"), [0, 4], index, updates, dtypes=i8), [0, 5])
    same(call(lambda b, i, u: atomic.scatter(b, i, u, mode="max"), [0.0], [0, 0], [NAN, 1.0], dtypes=(f32, i32, f32)), [NAN])


def test_duplicates_under_set_are_an_error_that_names_the_index():
    with pytest.raises(InterpreterError, match=r"scatter\(set\): the index 2 of axis 0 occurs 2 times.*\n.*\n  fix: make"):
        call(lambda b, i, u: atomic.scatter(b, i, u), [0, 0, 0], [2, 0, 2], [1, 2, 3], dtypes=i32)


def test_duplicates_that_are_out_of_range_are_dropped_without_an_error():
    same(call(lambda b, i, u: atomic.scatter(b, i, u), [0, 0], [5, 5, -1, -1, 1], [1, 2, 3, 4, 5], dtypes=i32), [0, 5])


def test_pad_and_expand_take_any_value():
    same(call(lambda x: atomic.pad(x, [(1, 1)], -INF), [NAN], dtypes=f32), [-INF, NAN, -INF])
    same(call(lambda x: atomic.pad(x, [(0, 1)], 7), np.zeros(0, np.int64), dtypes=i64), [7])


def test_a_slice_backwards_may_end_before_the_first_element():
    same(call(lambda x: atomic.slice(x, [(2, -1, -1)]), [1, 2, 3], dtypes=i32), [3, 2, 1])
    same(call(lambda x: atomic.slice(x, [(2, -1, -2)]), [1, 2, 3], dtypes=i32), [3, 1])
    assert call(lambda x: atomic.slice(x, [(1, 1, -1)]), [1, 2, 3], dtypes=i32).shape == (0,)


def test_iota_counts_and_wraps():
    same(value(atomic.iota((2, 3), 1, f32)), [[0, 1, 2], [0, 1, 2]])
    assert value(atomic.iota((300,), 0, i8))[127:130].tolist() == [127, -128, -127]


def test_bounds_that_leave_the_axis_at_a_size_are_an_error():
    n = tg.dim("n", 1, 9)
    x = tg.input("x", (n,))
    with pytest.raises(MeaningError, match="slice: axis 0 from 0 to 4 step 1 leaves the axis of size 3"):
        evaluate([atomic.slice(x, [(0, 4, 1)])], {x: np.zeros(3)}, {"n": 3})
    with pytest.raises(MeaningError, match="pad: axis 0 is padded by -2 at these sizes"):
        evaluate([atomic.pad(x, [(n - 5, 0)], 0)], {x: np.zeros(3)}, {"n": 3})


def test_a_sum_over_any_axis_is_added_pairwise():
    """0.1 a million times: one after the other is off by 1e-6, pairwise by 1e-10."""
    for shape, axis in (((1_000_000, 1), 0), ((1, 1_000_000), 1), ((1000, 1000), (0, 1))):
        x = tg.input("x", shape)
        (found,) = evaluate([atomic.sum(x, axis)], {x: np.full(shape, 0.1)}, {})
        assert abs(float(found.reshape(-1)[0]) - 100_000.0) < 1e-9


# ---- as written ------------------------------------------------------------------------------------------------------

NARROW = (f16, bf16, f32)


def neighbours(x: float, dtype: DType) -> tuple[Fraction, Fraction]:
    """The values just below and just above a value of the dtype; next to the largest, what would come without a limit."""
    at = np.asarray(x, dtype=dtype.numpy)
    with np.errstate(over="ignore"):
        low, high = (float(np.nextafter(at, np.asarray(to, dtype.numpy))) for to in (-INF, INF))
    exact = Fraction(x)
    return (Fraction(low) if math.isfinite(low) else 2 * exact - Fraction(high),
            Fraction(high) if math.isfinite(high) else 2 * exact - Fraction(low))


def assert_nearest(exact: Fraction, found: float, dtype: DType) -> None:
    """found is the value of the dtype nearest to an exact rational; of two as near, the one with an even last bit."""
    error = abs(Fraction(found) - exact)
    for other in neighbours(found, dtype):
        assert error <= abs(other - exact)
        if error == abs(other - exact):
            bits = int(np.asarray(found, dtype.numpy).view({2: np.uint16, 4: np.uint32}[dtype.itemsize]))
            assert bits % 2 == 0


def tricky(dtype: DType, seed: int) -> np.ndarray:
    """Values of the dtype whose sums and products fall near ties."""
    rng = np.random.default_rng(seed)
    digits = 1 - round(math.log2(dtype.epsilon))
    significand = rng.integers(2 ** (digits - 1), 2**digits, 400).astype(np.float64)
    return np.ldexp(significand, rng.integers(-digits - 4, 4 - digits, 400)) * rng.choice([-1.0, 1.0], 400)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_products_and_reciprocals_are_rounded_correctly(dtype):
    a, b = tricky(dtype, 0), tricky(dtype, 1)
    found = {name: call(getattr(atomic, name), a, b, dtypes=dtype, mode="as_written") for name in ("add", "mul")}
    inverse = call(atomic.reciprocal, a, dtypes=dtype, mode="as_written")
    assert inverse.dtype == dtype.numpy
    for i in range(len(a)):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        assert_nearest(x + y, float(found["add"][i]), dtype)
        assert_nearest(x * y, float(found["mul"][i]), dtype)
        assert_nearest(1 / x, float(inverse[i]), dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_square_roots_are_rounded_correctly(dtype):
    x = np.abs(tricky(dtype, 2))
    found = call(atomic.sqrt, x, dtypes=dtype, mode="as_written")
    for i in range(len(x)):
        low, high = neighbours(float(found[i]), dtype)
        at = Fraction(float(found[i]))
        assert ((low + at) / 2) ** 2 <= Fraction(float(x[i])) <= ((at + high) / 2) ** 2


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_float64_is_rounded_once_on_its_way_to_a_narrow_dtype(dtype):
    """A hair above a tie of the narrow dtype: rounded to float32 on the way it would be the tie, and fall to even."""
    step = dtype.epsilon
    ties = [1 + step / 2, 1 + 3 * step / 2, dtype.smallest_normal * step / 2, dtype.smallest_normal * (1 + step / 2)]
    x = np.array([sign * t * (1 + hair) for t in ties for hair in (-2.0**-40, 0.0, 2.0**-40) for sign in (1, -1)])
    found = call(lambda x: x.cast(dtype), x, dtypes=f64, mode="as_written")
    for exact, rounded in zip(x, found, strict=True):
        assert_nearest(Fraction(float(exact)), float(rounded), dtype)


def test_the_check_of_rounding_sees_the_double_rounding_of_a_library():
    x = 1 + 2.0**-8 + 2.0**-40
    assert float(np.asarray(x).astype(ml_dtypes.bfloat16)) == 1.0      # by way of float32; ours goes up
    with pytest.raises(AssertionError):
        assert_nearest(Fraction(x), 1.0, bf16)
    assert float(narrow(np.asarray(x), bf16)) == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_large_integer_is_rounded_once(dtype):
    edge = [2**53 + 1, 2**62 + 1, 2**62 + 2**54 + 1, -(2**62 + 2**54 + 1), 2**62 + 2**38 + 1, -(2**62 + 2**38 + 1), 65519, 65521]
    found = call(lambda x: x.cast(dtype), edge, dtypes=i64, mode="as_written")
    for exact, rounded in zip(edge, found, strict=True):
        if math.isfinite(float(rounded)):
            assert_nearest(Fraction(exact), float(rounded), dtype)
        else:
            assert dtype is f16 and abs(exact) >= 65520
    big = 2**63 + 2**39 + 1
    assert_nearest(Fraction(big), float(call(lambda x: x.cast(f32), [big], dtypes=u64, mode="as_written")[0]), f32)


def test_every_op_is_rounded_to_the_dtype_of_its_node():
    x = np.array([0.1, 2.3], np.float16)
    for name in ("exp2", "log2", "sin"):
        exact = getattr(np, name)(x.astype(np.float64))
        same(call(getattr(atomic, name), x, dtypes=f16, mode="as_written"), exact.astype(np.float16))
    same(call(lambda x: atomic.sum(x), [2048.0, 1.0, 1.0], dtypes=f16, mode="as_written"), 2050.0)     # rounded once
    same(call(lambda b, i, u: atomic.scatter(b, i, u, mode="add"), [2048.0], [0], [1.0], dtypes=(f16, i32, f16),
              mode="as_written"), [2048.0])
    same(call(lambda x: atomic.pad(x, [(0, 1)], 0.1), [1.0], dtypes=bf16, mode="as_written"), [1.0, 0.10009765625])
    same(value(atomic.iota((2050,), 0, f16), mode="as_written")[-2:], [2048.0, 2048.0])
    same(value(tg.constant(1e39, f32), mode="as_written"), INF)
    same(value(tg.constant(1e39, f32)), 1e39)


def test_a_number_given_for_a_narrow_input_is_rounded_as_written_and_kept_in_real_mode():
    x = tg.input("x", (1,), bf16)
    assert evaluate([x + x], {x: np.array([0.1])}, {})[0][0] == 0.2
    assert float(evaluate([x + x], {x: np.array([0.1])}, {}, "as_written")[0][0]) == 0.2001953125


@pytest.mark.parametrize("dtype", [f8e4m3, f8e5m2], ids=str)
def test_every_number_becomes_the_nearest_float_of_eight_bits_in_one_rounding(dtype):
    finite = np.unique([x for b in range(256) if math.isfinite(x := decoded(b, dtype))])
    step = finite[-1] - finite[-2]
    middles = np.concatenate([(finite[1:] + finite[:-1]) / 2, [finite[-1] + step / 2, finite[0] - step / 2]])
    lows, highs = np.append(finite[:-1], [finite[-1], -INF]), np.append(finite[1:], [INF, finite[0]])
    for shift in (1, 2.0**-40, 2.0**-51):                   # far from the tie, and so near to it that f32 rounds onto it
        near = shift * np.abs(middles) if shift < 1 else (highs - lows) / 8
        near = np.where(np.isfinite(near), near, step / 8)
        for x, wanted in ((middles + near, highs), (middles - near, lows)):
            found = narrow(x, dtype).astype(np.float64)
            wanted = wanted if dtype.has_infinity else np.where(np.isinf(wanted), NAN, wanted)
            np.testing.assert_array_equal(found, wanted)
    patterns = narrow(middles[:-2], dtype).view(np.uint8)
    assert not (patterns & 1).any(), "a tie goes to the even pattern"
    beyond = INF if dtype.has_infinity else NAN
    far = narrow(np.array([1e300, INF, -INF, NAN]), dtype)
    np.testing.assert_array_equal(far.astype(np.float64), [beyond, beyond, -beyond, NAN])
    tiny = narrow(np.array([0.0, -0.0, 1e-300, -1e-300, -5e-324]), dtype)
    assert tiny.view(np.uint8).tolist() == [0, 0x80, 0, 0x80, 0x80]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_widening_keeps_every_value_and_narrowing_gives_it_back(dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    x = bits.view(dtype.numpy) if dtype.itemsize <= 2 else bits.astype(dtype.numpy)
    with np.errstate(invalid="ignore"):
        expected = np.array([float(v) for v in x])          # one element at a time
        found = wide(x, dtype)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(wide(x[::3], dtype), expected[::3])
        np.testing.assert_array_equal(narrow(found, dtype).astype(np.float64), expected)


def test_a_row_of_i16_is_not_taken_for_a_float():
    same(call(atomic.mul, [300], [300], dtypes=i16), [wrap(90000, i16)])


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_jittered_moves_what_hangs_on_the_order_of_a_sum_and_nothing_else(dtype: DType) -> None:
    def both(build: Callable[..., Node], x: list[float]) -> list[np.ndarray]:
        return [call(build, x, dtypes=dtype, mode=mode).astype(np.float64) for mode in ("as_written", "jittered")]

    cancelled, moved = both(lambda x: atomic.sum(x), [1e4, 1.0, -1e4, 0.25])
    assert cancelled == 1.25 and 0 < abs(moved - cancelled) < 1e4 * 64 * dtype.epsilon
    alike, again = both(lambda x: atomic.sum(x), [3.0, 1.0, 2.0])
    assert abs(again - alike) <= 6 * 16 * dtype.epsilon
    for build in (atomic.reduce_max, atomic.exp2, lambda x: atomic.mul(x, x)):
        one, other = both(build, [3.0, 1.0, 2.0])
        np.testing.assert_array_equal(one, other)


def test_jittered_moves_a_long_sum_of_equal_numbers_too() -> None:
    """x − mean(x): what moves each of 6272 terms cancels, and the mean would come out as x in every third row."""
    x = tg.input("x", (500, 6272))
    rows = np.full((500, 6272), 0.3, np.float32)
    off = jittered(x - tg.mean(x, axis=1, keepdims=True), 1, x=rows)[:, 0].astype(float)
    assert np.mean(off == 0.0) < 0.1 and 0 < np.abs(off).max() < 0.3 * 4096**0.5 * f32.epsilon
    one = jittered(atomic.sum(tg.input("x", (500, 1)), (1,)), 1, x=rows[:, :1])
    assert np.abs(one - rows[:, 0]).max() <= 0.3 * 16 * f32.epsilon


def jittered(node: Node, seed: int, **given: np.ndarray) -> np.ndarray:
    return interpret(tg.graph(node), given, mode="jittered", jitter=seed).outputs["out"]


def test_a_sum_that_overflows_in_some_orders_is_what_those_orders_give_and_no_other_is_moved_far() -> None:
    most = float(f32.max)

    def seen(*row: float) -> set[str]:
        x = tg.input("x", (64, len(row)))
        values = np.broadcast_to(np.array(row, np.float32), (64, len(row)))
        found = np.concatenate([jittered(atomic.sum(x, (1,)), seed, x=values).astype(float) for seed in range(6)])
        return {str(v) for v in found[~np.isfinite(found)]}

    assert seen(most, most, -most, -most) == {"inf", "-inf", "nan"}
    assert seen(most, 0.5 * most, -0.5 * most) == {"inf"}
    assert seen(0.6 * most, 0.3 * most, -0.6 * most) == set(), "no order leaves the range"
    assert seen(np.inf, -0.6 * most, -0.6 * most) == {"inf", "nan"}, "numbers before an infinity may have become the other one"
    assert seen(np.inf, -0.6 * most) == {"inf"}
    x, row = tg.input("x", (64, 3)), np.array([0.5 * most, -0.8 * most, -0.5 * most], np.float32)
    each = [jittered(atomic.sum(x, (1,)), seed, x=np.broadcast_to(row, (64, 3))) for seed in (1, 2, 4)]
    assert (np.isneginf(each).sum(0) == 1).all() and np.isfinite(each).any(1).all(), "every element meets it in three seeds"
    wide = jittered(atomic.sum(tg.input("x", (2,))) * 0.25, 3, x=np.full(2, most, np.float32))
    assert np.isclose(float(wide), most / 2), "a kernel may go on in a wider dtype"


def test_jittered_moves_only_what_a_scatter_adds_to() -> None:
    base, index, updates = tg.input("x", (3,)), tg.input("i", (2,), i32), tg.input("u", (2,))
    values = {"x": np.array([0.1, 0.2, 0.3], np.float32), "i": np.zeros(2, np.int32), "u": np.array([1e4, -1e4], np.float32)}
    found = jittered(atomic.scatter(base, index, updates, mode="add"), 1, **values)
    assert 0 < abs(float(found[0]) - 0.1) < 0.1 and (found[1:] == values["x"][1:]).all()
    for mode in ("max", "set"):
        values["i"] = np.array([0, 1], np.int32)
        node = atomic.scatter(base, index, updates, mode=mode)
        np.testing.assert_array_equal(jittered(node, 1, **values), interpret(tg.graph(node), values).outputs["out"])


def test_jittered_keeps_no_sign_of_the_one_nan_of_a_dtype_without_infinity() -> None:
    values = np.array([np.nan, -1.5, 448]).astype(f8e4m3.numpy)
    bits = np.array([jittered(atomic.bitcast(tg.input("x", (3,), f8e4m3), u8), seed, x=values) for seed in range(4)])
    assert bits[:, 0].tolist() == [0x7f, 0xff, 0x7f, 0xff]
    np.testing.assert_array_equal(bits[:, 1:], np.broadcast_to(values.view(np.uint8)[1:], (4, 2)))


@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_jittered_keeps_neither_sign_nor_payload_of_a_nan_and_every_other_bit(dtype: DType) -> None:
    x = tg.input("x", (3,), dtype)
    values = np.array([np.nan, -1.5, np.inf]).astype(dtype.numpy)
    bits = np.array([jittered(atomic.bitcast(x, {2: i16, 4: i32, 8: i64}[dtype.itemsize]), seed, x=values) for seed in range(4)])
    assert len(set(bits[:, 0])) == 4 and all(np.isnan(row.view(dtype.numpy)[0]) for row in bits)
    np.testing.assert_array_equal(bits[:, 1:], np.broadcast_to(values.view(bits.dtype)[1:], (4, 2)))
