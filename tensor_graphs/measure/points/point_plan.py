"""point_plan: draws points so that a verdict covers the declared range: sizes of each dim, layouts of operands, kinds of values.

Each dim goes over its entire range while the others are small or minimal: both ends, and one random size in each of BINS pieces of
its logarithm, so that a kernel that is wrong on a tenth of that is run there. Then come a few points at which all dims vary. Slow
points are left out, except the largest affordable. For the oracle, rows of a row-wise op are copies of a few
(`rows_are_independent`). The seed is the judge's secret, so no kernel knows the points."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.costs.roofline import work
from tensor_graphs.devices.device_registry import HOST
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import device_of
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim, has_dims
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.points.fewer_rows import same_rows
from tensor_graphs.measure.points.inputs import (
    SPECIALS,
    Form,
    Point,
    is_big,
    is_held,
    is_index,
    line_bytes,
    make_inputs,
    rows_read_by,
    take_rows,
)
from tensor_graphs.measure.points.single_op_plans import views_graph
from tensor_graphs.paths.copies import dense, strided
from tensor_graphs.paths.lower import read_in_place
from tensor_graphs.paths.residency import Whereabouts, pieces_of

log = logging.getLogger(__name__)

BINS = 20
"""pieces of a dim's range, of equal size in its logarithm: any band of a tenth of the range contains an entire piece"""

SMALL_SIZES, TOGETHER = (1, 2, 3, 5, 7), 4
"""sizes of the other dims; number of pieces of each dim's range for points at which all dims vary"""

FEW, MANY, SHARE_OF_FEW = (2, 8), (9, 80), 0.1
"""ranges of dims at points with a layout: few and many rows, as a kernel may be wrong about many and right about few; share of the
other points that have few rows"""

BYTES_PER_SECOND, FLOPS_PER_SECOND, ORACLE_FLOPS = 3e8, 1e10, 1e9
"""assumed rates of a comparison on a slow machine: generating, sending and comparing values; the kernel; the oracle"""

EACH_SECONDS, ALL_SECONDS, LITTLE = 0.15, 0.3, 3e-3
"""seconds: limit for one point, limit for the points of one dim together, and time that is always affordable"""

FEW_ROWS = 24
"""number of distinct rows where all other rows are copies of them"""

INDEPENDENT: dict[tuple[Signature, str], bool] = {}
"""(signature, dim) -> whether its rows are independent (cache)"""


def seconds(signature: Signature, sizes: Mapping[str, int], by_rows: bool = False) -> float:
    """Return the estimated time of a comparison at these sizes. by_rows: the oracle computes only a few rows."""
    _, flops = work(signature, tuple((n, sizes[n]) for n in signature.dim_names))
    graph = signature.graph
    inputs = {name: node.type.at(sizes) for name, node in graph.inputs.items()}
    tables = {name for name, t in inputs.items() if is_big(t) and rows_read_by(graph, name)}            # of these a line is made
    traffic = sum(line_bytes(t) if name in tables else int(t.nbytes()) for name, t in inputs.items())
    traffic += sum(int(node.type.at(sizes).nbytes()) for node in graph.outputs.values())                # made, and compared
    return traffic / BYTES_PER_SECOND + flops / (FLOPS_PER_SECOND if by_rows else ORACLE_FLOPS)


def sizes_of(dim: d.Dim, draw: random.Random) -> list[int]:
    """Return both ends of a dim's range and a random size in each of BINS pieces, uniform in the logarithm."""
    low, high = d.bounds(dim)
    first = max(low, 1)
    reach = math.log(high + 1) - math.log(first)
    drawn = {int(first * math.exp(reach * (i + draw.random()) / BINS)) for i in range(BINS)}
    return sorted({low, high, *(d.clamp(size, dim) for size in drawn)})


