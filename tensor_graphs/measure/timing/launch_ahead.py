"""launch_ahead: what a device takes by its own clock, without what it waits for on the host.

Between two marks on a device that has nothing to do lies what the host needs to launch, which is more than a short kernel takes. So
the device is given something else first, as much as the host needs to get ahead of it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.devices.free_memory import OutOfMemory

log = logging.getLogger(__name__)

EMPTIED = 256 << 20
"""bytes that are written before: more than the caches of a device hold"""

LEAST = 1 << 20
"""bytes of them at least, where there is no room for all"""

MOST_FLUSHES = 32
"""in a row"""

LONG = 2e-3
"""seconds that work takes, from which on it does not matter what the host needs to begin it"""


class HostAhead:
    """Times work on a device, with empty caches and the host ahead. flushes: in a row, as many as the host was last found to need.

    Raises OutOfMemory where the device has no room at all for what is written.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.flushes = device, 1
        self._memory = _room(device)

    def flush(self, byte: int = 0) -> None:
        """Empty the caches."""
        self.device.fill(self._memory, byte)

    def seconds(self, work: Callable[[], None], byte: int = 0) -> float:
        """Of work by the device's clock. Where the device had come to it before the host had begun all of it, it is run again: once
        as it was, as a host may be held up for a moment, then behind twice as much. Of work that waits for the device itself, and
        of a host that is too slow, the last time is told as it is."""
        for tries in itertools.count():
            flushes = self.flushes << tries // 2
            for _ in range(flushes):
                self.flush(byte)
            start = self.device.mark()
            work()
            end = self.device.mark()
            late = self.device.passed(start)
            taken = self.device.between(start, end)
            if not late:
                self.flushes = flushes
            if not late or taken >= LONG:
                break
            if tries % 2 and flushes >= MOST_FLUSHES:
                log.debug("%s waited for the host in what took %.1f µs", self.device.name, taken * 1e6)
                break
        return taken


def _room(device: Device) -> Memory:
    nbytes = EMPTIED
    while True:
        try:
            return device.allocate(nbytes)
        except OutOfMemory:
            if nbytes <= LEAST:
                raise
            nbytes //= 4
