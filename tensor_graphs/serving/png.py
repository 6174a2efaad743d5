"""png: writes pictures as PNG files, and reads those of eight bits per channel; the format is zlib with a filter per row.

Source: PNG (Portable Network Graphics) Specification, third edition, W3C 2025.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tensor_graphs.frontends.errors import FrontendError
from tensor_graphs.regular_file import read_regular

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 1 << 28
"""largest file that is read"""
MOST_PIXELS = 1 << 26
"""largest picture that is read: a small file may stand for a huge one"""
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}
"""colour type -> channels; type 3, a palette, is not read"""


def write_png(path: Path, picture: np.ndarray) -> None:
    """Write a picture u8[h, w, 3]. Raises FrontendError where the file cannot be written."""
    height, width, _ = picture.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], axis=1)      # filter 0 for each row
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)), _chunk(b"IEND", b""))
    try:
        path.write_bytes(SIGNATURE + b"".join(parts))
    except OSError as error:
        raise FrontendError(f"cannot write the picture: {error.strerror}", file=path, fix="a file in a folder that can be written"
                            ) from error


def read_png(path: Path) -> np.ndarray:
    """Return a picture as u8[h, w, 3]: grey becomes three equal channels, transparency is left out.

    Raises FrontendError: no PNG, a damaged one, or one of another form (a palette, 1, 2, 4 or 16 bits, interlaced).
    """
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise FrontendError(f"cannot read the picture: {error.strerror}", file=path) from error
    if not data.startswith(SIGNATURE):
        raise FrontendError("this is no PNG file", file=path, fix="convert the picture to PNG, of 8 bits per channel")
    try:
        chunks = list(_chunks(data))
        width, height, bits, colours, _, _, interlaced = struct.unpack(">IIBBBBB", dict(chunks)[b"IHDR"])
        if bits != 8 or colours not in _CHANNELS or interlaced:
            raise FrontendError(f"the PNG has {bits} bits, colour type {colours}{', interlaced' * bool(interlaced)}", file=path,
                                fix="save it with 8 bits per channel, without a palette and without interlacing")
        if not 0 < width * height <= MOST_PIXELS:
            raise FrontendError(f"the picture has {width} × {height} pixels; at most {MOST_PIXELS} are read", file=path)
        size = height * (width * _CHANNELS[colours] + 1)
        packed = b"".join(body for name, body in chunks if name == b"IDAT")
        raw = zlib.decompressobj().decompress(packed, size)
        pixels = _unfiltered(np.frombuffer(raw, np.uint8, size).reshape(height, -1), _CHANNELS[colours])
    except (struct.error, KeyError, zlib.error, ValueError) as error:
        raise FrontendError(f"the PNG is damaged: {error}", file=path) from error
    pixels = pixels.reshape(height, width, -1)
    return np.ascontiguousarray(pixels[..., :3] if colours & 2 else np.repeat(pixels[..., :1], 3, axis=2))


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(data):
        (length,), name = struct.unpack(">I", data[at:at + 4]), data[at + 4:at + 8]
        body, check = data[at + 8:at + 8 + length], data[at + 8 + length:at + 12 + length]
        if struct.pack(">I", zlib.crc32(name + body)) != check:
            raise ValueError(f"the sum of {name!r} is wrong")
        yield name, body
        at += 12 + length


def _unfiltered(rows: np.ndarray, channels: int) -> np.ndarray:
    """Return the bytes of rows [h, 1 + w · channels], whose first byte names the filter of the row."""
    out = np.zeros((len(rows) + 1, rows.shape[1] - 1 + channels), np.uint8)      # a row above, and a pixel to the left, of zeros
    for i, (kind, *_) in enumerate(rows):
        line, above, coded = out[i + 1], out[i], rows[i, 1:]
        if kind in (0, 2):
            line[channels:] = coded + (above[channels:] if kind == 2 else 0)
        elif kind in (1, 3, 4):
            for start in range(0, len(coded), channels):                          # each pixel needs the one before
                a, b, c = (y.astype(int) for y in (line[start:start + channels], above[start + channels:start + 2 * channels],
                                                   above[start:start + channels]))
                if kind == 4:
                    pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                    guess = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, b, c))
                else:
                    guess = a if kind == 1 else (a + b) // 2
                line[start + channels:start + 2 * channels] = (coded[start:start + channels] + guess).astype(np.uint8)
        else:
            raise ValueError(f"a row has the filter {kind}")
    return out[1:, channels:]
