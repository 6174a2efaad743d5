"""cpu: the device on which Python runs. Its memory is that of numpy arrays; a caller's array is used without a copy."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from tensor_graphs.devices.array_address import address
from tensor_graphs.devices.device import Device, DeviceError, Memory
from tensor_graphs.devices.environment import processor
from tensor_graphs.devices.features import features
from tensor_graphs.devices.free_memory import require_memory
from tensor_graphs.language.dtypes import DType

_EMPTY = np.empty(0, dtype=np.uint8)


class Cpu(Device):
    """The processor and its memory. alignment: of a cache line, which is also the widest vector."""

    name = kind = "cpu"
    is_host = True

    def capacity(self) -> int | None:
        return None

    def require(self, nbytes: int, what: str, fix: str) -> None:
        require_memory(nbytes, what, fix)

    def allocate(self, nbytes: int) -> Memory:
        raw = np.empty(nbytes + self.alignment, dtype=np.uint8)
        start = -address(raw) % self.alignment
        return Memory(self, address(raw) + start, nbytes, raw[start:start + nbytes])

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        return Memory(self, memory.address + offset, nbytes, memory.owner[offset:offset + nbytes])

    def upload(self, source: Memory, into: Memory) -> None:
        self.copy(source, into)

    def download(self, source: Memory, into: Memory) -> None:
        self.copy(source, into)

    def copy(self, source: Memory, into: Memory) -> None:
        into.owner[...] = source.owner

    def fill(self, memory: Memory, byte: int) -> None:
        memory.owner.fill(byte)

    def synchronise(self) -> None:
        """Do nothing, as all work is done when a call returns."""

    def clock(self) -> float:
        return time.perf_counter()

    def hardware(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        return processor()

    def features(self) -> frozenset[str]:
        return features()


CPU = Cpu()


def memory_of(array: np.ndarray) -> Memory:
    """Return the memory of a contiguous array, which keeps owning it (a read-only array stays read-only)."""
    flat = array.reshape(-1).view(np.uint8) if array.size else _EMPTY
    return Memory(CPU, address(flat) if flat.size else 0, flat.nbytes, flat)


def array_view(memory: Memory, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: DType) -> np.ndarray:
    """Return an array on memory of the cpu. offset: in bytes. strides: in elements. Raises DeviceError for other memory."""
    if memory.device is not CPU:
        raise DeviceError(f"memory of {memory.device.name} cannot be read on {CPU.name}\n  fix: a copy to {CPU.name} first")
    if 0 in shape:
        return np.empty(shape, dtype=dtype.numpy)
    itemsize = dtype.itemsize
    return np.ndarray(shape, dtype.numpy, memory.owner, offset, [s * itemsize for s in strides])
