"""features: the names by which a kernel may ask for a device: its architecture and its instruction sets."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """Return the CPU's architecture as Python names it (x86_64, aarch64), and the flags that Linux lists (avx2, avx512f, asimd);
    without /proc/cpuinfo the architecture alone."""
    return frozenset({platform.machine(), *flags_of(first_core())})


def first_core(text: str | None = None) -> dict[str, str]:
    """Return what a text of /proc/cpuinfo (default: the file, if there is one) says about its first core."""
    if text is None:
        try:
            text = Path("/proc/cpuinfo").read_text(errors="replace")
        except OSError:
            return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in reversed(list(pairs)) if colon}


def flags_of(core: dict[str, str]) -> frozenset[str]:
    """Return the instruction sets of a core, of x86-64 (`flags`) or aarch64 (`Features`)."""
    return frozenset((core.get("flags") or core.get("Features") or "").split())
