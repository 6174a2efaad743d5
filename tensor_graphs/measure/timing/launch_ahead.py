"""launch_ahead: times work by a device's own clock, without its waits for the host.

The time between two marks on an idle device includes the host's time to launch, which is longer than a short kernel. So the device
first gets other work, enough for the host to get ahead of it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

from tensor_graphs.devices.device import Device, Memory
from tensor_graphs.devices.free_memory import OutOfMemory

log = logging.getLogger(__name__)

EMPTIED, LEAST = 256 << 20, 1 << 20
"""bytes written before timed work, more than the caches of a device hold; least bytes, if the device has no room for all"""

MOST_FLUSHES, LONG = 32, 2e-3
"""most flushes in a row; seconds of work from which the host's launch time does not matter"""


class HostAhead:
    """Timer of work on a device, with empty caches and launches queued ahead. flushes: number of flushes in a row that the host
    last needed. Raises OutOfMemory where the device has no room for even the least flush."""

    def __init__(self, device: Device) -> None:
        self.device, self.flushes = device, 1
        self._memory = _room(device)

    def flush(self, byte: int = 0) -> None:
        """Empty the caches."""
        self.device.fill(self._memory, byte)

    def seconds(self, work: Callable[[], None], byte: int = 0) -> float:
        """Return the seconds of work by the device's clock. If the device reached the work before the host had launched all of it,
        it is run again: once unchanged, as a host may be held up for a moment, then after twice as many flushes. For work that
        waits for the device itself, or a host that is too slow, return the last time."""
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
