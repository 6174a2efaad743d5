"""What is read as a dtype, what is refused, and what a dtype knows about itself."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language import dtypes
from tensor_graphs.language.dtypes import DTYPES, bf16, bool_, dtype_of, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, parse_dtype, u64
from tensor_graphs.language.errors import DTypeError


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_is_read_back_from_each_of_its_names(dtype):
    long_name = dtype.numpy.name
    for given in (dtype, dtype.name, dtype.name.upper(), long_name, f" torch.{long_name} ", f"numpy.{long_name}",
                  dtype.numpy, dtype.numpy.type):
        assert parse_dtype(given) is dtype
    assert dtype.itemsize == dtype.numpy.itemsize and dtype.bits == 8 * dtype.itemsize
    assert getattr(dtypes, repr(dtype).removeprefix("tg.")) is dtype


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "int16",
                                  "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"])
def test_a_torch_dtype_names_the_same_elements(name):
    assert parse_dtype(getattr(torch, name)).numpy.name == name
    assert dtype_of(torch.zeros(2, dtype=getattr(torch, name))).numpy.name == name


def test_the_long_aliases_are_the_same_objects():
    assert dtypes.float32 is f32 and dtypes.bfloat16 is bf16 and dtypes.uint64 is u64 and parse_dtype(bool) is bool_
    assert dtypes.float8_e4m3fn is f8e4m3 and dtypes.float8_e5m2 is f8e5m2


@pytest.mark.parametrize("wrong", ["float31", "", "complex64", np.dtype("complex64"), np.dtype("S3"), None, 7,
                                   torch.complex64, object])
def test_what_is_no_dtype_is_refused_with_the_list_of_those_there_are(wrong):
    with pytest.raises(DTypeError) as caught:
        parse_dtype(wrong)
    assert all(name in str(caught.value) for name in DTYPES) and "bfloat16" in str(caught.value)


def test_pythons_own_number_types_are_refused_because_their_width_is_unclear():
    with pytest.raises(DTypeError, match=r"say the width, like tg.f32"):
        parse_dtype(float)
    with pytest.raises(DTypeError, match=r"say the width, like tg.i32"):
        parse_dtype(int)


def test_big_endian_arrays_are_refused_with_the_way_to_turn_them():
    with pytest.raises(DTypeError, match=r"little-endian.*astype\(numpy.float32\)"):
        dtype_of(np.zeros(2, dtype=">f4"))


def test_what_has_no_dtype_is_refused():
    with pytest.raises(DTypeError, match="list has no dtype"):
        dtype_of([1.0])


def test_limits_are_those_of_the_format():
    assert f32.max == 3.4028234663852886e38 and f32.min == -f32.max and f16.max == 65504.0
    assert bf16.max == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) and bf16.epsilon == 2.0**-7
    assert f32.smallest_normal == 2.0**-126 and f64.smallest_normal == 2.0**-1022 and f16.smallest_normal == 2.0**-14
    assert (i8.min, i8.max, u64.min, u64.max, bool_.min, bool_.max) == (-128, 127, 0, 2**64 - 1, 0, 1)
    assert isinstance(i8.max, int) and isinstance(bf16.max, float)


def test_an_integer_has_no_epsilon():
    for dtype in (i32, bool_):
        with pytest.raises(DTypeError, match=f"{dtype.name} has no epsilon"):
            _ = dtype.epsilon


def test_kinds_part_the_dtypes():
    assert [t.name for t in DTYPES.values() if t.is_float] == ["f16", "bf16", "f32", "f64", "f8e4m3", "f8e5m2"]
    assert [t.name for t in DTYPES.values() if t.is_integer] == ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
    assert bool_.kind == "bool" and not bool_.is_signed and i8.is_signed and f16.is_signed and not u64.is_signed


def by_the_specification(bits: int, exponent: int, mantissa: int, infinities: bool) -> float:
    """OFP8 1.0, section 4: sign, exponent, mantissa. Of the largest exponent all patterns are special in E5M2, one in E4M3."""
    sign, e, m = -1.0 if bits >> 7 else 1.0, bits >> mantissa & (1 << exponent) - 1, bits & (1 << mantissa) - 1
    top, bias = (1 << exponent) - 1, (1 << exponent - 1) - 1
    if e == top and (infinities or m == (1 << mantissa) - 1):
        return sign * math.inf if infinities and m == 0 else math.nan
    return sign * (math.ldexp(m, 1 - bias - mantissa) if e == 0 else math.ldexp((1 << mantissa) + m, e - bias - mantissa))


@pytest.mark.parametrize("dtype, layout", [(f8e4m3, (4, 3, False)), (f8e5m2, (5, 2, True))], ids=str)
def test_floats_of_eight_bits_are_those_of_the_specification(dtype, layout):
    patterns = np.arange(256, dtype=np.uint8)
    wanted = [by_the_specification(bits, *layout) for bits in range(256)]
    np.testing.assert_array_equal(patterns.view(dtype.numpy).astype(np.float64), wanted)
    finite = [x for x in wanted if math.isfinite(x)]
    assert (dtype.min, dtype.max) == (min(finite), max(finite)) and dtype.has_infinity is (math.inf in wanted)
    assert dtype.epsilon == 2.0 ** -layout[1]
    assert dtype.smallest_normal == 2.0 ** (2 - 2 ** (layout[0] - 1))


def test_a_number_out_of_range_is_nan_without_infinities_and_infinite_with_them():
    assert f8e4m3.max == 448 and np.float32(464).astype(f8e4m3.numpy) == 448        # a tie, and the largest is the even one
    assert np.isnan(np.array([464.1, math.inf, -math.inf], np.float32).astype(f8e4m3.numpy)).all()
    assert f8e5m2.max == 57344 and np.float32(61439).astype(f8e5m2.numpy) == 57344
    assert np.float32(61440).astype(f8e5m2.numpy) == math.inf


def test_what_a_float_without_infinities_cannot_hold_is_refused_beside_a_tensor():
    x = tg.input("x", (2,), f8e4m3)
    for number in (465, 1e3, -math.inf, math.inf):
        with pytest.raises(DTypeError, match=r"beside a tensor of f8e4m3 would be NaN: the largest number is 448\n(.|\n)*"
                                             r"fix: a smaller number, or the tensor cast to a wider dtype$"):
            _ = x * number
    assert (x * 464).type == x.type and (tg.input("y", (2,), f8e5m2) * math.inf).dtype is f8e5m2
