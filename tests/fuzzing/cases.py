"""cases: a graph with values for its leaves at two points, ways to run it, and what is wrong with what comes out of one.

A way is a form of the graph (as written, as it is compiled, with float64 in between), the backends that may compute it, and a
choice for each signature that hangs on the way's seed and on the signature alone, or on what is pinned.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensor_graphs.choice.prepare import prepare
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.kernels.kernel import Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language import dims as d
from tensor_graphs.language.conditions import conditions_of
from tensor_graphs.language.graph import Graph
from tensor_graphs.meaning.precision import parse_form
from tensor_graphs.paths.lowered import lowered
from tensor_graphs.paths.path import Alternative, Cost, Path, Paths
from tensor_graphs.rewrites.passes.apply_precision import apply_form
from tensor_graphs.rewrites.passes.fuse import fuse
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.session import Session
from tensor_graphs.runtime.write_row_checks import check_rows, rows_from_inputs
from tests.choice.part_kernels import FUSED, registered
from tests.fuzzing.grow import Hint, grown, leaf_values
from tests.fuzzing.oracle import Answer, leaves_of
from tests.plans import plan_of, poison

ALL = ("c", "numpy", "torch")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Point:
    """Sizes, and inputs of these."""

    dims: Mapping[str, int]
    inputs: Arrays


@dataclass(frozen=True)
class Case:
    """A graph and values for everything that it asks for."""

    graph: Graph
    points: tuple[Point, ...]
    parameters: Arrays
    states: Arrays


class Ungrown(Exception):
    """No graph to run: the message says why."""


def case_of(seed: int) -> Case:
    """The case of a seed: two points, where the graph has dims. Raises Ungrown where no sizes give it a value."""
    made = grown(seed)
    graph = made.graph
    r = random.Random(f"point {seed}")

    def values(names: Mapping[str, Any], binding: Mapping[str, int], number: int) -> dict[str, np.ndarray]:
        return {n: leaf_values(n, tuple(map(int, node.type.at(binding).shape)), node.dtype, made.hints.get(n, Hint()),
                               1000 * seed + number, made.wild) for n, node in names.items()}

    case = Case(graph, (), values(graph.parameters, {}, 0), values(graph.states, {}, 0))
    why = "no sizes were drawn"
    for number in range(8):
        if len(case.points) == 2:
            break
        binding = {n: r.choice((d.bounds(x)[0], d.bounds(x)[1], 1, 2, 3, r.randint(*d.bounds(x)))) for n, x in graph.dims.items()}
        binding = {n: min(max(v, d.bounds(graph.dims[n])[0]), d.bounds(graph.dims[n])[1]) for n, v in binding.items()}
        if any(d.evaluate(c.gap, binding) < 0 for c in conditions_of(graph.roots)):
            why = "sizes that do not fit each other"                # a run refuses them
            continue
        try:
            point = Point(binding, values(graph.inputs, binding, number + 1))
            check_rows(rows_from_inputs(graph), point.inputs, binding)
            answer_of(case, point, case.states)
        except TensorGraphsError as e:                              # one index twice, rows that are not there
            why = str(e)
            continue
        case = replace(case, points=(*case.points, point))
    if not case.points:
        raise Ungrown(why)
    return case


@contextmanager
def everything_known() -> Iterator[None]:
    """With a kernel of somebody's for a norm with a product behind it, in other words than `grow` has, and with a second device."""
    from tests.fake import backend  # known as soon as it is imported

    backend.make_known()
    try:
        with registered(FUSED):
            yield
    finally:
        backend.forget()


def answer_of(case: Case, point: Point, states: Arrays) -> Answer:
    return Answer(case.graph, leaves_of(case.graph, point.inputs, case.parameters, states), point.dims)


