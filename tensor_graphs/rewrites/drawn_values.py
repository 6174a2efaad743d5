"""drawn_values: values that admission puts into the leaves of a rule's instance, so that a wrong rule shows.

Plain random numbers; all of one sign, leaf by leaf; of very large and very small size; and the numbers that are written in the
rule, with their neighbours. `grid` has all of these in every combination that a thousand points can hold, for several leaves at
once: that finds `x == 137 and y == 201`.
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
"""What rules over real numbers are compared at; 1e-40 is a denormal of float32."""

SIZES = (1e-30, 1e-10, 1e3, -1e3, 1e4, 1e6, -1e6, 1e10, -1e10, 1e20, 1e30, -1e30, 1e60)
DECADES = 30
"""Powers of ten that leaves reach up and down: a product of five of them is still within float64."""

MOST_NUMBERS = 16
POINTS = 1024
"""Of a grid."""

_STRUCTURAL = ("axis", "axes", "index", "shape", "bounds", "padding", "length")


def written(nodes: Iterable[Node]) -> tuple[int | float, ...]:
    """The numbers that stand in graphs: constants and attributes that are numbers. 0 and 1 are always drawn, so not among them."""
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
    """Return the values that a dtype can hold, as an array of it."""
    if dtype.kind == "float":
        with np.errstate(all="ignore"):
            array = np.array([float(v) for v in values], dtype=np.float64).astype(dtype.numpy)
        return array[np.isfinite(array.astype(np.float64))]
    return np.array([int(v) for v in values if int(dtype.min) <= v <= int(dtype.max)], dtype=dtype.numpy)


def _near(numbers: Sequence[int | float], dtype: DType) -> tuple[Array, Array]:
    """(the numbers themselves, what is around and between them)."""
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
    """Values for the leaves of one instance. special: infinities and NaN too; small: nothing large but numbers that are written."""
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
    """Return for each leaf of POINTS elements one coordinate of the grid, random values for the others: first the numbers with 0
    and ±1 in all combinations, up to half of the points; then combinations of everything."""
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
    """One index for each size: all combinations, or `count` random ones where there are more."""
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
