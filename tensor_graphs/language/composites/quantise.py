"""quantise: numbers to the blocks of codes that `dequantize` reads.

Formats of blocks of 32 have one definition, that of ggml: a scale from the largest number, and codes rounded to nearest. Those of
blocks of 256 (K) leave the choice of scales to the program that writes them; here it is a search by least squares. Sources:
ggml-quants.c of github.com/ggml-org/ggml (layouts); Open Compute Project, Microscaling Formats Specification 1.0, 2023 (MXFP4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tensor_graphs.language.atomic import cast, fill, show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites.blocks import E2M1, FORMATS, HALF_E8M0, dequantize
from tensor_graphs.language.dtypes import f32, u8
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, TensorType, rebuild
from tensor_graphs.language.op_facts import OpFacts

__all__ = ["quantize"]

Array = np.ndarray[Any, Any]

PIECE = 1 << 16
"""Numbers that are quantised at a time, so that they and what is computed of them stay in a core's cache."""


def _half(x: Array) -> Array:
    """Return f32[blocks] as the bytes of f16, u8[2, blocks]."""
    out: Array = np.ascontiguousarray(x, np.float16).view(np.uint8).reshape(-1, 2).T
    return out


def _inverse(x: Array) -> Array:
    return np.where(x == 0, np.float32(0), 1 / x)


def _pairs(codes: Array) -> Array:
    """Return codes of 4 bits, u8[2 n, …], as bytes: code i in the low half of byte i, code i + n in its high half."""
    half = len(codes) // 2
    out: Array = codes[:half] | codes[half:] << 4
    return out


def _fifth(codes: Array) -> Array:
    """Return the fifth bits of codes u8[8 n, …] as bytes, the first in the lowest bit."""
    return np.packbits(codes >> 4, axis=0, bitorder="little")


def _q8_0(x: Array, weight: Array | None = None) -> list[Array]:
    scale = np.abs(x).max(0) / np.float32(127)
    steps = x * _inverse(scale)
    return [_half(scale), np.trunc(steps + np.copysign(np.float32(0.5), steps)).astype(np.int8).view(np.uint8)]


def _symmetric(x: Array, levels: int, weight: Array | None) -> tuple[Array, Array]:
    """Return the bytes of the scale, by which the first number of largest magnitude is the code 0, and codes of 2·levels values."""
    if weight is not None:
        from tensor_graphs.language.composites.least_squares_codes import scaled  # a door: of who quantises with importance

        half, codes = scaled(x, weight, -levels, levels - 1)
        return _half(half), codes
    low, high = x.min(0), x.max(0)
    is_low = -low > high
    if (tie := -low == high).any():
        is_low[tie] = x[:, tie].argmin(0) < x[:, tie].argmax(0)
    scale = np.where(is_low, low, high) / np.float32(-levels)
    codes = np.trunc(x * _inverse(scale) + np.float32(levels + 0.5)).astype(np.uint8)
    return _half(scale), np.minimum(codes, 2 * levels - 1)


def _affine(x: Array, most: int, weight: Array | None) -> tuple[Array, Array]:
    """Return the bytes of the scale and of the minimum, and the codes, 0 to `most`."""
    if weight is not None:
        from tensor_graphs.language.composites.least_squares_codes import shifted  # the same door

        *halves, codes = shifted(x, weight, most)
        return np.concatenate([_half(half) for half in halves]), codes
    low = x.min(0)
    scale = (x.max(0) - low) / np.float32(most)
    codes = np.trunc((x - low) * _inverse(scale) + np.float32(0.5)).astype(np.uint8)
    return np.concatenate([_half(scale), _half(low)]), np.minimum(codes, most)


def _q4_0(x: Array, weight: Array | None = None) -> list[Array]:
    scale, codes = _symmetric(x, 8, weight)
    return [scale, _pairs(codes)]


def _q4_1(x: Array, weight: Array | None = None) -> list[Array]:
    scales, codes = _affine(x, 15, weight)
    return [scales, _pairs(codes)]


def _q5_0(x: Array, weight: Array | None = None) -> list[Array]:
    scale, codes = _symmetric(x, 16, weight)
    return [scale, _fifth(codes), _pairs(codes & 15)]


