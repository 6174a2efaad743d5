"""device: memory whose addresses mean nothing to the processor, and copies that cost what they are said to cost.

An address of it has a high bit set: a native kernel that reads it ends its process at once. Its owner is no buffer: numpy cannot
make an array of it. New memory holds NaN in every float format. It counts what is allocated, and every copy.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

import numpy as np

from tensor_graphs.devices.cpu import CPU
from tensor_graphs.devices.device import Device, DeviceError, Memory

ELSEWHERE = 1 << 62
"""added to where the bytes really are: no address that a processor accepts"""

POISON = 0xFF


class Bytes:
    """The bytes of an allocation, which only this device opens."""

    def __init__(self, nbytes: int, alignment: int) -> None:
        raw = np.full(nbytes + alignment, POISON, np.uint8)
        start = -raw.ctypes.data % alignment
        self._bytes = raw[start:start + nbytes]
        self.start = ELSEWHERE + self._bytes.ctypes.data if nbytes else ELSEWHERE


class Fake(Device):
    """kind "fake". bandwidth in byte/s and latency in seconds of each copy from or to it; size in bytes."""

    kind = "fake"
    alignment = 256
    dlpack = (12, 0)

    def __init__(self, name: str = "fake", size: int = 1 << 30, bandwidth: float = 0.0, latency: float = 0.0) -> None:
        self.name, self.size, self.bandwidth, self.latency = name, size, bandwidth, latency
        self.allocated = self.peak = 0
        self.copies: list[tuple[str, int]] = []

    def capacity(self) -> int | None:
        return self.size

    def allocate(self, nbytes: int) -> Memory:
        self.require(nbytes + self.allocated, "what is allocated", "less of it")
        owner = Bytes(nbytes, self.alignment)
        taken = -(-nbytes // self.alignment) * self.alignment
        self.allocated += taken
        self.peak = max(self.peak, self.allocated)
        weakref.finalize(owner, self._freed, taken)
        return Memory(self, owner.start, nbytes, owner)

    def _freed(self, nbytes: int) -> None:
        self.allocated -= nbytes

    def bytes_at(self, memory: Memory, offset: int = 0) -> np.ndarray:
        """The bytes of memory of this device from an offset on, for the device itself and the kernels on it."""
        if memory.device is not self or not isinstance(memory.owner, Bytes):
            raise DeviceError(f"memory of {memory.device.name} cannot be read on {self.name}")
        start = memory.address + offset - memory.owner.start
        return memory.owner._bytes[start:start + memory.nbytes - offset]

    def upload(self, source: Memory, into: Memory) -> None:
        assert source.device is CPU
        self._takes("up", into.nbytes)
        self.bytes_at(into)[...] = source.owner

    def download(self, source: Memory, into: Memory) -> None:
        assert into.device is CPU
        self._takes("down", into.nbytes)
        into.owner[...] = self.bytes_at(source)

    def copy(self, source: Memory, into: Memory) -> None:
        self.bytes_at(into)[...] = self.bytes_at(source)

    def fill(self, memory: Memory, byte: int) -> None:
        self.bytes_at(memory).fill(byte)

    def synchronise(self) -> None:
        pass

    def clock(self) -> float:
        return time.perf_counter()

    def hardware(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        return "a fake device", self.size, ()

    def _takes(self, way: str, nbytes: int) -> None:
        self.copies.append((way, nbytes))
        until = time.perf_counter() + self.latency + (nbytes / self.bandwidth if self.bandwidth else 0.0)
        while time.perf_counter() < until:
            pass


def view(memory: Memory, offset: int, shape: Any, strides: Any, dtype: Any) -> np.ndarray:
    """An array on memory of a fake device, for its kernels."""
    device = memory.device
    if not isinstance(device, Fake):
        raise DeviceError(f"memory of {device.name} cannot be read on a fake device")
    if 0 in shape:
        return np.empty(shape, dtype.numpy)
    whole = device.bytes_at(Memory(device, memory.owner.start, len(memory.owner._bytes), memory.owner))
    at = memory.address - memory.owner.start + offset
    return np.ndarray(shape, dtype.numpy, buffer=whole, offset=at, strides=[s * dtype.itemsize for s in strides])
