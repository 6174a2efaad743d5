"""Names of dims: graphs alike up to these are compiled one after the other in one process, and none meets a name of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.choice.path_listing import list_paths
from tensor_graphs.language.graph import Graph
from tensor_graphs.language.node import Node, rebuild
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.records.database import Database
from tensor_graphs.runtime.compiled_graph import bind
from tensor_graphs.views.explain import explain

NAMINGS = (("batch", "keys"), ("rows", "batch"), ("keys", "batch"))
"""names of two dims: other ones, and the first two in each other's place"""


def outputs(n: tg.Dim, m: tg.Dim) -> Mapping[str, Node]:
    """What says a size in an attribute or in the shapes of operands, by name."""
    x, y, z = tg.input("x", (n, 8), tg.f32), tg.input("y", (m, 8), tg.f32), tg.input("z", (n, m), tg.f32)
    index, key = tg.input("index", (n,), tg.i32), tg.input("key", (2,), tg.u32)
    q, k = tg.reshape(x, (n, 1, 8)), tg.reshape(y, (m, 1, 8))
    earlier = tg.less(tg.iota((n, m), 1), tg.iota((n, m), 0))
    return {
        "running sum": tg.cumsum(x, axis=0),
        "places": tg.cast(tg.iota((n, 8), 0), tg.f32),
        "places of an input": x + tg.cast(tg.iota((n, 8), 0), tg.f32),
        "mask": tg.where(earlier, z, 0.0),
        "causal weights": tg.softmax(tg.where(earlier, tg.linear(x, y), -1e9)),
        "uniform": tg.uniform(key, shape=(n, 8)),
        "bits": tg.random_bits(key, shape=(n, m)),
        "size as a number": x / tg.cast(tg.constant(n, tg.i32), tg.f32),
        "repeated": tg.expand(tg.reshape(tg.sum(y, axis=0), (1, 8)), (n, 8)) * x,
        "one-hot": tg.one_hot(index, size=m),
        "attention": tg.attention(q, k, k, scale=0.3),
        "gap": tg.pad(x, ((0, m), (0, 0))),
        "window": tg.slice(tg.input("w", (128, 8), tg.f32), ((m, m + n, 1), (0, 8, 1))),
        "joined": tg.concat(x, y, axis=0),
        "angles": tg.rope_table(tg.iota((n,), 0, tg.i32), head_dim=8, theta=1e4)[0],
        "best": tg.topk(z, k=1)[0],
        "mean": tg.mean(x, axis=0),
    }


SUBJECTS = tuple(outputs(tg.dim("n", 1, 64), tg.dim("m", 1, 64)))


def values(graph: Graph, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    types = {name: node.type.at(sizes) for name, node in graph.inputs.items()}
    return {name: rng.standard_normal(t.shape).astype(t.dtype.numpy) if t.dtype.is_float
            else rng.integers(0, 4, t.shape).astype(t.dtype.numpy) for name, t in types.items()}


def check(graph: Graph, database: Database, backends: Sequence[str], sizes: Mapping[str, int]) -> None:
    """The graph compiles, and its plan gives the oracle's values."""
    plan = compile_graph(graph, database=database, backends=backends)
    own = {name: size for name, size in sizes.items() if name in graph.dims}
    inputs = values(graph, own)
    made, wanted = bind(plan, {}).run(inputs, dims=own), interpret(graph, inputs, dims=own).outputs
    for name, value in wanted.items():
        assert made[name].shape == value.shape
        np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_graphs_alike_up_to_names_of_dims_compile_one_after_the_other(store: Database, subject: str) -> None:
    for names in NAMINGS:
        n, m = (tg.dim(name, 1, 64) for name in names)
        check(tg.graph({"y": outputs(n, m)[subject]}), store, ("numpy",), dict(zip(names, (5, 9), strict=True)))


@pytest.mark.parametrize("subject", ["running sum", "places", "mask", "uniform", "joined"])
def test_generated_loops_have_the_names_of_their_own_graph(store: Database, subject: str) -> None:
    for names in NAMINGS:
        n, m = (tg.dim(name, 1, 64) for name in names)
        check(tg.graph({"y": outputs(n, m)[subject]}), store, ("gen", "c", "numpy"), dict(zip(names, (5, 9), strict=True)))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_graph_may_ask_the_same_of_two_dims(store: Database, subject: str) -> None:
    n, m = tg.dim("n", 1, 64), tg.dim("m", 1, 64)
    there, back = outputs(n, m)[subject], outputs(m, n)[subject]
    others = {leaf: tg.input(f"{name}_back", leaf.shape, leaf.dtype) for name, leaf in tg.graph(back).inputs.items()}
    (back,) = rebuild([back], lambda node, inputs: others.get(node))
    check(tg.graph({"there": there, "back": back}), store, ("numpy",), {"n": 5, "m": 9})


def test_a_product_and_the_one_with_its_dims_exchanged_are_listed_and_explained_in_one_graph(database: Database) -> None:
    x, y = tg.input("x", (tg.dim("n", 1, 64), 8), tg.f32), tg.input("y", (tg.dim("m", 1, 64), 8), tg.f32)

    def weighted(a: Node, b: Node) -> Node:
        return tg.dot(tg.dot(a, tg.permute(b, (1, 0))), b)

    graph = tg.graph([weighted(x, y), weighted(y, x)])
    plan = compile_graph(graph, database=database, backends=("c", "numpy"))
    assert "c." in explain(plan)
    assert len(list(islice(list_paths(graph, database=database, backends=("c", "numpy")), 4))) == 4
    check(graph, database, ("c", "numpy"), {"n": 64, "m": 1})
