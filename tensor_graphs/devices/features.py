"""features: the names by which a kernel may ask for a device: its architecture and its instruction sets."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """Return the CPU's architecture as Python names it (x86_64, aarch64), and the flags that Linux lists (avx2, avx512f, asimd);
    without /proc/cpuinfo the architecture alone."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    return frozenset({platform.machine(), *flags_of(text)})


def flags_of(text: str) -> frozenset[str]:
    """The instruction sets in the text of /proc/cpuinfo: of its first core, of x86-64 (`flags`) or aarch64 (`Features`)."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
