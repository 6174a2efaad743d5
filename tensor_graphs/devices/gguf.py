"""gguf: reads the metadata and the places of the tensors of a GGUF file, which stays mapped, and writes such files.

The format, little-endian: "GGUF", u32 version, u64 number of tensors, u64 number of keys; then the keys (string, u32 type, value);
then the tensors (string, u32 number of sizes, u64 sizes with the innermost first, u32 type, u64 offset); then their bytes, each
tensor at a multiple of `general.alignment`, in this order and without gaps (docs/gguf.md of github.com/ggml-org/ggml). A file may
come from anywhere: every count, length and offset is compared with the bytes that follow before anything of that size exists.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensor_graphs.devices.mapped_files import map_file
from tensor_graphs.devices.safetensors import Entry, WeightsError, replaced
from tensor_graphs.language.composites.blocks import FORMATS
from tensor_graphs.language.dtypes import bf16, f16, f32, f64, i8, i16, i32, i64
from tensor_graphs.regular_file import open_regular

MAGIC, VERSIONS = b"GGUF", (2, 3)
ALIGNMENT, ALIGNMENT_KEY = 32, "general.alignment"
"""Default of the key; its value is a u32."""

PLAIN = {"F32": f32, "F16": f16, "I8": i8, "I16": i16, "I32": i32, "I64": i64, "F64": f64, "BF16": bf16}
"""Types that are one dtype; all others are `FORMATS` of blocks."""
_NAMES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
          13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
          22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
          35: "TQ2_0", 39: "MXFP4"}
_IDS = {name: number for number, name in _NAMES.items()}

_VALUES = dict(enumerate(("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?"))) | {10: "u8", 11: "i8", 12: "f8"}
"""Number of a metadata type -> its numpy dtype."""
_STRING, _ARRAY, _U32 = 8, 9, 4

MOST_STRINGS, MOST_SIZES, MOST_ALIGNMENT, MOST_NAME = 1 << 22, 4, 1 << 16, 1 << 16
"""Largest number of strings in an array (a vocabulary has some 300,000), of sizes of a tensor, largest alignment and name."""
_AGAIN = "fetch the file again, or convert it again from the model's folder"


@dataclass(frozen=True)
class GgufFile:
    """The content of one file. metadata: key -> number, string, list of strings, or array of numbers (a view of the file).
    entries: name -> place of a tensor; the dtype of blocks is that of their values, and the shape has the outermost size first."""

    path: Path
    metadata: Mapping[str, Any]
    entries: Mapping[str, Entry]
    mapping: mmap.mmap

    def stored(self, entry: Entry) -> np.ndarray[Any, Any]:
        """Return a tensor as a view of the file: its values, or u8[…, bytes of a row] of a tensor in blocks."""
        flat = np.frombuffer(self.mapping, np.uint8, entry.nbytes, entry.offset)
        dtype = PLAIN.get(entry.stored)
        return flat.view(dtype.numpy).reshape(entry.shape) if dtype else flat.reshape(*entry.shape[:-1], row_bytes(entry))


def row_bytes(entry: Entry) -> int:
    """Return the number of bytes of one row, along the innermost size, of a tensor in blocks."""
    block = FORMATS[entry.stored]
    return entry.shape[-1] // block.values * block.nbytes


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Return the content of a GGUF file of version 2 or 3. No tensor is read. Raises WeightsError for a file that is damaged,
    truncated, big-endian, or has a tensor of a type that is not read."""
    path = Path(path)
    try:
        with open_regular(path) as file:
            if file.read(4) != MAGIC:
                raise WeightsError("this is no GGUF file: it does not begin with GGUF", file=path, fix=_AGAIN)
            mapping = map_file(file, path)
    except OSError as error:
        raise WeightsError(f"cannot read the file: {error.strerror}", file=path) from error
    return _HeaderReader(path, mapping).content()


