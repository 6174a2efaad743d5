"""adversarial: the points at which a kernel is compared on extreme values (extremes.py), and whether there is one right answer.

A kernel may sum in another order and round in other places than the op's definition, and none can be held to an answer that hangs
on that: products of large numbers before an exp, a sum that cancels. Where a kernel's answer is another one than the oracle's, the
oracle is asked once more, with rounding at every node and sums as if added in another order; if that alone moves its answer, the
point says nothing. Asked only then, as it takes longer than the kernel's comparison.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import get_args

import numpy as np

from tensor_graphs.costs.roofline import work
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.profiling.extremes import Extreme, extreme_sizes
from tensor_graphs.profiling.inputs import Point, point_inputs

log = logging.getLogger(__name__)

WORK = (2e6, 1 << 18)
"""flops and bytes of a point, at most: the oracle takes some 10 ms for it"""

SWEEP_WORK = (2e7, 1 << 22)
"""of a sweep: more, as values of a narrow range may be all that a kernel is wrong at, and large fixed sizes have no other point"""

SEED = 3000

SETTLED = 0.3
"""share of the error allowed by which the two answers may differ"""


def adversarial_points(signature: Signature) -> list[Point]:
    """The points of one signature, one of each kind of values.

    None where there are no floats, and none that would take long: of a signature with very large fixed sizes.
    """
    if not any(t.dtype.kind == "float" for t in signature.spec.inputs):
        return []
    found = []
    for i, kind in enumerate(get_args(Extreme)):
        for small in (False, True):
            point = Point(tuple(sorted(extreme_sizes(signature.graph.dims, kind, small).items())), SEED + i, extreme=kind)
            traffic, flops = work(signature, tuple((n, point.binding[n]) for n in sorted(signature.dim_names)))
            most = SWEEP_WORK if kind == "sweep" else WORK
            if flops <= most[0] and traffic <= most[1]:
                found.append(point)
                break
    return found


def settled(signature: Signature, point: Point, answer: Mapping[str, np.ndarray], limits: Mapping[str, float],
            rounding: Mapping[str, np.ndarray] | None = None) -> bool:
    """Whether the answer at a point hangs neither on where is rounded nor on the order in which is added.

    answer: the oracle's. limits: the error allowed, by dtype. rounding: the running errors of float outputs: what they explain
    does not unsettle the rest.
    """
    graph = signature.graph
    try:
        rounded = interpret(graph, point_inputs(graph, point), dims=point.binding, mode="jittered").outputs
    except TensorGraphsError as e:
        log.debug("%s cannot be rounded at %s: %s", signature.title(), point, e)
        return False
    for name, node in graph.outputs.items():
        moves = None if rounding is None else rounding.get(name)
        report = measure(rounded[name].astype(answer[name].dtype), answer[name], node.dtype, rounding=moves)
        if not report.within(SETTLED * limits.get(node.dtype.name, 0.0)):
            log.debug("%s is not settled at %s: %s %g", signature.title(), point, report.mismatch, report.max_relative_error)
            return False
    return True
