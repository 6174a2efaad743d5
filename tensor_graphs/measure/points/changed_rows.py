"""changed_rows: represents an output that equals an operand except for some rows by these rows: a cache into which a step wrote.

    write_rows(cache f32[4096, 1, 256], values f32[2, 1, 256])   →   operand "cache", rows 17 and 18, and their 2 × 256 numbers

Judge and worker generate equal operands from the seed, so unchanged rows need not be stored, sent or compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.definition_analysis import definition_of
from tensor_graphs.measure.isolation.memory_guards import BIG_BYTES
from tensor_graphs.measure.points.inputs import is_big

WORTH, MOST = 1 << 20, 0.5
"""WORTH: bytes of an output below which it is stored in full. MOST: share of changed rows above which it is stored in full"""


@dataclass(frozen=True)
class Updated:
    """Output whose rows, along its last axis, equal those of an operand (base) except for these. rows: indices, ascending."""

    shape: tuple[int, ...]
    base: str
    rows: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.values.nbytes

    def whole(self, operand: np.ndarray) -> np.ndarray:
        """Return all rows, in the dtype of the changed values."""
        array = operand.astype(self.values.dtype)
        array.reshape(-1, self.shape[-1])[self.rows] = self.values
        return array


class Whole(Mapping[str, np.ndarray]):
    """Outputs by name, each restored when it is read, as generating an operand again takes as long as the oracle."""

    def __init__(self, outputs: Mapping[str, np.ndarray | Updated], operands: Callable[[], Mapping[str, np.ndarray]]) -> None:
        self._kept, self._operands = outputs, operands

    def __getitem__(self, name: str) -> np.ndarray:
        output = self._kept[name]
        return output.whole(self._operands()[output.base]) if isinstance(output, Updated) else output

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


def bases(graph: Graph, binding: Mapping[str, int]) -> dict[str, str]:
    """Return for each large output the operand of which it overwrites slices, by its definition; {} where all outputs together are
    small enough for the worker to read them twice (`Bench.late`)."""
    types = {name: node.type.at(binding) for name, node in graph.outputs.items()}
    if sum(int(t.nbytes()) for t in types.values()) <= BIG_BYTES:
        return {}
    whole = definition_of(graph)
    names = {node: name for name, node in whole.inputs.items()}
    operands = {}
    for name, node in whole.outputs.items():
        written = False
        while node.op.name == "scatter" and node.attrs["mode"] == "set":
            node, written = node.inputs[0], True
        t = types[name]
        if written and node in names and t.dtype.kind == "float" and t.shape and int(t.nbytes()) >= WORTH and not is_big(t):
            operands[name] = names[node]
    return operands


def changed_rows(output: np.ndarray, operand: np.ndarray) -> np.ndarray:
    """Return the indices of the rows in which any bit differs. Both arrays are C-contiguous, of one shape and dtype."""
    bits = np.dtype(f"u{output.itemsize}")
    a, b = (x.view(bits).reshape(-1, x.shape[-1]) for x in (output, operand))
    return np.flatnonzero((a != b).any(axis=1))


def updated(answer: np.ndarray, operand: np.ndarray, base: str) -> np.ndarray | Updated:
    """Return the oracle's answer as its difference from an operand, or in full where most of it differs. NaN equals NaN."""
    a, b = answer.reshape(-1, answer.shape[-1]), operand.reshape(-1, operand.shape[-1])
    differs = a != b                                                # numpy widens a piece at a time
    if np.isnan(a[differs]).any():
        differs &= ~(np.isnan(a) & np.isnan(b.astype(a.dtype)))
    rows = np.flatnonzero(differs.any(axis=1))
    return answer if len(rows) > MOST * len(a) else Updated(answer.shape, base, rows, a[rows])
