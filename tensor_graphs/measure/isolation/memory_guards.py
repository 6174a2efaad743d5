"""memory_guards: detects wrong or missing writes to memory by guard zones of known bytes around arrays, digests, and poison."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.measure.isolation import reused_arrays

GUARD_BYTES = 4096
"""size of the zone before and after each array"""

GUARD = 0xA5
POISONS = (0xFF, 0x7F, 0xFE)
"""byte values; one of them fills an output before a run: NaN in every float format and -1; large numbers (NaN in f16); large
negative numbers. NaN alone would hide a kernel that takes the maximum with the old content: C's fmax ignores NaN"""

BIG_BYTES, COLUMNS = 4 << 20, 509
"""larger operands are not copied between guards; words into which a large array is folded for a digest: two swapped words show"""

_draw = random.Random()


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Return the bytes of an array, flat (a copy where it is not contiguous)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a digest of all arrays; of a large array it covers the xor and sum of its 64-bit words, which runs at memory speed."""
    h = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        data = bytes_of(arrays[name])
        if data.size > 1 << 22:
            whole = data.size // (8 * COLUMNS) * (8 * COLUMNS)
            words = data[:whole].view(np.uint64).reshape(-1, COLUMNS)
            h.update(np.bitwise_xor.reduce(words, axis=0).tobytes() + np.add.reduce(words, axis=0).tobytes())
            data = data[whole:]
        h.update(data.data)
    return h.hexdigest()


class Guarded:
    """Array between two guard zones. aligned: it begins on a cache line; otherwise one element after that."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], aligned: bool = True) -> None:
        self.nbytes = int(np.prod(shape)) * dtype.itemsize
        raw = reused_arrays.empty((self.nbytes + 2 * GUARD_BYTES + 128,), np.uint8)
        start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % 64 + (0 if aligned else dtype.itemsize)
        self.before, self.after = raw[start - GUARD_BYTES:start], raw[start + self.nbytes:start + self.nbytes + GUARD_BYTES]
        self.before.fill(GUARD)
        self.after.fill(GUARD)
        self.bytes = raw[start:start + self.nbytes]
        self.array = np.ndarray(shape, dtype=dtype, buffer=raw, offset=start)

    def poison(self) -> None:
        """Fill the array with a random byte of POISONS (for bools: true or false)."""
        byte = _draw.choice(POISONS)
        self.bytes.fill(byte & 1 if self.array.dtype.kind == "b" else byte)

    def overrun(self) -> str:
        """Return where bytes outside the array were changed; "" when none were."""
        if (self.before != GUARD).any():
            return "before its first element"
        return "behind its last element" if (self.after != GUARD).any() else ""


def overlapping(x: np.ndarray, y: np.ndarray) -> tuple[Guarded, np.ndarray, np.ndarray]:
    """Return memory with y's first row followed by x, and two views of it: x, and an overlapping one that begins a row earlier."""
    memory = Guarded((x.shape[0] + 1, *x.shape[1:]), x.dtype)
    memory.array[0], memory.array[1:] = y[0], x
    return memory, memory.array[1:], memory.array[:-1]


def guarded(arrays: Mapping[str, np.ndarray], aligned: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Guarded]]:
    """Return copies of the arrays between guard zones (large arrays are not copied), and the guards."""
    guards = {n: Guarded(a.shape, a.dtype, aligned) for n, a in arrays.items() if a.nbytes <= BIG_BYTES}
    for name, g in guards.items():
        g.array[...] = arrays[name]
    return {n: guards[n].array if n in guards else a for n, a in arrays.items()}, guards
