"""mapped_files: finds the file, and the range of its bytes, for an array that is a view of a file mapped by this module."""

from __future__ import annotations

import mmap
import os
from typing import IO, Any
from weakref import WeakKeyDictionary

import numpy as np

from tensor_graphs.devices.array_address import address
from tensor_graphs.devices.device import Memory

Stamp = tuple[str, int, int, int, int, int]
"""Identity of a file when it was mapped: real path, device, inode, size, and times of writing and of change [ns]."""

_mapped: WeakKeyDictionary[mmap.mmap, Stamp] = WeakKeyDictionary()


def map_file(file: IO[bytes], path: str | os.PathLike[str]) -> mmap.mmap:
    """Return a read-only mapping of an open file. Raises OSError."""
    facts = os.fstat(file.fileno())
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _mapped[mapping] = (os.path.realpath(path), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    return mapping


def source_of(memory: Memory) -> tuple[Stamp, int, int] | None:
    """Return (file, first byte, number of bytes) of memory that is part of a mapped file; None for any other memory, and for a file
    that has been written to or replaced since."""
    base: Any = memory.owner
    while isinstance(base, np.ndarray):
        base = base.base
    whole: Any = base.obj if isinstance(base, memoryview) else base
    stamp = _mapped.get(whole) if isinstance(whole, mmap.mmap) else None
    if stamp is None or not memory.nbytes:
        return None
    try:
        facts = os.stat(stamp[0])
    except OSError:
        return None
    if (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns) != stamp[1:]:
        return None
    return stamp, memory.address - address(np.frombuffer(memoryview(whole), np.uint8)), memory.nbytes
