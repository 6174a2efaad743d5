"""random: counter-based random numbers. The same key gives the same numbers on every backend, and each element depends on its index
alone, so that any part of a tensor can be generated separately.

Source: Threefry-2x32, 20 rounds: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. A key is
u32[2]; element i of a tensor (in C order) is computed from the counter (0, i). A key used twice gives the same numbers: derive a
key for each purpose by encrypting another counter, `threefry2x32(key, x0, x1)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.atomic import fill, same_shape, show
from tensor_graphs.language.composite import library
from tensor_graphs.language.composites.elementary import cos, log
from tensor_graphs.language.dim_proofs import dim_ge
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType, f32, u32
from tensor_graphs.language.errors import DTypeError, ShapeError
from tensor_graphs.language.leaves import _shape
from tensor_graphs.language.node import Node
from tensor_graphs.language.op_facts import OpFacts
from tensor_graphs.language.operands import broadcast_to

__all__ = ["normal", "random_bits", "threefry2x32", "uniform"]

Roles = Mapping[str, np.ndarray]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA                                     # of the key schedule, from Skein's C240 folded to 32 bits
_ROUNDS = 20


def _check(name: str, key: Node) -> None:
    if key.dtype != u32:
        raise DTypeError(f"{name}: the key is {show(key)}", fix="two 32-bit words: tg.constant([seed, 0], tg.u32)")
    if key.shape != (2,):
        raise ShapeError(f"{name}: the key is {show(key)}", fix="two 32-bit words, u32[2]")


def _cipher(k0: Any, k1: Any, x0: Any, x1: Any, xor: Any, rotate: Any, number: Any) -> tuple[Any, Any]:
    """Return both 32-bit words after all rounds, for a type with + that wraps at 32 bits; xor, rotate, number: its operations."""
    schedule = (k0, k1, xor(xor(k0, k1), number(_PARITY)))
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for block in range(_ROUNDS // 4):
        for bits in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = xor(rotate(x1, bits), x0)
        x0 = x0 + schedule[(block + 1) % 3]
        x1 = x1 + schedule[(block + 2) % 3] + number(block + 1)
    return x0, x1


def _rotate_numpy(x: np.ndarray, bits: int) -> np.ndarray:
    return np.asarray((x << np.uint32(bits)) | (x >> np.uint32(32 - bits)))


def _threefry_numpy(key: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    words = np.asarray(key, dtype=np.uint32)
    shape = np.shape(x0)
    # of at least one axis: numpy warns when a scalar wraps, which is what these words are for
    flat0, flat1 = (np.asarray(x, dtype=np.uint32).reshape(-1) for x in (x0, x1))
    y0, y1 = _cipher(words[0:1], words[1:2], flat0, flat1, np.bitwise_xor, _rotate_numpy,
                     lambda n: np.full((1,), n, dtype=np.uint32))
    return y0.reshape(shape), y1.reshape(shape)


def _rotate(x: Node, bits: int) -> Node:
    """Return x rotated left: the product drops the bits that leave the word, the quotient is those bits."""
    return atomic.bit_xor(x * (1 << bits), x // (1 << (32 - bits)))


@library(direct=lambda roles, attrs, types: _threefry_numpy(roles["key"], roles["x0"], roles["x1"]), facts=OpFacts(closed=True))
def threefry2x32(key: Node, x0: Node, x1: Node) -> tuple[Node, Node]:
    """The counter (x0, x1) encrypted under key u32[2]: two tensors of random words u32[…], of the shape of x0 and x1.

    Raises DTypeError, ShapeError.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    _check("threefry2x32", key)
    for role, x in (("x0", x0), ("x1", x1)):
        if x.dtype != u32:
            raise DTypeError(f"threefry2x32: {role} is {show(x)}", fix="cast it to u32")
    shape = same_shape("threefry2x32", x0, x1)
    k0, k1 = (broadcast_to(key[i], shape) for i in range(2))
    y0, y1 = _cipher(k0, k1, x0, x1, atomic.bit_xor, _rotate, lambda n: fill(n, shape, u32))
    return y0, y1


