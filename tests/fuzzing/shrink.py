"""shrink: a failing case made small while it goes on failing in the same manner; and cases as files that can be run again.

    # fuzz {"way": …, "points": …}
    tg 1
    …

What is tried: one of the points; one of the roots; a value as an input; an operand in place of a node; parameters and states as
inputs; sizes as numbers, and smaller ones; plain values; fewer choices of the path.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.language import leaves
from tensor_graphs.language.dtypes import DType
from tensor_graphs.language.graph import Graph, replace_dims
from tensor_graphs.language.graph import graph as make_graph
from tensor_graphs.language.node import Node, apply, rebuild
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.meaning.interpreter import evaluate
from tests.fuzzing.cases import ALL, Case, Point, Runs, Way, compiled
from tests.fuzzing.oracle import leaves_of

SECONDS = 30.0
"""for which a failure is made smaller"""


@dataclass(frozen=True)
class Failure:
    """What is wrong along a way of a case."""

    case: Case
    way: Way
    why: str

    @property
    def kind(self) -> str:
        """Failures of one kind may be one mistake: the error's class, or that a value is wrong."""
        for text in self.why.split(": "):
            if text.endswith("Error") and text.isidentifier():
                return text
        return "hangs" if "seconds" in self.why else "input" if "was written" in self.why else "value"


def failure_of(case: Case, way: Way) -> Failure | None:
    why = Runs(case).why_wrong(way)
    return None if why is None else Failure(case, way, why)


def shrunk(failure: Failure, seconds: float = SECONDS) -> Failure:
    """The smallest failure of the same kind that was found."""
    until = time.perf_counter() + seconds
    failure = _pinned(failure)
    found = True
    while found and time.perf_counter() < until:
        found = False
        for case, way in _smaller(failure):
            if time.perf_counter() > until:
                break
            try:
                made = failure_of(case, way)
            except (TensorGraphsError, ValueError):                 # no value at all
                continue
            if made is not None and made.kind == failure.kind:
                failure, found = made, True
                break
    return failure


def _pinned(failure: Failure) -> Failure:
    """The same with every choice of the path said by name, numpy's kernels where none is, if that fails too."""
    try:
        _, path = compiled(failure.case, failure.way)
    except Exception:
        return failure
    way = Way(failure.way.form, ("numpy", *(b for b in ALL if b != "numpy")), "coarse", failure.way.seed, dict(path.choices))
    return failure_of(failure.case, way) or failure


def _smaller(failure: Failure) -> Iterator[tuple[Case, Way]]:
    case, way = failure.case, failure.way
    for made in _cases(case):
        yield made, way
    if way.form != "written":
        yield case, replace(way, form="written")
    for key in way.pins:
        yield case, replace(way, pins={k: v for k, v in way.pins.items() if k != key})


