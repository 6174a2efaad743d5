"""replays: captures work on a device that repeats with the same addresses and sizes, and runs it as one.

A key has the bytes of all addresses and numbers that the work depends on. Work that runs again under one of the last few keys is
captured (new output arrays alternate between two or three addresses). Timed work is captured with a mark before each step; without
a capture the host's time between launches would be counted too (25 to 35 µs for a kernel of 3 µs on an H200)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tensor_graphs.devices.device import Device
from tensor_graphs.devices.free_memory import OutOfMemory

log = logging.getLogger(__name__)

MOST = 4
"""most keys with kept replays, and most keys that are remembered as seen"""

MISSES = 3
"""number of unused captures with marks after which no more are captured"""

Work = Callable[[Any], None]
"""function that launches work on a given stream"""


@dataclass
class Replays:
    """The captured work of one frame, by key. capture(work): return an object whose `run()` replays the work, or None."""

    capture: Callable[[Work], Any | None]
    kept: dict[bytes, Any] = field(default_factory=dict)
    seen: list[bytes] = field(default_factory=list)
    marked: dict[bytes, tuple[Any, list[Any]] | None] = field(default_factory=dict)
    misses: int = 0

    def note(self, key: bytes, work: Work) -> None:
        """Record that this work has just run; capture it at the second time. A replay contains copies of kernel arguments."""
        if key in self.seen and key not in self.kept:
            if len(self.kept) >= MOST:
                self.kept.pop(next(iter(self.kept)))
            self.kept[key] = self.capture(work)
        self.seen = [*(k for k in self.seen if k != key), key][-MOST:]

    def run(self, key: bytes) -> bool:
        """Run the replay kept under a key and return True; False where there is none, or the device lacks memory for it."""
        replay = self.kept.get(key)
        if replay is not None and not _begun(replay):
            replay = self.kept[key] = None
        return replay is not None

    def clear(self) -> None:
        self.kept.clear()
        self.marked.clear()
        self.seen = []

    # ---- with a mark before each step ----

    def mark(self, key: bytes, device: Device, steps: Sequence[Work]) -> None:
        """Capture these steps with a mark before each, after they have run and were timed one by one."""
        if self.misses >= MISSES or key in self.marked:             # which could not be captured
            return
        marks: list[Any] = []

        def work(stream: Any) -> None:
            marks.clear()
            for step in steps:
                marks.append(device.mark(stream))
                step(stream)
            marks.append(device.mark(stream))

        self.misses += 1
        replay = self.capture(work)
        if len(self.marked) >= MOST:
            self.marked.pop(next(iter(self.marked)))
        self.marked[key] = None if replay is None else (replay, marks)

    def timed(self, key: bytes, device: Device) -> list[float] | None:
        """Replay the steps captured with marks under a key and return the seconds of each; None where there is no such capture."""
        marked = self.marked.get(key)
        if marked is None:
            return None
        self.misses = 0
        replay, marks = marked
        if not _begun(replay):
            self.marked[key] = None
            return None
        return [device.between(start, end) for start, end in pairwise(marks)]


def _begun(replay: Any) -> bool:
    """Run a replay and return True; False where the device lacks memory for it and nothing was started."""
    try:
        replay.run()
    except OutOfMemory as e:
        log.debug("a replay is given up: %s", e)
        return False
    return True
