"""device: where memory lives. A device allocates it, fills it, copies into it, out of it and to others, and keeps time.

In: numbers of bytes, and memory of the host.  Out: `Memory`: an address that means something on its device only. Nothing here knows
what the bytes are; `known.py` says which devices there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensor_graphs.devices.free_memory import OutOfMemory
from tensor_graphs.errors import TensorGraphsError


class DeviceError(TensorGraphsError):
    """Memory that is used on another device than its own, or a device that cannot do what it is asked for."""


class DeviceLost(DeviceError):
    """A device that computes nothing any more in this process: a kernel went wrong there."""


class UnknownDevice(TensorGraphsError):
    """A device that is not known here, or that the system does not have."""


@dataclass(slots=True, eq=False)
class Memory:
    """`nbytes` bytes from `address` on, in the address space of `device`. owner: what keeps them from being given back; of what
    kind it is only the device knows."""

    device: Device
    address: int
    nbytes: int
    owner: Any


class Device(ABC):
    """One address space. name: as `copy_to` and plans call it ("cpu", "cuda:0"). kind: which backends compute on it (their DEVICE).
    alignment: bytes, of each buffer in an arena. is_host: whether the caller's arrays lie in it. shared_byte: what every byte of
    the memory that the threads of a block share holds when a launch begins (None: anything). dlpack: its kind and number in DLPack
    (None: memory is shared with no library)."""

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
        """Bytes that it has in all; None where that is no limit of a plan's."""

    def require(self, nbytes: int, what: str, fix: str) -> None:
        """Raise OutOfMemory where `nbytes` more are not free. what: needs them; fix: what to do; both for people."""
        limit = self.capacity()
        if limit is not None and nbytes > limit:
            raise OutOfMemory(f"{what} takes {nbytes / 1e9:.3g} GB of {self.name}, which has {limit / 1e9:.3g} GB\n  fix: {fix}")

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """New memory; what it holds is anything. Raises DeviceError, or OutOfMemory."""

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """A window of memory of this device."""
        return Memory(self, memory.address + offset, nbytes, memory.owner)

    @abstractmethod
    def upload(self, source: Memory, into: Memory) -> None:
        """Copy memory of the host into memory of this device, all of it; they have the same size."""

    @abstractmethod
    def download(self, source: Memory, into: Memory) -> None:
        """Copy memory of this device into memory of the host."""

    def download_all(self, pairs: Sequence[tuple[Memory, Memory]]) -> None:
        """`download` of each (source, into)."""
        for source, into in pairs:
            self.download(source, into)

    @abstractmethod
    def copy(self, source: Memory, into: Memory) -> None:
        """Copy within this device."""

    def copy_to_peer(self, source: Memory, into: Memory) -> bool:
        """Copy to another device without the host; False where there is no such way."""
        return False

    @abstractmethod
    def fill(self, memory: Memory, byte: int) -> None:
        """Set every byte."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until all that was begun on this device is done."""

    @abstractmethod
    def clock(self) -> float:
        """Seconds since some moment, once all that was begun before is done."""

    def lost(self) -> bool:
        """Return whether the device can compute nothing any more in this process, after all that was begun."""
        return False

    def come_before(self, stream: int) -> None:  # noqa: B027 - most devices have one order of things
        """Have what a library begins on a stream of its own (a handle) wait for what was begun here so far."""

    def use(self) -> None:  # noqa: B027 - most devices have nothing to do here
        """Before the calling thread launches."""

    def mark(self, stream: Any = 0) -> Any:
        """A moment between what was begun before and what is begun after; nothing is waited for, where the device can do that.
        stream: of what is captured, whose runs then pass the mark."""
        return self.clock()

    def between(self, first: Any, last: Any) -> float:
        """Seconds from one mark to a later one, once that has passed."""
        return float(last - first)

    def passed(self, mark: Any) -> bool:
        """Return whether a device that works asynchronously has reached a mark; False where calls return when their work is
        done."""
        return False

    @abstractmethod
    def hardware(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
        """(name, bytes of memory, properties): what times measured on it depend on."""

    def peaks(self) -> Mapping[str, float]:
        """Return its highest rates, by the names of constants (docs/database.md), as far as they are known without measuring."""
        return {}

    def features(self) -> frozenset[str]:
        """The names by which a kernel may ask for it: architecture, instruction sets (device_requirements.py)."""
        return frozenset()

    # ---- images: of devices that are given text and launch its kernels ----

    def entry(self, text: str, name: str, shared: int) -> Any:
        """A kernel of a text that this device compiles; shared: bytes of memory that a block of it is given at most."""
        raise DeviceError(f"{self.name} launches no kernels")

    def launch(self, entry: Any, grid: int, block: int, shared: int, parameters: int, stream: Any = 0,
               waits: bool = False) -> None:
        """Begin a kernel after all that was begun before. parameters: the address of the addresses of what it is given. waits: it
        waits itself for those before it, and may be placed on the device while they end (kernel.Launch)."""
        raise DeviceError(f"{self.name} launches no kernels")

    def captured(self, work: Callable[[Any], None]) -> Any | None:
        """Return the launches of `work` on the stream that it gets, as one thing to `run`; None where that is impossible."""
        return None


def transfer_all(pairs: Sequence[tuple[Memory, Memory]], host: Device) -> None:
    """Copy memories (source, into) to where they are needed; those from one device to the host at once."""
    devices = {source.device for source, _ in pairs}
    if len(devices) == 1 and host not in devices and all(into.device is host for _, into in pairs):
        devices.pop().download_all(pairs)
        return
    for source, into in pairs:
        transfer(source, into, host)


def transfer(source: Memory, into: Memory, host: Device) -> None:
    """Copy memory to where it is needed, through the door of whichever device can: within one, from or to the host, to a peer, or
    by way of the host."""
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
