"""devices/gguf.py: what a file holds is read as it was written, and each damage is named in one line before memory is taken."""

from __future__ import annotations

import re
import resource
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.devices.gguf import read_gguf, row_bytes, write_gguf
from tensor_graphs.devices.safetensors import WeightsError
from tensor_graphs.language.composites.blocks import FORMATS

METADATA = {"general.architecture": "llama", "a.flag": True, "a.count": 7, "a.eps": 0.5, "a.texts": ["a", "", "ö"],
            "a.numbers": [1, -2], "a.scores": [0.5, -1.0]}


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes = b"w", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(*, magic: bytes = b"GGUF", version: int = 3, tensors: Sequence[bytes] | int = (), keys: Sequence[bytes] | int = (),
           data: bytes = b"", alignment: int = 32) -> bytes:
    """A file of these parts. tensors, keys: the number that is announced, where there are none."""
    counts = [parts if isinstance(parts, int) else len(parts) for parts in (tensors, keys)]
    parts = [*(keys if not isinstance(keys, int) else ()), *(tensors if not isinstance(tensors, int) else ())]
    start = magic + struct.pack("<IQQ", version, *counts) + b"".join(parts)
    return start + bytes(-len(start) % alignment) + data


HUGE = (1 << 64) - 1
ALIGN = b"general.alignment"
MALFORMED: dict[str, tuple[bytes, str]] = {
    "magic": (header(magic=b"FUGG"), "does not begin with GGUF"),
    "empty": (b"", "does not begin with GGUF"),
    "magic alone": (b"GGUF", "4 bytes are announced at byte 4, and 0 follow"),
    "version 0": (header(version=0), "version 0 of the format"),
    "version 1": (header(version=1), "version 1 of the format"),
    "version 4": (header(version=4), "version 4 of the format"),
    "big-endian": (header(version=3 << 24), "the file is big-endian"),
    "number of tensors": (header(tensors=HUGE), f"{HUGE} tensors are announced"),
    "number of keys": (header(keys=HUGE), f"{HUGE} keys are announced"),
    "a key's length": (header(keys=[struct.pack("<Q", HUGE) + b"my_key" * 4]), f"key 1 of 1: a text of {HUGE} bytes is announced"),
    "a key's length beyond the file": (
        header(keys=[struct.pack("<Q", 4096) + b"my_key"], alignment=1), "4096 bytes are announced at byte 32, and 6 follow"),
    "no key": (header(keys=[key(b"", 4, bytes(4))]), "key ''.*it has no name"),
    "type of a value": (header(keys=[key(b"k", 13, bytes(8))]), "key 'k'.*its type is 13, which there is none of"),
    "type of an array's values": (header(keys=[key(b"k", 9, struct.pack("<IQ", 13, 0))]), "key 'k'.*its type is 13"),
    "an array of arrays": (header(keys=[key(b"k", 9, struct.pack("<IQ", 9, 1) + bytes(16))]), "key 'k'.*an array of arrays"),
    "an array's length": (header(keys=[key(b"k", 9, struct.pack("<IQ", 10, 1 << 60))]), "key 'k'.*bytes are announced"),
    "number of texts": (header(keys=[key(b"k", 9, struct.pack("<IQ", 8, 1 << 60))]), "key 'k'.*texts are announced"),
    "number of texts that the file could hold": (
        header(keys=[key(b"k", 9, struct.pack("<IQ", 8, 5_000_000) + bytes(40_000_000))]), "4194304 is the most there can be"),
    "a text's length": (header(keys=[key(b"k", 8, struct.pack("<Q", 1 << 62))]), "key 'k'.*a text of|bytes are announced"),
    "a text of an array": (header(keys=[key(b"k", 9, struct.pack("<IQ", 8, 2) + text(b"a") + struct.pack("<Q", HUGE))]),
                           "key 'k'.*the text at byte .* ends behind the file"),
    "two keys": (header(keys=[key(b"k", 4, bytes(4))] * 2), "key 'k'.*there are two of that name"),
    "an alignment of 13": (header(keys=[key(ALIGN, 4, struct.pack("<I", 13))]), "it is 13, and a power of two"),
    "an alignment of 0": (header(keys=[key(ALIGN, 4, bytes(4))]), "it is 0, and a power of two"),
    "a huge alignment": (header(keys=[key(ALIGN, 4, struct.pack("<I", 1 << 31))]), "it is 2147483648, and a power of two"),
    "an alignment of another type": (header(keys=[key(ALIGN, 10, struct.pack("<Q", 32))]), "it is no u32"),
    "a name's length": (header(tensors=[struct.pack("<Q", HUGE) + bytes(40)]), "tensor 1 of 1: a text of"),
    "number of sizes": (header(tensors=[tensor(shape=(1, 1, 1, 1, 1))]), "tensor 'w'.*5 sizes, and 4 is the most"),
    "a size": (header(tensors=[tensor(shape=(HUGE,))]), "tensor 'w'.*it ends at byte"),
    "sizes whose product wraps": (header(tensors=[tensor(shape=(4, (1 << 30) - 1, (1 << 30) + 1))]), "tensor 'w'.*it ends at byte"),
    "blocks that do not fit": (header(tensors=[tensor(shape=(33,), kind=8)]), "tensor 'w'.*rows have 33 values.*Q8_0 have 32"),
    "blocks of a scalar": (header(tensors=[tensor(shape=(), kind=8)]), "tensor 'w'.*rows have 1 values"),
    "a type that is not read": (header(tensors=[tensor(kind=10)]), "tensor 'w' is stored as Q2_K, which is not read"),
    "an unknown type": (header(tensors=[tensor(kind=77)]), "tensor 'w' is stored as type 77, which is not read"),
    "an offset": (header(tensors=[tensor(offset=32)], data=bytes(64)), "tensor 'w'.*begins at byte 96, and has to begin at 64"),
    "an offset that wraps": (header(tensors=[tensor(offset=HUGE - 31)], data=bytes(64)), "tensor 'w'.*has to begin at"),
    "overlapping tensors": (header(tensors=[tensor(b"a"), tensor(b"b")], data=bytes(64)), "tensor 'b'.*has to begin at"),
    "a gap": (header(tensors=[tensor(b"a"), tensor(b"b", offset=64)], data=bytes(96)), "tensor 'b'.*has to begin at"),
    "two tensors": (header(tensors=[tensor(), tensor(offset=32)], data=bytes(64)), "tensor 'w'.*there are two of that name"),
    "offsets of another alignment": (
        header(keys=[key(ALIGN, 4, struct.pack("<I", 64))], tensors=[tensor(b"a"), tensor(b"b", offset=32)], data=bytes(128),
               alignment=64), "tensor 'b'.*has to begin at"),
    "too few bytes": (header(tensors=[tensor()], data=bytes(8)), "tensor 'w'.*it ends at byte .*, and the file at"),
    "no data": (header(tensors=[tensor(shape=(1 << 62,), kind=24)]), "tensor 'w'.*it ends at byte"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_damaged_file_is_refused_in_one_line_and_no_memory_is_taken(name: str, tmp_path: Path) -> None:
    content, message = MALFORMED[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError) as error:
        read_gguf(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000                # kB
    first, *rest = str(error.value).splitlines()
    assert re.search(message, first), first
    assert rest[0] == f"  file: {path}" and len(rest) == 2 and rest[1].startswith("  fix: ")


def test_no_beginning_of_a_file_is_a_file(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    write_gguf(whole, METADATA, {"w": ("F32", (2, 3))}, lambda name: np.ones((2, 3), np.float32))
    content = whole.read_bytes()
    for length in range(0, len(content) - 8, 3):                                               # the last 8 bytes are padding
        cut.write_bytes(content[:length])
        with pytest.raises(WeightsError):
            read_gguf(cut)


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_give_a_file_or_a_named_error(seed: int, tmp_path: Path) -> None:
    path, rng = tmp_path / "m.gguf", np.random.default_rng(seed)
    write_gguf(path, METADATA, {"w": ("F32", (2, 3)), "q": ("Q4_K", (2, 256))},
               lambda name: np.ones((2, 3), np.float32) if name == "w" else np.zeros((2, 144), np.uint8))
    content = np.frombuffer(path.read_bytes(), np.uint8)
    for _ in range(300):
        damaged = content.copy()
        damaged[rng.integers(0, len(content), 3)] = rng.integers(0, 256, 3)
        path.write_bytes(damaged.tobytes())
        try:
            read_gguf(path)
        except WeightsError:
            pass


def test_what_was_written_is_read(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "m.gguf"
    own: dict[str, np.ndarray[Any, Any]] = {
        "w": rng.standard_normal((3, 5)).astype(np.float32), "h": np.arange(7, dtype=np.float16),
        "q": rng.integers(0, 256, (2, 3, 2 * 34), np.uint8), "none": np.ones((0, 4), np.float32)}
    kinds = {"w": ("F32", (3, 5)), "h": ("F16", (7,)), "q": ("Q8_0", (2, 3, 64)), "none": ("F32", (0, 4))}
    write_gguf(path, METADATA, kinds, own.__getitem__)
    file = read_gguf(path)
    assert {name: list(value) if isinstance(value, np.ndarray) else value for name, value in file.metadata.items()} == METADATA
    for name, (kind, shape) in kinds.items():
        entry = file.entries[name]
        assert (entry.stored, entry.shape) == (kind, shape)
        np.testing.assert_array_equal(file.stored(entry), own[name])
    assert row_bytes(file.entries["q"]) == 2 * FORMATS["Q8_0"].nbytes


def test_an_array_that_is_not_as_declared_leaves_no_file(tmp_path: Path) -> None:
    wrong: Callable[[str], Any] = lambda name: np.ones((2, 2), np.float64)  # noqa: E731
    with pytest.raises(WeightsError, match=r"declared F32\[2, 2\], and is float64"):
        write_gguf(tmp_path / "m.gguf", {}, {"w": ("F32", (2, 2))}, wrong)
    assert not list(tmp_path.iterdir())


def test_the_first_error_of_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot read the file: No such file"):
        read_gguf(tmp_path / "none.gguf")


@pytest.mark.models
def test_the_package_gguf_reads_what_is_written(tmp_path: Path) -> None:
    import gguf

    path, values = tmp_path / "m.gguf", np.arange(64, dtype=np.float32).reshape(1, 64)
    write_gguf(path, METADATA, {"w": ("F32", (1, 64)), "q": ("Q8_0", (1, 64))},
               lambda name: values if name == "w" else gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0))
    theirs = gguf.GGUFReader(path)
    assert {name: theirs.fields[name].contents() for name in METADATA} == METADATA
    for each in theirs.tensors:
        np.testing.assert_allclose(gguf.dequantize(each.data, each.tensor_type), values, atol=0.5)
