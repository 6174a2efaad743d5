"""safetensors: reads weights from .safetensors files as memory-mapped, read-only numpy arrays, and writes such files.

The format: 8 bytes (little-endian length of the header), a JSON header {name: {dtype, shape, data_offsets}}, then the bytes of the
tensors, without gaps (https://github.com/huggingface/safetensors, "Format"). The published library copies each tensor out of the
file; in this module an array is a view of the mapping, so that only the pages that are read become resident. A set of files is read
through its `*.safetensors.index.json`, which maps each tensor to its file.
"""

from __future__ import annotations

import json
import logging
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tensor_graphs.devices.mapped_files import map_file
from tensor_graphs.errors import FileError, close_to, listed
from tensor_graphs.language.dtypes import DTYPES, DType, f8e4m3, f8e5m2
from tensor_graphs.regular_file import open_regular, read_regular

log = logging.getLogger(__name__)

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_LONGEST_HEADER = 100_000_000
"""Longest header in bytes; the published library refuses longer headers too."""

_NAMES = {t: t.name.upper() for t in DTYPES.values()} | {f8e4m3: "F8_E4M3", f8e5m2: "F8_E5M2"}
"""The format's name of each dtype."""

_BY_NAME = {name: t for t, name in _NAMES.items()}

_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64}
"""Dtypes of the format without a counterpart in this package, with their bits: such a tensor can be listed, but not read."""


class WeightsError(FileError):
    """A weights file is damaged or missing, or does not hold the requested tensor."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Position of one tensor in a file. stored: the dtype's name in the file. dtype: the dtype of this package, None if there is
    none. offset, nbytes: the tensor's bytes, counted from the start of the file."""

    name: str
    stored: str
    dtype: DType | None
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


