"""turns: what stands between the runs of different kernels in one process, so that one does not slow the next."""

from __future__ import annotations

import time

QUIET_SECONDS = 0.04
"""after so long threads of a library have gone to sleep. OpenBLAS's spin for 2^26 clock ticks behind a product, 27 ms at 2.5 GHz,
and take a core from whatever runs next: C kernels measured in between took twice their time"""


def settle() -> None:
    """Wait until threads that other kernels have left spinning are asleep."""
    time.sleep(QUIET_SECONDS)
