"""A gather by indices that count up is a slice; one that leaves its operand, wraps or skips is not."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.language import atomic
from tensor_graphs.language.node import Node
from tensor_graphs.meaning.interpreter import interpret
from tensor_graphs.rewrites.extract import paid_nodes
from tensor_graphs.rewrites.passes.simplify import simplify

X = tg.input("x", (5, 300))
N = tg.dim("n", 1, 200)
S = tg.input("s", (N, 4))


def count(size: object, dtype: tg.DType = tg.i32) -> Node:
    return atomic.iota((size,), 0, dtype)                           # type: ignore[arg-type]


IN_ORDER = {
    "all of an axis": tg.gather(X, count(300), axis=1),
    "all of the first axis": tg.gather(X, count(5, tg.u8), axis=0),
    "the first few": tg.gather(X, count(3), axis=0),
    "from the second on": tg.gather(X, count(4) + 1, axis=0),
    "of a size that is only bounded": tg.gather(S, count(N), axis=0),
}
OTHERWISE = {
    "beyond the end": tg.gather(X, count(6), axis=0),
    "beyond the end by where it starts": tg.gather(X, count(4) + 2, axis=0),
    "from before the start": tg.gather(X, count(4) - 1, axis=0),
    "indices that wrap": tg.gather(X, count(300, tg.u8), axis=1),
    "every other one": tg.gather(X, count(3) * 2, axis=0),
    "backwards": tg.gather(X, tg.neg(count(5)) + 4, axis=0),
    "a size that may be larger": tg.gather(tg.input("t", (100, 2)), count(N), axis=0),
    "the same one": tg.gather(X, atomic.fill(0, (5,), tg.i32), axis=0),
}


def values(graph: tg.Graph) -> np.ndarray:
    rng = np.random.default_rng(1)
    given = {name: rng.standard_normal([s if isinstance(s, int) else 7 for s in x.shape]).astype(np.float32)
             for name, x in graph.inputs.items()}
    return interpret(graph, given, dims={"n": 7} if graph.dims else {}).outputs["out"]


@pytest.mark.parametrize("name", IN_ORDER)
def test_a_gather_in_order_is_a_view(name: str) -> None:
    graph = tg.graph(IN_ORDER[name])
    made = simplify(graph).graph
    assert paid_nodes(made) == 0
    assert np.array_equal(values(made), values(graph))


@pytest.mark.parametrize("name", OTHERWISE)
def test_another_gather_stays_what_it_is(name: str) -> None:
    graph = tg.graph(OTHERWISE[name])
    made = simplify(graph).graph
    assert any(n.op.name == "gather" for n in made.nodes)
    assert np.array_equal(values(made), values(graph))