def size_points(signature: Signature, seed: int) -> list[Point]:
    """Return points that vary one dim over its range while the others are minimal or small; per dim the largest affordable point,
    all quick ones, and as many others as time allows."""
    draw, points = random.Random(seed), []
    dims = signature.graph.dims
    for number, (name, dim) in enumerate(sorted(dims.items())):
        rows_free = rows_are_independent(signature, name)
        every, lowest = [], draw.randrange(2)
        for i, size in enumerate(sizes_of(dim, draw)):
            sizes = {n: d.clamp(1 if i % 2 == lowest else draw.choice(SMALL_SIZES), other) for n, other in dims.items()}
            sizes[name] = size
            by_rows = rows_free and size > 2 * FEW_ROWS >= 2 * d.bounds(dim)[0]
            every.append((sizes, by_rows, seconds(signature, sizes, by_rows)))
        affordable = [candidate for candidate in every if candidate[2] <= EACH_SECONDS and is_held(signature.graph, candidate[0])]
        chosen = affordable[-1:]
        spent = sum(candidate[2] for candidate in chosen)
        rest = affordable[:-1]
        for candidate in [e for e in rest if e[2] <= LITTLE] + draw.sample(dear := [e for e in rest if e[2] > LITTLE], len(dear)):
            if candidate[2] <= LITTLE or spent + candidate[2] <= ALL_SECONDS:
                chosen.append(candidate)
                spent += candidate[2]
        for i, (sizes, by_rows, _) in enumerate(chosen):
            rows = (name, FEW_ROWS) if by_rows else None
            points.append(Point(tuple(sorted(sizes.items())), seed + 100 * (number + 1) + i, rows=rows))
    return points


def together_points(signature: Signature, seed: int) -> list[Point]:
    """Return points at which all of several dims vary: each dim is once in each of TOGETHER pieces of its range, in random order.
    Where a point takes too long, or more memory than there is to compare it, its largest dim is halved until it does not."""
    draw, points, dims = random.Random(seed + 2), list[Point](), signature.graph.dims
    if len(dims) < 2:
        return points
    orders = {name: draw.sample(range(TOGETHER), TOGETHER) for name in sorted(dims)}
    for i in range(TOGETHER):
        sizes = {}
        for name, order in orders.items():
            low, high = d.bounds(dims[name])
            first = max(low, 1)
            size = first * math.exp((math.log(high + 1) - math.log(first)) * (order[i] + draw.random()) / TOGETHER)
            sizes[name] = min(high, max(low, int(size)))
        while seconds(signature, sizes) > EACH_SECONDS / 2 or not is_held(signature.graph, sizes):
            largest = max(sizes, key=lambda name: sizes[name] / max(1, d.bounds(dims[name])[0]))
            if sizes[largest] // 2 < d.bounds(dims[largest])[0]:
                break
            sizes[largest] //= 2
        else:
            points.append(Point(tuple(sorted(sizes.items())), seed + 800 + i))
    return points


def rows_are_independent(signature: Signature, dim: str) -> bool:
    """Return whether rows along a dim, on every axis of this dim, are independent of each other and of their position: the result
    for chosen rows is the chosen rows of the full result. Tested on a few rows, as it need not be certain: before a kernel is
    refused all rows are computed."""
    key = signature, dim
    if key not in INDEPENDENT:
        INDEPENDENT[key] = _independent(signature.graph, dim, signature.spec.attrs)
    return INDEPENDENT[key]


