"""error_draws: measures how far the outputs of an entire path are from the exact ones, on random inputs or a caller's.

One draw is a trajectory: a graph with states runs ROWS new positions from empty states, then STEPS single ones that carry the
states on; a graph without states runs once. Path and oracle receive the same inputs, so an error in a state counts by what it does
to later outputs. The oracle evaluates the graph as it was given, with its weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tensor_graphs.costs.roofline import work
from tensor_graphs.kernels.signature import signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.conditions import all_hold, conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import is_step
from tensor_graphs.meaning.draw_statistics import WRONG, Statistics, statistics
from tensor_graphs.meaning.interpreter import Mode, interpret
from tensor_graphs.measure.points.inputs import generator, make_inputs
from tensor_graphs.paths.plan import Plan
from tensor_graphs.runtime.compiled_graph import bind

ROWS, STEPS = 48, 8
"""positions of a trajectory's first run, and single positions after it"""

FIRST_SEED = 5_000_003
"""seed of the first error draw; verdicts, tuning and timing use others"""

MOST_READ, MOST_WIDE = 1e9, 5e8
"""numbers in parameters that a trajectory reads at most; of all parameters, up to which they are converted to float64 only once"""

MOST_FLOPS, LARGE_FLOPS = 2e11, 1e9
"""flops of a trajectory, and of a run at the largest sizes, above which sizes are halved: the oracle computes some 2e10 a second"""

SHORT_FLOPS = 1e10
"""flops of a run in which errors are predicted by backward passes, which take twenty times as many"""

Draw = dict[str, Statistics]
"""Statistics of each float output over one trajectory."""
Run = tuple[dict[str, np.ndarray], dict[str, int]]
"""inputs and sizes of one run"""
Evaluator = Callable[[Mapping[str, np.ndarray], Mapping[str, int]], Mapping[str, Any]]
"""Function from a run's inputs and sizes to its outputs; it carries the states from run to run."""


def trajectory(graph: Graph, at: Mapping[str, int], available: float = math.inf) -> list[dict[str, int]]:
    """Return the sizes of the runs of one draw. at: sizes of a graph without states, which runs at the largest sizes too that the
    oracle computes soon, or of one whose positions are not recognised. available: positions that there are inputs for."""
    sizes = {name: int(at[name]) for name in graph.dims}
    if not graph.states:
        largest = {name: d.bounds(dim)[1] for name, dim in graph.dims.items()}
        runs = [_within_reach(graph, sizes), _within_reach(graph, largest, LARGE_FLOPS)]
        possible = [run for run in runs if all_hold(conditions_of(graph.roots), run)] or runs
        return possible[:1] if possible[0] == possible[-1] else possible
    advance = positions(graph)
    if advance is None:
        return [_within_reach(graph, sizes)] * (1 + STEPS)
    rows, position, room = advance
    room = int(min(room, available))
    first = min(ROWS, d.bounds(graph.dims[rows])[1], max(1, room - STEPS))
    others = [name for name in graph.dims if name not in (rows, position)]

    def run(count: int, start: int) -> dict[str, int]:
        clipped = {name: min(max(count, d.bounds(graph.dims[name])[0]), d.bounds(graph.dims[name])[1]) for name in others}
        return {name: {rows: count, position: start, **clipped}[name] for name in graph.dims}

    while first > 1 and _flops(graph, run(first, 0)) > MOST_FLOPS:
        first //= 2
    affordable = max(1, int(MOST_READ / max(_held(graph), 1.0)) - 1)
    steps = min(STEPS, affordable, room - first, d.bounds(graph.dims[position])[1] - first + 1)
    return [run(first, 0), *(run(1, first + i) for i in range(steps))]


def positions(graph: Graph) -> tuple[str, str, int] | None:
    """Return (dim of new positions, dim of the first one, number of positions that the states hold), where every state is updated
    by writing rows there; None where one is not."""
    places = set()
    for node in graph.updates.values():
        if node.op.name != "write_rows":
            return None
        base, value = node.inputs
        rows, start, room = value.shape[node.attrs["axis"]], node.attrs["start"], base.shape[node.attrs["axis"]]
        places.add((str(rows), str(start), d.bounds(room)[1]))
    if len(places) != 1:
        return None
    ((rows, start, room),) = places
    return (rows, start, room) if rows in graph.dims and start in graph.dims else None


