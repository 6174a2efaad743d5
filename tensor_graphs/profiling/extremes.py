"""extremes: legal values on which kernels go wrong, and sizes of dims to show them at: odd ones, one beyond a tile, and one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

Extreme = Literal["large", "equal", "wide", "sweep"]
"""large: ±1e4, ±88 (the last whole number whose exp an f32 holds), ±1. equal: rows of one number, and rows of four, so that the
maximum is there more than once. wide: rows of magnitudes spread evenly over four tenths of the dtype's exponents (so that sums of
many products are finite), of both signs, and rows below its smallest normal number. sweep: every row is a narrow band, and the
bands of all rows leave no gap: in every other row from -100 to 100, in the rest over magnitudes. A band, as an error is measured
beside what is large in its row: of an exp that is wrong between 20 and 30 only, nothing shows in a row that holds 80. Four kinds
and not six: a comparison costs the oracle 5 ms, and rows do not meet in most ops."""

SIZES: Mapping[Extreme, tuple[int, ...]] = {"large": (33, 65, 1), "equal": (65, 1, 31), "wide": (31, 33, 65),
                                                  "sweep": (257, 65, 33)}
"""of the dims, by name, in turn"""

SWEEP = 100.0
"""where the even rows of a sweep end"""

MAGNITUDES = 20.0
"""binary exponents, up and down, over which the odd rows of a sweep go, or four tenths of the dtype's, where those are fewer"""

SMALL = (3, 2, 4)
"""sizes instead, where those are too much work"""


def extreme_sizes(dims: Mapping[str, Dim], kind: Extreme, small: bool = False) -> dict[str, int]:
    """Sizes of the dims for values of this kind, within their bounds."""
    sizes = SMALL if small else SIZES[kind]
    out = {}
    for i, (name, dim) in enumerate(sorted(dims.items())):
        low, high = d.bounds(dim)
        out[name] = min(high, max(low, sizes[i % len(sizes)]))
    return out


def extreme_values(rng: np.random.Generator, kind: Extreme, shape: tuple[int, ...], dtype: DType, *,
                   positive: bool = False) -> np.ndarray:
    """An array of such values; rows run along the last axis, and in a single row it is elements that take turns. positive: none is
    below zero."""
    size = shape[-1] if len(shape) > 1 else 1
    rows = int(np.prod(shape)) // size if size else 0
    values = np.empty((rows, size))
    even, odd = values[::2], values[1::2]
    match kind:
        case "large":
            values[...] = rng.choice([1e4, -1e4, 88.0, -88.0, 1.0, -1.0], values.shape)
        case "equal":
            even[...] = rng.choice([-1.0, 0.5, 1.0, 2.0], even.shape)
            odd[...] = (rng.integers(1, 65, len(odd)) * rng.choice([-0.125, 0.125], len(odd)))[:, None]
        case "wide":
            reach = float(np.log2(dtype.max)) * 0.4
            even[...] = np.exp2(rng.uniform(-reach, reach, even.shape)) * rng.choice([-1.0, 1.0], even.shape)
            odd[...] = rng.uniform(-dtype.smallest_normal, dtype.smallest_normal, odd.shape)
        case "sweep":
            reach = min(MAGNITUDES, float(np.log2(dtype.max)) * 0.4)
            even[...] = SWEEP * _bands(rng, even.shape)
            odd[...] = np.exp2(reach * _bands(rng, odd.shape)) * rng.choice([-1.0, 1.0], odd.shape)
    return (np.abs(values) if positive else values).astype(dtype.numpy).reshape(shape)


def _bands(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Rows that share -1 … 1 out among them, each a band of its own; which has which is drawn."""
    rows = max(1, shape[0])
    return (rng.permutation(shape[0])[:, None] + rng.uniform(0, 1, shape)) * (2 / rows) - 1
