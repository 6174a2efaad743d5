"""doubtful_rows: computes running errors for only the rows in which a kernel exceeds its limit, where all rows are too much work.

Beyond WORK numbers (running_error.py) a running error is estimated, and estimates miss cancellation. So before a kernel of large
fixed sizes is refused, these rows are evaluated alone, if the oracle gives them the same values alone as among all. An example:

    p − m / (√(0.999 v + 0.001 g²) + ε)     one of 2^20 numbers is off by 1.3e-4, where v is nearly −0.001 g²"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.error_measure import ROUNDINGS, unit_roundoff
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.meaning.running_error import running_error
from tensor_graphs.measure.points.fewer_rows import Fewer, fewer, row_name, same_rows, taken

log = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]

AT_ONCE, MOST = 1 << 15, 16
"""numbers of the largest operand in rows that are evaluated together, as WORK allows for a hundred steps; most evaluations: a
kernel that is wrong in more rows is not off by cancellation"""


def doubtful(out: np.ndarray, ref: np.ndarray, dtype: DType, moves: np.ndarray,
             limit: float) -> np.ndarray:
    """Return a mask of the elements of a float output whose error exceeds the limit, as `error_measure.measure` defines it."""
    with np.errstate(all="ignore"):
        size = np.where(np.isfinite(ref), np.abs(ref), 0.0)
        row = -1 if size.ndim else None
        scale = np.maximum(size, np.sqrt(np.mean(np.square(size), axis=row, keepdims=True)))
        off = np.abs(out.astype(np.float64) - ref)
        explained = np.where(off <= ROUNDINGS * moves, moves / unit_roundoff(dtype), 0.0)
        return np.asarray(off > limit * np.maximum(np.maximum(scale, explained), dtype.smallest_normal))


def moves_of_rows(graph: Graph, sizes: Mapping[str, int], inputs: Callable[[], Arrays], expected: Callable[[], Arrays],
                  name: str, doubt: np.ndarray, moves: np.ndarray) -> np.ndarray | None:
    """Return how far rounding may move each value of an output: `moves`, with the running errors of rows in doubt. None where no
    row or too many rows are in doubt, or rows depend on each other. expected: the oracle's outputs."""
    largest = max((math.prod(map(int, x.type.at(sizes).shape)) for x in graph.inputs.values()), default=0)
    for axis in range(doubt.ndim if doubt.any() else 0):
        size = doubt.shape[axis]
        numbers = np.flatnonzero(doubt.any(axis=tuple(i for i in range(doubt.ndim) if i != axis)))
        count = min(len(numbers), max(1, AT_ONCE * size // max(1, largest)))
        if 2 * count > size or len(numbers) > MOST * count:
            continue
        for rows in (row_name(axis, size), row_name(axis - doubt.ndim, size)):
            few = fewer(graph, rows, count)
            if few is not None and few.outputs[name] == axis:
                refined = moves.copy()
                if all(_fill(refined, few, sizes, inputs(), expected(), name, np.resize(numbers[i:i + count], count))
                       for i in range(0, len(numbers), count)):
                    return refined
    return None


def _fill(moves: np.ndarray, few: Fewer, sizes: Mapping[str, int], inputs: Arrays, expected: Arrays, name: str,
          numbers: np.ndarray) -> bool:
    """Write the running errors of these rows into `moves`; return False where rows depend on others, or are too much work."""
    some, wanted = taken(inputs, few.inputs, numbers), taken(expected, few.outputs, numbers)
    try:
        outputs = interpret(few.graph, some, dims=sizes).outputs
    except (TensorGraphsError, ValueError, IndexError) as e:
        log.debug("no %d rows of %s: %s", len(numbers), name, e)
        return False
    error = running_error(few.graph, some, sizes)[name] if same_rows(outputs, wanted) else None
    if error is not None:
        np.moveaxis(moves, few.outputs[name], 0)[numbers] = np.moveaxis(error, few.outputs[name], 0)
    return error is not None
