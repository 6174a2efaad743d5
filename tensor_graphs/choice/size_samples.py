"""size_samples: the sizes at which a graph is costed and measured: a few for each dim of the box that its plan serves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensor_graphs.language import dims as d
from tensor_graphs.language.conditions import Condition, all_hold, conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.paths.plan import given_sizes, midpoint
from tensor_graphs.paths.size_cells import MOST_DIMS, Cell

Index = tuple[int, ...]
"""position of a sample: a number for each axis"""

PIECES = {1: (2, 5, 17, 65), 2: (2, 9, 65), 3: (2, 33)}
"""number of dims in a box -> first sizes of the pieces of an axis, besides its lowest size; each piece has a sample"""

MOST_TOGETHER = 4096
"""most product of a sample's sizes: measuring a large batch of long rows would take all available time"""


@dataclass(frozen=True)
class Samples:
    """The sizes at which a graph is costed. box: the sizes that its plan serves; axes: the samples' sizes on each dim of the box;
    points: sample -> sizes of all dims of the graph; asked: the samples with the sizes that a caller named, if any."""

    box: Cell
    axes: tuple[tuple[int, ...], ...]
    points: Mapping[Index, dict[str, int]]
    asked: frozenset[Index]


def samples_of(graph: Graph, largest: Mapping[str, int], at: Mapping[str, int] | None,
               invariant: Collection[str] = ()) -> Samples:
    """Return the sizes at which `compile_graph` determines costs, with one size of each invariant dim. They end at the largest
    sizes of use, because comparing kernels that only larger sizes need would be wasted. Raises PlanError for sizes in `at` that no
    run can have."""
    at = given_sizes(graph, at, "at")
    typical = {n: min(largest[n], max(d.bounds(s)[0], at.get(n, midpoint(s)))) for n, s in graph.dims.items()}
    dims = table_dims(graph, invariant)
    box = Cell.of({n: (low, max(low, min(high, largest[n]))) for n in dims for low, high in [d.bounds(graph.dims[n])]})
    axes = tuple(tuple(_on_axis(low, high, at.get(n), len(dims))) for n, low, high in box.ranges)
    asked, conditions = [n for n in dims if n in at], conditions_of(graph.roots)
    points, named = {}, set()
    for index in itertools.product(*(range(len(axis)) for axis in axes)):
        sizes = {n: axis[i] for n, axis, i in zip(dims, axes, index, strict=True)}
        wanted = bool(asked) and all(sizes[n] == at[n] for n in asked)
        if wanted or not any(index) or len(dims) < 2 or math.prod(sizes.values()) <= MOST_TOGETHER:
            points[index] = _runnable(graph, conditions, typical, sizes, at)
            named |= {index} if wanted else set()
    return Samples(box, axes, points, frozenset(named))


def table_dims(graph: Graph, invariant: Collection[str] = ()) -> tuple[str, ...]:
    """Return the dims over which kernels are tabled: those in input shapes that are not invariant, limited to the MOST_DIMS with
    the widest ranges."""
    symbols = {str(x) for node in graph.inputs.values() for s in node.shape for x in d.symbols(s)}

    def width(name: str) -> float:
        low, high = d.bounds(graph.dims[name])
        return high / max(low, 1)

    widest = sorted(symbols - set(invariant), key=lambda n: (-width(n), n))[:MOST_DIMS]
    return tuple(n for n in graph.dims if n in widest)


def _on_axis(low: int, high: int, wanted: int | None, dims: int) -> Iterator[int]:
    """Yield the samples' sizes on an axis, one for each piece: `wanted` in the piece that contains it."""
    cuts = [low, *(c for c in PIECES[dims] if low < c <= high)]
    for first, following in itertools.pairwise((*cuts, high + 1)):
        last = following - 1
        yield wanted if wanted is not None and first <= wanted <= last else min(last, 4 * first if first > 4 else last)


def _runnable(graph: Graph, conditions: Sequence[Condition], typical: Mapping[str, int], sizes: Mapping[str, int],
              at: Mapping[str, int]) -> dict[str, int]:
    """Return sizes of all dims for a sample; dims outside of the box are set so that a run can have them, if possible."""
    binding = {**typical, **sizes}
    for name, symbol in graph.dims.items():                         # dims that may not exceed one of the box (m ≤ n) follow it
        alike = [size for n, size in sizes.items() if d.bounds(graph.dims[n]) == d.bounds(symbol)]
        if name not in sizes and name not in at and alike:
            binding[name] = min(binding[name], *alike)
    if not all_hold(conditions, binding):                           # n + p ≤ 256: what was not asked for gives way first
        lowest = {n: d.bounds(s)[0] for n, s in graph.dims.items()} | dict(sizes)
        asked = {**lowest, **{n: typical[n] for n in at if n not in sizes}}
        binding = next((b for b in (asked, lowest) if all_hold(conditions, b)), binding)
    return binding
