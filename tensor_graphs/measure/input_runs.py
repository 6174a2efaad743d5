"""input_runs: splits a caller's inputs for one error draw into the inputs of its runs (random inputs are in error_draws.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.errors import listed
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.measure.error_draws import Run, positions, trajectory
from tensor_graphs.runtime.arrays import as_array, solve_dims

Arrays = Mapping[str, np.ndarray]


def runs_on(graph: Graph, at: Mapping[str, int], inputs: Mapping[str, Any]) -> list[Run]:
    """Return the inputs and sizes of each run of one draw. at: sizes of dims that no input has.

    inputs: name -> array. A graph without states has one run, with these inputs. If its states have one row per position, each
    input with an axis of positions contains the rows of all runs, one run after the other; `trajectory` has the lengths of the
    runs, and rows after the last one are not used. Raises ArgumentError for missing and unknown names and for states that are not
    written row by row, RunError for arrays that do not fit the graph.
    """
    if wrong := sorted(graph.inputs.keys() ^ set(inputs)):
        what = "lack" if wrong[0] in graph.inputs else "have no use for"
        raise ArgumentError(f"inputs {what} {wrong[0]!r}\n  fix: an array for each of {listed(graph.inputs)}")
    arrays = {name: as_array(name, inputs[name], node.type) for name, node in graph.inputs.items()}
    if not graph.states:
        return [(arrays, _sizes(graph, arrays, at))]
    advance = positions(graph)
    if advance is None:
        raise ArgumentError("the graph's states are not written row by row, so its inputs are no rows to cut into runs\n"
                            "  fix: no inputs=, and they are drawn")
    rows, position, _ = advance
    axes = {name: [axis for axis, size in enumerate(node.shape) if size == graph.dims[rows]] for name, node in graph.inputs.items()}
    available = min((arrays[name].shape[axis] for name, along in axes.items() for axis in along), default=0)
    if not available:
        raise ArgumentError(f"inputs have no rows along {rows}\n  fix: one or more; {rows} is the dim of positions")

    def cut(name: str, start: int, count: int) -> np.ndarray:
        array = arrays[name]
        for axis in axes[name]:
            array = array.take(range(start, start + count), axis=axis)
        return np.ascontiguousarray(array)

    runs = []
    for sizes in trajectory(graph, at, available):
        parts = {name: cut(name, sizes[position], sizes[rows]) for name in arrays}
        runs.append((parts, _sizes(graph, parts, sizes)))
    return runs


def _sizes(graph: Graph, arrays: Arrays, at: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of all dims: those of axes of inputs from the arrays, the others from `at`. Raises RunError."""
    types = {name: node.type for name, node in graph.inputs.items()}
    of_axes = {name for t in types.values() for size in t.shape for name, dim in graph.dims.items() if isinstance(size, d.Expr)
               and size == dim}
    return solve_dims(types, {name: array.shape for name, array in arrays.items()}, graph.dims,
                      {name: int(at[name]) for name in graph.dims if name not in of_axes})
