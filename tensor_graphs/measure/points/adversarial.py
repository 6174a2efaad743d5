"""adversarial: chooses points with extreme values (extremes.py), and decides whether a point has a single right answer.

A kernel may sum in another order and round in other places than the op's definition: products of large numbers before an exp, a sum
that cancels. Where its answer differs from the oracle's, the oracle is evaluated again, with rounding at every node and sums as if
in another order; if that alone changes its answer, the point decides nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from tensor_graphs.costs.roofline import work
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.composite import CompositeOp
from tensor_graphs.meaning.error_measure import row_errors
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.measure.definition_analysis import adds_floats
from tensor_graphs.measure.points.extremes import STRUCTURES, Extreme, extreme_sizes
from tensor_graphs.measure.points.inputs import Point, is_big, point_inputs

log = logging.getLogger(__name__)

WORK, SWEEP_WORK = (2e6, 1 << 18), (2e7, 1 << 22)
"""flops and bytes of a point (some 10 ms for the oracle); and of a sweep, as a kernel may be wrong only in a narrow range"""

SEED = 3000

ONE_BY_ONE: tuple[Extreme, ...] = ("huge", "structured")
"""kinds of values that are also tried in one operand, with ordinary values in the others"""

ROUNDED, ROUNDED_EXTREMES = 6, 18
"""evaluations with other roundings. Between values that tie but for rounding (the largest, or the only large weight of a softmax)
each is a right choice. Extreme values tie often, and 18 evaluations bound the work: in one of 64 ties, six evaluations all choose
as the oracle does, and a kernel that chooses otherwise is refused (9 of 6,000 draws of attention in bf16)"""

SETTLED = 0.3
"""share of the allowed error by which the oracle's two answers may differ"""

REPLACED, INFLUENCE = 1e4, 1e-3
"""magnitude that replaces NaN and infinities (with both signs); relative change of a result above which they influence it"""

MARGIN = 2.0 ** -20
"""share of the dtype's largest number above which no result of a sum is compared: terms may be added before or after a division"""


def adversarial_points(signature: Signature, seed: int = 0) -> list[Point]:
    """Return a signature's points with extreme values: for each kind one with all operands extreme, and for ONE_BY_ONE one per
    operand; for structured values enough to show all structures. None without floats, or where they take too long (very large fixed
    sizes)."""
    inputs = signature.graph.inputs
    floats = [name for name, node in inputs.items() if node.dtype.kind == "float"]
    if not floats:
        return []
    points: list[Point] = []
    for i, kind in enumerate(get_args(Extreme)):
        if kind == "columns" and all(len(inputs[name].shape) < 2 for name in floats):
            continue
        for small in (False, True):
            sizes = extreme_sizes(signature.graph.dims, kind, small)
            if kind == "huge" and adds_floats(signature.graph) and not _limit_to_one_iteration(signature, sizes):
                break
            point = Point(tuple(sorted(sizes.items())), seed + SEED + i, extreme=kind)
            traffic, flops = work(signature, tuple((n, point.binding[n]) for n in sorted(signature.dim_names)))
            most = SWEEP_WORK if kind == "sweep" else WORK
            if flops <= most[0] and traffic <= most[1]:
                points += _points_of_kind(signature, point, floats)
                break
    return points


def _limit_to_one_iteration(signature: Signature, sizes: dict[str, int]) -> bool:
    """Set the number of iterations of a loop op to one, if a dim determines it; return whether there is at most one. A sum of huge
    values cancels sooner or later and decides all later iterations, so that no other rounding tells the right answer."""
    op, types, attrs = signature.spec.op, signature.spec.inputs, signature.spec.attrs
    turns = op.turns(types, attrs) if isinstance(op, CompositeOp) else 1
    for symbol in d.symbols_in(turns):
        sizes[str(symbol)] = max(1, d.bounds(symbol)[0])
    return d.evaluate(turns, sizes) <= 1


def _points_of_kind(signature: Signature, point: Point, floats: Sequence[str]) -> list[Point]:
    """Return points with this kind of values in all operands, and in one operand with ordinary others; with several structures, one
    per row, or one per point if there are fewer rows."""
    rows = STRUCTURES
    if point.extreme in ("structured", "columns"):
        shapes = [tuple(map(int, signature.graph.inputs[name].type.at(point.binding).shape)) for name in floats]
        rows = min((math.prod(shape) // shape[0 if point.extreme == "columns" else -1] for shape in shapes if math.prod(shape)
                    and shape), default=STRUCTURES)
        rows = min(STRUCTURES, rows)
    points = [replace(point, axis=first, seed=point.seed + first) for first in range(0, STRUCTURES, rows)]
    if len(floats) > 1 and point.extreme in ONE_BY_ONE:
        points += [replace(point, only=name, seed=point.seed + 10 * (i + 1)) for i, name in enumerate(floats)]
    return points


