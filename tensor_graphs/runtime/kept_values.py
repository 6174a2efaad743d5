"""kept_values: what is made of parameters alone and is large, kept in the user's cache folder, so that the next process maps it.

    place = place_of(program, instruction, parameters)   # None: nothing is kept of it
    memories = place.read()                              # None: make it, then place.write(memories)

Only of parameters that lie in files that are mapped (devices/safetensors.py), and of calls of our own native library: the name of a
file says which library, which call, and which bytes of which file, as it was when it was mapped (`Stamp`). Whatever is replaced or
edited has another name. Files that were not used for the longest time go.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from tensor_graphs.paths.lower import Instruction, Program

LEAST_BYTES = 16 << 20
"""what is less is made again in no time"""

MOST_BYTES = 4 << 30
"""of all that is kept"""

FREE_SHARE = 4
"""a file is written where there is so many times its size of free space"""

ALIGNMENT = 64


@dataclass(frozen=True)
class KeptValues:
    """Where the outputs of one instruction of bind time are kept. sizes: in bytes, of each."""

    path: Path
    sizes: tuple[int, ...]

    @property
    def begins(self) -> list[int]:
        found = [0]
        for size in self.sizes:
            found.append(found[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        return found

    def read(self) -> list[Memory] | None:
        """The outputs, read-only; None where they are not there."""
        content = mapped(self.path)
        if content is None or len(content) != self.begins[-1]:
            return None
        whole = np.frombuffer(content, np.uint8)
        return [memory_of(whole[begin:begin + size]) for begin, size in zip(self.begins[:-1], self.sizes, strict=True)]

    def write(self, memories: Sequence[Memory]) -> None:
        """Keep these, if there is room."""
        try:
            free = shutil.disk_usage(self.path.parent).free
        except OSError:                                             # there is no folder
            return
        if free >= FREE_SHARE * self.begins[-1]:
            keep(self.path, (chunk for memory in memories for chunk in (memory.owner.data, b"\0" * (-memory.nbytes % ALIGNMENT))),
                 MOST_BYTES)


def place_of(program: Program, made: Instruction, parameters: Mapping[str, Memory]) -> KeptValues | None:
    """Where the outputs of an instruction of bind time are kept, whether they are there or not."""
    if not isinstance(made.call, NativeCall) or made.call.image:
        return None
    sizes = tuple(int(d.evaluate(program.buffers[o.buffer].nbytes, {})) for o in made.outs)
    if sum(sizes) < LEAST_BYTES or any(o.offset != 0 or program.buffers[o.buffer].alias is not None for o in made.outs):
        return None
    sources = []
    for o in made.ins:
        b = program.buffers[o.buffer]
        source = source_of(parameters[b.name]) if b.kind == "parameter" and b.name in parameters else None
        if source is None:
            return None
        sources.append((source, o.offset, o.shape, o.strides, o.dtype.name))
    code = native_library().path.name                               # a digest of all sources, of flags, compiler and processor
    said = repr((code, made.call, sources, sizes, [(o.shape, o.strides, o.dtype.name) for o in made.outs]))
    path = user_place("bound", f"{hashlib.sha256(said.encode()).hexdigest()}.values")
    return None if path is None else KeptValues(path, sizes)
