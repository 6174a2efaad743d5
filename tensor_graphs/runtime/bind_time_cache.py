"""bind_time_cache: a cache, in the user's cache folder, of large values computed from parameters alone; later processes map them.

    cached = places_of(bind_time, [index], parameters).get(index)   # None: this instruction's outputs are not cached
    memories = cached.read()                                        # None: compute them, then cached.write(memories)

It covers values computed by built-in native code, or by functions of the numpy backend (quantised weights), from parameters in
mapped files (devices/safetensors.py). A cache file is named by a digest of the code, the calls, and the mapped file (`Stamp`). The
least recently used files are removed."""

from __future__ import annotations

import functools
import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from tensor_graphs.devices.checksummed_files import mapped, user_place
from tensor_graphs.devices.cpu import memory_of
from tensor_graphs.devices.device import Memory
from tensor_graphs.devices.mapped_files import source_of
from tensor_graphs.devices.write_checksummed_files import keep
from tensor_graphs.kernels.kernel import HostCall, NativeCall
from tensor_graphs.kernels.registry import native_library
from tensor_graphs.language import dims as d
from tensor_graphs.language.node import encode_attribute
from tensor_graphs.paths.bind_time import BindTime
from tensor_graphs.paths.lower import Instruction

LEAST_BYTES, LEAST_OF_HOST = 16 << 20, 64 << 10
"""least sizes in bytes of cached values of native code, and where numpy takes part, which takes longer; smaller ones are quickly
computed again"""

MOST_BYTES = 4 << 30
"""size limit of the cache in bytes"""

FREE_SHARE = 4
"""a file is written only if the free space is at least this many times its size"""

ALIGNMENT = 64


@dataclass(frozen=True)
class CachedValues:
    """The cache file of the outputs of one bind-time instruction. sizes: bytes of each output."""

    path: Path
    sizes: tuple[int, ...]

    @property
    def begins(self) -> list[int]:
        return [0, *accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in self.sizes)]

    def read(self) -> list[Memory] | None:
        """Map the outputs and return them, read-only; None where the file does not exist or is damaged."""
        content = mapped(self.path)
        if content is None or len(content) != self.begins[-1]:
            return None
        whole = np.frombuffer(content, np.uint8)
        return [memory_of(whole[begin:begin + size]) for begin, size in zip(self.begins[:-1], self.sizes, strict=True)]

    def write(self, memories: Sequence[Memory]) -> None:
        """Write the outputs to the file, if there is enough free space."""
        try:
            free = shutil.disk_usage(self.path.parent).free
        except OSError:                                             # there is no folder
            return
        if free >= FREE_SHARE * self.begins[-1]:
            keep(self.path, (chunk for memory in memories for chunk in (memory.owner.data, b"\0" * (-memory.nbytes % ALIGNMENT))),
                 MOST_BYTES)


def places_of(values: BindTime, indices: Iterable[int], parameters: Mapping[str, Memory]) -> dict[int, CachedValues]:
    """Return index of a bind-time instruction -> cache file of its outputs, for outputs that are large enough. The file may not
    exist yet. Where it does, instructions that compute the operands need not run."""
    program = values.program
    sizes = {i: tuple(int(d.evaluate(program.buffers[home].nbytes, {})) for home in values.outs[i]) for i in indices}
    large = [i for i, nbytes in sizes.items() if None not in map(values.key_of, values.outs[i])
             and sum(nbytes) >= (LEAST_OF_HOST if _needs_host(values, i) else LEAST_BYTES)]
    if not large:
        return {}
    of_buffers = _digests(values, parameters)
    digests = {i: of_buffers[values.outs[i][0]] for i in large if values.outs[i][0] in of_buffers}
    if not digests:
        return {}
    names = {i: hashlib.sha256(digest.encode()).hexdigest() for i, digest in digests.items()}
    places = {i: user_place("bound", f"{name}.values") for i, name in names.items()}
    return {i: CachedValues(path, sizes[i]) for i, path in places.items() if path is not None}


def _digests(values: BindTime, parameters: Mapping[str, Memory]) -> dict[int, str]:
    """Return number of a bind-time buffer -> digest of its value, for parameters in mapped files, constants and results of them."""
    program, digests = values.program, dict[int, str]()
    for home, b in enumerate(program.buffers):
        source = source_of(parameters[b.name]) if b.kind == "parameter" else values.key_of(home) if b.kind == "constant" else None
        if source is not None:
            digests[home] = repr(source)
    for ins, outs, read in zip(program.bind_instructions, values.outs, values.ins, strict=True):
        code = _code(ins) if all(home in digests for home in read) else None
        if code is not None:
            windows = [(o.offset, o.shape, o.strides, o.dtype.name) for o in (*ins.ins, *ins.outs)]
            digest = hashlib.sha256(repr((code, [digests[home] for home in read], windows)).encode()).hexdigest()
            digests |= {home: f"{digest} {number}" for number, home in enumerate(outs)}
    return digests


def _needs_host(values: BindTime, index: int) -> bool:
    """Return whether one of the instructions that compute an instruction's outputs is a function of the numpy backend."""
    return any(_is_host(values.program.bind_instructions[step.index]) for step in values.steps(values.outs[index]))


def _is_host(ins: Instruction) -> bool:
    """Return whether an instruction is a function of the built-in numpy backend."""
    module = getattr(ins.call.run, "__module__", "") if isinstance(ins.call, HostCall) else ""
    return module.startswith("tensor_graphs.kernels.numpy.")


def _code(ins: Instruction) -> str | None:
    """Return a text of the built-in code that an instruction runs, and of its attributes; None for other code."""
    if isinstance(ins.call, NativeCall) and not ins.call.image:
        return f"{native_library().path.name} {ins.call}"           # the name is a digest of sources, flags, compiler and processor
    if not _is_host(ins):
        return None
    attrs = [(name, encode_attribute(value)) for name, value in sorted(ins.attrs.items())]
    return f"{_python_digest()} {ins.kernel} {ins.op} {attrs}"


@functools.cache
def _python_digest() -> str:
    """Return a digest of numpy's version and of the code by which the numpy backend computes."""
    house = Path(__file__).resolve().parents[1]
    files = sorted(path for folder in ("kernels/numpy", "language") for path in (house / folder).rglob("*.py"))
    return hashlib.sha256(np.__version__.encode() + b"".join(path.read_bytes() for path in files)).hexdigest()