def _q5_1(x: Array, weight: Array | None = None) -> list[Array]:
    scales, codes = _affine(x, 31, weight)
    return [scales, _fifth(codes), _pairs(codes & 15)]


def _mxfp4(x: Array, weight: Array | None = None) -> list[Array]:
    size = np.abs(x)
    largest = size.max(0)
    exponent = np.where(largest > 0, np.floor(np.log2(largest)) + 125, 0).clip(0, 254).astype(np.uint8)
    size /= HALF_E8M0[exponent]                                     # exact: a power of two
    codes = np.zeros(x.shape, np.uint8)
    for middle in (E2M1[:7] + E2M1[1:8]) / 2:                       # half-way, the number of smaller magnitude is taken
        codes += size > middle
    codes += ((codes > 0) & (x < 0)).view(np.uint8) * np.uint8(8)
    return [exponent[None], _pairs(codes)]


def _parts(x: Array | None, size: int) -> Array | None:
    """Return blocks f32[256, blocks] as f32[size, parts of all blocks]."""
    return None if x is None else np.ascontiguousarray(x.reshape(-1, size, x.shape[-1]).transpose(1, 2, 0)).reshape(size, -1)


def _affine_k(x: Array, weight: Array | None, most: int) -> tuple[list[Array], Array]:
    """Return the bytes of scales and minima of blocks of eight parts, and the codes, u8[8, 32, blocks]."""
    values = _parts(x, 32)
    assert values is not None
    from tensor_graphs.language.composites.least_squares_codes import affine  # a door: of who quantises

    d, m, scale, minimum, codes = affine(values, _parts(weight, 32), most, 8)
    scale, minimum = scale.reshape(-1, 8).T, minimum.reshape(-1, 8).T
    low, least = (v[:4] | v[4:] >> 4 << 6 for v in (scale, minimum))
    head = [_half(d), _half(m), low, least, scale[4:] & 15 | (minimum[4:] & 15) << 4]
    return head, codes.reshape(32, -1, 8).transpose(2, 0, 1)


def _low_bits(codes: Array) -> Array:
    """Return the low four bits of codes u8[8, 32, blocks]: each 32 bytes hold two parts."""
    out: Array = (codes[::2] & 15 | codes[1::2] << 4).reshape(128, -1)
    return out


def _q4_k(x: Array, weight: Array | None = None) -> list[Array]:
    head, codes = _affine_k(x, weight, 15)
    return [*head, _low_bits(codes)]


def _q5_k(x: Array, weight: Array | None = None) -> list[Array]:
    head, codes = _affine_k(x, weight, 31)
    return [*head, np.packbits(codes >> 4, axis=0, bitorder="little")[0], _low_bits(codes)]


def _q6_k(x: Array, weight: Array | None = None) -> list[Array]:
    values = _parts(x, 16)
    assert values is not None
    from tensor_graphs.language.composites.least_squares_codes import symmetric  # the same door

    d, scale, codes = symmetric(values, _parts(weight, 16), -32, 31, 16)
    codes = codes.reshape(16, -1, 16).transpose(2, 0, 1).reshape(2, 4, 32, -1)          # half, quarter of it, number
    low = (codes[:, :2] & 15 | codes[:, 2:] << 4).reshape(128, -1)
    high = codes >> 4
    high = (high[:, 0] | high[:, 1] << 2 | high[:, 2] << 4 | high[:, 3] << 6).reshape(64, -1)
    return [low, high, scale.reshape(-1, 16).T.view(np.uint8), _half(d)]


Quantise = Callable[..., list[Array]]
"""Function from blocks f32[values, blocks], and weights of that shape or None, to parts of their bytes, u8[…, blocks]."""

QUANTISERS: Mapping[str, Quantise] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "MXFP4": _mxfp4,
                                    "Q6_K": _q6_k, "Q5_K": _q5_k, "Q4_K": _q4_k}
"""Name of a format -> its function; those of language/composites/blocks.py that can be written."""


IN_PLACE_OF = {"Q6_K": "Q8_0", "Q5_K": "Q5_1", "Q4_K": "Q5_0"}
"""Format of blocks of 256 -> the one that rows of other lengths get, as in files of llama.cpp."""


