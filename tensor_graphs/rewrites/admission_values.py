"""admission_values: values that admission puts into the leaves of a rule's instance, so that a wrong rule is found.

An instance gets plain random numbers, numbers of one sign per leaf, very large and very small ones, or the numbers that are written
in the rule and their neighbours. `grid` combines these across leaves in a thousand points: that finds `x == 137 and y == 201`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from tensor_graphs.language import leaves
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.node import ArrayValue, Node, walk
from tensor_graphs.meaning.algebra import Array

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -3.0, 1e-3, np.inf, -np.inf, np.nan, 5e-324, 1e-40, 1e-30, 3.4e38, -1e30, 65504.0)
TAME = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-3, 1e-40)
"""Values at which rules over the real numbers are compared; 1e-40 is a denormal of float32."""

SIZES = (1e-30, 1e-10, 1e3, -1e3, 1e4, 1e6, -1e6, 1e10, -1e10, 1e20, 1e30, -1e30, 1e60)
DECADES = 30
"""Largest power of ten, up and down, of a leaf's values: a product of five of them is still within float64."""

MOST_NUMBERS = 16
POINTS = 1024
"""Number of points of a grid."""

_STRUCTURAL = ("axis", "axes", "index", "shape", "bounds", "padding", "length")


def written(nodes: Iterable[Node]) -> tuple[int | float, ...]:
    """Return the numbers in graphs: constants and numeric attributes. 0 and 1 are left out, as they are always drawn."""
    numbers: dict[int | float, None] = {}
    for node in walk(list(nodes)):
        for name, value in node.attrs.items():
            if isinstance(value, ArrayValue):
                numbers.update(dict.fromkeys(x.item() for x in np.unique(value.array())[:MOST_NUMBERS]))
            elif isinstance(value, float) or (isinstance(value, int) and name not in _STRUCTURAL
                                              and (node.op is leaves.CONSTANT or isinstance(node.op, CompositeOp))):
                numbers[value] = None
    return tuple(x for x in numbers if not isinstance(x, bool) and math.isfinite(x) and x not in (0, 1))[:MOST_NUMBERS]


def _held(values: Sequence[int | float], dtype: DType) -> Array:
    """Return the values that a dtype can hold, as an array of that dtype."""
    if dtype.kind == "float":
        with np.errstate(all="ignore"):
            array = np.array([float(v) for v in values], dtype=np.float64).astype(dtype.numpy)
        return array[np.isfinite(array.astype(np.float64))]
    return np.array([int(v) for v in values if int(dtype.min) <= v <= int(dtype.max)], dtype=dtype.numpy)


def _near(numbers: Sequence[int | float], dtype: DType) -> tuple[Array, Array]:
    """Return (the numbers, values around and between them), both as the dtype holds them."""
    exact = _held(numbers, dtype)
    few = list(numbers)[:4]
    ordered = sorted(numbers)
    around = [f for n in numbers for f in (-n, n + 1, n - 1, 2 * n, n / 2)]
    around += [f for a, b in itertools.permutations(few, 2) for f in (a - b, a + b)]
    around += [(a + b) / 2 for a, b in itertools.pairwise(ordered)]
    if dtype.kind != "float":
        return exact, _held([math.floor(f) for f in around if math.isfinite(f)], dtype)
    with np.errstate(all="ignore"):
        one = np.array([np.inf, -np.inf], dtype=dtype.numpy)
        neighbours = [np.nextafter(exact, end) for end in one]
    both = np.concatenate([_held(around, dtype), *neighbours])
    return exact, both[np.isfinite(both.astype(np.float64))]


def random_values(rng: np.random.Generator, drawn: Sequence[Node], numbers: Sequence[int | float], special: bool,
                  small: bool) -> dict[Node, Array]:
    """Return values for an instance's leaves. special: infinities and NaN, too. small: large numbers only if the rule has them."""
    how = str(rng.choice(["plain", "signs", "sizes", "numbers"], p=[0.5, 0.15, 0.15, 0.2]))
    return {node: _values(rng, node, how, numbers, special, small) for node in drawn}