class Weights:
    """The tensors of one file or of a set of files. Data is read only when elements of an `array` are used."""

    def __init__(self, source: Path, entries: Mapping[str, Entry], maps: Mapping[Path, mmap.mmap]) -> None:
        self.source = source
        self._entries = dict(entries)
        self._maps = dict(maps)
        self._copied: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<Weights {self.source}: {len(self)} tensors, {self.nbytes / 1e6:.1f} MB>"

    def names(self) -> tuple[str, ...]:
        """Return the names of all tensors, sorted."""
        return tuple(sorted(self._entries))

    @property
    def files(self) -> tuple[Path, ...]:
        """Paths of the mapped files."""
        return tuple(self._maps)

    @property
    def nbytes(self) -> int:
        """Total bytes of all tensors."""
        return sum(e.nbytes for e in self._entries.values())

    @property
    def copied(self) -> tuple[str, ...]:
        """Names of tensors returned as copies, because their bytes do not start at a multiple of their element size."""
        return tuple(sorted(self._copied))

    def entry(self, name: str) -> Entry:
        """Return the entry of the tensor `name`. Raises WeightsError, with names that are spelt alike."""
        entry = self._entries.get(name)
        if entry is None:
            near = close_to(name, self._entries)
            raise WeightsError(f"there is no tensor {name!r}", file=self.source,
                               fix=f"did you mean {' or '.join(near)}?" if near else f"it holds {listed(self._entries)}")
        return entry

    def info(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return (dtype, shape) of a tensor; the dtype by this package's name (`f32`), or by the file's if there is none
        (`F8_E4M3`). Raises WeightsError when there is no such tensor."""
        entry = self.entry(name)
        return (entry.dtype.name if entry.dtype else entry.stored), entry.shape

    def array(self, name: str, shape: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """Return the tensor as a read-only array that shares the file's bytes; bf16 and floats of eight bits have the dtypes of
        `ml_dtypes`. shape: if given, the required shape. A tensor whose bytes are not aligned to its element size is copied (see
        `copied`). Raises WeightsError for an unknown tensor, another shape, or an unsupported dtype."""
        entry = self.entry(name)
        if entry.dtype is None:
            raise WeightsError(f"tensor {name!r} has the unsupported dtype {entry.stored}", file=entry.file,
                               fix=f"convert it to one of {', '.join(_BY_NAME)}")
        if shape is not None and tuple(shape) != entry.shape:
            raise WeightsError(f"tensor {name!r} has shape {list(entry.shape)}, and {list(shape)} is needed", file=entry.file,
                               fix="the weights belong to another configuration than config.json says")
        if entry.nbytes == 0:
            array = np.empty(entry.shape, entry.dtype.numpy)
        else:
            flat = np.frombuffer(self._maps[entry.file], np.uint8, entry.nbytes, entry.offset)
            if entry.offset % entry.dtype.itemsize:
                log.info("%s: tensor %s is copied, byte %d is no multiple of %d", entry.file, name, entry.offset,
                         entry.dtype.itemsize)
                self._copied.add(name)
                flat = flat.copy()
            if entry.dtype.kind == "bool" and flat.max() > 1:       # numpy computes nonsense from such a bool
                raise WeightsError(f"tensor {name!r} is BOOL and holds a byte that is neither 0 nor 1", file=entry.file)
            array = flat.view(entry.dtype.numpy).reshape(entry.shape)
        array.flags.writeable = False
        return array


def open_weights(folder_or_file: str | os.PathLike[str]) -> Weights:
    """Return the weights of a model folder, of one .safetensors file, or of a set through its .index.json.

    In a folder, `model.safetensors` is preferred to `model.safetensors.index.json`, as in transformers; then a single .safetensors
    file of any name is taken. All headers are read and checked; the tensors are not read. Raises WeightsError: nothing found, a
    damaged or truncated file, a missing shard.
    """
    path = _find(Path(folder_or_file))
    if not path.name.endswith(".json"):
        mapping, entries = _open_file(path)
        return Weights(path, entries, {path: mapping})
    shards = _read_index(path)
    opened = {shard: _open_file(shard) for shard in sorted(set(shards.values()))}
    entries = {}
    for name, shard in shards.items():
        if name not in opened[shard][1]:
            raise WeightsError(f"the index says that tensor {name!r} is in {shard.name}, and it is not there", file=path,
                               fix="fetch the index and its files again, from one version of the model")
        entries[name] = opened[shard][1][name]
    unlisted = sum(len(of_shard) for _, of_shard in opened.values()) - len(entries)
    if unlisted:
        log.warning("%s: %d tensors of its files are not in the index and stay unused", path, unlisted)
    return Weights(path, entries, {shard: mapping for shard, (mapping, _) in opened.items()})


def write_weights(path: str | os.PathLike[str], tensors: Mapping[str, tuple[DType, Sequence[int]]],
                  make: Callable[[str], np.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write a .safetensors file, one tensor at a time, so that it may be larger than memory.

    tensors: name -> (dtype, shape). make: function of a name that returns the array, with that dtype and shape. Wider elements come
    first and the header is padded to 8 bytes, so that every tensor is aligned. The file appears complete or not at all. Raises
    WeightsError: an array that is not as declared, or a file that cannot be written.
    """
    path = Path(path)
    order = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in order:
        dtype, shape = tensors[name]
        nbytes = dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with replaced(path, at + len(text) + 8) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            dtype, shape = tensors[name]
            array = make(name)
            if array.dtype != dtype.numpy or array.shape != tuple(shape):
                raise WeightsError(f"tensor {name!r} was declared {dtype}{list(shape)}, and is {array.dtype}{list(array.shape)}",
                                   file=path)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


@contextmanager
def replaced(path: Path, nbytes: int) -> Iterator[IO[bytes]]:
    """Context manager: a file to write that takes the place of `path` once all `nbytes` are written. Raises WeightsError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise WeightsError(f"cannot write the weights: {error.strerror}", file=path,
                           fix=f"{nbytes / 1e6:.0f} MB are needed in a folder that can be written") from error
    finally:
        partial.unlink(missing_ok=True)


def _find(path: Path) -> Path:
    """Return the file meant by `path`: the file itself, or the weights in that folder."""
    if path.is_file():
        if path.name.endswith((".safetensors", ".safetensors.index.json")):
            return path
        raise WeightsError("weights are read from .safetensors files", file=path,
                           fix="name a .safetensors file, a .safetensors.index.json, or the folder that holds one")
    if not path.is_dir():
        raise WeightsError("there is no such file or folder", file=path)
    for name in (WEIGHTS_FILE, INDEX_FILE):
        if (path / name).is_file():
            return path / name
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise WeightsError(f"several weights files and no {INDEX_FILE}: {listed(f.name for f in files)}", file=path,
                           fix=f"name one of the files, or fetch {INDEX_FILE} as well")
    others = sorted(f.name for f in path.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"))
    raise WeightsError(f"there is no {WEIGHTS_FILE}" + (f", only {listed(others)}" if others else ""), file=path,
                       fix="fetch the .safetensors form of the weights, or convert them: save_pretrained(folder)")


def _read_index(path: Path) -> dict[str, Path]:
    """Return for each tensor name the file of the set that holds it."""
    try:
        index = json.loads(read_regular(path, _LONGEST_HEADER))
    except OSError as error:
        raise WeightsError(f"cannot read the index: {error.strerror}", file=path) from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the index is not JSON: {error}", file=path) from error
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards or not all(isinstance(file, str) for file in shards.values()):
        raise WeightsError("the index has no weight_map from tensor names to file names", file=path)
    for file in sorted(set(shards.values())):
        if file in ("", ".", "..") or file != os.path.basename(file):
            raise WeightsError(f"the index names {file!r}, which lies outside of its folder", file=path,
                               fix="files of a set lie next to their index")
        if not (path.parent / file).is_file():
            held = sum(f == file for f in shards.values())
            raise WeightsError(f"the file {file} of the set is missing; it holds {held} of {len(shards)} tensors", file=path,
                               fix=f"fetch {file} into {path.parent}")
    return {name: path.parent / file for name, file in shards.items()}


def _open_file(path: Path) -> tuple[mmap.mmap, dict[str, Entry]]:
    """Return the mapping of one file and its checked entries."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = _header_length(path, start, size)
            entries = _read_header(path, file.read(length), 8 + length, size)
            return map_file(file, path), entries
    except OSError as error:
        raise WeightsError(f"cannot read the weights: {error.strerror}", file=path) from error


def _header_length(path: Path, start: bytes, size: int) -> int:
    again = "fetch the file again"
    if len(start) < 8:
        raise WeightsError(f"truncated: the file has {size} bytes, its header alone takes 8 and more", file=path, fix=again)
    if start == b"version ":
        raise WeightsError("this is a Git LFS pointer, not the weights", file=path, fix="git lfs pull")
    # the first bytes of a zip, and of a pickle; a header of 640 bytes starts with \x80\x02 too, and goes on with zeros
    if start[:4] in (b"GGUF", b"PK\x03\x04") or (start[:2] == b"\x80\x02" and any(start[2:])):
        raise WeightsError(f"this is a {'GGUF' if start[:4] == b'GGUF' else 'PyTorch'} file under the name of a safetensors file",
                           file=path)
    length: int = struct.unpack("<Q", start)[0]
    if length > size - 8:
        raise WeightsError(f"truncated or not a safetensors file: a header of {length} bytes is announced, and {size - 8} follow",
                           file=path, fix=again)
    if length > _LONGEST_HEADER:
        raise WeightsError(f"a header of {length} bytes is announced, and {_LONGEST_HEADER} is the most there can be", file=path)
    return length


def _read_header(path: Path, text: bytes, data: int, size: int) -> dict[str, Entry]:
    """Return the entries of a header. data: position where the tensors' bytes start. size: of the file."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            keys = [key for key, _ in pairs]
            raise WeightsError(f"the header says {next(k for k in keys if keys.count(k) > 1)!r} twice", file=path)
        return read

    try:
        header = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"the header is not JSON: {error}", file=path, fix="fetch the file again") from error
    if not isinstance(header, dict):
        raise WeightsError("the header is not a JSON object", file=path)
    header.pop("__metadata__", None)
    entries = {name: _read_entry(path, name, value, data) for name, value in header.items()}
    at, before = data, "the header"
    for entry in sorted(entries.values(), key=lambda e: (e.offset, e.nbytes)):
        if entry.offset < at:
            raise WeightsError(f"tensors {before!r} and {entry.name!r} overlap", file=path, fix="fetch the file again")
        if entry.offset > at:
            raise WeightsError(f"{entry.offset - at} bytes before tensor {entry.name!r} belong to no tensor", file=path,
                               fix="the format allows no gaps; write the file again")
        at, before = entry.offset + entry.nbytes, entry.name
        if at > size:
            raise WeightsError(f"truncated or out of range: tensor {entry.name!r} ends at byte {at}, the file at {size}", file=path,
                               fix="fetch the file again")
    if at != size:
        raise WeightsError(f"{size - at} bytes at the end belong to no tensor", file=path,
                           fix="the format allows no gaps; write the file again")
    return entries


def _read_entry(path: Path, name: str, value: Any, data: int) -> Entry:
    def sizes(x: Any) -> bool:
        return isinstance(x, list) and all(type(n) is int and n >= 0 for n in x)

    if not (isinstance(value, dict) and isinstance(value.get("dtype"), str) and sizes(value.get("shape"))
            and sizes(value.get("data_offsets")) and len(value["data_offsets"]) == 2):
        raise WeightsError(f"the header's entry for {name!r} is not {{dtype, shape, data_offsets: [begin, end]}}", file=path)
    stored, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    dtype = _BY_NAME.get(stored)
    if dtype is None and stored not in _BITS:
        raise WeightsError(f"tensor {name!r} has the unknown dtype {stored!r}", file=path,
                           fix=f"the format knows {', '.join(_BY_NAME)} and {', '.join(_BITS)}")
    bits = math.prod(shape) * (dtype.bits if dtype else _BITS[stored])
    if bits != 8 * (end - begin):
        raise WeightsError(f"tensor {name!r}: {stored}{list(shape)} takes {bits // 8} bytes, its offsets span {end - begin}",
                           file=path, fix="fetch the file again")
    return Entry(name, stored, dtype, shape, path, data + begin, end - begin)