class _HeaderReader:
    """A position in a mapped file, from which numbers and strings are read; each read is checked against the file's end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.what = path, data, len(MAGIC), "the header"

    def error(self, message: str) -> WeightsError:
        return WeightsError(f"{self.what}: {message}", file=self.path, fix=_AGAIN)

    def content(self) -> GgufFile:
        version = self.number("u4")
        if version not in VERSIONS:
            swapped = version in (2 << 24, 3 << 24)
            raise WeightsError("the file is big-endian" if swapped else f"the file has version {version} of the format",
                               file=self.path,
                               fix="a little-endian file" if swapped else "versions 2 and 3 are read: convert the model again")
        tensors, keys = self.count("tensors", 24), self.count("keys", 13)
        metadata: dict[str, Any] = {}
        for i in range(keys):
            self.what = f"key {i + 1} of {keys}"
            key = self.string(MOST_NAME)
            self.what = f"the key {key!r}"
            if not key or key in metadata:
                raise self.error("there are two of that name" if key else "it has no name")
            metadata[key] = self.value(self.number("u4"), key)
        alignment = metadata.get(ALIGNMENT_KEY, ALIGNMENT)
        listed = [self.tensor(f"tensor {i + 1} of {tensors}") for i in range(tensors)]
        return GgufFile(self.path, metadata, self.placed(listed, alignment), self.data)

    def number(self, dtype: str) -> Any:
        return self.numbers(dtype, 1)[0].item()

    def numbers(self, dtype: str, count: int) -> np.ndarray[Any, Any]:
        kind = np.dtype(f"<{dtype}" if dtype != "?" else np.uint8)
        self.need(count * kind.itemsize)
        values = np.frombuffer(self.data, kind, count, self.at)
        self.at += count * kind.itemsize
        return values != 0 if dtype == "?" else values

    def need(self, nbytes: int) -> None:
        if nbytes > len(self.data) - self.at:
            raise self.error(f"{nbytes} bytes are announced at byte {self.at}, and {len(self.data) - self.at} follow")

    def count(self, what: str, least: int) -> int:
        """Return a number of things that take at least `least` bytes each."""
        count = int(self.number("u8"))
        if count > (len(self.data) - self.at) // least:
            raise self.error(f"{count} {what} are announced, and {len(self.data) - self.at} bytes follow")
        return count

    def string(self, most: int) -> str:
        length = int(self.number("u8"))
        if length > most:
            raise self.error(f"a text of {length} bytes is announced at byte {self.at - 8}, and {most} is the most there can be")
        self.need(length)
        self.at += length
        return self.data[self.at - length:self.at].decode(errors="replace")

    def value(self, kind: int, key: str) -> Any:
        if key == ALIGNMENT_KEY:
            alignment = self.number("u4") if kind == _U32 else 0
            if not 0 < alignment <= MOST_ALIGNMENT or alignment & alignment - 1:
                raise self.error(f"it is {alignment if kind == _U32 else 'no u32'}, and a power of two up to {MOST_ALIGNMENT} is "
                                 "needed")
            return alignment
        if kind == _STRING:
            return self.string(len(self.data))
        if kind != _ARRAY:
            return self.number(self.kind(kind))
        of, count = self.number("u4"), int(self.number("u8"))
        if of != _STRING:
            return self.numbers(self.kind(of), count)
        if count > min(MOST_STRINGS, (len(self.data) - self.at) // 8):
            raise self.error(f"{count} texts are announced, {len(self.data) - self.at} bytes follow, and {MOST_STRINGS} is the "
                             "most there can be")
        return self.strings(count)

    def strings(self, count: int) -> list[str]:
        """Return the next texts. A vocabulary has half a million, so each takes one step of a plain loop."""
        data, at, length, texts = self.data, self.at, struct.Struct("<Q").unpack_from, []
        most = len(data) - 8
        for _ in range(count):
            end = at + 8 + length(data, at)[0] if at <= most else most + 9
            if end > most + 8:
                self.at = at
                raise self.error(f"the text at byte {at} ends behind the file")
            texts.append(data[at + 8:end].decode(errors="replace"))
            at = end
        self.at = at
        return texts

    def kind(self, number: int) -> str:
        if number not in _VALUES:
            raise self.error("it is an array of arrays" if number == _ARRAY else f"its type is {number}, which there is none of")
        return _VALUES[number]

    def tensor(self, what: str) -> Entry:
        """Return one tensor; its offset is still counted from the first tensor's."""
        self.what = what
        name = self.string(MOST_NAME)
        self.what = f"the tensor {name!r}"
        sizes = self.number("u4")
        if sizes > MOST_SIZES:
            raise self.error(f"it has {sizes} sizes, and {MOST_SIZES} is the most there can be")
        shape = tuple(int(n) for n in self.numbers("u8", sizes))[::-1]
        kind, offset = self.number("u4"), int(self.number("u8"))
        stored = _NAMES.get(kind, f"type {kind}")
        if stored not in PLAIN and stored not in FORMATS:
            raise WeightsError(f"the tensor {name!r} is stored as {stored}, which is not read", file=self.path,
                               fix=f"a file with {', '.join((*PLAIN, *FORMATS))}")
        block = FORMATS.get(stored)
        if block and (not shape or shape[-1] % block.values):
            raise self.error(f"its rows have {shape[-1] if shape else 1} values, and blocks of {stored} have {block.values}")
        dtype = PLAIN.get(stored, f32)
        nbytes = math.prod(shape) // block.values * block.nbytes if block else math.prod(shape) * dtype.itemsize
        return Entry(name, stored, dtype, shape, self.path, offset, nbytes)

    def placed(self, listed: Sequence[Entry], alignment: int) -> dict[str, Entry]:
        """Return the tensors with offsets from the file's start, each where the one before ends."""
        start = _padded(self.at, alignment)
        after, entries = start, {}
        for entry in listed:
            self.what = f"the tensor {entry.name!r}"
            if entry.name in entries:
                raise self.error("there are two of that name")
            at = start + entry.offset
            if at != after:
                raise self.error(f"it begins at byte {at}, and has to begin at {after}, after the tensor before it")
            if at + entry.nbytes > len(self.data):
                raise self.error(f"it ends at byte {at + entry.nbytes}, and the file at {len(self.data)}")
            after = _padded(at + entry.nbytes, alignment)
            entries[entry.name] = Entry(entry.name, entry.stored, entry.dtype, entry.shape, entry.file, at, entry.nbytes)
        return entries