def _independent(graph: Graph, dim: str, attrs: Mapping[str, Any]) -> bool:
    def along(node: Node) -> bool | None:
        """Return whether the node has rows along the dim; None if the dim is part of a size in another form."""
        exactly = [isinstance(s, d.Expr) and str(s) == dim for s in node.shape]
        within = [dim in map(str, d.symbols(s)) for s in node.shape]
        return None if exactly != within else any(exactly)

    places = [along(node) for node in (*graph.inputs.values(), *graph.outputs.values())]
    if None in places or not any(places[:len(graph.inputs)]) or not all(places[len(graph.inputs):]) or has_dims(attrs):
        return False
    sizes = {n: d.clamp(3, s) for n, s in graph.dims.items()}
    low, high = d.bounds(graph.dims[dim])
    counts = [c for c in (9, 7, 4) if low <= c <= high]
    if len(counts) < 2 or any(is_big(node.type.at(sizes | {dim: counts[0]})) for node in graph.inputs.values()):
        return False
    rng = np.random.default_rng(0)
    try:
        every = make_inputs(graph, sizes | {dim: counts[0]}, 1)
        whole = interpret(graph, every, dims=sizes | {dim: counts[0]}).outputs
        for count in counts[1:]:
            taken = rng.integers(0, counts[0], count)
            rows = {name: take_rows(array, graph.inputs[name], dim, taken) for name, array in every.items()}
            some = interpret(graph, rows, dims=sizes | {dim: count}).outputs
            if not same_rows(some, {name: take_rows(whole[name], node, dim, taken) for name, node in graph.outputs.items()}):
                return False
    except (TensorGraphsError, ValueError, IndexError) as e:
        log.debug("rows of %s are not chosen along %s: %s", graph, dim, e)
        return False
    return True


def layout_points(kernel: Kernel, signature: Signature, base: Mapping[str, int], seed: int) -> list[Point]:
    """Return points for every layout in which a plan passes operands to this kernel: contiguous, unaligned, and, where the kernel
    takes them, with gaps, stride 0 or reversed (all operands, and one at a time); outputs in place; and two operands in the same
    memory."""
    graph, draw = signature.graph, random.Random(seed + 1)
    ranks = max((len(node.shape) for node in graph.inputs.values()), default=0)
    ways: list[tuple[Form, int, str | None]] = [("in_place", i, None) for i in ways_in_place(kernel, signature)]
    if graph.inputs:
        ways += [("views", 0, None), ("unaligned", 0, None)]
    if not kernel.contiguous:
        ways += [(form, 0, None) for form in ("windows", "strided", "windows", "strided")] if ranks else []
        ways += [("repeated", axis, None) for axis in range(ranks)]
        ways += [("backwards", axis, None) for axis in range(ranks)] if not kernel.positive_strides else []
    elif kernel.strided is not None:
        ways += taken_ways(kernel, graph)
    points = []
    for i, (form, axis, only) in enumerate(ways):
        few = (form, axis, only) in ways[:i] or (ways.count((form, axis, only)) == 1 and draw.random() < SHARE_OF_FEW)
        for reach in ((FEW,) if few else (MANY, FEW)):              # one row says nothing about what lies between rows
            sizes = {n: d.clamp(draw.randint(*reach), dim) for n, dim in graph.dims.items()}
            if i and seconds(signature, sizes) <= 10 * LITTLE and _fit(graph, sizes):
                break
        else:
            sizes = dict(base)
        points.append(Point(tuple(sorted(sizes.items())), seed + 900 + i, form=form, axis=axis, only=only))
    pair: Sequence[Form] = ("same", "overlapping")
    sizes_of_pair = tuple(sorted(base.items()))
    return points + [Point(sizes_of_pair, seed + 950 + i, form=form) for i, form in enumerate(pair) if _has_pair(graph, base)]


def ways_in_place(kernel: Kernel, signature: Signature) -> range:
    """Return the indices of the (output, operand) pairs that may share memory, and if several, one more for all together."""
    count = len(kernel.sharing(signature.spec).pairs)
    return range(count + (count > 1))


def taken_ways(kernel: Kernel, graph: Graph) -> list[tuple[Form, int, str | None]]:
    """Return (form, axis, the only operand with this layout or None) for the layouts in which this kernel receives non-contiguous
    operands, as lowering decides."""
    ranks = max((len(node.shape) for node in graph.inputs.values()), default=0)
    names = [None, *graph.inputs] if len(graph.inputs) > 1 else [None]
    by_axis: Sequence[Form] = ("gaps", "repeated", "backwards")
    whole: Sequence[Form] = ("turned", "uniform", "windows", "strided")
    ways: list[tuple[Form, int, str | None]] = []
    asked: dict[Lie, bool] = {}
    for form, axis in [(form, axis) for form in by_axis for axis in range(ranks)] + [(form, 0) for form in whole]:
        for only in names:
            left = [n for n in graph.inputs if only not in (None, n)]
            if _handed_over(kernel, views_graph(graph, form, axis, left), asked):
                ways.append((form, axis, only))
    return ways