# ---- ways ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """form: written, prepared (with recipes), fused (neighbouring steps as parts too) or wide. taste: which ways of a signature are
    preferred: kernels of its backends in their order (coarse), its definition (fine), recipes, or any. pins: signature key or op
    name -> name of a choice that comes first."""

    form: str
    backends: tuple[str, ...]
    taste: str
    seed: int = 0
    pins: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.form}, {'+'.join(self.backends)}, {self.taste}"


def ways_of(seed: int) -> list[Way]:
    """Ways to run a graph: each backend first, what is recognised and said otherwise, definitions all the way, any mixture of
    these, generated loops in one of eight graphs, and some of it on a second device."""
    found = [Way("written", ("numpy",), "coarse", seed), Way("prepared", ("c", "numpy"), "coarse", seed),
             Way("written", ("torch", "numpy"), "coarse", seed), Way("prepared", ALL, "recipes", seed),
             Way("written", ALL, "fine", seed), Way("prepared", ALL, "any", seed)]
    found.append(Way("prepared" if seed % 2 else "written", ("fake", *ALL), "any", seed))
    if seed % 4 == 0:
        found.append(Way("wide", ALL, "any", seed))
    if seed % 8 == 2:                                               # a run of the C compiler for each graph
        found.append(Way("fused", ("gen", *ALL), "coarse", seed))
    return found


def formed(case: Case, form: str) -> Graph:
    if form in ("prepared", "fused"):
        made = prepare(case.graph).graph
        return made if form == "prepared" else fuse(made).graph
    return apply_form(case.graph, parse_form("f64")).graph if form == "wide" else case.graph


def path_of(graph: Graph, way: Way) -> tuple[Path, Mapping[str, Alternative]]:
    """The way's path of a graph, and what it chooses by signature key."""
    paths = Paths(graph, by_op(all_kernels(way.backends)), lambda kernel, s: Cost(1e-6))
    chosen: dict[str, Alternative] = {}
    stack = [s for s, _ in paths.top]
    while stack:
        s = stack.pop()
        if s.key in chosen:
            continue
        possible = [a for a in paths.alternatives(s)
                    if a.kernel is not None or all(paths.best(i)[1] for i, _ in paths.inner(s, a))]
        chosen[s.key] = made = preferred(way, s, possible)
        if made.kernel is None:
            stack.extend(i for i, _ in paths.inner(s, made))
    choices = {key: a.name for key, a in chosen.items()}
    recipes = {a.name: a.recipe.op for a in chosen.values() if a.recipe is not None}
    return Path(graph.structural_key, choices, 0.0, False, None, recipes=recipes), chosen


def preferred(way: Way, s: Signature, possible: Sequence[Alternative]) -> Alternative:
    for name in (way.pins.get(s.key), way.pins.get(s.spec.op.name)):
        for a in possible:
            if a.name == name:
                return a
    r = random.Random(zlib.crc32(f"{way.seed} {s.key}".encode()))
    kernels = sorted((a for a in possible if a.kernel is not None), key=lambda a: _rank(way, a.kernel))
    ways_on = [a for a in possible if a.kernel is None]
    recipes = [a for a in ways_on if a.recipe is not None]
    if way.taste == "recipes" and recipes:
        return r.choice(recipes)
    if way.taste == "fine" and ways_on:
        return ways_on[0]
    if way.taste == "coarse" and kernels:
        return kernels[0]
    return r.choice(possible)


def _rank(way: Way, kernel: Kernel | None) -> int:
    assert kernel is not None
    return way.backends.index(kernel.backend) if kernel.backend in way.backends else len(way.backends)


def compiled(case: Case, way: Way) -> tuple[CompiledGraph, Path]:
    """The case's graph lowered along a way, with its parameters."""
    graph = formed(case, way.form)
    path, chosen = path_of(graph, way)

    def kernel_of(key: str) -> Kernel:
        kernel = chosen[key].kernel
        assert kernel is not None
        return kernel

    largest = {n: max(p.dims[n] for p in case.points) for n in graph.dims}
    program = lowered(graph, path, kernel_of, way.backends, largest).program
    return bind(plan_of(graph, way.backends, path=path, program=program, largest=largest), case.parameters), path