def settled_rows(signature: Signature, point: Point, answer: Mapping[str, np.ndarray], limits: Mapping[str, float],
                 rounding: Mapping[str, np.ndarray] | None = None,
                 asked: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Return for each output a mask of the rows (along its last axis) that depend neither on where rounding occurs nor on the order
    of additions. answer: the oracle's. limits: allowed error by dtype. rounding: running errors; differences within them are
    ignored. asked: outputs and masks of rows to decide (default: all); evaluation ends when none of these can be settled."""
    graph = signature.graph
    settled = {name: np.ones(rows_of(answer[name]).shape[0], bool) for name in graph.outputs} if asked is None else dict(asked)
    for jitter in range(1, 1 + (ROUNDED if point.extreme is None else ROUNDED_EXTREMES)):
        if not any(rows.any() for rows in settled.values()):
            break
        try:
            rounded = interpret(graph, point_inputs(graph, point), dims=point.binding, mode="jittered", jitter=jitter).outputs
        except TensorGraphsError as e:
            log.debug("%s cannot be rounded at %s: %s", signature.title(), point, e)
            return {name: np.zeros_like(rows) for name, rows in settled.items()}
        settled = _unmoved(signature, point, answer, limits, rounding, rounded, settled)
    return settled


def _unmoved(signature: Signature, point: Point, answer: Mapping[str, np.ndarray], limits: Mapping[str, float],
             rounding: Mapping[str, np.ndarray] | None, rounded: Mapping[str, np.ndarray],
             asked: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return masks of the rows that change by less than SETTLED of the allowed error when rounded otherwise."""
    graph = signature.graph
    unmoved = {name: rows.copy() for name, rows in asked.items()}
    for name in unmoved:
        node = graph.outputs[name]
        other = rows_of(rounded[name].astype(answer[name].dtype))
        limit = SETTLED * limits.get(node.dtype.name, 0.0)
        most = node.dtype.max * MARGIN if node.dtype.kind == "float" and adds_floats(graph) else math.inf
        moves = rows_of(rounding[name]) if rounding is not None and name in rounding else None
        every = rows_of(answer[name])
        numbers = np.flatnonzero(unmoved[name])
        alike = row_errors(other, every, node.dtype, moves, numbers) <= limit
        if node.dtype.kind == "float" and most < math.inf:
            asked_for = every[numbers]
            alike &= np.abs(asked_for, dtype=np.float64).max(axis=-1, initial=0.0, where=np.isfinite(asked_for)) <= most
        unmoved[name][numbers] = alike
        if (lost := np.sum(asked[name] & ~unmoved[name])):
            log.debug("%s is not settled at %s: %d rows of %d", signature.title(), point, lost, unmoved[name].size)
    return unmoved


def rows_of(array: np.ndarray) -> np.ndarray:
    """Return an array reshaped to a matrix of rows along its last axis."""
    return array.reshape(-1, array.shape[-1]) if array.ndim and array.size else array.reshape(-1, 1)


def depends_on_special(signature: Signature, point: Point) -> dict[str, np.ndarray]:
    """Return for each output a mask of where the values in place of NaN and infinities matter. Elsewhere (a weight of 0 that a
    kernel need not multiply by) a kernel may return NaN, as the definition does, or what follows from the other values."""
    graph = signature.graph
    inputs = point_inputs(graph, point)
    answers = []
    for value in (REPLACED, -REPLACED):
        finite = {name: np.where(np.isfinite(array.astype(np.float64)), array, np.asarray(value, array.dtype)) if
                  graph.inputs[name].dtype.kind == "float" and not is_big(graph.inputs[name].type.at(point.binding)) else array
                  for name, array in inputs.items()}
        answers.append(interpret(graph, finite, dims=point.binding).outputs)
    pairs = {name: [answer[name].astype(np.float64) for answer in answers] for name in graph.outputs}
    with np.errstate(all="ignore"):
        return {name: ~(np.abs(a - b) <= INFLUENCE * np.minimum(np.abs(a), np.abs(b))) for name, (a, b) in pairs.items()}
