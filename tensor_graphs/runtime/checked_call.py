"""checked_call: the checked arguments of a run, and the memory of its arrays (the caller's, or buffers of the frame)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Device, Memory, transfer_all
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.runtime.device_array import DeviceArray
from tensor_graphs.runtime.errors import RunError
from tensor_graphs.runtime.executor import Executor
from tensor_graphs.runtime.run_frame import Frame
from tensor_graphs.runtime.session import Session

Array = np.ndarray | DeviceArray


@dataclass(frozen=True, slots=True)
class Placed:
    """The checked arguments of a run. variant: number of its executor. sizes: of dims. arrays, results: by input or output name."""

    variant: int
    executor: Executor
    sizes: tuple[int, ...]
    arrays: dict[str, Array]
    results: dict[str, Array]

    def bases(self, frame: Frame) -> dict[int, Memory]:
        """Return base -> memory, of inputs and outputs. Host arrays that the run uses on another device get a frame buffer."""
        e = self.executor
        memories = {}
        for bases, arrays, devices in ((e.input_bases, self.arrays, e.input_devices),
                                       (e.output_bases, self.results, e.output_devices)):
            for name, base in bases.items():
                array = arrays[name]
                if isinstance(array, DeviceArray):
                    memories[base] = array.memory
                elif devices[name] is HOST:
                    memories[base] = memory_of(array)
                else:
                    memories[base] = frame.room(base, devices[name], array.nbytes)
        return memories

    def elsewhere(self) -> list[int]:
        """Return the bases of arrays on other devices. A frame lets go of them after a run, so that their memory can be freed."""
        e = self.executor
        return [base for bases, arrays in ((e.input_bases, self.arrays), (e.output_bases, self.results))
                for name, base in bases.items() if isinstance(arrays[name], DeviceArray)]

    def send(self, bases: Mapping[int, Memory]) -> None:
        """Copy inputs that are given on the host to the devices on which the run reads them."""
        transfer_all(_apart(self.executor.input_bases, self.arrays, bases), HOST)

    def fetch(self, bases: Mapping[int, Memory]) -> None:
        """Copy outputs for arrays on the host from the devices on which the run has written them."""
        transfer_all([(there, here) for here, there in _apart(self.executor.output_bases, self.results, bases)], HOST)

    def state_bases(self, session: Session) -> dict[int, Memory]:
        """Return base number -> memory of the session's states, moved to the devices on which this run uses them."""
        on = self.executor.state_devices
        return {base: session.on(name, on[name]) for name, base in self.executor.state_bases.items()}


def _apart(numbers: Mapping[str, int], arrays: Mapping[str, Array], bases: Mapping[int, Memory]) -> list[tuple[Memory, Memory]]:
    """Return pairs (host memory, device memory) of host arrays that the run uses on another device."""
    return [(memory_of(array), bases[base]) for name, base in numbers.items()
            if isinstance(array := arrays[name], np.ndarray) and bases[base].device is not HOST and array.nbytes]


def check_places(arrays: Mapping[str, Array], devices: Mapping[str, Device], what: str, where: str, fix: str) -> None:
    """Raise RunError for an array that is neither on the host nor on its device in `devices`. what, where, fix: for the message."""
    for name, array in arrays.items():
        if isinstance(array, DeviceArray) and array.device is not devices.get(name, array.device):
            raise RunError(f"{what.format(name)} lies on {array.device.name}, and {where} on {devices[name].name}\n"
                           f"  fix: an array on the host, or {fix.format(array.device.name)}")
