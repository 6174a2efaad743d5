"""blocks: values stored as blocks of bytes, each a few codes of 4 to 8 bits and what scales them, as in GGUF files.

The layout of each format is written once, as a function of a small algebra: of nodes it is the definition of `dequantize`, of
arrays `dequantized`, which computes the same f32 numbers, bit for bit. Sources: ggml-quants.c of github.com/ggml-org/ggml
(layouts); Open Compute Project, Microscaling Formats Specification 1.0, 2023 (MXFP4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language.atomic import show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites.indexing import concat
from tensor_graphs.language.composites.products import linear, times_rows
from tensor_graphs.language.composites.rounded import LEVELS, rounded
from tensor_graphs.language.dtypes import f16, f32, i8, i32, u8
from tensor_graphs.language.errors import AttributeValueError, DTypeError, ShapeError
from tensor_graphs.language.leaves import constant
from tensor_graphs.language.node import Node, TensorType
from tensor_graphs.language.op_facts import OpFacts

__all__ = ["block_linear", "dequantize", "rounded_block_linear"]

Array = np.ndarray[Any, Any]


class _Nodes:
    """The algebra of a definition. Bytes are u8[…, bytes]."""

    def half(self, x: Any) -> Any: return atomic.cast(atomic.bitcast(x, f16), f32)
    def signed(self, x: Any) -> Any: return atomic.cast(atomic.bitcast(x, i8), f32)
    def number(self, x: Any) -> Any: return atomic.cast(x, f32)
    def masks(self, *values: int) -> Any: return constant(np.array(values, np.uint8))
    def is_set(self, x: Any) -> Any: return atomic.cast(atomic.not_equal(x, x - x), f32)
    def join(self, *parts: Any) -> Any: return concat(*parts, axis=-1)
    def entry(self, table: Array, x: Any) -> Any: return atomic.gather(constant(table), atomic.cast(x, i32))


@dataclass(frozen=True)
class _Arrays:
    """The algebra of numpy arrays, with numbers of a dtype."""

    dtype: Any

    def half(self, x: Any) -> Any: return np.ascontiguousarray(x).view(np.float16).astype(self.dtype)
    def signed(self, x: Any) -> Any: return x.view(np.int8).astype(self.dtype)
    def number(self, x: Any) -> Any: return x.astype(self.dtype)
    def masks(self, *values: int) -> Any: return np.array(values, np.uint8)
    def is_set(self, x: Any) -> Any: return (x != 0).astype(self.dtype)
    def join(self, *parts: Any) -> Any: return np.concatenate(parts, axis=-1)
    def entry(self, table: Array, x: Any) -> Any: return table.take(x)


_Algebra = _Nodes | _Arrays


def _grid(x: Any, *sizes: int) -> Any:
    """Return […, n] as […, *sizes]."""
    return x.reshape((*x.shape[:-1], *sizes))


def _flat(x: Any, axes: int = 2) -> Any:
    """Return the last axes as one."""
    size = 1
    for n in x.shape[-axes:]:
        size *= n
    return x.reshape((*x.shape[:-axes], size))


def _nibbles(a: _Algebra, x: Any) -> Any:
    """Return the low four bits of all bytes, then the high ones."""
    return a.join(x & 15, x >> 4)


def _bits(a: _Algebra, x: Any) -> Any:
    """Return each bit of each byte, the lowest first, as 0.0 or 1.0."""
    return a.is_set(x[..., None] & a.masks(1, 2, 4, 8, 16, 32, 64, 128))


def _q8_0(a: _Algebra, x: Any) -> Any:
    return a.signed(x[..., 2:]) * a.half(x[..., :2])


def _q4_0(a: _Algebra, x: Any) -> Any:
    return (a.number(_nibbles(a, x[..., 2:])) - 8) * a.half(x[..., :2])


def _q4_1(a: _Algebra, x: Any) -> Any:
    return a.number(_nibbles(a, x[..., 4:])) * a.half(x[..., :2]) + a.half(x[..., 2:4])


def _five(a: _Algebra, low: Any, high: Any) -> Any:
    """Return the codes of 5 bits: u8[…, 16] of low bits, u8[…, 4] of high ones."""
    return a.number(_nibbles(a, low)) + _flat(_bits(a, high)) * 16


def _q5_0(a: _Algebra, x: Any) -> Any:
    return (_five(a, x[..., 6:], x[..., 2:6]) - 16) * a.half(x[..., :2])


def _q5_1(a: _Algebra, x: Any) -> Any:
    return _five(a, x[..., 8:], x[..., 4:8]) * a.half(x[..., :2]) + a.half(x[..., 2:4])


def _scales(a: _Algebra, x: Any) -> tuple[Any, Any]:
    """Return the scale and the minimum of each of the eight parts of a block, f32[…, 8, 1]: six bits each, in x[..., 4:16], times
    the halves in x[..., :4]."""
    low, least, high = x[..., 4:8], x[..., 8:12], x[..., 12:16]
    scale = a.join(low & 63, (high & 15) + (low >> 6) * 16)
    minimum = a.join(least & 63, (high >> 4) + (least >> 6) * 16)
    return _grid(a.number(scale) * a.half(x[..., :2]), 8, 1), _grid(a.number(minimum) * a.half(x[..., 2:4]), 8, 1)


def _k_codes(a: _Algebra, x: Any) -> Any:
    """Return the low four bits of the codes, f32[…, 8, 32], of u8[…, 128]: each 32 bytes hold two parts of a block."""
    return a.number(_grid(_flat(_nibbles(a, _grid(x, 4, 32))), 8, 32))


def _q4_k(a: _Algebra, x: Any) -> Any:
    scale, minimum = _scales(a, x)
    return _flat(_k_codes(a, x[..., 16:]) * scale - minimum)


def _q5_k(a: _Algebra, x: Any) -> Any:
    scale, minimum = _scales(a, x)
    masks = _grid(a.masks(1, 2, 4, 8, 16, 32, 64, 128), 8, 1)           # bit i of each of the 32 bytes belongs to part i
    high = a.is_set(_grid(x[..., 16:48], 1, 32) & masks)
    return _flat((_k_codes(a, x[..., 48:]) + high * 16) * scale - minimum)


def _q6_k(a: _Algebra, x: Any) -> Any:
    high = _grid(x[..., 128:192], 2, 32)
    codes = _nibbles(a, _grid(x[..., :128], 2, 64)) + a.join(high & 3, (high >> 2) & 3, (high >> 4) & 3, high >> 6) * 16
    scale = a.signed(x[..., 192:208]) * a.half(x[..., 208:])
    return _flat((_grid(_flat(a.number(codes)), 16, 16) - 32) * _grid(scale, 16, 1))


E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Twice the numbers of f4e2m1, as the scale is half of the block's."""
HALF_E8M0 = np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)
_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _mxfp4(a: _Algebra, x: Any) -> Any:
    return a.entry(E2M1, _nibbles(a, x[..., 1:])) * a.entry(HALF_E8M0, x[..., :1])