def _values(rng: np.random.Generator, node: Node, how: str, numbers: Sequence[int | float], special: bool, small: bool) -> Array:
    shape, t = tuple(int(s) for s in node.shape), node.dtype
    if t.kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    values = _integers(rng, t, shape) if t.is_integer else _floats(rng, t, shape, how, special, small)
    if how != "numbers":
        return values
    exact, around = _near(numbers, t)
    for pool, share in ((around, 0.3), (exact, 0.5)):
        if pool.size:
            values = np.where(rng.random(shape) < share, rng.choice(pool, shape), values).astype(t.numpy)
    return values


def _integers(rng: np.random.Generator, t: DType, shape: tuple[int, ...]) -> Array:
    info = np.iinfo(t.numpy)
    wide = rng.integers(info.min, info.max, shape, dtype=t.numpy, endpoint=True)
    near = np.clip(rng.integers(-3, 8, shape), info.min, info.max).astype(t.numpy)
    edge = rng.choice(np.array([info.min, info.max, 0, 1], dtype=t.numpy), shape)
    kind = rng.random(shape)
    return np.asarray(np.where(kind < 0.4, wide, np.where(kind < 0.8, near, edge)), dtype=t.numpy)


def _floats(rng: np.random.Generator, t: DType, shape: tuple[int, ...], how: str, special: bool, small: bool) -> Array:
    drawn = rng.standard_normal(shape) * (1.0 if small else float(rng.choice([1.0, 1.0, 100.0])))
    if how == "signs" or (how == "sizes" and small):
        return np.asarray(float(rng.choice([1.0, -1.0])) * np.abs(drawn)).astype(t.numpy)
    if how == "sizes":
        most = min(DECADES, math.log10(t.max) - 1)
        return np.asarray(np.clip(drawn * 10.0 ** rng.uniform(-most, most), t.min, t.max)).astype(t.numpy)
    share = float(rng.choice([0.0, 0.1, 0.4]))
    with np.errstate(all="ignore"):
        chosen = rng.choice(np.array(SPECIAL if special else TAME), shape)
        return np.asarray(np.where(rng.random(shape) < share, chosen, drawn)).astype(t.numpy)


def grid(rng: np.random.Generator, drawn: Sequence[Node], numbers: Sequence[int | float], special: bool,
         small: bool) -> dict[Node, Array]:
    """Return values for all leaves: one coordinate of the grid for each leaf of POINTS elements, random values for other leaves. Up
    to half of the points combine the rule's numbers, 0 and ±1; the rest combine all candidates."""
    axes = [node for node in drawn if math.prod(int(s) for s in node.shape) == POINTS]
    values = random_values(rng, [node for node in drawn if node not in axes], numbers, special, small)
    pools, first = [], []
    for node in axes:
        if node.dtype.kind == "bool":
            pools.append(np.array([False, True]))
            first.append(2)
            continue
        exact, around = _near(numbers, node.dtype)
        start = np.concatenate([exact, _held((0, 1, -1), node.dtype)])
        pools.append(np.concatenate([start, around, _base(node.dtype, special, small)]))
        first.append(len(start))
    places = _combinations(rng, first, POINTS // 2)
    places += _combinations(rng, list(map(len, pools)), POINTS - len(places))
    while axes and len(places) < POINTS:
        places += places[:POINTS - len(places)]
    for i, (node, pool) in enumerate(zip(axes, pools, strict=True)):
        values[node] = pool[[place[i] for place in places]].reshape([int(s) for s in node.shape])
    return values


def _combinations(rng: np.random.Generator, sizes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return tuples of one index per size: all combinations, or `count` random ones if there are more."""
    if math.prod(sizes) <= count:
        return list(itertools.product(*map(range, sizes)))
    return [tuple(row) for row in np.stack([rng.integers(0, size, count) for size in sizes], axis=1).tolist()]


def _base(t: DType, special: bool, small: bool) -> Array:
    if t.kind != "float":
        info = np.iinfo(t.numpy)
        return _held((0, 1, -1, 2, 3, -2, 7, info.min, info.max, info.max // 2, info.min + 1), t)
    tame = np.array([*TAME, -0.5, 5.0, -7.0], dtype=np.float64)
    with np.errstate(all="ignore"):
        odd = np.array(SPECIAL if special else (), dtype=np.float64).astype(t.numpy)
        return np.concatenate([_held([*tame, *(() if small else SIZES)], t), odd])
