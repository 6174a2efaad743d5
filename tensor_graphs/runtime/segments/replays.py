"""replays: launches that repeat with the same addresses and sizes, captured and run as one.

A key holds all that launches depend on. Work that runs again under one of the last few keys is captured (results in new arrays
alternate between two or three places). Timed work is captured with a mark before each step: the host's time between two launches
would count as the steps' (25 to 35 µs for a kernel of 3 on an H200)."""

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
"""keys of which replays are kept, and that are remembered"""

MISSES = 3
"""replays with marks that were made and never ran, after which no more are made"""

Work = Callable[[Any], None]
"""launches on the stream that it is given"""


@dataclass
class Replays:
    """capture: makes of what launches on a stream something that has `run`; None where that is not possible."""

    capture: Callable[[Work], Any | None]
    kept: dict[bytes, Any] = field(default_factory=dict)
    seen: list[bytes] = field(default_factory=list)
    marked: dict[bytes, tuple[Any, list[Any]] | None] = field(default_factory=dict)
    misses: int = 0

    def note(self, key: bytes, work: Work) -> None:
        """Note that this work has just run; capture it the second time. The arguments of kernels are copied into a replay."""
        if key in self.seen and key not in self.kept:
            if len(self.kept) >= MOST:
                self.kept.pop(next(iter(self.kept)))
            self.kept[key] = self.capture(work)
        self.seen = [*(k for k in self.seen if k != key), key][-MOST:]

    def run(self, key: bytes) -> bool:
        """Run what is kept under a key; False where that is nothing, or where the device has no memory to run it as one."""
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
        """Capture these steps, which have just run and were timed one by one, with a mark before each."""
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
        """Seconds of each step, run again; None where they are not kept with marks."""
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
    """Run a replay; return False where the device lacks the memory for it, and nothing was begun."""
    try:
        replay.run()
    except OutOfMemory as e:
        log.debug("a replay is given up: %s", e)
        return False
    return True
