"""features: the names of an architecture and instruction sets, which a kernel may require of a device."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """Return the CPU's architecture as Python names it (x86_64, aarch64), and the flags that Linux lists (avx2, avx512f, asimd);
    without /proc/cpuinfo only the architecture."""
    return frozenset({platform.machine(), *flags_of(first_core())})


def first_core(text: str | None = None) -> dict[str, str]:
    """Return the properties of the first core in a text of /proc/cpuinfo (default: the file; empty without one)."""
    if text is None:
        try:
            text = Path("/proc/cpuinfo").read_text(errors="replace")
        except OSError:
            return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in reversed(list(pairs)) if colon}


def flags_of(core: dict[str, str]) -> frozenset[str]:
    """Return the instruction sets of a core, from `flags` (x86-64) or `Features` (aarch64)."""
    return frozenset((core.get("flags") or core.get("Features") or "").split())