def _cases(case: Case) -> Iterator[Case]:
    if len(case.points) > 1:
        for point in case.points:
            yield replace(case, points=(point,))
    graph = case.graph
    roots = [("outputs", n) for n in graph.outputs] + [("updates", n) for n in graph.updates]
    if len(roots) > 1:
        for kind, name in roots:
            yield from _tried(lambda k=kind, n=name: _with_graph(case, make_graph(
                {n: graph.outputs[n]} if k == "outputs" else {}, {n: graph.updates[n]} if k == "updates" else {})))
        for kind, name in roots:
            yield from _tried(lambda k=kind, n=name: _with_graph(case, make_graph(
                {o: x for o, x in graph.outputs.items() if (k, n) != ("outputs", o)},
                {o: x for o, x in graph.updates.items() if (k, n) != ("updates", o)})))
    if len(case.points) > 1:
        return
    (point,) = case.points
    if graph.dims:
        mapping = {n: point.dims[n] for n in graph.dims}
        yield from _tried(lambda: _with_graph(replace(case, points=(Point({}, point.inputs),)), _mapped(graph, mapping)))
    computed = [n for n in graph.nodes if len(n.types) == 1 and n.op.kind != "leaf"]
    for node in reversed(computed):
        if node not in graph.roots or any(node in other.inputs for other in graph.nodes):
            yield from _tried(lambda n=node: _as_input(case, n))
    for node in reversed(computed):
        for operand in node.inputs:
            if len(operand.types) == 1 and operand.type == node.type:
                yield from _tried(lambda n=node, o=operand: _with_graph(case, _replaced(graph, n, o)))
    for leaf in [*graph.parameters.values(), *(s for s in graph.states.values() if str(s.attrs["name"]) not in graph.updates)]:
        yield from _tried(lambda n=leaf: _as_input(case, n))
    if not graph.dims:
        sizes = sorted({int(s) for n in graph.nodes if n.op.kind == "leaf" for s in n.shape if int(s) > 1}, reverse=True)
        for size in sizes:
            for less in dict.fromkeys((1, size // 2, size - 1)):
                yield from _tried(lambda s=size, t=less: _resized(case, s, t))
    for kind in ("inputs", "parameters", "states"):
        arrays: Mapping[str, np.ndarray] = point.inputs if kind == "inputs" else getattr(case, kind)
        for name, array in arrays.items():
            for value in (np.zeros_like(array), np.ones_like(array)):
                plain = array.size == 0 or np.all(array == 0) or np.all(array == 1)
                if array.dtype.kind != "i" and not plain:
                    changed = {**arrays, name: value}
                    yield (replace(case, points=(Point(point.dims, changed),)) if kind == "inputs" else
                           replace(case, **{kind: changed}))  # type: ignore[arg-type]


def _tried(make: Callable[[], Case | None]) -> Iterator[Case]:
    """What `make` gives, where the ops take it."""
    try:
        made = make()
    except (TensorGraphsError, ValueError, StopIteration, TypeError):
        return
    if made is not None:
        yield made


def _with_graph(case: Case, graph: Graph) -> Case:
    """Another graph, on those values that it asks for."""
    points = tuple(Point({n: p.dims[n] for n in graph.dims}, {n: p.inputs[n] for n in graph.inputs}) for p in case.points)
    return Case(graph, points, {n: case.parameters[n] for n in graph.parameters}, {n: case.states[n] for n in graph.states})


def _made(graph: Graph, roots: list[Node]) -> Graph:
    count = len(graph.outputs)
    return make_graph(dict(zip(graph.outputs, roots[:count], strict=True)), dict(zip(graph.updates, roots[count:], strict=True)))


def _mapped(graph: Graph, mapping: Mapping[str, Any]) -> Graph:
    return _made(graph, replace_dims(list(graph.roots), mapping))


def _replaced(graph: Graph, node: Node, other: Node) -> Graph:
    return _made(graph, rebuild(list(graph.roots), lambda n, _: other if n is node else None))


def _as_input(case: Case, node: Node) -> Case:
    """The node's value, rounded as it is written, given as an input."""
    (point,) = case.points
    given = leaves_of(case.graph, point.inputs, case.parameters, case.states)
    (value,) = evaluate([node], given, point.dims, "as_written")
    name = next(f"v{i}" for i in range(10 ** 6) if f"v{i}" not in case.graph.inputs)
    graph = _replaced(case.graph, node, leaves.input(name, node.shape, node.dtype))
    more = Point(point.dims, {**point.inputs, name: np.asarray(value, dtype=node.dtype.numpy)})
    return _with_graph(replace(case, points=(more,)), graph)


def _resized(case: Case, size: int, less: int) -> Case:
    """Every axis of this size with another one, values cut to it."""
    (point,) = case.points

    def put(node: Node, inputs: tuple[Node, ...]) -> Node | None:
        attrs = dict(node.attrs)
        if "shape" in attrs:
            attrs["shape"] = tuple(less if s == size else s for s in attrs["shape"])
        if node.op.name == "slice":
            attrs["bounds"] = tuple((less - 1 if a == size - 1 and s < 0 else a, less if b == size else b, s)
                                    for a, b, s in attrs["bounds"])
        if node.op is leaves.CONSTANT and attrs["shape"] and size in node.shape:
            raise ValueError("an array")
        return apply(node.op, inputs, attrs)

    graph = _made(case.graph, rebuild(list(case.graph.roots), put))

    def cut(arrays: Mapping[str, np.ndarray], names: Mapping[str, Node]) -> dict[str, np.ndarray]:
        return {n: np.ascontiguousarray(arrays[n][tuple(slice(int(s)) for s in x.shape)]) if x.rank else arrays[n]
                for n, x in names.items()}

    return Case(graph, (Point({}, cut(point.inputs, graph.inputs)),), cut(case.parameters, graph.parameters),
                cut(case.states, graph.states))


# ---- files -----------------------------------------------------------------------------------------------------------------

FIRST = "# fuzz "


def as_text(failure: Failure) -> str:
    """The failure as a .tg file with what it is run with; `from_text` reads it."""
    case, way = failure.case, failure.way
    data = {"why": failure.why, "way": {"form": way.form, "backends": way.backends, "taste": way.taste, "seed": way.seed,
                                        "pins": dict(way.pins)},
            "points": [{"dims": dict(p.dims), "inputs": _listed(p.inputs)} for p in case.points],
            "parameters": _listed(case.parameters), "states": _listed(case.states)}
    return f"{FIRST}{json.dumps(data)}\n{print_graph(case.graph)}"


def from_text(text: str) -> Failure:
    head, _, rest = text.partition("\n")
    data, graph = json.loads(head.removeprefix(FIRST)), parse_graph(rest)
    way = Way(data["way"]["form"], tuple(data["way"]["backends"]), data["way"]["taste"], data["way"]["seed"], data["way"]["pins"])
    points = tuple(Point(p["dims"], _read(p["inputs"], graph.inputs)) for p in data["points"])
    case = Case(graph, points, _read(data["parameters"], graph.parameters), _read(data["states"], graph.states))
    return Failure(case, way, data["why"])


def _listed(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Numbers in lists, and the shape: one with a 0 in it is lost in lists."""
    return {n: [list(a.shape), (a if a.dtype.kind in "iub" else a.astype(np.float64)).ravel().tolist()]
            for n, a in arrays.items()}


def _read(data: Mapping[str, Any], names: Mapping[str, Node]) -> dict[str, np.ndarray]:
    def array(values: Any, shape: Any, dtype: DType) -> np.ndarray:
        return np.array(values, np.float64 if dtype.is_float else dtype.numpy).astype(dtype.numpy).reshape(shape)

    return {n: array(data[n][1], data[n][0], x.dtype) for n, x in names.items()}


def told(failure: Failure, seed: int) -> str:
    """For people: what is wrong, with which graph, values and kernels, and how to run it again."""
    try:
        made, _ = compiled(failure.case, failure.way)
        steps = [f"  {ins.label}: {ins.kernel}" for v in made.plan.variants
                 for ins in (*v.program.bind_instructions, *v.program.instructions)]
    except Exception:
        steps = []
    return "\n".join([f"seed {seed} ({failure.way}): {failure.why}", *steps, as_text(failure),
                      f"again: python benchmarks/fuzz_graphs.py --seeds {seed}..{seed + 1}, or --replay FILE with the text above"])
