"""exchange.py: tensors and arrays share their memory, and overlaps are found."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from tensor_graphs.frontends.torch.exchange import from_numpy, overlapping, to_numpy, to_tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_a_contiguous_tensor_is_read_where_it_lies(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 4, dtype=dtype)
    array = to_numpy(tensor)
    assert array.ctypes.data == tensor.data_ptr() and array.shape == (3, 4) and array.dtype.name == str(dtype).partition(".")[2]
    back = from_numpy(array)
    assert back.dtype is dtype and back.data_ptr() == tensor.data_ptr()


def test_the_bits_of_bfloat16_are_kept() -> None:
    tensor = torch.tensor([1.5, -0.0, 3e38, float("inf")], dtype=torch.bfloat16)
    assert to_numpy(tensor).dtype == ml_dtypes.bfloat16 and np.array_equal(to_numpy(tensor).astype("f4"), tensor.float().numpy())


def test_a_transposed_tensor_becomes_a_contiguous_copy() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    array = to_numpy(tensor)
    assert array.flags.c_contiguous and np.array_equal(array, tensor.numpy())


def test_a_result_gets_the_axes_that_torch_has() -> None:
    stored = torch.arange(24.0).reshape(4, 2, 3)                       # axis order[i] of the result is its axis i
    result = to_tensor(stored.numpy(), (2, 0, 1))
    assert result.shape == (2, 3, 4) and torch.equal(result.permute(2, 0, 1), stored)


def test_tensors_that_overlap_are_found_and_neighbours_are_none() -> None:
    base = torch.zeros(10)
    assert overlapping([base[:4], base[4:], torch.zeros(3)]) == frozenset()
    assert overlapping([base[:5], torch.zeros(2), base[4:]]) == frozenset({(0, 2)})
    assert overlapping([base[::2], base[8:9], base[3:3]]) == frozenset({(0, 1)})
