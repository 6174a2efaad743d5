"""Random graphs over atomic and composite ops, run along random paths of all backends, against the oracle.

A failing graph is printed with its seed, its path and its sizes. How wrong a result may be follows from the graph: one that
turns rounding of its inputs into large differences proves nothing and is passed over; few may be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.kernels.kernel import HostCall
from tensor_graphs.language import atomic
from tensor_graphs.language import dims as d
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node
from tensor_graphs.language.text import print_graph
from tensor_graphs.meaning.error_measure import measure
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.path import Path
from tensor_graphs.runtime.compiled_graph import bind
from tests.plans import paths_of, plan_of, poison, program_of, random_path, worst_error

SEEDS = range(120)
BACKENDS = (("numpy",), ("c", "numpy"), ("torch", "numpy"), ("c", "torch", "numpy"))
BUDGET = 25.0
"""seconds; what is left undone when they are over is said"""
ILL = 1e-5
"""the answer to a disturbance of one part in 2^23 beyond which a graph proves nothing about kernels"""


@dataclass
class Case:
    """A graph with values for everything it asks for."""

    graph: Graph
    inputs: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]
    states: dict[str, np.ndarray]
    dims: dict[str, int]

    def text(self) -> str:
        return f"{print_graph(self.graph)}\nat {self.dims}"


class Grower:
    """A random graph under construction: a pool of values, and steps that put another one into it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = tg.dim("n", 0, 12)
        self.values: dict[str, np.ndarray] = {}
        self.binding = {"n": int(self.pick(0, 1, 1, 2, 3, 5, 12))}
        self.floats: list[Node] = [self.leaf("input", (self.n, 8)), self.leaf("input", (4, 8)), self.leaf("input", (8,))]
        self.integers: list[Node] = [self.leaf("input", (self.n,), tg.i32), self.leaf("input", (4, 3), tg.i32)]
        self.masks: list[Node] = []
        self.states: list[tg.State] = []
        self.updates: dict[tg.State, Node] = {}

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def leaf(self, kind: str, shape: tuple[Any, ...], dtype: tg.DType = tg.f32) -> Node:
        name = f"{kind[0]}{len(self.values)}"
        concrete = tuple(d.evaluate(s, self.binding) for s in shape)
        if dtype.kind == "float":
            self.values[name] = self.rng.standard_normal(concrete).astype(dtype.numpy)
        else:
            self.values[name] = self.rng.integers(-2, 10, concrete).astype(dtype.numpy)
        if kind == "state":
            self.states.append(tg.state(name, shape, dtype))
            return self.states[-1].read()
        make = tg.input if kind == "input" else tg.parameter
        return make(name, shape, dtype)

    def some(self, least_rank: int = 0) -> Node:
        """A float of the pool, the later ones more often."""
        fitting = [f for f in self.floats if f.rank >= least_rank]
        return fitting[max(int(self.rng.integers(len(fitting))), int(self.rng.integers(len(fitting))))]

    def like(self, x: Node) -> Node:
        """Another value of x's shape: one of the pool, or x itself changed a little."""
        same = [f for f in self.floats if f.shape == x.shape and f is not x]
        return self.pick(*same) if same and self.rng.random() < 0.7 else tg.tanh(x * 0.5 + 0.25)

    def grow(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.pick("elementwise", "elementwise", "binary", "binary", "binary", "view", "view", "view", "reduce",
                                    "normalise", "product", "choose", "index", "integer", "join", "remember", "attend"))()

    def add(self, x: Node) -> None:
        if x.rank <= 4 and all(isinstance(s, int) or d.bounds(s)[1] <= 100 for s in x.shape):
            self.floats.append(x)

    # steps

    def elementwise(self) -> None:
        x = self.some()
        one = self.pick(tg.tanh, tg.sigmoid, tg.silu, tg.relu, tg.erf, tg.softplus, tg.gelu, tg.neg,
                        lambda v: tg.gelu(v, approximate="tanh"),
                        lambda v: tg.sin(tg.tanh(v)), lambda v: tg.exp(tg.tanh(v)), lambda v: tg.cos(tg.tanh(v) * 3.0),
                        lambda v: tg.sqrt(v * v + 0.5), lambda v: tg.log(v * v + 0.5), lambda v: 1.0 / (tg.abs(v) + 0.75),
                        lambda v: tg.exp2(tg.tanh(v)), lambda v: atomic.log2(v * v + 1.5), lambda v: v * 0.5 + 1.0)
        self.add(one(x))

    def binary(self) -> None:
        x = self.some()
        y = self.pick(self.like(x), x, self.like(x)[..., ::-1] if x.rank else x)
        two = self.pick(tg.add, tg.mul, tg.maximum, tg.minimum, lambda a, b: a + b * 0.5, lambda a, b: a / (b * b + 0.75),
                        lambda a, b: tg.gated(a, b, activation=self.pick("gelu_tanh", "gelu", "silu")))
        out = two(x, y)
        self.add(tg.tanh(out) if self.rng.random() < 0.4 else out)

    def view(self) -> None:
        x = self.some(1)
        axis = int(self.rng.integers(x.rank))
        flat: Callable[[Node], Node] = lambda v: v.reshape(-1)  # noqa: E731
        cut = tuple(slice(None, None, int(self.pick(1, 1, 2, -1, -2))) for _ in x.shape)
        ways: list[Callable[[Node], Node]] = [
            lambda v: atomic.permute(v, tuple(int(a) for a in self.rng.permutation(v.rank))), lambda v: v[cut], flat,
            lambda v: v.reshape(*v.shape[:axis], 1, *v.shape[axis:]), lambda v: v.T if v.rank > 1 else v[1:],
            lambda v: v[..., :2], lambda v: v[..., 1:], lambda v: tg.flip(v, axis=axis),
            lambda v: atomic.pad(v, [(1, 0)] * v.rank, 0.5),
            lambda v: atomic.expand(atomic.reshape(v, (*v.shape, 1)), (*v.shape, 3)) if v.rank < 3 else v]
        if isinstance(x.shape[-1], int) and x.shape[-1] % 2 == 0 and x.shape[-1]:
            ways.append(lambda v: v.reshape(*v.shape[:-1], v.shape[-1] // 2, 2))
        self.add(self.pick(*ways)(x))

    def reduce(self) -> None:
        x = self.some(1)
        axis = int(self.rng.integers(x.rank))
        small: Callable[[Node], Node] = lambda v: tg.sum(v, axis) * 0.25  # noqa: E731
        self.add(self.pick(small, lambda v: tg.max(v, axis), lambda v: tg.cumsum(v, axis=axis) * 0.25,
                           lambda v: tg.reduce_min(v, axis))(x))

    def normalise(self) -> None:
        x = self.some(1)
        last = x.shape[-1]
        weight = self.pick(None, self.leaf("parameter", (last,), self.pick(tg.f32, tg.bf16))) if isinstance(last, int) else None
        self.add(self.pick(lambda v: tg.softmax(v), lambda v: tg.rms_norm(v, weight, eps=0.1, offset=1.0),
                           lambda v: tg.layer_norm(v, weight, eps=0.1), lambda v: tg.log_softmax(v))(x))

    def product(self) -> None:
        x = self.some(1)
        last = x.shape[-1]
        if not isinstance(last, int) or last == 0:
            return
        out = int(self.pick(1, 3, 8))
        if self.rng.random() < 0.6:
            weight = self.leaf("parameter", (out, last), self.pick(tg.f32, tg.bf16))
            bias = self.pick(None, self.leaf("parameter", (out,)))
            self.add(tg.linear(x, weight, bias) * (1.0 / last))
        elif x.rank > 1:
            self.add(tg.dot(x, atomic.permute(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))) * (0.5 / last))

    def choose(self) -> None:
        x = self.some()
        y = self.like(x)
        self.masks.append(tg.less(x, y))
        mask = self.pick(*[m for m in self.masks if m.shape == x.shape])
        self.add(tg.where(mask, x, self.pick(y, -1.5)))

    def index(self) -> None:
        x = self.some(1)
        at = self.pick(*self.integers)
        axis = int(self.rng.integers(x.rank))
        if x.rank + at.rank > 4:
            return
        if self.rng.random() < 0.6:
            self.add(atomic.gather(x, at, axis=axis))
        elif at.rank == 1:
            rest = self.leaf("input", tuple(at.shape[0] if i == axis else s for i, s in enumerate(x.shape)))
            self.add(atomic.scatter(x, at, rest, axis=axis, mode=self.pick("add", "max")))

    def integer(self) -> None:
        a = self.pick(*self.integers)
        b = self.pick(*[i for i in self.integers if i.shape == a.shape])
        self.integers.append(self.pick(
            lambda: a + b, lambda: a * b, lambda: tg.maximum(a, b), lambda: a // 3, lambda: atomic.idiv(a, b),
            lambda: tg.where(tg.less(a, b), a, b), lambda: tg.sum(a), lambda: atomic.cast(a, tg.u8).cast(tg.i32),
            lambda: atomic.bit_xor(a, b), lambda: tg.cumsum(a) if a.rank else a)())
        if self.rng.random() < 0.3:
            self.add(atomic.cast(atomic.cast(self.integers[-1], tg.i8), tg.f32) * 0.01)

    def join(self) -> None:
        x = self.some(1)
        y = self.like(x)
        self.add(tg.concat(x, y, x, axis=self.pick(0, -1)))

    def remember(self) -> None:
        rows = [f for f in self.floats if f.rank == 2 and f.shape[1] == 8]
        if len(self.states) < 2:
            self.leaf("state", (6, 8))
        s = self.pick(*self.states)
        fitting = [(f, 6 - size) for f in rows if (size := int(d.evaluate(f.shape[0], self.binding))) <= 6]
        if not fitting:                                             # a write behind the end of a state is refused
            return
        written, last = fitting[int(self.rng.integers(len(fitting)))]
        new = s.write(written, at=int(self.pick(0, min(1, last), last)))
        if self.rng.random() < 0.5:
            self.updates[s] = new
        self.floats += [self.pick(new, s.read()), new]

    def attend(self) -> None:
        x = self.some(2)
        if x.rank != 2 or x.shape[1] != 8:
            return
        heads = atomic.reshape(x, (x.shape[0], 2, 4))
        seen = tg.attention(heads, heads, heads, scale=0.5, causal=self.pick(True, False), window=self.pick(0, 2))
        self.add(atomic.reshape(seen, x.shape))


def grown(seed: int) -> Case:
    """The case of a seed: 1–4 outputs (later values more often), views and duplicates among them, and updates of states."""
    g = Grower(seed)
    g.grow(int(g.rng.integers(4, 22)))
    outputs = {f"out{i}": g.some() for i in range(int(g.rng.integers(1, 5)))}
    if g.rng.random() < 0.5:
        outputs["number"] = g.pick(*g.integers)
    if g.masks and g.rng.random() < 0.3:
        outputs["mask"] = g.masks[-1]
    made = tg.graph(outputs, g.updates)

    def of(names: Mapping[str, Node]) -> dict[str, np.ndarray]:
        return {n: g.values[n] for n in names}

    return Case(made, of(made.inputs), of(made.parameters), of(made.states), {n: v for n, v in g.binding.items() if n in made.dims})


def oracle(case: Case) -> Any:
    return interpret(case.graph, case.inputs, case.parameters, case.states, dims=case.dims)


def trembles(case: Case, expected: Any) -> bool:
    """Whether inputs disturbed in their last bit move a result further than any kernel's rounding should."""
    rng = np.random.default_rng(99)

    def shake(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: v if v.dtype.kind not in "f" else (v * (1 + rng.choice([-1, 1], v.shape) * 2.0 ** -23)).astype(v.dtype)
                for n, v in values.items()}

    for _ in range(2):
        shaken = oracle(replace(case, inputs=shake(case.inputs), parameters=shake(case.parameters), states=shake(case.states)))
        values = [(shaken.outputs[n], expected.outputs[n], node) for n, node in case.graph.outputs.items()]
        values += [(shaken.updates[n], expected.updates[n], node) for n, node in case.graph.updates.items()]
        if any(not measure(found, known, node.dtype).max_relative_error <= ILL for found, known, node in values):
            return True
    return False


def run(case: Case, backends: tuple[str, ...], path: Path | None, expected: Any) -> str | None:
    """What is wrong with one path of a case; None when nothing is."""
    program = program_of(case.graph, backends, path=path)
    compiled = bind(plan_of(case.graph, backends, path=path, program=program, largest=case.dims), case.parameters)
    session = compiled.session()
    session.restore(case.states)
    poison(compiled)
    before = {n: v.copy() for n, v in case.inputs.items()}
    results = compiled.run(case.inputs, dims=case.dims, session=session)
    ratio, where = worst_error(case.graph, results, session.snapshot(), expected)
    if not ratio <= 1:
        return where
    written = [n for n, v in case.inputs.items() if v.tobytes() != before[n].tobytes()]
    return f"input {written[0]} was written" if written else None


def paths_to_try(case: Case, seed: int) -> list[tuple[tuple[str, ...], Path]]:
    """The coarsest path of each set of backends, the finest of numpy, and two drawn among all."""
    rng = np.random.default_rng(seed)
    out = [(b, paths_of(case.graph, b).cheapest()) for b in BACKENDS[:3]]
    everything = paths_of(case.graph, BACKENDS[3])
    return [*out, (BACKENDS[3], random_path(everything, rng)), (BACKENDS[3], random_path(everything, rng))]


def test_random_graphs_give_the_oracles_values_along_every_path() -> None:
    started, ran, passed_over = time.perf_counter(), 0, 0
    kernels: set[str] = set()
    for seed in SEEDS:
        if time.perf_counter() - started > BUDGET and ran >= 20:
            break
        case = grown(seed)
        expected = oracle(case)
        if trembles(case, expected):
            passed_over += 1
            continue
        for backends, path in paths_to_try(case, seed):
            wrong = run(case, backends, path, expected)
            kernels.update(path.choices.values())
            if wrong is not None:
                steps = "\n".join(f"{ins.label}: {ins.kernel}" for ins in program_of(case.graph, backends, path=path).instructions)
                pytest.fail(f"seed {seed}, backends {'+'.join(backends)}: {wrong}\n{case.text()}\n{steps}", pytrace=False)
        ran += 1
    assert ran >= 20 and passed_over <= ran // 3, f"{ran} graphs ran, {passed_over} were ill-conditioned"
    assert len(kernels) > 60, f"only {len(kernels)} kernels were met"


def test_a_wrong_kernel_is_seen() -> None:
    """The comparison fails when one instruction writes something else."""
    seen = 0
    for seed in range(6):
        case = grown(seed)
        expected = oracle(case)
        program = program_of(case.graph)
        victims = [i for i, ins in enumerate(program.instructions) if ins.outs[0].dtype == tg.f32]
        if not victims:
            continue
        at = victims[-1]
        good = program.instructions[at].call
        assert isinstance(good, HostCall)

        def spoilt(outs: Any, ins: Any, attrs: Any, good: HostCall = good) -> None:
            good.run(outs, ins, attrs)
            outs[0][...] = outs[0] * 1.01 + 0.01

        program.instructions[at] = replace(program.instructions[at], call=HostCall(spoilt))
        compiled = bind(plan_of(case.graph, program=program, largest=case.dims), case.parameters)
        session = compiled.session()
        session.restore(case.states)
        results = compiled.run(case.inputs, dims=case.dims, session=session)
        seen += not worst_error(case.graph, results, session.snapshot(), expected)[0] <= 1
    assert seen >= 2
