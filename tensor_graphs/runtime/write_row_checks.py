"""write_row_checks: checks of the rows that a run writes into its states, where the row numbers are values of an input.

Sizes of a run are checked by language/conditions.py. Row numbers that come from an input (a position for each sequence) are checked
before a run: a value would be lost if its row is behind the last one (below 0 is allowed, and writes nothing). Row numbers computed
from anything else are not checked: the op drops rows that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.language import dims as d
from tensor_graphs.language import leaves
from tensor_graphs.language.conditions import written_state
from tensor_graphs.language.dims import Dim
from tensor_graphs.language.errors import Location
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.runtime.errors import RunError


@dataclass(frozen=True)
class RowsFromInput:
    """A write into `state` (of `rows` rows along `axis`). Each value of `input` is the first of `count` written rows."""

    state: str
    axis: int
    rows: int
    input: str
    count: Dim
    location: Location | None


def rows_from_inputs(graph: Graph) -> tuple[RowsFromInput, ...]:
    """Return the writes of a graph into its states at rows given by an input; per input and count that into the shortest state."""
    writes: dict[tuple[str, Dim], RowsFromInput] = {}
    for node in graph.nodes:
        rows = node.op.facts.writes
        if rows is None or rows.at is None or (state := written_state(node)) is None:
            continue
        first = _input_and_count(node.inputs[rows.at])
        if first is not None:
            (source, count), axis = first, int(node.attrs["axis"]) % state.rank
            rows_of_state = int(state.shape[axis])
            write = RowsFromInput(str(state.attrs["name"]), axis, rows_of_state, str(source.attrs["name"]), count, node.location)
            before = writes.get((write.input, write.count))
            writes[write.input, write.count] = write if before is None or write.rows < before.rows else before
    return tuple(writes.values())


def _input_and_count(index: Node) -> tuple[Node, Dim] | None:
    """Return (x, c) for an index x + iota(c), or (x, 1) for x, where x is an input: rows from each value on. None for others."""
    if index.op.facts.rearranges or index.op is leaves.COPY_TO:
        return _input_and_count(index.inputs[0])
    if index.op is leaves.INPUT:
        return index, 1
    if index.op.name == "add":
        for numbers, start in (index.inputs, index.inputs[::-1]):
            inner = _input_and_count(start)
            if numbers.op.name == "iota" and inner is not None and inner[1] == 1 and inner[0].type.size() == 1:
                return inner[0], numbers.shape[numbers.attrs["axis"]]
    return None


def check_rows(written: tuple[RowsFromInput, ...], inputs: Mapping[str, Any], binding: Mapping[str, int]) -> None:
    """Raise RunError where a written row is behind the end of its state. inputs: name -> array. binding: dim -> size."""
    for w in written:
        array = np.asarray(inputs[w.input])
        if not array.size:
            continue
        first = int(array.item() if array.size == 1 else array.max())
        count = w.count if isinstance(w.count, int) else int(d.evaluate(w.count, binding))
        if count and first + count > w.rows:
            where = f" at {w.location}" if w.location else ""
            raise RunError(f"write_at_index{where}: the state {w.state!r} has {w.rows} rows along axis {w.axis}, "
                           f"numbers 0 to {w.rows - 1}; the input {w.input!r} asks for row {first + count - 1}\n"
                           f"  fix: {w.input} up to {w.rows - count} (below 0: left out), or more rows where the state is made")