def _iq4_nl(a: _Algebra, x: Any) -> Any:
    return a.entry(_IQ4_NL, _nibbles(a, x[..., 2:])) * a.half(x[..., :2])


@dataclass(frozen=True)
class BlockFormat:
    """A format: a block of `nbytes` bytes holds `values` numbers, which `decode` computes from u8[…, nbytes]."""

    values: int
    nbytes: int
    decode: Callable[[_Algebra, Any], Any]


FORMATS: Mapping[str, BlockFormat] = {
    "Q8_0": BlockFormat(32, 34, _q8_0), "Q4_0": BlockFormat(32, 18, _q4_0), "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0), "Q5_1": BlockFormat(32, 24, _q5_1), "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k), "Q6_K": BlockFormat(256, 210, _q6_k), "MXFP4": BlockFormat(32, 17, _mxfp4),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl)}
"""Name of a format, as GGUF spells it -> its row."""


@library(facts=OpFacts(sought=False))
def dequantize(x: Node, *, format: str) -> Node:
    """The f32 numbers […, n] in u8[…, bytes]: blocks of a format along the last axis.

    format: "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "IQ4_NL" (32 numbers), or "Q4_K", "Q5_K", "Q6_K" (256). Products and
    sums are rounded to f32 one by one. Raises AttributeValueError, DTypeError, ShapeError.
    """
    block = FORMATS.get(format)
    if block is None:
        raise AttributeValueError(f"dequantize of {format!r}", fix=f"one of {', '.join(FORMATS)}")
    if x.dtype is not u8:
        raise DTypeError(f"dequantize of {show(x)}", fix="the bytes of blocks are u8")
    if not x.rank or not isinstance(x.shape[-1], int) or x.shape[-1] % block.nbytes:
        raise ShapeError(f"dequantize of {show(x)}", fix=f"a last axis of whole blocks: {format} has {block.nbytes} bytes each")
    blocks = x.reshape((*x.shape[:-1], x.shape[-1] // block.nbytes, block.nbytes))
    return _flat(block.decode(_Nodes(), blocks))


def dequantized(x: Array, format: str, dtype: Any = np.float32) -> Array:
    """Return the numbers that `dequantize` computes, of an array of bytes; in float64 without its roundings."""
    block = FORMATS[format]
    with np.errstate(all="ignore"):
        values = block.decode(_Arrays(dtype), x.reshape(*x.shape[:-1], x.shape[-1] // block.nbytes, block.nbytes))
    return np.asarray(values.reshape(*x.shape[:-1], x.shape[-1] // block.nbytes * block.values), dtype)


PIECE = 1 << 18
"""Numbers of a weight that the direct evaluation of a product has in float64 at a time."""


def _block_linear_direct(roles: Mapping[str, Array], attrs: Mapping[str, Any], out_types: Any) -> Array:
    x, blocks = roles["x"], roles["blocks"]
    step = max(1, PIECE // max(1, x.shape[-1]))
    pieces = [times_rows(x, dequantized(blocks[i:i + step], attrs["format"], np.float64)) for i in range(0, len(blocks), step)]
    out = np.concatenate(pieces, axis=-1) if pieces else np.zeros((*x.shape[:-1], 0))
    with np.errstate(all="ignore"):
        return np.asarray(out + roles["bias"] if "bias" in roles else out)


def _fewer_blocks(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> list[TensorType] | None:
    """Return the types of a product of as many rows of x with fewer and shorter rows of weights, if there are."""
    x, (rows, nbytes) = types[0], types[1].shape
    block = FORMATS[attrs["format"]]
    if not isinstance(rows, int) or not isinstance(nbytes, int):
        return None
    count, rows = nbytes // block.nbytes, min(rows, 128 + rows % 64)
    count = min(count, 8 + count % 8)
    fewer = [TensorType((*x.shape[:-1], count * block.values), x.dtype), TensorType((rows, count * block.nbytes), u8)]
    return [*fewer, *(TensorType((rows,), t.dtype) for t in types[2:])]


@library(direct=_block_linear_direct, facts=OpFacts(product=True, sought=False, joined=False, smaller=_fewer_blocks))
def block_linear(x: Node, blocks: Node, bias: Node | None = None, *, format: str) -> Node:
    """x[…, k] · Wᵀ + bias[out] = […, out] in f32, where W[out, k] is `dequantize` of blocks u8[out, bytes].

    A kernel reads the bytes as they are, where `linear` of `dequantize` reads four bytes a number; a graph of those two is
    compiled as this op on devices that have a kernel of it. Raises AttributeValueError, DTypeError, ShapeError.
    """
    if x.dtype is not f32:
        raise DTypeError(f"block_linear of {show(x)}", fix="x of f32; of another dtype, linear(x, dequantize(blocks, format=…))")
    return linear(x, dequantize(blocks, format=format), bias)


@library(direct=_block_linear_direct, facts=OpFacts(product=True, licence=True, sought=False, joined=False, smaller=_fewer_blocks))
def rounded_block_linear(x: Node, blocks: Node, bias: Node | None = None, *, format: str, to: str) -> Node:
    """x[…, k] · Wᵀ + bias[out] = […, out] in f32, with x `rounded` to "int8" or "int8x2" first; see block_linear.

    A kernel multiplies integers and scales their sums. Raises AttributeValueError, DTypeError, ShapeError.
    """
    if to not in LEVELS:
        raise AttributeValueError(f"rounded_block_linear to {to!r}", fix=f"one of {', '.join(LEVELS)}")
    return block_linear(rounded(x, to=to), blocks, bias, format=format)
