"""device: the interface of devices. A device allocates memory, fills it, copies it within, in, out and to others, and keeps time.

In: numbers of bytes, and memory of the host.  Out: `Memory`: an address that is valid on its device only. A device does not know
the meaning of the bytes; `device_registry.py` lists the devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.errors import TensorGraphsError


class DeviceError(TensorGraphsError):
    """Memory is used on another device than its own, or a device cannot do what is requested."""


class DeviceLost(DeviceError):
    """The device can compute nothing any more in this process, as a kernel failed on it."""


class UnknownDevice(TensorGraphsError):
    """No device of this name is registered or present in the system."""


@dataclass(slots=True, eq=False)
class Memory:
    """A range of `nbytes` bytes from `address` on, in the address space of `device`. owner: an object that keeps the memory
    allocated; its type depends on the device."""

    device: Device
    address: int
    nbytes: int
    owner: Any


class Device(ABC):
    """One address space. name: as in `copy_to` and plans ("cpu", "cuda:0"). kind: equals DEVICE of the backends that compute on it.
    alignment: of each buffer in an arena, in bytes. is_host: it holds the caller's arrays. shared_byte: value of every byte of a
    block's shared memory when a launch begins (None: undefined). dlpack: (device type, number) in DLPack (None: memory is shared
    with no library)."""

    name: str
    kind: str
    alignment: int = 64
    is_host: bool = False
    shared_byte: int | None = None
    dlpack: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<device {self.name}>"

    @abstractmethod
    def capacity(self) -> int | None:
        """Return the total bytes of its memory; None where a plan need not respect a limit."""

    def require(self, nbytes: int, what: str, fix: str) -> None:
        """Raise OutOfMemory where `nbytes` more are not free. what: the thing that needs them, fix: advice; both as texts."""
        limit = self.capacity()
        if limit is not None and nbytes > limit:
            raise OutOfMemory(f"{what} takes {nbytes / 1e9:.3g} GB of {self.name}, which has {limit / 1e9:.3g} GB\n  fix: {fix}")

    def tensor_map(self, kind: str, at: int, sizes: Sequence[int], steps: Sequence[int], box: Sequence[int],
                   every: Sequence[int]) -> bytes:
        """Return an encoded map for copies of boxes of the array at an address. Raises DeviceError where there are none."""
        raise DeviceError(f"{self.name} copies no boxes")

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Return new memory with undefined content. Raises DeviceError, or OutOfMemory."""

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """Return a window of memory of this device."""
        return Memory(self, memory.address + offset, nbytes, memory.owner)

    @abstractmethod
    def upload(self, source: Memory, into: Memory) -> None:
        """Copy memory of the host into memory of this device; both have the same size."""

    @abstractmethod
    def download(self, source: Memory, into: Memory) -> None:
        """Copy memory of this device into memory of the host; both have the same size."""

    def download_all(self, pairs: Sequence[tuple[Memory, Memory]]) -> None:
        """Call `download` for each pair (source, into), where possible together."""
        for source, into in pairs:
            self.download(source, into)

    @abstractmethod
    def copy(self, source: Memory, into: Memory) -> None:
        """Copy memory within this device; both have the same size."""

    def copy_to_peer(self, source: Memory, into: Memory) -> bool:
        """Copy to another device without using the host; return False where that is impossible."""
        return False

    @abstractmethod
    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte of the memory to `byte`."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until all work begun on this device is done."""

    @abstractmethod
    def clock(self) -> float:
        """Return seconds since a fixed moment, after waiting for all work begun before."""

    def lost(self) -> bool:
        """Return whether the device can compute nothing any more in this process, after waiting for all work begun."""
        return False

    def come_before(self, stream: int) -> None:  # noqa: B027 - most devices have one order of things
        """Make work that a library begins later on a stream of its own (a handle) wait for all work begun on this device so far."""

    def use(self) -> None:  # noqa: B027 - most devices have nothing to do here
        """Prepare the calling thread for launches on this device."""

    def mark(self, stream: Any = 0) -> Any:
        """Return a mark between the work begun before and the work begun after it, without waiting where the device can do that.
        stream: of a capture, whose runs then pass the mark."""
        return self.clock()

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds from one mark to a later one, after waiting for the later one."""
        return float(last - first)

    def passed(self, mark: Any) -> bool:
        """Return whether an asynchronous device has reached a mark; False on one whose calls return when their work is done."""
        return False

    @abstractmethod
    def hardware(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        """Return (name, bytes of memory, properties), on which times measured on the device depend."""

    def peaks(self) -> Mapping[str, float]:
        """Return its peak rates, by the names of constants (docs/database.md), as far as they are known without measuring."""
        return {}

    def features(self) -> frozenset[str]:
        """Return the names of architecture and instruction sets that a kernel may require (device_requirements.py)."""
        return frozenset()

    # ---- images: of devices that are given text and launch its kernels ----

    def entry(self, text: str, name: str, shared: int) -> Any:
        """Return the kernel `name` of a source text, compiled for this device. shared: most bytes of shared memory of a block."""
        raise DeviceError(f"{self.name} launches no kernels")

    def launch(self, entry: Any, grid: int, block: int, shared: int, parameters: int, stream: Any = 0,
               waits: bool = False) -> None:
        """Begin a kernel after all work begun before. parameters: address of an array of the addresses of the arguments. waits: the
        kernel itself waits for those before it, so it may be placed on the device while they end (kernel.Launch)."""
        raise DeviceError(f"{self.name} launches no kernels")

    def captured(self, work: Callable[[Any], None]) -> Any | None:
        """Capture the launches of `work` on the stream that it gets; return an object to `run`, None where impossible."""
        return None


def transfer_all(pairs: Sequence[tuple[Memory, Memory]], host: Device) -> None:
    """Copy each memory to its destination (source, into); several from one device to the host are copied together."""
    devices = {source.device for source, _ in pairs}
    if len(devices) == 1 and host not in devices and all(into.device is host for _, into in pairs):
        devices.pop().download_all(pairs)
        return
    for source, into in pairs:
        transfer(source, into, host)


def transfer(source: Memory, into: Memory, host: Device) -> None:
    """Copy memory to its destination, by a method of whichever device can: within one device, from or to the host, to a peer, or
    through memory of the host."""
    ours, theirs = source.device, into.device
    if ours is theirs:
        ours.copy(source, into)
    elif ours is host:
        theirs.upload(source, into)
    elif theirs is host:
        ours.download(source, into)
    elif not ours.copy_to_peer(source, into):
        between = host.allocate(source.nbytes)
        ours.download(source, between)
        theirs.upload(between, into)