def _counters(name: str, shape: Sequence[Dim]) -> Node:
    """Return the number of each element in C order, as u32[shape]."""
    sizes = _shape(shape)
    total: Dim = 1
    for s in sizes:
        total = total * s
    if dim_ge(2**32, total) is False:
        raise ShapeError(f"{name}: {d.format_dim(total)} elements, a counter of 32 bits has {2**32}",
                         fix="a key for each part")
    return atomic.reshape(atomic.iota((total,), 0, u32), sizes)


def _words(key: Node, counters: Node) -> tuple[Node, Node]:
    y0, y1 = threefry2x32(key, fill(0, counters.shape, u32), counters)
    return y0, y1


def _words_numpy(key: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    counters = np.arange(math.prod(shape), dtype=np.uint64).astype(np.uint32).reshape(shape)
    return _threefry_numpy(key, np.zeros_like(counters), counters)


def _bits_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    y0, y1 = _words_numpy(roles["key"], out_types[0].shape)
    return np.asarray(y0 ^ y1)


@library(direct=_bits_direct, facts=OpFacts(closed=True))
def random_bits(key: Node, *, shape: Sequence[Dim]) -> Node:
    """u32[shape] of independent random bits from key u32[2]: both words of each counter, xored.

    These are the bits of jax.random.bits (jax ≥ 0.5). Raises DTypeError, ShapeError.
    """
    _check("random_bits", key)
    y0, y1 = _words(key, _counters("random_bits", shape))
    return atomic.bit_xor(y0, y1)


def _precision(name: str, dtype: DType) -> int:
    """Return the number of random bits for a float of that dtype in [0, 1): 24, or as many as the dtype can represent exactly."""
    if dtype.kind != "float":
        raise DTypeError(f"{name}: the dtype is {dtype.name}", fix="a float dtype; random_bits gives integers")
    return min(24, 1 - round(math.log2(dtype.epsilon)))


def _unit(bits: Node, count: int, dtype: DType) -> Node:
    """Return the top `count` of 32 bits as a float in [0, 1)."""
    return atomic.cast(bits // (1 << (32 - count)), dtype) * 2.0**-count


def _uniform_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    count = _precision("uniform", out_types[0].dtype)
    return np.asarray((_bits_direct(roles, attrs, out_types) >> np.uint32(32 - count)) * 2.0**-count)


@library(direct=_uniform_direct, facts=OpFacts(dtype_matters=True, closed=True))
def uniform(key: Node, *, shape: Sequence[Dim], dtype: DType = f32) -> Node:
    """Floats in [0, 1), multiples of 2^-24: the top 24 bits of random_bits.

    f16 takes the top 11 bits and bf16 the top 8, which is what they hold exactly. Raises DTypeError, ShapeError.
    """
    _check("uniform", key)
    count = _precision("uniform", dtype)
    return _unit(random_bits(key, shape=shape), count, dtype)


def _normal_direct(roles: Roles, attrs: Mapping[str, Any], out_types: Any) -> np.ndarray:
    y0, y1 = _words_numpy(roles["key"], out_types[0].shape)
    radius = np.sqrt(-2.0 * np.log(((y0 >> np.uint32(8)).astype(np.float64) + 1.0) * 2.0**-24))
    return np.asarray(radius * np.cos((y1 >> np.uint32(8)) * (2.0 * np.pi * 2.0**-24)))


@library(direct=_normal_direct, facts=OpFacts(closed=True))
def normal(key: Node, *, shape: Sequence[Dim], dtype: DType = f32) -> Node:
    """Floats of mean 0 and variance 1 by Box and Muller (1958): √(−2 ln u)·cos(2π v), u in (0, 1] and v in [0, 1).

    u and v are the top 24 bits of the two words of one counter, so no element depends on another. |x| ≤ √(48 ln 2).
    Computed in f32 or wider. Raises DTypeError, ShapeError.
    """
    _check("normal", key)
    _precision("normal", dtype)
    inner = f32 if dtype.itemsize < 4 else dtype
    y0, y1 = _words(key, _counters("normal", shape))
    radius = atomic.sqrt(log(_unit(y0, 24, inner) + 2.0**-24) * -2.0)
    return atomic.cast(radius * cos(_unit(y1, 24, inner) * (2.0 * math.pi)), dtype)
