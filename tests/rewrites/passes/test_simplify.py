"""Simplification: ugly graphs reach their stated size, minimal ones stay what they are, and every bit stays the same."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language.text import parse_graph, print_graph
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.extract import paid_nodes
from tensor_graphs.rewrites.passes.simplify import simplify
from tensor_graphs.rewrites.recipes import recipes
from tests.proof.random_graphs import expression

UGLY = sorted((Path(__file__).parent / "ugly").glob("*.tg"))


def values(graph: tg.Graph, seed: int) -> dict[str, np.ndarray]:
    r = np.random.default_rng(seed)
    sizes = {"n": 3, "m": 4}
    out = {}
    for name, x in (*graph.inputs.items(), *graph.parameters.items()):
        shape = [s if isinstance(s, int) else sizes[str(s)] for s in x.shape]
        out[name] = (r.integers(-9, 9, shape) if x.dtype.is_integer else r.standard_normal(shape)).astype(x.dtype.numpy)
    return out


def results(graph: tg.Graph, given: dict[str, np.ndarray], mode: str = "as_written") -> list[np.ndarray]:
    inputs = {n: given[n] for n in graph.inputs}
    dims = {n: {"n": 3, "m": 4}[n] for n in graph.dims}
    return list(interpret(graph, inputs, given, dims=dims, mode=mode, use_direct=False).outputs.values())  # type: ignore[arg-type]


def test_there_are_enough_ugly_graphs() -> None:
    assert len(UGLY) >= 35


@pytest.mark.parametrize("path", UGLY, ids=lambda p: p.stem)
def test_an_ugly_graph_reaches_its_stated_size_with_the_same_bits(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    best = int(re.search(r"paid nodes at best: (\d+)", text)[1])  # type: ignore[index]
    graph = parse_graph(text)
    made = simplify(graph).graph
    assert paid_nodes(made) == best, print_graph(made)
    nodes = re.search(r"nodes of any kind at best: (\d+)", text)
    assert nodes is None or len(made.nodes) == int(nodes[1]), print_graph(made)
    given = values(graph, 1)
    for a, b in zip(results(graph, given), results(made, given), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    assert parse_graph(print_graph(made)) == made
    assert simplify(made).graph == made


def test_random_graphs_never_cost_more_and_keep_their_bits() -> None:
    for seed in range(20):
        graph = tg.graph(expression(random.Random(seed), 4))
        made = simplify(graph).graph
        assert paid_nodes(made) <= paid_nodes(graph)
        given = values(graph, seed)
        for a, b in zip(results(graph, given), results(made, given), strict=True):
            assert np.array_equal(a, b, equal_nan=True), (seed, print_graph(graph), print_graph(made))


@pytest.mark.parametrize("path", UGLY, ids=lambda p: p.stem)
def test_a_minimal_graph_is_made_no_larger_by_any_level(path: Path) -> None:
    made = simplify(parse_graph(path.read_text(encoding="utf-8"))).graph
    (best,) = recipes(made, count=1).list
    assert best.paid <= paid_nodes(made)


def test_states_and_several_outputs_stay_what_they_are() -> None:
    cache, x = tg.state("cache", (8, 4)), tg.input("x", (2, 4))
    graph = tg.graph({"a": tg.neg(tg.neg(x)), "b": tg.exp(x)}, {cache: cache.write(x * 1.0, at=3)})
    made = simplify(graph).graph
    assert list(made.outputs) == ["a", "b"] and made.outputs["a"] is x
    assert list(made.updates) == ["cache"] and made.updates["cache"].inputs[1] is x
