"""free_memory: checks whether an array fits into free memory before it is allocated. Linux promises memory that it does not have,
and ends the process (or another one) when it is written to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tensor_graphs.errors import TensorGraphsError

LARGE = 1 << 30
"""Bytes of a request from which on it is checked: reading the free memory takes longer than allocating a small array."""


class OutOfMemory(TensorGraphsError, MemoryError):
    """A request for more memory than is free."""


def free_memory() -> int | None:
    """Return the bytes that this process may still take without swapping; None where the system does not report them."""
    free: int | None = None
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        with suppress(OSError, ValueError):                             # no such file, or the word "max"
            left = int(Path("/sys/fs/cgroup", limit).read_text()) - int(Path("/sys/fs/cgroup", used).read_text())
            free = left if free is None else min(free, max(left, 0))
    return free


def require_memory(nbytes: int, what: str, fix: str) -> None:
    """Raise OutOfMemory where `nbytes` exceed the free memory. what: the thing that needs them, fix: advice; texts for people."""
    if nbytes < LARGE:
        return
    free = free_memory()
    if free is not None and nbytes > free:
        raise OutOfMemory(f"{what} takes {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free\n  fix: {fix}")
