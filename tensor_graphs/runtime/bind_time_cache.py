"""bind_time_cache: large values made of parameters alone, in the user's cache folder, so that the next process maps them.

    cached = places_of(bind_time, [index], parameters).get(index)   # None: this instruction's outputs are not cached
    memories = cached.read()                                        # None: make them, then cached.write(memories)

Only of parameters in mapped files (devices/safetensors.py), and of calls of our own native library: a file is named by a digest of
the library, the calls, and the bytes of the mapped file (`Stamp`). Files that were not used for the longest time are removed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.mapped_files import source_of
from tensor_graphs.devices.sealed_files import mapped, user_place
from tensor_graphs.devices.sealing import keep
from tensor_graphs.kernels.kernel import NativeCall
from tensor_graphs.kernels.registry import native_library
from tensor_graphs.language import dims as d
from tensor_graphs.paths.bind_time import BindTime

LEAST_BYTES = 16 << 20
"""what is less is made again in no time"""

MOST_BYTES = 4 << 30
"""of all that is kept"""

FREE_SHARE = 4
"""a file is written where free space is this many times its size"""

ALIGNMENT = 64


@dataclass(frozen=True)
class CachedValues:
    """The cache file of the outputs of one instruction of bind time. sizes: in bytes, of each."""

    path: Path
    sizes: tuple[int, ...]

    @property
    def begins(self) -> list[int]:
        return [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in self.sizes)]

    def read(self) -> list[Memory] | None:
        """The outputs, read-only; None where they are not there."""
        content = mapped(self.path)
        if content is None or len(content) != self.begins[-1]:
            return None
        whole = np.frombuffer(content, np.uint8)
        return [memory_of(whole[begin:begin + size]) for begin, size in zip(self.begins[:-1], self.sizes, strict=True)]

    def write(self, memories: Sequence[Memory]) -> None:
        """Write these to the file, if there is room."""
        try:
            free = shutil.disk_usage(self.path.parent).free
        except OSError:                                             # there is no folder
            return
        if free >= FREE_SHARE * self.begins[-1]:
            keep(self.path, (chunk for memory in memories for chunk in (memory.owner.data, b"\0" * (-memory.nbytes % ALIGNMENT))),
                 MOST_BYTES)


def places_of(values: BindTime, indices: Iterable[int], parameters: Mapping[str, Memory]) -> dict[int, CachedValues]:
    """The cache files, existing or not, of the outputs of bind-time instructions, by the instructions' indices, where outputs are
    large enough. Their operands may be made by other such calls, which are not needed where the file exists."""
    program = values.program
    sizes = {i: tuple(int(d.evaluate(program.buffers[home].nbytes, {})) for home in values.outs[i]) for i in indices}
    large = [i for i, nbytes in sizes.items() if sum(nbytes) >= LEAST_BYTES and None not in map(values.key_of, values.outs[i])]
    if not large:
        return {}
    of_buffers = _digests(values, parameters)
    digests = {i: of_buffers[values.outs[i][0]] for i in large if values.outs[i][0] in of_buffers}
    if not digests:
        return {}
    code = native_library().path.name                               # a digest of all sources, of flags, compiler and processor
    names = {i: hashlib.sha256(f"{code} {digest}".encode()).hexdigest() for i, digest in digests.items()}
    places = {i: user_place("bound", f"{name}.values") for i, name in names.items()}
    return {i: CachedValues(path, sizes[i]) for i, path in places.items() if path is not None}


def _digests(values: BindTime, parameters: Mapping[str, Memory]) -> dict[int, str]:
    """Digests of the values of bind-time buffers, by home; without those of unknown values."""
    program, digests = values.program, dict[int, str]()
    for home, b in enumerate(program.buffers):
        source = source_of(parameters[b.name]) if b.kind == "parameter" else values.key_of(home) if b.kind == "constant" else None
        if source is not None:
            digests[home] = repr(source)
    for ins, outs, read in zip(program.bind_instructions, values.outs, values.ins, strict=True):
        if isinstance(ins.call, NativeCall) and not ins.call.image and all(home in digests for home in read):
            windows = [(o.offset, o.shape, o.strides, o.dtype.name) for o in (*ins.ins, *ins.outs)]
            digest = hashlib.sha256(repr((ins.call, [digests[home] for home in read], windows)).encode()).hexdigest()
            digests |= {home: f"{digest} {number}" for number, home in enumerate(outs)}
    return digests
