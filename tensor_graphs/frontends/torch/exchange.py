"""exchange: tensors of torch and arrays of numpy on the same memory, and which tensors overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.device_registry import device_named
from tensor_graphs.language.dtypes import parse_dtype
from tensor_graphs.runtime.device_array import DeviceArray

STORED = {torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
          torch.float8_e4m3fn: (torch.int8, np.dtype(ml_dtypes.float8_e4m3fn)),
          torch.float8_e5m2: (torch.int8, np.dtype(ml_dtypes.float8_e5m2))}
"""dtypes that torch's bridge to numpy lacks: read as integers of the same width, which numpy reads as the dtype of ml_dtypes"""

_TORCH = {dtype: name for name, (_, dtype) in STORED.items()}


def to_numpy(tensor: Any, order: Sequence[int] | None = None) -> np.ndarray:
    """Return a tensor, with its axes in an order, as an array of the host, on the same memory; a copy only of one on a GPU, and
    where it is not contiguous in this order or is lazily conjugated."""
    tensor = tensor.detach().cpu()
    tensor = tensor if order is None else tensor.permute(order)
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_neg().resolve_conj().contiguous()
    if tensor.dtype in STORED:
        integer, dtype = STORED[tensor.dtype]
        return np.asarray(tensor.view(integer).numpy().view(dtype))
    return np.asarray(tensor.numpy())


def to_array(tensor: Any, order: Sequence[int] | None = None) -> np.ndarray | DeviceArray:
    """Return a tensor for a run: on the CPU `to_numpy` of it, on a GPU an array on the same memory, or on a contiguous copy's."""
    if tensor.device.type == "cpu":
        return to_numpy(tensor, order)
    tensor = tensor if order is None else tensor.permute(order)
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_neg().resolve_conj().contiguous()
    memory = Memory(device_named(gpu_name(tensor)), tensor.data_ptr(), tensor.nbytes, tensor)      # DLPack takes 40 µs for this
    return DeviceArray(memory, tuple(tensor.shape), parse_dtype(tensor.dtype))


def gpu_name(tensor: Any) -> str:
    """Return the name that a tensor's GPU has here."""
    return f"cuda:{tensor.device.index or 0}"


def before_a_run(tensors: Sequence[Any]) -> None:
    """Make runs, which begin on a GPU's default stream, wait for what torch's current stream computes of these tensors."""
    for device in {t.device for t in tensors if t.device.type == "cuda"}:
        current, default = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
        if current != default:
            default.wait_stream(current)
            for tensor in tensors:
                if tensor.device == device:
                    tensor.record_stream(default)


def to_tensor(array: Any, order: Sequence[int] | None = None) -> Any:
    """Return an array of a run as a tensor on the same memory; its axis i is axis order[i] of the tensor, whose shape and strides
    are those that torch recorded."""
    tensor = from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)
    tensor = tensor if array.size else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)      # torch's strides
    return tensor if order is None else tensor.permute(inverse(order))


def from_numpy(array: np.ndarray) -> Any:
    """Return an array as a tensor on the same memory; a copy of one that is read-only."""
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype in _TORCH:
        stored = torch.from_numpy(array.view(f"i{array.dtype.itemsize}"))
        return stored.view(_TORCH[array.dtype])
    return torch.from_numpy(array)


def inverse(order: Sequence[int]) -> list[int]:
    """Return the place of each axis in an order of axes."""
    return sorted(range(len(order)), key=order.__getitem__)


def overlapping(tensors: Sequence[Any]) -> frozenset[tuple[int, int]]:
    """Return pairs of numbers of tensors whose bytes overlap."""
    spans = sorted((t.data_ptr(), t.data_ptr() + _extent(t), i) for i, t in enumerate(tensors)
                   if isinstance(t, torch.Tensor) and t.numel())
    pairs = set()
    for at, (_, end, i) in enumerate(spans):
        for low, _, j in spans[at + 1:]:
            if low >= end:
                break
            pairs.add((min(i, j), max(i, j)))
    return frozenset(pairs)


def _extent(tensor: Any) -> int:
    """Return the number of bytes from a tensor's first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())
