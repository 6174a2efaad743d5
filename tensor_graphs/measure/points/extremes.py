"""extremes: generates legal but extreme values on which kernels go wrong, and chooses odd sizes of dims for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.dtypes import DType

Extreme = Literal["large", "equal", "wide", "sweep", "huge", "structured", "columns"]
"""kinds of extreme values. large: ±1e4, ±88 (the last whole number whose exp an f32 holds), ±1. equal: rows of one number, and rows
of four, so that the maximum occurs more than once. wide: rows of magnitudes spread evenly over four tenths of the dtype's exponents
(so that sums of many products are finite), of both signs, and rows below its smallest normal number. sweep: every row is a narrow
band, and the bands of all rows leave no gap: in every other row from -100 to 100, in the rest over magnitudes. Bands are needed as
an error is measured relative to the large values in its row: an exp that is wrong between 20 and 30 only shows nothing in a row
that holds 80. huge: bands of magnitudes without a gap from the smallest normal number to the largest; every fourth row has the
ends: the largest number, the smallest, powers of two; in another fourth, of several operands all but one are zero. structured: rows
of zeros, of one number, sorted both ways, with a single number, of alternating signs, with blocks of zeros, of −0. columns: the
structures of `structured` along the first axis."""

Hazard = Literal["even", "drifting", "padded", "one-sided", "neighbouring"]
"""kinds of values for some ops only (definition_points.py). even: one positive number for all elements, with an endless binary
fraction, so that each addition to a large accumulator is rounded the same way; of several operands all but the first are a power of
two. drifting: positive numbers that grow slowly from the first element to the last. padded: rows that begin with −∞. one-sided:
rows of numbers far below zero, or far above it. neighbouring: adjacent numbers of the dtype, the same few in each operand."""

Kind = Extreme | Hazard

SIZES: Mapping[Extreme, tuple[int, ...]] = {"large": (33, 65, 1), "equal": (65, 1, 31), "wide": (31, 33, 65),
                                                  "sweep": (257, 65, 33), "huge": (129, 33, 5), "structured": (37, 17, 5),
                                                  "columns": (17, 37, 5)}
"""kind -> sizes that are assigned to the dims in order of their names, cyclically"""

SWEEP, MAGNITUDES = 100.0, 20.0
"""largest magnitude in even rows of a sweep; binary exponents, up and down, of its odd rows (at most four tenths of the dtype's)"""

SMALL = (3, 2, 4)
"""sizes used instead of SIZES where those are too much work"""


def extreme_sizes(dims: Mapping[str, Dim], kind: Extreme, small: bool = False) -> dict[str, int]:
    """Return sizes of the dims for values of this kind, within the dims' bounds."""
    sizes = SMALL if small else SIZES[kind]
    return {name: d.clamp(sizes[i % len(sizes)], dim) for i, (name, dim) in enumerate(sorted(dims.items()))}


def extreme_values(rng: np.random.Generator, kind: Kind, shape: tuple[int, ...], dtype: DType, *,
                   positive: bool = False, first: int = 0, squared: bool = False, among: tuple[int, int] = (0, 1)) -> np.ndarray:
    """Return an array of values of this kind; rows run along the last axis, and in a single row elements alternate. positive: no
    value is negative. first: structure of the first row (of a single row, its only structure); for padded values the axis, counted
    from the right, along which rows run. squared: sums of products of two values must not overflow (a variance may be computed from
    squares). among: (index of this operand, number of operands with huge values): in every fourth row all operands but one are
    zero, as a sum shows only its largest magnitude."""
    if kind == "padded":
        by_rows = (*shape[:first], *shape[first:][1:], shape[first]) if shape else shape
        padded = np.where(begins_late(rng, by_rows), -np.inf, 3.0 * rng.standard_normal(by_rows)).astype(dtype.numpy)
        return np.ascontiguousarray(np.moveaxis(padded, -1, first)) if shape else padded
    if kind == "columns":
        turned = extreme_values(rng, "structured", (*shape[1:], *shape[:1]), dtype, positive=positive, first=first)
        return np.ascontiguousarray(np.moveaxis(turned, -1, 0)) if shape else turned
    size = shape[-1] if len(shape) > 1 else 1
    rows = int(np.prod(shape)) // size if size else 0
    values = np.empty((rows, size))
    even, odd = values[::2], values[1::2]
    match kind:
        case "large":
            most = min(1e4, float(dtype.max))
            values[...] = rng.choice([most, -most, 88.0, -88.0, 1.0, -1.0], values.shape)
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
        case "huge":
            share = OF_SQUARES if squared or dtype.itemsize == 8 else 1.0
            low, high = share * float(np.log2(dtype.smallest_normal)), share * float(np.log2(dtype.max))
            values[...] = np.exp2(low + (high - low) * (1 + _bands(rng, values.shape)) / 2) * rng.choice([-1.0, 1.0], values.shape)
            most = float(dtype.max) ** share
            ends = np.array([most, most / 2, 2.0 ** np.floor(high / 2), dtype.smallest_normal, dtype.smallest_normal / 4])
            values[::4] = rng.choice(ends, values[::4].shape) * rng.choice([-1.0, 1.0], values[::4].shape)
            own, count = among
            for i in range(1, rows, 4):
                values[i] *= (i // 4) % count == own
        case "even":
            number = 1.0 if among[0] else float(rng.choice(ENDLESS))
            values[...] = number * 2.0 ** int(rng.integers(-5, 2))
        case "drifting":
            values.reshape(-1)[...] = rng.uniform(0.5, 1.0) * (1.0 + np.arange(values.size) / max(1, values.size))
        case "neighbouring":
            numbers = np.array([1.1, -0.37, 1.5 * dtype.smallest_normal, float(dtype.max) ** 0.4])
            near = numbers.astype(dtype.numpy).astype(np.float64)
            step = np.exp2(np.floor(np.log2(np.abs(near)))) * dtype.epsilon
            row = np.arange(rows) % len(near)
            values[...] = near[row, None] + rng.integers(0, 3, values.shape) * step[row, None]
        case "structured":
            if len(shape) == 1:
                values = values.reshape(1, -1)
            _structure(rng, values, first)
    return (np.abs(values) if positive else values).astype(dtype.numpy).reshape(shape)


ENDLESS = (1.4, 1.6, 1.8)
"""0.7, 0.1 and 0.9 times powers of two: the sum of 2²² of these in one f32 accumulator is 4 % off, the sum of 4096 by 4e-5"""


def begins_late(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask of the elements before the first one that counts: cyclically in four rows all but the last, half of the row,
    none, and a random number between half and all but one (also in a single row). Rows run along the last axis."""
    if not shape or not shape[-1]:
        return np.zeros(shape, bool)
    size, rows = shape[-1], int(np.prod(shape[:-1]))
    before = rng.integers(size // 2, size, rows)
    if rows > 1:
        before[::4], before[1::4], before[2::4] = size - 1, size // 2, 0
    return np.asarray(np.arange(size) < before.reshape(*shape[:-1], 1))


ONE_SIDED = 8
"""number of distinct kinds of one-sided rows: four below zero, four above"""

FAR = 200.0
"""magnitude of one-sided rows that are not at the end of the dtype's range; exp(-FAR) is 0 in f32"""


def one_sided_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, *, axes: tuple[int, ...],
                     first: int = 0, power: bool = False) -> np.ndarray:
    """Return an array whose rows, along these axes, are below zero, then above: in turn all equal to the dtype's last number, near
    FAR, within the last power of two, infinite. first: kind of the first row. power: use one power of two in an entire row, for
    products with `rising_values`."""
    axes = tuple(axis % len(shape) for axis in axes)
    others = [size for axis, size in enumerate(shape) if axis not in axes]
    within = [shape[axis] for axis in axes]
    values = np.empty((int(np.prod(others)), int(np.prod(within))), np.float64 if dtype.is_float else dtype.numpy)
    for kind in range(ONE_SIDED):
        rows = values[(kind - first) % ONE_SIDED::ONE_SIDED]
        above, way = divmod(kind, ONE_SIDED // 2)
        end, whole = (dtype.max if above else dtype.min), dtype.is_integer
        if power:
            rows[...] = math.copysign(2.0 ** (8 if way % 2 else int(OF_PRODUCTS * math.log2(dtype.max))), end)
        elif way == 1:
            near = rng.integers(-3, 4, rows.shape) if whole else rng.uniform(-3.0, 3.0, rows.shape)
            rows[...] = np.clip(math.copysign(FAR, above - 0.5) + near, dtype.min, dtype.max)
        elif way == 2 and whole:
            low, high = sorted((int(end) // 2, int(end)))
            rows[...] = rng.integers(low, high, rows.shape, rows.dtype, endpoint=True)
        elif way == 2:
            rows[...] = end * rng.uniform(0.5, 1.0, rows.shape)
        else:
            rows[...] = math.copysign(math.inf, end) if way == 3 and dtype.has_infinity else end
    moved = np.moveaxis(values.reshape(*others, *within), range(len(others), len(shape)), axes)
    return np.ascontiguousarray(moved.astype(dtype.numpy))


def rising_values(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return 1, 2, 3, … along the first axis: of their products with a far number one is by far the largest, despite rounding."""
    rows = np.minimum(np.arange(1, 1 + math.prod(shape[:1])), dtype.max).reshape(shape[:1] + (1,) * (len(shape) - 1))
    return np.array(np.broadcast_to(rows, shape)).astype(dtype.numpy)


OF_PRODUCTS = 0.8
"""share of the exponents for factors: a sum of 2²⁵ such products does not overflow f32"""

STRUCTURES = 8

OF_SQUARES = 0.45
"""share of the exponents (up to 1.4e17 in f32) where products are summed; always for f64, as the oracle has no wider dtype"""


def _structure(rng: np.random.Generator, values: np.ndarray, first: int) -> None:
    """Fill the rows with the structures of `structured` values in cyclic order, beginning with number `first`."""
    size = values.shape[1]
    values[...] = rng.standard_normal(values.shape)
    for i, row in enumerate(values):
        match (first + i) % STRUCTURES:
            case 0:
                row[:] = 0.0
            case 1:
                row[:] = row[:1]
            case 2:
                row.sort()
            case 3:
                row[:] = -np.sort(-row)
            case 4:
                row[:] = 0.0
                row[rng.integers(0, size, 1 if size else 0)] = 1.5
            case 5:
                row[:] = np.abs(row) * np.where(np.arange(size) % 2, -1.0, 1.0)
            case 6:
                row[size // 2:] = 0.0
            case 7:
                row[:] = -0.0


def integer_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return integers of every bit length of the dtype, with both signs: arbitrary numbers, neighbours of powers of two, and the
    ends of the range."""
    low, high = int(dtype.min), int(dtype.max)
    count, bits = int(np.prod(shape)), high.bit_length()
    length = rng.integers(0, bits, count)
    power = np.left_shift(np.uint64(1), length.astype(np.uint64))           # the highest bit of each
    inside = power + (rng.integers(0, 1 << 63, count, dtype=np.uint64, endpoint=False) % power)
    near = power + rng.integers(0, 3, count).astype(np.uint64) - np.uint64(1)
    size = np.minimum(np.where(rng.random(count) < 0.3, near, inside), np.uint64(high)).astype(object)
    signed = np.where((rng.random(count) < 0.5) & (low < 0), -size, size)
    ends = np.array([low, high, 0, low + 1, high - 1], dtype=object)
    return np.where(rng.random(count) < 0.1, rng.choice(ends, count), signed).astype(dtype.numpy).reshape(shape)


def _bands(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return random values in -1 … 1: each row lies in one of as many equal bands as there are rows, in random order."""
    rows = max(1, shape[0])
    return (rng.permutation(shape[0])[:, None] + rng.uniform(0, 1, shape)) * (2 / rows) - 1
