"""device_constants: copies of constants and dim values to a device, and of operands from a device to an array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensor_graphs.devices.cpu import array_view, memory_of
from tensor_graphs.devices.device import Device, Memory, transfer
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import ArrayValue
from tensor_graphs.runtime.device_array import DeviceArray
from tensor_graphs.runtime.dim_tables import Window
from tensor_graphs.runtime.run_frame import Frame


def constant(value: Any, dtype: DType, device: Device) -> Memory:
    """Return a constant of a graph in new memory of the device."""
    array = value.array() if isinstance(value, ArrayValue) else np.asarray(value).astype(dtype.numpy)
    return _copied(memory_of(np.ascontiguousarray(array)), device)


def number(value: int, dtype: DType, device: Device) -> Memory:
    """Return the value of a dim as memory of one element on the device."""
    source = memory_of(np.full(1, value).astype(dtype.numpy))
    return source if device is HOST else _copied(source, device)


def _copied(source: Memory, device: Device) -> Memory:
    memory = device.allocate(source.nbytes)
    transfer(source, memory, HOST)
    return memory


def array_of(frame: Frame, w: Window) -> np.ndarray:
    """Return an operand's value as an array: a view if it is on the host, else a copy (operands on devices are contiguous)."""
    memory, (offset, shape, strides) = frame.memory[w.base], frame.shape_of(w)
    assert memory is not None
    if memory.device is HOST or 0 in shape:
        return array_view(memory if memory.device is HOST else HOST.allocate(0), offset, shape, strides, w.dtype)
    return DeviceArray(memory.device.part(memory, offset, math.prod(shape) * w.dtype.itemsize), shape, w.dtype).numpy()
