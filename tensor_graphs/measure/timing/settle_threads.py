"""settle_threads: separates the runs of different kernels in one process, so that one does not slow the next."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

QUIET_SECONDS = 0.04
"""seconds after which a library's threads have gone to sleep. OpenBLAS's threads spin for 2^26 clock ticks after a product, 27 ms
at 2.5 GHz, and take a core from whatever runs next: C kernels measured in between took twice their time"""


def settle() -> None:
    """Wait until threads that other kernels have left spinning are asleep."""
    time.sleep(QUIET_SECONDS)


AWAKE_SECONDS = 3e-4
"""seconds after which every woken thread of the pool runs (60 to 100 µs on virtual processors: kernels/c/pool.c)"""


def warm_up(run: Callable[[], Any]) -> None:
    """Run until the code is warm and its threads are awake: once, and again for up to AWAKE_SECONDS."""
    end = time.perf_counter() + AWAKE_SECONDS
    run()
    while time.perf_counter() < end:
        run()
