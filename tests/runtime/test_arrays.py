"""runtime/arrays.py: what a caller may hand in, and what is said about the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tensor_graphs as tg
from tensor_graphs.language.dtypes import DTYPES
from tensor_graphs.language.node import TensorType
from tensor_graphs.runtime.arrays import as_array, solve_dims
from tensor_graphs.runtime.errors import RunError

TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f8e4m3": torch.float8_e4m3fn,
         "f8e5m2": torch.float8_e5m2, "f32": torch.float32, "f64": torch.float64, "i8": torch.int8,
         "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool}


def of(*shape: Any, dtype: str = "f32") -> TensorType:
    return TensorType(shape, DTYPES[dtype])


def said(act: Callable[[], object]) -> str:
    with pytest.raises(RunError) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize("name", TORCH)
def test_torch_tensors_of_every_dtype_are_read_without_a_copy(name: str) -> None:
    tensor = torch.tensor([[1, 0, 3], [0, 5, 1]]).to(TORCH[name])
    array = as_array("x", tensor, of(2, 3, dtype=name))
    assert array.dtype == DTYPES[name].numpy and array.ctypes.data == tensor.data_ptr()
    np.testing.assert_array_equal(array.astype(np.float64), tensor.to(torch.float64).numpy())
    turned = as_array("x", tensor.T, of(3, 2, dtype=name))
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(turned.astype(np.float64), tensor.T.to(torch.float64).numpy())


def test_a_contiguous_array_is_taken_as_it_is() -> None:
    x = np.ones((2, 3), np.float32)
    assert as_array("x", x, of(2, 3)) is x
    assert as_array("x", np.float32(3), of()).shape == ()


def test_lists_and_numbers_are_converted() -> None:
    assert as_array("x", [[1, 2], [3, 4]], of(2, 2)).dtype == np.float32
    assert as_array("x", 3, of()).shape == ()
    assert as_array("x", [True, False], of(2, dtype="bool")).dtype == np.bool_
    assert as_array("x", (1, 2), of(2, dtype="bf16")).dtype == ml_dtypes.bfloat16
    assert as_array("x", [], of(0, dtype="i32")).dtype == np.int32
    assert as_array("x", [255], of(1, dtype="u8")).tolist() == [255]
    assert as_array("x", [2**64 - 1], of(1, dtype="u64")).tolist() == [2**64 - 1]


def test_lists_that_would_lose_something_are_refused() -> None:
    def refused(value: object, dtype: str) -> list[str]:
        return said(lambda: as_array("x", value, of(1, dtype=dtype))).splitlines()

    for value, dtype, held in (([1.5], "i32", "float64"), ([1], "bool", "int64"), ([True], "f32", "bool"), (["a"], "f32", "str32"),
                               ([2**70], "i64", "object")):
        assert refused(value, dtype) == [f"input 'x' is {dtype}[1], the list holds {held}", f"  fix: a list of values of {dtype}"]
    for value, dtype, most in (([256], "u8", 255), ([-1], "u64", 2**64 - 1)):
        assert refused(value, dtype) == [f"input 'x' is {dtype}[1], the list holds numbers outside of 0..{most}",
                                         "  fix: numbers in that range, or an input of a wider dtype"]
    assert said(lambda: as_array("x", [[1], [1, 2]], of(2, 2))).startswith("input 'x' is f32[2, 2], the list is ragged: ")


def test_arrays_must_have_the_dtype_and_the_rank() -> None:
    assert said(lambda: as_array("x", np.zeros(3), of(3))) == (
        "input 'x' is f32[3], the array holds float64\n  fix: array.astype('float32')")
    assert said(lambda: as_array("w", np.zeros(3, ">f4"), of(3), "parameter")) == (
        "parameter 'w' is f32[3], the array holds big-endian float32\n  fix: array.astype('float32')")
    assert said(lambda: as_array("x", np.zeros((3, 1), np.float32), of(3))) == (
        "input 'x' is f32[3], the array has shape (3, 1): 2 axes instead of 1\n"
        "  fix: array.reshape(…) to those axes; array[None] puts one of size 1 in front")
    assert said(lambda: as_array("x", np.float64(1), of())) == (
        "input 'x' is f32[], the array holds float64\n  fix: array.astype('float32')")


def test_other_things_are_refused() -> None:
    for value, name in (("abc", "str"), (None, "NoneType")):
        assert said(lambda value=value: as_array("x", value, of(3))) == (
            f"input 'x' is a {name}; numpy arrays, DLPack tensors and lists are accepted\n"
            "  fix: np.asarray(…, 'float32')")
    for dtype in (torch.float32, torch.bfloat16):
        text = said(lambda dtype=dtype: as_array("x", torch.zeros(3, device="meta", dtype=dtype), of(3)))
        assert text.startswith("input 'x' cannot be read through DLPack: ")
    text = said(lambda: as_array("x", torch.zeros(3, requires_grad=True), of(3)))
    assert "cannot be read through DLPack" in text and text.endswith("\n  fix: .detach()")
    assert said(lambda: as_array("x", np.ma.masked_array(np.zeros(3, np.float32), [True, False, False]), of(3))) == (
        "input 'x' is a masked array, and masks are not read\n  fix: array.filled(…), or tg.where in the math")


N, M = tg.dim("n", 1, 8), tg.dim("m", 0, 4)
DIMS = {"n": N, "m": M}


def test_dims_follow_from_the_shapes() -> None:
    types = {"x": of(N, M), "y": of(2 * N, 3)}
    assert solve_dims(types, {"x": (3, 0), "y": (6, 3)}, DIMS, {}) == {"n": 3, "m": 0}
    assert solve_dims({"y": of(2 * N)}, {"y": (6,)}, {"n": N}, {"n": 3}) == {"n": 3}


def test_dims_that_do_not_fit_are_named() -> None:
    types = {"x": of(N, M), "y": of(2 * N, 3)}
    assert said(lambda: solve_dims(types, {"x": (3, 1), "y": (5, 3)}, DIMS, {})) == (
        "input 'y' is f32[2*n, 3]: axis 0 must be 6, the array has shape (5, 3)\n  fix: an array of shape (6, 3)")
    assert said(lambda: solve_dims(types, {"x": (3, 1), "y": (6, 4)}, DIMS, {})) == (
        "input 'y' is f32[2*n, 3]: axis 1 must be 3, the array has shape (6, 4)\n  fix: an array of shape (6, 3)")
    assert said(lambda: solve_dims(types, {"x": (3, 1), "y": (6, 3)}, DIMS, {"n": 4})) == (
        "input 'x' has size 3 at axis 0, dim n is 4 already\n  fix: one size of n in dims= and in all inputs")
    assert said(lambda: solve_dims({"a": of(N), "b": of(N)}, {"a": (3,), "b": (4,)}, {"n": N}, {})) == (
        "input 'b' has size 4 at axis 0, dim n is 3 already\n  fix: one size of n in dims= and in all inputs")
    assert said(lambda: solve_dims(types, {"x": (9, 1), "y": (18, 3)}, DIMS, {})) == (
        "dim n = 9 is outside of its range, 1 to 8\n  fix: a size in that range, or a wider range where the dim is made")
    assert said(lambda: solve_dims({"y": of(2 * N)}, {"y": (6,)}, {"n": N}, {})) == (
        "dim n follows from no input\n  fix: run(…, dims={'n': …})")
    assert said(lambda: solve_dims({}, {}, DIMS, {"n": 1, "m": 1, "k": 1})) == (
        "the graph has no dim named k; it has n, m\n  fix: sizes of those only")
    assert said(lambda: solve_dims({}, {}, {}, {"k": 1})) == "the graph has no dim named k; it has none\n  fix: sizes of those only"


def test_tensors_whose_memory_does_not_say_what_they_hold_are_refused() -> None:
    """Views that are negated or conjugated when they are read, tensors without values, leaves of a gradient."""
    made = tg.bind(tg.compile(tg.graph({"y": tg.input("x", (2,), tg.f32) * 1.0}), backends=("numpy",)))
    negated = torch.tensor([1 + 2j, 3 + 4j]).conj().imag
    bf16 = tg.bind(tg.compile(tg.graph({"y": tg.input("x", (2,), tg.bf16) * 1.0}), backends=("numpy",)))
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(2)
    leaf = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    for model, value, said in ((made, negated, r"negated when they are read\n  fix: \.resolve_neg\(\)"),
                               (made, fake, "holds no values"), (bf16, leaf, r"requires a gradient.*\n  fix: \.detach\(\)"),
                               (made, torch.ones(2, device="meta"), "cannot be read through DLPack"),
                               (made, torch.eye(2).to_sparse()[0], "cannot be read through DLPack")):
        with pytest.raises(RunError, match=said):
            model.run({"x": value})
        with pytest.raises(RunError, match=said):
            model.run({"x": [1.0, 1.0]} if model is made else {"x": np.ones(2, tg.bf16.numpy)}, out={"y": value})
    assert leaf.tolist() == [1.0, 1.0]


def test_whatever_a_library_raises_is_told_with_the_name() -> None:
    class Odd:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **options: object) -> None:
            raise self.error

    made = tg.bind(tg.compile(tg.graph({"y": tg.input("x", (2,), tg.f32) * 1.0}), backends=("numpy",)))
    for error in (KeyError("x"), ValueError("no"), AttributeError("gone")):
        with pytest.raises(RunError, match="input 'x' cannot be read through DLPack"):
            made.run({"x": Odd(error)})
    with pytest.raises(RunError, match=r"out\['y'\] is a masked array"):
        made.run({"x": [1.0, 2.0]}, out={"y": np.ma.zeros(2, np.float32)})
    with pytest.raises(RunError, match=r"and is big-endian float32\[2\]"):
        made.run({"x": [1.0, 2.0]}, out={"y": np.zeros(2, ">f4")})