def _within_reach(graph: Graph, sizes: dict[str, int], most: float = MOST_FLOPS) -> dict[str, int]:
    """Return the sizes, the largest halved until the oracle needs `most` flops at most."""
    sizes = dict(sizes)
    while _flops(graph, sizes) > most:
        halved = {n: max(s // 2, d.bounds(graph.dims[n])[0]) for n, s in sizes.items()}
        largest = max((n for n in sizes if halved[n] < sizes[n]), key=sizes.__getitem__, default=None)
        if largest is None:
            break
        sizes[largest] = halved[largest]
    return sizes


def _held(graph: Graph) -> float:
    """Return the numbers in all parameters."""
    return sum(float(d.evaluate(node.type.size(), {})) for node in graph.parameters.values())


def _flops(graph: Graph, sizes: Mapping[str, int]) -> float:
    steps = map(signature_of, filter(is_step, graph.nodes))
    return sum(work(s, tuple((n, sizes[n]) for n in s.dim_names))[1] for s in steps)


def drawn_weights(graph: Graph, seed: int = FIRST_SEED) -> dict[str, np.ndarray]:
    """Return random parameters, those of matrices scaled by 1 / √(length of the last axis), so that layers keep magnitudes."""
    weights = {}
    for name, node in graph.parameters.items():
        shape = tuple(int(s) for s in node.shape)
        rng = generator(seed, name)
        if not node.dtype.is_float:
            weights[name] = rng.integers(0, 2, shape).astype(node.dtype.numpy)
            continue
        values = rng.standard_normal(shape, np.float32)
        weights[name] = (values / np.sqrt(max(1, shape[-1])) if len(shape) > 1 else values * 0.1).astype(node.dtype.numpy)
    return weights


@dataclass
class ErrorDraws:
    """Draws of one graph with its weights at some sizes. Inputs and exact outputs are computed once for all paths.

    graph: as it was given. weights: by parameter name. at: typical sizes. runs_of: function from a seed to the runs of its draw
    (input_runs.py); None: on random inputs.
    """

    graph: Graph
    weights: Mapping[str, np.ndarray]
    at: Mapping[str, int]
    exact: dict[int, dict[str, dict[int, np.ndarray]]] = field(default_factory=dict, repr=False)
    """exact outputs by seed; `first`: those of a trajectory's first run"""
    sizes: list[dict[str, int]] = field(default_factory=list)
    first: dict[int, dict[str, dict[int, np.ndarray]]] = field(default_factory=dict, repr=False)
    runs_of: Callable[[int], list[Run]] | None = None

    def __post_init__(self) -> None:
        self.sizes = self.sizes or trajectory(self.graph, self.at)
        self.outputs = [name for name, node in self.graph.outputs.items() if node.dtype.is_float]

    @cached_property
    def wide_weights(self) -> Mapping[str, np.ndarray]:
        """The parameters as the oracle computes with them, unless they take too much memory."""
        if _held(self.graph) > MOST_WIDE:
            return self.weights
        return {name: np.asarray(self.weights[name]).astype(np.float64 if node.dtype.is_float else node.dtype.numpy)
                for name, node in self.graph.parameters.items()}

    @cached_property
    def elements(self) -> int:
        """Elements of the smallest float output in one draw."""
        counts = [sum(int(self.graph.outputs[name].type.at(sizes).size()) for sizes in self.sizes) for name in self.outputs]
        return min(counts, default=0)

    @cached_property
    def flops(self) -> float:
        """Flops of the first run of a trajectory."""
        return _flops(self.graph, self.sizes[0])

    def runs(self, seed: int) -> list[Run]:
        """Return the inputs and sizes of the runs of one draw."""
        if self.runs_of is not None:
            return self.runs_of(seed)
        return [(make_inputs(self.graph, sizes, FIRST_SEED + 1000 * seed + i), sizes) for i, sizes in enumerate(self.sizes)]

    def short_run(self, seed: int) -> Run:
        """Return the inputs and sizes of the first run of one draw, with fewer positions of a large graph."""
        inputs, sizes = self.runs(seed)[0]
        largest = max(sizes.values(), default=1)
        while largest > 1 and _flops(self.graph, sizes) > SHORT_FLOPS:
            sizes = {name: size // 2 if size == largest and size // 2 >= d.bounds(self.graph.dims[name])[0] else size
                     for name, size in sizes.items()}
            if max(sizes.values()) == largest:
                break
            largest = max(sizes.values())
        shapes = {name: node.type.at(sizes).shape for name, node in self.graph.inputs.items()}
        return {name: array[tuple(map(slice, shapes[name]))] for name, array in inputs.items()}, sizes

    def of_plan(self, plan: Plan, seeds: Sequence[int], seconds: float = float("inf")) -> list[Draw]:
        """Return one draw per seed of a plan of any form of the graph. seconds: no draw begins later; the first one does."""
        compiled = bind(plan, self.weights)

        def evaluator() -> Evaluator:
            session = compiled.session()

            def run(inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> Mapping[str, Any]:
                dims = {name: size for name, size in sizes.items() if name in compiled.graph.dims}
                return {name: np.array(value) for name, value in compiled.run(inputs, dims=dims, session=session).items()}
            return run
        return self._draws(evaluator, seeds, seconds)

    def of_graph(self, form: Graph, seeds: Sequence[int], first_run: bool = False, mode: Mode = "as_written") -> list[Draw]:
        """Return one draw per seed of a form of the graph, evaluated with each value rounded to its dtype, or in another mode of
        the interpreter. first_run: without the runs that carry states on."""
        return self._draws(lambda: self._oracle(form, mode), seeds, float("inf"), first_run)

    def _oracle(self, graph: Graph, mode: Mode) -> Evaluator:
        states: dict[str, np.ndarray] = {}

        def run(inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> Mapping[str, Any]:
            result = interpret(graph, inputs, self.wide_weights, dict(states), sizes, mode=mode)
            states.update({str(name): value for name, value in result.updates.items()})
            return result.outputs
        return run

    def _draws(self, evaluator: Callable[[], Evaluator], seeds: Sequence[int], seconds: float, first: bool = False) -> list[Draw]:
        began, draws, reference = time.perf_counter(), list[Draw](), self.first if first else self.exact
        for seed in seeds:
            if draws and time.perf_counter() - began > seconds:
                break
            runs = self.runs(seed)[:1 if first else None]
            if seed not in reference:
                reference[seed] = self._outputs(self._oracle(self.graph, "real"), runs)
            outputs = self._outputs(evaluator(), runs)
            draws.append({name: self._compared(name, outputs[name], reference[seed][name]) for name in self.outputs})
        return draws

    def _compared(self, name: str, outputs: Mapping[int, np.ndarray], exact: Mapping[int, np.ndarray]) -> Statistics:
        """Return the statistics of an output over all runs; the worst over rows of different lengths."""
        by_width = [statistics(outputs[width], rows, self.graph.outputs[name].dtype) if width in outputs else WRONG
                    for width, rows in exact.items()]
        values = zip(*map(astuple, by_width), strict=True)
        return Statistics(*(worst(of_rows) for worst, of_rows in zip((max, max, max, max, min, min), values, strict=True)))

    def _outputs(self, run: Evaluator, runs: Sequence[Run]) -> dict[str, dict[int, np.ndarray]]:
        """Return the float outputs of all runs: by name and by the length of the last axis, those of each as rows."""
        collected: dict[str, dict[int, list[np.ndarray]]] = {name: {} for name in self.outputs}
        for inputs, sizes in runs:
            results = run(inputs, sizes)
            for name, by_width in collected.items():
                rows = _as_rows(np.asarray(results[name]))
                by_width.setdefault(rows.shape[-1], []).append(rows)
        return {name: {width: np.concatenate(rows) for width, rows in by_width.items()} for name, by_width in collected.items()}


def _as_rows(value: np.ndarray) -> np.ndarray:
    """Return a value as a matrix of rows along its last axis."""
    return value.reshape(-1, value.shape[-1]) if value.ndim and value.size else value.reshape(1, -1)