def _padded(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def write_gguf(path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, Sequence[int]]],
               make: Callable[[str], np.ndarray[Any, Any]]) -> None:
    """Write a GGUF file of version 3, one tensor at a time, so that it may be larger than memory.

    metadata: key -> bool, int, float, str, or a list of one of them (ints are u32 and i32, floats f32). tensors: name -> (type,
    shape). make: function of a name that returns the tensor as `GgufFile.stored` does. The file appears complete or not at all.
    Raises WeightsError for an array that is not as declared, and for a file that cannot be written.
    """
    path, at, places = Path(path), 0, bytearray()
    for name, (stored, shape) in tensors.items():
        block = FORMATS.get(stored)
        places += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), _IDS[stored], at)
        size = math.prod(shape) // block.values * block.nbytes if block else math.prod(shape) * PLAIN[stored].itemsize
        at = _padded(at + size, ALIGNMENT)
    header = MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata))
    header += b"".join(_text(key) + _value(value) for key, value in metadata.items()) + places
    with replaced(path, at + len(header)) as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        for name, (stored, shape) in tensors.items():
            array = make(name)
            dtype = PLAIN.get(stored)
            own = (array.dtype == dtype.numpy and array.shape == tuple(shape)) if dtype else array.dtype == np.uint8
            if not own:
                raise WeightsError(f"tensor {name!r} was declared {stored}{list(shape)}, and is {array.dtype}{list(array.shape)}",
                                   file=path)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            file.write(bytes(-array.nbytes % ALIGNMENT))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """Return a metadata value with its type."""
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
        kind, code = (5, "<i4") if all(isinstance(x, int) for x in value) else (6, "<f4")
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + np.asarray(value, code).tobytes()
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", _U32, value)