# ---- runs ----------------------------------------------------------------------------------------------------------------


class Runs:
    """The runs of one case; the oracle's answers are kept for all ways."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.answers: dict[Any, Answer] = {}
        self.kernels: set[str] = set()

    def answer(self, point: Point, states: Arrays) -> Answer:
        key = id(point), tuple((n, a.tobytes()) for n, a in states.items())
        if key not in self.answers:
            self.answers[key] = answer_of(self.case, point, states)
        return self.answers[key]

    def why_wrong(self, way: Way) -> str | None:
        """What is wrong along a way: an exception, or a value at one of the runs; None where nothing is.

        Each point twice by `run`, the second time on what the first one left in states and arena; then the first point by
        `prepared`, twice, into outputs that hold something else.
        """
        try:
            made, path = compiled(self.case, way)
        except Exception as e:
            return f"it cannot be compiled: {_said(e)}"
        self.kernels.update(path.choices.values())
        session = made.session()
        _restore(session, self.case.states)
        poison(made)
        points = self.case.points
        for number, point in enumerate((*points, *points[:1])):
            wrong = self._step(made, session, point, number < 1)
            if wrong is not None:
                return f"run {number} at {dict(point.dims)}: {wrong}"
        wrong = self._prepared(made, session, points[0])
        return None if wrong is None else f"prepared at {dict(points[0].dims)}: {wrong}"

    def _step(self, made: CompiledGraph, session: Session, point: Point, first: bool) -> str | None:
        states = session.snapshot()
        try:
            answer = self.answer(point, states)
        except TensorGraphsError:                                   # no value from these states on: two equal indices, say
            _restore(session, self.case.states)
            states = session.snapshot()
            answer = self.answer(point, states)
        inputs = {n: a.copy() for n, a in point.inputs.items()}
        try:
            results = made.run(inputs, dims=_open(self.case.graph, point), session=session)
        except Exception as e:
            return _said(e)
        written = [n for n, a in inputs.items() if a.tobytes() != point.inputs[n].tobytes()]
        if written:
            return f"input {written[0]} was written"
        return self._compared(made, answer, results, session.snapshot())

    def _prepared(self, made: CompiledGraph, session: Session, point: Point) -> str | None:
        inputs = {n: a.copy() for n, a in point.inputs.items()}
        try:
            run = made.prepared(inputs, dims=_open(self.case.graph, point), session=session)
            for _ in range(2):
                states = session.snapshot()
                try:
                    answer = self.answer(point, states)
                except TensorGraphsError:
                    return None
                results = run.run()
                wrong = self._compared(made, answer, results, session.snapshot())
                if wrong is not None:
                    return wrong
                for array in results.values():
                    array.view(np.uint8).fill(0xFF) if array.ndim else array.fill(1)
        except Exception as e:
            return _said(e)
        return None

    def _compared(self, made: CompiledGraph, answer: Answer, results: Arrays, states: Arrays) -> str | None:
        graph = self.case.graph
        # the states of a graph with float64 in between are wider than the graph says
        found = [(n, results[n]) for n in graph.outputs]
        found += [(n, states[n].astype(x.dtype.numpy)) for n, x in graph.updates.items()]
        reworded = bool(made.plan.variants[0].path.recipes)
        for index, (name, value) in enumerate(found):
            wrong = answer.why_wrong(index, value, reworded)
            if wrong is not None:
                return f"{name}: {wrong}"
        return None


def _restore(session: Session, states: Arrays) -> None:
    session.restore({n: a.astype(session[n].dtype) for n, a in states.items()})


def _open(graph: Graph, point: Point) -> dict[str, int]:
    """Sizes of dims that no input has as an axis (those that have one may be given, too)."""
    seen = {str(s) for node in graph.inputs.values() for s in node.shape}
    return {n: v for n, v in point.dims.items() if n not in seen}


def _said(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"
