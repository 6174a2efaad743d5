"""Two wordings of one graph as one: a kernel that somebody registers adds ways, and takes none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.prepare import prepare
from tensor_graphs.kernels.kernel import HostCall, Kernel
from tensor_graphs.kernels.registry import all_kernels, by_op, register, unregister
from tensor_graphs.kernels.signature import Signature
from tensor_graphs.language.anonymous_composite import PartOp, part_of
from tensor_graphs.language.composite import expand_all
from tensor_graphs.language.node import Node, is_step, walk
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.paths.path import Cost, Path, Paths, is_way_on

ROWS, WIDTH = 3, 8


def a_graph(seed: int) -> tg.Graph:
    """A few steps: adds, norms, products and element-wise steps, of which several read one value."""
    rng = random.Random(seed)
    values = [tg.input("x", (ROWS, WIDTH)), tg.input("y", (ROWS, WIDTH))]
    for i in range(rng.randint(3, 5)):
        a, b = (rng.choice(values[-3:]) for _ in range(2))
        kind = rng.randrange(5)
        values.append(a + b if kind == 0 else a * b if kind == 1 else tg.silu(a) if kind == 2
                      else tg.linear(a, tg.parameter(f"w{i}", (WIDTH, WIDTH))) if kind == 3
                      else tg.rms_norm(a, tg.parameter(f"g{i}", (WIDTH,))))
    return tg.graph({"one": values[-1], "two": values[-2]})


def wanted() -> dict[str, tg.Graph]:
    """Graphs for which a kernel is registered."""
    n, k = tg.dim("n", 1, 64), tg.dim("k", 1, 64)
    x, y, w, g = tg.input("x", (n, k)), tg.input("y", (n, k)), tg.input("w", (k, k)), tg.input("g", (k,))
    return {"x + y": tg.graph(x + y), "norm of a sum": tg.graph(tg.rms_norm(x + y, g)), "silu(x) * y": tg.graph(tg.silu(x) * y),
            "product of a norm": tg.graph(tg.linear(tg.rms_norm(x, g), w))}


RULE = "a rule"


@contextmanager
def added(name: str) -> Iterator[None]:
    """With a kernel for one of these graphs, or with a rule."""
    if name == RULE:
        tg.rule("silu(x)", dtypes="float", name="mine/silu")(lambda x: x / (1.0 + tg.exp(-x)))
        yield
        return
    part = part_of(wanted()[name])
    register(Kernel("trial.extra", "numpy", part.name, lambda spec: HostCall(lambda outs, ins, attrs: None), lambda spec: None,
                    "extra", __name__, composite=part))
    try:
        yield
    finally:
        unregister("trial.extra")


BACKENDS = ("gen", "numpy")


def cost(seed: int, kernel: Kernel, s: Signature) -> Cost:
    """Of a kernel on a signature, the same whatever else there is."""
    return Cost(random.Random(f"{seed} {kernel.name if kernel.backend != 'gen' else 'gen'} {s.key}").uniform(1.0, 20.0))


def paths_of(graph: tg.Graph, seed: int, recipes: bool) -> Paths:
    return Paths(prepare(graph, recipes=recipes, backends=BACKENDS).graph, by_op(all_kernels(BACKENDS)),
                 lambda kernel, s: cost(seed, kernel, s))


def run(path: Path) -> frozenset[tuple[str, str]]:
    """What a path runs: kernels, each with its question."""
    return frozenset((key, name) for key, name in path.choices.items() if not is_way_on(name))


def test_a_kernel_for_a_sum_leaves_the_steps_of_a_decoder_joined() -> None:
    x = tg.input("x", (ROWS, WIDTH))
    for i in range(3):
        normed = tg.rms_norm(x, tg.parameter(f"g{i}", (WIDTH,)))
        x = x + tg.rms_norm(tg.linear(normed, tg.parameter(f"w{i}", (WIDTH, WIDTH))), tg.parameter(f"h{i}", (WIDTH,)))
    graph = tg.graph(x)

    def steps() -> int:
        return sum(map(is_step, prepare(graph, recipes=False, backends=BACKENDS).graph.nodes))

    before = steps()
    with added("x + y"):
        assert steps() == before < sum(map(is_step, graph.nodes))
        assert "ways: 2 " in prepare(graph, recipes=False, backends=BACKENDS).note


def test_a_rule_about_joined_steps_is_a_recipe_of_their_part_and_no_path_is_there_twice() -> None:
    tg.rule("sub(mul(x, x), mul(y, y))", dtypes="float", name="mine/squares")(lambda x, y: (x - y) * (x + y))
    x, y = (tg.input(name, (ROWS, WIDTH)) for name in "xy")
    paths = list(paths_of(tg.graph(x * x - y * y), 0, True))
    calls = {tuple(sorted((key, name, path.calls[key]) for key, name in run(path))) for path in paths}
    assert len(calls) == len(paths)
    words = {tuple(n.op.name for n in walk(op.written.outputs) if is_step(n)) for path in paths for op in path.recipes.values()}
    assert words == {("sub", "add", "mul")}


@pytest.mark.parametrize("name", [*wanted(), RULE])
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.long] * (n > 2)) for n in range(6)])
def test_with_one_more_kernel_or_rule_there_are_all_paths_that_there_were_and_none_is_dearer(name: str, seed: int) -> None:
    graph = a_graph(seed)
    before = paths_of(graph, seed, name == RULE)
    cheapest, there = before.cheapest(), {run(path) for _, path in zip(range(400), before, strict=False)}
    with added(name):
        after = paths_of(graph, seed, name == RULE)
        assert after.cheapest().cost <= cheapest.cost * (1 + 1e-9)
        left = set(there)
        for _, path in zip(range(40000), after, strict=False):
            left -= {run(path)}
            if not left:
                break
        assert not left, f"{len(left)} of {len(there)} paths are gone"
        made = prepare(graph, recipes=name == RULE, backends=BACKENDS).graph
    rng = np.random.default_rng(seed)
    values = {n: rng.standard_normal((ROWS, WIDTH)) for n in graph.inputs}
    weights = {n: rng.standard_normal([int(s) for s in p.shape]) for n, p in graph.parameters.items()}
    expected = interpret(graph, values, parameters=weights).outputs
    for recipes in (False, True):
        got = interpret(with_recipes(made, recipes), values, parameters=weights).outputs
        for key, value in expected.items():
            np.testing.assert_allclose(got[key], value, rtol=1e-9, atol=1e-9)


def with_recipes(graph: tg.Graph, recipes: bool) -> tg.Graph:
    """The graph with each part by its first recipe, where it has one, or else by its definition."""
    def written(node: Node) -> object:
        op = node.op
        if recipes and isinstance(op, PartOp) and op.recipes:
            op = op.recipes[0].op
        return op.define([i.type for i in node.inputs], node.attrs)          # type: ignore[attr-defined]

    return graph.with_roots(expand_all(graph.roots, lambda n: not isinstance(n.op, PartOp), written))    # type: ignore[arg-type]
