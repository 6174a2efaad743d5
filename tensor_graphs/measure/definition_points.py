"""definition_points: chooses the points at which an op is compared because of particular constructs in its definition.

    a sum of 2¹³ terms and more   one number for all terms, and slowly growing numbers: the error of a single f32 accumulator grows
                                  with the number of terms, and random numbers of both signs hide it
    a maximum along an axis       rows that begin with −∞ or with masked elements: a blocked pass meets blocks of nothing else;
                                  rows far below zero: a maximum initialized with any finite number returns that number
    a comparison of operands      neighbouring numbers of one dtype

A user-registered kernel also runs many times under load, at small and at large sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.measure.definition_analysis import compares_operands, most_terms, one_sided_operands, padded_operands
from tensor_graphs.measure.points.extremes import ONE_SIDED
from tensor_graphs.measure.points.inputs import Point, is_big, pairs
from tensor_graphs.measure.points.point_plan import EACH_SECONDS, LITTLE, seconds

LONG, LONGEST_PADDED = 1 << 13, 2048
"""LONG: terms from which a single f32 accumulator may lose too much (4096 equal terms lose 4e-5). LONGEST_PADDED: largest size of
an axis that begins with padding; several blocks of any kernel"""

FEW = (2, 1)
"""sizes of all other dims next to a long one; the second is used where operands would be too large at the first"""


def hazard_points(signature: Signature, base: Mapping[str, int], seed: int) -> list[Point]:
    """Return the points for the constructs in a signature's definition; none where there are none or they take too long."""
    graph, points = signature.graph, long_sums(signature, seed)
    padded, longest = padded_operands(graph), None
    if padded.floats or padded.masks:
        longest = _largest(signature, padded.dims, base, LONGEST_PADDED)
        alone = {n: size if n in padded.dims else max(1, d.bounds(graph.dims[n])[0]) for n, size in (longest or {}).items()}
        points += [Point(pairs(sizes), seed + 2710 + i, extreme="padded")
                  for i, sizes in enumerate((longest, alone)) if sizes and (not i or sizes != longest)]
    points += one_sided(signature, longest or base, seed)
    if compares_operands(graph):
        points.append(Point(pairs(base), seed + 2720, extreme="neighbouring"))
    return points


def one_sided(signature: Signature, sizes: Mapping[str, int], seed: int) -> list[Point]:
    """Return points at which entire rows are on one side of zero: enough for all ONE_SIDED kinds of rows, as far as time allows."""
    operands, inputs = one_sided_operands(signature.graph), signature.graph.inputs
    if not operands.straight and not operands.multiplied:
        return []
    rows = [math.prod(int(size) for axis, size in enumerate(shape, -len(shape)) if axis not in axes)
            for name, axes in [*operands.straight.items(), *[*operands.multiplied.items()][:1]]
            for shape in [inputs[name].type.at(sizes).shape]]
    most = max(1, int(EACH_SECONDS / max(LITTLE, seconds(signature, sizes))))
    return [Point(pairs(sizes), seed + 2730 + first, extreme="one-sided", axis=first)
            for first in range(0, ONE_SIDED, max(1, min(rows)))][:most]


def long_sums(signature: Signature, seed: int) -> list[Point]:
    """Return two points with the longest affordable float sum and small sizes of all other dims; none below LONG terms."""
    graph, terms = signature.graph, most_terms(signature.graph)
    dims = frozenset(map(str, d.symbols(terms)))
    for few in FEW:
        sizes = _largest(signature, dims, dict.fromkeys(graph.dims, few), 1 << 62)
        if sizes is not None and d.evaluate(terms, sizes) >= LONG and not any(
                is_big(node.type.at(sizes)) for node in graph.inputs.values()):     # those have the same values at all points
            return [Point(pairs(sizes), seed + 2700, extreme="even"), Point(pairs(sizes), seed + 2701, extreme="drifting")]
    return []


def concurrent_points(signature: Signature, base: Point, points: Sequence[Point]) -> list[Point]:
    """Return the points to run many times next to another thread: the base, and the largest of `points` with ordinary values."""
    def cost(point: Point) -> float:
        return seconds(signature, point.binding, by_rows=True)

    ordinary = [p for p in points if p.form == "apart" and not (p.special or p.extreme or p.integers or p.like or p.perturbed)]
    largest = max((p for p in ordinary if cost(p) <= EACH_SECONDS), key=cost, default=base)
    return [replace(p, beside=True) for p in ({p.sizes: p for p in (base, largest)}).values()]


def _largest(signature: Signature, dims: frozenset[str], others: Mapping[str, int], most: int) -> dict[str, int] | None:
    """Return sizes with `dims` as large as affordable, up to `most`, and other dims as in `others`, all within their bounds; None
    where even the smallest take too long."""
    bounds = {n: d.bounds(dim) for n, dim in signature.graph.dims.items()}
    while True:
        sizes = {n: min(high, max(low, most if n in dims else others[n])) for n, (low, high) in bounds.items()}
        if seconds(signature, sizes) <= EACH_SECONDS:
            return sizes
        if most <= 1:
            return None
        most = min(most, max(sizes[n] for n in dims)) // 2 if dims else 0