def format_of_rows(format: str, size: Any) -> str | None:
    """Return the format in which rows of this length are stored where `format` is asked for; None if they are no whole blocks."""
    while isinstance(size, int) and size % FORMATS[format].values:
        if format not in IN_PLACE_OF:
            return None
        format = IN_PLACE_OF[format]
    return format if isinstance(size, int) and size else None


def quantized(x: Array, format: str, importance: Array | None = None, out: Array | None = None) -> Array:
    """Return the bytes u8[…, bytes] of numbers […, n] in a format, some rows at a time in two threads. importance: of each column,
    the mean square of what it is multiplied by; the error weighted by it is the least, but for Q8_0 and MXFP4, whose scale is that
    of the largest number. Without it blocks of 32 have the bytes of ggml's reference. out: contiguous array for the bytes."""
    block, function = FORMATS[format], QUANTISERS[format]
    rows = x.reshape(-1, block.values)
    columns = None if importance is None else np.asarray(importance, np.float32).reshape(-1, block.values)
    out = (np.empty((len(rows), block.nbytes), np.uint8) if out is None else out).reshape(-1, block.nbytes)
    step = PIECE // block.values

    def fill_rows(at: int) -> None:
        with np.errstate(all="ignore"):                             # a thread begins with numpy's warnings on
            piece = np.ascontiguousarray(rows[at:at + step].T, np.float32)
            weights = () if columns is None else (columns[np.arange(at, at + piece.shape[1]) % len(columns)].T,)
            parts = function(piece, *weights)
        out[at:at + step] = np.concatenate(parts).T

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill_rows, range(0, len(rows), step)))        # raises what a thread raised
    return out.reshape(*x.shape[:-1], x.shape[-1] // block.values * block.nbytes)


def _fewer_rows(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> list[TensorType] | None:
    """Return the type of rows of at most three blocks, and of so few that they are a little more than three pieces."""
    (x,) = types
    if not all(isinstance(size, int) for size in x.shape):
        return None
    values = FORMATS[attrs["format"]].values
    size = min(x.shape[-1], 3 * values)
    return [TensorType((min(math.prod(x.shape[:-1]), 3 * PIECE // size + 5), size), x.dtype)]


@library(direct=lambda roles, attrs, out_types: quantized(roles["x"], attrs["format"]), opaque=True,
         facts=OpFacts(sought=False, dtype_matters=True, determined=True, smaller=_fewer_rows, by_rows=True))
def quantize(x: Node, *, format: str) -> Node:
    """The blocks u8[…, bytes] of a format along the last axis of floats x[…, n], such that `dequantize` of them is near x.

    format: "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1" or "MXFP4" (n is a multiple of 32): the bytes are those of ggml's reference; or
    "Q4_K", "Q5_K", "Q6_K" (of 256), with scales of least squared error that are searched for here.
    It has no gradient, and no definition: codes are rounded, and where a number is half-way between two of them, arithmetic that is
    equal over the reals gives either. Raises AttributeValueError, DTypeError, ShapeError.
    """
    if format not in QUANTISERS:
        raise AttributeValueError(f"quantize to {format!r}", fix=f"one of {', '.join(QUANTISERS)}")
    block = FORMATS[format]
    if not x.dtype.is_float:
        raise DTypeError(f"quantize of {show(x)}", fix="floats")
    if not x.rank or not isinstance(x.shape[-1], int) or x.shape[-1] % block.values:
        raise ShapeError(f"quantize of {show(x)}", fix=f"a last axis of whole blocks: {format} has {block.values} numbers each")
    return fill(0, (*x.shape[:-1], x.shape[-1] // block.values * block.nbytes), u8)       # for its type alone


def without_blocks(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph that reads the numbers themselves wherever it quantises and dequantises them, and the formats."""
    formats: dict[str, None] = {}

    def replaced(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        if node.op is not dequantize or inputs[0].op is not quantize or inputs[0].attrs["format"] != node.attrs["format"]:
            return None
        formats[node.attrs["format"]] = None
        return cast(inputs[0].inputs[0], f32)

    return graph.with_roots(rebuild(graph.roots, replaced)), tuple(formats)
