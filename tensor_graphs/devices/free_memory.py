"""free_memory: whether an array fits into what is free, asked before it is made: Linux promises memory that it does not have, and
ends the process (or another one) where it is written to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tensor_graphs.errors import TensorGraphsError

LARGE = 1 << 30
"""bytes from which on it is asked: reading what is free takes longer than to make a small array"""


class OutOfMemory(TensorGraphsError, MemoryError):
    """A request for more memory than is free."""


def free_memory() -> int | None:
    """Bytes that this process may still take, without swapping; None where the system does not say."""
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
    """Raise OutOfMemory where `nbytes` do not fit into what is free. what: needs them; fix: what to do; both for people."""
    if nbytes < LARGE:
        return
    free = free_memory()
    if free is not None and nbytes > free:
        raise OutOfMemory(f"{what} takes {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free\n  fix: {fix}")
