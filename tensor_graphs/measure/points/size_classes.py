"""size_classes: compares a kernel at smaller fixed sizes in place of large ones, and chooses few points that remain for the latter.

    linear f32[n, 640] f32[262144, 640]   →   linear f32[n, 64] f32[128, 64]

A built-in kernel is one piece of code for all sizes. NaN, extreme values and other layouts are compared once for a class of fixed
sizes. At each member's real sizes a kernel runs on ordinary values at few points, which shows errors of large work (blocks,
threads, bounds of integers). Sizes of a class have equal remainders modulo BLOCK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels import registry
from tensor_graphs.kernels.kernel import ANY_OP, Kernel
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.node import TensorType, apply
from tensor_graphs.measure.definition_points import long_sums
from tensor_graphs.measure.points.inputs import Point, largest_sizes, pairs, work_points
from tensor_graphs.measure.points.point_plan import EACH_SECONDS, FEW_ROWS, rows_are_independent, seconds, ways_in_place

BLOCK, WORTH = 64, 1 << 15
"""BLOCK: multiple of the sizes of kernels' blocks (vectors of 16, tiles of at most 32, pieces of 64 bytes). WORTH: least elements
of an operand's fixed axes"""


def smaller(kernel: Kernel, signature: Signature) -> Signature | None:
    """Return the op on smaller, distinct fixed sizes that this kernel accepts too. Return None where nothing is gained, the kernel
    is not built-in or is generated for each size, or an attribute may contain a size."""
    if not _of_this_package(kernel):
        return None
    inputs = signature.spec.inputs
    if max((int(d.product([s for s in t.shape if d.is_static(s)])) for t in inputs), default=0) < WORTH:
        return None
    if any(_contains_size(value) for value in signature.spec.attrs.values()):
        return None
    of_op = signature.spec.op.facts.smaller
    types = _of_smaller_sizes(inputs) if of_op is None else of_op(inputs, signature.spec.attrs)
    if types is None:
        return None
    try:
        operands = [leaves.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
        result = signature_of(apply(signature.spec.op, operands, signature.spec.attrs))
    except TensorGraphsError:
        return None
    return result if result.key != signature.key and kernel.computes(result.spec) and kernel.accepts(result.spec) is None else None


def _of_smaller_sizes(types: Sequence[TensorType]) -> list[TensorType]:
    """Return the types with smaller fixed sizes, equal where they were equal."""
    sizes: dict[int, int] = {}
    for size in (s for t in types for s in t.shape if isinstance(s, int)):
        if size > BLOCK:
            sizes.setdefault(size, BLOCK * (len(sizes) + 1) + size % BLOCK)

    def small(size: Dim) -> Dim:
        return min(size, sizes.get(size, size)) if isinstance(size, int) else size

    return [TensorType(tuple(map(small, t.shape)), t.dtype) for t in types]


def _of_this_package(kernel: Kernel) -> bool:
    """Return whether a kernel is in the lists of the built-in backends, and one piece of code for all sizes."""
    return (kernel.backend in registry.OURS and kernel.op != ANY_OP and kernel.composite is None
            and any(candidate is kernel for candidate in registry.load_backend(kernel.backend)))


def _contains_size(value: Any) -> bool:
    """Return whether an attribute holds a number that may be a fixed size, or be derived from one."""
    if isinstance(value, tuple):
        return any(map(_contains_size, value))
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) >= BLOCK // 2


def points_at_size(kernel: Kernel, signature: Signature, small: Signature, typical: Mapping[str, int], secret: int) -> list[Point]:
    """Return the points of a kernel at its real fixed sizes after it has passed at smaller ones: at its typical, smallest, odd and
    largest affordable sizes; other values at the same addresses; in place; unaligned. If every point takes long, only at the
    smallest sizes and at small ones."""
    graph = signature.graph
    sizes = work_points(graph, typical)
    odd = next((s for s in sizes if any(s[n] in ODD for n in graph.dims)), sizes[-1])
    affordable = [s for s in {pairs(s): s for s in (sizes[0], min(sizes, key=_total), odd)}.values() if _quick(signature, s)]
    points = [Point(pairs(s), secret + 7 * i) for i, s in enumerate(affordable or sorted(sizes, key=_total)[:3:2])]
    base = max(points, key=lambda p: sum(n for _, n in p.sizes if n <= 32))
    points.insert(points.index(base) + 1, Point(base.sizes, secret + 101, like=base.seed))
    if affordable:
        points += [Point(base.sizes, secret + 102, form="unaligned")]
        points += [Point(base.sizes, secret + 103 + i, form="in_place", axis=i) for i in ways_in_place(kernel, signature)]
    for name in sorted(graph.dims):
        free = name in small.graph.dims and rows_are_independent(small, name)
        for largest in largest_sizes(graph):
            far = {**base.binding, name: largest[name]}
            if _quick(signature, far, free):
                points.append(Point(pairs(far), secret + 120 + len(points),
                                   rows=(name, FEW_ROWS) if free and far[name] > 2 * FEW_ROWS else None))
                break
    points += long_sums(signature, secret)
    return list({replace(p, seed=0): p for p in reversed(points)}.values())[::-1]


ODD = range(9, 63)
"""sizes larger than small blocks and not multiples of them, among those of `work_points`"""


def _quick(signature: Signature, sizes: Mapping[str, int], by_rows: bool = False) -> bool:
    return seconds(signature, sizes, by_rows) <= EACH_SECONDS


def _total(sizes: Mapping[str, int]) -> int:
    return sum(sizes.values())