Lie = tuple[tuple[tuple[Dim, ...], tuple[Dim, ...]], ...]
"""shapes and strides of operands"""


def _handed_over(kernel: Kernel, views: Graph, asked: dict[Lie, bool]) -> bool:
    """Return whether a kernel of one op receives a non-contiguous operand. asked: cache of results by layout: several forms give
    operands of few axes the same layout, and a generated kernel is generated again for each."""
    root = next(iter(views.outputs.values()))
    node = root.inputs[0] if root.op is leaves.ITEM else root
    lying = strided(views.alike, _sent(views, device_of(kernel.backend).name))     # 0.2 ms; a plan takes 2, and of a GPU 50
    ins = [lying.get(i) or dense(i.type) for i in node.inputs]
    lie = tuple((x.shape, x.strides) for x in ins)
    if lie not in asked:
        asked[lie] = not all(x.contiguous for x in ins) and any(
            lies and not x.contiguous for x, lies in zip(ins, read_in_place(kernel, signature_of(node).spec, ins)[1], strict=True))
    return asked[lie]


def _sent(graph: Graph, device: str) -> Collection[Node]:
    """Return the values of a graph that are copied from the host to a device for a kernel; they are contiguous there."""
    if device == HOST.name:
        return ()
    where = Whereabouts(pieces_of(graph.nodes))
    for node in graph.nodes:
        if node.op.kind == "leaf":
            where.put(node, HOST.name)
    return {node for node in graph.nodes if where.carrier(node, device) is node}


def _fit(graph: Graph, sizes: Mapping[str, int]) -> bool:
    return all(int(n) >= 0 for node in graph.nodes for t in node.types for n in t.at(sizes).shape)


def _has_pair(graph: Graph, sizes: Mapping[str, int]) -> bool:
    types = [(node.type.at(sizes).shape, node.dtype) for name, node in graph.inputs.items()
             if not (node.dtype.is_integer and is_index(graph, name)) and not is_big(node.type.at(sizes))]
    return len(types) > len(set(types))


def special_points(signature: Signature, base: Mapping[str, int], seed: int) -> list[Point]:
    """Return points with NaN and infinities in each float operand, with integers of full range, and with indices at both ends."""
    sizes, inputs = tuple(sorted(base.items())), signature.graph.inputs
    floats = [name for name, node in inputs.items() if node.dtype.kind == "float"]
    points = []
    for i, name in enumerate(floats):
        apart = min((int(n) for n in inputs[name].type.at(base).shape), default=1) >= len(SPECIALS)
        points += [Point(sizes, seed + 2500 + 10 * i + k, special=True, only=name, axis=k)
                  for k in ((0,) if apart else range(1, len(SPECIALS) + 1))]
    if any(node.dtype.is_integer for node in inputs.values()):
        points += [Point(sizes, seed + 2600 + i, integers=True) for i in range(2)]
    return points


def covered(points: Sequence[Point], signature: Signature) -> dict[str, Any]:
    """Return the coverage of a verdict on these points in its stored form: sizes, kinds of values, layouts of operands."""
    sizes = {}
    for name, dim in signature.graph.dims.items():
        counts = sorted({p.binding[name] for p in points})
        low, high = d.bounds(dim)
        sizes[name] = f"{len(counts)} sizes {counts[0]}–{counts[-1]}" + ("" if counts[-1] == high else f" of {low}–{high}")
    kinds: set[str] = {p.extreme for p in points if p.extreme is not None}
    kinds |= {"NaN and ±inf"} if any(p.special for p in points) else set()
    kinds |= {"integers of full range"} if any(p.integers for p in points) else set()
    kinds |= {"many runs under load"} if any(p.beside for p in points) else set()
    return {"points": len(set(points)),
            "sizes": sizes, "values": sorted(kinds), "layouts": sorted({p.form for p in points} - {"apart"})}
