"""What is read as a dtype, what is refused, and what a dtype knows about itself."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from tensor_graphs.language import dtypes
from tensor_graphs.language.dtypes import DTYPES, bf16, bool_, dtype_of, f16, f32, f64, i8, i32, parse_dtype, u64
from tensor_graphs.language.errors import DTypeError


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_is_read_back_from_each_of_its_names(dtype):
    long_name = dtype.numpy.name
    for given in (dtype, dtype.name, dtype.name.upper(), long_name, f" torch.{long_name} ", f"numpy.{long_name}",
                  dtype.numpy, dtype.numpy.type):
        assert parse_dtype(given) is dtype
    assert dtype.itemsize == dtype.numpy.itemsize and dtype.bits == 8 * dtype.itemsize
    assert getattr(dtypes, repr(dtype).removeprefix("tg.")) is dtype


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64",
                                  "uint8", "uint16", "uint32", "uint64", "bool"])
def test_a_torch_dtype_names_the_same_elements(name):
    assert parse_dtype(getattr(torch, name)).numpy.name == name
    assert dtype_of(torch.zeros(2, dtype=getattr(torch, name))).numpy.name == name


def test_the_long_aliases_are_the_same_objects():
    assert dtypes.float32 is f32 and dtypes.bfloat16 is bf16 and dtypes.uint64 is u64 and parse_dtype(bool) is bool_


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
    assert [t.name for t in DTYPES.values() if t.is_float] == ["f16", "bf16", "f32", "f64"]
    assert [t.name for t in DTYPES.values() if t.is_integer] == ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
    assert bool_.kind == "bool" and not bool_.is_signed and i8.is_signed and f16.is_signed and not u64.is_signed
