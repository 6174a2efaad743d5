"""host_ahead: what a device takes by its own clock, without what it waits for on the host.

Between two marks on a device that has nothing to do lies what the host needs to launch, which is more than a short kernel takes. So
the device is given something else first, as much as the host needs to get ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable

from tensor_graphs.devices.device import Device

FLUSHED = 256 << 20
"""bytes that are written before: more than the caches of a device hold; a GPU needs 0.1 ms for that"""

MOST_FLUSHES = 64
"""in a row. Work that waits for the device itself is never begun ahead of it, and is timed as it is"""


class HostAhead:
    """Times work on a device, with empty caches and the host ahead. flushes: in a row, as many as the host was found to need.

    Raises OutOfMemory where the device has no room for what is written.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.flushes = device, 1
        self._memory = device.allocate(FLUSHED)

    def flush(self, byte: int = 0) -> None:
        """Empty the caches."""
        self.device.fill(self._memory, byte)

    def seconds(self, work: Callable[[], None], byte: int = 0) -> float:
        """Of work by the device's clock. It is run again where the device had reached it before the host had begun all of it."""
        while True:
            for _ in range(self.flushes):
                self.flush(byte)
            start = self.device.mark()
            work()
            end = self.device.mark()
            late = self.device.passed(start)
            taken = self.device.between(start, end)
            if not late or self.flushes >= MOST_FLUSHES:
                return taken
            self.flushes *= 2
