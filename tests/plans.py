"""plans: plans made without prices and without a judge, so that a test decides what runs; and their comparison with the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, copy_kernels
from tensor_graphs.kernels.signature import Signature, signature_of
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.accuracy import Accuracy
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.lower import Program, intervals_of, lower
from tensor_graphs.paths.memory import place
from tensor_graphs.paths.path import Alternative, Cost, Path, Paths, expanded
from tensor_graphs.paths.plan import Plan, Variant
from tensor_graphs.paths.size_cells import Cell
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind

BACKENDS = ("numpy", "torch", "c")
TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 5e-2, "f8e4m3": 0.25, "f8e5m2": 0.5}
"""what rounding in a dtype may cost a short graph; integers are exact"""


def paths_of(g: Graph, backends: Sequence[str], *, atomics: bool = False) -> Paths:
    """The paths of a graph; an earlier backend is always cheaper than a later one. atomics: no kernel of a composite."""
    rank = {name: 1.0 + i for i, name in enumerate(backends)}

    def cost(kernel: Kernel, signature: Signature) -> Cost | None:
        return None if atomics and signature.spec.op.kind == "composite" else Cost(rank[kernel.backend] * 1e-6)

    return Paths(g, by_op(all_kernels(backends)), cost)


def random_path(paths: Paths, rng: np.random.Generator) -> Path:
    """One of the paths, every choice drawn."""
    choices: dict[str, str] = {}
    stack = [s for s, _ in paths.top]
    while stack:
        s = stack.pop()
        if s.key in choices:
            continue
        possible = [a for a in paths.alternatives(s) if a.kernel is not None or all(paths.best(i)[1] for i, _ in paths.inner(s))]
        chosen = possible[int(rng.integers(len(possible)))]
        choices[s.key] = chosen.name
        if chosen.kernel is None:
            stack.extend(i for i, _ in paths.inner(s))
    return Path(paths.graph.structural_key, choices, 0.0, False, None)


def program_of(g: Graph, backends: Sequence[str] = ("numpy",), *, path: Path | None = None, atomics: bool = False) -> Program:
    """A graph lowered along a path (the cheapest of `paths_of` by default)."""
    paths = paths_of(g, backends, atomics=atomics)
    path = path or paths.cheapest()
    chosen: Mapping[str, Alternative] = paths.kernels(path)

    def choose(node: Node) -> Kernel:
        kernel = chosen[signature_of(node).key].kernel
        assert kernel is not None
        return kernel

    return lower(g, expanded(g.roots, path), choose, copy_kernels(backends))


def plan_of(g: Graph, backends: Sequence[str] = ("numpy",), *, path: Path | None = None, largest: Mapping[str, int] | None = None,
            atomics: bool = False, program: Program | None = None, **more: Any) -> Plan:
    """The plan of one lowered path, one variant for all sizes."""
    if program is None:
        path = path or paths_of(g, backends, atomics=atomics).cheapest()
        program = program_of(g, backends, path=path, atomics=atomics)
    sizes = {name: min(d.bounds(s)[1], 64) for name, s in g.dims.items()} | dict(largest or {})
    made = path or Path(g.structural_key, {}, 0.0, False, None)
    variant = Variant(Cell(), made, program, place(intervals_of(program), sizes), {}, (), sizes)
    return Plan(g, Accuracy(), (variant,), sizes, tuple(backends), **more)


def compiled_of(g: Graph, parameters: Mapping[str, Any] | None = None, backends: Sequence[str] = ("numpy",),
                **more: Any) -> CompiledGraph:
    return bind(plan_of(g, backends, **more), parameters)


def worst_error(g: Graph, results: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray], expected: Any) -> tuple[float, str]:
    """(largest ratio of an error to what its dtype allows, which value it is), outputs and new states alike; > 1 is wrong."""
    worst, where = 0.0, "nothing"
    found = [(n, results[n], expected.outputs[n], node) for n, node in g.outputs.items()]
    found += [(n, states[n], expected.updates[n], node) for n, node in g.updates.items()]
    for name, value, reference, node in found:
        assert value.shape == np.shape(reference), f"{name}: {value.shape} instead of {np.shape(reference)}"
        assert value.dtype == node.dtype.numpy
        report = measure(value, reference, node.dtype)
        ratio = report.max_relative_error / TOLERANCE[node.dtype.name] if node.dtype.kind == "float" else report.max_relative_error
        if not ratio <= worst:
            worst, where = float(ratio), f"{name}: error {report.max_relative_error:.3g} {report.mismatch or ''}"
    return worst, where


def check(g: Graph, inputs: Mapping[str, Any] | None = None, parameters: Mapping[str, Any] | None = None,
          states: Mapping[str, np.ndarray] | None = None, dims: Mapping[str, int] | None = None,
          backends: Sequence[str] = ("numpy",), **more: Any) -> CompiledGraph:
    """Run one plan of a graph with its arena poisoned, and hold outputs and new states to the oracle. Returns what ran."""
    compiled = compiled_of(g, parameters, backends, **more)
    session = compiled.session()
    for name, value in (states or {}).items():
        session[name] = value
    poison(compiled)
    results = compiled.run(dict(inputs or {}), dims=dims, session=session)
    known = {n: np.zeros(node.shape, node.dtype.numpy) for n, node in g.states.items()} | dict(states or {})
    expected = interpret(g, dict(inputs or {}), dict(parameters or {}), known, dims=dims)
    ratio, where = worst_error(g, results, session.snapshot(), expected)
    assert ratio <= 1, where
    return compiled


def poison(compiled: CompiledGraph, byte: int = 0xFF) -> None:
    """Fill the arena of every idle frame (one is made when there is none) with a byte; 0xFF is NaN in every float format."""
    for index in range(len(compiled.executors)):
        frame = compiled._take(index)
        binding = compiled.plan.binding({}) if frame.binding is None else dict(zip(compiled.dims, frame.binding, strict=True))
        compiled.executors[index]._prepare(frame, tuple(binding[n] for n in compiled.dims))
        for memory in frame.arenas.values():
            memory.device.fill(memory, byte)
        compiled._frames[index].append(frame)


def kernel_counts(program: Program) -> dict[str, int]:
    """op -> number of instructions in one run."""
    counts: dict[str, int] = {}
    for ins in program.instructions:
        counts[ins.op] = counts.get(ins.op, 0) + 1
    return counts
